//! Announces a reverse gateway to visitors without Tandem: in responses, and in a document at a
//! well-known path (`docs/src/discovery.md`).
//!
//! The gateway knows its public name from the request: the host that it serves.

use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tandem_http::{Method, ResponseHead};

use crate::announcement::{Announcement, FIELD, Site, WELL_KNOWN};
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::exchange::{Exchange, Part, Parts, Reply};
use crate::hosts::HostPattern;
use crate::stage::Stage;

/// The gateway in front of a site.
#[derive(Debug)]
pub struct OwnGateway {
    /// The listeners, with the ports that they are bound to.
    pub listeners: Vec<Endpoint>,
    /// The hosts that the gateway serves.
    pub hosts: Vec<HostPattern>,
}

impl OwnGateway {
    /// Returns the announcement for the site of a request.
    fn announcement(&self, exchange: &Exchange) -> Option<String> {
        let site = Site::of(&exchange.request)?;
        let is_served = self.hosts.iter().any(|pattern| pattern.covers(&site.host));
        let found = Announcement::of_listeners(&site, &self.listeners);
        found.filter(|_| is_served).map(|found| found.to_string())
    }
}

/// The stage that announces the gateway.
pub struct Announce {
    /// The gateway.
    pub gateway: Rc<OwnGateway>,
    /// The stage that exchanges go on to.
    pub next: Rc<dyn Stage>,
}

impl Stage for Announce {
    fn call(&self, exchange: Exchange) -> Reply {
        // Clients that accept pushes have found the gateway.
        if exchange.peer.push && exchange.request.path != WELL_KNOWN {
            return self.next.call(exchange);
        }
        let Some(value) = self.gateway.announcement(&exchange) else {
            return self.next.call(exchange);
        };
        let request = &exchange.request;
        let is_read = matches!(request.method, Method::Get | Method::Head);
        if is_read && request.path == WELL_KNOWN {
            return document(value, request.method == Method::Head);
        }
        Reply::new(Announced {
            reply: self.next.call(exchange),
            value,
        })
    }
}

/// Returns the well-known document.
fn document(mut value: String, is_head: bool) -> Reply {
    value.push('\n');
    let mut head = ResponseHead::new(200);
    head.fields
        .push("content-type", "text/plain; charset=utf-8");
    head.fields.push("cache-control", "max-age=3600");
    head.fields.push("content-length", value.len().to_string());
    let body = if is_head { String::new() } else { value };
    Reply::ready(head, Bytes::from(body))
}

/// A reply that gets the field in its head.
struct Announced {
    reply: Reply,
    value: String,
}

impl Parts for Announced {
    fn below(&self) -> Option<&Reply> {
        Some(&self.reply)
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        let mut part = self.reply.poll_part(cx);
        if let Poll::Ready(Some(Ok(Part::Head(head)))) = &mut part
            && (200..300).contains(&head.status)
            && !head.fields.contains(FIELD)
        {
            head.fields.push(FIELD, &self.value);
        }
        part
    }
}

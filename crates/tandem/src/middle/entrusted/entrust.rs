//! The client's end: it sends the list of hosts to a gateway of the user's own, and takes no
//! response that the gateway has made itself.

use std::rc::Rc;
use std::task::{Context, Poll};

use tandem_http::cache::is_safe;
use tandem_http::{Fields, RequestHead, ResponseHead, Scheme, connect_udp};
use tandem_push::wire::{CROSSED_FIELD, OPENED_FIELD, is_companion};

use super::consenting::{is_consenting, present};
use super::{MARK, probe};
use crate::endpoint::split_authority;
use crate::error::{Error, Kind, Side};
use crate::exchange::{Exchange, Isolation, Part, Parts, PushedPart, Reply, SessionMark};
use crate::failure::explanation;
use crate::stage::{SessionPool, Stage};

/// Returns whether a list covers a host, in lower case, and a port.
pub type Covers = Rc<dyn Fn(&str, u16) -> bool>;

/// Receives the isolation key, host and port of each origin whose certificate a gateway has
/// verified.
pub type Verified = Rc<dyn Fn(&Isolation, &str, u16)>;

/// The hosts that the user entrusts to gateways.
#[derive(Clone)]
pub struct Entrusted {
    /// The coverage of the list.
    pub covers: Covers,
    /// The list, as requests carry it.
    pub list: Rc<str>,
    /// Learns of verified origins.
    pub verified: Verified,
}

/// The stage before the sessions to the gateways of one route.
#[derive(Clone)]
pub struct Entrust {
    /// The hosts.
    pub hosts: Rc<Entrusted>,
    /// True if all gateways of the route belong to the user and authenticate the client.
    pub is_permitted: bool,
    /// Returns whether a host's route is this one.
    pub is_routed: Rc<dyn Fn(&str) -> bool>,
    /// The sessions of the route.
    pub sessions: Rc<dyn SessionPool>,
    /// The stage that exchanges go on to.
    pub next: Rc<dyn Stage>,
}

impl Entrusted {
    /// Returns the host and port of a request for a listed host over TLS. A tunnel is none, neither
    /// of bytes nor of datagrams: no end has verified a certificate for it.
    fn origin(&self, request: &RequestHead) -> Option<(String, u16)> {
        let is_tunnel =
            request.is_connect() && request.protocol.is_none() || connect_udp::is_request(request);
        if request.scheme != Scheme::Https || is_tunnel {
            return None;
        }
        let default = Some(Scheme::Https.default_port());
        let (host, port) = split_authority(&request.authority, default).ok()?;
        (self.covers)(&host, port).then_some((host, port))
    }
}

impl Stage for Entrust {
    fn call(&self, exchange: Exchange) -> Reply {
        let Some(origin) = self.hosts.origin(&exchange.request) else {
            return match self.is_permitted && is_companion(&exchange.request) {
                true => self.watch(exchange, None),
                false => self.next.call(exchange),
            };
        };
        if !self.is_permitted {
            let detail = "the route of this host has a gateway that is not marked as the user's \
                          own (own=yes)";
            return Reply::fail(Error::new(Kind::Forbidden, Side::Local, detail));
        }
        let request = &exchange.request;
        let is_repeatable = is_safe(&request.method) && request.protocol.is_none();
        if is_repeatable || is_consenting(&*self.sessions, &exchange.isolation) {
            return self.send(exchange, origin);
        }
        let this = self.clone();
        Reply::generate(|mut sink| async move {
            this.probe(&exchange, origin.clone()).await?;
            let mut reply = this.send(exchange, origin);
            while let Some(part) = reply.part().await {
                sink.send(part?).await;
            }
            Ok(())
        })
    }
}

impl Entrust {
    /// Sends a request for a listed host with the list.
    fn send(&self, mut exchange: Exchange, origin: (String, u16)) -> Reply {
        let list = self.hosts.list.as_bytes().to_vec();
        exchange.request_mut().fields.set(OPENED_FIELD, list);
        self.watch(exchange, Some(origin))
    }

    /// Sends a probe for the origin of an exchange that must not be sent twice, or to a gateway
    /// that does not consent.
    async fn probe(&self, exchange: &Exchange, origin: (String, u16)) -> Result<(), Error> {
        let probe = Exchange {
            isolation: exchange.isolation.clone(),
            ..Exchange::internal(probe(&exchange.request.authority))
        };
        let mut reply = self.send(probe, origin);
        while let Some(part) = reply.part().await {
            if let Part::Head(_) = part? {
                return Ok(());
            }
        }
        let detail = "the gateway has not answered whether it fetches HTTPS";
        Err(Error::new(Kind::Truncated, Side::Peer, detail))
    }

    /// Passes an exchange on, and watches its reply.
    fn watch(&self, exchange: Exchange, origin: Option<(String, u16)>) -> Reply {
        let isolation = exchange.isolation.clone();
        let session = present(&*self.sessions, &isolation);
        Reply::new(FromGateway {
            reply: self.next.call(exchange),
            hosts: Rc::clone(&self.hosts),
            isolation,
            is_routed: Rc::clone(&self.is_routed),
            sessions: Rc::clone(&self.sessions),
            session,
            needs_mark: origin.is_some(),
            origin,
        })
    }
}

/// A reply that may tell that the gateway has verified an origin.
struct FromGateway {
    reply: Reply,
    hosts: Rc<Entrusted>,
    isolation: Isolation,
    is_routed: Rc<dyn Fn(&str) -> bool>,
    sessions: Rc<dyn SessionPool>,
    /// The session at the time of the request, until the head of the response has come.
    session: Option<Rc<SessionMark>>,
    /// True if a response without the mark is a failure.
    needs_mark: bool,
    /// The origin to verify, until the head of the response has come.
    origin: Option<(String, u16)>,
}

impl Parts for FromGateway {
    fn below(&self) -> Option<&Reply> {
        Some(&self.reply)
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        loop {
            let part = match std::task::ready!(self.reply.poll_part(cx)) {
                Some(Ok(part)) => part,
                end => return Poll::Ready(end),
            };
            let part = match part {
                Part::Pushed(pushed) => match self.watched(*pushed) {
                    Some(pushed) => Ok(Part::Pushed(Box::new(pushed))),
                    None => continue,
                },
                Part::Hints(head) if self.lacks_mark(&head) => continue,
                Part::Head(head) => self.checked(head).map(Part::Head),
                part => Ok(part),
            };
            return Poll::Ready(Some(part));
        }
    }
}

impl FromGateway {
    /// Watches a push of HTTPS, whose head shows that the gateway has verified its origin. Returns
    /// `None` for HTTPS that the user has not listed for this gateway.
    fn watched(&self, pushed: PushedPart) -> Option<PushedPart> {
        if pushed.request.scheme != Scheme::Https {
            return Some(pushed);
        }
        let origin = self.hosts.origin(&pushed.request);
        let origin = origin.filter(|(host, _)| (self.is_routed)(host))?;
        Some(PushedPart {
            reply: Reply::new(Self {
                reply: pushed.reply,
                hosts: Rc::clone(&self.hosts),
                isolation: self.isolation.clone(),
                is_routed: Rc::clone(&self.is_routed),
                sessions: Rc::clone(&self.sessions),
                session: None,
                needs_mark: false,
                origin: Some(origin),
            }),
            ..pushed
        })
    }

    /// Returns whether a head is not from the origin, as far as a mark is needed: the gateway's
    /// stage did not mark it.
    fn lacks_mark(&self, head: &ResponseHead) -> bool {
        self.needs_mark && head.fields.get(OPENED_FIELD) != Some(MARK.as_bytes())
    }

    /// Takes the final head of a response, and notes what it proves.
    ///
    /// # Errors
    /// Returns the failure that a page of the gateway tells.
    fn checked(&mut self, head: ResponseHead) -> Result<ResponseHead, Error> {
        if self.lacks_mark(&head) {
            return Err(failure(&head));
        }
        if let Some(session) = self.session.take()
            && self.needs_mark
            && self.sessions.is_current(&self.isolation, &session)
        {
            session.consents.set(true);
        }
        // A reference to a push shows no certificate.
        if let Some((host, port)) = self.origin.take()
            && is_fresh(&head.fields)
            && !head.fields.contains(CROSSED_FIELD)
        {
            (self.hosts.verified)(&self.isolation, &host, port);
        }
        Ok(head)
    }
}

/// Returns whether a response has left its origin within the last second. Each cache adds the field
/// `Age` (RFC 9111 section 5.1), and a response without it comes from a connection to the origin.
fn is_fresh(fields: &Fields) -> bool {
    fields.get("age").is_none_or(|age| age == b"0")
}

/// Returns the failure that a page of the gateway tells (`Proxy-Status`, RFC 9209).
fn failure(head: &ResponseHead) -> Error {
    let status = head.fields.get("proxy-status").unwrap_or_default();
    let is_tls = String::from_utf8_lossy(status).contains("error=tls_");
    let (kind, side) = match head.status {
        403 => (Kind::Forbidden, Side::Origin),
        407 => (Kind::Unauthorized, Side::Peer),
        _ if is_tls => (Kind::Tls, Side::Origin),
        200..=299 => (Kind::Forbidden, Side::Peer),
        _ => (Kind::Unreachable, Side::Origin),
    };
    match explanation(head) {
        Some(detail) => Error::new(kind, side, detail),
        None => {
            let detail = "it does not know HTTPS of opened hosts: update it";
            Error::new(kind, side, detail)
        }
    }
}

#[cfg(test)]
mod tests {
    use tandem_http::Method;

    use super::*;

    #[test]
    fn origin_covers_requests_and_no_tunnels() {
        let hosts = Entrusted {
            covers: Rc::new(|host, port| (host, port) == ("a.test", 443)),
            list: "a.test".into(),
            verified: Rc::new(|_, _, _| {}),
        };
        let get = RequestHead::get(Scheme::Https, "a.test", "/");
        let websocket = RequestHead {
            method: Method::Connect,
            protocol: Some("websocket".to_owned()),
            ..get.clone()
        };
        for request in [get, websocket] {
            let origin = hosts.origin(&request);
            assert_eq!(origin, Some(("a.test".to_owned(), 443)));
        }
        let bytes = RequestHead::connect("a.test:443");
        let datagrams = connect_udp::request("a.test", 443);
        for tunnel in [bytes, datagrams] {
            assert_eq!(hosts.origin(&tunnel), None, "{:?}", tunnel.protocol);
        }
    }
}

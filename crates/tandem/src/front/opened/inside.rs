//! The first stage of exchanges inside an opened connection.

use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tandem_http::{Fields, RequestHead, ResponseHead, Scheme};

use super::OpenedConnection;
use crate::endpoint::split_authority;
use crate::error::{Error, Kind};
use crate::exchange::{Exchange, Part, Parts, Reply};
use crate::stage::Stage;

/// Notes the failure of an exchange before its head. Returns true if the browser is to connect
/// again.
type Failed = Rc<dyn Fn(&OpenedConnection, &Error) -> bool>;

/// Gives each exchange the isolation key of its tunnel, and refuses those to other hosts.
pub(super) struct Inside {
    pub(super) connection: OpenedConnection,
    pub(super) next: Rc<dyn Stage>,
    pub(super) failed: Failed,
}

impl Stage for Inside {
    fn call(&self, mut exchange: Exchange) -> Reply {
        if !self.is_own(&exchange.request) {
            // The browser may send the request on another connection (RFC 9110 section 15.5.20).
            let mut head = ResponseHead::new(421);
            head.fields.push("content-length", "0");
            return Reply::ready(head, Bytes::new());
        }
        exchange.isolation = self.connection.isolation.clone();
        Reply::new(Watched {
            reply: self.next.call(exchange).edited(remove_alternatives),
            connection: self.connection.clone(),
            failed: Some(Rc::clone(&self.failed)),
        })
    }
}

impl Inside {
    fn is_own(&self, request: &RequestHead) -> bool {
        let OpenedConnection { host, port, .. } = &self.connection;
        let default = Some(Scheme::Https.default_port());
        let is_tunnel = request.is_connect() && request.protocol.is_none();
        request.scheme == Scheme::Https
            && !is_tunnel
            && split_authority(&request.authority, default)
                .is_ok_and(|(named, at)| named == *host && at == *port)
    }
}

/// Removes the offers of other protocols (RFC 7838), which would lead around this program.
fn remove_alternatives(fields: &mut Fields) {
    if fields.contains("alt-svc") {
        fields.retain(|field| field.name != b"alt-svc");
    }
}

/// A reply whose failure before the head becomes an error page, as in plain HTTP. It resets the
/// stream if the browser is to connect again and to meet the origin's certificate.
struct Watched {
    reply: Reply,
    connection: OpenedConnection,
    /// `None` once the head has passed.
    failed: Option<Failed>,
}

impl Parts for Watched {
    fn below(&self) -> Option<&Reply> {
        Some(&self.reply)
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        let mut part = self.reply.poll_part(cx);
        match &mut part {
            Poll::Ready(Some(Ok(Part::Head(_)))) => self.failed = None,
            Poll::Ready(Some(Err(error))) => {
                if let Some(failed) = self.failed.take() {
                    tracing::debug!(%error, "an exchange of an opened host failed");
                    if failed(&self.connection, error) {
                        // A reply that ends without a head is reset by each session.
                        return Poll::Ready(None);
                    }
                    // These have a status that a browser takes from its proxy only, or that makes
                    // it repeat the request elsewhere.
                    if matches!(error.kind, Kind::Unauthorized | Kind::Misdirected) {
                        error.kind = Kind::Unreachable;
                    }
                }
            }
            _ => {}
        }
        part
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::error::Side;
    use crate::exchange::Isolation;

    fn inside(next: impl Stage + 'static) -> (Inside, Rc<Cell<usize>>) {
        let failures = Rc::new(Cell::new(0));
        let counter = Rc::clone(&failures);
        let inside = Inside {
            connection: OpenedConnection {
                session: 7,
                isolation: Isolation::new(b"user", b""),
                host: "a.test".into(),
                port: 8443,
                proxy: None,
            },
            next: Rc::new(next),
            failed: Rc::new(move |_: &OpenedConnection, error: &Error| {
                counter.set(counter.get() + 1);
                error.kind == Kind::Tls
            }),
        };
        (inside, failures)
    }

    fn get(scheme: Scheme, authority: &str) -> Exchange {
        Exchange::internal(RequestHead::get(scheme, authority, "/"))
    }

    fn first(reply: &mut Reply) -> Option<Result<Part, Error>> {
        let mut context = Context::from_waker(std::task::Waker::noop());
        match reply.poll_part(&mut context) {
            Poll::Ready(part) => part,
            Poll::Pending => panic!("would wait"),
        }
    }

    fn status(reply: &mut Reply) -> u16 {
        match first(reply) {
            Some(Ok(Part::Head(head))) => head.status,
            other => panic!("no head: {other:?}"),
        }
    }

    #[test]
    fn inside_serves_its_own_host_only() {
        let (inside, _) = inside(|exchange: Exchange| {
            assert_eq!(exchange.isolation, Isolation::new(b"user", b""));
            assert_eq!(exchange.request.scheme, Scheme::Https);
            Reply::ready(ResponseHead::new(200), Bytes::new())
        });
        for (exchange, expected) in [
            (get(Scheme::Https, "a.test:8443"), 200),
            (get(Scheme::Https, "A.test:8443"), 200),
            (get(Scheme::Https, "a.test"), 421),
            (get(Scheme::Https, "b.test:8443"), 421),
            (get(Scheme::Http, "a.test:8443"), 421),
            (Exchange::internal(RequestHead::connect("a.test:8443")), 421),
        ] {
            let named = exchange.request.authority.clone();
            assert_eq!(status(&mut inside.call(exchange)), expected, "{named}");
        }
    }

    #[test]
    fn failure_before_the_head_has_a_page_or_a_reset() {
        for (kind, status) in [
            (Kind::Tls, None),
            (Kind::Protocol, Some(502)),
            (Kind::Timeout, Some(504)),
            (Kind::Unauthorized, Some(502)),
            (Kind::Misdirected, Some(502)),
        ] {
            let error = move |_| Reply::fail(Error::new(kind, Side::Origin, "failed"));
            let (inside, failures) = inside(error);
            let mut reply = inside.call(get(Scheme::Https, "a.test:8443"));
            let shown = first(&mut reply).map(|part| part.expect_err("no head").status());
            assert_eq!((shown, failures.get()), (status, 1), "{kind:?}");
        }
    }

    #[test]
    fn alternatives_do_not_reach_the_browser() {
        let (inside, _) = inside(|_| {
            let mut head = ResponseHead::new(200);
            head.fields.push("alt-svc", "h3=\":443\"");
            head.fields.push("x", "y");
            Reply::ready(head, Bytes::new())
        });
        let mut reply = inside.call(get(Scheme::Https, "a.test:8443"));
        match first(&mut reply) {
            Some(Ok(Part::Head(head))) => {
                assert!(!head.fields.contains("alt-svc") && head.fields.contains("x"));
            }
            other => panic!("no head: {other:?}"),
        }
    }
}

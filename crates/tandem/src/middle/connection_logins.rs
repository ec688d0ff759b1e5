//! The logins of browsers on their connections to an origin (NTLM and Negotiate, RFC 4559).
//!
//! Such a login is in force for one connection, and a browser sends no credentials on it later. The
//! client's stage marks the requests of each connection of a browser that has logged in. The
//! gateway gives marked requests connections to the origin of their own:
//! [`PairFields`](super::pair_fields::PairFields) reads the mark at the edge to the origins.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use tandem_http::Fields;
use tandem_http::message::logs_in_on_connection;

use crate::exchange::{Exchange, Reply};
use crate::stage::Stage;

/// The field with the number of the browser's connection. It never leaves the pair of proxies.
/// Caches take it for credentials by its name (`tandem_cache::credentials`).
const FIELD: &str = "tandem-auth-connection";

/// The number of logins that are remembered. A browser repeats a login that is forgotten.
const MAX_LOGINS: usize = 1024;

/// The stage of the client.
pub struct ConnectionLogins {
    /// The connections with their authorities in small letters, oldest first.
    known: RefCell<VecDeque<(u64, String)>>,
    next: Rc<dyn Stage>,
}

impl ConnectionLogins {
    /// Creates the stage without logins. `next` is the stage that exchanges go on to.
    pub fn new(next: Rc<dyn Stage>) -> Self {
        Self {
            known: RefCell::default(),
            next,
        }
    }

    /// Returns whether a login is in force for the request, or begins with it.
    fn is_logged_in(&self, exchange: &Exchange) -> bool {
        let (number, request) = (exchange.peer.session, &exchange.request);
        let mut known = self.known.borrow_mut();
        let is_same = |(connection, authority): &(u64, String)| {
            *connection == number && authority.eq_ignore_ascii_case(&request.authority)
        };
        if known.iter().any(is_same) {
            return true;
        }
        let logs_in = number != 0 && logs_in_on_connection(&request.fields);
        if logs_in {
            if known.len() >= MAX_LOGINS {
                known.pop_front();
            }
            known.push_back((number, request.authority.to_ascii_lowercase()));
        }
        logs_in
    }
}

impl Stage for ConnectionLogins {
    fn call(&self, mut exchange: Exchange) -> Reply {
        if self.is_logged_in(&exchange) {
            let number = exchange.peer.session.to_string();
            exchange.request_mut().fields.set(FIELD, number);
        }
        self.next.call(exchange)
    }
}

/// Returns the number of the browser's connection on which a login is in force.
pub(super) fn number(fields: &Fields) -> Option<u64> {
    let value = std::str::from_utf8(fields.get(FIELD)?).ok()?;
    value.parse().ok().filter(|number| *number != 0)
}

#[cfg(test)]
mod tests {
    use tandem_http::{RequestHead, ResponseHead, Scheme};

    use super::*;
    use crate::exchange::Peer;

    /// A stage that returns the mark of a request as the status of its response.
    struct Marked;

    impl Stage for Marked {
        fn call(&self, exchange: Exchange) -> Reply {
            let mark = number(&exchange.request.fields).unwrap_or(100);
            let head = ResponseHead::new(u16::try_from(mark).expect("a small number"));
            Reply::ready(head, bytes::Bytes::new())
        }
    }

    async fn mark(stage: &ConnectionLogins, session: u64, host: &str, login: bool) -> u16 {
        let mut request = RequestHead::get(Scheme::Http, host, "/");
        if login {
            request.fields.push("authorization", "NTLM YQ==");
        }
        let peer = Peer {
            session,
            ..Peer::none()
        };
        let exchange = Exchange {
            peer,
            ..Exchange::internal(request)
        };
        match stage.call(exchange).part().await {
            Some(Ok(crate::exchange::Part::Head(head))) => head.status,
            part => panic!("no head: {part:?}"),
        }
    }

    #[tokio::test]
    async fn requests_after_a_login_name_their_connection() {
        let stage = ConnectionLogins::new(Rc::new(Marked));
        assert_eq!(mark(&stage, 7, "a.test", false).await, 100);
        assert_eq!(mark(&stage, 7, "A.test", true).await, 7);
        assert_eq!(mark(&stage, 7, "a.test", false).await, 7);
        assert_eq!(mark(&stage, 7, "b.test", false).await, 100);
        assert_eq!(mark(&stage, 8, "a.test", false).await, 100);
    }

    #[tokio::test]
    async fn logins_are_bounded() {
        let stage = ConnectionLogins::new(Rc::new(Marked));
        for session in 1..=MAX_LOGINS as u64 + 1 {
            let host = format!("{session}.test");
            assert!(stage.is_logged_in(&Exchange {
                peer: Peer {
                    session,
                    ..Peer::none()
                },
                ..Exchange::internal({
                    let mut request = RequestHead::get(Scheme::Http, host, "/");
                    request.fields.push("authorization", "Negotiate YQ==");
                    request
                })
            }));
        }
        assert_eq!(stage.known.borrow().len(), MAX_LOGINS);
        assert_eq!(mark(&stage, 1, "1.test", false).await, 100, "the oldest");
        assert_eq!(mark(&stage, 2, "2.test", false).await, 2);
    }
}

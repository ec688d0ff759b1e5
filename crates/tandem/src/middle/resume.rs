//! Gives clients a token with the speed of their path, and begins with the speed that a client
//! shows (RFC 9959; the transport enters it carefully).
//!
//! The stage lies behind `auth`, so that only admitted clients choose the speed of their session.

use std::cell::Cell;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tandem_http::ResponseHead;

use crate::exchange::{Exchange, Reply};
use crate::metrics::METRICS;
use crate::path::Facts;
use crate::resume::token::{LIFETIME, SavedPath, network};
use crate::resume::{SpeedTokens, give, is_request, token_in};
use crate::stage::Stage;

/// The stage of one session.
pub struct Resume {
    /// The path of the session. The stage does not keep it open.
    path: Weak<dyn Facts>,
    tokens: Arc<SpeedTokens>,
    /// The content of the token that the client has shown.
    shown: Cell<Option<SavedPath>>,
    next: Rc<dyn Stage>,
}

impl Resume {
    /// Creates the stage for a session on `path`.
    pub fn new(path: &Rc<dyn Facts>, tokens: &Arc<SpeedTokens>, next: Rc<dyn Stage>) -> Self {
        Self {
            path: Rc::downgrade(path),
            tokens: Arc::clone(tokens),
            shown: Cell::new(None),
            next,
        }
    }

    /// Takes the token that a client shows, or returns the next one. Returns `None` if it takes a
    /// token, and while the path has no speed to save.
    fn exchange(&self, shown: Option<&str>) -> Option<String> {
        let path = self.path.upgrade()?;
        let address = path.peer_address()?.ip();
        let (keys, now) = (&self.tokens.keys, self.tokens.now());
        if self.shown.get().is_none()
            && let Some(saved) = shown.and_then(|token| keys.open(now, address, token))
        {
            let begin = || path.resume(saved.speed);
            if self
                .tokens
                .uses()
                .attempt(now, network(address), &saved, begin)
            {
                METRICS.sessions_resumed.add(1);
                self.shown.set(Some(saved));
                return None;
            }
        }
        let saved = self.saved(&*path, now)?;
        keys.seal(now, address, &saved)
    }

    /// Returns the content of the token for the present speed. A speed that the path has taken over
    /// from the shown token keeps the expiry of that token.
    fn saved(&self, path: &dyn Facts, now: Duration) -> Option<SavedPath> {
        let speed = path.speed()?;
        let shown = self.shown.get().filter(|shown| shown.speed == speed);
        Some(shown.unwrap_or(SavedPath {
            speed,
            expires: now + LIFETIME,
        }))
    }
}

impl Stage for Resume {
    fn call(&self, exchange: Exchange) -> Reply {
        if !is_request(&exchange.request) {
            return self.next.call(exchange);
        }
        let mut head = ResponseHead::new(200);
        if let Some(token) = self.exchange(token_in(&exchange.request.fields)) {
            give(&mut head.fields, &token);
        }
        Reply::ready(head, Bytes::new())
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tandem_resume::{SavedSpeed, Trial};

    use super::*;
    use crate::exchange::Part;
    use crate::resume::request;

    const SPEED: SavedSpeed = SavedSpeed {
        rate: 2_000_000,
        round_trip: Duration::from_millis(600),
    };

    /// A path with the speed that it was offered, or with `own`.
    struct Offered {
        own: Option<SavedSpeed>,
        offered: Cell<Option<SavedSpeed>>,
        trial: Trial,
        from: &'static str,
    }

    impl Facts for Offered {
        fn below(&self) -> Option<&dyn Facts> {
            None
        }

        fn peer_address(&self) -> Option<SocketAddr> {
            self.from.parse().ok()
        }

        fn speed(&self) -> Option<SavedSpeed> {
            self.offered.get().or(self.own)
        }

        fn resume(&self, saved: SavedSpeed) -> Option<Trial> {
            self.offered.set(Some(saved));
            Some(self.trial.clone())
        }
    }

    fn path(own: Option<SavedSpeed>, from: &'static str) -> Rc<Offered> {
        Rc::new(Offered {
            own,
            offered: Cell::new(None),
            trial: Trial::default(),
            from,
        })
    }

    /// Begins a session with a gateway.
    fn stage(tokens: &Arc<SpeedTokens>, path: &Rc<Offered>) -> Resume {
        let facts: Rc<dyn Facts> = Rc::clone(path) as _;
        let next = |_: Exchange| Reply::ready(ResponseHead::new(404), Bytes::new());
        Resume::new(&facts, tokens, Rc::new(next))
    }

    /// Sends the request on a new session, and returns the token in the response.
    fn token(tokens: &Arc<SpeedTokens>, path: &Rc<Offered>, shown: Option<&str>) -> Option<String> {
        asked(&stage(tokens, path), shown)
    }

    /// Sends the request, and returns the token in the response.
    fn asked(stage: &Resume, shown: Option<&str>) -> Option<String> {
        let mut reply = stage.call(Exchange::internal(request(shown)));
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        match reply.poll_part(&mut cx) {
            std::task::Poll::Ready(Some(Ok(Part::Head(head)))) => {
                assert_eq!(head.status, 200);
                token_in(&head.fields).map(str::to_owned)
            }
            other => panic!("no head: {other:?}"),
        }
    }

    #[test]
    fn later_session_begins_with_the_speed_of_the_first() {
        let tokens = Arc::default();
        let first = path(Some(SPEED), "192.0.2.1:1000");
        let given = token(&tokens, &first, None).expect("a token");
        assert_eq!(first.offered.get(), None);
        let second = path(None, "192.0.2.1:2000");
        let session = stage(&tokens, &second);
        assert_eq!(asked(&session, Some(&given)), None, "it is not confirmed");
        assert_eq!(second.offered.get(), Some(SPEED));
        let again = asked(&session, None).expect("the speed of the first");
        assert_ne!(again, given, "tokens of one speed differ");
    }

    #[test]
    fn speed_of_another_trial_is_not_offered() {
        let tokens = Arc::default();
        let given = token(&tokens, &path(Some(SPEED), "203.0.113.1:1"), None).expect("a token");
        let paths = ["203.0.113.2:1", "203.0.113.3:1"].map(|from| path(None, from));
        assert_eq!(token(&tokens, &paths[0], Some(&given)), None);
        assert_eq!(token(&tokens, &paths[1], Some(&given)), None);
        assert_eq!(paths[0].offered.get(), Some(SPEED));
        assert_eq!(paths[1].offered.get(), None);
    }

    #[test]
    fn token_of_another_network_is_ignored() {
        let tokens = Arc::default();
        let given = token(&tokens, &path(Some(SPEED), "192.0.2.1:1000"), None);
        let other = path(None, "198.51.100.1:1000");
        assert_eq!(token(&tokens, &other, given.as_deref()), None);
        assert_eq!(other.offered.get(), None);
    }

    #[test]
    fn forged_token_is_ignored() {
        let tokens = Arc::default();
        let path = path(None, "192.0.2.1:1000");
        assert_eq!(token(&tokens, &path, Some(&"A".repeat(70))), None);
        assert_eq!(path.offered.get(), None);
    }

    #[test]
    fn path_without_a_speed_gets_no_token() {
        let tokens = Arc::default();
        assert_eq!(token(&tokens, &path(None, "192.0.2.1:1000"), None), None);
        assert_eq!(token(&tokens, &path(Some(SPEED), ""), None), None);
    }

    #[test]
    fn token_of_another_gateway_is_ignored() {
        let given = token(&Arc::default(), &path(Some(SPEED), "192.0.2.1:1000"), None);
        let own = path(None, "192.0.2.1:1000");
        assert_eq!(token(&Arc::default(), &own, given.as_deref()), None);
        assert!(given.is_some() && own.offered.get().is_none());
    }
}

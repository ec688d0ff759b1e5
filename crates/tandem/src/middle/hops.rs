//! Counts the relays that an exchange has passed, and refuses it above a limit. A chain with a loop
//! therefore ends. The stage also hides from a client that the next hop refuses the relay.
//!
//! A relay writes the count into the field `tandem-hops`, and a gateway removes the field. Without
//! the limit each exchange would open sessions around the circle until no connection is left.

use std::rc::Rc;
use std::task::{Context, Poll};

use crate::error::{Error, Kind, Side};
use crate::exchange::{Exchange, Part, Parts, Reply};
use crate::failure::is_refusal;
use crate::log_limit::LogLimit;
use crate::metrics::METRICS;
use crate::stage::Stage;

/// The name of the field.
const FIELD: &str = "tandem-hops";

/// The largest number of relays in a chain.
const MOST: u32 = 16;

/// The lines about a next hop that does not admit the relay.
static REFUSALS: LogLimit = LogLimit::new();

/// The stage of a relay, which counts it.
pub struct CountHop {
    /// The stage that exchanges go on to.
    pub next: Rc<dyn Stage>,
}

impl Stage for CountHop {
    fn call(&self, mut exchange: Exchange) -> Reply {
        let passed = exchange.request.fields.get(FIELD).map_or(0, count);
        let passed = passed.saturating_add(1);
        if passed > MOST {
            return Reply::fail(Error::new(
                Kind::Unreachable,
                Side::Peer,
                "the chain has more than 16 relays, or leads back to one of them: check the \
                 gateway of each relay",
            ));
        }
        let fields = &mut exchange.request_mut().fields;
        fields.set(FIELD, passed.to_string());
        Reply::new(Relayed(self.next.call(exchange)))
    }
}

/// The stage at the end of a chain, which removes the count.
pub struct EndHops {
    /// The stage that exchanges go on to.
    pub next: Rc<dyn Stage>,
}

impl Stage for EndHops {
    fn call(&self, mut exchange: Exchange) -> Reply {
        if exchange.request.fields.contains(FIELD) {
            exchange.request_mut().fields.remove(FIELD);
        }
        self.next.call(exchange)
    }
}

/// A reply from the next hop.
struct Relayed(Reply);

impl Parts for Relayed {
    fn below(&self) -> Option<&Reply> {
        Some(&self.0)
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        let part = self.0.poll_part(cx);
        if let Poll::Ready(Some(Ok(Part::Head(head)))) = &part
            && is_refusal(head)
        {
            // The client would take the response for a verdict on its own token.
            let detail = "the next hop does not admit the relay: check the relay's token-file";
            METRICS.relay_refusals.add(1);
            if let Some(held_back) = REFUSALS.admit() {
                tracing::warn!(held_back, "{detail}");
            }
            let error = Error::new(Kind::Unreachable, Side::Peer, detail);
            return Poll::Ready(Some(Err(error)));
        }
        part
    }
}

/// Reads the count. A value that no relay writes counts as too many.
fn count(value: &[u8]) -> u32 {
    let text = std::str::from_utf8(value).unwrap_or_default();
    text.parse().unwrap_or(MOST)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::task::Waker;

    use bytes::Bytes;
    use tandem_http::{RequestHead, ResponseHead, Scheme};

    use super::*;
    use crate::role_name::RoleName;

    /// Creates the stage of a gateway or of a relay.
    fn hops(is_gateway: bool, next: impl Stage + 'static) -> Rc<dyn Stage> {
        let next = Rc::new(next);
        match is_gateway {
            true => Rc::new(EndHops { next }),
            false => Rc::new(CountHop { next }),
        }
    }

    /// Runs a request with this count through a stage, and returns the field behind it. Returns
    /// `None` if the stage refused the request.
    fn passed(is_gateway: bool, value: Option<&str>) -> Option<Option<String>> {
        let seen = Rc::new(RefCell::new(None));
        let inner = Rc::clone(&seen);
        let next = move |exchange: Exchange| {
            let field = exchange.request.fields.get(FIELD);
            let text = field.map(|value| String::from_utf8_lossy(value).into_owned());
            inner.replace(Some(text));
            Reply::ready(ResponseHead::new(204), Bytes::new())
        };
        let stage = hops(is_gateway, next);
        let mut request = RequestHead::get(Scheme::Http, "site.example", "/");
        if let Some(value) = value {
            request.fields.push(FIELD, value);
        }
        let mut reply = stage.call(Exchange::internal(request));
        let part = reply.poll_part(&mut Context::from_waker(Waker::noop()));
        let is_refused = matches!(part, Poll::Ready(Some(Err(_))));
        let seen = seen.take();
        assert_eq!(seen.is_none(), is_refused);
        seen
    }

    #[test]
    fn relays_count_up_to_the_limit() {
        let count = |text: &str| Some(Some(text.to_owned()));
        assert_eq!(passed(false, None), count("1"));
        assert_eq!(passed(false, Some("1")), count("2"));
        assert_eq!(passed(false, Some("15")), count("16"));
        for refused in ["16", "4294967295", "99999999999", "-1", "x", ""] {
            assert_eq!(passed(false, Some(refused)), None, "{refused:?}");
        }
    }

    #[test]
    fn refusal_of_the_next_hop_is_counted_and_hidden() {
        let refusal = Error::new(Kind::Unauthorized, Side::Local, "x");
        let refused = crate::failure::response(&refusal, RoleName::Gateway).0;
        for (is_gateway, head, is_counted) in [
            (false, refused.clone(), true),
            (true, refused, false),
            (false, ResponseHead::new(407), false),
        ] {
            let next = move |_: Exchange| Reply::ready(head.clone(), Bytes::new());
            let stage = hops(is_gateway, next);
            let before = METRICS.relay_refusals.value();
            let request = RequestHead::get(Scheme::Http, "site.example", "/");
            let mut reply = stage.call(Exchange::internal(request));
            let part = reply.poll_part(&mut Context::from_waker(Waker::noop()));
            let is_hidden = matches!(part, Poll::Ready(Some(Err(_))));
            assert_eq!(is_hidden, is_counted);
            assert_eq!(
                METRICS.relay_refusals.value() - before,
                u64::from(is_counted)
            );
        }
    }

    #[test]
    fn gateway_removes_the_count() {
        for value in [None, Some("3"), Some("16"), Some("x")] {
            assert_eq!(passed(true, value), Some(None), "{value:?}");
        }
    }
}

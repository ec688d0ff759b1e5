//! Adds the field `Via` to requests, and refuses a request that already names this process there
//! (RFC 9110 section 7.6.3). A bridge runs this stage.
//!
//! Without the check, a bridge with a destination that leads back to it sends one request around
//! the circle until no connection is left. The pseudonym is random and lasts as long as the
//! process, so that it tells an origin neither the name nor the address of the machine.

use std::rc::Rc;
use std::sync::Arc;

use tandem_http::Fields;

use crate::endpoint::SessionKind;
use crate::error::{Error, Kind, Side};
use crate::exchange::{Exchange, Reply};
use crate::stage::Stage;

/// The name of the field.
const FIELD: &str = "via";

/// The stage that adds the field.
pub struct AddVia {
    /// The protocol that requests arrive over.
    pub received: SessionKind,
    /// The pseudonym of this process.
    pub pseudonym: Arc<str>,
    /// The stage that exchanges go on to.
    pub next: Rc<dyn Stage>,
}

impl Stage for AddVia {
    fn call(&self, mut exchange: Exchange) -> Reply {
        if names(&exchange.request.fields, &self.pseudonym) {
            return Reply::fail(Error::new(
                Kind::Loop,
                Side::Local,
                "the request has passed this proxy before: its destination leads back here",
            ));
        }
        let received = version(self.received);
        let fields = &mut exchange.request_mut().fields;
        fields.push(FIELD, format!("{received} {}", self.pseudonym));
        self.next.call(exchange)
    }
}

/// Returns true if one of the recipients in the field has this pseudonym.
fn names(fields: &Fields, pseudonym: &str) -> bool {
    let entries = fields
        .get_all(FIELD)
        .flat_map(|value| value.split(|byte| *byte == b','));
    entries
        .map(|entry| entry.trim_ascii())
        .filter_map(|entry| entry.split(u8::is_ascii_whitespace).nth(1))
        .any(|by| by.eq_ignore_ascii_case(pseudonym.as_bytes()))
}

/// Returns the received protocol. Its name is left out for versions of HTTP.
const fn version(received: SessionKind) -> &'static str {
    match received {
        SessionKind::Http | SessionKind::Socks5 => "1.1",
        SessionKind::H2 => "2.0",
        SessionKind::H3 => "3.0",
        SessionKind::Spdy3 => "SPDY/3",
        SessionKind::Spdy31 => "SPDY/3.1",
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::task::{Context, Poll, Waker};

    use bytes::Bytes;
    use tandem_http::{RequestHead, ResponseHead, Scheme};

    use super::*;

    const PSEUDONYM: &str = "tandem-0123456789abcdef";

    /// Runs a request with these values through the stage, and returns the values behind it.
    /// Returns `None` if the stage refused the request.
    fn passed(values: &[&str]) -> Option<Vec<String>> {
        let seen = Rc::new(RefCell::new(None));
        let inner = Rc::clone(&seen);
        let next = move |exchange: Exchange| {
            let values = exchange.request.fields.get_all(FIELD);
            let texts = values.map(|value| String::from_utf8_lossy(value).into_owned());
            inner.replace(Some(texts.collect()));
            Reply::ready(ResponseHead::new(204), Bytes::new())
        };
        let stage = AddVia {
            received: SessionKind::H2,
            pseudonym: PSEUDONYM.into(),
            next: Rc::new(next),
        };
        let mut request = RequestHead::get(Scheme::Http, "site.example", "/");
        for value in values {
            request.fields.push(FIELD, value);
        }
        let mut reply = stage.call(Exchange::internal(request));
        match reply.poll_part(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Some(Err(error))) => assert_eq!(error.status(), 502),
            part => assert!(matches!(part, Poll::Ready(Some(Ok(_))))),
        }
        seen.take()
    }

    #[test]
    fn via_follows_the_entries_of_other_proxies() {
        let own = format!("2.0 {}", PSEUDONYM);
        assert_eq!(passed(&[]), Some(vec![own.clone()]));
        let others = ["1.1 cache.example (a, b)", "tandem-0, , 1.1"];
        let expected = [others[0], others[1], &own].map(str::to_owned).to_vec();
        assert_eq!(passed(&others), Some(expected));
    }

    #[test]
    fn via_refuses_a_request_with_its_pseudonym() {
        let own = PSEUDONYM;
        for value in [
            format!("2.0 {own}"),
            format!(
                "1.0 fred, HTTP/1.1\t{} (comment),1.1 p.example",
                own.to_uppercase()
            ),
        ] {
            assert_eq!(passed(&["1.1 first", &value]), None, "{value}");
        }
        let another = format!("1.1 {own}x, {own} 1.1");
        assert!(
            passed(&[&another]).is_some(),
            "not the name of this process"
        );
    }
}

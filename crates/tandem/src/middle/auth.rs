//! Who may use a gateway: holders of an access token, of a client certificate (checked in TLS
//! already), or all (`--open`).
//!
//! A token is shown once, with the session's first request (`Proxy-Authorization: Bearer`, RFC 6750
//! section 2.1), and never goes on to an origin.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use crate::error::{Error, Kind, Side};
use crate::exchange::{Exchange, Reply};
use crate::log_limit::LogLimit;
use crate::metrics::METRICS;
use crate::renewal::Renewable;
use crate::stage::Stage;

static REFUSALS: LogLimit = LogLimit::new();

/// The stage of one session.
pub struct Auth {
    /// Tokens that let in.
    pub tokens: Arc<Renewable<Vec<String>>>,
    /// Whether the session is let in: by `--open`, by its certificate, or by a token shown before.
    pub admitted: Cell<bool>,
    /// Where exchanges go on.
    pub next: Rc<dyn Stage>,
}

impl Stage for Auth {
    fn call(&self, mut exchange: Exchange) -> Reply {
        let shown = exchange
            .request
            .fields
            .get("proxy-authorization")
            .map(<[u8]>::to_vec);
        if let Some(shown) = &shown {
            exchange.request.fields.remove("proxy-authorization");
            let token = shown
                .split_at_checked(7)
                .filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "))
                .map(|(_, t)| t.trim_ascii());
            if token.is_some_and(|token| {
                self.tokens
                    .get()
                    .iter()
                    .any(|known| is_equal(known.as_bytes(), token))
            }) {
                self.admitted.set(true);
            }
        }
        if self.admitted.get() {
            return self.next.call(exchange);
        }
        METRICS.unauthorized.add(1);
        if let Some(held_back) = REFUSALS.admit() {
            let shown = if shown.is_some() { "a wrong" } else { "no" };
            tracing::warn!(
                "a session without right was refused: it showed {shown} access token \
                 ({held_back} more since the last line)"
            );
        }
        let detail = if shown.is_some() {
            "the access token is not valid"
        } else {
            "an access token is needed"
        };
        Reply::fail(Error::new(Kind::Unauthorized, Side::Client, detail))
    }
}

/// Compares in a time that does not tell where the difference is.
fn is_equal(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len()
        && a.iter()
            .zip(b)
            .fold(0, |difference, (x, y)| difference | (x ^ y))
            == 0
}

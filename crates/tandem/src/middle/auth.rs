//! Admission to a gateway: by an access token, by a client certificate (which TLS has already
//! verified), or for all clients (`--open`).
//!
//! A client shows its token once, in the first request of a session (`Proxy-Authorization: Bearer`,
//! RFC 6750 section 2.1). The token never goes on to an origin.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use crate::error::{Error, Kind, Side};
use crate::exchange::{Exchange, Reply};
use crate::log_limit::LogLimit;
use crate::metrics::METRICS;
use crate::renewal::Renewable;
use crate::secret::is_equal;
use crate::stage::Stage;

static REFUSALS: LogLimit = LogLimit::new();

/// The admission stage of one session.
pub struct Auth {
    /// The accepted tokens.
    pub tokens: Arc<Renewable<Vec<String>>>,
    /// True if the session is admitted: by `--open`, by its certificate, or by an earlier token.
    pub admitted: Cell<bool>,
    /// The stage that exchanges go on to.
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
            exchange.request_mut().fields.remove("proxy-authorization");
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

//! How a client asks its gateway for bytes that mean nothing, to open a new session's congestion
//! window before it is needed (the gateway's side: [`crate::middle::warm_up`]).

use tandem_http::{Method, RequestHead, Scheme};

/// The request's authority: a name that no origin can have, as [`tandem_push::wire::is_reserved`]
/// says.
const AUTHORITY: &str = "warm-up.tandem.invalid";

/// Bytes that a gateway sends on a session at most.
pub const MOST: u64 = 4 << 20;

/// Returns a request for this number of bytes.
pub fn request(bytes: u64) -> RequestHead {
    RequestHead::get(Scheme::Http, AUTHORITY, format!("/{bytes}"))
}

/// How many bytes a request wants, if it is one for them.
pub fn asked(request: &RequestHead) -> Option<u64> {
    let own = request.authority == AUTHORITY && request.method == Method::Get;
    own.then(|| {
        request
            .path
            .trim_start_matches('/')
            .parse()
            .unwrap_or(0)
            .min(MOST)
    })
}

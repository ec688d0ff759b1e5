//! The errors of exchanges that the other end resets, or for which it permits no stream.

use std::time::Duration;

use tandem_http::Reason;

use crate::error::{Error, Kind, Retry, Side};

/// The time that a request waits for a stream on a session whose peer permits no more.
pub(super) const STREAM_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the error of a request for which the peer has permitted no stream in time.
pub(super) fn full() -> Error {
    let detail = "the session has as many requests and tunnels under way as its peer permits";
    Error::new(Kind::Full, Side::Peer, detail).with_retry(Retry::Safe)
}

/// Returns the error of an exchange whose unread data used the memory of others.
pub(super) fn given_up() -> Error {
    let detail =
        "its data was not read for two minutes, and no memory was left for other exchanges";
    Error::new(Kind::Timeout, Side::Local, detail).with_retry(Retry::Never)
}

/// Returns the error of an exchange that the other end has reset.
pub(super) fn reset_error(reason: Reason, other_end: Side) -> Error {
    let (kind, retry, detail) = match reason {
        Reason::Refused => (
            Kind::Busy,
            Retry::Safe,
            "the request was refused unprocessed",
        ),
        Reason::Connect => (
            Kind::Unreachable,
            Retry::Never,
            "the far end could not connect or lost its connection",
        ),
        Reason::Http11Required => (
            Kind::Http11Required,
            Retry::Safe,
            "the other end requires HTTP/1.1",
        ),
        Reason::Cancel | Reason::NoError => {
            (Kind::Reset, Retry::Never, "the exchange was cancelled")
        }
        Reason::EnhanceYourCalm => (
            Kind::Reset,
            Retry::Never,
            "the other end ended the exchange because of its load; repeat it later",
        ),
        Reason::Protocol => (
            Kind::Protocol,
            Retry::Never,
            "the exchange broke the protocol",
        ),
        _ => (Kind::Reset, Retry::Never, "the exchange was reset"),
    };
    Error::new(kind, other_end, detail).with_retry(retry)
}

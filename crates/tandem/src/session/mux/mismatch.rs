//! Detects from the first bytes of a session that the other end speaks another protocol. The error
//! then names the setting to correct.

use crate::error::{Error, Kind, Retry, Side};

/// The error text for a connection that was closed before any input arrived.
pub(super) const CLOSED: &str = "the connection was closed without an answer: another program may \
                                 listen there, or the other end speaks TLS (h2+tls) or is full";

/// Returns true if the first bytes begin a TLS record or an HTTP/1 response. No first frame of
/// HTTP/2 or SPDY begins like either.
pub(super) fn is_other_protocol(bytes: &[u8]) -> bool {
    is_tls(bytes) || is_http1(bytes)
}

fn is_tls(bytes: &[u8]) -> bool {
    // Alert or handshake, version 3.x (RFC 8446 section 5.1).
    matches!(bytes, [0x15 | 0x16, 3, ..])
}

fn is_http1(bytes: &[u8]) -> bool {
    bytes.starts_with(b"HTTP/1.")
}

/// Returns the error that describes the mismatch.
pub(super) fn error(bytes: &[u8]) -> Error {
    let detail = if is_tls(bytes) {
        "the other end seems to speak TLS: use h2+tls instead of h2+tcp"
    } else {
        "the answer is HTTP/1: the port belongs to a web server, or wants TLS (use h2+tls)"
    };
    Error::new(Kind::Protocol, Side::Peer, detail).with_retry(Retry::IfIdempotent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mismatch_accepts_frames_of_both_protocols() {
        // SETTINGS of HTTP/2, SETTINGS of SPDY/3.1.
        assert!(!is_other_protocol(&[0, 0, 6, 4, 0, 0, 0, 0, 0]));
        assert!(!is_other_protocol(&[0x80, 3, 0, 4, 0, 0, 0, 12]));
        assert!(is_other_protocol(&[0x15, 3, 3, 0, 2, 2, 70]));
        assert!(is_other_protocol(b"HTTP/1.1 400 Bad Request\r\n"));
    }
}

//! The protocols to which proxies let a connection change: by `Upgrade` in HTTP/1.1 (RFC 9110
//! section 7.8), and by extended CONNECT in HTTP/2 and HTTP/3 (RFC 8441, RFC 9220).
//!
//! Behind a change of protocol, the bytes pass unread. A protocol that carries requests, such as
//! `h2c`, would therefore take requests past each rule about hosts, credentials and logs.

use crate::connect_udp;

/// The name of WebSockets (RFC 6455 section 11.2, RFC 8441 section 5).
pub const WEBSOCKET: &str = "websocket";

/// The protocols that proxies pass on.
const PASSED_ON: [&str; 2] = [WEBSOCKET, connect_udp::PROTOCOL];

/// Returns true for a protocol that proxies pass on. Case is ignored.
pub fn is_passed_on(protocol: &str) -> bool {
    PASSED_ON
        .iter()
        .any(|name| name.eq_ignore_ascii_case(protocol))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_that_carry_requests_are_not_passed_on() {
        for name in ["websocket", "WebSocket", "connect-udp"] {
            assert!(is_passed_on(name), "{name}");
        }
        for name in ["", "h2c", "HTTP/2.0", "TLS/1.0", "foo", "websocket, h2c"] {
            assert!(!is_passed_on(name), "{name}");
        }
    }
}

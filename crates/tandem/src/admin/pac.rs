//! The configuration that a client's HTTP listener offers to browsers, `/proxy.pac`. The listener
//! answers only requests addressed to itself.

use super::{is_typed_in, page};
use crate::exchange::{Exchange, Reply};

/// Answers a request to the listener itself, whose address is `listener`.
pub fn answer(exchange: &Exchange, listener: &str) -> Reply {
    if exchange.request.path == "/proxy.pac" && is_typed_in(&exchange.request) {
        page(200, "application/x-ns-proxy-autoconfig", script(listener))
    } else {
        page(404, "text/plain", "Nothing is here.\n".into())
    }
}

/// The script sends everything to the proxy, and nothing elsewhere when the proxy is down.
fn script(listener: &str) -> String {
    format!("function FindProxyForURL(url, host) {{ return \"PROXY {listener}\"; }}\n")
}

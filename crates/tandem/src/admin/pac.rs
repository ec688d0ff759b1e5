//! The configuration that a client's HTTP listeners offer to browsers, `/proxy.pac`. A listener
//! answers only requests addressed to itself.

use std::net::SocketAddr;

use super::{is_typed_in, page};
use crate::exchange::{Exchange, Reply};

/// The listeners that the configuration names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proxies {
    /// The TLS listener, over which a browser multiplexes its requests.
    pub https: Option<SocketAddr>,
    /// The listener for HTTP/1.1 without TLS.
    pub http: Option<SocketAddr>,
}

/// Answers a request to the listener itself.
pub fn answer(exchange: &Exchange, proxies: Proxies) -> Reply {
    if exchange.request.path == "/proxy.pac" && is_typed_in(&exchange.request) {
        page(200, "application/x-ns-proxy-autoconfig", script(proxies))
    } else {
        page(404, "text/plain", "Nothing is here.\n".into())
    }
}

/// Returns the script, which sends everything to the client. A browser that does not trust the TLS
/// listener's certificate uses the other listener. It connects nowhere else if both are down.
fn script(proxies: Proxies) -> String {
    let https = proxies.https.map(|address| format!("HTTPS {address}"));
    let http = proxies.http.map(|address| format!("PROXY {address}"));
    let all: Vec<_> = https.into_iter().chain(http).collect();
    let all = all.join("; ");
    format!("function FindProxyForURL(url, host) {{ return \"{all}\"; }}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_prefers_the_tls_listener() {
        let (https, http) = ("127.0.0.1:8119", "127.0.0.1:8118");
        let address = |text: &str| text.parse().ok();
        for (proxies, list) in [
            (
                (address(https), address(http)),
                "HTTPS 127.0.0.1:8119; PROXY 127.0.0.1:8118",
            ),
            ((None, address(http)), "PROXY 127.0.0.1:8118"),
            ((address(https), None), "HTTPS 127.0.0.1:8119"),
        ] {
            let (https, http) = proxies;
            let script = script(Proxies { https, http });
            assert!(script.contains(&format!("return \"{list}\";")), "{script}");
            assert!(!script.contains("DIRECT"));
        }
    }
}

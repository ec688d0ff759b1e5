//! What a client's HTTP listener answers about itself: `/proxy.pac`, and only to requests addressed
//! to the listener.
//!
//! A web page must not learn from it that the proxy runs: requests that a page caused (with
//! `Origin`, `Referer`, or `Sec-Fetch-Site` other than `none`) get the same 404 as unknown paths.

use bytes::Bytes;
use tandem_http::{Method, RequestHead, ResponseHead};

use crate::exchange::{Exchange, Reply};

/// The authorities under which a listener is addressed itself.
pub fn own_authorities(listen: std::net::SocketAddr) -> Vec<String> {
    let port = listen.port();
    let mut own = vec![
        listen.to_string(),
        format!("localhost:{port}"),
        format!("127.0.0.1:{port}"),
        format!("[::1]:{port}"),
    ];
    if port == 80 {
        own.extend(["localhost".into(), "127.0.0.1".into(), "[::1]".into()]);
    }
    own
}

/// Answers a request to the listener itself, whose address is `listener`.
pub fn answer(exchange: &Exchange, listener: &str) -> Reply {
    let request = &exchange.request;
    let (status, kind, body) = if request.path == "/proxy.pac"
        && request.method == Method::Get
        && !is_from_a_page(request)
    {
        (200, "application/x-ns-proxy-autoconfig", pac(listener))
    } else {
        (404, "text/plain", "Nothing is here.\n".into())
    };
    let mut head = ResponseHead::new(status);
    head.fields.push("content-type", kind);
    head.fields.push("content-length", body.len().to_string());
    head.fields.push("cache-control", "no-store");
    Reply::ready(head, Bytes::from(body))
}

fn is_from_a_page(request: &RequestHead) -> bool {
    let fields = &request.fields;
    fields.contains("origin")
        || fields.contains("referer")
        || fields
            .get("sec-fetch-site")
            .is_some_and(|site| site != b"none")
}

/// Everything goes to the proxy, and nothing elsewhere when it is down: fail closed.
fn pac(listener: &str) -> String {
    format!("function FindProxyForURL(url, host) {{ return \"PROXY {listener}\"; }}\n")
}

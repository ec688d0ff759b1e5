//! The response that a proxy gives by itself when it cannot get the real one: a readable page
//! without names, versions or script, and `Proxy-Status` (RFC 9209).

use bytes::Bytes;
use tandem_http::ResponseHead;

use crate::error::{Error, Side};

/// Returns the response that tells of a failure. `who` is this proxy's role, `client` or `gateway`.
pub fn response(error: &Error, who: &'static str) -> (ResponseHead, Bytes) {
    let status = error.status();
    let detail: String = error
        .detail
        .chars()
        .filter(|c| c.is_ascii_graphic() || *c == ' ')
        .filter(|c| !matches!(c, '"' | '\\'))
        .collect();
    let body = Bytes::from(format!(
        "<!doctype html><meta charset=utf-8><title>{status}</title><h1>{}</h1><p>{}</p>\n",
        headline(error),
        escape(&error.seen_from_afar(who))
    ));
    let mut head = ResponseHead::new(status);
    head.fields.push("content-type", "text/html; charset=utf-8");
    head.fields.push("content-length", body.len().to_string());
    head.fields.push("cache-control", "no-store");
    head.fields.push(
        "proxy-status",
        format!(
            "{who}; error={}; details=\"{detail}\"",
            error.proxy_status()
        ),
    );
    if status == 407 {
        head.fields.push("proxy-authenticate", "Bearer");
    }
    (head, body)
}

const fn headline(error: &Error) -> &'static str {
    match (error.status(), error.side) {
        (400, _) => "The request is malformed",
        (403, _) => "That destination is not allowed",
        (407, _) => "The gateway wants an access token",
        (421, _) => "This gateway does not stand for that site",
        (431, _) => "The request is too large",
        (503, _) => "Too much at once",
        (504, _) => "No answer in time",
        (_, Side::Peer) => "The gateway cannot be reached",
        (_, Side::Via) => "The proxy on the way to the gateway cannot be reached",
        (_, Side::Origin) => "The site cannot be reached",
        _ => "The request failed",
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[test]
    fn response_escapes_the_detail_of_an_error() {
        let error = Error::new(Kind::ConnectionRefused, Side::Origin, "<b>\"x\"\r\n");
        let (head, body) = response(&error, "gateway");
        assert_eq!(head.status, 502);
        assert_eq!(
            head.fields.get("proxy-status"),
            Some(&b"gateway; error=connection_refused; details=\"<b>x\""[..])
        );
        assert!(!String::from_utf8_lossy(&body).contains("<b>"));
    }
}

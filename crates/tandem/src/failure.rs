//! The response that a proxy gives by itself when it cannot get the real one: a readable page
//! without names, versions or script, and `Proxy-Status` (RFC 9209). The client reads the reason
//! from such a response of its gateway.

use bytes::Bytes;
use tandem_http::ResponseHead;

use crate::error::{Error, Kind, Side};

/// Returns the response that tells of a failure. `who` is this proxy's role, such as `client`.
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
        (407, _) => "The proxy wants an access token",
        (421, _) => "This proxy does not stand for that site",
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

/// The maximum length of a gateway's explanation, in characters.
const MAX_DETAIL: usize = 200;

/// Reads the reason from the `Proxy-Status` field of a gateway's response to a CONNECT.
pub fn refusal(head: &ResponseHead) -> Error {
    let kind = match head.status {
        400 => Kind::BadRequest,
        403 => Kind::Forbidden,
        407 => Kind::Unauthorized,
        421 => Kind::Misdirected,
        503 => Kind::Busy,
        504 => Kind::Timeout,
        _ => Kind::Unreachable,
    };
    let said = head
        .fields
        .get("proxy-status")
        .map(String::from_utf8_lossy)
        .unwrap_or_default();
    let details = said
        .split_once("details=\"")
        .and_then(|(_, rest)| rest.split_once('"'))
        .map(|(details, _)| details);
    let detail = details.map_or_else(
        || format!("it refused the tunnel with status {}", head.status),
        |details| {
            let visible = |c: &char| c.is_ascii_graphic() || *c == ' ';
            details.chars().filter(visible).take(MAX_DETAIL).collect()
        },
    );
    Error::new(kind, Side::Peer, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn refusals_keep_their_reason() {
        let mut head = ResponseHead::new(502);
        assert!(refusal(&head).detail.contains("status 502"));
        head.fields.push(
            "proxy-status",
            "gateway; error=dns_error; details=\"the name could not be resolved\"",
        );
        let error = refusal(&head);
        assert_eq!(error.detail, "the name could not be resolved");
        assert_eq!(error.kind, Kind::Unreachable);
    }
}

//! The response that a proxy gives by itself when it cannot get the real one: a readable page
//! without names, versions or script, and `Proxy-Status` (RFC 9209). The client reads the reason
//! from such a response of its gateway.

use bytes::Bytes;
use tandem_http::ResponseHead;

use crate::error::{BAD_CERTIFICATE, Error, Kind, Side};
use crate::role_name::RoleName;

/// Returns the response that tells of a failure. `who` is the role of this proxy.
pub fn response(error: &Error, who: RoleName) -> (ResponseHead, Bytes) {
    let error = &shown(error);
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
        escape(&error.seen_from_afar(who.as_str()))
    ));
    let mut head = ResponseHead::new(status);
    head.fields.push("content-type", "text/html; charset=utf-8");
    head.fields.push("content-length", body.len().to_string());
    head.fields.push("cache-control", "no-store");
    // A page of another site gets a network error, as without a proxy.
    head.fields
        .push("cross-origin-resource-policy", "same-origin");
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

/// Returns the error as the page tells it. A site can let its script read the page, so the names in
/// the gateway's certificate are left to the log.
fn shown(error: &Error) -> Error {
    let is_of_gateway = matches!(error.side, Side::Peer | Side::Via);
    let mut shown = error.clone();
    if error.kind == Kind::Tls && is_of_gateway && error.detail.contains(BAD_CERTIFICATE) {
        shown.detail = format!("{BAD_CERTIFICATE}: the log says why").into();
    }
    shown
}

const fn headline(error: &Error) -> &'static str {
    match (error.status(), error.side) {
        (400, _) => "The request is malformed",
        (403, _) => "That destination is not allowed",
        (407, _) => "The proxy wants an access token",
        (421, _) => "This proxy does not stand for that site",
        (431, _) => "The request is too large",
        (501, _) => "This proxy does not pass on that protocol",
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

/// An error that a gateway reports by itself, in place of a response of the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnError {
    /// The gateway does not serve this client or this destination.
    Denied,
    /// The gateway is overloaded, or has failed.
    Itself,
    /// The gateway did not get a response of the origin.
    Origin,
}

/// Returns the error that the gateway reports by itself, from the `Proxy-Status` field of its
/// response. Returns `None` for a response of the origin.
pub fn own_error(head: &ResponseHead) -> Option<OwnError> {
    let (_, error) = nearest_error(head).filter(|(who, _)| *who == RoleName::Gateway.as_str())?;
    Some(match (error, head.status) {
        ("http_request_denied", _) | ("destination_ip_prohibited", 403) => OwnError::Denied,
        ("connection_limit_reached", 503) | ("proxy_internal_error", 500) => OwnError::Itself,
        _ => OwnError::Origin,
    })
}

/// Returns the name of the nearest proxy and its error, from the last member of `Proxy-Status` (RFC
/// 9209 section 2).
fn nearest_error(head: &ResponseHead) -> Option<(&str, &str)> {
    let said = head.fields.get_all("proxy-status").last()?;
    let (who, rest) = std::str::from_utf8(said).ok()?.split_once("; error=")?;
    Some((who, rest.split(';').next()?.trim()))
}

/// The roles of the proxies that a client has sessions with.
const SERVING_ROLES: [RoleName; 4] = [
    RoleName::Gateway,
    RoleName::Relay,
    RoleName::Bridge,
    RoleName::Issuer,
];

/// Returns true if the next proxy itself refuses the client.
pub fn is_refusal(head: &ResponseHead) -> bool {
    nearest_error(head).is_some_and(|(who, error)| {
        let is_own = SERVING_ROLES.iter().any(|role| role.as_str() == who);
        head.status == 407 && is_own && error == "http_request_denied"
    })
}

/// Returns true if a proxy of the pair tells that a connection on the way failed or ended, or that
/// it is busy. A later request may then get its response. A relay that cannot look up the name of
/// its next hop looks it up again.
pub fn is_outage(head: &ResponseHead) -> bool {
    nearest_error(head).is_some_and(|(who, error)| {
        let is_own = SERVING_ROLES.iter().any(|role| role.as_str() == who);
        let passes = match head.status {
            502 if who == RoleName::Relay.as_str() && error == "dns_error" => true,
            502 | 504 => matches!(
                error,
                "connection_refused"
                    | "connection_timeout"
                    | "connection_terminated"
                    | "destination_unavailable"
                    | "http_response_incomplete"
            ),
            503 => error == "connection_limit_reached",
            _ => false,
        };
        is_own && passes
    })
}

/// Returns true if a value of `Proxy-Status` has a member that names a proxy of the pair. An origin
/// must not write one, since the client would take the response for the gateway's own.
pub fn names_own_proxy(value: &[u8]) -> bool {
    let mut members = value.split(|byte| *byte == b',');
    members.any(|member| {
        let name = member.split(|byte| *byte == b';').next();
        let name = name.unwrap_or_default().trim_ascii();
        SERVING_ROLES
            .iter()
            .any(|role| name.eq_ignore_ascii_case(role.as_str().as_bytes()))
    })
}

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
    let detail = explanation(head)
        .unwrap_or_else(|| format!("it refused the tunnel with status {}", head.status));
    Error::new(kind, Side::Peer, detail)
}

/// Returns the explanation in the `Proxy-Status` field of a gateway's response, without characters
/// that a log would not show.
pub fn explanation(head: &ResponseHead) -> Option<String> {
    let said = String::from_utf8_lossy(head.fields.get("proxy-status")?);
    let (_, rest) = said.split_once("details=\"")?;
    let (details, _) = rest.split_once('"')?;
    let is_visible = |c: &char| c.is_ascii_graphic() || *c == ' ';
    Some(
        details
            .chars()
            .filter(is_visible)
            .take(MAX_DETAIL)
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_names_no_host_of_a_certificate() {
        let wrong = rustls::CertificateError::NotValidForNameContext {
            expected: rustls::pki_types::ServerName::try_from("gateway.test").unwrap(),
            presented: vec!["secret.test".into()],
        };
        let wrong = std::io::Error::other(rustls::Error::InvalidCertificate(wrong));
        for side in [Side::Peer, Side::Via, Side::Origin] {
            let error = Error::io(&wrong, side);
            let is_named = error.detail.contains("gateway.test");
            assert_eq!(is_named, side != Side::Origin, "{error}");
            let (head, body) = response(&error, RoleName::Client);
            let status = head.fields.get("proxy-status").unwrap();
            let all = [status, &body[..]].concat();
            let all = String::from_utf8_lossy(&all);
            assert!(!all.contains(".test"), "{all}");
        }
    }

    #[test]
    fn response_escapes_the_detail_of_an_error() {
        let error = Error::new(Kind::ConnectionRefused, Side::Origin, "<b>\"x\"\r\n");
        let (head, body) = response(&error, RoleName::Gateway);
        assert_eq!(head.status, 502);
        assert_eq!(
            head.fields.get("proxy-status"),
            Some(&b"gateway; error=connection_refused; details=\"<b>x\""[..])
        );
        assert!(!String::from_utf8_lossy(&body).contains("<b>"));
    }

    #[test]
    fn own_error_differs_from_a_response_of_the_origin() {
        let of =
            |kind, side| own_error(&response(&Error::new(kind, side, "x"), RoleName::Gateway).0);
        for kind in [Kind::Unauthorized, Kind::Misdirected, Kind::Forbidden] {
            assert_eq!(of(kind, Side::Local), Some(OwnError::Denied), "{kind:?}");
        }
        for kind in [Kind::Busy, Kind::Internal] {
            assert_eq!(of(kind, Side::Local), Some(OwnError::Itself), "{kind:?}");
        }
        for kind in [Kind::ConnectionRefused, Kind::Timeout, Kind::Reset] {
            assert_eq!(of(kind, Side::Origin), Some(OwnError::Origin), "{kind:?}");
        }
        let error = Error::new(Kind::Busy, Side::Local, "x");
        assert_eq!(own_error(&response(&error, RoleName::Client).0), None);
        let mut head = ResponseHead::new(502);
        assert_eq!(own_error(&head), None);
        head.fields
            .push("proxy-status", "cdn; error=http_request_denied");
        assert_eq!(own_error(&head), None);
    }

    #[test]
    fn own_proxies_are_found_in_any_place_of_a_list() {
        for value in [
            "gateway; error=x",
            "cdn, GATEWAY ;error=x",
            "a,relay",
            "issuer",
        ] {
            assert!(names_own_proxy(value.as_bytes()), "{value}");
        }
        for value in ["", "cdn; error=dns_error", "gateways; error=x", "a.gateway"] {
            assert!(!names_own_proxy(value.as_bytes()), "{value}");
        }
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

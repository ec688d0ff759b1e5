//! Reads the isolation key that an HTTP client carries in its fields, and removes it from the
//! request.
//!
//! `Proxy-Authorization: Basic` corresponds to the SOCKS user and password (RFC 7617).
//! `Tor-Stream-Isolation`, which Arti's HTTP CONNECT also accepts, and `X-Tor-Stream-Isolation`,
//! which Tor's does, give the user of a CONNECT. The stage ignores both in other requests, because
//! scripts of pages can write them there. A request that came by SOCKS has its key already.
//!
//! The other fields of a CONNECT are for this proxy as well (RFC 9110 section 9.3.6), and may show
//! the browser. The stage removes them, so that no gateway sees them.

use std::rc::Rc;

use tandem_http::{Fields, Method};

use crate::exchange::{Exchange, Isolation, Reply};
use crate::stage::Stage;

/// The fields of CONNECT that name a user, as Arti and Tor read them.
const STREAM_FIELDS: [&str; 2] = ["tor-stream-isolation", "x-tor-stream-isolation"];

/// The fields of requests that are for this proxy.
const OWN_FIELDS: [&str; 3] = ["proxy-authorization", STREAM_FIELDS[0], STREAM_FIELDS[1]];

/// The stage that reads the isolation key.
pub struct Isolate {
    /// The stage that exchanges go on to.
    pub next: Rc<dyn Stage>,
}

impl Stage for Isolate {
    fn call(&self, mut exchange: Exchange) -> Reply {
        let request = &exchange.request;
        // An extended CONNECT is a request for the origin, such as that for a WebSocket.
        let is_tunnel = request.method == Method::Connect && request.protocol.is_none();
        let key = key(&request.fields, is_tunnel);
        if is_tunnel {
            exchange.request_mut().fields = Fields::default();
        } else if OWN_FIELDS.iter().any(|name| request.fields.contains(name)) {
            let is_own = |name: &[u8]| OWN_FIELDS.iter().any(|own| own.as_bytes() == name);
            exchange.request_mut().fields.retain(|f| !is_own(f.name));
        }
        if let Some(key) = key
            && exchange.isolation == Isolation::none()
        {
            exchange.isolation = key;
        }
        self.next.call(exchange)
    }
}

fn key(fields: &Fields, is_tunnel: bool) -> Option<Isolation> {
    let authorization = fields.get("proxy-authorization");
    let streams = STREAM_FIELDS.map(|name| fields.get(name).filter(|_| is_tunnel));
    match streams {
        [None, None] => {}
        [Some(stream), None] | [None, Some(stream)] => {
            return Some(Isolation::new(stream, authorization.unwrap_or_default()));
        }
        // Both separate users.
        [Some(one), Some(other)] => {
            let length = one.len().to_be_bytes();
            let stream = [&length, one, other].concat();
            return Some(Isolation::new(&stream, authorization.unwrap_or_default()));
        }
    }
    let value = authorization?;
    // Any other value separates users just as well.
    Some(basic(value).unwrap_or_else(|| Isolation::new(value, b"")))
}

fn basic(value: &[u8]) -> Option<Isolation> {
    let (scheme, credentials) = value.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    let decoded = decode_base64(credentials.trim_ascii())?;
    let colon = decoded
        .iter()
        .position(|&b| b == b':')
        .unwrap_or(decoded.len());
    Some(Isolation::new(
        &decoded[..colon],
        decoded.get(colon + 1..).unwrap_or_default(),
    ))
}

/// Decodes Base64 (RFC 4648 section 4) with optional padding. Returns `None` if the text is
/// invalid.
fn decode_base64(text: &[u8]) -> Option<Vec<u8>> {
    let text = text
        .strip_suffix(b"==")
        .or_else(|| text.strip_suffix(b"="))
        .unwrap_or(text);
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    let (mut held, mut bits) = (0u32, 0);
    for &byte in text {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        held = (held << 6) | u32::from(value);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits) as u8);
            held &= (1 << bits) - 1;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_keys() {
        let read = |name: &str, value: &str, is_tunnel| {
            key(&[(name, value)].into_iter().collect(), is_tunnel)
        };
        let key_of = |name: &str, value: &str| read(name, value, true);
        assert_eq!(
            key_of("proxy-authorization", "Basic dXNlcjpwYXNz"),
            Some(Isolation::new(b"user", b"pass"))
        );
        assert_eq!(
            key_of("proxy-authorization", "basic dXNlcg=="),
            Some(Isolation::new(b"user", b""))
        );
        assert_eq!(
            key_of("tor-stream-isolation", "tab"),
            Some(Isolation::new(b"tab", b""))
        );
        assert_eq!(
            key_of("x-tor-stream-isolation", "tab"),
            Some(Isolation::new(b"tab", b""))
        );
        let both = |one: &str, other: &str| {
            let fields = [
                ("tor-stream-isolation", one),
                ("x-tor-stream-isolation", other),
            ];
            key(&fields.into_iter().collect(), true)
        };
        assert_ne!(both("a", "bc"), both("ab", "c"));
        for name in STREAM_FIELDS {
            assert_eq!(
                read(name, "tab", false),
                None,
                "a page's script chooses no key"
            );
        }
        assert_eq!(
            key_of("proxy-authorization", "Basic %%%"),
            Some(Isolation::new(b"Basic %%%", b""))
        );
        assert_ne!(
            Isolation::new(&[b'a'; 300], b""),
            Isolation::new(&[b'a'; 301], b"")
        );
        assert_eq!(key_of("accept", "x"), None);
    }

    /// Returns the fields and the key that a request has behind the stage.
    fn passed(method: Method, protocol: Option<&str>, fields: &[(&str, &str)]) -> (usize, bool) {
        let seen = Rc::new(std::cell::Cell::new((0, false)));
        let noted = Rc::clone(&seen);
        let next = Rc::new(move |exchange: Exchange| {
            let has_key = exchange.isolation != Isolation::none();
            noted.set((exchange.request.fields.len(), has_key));
            Reply::ready(tandem_http::ResponseHead::new(200), bytes::Bytes::new())
        });
        let request = tandem_http::RequestHead {
            method,
            protocol: protocol.map(Into::into),
            fields: fields.iter().copied().collect(),
            ..tandem_http::RequestHead::get(tandem_http::Scheme::Http, "a.test", "/")
        };
        Isolate { next }.call(Exchange::internal(request));
        seen.get()
    }

    #[test]
    fn isolate_removes_all_fields_of_a_tunnel() {
        let fields = [("user-agent", "browser"), ("x-tor-stream-isolation", "tab")];
        assert_eq!(passed(Method::Connect, None, &fields), (0, true));
        // A script can write the field of a WebSocket or of another request.
        let socket = passed(Method::Connect, Some("websocket"), &fields);
        assert_eq!(socket, (1, false));
        assert_eq!(passed(Method::Get, None, &fields), (1, false));
    }
}

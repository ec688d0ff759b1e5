//! Reads the isolation key that an HTTP client carries in its fields, and removes it from the
//! request.
//!
//! `Proxy-Authorization: Basic` corresponds to the SOCKS user and password (RFC 7617).
//! `Tor-Stream-Isolation`, which Arti's HTTP CONNECT also accepts, gives the user of a CONNECT. The
//! stage ignores it in other requests, because scripts of pages can write it there. A request that
//! came by SOCKS has its key already.

use std::rc::Rc;

use tandem_http::{Fields, Method};

use crate::exchange::{Exchange, Isolation, Reply};
use crate::stage::Stage;

/// The stage that reads the isolation key.
pub struct Isolate {
    /// The stage that exchanges go on to.
    pub next: Rc<dyn Stage>,
}

impl Stage for Isolate {
    fn call(&self, mut exchange: Exchange) -> Reply {
        let fields = &exchange.request.fields;
        let key = key(fields, exchange.request.method == Method::Connect);
        if fields.contains("proxy-authorization") || fields.contains("tor-stream-isolation") {
            let fields = &mut exchange.request_mut().fields;
            fields
                .retain(|f| f.name != b"proxy-authorization" && f.name != b"tor-stream-isolation");
        }
        if let Some(key) = key
            && exchange.isolation == Isolation::none()
        {
            exchange.isolation = key;
        }
        self.next.call(exchange)
    }
}

fn key(fields: &Fields, is_connect: bool) -> Option<Isolation> {
    let authorization = fields.get("proxy-authorization");
    if let Some(stream) = fields.get("tor-stream-isolation").filter(|_| is_connect) {
        return Some(Isolation::new(stream, authorization.unwrap_or_default()));
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
        let read = |name: &str, value: &str, is_connect| {
            key(&[(name, value)].into_iter().collect(), is_connect)
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
            read("tor-stream-isolation", "tab", false),
            None,
            "a page's script chooses no key"
        );
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
}

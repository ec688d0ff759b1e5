//! The request target in its four forms, and authorities. RFC 9112 section 3.2, RFC 3986 section
//! 3.2.

use std::net::Ipv6Addr;

use super::request::BadRequest;
use crate::message::{Method, Scheme};

/// Form of a request target (RFC 9112 section 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `/path?query`: to an origin.
    Origin,
    /// `http://host/path?query`: to a proxy.
    Absolute,
    /// `host:port`: CONNECT.
    Authority,
    /// `*`: OPTIONS of a whole server.
    Asterisk,
}

/// Host and port of an authority, valid for a request: no user information, no escapes, no zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Authority<'a> {
    /// Name or address; IPv6 addresses in their brackets.
    pub host: &'a str,
    /// Port, 1 to 65535, where one is given.
    pub port: Option<u16>,
}

impl<'a> Authority<'a> {
    /// Reads `host` or `host:port`; `None` when it is neither.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let (host, port) = if text.starts_with('[') {
            let end = text.find(']')?;
            let inside = &text[1..end];
            inside.parse::<Ipv6Addr>().ok()?;
            (&text[..=end], &text[end + 1..])
        } else {
            let end = text.find(':').unwrap_or(text.len());
            let host = &text[..end];
            if !is_host_name(host.as_bytes()) {
                return None;
            }
            (host, &text[end..])
        };
        let port = match port.strip_prefix(':') {
            None if port.is_empty() => None,
            None => return None,
            Some(digits) => Some(parse_port(digits)?),
        };
        Some(Self { host, port })
    }

    /// Returns true if both name the same host and port; a missing port counts as `default`.
    pub fn is_same(&self, other: &Self, default: u16) -> bool {
        self.host.eq_ignore_ascii_case(other.host)
            && self.port.unwrap_or(default) == other.port.unwrap_or(default)
    }
}

/// Returns true if these bytes are a DNS name or IPv4 address as URLs write them after IDNA: 1 to
/// 255 letters, digits, `-`, `.` and `_`. RFC 3986 permits more characters, but no resolver knows
/// them and other readers split at them.
pub(crate) fn is_host_name(bytes: &[u8]) -> bool {
    (1..=255).contains(&bytes.len())
        && bytes
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'))
}

fn parse_port(digits: &str) -> Option<u16> {
    let plain = (1..=5).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
    digits.parse().ok().filter(|&port| plain && port != 0)
}

/// Returns an authority of a URI without its empty port, which means the default port (RFC 3986
/// sections 3.2.3 and 6.2.3).
pub(super) fn without_empty_port(text: &[u8]) -> &[u8] {
    text.strip_suffix(b":").unwrap_or(text)
}

/// The parsed request target.
pub(super) struct Target<'a> {
    pub(super) form: Form,
    pub(super) scheme: Option<Scheme>,
    pub(super) authority: Option<Authority<'a>>,
    /// The authority as written, without an empty port.
    pub(super) authority_text: &'a str,
    pub(super) path: String,
}

/// Reads a target in the form of [`crate::target::encoded_target`].
pub(super) fn parse_target<'a>(method: &Method, text: &'a str) -> Result<Target<'a>, BadRequest> {
    if *method == Method::Connect {
        let authority = Authority::parse(text.as_bytes()).ok_or(BadRequest::Authority)?;
        // RFC 9110 section 9.3.6: the port is required.
        authority.port.ok_or(BadRequest::Authority)?;
        return Ok(Target {
            form: Form::Authority,
            scheme: None,
            authority: Some(authority),
            authority_text: text,
            path: String::new(),
        });
    }
    if text.starts_with('/') {
        return Ok(local(Form::Origin, text));
    }
    if text == "*" && *method == Method::Options {
        return Ok(local(Form::Asterisk, text));
    }
    parse_absolute(method, text)
}

fn local(form: Form, path: &str) -> Target<'_> {
    Target {
        form,
        scheme: None,
        authority: None,
        authority_text: "",
        path: path.to_owned(),
    }
}

fn parse_absolute<'a>(method: &Method, text: &'a str) -> Result<Target<'a>, BadRequest> {
    let (scheme, rest) = text.split_once("://").ok_or(BadRequest::Target)?;
    let scheme = Scheme::parse(scheme.as_bytes()).ok_or(BadRequest::Scheme)?;
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority_text, path) = rest.split_at(end);
    let authority_text = authority_text.strip_suffix(':').unwrap_or(authority_text);
    let authority = Authority::parse(authority_text.as_bytes()).ok_or(BadRequest::Authority)?;
    let path = match path.as_bytes().first() {
        // RFC 9112 section 3.2.4: OPTIONS without path means the server as a whole.
        None if *method == Method::Options => "*".to_owned(),
        None => "/".to_owned(),
        Some(b'?') => format!("/{path}"),
        Some(_) => path.to_owned(),
    };
    Ok(Target {
        form: Form::Absolute,
        scheme: Some(scheme),
        authority: Some(authority),
        authority_text,
        path,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorities() {
        let parse =
            |text: &'static str| Authority::parse(text.as_bytes()).map(|a| (a.host, a.port));
        assert_eq!(parse("example.com"), Some(("example.com", None)));
        assert_eq!(parse("example.com:8080"), Some(("example.com", Some(8080))));
        assert_eq!(
            parse("[2001:db8::1]:443"),
            Some(("[2001:db8::1]", Some(443)))
        );
        assert_eq!(parse("[::1]"), Some(("[::1]", None)));
        for bad in [
            "", ":80", "a:", "a:0", "a:65536", "a:+80", "a:8 0", "u@h", "u:p@h", "a b", "a/b",
            "[::1", "[::1]x", "[1]",
        ] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
        for bad in [
            "[fe80::1%25eth0]",
            "a%41",
            "a,b",
            "::1",
            "a:80:80",
            "a\u{e9}",
        ] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }
}

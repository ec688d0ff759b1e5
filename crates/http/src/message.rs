//! The heads of requests and responses as every session protocol understands them (RFC 9110
//! sections 6, 7 and 9).
//!
//! HTTP/1.1, HTTP/2 and SPDY read into these and write from these; nothing between them sees a
//! protocol's own form.

use std::fmt;

use crate::Fields;

/// Request method (RFC 9110 section 9). Case matters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are the methods")]
pub enum Method {
    Get,
    Head,
    Post,
    Put,
    Delete,
    Connect,
    Options,
    Trace,
    Patch,
    Other(Box<str>),
}

impl Method {
    /// Reads a method token; `None` when it is no token (RFC 9110 section 5.6.2).
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        Some(match bytes {
            b"GET" => Self::Get,
            b"HEAD" => Self::Head,
            b"POST" => Self::Post,
            b"PUT" => Self::Put,
            b"DELETE" => Self::Delete,
            b"CONNECT" => Self::Connect,
            b"OPTIONS" => Self::Options,
            b"TRACE" => Self::Trace,
            b"PATCH" => Self::Patch,
            other => {
                if other.is_empty() || other.len() > 64 || !other.iter().copied().all(is_token) {
                    return None;
                }
                Self::Other(std::str::from_utf8(other).ok()?.into())
            }
        })
    }

    /// The token as written on the wire.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
            Self::Options => "OPTIONS",
            Self::Trace => "TRACE",
            Self::Patch => "PATCH",
            Self::Other(token) => token,
        }
    }

    /// Returns true if a second delivery has the same effect as one (RFC 9110 section 9.2.2), so
    /// that the request may be sent again.
    pub fn is_idempotent(&self) -> bool {
        matches!(
            self,
            Self::Get | Self::Head | Self::Put | Self::Delete | Self::Options | Self::Trace
        )
    }

    /// Returns true if servers read the content of a request with this method, since requests with
    /// it mostly have content (RFC 9110 section 9.3, RFC 5789). Methods that a server may not know
    /// are not among them, such as those of WebDAV: it may answer them without a look at the
    /// content.
    pub const fn defines_content(&self) -> bool {
        matches!(self, Self::Post | Self::Put | Self::Patch)
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Returns true if `byte` may stand in a token: methods, field names (RFC 9110 section 5.6.2).
pub const fn is_token(byte: u8) -> bool {
    matches!(
        byte,
        b'!' | b'#'
            | b'$'
            | b'%'
            | b'&'
            | b'\''
            | b'*'
            | b'+'
            | b'-'
            | b'.'
            | b'^'
            | b'_'
            | b'`'
            | b'|'
            | b'~'
    ) || byte.is_ascii_alphanumeric()
}

/// Returns whether a field value has control bytes besides tab, which RFC 9110 section 5.5 forbids.
pub fn has_controls(value: &[u8]) -> bool {
    // Without a way out the loop runs on many bytes at once.
    value.iter().fold(false, |found, &b| {
        found | ((b < b' ') & (b != b'\t')) | (b == 0x7f)
    })
}

/// Returns whether `name` is a framing or connection field written with `_` in place of `-`, such
/// as `transfer_encoding`; case is ignored.
///
/// CGI (RFC 3875 section 4.1.18) and WSGI servers cannot tell the two apart, so such a field could
/// give a message a second length behind this proxy. No browser sends one.
pub fn is_framing_lookalike(name: &[u8]) -> bool {
    const FRAMING: [&[u8]; 4] = [
        b"content-length",
        b"keep-alive",
        b"proxy-connection",
        b"transfer-encoding",
    ];
    let same = |(written, meant): (&u8, &u8)| match written {
        b'_' => *meant == b'-',
        letter => letter.eq_ignore_ascii_case(meant),
    };
    // The comparison of lengths settles most names without a look at their bytes.
    matches!(name.len(), 10 | 14 | 16 | 17)
        && name
            .iter()
            .fold(false, |found, byte| found | (*byte == b'_'))
        && FRAMING
            .iter()
            .any(|field| field.len() == name.len() && name.iter().zip(*field).all(same))
}

/// How the origin is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are the schemes")]
pub enum Scheme {
    Http,
    Https,
}

impl Scheme {
    /// `http` or `https`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    /// The port that an authority without one means.
    pub const fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }

    /// Reads a scheme, case ignored.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.eq_ignore_ascii_case(b"http") {
            Some(Self::Http)
        } else if bytes.eq_ignore_ascii_case(b"https") {
            Some(Self::Https)
        } else {
            None
        }
    }
}

/// The head of a request. `Host` is never among the fields: it is the `authority`.
#[derive(Clone, PartialEq, Eq)]
pub struct RequestHead {
    /// Method; `CONNECT` asks for a tunnel to `authority` (then `path` is empty unless `protocol`
    /// is set).
    pub method: Method,
    /// Scheme of the target.
    pub scheme: Scheme,
    /// `host` or `host:port` of the target, without user information.
    pub authority: String,
    /// Path and query, beginning with `/`; or `*` for OPTIONS.
    pub path: String,
    /// Extended CONNECT (RFC 8441): the protocol to switch to, such as `websocket`.
    pub protocol: Option<String>,
    /// All other fields, none of them of one hop only.
    pub fields: Fields,
}

impl RequestHead {
    /// Returns a GET request for `path`, without fields.
    pub fn get(scheme: Scheme, authority: impl Into<String>, path: impl Into<String>) -> Self {
        Self {
            method: Method::Get,
            scheme,
            authority: authority.into(),
            path: path.into(),
            protocol: None,
            fields: Fields::new(),
        }
    }

    /// Returns a CONNECT request for a tunnel to `authority`, without fields. No protocol sends its
    /// scheme.
    pub fn connect(authority: impl Into<String>) -> Self {
        Self {
            method: Method::Connect,
            ..Self::get(Scheme::Http, authority, "")
        }
    }

    /// Returns scheme, authority and path as a URL. Those of CONNECT make no URL of a resource.
    pub fn url(&self) -> String {
        let scheme = self.scheme.as_str();
        format!("{scheme}://{}{}", self.authority, self.path)
    }

    /// Returns true if the exchange becomes a tunnel of bytes after a 2xx response.
    pub fn is_connect(&self) -> bool {
        self.method == Method::Connect
    }
}

/// Method and field names only: where someone goes is private.
impl fmt::Debug for RequestHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestHead")
            .field("method", &self.method)
            .field("fields", &self.fields)
            .finish_non_exhaustive()
    }
}

/// The head of a response, interim (1xx) or final.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// Status code, 100 to 999.
    pub status: u16,
    /// Fields, none of them of one hop only.
    pub fields: Fields,
}

impl ResponseHead {
    /// A head without fields.
    pub const fn new(status: u16) -> Self {
        Self {
            status,
            fields: Fields::new(),
        }
    }

    /// 1xx: another head follows.
    pub const fn is_informational(&self) -> bool {
        self.status >= 100 && self.status < 200
    }
}

/// Returns the type and subtype in the value of `content-type`, without parameters (RFC 9110
/// section 8.3.1).
pub fn media_type_essence(value: &[u8]) -> &[u8] {
    let end = value.iter().position(|&byte| byte == b';');
    value[..end.unwrap_or(value.len())].trim_ascii()
}

/// Returns whether a request logs in on its connection (RFC 4559 for Negotiate, and likewise NTLM).
/// Later requests on the connection have the same rights without a field.
pub fn logs_in_on_connection(fields: &Fields) -> bool {
    let credentials = fields.get("authorization").unwrap_or_default();
    let scheme = credentials.split(|byte| *byte == b' ').next();
    scheme.is_some_and(|scheme| {
        scheme.eq_ignore_ascii_case(b"negotiate") || scheme.eq_ignore_ascii_case(b"ntlm")
    })
}

/// `content-length` of a message when it is given once or repeatedly with one value; an error where
/// it is malformed or contradicts itself (RFC 9110 section 8.6).
pub fn content_length(fields: &Fields) -> Result<Option<u64>, BadContentLength> {
    let mut length = None;
    let mut values = fields.get_all("content-length");
    // Nearly all messages have one number or none.
    let first = values.next();
    if values.next().is_none() {
        match first {
            None => return Ok(None),
            Some(value) if (1..=18).contains(&value.len()) => {
                let number = value.iter().try_fold(0, |number: u64, byte| {
                    let digit = byte.wrapping_sub(b'0');
                    (digit < 10).then_some(10 * number + u64::from(digit))
                });
                if number.is_some() {
                    return Ok(number);
                }
            }
            Some(_) => {}
        }
    }
    for value in fields.get_all("content-length") {
        for part in value.split(|&b| b == b',') {
            let part = part.trim_ascii();
            if part.is_empty() || part.len() > 18 || !part.iter().all(u8::is_ascii_digit) {
                return Err(BadContentLength);
            }
            let number = part.iter().fold(0u64, |n, b| n * 10 + u64::from(b - b'0'));
            if length.is_some_and(|known| known != number) {
                return Err(BadContentLength);
            }
            length = Some(number);
        }
    }
    Ok(length)
}

/// A `content-length` that is no number or says two things.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("content-length is not one decimal number")]
pub struct BadContentLength;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_length_is_one_number_however_often() {
        for (values, expected) in [
            (&[][..], Ok(None)),
            (&["0"], Ok(Some(0))),
            (&["999999999999999999"], Ok(Some(999_999_999_999_999_999))),
            (&["5", "5"], Ok(Some(5))),
            (&["5, 05"], Ok(Some(5))),
            (&["5 "], Ok(Some(5))),
            (&["1000000000000000000"], Err(BadContentLength)),
            (&["5", "6"], Err(BadContentLength)),
            (&["5,6"], Err(BadContentLength)),
            (&["5", ""], Err(BadContentLength)),
            (&["+5"], Err(BadContentLength)),
            (&["5:"], Err(BadContentLength)),
            (&[""], Err(BadContentLength)),
        ] {
            let fields = values.iter().map(|value| ("content-length", value));
            assert_eq!(content_length(&fields.collect()), expected, "{values:?}");
        }
    }

    #[test]
    fn methods_define_content_or_not() {
        let defines = |token: &str| Method::parse(token.as_bytes()).map(|it| it.defines_content());
        for token in ["POST", "PUT", "PATCH"] {
            assert_eq!(defines(token), Some(true), "{token}");
        }
        for token in [
            "GET", "HEAD", "DELETE", "OPTIONS", "TRACE", "CONNECT", "post", "PROPFIND", "QUERY",
        ] {
            assert_eq!(defines(token), Some(false), "{token}");
        }
    }

    #[test]
    fn lookalikes_of_framing_fields_are_recognised() {
        for name in [
            "transfer_encoding",
            "Transfer_Encoding",
            "content_length",
            "keep_alive",
            "proxy_connection",
        ] {
            assert!(is_framing_lookalike(name.as_bytes()), "{name}");
        }
        for name in [
            "transfer-encoding",
            "content_lengths",
            "x_transfer_encoding",
            "content_type",
            "_",
        ] {
            assert!(!is_framing_lookalike(name.as_bytes()), "{name}");
        }
    }
}

//! Fields of a single connection, which are never forwarded: RFC 9110 section 7.6.1.

use super::Version;
use crate::Fields;
use crate::message::is_framing_lookalike;

/// The connection options of a message (RFC 9112 section 9).
#[derive(Clone, Copy, Default)]
pub(super) struct ConnectionOptions {
    pub(super) close: bool,
    pub(super) keep_alive: bool,
    pub(super) upgrade: bool,
}

impl ConnectionOptions {
    /// Notes an option that has a meaning here; false when it must be the name of a field to
    /// remove.
    pub(super) fn note(&mut self, option: &[u8]) -> bool {
        let is = |known: &str| option.eq_ignore_ascii_case(known.as_bytes());
        if is("close") {
            self.close = true;
        } else if is("keep-alive") {
            self.keep_alive = true;
        } else if is("upgrade") {
            self.upgrade = true;
        } else {
            return is("te");
        }
        true
    }

    /// RFC 9112 section 9.3.
    pub(super) fn is_persistent(&self, version: Version) -> bool {
        !self.close && (version == Version::Http11 || self.keep_alive)
    }
}

/// Returns true if `Connection` names this field and the field may be removed. Fields that delimit
/// or route a message stay: their removal would change the message. `te: trailers` has a meaning on
/// every hop.
pub(super) fn named_by_connection(named: &[&[u8]], field: &[u8]) -> bool {
    !matches!(field, b"content-length" | b"host" | b"te")
        && named.iter().any(|n| n.eq_ignore_ascii_case(field))
}

/// Returns true if a field (lower-case name) always belongs to a single connection; TE is excepted.
pub(super) fn is_hop_by_hop(name: &[u8]) -> bool {
    matches!(
        name,
        b"connection"
            | b"http2-settings"
            | b"keep-alive"
            | b"proxy-connection"
            | b"transfer-encoding"
            | b"upgrade"
    )
}

/// Drops `connection` and every field it names, `http2-settings`, `keep-alive`, `proxy-connection`,
/// `transfer-encoding` and `upgrade`; `te` shrinks to `trailers` or goes. `trailer`,
/// `proxy-authenticate` and `proxy-authorization` stay.
pub fn strip_hop_by_hop(fields: &mut Fields) {
    let options: Vec<Vec<u8>> = fields
        .get_all("connection")
        .flat_map(|value| value.split(|&b| b == b','))
        .map(|option| option.trim_ascii().to_vec())
        .collect();
    let named: Vec<&[u8]> = options.iter().map(Vec::as_slice).collect();
    let trailers = fields.has_token("te", "trailers");
    fields.retain(|f| {
        !is_hop_by_hop(f.name)
            && !is_framing_lookalike(f.name)
            && !named_by_connection(&named, f.name)
    });
    if trailers {
        if fields.get("te") != Some(b"trailers") || fields.get_all("te").count() != 1 {
            fields.set("te", "trailers");
        }
    } else {
        fields.remove("te");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strips_what_connection_names() {
        let mut fields: Fields = [
            ("connection", "X-Private , close, content-length"),
            ("x-private", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "deflate, Trailers"),
            ("content-length", "3"),
            ("trailer", "x-sum"),
            ("proxy-authorization", "Basic eDp5"),
            ("upgrade", "h2c"),
            ("http2-settings", "AAMAAABkAAQAAP__"),
        ]
        .into_iter()
        .collect();
        strip_hop_by_hop(&mut fields);
        let left: Vec<_> = fields.iter().map(|f| f.name).collect();
        assert_eq!(
            left,
            [
                &b"content-length"[..],
                b"trailer",
                b"proxy-authorization",
                b"te"
            ]
        );
        assert_eq!(fields.get("te"), Some(&b"trailers"[..]));
        let mut fields: Fields = [("te", "gzip"), ("accept", "*/*")].into_iter().collect();
        strip_hop_by_hop(&mut fields);
        assert_eq!(fields.len(), 1);
    }
}

//! Heads of messages as field lists: reading them under all rules of RFC 9113 section 8, and
//! writing them. The rules of HTTP/3 are the same (RFC 9114 sections 4.1 to 4.4), so both cores use
//! them.

use crate::expected::WrongLength;
use crate::fields::Field;
use crate::message::{has_controls, is_framing_lookalike, is_token};
use crate::target::encoded_target;
use crate::{Fields, Method, Priority, RequestHead, ResponseHead, Role, Scheme};

/// The size of a field in a header list, in bytes, in addition to its text (RFC 9113 section
/// 6.5.2).
const FIELD_OVERHEAD: usize = 32;

/// The reason for which a header list is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// A rule was broken (RFC 9113 section 8.1.1).
    Malformed(&'static str),
    /// Over the limit (RFC 9113 section 10.5.1).
    TooLarge,
}

use Flaw::Malformed;

/// A request as read.
pub(crate) struct Request {
    pub(crate) head: RequestHead,
    pub(crate) priority: Priority,
    pub(crate) length: Option<u64>,
}

/// A response as read.
pub(crate) struct Response {
    pub(crate) head: ResponseHead,
    pub(crate) length: Option<u64>,
}

impl From<WrongLength> for Flaw {
    fn from(wrong: WrongLength) -> Self {
        Malformed(wrong.text())
    }
}

/// The size of the last head, by which memory for the next one is allocated.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hint {
    fields: usize,
    bytes: usize,
}

/// Takes the fields of one header list. It is given all of them, as the decoder must see the whole
/// block, but keeps nothing after the first flaw.
pub(crate) struct HeadReader {
    method: Option<Method>,
    scheme: Option<Scheme>,
    authority: Option<String>,
    path: Option<String>,
    protocol: Option<String>,
    status: Option<u16>,
    host: Option<String>,
    cookie: Option<Cookie>,
    priority: Priority,
    length: Option<u64>,
    fields: Fields,
    /// Bytes still allowed.
    room: usize,
    /// A value holds control bytes.
    controls: bool,
    /// A framing field was written with underscores, and left out.
    lookalike: bool,
    flaw: Option<Flaw>,
}

/// Crumbs joined (RFC 9113 section 8.2.3).
struct Cookie {
    value: Vec<u8>,
    sensitive: bool,
}

impl HeadReader {
    pub(crate) fn new(limit: usize, hint: Hint) -> Self {
        Self {
            method: None,
            scheme: None,
            authority: None,
            path: None,
            protocol: None,
            status: None,
            host: None,
            cookie: None,
            priority: Priority::default(),
            length: None,
            fields: Fields::with_capacity(hint.fields, hint.bytes),
            room: limit,
            controls: false,
            lookalike: false,
            flaw: None,
        }
    }

    /// Returns the bytes that the list may still have.
    pub(crate) const fn room(&self) -> usize {
        self.room
    }

    /// Takes the next field.
    pub(crate) fn field(&mut self, field: Field<'_>) {
        if self.flaw.is_some() {
            return;
        }
        let size = field.name.len() + field.value.len() + FIELD_OVERHEAD;
        let taken = match self.room.checked_sub(size) {
            None => Err(Flaw::TooLarge),
            Some(room) => {
                self.room = room;
                if field.name.first() == Some(&b':') {
                    self.pseudo(field)
                } else {
                    self.regular(field)
                }
            }
        };
        self.flaw = taken.err();
    }

    /// RFC 9113 section 8.3.
    fn pseudo(&mut self, field: Field<'_>) -> Result<(), Flaw> {
        if !self.fields.is_empty() || self.host.is_some() || self.cookie.is_some() {
            return Err(Malformed("pseudo-header after a field"));
        }
        let value = field.value;
        match field.name {
            b":method" => once(&mut self.method, Method::parse(value)),
            b":scheme" => once(&mut self.scheme, Scheme::parse(value)),
            b":authority" => once(&mut self.authority, authority(value)),
            b":path" => once(&mut self.path, path(value)),
            b":protocol" => once(&mut self.protocol, token(value)),
            b":status" => once(&mut self.status, status(value)),
            _ => Err(Malformed("unknown pseudo-header")),
        }
    }

    /// RFC 9113 section 8.2.
    fn regular(&mut self, field: Field<'_>) -> Result<(), Flaw> {
        let Field {
            name,
            value,
            sensitive,
        } = field;
        if !is_field_name(name) {
            return Err(Malformed("bad character in a field name"));
        }
        match ValueKind::of(value) {
            ValueKind::Plain => {}
            ValueKind::Controls => self.controls = true,
            ValueKind::Bad => return Err(Malformed("bad character in a field value")),
        }
        match name {
            b"cookie" => {
                self.crumb(value, sensitive);
                return Ok(());
            }
            b"host" => return once(&mut self.host, authority(value)),
            b"te" if !value.eq_ignore_ascii_case(b"trailers") => {
                return Err(Malformed("te other than trailers"));
            }
            b"content-length" => self.content_length(value)?,
            b"priority" => self.priority = urgency(value).unwrap_or(self.priority),
            _ if is_connection_specific(name) => {
                return Err(Malformed("connection-specific field"));
            }
            _ if is_framing_lookalike(name) => {
                self.lookalike = true;
                return Ok(());
            }
            // An offer of the next hop's HTTP/1.1 to change to HTTP/2 would take it up.
            b"http2-settings" => return Ok(()),
            _ => {}
        }
        self.fields.push_lower(name, value, sensitive);
        Ok(())
    }

    fn crumb(&mut self, value: &[u8], sensitive: bool) {
        match &mut self.cookie {
            None => {
                self.cookie = Some(Cookie {
                    value: value.to_vec(),
                    sensitive,
                })
            }
            Some(cookie) => {
                cookie.value.extend_from_slice(b"; ");
                cookie.value.extend_from_slice(value);
                cookie.sensitive |= sensitive;
            }
        }
    }

    /// Reads one decimal number, which may be repeated (RFC 9110 section 8.6).
    fn content_length(&mut self, value: &[u8]) -> Result<(), Flaw> {
        let good = (1..=18).contains(&value.len()) && value.iter().all(u8::is_ascii_digit);
        let length = value.iter().fold(0u64, |n, b| {
            n.wrapping_mul(10)
                .wrapping_add(u64::from(b.wrapping_sub(b'0')))
        });
        if !good || self.length.is_some_and(|known| known != length) {
            return Err(Malformed("bad content-length"));
        }
        self.length = Some(length);
        Ok(())
    }

    /// The flaw found, or the fields with the cookie joined.
    fn finish(&mut self, hint: &mut Hint) -> Result<Fields, Flaw> {
        if let Some(flaw) = self.flaw {
            return Err(flaw);
        }
        let mut fields = std::mem::take(&mut self.fields);
        match self.cookie.take() {
            Some(cookie) if cookie.sensitive => fields.push_sensitive("cookie", cookie.value),
            Some(cookie) => fields.push("cookie", cookie.value),
            None => {}
        }
        *hint = Hint {
            fields: fields.len(),
            bytes: fields.text_len(),
        };
        Ok(fields)
    }

    /// RFC 9113 sections 8.3.1 and 8.5, RFC 8441 section 4.
    pub(crate) fn into_request(mut self, hint: &mut Hint) -> Result<Request, Flaw> {
        let fields = self.finish(hint)?;
        // Of responses they are kept, as browsers do and HTTP/1.1's reader.
        if self.controls {
            return Err(Malformed("control byte in a field value"));
        }
        if self.lookalike {
            return Err(Malformed("framing field with underscores"));
        }
        if self.status.is_some() {
            return Err(Malformed("status in a request"));
        }
        let method = self.method.take().ok_or(Malformed("no method"))?;
        let authority = self.take_authority()?;
        let (scheme, path) = match (&method, &self.protocol) {
            (Method::Connect, None) => {
                if self.scheme.is_some() || self.path.is_some() {
                    return Err(Malformed("CONNECT with scheme or path"));
                }
                (Scheme::Http, String::new())
            }
            (other, Some(_)) if *other != Method::Connect => {
                return Err(Malformed("protocol without CONNECT"));
            }
            _ => {
                let scheme = self.scheme.ok_or(Malformed("no scheme"))?;
                let path = self.path.take().ok_or(Malformed("no path"))?;
                check_path(&method, &path)?;
                (scheme, path)
            }
        };
        let head = RequestHead {
            method,
            scheme,
            authority,
            path,
            protocol: self.protocol,
            fields,
        };
        Ok(Request {
            head,
            priority: self.priority,
            length: self.length,
        })
    }

    /// `:authority`, or `host` where a gateway left the former out; never two that differ.
    fn take_authority(&mut self) -> Result<String, Flaw> {
        match (self.authority.take(), self.host.take()) {
            (Some(authority), Some(host)) if !authority.eq_ignore_ascii_case(&host) => {
                Err(Malformed("host other than authority"))
            }
            (Some(authority), _) | (None, Some(authority)) => Ok(authority),
            (None, None) => Err(Malformed("no authority")),
        }
    }

    /// RFC 9113 section 8.3.2.
    pub(crate) fn into_response(mut self, hint: &mut Hint) -> Result<Response, Flaw> {
        let mut fields = self.finish(hint)?;
        if self.has_request_pseudo() {
            return Err(Malformed("request pseudo-header in a response"));
        }
        let status = self.status.ok_or(Malformed("no status"))?;
        if status == 101 {
            return Err(Malformed("status 101"));
        }
        if let Some(host) = self.host {
            fields.push("host", host);
        }
        Ok(Response {
            head: ResponseHead { status, fields },
            length: self.length,
        })
    }

    /// RFC 9113 section 8.1: trailers have no pseudo-headers. `reader` is the end that reads them.
    /// Those of a request keep the rules of its head.
    pub(crate) fn into_trailers(mut self, reader: Role) -> Result<Fields, Flaw> {
        let mut unused = Hint::default();
        let fields = self.finish(&mut unused)?;
        if self.controls && reader == Role::Server {
            return Err(Malformed("control byte in a field value"));
        }
        if self.lookalike && reader == Role::Server {
            return Err(Malformed("framing field with underscores"));
        }
        if self.status.is_some() || self.has_request_pseudo() {
            return Err(Malformed("pseudo-header in trailers"));
        }
        Ok(fields)
    }

    fn has_request_pseudo(&self) -> bool {
        self.method.is_some()
            || self.scheme.is_some()
            || self.authority.is_some()
            || self.path.is_some()
            || self.protocol.is_some()
    }
}

/// Fills `slot` with the parsed value, once only.
fn once<T>(slot: &mut Option<T>, parsed: Option<T>) -> Result<(), Flaw> {
    if slot.is_some() {
        return Err(Malformed("said twice"));
    }
    *slot = Some(parsed.ok_or(Malformed("bad pseudo-header or host"))?);
    Ok(())
}

/// The bytes that a text must not have: controls and spaces, and those that its kind forbids.
struct Forbidden([bool; 256]);

impl Forbidden {
    const fn with(others: &[u8]) -> Self {
        let mut table = [false; 256];
        let mut byte = 0;
        while byte <= b' ' as usize {
            table[byte] = true;
            byte += 1;
        }
        table[0x7f] = true;
        let mut at = 0;
        while at < others.len() {
            table[others[at] as usize] = true;
            at += 1;
        }
        Self(table)
    }

    /// Returns the text, unless it is empty or has such a byte.
    fn check(&self, value: &[u8]) -> Option<String> {
        if value.is_empty() || value.iter().any(|&byte| self.0[usize::from(byte)]) {
            return None;
        }
        Some(std::str::from_utf8(value).ok()?.to_owned())
    }
}

/// A path and query.
fn path(value: &[u8]) -> Option<String> {
    encoded_target(value).map(Into::into)
}

fn token(value: &[u8]) -> Option<String> {
    static FORBIDDEN: Forbidden = Forbidden::with(b"");
    let is_token = value.iter().copied().all(is_token);
    FORBIDDEN.check(value).filter(|_| is_token)
}

/// `host` or `host:port`; no user information (RFC 9113 section 8.3.1).
fn authority(value: &[u8]) -> Option<String> {
    static FORBIDDEN: Forbidden = Forbidden::with(b"@/\\?#,");
    FORBIDDEN.check(value)
}

fn status(value: &[u8]) -> Option<u16> {
    match *value {
        [a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9'] => {
            Some(u16::from(a - b'0') * 100 + u16::from(b - b'0') * 10 + u16::from(c - b'0'))
        }
        _ => None,
    }
}

fn check_path(method: &Method, path: &str) -> Result<(), Flaw> {
    if path.starts_with('/') || (path == "*" && *method == Method::Options) {
        Ok(())
    } else {
        Err(Malformed("path without a leading slash"))
    }
}

/// Lower-case token (RFC 9113 section 8.2.1).
fn is_field_name(name: &[u8]) -> bool {
    const GOOD: [bool; 256] = {
        let mut good = [false; 256];
        let mut byte = 0;
        while byte < 256 {
            good[byte] = is_token(byte as u8) && !(byte as u8).is_ascii_uppercase();
            byte += 1;
        }
        good
    };
    !name.is_empty()
        && name.len() <= usize::from(u16::MAX)
        && name.iter().all(|&b| GOOD[usize::from(b)])
}

/// The kind of a field's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueKind {
    /// An ordinary value.
    Plain,
    /// Control bytes besides tab, which RFC 9113 section 8.2.1 lets pass and RFC 9110 section 5.5
    /// does not.
    Controls,
    /// A value with NUL, CR, LF or surrounding white space, which other readers would misread.
    Bad,
}

impl ValueKind {
    fn of(value: &[u8]) -> Self {
        let blank = |b: Option<&u8>| matches!(b, Some(b' ' | b'\t'));
        let controls = has_controls(value);
        let is_bad = |&b: &u8| matches!(b, 0 | b'\r' | b'\n');
        if blank(value.first()) || blank(value.last()) || (controls && value.iter().any(is_bad)) {
            Self::Bad
        } else if controls {
            Self::Controls
        } else {
            Self::Plain
        }
    }
}

/// Fields of HTTP/1.1's connections (RFC 9113 section 8.2.2).
pub(crate) fn is_connection_specific(name: &[u8]) -> bool {
    matches!(
        name,
        b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding" | b"upgrade"
    )
}

/// Urgency in a `priority` field or PRIORITY_UPDATE (RFC 9218 section 4): the last `u` counts.
pub(crate) fn urgency(value: &[u8]) -> Option<Priority> {
    value.split(|&b| b == b',').rev().find_map(|member| {
        let member = member.split(|&b| b == b';').next()?.trim_ascii();
        match member.strip_prefix(b"u=")? {
            [digit @ b'0'..=b'7'] => Some(Priority(digit - b'0')),
            _ => None,
        }
    })
}

/// Hands the header list of a request to `put`, in the order of the wire.
pub(crate) fn write_request(
    head: &RequestHead,
    priority: Priority,
    mut put: impl FnMut(Field<'_>),
) {
    let mut pseudo = |name: &str, value: &str| {
        put(Field {
            name: name.as_bytes(),
            value: value.as_bytes(),
            sensitive: false,
        })
    };
    pseudo(":method", head.method.as_str());
    if !head.is_connect() || head.protocol.is_some() {
        pseudo(":scheme", head.scheme.as_str());
    }
    pseudo(":authority", &head.authority);
    if !head.is_connect() || head.protocol.is_some() {
        pseudo(":path", &head.path);
    }
    if let Some(protocol) = &head.protocol {
        pseudo(":protocol", protocol);
    }
    write_fields(&head.fields, &mut put);
    if priority != Priority::default() && !head.fields.contains("priority") {
        let value = [b'u', b'=', b'0' + priority.0.min(7)];
        put(Field {
            name: b"priority",
            value: &value,
            sensitive: false,
        });
    }
}

/// Hands the header list of a response to `put`.
pub(crate) fn write_response(head: &ResponseHead, mut put: impl FnMut(Field<'_>)) {
    let status = head.status.clamp(100, 999);
    let digits = [
        b'0' + (status / 100) as u8,
        b'0' + (status / 10 % 10) as u8,
        b'0' + (status % 10) as u8,
    ];
    put(Field {
        name: b":status",
        value: &digits,
        sensitive: false,
    });
    write_fields(&head.fields, &mut put);
}

/// Hands fields to `put`, all but those of HTTP/1.1's connections. Odd control bytes in the values
/// of responses pass, as browsers accept them over HTTP/1.1.
pub(crate) fn write_fields(fields: &Fields, mut put: impl FnMut(Field<'_>)) {
    fields
        .iter()
        .filter(|f| !is_connection_specific(f.name) && f.name != b"http2-settings")
        .for_each(&mut put);
}

/// Returns true if a request can be written for a peer that accepts header lists of up to `limit`
/// bytes.
pub(crate) fn can_write_request(head: &RequestHead, limit: usize) -> bool {
    let plain = |text: &str| text.bytes().all(|b| b > b' ' && b != 0x7f);
    let target = match (head.is_connect(), &head.protocol) {
        (true, None) => head.path.is_empty(),
        (false, Some(_)) => false,
        _ => check_path(&head.method, &head.path).is_ok(),
    };
    let protocol = head.protocol.as_deref().unwrap_or_default();
    let size =
        head.method.as_str().len() + head.authority.len() + head.path.len() + protocol.len() + 64;
    let size = size + head.fields.text_len() + (head.fields.len() + 6) * FIELD_OVERHEAD;
    target
        && !head.authority.is_empty()
        && plain(&head.authority)
        && plain(&head.path)
        && plain(protocol)
        && size <= limit
}

#[cfg(test)]
mod tests;

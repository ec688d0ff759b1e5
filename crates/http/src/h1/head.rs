//! The lines of a head: where it ends, and its fields sorted into those for the next hop and those
//! of this connection. RFC 9112 sections 2.2 and 5.

use std::borrow::Cow;

use memchr::{memchr, memchr_iter, memchr2};

use super::hop::{Connection, named_by_connection};
use super::{Limits, Version};
use crate::Fields;
use crate::message::{content_length, is_framing_lookalike, is_token};

/// Longest field name taken; the longest one registered has 44 bytes.
const MAX_NAME: usize = 256;
/// Upper bound of [`Limits::head`], so that offsets within [`Fields`] fit.
const MAX_HEAD: usize = 16 << 20;
/// A cookie value shorter than this could be guessed whole through a compression context (RFC 7541
/// section 7.1.3).
const GUESSABLE_COOKIE: usize = 20;

static TOKEN: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = is_token(byte as u8);
        byte += 1;
    }
    table
};

/// An error in the lines or fields of a request or response head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadHead {
    /// A line ends with LF alone, or holds a CR.
    #[error("a line does not end with CR LF")]
    LineEnd,
    /// A line without colon, or a name that is empty or no token.
    #[error("a field has no valid name")]
    FieldName,
    /// White space between field name and colon.
    #[error("white space before the colon of a field")]
    SpaceBeforeColon,
    /// A line that continues the one before (obs-fold).
    #[error("a field is folded over several lines")]
    ObsFold,
    /// A control byte in a field value; in responses only NUL counts.
    #[error("a field value holds control bytes")]
    FieldValue,
    /// More bytes than [`Limits::head`].
    #[error("the head is too large")]
    TooLarge,
    /// More fields than [`Limits::fields`].
    #[error("the head has too many fields")]
    TooManyFields,
    /// `Content-Length` is no number or says several things.
    #[error("content-length is not one decimal number")]
    ContentLength,
    /// `Transfer-Encoding` that leaves open where the body ends, or in HTTP/1.0.
    #[error("transfer-encoding does not end with chunked, once, in HTTP/1.1")]
    TransferEncoding,
    /// A transfer coding besides `chunked`.
    #[error("a transfer coding that is not implemented")]
    UnknownCoding,
    /// Both `Content-Length` and `Transfer-Encoding`.
    #[error("both content-length and transfer-encoding")]
    BothLengths,
    /// A framing field written with `_` for `-`, which some servers read as the field itself.
    #[error("a framing field is written with underscores")]
    Underscore,
    /// `Upgrade` is not a list of protocol names.
    #[error("upgrade does not name protocols")]
    Upgrade,
}

/// The sender of a head: errors in requests are refused, some in responses are repaired.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sender {
    Client,
    Server,
}

/// A complete head, cut into start line and field lines.
pub(super) struct Lines<'a> {
    pub(super) start: &'a [u8],
    /// Field lines, each with its CR LF.
    fields: &'a [u8],
    folded: bool,
    /// Bytes from the first of the start line to the end of the empty line.
    pub(super) len: usize,
}

/// Finds the end of a head; `None` while it has not arrived. Looks at line ends only, so that
/// repeating it for a head that comes in small pieces costs little.
pub(super) fn split<'a>(buf: &'a [u8], limits: &Limits) -> Result<Option<Lines<'a>>, HeadEnd> {
    let limit = limits.head.min(MAX_HEAD);
    let window = &buf[..buf.len().min(limit)];
    let mut first = None;
    let mut line_start = 0;
    let mut folded = false;
    for lf in memchr_iter(b'\n', window) {
        if lf == 0 || window[lf - 1] != b'\r' {
            return Err(HeadEnd::LineEnd);
        }
        let Some(start_end) = first else {
            first = Some(lf - 1);
            line_start = lf + 1;
            continue;
        };
        if lf - 1 == line_start {
            let fields = &window[start_end + 2..line_start];
            return Ok(Some(Lines {
                start: &window[..start_end],
                fields,
                folded,
                len: lf + 1,
            }));
        }
        folded |= matches!(window[line_start], b' ' | b'\t');
        line_start = lf + 1;
    }
    match first {
        _ if buf.len() < limit => Ok(None),
        Some(_) => Err(HeadEnd::HeadTooLarge),
        None => Err(HeadEnd::StartLineTooLong),
    }
}

/// Why [`split`] gives up.
pub(super) enum HeadEnd {
    LineEnd,
    HeadTooLarge,
    StartLineTooLong,
}

/// The fields of a head, sorted.
pub(super) struct Sorted {
    /// For the next hop; without `host` when a client sent it.
    pub(super) fields: Fields,
    /// Values of `Host`, only the first kept; clients only.
    pub(super) host: Option<Vec<u8>>,
    /// `Host` came more than once.
    pub(super) host_repeated: bool,
    pub(super) connection: Connection,
    /// Coding of the body, when `Transfer-Encoding` is there.
    pub(super) chunked: bool,
    /// `Content-Length`.
    pub(super) length: Option<u64>,
    pub(super) upgrade: Option<String>,
}

impl Lines<'_> {
    /// Reads the field lines.
    pub(super) fn sort(
        &self,
        sender: Sender,
        version: Version,
        limits: &Limits,
    ) -> Result<Sorted, BadHead> {
        let region = self.unfolded(sender)?;
        let lines = memchr_iter(b'\n', &region).count();
        let mut sorter = Sorter::new(sender, region.len(), lines, limits);
        // Every LF follows a CR. With no other CR and no NUL, the values need no check for them.
        let is_plain = memchr_iter(b'\r', &region).count() == lines && memchr(0, &region).is_none();
        let mut line_start = 0;
        for lf in memchr_iter(b'\n', &region) {
            let (name, value) = split_field(&region[line_start..lf - 1], sender, is_plain)?;
            sorter.add(name, value)?;
            line_start = lf + 1;
        }
        sorter.finish(version)
    }

    /// RFC 9112 section 5.2: a proxy replaces folds in responses by spaces, and may refuse them in
    /// requests.
    fn unfolded(&self, sender: Sender) -> Result<Cow<'_, [u8]>, BadHead> {
        if !self.folded {
            return Ok(Cow::Borrowed(self.fields));
        }
        // A fold right after the start line continues nothing.
        if sender == Sender::Client || matches!(self.fields.first(), Some(b' ' | b'\t')) {
            return Err(BadHead::ObsFold);
        }
        let mut copy = self.fields.to_vec();
        for lf in memchr_iter(b'\n', self.fields) {
            if matches!(self.fields.get(lf + 1), Some(b' ' | b'\t')) {
                copy[lf - 1] = b' ';
                copy[lf] = b' ';
            }
        }
        Ok(Cow::Owned(copy))
    }
}

/// Splits a field line into name and value without surrounding white space (RFC 9112 section 5.1).
pub(super) fn parse_field(line: &[u8], sender: Sender) -> Result<(&[u8], &[u8]), BadHead> {
    split_field(line, sender, false)
}

/// Does the same. `is_plain` tells that the line is known to have neither CR nor NUL.
fn split_field(line: &[u8], sender: Sender, is_plain: bool) -> Result<(&[u8], &[u8]), BadHead> {
    let name_end = line
        .iter()
        .position(|&b| !TOKEN[usize::from(b)])
        .ok_or(BadHead::FieldName)?;
    let mut colon = name_end;
    while matches!(line.get(colon), Some(b' ' | b'\t')) {
        colon += 1;
    }
    if line.get(colon) != Some(&b':') || name_end == 0 {
        return Err(BadHead::FieldName);
    }
    if colon != name_end && sender == Sender::Client {
        return Err(BadHead::SpaceBeforeColon);
    }
    if name_end > MAX_NAME {
        return Err(BadHead::TooLarge);
    }
    let value = &line[colon + 1..];
    let bad = if is_plain {
        None
    } else {
        memchr2(b'\r', 0, value)
    };
    match bad.map(|at| value[at]) {
        None => {}
        Some(0) if !value.contains(&b'\r') => return Err(BadHead::FieldValue),
        Some(_) => return Err(BadHead::LineEnd),
    }
    // RFC 9110 section 5.5: besides CR, LF and NUL, control bytes may be kept; browsers do, so
    // responses keep them.
    if sender == Sender::Client && !is_field_value(value) {
        return Err(BadHead::FieldValue);
    }
    Ok((&line[..name_end], trim_ows(value)))
}

/// Cuts off optional white space: SP and HTAB only (RFC 9110 section 5.6.3).
pub(super) fn trim_ows(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = bytes {
        bytes = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}

/// Returns true if all bytes may stand in a field value: no control bytes but HTAB (RFC 9110
/// section 5.5).
fn is_field_value(value: &[u8]) -> bool {
    value.iter().fold(true, |ok, &b| {
        ok & (((b >= 0x20) & (b != 0x7f)) | (b == b'\t'))
    })
}

/// Separates end-to-end fields from those of this connection.
struct Sorter<'a> {
    sender: Sender,
    limit: usize,
    count: usize,
    sorted: Sorted,
    /// Fields that `Connection` names besides those that are always of one hop.
    named: Vec<&'a [u8]>,
    codings: Option<Codings>,
    has_length: bool,
    /// The content length, if it was given once and in its usual form.
    plain_length: Option<u64>,
}

impl<'a> Sorter<'a> {
    /// Creates a sorter for `lines` field lines with `bytes` bytes.
    fn new(sender: Sender, bytes: usize, lines: usize, limits: &Limits) -> Self {
        let lines = lines.min(limits.fields);
        let sorted = Sorted {
            fields: Fields::with_capacity(lines, bytes.saturating_sub(4 * lines)),
            host: None,
            host_repeated: false,
            connection: Connection::default(),
            chunked: false,
            length: None,
            upgrade: None,
        };
        Self {
            sender,
            limit: limits.fields,
            count: 0,
            sorted,
            named: Vec::new(),
            codings: None,
            has_length: false,
            plain_length: None,
        }
    }

    fn add(&mut self, name: &'a [u8], value: &'a [u8]) -> Result<(), BadHead> {
        self.count += 1;
        if self.count > self.limit {
            return Err(BadHead::TooManyFields);
        }
        if is_framing_lookalike(name) {
            // A client that sends one attacks the server behind; an origin may just be old.
            return match self.sender {
                Sender::Client => Err(BadHead::Underscore),
                Sender::Server => Ok(()),
            };
        }
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        match name.len() {
            2 if is("te") => {
                if value
                    .split(|&b| b == b',')
                    .any(|t| trim_ows(t).eq_ignore_ascii_case(b"trailers"))
                {
                    self.sorted.fields.set("te", "trailers");
                }
            }
            4 if is("host") && self.sender == Sender::Client => {
                self.sorted.host_repeated |= self.sorted.host.is_some();
                self.sorted.host = Some(value.to_vec());
            }
            7 if is("upgrade") => self.add_upgrade(value)?,
            10 if is("connection") => self.add_connection(value)?,
            10 if is("keep-alive") => {}
            14 if is("content-length") => {
                let is_first = !std::mem::replace(&mut self.has_length, true);
                self.plain_length = plain_number(value).filter(|_| is_first);
                self.sorted.fields.push(name, value);
            }
            16 if is("proxy-connection") => {}
            17 if is("transfer-encoding") => self.codings.get_or_insert_default().add(value),
            13 | 19 if is("authorization") || is("proxy-authorization") => {
                self.sorted.fields.push_sensitive(name, value);
            }
            6 if is("cookie") && value.len() < GUESSABLE_COOKIE => {
                self.sorted.fields.push_sensitive(name, value)
            }
            _ => self.sorted.fields.push(name, value),
        }
        Ok(())
    }

    fn add_connection(&mut self, value: &'a [u8]) -> Result<(), BadHead> {
        for option in value.split(|&b| b == b',').map(trim_ows) {
            if !option.is_empty() && !self.sorted.connection.note(option) {
                self.named.push(option);
            }
        }
        if self.named.len() > self.limit {
            Err(BadHead::TooManyFields)
        } else {
            Ok(())
        }
    }

    fn add_upgrade(&mut self, value: &[u8]) -> Result<(), BadHead> {
        let allowed = |&b: &u8| is_token(b) || matches!(b, b'/' | b',' | b' ' | b'\t');
        let text = std::str::from_utf8(value)
            .ok()
            .filter(|_| value.iter().all(allowed));
        let text = text.filter(|t| !t.is_empty()).ok_or(BadHead::Upgrade)?;
        match &mut self.sorted.upgrade {
            Some(list) => {
                list.push_str(", ");
                list.push_str(text);
            }
            none => *none = Some(text.to_owned()),
        }
        Ok(())
    }

    fn finish(self, version: Version) -> Result<Sorted, BadHead> {
        let mut sorted = self.sorted;
        if self.plain_length.is_some() {
            sorted.length = self.plain_length;
        } else if self.has_length {
            sorted.length = content_length(&sorted.fields).map_err(|_| BadHead::ContentLength)?;
            // Repetition and leading zeros are not passed on: a reader behind us might see an octal
            // or another value.
            if let Some(length) = sorted.length {
                let text = length.to_string();
                if sorted
                    .fields
                    .get_all("content-length")
                    .ne([text.as_bytes()])
                {
                    sorted.fields.set("content-length", text);
                }
            }
        }
        if let Some(codings) = self.codings {
            if version == Version::Http10 {
                return Err(BadHead::TransferEncoding);
            }
            if self.has_length {
                return Err(BadHead::BothLengths);
            }
            codings.check()?;
            sorted.chunked = true;
        }
        if !sorted.connection.upgrade || version == Version::Http10 {
            sorted.upgrade = None;
        }
        if !self.named.is_empty() {
            sorted
                .fields
                .retain(|f| !named_by_connection(&self.named, f.name));
        }
        Ok(sorted)
    }
}

/// Reads a decimal number of at most 18 digits without leading zeros.
fn plain_number(text: &[u8]) -> Option<u64> {
    let is_usual = match text {
        [b'0'] => true,
        [first, ..] => *first != b'0' && text.len() <= 18,
        [] => false,
    };
    if !is_usual || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(
        text.iter()
            .fold(0, |number, byte| number * 10 + u64::from(byte - b'0')),
    )
}

/// The combined content of the `Transfer-Encoding` lines of a message.
#[derive(Default)]
struct Codings {
    count: usize,
    chunked: usize,
    last_is_chunked: bool,
    malformed: bool,
}

impl Codings {
    fn add(&mut self, value: &[u8]) {
        for coding in value.split(|&b| b == b',').map(trim_ows) {
            self.count += 1;
            self.malformed |= coding.is_empty() || !coding.iter().all(|&b| TOKEN[usize::from(b)]);
            self.last_is_chunked = coding.eq_ignore_ascii_case(b"chunked");
            self.chunked += usize::from(self.last_is_chunked);
        }
    }

    fn check(&self) -> Result<(), BadHead> {
        match (self.count, self.chunked) {
            _ if self.malformed => Err(BadHead::TransferEncoding),
            (1, 1) => Ok(()),
            (_, 0) => Err(BadHead::UnknownCoding),
            (_, 1) if self.last_is_chunked => Err(BadHead::UnknownCoding),
            _ => Err(BadHead::TransferEncoding),
        }
    }
}

/// Reads `HTTP/1.0` or `HTTP/1.1`.
pub(super) fn parse_version(bytes: &[u8]) -> Result<Version, BadVersion> {
    match bytes {
        b"HTTP/1.1" => Ok(Version::Http11),
        b"HTTP/1.0" => Ok(Version::Http10),
        [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
            if major.is_ascii_digit() && minor.is_ascii_digit() =>
        {
            Err(BadVersion::Unsupported)
        }
        _ => Err(BadVersion::Malformed),
    }
}

/// The reason for which [`parse_version`] fails.
pub(super) enum BadVersion {
    Unsupported,
    Malformed,
}

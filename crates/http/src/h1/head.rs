//! The lines of a head: where it ends, and its fields sorted into those for the next hop and those
//! of this connection. RFC 9112 sections 2.2 and 5.

mod codings;
mod name;

use std::borrow::Cow;

use memchr::{memchr, memchr_iter, memchr2};

use codings::Codings;
pub(super) use name::MAX_NAME;
use name::{LOWER, parse_name};

use super::hop::{ConnectionOptions, named_by_connection};
use super::{Limits, Version};
use crate::Fields;
use crate::message::{content_length, is_framing_lookalike, is_token};

/// The largest number of options in `Connection`. Each is compared with each field.
const MAX_OPTIONS: usize = 200;
/// Upper bound of [`Limits::head`], so that offsets within [`Fields`] fit.
const MAX_HEAD: usize = 16 << 20;
/// A cookie value shorter than this could be guessed whole through a compression context (RFC 7541
/// section 7.1.3).
const GUESSABLE_COOKIE: usize = 20;

/// An error in the lines or fields of a request or response head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadHead {
    /// A line holds a CR, or a line of a request ends with LF alone.
    #[error("a line does not end with CR LF")]
    LineEnd,
    /// A line of a request without colon, or with a name that is empty or no token.
    #[error("a field has no valid name")]
    FieldName,
    /// White space between field name and colon, in a request.
    #[error("white space before the colon of a field")]
    SpaceBeforeColon,
    /// A line of a request that continues the one before (obs-fold).
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
    /// `Transfer-Encoding` that leaves open where the body ends, or chunks in HTTP/1.0.
    #[error("transfer-encoding does not end with chunked, once, in HTTP/1.1")]
    TransferEncoding,
    /// A transfer coding besides `chunked`.
    #[error("a transfer coding that is not implemented")]
    UnknownCoding,
    /// Both `Content-Length` and `Transfer-Encoding` in a request.
    #[error("both content-length and transfer-encoding")]
    BothLengths,
    /// A framing field written with `_` for `-`, which some servers read as the field itself.
    #[error("a framing field is written with underscores")]
    Underscore,
    /// `Upgrade` of a request is not a list of protocol names.
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
    /// Field lines, each with CR LF.
    fields: Cow<'a, [u8]>,
    /// The number of field lines.
    count: usize,
    /// The offsets at which the first field lines end, unless lines were copied.
    ends: [u32; KNOWN_ENDS],
    folded: bool,
    /// Bytes from the first of the start line to the end of the empty line.
    pub(super) len: usize,
}

/// The number of field lines whose ends are known, which suffices for nearly all responses.
const KNOWN_ENDS: usize = 24;

/// Finds the end of a head; `None` while it has not arrived. Looks at line ends only, so that
/// repeating it for a head that comes in small pieces costs little.
///
/// A line of a response may end with LF alone (RFC 9112 section 2.2), as browsers permit. In a
/// request, other readers could see other lines.
pub(super) fn split<'a>(
    buf: &'a [u8],
    sender: Sender,
    limits: &Limits,
) -> Result<Option<Lines<'a>>, HeadEnd> {
    let limit = limits.head.min(MAX_HEAD);
    let window = &buf[..buf.len().min(limit)];
    let mut first = None;
    let mut line_start = 0;
    let mut count = 0;
    let mut ends = [0; KNOWN_ENDS];
    let (mut folded, mut has_bare) = (false, false);
    for lf in memchr_iter(b'\n', window) {
        let is_bare = lf == line_start || window[lf - 1] != b'\r';
        if is_bare && sender == Sender::Client {
            return Err(HeadEnd::LineEnd);
        }
        has_bare |= is_bare;
        let line_end = lf - usize::from(!is_bare);
        let Some((start_end, fields_at)) = first else {
            first = Some((line_end, lf + 1));
            line_start = lf + 1;
            continue;
        };
        if line_end == line_start {
            let fields = &window[fields_at..line_start];
            return Ok(Some(Lines {
                start: &window[..start_end],
                fields: match has_bare {
                    true => Cow::Owned(with_cr(fields)),
                    false => Cow::Borrowed(fields),
                },
                count,
                ends,
                folded,
                len: lf + 1,
            }));
        }
        // Otherwise each piece of a large head with short lines would cost a search through them.
        if count > limits.fields {
            return Err(HeadEnd::TooManyLines);
        }
        if let Some(end) = ends.get_mut(count) {
            // A head has at most `MAX_HEAD` bytes.
            *end = (line_end - fields_at) as u32;
        }
        count += 1;
        folded |= matches!(window[line_start], b' ' | b'\t');
        line_start = lf + 1;
    }
    match first {
        _ if buf.len() < limit => Ok(None),
        Some(_) => Err(HeadEnd::HeadTooLarge),
        None => Err(HeadEnd::StartLineTooLong),
    }
}

/// Returns the lines, each with CR LF at its end.
fn with_cr(lines: &[u8]) -> Vec<u8> {
    let mut copy = Vec::with_capacity(lines.len() + 32);
    for line in lines.split_inclusive(|&byte| byte == b'\n') {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        copy.extend_from_slice(line.strip_suffix(b"\r").unwrap_or(line));
        copy.extend_from_slice(b"\r\n");
    }
    copy
}

/// Why [`split`] gives up.
pub(super) enum HeadEnd {
    LineEnd,
    HeadTooLarge,
    StartLineTooLong,
    TooManyLines,
}

/// The fields of a head, sorted.
pub(super) struct Sorted {
    /// For the next hop; without `host` when a client sent it.
    pub(super) fields: Fields,
    /// Values of `Host`, only the first kept; clients only.
    pub(super) host: Option<Vec<u8>>,
    /// `Host` came more than once.
    pub(super) host_repeated: bool,
    pub(super) connection: ConnectionOptions,
    /// Coding of the body, when `Transfer-Encoding` is there.
    pub(super) chunked: bool,
    /// `Content-Length`.
    pub(super) length: Option<u64>,
    pub(super) upgrade: Option<String>,
    /// True if the fields left the framing open, and were repaired; servers only.
    pub(super) is_repaired: bool,
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
        let mut sorter = Sorter::new(sender, region.len(), self.count, limits);
        let has_nul = memchr(0, &region).is_some();
        let mut lower = [0; MAX_NAME];
        let mut ends = self.ends(&region).iter();
        let mut rest = &region[..];
        while !rest.is_empty() {
            let (name, value_at) = match parse_name(rest, sender, &mut lower) {
                Ok(found) => found,
                Err(bad) if sender == Sender::Client => return Err(bad),
                // The whole line is no field.
                Err(_) => (&[][..], 0),
            };
            let value = &rest[value_at..];
            // No name contains a line end, so the known one lies behind the name.
            let end = match ends.next() {
                Some(end) => (*end as usize + rest.len()).checked_sub(region.len() + value_at),
                None => memchr(b'\r', value),
            };
            let end = end.ok_or(BadHead::LineEnd)?;
            if value.get(end + 1) != Some(&b'\n') {
                return Err(BadHead::LineEnd);
            }
            let (value, line_end) = value.split_at(end);
            if has_nul && value.contains(&0) {
                return Err(BadHead::FieldValue);
            }
            check_value(value, sender)?;
            if name.is_empty() {
                sorter.leave_out(value)?;
            } else {
                let line = &rest[..value_at + end];
                if sender == Sender::Server
                    && is_framing(name)
                    && (has_space_before(line, value_at) || self.has_fold(&region, rest, line))
                {
                    sorter.sorted.is_repaired = true;
                }
                sorter.add(name, trim_ows(value))?;
            }
            rest = &line_end[2..];
        }
        sorter.finish(version)
    }

    /// Returns the ends of the lines in `region`, the lines without folds, if all are known and no
    /// value has a CR.
    fn ends(&self, region: &[u8]) -> &[u32] {
        let is_same = !self.folded && matches!(self.fields, Cow::Borrowed(_));
        match self.ends.get(..self.count) {
            Some(ends) if is_same && memchr_iter(b'\r', region).count() == self.count => ends,
            _ => &[],
        }
    }

    /// Returns whether `line`, with which the `rest` of the unfolded lines begins, was folded.
    fn has_fold(&self, region: &[u8], rest: &[u8], line: &[u8]) -> bool {
        let at = region.len() - rest.len();
        // The replacement of folds keeps the offsets.
        self.folded && self.fields[at..at + line.len()].contains(&b'\n')
    }

    /// RFC 9112 section 5.2: a proxy replaces folds in responses by spaces, and may refuse them in
    /// requests.
    fn unfolded(&self, sender: Sender) -> Result<Cow<'_, [u8]>, BadHead> {
        if !self.folded {
            return Ok(Cow::Borrowed(&self.fields));
        }
        if sender == Sender::Client {
            return Err(BadHead::ObsFold);
        }
        // A fold right after the start line continues nothing, and stays a line without a name.
        let mut copy = self.fields.to_vec();
        for lf in memchr_iter(b'\n', &self.fields) {
            if matches!(self.fields.get(lf + 1), Some(b' ' | b'\t')) {
                copy[lf - 1] = b' ';
                copy[lf] = b' ';
            }
        }
        Ok(Cow::Owned(copy))
    }
}

/// Splits a field line into name and value without surrounding white space (RFC 9112 section 5.1).
/// The name is in lower case, in the memory that the caller passes.
pub(super) fn parse_field<'a, 'b>(
    line: &'a [u8],
    sender: Sender,
    lower: &'b mut [u8; MAX_NAME],
) -> Result<(&'b [u8], &'a [u8]), BadHead> {
    let (name, value_at) = parse_name(line, sender, lower)?;
    let value = &line[value_at..];
    match memchr2(b'\r', 0, value).map(|at| value[at]) {
        None => {}
        Some(0) if !value.contains(&b'\r') => return Err(BadHead::FieldValue),
        Some(_) => return Err(BadHead::LineEnd),
    }
    check_value(value, sender)?;
    Ok((name, trim_ows(value)))
}

/// Checks a value without CR, LF and NUL. Other control bytes may be kept (RFC 9110 section 5.5);
/// browsers keep them, so responses do.
fn check_value(value: &[u8], sender: Sender) -> Result<(), BadHead> {
    if sender == Sender::Client && !is_field_value(value) {
        return Err(BadHead::FieldValue);
    }
    Ok(())
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

/// Returns true if a field (lower-case name) decides where the message or the connection ends.
fn is_framing(name: &[u8]) -> bool {
    matches!(
        name,
        b"connection" | b"content-length" | b"transfer-encoding"
    )
}

/// Returns true if white space precedes the colon of a line. Some readers then see no field.
fn has_space_before(line: &[u8], value_at: usize) -> bool {
    matches!(line[..value_at], [.., b' ' | b'\t', b':'])
}

/// Words of the fields that decide about framing or caching.
const WEIGHTY: [&[u8]; 16] = [
    b"length",
    b"encoding",
    b"chunked",
    b"connection",
    b"cache",
    b"cookie",
    b"vary",
    b"expires",
    b"pragma",
    b"private",
    b"no-store",
    b"max-age",
    b"etag",
    b"modified",
    b"authoriz",
    b"range",
];

/// Returns true if a line that is no field may be meant as one that decides about framing or
/// caching.
fn is_weighty(line: &[u8]) -> bool {
    let line = line.to_ascii_lowercase();
    let has = |word: &&[u8]| line.windows(word.len()).any(|part| part == *word);
    WEIGHTY.iter().any(has)
}

/// Returns true if a value must not enter a compression context (RFC 7541 section 7.1.3).
fn is_sensitive(name: &[u8], value: &[u8]) -> bool {
    match name {
        b"authorization" | b"proxy-authorization" => true,
        b"cookie" => value.len() < GUESSABLE_COOKIE,
        _ => false,
    }
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
            connection: ConnectionOptions::default(),
            chunked: false,
            length: None,
            upgrade: None,
            is_repaired: false,
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

    fn count(&mut self) -> Result<(), BadHead> {
        self.count += 1;
        match self.count > self.limit {
            true => Err(BadHead::TooManyFields),
            false => Ok(()),
        }
    }

    /// Leaves out a line of a response that is no field, as browsers do.
    fn leave_out(&mut self, line: &[u8]) -> Result<(), BadHead> {
        self.sorted.is_repaired |= is_weighty(line);
        self.count()
    }

    /// Adds a field, whose name is in lower case.
    fn add(&mut self, name: &[u8], value: &'a [u8]) -> Result<(), BadHead> {
        self.count()?;
        if is_framing_lookalike(name) {
            // A client that sends one attacks the server behind; an origin may just be old.
            return match self.sender {
                Sender::Client => Err(BadHead::Underscore),
                Sender::Server => Ok(()),
            };
        }
        match name {
            b"te" => {
                if value
                    .split(|&b| b == b',')
                    .any(|t| trim_ows(t).eq_ignore_ascii_case(b"trailers"))
                {
                    self.sorted.fields.set("te", "trailers");
                }
            }
            b"host" if self.sender == Sender::Client => {
                self.sorted.host_repeated |= self.sorted.host.is_some();
                self.sorted.host = Some(value.to_vec());
            }
            b"upgrade" => self.add_upgrade(value)?,
            b"connection" => self.add_connection(value)?,
            b"http2-settings" | b"keep-alive" | b"proxy-connection" => {}
            b"content-length" => {
                let is_first = !std::mem::replace(&mut self.has_length, true);
                self.plain_length = plain_number(value).filter(|_| is_first);
                self.sorted.fields.push_lower(name, value, false);
            }
            b"transfer-encoding" => self.codings.get_or_insert_default().add(value),
            _ => self
                .sorted
                .fields
                .push_lower(name, value, is_sensitive(name, value)),
        }
        Ok(())
    }

    fn add_connection(&mut self, value: &'a [u8]) -> Result<(), BadHead> {
        for option in value.split(|&b| b == b',').map(trim_ows) {
            if !option.is_empty() && !self.sorted.connection.note(option) {
                self.named.push(option);
            }
        }
        if self.named.len() > self.limit.min(MAX_OPTIONS) {
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
        let text = match text.filter(|text| !text.is_empty()) {
            Some(text) => text,
            None if self.sender == Sender::Client => return Err(BadHead::Upgrade),
            // Only the names of a 101 count.
            None => return Ok(()),
        };
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
            sorted.chunked = match self.sender {
                Sender::Client => codings.of_request(version, self.has_length)?,
                Sender::Server => {
                    let (chunked, is_sure) = codings.of_response(version)?;
                    sorted.is_repaired |= !is_sure || (chunked && self.has_length);
                    chunked
                }
            };
            // RFC 9112 section 6.3, item 3: the length is removed before the message goes on.
            if sorted.chunked && sorted.length.take().is_some() {
                sorted.fields.remove("content-length");
            }
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

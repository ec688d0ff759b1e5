//! Response heads. RFC 9112 sections 4, 6.3 and 9.3.

use super::head::{BadHead, HeadEnd, Lines, Sender, Sorted, split};
use super::{Framing, Limits, Version};
use crate::message::{Method, ResponseHead, content_length};

/// How every status line begins.
const STATUS_LINE: &[u8] = b"HTTP/";

/// The bytes of empty lines before a status line after which no other one is skipped.
const EMPTY_LINES: usize = 4;

/// A response head and its effect on the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The head for the next hop.
    pub head: ResponseHead,
    /// Version of the message.
    pub version: Version,
    /// How the body is delimited.
    pub framing: Framing,
    /// The connection can carry another request after this response.
    pub keep_alive: bool,
    /// The protocol that follows a 101.
    pub upgrade: Option<String>,
    /// The rules leave the framing or a line about framing or caching open, and readers may differ.
    /// The head and `framing` are those of browsers, and the message that is passed on is clear.
    /// The connection carries no other request (`keep_alive` is false), and nothing may store the
    /// response or serve another request with it.
    pub is_repaired: bool,
}

/// Why a response cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadResponse {
    /// Lines or fields.
    #[error(transparent)]
    Head(#[from] BadHead),
    /// The input does not begin with a status line.
    #[error("the response does not begin with a status line")]
    StatusLine,
    /// A version other than 1.0 and 1.1.
    #[error("HTTP version not supported")]
    UnsupportedVersion,
}

/// Reads the head of a response to a request of `method` from the beginning of `buf`: the response
/// and the bytes it took, or `None` while it is not all there. Call it again with more bytes, not
/// with other ones.
///
/// Empty lines before the head are skipped, as browsers do. On a connection that has carried
/// another response, they may be the end of that.
pub fn parse_response(
    buf: &[u8],
    method: &Method,
    limits: &Limits,
) -> Result<Option<(Response, usize)>, BadResponse> {
    let skipped = empty_lines(buf);
    let buf = &buf[skipped..];
    if buf == b"\r" && skipped < EMPTY_LINES {
        return Ok(None);
    }
    let known = buf.len().min(STATUS_LINE.len());
    if !buf[..known].eq_ignore_ascii_case(&STATUS_LINE[..known]) {
        return Err(BadResponse::StatusLine);
    }
    let lines = match split(buf, Sender::Server, limits) {
        Ok(Some(lines)) => lines,
        Ok(None) => return Ok(None),
        Err(HeadEnd::LineEnd) => return Err(BadHead::LineEnd.into()),
        Err(HeadEnd::TooManyLines) => return Err(BadHead::TooManyFields.into()),
        Err(HeadEnd::HeadTooLarge | HeadEnd::StartLineTooLong) => {
            return Err(BadHead::TooLarge.into());
        }
    };
    let (version, status) = parse_status_line(lines.start)?;
    let mut response = parse_fields(&lines, version, status, method, limits)?;
    if skipped > 0 {
        (response.is_repaired, response.keep_alive) = (true, false);
    }
    Ok(Some((response, skipped + lines.len)))
}

/// Returns the length of the empty lines at the beginning.
fn empty_lines(buf: &[u8]) -> usize {
    let mut at = 0;
    while at < EMPTY_LINES {
        match buf[at..] {
            [b'\r', b'\n', ..] => at += 2,
            [b'\n', ..] => at += 1,
            _ => break,
        }
    }
    at
}

/// `HTTP/1.1 200 OK`; the space after the code may be missing with the phrase, as some servers do.
/// More white space separates the words too (RFC 9112 section 4).
fn parse_status_line(line: &[u8]) -> Result<(Version, u16), BadResponse> {
    let is_blank = |b: &u8| matches!(b, b' ' | b'\t');
    let end = line.iter().position(is_blank);
    let (version, rest) = line.split_at(end.ok_or(BadResponse::StatusLine)?);
    let version = parse_version(&version[STATUS_LINE.len()..])?;
    let blanks = rest.iter().take_while(|b| is_blank(b)).count();
    let (digits, phrase) = rest[blanks..]
        .split_at_checked(3)
        .filter(|(digits, phrase)| {
            digits[0] != b'0'
                && digits.iter().all(u8::is_ascii_digit)
                && phrase.first().is_none_or(is_blank)
        })
        .ok_or(BadResponse::StatusLine)?;
    if phrase.iter().any(|b| matches!(b, b'\r' | 0)) {
        return Err(BadHead::LineEnd.into());
    }
    Ok((
        version,
        digits.iter().fold(0, |n, &b| n * 10 + u16::from(b - b'0')),
    ))
}

/// Reads the number behind `HTTP/`. Without a minor number it is 1.0, and a later minor number
/// counts as 1.1 (RFC 9110 section 2.5).
fn parse_version(number: &[u8]) -> Result<Version, BadResponse> {
    match number {
        b"1" | b"1.0" => Ok(Version::Http10),
        [b'1', b'.', b'1'..=b'9'] => Ok(Version::Http11),
        [b'0'..=b'9'] | [b'0'..=b'9', b'.', b'0'..=b'9'] => Err(BadResponse::UnsupportedVersion),
        _ => Err(BadResponse::StatusLine),
    }
}

fn parse_fields(
    lines: &Lines<'_>,
    version: Version,
    status: u16,
    method: &Method,
    limits: &Limits,
) -> Result<Response, BadResponse> {
    let mut sorted = lines.sort(Sender::Server, version, limits)?;
    let framing = match sorted.length {
        _ if has_no_body(status, method) => Framing::None,
        _ if sorted.chunked => Framing::Chunked,
        Some(length) => Framing::Length(length),
        None => Framing::UntilClose,
    };
    let bodiless = forbids_length(status, method);
    // A server that announces a body where none can be may well send one: nothing after it can be
    // trusted.
    let confused = bodiless && (sorted.chunked || sorted.length.is_some_and(|n| n > 0));
    if bodiless {
        sorted.fields.remove("content-length");
    }
    let Sorted {
        fields,
        connection,
        upgrade,
        is_repaired,
        ..
    } = sorted;
    Ok(Response {
        keep_alive: framing != Framing::UntilClose
            && !confused
            && !is_repaired
            && connection.is_persistent(version),
        head: ResponseHead { status, fields },
        version,
        framing,
        upgrade: upgrade.filter(|_| status == 101),
        is_repaired,
    })
}

/// Returns true if a response has no body (RFC 9112 section 6.3, items 1 and 2).
fn has_no_body(status: u16, method: &Method) -> bool {
    *method == Method::Head || status == 304 || forbids_length(status, method)
}

/// Returns true if a response must not carry `content-length` (RFC 9110 section 8.6). A received
/// one is ignored.
pub(super) fn forbids_length(status: u16, method: &Method) -> bool {
    status < 200 || status == 204 || (*method == Method::Connect && (200..300).contains(&status))
}

/// How to delimit the body of a response that is passed on to a client of `version`: none where
/// none can be, by `content-length` where it is known, else chunked, or by closing for HTTP/1.0.
pub fn response_framing(head: &ResponseHead, method: &Method, version: Version) -> Framing {
    if has_no_body(head.status, method) {
        return Framing::None;
    }
    match (content_length(&head.fields), version) {
        (Ok(Some(length)), _) => Framing::Length(length),
        (_, Version::Http11) => Framing::Chunked,
        (_, Version::Http10) => Framing::UntilClose,
    }
}

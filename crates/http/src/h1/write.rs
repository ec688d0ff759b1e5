//! Heads and chunks as bytes. RFC 9112 sections 3, 4 and 7.1.
//!
//! Field names get capitals at word starts: case means nothing, but some old origins think it does.

use bytes::{BufMut, BytesMut};
use memchr::memchr3;

use super::body::may_be_trailer;
use super::hop::is_hop_by_hop;
use super::response::forbids_length;
use super::{Form, Framing, Version};
use crate::Fields;
use crate::message::{Method, RequestHead, ResponseHead};

/// Appends a request head. `framing` of [`Framing::UntilClose`] counts as chunked, as closing
/// cannot end a request. `upgrade` offers these protocols. Several `cookie` fields become one (RFC
/// 9113 section 8.2.3).
pub fn write_request(
    out: &mut BytesMut,
    head: &RequestHead,
    form: Form,
    framing: Framing,
    upgrade: Option<&str>,
) {
    out.reserve(
        head.fields.text_len()
            + 4 * head.fields.len()
            + 2 * head.authority.len()
            + head.path.len()
            + 96,
    );
    out.put_slice(head.method.as_str().as_bytes());
    out.put_u8(b' ');
    match form {
        Form::Origin => put_target(out, &head.path),
        Form::Authority => put_target(out, &head.authority),
        Form::Asterisk => out.put_u8(b'*'),
        Form::Absolute => {
            out.put_slice(head.scheme.as_str().as_bytes());
            out.put_slice(b"://");
            put_target(out, &head.authority);
            // RFC 9112 section 3.2.4: for a whole server the absolute form has no path.
            if head.path != "*" {
                put_target(out, &head.path);
            }
        }
    }
    out.put_slice(b" HTTP/1.1\r\nHost: ");
    put_target(out, &head.authority);
    out.put_slice(b"\r\n");
    put_request_fields(out, &head.fields, framing);
    put_request_framing(out, head, framing);
    match (upgrade, head.fields.contains("te")) {
        (Some(_), true) => out.put_slice(b"Connection: Upgrade, TE\r\n"),
        (Some(_), false) => out.put_slice(b"Connection: Upgrade\r\n"),
        (None, true) => out.put_slice(b"Connection: TE\r\n"),
        (None, false) => {}
    }
    if let Some(protocols) = upgrade {
        put_field(out, b"upgrade", protocols.as_bytes());
    }
    out.put_slice(b"\r\n");
}

/// A target has no spaces or control bytes by the time it is here; should one have slipped in, it
/// is escaped rather than let end the line.
fn put_target(out: &mut BytesMut, text: &str) {
    // Without a way out the loop runs on many bytes at once.
    let is_plain = |plain, byte: &u8| plain & (*byte > b' ') & (*byte < 0x7f);
    if text.as_bytes().iter().fold(true, is_plain) {
        return out.put_slice(text.as_bytes());
    }
    for byte in text.bytes() {
        if byte.is_ascii_graphic() {
            out.put_u8(byte);
        } else {
            out.put_slice(format!("%{byte:02X}").as_bytes());
        }
    }
}

fn put_request_fields(out: &mut BytesMut, fields: &Fields, framing: Framing) {
    let mut cookies_written = false;
    let has_content = !matches!(framing, Framing::None | Framing::Length(0));
    for field in fields.iter() {
        match field.name {
            b"content-length" | b"host" => {}
            // A request without content must not expect 100 (RFC 9110 section 10.1.1).
            b"expect" if !has_content && field.value.eq_ignore_ascii_case(b"100-continue") => {}
            b"cookie" => {
                if !std::mem::replace(&mut cookies_written, true) {
                    let crumbs: Vec<&[u8]> = fields.get_all("cookie").collect();
                    put_field(out, field.name, &crumbs.join(&b"; "[..]));
                }
            }
            name => put_end_to_end(out, name, field.value),
        }
    }
}

/// Writes the framing of a request. A method that usually has content announces an empty body too
/// (RFC 9110 section 8.6).
fn put_request_framing(out: &mut BytesMut, head: &RequestHead, framing: Framing) {
    match framing {
        Framing::Length(length) => put_length(out, length),
        Framing::Chunked | Framing::UntilClose => out.put_slice(b"Transfer-Encoding: chunked\r\n"),
        Framing::None => {
            let usual = matches!(head.method, Method::Post | Method::Put | Method::Patch);
            if usual || head.fields.get("content-length") == Some(b"0") {
                put_length(out, 0);
            }
        }
    }
}

/// Appends a response head. `upgrade` is the protocol of a 101.
///
/// A `content-length` in the fields is written only with [`Framing::None`], where it states the
/// length of a response to GET (HEAD, 304); [`Framing::Length`] writes its own. Chunked needs
/// HTTP/1.1: see [`super::response_framing`].
pub fn write_response(
    out: &mut BytesMut,
    head: &ResponseHead,
    version: Version,
    framing: Framing,
    keep_alive: bool,
    upgrade: Option<&str>,
) {
    debug_assert!(
        framing != Framing::Chunked || version == Version::Http11,
        "HTTP/1.0 has no transfer codings"
    );
    out.reserve(head.fields.text_len() + 4 * head.fields.len() + 128);
    out.put_slice(match version {
        Version::Http10 => b"HTTP/1.0 ",
        Version::Http11 => b"HTTP/1.1 ",
    });
    put_decimal(out, u64::from(head.status));
    out.put_u8(b' ');
    out.put_slice(reason_phrase(head.status).as_bytes());
    out.put_slice(b"\r\n");
    let keep_length = framing == Framing::None && !forbids_length(head.status, &Method::Get);
    for field in head.fields.iter() {
        if field.name != b"content-length" || keep_length {
            put_end_to_end(out, field.name, field.value);
        }
    }
    match framing {
        _ if forbids_length(head.status, &Method::Get) => {}
        Framing::Length(length) => put_length(out, length),
        Framing::Chunked => out.put_slice(b"Transfer-Encoding: chunked\r\n"),
        Framing::None | Framing::UntilClose => {}
    }
    put_persistence(out, head, version, framing, keep_alive);
    if let Some(protocol) = upgrade.filter(|_| head.status == 101) {
        out.put_slice(b"Connection: Upgrade\r\n");
        put_field(out, b"upgrade", protocol.as_bytes());
    }
    out.put_slice(b"\r\n");
}

/// Writes `Connection` only where the persistence differs from the version's default (RFC 9112
/// section 9.3).
fn put_persistence(
    out: &mut BytesMut,
    head: &ResponseHead,
    version: Version,
    framing: Framing,
    keep_alive: bool,
) {
    let keep_alive = keep_alive && framing != Framing::UntilClose;
    match version {
        _ if head.is_informational() => {}
        Version::Http11 if !keep_alive => out.put_slice(b"Connection: close\r\n"),
        Version::Http10 if keep_alive => out.put_slice(b"Connection: keep-alive\r\n"),
        Version::Http10 | Version::Http11 => {}
    }
}

/// Appends the line before a chunk's data. `len` is not 0: that would end the body.
pub fn write_chunk_head(out: &mut BytesMut, len: usize) {
    debug_assert!(len > 0, "an empty chunk is the last one");
    let digits = (usize::BITS - len.leading_zeros()).div_ceil(4).max(1);
    for place in (0..digits).rev() {
        let digit = (len >> (4 * place) & 0xf) as u8;
        out.put_u8(if digit < 10 {
            b'0' + digit
        } else {
            b'a' + digit - 10
        });
    }
    out.put_slice(b"\r\n");
}

/// Appends the last chunk and the trailer section; fields that may not be trailers are left out.
pub fn write_last_chunk(out: &mut BytesMut, trailers: Option<&Fields>) {
    out.put_slice(b"0\r\n");
    for field in trailers.into_iter().flat_map(Fields::iter) {
        if may_be_trailer(field.name) {
            put_field(out, field.name, field.value);
        }
    }
    out.put_slice(b"\r\n");
}

fn put_end_to_end(out: &mut BytesMut, name: &[u8], value: &[u8]) {
    if !is_hop_by_hop(name) {
        put_field(out, name, value);
    }
}

/// Appends a field line, unless its value would end the line early: codecs refuse such values when
/// they read them, and this is the last place to hold them back.
fn put_field(out: &mut BytesMut, name: &[u8], value: &[u8]) {
    if memchr3(b'\r', b'\n', 0, value).is_some() || name.is_empty() {
        return;
    }
    let at = out.len();
    out.put_slice(name);
    let mut word_start = true;
    for byte in &mut out[at..] {
        if word_start {
            byte.make_ascii_uppercase();
        }
        word_start = *byte == b'-';
    }
    out.put_slice(b": ");
    out.put_slice(value);
    out.put_slice(b"\r\n");
}

fn put_length(out: &mut BytesMut, length: u64) {
    out.put_slice(b"Content-Length: ");
    put_decimal(out, length);
    out.put_slice(b"\r\n");
}

fn put_decimal(out: &mut BytesMut, number: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut rest = number;
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.put_slice(&digits[at..]);
}

/// Reason phrase of a status code as registered; empty where none is.
pub const fn reason_phrase(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        101 => "Switching Protocols",
        102 => "Processing",
        103 => "Early Hints",
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        203 => "Non-Authoritative Information",
        204 => "No Content",
        205 => "Reset Content",
        206 => "Partial Content",
        207 => "Multi-Status",
        208 => "Already Reported",
        226 => "IM Used",
        300 => "Multiple Choices",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        305 => "Use Proxy",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        407 => "Proxy Authentication Required",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        416 => "Range Not Satisfiable",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        423 => "Locked",
        424 => "Failed Dependency",
        425 => "Too Early",
        426 => "Upgrade Required",
        428 => "Precondition Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        451 => "Unavailable For Legal Reasons",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        506 => "Variant Also Negotiates",
        507 => "Insufficient Storage",
        508 => "Loop Detected",
        511 => "Network Authentication Required",
        _ => "",
    }
}

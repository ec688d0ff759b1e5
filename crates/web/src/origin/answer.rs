//! Which head and which bytes a request gets. RFC 9110 sections 9.3, 13 and 14.

use std::sync::atomic::Ordering;
use std::time::SystemTime;

use bytes::{Bytes, BytesMut};
use tandem_http::h1::{Framing, Request, Version, write_response};
use tandem_http::{Fields, Method, RequestHead, ResponseHead};

use super::Shared;
use super::target::{Target, Unsized, What};
use crate::page::{ResourceKind, Site, cookie_name, date};

const ALLOWED: &str = "GET, HEAD, OPTIONS, POST";

/// The parts of responses that repeat, prepared once.
#[derive(Debug)]
pub(super) struct Rendered {
    /// Head of a plain answer to GET in HTTP/1.1, for each resource.
    heads: Vec<Bytes>,
    /// Body of `/bytes/N`, repeated.
    pub(super) filler: Bytes,
}

/// An answer to be sent.
pub(super) struct OriginAnswer {
    pub(super) head: Bytes,
    pub(super) body: AnswerBody,
    pub(super) framing: Framing,
    pub(super) keep_alive: bool,
}

/// The source of a response's body.
pub(super) enum AnswerBody {
    None,
    Whole(Bytes),
    Filler(u64),
}

impl AnswerBody {
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::None => 0,
            Self::Whole(bytes) => bytes.len() as u64,
            Self::Filler(len) => *len,
        }
    }
}

impl Rendered {
    pub(super) fn new(site: &Site) -> Self {
        let count = site.page().resources.len();
        let heads = (0..count).map(|index| {
            let framing = Framing::Length(site.asset(index).body.len() as u64);
            let head = ResponseHead {
                status: site.page().resources[index].status,
                fields: fields(site, index),
            };
            written(&head, Version::Http11, framing, true)
        });
        // Bytes that no compressor makes smaller.
        let mut state = 0x9e37_79b9_u32;
        let filler = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state as u8
        });
        Self {
            heads: heads.collect(),
            filler: filler.take(64 << 10).collect(),
        }
    }
}

fn written(head: &ResponseHead, version: Version, framing: Framing, keep_alive: bool) -> Bytes {
    let mut out = BytesMut::new();
    write_response(&mut out, head, version, framing, keep_alive, None);
    out.freeze()
}

/// Fields of a plain answer; about as many bytes as the usual ones (median of the thesis: 338).
fn fields(site: &Site, index: usize) -> Fields {
    let resource = &site.page().resources[index];
    let mut fields = base_fields();
    fields.push("content-type", content_type(&resource.mime));
    for field in site.caching_fields(index, SystemTime::now()).iter() {
        fields.push(field.name, field.value);
    }
    fields.push("accept-ranges", "bytes");
    if matches!(resource.kind, ResourceKind::Font | ResourceKind::Fetch) {
        fields.push("access-control-allow-origin", "*");
    }
    if resource.is_redirect()
        && let Some(reference) = site.asset(index).references.first()
    {
        fields.push("location", site.mention(index, reference.child));
    }
    fields
}

fn base_fields() -> Fields {
    let date = date(SystemTime::now());
    [
        ("date", date.as_str()),
        ("server", "tandem-lab"),
        ("vary", "Accept-Encoding"),
    ]
    .into_iter()
    .collect()
}

fn content_type(mime: &str) -> String {
    if mime.starts_with("text/") {
        format!("{mime}; charset=utf-8")
    } else {
        mime.to_owned()
    }
}

/// The answer of HTTP/1.1 to a request without regard to its body; `None`: the body is the matter
/// (`/echo`, `/sink`).
pub(super) fn answer(shared: &Shared, request: &Request, target: &Target) -> Option<OriginAnswer> {
    let plain =
        target.status.is_none() && target.framing.is_none() && request.version == Version::Http11;
    match (&request.head.method, target.what) {
        (Method::Get, What::Resource(index))
            if plain
                && request.keep_alive
                && !is_special(&request.head.fields)
                && shared.site.page().resources[index].cookies.is_empty() =>
        {
            Some(OriginAnswer {
                head: shared.answers.heads[index].clone(),
                framing: Framing::Length(shared.site.asset(index).body.len() as u64),
                body: AnswerBody::Whole(shared.site.asset(index).body.clone()),
                keep_alive: true,
            })
        }
        _ => reply(shared, &request.head, target)
            .map(|(head, body)| finish(request, target, head, body)),
    }
}

/// Returns the response for any protocol, before the target's parameters are applied.
pub(super) fn reply(
    shared: &Shared,
    request: &RequestHead,
    target: &Target,
) -> Option<(ResponseHead, AnswerBody)> {
    Some(match (&request.method, target.what) {
        (Method::Post, What::Echo | What::Sink) => return None,
        (Method::Get | Method::Head, What::Resource(index)) => {
            let (mut head, body) = resource(&shared.site, index, &request.fields);
            set_cookies(shared, index, &request.fields, &mut head.fields);
            (head, body)
        }
        (Method::Get | Method::Head, What::Bytes(len)) => {
            let mut head = ResponseHead {
                status: 200,
                fields: base_fields(),
            };
            head.fields.push("content-type", "application/octet-stream");
            (head, AnswerBody::Filler(len))
        }
        (Method::Get | Method::Head, What::Root) => {
            let mut head = ResponseHead {
                status: 302,
                fields: base_fields(),
            };
            head.fields
                .push("location", &*shared.site.page().resources[0].path);
            (head, AnswerBody::None)
        }
        (Method::Options, _) => {
            let mut head = ResponseHead {
                status: 204,
                fields: base_fields(),
            };
            head.fields.push("allow", ALLOWED);
            (head, AnswerBody::None)
        }
        (_, What::Unknown) => short(404, "no such resource\n"),
        _ => short(405, "the origin does not do this\n"),
    })
}

/// An answer in a few words.
fn short(status: u16, text: &'static str) -> (ResponseHead, AnswerBody) {
    let mut head = ResponseHead {
        status,
        fields: base_fields(),
    };
    head.fields
        .push("content-type", "text/plain; charset=utf-8");
    if status == 405 {
        head.fields.push("allow", ALLOWED);
    }
    (head, AnswerBody::Whole(Bytes::from_static(text.as_bytes())))
}

/// Head and body of any length, framed as target and request ask.
pub(super) fn finish(
    request: &Request,
    target: &Target,
    mut head: ResponseHead,
    body: AnswerBody,
) -> OriginAnswer {
    if let Some(status) = target.status {
        head.status = status;
    }
    let bodiless = matches!(head.status, 204 | 304);
    let body = if bodiless { AnswerBody::None } else { body };
    let framing = match target.framing {
        _ if bodiless => Framing::None,
        Some(Unsized::Chunked) if request.version == Version::Http11 => Framing::Chunked,
        Some(_) => Framing::UntilClose,
        None => Framing::Length(body.len()),
    };
    let keep_alive = request.keep_alive && framing != Framing::UntilClose;
    let written = written(&head, request.version, framing, keep_alive);
    let to_head = request.head.method == Method::Head;
    OriginAnswer {
        head: written,
        framing: if to_head { Framing::None } else { framing },
        body: if to_head { AnswerBody::None } else { body },
        keep_alive,
    }
}

/// Returns true if the request is for more than the whole resource.
fn is_special(fields: &Fields) -> bool {
    fields.contains("if-none-match") || fields.contains("range")
}

fn resource(site: &Site, index: usize, asked: &Fields) -> (ResponseHead, AnswerBody) {
    let asset = site.asset(index);
    let mut head = ResponseHead {
        status: site.page().resources[index].status,
        fields: fields(site, index),
    };
    if head.status != 200 {
        return (head, AnswerBody::Whole(asset.body.clone()));
    }
    // RFC 9110 section 13.2.2: the condition comes before the range.
    if site.page().resources[index].caching.validators && names_tag(asked, &asset.etag) {
        head.status = 304;
        return (head, AnswerBody::None);
    }
    let fresh = asked
        .get("if-range")
        .is_none_or(|tag| tag == asset.etag.as_bytes());
    let range = asked
        .get("range")
        .filter(|_| fresh)
        .map(|range| parse_range(range, asset.body.len()));
    match range {
        None | Some(Range::Ignored) => (head, AnswerBody::Whole(asset.body.clone())),
        Some(Range::Part(start, end)) => {
            head.status = 206;
            head.fields.push(
                "content-range",
                format!("bytes {start}-{}/{}", end - 1, asset.body.len()),
            );
            (head, AnswerBody::Whole(asset.body.slice(start..end)))
        }
        Some(Range::Outside) => {
            head.status = 416;
            head.fields
                .push("content-range", format!("bytes */{}", asset.body.len()));
            (head, AnswerBody::None)
        }
    }
}

/// Adds the cookies of a resource that the request does not have yet. Their values differ between
/// users.
fn set_cookies(shared: &Shared, index: usize, asked: &Fields, fields: &mut Fields) {
    for cookie in &shared.site.page().resources[index].cookies {
        let name = cookie_name(cookie).unwrap_or_default();
        let has_name = |field: &[u8]| {
            let mut pairs = field.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
            pairs.any(|pair| pair.split(|byte| *byte == b'=').next() == Some(name.as_bytes()))
        };
        if !asked.get_all("cookie").any(has_name) {
            let number = shared.cookies.fetch_add(1, Ordering::Relaxed);
            let (pair, attributes) = cookie.split_once(';').unwrap_or((cookie, ""));
            let end = if attributes.is_empty() { "" } else { ";" };
            fields.push("set-cookie", format!("{pair}-{number}{end}{attributes}"));
        }
    }
}

/// RFC 9110 section 13.1.2, with weak comparison.
fn names_tag(asked: &Fields, etag: &str) -> bool {
    asked
        .get_all("if-none-match")
        .flat_map(|value| value.split(|&b| b == b','))
        .any(|tag| {
            let tag = tag.trim_ascii();
            tag == b"*" || tag.strip_prefix(b"W/").unwrap_or(tag) == etag.as_bytes()
        })
}

#[derive(Debug, PartialEq, Eq)]
enum Range {
    Part(usize, usize),
    Outside,
    /// Several ranges, another unit or nonsense: the whole is a right answer.
    Ignored,
}

/// RFC 9110 section 14.1.2: one range of bytes.
fn parse_range(value: &[u8], len: usize) -> Range {
    let parts = std::str::from_utf8(value)
        .ok()
        .and_then(|v| v.strip_prefix("bytes="))
        .and_then(|v| v.split_once('-'));
    let number = |text: &str| {
        text.bytes()
            .all(|b| b.is_ascii_digit())
            .then(|| text.parse::<usize>().ok())
            .flatten()
    };
    let Some((first, last)) = parts else {
        return Range::Ignored;
    };
    let (start, end) = match (number(first), number(last)) {
        (Some(start), Some(last)) if last >= start => (start, last.saturating_add(1).min(len)),
        (Some(start), None) if last.is_empty() => (start, len),
        (None, Some(suffix)) if first.is_empty() => (len.saturating_sub(suffix), len),
        _ => return Range::Ignored,
    };
    if start < end {
        Range::Part(start, end)
    } else {
        Range::Outside
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        for (text, range) in [
            ("bytes=0-0", Range::Part(0, 1)),
            ("bytes=2-", Range::Part(2, 10)),
            ("bytes=-3", Range::Part(7, 10)),
            ("bytes=-30", Range::Part(0, 10)),
            ("bytes=5-99", Range::Part(5, 10)),
            ("bytes=10-", Range::Outside),
            ("bytes=-0", Range::Outside),
            ("bytes=3-2", Range::Ignored),
            ("bytes=0-1,3-4", Range::Ignored),
            ("bytes=-", Range::Ignored),
            ("items=0-1", Range::Ignored),
            ("bytes=+1-2", Range::Ignored),
        ] {
            assert_eq!(parse_range(text.as_bytes(), 10), range, "{text}");
        }
    }
}

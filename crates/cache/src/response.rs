//! Responses from the store (RFC 9111 section 4): whole, partial, or 304 for a condition of the
//! client.

use bytes::Bytes;
use tandem_http::cache::{range, validation};
use tandem_http::{Fields, Method, RequestHead, ResponseHead};

use crate::Now;
use crate::cache::parts::OF_CONTENT;
use crate::stored::Stored;

/// The fields that describe the body of a response, which a 304 does not repeat (RFC 9110 section
/// 15.4.5).
const OF_BODY: [&[u8]; 6] = [
    b"content-encoding",
    b"content-language",
    b"content-length",
    b"content-range",
    b"content-type",
    b"transfer-encoding",
];

/// A response that the store makes.
#[derive(Debug)]
pub struct Response {
    /// The head, with its age.
    pub head: ResponseHead,
    /// The position of the body's first byte in the stored body.
    pub start: u64,
    /// The position after the last byte; equal to `start` for a response without a body.
    pub end: u64,
    /// The fields after the body.
    pub trailers: Option<Fields>,
}

impl Response {
    /// Returns the pieces of the body.
    pub fn body(&self, stored: &Stored) -> impl Iterator<Item = Bytes> + use<> {
        stored.body.slice(self.start, self.end)
    }
}

/// Returns true if the store can answer the conditions and ranges of a request. The origin answers
/// the others.
pub fn is_answerable(request: &RequestHead) -> bool {
    let fields = &request.fields;
    !fields.contains("if-match") && !fields.contains("if-unmodified-since")
}

/// Returns the response to `request` from the store, or `None` if only the origin can make it.
pub fn respond(stored: &Stored, request: &RequestHead, now: Now) -> Option<Response> {
    if !is_answerable(request) {
        return None;
    }
    let mut response = Response {
        head: stored.head.clone(),
        start: 0,
        end: 0,
        trailers: None,
    };
    let fields = &mut response.head.fields;
    fields.set("age", stored.age(now).as_secs().to_string());
    let conditional =
        request.fields.contains("if-none-match") || request.fields.contains("if-modified-since");
    // A condition applies to a success only (RFC 9110 section 13.2.1).
    let is_success = (200..300).contains(&stored.head.status);
    if conditional && is_success && is_not_modified(stored, request, now) {
        response.head.status = 304;
        fields.retain(|field| !OF_BODY.contains(&field.name));
        return Some(response);
    }
    let length = stored.extent.map_or(stored.body.len(), |it| it.total);
    let part = match request.method {
        Method::Head => range::Part::Whole,
        _ => range::part(&request.fields, &stored.head, length),
    };
    match part {
        range::Part::Whole if stored.extent.is_some() => return None,
        range::Part::Whole => {
            let has_body = !matches!(stored.head.status, 204 | 304);
            if has_body && stored.trailers.is_none() && !fields.contains("content-length") {
                fields.push("content-length", length.to_string());
            }
            if request.method != Method::Head {
                response.end = length;
                response.trailers.clone_from(&stored.trailers);
            }
        }
        range::Part::Bytes { start, end } => {
            // A part has the bytes from its own start.
            let first = stored.extent.map_or(0, |extent| extent.start);
            response.head.status = 206;
            for name in OF_CONTENT {
                fields.remove(name);
            }
            response.start = start.checked_sub(first)?;
            response.end = end - first;
            if response.end > stored.body.len() {
                return None;
            }
            let range = format!("bytes {start}-{}/{length}", end - 1);
            fields.set("content-range", range);
            fields.set("content-length", (end - start).to_string());
        }
        range::Part::Unsatisfiable => {
            response.head.status = 416;
            fields.retain(|field| !OF_BODY.contains(&field.name));
            fields.push("content-range", format!("bytes */{length}"));
            fields.push("content-length", "0");
        }
        range::Part::Unsupported => return None,
    }
    Some(response)
}

/// Returns true if the client holds the stored response. Without dates of its own, the response is
/// as old as its age says (RFC 9111 section 4.3.2).
fn is_not_modified(stored: &Stored, request: &RequestHead, now: Now) -> bool {
    if validation::is_not_modified(&request.fields, &stored.head) {
        return true;
    }
    let has_date = stored.policy.date.is_some() || stored.policy.last_modified.is_some();
    let received = now
        .unix
        .map(|unix| unix.saturating_sub(stored.age(now).as_secs()));
    let since = request
        .fields
        .get("if-modified-since")
        .and_then(tandem_http::cache::unix_seconds);
    !has_date
        && !request.fields.contains("if-none-match")
        && matches!((received, since), (Some(received), Some(since)) if received <= since)
}

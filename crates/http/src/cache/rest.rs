//! The rest of a response that broke off: the request for it, and the check of its response (RFC
//! 9110 sections 13.1.5, 14 and 15.3.7).
//!
//! ```text
//!  head ─▶ Rest::of ─▶ received … ─▶ request ─▶ head of another response ─▶ skipped ─▶ received …
//! ```
//!
//! A response is continued only if a strong validator shows that both responses have bytes of the
//! same representation (section 8.8.1). The other response must name the same validator, complete
//! length and content coding, and begin at the first byte that is missing. Any other one is
//! refused.

use super::range::{Extent, extent};
use super::unix_seconds;
use super::validation::remove_conditions;
use crate::message::{content_length, logs_in_on_connection};
use crate::{Fields, Method, RequestHead, ResponseHead};

/// The age in seconds from which the date of a modification is a strong validator. The clock of the
/// date may be another one than that of the modification (RFC 9110 section 8.8.2.2).
const SETTLED: u64 = 60;

/// The bytes of a whole response that are received again and dropped, if an origin ignores the
/// range. More would cost the slow path too much.
pub const MAX_SKIPPED: u64 = 256 << 10;

/// The bytes of a response that have not arrived, and the marks of its representation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rest {
    validator: Validator,
    /// The content coding, as the fields name it.
    coding: Vec<u8>,
    media_type: Option<Vec<u8>>,
    language: Option<Vec<u8>>,
    /// The position of the next byte in the representation.
    next: u64,
    /// The position after the last byte of the response.
    end: u64,
    /// The length of the representation.
    total: u64,
}

/// A strong validator of a representation.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Validator {
    /// An entity tag.
    Tag(Vec<u8>),
    /// The date of a modification, where there is no entity tag.
    Modified(Vec<u8>),
}

impl Rest {
    /// Returns the bytes that a response will bring, or `None` if its rest could not be requested.
    ///
    /// The response is complete (200) or one part (206), of known length, and has a strong
    /// validator. The caller makes sure that the request has no body.
    pub fn of(request: &RequestHead, head: &ResponseHead) -> Option<Self> {
        let fields = &head.fields;
        let takes_ranges =
            !fields.contains("accept-ranges") || fields.has_token("accept-ranges", "bytes");
        if request.method != Method::Get || request.protocol.is_some() || !takes_ranges {
            return None;
        }
        // The credentials are good for one request.
        let scheme = request.fields.get("authorization").unwrap_or_default();
        let is_digest = scheme
            .get(..7)
            .is_some_and(|it| it.eq_ignore_ascii_case(b"digest "));
        if is_digest || logs_in_on_connection(&request.fields) {
            return None;
        }
        let place = match head.status {
            200 => whole(fields)?,
            206 if request.fields.contains("range") => extent(head)?,
            _ => return None,
        };
        Some(Self {
            validator: Validator::of(fields)?,
            coding: coding(fields),
            media_type: fields.get("content-type").map(<[u8]>::to_vec),
            language: fields.get("content-language").map(<[u8]>::to_vec),
            next: place.start,
            end: place.end,
            total: place.total,
        })
    }

    /// Returns the number of bytes that have not arrived.
    pub const fn left(&self) -> u64 {
        self.end - self.next
    }

    /// Counts bytes that have arrived. Returns false if the response cannot have that many.
    #[must_use]
    pub const fn received(&mut self, bytes: u64) -> bool {
        let fits = bytes <= self.left();
        if fits {
            self.next += bytes;
        }
        fits
    }

    /// Returns the request for the bytes that have not arrived. `asked` is the request of the
    /// response.
    pub fn request(&self, asked: &RequestHead) -> RequestHead {
        let mut request = asked.clone();
        let fields = &mut request.fields;
        remove_conditions(fields);
        let last = match self.end == self.total {
            true => String::new(),
            false => (self.end - 1).to_string(),
        };
        fields.set("range", format!("bytes={}-{last}", self.next));
        fields.push("if-range", self.validator.value());
        request
    }

    /// Returns the number of bytes at the beginning of another response that have arrived already,
    /// or `None` if the response does not bring the bytes that have not.
    pub fn skipped(&self, head: &ResponseHead) -> Option<u64> {
        let fields = &head.fields;
        let is_same = |name: &str, own: &Option<Vec<u8>>| {
            let mut values = fields.get_all(name);
            values.all(|value| Some(value) == own.as_deref())
        };
        let is_same = self.validator.is_of(fields)
            && coding(fields) == self.coding
            && is_same("content-type", &self.media_type)
            && is_same("content-language", &self.language);
        let place = match head.status {
            206 => extent(head)?,
            200 => whole(fields)?,
            _ => return None,
        };
        let skipped = self.next.checked_sub(place.start)?;
        let limit = match head.status {
            206 => 0,
            _ => MAX_SKIPPED,
        };
        let fits = (place.end, place.total) == (self.end, self.total) && skipped <= limit;
        (is_same && fits).then_some(skipped)
    }
}

impl Validator {
    /// Returns the strong validator of a response. A weak entity tag excludes the date, since the
    /// bytes may have changed without it (RFC 9110 section 13.1.5).
    fn of(fields: &Fields) -> Option<Self> {
        if !fields.contains("etag") {
            return Self::date(fields);
        }
        let tag = single(fields, "etag")?;
        is_strong(tag).then(|| Self::Tag(tag.to_vec()))
    }

    fn date(fields: &Fields) -> Option<Self> {
        let value = single(fields, "last-modified")?;
        let modified = unix_seconds(value)?;
        let sent = unix_seconds(single(fields, "date")?)?;
        let is_strong = modified.checked_add(SETTLED)? <= sent;
        is_strong.then(|| Self::Modified(value.to_vec()))
    }

    /// Returns whether another response has this validator.
    fn is_of(&self, fields: &Fields) -> bool {
        match self {
            Self::Tag(tag) => single(fields, "etag") == Some(tag),
            Self::Modified(date) => {
                !fields.contains("etag") && single(fields, "last-modified") == Some(date)
            }
        }
    }

    /// Returns the value of `If-Range`.
    fn value(&self) -> &[u8] {
        let (Self::Tag(value) | Self::Modified(value)) = self;
        value
    }
}

/// Returns the place of a whole response of known length.
fn whole(fields: &Fields) -> Option<Extent> {
    let total = content_length(fields).ok()??;
    let is_whole = !fields.contains("content-range");
    is_whole.then_some(Extent {
        start: 0,
        end: total,
        total,
    })
}

/// Returns the content coding of a response, as its fields name it.
fn coding(fields: &Fields) -> Vec<u8> {
    let values: Vec<_> = fields.get_all("content-encoding").collect();
    values.join(&b","[..])
}

/// Returns the value of a field that is there once.
fn single<'a>(fields: &'a Fields, name: &'a str) -> Option<&'a [u8]> {
    let mut values = fields.get_all(name);
    values.next().filter(|_| values.next().is_none())
}

/// Returns whether a value is one strong entity tag (RFC 9110 section 8.8.3).
fn is_strong(tag: &[u8]) -> bool {
    let text = tag
        .strip_prefix(b"\"")
        .and_then(|it| it.strip_suffix(b"\""));
    text.is_some_and(|text| {
        text.iter()
            .all(|&byte| byte > b' ' && byte != b'"' && byte != 0x7f)
    })
}

#[cfg(test)]
mod tests;

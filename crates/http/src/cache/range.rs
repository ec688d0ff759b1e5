//! Range requests that a stored whole response answers, and the places of partial responses (RFC
//! 9110 section 14, RFC 9111 section 3.4).

use super::unix_seconds;
use crate::message::content_length;
use crate::{Fields, ResponseHead};

/// The part of a stored response that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The whole response. The request names no range, or its condition does not hold.
    Whole,
    /// The bytes from `start` up to `end`, without the byte at `end`.
    Bytes {
        /// The position of the first byte.
        start: u64,
        /// The position after the last byte.
        end: u64,
    },
    /// No byte of the response: 416 is the response.
    Unsatisfiable,
    /// Several ranges or another unit. Only the origin answers such a request.
    Unsupported,
}

/// The place of a partial response in the whole body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The position of the first byte.
    pub start: u64,
    /// The position after the last byte.
    pub end: u64,
    /// The length of the whole body.
    pub total: u64,
}

impl Extent {
    /// Returns whether the part has these bytes.
    pub const fn contains(self, start: u64, end: u64) -> bool {
        self.start <= start && end <= self.end
    }

    /// Returns the extent of this part and another one without a gap between them.
    pub fn joined(self, other: Self) -> Option<Self> {
        let touches = self.start <= other.end && other.start <= self.end;
        (touches && self.total == other.total).then(|| Self {
            start: self.start.min(other.start),
            end: self.end.max(other.end),
            total: self.total,
        })
    }

    /// Returns whether the part is the whole body.
    pub const fn is_whole(self) -> bool {
        self.start == 0 && self.end == self.total
    }
}

/// Returns the extent of a response with status 206, if it is one part with a known total (RFC 9110
/// section 14.4).
pub fn extent(head: &ResponseHead) -> Option<Extent> {
    let mut values = head.fields.get_all("content-range");
    let value = values.next().filter(|_| values.next().is_none())?;
    let value = std::str::from_utf8(value).ok()?.strip_prefix("bytes ")?;
    let (range, total) = value.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let number = |text: &str| {
        let is_number = !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
        is_number.then(|| text.parse::<u64>().ok()).flatten()
    };
    let (start, total) = (number(first)?, number(total)?);
    let end = number(last)?.checked_add(1)?;
    // Such a response has its ranges in its body.
    let kind = head.fields.get("content-type").unwrap_or_default();
    let kind = kind.trim_ascii().to_ascii_lowercase();
    let is_single = !kind.starts_with(b"multipart/byteranges");
    if head.status != 206 || !is_single || start >= end || end > total {
        return None;
    }
    let length = content_length(&head.fields).ok()?;
    let is_length = length.is_none_or(|length| length == end - start);
    is_length.then_some(Extent { start, end, total })
}

/// Returns the part of `stored`, a complete response of `length` bytes, that a GET request with
/// these fields asks for.
pub fn part(request: &Fields, stored: &ResponseHead, length: u64) -> Part {
    let mut values = request.get_all("range");
    let Some(value) = values.next() else {
        return Part::Whole;
    };
    if values.next().is_some() {
        return Part::Unsupported;
    }
    if stored.status != 200 || !is_unchanged(request, stored) {
        return Part::Whole;
    }
    let Some(range) = value
        .split_at_checked(6)
        .filter(|(unit, _)| unit.eq_ignore_ascii_case(b"bytes="))
        .map(|(_, range)| range.trim_ascii())
    else {
        return Part::Unsupported;
    };
    let Some(at) = range.iter().position(|&byte| byte == b'-') else {
        return Part::Unsupported;
    };
    let (first, last) = (number(&range[..at]), number(&range[at + 1..]));
    match (first, last) {
        (Some(Some(first)), Some(Some(last))) if last < first => Part::Unsupported,
        (Some(Some(first)), Some(_)) if first >= length => Part::Unsatisfiable,
        (Some(Some(start)), Some(last)) => Part::Bytes {
            start,
            end: last.map_or(length, |last| last.saturating_add(1).min(length)),
        },
        (Some(None), Some(Some(0))) => Part::Unsatisfiable,
        (Some(None), Some(Some(_))) if length == 0 => Part::Unsatisfiable,
        (Some(None), Some(Some(suffix))) => Part::Bytes {
            start: length.saturating_sub(suffix),
            end: length,
        },
        _ => Part::Unsupported,
    }
}

/// Reads an optional number; `None` for text that is neither empty nor a number.
fn number(digits: &[u8]) -> Option<Option<u64>> {
    if digits.is_empty() {
        return Some(None);
    }
    if digits.len() > 18 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = digits
        .iter()
        .fold(0u64, |number, digit| number * 10 + u64::from(digit - b'0'));
    Some(Some(number))
}

/// Returns true if the condition `If-Range` holds: it names the strong validator of the stored
/// response (RFC 9110 section 13.1.5).
fn is_unchanged(request: &Fields, stored: &ResponseHead) -> bool {
    let mut values = request.get_all("if-range");
    let Some(wanted) = values.next() else {
        return true;
    };
    if values.next().is_some() {
        return false;
    }
    if wanted.starts_with(b"\"") {
        return stored.fields.get("etag") == Some(wanted);
    }
    let date = |value: Option<&[u8]>| value.and_then(unix_seconds);
    let (modified, sent) = (
        date(stored.fields.get("last-modified")),
        date(stored.fields.get("date")),
    );
    // A date is a strong validator only if the response was sent later (RFC 9110 section 8.8.2.2).
    let is_strong = matches!((modified, sent), (Some(modified), Some(sent)) if modified < sent);
    is_strong && unix_seconds(wanted) == modified
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const LATER: &str = "Mon, 07 Nov 1994 08:49:37 GMT";

    fn of(request: &[(&str, &str)], stored: &[(&str, &str)], length: u64) -> Part {
        let head = ResponseHead {
            fields: stored.iter().copied().collect(),
            ..ResponseHead::new(200)
        };
        part(&request.iter().copied().collect(), &head, length)
    }

    #[test]
    fn range_selects_bytes_of_the_whole() {
        let bytes = |start, end| Part::Bytes { start, end };
        for (range, length, expected) in [
            ("bytes=0-1", 10, bytes(0, 2)),
            ("Bytes=0-0", 10, bytes(0, 1)),
            ("bytes=1-", 10, bytes(1, 10)),
            ("bytes=9-99", 10, bytes(9, 10)),
            ("bytes=-3", 10, bytes(7, 10)),
            ("bytes=-99", 10, bytes(0, 10)),
            ("bytes=10-", 10, Part::Unsatisfiable),
            ("bytes=-0", 10, Part::Unsatisfiable),
            ("bytes=0-", 0, Part::Unsatisfiable),
            ("bytes=-1", 0, Part::Unsatisfiable),
            ("bytes=2-1", 10, Part::Unsupported),
            ("bytes=0-1,3-4", 10, Part::Unsupported),
            ("bytes=-", 10, Part::Unsupported),
            ("bytes=", 10, Part::Unsupported),
            ("bytes=+1-2", 10, Part::Unsupported),
            ("bytes=1-9999999999999999999", 10, Part::Unsupported),
            ("lines=0-1", 10, Part::Unsupported),
            ("", 10, Part::Unsupported),
        ] {
            assert_eq!(of(&[("range", range)], &[], length), expected, "{range}");
        }
        assert_eq!(of(&[], &[], 10), Part::Whole);
        let twice = [("range", "bytes=0-1"), ("range", "bytes=2-3")];
        assert_eq!(of(&twice, &[], 10), Part::Unsupported);
    }

    #[test]
    fn if_range_needs_the_strong_validator() {
        let stored = [("etag", "\"1\""), ("last-modified", DAY), ("date", LATER)];
        let weak = [("etag", "W/\"1\""), ("last-modified", DAY), ("date", DAY)];
        for (condition, stored, holds) in [
            ("\"1\"", stored, true),
            ("\"2\"", stored, false),
            ("W/\"1\"", stored, false),
            (DAY, stored, true),
            (LATER, stored, false),
            ("soon", stored, false),
            ("W/\"1\"", weak, false),
            (DAY, weak, false),
        ] {
            let asked = [("range", "bytes=0-0"), ("if-range", condition)];
            let expected = match holds {
                true => Part::Bytes { start: 0, end: 1 },
                false => Part::Whole,
            };
            assert_eq!(of(&asked, &stored, 10), expected, "{condition}");
        }
    }

    #[test]
    fn extent_is_one_part_of_known_length() {
        let of = |status, fields: &[(&str, &str)]| {
            let head = ResponseHead {
                fields: fields.iter().copied().collect(),
                ..ResponseHead::new(status)
            };
            extent(&head).map(|it| (it.start, it.end, it.total))
        };
        let range = |value| [("content-range", value), ("content-length", "3")];
        assert_eq!(of(206, &range("bytes 2-4/10")), Some((2, 5, 10)));
        assert_eq!(of(206, &range("bytes 2-4/10")[..1]), Some((2, 5, 10)));
        assert_eq!(of(200, &range("bytes 2-4/10")), None);
        for bad in [
            "bytes 2-5/10",
            "bytes 4-2/10",
            "bytes 8-10/10",
            "bytes 2-4/*",
            "bytes */10",
            "bytes -4/10",
            "bytes 2-18446744073709551615/10",
            "lines 2-4/10",
            "",
        ] {
            assert_eq!(of(206, &range(bad)), None, "{bad}");
        }
        let kind = ("content-type", "Multipart/ByteRanges; boundary=x");
        let [place, length] = range("bytes 2-4/10");
        assert_eq!(of(206, &[place, length, kind]), None);
        assert_eq!(of(206, &[place, place, length]), None);
    }

    proptest::proptest! {
        #[test]
        fn part_lies_within_the_body(range in "(bytes=)?[0-9,=-]{0,24}", length: u64) {
            if let Part::Bytes { start, end } = of(&[("range", &range)], &[], length) {
                proptest::prop_assert!(start < end && end <= length);
            }
        }
    }
}

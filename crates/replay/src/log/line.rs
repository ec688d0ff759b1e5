//! Lines of the Common and Combined Log Formats.

use std::borrow::Cow;

use jiff::fmt::strtime::BrokenDownTime;
use jiff::tz::Offset;

use super::{Line, Verb};

/// Parses a line of the Common or Combined Log Format.
pub(super) fn parse_line(bytes: &[u8]) -> Option<Line<'_>> {
    // A user's name may hold a bracket too.
    let (client, (time, zone, rest)) = memchr::memchr_iter(b'[', bytes).find_map(|open| {
        let client = bytes[..open].strip_suffix(b" ")?;
        Some((client, timestamp(&bytes[open + 1..])?))
    })?;
    let host = host(client)?;
    let rest = rest.strip_prefix(b" \"")?;
    let (request, rest) = request_field(rest)?;
    let (verb, url) = request_line(request)?;
    let (status, rest) = split_word(rest);
    let (size, rest) = split_word(rest);
    let status = number(status).and_then(|status| u16::try_from(status).ok())?;
    // Logs converted from other data have -1 for an unknown size.
    let size = if matches!(size, b"-" | b"-1") {
        0
    } else {
        number(size)?
    };
    let (referer, agent) = trailer(rest)?;
    Some(Line {
        host: Cow::Borrowed(host),
        time,
        zone,
        verb,
        url: Cow::Borrowed(url),
        status,
        size,
        referer,
        agent,
    })
}

/// Returns the client's address or name from the text before the time. A virtual host may precede
/// it, recognised by its port and by an address after it, or by one word more than host, identity
/// and user need.
fn host(client: &[u8]) -> Option<&[u8]> {
    let (first, rest) = split_word(client);
    let port = first
        .iter()
        .rposition(|&byte| byte == b':')
        .map(|at| &first[at + 1..]);
    if port.is_some_and(|port| number(port).is_some()) {
        let (second, rest) = split_word(rest);
        // An IPv6 address ends like a port. Where there is no virtual host the second word is the
        // identity, hardly ever known.
        let named = !matches!(second, b"" | b"-")
            && memchr::memchr(b' ', rest).is_some()
            && !is_address(first);
        if named || is_address(second) {
            return Some(second);
        }
    }
    (!first.is_empty()).then_some(first)
}

fn is_address(word: &[u8]) -> bool {
    std::str::from_utf8(word).is_ok_and(|text| text.parse::<std::net::IpAddr>().is_ok())
}

/// Returns the request between its quotes, and the text after the space that follows. A quote
/// inside the request does not close it unless a status follows.
fn request_field(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    memchr::memchr_iter(b'"', bytes).find_map(|at| {
        let rest = bytes[at + 1..].strip_prefix(b" ")?;
        let (status, after) = split_word(rest);
        let closes = number(status).is_some() && !after.is_empty();
        closes.then_some((&bytes[..at], rest))
    })
}

/// Returns method and URL. The URL ends before a last word that names the protocol and may contain
/// spaces.
fn request_line(request: &[u8]) -> Option<(Verb, &[u8])> {
    let at = memchr::memchr(b' ', request)?;
    let verb = match &request[..at] {
        b"GET" => Verb::Get,
        b"HEAD" => Verb::Head,
        _ => Verb::Other,
    };
    let rest = &request[at + 1..];
    let last = memchr::memrchr(b' ', rest).map_or(0, |at| at + 1);
    let url = if rest[last..].starts_with(b"HTTP/") {
        &rest[..last.saturating_sub(1)]
    } else {
        rest
    };
    (!url.trim_ascii().is_empty()).then_some((verb, url))
}

type Field<'a> = Option<Cow<'a, [u8]>>;

/// Returns Referer and User-Agent if the line has them. Further fields are ignored, and so are
/// fields without quotes where the line has neither.
fn trailer(bytes: &[u8]) -> Option<(Field<'_>, Field<'_>)> {
    if memchr::memchr(b'"', bytes).is_none() {
        return Some((None, None));
    }
    let (referer, rest) = quoted(bytes.strip_prefix(b"\"")?)?;
    let (agent, _) = quoted(rest.strip_prefix(b" \"")?)?;
    let referer = Some(Cow::Borrowed(referer)).filter(|referer| !matches!(&**referer, b"" | b"-"));
    Some((referer, Some(Cow::Borrowed(agent))))
}

/// Returns the text up to the closing quote and the rest. The closing quote is the first that no
/// backslash escapes and that a space or the end of the line follows.
fn quoted(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    memchr::memchr_iter(b'"', bytes).find_map(|at| {
        let escapes = bytes[..at]
            .iter()
            .rev()
            .take_while(|&&byte| byte == b'\\')
            .count();
        let closes = escapes % 2 == 0 && matches!(bytes.get(at + 1), None | Some(b' ' | b'\r'));
        closes.then(|| (&bytes[..at], &bytes[at + 1..]))
    })
}

fn split_word(bytes: &[u8]) -> (&[u8], &[u8]) {
    match memchr::memchr(b' ', bytes) {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (bytes.strip_suffix(b"\r").unwrap_or(bytes), &[]),
    }
}

pub(super) fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 18 {
        return None;
    }
    digits.iter().try_fold(0, |sum, byte| {
        byte.is_ascii_digit()
            .then(|| sum * 10 + u64::from(byte - b'0'))
    })
}

/// Reads a time such as `09/Jul/1995:00:00:00 -0400]`; the zone may be absent. Returns milliseconds
/// since 1970 in UTC, the zone in minutes ahead of UTC, and the text after the bracket.
fn timestamp(bytes: &[u8]) -> Option<(i64, i16, &[u8])> {
    const WITHOUT_ZONE: usize = "09/Jul/1995:00:00:00".len();
    const WITH_ZONE: usize = "09/Jul/1995:00:00:00 -0400".len();
    const LARGEST_ZONE: i32 = 15 * 3600;
    let end = memchr::memchr(b']', bytes.get(..=WITH_ZONE).unwrap_or(bytes))?;
    if let Some((time, zone)) = usual_time(&bytes[..end]) {
        return Some((time, zone, &bytes[end + 1..]));
    }
    let text = std::str::from_utf8(&bytes[..end]).ok()?;
    let format = match end {
        WITHOUT_ZONE => "%d/%b/%Y:%H:%M:%S",
        // The parser would do without the space.
        WITH_ZONE if bytes[WITHOUT_ZONE] == b' ' => "%d/%b/%Y:%H:%M:%S %z",
        _ => return None,
    };
    let time = BrokenDownTime::parse(format, text).ok()?;
    let zone = time.offset().unwrap_or(Offset::UTC);
    if zone.seconds().abs() >= LARGEST_ZONE {
        return None;
    }
    let instant = zone.to_timestamp(time.to_datetime().ok()?).ok()?;
    let minutes = i16::try_from(zone.seconds() / 60).ok()?;
    Some((instant.as_millisecond(), minutes, &bytes[end + 1..]))
}

/// Reads a time as [`timestamp`] does, at a tenth of its cost. `None`: the form is unusual, and the
/// general parser decides.
fn usual_time(text: &[u8]) -> Option<(i64, i16)> {
    let (&[d1, d2, b'/', m1, m2, m3, b'/', rest @ ..], zone) = text.split_first_chunk::<20>()?
    else {
        return None;
    };
    let [y1, y2, y3, y4, b':', h1, h2, b':', i1, i2, b':', s1, s2] = rest else {
        return None;
    };
    let year = 100 * two_digits([y1, y2])? + two_digits([y3, y4])?;
    let month = MONTHS.iter().position(|name| **name == [m1, m2, m3])?;
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let (before, length) = match (DAYS_BEFORE[month], DAYS_BEFORE[month + 1]) {
        (before, after) if month > 1 => (before + i64::from(is_leap), after - before),
        (before, after) if month == 1 => (before, after - before + i64::from(is_leap)),
        (before, after) => (before, after - before),
    };
    let day = two_digits([d1, d2])?;
    let (hour, minute) = (two_digits([h1, h2])?, two_digits([i1, i2])?);
    let second = two_digits([s1, s2])?;
    let is_real = (1..=length).contains(&day) && hour < 24 && minute < 60 && second < 60;
    // The first years have fewer leap years before them than this counts.
    if !is_real || year < 1 {
        return None;
    }
    let last = year - 1;
    let days_since_1970 = 365 * (year - 1970) + last / 4 - last / 100 + last / 400 - 477;
    let days = days_since_1970 + before + day - 1;
    let zone = usual_zone(zone)?;
    let seconds = ((days * 24 + hour) * 60 + minute) * 60 + second - zone * 60;
    Some((seconds * 1000, i16::try_from(zone).ok()?))
}

/// Reads a zone such as ` -0400`, or none. Returns minutes ahead of UTC.
fn usual_zone(text: &[u8]) -> Option<i64> {
    let (sign, digits) = match text {
        [] => return Some(0),
        [b' ', b'+', digits @ ..] => (1, digits),
        [b' ', b'-', digits @ ..] => (-1, digits),
        _ => return None,
    };
    let &[h1, h2, m1, m2] = digits else {
        return None;
    };
    let (hours, minutes) = (two_digits([h1, h2])?, two_digits([m1, m2])?);
    (hours < 15 && minutes < 60).then_some(sign * (hours * 60 + minutes))
}

const MONTHS: [&[u8; 3]; 12] = [
    b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec",
];

/// The days of a common year before each month, and before the next year.
const DAYS_BEFORE: [i64; 13] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365];

fn two_digits(digits: [u8; 2]) -> Option<i64> {
    let [tens, ones] = digits.map(|digit| digit.wrapping_sub(b'0'));
    (tens < 10 && ones < 10).then(|| i64::from(tens) * 10 + i64::from(ones))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn usual_time_agrees_with_the_general_parser(
            (day, month, year) in (0..34_u8, 0..12_usize, 0..3000_u16),
            (hour, minute, second) in (0..25_u8, 0..61_u8, 0..61_u8),
            (sign, zone) in (any::<bool>(), 0..1600_u16),
        ) {
            let month = std::str::from_utf8(MONTHS[month]).expect("a name");
            let sign = if sign { '+' } else { '-' };
            let text = format!(
                "{day:02}/{month}/{year:04}:{hour:02}:{minute:02}:{second:02} {sign}{zone:04}]"
            );
            if let Some((time, zone)) = usual_time(&text.as_bytes()[..26]) {
                let broken = BrokenDownTime::parse("%d/%b/%Y:%H:%M:%S %z", &text[..26]);
                let broken = broken.expect("a time");
                let offset = broken.offset().expect("a zone");
                let instant = offset.to_timestamp(broken.to_datetime().expect("a date"));
                prop_assert_eq!(time, instant.expect("in range").as_millisecond());
                prop_assert_eq!(i32::from(zone) * 60, offset.seconds());
            } else {
                // All usual times are read.
                let is_usual = (1..29).contains(&day) && year > 0 && hour < 24;
                let is_usual = is_usual && minute < 60 && second < 60;
                prop_assert!(!is_usual || zone / 100 > 14 || zone % 100 > 59);
            }
        }
    }

    fn parsed(line: &str) -> Line<'_> {
        parse_line(line.as_bytes()).unwrap_or_else(|| panic!("unparsable: {line}"))
    }

    #[test]
    fn parse_line_reads_the_common_format() {
        let line = parsed(r#"h - - [09/Jul/1995:00:00:07 -0400] "GET /a.gif HTTP/1.0" 200 363"#);
        assert_eq!(
            (line.time, line.status, line.size),
            (805_262_407_000, 200, 363)
        );
        assert_eq!(
            (&*line.url, line.verb, line.agent),
            (&b"/a.gif"[..], Verb::Get, None)
        );
        let timed =
            parsed(r#"h - - [09/Jul/1995:00:00:07 -0400] "GET /a.gif HTTP/1.0" 200 363 0.05"#);
        assert_eq!((timed.size, timed.agent), (363, None));
        let unknown = parsed(
            r#"7 - - [09/Jul/1995:00:00:07 -0400] "GET /a.gif HTTP/1.0" 200 -1 "" "Firefox/1""#,
        );
        assert_eq!(
            (unknown.size, unknown.referer, unknown.agent.is_some()),
            (0, None, true)
        );
    }

    #[test]
    fn parse_line_reads_the_combined_format() {
        let text = r#"a.example:80 10.0.0.1 - bob smith [01/Mar/2016:10:00:00 +0100] "HEAD /x y?z HTTP/1.1" 304 - "-" "A \"b\" c" "-""#;
        let line = parsed(text);
        assert_eq!(
            (&*line.host, &*line.url, line.verb),
            (&b"10.0.0.1"[..], &b"/x y?z"[..], Verb::Head)
        );
        assert_eq!((line.size, line.referer), (0, None));
        assert_eq!(line.agent.as_deref(), Some(&br#"A \"b\" c"#[..]));
        assert_eq!(line.time, 1_456_822_800_000);
    }

    #[test]
    fn parse_line_reads_the_client_after_a_virtual_host() {
        for (client, host) in [
            ("a.com:80 c1.example.net - -", "c1.example.net"),
            ("a.com:80 c1.example.net - bob smith", "c1.example.net"),
            ("a.com:80 ::1 - -", "::1"),
            ("2001:db8::1 - bob smith", "2001:db8::1"),
            ("2001:db8::1 ident bob smith", "2001:db8::1"),
            ("c.example:80 - -", "c.example:80"),
            ("c.example:80 - bob smith", "c.example:80"),
            ("c.example:80 ident bob", "c.example:80"),
            ("c.example - -", "c.example"),
        ] {
            let text = format!(r#"{client} [14/Jun/2015:10:00:00 +0000] "GET /a HTTP/1.1" 200 5"#);
            assert_eq!(&*parsed(&text).host, host.as_bytes(), "{client}");
        }
    }

    #[test]
    fn parse_line_skips_brackets_in_user_names() {
        for user in ["a[b", "a [b", "[", "[99/Jun/2015:99:99:99 +9999]"] {
            let text =
                format!(r#"h - {user} [14/Jun/2015:10:00:00 +0000] "GET /a HTTP/1.1" 200 5"#);
            let line = parsed(&text);
            assert_eq!(
                (&*line.host, &*line.url, line.time),
                (&b"h"[..], &b"/a"[..], 1_434_276_000_000),
                "{user}"
            );
        }
    }

    #[test]
    fn parse_line_needs_a_url_but_no_protocol() {
        let at = "h - - [09/Jul/1995:00:00:07 -0400]";
        assert_eq!(
            &*parsed(&format!(r#"{at} "GET /a"b" 200 1"#)).url,
            br#"/a"b"#
        );
        for request in ["-", "GET ", "GET HTTP/1.0", ""] {
            assert_eq!(
                parse_line(format!(r#"{at} "{request}" 408 -"#).as_bytes()),
                None,
                "{request}"
            );
        }
    }

    #[test]
    fn timestamp_refuses_impossible_times() {
        let read =
            |time: &str| timestamp(format!("{time}] x").as_bytes()).map(|(.., rest)| rest.to_vec());
        for time in [
            "14/Jun/2015:10:00:00 +0000",
            "31/Dec/2016:23:59:60 -1459",
            "01/Jan/2015:00:00:00",
        ] {
            assert_eq!(read(time).as_deref(), Some(&b" x"[..]), "{time}");
        }
        for time in [
            "99/Jun/2015:99:99:99 +9999",
            "14XJunX2015X10X00X00X+0000",
            "00/Jun/2015:10:00:00 +0000",
            "32/Jun/2015:10:00:00 +0000",
            "14/Jun/2015:24:00:00 +0000",
            "14/Jun/2015:10:60:00 +0000",
            "14/Jun/2015:10:00:61 +0000",
            "14/Jun/2015:10:00:00 +1500",
            "14/Jun/2015:10:00:00 +1060",
            "14/Jun/2015:10:00:00+0000",
            "14/Jun/2015:10:00:00 +000",
        ] {
            assert_eq!(read(time), None, "{time}");
        }
    }
}

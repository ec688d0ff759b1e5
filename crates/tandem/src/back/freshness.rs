//! How long an answer may be used without asking again (RFC 9111 section 4.2), by a cache that is
//! one user's.

use std::time::Duration;

use tandem_http::{Fields, ResponseHead};

/// What an answer's origin says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fresh {
    /// So long, from when it came.
    For(Duration),
    /// Not at all: it is to be checked.
    Never,
    /// Nothing.
    Unsaid,
}

impl Fresh {
    /// That of an answer with this head.
    pub(super) fn of(head: &ResponseHead) -> Self {
        if head.fields.has_token("cache-control", "no-cache") {
            return Self::Never;
        }
        let Some(lifetime) = lifetime(&head.fields) else {
            return Self::Unsaid;
        };
        let age = number(head.fields.get("age").unwrap_or_default()).unwrap_or(0);
        match lifetime.saturating_sub(age) {
            0 => Self::Never,
            left => Self::For(Duration::from_secs(left)),
        }
    }
}

/// Seconds: `max-age`, else from `Date` to `Expires`. What is no date is past (section 5.3).
fn lifetime(fields: &Fields) -> Option<u64> {
    let words = fields
        .get_all("cache-control")
        .flat_map(|value| value.split(|&byte| byte == b','));
    let max_age = words.filter_map(|word| {
        let (name, value) = word.split_at_checked(word.iter().position(|&byte| byte == b'=')?)?;
        let value = value[1..].trim_ascii();
        let value = value
            .strip_prefix(b"\"")
            .and_then(|value| value.strip_suffix(b"\""))
            .unwrap_or(value);
        name.trim_ascii()
            .eq_ignore_ascii_case(b"max-age")
            .then(|| number(value).unwrap_or(0))
    });
    max_age.min().or_else(|| {
        let expires = fields.get("expires")?;
        let date = fields.get("date").and_then(date)?;
        Some(date_after(expires, date))
    })
}

fn date_after(expires: &[u8], date_sent: u64) -> u64 {
    date(expires).map_or(0, |expires| expires.saturating_sub(date_sent))
}

fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits.trim_ascii()).ok()?.parse().ok()
}

/// Seconds since 1970 of a date as HTTP writes it (RFC 9110 section 5.6.7, its preferred form).
fn date(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text.trim_ascii()).ok()?;
    let mut words = text.strip_suffix(" GMT")?.split_ascii_whitespace().skip(1);
    let day: u64 = words.next()?.parse().ok()?;
    let name = words.next()?;
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let month = MONTHS.iter().position(|month| *month == name)? as u64;
    let year: u64 = words.next()?.parse().ok()?;
    let mut clock = words
        .next()?
        .split(':')
        .map(|part| part.parse::<u64>().ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    if !(1970..=9999).contains(&year)
        || !(1..=31).contains(&day)
        || hour > 23
        || minute > 59
        || second > 60
    {
        return None;
    }
    // Years begin in March here, so that the day of leap years is a year's last.
    let (years, months) = if month < 2 {
        (year - 1, month + 10)
    } else {
        (year, month - 2)
    };
    let days =
        years * 365 + years / 4 - years / 100 + years / 400 + (months * 153 + 2) / 5 + day - 1;
    const UNTIL_1970: u64 = 719_468;
    Some((days - UNTIL_1970) * 86_400 + hour * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(fields: &[(&str, &str)]) -> Fresh {
        Fresh::of(&ResponseHead {
            fields: fields.iter().copied().collect(),
            ..ResponseHead::new(200)
        })
    }

    #[test]
    fn what_origins_say_is_understood() {
        let seconds = |count| Fresh::For(Duration::from_secs(count));
        let sent = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");
        for (fields, fresh) in [
            (&[][..], Fresh::Unsaid),
            (&[("cache-control", "public, Max-Age=\"60\"")], seconds(60)),
            (&[("cache-control", "max-age=60, max-age=5")], seconds(5)),
            (
                &[("cache-control", "max-age=60"), ("age", "20")],
                seconds(40),
            ),
            (
                &[("cache-control", "max-age=60"), ("age", "60")],
                Fresh::Never,
            ),
            (&[("cache-control", "max-age=0")], Fresh::Never),
            (&[("cache-control", "max-age=soon")], Fresh::Never),
            (&[("cache-control", "s-maxage=60")], Fresh::Unsaid),
            (&[("cache-control", "no-cache, max-age=60")], Fresh::Never),
            (
                &[sent, ("expires", "Sun, 06 Nov 1994 08:50:37 GMT")],
                seconds(60),
            ),
            (
                &[sent, ("expires", "Sat, 05 Nov 1994 08:50:37 GMT")],
                Fresh::Never,
            ),
            (&[sent, ("expires", "0")], Fresh::Never),
            (
                &[sent, ("expires", "0"), ("cache-control", "max-age=9")],
                seconds(9),
            ),
            (
                &[("expires", "Sun, 06 Nov 1994 08:50:37 GMT")],
                Fresh::Unsaid,
            ),
        ] {
            assert_eq!(of(fields), fresh, "{fields:?}");
        }
    }

    #[test]
    fn dates_are_read() {
        for (text, seconds) in [
            ("Thu, 01 Jan 1970 00:00:00 GMT", Some(0)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(784_111_777)),
            ("Tue, 29 Feb 2000 23:59:60 GMT", Some(951_868_800)),
            ("Thu, 01 Mar 2100 00:00:00 GMT", Some(4_107_542_400)),
            ("Sun Nov  6 08:49:37 1994", None),
            ("Sun, 06 Nov 94 08:49:37 GMT", None),
            ("Sun, 06 Nov 1994 08:49 GMT", None),
            ("Sun, 06 Foo 1994 08:49:37 GMT", None),
            ("", None),
        ] {
            assert_eq!(date(text.as_bytes()), seconds, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn whatever_is_no_date_is_none(text: Vec<u8>, year in 0u64..20_000, day in 0u64..40) {
            date(&text);
            date(format!("Mon, {day:02} Jan {year} 00:00:00 GMT").as_bytes());
            of(&[("cache-control", &String::from_utf8_lossy(&text))]);
        }
    }
}

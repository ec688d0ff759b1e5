//! Dates in fields (RFC 9110 section 5.6.7), by the crate `httpdate` unless they have the preferred
//! form.

/// The names of the days, of which a date has the first letters or all of them.
const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

/// The names of the months, each with the number of days before it in a year that is no leap year.
const MONTHS: [(&[u8; 3], u64); 12] = [
    (b"Jan", 0),
    (b"Feb", 31),
    (b"Mar", 59),
    (b"Apr", 90),
    (b"May", 120),
    (b"Jun", 151),
    (b"Jul", 181),
    (b"Aug", 212),
    (b"Sep", 243),
    (b"Oct", 273),
    (b"Nov", 304),
    (b"Dec", 334),
];

/// Returns the seconds from 1970 to an HTTP date in any of its three forms; `None` for text that
/// is no date, or for one before 1970. Case does not count (RFC 9111 section 4.2), nor does the
/// name of a day that contradicts the date.
pub fn unix_seconds(text: &[u8]) -> Option<u64> {
    let text = text.trim_ascii();
    preferred(text).or_else(|| parsed(text))
}

/// Reads a date in the preferred form, such as `Sun, 06 Nov 1994 08:49:37 GMT`. Nearly all dates
/// have it, and the crate takes seven times as long for them. Returns `None` for any other text.
fn preferred(text: &[u8]) -> Option<u64> {
    let (day, rest) = text.split_first_chunk::<3>()?;
    let [b',', b' ', d1, d2, b' ', rest @ ..] = rest else {
        return None;
    };
    let (month, rest) = rest.split_first_chunk::<3>()?;
    let [
        b' ',
        y1,
        y2,
        y3,
        y4,
        b' ',
        h1,
        h2,
        b':',
        m1,
        m2,
        b':',
        s1,
        s2,
        b' ',
        b'G',
        b'M',
        b'T',
    ] = rest
    else {
        return None;
    };
    let number = |digits: &[&u8]| {
        digits.iter().try_fold(0, |number, digit| {
            let digit = u64::from(digit.wrapping_sub(b'0'));
            (digit < 10).then_some(10 * number + digit)
        })
    };
    let (year, date) = (number(&[y1, y2, y3, y4])?, number(&[d1, d2])?);
    let (hour, minute, second) = (number(&[h1, h2])?, number(&[m1, m2])?, number(&[s1, s2])?);
    let at = MONTHS.iter().position(|(name, _)| *name == month)?;
    let before = MONTHS[at].1;
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let end = MONTHS.get(at + 1).map_or(365, |next| next.1) + u64::from(is_leap && at == 1);
    let is_date = year >= 1970 && (1..=end - before).contains(&date);
    let is_day = DAYS.iter().any(|name| name.as_bytes().starts_with(day));
    if !is_date || !is_day || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let leap_days = |year: u64| year / 4 - year / 100 + year / 400;
    let years = 365 * (year - 1970) + leap_days(year - 1) - leap_days(1969);
    let days = years + before + u64::from(is_leap && at > 1) + date - 1;
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

/// Reads a date of any form by the crate.
fn parsed(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    let parse = |text: &str| httpdate::parse_http_date(text).ok();
    let date = parse(text).or_else(|| robust(text, parse))?;
    let epoch = parse("Thu, 01 Jan 1970 00:00:00 GMT")?;
    Some(date.duration_since(epoch).ok()?.as_secs())
}

/// Parses a date with names in any case, after any name of a day.
fn robust<T>(text: &str, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
    let at = text.find(|c: char| !c.is_ascii_alphabetic())?;
    let (day, rest) = text.split_at(at);
    let is_long = day.len() > 3;
    let name = |day: &'static str| if is_long { day } else { &day[..3] };
    if !DAYS
        .into_iter()
        .any(|known| name(known).eq_ignore_ascii_case(day))
    {
        return None;
    }
    let rest = capitalised(rest);
    DAYS.into_iter()
        .find_map(|day| parse(&format!("{}{rest}", name(day))))
}

/// Writes months as `Nov` and the time zone as `GMT`.
fn capitalised(text: &str) -> String {
    let text = text.to_ascii_lowercase().replace("gmt", "GMT");
    let mut after_letter = false;
    let letters = text.chars().map(|c| {
        let first = !std::mem::replace(&mut after_letter, c.is_ascii_alphabetic());
        if first { c.to_ascii_uppercase() } else { c }
    });
    letters.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn date_accepts_the_three_forms_only() {
        for (text, seconds) in [
            ("Thu, 01 Jan 1970 00:00:00 GMT", Some(0)),
            (" Sun, 06 Nov 1994 08:49:37 GMT ", Some(784_111_777)),
            ("Sunday, 06-Nov-94 08:49:37 GMT", Some(784_111_777)),
            ("Sun Nov  6 08:49:37 1994", Some(784_111_777)),
            ("Mon, 01 Mar 2100 00:00:00 GMT", Some(4_107_542_400)),
            ("SUN, 06 nov 1994 08:49:37 gmt", Some(784_111_777)),
            ("sunday, 06-NOV-94 08:49:37 Gmt", Some(784_111_777)),
            ("Mon, 06 Nov 1994 08:49:37 GMT", Some(784_111_777)),
            ("Tue Nov  6 08:49:37 1994", Some(784_111_777)),
            ("Day, 06 Nov 1994 08:49:37 GMT", None),
            ("Sunda, 06 Nov 1994 08:49:37 GMT", None),
            ("Sun, 31 Feb 1994 08:49:37 GMT", None),
            ("Sun, 06 Nov 1994 08:49 GMT", None),
            ("Sun, 06 Foo 1994 08:49:37 GMT", None),
            ("Sun, 06 Nov 1994 08:49:37 UTC", None),
            ("Sun, 06 Nov 1900 08:49:37 GMT", None),
            ("0", None),
            ("-1", None),
            ("", None),
            ("\u{fe0f}", None),
        ] {
            assert_eq!(unix_seconds(text.as_bytes()), seconds, "{text}");
        }
        assert_eq!(unix_seconds(b"\xff"), None);
    }

    proptest::proptest! {
        #[test]
        fn date_takes_any_bytes(text: Vec<u8>, year in 0u64..20_000, day in 0u64..40) {
            unix_seconds(&text);
            unix_seconds(format!("Mon, {day:02} Jan {year} 00:00:00 GMT").as_bytes());
        }

        #[test]
        fn preferred_form_agrees_with_the_crate(
            day in 0usize..8, date in 0u64..33, month in 0usize..13, year in 1960u64..2500,
            clock in (0u64..26, 0u64..62, 0u64..62),
        ) {
            let day = DAYS.get(day).map_or("Day", |day| &day[..3]);
            let month = MONTHS.get(month).map_or(b"Foo", |month| month.0);
            let month = std::str::from_utf8(month).expect("ASCII");
            let (hour, minute, second) = clock;
            let text = format!("{day}, {date:02} {month} {year} {hour:02}:{minute:02}:{second:02} GMT");
            proptest::prop_assert_eq!(preferred(text.as_bytes()), parsed(text.as_bytes()), "{}", text);
        }
    }
}

//! Dates in fields (RFC 9110 section 5.6.7), by the crate `httpdate`.

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

/// Returns the seconds from 1970 to an HTTP date in any of its three forms; `None` for text that
/// is no date, or for one before 1970. Case does not count (RFC 9111 section 4.2), nor does the
/// name of a day that contradicts the date.
pub fn unix_seconds(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text.trim_ascii()).ok()?;
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
    }
}

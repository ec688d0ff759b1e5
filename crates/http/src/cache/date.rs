//! Dates in fields (RFC 9110 section 5.6.7), by the crate `httpdate`.

/// Returns the seconds from 1970 to an HTTP date in any of its three forms; `None` for text that
/// is no date, or for one before 1970.
pub fn unix_seconds(text: &[u8]) -> Option<u64> {
    let parse = |text: &str| httpdate::parse_http_date(text).ok();
    let date = parse(std::str::from_utf8(text.trim_ascii()).ok()?)?;
    let epoch = parse("Thu, 01 Jan 1970 00:00:00 GMT")?;
    Some(date.duration_since(epoch).ok()?.as_secs())
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

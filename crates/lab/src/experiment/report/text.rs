//! Escaping, and numbers with as many digits as they mean.

use tandem_net::stats::Summary;

/// Escapes text for an element or a quoted attribute. Characters that are invalid in XML become a
/// question mark.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' | '\t' => out.push(' '),
            '\u{FFFE}' | '\u{FFFF}' => out.push('?'),
            control if control.is_control() => out.push('?'),
            other => out.push(other),
        }
    }
    out
}

/// Three digits, or all before the point.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        ..0.1 => format!("{value:.3}"),
        ..10.0 => format!("{value:.2}"),
        ..100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// Percent.
pub(crate) fn percent(value: f64) -> String {
    format!("{value:.1} %")
}

/// Percent with its sign.
pub(crate) fn signed(value: f64) -> String {
    format!("{value:+.1} %")
}

/// A median and its spread.
pub(crate) fn spread(all: &Summary) -> String {
    let mut out = number(all.median);
    if all.count > 1 {
        out.push_str(&format!(" ({}–{})", number(all.min), number(all.max)));
    }
    if all.count > 2 {
        out.push_str(&format!(" ±{}", number(all.interval)));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        let values = [
            (0.0, "0"),
            (0.012_34, "0.012"),
            (4.413, "4.41"),
            (22.85, "22.9"),
            (-3.0, "-3.00"),
            (391.2, "391"),
        ];
        for (value, text) in values {
            assert_eq!(number(value), text);
        }
        assert_eq!(
            (percent(81.06), signed(-22.24)),
            ("81.1 %".into(), "-22.2 %".into())
        );
    }

    #[test]
    fn escapes_what_markup_means() {
        assert_eq!(
            escaped("a<b> & \"c\"\u{0}\n"),
            "a&lt;b&gt; &amp; &quot;c&quot;? "
        );
    }

    #[test]
    fn spreads() {
        let of = |values: &[f64]| spread(&Summary::of(values).expect("finite"));
        assert_eq!(
            (of(&[1.0]), of(&[1.0, 3.0])),
            ("1.00".into(), "2.00 (1.00–3.00)".into())
        );
        assert!(of(&[1.0, 2.0, 3.0]).starts_with("2.00 (1.00–3.00) ±2.48"));
    }
}

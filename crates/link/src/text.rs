//! Quantities as people write them: `400ms`, `8mbit`, `1%`, `64kB`.

use std::fmt;
use std::time::Duration;

use jiff::SignedDuration;

use crate::config::ConfigError;

/// Reads a time such as `0`, `250us`, `400ms`, `1.5s` or `2min`, of at most an hour.
pub fn duration(text: &str) -> Result<Duration, ConfigError> {
    let wrong = || ConfigError::Text {
        what: "time",
        text: text.into(),
        expected: "e.g. 400ms or 1.5s, at most 1 hour",
    };
    let text = text.trim();
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let time: SignedDuration = text.parse().map_err(|_| wrong())?;
    Duration::try_from(time)
        .ok()
        .filter(|time| *time <= Duration::from_secs(3600))
        .ok_or_else(wrong)
}

/// Reads a rate in bits per second such as `64kbit`, `8mbit`, `1.5gbit` or `9600bit`. Multiples are
/// decimal.
pub fn bits_per_second(text: &str) -> Result<u64, ConfigError> {
    const UNITS: [(&str, f64); 4] = [("bit", 1.0), ("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)];
    let wrong = || ConfigError::Text {
        what: "rate",
        text: text.into(),
        expected: "e.g. 64kbit, 8mbit or unlimited",
    };
    scaled(text, &UNITS, 1e12).ok_or_else(wrong)
}

/// Reads a probability such as `1%` or `0.01`.
pub fn probability(text: &str) -> Result<f64, ConfigError> {
    let wrong = || ConfigError::Text {
        what: "probability",
        text: text.into(),
        expected: "e.g. 1% or 0.01",
    };
    let (number, unit) = split(text).ok_or_else(wrong)?;
    let p = match unit {
        "%" => number / 100.0,
        "" => number,
        _ => return Err(wrong()),
    };
    if (0.0..=1.0).contains(&p) {
        Ok(p)
    } else {
        Err(wrong())
    }
}

/// Reads a size in bytes such as `1500B`, `64kB` or `1MB`. Multiples are decimal.
pub fn bytes(text: &str) -> Result<usize, ConfigError> {
    const UNITS: [(&str, f64); 3] = [("b", 1.0), ("kb", 1e3), ("mb", 1e6)];
    let wrong = || ConfigError::Text {
        what: "size",
        text: text.into(),
        expected: "e.g. 1500B, 64kB or 1MB",
    };
    let size = scaled(text, &UNITS, 1e9).and_then(|size| usize::try_from(size).ok());
    size.ok_or_else(wrong)
}

/// Reads a number with one of `units`, in any case. Returns `None` if the rounded product is not
/// between 1 and `max`.
fn scaled(text: &str, units: &[(&str, f64)], max: f64) -> Option<u64> {
    let lower = text.to_ascii_lowercase();
    let (number, unit) = split(&lower)?;
    let (_, scale) = units.iter().find(|(name, _)| *name == unit)?;
    let product = (number * scale).round();
    (1.0..=max).contains(&product).then_some(product as u64)
}

/// A time, to be written as [`duration`] reads it.
pub(crate) struct Time(pub(crate) Duration);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ms", self.0.as_nanos() as f64 / 1e6)
    }
}

/// A positive whole number.
pub(crate) fn count(text: &str, what: &'static str) -> Result<u64, ConfigError> {
    let wrong = || ConfigError::Text {
        what,
        text: text.into(),
        expected: "a whole number from 1 to 1000000000",
    };
    text.trim()
        .parse()
        .ok()
        .filter(|n| (1..=1_000_000_000).contains(n))
        .ok_or_else(wrong)
}

/// Splits `1.5ms` into a finite non-negative number and a unit.
fn split(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let number: f64 = text[..end].parse().ok()?;
    number
        .is_finite()
        .then(|| (number, text[end..].trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_usual_spellings() {
        assert_eq!(duration("400ms"), Ok(Duration::from_millis(400)));
        assert_eq!(duration(" 1.5 s "), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        assert_eq!(duration("0.25us"), Ok(Duration::from_nanos(250)));
        assert_eq!(duration("2min"), Ok(Duration::from_secs(120)));
        assert_eq!(bits_per_second("8mbit"), Ok(8_000_000));
        assert_eq!(bits_per_second("1.5Gbit"), Ok(1_500_000_000));
        assert_eq!(probability("1%"), Ok(0.01));
        assert_eq!(probability("0.25"), Ok(0.25));
        assert_eq!(bytes("64kB"), Ok(64_000));
    }

    #[test]
    fn refuses_nonsense_with_the_text_in_the_error() {
        for text in [
            "",
            "ms",
            "-1ms",
            "5",
            "5parsec",
            "1e3s",
            "99999s",
            "..s",
            "\u{b5}s",
            "1\u{2009}s\u{301}",
        ] {
            let error = duration(text).expect_err(text);
            assert!(error.to_string().contains(&format!("{text:?}")), "{error}");
        }
        for text in ["8", "0mbit", "8mb", "99999gbit"] {
            bits_per_second(text).expect_err(text);
        }
        for text in ["101%", "1.01", "-0.1", "5 percent"] {
            probability(text).expect_err(text);
        }
        for text in ["0B", "64", "2000MB"] {
            bytes(text).expect_err(text);
        }
    }
}

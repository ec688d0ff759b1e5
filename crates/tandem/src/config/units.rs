//! Numbers with units, in the form that users write: `400ms`, `8MiB`, `100mbit`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use jiff::SignedDuration;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::textual::textual;

textual!(Span Rate);

/// Splits `12.5ms` into 12.5 and `ms`.
fn split(text: &str) -> Option<(f64, &str)> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let number: f64 = text[..end].parse().ok()?;
    Some((number, text[end..].trim()))
}

/// A length of time, in the spelling of [`SignedDuration`], such as `400ms`, `1.5s` or `1h 30m`. It
/// is written in whole milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is no length of time such as 400ms, 30s, 10m, 2h");
        let time: SignedDuration = text.parse().map_err(|_| bad())?;
        Duration::try_from(time)
            .ok()
            .filter(|d| d.as_secs() < 366 * 86_400)
            .map(Self)
            .ok_or_else(bad)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = (self.0.as_nanos() + 500_000) / 1_000_000;
        if !millis.is_multiple_of(1000) {
            write!(f, "{millis}ms")
        } else if millis > 0 && millis.is_multiple_of(60_000) {
            write!(f, "{}m", millis / 60_000)
        } else {
            write!(f, "{}s", millis / 1000)
        }
    }
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is no number of bytes such as 16384, 16KiB, 8MiB");
        let (number, unit) = split(text).ok_or_else(bad)?;
        let factor: u64 = match unit {
            "" | "B" => 1,
            "kB" => 1000,
            "KiB" => 1 << 10,
            "MB" => 1_000_000,
            "MiB" => 1 << 20,
            "GB" => 1_000_000_000,
            "GiB" => 1 << 30,
            _ => return Err(bad()),
        };
        let bytes = number * factor as f64;
        if bytes > 1e15 {
            Err(bad())
        } else {
            Ok(Self(bytes as u64))
        }
    }
}

/// Reads a text, or a plain number of bytes.
impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SizeVisitor)
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

struct SizeVisitor;

impl Visitor<'_> for SizeVisitor {
    type Value = Size;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of bytes such as 16384 or \"16KiB\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Size, E> {
        self.visit_str(&bytes.to_string())
    }

    fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<Size, E> {
        self.visit_str(&bytes.to_string())
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            n if n > 0 && n.is_multiple_of(1 << 20) => write!(f, "{}MiB", n >> 20),
            n if n > 0 && n.is_multiple_of(1 << 10) => write!(f, "{}KiB", n >> 10),
            n => write!(f, "{n}"),
        }
    }
}

/// A rate in bits per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(pub u64);

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is no rate such as 512kbit, 100mbit, 1gbit");
        let (number, unit) = split(text).ok_or_else(bad)?;
        let factor = match unit {
            "bit" => 1.0,
            "kbit" => 1e3,
            "mbit" => 1e6,
            "gbit" => 1e9,
            _ => return Err(bad()),
        };
        let bits = number * factor;
        if (1.0..=1e12).contains(&bits) {
            Ok(Self(bits as u64))
        } else {
            Err(bad())
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            n if n.is_multiple_of(1_000_000) => write!(f, "{}mbit", n / 1_000_000),
            n if n.is_multiple_of(1000) => write!(f, "{}kbit", n / 1000),
            n => write!(f, "{n}bit"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_parse_and_format() {
        for text in ["400ms", "30s", "10m"] {
            assert_eq!(text.parse::<Span>().unwrap().to_string(), text);
        }
        assert_eq!("1.5s".parse(), Ok(Span(Duration::from_millis(1500))));
        assert_eq!("2h".parse(), Ok(Span(Duration::from_secs(7200))));
        assert_eq!("8MiB".parse::<Size>(), Ok(Size(8 << 20)));
        assert_eq!(Size(16384).to_string(), "16KiB");
        assert_eq!("1.5mbit".parse::<Rate>(), Ok(Rate(1_500_000)));
        for bad in ["", "x", "5", "5parsec", "1e9s", "-1s"] {
            assert!(bad.parse::<Span>().is_err(), "{bad}");
        }
        assert!("999999999GiB".parse::<Size>().is_err());
    }

    #[test]
    fn sizes_may_be_plain_numbers_in_a_file() {
        let size = |value: &str| {
            let table: toml::Table = format!("size = {value}").parse().expect("a table");
            table["size"].clone().try_into::<Size>()
        };
        assert_eq!(size("16384"), Ok(Size(16_384)));
        assert_eq!(size("\"16KiB\""), Ok(Size(16_384)));
        for bad in ["-1", "1000000000000001", "\"x\""] {
            let error = size(bad).expect_err(bad).to_string();
            assert!(error.contains("is no number of bytes such as"), "{error}");
        }
        for bad in ["1.5", "true", "[1]"] {
            let error = size(bad).expect_err(bad).to_string();
            assert!(error.contains("expected a number of bytes"), "{error}");
        }
    }
}

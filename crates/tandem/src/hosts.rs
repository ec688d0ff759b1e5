//! Patterns of host names: those that a reverse gateway serves, and those of a client's routes.

use std::fmt;
use std::str::FromStr;

use crate::endpoint::{literal_ip, split_authority};
use crate::textual::textual;

/// A pattern of host names: `NAME`, `*.SUFFIX`, or `*` for all. Ports are not compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPattern {
    /// Any host.
    Any,
    /// Exactly this host.
    Name(String),
    /// The hosts that end in a dot and this suffix.
    Below(String),
}

impl HostPattern {
    /// Returns whether the pattern matches `host`, which is in lower case. The dot of the root does
    /// not count (RFC 1034 section 3.1).
    pub fn covers(&self, host: &str) -> bool {
        let host = host.strip_suffix('.').unwrap_or(host);
        match self {
            Self::Any => true,
            Self::Name(name) => host == name,
            Self::Below(suffix) => host
                .strip_suffix(suffix.as_str())
                .and_then(|rest| rest.strip_suffix('.'))
                .is_some_and(|label| !label.is_empty()),
        }
    }
}

/// A map from hosts to numbers, in which the most specific pattern decides: a name precedes a
/// suffix, and a long suffix precedes a short one.
#[derive(Clone, Debug, Default)]
pub struct HostMap {
    /// The patterns, most specific first.
    entries: Vec<(HostPattern, usize)>,
}

impl HostMap {
    /// Creates a map of patterns.
    ///
    /// # Errors
    /// Returns the pattern that is given twice.
    pub fn new(mut entries: Vec<(HostPattern, usize)>) -> Result<Self, HostPattern> {
        for (index, (pattern, _)) in entries.iter().enumerate() {
            if entries[..index].iter().any(|(known, _)| known == pattern) {
                return Err(pattern.clone());
            }
        }
        entries.sort_by_key(|(pattern, _)| {
            std::cmp::Reverse(match pattern {
                HostPattern::Name(_) => (2, 0),
                HostPattern::Below(suffix) => (1, suffix.len()),
                HostPattern::Any => (0, 0),
            })
        });
        Ok(Self { entries })
    }

    /// Returns the patterns with their numbers, most specific first.
    pub fn entries(&self) -> &[(HostPattern, usize)] {
        &self.entries
    }

    /// Returns the most specific pattern that covers `host`, which is in lower case, and its
    /// number.
    pub fn find(&self, host: &str) -> Option<(&HostPattern, usize)> {
        let mut entries = self.entries.iter();
        let (pattern, number) = entries.find(|(pattern, _)| pattern.covers(host))?;
        Some((pattern, *number))
    }
}

impl FromStr for HostPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is no host name, *.SUFFIX or *");
        if text == "*" {
            return Ok(Self::Any);
        }
        let (below, name) = text
            .strip_prefix("*.")
            .map_or((false, text), |suffix| (true, suffix));
        let name = name
            .strip_prefix('[')
            .and_then(|name| name.strip_suffix(']'))
            .unwrap_or(name);
        let written = if name.contains(':') {
            format!("[{name}]")
        } else {
            name.to_owned()
        };
        // A port is refused: it would seem to restrict the pattern, but ports are not compared.
        let (host, _) = split_authority(&format!("{written}:0"), None).map_err(|_| bad())?;
        // Hosts are compared without the dot of the root.
        let host = host.strip_suffix('.').unwrap_or(&host);
        let has_empty_label = host.split('.').any(str::is_empty);
        if has_empty_label || (below && literal_ip(name).is_some()) {
            return Err(bad());
        }
        Ok(if below {
            Self::Below(host.to_owned())
        } else {
            Self::Name(host.to_owned())
        })
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Name(name) => f.write_str(name),
            Self::Below(suffix) => write!(f, "*.{suffix}"),
        }
    }
}

textual!(HostPattern);

#[cfg(test)]
mod tests {
    use super::*;

    fn map(patterns: &[&str]) -> HostMap {
        let numbered = patterns.iter().enumerate();
        let parse = |(number, text): (usize, &&str)| (text.parse().expect("a pattern"), number);
        HostMap::new(numbered.map(parse).collect()).expect("distinct patterns")
    }

    #[test]
    fn host_map_prefers_the_most_specific_pattern() {
        let map = map(&["*", "*.example", "*.shop.example", "www.shop.example"]);
        let found = |host| map.find(host).map(|(_, number)| number);
        assert_eq!(found("www.shop.example"), Some(3));
        assert_eq!(found("www.shop.example."), Some(3));
        assert_eq!(found("img.shop.example"), Some(2));
        assert_eq!(found("shop.example"), Some(1));
        assert_eq!(found("example"), Some(0));
        assert_eq!(found("notexample"), Some(0));
    }

    #[test]
    fn pattern_ignores_the_root() {
        for text in ["a.example.", "a.example"] {
            let name: HostPattern = text.parse().expect("a pattern");
            assert!(
                name.covers("a.example") && name.covers("a.example."),
                "{text}"
            );
            let below: HostPattern = format!("*.{text}").parse().expect("a pattern");
            assert!(below.covers("www.a.example."), "{text}");
            assert!(!below.covers("a.example."), "{text}");
        }
        let name: HostPattern = "[2001:db8::1]".parse().expect("a pattern");
        assert!(name.covers("2001:db8::1"));
        for text in ["", ".", "a..b", "a.example..", ".a", "*.", "*..", "*..a"] {
            assert!(text.parse::<HostPattern>().is_err(), "{text}");
        }
    }

    #[test]
    fn host_map_refuses_a_pattern_twice() {
        let twice = ["*.a", "b", "*.A"].map(|text| (text.parse().expect("a pattern"), 0));
        assert_eq!(
            HostMap::new(twice.to_vec()).map(drop),
            Err(HostPattern::Below("a".into()))
        );
    }
}

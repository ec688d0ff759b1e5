//! The host names that a gateway in front of one origin accepts.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::endpoint::{literal_ip, split_authority};

/// A pattern of host names that a gateway in front of one origin accepts: `NAME`, `*.SUFFIX`, or
/// `*` for all. Ports are not compared.
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
    /// Returns whether the pattern matches `host`, which is in lower case.
    pub fn covers(&self, host: &str) -> bool {
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
        if name.is_empty() || name.starts_with('.') || (below && literal_ip(name).is_some()) {
            return Err(bad());
        }
        Ok(if below {
            Self::Below(host)
        } else {
            Self::Name(host)
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

impl<'de> Deserialize<'de> for HostPattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

impl Serialize for HostPattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

//! The option `mode` of the gateway.

use std::str::FromStr;

use tandem_http::Scheme;

use super::submission;
use crate::back::origin::Mode;
use crate::endpoint::split_authority;
use crate::hosts::HostPattern;
use crate::textual::textual;
use crate::transport::Target;

/// The option `mode` as it is written: it selects the origins that a gateway serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModeOption {
    /// The gateway serves the origin that a request names.
    Forward,
    /// The gateway serves the origin that the host and the path of the request name.
    Transparent,
    /// The gateway serves one origin: `http://HOST[:PORT]` or `https://…`.
    Reverse(String),
    /// The gateway takes submissions for a server: `http://HOST[:PORT][/PATH]` or `https://…`.
    Submit(String),
}

impl FromStr for ModeOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            None if text == "forward" => Ok(Self::Forward),
            None if text == "transparent" => Ok(Self::Transparent),
            Some(("reverse", url)) => {
                let mode = Self::Reverse(url.into());
                mode.typed().map(|_| mode)
            }
            Some(("submit", url)) => {
                let mode = Self::Submit(url.into());
                mode.typed().map(|_| mode)
            }
            _ => Err(format!(
                "{text:?} is none of forward, transparent, reverse=URL, submit=URL"
            )),
        }
    }
}

impl ModeOption {
    pub(super) fn typed(&self) -> Result<Mode, String> {
        let url = match self {
            Self::Forward | Self::Transparent => return Ok(Mode::Forward),
            Self::Submit(url) => return submission::origin(url),
            Self::Reverse(url) => url,
        };
        let bad = |problem: &str| format!("reverse={url}: {problem}");
        let (scheme, rest) = url
            .split_once("://")
            .ok_or_else(|| bad("write http://HOST:PORT or https://HOST:PORT"))?;
        let scheme = Scheme::parse(scheme.as_bytes())
            .ok_or_else(|| bad("the scheme is neither http nor https"))?;
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = split_authority(authority, Some(scheme.default_port())).map_err(bad)?;
        let hosts = vec![HostPattern::Name(host.clone())];
        Ok(Mode::Reverse {
            scheme,
            target: Target::new(host, port),
            hosts,
        })
    }
}

impl std::fmt::Display for ModeOption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Forward => f.write_str("forward"),
            Self::Transparent => f.write_str("transparent"),
            Self::Reverse(url) => write!(f, "reverse={url}"),
            Self::Submit(url) => write!(f, "submit={url}"),
        }
    }
}

textual!(ModeOption);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_option_parses_forward_and_reverse() {
        assert_eq!(
            "forward".parse::<ModeOption>().unwrap().typed(),
            Ok(Mode::Forward)
        );
        let reverse = "reverse=https://backend.example"
            .parse::<ModeOption>()
            .unwrap();
        assert!(
            matches!(reverse.typed(), Ok(Mode::Reverse { scheme: Scheme::Https, target, .. }) if target.port == 443)
        );
        for bad in [
            "reverse",
            "reverse=ftp://x",
            "reverse=http://x:y",
            "sideways",
        ] {
            assert!(bad.parse::<ModeOption>().is_err(), "{bad}");
        }
    }
}

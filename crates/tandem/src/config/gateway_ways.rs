//! The ways to one gateway as users write them: `URL,URL`, best first.
//!
//! A comma begins another way if the scheme of an endpoint follows it. A comma in the value of an
//! option, such as a file name, does not.

use std::fmt;
use std::str::FromStr;

use crate::endpoint::{BadEndpoint, Endpoint, Usage};
use crate::textual::textual;

textual!(GatewayWays);

/// The most ways to one gateway.
const MOST: usize = 8;

/// The endpoints of one gateway, best first. There is at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayWays(Vec<Endpoint>);

impl GatewayWays {
    /// Returns the endpoints.
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.0
    }

    /// Returns the last way, which is the one for networks where no other works.
    pub fn last(&self) -> &Endpoint {
        self.0.last().expect("there is at least one way")
    }
}

impl From<Endpoint> for GatewayWays {
    fn from(endpoint: Endpoint) -> Self {
        Self(vec![endpoint])
    }
}

impl FromStr for GatewayWays {
    type Err = BadEndpoint;

    fn from_str(text: &str) -> Result<Self, BadEndpoint> {
        let bad = |problem: &str| BadEndpoint::new(text, problem);
        let ways: Vec<Endpoint> = split(text)
            .into_iter()
            .map(|way| Usage::Gateway.parse(way))
            .collect::<Result<_, _>>()?;
        if ways.len() > MOST {
            return Err(bad("a gateway has at most 8 ways"));
        }
        let is_equal = |a: &Endpoint, b: &Endpoint| {
            (a.session, &a.transport, a.authority()) == (b.session, &b.transport, b.authority())
        };
        for (index, way) in ways.iter().enumerate() {
            if !way.host.eq_ignore_ascii_case(&ways[0].host) {
                return Err(bad(
                    "the ways to one gateway have the same host: give another gateway by another \
                     --gateway",
                ));
            }
            if ways[..index].iter().any(|other| is_equal(way, other)) {
                return Err(bad("a way is given twice"));
            }
        }
        Ok(Self(ways))
    }
}

impl fmt::Display for GatewayWays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, way) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{way}")?;
        }
        Ok(())
    }
}

/// Cuts a text before each endpoint that follows a comma.
fn split(text: &str) -> Vec<&str> {
    let (mut ways, mut begin) = (Vec::new(), 0);
    for (comma, _) in text.match_indices(',') {
        if begins_with_scheme(&text[comma + 1..]) {
            ways.push(&text[begin..comma]);
            begin = comma + 1;
        }
    }
    ways.push(&text[begin..]);
    ways
}

/// Returns true if the text begins with `SESSION://` or `SESSION+TRANSPORT://`.
fn begins_with_scheme(text: &str) -> bool {
    let Some((scheme, _)) = text.split_once("://") else {
        return false;
    };
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '.' | '-');
    scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.chars().all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<GatewayWays, String> {
        text.parse().map_err(|error: BadEndpoint| error.to_string())
    }

    #[test]
    fn comma_before_a_scheme_begins_another_way() {
        let text =
            "h3+quic://gw.example:443?ca=a,b.pem,h3+dtls://gw.example:444,h2+tls://gw.example:443";
        let ways = parse(text).expect("three ways");
        assert_eq!(ways.endpoints().len(), 3);
        assert_eq!(ways.endpoints()[0].option("ca"), Some("a,b.pem"));
        assert_eq!(ways.to_string(), text);
        let one = parse("h2+tls://gw.example:443?ca=a,b/c.pem").expect("an endpoint");
        assert_eq!(one.endpoints().len(), 1);
    }

    #[test]
    fn errors_of_ways_name_the_remedy() {
        for (text, part) in [
            ("h2+tls://a.example:1,h3+quic://b.example:1", "same host"),
            (
                "h2+tls://a.example:1,h2+tls://a.example:1?ip=192.0.2.1",
                "given twice",
            ),
            ("h2+tls://a.example:1,", "port"),
            ("", "HOST:PORT"),
            (&["h2+tls://a.example:1"; 9].join(","), "at most 8"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}

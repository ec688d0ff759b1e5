//! The setup of a page load: the way to the page, the session protocol, requests in flight, and the
//! gateway's pushes, or a client without a gateway.

use std::fmt;
use std::str::FromStr;

use crate::tornet::layout::GATEWAY_PORTS;

/// Connections that browsers open to one host.
pub const BROWSER_CONNECTIONS: usize = 6;

/// The place of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PagePlace {
    /// On the web host, through an exit.
    Exit,
    /// Behind the onion service.
    Onion,
}

impl fmt::Display for PagePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exit => "exit",
            Self::Onion => "onion",
        })
    }
}

/// A session protocol that the network's gateways speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GatewayProtocol {
    /// Returns the protocol's name in endpoint URLs.
    pub name: &'static str,
    /// Port of the gateways that speak it.
    pub port: u16,
}

impl FromStr for GatewayProtocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = GATEWAY_PORTS.iter().find(|(name, _)| *name == text);
        let names = || GATEWAY_PORTS.map(|(name, _)| name).join(", ");
        found
            .map(|&(name, port)| Self { name, port })
            .ok_or_else(|| format!("not one of {}", names()))
    }
}

/// The permitted pushes of the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PushMode {
    /// No pushes: the client takes none
    Off,
    /// Resources that the page itself names, on a first visit to the site
    First,
    /// Resources learned from other users' visits, too
    Visited,
}

/// The visit that a load through a client without a gateway is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SoloVisit {
    /// The first visit of this user
    First,
    /// The second visit: the same client has loaded the page once before, unmeasured
    Visited,
}

/// The resources that a loader over many connections knows when the load begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BoundKnowledge {
    /// The document: the bound of a first visit
    Document,
    /// All resources: the bound of a later visit
    Everything,
}

/// The way to load a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MeasureSetup {
    /// HTTP/1.1 on six connections through the SOCKS port.
    Plain,
    /// The same on many connections, whose first requests leave with the SOCKS handshake. No client
    /// can do much better with the same knowledge.
    Bound {
        /// The number of connections.
        connections: usize,
        /// The resources that the loader knows from the start.
        knows: BoundKnowledge,
    },
    /// Through the pair.
    Pair {
        /// The protocol between client and gateway.
        session: GatewayProtocol,
        /// Requests that the loader has in flight.
        in_flight: usize,
        /// The permitted pushes.
        push: PushMode,
    },
    /// Through a client without a gateway, over six connections.
    Solo {
        /// The visit that is measured.
        visit: SoloVisit,
    },
}

impl MeasureSetup {
    /// Returns the permitted pushes of the gateway, through the pair.
    pub const fn push(self) -> Option<PushMode> {
        match self {
            Self::Plain | Self::Bound { .. } | Self::Solo { .. } => None,
            Self::Pair { push, .. } => Some(push),
        }
    }

    /// Returns whether the client can have a response before it is requested.
    pub fn is_early(self) -> bool {
        match self {
            Self::Plain | Self::Bound { .. } => false,
            Self::Pair { push, .. } => push != PushMode::Off,
            Self::Solo { .. } => true,
        }
    }

    /// Returns whether the page is loaded once before, unmeasured, whatever the plan says.
    pub fn is_second_visit(self) -> bool {
        let visit = SoloVisit::Visited;
        self == Self::Solo { visit }
    }

    /// Returns the pair of this setup without push.
    pub fn without_push(self) -> Option<Self> {
        match self {
            Self::Pair {
                session, in_flight, ..
            } => Some(Self::Pair {
                session,
                in_flight,
                push: PushMode::Off,
            }),
            Self::Plain | Self::Bound { .. } | Self::Solo { .. } => None,
        }
    }
}

impl fmt::Display for MeasureSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain => f.write_str("HTTP/1.1 x6"),
            Self::Bound { connections, knows } => {
                let known = match knows {
                    BoundKnowledge::Document => "",
                    BoundKnowledge::Everything => ", all known",
                };
                write!(f, "HTTP/1.1 x{connections} early{known}")
            }
            Self::Solo { visit } => f.write_str(match visit {
                SoloVisit::First => "solo, first",
                SoloVisit::Visited => "solo, visited",
            }),
            Self::Pair {
                session,
                in_flight,
                push,
            } => {
                let push = match push {
                    PushMode::Off => "",
                    PushMode::First => " push, first",
                    PushMode::Visited => " push, visited",
                };
                write!(f, "{} x{in_flight}{push}", session.name)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_by_name() {
        assert_eq!("h2".parse::<GatewayProtocol>().expect("spoken").port, 9980);
        assert_eq!(
            "spdy3.1".parse::<GatewayProtocol>().expect("spoken").name,
            "spdy3.1"
        );
        assert!(
            "http"
                .parse::<GatewayProtocol>()
                .expect_err("no session of many")
                .contains("h2")
        );
    }

    #[test]
    fn setups_have_names() {
        let session = "h2".parse().expect("spoken");
        let pushed = MeasureSetup::Pair {
            session,
            in_flight: 32,
            push: PushMode::Visited,
        };
        assert_eq!(pushed.to_string(), "h2 x32 push, visited");
        let without = pushed.without_push().expect("a pair");
        assert_eq!(without.to_string(), "h2 x32");
        assert!(pushed.is_early() && !without.is_early() && !pushed.is_second_visit());
        assert_eq!(MeasureSetup::Plain.to_string(), "HTTP/1.1 x6");
    }

    #[test]
    fn bounds_are_no_early_requests() {
        let bound = |knows| MeasureSetup::Bound {
            connections: 64,
            knows,
        };
        let everything = bound(BoundKnowledge::Everything);
        assert_eq!(everything.to_string(), "HTTP/1.1 x64 early, all known");
        assert!(!everything.is_early() && !everything.is_second_visit());
        assert!(everything.push().is_none() && everything.without_push().is_none());
        let document = bound(BoundKnowledge::Document);
        assert_eq!(document.to_string(), "HTTP/1.1 x64 early");
    }

    #[test]
    fn setups_without_a_gateway_have_no_pushes_of_one() {
        let [first, visited] =
            [SoloVisit::First, SoloVisit::Visited].map(|visit| MeasureSetup::Solo { visit });
        assert_eq!(
            (first.to_string(), visited.to_string()),
            ("solo, first".to_owned(), "solo, visited".to_owned())
        );
        assert!(first.is_early() && first.push().is_none() && first.without_push().is_none());
        assert!(visited.is_second_visit() && !first.is_second_visit());
    }
}

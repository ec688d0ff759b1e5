//! The destinations of a client's requests in words, for `tandem explain` and the dashboard.

use super::ClientConfig;
use super::client::{Fallback, SoloMode};
use super::discover::OWN_GATEWAYS;
use super::gateways::GatewayEndpoint;
use crate::endpoint::{is_onion, is_same_onion};
use crate::middle::routes::ONION_REMEDY;

/// The hosts that may announce a gateway, in words.
const ONIONS: &str = "onion services with a gateway";

/// The onion services that a default gateway does not serve, in words.
const APART: &str = "onion services, except that of the default gateway";

/// Returns whether all gateways are at the onion service of a host: any of them may get its
/// requests.
pub(super) fn are_at_onion(gateways: &[GatewayEndpoint], host: &str) -> bool {
    are_same_onion(gateways.iter().map(|gateway| &*gateway.endpoint.host), host)
}

fn are_same_onion<'a>(mut gateways: impl Iterator<Item = &'a str>, host: &str) -> bool {
    gateways.all(|gateway| is_same_onion(gateway, host))
}

/// The hosts without a route that the default gateways serve. A gateway would read requests for an
/// onion service, which authenticates and encrypts by itself. Behind a proxy, a default gateway
/// thus serves no onion service but its own.
#[derive(Clone, Debug)]
pub struct DefaultHosts {
    keeps_onions_apart: bool,
    /// The hosts of the gateways.
    gateways: Vec<String>,
}

impl DefaultHosts {
    /// Returns whether requests for a host without a route go to the default gateways.
    pub fn contains(&self, host: &str) -> bool {
        let gateways = self.gateways.iter().map(String::as_str);
        !(self.keeps_onions_apart && is_onion(host)) || are_same_onion(gateways, host)
    }
}

/// Returns the gateways of one route, and the ways to each, in words.
pub(crate) fn names(gateways: &[GatewayEndpoint]) -> String {
    let mut names: Vec<String> = Vec::new();
    for gateway in gateways {
        match names.last_mut().filter(|_| gateway.is_alternative) {
            Some(last) => *last = format!("{last} or {}", gateway.endpoint),
            None => names.push(gateway.endpoint.to_string()),
        }
    }
    format!("gateway {}", names.join(", then "))
}

impl ClientConfig {
    /// Returns the hosts without a route that the default gateways serve.
    pub fn default_hosts(&self) -> DefaultHosts {
        let gateways = self.gateways.iter();
        DefaultHosts {
            keeps_onions_apart: self.keeps_onions_apart(),
            gateways: gateways.map(|it| it.endpoint.host.clone()).collect(),
        }
    }

    /// Returns whether onion services without a route do not go to the default gateways.
    pub fn keeps_onions_apart(&self) -> bool {
        self.via.is_some() && !self.gateways.is_empty()
    }

    /// Describes the destination of requests for onion services that the default gateways do not
    /// serve.
    pub fn destination_of_onions(&self) -> String {
        match self.fallback {
            Fallback::Via => self.destination(&[]),
            Fallback::None => format!("none: requests fail; {ONION_REMEDY}"),
        }
    }

    /// Describes the destination of requests to these gateways.
    pub fn destination(&self, gateways: &[GatewayEndpoint]) -> String {
        let through = self
            .via
            .as_ref()
            .map_or_else(String::new, |via| format!(", through {via}"));
        if let Some(solo) = self.solo.as_ref().filter(|_| gateways.is_empty()) {
            return match solo.mode {
                SoloMode::Via => format!("solo: to the site{through}"),
                SoloMode::Direct => {
                    "solo: to the site from this machine, which looks up its name".into()
                }
            };
        }
        match (gateways.is_empty(), self.fallback) {
            (false, _) => format!("{}{through}", names(gateways)),
            (true, Fallback::Via) => format!("no gateway{through}"),
            (true, Fallback::None) => {
                "none: requests fail; add --route HOSTS=URL, or --gateway URL for all other sites"
                    .into()
            }
        }
    }

    /// Returns the hosts with opened HTTPS of each level, and a description of it.
    pub fn opened_destinations(&self) -> Vec<(String, String)> {
        let Some(open) = &self.open else {
            return Vec::new();
        };
        let local = "opened on this machine, by the way of its route";
        let gateway =
            "opened on this machine and fetched by the gateway of its route, which reads it";
        let levels = [(&open.hosts, local), (&open.at_gateway, gateway)];
        let used = levels.into_iter().filter(|(hosts, _)| !hosts.is_empty());
        used.map(|(hosts, description)| {
            let names: Vec<_> = hosts.iter().map(ToString::to_string).collect();
            (
                format!("HTTPS of {}", names.join(", ")),
                description.to_owned(),
            )
        })
        .collect()
    }

    /// Returns the hosts and the destination of each route, most specific first. The last one
    /// covers all other hosts.
    pub fn destinations(&self) -> Vec<(String, String)> {
        let entries = self.route_map.entries().iter();
        let mut shown: Vec<_> = entries
            .filter_map(|(hosts, number)| Some((hosts.to_string(), self.routes.get(*number)?)))
            .map(|(hosts, route)| (hosts, self.destination(&route.gateways)))
            .collect();
        if self.discover {
            shown.push((ONIONS.to_owned(), OWN_GATEWAYS.to_owned()));
        }
        let has_onion_route = self.route_map.find("any.onion").is_some();
        if self.keeps_onions_apart() && !has_onion_route {
            shown.push((APART.to_owned(), self.destination_of_onions()));
        }
        let rest = if shown.is_empty() {
            "all hosts"
        } else {
            "all other hosts"
        };
        shown.push((rest.to_owned(), self.destination(&self.gateways)));
        shown
    }
}

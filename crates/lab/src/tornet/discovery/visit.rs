//! A visit of all sites, and its findings.

use std::collections::BTreeSet;

use serde::Serialize;

use super::streams::Streams;
use super::{Approach, Packets};
use crate::tornet::layout::GATEWAY_PORT;
use crate::tornet::state::OnionEndpoint;

/// The visit of all sites by one client.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Visit {
    /// The programs between the loader and the sites.
    pub approach: Approach,
    /// The loads of each site, in their order.
    pub sites: Vec<Vec<PageLoad>>,
    /// The packets of the client.
    pub packets: Packets,
    /// The streams that were opened to origins.
    pub origin_streams: usize,
    /// The streams that the client opened to gateways.
    pub gateway_streams: usize,
    /// The circuits that carried them.
    pub circuits: usize,
    /// Findings that must not be.
    pub faults: Vec<String>,
}

/// The load of a page.
#[derive(Clone, Debug, Serialize)]
pub struct PageLoad {
    /// Seconds from the first byte of the loader to its last.
    pub time_s: f64,
    /// Requests of the loader.
    pub requests: usize,
    /// Requests that went through the site's gateway.
    pub through_gateway: u64,
}

impl Visit {
    /// Returns a line for people.
    pub(super) fn line(&self) -> String {
        let total: f64 = self.sites.iter().flatten().map(|load| load.time_s).sum();
        format!(
            "{:?}: {total:.2} s, {} streams to origins, {} to gateways, {} circuits, packets: {} \
             to SOCKS, {} to the loader, {} elsewhere",
            self.approach,
            self.origin_streams,
            self.gateway_streams,
            self.circuits,
            self.packets.to_socks,
            self.packets.to_programs,
            self.packets.elsewhere
        )
    }

    /// Notes the streams and circuits, and their faults.
    pub(super) fn examine(&mut self, streams: &Streams, sites: &[OnionEndpoint]) {
        let discovers = self.approach == Approach::Discovering;
        let mut faults = circuit_faults(streams);
        if self.packets.elsewhere > 0 {
            faults.push(format!("{} packets went elsewhere", self.packets.elsewhere));
        }
        let (mut origins, mut gateways) = (BTreeSet::new(), Vec::new());
        for stream in streams.all() {
            let (user, target) = (stream.user.as_str(), stream.target.as_str());
            let site = sites.iter().find(|site| site.host == user);
            let rest = target
                .strip_prefix(user)
                .and_then(|rest| rest.strip_prefix(':'));
            match (rest.and_then(|port| port.parse().ok()), site) {
                (Some(80), Some(_)) => {
                    self.origin_streams += 1;
                    origins.insert(user);
                }
                (Some(GATEWAY_PORT), Some(site)) if site.has_gateway && discovers => {
                    gateways.push(user);
                }
                _ => faults.push(format!("a stream with the key {user:?} went to {target}")),
            }
        }
        for (site, loads) in sites.iter().zip(&self.sites) {
            let tried = gateways.iter().filter(|user| **user == site.host).count();
            let carried: u64 = loads.iter().map(|load| load.through_gateway).sum();
            let uses = site.has_gateway && discovers;
            if !origins.contains(site.host.as_str()) {
                faults.push(format!("no stream went to {}", site.host));
            }
            if uses != (tried > 0) || uses != (carried > 0) {
                faults.push(format!(
                    "{}: {tried} streams to a gateway carried {carried} requests",
                    site.host
                ));
            }
        }
        self.gateway_streams = gateways.len();
        self.circuits = streams.users_of_circuits().len();
        self.faults = faults;
    }
}

/// Returns the circuits with streams of several sites, and those that end at another site.
fn circuit_faults(streams: &Streams) -> Vec<String> {
    let mut faults = Vec::new();
    for (circuit, users) in streams.users_of_circuits() {
        if users.len() > 1 {
            faults.push(format!("circuit {circuit} carried streams of {users:?}"));
        }
        let Some(end) = streams.end_of(circuit) else {
            continue;
        };
        let is_other = |user: &&&str| user.strip_suffix(".onion") != Some(end);
        faults.extend(
            users
                .iter()
                .filter(is_other)
                .map(|user| format!("circuit {circuit} for {end:?} carried a stream of {user:?}")),
        );
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Examines a visit of two sites, of which the first has a gateway, with these streams: user,
    /// target and circuit.
    fn faults(discovers: bool, through: [u64; 2], streams: &[(&str, &str, u32)]) -> Vec<String> {
        let sites =
            [("a.onion", true), ("b.onion", false)].map(|(host, has_gateway)| OnionEndpoint {
                host: host.into(),
                page: String::new(),
                has_gateway,
            });
        let events = streams
            .iter()
            .enumerate()
            .flat_map(|(id, (user, to, circuit))| {
                [
                    format!("STREAM {id} NEW 0 {to} SOCKS_USERNAME=\"{user}\""),
                    format!("STREAM {id} SUCCEEDED {circuit} {to}"),
                ]
            });
        let end = "CIRC 9 BUILT PURPOSE=HS_CLIENT_REND REND_QUERY=c".to_owned();
        let events: Vec<_> = events.chain([end]).collect();
        let mut visit = Visit {
            approach: match discovers {
                true => Approach::Discovering,
                false => Approach::Solo,
            },
            sites: through
                .map(|through_gateway| {
                    vec![PageLoad {
                        time_s: 1.0,
                        requests: 2,
                        through_gateway,
                    }]
                })
                .to_vec(),
            ..Visit::default()
        };
        visit.examine(&Streams::of(&events), &sites);
        visit.faults
    }

    #[test]
    fn examine_finds_strange_streams_and_circuits() {
        let (a, b) = (("a.onion", "a.onion:80", 1), ("b.onion", "b.onion:80", 2));
        let gateway = ("a.onion", "a.onion:9980", 1);
        assert_eq!(faults(true, [2, 0], &[a, b, gateway]), [""; 0]);
        assert_eq!(faults(false, [0, 0], &[a, b]), [""; 0]);
        for (discovers, through, streams) in [
            (false, [0, 0], vec![a]),
            (false, [0, 0], vec![a, b, gateway]),
            (true, [0, 0], vec![a, b]),
            (true, [0, 0], vec![a, b, gateway]),
            (true, [2, 2], vec![a, b, gateway]),
            (
                true,
                [2, 0],
                vec![a, b, gateway, ("b.onion", "b.onion:9980", 2)],
            ),
            (
                true,
                [2, 0],
                vec![a, b, gateway, ("a.onion", "b.onion:80", 1)],
            ),
            (true, [2, 0], vec![a, b, gateway, ("", "a.onion:80", 3)]),
            (true, [2, 0], vec![a, b, ("a.onion", "a.onion:9980", 2)]),
            (true, [2, 0], vec![a, b, ("a.onion", "a.onion:9980", 9)]),
        ] {
            assert_ne!(faults(discovers, through, &streams), [""; 0], "{streams:?}");
        }
    }
}

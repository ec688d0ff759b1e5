//! Onion services with a page each, for the discovery of gateways. Some have a gateway in front,
//! which announces itself (`docs/src/discovery.md`).
//!
//! ```text
//!  port 80 ──▶ 127.0.1.N:8080, gateway ─▶ 127.0.1.N:80, origin      a site with a gateway
//!  port 9980 ▶ 127.0.1.N:9980, gateway ──────────┘
//!  port 80 ──▶ 127.0.1.N:80, origin                                 a site without
//! ```

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use super::layout::{GATEWAY_PORT, Node};
use super::torrc::node_directory;

/// The port of a gateway's listener for visitors without Tandem.
const VISITORS_PORT: u16 = 8080;

/// The largest number of services.
pub const MOST_ONIONS: u8 = 50;

/// The onion services of a network, besides its first one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OnionSites {
    /// The number of services.
    pub count: u8,
    /// The number of services with a gateway: the first ones.
    pub gateways: u8,
    /// The pages of the services. With fewer pages than services, they begin again.
    pub pages: Vec<String>,
}

/// A single service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnionSite {
    /// The number of the service, from 1.
    pub number: u8,
    /// True if the service has a gateway.
    pub has_gateway: bool,
}

impl OnionSites {
    /// Returns the services.
    pub fn sites(&self) -> impl Iterator<Item = OnionSite> {
        let gateways = self.gateways;
        (1..=self.count).map(move |number| OnionSite {
            number,
            has_gateway: number <= gateways,
        })
    }

    /// Returns the page of a service.
    pub fn page(&self, site: OnionSite) -> &str {
        let mut pages = self.pages.iter().cycle();
        let page = pages.nth(usize::from(site.number.saturating_sub(1)));
        page.map_or("", String::as_str)
    }

    /// Returns the lines of all services in the configuration of the node's `tor`.
    pub(super) fn torrc(&self, root: &Path, node: &Node) -> String {
        let mut out = String::new();
        for site in self.sites() {
            let (directory, address) = (site.directory(root, node), site.address());
            let port = match site.has_gateway {
                true => VISITORS_PORT,
                false => 80,
            };
            let _ = writeln!(
                out,
                "HiddenServiceDir {}\nHiddenServicePort 80 {address}:{port}",
                directory.display()
            );
            if site.has_gateway {
                let _ = writeln!(
                    out,
                    "HiddenServicePort {GATEWAY_PORT} {address}:{GATEWAY_PORT}"
                );
            }
        }
        out
    }
}

impl OnionSite {
    /// The loopback address of the service's programs.
    fn address(self) -> Ipv4Addr {
        Ipv4Addr::new(127, 0, 1, self.number)
    }

    /// The directory with the service's keys and name.
    pub(super) fn directory(self, root: &Path, node: &Node) -> PathBuf {
        node_directory(root, node).join(format!("service{}", self.number))
    }

    /// Returns the listening address of the service's origin.
    pub(super) fn origin(self) -> String {
        format!("{}:80", self.address())
    }

    /// Returns the command line of the service's gateway.
    pub(super) fn gateway_arguments(self, host: &str) -> Vec<String> {
        let address = self.address();
        let line = format!(
            "gateway --listen http://{address}:{VISITORS_PORT} \
             --listen h2+tcp://{address}:{GATEWAY_PORT} --mode reverse=http://{address}:80 \
             --open --hold-out 0 --allow-host {host}"
        );
        line.split(' ').map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tornet::{Layout, Role};
    use std::time::Duration;

    #[test]
    fn services_with_a_gateway_have_two_ports() {
        let layout = Layout::new("t", 0, Duration::ZERO, Duration::ZERO);
        let onions = OnionSites {
            count: 2,
            gateways: 1,
            pages: Vec::new(),
        };
        let lines = onions.torrc(Path::new("/run"), layout.node(Role::Onion));
        let expected = "HiddenServiceDir /run/onion/service1\n\
                        HiddenServicePort 80 127.0.1.1:8080\n\
                        HiddenServicePort 9980 127.0.1.1:9980\n\
                        HiddenServiceDir /run/onion/service2\n\
                        HiddenServicePort 80 127.0.1.2:80\n";
        assert_eq!(lines, expected);
    }

    #[test]
    fn services_have_the_pages_in_turn() {
        let onions = OnionSites {
            count: 3,
            gateways: 0,
            pages: vec!["a".into(), "b".into()],
        };
        let pages: Vec<_> = onions.sites().map(|site| onions.page(site)).collect();
        assert_eq!(pages, ["a", "b", "a"]);
    }
}

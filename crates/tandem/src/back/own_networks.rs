//! The machine's own addresses, and the networks of its interfaces.
//!
//! Both can be public. A firewall at the edge of such a network does not stand between its machines
//! and the gateway, as in an office or at home with IPv6. In a network of a hosting provider, the
//! neighbours are other customers, and their sites are refused too. The largest such network has
//! 65,536 IPv4 addresses, and the operator can permit them.
//!
//! The list of networks is at most half a minute old. Own addresses are also recognised by the
//! address from which the system would send.

use std::io;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use if_addrs::IfAddr;

use super::own::is_this_machine;

/// The age at which the list is read again.
const FRESH_FOR: Duration = Duration::from_secs(30);

/// The shortest prefixes of a network on one link, for IPv4 and IPv6. The address of a tunnel may
/// have a shorter one, which would cover most of the Internet.
const SHORTEST: (u8, u8) = (16, 48);

/// The networks of the process's machine.
static NETWORKS: Mutex<Networks> = Mutex::new(Networks {
    list: Vec::new(),
    read: None,
    has_failed: false,
});

/// Returns true if an address belongs to this machine or to a network of its interfaces.
pub(super) fn contain(ip: IpAddr) -> bool {
    // Other threads use the old list meanwhile.
    if networks().must_read(Instant::now()) {
        let found = read();
        networks().replace(found);
    }
    // The guard is dropped before the system is asked.
    let is_listed = networks().covers(ip);
    is_listed || is_this_machine(ip)
}

/// Reads the networks for the first time, so that a machine without descriptors finds a list.
pub(super) fn prepare() {
    contain(IpAddr::from([127, 0, 0, 1]));
}

fn networks() -> MutexGuard<'static, Networks> {
    NETWORKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the networks of the machine's interfaces.
fn read() -> io::Result<Vec<Network>> {
    let found = if_addrs::get_if_addrs()?;
    Ok(found.iter().map(|it| Network::of(&it.addr)).collect())
}

/// The networks of the interfaces.
#[derive(Debug)]
struct Networks {
    list: Vec<Network>,
    /// The time of the last attempt to read the list.
    read: Option<Instant>,
    has_failed: bool,
}

/// An address of an interface, and the length of its network's prefix in bits.
#[derive(Clone, Copy, Debug)]
struct Network {
    own: IpAddr,
    bits: u8,
}

impl Networks {
    /// Returns true if the list is too old, once for each time that it becomes so.
    fn must_read(&mut self, now: Instant) -> bool {
        let is_fresh = |at: Instant| now.saturating_duration_since(at) < FRESH_FOR;
        let must_read = !self.read.is_some_and(is_fresh);
        if must_read {
            self.read = Some(now);
        }
        must_read
    }

    /// Takes over a new list. One that could not be read leaves the old list.
    fn replace(&mut self, found: io::Result<Vec<Network>>) {
        match found {
            Ok(list) => {
                self.list = list;
                self.has_failed = false;
            }
            Err(error) if !self.has_failed => {
                self.has_failed = true;
                tracing::warn!(
                    %error,
                    "the networks of this machine cannot be read, so a connection to a public \
                     address in them may be permitted: permit sockets of AF_NETLINK, or add rules \
                     to the firewall"
                );
            }
            Err(_) => {}
        }
    }

    fn covers(&self, ip: IpAddr) -> bool {
        self.list.iter().any(|network| network.covers(ip))
    }
}

impl Network {
    fn of(address: &IfAddr) -> Self {
        let (own, bits) = match address {
            IfAddr::V4(it) => (it.ip.into(), it.prefixlen),
            IfAddr::V6(it) => (it.ip.into(), it.prefixlen),
        };
        Self { own, bits }
    }

    /// Returns true if the network contains an address, or if that is the interface's own.
    fn covers(&self, ip: IpAddr) -> bool {
        let shortest = match self.own {
            IpAddr::V4(_) => SHORTEST.0,
            IpAddr::V6(_) => SHORTEST.1,
        };
        self.own == ip || (self.bits >= shortest && have_common_prefix(self.own, ip, self.bits))
    }
}

/// Returns true if two addresses of one family agree in their first `bits`.
pub(super) fn have_common_prefix(one: IpAddr, other: IpAddr, bits: u8) -> bool {
    let same = match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        (IpAddr::V6(one), IpAddr::V6(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        _ => return false,
    };
    same >= bits.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn network_contains_itself_and_its_neighbours() {
        for (own, bits, asked, expected) in [
            ("5.6.7.8", 24, "5.6.7.8", true),
            ("5.6.7.8", 24, "5.6.7.254", true),
            ("5.6.7.8", 24, "5.6.8.8", false),
            ("5.6.7.8", 32, "5.6.7.9", false),
            ("5.6.7.8", 1, "5.6.7.8", true),
            ("5.6.7.8", 1, "5.6.7.9", false),
            ("2a02:1234:5:6::1", 64, "2a02:1234:5:6::254", true),
            ("2a02:1234:5:6::1", 64, "2a02:1234:5:7::254", false),
            ("2a02:1234:5:6::1", 128, "2a02:1234:5:6::254", false),
            ("2a02:1234:5:6::1", 0, "2a02:1234:5:6::2", false),
            ("5.6.7.8", 24, "2a02:1234:5:6::1", false),
        ] {
            let network = Network { own: ip(own), bits };
            assert_eq!(network.covers(ip(asked)), expected, "{own}/{bits} {asked}");
        }
    }

    #[test]
    fn own_address_is_in_own_networks() {
        for address in ["127.0.0.1", "127.9.9.9", "::1"] {
            assert!(contain(ip(address)), "{address}");
        }
        assert!(!contain(ip("192.0.66.1")));
    }

    #[test]
    fn list_is_read_again_and_outlives_a_failure() {
        let list = |own| {
            vec![Network {
                own: ip(own),
                bits: 24,
            }]
        };
        let mut networks = Networks {
            list: list("5.6.7.8"),
            read: None,
            has_failed: false,
        };
        let start = Instant::now();
        assert!(networks.must_read(start));
        networks.replace(Err(io::ErrorKind::Other.into()));
        assert!(networks.has_failed && networks.covers(ip("5.6.7.9")));
        assert!(!networks.must_read(start + FRESH_FOR / 2));
        assert!(networks.must_read(start + FRESH_FOR));
        networks.replace(Ok(list("9.9.9.9")));
        assert!(!networks.has_failed && networks.covers(ip("9.9.9.1")));
        assert!(!networks.covers(ip("5.6.7.9")));
    }
}

//! Unused addresses for a link, chosen so that links nest: each link has a separate network with
//! room for the links inside, and that whole network lies behind its command.
//!
//! The networks are parts of 100.64.0.0/10, shared address space (RFC 6598): an outermost link has
//! a prefix of 20 bits, and each link inside has four bits more.

use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::net::{IpAddr, Ipv4Addr};

use tandem_net::emulator::EmulatorError;
use tandem_net::emulator::router::Prefix;
use tandem_net::emulator::rtnl::Rtnl;

/// Tells links inside which network is theirs to divide.
pub(crate) const NETWORK: &str = "TANDEM_LINK_NETWORK";

const SHARED: Prefix = Prefix {
    base: Ipv4Addr::new(100, 64, 0, 0),
    bits: 10,
};
const OUTERMOST_BITS: u8 = 20;
const BITS_PER_LEVEL: u8 = 4;
/// Smallest network with room for two addresses that are neither its first nor its last.
const LAST_BITS: u8 = 28;

/// The addresses of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Addresses {
    /// Everything behind the link.
    pub(crate) network: Prefix,
    /// The address of the host outside.
    pub(crate) peer: Ipv4Addr,
    /// The address of the command.
    pub(crate) own: Ipv4Addr,
}

impl Addresses {
    /// Finds a free network, inside that of the link around if there is one.
    pub(crate) fn choose() -> Result<Self, EmulatorError> {
        let around = std::env::var(NETWORK).ok().and_then(|text| parse(&text));
        if around.is_some() {
            // This namespace belongs to the link around, and from now on lies on the way between
            // two links.
            let _ = std::fs::write("/proc/sys/net/ipv4/ip_forward", "1");
        }
        let used = Rtnl::open().and_then(|mut rtnl| rtnl.addresses());
        let used = used.map_err(EmulatorError::of("ask for addresses in use"))?;
        let random = RandomState::new().hash_one(std::process::id()) as u32;
        let network = free_network(around, &used, random)
            .map_err(EmulatorError::of("find free addresses"))?;
        let address = |n| Ipv4Addr::from_bits(network.base.to_bits() + n);
        Ok(Self {
            network,
            peer: address(2),
            own: address(3),
        })
    }
}

/// A part of `around` with no used address, beginning the search at a random place.
fn free_network(around: Option<Prefix>, used: &[IpAddr], random: u32) -> io::Result<Prefix> {
    let whole = around.unwrap_or(SHARED);
    let bits = around.map_or(OUTERMOST_BITS, |network| network.bits + BITS_PER_LEVEL);
    if bits > LAST_BITS {
        return Err(io::Error::other(
            "links are nested too deeply: three at most",
        ));
    }
    // The first part holds the addresses of the link around itself.
    let parts = (1u32 << (bits - whole.bits)) - 1;
    let part = |n: u32| {
        let base = whole.base.to_bits() + ((random.wrapping_add(n) % parts + 1) << (32 - bits));
        Prefix {
            base: Ipv4Addr::from_bits(base),
            bits,
        }
    };
    let free = (0..parts)
        .map(part)
        .find(|network| !used.iter().any(|address| network.contains(*address)));
    free.ok_or_else(|| io::ErrorKind::AddrInUse.into())
}

fn parse(text: &str) -> Option<Prefix> {
    let (base, bits) = text.split_once('/')?;
    let network = Prefix {
        base: base.parse().ok()?,
        bits: bits.parse().ok()?,
    };
    let valid = network.bits >= OUTERMOST_BITS
        && network.bits <= LAST_BITS
        && SHARED.contains(network.base.into());
    valid.then_some(network)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_parts_of_the_one_around_and_free() {
        let outer = free_network(None, &[], 12345).expect("free");
        assert!(SHARED.contains(outer.base.into()) && outer.bits == 20);
        let inner = free_network(Some(outer), &[], 7).expect("free");
        assert!(outer.contains(inner.base.into()) && inner.base != outer.base && inner.bits == 24);
        let used = IpAddr::V4(Ipv4Addr::from_bits(inner.base.to_bits() + 2));
        assert_ne!(
            free_network(Some(outer), &[used], 7).expect("another"),
            inner
        );
        let innermost = free_network(Some(inner), &[], 0).expect("free");
        free_network(Some(innermost), &[], 0).expect_err("too deep");
    }

    #[test]
    fn a_full_network_is_an_error() {
        let outer = Prefix {
            base: Ipv4Addr::new(100, 64, 16, 0),
            bits: 24,
        };
        let used: Vec<IpAddr> = (0..16)
            .map(|n| Ipv4Addr::new(100, 64, 16, n * 16 + 2).into())
            .collect();
        let error = free_network(Some(outer), &used, 3).expect_err("full");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn the_network_around_is_checked() {
        assert_eq!(
            parse("100.64.16.0/20"),
            Some(Prefix {
                base: Ipv4Addr::new(100, 64, 16, 0),
                bits: 20
            })
        );
        for text in [
            "",
            "100.64.16.0",
            "100.64.16.0/8",
            "10.0.0.0/20",
            "100.64.0.0/33",
            "x/20",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}

//! IPv4 addresses inside IPv6 addresses, for the rules about destinations and the numbers of users.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Returns the IPv4 address in an address of NAT64 with the well-known prefix (RFC 6052 section
/// 2.1).
pub(crate) const fn of_nat64(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    match ip.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => Some(joined(high, low)),
        _ => None,
    }
}

/// Returns the IPv4 address in an address of 6to4 (RFC 3056 section 2).
pub(crate) const fn of_6to4(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    match ip.segments() {
        [0x2002, high, low, ..] => Some(joined(high, low)),
        _ => None,
    }
}

const fn joined(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from_bits((high as u32) << 16 | low as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_with_the_prefix_have_an_inner_one() {
        let inner = Some(Ipv4Addr::new(192, 0, 2, 33));
        for (address, nat64, relay) in [
            ("64:ff9b::c000:221", inner, None),
            ("64:ff9b:1::c000:221", None, None),
            ("64:ff9b::1:c000:221", None, None),
            ("2002:c000:221::", None, inner),
            ("2002:c000:221:5:6:7:8:9", None, inner),
            ("2001:c000:221::", None, None),
            ("::ffff:192.0.2.33", None, None),
        ] {
            let ip = address.parse().expect("an address");
            assert_eq!((of_nat64(ip), of_6to4(ip)), (nat64, relay), "{address}");
        }
    }
}

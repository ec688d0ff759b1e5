//! The numbers of users, for the predictor and the cache, which count the users that know a URL.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::OnceLock;

use tandem_fleet::{GatewayId, UserKey};

use crate::embedded::of_nat64;

/// A secret that turns addresses into numbers without meaning outside this process, or outside the
/// gateways that share a key.
#[derive(Debug, Default)]
pub struct Users {
    secret: RandomState,
    fleet: OnceLock<(UserKey, GatewayId)>,
}

impl Users {
    /// Gives users the same numbers as other gateways with this key do. Only the first call has an
    /// effect, and it must precede the first user.
    pub fn share(&self, key: UserKey, own: GatewayId) {
        self.fleet.get_or_init(|| (key, own));
    }

    /// Returns the number of the user behind a session. All sessions of a public address are one
    /// user. Where many users may share an address, as behind Tor or a tunnel, each session counts
    /// as one.
    pub fn number(&self, session: u64, address: Option<IpAddr>) -> u64 {
        match address.filter(|address| is_public(address.to_canonical())) {
            Some(address) => match subscriber(address) {
                IpAddr::V4(address) => self.hash(&address.octets()),
                IpAddr::V6(address) => self.hash(&address.octets()[..8]),
            },
            None => self.of_session(session),
        }
    }

    fn hash(&self, network: &[u8]) -> u64 {
        match self.fleet.get() {
            Some((key, _)) => key.number(network),
            None => self.secret.hash_one(network),
        }
    }

    /// Returns the number of a session. The numbers of sessions repeat in other gateways.
    fn of_session(&self, session: u64) -> u64 {
        match self.fleet.get() {
            Some((key, own)) => key.number(&[&own.0[..], &session.to_be_bytes()].concat()),
            None => self.secret.hash_one(session),
        }
    }
}

/// Returns the part of an address by which limits tell clients apart: an IPv4 address, or the 64
/// bits of an IPv6 network. A network of this size belongs to one subscriber, who chooses and
/// changes the addresses in it (RFC 8981). A translator between IPv4 and IPv6 puts all its clients
/// into one network, so the IPv4 address counts there (RFC 6052, the well-known prefix). The
/// loopback address stays as it is.
pub fn subscriber(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(ip) if !ip.is_loopback() => match of_nat64(ip) {
            Some(inner) => inner.into(),
            None => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        },
        ip => ip,
    }
}

/// Returns true if an address is public. RFC 6890 lists those that are not.
const fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let shared = matches!(v4.octets(), [100, 64..128, ..]);
            !(v4.is_private()
                || v4.is_loopback()
                || v4.is_link_local()
                || v4.is_documentation()
                || shared)
        }
        IpAddr::V6(v6) => !(v6.is_loopback() || v6.is_unique_local() || v6.is_unicast_link_local()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateways_of_a_fleet_number_users_alike() {
        let gateway = |number, secret| {
            let users = Users::default();
            let key = tandem_fleet::FleetKey::new(&[secret; 32]).unwrap();
            users.share(key.of_users(), GatewayId([number; 16]));
            users
        };
        let (one, other, stranger) = (gateway(1, 7), gateway(2, 7), gateway(1, 8));
        for text in ["9.9.9.9", "2620:fe::9"] {
            let address = Some(text.parse().unwrap());
            assert_eq!(one.number(1, address), other.number(2, address));
            assert_ne!(one.number(1, address), stranger.number(1, address));
        }
        let near = Some("127.0.0.1".parse().unwrap());
        assert_eq!(one.number(1, near), one.number(1, None));
        assert_ne!(one.number(1, near), other.number(1, near));
    }

    #[test]
    fn subscriber_is_an_address_or_a_network_of_64_bits() {
        for (address, expected) in [
            ("9.9.9.9", "9.9.9.9"),
            ("::ffff:9.9.9.9", "9.9.9.9"),
            ("2620:fe:1:2:3:4:5:6", "2620:fe:1:2::"),
            ("64:ff9b::9.9.9.9", "9.9.9.9"),
            ("64:ff9b:1::9.9.9.9", "64:ff9b:1::"),
            ("fe80::1:2", "fe80::"),
            ("::1", "::1"),
            ("::ffff:127.0.0.1", "127.0.0.1"),
        ] {
            let [address, expected] = [address, expected].map(|it| it.parse().unwrap());
            assert_eq!(subscriber(address), expected);
        }
    }

    #[test]
    fn user_is_a_public_address_or_one_session() {
        let users = Users::default();
        let address = |text: &str| Some(text.parse().unwrap());
        let is_one = |text: &str| users.number(1, address(text)) == users.number(2, address(text));
        assert!(is_one("9.9.9.9") && is_one("2620:fe::9") && is_one("::ffff:9.9.9.9"));
        for (one, same) in [
            ("2620:fe::9", "2620:fe::1:2:3:4"),
            ("9.9.9.9", "::ffff:9.9.9.9"),
        ] {
            assert_eq!(
                users.number(1, address(one)),
                users.number(2, address(same))
            );
        }
        for shared in [
            "127.0.0.1",
            "192.0.2.80",
            "10.1.2.3",
            "100.96.0.2",
            "::1",
            "fd00::1",
            "::ffff:127.0.0.1",
        ] {
            assert!(!is_one(shared), "{shared}");
        }
    }
}

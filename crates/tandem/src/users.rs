//! The numbers of users, for the predictor and the cache, which count the users that know a URL.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::IpAddr;

/// A secret that turns addresses into numbers without meaning outside this process.
#[derive(Debug, Default)]
pub struct Users(RandomState);

impl Users {
    /// Returns the number of the user behind a session. All sessions of a public address are one
    /// user. Where many users may share an address, as behind Tor or a tunnel, each session counts
    /// as one.
    pub fn number(&self, session: u64, address: Option<IpAddr>) -> u64 {
        match address
            .map(|address| address.to_canonical())
            .filter(|address| is_public(*address))
        {
            Some(IpAddr::V4(address)) => self.0.hash_one(address),
            // A network of this size belongs to one subscriber, with changing addresses (RFC 8981).
            Some(IpAddr::V6(address)) => self.0.hash_one(&address.octets()[..8]),
            None => self.0.hash_one(session),
        }
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

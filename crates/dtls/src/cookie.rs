//! Cookies: proof that a client receives datagrams at its address (RFC 9147, section 5.1), which
//! the gateway checks without any state for the client.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ring::hkdf::{HKDF_SHA256, Prk};
use ring::hmac;
use subtle::ConstantTimeEq as _;

use crate::envelope::{AssociationId, Cookie, Nonce};

/// The time after which the key of cookies changes. A cookie is valid for up to twice as long.
const PERIOD: Duration = Duration::from_secs(30);

/// Returns the key of one purpose. Proofs for another purpose are not valid with it.
pub(crate) fn key(secret: &[u8; 32], purpose: &[u8]) -> hmac::Key {
    let (secret, info) = (Prk::new_less_safe(HKDF_SHA256, secret), [purpose]);
    let key = secret.expand(&info, hmac::HMAC_SHA256);
    key.expect("HKDF gives keys of this length").into()
}

/// Returns the bytes of an address, whichever form an IPv4 address has.
pub(crate) const fn ip_bytes(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// Makes and checks the cookies of one listener. All threads share it.
#[derive(Debug)]
pub struct Cookies {
    pub(crate) key: hmac::Key,
}

impl Cookies {
    /// Creates the cookies of a listener from a secret of 32 random bytes.
    pub fn new(secret: &[u8; 32]) -> Self {
        Self {
            key: key(secret, b"tandem dtls cookie"),
        }
    }

    fn tag(&self, period: u64, address: SocketAddr, nonce: &Nonce) -> [u8; 16] {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(&period.to_be_bytes());
        context.update(&ip_bytes(address.ip()));
        context.update(&address.port().to_be_bytes());
        context.update(nonce);
        let tag = context.sign();
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&tag.as_ref()[..16]);
        bytes
    }

    /// Returns the cookie for an address, and the id of the association that it permits. `now` is
    /// the time since the start of the listener.
    pub fn make(
        &self,
        now: Duration,
        address: SocketAddr,
        nonce: &Nonce,
    ) -> (AssociationId, Cookie) {
        self.of_period(now.as_secs() / PERIOD.as_secs(), address, nonce)
    }

    fn of_period(
        &self,
        period: u64,
        address: SocketAddr,
        nonce: &Nonce,
    ) -> (AssociationId, Cookie) {
        let tag = self.tag(period, address, nonce);
        let (mut id, mut cookie) = ([0; 4], [0; 12]);
        id.copy_from_slice(&tag[..4]);
        cookie.copy_from_slice(&tag[4..]);
        (AssociationId::new(id).of_cookie(), cookie)
    }

    /// Returns the id that belongs to a cookie, or `None` if the cookie is not valid for the
    /// address, or is too old.
    pub fn check(
        &self,
        now: Duration,
        address: SocketAddr,
        nonce: &Nonce,
        cookie: &Cookie,
    ) -> Option<AssociationId> {
        let period = now.as_secs() / PERIOD.as_secs();
        [Some(period), period.checked_sub(1)]
            .into_iter()
            .flatten()
            .find_map(|period| {
                let (id, own) = self.of_period(period, address, nonce);
                bool::from(own.ct_eq(cookie)).then_some(id)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookie_belongs_to_address_nonce_and_time() {
        let cookies = Cookies::new(&[3; 32]);
        let address: SocketAddr = "192.0.2.1:4000".parse().expect("an address");
        let (start, nonce) = (Duration::from_secs(100), [1; 8]);
        let (id, cookie) = cookies.make(start, address, &nonce);
        let check = |after, address, nonce: &Nonce, cookie: &Cookie| {
            cookies.check(start + Duration::from_secs(after), address, nonce, cookie)
        };
        assert_eq!(check(0, address, &nonce, &cookie), Some(id));
        assert_eq!(check(30, address, &nonce, &cookie), Some(id));
        assert_eq!(check(60, address, &nonce, &cookie), None);
        let other = SocketAddr::new(address.ip(), 4001);
        assert_eq!(check(0, other, &nonce, &cookie), None);
        assert_eq!(check(0, address, &[2; 8], &cookie), None);
        assert_eq!(check(0, address, &nonce, &[0; 12]), None);
        let others = Cookies::new(&[4; 32]);
        assert_eq!(others.check(start, address, &nonce, &cookie), None);
    }
}

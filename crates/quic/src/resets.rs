//! The keys of stateless resets (RFC 9000 section 10.3), which outlive the process.
//!
//! A gateway that was restarted gets packets of connections that it does not know. It answers them
//! with a token that only the gateway of the connection can know, and the client connects again at
//! once. The keys derive from the private key of the certificate, so nothing is stored. They also
//! depend on the address of the socket: a token for a connection at one address cannot be had from
//! another (section 21.11).

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use quinn::EndpointConfig;
use quinn_proto::HashedConnectionIdGenerator;
use ring::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};
use ring::hmac;

/// The salt, which separates these keys from other uses of the private key.
const SALT: &[u8] = b"tandem quic stateless reset";

/// The secret of a gateway.
#[derive(Clone)]
pub(crate) struct Resets(Prk);

impl fmt::Debug for Resets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resets")
    }
}

/// The length of a key in bytes.
struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

impl Resets {
    /// Derives the secret from the private key of a certificate.
    pub(crate) fn new(private_key: &[u8]) -> Self {
        Self(Salt::new(HKDF_SHA256, SALT).extract(private_key))
    }

    /// Returns the parameters of the endpoint at this address.
    pub(crate) fn endpoint(&self, address: SocketAddr) -> EndpointConfig {
        let token = hmac::Key::new(hmac::HMAC_SHA256, &self.derive::<32>(b"token", address));
        // The numbers of connections that are not of this gateway get no reset.
        let number = u64::from_be_bytes(self.derive(b"connection", address));
        let mut config = EndpointConfig::new(Arc::new(token));
        config.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(number)));
        config
    }

    fn derive<const N: usize>(&self, label: &[u8], address: SocketAddr) -> [u8; N] {
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        let (ip, port) = (ip.octets(), address.port().to_be_bytes());
        let mut key = [0; N];
        self.0
            .expand(&[label, &ip, &port], Length(N))
            .and_then(|okm| okm.fill(&mut key))
            .expect("HKDF expands to a few bytes");
        key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_depend_on_private_key_address_and_use() {
        let address: SocketAddr = "192.0.2.1:443".parse().expect("an address");
        let key = |private: &[u8], label: &[u8], address| {
            Resets::new(private).derive::<32>(label, address)
        };
        let own = key(b"private", b"token", address);
        assert_eq!(
            key(b"private", b"token", address),
            own,
            "of another process"
        );
        assert_ne!(key(b"another", b"token", address), own);
        assert_ne!(key(b"private", b"connection", address), own);
        for other in ["192.0.2.1:444", "192.0.2.2:443"] {
            let other = other.parse().expect("an address");
            assert_ne!(key(b"private", b"token", other), own);
        }
    }
}

//! The key of a fleet, and the keys derived from it (HKDF, RFC 5869).

use ring::aead::{CHACHA20_POLY1305, LessSafeKey, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Prk, Salt};

use crate::record::GatewayId;

/// The least length of the secret, in bytes.
const MIN_SECRET: usize = 32;

/// The reason for which a secret cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a key of {length} bytes is too short: it needs {MIN_SECRET}, such as those of \
     openssl rand -base64 32"
)]
pub struct KeyError {
    /// The length of the secret without white space around it, in bytes.
    length: usize,
}

/// The key that all gateways of a fleet have in common.
#[derive(Clone)]
pub struct FleetKey(Prk);

impl FleetKey {
    /// Derives the key from a secret, such as the content of a file. White space around the secret
    /// does not count.
    ///
    /// # Errors
    /// Returns an error if the secret is shorter than 32 bytes.
    pub fn new(secret: &[u8]) -> Result<Self, KeyError> {
        let secret = secret.trim_ascii();
        if secret.len() < MIN_SECRET {
            return Err(KeyError {
                length: secret.len(),
            });
        }
        Ok(Self(
            Salt::new(HKDF_SHA256, b"tandem fleet 1").extract(secret),
        ))
    }

    /// Returns the key for the records of one gateway. Each run of a gateway has another identifier,
    /// so that sequence numbers can serve as nonces.
    pub(crate) fn of_records(&self, gateway: GatewayId) -> LessSafeKey {
        let info = [&b"records"[..], &gateway.0];
        let key = self
            .0
            .expand(&info, &CHACHA20_POLY1305)
            .expect("the length of the key is one that HKDF can derive");
        LessSafeKey::new(UnboundKey::from(key))
    }
}

/// Shows no secret.
impl std::fmt::Debug for FleetKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FleetKey")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_needs_enough_bytes() {
        let error = FleetKey::new(b"  too short\n").unwrap_err();
        assert!(error.to_string().contains("9 bytes") && error.to_string().contains("openssl"));
        let key = FleetKey::new(&[7; MIN_SECRET]).unwrap();
        assert_eq!(format!("{key:?}"), "FleetKey");
    }
}

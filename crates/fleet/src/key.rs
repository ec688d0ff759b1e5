//! The key of a fleet, and the keys derived from it (HKDF, RFC 5869).

use ring::aead::{CHACHA20_POLY1305, LessSafeKey, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Prk, Salt};
use ring::hmac;

use crate::record::GatewayId;
use crate::sightings::NameHash;

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
    /// does not count, except in random bytes that need it to be long enough.
    ///
    /// # Errors
    /// Returns an error if the secret is shorter than 32 bytes.
    pub fn new(secret: &[u8]) -> Result<Self, KeyError> {
        let trimmed = secret.trim_ascii();
        if trimmed.len() >= MIN_SECRET {
            return Ok(Self::derived(trimmed));
        }
        // Random bytes are no text, and their first or last one may look like white space.
        if secret.len() >= MIN_SECRET && std::str::from_utf8(secret).is_err() {
            return Ok(Self::derived(secret));
        }
        Err(KeyError {
            length: trimmed.len(),
        })
    }

    /// Derives the key from random bytes. All of them count, also those that look like white space.
    pub fn of_random(secret: &[u8; MIN_SECRET]) -> Self {
        Self::derived(secret)
    }

    fn derived(secret: &[u8]) -> Self {
        Self(Salt::new(HKDF_SHA256, b"tandem fleet 1").extract(secret))
    }

    /// Returns the key for the records of one gateway. Each run of a gateway has another
    /// identifier, so that sequence numbers can serve as nonces.
    pub(crate) fn of_records(&self, gateway: GatewayId) -> LessSafeKey {
        self.cipher(b"records", gateway)
    }

    /// Returns the key for the responses of one gateway.
    pub(crate) fn of_responses(&self, gateway: GatewayId) -> LessSafeKey {
        self.cipher(b"responses", gateway)
    }

    /// Returns the key for the responses that one run of a gateway keeps on its disk.
    pub(crate) fn of_disk(&self, run: GatewayId) -> LessSafeKey {
        self.cipher(b"disk", run)
    }

    /// Returns the key that hides names.
    #[must_use]
    pub fn of_names(&self) -> NameKey {
        NameKey(self.hmac(b"names"))
    }

    /// Returns the key that hides users.
    #[must_use]
    pub fn of_users(&self) -> UserKey {
        UserKey(self.hmac(b"users"))
    }

    /// Returns the key that hides the targets of responses.
    #[must_use]
    pub fn of_targets(&self) -> TargetKey {
        TargetKey(self.hmac(b"targets"))
    }

    /// Returns the key that hides the targets of responses on a disk.
    #[must_use]
    pub fn of_files(&self) -> TargetKey {
        TargetKey(self.hmac(b"files"))
    }

    fn cipher(&self, use_of: &[u8], gateway: GatewayId) -> LessSafeKey {
        let info = [use_of, &gateway.0];
        let key = self.0.expand(&info, &CHACHA20_POLY1305);
        let key = key.expect("the length of the key is one that HKDF can derive");
        LessSafeKey::new(UnboundKey::from(key))
    }

    fn hmac(&self, info: &[u8]) -> hmac::Key {
        let info = [info];
        let key = self.0.expand(&info, hmac::HMAC_SHA256);
        hmac::Key::from(key.expect("the length of the key is one that HKDF can derive"))
    }
}

/// The key that turns names into hashes, the same at all gateways.
#[derive(Clone, Debug)]
pub struct NameKey(hmac::Key);

impl NameKey {
    pub(crate) fn hash(&self, name: &str) -> NameHash {
        truncated(&hmac::sign(&self.0, name.as_bytes()))
    }
}

/// The key that turns users into numbers, the same at all gateways.
#[derive(Clone, Debug)]
pub struct UserKey(hmac::Key);

impl UserKey {
    /// Returns the number of a user, such as of the bytes of an address.
    #[must_use]
    pub fn number(&self, user: &[u8]) -> u64 {
        u64::from_be_bytes(truncated(&hmac::sign(&self.0, user)))
    }
}

/// The key that turns the targets of responses into names, the same at all gateways.
#[derive(Clone, Debug)]
pub struct TargetKey(hmac::Key);

impl TargetKey {
    /// Returns the name of a target. Gateways with another `scope`, such as other rules for
    /// origins, have other names.
    #[must_use]
    pub fn name(&self, scope: &[u8], target: &[u8]) -> NameHash {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(&(scope.len() as u64).to_be_bytes());
        context.update(scope);
        context.update(target);
        truncated(&context.sign())
    }
}

fn truncated<const LENGTH: usize>(tag: &hmac::Tag) -> [u8; LENGTH] {
    let first = tag.as_ref().first_chunk();
    *first.expect("a tag of HMAC-SHA256 has 32 bytes")
}

/// Compares hashes of the keys.
impl PartialEq for FleetKey {
    fn eq(&self, other: &Self) -> bool {
        self.of_names().hash("") == other.of_names().hash("")
    }
}

/// Shows no secret.
impl std::fmt::Debug for FleetKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FleetKey")
    }
}

/// Returns a key for tests. It depends on the byte only.
#[cfg(test)]
pub(crate) fn test_key(byte: u8) -> FleetKey {
    FleetKey::new(&[byte; MIN_SECRET]).expect("enough bytes")
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

    #[test]
    fn white_space_counts_in_random_bytes_only() {
        let mut random = [0xa5; MIN_SECRET];
        for at in [0, MIN_SECRET - 1] {
            for byte in *b" \t\n\x0c\r" {
                random[at] = byte;
                let key = FleetKey::new(&random).expect("32 bytes");
                assert!(key == FleetKey::of_random(&random), "{byte} at {at}");
            }
            random[at] = 0xa5;
        }
        random[0] = b'\n';
        assert!(FleetKey::new(&random[..31]).is_err(), "31 bytes");
        let text = b"b3BlbnNzbCByYW5kIC1iYXNlNjQgMzIu";
        let line = [&text[..], b"\n"].concat();
        assert!(FleetKey::new(text) == FleetKey::new(&line));
        let short = [&text[..31], b"\n"].concat();
        assert!(FleetKey::new(&short).is_err(), "a text of 31 letters");
    }

    #[test]
    fn random_bytes_are_a_key_without_a_cut() {
        let mut bytes = [7; MIN_SECRET];
        bytes[MIN_SECRET - 1] = b'\n';
        assert!(FleetKey::new(&bytes).is_err());
        let key = FleetKey::of_random(&bytes);
        bytes[MIN_SECRET - 1] = b' ';
        assert!(key != FleetKey::of_random(&bytes));
    }

    #[test]
    fn keys_of_a_fleet_give_equal_numbers() {
        let (one, same, other) = (test_key(1), test_key(1), test_key(2));
        assert_eq!(one.of_users().number(b"a"), same.of_users().number(b"a"));
        assert_ne!(one.of_users().number(b"a"), one.of_users().number(b"b"));
        assert_ne!(one.of_users().number(b"a"), other.of_users().number(b"a"));
        assert_eq!(one.of_names().hash("a"), same.of_names().hash("a"));
        assert_ne!(one.of_names().hash("a"), other.of_names().hash("a"));
        let target =
            |key: &FleetKey, scope: &[u8], target: &[u8]| key.of_targets().name(scope, target);
        assert_eq!(target(&one, b"s", b"a"), target(&same, b"s", b"a"));
        assert_ne!(target(&one, b"s", b"a"), target(&one, b"", b"sa"));
        assert_ne!(target(&one, b"s", b"a"), target(&other, b"s", b"a"));
        assert!(one == same && one != other);
        assert!(!format!("{:?}{:?}", one.of_names(), one.of_users()).contains("[1, 1"));
    }
}

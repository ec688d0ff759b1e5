//! Responses that a gateway lends to the others, or keeps on its disk: encrypted, each under the
//! name of its target. All numbers are big endian.
//!
//! ```text
//! "TFC1" or "TDC1" · gateway (16 bytes) · number (8) · ciphertext · tag (16)
//! plaintext: length (4) · content · zeros up to a multiple of 1,024 bytes
//! ```
//!
//! The clear part and the name are the associated data, so nobody can put a response under another
//! name. The number is the nonce, and each run of a gateway has another key.

use ring::aead::{Aad, LessSafeKey};

use crate::key::FleetKey;
use crate::record::{GatewayId, nonce};
use crate::sightings::NameHash;

const CLEAR: usize = 4 + 16 + 8;
const PADDED_TO: usize = 1024;

/// The place that keeps sealed responses. Each place has other keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeper {
    /// The engine, for the other gateways.
    Engine,
    /// The disk of a gateway.
    Disk,
}

impl Keeper {
    const fn magic(self) -> &'static [u8; 4] {
        match self {
            Self::Engine => b"TFC1",
            Self::Disk => b"TDC1",
        }
    }

    /// The longest content, in bytes.
    const fn max_content(self) -> usize {
        match self {
            Self::Engine => 96 << 10,
            Self::Disk => (1 << 20) + (32 << 10),
        }
    }

    /// The longest sealed response, in bytes.
    #[must_use]
    pub const fn max_sealed(self) -> usize {
        CLEAR + 4 + self.max_content() + PADDED_TO + 16
    }

    fn key(self, key: &FleetKey, gateway: GatewayId) -> LessSafeKey {
        match self {
            Self::Engine => key.of_responses(gateway),
            Self::Disk => key.of_disk(gateway),
        }
    }
}

/// The writer of the responses of one gateway.
#[derive(Debug)]
pub struct ResponseSealer {
    keeper: Keeper,
    key: LessSafeKey,
    gateway: GatewayId,
    number: u64,
}

impl ResponseSealer {
    /// Creates the writer for a run of a gateway. The identifier must be random: two writers with
    /// the same one would use a nonce twice.
    #[must_use]
    pub fn new(keeper: Keeper, key: &FleetKey, gateway: GatewayId) -> Self {
        Self {
            keeper,
            key: keeper.key(key, gateway),
            gateway,
            number: 0,
        }
    }

    /// Encrypts a response for its name. Returns `None` for one that is too long.
    pub fn seal(&mut self, name: &NameHash, content: &[u8]) -> Option<Vec<u8>> {
        let length = u32::try_from(content.len()).ok()?;
        if content.len() > self.keeper.max_content() {
            return None;
        }
        let mut plain = Vec::with_capacity(4 + content.len() + PADDED_TO + 16);
        plain.extend_from_slice(&length.to_be_bytes());
        plain.extend_from_slice(content);
        plain.resize(plain.len().next_multiple_of(PADDED_TO), 0);
        let mut sealed = self.keeper.magic().to_vec();
        sealed.extend_from_slice(&self.gateway.0);
        sealed.extend_from_slice(&self.number.to_be_bytes());
        let nonce = nonce(self.number);
        self.number += 1;
        self.key
            .seal_in_place_append_tag(nonce, Aad::from(associated(&sealed, name)), &mut plain)
            .expect("a response is shorter than the limit of the cipher");
        sealed.append(&mut plain);
        Some(sealed)
    }
}

/// Decrypts the response of a name. Returns `None` for bytes that no gateway with this key wrote
/// for this name and place.
#[must_use]
pub fn open(
    keeper: Keeper,
    key: &FleetKey,
    name: &NameHash,
    mut sealed: Vec<u8>,
) -> Option<Vec<u8>> {
    if sealed.len() > keeper.max_sealed() {
        return None;
    }
    let (clear, _) = sealed.split_first_chunk::<CLEAR>()?;
    let (gateway, number) = clear
        .strip_prefix(keeper.magic())?
        .split_first_chunk::<16>()?;
    let number = u64::from_be_bytes(*number.first_chunk()?);
    let (gateway, associated) = (GatewayId(*gateway), associated(clear, name));
    let mut plain = sealed.split_off(CLEAR);
    let opened = keeper
        .key(key, gateway)
        .open_in_place(nonce(number), Aad::from(associated), &mut plain)
        .ok()?;
    let (length, rest) = opened.split_first_chunk()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    if length > rest.len() {
        return None;
    }
    plain.truncate(4 + length);
    plain.drain(..4);
    Some(plain)
}

fn associated(clear: &[u8], name: &NameHash) -> Vec<u8> {
    [clear, name].concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::key::test_key;

    proptest! {
        #[test]
        fn response_opens_under_its_name_only(
            content in prop::collection::vec(any::<u8>(), 0..4000),
            at: prop::sample::Index,
            bit in 0..8_u32,
        ) {
            let mut sealer = ResponseSealer::new(Keeper::Disk, &test_key(1), GatewayId([3; 16]));
            let name = [5; 16];
            sealer.seal(&name, b"an earlier one").expect("short");
            let sealed = sealer.seal(&name, &content).expect("short");
            prop_assert_eq!(open(Keeper::Disk, &test_key(1), &name, sealed.clone()), Some(content));
            prop_assert_eq!(open(Keeper::Disk, &test_key(1), &[6; 16], sealed.clone()), None);
            prop_assert_eq!(open(Keeper::Disk, &test_key(2), &name, sealed.clone()), None);
            let mut changed = sealed.clone();
            changed[at.index(sealed.len())] ^= 1 << bit;
            prop_assert_eq!(open(Keeper::Disk, &test_key(1), &name, changed), None);
            prop_assert_eq!(open(Keeper::Engine, &test_key(1), &name, sealed.clone()), None);
            let cut = sealed[..at.index(sealed.len())].to_vec();
            prop_assert_eq!(open(Keeper::Disk, &test_key(1), &name, cut), None);
        }
    }

    #[test]
    fn response_has_a_longest_content() {
        for keeper in [Keeper::Engine, Keeper::Disk] {
            let mut sealer = ResponseSealer::new(keeper, &test_key(1), GatewayId([3; 16]));
            let longest = vec![1; keeper.max_content()];
            let sealed = sealer.seal(&[5; 16], &longest).expect("allowed");
            assert!(sealed.len() <= keeper.max_sealed());
            assert!(open(keeper, &test_key(1), &[5; 16], sealed).is_some());
            let longer = [longest, vec![1]].concat();
            assert_eq!(sealer.seal(&[5; 16], &longer), None);
            let long = vec![0; keeper.max_sealed() + 1];
            assert_eq!(open(keeper, &test_key(1), &[5; 16], long), None);
        }
    }
}

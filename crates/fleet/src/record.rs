//! The format of records. All numbers are big endian.
//!
//! ```text
//! "TFR1" · gateway (16 bytes) · sequence (8) · ciphertext · tag (16)
//! plaintext: time (8) · kind (1) · length (4) · content · zeros up to a multiple of 1,024 bytes
//! ```
//!
//! The cipher is ChaCha20-Poly1305 (RFC 8439). The clear part is the associated data, and the
//! sequence number is the nonce. Each run of a gateway has another identifier, and hence another
//! key.

use ring::aead::{Aad, CHACHA20_POLY1305, Nonce};

use crate::key::FleetKey;
use crate::sightings::NameHash;

const MAGIC: &[u8; 4] = b"TFR1";
const CLEAR: usize = MAGIC.len() + 16 + 8;
const INNER: usize = 8 + 1 + 4;
const PADDED_TO: usize = 1024;

/// The longest content of a record, in bytes.
pub const MAX_CONTENT: usize = 256 * 1024;

/// The longest record, in bytes.
pub const MAX_RECORD: usize = CLEAR + INNER + MAX_CONTENT + PADDED_TO + 16;

/// A random number for one run of a gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GatewayId(pub [u8; 16]);

/// The content of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Learned statistics, as `tandem_predict::Gains` writes them.
    Gains(Vec<u8>),
    /// Reports of users, as [`Sightings`](crate::sightings::Sightings) writes them.
    Users(Vec<u8>),
    /// The names of targets that an unsafe request has invalidated.
    Invalidated(Vec<NameHash>),
    /// A kind that a later version of the program writes. This version ignores it.
    Unknown(u8),
}

/// A record of a gateway that has the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The gateway that wrote the record.
    pub gateway: GatewayId,
    /// The number of the record among those of this gateway, from 0.
    pub sequence: u64,
    /// The time at the gateway, in seconds since 1970.
    pub time: u64,
    /// The content.
    pub content: Content,
}

/// The reason for which bytes are no record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The bytes do not begin as a record does, or have an impossible length.
    #[error("not a record of this version")]
    Foreign,
    /// The bytes were changed, or written with another key.
    #[error("a record that was changed or written with another key")]
    Forged,
    /// A holder of the key wrote bytes that are no record.
    #[error("a record of a gateway with a malformed content")]
    Malformed,
}

/// The content is longer than [`MAX_CONTENT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a record cannot hold {0} bytes")]
pub struct ContentTooLong(usize);

/// The writer of the records of one gateway.
#[derive(Debug)]
pub struct Sealer {
    key: ring::aead::LessSafeKey,
    gateway: GatewayId,
    sequence: u64,
}

impl Sealer {
    /// Creates the writer for a run of a gateway. The identifier must be random: two writers with
    /// the same one would use a nonce twice.
    #[must_use]
    pub fn new(key: &FleetKey, gateway: GatewayId) -> Self {
        Self {
            key: key.of_records(gateway),
            gateway,
            sequence: 0,
        }
    }

    /// Encrypts the next record.
    ///
    /// # Errors
    /// Returns an error if the content is longer than [`MAX_CONTENT`].
    pub fn seal(&mut self, time: u64, content: &Content) -> Result<Vec<u8>, ContentTooLong> {
        let (kind, bytes) = match content {
            Content::Gains(bytes) => (GAINS, &bytes[..]),
            Content::Users(bytes) => (USERS, &bytes[..]),
            Content::Invalidated(names) => (INVALIDATED, names.as_flattened()),
            Content::Unknown(kind) => (*kind, &[][..]),
        };
        let too_long = ContentTooLong(bytes.len());
        let length = u32::try_from(bytes.len()).map_err(|_| too_long)?;
        if bytes.len() > MAX_CONTENT {
            return Err(too_long);
        }
        let mut plain = Vec::with_capacity(INNER + bytes.len() + PADDED_TO + 16);
        plain.extend_from_slice(&time.to_be_bytes());
        plain.push(kind);
        plain.extend_from_slice(&length.to_be_bytes());
        plain.extend_from_slice(bytes);
        plain.resize(plain.len().next_multiple_of(PADDED_TO), 0);
        let mut record = clear(self.gateway, self.sequence).to_vec();
        let nonce = nonce(self.sequence);
        self.sequence += 1;
        self.key
            .seal_in_place_append_tag(nonce, Aad::from(&record), &mut plain)
            .expect("a record is shorter than the limit of the cipher");
        record.append(&mut plain);
        Ok(record)
    }
}

const GAINS: u8 = 1;
const USERS: u8 = 2;
const INVALIDATED: u8 = 3;

impl Record {
    /// Decrypts a record and checks that a gateway with this key wrote it.
    ///
    /// # Errors
    /// Returns the reason for which the bytes are no record.
    pub fn open(key: &FleetKey, bytes: &[u8]) -> Result<Self, RecordError> {
        let (start, sealed) = bytes
            .split_first_chunk::<CLEAR>()
            .ok_or(RecordError::Foreign)?;
        let is_whole = sealed.len() >= CHACHA20_POLY1305.tag_len() && bytes.len() <= MAX_RECORD;
        let rest = start.strip_prefix(MAGIC).filter(|_| is_whole);
        let (gateway, sequence) = rest
            .and_then(|rest| rest.split_first_chunk::<16>())
            .ok_or(RecordError::Foreign)?;
        let sequence = sequence.first_chunk().ok_or(RecordError::Foreign)?;
        let (gateway, sequence) = (GatewayId(*gateway), u64::from_be_bytes(*sequence));
        let mut sealed = sealed.to_vec();
        let plain = key
            .of_records(gateway)
            .open_in_place(nonce(sequence), Aad::from(start), &mut sealed)
            .map_err(|_| RecordError::Forged)?;
        let (time, content) = decode(plain).ok_or(RecordError::Malformed)?;
        Ok(Self {
            gateway,
            sequence,
            time,
            content,
        })
    }
}

/// Parses the plaintext of a record: its time in seconds since 1970, and its content. Returns
/// `None` for other bytes.
#[must_use]
pub fn decode(plain: &[u8]) -> Option<(u64, Content)> {
    let (time, rest) = plain.split_first_chunk()?;
    let (&kind, rest) = rest.split_first()?;
    let (length, rest) = rest.split_first_chunk()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let (content, padding) = rest.split_at_checked(length)?;
    let content = match kind {
        GAINS => Content::Gains(content.to_vec()),
        USERS => Content::Users(content.to_vec()),
        INVALIDATED => match content.as_chunks() {
            (names, []) => Content::Invalidated(names.to_vec()),
            _ => return None,
        },
        kind => Content::Unknown(kind),
    };
    let is_padding = padding.len() < PADDED_TO && padding.iter().all(|byte| *byte == 0);
    is_padding.then(|| (u64::from_be_bytes(*time), content))
}

fn clear(gateway: GatewayId, sequence: u64) -> [u8; CLEAR] {
    let mut clear = [0; CLEAR];
    clear[..4].copy_from_slice(MAGIC);
    clear[4..20].copy_from_slice(&gateway.0);
    clear[20..].copy_from_slice(&sequence.to_be_bytes());
    clear
}

pub(crate) fn nonce(sequence: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&sequence.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::key::test_key;

    proptest! {
        #[test]
        fn record_opens_as_it_was_sealed(
            content in prop::collection::vec(any::<u8>(), 0..4000),
            time: u64,
            gateway: [u8; 16],
        ) {
            let mut sealer = Sealer::new(&test_key(1), GatewayId(gateway));
            for sequence in 0..3 {
                let content = Content::Gains(content.clone());
                let sealed = sealer.seal(time, &content).expect("short");
                let record = Record::open(&test_key(1), &sealed).expect("sealed with this key");
                let gateway = GatewayId(gateway);
                prop_assert_eq!(record, Record { gateway, sequence, time, content });
                prop_assert_eq!(Record::open(&test_key(2), &sealed), Err(RecordError::Forged));
            }
        }

        #[test]
        fn changed_record_is_refused(
            at: prop::sample::Index,
            bit in 0..8_u32,
            cut: prop::sample::Index,
        ) {
            let mut sealer = Sealer::new(&test_key(1), GatewayId([3; 16]));
            let sealed = sealer.seal(7, &Content::Gains(vec![5; 100])).expect("short");
            let mut changed = sealed.clone();
            changed[at.index(sealed.len())] ^= 1 << bit;
            prop_assert!(Record::open(&test_key(1), &changed).is_err());
            prop_assert!(Record::open(&test_key(1), &sealed[..cut.index(sealed.len())]).is_err());
        }
    }

    #[test]
    fn record_shows_neither_content_nor_exact_length() {
        let mut sealer = Sealer::new(&test_key(1), GatewayId([3; 16]));
        let mut sealed = |text: &str| sealer.seal(7, &Content::Gains(text.into())).expect("short");
        let (one, other) = (sealed("http://h/secret"), sealed("http://h/longer/secret"));
        assert_eq!(one.len(), other.len());
        assert!(!one.windows(6).any(|part| part == b"secret"));
    }

    #[test]
    fn record_has_a_longest_content() {
        let mut sealer = Sealer::new(&test_key(1), GatewayId([3; 16]));
        let longest = sealer.seal(0, &Content::Gains(vec![1; MAX_CONTENT]));
        assert!(Record::open(&test_key(1), &longest.expect("allowed")).is_ok());
        assert!(
            sealer
                .seal(0, &Content::Gains(vec![1; MAX_CONTENT + 1]))
                .is_err()
        );
    }

    #[test]
    fn names_of_targets_are_whole() {
        let names = Content::Invalidated(vec![[1; 16], [2; 16]]);
        let sealed = Sealer::new(&test_key(1), GatewayId([3; 16])).seal(7, &names);
        let record = Record::open(&test_key(1), &sealed.expect("short")).expect("sealed");
        assert_eq!(record.content, names);
        let plain = |length: u8| [&[0; 8][..], &[INVALIDATED, 0, 0, 0, length], &[1; 16]].concat();
        assert!(decode(&plain(16)).is_some() && decode(&plain(15)).is_none());
    }

    #[test]
    fn later_kinds_are_told_apart() {
        let sealed = Sealer::new(&test_key(1), GatewayId([3; 16])).seal(0, &Content::Unknown(200));
        let record = Record::open(&test_key(1), &sealed.expect("short")).expect("sealed");
        assert_eq!(record.content, Content::Unknown(200));
    }
}

//! The content of a file of digests: a section for each gateway, sealed for it.
//!
//! ```text
//!  file     = magic (16) · salt (32) · section*, at most 16
//!  section  = name (16) · time (8) · count (2) · nonce (12)
//!             · ChaCha20-Poly1305( response*, at most 1,024 )
//!  response = hash of the URL (4) · seconds of its lifetime that were left (4)
//! ```
//!
//! Numbers are big-endian. The time is that of the last use of the section, in seconds of Unix
//! time. Name and key of a section are derived from the salt, and from the gateways' addresses with
//! their access token. A section therefore shows neither the gateway nor the URLs, and opens for
//! the same gateways with the same token only. The bytes before the sealed ones are authenticated
//! with them.

use std::time::Duration;

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};
use tandem_push::client::MAX_RESPONSES;

const MAGIC: &[u8; 16] = b"tandem digests 1";
const SALT: usize = 32;
const NAME: usize = 16;
const TAG: usize = 16;
/// The bytes of a section before the sealed ones.
const HEAD: usize = NAME + 8 + 2 + NONCE_LEN;
/// The bytes of one response.
const RESPONSE: usize = 8;
/// The largest number of sections.
pub(super) const MAX_SECTIONS: usize = 16;
/// The largest number of bytes of a file.
pub(crate) const MAX_FILE: usize =
    MAGIC.len() + SALT + MAX_SECTIONS * (HEAD + MAX_RESPONSES * RESPONSE + TAG);

/// The reason for which bytes are no file of digests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The file begins in another way.
    #[error("it was not written as a file of digests: remove it, or name another file")]
    Foreign,
    /// The file is cut off, too long or has bytes behind its end.
    #[error("it is damaged")]
    Damaged,
}

/// The secret of a file, from which the keys of its sections are derived.
pub(super) type Salt = [u8; SALT];

/// The digest of one gateway, as it is in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Section {
    pub(super) name: [u8; NAME],
    /// The time of the last use, in seconds of Unix time.
    pub(super) time: u64,
    count: u16,
    nonce: [u8; NONCE_LEN],
    sealed: Vec<u8>,
}

/// A response: the hash of its URL, and the rest of its lifetime.
pub(super) type Response = (u32, Duration);

/// The name and the key of the sections for one gateway.
pub(super) struct SectionKey {
    pub(super) name: [u8; NAME],
    key: LessSafeKey,
}

impl SectionKey {
    /// Derives name and key from the salt of a file and the description of the gateways.
    pub(super) fn derive(salt: &Salt, owner: &[u8]) -> Self {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, salt);
        let derived = |use_of: &[u8]| hmac::sign(&secret, &[use_of, owner].concat());
        let key = UnboundKey::new(&CHACHA20_POLY1305, derived(b"key ").as_ref());
        let mut name = [0; NAME];
        name.copy_from_slice(&derived(b"name ").as_ref()[..NAME]);
        Self {
            name,
            key: LessSafeKey::new(key.expect("both have 32 bytes")),
        }
    }

    /// Seals the last responses of a digest. Fails if the system has no random numbers.
    pub(super) fn seal(
        &self,
        time: u64,
        responses: impl ExactSizeIterator<Item = Response>,
    ) -> Option<Section> {
        let surplus = responses.len().saturating_sub(MAX_RESPONSES);
        let mut content = Vec::new();
        for (url, rest) in responses.skip(surplus) {
            let rest = u32::try_from(rest.as_secs()).unwrap_or(u32::MAX);
            content.extend_from_slice(&url.to_be_bytes());
            content.extend_from_slice(&rest.to_be_bytes());
        }
        let mut section = Section {
            name: self.name,
            time,
            count: u16::try_from(content.len() / RESPONSE).ok()?,
            nonce: random()?,
            sealed: Vec::new(),
        };
        let nonce = Nonce::assume_unique_for_key(section.nonce);
        let head = Aad::from(section.head());
        self.key
            .seal_in_place_append_tag(nonce, head, &mut content)
            .ok()?;
        section.sealed = content;
        Some(section)
    }

    /// Returns the responses of a section; `None` if another key has sealed it.
    pub(super) fn open(&self, section: &Section) -> Option<Vec<Response>> {
        let mut content = section.sealed.clone();
        let nonce = Nonce::assume_unique_for_key(section.nonce);
        let head = Aad::from(section.head());
        let content = self.key.open_in_place(nonce, head, &mut content).ok()?;
        let (responses, _) = content.as_chunks::<RESPONSE>();
        let read = |[a, b, c, d, e, f, g, h]: [u8; RESPONSE]| {
            let rest = u32::from_be_bytes([e, f, g, h]);
            (
                u32::from_be_bytes([a, b, c, d]),
                Duration::from_secs(rest.into()),
            )
        };
        Some(responses.iter().copied().map(read).collect())
    }
}

impl Section {
    fn head(&self) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        let parts = [
            &self.name[..],
            &self.time.to_be_bytes(),
            &self.count.to_be_bytes(),
            &self.nonce,
        ];
        for (to, from) in head.iter_mut().zip(parts.concat()) {
            *to = from;
        }
        head
    }
}

/// Returns new random bytes. Fails if the system has none.
pub(super) fn random<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).ok()?;
    Some(bytes)
}

/// Writes a file.
pub(super) fn write<'a>(salt: &Salt, sections: impl Iterator<Item = &'a Section>) -> Vec<u8> {
    let mut file = [&MAGIC[..], salt].concat();
    for section in sections.take(MAX_SECTIONS) {
        file.extend_from_slice(&section.head());
        file.extend_from_slice(&section.sealed);
    }
    file
}

/// Reads a file. It must be complete, and within its bounds.
pub(super) fn parse(file: &[u8]) -> Result<(Salt, Vec<Section>), FormatError> {
    let rest = file.strip_prefix(MAGIC).ok_or(FormatError::Foreign)?;
    let (salt, mut rest) = rest.split_first_chunk().ok_or(FormatError::Damaged)?;
    let mut sections = Vec::new();
    while !rest.is_empty() {
        let (section, after) = Section::parse(rest).ok_or(FormatError::Damaged)?;
        if sections.len() >= MAX_SECTIONS {
            return Err(FormatError::Damaged);
        }
        sections.push(section);
        rest = after;
    }
    Ok((*salt, sections))
}

impl Section {
    /// Reads the first section. Returns the bytes behind it too.
    fn parse(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (name, rest) = bytes.split_first_chunk()?;
        let (time, rest) = rest.split_first_chunk()?;
        let (count, rest) = rest.split_first_chunk()?;
        let (nonce, rest) = rest.split_first_chunk()?;
        let count = u16::from_be_bytes(*count);
        let responses = usize::from(count);
        if responses > MAX_RESPONSES {
            return None;
        }
        let (sealed, rest) = rest.split_at_checked(responses * RESPONSE + TAG)?;
        let section = Self {
            name: *name,
            time: u64::from_be_bytes(*time),
            count,
            nonce: *nonce,
            sealed: sealed.to_vec(),
        };
        Some((section, rest))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SALT_OF_TEST: Salt = [7; SALT];

    fn responses(count: u32) -> Vec<Response> {
        let second = |number: u32| (number, Duration::from_secs(number.into()));
        (0..count).map(second).collect()
    }

    fn sealed(owner: &[u8], count: u32) -> Section {
        let key = SectionKey::derive(&SALT_OF_TEST, owner);
        let section = key.seal(5, responses(count).into_iter());
        section.expect("random numbers")
    }

    #[test]
    fn section_opens_for_its_owner_only() {
        let section = sealed(b"gateway", 3);
        let open = |salt, owner: &[u8]| SectionKey::derive(salt, owner).open(&section);
        assert_eq!(open(&SALT_OF_TEST, b"gateway"), Some(responses(3)));
        assert_eq!(open(&SALT_OF_TEST, b"another"), None);
        assert_eq!(open(&[8; SALT], b"gateway"), None);
        let mut later = section.clone();
        later.time += 1;
        let key = SectionKey::derive(&SALT_OF_TEST, b"gateway");
        assert_eq!(key.open(&later), None, "the time is authenticated");
    }

    #[test]
    fn section_keeps_the_last_responses() {
        let most = MAX_RESPONSES as u32;
        let section = sealed(b"gateway", most + 2);
        let key = SectionKey::derive(&SALT_OF_TEST, b"gateway");
        let kept = key.open(&section).expect("its own");
        assert_eq!((kept.len(), kept[0].0), (MAX_RESPONSES, 2));
        let sections = vec![section; MAX_SECTIONS + 1];
        let file = write(&SALT_OF_TEST, sections.iter());
        assert_eq!(file.len(), MAX_FILE);
        let (_, read) = parse(&file).expect("a file");
        assert_eq!(read, sections[..MAX_SECTIONS]);
        let longer = [
            file,
            sections[0].head().to_vec(),
            sections[0].sealed.clone(),
        ]
        .concat();
        assert_eq!(parse(&longer), Err(FormatError::Damaged));
    }

    #[test]
    fn parser_refuses_each_truncated_file() {
        let sections = [sealed(b"one", 0), sealed(b"two", 2)];
        let file = write(&SALT_OF_TEST, sections.iter());
        let whole = [MAGIC.len() + SALT, MAGIC.len() + SALT + HEAD + TAG];
        for length in 0..file.len() {
            let expected = match length {
                length if whole.contains(&length) => None,
                length if length < MAGIC.len() => Some(FormatError::Foreign),
                _ => Some(FormatError::Damaged),
            };
            assert_eq!(parse(&file[..length]).err(), expected, "{length} bytes");
        }
        assert_eq!(parse(&file), Ok((SALT_OF_TEST, sections.to_vec())));
    }

    proptest! {
        /// Bytes are refused, or written again unchanged. No section opens that was not sealed.
        #[test]
        fn parser_takes_files_only(
            bytes in proptest::collection::vec(any::<u8>(), 0..400),
            count in 0..3_u8,
        ) {
            let mut file = [&MAGIC[..], &bytes].concat();
            // A small number of responses makes complete sections likely.
            let at = MAGIC.len() + SALT + NAME + 8;
            if let Some(place) = file.get_mut(at..at + 2) {
                place.copy_from_slice(&[0, count]);
            }
            if let Ok((salt, sections)) = parse(&file) {
                prop_assert_eq!(write(&salt, sections.iter()), file);
                let key = SectionKey::derive(&salt, b"gateway");
                prop_assert!(sections.iter().all(|section| key.open(section).is_none()));
            }
            prop_assert!(parse(&bytes).is_err() || bytes.starts_with(MAGIC));
        }

        #[test]
        fn parser_survives_changes_of_a_file(at in 0..200_usize, bit in 0..8_u8) {
            let mut file = write(&SALT_OF_TEST, [sealed(b"one", 4), sealed(b"two", 9)].iter());
            let at = at % file.len();
            file[at] ^= 1 << bit;
            if let Ok((salt, sections)) = parse(&file) {
                for owner in [&b"one"[..], b"two"] {
                    let key = SectionKey::derive(&salt, owner);
                    for found in sections.iter().filter_map(|section| key.open(section)) {
                        prop_assert!(found == responses(4) || found == responses(9));
                    }
                }
            }
        }
    }
}

//! The directory of an issuer's keys (RFC 9578 section 4).

use base64::Engine as _;
use serde::{Deserialize, Serialize};

use crate::key::PublicKey;
use crate::token::{BASE64, TOKEN_TYPE};

/// The path of the directory at an issuer.
pub const PATH: &str = "/.well-known/private-token-issuer-directory";

/// The media type of the directory.
pub const MEDIA_TYPE: &str = "application/private-token-issuer-directory";

/// The largest directory that is read, in bytes.
pub const MAX_LENGTH: usize = 64 << 10;

/// The largest number of keys that is read.
const MAX_KEYS: usize = 64;

/// A key with the time of its first use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatedKey {
    /// The key.
    pub key: PublicKey,
    /// The time at which the issuer begins to sign with the key, in seconds since 1970.
    pub not_before: u64,
}

/// The directory of an issuer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory {
    /// The URL of token requests, which may be a path of the issuer.
    pub request_uri: String,
    /// The keys, the earliest first.
    pub keys: Vec<DatedKey>,
}

/// The reason why a directory cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DirectoryError {
    /// The text is no directory.
    #[error("it is no directory of an issuer (RFC 9578 section 4) of at most 64 KiB")]
    Malformed,
    /// The directory has no key of type 2.
    #[error("it has no valid key for tokens of type 2 (blind RSA with 2048 bits)")]
    NoKey,
    /// The directory has more than 64 keys of type 2.
    #[error("it has more than 64 keys")]
    TooManyKeys,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Document {
    issuer_request_uri: String,
    token_keys: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Entry {
    token_type: u16,
    token_key: String,
    #[serde(default)]
    not_before: u64,
}

impl Directory {
    /// Reads a directory. Keys of other types and malformed keys are left out.
    ///
    /// # Errors
    /// Fails for another document, and for one without keys of type 2.
    pub fn read(text: &[u8]) -> Result<Self, DirectoryError> {
        let text = (text.len() <= MAX_LENGTH).then_some(text);
        let document: Document = text
            .and_then(|text| serde_json::from_slice(text).ok())
            .ok_or(DirectoryError::Malformed)?;
        let key = |entry: &Entry| {
            let spki = BASE64.decode(&entry.token_key).ok()?;
            let key = PublicKey::from_spki(&spki).ok()?;
            let not_before = entry.not_before;
            (entry.token_type == TOKEN_TYPE).then_some(DatedKey { key, not_before })
        };
        let mut keys: Vec<_> = document.token_keys.iter().filter_map(key).collect();
        keys.sort_by_key(|key| key.not_before);
        match keys.len() {
            0 => Err(DirectoryError::NoKey),
            1..=MAX_KEYS => Ok(Self {
                request_uri: document.issuer_request_uri,
                keys,
            }),
            _ => Err(DirectoryError::TooManyKeys),
        }
    }

    /// Returns the directory as JSON.
    pub fn write(&self) -> String {
        let entry = |dated: &DatedKey| Entry {
            token_type: TOKEN_TYPE,
            token_key: BASE64.encode(dated.key.spki()),
            not_before: dated.not_before,
        };
        let document = Document {
            issuer_request_uri: self.request_uri.clone(),
            token_keys: self.keys.iter().map(entry).collect(),
        };
        serde_json::to_string(&document).unwrap_or_default()
    }

    /// Returns the key that the issuer uses at the time `now`, in seconds since 1970.
    pub fn present(&self, now: u64) -> Option<&DatedKey> {
        let mut keys = self.keys.iter().rev();
        keys.find(|key| key.not_before <= now)
    }
}

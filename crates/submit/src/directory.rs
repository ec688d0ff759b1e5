//! The directory of the gateway's keys, served at
//! `/.well-known/http-message-signatures-directory` as
//! `draft-meunier-http-message-signatures-directory` defines it: a JSON Web Key Set (RFC 7517) of
//! Ed25519 keys (RFC 8037).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

/// The path of the directory.
pub const PATH: &str = "/.well-known/http-message-signatures-directory";

/// The media type of the directory.
pub const MEDIA_TYPE: &str = "application/http-message-signatures-directory+json";

/// The largest directory that is read, in bytes.
const MAX_LENGTH: usize = 64 << 10;

/// A public Ed25519 key with its identifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey {
    /// The JWK thumbprint (RFC 7638), which signatures name as `keyid`.
    pub id: String,
    /// The key.
    pub key: [u8; 32],
}

/// The reason why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// The document is longer than 64 KiB.
    #[error("the key directory is larger than 64 KiB")]
    TooLarge,
    /// The document is not a JSON Web Key Set.
    #[error("the key directory is not a JSON Web Key Set: {0}")]
    Json(#[from] serde_json::Error),
    /// A key has the wrong length, or its identifier is not its thumbprint.
    #[error("the key directory has a key that is not valid")]
    Key,
}

#[derive(Serialize, Deserialize)]
struct Set {
    keys: Vec<Jwk>,
}

#[derive(Serialize, Deserialize)]
struct Jwk {
    kty: String,
    #[serde(default)]
    crv: String,
    #[serde(default)]
    kid: String,
    #[serde(default)]
    x: String,
    #[serde(rename = "use", default)]
    usage: String,
}

/// Returns the text whose SHA-256 hash is the thumbprint of the key (RFC 7638 section 3).
pub fn thumbprint_input(key: &[u8; 32]) -> String {
    let x = URL_SAFE_NO_PAD.encode(key);
    format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{x}"}}"#)
}

/// Returns the thumbprint as signatures name it.
pub fn thumbprint(sha256: &[u8; 32]) -> String {
    URL_SAFE_NO_PAD.encode(sha256)
}

/// Writes the directory of these keys.
pub fn write(keys: &[PublicKey]) -> String {
    let jwk = |key: &PublicKey| Jwk {
        kty: "OKP".to_owned(),
        crv: "Ed25519".to_owned(),
        kid: key.id.clone(),
        x: URL_SAFE_NO_PAD.encode(key.key),
        usage: "sig".to_owned(),
    };
    let set = Set {
        keys: keys.iter().map(jwk).collect(),
    };
    serde_json::to_string(&set).unwrap_or_default()
}

/// Reads a directory, and returns its Ed25519 keys. The function `sha256` hashes the input of a
/// thumbprint. Keys of other kinds are ignored.
///
/// # Errors
/// Returns the reason why no key of the document can be trusted.
pub fn read(
    text: &[u8],
    sha256: impl Fn(&[u8]) -> [u8; 32],
) -> Result<Vec<PublicKey>, DirectoryError> {
    if text.len() > MAX_LENGTH {
        return Err(DirectoryError::TooLarge);
    }
    let set: Set = serde_json::from_slice(text)?;
    let is_known = |jwk: &Jwk| jwk.kty == "OKP" && jwk.crv == "Ed25519";
    let mut keys = Vec::new();
    for jwk in set.keys.into_iter().filter(is_known) {
        let key = URL_SAFE_NO_PAD.decode(&jwk.x).ok();
        let key: [u8; 32] = key
            .and_then(|key| key.try_into().ok())
            .ok_or(DirectoryError::Key)?;
        let id = thumbprint(&sha256(thumbprint_input(&key).as_bytes()));
        if jwk.kid != id {
            return Err(DirectoryError::Key);
        }
        keys.push(PublicKey { id, key });
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sha256(input: &[u8]) -> [u8; 32] {
        let digest = ring::digest::digest(&ring::digest::SHA256, input);
        digest.as_ref().try_into().expect("32 bytes")
    }

    fn key() -> PublicKey {
        let key = URL_SAFE_NO_PAD.decode("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo");
        let key: [u8; 32] = key.expect("base64").try_into().expect("32 bytes");
        let id = thumbprint(&sha256(thumbprint_input(&key).as_bytes()));
        PublicKey { id, key }
    }

    #[test]
    fn thumbprint_matches_rfc_8037_a_3() {
        assert_eq!(key().id, "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k");
    }

    #[test]
    fn directory_round_trips() {
        let written = write(&[key()]);
        let read = read(written.as_bytes(), sha256).expect("our own document");
        assert_eq!(read, [key()]);
    }

    #[test]
    fn directory_refuses_bad_keys() {
        let written = write(&[key()]);
        for (from, to) in [("kPrK", "XXXX"), ("11qY", ""), ("\"keys\"", "\"key\"")] {
            let changed = written.replace(from, to);
            assert!(read(changed.as_bytes(), sha256).is_err(), "{changed}");
        }
        let other = written.replace("OKP", "EC");
        assert!(read(other.as_bytes(), sha256).is_ok_and(|keys| keys.is_empty()));
        assert!(matches!(
            read(&vec![b' '; MAX_LENGTH + 1], sha256),
            Err(DirectoryError::TooLarge)
        ));
    }
}

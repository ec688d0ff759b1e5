//! The `Content-Digest` field (RFC 9530 section 2) with SHA-256.

use sfv::{BareItem, Dictionary, FieldType as _, Key, ListEntry, Parser};
use tandem_http::Fields;

/// The name of the field.
pub const CONTENT_DIGEST: &str = "content-digest";

/// The reason why a body does not match the digest of its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DigestError {
    /// The field is missing or holds no SHA-256 digest.
    #[error("the message has no content-digest with sha-256")]
    Missing,
    /// The field is not a dictionary of byte sequences.
    #[error("content-digest is not a dictionary of byte sequences (RFC 9530 section 2)")]
    Malformed,
    /// The digest belongs to other bytes.
    #[error("content-digest does not match the body")]
    Mismatch,
}

/// Returns the value of the field for a body with this SHA-256 hash.
pub fn value(sha256: &[u8; 32]) -> String {
    let mut dictionary = Dictionary::new();
    if let Ok(key) = Key::from_string("sha-256".to_owned()) {
        dictionary.insert(key, BareItem::ByteSequence(sha256.to_vec()).into());
    }
    dictionary.serialize().unwrap_or_default()
}

/// Compares the field with the SHA-256 hash of the received body.
///
/// # Errors
/// Returns the reason why the field does not confirm the body.
pub fn check(fields: &Fields, sha256: &[u8; 32]) -> Result<(), DigestError> {
    let value = joined(fields, CONTENT_DIGEST).ok_or(DigestError::Missing)?;
    let parsed: Dictionary = Parser::new(&value)
        .parse()
        .map_err(|_| DigestError::Malformed)?;
    let digest = match parsed.get("sha-256").ok_or(DigestError::Missing)? {
        ListEntry::Item(item) => item.bare_item.as_byte_sequence(),
        ListEntry::InnerList(_) => None,
    };
    match digest.ok_or(DigestError::Malformed)? == sha256 {
        true => Ok(()),
        false => Err(DigestError::Mismatch),
    }
}

/// Joins the values of all lines of a field by a comma and a space (RFC 9110 section 5.3).
/// Returns `None` if there is no such line.
pub(crate) fn joined(fields: &Fields, name: &str) -> Option<Vec<u8>> {
    let mut lines = fields.get_all(name).map(<[u8]>::trim_ascii);
    let mut value = lines.next()?.to_vec();
    for line in lines {
        value.extend_from_slice(b", ");
        value.extend_from_slice(line);
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The SHA-256 hash of `{"hello": "world"}` with a line feed (RFC 9530 appendix A).
    const HELLO: &str = "sha-256=:RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg=:";

    fn hash() -> [u8; 32] {
        let digest = ring::digest::digest(&ring::digest::SHA256, b"{\"hello\": \"world\"}\n");
        digest.as_ref().try_into().expect("32 bytes")
    }

    #[test]
    fn content_digest_matches_rfc_9530() {
        assert_eq!(value(&hash()), HELLO);
    }

    #[test]
    fn content_digest_check_names_the_fault() {
        let check_value = |value: &str| {
            let mut fields = Fields::new();
            fields.push(CONTENT_DIGEST, value);
            check(&fields, &hash())
        };
        assert_eq!(check(&Fields::new(), &hash()), Err(DigestError::Missing));
        assert_eq!(check_value(HELLO), Ok(()));
        assert_eq!(check_value(&format!("sha-512=:AAAA:, {HELLO}")), Ok(()));
        assert_eq!(check_value("sha-512=:AAAA:"), Err(DigestError::Missing));
        assert_eq!(check_value("sha-256=:AAAA:"), Err(DigestError::Mismatch));
        assert_eq!(check_value("sha-256=abc"), Err(DigestError::Malformed));
        assert_eq!(check_value("sha-256=(:AAAA:)"), Err(DigestError::Malformed));
        assert_eq!(check_value("="), Err(DigestError::Malformed));
    }
}

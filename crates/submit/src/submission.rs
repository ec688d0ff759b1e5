//! Submissions: identifiers, idempotency keys, secrets, states and answers.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use sfv::{Item, Parser};
use tandem_http::Fields;

use crate::problem::Problem;

/// The field that carries [`IdempotencyKey`] (`draft-ietf-httpapi-idempotency-key-header`).
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// The field that carries the secret of a request for the state or the answer.
pub const SUBMISSION_SECRET: &str = "submission-secret";

/// The field that carries the identifier to the server and to the client.
pub const SUBMISSION_ID: &str = "submission-id";

/// The length of a secret in bytes.
pub const SECRET_LENGTH: usize = 32;

/// The anonymous identifier of a submission: 128 random bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubmissionId(pub [u8; 16]);

impl SubmissionId {
    /// Reads 32 hexadecimal digits in lower case.
    pub fn parse(text: &str) -> Option<Self> {
        let id = HEXLOWER.decode(text.as_bytes()).ok()?;
        id.try_into().ok().map(Self)
    }
}

impl fmt::Display for SubmissionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        HEXLOWER.encode_display(&self.0).fmt(f)
    }
}

/// Hides the identifier, because a log must not link submissions.
impl fmt::Debug for SubmissionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SubmissionId")
    }
}

/// The key that makes a repeated request harmless. It is the SHA-256 hash of a secret that only
/// the client knows, so that the secret proves later whose submission it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(pub [u8; 32]);

impl IdempotencyKey {
    /// Reads the field of a request.
    ///
    /// # Errors
    /// Returns the problem of a request without a valid key.
    pub fn of(fields: &Fields) -> Result<Self, Problem> {
        let mut lines = fields.get_all(IDEMPOTENCY_KEY);
        let line = lines.next().ok_or(Problem::MissingKey)?;
        let item: Item = Parser::new(line)
            .parse()
            .map_err(|_| Problem::MalformedKey)?;
        let text = item.bare_item.as_string().ok_or(Problem::MalformedKey)?;
        let key = URL_SAFE_NO_PAD.decode(text.as_str()).ok();
        let key = key.and_then(|key| key.try_into().ok());
        match lines.next() {
            None => key.map(Self).ok_or(Problem::MalformedKey),
            Some(_) => Err(Problem::MalformedKey),
        }
    }

    /// Returns the value of the field.
    pub fn value(&self) -> String {
        format!("\"{}\"", URL_SAFE_NO_PAD.encode(self.0))
    }
}

/// Hides the key.
impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdempotencyKey")
    }
}

/// Reads the secret of a request for a state. Returns `None` if it is missing or malformed.
pub fn secret(fields: &Fields) -> Option<[u8; SECRET_LENGTH]> {
    let text = fields.get(SUBMISSION_SECRET)?;
    URL_SAFE_NO_PAD.decode(text).ok()?.try_into().ok()
}

/// Writes a secret as the value of the field.
pub fn write_secret(secret: &[u8; SECRET_LENGTH]) -> String {
    URL_SAFE_NO_PAD.encode(secret)
}

/// The state of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// The gateway has stored the submission, and the server has not answered it.
    Accepted,
    /// The server has answered.
    Answered,
    /// The gateway has given up, because the server did not answer for too long.
    NotDelivered,
}

/// The document about the state of a submission.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateDocument {
    /// The identifier in hexadecimal digits.
    pub id: String,
    /// The state.
    pub state: State,
    /// The status code of the server's answer, or of its last refusal.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub status: Option<u16>,
}

impl StateDocument {
    /// Reads a document of at most 4 KiB.
    pub fn read(text: &[u8]) -> Option<Self> {
        let text = (text.len() <= 4096).then_some(text)?;
        serde_json::from_slice(text).ok()
    }

    /// Returns the document as JSON.
    pub fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// The answer of the server.
#[derive(Clone, PartialEq, Eq)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The fields that pass the gateway.
    pub fields: Fields,
    /// The body.
    pub body: Bytes,
}

/// Hides the content.
impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").finish_non_exhaustive()
    }
}

/// Returns true if an answer with this status ends the delivery. The other answers mean that the
/// server has not processed the request, and that it may do so later. Among them are redirects,
/// and 401 and 403 of a server that does not know the gateway's key yet.
pub const fn is_final(status: u16) -> bool {
    match status {
        401 | 403 | 407 | 408 | 421 | 425 | 429 => false,
        _ => matches!(status / 100, 2 | 4),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key_of(lines: &[&str]) -> Result<IdempotencyKey, Problem> {
        let mut fields = Fields::new();
        for line in lines {
            fields.push(IDEMPOTENCY_KEY, line);
        }
        IdempotencyKey::of(&fields)
    }

    #[test]
    fn identifiers_round_trip() {
        let id = SubmissionId([0xab; 16]);
        assert_eq!(SubmissionId::parse(&id.to_string()), Some(id));
        for text in [
            "",
            "ab",
            &"AB".repeat(16),
            &"ag".repeat(16),
            &"ab".repeat(17),
        ] {
            assert_eq!(SubmissionId::parse(text), None);
        }
        assert!(!format!("{id:?}").contains("ab"));
    }

    #[test]
    fn idempotency_keys_are_hashes() {
        let key = IdempotencyKey([7; 32]);
        assert_eq!(key_of(&[&key.value()]), Ok(key));
        assert_eq!(key_of(&[]), Err(Problem::MissingKey));
        let bare = key.value().replace('"', "");
        for lines in [
            &["\"abc\""][..],
            &[bare.as_str()],
            &["7"],
            &["\""],
            &[&key.value(), &key.value()],
        ] {
            assert_eq!(key_of(lines), Err(Problem::MalformedKey), "{lines:?}");
        }
    }

    #[test]
    fn secrets_have_32_bytes() {
        let read = |value: &str| {
            let mut fields = Fields::new();
            fields.push(SUBMISSION_SECRET, value);
            secret(&fields)
        };
        assert_eq!(read(&write_secret(&[9; 32])), Some([9; 32]));
        assert_eq!(read("AAAA"), None);
        assert_eq!(read("=="), None);
        assert_eq!(secret(&Fields::new()), None);
    }

    #[test]
    fn successes_and_refusals_of_content_are_final() {
        for status in [200, 201, 204, 299, 400, 404, 409, 413, 415, 422, 451] {
            assert!(is_final(status), "{status}");
        }
        let repeated = [
            100, 301, 302, 304, 307, 308, 401, 403, 407, 408, 421, 425, 429, 500, 501, 503, 599,
        ];
        for status in repeated {
            assert!(!is_final(status), "{status}");
        }
    }

    #[test]
    fn state_documents_round_trip() {
        let document = StateDocument {
            id: "00".repeat(16),
            state: State::NotDelivered,
            status: None,
        };
        assert!(document.json().contains("\"not-delivered\""));
        assert_eq!(
            StateDocument::read(document.json().as_bytes()),
            Some(document)
        );
    }
}

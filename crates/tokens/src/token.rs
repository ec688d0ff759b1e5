//! Tokens, and the messages between client and issuer (RFC 9577 section 2.2, RFC 9578 section 6).

use std::fmt;

use base64::Engine as _;
use base64::alphabet::URL_SAFE;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use crate::reader::Reader;

/// The type of tokens: blind RSA with 2048 bits (RFC 9578 section 8.2.2).
pub const TOKEN_TYPE: u16 = 2;

/// The length of a signature in bytes.
pub const SIGNATURE_LENGTH: usize = 256;

/// The length of the signed part of a token, in bytes.
pub const INPUT_LENGTH: usize = 2 + 32 + 32 + 32;

/// The length of a token request in bytes.
pub const REQUEST_LENGTH: usize = 2 + 1 + SIGNATURE_LENGTH;

/// The media type of a token request.
pub const REQUEST_TYPE: &str = "application/private-token-request";

/// The media type of a token response, which is a blind signature.
pub const RESPONSE_TYPE: &str = "application/private-token-response";

/// The encoding of binary values in fields. RFC 9577 writes the padding, and a reader does not
/// need it.
pub(crate) const BASE64: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The reason why a message cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The message is too short or too long.
    #[error("the message has a wrong length")]
    Length,
    /// The type is not [`TOKEN_TYPE`].
    #[error("the token type is not 2 (blind RSA)")]
    Type,
    /// A value is not valid.
    #[error("the message has a value that is not valid")]
    Value,
}

/// A token (RFC 9577 section 2.2).
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// The random number that the client has chosen. It is unique.
    pub nonce: [u8; 32],
    /// The SHA-256 hash of the challenge.
    pub challenge_digest: [u8; 32],
    /// The identifier of the issuer's key.
    pub key_id: [u8; 32],
    /// The signature of the issuer.
    pub authenticator: [u8; SIGNATURE_LENGTH],
}

impl Token {
    /// Reads a token.
    ///
    /// # Errors
    /// Fails for another length and for another type.
    pub fn read(input: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(input);
        check_type(reader.u16()?)?;
        let token = Self {
            nonce: reader.array()?,
            challenge_digest: reader.array()?,
            key_id: reader.array()?,
            authenticator: reader.array()?,
        };
        reader.end()?;
        Ok(token)
    }

    /// Returns the encoded token.
    pub fn write(&self) -> Vec<u8> {
        let mut output = self.input().to_vec();
        output.extend_from_slice(&self.authenticator);
        output
    }

    /// Returns the part that the issuer signs.
    pub fn input(&self) -> [u8; INPUT_LENGTH] {
        input(&self.nonce, &self.challenge_digest, &self.key_id)
    }

    /// Returns the value of the field `Authorization` (RFC 9577 section 2.2).
    pub fn authorization(&self) -> String {
        format!("PrivateToken token=\"{}\"", BASE64.encode(self.write()))
    }

    /// Reads the value of the field `Authorization`. The parameter may be a token or a quoted
    /// string.
    ///
    /// # Errors
    /// Returns `None` for another scheme, and an error for a malformed token.
    pub fn from_authorization(value: &[u8]) -> Result<Option<Self>, FormatError> {
        let Some((scheme, rest)) = value.split_at_checked("PrivateToken ".len()) else {
            return Ok(None);
        };
        if !scheme.eq_ignore_ascii_case(b"PrivateToken ") {
            return Ok(None);
        }
        let text = std::str::from_utf8(rest).map_err(|_| FormatError::Value)?;
        let (name, value) = text.trim().split_once('=').ok_or(FormatError::Value)?;
        if !name.eq_ignore_ascii_case("token") {
            return Err(FormatError::Value);
        }
        let quoted = value.strip_prefix('"').map(|rest| rest.strip_suffix('"'));
        let value = match quoted {
            None => value,
            Some(value) => value.ok_or(FormatError::Value)?,
        };
        let token = BASE64.decode(value).map_err(|_| FormatError::Value)?;
        Self::read(&token).map(Some)
    }

    /// Returns the value by which a gateway knows a spent token: a hash that tells nothing else.
    pub fn spent_id(&self) -> [u8; 32] {
        crate::sha256(&[b"tandem spent token", &self.key_id, &self.nonce])
    }
}

/// Hides the token, which is worth a submission.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// Returns the part of a token that the issuer signs.
pub(crate) fn input(
    nonce: &[u8; 32],
    challenge_digest: &[u8; 32],
    key_id: &[u8; 32],
) -> [u8; INPUT_LENGTH] {
    let mut input = [0; INPUT_LENGTH];
    input[..2].copy_from_slice(&TOKEN_TYPE.to_be_bytes());
    input[2..34].copy_from_slice(nonce);
    input[34..66].copy_from_slice(challenge_digest);
    input[66..].copy_from_slice(key_id);
    input
}

const fn check_type(token_type: u16) -> Result<(), FormatError> {
    match token_type {
        TOKEN_TYPE => Ok(()),
        _ => Err(FormatError::Type),
    }
}

/// The request of a client for a signature (RFC 9578 section 6.1).
#[derive(Clone, PartialEq, Eq)]
pub struct TokenRequest {
    /// The last byte of the identifier of the key.
    pub truncated_key_id: u8,
    /// The blinded token.
    pub blinded: [u8; SIGNATURE_LENGTH],
}

/// Hides the blinded token.
impl fmt::Debug for TokenRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenRequest")
    }
}

impl TokenRequest {
    /// Reads a request.
    ///
    /// # Errors
    /// Fails for another length and for another type.
    pub fn read(input: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(input);
        check_type(reader.u16()?)?;
        let [truncated_key_id] = reader.array()?;
        let request = Self {
            truncated_key_id,
            blinded: reader.array()?,
        };
        reader.end()?;
        Ok(request)
    }

    /// Returns the encoded request.
    pub fn write(&self) -> Vec<u8> {
        let mut output = TOKEN_TYPE.to_be_bytes().to_vec();
        output.push(self.truncated_key_id);
        output.extend_from_slice(&self.blinded);
        output
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The length of a token in bytes.
    const TOKEN_LENGTH: usize = INPUT_LENGTH + SIGNATURE_LENGTH;

    fn token() -> Token {
        Token {
            nonce: [1; 32],
            challenge_digest: [2; 32],
            key_id: [3; 32],
            authenticator: [4; SIGNATURE_LENGTH],
        }
    }

    #[test]
    fn token_round_trips_through_its_field() {
        let value = token().authorization();
        let read = Token::from_authorization(value.as_bytes()).expect("well-formed");
        assert_eq!(read, Some(token()));
        let unquoted = value.replace('"', "");
        let unpadded = unquoted.trim_end_matches('=');
        for value in [&unquoted, unpadded] {
            let read = Token::from_authorization(value.as_bytes());
            assert_eq!(read, Ok(Some(token())), "{value}");
        }
        assert_eq!(Token::from_authorization(b"Bearer abc"), Ok(None));
        for value in [
            "PrivateToken abc",
            "PrivateToken token=",
            "PrivateToken token=\"AAAA",
            "PrivateToken other=\"AAAA\"",
            "PrivateToken token=\"AAAA\"",
        ] {
            assert!(Token::from_authorization(value.as_bytes()).is_err());
        }
    }

    #[test]
    fn tokens_of_other_types_are_refused() {
        let mut bytes = token().write();
        assert_eq!(bytes.len(), TOKEN_LENGTH);
        bytes[1] = 1;
        assert_eq!(Token::read(&bytes), Err(FormatError::Type));
        let request = [&[0, 5, 0][..], &[0; SIGNATURE_LENGTH]].concat();
        assert_eq!(TokenRequest::read(&request), Err(FormatError::Type));
    }

    #[test]
    fn debug_texts_hide_tokens() {
        assert_eq!(format!("{:?}", token()), "Token");
    }

    proptest! {
        #[test]
        fn token_parsers_are_exact(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let mut bytes = bytes;
            if bytes.len() > 1 {
                bytes[..2].copy_from_slice(&[0, 2]);
            }
            match Token::read(&bytes) {
                Ok(token) => prop_assert_eq!(token.write(), &bytes[..]),
                Err(_) => prop_assert!(bytes.len() != TOKEN_LENGTH),
            }
            let _ = Token::from_authorization(&bytes);
            if let Ok(request) = TokenRequest::read(&bytes) {
                prop_assert_eq!(request.write(), bytes);
            }
        }

        #[test]
        fn truncated_tokens_are_refused(length in 0..TOKEN_LENGTH) {
            prop_assert!(Token::read(&token().write()[..length]).is_err());
        }
    }
}

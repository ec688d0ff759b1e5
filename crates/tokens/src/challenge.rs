//! The challenges of a gateway (RFC 9577 section 2.1).

use base64::Engine as _;

use crate::reader::Reader;
use crate::token::{BASE64, FormatError, TOKEN_TYPE};

/// The longest name of an issuer, and the longest list of origins, in bytes.
const MAX_NAME: usize = 1024;

/// A challenge: the issuer and the origin of the tokens that a gateway accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenChallenge {
    /// The name of the issuer.
    pub issuer_name: String,
    /// The context to which tokens are bound. `None` permits that tokens are fetched in advance.
    pub redemption_context: Option<[u8; 32]>,
    /// The names of the origins, separated by commas. It may be empty.
    pub origin_info: String,
}

impl TokenChallenge {
    /// Reads a challenge.
    ///
    /// # Errors
    /// Fails for another type of tokens, and for names that are too long or not ASCII.
    pub fn read(input: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(input);
        if reader.u16()? != TOKEN_TYPE {
            return Err(FormatError::Type);
        }
        let issuer_name = name(reader.vector16()?)?;
        let redemption_context = match reader.vector8()? {
            [] => None,
            context => Some(context.try_into().map_err(|_| FormatError::Length)?),
        };
        let origin_info = name(reader.vector16()?)?;
        reader.end()?;
        match issuer_name.is_empty() {
            true => Err(FormatError::Value),
            false => Ok(Self {
                issuer_name,
                redemption_context,
                origin_info,
            }),
        }
    }

    /// Returns the encoded challenge. Names above 64 KiB are cut.
    pub fn write(&self) -> Vec<u8> {
        let mut output = TOKEN_TYPE.to_be_bytes().to_vec();
        let vector = |output: &mut Vec<u8>, text: &str| {
            let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
            output.extend_from_slice(&length.to_be_bytes());
            output.extend_from_slice(&text.as_bytes()[..usize::from(length)]);
        };
        vector(&mut output, &self.issuer_name);
        match self.redemption_context {
            None => output.push(0),
            Some(context) => {
                output.push(32);
                output.extend_from_slice(&context);
            }
        }
        vector(&mut output, &self.origin_info);
        output
    }

    /// Returns the SHA-256 hash of the challenge, which is part of each token.
    pub fn digest(&self) -> [u8; 32] {
        crate::sha256(&[&self.write()])
    }

    /// Returns a value of the field `WWW-Authenticate` with the public key of the issuer.
    pub fn www_authenticate(&self, spki: &[u8]) -> String {
        let (challenge, key) = (BASE64.encode(self.write()), BASE64.encode(spki));
        format!("PrivateToken challenge=\"{challenge}\", token-key=\"{key}\"")
    }

    /// Reads a value of the field `WWW-Authenticate` with one challenge. Returns the challenge and
    /// the issuer's public key.
    ///
    /// # Errors
    /// Fails for another scheme, and for malformed parameters.
    pub fn from_www_authenticate(value: &str) -> Result<(Self, Vec<u8>), FormatError> {
        let (scheme, rest) = value.split_once(' ').ok_or(FormatError::Value)?;
        if !scheme.eq_ignore_ascii_case("PrivateToken") {
            return Err(FormatError::Value);
        }
        let (mut challenge, mut key) = (None, None);
        for parameter in rest.split(',') {
            let (name, value) = parameter.split_once('=').ok_or(FormatError::Value)?;
            let decode = || {
                let value = value.trim().trim_matches('"');
                BASE64.decode(value).map_err(|_| FormatError::Value)
            };
            match name.trim().to_ascii_lowercase().as_str() {
                "challenge" => challenge = Some(Self::read(&decode()?)?),
                "token-key" => key = Some(decode()?),
                _ => {}
            }
        }
        challenge.zip(key).ok_or(FormatError::Value)
    }
}

/// Reads a name of printable ASCII characters.
fn name(bytes: &[u8]) -> Result<String, FormatError> {
    let is_plain = bytes.iter().all(u8::is_ascii_graphic);
    match is_plain && bytes.len() <= MAX_NAME {
        true => Ok(String::from_utf8_lossy(bytes).into_owned()),
        false => Err(FormatError::Value),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn challenge_round_trips_through_its_field() {
        let challenge = TokenChallenge {
            issuer_name: "issuer.example".into(),
            redemption_context: Some([7; 32]),
            origin_info: "gateway.example".into(),
        };
        let value = challenge.www_authenticate(b"key");
        let read = TokenChallenge::from_www_authenticate(&value);
        assert_eq!(read, Ok((challenge, b"key".to_vec())));
        for value in [
            "Bearer x=y",
            "PrivateToken",
            "PrivateToken challenge=\"AAIAAA\"",
        ] {
            assert!(TokenChallenge::from_www_authenticate(value).is_err());
        }
    }

    proptest! {
        #[test]
        fn challenge_parser_is_exact(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let mut bytes = bytes;
            if bytes.len() > 4 {
                bytes[..5].copy_from_slice(&[0, 2, 0, 1, b'a']);
            }
            if let Ok(challenge) = TokenChallenge::read(&bytes) {
                prop_assert_eq!(challenge.write(), bytes);
            }
        }

        #[test]
        fn challenges_round_trip(
            issuer in "[!-~]{1,20}", origin in "[!-~]{0,20}", context: Option<[u8; 32]>
        ) {
            let challenge = TokenChallenge {
                issuer_name: issuer,
                redemption_context: context,
                origin_info: origin,
            };
            prop_assert_eq!(TokenChallenge::read(&challenge.write()), Ok(challenge));
        }
    }
}

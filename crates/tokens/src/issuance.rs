//! The issue of tokens: the client blinds them, and the issuer signs them (RFC 9578 section 6).

use std::fmt;

use blind_rsa_signatures::{
    BlindSignature, BlindingResult, DefaultRng, Deterministic, KeyPair, PSS, PublicKey as BlindKey,
    SecretKey, Sha384,
};
use ring::rand::{SecureRandom as _, SystemRandom};

use crate::key::PublicKey;
use crate::token::{INPUT_LENGTH, SIGNATURE_LENGTH, Token, TokenRequest, input};

/// The length of an issuer's modulus in bits.
const KEY_BITS: usize = 2048;

/// The reason why a token cannot be issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IssuanceError {
    /// The key of the issuer cannot be used.
    #[error("the key of the issuer cannot be used")]
    Key,
    /// The system has no random numbers.
    #[error("the system provides no random numbers")]
    Random,
    /// The request does not fit the key.
    #[error("the token request does not fit the key")]
    Request,
    /// The response of the issuer is no signature of its published key.
    #[error("the issuer has not signed with its published key")]
    Signature,
}

/// A token that the issuer has not signed yet. It holds the secrets of the client.
pub struct Unsigned {
    key: BlindKey<Sha384, PSS, Deterministic>,
    token: Token,
    blinding: BlindingResult,
}

/// Hides the secrets.
impl fmt::Debug for Unsigned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Unsigned")
    }
}

impl Unsigned {
    /// Chooses a token for a challenge, and blinds it. Returns it with the request to the issuer.
    ///
    /// # Errors
    /// Fails if the key is no product of two primes, or without random numbers.
    pub fn new(
        key: &PublicKey,
        challenge_digest: [u8; 32],
    ) -> Result<(TokenRequest, Self), IssuanceError> {
        let blind_key = BlindKey::from_spki(&key.spki()).map_err(|_| IssuanceError::Key)?;
        let mut nonce = [0; 32];
        let filled = SystemRandom::new().fill(&mut nonce);
        filled.map_err(|_| IssuanceError::Random)?;
        let token = Token {
            nonce,
            challenge_digest,
            key_id: *key.id(),
            authenticator: [0; SIGNATURE_LENGTH],
        };
        let input: [u8; INPUT_LENGTH] = input(&nonce, &challenge_digest, key.id());
        let blinding = blind_key.blind(&mut DefaultRng, input);
        let blinding = blinding.map_err(|_| IssuanceError::Key)?;
        let blinded = blinding.blind_message.as_slice().try_into();
        let request = TokenRequest {
            truncated_key_id: key.truncated_id(),
            blinded: blinded.map_err(|_| IssuanceError::Key)?,
        };
        let unsigned = Self {
            key: blind_key,
            token,
            blinding,
        };
        Ok((request, unsigned))
    }

    /// Returns the token from the response of the issuer, after a check of the signature.
    ///
    /// # Errors
    /// Fails if the response is no signature of the issuer's key.
    pub fn sign(self, response: &[u8]) -> Result<Token, IssuanceError> {
        let blind = BlindSignature(response.to_vec());
        let signature = self
            .key
            .finalize(&blind, &self.blinding, self.token.input())
            .map_err(|_| IssuanceError::Signature)?;
        let authenticator = signature.as_slice().try_into();
        Ok(Token {
            authenticator: authenticator.map_err(|_| IssuanceError::Signature)?,
            ..self.token
        })
    }
}

/// A key of the issuer.
///
/// The private operation is blinded with random numbers and runs in constant time. An issuer should
/// still not let clients measure its time: see the stage of the issuer.
pub struct IssuerKey {
    secret: SecretKey<Sha384, PSS, Deterministic>,
    public: PublicKey,
}

/// Shows only the public part.
impl fmt::Debug for IssuerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IssuerKey").finish_non_exhaustive()
    }
}

impl IssuerKey {
    /// Creates a key. This takes up to some seconds.
    ///
    /// # Errors
    /// Fails without random numbers.
    pub fn generate() -> Result<Self, IssuanceError> {
        let pair = KeyPair::generate(&mut DefaultRng, KEY_BITS);
        Self::new(pair.map_err(|_| IssuanceError::Key)?.sk)
    }

    /// Reads a key in PKCS #8 from PEM text.
    ///
    /// # Errors
    /// Fails for other keys and other lengths.
    pub fn from_pem(text: &str) -> Result<Self, IssuanceError> {
        let secret = SecretKey::from_pem(text.trim()).map_err(|_| IssuanceError::Key)?;
        Self::new(secret)
    }

    fn new(secret: SecretKey<Sha384, PSS, Deterministic>) -> Result<Self, IssuanceError> {
        let spki = secret.public_key().and_then(|key| key.to_spki());
        let spki = spki.map_err(|_| IssuanceError::Key)?;
        let public = PublicKey::from_spki(&spki).map_err(|_| IssuanceError::Key)?;
        Ok(Self { secret, public })
    }

    /// Returns the key in PKCS #8 as PEM text.
    ///
    /// # Errors
    /// Fails if the key cannot be encoded.
    pub fn to_pem(&self) -> Result<String, IssuanceError> {
        self.secret.to_pem().map_err(|_| IssuanceError::Key)
    }

    /// Returns the public key.
    pub const fn public(&self) -> &PublicKey {
        &self.public
    }

    /// Signs a blinded token. Returns the token response.
    ///
    /// # Errors
    /// Fails for a request for another key, and for a number beyond the modulus.
    pub fn sign(&self, request: &TokenRequest) -> Result<Vec<u8>, IssuanceError> {
        if request.truncated_key_id != self.public.truncated_id() {
            return Err(IssuanceError::Request);
        }
        let signature = self.secret.blind_sign(request.blinded);
        Ok(signature.map_err(|_| IssuanceError::Request)?.0)
    }
}

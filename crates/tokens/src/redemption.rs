//! The checks of a token at a gateway. A token that passes them is still to be spent, which the
//! store of the gateway decides.

use crate::challenge::TokenChallenge;
use crate::directory::{DatedKey, Directory};
use crate::epoch::Epochs;
use crate::token::Token;

/// The reason why a gateway refuses a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The key belongs to no issuer of the gateway.
    #[error("the token is of an unknown issuer")]
    UnknownIssuer,
    /// The key is not used yet, or not any more.
    #[error("the epoch of the token is over, or has not begun")]
    StaleEpoch,
    /// The token answers another challenge.
    #[error("the token is for another challenge")]
    WrongChallenge,
    /// The signature is not valid.
    #[error("the signature of the token is not valid")]
    Forged,
}

/// An issuer that a gateway trusts, with the challenge and the keys of its tokens.
#[derive(Clone, Debug)]
pub struct AcceptedIssuer {
    challenge: TokenChallenge,
    digest: [u8; 32],
    epochs: Epochs,
    directory: Directory,
}

/// A token that has passed the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValidToken {
    /// The value by which the gateway knows the token when it is spent.
    pub spent_id: [u8; 32],
    /// The start of the token's key in the directory, in seconds since 1970. It does not depend on
    /// the length of the epochs that the gateway has configured.
    pub not_before: u64,
}

/// The directory has two keys of one epoch. The issuer could give one of them to certain clients,
/// and would thus recognise their tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("two keys begin in one epoch, by which the issuer could tell clients apart")]
pub struct SharedEpoch;

impl AcceptedIssuer {
    /// Accepts tokens for a challenge, signed with the keys of a directory.
    ///
    /// # Errors
    /// Fails if two keys begin in one epoch.
    pub fn new(
        challenge: TokenChallenge,
        epochs: Epochs,
        directory: Directory,
    ) -> Result<Self, SharedEpoch> {
        let epoch = |dated: &DatedKey| epochs.of_key(dated.not_before);
        // The directory is sorted by time.
        let is_shared = |pair: &[DatedKey]| epoch(&pair[0]) == epoch(&pair[1]);
        match directory.keys.windows(2).any(is_shared) {
            true => Err(SharedEpoch),
            false => Ok(Self {
                digest: challenge.digest(),
                challenge,
                epochs,
                directory,
            }),
        }
    }

    /// Returns true if the directory has the key with this identifier.
    pub fn has_key(&self, id: &[u8; 32]) -> bool {
        self.key(id).is_some()
    }

    fn key(&self, id: &[u8; 32]) -> Option<&DatedKey> {
        self.directory
            .keys
            .iter()
            .find(|dated| dated.key.id() == id)
    }

    /// Returns the value of the field `WWW-Authenticate` with the key that the issuer uses at the
    /// time `now`, in seconds since 1970.
    pub fn www_authenticate(&self, now: u64) -> Option<String> {
        let dated = self.directory.present(now)?;
        let is_valid = self
            .epochs
            .accepts(self.epochs.of_key(dated.not_before), now);
        is_valid.then(|| self.challenge.www_authenticate(&dated.key.spki()))
    }

    /// Checks a token at the time `now`, in seconds since 1970.
    ///
    /// # Errors
    /// Returns the first check that fails. That of the signature costs most, and is the last one.
    pub fn check(&self, token: &Token, now: u64) -> Result<ValidToken, TokenError> {
        let dated = self.key(&token.key_id).ok_or(TokenError::UnknownIssuer)?;
        let epoch = self.epochs.of_key(dated.not_before);
        if !self.epochs.accepts(epoch, now) {
            return Err(TokenError::StaleEpoch);
        }
        if token.challenge_digest != self.digest {
            return Err(TokenError::WrongChallenge);
        }
        match dated.key.has_signed(token) {
            true => Ok(ValidToken {
                spent_id: token.spent_id(),
                not_before: dated.not_before,
            }),
            false => Err(TokenError::Forged),
        }
    }
}

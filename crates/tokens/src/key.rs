//! The public keys of issuers (RFC 9578 section 6.5).

use ring::signature::{RSA_PSS_2048_8192_SHA384, RsaPublicKeyComponents};

use crate::token::{FormatError, SIGNATURE_LENGTH, Token};

/// The encoding of a key of 2048 bits up to its modulus: a `SubjectPublicKeyInfo` of RSASSA-PSS
/// with SHA-384, MGF1 with SHA-384 and a salt of 48 bytes.
const PREFIX: [u8; 81] = [
    0x30, 0x82, 0x01, 0x52, 0x30, 0x3d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01,
    0x0a, 0x30, 0x30, 0xa0, 0x0d, 0x30, 0x0b, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04,
    0x02, 0x02, 0xa1, 0x1a, 0x30, 0x18, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01,
    0x08, 0x30, 0x0b, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x02, 0xa2, 0x03,
    0x02, 0x01, 0x30, 0x03, 0x82, 0x01, 0x0f, 0x00, 0x30, 0x82, 0x01, 0x0a, 0x02, 0x82, 0x01, 0x01,
    0x00,
];

/// The encoding of the exponent 65537.
const SUFFIX: [u8; 5] = [0x02, 0x03, 0x01, 0x00, 0x01];

/// A public key of an issuer: RSA with a modulus of 2048 bits and the exponent 65537.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey {
    modulus: [u8; SIGNATURE_LENGTH],
    id: [u8; 32],
}

impl PublicKey {
    /// Reads the one encoding of a key that RFC 9578 permits.
    ///
    /// # Errors
    /// Fails for other lengths, parameters and exponents.
    pub fn from_spki(spki: &[u8]) -> Result<Self, FormatError> {
        let rest = spki.strip_prefix(&PREFIX).ok_or(FormatError::Value)?;
        let modulus = rest.strip_suffix(&SUFFIX).ok_or(FormatError::Value)?;
        let modulus: [u8; SIGNATURE_LENGTH] =
            modulus.try_into().map_err(|_| FormatError::Length)?;
        let has_all_bits = modulus[0] & 0x80 != 0 && modulus[SIGNATURE_LENGTH - 1] & 1 != 0;
        match has_all_bits {
            true => Ok(Self {
                modulus,
                id: crate::sha256(&[spki]),
            }),
            false => Err(FormatError::Value),
        }
    }

    /// Returns the encoding of the key.
    pub fn spki(&self) -> Vec<u8> {
        [&PREFIX[..], &self.modulus, &SUFFIX].concat()
    }

    /// Returns the identifier of the key: the SHA-256 hash of its encoding.
    pub const fn id(&self) -> &[u8; 32] {
        &self.id
    }

    /// Returns the last byte of the identifier, which selects a key of an issuer.
    pub const fn truncated_id(&self) -> u8 {
        self.id[31]
    }

    /// Returns true if the issuer has signed the token with this key.
    pub fn has_signed(&self, token: &Token) -> bool {
        let key = RsaPublicKeyComponents {
            n: &self.modulus[..],
            e: &[1, 0, 1],
        };
        let verified = key.verify(
            &RSA_PSS_2048_8192_SHA384,
            &token.input(),
            &token.authenticator,
        );
        token.key_id == self.id && verified.is_ok()
    }
}

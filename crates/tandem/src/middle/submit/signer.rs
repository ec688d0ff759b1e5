//! The key of the gateway, and the signature of its requests to the server (RFC 9421, RFC 9530).

use std::fmt;

use ring::digest::{Context, SHA256};
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject as _;
use tandem_http::RequestHead;
use tandem_submit::digest::{self, CONTENT_DIGEST};
use tandem_submit::directory::{self, PublicKey};
use tandem_submit::signature::{self, Parameters, SignatureError};
use tandem_submit::submission::{IDEMPOTENCY_KEY, SUBMISSION_ID};

/// The tag of the gateway's signatures.
pub const TAG: &str = "tandem-submission";

/// The seconds for which a signature is valid.
const LIFETIME: i64 = 300;

/// The components that each signature covers. The gateway covers `@query` and `content-type` if
/// the request has them.
pub const COMPONENTS: [&str; 6] = [
    "@method",
    "@authority",
    "@path",
    CONTENT_DIGEST,
    SUBMISSION_ID,
    IDEMPOTENCY_KEY,
];

/// The key of the gateway.
pub struct Signer {
    pair: Ed25519KeyPair,
    public: PublicKey,
}

/// Shows only the public part.
impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer")
            .field("id", &self.public.id)
            .finish_non_exhaustive()
    }
}

impl Signer {
    /// Reads an Ed25519 key in PKCS #8 from PEM text (RFC 8410).
    ///
    /// # Errors
    /// Returns the problem and its remedy.
    pub fn from_pem(text: &[u8]) -> Result<Self, &'static str> {
        const REMEDY: &str =
            "it holds no Ed25519 key: make one with openssl genpkey -algorithm ed25519";
        let der = PrivatePkcs8KeyDer::from_pem_slice(text).map_err(|_| REMEDY)?;
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der.secret_pkcs8_der());
        let pair = pair.map_err(|_| REMEDY)?;
        let key = pair.public_key().as_ref().try_into().map_err(|_| REMEDY)?;
        let id = directory::thumbprint(&sha256(&[directory::thumbprint_input(&key).as_bytes()]));
        Ok(Self {
            pair,
            public: PublicKey { id, key },
        })
    }

    /// Returns the directory that publishes the key.
    pub fn directory(&self) -> String {
        directory::write(std::slice::from_ref(&self.public))
    }

    /// Adds the digest of the body and the signature to a request. `now` is in seconds since 1970.
    ///
    /// # Errors
    /// Returns the component that the request lacks.
    pub fn sign(
        &self,
        request: &mut RequestHead,
        digest: &[u8; 32],
        now: i64,
    ) -> Result<(), SignatureError> {
        request.fields.set(CONTENT_DIGEST, digest::value(digest));
        let mut components = COMPONENTS.to_vec();
        if request.path.contains('?') {
            components.push("@query");
        }
        if request.fields.contains("content-type") {
            components.push("content-type");
        }
        let parameters = Parameters {
            created: now,
            expires: Some(now.saturating_add(LIFETIME)),
            key_id: self.public.id.clone(),
            algorithm: Some("ed25519".to_owned()),
            tag: Some(TAG.to_owned()),
        };
        signature::sign(request, "tandem", &components, &parameters, |base| {
            self.pair.sign(base).as_ref().to_vec()
        })
    }
}

/// Returns the SHA-256 hash of the concatenated parts.
pub(super) fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    for part in parts {
        context.update(part);
    }
    let mut hash = [0; 32];
    hash.copy_from_slice(context.finish().as_ref());
    hash
}

#[cfg(test)]
pub(in crate::middle::submit) mod tests {
    use super::*;

    /// The key of RFC 9421 appendix B.1.4.
    pub(in crate::middle::submit) const PEM: &[u8] = b"-----BEGIN PRIVATE KEY-----\n\
        MC4CAQAwBQYDK2VwBCIEIJ+DYvh6SEqVTm50DFtMDoQikTmiCqirVv9mWG9qfSnF\n\
        -----END PRIVATE KEY-----\n";

    #[test]
    fn signer_reads_the_key_of_rfc_9421() {
        let signer = Signer::from_pem(PEM).expect("a key");
        let keys = directory::read(signer.directory().as_bytes(), |text| sha256(&[text]));
        assert_eq!(
            keys.expect("our own directory")[0].key[..4],
            [38, 180, 11, 143]
        );
        assert!(!format!("{signer:?}").contains("pair"));
        for text in [&b""[..], b"text", &PEM[..60]] {
            assert!(Signer::from_pem(text).is_err_and(|error| error.contains("openssl")));
        }
    }
}

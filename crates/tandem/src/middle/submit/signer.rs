//! The key of the gateway, and the signature of its requests to the server (RFC 9421, RFC 9530).

use std::fmt;

use ring::digest::{Context, SHA256};
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject as _;
use tandem_http::RequestHead;
use tandem_submit::digest::{self, CONTENT_DIGEST};
use tandem_submit::directory::{self, PublicKey};
use tandem_submit::fields;
use tandem_submit::signature::{self, Parameters, SignatureError};
use tandem_submit::submission::{IDEMPOTENCY_KEY, SUBMISSION_ID};

/// The tag of the gateway's signatures.
pub const TAG: &str = "tandem-submission";

/// The seconds for which a signature is valid.
const LIFETIME: i64 = 300;

/// The type of a body without a media type (RFC 9110 section 8.3).
const UNKNOWN_TYPE: &str = "application/octet-stream";

/// The components that each signature covers. The gateway also covers the other fields of
/// [`fields::PASSED`] that the request has. A request without a query has the component `@query`,
/// so that none can be added.
pub const COMPONENTS: [&str; 8] = [
    "@method",
    "@authority",
    "@path",
    "@query",
    "content-type",
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

    /// Adds the digest of the body and the signature to a request, and a media type if it has none.
    /// `now` is in seconds since 1970.
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
        if !request.fields.contains("content-type") {
            request.fields.set("content-type", UNKNOWN_TYPE);
        }
        let mut components = COMPONENTS.to_vec();
        let further = fields::PASSED.into_iter();
        let further = further.filter(|name| !COMPONENTS.contains(name));
        components.extend(further.filter(|name| request.fields.contains(name)));
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
    use ring::signature::{ED25519, UnparsedPublicKey};
    use tandem_http::Scheme;
    use tandem_submit::signature::Requirements;

    use super::*;

    /// The key of RFC 9421 appendix B.1.4.
    pub(in crate::middle::submit) const PEM: &[u8] = b"-----BEGIN PRIVATE KEY-----\n\
        MC4CAQAwBQYDK2VwBCIEIJ+DYvh6SEqVTm50DFtMDoQikTmiCqirVv9mWG9qfSnF\n\
        -----END PRIVATE KEY-----\n";

    #[test]
    fn signature_leaves_no_room_for_additions() {
        let signer = Signer::from_pem(PEM).expect("a key");
        let mut request = RequestHead::get(Scheme::Http, "server", "/reports");
        for name in [SUBMISSION_ID, IDEMPOTENCY_KEY] {
            request.fields.set(name, "1");
        }
        signer.sign(&mut request, &[0; 32], 1000).expect("signed");
        let requirements = Requirements {
            tag: Some(TAG),
            components: &COMPONENTS,
            if_present: &fields::PASSED,
            now: 1000,
            max_age: 300,
        };
        let is_genuine = |_: &str, base: &[u8], signature: &[u8]| {
            let key = UnparsedPublicKey::new(&ED25519, signer.public.key);
            key.verify(base, signature).is_ok()
        };
        let verify = |request: &RequestHead| signature::verify(request, &requirements, is_genuine);
        assert!(verify(&request).is_ok());
        let with = |name: &str, value: &str| {
            let mut changed = request.clone();
            changed.fields.set(name, value);
            changed
        };
        let with_query = RequestHead {
            path: "/reports?x=y".into(),
            ..request.clone()
        };
        for changed in [
            with_query,
            with("content-type", "text/html"),
            with("content-encoding", "gzip"),
            with("content-language", "de"),
        ] {
            assert!(verify(&changed).is_err(), "{changed:?}");
        }
    }

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

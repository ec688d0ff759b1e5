//! The certificates of both ends: reading them from files, and checking those of the peer.
//!
//! A message of dimpl holds one certificate. The certificates of a chain therefore follow each
//! other in the field of that one, and both ends split the field again. A gateway that requests
//! certificates gets one from every client: clients without one make an anonymous certificate.

use std::sync::Arc;

use dimpl::DtlsCertificate;
use rcgen::{CertificateParams, DnType, KeyPair};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::CertifiedKey;
use rustls::{AlertDescription, CertificateError, Error, RootCertStore};
use tandem::renewal::{Renewable, Renewals};
use tandem::transport::tls::TlsError;
use tandem::transport::tls::files::{certificates, private_key, roots};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::association::Verify;
use crate::crypto;

/// The largest number of certificates in a chain.
const MAX_CHAIN: usize = 10;
/// The size in bytes of the largest own chain. A flight of dimpl has at most 12 records of about
/// 1,100 bytes, and the handshake needs five of them for other messages.
const MAX_OWN: usize = 6 << 10;
/// The common name in the certificate of a client without one.
const ANONYMOUS: &str = "anonymous client";

/// The certificate of this end and its key, which are read again when their files change.
pub(crate) type Identity = Arc<Renewable<DtlsCertificate>>;

/// Reads a certificate and its key, and has `renewals` watch both files.
pub(crate) fn identity(cert: &str, key: &str, renewals: &Renewals) -> Result<Identity, TlsError> {
    let name = format!("the certificate in {cert}");
    let files = vec![cert.into(), key.into()];
    let (cert, key) = (cert.to_owned(), key.to_owned());
    let identity = Renewable::new(name, files, move || load(&cert, &key))?;
    Ok(renewals.watch(identity))
}

fn load(cert: &str, key: &str) -> Result<DtlsCertificate, TlsError> {
    let (chain, key_der) = (certificates(cert)?, private_key(key)?);
    if chain.len() > MAX_CHAIN {
        return Err(TlsError::File {
            file: cert.into(),
            problem: format!("the chain has more than {MAX_CHAIN} certificates"),
        });
    }
    let certificate: Vec<u8> = chain.iter().flat_map(|one| one.iter().copied()).collect();
    if certificate.len() > MAX_OWN {
        return Err(TlsError::File {
            file: cert.into(),
            problem: format!(
                "the chain has {} bytes, and dtls has room for {MAX_OWN}: leave out the \
                 certificate of the root, or use ECDSA keys and fewer names",
                certificate.len()
            ),
        });
    }
    let identity = DtlsCertificate {
        certificate,
        private_key: key_der.secret_der().to_vec(),
    };
    if !crypto::can_sign(&identity.private_key) {
        return Err(TlsError::File {
            file: key.into(),
            problem: "dtls needs an ECDSA key on P-256 or P-384 in PKCS #8 (openssl genpkey \
                      -algorithm EC -pkeyopt ec_paramgen_curve:P-256)"
                .into(),
        });
    }
    match CertifiedKey::from_der(chain, key_der, &default_provider()) {
        Ok(_) => Ok(identity),
        Err(Error::InconsistentKeys(_)) => Err(TlsError::Mismatch {
            cert: cert.into(),
            key: key.into(),
        }),
        Err(error) => Err(error.into()),
    }
}

/// Makes the certificate of a client without one. It is a different one for each association, so
/// that a gateway cannot link them.
///
/// # Errors
/// Returns an error if the system has no random numbers.
pub fn anonymous() -> Result<DtlsCertificate, rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params
        .distinguished_name
        .push(DnType::CommonName, ANONYMOUS);
    Ok(DtlsCertificate {
        certificate: params.self_signed(&key)?.der().to_vec(),
        private_key: key.serialize_der(),
    })
}

fn is_anonymous(certificate: &[u8]) -> bool {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else {
        return false;
    };
    let mut names = certificate.subject().iter_common_name();
    names.any(|name| name.as_str() == Ok(ANONYMOUS))
}

/// Splits the field of a message into the certificates of a chain.
fn split(field: &[u8]) -> Result<Vec<CertificateDer<'_>>, Error> {
    let (mut rest, mut chain) = (field, Vec::new());
    while !rest.is_empty() && chain.len() < MAX_CHAIN {
        let (after, _) =
            X509Certificate::from_der(rest).map_err(|_| CertificateError::BadEncoding)?;
        chain.push(CertificateDer::from(&rest[..rest.len() - after.len()]));
        rest = after;
    }
    if rest.is_empty() {
        Ok(chain)
    } else {
        Err(CertificateError::BadEncoding.into())
    }
}

/// Returns the verifier of gateways: by the authorities in the file `ca`, or by the public ones.
pub(crate) fn gateway_verifier(ca: Option<&str>) -> Result<Arc<WebPkiServerVerifier>, TlsError> {
    let roots = match ca {
        Some(file) => roots(file)?,
        None => RootCertStore {
            roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
        },
    };
    let provider = Arc::new(default_provider());
    WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| TlsError::Verifier(error.to_string()))
}

/// Returns the check of the gateway that is called `name`.
pub(crate) fn check_gateway(
    verifier: Arc<WebPkiServerVerifier>,
    name: ServerName<'static>,
) -> Verify {
    Box::new(move |field| {
        let chain = split(field)?;
        let (own, others) = chain.split_first().ok_or(Error::NoCertificatesPresented)?;
        let verified = verifier.verify_server_cert(own, others, &name, &[], UnixTime::now());
        verified.map(|_| true)
    })
}

/// The check of the clients of a listener.
#[derive(Clone, Debug)]
pub(crate) struct Clients {
    verifier: Arc<dyn ClientCertVerifier>,
    optional: bool,
}

impl Clients {
    /// Reads the authorities in the file `ca`. With `optional`, anonymous clients may connect.
    pub(crate) fn new(ca: &str, optional: bool) -> Result<Self, TlsError> {
        let provider = Arc::new(default_provider());
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(ca)?), provider);
        let verifier = builder
            .build()
            .map_err(|error| TlsError::Verifier(error.to_string()))?;
        Ok(Self { verifier, optional })
    }

    /// Returns the check of one client.
    pub(crate) fn check(&self) -> Verify {
        let Self { verifier, optional } = self.clone();
        Box::new(move |field| {
            let chain = split(field)?;
            let (own, others) = chain.split_first().ok_or(Error::NoCertificatesPresented)?;
            match (is_anonymous(own), optional) {
                (true, true) => Ok(false),
                (true, false) => Err(Error::NoCertificatesPresented),
                (false, _) => verifier
                    .verify_client_cert(own, others, UnixTime::now())
                    .map(|_| true),
            }
        })
    }
}

/// The first code of an association that ends with an alert of TLS, as in QUIC (RFC 9001, section
/// 4.8).
const ALERTS: u32 = 0x100;

/// Returns the code with which a gateway ends the association of a client whose certificate it
/// does not accept.
pub(crate) fn refusal_code(error: &Error) -> u32 {
    use CertificateError::{Expired, ExpiredContext};
    let alert = match error {
        Error::NoCertificatesPresented => AlertDescription::CertificateRequired,
        Error::InvalidCertificate(Expired | ExpiredContext { .. }) => {
            AlertDescription::CertificateExpired
        }
        _ => AlertDescription::CertificateUnknown,
    };
    ALERTS + u32::from(u8::from(alert))
}

/// Returns the alert that a code names, if it is one of [`refusal_code`].
pub(crate) fn refusal_of(code: u32) -> Option<AlertDescription> {
    [
        AlertDescription::CertificateRequired,
        AlertDescription::CertificateExpired,
        AlertDescription::CertificateUnknown,
    ]
    .into_iter()
    .find(|alert| code == ALERTS + u32::from(u8::from(*alert)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chain_is_split_into_its_certificates() {
        let one = anonymous().expect("random numbers").certificate;
        let two = anonymous().expect("random numbers").certificate;
        let both = [&one[..], &two].concat();
        let chain = split(&both).expect("two certificates");
        assert_eq!((&chain[0][..], &chain[1][..]), (&one[..], &two[..]));
        assert!(split(&both[..both.len() - 1]).is_err());
        assert!(split(&one.repeat(MAX_CHAIN)).is_ok());
        assert!(split(&one.repeat(MAX_CHAIN + 1)).is_err());
        assert!(split(&[]).expect("an empty chain").is_empty());
    }

    #[test]
    fn anonymous_certificate_is_known_as_such() {
        let own = anonymous().expect("random numbers");
        assert!(is_anonymous(&own.certificate) && crypto::can_sign(&own.private_key));
        let key = KeyPair::generate().expect("random numbers");
        let names = vec!["client.example".to_owned()];
        let other = CertificateParams::new(names).expect("a name");
        let other = other.self_signed(&key).expect("a certificate");
        assert!(!is_anonymous(other.der()) && !is_anonymous(b"no certificate"));
    }

    #[test]
    fn refusal_code_names_its_alert() {
        let missing = refusal_code(&Error::NoCertificatesPresented);
        assert_eq!(
            refusal_of(missing),
            Some(AlertDescription::CertificateRequired)
        );
        let unknown = refusal_code(&CertificateError::UnknownIssuer.into());
        assert_eq!(
            refusal_of(unknown),
            Some(AlertDescription::CertificateUnknown)
        );
        assert_eq!(refusal_of(0), None);
    }
}

//! The certificate of this end and its key, which are read again when their files change. Later
//! handshakes use the new ones. Open connections are not affected.

use std::fs::File;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::client::{ResolvesClientCert, verify_server_name};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::ServerName;
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::TlsError;
use super::files::{Validity, certificates, private_key};
use crate::renewal::{Renewable, Renewals};

/// A certificate with its key.
#[derive(Debug)]
pub struct Identity(Arc<Renewable<Arc<CertifiedKey>>>);

impl Identity {
    /// Reads both files, and has `renewals` watch them.
    ///
    /// # Errors
    /// Fails if the files cannot be read or do not fit each other.
    pub fn watch(cert: &str, key: &str, renewals: &Renewals) -> Result<Self, TlsError> {
        let name = format!("the certificate in {cert}");
        let files = vec![cert.into(), key.into()];
        let (cert, key) = (cert.to_owned(), key.to_owned());
        let identity = Renewable::new(name, files, move || load(&cert, &key))?;
        Ok(Self(renewals.watch(identity)))
    }
}

/// Checks the certificate and the key that a listener will get for the name or address `host`. A
/// file that this user may not open is not checked.
///
/// # Errors
/// Returns the problem and its remedy.
pub fn check(cert: &str, key: &str, host: &str, now: SystemTime) -> Result<(), String> {
    let is_hidden = |file: &str| {
        File::open(file).is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
    };
    if is_hidden(cert) {
        return Ok(());
    }
    let words = |error: TlsError| error.to_string();
    let bad = |problem: &str| format!("{cert}: {problem}");
    let chain = certificates(cert).map_err(words)?;
    let validity = Validity::of_file(cert).map_err(words)?;
    if !validity.contains(now) {
        let problem = validity.warning(now).unwrap_or_default();
        return Err(bad(&format!("the certificate {problem}")));
    }
    let parsed = ParsedCertificate::try_from(&chain[0]);
    let parsed = parsed.map_err(|error| bad(&error.to_string()))?;
    let name = ServerName::try_from(host).map_err(|_| format!("{host:?} is no name"))?;
    verify_server_name(&parsed, &name).map_err(|_| {
        bad(&format!(
            "the certificate is not for {host}: give the name or address for which it is, or \
             another certificate"
        ))
    })?;
    if is_hidden(key) {
        return Ok(());
    }
    load(cert, key).map(drop).map_err(words)
}

fn load(cert: &str, key: &str) -> Result<Arc<CertifiedKey>, TlsError> {
    let (chain, key_der) = (certificates(cert)?, private_key(key)?);
    match CertifiedKey::from_der(chain, key_der, &default_provider()) {
        Ok(identity) => Ok(Arc::new(identity)),
        Err(rustls::Error::InconsistentKeys(_)) => Err(TlsError::Mismatch {
            cert: cert.into(),
            key: key.into(),
        }),
        Err(error) => Err(error.into()),
    }
}

impl ResolvesServerCert for Identity {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.get()))
    }
}

impl ResolvesClientCert for Identity {
    fn resolve(&self, _: &[&[u8]], _: &[rustls::SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.get()))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::transport::tls::self_signed::self_signed;

    #[test]
    fn check_finds_what_handshakes_would_refuse() {
        let folder = crate::secret::token().expect("random numbers");
        let folder = std::env::temp_dir().join(format!("tandem-identity-{folder}"));
        std::fs::create_dir(&folder).expect("a new directory");
        let now = SystemTime::now();
        let made = ["gw.example", "203.0.113.5"].map(|host| self_signed(host, now));
        let write = |name: &str, text: &str| {
            let path = folder.join(name);
            std::fs::write(&path, text).expect("a writable directory");
            path.display().to_string()
        };
        let [named, numbered] = made.map(|made| made.expect("a certificate"));
        let (cert, key) = (write("cert", &named.certificate), write("key", &named.key));
        let other_key = write("other-key", &numbered.key);
        let other_cert = write("other-cert", &numbered.certificate);
        assert_eq!(check(&cert, &key, "gw.example", now), Ok(()));
        assert_eq!(check(&other_cert, &other_key, "203.0.113.5", now), Ok(()));
        let later = now + Duration::from_secs(20 * 366 * 86_400);
        for (key, host, now, part) in [
            (&key, "other.example", now, "is not for other.example: give"),
            (&key, "203.0.113.5", now, "is not for 203.0.113.5"),
            (
                &other_key,
                "gw.example",
                now,
                "does not belong to the certificate",
            ),
            (&key, "gw.example", later, "expired"),
            (&cert, "gw.example", now, "no private key is in it"),
        ] {
            let problem = check(&cert, key, host, now).expect_err(part);
            assert!(problem.contains(part), "{problem}");
        }
        std::fs::remove_dir_all(folder).expect("the directory of the test");
    }
}

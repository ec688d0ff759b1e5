//! The certificate of this end and its key, which are read again when their files change. Later
//! handshakes use the new ones. Open connections are not affected.

use std::sync::Arc;

use rustls::client::ResolvesClientCert;
use rustls::crypto::ring::default_provider;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::TlsError;
use super::files::{certificates, private_key};
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

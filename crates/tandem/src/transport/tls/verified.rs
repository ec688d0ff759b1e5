//! TLS to the origins of opened hosts. It is stricter than the dialling end of [`super::Tls`].
//!
//! An origin that asks for a client certificate fails the dial: only the browser can choose one. No
//! session is resumed, because tickets would link connections that the browser keeps apart. Each
//! dial uses a separate configuration, so that the request is noted for its connection alone.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustls::ClientConfig;
use rustls::client::ResolvesClientCert;
use rustls::sign::CertifiedKey;
use tokio_rustls::TlsConnector;

use super::{ClientTls, TlsError, connect};
use crate::error::{Error, Kind, Side};
use crate::exchange::Isolation;
use crate::path::Path;
use crate::transport::{Dial, LocalBoxFuture, Target};

/// TLS to origins over the transport below.
pub struct VerifiedTls {
    below: Rc<dyn Dial>,
    config: Arc<ClientConfig>,
    /// The time for the handshake.
    timeout: Duration,
}

impl VerifiedTls {
    /// Creates the layer. It trusts the authorities in the PEM file `ca`, or those of the public
    /// web, and offers the protocols of `alpn`.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub fn new(
        below: Rc<dyn Dial>,
        ca: Option<&str>,
        alpn: &[&[u8]],
        timeout: Duration,
    ) -> Result<Self, TlsError> {
        let tls = ClientTls {
            ca: ca.map(str::to_owned),
            identity: None,
            alpn: alpn.iter().map(|name| name.to_vec()).collect(),
            unlinkable: true,
        };
        let config = Arc::clone(tls.connector()?.config());
        Ok(Self {
            below,
            config,
            timeout,
        })
    }
}

impl Dial for VerifiedTls {
    fn below(&self) -> Option<&dyn Dial> {
        Some(&*self.below)
    }

    fn dial<'a>(
        &'a self,
        target: &'a Target,
        isolation: &'a Isolation,
    ) -> LocalBoxFuture<'a, Result<Path, Error>> {
        Box::pin(async move {
            let request = Arc::new(CertificateRequest::default());
            let mut config = ClientConfig::clone(&self.config);
            config.client_auth_cert_resolver = Arc::clone(&request) as _;
            let connector = TlsConnector::from(Arc::new(config));
            let path = self.below.dial(target, isolation).await?;
            let origin = Side::Origin;
            let path = connect(&connector, path, &target.host, self.timeout, origin).await;
            if request.arrived.load(Ordering::Relaxed) {
                let detail = "the site asks for a client certificate";
                return Err(Error::new(Kind::Tls, origin, detail));
            }
            path
        })
    }
}

/// Notes whether a server asks for a client certificate, and has none.
#[derive(Debug, Default)]
struct CertificateRequest {
    arrived: AtomicBool,
}

impl ResolvesClientCert for CertificateRequest {
    fn resolve(&self, _: &[&[u8]], _: &[rustls::SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.arrived.store(true, Ordering::Relaxed);
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

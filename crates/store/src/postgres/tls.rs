//! TLS to PostgreSQL by rustls. The certificate is always verified, for the host of the address.

use std::convert::Infallible;
use std::fmt::Display;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client;

/// Connects with the certificates of one configuration.
#[derive(Clone)]
pub(super) struct Tls(Arc<ClientConfig>);

impl Tls {
    /// Trusts the authorities in a PEM file, or those of Mozilla without a file.
    ///
    /// # Errors
    /// Returns the problem of the file.
    pub(super) fn new(authorities: Option<&Path>) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        match authorities {
            None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
            Some(file) => {
                let wrong = |problem: &dyn Display| format!("{}: {problem}", file.display());
                let certificates = CertificateDer::pem_file_iter(file);
                for certificate in certificates.map_err(|error| wrong(&error))? {
                    let certificate = certificate.map_err(|error| wrong(&error))?;
                    roots.add(certificate).map_err(|error| wrong(&error))?;
                }
                if roots.is_empty() {
                    return Err(wrong(&"it has no certificate in PEM"));
                }
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self(Arc::new(config)))
    }
}

impl MakeTlsConnect<Socket> for Tls {
    type Stream = Stream;
    type TlsConnect = Handshake;
    type Error = Infallible;

    fn make_tls_connect(&mut self, host: &str) -> Result<Handshake, Infallible> {
        Ok(Handshake {
            config: Arc::clone(&self.0),
            // The library asks for sockets without TLS as well, which may have no such name.
            name: ServerName::try_from(host.to_owned()),
        })
    }
}

/// The handshake with one host.
pub(super) struct Handshake {
    config: Arc<ClientConfig>,
    name: Result<ServerName<'static>, InvalidDnsNameError>,
}

impl TlsConnect<Socket> for Handshake {
    type Stream = Stream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        Box::pin(async move {
            let name = self.name.map_err(io::Error::other)?;
            let handshake = TlsConnector::from(self.config).connect(name, socket);
            handshake.await.map(Stream)
        })
    }
}

/// A connection over TLS.
pub(super) struct Stream(client::TlsStream<Socket>);

impl TlsStream for Stream {
    fn channel_binding(&self) -> ChannelBinding {
        // The certificate is verified, so the password needs no binding to it.
        ChannelBinding::none()
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

//! TLS through rustls, with ALPN (RFC 7301) for the version of SPDY.

use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;

use bytes::Buf as _;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};
use socket2::Socket;
use tandem_http::SendBuf;
use tandem_spdy::Version;

use super::{Received, SEND_FLAGS};

/// Plaintext that is encrypted at once, in bytes: one record.
const RECORD: usize = 16 << 10;

/// Why a daemon with TLS did not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    #[error("cannot read the certificate or key: {0}")]
    Pem(#[from] rustls::pki_types::pem::Error),
    #[error("cannot use the certificate or key: {0}")]
    Config(#[from] rustls::Error),
}

/// The certificate and options of a daemon.
#[derive(Clone, Debug)]
pub(crate) struct TlsAcceptor(Arc<ServerConfig>);

impl TlsAcceptor {
    /// Loads PEM files. The certificate's chain may follow it in its file.
    pub(crate) fn new(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let chain = CertificateDer::pem_file_iter(certificate)?.collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_file(key)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        config.alpn_protocols = [Version::V31, Version::V3]
            .map(|version| version.alpn().as_bytes().to_vec())
            .into();
        Ok(Self(Arc::new(config)))
    }

    /// Begins a handshake.
    pub(crate) fn accept(&self) -> Result<TlsStream, TlsError> {
        let mut connection = ServerConnection::new(Arc::clone(&self.0))?;
        connection.set_buffer_limit(Some(4 * RECORD));
        Ok(TlsStream { connection })
    }
}

/// A TLS connection.
#[derive(Debug)]
pub(crate) struct TlsStream {
    connection: ServerConnection,
}

impl TlsStream {
    pub(super) fn receive(&mut self, socket: &Socket, buffer: &mut [u8]) -> io::Result<Received> {
        loop {
            match self.connection.reader().read(buffer) {
                Ok(0) => return Ok(Received::Closed),
                Ok(count) => return Ok(Received::Bytes(count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            match self.connection.read_tls(&mut &*socket) {
                Ok(0) => return Ok(Received::Closed),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(Received::Nothing);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            let result = self.connection.process_new_packets();
            // The handshake goes on, or an alert tells the client about its end.
            self.flush(socket)?;
            result.map_err(io::Error::other)?;
        }
    }

    /// Encrypts only as much as leaves at once, so that urgent data overtakes the rest.
    pub(super) fn send(&mut self, socket: &Socket, out: &mut SendBuf) -> io::Result<usize> {
        let mut taken = 0;
        while self.flush(socket)? && self.is_ready() && !out.is_empty() {
            let chunk = out.chunk();
            let count = self
                .connection
                .writer()
                .write(&chunk[..chunk.len().min(RECORD)])?;
            out.advance(count);
            taken += count;
        }
        Ok(taken)
    }

    /// Returns true if all ciphertext has left.
    fn flush(&mut self, socket: &Socket) -> io::Result<bool> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut NoSignal(socket)) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    pub(super) fn is_ready(&self) -> bool {
        !self.connection.is_handshaking()
    }

    pub(super) fn wants_write(&self) -> bool {
        self.connection.wants_write()
    }

    pub(super) fn version(&self) -> Option<Version> {
        let name = self.connection.alpn_protocol()?;
        [Version::V3, Version::V31]
            .into_iter()
            .find(|version| version.alpn().as_bytes() == name)
    }

    pub(super) fn close(&mut self) {
        self.connection.send_close_notify();
    }
}

/// A socket whose writes raise no SIGPIPE.
struct NoSignal<'a>(&'a Socket);

impl io::Write for NoSignal<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send_with_flags(bytes, SEND_FLAGS)
    }

    fn write_vectored(&mut self, slices: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.0.send_vectored_with_flags(slices, SEND_FLAGS)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

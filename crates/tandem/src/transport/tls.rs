//! TLS (by rustls) as a layer over another transport, for gateways, origins and listeners.
//!
//! [`files`] reads certificates and keys, and `identity` renews them. [`authority`] certifies
//! listeners on this machine, and [`self_signed`] a gateway. [`records`] is the path over TLS, and
//! [`layer`] the transport. [`stapled`] heeds the OCSP response of a handshake. [`leaves`] and
//! [`verified`] are the two ends of opened connections.

pub mod authority;
pub mod files;
pub mod identity;
pub mod layer;
pub mod leaves;
pub mod records;
pub mod self_signed;
pub mod stapled;
pub mod trusted_by;
pub mod verified;

pub use layer::{DIAL_OPTIONS, Tls, TlsProvider};

use std::path::Path as FilePath;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::pki_types::ServerName;
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use crate::error::{Error, Kind, Retry, Side};
use crate::path::{Facts, Path};
use crate::renewal::Renewals;
use authority::LocalIdentity;
use files::roots;
use identity::Identity;
use records::TlsPath;
use stapled::StapleVerifier;

/// The reason why a TLS configuration cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A certificate or key file could not be read.
    #[error("{file}: {problem}")]
    File {
        /// The file.
        file: String,
        /// The reason, with a description of the file's content.
        problem: String,
    },
    /// A key does not belong to its certificate.
    #[error("the private key in {key} does not belong to the certificate in {cert}")]
    Mismatch {
        /// The certificate's file.
        cert: String,
        /// The key's file.
        key: String,
    },
    /// The local authority cannot be used.
    #[error("the local authority in {directory}: {problem}")]
    Authority {
        /// The directory of its certificate and key.
        directory: String,
        /// The reason.
        problem: String,
    },
    /// The certificate and the key cannot be used together.
    #[error("certificate and key cannot be used: {0}")]
    Config(#[from] rustls::Error),
    /// The authorities for servers cannot be used.
    #[error("the certificate authorities for servers cannot be used: {0}")]
    Roots(String),
    /// The certificate authority for clients cannot be used.
    #[error("the certificate authority for clients cannot be used: {0}")]
    Verifier(String),
}

/// The settings of the dialling side of TLS.
#[derive(Clone, Debug, Default)]
pub struct ClientTls {
    /// The PEM file of the authorities to trust instead of the public ones.
    pub ca: Option<String>,
    /// The client's certificate with its key.
    pub identity: Option<Arc<Identity>>,
    /// The protocols to offer (ALPN), best first.
    pub alpn: Vec<Vec<u8>>,
    /// True if TLS sessions are never resumed. Tickets would let the other end link a client's
    /// sessions across isolation keys.
    pub unlinkable: bool,
}

impl ClientTls {
    /// Creates the connector.
    pub fn connector(&self) -> Result<TlsConnector, TlsError> {
        let roots = match &self.ca {
            Some(file) => roots(file)?,
            None => RootCertStore {
                roots: webpki_roots::TLS_SERVER_ROOTS.to_vec(),
            },
        };
        Ok(TlsConnector::from(Arc::new(self.config(roots)?)))
    }

    /// Creates the configuration with these authorities.
    fn config(&self, roots: RootCertStore) -> Result<ClientConfig, TlsError> {
        let verifier = WebPkiServerVerifier::builder(Arc::new(roots))
            .build()
            .map_err(|error| TlsError::Roots(error.to_string()))?;
        let verifier = Arc::new(StapleVerifier(verifier));
        let builder = ClientConfig::builder()
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some(identity) => builder.with_client_cert_resolver(Arc::clone(identity) as _),
        };
        config.alpn_protocols.clone_from(&self.alpn);
        if self.unlinkable {
            config.resumption = Resumption::disabled();
        }
        Ok(config)
    }
}

/// Runs the client's handshake over `path`. Errors name `side` as the side at fault.
pub async fn connect(
    connector: &TlsConnector,
    path: Path,
    host: &str,
    timeout: Duration,
    side: Side,
) -> Result<Path, Error> {
    let name = ServerName::try_from(host.to_owned()).map_err(|_| {
        Error::new(
            Kind::Tls,
            side,
            "the host name cannot stand in a certificate",
        )
    })?;
    match tokio::time::timeout(timeout, connector.connect(name, path)).await {
        Ok(Ok(stream)) => Ok(wrap(stream.into())),
        Ok(Err(error)) => Err(handshake_error(&error, side).with_retry(Retry::Safe)),
        Err(_) => Err(Error::new(
            Kind::Timeout,
            side,
            "no answer to the TLS handshake in time",
        )
        .with_retry(Retry::Safe)),
    }
}

/// Classifies the error of a handshake. A server without TLS often closes at the first record.
fn handshake_error(error: &std::io::Error, side: Side) -> Error {
    let classified = Error::io(error, side);
    if classified.kind == Kind::Truncated && side == Side::Peer {
        let detail = "the connection was closed during the TLS handshake: \
                      if the gateway speaks no TLS there, use h2+tcp";
        return Error::new(Kind::Tls, side, detail);
    }
    classified
}

/// The bytes that TLS may buffer above the socket. Urgent data cannot overtake them.
const TLS_BUFFER: usize = 16 << 10;

/// Creates the path over an established TLS stream.
pub fn wrap(mut stream: TlsStream<Path>) -> Path {
    match &mut stream {
        TlsStream::Client(stream) => stream.get_mut().1.set_buffer_limit(Some(TLS_BUFFER)),
        TlsStream::Server(stream) => stream.get_mut().1.set_buffer_limit(Some(TLS_BUFFER)),
    }
    let (path, connection) = stream.get_ref();
    let facts = TlsFacts {
        alpn: connection.alpn_protocol().map(<[u8]>::to_vec),
        peer_certificate: connection
            .peer_certificates()
            .and_then(|chain| chain.first())
            .map(|certificate| sha256(certificate)),
        below: Rc::clone(path.facts()),
    };
    Path::new(TlsPath::new(stream), Rc::new(facts))
}

/// The facts that the handshake adds to those of the path below.
struct TlsFacts {
    alpn: Option<Vec<u8>>,
    peer_certificate: Option<[u8; 32]>,
    below: Rc<dyn Facts>,
}

impl Facts for TlsFacts {
    fn below(&self) -> Option<&dyn Facts> {
        Some(&*self.below)
    }

    fn alpn(&self) -> Option<&[u8]> {
        self.alpn.as_deref()
    }

    fn has_peer_certificate(&self) -> bool {
        self.peer_certificate.is_some()
    }

    fn peer_certificate(&self) -> Option<[u8; 32]> {
        self.peer_certificate
    }
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, bytes).as_ref());
    hash
}

/// The client certificates that a listener accepts.
#[derive(Clone, Copy, Debug)]
pub struct ClientCertificates<'a> {
    /// The PEM file of the authorities whose clients are accepted.
    pub ca: &'a str,
    /// True if clients without a certificate may connect and send a token instead.
    pub optional: bool,
}

/// Creates the acceptor of a listener with a certificate.
pub fn acceptor(
    identity: Identity,
    clients: Option<ClientCertificates<'_>>,
    alpn: &[&[u8]],
) -> Result<TlsAcceptor, TlsError> {
    let builder = match clients {
        None => ServerConfig::builder().with_no_client_auth(),
        Some(ClientCertificates { ca, optional }) => {
            let mut verifier = WebPkiClientVerifier::builder(Arc::new(roots(ca)?));
            if optional {
                verifier = verifier.allow_unauthenticated();
            }
            let verifier = verifier
                .build()
                .map_err(|e| TlsError::Verifier(e.to_string()))?;
            ServerConfig::builder().with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_cert_resolver(Arc::new(identity));
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Creates the acceptor of a listener on this machine, with a certificate by the local authority in
/// `directory`.
pub fn local_acceptor(
    directory: &FilePath,
    alpn: &[&[u8]],
    renewals: &Renewals,
) -> Result<TlsAcceptor, TlsError> {
    let identity = Arc::new(LocalIdentity::watch(directory, renewals)?);
    let mut config = ServerConfig::builder()
        .with_no_client_auth()
        .with_cert_resolver(identity);
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(TlsAcceptor::from(Arc::new(config)))
}

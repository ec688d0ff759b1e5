//! TLS of an origin: a certificate made on the spot, and the protocols to choose from.

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tandem_http::h1::Authority;
use tokio_rustls::TlsAcceptor;

/// HTTP/2 and HTTP/1.1 as ALPN names them (RFC 7301, RFC 9113 section 3.1).
pub(super) const H2: &[u8] = b"h2";
const HTTP11: &[u8] = b"http/1.1";

/// Protocols that clients may choose (ALPN).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocols {
    /// HTTP/2 if the client takes it, else HTTP/1.1.
    Both,
    /// The protocol HTTP/1.1 only.
    Http1,
    /// The protocol HTTP/2 only.
    H2,
}

/// An error in an origin's TLS.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The certificate could not be made.
    #[error("cannot make a certificate for {names}: {source}")]
    Certificate {
        /// The names in the certificate.
        names: String,
        /// The cause.
        source: rcgen::Error,
    },
    /// The TLS library takes it not.
    #[error("cannot use the certificate: {0}")]
    Config(#[from] rustls::Error),
}

/// An acceptor with a self-signed certificate for these authorities.
pub(super) fn acceptor(
    authorities: &[String],
    protocols: Protocols,
) -> Result<TlsAcceptor, TlsError> {
    let host = |text: &String| {
        Authority::parse(text.as_bytes()).map(|a| a.host.trim_matches(['[', ']']).to_owned())
    };
    let names: Vec<String> = authorities.iter().filter_map(host).collect();
    let certified = rcgen::generate_simple_self_signed(names.clone()).map_err(|source| {
        TlsError::Certificate {
            names: names.join(", "),
            source,
        }
    })?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(
        certified.signing_key.serialize_der(),
    ));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key)?;
    config.alpn_protocols = match protocols {
        Protocols::Both => vec![H2.to_vec(), HTTP11.to_vec()],
        Protocols::Http1 => vec![HTTP11.to_vec()],
        Protocols::H2 => vec![H2.to_vec()],
    };
    Ok(TlsAcceptor::from(Arc::new(config)))
}

//! Verification of a server's certificate that also heeds the OCSP response in its handshake (RFC
//! 6066 section 8, RFC 6960).
//!
//! A browser refuses a certificate that such a response calls revoked. This program must not accept
//! it either, since the browser never sees the certificate of an origin whose HTTPS is opened. The
//! response is not verified: a false one causes a refusal only.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};
use x509_parser::asn1_rs::{Any, Class, FromDer as _, Tag};

/// The verifier of rustls, and then the OCSP response.
#[derive(Debug)]
pub(super) struct StapleVerifier(pub(super) Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for StapleVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self
            .0
            .verify_server_cert(certificate, intermediates, name, ocsp, now)?;
        match tells_revocation(ocsp) {
            true => Err(Error::InvalidCertificate(CertificateError::Revoked)),
            false => Ok(verified),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// The tag of the status "revoked" in a `SingleResponse` (RFC 6960 section 4.2.1).
const REVOKED: Tag = Tag(1);

/// Returns whether an OCSP response calls any certificate revoked. A response that cannot be parsed
/// calls none.
pub fn tells_revocation(response: &[u8]) -> bool {
    single_responses(response).is_some_and(|responses| {
        elements(responses).any(|single| {
            let status = elements(single.data).nth(1);
            status.is_some_and(|status| is_specific(&status, REVOKED))
        })
    })
}

/// Returns the content of the field `responses` of a `BasicOCSPResponse`.
fn single_responses(response: &[u8]) -> Option<&[u8]> {
    let response = elements(response).next()?.data;
    let bytes = elements(response)
        .find(|part| is_specific(part, Tag(0)))?
        .data;
    let typed = elements(bytes).next()?.data;
    let basic = elements(typed).nth(1)?.data;
    let signed = elements(elements(basic).next()?.data).next()?.data;
    // The optional version and the responder's identity have specific tags.
    let responses = elements(signed).find(|part| part.tag() == Tag::Sequence)?;
    Some(responses.data)
}

fn is_specific(element: &Any<'_>, tag: Tag) -> bool {
    element.class() == Class::ContextSpecific && element.tag() == tag
}

/// Returns the elements of a DER encoding up to the first one that cannot be parsed.
fn elements(mut rest: &[u8]) -> impl Iterator<Item = Any<'_>> {
    std::iter::from_fn(move || {
        let (after, element) = Any::from_der(rest).ok()?;
        rest = after;
        Some(element)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
    use rustls::server::ResolvesServerCertUsingSni;
    use rustls::sign::CertifiedKey;
    use rustls::{ClientConnection, RootCertStore, ServerConfig, ServerConnection};

    use super::super::ClientTls;
    use super::*;

    fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
        let content = parts.concat();
        let length = u8::try_from(content.len()).expect("a test's element is short");
        assert!(length < 128);
        [&[tag, length], &content[..]].concat()
    }

    /// Returns a response with these statuses, as their tags.
    fn response(statuses: &[u8]) -> Vec<u8> {
        let time = der(0x18, &[b"20260101000000Z"]);
        let singles: Vec<_> = statuses
            .iter()
            .map(|&status| {
                let status = match status {
                    0xa1 => der(status, &[]),
                    _ => vec![status, 0],
                };
                der(0x30, &[&der(0x30, &[]), &status])
            })
            .collect();
        let singles: Vec<_> = singles.iter().map(Vec::as_slice).collect();
        let signed = der(0x30, &[&der(0xa2, &[]), &time, &der(0x30, &singles)]);
        let basic = der(0x30, &[&signed]);
        let typed = der(0x30, &[&der(0x06, &[&[0x2a]]), &der(0x04, &[&basic])]);
        der(0x30, &[&der(0x0a, &[&[0]]), &der(0xa0, &[&typed])])
    }

    #[test]
    fn revocation_is_found_among_the_responses() {
        const GOOD: u8 = 0x80;
        const UNKNOWN: u8 = 0x82;
        for (statuses, expected) in [
            (&[][..], false),
            (&[GOOD, UNKNOWN], false),
            (&[0xa1], true),
            (&[GOOD, 0xa1], true),
        ] {
            let response = response(statuses);
            assert_eq!(tells_revocation(&response), expected, "{statuses:?}");
            for end in 0..response.len() {
                assert!(!tells_revocation(&response[..end]), "{end} bytes");
            }
        }
    }

    /// Returns the outcome of a handshake with a server that staples these bytes.
    fn handshake(staple: Option<Vec<u8>>) -> Result<(), Error> {
        let signed = rcgen::generate_simple_self_signed(vec!["a.test".to_owned()]).unwrap();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(signed.signing_key.serialize_der()));
        let provider = rustls::crypto::ring::default_provider();
        let key = provider.key_provider.load_private_key(key).unwrap();
        let mut certified = CertifiedKey::new(vec![signed.cert.der().clone()], key);
        certified.ocsp = staple;
        let mut resolver = ResolvesServerCertUsingSni::new();
        resolver.add("a.test", certified).unwrap();
        let server = ServerConfig::builder()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(resolver));
        let mut server = ServerConnection::new(Arc::new(server)).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(signed.cert.der().clone()).unwrap();
        let client = ClientTls::default().config(roots).unwrap();
        let name = ServerName::try_from("a.test").unwrap();
        let mut client = ClientConnection::new(Arc::new(client), name).unwrap();
        while client.is_handshaking() {
            let mut flight = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut flight).unwrap();
            }
            server.read_tls(&mut &flight[..]).unwrap();
            server.process_new_packets().unwrap();
            let mut flight = Vec::new();
            while server.wants_write() {
                server.write_tls(&mut flight).unwrap();
            }
            client.read_tls(&mut &flight[..]).unwrap();
            client.process_new_packets()?;
        }
        Ok(())
    }

    #[test]
    fn stapled_revocation_ends_the_handshake() {
        let revoked = Error::InvalidCertificate(CertificateError::Revoked);
        assert_eq!(handshake(None), Ok(()));
        assert_eq!(handshake(Some(response(&[0x80]))), Ok(()));
        assert_eq!(handshake(Some(response(&[0xa1]))), Err(revoked));
    }
}

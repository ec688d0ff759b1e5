//! The certificate that `tandem init` makes for a gateway without a public one.
//!
//! It is no authority. A client that trusts it through `ca=FILE` can therefore be deceived by the
//! holder of this key only, and about this gateway only.

use std::time::{Duration, SystemTime};

use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose};

/// The validity. Every client has a copy of the certificate, so a renewal costs each user a step.
const LIFE: Duration = Duration::from_secs(10 * 365 * 86_400);

/// The time by which the certificate begins early, for clocks that are set back.
const BACK_DATED: Duration = Duration::from_secs(86_400);

/// A certificate with its key.
pub struct SelfSigned {
    /// The certificate in PEM.
    pub certificate: String,
    /// The certificate in DER.
    pub der: Vec<u8>,
    /// The private key in PEM (PKCS #8).
    pub key: String,
}

/// Makes a certificate for the DNS name or address `host`.
///
/// # Errors
/// Fails if `host` cannot stand in a certificate.
pub fn self_signed(host: &str, now: SystemTime) -> Result<SelfSigned, rcgen::Error> {
    let mut params = CertificateParams::new(vec![host.to_owned()])?;
    let name = &mut params.distinguished_name;
    name.remove(DnType::CommonName);
    name.push(DnType::CommonName, "Tandem gateway");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.not_before = (now - BACK_DATED).into();
    params.not_after = (now + LIFE).into();
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    Ok(SelfSigned {
        certificate: certificate.pem(),
        der: certificate.der().to_vec(),
        key: key.serialize_pem(),
    })
}

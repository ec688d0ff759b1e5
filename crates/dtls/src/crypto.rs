//! The cryptography of DTLS: ring, as for TLS, behind the interface of dimpl.
//!
//! Both ends are ours, so two cipher suites suffice. Every end takes ChaCha20-Poly1305 (RFC 8439).
//! An end whose processor has instructions for AES also takes AES-128-GCM, which is faster there,
//! and a client offers it first. The gateway takes the first suite of the client that it has, so a
//! pair uses AES only if both ends have the instructions. ring offers the masks for record numbers
//! (RFC 9147, section 4.2.3). Keys are agreed on with X25519 or P-256, and certificates have ECDSA
//! keys.

use std::fmt;

use dimpl::crypto::{
    Aad, ActiveKeyExchange, Buf, Cipher, CryptoProvider, Dtls12CipherSuite, Dtls13CipherSuite,
    HashAlgorithm, HashContext, HashProvider, HmacProvider, KeyProvider, NamedGroup, Nonce,
    SecureRandom, SignatureAlgorithm, SignatureVerifier, SigningKey, SupportedDtls12CipherSuite,
    SupportedDtls13CipherSuite, SupportedKxGroup, TmpBuf, check_verify_scheme,
};
use dimpl::{CryptoError, CryptoOperation};
use ring::aead::{AES_128_GCM, CHACHA20_POLY1305, LessSafeKey, UnboundKey, quic};
use ring::agreement::{ECDH_P256, EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::signature::{self, EcdsaKeyPair, EcdsaSigningAlgorithm};
use ring::{aead, digest, hmac};

/// The bytes of the tag of a record.
const TAG: usize = 16;

/// Returns the provider for dimpl.
pub(crate) fn provider() -> CryptoProvider {
    provider_for(has_aes())
}

/// Returns true if the processor has the instructions of AES-GCM. Without them, AES is slower than
/// ChaCha20.
fn has_aes() -> bool {
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    let has = std::arch::is_x86_feature_detected!("aes")
        && std::arch::is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    let has = std::arch::is_aarch64_feature_detected!("aes")
        && std::arch::is_aarch64_feature_detected!("pmull");
    #[cfg(not(any(target_arch = "x86", target_arch = "x86_64", target_arch = "aarch64")))]
    let has = false;
    has
}

fn provider_for(has_aes: bool) -> CryptoProvider {
    CryptoProvider {
        kx_groups: GROUPS,
        signature_verification: &Ring,
        key_provider: &Ring,
        secure_random: &Ring,
        hash_provider: &Ring,
        hmac_provider: &Ring,
        // dimpl checks that there is one, and `association` never negotiates DTLS 1.2.
        cipher_suites: &[&Ring],
        dtls13_cipher_suites: if has_aes { WITH_AES } else { WITHOUT_AES },
    }
}

fn failed(operation: CryptoOperation) -> CryptoError {
    CryptoError::OperationFailed(operation)
}

/// The provider, which has no state.
#[derive(Debug)]
struct Ring;

struct RecordCipher(LessSafeKey);

impl fmt::Debug for RecordCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RecordCipher")
    }
}

impl RecordCipher {
    fn boxed(
        algorithm: &'static aead::Algorithm,
        key: &[u8],
    ) -> Result<Box<dyn Cipher>, CryptoError> {
        let key =
            UnboundKey::new(algorithm, key).map_err(|_| failed(CryptoOperation::CreateCipher))?;
        Ok(Box::new(Self(LessSafeKey::new(key))))
    }
}

impl Cipher for RecordCipher {
    fn encrypt(&mut self, plaintext: &mut Buf, aad: Aad, nonce: Nonce) -> Result<(), CryptoError> {
        let nonce = aead::Nonce::assume_unique_for_key(nonce.0);
        let tag = self
            .0
            .seal_in_place_separate_tag(nonce, aead::Aad::from(&aad[..]), plaintext.as_mut())
            .map_err(|_| failed(CryptoOperation::Encrypt))?;
        plaintext.extend_from_slice(tag.as_ref());
        Ok(())
    }

    fn decrypt(
        &mut self,
        ciphertext: &mut TmpBuf<'_>,
        aad: Aad,
        nonce: Nonce,
    ) -> Result<(), CryptoError> {
        let nonce = aead::Nonce::assume_unique_for_key(nonce.0);
        let opened = self
            .0
            .open_in_place(nonce, aead::Aad::from(&aad[..]), ciphertext.as_mut())
            .map_err(|_| failed(CryptoOperation::Decrypt))?
            .len();
        ciphertext.truncate(opened);
        Ok(())
    }
}

impl SupportedDtls12CipherSuite for Ring {
    fn suite(&self) -> Dtls12CipherSuite {
        Dtls12CipherSuite::ECDHE_ECDSA_CHACHA20_POLY1305_SHA256
    }

    fn hash_algorithm(&self) -> HashAlgorithm {
        HashAlgorithm::SHA256
    }

    fn key_lengths(&self) -> (usize, usize, usize) {
        (0, 32, 12)
    }

    fn explicit_nonce_len(&self) -> usize {
        0
    }

    fn tag_len(&self) -> usize {
        TAG
    }

    fn create_cipher(&self, key: &[u8]) -> Result<Box<dyn Cipher>, CryptoError> {
        RecordCipher::boxed(&CHACHA20_POLY1305, key)
    }
}

/// A cipher suite of DTLS 1.3. Both have SHA-256.
#[derive(Debug)]
struct Suite {
    name: Dtls13CipherSuite,
    records: &'static aead::Algorithm,
    /// The cipher of record numbers.
    numbers: &'static quic::Algorithm,
}

static AES: Suite = Suite {
    name: Dtls13CipherSuite::AES_128_GCM_SHA256,
    records: &AES_128_GCM,
    numbers: &quic::AES_128,
};
static CHACHA: Suite = Suite {
    name: Dtls13CipherSuite::CHACHA20_POLY1305_SHA256,
    records: &CHACHA20_POLY1305,
    numbers: &quic::CHACHA20,
};

static WITH_AES: &[&dyn SupportedDtls13CipherSuite] = &[&AES, &CHACHA];
static WITHOUT_AES: &[&dyn SupportedDtls13CipherSuite] = &[&CHACHA];

impl SupportedDtls13CipherSuite for Suite {
    fn suite(&self) -> Dtls13CipherSuite {
        self.name
    }

    fn hash_algorithm(&self) -> HashAlgorithm {
        HashAlgorithm::SHA256
    }

    fn key_len(&self) -> usize {
        self.records.key_len()
    }

    fn iv_len(&self) -> usize {
        self.records.nonce_len()
    }

    fn tag_len(&self) -> usize {
        self.records.tag_len()
    }

    fn create_cipher(&self, key: &[u8]) -> Result<Box<dyn Cipher>, CryptoError> {
        RecordCipher::boxed(self.records, key)
    }

    fn encrypt_sn(&self, sn_key: &[u8], sample: &[u8; 16]) -> [u8; 16] {
        let mut mask = [0; 16];
        let key = quic::HeaderProtectionKey::new(self.numbers, sn_key)
            .expect("dimpl derives keys of the length that the suite names");
        let bytes = key
            .new_mask(sample)
            .expect("the sample has the length that the algorithm names");
        // A record number has at most two bytes on the wire (RFC 9147, section 4).
        mask[..bytes.len()].copy_from_slice(&bytes);
        mask
    }
}

/// A group for key exchange.
#[derive(Debug)]
struct Group {
    name: NamedGroup,
    algorithm: &'static ring::agreement::Algorithm,
}

static X25519_GROUP: Group = Group {
    name: NamedGroup::X25519,
    algorithm: &X25519,
};
static P256_GROUP: Group = Group {
    name: NamedGroup::Secp256r1,
    algorithm: &ECDH_P256,
};

static GROUPS: &[&dyn SupportedKxGroup] = &[&X25519_GROUP, &P256_GROUP];

struct Exchange {
    group: &'static Group,
    private: EphemeralPrivateKey,
    public: Vec<u8>,
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange").finish_non_exhaustive()
    }
}

impl SupportedKxGroup for Group {
    fn name(&self) -> NamedGroup {
        self.name
    }

    fn start_exchange(&self, _: Buf) -> Result<Box<dyn ActiveKeyExchange>, CryptoError> {
        let group = if self.name == NamedGroup::X25519 {
            &X25519_GROUP
        } else {
            &P256_GROUP
        };
        let random = SystemRandom::new();
        let private = EphemeralPrivateKey::generate(group.algorithm, &random)
            .map_err(|_| failed(CryptoOperation::GenerateEphemeralKey))?;
        let public = private
            .compute_public_key()
            .map_err(|_| failed(CryptoOperation::ComputePublicKey))?;
        Ok(Box::new(Exchange {
            group,
            private,
            public: public.as_ref().to_vec(),
        }))
    }
}

impl ActiveKeyExchange for Exchange {
    fn pub_key(&self) -> &[u8] {
        &self.public
    }

    fn complete(self: Box<Self>, peer_pub: &[u8], out: &mut Buf) -> Result<(), CryptoError> {
        let peer = UnparsedPublicKey::new(self.group.algorithm, peer_pub);
        agree_ephemeral(self.private, &peer, |secret| {
            out.clear();
            out.extend_from_slice(secret);
        })
        .map_err(|_| CryptoError::InvalidPublicKey(self.group.name))
    }

    fn group(&self) -> NamedGroup {
        self.group.name
    }
}

/// A curve of certificates: its name, its hash, and the algorithms of ring.
struct Curve {
    group: NamedGroup,
    hash: HashAlgorithm,
    signing: &'static EcdsaSigningAlgorithm,
    /// The name of the curve as an ASN.1 object identifier.
    oid: &'static str,
}

static CURVES: [Curve; 2] = [
    Curve {
        group: NamedGroup::Secp256r1,
        hash: HashAlgorithm::SHA256,
        signing: &signature::ECDSA_P256_SHA256_ASN1_SIGNING,
        oid: "1.2.840.10045.3.1.7",
    },
    Curve {
        group: NamedGroup::Secp384r1,
        hash: HashAlgorithm::SHA384,
        signing: &signature::ECDSA_P384_SHA384_ASN1_SIGNING,
        oid: "1.3.132.0.34",
    },
];

struct EcdsaKey {
    curve: &'static Curve,
    pair: EcdsaKeyPair,
}

impl fmt::Debug for EcdsaKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EcdsaKey").finish_non_exhaustive()
    }
}

impl SigningKey for EcdsaKey {
    fn sign(&mut self, data: &[u8], hash: HashAlgorithm, out: &mut Buf) -> Result<(), CryptoError> {
        if hash != self.curve.hash {
            return Err(CryptoError::SigningKeyUnsupportedHash {
                group: self.curve.group,
                hash,
            });
        }
        let signed = self
            .pair
            .sign(&SystemRandom::new(), data)
            .map_err(|_| failed(CryptoOperation::Sign))?;
        out.clear();
        out.extend_from_slice(signed.as_ref());
        Ok(())
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::ECDSA
    }

    fn hash_algorithm(&self) -> HashAlgorithm {
        self.curve.hash
    }

    fn supported_hash_algorithms(&self) -> &[HashAlgorithm] {
        std::slice::from_ref(&self.curve.hash)
    }
}

/// Returns true if a key in PKCS #8 can sign: it is an ECDSA key on P-256 or P-384.
pub(crate) fn can_sign(key: &[u8]) -> bool {
    Ring.load_private_key(key).is_ok()
}

impl KeyProvider for Ring {
    fn load_private_key(&self, key_der: &[u8]) -> Result<Box<dyn SigningKey>, CryptoError> {
        for curve in &CURVES {
            let random = SystemRandom::new();
            if let Ok(pair) = EcdsaKeyPair::from_pkcs8(curve.signing, key_der, &random) {
                return Ok(Box::new(EcdsaKey { curve, pair }));
            }
        }
        Err(CryptoError::InvalidPrivateKey)
    }
}

impl SignatureVerifier for Ring {
    fn verify_signature(
        &self,
        cert_der: &[u8],
        data: &[u8],
        signed: &[u8],
        hash: HashAlgorithm,
        algorithm: SignatureAlgorithm,
    ) -> Result<(), CryptoError> {
        let (_, certificate) = x509_parser::parse_x509_certificate(cert_der)
            .map_err(|_| CryptoError::CertificateParseFailed)?;
        let info = certificate.public_key();
        let parameters = info.algorithm.parameters.as_ref();
        let named = parameters
            .ok_or(CryptoError::MissingEcCurveParameter)?
            .as_oid()
            .map_err(|_| CryptoError::InvalidEcCurveParameter)?
            .to_id_string();
        let curve = CURVES
            .iter()
            .find(|curve| curve.oid == named)
            .ok_or(CryptoError::UnsupportedEcCurve)?;
        check_verify_scheme(algorithm, hash, curve.group)?;
        let verification: &dyn signature::VerificationAlgorithm = match (curve.group, hash) {
            (NamedGroup::Secp256r1, HashAlgorithm::SHA256) => &signature::ECDSA_P256_SHA256_ASN1,
            (NamedGroup::Secp256r1, _) => &signature::ECDSA_P256_SHA384_ASN1,
            (_, HashAlgorithm::SHA256) => &signature::ECDSA_P384_SHA256_ASN1,
            (_, _) => &signature::ECDSA_P384_SHA384_ASN1,
        };
        let key = &info.subject_public_key.data;
        signature::UnparsedPublicKey::new(verification, key)
            .verify(data, signed)
            .map_err(|_| CryptoError::SignatureVerificationFailed {
                signature: algorithm,
                hash,
                group: curve.group,
            })
    }
}

impl SecureRandom for Ring {
    fn fill(&self, buf: &mut [u8]) -> Result<(), CryptoError> {
        SystemRandom::new()
            .fill(buf)
            .map_err(|_| failed(CryptoOperation::FillRandom))
    }
}

struct Hashing(digest::Context);

impl fmt::Debug for Hashing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hashing")
    }
}

impl HashContext for Hashing {
    fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    fn clone_and_finalize(&self, out: &mut Buf) {
        out.clear();
        out.extend_from_slice(self.0.clone().finish().as_ref());
    }
}

impl HashProvider for Ring {
    fn create_hash(&self, algorithm: HashAlgorithm) -> Box<dyn HashContext> {
        // The suite has SHA-256, and only signatures use another hash.
        let algorithm = if algorithm == HashAlgorithm::SHA384 {
            &digest::SHA384
        } else {
            &digest::SHA256
        };
        Box::new(Hashing(digest::Context::new(algorithm)))
    }
}

impl HmacProvider for Ring {
    fn hmac(
        &self,
        hash: HashAlgorithm,
        key: &[u8],
        data: &[u8],
        out: &mut [u8],
    ) -> Result<usize, CryptoError> {
        let algorithm = match hash {
            HashAlgorithm::SHA256 => hmac::HMAC_SHA256,
            HashAlgorithm::SHA384 => hmac::HMAC_SHA384,
            _ => return Err(CryptoError::UnsupportedHmacHash(hash)),
        };
        let tag = hmac::sign(&hmac::Key::new(algorithm, key), data);
        let tag = tag.as_ref();
        out.get_mut(..tag.len())
            .ok_or_else(|| failed(CryptoOperation::ComputeHmac))?
            .copy_from_slice(tag);
        Ok(tag.len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use dimpl::{Config, Dtls, Output};

    use super::*;
    use crate::certificates::anonymous;

    #[test]
    fn provider_passes_the_known_answers_of_dimpl() {
        for has_aes in [false, true] {
            provider_for(has_aes).validate().expect("all vectors hold");
        }
    }

    /// A client without the instructions offers no AES, and a gateway without them accepts none.
    #[test]
    fn aes_suite_needs_instructions_and_comes_first() {
        let names = |has_aes| {
            let suites = provider_for(has_aes).dtls13_cipher_suites;
            suites.iter().map(|suite| suite.suite()).collect::<Vec<_>>()
        };
        assert_eq!(names(false), [CHACHA.name]);
        assert_eq!(names(true), [AES.name, CHACHA.name]);
    }

    /// Returns an end whose processor has or lacks the instructions. It changes its key after
    /// `limit` records.
    fn end(has_aes: bool, is_client: bool, limit: u64, now: Instant) -> Dtls {
        let config = Config::builder()
            .aead_encryption_limit(limit)
            .with_crypto_provider(provider_for(has_aes))
            .dtls12_cipher_suites(&[])
            .use_server_cookie(false)
            .require_client_certificate(false)
            .build()
            .expect("settings");
        let identity = anonymous().expect("an identity");
        let mut end = Dtls::new_13(Arc::new(config), identity, now);
        end.set_active(is_client);
        end
    }

    /// Takes the output of an end. Returns its packets and the data that it has received.
    fn output(end: &mut Dtls) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
        let (mut packets, mut data, mut buf) = (Vec::new(), Vec::new(), vec![0; 1 << 16]);
        loop {
            match end.poll_output(&mut buf) {
                Output::Packet(packet) => packets.push(packet.to_vec()),
                Output::ApplicationData(bytes) => data.push(bytes.to_vec()),
                Output::Timeout(_) => return (packets, data),
                _ => {}
            }
        }
    }

    #[test]
    fn ends_with_and_without_aes_instructions_connect() {
        for case in 0..4 {
            let now = Instant::now();
            let [client_has, server_has] = [case & 1 == 1, case & 2 == 2];
            let limit = 1 << 23;
            let ends = [(client_has, true), (server_has, false)];
            let ends = ends.map(|(has_aes, is_client)| end(has_aes, is_client, limit, now));
            let received = exchange(ends, now, 1);
            let expected = [vec![vec![1; 1000]], vec![vec![0; 1000]]];
            assert_eq!(received, expected, "{client_has} {server_has}");
        }
    }

    /// Connects two ends, and sends `records` from each. Returns the data that each has received.
    fn exchange(mut ends: [Dtls; 2], now: Instant, records: usize) -> [Vec<Vec<u8>>; 2] {
        let mut received = [Vec::new(), Vec::new()];
        for end in &mut ends {
            end.handle_timeout(now).expect("a start");
        }
        let mut now = now;
        for round in 0..records + 10 {
            now += Duration::from_millis(10);
            for at in [0, 1] {
                ends[at].handle_timeout(now).expect("a live session");
                if (5..5 + records).contains(&round) {
                    let sent = ends[at].send_application_data(&[at as u8; 1000]);
                    sent.expect("connected");
                }
                let (packets, data) = output(&mut ends[at]);
                received[at].extend(data);
                for packet in packets {
                    ends[1 - at].handle_packet(&packet).expect("a packet");
                }
            }
        }
        received
    }

    /// AES-128-GCM permits 2^24.5 records with one key (RFC 9147 section 4.5.3). The library
    /// changes keys after 2^23 at most.
    #[test]
    fn record_keys_change_before_their_limit() {
        for has_aes in [false, true] {
            let now = Instant::now();
            let ends = [true, false].map(|is_client| end(has_aes, is_client, 32, now));
            let received = exchange(ends, now, 2000);
            assert_eq!(received.map(|data| data.len()), [2000, 2000], "{has_aes}");
        }
    }

    #[test]
    fn only_ecdsa_keys_can_sign() {
        let ours = rcgen::KeyPair::generate().expect("a key on P-256");
        assert!(can_sign(&ours.serialize_der()));
        assert!(!can_sign(b"no key"));
    }
}

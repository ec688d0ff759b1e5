//! Oblivious HTTP: encapsulated requests and responses (RFC 9458).
//!
//! The one suite is X25519 with HKDF-SHA256 and AES-128-GCM, which every implementation has.

use std::fmt;

use hpke::aead::{AeadCtxR, AeadCtxS, AesGcm128};
use hpke::kdf::HkdfSha256;
use hpke::kem::X25519HkdfSha256;
use hpke::{Deserializable as _, Kem, OpModeR, OpModeS, Serializable as _};
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Salt};
use ring::rand::{SecureRandom as _, SystemRandom};

use crate::reader::Reader;
use crate::token::FormatError;

/// The path of the gateway's resource and of its keys (RFC 9540 section 4).
pub const PATH: &str = "/.well-known/ohttp-gateway";

/// The media type of an encapsulated request.
pub const REQUEST_TYPE: &str = "message/ohttp-req";

/// The media type of an encapsulated response.
pub const RESPONSE_TYPE: &str = "message/ohttp-res";

/// The media type of a list of key configurations.
pub const KEYS_TYPE: &str = "application/ohttp-keys";

/// The bytes that the encapsulation adds to a request.
pub const REQUEST_OVERHEAD: usize = HEADER_LENGTH + KEY_LENGTH + TAG_LENGTH;

const KEM_X25519: u16 = 0x0020;
const KDF_SHA256: u16 = 0x0001;
const AEAD_AES_128_GCM: u16 = 0x0001;

const HEADER_LENGTH: usize = 7;
const KEY_LENGTH: usize = 32;
const TAG_LENGTH: usize = 16;

/// The larger of the lengths of a key and a nonce (RFC 9458 section 4.4).
const SECRET_LENGTH: usize = 16;
const NONCE_LENGTH: usize = 12;

const REQUEST_LABEL: &[u8] = b"message/bhttp request";
const RESPONSE_LABEL: &[u8] = b"message/bhttp response";

/// The encoding of an X25519 key in PKCS #8, before its 32 bytes (RFC 8410 section 7).
const PKCS8_PREFIX: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x6e, 0x04, 0x22, 0x04, 0x20,
];

type Private = <X25519HkdfSha256 as Kem>::PrivateKey;
type Public = <X25519HkdfSha256 as Kem>::PublicKey;
type Encapped = <X25519HkdfSha256 as Kem>::EncappedKey;

/// The reason why a message cannot be encapsulated or decapsulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObliviousError {
    /// The message is malformed.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The gateway has no key with this identifier and suite.
    #[error("the request is for another key of the gateway")]
    UnknownKey,
    /// The list of keys has none that this program can use.
    #[error("no key of the gateway has X25519, HKDF-SHA256 and AES-128-GCM")]
    NoKey,
    /// The message was not made for this key, or was changed.
    #[error("the message cannot be decrypted")]
    Decryption,
    /// The system has no random numbers.
    #[error("the system provides no random numbers")]
    Random,
}

/// The public key of a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyConfig {
    /// The identifier.
    pub id: u8,
    key: [u8; KEY_LENGTH],
}

impl KeyConfig {
    /// Reads a list of key configurations, and returns the first that has the suite of this module.
    ///
    /// # Errors
    /// Fails for a malformed list, and for one without the suite.
    pub fn read_list(input: &[u8]) -> Result<Self, ObliviousError> {
        let (mut reader, mut found) = (Reader::new(input), None);
        while !reader.is_empty() {
            let config = Self::read(reader.vector16()?)?;
            found = found.or(config);
        }
        found.ok_or(ObliviousError::NoKey)
    }

    /// Reads a key configuration. Returns `None` for one with other suites.
    fn read(input: &[u8]) -> Result<Option<Self>, ObliviousError> {
        let mut reader = Reader::new(input);
        let [id] = reader.array()?;
        if reader.u16()? != KEM_X25519 {
            return Ok(None);
        }
        let key = reader.array()?;
        let suites = reader.vector16()?;
        reader.end()?;
        let suite = [KDF_SHA256.to_be_bytes(), AEAD_AES_128_GCM.to_be_bytes()].concat();
        if suites.is_empty() || suites.len() % 4 != 0 {
            return Err(FormatError::Length.into());
        }
        let has_suite = suites.chunks(4).any(|other| other == suite);
        Ok(has_suite.then_some(Self { id, key }))
    }

    /// Returns a list with this key configuration.
    pub fn write_list(&self) -> Vec<u8> {
        let mut config = vec![self.id];
        config.extend_from_slice(&KEM_X25519.to_be_bytes());
        config.extend_from_slice(&self.key);
        config.extend_from_slice(&[0, 4]);
        config.extend_from_slice(&KDF_SHA256.to_be_bytes());
        config.extend_from_slice(&AEAD_AES_128_GCM.to_be_bytes());
        let length = u16::try_from(config.len()).unwrap_or_default();
        [&length.to_be_bytes()[..], &config].concat()
    }

    /// Encapsulates a request. Returns it with the state that opens the response.
    ///
    /// # Errors
    /// Fails for a key that is no point of the curve.
    pub fn encapsulate(&self, request: &[u8]) -> Result<(Vec<u8>, Encapsulated), ObliviousError> {
        let key = Public::from_bytes(&self.key).map_err(|_| ObliviousError::NoKey)?;
        let header = header(self.id);
        let (encapped, mut context) =
            hpke::setup_sender::<AesGcm128, HkdfSha256, X25519HkdfSha256>(
                &OpModeS::Base,
                &key,
                &info(&header),
            )
            .map_err(|_| ObliviousError::NoKey)?;
        let sealed = context.seal(request, &[]);
        let sealed = sealed.map_err(|_| ObliviousError::Decryption)?;
        let encapped = encapped.to_bytes().to_vec();
        let message = [&header[..], &encapped, &sealed].concat();
        Ok((message, Encapsulated { context, encapped }))
    }
}

/// The state of a client that waits for an encapsulated response.
pub struct Encapsulated {
    context: AeadCtxS<AesGcm128, HkdfSha256, X25519HkdfSha256>,
    encapped: Vec<u8>,
}

/// Hides the secrets.
impl fmt::Debug for Encapsulated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Encapsulated")
    }
}

impl Encapsulated {
    /// Decapsulates the response.
    ///
    /// # Errors
    /// Fails for a response to another request, and for a changed one.
    pub fn decapsulate(&self, response: &[u8]) -> Result<Vec<u8>, ObliviousError> {
        let (nonce, sealed) = response
            .split_at_checked(SECRET_LENGTH)
            .ok_or(FormatError::Length)?;
        let mut secret = [0; SECRET_LENGTH];
        let exported = self.context.export(RESPONSE_LABEL, &mut secret);
        exported.map_err(|_| ObliviousError::Decryption)?;
        let (key, nonce) = response_key(&secret, &self.encapped, nonce)?;
        let mut opened = sealed.to_vec();
        let opened = key.open_in_place(nonce, Aad::empty(), &mut opened);
        opened
            .map(|plain| plain.to_vec())
            .map_err(|_| ObliviousError::Decryption)
    }
}

/// The private key of a gateway.
pub struct GatewayKey {
    private: Private,
    config: KeyConfig,
}

/// Shows only the public part.
impl fmt::Debug for GatewayKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatewayKey")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl GatewayKey {
    /// Reads an X25519 key in PKCS #8 (RFC 8410). The identifier of the key depends on the key.
    ///
    /// # Errors
    /// Fails for other keys.
    pub fn from_pkcs8(der: &[u8]) -> Result<Self, ObliviousError> {
        let key = der.strip_prefix(&PKCS8_PREFIX).ok_or(FormatError::Value)?;
        let key = key.try_into().map_err(|_| FormatError::Length)?;
        let mut read = Self::new(0, key)?;
        read.config.id = crate::sha256(&[&read.config.key])[0];
        Ok(read)
    }

    /// Returns a key with an identifier.
    ///
    /// # Errors
    /// Fails if the bytes are no private key.
    pub fn new(id: u8, private: &[u8; KEY_LENGTH]) -> Result<Self, ObliviousError> {
        let private = Private::from_bytes(private).map_err(|_| FormatError::Value)?;
        let public = X25519HkdfSha256::sk_to_pk(&private).to_bytes();
        let mut key = [0; KEY_LENGTH];
        key.copy_from_slice(&public);
        Ok(Self {
            private,
            config: KeyConfig { id, key },
        })
    }

    /// Returns the public key.
    pub const fn config(&self) -> &KeyConfig {
        &self.config
    }

    /// Decapsulates a request. Returns it with the state that encapsulates the response.
    ///
    /// # Errors
    /// Fails for a malformed request, another key, and a changed request.
    pub fn decapsulate(&self, request: &[u8]) -> Result<(Vec<u8>, Pending), ObliviousError> {
        let mut reader = Reader::new(request);
        let header: [u8; HEADER_LENGTH] = reader.array()?;
        let encapped: [u8; KEY_LENGTH] = reader.array()?;
        if header != self::header(self.config.id) {
            return Err(ObliviousError::UnknownKey);
        }
        let key = Encapped::from_bytes(&encapped).map_err(|_| ObliviousError::Decryption)?;
        let mut context: AeadCtxR<AesGcm128, HkdfSha256, X25519HkdfSha256> =
            hpke::setup_receiver(&OpModeR::Base, &self.private, &key, &info(&header))
                .map_err(|_| ObliviousError::Decryption)?;
        let opened = context.open(reader.rest(), &[]);
        let opened = opened.map_err(|_| ObliviousError::Decryption)?;
        let mut secret = [0; SECRET_LENGTH];
        let exported = context.export(RESPONSE_LABEL, &mut secret);
        exported.map_err(|_| ObliviousError::Decryption)?;
        Ok((opened, Pending { secret, encapped }))
    }
}

/// The state of a gateway that prepares an encapsulated response.
pub struct Pending {
    secret: [u8; SECRET_LENGTH],
    encapped: [u8; KEY_LENGTH],
}

/// Hides the secrets.
impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pending")
    }
}

impl Pending {
    /// Returns the key that the client has chosen for its request. A repeated one is a replay.
    pub const fn encapsulated_key(&self) -> &[u8; KEY_LENGTH] {
        &self.encapped
    }

    /// Encapsulates the response.
    ///
    /// # Errors
    /// Fails without random numbers.
    pub fn encapsulate(self, response: &[u8]) -> Result<Vec<u8>, ObliviousError> {
        let mut nonce = [0; SECRET_LENGTH];
        let filled = SystemRandom::new().fill(&mut nonce);
        filled.map_err(|_| ObliviousError::Random)?;
        self.encapsulate_with(response, &nonce)
    }

    fn encapsulate_with(
        self,
        response: &[u8],
        response_nonce: &[u8; SECRET_LENGTH],
    ) -> Result<Vec<u8>, ObliviousError> {
        let (key, nonce) = response_key(&self.secret, &self.encapped, response_nonce)?;
        let mut sealed = response.to_vec();
        key.seal_in_place_append_tag(nonce, Aad::empty(), &mut sealed)
            .map_err(|_| ObliviousError::Decryption)?;
        Ok([&response_nonce[..], &sealed].concat())
    }
}

/// Returns the header of an encapsulated request.
fn header(id: u8) -> [u8; HEADER_LENGTH] {
    let [kem, kdf, aead] = [KEM_X25519, KDF_SHA256, AEAD_AES_128_GCM].map(u16::to_be_bytes);
    [id, kem[0], kem[1], kdf[0], kdf[1], aead[0], aead[1]]
}

/// Returns the input of the key schedule (RFC 9458 section 4.3).
fn info(header: &[u8; HEADER_LENGTH]) -> Vec<u8> {
    [REQUEST_LABEL, &[0], header].concat()
}

/// The length of an output of HKDF.
struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// Derives the key and the nonce of a response (RFC 9458 section 4.4).
fn response_key(
    secret: &[u8; SECRET_LENGTH],
    encapped: &[u8],
    response_nonce: &[u8],
) -> Result<(LessSafeKey, Nonce), ObliviousError> {
    let salt = [encapped, response_nonce].concat();
    let extracted = Salt::new(HKDF_SHA256, &salt).extract(secret);
    let (mut key, mut nonce) = ([0; SECRET_LENGTH], [0; NONCE_LENGTH]);
    let expand = |label: &[u8], output: &mut [u8]| {
        let (label, length) = ([label], Length(output.len()));
        let expanded = extracted.expand(&label, length);
        expanded.and_then(|expanded| expanded.fill(output))
    };
    let key = expand(b"key", &mut key).and_then(|()| UnboundKey::new(&AES_128_GCM, &key));
    let key = key.map_err(|_| ObliviousError::Decryption)?;
    expand(b"nonce", &mut nonce).map_err(|_| ObliviousError::Decryption)?;
    Ok((LessSafeKey::new(key), Nonce::assume_unique_for_key(nonce)))
}

#[cfg(test)]
mod tests {
    use data_encoding::HEXLOWER;
    use proptest::prelude::*;

    use super::*;

    fn bytes(digits: &str) -> Vec<u8> {
        HEXLOWER.decode(digits.as_bytes()).expect("hexadecimal")
    }

    /// The private key of the example in RFC 9458 appendix A.
    const PRIVATE: &str = "3c168975674b2fa8e465970b79c8dcf09f1c741626480bd4c6162fc5b6a98e1a";

    /// The key configuration of the example, which also has the suite with ChaCha20-Poly1305.
    const CONFIG: &str = "01002031e1f05a740102115220e9af918f738674aec95f54db6e04eb705aae8e7981\
                          5500080001000100010003";

    /// The encapsulated request of the example: a GET of `https://example.com/`.
    const REQUEST: &str = "010020000100014b28f881333e7c164ffc499ad9796f877f4e1051ee6d31bad19dec\
                           96c208b4726374e469135906992e1268c594d2a10c695d858c40a026e7965e7d86b8\
                           3dd440b2c0185204b4d63525";

    /// The encapsulated response of the example: status 200.
    const RESPONSE: &str = "c789e7151fcba46158ca84b04464910d86f9013e404feea014e7be4a441f234f857fbd";

    fn example() -> GatewayKey {
        let private = bytes(PRIVATE).try_into().expect("32 bytes");
        GatewayKey::new(1, &private).expect("a key")
    }

    #[test]
    fn oblivious_example_of_rfc_9458_is_met() {
        let key = example();
        let config = bytes(CONFIG);
        let list = [&[0, config.len() as u8][..], &config].concat();
        assert_eq!(KeyConfig::read_list(&list).as_ref(), Ok(key.config()));
        let (request, pending) = key.decapsulate(&bytes(REQUEST)).expect("the example");
        assert_eq!(request, b"\x00\x03GET\x05https\x0bexample.com\x01/");
        let nonce = bytes("c789e7151fcba46158ca84b04464910d");
        let nonce = nonce.try_into().expect("16 bytes");
        let response = pending.encapsulate_with(&[0x01, 0x40, 0xc8], &nonce);
        assert_eq!(response, Ok(bytes(RESPONSE)));
    }

    #[test]
    fn changed_messages_are_refused() {
        let key = example();
        let (request, state) = key.config().encapsulate(b"request").expect("a key");
        for at in [0, 3, 8, request.len() - 1] {
            let mut changed = request.clone();
            changed[at] ^= 1;
            assert!(key.decapsulate(&changed).is_err(), "{at}");
        }
        let (_, pending) = key.decapsulate(&request).expect("genuine");
        let mut response = pending.encapsulate(b"response").expect("random numbers");
        assert_eq!(
            state.decapsulate(&response).as_deref(),
            Ok(&b"response"[..])
        );
        response[20] ^= 1;
        assert_eq!(
            state.decapsulate(&response),
            Err(ObliviousError::Decryption)
        );
    }

    #[test]
    fn oblivious_keys_are_read_from_pkcs8() {
        let der = [&PKCS8_PREFIX[..], &bytes(PRIVATE)].concat();
        let key = GatewayKey::from_pkcs8(&der).expect("a key");
        assert_eq!(key.config().key, example().config().key);
        assert!(GatewayKey::from_pkcs8(&der[1..]).is_err());
        assert!(!format!("{key:?}").contains("private"));
    }

    #[test]
    fn key_lists_without_the_suite_are_refused() {
        assert_eq!(KeyConfig::read_list(&[]), Err(ObliviousError::NoKey));
        assert_eq!(
            KeyConfig::read_list(&[0, 3, 0, 0, 0]),
            Err(ObliviousError::NoKey)
        );
        assert!(matches!(
            KeyConfig::read_list(&[0]),
            Err(ObliviousError::Format(_))
        ));
    }

    proptest! {
        #[test]
        fn oblivious_parsers_survive_any_input(
            input in proptest::collection::vec(any::<u8>(), 0..200)
        ) {
            let _ = KeyConfig::read_list(&input);
            prop_assert!(example().decapsulate(&input).is_err());
        }
    }
}

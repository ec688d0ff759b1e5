//! The crates `privacypass` and `ohttp` at the other end.

use blind_rsa_signatures::{DefaultRng, Deterministic, PSS, PublicKey as BlindKey, Sha384};
use ohttp::hpke::{Aead, Kdf, Kem};
use ohttp::{ClientRequest, KeyConfig as ForeignConfig, Server, SymmetricSuite};
use privacypass::TokenType;
use privacypass::auth::authenticate::TokenChallenge as ForeignChallenge;
use privacypass::public_tokens::server::{IssuerServer, OriginKeyStore as _, OriginServer};
use privacypass::public_tokens::{
    PublicToken, TokenRequest as ForeignRequest, TokenResponse as ForeignResponse,
    public_key_to_truncated_token_key_id,
};
use privacypass::test_utils::nonce_store::MemoryNonceStore;
use privacypass::test_utils::public_memory_store::{IssuerMemoryKeyStore, OriginMemoryKeyStore};
use tandem_tokens::challenge::TokenChallenge;
use tandem_tokens::issuance::Unsigned;
use tandem_tokens::key::PublicKey;
use tandem_tokens::oblivious::{GatewayKey, KeyConfig};
use tandem_tokens::token::{Token, TokenRequest};
use tls_codec::{Deserialize as _, Serialize as _};

use crate::KEY;

fn challenge() -> TokenChallenge {
    TokenChallenge {
        issuer_name: "issuer.example".into(),
        redemption_context: None,
        origin_info: "gateway.example".into(),
    }
}

fn foreign_challenge() -> ForeignChallenge {
    let origins = ["gateway.example".to_owned()];
    ForeignChallenge::new(TokenType::Public, "issuer.example", None, &origins)
}

#[test]
fn our_issuer_serves_the_crate_privacypass() {
    let spki = KEY.public().spki();
    let key = BlindKey::<Sha384, PSS, Deterministic>::from_spki(&spki).expect("our encoding");
    let made = ForeignRequest::new(&mut DefaultRng, key, &foreign_challenge());
    let (request, state) = made.expect("a request");
    let request = request.tls_serialize_detached().expect("a vector");
    let request = TokenRequest::read(&request).expect("a request");
    let response = KEY.sign(&request).expect("a signature");
    let response = ForeignResponse::tls_deserialize(&mut &response[..]).expect("a response");
    let token = response.issue_token(&state).expect("a token");
    let token = token.tls_serialize_detached().expect("a vector");
    let token = Token::read(&token).expect("a token");
    assert_eq!(token.challenge_digest, challenge().digest());
    assert!(KEY.public().has_signed(&token));
}

#[tokio::test]
async fn our_client_uses_the_crate_privacypass() {
    let (issuer, keys) = (IssuerServer::new(), IssuerMemoryKeyStore::default());
    let made = issuer.create_keypair(&mut DefaultRng, &keys).await;
    let foreign = made.expect("random numbers");
    let key = PublicKey::from_spki(&foreign.to_spki().expect("an encoding")).expect("a key");
    let made = Unsigned::new(&key, challenge().digest());
    let (request, unsigned) = made.expect("a request");
    let request = ForeignRequest::tls_deserialize(&mut &request.write()[..]).expect("a request");
    let response = issuer.issue_token_response(&keys, request).await;
    let response = response.expect("a response").tls_serialize_detached();
    let token = unsigned
        .sign(&response.expect("a vector"))
        .expect("a token");
    // Their gateway takes the token once.
    let (origin, accepted) = (OriginServer::new(), OriginMemoryKeyStore::default());
    let id = public_key_to_truncated_token_key_id(&foreign).expect("an encoding");
    accepted.insert(id, foreign).await;
    let spent = MemoryNonceStore::default();
    for expected in [true, false] {
        let token = PublicToken::tls_deserialize(&mut &token.write()[..]).expect("a token");
        let redeemed = origin.redeem_token(&accepted, &spent, token).await;
        assert_eq!(redeemed.is_ok(), expected);
    }
}

#[test]
fn our_challenge_is_that_of_the_crate_privacypass() {
    let foreign = foreign_challenge().serialize().expect("a challenge");
    assert_eq!(TokenChallenge::read(&foreign), Ok(challenge()));
}

#[test]
fn our_gateway_serves_the_crate_ohttp() {
    let key = GatewayKey::new(9, &[7; 32]).expect("a key");
    let list = key.config().write_list();
    let client = ClientRequest::from_encoded_config_list(&list).expect("our list");
    let (request, state) = client.encapsulate(b"request").expect("a request");
    let (opened, pending) = key.decapsulate(&request).expect("genuine");
    assert_eq!(opened, b"request");
    let response = pending.encapsulate(b"response").expect("random numbers");
    assert_eq!(state.decapsulate(&response).expect("genuine"), b"response");
}

#[test]
fn our_client_uses_the_crate_ohttp() {
    let suites = vec![
        SymmetricSuite::new(Kdf::HkdfSha256, Aead::ChaCha20Poly1305),
        SymmetricSuite::new(Kdf::HkdfSha256, Aead::Aes128Gcm),
    ];
    let config = ForeignConfig::new(3, Kem::X25519Sha256, suites).expect("supported");
    let list = ForeignConfig::encode_list(&[&config]).expect("a list");
    let server = Server::new(config).expect("a key");
    let ours = KeyConfig::read_list(&list).expect("our suite");
    let (request, state) = ours.encapsulate(b"request").expect("a request");
    let (opened, pending) = server.decapsulate(&request).expect("genuine");
    assert_eq!(opened, b"request");
    let response = pending.encapsulate(b"response").expect("a response");
    assert_eq!(
        state.decapsulate(&response).as_deref(),
        Ok(&b"response"[..])
    );
}

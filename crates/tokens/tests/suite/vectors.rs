//! The vectors of RFC 9578 appendix B.2 and RFC 9474 appendix A. Their files have the form of the
//! crates `privacypass` and `blind-rsa-signatures`.

use blind_rsa_signatures::{
    BlindMessage, BlindSignature, BlindingResult, Deterministic, PSS, PublicKey as BlindKey,
    Secret, Sha384,
};
use ring::signature::{RSA_PSS_2048_8192_SHA384, RsaPublicKeyComponents};
use serde_json::Value;
use tandem_tokens::challenge::TokenChallenge;
use tandem_tokens::issuance::IssuerKey;
use tandem_tokens::key::PublicKey;
use tandem_tokens::token::{Token, TokenRequest};

const RFC_9578: &str = include_str!("../../../../vectors/tokens/rfc9578.json");
const RFC_9474: &str = include_str!("../../../../vectors/tokens/rfc9474.json");

fn read(text: &str) -> Vec<Value> {
    serde_json::from_str(text).expect("a list of vectors")
}

fn bytes(vector: &Value, name: &str) -> Vec<u8> {
    let text = vector[name].as_str().unwrap_or_else(|| panic!("{name}"));
    let text = text.strip_prefix("0x").unwrap_or(text);
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal");
    (0..text.len()).step_by(2).map(byte).collect()
}

#[test]
fn tokens_meet_the_vectors_of_rfc_9578() {
    let vectors = read(RFC_9578);
    assert_eq!(vectors.len(), 5);
    for vector in &vectors {
        let spki = bytes(vector, "pkS");
        let key = PublicKey::from_spki(&spki).expect("the one encoding");
        assert_eq!(key.spki(), spki);
        let encoded = bytes(vector, "token_challenge");
        let challenge = TokenChallenge::read(&encoded).expect("a challenge");
        assert_eq!(challenge.write(), encoded);
        let token = Token::read(&bytes(vector, "token")).expect("a token");
        assert_eq!(token.challenge_digest, challenge.digest());
        assert_eq!(token.nonce[..], bytes(vector, "nonce"));
        assert!(key.has_signed(&token));
        let request = TokenRequest::read(&bytes(vector, "token_request"));
        let request = request.expect("a request");
        let pem = String::from_utf8(bytes(vector, "skS")).expect("PEM text");
        let secret = IssuerKey::from_pem(&pem).expect("a key");
        assert_eq!(secret.public(), &key);
        let response = secret.sign(&request).expect("a signature");
        assert_eq!(response, bytes(vector, "token_response"));
    }
}

/// Returns a public key in PKCS #1 with a modulus of 4096 bits and the exponent 65537.
fn pkcs1(modulus: &[u8]) -> Vec<u8> {
    assert_eq!(modulus.len(), 512);
    let head = [0x30, 0x82, 0x02, 0x0a, 0x02, 0x82, 0x02, 0x01, 0x00];
    [&head, modulus, &[0x02, 0x03, 0x01, 0x00, 0x01]].concat()
}

#[test]
fn blind_signatures_meet_the_vector_of_rfc_9474() {
    let vectors = read(RFC_9474);
    let vector = vectors.first().expect("a vector");
    assert_eq!(vector["name"], "RSABSSA-SHA384-PSS-Deterministic");
    let (modulus, message) = (bytes(vector, "n"), bytes(vector, "msg"));
    let key = BlindKey::<Sha384, PSS, Deterministic>::from_der(&pkcs1(&modulus)).expect("a key");
    let blinding = BlindingResult {
        blind_message: BlindMessage(bytes(vector, "blinded_msg")),
        secret: Secret(bytes(vector, "inv")),
        msg_randomizer: None,
    };
    let blind = BlindSignature(bytes(vector, "blind_sig"));
    let signature = key.finalize(&blind, &blinding, &message);
    let expected = bytes(vector, "sig");
    assert_eq!(signature.expect("a signature").0, expected);
    // The gateway verifies with another library.
    let key = RsaPublicKeyComponents {
        n: &modulus[..],
        e: &[1, 0, 1],
    };
    let verified = key.verify(&RSA_PSS_2048_8192_SHA384, &message, &expected);
    assert!(verified.is_ok());
}

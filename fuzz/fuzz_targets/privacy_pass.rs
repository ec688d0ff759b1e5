//! Any token, challenge, token request, issuer's directory, list of Oblivious HTTP keys,
//! encapsulated request, or binary HTTP message: refused, or read again as it was written.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use tandem_tokens::challenge::TokenChallenge;
use tandem_tokens::directory::Directory;
use tandem_tokens::key::PublicKey;
use tandem_tokens::message::{Request, Response, class_of};
use tandem_tokens::oblivious::{GatewayKey, KeyConfig};
use tandem_tokens::token::{Token, TokenRequest};

static KEY: LazyLock<GatewayKey> = LazyLock::new(|| GatewayKey::new(1, &[7; 32]).unwrap());

fuzz_target!(|input: &[u8]| {
    if let Ok(token) = Token::read(input) {
        assert!(token.write() == input);
        let value = token.authorization();
        assert!(Token::from_authorization(value.as_bytes()) == Ok(Some(token)));
    }
    let _ = Token::from_authorization(input);
    if let Ok(request) = TokenRequest::read(input) {
        assert!(request.write() == input);
    }
    if let Ok(challenge) = TokenChallenge::read(input) {
        assert!(challenge.write() == input);
    }
    if let Ok(key) = PublicKey::from_spki(input) {
        assert!(key.spki() == input);
    }
    if let Ok(text) = std::str::from_utf8(input) {
        let _ = TokenChallenge::from_www_authenticate(text);
    }
    if let Ok(directory) = Directory::read(input) {
        assert!(Directory::read(directory.write().as_bytes()).as_ref() == Ok(&directory));
    }
    if let Ok(config) = KeyConfig::read_list(input) {
        assert!(KeyConfig::read_list(&config.write_list()).as_ref() == Ok(&config));
    }
    let _ = KEY.decapsulate(input);
    let mut padded = input.to_vec();
    padded.resize(class_of(input.len()), 0);
    if let Ok(request) = Request::read(&padded) {
        // The scheme that is written may be longer than the one that was read.
        if let Ok(written) = request.write() {
            assert!(Request::read(&written) == Ok(request));
        }
    }
    if let Ok(response) = Response::read(&padded) {
        let _ = response.write();
    }
});

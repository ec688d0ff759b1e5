//! The checks of a gateway, case by case.

use tandem_tokens::challenge::TokenChallenge;
use tandem_tokens::directory::{DatedKey, Directory, DirectoryError};
use tandem_tokens::epoch::Epochs;
use tandem_tokens::issuance::{IssuanceError, IssuerKey, Unsigned};
use tandem_tokens::redemption::{AcceptedIssuer, SharedEpoch, TokenError};
use tandem_tokens::token::{SIGNATURE_LENGTH, Token, TokenRequest};

use crate::KEY;

const DAY: u64 = 86_400;

fn challenge() -> TokenChallenge {
    TokenChallenge {
        issuer_name: "issuer.example".into(),
        redemption_context: None,
        origin_info: "gateway.example".into(),
    }
}

fn directory() -> Directory {
    let key = KEY.public().clone();
    Directory {
        request_uri: "/token-request".into(),
        keys: vec![DatedKey {
            key,
            not_before: 10 * DAY,
        }],
    }
}

fn accepted() -> AcceptedIssuer {
    AcceptedIssuer::new(challenge(), Epochs::new(DAY), directory()).expect("one key")
}

fn issue(challenge: &TokenChallenge) -> Token {
    let made = Unsigned::new(KEY.public(), challenge.digest());
    let (request, unsigned) = made.expect("a request");
    let response = KEY.sign(&request).expect("a signature");
    unsigned.sign(&response).expect("a token")
}

#[test]
fn gateway_names_each_fault_of_a_token() {
    let (gateway, token) = (accepted(), issue(&challenge()));
    let now = 10 * DAY + 5;
    let valid = gateway.check(&token, now).expect("valid");
    assert_eq!(valid.not_before, 10 * DAY);
    assert_eq!(valid.spent_id, token.spent_id());
    for (now, expected) in [
        (10 * DAY - 1, Some(TokenError::StaleEpoch)),
        (12 * DAY - 1, None),
        (12 * DAY, Some(TokenError::StaleEpoch)),
    ] {
        assert_eq!(gateway.check(&token, now).err(), expected, "{now}");
    }
    let mut forged = token.clone();
    forged.nonce[0] ^= 1;
    assert_eq!(gateway.check(&forged, now), Err(TokenError::Forged));
    let mut forged = token.clone();
    forged.authenticator = [0xff; SIGNATURE_LENGTH];
    assert_eq!(gateway.check(&forged, now), Err(TokenError::Forged));
    let mut unknown = token;
    unknown.key_id[0] ^= 1;
    assert_eq!(gateway.check(&unknown, now), Err(TokenError::UnknownIssuer));
    let elsewhere = issue(&TokenChallenge {
        origin_info: "other.example".into(),
        ..challenge()
    });
    assert_eq!(
        gateway.check(&elsewhere, now),
        Err(TokenError::WrongChallenge)
    );
}

#[test]
fn gateway_challenges_with_the_present_key() {
    let value = accepted().www_authenticate(10 * DAY).expect("a key");
    let read = TokenChallenge::from_www_authenticate(&value);
    assert_eq!(read, Ok((challenge(), KEY.public().spki())));
    assert_eq!(accepted().www_authenticate(9 * DAY), None);
    assert_eq!(accepted().www_authenticate(12 * DAY), None);
}

#[test]
fn gateway_refuses_two_keys_of_one_epoch() {
    let mut directory = directory();
    let mut second = directory.keys[0].clone();
    second.not_before += 1;
    directory.keys.push(second);
    let accepted = AcceptedIssuer::new(challenge(), Epochs::new(DAY), directory);
    assert_eq!(accepted.err(), Some(SharedEpoch));
}

#[test]
fn directory_round_trips_and_skips_other_types() {
    let text = directory().write();
    assert_eq!(Directory::read(text.as_bytes()), Ok(directory()));
    let other = text.replace("\"token-type\":2", "\"token-type\":1");
    assert_eq!(
        Directory::read(other.as_bytes()),
        Err(DirectoryError::NoKey)
    );
    for text in ["", "{}", "[]", "{\"issuer-request-uri\": 1}"] {
        assert_eq!(
            Directory::read(text.as_bytes()),
            Err(DirectoryError::Malformed)
        );
    }
}

#[test]
fn client_refuses_a_response_of_another_key() {
    let made = Unsigned::new(KEY.public(), challenge().digest());
    let (request, unsigned) = made.expect("a request");
    let other = IssuerKey::generate().expect("random numbers");
    let request = TokenRequest {
        truncated_key_id: other.public().truncated_id(),
        ..request
    };
    // The number may exceed the modulus of the other key.
    let response = other
        .sign(&request)
        .unwrap_or_else(|_| vec![1; SIGNATURE_LENGTH]);
    assert_eq!(unsigned.sign(&response), Err(IssuanceError::Signature));
}

#[test]
fn issuer_refuses_requests_for_other_keys() {
    let (request, _) = Unsigned::new(KEY.public(), [0; 32]).expect("a request");
    let wrong = TokenRequest {
        truncated_key_id: request.truncated_key_id ^ 1,
        ..request.clone()
    };
    assert_eq!(KEY.sign(&wrong), Err(IssuanceError::Request));
    let beyond = TokenRequest {
        blinded: [0xff; SIGNATURE_LENGTH],
        ..request
    };
    assert_eq!(KEY.sign(&beyond), Err(IssuanceError::Request));
}

#[test]
fn issuer_keys_round_trip_through_pem() {
    let pem = KEY.to_pem().expect("an encoding");
    let read = IssuerKey::from_pem(&pem).expect("our own text");
    assert_eq!(read.public(), KEY.public());
    assert!(!format!("{read:?}").contains("secret"));
    assert!(IssuerKey::from_pem("text").is_err());
}

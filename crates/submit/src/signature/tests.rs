//! Tests with the vector of RFC 9421 appendix B.2.6 and with changed requests.

use proptest::prelude::*;
use ring::signature::{ED25519, Ed25519KeyPair, UnparsedPublicKey};
use tandem_http::{Method, Scheme};

use super::*;

/// The private and the public key of appendix B.1.4.
const PRIVATE: &str = "n4Ni-HpISpVObnQMW0wOhCKROaIKqKtW_2ZYb2p9KcU";
const PUBLIC: &str = "JrQLj5P_89iXES9-vFgrIy29clF9CC_oPPsw3c5D0bs";

const COMPONENTS: [&str; 6] = [
    "date",
    "@method",
    "@path",
    "@authority",
    "content-type",
    "content-length",
];

fn bytes(text: &str) -> Vec<u8> {
    use base64::Engine as _;
    base64::engine::general_purpose::URL_SAFE_NO_PAD
        .decode(text)
        .expect("base64url")
}

fn key() -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_and_public_key(&bytes(PRIVATE), &bytes(PUBLIC)).expect("a pair")
}

/// The request of appendix B.2.
fn request() -> RequestHead {
    let mut request = RequestHead {
        method: Method::Post,
        ..RequestHead::get(Scheme::Https, "example.com", "/foo?param=Value&Pet=dog")
    };
    for (name, value) in [
        ("date", "Tue, 20 Apr 2021 02:07:55 GMT"),
        ("content-type", "application/json"),
        ("content-length", "18"),
    ] {
        request.fields.push(name, value);
    }
    request
}

fn parameters() -> Parameters {
    Parameters {
        created: 1_618_884_473,
        expires: None,
        key_id: "test-key-ed25519".to_owned(),
        algorithm: None,
        tag: None,
    }
}

fn signed() -> RequestHead {
    let mut request = request();
    let sign_with = |base: &[u8]| key().sign(base).as_ref().to_vec();
    sign(
        &mut request,
        "sig-b26",
        &COMPONENTS,
        &parameters(),
        sign_with,
    )
    .expect("signed");
    request
}

const REQUIREMENTS: Requirements<'static> = Requirements {
    tag: None,
    components: &["@method", "@path", "@authority"],
    if_present: &[],
    now: 1_618_884_473,
    max_age: 300,
};

fn check(request: &RequestHead) -> Result<Parameters, SignatureError> {
    verify(request, &REQUIREMENTS, |key_id, base, signature| {
        let key = UnparsedPublicKey::new(&ED25519, bytes(PUBLIC));
        key_id == "test-key-ed25519" && key.verify(base, signature).is_ok()
    })
}

#[test]
fn signature_matches_rfc_9421_b_2_6() {
    let request = signed();
    let field = |name: &str| std::str::from_utf8(request.fields.get(name).expect("set"));
    assert_eq!(
        field("signature-input"),
        Ok(
            "sig-b26=(\"date\" \"@method\" \"@path\" \"@authority\" \"content-type\" \
            \"content-length\");created=1618884473;keyid=\"test-key-ed25519\""
        )
    );
    assert_eq!(
        field("signature"),
        Ok(
            "sig-b26=:wqcAqbmYJ2ji2glfAMaRy4gruYYnx2nEFN2HN6jrnDnQCK1u02Gb04v9EDgwUPiu4A0w6vuQv5l\
            Ip5WPpBKRCw==:"
        )
    );
    assert_eq!(check(&request), Ok(parameters()));
}

#[test]
fn verify_refuses_changed_requests() {
    type Change = fn(&mut RequestHead);
    let wrong: [Change; 5] = [
        |request| request.method = Method::Put,
        |request| request.path = "/bar".to_owned(),
        |request| request.authority = "example.org".to_owned(),
        |request| request.fields.set("content-type", "text/plain"),
        |request| {
            let signature = "sig-b26=:AAAA:";
            request.fields.set("signature", signature);
        },
    ];
    for change in wrong {
        let mut request = signed();
        change(&mut request);
        assert_eq!(check(&request), Err(SignatureError::Wrong));
    }
    // The query is not covered.
    let mut request = signed();
    request.path = "/foo".to_owned();
    assert!(check(&request).is_ok());
}

#[test]
fn verify_names_the_fault() {
    let with_input = |from: &str, to: &str| {
        let mut request = signed();
        let input = request.fields.get("signature-input").expect("set").to_vec();
        let input = String::from_utf8(input).expect("text").replace(from, to);
        request.fields.set("signature-input", input);
        check(&request).expect_err("a changed input")
    };
    let mut missing = signed();
    missing.fields.remove("signature");
    assert_eq!(check(&missing), Err(SignatureError::Missing));
    for (from, to, error) in [
        ("sig-b26=", "other=", SignatureError::Missing),
        ("(", "[", SignatureError::Malformed("signature-input")),
        (
            "\"date\"",
            "\"date\";sf",
            SignatureError::Component("\"date\";sf".to_owned()),
        ),
        (
            "\"date\"",
            "\"x-absent\"",
            SignatureError::Component("\"x-absent\"".to_owned()),
        ),
        (
            "\"date\"",
            "\"@status\"",
            SignatureError::Component("\"@status\"".to_owned()),
        ),
        (
            "\"date\"",
            "\"Date\"",
            SignatureError::Component("\"Date\"".to_owned()),
        ),
        (
            "\"date\"",
            "\"@path\"",
            SignatureError::Repeated("@path".to_owned()),
        ),
        (
            "\"@method\" ",
            "",
            SignatureError::NotCovered("@method".to_owned()),
        ),
        ("created=1618884473;", "", SignatureError::NoTime),
        (
            "created=1618884473",
            "created=1618880000",
            SignatureError::Stale,
        ),
        (
            "created=1618884473",
            "created=1618889999",
            SignatureError::Stale,
        ),
        (
            "created=1618884473",
            "created=1618884473;expires=1618884472",
            SignatureError::Stale,
        ),
        (
            "created=1618884473",
            "created=1618884473;expires=\"never\"",
            SignatureError::Malformed("signature-input"),
        ),
        (";keyid=\"test-key-ed25519\"", "", SignatureError::NoKey),
        ("test-key-ed25519", "another-key", SignatureError::Wrong),
        (
            "keyid",
            "alg=\"hmac-sha256\";keyid",
            SignatureError::Algorithm,
        ),
    ] {
        assert_eq!(with_input(from, to), error, "{from} -> {to}");
    }
}

#[test]
fn signature_of_another_tag_is_ignored() {
    let requirements = Requirements {
        tag: Some("tandem-submission"),
        ..REQUIREMENTS
    };
    let checked = verify(&signed(), &requirements, |_, _, _| true);
    assert_eq!(checked, Err(SignatureError::Missing));
}

proptest! {
    #[test]
    fn verify_accepts_only_what_was_signed(
        path in "/[a-z/]{0,12}(\\?[a-z=]{0,8})?",
        value in "[ -~]{0,24}",
        other in "[ -~]{0,24}",
    ) {
        let mut request = request();
        request.path = path;
        request.fields.set("content-type", &value);
        let components = ["@method", "@target-uri", "@path", "@authority", "@query", "content-type"];
        let sign_with = |base: &[u8]| key().sign(base).as_ref().to_vec();
        sign(&mut request, "a", &components, &parameters(), sign_with).expect("signed");
        prop_assert!(check(&request).is_ok());
        request.fields.set("content-type", &other);
        prop_assert_eq!(check(&request).is_ok(), other.trim() == value.trim());
    }

    #[test]
    fn verify_survives_any_fields(
        input in proptest::collection::vec(any::<u8>(), 0..200),
        signature in "[ -~]{0,100}",
    ) {
        let mut request = request();
        request.fields.set("signature-input", input);
        request.fields.set("signature", signature);
        prop_assert!(check(&request).is_err());
    }
}

//! Any fields of a signed request: refused, or accepted only for the key that signed them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_http::{RequestHead, Scheme};
use tandem_submit::signature::{Parameters, Requirements, sign, verify};
use tandem_submit::{digest, submission};

fuzz_target!(|input: (&[u8], &[u8], &[u8], &str)| {
    let (signature_input, signature, other, key_id) = input;
    let mut request = RequestHead::get(Scheme::Https, "example.com:443", "/a?b");
    request.fields.push("signature-input", signature_input);
    request.fields.push("signature", signature);
    for name in [digest::CONTENT_DIGEST, submission::IDEMPOTENCY_KEY] {
        request.fields.push(name, other);
    }
    let requirements = Requirements {
        tag: None,
        components: &["@method"],
        if_present: &["content-type"],
        now: 1_000_000,
        max_age: 300,
    };
    assert!(verify(&request, &requirements, |_, _, _| false).is_err());
    if let Ok(parameters) = verify(&request, &requirements, |_, _, _| true) {
        assert!((parameters.created - 1_000_000).abs() <= 300);
    }
    let _ = digest::check(&request.fields, &[0; 32]);
    if let Ok(key) = submission::IdempotencyKey::of(&request.fields) {
        request.fields.set(submission::IDEMPOTENCY_KEY, key.value());
        assert!(submission::IdempotencyKey::of(&request.fields) == Ok(key));
    }
    // A request that can be signed is accepted as it was signed.
    let parameters = Parameters {
        created: 1_000_000,
        expires: None,
        key_id: key_id.to_owned(),
        algorithm: None,
        tag: None,
    };
    request.fields.set("content-type", other);
    let components = ["@method", "@target-uri", "content-type"];
    if sign(&mut request, "a", &components, &parameters, <[u8]>::to_vec).is_ok() {
        let verified = verify(&request, &requirements, |id, base, signature| {
            id == key_id && base == signature
        });
        assert!(verified == Ok(parameters));
    }
});

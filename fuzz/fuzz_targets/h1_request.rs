//! A request that is accepted is written and read again as the same request, and no cut of it is
//! understood otherwise.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_http::h1::{Form, Framing, Limits, Version, parse_request, write_request};
use tandem_http::{Fields, Method, RequestHead, Scheme};

fuzz_target!(|data: &[u8]| {
    let limits = Limits::default();
    // A written request has one or two more fields.
    let wider = Limits {
        head: 2 * limits.head,
        fields: 2 * limits.fields,
    };
    let whole = parse_request(data, Scheme::Http, &limits);
    let part = parse_request(&data[..data.len() / 2], Scheme::Http, &limits);
    assert!(part == Ok(None) || part == whole);
    let Ok(Some((request, used))) = whole else {
        return;
    };
    assert!(used <= data.len());
    // Without Host, HTTP/1.0 only.
    if request.head.authority.is_empty() {
        return assert_eq!(request.version, Version::Http10);
    }
    let form = if request.head.path == "*" {
        Form::Asterisk
    } else {
        request.form
    };
    let mut wire = bytes(
        &request.head,
        form,
        request.framing,
        request.upgrade.as_deref(),
    );
    let (again, used) = parse_request(&wire, request.head.scheme, &wider)
        .expect("own writing")
        .expect("whole");
    assert_eq!(used, wire.len());
    assert_eq!(again.upgrade, request.upgrade);
    let usual = matches!(
        request.head.method,
        Method::Post | Method::Put | Method::Patch
    );
    if !(usual && request.framing == Framing::None) {
        assert_eq!(again.framing, request.framing);
    }
    assert_eq!(without_made(&again.head), without_made(&request.head));
    wire.truncate(wire.len() - 1);
    assert_eq!(parse_request(&wire, request.head.scheme, &wider), Ok(None));
});

fn bytes(head: &RequestHead, form: Form, framing: Framing, upgrade: Option<&str>) -> Vec<u8> {
    let mut out = Default::default();
    write_request(&mut out, head, form, framing, upgrade);
    out.to_vec()
}

/// Returns the head without the fields that the writer adds, joins or leaves out.
fn without_made(head: &RequestHead) -> RequestHead {
    let keep = |name: &[u8], value: &[u8]| match name {
        b"content-length" | b"cookie" => false,
        b"expect" => !value.eq_ignore_ascii_case(b"100-continue"),
        _ => true,
    };
    let fields: Fields = head
        .fields
        .iter()
        .filter(|f| keep(f.name, f.value))
        .map(|f| (f.name, f.value))
        .collect();
    RequestHead {
        fields,
        ..head.clone()
    }
}

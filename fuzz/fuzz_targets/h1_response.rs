//! A response that is accepted is written and read again as the same response, and no cut of it is
//! understood otherwise. Nothing follows a repaired response, and the written one is unambiguous.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tandem_http::h1::{Limits, Version, parse_response, response_framing, write_response};
use tandem_http::{Fields, Method};

fuzz_target!(|data: &[u8]| {
    let Some((&first, data)) = data.split_first() else {
        return;
    };
    let method = [Method::Get, Method::Head, Method::Connect][usize::from(first % 3)].clone();
    let limits = Limits::default();
    // A written response has one or two more fields.
    let wider = Limits {
        head: 2 * limits.head,
        fields: 2 * limits.fields,
    };
    let whole = parse_response(data, &method, &limits);
    let part = parse_response(&data[..data.len() / 2], &method, &limits);
    assert!(part == Ok(None) || part == whole);
    let Ok(Some((response, used))) = whole else {
        return;
    };
    assert!(used <= data.len());
    assert!(!(response.is_repaired && response.keep_alive));
    let framing = response_framing(&response.head, &method, Version::Http11);
    let mut wire = Default::default();
    write_response(
        &mut wire,
        &response.head,
        Version::Http11,
        framing,
        true,
        response.upgrade.as_deref(),
    );
    let (again, used) = parse_response(&wire, &method, &wider)
        .expect("own writing")
        .expect("whole");
    assert_eq!(used, wire.len());
    assert_eq!(
        (again.framing, again.head.status),
        (framing, response.head.status)
    );
    assert_eq!(again.upgrade, response.upgrade);
    assert!(!again.is_repaired);
    let kept = |fields: &Fields| -> Fields {
        fields
            .iter()
            .filter(|f| !matches!(f.name, b"content-length" | b"te"))
            .map(|f| (f.name, f.value))
            .collect()
    };
    assert_eq!(kept(&again.head.fields), kept(&response.head.fields));
});

//! The bound on the heads of pushes that wait for their reader.

use tandem_http::Event;
use tandem_http::pushed::{MAX_WAITING, weight_of_fields, weight_of_promise};

use super::client;
use crate::support::*;

/// Returns a client whose request has the head of a response.
fn reading() -> Raw {
    let mut raw = client();
    raw.send(0, &headers(&[(":status", "200")]))
        .expect("a head");
    raw.events();
    raw
}

#[test]
fn h3_finished_pushes_that_wait_are_bounded() {
    let mut raw = reading();
    let large = ("x", &"y".repeat(55_000)[..]);
    let request = section(&[&GET[..], &[large]].concat());
    let response = headers(&[(":status", "304"), large]);
    for push in 0..100 {
        raw.send(0, &numbered(PUSH_PROMISE, push, &request))
            .expect("a promise");
        let mut bytes = vec![1];
        varint(&mut bytes, push);
        bytes.extend(&response);
        raw.part(raw.uni(4 + push), &bytes, true)
            .expect("a session that goes on");
    }
    let events = raw.events();
    let weights = events.iter().map(|event| match event {
        Event::Push { request, .. } => weight_of_promise(request),
        Event::Response { head, .. } => weight_of_fields(&head.fields),
        _ => 0,
    });
    let weight: usize = weights.sum();
    assert!(
        weight > MAX_WAITING / 2 && weight < MAX_WAITING + (64 << 10),
        "{weight}"
    );
    raw.part(0, &frame(DATA, b"page"), true).expect("content");
    assert_eq!(body(&raw.events(), 1), (b"page".to_vec(), true));
}

//! Pushes that break a rule (RFC 9114 section 4.6).

use tandem_http::h3::Code;
use tandem_http::{Event, MuxConfig};

use super::{assert_fatal, client};
use crate::support::*;

#[test]
fn h3_pushes_are_checked() {
    let promise = |push| numbered(PUSH_PROMISE, push, &section(&GET));
    let other = |push| {
        numbered(
            PUSH_PROMISE,
            push,
            &section(&[GET[0], GET[1], GET[2], (":path", "/b")]),
        )
    };
    let push_stream = |push: u8| [1, push];
    let mut raw = client();
    let result = raw.send(0, &promise(256));
    assert_fatal(raw, result, Code::ID_ERROR, "a promise beyond the limit");
    let mut raw = client();
    let result = raw.send(raw.uni(4), &[1, 0x41, 0]);
    assert_fatal(raw, result, Code::ID_ERROR, "a push beyond the limit");
    let mut raw = client();
    raw.send(0, &promise(0)).expect("a promise");
    let result = raw.send(0, &other(0));
    assert_fatal(
        raw,
        result,
        Code::GENERAL_PROTOCOL_ERROR,
        "another promise of one push",
    );
    for promised in [false, true] {
        let mut raw = client();
        if promised {
            raw.send(0, &promise(0)).expect("a promise");
        }
        raw.send(raw.uni(4), &push_stream(0)).expect("a push");
        let result = raw.send(raw.uni(5), &push_stream(0));
        assert_fatal(raw, result, Code::ID_ERROR, "two streams of one push");
    }
    let mut raw = client();
    raw.send(0, &promise(0)).expect("a promise");
    raw.send(raw.uni(4), &push_stream(0)).expect("a push");
    let result = raw.send(raw.uni(4), &promise(1));
    assert_fatal(raw, result, Code::FRAME_UNEXPECTED, "a promise on a push");
    let mut raw = Raw::new(MuxConfig::new(tandem_http::Role::Client));
    raw.open(&get("/"));
    let result = raw.send(0, &promise(0));
    assert_fatal(
        raw,
        result,
        Code::ID_ERROR,
        "a promise that was not permitted",
    );
    let mut raw = client();
    let result = raw.part(raw.uni(4), &[1], true);
    assert_fatal(raw, result, Code::FRAME_ERROR, "a push without a number");
}

#[test]
fn h3_push_is_promised_once_and_refused_if_unsafe() {
    let mut raw = client();
    let promise = numbered(PUSH_PROMISE, 0, &section(&GET));
    raw.send(0, &[promise.clone(), promise].concat())
        .expect("the same promise twice");
    raw.send(0, &numbered(PUSH_PROMISE, 1, &section(&POST)))
        .expect("an unsafe push");
    let pushes = raw
        .events()
        .into_iter()
        .filter(|e| matches!(e, Event::Push { .. }));
    assert_eq!(pushes.count(), 1);
    raw.end.drive();
    let control = raw.end.flights[&2].bytes.clone();
    assert!(
        control.ends_with(&numbered(CANCEL_PUSH, 1, &[])),
        "{control:x?}"
    );
    // The stream of a refused push is stopped, and its promise may come again.
    raw.send(raw.uni(4), &[1, 1]).expect("a late push");
    assert!(raw.ended().contains(&(raw.uni(4), Code::REQUEST_CANCELLED)));
    raw.send(0, &numbered(PUSH_PROMISE, 1, &section(&GET)))
        .expect("a late promise");
    assert!(raw.events().is_empty());
}

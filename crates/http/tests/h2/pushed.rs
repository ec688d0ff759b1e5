//! The bound on the heads of pushes that wait for their reader, and the cost of pushes without
//! content.

use tandem_http::pushed::{MAX_WAITING, weight_of_fields, weight_of_promise};
use tandem_http::{Event, Mux, MuxConfig, Reason, SessionError};

use crate::support::*;

const REFUSED: u32 = 7;

/// Returns a client whose request on stream 1 has the head of a response.
fn reading() -> Raw {
    let config = MuxConfig {
        push: true,
        ..client_config()
    };
    let mut raw = Raw::client(config);
    let opened = raw.core.open(&get("/"), true, tandem_http::Priority(3));
    opened.expect("a stream");
    raw.headers(1, false, &[(":status", "200")])
        .expect("a head");
    raw.events();
    raw.frames();
    raw
}

/// The heads of pushes. Header compression makes 55 kB from 14 bytes.
#[derive(Clone, Copy, PartialEq)]
enum Size {
    Small,
    Large,
}

/// A promise that adds a field of 3,900 bytes to the table.
fn fill_table(raw: &mut Raw) {
    let value = [b'y'; 3900];
    let length = [0x7f, 0xbd, 0x1d];
    let field = [&[0x40, 1, b'x'][..], &length, &value].concat();
    promise(raw, 2, &field).expect("a promise");
}

/// Promises `/` with these further fields.
fn promise(raw: &mut Raw, id: u32, fields: &[u8]) -> Result<(), SessionError> {
    let block = [&[0x82, 0x87, 0x84, 1, 1, b'a'][..], fields].concat();
    let payload = [&id.to_be_bytes()[..], &block].concat();
    raw.send(PUSH_PROMISE, END_HEADERS, 1, &payload)
}

fn fields(size: Size) -> &'static [u8] {
    match size {
        Size::Small => &[],
        Size::Large => &[0xbe; 14],
    }
}

/// Pushes a 304 that ends with its head.
fn push(raw: &mut Raw, id: u32, size: Size) -> Result<(), SessionError> {
    promise(raw, id, fields(size))?;
    let block = [&[0x8b], fields(size)].concat();
    raw.send(HEADERS, END_HEADERS | END_STREAM, id, &block)
}

/// Returns the weight of the heads of pushes among events.
fn weight(events: &[Event]) -> usize {
    let weights = events.iter().map(|event| match event {
        Event::Push { request, .. } => weight_of_promise(request),
        Event::Response { head, .. } => weight_of_fields(&head.fields),
        _ => 0,
    });
    weights.sum()
}

#[test]
fn finished_pushes_that_wait_are_bounded() {
    let mut raw = reading();
    fill_table(&mut raw);
    for id in (4..=200).step_by(2) {
        push(&mut raw, id, Size::Large).expect("a session that goes on");
    }
    let resets = raw.resets();
    let refused: Vec<_> = resets.iter().map(|(_, code)| *code).collect();
    assert!(refused.len() > 30, "{resets:?}");
    assert_eq!(refused, vec![REFUSED; refused.len()]);
    let waiting = weight(&raw.events());
    assert!(waiting < MAX_WAITING + (64 << 10), "{waiting}");
    raw.send(DATA, END_STREAM, 1, b"page").expect("content");
    assert_eq!(body(&raw.events(), 1), (b"page".to_vec(), true));
}

#[test]
fn pushes_are_taken_again_once_the_heads_are_read() {
    let mut raw = reading();
    fill_table(&mut raw);
    for id in (4..=200).step_by(2) {
        push(&mut raw, id, Size::Large).expect("a session that goes on");
    }
    assert!(!raw.resets().is_empty());
    raw.events();
    push(&mut raw, 202, Size::Large).expect("a push");
    assert!(raw.resets().is_empty());
    assert_eq!(raw.events().len(), 2, "the promise and its response");
}

#[test]
fn waiting_promises_of_open_pushes_are_bounded() {
    let mut raw = reading();
    fill_table(&mut raw);
    for id in (4..=400).step_by(2) {
        promise(&mut raw, id, fields(Size::Large)).expect("a session that goes on");
    }
    assert!(raw.resets().contains(&(400, REFUSED)));
    let waiting = weight(&raw.events());
    assert!(waiting < MAX_WAITING + (64 << 10), "{waiting}");
}

#[test]
fn page_of_1315_validators_is_no_flood() {
    let mut raw = reading();
    for turn in 1..=4500 {
        match push(&mut raw, turn * 2, Size::Small) {
            Ok(()) => assert!(raw.resets().is_empty(), "{turn}"),
            Err(error) => {
                assert_eq!(error.reason, Reason::EnhanceYourCalm);
                assert!(turn > 1315, "{turn}");
                return;
            }
        }
        assert_eq!(raw.events().len(), 2, "{turn}");
    }
    panic!("9,000 frames without content have not ended the session");
}

#[test]
fn content_pays_for_pushes_and_not_for_large_heads() {
    let mut raw = reading();
    fill_table(&mut raw);
    let send = |raw: &mut Raw, turn: u32, size| {
        raw.send(DATA, 0, 1, &[0; 1000])?;
        for event in raw.events() {
            if let Event::Data { id, data, .. } = event {
                raw.core.release(id, data.len());
            }
        }
        raw.frames();
        push(raw, turn * 2, size)
    };
    for turn in 2..=5000 {
        send(&mut raw, turn, Size::Small).expect("a push with its content");
    }
    let ended = (5001..6000).find(|turn| send(&mut raw, *turn, Size::Large).is_err());
    assert!(ended.is_some_and(|turn| turn < 5500), "{ended:?}");
}

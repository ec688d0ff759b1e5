//! The rules of RFC 9113 that a peer can break, and the bounds on the cost of a peer, in raw
//! frames.

mod frames;
mod heads;
mod streams;
mod windows;

use tandem_http::{Mux, Priority, Reason, RequestHead};

use crate::support::*;

const PROTOCOL: u32 = 1;
const FLOW_CONTROL: u32 = 3;
const STREAM_CLOSED: u32 = 5;
const REFUSED: u32 = 7;
const CANCEL: u32 = 8;

fn server() -> Raw {
    let mut raw = Raw::server(server_config());
    raw.frames();
    raw.events();
    raw
}

/// A client core that waits for the answer on stream 1.
fn client(head: &RequestHead) -> Raw {
    let mut raw = Raw::client(client_config());
    raw.core.open(head, true, Priority(3)).expect("a stream");
    raw.frames();
    raw.events();
    raw
}

/// The session ends with `reason`, the peer is told, and nothing more is taken.
fn assert_fatal(raw: &mut Raw, kind: u8, flags: u8, id: u32, payload: &[u8], reason: Reason) {
    let error = raw
        .send(kind, flags, id, payload)
        .expect_err("a session error");
    assert_eq!(error.reason, reason, "{}", error.detail);
    let frames = raw.frames();
    assert_eq!(
        frames.last().map(|f| f.kind),
        Some(GOAWAY),
        "{}",
        error.detail
    );
    assert_eq!(raw.send(PING, 0, 0, &[0; 8]), Err(error));
    assert!(!raw.core.wants_output());
}

type List = &'static [(&'static str, &'static str)];

const GET: [(&str, &str); 4] = [
    (":method", "GET"),
    (":scheme", "https"),
    (":authority", "a.example"),
    (":path", "/"),
];

pub(super) fn get_with(
    extra: &[(&'static str, &'static str)],
) -> Vec<(&'static str, &'static str)> {
    GET.iter().chain(extra).copied().collect()
}

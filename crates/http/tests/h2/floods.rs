//! The flood budget of an HTTP/2 session: each kind of flood ends the session within 5,000 frames,
//! and heavy use by honest peers never does.

use std::time::Duration;

use bytes::Bytes;
use tandem_http::{Event, Mux, Priority, Reason, SessionError};

use crate::support::*;

const GET: [(&str, &str); 4] = [
    (":method", "GET"),
    (":scheme", "https"),
    (":authority", "a.example"),
    (":path", "/"),
];
const POST: [(&str, &str); 4] = [(":method", "POST"), GET[1], GET[2], GET[3]];
const CANCEL: [u8; 4] = [0, 0, 0, 8];
const MAX_FRAMES: usize = 5000;

fn server() -> Raw {
    let mut raw = Raw::server(server_config());
    raw.frames();
    raw.events();
    raw
}

/// Returns a server core with one open request and an unfinished body.
fn server_with_upload() -> Raw {
    let mut raw = server();
    raw.request(1, false).expect("headers");
    raw
}

/// A server core that has reset stream 1.
fn server_with_reset() -> Raw {
    let mut raw = server_with_upload();
    raw.core.reset(1, Reason::Cancel);
    raw
}

/// A client core with one request.
fn client() -> Raw {
    let mut raw = Raw::client(client_config());
    raw.core
        .open(&get("/"), true, Priority(3))
        .expect("a stream");
    raw
}

/// Repeats `send`, which sends `frames` frames for an odd stream, until the session ends.
fn flood(
    name: &str,
    mut raw: Raw,
    frames: usize,
    mut send: impl FnMut(&mut Raw, u32) -> Result<(), SessionError>,
) {
    for turn in 0..=MAX_FRAMES / frames {
        if let Err(error) = send(&mut raw, turn as u32 * 2 + 3) {
            assert_eq!(
                error.reason,
                Reason::EnhanceYourCalm,
                "{name}: {}",
                error.detail
            );
            assert!(turn > 20, "{name}: {turn} are too few");
            let goodbye = raw.frames();
            assert_eq!(
                goodbye.last().map(|frame| frame.kind),
                Some(GOAWAY),
                "{name}"
            );
            return;
        }
        raw.events();
        raw.frames();
    }
    panic!("{name}: {MAX_FRAMES} frames have not ended the session");
}

#[test]
fn session_frames_are_charged() {
    let ping = |raw: &mut Raw, _| raw.send(PING, 0, 0, &[0; 8]);
    flood("PING", server(), 1, ping);
    flood("PING ack", server(), 1, |raw, _| {
        raw.send(PING, ACK, 0, &[0; 8])
    });
    flood("SETTINGS", server(), 1, |raw, _| {
        raw.send(SETTINGS, 0, 0, &[])
    });
    flood("SETTINGS ack", server(), 1, |raw, _| {
        raw.send(SETTINGS, ACK, 0, &[])
    });
    flood("PRIORITY", server(), 1, |raw, id| {
        raw.send(PRIORITY, 0, id, &[0; 5])
    });
    flood("PRIORITY_UPDATE", server(), 1, |raw, _| {
        raw.send(PRIORITY_UPDATE, 0, 0, b"\0\0\0\x01u=1")
    });
    flood("WINDOW_UPDATE", server(), 1, |raw, _| {
        raw.send(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])
    });
    flood("GOAWAY", server(), 1, |raw, _| {
        raw.send(GOAWAY, 0, 0, &[0; 8])
    });
    flood("unknown", server(), 1, |raw, _| raw.send(0x77, 0, 0, &[]));
    flood("PING to a client", client(), 1, ping);
}

#[test]
fn empty_data_is_charged() {
    flood("empty", server_with_upload(), 1, |raw, _| {
        raw.send(DATA, 0, 1, &[])
    });
    flood("padding", server_with_upload(), 1, |raw, _| {
        raw.send(DATA, PADDED, 1, &[3, 0, 0, 0])
    });
}

#[test]
fn interim_responses_are_charged() {
    flood("103", client(), 1, |raw, _| {
        raw.headers(1, false, &[(":status", "103")])
    });
}

#[test]
fn refused_requests_are_charged() {
    flood("malformed", server(), 1, |raw, id| {
        raw.headers(id, true, &GET[1..])
    });
    flood("too many", server(), 1, |raw, id| raw.request(id, true));
    let large = "v".repeat(70_000);
    let list = [GET[0], GET[1], GET[2], GET[3], ("x", &large)];
    flood("too large", server(), 6, |raw, id| {
        let block = raw.block(&list);
        let (first, rest) = block.split_at(16_000);
        raw.send(HEADERS, END_STREAM, id, first)?;
        let mut parts = rest.chunks(16_000).peekable();
        while let Some(part) = parts.next() {
            let flags = if parts.peek().is_none() {
                END_HEADERS
            } else {
                0
            };
            raw.send(CONTINUATION, flags, id, part)?;
        }
        Ok(())
    });
}

#[test]
fn resets_are_charged_whatever_came_before() {
    flood("rapid reset", server(), 2, |raw, id| {
        raw.headers(id, false, &POST)?;
        raw.send(RST_STREAM, 0, id, &CANCEL)
    });
    for len in [1, 1100, 16_384] {
        flood("reset after data", server(), 3, |raw, id| {
            raw.headers(id, false, &POST)?;
            raw.send(DATA, 0, id, &vec![0; len])?;
            raw.send(RST_STREAM, 0, id, &CANCEL)
        });
    }
    flood("reset while answered", server(), 2, |raw, id| {
        raw.headers(id, true, &GET)?;
        raw.core.respond(id, &response(200, &[]), false);
        raw.core.send_data(id, bytes(20_000), false);
        raw.frames();
        raw.send(RST_STREAM, 0, id, &CANCEL)
    });
}

#[test]
fn faults_that_reset_streams_are_charged() {
    flood("increment of 0", server(), 2, |raw, id| {
        raw.request(id, false)?;
        raw.send(WINDOW_UPDATE, 0, id, &[0; 4])
    });
    flood("window overflow", server(), 2, |raw, id| {
        raw.request(id, false)?;
        raw.send(WINDOW_UPDATE, 0, id, &[0x7f, 0xff, 0xff, 0xff])
    });
    flood("HEADERS on a half-closed stream", server(), 2, |raw, id| {
        raw.request(id, true)?;
        raw.headers(id, true, &[("x", "y")])
    });
    flood("DATA on a half-closed stream", server(), 2, |raw, id| {
        raw.request(id, true)?;
        raw.send(DATA, 0, id, &[0; 2000])
    });
    flood("more than content-length", server(), 3, |raw, id| {
        raw.headers(
            id,
            false,
            &[&POST[..], &[("content-length", "2000")]].concat(),
        )?;
        raw.send(DATA, 0, id, &[0; 2000])?;
        raw.send(DATA, 0, id, &[0; 2000])
    });
}

#[test]
fn frames_of_reset_streams_are_charged() {
    for len in [1, 1100, 16_384] {
        flood("DATA", server_with_reset(), 1, |raw, _| {
            raw.send(DATA, 0, 1, &vec![0; len])
        });
    }
    flood("HEADERS", server_with_reset(), 1, |raw, _| {
        raw.headers(1, true, &[("x", "y")])
    });
    flood("RST_STREAM", server_with_reset(), 1, |raw, _| {
        raw.send(RST_STREAM, 0, 1, &CANCEL)
    });
    flood("WINDOW_UPDATE", server_with_reset(), 1, |raw, _| {
        raw.send(WINDOW_UPDATE, 0, 1, &[0, 0, 4, 0])
    });
}

#[test]
fn continuations_of_good_requests_are_charged() {
    flood("CONTINUATION", server(), 62, |raw, id| {
        let block = raw.block(&GET);
        raw.send(HEADERS, END_STREAM, id, &block)?;
        for _ in 0..60 {
            raw.send(CONTINUATION, 0, id, &[])?;
        }
        raw.send(CONTINUATION, END_HEADERS, id, &[])?;
        raw.core.respond(id, &response(204, &[]), true);
        Ok(())
    });
}

#[test]
fn dribbled_windows_are_charged() {
    let mut raw = Raw::server(server_config());
    raw.send(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0])
        .expect("no window");
    raw.request(1, true).expect("headers");
    raw.core.respond(1, &response(200, &[]), false);
    raw.core.send_data(1, bytes(60_000), true);
    flood("one byte", raw, 1, |raw, _| {
        raw.send(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1])
    });
}

#[test]
fn unread_answers_are_bounded() {
    let mut raw = server();
    let start = raw.now;
    for turn in 0..5000 {
        raw.now = start + Duration::from_secs(turn);
        if let Err(error) = raw.send(PING, 0, 0, &[0; 8]) {
            assert_eq!(error.reason, Reason::EnhanceYourCalm);
            return;
        }
    }
    panic!("the queue grows");
}

#[test]
fn endless_header_blocks_end_the_session() {
    for payload in [&[][..], &[0; 16_000]] {
        let mut raw = server();
        raw.send(HEADERS, 0, 1, &[0x82]).expect("a part");
        let error = (0..1000)
            .find_map(|_| raw.send(CONTINUATION, 0, 1, payload).err())
            .expect("an end");
        assert_eq!(error.reason, Reason::EnhanceYourCalm);
    }
}

#[test]
fn slow_pings_are_never_charged_for_good() {
    let mut raw = server();
    let start = raw.now;
    for turn in 0..10_000 {
        raw.now = start + Duration::from_millis(20 * turn);
        raw.send(PING, 0, 0, &[0; 8]).expect("50 a second");
        raw.frames();
    }
}

#[test]
fn a_page_of_1300_images_may_be_cancelled() {
    let mut raw = server();
    let mut open = Vec::new();
    for image in 0..1300 {
        let id = image * 2 + 1;
        raw.request(id, true).expect("a request");
        raw.core.respond(id, &response(200, &[]), false);
        raw.core.send_data(id, bytes(3000), false);
        raw.events();
        raw.frames();
        open.push(id);
        if open.len() == 200 || image == 1299 {
            for id in open.drain(..) {
                raw.send(RST_STREAM, 0, id, &CANCEL)
                    .expect("a cancelled image");
            }
        }
    }
    assert_eq!(raw.core.active(), 0);
}

#[test]
fn downloads_with_small_credit_are_free() {
    let mut raw = server();
    let ids: Vec<u32> = (0..100).map(|stream| stream * 2 + 1).collect();
    for &id in &ids {
        raw.request(id, true).expect("a request");
        raw.core.respond(id, &response(200, &[]), false);
        raw.core.send_data(id, bytes(400_000), true);
    }
    let mut received = 0;
    while received < 40_000_000 {
        for frame in raw.frames_of(DATA) {
            received += frame.payload.len();
            for piece in frame.payload.chunks(1024) {
                let increment = (piece.len() as u32).to_be_bytes();
                raw.send(WINDOW_UPDATE, 0, 0, &increment)
                    .expect("session credit");
                raw.send(WINDOW_UPDATE, 0, frame.id, &increment)
                    .expect("stream credit");
            }
        }
    }
    assert_eq!((received, raw.core.active()), (40_000_000, 0));
}

#[test]
fn remote_procedure_calls_with_pings_are_free() {
    let mut raw = server();
    for call in 0..20_000 {
        let id = call * 2 + 1;
        raw.headers(id, false, &POST).expect("a call");
        raw.send(DATA, END_STREAM, id, &[0; 30])
            .expect("its message");
        raw.send(PING, 0, 0, &[0; 8])
            .expect("an estimate of the bandwidth");
        raw.send(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 40])
            .expect("credit");
        for event in raw.events() {
            if let Event::Data { id, data, .. } = event {
                raw.core.release(id, data.len());
            }
        }
        raw.core.respond(id, &response(200, &[]), false);
        raw.core.send_data(id, Bytes::from_static(&[1; 40]), false);
        raw.core.send_trailers(id, &fields(&[("grpc-status", "0")]));
        raw.frames();
    }
}

#[test]
fn data_under_way_may_follow_a_cancellation() {
    let mut raw = client();
    raw.headers(1, false, &[(":status", "200")])
        .expect("headers");
    raw.core.reset(1, Reason::Cancel);
    for _ in 0..4000 {
        raw.send(DATA, 0, 1, &[0; 1300]).expect("data under way");
        raw.frames();
    }
}

//! Bounds on the cost of a peer: large requests, many requests, floods, and arbitrary input.

use std::time::Duration;

use proptest::prelude::*;
use tandem_http::h3::Code;
use tandem_http::{Event, Mux, MuxConfig, Priority, Reason, Role, SessionError};

use super::{assert_fatal, client, server};
use crate::support::*;

#[test]
fn h3_large_request_gets_431() {
    let mut config = server_config();
    config.max_header_list = 500;
    let mut raw = Raw::new(config);
    let long = "x".repeat(600);
    raw.part(
        0,
        &headers(&[&GET[..], &[("x-long", &long)]].concat()),
        false,
    )
    .expect("a request");
    assert!(matches!(raw.events()[..], [Event::Settings]));
    let frames = raw.frames(0, 0);
    assert_eq!(
        raw.decode(&frames[0].1),
        [(":status".to_owned(), "431".to_owned())]
    );
    assert_eq!(raw.ended(), [(0, Code::NO_ERROR)]);
    assert_eq!(raw.end.core.active(), 0);
}

#[test]
fn h3_requests_beyond_the_limit_are_rejected() {
    let mut config = server_config();
    config.max_streams = 2;
    let mut raw = Raw::new(config);
    raw.part(0, &headers(&GET), true).expect("a request");
    raw.part(4, &[], false).expect("a stream without a request");
    raw.part(8, &headers(&GET), true)
        .expect("a request too many");
    assert_eq!(raw.ended(), [(8, Code::REQUEST_REJECTED)]);
    raw.end
        .core
        .handle_reset(raw.now, 4, Code::REQUEST_CANCELLED)
        .expect("a reset");
    raw.ended();
    raw.part(12, &headers(&GET), true).expect("a request");
    assert_eq!(raw.ended(), []);
    let requests = raw
        .events()
        .into_iter()
        .filter(|e| matches!(e, Event::Request { .. }));
    assert_eq!(requests.count(), 2);
}

/// The beginning of a frame whose payload has this length.
fn unfinished(len: usize, sent: usize) -> Vec<u8> {
    let mut bytes = frame(HEADERS, &vec![0; len]);
    bytes.truncate(bytes.len() - len + sent);
    bytes
}

#[test]
fn h3_unfinished_requests_share_a_limit() {
    let mut raw = server();
    let mut rejected = Vec::new();
    for turn in 0..60 {
        raw.part(turn * 4, &unfinished(60_000, 30_000), false)
            .expect("a part of a request");
        rejected.extend(raw.ended());
    }
    // A mebibyte has room for 34 of them.
    let expected = (34..60).map(|turn| (turn * 4, Code::REQUEST_REJECTED));
    assert_eq!(rejected, expected.collect::<Vec<_>>());
    assert_eq!(raw.end.core.active(), 34);
    // A stream that ends makes room.
    raw.end
        .core
        .handle_reset(raw.now, 0, Code::REQUEST_CANCELLED)
        .expect("a reset");
    raw.ended();
    raw.part(400, &unfinished(60_000, 30_000), false)
        .expect("a part of a request");
    assert_eq!(raw.ended(), []);
}

#[test]
fn h3_unfinished_trailers_end_the_session() {
    let mut raw = server();
    let error = (0..60).find_map(|turn| {
        let bytes = [headers(&POST), unfinished(60_000, 30_000)].concat();
        raw.part(turn * 4, &bytes, false).err()
    });
    assert_eq!(error.expect("a limit").reason, Reason::EnhanceYourCalm);
}

/// A frame of the session cannot be rejected, so requests must not take its place.
#[test]
fn h3_unfinished_requests_leave_room_for_other_frames() {
    let mut raw = server();
    for turn in 0..36 {
        raw.part(turn * 4, &unfinished(60_000, 30_000), false)
            .expect("a part of a request");
    }
    assert!(!raw.ended().is_empty(), "the requests have used their room");
    let update = numbered(PRIORITY_REQUEST, 0, b"u=1");
    let (begin, rest) = update.split_at(update.len() - 1);
    raw.control(begin).expect("a part of a frame");
    raw.control(rest).expect("the rest of it");
    let bytes = [headers(&POST), unfinished(60_000, 30_000)].concat();
    raw.part(400, &bytes, false).expect("a part of trailers");
    assert_eq!(raw.ended(), []);
}

#[test]
fn h3_requests_waiting_for_insertions_are_unfinished() {
    let mut raw = server();
    // The sections need an insertion that does not come.
    let section = [&[2, 0][..], &[0; 99_998]].concat();
    for turn in 0..12 {
        raw.part(turn * 4, &frame(HEADERS, &section), true)
            .expect("a request that waits");
    }
    // A mebibyte has room for ten of them.
    let expected = [10, 11].map(|turn| (turn * 4, Code::REQUEST_REJECTED));
    assert_eq!(raw.ended(), expected);
    assert_eq!(raw.end.core.active(), 10);
}

#[test]
fn h3_slow_request_has_time_while_it_makes_progress() {
    const LIMIT: Duration = Duration::from_secs(30);
    let mut raw = server();
    let mut now = raw.now;
    let slow = frame(
        HEADERS,
        &section(&[&GET[..], &[("x", &"y".repeat(1000))]].concat()),
    );
    raw.part(0, &slow[..100], false)
        .expect("a part of a request");
    raw.part(4, &unfinished(100, 10), false)
        .expect("a part of a request");
    for piece in slow[100..].chunks(150) {
        raw.end.core.expire_arriving(now, LIMIT);
        now += LIMIT;
        raw.part(0, piece, false).expect("a part of a request");
    }
    assert_eq!(raw.ended(), [(4, Code::REQUEST_REJECTED)]);
    let came = |events: Vec<Event>| events.iter().any(|it| matches!(it, Event::Request { .. }));
    raw.part(0, &[], true).expect("the end");
    assert!(came(raw.events()));
}

#[test]
fn h3_request_with_endless_progress_is_rejected() {
    const LIMIT: Duration = Duration::from_secs(30);
    let mut raw = server();
    let begun = raw.now;
    let slow = unfinished(60_000, 60_000);
    let late = slow.chunks(100).zip(0..).find(|(piece, turn)| {
        raw.part(0, piece, false).expect("a part of a request");
        raw.end
            .core
            .expire_arriving(begun + *turn * LIMIT / 2, LIMIT)
    });
    assert_eq!(late.map(|(_, turn)| turn), Some(20));
}

#[test]
fn h3_time_on_a_dead_path_counts_for_no_request() {
    const LIMIT: Duration = Duration::from_secs(30);
    let mut raw = server();
    raw.part(0, &unfinished(100, 10), false)
        .expect("a part of a request");
    let begun = raw.now;
    assert!(!raw.end.core.expire_arriving(begun, LIMIT));
    raw.end.core.pause_arriving(LIMIT);
    assert!(!raw.end.core.expire_arriving(begun + LIMIT, LIMIT));
    assert!(raw.end.core.expire_arriving(begun + 2 * LIMIT, LIMIT));
    assert_eq!(raw.ended(), [(0, Code::REQUEST_REJECTED)]);
}

#[test]
fn h3_request_that_does_not_come_is_rejected() {
    const LIMIT: Duration = Duration::from_secs(10);
    let mut raw = server();
    raw.part(0, &headers(&GET), false).expect("a request");
    raw.part(4, &unfinished(100, 10), false)
        .expect("a part of a request");
    let begun = raw.now;
    assert!(!raw.end.core.expire_arriving(begun, LIMIT));
    raw.part(8, &[], false).expect("a stream without a request");
    let later = begun + LIMIT / 2;
    assert!(!raw.end.core.expire_arriving(later, LIMIT));
    assert!(raw.end.core.expire_arriving(begun + LIMIT, LIMIT));
    assert_eq!(raw.ended(), [(4, Code::REQUEST_REJECTED)]);
    assert!(raw.end.core.expire_arriving(later + LIMIT, LIMIT));
    assert_eq!(raw.ended(), [(8, Code::REQUEST_REJECTED)]);
    assert_eq!(raw.end.core.active(), 1);
}

/// Repeats an attack until the session ends, within 5,000 turns.
fn flood(
    case: &str,
    mut raw: Raw,
    mut send: impl FnMut(&mut Raw, u64) -> Result<(), SessionError>,
) {
    for turn in 1..5000 {
        let result = send(&mut raw, turn);
        raw.events();
        raw.ended();
        raw.end.flights.clear();
        if let Err(error) = result {
            assert_eq!(error.reason, Reason::EnhanceYourCalm, "{case}: {error}");
            return;
        }
    }
    panic!("{case} is not bounded");
}

#[test]
fn h3_floods_end_the_session() {
    flood("rapid resets", server(), |raw, turn| {
        raw.part(turn * 4, &headers(&GET), true)?;
        raw.end
            .core
            .handle_reset(raw.now, turn * 4, Code::REQUEST_CANCELLED)?;
        raw.end
            .core
            .handle_stopped(raw.now, turn * 4, Code::REQUEST_CANCELLED)
    });
    flood("resets before the request", server(), |raw, turn| {
        raw.part(turn * 4, &[], false)?;
        raw.end
            .core
            .handle_reset(raw.now, turn * 4, Code::REQUEST_CANCELLED)
    });
    flood("malformed requests", server(), |raw, turn| {
        raw.part(turn * 4, &headers(&GET[1..]), true)
    });
    flood("unknown frames", server(), |raw, _| {
        raw.control(&frame(0x21, &[]))
    });
    flood("permitted pushes", server(), |raw, turn| {
        raw.control(&numbered(MAX_PUSH_ID, turn, &[]))
    });
    flood("priorities", server(), |raw, turn| {
        raw.control(&numbered(PRIORITY_REQUEST, turn * 4, b"u=1"))
    });
    flood("empty content", server(), |raw, turn| {
        if turn == 1 {
            raw.send(0, &headers(&POST))?;
        }
        raw.send(0, &frame(DATA, &[]))
    });
    flood("interim responses", client(), |raw, _| {
        raw.send(0, &headers(&[(":status", "103")]))
    });
    flood("refused pushes", client(), |raw, turn| {
        raw.send(0, &numbered(PUSH_PROMISE, turn - 1, &section(&POST)))
    });
    flood("unknown streams", server(), |raw, turn| {
        raw.send(raw.uni(turn + 3), &[0x21])
    });
    flood("streams without a type", server(), |raw, turn| {
        raw.send(raw.uni(turn + 3), &[])
    });
    flood("pushes without a number", client(), |raw, turn| {
        raw.send(raw.uni(turn + 3), &[1])
    });
}

/// A client permits as many streams without a type as pushes, and 64 more. A push whose number has
/// not arrived is one of them.
#[test]
fn h3_streams_without_a_type_are_bounded() {
    let mut config = client_config();
    config.max_streams = 100;
    for (config, most) in [
        (config, 164),
        (MuxConfig::new(Role::Client), 64),
        (server_config(), 64),
    ] {
        let takes_pushes = config.push && config.role == Role::Client;
        let mut raw = Raw::new(config);
        for turn in 0..most + 10 {
            let stream = raw.uni(turn + 3);
            let kind: &[u8] = if takes_pushes && turn % 2 == 0 {
                &[1]
            } else {
                &[]
            };
            raw.send(stream, kind).expect("room for another stream");
            // Streams with a type, and those that end, make room.
            if turn < 5 {
                let reset = raw.end.core.handle_reset(raw.now, stream, Code::NO_ERROR);
                reset.expect("a stream that ends early");
            } else if turn < 10 {
                let typed = if takes_pushes && turn % 2 == 0 {
                    vec![turn as u8]
                } else {
                    vec![0x21]
                };
                raw.send(stream, &typed).expect("a type");
            }
        }
        let result = raw.send(raw.uni(most + 13), &[]);
        assert_fatal(raw, result, Code::EXCESSIVE_LOAD, "a stream without a type");
    }
}

#[test]
fn h3_browser_may_cancel_a_page_of_1300_images() {
    let mut raw = Raw::new(MuxConfig {
        max_streams: 2000,
        ..server_config()
    });
    for turn in 0..1300 {
        raw.part(turn * 4, &headers(&GET), true).expect("a request");
    }
    for turn in 0..1300 {
        raw.end
            .core
            .handle_stopped(raw.now, turn * 4, Code::REQUEST_CANCELLED)
            .expect("a cancelled request");
    }
    raw.part(1300 * 4, &headers(&GET), true)
        .expect("the next page");
}

/// Frames that are mostly right.
pub(super) fn frames() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![0u64..16, Just(PRIORITY_REQUEST), Just(PRIORITY_PUSH)];
    prop_oneof![
        2 => Just(headers(&GET)),
        1 => Just(headers(&POST)),
        2 => Just(headers(&[(":status", "200")])),
        2 => prop::collection::vec(any::<u8>(), 0..20).prop_map(|payload| frame(DATA, &payload)),
        1 => (0u64..5).prop_map(|push| numbered(PUSH_PROMISE, push, &section(&GET))),
        1 => (kind, prop::collection::vec(any::<u8>(), 0..6))
            .prop_map(|(kind, payload)| frame(kind, &payload)),
        1 => prop::collection::vec(any::<u8>(), 0..6),
    ]
}

proptest! {
    /// No peer makes a core panic or leave its bounds, and nothing is told twice.
    #[test]
    fn h3_core_survives_any_peer(
        as_server: bool,
        steps in prop::collection::vec((0u64..12, frames(), 0u8..12), 0..60),
    ) {
        let mut raw = if as_server { server() } else { client() };
        for (place, bytes, action) in steps {
            let stream = match place {
                0..6 => place * 4,
                6 => raw.uni(0),
                _ => raw.uni(place - 4),
            };
            let lead = [(place % 4) as u8, action];
            let bytes = if place > 6 { [&lead[..], &bytes].concat() } else { bytes };
            let result = match action {
                0 => raw.end.core.handle_reset(raw.now, stream, Code::REQUEST_CANCELLED),
                1 => raw.end.core.handle_stopped(raw.now, stream, Code::REQUEST_CANCELLED),
                2 => raw.part(stream, &bytes, true),
                _ => raw.send(stream, &bytes),
            };
            for event in raw.events() {
                match event {
                    Event::Request { id, .. } => {
                        raw.end.core.respond(id, &response(200, &[]), false);
                        let _ = raw.end.core.push(id, &get("/p"), Priority(1));
                        raw.end.core.send_data(id, bytes_of(id), id % 4 == 1);
                    }
                    Event::Data { id, data, .. } => raw.end.core.release(id, data.len()),
                    Event::Push { id, .. } if id % 4 == 0 => raw.end.core.reset(id, Reason::Cancel),
                    _ => {}
                }
            }
            raw.end.drive();
            if result.is_err() {
                return Ok(());
            }
            prop_assert!(raw.end.core.active() <= 600);
        }
    }
}

fn bytes_of(id: u32) -> bytes::Bytes {
    bytes(id as usize * 10)
}

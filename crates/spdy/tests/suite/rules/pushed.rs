//! The bound on the heads of pushes that wait for their reader, and the cost of pushes without
//! content.

use tandem_http::pushed::{MAX_WAITING, weight_of_fields, weight_of_promise};
use tandem_http::{Event, Reason, SessionError};
use tandem_spdy::status;

use super::{BOTH, client_with_response};
use crate::support::{OK, Peer, Seen, data};

const FIN: u8 = 1;

/// Pushes with this field. The response ends with the frame if `fin`.
fn push(peer: &mut Peer, id: u32, field: &str, fin: bool) -> Result<(), SessionError> {
    let path = format!("/{id}");
    let mut frame = peer.script.push(
        id,
        1,
        &[
            (":scheme", "http"),
            (":host", "example.org"),
            (":path", &path),
            OK[0],
            OK[1],
            ("x", field),
        ],
    );
    if fin {
        frame[4] |= FIN;
    }
    peer.input(&frame)
}

fn weight(events: &[Event]) -> usize {
    let weights = events.iter().map(|event| match event {
        Event::Push { request, .. } => weight_of_promise(request),
        Event::Response { head, .. } => weight_of_fields(&head.fields),
        _ => 0,
    });
    weights.sum()
}

#[test]
fn pushes_that_wait_are_bounded() {
    let large = "y".repeat(50_000);
    for (version, fin) in BOTH.into_iter().flat_map(|it| [(it, true), (it, false)]) {
        let mut peer = client_with_response(version);
        for number in 1..=200 {
            push(&mut peer, number * 2, &large, fin).expect("a session that goes on");
        }
        let refused = peer.output();
        let is_refusal = |seen: &Seen| {
            matches!(
                seen,
                Seen::Rst {
                    status: status::REFUSED_STREAM,
                    ..
                }
            )
        };
        assert!(
            refused.len() > 60 && refused.iter().all(is_refusal),
            "{refused:?}"
        );
        let waiting = weight(&peer.events());
        assert!(waiting < MAX_WAITING + (64 << 10), "{waiting}");
        peer.told(&data(1, true, b"page"));
        assert!(matches!(
            &peer.events()[..],
            [Event::Data {
                id: 1,
                end: true,
                ..
            }]
        ));
    }
}

#[test]
fn heads_in_parts_are_bounded() {
    let large = "y".repeat(50_000);
    for version in BOTH {
        let mut peer = client_with_response(version);
        for number in 1..=200 {
            push(&mut peer, number * 2, "small", false).expect("a session that goes on");
        }
        let mut ended = 0;
        for number in 1..=200 {
            let more = peer.script.headers(number * 2, false, &[("more", &large)]);
            peer.input(&more).expect("a session that goes on");
            let seen = peer.output();
            ended += seen.len();
            let is_cancelled = |seen: &Seen| {
                matches!(
                    seen,
                    Seen::Rst {
                        status: status::CANCEL,
                        ..
                    }
                )
            };
            assert!(seen.iter().all(is_cancelled), "{seen:?}");
        }
        assert!(ended > 60, "{ended}");
    }
}

#[test]
fn gathered_heads_return_their_room() {
    let large = "y".repeat(50_000);
    for version in BOTH {
        let mut peer = client_with_response(version);
        for round in 0..3 {
            for number in 1..=40 {
                let id = round * 80 + number * 2;
                push(&mut peer, id, &large, false).expect("a push");
                let end = match number % 3 {
                    0 => crate::support::rst(id, status::CANCEL),
                    1 => data(id, true, b"x"),
                    _ => peer.script.headers(id, true, &[("last", "x")]),
                };
                assert_eq!(peer.told(&end), [], "{id}");
            }
            peer.events();
        }
    }
}

#[test]
fn pushes_without_content_are_charged() {
    for version in BOTH {
        let mut peer = client_with_response(version);
        let ended = (1..=5000).find(|number| {
            let sent = push(&mut peer, number * 2, "etag", true);
            peer.events();
            assert!(sent.is_err() || peer.output().is_empty(), "{number}");
            sent.is_err_and(|error| error.reason == Reason::EnhanceYourCalm)
        });
        assert!(ended.is_some_and(|number| number > 1315), "{ended:?}");
    }
}

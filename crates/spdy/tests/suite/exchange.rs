//! Two of our sessions with each other: requests, bodies, pushes, priorities, credit, and
//! leave-taking.

use crate::support::{Pair, Seen, Wire, body, config, get, response};
use bytes::{Buf as _, Bytes};
use proptest::prelude::*;
use tandem_http::flood::LEAST_WINDOW;
use tandem_http::mux::OpenError;
use tandem_http::{
    ByteMux as _, Event, Fields, Method, Mux as _, Priority, Reason, RequestHead, Role, Scheme,
    SendBuf,
};
use tandem_spdy::Version;

const BOTH: [Version; 2] = [Version::V3, Version::V31];

fn request_of(events: &[Event]) -> (u32, &RequestHead) {
    events
        .iter()
        .find_map(|event| match event {
            Event::Request { id, head, .. } => Some((*id, head)),
            _ => None,
        })
        .expect("a request")
}

/// The body of a stream among these events, and whether it ended.
fn body_of(events: &[Event], stream: u32) -> (Vec<u8>, bool) {
    let mut whole = Vec::new();
    let mut ended = false;
    for event in events {
        if let Event::Data { id, data, end } = event
            && *id == stream
        {
            whole.extend_from_slice(data);
            ended |= end;
        }
    }
    (whole, ended)
}

#[test]
fn a_get_and_its_answer() {
    for version in BOTH {
        let mut pair = Pair::new(version);
        let mut head = get("/index.html?q=1");
        head.fields.push("accept", "*/*");
        let id = pair.client.open(&head, true, Priority(2)).expect("room");
        pair.settle();
        let events = pair.take_server();
        assert!(
            matches!(
                &events[..],
                [Event::Request {
                    end: true,
                    priority: Priority(2),
                    ..
                }]
            ),
            "{events:?}"
        );
        assert!(request_of(&events).1 == &head);
        pair.server.respond(
            id,
            &response(
                200,
                &[
                    ("content-type", "text/plain"),
                    ("set-cookie", "a=1"),
                    ("set-cookie", "b=2"),
                ],
            ),
            false,
        );
        pair.server.send_data(id, body(100), true);
        pair.settle();
        let events = pair.take_client();
        let [
            Event::Response {
                head, end: false, ..
            },
            Event::Data { end: true, .. },
        ] = &events[..]
        else {
            panic!("{events:?}")
        };
        assert_eq!(head.status, 200);
        assert_eq!(head.fields.get_all("set-cookie").count(), 2);
        pair.client.release(id, 100);
        assert_eq!((pair.client.active(), pair.server.active()), (0, 0));
    }
}

#[test]
fn first_flight_needs_no_answer() {
    let mut pair = Pair::new(Version::V31);
    pair.client
        .open(&get("/"), true, Priority::default())
        .expect("room");
    let mut out = SendBuf::new();
    pair.client.poll_output(&mut out, usize::MAX);
    let seen = Wire::default().read(&out.copy_to_bytes(out.remaining()));
    assert!(
        matches!(
            &seen[..],
            [
                Seen::Settings(_),
                Seen::WindowUpdate { id: 0, .. },
                Seen::SynStream { id: 1, .. }
            ]
        ),
        "{seen:?}"
    );
}

/// Pumps bodies of both ends until no more bytes move, and releases received data.
fn pump(
    pair: &mut Pair,
    mut up: Vec<(u32, Bytes)>,
    mut down: Vec<(u32, Bytes)>,
) -> (Vec<Event>, Vec<Event>) {
    let (mut at_client, mut at_server) = (Vec::new(), Vec::new());
    loop {
        feed(&mut pair.client, &mut up);
        feed(&mut pair.server, &mut down);
        let moved = pair.step(16 << 10);
        for event in pair.take_client() {
            if let Event::Data { id, data, .. } = &event {
                pair.client.release(*id, data.len());
            }
            at_client.push(event);
        }
        for event in pair.take_server() {
            if let Event::Data { id, data, .. } = &event {
                pair.server.release(*id, data.len());
            }
            at_server.push(event);
        }
        if !moved {
            return (at_client, at_server);
        }
    }
}

fn feed(session: &mut tandem_spdy::Connection, bodies: &mut Vec<(u32, Bytes)>) {
    bodies.retain_mut(|(id, left)| {
        let part = left.split_to(left.len().min(session.send_room(*id)));
        let end = left.is_empty();
        if !part.is_empty() || end {
            session.send_data(*id, part, end);
        }
        !end
    });
}

#[test]
fn large_bodies_both_ways() {
    for version in BOTH {
        let mut pair = Pair::new(version);
        let mut head = get("/upload");
        head.method = Method::Post;
        let id = pair
            .client
            .open(&head, false, Priority::default())
            .expect("room");
        pair.settle();
        pair.take_server();
        pair.server.respond(id, &response(200, &[]), false);
        let (up, down) = (body(20 << 20), body(21 << 20));
        let (at_client, at_server) =
            pump(&mut pair, vec![(id, up.clone())], vec![(id, down.clone())]);
        assert!(body_of(&at_server, id) == (up.to_vec(), true));
        assert!(body_of(&at_client, id) == (down.to_vec(), true));
        assert_eq!((pair.client.active(), pair.server.active()), (0, 0));
    }
}

#[test]
fn trailers_follow_the_data() {
    for version in BOTH {
        let mut pair = Pair::new(version);
        let id = pair
            .client
            .open(&get("/"), false, Priority::default())
            .expect("room");
        let fields: Fields = [("x-sum", "1"), ("x-sum", "2")].into_iter().collect();
        pair.client.send_data(id, body(10), false);
        pair.client.send_trailers(id, &fields);
        pair.settle();
        let events = pair.take_server();
        let [
            Event::Request { end: false, .. },
            Event::Data { end: false, .. },
            Event::Trailers { fields: read, .. },
        ] = &events[..]
        else {
            panic!("{events:?}")
        };
        assert!(*read == fields);
        pair.server.respond(id, &response(200, &[]), false);
        pair.server.send_trailers(id, &fields);
        pair.settle();
        assert!(matches!(
            &pair.take_client()[..],
            [Event::Response { .. }, Event::Trailers { .. }]
        ));
        assert_eq!(pair.client.active(), 0);
    }
}

#[test]
fn connect_is_a_tunnel() {
    let mut pair = Pair::new(Version::V31);
    let mut head = RequestHead::get(Scheme::Https, "example.org:443", "");
    head.method = Method::Connect;
    let id = pair
        .client
        .open(&head, false, Priority::default())
        .expect("room");
    pair.settle();
    let events = pair.take_server();
    assert!(request_of(&events).1 == &head);
    pair.server.respond(id, &response(200, &[]), false);
    pair.server
        .send_data(id, Bytes::from_static(b"server speaks"), false);
    pair.client
        .send_data(id, Bytes::from_static(b"client speaks"), true);
    pair.settle();
    assert_eq!(
        body_of(&pair.take_server(), id),
        (b"client speaks".to_vec(), true)
    );
    assert_eq!(
        body_of(&pair.take_client(), id),
        (b"server speaks".to_vec(), false)
    );
    assert_eq!(pair.client.peer_extended_connect(), Some(false));
    head.protocol = Some("websocket".to_owned());
    assert_eq!(
        pair.client.open(&head, false, Priority::default()),
        Err(OpenError::BadHead)
    );
}

#[test]
fn an_urgent_answer_overtakes_a_large_one() {
    let mut pair = Pair::new(Version::V31);
    let large = pair
        .client
        .open(&get("/large"), true, Priority(7))
        .expect("room");
    let small = pair
        .client
        .open(&get("/small"), true, Priority(0))
        .expect("room");
    pair.settle();
    pair.server.respond(large, &response(200, &[]), false);
    pair.server.send_data(large, body(1 << 20), true);
    let mut out = SendBuf::new();
    pair.server.poll_output(&mut out, 16 << 10);
    let mut wire = Wire::default();
    wire.read(&out.copy_to_bytes(out.remaining()));
    pair.server.respond(small, &response(200, &[]), false);
    pair.server.send_data(small, body(5000), true);
    pair.server.poll_output(&mut out, 16 << 10);
    let seen = wire.read(&out.copy_to_bytes(out.remaining()));
    assert!(
        matches!(&seen[..], [Seen::SynReply { .. }, Seen::Data { id, fin: true, .. }, ..] if *id == small),
        "{seen:?}"
    );
}

#[test]
fn equals_share() {
    let mut pair = Pair::new(Version::V31);
    let ids: Vec<_> = (0..4)
        .map(|_| {
            pair.client
                .open(&get("/"), true, Priority(3))
                .expect("room")
        })
        .collect();
    pair.settle();
    for &id in &ids {
        pair.server.respond(id, &response(200, &[]), false);
        pair.server.send_data(id, body(1 << 20), true);
    }
    let mut out = SendBuf::new();
    pair.server.poll_output(&mut out, 512 << 10);
    let mut sent = [0; 4];
    for seen in Wire::default().read(&out.copy_to_bytes(out.remaining())) {
        if let Seen::Data { id, bytes, .. } = seen {
            sent[ids.iter().position(|&other| other == id).expect("ours")] += bytes.len();
        }
    }
    let (least, most) = (
        sent.iter().min().expect("four"),
        sent.iter().max().expect("four"),
    );
    assert!(most - least <= 24 << 10, "{sent:?}");
}

#[test]
fn a_push_comes_before_its_parents_answer() {
    for version in BOTH {
        let mut pair = Pair::new(version);
        let mut head = get("/");
        head.fields.push("accept-language", "eo");
        let parent = pair
            .client
            .open(&head, true, Priority::default())
            .expect("room");
        pair.settle();
        let push = pair
            .server
            .push(parent, &get("/style.css"), Priority(5))
            .expect("taken");
        assert_eq!(push, 2);
        pair.server.respond(parent, &response(200, &[]), false);
        pair.server.send_data(parent, body(100), true);
        pair.server
            .respond(push, &response(200, &[("content-type", "text/css")]), false);
        pair.server.send_data(push, body(50), true);
        pair.settle();
        let events = pair.take_client();
        let Event::Push {
            parent: of,
            id,
            request,
        } = &events[0]
        else {
            panic!("{events:?}")
        };
        assert_eq!((*of, *id, &*request.path), (parent, push, "/style.css"));
        assert_eq!(request.fields.get("accept-language"), Some(&b"eo"[..]));
        let pushed = events.iter().find_map(|event| match event {
            Event::Response {
                id,
                head,
                end: false,
            } if *id == push => Some(head),
            _ => None,
        });
        assert_eq!(pushed.map(|head| head.status), Some(200));
        assert_eq!(
            pushed.and_then(|head| head.fields.get("content-type")),
            Some(&b"text/css"[..])
        );
        assert_eq!(body_of(&events, push), (body(50).to_vec(), true));
        assert_eq!((pair.client.active(), pair.server.active()), (0, 0));
    }
}

#[test]
fn an_empty_push_ends_with_its_head() {
    let mut pair = Pair::new(Version::V31);
    let parent = pair
        .client
        .open(&get("/"), true, Priority::default())
        .expect("room");
    pair.settle();
    let push = pair
        .server
        .push(parent, &get("/empty"), Priority(5))
        .expect("taken");
    pair.server
        .respond(push, &response(200, &[("x-a", "b")]), true);
    pair.settle();
    let events = pair.take_client();
    assert!(
        matches!(
            &events[..],
            [Event::Push { .. }, Event::Response { end: true, .. }]
        ),
        "{events:?}"
    );
}

#[test]
fn a_push_of_another_status_is_withdrawn() {
    let mut pair = Pair::new(Version::V31);
    let parent = pair
        .client
        .open(&get("/"), true, Priority::default())
        .expect("room");
    pair.settle();
    let push = pair
        .server
        .push(parent, &get("/gone"), Priority(5))
        .expect("taken");
    pair.server.respond(push, &response(404, &[]), true);
    pair.settle();
    let events = pair.take_client();
    assert!(
        matches!(&events[..], [Event::Push { .. }, Event::Reset { id, reason: Reason::Cancel }] if *id == push),
        "{events:?}"
    );
    assert!(matches!(&pair.take_server()[1..], [Event::Reset { .. }]));
}

#[test]
fn pushes_that_may_not_be() {
    let mut pair = Pair::new(Version::V31);
    let parent = pair
        .client
        .open(&get("/"), true, Priority::default())
        .expect("room");
    pair.settle();
    let mut post = get("/");
    post.method = Method::Post;
    assert_eq!(
        pair.server.push(parent, &post, Priority(5)),
        Err(OpenError::BadHead)
    );
    assert_eq!(
        pair.server.push(99, &get("/"), Priority(5)),
        Err(OpenError::NoPush)
    );
    assert_eq!(
        pair.client.push(parent, &get("/"), Priority(5)),
        Err(OpenError::NoPush)
    );
    let mut foreign = get("/");
    foreign.authority = "elsewhere.example".to_owned();
    pair.server
        .push(parent, &foreign, Priority(5))
        .expect("the server may try");
    pair.settle();
    assert!(pair.take_client().is_empty());
    assert!(matches!(
        pair.take_server()[..],
        [
            Event::Request { .. },
            Event::Reset {
                reason: Reason::Refused,
                ..
            }
        ]
    ));
    pair.server.respond(parent, &response(200, &[]), true);
    assert_eq!(
        pair.server.push(parent, &get("/"), Priority(5)),
        Err(OpenError::NoPush)
    );
}

#[test]
fn a_trusted_gateway_pushes_from_anywhere() {
    let mut client = config(Role::Client, Version::V31);
    client.same_origin_push = false;
    let mut pair = Pair::with(client, config(Role::Server, Version::V31));
    let parent = pair
        .client
        .open(&get("/"), true, Priority::default())
        .expect("room");
    pair.settle();
    let mut foreign = get("/");
    foreign.authority = "elsewhere.example".to_owned();
    pair.server
        .push(parent, &foreign, Priority(5))
        .expect("taken");
    pair.settle();
    assert!(matches!(&pair.take_client()[..], [Event::Push { .. }]));
}

#[test]
fn a_client_that_takes_no_pushes_says_so() {
    let mut client = config(Role::Client, Version::V31);
    client.mux.push = false;
    let mut pair = Pair::with(client, config(Role::Server, Version::V31));
    let parent = pair
        .client
        .open(&get("/"), true, Priority::default())
        .expect("room");
    pair.settle();
    assert_eq!(
        pair.server.push(parent, &get("/a"), Priority(5)),
        Err(OpenError::NoPush)
    );
}

#[test]
fn cancelling_a_request_stops_its_pushes() {
    let mut pair = Pair::new(Version::V31);
    let parent = pair
        .client
        .open(&get("/"), true, Priority::default())
        .expect("room");
    pair.settle();
    let push = pair
        .server
        .push(parent, &get("/a"), Priority(5))
        .expect("taken");
    pair.server.respond(push, &response(200, &[]), false);
    pair.settle();
    pair.client.reset(parent, Reason::Cancel);
    pair.settle();
    assert_eq!((pair.client.active(), pair.server.active()), (0, 0));
    let resets = |events: Vec<Event>| {
        events
            .iter()
            .filter(|event| {
                matches!(
                    event,
                    Event::Reset {
                        reason: Reason::Cancel,
                        ..
                    }
                )
            })
            .count()
    };
    assert_eq!(resets(pair.take_server()), 2);
    assert_eq!(resets(pair.take_client()), 1);
}

#[test]
fn a_reset_reaches_the_other_end_once() {
    for version in BOTH {
        let mut pair = Pair::new(version);
        let id = pair
            .client
            .open(&get("/"), true, Priority::default())
            .expect("room");
        pair.settle();
        pair.server.respond(id, &response(200, &[]), false);
        pair.server.send_data(id, body(1 << 20), true);
        pair.step(64 << 10);
        pair.client.reset(id, Reason::Cancel);
        pair.client.reset(id, Reason::Cancel);
        let mut out = SendBuf::new();
        pair.client.poll_output(&mut out, usize::MAX);
        let bytes = out.copy_to_bytes(out.remaining());
        let resets = Wire::default().read_frames_after_greeting(&bytes);
        assert_eq!(resets, 1);
        pair.server.handle_input(pair.now, &bytes).expect("legal");
        pair.settle();
        assert_eq!((pair.client.active(), pair.server.active()), (0, 0));
    }
}

#[test]
fn reset_after_data_lets_the_beginning_arrive() {
    for version in BOTH {
        for length in [0, 10, 300_000] {
            let mut pair = Pair::new(version);
            let id = pair
                .client
                .open(&get("/"), true, Priority::default())
                .expect("room");
            pair.settle();
            pair.server.respond(id, &response(200, &[]), false);
            pair.server.send_data(id, body(length), false);
            pair.server.reset_after_data(id, Reason::Internal);
            pair.server.send_data(id, body(5), true);
            let mut events = Vec::new();
            loop {
                pair.settle();
                let came = pair.take_client();
                if came.is_empty() {
                    break;
                }
                for event in &came {
                    if let Event::Data { id, data, .. } = event {
                        pair.client.release(*id, data.len());
                    }
                }
                events.extend(came);
            }
            assert_eq!(body_of(&events, id), (body(length).to_vec(), false));
            assert!(matches!(events.last(), Some(Event::Reset { .. })));
            assert_eq!((pair.client.active(), pair.server.active()), (0, 0));
        }
    }
}

trait Resets {
    fn read_frames_after_greeting(&mut self, bytes: &[u8]) -> usize;
}

impl Resets for Wire {
    fn read_frames_after_greeting(&mut self, bytes: &[u8]) -> usize {
        self.read(bytes)
            .iter()
            .filter(|seen| matches!(seen, Seen::Rst { .. }))
            .count()
    }
}

#[test]
fn pings_come_back() {
    let mut pair = Pair::new(Version::V31);
    pair.client.ping(77);
    pair.server.ping(78);
    pair.settle();
    assert!(matches!(
        pair.take_client()[..],
        [Event::Pong { payload: 77 }]
    ));
    assert!(matches!(
        pair.take_server()[..],
        [Event::Pong { payload: 78 }]
    ));
}

#[test]
fn goaway_lets_open_streams_end() {
    for version in BOTH {
        let mut pair = Pair::new(version);
        let first = pair
            .client
            .open(&get("/"), true, Priority::default())
            .expect("room");
        pair.settle();
        pair.server.go_away(Reason::NoError);
        let late = pair
            .client
            .open(&get("/late"), true, Priority::default())
            .expect("not yet told");
        pair.settle();
        let events = pair.take_client();
        assert!(
            matches!(&events[..], [
                Event::GoAway { last, reason: Reason::NoError },
                Event::Reset { id, reason: Reason::Refused },
            ] if *last == first && *id == late),
            "{events:?}"
        );
        assert!(!pair.client.is_open() && !pair.server.is_open());
        assert_eq!(
            pair.client.open(&get("/"), true, Priority::default()),
            Err(OpenError::Closing)
        );
        pair.server.respond(first, &response(200, &[]), false);
        pair.server.send_data(first, body(10), true);
        pair.settle();
        assert_eq!(
            body_of(&pair.take_client(), first),
            (body(10).to_vec(), true)
        );
        assert_eq!((pair.client.active(), pair.server.active()), (0, 0));
        assert_eq!(pair.take_server().len(), 1);
    }
}

#[test]
fn the_peers_stream_limit_is_kept() {
    let mut server = config(Role::Server, Version::V31);
    server.mux.max_streams = 2;
    let mut pair = Pair::with(config(Role::Client, Version::V31), server);
    pair.settle();
    let first = pair
        .client
        .open(&get("/"), true, Priority::default())
        .expect("room");
    pair.client
        .open(&get("/"), true, Priority::default())
        .expect("room");
    assert_eq!(
        pair.client.open(&get("/"), true, Priority::default()),
        Err(OpenError::Busy)
    );
    pair.settle();
    pair.server.respond(first, &response(204, &[]), true);
    pair.settle();
    assert!(
        pair.client
            .open(&get("/"), true, Priority::default())
            .is_ok()
    );
}

#[test]
fn streams_beyond_an_unknown_limit_are_refused() {
    let mut server = config(Role::Server, Version::V31);
    server.mux.max_streams = 2;
    let mut pair = Pair::with(config(Role::Client, Version::V31), server);
    let ids: Vec<_> = (0..3)
        .map(|_| {
            pair.client
                .open(&get("/"), true, Priority::default())
                .expect("not yet told")
        })
        .collect();
    pair.settle();
    let events = pair.take_client();
    assert!(
        matches!(&events[..], [Event::Reset { id, reason: Reason::Refused }] if *id == ids[2]),
        "{events:?}"
    );
}

#[test]
fn a_stopped_stream_does_not_stop_its_neighbour() {
    let mut pair = Pair::new(Version::V31);
    let stopped = pair
        .client
        .open(&get("/a"), true, Priority(3))
        .expect("room");
    let moving = pair
        .client
        .open(&get("/b"), true, Priority(3))
        .expect("room");
    pair.settle();
    for id in [stopped, moving] {
        pair.server.respond(id, &response(200, &[]), false);
    }
    // The first is never released: its own window runs out, the session's does not.
    let mut down = vec![(stopped, body(12 << 20)), (moving, body(30 << 20))];
    let mut received = [0; 2];
    loop {
        feed(&mut pair.server, &mut down);
        if !pair.step(64 << 10) {
            break;
        }
        for event in pair.take_client() {
            if let Event::Data { id, data, .. } = event {
                if id == moving {
                    pair.client.release(id, data.len());
                }
                received[usize::from(id == moving)] += data.len();
            }
        }
    }
    assert_eq!(received, [8 << 20, 30 << 20]);
}

#[test]
fn the_budget_bounds_what_is_held() {
    let mut client = config(Role::Client, Version::V31);
    client.mux.receive_budget = 4 << 20;
    client.mux.session_window = 2 << 20;
    let mut pair = Pair::with(client, config(Role::Server, Version::V31));
    let ids: Vec<_> = (0..10)
        .map(|_| {
            pair.client
                .open(&get("/"), true, Priority(3))
                .expect("room")
        })
        .collect();
    pair.settle();
    let mut down = Vec::new();
    for &id in &ids {
        pair.server.respond(id, &response(200, &[]), false);
        down.push((id, body(4 << 20)));
    }
    let mut held = Vec::new();
    loop {
        feed(&mut pair.server, &mut down);
        if !pair.step(64 << 10) {
            break;
        }
        held.extend(pair.take_client());
    }
    let total: usize = ids.iter().map(|&id| body_of(&held, id).0.len()).sum();
    assert!(total <= 6 << 20, "{total}");
    assert!(total > 4 << 20, "{total}");
    for event in &held {
        if let Event::Data { id, data, .. } = event {
            pair.client.release(*id, data.len());
        }
    }
    let (more, _) = pump(&mut pair, Vec::new(), down);
    held.extend(more);
    for id in ids {
        assert!(body_of(&held, id) == (body(4 << 20).to_vec(), true), "{id}");
    }
}

#[test]
fn ten_thousand_requests_keep_no_memory() {
    let mut pair = Pair::new(Version::V31);
    for round in 0..10_000 {
        let id = pair
            .client
            .open(&get(&format!("/{round}")), true, Priority::default())
            .expect("room");
        pair.settle();
        pair.server.respond(id, &response(200, &[]), true);
        pair.settle();
        pair.take_client();
        pair.take_server();
    }
    assert_eq!((pair.client.active(), pair.server.active()), (0, 0));
    // HTTP/1.1 would write much more.
    assert!(pair.bytes_up < 10_000 * 60, "{}", pair.bytes_up);
}

/// A request: its urgency, the bytes of its body and of its response, true if trailers end the
/// response, and the number of pushes.
type Plan = (u8, usize, usize, bool, usize);

/// Returns plans with bodies of fewer than `sent` and `answered` bytes.
fn plans(sent: usize, answered: usize) -> impl Strategy<Value = Vec<Plan>> {
    let plan = (0u8..8, 0..sent, 0..answered, any::<bool>(), 0usize..3);
    prop::collection::vec(plan, 1..12)
}

/// Runs the requests at once on a session with these stream windows of client and server. Input is
/// cut after `cut` bytes, and each write has at most `limit`. The pushes of a request have 0,
/// `pushed`, ... bytes. Checks that all of it arrives complete, and that no stream is left over.
fn run_plans(
    version: Version,
    (cut, limit): (usize, usize),
    windows: (u32, u32),
    requests: &[Plan],
    pushed_bytes: usize,
) -> Result<(), TestCaseError> {
    let (mut client, mut server) = (config(Role::Client, version), config(Role::Server, version));
    (client.mux.stream_window, server.mux.stream_window) = windows;
    let mut pair = Pair::with(client, server);
    pair.cut = cut;
    let mut expected = Vec::new();
    let mut up = Vec::new();
    for &(urgency, sent, answered, trailers, pushes) in requests {
        let id = pair
            .client
            .open(&get("/"), sent == 0, Priority(urgency))
            .expect("room");
        if sent > 0 {
            up.push((id, body(sent)));
        }
        expected.push((id, sent, answered, trailers, pushes));
    }
    let mut down = Vec::new();
    let (mut at_client, mut at_server) = (Vec::new(), Vec::new());
    let mut pushed = Vec::new();
    loop {
        feed(&mut pair.client, &mut up);
        feed(&mut pair.server, &mut down);
        let moved = pair.step(limit);
        for event in pair.take_server() {
            match &event {
                Event::Request { id, .. } => {
                    let (_, _, answered, trailers, pushes) = expected[(*id as usize - 1) / 2];
                    for number in 0..pushes {
                        let push = pair
                            .server
                            .push(*id, &get("/p"), Priority(7))
                            .expect("taken");
                        pushed.push((push, pushed_bytes * number));
                        pair.server
                            .respond(push, &response(200, &[("x", "y")]), false);
                        down.push((push, body(pushed_bytes * number)));
                    }
                    pair.server.respond(*id, &response(200, &[]), false);
                    if trailers {
                        pair.server.send_data(*id, body(answered), false);
                        pair.server
                            .send_trailers(*id, &[("t", "1")].into_iter().collect());
                    } else {
                        down.push((*id, body(answered)));
                    }
                }
                Event::Data { id, data, .. } => pair.server.release(*id, data.len()),
                _ => {}
            }
            at_server.push(event);
        }
        for event in pair.take_client() {
            if let Event::Data { id, data, .. } = &event {
                pair.client.release(*id, data.len());
            }
            at_client.push(event);
        }
        if !moved && up.is_empty() && down.is_empty() {
            break;
        }
    }
    for (id, sent, answered, trailers, _) in expected {
        prop_assert_eq!(body_of(&at_server, id), (body(sent).to_vec(), sent > 0));
        prop_assert_eq!(
            body_of(&at_client, id),
            (body(answered).to_vec(), !trailers)
        );
    }
    for (push, len) in pushed {
        prop_assert_eq!(body_of(&at_client, push).0.len(), len);
    }
    prop_assert_eq!((pair.client.active(), pair.server.active()), (0, 0));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn exchanges_arrive_complete(
        version in prop::sample::select(&BOTH[..]),
        cut_and_limit in (1usize..40_000, 1usize..40_000),
        windows in (LEAST_WINDOW..200_000, LEAST_WINDOW..100_000),
        requests in plans(60_000, 200_000),
    ) {
        run_plans(version, cut_and_limit, windows, &requests, 10_000)?;
    }

    /// The flood budget permits a smaller window while the reserve pays for its credit.
    #[test]
    fn short_exchanges_arrive_through_small_windows(
        version in prop::sample::select(&BOTH[..]),
        cut_and_limit in (1usize..40_000, 1usize..40_000),
        windows in (1..LEAST_WINDOW, 1..LEAST_WINDOW),
        requests in plans(100, 60),
    ) {
        run_plans(version, cut_and_limit, windows, &requests, 10)?;
    }
}

//! Exchanges between two HTTP/2 cores, whatever way their bytes are cut.

mod h2_support;

use bytes::Bytes;
use h2_support::{
    DATA, END_STREAM, GOAWAY, Pair, Raw, body, bytes, client_config, events, fields, get, output,
    parse, response, server_config, with_fields,
};
use proptest::prelude::*;
use tandem_http::flood::LEAST_WINDOW;
use tandem_http::mux::{OpenError, Unsent, Window};
use tandem_http::{Event, Method, Mux, Priority, Reason, RequestHead, Role};

const NORMAL: Priority = Priority(3);

fn request(events: &[Event]) -> (u32, &RequestHead, bool, Priority) {
    let found = events.iter().find_map(|e| match e {
        Event::Request {
            id,
            head,
            end,
            priority,
        } => Some((*id, head, *end, *priority)),
        _ => None,
    });
    found.expect("a request")
}

#[test]
fn get_and_answer() {
    let mut pair = Pair::new();
    let head = with_fields(get("/x?y"), &[("accept", "*/*"), ("cookie", "a=b; c=d")]);
    let id = pair.client.open(&head, true, NORMAL).expect("a stream");
    let (_, server) = pair.run();
    let (seen, seen_head, end, priority) = request(&server);
    assert_eq!((seen, seen_head, end, priority), (id, &head, true, NORMAL));
    let answer = response(
        200,
        &[("content-type", "text/plain"), ("content-length", "5")],
    );
    pair.server.respond(id, &answer, false);
    pair.server
        .send_data(id, Bytes::from_static(b"hello"), true);
    assert_eq!(pair.server.active(), 1);
    let (client, _) = pair.run();
    assert!(matches!(&client[0], Event::Response { head, end: false, .. } if *head == answer));
    assert_eq!(body(&client, id), (b"hello".to_vec(), true));
    assert_eq!((pair.client.active(), pair.server.active()), (0, 0));
}

#[test]
fn everything_before_the_answer_leaves_at_once() {
    let mut pair = Pair::new();
    assert!(!pair.client.wants_output(), "nothing to say yet");
    let post = RequestHead {
        method: Method::Post,
        ..get("/")
    };
    let id = pair.client.open(&post, false, NORMAL).expect("a stream");
    pair.client.send_data(id, bytes(1000), true);
    assert!(pair.client.wants_output());
    let first = output(&mut pair.client, 16_384);
    let kinds: Vec<u8> = parse(&first).iter().map(|f| f.kind).collect();
    assert_eq!(
        kinds,
        [
            h2_support::SETTINGS,
            h2_support::WINDOW_UPDATE,
            h2_support::HEADERS,
            h2_support::DATA
        ]
    );
    assert_eq!(
        parse(&first)[3].flags,
        h2_support::END_STREAM,
        "the end rides on the data"
    );
}

#[test]
fn server_says_its_settings_at_once() {
    let mut pair = Pair::new();
    assert!(pair.server.wants_output());
    assert!(pair.step(Role::Server));
    assert!(!pair.server.wants_output());
    assert!(matches!(events(&mut pair.client)[..], [Event::Settings]));
    assert_eq!(pair.client.peer_extended_connect(), Some(true));
}

#[test]
fn bodies_and_trailers_both_ways() {
    let mut pair = Pair::new();
    let post = RequestHead {
        method: Method::Post,
        ..get("/upload")
    };
    let id = pair.client.open(&post, false, NORMAL).expect("a stream");
    pair.client.send_data(id, bytes(100_000), false);
    pair.client.send_trailers(id, &fields(&[("x-sum", "1")]));
    let (_, server) = pair.run();
    assert_eq!(body(&server, id).0, bytes(100_000));
    assert!(
        matches!(server.last(), Some(Event::Trailers { fields: f, .. }) if *f == fields(&[("x-sum", "1")]))
    );
    pair.server.respond(id, &response(200, &[]), false);
    pair.server.send_data(id, bytes(70_000), false);
    pair.server.send_trailers(id, &fields(&[("x-sum", "2")]));
    let (client, _) = pair.run();
    assert_eq!(body(&client, id), (bytes(70_000).to_vec(), false));
    assert!(
        matches!(client.last(), Some(Event::Trailers { fields: f, .. }) if *f == fields(&[("x-sum", "2")]))
    );
    assert_eq!((pair.client.active(), pair.server.active()), (0, 0));
}

#[test]
fn interim_responses() {
    let mut pair = Pair::new();
    let id = pair.client.open(&get("/"), true, NORMAL).expect("a stream");
    pair.run();
    pair.server
        .inform(id, &response(103, &[("link", "</a.css>; rel=preload")]));
    pair.server.inform(id, &response(100, &[]));
    pair.server.respond(id, &response(204, &[]), true);
    pair.server.inform(id, &response(103, &[]));
    let (client, _) = pair.run();
    let statuses: Vec<(u16, bool)> = client
        .iter()
        .filter_map(|e| match e {
            Event::Informational { head, .. } => Some((head.status, false)),
            Event::Response { head, end, .. } => Some((head.status, *end)),
            _ => None,
        })
        .collect();
    assert_eq!(statuses, [(103, false), (100, false), (204, true)]);
}

#[test]
fn a_late_end_is_an_empty_frame() {
    let mut pair = Pair::new();
    let id = pair.client.open(&get("/"), true, NORMAL).expect("a stream");
    pair.run();
    pair.server.respond(id, &response(200, &[]), false);
    pair.server.send_data(id, Bytes::from_static(b"x"), false);
    let (client, _) = pair.run();
    assert_eq!(body(&client, id), (b"x".to_vec(), false));
    pair.server.send_data(id, Bytes::new(), true);
    assert!(pair.server.wants_output());
    let (client, _) = pair.run();
    assert_eq!(body(&client, id), (Vec::new(), true));
}

#[test]
fn heads_of_many_frames() {
    let mut pair = Pair::new();
    let long = "v".repeat(50_000);
    let head = with_fields(get("/"), &[("x-long", &long), ("x-after", "1")]);
    let id = pair.client.open(&head, true, NORMAL).expect("a stream");
    pair.cuts = vec![1000, 7, 1];
    let (_, server) = pair.run();
    assert_eq!(request(&server).1, &head);
    pair.server
        .respond(id, &response(200, &[("x-long", &long)]), true);
    let (client, _) = pair.run();
    assert!(
        matches!(&client[..], [Event::Response { head, .. }] if head.fields.get("x-long") == Some(long.as_bytes()))
    );
}

#[test]
fn connect_and_extended_connect() {
    let mut pair = Pair::new();
    pair.run();
    let tunnel = RequestHead {
        method: Method::Connect,
        path: String::new(),
        ..get("")
    };
    let id = pair.client.open(&tunnel, false, NORMAL).expect("a stream");
    let socket = RequestHead {
        method: Method::Connect,
        protocol: Some("websocket".into()),
        ..get("/chat")
    };
    let other = pair.client.open(&socket, false, NORMAL).expect("a stream");
    let (_, server) = pair.run();
    assert_eq!(request(&server).1.path, "");
    assert!(
        server
            .iter()
            .any(|e| matches!(e, Event::Request { head, .. } if *head == socket))
    );
    for id in [id, other] {
        pair.server.respond(id, &response(200, &[]), false);
        pair.server
            .send_data(id, Bytes::from_static(b"down"), false);
        pair.client.send_data(id, Bytes::from_static(b"up"), false);
    }
    let (client, server) = pair.run();
    for id in [id, other] {
        assert_eq!(
            (body(&client, id).0, body(&server, id).0),
            (b"down".to_vec(), b"up".to_vec())
        );
    }
}

#[test]
fn pushes() {
    let mut config = client_config();
    config.push = true;
    let mut pair = Pair::with(config, server_config());
    let id = pair
        .client
        .open(&get("/page"), true, NORMAL)
        .expect("a stream");
    pair.run();
    pair.server.respond(id, &response(200, &[]), false);
    let pushed = pair
        .server
        .push(id, &get("/style.css"), Priority(1))
        .expect("a push");
    pair.server.send_data(id, Bytes::from_static(b"page"), true);
    pair.server.respond(
        pushed,
        &response(200, &[("content-type", "text/css")]),
        false,
    );
    pair.server
        .send_data(pushed, Bytes::from_static(b"style"), true);
    let (client, _) = pair.run();
    let place = |what: &dyn Fn(&Event) -> bool| client.iter().position(what).expect("an event");
    let promised = place(
        &|e| matches!(e, Event::Push { parent, id: p, request } if *parent == id && *p == pushed && *request == get("/style.css")),
    );
    assert!(
        promised < place(&|e| matches!(e, Event::Data { id: d, .. } if *d == id)),
        "promise before the data"
    );
    assert_eq!(body(&client, pushed), (b"style".to_vec(), true));
    assert_eq!((pair.client.active(), pair.server.active()), (0, 0));
    assert_eq!(
        pair.server.push(id, &get("/late"), NORMAL),
        Err(OpenError::NoPush),
        "the parent is gone"
    );
}

#[test]
fn a_push_can_be_refused() {
    let mut config = client_config();
    config.push = true;
    let mut pair = Pair::with(config, server_config());
    let id = pair
        .client
        .open(&get("/page"), true, NORMAL)
        .expect("a stream");
    pair.run();
    let pushed = pair
        .server
        .push(id, &get("/style.css"), NORMAL)
        .expect("a push");
    pair.run();
    pair.client.reset(pushed, Reason::Cancel);
    let (_, server) = pair.run();
    assert!(matches!(server[..], [Event::Reset { id, reason: Reason::Cancel }] if id == pushed));
    pair.server.respond(pushed, &response(200, &[]), false);
    let (client, _) = pair.run();
    assert!(client.is_empty());
}

#[test]
fn no_push_where_none_is_taken() {
    let mut pair = Pair::new();
    let id = pair
        .client
        .open(&get("/page"), true, NORMAL)
        .expect("a stream");
    pair.run();
    assert_eq!(
        pair.server.push(id, &get("/style.css"), NORMAL),
        Err(OpenError::NoPush)
    );
}

#[test]
fn resets_reach_the_other_side_once() {
    let mut pair = Pair::new();
    let id = pair.client.open(&get("/"), true, NORMAL).expect("a stream");
    pair.run();
    pair.server.respond(id, &response(200, &[]), false);
    pair.server.send_data(id, bytes(100_000), false);
    pair.step(Role::Server);
    pair.client.reset(id, Reason::Cancel);
    pair.client.reset(id, Reason::Cancel);
    let (client, server) = pair.run();
    assert!(
        client
            .iter()
            .all(|e| matches!(e, Event::Response { .. } | Event::Data { .. })),
        "only what had come"
    );
    assert!(matches!(server[..], [Event::Reset { id: r, reason: Reason::Cancel }] if r == id));
    assert_eq!(
        (
            pair.client.active(),
            pair.server.active(),
            pair.server.send_room(id)
        ),
        (0, 0, 0)
    );
    let next = pair
        .client
        .open(&get("/next"), true, NORMAL)
        .expect("the session goes on");
    let (_, server) = pair.run();
    assert_eq!(request(&server).0, next);
}

#[test]
fn busy_until_a_stream_closes() {
    let mut config = server_config();
    config.max_streams = 2;
    let mut pair = Pair::with(client_config(), config);
    pair.run();
    let first = pair
        .client
        .open(&get("/1"), true, NORMAL)
        .expect("a stream");
    pair.client
        .open(&get("/2"), true, NORMAL)
        .expect("a stream");
    assert_eq!(
        pair.client.open(&get("/3"), true, NORMAL),
        Err(OpenError::Busy)
    );
    pair.run();
    pair.server.respond(first, &response(204, &[]), true);
    pair.run();
    assert!(pair.client.open(&get("/3"), true, NORMAL).is_ok());
}

#[test]
fn streams_beyond_an_unknown_limit_are_refused() {
    let mut config = server_config();
    config.max_streams = 1;
    let mut pair = Pair::with(client_config(), config);
    pair.client
        .open(&get("/1"), true, NORMAL)
        .expect("a stream");
    let second = pair
        .client
        .open(&get("/2"), true, NORMAL)
        .expect("the limit is not known yet");
    let (client, _) = pair.run();
    assert!(
        client
            .iter()
            .any(|e| matches!(e, Event::Reset { id, reason: Reason::Refused } if *id == second))
    );
}

#[test]
fn bad_heads_are_not_sent() {
    let mut pair = Pair::new();
    for head in [
        get("no-slash"),
        get("/a b"),
        RequestHead {
            authority: String::new(),
            ..get("/")
        },
    ] {
        assert_eq!(
            pair.client.open(&head, true, NORMAL),
            Err(OpenError::BadHead)
        );
    }
    let mut config = server_config();
    config.max_header_list = 500;
    let mut pair = Pair::with(client_config(), config);
    pair.run();
    let large = with_fields(get("/"), &[("x", &"v".repeat(400))]);
    assert_eq!(
        pair.client.open(&large, true, NORMAL),
        Err(OpenError::BadHead)
    );
}

#[test]
fn a_large_request_is_answered_431() {
    let mut config = server_config();
    config.max_header_list = 500;
    let mut pair = Pair::with(client_config(), config);
    let large = with_fields(
        get("/"),
        &[("x", &"v".repeat(1400)), ("y", "kept in the table")],
    );
    let id = pair
        .client
        .open(&large, true, NORMAL)
        .expect("the limit is not known yet");
    let (client, server) = pair.run();
    assert!(matches!(server[..], [Event::Settings]), "nobody is told");
    assert!(
        client
            .iter()
            .any(|e| matches!(e, Event::Response { id: i, head, end: true } if *i == id && head.status == 431))
    );
    let head = with_fields(get("/"), &[("y", "kept in the table")]);
    pair.client.open(&head, true, NORMAL).expect("a stream");
    let (_, server) = pair.run();
    assert_eq!(request(&server).1, &head, "compression is still in step");
}

#[test]
fn goodbye_of_a_server() {
    let mut pair = Pair::new();
    let kept = pair
        .client
        .open(&get("/kept"), true, NORMAL)
        .expect("a stream");
    pair.run();
    pair.server.go_away(Reason::NoError);
    pair.server.go_away(Reason::NoError);
    let late = pair
        .client
        .open(&get("/late"), true, NORMAL)
        .expect("not known yet");
    pair.step(Role::Server);
    let seen = events(&mut pair.client);
    assert!(
        matches!(seen[..], [Event::GoAway { last, reason: Reason::NoError }, Event::Reset { id, reason: Reason::Refused }]
            if last == kept && id == late)
    );
    assert_eq!(
        pair.client.open(&get("/"), true, NORMAL),
        Err(OpenError::Closing)
    );
    assert!(!pair.client.is_open() && !pair.server.is_open());
    let (_, server) = pair.run();
    assert!(server.is_empty(), "the late one is not shown");
    pair.server.respond(kept, &response(200, &[]), false);
    pair.server.send_data(kept, bytes(50_000), true);
    let (client, _) = pair.run();
    assert_eq!(body(&client, kept), (bytes(50_000).to_vec(), true));
    assert_eq!((pair.client.active(), pair.server.active()), (0, 0));
}

#[test]
fn goodbye_of_a_client_lets_its_requests_finish() {
    let mut pair = Pair::new();
    let id = pair.client.open(&get("/"), true, NORMAL).expect("a stream");
    pair.client.go_away(Reason::NoError);
    let (_, server) = pair.run();
    assert!(
        server
            .iter()
            .any(|e| matches!(e, Event::GoAway { last: 0, .. }))
    );
    pair.server.respond(id, &response(204, &[]), true);
    let (client, _) = pair.run();
    assert!(matches!(client[..], [Event::Response { end: true, .. }]));
    assert_eq!(
        pair.client.open(&get("/"), true, NORMAL),
        Err(OpenError::Closing)
    );
}

#[test]
fn pings_come_back() {
    let mut pair = Pair::new();
    pair.client.ping(7);
    pair.server.ping(9);
    let (client, server) = pair.run();
    assert!(
        client
            .iter()
            .any(|e| matches!(e, Event::Pong { payload: 7 }))
    );
    assert!(
        server
            .iter()
            .any(|e| matches!(e, Event::Pong { payload: 9 }))
    );
}

#[test]
fn small_and_urgent_overtake() {
    let mut pair = Pair::new();
    let large = pair
        .client
        .open(&get("/large"), true, NORMAL)
        .expect("a stream");
    let small = pair
        .client
        .open(&get("/small"), true, NORMAL)
        .expect("a stream");
    let urgent = pair
        .client
        .open(&get("/urgent"), true, Priority(0))
        .expect("a stream");
    let (_, server) = pair.run();
    let priorities: Vec<u8> = server
        .iter()
        .filter_map(|e| {
            if let Event::Request { priority, .. } = e {
                Some(priority.0)
            } else {
                None
            }
        })
        .collect();
    assert_eq!(priorities, [3, 3, 0], "the field carries it");
    pair.server.respond(large, &response(200, &[]), false);
    pair.server.send_data(large, bytes(1 << 20), true);
    assert!(pair.step(Role::Server), "the large one has begun");
    for id in [small, urgent] {
        pair.server.respond(id, &response(200, &[]), false);
        pair.server.send_data(id, bytes(2000), true);
    }
    let order: Vec<u32> = parse(&output(&mut pair.server, 30_000))
        .iter()
        .filter(|f| f.kind == h2_support::DATA)
        .map(|f| f.id)
        .collect();
    assert_eq!(order, [urgent, small, large, large]);
}

#[test]
fn a_client_can_change_its_mind_about_priority() {
    let mut pair = Pair::new();
    let first = pair
        .client
        .open(&get("/1"), true, NORMAL)
        .expect("a stream");
    let second = pair
        .client
        .open(&get("/2"), true, NORMAL)
        .expect("a stream");
    pair.run();
    for id in [first, second] {
        pair.server.respond(id, &response(200, &[]), false);
        pair.server.send_data(id, bytes(30_000), true);
    }
    pair.client.set_priority(second, Priority(1));
    pair.client.set_priority(second, Priority(1));
    pair.step(Role::Client);
    let told = h2_support::events(&mut pair.server);
    assert!(
        matches!(told[..], [Event::Priority { id, priority: Priority(1) }] if id == second),
        "once: {told:?}"
    );
    let data = parse(&output(&mut pair.server, 500))
        .into_iter()
        .find(|f| f.kind == h2_support::DATA);
    assert_eq!(data.map(|f| f.id), Some(second));
}

#[test]
fn windows_hold_back_and_release_lets_on() {
    let mut config = client_config();
    config.stream_window = 20_000;
    let mut pair = Pair::with(config, server_config());
    let id = pair.client.open(&get("/"), true, NORMAL).expect("a stream");
    pair.run();
    pair.server.respond(id, &response(200, &[]), false);
    pair.server.send_data(id, bytes(50_000), true);
    assert_eq!(
        pair.server.unsent(id),
        Unsent {
            bytes: 50_000,
            shut: None
        }
    );
    let (client, _) = pair.run();
    assert_eq!(body(&client, id), (bytes(50_000)[..20_000].to_vec(), false));
    assert_eq!(
        pair.server.unsent(id),
        Unsent {
            bytes: 30_000,
            shut: Some(Window::Stream)
        }
    );
    pair.client.release(id, 2_000);
    assert!(
        !pair.client.wants_output(),
        "an eighth of a window at least, even when it is shut"
    );
    pair.client.release(id, 8_000);
    assert!(pair.client.wants_output());
    let (client, _) = pair.run();
    assert_eq!(body(&client, id).0.len(), 10_000);
    pair.client.release(id, 20_000);
    let (client, _) = pair.run();
    assert_eq!(
        (body(&client, id).0.len(), body(&client, id).1),
        (20_000, true)
    );
    assert_eq!(pair.server.unsent(id), Unsent::default());
}

#[test]
fn a_stopped_stream_does_not_stop_its_neighbours() {
    let mut config = client_config();
    (config.stream_window, config.session_window) = (100_000, 100_000);
    let mut pair = Pair::with(config, server_config());
    let stuck = pair
        .client
        .open(&get("/stuck"), true, NORMAL)
        .expect("a stream");
    let other = pair
        .client
        .open(&get("/other"), true, NORMAL)
        .expect("a stream");
    pair.run();
    for id in [stuck, other] {
        pair.server.respond(id, &response(200, &[]), false);
        pair.server.send_data(id, bytes(100_000), true);
    }
    let (client, _) = pair.run();
    assert_eq!(body(&client, stuck).0.len(), 100_000);
    assert_eq!(body(&client, other), (bytes(100_000).to_vec(), true));
}

#[test]
fn receive_budget_counts_bytes_of_finished_streams() {
    let mut config = client_config();
    (
        config.stream_window,
        config.session_window,
        config.receive_budget,
    ) = (100_000, 100_000, 150_000);
    let mut pair = Pair::with(config, server_config());
    let ids: Vec<u32> = (0..8)
        .map(|u| {
            pair.client
                .open(&get("/"), true, Priority(u))
                .expect("a stream")
        })
        .collect();
    pair.run();
    for &id in &ids {
        pair.server.respond(id, &response(200, &[]), false);
        pair.server.send_data(id, bytes(60_000), true);
    }
    let (client, _) = pair.run();
    let held: usize = ids.iter().map(|&id| body(&client, id).0.len()).sum();
    assert!((150_000..=250_000).contains(&held), "{held}");
    let finished: Vec<u32> = ids
        .iter()
        .copied()
        .filter(|&id| body(&client, id).1)
        .collect();
    assert!(!finished.is_empty());
    pair.client.release(finished[0], 60_000);
    pair.client.reset(finished[1], Reason::Cancel);
    let (more, _) = pair.run();
    assert!(!more.is_empty(), "released and forgotten bytes make room");
}

#[test]
fn send_room_and_writable() {
    let mut config = client_config();
    config.stream_window = 10_000;
    let mut pair = Pair::with(config, server_config());
    let id = pair.client.open(&get("/"), true, NORMAL).expect("a stream");
    pair.run();
    assert_eq!(pair.server.send_room(id), 65_536);
    pair.server.respond(id, &response(200, &[]), false);
    pair.server.send_data(id, bytes(70_000), false);
    assert_eq!(pair.server.send_room(id), 0);
    let mut sent = 0;
    loop {
        let (client, server) = pair.run();
        sent += body(&client, id).0.len();
        if sent < 70_000 - 32_768 {
            assert!(server.is_empty(), "still more than half full");
        } else {
            assert!(matches!(server[..], [Event::Writable { .. }]));
            break;
        }
        pair.client.release(id, 10_000);
    }
}

#[test]
fn credit_rides_along() {
    let mut config = client_config();
    config.stream_window = 40_000;
    let mut pair = Pair::with(config, server_config());
    let id = pair.client.open(&get("/"), true, NORMAL).expect("a stream");
    pair.run();
    pair.server.respond(id, &response(200, &[]), false);
    pair.server.send_data(id, bytes(30_000), false);
    pair.run();
    pair.client.release(id, 15_000);
    assert!(!pair.client.wants_output());
    pair.client.ping(1);
    let kinds: Vec<(u8, u32)> = parse(&output(&mut pair.client, 1000))
        .iter()
        .map(|f| (f.kind, f.id))
        .collect();
    assert_eq!(
        kinds,
        [(h2_support::PING, 0), (h2_support::WINDOW_UPDATE, id)]
    );
}

/// A step of a random exchange.
#[derive(Clone, Debug)]
struct Plan {
    path: String,
    up: Vec<usize>,
    down: Vec<usize>,
    trailers: bool,
    urgency: u8,
    reset: bool,
}

/// Returns fewer than `most` plans, with pieces of fewer than `size` bytes.
fn plans(size: usize, most: usize) -> impl Strategy<Value = Vec<Plan>> {
    let sizes = move || prop::collection::vec(0..size, 0..4);
    let plan = (
        "/[a-z]{0,30}",
        sizes(),
        sizes(),
        any::<bool>(),
        0u8..8,
        prop::bool::weighted(0.1),
    )
        .prop_map(|(path, up, down, trailers, urgency, reset)| Plan {
            path,
            up,
            down,
            trailers,
            urgency,
            reset,
        });
    prop::collection::vec(plan, 1..most)
}

/// Runs the plans at once on a session with these stream windows. Frames are cut at `cuts`, and
/// each write has at most `limit` bytes. Checks that every byte arrives, in order, and that no
/// stream is left over.
fn run_plans(
    plans: &[Plan],
    cuts: Vec<usize>,
    limit: usize,
    windows: (u32, u32),
) -> Result<(), TestCaseError> {
    let (mut client, mut server) = (client_config(), server_config());
    (client.stream_window, server.stream_window) = windows;
    (client.session_window, server.session_window) = (70_000, 80_000);
    let mut pair = Pair::with(client, server);
    (pair.cuts, pair.limit) = (cuts, limit);
    let mut up: Vec<Vec<u8>> = Vec::new();
    let mut down: Vec<Vec<u8>> = Vec::new();
    for plan in plans {
        let post = RequestHead {
            method: Method::Post,
            ..get(&plan.path)
        };
        let id = pair
            .client
            .open(&post, false, Priority(plan.urgency))
            .expect("a stream");
        prop_assert_eq!(id as usize, up.len() * 2 + 1);
        plan.up
            .iter()
            .for_each(|&size| pair.client.send_data(id, bytes(size), false));
        if plan.trailers {
            pair.client.send_trailers(id, &fields(&[("x-end", "1")]));
        } else {
            pair.client.send_data(id, Bytes::new(), true);
        }
        up.push(Vec::new());
        down.push(Vec::new());
    }
    let (mut up_ends, mut down_ends, mut resets) = (0, 0, 0);
    loop {
        let mut moved = pair.step(Role::Client);
        for event in events(&mut pair.server) {
            match event {
                Event::Request {
                    id, head, priority, ..
                } => {
                    let plan = &plans[id as usize / 2];
                    prop_assert_eq!(&head.path, &plan.path);
                    prop_assert_eq!(priority.0, plan.urgency);
                    pair.server.respond(id, &response(200, &[]), false);
                    plan.down
                        .iter()
                        .for_each(|&size| pair.server.send_data(id, bytes(size), false));
                    if plan.reset {
                        pair.server.reset(id, Reason::Internal);
                    } else if plan.trailers {
                        pair.server.send_trailers(id, &fields(&[("x-end", "1")]));
                    } else {
                        pair.server.send_data(id, Bytes::new(), true);
                    }
                }
                Event::Data { id, data, end } => {
                    pair.server.release(id, data.len());
                    up[id as usize / 2].extend_from_slice(&data);
                    up_ends += usize::from(end);
                }
                Event::Trailers { .. } => up_ends += 1,
                _ => {}
            }
        }
        moved |= pair.step(Role::Server);
        for event in events(&mut pair.client) {
            match event {
                Event::Data { id, data, end } => {
                    pair.client.release(id, data.len());
                    down[id as usize / 2].extend_from_slice(&data);
                    down_ends += usize::from(end);
                }
                Event::Trailers { .. } => down_ends += 1,
                Event::Reset { reason, .. } => {
                    prop_assert_eq!(reason, Reason::Internal);
                    resets += 1;
                }
                _ => {}
            }
        }
        if !moved {
            break;
        }
    }
    let good = plans.iter().filter(|p| !p.reset).count();
    prop_assert_eq!((down_ends, resets), (good, plans.len() - good));
    prop_assert!(up_ends >= good);
    for (at, plan) in plans.iter().enumerate().filter(|(_, p)| !p.reset) {
        prop_assert_eq!(
            &up[at],
            &plan.up.iter().flat_map(|&n| bytes(n)).collect::<Vec<u8>>()
        );
        prop_assert_eq!(
            &down[at],
            &plan
                .down
                .iter()
                .flat_map(|&n| bytes(n))
                .collect::<Vec<u8>>()
        );
    }
    prop_assert_eq!((pair.client.active(), pair.server.active()), (0, 0));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn exchanges_arrive_complete(
        plans in plans(40_000, 20),
        cuts in prop::collection::vec(1usize..5000, 1..20),
        limit in 1usize..40_000,
        windows in (LEAST_WINDOW..100_000, LEAST_WINDOW..100_000),
    ) {
        run_plans(&plans, cuts, limit, windows)?;
    }

    /// The flood budget permits a smaller window while the reserve pays for its credit.
    #[test]
    fn short_exchanges_arrive_through_small_windows(
        plans in plans(100, 3),
        cuts in prop::collection::vec(1usize..5000, 1..20),
        limit in 1usize..40_000,
        windows in (1..LEAST_WINDOW, 1..LEAST_WINDOW),
    ) {
        run_plans(&plans, cuts, limit, windows)?;
    }
}

#[test]
fn goodbye_spares_a_request_whose_answer_has_begun() {
    let mut raw = Raw::client(client_config());
    raw.core.open(&get("/"), true, NORMAL).expect("a stream");
    raw.frames();
    raw.headers(1, false, &[(":status", "200")])
        .expect("a head");
    raw.send(GOAWAY, 0, 0, &[0; 8]).expect("a goodbye");
    raw.send(DATA, END_STREAM, 1, b"ok").expect("the rest");
    let events = raw.events();
    assert_eq!(body(&events, 1), (b"ok".to_vec(), true));
    assert!(!events.iter().any(|e| matches!(e, Event::Reset { .. })));
}

#[test]
fn reset_after_data_lets_the_beginning_arrive() {
    for length in [0, 10, 300_000] {
        let mut pair = Pair::new();
        let id = pair.client.open(&get("/"), true, NORMAL).expect("a stream");
        pair.run();
        pair.server.respond(id, &response(200, &[]), false);
        pair.server.send_data(id, bytes(length), false);
        pair.server.reset_after_data(id, Reason::Internal);
        pair.server.send_data(id, bytes(5), true);
        let (client, _) = pair.run();
        assert_eq!(body(&client, id), (bytes(length).to_vec(), false));
        assert!(
            matches!(
                client.last(),
                Some(Event::Reset {
                    reason: Reason::Internal,
                    ..
                })
            ),
            "{length}: {client:?}"
        );
        assert_eq!((pair.client.active(), pair.server.active()), (0, 0));
    }
}

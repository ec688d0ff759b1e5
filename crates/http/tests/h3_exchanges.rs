//! Two HTTP/3 cores against each other, over streams that arrive in any order and cut anywhere.

mod h3_support;

use bytes::Bytes;
use h3_support::*;
use proptest::prelude::*;
use tandem_http::h3::Code;
use tandem_http::mux::OpenError;
use tandem_http::{Event, Method, Mux, MuxConfig, Priority, Reason, RequestHead, Role, Scheme};

fn request(events: &[Event]) -> (u32, &RequestHead, bool, Priority) {
    let mut requests = events.iter().filter_map(|event| match event {
        Event::Request {
            id,
            head,
            end,
            priority,
        } => Some((*id, head, *end, *priority)),
        _ => None,
    });
    requests.next().expect("a request")
}

fn open(pair: &mut Pair, path: &str) -> u32 {
    let opened = pair.client.core.open(&get(path), true, Priority(2));
    opened.expect("room for a request")
}

/// Opens a request and returns its number at both ends.
fn asked(pair: &mut Pair) -> (u32, u32) {
    let near = open(pair, "/");
    let (_, server) = pair.run();
    (near, request(&server).0)
}

#[test]
fn h3_request_gets_its_response() {
    let mut pair = Pair::new();
    let near = open(&mut pair, "/page");
    let (_, server) = pair.run();
    let (id, head, end, priority) = request(&server);
    assert_eq!(
        (head, end, priority),
        (&get("/page").with_urgency("u=2"), true, Priority(2))
    );
    pair.server
        .core
        .respond(id, &response(200, &[("x-a", "b")]), false);
    pair.server.core.send_data(id, bytes(100_000), true);
    let (client, _) = pair.run();
    assert!(client.iter().any(|event| matches!(event,
        Event::Response { id, head, .. } if *id == near && head.fields.get("x-a") == Some(b"b"))));
    assert_eq!(body(&client, near), (bytes(100_000).to_vec(), true));
    assert_eq!(
        (pair.client.core.active(), pair.server.core.active()),
        (0, 0)
    );
}

trait WithUrgency {
    fn with_urgency(self, value: &str) -> Self;
}

impl WithUrgency for RequestHead {
    fn with_urgency(mut self, value: &str) -> Self {
        self.fields.push("priority", value);
        self
    }
}

/// Opens a request with content, and returns its stream and the server's events.
fn open_upload(pair: &mut Pair) -> (u32, Vec<Event>) {
    let mut head = get("/upload");
    head.method = Method::Post;
    let opened = pair.client.core.open(&head, false, Priority(3));
    let (_, server) = pair.run();
    (opened.expect("room"), server)
}

#[test]
fn h3_bodies_and_trailers_pass_both_ways() {
    let mut pair = Pair::new();
    let (near, server) = open_upload(&mut pair);
    let (id, _, end, _) = request(&server);
    assert!(!end, "a POST is told before its content");
    pair.client.core.send_data(near, bytes(70_000), false);
    pair.client
        .core
        .send_trailers(near, &[("x-sum", "1")].into_iter().collect());
    pair.server
        .core
        .inform(id, &response(103, &[("link", "</a>")]));
    let (client, server) = pair.run();
    assert_eq!(body(&server, id), (bytes(70_000).to_vec(), true));
    assert!(
        matches!(&client[..], [.., Event::Informational { head, .. }] if head.status == 103),
        "{client:?}"
    );
    pair.server.core.respond(id, &response(200, &[]), false);
    pair.server.core.send_data(id, bytes(9), false);
    pair.server
        .core
        .send_trailers(id, &[("x-end", "2")].into_iter().collect());
    let (client, _) = pair.run();
    assert_eq!(body(&client, near), (bytes(9).to_vec(), true));
    assert_eq!(
        (pair.client.core.active(), pair.server.core.active()),
        (0, 0)
    );
}

#[test]
fn h3_connect_is_told_before_its_content() {
    let mut pair = Pair::new();
    let head = RequestHead {
        method: Method::Connect,
        path: String::new(),
        authority: "a.example:443".into(),
        scheme: Scheme::Http,
        ..get("/")
    };
    let near = pair
        .client
        .core
        .open(&head, false, Priority(3))
        .expect("room");
    let (_, server) = pair.run();
    let (id, seen, end, _) = request(&server);
    assert_eq!((seen, end), (&head, false));
    pair.server.core.respond(id, &response(200, &[]), false);
    pair.server
        .core
        .send_data(id, Bytes::from_static(b"down"), false);
    pair.client
        .core
        .send_data(near, Bytes::from_static(b"up"), true);
    let (client, server) = pair.run();
    assert_eq!(body(&client, near), (b"down".to_vec(), false));
    assert_eq!(body(&server, id), (b"up".to_vec(), true));
}

#[test]
fn h3_extended_connect_needs_the_setting() {
    let head = RequestHead {
        method: Method::Connect,
        protocol: Some("websocket".into()),
        ..get("/chat")
    };
    for enabled in [true, false] {
        let mut server = server_config();
        server.extended_connect = enabled;
        let mut pair = Pair::with(client_config(), server);
        assert_eq!(pair.client.core.peer_extended_connect(), None);
        pair.run();
        assert_eq!(pair.client.core.peer_extended_connect(), Some(enabled));
        let near = pair
            .client
            .core
            .open(&head, false, Priority(3))
            .expect("room");
        let (client, server) = pair.run();
        if enabled {
            assert_eq!(request(&server).1, &head);
        } else {
            assert!(
                matches!(client[..], [Event::Reset { id, reason: Reason::Protocol }] if id == near)
            );
        }
    }
}

/// Promises `/style.css` on the request, and returns its number.
fn promised(pair: &mut Pair, id: u32) -> u32 {
    let push = pair.server.core.push(id, &get("/style.css"), Priority(4));
    push.expect("a client that takes pushes")
}

#[test]
fn h3_push_arrives_with_its_promise() {
    let mut pair = Pair::new();
    let (near, id) = asked(&mut pair);
    assert!(pair.server.core.peer_takes_pushes());
    pair.server.core.respond(id, &response(200, &[]), false);
    let push = promised(&mut pair, id);
    pair.server
        .core
        .send_data(id, Bytes::from_static(b"<link>"), true);
    pair.server.core.respond(push, &response(200, &[]), false);
    pair.server
        .core
        .send_data(push, Bytes::from_static(b"p {}"), true);
    let (client, _) = pair.run();
    let place =
        |wanted: &dyn Fn(&Event) -> bool| client.iter().position(wanted).expect("the event");
    let promise = place(&|e| {
        matches!(e, Event::Push { parent, id, request }
        if *parent == near && *id == push && *request == get("/style.css"))
    });
    let content = place(&|e| matches!(e, Event::Data { id, .. } if *id == near));
    assert!(
        promise < content,
        "the promise precedes the content that mentions it"
    );
    assert_eq!(body(&client, push), (b"p {}".to_vec(), true));
    assert_eq!(
        (pair.client.core.active(), pair.server.core.active()),
        (0, 0)
    );
}

#[test]
fn h3_push_stream_waits_for_its_promise() {
    let mut pair = Pair::new();
    let (_, id) = asked(&mut pair);
    pair.server.core.respond(id, &response(200, &[]), false);
    let push = promised(&mut pair, id);
    pair.server.core.respond(push, &response(200, &[]), false);
    pair.server
        .core
        .send_data(push, Bytes::from_static(b"p {}"), true);
    pair.server.drive();
    let stream = *pair.server.flights.keys().max().expect("the push stream");
    assert_eq!(stream & 3, 3);
    let flight = pair
        .server
        .flights
        .remove(&stream)
        .expect("the push stream");
    pair.client
        .take(pair.now, stream, &flight)
        .expect("an early push");
    assert!(events(&mut pair.client.core).is_empty());
    assert!(!pair.client.core.wants_input(stream));
    let (client, _) = pair.run();
    assert!(matches!(client[1], Event::Push { .. }), "{client:?}");
    assert_eq!(body(&client, push), (b"p {}".to_vec(), true));
}

#[test]
fn h3_push_can_be_cancelled_by_either_end() {
    for arrived in [false, true] {
        let mut pair = Pair::new();
        let (_, id) = asked(&mut pair);
        let push = promised(&mut pair, id);
        if arrived {
            pair.server.core.respond(push, &response(200, &[]), false);
        }
        pair.run();
        pair.client.core.reset(push, Reason::Cancel);
        let (client, server) = pair.run();
        assert!(client.is_empty());
        assert!(matches!(server[..], [Event::Reset { id, reason: Reason::Cancel }] if id == push));
        // The server may not know yet that the push is over.
        let mut pair = Pair::new();
        let (_, id) = asked(&mut pair);
        let push = promised(&mut pair, id);
        if arrived {
            pair.server.core.respond(push, &response(200, &[]), false);
        }
        pair.run();
        pair.server.core.reset(push, Reason::Cancel);
        let (client, _) = pair.run();
        assert!(matches!(client[..], [Event::Reset { id, reason: Reason::Cancel }] if id == push));
        assert_eq!(
            (pair.client.core.active(), pair.server.core.active()),
            (1, 1)
        );
    }
}

#[test]
fn h3_pushes_are_limited_and_permitted_again() {
    let mut config = client_config();
    config.max_streams = 4;
    let mut pair = Pair::with(config, server_config());
    let (_, id) = asked(&mut pair);
    pair.server.core.respond(id, &response(200, &[]), false);
    for turn in 0..40 {
        let mut pushes = Vec::new();
        loop {
            match pair.server.core.push(id, &get("/p"), Priority(3)) {
                Ok(push) => pushes.push(push),
                Err(error) => {
                    assert_eq!(error, OpenError::Busy);
                    break;
                }
            }
        }
        assert!((2..=4).contains(&pushes.len()), "{turn}: {pushes:?}");
        for push in pushes {
            pair.server.core.respond(push, &response(200, &[]), true);
        }
        pair.run();
    }
}

#[test]
fn h3_push_needs_a_client_that_permits_it() {
    let mut pair = Pair::with(MuxConfig::new(Role::Client), server_config());
    let (_, id) = asked(&mut pair);
    assert!(!pair.server.core.peer_takes_pushes());
    assert_eq!(
        pair.server.core.push(id, &get("/p"), Priority(3)),
        Err(OpenError::NoPush)
    );
    let mut pair = Pair::new();
    let (_, id) = asked(&mut pair);
    let mut post = get("/p");
    post.method = Method::Post;
    assert_eq!(
        pair.server.core.push(id, &post, Priority(3)),
        Err(OpenError::BadHead)
    );
    assert_eq!(
        pair.server.core.push(id + 2, &get("/p"), Priority(3)),
        Err(OpenError::NoPush)
    );
}

#[test]
fn h3_resets_reach_the_other_end_once() {
    for reason in [
        Reason::Cancel,
        Reason::Refused,
        Reason::Connect,
        Reason::EnhanceYourCalm,
    ] {
        let mut pair = Pair::new();
        let (near, id) = asked(&mut pair);
        pair.server.core.reset(id, reason);
        let (client, server) = pair.run();
        assert!(server.is_empty());
        assert!(matches!(
            client[..],
            [Event::Reset { id, reason: seen }] if id == near && seen == reason
        ));
        let mut pair = Pair::new();
        let (near, id) = asked(&mut pair);
        pair.client.core.reset(near, reason);
        let (client, server) = pair.run();
        assert!(client.is_empty());
        assert!(matches!(server[..], [Event::Reset { id: seen, .. }] if seen == id));
        assert_eq!(
            (pair.client.core.active(), pair.server.core.active()),
            (0, 0)
        );
    }
}

#[test]
fn h3_reset_after_data_sends_the_data_first() {
    let mut pair = Pair::new();
    let (near, id) = asked(&mut pair);
    pair.server.core.respond(id, &response(200, &[]), false);
    pair.server.core.send_data(id, bytes(9000), false);
    pair.server.core.reset_after_data(id, Reason::Internal);
    pair.server.drive();
    assert_eq!(pair.server.core.active(), 0);
    assert_eq!(pair.server.flights[&0].reset, Some(Code::INTERNAL_ERROR));
    let (client, _) = pair.run();
    assert!(matches!(client[..], [Event::Reset { id, reason: Reason::Internal }] if id == near));
}

#[test]
fn h3_response_survives_a_stopped_request() {
    let mut pair = Pair::new();
    let (near, server) = open_upload(&mut pair);
    let (id, ..) = request(&server);
    pair.server.core.respond(id, &response(413, &[]), true);
    pair.server.core.send_data(id, Bytes::new(), true);
    pair.server.drive();
    pair.server.core.reset(id, Reason::NoError);
    pair.client.core.send_data(near, bytes(10), false);
    let (client, _) = pair.run();
    assert!(
        client
            .iter()
            .any(|event| matches!(event, Event::Response { head, .. } if head.status == 413))
    );
    assert_eq!(body(&client, near), (Vec::new(), true));
    assert!(
        !client
            .iter()
            .any(|event| matches!(event, Event::Reset { .. }))
    );
    assert_eq!(
        (pair.client.core.active(), pair.server.core.active()),
        (0, 0)
    );
}

#[test]
fn h3_goaway_refuses_what_comes_after_it() {
    let mut pair = Pair::new();
    let (near, id) = asked(&mut pair);
    pair.server.core.go_away(Reason::NoError);
    let late = open(&mut pair, "/late");
    let (client, server) = pair.run();
    assert!(
        client
            .iter()
            .any(|event| matches!(event, Event::GoAway { last, .. } if *last == near))
    );
    assert!(client.iter().any(|event| matches!(event,
        Event::Reset { id, reason: Reason::Refused } if *id == late)));
    assert!(
        server
            .iter()
            .all(|event| !matches!(event, Event::Request { .. }))
    );
    assert!(!pair.client.core.is_open());
    assert_eq!(
        pair.client.core.open(&get("/"), true, Priority(3)),
        Err(OpenError::Closing)
    );
    pair.server.core.respond(id, &response(200, &[]), true);
    pair.run();
    assert_eq!(
        (pair.client.core.active(), pair.server.core.active()),
        (0, 0)
    );
}

#[test]
fn h3_goaway_of_a_client_lets_its_requests_finish() {
    let mut pair = Pair::new();
    let (near, id) = asked(&mut pair);
    pair.client.core.go_away(Reason::NoError);
    let (_, server) = pair.run();
    assert!(matches!(server[..], [Event::GoAway { .. }]));
    assert_eq!(
        pair.server.core.push(id, &get("/p"), Priority(3)),
        Err(OpenError::Closing)
    );
    pair.server.core.respond(id, &response(200, &[]), true);
    let (client, _) = pair.run();
    assert_eq!(body(&client, near), (Vec::new(), true));
}

#[test]
fn h3_client_changes_priorities() {
    let mut pair = Pair::new();
    let (near, id) = asked(&mut pair);
    let push = promised(&mut pair, id);
    pair.run();
    pair.client.core.set_priority(near, Priority(5));
    pair.client.core.set_priority(push, Priority(1));
    let (_, server) = pair.run();
    assert!(
        matches!(server[..], [
        Event::Priority { id: a, priority: Priority(5) },
        Event::Priority { id: b, priority: Priority(1) },
    ] if a == id && b == push),
        "{server:?}"
    );
}

#[test]
fn h3_urgent_stream_overtakes_a_long_one() {
    let mut pair = Pair::new();
    let (_, slow) = asked(&mut pair);
    let (_, quick) = asked(&mut pair);
    for (id, urgency) in [(slow, 5), (quick, 1)] {
        pair.server.core.set_priority(id, Priority(urgency));
        pair.server.core.respond(id, &response(200, &[]), false);
        pair.server.core.send_data(id, bytes(60_000), true);
    }
    // Both heads leave first.
    let mut order = Vec::new();
    while let Some(stream) = pair.server.core.poll_ready() {
        let mut out = tandem_http::SendBuf::new();
        pair.server.core.poll_output(stream, &mut out, 1200);
        pair.server.core.handle_written(stream);
        order.push(stream);
    }
    let last_quick = order
        .iter()
        .rposition(|stream| *stream == 4)
        .expect("a turn");
    let early_slow = order[..last_quick]
        .iter()
        .filter(|stream| **stream == 0)
        .count();
    assert!(
        early_slow <= 1,
        "only the head of the long response: {early_slow}"
    );
}

#[test]
fn h3_stream_is_not_read_while_much_is_held() {
    let mut config = client_config();
    (config.stream_window, config.receive_budget) = (1000, 3000);
    let mut pair = Pair::with(config, server_config());
    let ids: Vec<(u32, u32)> = (0..4).map(|_| asked(&mut pair)).collect();
    for (_, id) in &ids {
        pair.server.core.respond(*id, &response(200, &[]), false);
        pair.server.core.send_data(*id, bytes(900), false);
    }
    pair.run();
    assert!(
        !pair.client.core.wants_input(0),
        "the session holds its budget"
    );
    for (near, _) in &ids[1..] {
        pair.client.core.release(*near, 900);
    }
    assert!(pair.client.core.wants_input(0) && pair.client.core.poll_resumed().is_some());
    pair.server.core.send_data(ids[0].1, bytes(900), false);
    pair.run();
    assert!(!pair.client.core.wants_input(0) && pair.client.core.wants_input(4));
    while pair.client.core.poll_resumed().is_some() {}
    pair.client.core.release(ids[0].0, 1400);
    assert_eq!(pair.client.core.poll_resumed(), Some(0));
    assert!(pair.client.core.wants_input(0));
}

#[test]
fn h3_requests_wait_for_the_carrier() {
    let mut pair = Pair::new();
    let mut ids = Vec::new();
    while let Ok(id) = pair.client.core.open(&get("/"), true, Priority(3)) {
        ids.push(id);
    }
    assert_eq!(ids.len(), 100);
    assert_eq!(
        pair.client.core.open(&get("/"), true, Priority(3)),
        Err(OpenError::Busy)
    );
    pair.client.core.reset(ids[50], Reason::Cancel);
    let (_, server) = pair.run();
    let requests = server
        .iter()
        .filter(|event| matches!(event, Event::Request { .. }));
    assert_eq!(requests.count(), 99);
    pair.client.core.set_blocked(true);
    assert!(pair.client.core.has_room());
    open(&mut pair, "/");
    assert!(!pair.client.core.has_room());
}

#[test]
fn h3_repeated_fields_use_the_dynamic_table() {
    let mut pair = Pair::new();
    let mut sizes = Vec::new();
    for turn in 0..4 {
        let mut head = get(&format!("/{turn}"));
        head.fields
            .push("user-agent", "a browser with a long name and version");
        pair.client
            .core
            .open(&head, true, Priority(3))
            .expect("room");
        pair.client.drive();
        sizes.push(pair.client.flights[&(turn * 4)].bytes.len());
        pair.run();
    }
    assert!(sizes[3] + 30 < sizes[0], "{sizes:?}");
}

#[derive(Clone, Debug)]
struct Plan {
    upload: usize,
    download: usize,
    pushes: usize,
    trailers: bool,
}

fn plans() -> impl Strategy<Value = Vec<Plan>> {
    let plan =
        (0usize..3, 0usize..3, 0usize..3, any::<bool>()).prop_map(|(a, b, pushes, trailers)| {
            Plan {
                upload: [0, 10, 5000][a],
                download: [0, 10, 40_000][b],
                pushes,
                trailers,
            }
        });
    prop::collection::vec(plan, 1..8)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever the order and the cuts of the streams, every message arrives whole.
    #[test]
    fn h3_exchanges_arrive_complete(
        plans in plans(),
        choices in prop::collection::vec(0usize..4000, 1..40),
    ) {
        let mut pair = Pair::new();
        pair.choices = choices;
        let mut near = Vec::new();
        for (turn, plan) in plans.iter().enumerate() {
            let mut head = get(&format!("/{turn}"));
            head.method = if plan.upload > 0 { Method::Post } else { Method::Get };
            head.fields.push("x-turn", turn.to_string());
            let (end, priority) = (plan.upload == 0, Priority(turn as u8 % 8));
            let id = pair.client.core.open(&head, end, priority).expect("room");
            if plan.upload > 0 {
                pair.client.core.send_data(id, bytes(plan.upload), true);
            }
            near.push(id);
        }
        let (mut client, mut server) = (Vec::new(), Vec::new());
        let mut answered = 0;
        loop {
            let mut moved = pair.step(Role::Client);
            for event in events(&mut pair.server.core) {
                if let Event::Request { id, head, .. } = &event {
                    let turn: usize = head.path[1..].parse().expect("a number");
                    answer(&mut pair, *id, &plans[turn]);
                    answered += 1;
                }
                server.push(event);
            }
            moved |= pair.step(Role::Server);
            client.extend(events(&mut pair.client.core));
            if !moved {
                break;
            }
        }
        prop_assert_eq!(answered, plans.len());
        for (id, plan) in near.iter().zip(&plans) {
            prop_assert_eq!(body(&client, *id), (bytes(plan.download).to_vec(), true));
        }
        let pushes: Vec<u32> = client.iter().filter_map(|event| match event {
            Event::Push { id, .. } => Some(*id),
            _ => None,
        }).collect();
        for push in pushes {
            prop_assert_eq!(body(&client, push), (bytes(500).to_vec(), true));
        }
        for event in &server {
            if let Event::Request { id, head, .. } = event {
                let turn: usize = head.path[1..].parse().expect("a number");
                let (content, _) = body(&server, *id);
                prop_assert_eq!(content.len(), plans[turn].upload);
            }
        }
        prop_assert_eq!((pair.client.core.active(), pair.server.core.active()), (0, 0));
    }
}

fn answer(pair: &mut Pair, id: u32, plan: &Plan) {
    let core = &mut pair.server.core;
    core.inform(id, &response(103, &[]));
    core.respond(
        id,
        &response(200, &[("x-answer", "a value that comes again")]),
        false,
    );
    let mut pushes = Vec::new();
    for _ in 0..plan.pushes {
        // The permission to push may not have arrived.
        pushes.extend(core.push(id, &get("/pushed"), Priority(5)));
    }
    core.send_data(id, bytes(plan.download), !plan.trailers);
    if plan.trailers {
        core.send_trailers(id, &[("x-end", "1")].into_iter().collect());
    }
    for push in pushes {
        core.respond(push, &response(200, &[]), false);
        core.send_data(push, bytes(500), true);
    }
}

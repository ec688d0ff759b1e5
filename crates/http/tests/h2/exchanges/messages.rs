//! Requests and responses: heads, bodies, trailers, interim responses and tunnels.

use bytes::Bytes;
use tandem_http::mux::OpenError;
use tandem_http::{Event, Method, Mux, RequestHead, Role};

use super::{NORMAL, request};
use crate::support::{
    self, Pair, body, bytes, client_config, events, fields, get, output, parse, response,
    server_config, with_fields,
};

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
            support::SETTINGS,
            support::WINDOW_UPDATE,
            support::HEADERS,
            support::DATA
        ]
    );
    assert_eq!(
        parse(&first)[3].flags,
        support::END_STREAM,
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
fn http2_settings_are_left_out_of_responses() {
    let mut pair = Pair::new();
    let id = pair.client.open(&get("/"), true, NORMAL).expect("a stream");
    pair.run();
    let odd = [("x", "a\x01b"), ("http2-settings", ""), ("y", "a\tb")];
    pair.server.inform(id, &response(103, &odd));
    pair.server.respond(id, &response(200, &odd), false);
    pair.server.send_trailers(id, &fields(&odd));
    let (client, _) = pair.run();
    let heads = client.iter().filter_map(|event| match event {
        Event::Informational { head, .. } | Event::Response { head, .. } => Some(&head.fields),
        Event::Trailers { fields, .. } => Some(fields),
        _ => None,
    });
    let heads: Vec<_> = heads.collect();
    assert_eq!(heads, [&fields(&[("x", "a\x01b"), ("y", "a\tb")]); 3]);
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

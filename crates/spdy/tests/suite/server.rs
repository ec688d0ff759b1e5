//! Servers that control more of the wire: literal requests and responses, later SETTINGS, the
//! progress of responses, and the memory of idle sessions.

use bytes::Buf as _;
use tandem_http::{
    ByteMux as _, Event, Fields, Mux as _, Priority, RequestHead, ResponseHead, Role, Scheme,
    SendBuf,
};
use tandem_spdy::frame::{Setting, Settings};
use tandem_spdy::{Connection, Version};

use crate::support::{POST, Pair, Peer, Script, Seen, body, config, data, get};

fn literal_peer() -> Peer {
    let mut config = config(Role::Server, Version::V3);
    config.literal_requests = true;
    Peer::new(config)
}

fn required(path: &str, version: &str) -> [(&'static str, String); 5] {
    [
        (":method", "GET".to_owned()),
        (":path", path.to_owned()),
        (":version", version.to_owned()),
        (":host", "proxy.example".to_owned()),
        (":scheme", "https".to_owned()),
    ]
}

fn ask(peer: &mut Peer, stream: u32, path: &str, version: &str) -> Vec<Seen> {
    let pairs = required(path, version);
    let pairs: Vec<_> = pairs
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    let frame = peer.script.syn_stream(stream, true, &pairs);
    peer.told(&frame)
}

#[test]
fn literal_request_keeps_path_host_and_version() {
    let mut peer = literal_peer();
    ask(&mut peer, 1, "http://site.example/a#b", "HTTP/1.0");
    let Some(Event::Request { head, .. }) = peer.session.poll_event() else {
        panic!("a request");
    };
    assert_eq!(head.path, "http://site.example/a#b");
    assert_eq!(head.authority, "proxy.example");
    assert_eq!(head.fields.get(":version"), Some(&b"HTTP/1.0"[..]));
}

#[test]
fn incomplete_literal_request_gets_400() {
    let mut peer = literal_peer();
    for (stream, path, version) in [(1, "", "HTTP/1.1"), (3, "/", ""), (5, "/a b", "HTTP/1.1")] {
        let seen = ask(&mut peer, stream, path, version);
        assert!(peer.session.poll_event().is_none());
        let refused = seen.iter().any(|frame| {
            matches!(frame, Seen::SynReply { id, fin: true, pairs } if *id == stream
                && pairs.iter().any(|(name, value)| name == ":status" && value == "400"))
        });
        assert!(refused, "{seen:?}");
    }
}

#[test]
fn literal_response_has_the_text_of_the_server() {
    let mut peer = literal_peer();
    ask(&mut peer, 1, "/", "HTTP/1.1");
    peer.session
        .respond_literally(1, "404 Not Found", "HTTP/1.0", &Fields::new(), true);
    // Later responses of the stream are ignored.
    peer.session
        .respond_literally(1, "200", "HTTP/1.1", &Fields::new(), true);
    let seen = peer.output();
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let pairs = vec![
        pair(":status", "404 Not Found"),
        pair(":version", "HTTP/1.0"),
    ];
    assert_eq!(
        seen,
        [Seen::SynReply {
            id: 1,
            fin: true,
            pairs
        }]
    );
}

#[test]
fn later_settings_widen_the_receive_window() {
    let mut config = config(Role::Server, Version::V3);
    config.mux.stream_window = 65_536;
    let mut peer = Peer::new(config);
    let frame = Script::default().syn_stream(1, false, &POST);
    assert_eq!(peer.told(&frame), []);
    peer.session.send_settings(&Settings {
        clear: false,
        entries: vec![Setting {
            flags: 0,
            id: 7,
            value: 200_000,
        }],
    });
    assert_eq!(peer.output(), [Seen::Settings(vec![(7, 200_000)])]);
    assert_eq!(peer.told(&data(1, false, &body(150_000))), []);
    let seen = peer.told(&data(1, false, &body(60_000)));
    assert!(
        matches!(seen[..], [Seen::Rst { id: 1, status: 7 }]),
        "{seen:?}"
    );
}

#[test]
fn response_is_sent_once_its_end_has_left() {
    for version in [Version::V3, Version::V31] {
        let mut pair = Pair::new(version);
        let id = pair
            .client
            .open(&get("/"), true, Priority::default())
            .expect("room");
        pair.settle();
        let server: &mut Connection = &mut pair.server;
        assert!(server.may_send(id));
        server.respond_literally(id, "200 OK", "HTTP/1.1", &Fields::new(), false);
        assert!(!server.is_sent(id));
        server.send_data(id, body(20_000), true);
        assert!(!server.may_send(id));
        let mut out = SendBuf::new();
        server.poll_output(&mut out, 9000);
        assert!(!server.is_sent(id));
        server.poll_output(&mut out, usize::MAX);
        assert!(server.is_sent(id));
    }
}

/// Moves output between two sessions until neither has more. Returns the events of the server.
fn exchange(client: &mut Connection, server: &mut Connection) -> Vec<Event> {
    let now = std::time::Instant::now();
    let mut events = Vec::new();
    let mut out = SendBuf::new();
    while client.wants_output() || server.wants_output() {
        for server_reads in [true, false] {
            let (from, to) = if server_reads {
                (&mut *client, &mut *server)
            } else {
                (&mut *server, &mut *client)
            };
            from.poll_output(&mut out, usize::MAX);
            while out.has_remaining() {
                to.handle_input(now, out.chunk()).expect("a legal session");
                out.advance(out.chunk().len());
            }
        }
        events.extend(std::iter::from_fn(|| server.poll_event()));
    }
    events
}

#[test]
fn sessions_without_contexts_stay_in_step() {
    for bits in [0b01, 0b10, 0b11] {
        let session = |role, keeps| {
            let mut config = config(role, Version::V31);
            config.keeps_released_text = keeps;
            Connection::new(config)
        };
        let mut client = session(Role::Client, bits & 1 != 0);
        let mut server = session(Role::Server, bits & 2 != 0);
        // More header text than the largest window of deflate.
        for round in 0..300 {
            let path = format!("/{round}/{}", "abcdefghij".repeat(round % 40));
            let mut head = RequestHead::get(Scheme::Http, "site.example", path.as_str());
            head.fields.push("x-same", "the same text each time");
            head.fields.push("cookie", format!("key={round}"));
            let id = client
                .open(&head, true, Priority(0))
                .expect("streams are free");
            let [Event::Request { head: read, .. }] = &exchange(&mut client, &mut server)[..]
            else {
                panic!("one request");
            };
            assert_eq!(read.path, path);
            assert_eq!(read.fields, head.fields);
            let mut response = ResponseHead::new(200);
            response.fields.push("x-round", path.clone());
            server.respond(id, &response, true);
            exchange(&mut client, &mut server);
            let Some(Event::Response { head, .. }) = client.poll_event() else {
                panic!("a response");
            };
            assert_eq!(head.fields.get("x-round"), Some(path.as_bytes()));
            if round % 3 == 0 {
                assert!(client.release_contexts() && server.release_contexts());
            }
        }
    }
}

#[test]
fn session_with_a_stream_keeps_its_contexts() {
    let mut peer = literal_peer();
    peer.output();
    assert!(peer.session.release_contexts());
    ask(&mut peer, 1, "/", "HTTP/1.1");
    peer.events();
    assert!(!peer.session.release_contexts());
}

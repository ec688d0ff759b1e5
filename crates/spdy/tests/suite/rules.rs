//! Broken rules, each with the stream error or session error that the drafts demand, and bounds on
//! memory.

use std::time::{Duration, Instant};

use bytes::Buf as _;
use tandem_http::mux::{Unsent, Window};
use tandem_http::{ByteMux as _, Event, Mux as _, Priority, Reason, Role, SendBuf};
use tandem_spdy::header_block::DICTIONARY;
use tandem_spdy::{Connection, Version, status};

use crate::support::{
    GET, OK, POST, Peer, Script, Seen, config, data, get, goaway, ping, response, rst, settings,
    window_update,
};

const BOTH: [Version; 2] = [Version::V3, Version::V31];

fn reset(id: u32, status: u32) -> Vec<Seen> {
    vec![Seen::Rst { id, status }]
}

/// Input that must end the session with this GOAWAY.
fn ends(peer: &mut Peer, bytes: &[u8], last: u32, status: u32) {
    peer.input(bytes).expect_err("a session error");
    let seen = peer.output();
    assert_eq!(
        seen.last(),
        Some(&Seen::GoAway { last, status }),
        "{seen:?}"
    );
    peer.input(&ping(1)).expect_err("nothing more is taken");
    assert_eq!(peer.output(), []);
    assert_eq!(peer.session.active(), 0);
    assert!(!peer.session.is_open());
}

/// A server with one request open on stream 1, its body unfinished.
fn server_with_request(version: Version) -> Peer {
    let mut peer = Peer::server(version);
    let syn = peer.script.syn_stream(1, false, &POST);
    assert_eq!(peer.told(&syn), []);
    assert!(matches!(
        peer.events()[..],
        [Event::Request {
            id: 1,
            end: false,
            ..
        }]
    ));
    peer
}

/// Returns a client that has received a response head on stream 1 but not the whole body.
fn client_with_response(version: Version) -> Peer {
    let mut peer = Peer::client(version);
    assert_eq!(peer.open(true), 1);
    let reply = peer.script.syn_reply(1, false, &OK);
    assert_eq!(peer.told(&reply), []);
    assert!(matches!(
        peer.events()[..],
        [Event::Response {
            id: 1,
            end: false,
            ..
        }]
    ));
    peer
}

/// A server's wish that a client store something (flag 1), and CLEAR, tell it from others later:
/// nothing is stored, no frame of ours says that anything was (flag 2), and the next session begins
/// like the first.
#[test]
fn settings_are_not_persisted() {
    let greeting = || {
        let mut session = Connection::new(config(Role::Client, Version::V31));
        let mut out = SendBuf::new();
        session.poll_output(&mut out, usize::MAX);
        (session, out.copy_to_bytes(out.remaining()))
    };
    let (mut session, first) = greeting();
    let flags: Vec<u8> = first[12..]
        .chunks(8)
        .take(first[11].into())
        .map(|entry| entry[0])
        .collect();
    assert_eq!(
        (&first[..8], &flags[..]),
        (&[0x80, 3, 0, 4, 0, 0, 0, 20][..], &[0, 0][..])
    );
    for frame_flags in [0, 1] {
        let mut wish = settings(&[(5, 77), (7, 1000)]);
        wish[4] = frame_flags;
        wish[12] = 1;
        wish[20] = 1;
        session
            .handle_input(Instant::now(), &wish)
            .expect("a legal frame");
    }
    assert!(!session.wants_output());
    assert_eq!(greeting().1, first);
}

#[test]
fn stream_ids_of_requests() {
    for version in BOTH {
        for bad in [0, 2, 8] {
            let mut peer = server_with_request(version);
            let syn = peer.script.syn_stream(bad, true, &GET);
            ends(&mut peer, &syn, 1, status::PROTOCOL_ERROR);
        }
        let mut peer = server_with_request(version);
        let syn = peer.script.syn_stream(7, true, &GET);
        peer.told(&syn);
        let falling = peer.script.syn_stream(5, true, &GET);
        ends(&mut peer, &falling, 7, status::PROTOCOL_ERROR);
    }
}

#[test]
fn the_same_stream_again_is_a_stream_error() {
    let mut peer = server_with_request(Version::V31);
    let again = peer.script.syn_stream(1, true, &GET);
    assert_eq!(peer.told(&again), reset(1, status::PROTOCOL_ERROR));
    assert!(matches!(
        peer.events()[..],
        [Event::Reset {
            id: 1,
            reason: Reason::Protocol
        }]
    ));
    let fine = peer.script.syn_stream(3, true, &GET);
    assert_eq!(peer.told(&fine), []);
}

#[test]
fn missing_heads_are_answered_by_400() {
    for missing in 0..GET.len() {
        let mut peer = Peer::server(Version::V31);
        let mut four = GET.to_vec();
        four.remove(missing);
        let syn = peer.script.syn_stream(1, true, &four);
        let seen = peer.told(&syn);
        let [
            Seen::SynReply {
                id: 1,
                fin: true,
                pairs,
            },
        ] = &seen[..]
        else {
            panic!("{seen:?}")
        };
        assert_eq!(pairs[0], (":status".to_owned(), "400".to_owned()));
        assert!(peer.events().is_empty());
        assert_eq!(peer.session.active(), 0);
    }
}

#[test]
fn the_body_of_a_request_answered_by_400_goes_by() {
    let mut peer = Peer::server(Version::V31);
    let syn = peer.script.syn_stream(1, false, &POST[1..]);
    assert!(matches!(
        peer.told(&syn)[..],
        [Seen::SynReply { fin: true, .. }]
    ));
    for _ in 0..100 {
        assert!(
            peer.told(&data(1, false, &[0; 60_000]))
                .iter()
                .all(|seen| matches!(seen, Seen::WindowUpdate { .. }))
        );
    }
    assert_eq!(peer.told(&data(1, true, b"end")), []);
    assert!(peer.events().is_empty());
    assert_eq!(peer.session.active(), 0);
}

#[test]
fn content_length_must_fit() {
    let with_length = |length| [&POST[..], &[("content-length", length)]].concat();
    for (length, parts, legal) in [
        ("5", &[(&b"hello"[..], true)][..], true),
        ("5", &[(b"hel", false), (b"lo", true)], true),
        ("5", &[(b"hell", true)], false),
        ("5", &[(b"hel", false), (b"loo", false)], false),
        ("0", &[(b"", true)], true),
        ("1", &[(b"", true)], false),
    ] {
        let mut peer = Peer::server(Version::V31);
        let syn = peer.script.syn_stream(1, false, &with_length(length));
        peer.told(&syn);
        let mut seen = Vec::new();
        for (part, fin) in parts {
            seen.extend(peer.told(&data(1, *fin, part)));
        }
        assert_eq!(seen.is_empty(), legal, "{length} {parts:?} {seen:?}");
        if !legal {
            assert!(
                matches!(&seen[..], [Seen::SynReply { fin: true, .. }]),
                "{seen:?}"
            );
            assert!(matches!(
                peer.events().last(),
                Some(Event::Reset {
                    id: 1,
                    reason: Reason::Protocol
                })
            ));
        }
    }
    let mut peer = Peer::server(Version::V31);
    let syn = peer.script.syn_stream(1, true, &with_length("5"));
    assert!(matches!(
        &peer.told(&syn)[..],
        [Seen::SynReply { fin: true, .. }]
    ));
    let twofold = peer.script.syn_stream(3, true, &with_length("5, 6"));
    assert!(matches!(
        &peer.told(&twofold)[..],
        [Seen::SynReply { fin: true, .. }]
    ));
}

#[test]
fn a_wrong_length_after_the_answer_resets() {
    let mut peer = Peer::server(Version::V31);
    let syn = peer
        .script
        .syn_stream(1, false, &[&POST[..], &[("content-length", "2")]].concat());
    peer.told(&syn);
    peer.session.respond(1, &response(200, &[]), false);
    peer.output();
    assert_eq!(
        peer.told(&data(1, false, b"abc")),
        reset(1, status::PROTOCOL_ERROR)
    );
}

#[test]
fn data_where_none_may_be() {
    for version in BOTH {
        let mut peer = server_with_request(version);
        assert_eq!(
            peer.told(&data(9, false, b"x")),
            reset(9, status::INVALID_STREAM)
        );
        assert_eq!(peer.told(&data(9, false, b"x")), [], "told once");
        assert_eq!(
            peer.told(&data(4, false, b"x")),
            reset(4, status::INVALID_STREAM)
        );
        peer.told(&data(1, true, b"end"));
        assert_eq!(
            peer.told(&data(1, false, b"x")),
            reset(1, status::STREAM_ALREADY_CLOSED)
        );
        assert_eq!(peer.told(&data(1, false, b"x")), []);
        ends(&mut peer, &data(0, false, b"x"), 1, status::PROTOCOL_ERROR);
    }
}

#[test]
fn data_after_both_ends_closed() {
    let mut peer = client_with_response(Version::V31);
    peer.told(&data(1, true, b"end"));
    assert_eq!(
        peer.told(&data(1, false, b"x")),
        reset(1, status::INVALID_STREAM)
    );
    assert_eq!(peer.told(&data(1, false, b"x")), []);
}

#[test]
fn nothing_answers_a_reset() {
    for version in BOTH {
        let mut peer = server_with_request(version);
        assert_eq!(peer.told(&rst(1, status::CANCEL)), []);
        assert!(matches!(
            peer.events()[..],
            [Event::Reset {
                id: 1,
                reason: Reason::Cancel
            }]
        ));
        assert_eq!(peer.told(&rst(1, status::CANCEL)), []);
        assert_eq!(peer.told(&rst(55, 0)), []);
        assert_eq!(peer.told(&data(1, false, b"crossing")), []);
        assert!(peer.events().is_empty());
        peer.session.respond(1, &response(200, &[]), true);
        assert_eq!(peer.output(), []);
    }
}

#[test]
fn one_reset_for_each_stream() {
    let mut peer = server_with_request(Version::V31);
    peer.session.reset(1, Reason::Refused);
    assert_eq!(peer.output(), reset(1, status::REFUSED_STREAM));
    let crossing = peer.script.headers(1, false, &[("x", "y")]);
    assert_eq!(
        peer.told(&[&data(1, false, b"crossing")[..], &crossing, &rst(1, 5)].concat()),
        []
    );
    assert!(peer.events().is_empty());
    // The compression context has followed.
    let syn = peer.script.syn_stream(3, true, &GET);
    assert_eq!(peer.told(&syn), []);
    assert!(matches!(peer.events()[..], [Event::Request { id: 3, .. }]));
}

#[test]
fn replies_where_none_may_be() {
    let mut peer = Peer::client(Version::V31);
    peer.open(true);
    assert_eq!(
        peer.told(&data(1, false, b"early")),
        reset(1, status::PROTOCOL_ERROR)
    );
    let mut peer = Peer::client(Version::V31);
    peer.open(true);
    let headers = peer.script.headers(1, false, &OK);
    assert_eq!(peer.told(&headers), reset(1, status::PROTOCOL_ERROR));
    let mut peer = client_with_response(Version::V31);
    let second = peer.script.syn_reply(1, false, &OK);
    assert_eq!(peer.told(&second), reset(1, status::STREAM_IN_USE));
    let stray = peer.script.syn_reply(77, false, &OK);
    assert_eq!(peer.told(&stray), reset(77, status::INVALID_STREAM));
    let mut peer = server_with_request(Version::V31);
    let reply = peer.script.syn_reply(1, false, &OK);
    assert_eq!(peer.told(&reply), reset(1, status::PROTOCOL_ERROR));
}

#[test]
fn responses_need_status_and_version() {
    for pairs in [
        &OK[..1],
        &OK[1..],
        &[(":status", "abc"), (":version", "HTTP/1.1")],
        &[(":status", "100"), OK[1]],
    ] {
        let mut peer = Peer::client(Version::V31);
        peer.open(true);
        let reply = peer.script.syn_reply(1, true, pairs);
        assert_eq!(
            peer.told(&reply),
            reset(1, status::PROTOCOL_ERROR),
            "{pairs:?}"
        );
        assert!(matches!(
            peer.events()[..],
            [Event::Reset {
                id: 1,
                reason: Reason::Protocol
            }]
        ));
    }
}

#[test]
fn malformed_blocks_cost_their_stream_only() {
    for pair in [
        ("Upper", "v"),
        ("a", "\0"),
        ("a", "b\0\0c"),
        ("a", "b\r\nc: d"),
    ] {
        let mut peer = Peer::server(Version::V31);
        let syn = peer
            .script
            .syn_stream(1, true, &[&GET[..], &[pair]].concat());
        assert_eq!(
            peer.told(&syn),
            reset(1, status::PROTOCOL_ERROR),
            "{pair:?}"
        );
        let syn = peer.script.syn_stream(3, true, &GET);
        assert_eq!(peer.told(&syn), []);
    }
}

#[test]
fn trailers_must_not_repeat() {
    let mut peer = server_with_request(Version::V31);
    let first = peer.script.headers(1, false, &[("x-a", "1")]);
    assert_eq!(peer.told(&first), []);
    let second = peer.script.headers(1, false, &[("x-a", "2")]);
    assert_eq!(peer.told(&second), reset(1, status::PROTOCOL_ERROR));
}

#[test]
fn endless_headers_are_bounded() {
    let mut peer = server_with_request(Version::V31);
    let value = "v".repeat(4000);
    let mut seen = Vec::new();
    for number in 0..40 {
        let frame = peer
            .script
            .headers(1, false, &[(&format!("x-{number}"), &value)]);
        seen.extend(peer.told(&frame));
    }
    assert_eq!(seen, reset(1, status::FRAME_TOO_LARGE));
}

/// A block of another compressor, which inflates to `len` bytes without meaning.
fn bomb(len: usize) -> Vec<u8> {
    let mut deflate = flate2::Compress::new(flate2::Compression::best(), true);
    deflate
        .set_dictionary(DICTIONARY)
        .expect("before any input");
    let mut block = Vec::with_capacity(len / 500 + 1000);
    deflate
        .compress_vec(&vec![b'a'; len], &mut block, flate2::FlushCompress::Sync)
        .expect("compresses");
    let frame = tandem_spdy::frame::SynStream {
        stream: 1,
        associated: 0,
        priority: 0,
        slot: 0,
        fin: true,
        unidirectional: false,
        block: &block,
    };
    crate::support::encoded(|dst| frame.encode(dst))
}

#[test]
fn a_large_header_list_costs_its_stream() {
    let mut peer = Peer::server(Version::V31);
    assert_eq!(peer.told(&bomb(100_000)), reset(1, status::FRAME_TOO_LARGE));
    let mut peer = Peer::server(Version::V31);
    ends(&mut peer, &bomb(16 << 20), 1, status::PROTOCOL_ERROR);
}

#[test]
fn invalid_header_block_ends_the_session() {
    let mut peer = server_with_request(Version::V3);
    let mut syn = peer.script.syn_stream(3, true, &GET);
    syn.truncate(18);
    syn.extend_from_slice(&[0xff; 20]);
    syn[7] = 30;
    ends(&mut peer, &syn, 3, status::PROTOCOL_ERROR);
}

#[test]
fn frames_of_impossible_length_end_the_session() {
    for frame in [
        &[0x80, 3, 0, 3, 0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0][..],
        &[0x80, 3, 0, 6, 0, 0, 0, 5, 0, 0, 0, 1, 0],
        &[0x80, 3, 0, 4, 0, 0, 0, 4, 0, 0, 0, 1],
        &[0x80, 3, 0, 1, 0, 0, 0, 4, 0, 0, 0, 1],
        &[0x80, 3, 0, 1, 0, 0xff, 0xff, 0xff],
    ] {
        ends(
            &mut server_with_request(Version::V31),
            frame,
            1,
            status::PROTOCOL_ERROR,
        );
    }
}

#[test]
fn another_version_is_unsupported() {
    let mut peer = Peer::server(Version::V31);
    let mut syn = peer.script.syn_stream(1, true, &GET);
    syn[1] = 2;
    peer.input(&syn).expect_err("a session error");
    assert_eq!(
        peer.output(),
        [
            Seen::Rst {
                id: 1,
                status: status::UNSUPPORTED_VERSION
            },
            Seen::GoAway { last: 0, status: 1 }
        ]
    );
}

#[test]
fn unknown_frames_are_skipped() {
    let mut peer = Peer::server(Version::V31);
    for number in [5, 10, 11, 99] {
        assert_eq!(peer.told(&[0x80, 3, 0, number, 0, 0, 0, 3, 1, 2, 3]), []);
    }
}

#[test]
fn windows_overflow() {
    for version in BOTH {
        let mut peer = server_with_request(version);
        assert_eq!(
            peer.told(&window_update(1, 0x7fff_ffff)),
            reset(1, status::FLOW_CONTROL_ERROR)
        );
        let mut peer = server_with_request(version);
        assert_eq!(
            peer.told(&window_update(1, 0)),
            reset(1, status::PROTOCOL_ERROR)
        );
        assert_eq!(peer.told(&window_update(1, 5)), [], "a finished stream");
        let mut peer = server_with_request(version);
        ends(
            &mut peer,
            &settings(&[(7, 0x8000_0000)]),
            1,
            status::FLOW_CONTROL_ERROR,
        );
        let mut peer = server_with_request(version);
        peer.told(&window_update(1, 0x7fff_0000 - 65_536));
        assert_eq!(
            peer.told(&settings(&[(7, 200_000)])),
            reset(1, status::FLOW_CONTROL_ERROR)
        );
    }
    let mut peer = server_with_request(Version::V31);
    ends(
        &mut peer,
        &window_update(0, 0x7fff_ffff),
        1,
        status::FLOW_CONTROL_ERROR,
    );
    let mut peer = server_with_request(Version::V31);
    ends(&mut peer, &window_update(0, 0), 1, status::PROTOCOL_ERROR);
    let mut peer = server_with_request(Version::V3);
    assert_eq!(
        peer.told(&window_update(0, 0x7fff_ffff)),
        [],
        "SPDY/3 has no session window"
    );
}

#[test]
fn more_data_than_a_window() {
    for version in BOTH {
        let mut config = config(Role::Server, version);
        config.mux.stream_window = 100_000;
        config.mux.session_window = 150_000;
        let mut peer = Peer::new(config);
        let first = peer.script.syn_stream(1, false, &POST);
        peer.told(&first);
        peer.told(&data(1, false, &[0; 100_000]));
        assert!(peer.told(&data(1, false, b"x")).contains(&Seen::Rst {
            id: 1,
            status: status::FLOW_CONTROL_ERROR
        }));
        let second = peer.script.syn_stream(3, false, &POST);
        peer.told(&second);
    }
    let mut config = config(Role::Server, Version::V31);
    config.mux.session_window = 70_000;
    let mut peer = Peer::new(config);
    ends(
        &mut peer,
        &data(1, false, &[0; 70_001]),
        0,
        status::FLOW_CONTROL_ERROR,
    );
}

#[test]
fn a_small_window_tolerates_what_was_under_way() {
    let mut config = config(Role::Server, Version::V31);
    config.mux.stream_window = 1000;
    let mut peer = Peer::new(config);
    let syn = peer.script.syn_stream(1, false, &POST);
    peer.told(&syn);
    assert!(
        peer.told(&data(1, false, &[0; 65_536]))
            .iter()
            .all(|seen| matches!(seen, Seen::WindowUpdate { .. }))
    );
}

#[test]
fn windows_of_the_peer_are_kept() {
    for version in BOTH {
        let mut peer = server_with_request(version);
        peer.told(&settings(&[(7, 10_000)]));
        peer.session.respond(1, &response(200, &[]), false);
        peer.session.send_data(1, vec![0; 50_000].into(), true);
        let sent = |seen: &[Seen]| {
            seen.iter()
                .map(|seen| {
                    if let Seen::Data { bytes, .. } = seen {
                        bytes.len()
                    } else {
                        0
                    }
                })
                .sum::<usize>()
        };
        assert_eq!(sent(&peer.output()), 10_000);
        assert_eq!(sent(&peer.told(&window_update(1, 500))), 500);
        assert_eq!(sent(&peer.told(&settings(&[(7, 0)]))), 0, "now below zero");
        assert_eq!(sent(&peer.told(&window_update(1, 10_000))), 0);
        assert_eq!(sent(&peer.told(&window_update(1, 1))), 1);
        assert_eq!(sent(&peer.told(&settings(&[(7, 65_536)]))), 39_499);
    }
}

#[test]
fn the_session_window_is_kept_and_an_end_needs_none() {
    let mut peer = server_with_request(Version::V31);
    let second = peer.script.syn_stream(3, true, &GET);
    peer.told(&[&settings(&[(7, 1 << 20)])[..], &second].concat());
    peer.session.respond(1, &response(200, &[]), false);
    peer.session.respond(3, &response(200, &[]), false);
    peer.session.send_data(1, vec![0; 100_000].into(), true);
    let sent: usize = peer
        .output()
        .iter()
        .map(|s| {
            if let Seen::Data { bytes, .. } = s {
                bytes.len()
            } else {
                0
            }
        })
        .sum();
    assert_eq!(sent, 65_536);
    assert_eq!(
        peer.session.unsent(1),
        Unsent {
            bytes: 100_000 - 65_536,
            shut: Some(Window::Session)
        }
    );
    peer.session.send_data(3, bytes::Bytes::new(), true);
    assert_eq!(
        peer.output(),
        [Seen::Data {
            id: 3,
            fin: true,
            bytes: vec![]
        }]
    );
    let more = peer.told(&window_update(0, 100_000));
    assert!(
        matches!(
            more.last(),
            Some(Seen::Data {
                id: 1,
                fin: true,
                ..
            })
        ),
        "{more:?}"
    );
}

#[test]
fn a_zero_window_holds_everything_but_heads() {
    let mut peer = Peer::server(Version::V3);
    let syn = peer.script.syn_stream(1, true, &GET);
    peer.told(&[&settings(&[(7, 0)])[..], &syn].concat());
    peer.session.respond(1, &response(200, &[]), false);
    peer.session.send_data(1, vec![0; 10].into(), true);
    assert!(matches!(peer.output()[..], [Seen::SynReply { .. }]));
    assert!(!peer.session.wants_output());
    assert_eq!(peer.session.send_room(1), 0);
    assert_eq!(
        peer.session.unsent(1),
        Unsent {
            bytes: 10,
            shut: Some(Window::Stream)
        }
    );
}

#[test]
fn pushes_that_break_rules() {
    let push = [
        (":scheme", "http"),
        (":host", "example.org"),
        (":path", "/a"),
        OK[0],
        OK[1],
    ];
    let mut peer = client_with_response(Version::V31);
    let orphan = peer.script.push(2, 0, &push);
    ends(&mut peer, &orphan, 2, status::PROTOCOL_ERROR);
    for missing in 0..3 {
        let mut peer = client_with_response(Version::V31);
        let mut pairs = push.to_vec();
        pairs.remove(missing);
        let frame = peer.script.push(2, 1, &pairs);
        assert_eq!(peer.told(&frame), reset(2, status::PROTOCOL_ERROR));
    }
    let mut peer = client_with_response(Version::V31);
    let unknown = peer.script.push(2, 5, &push);
    assert_eq!(peer.told(&unknown), reset(2, status::INVALID_STREAM));
    peer.told(&data(1, true, b"end"));
    let late = peer.script.push(4, 1, &push);
    assert_eq!(peer.told(&late), reset(4, status::INVALID_STREAM));
}

#[test]
fn the_head_of_a_push_in_parts() {
    let push = [
        (":scheme", "http"),
        (":host", "example.org"),
        (":path", "/a"),
    ];
    let mut peer = client_with_response(Version::V3);
    let frame = peer.script.push(2, 1, &push);
    assert_eq!(peer.told(&frame), []);
    let head = peer.script.headers(2, false, &OK);
    let more = peer.script.headers(2, false, &[("etag", "x")]);
    assert_eq!(
        peer.told(&[head, more, data(2, true, b"body")].concat()),
        []
    );
    let events = peer.events();
    let [
        Event::Push { .. },
        Event::Response { head, .. },
        Event::Data { end: true, .. },
    ] = &events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!(
        (head.status, head.fields.get("etag")),
        (200, Some(&b"x"[..]))
    );
    for bad in [&OK[..1], &[("etag", "x")], &[(":path", "/b")]] {
        let mut peer = client_with_response(Version::V3);
        let frame = peer
            .script
            .push(2, 1, &[&push[..], &OK, &[("etag", "y")]].concat());
        assert_eq!(peer.told(&frame), []);
        let headers = peer.script.headers(2, false, bad);
        assert_eq!(
            peer.told(&headers),
            reset(2, status::PROTOCOL_ERROR),
            "{bad:?}"
        );
    }
    let mut peer = client_with_response(Version::V3);
    let frame = peer.script.push(2, 1, &push);
    peer.told(&frame);
    assert_eq!(
        peer.told(&data(2, false, b"no head")),
        reset(2, status::PROTOCOL_ERROR)
    );
}

#[test]
fn pushes_of_other_peoples_programs() {
    // spdy-transport and spdystream do not mark them as unidirectional; the first puts everything
    // into one frame.
    let mut peer = client_with_response(Version::V31);
    let block = peer.script.block(&[
        (":method", "GET"),
        (":scheme", "http"),
        (":host", "example.org"),
        (":path", "/a"),
        OK[0],
        OK[1],
        ("etag", "x"),
    ]);
    let frame = tandem_spdy::frame::SynStream {
        stream: 2,
        associated: 1,
        priority: 0,
        slot: 0,
        fin: false,
        unidirectional: false,
        block: &block,
    };
    let frame = crate::support::encoded(|dst| frame.encode(dst));
    assert_eq!(peer.told(&[frame, data(2, true, b"x")].concat()), []);
    assert!(matches!(
        peer.events()[..],
        [
            Event::Push { .. },
            Event::Response { .. },
            Event::Data { .. }
        ]
    ));
    assert_eq!(peer.session.active(), 1);
}

#[test]
fn goaway_numbers() {
    for (version, internal) in [(Version::V3, 11), (Version::V31, 2)] {
        let mut peer = server_with_request(version);
        peer.session.go_away(Reason::Internal);
        peer.session.go_away(Reason::Internal);
        assert_eq!(
            peer.output(),
            [Seen::GoAway {
                last: 1,
                status: internal
            }]
        );
        let late = peer.script.syn_stream(3, false, &POST);
        assert_eq!(peer.told(&[late, data(3, true, b"ignored")].concat()), []);
        assert!(peer.events().is_empty());
    }
    let mut peer = Peer::server(Version::V3);
    peer.session.go_away(Reason::NoError);
    assert_eq!(peer.output(), [Seen::GoAway { last: 0, status: 0 }]);
}

#[test]
fn goaway_tells_what_was_not_processed() {
    let mut peer = Peer::client(Version::V31);
    for _ in 0..3 {
        peer.open(true);
    }
    peer.told(&goaway(3, 0));
    assert!(matches!(
        peer.events()[..],
        [
            Event::GoAway { last: 3, .. },
            Event::Reset {
                id: 5,
                reason: Reason::Refused
            }
        ]
    ));
    let reply = peer.script.syn_reply(3, true, &OK);
    peer.told(&reply);
    assert!(matches!(
        peer.events()[..],
        [Event::Response {
            id: 3,
            end: true,
            ..
        }]
    ));
}

#[test]
fn pings_by_parity() {
    let mut peer = Peer::server(Version::V31);
    assert_eq!(peer.told(&ping(1)), [Seen::Ping(1)]);
    assert_eq!(peer.told(&ping(u32::MAX)), [Seen::Ping(u32::MAX)]);
    assert_eq!(peer.told(&ping(2)), [], "never asked");
    let mut peer = Peer::client(Version::V31);
    assert_eq!(peer.told(&ping(0)), [Seen::Ping(0)]);
}

#[test]
fn a_ping_overtakes_data() {
    let mut peer = server_with_request(Version::V31);
    peer.session.respond(1, &response(200, &[]), false);
    peer.session.send_data(1, vec![0; 30_000].into(), true);
    assert_eq!(peer.told(&ping(7)).first(), Some(&Seen::Ping(7)));
}

#[test]
fn stream_ids_run_out_and_never_wrap() {
    let mut peer = Peer::server(Version::V31);
    let last = peer.script.syn_stream(0x7fff_ffff, true, &GET);
    assert_eq!(peer.told(&last), []);
    let again = peer.script.syn_stream(1, true, &GET);
    ends(&mut peer, &again, 0x7fff_ffff, status::PROTOCOL_ERROR);
}

#[test]
fn in_spdy3_the_budget_resets() {
    let mut config = config(Role::Server, Version::V3);
    config.mux.receive_budget = 100_000;
    let mut peer = Peer::new(config);
    let first = peer.script.syn_stream(1, false, &POST);
    peer.told(&first);
    peer.told(&data(1, false, &[0; 90_000]));
    assert_eq!(
        peer.told(&data(1, false, &[0; 20_000])),
        reset(1, status::FLOW_CONTROL_ERROR)
    );
}

/// Returns a server that has filled the send window of a silent client.
fn blocked_server() -> Peer {
    let mut peer = server_with_request(Version::V31);
    peer.session.respond(1, &response(200, &[]), false);
    peer.session.send_data(1, vec![0; 200_000].into(), true);
    let seen = peer.output();
    assert!(
        matches!(seen.last(), Some(Seen::Data { fin: false, .. })),
        "{seen:?}"
    );
    peer
}

#[test]
fn a_peer_without_windows_is_found_out() {
    let mut peer = blocked_server();
    assert_eq!(peer.output(), []);
    peer.wait(Duration::from_secs(1));
    let asked = peer.output();
    let [Seen::Ping(id)] = asked[..] else {
        panic!("{asked:?}")
    };
    assert_eq!(peer.told(&ping(id)), []);
    assert!(peer.events().is_empty(), "not the user's ping");
    peer.wait(Duration::from_secs(1));
    let rest = peer.output();
    assert!(
        matches!(rest.last(), Some(Seen::Data { fin: true, .. })),
        "{rest:?}"
    );
}

/// However the session window comes to be empty: at the end of a poll, or before anything waits for
/// it.
#[test]
fn every_empty_window_is_noticed() {
    let mut peer = server_with_request(Version::V31);
    let second = peer.script.syn_stream(3, true, &GET);
    peer.told(&second);
    for id in [1, 3] {
        peer.session.respond(id, &response(200, &[]), false);
    }
    peer.session.set_priority(1, Priority(0));
    peer.session.send_data(1, vec![0; 65_536].into(), true);
    peer.session.send_data(3, vec![0].into(), true);
    while peer.session.wants_output() {
        peer.session
            .poll_output(&mut tandem_http::SendBuf::new(), 1);
    }
    assert!(peer.session.poll_timeout().is_some());
    let mut peer = server_with_request(Version::V31);
    peer.session.respond(1, &response(200, &[]), false);
    peer.session.send_data(1, vec![0; 65_536].into(), false);
    peer.output();
    assert_eq!(peer.session.poll_timeout(), None);
    peer.session.send_data(1, vec![0].into(), true);
    assert!(peer.session.poll_timeout().is_some());
}

#[test]
fn a_peer_that_gives_credit_keeps_its_windows() {
    let mut peer = blocked_server();
    peer.told(&window_update(1, 10));
    peer.wait(Duration::from_secs(10));
    assert_eq!(peer.output(), []);
    assert_eq!(peer.session.poll_timeout(), None);
}

#[test]
fn an_unanswered_question_changes_nothing() {
    let mut peer = blocked_server();
    peer.wait(Duration::from_secs(1));
    peer.output();
    peer.wait(Duration::from_secs(100));
    assert_eq!(peer.output(), []);
}

#[test]
fn credit_rides_or_waits_until_it_is_worth_a_packet() {
    let mut peer = client_with_response(Version::V31);
    peer.told(&settings(&[(4, 100)]));
    let seen = peer.told(&data(1, false, &vec![0; 1 << 20]));
    assert_eq!(seen, [], "an eighth of the window");
    peer.session.release(1, 1 << 20);
    assert!(!peer.session.wants_output());
    let seen = peer.told(&ping(2));
    assert_eq!(
        seen,
        [
            Seen::Ping(2),
            Seen::WindowUpdate {
                id: 0,
                delta: 1 << 20
            },
            Seen::WindowUpdate {
                id: 1,
                delta: 1 << 20
            }
        ]
    );
    peer.told(&data(1, false, &vec![0; 3 << 20]));
    peer.session.release(1, 3 << 20);
    assert!(peer.output().contains(&Seen::WindowUpdate {
        id: 1,
        delta: 3 << 20
    }));
}

#[test]
fn session_credits_silent_peer_within_64_kib() {
    let mut peer = client_with_response(Version::V31);
    peer.told(&data(1, false, &[0; 16_384]));
    peer.session.release(1, 16_384);
    peer.output();
    peer.told(&data(1, false, &[0; 16_384]));
    peer.session.release(1, 16_384);
    assert!(peer.output().contains(&Seen::WindowUpdate {
        id: 1,
        delta: 16_384
    }));
}

#[test]
fn commands_on_what_is_gone_do_nothing() {
    let mut session = Connection::new(config(Role::Client, Version::V31));
    session.send_data(1, vec![1].into(), true);
    session.respond(1, &response(200, &[]), true);
    session.reset(1, Reason::Cancel);
    session.release(1, 10);
    session.set_priority(1, Priority(0));
    assert_eq!(session.send_room(1), 0);
    let mut peer = Peer::client(Version::V31);
    let id = peer.open(true);
    peer.session.send_data(id, vec![1].into(), true);
    peer.session
        .send_trailers(id, &[("a", "b")].into_iter().collect());
    assert_eq!(peer.output(), []);
    peer.session.reset(id, Reason::Cancel);
    assert_eq!(peer.output(), reset(id, status::CANCEL));
    peer.session
        .open(&get("/"), true, Priority(9))
        .expect("any number is a priority");
    assert!(matches!(
        peer.output()[..],
        [Seen::SynStream { priority: 7, .. }]
    ));
}

#[test]
fn nothing_is_said_before_the_head() {
    let mut peer = server_with_request(Version::V31);
    peer.session.send_data(1, vec![0; 10].into(), true);
    assert_eq!(peer.output(), []);
    peer.session.respond(1, &response(200, &[]), false);
    assert!(matches!(
        peer.output()[..],
        [Seen::SynReply { .. }, Seen::Data { fin: true, .. }]
    ));
}

#[test]
fn scripts_and_sessions_keep_apart() {
    // A second script has another compression context: the session must notice.
    let mut peer = server_with_request(Version::V31);
    let foreign = Script::default().syn_stream(3, true, &GET);
    ends(&mut peer, &foreign, 3, status::PROTOCOL_ERROR);
}

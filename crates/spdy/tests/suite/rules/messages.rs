//! Heads, lengths, replies and trailers that break a rule.

use tandem_http::{Event, Mux as _, Reason};
use tandem_spdy::header_block::DICTIONARY;
use tandem_spdy::{Version, status};

use super::{BOTH, client_with_response, ends, reset, server_with_request};
use crate::support::{GET, OK, POST, Peer, Seen, data, response};

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

//! Pushes that break a rule, and those of other programs.

use tandem_http::{Event, Mux as _};
use tandem_spdy::{Version, status};

use super::{client_with_response, ends, reset};
use crate::support::{OK, data};

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

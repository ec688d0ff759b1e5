//! Numbers of streams, resets, GOAWAY and PING.

use tandem_http::{Event, Mux as _, Priority, Reason, Role};
use tandem_spdy::{Connection, Version, status};

use super::{BOTH, client_with_response, ends, reset, server_with_request};
use crate::support::{
    GET, OK, POST, Peer, Script, Seen, config, data, get, goaway, ping, response, rst,
};

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
fn scripts_and_sessions_keep_apart() {
    // A second script has another compression context: the session must notice.
    let mut peer = server_with_request(Version::V31);
    let foreign = Script::default().syn_stream(3, true, &GET);
    ends(&mut peer, &foreign, 3, status::PROTOCOL_ERROR);
}

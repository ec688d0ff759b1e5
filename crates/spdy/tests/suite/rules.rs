//! Broken rules, each with the stream error or session error that the drafts demand, and bounds on
//! memory.

mod credit;
mod frames;
mod lengths;
mod lifetimes;
mod messages;
mod pushed;
mod pushes;
mod windows;

use tandem_http::{Event, Mux as _};
use tandem_spdy::Version;

use crate::support::{OK, POST, Peer, Seen, ping};

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

#[test]
fn trailers_of_a_request_have_no_control_bytes() {
    for version in BOTH {
        let mut peer = server_with_request(version);
        let headers = peer.script.headers(1, true, &[("x", "a\x01b")]);
        assert_eq!(peer.told(&headers), reset(1, 1));
        let events = peer.events();
        assert!(
            matches!(events[..], [Event::Reset { id: 1, .. }]),
            "{events:?}"
        );
    }
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

//! Credit: peers without windows, and the moment at which credit leaves.

use std::time::Duration;

use tandem_http::{ByteMux as _, Mux as _, Priority, Role};
use tandem_spdy::{Version, status};

use super::{client_with_response, reset, server_with_request};
use crate::support::{
    GET, POST, Peer, Seen, config, data, ping, response, settings, window_update,
};

/// A stream that holds little has not filled the budget.
#[test]
fn in_spdy3_the_budget_resets_large_streams_only() {
    let mut config = config(Role::Server, Version::V3);
    config.mux.receive_budget = 100_000;
    let mut peer = Peer::new(config);
    let first = peer.script.syn_stream(1, false, &POST);
    peer.told(&first);
    let second = peer.script.syn_stream(3, false, &POST);
    peer.told(&second);
    peer.told(&data(1, false, &[0; 90_000]));
    assert_eq!(peer.told(&data(3, false, &[0; 15_000])), []);
    assert_eq!(
        peer.told(&data(3, false, &[0; 15_000])),
        reset(3, status::FLOW_CONTROL_ERROR)
    );
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

//! Windows: overflows, excesses, and data that waits (section 2.6.8 of the draft of SPDY/3.1).

use tandem_http::mux::{Unsent, Window};
use tandem_http::{Mux as _, Role};
use tandem_spdy::{Version, status};

use super::{BOTH, ends, reset, server_with_request};
use crate::support::{GET, POST, Peer, Seen, config, data, response, settings, window_update};

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

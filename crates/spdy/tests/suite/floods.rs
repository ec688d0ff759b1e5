//! The flood budget of a SPDY session: each kind of flood ends the session within 5,000 frames, and
//! heavy use by honest peers never does.

use std::time::Duration;

use tandem_http::{Event, Mux as _, Reason, SessionError};
use tandem_spdy::{Version, status};

use crate::support::{
    GET, OK, POST, Peer, Seen, data, goaway, ping, response, rst, settings, window_update,
};

const BOTH: [Version; 2] = [Version::V3, Version::V31];
const MAX_FRAMES: usize = 5000;

/// Repeats `send`, which sends `frames` frames for an odd stream, until the session ends.
fn flood(
    name: &str,
    mut peer: Peer,
    frames: usize,
    mut send: impl FnMut(&mut Peer, u32) -> Result<(), SessionError>,
) {
    for turn in 0..=MAX_FRAMES / frames {
        if let Err(error) = send(&mut peer, turn as u32 * 2 + 3) {
            assert_eq!(
                error.reason,
                Reason::EnhanceYourCalm,
                "{name}: {}",
                error.detail
            );
            assert!(turn > 100, "{name}: {turn} are too few");
            let seen = peer.output();
            assert!(matches!(seen.last(), Some(Seen::GoAway { .. })), "{name}");
            return;
        }
        peer.events();
        peer.output();
    }
    panic!("{name}: {MAX_FRAMES} frames have not ended the session");
}

/// Repeats one frame until the session ends.
fn repeat(name: &str, peer: Peer, frame: &[u8]) {
    flood(name, peer, 1, |peer, _| peer.input(frame));
}

/// Returns a server with an open request on stream 1 and an unfinished body.
fn server_with_upload(version: Version) -> Peer {
    let mut peer = Peer::server(version);
    let syn = peer.script.syn_stream(1, false, &POST);
    peer.told(&syn);
    peer
}

/// A server that has reset stream 1.
fn server_with_reset(version: Version) -> Peer {
    let mut peer = server_with_upload(version);
    peer.session.reset(1, Reason::Cancel);
    peer
}

#[test]
fn session_frames_are_charged() {
    for version in BOTH {
        let server = || Peer::server(version);
        repeat("PING", server(), &ping(1));
        repeat("unasked PING", server(), &ping(2));
        repeat("SETTINGS", server(), &settings(&[(7, 1)]));
        repeat("GOAWAY", server(), &goaway(0, 0));
        repeat(
            "WINDOW_UPDATE of the session",
            server(),
            &window_update(0, 1),
        );
        repeat("WINDOW_UPDATE of no stream", server(), &window_update(9, 5));
        repeat("NOOP", server(), &[0x80, 3, 0, 5, 0, 0, 0, 0]);
        repeat("unknown", server(), &[0x80, 3, 0, 99, 0, 0, 0, 0]);
        repeat("PING to a client", Peer::client(version), &ping(2));
    }
}

#[test]
fn frames_without_data_on_streams_are_charged() {
    for version in BOTH {
        repeat(
            "empty DATA",
            server_with_upload(version),
            &data(1, false, b""),
        );
        repeat(
            "WINDOW_UPDATE",
            server_with_upload(version),
            &window_update(1, 1),
        );
        let mut peer = server_with_upload(version);
        let empty = peer.script.headers(1, false, &[]);
        repeat("HEADERS", peer, &empty);
    }
}

#[test]
fn resets_are_charged_whatever_came_before() {
    for version in BOTH {
        repeat("RST_STREAM", Peer::server(version), &rst(9, 5));
        flood("rapid reset", Peer::server(version), 2, |peer, id| {
            let syn = peer.script.syn_stream(id, false, &POST);
            peer.input(&syn)?;
            peer.input(&rst(id, status::CANCEL))
        });
        flood("reset after data", Peer::server(version), 3, |peer, id| {
            let syn = peer.script.syn_stream(id, false, &POST);
            peer.input(&syn)?;
            peer.input(&data(id, false, &[0; 1100]))?;
            peer.input(&rst(id, status::CANCEL))
        });
    }
}

#[test]
fn faults_that_reset_streams_are_charged() {
    for version in BOTH {
        let server = || Peer::server(version);
        flood("DATA of no stream", server(), 1, |peer, id| {
            peer.input(&data(id, false, b"x"))
        });
        flood("increment of 0", server(), 2, |peer, id| {
            let syn = peer.script.syn_stream(id, false, &POST);
            peer.input(&syn)?;
            peer.input(&window_update(id, 0))
        });
        flood("SYN_REPLY to a server", server(), 2, |peer, id| {
            let syn = peer.script.syn_stream(id, false, &POST);
            peer.input(&syn)?;
            let reply = peer.script.syn_reply(id, false, &OK);
            peer.input(&reply)
        });
        flood("incomplete requests", server(), 1, |peer, id| {
            let syn = peer.script.syn_stream(id, true, &GET[1..]);
            peer.input(&syn)
        });
        let mut peer = server();
        let syn = peer.script.syn_stream(1, false, &POST);
        peer.told(&syn);
        flood("SYN_STREAM twice", peer, 1, |peer, _| {
            let syn = peer.script.syn_stream(1, false, &POST);
            peer.input(&syn)
        });
    }
}

/// A head within the bound of one block costs the work of inflating all of it.
#[test]
fn excess_of_heads_is_charged_by_its_size() {
    let mut peer = Peer::server(Version::V31);
    let value = "x".repeat(1000 << 10);
    let mut pairs = GET.to_vec();
    pairs.push(("x", &value));
    let mut ids = (1..).step_by(2);
    let heads = ids.position(|id| {
        let syn = peer.script.syn_stream(id, true, &pairs);
        let Err(error) = peer.input(&syn) else {
            assert!(matches!(peer.output().last(), Some(Seen::Rst { .. })));
            return false;
        };
        assert_eq!(error.reason, Reason::EnhanceYourCalm, "{}", error.detail);
        true
    });
    // 936 KiB are above the limit: 58.5 frames, and one for the reset.
    assert_eq!(heads, Some(25));
}

/// The context of the session stays in step with the peer after an over-long head.
#[test]
fn request_after_an_over_long_head_is_served() {
    let value = "x".repeat(900 << 10);
    let mut peer = Peer::server(Version::V31);
    let mut pairs = GET.to_vec();
    pairs.push(("x", &value));
    let syn = peer.script.syn_stream(1, true, &pairs);
    let reset = Seen::Rst {
        id: 1,
        status: status::FRAME_TOO_LARGE,
    };
    assert_eq!(peer.told(&syn), [reset]);
    let syn = peer.script.syn_stream(3, true, &GET);
    assert_eq!(peer.told(&syn), []);
    let events = peer.events();
    assert!(
        matches!(events[..], [Event::Request { id: 3, .. }]),
        "{events:?}"
    );
}

#[test]
fn frames_of_reset_streams_are_charged() {
    for version in BOTH {
        for len in [1, 1100, 8192] {
            let frame = data(1, false, &vec![0; len]);
            repeat("DATA", server_with_reset(version), &frame);
        }
        flood("HEADERS", server_with_reset(version), 1, |peer, _| {
            let headers = peer.script.headers(1, true, &[("x", "y")]);
            peer.input(&headers)
        });
        repeat(
            "WINDOW_UPDATE",
            server_with_reset(version),
            &window_update(1, 1024),
        );
    }
}

#[test]
fn data_of_answered_requests_is_charged() {
    for version in BOTH {
        let mut peer = Peer::server(version);
        let syn = peer.script.syn_stream(1, false, &POST[1..]);
        peer.told(&syn);
        repeat("DATA", peer, &data(1, false, &[0; 1100]));
    }
}

#[test]
fn unread_answers_are_bounded() {
    let mut peer = Peer::server(Version::V31);
    let ended = (0..1100).any(|_| {
        peer.wait(Duration::from_secs(1));
        peer.input(&ping(1)).is_err()
    });
    assert!(ended);
}

#[test]
fn slow_pings_are_never_charged_for_good() {
    let mut peer = Peer::server(Version::V31);
    for number in 0..20_000 {
        peer.wait(Duration::from_millis(20));
        assert_eq!(peer.told(&ping(2 * number + 1)).len(), 1);
    }
}

#[test]
fn a_page_of_1300_images_may_be_cancelled() {
    for version in BOTH {
        let mut peer = Peer::server(version);
        let mut open = Vec::new();
        for image in 0..1300 {
            let id = image * 2 + 1;
            let syn = peer.script.syn_stream(id, true, &GET);
            peer.told(&syn);
            peer.session.respond(id, &response(200, &[]), false);
            peer.session.send_data(id, vec![1; 30].into(), false);
            peer.events();
            peer.output();
            open.push(id);
            if open.len() == 200 || image == 1299 {
                for id in open.drain(..) {
                    peer.told(&rst(id, status::CANCEL));
                }
            }
        }
        assert_eq!(peer.session.active(), 0);
    }
}

/// The data dribble of CVE-2019-9511: a window of one byte, and one more byte at a time.
#[test]
fn dribbled_windows_are_charged() {
    for version in BOTH {
        let mut peer = Peer::server(version);
        peer.told(&settings(&[(7, 1)]));
        let syn = peer.script.syn_stream(1, true, &GET);
        peer.told(&syn);
        peer.session.respond(1, &response(200, &[]), false);
        peer.session.send_data(1, vec![1; 60_000].into(), true);
        repeat("one byte", peer, &window_update(1, 1));
    }
}

#[test]
fn downloads_with_small_credit_are_free() {
    let mut peer = Peer::server(Version::V31);
    for stream in 0..100 {
        let id = stream * 2 + 1;
        let syn = peer.script.syn_stream(id, true, &GET);
        peer.input(&syn).expect("a request");
        peer.session.respond(id, &response(200, &[]), false);
        peer.session.send_data(id, vec![1; 200_000].into(), true);
    }
    let mut received = 0;
    while received < 20_000_000 {
        for seen in peer.output() {
            let Seen::Data { id, bytes, .. } = seen else {
                continue;
            };
            received += bytes.len();
            for piece in bytes.chunks(1024) {
                let delta = piece.len() as u32;
                peer.input(&window_update(0, delta))
                    .expect("session credit");
                peer.input(&window_update(id, delta))
                    .expect("stream credit");
            }
        }
    }
    assert_eq!((received, peer.session.active()), (20_000_000, 0));
}

#[test]
fn remote_procedure_calls_with_pings_are_free() {
    let mut peer = Peer::server(Version::V31);
    for call in 0..10_000 {
        let id = call * 2 + 1;
        let syn = peer.script.syn_stream(id, false, &POST);
        peer.told(&syn);
        peer.told(&data(id, true, &[0; 30]));
        peer.told(&ping(2 * call + 1));
        peer.told(&window_update(0, 40));
        for event in peer.events() {
            if let Event::Data { id, data, .. } = event {
                peer.session.release(id, data.len());
            }
        }
        peer.session.respond(id, &response(200, &[]), false);
        peer.session.send_data(id, vec![1; 40].into(), true);
        peer.output();
    }
}

//! Settings, and frames that are malformed, unknown, or of another version.

use std::time::Instant;

use bytes::Buf as _;
use tandem_http::{ByteMux as _, Mux as _, Role, SendBuf};
use tandem_spdy::{Connection, Version, status};

use super::{ends, server_with_request};
use crate::support::{GET, Peer, Seen, config, settings};

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

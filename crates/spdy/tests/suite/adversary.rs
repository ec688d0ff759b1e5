//! Arbitrary input: it causes no panic, no endless work and no memory that grows with a peer's
//! announcements. The fuzz targets extend these tests.

use std::time::Instant;

use bytes::Buf as _;
use proptest::prelude::*;
use tandem_http::{ByteMux as _, Event, Mux as _, Priority, Reason, Role, SendBuf};
use tandem_spdy::header_block::{Decoder, Pairs};
use tandem_spdy::{Connection, Version};

use crate::support::{config, get, response};

/// Feeds a session and uses it as a driver would: whatever it says, nothing may break.
fn drive(role: Role, version: Version, chunks: &[Vec<u8>]) {
    let now = Instant::now();
    let mut session = Connection::new(config(role, version));
    for _ in 0..3 {
        let _ = session.open(&get("/"), true, Priority(2));
    }
    for chunk in chunks {
        if session.handle_input(now, chunk).is_err() {
            break;
        }
        while let Some(event) = session.poll_event() {
            answer(&mut session, event);
        }
        let mut out = SendBuf::new();
        session.poll_output(&mut out, 4096);
        assert!(out.remaining() < 1 << 20);
    }
    session.go_away(Reason::NoError);
    let mut out = SendBuf::new();
    while session.wants_output() {
        session.poll_output(&mut out, usize::MAX);
    }
}

fn answer(session: &mut Connection, event: Event) {
    match event {
        Event::Request { id, .. } => {
            let _ = session.push(id, &get("/pushed"), Priority(6));
            session.respond(id, &response(200, &[("a", "b")]), false);
            session.send_data(id, vec![0; 20_000].into(), id % 4 == 1);
        }
        Event::Data { id, data, .. } if id % 8 != 1 => session.release(id, data.len()),
        Event::Push { id, .. } if id % 4 == 0 => session.reset(id, Reason::Cancel),
        _ => {}
    }
}

/// Heads that mean something, with payloads that may not.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let control = (
        0u8..12,
        any::<u8>(),
        prop::collection::vec(any::<u8>(), 0..64),
    )
        .prop_map(|(kind, flags, payload)| {
            let mut frame = vec![0x80, 3, 0, kind, flags, 0, 0, payload.len() as u8];
            frame.extend(payload);
            frame
        });
    let short = (0u8..10, 0u8..4, prop::collection::vec(0u8..9, 8..9)).prop_map(
        |(kind, flags, mut payload)| {
            payload[0] = 0;
            payload[1] = 0;
            payload[2] = 0;
            let mut frame = vec![0x80, 3, 0, kind, flags, 0, 0, 8];
            frame.extend(payload);
            frame
        },
    );
    let data = (0u8..9, 0u8..2, prop::collection::vec(any::<u8>(), 0..64)).prop_map(
        |(id, flags, payload)| {
            let mut frame = vec![0, 0, 0, id, flags, 0, 0, payload.len() as u8];
            frame.extend(payload);
            frame
        },
    );
    prop_oneof![
        control,
        short,
        data,
        prop::collection::vec(any::<u8>(), 0..40)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn any_frames(client: bool, v31: bool, chunks in prop::collection::vec(frame(), 0..40)) {
        let role = if client { Role::Client } else { Role::Server };
        drive(role, if v31 { Version::V31 } else { Version::V3 }, &chunks);
    }

    #[test]
    fn any_block(blocks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..6)) {
        let mut decoder = Decoder::new(1000);
        for block in blocks {
            if decoder.decode(&block).is_err() {
                break;
            }
        }
    }

    #[test]
    fn any_list(bytes in prop::collection::vec(prop_oneof![0u8..4, any::<u8>()], 0..300)) {
        if let Ok(pairs) = Pairs::load(&bytes, 200) {
            prop_assert!(pairs.iter().map(|(name, value)| name.len() + value.len() + 32).sum::<usize>() <= 200);
        }
    }
}

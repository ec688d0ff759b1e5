//! Resets, PING and GOAWAY.

use bytes::Buf as _;
use tandem_http::mux::OpenError;
use tandem_http::{ByteMux as _, Event, Mux as _, Priority, Reason, SendBuf};
use tandem_spdy::Version;

use super::{BOTH, body_of};
use crate::support::{Pair, Seen, Wire, body, get, response};

#[test]
fn a_reset_reaches_the_other_end_once() {
    for version in BOTH {
        let mut pair = Pair::new(version);
        let id = pair
            .client
            .open(&get("/"), true, Priority::default())
            .expect("room");
        pair.settle();
        pair.server.respond(id, &response(200, &[]), false);
        pair.server.send_data(id, body(1 << 20), true);
        pair.step(64 << 10);
        pair.client.reset(id, Reason::Cancel);
        pair.client.reset(id, Reason::Cancel);
        let mut out = SendBuf::new();
        pair.client.poll_output(&mut out, usize::MAX);
        let bytes = out.copy_to_bytes(out.remaining());
        let resets = Wire::default().read_frames_after_greeting(&bytes);
        assert_eq!(resets, 1);
        pair.server.handle_input(pair.now, &bytes).expect("legal");
        pair.settle();
        assert_eq!((pair.client.active(), pair.server.active()), (0, 0));
    }
}

#[test]
fn reset_after_data_lets_the_beginning_arrive() {
    for version in BOTH {
        for length in [0, 10, 300_000] {
            let mut pair = Pair::new(version);
            let id = pair
                .client
                .open(&get("/"), true, Priority::default())
                .expect("room");
            pair.settle();
            pair.server.respond(id, &response(200, &[]), false);
            pair.server.send_data(id, body(length), false);
            pair.server.reset_after_data(id, Reason::Internal);
            pair.server.send_data(id, body(5), true);
            let mut events = Vec::new();
            loop {
                pair.settle();
                let came = pair.take_client();
                if came.is_empty() {
                    break;
                }
                for event in &came {
                    if let Event::Data { id, data, .. } = event {
                        pair.client.release(*id, data.len());
                    }
                }
                events.extend(came);
            }
            assert_eq!(body_of(&events, id), (body(length).to_vec(), false));
            assert!(matches!(events.last(), Some(Event::Reset { .. })));
            assert_eq!((pair.client.active(), pair.server.active()), (0, 0));
        }
    }
}

trait Resets {
    fn read_frames_after_greeting(&mut self, bytes: &[u8]) -> usize;
}

impl Resets for Wire {
    fn read_frames_after_greeting(&mut self, bytes: &[u8]) -> usize {
        self.read(bytes)
            .iter()
            .filter(|seen| matches!(seen, Seen::Rst { .. }))
            .count()
    }
}

#[test]
fn pings_come_back() {
    let mut pair = Pair::new(Version::V31);
    pair.client.ping(77);
    pair.server.ping(78);
    pair.settle();
    assert!(matches!(
        pair.take_client()[..],
        [Event::Pong { payload: 77 }]
    ));
    assert!(matches!(
        pair.take_server()[..],
        [Event::Pong { payload: 78 }]
    ));
}

#[test]
fn goaway_lets_open_streams_end() {
    for version in BOTH {
        let mut pair = Pair::new(version);
        let first = pair
            .client
            .open(&get("/"), true, Priority::default())
            .expect("room");
        pair.settle();
        pair.server.go_away(Reason::NoError);
        let late = pair
            .client
            .open(&get("/late"), true, Priority::default())
            .expect("not yet told");
        pair.settle();
        let events = pair.take_client();
        assert!(
            matches!(&events[..], [
                Event::GoAway { last, reason: Reason::NoError },
                Event::Reset { id, reason: Reason::Refused },
            ] if *last == first && *id == late),
            "{events:?}"
        );
        assert!(!pair.client.is_open() && !pair.server.is_open());
        assert_eq!(
            pair.client.open(&get("/"), true, Priority::default()),
            Err(OpenError::Closing)
        );
        pair.server.respond(first, &response(200, &[]), false);
        pair.server.send_data(first, body(10), true);
        pair.settle();
        assert_eq!(
            body_of(&pair.take_client(), first),
            (body(10).to_vec(), true)
        );
        assert_eq!((pair.client.active(), pair.server.active()), (0, 0));
        assert_eq!(pair.take_server().len(), 1);
    }
}

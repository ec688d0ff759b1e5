//! Any input on the streams of an HTTP/3 session gives the same events however it is cut. A user
//! that answers everything keeps the core within its bounds, with any datagrams between the parts.
#![no_main]

#[path = "../support/events.rs"]
mod events;

use std::time::Instant;

use libfuzzer_sys::fuzz_target;
use tandem_http::h3::{Code, Connection, Direction};
use tandem_http::{
    Bytes, Event, Mux, MuxConfig, Priority, Reason, RequestHead, ResponseHead, Role, Scheme,
    SendBuf, connect_udp,
};

/// A control stream with SETTINGS, which permit datagrams.
const CONTROL: [u8; 5] = [0, 4, 2, 0x33, 1];

/// The number of parts that arrive before the handshake is over.
const HANDSHAKE: usize = 2;

fuzz_target!(|data: &[u8]| {
    let Some((&first, wire)) = data.split_first() else {
        return;
    };
    let role = if first & 1 == 0 {
        Role::Client
    } else {
        Role::Server
    };
    let whole = events(role, wire, usize::MAX);
    let cut = events(role, wire, usize::from(first >> 1) + 1);
    assert_eq!(whole, cut);
    exchange(role, wire);
});

struct Peer {
    core: Connection,
    now: Instant,
    known: Vec<u64>,
    opened: [u64; 2],
}

impl Peer {
    fn new(role: Role) -> Self {
        let mut config = MuxConfig::new(role);
        (config.push, config.max_header_list, config.stream_window) = (true, 2000, 5000);
        let mut peer = Self {
            core: Connection::new(config),
            now: Instant::now(),
            known: Vec::new(),
            opened: [0; 2],
        };
        peer.core.permit_datagrams();
        peer.core.set_max_datagram(1200);
        if role == Role::Client {
            peer.core.begin_early();
            let head = connect_udp::request("192.0.2.1", 443);
            let opened = peer.core.open(&head, false, Priority(3));
            opened.expect("a stream");
            for path in ["/a", "/b"] {
                let head = RequestHead::get(Scheme::Https, "a", path);
                let opened = peer.core.open(&head, path == "/a", Priority(3));
                opened.expect("a stream");
            }
        }
        peer.output();
        // Only the GET without content leaves before the handshake is over.
        let early = u64::from(role == Role::Client);
        assert_eq!(peer.opened[0], early);
        let control = if role == Role::Client { 3 } else { 2 };
        assert!(peer.input(control, &CONTROL, false));
        peer
    }

    fn output(&mut self) {
        for direction in [Direction::Unidirectional, Direction::Bidirectional] {
            while self.core.wants_stream(direction) {
                let kind = u64::from(direction == Direction::Unidirectional);
                let id = self.opened[kind as usize] << 2 | kind << 1;
                self.opened[kind as usize] += 1;
                // Numbers of this side never meet those of the peer.
                self.core.handle_opened(direction, id | 1 << 40);
            }
        }
        while self.core.poll_command().is_some() {}
        while let Some(datagram) = self.core.poll_datagram() {
            assert!(datagram.len() <= 1200);
        }
        while let Some(stream) = self.core.poll_ready() {
            self.core.poll_output(stream, &mut SendBuf::new(), 10_000);
            self.core.handle_written(stream);
        }
    }

    fn input(&mut self, stream: u64, bytes: &[u8], end: bool) -> bool {
        if !self.known.contains(&stream) {
            self.known.push(stream);
            let direction = if stream & 2 == 0 {
                Direction::Bidirectional
            } else {
                Direction::Unidirectional
            };
            // The client's requests have numbers of its own.
            if stream < 1 << 40 && self.core.handle_accepted(stream, direction).is_err() {
                return false;
            }
        }
        self.core.handle_input(self.now, stream, bytes, end).is_ok()
    }
}

/// Splits the input into parts of streams: a byte for the stream, one for the length.
fn parts(role: Role, mut wire: &[u8]) -> Vec<(u64, &[u8], bool)> {
    let mut parts = Vec::new();
    while let [place, length, rest @ ..] = wire {
        let count = usize::from(length & 63).min(rest.len());
        let (bytes, after) = rest.split_at(count);
        let stream = match (role, place & 7) {
            (Role::Client, 0..4) => 1 << 40 | u64::from(place & 1) << 2,
            (Role::Client, place) => u64::from(place - 4) << 2 | 3,
            (Role::Server, place @ 0..4) => u64::from(place) << 2,
            (Role::Server, place) => u64::from(place - 4) << 2 | 2,
        };
        parts.push((stream, bytes, length & 0x80 != 0));
        wire = after;
    }
    parts
}

/// Returns the events, and whether the session goes on.
fn events(role: Role, wire: &[u8], cut: usize) -> (Vec<String>, bool) {
    let (mut peer, mut alive) = (Peer::new(role), true);
    'parts: for (place, (stream, bytes, end)) in parts(role, wire).into_iter().enumerate() {
        if place == HANDSHAKE {
            peer.core.confirm();
        }
        if cut >= bytes.len().max(1) {
            alive = peer.input(stream, bytes, end);
        } else {
            for piece in bytes.chunks(cut) {
                alive = peer.input(stream, piece, false);
                if !alive {
                    break 'parts;
                }
            }
            alive = peer.input(stream, &[], end);
        }
        if !alive {
            break;
        }
    }
    (events::joined(&mut peer.core), alive)
}

/// A user that answers everything while the input goes on.
fn exchange(role: Role, wire: &[u8]) {
    let mut peer = Peer::new(role);
    for (place, (stream, bytes, end)) in parts(role, wire).into_iter().enumerate() {
        if place == HANDSHAKE {
            peer.core.confirm();
        }
        let alive = match bytes {
            [0xff, code] => {
                let (now, code) = (peer.now, Code(u64::from(*code) + 0x100));
                peer.core.handle_reset(now, stream, code).is_ok()
                    && peer.core.handle_stopped(now, stream, code).is_ok()
            }
            [0xfe, datagram @ ..] => {
                let datagram = Bytes::copy_from_slice(datagram);
                peer.core.handle_datagram(datagram).is_ok()
            }
            _ => peer.input(stream, bytes, end),
        };
        while let Some(event) = peer.core.poll_event() {
            match event {
                Event::Request { id, .. } => {
                    peer.core.respond(id, &ResponseHead::new(200), false);
                    peer.core
                        .send_data(id, Bytes::from_static(&[7; 20_000]), id % 4 == 1);
                    let head = RequestHead::get(Scheme::Https, "a", "/p");
                    if let Ok(push) = peer.core.push(id, &head, Priority(1)) {
                        peer.core.respond(push, &ResponseHead::new(200), true);
                    }
                }
                Event::Data { id, data, .. } => peer.core.release(id, data.len()),
                Event::Push { id, .. } if id % 4 == 0 => peer.core.reset(id, Reason::Cancel),
                _ => {}
            }
        }
        peer.output();
        if !alive {
            return;
        }
    }
}

//! Any input to either end of an HTTP/2 session gives the same events however it is cut. The output
//! consists of frames that the other end accepts as well formed.
#![no_main]

#[path = "../support/events.rs"]
mod events;

use std::time::Instant;

use libfuzzer_sys::fuzz_target;
use tandem_http::h2::Connection;
use tandem_http::{
    ByteMux, Bytes, Event, Mux, MuxConfig, Priority, Reason, RequestHead, ResponseHead, Role,
    Scheme, SendBuf,
};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

fuzz_target!(|data: &[u8]| {
    let Some((&first, wire)) = data.split_first() else {
        return;
    };
    let role = if first & 1 == 0 {
        Role::Client
    } else {
        Role::Server
    };
    let whole = events(role, wire, wire.len().max(1));
    let cut = events(role, wire, usize::from(first >> 1) + 1);
    assert_eq!(whole, cut);
    exchange(role, wire, usize::from(first >> 1) + 1);
});

fn core(role: Role) -> Connection {
    let mut config = MuxConfig::new(role);
    (config.push, config.max_header_list, config.stream_window) = (true, 2000, 5000);
    let mut core = Connection::new(config);
    let preface = if role == Role::Server {
        PREFACE
    } else {
        &PREFACE[24..]
    };
    core.handle_input(Instant::now(), preface)
        .expect("a good beginning");
    if role == Role::Client {
        for path in ["/a", "/b"] {
            core.open(
                &RequestHead::get(Scheme::Https, "a", path),
                path == "/a",
                Priority(3),
            )
            .expect("a stream");
        }
    }
    core
}

/// Returns the events, with the data of each stream joined.
fn events(role: Role, wire: &[u8], cut: usize) -> (Vec<String>, bool) {
    let (mut core, now) = (core(role), Instant::now());
    let alive = wire
        .chunks(cut)
        .all(|part| core.handle_input(now, part).is_ok());
    (events::joined(&mut core), alive)
}

/// A user that answers everything while the input goes on.
fn exchange(role: Role, wire: &[u8], cut: usize) {
    let (mut core, now) = (core(role), Instant::now());
    let mut out = SendBuf::new();
    for part in wire.chunks(cut) {
        let alive = core.handle_input(now, part).is_ok();
        while let Some(event) = core.poll_event() {
            match event {
                Event::Request { id, .. } => {
                    core.respond(id, &ResponseHead::new(200), false);
                    core.send_data(id, Bytes::from_static(&[7; 20_000]), id % 4 == 1);
                    let _ = core.push(id, &RequestHead::get(Scheme::Https, "a", "/p"), Priority(1));
                }
                Event::Data { id, data, .. } => core.release(id, data.len()),
                Event::Push { id, .. } if id % 4 == 0 => core.reset(id, Reason::Cancel),
                _ => {}
            }
        }
        core.poll_output(&mut out, 10_000);
        if !alive {
            return;
        }
    }
}

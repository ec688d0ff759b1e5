//! A SPDY session with an adversarial peer. The script mixes raw bytes, frames with valid header
//! blocks, and calls of the user.
#![no_main]

use std::time::{Duration, Instant};

use bytes::{Buf as _, BytesMut};
use libfuzzer_sys::fuzz_target;
use tandem_http::{
    ByteMux as _, Event, Mux as _, MuxConfig, Priority, Reason, RequestHead, ResponseHead, Role,
    Scheme, SendBuf,
};
use tandem_spdy::frame::{Headers, SynReply, SynStream};
use tandem_spdy::header_block::{Block, Encoder, HeaderCompression};
use tandem_spdy::{Config, Connection, Version};

/// An upper bound, in bytes, on the memory that so short a script may use.
const MAX_OUTPUT: usize = 8 << 20;

fuzz_target!(|bytes: &[u8]| {
    let Some((&mode, script)) = bytes.split_first() else {
        return;
    };
    let role = if mode & 1 == 0 {
        Role::Server
    } else {
        Role::Client
    };
    let version = if mode & 2 == 0 {
        Version::V3
    } else {
        Version::V31
    };
    let mut mux = MuxConfig::new(role);
    mux.push = true;
    mux.max_header_list = 4096;
    mux.stream_window = 70_000;
    mux.session_window = 100_000;
    mux.receive_budget = 200_000;
    mux.max_streams = 8;
    let mut run = Run {
        session: Connection::new(Config::new(mux, version)),
        encoder: Encoder::new(HeaderCompression::Full),
        cut: usize::from(mode >> 2).max(1),
        now: Instant::now(),
        held: Vec::new(),
    };
    run.play(script);
});

struct Run {
    session: Connection,
    encoder: Encoder,
    cut: usize,
    now: Instant,
    held: Vec<(u32, usize)>,
}

impl Run {
    /// Plays steps of an action, a small number, and as many bytes as a third byte says.
    fn play(&mut self, mut script: &[u8]) {
        while let [what, id, len, rest @ ..] = script {
            let (payload, rest) = rest.split_at(rest.len().min(usize::from(*len)));
            script = rest;
            if !self.step(*what, u32::from(*id), payload) {
                return;
            }
            self.drain();
        }
    }

    /// Plays one step; returns false once the session has failed.
    fn step(&mut self, what: u8, id: u32, payload: &[u8]) -> bool {
        let fin = what & 0x80 != 0;
        let (stream, associated) = (id & 15, id >> 4);
        match what & 15 {
            0 => return self.input(payload),
            1..=3 => {
                let bytes = self.frame_with_block(what & 3, stream, associated, fin, payload);
                return self.input(&bytes);
            }
            4 => {
                let mut bytes = vec![
                    0,
                    0,
                    0,
                    stream as u8,
                    u8::from(fin),
                    0,
                    payload.len() as u8,
                    0,
                ];
                bytes.resize(8 + payload.len() * 256, 7);
                return self.input(&bytes);
            }
            5 => drop(self.session.open(&request(), fin, Priority(id as u8))),
            6 => drop(self.session.push(stream, &request(), Priority(id as u8))),
            7 => self
                .session
                .respond(stream, &ResponseHead::new(200 + associated as u16), fin),
            8 => self
                .session
                .send_data(stream, vec![1; payload.len() * 256].into(), fin),
            9 => self
                .session
                .send_trailers(stream, &[("a", "b")].into_iter().collect()),
            10 => self.session.reset(stream, Reason::Cancel),
            11 => self
                .held
                .drain(..)
                .for_each(|(id, count)| self.session.release(id, count)),
            12 => {
                self.session.ping(id);
            }
            13 => self.session.go_away(Reason::NoError),
            14 => {
                self.now += Duration::from_millis(u64::from(id) * 10);
                self.session.handle_timeout(self.now);
            }
            _ => self
                .session
                .set_priority(stream, Priority(associated as u8)),
        }
        true
    }

    fn frame_with_block(
        &mut self,
        kind: u8,
        stream: u32,
        associated: u32,
        fin: bool,
        payload: &[u8],
    ) -> Vec<u8> {
        let mut block = Block::new();
        let heads: [(&[u8], &[u8]); 7] = [
            (b":method", b"POST"),
            (b":path", b"/"),
            (b":version", b"HTTP/1.1"),
            (b":host", b"example.org"),
            (b":scheme", b"http"),
            (b":status", b"200"),
            (b"content-length", b"300"),
        ];
        let chosen = payload.first().copied().unwrap_or(0xff);
        for (index, (name, value)) in heads.iter().enumerate() {
            if chosen >> index & 1 == 1 {
                block.push(name, &[value], 0, false);
            }
        }
        for pair in payload.get(1..).unwrap_or_default().chunks(6) {
            let (name, value) = pair.split_at(pair.len() / 2);
            block.push(name, &[value], 0, false);
        }
        let mut bytes = Vec::new();
        self.encoder.encode(&block, &mut bytes);
        let mut dst = BytesMut::new();
        match kind {
            1 => SynStream {
                stream,
                associated,
                priority: 1,
                slot: 0,
                fin,
                unidirectional: false,
                block: &bytes,
            }
            .encode(&mut dst),
            2 => SynReply {
                stream,
                fin,
                block: &bytes,
            }
            .encode(&mut dst),
            _ => Headers {
                stream,
                fin,
                block: &bytes,
            }
            .encode(&mut dst),
        }
        dst.to_vec()
    }

    fn input(&mut self, bytes: &[u8]) -> bool {
        bytes
            .chunks(self.cut)
            .all(|part| self.session.handle_input(self.now, part).is_ok())
    }

    fn drain(&mut self) {
        while let Some(event) = self.session.poll_event() {
            if let Event::Data { id, data, .. } = event {
                self.held.push((id, data.len()));
            }
        }
        let mut out = SendBuf::new();
        while self.session.wants_output() {
            let before = out.remaining();
            self.session.poll_output(&mut out, before + 16_384);
            assert!(out.remaining() > before, "output that was wanted comes");
            assert!(out.remaining() < MAX_OUTPUT);
        }
    }
}

fn request() -> RequestHead {
    RequestHead::get(Scheme::Http, "example.org", "/")
}

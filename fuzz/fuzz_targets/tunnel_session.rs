//! A whole tunnel with an adversarial peer: raw datagrams, well-formed segments, and the
//! application's own calls, at times that the script chooses. The output stays bounded, and so does
//! the memory.
#![no_main]

use std::time::Duration;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use tandem_tunnel::wire::{Ack, Data, MAX_BLOCKS, Segment, StreamSegment};
use tandem_tunnel::{Algorithm, Config, Coupling, Event, Side, StreamId, Tunnel};

/// The datagrams that one step may cause.
const MAX_DATAGRAMS: usize = 4096;

fuzz_target!(|bytes: &[u8]| {
    let Some((&mode, script)) = bytes.split_first() else {
        return;
    };
    let config = Config {
        coupling: if mode & 1 == 0 {
            Coupling::Coupled
        } else {
            Coupling::PerStream
        },
        algorithm: if mode & 2 == 0 {
            Algorithm::Cubic
        } else {
            Algorithm::Bbr
        },
        max_streams: 8,
        memory: 64 << 10,
        initial_credit: 4 << 10,
        // The pool has enough for some of them.
        first_window: 6 << 10,
        offered_streams: if mode & 8 == 0 { 0 } else { 4 },
        send_buffer: 16 << 10,
        keep_alive: (mode & 4 != 0).then_some(Duration::from_secs(5)),
        ..Config::default()
    };
    let mut run = Run {
        tunnel: Tunnel::new(Side::Client, config, Duration::ZERO),
        now: Duration::ZERO,
        ids: Vec::new(),
    };
    run.play(script);
});

struct Run {
    tunnel: Tunnel,
    now: Duration,
    ids: Vec<StreamId>,
}

impl Run {
    /// Plays steps of an action, a small number, and as many bytes as a third byte says.
    fn play(&mut self, mut script: &[u8]) {
        while let [action, number, len, rest @ ..] = script {
            let (data, rest) = rest.split_at(usize::from(*len).min(rest.len()));
            self.step(action % 11, *number, data);
            self.settle();
            script = rest;
        }
    }

    fn id(&self, number: u8) -> Option<StreamId> {
        self.ids
            .get(usize::from(number) % self.ids.len().max(1))
            .copied()
    }

    fn step(&mut self, action: u8, number: u8, data: &[u8]) {
        // Calls on streams that have ended are refused without any effect.
        match action {
            0 => drop(self.tunnel.handle_input(self.now, data, number & 1 != 0)),
            1 => self.feed(number, data),
            2 if self.tunnel.open_streams() < 64 => self.ids.extend(self.tunnel.open(self.now)),
            3 => {
                if let Some(id) = self.id(number) {
                    let mut data = Bytes::from(data.repeat(1 + usize::from(number)));
                    let _ = self.tunnel.write(id, &mut data);
                }
            }
            4 => drop(self.id(number).map(|id| self.tunnel.finish(id))),
            5 => drop(
                self.id(number)
                    .map(|id| self.tunnel.reset(id, u32::from(number))),
            ),
            6 => drop(
                self.id(number)
                    .map(|id| self.tunnel.read(self.now, id, usize::from(number) * 16)),
            ),
            7 => self.now += Duration::from_millis(u64::from(number) * 8),
            8 => self.tunnel.path_changed(self.now),
            9 => self.offer(number, data),
            _ => drop(self.id(number).map(|id| self.tunnel.prioritise(id, number))),
        }
    }

    /// Makes the peer send a segment with plausible fields that the script varies.
    fn feed(&mut self, number: u8, data: &[u8]) {
        let byte = |at: usize| data.get(at).copied().unwrap_or(0);
        let mut blocks = [(0, 0); MAX_BLOCKS];
        for (n, block) in blocks.iter_mut().enumerate() {
            let start = u32::from(byte(6 + n)) * 64;
            *block = (start, start + u32::from(byte(14 + n)));
        }
        let segment = StreamSegment {
            stream: u32::from(byte(0) % 24),
            data: (number & 1 != 0).then_some(Data {
                offset: u32::from(byte(1)) * 32,
                payload: data.get(4..).unwrap_or(&[]),
                fin: number & 2 != 0,
            }),
            ack: (number & 4 != 0).then_some(Ack {
                offset: u32::from(byte(2)) * 16,
                window: u16::from(byte(3)),
                duplicates: u16::from(byte(5)),
                blocks,
                block_count: (number >> 5) % 5,
            }),
            reset: (number & 24 == 24).then_some(7),
            reset_ack: number & 24 == 8,
        };
        let mut datagram = Vec::new();
        Segment::Stream(segment).encode(&mut datagram);
        let _ = self.tunnel.handle_input(self.now, &datagram, false);
    }

    /// Makes the peer offer windows for streams of this end.
    fn offer(&mut self, number: u8, data: &[u8]) {
        let below = data
            .iter()
            .take(4)
            .fold(0, |below, byte| below << 8 | u32::from(*byte));
        let window = u16::from(number) << (number & 8);
        let mut datagram = Vec::new();
        Segment::Offer { window, below }.encode(&mut datagram);
        let _ = self.tunnel.handle_input(self.now, &datagram, false);
    }

    /// Runs the actions of the tunnel that are due, and checks its bounds.
    fn settle(&mut self) {
        self.tunnel.handle_timeout(self.now);
        let mut out = Vec::new();
        let mut datagrams = 0;
        while self.tunnel.poll_output(self.now, &mut out) {
            assert!(!out.is_empty() && out.len() <= 1452);
            datagrams += 1;
            assert!(datagrams < MAX_DATAGRAMS, "output without end");
        }
        while let Some(event) = self.tunnel.poll_event() {
            if let Event::Opened(id) = event {
                self.ids.push(id);
            }
        }
        // The pool, and the first credit of each stream for each direction.
        let most = (64 << 10) + (64 + 8) * 2 * (4 << 10);
        assert!(self.tunnel.memory() <= most, "{}", self.tunnel.memory());
        if let Some(at) = self.tunnel.poll_timeout() {
            assert!(at > Duration::ZERO || self.tunnel.closed().is_none());
        }
    }
}

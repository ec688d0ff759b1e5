//! Shared parts of the HTTP/3 tests: two cores joined by streams that arrive in any order, and a
//! peer that speaks raw frames.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::time::Instant;

use bytes::{Buf, Bytes};
use tandem_http::fields::Field;
use tandem_http::h3::{Code, Command, Connection, Direction};
use tandem_http::qpack::{Decoder, Encoder};
use tandem_http::{
    Event, Mux, MuxConfig, Priority, RequestHead, ResponseHead, Role, Scheme, SendBuf, SessionError,
};

pub const DATA: u64 = 0;
pub const HEADERS: u64 = 1;
pub const CANCEL_PUSH: u64 = 3;
pub const SETTINGS: u64 = 4;
pub const PUSH_PROMISE: u64 = 5;
pub const GOAWAY: u64 = 7;
pub const MAX_PUSH_ID: u64 = 13;
/// The end of a message that breaks off. As a setting, it says that an end takes the frame.
pub const BROKEN: u64 = 0x3462_726b;
pub const PRIORITY_REQUEST: u64 = 0xf0700;
pub const PRIORITY_PUSH: u64 = 0xf0701;

pub fn client_config() -> MuxConfig {
    MuxConfig {
        push: true,
        ..MuxConfig::new(Role::Client)
    }
}

pub fn server_config() -> MuxConfig {
    MuxConfig::new(Role::Server)
}

pub fn get(path: &str) -> RequestHead {
    RequestHead::get(Scheme::Https, "example.org", path)
}

pub fn response(status: u16, fields: &[(&str, &str)]) -> ResponseHead {
    ResponseHead {
        status,
        fields: fields.iter().copied().collect(),
    }
}

pub fn events(core: &mut Connection) -> Vec<Event> {
    std::iter::from_fn(|| core.poll_event()).collect()
}

/// The part of one direction of a stream that is on its way.
#[derive(Default)]
pub struct Flight {
    pub bytes: Vec<u8>,
    pub end: bool,
    pub reset: Option<Code>,
}

/// An end of a connection of streams, with the bytes that it has sent.
pub struct End {
    pub core: Connection,
    side: u64,
    opened: [u64; 2],
    /// The streams on their way to the other end.
    pub flights: BTreeMap<u64, Flight>,
    /// Our requests to stop sending.
    pub stops: Vec<(u64, Code)>,
    /// The changes of priority that our core asked for.
    pub orders: Vec<(u64, Priority)>,
    /// The streams of the other end that this end knows.
    known: Vec<u64>,
    /// Bytes that may be taken at once.
    pub limit: usize,
}

impl End {
    pub fn new(config: MuxConfig) -> Self {
        Self {
            side: u64::from(config.role == Role::Server),
            core: Connection::new(config),
            opened: [0; 2],
            flights: BTreeMap::new(),
            stops: Vec::new(),
            orders: Vec::new(),
            known: Vec::new(),
            limit: 16 << 10,
        }
    }

    /// Moves all output of the core to its streams.
    pub fn drive(&mut self) {
        loop {
            let mut moved = false;
            for direction in [Direction::Unidirectional, Direction::Bidirectional] {
                while self.core.wants_stream(direction) {
                    let kind = u64::from(direction == Direction::Unidirectional);
                    let id = self.opened[kind as usize] << 2 | kind << 1 | self.side;
                    self.opened[kind as usize] += 1;
                    self.core.handle_opened(direction, id);
                    moved = true;
                }
            }
            while let Some(command) = self.core.poll_command() {
                match command {
                    Command::Reset { stream, code } => {
                        let flight = self.flights.entry(stream).or_default();
                        *flight = Flight {
                            reset: Some(code),
                            ..Flight::default()
                        };
                    }
                    Command::Stop { stream, code } => self.stops.push((stream, code)),
                    Command::Prioritise { stream, priority } => {
                        self.orders.push((stream, priority));
                    }
                }
                moved = true;
            }
            while self.core.poll_resumed().is_some() {}
            while let Some(stream) = self.core.poll_ready() {
                let mut out = SendBuf::new();
                let end = self.core.poll_output(stream, &mut out, self.limit);
                let flight = self.flights.entry(stream).or_default();
                flight
                    .bytes
                    .extend_from_slice(&out.copy_to_bytes(out.remaining()));
                flight.end |= end;
                self.core.handle_written(stream);
                moved = true;
            }
            if !moved {
                return;
            }
        }
    }

    /// Takes a part of a stream of the other end.
    pub fn take(&mut self, now: Instant, stream: u64, flight: &Flight) -> Result<(), SessionError> {
        if stream & 1 != self.side && !self.known.contains(&stream) {
            self.known.push(stream);
            let direction = if stream & 2 == 0 {
                Direction::Bidirectional
            } else {
                Direction::Unidirectional
            };
            self.core.handle_accepted(stream, direction)?;
        }
        if let Some(code) = flight.reset {
            return self.core.handle_reset(now, stream, code);
        }
        self.core
            .handle_input(now, stream, &flight.bytes, flight.end)
    }
}

/// A client and a server, joined.
pub struct Pair {
    pub client: End,
    pub server: End,
    pub now: Instant,
    /// Numbers that choose the order and the cuts of the input.
    pub choices: Vec<usize>,
    turn: usize,
}

impl Pair {
    pub fn new() -> Self {
        Self::with(client_config(), server_config())
    }

    pub fn with(client: MuxConfig, server: MuxConfig) -> Self {
        Self {
            client: End::new(client),
            server: End::new(server),
            now: Instant::now(),
            choices: Vec::new(),
            turn: 0,
        }
    }

    fn choice(&mut self) -> usize {
        self.turn += 1;
        match self.choices.len() {
            0 => 0,
            count => self.choices[self.turn % count],
        }
    }

    /// Passes one part of one stream to the other end. Returns false if none is on its way.
    pub fn step(&mut self, from: Role) -> bool {
        let (order, cut) = (self.choice(), self.choice());
        let (from, to) = match from {
            Role::Client => (&mut self.client, &mut self.server),
            Role::Server => (&mut self.server, &mut self.client),
        };
        from.drive();
        for (stream, code) in from.stops.drain(..) {
            to.core
                .handle_stopped(self.now, stream, code)
                .expect("the ends understand each other");
        }
        if from.flights.is_empty() {
            return false;
        }
        let place = order % from.flights.len();
        let stream = *from.flights.keys().nth(place).expect("a stream");
        let mut flight = from.flights.remove(&stream).expect("a stream");
        if !self.choices.is_empty() && flight.bytes.len() > cut + 1 {
            let rest = flight.bytes.split_off(cut + 1);
            let later = Flight {
                bytes: rest,
                end: std::mem::take(&mut flight.end),
                reset: None,
            };
            from.flights.insert(stream, later);
        }
        to.take(self.now, stream, &flight)
            .expect("the ends understand each other");
        true
    }

    /// Passes everything until both ends are silent. Returns the events of each.
    pub fn run(&mut self) -> (Vec<Event>, Vec<Event>) {
        let (mut client, mut server) = (Vec::new(), Vec::new());
        loop {
            let mut moved = self.step(Role::Client);
            server.extend(events(&mut self.server.core));
            moved |= self.step(Role::Server);
            client.extend(events(&mut self.client.core));
            if !moved {
                return (client, server);
            }
        }
    }
}

pub fn varint(out: &mut Vec<u8>, value: u64) {
    match value {
        0..64 => out.push(value as u8),
        64..16384 => out.extend((value as u16 | 0x4000).to_be_bytes()),
        16384..0x4000_0000 => out.extend((value as u32 | 0x8000_0000).to_be_bytes()),
        _ => out.extend((value | 0xc000_0000_0000_0000).to_be_bytes()),
    }
}

pub fn frame(kind: u64, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    varint(&mut out, kind);
    varint(&mut out, payload.len() as u64);
    out.extend(payload);
    out
}

/// A frame whose payload begins with a number.
pub fn numbered(kind: u64, number: u64, rest: &[u8]) -> Vec<u8> {
    let mut payload = Vec::new();
    varint(&mut payload, number);
    payload.extend(rest);
    frame(kind, &payload)
}

/// A field section without the dynamic table.
pub fn section(fields: &[(&str, &str)]) -> Vec<u8> {
    let (mut encoder, mut out) = (Encoder::new(), Vec::new());
    let mut section = encoder.begin(0, false);
    for (name, value) in fields {
        let field = Field {
            name: name.as_bytes(),
            value: value.as_bytes(),
            sensitive: false,
        };
        section.field(field, &mut Vec::new());
    }
    section.end(&mut out);
    out
}

pub fn headers(fields: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, &section(fields))
}

pub const GET: [(&str, &str); 4] = [
    (":method", "GET"),
    (":scheme", "https"),
    (":authority", "a.example"),
    (":path", "/"),
];
pub const POST: [(&str, &str); 4] = [(":method", "POST"), GET[1], GET[2], GET[3]];

/// A core with the test as its peer, which sends raw bytes on streams.
pub struct Raw {
    pub end: End,
    pub now: Instant,
    decoder: Decoder,
    /// The bytes of a stream that were parsed already are removed.
    seen: BTreeMap<u64, Vec<u8>>,
}

impl Raw {
    /// A core that has seen an empty SETTINGS frame.
    pub fn new(config: MuxConfig) -> Self {
        let mut raw = Self::bare(config);
        let control = raw.uni(0);
        raw.send(control, &[&[0][..], &frame(SETTINGS, &[])].concat())
            .expect("settings");
        raw
    }

    /// A core that has seen nothing.
    pub fn bare(config: MuxConfig) -> Self {
        Self {
            end: End::new(config),
            now: Instant::now(),
            decoder: Decoder::new(0, 0),
            seen: BTreeMap::new(),
        }
    }

    /// The peer's unidirectional stream with this index. Stream 0 is its control stream.
    pub fn uni(&self, index: u64) -> u64 {
        index << 2 | 2 | (1 - self.end.side)
    }

    pub fn send(&mut self, stream: u64, bytes: &[u8]) -> Result<(), SessionError> {
        self.part(stream, bytes, false)
    }

    pub fn part(&mut self, stream: u64, bytes: &[u8], end: bool) -> Result<(), SessionError> {
        let flight = Flight {
            bytes: bytes.to_vec(),
            end,
            reset: None,
        };
        self.end.take(self.now, stream, &flight)
    }

    pub fn control(&mut self, bytes: &[u8]) -> Result<(), SessionError> {
        self.send(self.uni(0), bytes)
    }

    pub fn events(&mut self) -> Vec<Event> {
        events(&mut self.end.core)
    }

    /// Opens a request of a client core, and returns the number of its stream.
    pub fn open(&mut self, head: &RequestHead) -> u32 {
        let id = self
            .end
            .core
            .open(head, true, tandem_http::Priority::default())
            .expect("room for a request");
        self.end.drive();
        id
    }

    /// The frames that the core has sent on a stream, after `skip` bytes.
    pub fn frames(&mut self, stream: u64, skip: usize) -> Vec<(u64, Vec<u8>)> {
        self.end.drive();
        let bytes = self
            .end
            .flights
            .remove(&stream)
            .map(|flight| flight.bytes)
            .unwrap_or_default();
        let (mut rest, mut frames) = (&bytes[skip..], Vec::new());
        while !rest.is_empty() {
            let (kind, len) = (number(&mut rest), number(&mut rest) as usize);
            frames.push((kind, rest[..len].to_vec()));
            rest = &rest[len..];
        }
        frames
    }

    /// The resets and stops that the core has sent.
    pub fn ended(&mut self) -> Vec<(u64, Code)> {
        self.end.drive();
        let resets = self
            .end
            .flights
            .iter()
            .filter_map(|(stream, flight)| Some((*stream, flight.reset?)));
        let mut all: Vec<_> = resets.chain(self.end.stops.drain(..)).collect();
        self.end.flights.retain(|_, flight| flight.reset.is_none());
        all.sort();
        all.dedup();
        all
    }

    pub fn decode(&mut self, section: &[u8]) -> Vec<(String, String)> {
        let mut fields = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        self.decoder
            .decode(0, section, |f| fields.push((text(f.name), text(f.value))))
            .expect("a good section");
        fields
    }
}

pub fn number(rest: &mut &[u8]) -> u64 {
    let len = 1 << (rest[0] >> 6);
    let value = rest[1..len]
        .iter()
        .fold(u64::from(rest[0] & 0x3f), |v, b| v << 8 | u64::from(*b));
    *rest = &rest[len..];
    value
}

/// All content of a stream among events, and whether it ended.
pub fn body(events: &[Event], stream: u32) -> (Vec<u8>, bool) {
    let (mut all, mut ended) = (Vec::new(), false);
    for event in events {
        match event {
            Event::Data { id, data, end } if *id == stream => {
                assert!(!ended, "nothing after the end");
                all.extend_from_slice(data);
                ended |= *end;
            }
            Event::Trailers { id, .. } if *id == stream => ended = true,
            _ => {}
        }
    }
    (all, ended)
}

pub fn bytes(len: usize) -> Bytes {
    (0..len)
        .map(|i| (i * 7 + i / 251) as u8)
        .collect::<Vec<u8>>()
        .into()
}

//! Shared parts of the HTTP/2 tests: two cores joined by byte pipes, and a peer that speaks raw
//! frames.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use std::time::Instant;

use bytes::{Buf, Bytes};
use tandem_http::fields::Field;
use tandem_http::h2::Connection;
use tandem_http::hpack::{Decoder, Encoder};
use tandem_http::{
    ByteMux, Event, Fields, Mux, MuxConfig, RequestHead, ResponseHead, Role, Scheme, SendBuf,
    SessionError,
};

pub fn client_config() -> MuxConfig {
    MuxConfig::new(Role::Client)
}

pub fn server_config() -> MuxConfig {
    MuxConfig::new(Role::Server)
}

pub fn get(path: &str) -> RequestHead {
    RequestHead::get(Scheme::Https, "example.org", path)
}

pub fn with_fields(mut head: RequestHead, fields: &[(&str, &str)]) -> RequestHead {
    head.fields = fields.iter().copied().collect();
    head
}

pub fn response(status: u16, fields: &[(&str, &str)]) -> ResponseHead {
    ResponseHead {
        status,
        fields: fields.iter().copied().collect(),
    }
}

/// Everything that a core wants to send.
pub fn output(core: &mut Connection, limit: usize) -> Vec<u8> {
    let mut out = SendBuf::new();
    core.poll_output(&mut out, limit);
    out.copy_to_bytes(out.remaining()).to_vec()
}

pub fn events(core: &mut Connection) -> Vec<Event> {
    std::iter::from_fn(|| core.poll_event()).collect()
}

/// A client and a server core, joined.
pub struct Pair {
    pub client: Connection,
    pub server: Connection,
    pub now: Instant,
    /// Sizes into which the bytes of each step are cut, in turn.
    pub cuts: Vec<usize>,
    turn: usize,
    /// The `limit` of each `poll_output`.
    pub limit: usize,
}

impl Pair {
    pub fn new() -> Self {
        Self::with(client_config(), server_config())
    }

    pub fn with(client: MuxConfig, server: MuxConfig) -> Self {
        Self {
            client: Connection::new(client),
            server: Connection::new(server),
            now: Instant::now(),
            cuts: vec![usize::MAX],
            turn: 0,
            limit: 16_384,
        }
    }

    /// Passes one `poll_output` of one side to the other. Returns false if it was empty.
    pub fn step(&mut self, role: Role) -> bool {
        let (from, to) = match role {
            Role::Client => (&mut self.client, &mut self.server),
            Role::Server => (&mut self.server, &mut self.client),
        };
        let bytes = output(from, self.limit);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let cut = self.cuts[self.turn % self.cuts.len()].clamp(1, rest.len());
            self.turn += 1;
            to.handle_input(self.now, &rest[..cut])
                .expect("the cores understand each other");
            rest = &rest[cut..];
        }
        !bytes.is_empty()
    }

    /// Passes bytes until both sides are silent. Returns the events of each side.
    pub fn run(&mut self) -> (Vec<Event>, Vec<Event>) {
        let (mut client, mut server) = (Vec::new(), Vec::new());
        loop {
            let mut moved = self.step(Role::Client);
            server.extend(events(&mut self.server));
            moved |= self.step(Role::Server);
            client.extend(events(&mut self.client));
            client.extend(events(&mut self.client));
            if !moved {
                return (client, server);
            }
        }
    }
}

/// A frame as seen by [`Raw`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub id: u32,
    pub payload: Vec<u8>,
}

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PUSH_PROMISE: u8 = 5;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;
pub const PRIORITY_UPDATE: u8 = 16;
pub const END_STREAM: u8 = 1;
pub const ACK: u8 = 1;
pub const END_HEADERS: u8 = 4;
pub const PADDED: u8 = 8;
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub fn frame(kind: u8, flags: u8, id: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    out.extend([kind, flags]);
    out.extend(id.to_be_bytes());
    out.extend(payload);
    out
}

pub fn parse(mut bytes: &[u8]) -> Vec<Frame> {
    let mut frames = Vec::new();
    bytes = bytes.strip_prefix(PREFACE).unwrap_or(bytes);
    while !bytes.is_empty() {
        let len = u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]) as usize;
        let id = u32::from_be_bytes([bytes[5], bytes[6], bytes[7], bytes[8]]);
        frames.push(Frame {
            kind: bytes[3],
            flags: bytes[4],
            id,
            payload: bytes[9..9 + len].to_vec(),
        });
        bytes = &bytes[9 + len..];
    }
    frames
}

/// A core with the test as its peer, which sends raw frames.
pub struct Raw {
    pub core: Connection,
    pub now: Instant,
    encoder: Encoder,
    decoder: Decoder,
}

impl Raw {
    /// A server core that has seen the client's preface.
    pub fn server(config: MuxConfig) -> Self {
        let mut raw = Self::bare(config);
        raw.input(PREFACE).expect("the preface");
        raw.send(SETTINGS, 0, 0, &[]).expect("settings");
        raw
    }

    /// A client core that has seen the server's SETTINGS.
    pub fn client(config: MuxConfig) -> Self {
        let mut raw = Self::bare(config);
        raw.send(SETTINGS, 0, 0, &[]).expect("settings");
        raw
    }

    /// A core that has seen nothing.
    pub fn bare(config: MuxConfig) -> Self {
        Self {
            core: Connection::new(config),
            now: Instant::now(),
            encoder: Encoder::new(),
            decoder: Decoder::new(),
        }
    }

    pub fn input(&mut self, bytes: &[u8]) -> Result<(), SessionError> {
        self.core.handle_input(self.now, bytes)
    }

    pub fn send(
        &mut self,
        kind: u8,
        flags: u8,
        id: u32,
        payload: &[u8],
    ) -> Result<(), SessionError> {
        self.input(&frame(kind, flags, id, payload))
    }

    /// A header block of any fields, however wrong.
    pub fn block(&mut self, fields: &[(&str, &str)]) -> Vec<u8> {
        let mut block = Vec::new();
        self.encoder.begin(&mut block);
        for (name, value) in fields {
            self.encoder.field(
                &mut block,
                Field {
                    name: name.as_bytes(),
                    value: value.as_bytes(),
                    sensitive: false,
                },
            );
        }
        block
    }

    pub fn headers(
        &mut self,
        id: u32,
        end: bool,
        fields: &[(&str, &str)],
    ) -> Result<(), SessionError> {
        let block = self.block(fields);
        self.send(HEADERS, END_HEADERS | u8::from(end), id, &block)
    }

    /// A plain GET or POST.
    pub fn request(&mut self, id: u32, end: bool) -> Result<(), SessionError> {
        let method = if end { "GET" } else { "POST" };
        self.headers(
            id,
            end,
            &[
                (":method", method),
                (":scheme", "https"),
                (":authority", "a"),
                (":path", "/"),
            ],
        )
    }

    pub fn frames(&mut self) -> Vec<Frame> {
        parse(&output(&mut self.core, 1 << 20))
    }

    /// Frames of one type.
    pub fn frames_of(&mut self, kind: u8) -> Vec<Frame> {
        self.frames()
            .into_iter()
            .filter(|f| f.kind == kind)
            .collect()
    }

    /// Streams that the core reset, with the codes.
    pub fn resets(&mut self) -> Vec<(u32, u32)> {
        let code = |f: &Frame| u32::from_be_bytes(f.payload[..4].try_into().expect("four bytes"));
        self.frames_of(RST_STREAM)
            .iter()
            .map(|f| (f.id, code(f)))
            .collect()
    }

    /// Fields of a block that the core sent.
    pub fn decode(&mut self, block: &[u8]) -> Vec<(String, String)> {
        let mut list = Vec::new();
        self.decoder
            .decode(block, |f| {
                list.push((
                    String::from_utf8_lossy(f.name).into_owned(),
                    String::from_utf8_lossy(f.value).into_owned(),
                ));
            })
            .expect("a good block");
        list
    }

    pub fn events(&mut self) -> Vec<Event> {
        events(&mut self.core)
    }
}

/// All data of a stream among events, and whether it ended.
pub fn body(events: &[Event], stream: u32) -> (Vec<u8>, bool) {
    let (mut all, mut ended) = (Vec::new(), false);
    for event in events {
        if let Event::Data { id, data, end } = event
            && *id == stream
        {
            assert!(!ended, "nothing after the end");
            all.extend_from_slice(data);
            ended |= *end;
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

pub fn fields(list: &[(&str, &str)]) -> Fields {
    list.iter().copied().collect()
}

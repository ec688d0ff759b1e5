//! Test helpers: a scripted peer, a reader of a session's output, and a pair of sessions joined in
//! memory.

use std::time::{Duration, Instant};

use bytes::{Buf as _, Bytes, BytesMut};
use tandem_http::{
    ByteMux as _, Event, Fields, Mux as _, MuxConfig, Priority, RequestHead, ResponseHead, Role,
    Scheme, SendBuf, SessionError, StreamId,
};
use tandem_spdy::frame::{
    Data, Frame, FrameReader, GoAway, Headers, Piece, Ping, RstStream, Setting, Settings, SynReply,
    SynStream, WindowUpdate,
};
use tandem_spdy::header_block::{Block, Decoder, Encoder, HeaderCompression};
use tandem_spdy::{Config, Connection, Version};

/// A frame that was seen on the wire, its header block inflated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    SynStream {
        id: u32,
        associated: u32,
        priority: u8,
        fin: bool,
        unidirectional: bool,
        pairs: Vec<(String, String)>,
    },
    SynReply {
        id: u32,
        fin: bool,
        pairs: Vec<(String, String)>,
    },
    Rst {
        id: u32,
        status: u32,
    },
    Settings(Vec<(u32, u32)>),
    Ping(u32),
    GoAway {
        last: u32,
        status: u32,
    },
    Headers {
        id: u32,
        fin: bool,
        pairs: Vec<(String, String)>,
    },
    WindowUpdate {
        id: u32,
        delta: u32,
    },
    Data {
        id: u32,
        fin: bool,
        bytes: Vec<u8>,
    },
}

/// Reads one direction of a session.
pub(crate) struct Wire {
    reader: FrameReader,
    decoder: Decoder,
    data: Option<(u32, bool, Vec<u8>)>,
}

impl Default for Wire {
    fn default() -> Self {
        Self {
            reader: FrameReader::new(1 << 24),
            decoder: Decoder::new(1 << 24),
            data: None,
        }
    }
}

impl Wire {
    pub(crate) fn read(&mut self, mut bytes: &[u8]) -> Vec<Seen> {
        let mut seen = Vec::new();
        while let Some(piece) = self.reader.next(&mut bytes) {
            match piece {
                Piece::Control(kind, head, payload) => {
                    assert_eq!(head.version, 3);
                    seen.push(self.control(
                        Frame::load(kind, head.flags, payload.as_ref()).expect("a legal frame"),
                    ));
                }
                Piece::DataHead(Data {
                    stream: id,
                    fin,
                    len: 0,
                }) => seen.push(Seen::Data {
                    id,
                    fin,
                    bytes: vec![],
                }),
                Piece::DataHead(data) => self.data = Some((data.stream, data.fin, Vec::new())),
                Piece::Data(part, last) => {
                    let (_, _, bytes) = self.data.as_mut().expect("a head came first");
                    bytes.extend_from_slice(part);
                    if last {
                        let (id, fin, bytes) = self.data.take().expect("just used");
                        seen.push(Seen::Data { id, fin, bytes });
                    }
                }
                Piece::TooLarge(head) | Piece::Unknown(head) => panic!("{head:?}"),
            }
        }
        seen
    }

    fn control(&mut self, frame: Frame<'_>) -> Seen {
        match frame {
            Frame::SynStream(f) => Seen::SynStream {
                id: f.stream,
                associated: f.associated,
                priority: f.priority,
                fin: f.fin,
                unidirectional: f.unidirectional,
                pairs: self.pairs(f.block),
            },
            Frame::SynReply(f) => Seen::SynReply {
                id: f.stream,
                fin: f.fin,
                pairs: self.pairs(f.block),
            },
            Frame::RstStream(f) => Seen::Rst {
                id: f.stream,
                status: f.status,
            },
            Frame::Settings(f) => {
                Seen::Settings(f.entries.iter().map(|e| (e.id, e.value)).collect())
            }
            Frame::Ping(f) => Seen::Ping(f.id),
            Frame::GoAway(f) => Seen::GoAway {
                last: f.last,
                status: f.status,
            },
            Frame::Headers(f) => Seen::Headers {
                id: f.stream,
                fin: f.fin,
                pairs: self.pairs(f.block),
            },
            Frame::WindowUpdate(f) => Seen::WindowUpdate {
                id: f.stream,
                delta: f.delta,
            },
        }
    }

    fn pairs(&mut self, block: &[u8]) -> Vec<(String, String)> {
        let pairs = self
            .decoder
            .decode(block)
            .expect("a zlib stream in step")
            .expect("a legal block");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        pairs
            .iter()
            .map(|(name, value)| (text(name), text(value)))
            .collect()
    }
}

/// Writes frames by hand, legal or not, with one compression context.
pub(crate) struct Script {
    encoder: Encoder,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            encoder: Encoder::new(HeaderCompression::Full),
        }
    }
}

pub(crate) const GET: [(&str, &str); 5] = [
    (":method", "GET"),
    (":path", "/"),
    (":version", "HTTP/1.1"),
    (":host", "example.org"),
    (":scheme", "http"),
];

pub(crate) const POST: [(&str, &str); 5] = [
    (":method", "POST"),
    (":path", "/"),
    (":version", "HTTP/1.1"),
    (":host", "example.org"),
    (":scheme", "http"),
];

pub(crate) const OK: [(&str, &str); 2] = [(":status", "200 OK"), (":version", "HTTP/1.1")];

impl Script {
    pub(crate) fn block(&mut self, pairs: &[(&str, &str)]) -> Vec<u8> {
        let mut block = Block::new();
        for (name, value) in pairs {
            block.push(name.as_bytes(), &[value.as_bytes()], 0, false);
        }
        let mut out = Vec::new();
        self.encoder.encode(&block, &mut out);
        out
    }

    pub(crate) fn syn_stream(&mut self, stream: u32, fin: bool, pairs: &[(&str, &str)]) -> Vec<u8> {
        let block = self.block(pairs);
        let frame = SynStream {
            stream,
            associated: 0,
            priority: 3,
            slot: 0,
            fin,
            unidirectional: false,
            block: &block,
        };
        encoded(|dst| frame.encode(dst))
    }

    pub(crate) fn push(&mut self, stream: u32, associated: u32, pairs: &[(&str, &str)]) -> Vec<u8> {
        let block = self.block(pairs);
        let frame = SynStream {
            stream,
            associated,
            priority: 3,
            slot: 0,
            fin: false,
            unidirectional: true,
            block: &block,
        };
        encoded(|dst| frame.encode(dst))
    }

    pub(crate) fn syn_reply(&mut self, stream: u32, fin: bool, pairs: &[(&str, &str)]) -> Vec<u8> {
        let block = self.block(pairs);
        encoded(|dst| {
            SynReply {
                stream,
                fin,
                block: &block,
            }
            .encode(dst)
        })
    }

    pub(crate) fn headers(&mut self, stream: u32, fin: bool, pairs: &[(&str, &str)]) -> Vec<u8> {
        let block = self.block(pairs);
        encoded(|dst| {
            Headers {
                stream,
                fin,
                block: &block,
            }
            .encode(dst)
        })
    }
}

pub(crate) fn encoded(encode: impl FnOnce(&mut BytesMut)) -> Vec<u8> {
    let mut dst = BytesMut::new();
    encode(&mut dst);
    dst.to_vec()
}

pub(crate) fn data(stream: u32, fin: bool, bytes: &[u8]) -> Vec<u8> {
    let mut frame = encoded(|dst| {
        Data {
            stream,
            fin,
            len: bytes.len() as u32,
        }
        .encode(dst)
    });
    frame.extend_from_slice(bytes);
    frame
}

pub(crate) fn rst(stream: u32, status: u32) -> Vec<u8> {
    encoded(|dst| RstStream { stream, status }.encode(dst))
}

pub(crate) fn ping(id: u32) -> Vec<u8> {
    encoded(|dst| Ping { id }.encode(dst))
}

pub(crate) fn goaway(last: u32, status: u32) -> Vec<u8> {
    encoded(|dst| GoAway { last, status }.encode(dst))
}

pub(crate) fn window_update(stream: u32, delta: u32) -> Vec<u8> {
    encoded(|dst| WindowUpdate { stream, delta }.encode(dst))
}

pub(crate) fn settings(entries: &[(u32, u32)]) -> Vec<u8> {
    let entries = entries
        .iter()
        .map(|&(id, value)| Setting {
            flags: 0,
            id,
            value,
        })
        .collect();
    encoded(|dst| {
        Settings {
            clear: false,
            entries,
        }
        .encode(dst)
    })
}

pub(crate) fn config(role: Role, version: Version) -> Config {
    let mut mux = MuxConfig::new(role);
    mux.push = true;
    Config::new(mux, version)
}

/// A session driven by a script.
pub(crate) struct Peer {
    pub(crate) session: Connection,
    pub(crate) script: Script,
    wire: Wire,
    now: Instant,
}

impl Peer {
    /// A session that has greeted already.
    pub(crate) fn new(config: Config) -> Self {
        let mut this = Self {
            session: Connection::new(config),
            script: Script::default(),
            wire: Wire::default(),
            now: Instant::now(),
        };
        let greeting = this.output();
        assert!(
            matches!(greeting.first(), Some(Seen::Settings(_))),
            "{greeting:?}"
        );
        this
    }

    pub(crate) fn server(version: Version) -> Self {
        Self::new(config(Role::Server, version))
    }

    pub(crate) fn client(version: Version) -> Self {
        Self::new(config(Role::Client, version))
    }

    pub(crate) fn input(&mut self, bytes: &[u8]) -> Result<(), SessionError> {
        self.session.handle_input(self.now, bytes)
    }

    /// Passes input that must not end the session, and returns its output.
    pub(crate) fn told(&mut self, bytes: &[u8]) -> Vec<Seen> {
        self.input(bytes).expect("no session error");
        self.output()
    }

    pub(crate) fn output(&mut self) -> Vec<Seen> {
        let mut out = SendBuf::new();
        while self.session.wants_output() {
            self.session.poll_output(&mut out, usize::MAX);
        }
        let bytes = out.copy_to_bytes(out.remaining());
        self.wire.read(&bytes)
    }

    pub(crate) fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.session.poll_event()).collect()
    }

    /// A GET opened by the session under test.
    pub(crate) fn open(&mut self, end: bool) -> StreamId {
        let id = self
            .session
            .open(&get("/"), end, Priority::default())
            .expect("room");
        self.output();
        id
    }

    pub(crate) fn wait(&mut self, time: Duration) {
        self.now += time;
        if self.session.poll_timeout().is_some_and(|at| at <= self.now) {
            self.session.handle_timeout(self.now);
        }
    }
}

pub(crate) fn get(path: &str) -> RequestHead {
    RequestHead::get(Scheme::Http, "example.org", path)
}

/// A client and a server.
pub(crate) struct Pair {
    pub(crate) client: Connection,
    pub(crate) server: Connection,
    pub(crate) now: Instant,
    /// Longest piece in which bytes arrive.
    pub(crate) cut: usize,
    pub(crate) bytes_up: usize,
    pub(crate) bytes_down: usize,
    pub(crate) client_events: Vec<Event>,
    pub(crate) server_events: Vec<Event>,
}

impl Pair {
    pub(crate) fn new(version: Version) -> Self {
        Self::with(config(Role::Client, version), config(Role::Server, version))
    }

    pub(crate) fn with(client: Config, server: Config) -> Self {
        Self {
            client: Connection::new(client),
            server: Connection::new(server),
            now: Instant::now(),
            cut: usize::MAX,
            bytes_up: 0,
            bytes_down: 0,
            client_events: Vec::new(),
            server_events: Vec::new(),
        }
    }

    /// Delivers output once in each direction; returns false if no bytes moved.
    pub(crate) fn step(&mut self, limit: usize) -> bool {
        let up = flow(
            &mut self.client,
            &mut self.server,
            self.now,
            self.cut,
            limit,
        );
        let down = flow(
            &mut self.server,
            &mut self.client,
            self.now,
            self.cut,
            limit,
        );
        self.bytes_up += up;
        self.bytes_down += down;
        self.client_events
            .extend(std::iter::from_fn(|| self.client.poll_event()));
        self.server_events
            .extend(std::iter::from_fn(|| self.server.poll_event()));
        up + down > 0
    }

    pub(crate) fn settle(&mut self) {
        while self.step(usize::MAX) {}
    }

    pub(crate) fn take_client(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.client_events)
    }

    pub(crate) fn take_server(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.server_events)
    }
}

fn flow(
    from: &mut Connection,
    to: &mut Connection,
    now: Instant,
    cut: usize,
    limit: usize,
) -> usize {
    let mut out = SendBuf::new();
    if from.wants_output() {
        from.poll_output(&mut out, limit);
    }
    let bytes = out.copy_to_bytes(out.remaining());
    for part in bytes.chunks(cut.min(1 << 20)) {
        to.handle_input(now, part)
            .expect("both ends keep the rules");
    }
    bytes.len()
}

pub(crate) fn response(status: u16, fields: &[(&str, &str)]) -> ResponseHead {
    ResponseHead {
        status,
        fields: fields.iter().copied().collect::<Fields>(),
    }
}

pub(crate) fn body(len: usize) -> Bytes {
    (0..len).map(|i| (i / 7) as u8).collect::<Vec<_>>().into()
}

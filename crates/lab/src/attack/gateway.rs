//! A gateway that attacks the client: this process plays the gateway, and a browser keeps asking
//! the client for pages.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::servers::AcceptingServer;
use super::wire::{
    SpdyBlocks, Wire, WireProtocol, control, frame, h2, literal, pair, request_block, spdy,
    spdy_data,
};

/// The length of the preface of an HTTP/2 client.
const PREFACE: usize = 24;
/// The largest number of frames in one session.
const MAX_FRAMES: u64 = 100_000;
/// The largest number of bytes in one session.
const MAX_BYTES: u64 = 256 << 20;
/// The site of the pages that the browser requests.
const SITE: &str = "site.test";

/// A kind of malicious gateway.
#[derive(Clone, Copy, Debug)]
pub struct MaliciousGateway {
    /// The name on the command line.
    pub name: &'static str,
    /// The protocol of its sessions.
    pub protocol: WireProtocol,
    /// Bytes of memory that the client may need for it.
    pub memory: u64,
    /// The response to a request on a stream; the session ends with an error.
    play: fn(&mut Play, u32) -> io::Result<()>,
}

/// The memory of a client that keeps nothing.
const SMALL: u64 = 24 << 20;
/// The memory of a client that keeps pushes or promises: `push-memory` and 16 MiB.
const PUSHES: u64 = (32 + 16) << 20;

const fn over_h2(
    name: &'static str,
    memory: u64,
    play: fn(&mut Play, u32) -> io::Result<()>,
) -> MaliciousGateway {
    MaliciousGateway {
        name,
        protocol: WireProtocol::H2,
        memory,
        play,
    }
}

const fn over_spdy(
    name: &'static str,
    memory: u64,
    play: fn(&mut Play, u32) -> io::Result<()>,
) -> MaliciousGateway {
    MaliciousGateway {
        protocol: WireProtocol::Spdy,
        ..over_h2(name, memory, play)
    }
}

const fn over_spdy3(
    name: &'static str,
    memory: u64,
    play: fn(&mut Play, u32) -> io::Result<()>,
) -> MaliciousGateway {
    MaliciousGateway {
        protocol: WireProtocol::Spdy3,
        ..over_h2(name, memory, play)
    }
}

/// All malicious gateways.
pub const ALL: &[MaliciousGateway] = &[
    over_h2("gateway-giant-heads", SMALL, |play, id| {
        let head = [&[0x88][..], &giant_fields()].concat();
        play.h2_block(h2::HEADERS, id, &head)?;
        play.send(&frame(h2::DATA, h2::END_STREAM, id, b"x"))
    }),
    over_h2("gateway-endless-head", SMALL, |play, id| {
        play.send(&frame(h2::HEADERS, 0, id, &[0x88]))?;
        play.forever(|_| frame(h2::CONTINUATION, 0, id, &[b'x'; 16_000]))
    }),
    over_h2("gateway-interim-forever", SMALL, |play, id| {
        let head = [
            literal(8, "", "103"),
            literal(0, "link", "</a>; rel=preload"),
        ]
        .concat();
        play.forever(|_| frame(h2::HEADERS, h2::END_HEADERS, id, &head))
    }),
    over_h2("gateway-giant-interim", SMALL, |play, id| {
        loop {
            let head = [literal(8, "", "103"), giant_fields()].concat();
            play.h2_block(h2::HEADERS, id, &head)?;
        }
    }),
    over_h2("gateway-settings-storm", SMALL, |play, _| {
        let windows = frame(h2::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 1]);
        play.forever(|_| windows.clone())
    }),
    over_h2("gateway-ping-storm", SMALL, |play, _| {
        play.forever(|_| frame(h2::PING, 0, 0, &[0; 8]))
    }),
    over_h2("gateway-endless-promises", PUSHES, |play, id| {
        loop {
            let promised = play.next_push();
            play.h2_promise(id, promised, &[])?;
        }
    }),
    over_h2("gateway-pushed-heads", PUSHES, |play, id| {
        loop {
            let promised = play.next_push();
            play.h2_promise(id, promised, &giant_fields())?;
            let fields = [
                &[0x88][..],
                &literal(0, "cache-control", "max-age=600"),
                &giant_fields(),
            ];
            play.h2_block(h2::HEADERS, promised, &fields.concat())?;
            play.send(&frame(h2::DATA, h2::END_STREAM, promised, b"x"))?;
        }
    }),
    over_h2("gateway-finished-pushes", PUSHES, Play::h2_finished_pushes),
    over_h2("gateway-pushed-bodies", PUSHES, |play, id| {
        loop {
            let promised = play.next_push();
            play.h2_promise(id, promised, &[])?;
            let fields = [&[0x88][..], &literal(0, "cache-control", "max-age=600")].concat();
            play.h2_block(h2::HEADERS, promised, &fields)?;
            play.send(&frame(h2::DATA, h2::END_STREAM, promised, &[b'x'; 16_000]))?;
        }
    }),
    over_h2("gateway-endless-bodies", SMALL, |play, id| {
        play.h2_block(h2::HEADERS, id, &[0x88])?;
        play.forever(|_| frame(h2::DATA, 0, id, &[b'x'; 1000]))
    }),
    over_h2("gateway-after-reset", SMALL, |play, id| {
        // The browser leaves after half a second, and the client resets the stream.
        play.h2_block(h2::HEADERS, id, &[0x88])?;
        thread::sleep(Duration::from_millis(600));
        play.forever(|_| frame(h2::DATA, 0, id, b"late"))
    }),
    over_h2("gateway-goaway-storm", SMALL, |play, _| {
        play.forever(|_| frame(h2::GOAWAY, 0, 0, &pair(0x7fff_ffff, 0)))
    }),
    over_spdy("gateway-spdy-promises", PUSHES, |play, id| {
        loop {
            let promised = play.next_push();
            let head = play.spdy_push(id, promised);
            play.send(&head)?;
        }
    }),
    over_spdy("gateway-spdy-pushed-heads", PUSHES, |play, id| {
        loop {
            let promised = play.next_push();
            let head = play.spdy_push(id, promised);
            play.send(&head)?;
            let large = "y".repeat(50_000);
            let more = [(":status", "200"), (":version", "HTTP/1.1"), ("x", &large)];
            let more = play.blocks.headers(spdy::HEADERS, promised, false, &more);
            play.send(&more)?;
            play.send(&spdy_data(promised, spdy::FIN, b"x"))?;
        }
    }),
    over_spdy(
        "gateway-spdy-finished-pushes",
        PUSHES,
        Play::spdy_finished_pushes,
    ),
    over_spdy3(
        "gateway-spdy3-finished-pushes",
        PUSHES,
        Play::spdy_finished_pushes,
    ),
    over_spdy("gateway-spdy-bomb", SMALL, |play, id| {
        loop {
            let bomb = "x".repeat(1 << 20);
            let head = [(":status", "200"), (":version", "HTTP/1.1"), ("x", &bomb)];
            let reply = play.blocks.headers(spdy::SYN_REPLY, id, false, &head);
            play.send(&reply)?;
        }
    }),
    over_spdy("gateway-spdy-settings-storm", SMALL, |play, _| {
        let settings = [&1u32.to_be_bytes()[..], &pair(7, 1)].concat();
        play.forever(|_| control(spdy::SETTINGS, 0, &settings))
    }),
    over_spdy("gateway-spdy-goaway-storm", SMALL, |play, _| {
        play.forever(|_| control(spdy::GOAWAY, 0, &pair(0x7fff_ffff, 0)))
    }),
];

/// Fields of about 50 KiB, below the client's bound for a head.
fn giant_fields() -> Vec<u8> {
    literal(0, "x-large", &"y".repeat(5000)).repeat(10)
}

/// A session of a malicious gateway.
#[derive(Debug)]
pub struct Play {
    wire: Wire,
    blocks: SpdyBlocks,
    sent: Arc<AtomicU64>,
    frames: u64,
    bytes: u64,
    pushed: u32,
}

impl Play {
    /// Sends one frame, unless the session has sent its share.
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.frames += 1;
        self.bytes += bytes.len() as u64;
        if self.frames > MAX_FRAMES || self.bytes > MAX_BYTES {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        self.wire.send(bytes)?;
        self.sent.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn forever(&mut self, make: impl Fn(u64) -> Vec<u8>) -> io::Result<()> {
        loop {
            let frame = make(self.frames);
            self.send(&frame)?;
        }
    }

    fn next_push(&mut self) -> u32 {
        self.pushed += 2;
        self.pushed
    }

    /// A header block of any length, in as many frames as it needs.
    fn h2_block(&mut self, kind: u8, id: u32, block: &[u8]) -> io::Result<()> {
        let mut parts = block.chunks(16_000).peekable();
        let mut kind = kind;
        while let Some(part) = parts.next() {
            let flags = if parts.peek().is_none() {
                h2::END_HEADERS
            } else {
                0
            };
            self.send(&frame(kind, flags, id, part))?;
            kind = h2::CONTINUATION;
        }
        Ok(())
    }

    fn h2_promise(&mut self, parent: u32, promised: u32, fields: &[u8]) -> io::Result<()> {
        let request = request_block("GET", SITE, &format!("/push/{promised}"));
        let block = [&promised.to_be_bytes()[..], &request, fields].concat();
        self.h2_block(h2::PUSH_PROMISE, parent, &block)
    }

    fn spdy_push(&mut self, parent: u32, promised: u32) -> Vec<u8> {
        // FLAG_UNIDIRECTIONAL.
        self.spdy_push_with(parent, promised, 2, &[])
    }

    fn spdy_push_with(
        &mut self,
        parent: u32,
        promised: u32,
        flags: u8,
        more: &[(&str, &str)],
    ) -> Vec<u8> {
        let path = format!("/push/{promised}");
        let pairs = [
            (":scheme", "http"),
            (":host", SITE),
            (":path", path.as_str()),
        ];
        let block = self.blocks.block(&[&pairs[..], more].concat());
        let payload = [&pair(promised, parent)[..], &[0, 0], &block].concat();
        control(spdy::SYN_STREAM, flags, &payload)
    }

    /// Pushes without content. References to a field of 3,900 bytes make heads of 55 kB from some
    /// 40 bytes.
    fn h2_finished_pushes(&mut self, id: u32) -> io::Result<()> {
        // A literal with the name `x` that enters the table (RFC 7541 section 6.2.1). It has the
        // first dynamic index.
        let field = [&[0x40][..], &literal(0, "x", &"y".repeat(3900))[1..]].concat();
        let known = [0xbe; 14];
        self.h2_block(h2::HEADERS, id, &[0x88])?;
        let first = self.next_push();
        self.h2_promise(id, first, &field)?;
        loop {
            let promised = self.next_push();
            self.h2_promise(id, promised, &known)?;
            let block = [&[0x88][..], &known].concat();
            let flags = h2::END_HEADERS | h2::END_STREAM;
            self.send(&frame(h2::HEADERS, flags, promised, &block))?;
        }
    }

    /// Pushes without content. Each head inflates from some 200 bytes to 50 kB.
    fn spdy_finished_pushes(&mut self, id: u32) -> io::Result<()> {
        let large = "y".repeat(50_000);
        let head = [(":status", "200"), (":version", "HTTP/1.1"), ("x", &large)];
        let reply = self.blocks.headers(spdy::SYN_REPLY, id, false, &head[..2]);
        self.send(&reply)?;
        loop {
            let promised = self.next_push();
            let push = self.spdy_push_with(id, promised, 2 | spdy::FIN, &head);
            self.send(&push)?;
        }
    }
}

impl MaliciousGateway {
    /// Listens as this gateway; `sent` counts the frames that it has sent.
    pub fn start(self, sent: Arc<AtomicU64>) -> io::Result<AcceptingServer> {
        AcceptingServer::start(move |stream| self.serve(stream, Arc::clone(&sent)))
    }

    fn serve(self, mut stream: TcpStream, sent: Arc<AtomicU64>) -> io::Result<()> {
        let mut beginning = Vec::new();
        if self.protocol == WireProtocol::H2 {
            let mut preface = [0; PREFACE];
            stream.read_exact(&mut preface)?;
            beginning = frame(h2::SETTINGS, 0, 0, &[]);
        }
        stream.write_all(&beginning)?;
        let mut play = Play {
            wire: Wire::accepted(stream, self.protocol)?,
            blocks: SpdyBlocks::default(),
            sent,
            frames: 0,
            bytes: 0,
            pushed: 0,
        };
        play.wire
            .stream
            .set_write_timeout(Some(Duration::from_secs(1)))?;
        while let Some(arrived) = play.wire.receive()? {
            let request = match self.protocol {
                WireProtocol::H2 => (arrived.kind == u16::from(h2::HEADERS)).then_some(arrived.id),
                WireProtocol::Spdy | WireProtocol::Spdy3 if arrived.kind == spdy::SYN_STREAM => {
                    let id = arrived.payload.first_chunk();
                    id.map(|id| u32::from_be_bytes(*id))
                }
                WireProtocol::Spdy | WireProtocol::Spdy3 => None,
            };
            if let Some(id) = request {
                (self.play)(&mut play, id)?;
            }
        }
        Ok(())
    }
}

/// A browser that asks the client for pages until a time, on several threads. Half of them leave a
/// page after half a second, the others stay as long as the page loads.
pub fn browse(client: SocketAddr, until: Instant) -> Vec<JoinHandle<()>> {
    (0..4)
        .map(|thread| {
            thread::spawn(move || {
                while Instant::now() < until {
                    let leave = if thread % 2 == 0 {
                        until.min(Instant::now() + Duration::from_millis(500))
                    } else {
                        until
                    };
                    // The answers are the attacker's and mean nothing.
                    let _ = visit(client, leave);
                    thread::sleep(Duration::from_millis(50));
                }
            })
        })
        .collect()
}

fn visit(client: SocketAddr, leave: Instant) -> io::Result<()> {
    let mut stream = TcpStream::connect(client)?;
    let stay = leave.saturating_duration_since(Instant::now());
    stream.set_read_timeout(Some(stay.max(Duration::from_millis(1))))?;
    let head = "Accept: text/html\r\nSec-Fetch-Dest: document\r\nSec-Fetch-Mode: navigate\r\n";
    write!(
        stream,
        "GET http://{SITE}/ HTTP/1.1\r\nHost: {SITE}\r\n{head}\r\n"
    )?;
    let mut part = [0; 16_384];
    while Instant::now() < leave && stream.read(&mut part)? > 0 {}
    Ok(())
}

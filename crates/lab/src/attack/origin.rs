//! Origins that attack the gateway: heads and chunks without end, wrong lengths, endless interim
//! responses, slow drips.

use std::io::{self, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::servers::{AcceptingServer, read_head};
use super::victim::VictimGateway;
use super::wire::{Wire, WireProtocol, frame, h2, request_block};

/// The largest number of bytes in one answer.
const MAX_ANSWER: usize = 64 << 20;

/// A kind of malicious origin.
#[derive(Clone, Copy, Debug)]
pub struct AttackOrigin {
    /// The name on the command line.
    pub name: &'static str,
    /// The beginning of each answer.
    first: &'static [u8],
    /// A part that is repeated until the gateway closes the connection.
    repeated: &'static [u8],
    /// The time between two parts.
    pause: Duration,
}

const fn origin(name: &'static str, first: &'static [u8], repeated: &'static [u8]) -> AttackOrigin {
    AttackOrigin {
        name,
        first,
        repeated,
        pause: Duration::ZERO,
    }
}

/// All malicious origins.
pub const ALL: &[AttackOrigin] = &[
    origin("origin-endless-line", b"HTTP/1.1 200 ", &[b'x'; 4096]),
    origin(
        "origin-endless-head",
        b"HTTP/1.1 200 OK\r\n",
        b"x: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n",
    ),
    origin(
        "origin-short-fields",
        b"HTTP/1.1 200 OK\r\n",
        b"a:\r\nb:\r\nc:\r\nd:\r\ne:\r\nf:\r\n",
    ),
    origin(
        "origin-interim-forever",
        b"",
        b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n",
    ),
    origin(
        "origin-continue-forever",
        b"",
        b"HTTP/1.1 100 Continue\r\n\r\n",
    ),
    origin(
        "origin-chunk-extension",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5",
        b";a=bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb",
    ),
    origin(
        "origin-chunk-zeros",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        &[b'0'; 4096],
    ),
    origin(
        "origin-endless-trailers",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n",
        b"x: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n",
    ),
    origin(
        "origin-beyond-length",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
        &[b'x'; 4096],
    ),
    origin(
        "origin-byte-chunks",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        b"1\r\nx\r\n",
    ),
    AttackOrigin {
        pause: Duration::from_millis(20),
        ..origin(
            "origin-slow-drip",
            b"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n",
            b"x",
        )
    },
    AttackOrigin {
        pause: Duration::from_millis(20),
        ..origin("origin-slow-head", b"HTTP/1.1 200 OK\r\nx: ", b"y")
    },
];

impl AttackOrigin {
    /// Listens as this origin.
    pub fn start(self) -> io::Result<AcceptingServer> {
        AcceptingServer::start(move |stream| self.serve(stream))
    }

    fn serve(self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_write_timeout(Some(Duration::from_secs(2)))?;
        let mut reader = BufReader::new(stream.try_clone()?);
        while read_head(&mut reader)?.is_some() {
            stream.write_all(self.first)?;
            let mut left = MAX_ANSWER;
            while left > self.repeated.len() {
                left -= self.repeated.len();
                stream.write_all(self.repeated)?;
                thread::sleep(self.pause);
            }
        }
        Ok(())
    }
}

/// Requests the origin's responses from the gateway on many streams, reads the responses and
/// repeats.
pub fn ask(gateway: VictimGateway, origin: SocketAddr, until: Instant) -> io::Result<u64> {
    let block = request_block("GET", &origin.to_string(), "/");
    let mut asked = 0;
    while Instant::now() < until {
        let mut wire = Wire::connect(gateway.h2, WireProtocol::H2)?;
        wire.stream
            .set_read_timeout(Some(Duration::from_millis(500)))?;
        for stream in 0..20 {
            let flags = h2::END_HEADERS | h2::END_STREAM;
            wire.send(&frame(h2::HEADERS, flags, stream * 2 + 1, &block))?;
            asked += 1;
        }
        let mut ended = 0;
        while ended < 20 && Instant::now() < until {
            // Silence is an answer, too: some origins never finish a head.
            let Ok(Some(arrived)) = wire.receive() else {
                break;
            };
            let kind = arrived.kind as u8;
            let reset = kind == h2::RST_STREAM;
            let last =
                matches!(kind, h2::DATA | h2::HEADERS) && arrived.flags & h2::END_STREAM != 0;
            ended += usize::from(reset || last);
            if kind == h2::DATA && !arrived.payload.is_empty() {
                let credit = (arrived.payload.len() as u32).to_be_bytes();
                let credits = [
                    frame(h2::WINDOW_UPDATE, 0, 0, &credit),
                    frame(h2::WINDOW_UPDATE, 0, arrived.id, &credit),
                ];
                match wire.send(&credits.concat()) {
                    // Credit for each byte is a flood too, and ends the session.
                    Err(error) if super::wire::has_ended(&error) => break,
                    sent => sent?,
                }
            }
        }
    }
    Ok(asked)
}

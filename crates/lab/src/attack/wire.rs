//! A peer that writes frames by hand: HTTP/2 and SPDY frames, well formed or not, over a blocking
//! socket.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use tandem_spdy::header_block::{Block, Encoder, HeaderCompression};

/// The time after which a socket that takes or gives nothing is an error.
const IO_TIMEOUT: Duration = Duration::from_secs(60);
/// The preface of an HTTP/2 client and empty SETTINGS.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// The number from which questions whether a session goes on are counted. It is odd, as the PINGs
/// of SPDY's clients are, and far above those of floods.
const MARK: u32 = 0x0700_0001;

/// Types of HTTP/2 frames (RFC 9113 section 6, RFC 9218 section 7.1).
#[expect(missing_docs, reason = "the names are those of the RFCs")]
pub mod h2 {
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
}

/// Types of SPDY control frames (draft section 2.6).
#[expect(missing_docs, reason = "the names are those of the draft")]
pub mod spdy {
    pub const SYN_STREAM: u16 = 1;
    pub const SYN_REPLY: u16 = 2;
    pub const RST_STREAM: u16 = 3;
    pub const SETTINGS: u16 = 4;
    pub const NOOP: u16 = 5;
    pub const PING: u16 = 6;
    pub const GOAWAY: u16 = 7;
    pub const HEADERS: u16 = 8;
    pub const WINDOW_UPDATE: u16 = 9;
    pub const FIN: u8 = 1;
}

/// The protocol of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireProtocol {
    /// HTTP/2.
    H2,
    /// SPDY/3.1.
    Spdy,
    /// SPDY/3, whose frames are the same.
    Spdy3,
}

/// An HTTP/2 frame.
pub fn frame(kind: u8, flags: u8, id: u32, payload: &[u8]) -> Vec<u8> {
    let [_, length @ ..] = (payload.len() as u32).to_be_bytes();
    [&length[..], &[kind, flags], &id.to_be_bytes(), payload].concat()
}

/// Encodes a field of an HTTP/2 header block as a literal that does not change the table (RFC 7541
/// section 6.2.2). `index` is the static entry of its name; 0 stands for the given name.
pub fn literal(index: u8, name: &str, value: &str) -> Vec<u8> {
    let mut out = vec![index];
    if index == 0 {
        put_string(&mut out, name);
    }
    put_string(&mut out, value);
    out
}

/// A string without Huffman coding (RFC 7541 section 5.2).
fn put_string(out: &mut Vec<u8>, text: &str) {
    match text.len() {
        short @ 0..=126 => out.push(short as u8),
        long => {
            out.push(127);
            let mut rest = long - 127;
            while rest >= 128 {
                out.push((rest % 128) as u8 | 128);
                rest /= 128;
            }
            out.push(rest as u8);
        }
    }
    out.extend_from_slice(text.as_bytes());
}

/// The header block of a request to `http://AUTHORITY/PATH`.
pub fn request_block(method: &str, authority: &str, path: &str) -> Vec<u8> {
    let method = match method {
        "GET" => vec![0x82],
        other => literal(2, "", other),
    };
    let target = [literal(4, "", path), literal(1, "", authority)].concat();
    [&method[..], &[0x86], &target].concat()
}

/// A SPDY control frame.
pub fn control(kind: u16, flags: u8, payload: &[u8]) -> Vec<u8> {
    let [_, length @ ..] = (payload.len() as u32).to_be_bytes();
    let [k1, k0] = kind.to_be_bytes();
    [&[0x80, 3, k1, k0, flags], &length[..], payload].concat()
}

/// A SPDY data frame.
pub fn spdy_data(id: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let [_, length @ ..] = (payload.len() as u32).to_be_bytes();
    [&id.to_be_bytes()[..], &[flags], &length, payload].concat()
}

/// Two 32-bit numbers: the payload of RST_STREAM, WINDOW_UPDATE and GOAWAY in SPDY, and of GOAWAY
/// in HTTP/2.
pub fn pair(first: u32, second: u32) -> Vec<u8> {
    [first.to_be_bytes(), second.to_be_bytes()].concat()
}

/// An encoder of SPDY frames with header blocks. Their compression has a state.
#[derive(Debug)]
pub struct SpdyBlocks(Encoder);

impl Default for SpdyBlocks {
    fn default() -> Self {
        Self(Encoder::new(HeaderCompression::Full))
    }
}

impl SpdyBlocks {
    /// A header block with these pairs.
    pub fn block(&mut self, pairs: &[(&str, &str)]) -> Vec<u8> {
        let mut block = Block::new();
        for (name, value) in pairs {
            block.push(name.as_bytes(), &[value.as_bytes()], 0, false);
        }
        let mut out = Vec::new();
        self.0.encode(&block, &mut out);
        out
    }

    /// SYN_STREAM of a request to `http://AUTHORITY/PATH`.
    pub fn request(&mut self, id: u32, fin: bool, method: &str, host: &str, path: &str) -> Vec<u8> {
        let block = self.block(&[
            (":method", method),
            (":path", path),
            (":version", "HTTP/1.1"),
            (":host", host),
            (":scheme", "http"),
        ]);
        let payload = [&pair(id, 0)[..], &[0, 0], &block].concat();
        control(spdy::SYN_STREAM, u8::from(fin), &payload)
    }

    /// HEADERS or SYN_REPLY on a stream.
    pub fn headers(&mut self, kind: u16, id: u32, fin: bool, pairs: &[(&str, &str)]) -> Vec<u8> {
        let block = self.block(pairs);
        control(
            kind,
            u8::from(fin),
            &[&id.to_be_bytes()[..], &block].concat(),
        )
    }
}

/// A frame that arrived. For SPDY, `kind` is 0 for data and otherwise the type of a control frame.
#[derive(Debug)]
pub struct Arrived {
    /// The type.
    pub kind: u16,
    /// The flags.
    pub flags: u8,
    /// The stream, if the frame's head has it: 0 for SPDY's control frames.
    pub id: u32,
    /// The payload.
    pub payload: Vec<u8>,
}

/// An end of a session that this process plays.
#[derive(Debug)]
pub struct Wire {
    /// The socket.
    pub stream: TcpStream,
    protocol: WireProtocol,
    input: Vec<u8>,
    pings: u32,
}

impl Wire {
    /// Connects as a client and sends the preface.
    pub fn connect(address: SocketAddr, protocol: WireProtocol) -> io::Result<Self> {
        let mut wire = Self::accepted(TcpStream::connect_timeout(&address, IO_TIMEOUT)?, protocol)?;
        if protocol == WireProtocol::H2 {
            wire.send(PREFACE)?;
        }
        Ok(wire)
    }

    /// Takes a socket; the caller handles its preface.
    pub fn accepted(stream: TcpStream, protocol: WireProtocol) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(IO_TIMEOUT))?;
        stream.set_write_timeout(Some(IO_TIMEOUT))?;
        Ok(Self {
            stream,
            protocol,
            input: Vec::new(),
            pings: MARK,
        })
    }

    /// Writes bytes.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Waits for the next frame; `None` at the end of the connection.
    pub fn receive(&mut self) -> io::Result<Option<Arrived>> {
        loop {
            if let Some(arrived) = self.take_frame() {
                return Ok(Some(arrived));
            }
            let mut part = [0; 16_384];
            let count = match self.stream.read(&mut part) {
                Err(error) if has_ended(&error) => 0,
                read => read?,
            };
            if count == 0 {
                return Ok(None);
            }
            self.input.extend_from_slice(&part[..count]);
        }
    }

    fn take_frame(&mut self) -> Option<Arrived> {
        let head = match self.protocol {
            WireProtocol::H2 => 9,
            WireProtocol::Spdy | WireProtocol::Spdy3 => 8,
        };
        let bytes = self.input.get(..head)?;
        let length = match self.protocol {
            WireProtocol::H2 => u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]),
            WireProtocol::Spdy | WireProtocol::Spdy3 => {
                u32::from_be_bytes([0, bytes[5], bytes[6], bytes[7]])
            }
        } as usize;
        let (kind, flags, id) = match self.protocol {
            WireProtocol::H2 => {
                let id = u32::from_be_bytes([bytes[5], bytes[6], bytes[7], bytes[8]]);
                (u16::from(bytes[3]), bytes[4], id)
            }
            WireProtocol::Spdy | WireProtocol::Spdy3 if bytes[0] & 0x80 != 0 => {
                (u16::from_be_bytes([bytes[2], bytes[3]]), bytes[4], 0)
            }
            WireProtocol::Spdy | WireProtocol::Spdy3 => {
                let id = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                (0, bytes[4], id)
            }
        };
        if self.input.len() < head + length {
            return None;
        }
        let payload = self.input[head..head + length].to_vec();
        self.input.drain(..head + length);
        Some(Arrived {
            kind,
            flags,
            id,
            payload,
        })
    }

    /// Returns true if the other end has handled all frames and continues. A PING finds out; after
    /// GOAWAY or the end of the connection it does not continue.
    pub fn goes_on(&mut self) -> io::Result<bool> {
        self.pings += 2;
        let ping = match self.protocol {
            WireProtocol::H2 => frame(h2::PING, 0, 0, &pair(MARK, self.pings)),
            WireProtocol::Spdy | WireProtocol::Spdy3 => {
                control(spdy::PING, 0, &self.pings.to_be_bytes())
            }
        };
        match self.send(&ping) {
            Err(error) if has_ended(&error) => return Ok(false),
            sent => sent?,
        }
        let until = Instant::now() + IO_TIMEOUT;
        while let Some(arrived) = self.receive()? {
            let answer = match self.protocol {
                WireProtocol::H2 if arrived.kind == u16::from(h2::GOAWAY) => return Ok(false),
                WireProtocol::Spdy | WireProtocol::Spdy3 if arrived.kind == spdy::GOAWAY => {
                    return Ok(false);
                }
                WireProtocol::H2 => {
                    arrived.kind == u16::from(h2::PING) && arrived.payload == pair(MARK, self.pings)
                }
                WireProtocol::Spdy | WireProtocol::Spdy3 => {
                    arrived.kind == spdy::PING && arrived.payload == self.pings.to_be_bytes()
                }
            };
            if answer {
                return Ok(true);
            }
            if Instant::now() > until {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        Ok(false)
    }
}

/// Returns true if an error says that the other end has closed the connection.
pub fn has_ended(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected};
    matches!(
        error.kind(),
        BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected
    )
}

#[cfg(test)]
mod tests {
    use tandem_http::hpack::Decoder;

    use super::*;

    #[test]
    fn request_blocks_decode() {
        let mut fields = Vec::new();
        let block = request_block("POST", "a.test", &format!("/{}", "x".repeat(300)));
        Decoder::new()
            .decode(&block, |field| {
                fields.push((field.name.to_vec(), field.value.len()));
            })
            .expect("a good block");
        let lengths: Vec<usize> = fields.iter().map(|(_, length)| *length).collect();
        assert_eq!(lengths, [4, 4, 301, 6]);
        assert_eq!(fields[2].0, b":path");
    }

    #[test]
    fn frames_have_their_lengths() {
        assert_eq!(frame(h2::PING, 0, 1, &[7]), [0, 0, 1, 6, 0, 0, 0, 0, 1, 7]);
        assert_eq!(control(spdy::NOOP, 0, &[]), [0x80, 3, 0, 5, 0, 0, 0, 0]);
        assert_eq!(spdy_data(3, 1, b"x"), [0, 0, 0, 3, 1, 0, 0, 1, b'x']);
    }
}

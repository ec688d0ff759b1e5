//! A client of WebSockets with text messages (RFC 6455). Its only peer is the browser of this
//! machine, so its mask is constant, and it offers no extension.

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::super::BrowserError;

/// Largest message taken; the largest that we ask for are a thousand times smaller.
const MAX_MESSAGE: usize = 256 << 20;
/// Largest head of the browser's response.
const MAX_HEAD: usize = 16 << 10;
const READ: usize = 256 << 10;

/// The opcodes that are used (section 5.2).
const TEXT: u8 = 1;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// The mask of all frames. Firefox takes zeros for a missing mask.
const MASK: u8 = 0x5a;

/// An open WebSocket.
#[derive(Debug)]
pub(super) struct Socket {
    stream: TcpStream,
    input: BytesMut,
    /// The frames of a message that goes on.
    parts: Vec<u8>,
}

/// A frame without its head.
#[derive(Debug, PartialEq, Eq)]
struct Frame {
    is_last: bool,
    kind: u8,
    payload: Vec<u8>,
}

impl Socket {
    /// Connects to a resource (section 4.1).
    pub(super) async fn connect(port: u16, path: &str) -> Result<Self, BrowserError> {
        let connected = TcpStream::connect((std::net::Ipv4Addr::LOCALHOST, port)).await;
        let mut socket = Self {
            stream: connected.map_err(BrowserError::Pipe)?,
            input: BytesMut::new(),
            parts: Vec::new(),
        };
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        );
        socket.write(request.as_bytes()).await?;
        let end = loop {
            if let Some(end) = socket.input.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            if socket.input.len() > MAX_HEAD {
                return Err(BrowserError::TooLong);
            }
            socket.fill().await?;
        };
        let head = socket.input.split_to(end);
        if !head.starts_with(b"HTTP/1.1 101 ") {
            return Err(BrowserError::Refused {
                method: "the WebSocket",
                why: String::from_utf8_lossy(&head)
                    .lines()
                    .next()
                    .unwrap_or_default()
                    .to_owned(),
            });
        }
        Ok(socket)
    }

    pub(super) async fn send(&mut self, text: &str) -> Result<(), BrowserError> {
        self.write(&frame(TEXT, text.as_bytes())).await
    }

    /// The next message. Safe to drop while it waits.
    pub(super) async fn receive(&mut self) -> Result<Vec<u8>, BrowserError> {
        loop {
            let Some(frame) = take_frame(&mut self.input) else {
                if self.input.len() + self.parts.len() > MAX_MESSAGE {
                    return Err(BrowserError::TooLong);
                }
                self.fill().await?;
                continue;
            };
            match frame.kind {
                PING => self.write(&self::frame(PONG, &frame.payload)).await?,
                CLOSE => return Err(ended()),
                kind if kind <= 2 => {
                    self.parts.extend_from_slice(&frame.payload);
                    if frame.is_last {
                        return Ok(std::mem::take(&mut self.parts));
                    }
                }
                _ => {}
            }
        }
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), BrowserError> {
        self.stream
            .write_all(bytes)
            .await
            .map_err(BrowserError::Pipe)
    }

    async fn fill(&mut self) -> Result<(), BrowserError> {
        self.input.reserve(READ);
        let read = self.stream.read_buf(&mut self.input).await;
        match read.map_err(BrowserError::Pipe)? {
            0 => Err(ended()),
            _ => Ok(()),
        }
    }
}

const fn ended() -> BrowserError {
    BrowserError::Ended {
        complaint: String::new(),
    }
}

/// Writes a masked frame (section 5.3).
fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x80 | kind];
    match (u8::try_from(payload.len()), u16::try_from(payload.len())) {
        (Ok(length @ ..126), _) => bytes.push(0x80 | length),
        (_, Ok(length)) => {
            bytes.push(0x80 | 126);
            bytes.extend_from_slice(&length.to_be_bytes());
        }
        _ => {
            bytes.push(0x80 | 127);
            bytes.extend_from_slice(&(payload.len() as u64).to_be_bytes());
        }
    }
    bytes.extend_from_slice(&[MASK; 4]);
    bytes.extend(payload.iter().map(|byte| byte ^ MASK));
    bytes
}

/// Takes a whole frame without a mask from the input, if there is one.
fn take_frame(input: &mut BytesMut) -> Option<Frame> {
    let (first, second) = (*input.first()?, *input.get(1)?);
    let number = |bytes: &[u8]| {
        bytes
            .iter()
            .fold(0u64, |sum, &byte| sum << 8 | u64::from(byte))
    };
    let (start, length) = match second & 0x7f {
        126 => (4, number(input.get(2..4)?)),
        127 => (10, number(input.get(2..10)?)),
        length => (2, u64::from(length)),
    };
    let end = start + usize::try_from(length).ok()?;
    let payload = input.get(start..end)?.to_vec();
    input.advance(end);
    Some(Frame {
        is_last: first & 0x80 != 0,
        kind: first & 0x0f,
        payload,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_all_lengths_are_read() {
        for length in [0usize, 1, 125, 126, 65_535, 65_536] {
            let payload = vec![7; length];
            // Without the mask it is a frame of the browser.
            let mut bytes = frame(TEXT, &vec![7 ^ MASK; length]);
            let mask = bytes.len() - length - 4;
            bytes.drain(mask..mask + 4);
            bytes[1] &= 0x7f;
            let mut input = BytesMut::from(&bytes[..bytes.len() - 1]);
            assert_eq!(take_frame(&mut input), None, "{length}: it is not whole");
            let mut input = BytesMut::from(&bytes[..]);
            input.extend_from_slice(b"next");
            let wanted = Frame {
                is_last: true,
                kind: TEXT,
                payload,
            };
            assert_eq!(take_frame(&mut input), Some(wanted), "{length}");
            assert_eq!(&input[..], b"next");
        }
    }
}

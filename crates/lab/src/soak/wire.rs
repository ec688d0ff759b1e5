//! A visitor's connection to a proxy: HTTP/1.1 with every byte of a body handed to a check, and
//! SOCKS5.

use std::io;
use std::net::SocketAddr;

use bytes::{Buf, BytesMut};
use tandem_http::Method;
use tandem_http::h1::{self, Decoder, Limits};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A connection to a proxy.
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    buf: BytesMut,
    /// Answers that are complete.
    answers: u32,
    /// The head of the answer under way has come.
    has_head: bool,
}

impl Connection {
    pub(super) async fn open(proxy: SocketAddr) -> io::Result<Self> {
        Ok(Self {
            stream: TcpStream::connect(proxy).await?,
            buf: BytesMut::new(),
            answers: 0,
            has_head: false,
        })
    }

    /// Returns whether a proxy may have closed the connection while it was idle, just when a
    /// request left: then a client sends it again on another (RFC 9112 section 9.3.1).
    pub(super) fn may_have_been_closed(&self) -> bool {
        self.answers > 0 && !self.has_head && self.buf.is_empty()
    }

    pub(super) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await
    }

    /// Reads the next final head.
    async fn head(&mut self, method: &Method) -> io::Result<h1::Response> {
        loop {
            let parsed = h1::parse_response(&self.buf, method, &Limits::default())
                .map_err(|bad| io::Error::new(io::ErrorKind::InvalidData, bad.to_string()))?;
            match parsed {
                Some((response, used)) => {
                    self.buf.advance(used);
                    if !response.head.is_informational() {
                        return Ok(response);
                    }
                }
                None => self.fill().await?,
            }
        }
    }

    /// Reads an answer, and gives its body to `take` as it comes. Returns the status; an error
    /// where the answer is not complete.
    pub(super) async fn answer(
        &mut self,
        method: &Method,
        mut take: impl FnMut(u16, &[u8]),
    ) -> io::Result<u16> {
        self.has_head = false;
        let response = self.head(method).await?;
        self.has_head = true;
        let mut decoder = Decoder::new(response.framing);
        while !decoder.is_done() {
            if self.buf.is_empty() {
                self.buf.reserve(16 << 10);
                if self.stream.read_buf(&mut self.buf).await? == 0 {
                    decoder
                        .finish()
                        .map_err(|_| io::Error::from(io::ErrorKind::UnexpectedEof))?;
                    break;
                }
            }
            let decoded = decoder
                .decode(&self.buf)
                .map_err(|bad| io::Error::new(io::ErrorKind::InvalidData, bad.to_string()))?;
            let piece = self.buf.split_to(decoded.consumed);
            take(response.head.status, &piece[decoded.data]);
        }
        self.answers += 1;
        Ok(response.head.status)
    }

    /// Reads exactly `count` raw bytes.
    pub(super) async fn raw(&mut self, count: usize) -> io::Result<Vec<u8>> {
        while self.buf.len() < count {
            self.fill().await?;
        }
        Ok(self.buf.split_to(count).to_vec())
    }

    async fn fill(&mut self) -> io::Result<()> {
        if self.stream.read_buf(&mut self.buf).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    /// Asks for a tunnel with SOCKS5, with a user's name (RFC 1928, RFC 1929). Returns the reply.
    pub(super) async fn socks(&mut self, target: SocketAddr, user: &str) -> io::Result<u8> {
        let host = target.ip().to_string();
        let mut flight = vec![5, 1, 2, 1, user.len() as u8];
        flight.extend(user.bytes());
        flight.extend([1, b'p', 5, 1, 0, 3, host.len() as u8]);
        flight.extend(host.bytes());
        flight.extend(target.port().to_be_bytes());
        self.send(&flight).await?;
        let replies = self.raw(4 + 10).await?;
        Ok(replies[5])
    }
}

//! A connection of the loader: to an origin, to an HTTP proxy, or through SOCKS5.

use std::io;
use std::time::Instant;

use bytes::BytesMut;
use tandem_http::h1::Authority;
use tandem_http::socks::{Client, Progress, SocksError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Fault, Via};

const READ: usize = 64 << 10;

/// An open connection and what happened on it since it was last asked.
pub(super) struct Connection {
    stream: TcpStream,
    pub(super) input: BytesMut,
    /// SOCKS answers still to come.
    socks: Option<Client>,
    /// SOCKS bytes that leave with the first request.
    flight: Vec<u8>,
    pub(super) traffic: Traffic,
}

/// Bytes at the socket, and when the first left and the last came.
#[derive(Clone, Copy, Default)]
pub(super) struct Traffic {
    pub(super) up: u64,
    pub(super) down: u64,
    pub(super) first_sent: Option<Instant>,
    pub(super) last_received: Option<Instant>,
}

impl Traffic {
    /// Both together.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            up: self.up + other.up,
            down: self.down + other.down,
            first_sent: self.first_sent.into_iter().chain(other.first_sent).min(),
            last_received: self.last_received.into_iter().chain(other.last_received).max(),
        }
    }
}

impl Connection {
    /// Opens a connection that can carry requests for `authority`.
    pub(super) async fn open(via: &Via, authority: &str, optimistic: bool) -> Result<Self, Fault> {
        let parsed = Authority::parse(authority.as_bytes()).ok_or(SocksError::TooLong)?;
        let port = parsed.port.unwrap_or(80);
        let direct = format!("{}:{port}", parsed.host);
        let to = match via {
            Via::Direct => &direct,
            Via::Http { proxy } | Via::Socks5 { proxy, .. } => proxy,
        };
        let connected = TcpStream::connect(to.as_str()).await;
        let stream = connected.map_err(|source| Fault::Connect { to: to.clone(), source })?;
        stream.set_nodelay(true)?;
        let mut connection =
            Self { stream, input: BytesMut::new(), socks: None, flight: Vec::new(), traffic: Traffic::default() };
        if let Via::Socks5 { credentials, .. } = via {
            let pair = credentials.as_ref().map(|(user, password)| (user.as_bytes(), password.as_bytes()));
            let client = Client::new(parsed.host, port, pair)?;
            connection.flight = client.first_flight();
            connection.socks = Some(client);
            if !optimistic {
                connection.shake_hands().await?;
            }
        }
        Ok(connection)
    }

    /// Waits for the SOCKS server to open the stream.
    async fn shake_hands(&mut self) -> Result<(), Fault> {
        self.send(&[]).await?;
        while self.socks.is_some() {
            if self.receive().await? == 0 {
                return Err(Fault::Closed);
            }
        }
        Ok(())
    }

    /// Gives bytes to the kernel, SOCKS's before them in the same write.
    pub(super) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.traffic.first_sent.get_or_insert_with(Instant::now);
        let mut all = std::mem::take(&mut self.flight);
        let bytes = if all.is_empty() {
            bytes
        } else {
            all.extend_from_slice(bytes);
            &all
        };
        self.stream.write_all(bytes).await?;
        self.traffic.up += bytes.len() as u64;
        Ok(())
    }

    /// Reads into `input`, which never holds bytes of SOCKS afterwards; gives the bytes read, 0 at the end.
    pub(super) async fn receive(&mut self) -> Result<usize, Fault> {
        if self.input.capacity() - self.input.len() < READ / 4 {
            self.input.reserve(READ);
        }
        let read = self.stream.read_buf(&mut self.input).await?;
        if read > 0 {
            self.traffic.down += read as u64;
            self.traffic.last_received = Some(Instant::now());
        }
        if let Some(client) = &mut self.socks {
            match client.handle_input(&self.input)? {
                Progress::Pending => self.input.clear(),
                Progress::Done { consumed } => {
                    let _ = self.input.split_to(consumed);
                    self.socks = None;
                }
            }
        }
        Ok(read)
    }

    /// Takes what happened since the last call.
    pub(super) fn take_traffic(&mut self) -> Traffic {
        std::mem::take(&mut self.traffic)
    }
}

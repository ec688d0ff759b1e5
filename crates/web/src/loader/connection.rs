//! A connection of the loader: to an origin, to an HTTP proxy, through a tunnel of one, or through
//! SOCKS5; with TLS or without.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use rustls::pki_types::ServerName;
use tandem_http::h1::{Authority, Limits, parse_response};
use tandem_http::socks::{Client, Progress, SocksError};
use tandem_http::{Method, Scheme};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::metered::{Meter, Metered};
use super::{Fault, Loader, Protocol, Via, resolve};

const READ: usize = 64 << 10;

/// An open connection.
pub(super) struct LoaderConnection {
    pub(super) stream: Stream,
    pub(super) input: BytesMut,
    /// SOCKS answers still to come.
    socks: Option<Client>,
    /// SOCKS bytes that leave with the first request.
    flight: Vec<u8>,
    pub(super) meter: Meter,
    /// The time of the TLS handshake.
    pub(super) tls: Option<Duration>,
}

/// Bytes there and back.
#[derive(Debug)]
pub(super) enum Stream {
    Plain(Metered),
    Tls(Box<TlsStream<Metered>>),
}

/// The next hop of requests.
#[derive(Clone, Copy)]
pub(super) struct Goal<'a> {
    pub(super) scheme: Scheme,
    pub(super) authority: &'a str,
}

impl LoaderConnection {
    /// Opens a connection that can carry requests to a goal.
    pub(super) async fn open(
        loader: &Loader,
        tls: &TlsConnector,
        goal: Goal<'_>,
    ) -> Result<Self, Fault> {
        let parsed = Authority::parse(goal.authority.as_bytes()).ok_or(SocksError::TooLong)?;
        let port = parsed.port.unwrap_or_else(|| goal.scheme.default_port());
        let to = match &loader.via {
            Via::Direct => resolve::address(&loader.resolve, parsed.host, port),
            Via::Http { proxy } | Via::Socks5 { proxy, .. } => proxy.clone(),
        };
        let connected = TcpStream::connect(&to).await;
        let socket = connected.map_err(|source| Fault::Connect { to, source })?;
        socket.set_nodelay(true)?;
        let meter = Meter::default();
        let stream = Stream::Plain(Metered::new(socket, meter.clone()));
        let mut connection = Self {
            stream,
            input: BytesMut::new(),
            socks: None,
            flight: Vec::new(),
            meter,
            tls: None,
        };
        let secure = goal.scheme == Scheme::Https;
        match &loader.via {
            Via::Socks5 { credentials, .. } => {
                let pair = credentials
                    .as_ref()
                    .map(|(user, password)| (user.as_bytes(), password.as_bytes()));
                let client = Client::new(parsed.host, port, pair)?;
                connection.flight = client.first_flight();
                connection.socks = Some(client);
                if !loader.optimistic || secure || loader.protocol == Protocol::H2 {
                    connection.shake_hands().await?;
                }
            }
            Via::Http { .. } if secure || loader.protocol == Protocol::H2 => {
                connection
                    .tunnel(&format!("{}:{port}", parsed.host), loader)
                    .await?;
            }
            Via::Http { .. } | Via::Direct => {}
        }
        if secure {
            connection.encrypt(tls, parsed.host, loader.protocol).await
        } else {
            Ok(connection)
        }
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

    /// Asks an HTTP proxy for a tunnel (RFC 9110 section 9.3.6).
    async fn tunnel(&mut self, authority: &str, loader: &Loader) -> Result<(), Fault> {
        let fields: String = loader
            .headers
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        let request = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n{fields}\r\n");
        self.send(request.as_bytes()).await?;
        loop {
            if let Some((response, used)) =
                parse_response(&self.input, &Method::Connect, &Limits::default())?
            {
                self.input.advance(used);
                match response.head.status {
                    100..=199 => continue,
                    200..=299 => return Ok(()),
                    status => return Err(Fault::Tunnel { status }),
                }
            }
            if self.receive().await? == 0 {
                return Err(Fault::Closed);
            }
        }
    }

    async fn encrypt(
        self,
        tls: &TlsConnector,
        host: &str,
        protocol: Protocol,
    ) -> Result<Self, Fault> {
        let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned())
            .map_err(|_| Fault::Name)?;
        let began = Instant::now();
        let Stream::Plain(stream) = self.stream else {
            return Ok(self);
        };
        let stream = tls.connect(name, stream).await.map_err(Fault::Tls)?;
        let chosen = stream.get_ref().1.alpn_protocol();
        // A server without ALPN speaks HTTP/1.1.
        if chosen.unwrap_or(Protocol::Http1.alpn()) != protocol.alpn() {
            return Err(Fault::Protocol);
        }
        Ok(Self {
            stream: Stream::Tls(Box::new(stream)),
            tls: Some(began.elapsed()),
            ..self
        })
    }

    /// Gives bytes to the kernel, SOCKS's before them in the same write.
    pub(super) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut all = std::mem::take(&mut self.flight);
        let bytes = if all.is_empty() {
            bytes
        } else {
            all.extend_from_slice(bytes);
            &all
        };
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }

    /// Reads into `input`, which never holds bytes of SOCKS afterwards; gives the bytes read, 0 at
    /// the end.
    pub(super) async fn receive(&mut self) -> Result<usize, Fault> {
        if self.input.capacity() - self.input.len() < READ / 4 {
            self.input.reserve(READ);
        }
        let read = self.stream.read_buf(&mut self.input).await?;
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
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

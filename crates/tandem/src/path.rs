//! A connected way to the other end: one stream of bytes, whatever carries it. Transports make
//! them, sessions run on them.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::net::TcpStream;

use crate::transport::socks::SocksStream;
use crate::transport::tls::records::TlsPath;

/// A stream of bytes to the other end. A closed set: the hot path is a `match`, not a virtual call.
#[derive(Debug)]
pub enum Path {
    /// Plain TCP.
    Tcp(TcpStream),
    /// TCP through a SOCKS5 proxy, whose handshake may still be under way.
    Socks(Box<SocksStream>),
    /// TLS over any of them.
    Tls(Box<TlsPath>),
    /// Within the process, for tests and the demo.
    Duplex(DuplexStream),
}

impl Path {
    /// Address of the other end of the TCP connection.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.tcp()?.peer_addr().ok()
    }

    /// The TCP connection below.
    pub fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Self::Tcp(stream) => Some(stream),
            Self::Socks(stream) => Some(stream.tcp()),
            Self::Tls(stream) => stream.get_ref().get_ref().0.tcp(),
            Self::Duplex(_) => None,
        }
    }

    /// Whether the TCP connection below has BBR for its congestion control.
    pub fn is_over_bbr(&self) -> bool {
        self.tcp().is_some_and(|stream| {
            socket2::SockRef::from(stream)
                .tcp_congestion()
                .is_ok_and(|name| name.starts_with(b"bbr"))
        })
    }

    /// Has the connection end with a reset when it is dropped, so that what broke off does not look
    /// whole.
    pub fn reset_on_close(&self) {
        if let Self::Tcp(stream) = self {
            // Where the option is refused, the kernel has closed the connection already.
            let _ = socket2::SockRef::from(stream).set_linger(Some(std::time::Duration::ZERO));
        }
    }

    /// The protocol agreed on in TLS (RFC 7301).
    pub fn alpn(&self) -> Option<&[u8]> {
        match self {
            Self::Tls(stream) => stream.get_ref().get_ref().1.alpn_protocol(),
            _ => None,
        }
    }

    /// Whether the other end proved itself by a certificate that was asked for.
    pub fn has_peer_certificate(&self) -> bool {
        match self {
            Self::Tls(stream) => stream
                .get_ref()
                .get_ref()
                .1
                .peer_certificates()
                .is_some_and(|chain| !chain.is_empty()),
            _ => false,
        }
    }
}

macro_rules! each {
    ($self:ident, $stream:ident => $call:expr) => {
        match $self.get_mut() {
            Self::Tcp($stream) => $call,
            Self::Socks($stream) => $call,
            Self::Tls($stream) => $call,
            Self::Duplex($stream) => $call,
        }
    };
}

impl AsyncRead for Path {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_read(cx, buf))
    }
}

impl AsyncWrite for Path {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        each!(self, stream => Pin::new(stream).poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(self, stream => Pin::new(stream).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        !matches!(self, Self::Duplex(_))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, stream => Pin::new(stream).poll_shutdown(cx))
    }
}

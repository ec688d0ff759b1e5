//! The byte stream of a session: plain TCP, or TLS.
//!
//! A transport owns no socket: each call passes the one of its session, which never blocks. No
//! write raises SIGPIPE.

#[cfg(feature = "openssl-npn")]
mod npn;
#[cfg(not(feature = "openssl-npn"))]
mod tls;

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;

use bytes::Buf as _;
use socket2::Socket;
use tandem_http::SendBuf;
use tandem_spdy::Version;

#[cfg(feature = "openssl-npn")]
use npn as tls;
use tls::TlsStream;
pub(crate) use tls::{TlsAcceptor, TlsError};

#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
const SEND_FLAGS: std::ffi::c_int = libc::MSG_NOSIGNAL;
/// `Transport::prepare` sets SO_NOSIGPIPE instead.
#[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
const SEND_FLAGS: std::ffi::c_int = 0;

/// Pieces of one write.
const MAX_SLICES: usize = 32;

/// The outcome of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// This many bytes of the buffer are filled.
    Bytes(usize),
    /// No bytes have come.
    Nothing,
    /// The peer sends no more.
    Closed,
}

/// The byte stream of a session.
#[derive(Debug)]
pub(crate) enum Transport {
    Raw,
    Tls(Box<TlsStream>),
}

impl Transport {
    /// Reads the received bytes.
    pub(crate) fn receive(&mut self, socket: &Socket, buffer: &mut [u8]) -> io::Result<Received> {
        match self {
            Self::Raw => receive(socket, buffer),
            Self::Tls(stream) => stream.receive(socket, buffer),
        }
    }

    /// Writes from `out` as much as the socket takes, and returns how many bytes left `out`.
    pub(crate) fn send(&mut self, socket: &Socket, out: &mut SendBuf) -> io::Result<usize> {
        match self {
            Self::Raw => send(socket, out),
            Self::Tls(stream) => stream.send(socket, out),
        }
    }

    /// Returns true if the session may begin: TLS has ended its handshake.
    pub(crate) fn is_ready(&self) -> bool {
        match self {
            Self::Raw => true,
            Self::Tls(stream) => stream.is_ready(),
        }
    }

    /// Returns true if a read may leave bytes in memory, where no readiness of the socket tells of
    /// them.
    pub(crate) const fn holds_input(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// Returns true if bytes that left the session's queue wait for the socket.
    pub(crate) fn wants_write(&self) -> bool {
        match self {
            Self::Raw => false,
            Self::Tls(stream) => stream.wants_write(),
        }
    }

    /// The version that the handshake chose, if any.
    pub(crate) fn version(&self) -> Option<Version> {
        match self {
            Self::Raw => None,
            Self::Tls(stream) => stream.version(),
        }
    }

    /// Announces the end of our side, where the transport has a way to do so.
    pub(crate) fn close(&mut self) {
        if let Self::Tls(stream) = self {
            stream.close();
        }
    }
}

/// Reads from a socket.
fn receive(socket: &Socket, buffer: &mut [u8]) -> io::Result<Received> {
    loop {
        match io::Read::read(&mut &*socket, buffer) {
            Ok(0) => return Ok(Received::Closed),
            Ok(count) => return Ok(Received::Bytes(count)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Ok(Received::Nothing);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Writes until the socket takes no more.
fn send(socket: &Socket, out: &mut SendBuf) -> io::Result<usize> {
    let mut sent = 0;
    while !out.is_empty() {
        let mut slices = [IoSlice::new(&[]); MAX_SLICES];
        let filled = out.chunks_vectored(&mut slices);
        match socket.send_vectored_with_flags(&slices[..filled], SEND_FLAGS) {
            Ok(count) => {
                out.advance(count);
                sent += count;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(sent)
}

/// Drops received bytes, up to 256 KiB; returns false once the peer has closed its side. Without
/// the limit, a peer that sends as fast as this end reads would keep the program here.
pub(crate) fn drain(socket: &Socket) -> bool {
    let mut buffer = [MaybeUninit::<u8>::uninit(); 16 << 10];
    for _ in 0..16 {
        match socket.recv(&mut buffer) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
        }
    }
    true
}

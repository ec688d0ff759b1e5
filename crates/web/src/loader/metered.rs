//! A socket that counts its bytes and notes the times of the first byte sent and the last byte
//! received.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Bytes at the socket, and when the first left and the last came.
#[derive(Clone, Copy, Debug, Default)]
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
            last_received: self
                .last_received
                .into_iter()
                .chain(other.last_received)
                .max(),
        }
    }
}

/// The counters of a socket, which others may read.
#[derive(Clone, Debug, Default)]
pub(super) struct Meter(Arc<Mutex<Traffic>>);

impl Meter {
    /// Returns the traffic since the last call.
    pub(super) fn take(&self) -> Traffic {
        self.with(std::mem::take)
    }

    fn with<R>(&self, work: impl FnOnce(&mut Traffic) -> R) -> R {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A socket with counters.
#[derive(Debug)]
pub(super) struct Metered {
    stream: TcpStream,
    meter: Meter,
}

impl Metered {
    pub(super) const fn new(stream: TcpStream, meter: Meter) -> Self {
        Self { stream, meter }
    }

    fn wrote(&self, result: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(count @ 1..)) = result {
            self.meter.with(|traffic| {
                traffic.up += *count as u64;
                traffic.first_sent.get_or_insert_with(Instant::now);
            });
        }
    }
}

impl AsyncRead for Metered {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        let count = buf.filled().len() - before;
        if count > 0 {
            self.meter.with(|traffic| {
                traffic.down += count as u64;
                traffic.last_received = Some(Instant::now());
            });
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Metered {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.wrote(&result);
        result
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.wrote(&result);
        result
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

//! A path over TLS, and the sizes of its records.
//!
//! A receiver can use a record only when all of it has arrived (RFC 8446 section 5.2). 16 kB take
//! 0.13 s at 1 Mbit/s; within that time the other end could have read a document and requested its
//! resources. Small records cost bytes and processor time instead. The first records after silence
//! therefore fit into single packets, and later ones last about ten milliseconds.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsStream;

use crate::path::Path;

/// The bytes that fill a packet on any path, with the headers of TCP and of one or two tunnels.
const PACKET: usize = 1400;

/// The bytes sent in single-packet records: the initial congestion window.
const EARLY: usize = 14 << 10;

/// The silence after which records start small again.
const SILENCE: Duration = Duration::from_secs(1);

/// The time over which the rate is measured.
const SPAN: Duration = Duration::from_millis(100);

/// The fraction (1/96) of a second that a record lasts.
const SHARE: u64 = 96;

/// The smallest limit of later records, in bytes. A smaller one would add over 0.25 % of overhead.
const LEAST: usize = 8 << 10;

/// The size of the largest TLS record (RFC 8446 section 5.1).
const MOST: usize = 16 << 10;

/// TLS over another path.
#[derive(Debug)]
pub struct TlsPath {
    stream: TlsStream<Path>,
    sizes: Sizes,
}

impl TlsPath {
    /// Creates the path after the handshake.
    pub(super) fn new(stream: TlsStream<Path>) -> Self {
        Self {
            stream,
            sizes: Sizes::default(),
        }
    }

    /// Waits until the socket has accepted all earlier records. Urgent data cannot overtake a
    /// record.
    fn poll_taken(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.stream.get_ref().1.wants_write() {
            Pin::new(&mut self.stream).poll_flush(cx)
        } else {
            Poll::Ready(Ok(()))
        }
    }
}

impl AsyncRead for TlsPath {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for TlsPath {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_taken(cx))?;
        let now = Instant::now();
        let stream = Pin::new(&mut this.stream);
        let written = match this.sizes.limit(now) {
            None => ready!(stream.poll_write_vectored(cx, bufs))?,
            Some(limit) => {
                let mut record = [IoSlice::new(&[]); 16];
                let count = first_bytes(bufs, limit, &mut record);
                ready!(stream.poll_write_vectored(cx, &record[..count]))?
            }
        };
        this.sizes.wrote(written, now);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

/// Fills `into` with slices of the first `limit` bytes of `bufs`, as far as there is room. Returns
/// the number of slices.
fn first_bytes<'a>(bufs: &'a [IoSlice<'_>], mut limit: usize, into: &mut [IoSlice<'a>]) -> usize {
    let mut count = 0;
    for (place, buf) in into
        .iter_mut()
        .zip(bufs.iter().filter(|buf| !buf.is_empty()))
    {
        let part = &buf[..buf.len().min(limit)];
        *place = IoSlice::new(part);
        limit -= part.len();
        count += 1;
        if limit == 0 {
            break;
        }
    }
    count
}

/// The limits on the sizes of records.
#[derive(Debug)]
struct Sizes {
    /// The time of the last write.
    last: Option<Instant>,
    /// The bytes since the last silence.
    early: usize,
    /// The bytes of the current span, and its beginning.
    written: u64,
    since: Option<Instant>,
    /// The limit from the rate of the previous span.
    steady: usize,
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            last: None,
            early: 0,
            written: 0,
            since: None,
            steady: LEAST,
        }
    }
}

impl Sizes {
    /// Returns the most bytes of the next record, or `None` if the write need not be cut.
    fn limit(&mut self, now: Instant) -> Option<usize> {
        if self
            .last
            .is_some_and(|last| now.saturating_duration_since(last) >= SILENCE)
        {
            *self = Self::default();
        }
        let limit = if self.early < EARLY {
            PACKET
        } else {
            self.steady
        };
        (limit < MOST).then_some(limit)
    }

    fn wrote(&mut self, count: usize, now: Instant) {
        self.last = Some(now);
        self.early = self.early.saturating_add(count);
        self.written += count as u64;
        let since = *self.since.get_or_insert(now);
        let elapsed = now.saturating_duration_since(since);
        if elapsed >= SPAN {
            let rate = self.written.saturating_mul(1000) / (elapsed.as_millis() as u64).max(1);
            self.steady = (rate / SHARE).clamp(LEAST as u64, MOST as u64) as usize;
            (self.since, self.written) = (Some(now), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes for a second at `rate` bytes per second, and returns the last limit.
    fn second_at(sizes: &mut Sizes, clock: &mut Instant, rate: usize) -> Option<usize> {
        for _ in 0..100 {
            *clock += Duration::from_millis(10);
            sizes.limit(*clock);
            sizes.wrote(rate / 100, *clock);
        }
        sizes.limit(*clock)
    }

    #[test]
    fn records_begin_small_and_follow_the_rate() {
        let (mut sizes, mut clock) = (Sizes::default(), Instant::now());
        let mut early = 0;
        while sizes.limit(clock) == Some(PACKET) {
            sizes.wrote(PACKET, clock);
            early += PACKET;
        }
        assert!((EARLY..EARLY + PACKET).contains(&early), "{early}");
        assert_eq!(sizes.limit(clock), Some(LEAST), "before a rate is known");
        assert_eq!(
            second_at(&mut sizes, &mut clock, 125_000),
            Some(LEAST),
            "1 Mbit/s"
        );
        let eight = second_at(&mut sizes, &mut clock, 1_000_000).expect("cut");
        assert!((9_000..12_000).contains(&eight), "{eight}");
        assert_eq!(
            second_at(&mut sizes, &mut clock, 12_500_000),
            None,
            "100 Mbit/s"
        );
        clock += SILENCE;
        assert_eq!(sizes.limit(clock), Some(PACKET));
    }

    #[test]
    fn records_are_cut_across_parts() {
        let parts = [&b"ab"[..], b"", b"cdef", b"g"].map(IoSlice::new);
        let taken = |limit: usize, room: usize| {
            let mut into = [IoSlice::new(&[]); 4];
            let count = first_bytes(&parts, limit, &mut into[..room]);
            into[..count]
                .iter()
                .map(|part| String::from_utf8_lossy(part).into_owned())
                .collect::<Vec<_>>()
                .join("|")
        };
        assert_eq!(taken(4, 4), "ab|cd");
        assert_eq!(taken(2, 4), "ab");
        assert_eq!(taken(100, 4), "ab|cdef|g");
        assert_eq!(taken(100, 1), "ab");
    }
}

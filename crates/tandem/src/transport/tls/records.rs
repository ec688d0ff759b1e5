//! A path over TLS, and how large its records are.
//!
//! Nothing of a record can be read before all of it has come (RFC 8446 section 5.2): 16 kB are 0.13
//! s at 1 Mbit/s, for which the other end could already have read a document and asked for what it
//! names. Small records cost bytes and processor time instead. So the first of them after silence
//! fit into packets of their own, later ones last about ten milliseconds.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsStream;

use crate::path::Path;

/// Fills a packet on any path with a header of its own and of a tunnel or two.
const PACKET: usize = 1400;

/// So many bytes go in records of one packet: what a connection may send before anybody has
/// answered.
const EARLY: usize = 14 << 10;

/// After so much silence it is as in the beginning.
const SILENCE: Duration = Duration::from_secs(1);

/// Time over which the rate is measured.
const SPAN: Duration = Duration::from_millis(100);

/// Parts of a second that a record lasts.
const SHARE: u64 = 96;

/// Less would cost more than a quarter of a percent of all bytes.
const LEAST: usize = 8 << 10;

/// The largest there is (RFC 8446 section 5.1).
const MOST: usize = 16 << 10;

/// TLS over another path.
#[derive(Debug)]
pub struct TlsPath {
    stream: TlsStream<Path>,
    sizes: Sizes,
}

impl TlsPath {
    /// After the handshake.
    pub(super) fn new(stream: TlsStream<Path>) -> Self {
        Self {
            stream,
            sizes: Sizes::default(),
        }
    }

    /// Waits until the socket has taken all earlier records: what waits in here can no longer be
    /// overtaken.
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

/// At most `limit` bytes from the beginning of `bufs`, as far as `into` has room; says how many
/// parts that makes.
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

/// Decides how large a record may be.
#[derive(Debug)]
struct Sizes {
    /// Last write.
    last: Option<Instant>,
    /// Bytes since the last silence.
    early: usize,
    /// Bytes of the current span, and its beginning.
    written: u64,
    since: Option<Instant>,
    /// By the rate of the span before.
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
    /// Most bytes of the next record; `None` where it need not be cut.
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

    /// Writes for a second at a rate in bytes per second; the last limit.
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

//! The receiving half of a stream: reassembly, acknowledgements and the window.
//!
//! The window follows the reader: it doubles while the reader takes half of it within two round
//! trips, as the auto-tuning of Linux does. Each byte of the window is reserved from the tunnel's
//! [`Pool`] before it is offered.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;

use crate::pool::Pool;
use crate::ranges::RangeSet;
use crate::wire::{Ack, MAX_BLOCKS};

/// The longest delay of an acknowledgement, during which others may join its datagram.
pub(crate) const ACK_DELAY: Duration = Duration::from_millis(25);
/// The number of segments after which an acknowledgement is not delayed (RFC 9293, section
/// 3.8.6.3).
const ACK_SEGMENTS: u8 = 2;
/// The separate pieces that may wait for the ones before them, whatever their size. The window
/// permits more: one for each [`PIECE`] bytes. Further ones are dropped, as if lost.
const LEAST_PIECES: u64 = 64;
/// The bytes below which a piece grows by the data behind it. A piece costs about 110 bytes beside
/// its own, which the pool does not count.
const PIECE: u64 = 512;
/// The units of the window on the wire.
pub(crate) const WINDOW_UNIT: u64 = 1024;

/// A violation of the protocol by the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    /// Data beyond the window.
    Window,
    /// Data beyond the end of the stream, or a second end.
    End,
}

/// The effect of a data segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Received {
    /// Indicates whether there is more to read than before.
    pub(crate) is_readable: bool,
}

/// Indicates whether an acknowledgement is due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AckState {
    #[default]
    None,
    /// It may wait until then.
    Delayed(Duration),
    Now,
}

/// Data from the peer.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecvHalf {
    /// Data that was not read, by offset; the pieces do not overlap.
    pieces: BTreeMap<u64, Bytes>,
    /// The ranges beyond `next` that arrived.
    beyond: RangeSet,
    /// Everything before it has arrived; the end counts as one byte.
    next: u64,
    read: u64,
    /// The end of the window that was offered.
    limit: u64,
    /// The window that the stream has in any case.
    credit: u64,
    /// The size that the window should have.
    window: u64,
    max_window: u64,
    end: Option<u64>,
    duplicates: u16,
    /// The block that arrived last: the first one of an acknowledgement (RFC 2018, section 4).
    last: Option<u64>,
    ack: AckState,
    unacknowledged: u8,
    /// The limit that the peer knows of.
    offered: u64,
    tuned: Option<(Duration, u64)>,
}

impl RecvHalf {
    /// Creates the half with the first credit, which both ends know; takes it from the pool.
    pub(crate) fn new(credit: u64, max_window: u64, pool: &mut Pool) -> Self {
        pool.reserve(credit, credit);
        Self {
            credit,
            limit: credit,
            offered: credit,
            window: credit,
            max_window,
            ..Self::default()
        }
    }

    /// Opens the window to `window` bytes before anything has arrived, as far as the pool has them.
    /// The next segment of the stream tells the peer.
    pub(crate) fn widen(&mut self, window: u64, pool: &mut Pool) {
        let wanted = window.min(self.max_window).saturating_sub(self.limit);
        let granted = pool.reserve_share(wanted);
        self.open_to(self.limit + granted);
    }

    /// Opens the window up to `limit`. Returns false, and takes nothing, if the pool has too few
    /// bytes for that.
    pub(crate) fn open_whole(&mut self, limit: u64, pool: &mut Pool) -> bool {
        // A peer that has told the end has no use for more.
        if self.end.is_some() || limit <= self.limit {
            return true;
        }
        let reserved = pool.reserve_whole(limit - self.limit);
        if reserved {
            self.open_to(limit);
        }
        reserved
    }

    /// Opens the window up to `limit`. The pool has given the bytes. The next segment of the stream
    /// tells the peer.
    pub(crate) fn open_to(&mut self, limit: u64) {
        if limit >= self.limit + WINDOW_UNIT {
            self.ack = AckState::Now;
        }
        self.limit = self.limit.max(limit);
        self.window = self.window.max(self.limit - self.read);
    }

    /// Gives all memory back; the half is of no use afterwards.
    pub(crate) fn close(&mut self, pool: &mut Pool) {
        pool.release(self.held());
        self.limit = self.read;
        self.pieces.clear();
    }

    /// Returns whether data or the end can be read.
    pub(crate) fn has_news(&self) -> bool {
        self.pieces.contains_key(&self.read) || self.is_complete()
    }

    /// Returns the memory that the half has taken from the pool.
    pub(crate) const fn held(&self) -> u64 {
        self.limit - self.read
    }

    /// Returns whether everything arrived, up to the end of the stream.
    pub(crate) fn has_all(&self) -> bool {
        self.end.is_some_and(|end| self.next > end)
    }

    /// Returns whether everything was read.
    pub(crate) fn is_complete(&self) -> bool {
        self.end == Some(self.read) && self.has_all()
    }

    pub(crate) const fn next_offset(&self) -> u64 {
        self.next
    }

    pub(crate) const fn ack_state(&self) -> AckState {
        self.ack
    }

    /// Takes a data segment.
    pub(crate) fn on_data(
        &mut self,
        now: Duration,
        offset: u64,
        data: &[u8],
        fin: bool,
    ) -> Result<Received, Violation> {
        let end = offset + data.len() as u64;
        if end > self.limit {
            return Err(Violation::Window);
        }
        self.check_end(end, fin)?;
        let span = offset..end + u64::from(fin);
        // A window probe, or something that arrived before.
        let old = span.end <= self.next
            || self
                .beyond
                .containing(span.start)
                .is_some_and(|range| range.end >= span.end);
        if span.is_empty() || old {
            self.duplicates = self.duplicates.wrapping_add(u16::from(!span.is_empty()));
            self.ack = AckState::Now;
            return Ok(Received::default());
        }
        if span.start > self.next && self.pieces.len() as u64 >= self.max_pieces() {
            return Ok(Received::default());
        }
        let before = self.next;
        let in_order = span.start <= self.next && self.beyond.is_empty();
        self.store(offset, data);
        self.mark(span);
        self.schedule_ack(now, in_order && !fin);
        Ok(Received {
            is_readable: self.next > before,
        })
    }

    /// Returns the number of pieces that may be stored before one beyond a gap is dropped.
    const fn max_pieces(&self) -> u64 {
        LEAST_PIECES + (self.limit - self.read) / PIECE
    }

    fn check_end(&mut self, end: u64, fin: bool) -> Result<(), Violation> {
        let highest = self.beyond.descending().next().map_or(self.next, |r| r.end);
        match self.end {
            Some(known) if end > known || (fin && end != known) => Err(Violation::End),
            None if fin && highest > end => Err(Violation::End),
            _ => {
                if fin {
                    self.end = Some(end);
                }
                Ok(())
            }
        }
    }

    /// Stores the parts of a segment that are new.
    fn store(&mut self, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        let mut at = offset.max(self.next);
        while at < end {
            if let Some(range) = self.beyond.containing(at) {
                at = range.end;
                continue;
            }
            let until = self
                .pieces
                .range(at..end)
                .next()
                .map_or(end, |(&start, _)| start);
            let part = &data[(at - offset) as usize..(until - offset) as usize];
            self.store_piece(at, part);
            at = until;
        }
    }

    /// Stores a piece, at the end of the one before it if that is small.
    fn store_piece(&mut self, at: u64, part: &[u8]) {
        let before = self.pieces.range_mut(..at).next_back();
        match before {
            Some((&start, piece))
                if start + piece.len() as u64 == at && (piece.len() as u64) < PIECE =>
            {
                *piece = [&piece[..], part].concat().into();
            }
            _ => drop(self.pieces.insert(at, Bytes::copy_from_slice(part))),
        }
    }

    fn mark(&mut self, span: Range<u64>) {
        self.last = Some(span.start);
        self.beyond.insert(span.start.max(self.next)..span.end);
        if let Some(range) = self.beyond.containing(self.next) {
            self.next = range.end;
            self.beyond.remove_before(self.next);
        }
    }

    fn schedule_ack(&mut self, now: Duration, may_wait: bool) {
        self.unacknowledged = self.unacknowledged.saturating_add(1);
        let wait = may_wait && self.unacknowledged < ACK_SEGMENTS;
        self.ack = match self.ack {
            AckState::Now => AckState::Now,
            _ if !wait => AckState::Now,
            AckState::Delayed(until) => AckState::Delayed(until),
            AckState::None => AckState::Delayed(now + ACK_DELAY),
        };
    }

    /// Requires an acknowledgement at once, for example because the delay of one has ended.
    pub(crate) fn require_ack(&mut self) {
        self.ack = AckState::Now;
    }

    /// Takes up to `most` bytes that arrived in order.
    pub(crate) fn read(&mut self, most: usize, pool: &mut Pool) -> Option<Bytes> {
        let mut entry = self.pieces.first_entry()?;
        if *entry.key() != self.read || most == 0 {
            return None;
        }
        let data = if entry.get().len() <= most {
            entry.remove()
        } else {
            let data = entry.get_mut().split_to(most);
            let rest = entry.remove();
            self.pieces.insert(self.read + most as u64, rest);
            data
        };
        self.read += data.len() as u64;
        pool.release(data.len() as u64);
        Some(data)
    }

    /// Opens the window by the bytes that were read.
    pub(crate) fn on_read(&mut self, now: Duration, rtt: Option<Duration>, pool: &mut Pool) {
        if self.end.is_some() {
            return;
        }
        self.tune(now, rtt);
        let wanted = (self.read + self.window).saturating_sub(self.limit);
        // Otherwise the pool would be asked for each byte.
        if wanted >= WINDOW_UNIT {
            let guaranteed = (self.read + self.credit).saturating_sub(self.limit);
            self.limit += pool.reserve(wanted, guaranteed);
        }
        // The peer is told of a window that has grown by half, and of one that was shut.
        let shut = self.offered < self.next + WINDOW_UNIT;
        if self.limit >= self.offered + self.window / 2
            || (shut && self.limit >= self.next + WINDOW_UNIT && self.limit > self.offered)
        {
            self.ack = AckState::Now;
        }
    }

    fn tune(&mut self, now: Duration, rtt: Option<Duration>) {
        let Some(rtt) = rtt else { return };
        let (since, from) = *self.tuned.get_or_insert((now, self.read));
        if self.read - from >= self.window / 2 {
            if now.saturating_sub(since) <= 2 * rtt {
                self.window = (self.window * 2).min(self.max_window);
            }
            self.tuned = Some((now, self.read));
        } else if now.saturating_sub(since) > 2 * rtt {
            self.tuned = Some((now, self.read));
        }
    }

    /// Returns whether the window that the peer knows is smaller than it could be, for want of
    /// memory.
    pub(crate) fn is_starved(&self) -> bool {
        self.end.is_none() && self.limit < self.read + self.window / 2
    }

    /// Returns the acknowledgement to send, with at most `blocks` blocks, and counts it as sent.
    pub(crate) fn take_ack(&mut self, blocks: usize) -> Ack {
        let mut ack = Ack {
            offset: self.next as u32,
            window: u16::try_from(self.limit.saturating_sub(self.next) / WINDOW_UNIT)
                .unwrap_or(u16::MAX),
            duplicates: self.duplicates,
            blocks: [(0, 0); MAX_BLOCKS],
            block_count: 0,
        };
        let first = self.last.and_then(|last| self.beyond.containing(last));
        let others = self
            .beyond
            .descending()
            .filter(|range| Some(range) != first.as_ref());
        for range in first
            .iter()
            .cloned()
            .chain(others)
            .take(blocks.min(MAX_BLOCKS))
        {
            ack.blocks[usize::from(ack.block_count)] = (range.start as u32, range.end as u32);
            ack.block_count += 1;
        }
        self.offered = self
            .offered
            .max(self.next + u64::from(ack.window) * WINDOW_UNIT);
        self.ack = AckState::None;
        self.unacknowledged = 0;
        ack
    }

    /// Returns the number of blocks that an acknowledgement would have.
    pub(crate) fn blocks(&self) -> usize {
        self.beyond.len().min(MAX_BLOCKS)
    }
}

/// Returns the offset up to which an acknowledgement opens the window.
pub(crate) const fn window_end(acked: u64, window: u16) -> u64 {
    acked.saturating_add(window as u64 * WINDOW_UNIT)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn half(credit: u64) -> (RecvHalf, Pool) {
        let mut pool = Pool::new(1 << 20);
        (RecvHalf::new(credit, 1 << 18, &mut pool), pool)
    }

    #[test]
    fn recv_half_delays_acks_of_ordered_data_only() {
        let (mut half, _) = half(1 << 16);
        half.on_data(MS, 0, b"ab", false).expect("in the window");
        assert_eq!(half.ack_state(), AckState::Delayed(26 * MS));
        half.on_data(2 * MS, 2, b"cd", false)
            .expect("in the window");
        assert_eq!(half.ack_state(), AckState::Now);
        half.take_ack(8);
        half.on_data(3 * MS, 6, b"gh", false)
            .expect("in the window");
        assert_eq!(half.ack_state(), AckState::Now, "a gap");
        let ack = half.take_ack(8);
        assert_eq!((ack.offset, ack.blocks()), (4, &[(6, 8)][..]));
    }

    #[test]
    fn recv_half_puts_the_newest_block_first() {
        let (mut half, _) = half(1 << 16);
        for offset in [10u64, 30, 20] {
            half.on_data(MS, offset, b"x", false)
                .expect("in the window");
        }
        assert_eq!(half.take_ack(2).blocks(), [(20, 21), (30, 31)]);
    }

    #[test]
    fn recv_half_refuses_data_beyond_window_and_end() {
        let (mut half, _) = half(10);
        assert_eq!(half.on_data(MS, 9, b"ab", false), Err(Violation::Window));
        half.on_data(MS, 4, b"ab", true).expect("an end");
        assert_eq!(half.on_data(MS, 6, b"c", false), Err(Violation::End));
        assert_eq!(half.on_data(MS, 4, b"a", true), Err(Violation::End));
        let (mut half, _) = self::half(10);
        half.on_data(MS, 4, b"ab", false).expect("in the window");
        assert_eq!(half.on_data(MS, 2, b"a", true), Err(Violation::End));
    }

    #[test]
    fn recv_half_reserves_its_window_from_the_pool() {
        let mut pool = Pool::new(5000);
        let mut half = RecvHalf::new(4000, 1 << 16, &mut pool);
        assert_eq!(pool.used(), 4000);
        half.on_data(MS, 0, &[7; 4000], false)
            .expect("in the window");
        while half.read(900, &mut pool).is_some() {
            half.on_read(2 * MS, Some(100 * MS), &mut pool);
        }
        assert_eq!(
            half.window, 8000,
            "the reader takes half a window within a round trip"
        );
        assert!(
            (4000..=5000).contains(&pool.used()),
            "{}: the pool bounds it",
            pool.used()
        );
        half.close(&mut pool);
        assert_eq!(pool.used(), 0);
    }

    #[test]
    fn recv_half_offers_a_wider_window_first() {
        let mut pool = Pool::new(1 << 20);
        let mut half = RecvHalf::new(16 << 10, 1 << 20, &mut pool);
        half.widen(48 << 10, &mut pool);
        assert_eq!(pool.used(), 48 << 10);
        assert_eq!(half.ack_state(), AckState::Now, "the peer must be told");
        assert_eq!(half.take_ack(0).window, 48);
        half.close(&mut pool);
        assert_eq!(pool.used(), 0);
        let mut half = RecvHalf::new(16 << 10, 32 << 10, &mut pool);
        half.widen(48 << 10, &mut pool);
        assert_eq!(half.take_ack(0).window, 32, "the largest window");
    }

    #[test]
    fn recv_half_opens_a_whole_window_or_nothing() {
        let mut pool = Pool::new(1 << 20);
        let mut half = RecvHalf::new(16 << 10, 1 << 20, &mut pool);
        assert!(!half.open_whole(128 << 10, &mut pool), "more than a share");
        assert_eq!((half.limit, pool.used()), (16 << 10, 16 << 10));
        assert!(half.open_whole(48 << 10, &mut pool));
        assert!(half.open_whole(32 << 10, &mut pool));
        assert_eq!((half.limit, pool.used()), (48 << 10, 48 << 10));
        half.on_data(MS, 0, b"all", true).expect("in the window");
        assert!(half.open_whole(128 << 10, &mut pool), "of no use");
        assert_eq!((half.limit, pool.used()), (48 << 10, 48 << 10));
    }

    #[test]
    fn recv_half_drops_pieces_beyond_its_bound() {
        let (mut half, _) = half(16 << 10);
        for n in 0..8000 {
            half.on_data(MS, 1 + n * 2, b"x", false)
                .expect("in the window");
        }
        assert_eq!((half.pieces.len(), half.beyond.len()), (96, 96));
        half.on_data(MS, 0, b"y", false)
            .expect("the next byte always fits");
        assert_eq!(half.next_offset(), 2);
    }

    #[test]
    fn recv_half_joins_small_pieces() {
        let (mut half, mut pool) = half(16 << 10);
        for n in 0..16 << 10 {
            half.on_data(MS, n, &[n as u8], false)
                .expect("in the window");
        }
        assert_eq!(half.pieces.len(), 32);
        let first = half.read(usize::MAX, &mut pool).expect("data");
        assert_eq!(first.len(), PIECE as usize);
        assert!(
            (0..)
                .zip(&first)
                .all(|(n, byte): (u32, _)| n as u8 == *byte)
        );
    }

    proptest! {
        #[test]
        fn recv_half_delivers_the_stream_in_any_order(
            segments in prop::collection::vec((0u64..300, 1usize..40), 1..80),
        ) {
            let stream: Vec<u8> = (0..340u32).map(|n| (n * 7) as u8).collect();
            let (mut half, mut pool) = half(1 << 12);
            let mut read = Vec::new();
            let whole = (0..34u64).map(|n| (n * 10, 10));
            for (offset, len) in segments.into_iter().chain(whole) {
                let data = &stream[offset as usize..offset as usize + len];
                let fin = offset as usize + len == stream.len();
                half.on_data(MS, offset, data, fin).expect("one stream");
                while let Some(data) = half.read(17, &mut pool) {
                    read.extend_from_slice(&data);
                }
            }
            prop_assert!(half.is_complete());
            prop_assert_eq!(read, stream);
            prop_assert_eq!(pool.used(), (1 << 12) - 340);
        }
    }
}

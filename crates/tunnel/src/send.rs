//! The sending half of a stream: buffered data, and a scoreboard of the segments on their way
//! (RFC 6675, with the loss detection of [`crate::recovery`]).
//!
//! The end of the stream counts as one byte after the last, as in TCP.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use bytes::Bytes;

/// The bytes of a stream that were never sent, at most. They may wait for a peer that does not
/// read, so they are fewer than those under way.
pub(crate) const MOST_WAITING: u64 = 4 << 20;

/// A part of the stream that one segment carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) offset: u64,
    /// The bytes of data.
    pub(crate) len: u32,
    pub(crate) fin: bool,
}

impl Piece {
    /// Returns the length with the end of the stream as one byte.
    const fn span(self) -> u64 {
        self.len as u64 + self.fin as u64
    }
}

/// A segment that has not arrived, as far as is known.
#[derive(Clone, Copy, Debug)]
struct Flying {
    piece: Piece,
    /// The last transmission.
    number: u64,
    transmissions: u32,
    is_lost: bool,
}

/// A segment that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrived {
    /// The last transmission.
    pub(crate) number: u64,
    /// The bytes of data.
    pub(crate) len: u32,
    /// Indicates whether that transmission had been declared lost.
    pub(crate) was_lost: bool,
}

/// An acknowledgement of offsets that were never sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AckOfUnsent;

/// Data on its way to the peer.
#[derive(Clone, Debug, Default)]
pub(crate) struct SendHalf {
    /// Data that is not acknowledged, by offset.
    buffer: BTreeMap<u64, Bytes>,
    written: u64,
    fin: bool,
    /// Everything before it has arrived.
    acked: u64,
    /// The first offset that was never sent.
    next: u64,
    /// The end of the window that the peer offers.
    limit: u64,
    flying: BTreeMap<u64, Flying>,
    lost: BTreeSet<u64>,
    retransmissions: u32,
    duplicates: u16,
}

impl SendHalf {
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            limit,
            ..Self::default()
        }
    }

    /// Appends data.
    pub(crate) fn write(&mut self, data: Bytes) {
        if !data.is_empty() {
            let len = data.len() as u64;
            self.buffer.insert(self.written, data);
            self.written += len;
        }
    }

    /// Ends the stream after the written data.
    pub(crate) fn finish(&mut self) {
        self.fin = true;
    }

    pub(crate) const fn is_finished(&self) -> bool {
        self.fin
    }

    /// Returns the bytes that are buffered: not acknowledged yet.
    pub(crate) const fn buffered(&self) -> u64 {
        self.written.saturating_sub(self.acked)
    }

    /// Returns the first offset that was never sent.
    pub(crate) const fn next_offset(&self) -> u64 {
        self.next
    }

    /// Treats all data as acknowledged.
    pub(crate) fn complete(&mut self) {
        self.buffer.clear();
        self.flying.clear();
        self.lost.clear();
        self.fin = true;
        self.next = self.written + 1;
        self.acked = self.next;
    }

    /// Returns whether all data and the end have arrived.
    pub(crate) const fn is_complete(&self) -> bool {
        self.fin && self.acked > self.written
    }

    /// Returns the bytes that were never sent and may be sent now.
    pub(crate) fn unsent(&self) -> u64 {
        self.written.min(self.limit).saturating_sub(self.next)
    }

    /// Returns the bytes that were never sent, also those beyond the window that the peer offers.
    pub(crate) const fn waiting(&self) -> u64 {
        self.written.saturating_sub(self.next)
    }

    /// Returns whether a segment waits to be retransmitted.
    pub(crate) fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Returns whether the next piece is the first one of the stream, or its retransmission.
    pub(crate) fn begins_next(&self) -> bool {
        self.lost.first().copied().unwrap_or(self.next) == 0
    }

    /// Returns whether something that was never sent may be sent now.
    pub(crate) fn has_new(&self) -> bool {
        self.next < self.written.min(self.limit) || self.may_end()
    }

    fn may_end(&self) -> bool {
        self.fin && self.next == self.written
    }

    /// Returns whether data waits for the peer's window and nothing is in flight that would open
    /// it.
    pub(crate) fn is_blocked(&self) -> bool {
        self.next < self.written && self.next >= self.limit && self.flying.is_empty()
    }

    /// Returns the next piece that was never sent, of at most `most` bytes.
    pub(crate) fn next_piece(&self, most: usize) -> Option<Piece> {
        let room = self.written.min(self.limit).saturating_sub(self.next);
        let len = room.min(most as u64) as u32;
        let fin = self.fin && self.next + u64::from(len) == self.written;
        (len > 0 || (fin && self.may_end())).then_some(Piece {
            offset: self.next,
            len,
            fin,
        })
    }

    /// Returns the first lost piece, cut to at most `most` bytes.
    pub(crate) fn lost_piece(&mut self, most: usize) -> Option<Piece> {
        let offset = *self.lost.first()?;
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        if self.flying.get(&offset)?.piece.len > most {
            self.split(offset, most);
        }
        Some(self.flying.get(&offset)?.piece)
    }

    /// Cuts a lost segment: the path takes smaller datagrams than when it was sent.
    fn split(&mut self, offset: u64, len: u32) {
        let Some(flying) = self.flying.get_mut(&offset) else {
            return;
        };
        let rest = Flying {
            piece: Piece {
                offset: offset + u64::from(len),
                len: flying.piece.len - len,
                fin: flying.piece.fin,
            },
            ..*flying
        };
        flying.piece.len = len;
        flying.piece.fin = false;
        self.lost.insert(rest.piece.offset);
        self.flying.insert(rest.piece.offset, rest);
    }

    /// Returns the data of a piece: copied only where it stands in more than one write.
    pub(crate) fn data(&self, piece: Piece) -> Cow<'_, [u8]> {
        let (mut at, end) = (piece.offset, piece.offset + u64::from(piece.len));
        let mut copied = Vec::new();
        while at < end {
            let Some((&start, chunk)) = self.buffer.range(..=at).next_back() else {
                break;
            };
            let Some(rest) = chunk
                .get((at - start) as usize..)
                .filter(|rest| !rest.is_empty())
            else {
                break;
            };
            let part = &rest[..rest.len().min((end - at) as usize)];
            if part.len() == piece.len as usize {
                return Cow::Borrowed(part);
            }
            copied.extend_from_slice(part);
            at += part.len() as u64;
        }
        Cow::Owned(copied)
    }

    /// Returns the transmissions of all segments that have not arrived.
    pub(crate) fn in_flight(&self) -> impl Iterator<Item = u64> {
        self.flying.values().map(|flying| flying.number)
    }

    /// Notes that a piece left as transmission `number`; returns whether it is a retransmission.
    pub(crate) fn on_sent(&mut self, piece: Piece, number: u64) -> bool {
        self.next = self.next.max(piece.offset + piece.span());
        let flying = self.flying.entry(piece.offset).or_insert(Flying {
            piece,
            number,
            transmissions: 0,
            is_lost: false,
        });
        flying.number = number;
        flying.is_lost = false;
        flying.transmissions += 1;
        let repeated = flying.transmissions > 1;
        self.retransmissions += u32::from(repeated);
        self.lost.remove(&piece.offset);
        repeated
    }

    /// Declares a transmission lost. Returns false if its segment was sent again or has arrived.
    pub(crate) fn on_lost(&mut self, offset: u64, number: u64) -> bool {
        // An acknowledgement of a part has moved the start of the remaining part.
        match self.flying.range_mut(offset..).next() {
            Some((&at, flying)) if flying.number == number => {
                flying.is_lost = true;
                self.lost.insert(at);
                true
            }
            _ => false,
        }
    }

    /// Notes an acknowledgement: all before `offset`, and `blocks` beyond. Segments that arrived
    /// are appended to `arrived`.
    pub(crate) fn on_ack(
        &mut self,
        offset: u64,
        blocks: impl Iterator<Item = Range<u64>>,
        arrived: &mut Vec<Arrived>,
    ) -> Result<(), AckOfUnsent> {
        if offset > self.next {
            return Err(AckOfUnsent);
        }
        for block in blocks {
            if block.end > self.next || block.start >= block.end {
                return Err(AckOfUnsent);
            }
            self.remove_arrived(block, arrived);
        }
        if offset > self.acked {
            self.remove_arrived(self.acked..offset, arrived);
            self.acked = offset;
            self.trim(offset);
        }
        Ok(())
    }

    /// Takes the segments that lie within `range` off the scoreboard.
    fn remove_arrived(&mut self, range: Range<u64>, arrived: &mut Vec<Arrived>) {
        while let Some(flying) = self
            .flying
            .range(range.clone())
            .map(|(_, flying)| *flying)
            .find(|flying| flying.piece.offset + flying.piece.span() <= range.end)
        {
            self.flying.remove(&flying.piece.offset);
            self.lost.remove(&flying.piece.offset);
            arrived.push(Arrived {
                number: flying.number,
                len: flying.piece.len,
                was_lost: flying.is_lost,
            });
        }
    }

    /// Drops data that arrived, and cuts a segment that arrived in part.
    fn trim(&mut self, acked: u64) {
        if let Some((&offset, flying)) = self.flying.range(..acked).next_back() {
            let mut rest = *flying;
            let cut = acked - offset;
            if rest.piece.span() > cut {
                rest.piece.offset = acked;
                rest.piece.len = rest.piece.len.saturating_sub(cut as u32);
                self.flying.insert(acked, rest);
                if self.lost.remove(&offset) {
                    self.lost.insert(acked);
                }
            }
            self.flying.remove(&offset);
        }
        while let Some(entry) = self.buffer.first_entry() {
            let end = entry.key() + entry.get().len() as u64;
            if end > acked {
                break;
            }
            entry.remove();
        }
    }

    /// Notes the window that the peer offers; returns whether it has grown.
    pub(crate) fn on_window(&mut self, limit: u64) -> bool {
        let grown = limit > self.limit;
        self.limit = self.limit.max(limit);
        grown
    }

    /// Notes the peer's count of duplicates; returns the number of our spurious retransmissions.
    pub(crate) fn on_duplicates(&mut self, count: u16) -> u32 {
        let news = count.wrapping_sub(self.duplicates);
        // Acknowledgements may arrive out of order.
        if news == 0 || news > u16::MAX / 2 {
            return 0;
        }
        self.duplicates = count;
        let spurious = u32::from(news).min(self.retransmissions);
        self.retransmissions -= spurious;
        spurious
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn half(data: &'static [u8]) -> SendHalf {
        let mut half = SendHalf::new(1 << 20);
        half.write(Bytes::from_static(data));
        half.finish();
        half
    }

    fn send_all(half: &mut SendHalf, most: usize) -> Vec<Piece> {
        let mut sent = Vec::new();
        while let Some(piece) = half.next_piece(most) {
            half.on_sent(piece, sent.len() as u64);
            sent.push(piece);
        }
        sent
    }

    fn ack(half: &mut SendHalf, offset: u64, block: Option<Range<u64>>) -> Vec<u64> {
        let mut arrived = Vec::new();
        half.on_ack(offset, block.into_iter(), &mut arrived)
            .expect("offsets that were sent");
        let mut numbers: Vec<u64> = arrived.iter().map(|arrived| arrived.number).collect();
        numbers.sort_unstable();
        numbers
    }

    #[test]
    fn send_half_ends_with_its_last_data() {
        let mut half = half(b"0123456789");
        let sent = send_all(&mut half, 4);
        assert_eq!(sent.len(), 3);
        assert_eq!((sent[2].len, sent[2].fin), (2, true));
        assert_eq!(
            ack(&mut half, 10, None),
            [0, 1],
            "the last segment holds the end as well"
        );
        assert!(!half.is_complete());
        assert_eq!(ack(&mut half, 11, None), [2]);
        assert!(half.is_complete() && half.buffered() == 0 && half.buffer.is_empty());
    }

    #[test]
    fn send_half_retransmits_lost_pieces() {
        let mut half = half(b"0123456789");
        send_all(&mut half, 4);
        assert!(half.on_lost(4, 1) && !half.on_lost(4, 0));
        assert_eq!(ack(&mut half, 4, Some(8..11)), [0, 2]);
        let piece = half.lost_piece(3).expect("a lost segment");
        assert_eq!(
            (piece.offset, &half.data(piece)[..]),
            (4, &b"456"[..]),
            "cut to the path's size"
        );
        assert!(half.on_sent(piece, 7));
        assert_eq!(
            half.lost_piece(3).map(|piece| (piece.offset, piece.len)),
            Some((7, 1))
        );
        assert_eq!(ack(&mut half, 11, None), [1, 7]);
    }

    #[test]
    fn send_half_stays_within_the_window() {
        let mut half = SendHalf::new(3);
        half.write(Bytes::from_static(b"01234"));
        assert_eq!(send_all(&mut half, 100).len(), 1);
        assert!(!half.has_new() && !half.is_blocked());
        ack(&mut half, 3, None);
        assert!(half.is_blocked());
        assert!(half.on_window(5) && !half.on_window(4));
        assert_eq!(half.next_piece(100).map(|piece| piece.len), Some(2));
    }

    #[test]
    fn send_half_refuses_acks_of_unsent_data() {
        let mut half = half(b"0123");
        let mut arrived = Vec::new();
        assert_eq!(
            half.on_ack(1, std::iter::empty(), &mut arrived),
            Err(AckOfUnsent)
        );
        send_all(&mut half, 4);
        assert_eq!(
            half.on_ack(0, std::iter::once(2..9), &mut arrived),
            Err(AckOfUnsent)
        );
        assert_eq!(
            half.on_ack(6, std::iter::empty(), &mut arrived),
            Err(AckOfUnsent)
        );
    }

    #[test]
    fn send_half_cuts_a_segment_that_arrived_in_part() {
        let mut half = half(b"0123456789");
        send_all(&mut half, 100);
        assert_eq!(ack(&mut half, 6, None), []);
        assert!(half.on_lost(6, 0));
        let piece = half.lost_piece(100).expect("the rest");
        assert_eq!(&half.data(piece)[..], b"6789");
        assert!(piece.fin);
    }

    #[test]
    fn send_half_bounds_spurious_by_retransmissions() {
        let mut half = half(b"0123456789");
        send_all(&mut half, 5);
        assert_eq!(half.on_duplicates(2), 0, "nothing was repeated");
        assert!(half.on_lost(0, 0));
        let piece = half.lost_piece(9).expect("lost");
        half.on_sent(piece, 5);
        assert_eq!(half.on_duplicates(1), 0, "an older count");
        assert_eq!(half.on_duplicates(4), 1);
    }
}

//! Offers: the windows that an end gives in advance to streams which its peer will open.
//!
//! A stream begins with the credit that both ends know. The end that opens it tells its window in
//! the first segment, and the other end answers a round trip later. An offer lets the opener send a
//! whole window before that. It names a window, the same for all offers of an end, and the index
//! below which the peer's streams have it. That index never falls.
//!
//! The end that offers reserves the window of each stream first, so the bound of the
//! [`Pool`](crate::pool::Pool) holds whatever the peer sends. A stream that opens takes its
//! reservation over. The offer holds from its reservation on, whether it reaches the peer or not.
//!
//! Offers ride along with other segments, so they cost no datagram and need no timer. Nothing
//! acknowledges them. A few copies leave, and the next offer contains all of the lost ones.
//! Until then, streams begin with their credit.

use std::ops::Range;
use std::time::Duration;

use crate::recv::{WINDOW_UNIT, window_end};
use crate::rtt::Rtt;
use crate::tunnel::Config;
use crate::wire::Segment;

/// The number of indices of an end's streams.
const INDICES: u32 = 1 << 31;
/// The times that an offer leaves.
const COPIES: u8 = 4;
/// The last copies, each of which waits for a round trip. The other ones leave with the next
/// datagrams.
const LATER: u8 = 2;

/// The offers of this end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Offers {
    /// The window of an offered stream, in bytes.
    window: u64,
    /// The part of it that the pool has to give.
    reserve: u64,
    /// The streams that may be offered and not open.
    most: u32,
    /// The streams that are offered and not open.
    waiting: u32,
    /// The index below which streams of the peer are offered.
    below: u32,
    /// The copies of the last offer that have not left.
    copies: u8,
    /// The time of the last copy.
    sent: Duration,
}

impl Offers {
    pub(crate) fn new(config: &Config) -> Self {
        let window = config.first_window.min(config.max_window) / WINDOW_UNIT;
        let window = window.min(u64::from(u16::MAX)) * WINDOW_UNIT;
        let reserve = window.saturating_sub(config.initial_credit);
        Self {
            window,
            reserve,
            most: if reserve > 0 {
                config.offered_streams
            } else {
                0
            },
            ..Self::default()
        }
    }

    /// Returns the window of an offered stream in bytes.
    pub(crate) const fn window(&self) -> u64 {
        self.window
    }

    /// Returns the bytes that the pool has to give for a stream that is not open.
    pub(crate) const fn reserve(&self) -> u64 {
        self.reserve
    }

    /// Returns whether so many of the offered streams are open that others are worth a segment.
    pub(crate) fn has_few(&self) -> bool {
        self.most > 0 && self.most - self.waiting >= self.most.div_ceil(4)
    }

    /// Returns the index of the next stream to offer, if one should be.
    pub(crate) fn next_index(&self) -> Option<u32> {
        (self.waiting < self.most && self.below < INDICES).then_some(self.below)
    }

    /// Offers the stream of [`Self::next_index`]. Its memory was reserved. `is_used` tells that the
    /// peer has opened it already, so that it does not wait.
    pub(crate) fn add(&mut self, is_used: bool) {
        self.below += 1;
        self.waiting += u32::from(!is_used);
        self.copies = COPIES;
    }

    /// Notes that the peer has used an index for the first time. Returns the bytes that were
    /// reserved for the stream.
    pub(crate) fn on_opened(&mut self, index: u32) -> u64 {
        if index >= self.below {
            return 0;
        }
        self.waiting = self.waiting.saturating_sub(1);
        self.reserve
    }

    /// Returns whether the next datagram should carry the offer.
    pub(crate) fn is_due(&self, now: Duration, rtt: &Rtt) -> bool {
        let at_once = self.copies > LATER;
        self.copies > 0 && (at_once || now >= self.sent + rtt.first().unwrap_or_default())
    }

    /// Returns the segment, and counts it as sent.
    pub(crate) fn take(&mut self, now: Duration) -> Segment<'static> {
        self.copies = self.copies.saturating_sub(1);
        self.sent = now;
        Segment::Offer {
            window: u16::try_from(self.window / WINDOW_UNIT).unwrap_or(u16::MAX),
            below: self.below,
        }
    }
}

/// The streams of this end that the peer's offers concern.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Allowed {
    /// The window of the first offer.
    window: u16,
    below: u32,
}

impl Allowed {
    /// Takes an offer. Returns the indices that it adds, or `None` if it says nothing new. An offer
    /// with another window than the first one says nothing, so each index is added once.
    pub(crate) fn raise(&mut self, window: u16, below: u32) -> Option<Range<u32>> {
        let (from, below) = (self.below, below.min(INDICES));
        if below <= from || (from > 0 && window != self.window) {
            return None;
        }
        *self = Self { window, below };
        Some(from..below)
    }

    /// Returns the bytes that a stream may send before its first acknowledgement, 0 if no offer
    /// concerns it.
    pub(crate) fn window(self, index: u32) -> u64 {
        if index < self.below {
            window_end(0, self.window)
        } else {
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn offers(streams: u32) -> Offers {
        Offers::new(&Config {
            offered_streams: streams,
            ..Config::default()
        })
    }

    fn fill(offers: &mut Offers) {
        while offers.next_index().is_some() {
            offers.add(false);
        }
    }

    fn below(segment: &Segment<'_>) -> u32 {
        match *segment {
            Segment::Offer { window: 256, below } => below,
            _ => panic!("no offer of the first window: {segment:?}"),
        }
    }

    #[test]
    fn offers_leave_four_times_and_grow_by_quarters() {
        let (rtt, now) = (Rtt::default(), Duration::ZERO);
        let mut offers = offers(8);
        assert!(offers.has_few());
        fill(&mut offers);
        for _ in 0..COPIES {
            assert!(offers.is_due(now, &rtt));
            assert_eq!(below(&offers.take(now)), 8);
        }
        assert!(!offers.is_due(now, &rtt));
        assert_eq!(offers.on_opened(0), 240 << 10);
        assert!(!offers.has_few());
        assert_eq!(offers.on_opened(8), 0, "not offered");
        assert_eq!(offers.on_opened(5), 240 << 10);
        assert!(offers.has_few());
        fill(&mut offers);
        assert!(offers.is_due(now, &rtt));
        assert_eq!(below(&offers.take(now)), 10);
    }

    #[test]
    fn later_copies_of_an_offer_wait_for_a_round_trip() {
        let ms = Duration::from_millis(1);
        let mut rtt = Rtt::default();
        rtt.note_handshake(100 * ms);
        let mut offers = offers(8);
        fill(&mut offers);
        offers.take(ms);
        assert!(offers.is_due(ms, &rtt));
        offers.take(ms);
        assert!(!offers.is_due(100 * ms, &rtt) && offers.is_due(101 * ms, &rtt));
    }

    #[test]
    fn end_offers_nothing_without_a_wider_window() {
        for config in [
            Config::default(),
            Config {
                offered_streams: 8,
                first_window: 0,
                ..Config::default()
            },
            Config {
                offered_streams: 8,
                max_window: 16 << 10,
                ..Config::default()
            },
        ] {
            let offers = Offers::new(&config);
            assert!(!offers.has_few() && offers.next_index().is_none());
            assert!(!offers.is_due(Duration::ZERO, &Rtt::default()));
        }
    }

    #[test]
    fn offer_with_another_window_says_nothing() {
        let mut allowed = Allowed::default();
        assert_eq!(allowed.raise(256, 0), None, "no stream");
        assert_eq!(allowed.raise(256, 4), Some(0..4));
        for other in [0, 255, 257, u16::MAX] {
            assert_eq!(allowed.raise(other, 9), None);
        }
        assert_eq!((allowed.window(3), allowed.window(4)), (256 << 10, 0));
        assert_eq!(allowed.raise(256, u32::MAX), Some(4..INDICES));
        assert_eq!(allowed.raise(256, u32::MAX), None);
    }

    proptest! {
        /// Offers in any order say the same as the one with the highest index.
        #[test]
        fn offers_of_the_peer_add_each_index_once(
            indices in prop::collection::vec(0u32..50, 1..20),
        ) {
            let mut allowed = Allowed::default();
            let mut added = Vec::new();
            for below in &indices {
                added.extend(allowed.raise(256, *below).unwrap_or_default());
            }
            let most = indices.iter().copied().max().unwrap_or_default();
            prop_assert_eq!(added, (0..most).collect::<Vec<_>>());
            for index in 0..60 {
                let window = if index < most { 256 << 10 } else { 0 };
                prop_assert_eq!(allowed.window(index), window);
            }
        }
    }
}

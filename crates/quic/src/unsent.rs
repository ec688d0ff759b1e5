//! The bytes of streams that a connection has taken and not sent.
//!
//! A session that asks for room ([`tandem::carrier::Streams::poll_room`]) waits while there are
//! many. quinn does not count these bytes. Its own limit counts all bytes up to their
//! acknowledgement, and with them those that arrived behind a lost packet. The number here is an
//! estimate from the bytes of the packets that the congestion controller sees, without their heads
//! and datagrams. It is corrected whenever the connection had nothing to send.
//!
//! Errors towards room are preferred. Bytes that are taken too early only leave in a worse order.

use std::task::{Context, Poll, Waker};

/// The bytes of a packet beside the data of a stream: the head, the tag and the frame's head. This
/// is the most for an offset below 1 GiB. An estimate that is too high by some bytes ends as soon
/// as the connection has nothing to send, and one that is too low goes on.
const OVERHEAD: u64 = 40;

/// The estimate, and the task that waits for room.
#[derive(Debug, Default)]
pub(crate) struct Unsent {
    bytes: u64,
    /// The part of `bytes` that was taken since the last packet left.
    fresh: u64,
    /// The bytes of datagrams that were taken and have not left. They leave before streams.
    datagrams: u64,
    /// The bytes of packets that have left since the last one with a datagram, or `None` if none
    /// had one.
    since_datagram: Option<u64>,
    /// True if the session waited for room at its last look, and so has more to send.
    wanted: bool,
    waker: Option<Waker>,
}

impl Unsent {
    /// Notes bytes that the connection is about to take. Another thread may send them at once.
    pub(crate) fn accept(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.fresh += bytes;
    }

    /// Notes that the connection has not taken the last of these bytes.
    pub(crate) fn retract(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.fresh = self.fresh.saturating_sub(bytes);
    }

    /// Notes a datagram that the connection is about to take.
    pub(crate) fn accept_datagram(&mut self, bytes: u64) {
        self.datagrams += bytes;
    }

    /// Notes that the connection has not taken the datagram.
    pub(crate) fn retract_datagram(&mut self, bytes: u64) {
        let waiting = bytes.min(self.datagrams);
        self.datagrams -= waiting;
        // The rest was taken for a part of packets that had the bytes of streams instead.
        self.bytes = self.bytes.saturating_sub(bytes - waiting);
    }

    /// Notes that packets with these bytes have left, all but the last of size `packet`.
    pub(crate) fn on_sent(&mut self, bytes: u64, packet: u64) {
        let datagrams = bytes.min(self.datagrams);
        self.datagrams -= datagrams;
        self.since_datagram = match (datagrams, self.since_datagram) {
            (0, since) => since.map(|since| since.saturating_add(bytes)),
            _ => Some(0),
        };
        let others = bytes - datagrams;
        self.bytes = self.bytes.saturating_sub(content(others, packet));
        self.fresh = 0;
    }

    /// Notes that packets were lost, with a congestion window of `window`. The data of streams is
    /// sent again, and datagrams are not. Losses count only if packets of two windows have left
    /// since the last datagram, so that the lost ones had none.
    pub(crate) fn on_lost(&mut self, bytes: u64, packet: u64, window: u64) {
        let two_windows = window.saturating_mul(2);
        if self.since_datagram.is_none_or(|since| since >= two_windows) {
            self.since_datagram = None;
            self.bytes += content(bytes, packet);
        }
    }

    /// Notes that the connection had nothing to send after the last packet. Without bytes on their
    /// way nothing would correct a later estimate, so it begins again.
    pub(crate) fn on_idle(&mut self, in_flight: u64) {
        if in_flight == 0 {
            self.fresh = 0;
        }
        self.datagrams = 0;
        self.bytes = self.bytes.min(self.fresh);
    }

    /// Returns true if the session has more to send and was not able to write it.
    pub(crate) const fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// Waits until less than `limit` is unsent.
    pub(crate) fn poll_room(&mut self, limit: u64, cx: &Context<'_>) -> Poll<()> {
        self.wanted = self.bytes >= limit;
        if self.wanted {
            self.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    /// Wakes the session if less than `limit` is unsent.
    pub(crate) fn wake_below(&mut self, limit: u64) {
        if self.bytes < limit {
            self.wake();
        }
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Drop for Unsent {
    /// Wakes a session whose connection has another path, which has an estimate of its own. quinn
    /// may keep the old path for long, so the session also asks again after a time.
    fn drop(&mut self) {
        self.wake();
    }
}

fn content(bytes: u64, packet: u64) -> u64 {
    let packets = bytes.div_ceil(packet.max(1));
    bytes.saturating_sub(packets * OVERHEAD)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 16_000;
    const PACKET: u64 = 1232;
    const WINDOW: u64 = 12_000;

    fn has_room(unsent: &mut Unsent) -> bool {
        let cx = Context::from_waker(Waker::noop());
        unsent.poll_room(LIMIT, &cx).is_ready()
    }

    #[test]
    fn carrier_room_returns_once_bytes_have_left() {
        let mut unsent = Unsent::default();
        unsent.accept(20_000);
        unsent.retract(1_000);
        assert!(!has_room(&mut unsent) && unsent.is_wanted());
        unsent.on_sent(2 * PACKET, PACKET);
        assert!(!has_room(&mut unsent));
        unsent.on_sent(2 * PACKET, PACKET);
        assert!(has_room(&mut unsent) && !unsent.is_wanted());
        unsent.on_lost(2 * PACKET, PACKET, WINDOW);
        assert!(!has_room(&mut unsent), "the data is sent again");
    }

    /// Packets that carry less of a stream than was estimated leave a remainder.
    #[test]
    fn idle_connection_has_room() {
        let mut unsent = Unsent::default();
        unsent.accept(40_000);
        unsent.on_sent(100, PACKET);
        unsent.accept(5_000);
        unsent.on_idle(PACKET);
        assert_eq!(unsent.bytes, 5_000, "these may not have left yet");
        unsent.accept(20_000);
        assert!(!has_room(&mut unsent));
        unsent.on_idle(0);
        assert!(
            has_room(&mut unsent),
            "nothing would wake the session later"
        );
    }

    /// Datagrams keep a connection from ever having nothing to send, and are not sent again.
    #[test]
    fn lost_datagrams_leave_room() {
        let mut unsent = Unsent::default();
        unsent.accept(1_000);
        for packet in 0..10_000 {
            unsent.accept_datagram(1_200);
            unsent.on_sent(PACKET, PACKET);
            if packet % 3 == 0 {
                unsent.on_lost(PACKET, PACKET, WINDOW);
            }
            assert!(has_room(&mut unsent), "packet {packet}");
        }
        // Without datagrams, losses count again.
        (0..100).for_each(|_| unsent.on_sent(PACKET, PACKET));
        unsent.on_lost(20 * PACKET, PACKET, WINDOW);
        assert!(!has_room(&mut unsent));
    }

    #[test]
    fn datagrams_take_no_room_and_give_none() {
        let mut unsent = Unsent::default();
        unsent.accept(20_000);
        for _ in 0..1000 {
            unsent.accept_datagram(1_200);
            unsent.on_sent(PACKET, PACKET);
        }
        assert!(!has_room(&mut unsent), "streams have sent nothing");
        unsent.accept_datagram(1_200);
        unsent.retract_datagram(1_200);
        (0..4).for_each(|_| unsent.on_sent(PACKET, PACKET));
        assert!(has_room(&mut unsent));
    }
}

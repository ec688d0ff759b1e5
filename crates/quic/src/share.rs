//! The share of datagrams (RFC 9221) in the bytes of a connection.
//!
//! quinn sends waiting datagrams before the bytes of streams. Without a limit, a program that sends
//! much UDP would keep all streams of its session from sending. While bytes of streams wait, each
//! byte that leaves gives datagrams a credit of half a byte.
//!
//! quinn does not tell which bytes of streams have left. They are estimated: bytes that were
//! neither datagrams nor repeated. The estimate ends when the connection had nothing to send.

/// The most credit. A connection with streams takes so many bytes of datagrams at once.
const BURST: i64 = 16 << 10;
/// The bytes of a datagram beside its own: the frame, and a packet's head and tag.
const OVERHEAD: i64 = 32;
/// The bytes of the other frames and packets, as a part of those of streams (a sixteenth).
const OTHERS: i64 = 16;

/// The counters of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// The bytes that were sent.
    pub sent: u64,
    /// The bytes that were found lost.
    pub lost: u64,
    /// The number of acknowledgements that arrived while nothing waited to be sent.
    pub idle: u64,
}

/// Divides the bytes of a connection.
#[derive(Debug, Default)]
pub(crate) struct Share {
    last: Counters,
    /// The bytes of streams that wait in the connection, as estimated.
    waiting: u64,
    /// The part of `waiting` that arrived since the counters were last read.
    fresh: u64,
    /// The bytes of streams that have left and are not yet taken from `waiting`. It is negative
    /// while datagrams wait in the connection.
    left: i64,
    credit: i64,
}

impl Share {
    /// Notes that the connection has taken bytes of a stream. `look` returns the counters, and the
    /// bytes of datagrams that wait.
    pub(crate) fn accept(&mut self, bytes: usize, look: impl FnOnce() -> (Counters, usize)) {
        if self.waiting == 0 {
            let (counters, datagrams) = look();
            self.last = counters;
            (self.left, self.credit, self.fresh) = (-(datagrams as i64), BURST, 0);
        }
        self.waiting += bytes as u64;
        self.fresh += bytes as u64;
    }

    /// Returns true if the connection may take a datagram now. `look` returns the counters.
    pub(crate) fn permits(&mut self, look: impl FnOnce() -> Counters) -> bool {
        if self.waiting == 0 {
            return true;
        }
        self.update(look());
        self.waiting == 0 || self.credit > 0
    }

    /// Notes that the connection has taken a datagram.
    pub(crate) fn charge(&mut self, bytes: usize) {
        if self.waiting > 0 {
            let cost = bytes as i64 + OVERHEAD;
            self.credit -= cost;
            self.left -= cost;
        }
    }

    fn update(&mut self, now: Counters) {
        let before = std::mem::replace(&mut self.last, now);
        let sent = now.sent.saturating_sub(before.sent) as i64;
        let lost = now.lost.saturating_sub(before.lost) as i64;
        self.credit = BURST.min(self.credit.saturating_add(sent / 2));
        self.left = self.left.saturating_add(sent).saturating_sub(lost);
        if self.left > 0 {
            let left = std::mem::take(&mut self.left);
            self.waiting = self.waiting.saturating_sub((left - left / OTHERS) as u64);
        }
        let fresh = std::mem::take(&mut self.fresh);
        if now.idle != before.idle {
            self.waiting = self.waiting.min(fresh);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: usize = 1200;

    /// A connection that sends datagrams first. A program always has another datagram.
    #[derive(Default)]
    struct Flooded {
        share: Share,
        counters: Counters,
        /// Datagrams in the connection, and bytes of streams in it.
        datagrams: usize,
        streams: usize,
        /// The datagrams that were sent.
        sent_datagrams: usize,
    }

    impl Flooded {
        fn write(&mut self, bytes: usize) {
            let (counters, waiting) = (self.counters, self.datagrams * PACKET);
            self.share.accept(bytes, || (counters, waiting));
            self.streams += bytes;
        }

        /// Sends a packet. Returns false if there is nothing to send.
        fn send(&mut self) -> bool {
            while self.datagrams < 6 && self.share.permits(|| self.counters) {
                self.share.charge(PACKET);
                self.datagrams += 1;
            }
            let some = self.datagrams > 0 || self.streams > 0;
            if self.datagrams > 0 {
                self.datagrams -= 1;
                self.sent_datagrams += 1;
            } else {
                self.streams = self.streams.saturating_sub(PACKET);
            }
            let size = PACKET as u64 + OVERHEAD as u64;
            self.counters.sent += if some { size } else { 0 };
            self.counters.idle += u64::from(!some);
            some
        }
    }

    #[test]
    fn datagrams_leave_half_of_the_bytes_to_streams() {
        let mut flooded = Flooded::default();
        (0..20).for_each(|_| assert!(flooded.send()));
        flooded.write(1_000_000);
        let (before, mut packets) = (flooded.sent_datagrams, 0);
        while flooded.streams > 0 && packets < 10_000 {
            flooded.send();
            packets += 1;
        }
        assert_eq!(flooded.streams, 0);
        let share = (flooded.sent_datagrams - before) as f64 / f64::from(packets);
        assert!((0.45..0.52).contains(&share), "{share}");
    }

    #[test]
    fn datagrams_without_streams_have_no_limit() {
        let mut flooded = Flooded::default();
        for _ in 0..10 {
            (0..1000).for_each(|_| assert!(flooded.send()));
            assert_eq!(flooded.streams, 0);
            flooded.write(500);
        }
        // A connection that had nothing to send ends an estimate that is too high.
        flooded.write(1_000_000);
        flooded.streams = 0;
        while flooded.send() {}
        assert!((0..1000).all(|_| flooded.send()));
    }

    #[test]
    fn lost_bytes_of_streams_wait_again() {
        let mut flooded = Flooded::default();
        flooded.write(200_000);
        for packet in 0..10_000 {
            if flooded.streams == 0 {
                break;
            }
            let before = flooded.streams;
            flooded.send();
            // Every second packet of a stream is lost, and repeated.
            if packet % 2 == 0 && flooded.streams < before {
                flooded.streams = before;
                flooded.counters.lost += PACKET as u64;
            }
        }
        assert_eq!(flooded.streams, 0);
    }
}

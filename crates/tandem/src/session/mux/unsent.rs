//! Bounds how much unsent data a session keeps in the kernel: the amount that the path carries in
//! about ten milliseconds.
//!
//! `TCP_NOTSENT_LOWAT` alone does not bound it. Linux heeds this limit only when a write begins a
//! new buffer, and it fills the last buffer up to 64 KiB. The session therefore asks for room
//! before it writes half of the limit.
//!
//! Each question is a system call, and the smaller writes cost more calls. A session asks nothing
//! while the path carries 64 KiB in 20 ms, since a full buffer then costs little time. It does not
//! begin to ask when it has nothing to send. It asks again after the socket has refused bytes for a
//! noticeable time.
//!
//! Over BBR the limit of the socket follows the rate. With a lower limit, the socket can run dry
//! before this process is scheduled again. BBR treats rates measured on a dry socket as limited by
//! the application and never leaves its start-up phase. It then goes on sending at 2.9 times the
//! path's rate into a full queue. With a higher limit, a late and urgent response waits behind data
//! that cannot be overtaken. Sockets with other congestion controls keep the limit that they were
//! given, and only the sizes of writes follow the rate.

use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use crate::path::Facts;

/// The time over which the rate is measured.
const SPAN: Duration = Duration::from_millis(100);

/// The fraction (1/96) of a second's data that may wait in the kernel.
const SHARE: u64 = 96;

/// The greatest limit in bytes. On faster paths the limit is not the bottleneck.
const MOST: u32 = 256 << 10;

/// The size up to which the kernel fills its last buffer. A limit of this size or more holds
/// without asking for room.
const BUFFER: u32 = 64 << 10;

/// The bytes of one measurement that prove a rate at which the limit is a whole [`BUFFER`].
const FAST: u64 = BUFFER as u64 / 2 * SHARE * SPAN.as_millis() as u64 / 1000;

/// The shortest refusal after which the session asks for room. At 46 Mbit/s the kernel refuses
/// bytes for this time after it has filled a buffer.
const NOTICEABLE: Duration = Duration::from_millis(10);

/// The fewest bytes between two questions for room, about a packet.
const LEAST_ROOM: usize = 1 << 10;

/// The limit on unsent data of one session's socket.
#[derive(Debug)]
pub(super) struct Unsent {
    /// The configured limit in bytes, below which it is never set. With 0 there is no limit.
    least: u32,
    /// The limit at the present rate.
    current: u32,
    /// True if the limit of the socket follows the rate.
    sets: bool,
    /// True if the session asks for room: the path is slow, or its rate is unknown.
    asks: bool,
    /// The bytes that may be written before the path is asked for room again.
    room: usize,
    /// The beginning of the present measurement, and the bytes written since then.
    since: Option<Instant>,
    written: u64,
}

impl Unsent {
    /// Starts with the limit that the path has.
    pub(super) fn of(path: &dyn Facts) -> Self {
        // The kernel reports "no limit" as the largest number.
        let given = path.unsent_limit().filter(|given| *given < MOST);
        Self {
            sets: path.is_over_bbr(),
            ..Self::starting_at(given.unwrap_or(0))
        }
    }

    const fn starting_at(least: u32) -> Self {
        Self {
            least,
            current: least,
            sets: true,
            asks: true,
            room: 0,
            since: None,
            written: 0,
        }
    }

    /// Waits until the path has room. Returns the number of bytes that may be written.
    pub(super) fn poll_room(&mut self, path: &dyn Facts, cx: &mut Context<'_>) -> Poll<usize> {
        if self.least == 0 || !self.asks {
            return Poll::Ready(usize::MAX);
        }
        let limit = self.current as usize;
        if self.room < limit / 4 || self.room == 0 {
            ready!(path.poll_room(cx));
            self.room = (limit / 2).max(LEAST_ROOM);
        }
        Poll::Ready(self.room)
    }

    /// Counts bytes that the path has accepted, after it had `refused` them for some time. Sets a
    /// new limit when one is due.
    pub(super) fn wrote(&mut self, path: &dyn Facts, count: usize, refused: Duration) {
        self.room = self.room.saturating_sub(count);
        if self.least > 0
            && let Some(limit) = self.limit_after(count, Instant::now())
            && self.sets
        {
            path.limit_unsent(limit);
        }
        if self.current >= BUFFER || self.written >= FAST {
            self.asks = false;
        } else if refused >= NOTICEABLE {
            self.asks = true;
        }
    }

    /// Returns a new limit when one is due.
    fn limit_after(&mut self, count: usize, now: Instant) -> Option<u32> {
        self.written += count as u64;
        let since = *self.since.get_or_insert(now);
        let elapsed = now.saturating_duration_since(since);
        if elapsed < SPAN {
            return None;
        }
        let rate = self.written.saturating_mul(1000) / (elapsed.as_millis() as u64).max(1);
        (self.since, self.written) = (Some(now), 0);
        let wanted = (rate / SHARE).min(MOST.into()) as u32;
        let limit = wanted.next_power_of_two().clamp(self.least, MOST);
        // A fall to one half may be chance. The limit is lowered at a fall to one quarter.
        let changes = limit > self.current
            || limit < self.current / 2
            || (limit == self.least && limit < self.current);
        changes.then(|| {
            self.current = limit;
            limit
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: u32 = 16 << 10;

    /// Returns the last limit after one second of writing at `rate` bytes per second.
    fn second_at(unsent: &mut Unsent, clock: &mut Instant, rate: usize) -> Option<u32> {
        let mut last = None;
        for _ in 0..100 {
            *clock += Duration::from_millis(10);
            last = unsent.limit_after(rate / 100, *clock).or(last);
        }
        last
    }

    #[test]
    fn unsent_limit_follows_the_rate() {
        let (mut unsent, mut clock) = (Unsent::starting_at(LEAST), Instant::now());
        assert_eq!(
            second_at(&mut unsent, &mut clock, 1_250_000),
            None,
            "10 Mbit/s need no more than the least"
        );
        assert_eq!(
            second_at(&mut unsent, &mut clock, 11_900_000),
            Some(128 << 10)
        );
        assert_eq!(
            second_at(&mut unsent, &mut clock, 6_000_000),
            None,
            "half is not yet a change"
        );
        assert_eq!(
            second_at(&mut unsent, &mut clock, 1_000_000_000),
            Some(MOST)
        );
        assert_eq!(second_at(&mut unsent, &mut clock, 100_000), Some(LEAST));
    }

    #[test]
    fn silence_lowers_the_unsent_limit() {
        let (mut unsent, mut clock) = (Unsent::starting_at(LEAST), Instant::now());
        assert_eq!(second_at(&mut unsent, &mut clock, 20_000_000), Some(MOST));
        clock += Duration::from_secs(60);
        assert_eq!(unsent.limit_after(100, clock), Some(LEAST));
    }

    struct Connection {
        over_bbr: bool,
        limit: std::cell::Cell<u32>,
        /// The number of questions for room, and whether there is none.
        asked: std::cell::Cell<u32>,
        full: std::cell::Cell<bool>,
    }

    impl Facts for Connection {
        fn below(&self) -> Option<&dyn Facts> {
            None
        }

        fn is_over_bbr(&self) -> bool {
            self.over_bbr
        }

        fn unsent_limit(&self) -> Option<u32> {
            Some(self.limit.get())
        }

        fn limit_unsent(&self, bytes: u32) {
            self.limit.set(bytes);
        }

        fn poll_room(&self, _: &mut Context<'_>) -> Poll<()> {
            self.asked.set(self.asked.get() + 1);
            if self.full.get() {
                return Poll::Pending;
            }
            Poll::Ready(())
        }
    }

    const fn connection(given: u32) -> Connection {
        Connection {
            over_bbr: false,
            limit: std::cell::Cell::new(given),
            asked: std::cell::Cell::new(0),
            full: std::cell::Cell::new(false),
        }
    }

    /// Returns the limit of a connection after two megabytes were written to it within [`SPAN`].
    fn limit_after_much(over_bbr: bool, given: u32) -> u32 {
        let connection = Connection {
            over_bbr,
            ..connection(given)
        };
        let mut unsent = Unsent::of(&connection);
        unsent.wrote(&connection, 1, Duration::ZERO);
        unsent.since = unsent.since.map(|since| since - SPAN);
        unsent.wrote(&connection, 2_000_000, Duration::ZERO);
        connection.limit.get()
    }

    #[test]
    fn unsent_limit_changes_only_over_bbr() {
        assert_eq!(limit_after_much(true, LEAST), MOST);
        assert_eq!(limit_after_much(true, u32::MAX), u32::MAX, "left alone");
        assert_eq!(limit_after_much(false, LEAST), LEAST);
    }

    #[test]
    fn session_asks_for_room_before_half_of_the_limit() {
        let cx = &mut Context::from_waker(std::task::Waker::noop());
        let path = connection(LEAST);
        let mut unsent = Unsent::of(&path);
        let half = LEAST as usize / 2;
        assert_eq!(unsent.poll_room(&path, cx), Poll::Ready(half));
        unsent.wrote(&path, 100, Duration::ZERO);
        assert_eq!(unsent.poll_room(&path, cx), Poll::Ready(half - 100));
        assert_eq!(path.asked.get(), 1, "small writes share a question");
        unsent.wrote(&path, half - 100, Duration::ZERO);
        assert_eq!(unsent.poll_room(&path, cx), Poll::Ready(half));
        unsent.wrote(&path, 2 * half, Duration::ZERO);
        path.full.set(true);
        assert_eq!(unsent.poll_room(&path, cx), Poll::Pending);
        let path = connection(u32::MAX);
        let mut unsent = Unsent::of(&path);
        assert_eq!(unsent.poll_room(&path, cx), Poll::Ready(usize::MAX));
        assert_eq!(path.asked.get(), 0, "there is no limit");
    }

    #[test]
    fn session_asks_for_room_only_on_a_slow_path() {
        let path = connection(LEAST);
        let mut unsent = Unsent::of(&path);
        let half = LEAST as usize / 2;
        let asks = |unsent: &mut Unsent, refused| {
            let before = path.asked.get();
            for _ in 0..50 {
                unsent.wrote(&path, half, refused);
                let cx = &mut Context::from_waker(std::task::Waker::noop());
                assert!(unsent.poll_room(&path, cx).is_ready());
            }
            path.asked.get() - before
        };
        unsent.since = Some(Instant::now() + Duration::from_secs(60));
        assert_eq!(asks(&mut unsent, Duration::ZERO), 38, "unknown, then fast");
        unsent.written = 0;
        assert_eq!(asks(&mut unsent, NOTICEABLE / 2), 0, "after a silence");
        unsent.written = 0;
        assert_eq!(asks(&mut unsent, NOTICEABLE), 38, "slow, then fast");
        unsent.current = BUFFER;
        assert_eq!(asks(&mut unsent, NOTICEABLE), 0, "a large limit");
    }
}

//! The decision that a network throttles datagrams: pure, with time as an argument.
//!
//! ```text
//!  Flow: the bytes of a session ─▶ slow ─▶ Comparison: filler bytes by this way and by TCP
//!                                             └▶ throttled: the other way from now on (`ways`)
//! ```
//!
//! Some networks police UDP: a handshake passes, and a download then gets a small part of the path
//! (RFC 9312). A receiver cannot tell this from a slow origin or a busy path. A slow session
//! therefore only leads to a comparison, in which both ways bring the same filler bytes at once. A
//! slow origin delays no filler, and a busy path delays both ways.
//!
//! A way is left if it has less than a quarter of the rate of TCP in each round, and is slow. It is
//! used again if it has half of that rate in each round, so that the choice does not flap.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The polling interval for a session that receives data.
pub(crate) const SLOT: Duration = Duration::from_millis(500);
/// The longest slot: two usual ones, since callers wait longer after an empty one, and some delay.
const LONGEST_SLOT: Duration = Duration::from_millis(1250);
/// The slots that are considered.
const SLOTS: usize = 4;
/// The bytes in a slot that count as data.
pub(crate) const DATA: u64 = 1 << 10;
/// The bytes in a slot above which a session is not slow (8 Mbit/s).
const FAST: u64 = 512 << 10;
/// The filler bytes of the rounds. The first one opens the window of TCP.
const ROUNDS: [u64; 3] = [64 << 10, 256 << 10, 1 << 20];
/// The time after which a round ends with the bytes so far.
pub(crate) const ROUND_LIMIT: Duration = Duration::from_secs(20);
/// The time that datagrams have at least. A shorter one shows the delays of busy processors.
pub(crate) const LEAST_ROUND: Duration = Duration::from_millis(500);
/// A first round that takes fewer round trips shows the window of TCP and not the path.
const WINDOW_ROUND_TRIPS: u32 = 6;

/// The observation of one session over datagrams while exchanges are under way.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    last: Option<(Instant, u64)>,
    /// The bytes that have arrived between the last looks.
    slots: VecDeque<u64>,
}

impl Flow {
    /// Looks at the session, which has received `bytes` so far. Returns true if it has received
    /// data in the last two seconds, and slowly. Callers look once in a [`SLOT`].
    pub(crate) fn look(&mut self, now: Instant, bytes: u64) -> bool {
        let Some((at, before)) = self.last.replace((now, bytes)) else {
            return false;
        };
        if now.saturating_duration_since(at) > LONGEST_SLOT {
            // Nothing was looked at for a while.
            self.slots.clear();
            return false;
        }
        self.slots.push_back(bytes.saturating_sub(before));
        if self.slots.len() > SLOTS {
            self.slots.pop_front();
        }
        let with_data = self.slots.iter().filter(|slot| **slot >= DATA).count();
        let total: u64 = self.slots.iter().sum();
        with_data + 1 >= SLOTS && self.slots.len() == SLOTS && total < FAST * SLOTS as u64
    }
}

/// The purpose of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The way over datagrams is used, and may be throttled.
    Leave,
    /// The way over datagrams was throttled, and may be usable again.
    Return,
}

/// The result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Throttled,
    Fine,
}

/// The bytes of one round, which have arrived once a way has brought its filler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    /// All bytes by the way over datagrams, and their time.
    pub(crate) datagrams: u64,
    pub(crate) datagrams_took: Duration,
    /// True if the filler has arrived by the way over datagrams.
    pub(crate) is_filled: bool,
    /// The bytes by TCP, all of them if the connection counts them, and their time.
    pub(crate) tcp: u64,
    pub(crate) took: Duration,
    /// The round trip of TCP.
    pub(crate) round_trip: Duration,
}

impl Round {
    /// Returns true if the datagrams had less than a part of the rate of TCP, and were slow.
    fn is_below(&self, part: f64) -> bool {
        let rate = |bytes: u64, took: Duration| bytes as f64 / took.as_secs_f64().max(1e-6);
        let datagrams = rate(self.datagrams, self.datagrams_took);
        let fast = rate(FAST, SLOT);
        // Filler that arrived so fast shows no limit.
        let is_filled = self.is_filled && self.datagrams_took < 2 * LEAST_ROUND;
        !is_filled && datagrams < fast && datagrams < part * rate(self.tcp, self.took)
    }
}

/// A comparison of a way over datagrams with one over TCP.
#[derive(Debug)]
pub(crate) struct Comparison {
    purpose: Purpose,
    /// The number of rounds so far.
    rounds: usize,
}

impl Comparison {
    pub(crate) const fn new(purpose: Purpose) -> Self {
        Self { purpose, rounds: 0 }
    }

    /// Returns the filler bytes that each way should bring in this round.
    pub(crate) fn filler(&self) -> u64 {
        ROUNDS[self.rounds.min(ROUNDS.len() - 1)]
    }

    /// Ends a round. Returns the verdict once it is certain.
    pub(crate) fn end_round(&mut self, round: Round) -> Option<Verdict> {
        let of_window = self.rounds == 0 && round.took < WINDOW_ROUND_TRIPS * round.round_trip;
        self.rounds += 1;
        let is_last = self.rounds >= ROUNDS.len();
        let (holds, verdict) = match self.purpose {
            Purpose::Leave => (round.is_below(0.25), Verdict::Throttled),
            Purpose::Return => (!round.is_below(0.5), Verdict::Fine),
        };
        if !holds && !of_window {
            return Some(match self.purpose {
                Purpose::Leave => Verdict::Fine,
                Purpose::Return => Verdict::Throttled,
            });
        }
        is_last.then_some(verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MBIT: f64 = 125_000.0;

    /// Looks at a session that receives `rate(second)` bytes a second, for this time. Returns the
    /// time at which it counts as slow.
    fn slow_after(seconds: u64, rate: impl Fn(f64) -> f64) -> Option<Duration> {
        let (mut flow, begun) = (Flow::default(), Instant::now());
        let mut bytes = 0.0;
        (0..seconds * 2).find_map(|slot| {
            let passed = SLOT * slot as u32;
            bytes += rate(passed.as_secs_f64()) * SLOT.as_secs_f64();
            flow.look(begun + passed, bytes as u64).then_some(passed)
        })
    }

    #[test]
    fn session_that_receives_little_for_long_is_slow() {
        assert_eq!(slow_after(60, |_| 0.25 * MBIT), Some(4 * SLOT));
        // Each fourth slot is empty: the sender waits for a timeout.
        let gaps = |at: f64| if at % 2.0 < 0.4 { 0.0 } else { 0.25 * MBIT };
        assert!(slow_after(60, gaps).is_some());
        // Its next look comes after two slots, and a little late.
        let (mut flow, begun) = (Flow::default(), Instant::now());
        let looks = [0, 500, 1000, 1500, 2502, 3002];
        let looked =
            looks.map(|at| flow.look(begun + Duration::from_millis(at), at / 1000 * 30_000));
        assert!(looked.contains(&true), "{looked:?}");
        let policed_later = |at: f64| if at < 10.0 { 20.0 } else { 0.25 } * MBIT;
        let took = slow_after(60, policed_later).expect("it is noticed");
        assert!(took <= Duration::from_secs(12), "{took:?}");
    }

    #[test]
    fn session_that_is_fast_or_rests_is_not_slow() {
        assert_eq!(slow_after(60, |_| 20.0 * MBIT), None);
        assert_eq!(slow_after(60, |_| 0.0), None);
        assert_eq!(slow_after(60, |_| 500.0), None, "pings and small events");
        let page = |at: f64| if at % 10.0 < 1.0 { MBIT } else { 0.0 };
        assert_eq!(slow_after(60, page), None, "short pages");
        let (mut flow, mut now) = (Flow::default(), Instant::now());
        for look in 0..100 {
            assert!(!flow.look(now, look * 100_000), "nothing between the looks");
            now += 3 * SLOT;
        }
    }

    /// A path of two ways in virtual time: the rates in bytes a second that each gets while both
    /// are busy, and the round trip.
    struct Path {
        datagrams: f64,
        tcp: f64,
        round_trip: f64,
        /// The burst that a policer of datagrams permits after a rest.
        burst: f64,
        /// The window of TCP.
        window: f64,
    }

    impl Path {
        fn new(datagrams: f64, tcp: f64, round_trip: f64) -> Self {
            Self {
                datagrams: datagrams * MBIT,
                tcp: tcp * MBIT,
                round_trip,
                burst: 0.0,
                window: 14_600.0,
            }
        }

        /// Runs a round of a comparison. TCP begins with ten packets and doubles its window.
        fn round(&mut self, filler: u64) -> Round {
            let (mut tcp, mut took) = (0.0, 0.0);
            let filler = filler as f64;
            let most = ROUND_LIMIT.as_secs_f64();
            while tcp < filler && took < most && took * self.datagrams + self.burst < filler {
                let sent = self.window.min(filler - tcp);
                took += self.round_trip.max(sent / self.tcp);
                tcp += sent;
                self.window = (2.0 * self.window)
                    .min(self.tcp * self.round_trip)
                    .max(14_600.0);
            }
            let burst = self.burst.min(filler);
            self.burst -= burst;
            let datagrams_took = took.max(LEAST_ROUND.as_secs_f64());
            let datagrams = burst + datagrams_took * self.datagrams;
            Round {
                datagrams: datagrams as u64,
                datagrams_took: Duration::from_secs_f64(datagrams_took),
                is_filled: datagrams >= filler,
                tcp: tcp as u64,
                took: Duration::from_secs_f64(took),
                round_trip: Duration::from_secs_f64(self.round_trip),
            }
        }

        /// Returns the verdict, the time, and the filler bytes that TCP has brought.
        fn compare(mut self, purpose: Purpose) -> (Verdict, f64, u64) {
            let mut comparison = Comparison::new(purpose);
            let (mut time, mut bytes) = (0.0, 0);
            loop {
                let round = self.round(comparison.filler());
                time += round.took.as_secs_f64();
                bytes += round.tcp;
                if let Some(verdict) = comparison.end_round(round) {
                    return (verdict, time, bytes);
                }
            }
        }
    }

    #[test]
    fn policed_way_is_left_on_short_and_long_paths() {
        for round_trip in [0.02, 0.1, 0.3, 0.6] {
            // TCP needs time to show more than 1 Mbit/s on a long path.
            let rates = [0.064, 0.256, 1.0];
            for rate in rates.into_iter().filter(|rate| rate * round_trip < 0.2) {
                let compared = Path::new(rate, 20.0, round_trip).compare(Purpose::Leave);
                assert_eq!(compared.0, Verdict::Throttled, "{round_trip} {rate}");
                assert!(compared.1 < 6.0, "{compared:?}");
            }
        }
    }

    #[test]
    fn busy_or_slow_path_keeps_its_way_at_little_cost() {
        for round_trip in [0.02, 0.1, 0.6] {
            // Both ways share the path: equally, and with an advantage for TCP.
            for (datagrams, tcp) in [(0.25, 0.25), (0.5, 1.0), (1.0, 3.0), (6.0, 14.0)] {
                let compared = Path::new(datagrams, tcp, round_trip).compare(Purpose::Leave);
                assert_eq!(compared.0, Verdict::Fine, "{datagrams} {tcp} {round_trip}");
                assert!(compared.2 <= ROUNDS[0] + ROUNDS[1], "{compared:?}");
            }
        }
        let (verdict, _, bytes) = Path::new(0.25, 0.25, 0.05).compare(Purpose::Leave);
        assert_eq!((verdict, bytes <= ROUNDS[0]), (Verdict::Fine, true));
    }

    #[test]
    fn filler_that_passes_shows_a_slow_origin() {
        // The path carries 20 Mbit/s, and only the origin was slow.
        let (verdict, _, bytes) = Path::new(20.0, 20.0, 0.05).compare(Purpose::Leave);
        let most = ROUNDS[0] + ROUNDS[1];
        assert_eq!((verdict, bytes <= most), (Verdict::Fine, true));
    }

    #[test]
    fn policed_way_does_not_return_after_a_burst() {
        for burst in [0.0, 30e3, 100e3, 500e3] {
            let mut path = Path::new(0.256, 20.0, 0.1);
            path.burst = burst;
            assert_eq!(path.compare(Purpose::Return).0, Verdict::Throttled);
        }
        let (verdict, ..) = Path::new(20.0, 20.0, 0.1).compare(Purpose::Return);
        assert_eq!(verdict, Verdict::Fine);
    }

    #[test]
    fn way_between_both_limits_stays_as_it_is() {
        let path = || Path::new(7.0, 20.0, 0.1);
        assert_eq!(path().compare(Purpose::Leave).0, Verdict::Fine);
        assert_eq!(path().compare(Purpose::Return).0, Verdict::Throttled);
    }

    #[test]
    fn gateway_without_filler_decides_nothing() {
        let none = Round {
            datagrams: 5000,
            datagrams_took: ROUND_LIMIT,
            is_filled: false,
            tcp: 0,
            took: ROUND_LIMIT,
            round_trip: Duration::ZERO,
        };
        let verdict = Comparison::new(Purpose::Leave).end_round(none);
        assert_eq!(verdict, Some(Verdict::Fine));
    }
}

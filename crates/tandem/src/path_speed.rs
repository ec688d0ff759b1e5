//! The speed of a session's path, read from its connection at most ten times a second.
//!
//! A connection from this machine is not measured. It comes from Tor or a local tunnel, and the
//! slow path lies beyond that.

use std::cell::Cell;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use crate::path::Facts;

pub use crate::path::Measure;

/// The age up to which a measurement is used again.
const GOOD_FOR: Duration = Duration::from_millis(100);

/// Measures a path while its session uses it. It returns no measurements after the path's end.
pub struct PathSpeed {
    facts: Weak<dyn Facts>,
    last: Cell<Option<(Instant, Measure)>>,
}

impl PathSpeed {
    /// Creates the meter of a path from its facts, or returns `None` if the path does not leave
    /// this machine.
    pub fn of(facts: &Rc<dyn Facts>) -> Option<Self> {
        let peer = facts.peer_address()?.ip().to_canonical();
        (!peer.is_loopback()).then(|| Self {
            facts: Rc::downgrade(facts),
            last: Cell::default(),
        })
    }

    /// Returns the shortest round trip and the highest rate so far, since a connection with little
    /// to send shows a low rate. Returns `None` if the system gives no estimate, or after the
    /// path's end.
    pub fn measure(&self) -> Option<Measure> {
        let now = Instant::now();
        let last = self.last.get();
        if let Some((at, measure)) = last
            && now.saturating_duration_since(at) < GOOD_FOR
        {
            return Some(measure);
        }
        let mut measure = self.facts.upgrade()?.measure()?;
        measure.rate = measure.rate.max(last.map_or(0.0, |(_, last)| last.rate));
        self.last.set(Some((now, measure)));
        Some(measure)
    }

    /// Returns the shortest round trip so far, or the smoothed one of a connection over datagrams
    /// that has no estimate of its rate.
    pub fn round_trip(&self) -> Option<Duration> {
        match self.measure() {
            Some(measure) => Duration::try_from_secs_f64(measure.round_trip).ok(),
            None => self.facts.upgrade()?.smoothed_round_trip(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Speeds {
        rates: Cell<f64>,
        peer: &'static str,
    }

    impl Facts for Speeds {
        fn below(&self) -> Option<&dyn Facts> {
            None
        }

        fn peer_address(&self) -> Option<std::net::SocketAddr> {
            self.peer.parse().ok()
        }

        fn measure(&self) -> Option<Measure> {
            let rate = self.rates.replace(self.rates.get() / 2.0);
            Some(Measure {
                round_trip: 0.1,
                rate,
            })
        }
    }

    fn path(peer: &'static str) -> Rc<dyn Facts> {
        let rates = Cell::new(8.0);
        Rc::new(Speeds { rates, peer })
    }

    #[test]
    fn path_speed_keeps_the_highest_rate_of_a_path() {
        let path = path("203.0.113.5:443");
        let speed = PathSpeed::of(&path).expect("another machine");
        let first = speed.measure();
        assert_eq!(speed.measure(), first, "within the same tenth of a second");
        assert_eq!(path.measure().map(|now| now.rate), Some(4.0));
        let earlier = Instant::now().checked_sub(GOOD_FOR);
        speed.last.set(earlier.zip(first));
        assert_eq!(speed.measure().map(|now| now.rate), Some(8.0));
        speed.last.set(None);
        drop(path);
        assert_eq!(speed.measure(), None, "the path has ended");
    }

    /// A connection over datagrams, as DTLS is.
    struct Smoothed;

    impl Facts for Smoothed {
        fn below(&self) -> Option<&dyn Facts> {
            None
        }

        fn peer_address(&self) -> Option<std::net::SocketAddr> {
            "203.0.113.5:443".parse().ok()
        }

        fn smoothed_round_trip(&self) -> Option<Duration> {
            Some(Duration::from_millis(300))
        }
    }

    #[test]
    fn round_trip_is_known_without_a_rate() {
        let datagrams: Rc<dyn Facts> = Rc::new(Smoothed);
        for (path, expected) in [(path("203.0.113.5:443"), 100), (datagrams, 300)] {
            let speed = PathSpeed::of(&path).expect("another machine");
            assert_eq!(speed.round_trip(), Some(Duration::from_millis(expected)));
        }
    }

    #[test]
    fn path_speed_leaves_local_paths_alone() {
        for peer in ["127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1", ""] {
            assert!(PathSpeed::of(&path(peer)).is_none(), "{peer}");
        }
    }
}

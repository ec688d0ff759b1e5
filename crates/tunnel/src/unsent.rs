//! The bytes that a sender with a congestion window takes and has not sent.
//!
//! Bytes that wait in a sender cannot be overtaken by those of a stream that becomes urgent later,
//! so it takes few, as TCP does with `TCP_NOTSENT_LOWAT`. With too few, it has nothing to send
//! before the application runs again.

use std::time::Duration;

/// The least limit. It fills a window of slow start once more, and a burst of the pacer.
const LEAST: u64 = 16 << 10;
/// The greatest limit. It bounds the memory, and is the rule's result at 840 Mbit/s.
const MOST: u64 = 1 << 20;
/// The time in which the path carries the bytes of the limit.
const TIME: Duration = Duration::from_millis(10);

/// Returns the number of unsent bytes at which a sender with this window and round trip takes no
/// more.
pub fn unsent_limit(window: u64, round_trip: Option<Duration>) -> u64 {
    let round_trip = round_trip.unwrap_or(TIME).max(Duration::from_micros(1));
    let bytes = window as f64 * TIME.as_secs_f64() / round_trip.as_secs_f64();
    (bytes as u64).clamp(LEAST, MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsent_limit_follows_the_rate() {
        let ms = |ms| Some(Duration::from_millis(ms));
        assert_eq!(unsent_limit(14_000, ms(600)), LEAST);
        assert_eq!(unsent_limit(14_000, None), LEAST, "no round trip is known");
        assert_eq!(unsent_limit(5_000_000, ms(400)), 125_000);
        assert_eq!(unsent_limit(5_000_000, Some(Duration::ZERO)), MOST);
    }
}

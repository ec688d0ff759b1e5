//! The round trip that a handshake shows.

use std::time::{Duration, Instant};

/// The wait of an end for the answer to its first flight.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Waits {
    /// The time at which the first flight has left.
    begun: Option<Instant>,
    /// The first time after that at which a packet has left.
    again: Option<Instant>,
}

impl Waits {
    /// Notes that a packet of the handshake leaves.
    pub(crate) fn on_packet(&mut self, now: Instant) {
        let begun = *self.begun.get_or_insert(now);
        if begun < now {
            self.again.get_or_insert(now);
        }
    }

    /// Returns the round trip at the end of the handshake, which contains the computations of the
    /// peer. Returns `None` if a packet left after the first flight and before this time: it may
    /// have been repeated, and the answer does not tell which copy it answers (Karn's algorithm).
    pub(crate) fn round_trip(self, now: Instant) -> Option<Duration> {
        let is_first = self.again.is_none_or(|again| again == now);
        let begun = self.begun.filter(|_| is_first)?;
        Some(now.saturating_duration_since(begun))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn answer_to_the_first_flight_shows_the_round_trip() {
        let start = Instant::now();
        let mut waits = Waits::default();
        assert_eq!(waits.round_trip(start), None);
        waits.on_packet(start);
        waits.on_packet(start);
        assert_eq!(waits.round_trip(start + 90 * MS), Some(90 * MS));
        // A client ends the handshake with a flight of its own.
        waits.on_packet(start + 90 * MS);
        assert_eq!(waits.round_trip(start + 90 * MS), Some(90 * MS));
    }

    #[test]
    fn answer_to_a_repeated_flight_shows_nothing() {
        let start = Instant::now();
        let mut waits = Waits::default();
        waits.on_packet(start);
        waits.on_packet(start + 1000 * MS);
        waits.on_packet(start + 1090 * MS);
        assert_eq!(waits.round_trip(start + 1090 * MS), None);
    }
}

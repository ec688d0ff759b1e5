//! The streams of the peer whose first byte, the kind, has not arrived yet.
//!
//! They hold memory, and no session knows them, so their time is limited. Time without datagrams
//! does not count: the peer could not repeat the byte. The association ends after a longer silence.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tandem_tunnel::StreamId;

/// The time for the first byte of a stream. Segments behind it have arrived, so the peer repeats it
/// soon.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The most time that counts between two datagrams.
const LONGEST_GAP: Duration = Duration::from_secs(5);

/// Streams with the times at which they opened, on a clock that stops while no datagram arrives.
#[derive(Debug, Default)]
pub(crate) struct Unknown {
    streams: HashMap<StreamId, Duration>,
    /// The arrival of the last datagram, and the clock at that time.
    heard: Option<(Instant, Duration)>,
}

impl Unknown {
    /// Notes that datagrams have arrived.
    pub(crate) fn hear(&mut self, now: Instant) {
        self.heard = Some((now, self.clock(now)));
    }

    fn clock(&self, now: Instant) -> Duration {
        self.heard.map_or(Duration::ZERO, |(at, clock)| {
            clock + now.saturating_duration_since(at).min(LONGEST_GAP)
        })
    }

    /// Adds a stream, of which a datagram has just arrived.
    pub(crate) fn insert(&mut self, id: StreamId, now: Instant) {
        self.hear(now);
        self.streams.insert(id, self.clock(now));
    }

    pub(crate) fn remove(&mut self, id: StreamId) {
        self.streams.remove(&id);
    }

    pub(crate) fn contains(&self, id: StreamId) -> bool {
        self.streams.contains_key(&id)
    }

    /// Returns the time at which [`Self::take_late`] must be called if no datagram arrives before,
    /// if there is one.
    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        let (at, clock) = self.heard?;
        let opened = self.streams.values().min()?;
        let left = (*opened + TIMEOUT).saturating_sub(clock);
        (left <= LONGEST_GAP).then(|| at + left)
    }

    /// Takes out the streams whose time is over.
    pub(crate) fn take_late(&mut self, now: Instant) -> Vec<StreamId> {
        let clock = self.clock(now);
        let is_late = |_: &StreamId, opened: &mut Duration| *opened + TIMEOUT <= clock;
        let late = self.streams.extract_if(is_late);
        late.map(|(id, _)| id).collect()
    }
}

#[cfg(test)]
mod tests {
    use tandem_tunnel::{Config, Side, Tunnel};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn streams() -> [StreamId; 3] {
        let mut tunnel = Tunnel::new(Side::Server, Config::default(), Duration::ZERO);
        [(); 3].map(|()| tunnel.open(Duration::ZERO).expect("an open tunnel"))
    }

    #[test]
    fn streams_without_a_kind_expire_one_after_another() {
        let (ids, begun) = (streams(), Instant::now());
        let mut unknown = Unknown::default();
        assert_eq!(unknown.next_expiry(), None);
        for (seconds, id) in (0..).zip(ids) {
            unknown.insert(id, begun + seconds * SECOND);
        }
        unknown.remove(ids[0]);
        for seconds in 3..=57 {
            unknown.hear(begun + seconds * SECOND);
        }
        let due = begun + SECOND + TIMEOUT;
        assert_eq!(unknown.next_expiry(), Some(due));
        assert!(unknown.take_late(due - Duration::from_millis(1)).is_empty());
        assert_eq!(unknown.take_late(due), [ids[1]]);
        assert!(unknown.contains(ids[2]) && !unknown.contains(ids[1]));
    }

    #[test]
    fn stream_clock_stops_while_no_datagram_arrives() {
        let (ids, mut now) = (streams(), Instant::now());
        let mut unknown = Unknown::default();
        unknown.insert(ids[0], now);
        now += 70 * SECOND;
        assert_eq!(unknown.next_expiry(), None, "no timer runs");
        assert!(unknown.take_late(now).is_empty());
        unknown.hear(now);
        assert!(unknown.take_late(now).is_empty(), "the path is back");
        // The rest of the time counts from then on.
        let expired = (1..60).find(|_| {
            now += SECOND;
            unknown.hear(now);
            !unknown.take_late(now).is_empty()
        });
        assert_eq!(expired, Some(55));
    }
}

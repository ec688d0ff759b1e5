//! The streams of the peer whose first byte, the kind, has not arrived yet.
//!
//! They hold memory, and no session knows them, so their time is limited.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tandem_tunnel::StreamId;

/// The time for the first byte of a stream. Segments behind it have arrived, so the peer repeats it
/// soon, unless the path is lost.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Streams with the times at which they opened.
#[derive(Debug, Default)]
pub(crate) struct Unknown(HashMap<StreamId, Instant>);

impl Unknown {
    pub(crate) fn insert(&mut self, id: StreamId, now: Instant) {
        self.0.insert(id, now);
    }

    pub(crate) fn remove(&mut self, id: StreamId) {
        self.0.remove(&id);
    }

    pub(crate) fn contains(&self, id: StreamId) -> bool {
        self.0.contains_key(&id)
    }

    /// Returns the time at which [`Self::take_late`] must be called, if any.
    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        self.0.values().min().map(|opened| *opened + TIMEOUT)
    }

    /// Takes out the streams whose time is over.
    pub(crate) fn take_late(&mut self, now: Instant) -> Vec<StreamId> {
        let is_late = |_: &StreamId, opened: &mut Instant| *opened + TIMEOUT <= now;
        self.0.extract_if(is_late).map(|(id, _)| id).collect()
    }
}

#[cfg(test)]
mod tests {
    use tandem_tunnel::{Config, Side, Tunnel};

    use super::*;

    #[test]
    fn streams_without_a_kind_expire_one_after_another() {
        let mut tunnel = Tunnel::new(Side::Server, Config::default(), Duration::ZERO);
        let ids = [(); 3].map(|()| tunnel.open(Duration::ZERO).expect("an open tunnel"));
        let (begun, mut unknown) = (Instant::now(), Unknown::default());
        assert_eq!(unknown.next_expiry(), None);
        for (seconds, id) in (0..).zip(ids) {
            unknown.insert(id, begun + Duration::from_secs(seconds));
        }
        unknown.remove(ids[0]);
        let due = begun + Duration::from_secs(1) + TIMEOUT;
        assert_eq!(unknown.next_expiry(), Some(due));
        assert!(unknown.take_late(due - Duration::from_millis(1)).is_empty());
        assert_eq!(unknown.take_late(due), [ids[1]]);
        assert!(unknown.contains(ids[2]) && !unknown.contains(ids[1]));
    }
}

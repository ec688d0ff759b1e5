//! The records that a gateway accepts: those of other gateways with the same key, each once, and
//! none that has expired.
//!
//! The log may repeat records, reorder those of different gateways, or return after a loss with old
//! ones. The inbox remembers the last sequence number of each gateway. It forgets a gateway no
//! sooner than all of its records have expired.

use std::collections::HashMap;

use crate::key::FleetKey;
use crate::record::{Content, GatewayId, Record, RecordError};

/// The time after which a record is no longer accepted, in seconds.
pub const LIFETIME: u64 = 24 * 60 * 60;

/// The difference between the clocks of two gateways that is tolerated, in seconds.
const CLOCK_SKEW: u64 = 5 * 60;

/// The most gateways that are remembered. A gateway that starts again counts as another one.
const MAX_GATEWAYS: usize = 1024;

/// The reason for which a record is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The gateway wrote the record itself.
    Own,
    /// The record, or a later one of its gateway, was accepted before.
    Repeated,
    /// The record is older than [`LIFETIME`], or than the knowledge that the gateway began with.
    Expired,
    /// The record is from the future: the clock of a gateway is wrong.
    Clock,
    /// The bytes are no record of this version.
    Foreign,
    /// The record was changed, or written with another key.
    Forged,
    /// The record has a malformed content.
    Malformed,
    /// The record is of a kind that only a later version knows.
    Unknown,
}

/// The state of the records of one other gateway.
#[derive(Debug, Clone, Copy)]
struct Peer {
    /// The last accepted sequence number.
    last: u64,
    /// The time of the latest record.
    time: u64,
}

/// The filter of received records.
#[derive(Debug)]
pub struct Inbox {
    key: FleetKey,
    own: GatewayId,
    peers: HashMap<GatewayId, Peer>,
    /// The time from which on records of unknown gateways are accepted, in seconds since 1970.
    since: u64,
}

impl Inbox {
    /// Creates the filter of the gateway `own`. Records from before `since`, in seconds since 1970,
    /// are not accepted: the gateway has their content already.
    #[must_use]
    pub fn new(key: FleetKey, own: GatewayId, since: u64) -> Self {
        Self {
            key,
            own,
            peers: HashMap::new(),
            since,
        }
    }

    /// Returns the number of other gateways whose records were accepted within [`LIFETIME`].
    #[must_use]
    pub fn gateways(&self, now: u64) -> usize {
        let live = self.peers.values();
        live.filter(|peer| peer.time + LIFETIME > now).count()
    }

    /// Checks a record from the log at the time `now`, in seconds since 1970. Returns its content
    /// at the first time.
    ///
    /// # Errors
    /// Returns the reason for which the record is ignored.
    pub fn accept(&mut self, now: u64, bytes: &[u8]) -> Result<Content, Refusal> {
        let record = Record::open(&self.key, bytes).map_err(|error| match error {
            RecordError::Foreign => Refusal::Foreign,
            RecordError::Forged => Refusal::Forged,
            RecordError::Malformed => Refusal::Malformed,
        })?;
        if record.gateway == self.own {
            return Err(Refusal::Own);
        }
        if record.time > now.saturating_add(CLOCK_SKEW) {
            return Err(Refusal::Clock);
        }
        if record.time.saturating_add(LIFETIME) <= now || record.time < self.since {
            return Err(Refusal::Expired);
        }
        let known = self.peers.get(&record.gateway);
        if known.is_some_and(|peer| peer.last >= record.sequence) {
            return Err(Refusal::Repeated);
        }
        if known.is_none() {
            self.make_room(now);
        }
        let peer = Peer {
            last: record.sequence,
            time: record.time,
        };
        self.peers.insert(record.gateway, peer);
        match record.content {
            Content::Unknown(_) => Err(Refusal::Unknown),
            content => Ok(content),
        }
    }

    /// Forgets a gateway if there are too many. Older records of forgotten gateways must not be
    /// accepted again, so those of all unknown ones expire.
    fn make_room(&mut self, now: u64) {
        if self.peers.len() < MAX_GATEWAYS {
            return;
        }
        self.peers.retain(|_, peer| peer.time + LIFETIME > now);
        while self.peers.len() >= MAX_GATEWAYS {
            let oldest = self.peers.iter().min_by_key(|(_, peer)| peer.time);
            let Some((&oldest, &peer)) = oldest else {
                return;
            };
            self.peers.remove(&oldest);
            self.since = self.since.max(peer.time + 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::key::test_key;
    use crate::record::Sealer;

    const NOW: u64 = 1_700_000_000;

    fn sealer(number: u16) -> Sealer {
        Sealer::new(&test_key(1), id(number))
    }

    fn id(number: u16) -> GatewayId {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&number.to_be_bytes());
        GatewayId(bytes)
    }

    fn inbox() -> Inbox {
        Inbox::new(test_key(1), id(0), 0)
    }

    fn sealed(sealer: &mut Sealer, time: u64) -> Vec<u8> {
        sealer
            .seal(time, &Content::Gains(b"gains".to_vec()))
            .expect("short")
    }

    #[test]
    fn inbox_accepts_records_of_others_once() {
        let (mut inbox, mut other) = (inbox(), sealer(1));
        let record = sealed(&mut other, NOW);
        assert_eq!(
            inbox.accept(NOW, &record),
            Ok(Content::Gains(b"gains".to_vec()))
        );
        assert_eq!(inbox.accept(NOW, &record), Err(Refusal::Repeated));
        assert_eq!(
            inbox.accept(NOW, &sealed(&mut sealer(0), NOW)),
            Err(Refusal::Own)
        );
        assert_eq!(inbox.gateways(NOW), 1);
        assert_eq!(inbox.gateways(NOW + LIFETIME), 0);
    }

    #[test]
    fn inbox_refuses_other_keys_and_changed_bytes() {
        let mut inbox = inbox();
        let foreign = test_key(2);
        let record = sealed(&mut Sealer::new(&foreign, id(1)), NOW);
        assert_eq!(inbox.accept(NOW, &record), Err(Refusal::Forged));
        let mut changed = sealed(&mut sealer(1), NOW);
        *changed.last_mut().expect("not empty") ^= 1;
        assert_eq!(inbox.accept(NOW, &changed), Err(Refusal::Forged));
        assert_eq!(inbox.accept(NOW, b"something else"), Err(Refusal::Foreign));
        let later = sealer(1).seal(NOW, &Content::Unknown(9)).expect("short");
        assert_eq!(inbox.accept(NOW, &later), Err(Refusal::Unknown));
    }

    #[test]
    fn inbox_refuses_records_outside_their_time() {
        let mut inbox = Inbox::new(test_key(1), id(0), NOW);
        let mut accept = |time, now| {
            let content = inbox.accept(now, &sealed(&mut sealer(time as u16), time));
            content.err()
        };
        assert_eq!(
            accept(NOW - 1, NOW),
            Some(Refusal::Expired),
            "known from a file"
        );
        assert_eq!(accept(NOW, NOW + LIFETIME), Some(Refusal::Expired));
        assert_eq!(accept(NOW + CLOCK_SKEW + 1, NOW), Some(Refusal::Clock));
        assert_eq!(accept(NOW + CLOCK_SKEW, NOW), None);
    }

    #[test]
    fn forgotten_gateways_are_not_heard_again() {
        let mut inbox = inbox();
        let records: Vec<_> = (1..=MAX_GATEWAYS as u16 + 8)
            .map(|number| sealed(&mut sealer(number), NOW + u64::from(number)))
            .collect();
        let now = NOW + 2 * MAX_GATEWAYS as u64;
        for record in &records {
            assert!(inbox.accept(now, record).is_ok());
        }
        assert!(inbox.peers.len() <= MAX_GATEWAYS);
        for record in &records {
            assert!(inbox.accept(now, record).is_err());
        }
    }

    proptest! {
        #[test]
        fn each_record_counts_once_in_any_log(
            gateways in prop::collection::vec(1..5_u16, 1..40),
            repeats in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
        ) {
            let mut sealers: HashMap<u16, Sealer> = HashMap::new();
            let records: Vec<_> = gateways
                .iter()
                .map(|&number| {
                    sealed(sealers.entry(number).or_insert_with(|| sealer(number)), NOW)
                })
                .collect();
            // The log keeps the order of a gateway's records, and may show any of them again.
            let mut inbox = inbox();
            let mut accepted = 0;
            for (at, record) in records.iter().enumerate() {
                accepted += usize::from(inbox.accept(NOW, record).is_ok());
                for again in repeats.iter().take(3) {
                    let again = &records[again.index(at + 1)];
                    prop_assert_eq!(inbox.accept(NOW, again), Err(Refusal::Repeated));
                }
            }
            prop_assert_eq!(accepted, records.len());
        }
    }
}

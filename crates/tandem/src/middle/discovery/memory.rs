//! The memory of announced gateways: a pure state machine. Events go in with their times, and the
//! way of the next request comes out.
//!
//! ```text
//!              announced            request              tried: works
//!  (unknown) ───────────▶ Known ───────────▶ Trying ───────────────────▶ Up
//!      ▲                    ▲                  │ tried: fails              │ failed, or closed soon
//!      │ idle, expired      │ announced        ▼                           │
//!      └────────────────────┴────────────── Resting ◀──────────────────────┘
//! ```
//!
//! Each isolation key has a separate memory. Therefore an announcement that one key received never
//! changes the requests of another, and two keys cannot be linked by it.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::announcement::{AnnouncedWay, Site};
use crate::endpoint::Endpoint;
use crate::exchange::Isolation;

/// The largest number of sites with a gateway. A new one replaces the one without a request for
/// longest.
pub const MAX_SITES: usize = 256;

/// The largest number of sites of one isolation key, so that no key takes the places of others.
pub const MAX_SITES_OF_KEY: usize = 16;

/// The time without a request after which a site is forgotten.
pub const IDLE: Duration = Duration::from_secs(600);

/// The time for which a gateway is left alone after its first failure. Each further failure doubles
/// it.
pub const FIRST_REST: Duration = Duration::from_secs(30);

/// The longest such time.
pub const LONGEST_REST: Duration = Duration::from_secs(3600);

/// The time after which a gateway counts as one that works. Earlier closes are failures, and
/// earlier failures are remembered.
pub const PROBATION: Duration = Duration::from_secs(10);

/// A site in the view of one isolation key.
pub type SiteOfKey = (Isolation, Site);

/// The way of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Decision<L> {
    /// The way as without a gateway.
    Direct,
    /// The way as without a gateway. Beside the request, a session with the gateway is tried, and
    /// [`Memory::tried`] receives the result with the number of the trial.
    Try(Vec<Endpoint>, u64),
    /// The gateway, and the number of its trial for [`Memory::failed`].
    Gateway(L, u64),
}

/// The memory. `L` is a gateway that works.
#[derive(Debug)]
pub struct Memory<L> {
    entries: HashMap<SiteOfKey, Entry<L>>,
    /// The number of the last trial.
    trials: u64,
    /// The gateways that are no longer used.
    dropped: Vec<L>,
}

#[derive(Debug)]
struct Entry<L> {
    state: State<L>,
    /// The failures since the gateway last worked.
    failures: u32,
    used: Instant,
}

#[derive(Debug)]
enum State<L> {
    Known(Offer),
    Trying(Offer, u64),
    Up {
        offer: Offer,
        gateway: L,
        trial: u64,
        since: Instant,
    },
    Resting {
        until: Instant,
    },
}

/// The ways of an announcement that has not expired.
#[derive(Clone, Debug)]
struct Offer {
    ways: Vec<Endpoint>,
    expires: Instant,
}

impl<L> State<L> {
    fn offer(&self) -> Option<&Offer> {
        match self {
            Self::Known(offer) | Self::Trying(offer, _) | Self::Up { offer, .. } => Some(offer),
            Self::Resting { .. } => None,
        }
    }
}

impl<L> Default for Memory<L> {
    fn default() -> Self {
        Self {
            entries: HashMap::new(),
            trials: 0,
            dropped: Vec::new(),
        }
    }
}

impl<L: Clone> Memory<L> {
    /// Chooses the way of a request. `is_live` returns true if the session with a gateway is open.
    pub fn request(
        &mut self,
        key: &SiteOfKey,
        now: Instant,
        is_live: impl FnOnce(&L) -> bool,
    ) -> Decision<L> {
        let Some(entry) = self.entries.get_mut(key) else {
            return Decision::Direct;
        };
        if entry
            .state
            .offer()
            .is_some_and(|offer| offer.expires <= now)
        {
            self.forget(key);
            return Decision::Direct;
        }
        entry.used = now;
        let offer = match &entry.state {
            State::Trying(..) | State::Resting { .. } => return Decision::Direct,
            State::Known(offer) => offer.clone(),
            State::Up {
                offer,
                gateway,
                trial,
                since,
            } => {
                let has_lasted = now.duration_since(*since) >= PROBATION;
                if is_live(gateway) {
                    if has_lasted {
                        entry.failures = 0;
                    }
                    return Decision::Gateway(gateway.clone(), *trial);
                }
                let offer = offer.clone();
                if !has_lasted {
                    self.fail(key, now);
                    return Decision::Direct;
                }
                offer
            }
        };
        self.trials += 1;
        let (ways, trial) = (offer.ways.clone(), self.trials);
        self.replace(key, State::Trying(offer, trial));
        Decision::Try(ways, trial)
    }

    /// Notes the announcement in a response. While a gateway is in use, only its own ways are
    /// renewed. A failed one is left alone until its rest is over.
    pub fn announced(&mut self, key: &SiteOfKey, announced: &[AnnouncedWay], now: Instant) {
        let lifetime = announced.iter().map(|way| way.lifetime).min();
        let Some(lifetime) = lifetime else { return };
        let new = Offer {
            ways: announced.iter().map(|way| way.endpoint.clone()).collect(),
            expires: now + lifetime,
        };
        let Some(entry) = self.entries.get_mut(key) else {
            self.make_room(&key.0);
            let entry = Entry {
                state: State::Known(new),
                failures: 0,
                used: now,
            };
            self.entries.insert(key.clone(), entry);
            return;
        };
        match &mut entry.state {
            State::Known(offer) => *offer = new,
            State::Trying(offer, _) | State::Up { offer, .. } if offer.ways == new.ways => {
                *offer = new;
            }
            State::Resting { until } if *until <= now => entry.state = State::Known(new),
            State::Trying(..) | State::Up { .. } | State::Resting { .. } => {}
        }
    }

    /// Notes that the site has no gateway any more. The rest after a failure continues.
    pub fn cleared(&mut self, key: &SiteOfKey) {
        let has_offer = |entry: &Entry<L>| entry.state.offer().is_some();
        if self.entries.get(key).is_some_and(has_offer) {
            self.forget(key);
        }
    }

    /// Notes the result of a trial: the gateway, or `None` if it does not work.
    pub fn tried(&mut self, key: &SiteOfKey, trial: u64, gateway: Option<L>, now: Instant) {
        let state = self.entries.get(key).map(|entry| &entry.state);
        let offer = match state {
            Some(State::Trying(offer, number)) if *number == trial => offer.clone(),
            _ => {
                self.dropped.extend(gateway);
                return;
            }
        };
        match gateway {
            None => self.fail(key, now),
            Some(gateway) => {
                let since = now;
                self.replace(
                    key,
                    State::Up {
                        offer,
                        gateway,
                        trial,
                        since,
                    },
                );
            }
        }
    }

    /// Notes that a gateway in use failed. Returns false if that is known.
    pub fn failed(&mut self, key: &SiteOfKey, trial: u64, now: Instant) -> bool {
        let state = self.entries.get(key).map(|entry| &entry.state);
        let is_new = matches!(state, Some(State::Up { trial: number, .. }) if *number == trial);
        if is_new {
            self.fail(key, now);
        }
        is_new
    }

    /// Forgets expired announcements and sites without requests.
    pub fn sweep(&mut self, now: Instant) {
        let is_over = |entry: &Entry<L>| {
            let expires = entry.state.offer().map(|offer| offer.expires);
            let idle = now.duration_since(entry.used) >= IDLE;
            let rests = matches!(entry.state, State::Resting { until } if until > now);
            expires.is_some_and(|expires| expires <= now) || idle && !rests
        };
        let over = self.entries.extract_if(|_, entry| is_over(entry));
        let over: Vec<_> = over.map(|(_, entry)| entry.state).collect();
        over.into_iter().for_each(|state| self.drop_state(state));
    }

    /// Returns the gateways in use.
    pub fn gateways(&self) -> impl Iterator<Item = &L> {
        self.entries
            .values()
            .filter_map(|entry| match &entry.state {
                State::Up { gateway, .. } => Some(gateway),
                _ => None,
            })
    }

    /// Takes the gateways that are no longer used out of the memory. The caller drops them when the
    /// memory is not borrowed.
    #[must_use]
    pub fn take_dropped(&mut self) -> Vec<L> {
        std::mem::take(&mut self.dropped)
    }

    fn fail(&mut self, key: &SiteOfKey, now: Instant) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        let doublings = entry.failures.min(16);
        entry.failures = entry.failures.saturating_add(1);
        let rest = FIRST_REST.saturating_mul(1 << doublings).min(LONGEST_REST);
        self.replace(key, State::Resting { until: now + rest });
    }

    fn replace(&mut self, key: &SiteOfKey, state: State<L>) {
        if let Some(entry) = self.entries.get_mut(key) {
            let old = std::mem::replace(&mut entry.state, state);
            self.drop_state(old);
        }
    }

    fn forget(&mut self, key: &SiteOfKey) {
        if let Some(entry) = self.entries.remove(key) {
            self.drop_state(entry.state);
        }
    }

    fn drop_state(&mut self, state: State<L>) {
        if let State::Up { gateway, .. } = state {
            self.dropped.push(gateway);
        }
    }

    /// Forgets the sites without a request for longest, first those of the same key.
    fn make_room(&mut self, isolation: &Isolation) {
        let own = |(key, _): &(&SiteOfKey, &Entry<L>)| key.0 == *isolation;
        let own_is_full = self.entries.iter().filter(own).count() >= MAX_SITES_OF_KEY;
        if !own_is_full && self.entries.len() < MAX_SITES {
            return;
        }
        let candidates = self.entries.iter().filter(|it| !own_is_full || own(it));
        let oldest = candidates.min_by_key(|(_, entry)| entry.used);
        if let Some(key) = oldest.map(|(key, _)| key.clone()) {
            self.forget(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use tandem_http::Scheme;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn key(user: &str, host: &str) -> SiteOfKey {
        let site = Site {
            scheme: Scheme::Http,
            host: host.to_owned(),
            port: 80,
        };
        (Isolation::new(user.as_bytes(), b""), site)
    }

    fn way(port: u16, lifetime: Duration) -> Vec<AnnouncedWay> {
        let endpoint = format!("h2+tcp://a.onion:{port}");
        let endpoint = endpoint.parse().expect("an endpoint");
        vec![AnnouncedWay { endpoint, lifetime }]
    }

    /// Announces a gateway at port 1, and returns the number of the trial of the next request.
    fn begin(memory: &mut Memory<u32>, key: &SiteOfKey, now: Instant) -> u64 {
        memory.announced(key, &way(1, HOUR), now);
        match memory.request(key, now, |_| false) {
            Decision::Try(ways, trial) => {
                assert_eq!(ways[0].port, 1);
                trial
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn gateway_is_used_once_its_trial_succeeds() {
        let (mut memory, now) = (Memory::default(), Instant::now());
        let key = key("u", "a.onion");
        assert_eq!(memory.request(&key, now, |_| true), Decision::Direct);
        let trial = begin(&mut memory, &key, now);
        // No request waits for the trial, and there is one trial at a time.
        assert_eq!(memory.request(&key, now, |_| true), Decision::Direct);
        memory.announced(&key, &way(2, HOUR), now);
        assert_eq!(memory.request(&key, now, |_| true), Decision::Direct);
        memory.tried(&key, trial, Some(7), now);
        let used = Decision::Gateway(7, trial);
        assert_eq!(memory.request(&key, now, |_| true), used);
        memory.announced(&key, &way(2, HOUR), now);
        assert_eq!(memory.request(&key, now, |_| true), used);
        assert_eq!(memory.gateways().copied().collect::<Vec<_>>(), [7]);
    }

    #[test]
    fn gateway_belongs_to_one_key_and_one_origin() {
        let (mut memory, now) = (Memory::default(), Instant::now());
        let first = key("u", "a.onion");
        let trial = begin(&mut memory, &first, now);
        memory.tried(&first, trial, Some(7), now);
        let mut other_port = first.clone();
        other_port.1.port = 8080;
        let mut secure = first.clone();
        secure.1.scheme = Scheme::Https;
        for other in [key("v", "a.onion"), key("u", "b.onion"), other_port, secure] {
            assert_eq!(memory.request(&other, now, |_| true), Decision::Direct);
        }
    }

    #[test]
    fn failed_gateway_rests_for_longer_each_time() {
        let (mut memory, mut now) = (Memory::<u32>::default(), Instant::now());
        let key = key("u", "a.onion");
        let mut rests = Vec::new();
        for _ in 0..9 {
            let trial = begin(&mut memory, &key, now);
            memory.tried(&key, trial, None, now);
            let begun = now;
            while !matches!(memory.request(&key, now, |_| false), Decision::Try(..)) {
                now += Duration::from_secs(10);
                memory.announced(&key, &way(1, HOUR), now);
                memory.sweep(now);
            }
            rests.push(now.duration_since(begun).as_secs());
            let trial = memory.trials;
            // This failure counts too.
            memory.tried(&key, trial, Some(1), now);
            assert!(memory.failed(&key, trial, now) && !memory.failed(&key, trial, now));
            now += LONGEST_REST;
        }
        assert_eq!(rests[..3], [30, 120, 480]);
        assert_eq!(rests[8], LONGEST_REST.as_secs());
        assert_eq!(memory.take_dropped().len(), 9);
    }

    #[test]
    fn lasting_gateway_begins_without_failures() {
        let (mut memory, now) = (Memory::default(), Instant::now());
        let key = key("u", "a.onion");
        let trial = begin(&mut memory, &key, now);
        memory.tried(&key, trial, None, now);
        let later = now + FIRST_REST;
        let trial = begin(&mut memory, &key, later);
        memory.tried(&key, trial, Some(7), later);
        // A session that closes at once is a failure.
        assert_eq!(memory.request(&key, later, |_| false), Decision::Direct);
        memory.announced(&key, &way(1, HOUR), later + FIRST_REST);
        let soon = later + FIRST_REST;
        assert_eq!(memory.request(&key, soon, |_| true), Decision::Direct);
        let later = later + 2 * FIRST_REST;
        let trial = begin(&mut memory, &key, later);
        memory.tried(&key, trial, Some(8), later);
        let lasted = later + PROBATION;
        assert_eq!(
            memory.request(&key, lasted, |_| true),
            Decision::Gateway(8, trial)
        );
        // A session that closes later is replaced.
        let Decision::Try(_, next) = memory.request(&key, lasted, |_| false) else {
            panic!("no trial");
        };
        memory.tried(&key, next, None, lasted);
        let rested = lasted + FIRST_REST;
        memory.announced(&key, &way(1, HOUR), rested);
        assert!(matches!(
            memory.request(&key, rested, |_| false),
            Decision::Try(..)
        ));
        assert_eq!(memory.take_dropped(), [7, 8]);
    }

    #[test]
    fn announcement_ends_with_its_lifetime() {
        let (mut memory, now) = (Memory::default(), Instant::now());
        let key = key("u", "a.onion");
        let trial = begin(&mut memory, &key, now);
        memory.tried(&key, trial, Some(7), now);
        let used = Decision::Gateway(7, trial);
        let soon = now + HOUR - Duration::from_secs(1);
        assert_eq!(memory.request(&key, soon, |_| true), used);
        // The same ways are renewed.
        memory.announced(&key, &way(1, HOUR), soon);
        assert_eq!(memory.request(&key, now + HOUR, |_| true), used);
        memory.announced(&key, &way(2, 9 * HOUR), now + HOUR);
        assert_eq!(
            memory.request(&key, soon + HOUR, |_| true),
            Decision::Direct
        );
        assert_eq!(memory.take_dropped(), [7]);
        assert!(memory.entries.is_empty());
    }

    #[test]
    fn cleared_and_idle_sites_are_forgotten() {
        let (mut memory, now) = (Memory::default(), Instant::now());
        let (one, two, three) = (
            key("u", "a.onion"),
            key("u", "b.onion"),
            key("u", "c.onion"),
        );
        for (key, gateway) in [(&one, Some(1)), (&two, Some(2)), (&three, None)] {
            let trial = begin(&mut memory, key, now);
            memory.tried(key, trial, gateway, now);
        }
        memory.cleared(&one);
        memory.cleared(&three);
        assert_eq!(memory.take_dropped(), [1]);
        assert_eq!(
            memory.entries.len(),
            2,
            "a failure is not forgotten at once"
        );
        memory.sweep(now + IDLE);
        assert_eq!(memory.take_dropped(), [2]);
        assert!(memory.entries.is_empty());
    }

    #[test]
    fn late_trial_of_a_forgotten_site_is_dropped() {
        let (mut memory, now) = (Memory::default(), Instant::now());
        let key = key("u", "a.onion");
        let trial = begin(&mut memory, &key, now);
        memory.cleared(&key);
        let next = begin(&mut memory, &key, now);
        memory.tried(&key, trial, Some(7), now);
        assert_eq!(memory.take_dropped(), [7]);
        assert_eq!(memory.request(&key, now, |_| true), Decision::Direct);
        memory.tried(&key, next, Some(8), now);
        assert!(!memory.failed(&key, trial, now));
        assert_eq!(
            memory.request(&key, now, |_| true),
            Decision::Gateway(8, next)
        );
    }

    #[test]
    fn memory_is_bounded_for_each_key_and_overall() {
        let (mut memory, now) = (Memory::<u32>::default(), Instant::now());
        let second = Duration::from_secs(1);
        let victim = key("victim", "a.onion");
        memory.announced(&victim, &way(1, HOUR), now + 100 * second);
        for number in 0..50 {
            let host = format!("{number}.onion");
            memory.announced(
                &key("attacker", &host),
                &way(1, HOUR),
                now + number * second,
            );
        }
        assert_eq!(memory.entries.len(), MAX_SITES_OF_KEY + 1);
        assert!(memory.entries.contains_key(&victim));
        for number in 0..1000 {
            let user = format!("u{number}");
            memory.announced(&key(&user, "a.onion"), &way(1, HOUR), now + 200 * second);
        }
        assert_eq!(memory.entries.len(), MAX_SITES);
    }
}

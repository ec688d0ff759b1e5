//! The memory of announced gateways: a pure state machine. Events go in with their times, and
//! the decision about the next request comes out.
//!
//! ```text
//!              announced            request              tried: works
//!  (unknown) ───────────▶ Known ───────────▶ Trying ───────────────────▶ Up
//!      ▲                    ▲                  │ tried: fails              │ failed, closed soon,
//!      │ idle, a day old    │ announced        ▼                           │ expired or cleared
//!      └────────────────────┴───────────── Suspended ◀─────────────────────┘
//! ```
//!
//! A site in state `Trying` is never forgotten. A gateway that was in use is suspended after its
//! end. Therefore a site cannot start trials faster by withdrawing and repeating its announcement.
//!
//! Each isolation key has a separate memory. Therefore an announcement that one key received never
//! changes the requests of another, and two keys cannot be linked by it. The same holds for the
//! parts of a key that are connections of a browser.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::announcement::{AnnouncedWay, MAX_LIFETIME, Site};
use crate::endpoint::Endpoint;
use crate::exchange::Isolation;

/// The largest number of sites with a gateway. A new one replaces the one without a request for
/// longest.
pub const MAX_SITES: usize = 256;

/// The largest number of sites of one isolation key, so that no key takes the places of others.
pub const MAX_SITES_OF_KEY: usize = 16;

/// The largest number of trials under way for one isolation key.
pub const MAX_TRIALS_OF_KEY: usize = 2;

/// The largest number of trials under way.
pub const MAX_TRIALS: usize = 16;

/// The number of exchanges in a row that a gateway may fail before it is suspended.
pub const MAX_MISSES: u32 = 3;

/// The longest time for which a site is remembered after its first announcement, even if it repeats
/// the announcement. A site could use the memory as a mark of the visitor for as long.
pub const MAX_AGE: Duration = MAX_LIFETIME;

/// The time without a request after which a site is forgotten.
pub const IDLE: Duration = Duration::from_secs(600);

/// The suspension of a gateway after its first failure. Each further failure doubles it.
pub const FIRST_SUSPENSION: Duration = Duration::from_secs(30);

/// The longest suspension.
pub const LONGEST_SUSPENSION: Duration = Duration::from_secs(3600);

/// The time after which a gateway counts as one that works. Earlier closes are failures, and
/// earlier failures are remembered.
pub const PROBATION: Duration = Duration::from_secs(10);

/// The longest time for which the resources of a page go without the gateway, because the page's
/// document did. A page may request resources for as long as it is open.
pub const PAGE: Duration = Duration::from_secs(30);

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
    /// The gateway, and the number of its trial for [`Memory::refused`], [`Memory::missed`] and
    /// [`Memory::served`].
    Gateway(L, u64),
}

/// The memory. `L` is a gateway that works.
#[derive(Debug)]
pub struct Memory<L> {
    entries: HashMap<SiteOfKey, GatewayEntry<L>>,
    /// The largest number of gateways in use or being tried.
    max_lanes: usize,
    /// The number of the last trial.
    trials: u64,
    /// The gateways that are no longer used.
    dropped: Vec<L>,
}

#[derive(Debug)]
struct GatewayEntry<L> {
    state: GatewayState<L>,
    /// The failures since the gateway last worked.
    failures: u32,
    /// The exchanges in a row that the gateway in use failed.
    misses: u32,
    /// The time of the first announcement.
    begun: Instant,
    used: Instant,
}

#[derive(Debug)]
enum GatewayState<L> {
    Known(Offer),
    Trying(Offer, u64),
    Up {
        offer: Offer,
        gateway: L,
        trial: u64,
        since: Instant,
        /// True once the gateway may serve resources of pages.
        has_page: bool,
    },
    /// The site has no gateway that may be used. An announcement counts after this time.
    Suspended {
        until: Instant,
    },
}

/// The ways of an announcement that has not expired.
#[derive(Clone, Debug)]
struct Offer {
    ways: Vec<Endpoint>,
    expires: Instant,
}

impl<L> GatewayState<L> {
    fn offer(&self) -> Option<&Offer> {
        match self {
            Self::Known(offer) | Self::Trying(offer, _) | Self::Up { offer, .. } => Some(offer),
            Self::Suspended { .. } => None,
        }
    }
}

impl<L> GatewayEntry<L> {
    fn is_trying(&self) -> bool {
        matches!(self.state, GatewayState::Trying(..))
    }

    fn is_old(&self, now: Instant) -> bool {
        now.duration_since(self.begun) >= MAX_AGE && !self.is_trying()
    }

    fn has_expired(&self, now: Instant) -> bool {
        let offer = self.state.offer();
        offer.is_some_and(|offer| offer.expires <= now)
    }

    /// Returns true if another site of the same key may take the place. Failures and recent use
    /// count against it, so that many sites cannot repeat their trials in turn.
    fn is_replaceable(&self, now: Instant) -> bool {
        self.failures == 0
            && match self.state {
                GatewayState::Known(_) => true,
                GatewayState::Trying(..) => false,
                GatewayState::Up { .. } => now.duration_since(self.used) >= FIRST_SUSPENSION,
                GatewayState::Suspended { until } => until <= now,
            }
    }
}

impl<L: Clone> Memory<L> {
    /// Creates an empty memory for at most `max_lanes` gateways in use or being tried.
    pub fn new(max_lanes: usize) -> Self {
        Self {
            entries: HashMap::new(),
            max_lanes,
            trials: 0,
            dropped: Vec::new(),
        }
    }

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
        if entry.is_old(now) {
            self.forget(key);
            return Decision::Direct;
        }
        entry.used = now;
        if entry.has_expired(now) {
            self.withdraw(key, now);
            return Decision::Direct;
        }
        match &entry.state {
            GatewayState::Trying(..) | GatewayState::Suspended { .. } => return Decision::Direct,
            GatewayState::Known(_) => {}
            GatewayState::Up {
                gateway,
                trial,
                since,
                ..
            } => {
                let has_lasted = now.duration_since(*since) >= PROBATION;
                if is_live(gateway) {
                    if has_lasted {
                        entry.failures = 0;
                    }
                    return Decision::Gateway(gateway.clone(), *trial);
                }
                if !has_lasted {
                    self.fail(key, now);
                    return Decision::Direct;
                }
            }
        }
        if !self.may_try(key) {
            return Decision::Direct;
        }
        let state = self.entries.get(key).map(|entry| &entry.state);
        let Some(offer) = state.and_then(GatewayState::offer).cloned() else {
            return Decision::Direct;
        };
        self.trials += 1;
        let (ways, trial) = (offer.ways.clone(), self.trials);
        self.replace(key, GatewayState::Trying(offer, trial));
        Decision::Try(ways, trial)
    }

    /// Returns whether the gateway in use gets a request. The resources of a page that came without
    /// the gateway go without it as well: the other way may have requested them early, and the
    /// gateway knows nothing of the page. `is_resource` is true for a resource of a page.
    pub fn is_for_gateway(&mut self, key: &SiteOfKey, is_resource: bool, now: Instant) -> bool {
        let state = self.entries.get_mut(key).map(|entry| &mut entry.state);
        let Some(GatewayState::Up {
            since, has_page, ..
        }) = state
        else {
            return false;
        };
        *has_page |= !is_resource || now.duration_since(*since) >= PAGE;
        *has_page
    }

    /// Notes the announcement in a response. While a gateway is in use, only its own ways are
    /// renewed. A failed one is not tried until its suspension is over.
    pub fn announced(&mut self, key: &SiteOfKey, announced: &[AnnouncedWay], now: Instant) {
        let lifetime = announced.iter().map(|way| way.lifetime).min();
        let Some(lifetime) = lifetime else { return };
        let mut new = Offer {
            ways: announced.iter().map(|way| way.endpoint.clone()).collect(),
            expires: now + lifetime.min(MAX_AGE),
        };
        let Some(entry) = self.entries.get_mut(key) else {
            if self.make_room(&key.0, now) {
                let entry = GatewayEntry {
                    state: GatewayState::Known(new),
                    failures: 0,
                    misses: 0,
                    begun: now,
                    used: now,
                };
                self.entries.insert(key.clone(), entry);
            }
            return;
        };
        new.expires = new.expires.min(entry.begun + MAX_AGE);
        match &mut entry.state {
            GatewayState::Known(offer) => *offer = new,
            GatewayState::Trying(offer, _) | GatewayState::Up { offer, .. }
                if offer.ways == new.ways =>
            {
                *offer = new;
            }
            GatewayState::Suspended { until } if *until <= now => {
                entry.state = GatewayState::Known(new)
            }
            GatewayState::Trying(..) | GatewayState::Up { .. } | GatewayState::Suspended { .. } => {
            }
        }
    }

    /// Ends the announcement of a site, and keeps its failures and its trial. A gateway that was in
    /// use is suspended, so that another announcement does not try it at once.
    pub fn withdraw(&mut self, key: &SiteOfKey, now: Instant) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        match &mut entry.state {
            GatewayState::Trying(offer, _) => offer.expires = offer.expires.min(now),
            GatewayState::Up { .. } => self.suspend(key, FIRST_SUSPENSION, now),
            GatewayState::Known(_) if entry.failures == 0 => self.forget(key),
            GatewayState::Known(_) => self.suspend(key, Duration::ZERO, now),
            GatewayState::Suspended { .. } => {}
        }
    }

    /// Notes the result of a trial: the gateway, or `None` if it does not work. A gateway is not
    /// used if its announcement has ended meanwhile.
    pub fn tried(&mut self, key: &SiteOfKey, trial: u64, gateway: Option<L>, now: Instant) {
        let state = self.entries.get(key).map(|entry| &entry.state);
        let offer = match state {
            Some(GatewayState::Trying(offer, number)) if *number == trial => offer.clone(),
            _ => {
                self.dropped.extend(gateway);
                return;
            }
        };
        match gateway {
            None => self.fail(key, now),
            Some(gateway) if offer.expires <= now => {
                self.dropped.push(gateway);
                self.suspend(key, FIRST_SUSPENSION, now);
            }
            Some(gateway) => {
                let since = now;
                self.replace(
                    key,
                    GatewayState::Up {
                        offer,
                        gateway,
                        trial,
                        since,
                        has_page: false,
                    },
                );
            }
        }
    }

    /// Notes that a gateway in use refuses the requests of its site. Returns false if it is not in
    /// use any more.
    pub fn refused(&mut self, key: &SiteOfKey, trial: u64, now: Instant) -> bool {
        let is_new = self.in_use(key, trial).is_some();
        if is_new {
            self.fail(key, now);
        }
        is_new
    }

    /// Notes that a gateway in use failed an exchange. `is_live` is true if its session is open.
    /// Returns true if the gateway is left for that: after some failures in a row, or if the
    /// session has ended.
    pub fn missed(&mut self, key: &SiteOfKey, trial: u64, is_live: bool, now: Instant) -> bool {
        let Some(entry) = self.in_use(key, trial) else {
            return false;
        };
        entry.misses += 1;
        let is_useless = entry.misses >= MAX_MISSES;
        if is_live && !is_useless {
            return false;
        }
        match &entry.state {
            // The session is replaced, as one that closed without an exchange.
            GatewayState::Up { offer, since, .. }
                if !is_useless && now.duration_since(*since) >= PROBATION =>
            {
                let offer = offer.clone();
                entry.failures = 0;
                self.replace(key, GatewayState::Known(offer));
            }
            _ => self.fail(key, now),
        }
        true
    }

    /// Notes that a gateway in use served an exchange completely.
    pub fn served(&mut self, key: &SiteOfKey, trial: u64) {
        if let Some(entry) = self.in_use(key, trial) {
            entry.misses = 0;
        }
    }

    /// Forgets sites without requests, and withdraws expired announcements.
    pub fn sweep(&mut self, now: Instant) {
        let is_over = |entry: &GatewayEntry<L>| {
            let is_idle = now.duration_since(entry.used) >= IDLE && !entry.is_trying();
            is_idle || entry.is_old(now)
        };
        let over = self.entries.extract_if(|_, entry| is_over(entry));
        let over: Vec<_> = over.map(|(_, entry)| entry.state).collect();
        over.into_iter().for_each(|state| self.drop_state(state));
        let expired = self.entries.iter().filter(|it| it.1.has_expired(now));
        let expired: Vec<_> = expired.map(|(key, _)| key.clone()).collect();
        expired.iter().for_each(|key| self.withdraw(key, now));
    }

    /// Forgets the sites of the parts of isolation keys that belong to a connection of a browser.
    /// The caller ends their trials, and a result that comes later is dropped.
    pub fn end_parts_of(&mut self, connection: u64) {
        let is_of = |key: &SiteOfKey| key.0.connection() == connection;
        let ended = self.entries.extract_if(|key, _| is_of(key));
        let ended: Vec<_> = ended.map(|(_, entry)| entry.state).collect();
        ended.into_iter().for_each(|state| self.drop_state(state));
    }

    /// Takes the gateways that are no longer used out of the memory. The caller drops them when the
    /// memory is not borrowed.
    #[must_use]
    pub fn take_dropped(&mut self) -> Vec<L> {
        std::mem::take(&mut self.dropped)
    }

    /// Returns the site, if its gateway is in use since this trial.
    fn in_use(&mut self, key: &SiteOfKey, trial: u64) -> Option<&mut GatewayEntry<L>> {
        let is_same = |state: &GatewayState<L>| match state {
            GatewayState::Up { trial: it, .. } => *it == trial,
            _ => false,
        };
        self.entries
            .get_mut(key)
            .filter(|entry| is_same(&entry.state))
    }

    /// Returns true if the limits permit another trial. The site's own gateway may be replaced.
    fn may_try(&self, key: &SiteOfKey) -> bool {
        let trials = self.entries.iter().filter(|(_, entry)| entry.is_trying());
        let of_key = trials.clone().filter(|(it, _)| it.0 == key.0).count();
        let others = self.entries.iter().filter(|(it, entry)| {
            let has_lane = matches!(
                entry.state,
                GatewayState::Trying(..) | GatewayState::Up { .. }
            );
            has_lane && *it != key
        });
        of_key < MAX_TRIALS_OF_KEY && trials.count() < MAX_TRIALS && others.count() < self.max_lanes
    }

    fn fail(&mut self, key: &SiteOfKey, now: Instant) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        let doublings = entry.failures.min(16);
        entry.failures = entry.failures.saturating_add(1);
        let suspension = FIRST_SUSPENSION
            .saturating_mul(1 << doublings)
            .min(LONGEST_SUSPENSION);
        self.suspend(key, suspension, now);
    }

    fn suspend(&mut self, key: &SiteOfKey, time: Duration, now: Instant) {
        self.replace(key, GatewayState::Suspended { until: now + time });
    }

    fn replace(&mut self, key: &SiteOfKey, state: GatewayState<L>) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.misses = 0;
            let old = std::mem::replace(&mut entry.state, state);
            self.drop_state(old);
        }
    }

    fn forget(&mut self, key: &SiteOfKey) {
        if let Some(entry) = self.entries.remove(key) {
            self.drop_state(entry.state);
        }
    }

    fn drop_state(&mut self, state: GatewayState<L>) {
        if let GatewayState::Up { gateway, .. } = state {
            self.dropped.push(gateway);
        }
    }

    /// Forgets the site without a request for longest if there is no place, first of the same key.
    /// Returns false if no site may be forgotten.
    fn make_room(&mut self, isolation: &Isolation, now: Instant) -> bool {
        let own = |(key, _): &(&SiteOfKey, &GatewayEntry<L>)| key.0 == *isolation;
        let own_is_full = self.entries.iter().filter(own).count() >= MAX_SITES_OF_KEY;
        if !own_is_full && self.entries.len() < MAX_SITES {
            return true;
        }
        let candidates = self.entries.iter().filter(|it| match own_is_full {
            true => own(it) && it.1.is_replaceable(now),
            false => !it.1.is_trying(),
        });
        let oldest = candidates.min_by_key(|(_, entry)| entry.used);
        let Some(key) = oldest.map(|(key, _)| key.clone()) else {
            return false;
        };
        self.forget(&key);
        true
    }
}

#[cfg(test)]
mod tests;

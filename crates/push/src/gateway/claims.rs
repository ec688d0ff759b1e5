//! The claims of a browser that may have a cache, and the fetches that they let begin.
//!
//! A claim shows that the browser's cache lacks a resource. The cache may be empty, or the resource
//! may be newer than the browser's last visit, as after a change of the site. The predictor knows
//! the time since which users have requested each resource of a page. A claim *speaks for* another
//! resource if it shows that the browser probably lacks that resource too. It speaks for resources
//! that became known at about the same time or later, and for no older ones. If the predictor knows
//! nothing about a page, each claim speaks for all of its resources. If the browser has shown no
//! sign of an earlier visit, each claim does so too.
//!
//! Several windows, with different cookies, may use one session. A claim speaks for fetches with
//! the cookies of a page only if it has such cookies itself. A request without cookies may come
//! from any window, so it speaks for fetches without cookies.

use std::collections::HashMap;
use std::time::Duration;

use crate::wire::RequestHashes;

/// The number of claims after which all resources for which they speak are sent.
pub(super) const ENOUGH_CLAIMS: usize = 4;

/// The number of bodies that the first claim releases. The n-th claim releases n times as many.
/// Three claims thus suffice for a median page of about 40 resources of one site, and a half-filled
/// cache wastes few bodies.
pub(super) const RELEASED_PER_CLAIM: usize = 8;

/// The seconds that may pass until users have requested all resources of a new page. Smaller
/// differences of age show the pace of visits, and no change of the site.
const TOLERANCE: i64 = 3600;

/// The browser that takes a push, as far as its cookies show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Claimant {
    /// The user of the page for which the push was made.
    User,
    /// Perhaps another user: another window, or the same one after a logout.
    Stranger,
}

impl Claimant {
    /// Returns the browser that takes a push whose request was `asked`. `cookies` is the hash of
    /// its cookies, unless the client knows that they fit.
    pub(super) fn of(cookies: Option<u32>, asked: RequestHashes) -> Self {
        let is_other = |cookies| cookies != asked.cookie() && asked.has_cookies();
        match cookies.is_some_and(is_other) {
            true => Self::Stranger,
            false => Self::User,
        }
    }
}

/// The time at which a resource became known to the predictor, in seconds since 1970, UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct KnownSince(i64);

impl KnownSince {
    #[cfg(test)]
    pub(super) const fn at(unix_time: i64) -> Self {
        Self(unix_time)
    }

    /// The resource is as old as any other.
    pub(super) const ALWAYS: Self = Self(i64::MIN);

    /// Returns whether a browser that lacks this resource is likely to lack the other one as well.
    const fn speaks_for(self, other: Self) -> bool {
        self.0 <= other.0.saturating_add(TOLERANCE)
    }
}

/// The ages of the resources of a page that users requested at earlier visits.
pub(super) struct KnownResources {
    /// The ages by the hashes of the URLs.
    ages: HashMap<u32, KnownSince>,
    /// The age of the other resources: the time at which the page was requested.
    new: KnownSince,
    /// The hashes of the URLs that nearly all visits transfer.
    likely: Vec<u32>,
}

impl Default for KnownResources {
    fn default() -> Self {
        Self {
            ages: HashMap::new(),
            new: KnownSince(i64::MAX),
            likely: Vec::new(),
        }
    }
}

impl KnownResources {
    /// Returns the resources of a page that is requested at `unix_time`, in seconds since 1970.
    /// `known` holds the hashes of their URLs, and the times for which the predictor has known
    /// them.
    pub(super) fn new(unix_time: u64, known: Vec<(u32, Duration)>) -> Self {
        let now = i64::try_from(unix_time).unwrap_or(i64::MAX);
        let since = |known_for: Duration| {
            let secs = i64::try_from(known_for.as_secs()).unwrap_or(i64::MAX);
            KnownSince(now.saturating_sub(secs))
        };
        let ages = known.into_iter();
        Self {
            ages: ages.map(|(hash, known)| (hash, since(known))).collect(),
            new: KnownSince(now),
            likely: Vec::new(),
        }
    }

    /// Returns the resources of a page whose request shows no earlier visit. Nearly all visits
    /// transfer the resources with the URL hashes in `likely`.
    pub(super) fn of_new_visit(likely: Vec<u32>) -> Self {
        Self {
            likely,
            ..Self::default()
        }
    }

    /// Returns whether nearly all visits transfer a resource.
    pub(super) fn is_likely(&self, hash: u32) -> bool {
        self.likely.contains(&hash)
    }

    /// Returns the age of a resource that waits for claims.
    pub(super) fn of(&self, hash: u32) -> KnownSince {
        self.ages.get(&hash).copied().unwrap_or(self.new)
    }

    /// Returns the age of a resource that was claimed.
    pub(super) fn of_claimed(&self, hash: u32) -> KnownSince {
        match self.ages.is_empty() {
            true => KnownSince::ALWAYS,
            false => self.of(hash),
        }
    }

    /// Returns the age of the oldest resource.
    pub(super) fn oldest(&self) -> KnownSince {
        self.ages.values().copied().min().unwrap_or(self.new)
    }
}

/// The claims at a site: the ages of the oldest resources that were claimed, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Claims(Vec<KnownSince>);

impl Claims {
    /// Counts the claim of a resource of this age.
    pub(super) fn add(&mut self, claimed: KnownSince) {
        let at = self.0.partition_point(|known| *known <= claimed);
        self.0.insert(at, claimed);
        self.0.truncate(ENOUGH_CLAIMS);
    }

    /// Returns whether all resources of this age and younger ones are sent.
    fn suffice_for(&self, resource: KnownSince) -> bool {
        self.speaking_for(resource) >= ENOUGH_CLAIMS
    }

    /// Returns whether the claims alone suffice for all resources for which this claim speaks.
    fn outweigh(&self, claimed: KnownSince) -> bool {
        let last = self.0.get(ENOUGH_CLAIMS - 1);
        last.is_some_and(|last| *last <= claimed)
    }

    fn speaking_for(&self, resource: KnownSince) -> usize {
        let claims = self.0.iter();
        claims.filter(|claim| claim.speaks_for(resource)).count()
    }
}

/// The trust that the browser lacks the resources of a page, which decides about their bodies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// All bodies are sent at once.
    Full,
    /// The bodies wait for more claims than these.
    After(Claims),
}

impl Trust {
    /// Returns the trust in a page after these claims. `oldest` is the age of its oldest resource.
    pub(super) fn after(claims: &Claims, oldest: KnownSince) -> Self {
        match claims.suffice_for(oldest) {
            true => Self::Full,
            false => Self::After(claims.clone()),
        }
    }
}

/// The fetches of a page that may begin although its resources wait for claims.
#[derive(Default)]
pub(super) struct Allowances {
    /// True if all fetches may begin.
    is_unlimited: bool,
    /// The claims at the site.
    claims: Claims,
    /// The ages of resources that were claimed, and the number of fetches for which each claim may
    /// still speak.
    left: Vec<(KnownSince, usize)>,
}

impl Allowances {
    /// Returns the allowances of a page after these claims at earlier pages of the site.
    pub(super) fn after(claims: Claims) -> Self {
        let left = claims.0.iter().zip(1..);
        let left = left.map(|(claimed, number)| (*claimed, released(number)));
        Self {
            is_unlimited: false,
            left: left.collect(),
            claims,
        }
    }

    /// Adds the fetches that the claim of a resource of this age permits. `trust` is the trust in
    /// the page after the claim.
    pub(super) fn add_claim(&mut self, trust: Trust, claimed: KnownSince) {
        let Trust::After(claims) = trust else {
            self.is_unlimited = true;
            return;
        };
        let number = claims.speaking_for(claimed);
        self.left.push((claimed, released(number)));
        // A page may have thousands of claims, and each walks all fetches that wait.
        self.left.retain(|(claimed, _)| !claims.outweigh(*claimed));
        self.claims = claims;
    }

    /// Returns whether the fetch of a resource may begin, and charges it to a claim.
    pub(super) fn admit(&mut self, resource: KnownSince) -> bool {
        if self.is_unlimited || self.claims.suffice_for(resource) {
            return true;
        }
        let left = self.left.iter_mut();
        let usable = left.filter(|(claimed, left)| *left > 0 && claimed.speaks_for(resource));
        // The claims of older resources may serve others.
        let Some((_, left)) = usable.max_by_key(|(claimed, _)| *claimed) else {
            return false;
        };
        *left -= 1;
        true
    }
}

/// Returns the number of bodies that the n-th claim releases.
const fn released(claim: usize) -> usize {
    RELEASED_PER_CLAIM * claim
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: KnownSince = KnownSince(1_700_000_000);

    /// The age of resources that are too old for the claims of new ones.
    const OLD: KnownSince = KnownSince(NEW.0 - TOLERANCE - 1);

    fn claims(claimed: &[KnownSince]) -> Claims {
        let mut claims = Claims::default();
        for claimed in claimed {
            claims.add(*claimed);
        }
        claims
    }

    /// Returns the number of fetches of resources of an age that may begin, up to 100.
    fn admitted(allowances: &mut Allowances, resource: KnownSince) -> usize {
        (0..100).take_while(|_| allowances.admit(resource)).count()
    }

    #[test]
    fn claims_release_more_and_more_bodies() {
        let mut claims = Claims::default();
        let mut allowances = Allowances::after(claims.clone());
        assert_eq!(admitted(&mut allowances, NEW), 0);
        for (released, on_next_page) in [(8, 8), (16, 24), (24, 48), (100, 100)] {
            let claimed = KnownSince::ALWAYS;
            claims.add(claimed);
            allowances.add_claim(Trust::after(&claims, OLD), claimed);
            assert_eq!(admitted(&mut allowances, OLD), released);
            let mut next = Allowances::after(claims.clone());
            assert_eq!(admitted(&mut next, NEW), on_next_page);
        }
    }

    #[test]
    fn claims_of_new_resources_release_no_old_ones() {
        let claims = claims(&[NEW; ENOUGH_CLAIMS]);
        assert!(claims.suffice_for(NEW) && !claims.suffice_for(OLD));
        let mut allowances = Allowances::after(claims);
        assert_eq!(admitted(&mut allowances, OLD), 0);
        let tolerated = KnownSince(OLD.0 + 1);
        assert_eq!(admitted(&mut allowances, tolerated), 100);
    }

    #[test]
    fn claims_of_old_resources_count_alone_for_old_ones() {
        let mut claims = claims(&[NEW; ENOUGH_CLAIMS]);
        let mut allowances = Allowances::after(claims.clone());
        for released in [8, 16, 24, 100] {
            claims.add(OLD);
            allowances.add_claim(Trust::after(&claims, OLD), OLD);
            assert_eq!(admitted(&mut allowances, OLD), released);
        }
        assert_eq!(claims.0, [OLD; ENOUGH_CLAIMS]);
    }

    #[test]
    fn new_resources_spend_the_claims_of_new_ones_first() {
        let mut allowances = Allowances::after(claims(&[NEW, OLD]));
        assert!((0..16).all(|_| allowances.admit(NEW)));
        assert_eq!(admitted(&mut allowances, OLD), 8);
        assert_eq!(admitted(&mut allowances, NEW), 0);
    }

    #[test]
    fn allowances_of_many_claims_are_bounded() {
        let mut claims = Claims::default();
        let mut allowances = Allowances::after(claims.clone());
        for number in 0..100 {
            for claimed in [NEW.0, NEW.0 + 100 - number, NEW.0 + number] {
                let claimed = KnownSince(claimed);
                claims.add(claimed);
                allowances.add_claim(Trust::after(&claims, OLD), claimed);
                assert!(allowances.left.len() < ENOUGH_CLAIMS);
            }
        }
        claims.add(OLD);
        allowances.add_claim(Trust::after(&claims, OLD), OLD);
        assert_eq!(admitted(&mut allowances, OLD), 8, "the claim of an old one");
    }

    #[test]
    fn claim_on_an_unknown_page_speaks_for_all() {
        let now = NEW.0.unsigned_abs();
        for unknown in [KnownResources::default(), KnownResources::new(now, vec![])] {
            assert_eq!(unknown.of_claimed(1), KnownSince::ALWAYS);
            assert_eq!(unknown.of(1), unknown.oldest());
        }
        let secs = |secs: i64| Duration::from_secs(secs.unsigned_abs());
        let ages = vec![(2, secs(7)), (3, secs(NEW.0 - OLD.0))];
        let known = KnownResources::new(now, ages);
        assert_eq!((known.of_claimed(1), known.of(1)), (NEW, NEW));
        assert_eq!((known.of_claimed(3), known.of(3)), (OLD, OLD));
        assert_eq!(known.of(2), KnownSince(NEW.0 - 7));
        assert_eq!(known.oldest(), OLD);
    }
}

//! The held fetches of one page, and the records that decide when they begin (see `holds`).

use std::collections::{HashMap, VecDeque};

use tandem_preload::Kind;

use super::claims::{Allowances, Claims, KnownSince, Trust};
use super::fetch::Fetch;
use super::table::FetchId;
use crate::url::directory;

/// Siblings count as unkept if there are this many claims of responses that no cache keeps for each
/// response that a cache can keep. At most about a ninth of the bodies is then wasted.
const UNKEPT_FOR_KEPT: usize = 8;

/// The fetches of a page that wait for claims.
#[derive(Default)]
pub(super) struct Hold {
    pub(super) waiting: VecDeque<FetchId>,
    /// The fetches that may still begin at once.
    of_user: Allowances,
    /// The fetches without cookies that may still begin at once. Their claims had no cookies.
    without_cookies: Allowances,
    /// The responses of siblings.
    pub(super) seen: HashMap<Siblings, SiblingCounts>,
}

impl Hold {
    /// Returns the hold of a page after these claims at earlier pages of the site.
    pub(super) fn after(claims: Claims) -> Self {
        Self {
            of_user: Allowances::after(claims),
            ..Self::default()
        }
    }

    /// Adds the fetches that a claim permits. `trust` is the trust in the page after the claim.
    pub(super) fn add_claim(&mut self, trust: Trust, claimed: KnownSince, has_cookies: bool) {
        let allowances = match has_cookies {
            true => &mut self.of_user,
            false => &mut self.without_cookies,
        };
        allowances.add_claim(trust, claimed);
    }

    /// Returns whether a fetch may begin, and charges it to a claim.
    pub(super) fn admit(&mut self, resource: KnownSince, fetch: &Fetch) -> bool {
        let has_cookies = fetch.target.asked.has_cookies();
        (!has_cookies && self.without_cookies.admit(resource)) || self.of_user.admit(resource)
    }
}

/// The responses of siblings so far.
#[derive(Clone, Copy, Default)]
pub(super) struct SiblingCounts {
    /// The number of claims of responses that no cache keeps.
    pub(super) claims: usize,
    /// The number of responses that a cache can keep.
    pub(super) kept: usize,
}

impl SiblingCounts {
    /// Returns whether almost none of the siblings can be in a cache.
    pub(super) const fn are_unkept(self) -> bool {
        self.kept * UNKEPT_FOR_KEPT <= self.claims
    }
}

/// Resources of one kind in one directory of an origin.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct Siblings {
    kind: Kind,
    directory: Box<str>,
}

impl Siblings {
    /// Returns the siblings of the resource of a fetch.
    pub(super) fn of(fetch: &Fetch) -> Self {
        Self {
            kind: fetch.purpose.kind(),
            directory: directory(&fetch.target.url).into(),
        }
    }

    /// Returns whether the resource of a fetch is one of these siblings.
    pub(super) fn contain(&self, fetch: &Fetch) -> bool {
        self.kind == fetch.purpose.kind() && *self.directory == *directory(&fetch.target.url)
    }
}

//! The resources of a page that the browser of a returning visitor may have kept.

use tandem_predict::Candidate;
use tandem_preload::Need;

use super::predictor::{Predictor, need_of};
use crate::response_rules::CopyLifetime;
use crate::scripts::DataFields;
use crate::wire::url_hash_of;

/// A resource of which the browser may have a copy.
#[derive(Clone, Debug)]
pub(super) struct CachedCopy {
    pub(super) need: Need,
    pub(super) lifetime: CopyLifetime,
}

/// The resources of a page whose treatment depends on the cache of a returning browser.
#[derive(Default)]
pub(super) struct Returning {
    /// The resources of which the browser may have copies.
    pub(super) copies: Vec<CachedCopy>,
    /// The hashes of the URLs that no cache keeps.
    pub(super) unkept: Vec<u32>,
}

impl Returning {
    /// Returns the resources that earlier visits to a page requested.
    pub(super) fn of(predictor: &dyn Predictor, page: &str) -> Self {
        let copy = |candidate: &Candidate| {
            let lifetime = predictor.lifetime(&candidate.url)?;
            let referrer = predictor.own_referrer(&candidate.url);
            let need = need_of(candidate, referrer, &DataFields::Plain)?;
            Some(CachedCopy { need, lifetime })
        };
        let resources = predictor.resources(page);
        let is_unkept = |candidate: &&Candidate| predictor.is_unkept(&candidate.url);
        let unkept = resources.iter().filter(is_unkept);
        Self {
            copies: resources.iter().filter_map(copy).collect(),
            unkept: unkept.filter_map(|it| url_hash_of(&it.url)).collect(),
        }
    }

    /// Adds those of the learned needs that no cache keeps. The needs of a redirect are those of
    /// the page to which it leads.
    pub(super) fn add_unkept(&mut self, predictor: &dyn Predictor, learned: &[Need]) {
        let unkept = learned.iter().filter(|need| predictor.is_unkept(&need.url));
        self.unkept
            .extend(unkept.filter_map(|need| url_hash_of(&need.url)));
    }
}

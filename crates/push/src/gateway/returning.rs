//! The resources of a page that the browser of a returning visitor may have kept.

use std::time::Duration;

use tandem_predict::Candidate;
use tandem_preload::Need;

use super::candidates::known_for;
use super::predictor::{Learned, Predictor, known_need};
use crate::cookie_urls::CookieNeeds;
use crate::referrers::SeenReferrers;
use crate::response_rules::CopyLifetime;
use crate::scripts::DataFields;
use crate::wire::url_hash_of;

/// A resource of which the browser may have a copy.
#[derive(Clone, Debug)]
pub(super) struct CachedCopy {
    pub(super) need: Need,
    pub(super) lifetime: CopyLifetime,
    /// The referrers of earlier requests for the resource.
    pub(super) referrers: Option<SeenReferrers>,
}

/// The resources of a page whose treatment depends on the cache of a returning browser.
#[derive(Default)]
pub(super) struct Returning {
    /// The resources of which the browser may have copies.
    pub(super) copies: Vec<CachedCopy>,
    /// The hashes of the URLs that no cache keeps.
    pub(super) unkept: Vec<u32>,
    /// The resources of other origins whose requests carry cookies.
    pub(super) with_cookies: CookieNeeds,
    /// The hashes of the URLs that earlier visits requested, and the times for which the predictor
    /// has known them.
    pub(super) known: Vec<(u32, Duration)>,
}

impl Returning {
    /// Returns the resources that earlier visits to a page requested.
    pub(super) fn of(predictor: &dyn Predictor, page: &str) -> Self {
        let copy = |candidate: &Candidate| {
            let lifetime = predictor.lifetime(&candidate.url)?;
            // The check of a frame has the fields of a frame, and no check has those of scripts.
            let fields = match predictor.data_fields(&candidate.url) {
                fields @ DataFields::Frame { .. } => fields,
                _ => DataFields::Plain,
            };
            let need = known_need(predictor, candidate, &fields)?;
            Some(CachedCopy {
                need,
                lifetime,
                referrers: predictor.seen_referrers(&candidate.url),
            })
        };
        let resources = predictor.resources(page);
        let is_unkept = |candidate: &&Candidate| predictor.is_unkept(&candidate.url);
        let unkept = resources.iter().filter(is_unkept);
        let mut with_cookies = CookieNeeds::default();
        for candidate in &resources {
            with_cookies.add(&candidate.url, predictor.cookie_senders(&candidate.url));
        }
        Self {
            copies: resources.iter().filter_map(copy).collect(),
            unkept: unkept.filter_map(|it| url_hash_of(&it.url)).collect(),
            with_cookies,
            known: resources.iter().filter_map(known_for).collect(),
        }
    }

    /// Adds the learned needs: their ages, and those that no cache keeps. The needs of a redirect
    /// are those of the page to which it leads.
    pub(super) fn add_learned(&mut self, predictor: &dyn Predictor, learned: &Learned) {
        let needs = learned.needs.iter();
        let unkept = needs.filter(|need| predictor.is_unkept(&need.url));
        self.unkept
            .extend(unkept.filter_map(|need| url_hash_of(&need.url)));
        self.known.extend(&learned.known);
    }
}

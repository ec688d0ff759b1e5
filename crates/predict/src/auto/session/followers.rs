//! The followers of an asset: the resources that are requested after it when it is the first asset
//! of a page load.
//!
//! A page can need different resources, for example if several hosts share a log, or if a page
//! differs between visitors. The first asset shows which of them this load needs. Its followers are
//! counted in a context of their own, as the assets of a page are.

use super::super::Auto;
use super::super::mixer::{stretch, stretch_all};
use super::super::model::{Guess, LeadSupport};
use super::super::sightings::{Name, count_user};
use super::super::store::{BACKOFF, NONE};
use super::outcomes::Counting;
use super::*;

/// The least share of the loads in which a follower of an asset becomes a candidate.
const LEAST_FOLLOWING: f32 = 0.15;
/// The most followers of an asset.
const MAX_FOLLOWERS: usize = 128;
/// The chance at the page of a candidate that only the first asset adds.
const UNEXPECTED: f32 = 0.02;

impl Auto {
    /// Notes for the candidates of a load how often they follow its first asset, and adds
    /// candidates that do so often.
    pub(super) fn note_followers(&mut self, session: &mut Session, at: usize, first: u32) {
        let least_users = self.least_users();
        let id = self.store.at(first).followers;
        if id == NONE || self.store.context(id).crowd.count < least_users {
            return;
        }
        let loads = self.store.context(id).loads;
        let mut guesses = std::mem::take(&mut session.loads[at].guesses);
        let general = BACKOFF / (loads + BACKOFF);
        let mut following: Vec<f32> = guesses.iter().map(|guess| guess.chance * general).collect();
        self.scratch.clear(self.store.urls.len());
        for (at, guess) in (0..).zip(&guesses) {
            self.scratch.note(guess.url, at);
        }
        let support = guesses.first().map_or(0, |guess| guess.support);
        for entry in self.store.known(id, least_users) {
            if let Some(at) = self.scratch.get(entry.url) {
                following[at as usize] = entry.rate.p;
                guesses[at as usize].is_follower = true;
                continue;
            }
            let url = self.store.at(entry.url);
            let is_wanted = entry.rate.p >= LEAST_FOLLOWING
                && guesses.len() < MAX_GUESSES
                && url.is_mostly_asset()
                && entry.url != first
                && !session.held.contains(entry.url);
            if is_wanted {
                following.push(entry.rate.p);
                guesses.push(Guess {
                    chance: UNEXPECTED,
                    later: [stretch(UNEXPECTED); 2],
                    is_follower: true,
                    ..self.guess(entry.url, url, support)
                });
            }
        }
        stretch_all(&mut following);
        for (guess, following) in guesses.iter_mut().zip(following) {
            guess.following = following;
        }
        let load = &mut session.loads[at];
        (load.guesses, load.lead_support) = (guesses, LeadSupport::of(loads));
    }

    /// Counts the followers of a load's first asset. `general` has the estimates of all its assets
    /// at its page. Other gateways get the users of followers, and no rates.
    pub(super) fn count_followers(
        &mut self,
        session: &Session,
        load: &Load,
        noted: bool,
        general: &mut [f32],
    ) {
        let [first, _, ..] = load.assets[..] else {
            return;
        };
        let id = self.store.followers_of(first);
        let crowd = &mut self.store.context_mut(id).crowd;
        count_user(&mut self.sightings, Name::Context(id), session.user, crowd);
        // It does not follow itself.
        self.scratch.note(first, HELD);
        let context = Counting {
            id,
            limit: MAX_FOLLOWERS,
            noted,
            is_shared: false,
        };
        self.count_context(session, load, &context, general);
    }
}

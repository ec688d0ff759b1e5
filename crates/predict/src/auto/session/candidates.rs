//! The candidates of a page load: the assets of its contexts that the session does not hold.

use super::super::Auto;
use super::super::candidate_list::CandidateList;
use super::super::model::{Guess, NOT_YET, count, support};
use super::super::store::{ContextId, Url};
use super::super::url::Kind;
use super::*;

impl Auto {
    /// Returns the possible assets of a page: those of its contexts that the session does not hold.
    pub(super) fn guesses(&mut self, session: &Session, contexts: [ContextId; 3]) -> Vec<Guess> {
        let mut candidates = std::mem::take(&mut self.candidates);
        self.find(contexts, &mut candidates);
        let least_users = self.least_users();
        let loads = contexts.map(|id| {
            let context = self.store.context(id);
            if context.crowd.count >= least_users {
                context.loads
            } else {
                0.0
            }
        });
        let floor = (self.config.worth.threshold(0.0) as f32 * 0.3).clamp(0.01, 0.15);
        candidates.back_off(loads, floor, |id| {
            let url = self.store.at(id);
            url.is_mostly_asset() && !session.held.contains(id)
        });
        let (support, mut guesses) = (support(loads[0]), Vec::with_capacity(candidates.urls.len()));
        candidates.finish(loads[0], |url, chance, general, later| {
            let known = self.store.at(url);
            guesses.push(Guess {
                chance,
                general,
                later,
                ..self.guess(url, known, support)
            });
        });
        self.candidates = candidates;
        if guesses.len() > MAX_GUESSES {
            guesses.sort_by(|a, b| b.chance.total_cmp(&a.chance));
            guesses.truncate(MAX_GUESSES);
        }
        guesses
    }

    /// Returns a candidate of which nothing is known but the resource.
    pub(super) fn guess(&self, id: u32, url: &Url, support: u8) -> Guess {
        Guess {
            url: id,
            chance: 0.0,
            general: [0.0; 2],
            later: [0.0; 2],
            kind: url.kind as u8 + if url.has_query { Kind::COUNT as u8 } else { 0 },
            support,
            count: count(url.count),
            after: NOT_YET,
            saves: false,
            transfers: url
                .transfers
                .map_or(0.0, |rate| self.model.transfers.excess(rate)),
            following: 0.0,
            is_follower: false,
        }
    }

    /// Collects the assets of a page's contexts, and the estimate of each context.
    pub(super) fn find(&mut self, contexts: [ContextId; 3], candidates: &mut CandidateList) {
        let most = contexts
            .iter()
            .map(|&context| self.store.context(context).entries.len())
            .sum();
        candidates.clear(most);
        self.scratch.clear(self.store.urls.len());
        let least_users = self.least_users();
        for (level, &context) in contexts.iter().enumerate() {
            for entry in self.store.known(context, least_users) {
                let at = match self.scratch.get(entry.url) {
                    Some(at) => at as usize,
                    None => {
                        let at = candidates.urls.len();
                        self.scratch.note(entry.url, at as u32);
                        candidates.urls.push(entry.url);
                        at
                    }
                };
                candidates.chances[level][at] = entry.rate.p;
                if level == 2 {
                    candidates.later[0][at] = entry.later[0].p;
                    candidates.later[1][at] = entry.later[1].p;
                }
            }
        }
    }
}

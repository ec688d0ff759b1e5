//! The outcomes of page loads: the lessons of a load that has ended.

use super::super::Auto;
use super::super::mixer::Rate;
use super::super::model::{NOT_YET, Stage};
use super::super::sightings::{Name, count_user};
use super::super::store::{BACKOFF, ContextId, Crowd, LIMITS, MEMORY, Store};
use super::*;

/// A context for which the assets of a load are counted.
pub(super) struct Counting {
    pub(super) id: ContextId,
    /// The most assets that it has.
    pub(super) limit: usize,
    /// Indicates whether the scratch has the held resources.
    pub(super) noted: bool,
    /// Indicates whether other gateways get its rates. They get its users in any case.
    pub(super) is_shared: bool,
}

impl Auto {
    /// Closes the session's loads that a new one ends.
    pub(super) fn close_finished(&mut self, session: &mut Session, now: i64, implicit: bool) {
        for at in 0..session.loads.len() {
            let recent = now.saturating_sub(session.loads[at].last) <= 2_000;
            let crowded = !implicit && session.loads.len() - at > 3;
            if session.loads[at].open && (!recent || crowded) {
                self.close_load_at(session, at);
            }
        }
    }

    pub(in crate::auto) fn close_load_at(&mut self, session: &mut Session, at: usize) {
        let mut load = std::mem::replace(&mut session.loads[at], Load::placeholder());
        self.close_load(session, &mut load);
        session.loads[at] = load;
    }

    /// A load is over: counts for its contexts which assets it brought.
    pub(in crate::auto) fn close_load(&mut self, session: &mut Session, load: &mut Load) {
        if !std::mem::replace(&mut load.open, false) {
            return;
        }
        if load.fetches == 0 && !load.implicit {
            decided(&mut self.store, load.contexts);
        }
        if load.dirty {
            return;
        }
        let repeats = std::mem::take(&mut load.repeats);
        self.learn_repeats(session, &repeats, load.moments);
        let fetched = load.fetches > 0;
        if !load.implicit {
            self.learn_fetch(session, load, fetched);
        }
        if fetched {
            self.learn_share(load);
            self.count_assets(session, load);
        }
    }

    pub(super) fn learn_fetch(&mut self, session: &mut Session, load: &Load, fetched: bool) {
        let mut prior = self.model.fetches.p;
        self.model.learn_fetch(&load.fetch, load.agent, fetched);
        let outcome = f32::from(u8::from(fetched));
        session.fetches.learn(outcome, 1.0, 8.0);
        for (level, &context) in load.contexts.iter().enumerate().rev() {
            let rate = self
                .store
                .context_mut(context)
                .fetches
                .get_or_insert_with(|| Rate::prior(prior));
            rate.learn(outcome, 1.0, if level == 0 { 30.0 } else { 200.0 });
            prior = rate.p;
            if let Some(gains) = &mut self.gains {
                gains.visited(context, fetched);
            }
        }
    }

    pub(super) fn count_assets(&mut self, session: &Session, load: &Load) {
        let mut general = vec![0.05; load.assets.len()];
        self.scratch.clear(self.store.urls.len());
        // Short visits record the held resources; long visits look them up.
        let entries: usize = load
            .contexts
            .iter()
            .map(|&context| self.store.context(context).entries.len())
            .sum();
        let noted = session.held.len() < entries;
        for (url, _) in session
            .held
            .iter()
            .filter(|(_, held)| noted && held.load <= load.number)
        {
            self.scratch.note(url, HELD);
        }
        for (at, &url) in load.assets.iter().enumerate() {
            self.scratch.note(url, at as u32);
        }
        for level in (0..3).rev() {
            // An error page is its own kind.
            if level == 1 && load.contexts[0] == load.contexts[1] {
                continue;
            }
            let context = Counting {
                id: load.contexts[level],
                limit: LIMITS[level],
                noted,
                is_shared: true,
            };
            self.count_context(session, load, &context, &mut general);
        }
        self.count_followers(session, load, noted, &mut general);
    }

    /// Counts the assets of a load for a context. `general` has the estimates of a more general
    /// context, and then those of this one.
    pub(super) fn count_context(
        &mut self,
        session: &Session,
        load: &Load,
        context: &Counting,
        general: &mut [f32],
    ) {
        let counted = self.count_known(session, load, context, general);
        let Counting { id, limit, .. } = *context;
        let context = self.store.context_mut(id);
        let loads = context.loads;
        context.loads += 1.0;
        for (at, &url) in load.assets.iter().enumerate() {
            if counted[at] || self.scratch.get(url) == Some(HELD) {
                continue;
            }
            let p = (1.0 + BACKOFF * general[at]) / (loads + 1.0 + BACKOFF);
            general[at] = p;
            let rate = Rate {
                p,
                n: (loads + 1.0).min(MEMORY),
            };
            let mut crowd = Crowd::default();
            let name = Name::Asset(id, url);
            count_user(&mut self.sightings, name, session.user, &mut crowd);
            self.store.add_entry(id, limit, url, rate, crowd);
        }
    }

    /// Counts the assets that a context knows already. Returns which of the load's assets these
    /// are, and replaces their estimates in `general`.
    fn count_known(
        &mut self,
        session: &Session,
        load: &Load,
        &Counting {
            id,
            noted,
            is_shared,
            ..
        }: &Counting,
        general: &mut [f32],
    ) -> Vec<bool> {
        let mut counted = vec![false; load.assets.len()];
        let mut outcomes = Vec::new();
        let scratch = &self.scratch;
        let is_shared = is_shared && self.gains.is_some();
        let context = self.store.context_mut(id);
        for entry in &mut context.entries {
            let at = scratch.get(entry.url);
            let held = || {
                session
                    .held
                    .get(entry.url)
                    .is_some_and(|held| held.load <= load.number)
            };
            if at == Some(HELD) || (at.is_none() && !noted && held()) {
                continue;
            }
            let at = at.map(|at| at as usize);
            entry
                .rate
                .learn(f32::from(u8::from(at.is_some())), BACKOFF, MEMORY);
            if is_shared {
                outcomes.push((entry.url, at.is_some()));
            }
            if let Some(at) = at {
                let name = Name::Asset(id, entry.url);
                count_user(&mut self.sightings, name, session.user, &mut entry.crowd);
                counted[at] = true;
                general[at] = entry.rate.p;
            }
        }
        if let Some(gains) = &mut self.gains
            && is_shared
        {
            let unknown = load.assets.iter().zip(&counted);
            let unknown = unknown.filter(|(_, counted)| !**counted);
            let outcomes = outcomes.into_iter();
            gains.loaded(id, outcomes.chain(unknown.map(|(&url, _)| (url, true))));
        }
        counted
    }

    /// Learns from the expected and the actual requests of a session, or of a long part of it, that
    /// is over.
    pub(in crate::auto) fn learn_from(&mut self, load: &Load) {
        if load.dirty {
            return;
        }
        let mut lessons = std::mem::take(&mut self.lessons);
        for (at, stage) in load.stages.iter().enumerate() {
            if stage.number > 0 && stage.expected >= 0.3 {
                let came = load
                    .guesses
                    .iter()
                    .filter(|guess| guess.after != NOT_YET && usize::from(guess.after) > at);
                let share = (came.map(|guess| guess.chance).sum::<f32>() / stage.expected).min(1.0);
                let prior = self.model.learn_lead(stage, load.agent, share);
                if stage.number == 1 {
                    self.store
                        .at_mut(stage.lead)
                        .leads
                        .get_or_insert_with(|| Rate::prior(prior))
                        .learn(share, 1.0, 30.0);
                }
            }
            if self.model.has_much_to_learn() || load.number.is_multiple_of(3) {
                self.model
                    .learn_assets(&load.guesses, stage, at, &mut lessons);
                if let Some(view) = &stage.transfer {
                    self.model.transfers.learn(&load.guesses, view, at);
                }
            }
            if at < 2 {
                self.learn_later(load, stage, at);
            }
        }
        self.lessons = lessons;
    }

    /// For the site: which of the candidates were asked for by the end of the session.
    pub(super) fn learn_later(&mut self, load: &Load, stage: &Stage, at: usize) {
        self.scratch.clear(self.store.urls.len());
        for guess in load
            .guesses
            .iter()
            .filter(|guess| usize::from(guess.after) > at)
        {
            self.scratch
                .note(guess.url, u32::from(guess.after != NOT_YET));
        }
        let scratch = &self.scratch;
        for entry in &mut self.store.context_mut(load.contexts[2]).entries {
            if let Some(outcome) = scratch.get(entry.url) {
                entry.later[usize::from(stage.number > 0)].learn(outcome as f32, 1.0, 100.0);
            }
        }
    }
}

/// Status in classes: fresh, unchanged, redirected, anything else.
pub(super) fn answer(status: u16) -> usize {
    match status {
        200 => 0,
        304 => 1,
        300..=399 => 2,
        _ => 3,
    }
}

/// A load has fetched or never will: it is pending no more.
pub(super) fn decided(store: &mut Store, contexts: [ContextId; 3]) {
    for context in contexts {
        let pending = &mut store.context_mut(context).pending;
        *pending = (*pending - 1.0).max(0.0);
    }
}

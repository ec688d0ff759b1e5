//! The probability that an expected request transfers a body, so that a push of it saves anything.
//!
//! Some requests justify no push. One that is answered 304 shows that the client holds the
//! resource, and a pushed body is waste. One that begins a page load by the rule of time
//! ([`Timing`]) follows a long pause: nobody waited for it in the load that would have pushed it.
//!
//! Clients that hold one resource of a page hold most of them, so the last answer of the session
//! tells most. The other inputs are the answer to the page, and the rates of the resource, the
//! site and the session. A mixer combines them.

use super::mixer::{Mixer, Rate, squash, stretch};
use super::model::{Guess, KINDS, NOT_YET};
use super::session::{Load, Session};
use super::url::Kind;
use super::{Auto, Exchange};

/// Bias, circumstances, resource, site, session.
pub(super) const INPUTS: usize = 5;
/// Answers to the page, last answers of the session, and whether that was in this load.
pub(super) const CIRCUMSTANCES: usize = 4 * OUTCOMES.len() * 2;
const SETS: usize = CIRCUMSTANCES + KINDS;

/// The pause after which any request begins a page load, in milliseconds.
const LONG_PAUSE: i64 = 20_000;
/// The pause after which a request begins a page load if its URL mostly does, in milliseconds.
const SHORT_PAUSE: i64 = 1_000;

/// The loads that the rates of circumstances, of a site and of everything remember.
const RATE_MEMORY: f32 = 300.0;
pub(super) const SITE_MEMORY: f32 = 100.0;
const OVERALL_MEMORY: f32 = 1000.0;
/// The weight of the first estimate for circumstances, in loads.
const RATE_WEIGHT: f32 = 4.0;
/// The first requests that the rate of a resource remembers.
pub(super) const OUTCOME_MEMORY: f32 = 30.0;
/// The requests that the rate of a session remembers.
const SESSION_MEMORY: f32 = 8.0;
/// The factor of this mixer's steps. It has far fewer lessons than the others, only those of
/// requests that came.
const URGENCY: f32 = 10.0;

/// The result of a request for an asset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Outcome {
    /// No asset was requested yet.
    #[default]
    Unknown,
    /// A body was transferred within a page load.
    Transfer,
    /// The client holds the resource.
    Unchanged,
    /// The request began a page load by the rule of time.
    Apart,
}

impl Outcome {
    /// Returns the outcome of a request with this answer.
    pub(super) fn of(status: u16, begins_load: bool) -> Self {
        if begins_load {
            Self::Apart
        } else if status == 304 {
            Self::Unchanged
        } else {
            Self::Transfer
        }
    }

    /// The chance of a transfer after this outcome, before anything was learned.
    const fn prior(self) -> f32 {
        match self {
            Self::Unknown => 0.9,
            Self::Transfer => 0.95,
            Self::Unchanged => 0.2,
            Self::Apart => 0.6,
        }
    }
}

/// The outcomes in order of their numbers.
const OUTCOMES: [Outcome; 4] = [
    Outcome::Unknown,
    Outcome::Transfer,
    Outcome::Unchanged,
    Outcome::Apart,
];

/// The requests of a URL, by the thesis's rule of time. PushCost counts pages and assets by it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Timing {
    pages: u32,
    assets: u32,
}

impl Timing {
    /// Returns whether a request begins a page load `pause` milliseconds after the one before it,
    /// or as the first of its session.
    pub(super) fn begins_load(self, pause: Option<i64>) -> bool {
        let is_mostly_page = self.assets == 0 || self.assets < self.pages;
        pause.is_none_or(|pause| pause > LONG_PAUSE || (pause > SHORT_PAUSE && is_mostly_page))
    }

    /// Counts a request.
    pub(super) fn note(&mut self, begins_load: bool, get: bool, status: u16) {
        if begins_load {
            self.pages += u32::from(matches!(status, 200 | 301 | 302));
        } else {
            self.assets += u32::from(get && status == 200);
        }
    }
}

/// The knowledge about transfers.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Transfers {
    pub(super) mixer: Mixer<INPUTS>,
    /// The share of all requests for assets that transfer a body.
    pub(super) overall: Rate,
    /// The share of the expected requests that came, by circumstances.
    pub(super) rates: [Rate; CIRCUMSTANCES],
}

impl Default for Transfers {
    fn default() -> Self {
        let rate = |at: usize| {
            let last = OUTCOMES[at / 2 % OUTCOMES.len()].prior();
            // A client that holds the page probably holds its assets.
            let is_page_held = at / (2 * OUTCOMES.len()) == 1;
            Rate::prior(if is_page_held { 0.5 * last } else { last })
        };
        Self {
            mixer: Mixer::new(SETS, [0.0, 1.0, 0.5, 0.5, 0.5]),
            overall: Rate::prior(0.9),
            rates: std::array::from_fn(rate),
        }
    }
}

/// The facts of a moment at which candidates are judged.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct TransferView {
    circumstance: usize,
    /// The log-odds of the circumstances.
    base: f32,
    /// The log-odds of site and session above those of all requests.
    excess: [f32; 2],
}

impl Transfers {
    /// Returns the log-odds of a rate above those of all requests.
    pub(super) fn excess(&self, rate: Rate) -> f32 {
        rate.excess(stretch(self.overall.p))
    }

    /// Returns the facts of a moment: the answer to the page, the last outcome of the session,
    /// whether that was in this load, and the rates of site and session.
    pub(super) fn view(
        &self,
        page_answer: usize,
        last: Outcome,
        is_in_load: bool,
        rates: [Rate; 2],
    ) -> TransferView {
        let last = page_answer * OUTCOMES.len() + last as usize;
        let circumstance = last * 2 + usize::from(is_in_load);
        TransferView {
            circumstance,
            base: stretch(self.rates[circumstance].p),
            excess: rates.map(|rate| self.excess(rate)),
        }
    }

    fn mixed(&self, guess: &Guess, view: &TransferView) -> ([f32; INPUTS], [usize; 2], f32) {
        let [site, session] = view.excess;
        let inputs = [1.0, view.base, guess.transfers, site, session];
        let sets = [view.circumstance, CIRCUMSTANCES + usize::from(guess.kind)];
        (inputs, sets, self.mixer.mix(&inputs, &sets))
    }

    /// Returns the probability that the request for a candidate, if it comes, transfers a body.
    pub(super) fn probability(&self, guess: &Guess, view: &TransferView) -> f32 {
        squash(self.mixed(guess, view).2)
    }

    /// Learns from the candidates that were requested after the `at`th stage of their load.
    pub(super) fn learn(&mut self, guesses: &[Guess], view: &TransferView, at: usize) {
        let came = |guess: &&Guess| guess.after != NOT_YET && usize::from(guess.after) > at;
        let (mut all, mut saved) = (0.0, 0.0);
        for guess in guesses.iter().filter(came) {
            all += 1.0;
            saved += f32::from(u8::from(guess.saves));
        }
        if all == 0.0 {
            return;
        }
        // The candidates of a load are answered alike, so they count less if there are many.
        let scale = 4.0 / (4.0 + all);
        for guess in guesses.iter().filter(came) {
            let (inputs, sets, mixed) = self.mixed(guess, view);
            let error = f32::from(u8::from(guess.saves)) - squash(mixed);
            self.mixer.learn(&inputs, &sets, error * scale * URGENCY);
        }
        self.rates[view.circumstance].learn(saved / all, RATE_WEIGHT, RATE_MEMORY);
    }

    /// Merges the knowledge of another table.
    pub(super) fn merge(&mut self, other: &Self) {
        self.mixer.merge(&other.mixer);
        self.overall = self.overall.merged(other.overall, OVERALL_MEMORY);
        for (mine, theirs) in self.rates.iter_mut().zip(other.rates) {
            *mine = mine.merged(theirs, RATE_MEMORY);
        }
    }
}

impl Auto {
    /// Returns the facts about transfers at a moment of a load.
    pub(super) fn transfer_view(
        &self,
        session: &Session,
        load: &Load,
        is_in_load: bool,
    ) -> TransferView {
        let none = Rate::prior(0.0);
        let site = self.store.context(load.contexts[2]);
        let is_known = site.crowd.count >= self.least_users();
        let site = site.transfers.filter(|_| is_known).unwrap_or(none);
        self.model.transfers.view(
            load.page_answer(),
            session.last_outcome,
            is_in_load,
            [site, session.transfers],
        )
    }

    /// Counts a request by the rule of time, and returns its outcome.
    pub(super) fn outcome(
        &mut self,
        session: &Session,
        url: u32,
        exchange: &Exchange<'_>,
        told: Option<Kind>,
    ) -> Outcome {
        let pause = exchange.now.saturating_sub(session.last);
        let pause = (!session.held.is_empty()).then_some(pause);
        let is_public = self.store.is_public(url, self.least_users());
        let timing = &mut self.store.at_mut(url).timing;
        // The requests of too few users must not show.
        let known = if is_public {
            *timing
        } else {
            Timing::default()
        };
        // A part of a page may follow slowly. Its kind is known better than by the time.
        let is_part = told.is_some_and(|kind| kind != Kind::Page);
        let begins_load = match pause {
            Some(pause) if is_part => pause > LONG_PAUSE,
            _ => known.begins_load(pause),
        };
        timing.note(begins_load, exchange.get, exchange.status);
        Outcome::of(exchange.status, begins_load)
    }

    /// Learns the outcome of an asset's first request in a session.
    pub(super) fn learn_outcome(&mut self, session: &mut Session, url: u32, outcome: Outcome) {
        let saves = f32::from(u8::from(outcome == Outcome::Transfer));
        let prior = self.model.transfers.overall.p;
        let url = &mut self.store.at_mut(url).transfers;
        url.get_or_insert_with(|| Rate::prior(prior))
            .learn(saves, 1.0, OUTCOME_MEMORY);
        session.transfers.learn(saves, 1.0, SESSION_MEMORY);
        session.last_outcome = outcome;
    }

    /// Learns the share of a load's requests that transferred bodies.
    pub(super) fn learn_share(&mut self, load: &Load) {
        let share = load.saved as f32 / load.fetches as f32;
        let prior = self.model.transfers.overall.p;
        let site = &mut self.store.context_mut(load.contexts[2]).transfers;
        site.get_or_insert_with(|| Rate::prior(prior))
            .learn(share, 1.0, SITE_MEMORY);
        let overall = &mut self.model.transfers.overall;
        overall.learn(share, 1.0, OVERALL_MEMORY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guess(saves: bool) -> Guess {
        Guess {
            url: 0,
            chance: 0.9,
            general: [0.0; 2],
            later: [0.0; 2],
            kind: 0,
            support: 0,
            count: 0,
            after: 1,
            saves,
            transfers: 0.0,
            following: 0.0,
            is_follower: false,
        }
    }

    #[test]
    fn the_last_answer_tells_what_a_client_holds() {
        let mut transfers = Transfers::default();
        let unknown = [Rate::prior(0.0); 2];
        for round in 0..200 {
            let holds_all = round % 2 == 0;
            let last = match holds_all {
                true => Outcome::Unchanged,
                false => Outcome::Transfer,
            };
            let view = transfers.view(0, last, true, unknown);
            transfers.learn(&[guess(!holds_all); 6], &view, 0);
            let later = transfers.view(0, last, true, unknown);
            transfers.learn(&[guess(holds_all)], &later, 1);
        }
        let chance = |last| {
            let view = transfers.view(0, last, true, unknown);
            transfers.probability(&guess(true), &view)
        };
        assert!(chance(Outcome::Unchanged) < 0.05);
        assert!(chance(Outcome::Transfer) > 0.97);
    }

    #[test]
    fn requests_begin_loads_by_pause_and_habit() {
        let mut timing = Timing::default();
        assert!(timing.begins_load(None) && timing.begins_load(Some(1_001)));
        assert!(!timing.begins_load(Some(1_000)), "no pause");
        timing.note(false, true, 200);
        assert!(!timing.begins_load(Some(20_000)), "mostly an asset");
        assert!(timing.begins_load(Some(20_001)) && timing.begins_load(None));
        for (get, status) in [(true, 304), (false, 200)] {
            timing.note(false, get, status);
        }
        timing.note(true, true, 404);
        assert!(!timing.begins_load(Some(1_001)), "one of each at most");
        timing.note(true, true, 200);
        timing.note(true, false, 301);
        assert!(timing.begins_load(Some(1_001)), "mostly a page");
    }
}

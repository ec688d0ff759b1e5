//! From counts to probabilities: whether this page load will fetch anything, how much of the
//! expected set follows, and whether this asset will be requested.
//!
//! Each of the three mixers has its own inputs and sets of weights. None needs manual settings:
//! they start from weights that trust the counts and learn from every page load.

use std::collections::HashMap;

use super::mixer::{Evidence, Mixer, Rate, Reliability, squash, stretch, stretch_all};
use super::repeat::Repetition;
use super::transfer::{TransferView, Transfers};
use super::url::Kind;

/// Inputs of the fetch mixer: bias, page, kind and site against the page, session, agent,
/// circumstances.
pub(super) const FETCH_INPUTS: usize = 7;
/// How much follows a first asset: bias, circumstances, that asset, agent, session.
pub(super) const LEAD_INPUTS: usize = 5;
/// Inputs of the asset mixer: bias, page, kind and site against the page, later in the session,
/// page views, and the load's first asset against the page.
pub(super) const ASSET_INPUTS: usize = 7;

const STAGES: usize = 5;
const FETCH_SETS: usize = 8 + CIRCUMSTANCES;
const LEAD_SETS: usize = STAGES + FIRSTS;
pub(super) const KINDS: usize = 2 * Kind::COUNT;
const SUPPORTS: usize = 6;
const COUNTS: usize = 5;
/// The first weight sets for the views of a session, for counts and for followers.
const VIEW_SETS: usize = 3 * KINDS + SUPPORTS * STAGES;
const COUNT_SETS: usize = VIEW_SETS + 16;
pub(super) const FOLLOWER_SETS: usize = COUNT_SETS + 2 * COUNTS * SUPPORTS;
const ASSET_SETS: usize = FOLLOWER_SETS + 2 * SUPPORTS;
/// The sets that one candidate uses.
const CHOSEN: usize = 5;

/// Ways a page is asked for: by Referer (none, known, foreign) and by status.
pub(super) const CIRCUMSTANCES: usize = 12;
/// Ways a load's asset comes: by status, page unseen, first of the session, first of the load.
pub(super) const FIRSTS: usize = 32;

/// Natural logarithm of one more than the number of page views.
const VIEWS: [f32; 16] = [
    0.0, 0.693, 1.099, 1.386, 1.609, 1.792, 1.946, 2.079, 2.197, 2.303, 2.398, 2.485, 2.565, 2.639,
    2.708, 2.773,
];

/// The most agents whose habits are kept.
const MAX_AGENTS: usize = 4096;

/// The habits of a User-Agent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Habits {
    /// Share of page loads that fetch anything.
    pub(super) fetches: Rate,
    /// The share of the expected set that follows a first asset.
    pub(super) follows: Rate,
}

/// A candidate's facts, as they were when its page load began.
#[derive(Debug, Clone, Copy)]
pub(super) struct Guess {
    pub(super) url: u32,
    /// Chance in a load of this page that fetches.
    pub(super) chance: f32,
    /// The estimates of the kind of page and of the site, in log-odds above `chance`. They lose
    /// weight as the page becomes better known.
    pub(super) general: [f32; 2],
    /// Log-odds of being asked for later in the session, from the page and from its first asset.
    pub(super) later: [f32; 2],
    pub(super) kind: u8,
    /// How often the page was seen to fetch, and how often the asset was requested at all, in
    /// steps.
    pub(super) support: u8,
    pub(super) count: u8,
    /// How many evaluations came before it was requested; [`NOT_YET`] until then.
    pub(super) after: u8,
    /// Indicates whether a push in place of that request would have been of use.
    pub(super) saves: bool,
    /// Log-odds by which its requests transfer bodies more often than all requests do.
    pub(super) transfers: f32,
    /// Log-odds of being requested after the load's first asset, and whether it was before.
    pub(super) following: f32,
    pub(super) is_follower: bool,
}

/// Not requested.
pub(super) const NOT_YET: u8 = u8::MAX;

/// A bound above the error that the order of summation can cause.
const ROUGHNESS: f32 = 0.05;

/// Candidates that are likely enough, with their probabilities.
#[derive(Debug, Default)]
pub(super) struct Likely {
    pub(super) found: Vec<(u32, f32)>,
    /// Log-odds of every candidate's chance.
    pages: Vec<f32>,
}

impl Likely {
    fn clear(&mut self) {
        self.found.clear();
        self.pages.clear();
    }
}

/// A moment at which a load's candidates were judged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stage {
    /// 0 at the page, then 1, 2, 3, 4 at the first, second, fourth and eighth asset.
    pub(super) number: u8,
    /// Factor by which the chances of all candidates are raised or lowered.
    pub(super) factor: f32,
    /// Page views of the session before this one.
    pub(super) views: u8,
    /// Sum of the open candidates' chances.
    pub(super) expected: f32,
    /// Number of the asset that led here.
    pub(super) lead: u32,
    pub(super) inputs: [f32; LEAD_INPUTS],
    pub(super) sets: [usize; 2],
    /// `None` if any request is of use.
    pub(super) transfer: Option<TransferView>,
    /// The knowledge about assets that follow the load's first one.
    pub(super) lead_support: LeadSupport,
    /// The number of candidates at this moment. Those that the first asset added are the last.
    pub(super) candidates: usize,
}

/// The loads after which the estimates of followers are half trusted.
const DISTRUST: f32 = 3.0;

/// How well the assets that follow a load's first one are known.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LeadSupport {
    /// The trust in the estimates, from 0 to 1.
    pub(super) trust: f32,
    /// The loads that began with this asset, in steps.
    pub(super) step: u8,
}

impl LeadSupport {
    /// Returns the support that a number of loads gives.
    pub(super) fn of(loads: f32) -> Self {
        Self {
            trust: loads / (loads + DISTRUST),
            step: support(loads),
        }
    }
}

/// The learned weights and rates beside the store.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Model {
    pub(super) fetch: Mixer<FETCH_INPUTS>,
    pub(super) lead: Mixer<LEAD_INPUTS>,
    pub(super) asset: Mixer<ASSET_INPUTS>,
    /// At pages, and at assets.
    pub(super) reliability: [Reliability; 2],
    pub(super) fetches: Rate,
    pub(super) follows: Rate,
    pub(super) circumstances: [Rate; CIRCUMSTANCES],
    pub(super) firsts: [Rate; FIRSTS],
    pub(super) agents: HashMap<u64, Habits>,
    pub(super) repetition: Repetition,
    pub(super) transfers: Transfers,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            fetch: Mixer::new(FETCH_SETS, [0.0, 0.9, 0.1, 0.0, 0.6, 0.5, 0.4]),
            lead: Mixer::new(LEAD_SETS, [0.0, 1.0, 0.3, 0.3, 0.2]),
            asset: Mixer::new(ASSET_SETS, [0.0, 1.0, 0.25, 0.1, 0.15, 0.0, 0.8]),
            reliability: Default::default(),
            fetches: Rate::prior(0.5),
            follows: Rate::prior(0.7),
            circumstances: [Rate::prior(0.5); CIRCUMSTANCES],
            // Only a fresh 200 in the course of a visit speaks for an empty cache.
            firsts: std::array::from_fn(|at| Rate::prior(if at % 4 == 0 { 0.7 } else { 0.3 })),
            agents: HashMap::new(),
            repetition: Repetition::default(),
            transfers: Transfers::default(),
        }
    }
}

/// The inputs of the fetch mixer, kept until the load's outcome is known.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct FetchView {
    pub(super) inputs: [f32; FETCH_INPUTS],
    pub(super) sets: [usize; 2],
    pub(super) circumstance: usize,
}

impl Model {
    /// Returns the known habits of an agent.
    pub(super) fn habits(&self, agent: u64) -> Habits {
        let unknown = Habits {
            fetches: Rate::prior(self.fetches.p),
            follows: Rate::prior(0.6),
        };
        self.agents.get(&agent).copied().unwrap_or(unknown)
    }

    fn habits_mut(&mut self, agent: u64) -> &mut Habits {
        if self.agents.len() >= MAX_AGENTS && !self.agents.contains_key(&agent) {
            self.agents.retain(|_, habits| habits.fetches.n >= 3.0);
            if self.agents.len() >= MAX_AGENTS {
                self.agents.clear();
            }
        }
        let habits = self.habits(agent);
        self.agents.entry(agent).or_insert(habits)
    }

    /// Inputs for whether a load fetches: `chances` of page, kind and site, the session's habit,
    /// the agent.
    pub(super) fn fetch_view(
        &self,
        chances: [f32; 3],
        session: Rate,
        agent: u64,
        views: u32,
        circumstance: usize,
    ) -> FetchView {
        let base = stretch(self.fetches.p);
        let page = stretch(chances[0]);
        let inputs = [
            1.0,
            page,
            stretch(chances[1]) - page,
            stretch(chances[2]) - page,
            session.excess(base),
            stretch(self.habits(agent).fetches.p) - base,
            stretch(self.circumstances[circumstance].p) - base,
        ];
        let visit = views.min(3) as usize + if session.n >= 1.0 { 4 } else { 0 };
        FetchView {
            inputs,
            sets: [visit, 8 + circumstance],
            circumstance,
        }
    }

    /// The probability that a load fetches anything.
    pub(super) fn fetch_probability(&self, view: &FetchView) -> f32 {
        squash(self.fetch.mix(&view.inputs, &view.sets))
    }

    /// Learns whether a load fetched anything.
    pub(super) fn learn_fetch(&mut self, view: &FetchView, agent: u64, fetched: bool) {
        let outcome = f32::from(u8::from(fetched));
        let error = outcome - self.fetch_probability(view);
        self.fetch.learn(&view.inputs, &view.sets, error);
        self.habits_mut(agent).fetches.learn(outcome, 1.0, 50.0);
        self.fetches.learn(outcome, 1.0, 1000.0);
        self.circumstances[view.circumstance].learn(outcome, 1.0, 500.0);
    }

    /// Returns inputs, sets and factor for the assets that follow an asset of the kind `first` (see
    /// [`FIRSTS`]).
    pub(super) fn lead_view(
        &self,
        stage: u8,
        first: usize,
        asset: Option<Rate>,
        session: Rate,
        agent: u64,
    ) -> ([f32; LEAD_INPUTS], [usize; 2], f32) {
        let base = stretch(self.firsts[first].p);
        let inputs = [
            1.0,
            base,
            asset.map_or(0.0, |rate| stretch(rate.p) - base),
            self.habits(agent).follows.excess(base),
            session.excess(stretch(self.fetches.p)),
        ];
        let sets = [usize::from(stage), STAGES + first];
        let share = squash(self.lead.mix(&inputs, &sets));
        (inputs, sets, (share / self.follows.p).min(1.15))
    }

    /// Learns that `share` of the set expected at `stage` followed. Returns the prior for the
    /// asset's own rate.
    pub(super) fn learn_lead(&mut self, stage: &Stage, agent: u64, share: f32) -> f32 {
        let error = share - squash(self.lead.mix(&stage.inputs, &stage.sets));
        self.lead.learn(&stage.inputs, &stage.sets, error);
        let first = &mut self.firsts[stage.sets[1] - STAGES];
        let prior = first.p;
        first.learn(share, 3.0, 300.0);
        if stage.number == 1 {
            self.follows.learn(share, 20.0, 1000.0);
            self.habits_mut(agent).follows.learn(share, 1.0, 30.0);
        }
        prior
    }

    #[inline(always)]
    fn asset_view(guess: &Guess, stage: &Stage) -> ([f32; ASSET_INPUTS], [usize; CHOSEN]) {
        let number = usize::from(stage.number);
        let moved = usize::from(stage.number > 0);
        let (support, count) = (usize::from(guess.support), usize::from(guess.count));
        let page = stretch((stage.factor * guess.chance).min(0.98));
        let inputs = [
            1.0,
            page,
            guess.general[0],
            guess.general[1],
            guess.later[moved] - page,
            VIEWS[usize::from(stage.views.min(15))],
            (guess.following - page) * stage.lead_support.trust,
        ];
        let follower = stage.lead_support.trust > 0.0 && guess.is_follower;
        let sets = [
            number.min(2) * KINDS + usize::from(guess.kind),
            3 * KINDS + support * STAGES + number,
            VIEW_SETS + usize::from(stage.views.min(7)) + 8 * moved,
            COUNT_SETS + (moved * COUNTS + count) * SUPPORTS + support,
            FOLLOWER_SETS + 2 * usize::from(stage.lead_support.step) + usize::from(follower),
        ];
        (inputs, sets)
    }

    /// Adds to `likely` the open candidates of a load whose probability is `least` or more.
    ///
    /// Few candidates are. One sum excludes most of the others, with the five sets of weights added
    /// up beforehand.
    pub(super) fn likely(&self, guesses: &[Guess], stage: &Stage, least: f32, likely: &mut Likely) {
        let reliability = &self.reliability[usize::from(stage.number > 0)];
        let hopeless = reliability.hopeless(least);
        let moved = usize::from(stage.number > 0);
        likely.clear();
        likely.pages.extend(
            guesses
                .iter()
                .map(|guess| (stage.factor * guess.chance).min(0.98)),
        );
        stretch_all(&mut likely.pages);
        let trust = stage.lead_support.trust;
        let mut sums = [[[None; 2]; COUNTS]; KINDS];
        for (guess, &page) in guesses.iter().zip(&likely.pages) {
            if guess.after != NOT_YET {
                continue;
            }
            let sum = &mut sums[usize::from(guess.kind)][usize::from(guess.count)];
            let sum = &mut sum[usize::from(guess.is_follower)];
            let [bias, own, kind, site, later, lead] =
                *sum.get_or_insert_with(|| self.summed(guess, stage));
            let general = kind * guess.general[0] + site * guess.general[1];
            let session = later * (guess.later[moved] - page);
            let lead = lead * (guess.following - page) * trust;
            let roughly = bias + own * page + general + session + lead;
            if roughly < hopeless - ROUGHNESS {
                continue;
            }
            let (inputs, sets) = Self::asset_view(guess, stage);
            let mixed = self.asset.mix(&inputs, &sets);
            let requested = 0.5 * (squash(mixed) + reliability.check(mixed));
            if requested < least {
                continue;
            }
            let transfer = stage.transfer.as_ref();
            let transfers = transfer.map_or(1.0, |view| self.transfers.probability(guess, view));
            let probability = requested * transfers;
            if probability >= least {
                likely.found.push((guess.url, probability));
            }
        }
    }

    /// Returns the summed weights of candidates like `guess`: bias, page, kind, site, later, lead.
    fn summed(&self, guess: &Guess, stage: &Stage) -> [f32; 6] {
        let (_, sets) = Self::asset_view(guess, stage);
        let mut sum = [0.0; ASSET_INPUTS];
        for set in sets {
            for (sum, weight) in sum.iter_mut().zip(&self.asset.weights[set]) {
                *sum += weight / sets.len() as f32;
            }
        }
        let [bias, page, kind, site, later, views, lead] = sum;
        [
            bias + views * VIEWS[usize::from(stage.views.min(15))],
            page,
            kind,
            site,
            later,
            lead,
        ]
    }

    /// Returns true if the weights still change much, so that the model should learn from each
    /// load. Later, one load in three suffices.
    pub(super) fn has_much_to_learn(&self) -> bool {
        self.reliability
            .iter()
            .flat_map(|reliability| &reliability.points)
            .map(|point| point.n)
            .sum::<f32>()
            < 2000.0
    }

    /// Learns the outcomes of a load's candidates after `stage`, the `at`th stage at which they
    /// were judged.
    ///
    /// The candidates of a load are requested together or not at all. Therefore all are judged
    /// before any is learned from, and each counts less, the larger the summed error is.
    pub(super) fn learn_assets(
        &mut self,
        guesses: &[Guess],
        stage: &Stage,
        at: usize,
        scratch: &mut Vec<Lesson>,
    ) {
        scratch.clear();
        let mut evidence = Evidence::default();
        let mut surprise = 0.0;
        let judged = guesses.iter().take(stage.candidates);
        for guess in judged.filter(|guess| usize::from(guess.after) > at) {
            let outcome = guess.after != NOT_YET;
            let (inputs, sets) = Self::asset_view(guess, stage);
            let mixed = self.asset.mix(&inputs, &sets);
            evidence.note(mixed, outcome);
            let error = f32::from(u8::from(outcome)) - squash(mixed);
            surprise += error.abs();
            scratch.push(Lesson {
                inputs,
                sets,
                error,
            });
        }
        self.reliability[usize::from(stage.number > 0)].learn(&evidence);
        let scale = 4.0 / (4.0 + surprise);
        for lesson in scratch.iter() {
            self.asset
                .learn(&lesson.inputs, &lesson.sets, lesson.error * scale);
        }
    }

    /// Merges the knowledge of another model.
    pub(super) fn merge(&mut self, other: &Self) {
        self.fetch.merge(&other.fetch);
        self.lead.merge(&other.lead);
        self.asset.merge(&other.asset);
        for (mine, theirs) in self.reliability.iter_mut().zip(&other.reliability) {
            mine.merge(theirs);
        }
        self.repetition.merge(&other.repetition);
        self.transfers.merge(&other.transfers);
        self.fetches = self.fetches.merged(other.fetches, 1000.0);
        self.follows = self.follows.merged(other.follows, 1000.0);
        for (mine, theirs) in self.circumstances.iter_mut().zip(&other.circumstances) {
            *mine = mine.merged(*theirs, 500.0);
        }
        for (mine, theirs) in self.firsts.iter_mut().zip(&other.firsts) {
            *mine = mine.merged(*theirs, 300.0);
        }
        for (&agent, theirs) in &other.agents {
            let mine = self.habits_mut(agent);
            mine.fetches = mine.fetches.merged(theirs.fetches, 50.0);
            mine.follows = mine.follows.merged(theirs.follows, 30.0);
        }
    }
}

/// The outcome of a single candidate, to be learned.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lesson {
    inputs: [f32; ASSET_INPUTS],
    sets: [usize; CHOSEN],
    error: f32,
}

/// Step of a page's support.
pub(super) fn support(loads: f32) -> u8 {
    match loads as u32 {
        0 => 0,
        1 => 1,
        2 => 2,
        3..=5 => 3,
        6..=20 => 4,
        _ => 5,
    }
}

/// Step of an asset's count.
pub(super) fn count(requests: u32) -> u8 {
    match requests {
        0 | 1 => 0,
        2 => 1,
        3..=5 => 2,
        6..=15 => 3,
        _ => 4,
    }
}

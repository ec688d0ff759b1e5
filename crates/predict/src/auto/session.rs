//! Sessions and their page loads: the resources that a client holds, was offered, and was expected
//! to request.

mod candidates;
mod followers;
mod outcomes;

use std::collections::VecDeque;

use super::mixer::Rate;
use super::model::{FetchView, Guess, LeadSupport, NOT_YET, Stage};
use super::push_budget::PushBudget;
use super::repeat::Repeat;
use super::sightings::{Name, SightingQueue, count_user};
use super::store::{ContextId, NONE, Store, Url};
use super::transfer::Outcome;
use super::url::Kind;
use super::{Aim, Auto, Candidate, Due, Exchange, HELD_BYTES, Held, Holding, MAX_HELD, Scratch};
use crate::ids::SmallMap;
use outcomes::{answer, decided};

/// A client's visit.
#[derive(Debug)]
pub(super) struct Session {
    user: u64,
    agent: u64,
    pub(super) last: i64,
    pub(super) loads: VecDeque<Load>,
    /// URLs requested, with the number of the load at that time.
    pub(super) held: Held,
    /// Bytes of the names of held resources. The store cannot drop these names while the session
    /// exists.
    names: usize,
    pub(super) offered: SmallMap<Offer>,
    views: u32,
    /// Share of its loads that fetched anything.
    fetches: Rate,
    /// The share of possible repeated requests that its loads made.
    pub(super) repeats: Rate,
    /// The share of its requests for assets that transferred a body.
    pub(super) transfers: Rate,
    pub(super) last_outcome: Outcome,
    pub(super) redirect: bool,
}

/// The outcome of an offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Offer {
    /// The outcome is not known yet.
    Open,
    /// The client does not want it.
    Refused,
}

/// A page and the assets that are expected with it.
#[derive(Debug)]
pub(super) struct Load {
    number: u32,
    page: u32,
    agent: u64,
    pub(super) contexts: [ContextId; 3],
    pub(super) last: i64,
    pub(super) open: bool,
    /// The page itself was not requested here; only its assets show that it is being looked at.
    implicit: bool,
    /// Teaches nothing.
    dirty: bool,
    views: u8,
    fetch: FetchView,
    pub(super) fetches: u32,
    /// The number of them that transferred a body.
    pub(super) saved: u32,
    assets: Vec<u32>,
    guesses: Vec<Guess>,
    /// Indicates whether the guesses have been made.
    listed: bool,
    stages: Vec<Stage>,
    /// The knowledge about assets that follow the first one.
    lead_support: LeadSupport,
    pub(super) repeats: Vec<Repeat>,
    /// The number of times that repeated requests were judged.
    pub(super) moments: u8,
}

/// The factor below the least probability to push. A page that is less likely to fetch anything
/// waits for its first asset.
const HOPE: f32 = 0.2;
/// Ways a page is asked for: without Referer, with a known one, and with a foreign one.
const WAYS: usize = 3;
/// Assets of a load that are remembered.
const MAX_ASSETS: usize = 1024;
/// Notes that a session held a URL.
const HELD: u32 = Scratch::MAX_VALUE;
const _: () = assert!(MAX_ASSETS < HELD as usize);
/// Candidates of a load.
const MAX_GUESSES: usize = 640;

impl Session {
    pub(super) fn new(now: i64, user: u64, agent: u64) -> Self {
        Self {
            user,
            agent,
            last: now,
            loads: VecDeque::new(),
            held: Held::default(),
            names: 0,
            offered: SmallMap::default(),
            views: 0,
            fetches: Rate::prior(0.5),
            repeats: Rate::prior(0.1),
            transfers: Rate::prior(0.9),
            last_outcome: Outcome::Unknown,
            redirect: false,
        }
    }

    /// Estimated bytes.
    pub(super) fn bytes(&self) -> usize {
        /// The overhead of the session's allocations.
        const OVERHEAD: usize = 80;
        let loads: usize = self.loads.iter().map(Load::bytes).sum();
        size_of::<Self>()
            + OVERHEAD
            + loads
            + (self.held.len() + self.offered.len()) * HELD_BYTES
            + self.names
    }

    /// Every URL that must stay known while this session lives.
    pub(super) fn urls(&self) -> impl Iterator<Item = u32> {
        let loads = self.loads.iter().flat_map(|load| {
            let guesses = load.guesses.iter().map(|guess| guess.url);
            let leads = load.stages.iter().map(|stage| stage.lead);
            guesses
                .chain(leads)
                .chain(load.assets.iter().copied())
                .chain([load.page])
        });
        self.held
            .keys()
            .iter()
            .chain(self.offered.keys())
            .copied()
            .chain(loads)
    }

    pub(super) fn contexts(&self) -> impl Iterator<Item = ContextId> {
        self.loads.iter().flat_map(|load| load.contexts)
    }

    pub(super) fn position(&self, load: u32) -> Option<usize> {
        self.loads
            .iter()
            .position(|candidate| candidate.number == load)
    }

    /// A URL is asked for: every load that expected it was right. `saves` tells whether a push in
    /// place of the request is of use.
    pub(super) fn requested(&mut self, url: u32, saves: bool, budget: &mut PushBudget) {
        let offer = self.offered.get(url).copied();
        if offer == Some(Offer::Open) {
            if saves {
                budget.won();
            }
            self.offered.remove(url);
        }
        if self.held.contains(url) {
            return;
        }
        for load in &mut self.loads {
            let after = load.stages.len() as u8;
            if let Some(guess) = load
                .guesses
                .iter_mut()
                .find(|guess| guess.url == url && guess.after == NOT_YET)
            {
                (guess.after, guess.saves) = (after, saves);
            }
        }
    }

    /// A URL was answered; `revalidated` if by anything but a fresh copy.
    pub(super) fn hold(&mut self, url: u32, name: &str, load: u32, revalidated: bool) {
        let before = self.held.len();
        if before < MAX_HELD {
            self.held
                .entry(url, Holding { load, revalidated })
                .revalidated = revalidated;
            self.names += if self.held.len() > before {
                name.len()
            } else {
                0
            };
        }
    }

    /// Notes that a resource the session holds was useful again.
    pub(super) fn came_again(&mut self, url: u32, saves: bool) {
        for load in &mut self.loads {
            let moments = load.moments;
            load.repeats
                .iter_mut()
                .filter(|repeat| repeat.url == url)
                .for_each(|repeat| repeat.came(moments, saves));
        }
    }

    /// Counts a request of a URL by this session's user.
    pub(super) fn count(&self, id: u32, url: &mut Url, queue: &mut Option<SightingQueue>) {
        url.count = url.count.saturating_add(1);
        count_user(queue, Name::Url(id), self.user, &mut url.crowd);
    }

    /// The load that a push belongs to: of the page it came with, or where it was expected.
    pub(super) fn load_of_push(&mut self, page: Option<u32>, url: u32) -> Option<&mut Load> {
        let of_page = page
            .and_then(|page| self.load_of_referer(page))
            .filter(|&at| self.loads[at].open);
        let at = of_page.or_else(|| self.loads.iter().rposition(|load| load.offers(url)))?;
        self.loads.get_mut(at)
    }

    /// The load that a request with this Referer belongs to: the page it names, or the load of the
    /// asset it names.
    fn load_of_referer(&self, referer: u32) -> Option<usize> {
        let page = self.loads.iter().rposition(|load| load.page == referer);
        page.or_else(|| {
            self.loads
                .iter()
                .rposition(|load| load.assets.contains(&referer))
        })
    }
}

impl Load {
    fn bytes(&self) -> usize {
        size_of::<Self>()
            + self.guesses.len() * size_of::<Guess>()
            + self.stages.len() * size_of::<Stage>()
            + self.repeats.len() * size_of::<Repeat>()
            + self.assets.len() * 4
    }

    /// Returns whether the URL is among the load's candidates.
    pub(super) fn offers(&self, url: u32) -> bool {
        self.guesses.iter().any(|guess| guess.url == url)
    }

    /// Returns the class of the answer to the page.
    pub(super) fn page_answer(&self) -> usize {
        self.fetch.circumstance / WAYS
    }

    /// An asset of it was fetched. Returns how many have been by now.
    pub(super) fn fetched(&mut self, url: u32, saves: bool, store: &mut Store) -> u32 {
        if self.assets.len() < MAX_ASSETS {
            self.assets.push(url);
        }
        self.fetches += 1;
        self.saved += u32::from(saves);
        if self.fetches == 1 && !self.implicit {
            decided(store, self.contexts);
        }
        self.fetches
    }

    /// Stands in a session's list while the load itself is worked on.
    fn placeholder() -> Self {
        Self {
            number: NONE,
            page: 0,
            agent: 0,
            contexts: [0; 3],
            last: 0,
            open: false,
            implicit: true,
            dirty: true,
            views: 0,
            fetch: FetchView::default(),
            fetches: 0,
            saved: 0,
            assets: Vec::new(),
            guesses: Vec::new(),
            listed: false,
            stages: Vec::new(),
            lead_support: LeadSupport::default(),
            repeats: Vec::new(),
            moments: 0,
        }
    }
}

impl Auto {
    /// Counts a request of a URL. Returns whether it starts a page load, or `None` if it is neither
    /// page nor asset.
    pub(super) fn note_url(
        &mut self,
        session: &Session,
        id: u32,
        exchange: &Exchange<'_>,
        told: Option<Kind>,
    ) -> Option<bool> {
        let first = session.held.is_empty();
        let pause = exchange.now.saturating_sub(session.last);
        let public = self.store.is_public(id, self.least_users());
        let url = self.store.at_mut(id);
        // The classification by other users is ignored until enough of them requested the URL: the
        // answer would reveal their visits.
        let kind = told.unwrap_or(if public { url.kind } else { url.path_kind });
        let (as_page, as_asset) = if public {
            (url.as_page, url.as_asset)
        } else {
            (0.0, 0.0)
        };
        url.kind = kind;
        session.count(id, url, &mut self.sightings);
        if exchange.status == 200 && exchange.size > 0 {
            url.body(exchange.size);
        }
        match kind {
            Kind::Page => Some(true),
            Kind::Download => None,
            Kind::Open => {
                let page = match (
                    first || session.redirect || !exchange.get || pause > 20_000,
                    pause > 1000,
                ) {
                    (true, _) => true,
                    (false, true) => as_asset <= as_page,
                    (false, false) => as_page > as_asset + 1.0,
                };
                *(if pause > 1000 || first {
                    &mut url.as_page
                } else {
                    &mut url.as_asset
                }) += 1.0;
                Some(page)
            }
            _ => Some(false),
        }
    }

    /// Begins a load of `page`: lists its possible assets, and offers the ones that are likely
    /// enough already.
    pub(super) fn open_load(
        &mut self,
        session: &mut Session,
        exchange: &Exchange<'_>,
        page: u32,
        referer: Option<u32>,
        implicit: bool,
        offers: &mut Vec<Candidate>,
    ) {
        self.close_finished(session, exchange.now, implicit);
        let status = if implicit { 200 } else { exchange.status };
        let contexts = self.store.contexts_of(page, status >= 400);
        for id in contexts {
            let crowd = &mut self.store.context_mut(id).crowd;
            count_user(&mut self.sightings, Name::Context(id), session.user, crowd);
        }
        let way = match (exchange.referer, referer) {
            _ if implicit => 0,
            (None, _) => 0,
            (Some(_), Some(_)) => 1,
            (Some(_), None) => 2,
        };
        let fetch = self.fetch_view(session, contexts, way + WAYS * answer(status));
        let load = Load {
            implicit,
            fetch,
            ..self.number_load(session, exchange, page, contexts)
        };
        let number = load.number;
        session.views += 1;
        let threshold = self.config.worth.threshold(0.0) as f32;
        let hopeful = self.model.fetch_probability(&load.fetch) >= HOPE * threshold;
        let judged = !implicit && !load.dirty && hopeful;
        if !implicit {
            contexts
                .iter()
                .for_each(|&context| self.store.context_mut(context).pending += 1.0);
        }
        // Most sessions have one load at a time, and the records are large.
        session.loads.reserve_exact(1);
        session.loads.push_back(load);
        if !implicit {
            let at = session.loads.len() - 1;
            session.loads[at].repeats = self.repeats(session, contexts[0], number);
            self.judge_repeats(session, at, offers);
        }
        if judged {
            self.judge(session, session.loads.len() - 1, None, offers);
        }
    }

    /// Creates the load with the next number, and notes the times at which it is due.
    fn number_load(
        &mut self,
        session: &Session,
        exchange: &Exchange<'_>,
        page: u32,
        contexts: [ContextId; 3],
    ) -> Load {
        let number = self.next_load;
        self.next_load = self.next_load.wrapping_add(1) & 0x7fff_ffff;
        let due = Due {
            at: exchange.now,
            session: exchange.session,
            load: number,
        };
        self.due.push_back(due);
        self.idle.push_back(due);
        Load {
            number,
            page,
            agent: session.agent,
            contexts,
            last: exchange.now,
            open: true,
            implicit: false,
            dirty: !exchange.get,
            views: session.views.min(15) as u8,
            fetch: FetchView::default(),
            fetches: 0,
            saved: 0,
            assets: Vec::new(),
            guesses: Vec::new(),
            listed: false,
            stages: Vec::new(),
            lead_support: LeadSupport::default(),
            repeats: Vec::new(),
            moments: 0,
        }
    }

    fn fetch_view(
        &self,
        session: &Session,
        contexts: [ContextId; 3],
        circumstance: usize,
    ) -> FetchView {
        let fetching = |id: ContextId, general: f32| {
            let context = self.store.context(id);
            if context.crowd.count >= self.least_users() {
                context.fetching(general)
            } else {
                general
            }
        };
        let site = fetching(contexts[2], self.model.fetches.p);
        let kind = fetching(contexts[1], site);
        let page = fetching(contexts[0], kind);
        self.model.fetch_view(
            [page, kind, site],
            session.fetches,
            session.agent,
            session.views,
            circumstance,
        )
    }

    /// Notes that an asset was requested: it belongs to a load, and may predict further requests.
    pub(super) fn asset(
        &mut self,
        session: &mut Session,
        exchange: &Exchange<'_>,
        (url, new, outcome): (u32, bool, Outcome),
        referer: Option<u32>,
        offers: &mut Vec<Candidate>,
    ) {
        let saves = self.is_of_use(outcome);
        let mut at = referer.and_then(|referer| session.load_of_referer(referer));
        if at.is_none()
            && let Some(page) = referer
            && !self.store.at(page).kind.is_asset()
            && !session.held.contains(page)
        {
            self.open_load(session, exchange, page, None, true, offers);
            at = Some(session.loads.len() - 1);
        }
        let Some(at) = at.or_else(|| session.loads.len().checked_sub(1)) else {
            return;
        };
        let load = &mut session.loads[at];
        if !load.open {
            return;
        }
        load.last = exchange.now;
        if !new {
            self.asked_again(session, at, (url, saves), offers);
            return;
        }
        let fetches = load.fetched(url, saves, &mut self.store);
        if matches!(fetches, 1 | 2 | 4 | 8) {
            let stage = 1 + fetches.trailing_zeros() as u8;
            self.judge(session, at, Some((stage, url, exchange.status)), offers);
        }
    }

    /// Judges the candidates of a load: at its page, or at an asset (stage, URL, status) of it.
    fn judge(
        &mut self,
        session: &mut Session,
        at: usize,
        asset: Option<(u8, u32, u16)>,
        offers: &mut Vec<Candidate>,
    ) {
        if !std::mem::replace(&mut session.loads[at].listed, true) {
            let contexts = session.loads[at].contexts;
            session.loads[at].guesses = self.guesses(session, contexts);
        }
        if let Some((1, url, _)) = asset {
            self.note_followers(session, at, url);
        }
        let load = &session.loads[at];
        let open = || load.guesses.iter().filter(|guess| guess.after == NOT_YET);
        let mut stage = Stage {
            number: 0,
            factor: 1.0,
            views: load.views,
            expected: open().map(|guess| guess.chance).sum(),
            lead: load.page,
            inputs: [0.0; _],
            sets: [0; 2],
            transfer: (self.config.aim == Aim::Transfers)
                .then(|| self.transfer_view(session, load, asset.is_some())),
            lead_support: load.lead_support,
            candidates: load.guesses.len(),
        };
        match asset {
            None => stage.factor = self.model.fetch_probability(&load.fetch),
            Some((number, url, status)) => {
                let first = answer(status)
                    + 4 * usize::from(load.implicit)
                    + 8 * usize::from(session.held.is_empty())
                    + 16 * usize::from(number > 1);
                let leads = self
                    .store
                    .at(url)
                    .leads
                    .filter(|_| self.store.is_public(url, self.least_users()));
                let view =
                    self.model
                        .lead_view(number, first, leads, session.fetches, session.agent);
                (stage.inputs, stage.sets, stage.factor) = view;
                (stage.number, stage.lead) = (number, url);
            }
        }
        let least = self.config.worth.threshold(0.0) as f32;
        let mut judged = std::mem::take(&mut self.judged);
        self.model.likely(&load.guesses, &stage, least, &mut judged);
        self.offer(session, &judged.found, offers);
        self.judged = judged;
        session.loads[at].stages.push(stage);
    }

    /// Offers the members of `judged` that are worth it, permitted and covered, best first.
    pub(super) fn offer(
        &mut self,
        session: &mut Session,
        judged: &[(u32, f32)],
        offers: &mut Vec<Candidate>,
    ) {
        let least_users = self.least_users();
        let mut worth: Vec<(u32, f64, f64)> = judged
            .iter()
            .filter_map(|&(id, probability)| {
                let url = self.store.at(id);
                let (probability, threshold) = (
                    f64::from(probability),
                    self.config.worth.threshold(f64::from(url.size)),
                );
                let wanted = probability > self.budget.least_probability(threshold)
                    && url.crowd.count >= least_users
                    && !session.offered.contains(id);
                wanted.then_some((id, probability, threshold))
            })
            .collect();
        worth.sort_by(|a, b| b.1.total_cmp(&a.1));
        let dearest = worth.iter().map(|offer| offer.2).fold(0.0, f64::max);
        let mut stake = self.budget.stake(dearest);
        for (id, probability, threshold) in worth {
            if !self.budget.pay(threshold, &mut stake) {
                continue;
            }
            session.offered.entry(id, Offer::Open);
            offers.push(self.candidate(id, probability));
        }
    }
}

//! `auto`: one predictor for every site, without settings.
//!
//! For every response that passes, it returns the other resources that this client will request in
//! this session, with their probabilities. A push pays exactly when its probability exceeds 1 -
//! omega, so the probability is the decision.
//!
//! The method:
//!
//! - **Page or asset.** A resource is classified by its path, media type and request destination,
//!   and by time only if these leave it open. Assets belong to the page that their Referer names.
//! - **Counts** are kept for the page, its kind and its site, each falling back on the next
//!   (`store`). They count only loads in which the client fetched something and did not hold the
//!   asset already, and old loads lose weight.
//! - **Followers.** The first asset of a load shows which of a page's alternatives it needs. The
//!   assets that follow it are counted as those of a page are.
//! - **Clients that fetch nothing** (a warm cache, a robot with a browser's name) are estimated
//!   separately, at the page and again at the load's first, second, fourth and eighth asset
//!   (`model`).
//! - **Transfers.** A request that gets a 304 or follows a long pause does not justify a push.
//!   The probability of the others is estimated separately (`transfer`).
//! - **Repeated requests** of resources that a session holds are learned separately (`repeat`).
//! - **Mixing.** The estimates are combined with weights that are learned online, and calibrated
//!   against the outcomes ([`mixer`]).
//!
//! A **budget** holds the gains and losses of all offers. Offers that it does not cover are not
//! made, so no traffic, however strange, becomes much more expensive than without push.
//!
//! A URL is offered only after enough different users requested it. The requests of fewer users,
//! their pages and their outcomes change no answer. No user data is kept beyond those counts.
//! Outcomes are learned when a session ends or ten minutes after the page, whichever comes first.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::ids::{IdMap, SmallMap};

mod candidate_list;
mod gains;
mod merge;
pub mod mixer;
mod model;
mod push_budget;
mod repeat;
mod saving;
mod session;
mod settings;
mod sightings;
mod state;
mod store;
mod transfer;
pub mod url;

pub use gains::{Gains, Gathering};
pub use saving::Saving;
pub use settings::{Aim, AutoConfig, Worth};
pub use state::{StateError, read_state};
pub use store::Place;

use candidate_list::CandidateList;
use gains::GainTable;
use model::{Lesson, Likely, Model};
use push_budget::PushBudget;
use repeat::LEAST_CHANCE;
use session::{Load, Offer, Session};
use sightings::SightingQueue;
use store::{Entry, NONE, Store};
use transfer::Outcome;
use url::Kind;

/// A response that is about to be sent, and the request it answers.
#[derive(Debug, Clone, Copy, Default)]
pub struct Exchange<'a> {
    /// The session: the requests of one client while its cache and its purpose stay the same.
    pub session: u64,
    /// The user of the session. All sessions of one user count once.
    pub user: u64,
    /// Milliseconds, of any epoch; never decreasing.
    pub now: i64,
    /// URL, absolute or (where one site is served) a path.
    pub url: &'a str,
    /// Indicates whether the method is GET.
    pub get: bool,
    /// Response status.
    pub status: u16,
    /// Body size in bytes; 0 if it is not known yet (see [`Auto::body_sent`]).
    pub size: u64,
    /// Referer, in the same form as `url`.
    pub referer: Option<&'a str>,
    /// User-Agent.
    pub agent: Option<&'a [u8]>,
    /// Content-Type of the response.
    pub content_type: Option<&'a [u8]>,
    /// The [kind](Kind::of_media_type) that the Content-Type shows, if the caller knows it.
    pub media_kind: Option<Option<Kind>>,
    /// `Sec-Fetch-Dest` of the request.
    pub destination: Option<&'a str>,
    /// `Accept` of the request.
    pub accept: Option<&'a str>,
}

impl Exchange<'_> {
    /// Returns the kind of the resource, if anything but its path reveals it.
    fn kind(&self) -> Option<Kind> {
        if let Some(kind) = self.destination.and_then(Kind::of_destination) {
            return Some(kind);
        }
        let (media_type, kind) = (self.content_type?, self.media_kind);
        let kind = kind.unwrap_or_else(|| Kind::of_media_type(media_type));
        let asked_for = self.accept.unwrap_or_default();
        let is_page = asked_for.starts_with("text/html") && media_type.starts_with(b"text/html");
        kind.or_else(|| is_page.then_some(Kind::Page))
    }
}

/// Something worth pushing.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// The URL to push.
    pub url: Arc<str>,
    /// The kind of the resource when it was last requested.
    pub kind: Kind,
    /// Probability that this session asks for it.
    pub probability: f64,
    /// Mean body size so far, bytes.
    pub expected_size: f64,
    /// The time since the URL became known. It is long for the URLs of a state that was read.
    pub known_for: Duration,
}

/// The predictor.
#[derive(Debug)]
pub struct Auto {
    config: AutoConfig,
    store: Store,
    model: Model,
    sessions: IdMap<u64, Box<Session>>,
    /// Loads in order of opening, to be closed when they have been idle, and to be learned from
    /// later.
    idle: VecDeque<Due>,
    due: VecDeque<Due>,
    next_load: u32,
    /// Bytes in the store at which memory is looked after at once.
    next_shrink: usize,
    scratch: Scratch,
    budget: PushBudget,
    lessons: Vec<Lesson>,
    candidates: CandidateList,
    judged: Likely,
    /// The knowledge for other gateways, if there are any.
    gains: Option<GainTable>,
    /// The users that other gateways have not heard of.
    sightings: Option<SightingQueue>,
}

/// A load to be looked after at some time.
#[derive(Debug, Clone, Copy)]
struct Due {
    at: i64,
    session: u64,
    load: u32,
}

/// A note per URL that costs nothing to clear.
#[derive(Debug, Default)]
struct Scratch {
    /// The round of each note above its value, in four bytes, since most notes are read from cold
    /// memory.
    notes: Vec<u32>,
    round: u32,
}

impl Scratch {
    /// The bits of a value. The positions of candidates and assets need no more.
    const VALUE_BITS: u32 = 11;
    /// The largest value.
    const MAX_VALUE: u32 = (1 << Self::VALUE_BITS) - 1;

    fn clear(&mut self, urls: usize) {
        self.notes.resize(urls.max(self.notes.len()), 0);
        self.round += 1;
        if self.round > u32::MAX >> Self::VALUE_BITS {
            self.notes.fill(0);
            self.round = 1;
        }
    }

    fn note(&mut self, url: u32, value: u32) {
        debug_assert!(value <= Self::MAX_VALUE, "{value}");
        self.notes[url as usize] = self.round << Self::VALUE_BITS | value;
    }

    fn get(&self, url: u32) -> Option<u32> {
        let note = self.notes[url as usize];
        (note >> Self::VALUE_BITS == self.round).then_some(note & Self::MAX_VALUE)
    }
}

const _: () = assert!(3 * store::LIMITS[0] < Scratch::MAX_VALUE as usize);

/// Idle time after which a load is over.
const LOAD_IDLE: i64 = 20_000;
/// Time after which a load is learned from even if its session goes on.
const HORIZON: i64 = 300_000;
/// Loads of a session that wait to be learned from at most.
const MAX_LOADS: usize = 8;
/// The share of a page's visits above which a resource belongs to the page.
const LEAST_RATE: f32 = 0.5;
/// The loads after which a page's own counts alone tell which resources it may request.
const KNOWN_LOADS: f32 = 3.0;
/// URLs of a session that are remembered as held at most; after that nothing is offered to it.
const MAX_HELD: usize = 20_000;

impl Auto {
    /// Creates a predictor without any knowledge.
    #[must_use]
    pub fn new(config: AutoConfig) -> Self {
        Self {
            next_shrink: config.max_memory / 4 * 3,
            budget: PushBudget::new(config.credit),
            config,
            store: Store::default(),
            model: Model::default(),
            sessions: IdMap::default(),
            idle: VecDeque::new(),
            due: VecDeque::new(),
            next_load: 0,
            scratch: Scratch::default(),
            lessons: Vec::new(),
            candidates: CandidateList::default(),
            judged: Likely::default(),
            gains: None,
            sightings: None,
        }
    }

    /// Makes room for URLs that are to come, as far as the memory permits that many. Otherwise the
    /// table of URLs is copied each time it grows.
    pub fn expect_urls(&mut self, urls: usize) {
        let most = self.config.max_memory / Store::LEAST_URL_BYTES;
        self.store.reserve_urls(urls.min(most));
    }

    /// Changes the condition under which a push pays, for example after the path was measured.
    pub fn set_worth(&mut self, worth: Worth) {
        self.config.worth = worth;
    }

    /// Estimated bytes of memory in use.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.store.bytes()
            + self
                .sessions
                .values()
                .map(|session| session.bytes())
                .sum::<usize>()
    }

    /// Notes that a response is about to be sent. Returns the pushes that are worth it, most
    /// probable first. Each URL is offered to a session once.
    pub fn sending(&mut self, exchange: &Exchange<'_>) -> Vec<Candidate> {
        self.sending_near(exchange, &mut { Place::NOWHERE }, Place::NOWHERE)
    }

    /// Does the same for a caller that remembers the positions of this URL and its Referer, as a
    /// replay does. A position that holds another URL by now costs a look-up.
    pub fn sending_near(
        &mut self,
        exchange: &Exchange<'_>,
        place: &mut Place,
        referer: Place,
    ) -> Vec<Candidate> {
        self.sweep(exchange.now);
        self.store.clock += 1;
        self.store.time = exchange.now;
        let url = self.store.url_near(exchange.url, *place);
        *place = self.store.place(url);
        let mut session = self.sessions.remove(&exchange.session).unwrap_or_else(|| {
            let agent = fnv1a(exchange.agent.unwrap_or_default());
            Box::new(Session::new(exchange.now, exchange.user, agent))
        });
        let kind = exchange.kind();
        let page = self.note_url(&session, url, exchange, kind);
        let new = !session.held.contains(url);
        let outcome = self.outcome(&session, url, exchange, kind);
        session.requested(url, self.is_of_use(outcome), &mut self.budget);
        if outcome != Outcome::Apart {
            self.budget.asked();
        }
        if new && page == Some(false) {
            self.learn_outcome(&mut session, url, outcome);
        }
        // The effects of naming a page must not reveal whether it is known.
        let least_users = self.least_users();
        let referer = exchange
            .referer
            .and_then(|name| self.store.find_near(name, referer));
        let referer = referer
            .filter(|&id| session.held.contains(id) || self.store.is_public(id, least_users));
        let mut offers = Vec::new();
        match page {
            Some(true) => self.open_load(&mut session, exchange, url, referer, false, &mut offers),
            Some(false) => self.asset(
                &mut session,
                exchange,
                (url, new, outcome),
                referer,
                &mut offers,
            ),
            None => {}
        }
        session.hold(
            url,
            &self.store.at(url).name,
            self.next_load,
            exchange.status != 200,
        );
        session.last = exchange.now;
        session.redirect = matches!(exchange.status, 301 | 302 | 303 | 307 | 308);
        if session.loads.len() > MAX_LOADS
            && let Some(load) = session.loads.pop_front()
        {
            self.finish(&mut session, load);
        }
        self.sessions.insert(exchange.session, session);
        if self.store.clock.is_multiple_of(1024) || self.store.bytes() > self.next_shrink {
            self.bound_memory();
        }
        offers.sort_by(|a: &Candidate, b: &Candidate| b.probability.total_cmp(&a.probability));
        offers
    }

    /// Notes that the client used a push with `page` instead of a request. For learning it counts
    /// as a request, whoever predicted it.
    pub fn push_used(&mut self, session: u64, page: &str, url: &str) {
        self.answered_by_push(session, page, url, Outcome::Transfer);
    }

    /// Notes the `Content-Type` of a push's response. The path of a URL may not show its kind, and
    /// no request shows that of a resource which pushes bring at each visit.
    pub fn push_answered(&mut self, url: &str, content_type: &str) {
        let kind = Kind::of_media_type(content_type.as_bytes()).filter(|kind| kind.is_asset());
        if let (Some(kind), Some(id)) = (kind, self.store.find(url))
            && self.store.at(id).kind == Kind::Open
        {
            self.store.at_mut(id).kind = kind;
        }
    }

    /// Notes that a push with `page` confirmed a copy that the client holds. For learning it counts
    /// as a request that is answered 304. The resource is not offered to this session again.
    pub fn push_confirmed(&mut self, session: u64, page: &str, url: &str) {
        self.answered_by_push(session, page, url, Outcome::Unchanged);
        self.push_cancelled(session, url);
    }

    fn answered_by_push(&mut self, id: u64, page: &str, url: &str, outcome: Outcome) {
        let Some(mut session) = self.sessions.remove(&id) else {
            return;
        };
        let (page, url) = (self.store.find(page), self.store.url(url));
        session.count(url, self.store.at_mut(url), &mut self.sightings);
        let saves = self.is_of_use(outcome);
        session.requested(url, saves, &mut self.budget);
        if session.held.contains(url) {
            session.came_again(url, saves);
        } else {
            self.learn_outcome(&mut session, url, outcome);
            if let Some(load) = session.load_of_push(page, url) {
                load.fetched(url, saves, &mut self.store);
            }
        }
        let is_confirmed = outcome == Outcome::Unchanged;
        session.hold(url, &self.store.at(url).name, self.next_load, is_confirmed);
        self.sessions.insert(id, session);
    }

    /// Returns the resources that more than half of the visits to a page request, most probable
    /// first. Enough users must have requested each of them. Unlike [`Auto::sending`], it changes
    /// nothing and takes no account of the session.
    #[must_use]
    pub fn resources(&self, page: &str) -> Vec<Candidate> {
        let least_users = self.least_users();
        let mut likely: Vec<_> = self
            .entries(page)
            .filter(|entry| {
                entry.rate.p > LEAST_RATE && self.store.is_public(entry.url, least_users)
            })
            .collect();
        likely.sort_by(|a, b| b.rate.p.total_cmp(&a.rate.p));
        likely
            .into_iter()
            .map(|entry| self.candidate(entry.url, f64::from(entry.rate.p)))
            .collect()
    }

    /// Returns the resources that at least a fifth of the visits to a page, and enough users,
    /// requested.
    pub fn needed(&self, page: &str) -> impl Iterator<Item = &str> {
        self.entries(page)
            .filter(|entry| entry.rate.p >= LEAST_CHANCE)
            .map(|entry| &*self.store.at(entry.url).name)
    }

    /// Returns the resources that visits to a page, and enough users, requested.
    fn entries(&self, page: &str) -> impl Iterator<Item = &Entry> {
        let id = self.store.find(page);
        let context = id.map(|id| self.store.at(id).contexts[0]);
        let context = context.filter(|&context| context != NONE);
        let known = context.map(|context| self.store.known(context, self.least_users()));
        known.into_iter().flatten()
    }

    /// Returns the resources that visits to a page may request, with the share of the visits that
    /// do: those of the page if several loads have shown them, else those of its kind and its site.
    /// A fifth of a known page's loads must request a resource, and enough users. It changes
    /// nothing.
    #[must_use]
    pub fn possible(&self, page: &str) -> Vec<Candidate> {
        let least_users = self.least_users();
        let contexts = self.store.find(page).map(|id| self.store.at(id).contexts);
        let Some(contexts) = contexts.filter(|contexts| !contexts.contains(&NONE)) else {
            return Vec::new();
        };
        let is_known = self.store.context(contexts[0]).loads >= KNOWN_LOADS;
        let contexts = if is_known { &contexts[..1] } else { &contexts };
        let mut found = HashSet::new();
        let mut possible = Vec::new();
        for entry in contexts
            .iter()
            .flat_map(|&context| self.store.known(context, least_users))
        {
            let is_likely = !is_known || entry.rate.p >= LEAST_CHANCE;
            if is_likely && self.store.is_public(entry.url, least_users) && found.insert(entry.url)
            {
                possible.push(self.candidate(entry.url, f64::from(entry.rate.p)));
            }
        }
        possible
    }

    /// Returns a URL as a candidate with this probability.
    fn candidate(&self, id: u32, probability: f64) -> Candidate {
        let url = self.store.at(id);
        let known_for = u64::try_from(self.store.time.saturating_sub(url.known_since));
        Candidate {
            url: url.name.clone(),
            kind: url.kind,
            probability,
            expected_size: f64::from(url.size),
            known_for: Duration::from_millis(known_for.unwrap_or(0)),
        }
    }

    /// The client refused a push: it holds the resource or does not want it. It is not offered to
    /// this session again.
    pub fn push_cancelled(&mut self, session: u64, url: &str) {
        if let (Some(url), Some(session)) = (self.store.find(url), self.sessions.get_mut(&session))
        {
            *session.offered.entry(url, Offer::Refused) = Offer::Refused;
        }
    }

    /// The body of a URL turned out to be of `size` bytes, which was not known yet when its head
    /// was sent.
    pub fn body_sent(&mut self, url: &str, size: u64) {
        if let Some(url) = self.store.find(url).filter(|_| size > 0) {
            self.store.at_mut(url).body(size);
        }
    }

    /// Ends a session: resources that were not requested by now count as not needed.
    pub fn session_closed(&mut self, session: u64) {
        if let Some(mut session) = self.sessions.remove(&session) {
            while let Some(load) = session.loads.pop_front() {
                self.finish(&mut session, load);
            }
        }
    }

    /// Merges the knowledge of another predictor, for example of another log or another day.
    pub fn merge(&mut self, other: &Self) {
        self.budget.trust();
        self.model.merge(&other.model);
        merge::merge_store(&mut self.store, &other.store);
        self.bound_memory();
    }

    /// Users that must have asked for a URL before anything is told of it.
    fn least_users(&self) -> u8 {
        self.config.min_users.clamp(1, store::USERS as u8)
    }

    /// Returns whether a push in place of a request with this outcome is of use.
    fn is_of_use(&self, outcome: Outcome) -> bool {
        self.config.aim == Aim::Requests || outcome == Outcome::Transfer
    }

    /// Closes a load if that is still to be done, and learns from it.
    fn finish(&mut self, session: &mut Session, mut load: Load) {
        self.close_load(session, &mut load);
        self.learn_from(&load);
    }

    /// Handles the loads whose time has come.
    fn sweep(&mut self, now: i64) {
        while let Some(&due) = self.idle.front().filter(|due| due.at + LOAD_IDLE <= now) {
            self.idle.pop_front();
            let Some(mut session) = self.sessions.remove(&due.session) else {
                continue;
            };
            if let Some(at) = session.position(due.load)
                && session.loads[at].open
            {
                if session.loads[at].last + LOAD_IDLE > now {
                    self.idle.push_back(Due { at: now, ..due });
                } else {
                    self.close_load_at(&mut session, at);
                }
            }
            self.sessions.insert(due.session, session);
        }
        while let Some(&due) = self.due.front().filter(|due| due.at + HORIZON <= now) {
            self.due.pop_front();
            let Some(mut session) = self.sessions.remove(&due.session) else {
                continue;
            };
            if let Some(load) = session
                .position(due.load)
                .and_then(|at| session.loads.remove(at))
            {
                self.finish(&mut session, load);
            }
            self.sessions.insert(due.session, session);
        }
    }

    /// Stays within the permitted memory: the longest idle sessions end first, then learned
    /// knowledge is thinned out.
    fn bound_memory(&mut self) {
        let limit = self.config.max_memory;
        let sessions: usize = self.sessions.values().map(|session| session.bytes()).sum();
        if sessions > limit / 4 {
            let mut order: Vec<(i64, u64)> = self
                .sessions
                .iter()
                .map(|(&id, session)| (session.last, id))
                .collect();
            order.sort_unstable();
            order.truncate(order.len().div_ceil(2));
            for (_, id) in order {
                self.session_closed(id);
            }
        }
        if self.store.bytes() > limit / 4 * 3 {
            let urls: Vec<u32> = self
                .sessions
                .values()
                .flat_map(|session| session.urls())
                .collect();
            let contexts: Vec<u32> = self
                .sessions
                .values()
                .flat_map(|session| session.contexts())
                .collect();
            self.store.shrink(limit / 4 * 3, &urls, &contexts);
            if let Some(gains) = &mut self.gains {
                gains.retain_known(&self.store);
            }
            if let Some(sightings) = &mut self.sightings {
                sightings.clear();
            }
        }
        // Memory of open sessions cannot be freed; do not try again at every request.
        self.next_shrink = (limit / 4 * 3).max(self.store.bytes() + limit / 16);
    }
}

/// Computes the FNV-1a hash with 64 bits, which is the same in every run.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

/// Room that a session's table of held URLs takes, per URL.
const HELD_BYTES: usize = 24;

/// URLs that a session was sent.
type Held = SmallMap<Holding>;

/// How a session came by a URL.
#[derive(Debug, Clone, Copy)]
struct Holding {
    /// Number of the next load at its first request.
    load: u32,
    /// Indicates whether the last answer was anything but a fresh copy.
    revalidated: bool,
}

//! The documented predictor with one set of options: basic, basic-less or basic-more behind three
//! calls.

use std::cmp::Ordering;

use tandem_predict::ids::{IdMap, SmallMap};

use crate::agent::Agent;
use crate::interner::UrlId;
use crate::learn::{Class, Known, LearnOptions, Learner, Request};
use crate::options::Options;

/// A push that is neither cancelled nor requested yet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Push {
    /// The pushed URL.
    pub asset: UrlId,
    /// The mean size at the time of the push, in bytes.
    pub size: f64,
    /// Number of the request that it was pushed for.
    pub load: u32,
    /// Order in which pushes were made.
    pub serial: u64,
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// How it was understood.
    pub class: Class,
    /// The page load the session is in after it.
    pub load: u32,
}

/// The predictor.
#[derive(Debug)]
pub struct Basic {
    options: Options,
    learner: Learner,
    open: IdMap<u64, Open>,
    candidates: Vec<(f64, Known)>,
    serial: u64,
}

/// The outstanding pushes of a session.
#[derive(Debug)]
struct Open {
    agent: Agent,
    pushes: SmallMap<Push>,
}

impl Basic {
    /// An empty one.
    #[must_use]
    pub fn new(options: Options) -> Self {
        let learner = Learner::new(LearnOptions::of(&options));
        Self {
            options,
            learner,
            open: IdMap::default(),
            candidates: Vec::new(),
            serial: 0,
        }
    }

    /// Returns whether a request counts. Others change nothing.
    #[must_use]
    pub fn considers(&self, request: &Request) -> bool {
        self.learner.considers(request)
    }

    /// Notes that a response is about to be sent. Returns the classification of the request, or
    /// `None` if it does not count. Adds the pushes to `pushes`, best first, and equal ones in the
    /// order of `by_url`.
    pub fn sending(
        &mut self,
        request: &Request,
        by_url: impl Fn(UrlId, UrlId) -> Ordering,
        pushes: &mut Vec<Push>,
    ) -> Option<Sent> {
        if !self.considers(request) {
            return None;
        }
        let open = self.open.entry(request.session).or_insert_with(|| Open {
            agent: request.agent,
            pushes: SmallMap::default(),
        });
        let (options, candidates) = (&self.options, &mut self.candidates);
        candidates.clear();
        let class = self.learner.sending(request, |known| {
            if let Some(probability) =
                wanted(options, &known).filter(|_| !open.pushes.contains(known.asset))
            {
                candidates.push((probability, known));
            }
        });
        candidates.sort_by(|(p, a), (q, b)| q.total_cmp(p).then_with(|| by_url(a.asset, b.asset)));
        candidates.truncate(options.max_assets.unwrap_or(usize::MAX));
        for (_, known) in candidates {
            let push = Push {
                asset: known.asset,
                size: known.size,
                load: request.number,
                serial: self.serial,
            };
            self.serial += 1;
            open.pushes.entry(known.asset, push);
            pushes.push(push);
        }
        if class == Class::Asset {
            open.pushes.remove(request.url);
        }
        let load = self
            .learner
            .current_load(request.session)
            .unwrap_or(request.number);
        Some(Sent { class, load })
    }

    /// Forgets and returns a push that the client refused or requested anyway.
    pub fn push_cancelled(&mut self, session: u64, url: UrlId) -> Option<Push> {
        self.open.get_mut(&session)?.pushes.remove(url)
    }

    /// The session is over. Returns its outstanding pushes in the order they were made; with
    /// *assume hits* they count as requested.
    pub fn session_closed(&mut self, session: u64) -> Vec<Push> {
        let Some(open) = self.open.remove(&session) else {
            return Vec::new();
        };
        let mut left: Vec<Push> = open.pushes.iter().map(|(_, push)| *push).collect();
        left.sort_unstable_by_key(|push| push.serial);
        if self.options.assume_hits {
            let pushes = left.iter().map(|push| (push.asset, push.size, push.load));
            self.learner.assume_requested(session, open.agent, pushes);
        }
        self.learner.session_closed(session);
        left
    }
}

/// The asset's probability if the options let it be pushed.
fn wanted(options: &Options, known: &Known) -> Option<f64> {
    let allowed = !(options.keep_history && known.in_history)
        && options.max_size.is_none_or(|max| known.size <= max as f64);
    let probability =
        options
            .algorithm
            .probability(known.count, known.pages, known.earlier, known.later);
    (allowed && probability >= options.threshold).then_some(probability)
}

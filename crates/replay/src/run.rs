//! A replay: drives a predictor by the sessions of a log, and counts the pushes that it would have
//! made.

use tandem_predict::ids::SmallMap;

use crate::basic::{Basic, Push, Sent};
use crate::cost::Tally;
use crate::interner::UrlId;
use crate::learn::{Class, Request};
use crate::log::{AccessLog, Record, Verb};
use crate::options::Options;
use crate::sessions::Sessions;

/// An event of a running replay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Event {
    /// A push made with the response to the request on `line`.
    Push {
        /// Session.
        session: u32,
        /// Line of the request that it was made for.
        line: u32,
        /// The pushed URL.
        asset: UrlId,
    },
    /// A considered request.
    Request {
        /// Session.
        session: u32,
        /// The line of the request.
        line: u32,
        /// The requested URL.
        url: UrlId,
        /// How it was classed.
        class: Class,
        /// Indicates whether it had been pushed.
        hit: bool,
    },
    /// A push without a request, reported when its session is closed.
    Mistake {
        /// Session.
        session: u32,
        /// Line of the request that it was made for.
        line: u32,
        /// The pushed URL.
        asset: UrlId,
    },
}

/// A predictor as a replay drives it.
pub trait Replayed {
    /// `record` asks for something: forgets and returns the push of it, if there is one
    /// outstanding.
    fn requested(&mut self, session: u32, url: UrlId) -> Option<Push>;
    /// Sends the response to `record`, and adds the pushes that go with it.
    fn sending(&mut self, session: u32, record: &Record, pushes: &mut Vec<Push>) -> Sent;
    /// The session is over; returns the outstanding pushes in the order they were made.
    fn closed(&mut self, session: u32) -> Vec<Push>;
}

/// A documented algorithm, driven by a replay.
pub struct BasicReplay<'a> {
    log: &'a AccessLog,
    basic: Basic,
}

impl<'a> BasicReplay<'a> {
    /// Creates an empty predictor for `log`. *Assume hits* is off in any case: a log shows the
    /// hits.
    #[must_use]
    pub fn new(log: &'a AccessLog, options: &Options) -> Self {
        Self {
            log,
            basic: Basic::new(Options {
                assume_hits: false,
                ..options.clone()
            }),
        }
    }
}

impl Replayed for BasicReplay<'_> {
    fn requested(&mut self, session: u32, url: UrlId) -> Option<Push> {
        self.basic.push_cancelled(u64::from(session), url)
    }

    fn sending(&mut self, session: u32, record: &Record, pushes: &mut Vec<Push>) -> Sent {
        let request = request_of(self.log, session, record);
        // Every step was found to be considered when sessions were cut.
        self.basic
            .sending(&request, |a, b| a.cmp(&b), pushes)
            .unwrap_or(Sent {
                class: Class::Asset,
                load: record.line,
            })
    }

    fn closed(&mut self, session: u32) -> Vec<Push> {
        self.basic.session_closed(u64::from(session))
    }
}

/// A record as the documented algorithms take it.
#[must_use]
pub fn request_of(log: &AccessLog, session: u32, record: &Record) -> Request {
    Request {
        session: u64::from(session),
        user: u64::from(record.user),
        number: record.line,
        url: record.url,
        favicon: false,
        get: record.verb == Verb::Get,
        status: record.status,
        size: record.size,
        agent: log.agents[record.agent as usize],
        now: record.time,
    }
}

/// Runs `predictor` over `sessions` of `records`; `event` is told everything in order.
pub fn replay(
    log: &AccessLog,
    records: &[Record],
    sessions: &Sessions,
    predictor: &mut impl Replayed,
    mut event: impl FnMut(Event),
) -> Tally {
    let mut tally = sessions.tally.clone();
    let mut seen = vec![[false; 2]; log.urls.len()];
    let mut pushes = Vec::new();
    for step in &sessions.steps {
        let record = &records[step.record as usize];
        if let Some(old) = step.closes {
            close(predictor, old, &mut tally, &mut event);
        }
        let hit = predictor.requested(step.session, record.url);
        pushes.clear();
        let sent = predictor.sending(step.session, record, &mut pushes);
        for push in &pushes {
            tally.pushes += 1;
            event(Event::Push {
                session: step.session,
                line: record.line,
                asset: push.asset,
            });
        }
        tally.count(record, sent, hit.as_ref(), &mut seen[record.url as usize]);
        event(Event::Request {
            session: step.session,
            line: record.line,
            url: record.url,
            class: sent.class,
            hit: hit.is_some(),
        });
    }
    for &session in &sessions.open {
        close(predictor, session, &mut tally, &mut event);
    }
    tally
}

fn close(
    predictor: &mut impl Replayed,
    session: u32,
    tally: &mut Tally,
    event: &mut impl FnMut(Event),
) {
    for push in predictor.closed(session) {
        tally.mistakes += 1;
        tally.mistake_bytes += push.size;
        event(Event::Mistake {
            session,
            line: push.load,
            asset: push.asset,
        });
    }
}

impl Tally {
    fn count(&mut self, record: &Record, sent: Sent, hit: Option<&Push>, seen: &mut [bool; 2]) {
        let page = sent.class == Class::Page;
        let new = !std::mem::replace(&mut seen[usize::from(page)], true);
        match sent.class {
            Class::Page => {
                self.pages += 1;
                self.unique_pages += u64::from(new);
            }
            Class::Asset => {
                self.assets += 1;
                self.unique_assets += u64::from(new);
            }
        }
        if let Some(push) = hit {
            self.hits += 1;
            self.hit_bytes += push.size;
            self.delayed_hits += u64::from(push.load != sent.load);
            self.hits_on_pages += u64::from(page);
            self.hits_not_modified += u64::from(record.status == 304);
            let saved_transfer = !page && record.status != 304;
            self.hits_without_transfer += u64::from(!saved_transfer);
        }
    }
}

/// Replays one of the documented algorithms over a whole log.
pub fn replay_basic(
    log: &AccessLog,
    options: &Options,
    timeout: i64,
    event: impl FnMut(Event),
) -> Tally {
    let sessions = Sessions::cut(log, &log.records, timeout, options.ignore_mobile);
    replay(
        log,
        &log.records,
        &sessions,
        &mut BasicReplay::new(log, options),
        event,
    )
}

/// Pushes outstanding per session, for predictors that do not keep them themselves.
#[derive(Debug, Default)]
pub struct Outstanding {
    sessions: Vec<SmallMap<Push>>,
    serial: u64,
    unnamed: u32,
}

impl Outstanding {
    /// A number for a URL that has none, above the `named` ones.
    pub fn unnamed(&mut self, named: UrlId) -> UrlId {
        self.unnamed += 1;
        named + self.unnamed
    }

    fn of(&mut self, session: u32) -> &mut SmallMap<Push> {
        if self.sessions.len() <= session as usize {
            self.sessions
                .resize_with(session as usize + 1, SmallMap::default);
        }
        &mut self.sessions[session as usize]
    }

    /// Adds a push and returns it; `None` if the same is outstanding already.
    pub fn add(&mut self, session: u32, asset: UrlId, size: f64, load: u32) -> Option<Push> {
        let serial = self.serial;
        let pushes = self.of(session);
        if pushes.contains(asset) {
            return None;
        }
        let push = Push {
            asset,
            size,
            load,
            serial,
        };
        pushes.entry(asset, push);
        self.serial += 1;
        Some(push)
    }

    /// Takes out a push.
    pub fn take(&mut self, session: u32, url: UrlId) -> Option<Push> {
        self.of(session).remove(url)
    }

    /// Takes out all of a session's, in the order they were made.
    pub fn take_all(&mut self, session: u32) -> Vec<Push> {
        let mut left: Vec<Push> = self.of(session).iter().map(|(_, push)| *push).collect();
        *self.of(session) = SmallMap::default();
        left.sort_unstable_by_key(|push| push.serial);
        left
    }
}

//! The statistics of the three documented algorithms, without their pushes (the thesis's Algorithms
//! 1 to 6).
//!
//! Pushes never change the statistics, so learning is separate: [`basic`](crate::basic) adds one
//! set of options to it, and [`grid`](crate::grid) evaluates hundreds of sets over a single pass of
//! learning.

use tandem_predict::ids::{IdMap, SmallMap};

use crate::agent::{Agent, Browser};
use crate::interner::UrlId;
use crate::options::{Algorithm, Options};

/// A response that is about to be sent.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// The session: a multiplexed connection, or its equivalent in a log.
    pub session: u64,
    /// The user behind it; sessions of one user share a history.
    pub user: u64,
    /// Number of this request; a page load is named after its page's request.
    pub number: u32,
    /// Requested URL.
    pub url: UrlId,
    /// Indicates whether its path ends in `/favicon.ico`.
    pub favicon: bool,
    /// Indicates whether the method is GET.
    pub get: bool,
    /// Response status.
    pub status: u16,
    /// Body size in bytes.
    pub size: u64,
    /// The client's software.
    pub agent: Agent,
    /// Time in milliseconds, of any epoch.
    pub now: i64,
}

/// The part of the options that affects learning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LearnOptions {
    /// See [`Options::max_page_load_timeout`](crate::Options::max_page_load_timeout).
    pub max_page_load_timeout: i64,
    /// See [`Options::page_load_timeout`](crate::Options::page_load_timeout).
    pub page_load_timeout: i64,
    /// See [`Options::min_history`](crate::Options::min_history).
    pub min_history: u32,
    /// See [`Options::ignore_mobile`](crate::Options::ignore_mobile).
    pub ignore_mobile: bool,
    /// See [`Options::consider_browser`](crate::Options::consider_browser).
    pub consider_browser: bool,
    /// Indicates whether histories of users are kept.
    pub keep_history: bool,
    /// Indicates whether the counters of basic-more are kept.
    pub count_earlier: bool,
    /// Indicates whether old page loads must stay writable until the session ends.
    pub keep_loads: bool,
}

impl LearnOptions {
    /// Returns the part of `options` that affects learning.
    pub(crate) fn of(options: &Options) -> Self {
        Self {
            max_page_load_timeout: options.max_page_load_timeout,
            page_load_timeout: options.page_load_timeout,
            min_history: options.min_history,
            ignore_mobile: options.ignore_mobile,
            consider_browser: options.consider_browser,
            keep_history: options.keep_history,
            count_earlier: options.algorithm == Algorithm::BasicMore,
            keep_loads: options.assume_hits,
        }
    }

    /// Returns whether a request counts.
    pub(crate) fn considers(&self, request: &Request) -> bool {
        !request.favicon && request.agent.known && !(self.ignore_mobile && request.agent.mobile)
    }

    /// The number of tables of URLs.
    pub(crate) fn tables(&self) -> usize {
        if self.consider_browser {
            Browser::COUNT
        } else {
            1
        }
    }

    /// The table for a client.
    pub(crate) fn table(&self, agent: Agent) -> usize {
        if self.consider_browser {
            agent.browser as usize
        } else {
            0
        }
    }
}

/// A known asset of the page being sent, not yet requested in the session, with the inputs of its
/// probability.
#[derive(Debug, Clone, Copy)]
pub struct Known {
    /// The asset.
    pub asset: UrlId,
    /// Loads of the page in which it appeared.
    pub count: u32,
    /// Loads of the page.
    pub pages: u32,
    /// Loads of the page before which it was requested in the same session.
    pub earlier: u32,
    /// Loads of the page that were not their session's first.
    pub later: u32,
    /// Mean size of its responses, bytes.
    pub size: f64,
    /// Indicates whether the user requested it in an earlier session.
    pub in_history: bool,
}

/// How a request was understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// It started a page load.
    Page,
    /// It belongs to the current page load.
    Asset,
}

/// Statistics of a URL as a page.
#[derive(Debug, Default, Clone)]
struct PageStats {
    assets: SmallMap<u32>,
    earlier: SmallMap<u32>,
    later: u32,
}

/// The requests of a URL that were classified.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Requests {
    as_asset: u32,
    as_page: u32,
}

impl Requests {
    fn mostly_page(self) -> bool {
        self.as_asset == 0 || self.as_asset < self.as_page
    }

    /// Counts a request of this class, unless its answer excludes it.
    pub(crate) fn count(&mut self, class: Class, request: &Request) {
        match class {
            Class::Page => self.as_page += u32::from(!is_dirty(request)),
            Class::Asset => self.as_asset += u32::from(is_full_asset(request)),
        }
    }
}

/// Returns whether the load of a page teaches nothing, because of its answer.
fn is_dirty(page: &Request) -> bool {
    !matches!(page.status, 200 | 301 | 302)
}

/// Returns whether the answer to an asset is one that a push could have given.
fn is_full_asset(asset: &Request) -> bool {
    asset.get && asset.status == 200
}

/// Returns the class of a request that comes `pause` milliseconds after the one before it, or as
/// the first of its session. `url` has the earlier requests of its URL.
pub(crate) fn class_of(pause: Option<i64>, url: Requests, options: &LearnOptions) -> Class {
    let starts_load = pause.is_none_or(|pause| {
        pause > options.max_page_load_timeout
            || (pause > options.page_load_timeout && url.mostly_page())
    });
    if starts_load {
        Class::Page
    } else {
        Class::Asset
    }
}

/// Statistics of a URL.
#[derive(Debug, Default, Clone)]
struct UrlStats {
    requests: Requests,
    size: f64,
    page: Option<Box<PageStats>>,
}

/// A page and the requests that followed it.
#[derive(Debug)]
struct Load {
    number: u32,
    page: UrlId,
    dirty: bool,
    duplicate: bool,
    /// Filled only where old loads stay writable.
    urls: Vec<UrlId>,
}

#[derive(Debug)]
struct Session {
    user: u64,
    last_time: i64,
    loads: Vec<Load>,
    /// Every resource of the session with the number of the load it last appeared in.
    resources: SmallMap<u32>,
    /// Every URL asked for, whatever came of it; filled only where histories are kept.
    requested: Vec<UrlId>,
}

/// Statistics and sessions.
#[derive(Debug)]
pub struct Learner {
    options: LearnOptions,
    tables: Vec<Vec<UrlStats>>,
    sessions: IdMap<u64, Session>,
    histories: IdMap<u64, SmallMap<()>>,
}

impl Learner {
    /// An empty one.
    #[must_use]
    pub fn new(options: LearnOptions) -> Self {
        Self {
            options,
            tables: vec![Vec::new(); options.tables()],
            sessions: IdMap::default(),
            histories: IdMap::default(),
        }
    }

    /// Returns whether a request counts.
    #[must_use]
    pub fn considers(&self, request: &Request) -> bool {
        self.options.considers(request)
    }

    /// The page load a session is in.
    #[must_use]
    pub fn current_load(&self, session: u64) -> Option<u32> {
        self.sessions
            .get(&session)?
            .loads
            .last()
            .map(|load| load.number)
    }

    /// Takes in a request that counts. If it is a page that may be pushed for, `known` is called
    /// for each of its known assets that the session has not requested yet, before this request
    /// changes any count.
    pub fn sending(&mut self, request: &Request, known: impl FnMut(Known)) -> Class {
        let session = self
            .sessions
            .entry(request.session)
            .or_insert_with(|| Session {
                user: request.user,
                last_time: request.now,
                loads: Vec::new(),
                resources: SmallMap::default(),
                requested: Vec::new(),
            });
        let table = &mut self.tables[self.options.table(request.agent)];
        let requests = stats_of(table, request.url).requests;
        let pause = request.now.saturating_sub(session.last_time);
        let pause = (!session.loads.is_empty()).then_some(pause);
        let class = class_of(pause, requests, &self.options);
        match class {
            Class::Page => {
                let history = self.histories.get(&session.user);
                page(session, table, request, &self.options, history, known);
            }
            Class::Asset => {
                // A session has a page before it can have an asset, so there is a last load.
                let at = session.loads.len() - 1;
                if is_full_asset(request) {
                    asset(
                        session,
                        table,
                        at,
                        request.url,
                        request.size as f64,
                        self.options.keep_loads,
                    );
                }
            }
        }
        if self.options.keep_history {
            session.requested.push(request.url);
        }
        session.last_time = request.now;
        class
    }

    /// Treats pushes that were taken for hits as requested. Each is (asset, size, number of the
    /// page load).
    pub fn assume_requested(
        &mut self,
        session: u64,
        agent: Agent,
        pushes: impl Iterator<Item = (UrlId, f64, u32)>,
    ) {
        let Some(open) = self.sessions.get_mut(&session) else {
            return;
        };
        let table = &mut self.tables[self.options.table(agent)];
        for (url, size, number) in pushes {
            if let Some(at) = open.loads.iter().position(|load| load.number == number) {
                asset(open, table, at, url, size, self.options.keep_loads);
            }
        }
    }

    /// Forgets a session; its requests become its user's history.
    pub fn session_closed(&mut self, session: u64) {
        let Some(closed) = self.sessions.remove(&session) else {
            return;
        };
        if self.options.keep_history {
            let history = self.histories.entry(closed.user).or_default();
            for url in closed.requested {
                history.entry(url, ());
            }
        }
    }
}

impl Session {
    /// Adds a resource to the session and to the load at `at`, which it spoils if it was there
    /// already.
    fn add_resource(&mut self, at: usize, url: UrlId, keep_loads: bool) {
        let current = at + 1 == self.loads.len();
        let load = &mut self.loads[at];
        let number = load.number;
        let last = self.resources.entry(url, u32::MAX);
        let present = if current {
            *last == number
        } else {
            load.urls.contains(&url)
        };
        if present {
            load.duplicate = true;
            return;
        }
        if keep_loads {
            load.urls.push(url);
        }
        if current || *last == u32::MAX {
            *last = number;
        }
    }
}

fn page(
    session: &mut Session,
    table: &mut [UrlStats],
    request: &Request,
    options: &LearnOptions,
    history: Option<&SmallMap<()>>,
    known: impl FnMut(Known),
) {
    if !options.keep_loads {
        session.loads.clear();
    }
    let dirty = is_dirty(request);
    session.loads.push(Load {
        number: request.number,
        page: request.url,
        dirty,
        duplicate: false,
        urls: Vec::new(),
    });
    session.add_resource(session.loads.len() - 1, request.url, options.keep_loads);
    if dirty {
        return;
    }
    let stats = &table[request.url as usize];
    if stats.requests.as_page >= options.min_history
        && let Some(page) = &stats.page
    {
        offer(session, table, stats.requests.as_page, page, history, known);
    }
    let stats = &mut table[request.url as usize];
    if options.count_earlier && session.resources.len() > 1 {
        let page = stats.page.get_or_insert_default();
        page.later += 1;
        for &resource in session.resources.keys() {
            *page.earlier.entry(resource, 0) += 1;
        }
    }
    stats.requests.as_page += 1;
}

fn offer(
    session: &Session,
    table: &[UrlStats],
    pages: u32,
    page: &PageStats,
    history: Option<&SmallMap<()>>,
    mut known: impl FnMut(Known),
) {
    for (asset, &count) in page.assets.iter() {
        let stats = &table[asset as usize];
        if stats.requests.mostly_page() || session.resources.contains(asset) {
            continue;
        }
        known(Known {
            asset,
            count,
            pages,
            earlier: page.earlier.get(asset).copied().unwrap_or(0),
            later: page.later,
            size: stats.size,
            in_history: history.is_some_and(|history| history.contains(asset)),
        });
    }
}

/// Returns the statistics of a URL, which are new if it was never seen.
fn stats_of(table: &mut Vec<UrlStats>, url: UrlId) -> &mut UrlStats {
    let at = url as usize;
    if table.len() <= at {
        table.resize_with(at + 1, UrlStats::default);
    }
    &mut table[at]
}

fn asset(
    session: &mut Session,
    table: &mut Vec<UrlStats>,
    at: usize,
    url: UrlId,
    size: f64,
    keep_loads: bool,
) {
    session.add_resource(at, url, keep_loads);
    let stats = stats_of(table, url);
    let count = f64::from(stats.requests.as_asset);
    stats.size = (stats.size * count + size) / (count + 1.0);
    stats.requests.as_asset += 1;
    let load = &session.loads[at];
    if !load.duplicate && !load.dirty {
        // The page may have come with another agent, and be in another table.
        let page = stats_of(table, load.page).page.get_or_insert_default();
        *page.assets.entry(url, 0) += 1;
    }
}

//! The documented algorithms once more, transcribed line by line with plain maps and no thought of
//! speed, and the fast ones held against them on random traffic.
//!
//! Names follow the document's Algorithms 1 to 6. Its slips are corrected as the crate's
//! documentation of the rules says: the push filter asks about the asset, counting happens whether
//! or not anything was pushed, and a closed session treats the pushed asset.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tandem_replay::agent::{Agent, Browser};
use tandem_replay::learn::Request;
use tandem_replay::{Algorithm, Basic, Options};

type Url = u32;
type Session = u64;
type Resid = u32;

#[derive(Clone, Copy, PartialEq, Debug)]
struct OpenPush {
    asset: Url,
    size: f64,
    resid: Resid,
    page: Url,
}

/// The maps that *consider browser* keeps once per browser.
#[derive(Default)]
struct Stats {
    stat: BTreeMap<Url, BTreeSet<Url>>,
    stat_n: BTreeMap<(Url, Url), u32>,
    stat_more_n: BTreeMap<(Url, Url), u32>,
    assets: BTreeMap<Url, u32>,
    pages: BTreeMap<Url, u32>,
    pages_more: BTreeMap<Url, u32>,
    sizes: BTreeMap<Url, f64>,
}

struct Reference {
    o: Options,
    stats: BTreeMap<u8, Stats>,
    last_time: BTreeMap<Session, i64>,
    pushes: BTreeMap<Session, Vec<OpenPush>>,
    last_page: BTreeMap<Session, (Resid, Url)>,
    pages_dirty: BTreeSet<(Session, Resid)>,
    dups: BTreeSet<(Session, Resid)>,
    pageloads: BTreeMap<(Session, Resid), BTreeSet<Url>>,
    ses_resources: BTreeMap<Session, BTreeSet<Url>>,
    requested: BTreeMap<Session, (u64, BTreeSet<Url>)>,
    history: BTreeMap<u64, BTreeSet<Url>>,
}

fn get<K: Ord>(map: &BTreeMap<K, u32>, key: &K) -> u32 {
    map.get(key).copied().unwrap_or(0)
}

impl Reference {
    fn new(o: Options) -> Self {
        Self {
            o,
            stats: BTreeMap::new(),
            last_time: BTreeMap::new(),
            pushes: BTreeMap::new(),
            last_page: BTreeMap::new(),
            pages_dirty: BTreeSet::new(),
            dups: BTreeSet::new(),
            pageloads: BTreeMap::new(),
            ses_resources: BTreeMap::new(),
            requested: BTreeMap::new(),
            history: BTreeMap::new(),
        }
    }

    fn map(&mut self, agent: Agent) -> &mut Stats {
        let browser = if self.o.consider_browser {
            agent.browser as u8
        } else {
            0
        };
        self.stats.entry(browser).or_default()
    }

    fn sending(&mut self, r: &Request) -> Vec<(Url, f64)> {
        if r.favicon || !r.agent.known || (self.o.ignore_mobile && r.agent.mobile) {
            return Vec::new();
        }
        let mut pushed = Vec::new();
        if self.is_page(r) {
            pushed = self.proc_page(r);
        } else {
            self.push_cancelled(r.session, r.url);
            let (resid, page) = self.last_page[&r.session];
            self.proc_asset(
                r.session,
                r.agent,
                r.url,
                r.get,
                r.status,
                r.size as f64,
                resid,
                page,
            );
        }
        self.requested
            .entry(r.session)
            .or_insert((r.user, BTreeSet::new()))
            .1
            .insert(r.url);
        self.last_time.insert(r.session, r.now);
        pushed
    }

    fn push_cancelled(&mut self, session: Session, url: Url) {
        self.pushes
            .entry(session)
            .or_default()
            .retain(|push| push.asset != url);
    }

    fn session_closed(&mut self, session: Session, agent: Agent) -> Vec<(Url, f64)> {
        let open = self.pushes.remove(&session).unwrap_or_default();
        if self.o.assume_hits {
            for push in &open {
                self.proc_asset(
                    session, agent, push.asset, true, 200, push.size, push.resid, push.page,
                );
            }
        }
        if let Some((user, urls)) = self.requested.remove(&session) {
            self.history.entry(user).or_default().extend(urls);
        }
        self.last_page.remove(&session);
        self.ses_resources.remove(&session);
        self.last_time.remove(&session);
        self.dups.retain(|&(s, _)| s != session);
        self.pages_dirty.retain(|&(s, _)| s != session);
        self.pageloads.retain(|&(s, _), _| s != session);
        open.iter().map(|push| (push.asset, push.size)).collect()
    }

    fn is_page(&mut self, r: &Request) -> bool {
        if !self.last_page.contains_key(&r.session) {
            return true;
        }
        let last = self.last_time[&r.session];
        if r.now - self.o.max_page_load_timeout > last {
            return true;
        }
        let late = r.now - self.o.page_load_timeout > last;
        let stats = self.map(r.agent);
        let (as_asset, as_page) = (get(&stats.assets, &r.url), get(&stats.pages, &r.url));
        late && (as_asset == 0 || as_asset < as_page)
    }

    fn is_allowed_for_push(&mut self, r: &Request, asset: Url) -> bool {
        let (keep, limit) = (self.o.keep_history, self.o.max_size);
        let in_history = self
            .history
            .get(&r.user)
            .is_some_and(|urls| urls.contains(&asset));
        let requested = self.ses_resources[&r.session].contains(&asset);
        let open = self
            .pushes
            .get(&r.session)
            .is_some_and(|open| open.iter().any(|push| push.asset == asset));
        let stats = self.map(r.agent);
        let (as_asset, as_page) = (get(&stats.assets, &asset), get(&stats.pages, &asset));
        if requested || as_asset == 0 || as_asset < as_page || (keep && in_history) {
            return false;
        }
        if limit.is_some_and(|limit| (limit as f64) < stats.sizes[&asset]) {
            return false;
        }
        !open
    }

    fn get_probability(&mut self, r: &Request, asset: Url) -> f64 {
        let algorithm = self.o.algorithm;
        let stats = self.map(r.agent);
        let n = f64::from(get(&stats.stat_n, &(r.url, asset)));
        let pages = f64::from(get(&stats.pages, &r.url));
        let basic = n / pages;
        match algorithm {
            Algorithm::Basic => basic,
            Algorithm::BasicLess => basic * (1.0 - 1.0 / pages),
            Algorithm::BasicMore => {
                let m = f64::from(get(&stats.stat_more_n, &(r.url, asset)));
                let later = f64::from(get(&stats.pages_more, &r.url));
                let ratio = if later == 0.0 { 0.0 } else { m / later };
                basic + (1.0 - basic) * f64::min(1.0, ratio)
            }
        }
    }

    fn proc_page(&mut self, r: &Request) -> Vec<(Url, f64)> {
        self.last_page.insert(r.session, (r.number, r.url));
        self.add_resource(r.session, r.number, r.url);
        if ![200, 301, 302].contains(&r.status) {
            self.pages_dirty.insert((r.session, r.number));
            return Vec::new();
        }
        let mut candidates = Vec::new();
        if get(&self.map(r.agent).pages, &r.url) >= self.o.min_history {
            for asset in self
                .map(r.agent)
                .stat
                .get(&r.url)
                .cloned()
                .unwrap_or_default()
            {
                if self.is_allowed_for_push(r, asset) {
                    let probability = self.get_probability(r, asset);
                    if probability >= self.o.threshold {
                        candidates.push((asset, probability));
                    }
                }
            }
        }
        // Best first; the set above was in URL order and the sort is stable.
        candidates.sort_by(|a, b| b.1.partial_cmp(&a.1).expect("no probability is NaN"));
        candidates.truncate(self.o.max_assets.unwrap_or(candidates.len()));
        let mut pushed = Vec::new();
        for (asset, _) in candidates {
            let size = self.map(r.agent).sizes[&asset];
            let push = OpenPush {
                asset,
                size,
                resid: r.number,
                page: r.url,
            };
            self.pushes.entry(r.session).or_default().push(push);
            pushed.push((asset, size));
        }
        let resources = self.ses_resources[&r.session].clone();
        let more = self.o.algorithm == Algorithm::BasicMore;
        let stats = self.map(r.agent);
        if more && resources.len() > 1 {
            *stats.pages_more.entry(r.url).or_default() += 1;
            for resource in resources {
                *stats.stat_more_n.entry((r.url, resource)).or_default() += 1;
            }
        }
        *stats.pages.entry(r.url).or_default() += 1;
        pushed
    }

    #[expect(clippy::too_many_arguments, reason = "they are the document's")]
    fn proc_asset(
        &mut self,
        session: Session,
        agent: Agent,
        url: Url,
        get_method: bool,
        status: u16,
        size: f64,
        resid: Resid,
        page: Url,
    ) {
        if !get_method || status != 200 {
            return;
        }
        self.add_resource(session, resid, url);
        let clean =
            !self.dups.contains(&(session, resid)) && !self.pages_dirty.contains(&(session, resid));
        let stats = self.map(agent);
        let n = f64::from(get(&stats.assets, &url));
        let mean = stats.sizes.entry(url).or_default();
        *mean = (*mean * n + size) / (n + 1.0);
        *stats.assets.entry(url).or_default() += 1;
        if clean {
            stats.stat.entry(page).or_default().insert(url);
            *stats.stat_n.entry((page, url)).or_default() += 1;
        }
    }

    fn add_resource(&mut self, session: Session, resid: Resid, url: Url) {
        if !self
            .pageloads
            .entry((session, resid))
            .or_default()
            .insert(url)
        {
            self.dups.insert((session, resid));
        }
        self.ses_resources.entry(session).or_default().insert(url);
    }
}

/// The next event of random traffic.
#[derive(Debug, Clone)]
enum Action {
    Request {
        session: u64,
        url: Url,
        get: bool,
        status: u16,
        size: u64,
        pause: i64,
        favicon: bool,
    },
    Cancel {
        session: u64,
        url: Url,
    },
    Close {
        session: u64,
    },
}

const SESSIONS: u64 = 4;

fn action() -> impl Strategy<Value = Action> {
    let request = (
        0..SESSIONS,
        prop_oneof![4 => 0..6u32, 1 => 0..14u32],
        prop::bool::weighted(0.9),
        prop_oneof![12 => Just(200u16), 1 => Just(302), 2 => Just(304), 1 => Just(404)],
        0..5_000u64,
        prop_oneof![6 => Just(0i64), 3 => 0..3_000i64, 1 => Just(1_000), 1 => 15_000..30_000i64, 1 => Just(20_000)],
        prop::bool::weighted(0.03),
    );
    prop_oneof![
        20 => request.prop_map(|(session, url, get, status, size, pause, favicon)| Action::Request {
            session, url, get, status, size, pause, favicon
        }),
        1 => (0..SESSIONS, 0..14u32).prop_map(|(session, url)| Action::Cancel { session, url }),
        1 => (0..SESSIONS).prop_map(|session| Action::Close { session }),
    ]
}

fn options() -> impl Strategy<Value = Options> {
    (
        (0..3usize, 0..=10u32, 1..3u32),
        (
            prop::option::weighted(0.3, 0..4usize),
            prop::option::weighted(0.3, 0..5_000u64),
        ),
        any::<[bool; 4]>(),
    )
        .prop_map(
            |((algorithm, tenth, min_history), (max_assets, max_size), flags)| Options {
                algorithm: Algorithm::ALL[algorithm],
                threshold: f64::from(tenth) / 10.0,
                min_history,
                max_assets,
                max_size,
                ignore_mobile: flags[0],
                consider_browser: flags[1],
                keep_history: flags[2],
                assume_hits: flags[3],
                ..Options::default()
            },
        )
}

/// The software of each session's client: two browsers, a mobile one, a machine.
fn agent(session: u64) -> Agent {
    match session % SESSIONS {
        0 => Agent {
            known: true,
            mobile: false,
            browser: Browser::Chrome,
        },
        1 => Agent {
            known: true,
            mobile: false,
            browser: Browser::Firefox,
        },
        2 => Agent {
            known: true,
            mobile: true,
            browser: Browser::Chrome,
        },
        _ => Agent {
            known: false,
            mobile: false,
            browser: Browser::Other,
        },
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn fast_and_plain_agree(options in options(), actions in prop::collection::vec(action(), 1..250)) {
        let mut plain = Reference::new(options.clone());
        let mut fast = Basic::new(options);
        let mut now = 0;
        for (number, action) in actions.into_iter().enumerate() {
            match action {
                Action::Request { session, url, get, status, size, pause, favicon } => {
                    now += pause;
                    let agent = agent(session);
                    // Sessions 0 and 1 are one user's.
                    let request = Request {
                        session, user: session / 2, number: number as u32, url, favicon, get, status, size, agent, now,
                    };
                    let mut pushes = Vec::new();
                    fast.sending(&request, |a, b| a.cmp(&b), &mut pushes);
                    let got: Vec<_> = pushes.iter().map(|push| (push.asset, push.size)).collect();
                    prop_assert_eq!(got, plain.sending(&request), "request {}", number);
                }
                Action::Cancel { session, url } => {
                    fast.push_cancelled(session, url);
                    plain.push_cancelled(session, url);
                }
                Action::Close { session } => {
                    let left: Vec<_> = fast.session_closed(session).iter().map(|p| (p.asset, p.size)).collect();
                    prop_assert_eq!(left, plain.session_closed(session, agent(session)), "close {}", number);
                }
            }
        }
    }
}

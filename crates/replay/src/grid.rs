//! The documented algorithms under every combination of their parameters P1 to P6 (the thesis's
//! table 5.5) at once.
//!
//! Learning depends only on the session timeout (P5) and on the clients considered (P3). The other
//! parameters choose among the same candidates. One pass of learning therefore serves a whole
//! group: each combination is a lane, a push is a set of lanes, and a lane's counts equal those of
//! a replay with its options alone.

use tandem_predict::ids::SmallMap;

use crate::cost::Tally;
use crate::interner::UrlId;
use crate::learn::{Class, Known, LearnOptions, Learner};
use crate::log::{AccessLog, Record};
use crate::options::{Algorithm, Options};
use crate::run::request_of;
use crate::sessions::{Sessions, Step};

/// Which clients are considered, and with how many statistics (P3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Clients {
    /// All of them, together.
    All,
    /// All but mobile ones.
    IgnoreMobile,
    /// All but mobile ones, with separate statistics per browser.
    PerBrowser,
}

impl Clients {
    /// The letter of the document's tables.
    #[must_use]
    pub fn letter(self) -> char {
        match self {
            Self::All => 'F',
            Self::IgnoreMobile => 'A',
            Self::PerBrowser => 'B',
        }
    }
}

/// A value for each parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Combination {
    /// P1.
    pub algorithm: Algorithm,
    /// P2, bytes.
    pub max_size: Option<u64>,
    /// P3.
    pub clients: Clients,
    /// P4.
    pub keep_history: bool,
    /// P5, milliseconds.
    pub session_timeout: i64,
    /// P6.
    pub threshold: f64,
}

impl Combination {
    /// The same as options of a single run.
    #[must_use]
    pub fn options(&self) -> Options {
        Options {
            algorithm: self.algorithm,
            threshold: self.threshold,
            max_size: self.max_size,
            keep_history: self.keep_history,
            ignore_mobile: self.clients != Clients::All,
            consider_browser: self.clients == Clients::PerBrowser,
            ..Options::default()
        }
    }

    /// The parameters in which two combinations differ, as indices 0 for P1 to 5 for P6.
    #[must_use]
    pub fn differences(&self, other: &Self) -> Vec<usize> {
        let differs = [
            self.algorithm != other.algorithm,
            self.max_size != other.max_size,
            self.clients != other.clients,
            self.keep_history != other.keep_history,
            self.session_timeout != other.session_timeout,
            self.threshold != other.threshold,
        ];
        (0..6).filter(|&at| differs[at]).collect()
    }
}

/// The values to combine.
#[derive(Debug, Clone, PartialEq)]
pub struct Grid {
    sizes: Vec<Option<u64>>,
    clients: Vec<Clients>,
    timeouts: Vec<i64>,
    thresholds: Vec<f64>,
}

/// The combinations that share a pass of learning.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Group {
    /// P3.
    pub clients: Clients,
    /// P5, milliseconds.
    pub session_timeout: i64,
}

/// Most lanes in a group: 3 algorithms x 3 sizes x 2 histories x 11 thresholds need 198.
const WORDS: usize = 4;

/// A set of lanes.
type Lanes = [u64; WORDS];

impl Grid {
    /// 180 combinations: all clients together, thresholds 0.1, 0.2, 0.4, 0.5 and 0.7.
    #[must_use]
    pub fn standard() -> Self {
        Self {
            clients: vec![Clients::All],
            thresholds: vec![0.1, 0.2, 0.4, 0.5, 0.7],
            ..Self::full()
        }
    }

    /// All 1,188 combinations of table 5.5.
    #[must_use]
    pub fn full() -> Self {
        Self {
            sizes: vec![None, Some(1_000), Some(10_000)],
            clients: vec![Clients::All, Clients::IgnoreMobile, Clients::PerBrowser],
            timeouts: vec![180_000, 3_600_000],
            thresholds: (0..=10).map(|tenth| f64::from(tenth) / 10.0).collect(),
        }
    }

    /// How many combinations there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.groups().len() * self.lanes()
    }

    /// Returns whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lanes(&self) -> usize {
        Algorithm::ALL.len() * self.sizes.len() * 2 * self.thresholds.len()
    }

    /// The groups, to be run in any order and in parallel.
    #[must_use]
    pub fn groups(&self) -> Vec<Group> {
        let pairs = self
            .clients
            .iter()
            .flat_map(|&clients| self.timeouts.iter().map(move |&t| (clients, t)));
        pairs
            .map(|(clients, session_timeout)| Group {
                clients,
                session_timeout,
            })
            .collect()
    }

    fn combinations(&self, group: Group) -> Vec<Combination> {
        let mut all = Vec::with_capacity(self.lanes());
        for algorithm in Algorithm::ALL {
            for &max_size in &self.sizes {
                for keep_history in [false, true] {
                    all.extend(self.thresholds.iter().map(|&threshold| Combination {
                        algorithm,
                        max_size,
                        clients: group.clients,
                        keep_history,
                        session_timeout: group.session_timeout,
                        threshold,
                    }));
                }
            }
        }
        all
    }

    /// Runs one group over `records` of a log.
    #[must_use]
    pub fn run(
        &self,
        log: &AccessLog,
        records: &[Record],
        group: Group,
    ) -> Vec<(Combination, Tally)> {
        let sessions = Sessions::cut(
            log,
            records,
            group.session_timeout,
            group.clients != Clients::All,
        );
        let combinations = self.combinations(group);
        let mut run = Run::new(&combinations, group, &sessions);
        let mut seen = vec![[false; 2]; log.urls.len()];
        for step in &sessions.steps {
            run.step(log, &records[step.record as usize], step, &mut seen);
        }
        for &session in &sessions.open {
            run.close(session);
        }
        run.tallies(&combinations)
    }
}

/// A push outstanding in some lanes; others may have pushed the same asset at another time.
struct Pushed {
    lanes: Lanes,
    size: f64,
    load: u32,
}

/// Counts of one lane.
#[derive(Clone, Default)]
struct Lane {
    pushes: u64,
    hits: u64,
    mistakes: u64,
    delayed: u64,
    on_pages: u64,
    not_modified: u64,
    without_transfer: u64,
    mistake_bytes: f64,
    hit_bytes: f64,
}

struct Run {
    learner: Learner,
    chooser: Chooser,
    outstanding: Vec<SmallMap<Vec<Pushed>>>,
    shared: Tally,
    lanes: Vec<Lane>,
}

/// Which lanes would push a candidate, by its three probabilities, size and history.
struct Chooser {
    /// Per algorithm: sorted thresholds with the lanes that push at or above them.
    by_probability: Vec<Vec<(f64, Lanes)>>,
    by_size: Vec<(u64, Lanes)>,
    without_history: Lanes,
}

impl Chooser {
    fn new(combinations: &[Combination]) -> Self {
        let lanes = |wanted: &dyn Fn(&Combination) -> bool| {
            let mut lanes = [0; WORDS];
            for (at, _) in combinations
                .iter()
                .enumerate()
                .filter(|(_, combination)| wanted(combination))
            {
                lanes[at / 64] |= 1 << (at % 64);
            }
            lanes
        };
        let mut thresholds: Vec<f64> = combinations
            .iter()
            .map(|combination| combination.threshold)
            .collect();
        thresholds.sort_by(f64::total_cmp);
        thresholds.dedup();
        let mut sizes: Vec<u64> = combinations
            .iter()
            .filter_map(|combination| combination.max_size)
            .collect();
        sizes.sort_unstable();
        sizes.dedup();
        let ladder = |algorithm| {
            let rung = |&top: &f64| {
                (
                    top,
                    lanes(&|c| c.algorithm == algorithm && c.threshold <= top),
                )
            };
            thresholds.iter().map(rung).collect()
        };
        Self {
            by_probability: Algorithm::ALL.into_iter().map(ladder).collect(),
            by_size: sizes
                .into_iter()
                .map(|max| (max, lanes(&|c| c.max_size != Some(max))))
                .collect(),
            without_history: lanes(&|c| !c.keep_history),
        }
    }

    fn lanes(&self, known: &Known) -> Lanes {
        let mut lanes = [0; WORDS];
        for (algorithm, ladder) in Algorithm::ALL.into_iter().zip(&self.by_probability) {
            let probability =
                algorithm.probability(known.count, known.pages, known.earlier, known.later);
            if let Some((_, reached)) = ladder
                .iter()
                .rev()
                .find(|(threshold, _)| probability >= *threshold)
            {
                lanes = std::array::from_fn(|word| lanes[word] | reached[word]);
            }
        }
        for (_, others) in self
            .by_size
            .iter()
            .filter(|&&(max, _)| known.size > max as f64)
        {
            lanes = and(lanes, *others);
        }
        if known.in_history {
            and(lanes, self.without_history)
        } else {
            lanes
        }
    }
}

fn and(a: Lanes, b: Lanes) -> Lanes {
    std::array::from_fn(|word| a[word] & b[word])
}

fn for_each(lanes: &Lanes, mut lane: impl FnMut(usize)) {
    for (word, &bits) in lanes.iter().enumerate() {
        let mut bits = bits;
        while bits != 0 {
            lane(word * 64 + bits.trailing_zeros() as usize);
            bits &= bits - 1;
        }
    }
}

impl Run {
    fn new(combinations: &[Combination], group: Group, sessions: &Sessions) -> Self {
        let options = Options::default();
        let learner = Learner::new(LearnOptions {
            max_page_load_timeout: options.max_page_load_timeout,
            page_load_timeout: options.page_load_timeout,
            min_history: options.min_history,
            ignore_mobile: group.clients != Clients::All,
            consider_browser: group.clients == Clients::PerBrowser,
            keep_history: true,
            count_earlier: true,
            keep_loads: false,
        });
        let mut outstanding = Vec::new();
        outstanding.resize_with(sessions.tally.sessions as usize, SmallMap::default);
        Self {
            learner,
            chooser: Chooser::new(combinations),
            outstanding,
            shared: sessions.tally.clone(),
            lanes: vec![Lane::default(); combinations.len()],
        }
    }

    fn step(&mut self, log: &AccessLog, record: &Record, step: &Step, seen: &mut [[bool; 2]]) {
        if let Some(old) = step.closes {
            self.close(old);
        }
        let open = &mut self.outstanding[step.session as usize];
        let hits = open.remove(record.url);
        let (chooser, lanes) = (&self.chooser, &mut self.lanes);
        let class = self
            .learner
            .sending(&request_of(log, step.session, record), |known| {
                push(chooser, lanes, open, &known, record.line);
            });
        let load = self.learner.current_load(u64::from(step.session));
        let new = !std::mem::replace(
            &mut seen[record.url as usize][usize::from(class == Class::Page)],
            true,
        );
        match class {
            Class::Page => {
                self.shared.pages += 1;
                self.shared.unique_pages += u64::from(new);
            }
            Class::Asset => {
                self.shared.assets += 1;
                self.shared.unique_assets += u64::from(new);
            }
        }
        for hit in hits.into_iter().flatten() {
            for_each(&hit.lanes, |at| {
                let lane = &mut self.lanes[at];
                lane.hits += 1;
                lane.hit_bytes += hit.size;
                lane.delayed += u64::from(load != Some(hit.load));
                lane.on_pages += u64::from(class == Class::Page);
                lane.not_modified += u64::from(record.status == 304);
                let saved_transfer = class == Class::Asset && record.status != 304;
                lane.without_transfer += u64::from(!saved_transfer);
            });
        }
    }

    fn close(&mut self, session: u32) {
        let left = std::mem::take(&mut self.outstanding[session as usize]);
        for pushed in left.iter().flat_map(|(_, pushes)| pushes) {
            for_each(&pushed.lanes, |at| {
                self.lanes[at].mistakes += 1;
                self.lanes[at].mistake_bytes += pushed.size;
            });
        }
        self.learner.session_closed(u64::from(session));
    }

    fn tallies(self, combinations: &[Combination]) -> Vec<(Combination, Tally)> {
        let tally = |lane: Lane| Tally {
            pushes: lane.pushes,
            hits: lane.hits,
            mistakes: lane.mistakes,
            delayed_hits: lane.delayed,
            hits_on_pages: lane.on_pages,
            hits_not_modified: lane.not_modified,
            hits_without_transfer: lane.without_transfer,
            mistake_bytes: lane.mistake_bytes,
            hit_bytes: lane.hit_bytes,
            ..self.shared.clone()
        };
        combinations
            .iter()
            .copied()
            .zip(self.lanes.into_iter().map(tally))
            .collect()
    }
}

fn push(
    chooser: &Chooser,
    counts: &mut [Lane],
    open: &mut SmallMap<Vec<Pushed>>,
    known: &Known,
    load: u32,
) {
    let mut lanes = chooser.lanes(known);
    if lanes == [0; WORDS] {
        return;
    }
    let asset: UrlId = known.asset;
    let earlier = open.entry(asset, Vec::new());
    for pushed in earlier.iter() {
        lanes = std::array::from_fn(|word| lanes[word] & !pushed.lanes[word]);
    }
    if lanes == [0; WORDS] {
        return;
    }
    for_each(&lanes, |at| counts[at].pushes += 1);
    earlier.push(Pushed {
        lanes,
        size: known.size,
        load,
    });
}

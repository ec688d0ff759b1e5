//! `auto` on made-up sites of many kinds, none of which it was set for: it never makes traffic
//! dearer than without push, and is as good as the documented algorithms with the parameters that
//! are best for each site afterwards. A push that saves no transfer counts as a mistake.

use std::collections::HashMap;

use tandem_predict::{Aim, Auto, AutoConfig, Worth};
use tandem_replay::grid::Grid;
use tandem_replay::log::{AccessLog, Filter, Record};
use tandem_replay::{AutoReplay, Options, Sessions, Tally, replay};

const DAY: u64 = 86_400;

/// Numbers that look random and are the same in every run (xorshift).
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    fn percent(&mut self, share: u64) -> bool {
        self.below(100) < share
    }

    /// Small numbers more often than large ones.
    fn popular(&mut self, bound: u64) -> u64 {
        let range = 1 + self.below(bound);
        self.below(range)
    }
}

/// A site and its visitors.
struct Site {
    name: &'static str,
    visits: u64,
    days: u64,
    /// Share of page views, in percent, that fetch anything.
    fetch: u64,
    /// Share of visits, in percent, whose browser holds all assets and has them confirmed.
    returning: u64,
    page: fn(&mut Chance, u64) -> String,
    /// The needs of a page, at a time in seconds.
    assets: fn(&str, u64, &mut Chance) -> Vec<String>,
}

impl Site {
    /// Returns its log: visits of one to four pages by users that come once. A visit requests each
    /// resource once.
    fn log(&self) -> AccessLog {
        let mut chance = Chance(0x9e37_79b9_7f4a_7c15 ^ self.visits);
        let mut lines = Vec::new();
        for user in 0..self.visits {
            let mut now = (user * self.days * DAY / self.visits + chance.below(600)) * 1000;
            let mut held = HashMap::new();
            let holds_all = self.returning > 0 && chance.percent(self.returning);
            let status = if holds_all { 304 } else { 200 };
            for _ in 0..=chance.popular(4) {
                let page = (self.page)(&mut chance, now / 1000);
                lines.push((now, user, page.clone(), 200));
                if chance.percent(self.fetch) {
                    for asset in (self.assets)(&page, now / 1000, &mut chance) {
                        if held.insert(asset.clone(), ()).is_none() {
                            now += 20;
                            lines.push((now, user, asset, status));
                        }
                    }
                }
                now += 3_000 + chance.below(60_000);
            }
        }
        let mut log = AccessLog::default();
        log.push_line(b"time_ms,user,url,status", Filter::default());
        for (time, user, url, status) in lines {
            let line = format!("{time},{user},{url},{status}");
            log.push_line(line.as_bytes(), Filter::default());
        }
        log.finish();
        log
    }
}

/// The credit of a gateway, which pushes on small sites too.
const CREDIT: f64 = 1000.0;

/// PushCost without credit on any log, and on any part of one.
const MOST: f64 = 1.003 + 1e-9;

fn auto(log: &AccessLog, records: &[Record], omega: f64, credit: f64, aim: Aim) -> Tally {
    let sessions = Sessions::cut(log, records, 3_600_000, false);
    let auto = Auto::new(AutoConfig {
        worth: Worth::Omega(omega),
        aim,
        min_users: 1,
        credit,
        ..AutoConfig::default()
    });
    replay(
        log,
        records,
        &sessions,
        &mut AutoReplay::new(log, &Options::default(), auto),
        |_| {},
    )
}

fn named(folder: &str, numbers: impl IntoIterator<Item = u64>) -> Vec<String> {
    numbers
        .into_iter()
        .map(|number| format!("/{folder}/{number}.png"))
        .collect()
}

fn number(page: &str) -> u64 {
    page.rsplit('/')
        .next()
        .and_then(|name| name.parse().ok())
        .unwrap_or(0)
}

/// Returns scripts whose names change with every build of the site.
fn built(every: u64, now: u64) -> Vec<String> {
    ["app.js", "parts.js", "style.css"]
        .iter()
        .map(|name| format!("/build-{}/{name}", now / every))
        .collect()
}

const USEFUL: [Site; 8] = [
    Site {
        name: "one application, built anew every week",
        visits: 540,
        days: 30,
        fetch: 90,
        returning: 0,
        page: |chance, _| {
            if chance.percent(70) {
                "/".into()
            } else {
                format!("/view/{}", chance.below(300))
            }
        },
        assets: |_, now, chance| {
            [
                built(7 * DAY, now),
                vec![format!("/api/item/{}.json", chance.below(4000))],
            ]
            .concat()
        },
    },
    Site {
        name: "news that change by the hour",
        visits: 540,
        days: 7,
        fetch: 85,
        returning: 0,
        page: |chance, now| {
            if chance.percent(40) {
                "/".into()
            } else {
                format!("/story/{}", (now / 1800).saturating_sub(chance.popular(40)))
            }
        },
        assets: |page, now, _| {
            let fresh = named("thumb", (0..10).map(|back| (now / 1800 + 100) - back));
            [
                vec!["/main.css".into(), "/main.js".into()],
                fresh,
                named("full", [number(page)]),
            ]
            .concat()
        },
    },
    Site {
        name: "a shop of thousands of pages",
        visits: 720,
        days: 20,
        fetch: 80,
        returning: 0,
        page: |chance, _| format!("/product/{}", chance.popular(5000)),
        assets: |page, _, _| {
            [
                vec!["/s.css".into(), "/s.js".into(), "/t.js".into()],
                named("product", [number(page)]),
            ]
            .concat()
        },
    },
    Site {
        name: "a redesign",
        visits: 540,
        days: 20,
        fetch: 80,
        returning: 0,
        page: |chance, _| format!("/page/{}", chance.popular(60)),
        assets: |_, now, _| named(if now < 10 * DAY { "old" } else { "new" }, 0..8),
    },
    Site {
        name: "readers who mostly fetch nothing",
        visits: 900,
        days: 20,
        fetch: 30,
        returning: 0,
        page: |chance, _| format!("/page/{}", chance.popular(60)),
        assets: |_, _, _| named("part", 0..8),
    },
    Site {
        name: "variants under test",
        visits: 540,
        days: 20,
        fetch: 95,
        returning: 0,
        page: |chance, _| format!("/page/{}", chance.popular(60)),
        assets: |_, _, chance| named(if chance.percent(50) { "red" } else { "blue" }, 0..8),
    },
    Site {
        name: "pictures of which each comes every second time",
        visits: 540,
        days: 20,
        fetch: 100,
        returning: 0,
        page: |chance, _| format!("/page/{}", chance.popular(30)),
        assets: |_, _, chance| named("x", (0..20).filter(|_| chance.percent(50))),
    },
    Site {
        name: "visitors of whom each third holds everything",
        visits: 540,
        days: 20,
        fetch: 90,
        returning: 33,
        page: |chance, _| format!("/page/{}", chance.popular(30)),
        assets: |page, _, _| [named("part", 0..8), named("own", [number(page)])].concat(),
    },
];

const HOPELESS: [Site; 5] = [
    Site {
        name: "random pictures",
        visits: 600,
        days: 10,
        fetch: 100,
        returning: 0,
        page: |_, _| "/random".into(),
        assets: |_, _, chance| named("photo", (0..12).map(|_| chance.below(10_000))),
    },
    Site {
        name: "random pictures on a very small site",
        visits: 40,
        days: 2,
        fetch: 80,
        returning: 0,
        page: |chance, _| format!("/page/{}", chance.below(10)),
        assets: |_, _, chance| named("photo", (0..5).map(|_| chance.below(40))),
    },
    Site {
        name: "counters with a number of their own each time",
        visits: 1000,
        days: 10,
        fetch: 90,
        returning: 0,
        page: |chance, _| format!("/page/{}", chance.popular(30)),
        assets: |_, _, chance| {
            (0..3)
                .map(|_| format!("/count.gif?r={}", chance.below(1 << 40)))
                .collect()
        },
    },
    Site {
        name: "robots with a browser's name, and hardly anyone else",
        visits: 2000,
        days: 3,
        fetch: 3,
        returning: 0,
        page: |chance, _| format!("/page/{}", chance.below(500)),
        assets: |_, _, _| named("part", 0..3),
    },
    Site {
        name: "visitors that hold everything",
        visits: 600,
        days: 20,
        fetch: 90,
        returning: 100,
        page: |chance, _| format!("/page/{}", chance.popular(30)),
        assets: |_, _, _| named("part", 0..8),
    },
];

#[test]
fn as_good_as_what_is_best_for_each_site() {
    for site in &USEFUL {
        let log = site.log();
        let grid = Grid::standard();
        let tuned: Vec<Tally> = grid
            .groups()
            .into_iter()
            .flat_map(|group| grid.run(&log, &log.records, group))
            .map(|(_, tally)| tally)
            .collect();
        for (omega, margin) in [
            (1.0 / 63.0, 0.02),
            (0.25, 0.02),
            (0.5, 0.01),
            (0.75, 0.02),
            (0.9, 0.02),
        ] {
            for aim in [Aim::Transfers, Aim::Requests] {
                let cost = |tally: &Tally| match aim {
                    Aim::Transfers => tally.strict_push_cost(omega),
                    Aim::Requests => tally.push_cost(omega),
                };
                let best = tuned.iter().map(cost).fold(f64::INFINITY, f64::min);
                let cost = cost(&auto(&log, &log.records, omega, CREDIT, aim));
                assert!(
                    cost <= best + margin,
                    "{} at {omega}, {aim:?}: {cost}, tuned {best}",
                    site.name
                );
            }
        }
    }
}

#[test]
fn no_dearer_where_nothing_can_be_foreseen() {
    for site in &HOPELESS {
        let log = site.log();
        for omega in [1.0 / 63.0, 0.25, 0.5, 0.75, 0.9] {
            let cost = auto(&log, &log.records, omega, 0.0, Aim::Transfers).strict_push_cost(omega);
            assert!(cost <= MOST, "{} at {omega}: {cost}", site.name);
        }
    }
}

#[test]
fn no_part_of_a_log_is_dearer() {
    for site in USEFUL.iter().chain(&HOPELESS) {
        let log = site.log();
        for (size, step) in [(60, 7), (400, 5), (3000, 2), (log.records.len(), 1)] {
            let last = log.records.len().saturating_sub(size);
            for place in 0..step {
                let part = &log.records[last * place / step..][..size.min(log.records.len())];
                let cost = auto(&log, part, 0.5, 0.0, Aim::Transfers).strict_push_cost(0.5);
                assert!(cost <= MOST, "{}, {size} from {place}: {cost}", site.name);
            }
        }
    }
}

#[test]
fn traffic_without_credit_earns_pushes() {
    for site in &USEFUL {
        let log = site.log();
        let cost = auto(&log, &log.records, 0.5, 0.0, Aim::Transfers).strict_push_cost(0.5);
        assert!(cost < 0.99, "{}: {cost}", site.name);
    }
}

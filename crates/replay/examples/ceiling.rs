//! Compares the strict cost of the gateway's predictor on plain access logs with bounds that know
//! more than a predictor can:
//!
//! - `again`: a second replay by the same predictor, which has learned the whole log before.
//! - `followed`: each asset is pushed that transfers a body to its session for the first time, and
//!   that some session requested after the same page before. Nothing is pushed for nothing.
//! - `seen`: the same for each asset that was requested before after any page.
//!
//! ```sh
//! cargo run --release -p tandem-replay --example ceiling -- LOG…
//! ```

#![expect(clippy::print_stdout, reason = "the figures are the output")]

use std::collections::{HashMap, HashSet};
use std::env;
use std::error::Error;

use tandem_predict::Auto;
use tandem_predict::auto::{Aim, AutoConfig, Worth};
use tandem_replay::learn::Class;
use tandem_replay::log::{AccessLog, Filter};
use tandem_replay::run::Event;
use tandem_replay::{AutoReplay, Options, Sessions, Tally, replay};

/// The pause in milliseconds after which a user's next request begins another session.
const TIMEOUT: i64 = 3_600_000;
/// The gain of a push that saves a transfer, as a share of the transfer.
const OMEGA: f64 = 0.5;
/// The time in milliseconds between two replays, after which no session is open.
const LATER: i64 = 400 * 86_400_000;

fn main() -> Result<(), Box<dyn Error>> {
    println!("log: strict, again, followed, seen");
    for path in env::args().skip(1) {
        let text = std::fs::read(&path)?;
        let mut log = AccessLog::default();
        let text = text.strip_suffix(b"\n").unwrap_or(&text);
        for line in text.split(|&byte| byte == b'\n') {
            log.push_line(line, Filter::default());
        }
        log.put_in_order();
        let mut events = Vec::new();
        let (auto, tally) = replayed(&log, new_auto(), |event| events.push(event));
        let [followed, seen] = bounds(&log, &events, tally.assets);
        for record in &mut log.records {
            record.time += LATER;
        }
        let (_, again) = replayed(&log, auto, |_| {});
        let [first, second] = [&tally, &again].map(|it| it.strict_push_cost(OMEGA));
        println!("{path}: {first:.3}, {second:.3}, {followed:.3}, {seen:.3}");
    }
    Ok(())
}

fn new_auto() -> Auto {
    Auto::new(AutoConfig {
        aim: Aim::Transfers,
        min_users: 1,
        worth: Worth::Omega(OMEGA),
        ..AutoConfig::default()
    })
}

fn replayed(log: &AccessLog, auto: Auto, events: impl FnMut(Event)) -> (Auto, Tally) {
    let options = Options::default();
    let sessions = Sessions::cut(log, &log.records, TIMEOUT, options.ignore_mobile);
    let mut predictor = AutoReplay::new(log, &options, auto);
    let tally = replay(log, &log.records, &sessions, &mut predictor, events);
    (predictor.into_auto(), tally)
}

/// Returns the costs of pushing without mistakes: assets that followed their page before, and
/// assets that were requested before.
fn bounds(log: &AccessLog, events: &[Event], assets: u64) -> [f64; 2] {
    let status: HashMap<u32, u16> = log.records.iter().map(|it| (it.line, it.status)).collect();
    let (mut seen, mut followed) = (HashSet::new(), HashSet::new());
    let (mut held, mut pages) = (HashSet::new(), HashMap::new());
    let mut counts = [0_u32; 2];
    for event in events {
        let Event::Request {
            session,
            line,
            url,
            class,
            ..
        } = *event
        else {
            continue;
        };
        let is_first = held.insert((session, url));
        let is_new = seen.insert(url);
        if class == Class::Page {
            pages.insert(session, url);
            continue;
        }
        let page = pages.get(&session).copied();
        let is_followed = page.is_some_and(|page| !followed.insert((page, url)));
        if is_first && status[&line] != 304 {
            counts[0] += u32::from(is_followed);
            counts[1] += u32::from(!is_new);
        }
    }
    counts.map(|count| 1.0 - OMEGA * f64::from(count) / assets as f64)
}

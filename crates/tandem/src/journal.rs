//! The recent events that the dashboard shows to the local user: page loads with the URLs of their
//! resources, and the present problems. They exist in memory only and within bounds.
//!
//! Page loads are recorded only if the dashboard is on (`--admin`), since URLs are private. The
//! threads of the process share one journal. Its lock is held for microseconds, and never while a
//! body passes. The times of page loads, which contain no URLs, are kept in any case.

pub mod saving;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::exchange::Supply;
use saving::{LoadTimes, Saving};

/// The number of page loads that are kept.
pub const MAX_LOADS: usize = 12;

/// The number of resources that are kept of one load.
pub const MAX_RESOURCES: usize = 200;

/// The length in bytes above which texts are cut.
pub const MAX_TEXT: usize = 300;

/// The number of problems that are kept.
const MAX_PROBLEMS: usize = 32;

/// The number of routes that are kept.
const MAX_ROUTES: usize = 100;

/// A resource of a page load. Times are seconds since the beginning of the load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resource {
    /// The method of the request.
    pub method: String,
    /// The URL, or the authority of a tunnel.
    pub url: String,
    /// The way on which the response came.
    pub supply: Supply,
    /// The status code, once known.
    pub status: Option<u16>,
    /// The time of the request.
    pub start: f64,
    /// The time of the head.
    pub head: Option<f64>,
    /// The time of the end.
    pub end: Option<f64>,
    /// The bytes of the body, known at the end.
    pub bytes: u64,
    /// The reason of a failure.
    pub problem: Option<String>,
    /// True for a stream of events, which lasts for as long as its page is open.
    pub is_stream: bool,
}

/// A page load, or other requests that followed each other closely.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PageLoad {
    /// The number of the load in this process.
    pub number: u64,
    /// The URL of the page, or of the first resource.
    pub title: String,
    /// Seconds since the beginning.
    pub age: f64,
    /// The seconds to the end of the last resource. Tunnels and streams of events count only if
    /// there is nothing else. `None` before any of them has ended.
    pub duration: Option<f64>,
    /// The resources, in the order of their requests.
    pub resources: Vec<Resource>,
    /// The number of resources beyond [`MAX_RESOURCES`].
    pub left_out: u64,
}

/// A route of the configuration, in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteEntry {
    /// The hosts that it serves.
    pub hosts: String,
    /// The way of their requests.
    pub way: String,
}

/// The page loads that changed since a revision.
#[derive(Clone, Debug, PartialEq)]
pub struct Changes {
    /// The number of changes so far.
    pub revision: u64,
    /// The numbers of all loads that are kept, newest first.
    pub kept: Vec<u64>,
    /// The loads that changed, newest first.
    pub loads: Vec<PageLoad>,
}

/// The place of a resource in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalIndex {
    load: u64,
    index: usize,
}

/// The recent page loads and the present problems.
#[derive(Debug, Default)]
pub struct Journal {
    is_recording: AtomicBool,
    faults: Arc<Problems>,
    state: Mutex<JournalState>,
}

#[derive(Debug, Default)]
struct JournalState {
    /// The number of changes to the loads.
    revision: u64,
    loads: VecDeque<JournalLoad>,
    /// The problems of the present configuration.
    problems: Arc<Problems>,
    routes: Vec<RouteEntry>,
    warnings: Vec<String>,
    /// The times of page loads by their way in words.
    times: BTreeMap<String, Arc<LoadTimes>>,
}

/// The present problems of one configuration, or of services. An earlier configuration writes to
/// its own ones only, so a late failure of a gateway that was replaced is not shown.
#[derive(Debug, Default)]
pub struct Problems {
    by_part: Mutex<BTreeMap<String, String>>,
}

impl Problems {
    /// Sets the problem of `part`, or removes it.
    pub fn set(&self, part: &str, problem: Option<&str>) {
        let mut problems = self.by_part.lock().unwrap_or_else(PoisonError::into_inner);
        match problem {
            Some(problem) if problems.len() < MAX_PROBLEMS || problems.contains_key(part) => {
                problems.insert(part.to_owned(), shortened(problem));
            }
            Some(_) => {}
            None => drop(problems.remove(part)),
        }
    }

    /// Returns the problems, one sentence each.
    pub fn list(&self) -> Vec<String> {
        let problems = self.by_part.lock().unwrap_or_else(PoisonError::into_inner);
        problems.values().cloned().collect()
    }
}

#[derive(Debug)]
struct JournalLoad {
    /// The revision that began it.
    number: u64,
    /// The revision of its last change.
    changed: u64,
    began: Instant,
    title: String,
    resources: Vec<Resource>,
    left_out: u64,
}

impl Journal {
    /// Begins to record page loads.
    pub fn record(&self) {
        self.is_recording.store(true, Ordering::Relaxed);
    }

    /// Returns true if page loads are recorded.
    pub fn is_recording(&self) -> bool {
        self.is_recording.load(Ordering::Relaxed)
    }

    fn state(&self) -> MutexGuard<'_, JournalState> {
        // Every change leaves the state valid, so a panic elsewhere does no harm.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a load and returns its number. The oldest load makes room for it.
    pub fn open_load(&self, title: &str, now: Instant) -> u64 {
        let mut state = self.state();
        state.revision += 1;
        let number = state.revision;
        if state.loads.len() == MAX_LOADS {
            state.loads.pop_front();
        }
        state.loads.push_back(JournalLoad {
            number,
            changed: number,
            began: now,
            title: shortened(title),
            resources: Vec::new(),
            left_out: 0,
        });
        number
    }

    /// Adds a resource to a load. Returns `None` if the load is gone or has no room.
    pub fn begin(
        &self,
        load: u64,
        method: &str,
        url: &str,
        supply: Supply,
        now: Instant,
    ) -> Option<JournalIndex> {
        let mut state = self.state();
        let load = state.change(load)?;
        if load.resources.len() == MAX_RESOURCES {
            load.left_out += 1;
            return None;
        }
        load.resources.push(Resource {
            method: shortened(method),
            url: shortened(url),
            supply,
            status: None,
            start: seconds(load.began, now),
            head: None,
            end: None,
            bytes: 0,
            problem: None,
            is_stream: false,
        });
        Some(JournalIndex {
            load: load.number,
            index: load.resources.len() - 1,
        })
    }

    /// Changes a resource. The function gets the seconds since the beginning of the load.
    pub fn update(
        &self,
        entry: JournalIndex,
        now: Instant,
        change: impl FnOnce(&mut Resource, f64),
    ) {
        let mut state = self.state();
        if let Some(load) = state.change(entry.load)
            && let Some(resource) = load.resources.get_mut(entry.index)
        {
            change(resource, seconds(load.began, now));
            if let Some(problem) = &mut resource.problem {
                *problem = shortened(problem);
            }
        }
    }

    /// Returns the loads that changed after the revision `known`.
    pub fn changes(&self, known: u64, now: Instant) -> Changes {
        let state = self.state();
        let newest = state.loads.iter().rev();
        let changed = newest.clone().filter(|load| load.changed > known);
        Changes {
            revision: state.revision,
            kept: newest.map(|load| load.number).collect(),
            loads: changed.map(|load| load.shown(now)).collect(),
        }
    }

    /// Sets the routes of a new configuration, and the place of its problems.
    pub fn configure(&self, problems: Arc<Problems>, mut routes: Vec<RouteEntry>) {
        routes.truncate(MAX_ROUTES);
        let mut state = self.state();
        state.problems = problems;
        state.routes = routes;
    }

    /// Returns the place of the faults of services, which outlive a reload.
    pub const fn faults(&self) -> &Arc<Problems> {
        &self.faults
    }

    /// Replaces the warnings about the configuration.
    pub fn set_warnings(&self, warnings: Vec<String>) {
        self.state().warnings = warnings;
    }

    /// Returns the present problems, one sentence each.
    pub fn problems(&self) -> Vec<String> {
        let state = self.state();
        let mut problems = self.faults.list();
        problems.extend(state.problems.list());
        problems.extend_from_slice(&state.warnings);
        problems
    }

    /// Returns the routes, most specific first.
    pub fn routes(&self) -> Vec<RouteEntry> {
        self.state().routes.clone()
    }

    /// Returns the place for the times of the page loads on a way. A reload finds it again. Beyond
    /// the number of routes that are kept, the times of ways without use make room, and those of a
    /// further way are not shown.
    pub fn load_times(&self, way: &str) -> Arc<LoadTimes> {
        let mut state = self.state();
        if let Some(times) = state.times.get(way) {
            return Arc::clone(times);
        }
        if state.times.len() > MAX_ROUTES {
            state.times.retain(|_, times| Arc::strong_count(times) > 1);
        }
        let times = Arc::<LoadTimes>::default();
        if state.times.len() <= MAX_ROUTES {
            state.times.insert(way.to_owned(), Arc::clone(&times));
        }
        times
    }

    /// Returns the time that push saves a page load.
    pub fn saving(&self) -> Saving {
        let times: Vec<_> = self.state().times.values().cloned().collect();
        Saving::of(times.iter().map(|times| &**times))
    }
}

impl JournalState {
    /// Returns a load that is about to change.
    fn change(&mut self, number: u64) -> Option<&mut JournalLoad> {
        let load = self.loads.iter_mut().find(|it| it.number == number)?;
        self.revision += 1;
        load.changed = self.revision;
        Some(load)
    }
}

impl JournalLoad {
    fn shown(&self, now: Instant) -> PageLoad {
        PageLoad {
            number: self.number,
            title: self.title.clone(),
            age: seconds(self.began, now),
            duration: duration(&self.resources),
            resources: self.resources.clone(),
            left_out: self.left_out,
        }
    }
}

/// Returns the end of a load, without tunnels and streams where possible: they may stay open long
/// after the page.
fn duration(resources: &[Resource]) -> Option<f64> {
    let is_plain = |resource: &&Resource| resource.supply != Supply::Tunnel && !resource.is_stream;
    let end = |resource: &Resource| resource.end;
    if resources.iter().any(|resource| is_plain(&resource)) {
        resources
            .iter()
            .filter(is_plain)
            .filter_map(end)
            .reduce(f64::max)
    } else {
        resources.iter().filter_map(end).reduce(f64::max)
    }
}

fn seconds(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_secs_f64()
}

/// Returns the beginning of a text.
fn shortened(text: &str) -> String {
    match text
        .char_indices()
        .find(|(at, c)| at + c.len_utf8() > MAX_TEXT)
    {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn journal_keeps_the_newest_loads_within_bounds() {
        let (journal, now) = (Journal::default(), Instant::now());
        let first = journal.open_load("http://a/", now);
        let begin = |load| journal.begin(load, "GET", "http://a/x", Supply::Requested, now);
        for _ in 0..MAX_RESOURCES {
            assert!(begin(first).is_some());
        }
        assert_eq!(begin(first), None);
        let loads = journal.changes(0, now).loads;
        assert_eq!(
            (loads[0].resources.len(), loads[0].left_out),
            (MAX_RESOURCES, 1)
        );
        for _ in 0..MAX_LOADS {
            journal.open_load(&"é".repeat(1000), now);
        }
        let loads = journal.changes(0, now).loads;
        assert_eq!(loads.len(), MAX_LOADS);
        assert!(loads[0].number > loads[1].number, "the newest is first");
        assert!(loads[0].title.len() <= MAX_TEXT + '…'.len_utf8());
        assert_eq!(begin(first), None, "the first load is gone");
    }

    #[test]
    fn resource_times_count_from_the_beginning() {
        let (journal, now) = (Journal::default(), Instant::now());
        let load = journal.open_load("http://a/", now);
        let later = now + Duration::from_secs(2);
        let entry = journal.begin(load, "GET", "http://a/", Supply::Requested, later);
        let change = |resource: &mut Resource, time| {
            resource.end = Some(time);
            resource.problem = Some("x".repeat(1000));
        };
        journal.update(entry.expect("room"), now + Duration::from_secs(3), change);
        let loads = journal.changes(0, now + Duration::from_secs(5)).loads;
        let resource = &loads[0].resources[0];
        assert_eq!((resource.start, resource.end), (2.0, Some(3.0)));
        let problem = resource.problem.as_ref().expect("a problem");
        assert!(problem.len() <= MAX_TEXT + '…'.len_utf8());
        assert_eq!(loads[0].age, 5.0);
    }

    #[test]
    fn duration_leaves_out_tunnels_and_streams() {
        let (journal, now) = (Journal::default(), Instant::now());
        let load = journal.open_load("http://a/", now);
        let duration = || journal.changes(0, now).loads[0].duration;
        let begin = |supply| {
            let entry = journal.begin(load, "GET", "http://a/", supply, now);
            entry.expect("room")
        };
        let end = |entry, seconds, is_stream| {
            let change = |resource: &mut Resource, time| {
                (resource.end, resource.is_stream) = (Some(time), is_stream);
            };
            journal.update(entry, now + Duration::from_secs(seconds), change);
        };
        end(begin(Supply::Tunnel), 75, false);
        assert_eq!(duration(), Some(75.0), "there is nothing else");
        let (page, events) = (begin(Supply::Requested), begin(Supply::Requested));
        assert_eq!(duration(), None, "the page is loading");
        end(page, 2, false);
        end(events, 600, true);
        end(begin(Supply::Pushed), 1, false);
        assert_eq!(duration(), Some(2.0));
    }

    #[test]
    fn load_times_outlive_a_reload_within_bounds() {
        let journal = Journal::default();
        let second = Duration::from_secs(1);
        journal.load_times("gateway a").note(true, second);
        assert!(Arc::ptr_eq(
            &journal.load_times("gateway a"),
            &journal.load_times("gateway a")
        ));
        assert_eq!(journal.saving().loads_pushed, 1);
        let used: Vec<_> = (0..2 * MAX_ROUTES)
            .map(|number| journal.load_times(&number.to_string()))
            .collect();
        assert!(journal.state().times.len() <= MAX_ROUTES + 1);
        drop(used);
        journal.load_times("gateway b").note(false, second);
        assert_eq!(journal.saving().loads_held_out, 1);
    }

    #[test]
    fn changes_hold_the_loads_after_a_revision() {
        let (journal, now) = (Journal::default(), Instant::now());
        let old = journal.open_load("http://a/", now);
        let new = journal.open_load("http://b/", now);
        let first = journal.changes(0, now);
        assert_eq!(
            (first.kept.as_slice(), first.loads.len()),
            (&[new, old][..], 2)
        );
        let second = journal.changes(first.revision, now);
        assert_eq!((second.kept, second.loads), (vec![new, old], vec![]));
        journal.begin(old, "GET", "http://a/x", Supply::Requested, now);
        let third = journal.changes(first.revision, now);
        let numbers: Vec<_> = third.loads.iter().map(|load| load.number).collect();
        assert_eq!((numbers, third.kept), (vec![old], vec![new, old]));
        journal.begin(999, "GET", "http://c/", Supply::Requested, now);
        assert_eq!(journal.changes(0, now).revision, third.revision);
    }

    #[test]
    fn faults_of_services_outlive_a_reload() {
        let journal = Journal::default();
        journal.faults().set("store", Some("the store is away"));
        journal.configure(Arc::default(), Vec::new());
        assert_eq!(journal.problems(), ["the store is away"]);
        journal.faults().set("store", None);
        assert!(journal.problems().is_empty());
    }

    #[test]
    fn problems_are_those_of_the_configuration() {
        let (journal, problems) = (Journal::default(), Arc::<Problems>::default());
        let route = RouteEntry {
            hosts: "all hosts".into(),
            way: "gateway g".into(),
        };
        journal.configure(Arc::clone(&problems), vec![route.clone(); 2 * MAX_ROUTES]);
        problems.set("gateway", Some("it does not answer"));
        problems.set("gateway", Some("it refuses"));
        journal.set_warnings(vec!["the certificate expires".into()]);
        assert_eq!(
            journal.problems(),
            ["it refuses", "the certificate expires"]
        );
        assert_eq!(journal.routes(), vec![route; MAX_ROUTES]);
        problems.set("gateway", None);
        for part in 0..100 {
            problems.set(&part.to_string(), Some(""));
        }
        assert_eq!(journal.problems().len(), MAX_PROBLEMS + 1);
        journal.configure(Arc::default(), Vec::new());
        problems.set("0", Some("a late failure"));
        assert_eq!(journal.problems(), ["the certificate expires"]);
    }
}

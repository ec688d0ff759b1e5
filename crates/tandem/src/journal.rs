//! The recent events that the dashboard shows to the local user: page loads with the URLs of their
//! resources, and the present problems. They exist in memory only and within bounds.
//!
//! Page loads are recorded only if the dashboard is on (`--admin`), since URLs are private. The
//! threads of the process share one journal. Its lock is held for microseconds, and never while a
//! body passes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::exchange::Supply;

/// The number of page loads that are kept.
pub const MAX_LOADS: usize = 12;

/// The number of resources that are kept of one load.
pub const MAX_RESOURCES: usize = 200;

/// The length in bytes above which texts are cut.
pub const MAX_TEXT: usize = 300;

/// The number of problems that are kept.
const MAX_PROBLEMS: usize = 32;

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
    /// The resources, in the order of their requests.
    pub resources: Vec<Resource>,
    /// The number of resources beyond [`MAX_RESOURCES`].
    pub left_out: u64,
}

/// The place of a resource in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    load: u64,
    index: usize,
}

/// The recent page loads and the present problems.
#[derive(Debug, Default)]
pub struct Journal {
    is_recording: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The number of changes to the loads.
    revision: u64,
    next: u64,
    loads: VecDeque<Load>,
    problems: BTreeMap<String, String>,
    warnings: Vec<String>,
}

#[derive(Debug)]
struct Load {
    number: u64,
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

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change leaves the state valid, so a panic elsewhere does no harm.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a load and returns its number. The oldest load makes room for it.
    pub fn open_load(&self, title: &str, now: Instant) -> u64 {
        let mut state = self.state();
        state.revision += 1;
        state.next += 1;
        let number = state.next;
        if state.loads.len() == MAX_LOADS {
            state.loads.pop_front();
        }
        state.loads.push_back(Load {
            number,
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
    ) -> Option<Entry> {
        let mut state = self.state();
        state.revision += 1;
        let load = state.loads.iter_mut().find(|it| it.number == load)?;
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
        });
        Some(Entry {
            load: load.number,
            index: load.resources.len() - 1,
        })
    }

    /// Changes a resource. The function gets the seconds since the beginning of the load.
    pub fn update(&self, entry: Entry, now: Instant, change: impl FnOnce(&mut Resource, f64)) {
        let mut state = self.state();
        state.revision += 1;
        let load = state.loads.iter_mut().find(|it| it.number == entry.load);
        if let Some(load) = load
            && let Some(resource) = load.resources.get_mut(entry.index)
        {
            change(resource, seconds(load.began, now));
        }
    }

    /// Returns the number of changes to the loads, and the loads, newest first.
    pub fn loads(&self, now: Instant) -> (u64, Vec<PageLoad>) {
        let state = self.state();
        let loads = state.loads.iter().rev().map(|load| PageLoad {
            number: load.number,
            title: load.title.clone(),
            age: seconds(load.began, now),
            resources: load.resources.clone(),
            left_out: load.left_out,
        });
        (state.revision, loads.collect())
    }

    /// Returns the number of changes to the loads.
    pub fn revision(&self) -> u64 {
        self.state().revision
    }

    /// Removes all problems, as before a new configuration.
    pub fn clear_problems(&self) {
        self.state().problems.clear();
    }

    /// Sets the problem of `part`, or removes it.
    pub fn set_problem(&self, part: &str, problem: Option<String>) {
        let problems = &mut self.state().problems;
        match problem {
            Some(problem) if problems.len() < MAX_PROBLEMS || problems.contains_key(part) => {
                problems.insert(part.to_owned(), shortened(&problem));
            }
            Some(_) => {}
            None => drop(problems.remove(part)),
        }
    }

    /// Replaces the warnings about the configuration.
    pub fn set_warnings(&self, warnings: Vec<String>) {
        self.state().warnings = warnings;
    }

    /// Returns the present problems, one sentence each.
    pub fn problems(&self) -> Vec<String> {
        let state = self.state();
        let problems = state.problems.values().chain(&state.warnings);
        problems.cloned().collect()
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
        let (_, loads) = journal.loads(now);
        assert_eq!(
            (loads[0].resources.len(), loads[0].left_out),
            (MAX_RESOURCES, 1)
        );
        for _ in 0..MAX_LOADS {
            journal.open_load(&"é".repeat(1000), now);
        }
        let (_, loads) = journal.loads(now);
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
        let before = journal.revision();
        let change = |resource: &mut Resource, time| resource.end = Some(time);
        journal.update(entry.expect("room"), now + Duration::from_secs(3), change);
        assert!(journal.revision() > before);
        let (_, loads) = journal.loads(now + Duration::from_secs(5));
        let resource = &loads[0].resources[0];
        assert_eq!((resource.start, resource.end), (2.0, Some(3.0)));
        assert_eq!(loads[0].age, 5.0);
    }

    #[test]
    fn problems_are_those_of_the_present() {
        let journal = Journal::default();
        journal.set_problem("gateway", Some("it does not answer".into()));
        journal.set_problem("gateway", Some("it refuses".into()));
        journal.set_warnings(vec!["the certificate expires".into()]);
        assert_eq!(
            journal.problems(),
            ["it refuses", "the certificate expires"]
        );
        journal.set_problem("gateway", None);
        for part in 0..100 {
            journal.set_problem(&part.to_string(), Some(String::new()));
        }
        assert_eq!(journal.problems().len(), MAX_PROBLEMS + 1);
    }
}

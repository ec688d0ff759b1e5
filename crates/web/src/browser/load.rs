//! The part of a page load that all browsers share: its requests, which become entries of a HAR,
//! and the moment at which the page is complete.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use super::BrowserError;
use crate::har::{Entry, Timings};

/// A loaded page that asks for nothing more for so long is complete.
const QUIET: Duration = Duration::from_secs(1);

/// The phases of a request, as the protocol of a browser reports them.
pub(super) trait ReportPhases {
    /// The milliseconds in a unit of the protocol's times.
    const MILLISECONDS: f64;

    /// Returns the phases between two moments in the protocol's unit, or `None` if it reported
    /// none. Time outside all phases counts as waiting for a connection.
    fn phases(&self, issued: f64, end: f64) -> Option<Timings>;
}

/// The requests of a page load, in order.
#[derive(Debug)]
pub(super) struct Requests<P> {
    pub(super) list: Vec<Request<P>>,
    is_loaded: bool,
}

/// A request. Its times are in the unit of the protocol.
#[derive(Debug)]
pub(super) struct Request<P> {
    pub(super) entry: Entry,
    pub(super) issued: f64,
    pub(super) ended: Option<f64>,
    pub(super) phases: P,
}

impl<P> Default for Requests<P> {
    fn default() -> Self {
        Self {
            list: Vec::new(),
            is_loaded: false,
        }
    }
}

impl<P: ReportPhases> Requests<P> {
    /// Takes the load event.
    pub(super) const fn loaded(&mut self) {
        self.is_loaded = true;
    }

    pub(super) const fn is_loaded(&self) -> bool {
        self.is_loaded
    }

    /// Returns the number of requests that have ended, and of those that have not.
    pub(super) fn counts(&self) -> (usize, usize) {
        let ended = self.list.iter().filter(|it| it.ended.is_some()).count();
        (ended, self.list.len() - ended)
    }

    /// Returns true if no request is open and all of these have ended.
    fn has_ended(&self, wanted: &HashSet<String>) -> bool {
        if wanted.is_empty() || self.list.len() < wanted.len() || self.counts().1 > 0 {
            return false;
        }
        let urls = self.list.iter().map(|it| it.entry.url.as_str());
        let seen: HashSet<&str> = urls.collect();
        wanted.iter().all(|url| seen.contains(url.as_str()))
    }

    /// Converts the requests to entries. `zero` is the start of the page load.
    pub(super) fn into_entries(self, zero: f64) -> Vec<Entry> {
        let entries = self.list.into_iter();
        entries.map(|request| request.into_entry(zero)).collect()
    }
}

impl<P: ReportPhases> Request<P> {
    fn into_entry(self, zero: f64) -> Entry {
        let Self {
            mut entry,
            issued,
            ended,
            phases,
        } = self;
        if ended.is_none() {
            entry.error = Some("not ended".into());
        }
        let end = ended.unwrap_or(issued).max(issued);
        entry.start = ((issued - zero) * P::MILLISECONDS).max(0.0);
        entry.timings = phases.phases(issued, end).unwrap_or_else(|| Timings {
            blocked: Some((end - issued) * P::MILLISECONDS),
            ..Timings::default()
        });
        entry
    }
}

/// A page that a browser loads.
pub(super) trait LoadingPage {
    /// The form in which the browser reports the phases of requests.
    type Phases: ReportPhases;

    /// Returns the requests of the page so far.
    fn requests(&self) -> &Requests<Self::Phases>;

    /// Returns the numbers of requests that have ended and that have not, and true once the load
    /// event came.
    fn progress(&self) -> ((usize, usize), bool) {
        let requests = self.requests();
        (requests.counts(), requests.is_loaded())
    }

    /// Takes the next message. Once dropped while it waits, nothing is lost.
    async fn step(&mut self) -> Result<(), BrowserError>;
}

/// Waits until a loaded page is complete: all of `wanted` have ended, or nothing more is asked for.
pub(super) async fn complete(
    page: &mut impl LoadingPage,
    wanted: &HashSet<String>,
) -> Result<(), BrowserError> {
    // Between cause and request no time passes on the network, so silence means that nothing is to
    // come.
    let mut quiet = Instant::now() + QUIET;
    while !page.requests().has_ended(wanted) {
        if page.requests().counts().1 > 0 {
            page.step().await?;
        } else {
            match timeout_at(quiet, page.step()).await {
                Ok(result) => result?,
                Err(_) => break,
            }
        }
        quiet = Instant::now() + QUIET;
    }
    Ok(())
}

/// Returns true for a URL whose request crosses the network.
pub(super) fn is_http(url: &str) -> bool {
    url.starts_with("http://") || url.starts_with("https://")
}

/// Returns the text of a value, or an empty one.
pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request without phases.
    struct Unknown;

    impl ReportPhases for Unknown {
        const MILLISECONDS: f64 = 1e3;

        fn phases(&self, _: f64, _: f64) -> Option<Timings> {
            None
        }
    }

    fn request(url: &str, ended: Option<f64>) -> Request<Unknown> {
        Request {
            entry: Entry {
                url: url.to_owned(),
                ..Entry::default()
            },
            issued: 2.0,
            ended,
            phases: Unknown,
        }
    }

    #[test]
    fn requests_end_with_the_last_wanted_or_open_one() {
        let wanted = ["a", "b"].map(str::to_owned).into();
        let mut requests = Requests::default();
        requests.list.push(request("a", Some(3.0)));
        assert!(!requests.has_ended(&wanted));
        requests.list.push(request("b", None));
        assert!(!requests.has_ended(&wanted) && requests.counts() == (1, 1));
        requests.list[1].ended = Some(4.0);
        assert!(requests.has_ended(&wanted));
        assert!(!requests.has_ended(&HashSet::new()));
    }

    #[test]
    fn request_without_phases_waits_for_a_connection() {
        let mut requests = Requests::default();
        requests.list.push(request("a", Some(3.5)));
        requests.list.push(request("b", None));
        let entries = requests.into_entries(1.0);
        let rows = entries
            .iter()
            .map(|entry| (entry.start, entry.timings.blocked));
        let rows: Vec<_> = rows.collect();
        assert_eq!(rows, [(1000.0, Some(1500.0)), (1000.0, Some(0.0))]);
        assert_eq!(entries[0].error, None);
        assert_eq!(entries[1].error.as_deref(), Some("not ended"));
    }
}

//! The overview of the process for its local user: status, page loads, savings and problems. The
//! dashboard and `tandem top` show it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::journal::saving::Saving;
use crate::journal::{Changes, Journal, PageLoad, RouteEntry};
use crate::metrics::METRICS;
use crate::role_name::RoleName;
use crate::status::{Opened, SessionStatus, Status, StatusSource};

/// The overview.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Overview {
    /// The role of the process, such as `client` or `gateway`.
    pub role: String,
    /// The version of the program.
    pub version: String,
    /// The counters, and the sessions within a bound.
    pub status: Status,
    /// The sessions beyond that bound.
    pub left_out: LeftOut,
    /// The present problems, one sentence each.
    pub problems: Vec<String>,
    /// The routes of a client, most specific first.
    pub routes: Vec<RouteEntry>,
    /// The time that push saves.
    pub saving: Saving,
    /// The number of changes to the page loads.
    pub revision: u64,
    /// The numbers of the recent page loads, newest first.
    pub kept: Vec<u64>,
    /// The page loads that changed since the reader's revision, newest first.
    pub loads: Vec<PageLoad>,
}

/// The sessions that an overview leaves out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// The sessions of the kind that the page is about: a client's to gateways and sites, and a
    /// gateway's from clients.
    pub sessions: usize,
    /// The others, such as a client's connections from browsers.
    pub others: usize,
}

/// The number of sessions in an overview.
const MAX_SESSIONS: usize = 100;

/// The time for which all readers share one status. It is less than the second between two requests
/// of one reader. Each status asks all threads, and measures every session.
const SHARED_PERIOD: Duration = Duration::from_millis(900);

/// The least time for which a refusal counts as a present problem.
const RECENT_PERIOD: Duration = Duration::from_secs(300);

/// Takes overviews.
#[derive(Clone, Debug)]
pub struct OverviewSource {
    role: RoleName,
    status: StatusSource,
    journal: Arc<Journal>,
    shared: Arc<SharedOverview>,
}

/// The state that all readers share.
#[derive(Debug)]
struct SharedOverview {
    /// The last status with the sessions that it leaves out, and its time.
    status: tokio::sync::Mutex<Option<(Instant, Status, LeftOut)>>,
    recent: Mutex<Recent>,
}

impl OverviewSource {
    /// Creates a source for a process of this role.
    pub fn new(role: RoleName, status: StatusSource, journal: Arc<Journal>) -> Self {
        let recent = Recent::new(Instant::now(), Refusals::now());
        Self {
            role,
            status,
            journal,
            shared: Arc::new(SharedOverview {
                status: tokio::sync::Mutex::default(),
                recent: Mutex::new(recent),
            }),
        }
    }

    /// Returns the role of the process.
    pub const fn role(&self) -> RoleName {
        self.role
    }

    /// Returns the source of the status alone.
    pub const fn status(&self) -> &StatusSource {
        &self.status
    }

    /// Notes the refusals so far. It is called every few seconds, with or without readers.
    pub fn look(&self) {
        self.recent().look(Instant::now(), Refusals::now());
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        let recent = self.shared.recent.lock();
        recent.unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an overview with the page loads that changed after the revision `known`; 0 is before
    /// all of them.
    pub async fn take(&self, known: u64) -> Overview {
        let (status, left_out) = self.shared_status().await;
        let mut problems = self.journal.problems();
        let refusals = self.recent().problems(Instant::now(), Refusals::now());
        problems.extend(refusals);
        let Changes {
            revision,
            kept,
            loads,
        } = self.journal.changes(known, Instant::now());
        Overview {
            role: self.role.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            status,
            left_out,
            problems,
            routes: self.journal.routes(),
            saving: self.journal.saving(),
            revision,
            kept,
            loads,
        }
    }

    /// Returns the status of this moment, or one that another reader got shortly before.
    async fn shared_status(&self) -> (Status, LeftOut) {
        let mut shared = self.shared.status.lock().await;
        if let Some((at, status, left_out)) = &*shared
            && at.elapsed() < SHARED_PERIOD
        {
            return (status.clone(), *left_out);
        }
        let mut status = self.status.snapshot().await;
        let left_out = shorten(&mut status.sessions, self.role);
        *shared = Some((Instant::now(), status.clone(), left_out));
        (status, left_out)
    }
}

/// Puts the sessions that the page is about in front, and leaves out those beyond a number.
fn shorten(sessions: &mut Vec<SessionStatus>, role: RoleName) -> LeftOut {
    let main = match role {
        RoleName::Client => Opened::Here,
        RoleName::Gateway | RoleName::Relay | RoleName::Bridge | RoleName::Issuer => Opened::There,
    };
    sessions.sort_by_key(|session| session.opened != main);
    let left_out = sessions.split_off(sessions.len().min(MAX_SESSIONS));
    let of_main = left_out.iter().filter(|it| it.opened == main).count();
    LeftOut {
        sessions: of_main,
        others: left_out.len() - of_main,
    }
}

/// The counts of refusals and of failed operations since the start.
#[derive(Clone, Copy, Debug, Default)]
struct Refusals {
    connections: u64,
    unauthorized: u64,
    of_relay: u64,
    not_accepted: u64,
    not_stored: u64,
}

impl Refusals {
    fn now() -> Self {
        Self {
            connections: METRICS.connections_refused.value(),
            unauthorized: METRICS.unauthorized.value(),
            of_relay: METRICS.relay_refusals.value(),
            not_accepted: METRICS.accept_failures.value(),
            not_stored: METRICS.submission_commit_failures.value(),
        }
    }
}

/// The counts of refusals at two moments, which are [`RECENT_PERIOD`] apart or more. Refusals since
/// the first moment are present problems.
#[derive(Debug)]
struct Recent {
    first: (Instant, Refusals),
    second: (Instant, Refusals),
}

impl Recent {
    const fn new(now: Instant, count: Refusals) -> Self {
        Self {
            first: (now, count),
            second: (now, count),
        }
    }

    fn look(&mut self, now: Instant, count: Refusals) {
        if now.saturating_duration_since(self.second.0) >= RECENT_PERIOD {
            self.first = std::mem::replace(&mut self.second, (now, count));
        }
    }

    /// Returns the problems, one sentence each.
    fn problems(&self, now: Instant, count: Refusals) -> Vec<String> {
        let (since, before) = self.first;
        let minutes = now.saturating_duration_since(since).as_secs().div_ceil(60);
        let mut problems = Vec::new();
        if let refused @ 1.. = count.connections.saturating_sub(before.connections) {
            problems.push(format!(
                "{refused} connection(s) were refused in the last {minutes} min because too many \
                 were open: raise max-connections"
            ));
        }
        if let refused @ 1.. = count.unauthorized.saturating_sub(before.unauthorized) {
            problems.push(format!(
                "{refused} request(s) in the last {minutes} min showed no valid access token: if a \
                 client of yours fails, compare the first lines of both token files"
            ));
        }
        if let refused @ 1.. = count.of_relay.saturating_sub(before.of_relay) {
            problems.push(format!(
                "the next hop did not admit this relay for {refused} request(s) in the last \
                 {minutes} min: compare the first lines of the relay's token-file and of the next \
                 hop's"
            ));
        }
        if let failures @ 1.. = count.not_accepted.saturating_sub(before.not_accepted) {
            problems.push(format!(
                "listeners could not accept connections {failures} time(s) in the last {minutes} \
                 min, so clients waited: raise the limit of descriptors (LimitNOFILE= in a systemd \
                 unit, or ulimit -n), or lower max-connections"
            ));
        }
        if let submissions @ 1.. = count.not_stored.saturating_sub(before.not_stored) {
            problems.push(format!(
                "{submissions} submission(s) could not be stored in the last {minutes} min: check \
                 that the store can be reached, and has space and permissions"
            ));
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts of refused connections and requests without a token.
    const fn refused(connections: u64, unauthorized: u64) -> Refusals {
        Refusals {
            connections,
            unauthorized,
            of_relay: 0,
            not_accepted: 0,
            not_stored: 0,
        }
    }

    #[test]
    fn refusals_are_a_problem_for_some_minutes() {
        let start = Instant::now();
        let mut recent = Recent::new(start, refused(7, 3));
        let at = |minutes: u64| start + Duration::from_secs(60 * minutes);
        recent.look(at(1), refused(9, 3));
        let problems = recent.problems(at(1), refused(9, 3));
        assert_eq!(problems.len(), 1, "{problems:?}");
        let start = "2 connection(s) were refused in the last 1 min because";
        assert!(problems[0].starts_with(start), "{problems:?}");
        for minute in 2..=4 {
            recent.look(at(minute), refused(9, 3));
            assert_eq!(recent.problems(at(minute), refused(9, 3)).len(), 1);
        }
        for minute in 5..=10 {
            recent.look(at(minute), refused(9, 3));
        }
        assert!(recent.problems(at(10), refused(9, 3)).is_empty());
        let problems = recent.problems(at(11), refused(9, 4));
        assert!(problems[0].contains("showed no valid access token"));
    }

    #[test]
    fn refusal_of_a_relay_is_a_problem() {
        let start = Instant::now();
        let refused = |of_relay| Refusals {
            of_relay,
            ..Refusals::default()
        };
        let recent = Recent::new(start, refused(2));
        let at = start + Duration::from_secs(60);
        assert!(recent.problems(at, refused(2)).is_empty());
        let problems = recent.problems(at, refused(5));
        let start = "the next hop did not admit this relay for 3 request(s) in the last 1 min: ";
        assert!(problems[0].starts_with(start), "{problems:?}");
    }

    #[test]
    fn failures_to_accept_and_to_store_are_problems() {
        let start = Instant::now();
        let failed = |not_accepted, not_stored| Refusals {
            not_accepted,
            not_stored,
            ..Refusals::default()
        };
        let recent = Recent::new(start, failed(1, 1));
        let at = start + Duration::from_secs(60);
        assert!(recent.problems(at, failed(1, 1)).is_empty());
        let problems = recent.problems(at, failed(3, 2));
        let starts = [
            "listeners could not accept connections 2 time(s) in the last 1 min",
            "1 submission(s) could not be stored in the last 1 min",
        ];
        assert_eq!(problems.len(), starts.len(), "{problems:?}");
        for (problem, start) in problems.iter().zip(starts) {
            assert!(problem.starts_with(start), "{problem}");
        }
    }

    #[tokio::test]
    async fn overview_has_a_bounded_number_of_sessions() {
        let asked = Arc::<std::sync::atomic::AtomicUsize>::default();
        let count = Arc::clone(&asked);
        let status = StatusSource::new(move || {
            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let session = |opened| SessionStatus::new(opened, Instant::now(), None);
            let (sender, answer) = tokio::sync::oneshot::channel();
            let mut sessions = vec![session(Opened::There); 150];
            sessions.extend(vec![session(Opened::Here); 30]);
            sender.send(sessions).expect("the source awaits it");
            vec![answer]
        });
        let source = OverviewSource::new(RoleName::Client, status, Arc::default());
        let overview = source.take(0).await;
        let shown = &overview.status.sessions;
        assert_eq!(shown.len(), MAX_SESSIONS);
        assert!(shown[..30].iter().all(|it| it.opened == Opened::Here));
        let left_out = LeftOut {
            sessions: 0,
            others: 80,
        };
        assert_eq!(overview.left_out, left_out);
        let again = source.clone().take(0).await;
        assert_eq!(again.status.uptime, overview.status.uptime);
        let count = asked.load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(count, 1, "the readers share one status");
    }

    #[tokio::test]
    async fn overview_leaves_out_known_loads() {
        let journal = Arc::<Journal>::default();
        let status = StatusSource::new(Vec::new);
        let source = OverviewSource::new(RoleName::Client, status, Arc::clone(&journal));
        journal.open_load("http://a/", Instant::now());
        journal.set_warnings(vec!["the certificate expires".into()]);
        let overview = source.take(0).await;
        assert_eq!((overview.kept.len(), overview.loads.len()), (1, 1));
        assert_eq!(overview.problems, ["the certificate expires"]);
        let again = source.take(overview.revision).await;
        assert_eq!((again.kept.len(), again.loads.len()), (1, 0));
        journal.open_load("http://b/", Instant::now());
        let changed = source.take(overview.revision).await;
        assert_eq!((changed.kept.len(), changed.loads.len()), (2, 1));
        let text = serde_json::to_string(&overview).expect("plain values");
        let read: Overview = serde_json::from_str(&text).expect("its own form");
        assert_eq!(read.problems, overview.problems);
    }
}

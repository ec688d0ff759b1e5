//! A snapshot of the process for people and programs that watch it: sessions, their paths, and the
//! counters. It holds no addresses of clients and no destinations.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::metrics::METRICS;
use crate::path::Facts;

/// The state of the process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Seconds since the start.
    pub uptime: f64,
    /// The open sessions of all threads.
    pub sessions: Vec<SessionStatus>,
    /// The counters by name.
    pub counters: BTreeMap<String, u64>,
}

/// The end that opened a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Opened {
    /// The other end: a browser or another proxy.
    There,
    /// This process: it leads to a gateway.
    Here,
}

/// The state of one session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionStatus {
    /// The end that opened it.
    pub opened: Opened,
    /// The gateway that it leads to, as `host:port`.
    pub gateway: Option<String>,
    /// The session protocol, the transport and the proxy on the way, for a session to a gateway.
    pub protocol: Option<String>,
    /// Seconds since it was opened.
    pub age: f64,
    /// The exchanges under way, where the session counts them.
    pub exchanges: Option<usize>,
    /// The round trip in seconds, where the path measures it, and no proxy is on the way.
    pub round_trip: Option<f64>,
    /// The rate in bytes per second, where the path measures it, and no proxy is on the way.
    pub rate: Option<f64>,
}

impl SessionStatus {
    /// Describes a session by its age and the facts about its path.
    pub fn new(opened: Opened, since: Instant, facts: Option<&dyn Facts>) -> Self {
        // Behind a proxy, the measures would be those of the connection to it, often on this
        // machine.
        let measure = facts.filter(|facts| !facts.is_to_proxy());
        let measure = measure.and_then(Facts::measure);
        Self {
            opened,
            gateway: None,
            protocol: None,
            age: since.elapsed().as_secs_f64(),
            exchanges: None,
            round_trip: measure.map(|measure| measure.round_trip),
            rate: measure.map(|measure| measure.rate),
        }
    }
}

/// The answer of one thread.
pub type Answer = oneshot::Receiver<Vec<SessionStatus>>;

/// Takes snapshots. Nothing is kept up to date for them: each asks the threads.
#[derive(Clone)]
pub struct StatusSource {
    started: Instant,
    ask: Arc<dyn Fn() -> Vec<Answer> + Send + Sync>,
}

impl StatusSource {
    /// Creates a source; `ask` has each thread send its sessions.
    pub fn new(ask: impl Fn() -> Vec<Answer> + Send + Sync + 'static) -> Self {
        Self {
            started: Instant::now(),
            ask: Arc::new(ask),
        }
    }

    /// Takes a snapshot. A thread that has ended has no sessions.
    pub async fn snapshot(&self) -> Status {
        let mut sessions = Vec::new();
        for answer in (self.ask)() {
            sessions.extend(answer.await.unwrap_or_default());
        }
        Status {
            uptime: self.started.elapsed().as_secs_f64(),
            sessions,
            counters: METRICS.values(),
        }
    }
}

impl std::fmt::Debug for StatusSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StatusSource")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::Measure;

    struct Measured {
        is_to_proxy: bool,
    }

    impl Facts for Measured {
        fn below(&self) -> Option<&dyn Facts> {
            None
        }

        fn measure(&self) -> Option<Measure> {
            let (round_trip, rate) = (0.1, 1e6);
            Some(Measure { round_trip, rate })
        }

        fn is_to_proxy(&self) -> bool {
            self.is_to_proxy
        }
    }

    #[test]
    fn session_behind_a_proxy_shows_no_measures() {
        for is_to_proxy in [false, true] {
            let facts = Measured { is_to_proxy };
            let status = SessionStatus::new(Opened::Here, Instant::now(), Some(&facts));
            let expected = (!is_to_proxy).then_some((0.1, 1e6));
            assert_eq!(status.round_trip.zip(status.rate), expected);
        }
    }

    #[tokio::test]
    async fn snapshot_joins_the_sessions_of_all_threads() {
        let session = SessionStatus::new(Opened::There, Instant::now(), None);
        let source = StatusSource::new(move || {
            let (one, first) = oneshot::channel();
            let (ended, second) = oneshot::channel();
            one.send(vec![session.clone(); 2]).expect("it is awaited");
            drop(ended);
            vec![first, second]
        });
        let status = source.snapshot().await;
        assert_eq!(status.sessions.len(), 2);
        assert!(status.counters.contains_key("connections_open"));
        let text = serde_json::to_string(&status).expect("plain values");
        let read: Status = serde_json::from_str(&text).expect("its own form");
        assert_eq!(read.counters, status.counters);
    }
}

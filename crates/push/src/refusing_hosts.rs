//! The hosts whose last answer was a failure or a refusal.
//!
//! A host may be down, or may refuse requests for a time. Early requests to it cost the origin
//! requests for nothing, and the URLs of its resources may change with each visit. Therefore the
//! table holds hosts. Resources of such a host wait until it has answered a request of the same
//! session in another way.
//!
//! The knowledge ends with one answer of the host to any user, or after a time without failures.
//! Failures that a user provokes thus delay pushes from this host to others, until the
//! browser has requested something from it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time after its last failure for which a host is remembered. A host that is down for longer
/// fails again at the next visit.
const PERIOD: Duration = Duration::from_mins(10);

/// The largest number of hosts in a table. A table that is full starts again.
const MAX_HOSTS: usize = 256;

/// The hosts that failed, as authorities in lower case.
#[derive(Debug, Default)]
pub struct RefusingHosts {
    /// The times at which the knowledge ends.
    hosts: HashMap<String, Instant>,
    /// The same hosts for pages, until the next change.
    shared: Option<Arc<HashSet<String>>>,
}

/// Returns whether a status shows that a host fails or refuses requests.
pub const fn is_failure(status: u16) -> bool {
    matches!(status, 429 | 500..=599)
}

impl RefusingHosts {
    /// Notes the status with which a host has answered.
    pub fn note(&mut self, now: Instant, host: &str, status: u16) {
        let is_failure = is_failure(status);
        if !is_failure && self.hosts.is_empty() {
            return;
        }
        let host = host.to_ascii_lowercase();
        if is_failure {
            if self.hosts.len() >= MAX_HOSTS && !self.hosts.contains_key(&host) {
                self.hosts.clear();
            }
            if self.hosts.insert(host, now + PERIOD).is_none() {
                self.shared = None;
            }
        } else if self.hosts.remove(&host).is_some() {
            self.shared = None;
        }
    }

    /// Returns the hosts whose last answer was a failure.
    pub fn present(&mut self, now: Instant) -> Arc<HashSet<String>> {
        if self.hosts.values().any(|until| *until <= now) {
            self.hosts.retain(|_, until| now < *until);
            self.shared = None;
        }
        let hosts = &self.hosts;
        let shared = self
            .shared
            .get_or_insert_with(|| Arc::new(hosts.keys().cloned().collect()));
        Arc::clone(shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_refuses_until_it_answers() {
        let (mut table, now) = (RefusingHosts::default(), Instant::now());
        for (status, refuses) in [(200, false), (503, true), (404, false), (429, true)] {
            table.note(now, "A.test:81", status);
            table.note(now, "b.test", 200);
            let present = table.present(now);
            assert_eq!(present.contains("a.test:81"), refuses, "{status}");
            assert_eq!(present.len(), usize::from(refuses), "{status}");
        }
        table.note(now + PERIOD / 2, "a.test:81", 500);
        assert_eq!(table.present(now + PERIOD).len(), 1);
        assert!(table.present(now + 2 * PERIOD).is_empty());
    }

    #[test]
    fn refusing_hosts_are_bounded() {
        let (mut table, now) = (RefusingHosts::default(), Instant::now());
        for number in 0..3 * MAX_HOSTS {
            table.note(now, &format!("{number}.test"), 503);
            assert!(table.present(now).len() <= MAX_HOSTS);
        }
    }
}

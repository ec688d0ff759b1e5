//! The hosts that have lately answered different users with a failure or a refusal.
//!
//! A host may be down, or may refuse requests for a time. Early requests to it cost the origin
//! requests for nothing, and the URLs of its resources may change with each visit. Therefore the
//! table holds hosts. Resources of such a host wait until it has answered a request of the same
//! session in another way.
//!
//! A user can make a host answer with failures, such as a host that many sites share. Therefore the
//! table counts the users whose requests have failed. A host refuses requests once enough different
//! users are counted. Fewer users change nothing for the others.
//!
//! The knowledge ends with one answer of the host to any user, or some time after the last user was
//! counted. An answer that a user provokes only brings back the pushes that the host gets without
//! the table.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tandem_predict::crowd::Crowd;

/// The time after its last counted user for which a host is remembered. A host that is down for
/// longer fails again at the next visit. A user that was counted before does not prolong the time.
const PERIOD: Duration = Duration::from_mins(10);

/// The largest number of hosts in a table. A table that is full starts again.
const MAX_HOSTS: usize = 256;

/// The largest number of users that may have to meet a failure.
const MAX_USERS: usize = 4;

/// The hosts that failed, as authorities in lower case.
#[derive(Debug, Default)]
pub struct RefusingHosts {
    hosts: HashMap<String, Refusing>,
    /// The hosts that refuse requests, for pages, until the next change.
    shared: Option<Shared>,
}

#[derive(Debug)]
struct Refusing {
    /// The users whose requests failed.
    users: Crowd<MAX_USERS>,
    /// The time at which the knowledge ends.
    until: Instant,
}

#[derive(Debug)]
struct Shared {
    least_users: u8,
    hosts: Arc<HashSet<String>>,
}

/// Returns whether a status shows that a host fails or refuses requests.
pub const fn is_failure(status: u16) -> bool {
    matches!(status, 429 | 500..=599)
}

impl RefusingHosts {
    /// Notes the status with which a host has answered a user.
    pub fn note(&mut self, now: Instant, host: &str, user: u64, status: u16) {
        let is_failure = is_failure(status);
        if !is_failure && self.hosts.is_empty() {
            return;
        }
        let host = host.to_ascii_lowercase();
        if !is_failure {
            if self.hosts.remove(&host).is_some() {
                self.shared = None;
            }
            return;
        }
        if self.hosts.len() >= MAX_HOSTS && !self.hosts.contains_key(&host) {
            self.hosts.clear();
        }
        let until = now + PERIOD;
        let users = Crowd::default();
        let known = self.hosts.entry(host);
        let known = known.or_insert(Refusing { users, until });
        if known.until <= now {
            known.users = users;
        }
        if known.users.note(user) {
            known.until = until;
            self.shared = None;
        }
    }

    /// Returns the hosts that refuse requests, as the last answers to `least_users` different users
    /// have shown.
    pub fn present(&mut self, now: Instant, least_users: u8) -> Arc<HashSet<String>> {
        if self.hosts.values().any(|known| known.until <= now) {
            self.hosts.retain(|_, known| now < known.until);
            self.shared = None;
        }
        let least_users = least_users.min(MAX_USERS as u8);
        self.shared.take_if(|it| it.least_users != least_users);
        let known = &self.hosts;
        let shared = self.shared.get_or_insert_with(|| {
            let refusing = known.iter().filter(|(_, it)| it.users.count >= least_users);
            Shared {
                least_users,
                hosts: Arc::new(refusing.map(|(host, _)| host.clone()).collect()),
            }
        });
        Arc::clone(&shared.hosts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_refuses_until_it_answers() {
        let (mut table, now) = (RefusingHosts::default(), Instant::now());
        for (status, refuses) in [(200, false), (503, true), (404, false), (429, true)] {
            table.note(now, "A.test:81", 1, status);
            table.note(now, "b.test", 1, 200);
            let present = table.present(now, 1);
            assert_eq!(present.contains("a.test:81"), refuses, "{status}");
            assert_eq!(present.len(), usize::from(refuses), "{status}");
        }
        table.note(now + PERIOD / 2, "a.test:81", 1, 500);
        assert_eq!(table.present(now + PERIOD / 2, 1).len(), 1);
        assert!(table.present(now + PERIOD, 1).is_empty(), "the same user");
        table.note(now + PERIOD, "a.test:81", 1, 500);
        assert_eq!(table.present(now + PERIOD, 1).len(), 1);
    }

    #[test]
    fn one_user_makes_no_host_refuse_for_others() {
        let (mut table, now) = (RefusingHosts::default(), Instant::now());
        for (user, refuses) in [(7, false), (7, false), (8, false), (9, true)] {
            table.note(now, "a.test", user, 503);
            assert_eq!(table.present(now, 3).contains("a.test"), refuses, "{user}");
            assert!(table.present(now, 1).contains("a.test"));
        }
        table.note(now + PERIOD / 2, "a.test", 7, 503);
        assert!(
            table.present(now + PERIOD, 3).is_empty(),
            "one user prolongs nothing"
        );
        table.note(now + PERIOD, "a.test", 7, 503);
        assert!(
            table.present(now + PERIOD, 3).is_empty(),
            "the count begins again"
        );
    }

    #[test]
    fn refusing_hosts_are_bounded() {
        let (mut table, now) = (RefusingHosts::default(), Instant::now());
        for number in 0..3 * MAX_HOSTS {
            table.note(now, &format!("{number}.test"), 1, 503);
            assert!(table.present(now, 1).len() <= MAX_HOSTS);
        }
    }
}

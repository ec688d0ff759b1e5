//! The hosts of other origins that the pages of an origin request in one user's browser.
//!
//! A gateway leaves most resources of another site to the browser until it has requested one of
//! their host: the user may block the host, and anyone could teach a shared predictor a host. At a
//! gateway with one user, earlier visits show the hosts. The browser itself has named the origin in
//! the Referer of such a request, which a page of another origin cannot forge.
//!
//! A push hides whether the browser would have requested the resource. Each visit therefore costs a
//! host credit, and each request or used push restores it.

use tandem_predict::ids::IdMap;

/// The visits without a request or a used push after which a host is left to the browser.
const CREDIT: u8 = 3;

/// The number of hosts in a table, of all origins together. A table that is full starts again.
const MAX_TOTAL: usize = 1 << 15;

/// The largest number of hosts of one origin. The host with the least credit makes way.
const MAX_HOSTS: usize = 128;

/// The bytes of the longest host that is remembered: a name of DNS, a port and the colon.
const MAX_LENGTH: usize = 253 + 6;

/// The hosts that the pages of origins request, by numbers of the origins.
#[derive(Debug, Default)]
pub struct AskedHosts {
    origins: IdMap<u64, Vec<AskedHost>>,
    total: usize,
}

#[derive(Debug)]
struct AskedHost {
    /// The authority.
    host: Box<str>,
    credit: u8,
}

impl AskedHosts {
    /// Notes that a page of an origin has requested a resource of `host`, or has used a push of it.
    pub fn note(&mut self, origin: u64, host: &str) {
        if host.len() > MAX_LENGTH {
            return;
        }
        if self.total >= MAX_TOTAL {
            self.origins.clear();
            self.total = 0;
        }
        let hosts = self.origins.entry(origin).or_default();
        if let Some(known) = hosts.iter_mut().find(|it| *it.host == *host) {
            known.credit = CREDIT;
            return;
        }
        let new = AskedHost {
            host: host.into(),
            credit: CREDIT,
        };
        if hosts.len() < MAX_HOSTS {
            self.total += 1;
            hosts.push(new);
        } else if let Some(least) = hosts.iter_mut().min_by_key(|it| it.credit) {
            *least = new;
        }
    }

    /// Returns the hosts that a visit to a page of an origin is expected to request. The visit
    /// costs them credit.
    pub fn of_visit(&mut self, origin: u64) -> Vec<String> {
        let Some(hosts) = self.origins.get_mut(&origin) else {
            return Vec::new();
        };
        let expected = hosts.iter().map(|it| it.host.to_string()).collect();
        let before = hosts.len();
        hosts.retain_mut(|it| {
            it.credit -= 1;
            it.credit > 0
        });
        self.total -= before - hosts.len();
        if hosts.is_empty() {
            self.origins.remove(&origin);
        }
        expected
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_those_of_the_origin() {
        let mut table = AskedHosts::default();
        table.note(1, "b.test");
        table.note(1, "b.test");
        table.note(1, "c.test");
        table.note(2, "d.test");
        assert_eq!(table.of_visit(1), ["b.test", "c.test"]);
        assert_eq!(table.of_visit(2), ["d.test"]);
        assert_eq!(table.of_visit(3), [""; 0]);
    }

    #[test]
    fn visits_without_a_request_end_the_knowledge() {
        let mut table = AskedHosts::default();
        table.note(1, "b.test");
        table.note(1, "blocked.test");
        for visit in 0..CREDIT + 3 {
            let hosts = table.of_visit(1);
            assert!(hosts.contains(&"b.test".into()), "{visit}");
            let is_expected = hosts.contains(&"blocked.test".into());
            assert_eq!(is_expected, visit < CREDIT, "{visit}");
            table.note(1, "b.test");
        }
        for _ in 0..CREDIT {
            table.of_visit(1);
        }
        assert!(table.origins.is_empty() && table.total == 0);
    }

    #[test]
    fn table_is_bounded() {
        let mut table = AskedHosts::default();
        for at in 0..2 * MAX_HOSTS {
            table.note(1, &format!("{at}.test"));
        }
        table.note(1, "last.test");
        let hosts = table.of_visit(1);
        assert_eq!(hosts.len(), MAX_HOSTS);
        assert!(hosts.contains(&"last.test".into()));
        table.note(2, &"x".repeat(MAX_LENGTH + 1));
        assert_eq!(table.of_visit(2), [""; 0]);
        for origin in 0..MAX_TOTAL as u64 + 9 {
            table.note(origin, "b.test");
            let kept: usize = table.origins.values().map(Vec::len).sum();
            assert!(kept == table.total && kept <= MAX_TOTAL || origin % 1000 != 0);
        }
        assert!(table.total < MAX_TOTAL);
    }
}

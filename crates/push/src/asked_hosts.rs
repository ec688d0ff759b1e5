//! The hosts of other origins that the pages of an origin request in one user's browser.
//!
//! A gateway leaves most resources of another site to the browser, until the browser has requested
//! something from their host. The user may block the host, and anyone could teach a host to a
//! shared predictor. At a gateway with one user, earlier sessions show the hosts. The browser
//! itself has named the origin in the Referer of such a request, which a page of another origin
//! cannot forge.
//!
//! A push hides whether the browser would have requested the resource. Each host therefore has a
//! credit. A useless push costs one unit, and a request or a used push restores all of it.

use tandem_predict::ids::IdMap;

/// The useless pushes in succession after which a host is left to the browser.
const CREDIT: u8 = 8;

/// The largest number of hosts in a table, of all origins together. A full table starts again.
const MAX_TOTAL: usize = 1 << 15;

/// The largest number of hosts of one origin. The host with the least credit makes way.
const MAX_HOSTS: usize = 128;

/// The bytes of the longest host that is remembered: a name of DNS, a port and the colon.
const MAX_LENGTH: usize = 253 + 6;

/// The hosts that the pages of origins request, by numbers of browser and origin.
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
    pub fn note_asked(&mut self, origin: u64, host: &str) {
        let hosts = self.origins.get_mut(&origin);
        if let Some(known) = hosts.and_then(|hosts| find(hosts, host)) {
            known.credit = CREDIT;
            return;
        }
        if host.len() > MAX_LENGTH {
            return;
        }
        if self.total >= MAX_TOTAL {
            self.origins.clear();
            self.total = 0;
        }
        let new = AskedHost {
            host: host.into(),
            credit: CREDIT,
        };
        let hosts = self.origins.entry(origin).or_default();
        if hosts.len() < MAX_HOSTS {
            self.total += 1;
            hosts.push(new);
        } else if let Some(least) = hosts.iter_mut().min_by_key(|it| it.credit) {
            *least = new;
        }
    }

    /// Notes that a page of an origin had no use for a push of a resource of `host`.
    pub fn note_useless(&mut self, origin: u64, host: &str) {
        let Some(hosts) = self.origins.get_mut(&origin) else {
            return;
        };
        let Some(known) = find(hosts, host) else {
            return;
        };
        known.credit -= 1;
        if known.credit > 0 {
            return;
        }
        hosts.retain(|it| it.credit > 0);
        self.total -= 1;
        if hosts.is_empty() {
            self.origins.remove(&origin);
        }
    }

    /// Returns the hosts that a page of an origin is expected to request.
    pub fn of(&self, origin: u64) -> impl Iterator<Item = &str> {
        let hosts = self.origins.get(&origin).into_iter().flatten();
        hosts.map(|it| &*it.host)
    }
}

fn find<'a>(hosts: &'a mut [AskedHost], host: &str) -> Option<&'a mut AskedHost> {
    hosts.iter_mut().find(|it| *it.host == *host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(table: &AskedHosts, origin: u64) -> Vec<&str> {
        table.of(origin).collect()
    }

    #[test]
    fn hosts_are_those_of_the_origin() {
        let mut table = AskedHosts::default();
        table.note_asked(1, "b.test");
        table.note_asked(1, "b.test");
        table.note_asked(1, "c.test");
        table.note_asked(2, "d.test");
        assert_eq!(hosts(&table, 1), ["b.test", "c.test"]);
        assert_eq!(hosts(&table, 2), ["d.test"]);
        assert_eq!(hosts(&table, 3), [""; 0]);
    }

    #[test]
    fn useless_pushes_end_the_knowledge() {
        let mut table = AskedHosts::default();
        table.note_asked(1, "b.test");
        table.note_asked(1, "blocked.test");
        for push in 1..=2 * CREDIT {
            table.note_useless(1, "blocked.test");
            table.note_useless(1, "b.test");
            table.note_asked(1, "b.test");
            table.note_useless(1, "other.test");
            table.note_useless(2, "b.test");
            let is_expected = hosts(&table, 1).contains(&"blocked.test");
            assert_eq!(is_expected, push < CREDIT, "{push}");
            assert!(hosts(&table, 1).contains(&"b.test"), "{push}");
        }
        for _ in 0..CREDIT {
            table.note_useless(1, "b.test");
        }
        assert!(table.origins.is_empty() && table.total == 0);
    }

    #[test]
    fn table_is_bounded() {
        let mut table = AskedHosts::default();
        for at in 0..2 * MAX_HOSTS {
            table.note_asked(1, &format!("{at}.test"));
        }
        table.note_asked(1, "last.test");
        assert_eq!(hosts(&table, 1).len(), MAX_HOSTS);
        assert!(hosts(&table, 1).contains(&"last.test"));
        table.note_asked(2, &"x".repeat(MAX_LENGTH + 1));
        assert_eq!(hosts(&table, 2), [""; 0]);
        for origin in 0..MAX_TOTAL as u64 {
            table.note_asked(origin, "b.test");
            assert!(table.total <= MAX_TOTAL);
        }
        let kept: usize = table.origins.values().map(Vec::len).sum();
        assert_eq!(kept, table.total);
        assert!(kept < MAX_TOTAL, "a full table starts again");
    }
}

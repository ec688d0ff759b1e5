//! Which other sites a client asks at all.
//!
//! A page names things of other sites that some browsers never ask for: their users block
//! advertisers and counters. A push would fetch them all the same, at the cost of bytes, and tell
//! that site that somebody is here. So of another site only these are pushed:
//!
//! * style sheets and fonts, without which nothing is shown;
//! * what several users needed (`auto`), unless this client was offered something of that host and
//!   did not want it;
//! * everything else once the client has asked that host for anything, or used a push of it; until
//!   then it waits.

use std::collections::HashSet;
use std::rc::Rc;
use std::time::Duration;

use tandem_preload::{Kind, Need};

use super::SessionState;
use super::page::{Page, host};
use crate::endpoint::literal_ip;

/// Hosts of each sort that are remembered; more begin anew.
const MAX_HOSTS: usize = 1024;

/// Needs that wait at most.
const MAX_WAITING: usize = 1024;

/// How long what is asked for together may take to arrive: of a host that is asked for the first
/// time, browsers ask for several things at once, and what has been asked for is not to be pushed.
const GATHER: Duration = Duration::from_millis(10);

/// The hosts of a session. By authority, as needs and requests have it.
#[derive(Default)]
pub(super) struct Hosts {
    /// The client wants something of them.
    asked: HashSet<String>,
    /// The last page had something of them, and so far nobody wants it.
    offered: HashSet<String>,
    /// An earlier page had, and nobody wanted it.
    shunned: HashSet<String>,
    /// Needs of hosts that have not been asked for anything, each with its page.
    waiting: Vec<(Rc<Page>, Need)>,
}

impl Hosts {
    /// Whether a need of another site may be pushed for a page; one that may not yet waits.
    pub(super) fn takes(&mut self, page: &Rc<Page>, need: &Need, learned: bool) -> bool {
        let host = host(&need.url);
        if self.asked.contains(host) {
            return true;
        }
        remember(&mut self.offered, host);
        let taken = matches!(need.kind, Kind::Style | Kind::Font)
            || (learned && !self.shunned.contains(host));
        if taken {
            self.waiting.retain(|(_, waiting)| waiting.url != need.url);
        } else if self.waiting.len() < MAX_WAITING {
            self.waiting.push((Rc::clone(page), need.clone()));
        }
        taken
    }

    /// Another page begins.
    pub(super) fn turn(&mut self) {
        self.waiting.clear();
        for host in self.offered.drain() {
            if !self.asked.contains(&host) {
                remember(&mut self.shunned, &host);
            }
        }
    }

    /// The client wants something of a host; true for the first time.
    fn wants(&mut self, host: &str) -> bool {
        let first = remember(&mut self.asked, host);
        if first {
            self.shunned.remove(host);
        }
        first
    }

    /// What waits for a host.
    fn release(&mut self, of: &str) -> Vec<(Rc<Page>, Need)> {
        let (released, waiting) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|(_, need)| host(&need.url) == of);
        self.waiting = waiting;
        released
    }
}

fn remember(hosts: &mut HashSet<String>, host: &str) -> bool {
    if hosts.contains(host) {
        return false;
    }
    if hosts.len() >= MAX_HOSTS {
        hosts.clear();
    }
    hosts.insert(host.to_owned())
}

impl SessionState {
    /// The client asks a host for something, or used a push of it: what waits for that may come,
    /// but for what is asked for in the same moment.
    pub(super) fn note_host(self: &Rc<Self>, url: &str) {
        let of = host(url);
        let mut hosts = self.hosts.borrow_mut();
        hosts.waiting.retain(|(_, need)| need.url != url);
        if !hosts.wants(of) || hosts.waiting.is_empty() {
            return;
        }
        drop(hosts);
        let (session, of) = (Rc::downgrade(self), of.to_owned());
        tokio::task::spawn_local(async move {
            tokio::time::sleep(GATHER).await;
            let Some(session) = session.upgrade() else {
                return;
            };
            let released = session.hosts.borrow_mut().release(&of);
            for (page, need) in released {
                page.promise_one(need);
            }
        });
    }
}

/// Whether two authorities are likely one site's: the same host, whatever the port, or names that
/// end alike. Without the list of all suffixes that is a guess: two last labels, or three below the
/// likes of `co.uk`.
pub(super) fn is_same_site(one: &str, other: &str) -> bool {
    let (one, other) = (without_port(one), without_port(other));
    if one == other {
        return true;
    }
    if literal_ip(one).is_some() || literal_ip(other).is_some() {
        return false;
    }
    let mut labels = one.rsplit('.').zip(other.rsplit('.'));
    let (Some(top), Some(second)) = (labels.next(), labels.next()) else {
        return false;
    };
    let alike = top.0 == top.1 && second.0 == second.1;
    let general = top.0.len() == 2 && second.0.len() <= 3;
    alike && (!general || labels.next().is_some_and(|(one, other)| one == other))
}

fn without_port(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sites_are_told_apart() {
        for (one, other) in [
            ("a.test", "a.test:8080"),
            ("www.shop.example", "img.shop.example"),
            ("shop.example", "a.b.shop.example:81"),
            ("www.bbc.co.uk", "static.bbc.co.uk"),
            ("10.0.0.1:1", "10.0.0.1:2"),
            ("[2001:db8::1]:1", "[2001:db8::1]"),
            ("localhost", "localhost:9"),
        ] {
            assert!(
                is_same_site(one, other) && is_same_site(other, one),
                "{one} {other}"
            );
        }
        for (one, other) in [
            ("a.test", "b.test"),
            ("a.co.uk", "b.co.uk"),
            ("shop.example", "shopping.example"),
            ("localhost", "a.localhost"),
            ("10.0.0.1", "10.0.1.1"),
            ("192.0.2.1", "198.0.2.1"),
            ("", "a.test"),
        ] {
            assert!(
                !is_same_site(one, other) && !is_same_site(other, one),
                "{one} {other}"
            );
        }
    }
}

//! A memory of listed hosts that must not be opened: their certificate failed, they asked for a
//! client certificate, or a program refused the local authority's certificate for them.
//!
//! The memory belongs to an isolation key, so that no key learns about another one's hosts.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::exchange::Isolation;

/// The time for which a host is remembered.
const MEMORY: Duration = Duration::from_secs(86_400);

/// The largest number of remembered hosts. The oldest is forgotten first.
const MAX_HOSTS: usize = 1024;

type Host = (Isolation, String, u16);

/// The hosts with their ports, by isolation key.
#[derive(Debug, Default)]
pub(super) struct Spliced(RefCell<HashMap<Host, Instant>>);

impl Spliced {
    pub(super) fn note(&self, isolation: &Isolation, host: &str, port: u16) {
        let now = Instant::now();
        let mut hosts = self.0.borrow_mut();
        hosts.retain(|_, at| now - *at < MEMORY);
        if hosts.len() >= MAX_HOSTS {
            let oldest = hosts.iter().min_by_key(|(_, at)| **at);
            if let Some(oldest) = oldest.map(|(host, _)| host.clone()) {
                hosts.remove(&oldest);
            }
        }
        hosts.insert((isolation.clone(), host.to_owned(), port), now);
    }

    pub(super) fn contains(&self, isolation: &Isolation, host: &str, port: u16) -> bool {
        let hosts = self.0.borrow();
        if hosts.is_empty() {
            return false;
        }
        hosts
            .get(&(isolation.clone(), host.to_owned(), port))
            .is_some_and(|at| at.elapsed() < MEMORY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn spliced_hosts_are_forgotten_after_a_day() {
        let (spliced, none) = (Spliced::default(), Isolation::none());
        spliced.note(&none, "a.test", 443);
        let of = |isolation: &Isolation, host, port| spliced.contains(isolation, host, port);
        assert!(of(&none, "a.test", 443));
        assert!(!of(&none, "a.test", 8443) && !of(&none, "b.test", 443));
        assert!(!of(&Isolation::new(b"u", b""), "a.test", 443));
        tokio::time::advance(MEMORY).await;
        assert!(!of(&none, "a.test", 443));
    }

    #[tokio::test(start_paused = true)]
    async fn spliced_hosts_are_bounded() {
        let (spliced, none) = (Spliced::default(), Isolation::none());
        for number in 0..=MAX_HOSTS {
            spliced.note(&none, &format!("{number}.test"), 443);
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!(spliced.0.borrow().len(), MAX_HOSTS);
        assert!(!spliced.contains(&none, "0.test", 443));
        assert!(spliced.contains(&none, "1.test", 443));
    }
}

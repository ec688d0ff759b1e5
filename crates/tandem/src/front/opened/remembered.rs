//! A memory of listed hosts. One holds hosts that must not be opened: their certificate failed,
//! they asked for a client certificate, or a program refused the local authority's certificate for
//! them. Another one holds hosts with a certificate that the gateway has verified.
//!
//! The memory belongs to an isolation key, so that no key learns about another one's hosts.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::exchange::Isolation;

/// The time for which a failure of TLS is remembered: a bad certificate, a request for a client
/// certificate, or a program that refused the local authority's certificate.
pub(super) const TLS_FAILURE: Duration = Duration::from_secs(86_400);

/// The time for which another failure is remembered, such as an origin that does not answer.
pub(super) const OTHER_FAILURE: Duration = Duration::from_secs(600);

/// The time for which a certificate that the gateway has verified needs no other check before the
/// browser's handshake on the same session. The gateway verifies it for each of its connections all
/// the same.
pub const VERIFIED: Duration = Duration::from_secs(3600);

/// The largest number of remembered hosts. The one that ends first is forgotten for another.
const MAX_HOSTS: usize = 1024;

type Host = (Isolation, String, u16);

/// The hosts with their ports, by isolation key, and the time until which they are remembered.
#[derive(Debug, Default)]
pub struct RememberedHosts(RefCell<HashMap<Host, Instant>>);

impl RememberedHosts {
    /// Remembers a host for a time.
    pub fn note(&self, isolation: &Isolation, host: &str, port: u16, time: Duration) {
        let now = Instant::now();
        let mut hosts = self.0.borrow_mut();
        hosts.retain(|_, until| now < *until);
        if hosts.len() >= MAX_HOSTS {
            let first = hosts.iter().min_by_key(|(_, until)| **until);
            if let Some(first) = first.map(|(host, _)| host.clone()) {
                hosts.remove(&first);
            }
        }
        hosts.insert((isolation.clone(), host.to_owned(), port), now + time);
    }

    /// Forgets a host.
    pub fn forget(&self, isolation: &Isolation, host: &str, port: u16) {
        let key = (isolation.clone(), host.to_owned(), port);
        self.0.borrow_mut().remove(&key);
    }

    /// Returns whether a host is remembered.
    pub fn contains(&self, isolation: &Isolation, host: &str, port: u16) -> bool {
        let hosts = self.0.borrow();
        if hosts.is_empty() {
            return false;
        }
        hosts
            .get(&(isolation.clone(), host.to_owned(), port))
            .is_some_and(|until| Instant::now() < *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn remembered_hosts_are_forgotten_in_time() {
        let (spliced, none) = (RememberedHosts::default(), Isolation::none());
        spliced.note(&none, "a.test", 443, TLS_FAILURE);
        spliced.note(&none, "c.test", 443, OTHER_FAILURE);
        let of = |isolation: &Isolation, host, port| spliced.contains(isolation, host, port);
        assert!(of(&none, "a.test", 443));
        assert!(!of(&none, "a.test", 8443) && !of(&none, "b.test", 443));
        assert!(!of(&Isolation::new(b"u", b""), "a.test", 443));
        assert!(of(&none, "c.test", 443));
        tokio::time::advance(OTHER_FAILURE).await;
        assert!(of(&none, "a.test", 443) && !of(&none, "c.test", 443));
        tokio::time::advance(TLS_FAILURE - OTHER_FAILURE).await;
        assert!(!of(&none, "a.test", 443));
        spliced.note(&none, "a.test", 443, TLS_FAILURE);
        spliced.forget(&none, "a.test", 443);
        assert!(!of(&none, "a.test", 443));
    }

    #[tokio::test(start_paused = true)]
    async fn remembered_hosts_are_bounded() {
        let (spliced, none) = (RememberedHosts::default(), Isolation::none());
        for number in 0..=MAX_HOSTS {
            spliced.note(&none, &format!("{number}.test"), 443, TLS_FAILURE);
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!(spliced.0.borrow().len(), MAX_HOSTS);
        assert!(!spliced.contains(&none, "0.test", 443));
        assert!(spliced.contains(&none, "1.test", 443));
    }
}

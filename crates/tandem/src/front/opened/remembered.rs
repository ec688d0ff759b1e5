//! A memory of listed hosts. One holds hosts that must not be opened: their certificate failed,
//! they asked for a client certificate, or a program refused the local authority's certificate for
//! them. Another one holds hosts with a certificate that the gateway has verified.
//!
//! The memory belongs to an isolation key, so that no key learns about another one's hosts.

use std::time::Duration;

use crate::exchange::Isolation;
use crate::expiring::ExpiringSet;

/// The time for which a failure of TLS is remembered: a bad certificate, a request for a client
/// certificate, or a program that refused the local authority's certificate.
pub(super) const TLS_FAILURE: Duration = Duration::from_secs(86_400);

/// The time for which another failure is remembered, such as an origin that does not answer.
pub(super) const OTHER_FAILURE: Duration = Duration::from_secs(600);

/// The time for which a certificate that the gateway has verified needs no other check before the
/// browser's handshake on the same session. The gateway verifies it for each of its connections all
/// the same.
pub const VERIFIED: Duration = Duration::from_secs(3600);

/// The largest number of remembered hosts.
const MAX_HOSTS: usize = 1024;

type Host = (Isolation, String, u16);

/// The hosts with their ports, by isolation key.
#[derive(Debug, Default)]
pub struct RememberedHosts(ExpiringSet<Host, MAX_HOSTS>);

impl RememberedHosts {
    /// Remembers a host for a time.
    pub fn note(&self, isolation: &Isolation, host: &str, port: u16, time: Duration) {
        self.0.insert(key(isolation, host, port), time);
    }

    /// Forgets a host.
    pub fn forget(&self, isolation: &Isolation, host: &str, port: u16) {
        self.0.remove(&key(isolation, host, port));
    }

    /// Returns whether a host is remembered.
    pub fn contains(&self, isolation: &Isolation, host: &str, port: u16) -> bool {
        self.0.contains(|| key(isolation, host, port))
    }
}

fn key(isolation: &Isolation, host: &str, port: u16) -> Host {
    (isolation.clone(), host.to_owned(), port)
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
        let known = |number: &usize| spliced.contains(&none, &format!("{number}.test"), 443);
        assert_eq!((0..=MAX_HOSTS).filter(known).count(), MAX_HOSTS);
        assert!(!known(&0), "the first one has made way");
    }
}

//! The certificates with which the client opens connections to listed hosts. The local authority
//! ([`super::authority`]) issues them.
//!
//! Each host has a separate key. Keys and certificates exist in memory only, for at most a day, and
//! for a bounded number of hosts. No TLS session is resumed.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::ServerConfig;
use rustls::server::NoServerSessionStorage;
use rustls::sign::{CertifiedKey, SingleCertAndKey};

use super::TlsError;
use super::authority::{Authority, Leaf, watched};
use crate::renewal::{Renewable, Renewals};

/// The largest number of hosts with a certificate. The oldest one is forgotten first.
const MAX_HOSTS: usize = 256;

/// The validity of a certificate, which is replaced after half of it.
const LIFE: Duration = Duration::from_secs(2 * 86_400);

/// The reason why a host gets no certificate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoLeaf {
    /// The clock is outside the authority's validity.
    #[error("the local authority is not valid now: run `tandem trust` with the client's file")]
    Invalid,
    /// The authority's name constraints do not permit the host.
    #[error(
        "the local authority does not cover the host: run `tandem trust` with the client's file"
    )]
    Uncovered,
    /// The certificate could not be made.
    #[error("no certificate could be made: {0}")]
    Failed(String),
}

/// Issues and keeps certificates for listed hosts.
pub struct Leaves {
    authority: Arc<Renewable<Authority>>,
    kept: RefCell<AuthorityLeaves>,
}

/// The certificates of one authority.
struct AuthorityLeaves {
    authority: Arc<Authority>,
    leaves: HashMap<String, Leaf>,
}

impl Leaves {
    /// Reads the authority in `directory` and watches its files.
    ///
    /// # Errors
    /// Fails like [`Authority::load`].
    pub fn watch(directory: &Path, renewals: &Renewals) -> Result<Self, TlsError> {
        let authority = watched(directory, renewals, |_, authority| Ok(authority))?;
        let kept = RefCell::new(AuthorityLeaves {
            authority: authority.get(),
            leaves: HashMap::new(),
        });
        Ok(Self { authority, kept })
    }

    /// Checks that the authority can certify `host` now.
    ///
    /// # Errors
    /// Returns the reason and the remedy.
    pub fn check(&self, host: &str, now: SystemTime) -> Result<(), NoLeaf> {
        let authority = self.authority.get();
        if !authority.validity().contains(now) {
            return Err(NoLeaf::Invalid);
        }
        if !authority.covers(host) {
            return Err(NoLeaf::Uncovered);
        }
        Ok(())
    }

    /// Returns the configuration of a TLS server that stands for `host` and speaks one protocol
    /// (ALPN).
    ///
    /// # Errors
    /// Returns the reason for which the host gets no certificate.
    pub fn server(
        &self,
        host: &str,
        alpn: &[u8],
        now: SystemTime,
    ) -> Result<Arc<ServerConfig>, NoLeaf> {
        self.check(host, now)?;
        let certified = self.certified(host, now)?;
        let mut config = ServerConfig::builder()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
        config.alpn_protocols = vec![alpn.to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }

    fn certified(&self, host: &str, now: SystemTime) -> Result<Arc<CertifiedKey>, NoLeaf> {
        let kept = &mut *self.kept.borrow_mut();
        let authority = self.authority.get();
        if !Arc::ptr_eq(&kept.authority, &authority) {
            *kept = AuthorityLeaves {
                authority,
                leaves: HashMap::new(),
            };
        }
        let fresh = kept.leaves.get(host).filter(|leaf| is_fresh(leaf, now));
        if let Some(leaf) = fresh {
            return Ok(Arc::clone(&leaf.certified));
        }
        let leaf = kept.authority.issue(&[host], now, LIFE);
        let leaf = leaf.map_err(NoLeaf::Failed)?;
        let certified = Arc::clone(&leaf.certified);
        if kept.leaves.len() >= MAX_HOSTS && !kept.leaves.contains_key(host) {
            let oldest = kept.leaves.iter().min_by_key(|(_, leaf)| leaf.issued);
            if let Some(oldest) = oldest.map(|(host, _)| host.clone()) {
                kept.leaves.remove(&oldest);
            }
        }
        kept.leaves.insert(host.to_owned(), leaf);
        Ok(certified)
    }
}

/// Returns false if the certificate is so old, or so far from the clock, that a new one is due.
fn is_fresh(leaf: &Leaf, now: SystemTime) -> bool {
    now.duration_since(leaf.issued)
        .is_ok_and(|age| age < LIFE / 2)
}

#[cfg(test)]
mod tests {
    use super::super::authority::create;
    use super::*;

    fn leaves(name: &str, opened: &[&str]) -> Leaves {
        let name = format!("tandem-leaves-{name}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let opened: Vec<_> = opened.iter().map(|&name| name.to_owned()).collect();
        create(&directory, &opened, SystemTime::now()).expect("an authority");
        let leaves = Leaves::watch(&directory, &Renewals::default()).expect("an authority");
        std::fs::remove_dir_all(&directory).expect("removed");
        leaves
    }

    fn certificate(leaves: &Leaves, host: &str, now: SystemTime) -> Arc<CertifiedKey> {
        leaves.certified(host, now).expect("a certificate")
    }

    #[test]
    fn leaves_are_kept_for_a_day() {
        let leaves = leaves("day", &["a.test"]);
        let now = SystemTime::now();
        let first = certificate(&leaves, "a.test", now);
        let at = |time| Arc::ptr_eq(&first, &certificate(&leaves, "a.test", time));
        assert!(at(now + LIFE / 2 - Duration::from_secs(1)));
        assert!(!at(now + LIFE / 2));
        assert!(!at(now - Duration::from_secs(1)), "the clock was set back");
    }

    #[test]
    fn leaves_have_separate_keys() {
        let leaves = leaves("keys", &["a.test"]);
        let now = SystemTime::now();
        let [one, other] = ["a.test", "b.a.test"].map(|host| certificate(&leaves, host, now));
        let key = |leaf: &CertifiedKey| leaf.key.public_key().map(|key| key.to_vec());
        assert!(key(&one).is_some());
        assert_ne!(key(&one), key(&other));
    }

    #[test]
    fn leaves_are_bounded() {
        let leaves = leaves("bound", &["a.test"]);
        let start = SystemTime::now();
        for number in 0..MAX_HOSTS as u64 + 9 {
            let now = start + Duration::from_millis(number);
            certificate(&leaves, &format!("{number}.a.test"), now);
        }
        let kept = leaves.kept.borrow();
        assert_eq!(kept.leaves.len(), MAX_HOSTS);
        assert!(!kept.leaves.contains_key("8.a.test") && kept.leaves.contains_key("9.a.test"));
    }

    #[test]
    fn leaves_refuse_other_hosts_and_times() {
        let leaves = leaves("refused", &["a.test"]);
        let now = SystemTime::now();
        assert_eq!(leaves.check("a.test", now), Ok(()));
        assert_eq!(leaves.check("b.test", now), Err(NoLeaf::Uncovered));
        for time in [now + 90 * LIFE, now - LIFE] {
            let refused = leaves.server("a.test", b"h2", time).err();
            assert_eq!(refused, Some(NoLeaf::Invalid));
        }
    }
}

//! The clients of a hub that return: they have shown a token in place of a cookie.
//!
//! A token proves that its client had the address some time ago. Somebody else may have it now, and
//! an attacker who had it may send from there still, with a forged source. Such an attacker gets no
//! answer, so the associations of tokens are few until they have ended their handshakes. A client
//! beyond the bounds gets a cookie.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use tandem::metrics::METRICS;

use super::Hub;
use crate::token::{Shown, UsedTokens};

/// The handshakes after tokens that are under way at most, as over QUIC.
pub(super) const UNPROVED: usize = 64;
/// The most of them with one IPv4 address, or in one IPv6 network.
pub(super) const UNPROVED_OF_ONE: usize = 16;

/// The tokens that were used, and the handshakes after tokens by their networks.
#[derive(Debug, Default)]
pub(super) struct Returning {
    used: UsedTokens,
    pub(super) unproved: HashMap<IpAddr, usize>,
}

impl Returning {
    /// Uses a token, and takes a place for its handshake. Returns false if there is none, or if the
    /// token was used before.
    pub(super) fn admit(&mut self, token: &Shown, network: IpAddr) -> bool {
        let of_one = self.unproved.get(&network).copied().unwrap_or_default();
        let all: usize = self.unproved.values().sum();
        if of_one >= UNPROVED_OF_ONE || all >= UNPROVED || !self.used.spend(token) {
            return false;
        }
        self.unproved.insert(network, of_one + 1);
        METRICS.dtls_tokens_accepted.add(1);
        true
    }
}

/// The place of an association that a token has begun. It is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Unproved {
    hub: Arc<Hub>,
    network: IpAddr,
}

impl Unproved {
    /// Returns the place that [`Returning::admit`] has taken.
    pub(super) fn new(hub: &Arc<Hub>, network: IpAddr) -> Self {
        Self {
            hub: Arc::clone(hub),
            network,
        }
    }
}

impl Drop for Unproved {
    fn drop(&mut self) {
        let unproved = &mut self.hub.state().returning.unproved;
        if let Some(count) = unproved.get_mut(&self.network) {
            *count -= 1;
            if *count == 0 {
                unproved.remove(&self.network);
            }
        }
    }
}

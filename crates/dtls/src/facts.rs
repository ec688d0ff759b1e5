//! The facts about an association: those of [`Facts`] that the tunnel or the driver knows.

use std::cell::{Cell, OnceCell};
use std::net::SocketAddr;
use std::rc::Weak;
use std::time::{Duration, Instant};

use tandem::path::Facts;
use tandem_resume::{SavedSpeed, Trial};
use tandem_tunnel::Tunnel;

use crate::carrier::Shared;

/// The facts about an association.
pub(crate) struct AssociationFacts {
    pub(crate) peer: Cell<SocketAddr>,
    pub(crate) has_peer_certificate: Cell<bool>,
    /// The datagrams that have arrived.
    pub(crate) received: Cell<u64>,
    /// The bytes of these datagrams.
    pub(crate) received_bytes: Cell<u64>,
    pub(crate) association: OnceCell<Weak<Shared>>,
}

impl AssociationFacts {
    /// Calls the tunnel of the association, if both exist.
    fn with_tunnel<T>(&self, call: impl FnOnce(&mut Tunnel, Duration) -> T) -> Option<T> {
        let shared = self.association.get()?.upgrade()?;
        let mut association = shared.association.borrow_mut();
        let now = association.tunnel_time(Instant::now());
        let called = call(association.tunnel(), now);
        drop(association);
        shared.work.notify_one();
        Some(called)
    }
}

impl Facts for AssociationFacts {
    fn below(&self) -> Option<&dyn Facts> {
        None
    }

    fn peer_address(&self) -> Option<SocketAddr> {
        Some(self.peer.get())
    }

    fn datagrams_received(&self) -> Option<u64> {
        Some(self.received.get())
    }

    fn bytes_received(&self) -> Option<u64> {
        Some(self.received_bytes.get())
    }

    fn smoothed_round_trip(&self) -> Option<Duration> {
        let shared = self.association.get()?.upgrade()?;
        let mut association = shared.association.borrow_mut();
        association.tunnel().rtt()
    }

    fn is_over_bbr(&self) -> bool {
        let shared = self.association.get().and_then(Weak::upgrade);
        shared.is_some_and(|shared| shared.association.borrow_mut().tunnel().keeps_estimate())
    }

    fn speed(&self) -> Option<SavedSpeed> {
        self.with_tunnel(|tunnel, _| tunnel.speed())?
    }

    fn resume(&self, saved: SavedSpeed) -> Option<Trial> {
        self.with_tunnel(|tunnel, now| tunnel.resume(now, saved))?
    }

    /// Counts all datagrams: most of them acknowledge something.
    fn acknowledgements(&self) -> Option<u64> {
        Some(self.received.get())
    }

    fn has_peer_certificate(&self) -> bool {
        self.has_peer_certificate.get()
    }
}

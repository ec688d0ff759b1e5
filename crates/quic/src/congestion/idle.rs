//! Counts the acknowledgements that arrive while a connection has nothing to send.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use quinn::congestion::{Controller, ControllerMetrics};
use quinn_proto::RttEstimator;

/// A controller beside which the count is kept. Copies share it.
pub(crate) struct Counting {
    pub(super) inner: Box<dyn Controller>,
    idle: Arc<AtomicU64>,
}

impl Counting {
    pub(super) fn new(inner: Box<dyn Controller>) -> Self {
        let idle = Arc::default();
        Self { inner, idle }
    }

    /// Returns the controller of a connection's present path.
    pub(crate) fn of(connection: &quinn::Connection) -> Option<Self> {
        Self::from(connection.congestion_state())
    }

    pub(super) fn from(controller: Box<dyn Controller>) -> Option<Self> {
        Some(*controller.into_any().downcast().ok()?)
    }

    /// Returns the number of acknowledgements.
    pub(crate) fn idle(&self) -> u64 {
        self.idle.load(Ordering::Relaxed)
    }
}

impl Controller for Counting {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.inner.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        self.inner.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        largest_packet_num_acked: Option<u64>,
    ) {
        self.idle
            .fetch_add(u64::from(app_limited), Ordering::Relaxed);
        self.inner
            .on_end_acks(now, in_flight, app_limited, largest_packet_num_acked);
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        self.inner
            .on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.inner.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        self.inner.window()
    }

    fn metrics(&self) -> ControllerMetrics {
        self.inner.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self {
            inner: self.inner.clone_box(),
            idle: Arc::clone(&self.idle),
        })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

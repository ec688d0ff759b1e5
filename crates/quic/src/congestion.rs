//! The congestion controllers of connections, with careful resume beside them (RFC 9959).
//!
//! The carrier of a connection and the connection itself share one controller, since a saved speed
//! arrives with a request. quinn copies the controller when the peer's port changes. The copy
//! shares the state, because the path through an address translator stays the same. A path to
//! another address gets a new controller.
//!
//! [`Counting`] stands around each controller. It tells when a connection had nothing to send.
//!
//! The BBR of quinn begins without a saved speed. It cannot drain the path after a retreat, or drop
//! the rates that it measured.

mod idle;

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub(crate) use idle::Counting;
use quinn::congestion::{BbrConfig, Controller, ControllerFactory, ControllerMetrics, CubicConfig};
use quinn_proto::RttEstimator;
use tandem_resume::{CarefulResume, Reaction, Reduced, Restart, SavedSpeed, Trial};

/// The algorithm of congestion control. It builds the controllers of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Cubic,
    Bbr,
}

/// The factor by which the CUBIC of quinn reduces its window.
const BETA: f64 = 0.7;

/// Creates CUBIC in slow start, with an initial window in bytes other than the usual one if there
/// is one.
fn cubic(window: Option<u64>, now: Instant, mtu: u16) -> Box<dyn Controller> {
    let mut config = CubicConfig::default();
    if let Some(window) = window {
        config.initial_window(window);
    }
    Arc::new(config).build(now, mtu)
}

impl ControllerFactory for Algorithm {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        let inner: Box<dyn Controller> = match *self {
            Self::Cubic => Box::new(Resuming::new(now, mtu)),
            Self::Bbr => Arc::new(BbrConfig::default()).build(now, mtu),
        };
        Box::new(Counting::new(inner))
    }
}

/// A controller with careful resume.
#[derive(Clone)]
pub(crate) struct Resuming(Arc<Mutex<State>>);

struct State {
    start: Instant,
    mtu: u16,
    inner: Box<dyn Controller>,
    resume: CarefulResume,
    rtt: Option<RttEstimator>,
}

impl State {
    fn since_start(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.start)
    }

    fn window(&self) -> u64 {
        self.resume.window(self.inner.window())
    }

    fn restart(&mut self, now: Instant, window: u64) {
        self.inner = cubic(Some(window), now, self.mtu);
    }

    /// Begins again after a retreat. Persistent congestion is the only event after which quinn has
    /// a slow start with a threshold, which is the square of [`BETA`] times the window before.
    fn reduce(&mut self, now: Instant, to: Reduced) {
        self.restart(now, (to.threshold as f64 / (BETA * BETA)).ceil() as u64);
        self.inner.on_congestion_event(now, now, true, 0);
        let grows = to.window.saturating_sub(self.inner.window());
        if let Some(rtt) = &self.rtt {
            self.inner.on_ack(now, now, grows, false, rtt);
        }
    }
}

impl Resuming {
    fn new(now: Instant, mtu: u16) -> Self {
        let inner = cubic(None, now, mtu);
        Self(Arc::new(Mutex::new(State {
            start: now,
            mtu,
            resume: CarefulResume::new(inner.window()),
            inner,
            rtt: None,
        })))
    }

    /// Returns the controller of a connection's present path.
    pub(crate) fn of(connection: &quinn::Connection) -> Option<Self> {
        Self::within(connection.congestion_state())
    }

    fn within(controller: Box<dyn Controller>) -> Option<Self> {
        let counting = Counting::from(controller)?;
        let inner = counting.inner.into_any().downcast().ok()?;
        Some(*inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Offers the speed that an earlier connection observed on this path. Returns `None` if it is
    /// not tried.
    pub(crate) fn offer(&self, now: Instant, saved: SavedSpeed) -> Option<Trial> {
        let mut state = self.state();
        let (now, inner) = (state.since_start(now), state.inner.window());
        state.resume.offer(now, saved, inner)
    }

    /// Returns the speed that the path has shown.
    pub(crate) fn speed(&self) -> Option<SavedSpeed> {
        self.state().resume.speed()
    }
}

impl Controller for Resuming {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.state().inner.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        let mut state = self.state();
        let at = (state.since_start(now), state.since_start(sent));
        state.resume.on_ack(at.0, at.1, bytes, app_limited);
        state.rtt = Some(*rtt);
        state.inner.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        largest_packet_num_acked: Option<u64>,
    ) {
        let mut state = self.state();
        let inner = &mut state.inner;
        inner.on_end_acks(now, in_flight, app_limited, largest_packet_num_acked);
        let (at, inner) = (state.since_start(now), state.inner.window());
        match state.resume.judge(at, in_flight, inner) {
            Some(Restart::Grow(window)) => state.restart(now, window),
            Some(Restart::Reduce(to)) => state.reduce(now, to),
            None => {}
        }
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        let mut state = self.state();
        let at = (state.since_start(now), state.since_start(sent));
        let reaction = match is_persistent_congestion {
            true => state.resume.on_timeout(),
            false => state.resume.on_congestion(at.0, at.1),
        };
        match reaction {
            Reaction::Absorb => return,
            Reaction::Reduce(to) => state.reduce(now, to),
            Reaction::Pass => {}
        }
        let inner = &mut state.inner;
        inner.on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        let mut state = self.state();
        state.mtu = new_mtu;
        state.inner.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        self.state().window()
    }

    fn metrics(&self) -> ControllerMetrics {
        let state = self.state();
        let mut metrics = state.inner.metrics();
        metrics.congestion_window = state.window();
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        self.state().inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests;

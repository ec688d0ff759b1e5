//! The congestion controllers of connections, with careful resume beside them (RFC 9959).
//!
//! The carrier of a connection and the connection itself share one controller, since a saved speed
//! arrives with a request. quinn copies the controller when the peer's port changes. The copy
//! shares the state, because the path through an address translator stays the same. A path to
//! another address gets a new controller.
//!
//! The controller also counts the bytes that wait in the connection ([`crate::unsent`]).
//!
//! The algorithms are those of the tunnel ([`model`]).

mod model;

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use model::Model;
use quinn::congestion::{Controller, ControllerFactory, ControllerMetrics};
use quinn_proto::RttEstimator;
use tandem_resume::{CarefulResume, Reaction, Restart, SavedSpeed, Trial};
use tandem_tunnel::{Algorithm, unsent_limit};

use crate::unsent::Unsent;

/// The full packets of a probe that may exceed the window. One of them is what quinn compares with
/// the window before each packet, and equality is too much.
const PROBE_PACKETS: u64 = 3;

/// Builds the controllers of connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Factory(pub(crate) Algorithm);

impl ControllerFactory for Factory {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        Box::new(Resuming::new(self.0, now, mtu))
    }
}

/// A controller with careful resume. It also tells when a connection had nothing to send.
#[derive(Clone)]
pub(crate) struct Resuming(Arc<Mutex<ControllerState>>);

struct ControllerState {
    start: Instant,
    inner: Model,
    resume: CarefulResume,
    rtt: Option<RttEstimator>,
    unsent: Unsent,
    /// The number of acknowledgements that arrived while there was nothing to send.
    idle: u64,
    /// An upper bound of the bytes in flight.
    in_flight: u64,
    /// True until a probe has left that may exceed the window.
    is_probing: bool,
}

impl ControllerState {
    fn since_start(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.start)
    }

    fn window(&self) -> u64 {
        self.resume.window(self.inner.window())
    }

    fn unsent_limit(&self) -> u64 {
        unsent_limit(self.window(), self.rtt.map(|rtt| rtt.get()))
    }

    /// Wakes the session if it may write more.
    fn wake_for_room(&mut self) {
        let limit = self.unsent_limit();
        self.unsent.wake_below(limit);
    }
}

impl fmt::Debug for Resuming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resuming").finish_non_exhaustive()
    }
}

impl Resuming {
    fn new(algorithm: Algorithm, now: Instant, mtu: u16) -> Self {
        let inner = Model::new(algorithm, mtu);
        Self(Arc::new(Mutex::new(ControllerState {
            start: now,
            resume: CarefulResume::new(inner.window()),
            inner,
            rtt: None,
            unsent: Unsent::default(),
            idle: 0,
            in_flight: 0,
            is_probing: false,
        })))
    }

    /// Returns the controller of a connection's present path.
    pub(crate) fn of(connection: &quinn::Connection) -> Option<Self> {
        Self::from(connection.congestion_state())
    }

    /// Takes a controller of a [`Factory`].
    pub(crate) fn from(controller: Box<dyn Controller>) -> Option<Self> {
        Some(*controller.into_any().downcast().ok()?)
    }

    fn state(&self) -> MutexGuard<'_, ControllerState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Offers the speed that an earlier connection observed on this path. Returns `None` if it is
    /// not tried.
    pub(crate) fn offer(&self, now: Instant, saved: SavedSpeed) -> Option<Trial> {
        let mut state = self.state();
        let (now, inner) = (state.since_start(now), state.inner.window());
        state.resume.offer(now, saved, inner)
    }

    /// Notes bytes of a stream that the connection is about to take.
    pub(crate) fn accept(&self, bytes: usize) {
        self.state().unsent.accept(bytes as u64);
    }

    /// Notes that the connection has not taken some of these bytes.
    pub(crate) fn retract(&self, bytes: usize) {
        self.state().unsent.retract(bytes as u64);
    }

    /// Notes a datagram that the connection is about to take.
    pub(crate) fn accept_datagram(&self, bytes: usize) {
        self.state().unsent.accept_datagram(bytes as u64);
    }

    /// Notes that the connection has not taken a datagram.
    pub(crate) fn retract_datagram(&self, bytes: usize) {
        let mut state = self.state();
        state.unsent.retract_datagram(bytes as u64);
        state.wake_for_room();
    }

    /// Waits until few bytes of streams are unsent.
    pub(crate) fn poll_room(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.state();
        let limit = state.unsent_limit();
        state.unsent.poll_room(limit, cx)
    }

    /// Returns the number of acknowledgements that arrived while there was nothing to send.
    pub(crate) fn idle(&self) -> u64 {
        self.state().idle
    }

    /// Returns true for BBR, which keeps its estimate of the path while nothing is sent.
    pub(crate) fn is_bbr(&self) -> bool {
        self.state().inner.is_bbr()
    }

    /// Lets the next packets exceed the window, as those of a probe timeout do (RFC 9002, section
    /// 7.5).
    pub(crate) fn permit_probe(&self) {
        self.state().is_probing = true;
    }

    /// Returns the smoothed round trip, or zero before the first acknowledgement.
    pub(crate) fn round_trip(&self) -> Duration {
        self.state().rtt.map_or(Duration::ZERO, |rtt| rtt.get())
    }

    /// Returns the speed that the path has shown.
    pub(crate) fn speed(&self) -> Option<SavedSpeed> {
        self.state().resume.speed()
    }
}

impl Controller for Resuming {
    fn on_sent(&mut self, now: Instant, bytes: u64, _last_packet_number: u64) {
        let mut state = self.state();
        let now = state.since_start(now);
        state.inner.on_sent(now, bytes);
        state.in_flight += bytes;
        state.is_probing = false;
        let packet = state.inner.segment();
        state.unsent.on_sent(bytes, packet);
        state.wake_for_room();
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
        let app_limited = app_limited && !state.unsent.is_wanted();
        state.resume.on_ack(at.0, at.1, bytes, app_limited);
        state.rtt = Some(*rtt);
        state.inner.on_ack(at.0, at.1, bytes);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        _largest_packet_num_acked: Option<u64>,
    ) {
        let mut state = self.state();
        state.idle += u64::from(app_limited);
        state.in_flight = in_flight;
        if app_limited {
            state.unsent.on_idle(in_flight);
        }
        // A session that was refused room is about to write more.
        let app_limited = app_limited && !state.unsent.is_wanted();
        state.wake_for_room();
        let now = state.since_start(now);
        let Some(rtt) = state.rtt else { return };
        state.inner.on_end_acks(now, in_flight, app_limited, &rtt);
        let inner = state.inner.window();
        match state.resume.judge(now, in_flight, inner) {
            Some(Restart::Grow(window)) => state.inner.restart(window),
            Some(Restart::Reduce(to)) => state.inner.reduce(now, to),
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
        let (now, sent) = (state.since_start(now), state.since_start(sent));
        let (packet, window) = (state.inner.segment(), state.window());
        state.in_flight = state.in_flight.saturating_sub(lost_bytes);
        state.unsent.on_lost(lost_bytes, packet, window);
        let reaction = match is_persistent_congestion {
            true => state.resume.on_timeout(),
            false => state.resume.on_congestion(now, sent),
        };
        match reaction {
            Reaction::Absorb => return state.inner.keep_reduction(),
            Reaction::Reduce(to) => state.inner.reduce(now, to),
            Reaction::Pass => {}
        }
        state.inner.on_congestion(now, sent, lost_bytes);
        if is_persistent_congestion {
            state.inner.on_timeout(now);
        }
    }

    fn on_spurious_loss(&mut self, _now: Instant, declared: Instant, bytes: u64) {
        let mut state = self.state();
        let declared = state.since_start(declared);
        state.inner.on_spurious(declared, bytes);
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.state().inner.set_mtu(new_mtu);
    }

    fn window(&self) -> u64 {
        let state = self.state();
        let window = state.window();
        if state.is_probing {
            return window.max(state.in_flight + PROBE_PACKETS * state.inner.segment());
        }
        window
    }

    fn metrics(&self) -> ControllerMetrics {
        let state = self.state();
        let mut metrics = ControllerMetrics::default();
        metrics.ssthresh = state.inner.threshold();
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

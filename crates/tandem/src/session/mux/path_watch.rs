//! The observation of a session's path while exchanges are under way: [`silence`](super::silence)
//! decides, and the client end sends the probes.
//!
//! A single exchange looks at the path for all. Another one takes over when it ends.

use std::cell::Cell;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::client::MuxClient;
use super::ping;
use super::silence::{PathState, Silence};
use crate::error::Error;
use crate::session::SessionState;

/// The time between two looks for the answer to a probe.
const LOOK: Duration = Duration::from_millis(20);

/// The observation of a path that carries datagrams.
pub(super) struct PathWatch {
    silence: Cell<Silence>,
    state: Cell<PathState>,
    /// True while an exchange looks at the path.
    is_watched: Cell<bool>,
    /// Notified when the state changes, and when nothing looks at the path any more.
    changed: Notify,
    /// Notified when a request begins.
    expected: Notify,
}

impl PathWatch {
    /// Begins an observation.
    pub(super) fn new() -> Self {
        Self {
            silence: Cell::new(Silence::new(now())),
            state: Cell::new(PathState::Alive),
            is_watched: Cell::new(false),
            changed: Notify::new(),
            expected: Notify::new(),
        }
    }
}

/// The look of an exchange at the path for all exchanges.
struct Watching<'a>(&'a PathWatch);

impl<'a> Watching<'a> {
    /// Begins to look, unless another exchange does.
    fn begin(watch: &'a PathWatch) -> Option<Self> {
        (!watch.is_watched.replace(true)).then_some(Self(watch))
    }
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        self.0.is_watched.set(false);
        self.0.changed.notify_waiters();
    }
}

/// Returns the time, which tests control.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

impl MuxClient {
    /// Watches the path of a new exchange until it falls silent.
    pub(super) async fn until_silent(&self) {
        if let Some((_, round_trip)) = self.path() {
            let watch = &self.path_watch;
            let mut silence = watch.silence.get();
            silence.expect(now(), round_trip);
            watch.silence.set(silence);
            watch.expected.notify_waiters();
        }
        self.until_state(|state| state >= PathState::Silent).await;
    }

    /// Returns true once a silent path is dead, and false if a datagram has arrived. The caller has
    /// waited for the carrier of a session that is not established.
    pub(super) async fn until_dead(&self) -> bool {
        if !self.is_established() {
            return true;
        }
        let state = self.until_state(|state| state != PathState::Silent).await;
        state == PathState::Dead
    }

    /// Returns the number of received datagrams and the round trip. Returns `None` if the path
    /// carries no datagrams, or does not exist.
    fn path(&self) -> Option<(u64, Duration)> {
        let facts = self.facts()?;
        let count = facts.datagrams_received()?;
        let round_trip = facts.smoothed_round_trip();
        Some((
            count,
            round_trip.unwrap_or_else(|| self.shared.answered_in.get()),
        ))
    }

    /// Watches the path until its state is a wanted one. Never resolves without datagrams.
    async fn until_state(&self, is_wanted: impl Fn(PathState) -> bool) -> PathState {
        let watch = &self.path_watch;
        loop {
            let changed = watch.changed.notified();
            if let Some(watching) = Watching::begin(watch) {
                let seen = self.look_until(&is_wanted).await;
                drop(watching);
                return match seen {
                    Some(state) => state,
                    None => std::future::pending().await,
                };
            }
            if is_wanted(watch.state.get()) {
                return watch.state.get();
            }
            changed.await;
        }
    }

    /// Looks at the path until its state is a wanted one. Returns `None` without datagrams.
    async fn look_until(&self, is_wanted: impl Fn(PathState) -> bool) -> Option<PathState> {
        let watch = &self.path_watch;
        loop {
            let expected = watch.expected.notified();
            let wait = self.look()?;
            if is_wanted(watch.state.get()) {
                return Some(watch.state.get());
            }
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = expected => {}
            }
        }
    }

    /// Looks at the path, and returns the time before the next look.
    fn look(&self) -> Option<Duration> {
        let (count, round_trip) = self.path()?;
        let watch = &self.path_watch;
        let mut silence = watch.silence.get();
        let look = silence.look(now(), count, round_trip);
        watch.silence.set(silence);
        if look.probe {
            self.probe();
        }
        if watch.state.replace(look.state) != look.state {
            watch.changed.notify_waiters();
        }
        Some(look.wait)
    }

    /// Sends a probe, which the other end or its carrier answers.
    pub(super) fn probe(&self) {
        self.shared.core.borrow_mut().ping(ping::AFTER_SILENCE);
        self.shared.kick();
    }

    /// Probes the other end, and waits until it has sent something since.
    pub(super) async fn until_answered(&self) -> Result<(), Error> {
        if !self.is_established() {
            return self.until(|shared| shared.established.get()).await;
        }
        let (heard, datagrams) = (self.shared.heard.get(), self.datagrams_received());
        self.probe();
        if datagrams.is_none() {
            return self.until(|shared| shared.heard.get() != heard).await;
        }
        // A carrier wakes no task for an acknowledgement.
        while self.datagrams_received() == datagrams {
            if let Some(error) = self.shared.ended.get() {
                return Err(error.clone());
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }
}

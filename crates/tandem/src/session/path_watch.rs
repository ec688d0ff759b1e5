//! The observation of a session's path while exchanges are under way: [`silence`](super::silence)
//! decides for datagrams, [`stall`](super::stall) for TCP, and this module sends the probes.
//! Sessions of all protocols share it.
//!
//! A task of its own looks at the path while exchanges wait. An exchange cannot look for the
//! others, since its future is not polled while the reader of its response takes no more.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::Task;
use super::idle_check::InputTime;
use super::silence::{PathState, Probing, Silence};
use super::stall::Stall;
use crate::error::Error;
use crate::path::Facts;

/// The time for which exchanges can leave a session that is given up.
const LEAVE: Duration = Duration::from_millis(250);
/// The polling interval for the answer to a probe.
const LOOK: Duration = Duration::from_millis(20);

/// The path of a session, as its observation sees it.
pub(super) trait WatchedPath {
    /// Returns the facts about the path, or `None` before it exists and after the end of the
    /// session.
    fn facts(&self) -> Option<Rc<dyn Facts>>;

    /// Returns the reason for which the session is over.
    fn ended(&self) -> Option<Error>;

    /// Returns the time of the session's last input.
    fn heard(&self) -> Option<InputTime>;

    /// Returns the time from the start of the path to the other end's first bytes.
    fn answered_in(&self) -> Duration;

    /// Sends a probe, which the other end or its carrier answers. Returns false if none of them
    /// would.
    fn probe(&self) -> bool;

    /// Ends the session, and fails its exchanges.
    fn give_up(&self);
}

/// Returns the number of datagrams that have arrived. Returns `None` if the path carries none, or
/// does not exist.
pub(super) fn datagrams_received(path: &dyn WatchedPath) -> Option<u64> {
    path.facts()?.datagrams_received()
}

/// The count by which a path shows that something has arrived.
enum Arrivals {
    /// The datagrams that have arrived.
    Datagrams(u64),
    /// The bytes of a TCP connection that have arrived or were acknowledged, and whether others
    /// wait for an acknowledgement.
    Bytes(u64, bool),
}

/// Returns the count of a path, or `None` if nothing is counted.
fn arrivals(facts: &dyn Facts) -> Option<Arrivals> {
    if let Some(count) = facts.datagrams_received() {
        return Some(Arrivals::Datagrams(count));
    }
    let bytes = facts.bytes_received()?;
    let count = bytes + facts.bytes_acknowledged()?;
    Some(Arrivals::Bytes(count, facts.has_unacknowledged()))
}

/// The observation of a path.
pub(super) struct PathWatch {
    path: Rc<dyn WatchedPath>,
    /// The observation of a path over datagrams.
    silence: Cell<Silence>,
    /// The observation of a path over TCP.
    stall: Cell<Stall>,
    state: Cell<PathState>,
    /// The time at which another session was established beside this one, while it has stalled.
    replaced: Cell<Option<Instant>>,
    is_given_up: Cell<bool>,
    /// The number of [`PathWaiter`]s.
    waiters: Cell<usize>,
    /// The task that looks at the path while there are waiters.
    task: Cell<Option<Task>>,
    /// Notified when the state changes.
    changed: Notify,
    /// Notified when a request begins.
    expected: Notify,
}

/// A waiter for the state of a session's path, which is watched until the last one is dropped.
pub struct PathWaiter(Rc<PathWatch>);

impl std::fmt::Debug for PathWaiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PathWaiter").finish_non_exhaustive()
    }
}

impl Drop for PathWaiter {
    fn drop(&mut self) {
        let watch = &self.0;
        watch.waiters.set(watch.waiters.get() - 1);
        if watch.waiters.get() == 0 {
            drop(watch.task.take());
        }
    }
}

/// Returns the time, which tests control.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

impl PathWatch {
    /// Begins an observation.
    pub(super) fn new(path: Rc<dyn WatchedPath>) -> Rc<Self> {
        Rc::new(Self {
            path,
            silence: Cell::new(Silence::new(now())),
            stall: Cell::new(Stall::new(now())),
            state: Cell::new(PathState::Alive),
            replaced: Cell::default(),
            is_given_up: Cell::new(false),
            waiters: Cell::new(0),
            task: Cell::default(),
            changed: Notify::new(),
            expected: Notify::new(),
        })
    }

    /// Watches the path for a new exchange, whose request reaches the carrier now, or once it has a
    /// stream. Returns `None` if the path counts nothing that arrives, or does not exist.
    pub(super) fn expect(self: &Rc<Self>, probing: Probing) -> Option<PathWaiter> {
        match self.measure()? {
            (Arrivals::Datagrams(_), round_trip) => {
                let mut silence = self.silence.get();
                silence.expect(now(), round_trip, probing);
                self.silence.set(silence);
            }
            (Arrivals::Bytes(count, _), _) => {
                let mut stall = self.stall.get();
                stall.expect(now(), count);
                self.stall.set(stall);
            }
        }
        self.look()?;
        self.expected.notify_waiters();
        Some(self.wait())
    }

    /// Adds a waiter. The first one starts the task.
    fn wait(self: &Rc<Self>) -> PathWaiter {
        let waiters = self.waiters.get();
        self.waiters.set(waiters + 1);
        if waiters == 0 {
            self.task
                .set(Some(Task::spawn(watch_path(Rc::clone(self)))));
        }
        PathWaiter(Rc::clone(self))
    }

    /// Watches the path until its state is a wanted one. Never resolves if nothing is counted.
    async fn until_state(self: &Rc<Self>, is_wanted: impl Fn(PathState) -> bool) -> PathState {
        // Nothing may have looked for a while.
        if self.look().is_none() {
            return std::future::pending().await;
        }
        let _waiter = self.wait();
        loop {
            let changed = self.changed.notified();
            if is_wanted(self.state.get()) {
                return self.state.get();
            }
            changed.await;
        }
    }

    /// Looks at the path, and returns the time before the next look. Returns `None` if nothing is
    /// counted, or the session has ended.
    fn look(&self) -> Option<Duration> {
        let (state, probe, wait) = match self.measure()? {
            (Arrivals::Datagrams(count), round_trip) => {
                let mut silence = self.silence.get();
                let look = silence.look(now(), count, round_trip);
                self.silence.set(silence);
                (look.state, look.probe, look.wait)
            }
            (Arrivals::Bytes(count, waits), answer) => {
                let mut stall = self.stall.get();
                let look = stall.look(now(), count, waits, answer);
                self.stall.set(stall);
                // A path that delivers again is lost only after another replacement.
                let replaced = self.replaced.take().filter(|_| look.is_stalled);
                self.replaced.set(replaced);
                if replaced.is_some_and(|since| stall.is_lost(now(), since)) {
                    self.path.give_up();
                }
                let state = match look.is_stalled || self.is_given_up.get() {
                    true => PathState::Dead,
                    false => PathState::Alive,
                };
                (state, look.probe, look.wait)
            }
        };
        if probe {
            // Probes may wait behind a full window of the carrier, and leave together. The
            // repetitions of the carrier are the probes then.
            self.path.probe();
        }
        if self.state.replace(state) != state {
            self.changed.notify_waiters();
        }
        Some(wait)
    }

    /// Returns the count of arrivals, and the round trip. Over TCP, the latter is the time
    /// until the other end's first bytes. Returns `None` if nothing is counted, or the path does
    /// not exist.
    fn measure(&self) -> Option<(Arrivals, Duration)> {
        let facts = self.path.facts()?;
        let arrivals = arrivals(&*facts)?;
        let round_trip = facts.smoothed_round_trip();
        let round_trip = round_trip.unwrap_or_else(|| self.path.answered_in());
        Some((arrivals, round_trip))
    }

    /// Notes that another session by the same way works, while this path has stalled.
    pub(super) fn replaced(&self) {
        self.replaced.set(Some(now()));
    }

    /// Lets exchanges leave the path, and then ends the session.
    pub(super) fn give_up(&self) {
        self.is_given_up.set(true);
        if self.state.replace(PathState::Dead) != PathState::Dead {
            self.changed.notify_waiters();
        }
        let path = Rc::clone(&self.path);
        tokio::task::spawn_local(async move {
            tokio::time::sleep(LEAVE).await;
            path.give_up();
        });
    }

    /// Resolves once the path is silent, or has stalled. Never resolves if nothing is counted.
    pub(super) async fn until_silent(self: &Rc<Self>) {
        self.until_state(|state| state >= PathState::Silent).await;
    }

    /// Returns true once a silent path is dead, and false if a datagram has arrived. The caller has
    /// waited for the carrier of a session that is not established.
    pub(super) async fn until_dead(self: &Rc<Self>) -> bool {
        let state = self.until_state(|state| state != PathState::Silent);
        state.await == PathState::Dead
    }

    /// Resolves once the path delivers again.
    pub(super) async fn until_alive(self: &Rc<Self>) {
        self.until_state(|state| state == PathState::Alive).await;
    }

    /// Probes the other end, and waits until a datagram has arrived since.
    pub(super) async fn until_answered(&self) -> Result<(), Error> {
        let before = datagrams_received(&*self.path);
        self.path.probe();
        // A carrier wakes no task for an acknowledgement. One that has ended counts nothing.
        let has_received = |count| Some(count) != before;
        while !datagrams_received(&*self.path).is_some_and(has_received) {
            if let Some(error) = self.path.ended() {
                return Err(error);
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }
}

/// Looks at the path until the session ends. The last waiter ends this task.
async fn watch_path(watch: Rc<PathWatch>) {
    loop {
        let expected = watch.expected.notified();
        let Some(wait) = watch.look() else { return };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = expected => {}
        }
    }
}

#[cfg(test)]
mod tests;

//! The time limits of a session over one byte stream. One timer serves all limits, and fires when
//! the earliest of them may have passed.

use std::pin::Pin;
use std::task::Context;
use std::time::{Duration, Instant};

use tokio::time::Sleep;

use crate::error::{Error, Kind, Retry, Side};
use crate::session::Timeouts;

/// The shortest interval between checks of the limits.
const LEAST_WAIT: Duration = Duration::from_millis(10);

/// The limits, and the times against which they are checked.
pub(super) struct Clock {
    pub(super) sleep: Pin<Box<Sleep>>,
    pub(super) limits: Timeouts,
    /// The time of the last input.
    pub(super) read_at: Instant,
    /// The time of the last check that found an exchange under way.
    pub(super) used_at: Instant,
    /// Server only: the start of the session, until its first request arrives. A client that
    /// connects and sends no request takes a place from others.
    pub(super) unasked_since: Option<Instant>,
    /// The time at which the socket stopped accepting bytes.
    pub(super) stuck_since: Option<Instant>,
    /// The time of a probe to which no reply has arrived.
    pub(super) probed_at: Option<Instant>,
}

impl Clock {
    /// Starts at `now`, which is the beginning of the session.
    pub(super) fn new(limits: Timeouts, is_server: bool, now: Instant) -> Self {
        let first = limits
            .probe_after
            .min(limits.idle)
            .min(limits.write)
            .min(limits.head);
        Self {
            sleep: Box::pin(tokio::time::sleep(first)),
            limits,
            read_at: now,
            used_at: now,
            unasked_since: is_server.then_some(now),
            stuck_since: None,
            probed_at: None,
        }
    }

    /// Fails if the other end has taken no bytes for too long, or has not replied to a probe.
    pub(super) fn check(&self, now: Instant, other_end: Side) -> Result<(), Error> {
        let is_over = |since: Option<Instant>, limit| since.is_some_and(|at| now - at >= limit);
        if is_over(self.stuck_since, self.limits.write) {
            let detail = "the other end takes no bytes";
            return Err(Error::new(Kind::Timeout, other_end, detail));
        }
        if is_over(self.probed_at, self.limits.probe_timeout) {
            let detail = "the other end does not respond";
            let error = Error::new(Kind::Timeout, other_end, detail);
            return Err(error.with_retry(Retry::IfIdempotent));
        }
        Ok(())
    }

    /// Returns true if the other end has been silent for so long that it must be probed.
    pub(super) fn is_probe_due(&self, now: Instant) -> bool {
        self.probed_at.is_none() && now - self.read_at >= self.limits.probe_after
    }

    /// Returns true if the session was idle for too long.
    pub(super) fn is_idle_too_long(&self, now: Instant) -> bool {
        now - self.used_at.max(self.read_at) >= self.limits.idle
    }

    /// Server only: returns the time that is left for the first request, or `None` once the request
    /// has arrived. A client may open a session ahead of its first request, but must then send its
    /// first bytes soon.
    pub(super) fn time_for_request(&self, now: Instant, established: bool) -> Option<Duration> {
        let limit = if established {
            self.limits.idle
        } else {
            self.limits.head
        };
        let since = self.unasked_since?;
        Some(limit.saturating_sub(now - since))
    }

    /// Sets the timer for the next check. `deadlines` are further times after which to check.
    pub(super) fn wait(&mut self, deadlines: [Option<Duration>; 2]) {
        let limits = &self.limits;
        let half = limits
            .idle
            .min(limits.write)
            .min(limits.probe_after)
            .min(limits.probe_timeout)
            / 2;
        let wait = deadlines.into_iter().flatten().fold(half, Duration::min);
        let until = tokio::time::Instant::now() + wait.max(LEAST_WAIT);
        self.sleep.as_mut().reset(until);
    }

    /// Shortens the wait if reading or writing made the core set an earlier deadline.
    pub(super) fn hasten(&mut self, deadline: Option<Instant>, cx: &mut Context<'_>) {
        let Some(at) = deadline.map(tokio::time::Instant::from_std) else {
            return;
        };
        let mut sleep = self.sleep.as_mut();
        if at < sleep.deadline() {
            sleep.as_mut().reset(at);
            if sleep.poll(cx).is_ready() {
                cx.waker().wake_by_ref();
            }
        }
    }
}

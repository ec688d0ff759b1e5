//! The time limits of a session over many streams. One timer covers all of them.

use std::pin::Pin;
use std::task::Context;
use std::time::{Duration, Instant};

use tandem_http::Mux;
use tandem_http::h3::Connection;
use tokio::time::Sleep;

use super::InputTime;
use super::driver::Owner;
use super::over_streams::StreamsDriver;
use crate::session::Timeouts;

/// The number of checks for unfinished heads within `head`, the time limit of a head.
const HEAD_CHECKS: u32 = 4;

/// The times against which the limits of the session are checked.
pub(super) struct StreamsClock {
    sleep: Pin<Box<Sleep>>,
    used_at: Instant,
    /// The time of the last check, and the number of datagrams that had arrived by then.
    checked: (Instant, Option<u64>),
    /// Server only: the start of the session, until its first request arrives.
    pub(super) unasked_since: Option<Instant>,
}

impl StreamsClock {
    /// Starts at `now`, which is the beginning of the session.
    pub(super) fn new(limits: &Timeouts, is_server: bool, now: Instant) -> Self {
        let first = limits.idle.min(limits.head);
        Self {
            sleep: Box::pin(tokio::time::sleep(first)),
            used_at: now,
            checked: (now, None),
            unasked_since: is_server.then_some(now),
        }
    }
}

impl<O: Owner> StreamsDriver<O> {
    /// Enforces the time limits. Returns true if the session was idle for too long.
    pub(super) fn poll_clock(&mut self, cx: &mut Context<'_>) -> bool {
        while self.clock.sleep.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            let limits = &self.pace.timeouts;
            let mut core = self.core.borrow_mut();
            core.handle_timeout(now);
            let datagrams = self.carrier.facts().datagrams_received();
            let (checked_at, before) = std::mem::replace(&mut self.clock.checked, (now, datagrams));
            if datagrams.is_some() && datagrams == before {
                core.pause_arriving(now - checked_at);
            }
            if core.expire_arriving(now, limits.head) {
                cx.waker().wake_by_ref();
            }
            self.shared.free_unused();
            if core.active() > 0 || !self.shared.waiting.is_empty() {
                self.clock.used_at = now;
            }
            let unasked = self.clock.unasked_since.map(|since| now - since);
            let waits_in_vain = unasked.is_some_and(|time| time >= self.time_for_request(&core));
            let heard = self.shared.heard.get().map_or(now, InputTime::instant);
            let idle_since = self.clock.used_at.max(heard);
            if waits_in_vain || now.saturating_duration_since(idle_since) >= limits.idle {
                self.shared.idled_out.set(true);
                return true;
            }
            let checks = if core.has_arriving() { HEAD_CHECKS } else { 1 };
            let wait = (limits.idle / 2)
                .min(limits.head / checks)
                .max(Duration::from_millis(10));
            let until = tokio::time::Instant::now() + wait;
            self.clock.sleep.as_mut().reset(until);
        }
        false
    }

    /// Returns the time for a first request. A client that sends no settings gets less of it.
    fn time_for_request(&self, core: &Connection) -> Duration {
        let limits: &Timeouts = &self.pace.timeouts;
        if core.peer_extended_connect().is_some() {
            limits.idle
        } else {
            limits.head
        }
    }
}

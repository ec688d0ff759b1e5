//! Times: losses, tail loss probes (RFC 8985 section 7), timeouts, zero-window probes, keep-alive.
//!
//! The order is that of RFC 8985: first a tail loss probe after two round trips, then the
//! retransmission timeout of RFC 6298 with back-off. Both belong to the tunnel, since all streams
//! share the path.

use std::time::Duration;

use super::{Closed, Event, Tunnel};
use crate::flow::Flow;
use crate::recovery::RESET_OFFSET;
use crate::recv::ACK_DELAY;

/// The shortest time until a tail loss probe.
const MIN_TAIL_PROBE: Duration = Duration::from_millis(10);
/// The timeouts in a row after which full datagrams, or their codepoint, may be the reason.
const BLACK_HOLE_TIMEOUTS: u32 = 2;

impl Tunnel {
    /// Returns the time at which [`Self::handle_timeout`] must be called, if any.
    pub fn poll_timeout(&self) -> Option<Duration> {
        if self.closed.is_some() {
            return None;
        }
        let losses = self
            .recovery
            .next_loss(Duration::ZERO, &self.rtt)
            .map_or_else(|deadline| deadline, |_| Some(Duration::ZERO));
        let acks = self.acks.later.first().map(|(until, _)| *until);
        let paced = self.timing.paced_until;
        let persist = self.persist_deadline();
        [
            losses,
            acks,
            paced,
            persist,
            self.retransmission_deadline(),
            self.pmtu_deadline(),
            self.keep_alive_deadline(),
            Some(self.timing.last_received + self.config.idle_timeout),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Acts on the times that have come.
    pub fn handle_timeout(&mut self, now: Duration) {
        if self.closed.is_some() {
            return;
        }
        if self.timing.last_received + self.config.idle_timeout <= now {
            return self.end(Closed::TimedOut);
        }
        self.timing.paced_until = self.timing.paced_until.filter(|until| *until > now);
        self.flush_acks(now);
        self.detect_losses(now);
        if self.retransmission_deadline().is_some_and(|at| at <= now) {
            self.on_retransmission_timeout(now);
        }
        if self.timing.persisting > 0 {
            self.probe_windows(now);
        }
        if self.keep_alive_deadline().is_some_and(|at| at <= now) {
            self.control.probe_due = true;
            self.timing.last_sent = now;
        }
    }

    /// Requires the delayed acknowledgements that are due by `until`.
    pub(super) fn flush_acks(&mut self, until: Duration) {
        while let Some((at, id)) = self.acks.later.pop_first() {
            if at > until {
                self.acks.later.insert((at, id));
                return;
            }
            self.require_ack(id);
        }
    }

    fn require_ack(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id)
            && stream.recv.ack_state() != crate::recv::AckState::None
        {
            stream.recv.require_ack();
            self.acks.now.insert(id);
        }
    }

    fn keep_alive_deadline(&self) -> Option<Duration> {
        let last = self.timing.last_sent.max(self.timing.last_received);
        self.config.keep_alive.map(|after| last + after)
    }

    /// Returns the time of the next path probe. There is none without streams, because probes would
    /// keep an idle tunnel awake.
    fn pmtu_deadline(&self) -> Option<Duration> {
        let busy = !self.streams.is_empty() && self.rtt.smoothed().is_some();
        self.pmtu.deadline().filter(|_| busy)
    }

    pub(super) fn flow_of(&mut self, id: u32) -> Option<&mut Flow> {
        match &mut self.flow {
            Some(flow) => Some(flow),
            None => self.streams.get_mut(&id)?.flow.as_deref_mut(),
        }
    }

    pub(super) fn flows_mut(&mut self) -> impl Iterator<Item = &mut Flow> {
        let own = self
            .streams
            .values_mut()
            .filter_map(|stream| stream.flow.as_deref_mut());
        self.flow.iter_mut().chain(own)
    }

    /// Declares the segments lost that are late by now.
    pub(super) fn detect_losses(&mut self, now: Duration) {
        while let Ok(number) = self.recovery.next_loss(now, &self.rtt) {
            self.lose(now, number, true);
        }
    }

    /// Declares one transmission lost. With `congestion`, the controller learns of it.
    fn lose(&mut self, now: Duration, number: u64, congestion: bool) {
        let next = self.recovery.next_number();
        let Some(transmission) = self.recovery.remove(number) else {
            return;
        };
        let id = transmission.stream;
        if transmission.offset == RESET_OFFSET {
            if let Some(resetting) = self.streams.get_mut(&id).and_then(|s| s.resetting.as_mut()) {
                resetting.number = None;
                self.control.resets.insert(id);
            }
            return;
        }
        self.stats.lost += u64::from(congestion);
        if congestion && let Some(flow) = self.flow_of(id) {
            let lost = (number, transmission.sent);
            flow.on_lost(now, lost, u64::from(transmission.bytes), next);
        }
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.send.on_lost(transmission.offset, number);
            self.update_ready(id);
        }
    }

    /// Declares everything in flight lost. With `timeout`, the controllers start over.
    pub(super) fn lose_all_in_flight(&mut self, now: Duration, timeout: bool) {
        let all = self.recovery.all_in_flight();
        let count = all.len() as u32;
        for number in all {
            self.lose(now, number, false);
        }
        self.stats.lost += u64::from(count);
        if timeout {
            let next = self.recovery.next_number();
            for flow in self.flows_mut().filter(|flow| flow.in_flight() > 0) {
                flow.on_timeout(now, count, next);
            }
        }
    }

    fn retransmission_deadline(&self) -> Option<Duration> {
        if self.recovery.in_flight() == 0 {
            return None;
        }
        let after = if self.timing.backoff == 0 {
            self.tail_probe_time()
        } else {
            self.rtt.timeout_after(self.timing.backoff - 1)
        };
        Some(self.timing.restarted + after)
    }

    /// Returns the time after which a tail loss probe is due (RFC 8985, section 7.2).
    fn tail_probe_time(&self) -> Duration {
        let Some(smoothed) = self.rtt.smoothed() else {
            return self.rtt.timeout();
        };
        // The acknowledgement of a single segment may be a delayed one.
        let delay = if self.recovery.in_flight() == 1 {
            ACK_DELAY
        } else {
            Duration::ZERO
        };
        (2 * smoothed + delay)
            .max(MIN_TAIL_PROBE)
            .min(self.rtt.timeout() + delay)
    }

    fn on_retransmission_timeout(&mut self, now: Duration) {
        let backoff = self.timing.backoff;
        self.timing.backoff += 1;
        self.timing.restarted = now;
        self.timing.tail_probe = true;
        if backoff == 0 {
            self.stats.tail_probes += 1;
            self.repeat_last(now);
            return;
        }
        self.stats.timeouts += 1;
        let repeated = backoff >= BLACK_HOLE_TIMEOUTS;
        self.ecn.on_timeout(repeated);
        self.lose_all_in_flight(now, true);
        if repeated && self.pmtu.on_black_hole(now) {
            self.set_segment_size();
        }
    }

    /// Queues the last segment in flight as a probe, if there is no new data to probe with.
    fn repeat_last(&mut self, now: Duration) {
        let has_new = self.ready.iter().any(|id| {
            let stream = self.streams.get(&id);
            stream.is_some_and(|stream| stream.send.has_new() || stream.send.has_lost())
        });
        let last = self.recovery.last_in_flight().copied();
        if let (false, Some(last)) = (has_new, last) {
            let number = self.recovery.all_in_flight().pop();
            if let Some(flow) = self.flow_of(last.stream) {
                flow.on_withdrawn(u64::from(last.bytes));
            }
            if let Some(number) = number {
                self.lose(now, number, false);
            }
        }
    }

    fn persist_deadline(&self) -> Option<Duration> {
        if self.timing.persisting == 0 {
            return None;
        }
        let deadlines = self.streams.values().filter_map(|stream| stream.persist);
        deadlines.map(|(at, _)| at).min()
    }

    /// Sends an empty segment on streams whose window stays shut (RFC 9293, section 3.8.6.1).
    fn probe_windows(&mut self, now: Duration) {
        for (&id, stream) in &mut self.streams {
            if let Some((at, probes)) = &mut stream.persist
                && *at <= now
            {
                *probes += 1;
                *at = now + self.rtt.timeout_after(*probes);
                self.control.window_probes.insert(id);
            }
        }
    }

    /// Notes that a stream's window is shut, so that it is probed.
    pub(super) fn note_blocked(&mut self, now: Duration, id: u32) {
        let after = self.rtt.timeout_after(0);
        if let Some(stream) = self.streams.get_mut(&id)
            && stream.persist.is_none()
            && stream.send.is_blocked()
        {
            stream.persist = Some((now + after, 0));
            self.timing.persisting += 1;
        }
    }

    /// Gives memory that has become free to streams whose windows were kept small for want of it,
    /// and wakes writers that wait for it.
    pub(super) fn share_memory(&mut self, now: Duration) {
        let rtt = self.rtt.smoothed();
        let mut starved = std::mem::take(&mut self.starved);
        while let Some(id) = starved.pop_first() {
            let Some(stream) = self.streams.get_mut(&id) else {
                continue;
            };
            stream.recv.on_read(now, rtt, &mut self.pool);
            if stream.wants_room && stream.send.buffered() < self.config.send_buffer {
                stream.wants_room = false;
                self.events
                    .push_back(Event::Writable(crate::stream::StreamId(id)));
            }
            if stream.recv.is_starved() {
                self.starved.insert(id);
            }
            self.update_ack(id);
        }
    }
}

//! Datagrams that arrive.

use std::time::Duration;

use super::{Closed, Event, FORGOTTEN, InputError, REFUSED, Tunnel};
use crate::recv::{Violation, window_end};
use crate::rtt::MAX_RTO;
use crate::send::{Arrived, MOST_WAITING};
use crate::stream::{Fate, StreamId};
use crate::wire::{Ack, Data, Segment, Segments, StreamSegment, expand};

/// The replies to probes that wait. A peer that sends more of them at once does not wait for them.
const MAX_REPLIES: usize = 8;

/// The time without a datagram after which the next one ends the back-off of the timeout. A peer
/// that is heard all the time keeps it.
const SILENCE: Duration = Duration::from_secs(1);

/// The time after which a probe of the round trip is repeated.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

impl Tunnel {
    /// Takes a datagram. `marked` tells that it arrived with a congestion mark (RFC 3168).
    pub fn handle_input(
        &mut self,
        now: Duration,
        datagram: &[u8],
        marked: bool,
    ) -> Result<(), InputError> {
        if self.closed.is_some() {
            return Ok(());
        }
        self.stats.datagrams_received += 1;
        if now.saturating_sub(self.timing.last_received) >= SILENCE {
            // The path may be back, and the next timeout far away.
            self.timing.backoff = self.timing.backoff.min(1);
        }
        self.timing.last_received = now;
        self.stats.marked += u64::from(marked);
        self.control.marks = self.control.marks.wrapping_add(u32::from(marked));
        let mut result = Ok(());
        for segment in Segments::new(datagram) {
            result = match segment {
                Ok(segment) => self.on_segment(now, &segment),
                Err(error) => Err(error.into()),
            };
            if result.is_err() || self.closed.is_some() {
                break;
            }
        }
        self.finish_acks(now);
        if let Err(InputError::Violation(_)) = result {
            self.control.close = Some(REFUSED);
            self.end(Closed::Violation);
        }
        result
    }

    fn on_segment(&mut self, now: Duration, segment: &Segment<'_>) -> Result<(), InputError> {
        // An acknowledgement or a reply shows that the datagrams of this end arrive. Data of the
        // peer do not.
        let answers = match segment {
            Segment::Stream(it) => it.ack.is_some() || it.reset.is_some() || it.reset_ack,
            Segment::ProbeReply { .. } => true,
            _ => false,
        };
        if answers {
            self.timing.asked = None;
        }
        match *segment {
            Segment::Stream(ref segment) => return self.on_stream_segment(now, segment),
            Segment::Probe { id, .. } => {
                if self.control.replies.len() < MAX_REPLIES {
                    self.control.replies.push_back(id);
                }
            }
            Segment::ProbeReply { id } => self.on_probe_reply(now, id),
            Segment::Close { code } => self.end(Closed::Peer(code)),
            Segment::Marks { count } => self.on_marks(now, count),
            Segment::Offer { window, below } => self.on_offer(window, below),
        }
        Ok(())
    }

    fn on_probe_reply(&mut self, now: Duration, id: u32) {
        if let Some((_, sent)) = self
            .control
            .pending_probe
            .take_if(|(probe, _)| *probe == id)
        {
            self.control.unanswered_probes = 0;
            self.rtt.add(now, now.saturating_sub(sent));
        }
        if self.pmtu.on_reply(id) {
            self.set_segment_size();
        }
    }

    pub(super) fn set_segment_size(&mut self) {
        let size = self.segment_size();
        for flow in self.flows_mut() {
            flow.set_segment(size);
        }
    }

    fn on_marks(&mut self, now: Duration, count: u32) {
        let news = count.wrapping_sub(self.control.marks_seen);
        if news == 0 || news > u32::MAX / 2 {
            return;
        }
        self.control.marks_seen = count;
        let next = self.recovery.next_number();
        for flow in self.flows_mut() {
            flow.on_mark(now, next);
        }
    }

    fn on_stream_segment(
        &mut self,
        now: Duration,
        segment: &StreamSegment<'_>,
    ) -> Result<(), InputError> {
        let id = StreamId(segment.stream);
        if !self.streams.contains_key(&id.0) {
            if !self.may_open(id, segment)? {
                return Ok(());
            }
            let stream = self.new_stream(now, id);
            self.streams.insert(id.0, stream);
            self.peer_streams += 1;
            self.events.push_back(Event::Opened(id));
        }
        if segment.reset_ack {
            self.on_reset_ack(id);
        }
        if let Some(code) = segment.reset {
            self.on_reset(id, code);
        }
        // A reset of this end is on its way, so the other parts of the segment are of no use.
        if self
            .streams
            .get(&id.0)
            .is_none_or(|s| s.resetting.is_some())
        {
            return Ok(());
        }
        if let Some(ack) = &segment.ack {
            self.on_ack(now, id, ack)?;
        }
        if let Some(data) = &segment.data {
            self.on_data(now, id, data)?;
        }
        self.remove_if_over(id.0);
        Ok(())
    }

    /// Returns whether a segment for an unknown stream opens one.
    fn may_open(&mut self, id: StreamId, segment: &StreamSegment<'_>) -> Result<bool, InputError> {
        if id.opener() == self.side {
            if id.index() >= self.next_index {
                return Err(InputError::Violation(
                    "a stream of ours that was not opened",
                ));
            }
            self.on_ended(id, segment);
            return Ok(false);
        }
        let opens = segment.data.is_some() || segment.reset.is_some();
        if !opens {
            return Ok(false);
        }
        match self.peer_ids.see(id) {
            None => Err(InputError::Violation("a stream number far beyond the last")),
            Some(false) => {
                self.on_ended(id, segment);
                Ok(false)
            }
            Some(true) if segment.reset.is_some() => {
                // It was reset before anything of it arrived.
                self.refuse(id, 0);
                Ok(false)
            }
            Some(true) if self.peer_streams >= self.config.max_streams => {
                self.refuse(id, REFUSED);
                Ok(false)
            }
            Some(true) => Ok(true),
        }
    }

    fn refuse(&mut self, id: StreamId, code: u32) {
        let offered = self.offers.on_opened(id.index());
        self.pool.hand_over(offered);
        self.pool.release(offered);
        self.ended.insert(id, Fate::Reset(code));
        self.acks.ended.insert(id.get());
        self.events.push_back(Event::Refused(id));
    }

    /// Handles a segment for a stream that has ended. The peer repeats segments that it declares
    /// lost. A reset that acknowledges one is an answer itself: two ends that answered each other's
    /// answers would never stop.
    fn on_ended(&mut self, id: StreamId, segment: &StreamSegment<'_>) {
        let wants_answer =
            segment.data.is_some() || (segment.reset.is_some() && !segment.reset_ack);
        if wants_answer {
            self.acks.ended.insert(id.get());
        }
    }

    fn on_reset_ack(&mut self, id: StreamId) {
        let resetting = self.streams.get(&id.0).and_then(|stream| stream.resetting);
        if let Some(resetting) = resetting {
            if let Some(number) = resetting.number {
                self.recovery.remove(number);
            }
            self.timing.backoff = 0;
            self.remove(id.0, Fate::Reset(resetting.code));
        }
    }

    fn on_reset(&mut self, id: StreamId, code: u32) {
        let Some(stream) = self.streams.get(&id.0) else {
            return;
        };
        // The peer had everything, and has sent everything. It does not know the stream any more.
        if code == FORGOTTEN && stream.resetting.is_none() && stream.recv.has_all() {
            self.abort_sending(id.0);
            return self.after_ack(id, 0);
        }
        // Both ends may reset at once.
        if stream.resetting.is_none() {
            self.events.push_back(Event::Reset(id, code));
        }
        self.remove(id.0, Fate::Reset(code));
        self.acks.ended.insert(id.0);
    }

    fn on_data(&mut self, now: Duration, id: StreamId, data: &Data<'_>) -> Result<(), InputError> {
        let Some(stream) = self.streams.get_mut(&id.0) else {
            return Ok(());
        };
        let offset = expand(stream.recv.next_offset(), data.offset);
        let received = stream
            .recv
            .on_data(now, offset, data.payload, data.fin)
            .map_err(|violation| {
                InputError::Violation(match violation {
                    Violation::Window => "data beyond the window",
                    Violation::End => "data beyond the end of a stream",
                })
            })?;
        if received.is_readable && !stream.told_readable {
            stream.told_readable = true;
            self.events.push_back(Event::Readable(id));
        }
        self.update_ack(id.0);
        // An end that only receives has no other way, and needs the round trip to open its windows.
        if self.rtt.smoothed().is_none() {
            self.measure_rtt(now);
        }
        Ok(())
    }

    /// Queues a probe that measures the round trip. That may be longer than any before, so each
    /// probe without a reply doubles the time for the next one.
    fn measure_rtt(&mut self, now: Duration) {
        let least = PROBE_INTERVAL.max(self.rtt.timeout() * 2);
        let doublings = self.control.unanswered_probes.min(5);
        let limit = (least * (1 << doublings)).min(MAX_RTO.max(least));
        let waits = |(_, sent): (u32, Duration)| now.saturating_sub(sent) < limit;
        if !self.control.pending_probe.is_some_and(waits) {
            self.control.probe_due = true;
        }
    }

    fn on_ack(&mut self, now: Duration, id: StreamId, ack: &Ack) -> Result<(), InputError> {
        let Some(stream) = self.streams.get_mut(&id.0) else {
            return Ok(());
        };
        let near = stream.send.next_offset();
        let offset = expand(near, ack.offset);
        let before = stream.send.buffered();
        let mut arrived = Vec::new();
        let blocks = ack
            .blocks()
            .iter()
            .map(|&(start, end)| expand(near, start)..expand(near, end));
        stream
            .send
            .on_ack(offset, blocks, &mut arrived)
            .map_err(|_| InputError::Violation("an acknowledgement of data that was not sent"))?;
        // The controllers take segments in the order in which they left.
        arrived.sort_unstable_by_key(|segment| segment.number);
        let opened = stream.send.on_window(window_end(offset, ack.window));
        let spurious = stream.send.on_duplicates(ack.duplicates);
        let freed = before - stream.send.buffered();
        self.pool.release(freed);
        if opened {
            self.clear_persist(id.0);
        }
        self.on_arrived(now, id, &arrived);
        self.on_spurious(id, spurious);
        self.after_ack(id, freed);
        self.note_blocked(now, id.0);
        Ok(())
    }

    /// Tells the application the effects of an acknowledgement.
    fn after_ack(&mut self, id: StreamId, freed: u64) {
        let room = self.config.send_buffer / 2;
        let Some(stream) = self.streams.get_mut(&id.0) else {
            return;
        };
        if stream.send.is_complete() && !stream.told_finished {
            stream.told_finished = true;
            self.events.push_back(Event::Finished(id));
        }
        let has_room = stream.send.buffered() <= room && stream.send.waiting() <= MOST_WAITING / 2;
        if freed > 0 && stream.wants_room && has_room {
            stream.wants_room = false;
            self.events.push_back(Event::Writable(id));
        }
        self.update_ready(id.0);
    }

    fn on_arrived(&mut self, now: Duration, id: StreamId, arrived: &[Arrived]) {
        for segment in arrived {
            let Some(transmission) = self.recovery.remove(segment.number) else {
                if segment.was_lost {
                    self.on_lost_segment_arrived(now, id, u64::from(segment.len));
                }
                continue;
            };
            // Karn's algorithm: a repeated segment does not tell which copy was acknowledged.
            let rtt = (!transmission.retransmission).then(|| now.saturating_sub(transmission.sent));
            match rtt {
                Some(rtt) => self.rtt.add(now, rtt),
                // A path that has become slower makes each segment a repeated one.
                None if self.rtt.is_stale(now) => self.measure_rtt(now),
                None => {}
            }
            self.recovery
                .on_arrived(now, segment.number, transmission, &self.rtt);
            self.ecn.on_arrived();
            if let Some(flow) = self.flow_of(id.0) {
                let sent = (transmission.sent, transmission.stamp);
                flow.on_acked(now, sent, u64::from(transmission.bytes), rtt);
            }
        }
        if !arrived.is_empty() {
            self.timing.backoff = 0;
            self.timing.tail_probe = false;
            self.timing.restarted = now;
        }
    }

    /// Handles the arrival of a segment that was declared lost and not retransmitted yet.
    fn on_lost_segment_arrived(&mut self, now: Duration, id: StreamId, bytes: u64) {
        if let Some(flow) = self.flow_of(id.0) {
            flow.on_delivered(now, bytes);
        }
        self.on_spurious(id, 1);
    }

    fn on_spurious(&mut self, id: StreamId, count: u32) {
        if count == 0 {
            return;
        }
        self.stats.spurious += u64::from(count);
        self.recovery.on_spurious();
        if let Some(flow) = self.flow_of(id.0) {
            flow.on_spurious(count);
        }
    }

    /// Judges all acknowledgements of a datagram together, and then the losses that they show.
    fn finish_acks(&mut self, now: Duration) {
        self.recovery.end_datagram();
        let rtt = std::mem::take(&mut self.rtt);
        for flow in self.flows_mut() {
            flow.finish_acks(now, &rtt);
        }
        self.rtt = rtt;
        self.detect_losses(now);
        self.share_memory(now);
    }
}

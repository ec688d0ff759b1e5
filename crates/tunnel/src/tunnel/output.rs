//! Datagrams that leave.
//!
//! A datagram takes segments of several streams: first the tunnel's own, then acknowledgements,
//! then data by urgency and, among equals, of the stream that has sent least. So a small answer
//! overtakes a large one, and small segments share a datagram.

use std::time::Duration;

use super::Tunnel;
use crate::recovery::{RESET_OFFSET, Transmission};
use crate::recv::AckState;
use crate::send::Piece;
use crate::stream::{Fate, StreamId};
use crate::unsent::unsent_limit;
use crate::wire::{
    ACK_HEADER, BLOCK, DATA_HEADER, Data, MAX_BLOCKS, OFFER_LEN, PROBE_HEADER, STREAM_HEADER,
    Segment, StreamSegment,
};

/// The least room for data, in bytes, that justifies another segment at the end of a datagram.
const LEAST_DATA: usize = 64;
/// The acknowledgements of one datagram that the next one repeats at most.
const MOST_REPEATED: usize = 4;

impl Tunnel {
    /// Writes the next datagram into `out`, which is cleared first. Returns false if there is none
    /// now.
    pub fn poll_output(&mut self, now: Duration, out: &mut Vec<u8>) -> bool {
        out.clear();
        (self.permits_marks, self.is_path_probe) = (false, false);
        if let Some(code) = self.control.close.take() {
            Segment::Close { code }.encode(out);
        }
        if self.closed.is_some() {
            return self.count_datagram(now, out);
        }
        while let Some(id) = self.control.blocked.pop_first() {
            self.note_blocked(now, id);
        }
        if self.write_path_probe(now, out) {
            self.is_path_probe = true;
            return self.count_datagram(now, out);
        }
        self.top_up_offers();
        let offers = self.offers.is_due(now, &self.rtt);
        let size = self.pmtu.current() - if offers { OFFER_LEN } else { 0 };
        let before = (self.recovery.next_number(), self.control.next_probe);
        let probes_windows = !self.control.window_probes.is_empty();
        self.write_control(now, out);
        self.write_resets(now, out, size);
        // Acknowledgements of all streams leave together, or those of one stream would seem to
        // overtake those of another.
        if !self.acks.later.is_empty()
            && (!self.acks.now.is_empty() || self.next_stream(now).is_some())
        {
            self.flush_acks(Duration::MAX);
        }
        self.write_acks(out, size);
        self.write_window_probes(out, size);
        self.write_data(now, out, size);
        // No datagram leaves for an offer alone.
        if offers && !out.is_empty() {
            self.offers.take(now).encode(out);
        }
        if probes_windows || before != (self.recovery.next_number(), self.control.next_probe) {
            self.timing.asked.get_or_insert(now);
        }
        self.count_datagram(now, out)
    }

    fn count_datagram(&mut self, now: Duration, out: &[u8]) -> bool {
        if out.is_empty() {
            return false;
        }
        self.stats.datagrams_sent += 1;
        self.timing.datagram += 1;
        self.timing.last_sent = now;
        true
    }

    fn write_path_probe(&mut self, now: Duration, out: &mut Vec<u8>) -> bool {
        if self.streams.is_empty() || self.rtt.smoothed().is_none() {
            return false;
        }
        let id = self.control.next_probe;
        let timeout = self.rtt.timeout() * 2;
        let Some(size) = self.pmtu.next_probe(now, timeout, id) else {
            return false;
        };
        self.control.next_probe = id.wrapping_add(1);
        let padding = (size - PROBE_HEADER) as u16;
        Segment::Probe { id, padding }.encode(out);
        true
    }

    fn write_control(&mut self, now: Duration, out: &mut Vec<u8>) {
        while let Some(id) = self.control.replies.pop_front() {
            Segment::ProbeReply { id }.encode(out);
        }
        if self.control.marks != self.control.marks_reported {
            self.control.marks_reported = self.control.marks;
            let count = self.control.marks;
            Segment::Marks { count }.encode(out);
        }
        let measures = std::mem::take(&mut self.control.probe_due);
        if std::mem::take(&mut self.control.echo_due) || measures {
            let id = self.control.next_probe;
            self.control.next_probe = id.wrapping_add(1);
            // A probe of the application replaces no measurement that is under way.
            if measures || self.control.pending_probe.is_none() {
                let replaced = self.control.pending_probe.replace((id, now));
                self.control.unanswered_probes += u32::from(replaced.is_some());
            }
            Segment::Probe { id, padding: 0 }.encode(out);
        }
    }

    fn write_resets(&mut self, now: Duration, out: &mut Vec<u8>, size: usize) {
        while out.len() + STREAM_HEADER + 4 <= size {
            let Some(id) = self.control.resets.pop_first() else {
                return;
            };
            let Some(resetting) = self.streams.get(&id).and_then(|stream| stream.resetting) else {
                continue;
            };
            let number = self.record(now, id, RESET_OFFSET, 0, false);
            if let Some(resetting) = self.streams.get_mut(&id).and_then(|s| s.resetting.as_mut()) {
                resetting.number = Some(number);
            }
            let reset = StreamSegment {
                stream: id,
                reset: Some(resetting.code),
                ..StreamSegment::default()
            };
            Segment::Stream(reset).encode(out);
        }
    }

    fn write_acks(&mut self, out: &mut Vec<u8>, size: usize) {
        while out.len() + STREAM_HEADER + ACK_HEADER <= size
            && let Some(id) = self.acks.now.pop_first()
        {
            if !self.write_ack(id, out, size) {
                self.acks.now.insert(id);
                return;
            }
            self.acks.written.push(id);
            self.remove_if_over(id);
        }
        self.write_acks_of_ended(out, size);
        self.repeat_acks(out, size);
    }

    /// Writes the acknowledgement of a stream, unless it has ended. Returns false if not all of its
    /// blocks fit.
    fn write_ack(&mut self, id: u32, out: &mut Vec<u8>, size: usize) -> bool {
        let Some(stream) = self.streams.get_mut(&id) else {
            return true;
        };
        let room = (size - out.len()).saturating_sub(STREAM_HEADER + ACK_HEADER) / BLOCK;
        if stream.recv.blocks() > room && !out.is_empty() {
            return false;
        }
        let segment = StreamSegment {
            stream: id,
            ack: Some(stream.recv.take_ack(room)),
            ..StreamSegment::default()
        };
        Segment::Stream(segment).encode(out);
        true
    }

    /// Repeats the acknowledgements of the datagram before. If that one is lost, the streams may
    /// bring nothing for a while, and their segments would seem lost to a peer that gets later
    /// acknowledgements of other streams.
    fn repeat_acks(&mut self, out: &mut Vec<u8>, size: usize) {
        if self.acks.written.is_empty() {
            return;
        }
        let mut last = std::mem::take(&mut self.acks.last);
        for id in last.drain(..).take(MOST_REPEATED) {
            let fits = out.len() + STREAM_HEADER + ACK_HEADER <= size;
            if fits && !self.acks.written.contains(&id) {
                self.write_ack(id, out, size);
            }
        }
        self.acks.last = std::mem::replace(&mut self.acks.written, last);
    }

    /// Answers segments of streams that have ended, so that the peer stops repeating them.
    fn write_acks_of_ended(&mut self, out: &mut Vec<u8>, size: usize) {
        while out.len() + STREAM_HEADER + ACK_HEADER <= size
            && let Some(id) = self.acks.ended.pop_first()
        {
            let segment = match self.ended.get(StreamId(id)) {
                Some(Fate::Complete(end)) => StreamSegment {
                    stream: id,
                    ack: Some(crate::wire::Ack {
                        offset: end as u32,
                        window: 0,
                        duplicates: 0,
                        blocks: [(0, 0); MAX_BLOCKS],
                        block_count: 0,
                    }),
                    // The peer may have reset it before it has read everything.
                    reset_ack: true,
                    ..StreamSegment::default()
                },
                Some(Fate::Reset(code)) => reset_again(id, code),
                None => reset_again(id, super::FORGOTTEN),
            };
            Segment::Stream(segment).encode(out);
        }
    }

    fn write_window_probes(&mut self, out: &mut Vec<u8>, size: usize) {
        while out.len() + STREAM_HEADER + DATA_HEADER <= size
            && let Some(id) = self.control.window_probes.pop_first()
        {
            let Some(stream) = self.streams.get(&id).filter(|s| s.send.is_blocked()) else {
                continue;
            };
            let data = Data {
                offset: stream.send.next_offset() as u32,
                payload: &[],
                fin: false,
            };
            let segment = StreamSegment {
                stream: id,
                data: Some(data),
                ..StreamSegment::default()
            };
            Segment::Stream(segment).encode(out);
        }
    }

    /// Returns true if few bytes of the streams are unsent. An application that asks before each
    /// write decides late which stream sends. One that was refused asks again after the next
    /// datagrams, even if it has nothing to write: until then it is known to have more.
    pub fn has_room(&mut self) -> bool {
        self.timing.wants_room = !self.has_few_unsent();
        !self.timing.wants_room
    }

    /// Returns true if the answer of [`Self::has_room`] would be true. Streams with flows of their
    /// own do not wait for each other.
    pub fn has_few_unsent(&self) -> bool {
        let Some(flow) = &self.flow else { return true };
        let mut room = unsent_limit(flow.window(), self.rtt.smoothed());
        self.ready.iter().all(|id| {
            let stream = self.streams.get(&id);
            let unsent = stream.map_or(0, |stream| stream.send.unsent());
            room = room.saturating_sub(unsent);
            room > 0
        })
    }

    fn write_data(&mut self, now: Duration, out: &mut Vec<u8>, size: usize) {
        let mut wrote = false;
        while let Some(id) = self.next_stream(now) {
            let room = size.saturating_sub(out.len() + STREAM_HEADER + DATA_HEADER);
            if room < LEAST_DATA && !out.is_empty() {
                return;
            }
            if !self.write_piece(now, id, room, out) {
                return;
            }
            wrote = true;
        }
        // With room in the window and nothing to fill it, the application sets the rate.
        if !wrote && self.ready.is_empty() && !self.timing.wants_room {
            for flow in self.flows_mut() {
                flow.note_app_limited();
            }
        }
    }

    /// Returns the stream that has its turn: the first one in order whose flow lets it send.
    fn next_stream(&mut self, now: Duration) -> Option<u32> {
        if self.timing.tail_probe {
            return self.ready.iter().next();
        }
        let Self {
            ready,
            streams,
            flow,
            rtt,
            timing,
            ..
        } = self;
        for id in ready.iter() {
            let coupled = flow.is_some();
            let flow = match flow {
                Some(flow) => Some(flow),
                None => streams
                    .get_mut(&id)
                    .and_then(|stream| stream.flow.as_deref_mut()),
            };
            let Some(flow) = flow else { continue };
            if flow.has_room() {
                let until = flow.paced_until(now, rtt);
                if until <= now {
                    return Some(id);
                }
                timing.paced_until = Some(timing.paced_until.map_or(until, |at| at.min(until)));
            }
            if coupled {
                return None;
            }
        }
        None
    }

    /// Writes one segment of a stream. Returns false if the stream has nothing that fits.
    fn write_piece(&mut self, now: Duration, id: u32, room: usize, out: &mut Vec<u8>) -> bool {
        let Some(stream) = self.streams.get_mut(&id) else {
            return false;
        };
        // The peer learns of a stream with its first segment, which also tells it the window. A
        // segment without data would tell it nothing before.
        let opens = StreamId(id).opener() == self.side && stream.send.begins_next();
        if opens && stream.send.has_lost() {
            stream.recv.require_ack();
        }
        // An acknowledgement rides along where it costs no datagram.
        let ack_len = ACK_HEADER + stream.recv.blocks() * BLOCK;
        let is_due = stream.recv.ack_state() != AckState::None;
        let with_ack = is_due && room > ack_len + LEAST_DATA;
        if opens && is_due && !with_ack && !out.is_empty() {
            return false;
        }
        let room = room - if with_ack { ack_len } else { 0 };
        let lost = stream.send.lost_piece(room);
        let Some(piece) = lost.or_else(|| stream.send.next_piece(room)) else {
            return false;
        };
        let ack = with_ack.then(|| stream.recv.take_ack(MAX_BLOCKS));
        if let Some(place) = stream.ready {
            self.ready.on_turn(place, u64::from(piece.len));
        }
        if lost.is_none() {
            stream.sent.add(u64::from(piece.len));
        }
        let payload = stream.send.data(piece);
        let before = out.len();
        let segment = StreamSegment {
            stream: id,
            data: Some(Data {
                offset: piece.offset as u32,
                payload: &payload,
                fin: piece.fin,
            }),
            ack,
            ..StreamSegment::default()
        };
        Segment::Stream(segment).encode(out);
        self.on_piece_sent(now, id, piece, out.len() - before, lost.is_some());
        true
    }

    fn on_piece_sent(
        &mut self,
        now: Duration,
        id: u32,
        piece: Piece,
        bytes: usize,
        repeated: bool,
    ) {
        self.permits_marks = self.ecn.is_on();
        let number = self.record(now, id, piece.offset, bytes, repeated);
        self.timing.tail_probe = false;
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.send.on_sent(piece, number);
            if stream.recv.ack_state() == AckState::None {
                self.acks.now.remove(&id);
            }
        }
        self.update_ready(id);
        self.note_blocked(now, id);
    }

    /// Records a transmission, which counts against the window.
    fn record(&mut self, now: Duration, id: u32, offset: u64, bytes: usize, repeated: bool) -> u64 {
        let stamp = match self.flow_of(id) {
            Some(flow) if bytes > 0 => flow.on_sent(now, bytes as u64),
            _ => crate::congestion::Stamp::default(),
        };
        self.timing.restarted = now;
        self.recovery.push(Transmission {
            stream: id,
            offset,
            bytes: bytes as u32,
            sent: now,
            datagram: self.timing.datagram,
            stamp,
            retransmission: repeated,
            after_timer: self.timing.tail_probe,
            in_flight: true,
        })
    }
}

/// Returns the reset of a stream that has ended, which also acknowledges the peer's reset.
fn reset_again(stream: u32, code: u32) -> StreamSegment<'static> {
    StreamSegment {
        stream,
        reset: Some(code),
        reset_ack: true,
        ..StreamSegment::default()
    }
}

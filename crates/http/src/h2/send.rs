//! Output: the commands of [`crate::Mux`], and the choice of the next frame (RFC 9113 sections 5, 6
//! and 8).

use bytes::Bytes;

use super::connection::Connection;
use super::flow::Urgency;
use super::frame::{self, Head, Kind, MAX_PAYLOAD, PREFACE, flag};
use super::settings;
use super::stream::{State, Stream};
use crate::expected::ResponseTo;
use crate::head::{can_write_request, write_fields, write_request, write_response};
use crate::mux::OpenError;
use crate::outgoing::Tail;
use crate::{
    Event, Fields, Method, Priority, Reason, RequestHead, ResponseHead, SendBuf, StreamId,
};

/// The first bytes of our pings, which tell their acknowledgements from stray ones.
pub(super) const PING_MARK: [u8; 4] = *b"tndm";
/// Shorter DATA frames are not made for the sake of a small limit.
const MIN_CHUNK: usize = 1024;
/// The queue's buffer is kept up to this size.
const KEEP_QUEUE: usize = 2048;

impl Connection {
    /// Returns true if a stream could send now.
    pub(super) fn has_turn(&self) -> bool {
        !self.ending.is_empty() || (self.window.open() > 0 && !self.ready.is_empty())
    }

    /// See [`crate::ByteMux::poll_output`].
    pub(super) fn send(&mut self, out: &mut SendBuf, limit: usize) {
        if !self.started {
            if self.waits_for_peer() {
                return;
            }
            self.start(out);
        }
        if self.failed.is_none() && (!self.queue.is_empty() || self.has_turn()) {
            self.ride();
        }
        self.flush(out);
        self.flood.answers_sent();
        while out.len() < limit
            && let Some(id) = self.ending.pop_front()
        {
            self.send_end(id, out);
        }
        let most = limit.clamp(MIN_CHUNK, MAX_PAYLOAD);
        while out.len() < limit
            && self.window.open() > 0
            && let Some(key) = self.ready.pop()
        {
            self.send_chunk(key.id, most, out);
        }
    }

    /// The preface, our SETTINGS and the whole session window (RFC 9113 section 3.4).
    fn start(&mut self, out: &mut SendBuf) {
        self.started = true;
        let mut bytes = Vec::with_capacity(128);
        if self.is_client() {
            bytes.extend_from_slice(PREFACE);
        }
        settings::put_own(&mut bytes, &self.config);
        let increment = self.credit.take();
        if increment > 0 {
            frame::put_window_update(&mut bytes, 0, increment);
        }
        out.put_slice(&bytes);
    }

    /// Something is sent anyway: credit that is not urgent goes with it.
    fn ride(&mut self) {
        let windows = self.stream_windows();
        for id in std::mem::take(&mut self.riders) {
            let Some(stream) = self.streams.get_mut(&id).filter(|s| s.state.may_receive()) else {
                continue;
            };
            stream.riding = false;
            if stream.credit.urgency(windows) != Urgency::Wait {
                frame::put_window_update(&mut self.queue, id, stream.credit.take(windows));
            }
        }
        if self.credit.urgency() != Urgency::Wait {
            frame::put_window_update(&mut self.queue, 0, self.credit.take());
        }
    }

    fn flush(&mut self, out: &mut SendBuf) {
        if self.queue.is_empty() {
            return;
        }
        out.put_slice(&self.queue);
        self.queue.clear();
        if self.queue.capacity() > KEEP_QUEUE {
            self.queue = Vec::new();
        }
    }

    /// Sends one DATA frame of a ready stream, and its end if that follows.
    fn send_chunk(&mut self, id: StreamId, most: usize, out: &mut SendBuf) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.ready = None;
        let waiting = stream.queue.len();
        let count = most
            .min(waiting)
            .min(stream.window.open())
            .min(self.window.open());
        if count == 0 {
            // A SETTINGS frame closed the window after the stream became ready.
            return;
        }
        let end = count == waiting && matches!(stream.tail, Tail::End);
        let flags = if end { flag::END_STREAM } else { flag::NONE };
        out.put_slice(&Head::new(Kind::Data, flags, id, count).encode());
        stream.queue.take(count, |piece| out.put_bytes(piece));
        stream.sent(count);
        self.window.spend(count);
        self.flood.credit_sent(count);
        if stream.full && stream.queue.len() < self.config.send_buffer / 2 {
            stream.full = false;
            self.events.push_back(Event::Writable { id });
        }
        if end {
            stream.sent_end();
            self.close_if_done(id);
        } else if count == waiting && matches!(stream.tail, Tail::Trailers(_) | Tail::Reset(_)) {
            self.send_end(id, out);
        } else {
            self.schedule(id);
        }
    }

    /// The end of a stream that has no data left.
    fn send_end(&mut self, id: StreamId, out: &mut SendBuf) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.ending = false;
        match std::mem::replace(&mut stream.tail, Tail::Sent) {
            Tail::End => out.put_slice(&Head::new(Kind::Data, flag::END_STREAM, id, 0).encode()),
            Tail::Trailers(fields) => {
                let encoder = &mut self.encoder;
                frame::put_block(
                    &mut self.queue,
                    Kind::Headers,
                    flag::END_STREAM,
                    id,
                    &[],
                    |out| {
                        encoder.begin(out);
                        write_fields(&fields, |field| encoder.field(out, field));
                    },
                );
            }
            Tail::Reset(reason) => {
                self.put_reset(id, reason);
                self.abandon(id, None);
                self.return_session_credit();
                return self.flush(out);
            }
            other @ (Tail::More | Tail::Sent) => {
                stream.tail = other;
                return;
            }
        }
        stream.sent_end();
        self.close_if_done(id);
        self.flush(out);
    }

    /// Puts the stream where it belongs if it can send something.
    pub(super) fn schedule(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        if !stream.head_sent || !stream.state.may_send() {
            return;
        }
        if stream.has_sendable_data() {
            if stream.ready.is_none() {
                let key = stream.key(id, &self.ready);
                stream.ready = Some(key);
                self.ready.insert(key);
            }
        } else if stream.queue.len() == 0
            && matches!(stream.tail, Tail::End | Tail::Trailers(_) | Tail::Reset(_))
            && !stream.ending
        {
            stream.ending = true;
            self.ending.push_back(id);
        }
    }

    /// Changes a priority; returns false if the stream does not exist or already has it.
    pub(super) fn change_priority(&mut self, id: StreamId, priority: Priority) -> bool {
        let Some(stream) = self
            .streams
            .get_mut(&id)
            .filter(|stream| stream.priority != priority)
        else {
            return false;
        };
        stream.priority = priority;
        if let Some(key) = stream.ready.take() {
            self.ready.remove(key);
            self.schedule(id);
        }
        true
    }

    pub(super) fn send_request(
        &mut self,
        head: &RequestHead,
        end: bool,
        priority: Priority,
    ) -> Result<StreamId, OpenError> {
        if !self.is_client() || !crate::Mux::is_open(self) {
            return Err(OpenError::Closing);
        }
        if self.own_active >= self.peer.max_streams {
            return Err(OpenError::Busy);
        }
        if !can_write_request(head, self.peer.max_header_list) {
            return Err(OpenError::BadHead);
        }
        let id = self.next_id;
        self.next_id += 2;
        let stream = self.insert(id, State::Open, priority);
        stream.announced = true;
        stream.head_sent = true;
        stream.request = ResponseTo::of(&head.method);
        if end {
            stream.sent_end();
        }
        let flags = if end { flag::END_STREAM } else { flag::NONE };
        let encoder = &mut self.encoder;
        frame::put_block(&mut self.queue, Kind::Headers, flags, id, &[], |out| {
            encoder.begin(out);
            write_request(head, priority, |field| encoder.field(out, field));
        });
        Ok(id)
    }

    /// RFC 9113 section 8.4.
    pub(super) fn send_promise(
        &mut self,
        parent: StreamId,
        request: &RequestHead,
        priority: Priority,
    ) -> Result<StreamId, OpenError> {
        if !crate::Mux::is_open(self) {
            return Err(OpenError::Closing);
        }
        let parent_open = self
            .streams
            .get(&parent)
            .is_some_and(|s| s.state.may_send())
            && !self.is_own(parent);
        if self.is_client() || !self.peer.enable_push || !parent_open {
            return Err(OpenError::NoPush);
        }
        if self.own_active >= self.peer.max_streams {
            return Err(OpenError::Busy);
        }
        if !matches!(request.method, Method::Get | Method::Head)
            || !can_write_request(request, self.peer.max_header_list)
        {
            return Err(OpenError::BadHead);
        }
        let id = self.next_id;
        self.next_id += 2;
        let stream = self.insert(id, State::ReservedLocal, priority);
        stream.announced = true;
        stream.request = ResponseTo::of(&request.method);
        let encoder = &mut self.encoder;
        frame::put_block(
            &mut self.queue,
            Kind::PushPromise,
            flag::NONE,
            parent,
            &id.to_be_bytes(),
            |out| {
                encoder.begin(out);
                write_request(request, Priority::default(), |field| {
                    encoder.field(out, field)
                });
            },
        );
        Ok(id)
    }

    pub(super) fn send_interim(&mut self, id: StreamId, head: &ResponseHead) {
        let awaiting = self
            .streams
            .get(&id)
            .is_some_and(|s| s.state.may_send() && !s.head_sent);
        if awaiting && head.is_informational() {
            self.put_response(id, head, false);
        }
    }

    pub(super) fn send_response(&mut self, id: StreamId, head: &ResponseHead, end: bool) {
        let Some(stream) = self
            .streams
            .get_mut(&id)
            .filter(|s| s.state.may_send() && !s.head_sent)
        else {
            return;
        };
        stream.head_sent = true;
        if stream.state == State::ReservedLocal {
            stream.state = State::HalfClosedRemote;
        }
        if end {
            stream.sent_end();
        }
        self.put_response(id, head, end);
        self.schedule(id);
        self.close_if_done(id);
    }

    /// Queues the head of a response.
    pub(super) fn put_response(&mut self, id: StreamId, head: &ResponseHead, end: bool) {
        let flags = if end { flag::END_STREAM } else { flag::NONE };
        let encoder = &mut self.encoder;
        frame::put_block(&mut self.queue, Kind::Headers, flags, id, &[], |out| {
            encoder.begin(out);
            write_response(head, |field| encoder.field(out, field));
        });
    }

    pub(super) fn queue_data(&mut self, id: StreamId, data: Bytes, end: bool) {
        let Some(stream) = self.streams.get_mut(&id).filter(|s| s.state.may_send()) else {
            return;
        };
        if !matches!(stream.tail, Tail::More) {
            return;
        }
        stream.queue.push(data);
        stream.full |= stream.queue.len() >= self.config.send_buffer;
        if end {
            stream.tail = Tail::End;
        }
        self.schedule(id);
    }

    pub(super) fn queue_trailers(&mut self, id: StreamId, fields: &Fields) {
        let Some(stream) = self.streams.get_mut(&id).filter(|s| s.state.may_send()) else {
            return;
        };
        if matches!(stream.tail, Tail::More) {
            stream.tail = Tail::of_trailers(fields);
            self.schedule(id);
        }
    }

    /// Ends the queued body with RST_STREAM. Returns false where no body is queued that could end
    /// so.
    pub(super) fn queue_reset(&mut self, id: StreamId, reason: Reason) -> bool {
        let unfinished = |s: &&mut Stream| {
            s.state.may_send() && s.queue.len() > 0 && matches!(s.tail, Tail::More)
        };
        let Some(stream) = self.streams.get_mut(&id).filter(unfinished) else {
            return false;
        };
        stream.tail = Tail::Reset(reason);
        self.schedule(id);
        true
    }

    pub(super) fn put_ping(&mut self, payload: u32) {
        if self.failed.is_some() {
            return;
        }
        let [p0, p1, p2, p3] = payload.to_be_bytes();
        let [m0, m1, m2, m3] = PING_MARK;
        frame::put_ping(
            &mut self.queue,
            flag::NONE,
            [m0, m1, m2, m3, p0, p1, p2, p3],
        );
    }
}

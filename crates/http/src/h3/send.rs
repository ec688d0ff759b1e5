//! Output: the commands of [`crate::Mux`], and the bytes of each stream (RFC 9114, sections
//! 4 and 7).

use bytes::{Buf, Bytes};

use super::code::Code;
use super::connection::Connection;
use super::control::is_request;
use super::early::may_be_early;
use super::frame;
use super::stream::{CRITICAL_TYPES, DECODER, ENCODER, Head, Phase, SendingStream, Stream};
use super::{Command, Direction, varint};
use crate::expected::ResponseTo;
use crate::head::{can_write_request, write_fields, write_request, write_response};
use crate::mux::OpenError;
use crate::outgoing::Tail;
use crate::{
    Event, Fields, Priority, Reason, RequestHead, ResponseHead, Role, SendBuf, StreamId,
    connect_udp,
};

/// The unsent bytes of the encoder stream above which the dynamic table is left as it is.
const MAX_INSTRUCTIONS: usize = 16 << 10;
/// The unsent bytes of the decoder stream that a peer may cause without reading them.
pub(super) const MAX_ACKNOWLEDGEMENTS: usize = 64 << 10;
/// The requests that may wait for a stream before the carrier has opened one.
const MAX_UNOPENED: usize = 100;
/// Shorter DATA frames are not made for the sake of a small limit.
const MIN_CHUNK: usize = 1024;

impl Stream {
    /// Returns true if a promise may still be sent on the stream.
    pub(super) fn takes_promises(&self) -> bool {
        self.sending && self.phase != Phase::Head && matches!(self.tail, Tail::More)
    }
}

impl Connection {
    pub(super) fn send_request(
        &mut self,
        head: &RequestHead,
        end: bool,
        priority: Priority,
    ) -> Result<StreamId, OpenError> {
        if !self.is_client() || !crate::Mux::is_open(self) {
            return Err(OpenError::Closing);
        }
        if !crate::Mux::has_room(self) {
            return Err(OpenError::Busy);
        }
        if !can_write_request(head, self.peer.max_header_list) {
            return Err(OpenError::BadHead);
        }
        let id = self.next_id;
        self.next_id += 2;
        let mut stream = Stream::new(priority);
        stream.head_given = true;
        stream.request = ResponseTo::of(&head.method);
        stream.early = end && may_be_early(head);
        stream.takes_datagrams = connect_udp::is_request(head);
        stream.datagrams = self.tunnel_of(head);
        stream.heads.push_back(Head::Request(head.clone()));
        if end {
            stream.tail = Tail::End;
        }
        self.streams.insert(id, stream);
        self.opening[Direction::Bidirectional as usize].push_back(SendingStream::Stream(id));
        Ok(id)
    }

    /// Returns true if another request may wait for a stream of the carrier.
    pub(super) fn has_place_to_wait(&self) -> bool {
        let waiting = self.opening[Direction::Bidirectional as usize].len();
        if self.blocked {
            waiting == 0
        } else {
            waiting < MAX_UNOPENED
        }
    }

    pub(super) fn send_interim(&mut self, id: StreamId, head: &ResponseHead) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        if stream.sending && !stream.head_given && head.is_informational() && is_request(id) {
            stream.heads.push_back(Head::Response(head.clone()));
            self.reschedule(id);
        }
    }

    pub(super) fn send_response(&mut self, id: StreamId, head: &ResponseHead, end: bool) {
        let server = !self.is_client();
        let unanswered = |s: &&mut Stream| server && s.sending && !s.head_given;
        let Some(stream) = self.streams.get_mut(&id).filter(unanswered) else {
            return;
        };
        stream.head_given = true;
        stream.heads.push_back(Head::Response(head.clone()));
        if end {
            stream.tail = Tail::End;
        }
        if (200..300).contains(&head.status) && connect_udp::has_capsules(&head.fields) {
            stream.agree_to_datagrams();
        } else {
            self.refuse_tunnel(id);
        }
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        if stream.carrier.is_none() {
            stream.heads.push_front(Head::Push);
            self.pushes.opening.add(stream.priority, id);
        }
        self.reschedule(id);
    }

    pub(super) fn queue_data(&mut self, id: StreamId, data: Bytes, end: bool) {
        let open = |s: &&mut Stream| s.sending && matches!(s.tail, Tail::More);
        if self.streams.get_mut(&id).filter(open).is_none() {
            return;
        }
        self.queue_content(id, data, end);
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.full |= stream.queue.len() >= self.config.send_buffer || stream.has_many_datagrams();
        if end {
            stream.tail = Tail::End;
        }
        self.schedule(id);
    }

    pub(super) fn queue_trailers(&mut self, id: StreamId, fields: &Fields) {
        let open = |s: &&mut Stream| s.sending && matches!(s.tail, Tail::More);
        let Some(stream) = self.streams.get_mut(&id).filter(open) else {
            return;
        };
        stream.flush_capsules();
        stream.tail = Tail::of_trailers(fields);
        self.schedule(id);
    }

    /// Ends the message with a reset behind its content, or with a frame that tells a peer of our
    /// kind the same. Returns false if nothing waits that could end so.
    pub(super) fn queue_reset(&mut self, id: StreamId, reason: Reason) -> bool {
        let takes_broken = self.peer.takes_broken;
        let unfinished = |s: &&mut Stream| {
            let can_wait =
                s.queue.len() > 0 || (takes_broken && s.head_given && s.carrier.is_some());
            s.sending && can_wait && matches!(s.tail, Tail::More)
        };
        let Some(stream) = self.streams.get_mut(&id).filter(unfinished) else {
            return false;
        };
        stream.tail = Tail::Reset(reason);
        self.schedule(id);
        true
    }

    /// Puts the stream among the ready ones if it can send something.
    pub(super) fn schedule(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        if stream.carrier.is_some() && !stream.busy && stream.ready.is_none() && stream.has_output()
        {
            let key = stream.key(id, &self.ready);
            stream.ready = Some(key);
            self.ready.insert(key);
        }
    }

    /// Finds the place of a stream again, after a change of its head or priority.
    pub(super) fn reschedule(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id)
            && let Some(key) = stream.ready.take()
        {
            self.ready.remove(key);
        }
        self.schedule(id);
    }

    /// Changes a priority; returns false if the stream does not exist or already has it.
    pub(super) fn change_priority(&mut self, id: StreamId, priority: Priority) -> bool {
        let Some(stream) = self.streams.get_mut(&id).filter(|s| s.priority != priority) else {
            return false;
        };
        let before = std::mem::replace(&mut stream.priority, priority);
        self.pushes.opening.move_to(priority, before, id);
        let priority = stream.order();
        // The carrier may not have sent a response that it has taken.
        let may_send = stream.sending || self.config.role == Role::Server;
        if let Some(stream) = stream.carrier.filter(|_| may_send) {
            self.commands
                .push_back(Command::Prioritise { stream, priority });
        }
        self.reschedule(id);
        true
    }

    /// Client: tells the server of a new priority (RFC 9218 section 7.2).
    pub(super) fn put_priority(&mut self, id: StreamId, priority: Priority) {
        let Some(stream) = self.streams.get(&id) else {
            return;
        };
        let (kind, element) = if is_request(id) {
            // A request that has no stream yet carries the priority in its head.
            let Some(carrier) = stream.carrier else {
                return;
            };
            (frame::PRIORITY_REQUEST, carrier)
        } else {
            (frame::PRIORITY_PUSH, Self::push_number(id))
        };
        let out = &mut self.critical[super::stream::CONTROL].out;
        frame::put_priority(out, kind, element, priority.0);
    }

    /// Returns a stream of the session itself that has something to send. The caller treats it like
    /// one of [`Connection::poll_ready`], which offers such streams first.
    pub fn poll_critical(&mut self) -> Option<u64> {
        self.gather_acknowledgements();
        for critical in &mut self.critical {
            if let Some(carrier) = critical.carrier
                && !critical.out.is_empty()
                && !critical.busy
            {
                critical.busy = true;
                return Some(carrier);
            }
        }
        None
    }

    /// Returns the place of the exchange that sends next, if any can send: 0 for a request with a
    /// head, and one more than its urgency for others.
    pub fn next_place(&self) -> Option<u8> {
        Some(self.ready.first()?.urgency)
    }

    /// Returns true if events wait for [`crate::Mux::poll_event`].
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Returns the stream that sends next, and marks it as being written.
    pub(super) fn next_ready(&mut self) -> Option<u64> {
        if let Some(carrier) = self.poll_critical() {
            return Some(carrier);
        }
        while let Some(key) = self.ready.pop() {
            if let Some(stream) = self.streams.get_mut(&key.id) {
                (stream.ready, stream.busy) = (None, true);
                return stream.carrier;
            }
        }
        None
    }

    /// Moves the decoder's instructions to its stream.
    pub(super) fn gather_acknowledgements(&mut self) {
        if self.decoder.has_output() {
            self.critical[DECODER]
                .out
                .extend(self.decoder.take_output());
        }
    }

    /// Asks for critical streams that have something to send.
    pub(super) fn open_critical(&mut self) {
        self.gather_acknowledgements();
        for (index, critical) in self.critical.iter_mut().enumerate() {
            if !critical.asked && !critical.out.is_empty() {
                critical.asked = true;
                critical.out.insert(0, CRITICAL_TYPES[index]);
                let uni = &mut self.opening[Direction::Unidirectional as usize];
                uni.push_front(SendingStream::Critical(index));
            }
        }
    }

    /// Appends output of one stream. Returns true if the stream ends after it.
    pub(super) fn stream_output(&mut self, carrier: u64, out: &mut SendBuf, limit: usize) -> bool {
        match self.senders.get(&carrier) {
            None => false,
            Some(&SendingStream::Critical(index)) => {
                out.put_bytes(std::mem::take(&mut self.critical[index].out).into());
                false
            }
            Some(&SendingStream::Stream(id)) => {
                self.put_heads(id, carrier, out);
                if !out.is_empty() && self.content_waits(id) {
                    return false;
                }
                self.put_content(id, carrier, out, limit)
            }
        }
    }

    /// Returns true if another stream sends before the content of this one. Its head has its turn
    /// earlier, and takes no content with it then.
    fn content_waits(&mut self, id: StreamId) -> bool {
        let stream = self.streams.get_mut(&id).filter(|it| it.queue.len() > 0);
        let (Some(stream), Some(first)) = (stream, self.ready.first()) else {
            return false;
        };
        first < stream.key(id, &self.ready)
    }

    fn put_heads(&mut self, id: StreamId, carrier: u64, out: &mut SendBuf) {
        loop {
            let Some(stream) = self.streams.get_mut(&id) else {
                return;
            };
            let Some(head) = stream.heads.pop_front() else {
                return;
            };
            let priority = stream.priority;
            match head {
                Head::Push => {
                    self.pushes.opening.forget(priority, id);
                    out.put_slice(&Self::push_lead(id));
                }
                Head::Request(head) => self.put_section(carrier, None, out, |section, to| {
                    write_request(&head, priority, |field| section.field(field, to));
                }),
                Head::Response(head) => self.put_section(carrier, None, out, |section, to| {
                    write_response(&head, |field| section.field(field, to));
                }),
                Head::Promise(push, head) => {
                    self.put_section(carrier, Some(push), out, |section, to| {
                        write_request(&head, Priority::default(), |f| section.field(f, to));
                    });
                }
            }
        }
    }

    /// Appends HEADERS, or PUSH_PROMISE of a push.
    fn put_section(
        &mut self,
        carrier: u64,
        push: Option<u64>,
        out: &mut SendBuf,
        write: impl FnOnce(&mut crate::qpack::Section<'_>, &mut Vec<u8>),
    ) {
        let instructions = &mut self.critical[ENCODER].out;
        let insert = instructions.len() < MAX_INSTRUCTIONS;
        let mut section = self.encoder.begin(carrier, insert);
        write(&mut section, instructions);
        let mut payload = Vec::with_capacity(128);
        if let Some(push) = push {
            varint::put(&mut payload, push);
        }
        section.end(&mut payload);
        let kind = if push.is_some() {
            frame::PUSH_PROMISE
        } else {
            frame::HEADERS
        };
        let mut head = Vec::with_capacity(16);
        frame::put_head(&mut head, kind, payload.len());
        out.put_slice(&head);
        out.put_bytes(payload.into());
    }

    fn put_content(&mut self, id: StreamId, carrier: u64, out: &mut SendBuf, limit: usize) -> bool {
        let Some(stream) = self.streams.get_mut(&id) else {
            return false;
        };
        if !stream.head_given {
            return false;
        }
        let room = limit.saturating_sub(out.remaining()).max(MIN_CHUNK);
        let count = room.min(stream.queue.len());
        if count > 0 {
            let mut head = Vec::with_capacity(16);
            frame::put_head(&mut head, frame::DATA, count);
            out.put_slice(&head);
            stream.queue.take(count, |piece| out.put_bytes(piece));
            let before = stream.order();
            stream.attained.add(count);
            let priority = stream.order();
            if priority != before {
                self.commands.push_back(Command::Prioritise {
                    stream: carrier,
                    priority,
                });
            }
            self.flood.credit_sent(count);
            self.tell_room(id);
        }
        let Some(stream) = self.streams.get_mut(&id) else {
            return false;
        };
        if stream.queue.len() > 0 {
            return false;
        }
        match std::mem::replace(&mut stream.tail, Tail::Sent) {
            Tail::End => {}
            Tail::Trailers(fields) => self.put_section(carrier, None, out, |section, to| {
                write_fields(&fields, |field| section.field(field, to));
            }),
            Tail::Reset(reason) if self.peer.takes_broken => {
                let code = Code::of_stream(reason);
                let mut mark = Vec::with_capacity(16);
                frame::put_number(&mut mark, frame::BROKEN, code.0);
                out.put_slice(&mark);
                stream.sending = false;
                if !is_request(id) {
                    self.push_departs(id, carrier);
                }
                self.end_stream(id, code, true);
                self.abandon(id, None);
                return true;
            }
            Tail::Reset(reason) => {
                stream.tail = Tail::Reset(reason);
                if out.is_empty() {
                    self.end_stream(id, Code::of_stream(reason), true);
                    self.abandon(id, None);
                }
                return false;
            }
            other @ (Tail::More | Tail::Sent) => {
                stream.tail = other;
                return false;
            }
        }
        if !is_request(id) {
            self.push_departs(id, carrier);
        }
        self.stop_sending(id);
        true
    }

    /// Tells the user of a stream that was full that there is room.
    pub(super) fn tell_room(&mut self, id: StreamId) {
        let room = self.config.send_buffer / 2;
        if let Some(stream) = self.streams.get_mut(&id)
            && stream.full
            && stream.queue.len() < room
            && stream.has_few_datagrams()
        {
            stream.full = false;
            self.events.push_back(Event::Writable { id });
        }
    }

    /// Notes that our message has ended, or is wanted no more.
    pub(super) fn stop_sending(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.sending = false;
            (stream.tail, stream.queue) = (Tail::Sent, Default::default());
            stream.drop_datagrams();
            stream.heads.clear();
            if let Some(key) = stream.ready.take() {
                self.ready.remove(key);
            }
        }
        self.close_if_done(id);
    }

    /// The caller has written all output of a stream that it took.
    pub(super) fn written(&mut self, carrier: u64) {
        match self.senders.get(&carrier) {
            None => {}
            Some(&SendingStream::Critical(index)) => self.critical[index].busy = false,
            Some(&SendingStream::Stream(id)) => {
                if let Some(stream) = self.streams.get_mut(&id) {
                    stream.busy = false;
                }
                self.schedule(id);
            }
        }
    }
}

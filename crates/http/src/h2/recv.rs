//! What the peer's frames do (RFC 9113 sections 5, 6 and 8).

use bytes::Bytes;

use super::connection::Connection;
use super::flow::Urgency;
use super::frame::{self, Head, Kind, exact, flag, frame_size, protocol, split_u31};
use super::head::{self, Flaw, HeadReader};
use super::input::{Input, Piece};
use super::send::PING_MARK;
use super::stream::State;
use crate::{Event, Method, Reason, ResponseHead, Role, SessionError, StreamId};

/// A header block that goes on in CONTINUATION frames.
#[derive(Debug)]
pub(super) struct Block {
    /// The stream that HEADERS or PUSH_PROMISE named.
    id: StreamId,
    use_: Use,
    bytes: Vec<u8>,
    frames: usize,
}

/// What a header block is for.
#[derive(Clone, Copy, Debug)]
enum Use {
    Headers { end: bool },
    Promise { promised: StreamId },
}

impl Connection {
    /// Takes bytes cut anywhere.
    pub(super) fn receive(&mut self, mut bytes: &[u8]) -> Result<(), SessionError> {
        // The reader lends its buffer to the frames that it gives, so it is not part of the session
        // meanwhile.
        let mut input = std::mem::replace(&mut self.input, Input::new(self.config.role));
        let result = loop {
            match input.next(&mut bytes) {
                Ok(Some(piece)) => {
                    if let Err(error) = self.piece(piece) {
                        break Err(error);
                    }
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        input.shrink();
        self.input = input;
        self.return_session_credit();
        result
    }

    fn piece(&mut self, piece: Piece<'_>) -> Result<(), SessionError> {
        match piece {
            Piece::Begin { id, len, skip, end } => self.data_begins(id, len, skip, end),
            Piece::Data { id, bytes, end } => {
                self.data(id, bytes, end);
                Ok(())
            }
            Piece::Frame(head, payload) => self.frame(head, payload),
        }
    }

    fn frame(&mut self, head: Head, payload: &[u8]) -> Result<(), SessionError> {
        match head.kind {
            Kind::Headers => self.headers(head, payload),
            Kind::Continuation => self.continuation(head, payload),
            Kind::PushPromise => self.push_promise(head, payload),
            Kind::RstStream => self.rst_stream(head, payload),
            Kind::Settings => self.settings(head, payload),
            Kind::Ping => self.ping_frame(head, payload),
            Kind::GoAway => self.goaway(head, payload),
            Kind::WindowUpdate => self.window_update(head, payload),
            Kind::PriorityUpdate => self.priority_update(head, payload),
            Kind::Priority => {
                exact::<5>(payload)?;
                on_stream(head)?;
                self.calm.spend()
            }
            // DATA comes in other pieces.
            Kind::Data | Kind::Unknown => self.calm.spend(),
        }
    }

    /// RFC 9113 section 6.1. All of the frame counts for the windows (section 6.9.1), even where it
    /// is thrown away.
    fn data_begins(
        &mut self,
        id: StreamId,
        len: usize,
        skip: usize,
        end: bool,
    ) -> Result<(), SessionError> {
        if id == 0 || self.is_idle(id) {
            return Err(protocol("DATA on an idle stream"));
        }
        self.credit.arrive(len).ok_or(SessionError {
            reason: Reason::FlowControl,
            detail: "session window exceeded",
        })?;
        let content = len - skip;
        if content == 0 && !end {
            self.calm.spend()?;
        }
        let Some(stream) = self.streams.get_mut(&id) else {
            return self.late(id);
        };
        if !stream.state.may_receive() {
            return self.fail_stream(id, Reason::StreamClosed);
        }
        if !stream.head_received {
            return self.fail_stream(id, Reason::Protocol);
        }
        if stream.credit.arrive(len).is_none() {
            return self.fail_stream(id, Reason::FlowControl);
        }
        stream.credit.skip(skip);
        if let Some(expected) = &mut stream.expected {
            // RFC 9113 section 8.1.1: content-length is the sum of all DATA.
            match expected.checked_sub(content as u64) {
                Some(rest) if rest == 0 || !end => *expected = rest,
                _ => return self.fail_stream(id, Reason::Protocol),
            }
        }
        self.calm.earn(content as u64);
        if skip > 0 {
            self.return_stream_credit(id);
        }
        Ok(())
    }

    fn data(&mut self, id: StreamId, bytes: &[u8], end: bool) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.credit.hold(bytes.len());
        self.credit.hold(bytes.len());
        self.events.push_back(Event::Data {
            id,
            data: Bytes::copy_from_slice(bytes),
            end,
        });
        if end {
            stream.received_end();
            self.close_if_done(id);
        }
    }

    /// A frame on a stream that is closed. After our own reset it was on its way; after a GOAWAY it
    /// was never looked at; otherwise the peer is told.
    fn late(&mut self, id: StreamId) -> Result<(), SessionError> {
        if self.own_resets.contains(&id)
            || self
                .our_goodbye
                .is_some_and(|last| id > last && !self.is_own(id))
        {
            return Ok(());
        }
        self.put_reset(id, Reason::StreamClosed);
        self.calm.spend_on_answer()
    }

    /// RFC 9113 section 6.2. The priority in it means nothing any more.
    fn headers(&mut self, head: Head, payload: &[u8]) -> Result<(), SessionError> {
        on_stream(head)?;
        let mut block = frame::unpad(head, payload)?;
        if head.has(flag::PRIORITY) {
            block = block
                .get(5..)
                .ok_or_else(|| frame_size("HEADERS cut short"))?;
        }
        self.begin_block(
            head,
            Use::Headers {
                end: head.has(flag::END_STREAM),
            },
            block,
        )
    }

    /// RFC 9113 section 6.6.
    fn push_promise(&mut self, head: Head, payload: &[u8]) -> Result<(), SessionError> {
        on_stream(head)?;
        if !self.is_client() || !self.config.push {
            return Err(protocol("PUSH_PROMISE where none is taken"));
        }
        let (promised, block) = split_u31(frame::unpad(head, payload)?)?;
        if promised == 0 || self.is_own(promised) || !self.is_idle(promised) {
            return Err(protocol("promise of a stream that is not idle"));
        }
        self.begin_block(head, Use::Promise { promised }, block)
    }

    fn begin_block(&mut self, head: Head, use_: Use, block: &[u8]) -> Result<(), SessionError> {
        if head.has(flag::END_HEADERS) {
            return self.whole_block(head.id, use_, block);
        }
        self.block = Some(Block {
            id: head.id,
            use_,
            bytes: block.to_vec(),
            frames: 0,
        });
        Ok(())
    }

    /// RFC 9113 section 6.10. Blocks that no list within our limit can need are not gathered.
    fn continuation(&mut self, head: Head, payload: &[u8]) -> Result<(), SessionError> {
        let limit = 2 * self.config.max_header_list + frame::MAX_PAYLOAD;
        let block = self
            .block
            .as_mut()
            .ok_or_else(|| protocol("CONTINUATION of nothing"))?;
        block.frames += 1;
        block.bytes.extend_from_slice(payload);
        if block.bytes.len() > limit || block.frames > 16 + limit / 1024 {
            return Err(SessionError {
                reason: Reason::EnhanceYourCalm,
                detail: "endless header block",
            });
        }
        if head.has(flag::END_HEADERS)
            && let Some(block) = self.block.take()
        {
            return self.whole_block(block.id, block.use_, &block.bytes);
        }
        Ok(())
    }

    fn whole_block(&mut self, id: StreamId, use_: Use, block: &[u8]) -> Result<(), SessionError> {
        let mut reader = HeadReader::new(self.config.max_header_list, self.hint);
        self.decoder
            .decode(block, |field| reader.field(field))
            .map_err(|_| SessionError {
                reason: Reason::Compression,
                detail: "bad header block",
            })?;
        self.decoder.shrink();
        match use_ {
            Use::Promise { promised } => self.promise(id, promised, reader),
            Use::Headers { end } if self.streams.contains_key(&id) => {
                self.message_part(id, end, reader)
            }
            Use::Headers { .. } if !self.is_idle(id) => self.late(id),
            Use::Headers { end } if !self.is_client() && !self.is_own(id) => {
                self.request(id, end, reader)
            }
            Use::Headers { .. } => Err(protocol("HEADERS on an idle stream")),
        }
    }

    /// HEADERS on a stream that is open.
    fn message_part(
        &mut self,
        id: StreamId,
        end: bool,
        reader: HeadReader,
    ) -> Result<(), SessionError> {
        let Some(stream) = self.streams.get(&id) else {
            return Ok(());
        };
        if !stream.state.may_receive() {
            return self.fail_stream(id, Reason::StreamClosed);
        }
        let taken = if stream.head_received {
            self.trailers(id, end, reader)
        } else {
            self.response(id, end, reader)
        };
        match taken {
            Ok(()) => {
                self.close_if_done(id);
                Ok(())
            }
            Err(Flaw::Malformed(_)) => self.fail_stream(id, Reason::Protocol),
            Err(Flaw::TooLarge) => self.fail_stream(id, Reason::EnhanceYourCalm),
        }
    }

    /// A new stream of a client (RFC 9113 section 8.3.1).
    fn request(&mut self, id: StreamId, end: bool, reader: HeadReader) -> Result<(), SessionError> {
        self.peer_highest = id;
        if self.our_goodbye.is_some() {
            return self.calm.spend();
        }
        if self.peer_active >= self.config.max_streams {
            self.put_reset(id, Reason::Refused);
            return self.calm.spend_on_answer();
        }
        let request = match reader.into_request(&mut self.hint) {
            Ok(request) => request,
            Err(Flaw::TooLarge) => return self.refuse_large(id, end),
            Err(Flaw::Malformed(_)) => return self.refuse(id),
        };
        let bad_length = end && request.length.is_some_and(|length| length > 0);
        if bad_length || (request.head.protocol.is_some() && !self.config.extended_connect) {
            return self.refuse(id);
        }
        let stream = self.insert(id, State::Open, request.priority);
        stream.announced = true;
        stream.head_received = true;
        stream.connect = request.head.is_connect();
        stream.head_request = request.head.method == Method::Head;
        stream.expected = request.length.filter(|_| !request.head.is_connect());
        if end {
            stream.received_end();
        }
        self.events.push_back(Event::Request {
            id,
            head: request.head,
            end,
            priority: request.priority,
        });
        Ok(())
    }

    /// A malformed request that nobody was told of.
    fn refuse(&mut self, id: StreamId) -> Result<(), SessionError> {
        self.put_reset(id, Reason::Protocol);
        self.calm.spend_on_answer()
    }

    /// 431 (RFC 6585 section 5), and no interest in the rest.
    fn refuse_large(&mut self, id: StreamId, end: bool) -> Result<(), SessionError> {
        self.put_response(id, &ResponseHead::new(431), true);
        if !end {
            self.put_reset(id, Reason::NoError);
        }
        self.calm.spend_on_answer()
    }

    /// The head of a response, or an interim one (RFC 9113 section 8.1).
    fn response(&mut self, id: StreamId, end: bool, reader: HeadReader) -> Result<(), Flaw> {
        let response = reader.into_response(&mut self.hint)?;
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ok(());
        };
        let head = response.head;
        if head.is_informational() {
            // Endless interim responses are a flood like any other: the reset finds nothing left to
            // pay with either.
            if end || self.calm.spend().is_err() {
                return Err(Flaw::Malformed(
                    "an interim response that ends, or one too many",
                ));
            }
            self.events.push_back(Event::Informational { id, head });
            return Ok(());
        }
        let tunnel = stream.connect && (200..300).contains(&head.status);
        let bodiless = stream.head_request || head.status == 204 || head.status == 304;
        stream.expected = match response.length {
            _ if bodiless => Some(0),
            length => length.filter(|_| !tunnel),
        };
        if end && stream.expected.is_some_and(|expected| expected > 0) {
            return Err(Flaw::Malformed("content-length without content"));
        }
        stream.head_received = true;
        if stream.state == State::ReservedRemote {
            stream.state = State::HalfClosedLocal;
        }
        if end {
            stream.received_end();
        }
        self.events.push_back(Event::Response { id, head, end });
        Ok(())
    }

    fn trailers(&mut self, id: StreamId, end: bool, reader: HeadReader) -> Result<(), Flaw> {
        let fields = reader.into_trailers()?;
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ok(());
        };
        if !end {
            return Err(Flaw::Malformed("trailers that do not end the stream"));
        }
        if stream.expected.is_some_and(|expected| expected > 0) {
            return Err(Flaw::Malformed("less content than promised"));
        }
        stream.received_end();
        self.events.push_back(Event::Trailers { id, fields });
        Ok(())
    }

    /// RFC 9113 section 8.4.1.
    fn promise(
        &mut self,
        parent: StreamId,
        promised: StreamId,
        reader: HeadReader,
    ) -> Result<(), SessionError> {
        if !self.is_own(parent) || self.is_idle(parent) {
            return Err(protocol("promise on a stream that is not open"));
        }
        self.peer_highest = promised;
        if self.our_goodbye.is_some() {
            return self.calm.spend();
        }
        let parent_open = self
            .streams
            .get(&parent)
            .is_some_and(|s| s.state.may_receive());
        let refusal = if !parent_open {
            Reason::Cancel
        } else if self.peer_active >= self.config.max_streams {
            Reason::Refused
        } else {
            match reader.into_request(&mut self.hint) {
                Ok(request) if matches!(request.head.method, Method::Get | Method::Head) => {
                    let stream = self.insert(promised, State::ReservedRemote, request.priority);
                    stream.announced = true;
                    stream.head_request = request.head.method == Method::Head;
                    self.events.push_back(Event::Push {
                        parent,
                        id: promised,
                        request: request.head,
                    });
                    return Ok(());
                }
                _ => Reason::Protocol,
            }
        };
        self.put_reset(promised, refusal);
        self.calm.spend_on_answer()
    }

    /// RFC 9113 section 6.4.
    fn rst_stream(&mut self, head: Head, payload: &[u8]) -> Result<(), SessionError> {
        on_stream(head)?;
        let code = u32::from_be_bytes(exact(payload)?);
        if self.is_idle(head.id) {
            return Err(protocol("RST_STREAM on an idle stream"));
        }
        self.abandon(head.id, Some(frame::reason(code)));
        self.calm.spend()
    }

    /// RFC 9113 section 6.5.
    fn settings(&mut self, head: Head, payload: &[u8]) -> Result<(), SessionError> {
        on_session(head)?;
        if head.has(flag::ACK) {
            exact::<0>(payload)?;
            self.settings_acknowledged();
            return self.calm.spend();
        }
        let first = !self.peer.known;
        let before = self.peer.initial_window;
        let from = if self.is_client() {
            Role::Server
        } else {
            Role::Client
        };
        self.peer.apply(payload, from)?;
        self.encoder.set_limit(self.peer.header_table_size);
        self.resize_windows(i64::from(self.peer.initial_window) - i64::from(before))?;
        frame::put_settings_ack(&mut self.queue);
        if first {
            self.events.push_back(Event::Settings);
        }
        self.calm.spend_on_answer()
    }

    fn settings_acknowledged(&mut self) {
        let extra = self.extra_window();
        self.acknowledged = true;
        if extra > 0 {
            self.streams
                .values_mut()
                .for_each(|stream| stream.credit.drop_extra(extra));
        }
    }

    /// RFC 9113 section 6.9.2.
    fn resize_windows(&mut self, change: i64) -> Result<(), SessionError> {
        if change == 0 {
            return Ok(());
        }
        for stream in self.streams.values_mut() {
            stream.window.widen(change).map_err(|_| SessionError {
                reason: Reason::FlowControl,
                detail: "initial window makes a window overflow",
            })?;
        }
        let mut ids: Vec<StreamId> = self.streams.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            self.schedule(id);
        }
        Ok(())
    }

    /// RFC 9113 section 6.7.
    fn ping_frame(&mut self, head: Head, payload: &[u8]) -> Result<(), SessionError> {
        on_session(head)?;
        let payload = exact::<8>(payload)?;
        if !head.has(flag::ACK) {
            frame::put_ping(&mut self.queue, flag::ACK, payload);
            return self.calm.spend_on_answer();
        }
        let [m0, m1, m2, m3, payload @ ..] = payload;
        if [m0, m1, m2, m3] == PING_MARK {
            self.events.push_back(Event::Pong {
                payload: u32::from_be_bytes(payload),
            });
        }
        self.calm.spend()
    }

    /// RFC 9113 section 6.8.
    fn goaway(&mut self, head: Head, payload: &[u8]) -> Result<(), SessionError> {
        on_session(head)?;
        let (last, rest) = split_u31(payload)?;
        let code = rest
            .first_chunk()
            .ok_or_else(|| frame_size("GOAWAY cut short"))?;
        let reason = frame::reason(u32::from_be_bytes(*code));
        let last = self.their_goodbye.map_or(last, |before| before.min(last));
        self.their_goodbye = Some(last);
        self.events.push_back(Event::GoAway { last, reason });
        let mut refused: Vec<StreamId> = self
            .streams
            .keys()
            .copied()
            .filter(|&id| self.is_own(id) && id > last)
            .collect();
        refused.sort_unstable();
        for id in refused {
            self.abandon(id, Some(Reason::Refused));
        }
        self.calm.spend()
    }

    /// RFC 9113 section 6.9.
    fn window_update(&mut self, head: Head, payload: &[u8]) -> Result<(), SessionError> {
        let increment = u32::from_be_bytes(exact(payload)?) & 0x7fff_ffff;
        self.calm.spend()?;
        if head.id == 0 {
            if increment == 0 {
                return Err(protocol("window update of nothing"));
            }
            return self
                .window
                .widen(i64::from(increment))
                .map_err(|_| SessionError {
                    reason: Reason::FlowControl,
                    detail: "session window over 2^31-1",
                });
        }
        if self.is_idle(head.id) {
            return Err(protocol("WINDOW_UPDATE on an idle stream"));
        }
        let Some(stream) = self.streams.get_mut(&head.id) else {
            return Ok(());
        };
        if increment == 0 {
            return self.fail_stream(head.id, Reason::Protocol);
        }
        if stream.window.widen(i64::from(increment)).is_err() {
            return self.fail_stream(head.id, Reason::FlowControl);
        }
        self.schedule(head.id);
        Ok(())
    }

    /// RFC 9218 section 7.1. One for a stream that is not open yet is not remembered: the request's
    /// field says it too.
    fn priority_update(&mut self, head: Head, payload: &[u8]) -> Result<(), SessionError> {
        on_session(head)?;
        let (id, value) = split_u31(payload)?;
        if self.is_client() || id == 0 {
            return Err(protocol("PRIORITY_UPDATE out of place"));
        }
        if let Some(priority) = head::urgency(value)
            && self.change_priority(id, priority)
        {
            self.events.push_back(Event::Priority { id, priority });
        }
        self.calm.spend()
    }

    /// Queues a WINDOW_UPDATE for the session if it is worth a write.
    pub(super) fn return_session_credit(&mut self) {
        if self.started && self.failed.is_none() && self.credit.urgency() == Urgency::Now {
            frame::put_window_update(&mut self.queue, 0, self.credit.take());
        }
    }

    /// Queues a WINDOW_UPDATE for the stream if it is worth a write, or remembers that one can ride
    /// along.
    pub(super) fn return_stream_credit(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id).filter(|s| s.state.may_receive()) else {
            return;
        };
        match stream.credit.urgency() {
            Urgency::Wait => {}
            Urgency::Now => frame::put_window_update(&mut self.queue, id, stream.credit.take()),
            Urgency::Ride => {
                if !std::mem::replace(&mut stream.riding, true) {
                    self.riders.push(id);
                }
            }
        }
    }

    /// The user is done with data.
    pub(super) fn release_data(&mut self, id: StreamId, count: usize) {
        if let Some(stream) = self.streams.get_mut(&id) {
            let count = stream.credit.release(count);
            self.credit.release(count);
            self.return_stream_credit(id);
        } else if let Some(held) = self.unreleased.get_mut(&id) {
            let count = count.min(*held);
            *held -= count;
            if *held == 0 {
                self.unreleased.remove(&id);
            }
            self.credit.release(count);
        }
        self.return_session_credit();
    }
}

fn on_stream(head: Head) -> Result<(), SessionError> {
    if head.id == 0 {
        Err(protocol("a stream's frame on the session"))
    } else {
        Ok(())
    }
}

fn on_session(head: Head) -> Result<(), SessionError> {
    if head.id == 0 {
        Ok(())
    } else {
        Err(protocol("a session's frame on a stream"))
    }
}

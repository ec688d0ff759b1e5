//! What comes from the peer: frames in, events out, and the errors that the drafts demand. Draft
//! sections 2.3 and 2.6.

use std::time::Instant;

use bytes::Bytes;
use tandem_http::message::content_length;
use tandem_http::{
    Event, Fields, Priority, Reason, RequestHead, ResponseHead, SessionError, StreamId,
};

use super::probe::Step;
use super::{Connection, MAX_PROVOKED};
use crate::flow::SendWindow;
use crate::frame::{
    ControlHead, Data, Frame, FrameType, GoAway, Headers, MAX_31, Piece, Ping, RstStream,
    SettingId, Settings, SynReply, SynStream, WIRE_VERSION, WindowUpdate,
};
use crate::header_block::{BlockError, InflateError};
use crate::http::{Message, response_block};
use crate::status;
use crate::stream::{Kind, PushHead, State};

/// The data frame whose payload is arriving.
#[derive(Clone, Copy, Debug)]
pub(super) struct Receiving {
    id: StreamId,
    fin: bool,
    /// Its stream wants it.
    deliver: bool,
}

/// What HEADERS may say.
struct More {
    identity: bool,
    status: Option<u16>,
    version: bool,
    fields: Fields,
}

impl Connection {
    pub(super) fn receive_bytes(&mut self, now: Instant, bytes: &[u8]) -> Result<(), SessionError> {
        if self.failed {
            return Err(SessionError {
                reason: Reason::Protocol,
                detail: "the session has failed",
            });
        }
        self.flood.advance(now);
        self.probe_timeout(now);
        let mut input = bytes;
        while let Some(piece) = self.reader.next(&mut input) {
            match piece {
                Piece::Control(kind, head, payload) => {
                    self.on_control(kind, head, payload.as_ref())?
                }
                Piece::DataHead(data) => self.on_data_head(data)?,
                Piece::Data(part, last) => self.on_data(part, last),
                Piece::Unknown(_) => self.charge()?,
                Piece::TooLarge(_) => {
                    return Err(self.fail(Reason::FrameSize, "a control frame above the limit"));
                }
            }
            if self.provoked > MAX_PROVOKED {
                return Err(self.fail(
                    Reason::EnhanceYourCalm,
                    "answers to the peer's frames are not read",
                ));
            }
        }
        Ok(())
    }

    /// Time has passed: see [`super::probe`].
    pub(super) fn probe_timeout(&mut self, now: Instant) {
        self.clock = Some(now);
        match self.probe.advance(now) {
            Step::Nothing => {}
            Step::Ask => {
                let id = self.new_ping();
                self.probe.asked(id);
            }
            Step::LiftWindows => {
                self.session_send = SendWindow::UNLIMITED;
                self.shift_windows(|window| *window = SendWindow::UNLIMITED);
            }
        }
    }

    /// Counts a frame that costs the peer nothing.
    fn charge(&mut self) -> Result<(), SessionError> {
        if self.flood.charge() {
            return Ok(());
        }
        Err(self.fail(
            Reason::EnhanceYourCalm,
            "a flood of frames that say nothing",
        ))
    }

    fn on_control(
        &mut self,
        kind: FrameType,
        head: ControlHead,
        payload: &[u8],
    ) -> Result<(), SessionError> {
        if head.version != WIRE_VERSION {
            return Err(self.on_other_version(kind, head.flags, payload));
        }
        match Frame::load(kind, head.flags, payload) {
            Ok(Frame::SynStream(frame)) => self.on_syn_stream(&frame),
            Ok(Frame::SynReply(frame)) => self.on_syn_reply(&frame),
            Ok(Frame::RstStream(frame)) => self.on_rst_stream(frame),
            Ok(Frame::Settings(frame)) => self.on_settings(&frame),
            Ok(Frame::Ping(frame)) => self.on_ping(frame),
            Ok(Frame::GoAway(frame)) => {
                self.on_goaway(frame);
                Ok(())
            }
            Ok(Frame::Headers(frame)) => self.on_headers(&frame),
            Ok(Frame::WindowUpdate(frame)) => self.on_window_update(frame),
            Err(_) => Err(self.fail(
                Reason::Protocol,
                "a frame with a length that its type cannot have",
            )),
        }
    }

    /// "If a SYN_STREAM has a version that we do not speak, answer RST_STREAM UNSUPPORTED_VERSION."
    /// Its header block is lost to us, and with it the session.
    fn on_other_version(&mut self, kind: FrameType, flags: u8, payload: &[u8]) -> SessionError {
        if kind == FrameType::SynStream
            && let Ok(frame) = SynStream::load(flags, payload)
        {
            let rst = RstStream {
                stream: frame.stream,
                status: status::UNSUPPORTED_VERSION,
            };
            self.control.push(|dst| rst.encode(dst));
        }
        self.fail(Reason::Protocol, "a control frame of another version")
    }

    /// Inflates a block, which must happen to every block. The outer error ends the session, the
    /// inner one a stream.
    fn read_block<T>(
        &mut self,
        block: &[u8],
        read: impl FnOnce(Message<'_>) -> T,
    ) -> Result<Result<T, BlockError>, SessionError> {
        match self.decoder.decode(block) {
            Ok(pairs) => Ok(pairs.map(|pairs| read(Message::load(&pairs)))),
            Err(InflateError::Corrupt) => {
                Err(self.fail(Reason::Compression, "a header block that does not inflate"))
            }
            Err(InflateError::Bomb) => Err(self.fail(
                Reason::EnhanceYourCalm,
                "a header block that inflates without end",
            )),
        }
    }

    fn on_syn_stream(&mut self, frame: &SynStream<'_>) -> Result<(), SessionError> {
        let id = frame.stream;
        if id == 0 || self.is_own_id(id) {
            return Err(self.fail(Reason::Protocol, "SYN_STREAM with a stream id of ours"));
        }
        // "A stream id that is not higher than all before is a session error; the same again is a
        // stream error."
        if id < self.last_received {
            return Err(self.fail(Reason::Protocol, "SYN_STREAM with a stream id that falls"));
        }
        let again = id == self.last_received;
        self.last_received = id;
        if self.is_client() {
            self.on_push(frame, again)
        } else {
            self.on_request(frame, again)
        }
    }

    fn on_request(&mut self, frame: &SynStream<'_>, again: bool) -> Result<(), SessionError> {
        let id = frame.stream;
        let request = self.read_block(frame.block, |message| message.into_request())?;
        if again {
            self.stream_error(id, status::PROTOCOL_ERROR);
        } else if self.goaway_sent {
            // "After GOAWAY the sender ignores new streams": the peer knows that they were not
            // processed.
        } else if frame.unidirectional {
            self.stream_error(id, status::PROTOCOL_ERROR);
        } else if self.peer_streams >= self.config.mux.max_streams as usize {
            self.charge()?;
            self.stream_error(id, status::REFUSED_STREAM);
        } else {
            match request {
                Err(error) => self.stream_error(id, block_status(error)),
                Ok(request) => self.accept_request(frame, request),
            }
        }
        Ok(())
    }

    /// "A request without all that is required MUST be answered by 400 Bad Request."
    fn accept_request(&mut self, frame: &SynStream<'_>, request: Option<RequestHead>) {
        let id = frame.stream;
        self.last_accepted = id;
        let state = if frame.fin {
            State::HalfClosedRemote
        } else {
            State::Open
        };
        let stream = self.insert(id, Kind::PeerRequest, state, frame.priority);
        let Some(head) = request else {
            return self.answer_bad_request(id);
        };
        if !head.is_connect() {
            stream.expected = content_length(&head.fields).unwrap_or_default();
        }
        if frame.fin && stream.expected.is_some_and(|length| length > 0) {
            return self.answer_bad_request(id);
        }
        self.events.push_back(Event::Request {
            id,
            head,
            end: frame.fin,
            priority: Priority(frame.priority),
        });
    }

    /// Answers 400 without a body, and lets go by what the peer still sends.
    fn answer_bad_request(&mut self, id: StreamId) {
        let mut head = ResponseHead::new(400);
        head.fields.push("content-length", "0");
        let Ok(block) = response_block(&head, usize::MAX) else {
            return;
        };
        self.provoked += 1;
        self.send_reply(id, &block, true);
        let Some(stream) = self.live(id) else { return };
        stream.replied = true;
        stream.discard = true;
        let held = std::mem::take(&mut stream.held);
        let state = stream.state.after_fin_sent();
        self.forget_held(held);
        self.set_state(id, state);
    }

    fn on_push(&mut self, frame: &SynStream<'_>, again: bool) -> Result<(), SessionError> {
        let id = frame.stream;
        let head = self.read_block(frame.block, |mut message| {
            let head = PushHead {
                status: message.status(),
                version: message.version.is_some(),
                fields: std::mem::take(&mut message.fields),
            };
            (message.pushed_request(Fields::new()), head)
        })?;
        if frame.associated == 0 {
            return Err(self.fail(Reason::Protocol, "a push that belongs to no stream"));
        }
        if again {
            self.stream_error(id, status::PROTOCOL_ERROR);
        } else if self.goaway_sent {
            // As for requests.
        } else if !self.config.mux.push || self.peer_streams >= self.config.mux.max_streams as usize
        {
            self.charge()?;
            self.stream_error(id, status::REFUSED_STREAM);
        } else {
            match head {
                Err(error) => self.stream_error(id, block_status(error)),
                Ok((None, _)) => self.stream_error(id, status::PROTOCOL_ERROR),
                Ok((Some(request), head)) => self.accept_push(frame, request, head),
            }
        }
        Ok(())
    }

    fn accept_push(&mut self, frame: &SynStream<'_>, mut request: RequestHead, head: PushHead) {
        let id = frame.stream;
        let same_origin = self.config.same_origin_push;
        let parent = self
            .live(frame.associated)
            .filter(|parent| parent.state.may_receive());
        let Some(Kind::OwnRequest(Some(asked))) = parent.map(|parent| &parent.kind) else {
            return self.stream_error(id, status::INVALID_STREAM);
        };
        let own = asked.scheme == request.scheme && asked.authority == request.authority;
        if same_origin && !own {
            return self.stream_error(id, status::REFUSED_STREAM);
        }
        request.fields = asked.fields.clone();
        if !own {
            request
                .fields
                .retain(|field| !matches!(field.name, b"cookie" | b"authorization"));
        }
        self.last_accepted = id;
        self.insert(
            id,
            Kind::PeerPush(Some(Box::new(head))),
            State::HalfClosedLocal,
            frame.priority,
        );
        self.events.push_back(Event::Push {
            parent: frame.associated,
            id,
            request,
        });
        if frame.fin && self.complete_push_head(id, true) {
            self.set_state(id, State::Closed);
        }
    }

    /// Tells the head of a pushed response once no more of it can come; false when that is no
    /// response.
    fn complete_push_head(&mut self, id: StreamId, end: bool) -> bool {
        let Some(Kind::PeerPush(head)) = self.live(id).map(|stream| &mut stream.kind) else {
            return true;
        };
        let Some(head) = head.take() else { return true };
        let (Some(status), true) = (head.status, head.version) else {
            self.stream_error(id, status::PROTOCOL_ERROR);
            return false;
        };
        self.events.push_back(Event::Response {
            id,
            head: ResponseHead {
                status,
                fields: head.fields,
            },
            end,
        });
        true
    }

    fn on_syn_reply(&mut self, frame: &SynReply<'_>) -> Result<(), SessionError> {
        let id = frame.stream;
        let response = self.read_block(frame.block, |message| message.into_response())?;
        let Some(stream) = self.live(id) else {
            return self.stray(id);
        };
        match stream.kind {
            // "A second SYN_REPLY is a stream error STREAM_IN_USE."
            Kind::OwnRequest(_) if stream.replied => self.stream_error(id, status::STREAM_IN_USE),
            Kind::OwnRequest(_) => match response {
                Ok(Some(head)) => {
                    stream.replied = true;
                    let state = stream.state.after_fin_received();
                    self.events.push_back(Event::Response {
                        id,
                        head,
                        end: frame.fin,
                    });
                    if frame.fin {
                        self.set_state(id, state);
                    }
                }
                // "A response without status and version is answered by RST_STREAM PROTOCOL_ERROR."
                Ok(None) => self.stream_error(id, status::PROTOCOL_ERROR),
                Err(error) => self.stream_error(id, block_status(error)),
            },
            // spdystream accepts pushes like this; it changes nothing.
            Kind::OwnPush { .. } => self.charge()?,
            Kind::PeerRequest | Kind::PeerPush(_) => self.stream_error(id, status::PROTOCOL_ERROR),
        }
        Ok(())
    }

    fn on_headers(&mut self, frame: &Headers<'_>) -> Result<(), SessionError> {
        let id = frame.stream;
        let more = self.read_block(frame.block, |message| More {
            identity: message.has_identity(),
            status: message.status(),
            version: message.version.is_some(),
            fields: message.fields,
        })?;
        if !frame.fin {
            self.charge()?;
        }
        let Some(stream) = self.live(id) else {
            return self.stray(id);
        };
        if !stream.state.may_receive() {
            self.stream_error(id, status::STREAM_ALREADY_CLOSED);
        } else if matches!(stream.kind, Kind::OwnRequest(_)) && !stream.replied {
            self.stream_error(id, status::PROTOCOL_ERROR);
        } else {
            match more.and_then(|more| self.merge_headers(id, more)) {
                Err(error) => self.stream_error(id, block_status(error)),
                Ok(()) if frame.fin => self.finish_by_headers(id),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Adds fields to the head of a push, or to the trailers. "Names must not be repeated", nor may
    /// what a push is an answer to.
    fn merge_headers(&mut self, id: StreamId, more: More) -> Result<(), BlockError> {
        let limit = self.config.mux.max_header_list;
        let Some(stream) = self.live(id) else {
            return Ok(());
        };
        let known = match &mut stream.kind {
            Kind::PeerPush(Some(head)) => {
                let again =
                    head.status.is_some() && more.status.is_some() || head.version && more.version;
                if again || more.identity {
                    return Err(BlockError::Malformed);
                }
                head.status = head.status.or(more.status);
                head.version |= more.version;
                &mut head.fields
            }
            _ => &mut stream.trailers,
        };
        if known.text_len() + more.fields.text_len() + 32 * (known.len() + more.fields.len())
            > limit
        {
            return Err(BlockError::TooLarge);
        }
        if !known.is_empty()
            && more
                .fields
                .iter()
                .any(|field| known.get(field.name).is_some())
        {
            return Err(BlockError::Malformed);
        }
        for field in more.fields.iter() {
            known.push(field.name, field.value);
        }
        Ok(())
    }

    /// HEADERS with FIN.
    fn finish_by_headers(&mut self, id: StreamId) {
        let Some(stream) = self.live(id) else { return };
        if matches!(stream.kind, Kind::PeerPush(Some(_))) {
            if self.complete_push_head(id, true) {
                self.set_state(id, State::Closed);
            }
        } else if stream
            .expected
            .is_some_and(|length| length != stream.received)
        {
            self.refuse_length(id, true);
        } else {
            self.end_of_body(id, Bytes::new());
        }
    }

    fn on_data_head(&mut self, data: Data) -> Result<(), SessionError> {
        if data.stream == 0 {
            return Err(self.fail(Reason::Protocol, "DATA on stream 0"));
        }
        if self.is_v31() && !self.session_receive.receive(data.len) {
            return Err(self.fail(
                Reason::FlowControl,
                "more data than the session window allows",
            ));
        }
        if data.len == 0 && !data.fin {
            self.charge()?;
        }
        let id = data.stream;
        let known = self.live(id).is_some();
        let deliver = known && self.admit_data(data);
        if !known {
            self.stray(id)?;
        }
        if data.len > 0 {
            self.receiving = Some(Receiving {
                id,
                fin: data.fin,
                deliver,
            });
        } else if deliver && data.fin {
            self.end_of_body(id, Bytes::new());
        }
        Ok(())
    }

    /// Whether a live stream takes this frame; if not, all is done but to let its payload go by.
    fn admit_data(&mut self, data: Data) -> bool {
        let id = data.stream;
        let over_budget = !self.is_v31()
            && self.held.saturating_add(data.len as usize) > self.config.mux.receive_budget;
        let Some(stream) = self.live(id) else {
            return false;
        };
        let in_window = stream.receive.receive(data.len);
        stream.received += u64::from(data.len);
        let received = stream.received;
        let wrong_length = stream
            .expected
            .is_some_and(|length| received > length || data.fin && received != length);
        let error = if !stream.state.may_receive() {
            status::STREAM_ALREADY_CLOSED
        } else if matches!(stream.kind, Kind::OwnRequest(_)) && !stream.replied {
            // "DATA before SYN_REPLY is a stream error PROTOCOL_ERROR."
            status::PROTOCOL_ERROR
        } else if !in_window || over_budget {
            status::FLOW_CONTROL_ERROR
        } else if stream.discard {
            self.discard_data(data);
            return false;
        } else if wrong_length {
            self.refuse_length(id, data.fin);
            return false;
        } else if matches!(stream.kind, Kind::PeerPush(Some(_))) {
            let end = data.fin && data.len == 0;
            let complete = self.complete_push_head(id, end);
            if complete && end {
                self.set_state(id, State::Closed);
            }
            return complete && !end;
        } else {
            return true;
        };
        self.stream_error(id, error);
        false
    }

    /// Data of a request that is answered already: the peer gets its credit back and may end.
    fn discard_data(&mut self, data: Data) {
        let Some(stream) = self.live(data.stream) else {
            return;
        };
        if data.fin {
            let state = stream.state.after_fin_received();
            return self.set_state(data.stream, state);
        }
        stream.receive.owe(data.len);
        self.note_credit(data.stream);
    }

    /// "If the sum of DATA does not equal content-length, the server MUST answer 400."
    fn refuse_length(&mut self, id: StreamId, fin: bool) {
        let Some(stream) = self.live(id) else { return };
        if stream.replied {
            return self.stream_error(id, status::PROTOCOL_ERROR);
        }
        self.answer_bad_request(id);
        self.events.push_back(Event::Reset {
            id,
            reason: Reason::Protocol,
        });
        if fin {
            self.set_state(id, State::Closed);
        }
    }

    fn on_data(&mut self, part: &[u8], last: bool) {
        let Some(receiving) = self.receiving else {
            return;
        };
        if last {
            self.receiving = None;
        }
        let Receiving { id, fin, deliver } = receiving;
        let count = part.len();
        // The user may have reset the stream since the frame began.
        let Some(stream) = self.live(id).filter(|_| deliver) else {
            return self.owe_session(count as u32);
        };
        stream.held += count;
        self.held += count;
        if self.held <= self.config.mux.receive_budget {
            self.owe_session(count as u32);
        } else if self.is_v31() {
            self.withheld += count as u32;
        }
        let data = Bytes::copy_from_slice(part);
        if last && fin {
            self.end_of_body(id, data);
        } else {
            self.events.push_back(Event::Data {
                id,
                data,
                end: false,
            });
        }
    }

    /// The peer's last data, and the trailers that came before it.
    fn end_of_body(&mut self, id: StreamId, data: Bytes) {
        let Some(stream) = self.live(id) else { return };
        let state = stream.state.after_fin_received();
        let fields = std::mem::take(&mut stream.trailers);
        if stream.discard {
            return self.set_state(id, state);
        }
        if fields.is_empty() {
            self.events.push_back(Event::Data {
                id,
                data,
                end: true,
            });
        } else {
            if !data.is_empty() {
                self.events.push_back(Event::Data {
                    id,
                    data,
                    end: false,
                });
            }
            self.events.push_back(Event::Trailers { id, fields });
        }
        self.set_state(id, state);
    }

    /// A frame for a stream that is not there. "If no GOAWAY was sent, it is a stream error
    /// INVALID_STREAM."
    fn stray(&mut self, id: StreamId) -> Result<(), SessionError> {
        let never_open = if self.is_own_id(id) {
            id >= self.next_own
        } else {
            id > self.last_received
        };
        if id != 0 && !self.goaway_sent && (never_open || self.recent.knows(id)) {
            self.stream_error(id, status::INVALID_STREAM);
        }
        Ok(())
    }

    fn on_rst_stream(&mut self, frame: RstStream) -> Result<(), SessionError> {
        let id = frame.stream;
        let reason = status::rst_reason(frame.status);
        if self.abort(id) {
            self.events.push_back(Event::Reset { id, reason });
        }
        // "Who cancels a request cancels its pushes": we say so on each, so that both ends agree.
        let pushes: Vec<_> = self
            .streams
            .iter()
            .filter(|(_, stream)| matches!(stream.kind, Kind::OwnPush { parent } if parent == id))
            .map(|(&push, _)| push)
            .collect();
        if reason == Reason::Cancel {
            for push in pushes {
                self.stream_error(push, status::CANCEL);
            }
        }
        self.charge()
    }

    fn on_settings(&mut self, frame: &Settings) -> Result<(), SessionError> {
        self.charge()?;
        self.probe.heard();
        self.peer_sent_settings = true;
        if let Some(streams) = frame.value(SettingId::MaxConcurrentStreams) {
            self.peer_max_streams = streams;
        }
        let Some(window) = frame.value(SettingId::InitialWindowSize) else {
            return Ok(());
        };
        if window > MAX_31 {
            return Err(self.fail(Reason::FlowControl, "an initial window above 2^31 - 1"));
        }
        let delta = i64::from(window) - i64::from(self.peer_initial_window);
        self.peer_initial_window = window;
        if delta != 0 && !self.probe.ignores() {
            let overflowed = self.shift_windows(|window| window.shift(delta));
            for id in overflowed
                .into_iter()
                .filter_map(|(id, result)| result.is_err().then_some(id))
            {
                self.stream_error(id, status::FLOW_CONTROL_ERROR);
            }
        }
        Ok(())
    }

    /// Changes the send window of every live stream, and says what came of it.
    fn shift_windows<T>(
        &mut self,
        mut change: impl FnMut(&mut SendWindow) -> T,
    ) -> Vec<(StreamId, T)> {
        let live = self
            .streams
            .iter_mut()
            .filter(|(_, stream)| stream.state != State::Closed);
        let results: Vec<_> = live
            .map(|(&id, stream)| (id, change(&mut stream.send)))
            .collect();
        for (id, _) in &results {
            self.reschedule(*id);
        }
        results
    }

    fn on_ping(&mut self, frame: Ping) -> Result<(), SessionError> {
        self.charge()?;
        if !self.is_own_id(frame.id) {
            // "Sent back as soon as possible, before other data."
            self.provoked += 1;
            self.ping_queue.push_back(frame.id);
            return Ok(());
        }
        let now = self.clock;
        if now.is_some_and(|now| self.probe.pong(now, frame.id)) {
            return Ok(());
        }
        // "An answer that was never asked for is ignored."
        if let Some(at) = self.pings.iter().position(|(id, _)| *id == frame.id)
            && let Some((_, payload)) = self.pings.remove(at)
        {
            self.events.push_back(Event::Pong { payload });
        }
        Ok(())
    }

    fn on_goaway(&mut self, frame: GoAway) {
        self.goaway_received = true;
        self.events.push_back(Event::GoAway {
            last: frame.last,
            reason: status::goaway_reason(frame.status),
        });
        let unprocessed: Vec<_> = self
            .streams
            .range(frame.last.saturating_add(1)..)
            .filter(|(_, stream)| stream.is_own() && stream.state != State::Closed)
            .map(|(&id, _)| id)
            .collect();
        for id in unprocessed {
            self.abort(id);
            self.events.push_back(Event::Reset {
                id,
                reason: Reason::Refused,
            });
        }
    }

    fn on_window_update(&mut self, frame: WindowUpdate) -> Result<(), SessionError> {
        let WindowUpdate { stream: id, delta } = frame;
        if id == 0 && !self.is_v31() {
            return self.charge();
        }
        self.probe.heard();
        if self.probe.ignores() {
            return Ok(());
        }
        if id == 0 {
            if delta == 0 {
                return Err(self.fail(Reason::Protocol, "a WINDOW_UPDATE of nothing"));
            }
            if self.session_send.shift(i64::from(delta)).is_err() {
                return Err(self.fail(
                    Reason::FlowControl,
                    "the session window grew beyond 2^31 - 1",
                ));
            }
            return Ok(());
        }
        // "For a stream that is finished it is ignored."
        let Some(stream) = self.live(id) else {
            return self.charge();
        };
        if delta == 0 {
            self.stream_error(id, status::PROTOCOL_ERROR);
        } else if stream.send.shift(i64::from(delta)).is_err() {
            self.stream_error(id, status::FLOW_CONTROL_ERROR);
        } else {
            self.reschedule(id);
        }
        Ok(())
    }
}

const fn block_status(error: BlockError) -> u32 {
    match error {
        BlockError::TooLarge => status::FRAME_TOO_LARGE,
        BlockError::Malformed => status::PROTOCOL_ERROR,
    }
}

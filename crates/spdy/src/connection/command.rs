//! Commands from the user of a session. Draft sections 2.3 and 3.

use bytes::Bytes;
use tandem_http::expected::ResponseTo;
use tandem_http::mux::OpenError;
use tandem_http::{Event, Fields, Method, Priority, Reason, RequestHead, ResponseHead, StreamId};

use super::{Connection, MAX_PINGS};
use crate::frame::{GoAway, Headers, RstStream, SynReply, SynStream};
use crate::header_block::Block;
use crate::http::{
    PUSHED_STATUS, Unwritable, fields_block, push_block, request_block, response_block,
};
use crate::status;
use crate::stream::{Asked, Finish, Kind, State, Stream};

impl From<Unwritable> for OpenError {
    fn from(_: Unwritable) -> Self {
        Self::BadHead
    }
}

impl Connection {
    pub(super) fn open_request(
        &mut self,
        head: &RequestHead,
        end: bool,
        priority: Priority,
    ) -> Result<StreamId, OpenError> {
        if !self.is_client() {
            return Err(OpenError::Closing);
        }
        self.check_room()?;
        let block = request_block(head, self.config.full_url_path, self.config.written_list())?;
        let id = self.open_stream(&block, 0, end, priority);
        let asked = self.config.mux.push.then(|| {
            Box::new(Asked {
                scheme: head.scheme,
                authority: head.authority.clone(),
                fields: head.fields.clone(),
            })
        });
        let state = if end {
            State::HalfClosedLocal
        } else {
            State::Open
        };
        let stream = self.insert(id, Kind::OwnRequest(asked), state, priority.0.min(7));
        stream.request = ResponseTo::of(&head.method);
        Ok(id)
    }

    /// Queues the announcement at once: it must precede every reference to the resource.
    pub(super) fn open_push(
        &mut self,
        parent: StreamId,
        request: &RequestHead,
        priority: Priority,
    ) -> Result<StreamId, OpenError> {
        if self.is_client() {
            return Err(OpenError::NoPush);
        }
        let open = self.live(parent).is_some_and(|stream| {
            matches!(stream.kind, Kind::PeerRequest) && stream.state.may_send() && !stream.discard
        });
        if !open || self.peer_max_streams == 0 {
            return Err(if self.is_open_for_streams() {
                OpenError::NoPush
            } else {
                OpenError::Closing
            });
        }
        self.check_room()?;
        // The draft restricts pushes to responses that a GET request could return.
        if request.method != Method::Get || request.protocol.is_some() {
            return Err(OpenError::BadHead);
        }
        let block = push_block(request, self.config.written_list())?;
        let id = self.open_stream(&block, parent, false, priority);
        self.insert(
            id,
            Kind::OwnPush { parent },
            State::HalfClosedRemote,
            priority.0.min(7),
        );
        Ok(id)
    }

    pub(super) fn is_open_for_streams(&self) -> bool {
        !self.failed
            && !self.goaway_sent
            && !self.goaway_received
            && self.next_own <= crate::frame::MAX_31
    }

    /// Checks that one more local stream may be opened.
    fn check_room(&self) -> Result<(), OpenError> {
        if !self.is_open_for_streams() {
            return Err(OpenError::Closing);
        }
        if self.own_streams >= self.peer_max_streams as usize {
            Err(OpenError::Busy)
        } else {
            Ok(())
        }
    }

    /// Queues SYN_STREAM with the next number. "Numbers rise and never wrap."
    fn open_stream(
        &mut self,
        block: &Block,
        associated: StreamId,
        fin: bool,
        priority: Priority,
    ) -> StreamId {
        let stream = self.next_own;
        self.next_own += 2;
        self.compress(block);
        let frame = SynStream {
            stream,
            associated,
            priority: priority.0.min(7),
            slot: 0,
            fin,
            unidirectional: associated != 0,
            block: &self.scratch,
        };
        self.control.push(|dst| frame.encode(dst));
        stream
    }

    /// Compresses into the scratch buffer, for a frame that enters the control queue at once.
    fn compress(&mut self, block: &Block) {
        self.scratch.clear();
        self.encoder.encode(block, &mut self.scratch);
    }

    pub(super) fn send_reply(&mut self, id: StreamId, block: &Block, fin: bool) {
        self.compress(block);
        let frame = SynReply {
            stream: id,
            fin,
            block: &self.scratch,
        };
        self.control.push(|dst| frame.encode(dst));
    }

    pub(super) fn send_headers(&mut self, id: StreamId, block: &Block) {
        self.compress(block);
        let frame = Headers {
            stream: id,
            fin: false,
            block: &self.scratch,
        };
        self.control.push(|dst| frame.encode(dst));
    }

    pub(super) fn write_response(&mut self, id: StreamId, head: &ResponseHead, end: bool) {
        let limit = self.config.written_list();
        let Some(stream) = self
            .live(id)
            .filter(|stream| !stream.replied && !stream.is_own())
        else {
            return self.write_pushed_response(id, head, end);
        };
        if head.is_informational() || !matches!(stream.kind, Kind::PeerRequest) {
            return;
        }
        self.write_reply(id, response_block(head, limit), end);
    }

    /// Sends the head of the response to a request.
    pub(super) fn write_reply(
        &mut self,
        id: StreamId,
        block: Result<Block, Unwritable>,
        end: bool,
    ) {
        let Ok(block) = block else {
            return self.withdraw(id, Reason::Internal);
        };
        let Some(stream) = self.live(id) else { return };
        stream.replied = true;
        let state = stream.state.after_fin_sent();
        self.send_reply(id, &block, end);
        if end {
            self.set_state(id, state);
        } else {
            self.reschedule(id);
            self.finish_if_drained(id);
        }
    }

    /// Writes the fields of a pushed response in HEADERS. The announcement already carried the
    /// status 200, which must not be repeated.
    fn write_pushed_response(&mut self, id: StreamId, head: &ResponseHead, end: bool) {
        let limit = self.config.written_list();
        let Some(stream) = self.live(id).filter(|stream| !stream.replied) else {
            return;
        };
        if !matches!(stream.kind, Kind::OwnPush { .. }) || head.is_informational() {
            return;
        }
        stream.replied = true;
        if end && stream.finish.is_none() {
            stream.finish = Some(Finish::Fin);
        }
        match fields_block(&head.fields, limit) {
            _ if head.status != PUSHED_STATUS => return self.withdraw(id, Reason::Cancel),
            Err(Unwritable) => return self.withdraw(id, Reason::Internal),
            Ok(block) if block.is_empty() => {}
            Ok(block) => self.send_headers(id, &block),
        }
        self.reschedule(id);
        self.finish_if_drained(id);
    }

    /// Resets a stream that cannot carry its response, and tells the user.
    fn withdraw(&mut self, id: StreamId, reason: Reason) {
        self.reset_stream(id, reason);
        self.events.push_back(Event::Reset { id, reason });
    }

    pub(super) fn queue_data(&mut self, id: StreamId, data: Bytes, end: bool) {
        let limit = self.config.mux.send_buffer;
        let Some(stream) = self.live(id).filter(|stream| stream.takes_data()) else {
            return;
        };
        if !data.is_empty() {
            stream.queued += data.len();
            stream.full |= stream.queued >= limit;
            stream.queue.push_back(data);
        }
        if end {
            stream.finish = Some(Finish::Fin);
        }
        self.reschedule(id);
        self.finish_if_drained(id);
    }

    pub(super) fn queue_trailers(&mut self, id: StreamId, fields: &Fields) {
        let limit = self.config.written_list();
        let Some(stream) = self.live(id).filter(|stream| stream.takes_data()) else {
            return;
        };
        let Ok(block) = fields_block(fields, limit) else {
            return self.withdraw(id, Reason::Internal);
        };
        stream.finish = Some(if block.is_empty() {
            Finish::Fin
        } else {
            Finish::Trailers(block)
        });
        self.finish_if_drained(id);
    }

    /// Ends the queued body with RST_STREAM. Returns false where no body is queued that could end
    /// so.
    pub(super) fn queue_reset(&mut self, id: StreamId, reason: Reason) -> bool {
        let unfinished = |stream: &&mut Stream| stream.takes_data() && stream.queued > 0;
        let Some(stream) = self.live(id).filter(unfinished) else {
            return false;
        };
        stream.finish = Some(Finish::Reset(reason));
        self.reschedule(id);
        true
    }

    pub(super) fn finish_if_drained(&mut self, id: StreamId) {
        if self.live(id).is_some_and(|stream| stream.only_end_left()) {
            self.finishing.push_back(id);
        }
    }

    pub(super) fn reset_stream(&mut self, id: StreamId, reason: Reason) {
        if self.live(id).is_some() {
            self.abort(id);
            let status = status::rst_status(reason);
            self.control
                .push(|dst| RstStream { stream: id, status }.encode(dst));
        } else if let Some(stream) = self.streams.remove(&id) {
            self.forget_held(stream.held);
        }
    }

    pub(super) fn release_data(&mut self, id: StreamId, count: usize) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let count = count.min(stream.held);
        stream.held -= count;
        if stream.state == State::Closed {
            if stream.held == 0 {
                self.streams.remove(&id);
            }
        } else if stream.state.may_receive() {
            // "After FIN no credit is needed."
            stream.receive.owe(count as u32);
            self.note_credit(id);
        }
        self.forget_held(count);
    }

    /// Queues a PING of ours and gives its number.
    pub(super) fn new_ping(&mut self) -> u32 {
        let id = self.next_ping;
        self.next_ping = id.wrapping_add(2);
        self.ping_queue.push_back(id);
        id
    }

    pub(super) fn send_ping(&mut self, payload: u32) {
        if self.failed {
            return;
        }
        let id = self.new_ping();
        self.pings.push_back((id, payload));
        if self.pings.len() > MAX_PINGS {
            self.pings.pop_front();
        }
    }

    pub(super) fn send_goaway(&mut self, reason: Reason) {
        if self.failed || std::mem::replace(&mut self.goaway_sent, true) {
            return;
        }
        let status = status::goaway_status(reason, self.config.version);
        let goaway = GoAway {
            last: self.last_accepted,
            status,
        };
        self.control.push(|dst| goaway.encode(dst));
    }
}

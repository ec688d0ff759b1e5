//! Handles frames with header blocks: SYN_STREAM, SYN_REPLY and HEADERS (draft sections 2.6.1,
//! 2.6.2 and 2.6.7), and pushes (draft section 3.3).

use bytes::Bytes;
use tandem_http::expected::Expected;
use tandem_http::message::content_length;
use tandem_http::pushed::{is_pushed, weight_of_fields};
use tandem_http::{
    Event, Fields, Priority, Reason, RequestHead, ResponseHead, Role, SessionError, StreamId,
};

use super::Connection;
use crate::frame::{Headers, SynReply, SynStream};
use crate::header_block::{BlockError, InflateError};
use crate::http::{Message, holds_controls, response_block};
use crate::status;
use crate::stream::{Kind, PushHead, State};

/// The contents of a HEADERS frame.
struct More {
    identity: bool,
    status: Option<u16>,
    version: bool,
    fields: Fields,
}

impl Connection {
    /// Inflates a block, which must happen to every block. The outer error ends the session, the
    /// inner one a stream.
    fn read_block<T>(
        &mut self,
        block: &[u8],
        read: impl FnOnce(Message<'_>) -> T,
    ) -> Result<Result<T, BlockError>, SessionError> {
        let decoded = self.decoder.decode(block);
        let decoded = decoded.map(|pairs| pairs.map(|pairs| read(Message::load(&pairs))));
        self.flood.charge_excess(self.decoder.excess());
        match decoded {
            Ok(read) => Ok(read),
            Err(InflateError::Corrupt) => {
                Err(self.fail(Reason::Compression, "a header block that does not inflate"))
            }
            Err(InflateError::Bomb) => Err(self.fail(
                Reason::EnhanceYourCalm,
                "a header block that inflates without end",
            )),
        }
    }

    pub(super) fn on_syn_stream(&mut self, frame: &SynStream<'_>) -> Result<(), SessionError> {
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
        let literal = self.config.literal_requests;
        let request = self.read_block(frame.block, |message| {
            if literal {
                message.into_literal_request()
            } else {
                message.into_request()
            }
        })?;
        if again {
            self.stream_error(id, status::PROTOCOL_ERROR);
        } else if self.goaway_sent {
            // "After GOAWAY the sender ignores new streams": the peer knows that they were not
            // processed.
            self.flood.charge_reset();
        } else if frame.unidirectional {
            self.stream_error(id, status::PROTOCOL_ERROR);
        } else if self.peer_streams >= self.config.mux.max_streams as usize {
            self.stream_error(id, status::REFUSED_STREAM);
        } else {
            match request {
                Err(error) => self.stream_error(id, block_status(error)),
                Ok(request) => self.accept_request(frame, request),
            }
        }
        Ok(())
    }

    /// Accepts a request. The draft demands a 400 (Bad Request) response to an incomplete one.
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
        let length = content_length(&head.fields).unwrap_or_default();
        stream.expected = Expected::of_request(length, head.is_connect());
        if frame.fin && stream.expected.end().is_err() {
            return self.answer_bad_request(id);
        }
        self.events.push_back(Event::Request {
            id,
            head,
            end: frame.fin,
            priority: Priority(frame.priority),
        });
    }

    /// Responds with 400 without a body, and discards the rest of the request.
    pub(super) fn answer_bad_request(&mut self, id: StreamId) {
        let mut head = ResponseHead::new(400);
        head.fields.push("content-length", "0");
        let Ok(block) = response_block(&head, usize::MAX) else {
            return;
        };
        self.flood.count_answer();
        self.flood.charge_reset();
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
        if let Ok((_, head)) = &head {
            self.flood.charge_pushed_head(head.fields.text_len());
        }
        if frame.associated == 0 {
            return Err(self.fail(Reason::Protocol, "a push that belongs to no stream"));
        }
        if again {
            self.stream_error(id, status::PROTOCOL_ERROR);
        } else if self.goaway_sent {
            self.flood.charge_reset();
        } else if !self.config.mux.push
            || !self.has_push_room()
            || self.peer_streams >= self.config.mux.max_streams as usize
        {
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
        let weight = weight_of_fields(&head.fields);
        self.insert(
            id,
            Kind::PeerPush(Some(Box::new(head))),
            State::HalfClosedLocal,
            frame.priority,
        );
        self.set_gathered(id, weight);
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
    pub(super) fn complete_push_head(&mut self, id: StreamId, end: bool) -> bool {
        let Some(Kind::PeerPush(head)) = self.live(id).map(|stream| &mut stream.kind) else {
            return true;
        };
        let Some(head) = head.take() else { return true };
        let (Some(status), true) = (head.status, head.version) else {
            self.stream_error(id, status::PROTOCOL_ERROR);
            return false;
        };
        if !self.expect(id, status, &head.fields, end) {
            return false;
        }
        self.set_gathered(id, 0);
        if end {
            self.flood.charge_push();
        }
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

    /// Notes the length of the content that follows a head of the peer, unless the stream ends with
    /// the head. Returns false if the length is wrong, which ends the stream.
    fn expect(&mut self, id: StreamId, status: u16, fields: &Fields, end: bool) -> bool {
        let Some(stream) = self.live(id) else {
            return true;
        };
        let length = content_length(fields);
        let is_read = length.is_ok() || stream.request.begins_tunnel(status);
        stream.expected = Expected::of_response(status, length.unwrap_or_default(), stream.request);
        let is_right = is_read && (!end || stream.expected.end().is_ok());
        if !is_right {
            self.stream_error(id, status::PROTOCOL_ERROR);
        }
        is_right
    }

    /// Returns true if another head of a push may wait for its reader, or for the rest of itself.
    fn has_push_room(&self) -> bool {
        self.events.has_room(self.gathered)
    }

    /// Sets the weight of the parts of a push that are still gathered.
    pub(super) fn set_gathered(&mut self, id: StreamId, weight: usize) {
        if let Some(stream) = self.streams.get_mut(&id) {
            self.gathered = self.gathered - stream.gathered + weight;
            stream.gathered = weight;
        }
    }

    pub(super) fn on_syn_reply(&mut self, frame: &SynReply<'_>) -> Result<(), SessionError> {
        let id = frame.stream;
        let response = self.read_block(frame.block, |message| message.into_response())?;
        let Some(stream) = self.live(id) else {
            self.stray_block(id);
            return Ok(());
        };
        match stream.kind {
            // "A second SYN_REPLY is a stream error STREAM_IN_USE."
            Kind::OwnRequest(_) if stream.replied => self.stream_error(id, status::STREAM_IN_USE),
            Kind::OwnRequest(_) => match response {
                Ok(Some(head)) => {
                    stream.replied = true;
                    let state = stream.state.after_fin_received();
                    if !self.expect(id, head.status, &head.fields, frame.fin) {
                        return Ok(());
                    }
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
            Kind::OwnPush { .. } => self.flood.charge_idle(),
            Kind::PeerRequest | Kind::PeerPush(_) => self.stream_error(id, status::PROTOCOL_ERROR),
        }
        Ok(())
    }

    pub(super) fn on_headers(&mut self, frame: &Headers<'_>) -> Result<(), SessionError> {
        let id = frame.stream;
        let more = self.read_block(frame.block, |message| More {
            identity: message.has_identity(),
            status: message.status(),
            version: message.version.is_some(),
            fields: message.fields,
        })?;
        if !frame.fin {
            self.flood.charge_idle();
        }
        let pushed = self.is_client() && is_pushed(id);
        if let (true, Ok(more)) = (pushed, &more) {
            self.flood.charge_pushed_head(more.fields.text_len());
        }
        let Some(stream) = self.live(id) else {
            self.stray_block(id);
            return Ok(());
        };
        if !stream.state.may_receive() {
            self.stream_error(id, status::STREAM_ALREADY_CLOSED);
        } else if matches!(stream.kind, Kind::OwnRequest(_)) && !stream.replied {
            self.stream_error(id, status::PROTOCOL_ERROR);
        } else if pushed && !self.has_push_room() {
            self.stream_error(id, status::CANCEL);
        } else {
            match more.and_then(|more| self.merge_headers(id, more)) {
                Err(error) => self.stream_error(id, block_status(error)),
                Ok(()) if frame.fin => self.finish_by_headers(id),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Adds fields to the head of a push, or to the trailers. No name may occur twice, and the
    /// request of a push cannot change.
    fn merge_headers(&mut self, id: StreamId, more: More) -> Result<(), BlockError> {
        let limit = self.config.mux.max_header_list;
        let is_server = self.config.mux.role == Role::Server;
        let Some(stream) = self.live(id) else {
            return Ok(());
        };
        let is_push = matches!(stream.kind, Kind::PeerPush(_));
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
            _ if is_server && holds_controls(&more.fields) => return Err(BlockError::Malformed),
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
        if is_push {
            let weight = weight_of_fields(known);
            self.set_gathered(id, weight);
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
        } else if stream.expected.end().is_err() {
            self.refuse_length(id, true);
        } else {
            self.end_of_body(id, Bytes::new());
        }
    }
}

const fn block_status(error: BlockError) -> u32 {
    match error {
        BlockError::TooLarge => status::FRAME_TOO_LARGE,
        BlockError::Malformed => status::PROTOCOL_ERROR,
    }
}

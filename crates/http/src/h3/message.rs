//! Frames of requests, responses and pushes (RFC 9114 sections 4.1, 4.4 and 7.2).

use bytes::Bytes;

use super::code::{Code, Fault};
use super::connection::Connection;
use super::frame::{self, Piece};
use super::incoming::{Fate, fault};
use super::push::stream_of;
use super::stream::{Incoming, Phase, SectionUse, SendingStream, Source, Stream, Wait};
use super::varint;
use crate::expected::{Expected, ResponseTo};
use crate::head::{Flaw, HeadReader};
use crate::pushed::is_pushed;
use crate::qpack::Decoded;
use crate::{Event, Method, Reason, RequestHead, ResponseHead, StreamId, connect_udp};

impl Connection {
    /// The request or push that a source belongs to.
    fn stream_of(source: Source) -> Option<StreamId> {
        match source {
            Source::Message(id) => Some(id),
            Source::Push(push) => Some(stream_of(push)),
            _ => None,
        }
    }

    pub(super) fn message_piece(
        &mut self,
        carrier: u64,
        incoming: &mut Incoming,
        piece: Piece<'_>,
    ) -> Result<Fate, Fault> {
        match piece {
            Piece::Begin { kind, len } => self.frame_begins(incoming.source, kind, len),
            Piece::Data(data) => {
                if let Some(id) = Self::stream_of(incoming.source) {
                    self.data(carrier, id, data);
                }
                Ok(Fate::Keep)
            }
            Piece::Payload(frame::PUSH_PROMISE, payload) => {
                let mut rest = &payload[..];
                let push = varint::take(&mut rest)
                    .ok_or(Fault::new(Code::FRAME_ERROR, "PUSH_PROMISE cut short"))?;
                let section = rest.to_vec();
                self.section(carrier, incoming, SectionUse::Promise(push), section)
            }
            Piece::Payload(frame::BROKEN, payload) => {
                // No message that breaks off ends well.
                let code = match Code(frame::number(&payload)?) {
                    Code::NO_ERROR => Code::INTERNAL_ERROR,
                    code => code,
                };
                let id = Self::stream_of(incoming.source);
                if let Some(stream) = id.and_then(|id| self.streams.get_mut(&id)) {
                    stream.phase = Phase::Broken(code);
                }
                Ok(Fate::Keep)
            }
            Piece::Payload(_, payload) => {
                self.section(carrier, incoming, SectionUse::Headers, payload)
            }
        }
    }

    /// Checks that a frame may come next.
    fn frame_begins(&mut self, source: Source, kind: u64, len: u64) -> Result<Fate, Fault> {
        let unexpected = |detail| Err(Fault::new(Code::FRAME_UNEXPECTED, detail));
        if frame::is_control(kind) || frame::is_forbidden(kind) {
            return unexpected("a frame that no message has");
        }
        let id = Self::stream_of(source);
        let stream = id.and_then(|id| self.streams.get(&id));
        let phase = stream.map_or(Phase::Head, |stream| stream.phase);
        let tunnel = stream.is_some_and(|stream| stream.tunnel);
        match kind {
            frame::DATA => match id {
                Some(id) if phase == Phase::Content => return Ok(self.data_begins(id, len)),
                _ => return unexpected("DATA outside the content"),
            },
            frame::HEADERS | frame::BROKEN
                if matches!(phase, Phase::Trailers | Phase::Broken(_) | Phase::Ended) =>
            {
                return unexpected("HEADERS after the trailers, or a second end");
            }
            frame::BROKEN if phase == Phase::Head => {
                return unexpected("a message breaks off before its head");
            }
            frame::BROKEN => {}
            // RFC 9114 section 4.4.
            frame::HEADERS | frame::PUSH_PROMISE if tunnel => {
                return unexpected("a head within a tunnel");
            }
            frame::HEADERS => {}
            frame::PUSH_PROMISE if self.is_client() && matches!(source, Source::Message(_)) => {}
            frame::PUSH_PROMISE => return unexpected("PUSH_PROMISE where none may be"),
            _ => self.flood.charge_idle(),
        }
        Ok(Fate::Keep)
    }

    fn data_begins(&mut self, id: StreamId, len: u64) -> Fate {
        if len == 0 {
            self.flood.charge_idle();
        }
        let Some(stream) = self.streams.get_mut(&id) else {
            return Fate::Drop;
        };
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if stream.expected.take(len).is_err() {
            self.fail_stream(id, Code::MESSAGE_ERROR);
            return Fate::Drop;
        }
        Fate::Keep
    }

    fn data(&mut self, carrier: u64, id: StreamId, data: &[u8]) {
        self.announce_undecided(id, false);
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.pass_capsules(data);
        debug_assert!(
            stream.carrier == Some(carrier),
            "content arrives on its stream"
        );
        self.flood.credit_received(data.len());
        self.give(id, Bytes::copy_from_slice(data));
        self.deliver_datagrams(id);
    }

    /// Tells the user of a request, once it is known if it has content.
    fn announce_undecided(&mut self, id: StreamId, end: bool) -> bool {
        let undecided = self.streams.get_mut(&id).and_then(|s| s.undecided.take());
        let Some((head, priority)) = undecided else {
            return false;
        };
        self.events.push_back(Event::Request {
            id,
            head,
            end,
            priority,
        });
        true
    }

    /// Reads a field section, or lets its stream wait.
    pub(super) fn section(
        &mut self,
        carrier: u64,
        incoming: &mut Incoming,
        use_: SectionUse,
        payload: Vec<u8>,
    ) -> Result<Fate, Fault> {
        let mut reader = HeadReader::new(self.config.max_header_list, self.hint);
        let decoded = self
            .decoder
            .decode(carrier, &payload, |field| reader.field(field))
            .map_err(fault)?;
        if decoded == Decoded::Blocked {
            incoming.wait = Some(Wait::Insertions(use_, payload));
            return Ok(Fate::Keep);
        }
        let id = Self::stream_of(incoming.source);
        match (use_, id) {
            (SectionUse::Promise(push), Some(parent)) => {
                self.promise(parent, push, reader)?;
                Ok(Fate::Keep)
            }
            (SectionUse::Headers, Some(id)) => Ok(self.head_or_trailers(id, reader)),
            (_, None) => Ok(self.request(carrier, incoming, reader)),
        }
    }

    fn head_or_trailers(&mut self, id: StreamId, reader: HeadReader) -> Fate {
        let Some(stream) = self.streams.get(&id) else {
            return Fate::Drop;
        };
        let phase = stream.phase;
        if self.is_client() && is_pushed(id) && !self.admits_pushed_head(&reader) {
            self.fail_stream(id, Code::REQUEST_CANCELLED);
            return Fate::Drop;
        }
        let taken = if phase == Phase::Head {
            self.response(id, reader)
        } else {
            self.trailers(id, reader)
        };
        match taken {
            Ok(()) => return Fate::Keep,
            Err(Flaw::Malformed(_)) => self.fail_stream(id, Code::MESSAGE_ERROR),
            Err(Flaw::TooLarge) => self.fail_stream(id, Code::EXCESSIVE_LOAD),
        }
        Fate::Drop
    }

    /// A new request (RFC 9114 section 4.3.1).
    fn request(&mut self, carrier: u64, incoming: &mut Incoming, reader: HeadReader) -> Fate {
        let request = match reader.into_request(&mut self.hint) {
            Ok(request) => request,
            Err(Flaw::TooLarge) => return self.refuse_large(carrier),
            Err(Flaw::Malformed(_)) => {
                self.reject(carrier, Code::MESSAGE_ERROR);
                return Fate::Drop;
            }
        };
        if request.head.protocol.is_some() && !self.config.extended_connect {
            self.reject(carrier, Code::MESSAGE_ERROR);
            return Fate::Drop;
        }
        let id = self.new_stream(request.priority);
        self.arriving -= 1;
        incoming.source = Source::Message(id);
        self.attach(id, carrier);
        let datagrams = self.tunnel_of(&request.head);
        let Some(stream) = self.streams.get_mut(&id) else {
            return Fate::Drop;
        };
        stream.takes_datagrams = connect_udp::is_request(&request.head);
        stream.datagrams = datagrams;
        stream.phase = Phase::Content;
        stream.request = ResponseTo::of(&request.head.method);
        stream.tunnel = request.head.is_connect();
        stream.expected = Expected::of_request(request.length, request.head.is_connect());
        let bare = request.length.unwrap_or(0) == 0 && has_mostly_no_content(&request.head);
        stream.undecided = Some((request.head, request.priority));
        if !bare {
            self.announce_undecided(id, false);
        }
        Fate::Keep
    }

    /// Answers 431 (RFC 6585 section 5) and discards the rest of the request.
    fn refuse_large(&mut self, carrier: u64) -> Fate {
        let id = self.new_stream(crate::Priority::default());
        self.attach(id, carrier);
        self.send_response(id, &ResponseHead::new(431), true);
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.phase = Phase::Ended;
        }
        self.commands.push_back(super::Command::Stop {
            stream: carrier,
            code: Code::NO_ERROR,
        });
        self.flood.charge_reset();
        Fate::Drop
    }

    /// Enters a request of the peer. Its number is of this end only.
    fn new_stream(&mut self, priority: crate::Priority) -> StreamId {
        let id = self.next_id;
        self.next_id += 2;
        self.peer_active += 1;
        self.streams.insert(id, Stream::new(priority));
        id
    }

    /// Joins a stream with the carrier's stream on which we send.
    pub(super) fn attach(&mut self, id: StreamId, carrier: u64) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.carrier = Some(carrier);
            self.senders.insert(carrier, SendingStream::Stream(id));
            self.commands.push_back(super::Command::Prioritise {
                stream: carrier,
                priority: stream.priority,
            });
        }
        self.schedule(id);
    }

    /// The head of a response, or an interim one (RFC 9114 section 4.1).
    fn response(&mut self, id: StreamId, reader: HeadReader) -> Result<(), Flaw> {
        let response = reader.into_response(&mut self.hint)?;
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ok(());
        };
        if response.head.is_informational() {
            self.flood.charge_idle();
            let head = response.head;
            self.events.push_back(Event::Informational { id, head });
            return Ok(());
        }
        stream.expected =
            Expected::of_response(response.head.status, response.length, stream.request);
        stream.tunnel = stream.request.begins_tunnel(response.head.status);
        (stream.phase, stream.answered) = (Phase::Content, true);
        if stream.tunnel {
            stream.agree_to_datagrams();
        } else {
            self.refuse_tunnel(id);
        }
        let (head, end) = (response.head, false);
        self.events.push_back(Event::Response { id, head, end });
        self.deliver_datagrams(id);
        Ok(())
    }

    fn trailers(&mut self, id: StreamId, reader: HeadReader) -> Result<(), Flaw> {
        let fields = reader.into_trailers(self.config.role)?;
        self.announce_undecided(id, false);
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ok(());
        };
        stream.expected.end()?;
        stream.phase = Phase::Trailers;
        self.events.push_back(Event::Trailers { id, fields });
        Ok(())
    }

    /// The peer has ended a stream.
    pub(super) fn message_end(&mut self, carrier: u64, incoming: &Incoming) -> Result<(), Fault> {
        if !incoming.reader.is_between_frames() {
            return Err(Fault::new(
                Code::FRAME_ERROR,
                "a stream ends within a frame",
            ));
        }
        let id = match incoming.source {
            Source::NewRequest => {
                self.reject(carrier, Code::REQUEST_INCOMPLETE);
                return Ok(());
            }
            Source::UnnamedPush => {
                return Err(Fault::new(
                    Code::FRAME_ERROR,
                    "a push stream without a number",
                ));
            }
            source => Self::stream_of(source),
        };
        let Some(id) = id else { return Ok(()) };
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ok(());
        };
        if let Phase::Broken(code) = stream.phase {
            self.broke_off(carrier, incoming.source, id, code);
            return Ok(());
        }
        if stream.phase == Phase::Head || stream.expected.end().is_err() {
            self.fail_stream(id, Code::MESSAGE_ERROR);
            return Ok(());
        }
        let had_trailers = stream.phase == Phase::Trailers;
        stream.phase = Phase::Ended;
        if !self.announce_undecided(id, true) && !had_trailers {
            self.events.push_back(Event::Data {
                id,
                data: Bytes::new(),
                end: true,
            });
        }
        self.close_if_done(id);
        Ok(())
    }

    /// The peer has ended a message that is not complete. Its content has been passed on.
    fn broke_off(&mut self, carrier: u64, source: Source, id: StreamId, code: Code) {
        self.flood.charge_reset();
        if let Source::Push(push) = source {
            self.decoder.cancel(carrier);
            return self.push_ended_early(push, code);
        }
        self.end_stream(id, Code::REQUEST_CANCELLED, false);
        self.abandon(id, Some(code.reason()));
    }

    /// Ends a stream on which the peer broke a rule (RFC 9114 section 4.1.2).
    pub(super) fn fail_stream(&mut self, id: StreamId, code: Code) {
        self.flood.charge_reset();
        self.end_stream(id, code, true);
        let reason = match code.reason() {
            Reason::NoError => Reason::Protocol,
            reason => reason,
        };
        self.abandon(id, Some(reason));
    }
}

/// Returns true if a request of this kind comes with its end, or else with content that follows at
/// once. Clients that send other requests may wait for a response first. The methods of WebDAV are
/// of this kind: servers refuse some of them with content, even with content of no bytes in chunks.
fn has_mostly_no_content(head: &RequestHead) -> bool {
    let has_use_for_content = head.method.defines_content() || head.method == Method::Connect;
    !has_use_for_content && !head.fields.contains("expect")
}

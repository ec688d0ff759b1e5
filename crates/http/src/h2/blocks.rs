//! Handles HEADERS, PUSH_PROMISE and CONTINUATION: header blocks and the messages that they begin
//! or end (RFC 9113 sections 4.3, 6.2, 6.6, 6.10 and 8).

use super::connection::Connection;
use super::frame::{self, Head, flag, frame_size, protocol, split_u31};
use super::recv::on_stream;
use super::stream::State;
use crate::expected::{Expected, ResponseTo};
use crate::head::{Flaw, HeadReader};
use crate::pushed::is_pushed;
use crate::{Event, Method, Reason, ResponseHead, SessionError, StreamId};

/// A header block that goes on in CONTINUATION frames.
#[derive(Debug)]
pub(super) struct Block {
    /// The stream that HEADERS or PUSH_PROMISE named.
    id: StreamId,
    use_: BlockUse,
    bytes: Vec<u8>,
    frames: usize,
}

/// The purpose of a header block.
#[derive(Clone, Copy, Debug)]
enum BlockUse {
    Headers { end: bool },
    Promise { promised: StreamId },
}

impl Connection {
    /// RFC 9113 section 6.2. The priority in it means nothing any more.
    pub(super) fn headers(&mut self, head: Head, payload: &[u8]) -> Result<(), SessionError> {
        on_stream(head)?;
        let mut block = frame::unpad(head, payload)?;
        if head.has(flag::PRIORITY) {
            block = block
                .get(5..)
                .ok_or_else(|| frame_size("HEADERS cut short"))?;
        }
        self.begin_block(
            head,
            BlockUse::Headers {
                end: head.has(flag::END_STREAM),
            },
            block,
        )
    }

    /// RFC 9113 section 6.6.
    pub(super) fn push_promise(&mut self, head: Head, payload: &[u8]) -> Result<(), SessionError> {
        on_stream(head)?;
        if !self.is_client() || !self.config.push {
            return Err(protocol("PUSH_PROMISE where none is taken"));
        }
        let (promised, block) = split_u31(frame::unpad(head, payload)?)?;
        if promised == 0 || self.is_own(promised) || !self.is_idle(promised) {
            return Err(protocol("promise of a stream that is not idle"));
        }
        self.begin_block(head, BlockUse::Promise { promised }, block)
    }

    fn begin_block(
        &mut self,
        head: Head,
        use_: BlockUse,
        block: &[u8],
    ) -> Result<(), SessionError> {
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
    pub(super) fn continuation(&mut self, head: Head, payload: &[u8]) -> Result<(), SessionError> {
        let limit = 2 * self.config.max_header_list + frame::MAX_PAYLOAD;
        let block = self
            .block
            .as_mut()
            .ok_or_else(|| protocol("CONTINUATION of nothing"))?;
        self.flood.charge_idle();
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

    fn whole_block(
        &mut self,
        id: StreamId,
        use_: BlockUse,
        block: &[u8],
    ) -> Result<(), SessionError> {
        let mut reader = HeadReader::new(self.config.max_header_list, self.hint);
        self.decoder
            .decode(block, |field| reader.field(field))
            .map_err(|_| SessionError {
                reason: Reason::Compression,
                detail: "bad header block",
            })?;
        self.decoder.shrink();
        match use_ {
            BlockUse::Promise { promised } => self.promise(id, promised, reader),
            BlockUse::Headers { end } if self.streams.contains_key(&id) => {
                self.message_part(id, end, reader)
            }
            BlockUse::Headers { .. } if !self.is_idle(id) => self.late_headers(id),
            BlockUse::Headers { end } if !self.is_client() && !self.is_own(id) => {
                self.request(id, end, reader)
            }
            BlockUse::Headers { .. } => Err(protocol("HEADERS on an idle stream")),
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
            self.fail_stream(id, Reason::StreamClosed);
            return Ok(());
        }
        let has_head = stream.head_received;
        if self.is_client() && is_pushed(id) && !self.admits_pushed_head(&reader) {
            self.fail_stream(id, Reason::Cancel);
            return Ok(());
        }
        let taken = if has_head {
            self.trailers(id, end, reader)
        } else {
            self.response(id, end, reader)
        };
        match taken {
            Ok(()) => {
                if end {
                    self.charge_end(id);
                }
                self.close_if_done(id);
            }
            Err(Flaw::Malformed(_)) => self.fail_stream(id, Reason::Protocol),
            Err(Flaw::TooLarge) => self.fail_stream(id, Reason::EnhanceYourCalm),
        }
        Ok(())
    }

    /// Charges a promise or the head of a pushed response. Returns false if too many wait for their
    /// reader.
    fn admits_pushed_head(&mut self, reader: &HeadReader) -> bool {
        let size = self.config.max_header_list - reader.room();
        self.events.admits_head(size, &mut self.flood)
    }

    /// Handles HEADERS on a stream that is closed, or that the peer has skipped.
    ///
    /// They may have been on their way when we reset the stream. Otherwise a stream of the peer is
    /// opened again or out of order, which ends the session (RFC 9113 section 5.1.1).
    fn late_headers(&mut self, id: StreamId) -> Result<(), SessionError> {
        if self.is_discarded(id) {
            self.flood.charge_reset();
            Ok(())
        } else if self.is_own(id) || id <= self.forgotten_reset {
            self.reset_for_fault(id, Reason::StreamClosed);
            Ok(())
        } else {
            Err(protocol(
                "HEADERS with a stream identifier that does not rise",
            ))
        }
    }

    /// A new stream of a client (RFC 9113 section 8.3.1).
    fn request(&mut self, id: StreamId, end: bool, reader: HeadReader) -> Result<(), SessionError> {
        self.peer_highest = id;
        if self.our_goodbye.is_some() {
            self.flood.charge_reset();
            return Ok(());
        }
        if self.peer_active >= self.config.max_streams {
            self.reset_for_fault(id, Reason::Refused);
            return Ok(());
        }
        let request = match reader.into_request(&mut self.hint) {
            Ok(request) => request,
            Err(Flaw::TooLarge) => return self.refuse_large(id, end),
            Err(Flaw::Malformed(_)) => return self.refuse(id),
        };
        let expected = Expected::of_request(request.length, request.head.is_connect());
        let bad_length = end && expected.end().is_err();
        if bad_length || (request.head.protocol.is_some() && !self.config.extended_connect) {
            return self.refuse(id);
        }
        let stream = self.insert(id, State::Open, request.priority);
        stream.announced = true;
        stream.head_received = true;
        stream.request = ResponseTo::of(&request.head.method);
        stream.expected = expected;
        if end {
            stream.received_end();
        }
        if self.config.widens_streams {
            self.return_stream_credit(id);
        }
        self.events.push_back(Event::Request {
            id,
            head: request.head,
            end,
            priority: request.priority,
        });
        Ok(())
    }

    /// Refuses a malformed request, of which no event has told.
    fn refuse(&mut self, id: StreamId) -> Result<(), SessionError> {
        self.reset_for_fault(id, Reason::Protocol);
        Ok(())
    }

    /// Answers 431 (RFC 6585 section 5) and discards the rest of the request.
    fn refuse_large(&mut self, id: StreamId, end: bool) -> Result<(), SessionError> {
        self.put_response(id, &ResponseHead::new(431), true);
        if !end {
            self.put_reset(id, Reason::NoError);
        }
        self.flood.count_answer();
        self.flood.charge_reset();
        Ok(())
    }

    /// The head of a response, or an interim one (RFC 9113 section 8.1).
    fn response(&mut self, id: StreamId, end: bool, reader: HeadReader) -> Result<(), Flaw> {
        let response = reader.into_response(&mut self.hint)?;
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ok(());
        };
        if response.head.is_informational() {
            if end {
                return Err(Flaw::Malformed("an interim response that ends"));
            }
            self.flood.charge_idle();
            let head = response.head;
            self.events.push_back(Event::Informational { id, head });
            return Ok(());
        }
        stream.expected =
            Expected::of_response(response.head.status, response.length, stream.request);
        if end {
            stream.expected.end()?;
        }
        let head = response.head;
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
        let fields = reader.into_trailers(self.config.role)?;
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ok(());
        };
        if !end {
            return Err(Flaw::Malformed("trailers that do not end the stream"));
        }
        stream.expected.end()?;
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
            self.flood.charge_reset();
            return Ok(());
        }
        let parent_open = self
            .streams
            .get(&parent)
            .is_some_and(|s| s.state.may_receive());
        let has_room = self.admits_pushed_head(&reader);
        let refusal = if !parent_open {
            Reason::Cancel
        } else if !has_room || self.peer_active >= self.config.max_streams {
            Reason::Refused
        } else {
            match reader.into_request(&mut self.hint) {
                Ok(request) if matches!(request.head.method, Method::Get | Method::Head) => {
                    let stream = self.insert(promised, State::ReservedRemote, request.priority);
                    stream.announced = true;
                    stream.request = ResponseTo::of(&request.head.method);
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
        self.reset_for_fault(promised, refusal);
        Ok(())
    }
}

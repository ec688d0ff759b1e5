//! Receives frames and DATA, raises events and the errors that the drafts demand (draft sections
//! 2.2 and 2.4).
//!
//! [`super::heads`] handles frames with header blocks, [`super::control`] all other control frames.

use std::time::Instant;

use bytes::Bytes;
use tandem_http::{Event, Reason, SessionError, StreamId};

use super::Connection;
use super::probe::Step;
use crate::flow::SendWindow;
use crate::frame::{
    ControlHead, Data, Frame, FrameType, Piece, RstStream, SynStream, WIRE_VERSION,
};
use crate::status;
use crate::stream::{Kind, State, Stream};

/// The DATA frame that is arriving.
#[derive(Clone, Copy, Debug)]
pub(super) struct Receiving {
    id: StreamId,
    fin: bool,
    /// True if the payload goes to the user of the stream.
    deliver: bool,
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
                Piece::Unknown(_) => self.flood.charge_idle(),
                Piece::TooLarge(_) => {
                    return Err(self.fail(Reason::FrameSize, "a control frame above the limit"));
                }
            }
            if let Err(error) = self.flood.check() {
                return Err(self.fail(error.reason, error.detail));
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
            Ok(Frame::RstStream(frame)) => {
                self.on_rst_stream(frame);
                Ok(())
            }
            Ok(Frame::Settings(frame)) => self.on_settings(&frame),
            Ok(Frame::Ping(frame)) => {
                self.on_ping(frame);
                Ok(())
            }
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

    /// Resets a stream with another version (UNSUPPORTED_VERSION). Its header block cannot be
    /// inflated, so the compression context is lost and the session ends.
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
            self.flood.charge_idle();
        }
        let id = data.stream;
        let known = self.live(id).is_some();
        let deliver = known && self.admit_data(data);
        if !known {
            self.stray_data(data);
        } else if deliver {
            self.flood.credit_received(data.len as usize);
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

    /// Returns true if a live stream takes this frame; otherwise the caller only skips the payload.
    fn admit_data(&mut self, data: Data) -> bool {
        let id = data.stream;
        let len = data.len as usize;
        let is_full =
            !self.is_v31() && self.held.saturating_add(len) > self.config.mux.receive_budget;
        let least = self.receive_window.least() as usize;
        let Some(stream) = self.live(id) else {
            return false;
        };
        // Streams that hold little have not filled the budget.
        let over_budget = is_full && stream.held.saturating_add(len) > least;
        let in_window = stream.receive.receive(data.len);
        let wrong_length = !stream.takes(data);
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
            // The head that is now complete gives the length.
            let takes = |stream: &mut Stream| stream.takes(data);
            if complete && !end && !self.live(id).is_none_or(takes) {
                self.refuse_length(id, data.fin);
                return false;
            }
            return complete && !end;
        } else {
            return true;
        };
        self.stream_error(id, error);
        false
    }

    /// Drops data of a request that already has its response: the peer gets its credit back and may
    /// end.
    fn discard_data(&mut self, data: Data) {
        self.flood.charge_late_data(data.len as usize);
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

    /// Handles a body with a length other than `content-length`. The draft demands a response with
    /// 400 to a request; a response ends with a stream error.
    pub(super) fn refuse_length(&mut self, id: StreamId, fin: bool) {
        let Some(stream) = self.live(id) else { return };
        if stream.replied || !matches!(stream.kind, Kind::PeerRequest) {
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
        self.adapt_window();
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
    pub(super) fn end_of_body(&mut self, id: StreamId, data: Bytes) {
        let Some(stream) = self.live(id) else { return };
        let state = stream.state.after_fin_received();
        let fields = std::mem::take(&mut stream.trailers);
        if stream.discard {
            return self.set_state(id, state);
        }
        if matches!(stream.kind, Kind::PeerPush(_)) {
            self.set_gathered(id, 0);
            self.flood.charge_push();
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

    /// Handles a header block of a stream that is not there: it has cost the work of inflating it.
    pub(super) fn stray_block(&mut self, id: StreamId) {
        if self.answers_stray(id) {
            self.stream_error(id, status::INVALID_STREAM);
        } else {
            self.flood.charge_reset();
        }
    }

    /// Handles data of a stream that is not there.
    fn stray_data(&mut self, data: Data) {
        if self.answers_stray(data.stream) && self.recent.may_answer(data.stream) {
            self.stream_error(data.stream, status::INVALID_STREAM);
        } else {
            self.flood.charge_late_data(data.len as usize);
        }
    }

    /// Returns true if a frame of an unknown stream is an error. The draft demands the stream error
    /// INVALID_STREAM unless a GOAWAY was sent.
    fn answers_stray(&self, id: StreamId) -> bool {
        let never_open = if self.is_own_id(id) {
            id >= self.next_own
        } else {
            id > self.last_received
        };
        id != 0 && !self.goaway_sent && (never_open || self.recent.knows(id))
    }
}

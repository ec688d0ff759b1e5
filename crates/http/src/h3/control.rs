//! Frames of the control stream (RFC 9114 section 7.2, RFC 9218 section 7.2).

use super::Command;
use super::code::{Code, Fault};
use super::connection::Connection;
use super::frame::{self, Piece};
use super::push::stream_of;
use super::stream::ENCODER;
use super::varint;
use crate::head::urgency;
use crate::{Event, Priority, Reason, Role, StreamId};

const fn id_error(detail: &'static str) -> Fault {
    Fault::new(Code::ID_ERROR, detail)
}

impl Connection {
    pub(super) fn control_piece(&mut self, piece: Piece<'_>) -> Result<(), Fault> {
        match piece {
            Piece::Begin { kind, .. } => self.control_frame_begins(kind),
            // A DATA frame is refused as it begins.
            Piece::Data(_) => Ok(()),
            Piece::Payload(kind, payload) => self.control_frame(kind, &payload),
        }
    }

    fn control_frame_begins(&mut self, kind: u64) -> Result<(), Fault> {
        if !self.peer.known && kind != frame::SETTINGS {
            let detail = "the control stream does not begin with SETTINGS";
            return Err(Fault::new(Code::MISSING_SETTINGS, detail));
        }
        let only_client = matches!(
            kind,
            frame::MAX_PUSH_ID | frame::PRIORITY_REQUEST | frame::PRIORITY_PUSH
        );
        let misplaced = matches!(kind, frame::DATA | frame::HEADERS | frame::PUSH_PROMISE)
            || (kind == frame::SETTINGS && self.peer.known)
            || (only_client && self.is_client());
        if misplaced || frame::is_forbidden(kind) {
            let detail = "a frame that may not be on the control stream";
            return Err(Fault::new(Code::FRAME_UNEXPECTED, detail));
        }
        self.flood.charge_idle();
        Ok(())
    }

    fn control_frame(&mut self, kind: u64, payload: &[u8]) -> Result<(), Fault> {
        match kind {
            frame::SETTINGS => self.settings(payload),
            frame::GOAWAY => self.goaway(frame::number(payload)?),
            frame::MAX_PUSH_ID => self.max_push_id(frame::number(payload)?),
            frame::CANCEL_PUSH => self.cancel_push(frame::number(payload)?),
            frame::PRIORITY_REQUEST | frame::PRIORITY_PUSH => self.priority_update(kind, payload),
            _ => Ok(()),
        }
    }

    fn settings(&mut self, payload: &[u8]) -> Result<(), Fault> {
        self.peer.apply(payload)?;
        // No section of ours waits for insertions: a lost packet would delay its stream.
        let capacity = self.peer.table_capacity;
        self.encoder
            .set_limits(capacity, 0, &mut self.critical[ENCODER].out);
        self.events.push_back(Event::Settings);
        if !self.is_client() {
            self.resumed.extend(self.incoming.keys());
        }
        Ok(())
    }

    /// RFC 9114 section 5.2.
    fn goaway(&mut self, limit: u64) -> Result<(), Fault> {
        if self.is_client() && !limit.is_multiple_of(4) {
            return Err(id_error("GOAWAY with the number of no request"));
        }
        if self.their_goodbye.is_some_and(|before| limit > before) {
            return Err(id_error("GOAWAY takes a refusal back"));
        }
        self.their_goodbye = Some(limit);
        if !self.is_client() {
            let (last, reason) = (0, Reason::NoError);
            self.events.push_back(Event::GoAway { last, reason });
            return Ok(());
        }
        let is_refused = |carrier: Option<u64>| carrier.is_none_or(|carrier| carrier >= limit);
        let requests = self.streams.iter().filter(|(id, _)| is_request(**id));
        let (mut refused, mut last) = (Vec::new(), 0);
        for (id, stream) in requests {
            if is_refused(stream.carrier) && !stream.answered {
                refused.push(*id);
            } else {
                last = last.max(*id);
            }
        }
        let reason = Reason::NoError;
        self.events.push_back(Event::GoAway { last, reason });
        refused.sort_unstable();
        for id in refused {
            self.end_stream(id, Code::REQUEST_CANCELLED, true);
            self.abandon(id, Some(Reason::Refused));
        }
        Ok(())
    }

    fn priority_update(&mut self, kind: u64, mut payload: &[u8]) -> Result<(), Fault> {
        let element = varint::take(&mut payload)
            .ok_or(Fault::new(Code::FRAME_ERROR, "PRIORITY_UPDATE cut short"))?;
        let id = if kind == frame::PRIORITY_PUSH {
            if element >= self.pushes.next {
                return Err(id_error("priority of a push that was not promised"));
            }
            Some(stream_of(element))
        } else {
            if !element.is_multiple_of(4) {
                return Err(id_error("priority of a stream that is no request"));
            }
            // An update for a stream that is not open yet is ignored: the request's field carries
            // the priority too.
            self.request_on(element)
        };
        let Some(priority) = urgency(payload) else {
            return Ok(());
        };
        match id.filter(|id| self.streams.contains_key(id)) {
            Some(id) if self.change_priority(id, priority) => {
                self.events.push_back(Event::Priority { id, priority });
            }
            Some(_) => {}
            None => self.change_departed(kind, element, priority),
        }
        Ok(())
    }

    /// Changes the order of a response that the carrier has taken completely, since the carrier may
    /// not have sent it. The caller ignores commands for streams that have ended.
    fn change_departed(&mut self, kind: u64, element: u64, priority: Priority) {
        let carrier = if kind == frame::PRIORITY_PUSH {
            self.pushes.departed(element)
        } else {
            let is_known = self
                .highest_request
                .is_some_and(|highest| element <= highest);
            is_known.then_some(element)
        };
        if let Some(stream) = carrier {
            self.commands
                .push_back(Command::Prioritise { stream, priority });
        }
    }

    /// Returns the request on a stream of the carrier.
    fn request_on(&self, carrier: u64) -> Option<StreamId> {
        match self.senders.get(&carrier) {
            Some(super::stream::SendingStream::Stream(id)) => Some(*id),
            _ => None,
        }
    }

    pub(super) fn is_client(&self) -> bool {
        self.config.role == Role::Client
    }
}

/// Returns true if a stream was opened by a request. Pushes have even numbers.
pub(super) const fn is_request(id: StreamId) -> bool {
    id % 2 == 1
}

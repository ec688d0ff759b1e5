//! Receives frames and DATA, and returns flow-control credit (RFC 9113 sections 5, 6.1 and 6.9).
//!
//! [`super::blocks`] handles frames with header blocks, [`super::control`] all other frames.

use bytes::Bytes;

use super::connection::Connection;
use super::flow::Urgency;
use super::frame::{self, Head, Kind, exact, protocol};
use super::input::{Input, Piece};
use super::settings;
use crate::{Event, Reason, SessionError, StreamId};

impl Connection {
    /// Takes bytes cut anywhere.
    pub(super) fn receive(&mut self, mut bytes: &[u8]) -> Result<(), SessionError> {
        // The reader lends its buffer to the frames that it returns, so the session replaces it for
        // now.
        let mut input = std::mem::replace(&mut self.input, Input::new(self.config.role));
        let result = loop {
            match input.next(&mut bytes) {
                Ok(Some(piece)) => {
                    if let Err(error) = self.piece(piece).and_then(|()| self.flood.check()) {
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
                self.flood.charge_idle();
                Ok(())
            }
            // DATA comes in other pieces.
            Kind::Data | Kind::Unknown => {
                self.flood.charge_idle();
                Ok(())
            }
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
        let windows = self.stream_windows();
        let Some(stream) = self.streams.get_mut(&id) else {
            if self.is_discarded(id) {
                self.flood.charge_late_data(len);
            } else {
                self.reset_for_fault(id, Reason::StreamClosed);
            }
            return Ok(());
        };
        let fault = if !stream.state.may_receive() {
            Some(Reason::StreamClosed)
        } else if !stream.head_received {
            Some(Reason::Protocol)
        } else {
            let granted = stream.credit.arrive(len, windows).is_some();
            (!granted).then_some(Reason::FlowControl)
        };
        if let Some(reason) = fault {
            self.fail_stream(id, reason);
            return Ok(());
        }
        stream.credit.skip(skip);
        let fits = stream.expected.take(content);
        if fits.is_err() || (end && stream.expected.end().is_err()) {
            self.fail_stream(id, Reason::Protocol);
            return Ok(());
        }
        if content == 0 && !end {
            self.flood.charge_idle();
        }
        self.flood.credit_received(content);
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
            self.charge_end(id);
            self.close_if_done(id);
        }
    }

    /// Returns true if frames of a closed stream are dropped without an answer. They were sent
    /// before our reset arrived (RFC 9113 section 5.1), or our GOAWAY excluded the stream (section
    /// 6.8).
    pub(super) fn is_discarded(&self, id: StreamId) -> bool {
        self.own_resets.contains(&id)
            || self
                .our_goodbye
                .is_some_and(|last| id > last && !self.is_own(id))
    }

    /// Queues a WINDOW_UPDATE for the session if it is worth a write.
    pub(super) fn return_session_credit(&mut self) {
        self.adapt_window();
        if self.started && self.failed.is_none() && self.credit.urgency() == Urgency::Now {
            frame::put_window_update(&mut self.queue, 0, self.credit.take());
        }
    }

    /// Adapts the window of streams to the held bytes, and announces it before more credit of the
    /// session. A wider window waits until the peer has acknowledged the others, so there are few.
    pub(super) fn adapt_window(&mut self) {
        if !self.started || self.failed.is_some() {
            return;
        }
        let may_grow = self.unacknowledged == 0;
        if !self.receive_window.adapt(self.credit.held(), may_grow) {
            return;
        }
        if !self.config.widens_streams {
            let windows = self.stream_windows();
            self.unacknowledged = self.unacknowledged.saturating_add(1);
            settings::put_window(&mut self.queue, windows.announced);
        }
        // Credit that was too little for the wider window may be all of this one.
        let mut ids: Vec<StreamId> = self.streams.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            self.return_stream_credit(id);
        }
    }

    /// Queues a WINDOW_UPDATE for the stream if it is worth a write, or remembers that one can ride
    /// along.
    pub(super) fn return_stream_credit(&mut self, id: StreamId) {
        let windows = self.stream_windows();
        let Some(stream) = self.streams.get_mut(&id).filter(|s| s.state.may_receive()) else {
            return;
        };
        match stream.credit.urgency(windows) {
            Urgency::Wait => {}
            Urgency::Now => {
                frame::put_window_update(&mut self.queue, id, stream.credit.take(windows));
            }
            Urgency::Ride => {
                if !std::mem::replace(&mut stream.riding, true) {
                    self.riders.push(id);
                }
            }
        }
    }

    /// Releases `count` bytes that the user no longer needs.
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

pub(super) fn on_stream(head: Head) -> Result<(), SessionError> {
    if head.id == 0 {
        Err(protocol("a stream's frame on the session"))
    } else {
        Ok(())
    }
}

pub(super) fn on_session(head: Head) -> Result<(), SessionError> {
    if head.id == 0 {
        Ok(())
    } else {
        Err(protocol("a session's frame on a stream"))
    }
}

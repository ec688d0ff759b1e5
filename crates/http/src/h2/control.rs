//! Handles frames without header blocks and content: RST_STREAM, SETTINGS, PING, GOAWAY,
//! WINDOW_UPDATE (RFC 9113 sections 6.4 to 6.9) and PRIORITY_UPDATE (RFC 9218 section 7.1).

use super::connection::Connection;
use super::frame::{self, Head, exact, flag, frame_size, protocol, split_u31};
use super::recv::{on_session, on_stream};
use super::send::PING_MARK;
use crate::head;
use crate::{Event, Reason, Role, SessionError, StreamId};

impl Connection {
    /// RFC 9113 section 6.4.
    pub(super) fn rst_stream(&mut self, head: Head, payload: &[u8]) -> Result<(), SessionError> {
        on_stream(head)?;
        let code = u32::from_be_bytes(exact(payload)?);
        if self.is_idle(head.id) {
            return Err(protocol("RST_STREAM on an idle stream"));
        }
        self.abandon(head.id, Some(frame::reason(code)));
        self.flood.charge_reset();
        Ok(())
    }

    /// RFC 9113 section 6.5.
    pub(super) fn settings(&mut self, head: Head, payload: &[u8]) -> Result<(), SessionError> {
        on_session(head)?;
        self.flood.charge_idle();
        if head.has(flag::ACK) {
            exact::<0>(payload)?;
            self.acknowledged = true;
            self.unacknowledged = self.unacknowledged.saturating_sub(1);
            self.adapt_window();
            return Ok(());
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
        self.flood.count_answer();
        Ok(())
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
    pub(super) fn ping_frame(&mut self, head: Head, payload: &[u8]) -> Result<(), SessionError> {
        on_session(head)?;
        let payload = exact::<8>(payload)?;
        self.flood.charge_idle();
        if !head.has(flag::ACK) {
            frame::put_ping(&mut self.queue, flag::ACK, payload);
            self.flood.count_answer();
            return Ok(());
        }
        let [m0, m1, m2, m3, payload @ ..] = payload;
        if [m0, m1, m2, m3] == PING_MARK {
            self.events.push_back(Event::Pong {
                payload: u32::from_be_bytes(payload),
            });
        }
        Ok(())
    }

    /// RFC 9113 section 6.8.
    pub(super) fn goaway(&mut self, head: Head, payload: &[u8]) -> Result<(), SessionError> {
        on_session(head)?;
        let (last, rest) = split_u31(payload)?;
        let code = rest
            .first_chunk()
            .ok_or_else(|| frame_size("GOAWAY cut short"))?;
        let reason = frame::reason(u32::from_be_bytes(*code));
        let last = self.their_goodbye.map_or(last, |before| before.min(last));
        self.their_goodbye = Some(last);
        self.events.push_back(Event::GoAway { last, reason });
        // A stream with a partial response was processed, regardless of `last`.
        let mut refused: Vec<StreamId> = self
            .streams
            .iter()
            .filter(|(id, stream)| self.is_own(**id) && **id > last && !stream.head_received)
            .map(|(id, _)| *id)
            .collect();
        refused.sort_unstable();
        let why = match reason {
            Reason::Http11Required => reason,
            _ => Reason::Refused,
        };
        for id in refused {
            self.abandon(id, Some(why));
        }
        self.flood.charge_idle();
        Ok(())
    }

    /// RFC 9113 section 6.9.
    pub(super) fn window_update(&mut self, head: Head, payload: &[u8]) -> Result<(), SessionError> {
        let increment = u32::from_be_bytes(exact(payload)?) & 0x7fff_ffff;
        self.flood.charge_idle();
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
            self.fail_stream(head.id, Reason::Protocol);
        } else if stream.window.widen(i64::from(increment)).is_err() {
            self.fail_stream(head.id, Reason::FlowControl);
        } else {
            self.schedule(head.id);
        }
        Ok(())
    }

    /// Handles PRIORITY_UPDATE (RFC 9218 section 7.1). An update for a stream that is not open yet
    /// is ignored: the request's field carries the priority too.
    pub(super) fn priority_update(
        &mut self,
        head: Head,
        payload: &[u8],
    ) -> Result<(), SessionError> {
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
        self.flood.charge_idle();
        Ok(())
    }
}

//! Handles control frames without header blocks: RST_STREAM, SETTINGS, PING, GOAWAY and
//! WINDOW_UPDATE (draft sections 2.6.3 to 2.6.6 and 2.6.8).

use tandem_http::{Event, Reason, SessionError, StreamId};

use super::Connection;
use crate::flow::SendWindow;
use crate::frame::{GoAway, MAX_31, Ping, RstStream, SettingId, Settings, WindowUpdate};
use crate::status;
use crate::stream::{Kind, State};

impl Connection {
    pub(super) fn on_rst_stream(&mut self, frame: RstStream) {
        self.flood.charge_reset();
        let id = frame.stream;
        let reason = status::rst_reason(frame.status);
        if self.abort(id) {
            self.events.push_back(Event::Reset { id, reason });
        }
        // A reset of a request cancels its pushes. An explicit RST_STREAM on each push keeps both
        // ends in agreement.
        let pushes: Vec<_> = self
            .streams
            .iter()
            .filter(|(_, stream)| matches!(stream.kind, Kind::OwnPush { parent } if parent == id))
            .map(|(&push, _)| push)
            .collect();
        if reason == Reason::Cancel {
            for push in pushes {
                self.reset_once(push, status::CANCEL);
            }
        }
    }

    pub(super) fn on_settings(&mut self, frame: &Settings) -> Result<(), SessionError> {
        self.flood.charge_idle();
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

    /// Changes the send window of every live stream, and reports the result.
    pub(super) fn shift_windows<T>(
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

    pub(super) fn on_ping(&mut self, frame: Ping) {
        self.flood.charge_idle();
        if !self.is_own_id(frame.id) {
            // "Sent back as soon as possible, before other data."
            self.flood.count_answer();
            self.ping_queue.push_back(frame.id);
            return;
        }
        let now = self.clock;
        if now.is_some_and(|now| self.probe.pong(now, frame.id)) {
            return;
        }
        // "An answer that was never asked for is ignored."
        if let Some(at) = self.pings.iter().position(|(id, _)| *id == frame.id)
            && let Some((_, payload)) = self.pings.remove(at)
        {
            self.events.push_back(Event::Pong { payload });
        }
    }

    pub(super) fn on_goaway(&mut self, frame: GoAway) {
        self.flood.charge_idle();
        self.goaway_received = true;
        self.events.push_back(Event::GoAway {
            last: frame.last,
            reason: status::goaway_reason(frame.status),
        });
        let unprocessed: Vec<_> = self
            .streams
            .range(frame.last.saturating_add(1)..)
            .filter(|(_, stream)| {
                // A request with a partial response was processed, regardless of `last`.
                let answered = matches!(stream.kind, Kind::OwnRequest(_)) && stream.replied;
                stream.is_own() && stream.state != State::Closed && !answered
            })
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

    pub(super) fn on_window_update(&mut self, frame: WindowUpdate) -> Result<(), SessionError> {
        let WindowUpdate { stream: id, delta } = frame;
        self.flood.charge_idle();
        if id == 0 && !self.is_v31() {
            return Ok(());
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
            return Ok(());
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

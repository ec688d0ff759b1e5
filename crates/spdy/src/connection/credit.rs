//! The credit that the other end gets, and the windows of streams and of the session. Draft section
//! 2.6.8.

use tandem_http::StreamId;

use super::Connection;
use crate::flow::INITIAL_WINDOW;
use crate::frame::{MAX_31, SettingId};

impl Connection {
    /// Returns the window of new streams.
    pub(super) fn stream_window(&self) -> u32 {
        self.receive_window.current().min(MAX_31)
    }

    /// Returns the widest window that a peer may still count on. SPDY's SETTINGS are not
    /// acknowledged.
    pub(super) fn widest_window(&self) -> u32 {
        self.config.mux.stream_window.min(MAX_31)
    }

    /// Adapts the window of streams to the held bytes, and announces it before more credit of the
    /// session. A peer that does not change its open streams keeps them as wide as they are.
    pub(super) fn adapt_window(&mut self) {
        if self.failed || !self.receive_window.adapt(self.held, true) {
            return;
        }
        self.announce(&[(SettingId::InitialWindowSize, self.stream_window())]);
        // Credit that was too little for the wider window may be all of this one.
        let ids: Vec<StreamId> = self.streams.keys().copied().collect();
        for id in ids {
            self.note_credit(id);
        }
    }

    /// Records a stream with enough credit for a WINDOW_UPDATE frame.
    pub(super) fn note_credit(&mut self, id: StreamId) {
        let window = self.stream_window();
        let (riding, urgent) = (self.riding_credit(window), self.urgent_credit(window));
        let Some(owed) = self.live(id).map(|stream| stream.receive.owed()) else {
            return;
        };
        if owed >= riding {
            self.credit.insert(id);
        }
        self.credit_urgent |= owed >= urgent;
    }

    /// Bytes left the user's hands, or never reached them.
    pub(super) fn forget_held(&mut self, count: usize) {
        self.held -= count;
        self.adapt_window();
        if self.held < self.config.mux.receive_budget && self.withheld > 0 {
            let credit = std::mem::take(&mut self.withheld);
            self.owe_session(credit);
        }
    }

    /// Session credit for bytes that arrived. Draft 3.1 section 2.6.8: every byte of DATA counts,
    /// and must come back.
    pub(super) fn owe_session(&mut self, count: u32) {
        if !self.is_v31() {
            return;
        }
        self.session_receive.owe(count);
        let window = self.config.mux.session_window.clamp(INITIAL_WINDOW, MAX_31);
        self.credit_urgent |= self.session_receive.owed() >= self.urgent_credit(window);
    }

    /// Credit that should leave at once. A peer that sends no SETTINGS may not read ours either and
    /// count on 64 KiB.
    pub(super) fn urgent_credit(&self, window: u32) -> u32 {
        let window = if self.peer_sent_settings {
            window
        } else {
            window.min(INITIAL_WINDOW)
        };
        (window / 4).max(1)
    }

    /// Credit that rides on other frames.
    pub(super) fn riding_credit(&self, window: u32) -> u32 {
        (self.urgent_credit(window) / 4).max(1)
    }
}

//! Commands of servers that control more of the wire than [`tandem_http::Mux`] offers: literal
//! responses (draft section 3.2.2), later SETTINGS (section 2.6.4), the progress of a response, and
//! the memory of idle sessions.

use std::collections::VecDeque;

use tandem_http::pushed::EventQueue;
use tandem_http::threshold::DynamicWindow;
use tandem_http::{Fields, StreamId};

use super::Connection;
use crate::frame::{SettingId, Settings};
use crate::http::literal_response_block;
use crate::stream::Kind;

impl Connection {
    /// Responds like [`tandem_http::Mux::respond`], with this text as the `:status` and `:version`.
    /// Streams that the peer did not open are left alone.
    pub fn respond_literally(
        &mut self,
        id: StreamId,
        status: &str,
        version: &str,
        fields: &Fields,
        end: bool,
    ) {
        let limit = self.config.written_list();
        let waiting = self
            .live(id)
            .is_some_and(|stream| !stream.replied && matches!(stream.kind, Kind::PeerRequest));
        if waiting {
            let block =
                literal_response_block(status.as_bytes(), version.as_bytes(), fields, limit);
            self.write_reply(id, block, end);
        }
    }

    /// Sends a SETTINGS frame and follows it. A larger initial window applies to all streams, a
    /// smaller one to new streams: data on the way to the others is still accepted.
    pub fn send_settings(&mut self, settings: &Settings) {
        if self.failed {
            return;
        }
        self.control.push(|dst| settings.encode(dst));
        if let Some(streams) = settings.value(SettingId::MaxConcurrentStreams) {
            self.config.mux.max_streams = streams;
        }
        if let Some(window) = settings.value(SettingId::InitialWindowSize) {
            let more = window.saturating_sub(self.widest_window());
            self.config.mux.stream_window = window;
            self.receive_window = DynamicWindow::new(&self.config.mux);
            for stream in self.streams.values_mut() {
                stream.receive.widen(more);
            }
        }
    }

    /// Frees most of the memory of a session without streams: the compressor, and with
    /// [`crate::Config::keeps_released_text`] the inflater. The next header block in each direction
    /// builds them again, which takes some microseconds. Returns false if the session has streams
    /// or output.
    pub fn release_contexts(&mut self) -> bool {
        let idle = self.streams.is_empty() && self.events.is_empty() && !self.has_output();
        if idle {
            self.encoder.release();
            self.decoder.release();
            self.scratch = Vec::new();
            self.events = EventQueue::default();
            self.finishing = VecDeque::new();
            self.ping_queue = VecDeque::new();
            self.control.release();
        }
        idle
    }

    /// Returns true if [`tandem_http::ByteMux::poll_output`] has given out everything that was
    /// queued for the stream: head, data and end.
    pub fn is_sent(&self, id: StreamId) -> bool {
        self.control.is_empty()
            && self
                .streams
                .get(&id)
                .is_none_or(|stream| stream.queued == 0 && stream.finish.is_none())
    }

    /// Returns true if the user may still send on the stream.
    pub fn may_send(&self, id: StreamId) -> bool {
        self.streams
            .get(&id)
            .is_some_and(|stream| stream.takes_data())
    }
}

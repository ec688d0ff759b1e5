//! The time before the handshake of the carrier is over (0-RTT: RFC 9114 section 10.9, RFC 8470).
//!
//! An attacker can repeat the bytes that a client sends in this time. The core therefore opens
//! streams for requests with a safe method and without content only. Other requests wait. The
//! client remembers no settings of the server, and complies with their default values (RFC 9114
//! section 7.2.4.2).

use super::Direction;
use super::connection::Connection;
use super::stream::SendingStream;
use crate::{Method, RequestHead, StreamId};

/// Returns true if a request without content may be sent before the handshake is over.
pub fn may_be_early(head: &RequestHead) -> bool {
    matches!(head.method, Method::Get | Method::Head) && head.protocol.is_none()
}

impl Connection {
    /// Client: notes that the handshake of the carrier is not over. It ends with
    /// [`Connection::confirm`].
    pub fn begin_early(&mut self) {
        self.early = self.is_client();
    }

    /// Notes that the handshake of the carrier is over. All requests may then be sent.
    pub fn confirm(&mut self) {
        self.early = false;
    }

    /// Makes a request wait until the handshake is over, unless it has a stream of the carrier.
    pub(super) fn hold_request(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.early = false;
        }
    }

    /// Returns the position of the next stream that may be opened, in its queue. The queues hold no
    /// pushes.
    pub(super) fn next_to_open(&mut self, direction: Direction) -> Option<usize> {
        let queue = &mut self.opening[direction as usize];
        while let Some(SendingStream::Stream(id)) = queue.front()
            && !self.streams.contains_key(id)
        {
            queue.pop_front();
        }
        if !self.early {
            return (!queue.is_empty()).then_some(0);
        }
        let may_open = |sender: &SendingStream| match sender {
            SendingStream::Critical(_) => true,
            SendingStream::Stream(id) => self.streams.get(id).is_some_and(|stream| stream.early),
        };
        queue.iter().position(may_open)
    }
}

//! Streams that end: their data and memory, and the fate that is remembered.

use super::{Closed, Read, StreamError, Tunnel};
use crate::pool::Pool;
use crate::stream::{Fate, Stream, StreamId};

impl Tunnel {
    /// Drops the data of a stream in both directions.
    pub(super) fn abort(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.recv.close(&mut self.pool);
        self.abort_sending(id);
        self.acks.now.remove(&id);
        self.acks.later.retain(|(_, of)| *of != id);
        self.update_ready(id);
    }

    /// Drops the data of a stream that was not acknowledged. It counts as arrived.
    pub(super) fn abort_sending(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let buffered = stream.send.buffered();
        let in_flight: Vec<u64> = stream.send.in_flight().collect();
        stream.send.complete();
        // Segments in flight are useless now, and their loss does not indicate congestion.
        for number in in_flight {
            if let Some(transmission) = self.recovery.remove(number)
                && let Some(flow) = self.flow_of(id)
            {
                flow.on_withdrawn(u64::from(transmission.bytes));
            }
        }
        self.pool.release(buffered);
        self.clear_persist(id);
        self.update_ready(id);
    }

    /// Forgets a stream that has ended in both directions.
    pub(super) fn remove_if_over(&mut self, id: u32) {
        let over = self.streams.get(&id).is_some_and(Stream::is_over);
        if !over || self.acks.now.contains(&id) {
            return;
        }
        if let Some(stream) = self.streams.get(&id) {
            let fate = Fate::Complete(stream.recv.next_offset());
            self.remove(id, fate);
        }
    }

    pub(super) fn remove(&mut self, id: u32, fate: Fate) {
        self.abort(id);
        if self.streams.remove(&id).is_none() {
            return;
        }
        self.control.resets.remove(&id);
        self.acks.now.remove(&id);
        let id = StreamId(id);
        if id.opener() != self.side {
            self.peer_streams -= 1;
        }
        self.ended.insert(id, fate);
    }

    /// Ends all streams with the tunnel. Unread data stays, unless this end has closed the
    /// tunnel: the peer may have closed it because everything was acknowledged.
    pub(super) fn keep_unread(&mut self) {
        self.pool = Pool::new(0);
        let is_local = self.closed == Some(Closed::Local);
        for (id, stream) in std::mem::take(&mut self.streams) {
            let was_reset = is_local || stream.resetting.is_some();
            if !was_reset && stream.recv.has_news() {
                let held = stream.recv.held();
                self.pool.reserve(held, held);
                self.unread.insert(id, stream.recv);
            }
        }
    }

    /// Reads the data of a stream that arrived before the end of the tunnel.
    pub(super) fn read_rest(&mut self, id: StreamId, most: usize) -> Result<Read, StreamError> {
        let closed = self.closed.map_or(StreamError::Unknown, StreamError::from);
        let half = self.unread.get_mut(&id.0).ok_or(closed)?;
        if let Some(data) = half.read(most, &mut self.pool) {
            return Ok(Read::Data(data));
        }
        let is_complete = half.is_complete();
        half.close(&mut self.pool);
        self.unread.remove(&id.0);
        is_complete.then_some(Read::End).ok_or(closed)
    }
}

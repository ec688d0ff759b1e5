//! The data that an application gives to the streams.

use bytes::Bytes;

use super::{StreamError, Tunnel};
use crate::send::MOST_WAITING;
use crate::stream::StreamId;

impl Tunnel {
    /// Appends data to a stream. Returns the bytes that were taken from its front: less than all
    /// when the stream's buffer is full, and [`Event::Writable`](super::Event::Writable) follows.
    pub fn write(&mut self, id: StreamId, data: &mut Bytes) -> Result<usize, StreamError> {
        let taken = self.reserve(id, data.len())?;
        let part = data.split_to(taken);
        // The memory of all would otherwise stay in use until the part is acknowledged, and the
        // pool counts the part only.
        let part = match data.is_empty() {
            true => part,
            false => Bytes::copy_from_slice(&part),
        };
        self.append(id, part)
    }

    /// Appends a copy of data to a stream, as [`Self::write`] does. Only the bytes that are taken
    /// are copied.
    pub fn write_copy(&mut self, id: StreamId, data: &[u8]) -> Result<usize, StreamError> {
        let taken = self.reserve(id, data.len())?;
        self.append(id, Bytes::copy_from_slice(&data[..taken]))
    }

    /// Takes memory for up to `most` bytes of a stream. Returns their number.
    fn reserve(&mut self, id: StreamId, most: usize) -> Result<usize, StreamError> {
        let limit = self.config.send_buffer;
        let stream = self.stream(id)?;
        if stream.send.is_finished() {
            return Err(StreamError::Finished);
        }
        let buffered = stream.send.buffered();
        let room = limit.saturating_sub(buffered);
        let room = room.min(MOST_WAITING.saturating_sub(stream.send.waiting()));
        let wanted = room.min(most as u64);
        let guaranteed = self.config.initial_credit.saturating_sub(buffered);
        let taken = self.pool.reserve(wanted, guaranteed);
        let stream = self.stream(id)?;
        stream.wants_room = taken < most as u64;
        if taken < wanted {
            self.starved.insert(id.0);
        }
        Ok(taken as usize)
    }

    /// Appends data for which memory was taken. Returns its length.
    fn append(&mut self, id: StreamId, data: Bytes) -> Result<usize, StreamError> {
        let len = data.len();
        let stream = self.stream(id)?;
        stream.send.write(data);
        if stream.send.is_blocked() {
            self.control.blocked.insert(id.0);
        }
        self.update_ready(id.0);
        Ok(len)
    }
}

//! Output for the peer, chosen as late as possible: pings, control frames in order, ends of bodies,
//! then data of the most urgent stream. Draft sections 2.3.3 and 2.6.8.

use std::collections::VecDeque;

use bytes::{Buf as _, BytesMut};
use tandem_http::{Event, SendBuf, StreamId};

use super::Connection;
use crate::flow::INITIAL_WINDOW;
use crate::frame::{Data, Headers, MAX_31, Ping, WindowUpdate};
use crate::stream::Finish;

/// Payload of our data frames: libmicrospdy drops the connection over a longer one, and an urgent
/// stream waits for no more than this.
const MAX_DATA: usize = 8192;

/// The capacity, in bytes, that an empty queue keeps for the next frames.
const KEPT: usize = 4096;

/// Control frames in the order in which their header blocks were compressed.
#[derive(Debug, Default)]
pub(super) struct ControlQueue {
    bytes: BytesMut,
    lens: VecDeque<u32>,
}

impl ControlQueue {
    /// Appends the one frame that `encode` writes.
    pub(super) fn push(&mut self, encode: impl FnOnce(&mut BytesMut)) {
        let before = self.bytes.len();
        encode(&mut self.bytes);
        self.lens.push_back((self.bytes.len() - before) as u32);
    }

    fn pop_into(&mut self, out: &mut SendBuf) -> bool {
        let Some(len) = self.lens.pop_front() else {
            return false;
        };
        out.put_slice(&self.bytes[..len as usize]);
        self.bytes.advance(len as usize);
        true
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lens.is_empty()
    }

    /// Frees all memory of an empty queue.
    pub(super) fn release(&mut self) {
        if self.is_empty() {
            *self = Self::default();
        }
    }

    /// Frees the memory of a burst once the queue is empty.
    fn shrink(&mut self) {
        if self.bytes.capacity() > KEPT || self.lens.capacity() > KEPT / 16 {
            *self = Self::default();
        }
    }
}

impl Connection {
    pub(super) fn write_output(&mut self, out: &mut SendBuf, limit: usize) {
        let before = out.len();
        while let Some(id) = self.ping_queue.pop_front() {
            out.put_with(|dst| Ping { id }.encode(dst));
        }
        while out.len() < limit && self.control.pop_into(out) {}
        if self.control.is_empty() {
            self.flood.answers_sent();
            self.control.shrink();
            self.write_ends(out, limit);
            self.write_bodies(out, limit);
            // Ends of bodies that broke off.
            while out.len() < limit && self.control.pop_into(out) {}
        }
        if !self.failed && (self.credit_urgent || out.len() > before) {
            self.write_credit(out);
        }
    }

    pub(super) fn has_output(&self) -> bool {
        !self.ping_queue.is_empty()
            || !self.control.is_empty()
            || !self.finishing.is_empty()
            || self.credit_urgent
            || !self.sched.is_empty() && self.session_room() > 0
    }

    pub(super) fn session_room(&self) -> usize {
        if self.is_v31() {
            self.session_send.room()
        } else {
            usize::MAX
        }
    }

    /// Ends of bodies that are sent: "a FIN without data needs no window".
    fn write_ends(&mut self, out: &mut SendBuf, limit: usize) {
        while out.len() < limit
            && let Some(id) = self.finishing.pop_front()
        {
            let Some(stream) = self.live(id).filter(|stream| stream.only_end_left()) else {
                continue;
            };
            let finish = stream.finish.take();
            let state = stream.state.after_fin_sent();
            if let Some(Finish::Reset(reason)) = finish {
                self.reset_stream(id, reason);
                continue;
            }
            if let Some(Finish::Trailers(block)) = finish {
                self.scratch.clear();
                self.encoder.encode(&block, &mut self.scratch);
                // FIN needs a separate frame: spdy-transport does not look for it on HEADERS.
                let frame = Headers {
                    stream: id,
                    fin: false,
                    block: &self.scratch,
                };
                out.put_with(|dst| frame.encode(dst));
            }
            out.put_with(|dst| {
                Data {
                    stream: id,
                    fin: true,
                    len: 0,
                }
                .encode(dst)
            });
            self.set_state(id, state);
        }
    }

    fn write_bodies(&mut self, out: &mut SendBuf, limit: usize) {
        while out.len() < limit {
            let room = self.session_room();
            if room == 0 {
                return;
            }
            let Some(key) = self.sched.pop() else { return };
            let Some(stream) = self.streams.get_mut(&key.id) else {
                continue;
            };
            stream.key = None;
            self.write_data(key.id, room.min(MAX_DATA), out);
        }
    }

    /// Writes one DATA frame of a stream that has data and room in its window.
    fn write_data(&mut self, id: StreamId, room: usize, out: &mut SendBuf) {
        let low = self.config.mux.send_buffer / 2;
        let Some(stream) = self.live(id) else { return };
        let len = stream.queued.min(stream.send.room()).min(room);
        stream.queued -= len;
        stream.attained.add(len);
        stream.send.consume(len);
        let drained = stream.queued == 0;
        let fin = drained && matches!(stream.finish, Some(Finish::Fin));
        out.put_with(|dst| {
            Data {
                stream: id,
                fin,
                len: len as u32,
            }
            .encode(dst)
        });
        let mut left = len;
        while left > 0
            && let Some(front) = stream.queue.front_mut()
        {
            let part = front.split_to(left.min(front.len()));
            if front.is_empty() {
                stream.queue.pop_front();
            }
            left -= part.len();
            out.put_bytes(part);
        }
        let writable = stream.full && stream.queued <= low;
        stream.full &= !writable;
        let state = stream.state.after_fin_sent();
        self.session_send.consume(len);
        self.flood.credit_sent(len);
        if self.session_room() == 0 && !self.sched.is_empty() {
            self.probe.blocked(self.clock);
        }
        if fin {
            return self.set_state(id, state);
        }
        if writable {
            self.events.push_back(Event::Writable { id });
        }
        self.reschedule(id);
        self.finish_if_drained(id);
    }

    /// Credit of the session and of all streams that have some worth telling. That of the session
    /// waits for SETTINGS in the control queue, which the peer has to apply first.
    fn write_credit(&mut self, out: &mut SendBuf) {
        let window = self.config.mux.session_window.clamp(INITIAL_WINDOW, MAX_31);
        let is_worth = self.session_receive.owed() >= self.riding_credit(window);
        let waits = !self.control.is_empty();
        if self.is_v31() && is_worth && !waits {
            let delta = self.session_receive.take_owed();
            out.put_with(|dst| WindowUpdate { stream: 0, delta }.encode(dst));
        }
        for id in std::mem::take(&mut self.credit) {
            let Some(stream) = self.live(id).filter(|stream| stream.state.may_receive()) else {
                continue;
            };
            let delta = stream.receive.take_owed();
            if delta > 0 {
                out.put_with(|dst| WindowUpdate { stream: id, delta }.encode(dst));
            }
        }
        self.credit_urgent &= waits;
    }
}

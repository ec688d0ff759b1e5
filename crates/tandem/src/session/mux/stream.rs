//! A stream of a multiplexed session: the input that waits for its reader, and the tasks that
//! wait for the stream.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use bytes::{Bytes, BytesMut};
use tandem_http::{Fields, Priority, RequestHead, ResponseHead, StreamId};

use super::watch::Arrivals;
use crate::error::Error;
use crate::probe::Stamp;
use crate::session::Interim;
use crate::wakers::WakerCell;

/// The size in bytes up to which adjacent pieces of a body are joined while they wait for their
/// reader. Each piece has a fixed cost of memory, which flow control does not count. A body sent
/// byte by byte would otherwise use hundreds of times its window.
pub(super) const JOINED: usize = 4 << 10;

pub(super) type StreamTable = HashMap<StreamId, Stream, BuildHasherDefault<IdHasher>>;

/// A hasher for stream numbers. They are given out in order, so one multiplication spreads them
/// well.
#[derive(Default)]
pub(super) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 << 8) | u64::from(byte);
        }
    }

    fn write_u32(&mut self, id: u32) {
        self.0 = u64::from(id).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The input of a stream that waits for its reader, and the tasks that wait for the stream.
#[derive(Default)]
pub(super) struct Stream {
    pub(super) inbound: VecDeque<Inbound>,
    /// The task that reads `inbound`.
    pub(super) reader: WakerCell,
    /// The task that waits to send.
    pub(super) writer: WakerCell,
    /// True once no more input will arrive.
    pub(super) complete: bool,
    /// True if the stream was reset or its session has ended. The writer can see this even after
    /// the reader has taken the error.
    pub(super) failed: bool,
    pub(super) interim: Interim,
    pub(super) arrivals: Arrivals,
    /// The priority that the other end asked for, until the response's pump takes it.
    pub(super) priority: Option<Priority>,
    /// The time at which the send queue became full, for the observation points.
    pub(super) full: Stamp,
}

pub(super) enum Inbound {
    Informational(ResponseHead),
    Response(ResponseHead),
    Data(Bytes),
    Trailers(Fields),
    Pushed { id: StreamId, request: RequestHead },
    Failed(Error),
}

impl Stream {
    pub(super) fn put(&mut self, inbound: Inbound) {
        if let (Inbound::Data(data), Some(Inbound::Data(last))) =
            (&inbound, self.inbound.back_mut())
            && last.len() + data.len() <= JOINED
        {
            let mut joined = std::mem::take(last)
                .try_into_mut()
                .unwrap_or_else(|shared| BytesMut::from(&shared[..]));
            joined.extend_from_slice(data);
            *last = joined.freeze();
            return self.reader.wake();
        }
        self.arrivals.put();
        self.inbound.push_back(inbound);
        self.reader.wake();
    }

    pub(super) fn fail(&mut self, error: Error) {
        (self.complete, self.failed) = (true, true);
        self.put(Inbound::Failed(error));
        self.writer.wake();
    }
}

//! Frames that have not arrived whole, and requests that have not begun: limits of their memory and
//! of their time.
//!
//! The gathered bytes of a frame are not yet held by the user, so `receive_budget` does not count
//! them. HTTP/2 gathers one header block at a time, and HTTP/3 one for each stream. Field sections
//! that wait for insertions of QPACK are whole, and count too.
//!
//! New requests and all other frames have separate limits. Many slow requests, each of which can be
//! rejected, thus never end the session through a frame that cannot.

use std::time::{Duration, Instant};

use super::code::{Code, Fault};
use super::connection::Connection;
use super::incoming::Fate;
use super::stream::{Incoming, Source, Wait};

/// The most bytes of new requests that have not arrived whole, and as many of other frames. A
/// hundred requests with large cookies fit, even if a loss delays the end of each.
pub(super) const MAX_GATHERED: usize = 1 << 20;

/// The bytes of a head that count as progress.
const PROGRESS: usize = 64;
/// The longest time for a head with progress, as a multiple of the time without progress.
const MOST_TIMES: u32 = 10;

/// The last progress of a head that has not arrived whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadProgress {
    /// The time of the first look.
    begun: Instant,
    /// The time of the look that found the last progress, and the bytes at that time.
    since: Instant,
    gathered: usize,
}

impl HeadProgress {
    const fn new(now: Instant, gathered: usize) -> Self {
        Self {
            begun: now,
            since: now,
            gathered,
        }
    }

    /// Looks at the head again. Returns true if its time is over.
    fn is_late(&mut self, now: Instant, gathered: usize, limit: Duration) -> bool {
        if gathered >= self.gathered + PROGRESS {
            (self.since, self.gathered) = (now, gathered);
        }
        let passed = |since| now.saturating_duration_since(since);
        passed(self.since) >= limit || passed(self.begun) >= MOST_TIMES * limit
    }
}

impl Incoming {
    /// Returns the bytes that count towards [`MAX_GATHERED`].
    fn unfinished(&self) -> usize {
        let waiting = match &self.wait {
            Some(Wait::Insertions(_, section)) => section.len(),
            _ => 0,
        };
        self.reader.gathered() + waiting
    }
}

impl Connection {
    /// Checks the memory of unfinished frames after input of a stream, which is not in the list of
    /// streams. A stream without a request so far is rejected, and its client may repeat the
    /// request.
    pub(super) fn check_gathered(
        &mut self,
        carrier: u64,
        incoming: &Incoming,
    ) -> Result<Fate, Fault> {
        let own = incoming.unfinished();
        if own == 0 {
            return Ok(Fate::Keep);
        }
        let is_new = |it: &Incoming| it.source == Source::NewRequest;
        let limit = MAX_GATHERED.max(2 * self.max_section());
        let others = self.incoming.values();
        let others = others.filter(|it| is_new(it) == is_new(incoming));
        if own + others.map(Incoming::unfinished).sum::<usize>() <= limit {
            return Ok(Fate::Keep);
        }
        if !is_new(incoming) {
            let detail = "too many unfinished frames";
            return Err(Fault::new(Code::EXCESSIVE_LOAD, detail));
        }
        self.decoder.cancel(carrier);
        self.reject(carrier, Code::REQUEST_REJECTED);
        Ok(Fate::Drop)
    }

    /// Returns true if a stream of a client exists whose request has not arrived whole.
    pub const fn has_arriving(&self) -> bool {
        self.arriving > 0
    }

    /// Lets this time count for no stream without a whole request: nothing could arrive.
    pub fn pause_arriving(&mut self, time: Duration) {
        let seen = self.incoming.values_mut();
        for progress in seen.filter_map(|incoming| incoming.seen.as_mut()) {
            progress.begun += time;
            progress.since += time;
        }
    }

    /// Server: rejects the streams without a whole request whose time is over. It counts from the
    /// first call that sees the stream. If a head brings 64 bytes, it counts from the call that
    /// finds them, and ends at ten times `limit`. Returns true if there are any.
    pub fn expire_arriving(&mut self, now: Instant, limit: Duration) -> bool {
        let is_late = |incoming: &mut Incoming| {
            let gathered = incoming.unfinished();
            let seen = incoming.seen;
            let mut progress = seen.unwrap_or_else(|| HeadProgress::new(now, gathered));
            let is_late = progress.is_late(now, gathered, limit);
            incoming.seen = Some(progress);
            incoming.source == Source::NewRequest && is_late
        };
        let late = self
            .incoming
            .extract_if(.., |_, incoming| is_late(incoming));
        let late: Vec<u64> = late.map(|(carrier, _)| carrier).collect();
        for &carrier in &late {
            self.arriving -= 1;
            self.decoder.cancel(carrier);
            self.reject(carrier, Code::REQUEST_REJECTED);
        }
        !late.is_empty()
    }
}

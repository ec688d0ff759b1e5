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

    /// Server: rejects the streams without a whole request if an earlier call, at least `limit`
    /// before this one, has seen them. Returns true if there are any.
    pub fn expire_arriving(&mut self, now: Instant, limit: Duration) -> bool {
        let is_late = |incoming: &mut Incoming| {
            let since = *incoming.seen.get_or_insert(now);
            incoming.source == Source::NewRequest && now.saturating_duration_since(since) >= limit
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

//! Frames that have not arrived whole, and requests that have not begun: limits of their memory and
//! of their time.
//!
//! The gathered bytes of a frame are not yet held by the user, so `receive_budget` does not count
//! them. HTTP/2 gathers one header block at a time, and HTTP/3 one for each stream.

use std::time::{Duration, Instant};

use super::code::{Code, Fault};
use super::connection::Connection;
use super::incoming::Fate;
use super::stream::{Incoming, Source};

/// The most bytes of frames that have not arrived whole, of all streams together. A hundred
/// requests with large cookies fit, even if a loss delays the end of each.
pub(super) const MAX_GATHERED: usize = 1 << 20;

impl Connection {
    /// Checks the memory of unfinished frames after input of a stream, which is not in the list of
    /// streams. A stream without a request so far is rejected, and its client may repeat the
    /// request.
    pub(super) fn check_gathered(
        &mut self,
        carrier: u64,
        incoming: &Incoming,
    ) -> Result<Fate, Fault> {
        let own = incoming.reader.gathered();
        let limit = MAX_GATHERED.max(2 * self.max_section());
        let others = self.incoming.values().map(|it| it.reader.gathered());
        if own == 0 || own + others.sum::<usize>() <= limit {
            return Ok(Fate::Keep);
        }
        if incoming.source != Source::NewRequest {
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

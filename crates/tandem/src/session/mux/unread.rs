//! Streams that are not read, over a carrier whose connection has one window for all streams.
//!
//! The core of HTTP/3 holds little of a stream that is not read, and the carrier holds the rest.
//! The carrier makes room for several such streams ([`Streams::hold_unread`]). Once they fill all
//! memory of the carrier or of the session, the streams that are read would wait for them:
//!
//! ```text
//!   unread streams ─▶ a check each second ─▶ memory is full ─▶ the stream without a read for
//!                                                            longest is given up, after IDLE
//! ```
//!
//! A check gives up one stream at most, and the next one shows whether this was enough.
//!
//! [`Streams::hold_unread`]: crate::carrier::Streams::hold_unread

use std::collections::HashMap;
use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use tandem_http::{Mux, Reason, StreamId};
use tokio::time::{Instant, Sleep};

use super::driver::Owner;
use super::over_streams::StreamsDriver;
use super::refused::given_up;
use super::stream::Inbound;
use super::{Shared, Stream};
use crate::metrics::METRICS;

/// The time without a read after which a stream may be given up.
///
/// A relay passes data on when the next hop returns credit, in pieces of a megabyte or two. Its
/// stream is then read every 40 s, if the reader behind the next hop takes 50 kB/s.
const IDLE: Duration = Duration::from_secs(120);
/// The polling interval.
const PERIOD: Duration = Duration::from_secs(1);

/// The checks of streams that are not read. There is no timer while all streams are read.
#[derive(Default)]
pub(super) struct Looks {
    timer: Option<Pin<Box<Sleep>>>,
    /// The unread streams with content at the last check.
    seen: HashMap<StreamId, UnreadStream>,
}

/// A stream that is not read.
#[derive(Clone, Copy)]
struct UnreadStream {
    /// The number of inputs that the reader had taken.
    taken: u32,
    /// The time of the first check that saw this number.
    since: Instant,
}

impl Looks {
    /// Begins the checks, since a stream is not read.
    pub(super) fn begin(&mut self) {
        self.timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(PERIOD)));
    }

    /// Notes the streams with the numbers of inputs that their readers have taken.
    fn note(&mut self, streams: impl Iterator<Item = (StreamId, u32)>, now: Instant) {
        let last = std::mem::take(&mut self.seen);
        let seen = |id, taken| {
            let same = last
                .get(&id)
                .filter(|seen: &&UnreadStream| seen.taken == taken);
            same.copied().unwrap_or(UnreadStream { taken, since: now })
        };
        self.seen = streams.map(|(id, taken)| (id, seen(id, taken))).collect();
    }

    /// Returns the stream that was not read for longest, if that time is at least [`IDLE`].
    fn idle(&self, now: Instant) -> Option<StreamId> {
        let all = self.seen.iter().map(|(id, seen)| (seen.since, *id));
        let (since, id) = all.min()?;
        (now.saturating_duration_since(since) >= IDLE).then_some(id)
    }
}

impl<O: Owner> StreamsDriver<O> {
    /// Checks the streams that are not read, once a second while there are any.
    pub(super) fn poll_unread(&mut self, cx: &mut Context<'_>) {
        while let Some(timer) = &mut self.looks.timer {
            if timer.as_mut().poll(cx).is_pending() {
                return;
            }
            let now = Instant::now();
            let unread = self.core.borrow().unread();
            match unread.is_empty() {
                true => self.looks.timer = None,
                false => timer.as_mut().reset(now + PERIOD),
            }
            let ids = unread.iter().map(|(_, id)| *id);
            self.shared.note_unread(ids.clone(), &mut self.looks, now);
            // The carrier counts unread streams with content only. Without memory, a session reads
            // no stream at all.
            let holding = self.looks.seen.len();
            let is_full = self.carrier.hold_unread(holding) || self.shared.starves(ids);
            let Some(id) = self.looks.idle(now).filter(|_| is_full) else {
                continue;
            };
            self.core.borrow_mut().reset(id, Reason::EnhanceYourCalm);
            self.shared.give_up(id);
            self.execute();
            self.carrier.hold_unread(holding - 1);
            // The reset leaves in another turn.
            cx.waker().wake_by_ref();
        }
    }
}

impl Shared {
    /// Returns true if one of the unread streams has no input that waits for its reader. The
    /// session then reads no stream, since the unread data of others uses its memory.
    fn starves(&self, mut ids: impl Iterator<Item = StreamId>) -> bool {
        let streams = self.streams.borrow();
        let waits = |stream: &Stream| stream.inbound.is_empty() && !stream.complete;
        ids.any(|id| streams.get(&id).is_some_and(waits))
    }

    fn note_unread(&self, ids: impl Iterator<Item = StreamId>, looks: &mut Looks, now: Instant) {
        let streams = self.streams.borrow();
        let unread = |id| {
            let stream = streams.get(&id).filter(|stream| stream.holds_content())?;
            Some((id, stream.arrivals.taken()))
        };
        looks.note(ids.filter_map(unread), now);
    }

    /// Ends the exchange of a stream that was given up, and drops its unread content.
    fn give_up(&self, id: StreamId) {
        METRICS.exchanges_given_up.add(1);
        // A peer decides how often this happens, so the default level is without it.
        tracing::debug!("an exchange ends: {}", given_up());
        self.watch.forget(id);
        let mut streams = self.streams.borrow_mut();
        let dropped = streams.get_mut(&id).map_or(0, |stream| {
            let dropped = stream.drop_content();
            stream.fail(given_up());
            dropped
        });
        drop(streams);
        self.core.borrow_mut().release(id, dropped);
        self.waiting.wake_all();
    }
}

impl Stream {
    /// Returns true if content waits for its reader.
    fn holds_content(&self) -> bool {
        let is_content = |inbound: &Inbound| matches!(inbound, Inbound::Data(_));
        !self.failed && self.inbound.iter().any(is_content)
    }

    /// Drops the content that waits for its reader. Returns its bytes.
    fn drop_content(&mut self) -> usize {
        let mut dropped = 0;
        self.inbound.retain(|inbound| match inbound {
            Inbound::Data(data) => {
                dropped += data.len();
                false
            }
            _ => true,
        });
        dropped
    }
}

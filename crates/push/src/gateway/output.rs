//! The settings, the decisions and the counts of the gateway's half.

use std::time::Instant;

use tandem_http::RequestHead;

use super::audience::Audience;
use super::table::{FetchId, ResponseId};

/// The settings of a session.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// The users of the session.
    pub audience: Audience,
    /// True if pushes are limited to the page's own origin.
    pub own_origin_only: bool,
    /// The largest number of hosts that a page may name. Nothing more is pushed for a page with
    /// more.
    pub hosts: usize,
    /// True if the caches of the session's browsers were empty when it began. The first page of a
    /// site without a sign of an earlier visit then counts as that of a first visit.
    pub caches_are_new: bool,
    /// The share of pages for which nothing is pushed, 0 to 1.
    pub hold_out: f64,
    /// The largest number of pushes that are fetched at a time.
    pub fetches: usize,
    /// The largest number of pushes that are fetched at a time before the first heads have arrived.
    /// Each head adds two.
    pub first_fetches: usize,
    /// The largest number of pushes without a report. No push is promised beyond it.
    pub unreported: usize,
    /// The largest number of resources that are promised for a page because strings of its scripts
    /// name them. If it is 0, scripts are not read for strings.
    pub named_by_scripts: usize,
    /// A random number for the choice of pages that are held out.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            audience: Audience::Shared,
            own_origin_only: false,
            hosts: usize::MAX,
            caches_are_new: false,
            hold_out: 0.0,
            fetches: 32,
            first_fetches: 32,
            unreported: 4096,
            named_by_scripts: 0,
            seed: 0,
        }
    }
}

/// The stream that carries promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PromiseStream {
    /// The stream of a response.
    Response(ResponseId),
    /// The stream of the session's companion.
    Companion,
}

/// A decision of the gateway's half.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// A promise waits for this stream: [`take_promise`](super::Gateway::take_promise) returns it.
    /// Promises wait in the core, so that a stream that is not read needs no other queue.
    Promise(PromiseStream),
    /// The request of a push is to be made.
    Fetch {
        /// The push.
        fetch: FetchId,
        /// The request.
        request: RequestHead,
    },
    /// The client reports that a request waits for a push: its stream and its request to the origin
    /// get the priority of a request.
    Raise {
        /// The push.
        fetch: FetchId,
    },
    /// The rest of a push may be passed on now: see
    /// [`holds_head`](super::Gateway::holds_head) and [`holds_body`](super::Gateway::holds_body).
    Body {
        /// The push.
        fetch: FetchId,
    },
    /// The request of a push is not to be made or ends here, and its stream is to be reset. A push
    /// is cancelled at most once, and only after [`take_promise`](super::Gateway::take_promise) has
    /// returned its promise. A promise that is given up before that is never returned.
    Cancel {
        /// The push.
        fetch: FetchId,
    },
}

/// The events of a response that matter after its head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// True if promises may wait for its stream.
    pub promises: bool,
    /// True if the bytes of its body are to be passed to the machine.
    pub body: bool,
}

/// A moment on two clocks: the monotonic clock of events, and the clock of dates.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// The time on the clock of events.
    pub instant: Instant,
    /// The time in seconds since 1970, UTC.
    pub unix_time: u64,
}

impl Clock {
    /// Returns the seconds since 1970 at `now`.
    pub(super) fn unix_time(&self, now: Instant) -> u64 {
        self.unix_time + now.saturating_duration_since(self.instant).as_secs()
    }
}

/// The order of an event and the promises that it caused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The event may be passed on.
    Now,
    /// The event mentions resources with promises on the companion. Those promises go first.
    AfterPromises,
}

/// A response that must not be passed on as a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// The response depends on the user, must not be stored, or exceeds the budget of its page.
    #[error("the response must not be pushed")]
    Forbidden,
    /// The body is longer than the budget of its page, and no request waits for it.
    #[error("the pushed body is too long")]
    TooLong,
}

/// The number of events of each kind since the last call of
/// [`take_counts`](super::Gateway::take_counts).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Promises that were made.
    pub promised: u64,
    /// Pushes that were complete when they were requested.
    pub used: u64,
    /// Pushes that were requested on their way.
    pub late: u64,
    /// Pushes that were not requested in time.
    pub wasted: u64,
    /// Pushes that the client refused.
    pub cancelled: u64,
    /// Pushes whose heads answered a conditional request.
    pub validated: u64,
    /// Promises whose bodies were never sent, because the browser showed no need of them.
    pub withheld: u64,
    /// Requests that crossed the promise of a push, and were answered with its response.
    pub repeated: u64,
    /// Bytes of bodies that origins sent for pushes that served no request.
    pub wasted_bytes: u64,
    /// The part of these bytes that waited for no claim, because nearly all visits transferred the
    /// resources.
    pub likely_wasted_bytes: u64,
    /// Bytes of the bodies of pushes that served a request, up to the client's report.
    pub used_bytes: u64,
    /// Requests to origins for pushes that served no request.
    pub extra_requests: u64,
    /// Pages whose resources were promised without bodies.
    pub pages_returning: u64,
    /// Pages with pushes.
    pub pages_pushed: u64,
    /// Pages without pushes, for comparison.
    pub pages_held_out: u64,
    /// Documents that were promised because they may follow a page. All other counts of pushes
    /// leave them out.
    pub next_promised: u64,
    /// Documents of this kind that the browser asked for.
    pub next_used: u64,
    /// Bytes of the bodies of such documents that the browser did not ask for.
    pub next_wasted_bytes: u64,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn clock_adds_elapsed_time_to_the_date() {
        let instant = Instant::now();
        let clock = Clock {
            instant,
            unix_time: 1000,
        };
        assert_eq!(clock.unix_time(instant + Duration::from_secs(7)), 1007);
        assert_eq!(clock.unix_time(instant), 1000);
    }
}

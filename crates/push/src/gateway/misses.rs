//! The pushes that cost their origin a request for nothing.
//!
//! A push misses if its response may not be sent, or if the browser requests the resource in spite
//! of it. The second case happens to responses that no cache may keep: they serve only a request
//! that waits, and whose fields fit. Such a request may cross the promise, or carry a cookie that
//! the push did not have. It also happens to a push that the client drops while its page loads, for
//! example because the page has changed the state of its site (POST). The predictor counts the
//! misses of all users ([`crate::useless_pushes`]), and the next pages are promised without these
//! resources.
//!
//! A push that a request has taken is no miss, and later requests for its resource do not change
//! that. Only the client can compare a waiting request with the response. If the client refuses the
//! response, it sends the request at once. A request with other fields therefore counts as a miss
//! for `JOINED_PERIOD` after the head or the join.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tandem_http::RequestHead;

use super::predictor::Predictor;
use crate::wire::RequestHashes;

/// The largest number of pushes that are watched, and of outcomes that wait for the predictor.
const MAX_PUSHES: usize = 128;

/// The length of the longest page URL that is kept with a push.
const MAX_PAGE_URL: usize = 1 << 10;

/// The time after its head in which a request for the resource of a push counts as a miss. It
/// covers the wait of a held head, and a round trip on the slowest path.
const WATCH_PERIOD: Duration = Duration::from_secs(10);

/// The same for a push for which a request waits already.
const JOINED_PERIOD: Duration = Duration::from_secs(2);

/// The time for which a request may be ahead of the report that the client has dropped a push. The
/// client gathers reports.
const REPORT_DELAY: Duration = Duration::from_secs(2);

/// The largest number of requests for whose pushes reports are expected.
const MAX_REQUESTS: usize = 64;

/// The outcome of a push.
struct PushOutcome {
    page: Arc<str>,
    /// The [`url_hash`](crate::wire::url_hash) of its URL.
    url: u32,
    is_useless: bool,
}

/// A push whose response serves a waiting request only, or that the client has dropped.
struct Watched {
    page: Arc<str>,
    /// The hash of its URL.
    url: u32,
    /// The hashes of its request, if another request waits for it. An equal one gets the response.
    joined: Option<RequestHashes>,
    /// True if the client has dropped the push. A request of another page then tells nothing.
    is_dropped: bool,
    until: Instant,
}

/// The pushes that may miss, and the outcomes that the predictor has not been told.
#[derive(Default)]
pub(super) struct Misses {
    watched: VecDeque<Watched>,
    /// The hashes of the URLs that the browser has requested although a push of them was under way,
    /// and the times of the requests.
    requested: VecDeque<(u32, Instant)>,
    outcomes: Vec<PushOutcome>,
}

impl Misses {
    /// Watches for requests of a resource, whose push has brought a response for one request only.
    /// `joined` has the hashes of the push's request, if another request waits for it.
    pub(super) fn watch(
        &mut self,
        now: Instant,
        page: Arc<str>,
        url: u32,
        joined: Option<RequestHashes>,
    ) {
        let period = match joined {
            Some(_) => JOINED_PERIOD,
            None => WATCH_PERIOD,
        };
        self.add(Watched {
            page,
            url,
            joined,
            is_dropped: false,
            until: now + period,
        });
    }

    /// Handles the report that the client has dropped a push. A request for its resource costs the
    /// origin a second one, whether the request has come already or is to come.
    pub(super) fn note_dropped(&mut self, now: Instant, page: Arc<str>, url: u32) {
        let is_recent = |at| now.saturating_duration_since(at) < REPORT_DELAY;
        let is_asked = |(asked, at): &(u32, Instant)| *asked == url && is_recent(*at);
        if self.requested.iter().any(is_asked) {
            return self.note(page, url, true);
        }
        self.add(Watched {
            page,
            url,
            joined: None,
            is_dropped: true,
            until: now + WATCH_PERIOD,
        });
    }

    fn add(&mut self, watched: Watched) {
        if watched.page.len() > MAX_PAGE_URL {
            return;
        }
        if self.watched.len() >= MAX_PUSHES {
            self.watched.pop_front();
        }
        self.watched.push_back(watched);
    }

    /// Notes that the browser itself requests a resource whose push is under way.
    pub(super) fn note_double(&mut self, now: Instant, url: u32) {
        if self.requested.len() >= MAX_REQUESTS {
            self.requested.pop_front();
        }
        self.requested.push_back((url, now));
    }

    /// Handles the request for another page.
    pub(super) fn begin_page(&mut self) {
        self.watched.retain(|it| !it.is_dropped);
        self.requested.clear();
    }

    pub(super) fn note(&mut self, page: Arc<str>, url: u32, is_useless: bool) {
        if self.outcomes.len() < MAX_PUSHES && page.len() <= MAX_PAGE_URL {
            self.outcomes.push(PushOutcome {
                page,
                url,
                is_useless,
            });
        }
    }

    /// Notes that the browser itself requests a resource.
    pub(super) fn note_request(&mut self, now: Instant, url: u32, request: &RequestHead) {
        self.watched.retain(|it| now < it.until);
        let Some(at) = self.watched.iter().position(|it| it.url == url) else {
            return;
        };
        if let Some(watched) = self.watched.remove(at)
            && watched.joined != Some(RequestHashes::of(&request.fields))
        {
            self.note(watched.page, url, true);
        }
    }

    /// Notes that a request waits for a push, whose own request has these hashes.
    pub(super) fn join(&mut self, now: Instant, url: u32, asked: RequestHashes) {
        for watched in self.watched.iter_mut().filter(|it| it.url == url) {
            watched.joined = Some(asked);
            watched.until = now + JOINED_PERIOD;
        }
    }

    /// Forgets a push that serves a request.
    pub(super) fn forget(&mut self, url: u32) {
        self.watched.retain(|it| it.url != url);
    }

    /// Tells the predictor the outcomes since the last call.
    pub(super) fn teach(&mut self, predictor: &mut dyn Predictor) {
        for outcome in self.outcomes.drain(..) {
            predictor.note_push(&outcome.page, outcome.url, outcome.is_useless);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misses_are_bounded() {
        let (mut misses, now) = (Misses::default(), Instant::now());
        for (length, expected) in [(MAX_PAGE_URL + 1, 0), (MAX_PAGE_URL, MAX_PUSHES)] {
            let page: Arc<str> = "x".repeat(length).into();
            for url in 0..2 * MAX_PUSHES as u32 {
                misses.watch(now, Arc::clone(&page), url, None);
                misses.note(Arc::clone(&page), url, true);
                misses.note_double(now, url);
                assert!(misses.requested.len() <= MAX_REQUESTS);
            }
            let found = [misses.watched.len(), misses.outcomes.len()];
            assert_eq!(found, [expected; 2], "{length}");
        }
    }
}

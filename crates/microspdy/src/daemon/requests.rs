//! The requests of a session: those with a body on its way, those without a response, and those
//! that ended without one.
//!
//! A request that ends without a response has no result callback that tells the program so. The
//! library destroys it: at once, if the program has a callback for it, and else with its session.
//! Up to then a program that lacks the callback may use the texts and headers.

use std::collections::BTreeMap;

use tandem_http::StreamId;

use super::RequestEntry;
use crate::handles::{self, Handle};

/// Ended requests that a session keeps for a program, at most.
const MAX_KEPT: usize = super::session::MAX_STREAMS as usize;

/// A request that has not ended.
#[derive(Debug)]
struct Exchange {
    request: Handle,
    /// The body is not complete.
    receives: bool,
    /// A response that closes the stream is queued.
    answered: bool,
}

/// The requests of a session.
#[derive(Debug, Default)]
pub(super) struct Requests {
    exchanges: BTreeMap<StreamId, Exchange>,
    /// Requests that have ended, of a program without a callback for that.
    kept: Vec<Handle>,
}

impl Requests {
    /// Notes a new request.
    pub(super) fn begin(&mut self, stream: StreamId, request: Handle, receives: bool) {
        self.exchanges.insert(
            stream,
            Exchange {
                request,
                receives,
                answered: false,
            },
        );
    }

    /// Finds the request of a part of a body; `end` is true for the last part.
    pub(super) fn receive(&mut self, stream: StreamId, end: bool) -> Option<Handle> {
        let exchange = self.exchanges.get_mut(&stream)?;
        let request = exchange.receives.then_some(exchange.request);
        if end {
            exchange.receives = false;
            if exchange.answered {
                self.exchanges.remove(&stream);
            }
        }
        request
    }

    /// Notes that a response which closes the stream is queued.
    pub(super) fn answer(&mut self, stream: StreamId) {
        if let Some(exchange) = self.exchanges.get_mut(&stream) {
            exchange.answered = true;
            if !exchange.receives {
                self.exchanges.remove(&stream);
            }
        }
    }

    /// Forgets a request. Returns its handle if no response that closes the stream is queued.
    pub(super) fn end(&mut self, stream: StreamId) -> Option<Handle> {
        let exchange = self.exchanges.remove(&stream)?;
        (!exchange.answered).then_some(exchange.request)
    }

    /// Keeps an ended request until the end of the session. Returns false if there are too many.
    pub(super) fn keep(&mut self, request: Handle) -> bool {
        if self.kept.len() >= MAX_KEPT {
            self.kept
                .retain(|&request| handles::get::<RequestEntry>(request).is_some());
        }
        self.kept.push(request);
        self.kept.len() <= MAX_KEPT
    }

    /// Takes all requests without a response that closes their stream. `None` stands for the stream
    /// of a request that ended before.
    pub(super) fn end_all(&mut self) -> Vec<(Option<StreamId>, Handle)> {
        let kept = std::mem::take(&mut self.kept).into_iter();
        let exchanges = std::mem::take(&mut self.exchanges).into_iter();
        let open = exchanges
            .filter(|(_, exchange)| !exchange.answered)
            .map(|(stream, exchange)| (Some(stream), exchange.request));
        open.chain(kept.map(|request| (None, request))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handle(number: usize) -> Handle {
        Handle::from_pointer(std::ptr::without_provenance(number)).expect("not NULL")
    }

    #[test]
    fn only_unanswered_requests_end() {
        let mut requests = Requests::default();
        for (stream, receives) in [(1, true), (3, false), (5, true), (7, false)] {
            requests.begin(stream, handle(stream as usize), receives);
        }
        requests.answer(1);
        requests.answer(3);
        assert_eq!(requests.end(1), None);
        assert_eq!(requests.end(3), None);
        assert_eq!(requests.end(5), Some(handle(5)));
        assert_eq!(requests.end(5), None);
        assert_eq!(requests.end_all(), [(Some(7), handle(7))]);
        assert_eq!(requests.end_all(), []);
    }

    #[test]
    fn body_goes_to_the_program_after_the_response() {
        let mut requests = Requests::default();
        requests.begin(1, handle(1), true);
        requests.answer(1);
        assert_eq!(requests.receive(1, false), Some(handle(1)));
        assert_eq!(requests.receive(1, true), Some(handle(1)));
        assert!(requests.exchanges.is_empty());
        requests.begin(3, handle(3), true);
        assert_eq!(requests.receive(3, true), Some(handle(3)));
        assert_eq!(requests.receive(3, true), None);
        assert_eq!(requests.end_all(), [(Some(3), handle(3))]);
    }

    #[test]
    fn destroyed_requests_do_not_count_as_kept() {
        let mut requests = Requests::default();
        for number in 1..=2 * MAX_KEPT {
            // No handle of this test is in the table.
            assert!(requests.keep(handle(number << 8)));
        }
        assert!(requests.kept.len() <= MAX_KEPT);
    }
}

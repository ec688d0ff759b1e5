//! Opens a new session's congestion window before it is needed. A client that has just started
//! requests filler bytes in rounds. The gateway sends them until a request for an origin arrives.
//!
//! TCP begins with ten packets a round trip and doubles them (RFC 6928, RFC 5681 section 3.1). The
//! first page of a session over a long path therefore waits for avoidable round trips. BBR keeps
//! its estimate of the path while the session is idle. Other congestion controls restart after a
//! pause (RFC 5681 section 4.1), so the gateway sends no filler over them.
//!
//! A client also sends filler bytes, in the body of such a request. The gateway reads them before
//! it ends its response, so that the client can measure the round.
//!
//! A client compares two ways by filler bytes as well. The gateway sends those at any time.

use std::cell::Cell;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tandem_http::{RequestHead, ResponseHead};
use tandem_push::wire::is_reserved;

use crate::error::{Error, Kind, Side};
use crate::exchange::{Body, Chunk, Exchange, Part, Parts, Reply};
use crate::metrics::METRICS;
use crate::middle::max_forwards;
use crate::stage::Stage;
use crate::warm_up::{FILLER, MOST, MOST_MEASURED, asked, measured};

/// The warm-up stage of one session.
pub struct WarmUp {
    session: Rc<WarmUpSession>,
    /// The stage that exchanges go on to.
    next: Rc<dyn Stage>,
}

struct WarmUpSession {
    /// The number of filler bytes that the session may still send.
    left: Cell<u64>,
    /// The same for comparisons of ways.
    measured_left: Cell<u64>,
    /// The number of filler bytes that the session may still receive.
    received_left: Cell<u64>,
}

impl WarmUp {
    /// Creates the stage. `lasts` is true if the session's path remembers its rate while it is
    /// idle.
    pub fn new(lasts: bool, next: Rc<dyn Stage>) -> Self {
        Self {
            session: Rc::new(WarmUpSession {
                left: Cell::new(if lasts { MOST } else { 0 }),
                measured_left: Cell::new(MOST_MEASURED),
                received_left: Cell::new(MOST),
            }),
            next,
        }
    }
}

impl WarmUpSession {
    /// Counts filler bytes of the client, and fails if they are too many.
    fn receive(&self, bytes: u64) -> Result<(), Error> {
        let left = self.received_left.get().checked_sub(bytes);
        let too_many = || {
            Error::new(
                Kind::Protocol,
                Side::Client,
                "it sends too much filler data",
            )
        };
        self.received_left.set(left.ok_or_else(too_many)?);
        METRICS.warm_up_bytes_received.add(bytes);
        Ok(())
    }
}

impl Stage for WarmUp {
    fn call(&self, exchange: Exchange) -> Reply {
        let measured = measured(&exchange.request);
        let Some(left) = measured.or_else(|| asked(&exchange.request)) else {
            if is_for_origin(&exchange.request) {
                self.session.left.set(0);
            }
            return self.next.call(exchange);
        };
        Reply::new(Filling {
            head_sent: false,
            body: exchange.body,
            left,
            measures: measured.is_some(),
            session: Rc::clone(&self.session),
        })
    }
}

/// Returns true if a request is for an origin. A client that starts sends probes of opened hosts
/// and its companion while it warms the session up.
fn is_for_origin(request: &RequestHead) -> bool {
    !is_reserved(&request.authority) && !max_forwards::ends_here(request)
}

/// The response to one round.
struct Filling {
    head_sent: bool,
    /// The filler bytes of the client.
    body: Body,
    left: u64,
    /// True if the bytes compare two ways.
    measures: bool,
    session: Rc<WarmUpSession>,
}

impl Parts for Filling {
    fn below(&self) -> Option<&Reply> {
        None
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        if !self.head_sent {
            self.head_sent = true;
            return Poll::Ready(Some(Ok(Part::Head(ResponseHead::new(200)))));
        }
        while let Some(chunk) = ready!(self.body.poll_chunk(cx)) {
            if let Chunk::Data(data) = chunk? {
                self.session.receive(data.len() as u64)?;
            }
        }
        self.body = Body::empty();
        let (session_left, counter) = match self.measures {
            true => (&self.session.measured_left, &METRICS.measured_bytes),
            false => (&self.session.left, &METRICS.warm_up_bytes),
        };
        let count = self.left.min(session_left.get()).min(FILLER.len() as u64);
        if count == 0 {
            return Poll::Ready(None);
        }
        self.left -= count;
        session_left.set(session_left.get() - count);
        counter.add(count);
        Poll::Ready(Some(Ok(Part::Data(Bytes::from_static(
            &FILLER[..count as usize],
        )))))
    }
}

#[cfg(test)]
mod tests {
    use tandem_http::Scheme;
    use tandem_push::wire::{NextPush, companion_request};

    use super::*;
    use crate::exchange::{Chunks, Peer};
    use crate::middle::entrusted::probe;
    use crate::warm_up::{measuring, request};

    fn exchange(bytes: u64) -> Exchange {
        Exchange {
            peer: Peer {
                session: 1,
                ..Peer::none()
            },
            ..Exchange::internal(request(bytes))
        }
    }

    fn stage(lasts: bool) -> WarmUp {
        WarmUp::new(
            lasts,
            Rc::new(|_: Exchange| Reply::ready(ResponseHead::new(204), Bytes::new())),
        )
    }

    fn page() -> Exchange {
        let request = RequestHead::get(Scheme::Http, "site.example", "/");
        Exchange {
            request: request.into(),
            ..exchange(0)
        }
    }

    /// A body of one piece with this number of bytes.
    struct Whole(u64);

    impl Chunks for Whole {
        fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>> {
            let bytes = vec![0; std::mem::take(&mut self.0) as usize];
            Poll::Ready((!bytes.is_empty()).then(|| Ok(Chunk::Data(bytes.into()))))
        }
    }

    /// Returns the status and the bytes of the first `parts` parts of a reply.
    fn taken(reply: &mut Reply, parts: usize) -> (u16, u64) {
        let (mut status, mut bytes) = (0, 0);
        for _ in 0..parts {
            match reply.poll_part(&mut Context::from_waker(std::task::Waker::noop())) {
                Poll::Ready(Some(Ok(Part::Head(head)))) => status = head.status,
                Poll::Ready(Some(Ok(Part::Data(data)))) => bytes += data.len() as u64,
                Poll::Ready(None) => break,
                other => panic!("{other:?}"),
            }
        }
        (status, bytes)
    }

    #[test]
    fn a_session_is_warmed_within_bounds() {
        let session = stage(true);
        assert_eq!(
            taken(&mut session.call(exchange(100_000)), 99),
            (200, 100_000)
        );
        assert_eq!(
            taken(&mut session.call(exchange(u64::MAX)), 9999),
            (200, MOST - 100_000)
        );
        assert_eq!(taken(&mut session.call(exchange(1)), 9), (200, 0));
        for path in ["/", "/-1", "/99999999999999999999999", "/1?2"] {
            let mut odd = exchange(0);
            odd.request_mut().path = path.into();
            assert_eq!(taken(&mut stage(true).call(odd), 99), (200, 0), "{path}");
        }
    }

    #[test]
    fn filler_of_a_client_is_read_within_bounds() {
        let session = stage(true);
        let sending = |bytes: u64| Exchange {
            body: Body::new(Whole(bytes), Some(bytes)),
            ..exchange(1)
        };
        assert_eq!(taken(&mut session.call(sending(MOST)), 9), (200, 1));
        let mut reply = session.call(sending(1));
        assert_eq!(taken(&mut reply, 1), (200, 0));
        let failed = reply.poll_part(&mut Context::from_waker(std::task::Waker::noop()));
        assert!(matches!(failed, Poll::Ready(Some(Err(_)))), "{failed:?}");
    }

    #[test]
    fn warm_up_ends_with_a_request() {
        let session = stage(true);
        let mut warming = session.call(exchange(1 << 20));
        assert_eq!(taken(&mut warming, 3), (200, 2 * FILLER.len() as u64));
        assert_eq!(taken(&mut session.call(page()), 9), (204, 0));
        assert_eq!(taken(&mut warming, 9), (0, 0));
        assert_eq!(
            taken(&mut session.call(exchange(1 << 20)), 9),
            (200, 0),
            "nor is it begun again"
        );
    }

    #[test]
    fn warm_up_lasts_until_a_request_for_an_origin() {
        let session = stage(true);
        for request in [probe("a.test"), companion_request(true, NextPush::Off)] {
            let own = Exchange {
                request: request.into(),
                ..exchange(0)
            };
            assert_eq!(taken(&mut session.call(own), 9), (204, 0));
        }
        let bytes = 1 << 20;
        let filler = taken(&mut session.call(exchange(bytes)), 9999);
        assert_eq!(filler, (200, bytes));
    }

    #[test]
    fn ways_are_compared_at_any_time_within_bounds() {
        let session = stage(false);
        assert_eq!(taken(&mut session.call(page()), 9), (204, 0));
        let asked = |bytes| Exchange {
            request: measuring(bytes).into(),
            ..exchange(0)
        };
        assert_eq!(taken(&mut session.call(asked(70_000)), 9), (200, 70_000));
        let rest = taken(&mut session.call(asked(u64::MAX)), 9999);
        assert_eq!(rest, (200, MOST_MEASURED - 70_000));
        assert_eq!(taken(&mut session.call(asked(1)), 9), (200, 0));
    }

    #[test]
    fn a_path_that_forgets_is_not_warmed() {
        assert_eq!(taken(&mut stage(false).call(exchange(1000)), 9), (200, 0));
        assert_eq!(taken(&mut stage(false).call(page()), 9), (204, 0));
    }
}

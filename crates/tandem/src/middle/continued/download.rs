//! A download, and the requests for its rest.
//!
//! ```text
//!  the present reply ─┬─ breaks off ──▶ request ─┬─ head of the rest ─▶ the present reply
//!                     └─ proposes a move ─▶──────┼─ no rest, a move ──▶ the present one stays
//!                                                └─ no rest, a break ─▶ the error of the break
//! ```
//!
//! A resource may have changed since the head of its response, and its origin may refuse ranges.
//! During a move, the present reply is therefore read on until the head of the rest has come. The
//! bytes that come twice are dropped, and their number is bounded. If the present reply breaks off
//! before that, the request of the move serves as the request after the break. All requests of a
//! download share one [`Ledger`], so that a path that passes nothing but heads ends it.

use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tandem_http::cache::rest::Rest;
use tokio::time::Instant;

use super::rest_request::{Answer, RestRequest};
use super::{Asked, is_break};
use crate::error::{Error, Kind, Retry, Side};
use crate::exchange::{Part, Reply};
use crate::metrics::{DOWNLOADS, METRICS};

/// The waits before the requests for the rest, until one of them has brought [`PROGRESS`]. A
/// gateway that restarts, or a machine that changes its network, has 15.5 s in all.
pub(super) const PAUSES: [Duration; 6] = [
    Duration::ZERO,
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
];

/// The bytes that must arrive after a request for the rest, so that the waits begin again with the
/// first one. The present reply may bring these bytes.
pub(super) const PROGRESS: u64 = 64 << 10;

/// The time after the first request of a series. If the next series begins within this time, it
/// leaves out the first of the [`PAUSES`], which is zero. A gateway may end downloads because of
/// its load.
const CALM: Duration = Duration::from_secs(5);

/// The responses with the head of the rest and no byte of it that end a download, without
/// [`PROGRESS`] between them. An origin may announce more bytes than it has.
const MOST_EMPTY: usize = 2;

/// The bytes that the present reply brings at most between the request for the rest and its head.
/// They come twice. A throttled path brings up to 1 MB in a second, and the head of the rest may
/// take that long on a path by satellite.
pub(super) const MAX_REPEATED: u64 = 1 << 20;

/// A response that can be continued.
pub(super) struct Download {
    asked: Asked,
    rest: Rest,
    /// The reply that brings the bytes, unless it has broken off.
    present: Option<Reply>,
    /// True if the present reply brings the rest of another one.
    is_rest: bool,
    /// The number of bytes of the present reply to drop, which the reader has.
    skipped: u64,
    /// The number of bytes that the reader has.
    arrived: u64,
    ledger: Ledger,
    /// The request for the rest, planned or under way.
    request: Option<RestRequest>,
    /// True if the present reply stays despite its proposal.
    stays: bool,
}

/// The requests for the rest since the last [`PROGRESS`].
#[derive(Default)]
struct Ledger {
    /// The time of the first request.
    began: Option<Instant>,
    /// The number of bytes that the reader had then.
    arrived: u64,
    requests: usize,
    /// The number of responses that brought the head of the rest and no new byte.
    empty: usize,
    /// The number of bytes that the reader had when the head of the last response came.
    head_at: Option<u64>,
}

impl Ledger {
    fn has_progress(&self, arrived: u64) -> bool {
        arrived - self.arrived >= PROGRESS
    }

    /// Notes a request. Returns the wait before it, or `None` if too many have brought too little.
    fn next(&mut self, arrived: u64) -> Option<Duration> {
        if self.began.is_none() || self.has_progress(arrived) {
            let is_soon = self.began.is_some_and(|it| it.elapsed() < CALM);
            *self = Self {
                began: Some(Instant::now()),
                arrived,
                requests: usize::from(is_soon),
                ..Self::default()
            };
        }
        if self.head_at.take() == Some(arrived) {
            self.empty += 1;
        }
        let pause = PAUSES.get(self.requests).filter(|_| !self.is_empty())?;
        self.requests += 1;
        Some(*pause)
    }

    /// Returns true if the responses bring heads and no bytes.
    const fn is_empty(&self) -> bool {
        self.empty >= MOST_EMPTY
    }
}

/// The meaning of a part or of the end of a reply.
enum Taken {
    /// The reader gets this part.
    Part(Part),
    /// The reader gets nothing yet.
    Nothing,
    /// The body is complete.
    End,
}

impl Download {
    /// Begins a download whose head has come.
    pub(super) fn new(reply: Reply, asked: Asked, rest: Rest) -> Self {
        reply.permit_move();
        Self {
            asked,
            rest,
            present: Some(reply),
            is_rest: false,
            skipped: 0,
            arrived: 0,
            ledger: Ledger::default(),
            request: None,
            stays: false,
        }
    }

    /// Returns the reply that brings the bytes.
    pub(super) const fn reply(&self) -> Option<&Reply> {
        self.present.as_ref()
    }

    /// Polls for the next part. The download is over after its end or an error.
    pub(super) fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        loop {
            // Bytes that have arrived count before a time limit that has passed.
            let taken = match self.poll_present(cx) {
                Poll::Ready(taken) => taken,
                Poll::Pending => ready!(self.poll_request(cx)),
            };
            match taken {
                Ok(Taken::Part(part)) => return Poll::Ready(Some(Ok(part))),
                Ok(Taken::Nothing) => {}
                Ok(Taken::End) => return Poll::Ready(None),
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
    }

    /// Polls the present reply, and follows its proposal once it has no part.
    fn poll_present(&mut self, cx: &mut Context<'_>) -> Poll<Result<Taken, Error>> {
        let Some(present) = &mut self.present else {
            return Poll::Pending;
        };
        if self.stays && self.ledger.has_progress(self.arrived) {
            self.stays = false;
            present.permit_move();
        }
        if let Poll::Ready(part) = present.poll_part(cx) {
            return Poll::Ready(self.take(part));
        }
        if !present.proposes_move() {
            return Poll::Pending;
        }
        // The last byte has come, but not the end of the stream.
        if self.rest.left() == 0 {
            return Poll::Ready(Ok(Taken::End));
        }
        if self.stays || self.request.is_some() {
            return Poll::Pending;
        }
        let detail = "the session delivers nothing, or too little";
        let error = Error::new(Kind::Timeout, Side::Peer, detail);
        Poll::Ready(self.plan(RestRequest::new(error)))
    }

    /// Takes a part or the end of the present reply. Fails if the body ends before its last byte.
    fn take(&mut self, part: Option<Result<Part, Error>>) -> Result<Taken, Error> {
        match part {
            Some(Ok(Part::Data(data))) => self.on_data(data),
            Some(Ok(Part::Head(_))) => {
                let detail = "the response has another head within its body";
                Err(Error::new(Kind::Protocol, Side::Peer, detail))
            }
            // These fields may describe the rest alone, as a digest does.
            Some(Ok(Part::Hints(_) | Part::Trailers(_))) if self.is_rest => Ok(Taken::Nothing),
            Some(Ok(part)) => Ok(Taken::Part(part)),
            None if self.rest.left() == 0 => Ok(Taken::End),
            None => self.on_break(truncated()),
            // The last byte has come, but not the end of the stream.
            Some(Err(error)) if is_break(&error) && self.rest.left() == 0 => Ok(Taken::End),
            Some(Err(error)) if is_break(&error) => self.on_break(error),
            Some(Err(error)) => Err(error),
        }
    }

    /// Counts data, and removes the bytes that the reader has already.
    fn on_data(&mut self, mut data: Bytes) -> Result<Taken, Error> {
        let skipped = usize::try_from(self.skipped).unwrap_or(usize::MAX);
        let skipped = skipped.min(data.len());
        data.advance(skipped);
        self.skipped -= skipped as u64;
        let new = data.len() as u64;
        if !self.rest.received(new) {
            let detail = "the response is longer than its head says";
            return Err(Error::new(Kind::Protocol, Side::Peer, detail));
        }
        self.arrived += new;
        let repeated = self.request.as_ref().map_or(0, |it| it.since(&self.rest));
        if self.rest.left() == 0 {
            self.request = None;
        } else if repeated > MAX_REPEATED {
            self.stay();
        }
        Ok(match data.is_empty() {
            true => Taken::Nothing,
            false => Taken::Part(Part::Data(data)),
        })
    }

    /// Requests the rest, unless a move has done so.
    fn on_break(&mut self, error: Error) -> Result<Taken, Error> {
        (self.present, self.skipped) = (None, 0);
        match &mut self.request {
            Some(request) => request.break_off(error),
            None => return self.plan(RestRequest::new(error)),
        }
        Ok(Taken::Nothing)
    }

    /// Plans the next attempt at a request for the rest.
    fn plan(&mut self, mut request: RestRequest) -> Result<Taken, Error> {
        let Some(pause) = self.ledger.next(self.arrived) else {
            return self.give_up("failed", request);
        };
        request.wait(pause);
        self.request = Some(request);
        Ok(Taken::Nothing)
    }

    /// Polls the request for the rest.
    fn poll_request(&mut self, cx: &mut Context<'_>) -> Poll<Result<Taken, Error>> {
        let Some(mut request) = self.request.take() else {
            return Poll::Pending;
        };
        let Poll::Ready(answer) = request.poll(cx, &self.asked, &self.rest) else {
            self.request = Some(request);
            return Poll::Pending;
        };
        Poll::Ready(match answer {
            Answer::Rest(reply, skipped) => self.go_on(reply, skipped, &request),
            Answer::Pushed(part) => {
                self.request = Some(request);
                Ok(Taken::Part(part))
            }
            Answer::Failed => self.plan(request),
            Answer::Refused => self.give_up("refused", request),
            Answer::Over => self.give_up("failed", request),
        })
    }

    /// Reads the reply that brings the rest from now on.
    fn go_on(&mut self, reply: Reply, skipped: u64, request: &RestRequest) -> Result<Taken, Error> {
        reply.permit_move();
        self.present = Some(reply);
        (self.is_rest, self.stays, self.skipped) = (true, false, skipped);
        self.ledger.head_at = Some(self.arrived);
        let saved = self.arrived.saturating_sub(skipped);
        DOWNLOADS.add("continued");
        METRICS.download_bytes_saved.add(saved);
        tracing::debug!(error = %request.error, saved, "a download that broke off goes on");
        Ok(Taken::Nothing)
    }

    /// Notes that the rest does not come. After a break, the download ends.
    fn give_up(&mut self, result: &'static str, request: RestRequest) -> Result<Taken, Error> {
        let error = request.error;
        if self.present.is_some() && !self.ledger.is_empty() {
            tracing::debug!(%error, result, "a download stays with its session");
            self.stay();
            return Ok(Taken::Nothing);
        }
        DOWNLOADS.add(result);
        tracing::debug!(%error, result, "a download that broke off does not go on");
        Err(error)
    }

    /// Leaves the download with its present reply. Another move needs [`PROGRESS`] before.
    fn stay(&mut self) {
        (self.request, self.stays) = (None, true);
    }
}

/// Returns the error of a body that ended before its last byte.
fn truncated() -> Error {
    let detail = "the response's body ended too early";
    Error::new(Kind::Truncated, Side::Peer, detail).with_retry(Retry::IfIdempotent)
}

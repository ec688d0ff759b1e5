//! The attempts at one exchange with an origin, and the time limit that they share.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Origin, PoolKey};
use crate::error::{Error, Kind, Retry, Side};
use crate::exchange::{Exchange, Sink};
use crate::metrics::METRICS;
use crate::moment;

/// The largest number of attempts at an exchange: the origin may have just closed a kept
/// connection.
const TRIES: usize = 3;

/// The largest number of attempts that the origin may have processed. A client should not repeat a
/// failed repetition (RFC 9110 section 9.2.2).
const UNSURE_TRIES: usize = 2;

/// The time after which an attempt that found no free stream counts as a wait. A session that takes
/// no new requests fails at once.
const WAITED: Duration = Duration::from_secs(1);

/// The time until the response begins, over all attempts. It counts from the first attempt that may
/// use a connection, so the wait for the first one does not count.
pub(super) struct Patience {
    limit: Duration,
    end: Cell<Option<Instant>>,
}

impl Patience {
    const fn new(limit: Duration) -> Self {
        Self {
            limit,
            end: Cell::new(None),
        }
    }

    /// Starts the time, unless it runs.
    pub(super) fn begin(&self) {
        let end = self.end.get().unwrap_or_else(|| moment::now() + self.limit);
        self.end.set(Some(end));
    }

    /// Returns whether the time is over.
    fn is_over(&self) -> bool {
        self.end() <= Instant::now()
    }

    /// Returns the end of the time, which runs from now at the latest.
    fn end(&self) -> Instant {
        self.begin();
        self.end.get().unwrap_or_else(Instant::now)
    }
}

/// Returns the error of an origin that was silent for the whole time.
pub(super) fn no_answer() -> Error {
    Error::new(Kind::Timeout, Side::Origin, "no answer in time")
}

impl Origin {
    /// Runs an exchange, and repeats it where that is safe and in time.
    pub(super) fn try_often(
        self: &Rc<Self>,
        exchange: &mut Exchange,
        key: &PoolKey,
        sink: &mut Sink,
    ) -> impl Future<Output = Result<(), Error>> {
        async move {
            let patience = Patience::new(self.protocols.http1.response_timeout);
            let mut begun = moment::now();
            let mut tried = self.attempt(exchange, key, false, &patience, sink).await;
            let (mut failures, mut unsure) = (0, 0);
            while let Err(error) = &tried {
                let is_repeatable =
                    self.changes_to_http1(key, error) || is_repeatable(error, exchange);
                // An origin with few streams answers its requests in turn. A gateway on the way to
                // it has had its own attempts.
                let is_full = (error.kind, error.side) == (Kind::Full, Side::Origin);
                let has_waited = is_full && begun.elapsed() >= WAITED;
                failures += usize::from(!has_waited);
                unsure += usize::from(error.retry == Retry::IfIdempotent);
                if failures == TRIES || unsure == UNSURE_TRIES || patience.is_over() {
                    break;
                }
                if sink.is_used() || !is_repeatable {
                    break;
                }
                if !exchange.body.rewind() {
                    tried = tried.map_err(explain_lost_body);
                    break;
                }
                METRICS.exchanges_retried.add(u64::from(!has_waited));
                begun = Instant::now();
                tried = Box::pin(self.repeat(exchange, key, &patience, sink)).await;
            }
            tried
        }
    }

    /// Repeats an exchange on a new connection: after a kept one has failed, only that shows the
    /// state of the origin. The response must begin in time, except the response to an upload.
    async fn repeat(
        self: &Rc<Self>,
        exchange: &mut Exchange,
        key: &PoolKey,
        patience: &Patience,
        sink: &mut Sink,
    ) -> Result<(), Error> {
        let (has_body, is_used) = (!exchange.body.is_empty(), sink.usage());
        let mut attempt = std::pin::pin!(self.attempt(exchange, key, true, patience, sink));
        match tokio::time::timeout_at(patience.end(), &mut attempt).await {
            Ok(done) => done,
            Err(_) if has_body || is_used() => attempt.await,
            Err(_) => Err(no_answer()),
        }
    }
}

/// Names the reason for which a refused request is not repeated, and the remedy.
fn explain_lost_body(error: Error) -> Error {
    if error.kind != Kind::Http11Required {
        return error;
    }
    let detail = "the origin requires HTTP/1.1, and too much of the upload had been sent to repeat \
                  it: send the request again, which then uses HTTP/1.1";
    Error {
        detail: detail.into(),
        ..error
    }
}

/// Returns whether an exchange may be repeated after this error.
fn is_repeatable(error: &Error, exchange: &Exchange) -> bool {
    match error.retry {
        // The proxy on the way was silent for all its time, and would be again.
        _ if (error.kind, error.side) == (Kind::Timeout, Side::Via) => false,
        // An upload has no limit of its own, and would wait for another silence.
        _ if error.kind == Kind::Timeout && !exchange.body.is_empty() => false,
        Retry::Safe => matches!(error.kind, Kind::Reset | Kind::Busy | Kind::Full),
        Retry::IfIdempotent => exchange.request.method.is_idempotent(),
        Retry::Never => false,
    }
}

#[cfg(test)]
mod tests;

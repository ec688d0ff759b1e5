//! Counts exchanges, their outcomes and their times.

use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::time::Instant;

use crate::error::{Error, Side};
use crate::exchange::{Exchange, Part, Parts, Reply};
use crate::metrics::{EXCHANGE_TIME, FAILURES, METRICS, RESPONSES};
use crate::moment;
use crate::probe::Stamp;
use crate::probe::points::{EXCHANGE_HEAD, EXCHANGE_WHOLE};
use crate::stage::Stage;

/// The stage that counts exchanges, and measures their times.
pub struct ExchangeMetrics {
    /// The stage that exchanges go on to.
    pub next: Rc<dyn Stage>,
}

impl Stage for ExchangeMetrics {
    fn call(&self, exchange: Exchange) -> Reply {
        METRICS.exchanges.add(1);
        METRICS.exchanges_open.add(1);
        let (asked, begun) = (EXCHANGE_HEAD.start(), EXCHANGE_WHOLE.start());
        let is_tunnel = exchange.request.is_connect();
        Reply::new(MeasuredReply {
            timed_from: (!is_tunnel).then(moment::now),
            reply: self.next.call(exchange),
            asked,
            begun,
            has_outcome: false,
        })
    }
}

struct MeasuredReply {
    reply: Reply,
    /// The time when the request arrived, or `None` for a tunnel, for which a duration has no
    /// meaning.
    timed_from: Option<Instant>,
    /// The beginning of the wait for the head, for its observation point.
    asked: Stamp,
    /// The beginning of the whole exchange, for its observation point.
    begun: Stamp,
    /// True once the response has begun or failed.
    has_outcome: bool,
}

impl Parts for MeasuredReply {
    fn below(&self) -> Option<&Reply> {
        Some(&self.reply)
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        let part = self.reply.poll_part(cx);
        self.has_outcome |= matches!(&part, Poll::Ready(Some(Ok(Part::Head(_)) | Err(_)) | None));
        match &part {
            Poll::Ready(Some(Ok(Part::Head(head)))) => {
                RESPONSES.add(class(head.status));
                EXCHANGE_HEAD.stop(self.asked.take(), 0);
            }
            Poll::Ready(None) => {
                if let Some(from) = self.timed_from.take() {
                    EXCHANGE_TIME.observe(moment::now() - from);
                }
                EXCHANGE_WHOLE.stop(self.begun.take(), 0);
            }
            Poll::Ready(Some(Ok(Part::Data(data)))) => {
                METRICS.body_bytes_down.add(data.len() as u64)
            }
            Poll::Ready(Some(Err(error))) => {
                METRICS.exchanges_failed.add(1);
                FAILURES.add(side(error.side));
                tracing::debug!(%error, "exchange failed");
            }
            _ => {}
        }
        part
    }
}

impl Drop for MeasuredReply {
    fn drop(&mut self) {
        METRICS.exchanges_open.sub(1);
        if !self.has_outcome {
            METRICS.exchanges_aborted.add(1);
        }
    }
}

const fn class(status: u16) -> &'static str {
    match status {
        100..200 => "1xx",
        200..300 => "2xx",
        300..400 => "3xx",
        400..500 => "4xx",
        _ => "5xx",
    }
}

const fn side(side: Side) -> &'static str {
    match side {
        Side::Client => "client",
        Side::Peer => "gateway",
        Side::Via => "via",
        Side::Origin => "origin",
        Side::Local => "proxy",
    }
}

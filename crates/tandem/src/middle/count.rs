//! Counts exchanges and what becomes of them.

use std::rc::Rc;
use std::task::{Context, Poll};

use crate::error::Error;
use crate::exchange::{Exchange, Part, Parts, Reply};
use crate::metrics::METRICS;
use crate::probe::Stamp;
use crate::probe::points::{EXCHANGE_HEAD, EXCHANGE_WHOLE};
use crate::stage::Stage;

/// The stage.
pub struct Count {
    /// Write method, host and path of each request to the log.
    pub log_urls: bool,
    /// Where exchanges go on.
    pub next: Rc<dyn Stage>,
}

impl Stage for Count {
    fn call(&self, exchange: Exchange) -> Reply {
        METRICS.exchanges.add(1);
        METRICS.exchanges_open.add(1);
        if self.log_urls {
            let request = &exchange.request;
            tracing::info!(method = %request.method, authority = request.authority, path = request.path, "exchange");
        }
        let (asked, begun) = (EXCHANGE_HEAD.start(), EXCHANGE_WHOLE.start());
        Reply::new(Counted {
            reply: self.next.call(exchange),
            asked,
            begun,
        })
    }
}

struct Counted {
    reply: Reply,
    /// Since when the head is waited for, and the end.
    asked: Stamp,
    begun: Stamp,
}

impl Parts for Counted {
    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        let part = self.reply.poll_part(cx);
        match &part {
            Poll::Ready(Some(Ok(Part::Head(_)))) => EXCHANGE_HEAD.stop(self.asked.take(), 0),
            Poll::Ready(None) => EXCHANGE_WHOLE.stop(self.begun.take(), 0),
            Poll::Ready(Some(Ok(Part::Data(data)))) => {
                METRICS.body_bytes_down.add(data.len() as u64)
            }
            Poll::Ready(Some(Err(error))) => {
                METRICS.exchanges_failed.add(1);
                tracing::debug!(%error, "exchange failed");
            }
            _ => {}
        }
        part
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        METRICS.exchanges_open.sub(1);
    }
}

//! The access log (`--log-requests`): one line for each request after the end of its response. It
//! holds the method, the status, the bytes of the body, the time, and whether the response was
//! pushed. URLs are private and appear with `--log-urls` only.

use std::rc::Rc;
use std::task::{Context, Poll};

use tandem_http::{Method, RequestHead};
use tokio::time::Instant;

use crate::error::Error;
use crate::exchange::{Exchange, Part, Parts, Reply, Supply};
use crate::middle::record::target;
use crate::stage::Stage;

/// The stage that writes the access log.
pub struct AccessLog {
    /// True if the lines hold URLs.
    pub urls: bool,
    /// The stage that gets the exchanges.
    pub next: Rc<dyn Stage>,
}

impl Stage for AccessLog {
    fn call(&self, exchange: Exchange) -> Reply {
        let line = LogLine::new(&exchange.request, self.urls, false);
        Reply::new(Logged {
            urls: self.urls,
            line,
            reply: self.next.call(exchange),
        })
    }
}

/// The line of one request.
struct LogLine {
    method: Method,
    url: Option<String>,
    begun: Instant,
    status: Option<u16>,
    bytes: u64,
    pushed: bool,
    outcome: &'static str,
}

impl LogLine {
    fn new(request: &RequestHead, urls: bool, pushed: bool) -> Self {
        Self {
            method: request.method.clone(),
            url: urls.then(|| target(request)),
            begun: Instant::now(),
            status: None,
            bytes: 0,
            pushed,
            outcome: "cancelled",
        }
    }
}

impl Drop for LogLine {
    fn drop(&mut self) {
        let ms = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        tracing::info!(
            method = %self.method,
            status = self.status,
            bytes = self.bytes,
            ms,
            pushed = self.pushed,
            outcome = self.outcome,
            url = self.url,
            "request"
        );
    }
}

struct Logged {
    urls: bool,
    line: LogLine,
    reply: Reply,
}

impl Parts for Logged {
    fn below(&self) -> Option<&Reply> {
        Some(&self.reply)
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        let part = self.reply.poll_part(cx);
        let line = &mut self.line;
        Poll::Ready(match std::task::ready!(part) {
            // A push at the gateway answers no request of the client yet, so it gets a separate
            // line.
            Some(Ok(Part::Pushed(mut pushed))) => {
                let logged = Self {
                    urls: self.urls,
                    line: LogLine::new(&pushed.request, self.urls, true),
                    reply: pushed.reply,
                };
                pushed.reply = Reply::new(logged);
                Some(Ok(Part::Pushed(pushed)))
            }
            part => {
                match &part {
                    None => line.outcome = "complete",
                    Some(Err(error)) => {
                        line.outcome = "failed";
                        line.status = line.status.or_else(|| Some(error.status()));
                    }
                    Some(Ok(Part::Head(head))) => {
                        line.status = Some(head.status);
                        line.pushed |= self.reply.supply() != Supply::Requested;
                    }
                    Some(Ok(Part::Data(data))) => line.bytes += data.len() as u64,
                    Some(Ok(_)) => {}
                }
                part
            }
        })
    }
}

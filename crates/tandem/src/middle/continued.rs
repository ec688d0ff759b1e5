//! The client's stage that continues a download whose session or path was lost.
//!
//! ```text
//!  request ─▶ Continue ─▶ decompress ─▶ gateways ─▶ a session
//!  200, the first bytes, an error ◀────────────────────┘
//!     └─▶ Range, If-Range ─▶ decompress ─▶ gateways ─▶ another session
//!  the other bytes ◀── 206 ───────────────────────────────┘
//! ```
//!
//! [`Rest`] decides which responses can be continued, and by which other ones: those of the same
//! representation, by a strong validator. The browser gets one response, whose bytes are those of
//! the representation, or the error that broke it off. Nothing is stored.
//!
//! The stage lies before `decompress`, so that it counts the bytes that the validator is about. The
//! other request passes the same stages as the first one, with its isolation key and its place in
//! all queues. A stage behind may end a reply that can be continued, and need not wait for a path
//! that may come back ([`Reply::permit_break`]). After a reload, the other request goes by the next
//! configuration ([`after_reload`]).

pub mod after_reload;

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tandem_http::cache::rest::Rest;
use tandem_http::{Method, RequestHead, ResponseHead};
use tandem_push::wire::is_reserved;
use tokio::time::{Instant, Sleep};

use crate::error::{Error, Kind, Retry, Side};
use crate::exchange::{Body, Exchange, Isolation, Part, Parts, Peer, Reply};
use crate::failure::{is_outage, refusal};
use crate::metrics::{DOWNLOADS, METRICS};
use crate::priority::SharedPriority;
use crate::stage::Stage;
use after_reload::AfterReload;

/// The waits before the requests for the rest, until one of them has brought [`PROGRESS`]. A
/// gateway that restarts, or a machine that changes its network, has 15.5 s in all.
const PAUSES: [Duration; 6] = [
    Duration::ZERO,
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
];

/// The bytes that a request for the rest must bring, so that the first wait is the next one again.
const PROGRESS: u64 = 64 << 10;

/// The time from a break within which the request after the next one waits as well. A gateway may
/// end downloads because of its load.
const CALM: Duration = Duration::from_secs(5);

/// The responses in a row that bring the head of the rest and no byte of it. An origin may announce
/// more bytes than it has.
const MOST_EMPTY: usize = 2;

/// The time from the break to the head of the rest.
const LIMIT: Duration = Duration::from_secs(30);

/// The time between two looks for a reload while the head of the rest has not come.
const LOOK: Duration = Duration::from_secs(1);

/// The stage of a lane.
pub struct Continue {
    /// The stage that exchanges go on to.
    pub next: Rc<dyn Stage>,
    /// The end of the stage's configuration.
    pub after_reload: AfterReload,
}

impl Stage for Continue {
    fn call(&self, exchange: Exchange) -> Reply {
        let request = &exchange.request;
        let is_download = request.method == Method::Get
            && request.protocol.is_none()
            && exchange.body.is_empty()
            && !is_reserved(&request.authority);
        if !is_download {
            return self.next.call(exchange);
        }
        let asked = Asked {
            request: Arc::clone(request),
            isolation: exchange.isolation.clone(),
            peer: exchange.peer,
            priority: exchange.priority.clone(),
            next: Rc::clone(&self.next),
            after_reload: self.after_reload.clone(),
        };
        Reply::new(Continued {
            reply: Some(self.next.call(exchange)),
            state: State::Awaited(asked),
        })
    }
}

/// The exchange of a reply, and the stage that it went on to.
struct Asked {
    request: Arc<RequestHead>,
    isolation: Isolation,
    peer: Peer,
    priority: SharedPriority,
    next: Rc<dyn Stage>,
    after_reload: AfterReload,
}

impl Asked {
    /// Requests the rest of the response.
    fn ask(&self, rest: &Rest) -> Reply {
        let exchange = Exchange {
            request: Arc::new(rest.request(&self.request)),
            body: Body::empty(),
            isolation: self.isolation.clone(),
            peer: self.peer,
            priority: self.priority.clone(),
        };
        self.after_reload.ask(exchange, &self.next)
    }
}

/// The reply to a request that reads.
struct Continued {
    /// The reply that brings the parts, unless the next request waits.
    reply: Option<Reply>,
    state: State,
}

enum State {
    /// The head has not come.
    Awaited(Asked),
    /// The body could not be continued.
    Unsuitable,
    /// The body can be continued.
    Download(Box<Download>),
    /// The reply has ended.
    Over,
}

/// A response that can be continued.
struct Download {
    asked: Asked,
    rest: Rest,
    /// The number of bytes that the reader has.
    arrived: u64,
    /// The last break, and the attempts since.
    outage: Option<Outage>,
}

/// A break of a download.
struct Outage {
    /// The reason of the break.
    error: Error,
    began: Instant,
    /// The number of bytes that the reader had at the break, and at the last request.
    arrived: u64,
    asked_at: u64,
    /// The number of responses since then that brought no new byte.
    empty: usize,
    /// The number of requests for the rest so far.
    requests: usize,
    /// The limit, until the head of the rest has come.
    limit: Option<Pin<Box<Sleep>>>,
    /// The wait before the next request.
    pause: Option<Pin<Box<Sleep>>>,
    /// The number of bytes to drop, which the reader has.
    skipped: u64,
    /// The next look for a reload, if the last request left before one.
    look: Option<Pin<Box<Sleep>>>,
}

/// Returns whether an error means that the session, the path or the origin was lost. A refusal, a
/// fault of the browser and one of this program do not.
const fn is_break(error: &Error) -> bool {
    let side = matches!(error.side, Side::Peer | Side::Via | Side::Origin);
    let kind = matches!(
        error.kind,
        Kind::ConnectionRefused | Kind::Timeout | Kind::Unreachable | Kind::Truncated | Kind::Reset
    );
    side && kind
}

/// Returns whether an error of the request for the rest means that another attempt may succeed. A
/// gateway that ends refuses sessions and requests until the next one listens.
fn is_passing(error: &Error) -> bool {
    let is_peer = matches!(error.side, Side::Peer | Side::Via);
    is_break(error) || (is_peer && matches!(error.kind, Kind::Busy | Kind::Full))
}

/// The meaning of a part or of the end of a reply.
enum Taken {
    /// The reader gets this part.
    Part(Part),
    /// The head of the rest has come.
    Head,
    /// The part is not for the reader.
    Dropped,
    /// The reply has broken off, and another request follows.
    Broke,
    /// The body is complete.
    End,
}

impl Download {
    /// Takes a part or the end of the reply. Fails if the body ends before its last byte.
    fn take(&mut self, part: Option<Result<Part, Error>>) -> Result<Taken, Error> {
        let is_rest = self.outage.is_some();
        match part {
            Some(Ok(Part::Data(data))) => self.on_data(data),
            Some(Ok(Part::Head(head))) => self.on_head(&head),
            // They may be about the rest alone, such as a digest.
            Some(Ok(Part::Hints(_) | Part::Trailers(_))) if is_rest => Ok(Taken::Dropped),
            Some(Ok(part)) => Ok(Taken::Part(part)),
            None if self.rest.left() == 0 => Ok(Taken::End),
            None => self.on_break(truncated()),
            // The last byte has come, but not the end of the stream.
            Some(Err(error)) if is_break(&error) && self.rest.left() == 0 => Ok(Taken::End),
            Some(Err(error)) if is_break(&error) => self.on_break(error),
            Some(Err(error)) if self.awaits_rest() && is_passing(&error) => self.on_break(error),
            Some(Err(error)) => Err(self.fail("failed", error)),
        }
    }

    /// Returns true if the head of the rest has not come.
    fn awaits_rest(&self) -> bool {
        self.outage.as_ref().is_some_and(|it| it.limit.is_some())
    }

    /// Counts data, and removes the bytes that the reader has already.
    fn on_data(&mut self, mut data: Bytes) -> Result<Taken, Error> {
        if let Some(outage) = &mut self.outage {
            let skipped = usize::try_from(outage.skipped).unwrap_or(usize::MAX);
            let skipped = skipped.min(data.len());
            data.advance(skipped);
            outage.skipped -= skipped as u64;
        }
        let new = data.len() as u64;
        if !self.rest.received(new) {
            let detail = "the response is longer than its head says";
            return Err(Error::new(Kind::Protocol, Side::Peer, detail));
        }
        self.arrived += new;
        Ok(match data.is_empty() {
            true => Taken::Dropped,
            false => Taken::Part(Part::Data(data)),
        })
    }

    /// Takes the head of the rest. The page of a proxy that has lost its next hop is another break.
    /// Fails for any other response.
    fn on_head(&mut self, head: &ResponseHead) -> Result<Taken, Error> {
        if self.outage.is_some() && is_outage(head) {
            return self.on_break(refusal(head));
        }
        let (Some(skipped), Some(outage)) = (self.rest.skipped(head), &mut self.outage) else {
            let detail = "the response that came is not the rest of the one before";
            return Err(self.fail("refused", Error::new(Kind::Protocol, Side::Peer, detail)));
        };
        outage.limit = None;
        outage.skipped = skipped;
        let saved = self.arrived.saturating_sub(skipped);
        DOWNLOADS.add("continued");
        METRICS.download_bytes_saved.add(saved);
        tracing::debug!(error = %outage.error, saved, "a download that broke off goes on");
        Ok(Taken::Head)
    }

    /// Plans the next request for the rest. Fails if too many have brought too little.
    fn on_break(&mut self, error: Error) -> Result<Taken, Error> {
        let is_stuck = |it: &Outage| self.arrived - it.arrived < PROGRESS;
        let before = self.outage.take();
        let is_soon = before.as_ref().is_some_and(|it| it.began.elapsed() < CALM);
        let mut outage = before.filter(is_stuck).unwrap_or(Outage {
            error,
            began: Instant::now(),
            arrived: self.arrived,
            asked_at: self.arrived,
            empty: 0,
            requests: usize::from(is_soon),
            limit: None,
            pause: None,
            skipped: 0,
            look: None,
        });
        let has_head = outage.requests > 0 && outage.limit.is_none();
        if has_head && self.arrived == outage.asked_at {
            outage.empty += 1;
        }
        let pause = PAUSES.get(outage.requests);
        let Some(pause) = pause.filter(|_| outage.empty < MOST_EMPTY) else {
            return Err(given_up("failed", outage.error));
        };
        outage.requests += 1;
        outage.asked_at = self.arrived;
        outage.skipped = 0;
        let limit = || Box::pin(tokio::time::sleep(LIMIT));
        outage.limit.get_or_insert_with(limit);
        outage.pause = (!pause.is_zero()).then(|| Box::pin(tokio::time::sleep(*pause)));
        self.outage = Some(outage);
        Ok(Taken::Broke)
    }

    /// Returns the error that ends the body: that of the break, if its rest has not come.
    fn fail(&mut self, result: &'static str, error: Error) -> Error {
        match self.outage.take().filter(|it| it.limit.is_some()) {
            Some(outage) => given_up(result, outage.error),
            None => error,
        }
    }

    /// Requests the rest of the response.
    fn ask(&mut self) -> Reply {
        if let Some(outage) = &mut self.outage {
            let has_next = self.asked.after_reload.has_next(self.asked.request.scheme);
            outage.look = (!has_next).then(|| Box::pin(tokio::time::sleep(LOOK)));
        }
        self.asked.ask(&self.rest)
    }

    /// Returns true if the head of the rest is awaited from the configuration before a reload. Its
    /// gateway may be gone.
    fn is_left_behind(&mut self, cx: &mut Context<'_>) -> bool {
        let waits = self.awaits_rest();
        let Some(outage) = self.outage.as_mut().filter(|_| waits) else {
            return false;
        };
        let Some(look) = &mut outage.look else {
            return false;
        };
        while look.as_mut().poll(cx).is_ready() {
            if self.asked.after_reload.has_next(self.asked.request.scheme) {
                return true;
            }
            look.as_mut().reset(Instant::now() + LOOK);
        }
        false
    }

    /// Resolves once a request for the rest is due or under way. Fails at the time limit.
    fn poll_outage(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let Some(outage) = &mut self.outage else {
            return Poll::Ready(Ok(()));
        };
        let limit = outage.limit.as_mut();
        if limit.is_some_and(|limit| limit.as_mut().poll(cx).is_ready()) {
            return Poll::Ready(Err(given_up("failed", outage.error.clone())));
        }
        if let Some(pause) = &mut outage.pause {
            std::task::ready!(pause.as_mut().poll(cx));
            outage.pause = None;
        }
        Poll::Ready(Ok(()))
    }
}

/// Counts a download that ends with an error.
fn given_up(result: &'static str, error: Error) -> Error {
    DOWNLOADS.add(result);
    tracing::debug!(%error, result, "a download that broke off does not go on");
    error
}

/// Returns the error of a body that ended before its last byte.
fn truncated() -> Error {
    let detail = "the response's body ended too early";
    Error::new(Kind::Truncated, Side::Peer, detail).with_retry(Retry::IfIdempotent)
}

impl Continued {
    /// Passes on a part of a reply that cannot be continued, or not yet.
    fn pass(&mut self, part: Option<Result<Part, Error>>) -> Option<Result<Part, Error>> {
        match &part {
            Some(Ok(Part::Head(head))) => self.begin(head),
            Some(Err(error)) if matches!(self.state, State::Unsuitable) && is_break(error) => {
                DOWNLOADS.add("unsuitable");
            }
            _ => {}
        }
        part
    }

    /// Notes the head of the response.
    fn begin(&mut self, head: &ResponseHead) {
        let State::Awaited(asked) = std::mem::replace(&mut self.state, State::Unsuitable) else {
            return;
        };
        let Some(rest) = Rest::of(&asked.request, head) else {
            return;
        };
        self.reply.iter().for_each(Reply::permit_break);
        self.state = State::Download(Box::new(Download {
            asked,
            rest,
            arrived: 0,
            outage: None,
        }));
    }

    /// Ends the reply with its last part.
    fn end(&mut self, last: Option<Error>) -> Poll<Option<Result<Part, Error>>> {
        (self.reply, self.state) = (None, State::Over);
        Poll::Ready(last.map(Err))
    }
}

impl Parts for Continued {
    fn below(&self) -> Option<&Reply> {
        self.reply.as_ref()
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        loop {
            if let State::Download(download) = &mut self.state {
                if let Err(error) = std::task::ready!(download.poll_outage(cx)) {
                    return self.end(Some(error));
                }
                self.reply.get_or_insert_with(|| download.ask());
                if download.is_left_behind(cx) {
                    self.reply = None;
                    self.reply = Some(download.ask());
                }
            }
            let Some(reply) = &mut self.reply else {
                return Poll::Ready(None);
            };
            let part = std::task::ready!(reply.poll_part(cx));
            let State::Download(download) = &mut self.state else {
                return Poll::Ready(self.pass(part));
            };
            match download.take(part) {
                Ok(Taken::Part(part)) => return Poll::Ready(Some(Ok(part))),
                Ok(Taken::Head) => reply.permit_break(),
                Ok(Taken::Dropped) => {}
                Ok(Taken::Broke) => self.reply = None,
                Ok(Taken::End) => return self.end(None),
                Err(error) => return self.end(Some(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests;

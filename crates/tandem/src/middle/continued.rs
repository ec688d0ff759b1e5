//! The client's stage that continues a download whose session or path was lost.
//!
//! ```text
//!  request ─▶ Continue ─▶ decompress ─▶ gateways ─▶ a session
//!  200, the first bytes, an error ◀────────────────────┘
//!     └─▶ Range, If-Range ─▶ decompress ─▶ gateways ─▶ another session
//!  the other bytes ◀── 206 ───────────────────────────────┘
//! ```
//!
//! [`Rest`] decides which responses can be continued, and which other responses continue them. Both
//! must be of the same representation, as a strong validator shows. The browser gets one response
//! with the bytes of the representation, or the error that broke the response off. Nothing is
//! stored.
//!
//! The stage lies before `decompress`, so that it counts the bytes that the validator describes.
//! The other request passes the same stages as the first one, with its isolation key and its place
//! in all queues. A stage behind may propose the other request while the reply goes on
//! ([`Reply::permit_move`]), and `download` keeps the reply until the rest has come. After a
//! reload, the other request goes by the next configuration ([`after_reload`]).

pub mod after_reload;
mod download;
mod rest_request;

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tandem_http::cache::rest::Rest;
use tandem_http::{Method, RequestHead, ResponseHead};
use tandem_push::wire::is_reserved;

use crate::error::{Error, Kind, Side};
use crate::exchange::{Body, Exchange, Isolation, Part, Parts, Peer, Reply};
use crate::metrics::DOWNLOADS;
use crate::priority::SharedPriority;
use crate::stage::Stage;
use after_reload::AfterReload;
use download::Download;

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
        Reply::new(Continued::Awaited(self.next.call(exchange), asked))
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

/// The reply to a request that reads.
enum Continued {
    /// The head has not come.
    Awaited(Reply, Asked),
    /// The body could not be continued.
    Unsuitable(Reply),
    /// The body can be continued.
    Download(Box<Download>),
    /// The reply has ended.
    Over,
}

impl Continued {
    /// Notes the head of the response.
    fn begin(&mut self, head: &ResponseHead) {
        *self = match std::mem::replace(self, Self::Over) {
            Self::Awaited(reply, asked) => match Rest::of(&asked.request, head) {
                Some(rest) => Self::Download(Box::new(Download::new(reply, asked, rest))),
                None => Self::Unsuitable(reply),
            },
            other => other,
        };
    }
}

impl Parts for Continued {
    fn below(&self) -> Option<&Reply> {
        match self {
            Self::Awaited(reply, _) | Self::Unsuitable(reply) => Some(reply),
            Self::Download(download) => download.reply(),
            Self::Over => None,
        }
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        let is_unsuitable = matches!(self, Self::Unsuitable(_));
        let part = match self {
            Self::Awaited(reply, _) | Self::Unsuitable(reply) => ready!(reply.poll_part(cx)),
            Self::Download(download) => ready!(download.poll_part(cx)),
            Self::Over => None,
        };
        match &part {
            Some(Ok(Part::Head(head))) => self.begin(head),
            Some(Err(error)) if is_unsuitable && is_break(error) => DOWNLOADS.add("unsuitable"),
            Some(Err(_)) | None if matches!(self, Self::Download(_)) => *self = Self::Over,
            _ => {}
        }
        Poll::Ready(part)
    }
}

#[cfg(test)]
mod tests;

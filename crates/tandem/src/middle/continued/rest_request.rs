//! The request for the rest of a download, until the head of the rest has come.
//!
//! ```text
//!  a wait ─▶ Range, If-Range ─▶ head: is it the rest? ─▶ the reply, and the bytes to drop
//!    ▲                             └─ lost on its way ─▶ another attempt
//!    └─────────────────────────────────────┘
//! ```

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tandem_http::ResponseHead;
use tandem_http::cache::rest::{MAX_SKIPPED, Rest};
use tokio::time::{Instant, Sleep};

use super::{Asked, is_break};
use crate::error::{Error, Kind, Side};
use crate::exchange::{Part, Reply};
use crate::failure::is_outage;

/// The time from the break, or from the proposal of a move, to the head of the rest.
pub(super) const LIMIT: Duration = Duration::from_secs(30);

/// The time between two looks for a reload while the head of the rest has not come.
pub(super) const LOOK: Duration = Duration::from_secs(1);

/// A request for the rest, with all its attempts.
pub(super) struct RestRequest {
    /// The reason of the request.
    pub(super) error: Error,
    limit: Pin<Box<Sleep>>,
    /// The wait before the next attempt.
    pause: Option<Pin<Box<Sleep>>>,
    sent: Option<Sent>,
}

/// An attempt under way.
struct Sent {
    reply: Reply,
    /// The bytes that had not arrived when it was sent.
    rest: Rest,
    /// The next look for a reload, if it was sent before one.
    look: Option<Pin<Box<Sleep>>>,
}

/// The result of a request for the rest.
pub(super) enum Answer {
    /// The reply has the rest, behind the given number of bytes that the reader has.
    Rest(Reply, u64),
    /// A push for the reader.
    Pushed(Part),
    /// The attempt has failed, and another one may succeed.
    Failed,
    /// Another response than the rest has come.
    Refused,
    /// The limit is over, or an error permits no other attempt.
    Over,
}

/// Returns whether an error of the request for the rest means that another attempt may succeed. A
/// gateway that ends refuses sessions and requests until the next one listens. The name of a
/// gateway may be looked up again in a moment.
fn is_passing(error: &Error) -> bool {
    let is_peer = matches!(error.side, Side::Peer | Side::Via);
    is_break(error) || (is_peer && matches!(error.kind, Kind::Busy | Kind::Full | Kind::Dns))
}

impl RestRequest {
    /// Creates a request for the given reason.
    pub(super) fn new(error: Error) -> Self {
        Self {
            error,
            limit: Box::pin(tokio::time::sleep(LIMIT)),
            pause: None,
            sent: None,
        }
    }

    /// Waits before the next attempt.
    pub(super) fn wait(&mut self, pause: Duration) {
        self.sent = None;
        self.pause = (!pause.is_zero()).then(|| Box::pin(tokio::time::sleep(pause)));
    }

    /// Notes that the reply has broken off whose rest is requested. The limit begins again.
    pub(super) fn break_off(&mut self, error: Error) {
        self.error = error;
        self.limit.as_mut().reset(Instant::now() + LIMIT);
    }

    /// Returns the number of bytes that have arrived since the request was sent. `rest` names those
    /// that have not.
    pub(super) fn since(&self, rest: &Rest) -> u64 {
        let sent = self.sent.as_ref();
        sent.map_or(0, |it| it.rest.left() - rest.left())
    }

    /// Polls for the next result.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        asked: &Asked,
        rest: &Rest,
    ) -> Poll<Answer> {
        let answer = self.poll_attempt(cx, asked, rest);
        if answer.is_pending() && self.limit.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Answer::Over);
        }
        answer
    }

    /// Polls for the next result without the limit.
    fn poll_attempt(&mut self, cx: &mut Context<'_>, asked: &Asked, rest: &Rest) -> Poll<Answer> {
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(cx));
            self.pause = None;
        }
        loop {
            let sent = self.sent.get_or_insert_with(|| Sent::new(asked, rest));
            let Poll::Ready(part) = sent.reply.poll_part(cx) else {
                if !sent.is_left_behind(cx, asked) {
                    return Poll::Pending;
                }
                self.sent = None;
                continue;
            };
            let answer = match part {
                Some(Ok(Part::Hints(_))) => continue,
                Some(Ok(part @ Part::Pushed(_))) => Answer::Pushed(part),
                // The page of a proxy that has lost its next hop.
                Some(Ok(Part::Head(head))) if is_outage(&head) => Answer::Failed,
                Some(Ok(Part::Head(head))) => self.take(&head, rest),
                Some(Ok(_)) => Answer::Refused,
                Some(Err(error)) if !is_passing(&error) => Answer::Over,
                Some(Err(_)) | None => Answer::Failed,
            };
            return Poll::Ready(answer);
        }
    }

    /// Takes the head of the response.
    fn take(&mut self, head: &ResponseHead, rest: &Rest) -> Answer {
        let since = self.since(rest);
        let Some(sent) = self.sent.take() else {
            return Answer::Failed;
        };
        match sent.rest.skipped(head) {
            // It begins at the byte that was requested. The download bounds the later bytes.
            Some(0) => Answer::Rest(sent.reply, since),
            Some(skipped) if skipped + since <= MAX_SKIPPED => {
                Answer::Rest(sent.reply, skipped + since)
            }
            _ => Answer::Refused,
        }
    }
}

impl Sent {
    fn new(asked: &Asked, rest: &Rest) -> Self {
        let has_next = asked.after_reload.has_next(asked.request.scheme);
        Self {
            reply: asked.ask(rest),
            rest: rest.clone(),
            look: (!has_next).then(|| Box::pin(tokio::time::sleep(LOOK))),
        }
    }

    /// Returns true if the head is awaited from the configuration before a reload. Its gateway may
    /// be gone.
    fn is_left_behind(&mut self, cx: &mut Context<'_>, asked: &Asked) -> bool {
        let Some(look) = &mut self.look else {
            return false;
        };
        while look.as_mut().poll(cx).is_ready() {
            if asked.after_reload.has_next(asked.request.scheme) {
                return true;
            }
            look.as_mut().reset(Instant::now() + LOOK);
        }
        false
    }
}

//! The response of a push as it comes from the origin. Its head may wait for a request, and a
//! request that arrives in another way may take all of it.

use std::collections::VecDeque;
use std::task::{Context, Poll, ready};

use tandem_push::wire::{ASKED_AS_FIELD, ASKED_FIELD};

use crate::error::Error;
use crate::exchange::{Part, Parts, Reply};

/// The bytes of a body that are read while the head waits for a request. A short body then holds no
/// connection to its origin.
const READ_AHEAD: usize = 16 << 10;

/// A response on its way.
pub(super) struct FetchedResponse {
    /// `None` after its end.
    reply: Option<Reply>,
    /// The part that follows promises of the companion, or the head that waits for a request.
    held: Option<Part>,
    /// The parts that were read while the head waited.
    ahead: VecDeque<Result<Part, Error>>,
    /// The bytes of data in `ahead` so far.
    ahead_bytes: usize,
}

impl FetchedResponse {
    pub(super) fn new(reply: Reply) -> Self {
        Self {
            reply: Some(reply),
            held: None,
            ahead: VecDeque::new(),
            ahead_bytes: 0,
        }
    }

    /// Holds a part back.
    pub(super) fn hold(&mut self, part: Part) {
        self.held = Some(part);
    }

    /// Takes the part that was held back.
    pub(super) const fn take_held(&mut self) -> Option<Part> {
        self.held.take()
    }

    /// Polls for the next part of the response. The reply is dropped at its end.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        if let Some(part) = self.ahead.pop_front() {
            return Poll::Ready(Some(part));
        }
        loop {
            let Some(reply) = &mut self.reply else {
                return Poll::Ready(None);
            };
            let part = ready!(reply.poll_part(cx));
            if matches!(part, Some(Ok(Part::Hints(_) | Part::Pushed(_)))) {
                continue;
            }
            if !matches!(part, Some(Ok(_))) {
                self.reply = None;
            }
            return Poll::Ready(part);
        }
    }

    /// Returns whether one of the parts that were read while the head waited is an error.
    pub(super) fn has_failed(&self) -> bool {
        self.ahead.iter().any(Result::is_err)
    }

    /// Reads the first bytes of the body while the head waits for a request.
    pub(super) fn read_ahead(&mut self, cx: &mut Context<'_>) {
        let mut read = std::mem::take(&mut self.ahead);
        while self.ahead_bytes < READ_AHEAD
            && let Poll::Ready(Some(part)) = self.poll_next(cx)
        {
            if let Ok(Part::Data(data)) = &part {
                self.ahead_bytes += data.len();
            }
            read.push_back(part);
        }
        self.ahead = read;
    }
}

/// The response as that of a request that takes it from the push.
impl Parts for FetchedResponse {
    fn below(&self) -> Option<&Reply> {
        self.reply.as_ref()
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        let mut held = self.held.take();
        if let Some(Part::Head(head)) = &mut held {
            // These describe the request of the push.
            head.fields.remove(ASKED_FIELD);
            head.fields.remove(ASKED_AS_FIELD);
        }
        match held {
            Some(part) => Poll::Ready(Some(Ok(part))),
            None => self.poll_next(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tandem_http::ResponseHead;

    use super::*;
    use crate::error::{Kind, Side};

    /// Returns a response whose head waits. Its body has one byte, and may break off.
    fn read(breaks_off: bool) -> FetchedResponse {
        let mut reply = Reply::ready(ResponseHead::new(200), Bytes::from_static(b"x"));
        if breaks_off {
            reply = Reply::fail(Error::new(Kind::Reset, Side::Peer, "it broke off"));
        }
        let mut response = FetchedResponse::new(reply);
        let mut cx = Context::from_waker(std::task::Waker::noop());
        response.read_ahead(&mut cx);
        response
    }

    #[test]
    fn response_that_breaks_off_ahead_has_failed() {
        assert!(read(true).has_failed());
        assert!(!read(false).has_failed());
    }
}

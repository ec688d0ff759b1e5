//! The body of a request: a stream of pieces that can be sent again while little of it was read.
//!
//! It is part of an [`Exchange`](super::Exchange).

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use tandem_http::Fields;

use crate::error::Error;

/// A piece of a request body.
#[derive(Debug, Clone)]
pub enum Chunk {
    /// Bytes of the body.
    Data(Bytes),
    /// The fields after the body, as the last piece.
    Trailers(Fields),
}

/// The source of a body.
pub trait Chunks {
    /// Polls for the next piece; `None` at the regular end.
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>>;

    /// Returns true if the end of the body is known to have arrived, maybe behind pieces that wait.
    fn has_arrived(&self) -> bool {
        false
    }
}

/// A handle to the body of a request, or to the upward bytes of a tunnel. The exchange keeps one
/// handle for another try, while a session's upload task reads from its own.
#[derive(Clone, Default)]
pub struct Body {
    inner: Option<Rc<RefCell<BodyState>>>,
    length: Option<u64>,
}

struct BodyState {
    source: Box<dyn Chunks>,
    /// The pieces read so far, kept for sending the request again. `None` once they exceeded the
    /// limit.
    kept: Option<Vec<Chunk>>,
    kept_bytes: usize,
    replay: VecDeque<Chunk>,
}

/// The length in bytes above which a body cannot be sent again.
const REPLAY_LIMIT: usize = 64 << 10;

impl Body {
    /// Returns an empty body.
    pub const fn empty() -> Self {
        Self {
            inner: None,
            length: Some(0),
        }
    }

    /// Creates a body from its source. `length` is its size in bytes, if known.
    pub fn new(source: impl Chunks + 'static, length: Option<u64>) -> Self {
        let state = BodyState {
            source: Box::new(source),
            kept: Some(Vec::new()),
            kept_bytes: 0,
            replay: VecDeque::new(),
        };
        Self {
            inner: Some(Rc::new(RefCell::new(state))),
            length,
        }
    }

    /// Returns true if there is no body at all.
    pub const fn is_empty(&self) -> bool {
        self.inner.is_none()
    }

    /// Returns the length in bytes, if it is known beforehand.
    pub const fn length(&self) -> Option<u64> {
        self.length
    }

    /// Returns another handle to the same body.
    pub fn share(&self) -> Self {
        self.clone()
    }

    /// Returns true if no piece has been read since the start.
    pub fn is_untouched(&self) -> bool {
        self.inner
            .as_ref()
            .is_none_or(|inner| inner.borrow().kept.as_ref().is_some_and(Vec::is_empty))
    }

    /// Returns true if the bytes read since the start begin with `prefix`.
    pub fn begins_with(&self, prefix: &[u8]) -> bool {
        self.inner.as_ref().is_some_and(|inner| {
            let state = inner.borrow();
            let first = state.kept.as_ref().and_then(|kept| kept.first());
            matches!(first, Some(Chunk::Data(data)) if data.starts_with(prefix))
        })
    }

    /// Returns a handle that tells how much of the body was read.
    pub fn progress(&self) -> BodyProgress {
        BodyProgress(self.inner.as_ref().map(Rc::downgrade))
    }

    /// Rewinds to the start for another try. Returns false if too much was read to be kept.
    pub fn rewind(&self) -> bool {
        let Some(inner) = &self.inner else {
            return true;
        };
        let mut state = inner.borrow_mut();
        let Some(kept) = state.kept.take() else {
            return false;
        };
        let rest = std::mem::take(&mut state.replay);
        state.replay = kept.into_iter().chain(rest).collect();
        state.kept = Some(Vec::new());
        state.kept_bytes = 0;
        true
    }

    /// Returns true if [`Self::rewind`] would succeed.
    pub fn may_rewind(&self) -> bool {
        let inner = self.inner.as_ref();
        inner.is_none_or(|inner| inner.borrow().kept.is_some())
    }

    /// Replaces a body of unknown length by [`Self::empty`] if its end has arrived without a piece.
    /// The end of a stream may follow the head of its request in a separate frame.
    ///
    /// # Errors
    /// The error of the source, which no later poll repeats.
    pub fn settle(&mut self) -> Result<(), Error> {
        let Some(inner) = &self.inner else {
            return Ok(());
        };
        if self.length.is_some() || !self.is_untouched() || !self.has_arrived() {
            return Ok(());
        }
        let ended = inner.borrow_mut().has_ended()?;
        if ended {
            *self = Self::empty();
        }
        Ok(())
    }

    /// See [`Chunks::has_arrived`].
    pub fn has_arrived(&self) -> bool {
        let arrived = |inner: &Rc<RefCell<BodyState>>| inner.borrow().source.has_arrived();
        self.inner.as_ref().is_none_or(arrived)
    }

    /// See [`Chunks::poll_chunk`].
    pub fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>> {
        match &self.inner {
            None => Poll::Ready(None),
            Some(inner) => inner.borrow_mut().poll_chunk(cx),
        }
    }
}

/// The progress of a body, from outside its reader.
#[derive(Clone, Debug, Default)]
pub struct BodyProgress(Option<Weak<RefCell<BodyState>>>);

impl BodyProgress {
    /// Returns the number of bytes that were read since the start or the last
    /// [rewind](Body::rewind), or 0 if there is no body any more.
    pub fn bytes(&self) -> usize {
        let body = self.0.as_ref().and_then(Weak::upgrade);
        body.and_then(|body| Some(body.try_borrow().ok()?.kept_bytes))
            .unwrap_or_default()
    }
}

impl fmt::Debug for BodyState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BodyState")
            .field("kept_bytes", &self.kept_bytes)
            .finish_non_exhaustive()
    }
}

impl BodyState {
    /// Returns true if no piece is left. A piece that was taken to find out is read again.
    fn has_ended(&mut self) -> Result<bool, Error> {
        if !self.replay.is_empty() {
            return Ok(false);
        }
        // The end has arrived, so that no task has to wait for it.
        let mut cx = Context::from_waker(Waker::noop());
        match self.source.poll_chunk(&mut cx) {
            Poll::Ready(None) => return Ok(true),
            Poll::Ready(Some(chunk)) => self.replay.push_back(chunk?),
            Poll::Pending => {}
        }
        Ok(false)
    }

    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>> {
        let chunk = match self.replay.pop_front() {
            Some(chunk) => Some(Ok(chunk)),
            None => std::task::ready!(self.source.poll_chunk(cx)),
        };
        if let Some(Ok(chunk)) = &chunk {
            self.keep(chunk);
        }
        Poll::Ready(chunk)
    }

    fn keep(&mut self, chunk: &Chunk) {
        self.kept_bytes += match chunk {
            Chunk::Data(data) => data.len(),
            Chunk::Trailers(fields) => fields.text_len(),
        };
        if self.kept_bytes > REPLAY_LIMIT {
            self.kept = None;
        } else if let Some(kept) = &mut self.kept {
            kept.push(chunk.clone());
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body")
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exchange::tests::now;

    struct Three(u8);

    impl Chunks for Three {
        fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>> {
            self.0 += 1;
            Poll::Ready((self.0 <= 3).then(|| Ok(Chunk::Data(Bytes::from(vec![self.0; 30_000])))))
        }
    }

    /// A body that is there as a whole.
    struct Whole(VecDeque<Result<Bytes, Error>>);

    impl Chunks for Whole {
        fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>> {
            Poll::Ready(self.0.pop_front().map(|piece| piece.map(Chunk::Data)))
        }

        fn has_arrived(&self) -> bool {
            true
        }
    }

    #[test]
    fn body_that_ended_without_a_piece_settles_as_none() {
        let whole = |pieces: Vec<_>, length| Body::new(Whole(pieces.into()), length);
        let mut none = whole(vec![], None);
        assert_eq!(none.settle(), Ok(()));
        assert!(none.is_empty() && none.length() == Some(0));
        let mut of_length = whole(vec![], Some(0));
        assert_eq!(of_length.settle(), Ok(()));
        assert!(!of_length.is_empty());
        let mut waiting = Body::new(Three(0), None);
        assert_eq!(waiting.settle(), Ok(()));
        assert!(!waiting.is_empty() && waiting.is_untouched());
        // A piece beyond the limit of those that can be read again.
        let large = Bytes::from(vec![7; REPLAY_LIMIT + 1]);
        let mut some = whole(vec![Ok(large.clone())], None);
        for _ in 0..2 {
            assert_eq!(some.settle(), Ok(()));
            assert!(!some.is_empty() && some.is_untouched());
        }
        let chunk = now(std::future::poll_fn(|cx| some.poll_chunk(cx)));
        assert!(matches!(chunk, Some(Ok(Chunk::Data(data))) if data == large));
        assert_eq!(some.settle(), Ok(()));
        let error = Error::new(crate::error::Kind::Reset, crate::error::Side::Client, "x");
        let mut failed = whole(vec![Err(error.clone())], None);
        assert_eq!(failed.settle(), Err(error));
    }

    #[test]
    fn body_rewinds_up_to_its_limit() {
        let mut body = Body::new(Three(0), None);
        let pull = |body: &mut Body| now(std::future::poll_fn(|cx| body.poll_chunk(cx)));
        let first = |chunk: Option<Result<Chunk, Error>>| match chunk {
            Some(Ok(Chunk::Data(data))) => data[0],
            other => panic!("{other:?}"),
        };
        assert!(body.is_untouched() && Body::empty().is_untouched());
        assert_eq!(first(pull(&mut body)), 1);
        assert_eq!(first(pull(&mut body)), 2);
        let progress = body.progress();
        assert_eq!(progress.bytes(), 60_000);
        assert!(!body.is_untouched());
        assert!(body.rewind() && body.is_untouched());
        assert_eq!(progress.bytes(), 0);
        assert_eq!(first(pull(&mut body)), 1);
        assert!(body.rewind());
        for expected in [1, 2, 3] {
            assert_eq!(first(pull(&mut body)), expected);
        }
        assert!(!body.rewind() && !body.is_untouched());
        assert!(Body::empty().rewind());
    }
}

//! The only values that travel: an [`Exchange`] goes in, its [`Reply`] comes back as one stream of
//! parts in wire order.
//!
//! ```text
//!   front ──Exchange { request, body, isolation, peer }──▶ middle ──▶ back
//!         ◀──Reply: Hints* · Pushed* · Head · (Pushed | Data)* · Trailers?──
//! ```
//!
//! Both are pulled by whoever uses them, so back-pressure needs no channel; dropping one cancels
//! it. Everything of one connection lives on one thread, hence `Rc` and no locks.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use tandem_http::{Fields, RequestHead, ResponseHead};

use crate::error::Error;
use crate::priority::SharedPriority;

/// A request on its way, with everything that decides where it may go.
#[derive(Debug)]
pub struct Exchange {
    /// What is asked.
    pub request: RequestHead,
    /// Its body; for a tunnel, the bytes towards the target.
    pub body: Body,
    /// What must not share a session, circuit or store with it.
    pub isolation: Isolation,
    /// The connection or session that it arrived on.
    pub peer: Peer,
    /// The place in every queue on the way; all stages and sessions share it.
    pub priority: SharedPriority,
}

/// Where an exchange came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    /// Number of the session or connection, unique while the process runs.
    pub session: u64,
    /// Address of the other end of that connection, where there is one.
    pub address: Option<std::net::IpAddr>,
    /// Whether it takes pushes.
    pub push: bool,
}

/// Requests with different keys never share anything: the SOCKS user and password, as Tor means
/// them (`IsolateSOCKSAuth`). They go on to Tor unchanged.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Isolation {
    key: Option<Rc<(Vec<u8>, Vec<u8>)>>,
}

impl Isolation {
    /// The key of requests that carry none.
    pub const fn none() -> Self {
        Self { key: None }
    }

    /// A key of user name and password.
    pub fn new(user: &[u8], password: &[u8]) -> Self {
        Self {
            key: Some(Rc::new((short(user), short(password)))),
        }
    }

    /// User and password, as SOCKS carries them on.
    pub fn credentials(&self) -> Option<(&[u8], &[u8])> {
        self.key
            .as_deref()
            .map(|(user, password)| (user.as_slice(), password.as_slice()))
    }
}

/// What SOCKS can carry (255 bytes, RFC 1929) of a name: longer ones by a hash with this process's
/// own secret, so that different names stay different.
fn short(name: &[u8]) -> Vec<u8> {
    use std::hash::{BuildHasher, RandomState};
    static SECRET: std::sync::LazyLock<[RandomState; 2]> =
        std::sync::LazyLock::new(Default::default);
    if name.len() <= 255 {
        return name.to_vec();
    }
    let [first, second] = &*SECRET;
    format!(
        "{:016x}{:016x}",
        first.hash_one(name),
        second.hash_one(name)
    )
    .into_bytes()
}

/// Says only whether there is a key: first-party domains are private.
impl fmt::Debug for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.key.is_some() {
            "Isolation(set)"
        } else {
            "Isolation(none)"
        })
    }
}

/// The identity of a session that carries pushes: two marks are of one session if they are one
/// allocation.
#[derive(Debug)]
pub struct SessionMark {
    /// A promise carries the fields of its own request; otherwise it has those of the exchange with
    /// which it came.
    pub promises_have_fields: bool,
}

/// One part of a reply.
#[derive(Debug)]
pub enum Part {
    /// An interim response (1xx); may come several times before the head.
    Hints(ResponseHead),
    /// The answer to another request, sent unasked.
    Pushed {
        /// What it answers.
        request: RequestHead,
        /// The answer, a stream of its own.
        reply: Reply,
        /// The place in every queue on the way, shared with the exchange behind it.
        priority: SharedPriority,
        /// The session on which it arrived; `None` for one that is made here.
        session: Option<Rc<SessionMark>>,
    },
    /// The final head; once.
    Head(ResponseHead),
    /// Part of the body.
    Data(Bytes),
    /// The fields after the body; last.
    Trailers(Fields),
    /// The far end of a tunnel has said all that it had to say, the near end may go on; last. The
    /// reply ends once that has, too.
    Closed,
}

/// What a reply is made of: something that can be polled for its next part.
pub trait Parts {
    /// Says whether the parts come from a push that was there, and not from an answer to this
    /// request.
    fn was_pushed(&self) -> bool {
        false
    }

    /// The next part; `None` at the regular end; an error means that what came so far is not
    /// complete.
    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>>;
}

/// The answer to an exchange. Dropping it cancels the exchange.
pub struct Reply(Box<dyn Parts>);

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reply")
    }
}

impl Reply {
    /// A reply from its source of parts.
    pub fn new(parts: impl Parts + 'static) -> Self {
        Self(Box::new(parts))
    }

    /// A reply written as a story: the closure's future hands parts to the sink, one at a time.
    pub fn generate<F>(story: impl FnOnce(Sink) -> F) -> Self
    where
        F: Future<Output = Result<(), Error>> + 'static,
    {
        let slot = Rc::new(Slot::default());
        let future = story(Sink {
            slot: Rc::clone(&slot),
        });
        Self::new(Generator {
            future: Some(Box::pin(future)),
            slot,
        })
    }

    /// A reply that fails at once.
    pub fn fail(error: Error) -> Self {
        Self::new(Ready(VecDeque::from([Err(error)])))
    }

    /// A reply that is complete already.
    pub fn ready(head: ResponseHead, body: Bytes) -> Self {
        let mut parts = VecDeque::from([Ok(Part::Head(head))]);
        if !body.is_empty() {
            parts.push_back(Ok(Part::Data(body)));
        }
        Self::new(Ready(parts))
    }

    /// See [`Parts::poll_part`].
    pub fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        self.0.poll_part(cx)
    }

    /// See [`Parts::was_pushed`].
    pub fn was_pushed(&self) -> bool {
        self.0.was_pushed()
    }

    /// The next part.
    pub async fn part(&mut self) -> Option<Result<Part, Error>> {
        std::future::poll_fn(|cx| self.poll_part(cx)).await
    }
}

struct Ready(VecDeque<Result<Part, Error>>);

impl Parts for Ready {
    fn poll_part(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        Poll::Ready(self.0.pop_front())
    }
}

/// What a story and its reader share.
#[derive(Default)]
struct Slot {
    part: RefCell<Option<Part>>,
    /// A part has been put in.
    used: Cell<bool>,
    /// The parts are those of a push.
    pushed: Cell<bool>,
}

/// Where the story of [`Reply::generate`] puts its parts.
pub struct Sink {
    slot: Rc<Slot>,
}

impl Sink {
    /// Whether a part has been handed over: then the exchange can no longer be sent again.
    pub fn is_used(&self) -> bool {
        self.slot.used.get()
    }

    /// Asks the same while another has the sink.
    pub fn usage(&self) -> impl Fn() -> bool + 'static {
        let slot = Rc::clone(&self.slot);
        move || slot.used.get()
    }

    /// Notes that the parts to come are those of a push.
    pub fn set_pushed(&self, pushed: bool) {
        self.slot.pushed.set(pushed);
    }

    /// Hands over one part; returns once the reader asks for the next.
    pub async fn send(&mut self, part: Part) {
        self.slot.used.set(true);
        *self.slot.part.borrow_mut() = Some(part);
        // The generator takes the part before it polls this future again, so one pending poll is
        // all it needs.
        std::future::poll_fn(|_| {
            if self.slot.part.borrow().is_some() {
                Poll::Pending
            } else {
                Poll::Ready(())
            }
        })
        .await;
    }
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sink")
            .field("used", &self.is_used())
            .finish_non_exhaustive()
    }
}

struct Generator<F> {
    future: Option<Pin<Box<F>>>,
    slot: Rc<Slot>,
}

impl<F: Future<Output = Result<(), Error>>> Parts for Generator<F> {
    fn was_pushed(&self) -> bool {
        self.slot.pushed.get()
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        let Some(future) = &mut self.future else {
            return Poll::Ready(None);
        };
        let polled = future.as_mut().poll(cx);
        if polled.is_ready() {
            self.future = None;
        }
        if let Some(part) = self.slot.part.borrow_mut().take() {
            return Poll::Ready(Some(Ok(part)));
        }
        match polled {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(())) => Poll::Ready(None),
            Poll::Ready(Err(error)) => Poll::Ready(Some(Err(error))),
        }
    }
}

/// One piece of a request body.
#[derive(Debug, Clone)]
pub enum Chunk {
    /// Bytes.
    Data(Bytes),
    /// The fields after them; last.
    Trailers(Fields),
}

/// What a body is made of.
pub trait Chunks {
    /// The next piece; `None` at the regular end.
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>>;
}

/// The body of a request, or the upward bytes of a tunnel. A handle: the exchange keeps one for
/// another try while a session's upload task pulls from its own.
#[derive(Clone, Default)]
pub struct Body {
    inner: Option<Rc<RefCell<BodyState>>>,
    length: Option<u64>,
}

struct BodyState {
    source: Box<dyn Chunks>,
    /// What was pulled already, kept so that the request can be sent again; `None` once that was
    /// given up.
    kept: Option<Vec<Chunk>>,
    kept_bytes: usize,
    replay: VecDeque<Chunk>,
}

/// A body longer than this cannot be sent again.
const REPLAY_LIMIT: usize = 64 << 10;

impl Body {
    /// No body.
    pub const fn empty() -> Self {
        Self {
            inner: None,
            length: Some(0),
        }
    }

    /// A body from its source; `length` where it is known beforehand.
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

    /// Whether there is no body at all.
    pub const fn is_empty(&self) -> bool {
        self.inner.is_none()
    }

    /// Its length in bytes where that is known beforehand.
    pub const fn length(&self) -> Option<u64> {
        self.length
    }

    /// Another handle to the same body.
    pub fn share(&self) -> Self {
        self.clone()
    }

    /// Whether nothing has been pulled of it since its start.
    pub fn is_untouched(&self) -> bool {
        self.inner
            .as_ref()
            .is_none_or(|inner| inner.borrow().kept.as_ref().is_some_and(Vec::is_empty))
    }

    /// Whether the first bytes that were pulled since its start are `prefix`.
    pub fn begins_with(&self, prefix: &[u8]) -> bool {
        self.inner.as_ref().is_some_and(|inner| {
            let state = inner.borrow();
            let first = state.kept.as_ref().and_then(|kept| kept.first());
            matches!(first, Some(Chunk::Data(data)) if data.starts_with(prefix))
        })
    }

    /// Rewinds to the start for another try; false when too much has been pulled for that.
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

    /// See [`Chunks::poll_chunk`].
    pub fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>> {
        match &self.inner {
            None => Poll::Ready(None),
            Some(inner) => inner.borrow_mut().poll_chunk(cx),
        }
    }
}

impl BodyState {
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

    fn now<T>(future: impl Future<Output = T>) -> T {
        let mut future = std::pin::pin!(future);
        match future
            .as_mut()
            .poll(&mut Context::from_waker(std::task::Waker::noop()))
        {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("would wait"),
        }
    }

    #[test]
    fn a_story_comes_out_in_order() {
        let mut reply = Reply::generate(|mut sink| async move {
            sink.send(Part::Head(ResponseHead::new(200))).await;
            sink.send(Part::Data(Bytes::from_static(b"x"))).await;
            Err(Error::new(
                crate::error::Kind::Reset,
                crate::error::Side::Origin,
                "gone",
            ))
        });
        assert!(matches!(now(reply.part()), Some(Ok(Part::Head(_)))));
        assert!(matches!(now(reply.part()), Some(Ok(Part::Data(_)))));
        assert!(matches!(now(reply.part()), Some(Err(_))));
        assert!(now(reply.part()).is_none());
    }

    struct Three(u8);

    impl Chunks for Three {
        fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>> {
            self.0 += 1;
            Poll::Ready((self.0 <= 3).then(|| Ok(Chunk::Data(Bytes::from(vec![self.0; 30_000])))))
        }
    }

    #[test]
    fn a_body_rewinds_until_too_much_is_gone() {
        let mut body = Body::new(Three(0), None);
        let pull = |body: &mut Body| now(std::future::poll_fn(|cx| body.poll_chunk(cx)));
        let first = |chunk: Option<Result<Chunk, Error>>| match chunk {
            Some(Ok(Chunk::Data(data))) => data[0],
            other => panic!("{other:?}"),
        };
        assert!(body.is_untouched() && Body::empty().is_untouched());
        assert_eq!(first(pull(&mut body)), 1);
        assert_eq!(first(pull(&mut body)), 2);
        assert!(!body.is_untouched());
        assert!(body.rewind() && body.is_untouched());
        assert_eq!(first(pull(&mut body)), 1);
        assert!(body.rewind());
        for expected in [1, 2, 3] {
            assert_eq!(first(pull(&mut body)), expected);
        }
        assert!(!body.rewind() && !body.is_untouched());
        assert!(Body::empty().rewind());
    }
}

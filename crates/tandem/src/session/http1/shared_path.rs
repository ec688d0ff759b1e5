//! The path of a connection with pipelined requests, and the progress of the response that arrives.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use crate::path::Path;

/// The bytes of a response after which no request follows it.
const SHORT: u64 = 64 << 10;

/// The bytes of a response after which the request behind it goes elsewhere. The origin sends the
/// response to that request as well, so the move costs a part of the path.
const LONG: u64 = 2 << 20;

/// The time without a byte after which the request behind a response goes elsewhere.
const STALLED: Duration = Duration::from_secs(3);

/// The time after which it goes elsewhere in any case: the response may be a stream without an end.
const LASTING: Duration = Duration::from_secs(15);

/// A path that one exchange reads while others write their requests.
#[derive(Clone)]
pub(super) struct SharedPath(Rc<Shared>);

struct Shared {
    path: RefCell<Path>,
    /// The bytes that were read since the present response began.
    read: Cell<u64>,
    /// The time of the last read that brought bytes, or of the present response's beginning.
    read_at: Cell<Instant>,
    /// The time at which the present response was waited for first.
    begun: Cell<Instant>,
}

impl SharedPath {
    pub(super) fn new(path: Path) -> Self {
        Self(Rc::new(Shared {
            path: RefCell::new(path),
            read: Cell::new(0),
            read_at: Cell::new(Instant::now()),
            begun: Cell::new(Instant::now()),
        }))
    }

    /// Begins to count the bytes of another response.
    pub(super) fn begin(&self) {
        self.0.read.set(0);
        self.0.read_at.set(Instant::now());
        self.0.begun.set(Instant::now());
    }

    /// Notes the length of the present response. No request waits behind a long one.
    pub(super) fn note_length(&self, length: u64) {
        if length > LONG {
            self.note_endless();
        }
    }

    /// Returns the number of bytes that were read since the present response began.
    pub(super) fn received(&self) -> u64 {
        self.0.read.get()
    }

    /// Lets no request wait behind the present response, however few bytes it has.
    pub(super) fn note_endless(&self) {
        self.0.read.set(LONG + 1);
    }

    /// Returns whether another request may follow that of the present response.
    pub(super) fn is_short(&self) -> bool {
        self.0.read.get() <= SHORT && !self.is_tedious()
    }

    /// Returns whether requests should not wait behind the present response.
    pub(super) fn is_tedious(&self) -> bool {
        self.0.read.get() > LONG
            || self.0.read_at.get().elapsed() > STALLED
            || self.0.begun.get().elapsed() > LASTING
    }

    /// Returns the path if no other exchange uses it.
    pub(super) fn into_path(self) -> Option<Path> {
        Rc::into_inner(self.0).map(|shared| shared.path.into_inner())
    }
}

impl AsyncRead for SharedPath {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut *self.0.path.borrow_mut()).poll_read(cx, buf);
        let more = buf.filled().len() - before;
        if more > 0 {
            self.0.read.set(self.0.read.get() + more as u64);
            self.0.read_at.set(Instant::now());
        }
        polled
    }
}

impl AsyncWrite for SharedPath {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.path.borrow_mut()).poll_write(cx, data)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.path.borrow_mut()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.path.borrow_mut()).poll_shutdown(cx)
    }
}

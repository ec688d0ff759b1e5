//! A stream of a carrier as the byte stream of one exchange.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use tandem_http::Priority;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::REJECTED;
use crate::carrier::{CarrierStream, Code, ReceiveStream, SendStream, StreamReset};
use crate::path::{Facts, Path};

/// Controls a stream that is in use as a path.
#[derive(Clone)]
pub(super) struct Handle(Rc<ExchangeHalves>);

impl Handle {
    pub(super) fn set_priority(&self, priority: Priority) {
        self.0.send.borrow_mut().set_priority(priority);
    }

    /// Resolves once the peer has everything that was sent on a stream which ended regularly, or
    /// stops it, or the carrier ends.
    pub(super) async fn delivered(&self) {
        if self.0.finished.get() {
            poll_fn(|cx| self.0.send.borrow_mut().poll_stopped(cx)).await;
        }
    }

    pub(super) fn is_rejected(&self) -> bool {
        self.0.rejected.get()
    }
}

struct ExchangeHalves {
    send: RefCell<Box<dyn SendStream>>,
    /// True if the peer reset the stream as one that was not processed.
    rejected: Cell<bool>,
    finished: Cell<bool>,
    /// True if this end broke a message off, which must not look complete to the peer.
    broken_off: Cell<bool>,
}

impl ExchangeHalves {
    fn note<T>(&self, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(error)) = &result
            && let Some(inner) = error.get_ref()
            && let Some(StreamReset(code)) = inner.downcast_ref()
        {
            self.rejected.set(*code == REJECTED);
        }
        result
    }
}

/// Both halves as a byte stream. Dropping it resets the stream, unless the peer has ended it or it
/// was shut down. A stream that was broken off is always reset.
struct StreamIo {
    receive: Box<dyn ReceiveStream>,
    halves: Rc<ExchangeHalves>,
}

impl Drop for StreamIo {
    fn drop(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        if !self.halves.finished.get() && !self.halves.broken_off.get() && self.is_at_end(&mut cx) {
            // It ends the stream without waiting.
            let _ = Pin::new(&mut *self).poll_shutdown(&mut cx);
        }
        self.receive.stop(Code(0));
        if !self.halves.finished.get() {
            self.halves.send.borrow_mut().reset(Code(0));
        }
    }
}

impl StreamIo {
    /// Returns true if the peer has ended its direction, and all of it was read.
    fn is_at_end(&mut self, cx: &mut Context<'_>) -> bool {
        let mut byte = [0];
        let mut buf = ReadBuf::new(&mut byte);
        let read = Pin::new(self).poll_read(cx, &mut buf);
        matches!(read, Poll::Ready(Ok(()))) && buf.filled().is_empty()
    }
}

impl AsyncRead for StreamIo {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let read = Pin::new(&mut *this.receive).poll_read(cx, buf);
        this.halves.note(read)
    }
}

impl AsyncWrite for StreamIo {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut **self.halves.send.borrow_mut()).poll_write(cx, buf);
        self.halves.note(written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut **self.halves.send.borrow_mut()).poll_write_vectored(cx, bufs);
        self.halves.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.halves.send.borrow().is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut **self.halves.send.borrow_mut()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut **self.halves.send.borrow_mut()).poll_shutdown(cx);
        if matches!(shut, Poll::Ready(Ok(()))) {
            self.halves.finished.set(true);
        }
        shut
    }
}

/// The facts of one stream. A reset on close concerns the stream, and not the connection with it.
struct StreamFacts {
    below: Rc<dyn Facts>,
    halves: Rc<ExchangeHalves>,
}

impl Facts for StreamFacts {
    fn below(&self) -> Option<&dyn Facts> {
        Some(&*self.below)
    }

    fn has_unacknowledged(&self) -> bool {
        self.halves.send.borrow().has_unacknowledged()
    }

    fn reset_on_close(&self) {
        self.halves.broken_off.set(true);
    }
}

/// Turns a stream with both directions into a path, and a handle for its priority.
pub(super) fn into_path(stream: CarrierStream, facts: &Rc<dyn Facts>) -> Option<(Path, Handle)> {
    let halves = Rc::new(ExchangeHalves {
        send: RefCell::new(stream.send?),
        rejected: Cell::new(false),
        finished: Cell::new(false),
        broken_off: Cell::new(false),
    });
    let io = StreamIo {
        receive: stream.receive?,
        halves: Rc::clone(&halves),
    };
    let facts = Rc::new(StreamFacts {
        below: Rc::clone(facts),
        halves: Rc::clone(&halves),
    });
    Some((Path::new(io, facts), Handle(halves)))
}

//! The halves of a stream.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use quinn::{ReadError, RecvStream, StoppedError, VarInt, WriteError};
use tandem::carrier::{Code, ReceiveStream, SendStream, StreamReset, StreamStopped};
use tandem_http::Priority;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::carrier::Shared;
use crate::early::{EarlyStream, End, Settled};

/// The code of a stream that is dropped before its end (H3_REQUEST_CANCELLED).
const CANCELLED: Code = Code(0x10c);

type Stopped = Pin<Box<dyn Future<Output = Result<Option<VarInt>, StoppedError>>>>;

pub(crate) fn number(code: Code) -> VarInt {
    VarInt::from_u64(code.0).unwrap_or(VarInt::MAX)
}

/// The sending half.
pub(crate) struct Sending {
    stream: quinn::SendStream,
    shared: Rc<Shared>,
    /// The wait for a stop, or for the acknowledgement of everything.
    stopped: Option<Stopped>,
    ended: bool,
    /// Present until the handshake is over.
    early: Option<Rc<EarlyStream>>,
}

impl Sending {
    pub(crate) const fn new(
        stream: quinn::SendStream,
        shared: Rc<Shared>,
        early: Option<Rc<EarlyStream>>,
    ) -> Self {
        Self {
            stream,
            shared,
            stopped: None,
            ended: false,
            early,
        }
    }

    /// Takes the stream that replaces this one after a rejection.
    fn settle(&mut self) {
        let Some(Settled::Over(replaced)) = self.early.as_ref().map(|it| it.settle_send()) else {
            return;
        };
        self.early = None;
        if let Some(stream) = replaced {
            (self.stream, self.stopped) = (stream, None);
        }
    }

    /// Writes before the handshake is over.
    fn write_early(
        &mut self,
        early: &EarlyStream,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<Result<usize, WriteError>> {
        early.wait(cx);
        let room = early.room().min(buf.len());
        if room == 0 && !buf.is_empty() {
            return Poll::Pending;
        }
        let written = match ready!(Pin::new(&mut self.stream).poll_write(cx, &buf[..room])) {
            // The bytes are sent after the handshake.
            Err(WriteError::ZeroRttRejected) => Ok(room),
            written => written,
        };
        if let Ok(count) = written {
            early.sent(&buf[..count]);
        }
        Poll::Ready(written)
    }
}

impl AsyncWrite for Sending {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.settle();
        this.shared.adapt_send_window();
        let shared = Rc::clone(&this.shared);
        let written = shared.count(buf.len(), || match this.early.clone() {
            Some(early) => this.write_early(&early, cx, buf),
            None => Pin::new(&mut this.stream).poll_write(cx, buf),
        });
        Poll::Ready(ready!(written).map_err(|error| match error {
            WriteError::Stopped(code) => StreamStopped(Code(code.into_inner())).into(),
            WriteError::ConnectionLost(error) => this.shared.error(&error).into_io(),
            WriteError::ClosedStream | WriteError::ZeroRttRejected => {
                io::ErrorKind::BrokenPipe.into()
            }
        }))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.ended = true;
        this.settle();
        if let Some(early) = &this.early {
            early.ended(End::Regular);
        }
        // A stream that was closed before has ended as well.
        let _ = this.stream.finish();
        Poll::Ready(Ok(()))
    }
}

impl SendStream for Sending {
    /// Puts streams of urgency 0, such as those of the session itself, before all others. The
    /// others share the path: a stream of quinn keeps its place while it has data, so a push behind
    /// a download would stay there after a request has raised it. The session's core decides by
    /// urgency which stream may fill the small window of unsent bytes.
    fn set_priority(&mut self, Priority(urgency): Priority) {
        self.settle();
        let priority = i32::from(urgency == 0);
        if let Some(early) = &self.early {
            early.prioritised(priority);
        }
        // A stream that has ended has no order.
        let _ = self.stream.set_priority(priority);
    }

    fn reset(&mut self, code: Code) {
        self.ended = true;
        self.settle();
        if let Some(early) = &self.early {
            early.ended(End::Reset(code));
        }
        // A stream that was closed before needs no reset.
        let _ = self.stream.reset(number(code));
    }

    fn poll_stopped(&mut self, cx: &mut Context<'_>) -> Poll<Option<Code>> {
        self.settle();
        let stream = &self.stream;
        let stopped = self
            .stopped
            .get_or_insert_with(|| Box::pin(stream.stopped()));
        let result = ready!(stopped.as_mut().poll(cx));
        self.stopped = None;
        if let (Some(early), Err(StoppedError::ZeroRttRejected)) = (&self.early, &result) {
            early.wait(cx);
            return Poll::Pending;
        }
        Poll::Ready(match result {
            Ok(code) => code.map(|code| Code(code.into_inner())),
            Err(_) => None,
        })
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        if !self.ended {
            // quinn would end the stream, and a truncated message would look complete.
            self.reset(CANCELLED);
        }
    }
}

/// The receiving half.
pub(crate) struct Receiving {
    stream: RecvStream,
    shared: Rc<Shared>,
    /// Present until the handshake is over.
    early: Option<Rc<EarlyStream>>,
}

impl Receiving {
    pub(crate) const fn new(
        stream: RecvStream,
        shared: Rc<Shared>,
        early: Option<Rc<EarlyStream>>,
    ) -> Self {
        Self {
            stream,
            shared,
            early,
        }
    }

    /// Takes the stream that replaces this one after a rejection.
    fn settle(&mut self) {
        let Some(Settled::Over(replaced)) = self.early.as_ref().map(|it| it.settle_receive())
        else {
            return;
        };
        self.early = None;
        if let Some(stream) = replaced {
            self.stream = stream;
        }
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        if let Some(early) = &self.early {
            early.stopped(CANCELLED);
        }
    }
}

impl AsyncRead for Receiving {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.settle();
        let before = buf.filled().len();
        let read = ready!(this.stream.poll_read_buf(cx, buf));
        this.shared.note_read(buf.filled().len() - before);
        if let (Some(early), Err(ReadError::ZeroRttRejected)) = (&this.early, &read) {
            early.wait(cx);
            return Poll::Pending;
        }
        Poll::Ready(read.map_err(|error| match error {
            ReadError::Reset(code) => StreamReset(Code(code.into_inner())).into(),
            ReadError::ConnectionLost(error) => this.shared.error(&error).into_io(),
            ReadError::ClosedStream
            | ReadError::IllegalOrderedRead
            | ReadError::ZeroRttRejected => io::ErrorKind::BrokenPipe.into(),
        }))
    }
}

impl ReceiveStream for Receiving {
    fn stop(&mut self, code: Code) {
        self.settle();
        if let Some(early) = self.early.take() {
            early.stopped(code);
        }
        // A stream that was read to its end needs no stop.
        let _ = self.stream.stop(number(code));
    }
}

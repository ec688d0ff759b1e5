//! The halves of one stream of an association.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use tandem::carrier::{Code, ReceiveStream, SendStream, StreamReset, StreamStopped};
use tandem_http::Priority;
use tandem_tunnel::{Read, StreamError, StreamId, Tunnel};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::carrier::Shared;

/// The code of a stream whose own code the tunnel cannot carry, as in HTTP/3 (RFC 9114, section
/// 8.1).
const INTERNAL_ERROR: u32 = 0x102;
/// The bytes that one call copies into a stream.
const WRITE: usize = 64 << 10;

impl Shared {
    /// Runs a call of the tunnel, and then the task that sends.
    pub(crate) fn with_tunnel<T>(
        &self,
        call: impl FnOnce(&mut Tunnel, std::time::Duration) -> Result<T, StreamError>,
    ) -> Result<T, StreamError> {
        let mut association = self.association.borrow_mut();
        let now = association.tunnel_time(Instant::now());
        let result = call(association.tunnel(), now);
        self.work.notify_one();
        result
    }

    fn reset_code(&self, id: StreamId) -> Option<Code> {
        let streams = self.streams.borrow();
        let code = streams.get(&id).and_then(|entry| entry.reset)?;
        Some(Code(u64::from(code)))
    }

    /// Resets both directions of a stream.
    fn reset(&self, id: StreamId, code: Code) {
        let code = u32::try_from(code.0).unwrap_or(INTERNAL_ERROR);
        // A stream that has ended, or was reset by the peer, needs no reset.
        let _ = self.with_tunnel(|tunnel, _| tunnel.reset(id, code));
    }

    /// Notes that the application has dropped one half.
    fn drop_half(&self, id: StreamId) {
        let mut streams = self.streams.borrow_mut();
        let mut abandoned = false;
        if let Some(entry) = streams.get_mut(&id) {
            entry.halves -= 1;
            if entry.halves == 0 {
                abandoned = !entry.ended;
                streams.remove(&id);
            }
        }
        drop(streams);
        // The end that opened the stream no longer wants the reply. The other end has to deliver
        // its reply, and throws the rest of the request away.
        if abandoned && self.association.borrow().side() == id.opener() {
            self.reset(id, Code(0));
        }
        self.wake_waiting();
        self.work.notify_one();
    }
}

/// The half that sends.
pub(crate) struct Sending {
    shared: Rc<Shared>,
    id: StreamId,
    /// True once the stream was finished or reset.
    done: bool,
}

impl Sending {
    pub(crate) const fn new(shared: Rc<Shared>, id: StreamId) -> Self {
        Self {
            shared,
            id,
            done: false,
        }
    }
}

impl AsyncWrite for Sending {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let Some(code) = self.shared.reset_code(self.id) {
            return Poll::Ready(Err(StreamStopped(code).into()));
        }
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let data = &buf[..buf.len().min(WRITE)];
        let id = self.id;
        if self.shared.has_ended() {
            return Poll::Ready(Err(self.shared.error()));
        }
        match self
            .shared
            .with_tunnel(|tunnel, _| tunnel.write_copy(id, data))
        {
            Ok(0) => {
                if let Some(entry) = self.shared.streams.borrow_mut().get_mut(&id) {
                    entry.write = Some(cx.waker().clone());
                }
                Poll::Pending
            }
            Ok(written) => Poll::Ready(Ok(written)),
            Err(_) => Poll::Ready(Err(self.shared.error())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.done {
            return Poll::Ready(Ok(()));
        }
        if self.shared.has_ended() {
            return Poll::Ready(Err(self.shared.error()));
        }
        let id = self.id;
        match self.shared.with_tunnel(|tunnel, _| tunnel.finish(id)) {
            Ok(()) => {
                self.done = true;
                Poll::Ready(Ok(()))
            }
            Err(_) => Poll::Ready(Err(self.shared.error())),
        }
    }
}

impl SendStream for Sending {
    fn set_priority(&mut self, priority: Priority) {
        let id = self.id;
        // A stream that has ended needs no priority.
        let _ = self
            .shared
            .with_tunnel(|tunnel, _| tunnel.prioritise(id, priority.0));
    }

    fn reset(&mut self, code: Code) {
        if !self.done {
            self.done = true;
            self.shared.reset(self.id, code);
        }
    }

    fn has_unacknowledged(&self) -> bool {
        let mut association = self.shared.association.borrow_mut();
        association.tunnel().unacknowledged(self.id) > 0
    }

    fn poll_stopped(&mut self, cx: &mut Context<'_>) -> Poll<Option<Code>> {
        if let Some(code) = self.shared.reset_code(self.id) {
            return Poll::Ready(Some(code));
        }
        match self.shared.streams.borrow_mut().get_mut(&self.id) {
            Some(entry) if !entry.finished && !self.shared.has_ended() => {
                entry.stopped = Some(cx.waker().clone());
                Poll::Pending
            }
            _ => Poll::Ready(None),
        }
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.reset(Code(0));
        self.shared.drop_half(self.id);
    }
}

/// The half that receives.
///
/// A tunnel resets both directions at once. If the application also sends on the stream, a half
/// that is dropped early therefore throws its input away.
pub(crate) struct Receiving {
    shared: Rc<Shared>,
    id: StreamId,
    done: Cell<bool>,
}

impl Receiving {
    pub(crate) const fn new(shared: Rc<Shared>, id: StreamId) -> Self {
        Self {
            shared,
            id,
            done: Cell::new(false),
        }
    }
}

impl AsyncRead for Receiving {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.done.get() || buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        if let Some(code) = self.shared.reset_code(self.id) {
            return Poll::Ready(Err(StreamReset(code).into()));
        }
        let (id, most) = (self.id, buf.remaining());
        match self
            .shared
            .with_tunnel(|tunnel, now| tunnel.read(now, id, most))
        {
            Ok(Read::Data(data)) => {
                buf.put_slice(&data);
                Poll::Ready(Ok(()))
            }
            Ok(Read::End) => {
                self.done.set(true);
                if let Some(entry) = self.shared.streams.borrow_mut().get_mut(&id) {
                    entry.ended = true;
                }
                Poll::Ready(Ok(()))
            }
            // The data that arrived before the end of the association is read first.
            Ok(Read::Blocked) if self.shared.has_ended() => Poll::Ready(Err(self.shared.error())),
            Ok(Read::Blocked) => {
                if let Some(entry) = self.shared.streams.borrow_mut().get_mut(&id) {
                    entry.read = Some(cx.waker().clone());
                }
                Poll::Pending
            }
            Err(_) => Poll::Ready(Err(self.shared.error())),
        }
    }
}

impl ReceiveStream for Receiving {
    fn stop(&mut self, code: Code) {
        if !self.done.replace(true) {
            let mut one_way = false;
            if let Some(entry) = self.shared.streams.borrow_mut().get_mut(&self.id) {
                entry.discard = true;
                one_way = entry.one_way && entry.reset.is_none();
            }
            if one_way {
                return self.shared.reset(self.id, code);
            }
            self.shared.discard(self.id);
            self.shared.work.notify_one();
        }
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        self.stop(Code(0));
        self.shared.drop_half(self.id);
    }
}

//! A stream of a carrier as the driver of HTTP/3 uses it, and the list of streams to look at.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Buf;
use tandem_http::{Priority, SendBuf};
use tokio::io::{AsyncRead as _, AsyncWrite as _};

use crate::carrier::{CarrierStream, Code, ReceiveStream, SendStream, StreamReset, StreamStopped};

/// The streams that may have become readable or writable, and the driver's task.
#[derive(Default)]
pub(super) struct AwakeStreams {
    streams: Mutex<Vec<u64>>,
    task: Mutex<Option<Waker>>,
}

impl AwakeStreams {
    /// Notes the task to wake.
    pub(super) fn set_task(&self, waker: &Waker) {
        match &mut *lock(&self.task) {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
    }

    /// Adds a stream, and wakes no task.
    pub(super) fn add(&self, stream: u64) {
        lock(&self.streams).push(stream);
    }

    /// Takes the streams.
    pub(super) fn take(&self) -> Vec<u64> {
        std::mem::take(&mut *lock(&self.streams))
    }

    pub(super) fn is_empty(&self) -> bool {
        lock(&self.streams).is_empty()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds one stream to the list when the carrier wakes it.
struct StreamWaker {
    stream: u64,
    awake: Arc<AwakeStreams>,
    /// True while the stream is in the list because of this waker.
    listed: AtomicBool,
}

impl Wake for StreamWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.listed.swap(true, Ordering::AcqRel) {
            return;
        }
        self.awake.add(self.stream);
        let task = lock(&self.awake.task).clone();
        if let Some(task) = task {
            task.wake();
        }
    }
}

/// The sending half of a stream.
struct Sending {
    half: Box<dyn SendStream>,
    /// The output of the core that the carrier has not taken.
    out: SendBuf,
    /// True if the stream ends after `out`.
    end: bool,
    /// True while the core waits for `out` to be written.
    writing: bool,
    /// True once the stream was shut down.
    finished: bool,
}

/// The progress of a write.
pub(super) enum Written {
    /// The carrier takes no more at present.
    Blocked,
    /// The carrier has taken all output. If `was_waiting` is true, the core waited for that, and
    /// may give more.
    All { was_waiting: bool },
    /// The peer has stopped the stream.
    Stopped(Code),
    /// The carrier has failed.
    Failed,
}

/// The result of a read.
pub(super) enum Read {
    /// No input is ready, or the half has ended before.
    Nothing,
    /// Bytes are in the buffer.
    Bytes,
    /// The peer has ended its half.
    End,
    /// The peer has reset its half.
    Reset(Code),
    /// The carrier has failed.
    Failed,
}

/// The two halves of a stream of the carrier. The receiving half is dropped when it has ended, and
/// the sending half once the peer has received all of it.
pub(super) struct StreamHalves {
    receiving: Option<Box<dyn ReceiveStream>>,
    sending: Option<Sending>,
    waker: Waker,
    state: Arc<StreamWaker>,
    pub(super) priority: Priority,
    /// True for a stream of the session itself that has written.
    pub(super) is_critical: bool,
    /// The number of the core's last choice of the stream.
    pub(super) turn: u64,
}

impl StreamHalves {
    /// Takes a stream, which is not in the list of streams to look at.
    pub(super) fn new(stream: CarrierStream, awake: &Arc<AwakeStreams>) -> Self {
        let state = Arc::new(StreamWaker {
            stream: stream.id,
            awake: Arc::clone(awake),
            listed: AtomicBool::new(false),
        });
        let sending = stream.send.map(|half| Sending {
            half,
            out: SendBuf::new(),
            end: false,
            writing: false,
            finished: false,
        });
        Self {
            receiving: stream.receive,
            sending,
            waker: Waker::from(Arc::clone(&state)),
            state,
            priority: Priority::default(),
            is_critical: false,
            turn: 0,
        }
    }

    /// Notes that the stream was taken from the list.
    pub(super) fn taken_from_list(&self) {
        self.state.listed.store(false, Ordering::Release);
    }

    /// Returns true once both halves are gone.
    pub(super) const fn is_over(&self) -> bool {
        self.receiving.is_none() && self.sending.is_none()
    }

    /// Returns true until the receiving half has ended.
    pub(super) const fn is_receiving(&self) -> bool {
        self.receiving.is_some()
    }

    /// Returns true if output or an end waits to be written.
    pub(super) fn holds_output(&self) -> bool {
        let holds = |sending: &Sending| sending.end || !sending.out.is_empty();
        self.sending.as_ref().is_some_and(holds)
    }

    /// Returns true while the peer has not received all of a message that this end has finished.
    pub(super) fn is_undelivered(&self) -> bool {
        let unsent = |sending: &Sending| sending.finished || sending.end;
        self.sending.as_ref().is_some_and(unsent)
    }

    /// Returns the buffer for the next output of the core, if the stream can still send.
    pub(super) fn output(&mut self) -> Option<&mut SendBuf> {
        let sending = self.sending.as_mut().filter(|s| !s.finished && !s.end)?;
        sending.writing = true;
        Some(&mut sending.out)
    }

    /// Ends the stream after its output.
    pub(super) fn end_after_output(&mut self) {
        if let Some(sending) = &mut self.sending {
            sending.end = true;
        }
    }

    /// Writes the output of the core.
    pub(super) fn write(&mut self) -> Written {
        let Self { sending, waker, .. } = self;
        let Some(sending) = sending else {
            return Written::All { was_waiting: false };
        };
        let mut cx = Context::from_waker(waker);
        while !sending.out.is_empty() {
            let half = Pin::new(&mut sending.half);
            match half.poll_write(&mut cx, sending.out.chunk()) {
                Poll::Pending => return Written::Blocked,
                Poll::Ready(Ok(0)) => return Written::Failed,
                Poll::Ready(Ok(count)) => sending.out.advance(count),
                Poll::Ready(Err(error)) => return write_error(&error),
            }
        }
        sending.out.shrink();
        if sending.end {
            match Pin::new(&mut sending.half).poll_shutdown(&mut cx) {
                Poll::Pending => return Written::Blocked,
                Poll::Ready(Ok(())) => (sending.end, sending.finished) = (false, true),
                Poll::Ready(Err(error)) => return write_error(&error),
            }
        }
        Written::All {
            was_waiting: std::mem::take(&mut sending.writing),
        }
    }

    /// Notes that the peer has everything, or returns the code with which it has stopped the
    /// stream.
    pub(super) fn poll_stopped(&mut self) -> Option<Code> {
        let sending = self.sending.as_mut()?;
        let mut cx = Context::from_waker(&self.waker);
        match sending.half.poll_stopped(&mut cx) {
            Poll::Pending => None,
            Poll::Ready(Some(code)) => Some(code),
            Poll::Ready(None) => {
                if sending.finished {
                    self.sending = None;
                }
                None
            }
        }
    }

    /// Reads into `buf`.
    pub(super) fn read(&mut self, buf: &mut tokio::io::ReadBuf<'_>) -> Read {
        let Some(half) = &mut self.receiving else {
            return Read::Nothing;
        };
        let mut cx = Context::from_waker(&self.waker);
        let read = match Pin::new(half).poll_read(&mut cx, buf) {
            Poll::Pending => return Read::Nothing,
            Poll::Ready(Ok(())) if buf.filled().is_empty() => Read::End,
            Poll::Ready(Ok(())) => return Read::Bytes,
            Poll::Ready(Err(error)) => match inner::<StreamReset>(&error) {
                Some(StreamReset(code)) => Read::Reset(*code),
                None => Read::Failed,
            },
        };
        self.receiving = None;
        read
    }

    /// Ends the sending half at once.
    pub(super) fn reset(&mut self, code: Code) {
        if let Some(mut sending) = self.sending.take() {
            sending.half.reset(code);
        }
    }

    /// Drops the sending half. The carrier resets it unless it has ended.
    pub(super) fn drop_sending(&mut self) {
        self.sending = None;
    }

    /// Ends the receiving half.
    pub(super) fn stop(&mut self, code: Code) {
        if let Some(mut half) = self.receiving.take() {
            half.stop(code);
        }
    }

    /// Sets the order of sending.
    pub(super) fn set_priority(&mut self, priority: Priority) {
        self.priority = priority;
        if let Some(sending) = &mut self.sending {
            sending.half.set_priority(priority);
        }
    }
}

fn write_error(error: &io::Error) -> Written {
    match inner::<StreamStopped>(error) {
        Some(StreamStopped(code)) => Written::Stopped(*code),
        None => Written::Failed,
    }
}

fn inner<E: std::error::Error + 'static>(error: &io::Error) -> Option<&E> {
    error.get_ref()?.downcast_ref()
}

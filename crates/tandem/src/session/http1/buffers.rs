//! Read buffers that come back: what was read from an origin travels on as slices of them, and once the last slice has been
//! written they are used again, so that a body of any size costs no fresh memory. A waiting exchange holds none.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::ops::{Deref, DerefMut};
use std::task::{Context, Poll};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Bytes of one buffer, and so of one read at most.
pub(super) const SIZE: usize = 64 << 10;

/// Buffers kept for later by one thread.
const KEPT: usize = 128;

/// Buffers looked at before a new one is made: those that came back longest ago are the likeliest to be free.
const LOOKS: usize = 12;

thread_local! {
    static POOL: RefCell<VecDeque<BytesMut>> = const { RefCell::new(VecDeque::new()) };
}

fn take() -> BytesMut {
    POOL.with_borrow_mut(|pool| {
        for _ in 0..LOOKS.min(pool.len()) {
            if let Some(mut buffer) = pool.pop_front() {
                if buffer.try_reclaim(SIZE) {
                    return buffer;
                }
                pool.push_back(buffer);
            }
        }
        BytesMut::with_capacity(SIZE)
    })
}

/// Bytes that have been read, in a buffer of the pool while there are any.
#[derive(Default)]
pub(super) struct Buffer {
    bytes: BytesMut,
    pooled: bool,
}

impl Buffer {
    /// Reads more, after what it holds.
    pub(super) async fn read<R: AsyncRead + Unpin>(&mut self, path: &mut R) -> io::Result<usize> {
        std::future::poll_fn(|cx| self.poll_read(path, cx)).await
    }

    fn poll_read<R: AsyncRead + Unpin>(&mut self, path: &mut R, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.bytes.is_empty() {
            self.give_back();
            self.bytes = take();
            self.pooled = true;
        } else {
            self.bytes.reserve(SIZE / 4);
        }
        let polled = {
            let mut reading = std::pin::pin!(path.read_buf(&mut self.bytes));
            reading.as_mut().poll(cx)
        };
        if self.bytes.is_empty() {
            self.give_back();
        }
        polled
    }

    /// What has been split off lives on; the rest of the buffer waits for it in the pool.
    fn give_back(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        if std::mem::take(&mut self.pooled) {
            POOL.with_borrow_mut(|pool| {
                if pool.len() < KEPT {
                    pool.push_back(bytes);
                }
            });
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl Deref for Buffer {
    type Target = BytesMut;

    fn deref(&self) -> &BytesMut {
        &self.bytes
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut BytesMut {
        &mut self.bytes
    }
}

//! Buffers for reading bodies, which are used again as soon as the last piece of their content has
//! left.
//!
//! Without them each read of a body would allocate memory, and the allocator would return the pages
//! to the kernel and fetch them again. The buffer that was given back last is used first, while it
//! is still in the processor's cache.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::Poll;

use bytes::Bytes;
use tokio::io::{AsyncRead, ReadBuf};

/// The size of a buffer in bytes.
const SIZE: usize = 64 << 10;

/// The number of free buffers that a thread keeps.
const KEPT: usize = 192;

/// The size in bytes below which a read is copied out of its buffer. The reads of a slow origin
/// must not hold a whole buffer each: a queue of bodies uses at most twice the memory of its bytes.
const COPY_BELOW: usize = SIZE / 2;

thread_local! {
    static FREE: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

fn take() -> Box<[u8]> {
    FREE.with_borrow_mut(Vec::pop)
        .unwrap_or_else(|| vec![0; SIZE].into())
}

fn give_back(buffer: Box<[u8]>) {
    // A thread that is ending keeps no buffers.
    let _ = FREE.try_with(|free| {
        if let Ok(mut free) = free.try_borrow_mut()
            && free.len() < KEPT
        {
            free.push(buffer);
        }
    });
}

/// A buffer that becomes free when its last piece is dropped.
struct Filled {
    buffer: Box<[u8]>,
    len: usize,
}

impl AsRef<[u8]> for Filled {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[..self.len]
    }
}

impl Drop for Filled {
    fn drop(&mut self) {
        give_back(std::mem::take(&mut self.buffer));
    }
}

/// Reads at most one buffer. Returns no bytes at the end of the input. No buffer is held while no
/// input is ready.
pub(super) async fn read<R: AsyncRead + Unpin>(from: &mut R) -> io::Result<Bytes> {
    poll_fn(|cx| {
        let mut buffer = take();
        let mut into = ReadBuf::new(&mut buffer);
        let polled = Pin::new(&mut *from).poll_read(cx, &mut into);
        let len = into.filled().len();
        match polled {
            Poll::Ready(Ok(())) if len >= COPY_BELOW => {
                Poll::Ready(Ok(Bytes::from_owner(Filled { buffer, len })))
            }
            polled => {
                let copied = Bytes::copy_from_slice(&buffer[..len]);
                give_back(buffer);
                polled.map_ok(|()| copied)
            }
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now<T>(future: impl Future<Output = T>) -> T {
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        match std::pin::pin!(future).poll(&mut cx) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("memory is always ready"),
        }
    }

    fn kept() -> usize {
        FREE.with_borrow(Vec::len)
    }

    #[test]
    fn buffer_is_freed_with_its_last_piece() {
        let body = vec![7; SIZE + COPY_BELOW];
        let mut from = &body[..];
        let first = now(read(&mut from)).expect("memory");
        let second = now(read(&mut from)).expect("memory");
        assert_eq!((first.len(), second.len(), kept()), (SIZE, COPY_BELOW, 0));
        let piece = first.slice(10..20);
        drop(first);
        assert_eq!(kept(), 0);
        drop((piece, second));
        assert_eq!(kept(), 2);
        assert!(now(read(&mut from)).expect("memory").is_empty());
        assert_eq!(kept(), 2);
    }

    #[test]
    fn short_reads_hold_no_buffer() {
        let mut from = &[1; COPY_BELOW - 1][..];
        let crumb = now(read(&mut from)).expect("memory");
        assert_eq!((crumb.len(), kept()), (COPY_BELOW - 1, 1));
    }

    #[test]
    fn thread_keeps_few_free_buffers() {
        let pieces: Vec<Bytes> = (0..KEPT + 3)
            .map(|_| now(read(&mut &[1; SIZE][..])).expect("memory"))
            .collect();
        drop(pieces);
        assert_eq!(kept(), KEPT);
    }
}

//! Buffers for reading responses, which are used again as soon as the last piece of their content
//! has left.
//!
//! Without them each read would allocate memory, and the allocator would return the pages to the
//! kernel and fetch them again. The buffer that was given back last is used first, while it is
//! still in the processor's cache.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::Poll;

use bytes::Bytes;
use tokio::io::{AsyncRead, ReadBuf};

/// The size of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    /// The first read of a response, which holds the head and body of most responses.
    First,
    /// A read of the rest of a body.
    Rest,
}

impl Size {
    /// Returns the size of the buffer in bytes.
    const fn bytes(self) -> usize {
        match self {
            Self::First => 16 << 10,
            Self::Rest => 64 << 10,
        }
    }

    /// Returns the number of bytes below which a read is copied out of its buffer. The reads of a
    /// slow origin must not hold a whole buffer each: a queue of bodies uses at most twice the
    /// memory of its bytes.
    const fn copy_below(self) -> usize {
        self.bytes() / 2
    }
}

/// The number of free buffers of each size that a thread keeps.
const KEPT: usize = 192;

/// Free buffers of both sizes.
#[derive(Default)]
struct Free {
    first: Vec<Box<[u8]>>,
    rest: Vec<Box<[u8]>>,
}

impl Free {
    const fn of(&mut self, size: Size) -> &mut Vec<Box<[u8]>> {
        match size {
            Size::First => &mut self.first,
            Size::Rest => &mut self.rest,
        }
    }
}

thread_local! {
    static FREE: RefCell<Free> = const {
        RefCell::new(Free { first: Vec::new(), rest: Vec::new() })
    };
}

fn take(size: Size) -> Box<[u8]> {
    FREE.with_borrow_mut(|free| free.of(size).pop())
        .unwrap_or_else(|| vec![0; size.bytes()].into())
}

fn give_back(size: Size, buffer: Box<[u8]>) {
    // A thread that is ending keeps no buffers.
    let _ = FREE.try_with(|free| {
        if let Ok(mut free) = free.try_borrow_mut()
            && free.of(size).len() < KEPT
        {
            free.of(size).push(buffer);
        }
    });
}

/// A buffer that becomes free when its last piece is dropped.
struct Filled {
    buffer: Box<[u8]>,
    size: Size,
    len: usize,
}

impl AsRef<[u8]> for Filled {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[..self.len]
    }
}

impl Drop for Filled {
    fn drop(&mut self) {
        give_back(self.size, std::mem::take(&mut self.buffer));
    }
}

/// Reads at most one buffer. Returns no bytes at the end of the input. No buffer is held while no
/// input is ready.
pub(super) async fn read<R: AsyncRead + Unpin>(from: &mut R, size: Size) -> io::Result<Bytes> {
    poll_fn(|cx| {
        let mut buffer = take(size);
        let mut into = ReadBuf::new(&mut buffer);
        let polled = Pin::new(&mut *from).poll_read(cx, &mut into);
        let len = into.filled().len();
        match polled {
            Poll::Ready(Ok(())) if len >= size.copy_below() => {
                Poll::Ready(Ok(Bytes::from_owner(Filled { buffer, size, len })))
            }
            polled => {
                let copied = Bytes::copy_from_slice(&buffer[..len]);
                give_back(size, buffer);
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

    const SIZE: usize = Size::Rest.bytes();

    const COPY_BELOW: usize = Size::Rest.copy_below();

    fn kept() -> usize {
        FREE.with_borrow(|free| free.rest.len())
    }

    #[test]
    fn buffer_is_freed_with_its_last_piece() {
        let body = vec![7; SIZE + COPY_BELOW];
        let mut from = &body[..];
        let first = now(read(&mut from, Size::Rest)).expect("memory");
        let second = now(read(&mut from, Size::Rest)).expect("memory");
        assert_eq!((first.len(), second.len(), kept()), (SIZE, COPY_BELOW, 0));
        let piece = first.slice(10..20);
        drop(first);
        assert_eq!(kept(), 0);
        drop((piece, second));
        assert_eq!(kept(), 2);
        assert!(now(read(&mut from, Size::Rest)).expect("memory").is_empty());
        assert_eq!(kept(), 2);
    }

    #[test]
    fn short_reads_hold_no_buffer() {
        let mut from = &[1; COPY_BELOW - 1][..];
        let crumb = now(read(&mut from, Size::Rest)).expect("memory");
        assert_eq!((crumb.len(), kept()), (COPY_BELOW - 1, 1));
    }

    #[test]
    fn thread_keeps_few_free_buffers() {
        let pieces: Vec<Bytes> = (0..KEPT + 3)
            .map(|_| now(read(&mut &[1; SIZE][..], Size::Rest)).expect("memory"))
            .collect();
        drop(pieces);
        assert_eq!(kept(), KEPT);
    }

    #[test]
    fn sizes_of_reads_share_no_buffers() {
        let body = vec![7; SIZE];
        let first = now(read(&mut &body[..], Size::First)).expect("memory");
        assert_eq!(first.len(), Size::First.bytes());
        drop(first);
        assert_eq!((FREE.with_borrow(|free| free.first.len()), kept()), (1, 0));
        let rest = now(read(&mut &body[..], Size::Rest)).expect("memory");
        assert_eq!(rest.len(), SIZE);
    }
}

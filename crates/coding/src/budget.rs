//! The memory of encoders and decoders: a bound for the process, and a smaller one for each
//! session.
//!
//! A body that finds no room travels uncompressed, so an exhausted budget costs bytes and never a
//! response.

use std::cell::Cell;
use std::rc::Rc;

/// A bound on bytes, which may be part of a larger one.
#[derive(Clone, Debug)]
pub struct Budget {
    left: Rc<Cell<usize>>,
    whole: Option<Rc<Self>>,
}

impl Budget {
    /// Creates a budget of `bytes`.
    pub fn new(bytes: usize) -> Self {
        Self {
            left: Rc::new(Cell::new(bytes)),
            whole: None,
        }
    }

    /// Creates a budget of at most `bytes` that also draws on `self`.
    pub fn part(&self, bytes: usize) -> Self {
        Self {
            whole: Some(Rc::new(self.clone())),
            ..Self::new(bytes)
        }
    }

    /// Returns the number of bytes that can be reserved.
    pub fn left(&self) -> usize {
        let whole = self.whole.as_ref().map_or(usize::MAX, |whole| whole.left());
        self.left.get().min(whole)
    }

    /// Takes `bytes` until the reservation is dropped, or returns `None` if they are not left.
    pub fn reserve(&self, bytes: usize) -> Option<Reservation> {
        let left = self.left.get().checked_sub(bytes)?;
        let whole = match &self.whole {
            Some(whole) => Some(Box::new(whole.reserve(bytes)?)),
            None => None,
        };
        self.left.set(left);
        Some(Reservation {
            left: Rc::clone(&self.left),
            bytes,
            _whole: whole,
        })
    }
}

/// Bytes that are taken from a [`Budget`]. Dropping it returns them.
#[derive(Debug)]
pub struct Reservation {
    left: Rc<Cell<usize>>,
    bytes: usize,
    _whole: Option<Box<Self>>,
}

impl Reservation {
    /// Returns the number of bytes.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.left.set(self.left.get() + self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_bounds_each_part_and_the_whole() {
        let whole = Budget::new(10);
        let (one, other) = (whole.part(8), whole.part(8));
        let first = one.reserve(8).expect("the whole has room");
        assert!(one.reserve(1).is_none(), "the part is spent");
        assert!(other.reserve(3).is_none(), "the whole is spent");
        let second = other.reserve(2);
        assert!(second.is_some());
        drop(first);
        assert!(other.reserve(6).is_some() && one.reserve(8).is_some());
        drop(second);
        assert!(whole.reserve(10).is_some());
        assert_eq!((one.left(), whole.left()), (8, 10));
    }
}

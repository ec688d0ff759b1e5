//! The memory of a tunnel: one bound for the bytes that its streams may hold.
//!
//! The thesis (section 8.1.4) gives each socket fixed buffers of megabytes. Here the streams take
//! from one pool and give back. A receive window is reserved before it is offered to the peer, so
//! the bound holds whatever the peer sends: the pool, and the first credit of each stream for each
//! direction.

/// A bounded number of bytes.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    limit: u64,
    used: u64,
    /// The used bytes that wait for streams which do not exist yet.
    aside: u64,
}

impl Pool {
    pub(crate) const fn new(limit: u64) -> Self {
        Self {
            limit,
            used: 0,
            aside: 0,
        }
    }

    /// Takes up to `wanted` bytes, and returns the number of bytes taken. The first `guaranteed` of
    /// them are taken without regard to the bound, so that no stream ever stands still. Beyond
    /// them, a call takes at most half of the free bytes, which leaves some for other streams.
    pub(crate) fn reserve(&mut self, wanted: u64, guaranteed: u64) -> u64 {
        let free = self.limit.saturating_sub(self.used);
        let granted = wanted.min(guaranteed.max(free / 2));
        self.used += granted;
        granted
    }

    /// Returns the bytes that a stream may take which has not used any yet. They are an eighth of
    /// the first half of the pool without `used`, since the stream may never need them. The other
    /// half is for streams that do.
    const fn share(&self, used: u64) -> u64 {
        (self.limit / 2).saturating_sub(used) / 8
    }

    /// Returns the bytes of a wide window: a sixteenth of the first quarter of the pool without the
    /// used bytes. The usual windows of many streams then still fit the first half.
    pub(crate) const fn wide_window(&self) -> u64 {
        let used = self.used.saturating_sub(self.aside);
        (self.limit / 4).saturating_sub(used) / 16
    }

    /// Takes up to `wanted` bytes for a stream that has not used any yet, and returns their number.
    /// What is set aside does not make it smaller.
    pub(crate) fn reserve_share(&mut self, wanted: u64) -> u64 {
        let granted = wanted.min(self.share(self.used.saturating_sub(self.aside)));
        self.used += granted;
        granted
    }

    /// Takes `wanted` bytes as [`Self::reserve_share`] does, or none. Returns false in that case.
    pub(crate) fn reserve_whole(&mut self, wanted: u64) -> bool {
        let granted = self.reserve_share(wanted);
        if granted < wanted {
            self.release(granted);
        }
        granted == wanted
    }

    /// Sets `wanted` bytes aside for a stream that does not exist yet. Returns false, and takes
    /// none, if the pool is not free enough.
    pub(crate) fn set_aside(&mut self, wanted: u64) -> bool {
        // All bytes count, so no more than the first half of the pool is ever set aside. A share
        // beside it therefore stays within the limit.
        let is_free = wanted <= self.share(self.used);
        if is_free {
            self.used += wanted;
            self.aside += wanted;
        }
        is_free
    }

    /// Leaves bytes that were set aside to their stream.
    pub(crate) fn hand_over(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.aside, "{bytes} of {}", self.aside);
        self.aside = self.aside.saturating_sub(bytes);
    }

    /// Gives bytes back.
    pub(crate) fn release(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.used, "{bytes} of {}", self.used);
        self.used = self.used.saturating_sub(bytes);
    }

    /// Returns the bytes that are taken.
    pub(crate) const fn used(&self) -> u64 {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_gives_shares_beside_bytes_that_are_set_aside() {
        for piece in [1, 1000, 1 << 14] {
            let (mut pool, mut other) = (Pool::new(1 << 20), Pool::new(1 << 20));
            while pool.set_aside(piece) {}
            assert!(pool.used() <= 1 << 19 && pool.used() >= (1 << 19) - 9 * piece);
            let aside = pool.used();
            let shares = |pool: &mut Pool| (0..200).map(|_| pool.reserve_share(5000)).sum::<u64>();
            assert_eq!(shares(&mut pool), shares(&mut other));
            assert!(!pool.reserve_whole(5000) && !pool.set_aside(piece));
            // They stay within the limit, and a stream that exists counts.
            while pool.reserve(1 << 20, 0) > 0 {}
            assert!(pool.used() <= 1 << 20);
            pool.hand_over(aside);
            assert_eq!(pool.reserve_share(5000), 0);
        }
    }
}

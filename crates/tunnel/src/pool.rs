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
}

impl Pool {
    pub(crate) const fn new(limit: u64) -> Self {
        Self { limit, used: 0 }
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

    /// Takes up to `wanted` bytes for a stream that has not used any yet, and returns their number.
    /// It is at most an eighth of the bytes that are free in the first half of the pool, since the
    /// stream may never need them. The other half is for streams that do.
    pub(crate) fn reserve_share(&mut self, wanted: u64) -> u64 {
        let granted = wanted.min((self.limit / 2).saturating_sub(self.used) / 8);
        self.used += granted;
        granted
    }

    /// Takes `wanted` bytes for a stream that does not exist yet, or none. They are bounded like
    /// those of [`Self::reserve_share`].
    pub(crate) fn reserve_whole(&mut self, wanted: u64) -> bool {
        let granted = self.reserve_share(wanted);
        if granted < wanted {
            self.release(granted);
        }
        granted == wanted
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

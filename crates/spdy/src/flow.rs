//! Windows: how many bytes of DATA each end may still send, per stream and, in SPDY/3.1, per
//! session. Draft section 2.6.8.

/// Both drafts begin with 64 KiB, not 65,535 bytes.
pub(crate) const INITIAL_WINDOW: u32 = 65_536;

/// Largest window that credit may make.
const MAX_WINDOW: i64 = crate::frame::MAX_31 as i64;

/// The send window of a stream, in bytes. It is negative after the peer lowered its initial window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SendWindow(i64);

/// The window would grow beyond 2^31 - 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overflow;

impl SendWindow {
    /// For a peer that counts no windows.
    pub(crate) const UNLIMITED: Self = Self(1 << 62);

    pub(crate) const fn new(size: u32) -> Self {
        Self(size as i64)
    }

    /// Bytes that may go now.
    pub(crate) const fn room(self) -> usize {
        if self.0 > 0 { self.0 as usize } else { 0 }
    }

    pub(crate) const fn consume(&mut self, count: usize) {
        self.0 -= count as i64;
    }

    /// Moves the window by credit, or by the difference of two initial windows.
    pub(crate) const fn shift(&mut self, delta: i64) -> Result<(), Overflow> {
        self.0 += delta;
        if self.0 > MAX_WINDOW {
            Err(Overflow)
        } else {
            Ok(())
        }
    }
}

/// The receive window of a stream, in bytes, and the credit due to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReceiveWindow {
    open: i64,
    owed: u32,
}

impl ReceiveWindow {
    /// The peer starts with 64 KiB before it hears of a smaller window, so less is never enforced.
    pub(crate) fn new(size: u32) -> Self {
        Self {
            open: i64::from(size.max(INITIAL_WINDOW)),
            owed: 0,
        }
    }

    /// The initial window grew by this many bytes.
    pub(crate) const fn widen(&mut self, count: u32) {
        self.open += count as i64;
    }

    /// A frame of this size arrived; false when it is more than was allowed.
    pub(crate) const fn receive(&mut self, count: u32) -> bool {
        self.open -= count as i64;
        self.open >= 0
    }

    /// Bytes were used: the peer may send as many more, once it is told.
    pub(crate) const fn owe(&mut self, count: u32) {
        self.owed = self.owed.saturating_add(count);
    }

    pub(crate) const fn owed(&self) -> u32 {
        self.owed
    }

    /// Takes the credit to tell the peer.
    pub(crate) fn take_owed(&mut self) -> u32 {
        self.open += i64::from(self.owed);
        std::mem::take(&mut self.owed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_below_zero_when_lowered() {
        let mut window = SendWindow::new(65_536);
        window.consume(65_536);
        assert_eq!(window.shift(16_384 - 65_536), Ok(()));
        assert_eq!(window, SendWindow(-49_152));
        assert_eq!(window.room(), 0);
        assert_eq!(window.shift(49_153), Ok(()));
        assert_eq!(window.room(), 1);
    }

    #[test]
    fn overflows_beyond_31_bits() {
        let mut window = SendWindow::new(1);
        assert_eq!(window.shift(MAX_WINDOW - 1), Ok(()));
        assert_eq!(window.shift(1), Err(Overflow));
    }

    #[test]
    fn receives_what_it_allows() {
        let mut window = ReceiveWindow::new(100);
        assert!(window.receive(65_536));
        assert!(!window.receive(1));
        let mut window = ReceiveWindow::new(1 << 20);
        assert!(window.receive(1 << 20));
        window.owe(10);
        assert_eq!(window.take_owed(), 10);
        assert_eq!(window.owed(), 0);
        assert!(window.receive(10));
        assert!(!window.receive(1));
    }
}

//! The window of a connection: the bytes that the other end may send on all streams before they are
//! read.
//!
//! quinn gives each stream a fixed window. A few unread streams thus fill that of the connection,
//! and all others stop. The window here grows with them:
//!
//! ```text
//!   base + (streams that are not read) · (window of a stream), up to a bound
//!                                │
//!   at the bound, the other end reports that it has no credit (DATA_BLOCKED), and does so again
//!   after it got the credit of all reads ──▶ full: the session gives one stream up
//! ```
//!
//! QUIC does not oblige a peer to report this, and the session gives no stream up for one that does
//! not.
//!
//! A window that has grown stays for the life of its connection. quinn shrinks a window by keeping
//! the credit of later reads. If the window grew again before that, it would exceed its bound, and
//! a stream that is given up would free nothing.

/// The bytes that a peer may send on one stream before they are read: 1.6 times the product of 100
/// Mbit/s and 400 ms, as over HTTP/2.
pub(crate) const STREAM_WINDOW: u32 = 8 << 20;
/// The windows of the connection at a client: the base, and the bound. Above the base there is room
/// for sixteen unread streams, such as paused downloads.
pub(crate) const CLIENT: Bounds = Bounds {
    base: 64 << 20,
    most: 192 << 20,
};
/// The same at a gateway, until it has admitted a request: anyone can fill this window.
pub(crate) const NEWCOMER: Bounds = Bounds {
    base: 1 << 20,
    most: 1 << 20,
};
/// The same for a client that was admitted. Above the base there is room for ten unread uploads:
/// more than the eight tunnels that a session of a relay shares with others.
pub(crate) const ADMITTED: Bounds = Bounds {
    base: 16 << 20,
    most: 96 << 20,
};
/// The bytes that streams read after a full window was announced, below which the window counts as
/// full: too little of it is left for the streams that are read.
const LITTLE: u64 = 1 << 20;

/// The sizes of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// The size while all streams are read.
    pub(crate) base: u32,
    /// The largest size.
    pub(crate) most: u32,
}

/// The window of a connection.
#[derive(Debug)]
pub(crate) struct Window {
    bounds: Bounds,
    size: u32,
    /// The reports of the other end that it has no credit.
    reports: u64,
    /// The bytes that were read since the credit of all reads was announced to a peer without any.
    /// `None` if it was not announced.
    read: Option<u64>,
    /// True if credit was freed that the next call announces.
    frees: bool,
}

/// The consequence of unread streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WindowChange {
    /// The new size of the window.
    pub(crate) size: Option<u32>,
    /// True if the credit of all reads must be announced. quinn keeps up to an eighth of the window
    /// back.
    pub(crate) announces: bool,
    /// True if unread data fills the window.
    pub(crate) is_full: bool,
}

impl Window {
    pub(crate) const fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            size: bounds.base,
            reports: 0,
            read: None,
            frees: false,
        }
    }

    /// Changes the bounds of a window that has not grown. Returns its size.
    pub(crate) fn widen(&mut self, bounds: Bounds) -> u32 {
        if self.bounds != bounds {
            *self = Self::new(bounds);
        }
        self.size
    }

    /// Returns the size of the window.
    pub(crate) const fn size(&self) -> u32 {
        self.size
    }

    /// Notes bytes that were read from a stream.
    pub(crate) fn note_read(&mut self, bytes: usize) {
        if let Some(read) = &mut self.read {
            *read = read.saturating_add(bytes as u64);
        }
    }

    /// Notes the number of streams that are not read, and how often the other end has reported that
    /// it has no credit for the connection.
    pub(crate) fn hold(&mut self, streams: usize, reports: u64) -> WindowChange {
        let Bounds { base, most } = self.bounds;
        let of_streams =
            u32::try_from(streams).map_or(u32::MAX, |it| it.saturating_mul(STREAM_WINDOW));
        let wanted = base.saturating_add(of_streams).min(most);
        let has_reported = self.reports != reports;
        self.reports = reports;
        let size = (wanted > self.size).then_some(wanted);
        self.size = size.unwrap_or(self.size);
        // A window that cannot grow is that of a newcomer, whose requests have a time limit.
        if self.size < most || base == most || streams == 0 || size.is_some() {
            (self.read, self.frees) = (None, false);
            return WindowChange {
                size,
                ..WindowChange::default()
            };
        }
        let frees = std::mem::take(&mut self.frees);
        let is_full = has_reported && self.read.is_some_and(|read| read < LITTLE);
        self.frees = is_full;
        if has_reported || frees {
            self.read = Some(0);
        }
        WindowChange {
            size,
            announces: has_reported || frees,
            is_full,
        }
    }
}

#[cfg(test)]
mod tests_over_loopback;

#[cfg(test)]
mod tests {
    use super::*;

    fn grown(size: u32) -> WindowChange {
        WindowChange {
            size: Some(size),
            ..WindowChange::default()
        }
    }

    /// The answer to a report of a window that is not full.
    const ANNOUNCED: WindowChange = WindowChange {
        size: None,
        announces: true,
        is_full: false,
    };
    const FULL: WindowChange = WindowChange {
        is_full: true,
        ..ANNOUNCED
    };

    #[test]
    fn window_grows_with_unread_streams_up_to_its_bound() {
        let mut window = Window::new(CLIENT);
        assert_eq!(window.hold(1, 0), grown(72 << 20));
        assert_eq!(window.hold(7, 0), grown(120 << 20));
        assert_eq!(window.hold(3, 0), WindowChange::default(), "it stays");
        assert_eq!(window.hold(usize::MAX, 0), grown(192 << 20));
        for streams in [10, 1000, 0, 16] {
            assert_eq!(window.hold(streams, 0), WindowChange::default());
        }
    }

    #[test]
    fn window_below_its_bound_is_never_full() {
        let mut window = Window::new(CLIENT);
        for reports in 1..9 {
            let held = window.hold(2, reports);
            assert!(!held.is_full && !held.announces, "{held:?}");
        }
        let mut newcomer = Window::new(NEWCOMER);
        for reports in 1..9 {
            assert_eq!(newcomer.hold(3, reports), WindowChange::default());
        }
    }

    #[test]
    fn window_is_full_if_its_peer_has_no_credit_again() {
        let mut window = Window::new(CLIENT);
        window.hold(20, 0);
        assert_eq!(window.hold(20, 1), ANNOUNCED);
        assert_eq!(
            window.hold(20, 1),
            WindowChange::default(),
            "it sends again"
        );
        assert_eq!(window.hold(20, 2), FULL);
        // The session has given a stream up.
        assert_eq!(window.hold(19, 2), ANNOUNCED);
        assert_eq!(
            window.hold(19, 2),
            WindowChange::default(),
            "one was enough"
        );
        assert_eq!(window.hold(19, 3), FULL);
    }

    #[test]
    fn window_with_enough_for_readers_is_not_full() {
        let mut window = Window::new(CLIENT);
        window.hold(20, 0);
        for reports in 1..9 {
            assert_eq!(window.hold(20, reports), ANNOUNCED);
            window.note_read(LITTLE as usize);
        }
        assert_eq!(window.hold(20, 9), ANNOUNCED);
        window.note_read(LITTLE as usize - 1);
        assert_eq!(window.hold(20, 10), FULL);
    }

    #[test]
    fn gateway_window_is_widened_once() {
        let mut window = Window::new(NEWCOMER);
        assert_eq!(window.hold(3, 0), WindowChange::default());
        assert_eq!(window.widen(ADMITTED), 16 << 20);
        assert_eq!(window.hold(2, 0), grown(32 << 20));
        assert_eq!(window.widen(ADMITTED), 32 << 20, "it has grown");
        assert_eq!(window.hold(300, 0), grown(96 << 20));
    }
}

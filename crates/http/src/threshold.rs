//! The window of the streams of a session that holds unread bytes.
//!
//! Sits beside the session cores, which adapt it whenever they hold more or fewer bytes. HTTP/2 and
//! SPDY announce the window in SETTINGS (RFC 9113 section 6.9.2, SPDY draft section 2.6.4).
//!
//! An unread stream keeps its window full. With a fixed window a few such streams fill
//! the memory of a session, and all other streams then wait for them. Here the window is a part of
//! the memory that is left, as in the dynamic thresholds of switch buffers (Choudhury and Hahne,
//! 1998):
//!
//! ```text
//! receive_budget
//! ├─ session_window   for bytes that were on their way when the window became smaller
//! ├─ an eighth        for a least window of each of 256 streams
//! └─ the rest         held bytes reduce it; a window is at most half of what is left
//! ```
//!
//! A peer handles our SETTINGS before the credit that follows them, so at most a session window
//! arrives under the old limit. Therefore 256 streams that hold bytes never hold the whole budget,
//! the session need not withhold its own credit, and each stream can always move a least window.
//! Streams that have ended count until their bytes are released. A budget below 32 MiB has room for
//! fewer streams, since no window is smaller than [`LEAST_WINDOW`].

use crate::MuxConfig;
use crate::flood::LEAST_WINDOW;

/// A window is at most this part of the memory that is left.
const PART: usize = 2;
/// The streams that may hold bytes at once.
const STREAMS: usize = 256;

/// The receive window of new streams, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct DynamicWindow {
    widest: u32,
    least: u32,
    /// The bytes that wide windows may use.
    wide: usize,
    current: u32,
}

impl DynamicWindow {
    /// Creates the window of a session that holds nothing: `stream_window`.
    ///
    /// A budget below eight stream windows is treated as if wide windows had three of them. Its
    /// session may withhold credit when more streams are not read.
    pub fn new(config: &MuxConfig) -> Self {
        let widest = config.stream_window;
        let reserve = config.receive_budget / 8;
        let least = u32::try_from(reserve / STREAMS).unwrap_or(u32::MAX);
        let others = reserve.saturating_add(config.session_window as usize);
        let wide = config.receive_budget.saturating_sub(others);
        Self {
            widest,
            least: least.max(LEAST_WINDOW).min(widest),
            wide: wide.max((PART + 1).saturating_mul(widest as usize)),
            current: widest,
        }
    }

    /// Returns the window, in bytes.
    pub const fn current(&self) -> u32 {
        self.current
    }

    /// Returns the smallest window, in bytes.
    pub const fn least(&self) -> u32 {
        self.least
    }

    /// Adapts the window to the number of bytes that the session holds. Returns true if it changed.
    /// The window does not grow unless `may_grow` is true.
    ///
    /// The window is halved and doubled. It grows only if room for half a window more is left, so
    /// that a reader near the limit does not change it with each read.
    pub const fn adapt(&mut self, held: usize, may_grow: bool) -> bool {
        let room = self.wide.saturating_sub(held);
        let before = self.current;
        while self.current > self.least && room < self.current as usize * PART {
            self.current = larger(self.current / 2, self.least);
        }
        while may_grow && self.current < self.widest {
            let next = smaller(self.current.saturating_mul(2), self.widest);
            if room < next as usize * PART + next as usize / 2 {
                break;
            }
            self.current = next;
        }
        self.current != before
    }
}

const fn larger(a: u32, b: u32) -> u32 {
    if a > b { a } else { b }
}

const fn smaller(a: u32, b: u32) -> u32 {
    if a < b { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Role;
    use proptest::prelude::*;

    const MIB: usize = 1 << 20;

    fn window() -> DynamicWindow {
        DynamicWindow::new(&MuxConfig::new(Role::Client))
    }

    #[test]
    fn window_is_half_of_the_memory_that_is_left() {
        let mut window = window();
        let after = |window: &mut DynamicWindow, held| {
            window.adapt(held, true);
            window.current()
        };
        assert_eq!(after(&mut window, 24 * MIB), 8 << 20, "three are full");
        assert_eq!(after(&mut window, 25 * MIB), 4 << 20);
        assert_eq!(after(&mut window, 32 * MIB), 4 << 20);
        assert_eq!(after(&mut window, 33 * MIB), 2 << 20);
        assert_eq!(after(&mut window, 40 * MIB), 32 << 10);
        assert_eq!(after(&mut window, usize::MAX), 32 << 10);
        assert_eq!(after(&mut window, 30 * MIB), 4 << 20);
        assert_eq!(after(&mut window, 21 * MIB), 4 << 20);
        assert!(!window.adapt(0, false), "it must not grow yet");
        assert_eq!(after(&mut window, 20 * MIB), 8 << 20);
    }

    #[test]
    fn window_of_a_small_budget_is_wide_at_first() {
        let mut config = MuxConfig::new(Role::Server);
        (config.stream_window, config.receive_budget) = (1 << 20, 1 << 20);
        let mut window = DynamicWindow::new(&config);
        assert!(!window.adapt(0, true));
        assert!(window.adapt(2 << 20, true));
        config.stream_window = 1000;
        let mut window = DynamicWindow::new(&config);
        assert!(
            !window.adapt(usize::MAX, true),
            "there is no smaller window"
        );
    }

    proptest! {
        /// Unread streams take turns and fill their windows. A stream takes at most
        /// the window that the peer knows, and a session window arrives before it knows a new one.
        #[test]
        fn unread_streams_never_hold_the_budget(
            order in prop::collection::vec(0_usize..256, 1..600),
        ) {
            let config = MuxConfig::new(Role::Client);
            let mut window = DynamicWindow::new(&config);
            let mut held = vec![0; 256];
            let (mut total, mut known, mut since) = (0, window.current(), 0);
            for stream in order {
                let arriving = (known as usize).saturating_sub(held[stream]);
                // A new window is known once a session window has arrived.
                let arriving = arriving.min(config.session_window as usize - since);
                held[stream] += arriving;
                total += arriving;
                since += arriving;
                window.adapt(total, true);
                if window.current() == known || since == config.session_window as usize {
                    (known, since) = (window.current(), 0);
                }
            }
            prop_assert!(total < config.receive_budget, "{total}");
        }

        #[test]
        fn window_returns_when_all_is_read(
            held in prop::collection::vec(0_usize..80 << 20, 0..40),
        ) {
            let mut window = window();
            for held in held {
                window.adapt(held, true);
            }
            window.adapt(0, true);
            prop_assert_eq!(window.current(), 8 << 20);
        }
    }
}

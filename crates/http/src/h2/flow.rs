//! Flow-control windows for sending and receiving (RFC 9113 sections 5.2 and 6.9).
//!
//! Credit is handed back in large pieces. A piece of an eighth of the window goes along with other
//! frames; a piece of a quarter of the window is sent alone.

/// The initial size of every window (RFC 9113 section 6.9.2).
pub(super) const DEFAULT_WINDOW: u32 = 65_535;
/// The largest window (RFC 9113 section 6.9.1).
pub(super) const MAX_WINDOW: i64 = 0x7fff_ffff;

/// The bytes that we may still send. A change of the initial window can make it negative.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendWindow(i64);

/// A window over 2^31-1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Overflow;

impl SendWindow {
    pub(super) const fn new(initial: u32) -> Self {
        Self(initial as i64)
    }

    /// Bytes that may be sent now.
    pub(super) fn open(self) -> usize {
        usize::try_from(self.0).unwrap_or(0)
    }

    pub(super) fn spend(&mut self, count: usize) {
        debug_assert!(count <= self.open(), "only what is open is sent");
        self.0 -= count as i64;
    }

    pub(super) fn widen(&mut self, change: i64) -> Result<(), Overflow> {
        if self.0 + change > MAX_WINDOW {
            return Err(Overflow);
        }
        self.0 += change;
        Ok(())
    }
}

/// How much a returned piece of credit matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// Not worth a frame yet.
    Wait,
    /// Worth a frame when others go out.
    Ride,
    /// Worth a separate write.
    Now,
}

fn urgency(credit: i64, left: i64, window: i64) -> Urgency {
    if credit <= 0 {
        Urgency::Wait
    } else if credit >= window / 4 || (left < window / 8 && credit >= window / 8) {
        Urgency::Now
    } else if credit >= window / 8 {
        Urgency::Ride
    } else {
        Urgency::Wait
    }
}

/// The receive windows that the streams of a session have in common.
///
/// The window of a stream begins with the initial window in our SETTINGS. A change of it changes
/// the windows of all streams, and can make them negative (RFC 9113 section 6.9.2).
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamWindows {
    /// The initial window in our last SETTINGS.
    pub(super) announced: u32,
    /// The largest initial window that we have announced. A peer may still apply it: it has not
    /// read our last SETTINGS, or does not change streams that are open.
    pub(super) permitted: u32,
    /// The window that a stream is given: more than `announced` if WINDOW_UPDATE widens each
    /// stream.
    pub(super) wanted: u32,
}

/// The receive window of a stream.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StreamCredit {
    /// The bytes granted by WINDOW_UPDATE, without those that arrived.
    granted: i64,
    /// Announced by a frame and not yet handed to the user.
    coming: i64,
    /// Handed to the user and not yet released.
    held: i64,
}

impl StreamCredit {
    /// A frame of `count` bytes begins; `None` when that is more than was granted.
    pub(super) fn arrive(&mut self, count: usize, windows: StreamWindows) -> Option<()> {
        self.granted -= count as i64;
        self.coming += count as i64;
        (self.granted + i64::from(windows.permitted) >= 0).then_some(())
    }

    /// Records that `count` bytes of the frame never go to the user, such as padding.
    pub(super) fn skip(&mut self, count: usize) {
        self.coming -= count as i64;
    }

    /// Records that the user received `count` bytes.
    pub(super) fn hold(&mut self, count: usize) {
        self.coming -= count as i64;
        self.held += count as i64;
    }

    /// Bytes the user holds.
    pub(super) fn held(&self) -> usize {
        self.held as usize
    }

    /// Releases `count` bytes, at most those that the user holds; returns the number that were
    /// held.
    pub(super) fn release(&mut self, count: usize) -> usize {
        let count = self.held.min(i64::try_from(count).unwrap_or(i64::MAX));
        self.held -= count;
        count as usize
    }

    /// Returns the bytes that the peer may still send.
    fn left(&self, windows: StreamWindows) -> i64 {
        self.granted + i64::from(windows.announced)
    }

    /// Returns the bytes used up and not yet given back.
    fn credit(&self, windows: StreamWindows) -> i64 {
        i64::from(windows.wanted) - self.left(windows) - self.coming - self.held
    }

    pub(super) fn urgency(&self, windows: StreamWindows) -> Urgency {
        let window = i64::from(windows.wanted);
        urgency(self.credit(windows), self.left(windows), window)
    }

    /// Takes the credit for a WINDOW_UPDATE.
    pub(super) fn take(&mut self, windows: StreamWindows) -> u32 {
        let credit = self.credit(windows).clamp(0, MAX_WINDOW);
        self.granted += credit;
        credit as u32
    }
}

/// The receive window of the session: credit is returned on arrival while little is held.
#[derive(Clone, Copy, Debug)]
pub(super) struct SessionCredit {
    window: i64,
    left: i64,
    held: usize,
    budget: usize,
}

impl SessionCredit {
    pub(super) fn new(window: u32, budget: usize) -> Self {
        let window = window.clamp(DEFAULT_WINDOW, MAX_WINDOW as u32);
        Self {
            window: i64::from(window),
            left: i64::from(DEFAULT_WINDOW),
            held: 0,
            budget,
        }
    }

    /// A frame of `count` bytes begins; `None` when that is more than was granted.
    pub(super) fn arrive(&mut self, count: usize) -> Option<()> {
        self.left -= count as i64;
        (self.left >= 0).then_some(())
    }

    pub(super) fn hold(&mut self, count: usize) {
        self.held += count;
    }

    /// Returns the bytes that the user holds.
    pub(super) const fn held(&self) -> usize {
        self.held
    }

    pub(super) fn release(&mut self, count: usize) {
        debug_assert!(count <= self.held, "streams hold what the session holds");
        self.held = self.held.saturating_sub(count);
    }

    fn credit(&self) -> i64 {
        if self.held == 0 || self.held < self.budget {
            self.window - self.left
        } else {
            0
        }
    }

    pub(super) fn urgency(&self) -> Urgency {
        urgency(self.credit(), self.left, self.window)
    }

    /// Takes the credit for a WINDOW_UPDATE.
    pub(super) fn take(&mut self) -> u32 {
        let credit = self.credit();
        self.left += credit;
        credit as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn windows(window: u32) -> StreamWindows {
        StreamWindows {
            announced: window,
            permitted: window,
            wanted: window,
        }
    }

    #[test]
    fn credit_goes_back_in_large_pieces() {
        let (mut stream, windows) = (StreamCredit::default(), windows(1000));
        assert_eq!(stream.arrive(600, windows), Some(()));
        stream.hold(600);
        assert_eq!(stream.release(100), 100);
        assert_eq!(stream.urgency(windows), Urgency::Wait);
        stream.release(50);
        assert_eq!(stream.urgency(windows), Urgency::Ride);
        stream.release(100);
        assert_eq!(stream.urgency(windows), Urgency::Now);
        stream.release(250);
        assert_eq!(stream.take(windows), 500);
        assert_eq!(stream.release(1000), 100, "no more than was held");
        assert_eq!(stream.arrive(901, windows), None);
    }

    #[test]
    fn a_nearly_shut_window_opens_in_smaller_steps() {
        let (mut stream, windows) = (StreamCredit::default(), windows(800));
        assert_eq!(stream.arrive(800, windows), Some(()));
        stream.hold(800);
        stream.release(99);
        assert_eq!(stream.urgency(windows), Urgency::Wait);
        stream.release(1);
        assert_eq!(stream.urgency(windows), Urgency::Now);
    }

    #[test]
    fn stream_credit_follows_the_initial_window() {
        let mut stream = StreamCredit::default();
        assert_eq!(stream.arrive(800, windows(1000)), Some(()));
        stream.hold(800);
        let lowered = StreamWindows {
            permitted: 1000,
            ..windows(200)
        };
        assert_eq!(stream.arrive(200, lowered), Some(()), "it was on its way");
        stream.hold(200);
        stream.release(1000);
        assert_eq!(stream.take(lowered), 1000, "all of it, for 200 bytes");
        assert_eq!(stream.arrive(201, windows(200)), None);
        let mut stream = StreamCredit::default();
        let widened = StreamWindows {
            wanted: 5000,
            ..windows(1000)
        };
        assert_eq!(stream.take(widened), 4000);
        assert_eq!(stream.take(widened), 0);
        assert_eq!(stream.take(windows(1000)), 0, "nothing is taken back");
    }

    #[test]
    fn session_credit_waits_only_above_the_budget() {
        let mut session = SessionCredit::new(100_000, 70_000);
        assert_eq!(
            session.take(),
            100_000 - DEFAULT_WINDOW,
            "the first update opens the window"
        );
        assert_eq!(session.arrive(60_000), Some(()));
        session.hold(60_000);
        assert_eq!(session.urgency(), Urgency::Now);
        assert_eq!(session.take(), 60_000);
        assert_eq!(session.arrive(60_000), Some(()));
        session.hold(60_000);
        assert_eq!(session.urgency(), Urgency::Wait);
        assert_eq!(session.take(), 0);
        session.release(50_001);
        assert_eq!(session.take(), 60_000);
    }

    #[test]
    fn send_windows_do_not_overflow() {
        let mut window = SendWindow::new(DEFAULT_WINDOW);
        assert_eq!(window.widen(MAX_WINDOW), Err(Overflow));
        assert_eq!(window.widen(-100_000), Ok(()));
        assert_eq!(window.open(), 0);
        assert_eq!(window.widen(MAX_WINDOW), Ok(()));
    }
}

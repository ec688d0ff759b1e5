//! A limit on how often one log line is written, so that a stranger cannot fill the log.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The shortest time between two lines of one kind.
const PAUSE: Duration = Duration::from_secs(10);

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Limits one kind of line. It is shared by all threads.
#[derive(Debug, Default)]
pub struct LogLimit {
    /// Milliseconds from the process's start to the end of the current pause.
    next: AtomicU64,
    held_back: AtomicU64,
}

impl LogLimit {
    /// Makes a limit that permits a line at once.
    pub const fn new() -> Self {
        Self {
            next: AtomicU64::new(0),
            held_back: AtomicU64::new(0),
        }
    }

    /// Returns how many lines were held back since the last one, or `None` if this one is, too.
    pub fn admit(&self) -> Option<u64> {
        self.admit_at(START.elapsed())
    }

    fn admit_at(&self, now: Duration) -> Option<u64> {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let next = self.next.load(Ordering::Relaxed);
        let taken = millis(now) >= next
            && self
                .next
                .compare_exchange(
                    next,
                    millis(now + PAUSE),
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                )
                .is_ok();
        if taken {
            return Some(self.held_back.swap(0, Ordering::Relaxed));
        }
        self.held_back.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_while_held_back() {
        let limit = LogLimit::new();
        let at = |seconds| limit.admit_at(Duration::from_secs(seconds));
        assert_eq!(at(0), Some(0));
        assert_eq!((at(1), at(9)), (None, None));
        assert_eq!(at(10), Some(2));
        assert_eq!(at(30), Some(0));
    }
}

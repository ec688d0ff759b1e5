//! The present time, which the steps of one poll share.
//!
//! An exchange passes many stages that note the time. A reading of the clock costs as much as 100
//! instructions, and the readings within one poll hardly differ.

use std::cell::Cell;
use std::future::Future;
use std::task::{Context, Poll, ready};

use tokio::time::Instant;

thread_local! {
    static READING: Cell<Reading> = const { Cell::new(Reading::Single) };
}

/// The reading of the clock that the poll under way shares.
#[derive(Clone, Copy)]
enum Reading {
    /// No poll is under way, and each call of [`now`] reads the clock.
    Single,
    /// The poll has not asked for the time yet.
    Unread,
    /// The poll has read the clock.
    Shared(Instant),
}

/// Restores the state of the poll around this one, also after a panic.
struct Around(Reading);

impl Drop for Around {
    fn drop(&mut self) {
        READING.set(self.0);
    }
}

/// Runs a poll in which [`now`] reads the clock at most once. The poll must not block.
pub(crate) fn shared_by<T>(poll: impl FnOnce() -> T) -> T {
    let _around = Around(READING.replace(Reading::Unread));
    poll()
}

/// Returns a future whose polls share the time. The last one also drops the state.
pub(crate) fn sharing<T>(
    state: T,
    mut poll: impl FnMut(&mut T, &mut Context<'_>) -> Poll<()>,
) -> impl Future<Output = ()> {
    let mut state = Some(state);
    let mut poll = move |cx: &mut Context<'_>| {
        if let Some(state) = &mut state {
            ready!(poll(state, cx));
        }
        state = None;
        Poll::Ready(())
    };
    std::future::poll_fn(move |cx| shared_by(|| poll(cx)))
}

/// Returns the present time, or the first reading of the poll under way.
pub(crate) fn now() -> Instant {
    match READING.get() {
        Reading::Single => Instant::now(),
        Reading::Unread => {
            let now = Instant::now();
            READING.set(Reading::Shared(now));
            now
        }
        Reading::Shared(now) => now,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const STEP: Duration = Duration::from_millis(2);

    #[test]
    fn poll_reads_the_clock_once() {
        let before = Instant::now();
        let inside = shared_by(|| {
            std::thread::sleep(STEP);
            let first = now();
            std::thread::sleep(STEP);
            assert_eq!(now(), first);
            first
        });
        assert!(inside >= before + STEP, "the first call reads the clock");
        let next = shared_by(now);
        assert!(next >= inside + STEP, "each poll reads it anew");
    }

    #[test]
    fn time_outside_a_poll_is_read_each_time() {
        let panicked = std::panic::catch_unwind(|| {
            shared_by(|| {
                now();
                panic!("in the middle of a poll");
            })
        });
        assert!(panicked.is_err());
        let first = now();
        std::thread::sleep(STEP);
        assert!(now() >= first + STEP);
    }

    /// Checks at its end that the time is that of a poll.
    struct Exchange(Option<Instant>);

    impl Drop for Exchange {
        fn drop(&mut self) {
            std::thread::sleep(STEP);
            assert_eq!(Some(now()), self.0);
        }
    }

    #[tokio::test]
    async fn last_poll_drops_the_state() {
        sharing(Exchange(None), |exchange, _| {
            exchange.0 = Some(now());
            Poll::Ready(())
        })
        .await;
    }

    #[test]
    fn poll_within_a_poll_has_its_own_reading() {
        shared_by(|| {
            let first = now();
            std::thread::sleep(STEP);
            assert!(shared_by(now) >= first + STEP);
            assert_eq!(now(), first);
        });
    }
}

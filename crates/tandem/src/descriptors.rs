//! The lack of descriptors. Whoever needs one asks the holders of idle connections to close some,
//! and tries again.
//!
//! ```text
//!   dial, accept ──EMFILE──▶ ask ──▶ pools of connections to origins close the older half
//!        ▲                                 │
//!        └────────── after a pause ────────┘
//! ```

use std::fs::File;
use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// The pause before another try, in which tasks of all threads close connections.
const PAUSE: Duration = Duration::from_millis(20);
/// The tries after the first one.
const MORE_TRIES: u32 = 3;
/// The time without a failure after which a lack is a new one.
const LACK_LASTS: Duration = Duration::from_secs(1);

/// Wakes the holders of idle connections in all threads.
#[cfg(not(test))]
fn holders() -> &'static Notify {
    static HOLDERS: Notify = Notify::const_new();
    &HOLDERS
}

/// Wakes those of one test, which has its own thread.
#[cfg(test)]
fn holders() -> &'static Notify {
    thread_local! {
        static HOLDERS: &'static Notify = Box::leak(Box::default());
    }
    HOLDERS.with(|holders| *holders)
}

/// Returns true if the process or the system has no descriptor left.
pub fn is_lack(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Asks the holders of idle connections to close some, if that can help. Returns true if so.
pub fn ask(error: &io::Error) -> bool {
    let is_lack = is_lack(error);
    if is_lack {
        holders().notify_waiters();
    }
    is_lack
}

/// The failures of an operation that is tried again until it succeeds.
#[derive(Debug, Default)]
pub struct Lacks {
    /// The time of the last failure, if it was a lack.
    last: Option<Instant>,
}

impl Lacks {
    /// Asks the holders as [`ask`]. Returns true if they were asked shortly before, and this lack
    /// is still the same one.
    pub fn ask(&mut self, error: &io::Error) -> bool {
        let lack = ask(error).then(Instant::now);
        let lasts = |last: Instant| lack.is_some() && last.elapsed() < LACK_LASTS;
        std::mem::replace(&mut self.last, lack).is_some_and(lasts)
    }
}

/// Resolves when an operation of the process lacks a descriptor.
pub async fn lacking() {
    holders().notified().await;
}

/// Opens something. Without a free descriptor it asks for one, and tries again a few times.
///
/// # Errors
/// The error of the last try.
pub async fn open<T, F>(mut open: impl FnMut() -> F) -> io::Result<T>
where
    F: Future<Output = io::Result<T>>,
{
    for _ in 0..MORE_TRIES {
        match open().await {
            Err(error) if ask(&error) => tokio::time::sleep(PAUSE).await,
            opened => return opened,
        }
    }
    open().await
}

/// Does the same on a thread that may block. The operation may hide that it lacks a descriptor, as
/// the resolver of the system does.
///
/// # Errors
/// The error of the last try.
pub fn open_blocking<T>(mut open: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 0..MORE_TRIES {
        match open() {
            Err(error) if ask(&error) || lacks_now() => std::thread::sleep(PAUSE),
            opened => return opened,
        }
    }
    open()
}

/// Asks if there is no free descriptor now.
fn lacks_now() -> bool {
    spare().is_err_and(|error| ask(&error))
}

fn spare() -> io::Result<File> {
    File::open("/dev/null")
}

/// A descriptor that is kept for an operation which must succeed without a free one.
#[derive(Debug, Default)]
pub struct Spare(Option<File>);

impl Spare {
    /// Takes a descriptor, if there is a free one and none is kept.
    pub fn keep(&mut self) {
        if self.0.is_none() {
            self.0 = spare().ok();
        }
    }

    /// Frees the descriptor. Returns false if none was kept.
    pub fn release(&mut self) -> bool {
        self.0.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn lack() -> io::Error {
        io::Error::from_raw_os_error(libc::EMFILE)
    }

    #[tokio::test(start_paused = true)]
    async fn operation_is_tried_again_without_descriptors_only() {
        let tries = Cell::new(0);
        let failing = |error: fn() -> io::Error, failures: u32| {
            let tries = &tries;
            tries.set(0);
            move || {
                tries.set(tries.get() + 1);
                let opened = if tries.get() > failures {
                    Ok(())
                } else {
                    Err(error())
                };
                std::future::ready(opened)
            }
        };
        assert!(open(failing(lack, MORE_TRIES)).await.is_ok());
        assert!(open(failing(lack, u32::MAX)).await.is_err());
        assert_eq!(tries.get(), MORE_TRIES + 1);
        let refused = || io::ErrorKind::ConnectionRefused.into();
        assert!(open(failing(refused, 1)).await.is_err());
        assert_eq!(tries.get(), 1);
    }

    #[tokio::test]
    async fn lack_wakes_those_that_wait_for_it() {
        let mut lacking = std::pin::pin!(lacking());
        let mut is_woken = async || {
            let woken = tokio::time::timeout(Duration::ZERO, &mut lacking).await;
            woken.is_ok()
        };
        assert!(!is_woken().await);
        assert!(!ask(&io::ErrorKind::TimedOut.into()) && !is_woken().await);
        assert!(ask(&lack()) && is_woken().await);
    }

    #[tokio::test(start_paused = true)]
    async fn lack_lasts_until_a_second_passes_without_it() {
        let mut lacks = Lacks::default();
        assert!(!lacks.ask(&lack()), "the holders are asked first");
        for _ in 0..3 {
            tokio::time::advance(LACK_LASTS / 2).await;
            assert!(lacks.ask(&lack()), "asking them did not suffice");
        }
        tokio::time::advance(LACK_LASTS).await;
        assert!(!lacks.ask(&lack()), "there was room in between");
        assert!(!lacks.ask(&io::ErrorKind::ConnectionAborted.into()));
        assert!(!lacks.ask(&lack()));
    }

    #[test]
    fn spare_is_released_once() {
        let mut spare = Spare::default();
        assert!(!spare.release());
        spare.keep();
        assert!(spare.release() && !spare.release());
    }
}

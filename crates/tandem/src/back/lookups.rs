//! Look-ups of names for all sessions of the process, in turn.
//!
//! ```text
//!   request ──▶ queue of its session ──the session with the fewest look-ups──▶ thread ─▶ addresses
//! ```
//!
//! The system's resolver (`getaddrinfo`) follows the hosts file and nsswitch.conf. Each look-up
//! blocks a thread, and nothing can cancel it. A silent name server keeps one busy for ten seconds
//! or longer. The number of threads is therefore limited, and a session has a share of the places
//! that are free. Some places thus stay free for other sessions. A request that ends before its
//! turn causes no look-up.
//!
//! Failures are remembered for some seconds, for each session alone: a memory that sessions share
//! would tell a client which names others have asked for.

mod turns;

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use self::turns::Turns;
use crate::descriptors;

/// The number of look-ups that may be under way in the process. Each one blocks a thread.
const PLACES: usize = 256;

/// The time for which a failure is remembered.
const FAILED_FOR: Duration = Duration::from_secs(5);

/// The number of failures that are remembered.
const MOST_FAILURES: usize = 1024;

/// The length of the longest name whose failure is remembered. DNS has no longer names.
const MOST_NAME: usize = 255;

/// The look-ups of the process.
static OF_PROCESS: LazyLock<Arc<Lookups>> = LazyLock::new(|| {
    Lookups::new(PLACES, |host, port| {
        descriptors::open_blocking(|| Ok((host, port).to_socket_addrs()?.collect()))
    })
});

/// The reason why a name has no addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum LookupError {
    /// The resolver knows no address, or it failed.
    #[error("the name could not be resolved")]
    Failed,
    /// The resolver did not answer in time.
    #[error("the name could not be resolved in time")]
    Late,
    /// No turn came in time.
    #[error("the name could not be resolved in time, since too many others are being resolved")]
    Busy,
}

/// Asks the resolver for the addresses of a host and port.
type Resolve = dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync;

/// The look-ups under way, those that wait, and the recent failures.
pub(super) struct Lookups {
    turns: Mutex<Turns>,
    failures: Mutex<Failures>,
    resolve: Box<Resolve>,
}

impl Lookups {
    fn new(
        places: usize,
        resolve: impl Fn(&str, u16) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            turns: Mutex::new(Turns::new(places)),
            failures: Mutex::default(),
            resolve: Box::new(resolve),
        })
    }

    /// Returns the look-ups that all threads of the process share.
    pub(super) fn of_process() -> &'static Arc<Self> {
        &OF_PROCESS
    }

    /// Looks up the addresses of a name for a session, within `limit`.
    pub(super) async fn look_up(
        self: &Arc<Self>,
        session: u64,
        (host, port): (&str, u16),
        limit: Duration,
    ) -> Result<Vec<SocketAddr>, LookupError> {
        let end = Instant::now() + limit;
        self.check_failures(session, host)?;
        let mut place = Place::ask(self, session);
        let is_granted = timeout_at(end, &mut place.granted).await;
        // The sender stays in the queue until it grants the place.
        if !matches!(is_granted, Ok(Ok(()))) {
            return Err(LookupError::Busy);
        }
        // Another look-up of the session may have failed in the meantime.
        self.check_failures(session, host)?;
        let (lookups, name) = (Arc::clone(self), host.to_owned());
        let looked_up = tokio::task::spawn_blocking(move || {
            let found = (lookups.resolve)(&name, port);
            if found.is_err() {
                lookups.failures().add(session, &name, LookupError::Failed);
            }
            drop(place);
            found
        });
        match timeout_at(end, looked_up).await {
            Ok(Ok(Ok(addresses))) => Ok(addresses),
            Ok(_) => Err(LookupError::Failed),
            Err(_) => {
                self.failures().add(session, host, LookupError::Late);
                Err(LookupError::Late)
            }
        }
    }

    fn check_failures(&self, session: u64, host: &str) -> Result<(), LookupError> {
        self.failures().recent(session, host).map_or(Ok(()), Err)
    }

    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failures(&self) -> MutexGuard<'_, Failures> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place among the look-ups, from the request for it until it is dropped.
struct Place {
    lookups: Arc<Lookups>,
    session: u64,
    number: u64,
    granted: oneshot::Receiver<()>,
}

impl Place {
    fn ask(lookups: &Arc<Lookups>, session: u64) -> Self {
        let (number, granted) = lookups.turns().enter(session);
        Self {
            lookups: Arc::clone(lookups),
            session,
            number,
            granted,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.lookups.turns().leave(self.session, self.number);
    }
}

/// The recent failures, the oldest first.
#[derive(Default)]
struct Failures(VecDeque<Failure>);

struct Failure {
    at: Instant,
    session: u64,
    host: Box<str>,
    error: LookupError,
}

impl Failures {
    fn add(&mut self, session: u64, host: &str, error: LookupError) {
        if host.len() > MOST_NAME {
            return;
        }
        if self.0.len() >= MOST_FAILURES {
            self.0.pop_front();
        }
        self.0.push_back(Failure {
            at: Instant::now(),
            session,
            host: host.into(),
            error,
        });
    }

    fn recent(&mut self, session: u64, host: &str) -> Option<LookupError> {
        while self
            .0
            .pop_front_if(|it| it.at.elapsed() >= FAILED_FOR)
            .is_some()
        {}
        let mut same = self.0.iter().rev();
        same.find(|it| it.session == session && it.host.eq_ignore_ascii_case(host))
            .map(|it| it.error)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Condvar;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    /// A resolver that answers no name that begins with `slow` before it is opened, and knows no
    /// name that begins with `no`.
    #[derive(Default)]
    struct FakeResolver {
        is_open: Mutex<bool>,
        opened: Condvar,
        asked: AtomicUsize,
    }

    impl FakeResolver {
        fn lookups(self: &Arc<Self>, places: usize) -> Arc<Lookups> {
            let resolver = Arc::clone(self);
            Lookups::new(places, move |host, port| resolver.resolve(host, port))
        }

        fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
            self.asked.fetch_add(1, Ordering::SeqCst);
            if host.starts_with("slow") {
                let is_open = self.is_open.lock().expect("no panic");
                let opened = self.opened.wait_while(is_open, |is_open| !*is_open);
                drop(opened.expect("no panic"));
            }
            match host.starts_with("no") {
                true => Err(io::ErrorKind::NotFound.into()),
                false => Ok(vec![([192, 0, 2, 1], port).into()]),
            }
        }

        fn open(&self) {
            *self.is_open.lock().expect("no panic") = true;
            self.opened.notify_all();
        }

        fn asked(&self) -> usize {
            self.asked.load(Ordering::SeqCst)
        }
    }

    #[tokio::test]
    async fn flood_of_slow_names_leaves_places_to_others() {
        let resolver = Arc::<FakeResolver>::default();
        let lookups = resolver.lookups(64);
        let floods: Vec<_> = (0..800_u64)
            .map(|number| {
                let lookups = Arc::clone(&lookups);
                tokio::spawn(async move {
                    let host = format!("slow{number}.test");
                    lookups.look_up(number % 4, (&host, 443), LONG).await
                })
            })
            .collect();
        while lookups.turns().running() < 12 {
            tokio::task::yield_now().await;
        }
        // It would never end without a place of its own.
        let found = lookups.look_up(9, ("good.test", 80), LONG).await;
        assert_eq!(found, Ok(vec![([192, 0, 2, 1], 80).into()]));
        assert_eq!(lookups.turns().running(), 12);
        // Requests that are gone cause no look-up.
        floods.iter().for_each(tokio::task::JoinHandle::abort);
        for flood in floods {
            assert!(flood.await.is_err());
        }
        resolver.open();
        while lookups.turns().running() > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(resolver.asked(), 13);
        assert!(lookups.turns().is_empty());
    }

    #[tokio::test]
    async fn failure_is_remembered_for_its_session() {
        tokio::time::pause();
        let resolver = Arc::<FakeResolver>::default();
        let lookups = resolver.lookups(16);
        for (session, host, asked) in [(1, "no.test", 1), (1, "NO.test", 1), (2, "no.test", 2)] {
            let found = lookups.look_up(session, (host, 80), LONG).await;
            assert_eq!(found, Err(LookupError::Failed));
            assert_eq!(resolver.asked(), asked, "{session} {host}");
        }
        tokio::time::advance(FAILED_FOR).await;
        let found = lookups.look_up(1, ("no.test", 80), LONG).await;
        assert_eq!((found, resolver.asked()), (Err(LookupError::Failed), 3));
    }

    #[tokio::test]
    async fn late_answer_keeps_its_place_and_is_remembered() {
        let resolver = Arc::<FakeResolver>::default();
        let lookups = resolver.lookups(2);
        let short = Duration::from_millis(1);
        let slow = lookups.look_up(1, ("slow.test", 80), short).await;
        assert_eq!(slow, Err(LookupError::Late));
        assert_eq!(lookups.turns().running(), 1);
        let again = lookups.look_up(1, ("slow.test", 80), LONG).await;
        assert_eq!(again, Err(LookupError::Late));
        let other = lookups.look_up(1, ("slow2.test", 80), short).await;
        assert_eq!(other, Err(LookupError::Busy));
        resolver.open();
        let other = lookups.look_up(1, ("slow2.test", 80), LONG).await;
        assert!(other.is_ok());
    }

    #[test]
    fn failures_are_bounded() {
        let mut failures = Failures::default();
        for session in 0..2 * MOST_FAILURES as u64 {
            failures.add(session, "no.test", LookupError::Failed);
        }
        failures.add(1, &"a".repeat(MOST_NAME + 1), LookupError::Failed);
        assert_eq!(failures.0.len(), MOST_FAILURES);
    }
}

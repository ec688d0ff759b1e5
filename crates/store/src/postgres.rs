//! The store of several gateways: a schema in a database of PostgreSQL.
//!
//! ```text
//!  any thread ─▶ call ─▶ runtime of the store ─▶ pool ─▶ connection ─▶ statement
//! ```
//!
//! - `address` reads the URL, and `tls` verifies the server.
//! - `pool` keeps the connections. It repeats a call over a lost connection, up to a time limit.
//! - `schema` creates the tables of `tables.sql` and the functions of `functions.sql`.
//! - `statements` has the statement of each call.
//! - `failure` turns errors into texts for the operator.
//!
//! Each call is one transaction. Unique constraints decide about keys and tokens, and a claim skips
//! the rows that other instances claim. All times are those of the server's clock, since the clocks
//! of the instances differ. The instances therefore pass durations.

mod address;
mod failure;
mod pool;
mod schema;
mod statements;
mod tls;

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tandem_submit::batch::Rule;
use tandem_submit::store::{
    Admission, Claim, Claimed, Epoch, Inquiry, Lease, Millis, NewSubmission, Pending, Prospect,
    Record, Store, StoreError, Waiting,
};
use tandem_submit::submission::{Answer, SubmissionId};
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::Client;

use crate::OpenError;
use address::Address;
use pool::{Answered, Pool};
use statements::At;

/// The time limit of a call with its repetitions. The largest body needs a part of it.
const LIMIT: Duration = Duration::from_secs(20);

/// The time of an outage after which calls are not repeated.
const OUTAGE: Duration = Duration::from_secs(5);

/// A store in a database of PostgreSQL. The connections are closed when the store is dropped.
pub struct Postgres {
    /// The runtime of the connections, until the store is dropped.
    runtime: Option<Runtime>,
    pool: Arc<Pool>,
    /// True in tests that pass times on to the server.
    has_callers_clock: bool,
}

/// Hides the address.
impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres").finish_non_exhaustive()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Transactions under way end at the server.
            runtime.shutdown_background();
        }
    }
}

/// Checks the form of a URL. The error repeats no password.
pub(crate) fn check(url: &str) -> Result<(), OpenError> {
    let address = Address::parse(url).and_then(|address| address.load());
    address.map(drop).map_err(unusable)
}

/// Returns the file with the password that a URL names.
pub(crate) fn password_file(url: &str) -> Option<PathBuf> {
    Address::parse(url).ok()?.password_file
}

fn unusable(problem: impl Into<String>) -> OpenError {
    OpenError::Postgres {
        problem: problem.into(),
    }
}

impl Postgres {
    /// Connects to the database with this URL, and creates the tables if they do not exist.
    ///
    /// # Errors
    /// Returns the reason why the database cannot be used. It repeats no password.
    pub fn open(url: &str) -> Result<Self, OpenError> {
        Self::with_limits(url, (LIMIT, OUTAGE))
    }

    fn with_limits(url: &str, limits: (Duration, Duration)) -> Result<Self, OpenError> {
        let address = Address::parse(url).map_err(unusable)?;
        let loaded = address.load().map_err(unusable)?;
        let pool = Arc::new(Pool::new(loaded, &address.schema, limits));
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("tandem-store")
            .enable_all()
            .build();
        let runtime =
            runtime.map_err(|error| unusable(format!("cannot start its thread: {error}")))?;
        // The caller may run within another runtime, so it waits without one.
        let (opened, outcome) = mpsc::channel();
        let preparing = Arc::clone(&pool);
        runtime.spawn(async move {
            let _ = opened.send(preparing.prepare().await);
        });
        let store = Self {
            runtime: Some(runtime),
            pool,
            has_callers_clock: false,
        };
        match outcome.recv() {
            Ok(Ok(())) => Ok(store),
            Ok(Err(StoreError(problem))) => Err(unusable(problem)),
            Err(_) => Err(unusable("its thread has ended")),
        }
    }

    /// Runs a call on the runtime of the store. It ends even if the caller stops waiting.
    fn call<T: Send + 'static>(
        &self,
        call: impl for<'a> Fn(&'a Client) -> Answered<'a, T> + Send + Sync + 'static,
    ) -> Pending<T> {
        let pool = Arc::clone(&self.pool);
        let runtime = self.runtime.as_ref();
        let task = runtime.map(|runtime| runtime.spawn(async move { pool.run(call).await }));
        Box::pin(async move {
            let ended = || StoreError("it is closed".to_owned());
            task.ok_or_else(ended)?.await.map_err(|_| ended())?
        })
    }

    fn at(&self, now: Millis) -> At {
        self.has_callers_clock.then_some(now)
    }
}

impl Store for Postgres {
    fn admit(&self, new: NewSubmission) -> Pending<Admission> {
        let at = self.at(new.now);
        let (new, is_repetition) = (Arc::new(new), AtomicBool::new(false));
        self.call(move |client| {
            let new = Arc::clone(&new);
            let is_repetition = is_repetition.swap(true, Ordering::Relaxed);
            Box::pin(async move { statements::admit(client, &new, at, is_repetition).await })
        })
    }

    fn inquire(&self, inquiry: Inquiry) -> Pending<Prospect> {
        let at = self.at(inquiry.now);
        let inquiry = Arc::new(inquiry);
        self.call(move |client| {
            let inquiry = Arc::clone(&inquiry);
            Box::pin(async move { statements::inquire(client, &inquiry, at).await })
        })
    }

    fn find(&self, id: SubmissionId) -> Pending<Option<Record>> {
        self.call(move |client| Box::pin(statements::find(client, id)))
    }

    fn state(&self, id: SubmissionId) -> Pending<Option<Record>> {
        self.call(move |client| Box::pin(statements::state(client, id)))
    }

    fn claim(&self, claim: Claim) -> Pending<Claimed> {
        let at = self.at(claim.now);
        let claim = Arc::new(claim);
        self.call(move |client| {
            let claim = Arc::clone(&claim);
            Box::pin(async move { statements::claim(client, &claim, at).await })
        })
    }

    fn answer(&self, id: SubmissionId, answer: Answer, now: Millis) -> Pending<()> {
        let at = self.at(now);
        self.call(move |client| {
            let answer = answer.clone();
            Box::pin(async move { statements::answer(client, id, &answer, at).await })
        })
    }

    fn postpone(&self, lease: Lease, due: Millis, now: Millis) -> Pending<()> {
        let (at, pause) = (self.at(now), due.saturating_sub(now));
        self.call(move |client| Box::pin(statements::postpone(client, lease, pause, at)))
    }

    fn release(&self, server: String, rule: Rule, now: Millis) -> Pending<u64> {
        let (at, server) = (self.at(now), Arc::<str>::from(server));
        self.call(move |client| {
            let server = Arc::clone(&server);
            Box::pin(async move { statements::release(client, &server, &rule, at).await })
        })
    }

    fn give_up(&self, lease: Lease, status: Option<u16>, now: Millis) -> Pending<()> {
        let at = self.at(now);
        self.call(move |client| Box::pin(statements::give_up(client, lease, status, at)))
    }

    fn forget(&self, now: Millis, keep: Millis) -> Pending<u64> {
        let at = self.at(now);
        self.call(move |client| Box::pin(statements::forget(client, keep, at)))
    }

    fn end_epochs(&self, first: Epoch) -> Pending<()> {
        self.call(move |client| Box::pin(statements::end_epochs(client, first)))
    }

    fn spent(&self, first: Epoch) -> Pending<Vec<(Epoch, u64)>> {
        self.call(move |client| Box::pin(statements::spent(client, first)))
    }

    fn waiting(&self, server: String, now: Millis) -> Pending<Waiting> {
        let (at, server) = (self.at(now), Arc::<str>::from(server));
        self.call(move |client| {
            let server = Arc::clone(&server);
            Box::pin(async move { statements::waiting(client, &server, at).await })
        })
    }
}

#[cfg(test)]
mod tests;

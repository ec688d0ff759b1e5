//! The connections to PostgreSQL. A call gets a connection to itself. Lost connections are
//! replaced, and a call is repeated, because each call may be repeated.
//!
//! A short outage thus delays calls, and no call fails. After a longer one, calls fail at once
//! until a connection succeeds.

use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tandem_submit::store::StoreError;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_postgres::{Client, Config};

use super::failure::Failure;
use super::schema;
use super::tls::Tls;

/// The number of connections. Commits of several connections share a write to the server's disk.
const CONNECTIONS: usize = 8;

/// The pause before a call is repeated. It doubles with each repetition.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The pauses between the attempts of one call.
#[derive(Default)]
struct Pauses(u32);

impl Pauses {
    /// Waits before the next attempt. Returns false if there is no time for it.
    async fn wait(&mut self, end: Instant) -> bool {
        let pause = (FIRST_PAUSE * (1 << self.0.min(16))).min(LONGEST_PAUSE);
        self.0 += 1;
        let next = Instant::now() + pause;
        if next < end {
            tokio::time::sleep_until(next).await;
        }
        next < end
    }
}

/// The result of a call on a connection.
pub(super) type Answered<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send + 'a>>;

/// The connections of a store.
pub(super) struct Pool {
    config: Config,
    tls: Tls,
    schema: String,
    /// The time limit of a call with its repetitions.
    limit: Duration,
    /// The time of an outage after which calls are not repeated.
    outage: Duration,
    places: Semaphore,
    idle: Mutex<Vec<Connection>>,
    /// The first failure after the last success.
    down_since: Mutex<Option<Instant>>,
}

/// A connection, which is closed when it is dropped.
struct Connection {
    client: Client,
    task: AbortHandle,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Pool {
    pub(super) fn new(
        (config, tls): (Config, Tls),
        schema: &str,
        (limit, outage): (Duration, Duration),
    ) -> Self {
        Self {
            outage,
            config,
            tls,
            schema: schema.to_owned(),
            limit,
            places: Semaphore::new(CONNECTIONS),
            idle: Mutex::default(),
            down_since: Mutex::default(),
        }
    }

    /// Creates the tables, unless they exist. It waits for a server that is starting.
    pub(super) async fn prepare(&self) -> Result<(), StoreError> {
        let end = Instant::now() + self.limit;
        let mut pauses = Pauses::default();
        loop {
            let failure = match tokio::time::timeout_at(end, self.create()).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(failure)) => failure,
                Err(_) => return Err(late()),
            };
            // A host that does not answer is probably wrong.
            let is_starting = failure.is_temporary() && failure.code().is_some();
            if !is_starting || !pauses.wait(end).await {
                return Err(failure.into());
            }
        }
    }

    async fn create(&self) -> Result<(), Failure> {
        let connection = self.connect().await?;
        schema::create(&connection.client, &self.schema).await?;
        self.keep(connection);
        Ok(())
    }

    /// Runs a call until it succeeds, fails for good, or its time is over.
    pub(super) async fn run<T>(
        &self,
        call: impl for<'a> Fn(&'a Client) -> Answered<'a, T>,
    ) -> Result<T, StoreError> {
        let end = Instant::now() + self.limit;
        let mut pauses = Pauses::default();
        loop {
            let outcome = tokio::time::timeout_at(end, self.attempt(&call)).await;
            let is_up = matches!(&outcome, Ok(Ok(_)))
                || matches!(&outcome, Ok(Err(failure)) if !failure.is_temporary());
            let outage_ends = self.note(is_up);
            let failure = match outcome {
                Ok(Ok(value)) => return Ok(value),
                Ok(Err(failure)) => failure,
                Err(_) => return Err(late()),
            };
            if is_up || !pauses.wait(end.min(outage_ends)).await {
                return Err(failure.into());
            }
        }
    }

    /// Notes the outcome of an attempt. Returns the time until which calls are repeated.
    fn note(&self, is_up: bool) -> Instant {
        let mut down_since = self
            .down_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if is_up {
            *down_since = None;
            return now;
        }
        *down_since.get_or_insert(now) + self.outage
    }

    /// Runs a call once. A connection on which a call did not end is closed.
    async fn attempt<T>(
        &self,
        call: &impl for<'a> Fn(&'a Client) -> Answered<'a, T>,
    ) -> Result<T, Failure> {
        let closed = |_| Failure::permanent("the store is closed");
        let _place = self.places.acquire().await.map_err(closed)?;
        let connection = match self.take() {
            Some(connection) => connection,
            None => {
                let connection = self.connect().await?;
                schema::check(&connection.client).await?;
                connection
            }
        };
        let outcome = call(&connection.client).await;
        let is_kept = match &outcome {
            Ok(_) => true,
            // The server still answers on it, and it is no standby.
            Err(failure) => failure.code().is_some() && !failure.is_temporary(),
        };
        if is_kept {
            self.keep(connection);
        }
        outcome
    }

    fn take(&self) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(connection) = idle.pop() {
            if !connection.client.is_closed() {
                return Some(connection);
            }
        }
        None
    }

    fn keep(&self, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push(connection);
    }

    async fn connect(&self) -> Result<Connection, Failure> {
        let connecting = self.config.connect(self.tls.clone());
        let (client, connection) = connecting.await.map_err(|error| Failure::of(&error))?;
        // The call that uses the connection gets its error.
        let task = tokio::spawn(async move { drop(connection.await) }).abort_handle();
        let connection = Connection { client, task };
        schema::set_up(&connection.client, &self.schema, self.limit).await?;
        Ok(connection)
    }
}

fn late() -> StoreError {
    StoreError("PostgreSQL does not answer in time".to_owned())
}

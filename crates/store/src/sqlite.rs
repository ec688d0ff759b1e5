//! The store of one gateway: a file of SQLite, written by one thread.
//!
//! The thread takes the waiting calls together and commits them in one transaction. A call returns
//! after the commit, which SQLite has then written to the disk (`synchronous = FULL`).
//!
//! SQLite writes changes to a log (`FILE-wal`), and old frames stay there in clear until it is
//! truncated. The thread truncates the log soon after each change, so that removed content
//! disappears from both files. `opening` opens the file, and `statements` has the SQL of each call.

mod opening;
mod statements;

use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tandem_submit::batch::Rule;
use tandem_submit::store::{
    Admission, Claim, Claimed, Epoch, Inquiry, Lease, Millis, NewSubmission, Pending, Prospect,
    Record, Store, StoreError, Waiting,
};
use tandem_submit::submission::{Answer, SubmissionId};
use tokio::sync::oneshot;

pub(crate) use opening::make_private;

use crate::OpenError;

/// The number of calls in one transaction.
const BATCH: usize = 64;

/// The longest time between a change and the truncation of the log.
const LOG_AGE: Duration = Duration::from_secs(2);

/// A call that runs on the thread of the database. It returns the function that reports the result
/// after the commit, or the failure of the commit.
type Call = Box<dyn FnOnce(&Connection) -> Report + Send>;
type Report = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// A store in a file of SQLite. The file is closed when the store is dropped.
#[derive(Debug)]
pub struct Sqlite {
    /// The calls to the thread. It ends when this end is dropped.
    calls: Option<mpsc::Sender<Call>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        self.calls = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported, and the file is closed in any case.
            let _ = thread.join();
        }
    }
}

impl Sqlite {
    /// Opens a file, and creates it if it does not exist. Only its owner can read it afterwards.
    ///
    /// # Errors
    /// Returns the reason why the file cannot be used.
    pub fn open(file: &Path) -> Result<Self, OpenError> {
        let connection = opening::open(file)?;
        let (calls, inbox) = mpsc::channel();
        let thread = std::thread::Builder::new().name("tandem-store".into());
        let thread = thread
            .spawn(move || run(&connection, &inbox))
            .map_err(|error| OpenError::Database {
                file: file.display().to_string(),
                problem: format!("cannot start its thread: {error}"),
            })?;
        Ok(Self {
            calls: Some(calls),
            thread: Some(thread),
        })
    }

    fn call<T: Send + 'static>(
        &self,
        statements: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Pending<T> {
        let (result, received) = oneshot::channel();
        let call: Call = Box::new(move |connection| {
            let outcome = within_savepoint(connection, statements);
            Box::new(move |committed| {
                // The caller may have given up waiting.
                let _ = result.send(outcome.and_then(|value| committed.map(|()| value)));
            })
        });
        let is_sent = self
            .calls
            .as_ref()
            .is_some_and(|calls| calls.send(call).is_ok());
        Box::pin(async move {
            let ended = || StoreError("its thread has ended".into());
            if !is_sent {
                return Err(ended());
            }
            received.await.map_err(|_| ended())?
        })
    }
}

/// Describes an error without the values of a statement.
fn text(error: &rusqlite::Error) -> String {
    match error {
        rusqlite::Error::SqliteFailure(code, _) => code.to_string(),
        rusqlite::Error::QueryReturnedNoRows => "a row is missing".to_owned(),
        _ => "a value in the database is not valid".to_owned(),
    }
}

/// Runs the statements of one call. If one of them fails, none has an effect.
fn within_savepoint<T>(
    connection: &Connection,
    statements: impl FnOnce(&Connection) -> rusqlite::Result<T>,
) -> Result<T, StoreError> {
    // A transaction that could not begin, or that an earlier call has broken, has no effect.
    if connection.is_autocommit() {
        return Err(StoreError("the transaction has ended".into()));
    }
    let run = || {
        connection.execute_batch("SAVEPOINT call")?;
        let outcome = statements(connection)
            .and_then(|value| connection.execute_batch("RELEASE call").map(|()| value));
        if outcome.is_err()
            && connection
                .execute_batch("ROLLBACK TO call; RELEASE call")
                .is_err()
            && !connection.is_autocommit()
        {
            // The batch must not commit a part of this call. If this fails as well, SQLite has
            // ended the transaction, and the commit fails.
            let _ = connection.execute_batch("ROLLBACK");
        }
        outcome
    };
    run().map_err(|error| StoreError(text(&error)))
}

/// Serves calls until the store is dropped.
fn run(connection: &Connection, inbox: &mpsc::Receiver<Call>) {
    // The time of the first change that the log may still hold.
    let mut changed: Option<Instant> = None;
    loop {
        let left = changed.map(|at| LOG_AGE.saturating_sub(at.elapsed()));
        let first = match left {
            None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            // Waiting calls must not delay the truncation.
            Some(Duration::ZERO) => Err(RecvTimeoutError::Timeout),
            Some(left) => inbox.recv_timeout(left),
        };
        match first {
            Ok(first) => {
                let before = connection.total_changes();
                commit(connection, inbox, first);
                if connection.total_changes() != before {
                    changed.get_or_insert_with(Instant::now);
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                let is_truncated = opening::truncate_log(connection).is_ok();
                changed = (!is_truncated).then(Instant::now);
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Runs a call, and those that wait behind it, in one transaction.
fn commit(connection: &Connection, inbox: &mpsc::Receiver<Call>, first: Call) {
    let mut calls = vec![first];
    calls.extend(inbox.try_iter().take(BATCH - 1));
    let begun = connection.execute_batch("BEGIN IMMEDIATE");
    let reports: Vec<Report> = calls.into_iter().map(|call| call(connection)).collect();
    let committed = begun.and_then(|()| connection.execute_batch("COMMIT"));
    if committed.is_err() && !connection.is_autocommit() {
        // A failed rollback shows in the next transaction.
        let _ = connection.execute_batch("ROLLBACK");
    }
    let committed = committed.map_err(|error| StoreError(text(&error)));
    for report in reports {
        report(committed.clone());
    }
}

impl Store for Sqlite {
    fn admit(&self, new: NewSubmission) -> Pending<Admission> {
        self.call(move |connection| statements::admit(connection, &new))
    }

    fn inquire(&self, inquiry: Inquiry) -> Pending<Prospect> {
        self.call(move |connection| statements::inquire(connection, &inquiry))
    }

    fn find(&self, id: SubmissionId) -> Pending<Option<Record>> {
        self.call(move |connection| statements::find(connection, id))
    }

    fn state(&self, id: SubmissionId) -> Pending<Option<Record>> {
        self.call(move |connection| statements::state(connection, id))
    }

    fn claim(&self, claim: Claim) -> Pending<Claimed> {
        self.call(move |connection| statements::claim(connection, &claim))
    }

    fn answer(&self, id: SubmissionId, answer: Answer, now: Millis) -> Pending<()> {
        self.call(move |connection| statements::answer(connection, id, &answer, now))
    }

    fn postpone(&self, lease: Lease, due: Millis, _: Millis) -> Pending<()> {
        self.call(move |connection| statements::postpone(connection, lease, due))
    }

    fn release(&self, server: String, rule: Rule, now: Millis) -> Pending<u64> {
        self.call(move |connection| statements::release(connection, &server, &rule, now))
    }

    fn give_up(&self, lease: Lease, status: Option<u16>, now: Millis) -> Pending<()> {
        self.call(move |connection| statements::give_up(connection, lease, status, now))
    }

    fn forget(&self, now: Millis, keep: Millis) -> Pending<u64> {
        self.call(move |connection| statements::forget(connection, now, keep))
    }

    fn end_epochs(&self, first: Epoch) -> Pending<()> {
        self.call(move |connection| statements::end_epochs(connection, first))
    }

    fn spent(&self, first: Epoch) -> Pending<Vec<(Epoch, u64)>> {
        self.call(move |connection| statements::spent(connection, first))
    }

    fn waiting(&self, server: String, now: Millis) -> Pending<Waiting> {
        self.call(move |connection| statements::waiting(connection, &server, now))
    }
}

#[cfg(test)]
mod tests;

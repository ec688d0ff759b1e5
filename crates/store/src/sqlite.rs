//! The store of one gateway: a file of SQLite, written by one thread.
//!
//! The thread takes the waiting calls together and commits them in one transaction. A call returns
//! after the commit, which SQLite has then written to the disk (`synchronous = FULL`). The file is
//! locked as long as the process runs. When it opens the file, no other process delivers, so it
//! ends the leases of its predecessor.

mod statements;

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::mpsc;

use rusqlite::{Connection, ErrorCode};
use tandem_submit::store::{
    Admission, Delivery, Millis, NewSubmission, Pending, Record, Store, StoreError,
};
use tandem_submit::submission::{Answer, SubmissionId};
use tokio::sync::oneshot;

use crate::OpenError;

/// The number of calls in one transaction.
const BATCH: usize = 64;

/// The version of the tables, which the file holds as `user_version`.
const VERSION: i64 = 1;

const TABLES: &str = "
    CREATE TABLE submissions (
        id BLOB PRIMARY KEY NOT NULL,
        key BLOB NOT NULL UNIQUE,
        client TEXT NOT NULL,
        fingerprint BLOB NOT NULL,
        accepted INTEGER NOT NULL,
        state INTEGER NOT NULL,
        due INTEGER NOT NULL,
        attempts INTEGER NOT NULL,
        path TEXT,
        fields BLOB,
        body BLOB,
        digest BLOB,
        ended INTEGER,
        status INTEGER,
        answer_fields BLOB,
        answer_body BLOB
    ) STRICT;
    CREATE INDEX submissions_due ON submissions (due) WHERE state = 0;
    CREATE INDEX submissions_ended ON submissions (ended) WHERE ended IS NOT NULL;
    CREATE TABLE usage (
        client TEXT NOT NULL,
        day INTEGER NOT NULL,
        submissions INTEGER NOT NULL,
        bytes INTEGER NOT NULL,
        PRIMARY KEY (client, day)
    ) STRICT, WITHOUT ROWID;
    PRAGMA user_version = 1;
";

/// A call that runs on the thread of the database. It returns the function that reports the result
/// after the commit, or the failure of the commit.
type Call = Box<dyn FnOnce(&Connection) -> Report + Send>;
type Report = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// A store in a file of SQLite.
#[derive(Debug)]
pub struct Sqlite {
    calls: mpsc::Sender<Call>,
}

impl Sqlite {
    /// Opens a file, and creates it if it does not exist. Only its owner may read a new file.
    ///
    /// # Errors
    /// Returns the reason why the file cannot be used.
    pub fn open(file: &Path) -> Result<Self, OpenError> {
        let name = file.display().to_string();
        let created = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(file);
        created.map_err(|error| OpenError::File {
            file: name.clone(),
            error,
        })?;
        let problem = |problem: String| OpenError::Database {
            file: name.clone(),
            problem,
        };
        let connection = prepare(file).map_err(|error| problem(explain(&error)))?;
        let version: i64 = connection
            .pragma_query_value(None, "user_version", |row| row.get(0))
            .map_err(|error| problem(explain(&error)))?;
        if version != VERSION {
            return Err(problem(format!(
                "its tables have version {version}, and this program uses version {VERSION}"
            )));
        }
        let (calls, inbox) = mpsc::channel();
        let thread = std::thread::Builder::new().name("tandem-store".into());
        let spawned = thread.spawn(move || run(&connection, &inbox));
        spawned.map_err(|error| problem(format!("cannot start its thread: {error}")))?;
        Ok(Self { calls })
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
                let _ = result.send(committed.and(outcome));
            })
        });
        let sent = self.calls.send(call);
        Box::pin(async move {
            let ended = || StoreError("its thread has ended".into());
            sent.map_err(|_| ended())?;
            received.await.map_err(|_| ended())?
        })
    }
}

/// Opens the database, locks it, and creates its tables.
fn prepare(file: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(file)?;
    connection.busy_timeout(std::time::Duration::ZERO)?;
    // The lock is taken with the first write.
    connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    // Deleted content is overwritten.
    connection.pragma_update(None, "secure_delete", true)?;
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if version == 0 {
        connection.execute_batch(TABLES)?;
    }
    if version <= VERSION {
        connection.execute("UPDATE submissions SET due = 0 WHERE state = 0", ())?;
    }
    connection.execute_batch("COMMIT")?;
    Ok(connection)
}

fn explain(error: &rusqlite::Error) -> String {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            "another process uses it; each gateway needs its own file".to_owned()
        }
        Some(ErrorCode::NotADatabase) => "it is no database of SQLite".to_owned(),
        _ => text(error),
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
        match statements(connection) {
            Ok(value) => connection.execute_batch("RELEASE call").map(|()| value),
            Err(error) => {
                connection.execute_batch("ROLLBACK TO call; RELEASE call")?;
                Err(error)
            }
        }
    };
    run().map_err(|error| StoreError(text(&error)))
}

/// Serves calls until the store is dropped.
fn run(connection: &Connection, inbox: &mpsc::Receiver<Call>) {
    while let Ok(first) = inbox.recv() {
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
}

impl Store for Sqlite {
    fn admit(&self, new: NewSubmission) -> Pending<Admission> {
        self.call(move |connection| statements::admit(connection, &new))
    }

    fn find(&self, id: SubmissionId) -> Pending<Option<Record>> {
        self.call(move |connection| statements::find(connection, id))
    }

    fn claim(&self, now: Millis, leased_until: Millis, limit: usize) -> Pending<Vec<Delivery>> {
        self.call(move |connection| statements::claim(connection, now, leased_until, limit))
    }

    fn answer(&self, id: SubmissionId, answer: Answer, now: Millis) -> Pending<()> {
        self.call(move |connection| statements::answer(connection, id, &answer, now))
    }

    fn postpone(&self, id: SubmissionId, due: Millis) -> Pending<()> {
        self.call(move |connection| statements::postpone(connection, id, due))
    }

    fn give_up(&self, id: SubmissionId, now: Millis) -> Pending<()> {
        self.call(move |connection| statements::give_up(connection, id, now))
    }

    fn forget(&self, before: Millis) -> Pending<u64> {
        self.call(move |connection| statements::forget(connection, before))
    }

    fn waiting(&self) -> Pending<u64> {
        self.call(statements::waiting)
    }
}

#[cfg(test)]
mod tests;

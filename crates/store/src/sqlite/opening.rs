//! Opens the file of a store: its permissions, its lock, the settings of SQLite and the tables.
//!
//! The file is locked as long as the process runs. No other process delivers at the time of the
//! opening, which therefore ends the leases of the previous process.

use std::fs::{OpenOptions, Permissions};
use std::io::{Error, ErrorKind};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags, Result};

use super::text;
use crate::OpenError;

/// The version of the tables, which the file holds as `user_version`.
const VERSION: i64 = 4;

/// The tables of version 4. The contents and the answers have tables of their own, so that SQLite
/// reads no body to reach a state. The index of waiting submissions has all columns of the frequent
/// queries. A submission of version 1 names no server. A batch has the collected ones.
const TABLES: &str = "
    CREATE TABLE submissions (
        id BLOB PRIMARY KEY NOT NULL,
        key BLOB NOT NULL UNIQUE,
        client TEXT NOT NULL,
        fingerprint BLOB NOT NULL,
        server TEXT,
        accepted INTEGER NOT NULL,
        state INTEGER NOT NULL,
        due INTEGER NOT NULL,
        attempts INTEGER NOT NULL,
        size INTEGER NOT NULL,
        ended INTEGER,
        status INTEGER,
        collected INTEGER NOT NULL DEFAULT 0
    ) STRICT;
    CREATE INDEX submissions_waiting
        ON submissions (state, due, server, id, accepted, collected) WHERE state = 0;
    CREATE INDEX submissions_ended ON submissions (ended) WHERE ended IS NOT NULL;
    CREATE TABLE contents (
        id BLOB PRIMARY KEY NOT NULL,
        path TEXT NOT NULL,
        fields BLOB NOT NULL,
        digest BLOB NOT NULL,
        body BLOB NOT NULL
    ) STRICT;
    CREATE TABLE answers (
        id BLOB PRIMARY KEY NOT NULL,
        fields BLOB NOT NULL,
        body BLOB NOT NULL
    ) STRICT;
    CREATE TABLE usage (
        client TEXT NOT NULL,
        day INTEGER NOT NULL,
        submissions INTEGER NOT NULL,
        bytes INTEGER NOT NULL,
        PRIMARY KEY (client, day)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE spent (
        epoch INTEGER NOT NULL,
        nonce BLOB NOT NULL,
        PRIMARY KEY (epoch, nonce)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE totals (
        one INTEGER PRIMARY KEY NOT NULL CHECK (one = 1),
        size INTEGER NOT NULL,
        first_epoch INTEGER NOT NULL,
        cleaned INTEGER
    ) STRICT;
    INSERT INTO totals VALUES (1, 0, 0, NULL);
    PRAGMA user_version = 4;
";

/// The changes from version 1 to version 2: the server of each submission, and the time of the last
/// removal of old ones.
const TO_VERSION_2: &str = "
    ALTER TABLE submissions ADD COLUMN server TEXT;
    DROP INDEX submissions_due;
    CREATE INDEX submissions_waiting ON submissions (state, due, server, id) WHERE state = 0;
    CREATE TABLE cleaning (one INTEGER PRIMARY KEY NOT NULL, at INTEGER NOT NULL) STRICT;
";

/// The first part of the changes from version 2 to the present one, before [`TABLES`].
const BEFORE_TABLES: &str = "
    DROP INDEX submissions_waiting;
    DROP INDEX submissions_ended;
    ALTER TABLE submissions RENAME TO old_submissions;
    ALTER TABLE usage RENAME TO old_usage;
";

/// The second part of these changes. 4096 is the overhead of each submission.
const AFTER_TABLES: &str = "
    INSERT INTO submissions (id, key, client, fingerprint, server, accepted, state, due, attempts,
            size, ended, status)
        SELECT id, key, client, fingerprint, server, accepted, state, due, attempts,
            4096 + ifnull(length(body), 0) + ifnull(length(answer_body), 0), ended, status
        FROM old_submissions;
    INSERT INTO contents
        SELECT id, path, fields, digest, body FROM old_submissions WHERE state = 0;
    INSERT INTO answers
        SELECT id, answer_fields, answer_body FROM old_submissions WHERE state = 1;
    INSERT INTO usage SELECT client, day, submissions, bytes FROM old_usage;
    UPDATE totals SET size = (SELECT ifnull(sum(size), 0) FROM submissions),
        cleaned = (SELECT at FROM cleaning);
    DROP TABLE old_submissions;
    DROP TABLE old_usage;
    DROP TABLE cleaning;
";

/// The changes from version 3 to version 4: submissions that a batch collects.
const TO_VERSION_4: &str = "
    ALTER TABLE submissions ADD COLUMN collected INTEGER NOT NULL DEFAULT 0;
    DROP INDEX submissions_waiting;
    CREATE INDEX submissions_waiting
        ON submissions (state, due, server, id, accepted, collected) WHERE state = 0;
    PRAGMA user_version = 4;
";

/// The settings of the connection, with the values that SQLite then reports:
///
/// - The lock is taken with the first write, and kept.
/// - A commit returns after the log is on the disk. The log keeps no space after a checkpoint.
/// - Deleted content is overwritten.
/// - Old pages of large bodies, which SQLite keeps during a statement, stay in memory.
const SETTINGS: [(&str, &str, &str); 6] = [
    ("locking_mode", "EXCLUSIVE", "exclusive"),
    ("journal_mode", "WAL", "wal"),
    ("synchronous", "FULL", "2"),
    ("journal_size_limit", "0", "0"),
    ("secure_delete", "ON", "1"),
    ("temp_store", "MEMORY", "2"),
];

/// The reason why a database cannot be used.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error("{}", explain(.0))]
    Sqlite(#[from] rusqlite::Error),
    #[error("SQLite does not set {0} to {1} for it, so that submissions could be lost")]
    Setting(&'static str, &'static str),
    #[error("its tables have version {0}, and this program uses version {VERSION}")]
    Version(i64),
}

/// Opens a file and prepares its database. Only the owner can read the file afterwards.
pub(super) fn open(file: &Path) -> std::result::Result<Connection, OpenError> {
    let name = || file.display().to_string();
    let path = make_private(file).map_err(|error| OpenError::File {
        file: name(),
        error,
    })?;
    prepare(&path).map_err(|error| OpenError::Database {
        file: name(),
        problem: error.to_string(),
    })
}

/// Creates a file that only its owner can read, or removes the other permissions of an existing
/// file. Returns its absolute path, which SQLite takes for no URI and for no database in memory.
pub(crate) fn make_private(file: &Path) -> std::io::Result<PathBuf> {
    let path = std::path::absolute(file)?;
    let mut options = OpenOptions::new();
    let opened = options.create(true).append(true).mode(0o600).open(&path)?;
    let metadata = opened.metadata()?;
    if !metadata.is_file() {
        return Err(Error::new(ErrorKind::InvalidInput, "it is no regular file"));
    }
    if metadata.permissions().mode() & 0o077 != 0 {
        opened.set_permissions(Permissions::from_mode(0o600))?;
    }
    // SQLite gives new ones the permissions of the file.
    for end in ["-wal", "-shm"] {
        let mut beside = path.clone().into_os_string();
        beside.push(end);
        match std::fs::set_permissions(&beside, Permissions::from_mode(0o600)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(path)
}

/// Opens the database, locks it, and creates its tables.
fn prepare(path: &Path) -> std::result::Result<Connection, Unusable> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(Duration::ZERO)?;
    for (name, value, _) in SETTINGS {
        connection.pragma_update(None, name, value)?;
    }
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    match version {
        0 => connection.execute_batch(TABLES)?,
        1 => {
            connection.execute_batch(TO_VERSION_2)?;
            replace_tables(&connection)?;
        }
        2 => replace_tables(&connection)?,
        3 => connection.execute_batch(TO_VERSION_4)?,
        VERSION => {}
        other => return Err(Unusable::Version(other)),
    }
    let end_leases = "UPDATE submissions SET due = 0 WHERE state = 0 AND collected = 0";
    connection.execute(end_leases, ())?;
    connection.execute_batch("COMMIT")?;
    check_settings(&connection)?;
    truncate_log(&connection)?;
    Ok(connection)
}

/// Moves the submissions of version 2 into the present tables.
fn replace_tables(connection: &Connection) -> Result<()> {
    [BEFORE_TABLES, TABLES, AFTER_TABLES]
        .into_iter()
        .try_for_each(|statements| connection.execute_batch(statements))
}

/// Checks that SQLite uses the settings. It ignores those that the file system does not support.
fn check_settings(connection: &Connection) -> std::result::Result<(), Unusable> {
    for (name, value, expected) in SETTINGS {
        let set = connection.pragma_query_value(None, name, |row| {
            Ok(match row.get_ref(0)? {
                rusqlite::types::ValueRef::Integer(number) => number.to_string(),
                other => other.as_str()?.to_owned(),
            })
        })?;
        if set != expected {
            return Err(Unusable::Setting(name, value));
        }
    }
    Ok(())
}

/// Moves the log into the main file, and truncates it.
pub(super) fn truncate_log(connection: &Connection) -> Result<()> {
    let is_busy: bool =
        connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", (), |row| row.get(0))?;
    match is_busy {
        false => Ok(()),
        true => Err(rusqlite::Error::QueryReturnedNoRows),
    }
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

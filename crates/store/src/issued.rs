//! The numbers of tokens that the accounts of an issuer have got, in a file of SQLite.
//!
//! An account is a hash. The numbers of earlier epochs are removed with each new epoch.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rusqlite::{Connection, OpenFlags, Result, params};

use crate::OpenError;
use crate::sqlite::make_private;

const TABLES: &str = "
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = FULL;
    PRAGMA secure_delete = ON;
    PRAGMA temp_store = MEMORY;
    CREATE TABLE IF NOT EXISTS issued (
        epoch INTEGER NOT NULL,
        account BLOB NOT NULL,
        tokens INTEGER NOT NULL,
        PRIMARY KEY (epoch, account)
    ) STRICT, WITHOUT ROWID;
";

/// The numbers of tokens. Its methods block for the time of a write to the disk.
#[derive(Debug)]
pub struct IssuedTokens(Mutex<Connection>);

impl IssuedTokens {
    /// Opens a file, and creates it if it does not exist. Only its owner can read it afterwards.
    ///
    /// # Errors
    /// Returns the reason why the file cannot be used.
    pub fn open(file: &Path) -> std::result::Result<Self, OpenError> {
        let failed = |error: rusqlite::Error| OpenError::Database {
            file: file.display().to_string(),
            problem: error.to_string(),
        };
        let path = make_private(file).map_err(|error| OpenError::File {
            file: file.display().to_string(),
            error,
        })?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags).map_err(failed)?;
        let five_seconds = std::time::Duration::from_secs(5);
        connection.busy_timeout(five_seconds).map_err(failed)?;
        connection.execute_batch(TABLES).map_err(failed)?;
        Ok(Self(Mutex::new(connection)))
    }

    /// Counts a token of an account. Returns false, and counts nothing, if the account has got
    /// `most` tokens in the epoch. The count is on the disk afterwards.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn charge(&self, epoch: u64, account: &[u8; 32], most: u64) -> Result<bool> {
        let connection = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        if most == 0 {
            return Ok(false);
        }
        let changed = connection
            .prepare_cached(
                "INSERT INTO issued VALUES (?1, ?2, 1)
                 ON CONFLICT DO UPDATE SET tokens = tokens + 1 WHERE tokens < ?3",
            )?
            .execute(params![number(epoch), account, most])?;
        Ok(changed == 1)
    }

    /// Returns the number of tokens that all accounts have got in an epoch.
    ///
    /// # Errors
    /// Fails if the file cannot be read.
    pub fn total(&self, epoch: u64) -> Result<u64> {
        let connection = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let total: i64 = connection
            .prepare_cached("SELECT ifnull(sum(tokens), 0) FROM issued WHERE epoch = ?1")?
            .query_row([number(epoch)], |row| row.get(0))?;
        Ok(total.unsigned_abs())
    }

    /// Removes the numbers of all epochs before `first`.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn end_epochs(&self, first: u64) -> Result<()> {
        let connection = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        connection
            .prepare_cached("DELETE FROM issued WHERE epoch < ?1")?
            .execute([number(first)])?;
        Ok(())
    }
}

fn number(epoch: u64) -> i64 {
    i64::try_from(epoch).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn issued_tokens_are_counted_by_account_and_epoch() {
        let name = format!("tandem-test-issued-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).expect("a directory");
        let file = directory.join("issued");
        let issued = IssuedTokens::open(&file).expect("a file");
        let charge = |issued: &IssuedTokens, epoch, account: u8, most| {
            issued.charge(epoch, &[account; 32], most).expect("written")
        };
        assert!(charge(&issued, 1, 1, 2) && charge(&issued, 1, 1, 2));
        assert!(!charge(&issued, 1, 1, 2));
        assert!(charge(&issued, 1, 2, 2) && charge(&issued, 2, 1, 2));
        assert!(!charge(&issued, 3, 1, 0));
        // A restart keeps the numbers.
        drop(issued);
        let issued = IssuedTokens::open(&file).expect("the same file");
        assert!(!charge(&issued, 1, 1, 2));
        issued.end_epochs(2).expect("written");
        assert!(charge(&issued, 1, 1, 2));
        std::fs::remove_dir_all(&directory).expect("removed");
    }

    #[test]
    fn issued_tokens_are_private() {
        let name = format!("tandem-test-issued-mode-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).expect("a directory");
        let open_to_all = std::fs::Permissions::from_mode(0o644);
        for exists in [false, true] {
            let file = directory.join(format!("issued-{exists}"));
            if exists {
                std::fs::write(&file, "").expect("written");
                std::fs::set_permissions(&file, open_to_all.clone()).expect("set");
            }
            let issued = IssuedTokens::open(&file).expect("a file");
            issued.charge(1, &[1; 32], 1).expect("written");
        }
        let entries = std::fs::read_dir(&directory).expect("the directory");
        for entry in entries {
            let entry = entry.expect("an entry");
            let mode = entry.metadata().expect("a file").permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{:?}", entry.path());
        }
        std::fs::remove_dir_all(&directory).expect("removed");
    }

    #[test]
    fn issued_tokens_never_exceed_the_limit() {
        let name = format!("tandem-test-issuing-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).expect("a directory");
        let issued = IssuedTokens::open(&directory.join("issued")).expect("a file");
        let count = || (0..10).filter(|_| issued.charge(1, &[1; 32], 17).expect("written"));
        let got: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| count().count())).collect();
            let counts = threads.into_iter().map(|thread| thread.join());
            counts.map(|count| count.expect("no panic")).sum()
        });
        assert_eq!(got, 17);
        std::fs::remove_dir_all(&directory).expect("removed");
    }
}

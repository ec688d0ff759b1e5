//! The stores of anonymous submissions, behind the interface of `tandem_submit::store`.
//!
//! - [`sqlite`]: a file, for one gateway.
//! - [`postgres`]: a database, for several gateways.
//! - [`issued`]: the numbers of tokens that the accounts of an issuer have got.
//!
//! The crate is built only with the feature `submit` of `tandem`, because SQLite is C code.

#[cfg(test)]
mod conformance;
pub mod issued;
pub mod postgres;
pub mod sqlite;
#[cfg(test)]
mod test_database;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tandem_submit::store::Store;

/// The numbers of the states in the tables.
const ACCEPTED: i64 = 0;
const ANSWERED: i64 = 1;
const NOT_DELIVERED: i64 = 2;

/// The reason why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The address names no store of this crate.
    #[error("it is no address of a store: write sqlite:FILE, or postgres://USER@HOST/DATABASE")]
    Address,
    /// The file cannot be created.
    #[error("cannot open {file}: {error}")]
    File {
        /// The path of the file.
        file: String,
        /// The error of the operating system.
        error: std::io::Error,
    },
    /// The database of PostgreSQL cannot be used.
    #[error("cannot use the database: {problem}")]
    Postgres {
        /// The problem and its remedy.
        problem: String,
    },
    /// The database cannot be used.
    #[error("cannot use {file}: {problem}")]
    Database {
        /// The path of the file.
        file: String,
        /// The problem and its remedy.
        problem: String,
    },
}

/// Checks an address without opening the store.
///
/// # Errors
/// Returns an error for an address that is neither `sqlite:FILE` nor a URL of PostgreSQL, and for
/// files named in the URL that cannot be read. It repeats no password.
pub fn check(address: &str) -> Result<(), OpenError> {
    match is_postgres(address) {
        true => postgres::check(address),
        false => file(address).map(|_| ()),
    }
}

/// Opens the store with this address: `sqlite:FILE`, or `postgres://USER@HOST/DATABASE`.
///
/// # Errors
/// Returns the reason why the store cannot be used. It repeats no password.
pub fn open(address: &str) -> Result<Arc<dyn Store>, OpenError> {
    Ok(match is_postgres(address) {
        true => Arc::new(postgres::Postgres::open(address)?),
        false => Arc::new(sqlite::Sqlite::open(file(address)?)?),
    })
}

/// Returns the file with a password that an address names.
pub fn password_file(address: &str) -> Option<PathBuf> {
    match is_postgres(address) {
        true => postgres::password_file(address),
        false => None,
    }
}

/// Returns the digits by which an operator finds the row of an identifier.
fn hexadecimal(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn is_postgres(address: &str) -> bool {
    address.starts_with("postgres://") || address.starts_with("postgresql://")
}

fn file(address: &str) -> Result<&Path, OpenError> {
    let file = address.strip_prefix("sqlite:");
    let file = file.filter(|file| !file.is_empty() && !file.starts_with("//"));
    file.map(Path::new).ok_or(OpenError::Address)
}

//! The stores of anonymous submissions, behind the interface of `tandem_submit::store`.
//!
//! - [`sqlite`]: a file, for one gateway.
//!
//! The crate is built only with the feature `submit` of `tandem`, because SQLite is C code.

#[cfg(test)]
mod conformance;
pub mod sqlite;

use std::path::Path;
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
    #[error("{0:?} is no store: write sqlite:FILE")]
    Address(String),
    /// The file cannot be created.
    #[error("cannot open {file}: {error}")]
    File {
        /// The path of the file.
        file: String,
        /// The error of the operating system.
        error: std::io::Error,
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

/// Checks the form of an address without opening the store.
///
/// # Errors
/// Returns an error for an address that is not `sqlite:FILE`.
pub fn check(address: &str) -> Result<(), OpenError> {
    file(address).map(|_| ())
}

/// Opens the store with this address: `sqlite:FILE`.
///
/// # Errors
/// Returns the reason why the store cannot be used.
pub fn open(address: &str) -> Result<Arc<dyn Store>, OpenError> {
    Ok(Arc::new(sqlite::Sqlite::open(file(address)?)?))
}

fn file(address: &str) -> Result<&Path, OpenError> {
    let file = address.strip_prefix("sqlite:");
    let file = file.filter(|file| !file.is_empty() && !file.starts_with("//"));
    file.map(Path::new)
        .ok_or_else(|| OpenError::Address(address.to_owned()))
}

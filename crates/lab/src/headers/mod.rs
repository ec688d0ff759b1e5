//! `tandem-lab headers`: the sizes of heads and bodies, their compression by each session protocol,
//! and the worth of a push in bytes.
//!
//! `input` reads exchanges, with the heads of `browser` where a file has none. `codec` compresses
//! them, `least` has the bound of HPACK, `study` computes the figures, and `report` writes them.

mod browser;
mod codec;
mod input;
mod least;
mod report;
mod study;

use std::path::{Path, PathBuf};

pub use codec::{Codec, HeaderList};
pub use input::{Exchange, HeaderSession, read};
pub use least::Site;
pub use study::{Distribution, HeaderStudy, Position, PushWorth, Ratios, Sizes};

/// An error of the study.
#[derive(Debug, thiserror::Error)]
pub enum HeadersError {
    /// A file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// The cause.
        source: std::io::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The file.
        path: String,
        /// The cause.
        source: std::io::Error,
    },
    /// A file begins like JSON, but is none.
    #[error("{path}: not JSON: {source}")]
    Json {
        /// The file.
        path: String,
        /// The cause.
        source: serde_json::Error,
    },
    /// A JSON file is neither a HAR file nor a page.
    #[error("{path}: neither a HAR file nor a page: {source}")]
    Page {
        /// The file.
        path: String,
        /// The cause.
        source: tandem_web::page::PageError,
    },
    /// A file has no exchange.
    #[error("{0}: no request with an answer is in it")]
    Empty(String),
}

impl HeadersError {
    fn read(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.display().to_string();
        move |source| Self::Read { path, source }
    }
}

/// Measures files, writes the report to `directory`, and returns the figures as text.
///
/// # Errors
/// Fails if a file cannot be read or written, or has no exchange.
pub fn run(files: &[PathBuf], directory: &Path) -> Result<String, HeadersError> {
    let mut sessions = Vec::new();
    for file in files {
        sessions.extend(read(file)?);
    }
    let study = HeaderStudy::of(&sessions);
    report::write(&study, directory)?;
    Ok(report::text(&study))
}

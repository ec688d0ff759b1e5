//! The record of changed stores, a file in the authority's directory. Thus `--remove` also finds
//! the stores that a later environment would not name.
//!
//! [`crate::transport::tls::trusted_by`] describes its lines.

use std::path::Path;

use super::{Store, StoreError, StoreKind, file_error};
use crate::transport::tls::trusted_by::{FIREFOX, UNFINISHED, record_file};

/// How far the change of a store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli::trust) enum Progress {
    /// Something may be changed.
    Begun,
    /// The store trusts the authority.
    Trusts,
}

type Entry = (Store, Progress);

/// Records how far the change of a store is.
pub(in crate::cli::trust) fn record(
    directory: &Path,
    store: &Store,
    progress: Progress,
) -> Result<(), StoreError> {
    let mut entries = entries(directory)?;
    match entries.iter_mut().find(|(known, _)| known == store) {
        Some(known) => known.1 = progress,
        None => entries.push((store.clone(), progress)),
    }
    write(directory, &entries)
}

/// Removes a store from the record.
pub(in crate::cli::trust) fn forget(directory: &Path, store: &Store) -> Result<(), StoreError> {
    let mut left = entries(directory)?;
    left.retain(|(known, _)| known != store);
    write(directory, &left)
}

/// Returns the stores of the record.
pub(in crate::cli::trust) fn recorded(directory: &Path) -> Result<Vec<Store>, StoreError> {
    let entries = entries(directory)?;
    Ok(entries.into_iter().map(|(store, _)| store).collect())
}

fn write(directory: &Path, entries: &[Entry]) -> Result<(), StoreError> {
    let path = record_file(directory);
    let written = if entries.is_empty() {
        std::fs::remove_file(&path)
    } else {
        let lines: String = entries.iter().map(|entry| line(entry) + "\n").collect();
        std::fs::write(&path, lines)
    };
    match written {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(file_error(&path, error)),
        _ => Ok(()),
    }
}

fn line((store, progress): &Entry) -> String {
    let mut kind = match store.kind {
        StoreKind::Chromium => "chromium",
        StoreKind::Firefox => FIREFOX,
        StoreKind::System => "system",
    }
    .to_owned();
    if *progress == Progress::Begun {
        kind.push(UNFINISHED);
    }
    format!("{kind} {}", store.directory.display())
}

/// Reads the record.
fn entries(directory: &Path) -> Result<Vec<Entry>, StoreError> {
    let path = record_file(directory);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(file_error(&path, error)),
    };
    let entry = |line: &str| {
        let (kind, directory) = line.split_once(' ')?;
        let (kind, progress) = match kind.strip_suffix(UNFINISHED) {
            Some(kind) => (kind, Progress::Begun),
            None => (kind, Progress::Trusts),
        };
        let kind = clap::ValueEnum::from_str(kind, false).ok()?;
        Some((Store::nss(kind, directory.into()), progress))
    };
    text.lines()
        .map(|line| {
            entry(line).ok_or_else(|| StoreError::Record {
                path: path.clone(),
                line: line.to_owned(),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::tls::trusted_by::lists_firefox;

    #[test]
    fn record_lists_each_store_once() {
        let name = format!("tandem-stores-record-{}", std::process::id());
        let home = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&home).expect("a directory");
        let stores = [
            Store::nss(StoreKind::Firefox, home.join("with a space/profile")),
            Store::nss(StoreKind::System, home.join("anchors")),
        ];
        for progress in [Progress::Begun, Progress::Trusts, Progress::Begun] {
            for store in &stores {
                record(&home, store, progress).expect("recorded");
            }
            assert_eq!(recorded(&home).expect("read"), stores);
            let trusts = progress == Progress::Trusts;
            assert_eq!(lists_firefox(&home), trusts, "{progress:?}");
        }
        forget(&home, &stores[0]).expect("forgotten");
        assert_eq!(recorded(&home).expect("read"), stores[1..]);
        forget(&home, &stores[1]).expect("forgotten");
        assert!(!record_file(&home).exists());
        std::fs::write(record_file(&home), "nonsense\n").expect("written");
        let error = recorded(&home).expect_err("no store");
        assert!(matches!(error, StoreError::Record { .. }));
        assert!(error.to_string().contains("delete the line"), "{error}");
        std::fs::remove_dir_all(&home).expect("removed");
    }
}

//! Files that are replaced as a whole, and those that one process has to itself.

use std::collections::hash_map::RandomState;
use std::fs::{File, OpenOptions, TryLockError};
use std::hash::{BuildHasher as _, Hasher as _};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Returns the file's path with `end` appended to the name.
pub(crate) fn beside(file: &Path, end: &str) -> PathBuf {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(end);
    file.with_file_name(name)
}

/// Writes a file so that a reader finds either the old content or the new, even after a crash. The
/// content goes to `new`, opened with `options`, which then gets the name of the file.
pub(crate) fn replace(
    file: &Path,
    new: &Path,
    options: &OpenOptions,
    content: &[u8],
) -> std::io::Result<()> {
    put(file, new, options, content, |_| Ok(())).map(drop)
}

/// Writes a file as [`replace`] does. The new file passes `prepare` before it gets the name.
fn put(
    file: &Path,
    new: &Path,
    options: &OpenOptions,
    content: &[u8],
    prepare: impl FnOnce(&File) -> std::io::Result<()>,
) -> std::io::Result<File> {
    let written = (|| {
        let mut out = options.open(new)?;
        prepare(&out)?;
        out.write_all(content)?;
        out.sync_all()?;
        std::fs::rename(new, file)?;
        Ok(out)
    })();
    if written.is_err() {
        // The incomplete file is useless, and the first error is the one to report.
        let _ = std::fs::remove_file(new);
    }
    written
}

/// Replaces a file as [`replace`] does. Only this user can read the new one.
pub(crate) fn replace_private(file: &Path, content: &[u8]) -> std::io::Result<()> {
    put_private(file, content, |_| Ok(())).map(drop)
}

/// Replaces a file as [`replace_private`] does. Returns the new one, which is locked before another
/// process can find it.
pub(crate) fn replace_locked(file: &Path, content: &[u8]) -> std::io::Result<File> {
    put_private(file, content, File::lock)
}

fn put_private(
    file: &Path,
    content: &[u8],
    prepare: impl FnOnce(&File) -> std::io::Result<()>,
) -> std::io::Result<File> {
    // A fixed name would be shared by two writes, of this process or of another one.
    let number = RandomState::new().build_hasher().finish();
    let new = beside(file, &format!(".{number:016x}.new"));
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    put(file, &new, &options, content, prepare)
}

/// The largest number of attempts to lock a file that other processes replace.
const LOCK_TRIES: usize = 16;

/// Opens a file and locks it for this process. A missing one is created, for this user only.
pub(crate) fn open_locked(file: &Path) -> Result<File, TryLockError> {
    for _ in 0..LOCK_TRIES {
        let Some(opened) = open_or_create(file).map_err(TryLockError::Error)? else {
            continue;
        };
        opened.try_lock()?;
        // The process before may have replaced the file between both calls.
        let place = |found: std::fs::Metadata| (found.dev(), found.ino());
        let own = opened.metadata().map_err(TryLockError::Error)?;
        if std::fs::metadata(file).is_ok_and(|found| place(found) == place(own)) {
            return Ok(opened);
        }
    }
    Err(TryLockError::WouldBlock)
}

/// Returns `None` if another process creates the file at the same time.
fn open_or_create(file: &Path) -> std::io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    // A pipe would stop the start.
    options.read(true).custom_flags(libc::O_NONBLOCK);
    match options.open(file) {
        Ok(opened) if opened.metadata()?.is_file() => return Ok(Some(opened)),
        Ok(_) => return Err(std::io::Error::other("it is no regular file")),
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        Err(_) => {}
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o600);
    match options.open(file) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(None),
        created => created.map(Some),
    }
}

/// Returns the path of a file without links. A link to a missing file is an error, since its volume
/// may not be mounted.
pub(crate) fn without_links(file: &Path) -> std::io::Result<PathBuf> {
    match std::fs::canonicalize(file) {
        Err(error)
            if error.kind() == ErrorKind::NotFound && std::fs::symlink_metadata(file).is_err() =>
        {
            Ok(file.to_owned())
        }
        found => found,
    }
}

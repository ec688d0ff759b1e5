//! Files that are replaced as a whole, and those that one process has to itself.

use std::collections::hash_map::RandomState;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions, TryLockError};
use std::hash::{BuildHasher as _, Hasher as _};
use std::io::{ErrorKind, Write as _};
use std::os::unix::ffi::OsStrExt as _;
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

/// The end of the name of a new file, after the name of the old one and a number.
const NEW: &str = ".new";

/// Removes the files that killed processes have left beside a file: new ones without its name yet.
/// No other process may replace the file at the same time.
pub(crate) fn remove_unfinished(file: &Path) -> std::io::Result<()> {
    let folder = file.parent().filter(|it| !it.as_os_str().is_empty());
    for entry in std::fs::read_dir(folder.unwrap_or_else(|| Path::new(".")))? {
        let entry = entry?;
        if is_unfinished(file, &entry.file_name()) && entry.file_type()?.is_file() {
            std::fs::remove_file(file.with_file_name(entry.file_name()))?;
        }
    }
    Ok(())
}

/// Returns whether a name is one that [`put_private`] gives to a new file.
fn is_unfinished(file: &Path, name: &OsStr) -> bool {
    let of = file.file_name().unwrap_or_default().as_bytes();
    let number = name.as_bytes().strip_prefix(of);
    let number = number.and_then(|rest| rest.strip_prefix(b"."));
    let number = number.and_then(|rest| rest.strip_suffix(NEW.as_bytes()));
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    number.is_some_and(|number| number.len() == 16 && number.iter().all(is_digit))
}

fn put_private(
    file: &Path,
    content: &[u8],
    prepare: impl FnOnce(&File) -> std::io::Result<()>,
) -> std::io::Result<File> {
    // A fixed name would be shared by two writes, of this process or of another one.
    let number = RandomState::new().build_hasher().finish();
    let new = beside(file, &format!(".{number:016x}{NEW}"));
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
    // A pipe would stop the start. NFS locks only files that are open for writing.
    options.read(true).custom_flags(libc::O_NONBLOCK);
    let opened = match options.clone().write(true).open(file) {
        Err(error) if error.kind() != ErrorKind::NotFound => options.open(file),
        opened => opened,
    };
    match opened {
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn locked_file_is_open_for_writing_if_possible() {
        let name = format!("tandem-open-{}", std::process::id());
        let file = std::env::temp_dir().join(name);
        std::fs::write(&file, "content").expect("a file");
        let opened = open_locked(&file).expect("it is free");
        // Only a file that is open for writing can get a length.
        opened.set_len(7).expect("open for writing");
        drop(opened);
        let read_only = std::fs::Permissions::from_mode(0o400);
        std::fs::set_permissions(&file, read_only).expect("a file");
        open_locked(&file).expect("reading is enough on a local disk");
        std::fs::remove_file(&file).expect("a file");
    }
}

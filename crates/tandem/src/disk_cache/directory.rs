//! The directory with the files of responses. Each file has the name of its target, in hexadecimal.
//!
//! | file | content |
//! |---|---|
//! | `lock` | a sentence; the process that uses the directory has locked the file |
//! | `new` | a response that is being written; it then gets its name |
//! | 32 hexadecimal digits | a sealed response |
//! | `closed` | the mark of a process that ended regularly: the files are as its index was |
//!
//! No file is synchronised when it is written. After a crash there is no mark, and the next process
//! uses no file. A file that was cut fails its authentication.
//!
//! The gateway deletes files of these names. It therefore takes a directory only if that is empty,
//! or if the sentence in `lock` says that it belongs to a cache.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use data_encoding::HEXLOWER;
use tandem_cache::Name;

/// The most bytes of a mark.
const MAX_MARK: usize = 64;

/// The content of `lock`.
const SENTENCE: &[u8] = b"This directory holds the files of a cache of tandem gateway only.\n";

/// The reason for which a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// The directory cannot be created, read or written.
    #[error("{path}: {error}")]
    File {
        /// The directory.
        path: String,
        /// The error of the system.
        error: std::io::Error,
    },
    /// The path does not lead to a directory.
    #[error("{0}: this is not a directory")]
    Kind(String),
    /// Other users of the machine may read or write the directory.
    #[error("{0}: other users have access to it: chmod 700")]
    Exposed(String),
    /// The directory holds files that no gateway has written.
    #[error(
        "{0}: it holds other files, and the gateway deletes files in its directory: name an empty \
         or new one"
    )]
    Foreign(String),
    /// Another process has locked the directory.
    #[error("{0}: another process uses it, and each gateway needs a directory of its own")]
    Taken(String),
}

/// A file with a response.
#[derive(Debug)]
pub(super) struct FoundFile {
    pub(super) name: Name,
    pub(super) bytes: u64,
    pub(super) written: SystemTime,
}

/// A directory that this process has locked.
#[derive(Debug)]
pub(super) struct CacheDirectory {
    path: PathBuf,
    _lock: File,
}

/// Checks an existing directory, or the parent of one that is to be created.
///
/// # Errors
/// Returns the problem.
pub fn check(path: &Path) -> Result<(), DirectoryError> {
    let shown = || path.display().to_string();
    let file = |error| DirectoryError::File {
        path: shown(),
        error,
    };
    match std::fs::metadata(path) {
        Ok(found) if !found.is_dir() => Err(DirectoryError::Kind(shown())),
        Ok(found) if found.permissions().mode() & 0o077 != 0 => {
            Err(DirectoryError::Exposed(shown()))
        }
        Ok(_) => match is_own(path) {
            Ok(true) => Ok(()),
            Ok(false) => Err(DirectoryError::Foreign(shown())),
            Err(error) => Err(file(error)),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let parent = path.parent().filter(|it| !it.as_os_str().is_empty());
            let parent = std::fs::metadata(parent.unwrap_or_else(|| Path::new(".")));
            parent.map(|_| ()).map_err(|_| file(error))
        }
        Err(error) => Err(file(error)),
    }
}

/// Returns true if a directory belongs to a cache, or holds nothing.
fn is_own(path: &Path) -> std::io::Result<bool> {
    let sentence = read(&path.join("lock"), SENTENCE.len() + 1)?;
    if sentence.as_deref() == Some(SENTENCE) {
        return Ok(true);
    }
    // A crash may have cut the first process off while it wrote the sentence.
    let is_begun = sentence.is_some_and(|it| SENTENCE.starts_with(&it));
    for entry in std::fs::read_dir(path)? {
        let name = entry?.file_name();
        // The root of a file system has a directory for its repair.
        if name != "lost+found" && !(is_begun && name == "lock") {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the first `limit` bytes of a file, or `None` without a regular file of this path.
fn read(path: &Path, limit: usize) -> std::io::Result<Option<Vec<u8>>> {
    let mut options = OpenOptions::new();
    options.read(true);
    // A pipe would block the thread.
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = match options.open(path) {
        Ok(file) if file.metadata()?.is_file() => file,
        Ok(_) => return Ok(None),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(limit as u64).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

impl CacheDirectory {
    /// Locks a directory, which is created if need be.
    pub(super) fn open(path: &Path) -> Result<Self, DirectoryError> {
        check(path)?;
        let shown = path.display().to_string();
        let file = |error| DirectoryError::File {
            path: shown.clone(),
            error,
        };
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(file(error)),
            _ => {}
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        options.mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let mut lock = options.open(path.join("lock")).map_err(file)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(DirectoryError::Taken(shown)),
            Err(TryLockError::Error(error)) => return Err(file(error)),
        }
        sign(&mut lock).map_err(file)?;
        Ok(Self {
            path: path.to_owned(),
            _lock: lock,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the error of a directory that cannot be read or written.
    pub(super) fn failed(&self, error: std::io::Error) -> DirectoryError {
        DirectoryError::File {
            path: self.path.display().to_string(),
            error,
        }
    }

    /// Returns the files with responses, the oldest one first.
    pub(super) fn list(&self) -> std::io::Result<Vec<FoundFile>> {
        let mut all = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            let Some(name) = parsed(&entry.file_name()) else {
                continue;
            };
            let metadata = entry.metadata()?;
            if !metadata.is_file() {
                continue;
            }
            all.push(FoundFile {
                name,
                bytes: metadata.len(),
                written: metadata.modified()?,
            });
        }
        all.sort_by_key(|found| found.written);
        Ok(all)
    }

    /// Returns the response of a name, or `None` if there is no such file. A file that is longer
    /// than `limit` is cut, so that it fails its authentication.
    pub(super) fn read(&self, name: &Name, limit: usize) -> std::io::Result<Option<Vec<u8>>> {
        read(&self.path.join(shown(name)), limit)
    }

    /// Writes the response of a name in place of an older one.
    pub(super) fn write(&self, name: &Name, bytes: &[u8]) -> std::io::Result<()> {
        self.create(bytes)?;
        std::fs::rename(self.path.join("new"), self.path.join(shown(name)))
    }

    fn create(&self, bytes: &[u8]) -> std::io::Result<File> {
        self.remove_file("new")?;
        let mut options = OpenOptions::new();
        let options = options.write(true).create_new(true).mode(0o600);
        let mut file = options.open(self.path.join("new"))?;
        file.write_all(bytes)?;
        Ok(file)
    }

    /// Deletes the response of a name, if there is one.
    pub(super) fn remove(&self, name: &Name) -> std::io::Result<()> {
        self.remove_file(&shown(name))
    }

    fn remove_file(&self, name: &str) -> std::io::Result<()> {
        match std::fs::remove_file(self.path.join(name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Takes the mark of the process before. From now on a crash leaves no mark.
    pub(super) fn take_mark(&self) -> std::io::Result<Option<Vec<u8>>> {
        let mark = read(&self.path.join("closed"), MAX_MARK)?;
        self.remove_file("closed")?;
        File::open(&self.path)?.sync_all()?;
        Ok(mark)
    }

    /// Writes the mark. The deletions and names of all files reach the disk before it.
    pub(super) fn put_mark(&self, mark: &[u8]) -> std::io::Result<()> {
        File::open(&self.path)?.sync_all()?;
        self.create(mark)?.sync_all()?;
        std::fs::rename(self.path.join("new"), self.path.join("closed"))?;
        File::open(&self.path)?.sync_all()
    }
}

/// Writes the sentence, unless it is there. It is on the disk before any other file: without it, no
/// later process would take the directory.
fn sign(lock: &mut File) -> std::io::Result<()> {
    if lock.metadata()?.len() == SENTENCE.len() as u64 {
        return Ok(());
    }
    lock.set_len(0)?;
    lock.rewind()?;
    lock.write_all(SENTENCE)?;
    lock.sync_all()
}

/// Returns the name of a file.
fn shown(name: &Name) -> String {
    HEXLOWER.encode(name)
}

/// Parses the name of a file. Returns `None` for a file of another kind.
fn parsed(name: &OsStr) -> Option<Name> {
    let name = HEXLOWER.decode(name.as_encoded_bytes()).ok()?;
    name.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that the test removes, with the mode that a cache needs.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let name = format!("tandem-directory-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let created = DirBuilder::new().mode(0o700).create(&path);
            created.expect("a directory");
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn directory_with_other_files_stays_as_it_is() {
        for name in [
            "notes",
            "new",
            "closed",
            "lock",
            "d41d8cd98f00b204e9800998ecf8427e",
        ] {
            let scratch = Scratch::new(name);
            let path = scratch.0.join(name);
            std::fs::write(&path, "the user's own").expect("a file");
            for problem in [
                check(&scratch.0).err(),
                CacheDirectory::open(&scratch.0).err(),
            ] {
                let problem = problem.map(|it| it.to_string()).unwrap_or_default();
                assert!(problem.contains("holds other files"), "{name}: {problem}");
            }
            assert_eq!(
                std::fs::read(&path).expect("it stays"),
                b"the user's own",
                "{name}"
            );
            let entries = std::fs::read_dir(&scratch.0).expect("a directory");
            assert_eq!(entries.count(), 1, "{name}");
        }
    }

    #[test]
    fn directory_of_a_cache_is_taken_again() {
        let scratch = Scratch::new("again");
        std::fs::create_dir(scratch.0.join("lost+found")).expect("a directory");
        // A crash came before the sentence was written.
        std::fs::write(scratch.0.join("lock"), &SENTENCE[..9]).expect("a file");
        for _ in 0..2 {
            check(&scratch.0).expect("it belongs to a cache");
            let directory = CacheDirectory::open(&scratch.0).expect("it belongs to a cache");
            directory.write(&[7; 16], b"sealed").expect("a file");
            assert_eq!(directory.list().expect("a directory").len(), 1);
        }
    }

    #[test]
    fn link_and_directory_are_no_responses() {
        let scratch = Scratch::new("kinds");
        let directory = CacheDirectory::open(&scratch.0).expect("an empty directory");
        let at = |name: [u8; 16]| scratch.0.join(shown(&name));
        std::os::unix::fs::symlink("/etc/passwd", at([1; 16])).expect("a link");
        std::fs::create_dir(at([2; 16])).expect("a directory");
        assert!(directory.list().expect("a directory").is_empty());
        for name in [[1; 16], [2; 16]] {
            assert_eq!(directory.read(&name, 99).expect("no error"), None);
        }
    }

    proptest::proptest! {
        #[test]
        fn names_of_files_are_read_as_they_are_written(name: [u8; 16], other in ".{0,40}") {
            proptest::prop_assert_eq!(parsed(OsStr::new(&shown(&name))), Some(name));
            if let Some(name) = parsed(OsStr::new(&other)) {
                proptest::prop_assert_eq!(shown(&name), other);
            }
        }
    }
}

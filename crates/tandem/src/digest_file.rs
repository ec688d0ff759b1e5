//! The file of `--push-digest-file`: the digests of a client's gateways, for its next process.
//!
//! Only requests without an isolation key have such a digest. The file is read at the start, and
//! written every ten minutes and at the end. Each write goes to a new file, which then replaces the
//! old one, also behind a link. Processes that share a file overwrite each other's sections.
//!
//! A file that another program wrote prevents the start, so that it is not lost. A damaged one does
//! not: its digests only spare pushes. `sealed` has the format.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tandem_http::{RequestHead, ResponseHead};
use tandem_push::client::{Digest, MAX_LIFETIME};

pub use self::sealed::FormatError;
use self::sealed::{MAX_FILE, MAX_SECTIONS, Salt, Section, SectionKey};
use crate::files;

pub(crate) mod sealed;

/// The interval between two writes of the file.
const SAVE_EVERY: Duration = Duration::from_secs(600);

/// The age above which a section is forgotten: all its responses have ended.
const LONGEST: Duration = MAX_LIFETIME;

/// The reason for which a file of digests cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DigestFileError {
    /// The file cannot be read or written.
    #[error("{file}: {error}")]
    File {
        /// The file name.
        file: String,
        /// The error of the system.
        error: std::io::Error,
    },
    /// The file does not hold digests.
    #[error("{file}: {error}")]
    Format {
        /// The file name.
        file: String,
        /// The error of the parser.
        error: FormatError,
    },
}

/// A file of digests.
#[derive(Debug)]
pub struct DigestFile {
    /// The path as it was given.
    file: PathBuf,
    /// The path without links. A new file must not take the place of a link.
    target: PathBuf,
    content: Mutex<Content>,
    /// Held during a write, so that a later one has the later content.
    writing: Mutex<()>,
}

struct Content {
    salt: Salt,
    /// The sections as they were read, those of gateways in use among them.
    sections: Vec<Section>,
    in_use: Vec<(SectionKey, Arc<Mutex<Digest>>)>,
    saved: Instant,
}

/// Shows no secret.
impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Content")
            .field("sections", &self.sections.len())
            .finish_non_exhaustive()
    }
}

/// The digest of an isolation key, and the file that keeps it, if there is one.
#[derive(Clone, Debug, Default)]
pub struct SharedDigest {
    digest: Arc<Mutex<Digest>>,
    file: Option<Arc<DigestFile>>,
}

impl SharedDigest {
    /// Remembers a response that the browser receives.
    pub fn note(&self, now: Instant, request: &RequestHead, head: &ResponseHead) {
        lock(&self.digest).note(now, request, head);
        if let Some(file) = &self.file {
            file.save_if_due(now);
        }
    }

    /// Appends the reports on all fresh responses.
    pub fn encode(&self, now: Instant, out: &mut Vec<u8>) {
        lock(&self.digest).encode(now, out);
    }

    /// Returns whether both are the same digest.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.digest, &other.digest)
    }
}

/// A panic while the lock is held leaves a digest that misses a response at worst.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DigestFile {
    /// Reads a file. A missing one begins empty, and a damaged one does so with a warning.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or was not written by this program.
    pub fn open(file: PathBuf) -> Result<Self, DigestFileError> {
        let target = files::without_links(&file).map_err(|error| failed(&file, error))?;
        let (salt, sections) = match read(&target)?.as_slice() {
            [] => (None, Vec::new()),
            bytes => match sealed::parse(bytes) {
                Ok((salt, sections)) => (Some(salt), sections),
                Err(error @ FormatError::Foreign) => {
                    let file = file.display().to_string();
                    return Err(DigestFileError::Format { file, error });
                }
                Err(error @ FormatError::Damaged) => {
                    let file = file.display();
                    tracing::warn!(%file, %error, "the file of digests begins anew");
                    (None, Vec::new())
                }
            },
        };
        let salt = salt.or_else(sealed::random);
        let salt = salt.ok_or_else(|| failed(&file, no_random_numbers()))?;
        let content = Content {
            sections,
            ..Content::of(salt)
        };
        Ok(Self {
            file,
            target,
            content: Mutex::new(content),
            writing: Mutex::default(),
        })
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.file
    }

    /// Returns the digest for the gateways that `owner` describes.
    pub fn digest_of(self: &Arc<Self>, owner: &[u8]) -> SharedDigest {
        let mut content = lock(&self.content);
        let key = SectionKey::derive(&content.salt, owner);
        let known = content.in_use.iter().find(|(of, _)| of.name == key.name);
        let digest = known.map(|(_, digest)| Arc::clone(digest));
        let digest = digest.unwrap_or_else(|| {
            let now = (Instant::now(), seconds(SystemTime::now()));
            let digest = Arc::new(Mutex::new(content.restored(&key, now)));
            content.in_use.push((key, Arc::clone(&digest)));
            digest
        });
        SharedDigest {
            digest,
            file: Some(Arc::clone(self)),
        }
    }

    /// Writes the file.
    ///
    /// # Errors
    /// Returns the error of the system.
    pub fn save(&self) -> Result<(), DigestFileError> {
        let _alone = lock(&self.writing);
        let now = Instant::now();
        let bytes = {
            let mut content = lock(&self.content);
            content.saved = now;
            content.written(now, seconds(SystemTime::now()))
        };
        let written = bytes
            .ok_or_else(no_random_numbers)
            .and_then(|bytes| files::replace_private(&self.target, &bytes));
        written.map_err(|error| failed(&self.file, error))
    }

    /// Writes the file on another thread, if the last write was long ago: a disk is slow.
    fn save_if_due(self: &Arc<Self>, now: Instant) {
        let mut content = lock(&self.content);
        if now.saturating_duration_since(content.saved) < SAVE_EVERY {
            return;
        }
        content.saved = now;
        drop(content);
        let this = Arc::clone(self);
        let saving = std::thread::Builder::new().spawn(move || {
            if let Err(error) = this.save() {
                tracing::error!(%error, "the digests were not saved");
            }
        });
        if let Err(error) = saving {
            tracing::error!(%error, "the digests were not saved");
        }
    }
}

impl Content {
    /// Returns the content of a new file.
    fn of(salt: Salt) -> Self {
        Self {
            salt,
            sections: Vec::new(),
            in_use: Vec::new(),
            saved: Instant::now(),
        }
    }

    /// Returns the digest in the section of a key. Without one, it is empty.
    fn restored(&self, key: &SectionKey, (now, unix): (Instant, u64)) -> Digest {
        let mut digest = Digest::default();
        let Some(section) = self.sections.iter().find(|it| it.name == key.name) else {
            return digest;
        };
        // After the clock was set back, the age is unknown.
        let age = unix.checked_sub(section.time).map(Duration::from_secs);
        let (Some(age), Some(responses)) = (age.filter(|age| *age <= LONGEST), key.open(section))
        else {
            return digest;
        };
        for (url, rest) in responses {
            let rest = rest.min(LONGEST).checked_sub(age);
            if let Some(until) = rest.and_then(|rest| now.checked_add(rest)) {
                digest.restore(url, until);
            }
        }
        digest
    }

    /// Returns the content of the file. The sections of other gateways stay in it for a month, the
    /// latest ones if there are many. Fails if the system has no random numbers.
    fn written(&mut self, now: Instant, unix: u64) -> Option<Vec<u8>> {
        for (key, digest) in &self.in_use {
            let section = key.seal(unix, lock(digest).fresh(now).into_iter())?;
            self.sections.retain(|it| it.name != key.name);
            self.sections.push(section);
        }
        let oldest = unix.saturating_sub(LONGEST.as_secs());
        self.sections
            .retain(|section| (oldest..=unix).contains(&section.time));
        self.sections
            .sort_by_key(|section| std::cmp::Reverse(section.time));
        self.sections.truncate(MAX_SECTIONS);
        Some(sealed::write(&self.salt, self.sections.iter()))
    }
}

/// Returns the content of a file, or nothing if there is no file in an existing directory. A file
/// that is too long has one byte more than the longest that can be read.
fn read(file: &Path) -> Result<Vec<u8>, DigestFileError> {
    let folder = file.parent().filter(|it| !it.as_os_str().is_empty());
    let read = || {
        // A pipe would stop the start.
        if !std::fs::metadata(file)?.is_file() {
            return Err(std::io::Error::other("it is no regular file"));
        }
        let mut bytes = Vec::new();
        let file = std::fs::File::open(file)?;
        file.take(MAX_FILE as u64 + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    match read() {
        Err(error)
            if error.kind() == std::io::ErrorKind::NotFound && folder.is_none_or(Path::is_dir) =>
        {
            Ok(Vec::new())
        }
        found => found.map_err(|error| failed(file, error)),
    }
}

fn failed(file: &Path, error: std::io::Error) -> DigestFileError {
    DigestFileError::File {
        file: file.display().to_string(),
        error,
    }
}

fn no_random_numbers() -> std::io::Error {
    std::io::Error::other("the system has no random numbers")
}

fn seconds(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests;

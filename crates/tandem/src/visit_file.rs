//! The file of `--solo-state`: the pages that a client without a gateway has loaded, for its next
//! process.
//!
//! Only sessions of requests without an isolation key use these pages. They share one
//! [`Visits`] with the file, so a reload neither copies nor joins anything. The file is read at
//! the start, and written every ten minutes and at the end, if the pages have changed. Each write
//! goes to a new file, which then replaces the old one, also behind a link.
//!
//! The process holds a lock on the file, and each new file is locked before it gets the name. A
//! file that another program or a newer version wrote is never written: the client then learns in
//! memory only. A damaged one counts as empty until the next write. New files that a killed process
//! left are removed at the start.
//!
//! If the user deletes the file, the client notices it at its next write. It forgets all pages up
//! to this moment and makes the file again, which keeps later pages and the lock.

use std::fs::{File, Permissions, TryLockError};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tandem_push::gateway::{MAX_VISITS, Visits, VisitsError};

use crate::endpoint::split_authority;
use crate::files;
use crate::hosts::HostPattern;

mod in_use;

pub use self::in_use::VisitsInUse;

/// The interval between two writes of the file.
const SAVE_EVERY: Duration = Duration::from_secs(600);

/// The reason for which a file of visited pages cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum VisitFileError {
    /// The file cannot be read or written.
    #[error("{file}: {error}")]
    File {
        /// The file name.
        file: String,
        /// The error of the system.
        error: std::io::Error,
    },
    /// Another process has locked the file.
    #[error("{0}: another process uses it, and each client needs a file of its own")]
    Taken(String),
    /// Another program put another file in its place.
    #[error("{0}: another file has replaced it, which stays as it is: restart the client")]
    Replaced(String),
}

/// A file of visited pages.
#[derive(Debug)]
pub struct VisitFile {
    /// The path as it was given.
    file: PathBuf,
    /// The path without links. A new file must not take the place of a link.
    target: PathBuf,
    visits: Visits,
    /// Held during a write, so that a later one has the later content.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The locked file, or `None` if nothing is written.
    locked: Option<File>,
    /// The hosts whose URLs the file must not have.
    except: Vec<HostPattern>,
    saved: Instant,
}

impl VisitFile {
    /// Opens and locks a file. A missing one begins empty. A file that cannot be used
    /// counts as empty, with a warning. One of another program or a newer version is not written
    /// either.
    ///
    /// # Errors
    /// Fails if the file cannot be read, created or locked.
    pub fn open(file: PathBuf) -> Result<Self, VisitFileError> {
        let failed = |error| failed(&file, error);
        let target = files::without_links(&file).map_err(failed)?;
        let locked = files::open_locked(&target).map_err(|error| match error {
            TryLockError::Error(error) => failed(error),
            TryLockError::WouldBlock => VisitFileError::Taken(file.display().to_string()),
        })?;
        let content = read(&locked).map_err(failed)?;
        let (visits, is_foreign) = match parse(&content) {
            Ok(visits) => (visits, false),
            Err(error @ (VisitsError::Foreign | VisitsError::Newer(_))) => {
                tracing::warn!(
                    file = %file.display(), %error,
                    "the file of visited pages is not written: remove it, or name another one in \
                     solo-state"
                );
                (Visits::default(), true)
            }
            Err(error) => {
                tracing::warn!(
                    file = %file.display(), %error,
                    "the file of visited pages begins anew"
                );
                (Visits::default(), false)
            }
        };
        if !is_foreign {
            make_private(&locked).map_err(failed)?;
            if let Err(error) = files::remove_unfinished(&target) {
                tracing::warn!(
                    file = %file.display(), %error,
                    "incomplete files beside the file of visited pages were not removed"
                );
            }
            visits.forget_old(unix_time());
        }
        Ok(Self {
            target,
            visits,
            state: Mutex::new(State {
                locked: (!is_foreign).then_some(locked),
                except: Vec::new(),
                saved: Instant::now(),
            }),
            file,
        })
    }

    /// Returns the path of the file, unless nothing is written to it.
    pub fn path(&self) -> Option<&Path> {
        let is_written = lock(&self.state).locked.is_some();
        is_written.then_some(self.file.as_path())
    }

    /// Returns the visited pages.
    pub const fn visits(&self) -> &Visits {
        &self.visits
    }

    /// Removes the URLs of these hosts, now and before each write. Returns the hosts before.
    pub fn except(&self, hosts: Vec<HostPattern>) -> Vec<HostPattern> {
        let mut state = lock(&self.state);
        let before = std::mem::replace(&mut state.except, hosts);
        self.remove_excepted(&state);
        before
    }

    /// Writes the file, if the pages have changed.
    ///
    /// # Errors
    /// Returns the error of the system, or that there is another file in its place.
    pub fn save(&self) -> Result<(), VisitFileError> {
        self.write(&mut lock(&self.state), unix_time())
    }

    /// Writes the file for the last time, and unlocks it.
    ///
    /// # Errors
    /// Fails as [`Self::save`] does.
    pub fn close(&self) -> Result<(), VisitFileError> {
        let mut state = lock(&self.state);
        let written = self.write(&mut state, unix_time());
        state.locked = None;
        written
    }

    /// Writes the file on another thread, if the last write was long ago: a disk is slow.
    pub fn save_if_due(self: &Arc<Self>, now: Instant) {
        let is_due = |state: &State| now.saturating_duration_since(state.saved) >= SAVE_EVERY;
        // The lock is taken during a write only.
        let is_due = self.state.try_lock().is_ok_and(|state| is_due(&state));
        if !is_due {
            return;
        }
        let this = Arc::clone(self);
        let saving = std::thread::Builder::new().spawn(move || {
            if let Err(error) = this.save() {
                tracing::error!(%error, "the visited pages were not saved");
            }
        });
        if let Err(error) = saving {
            tracing::error!(%error, "the visited pages were not saved");
        }
    }

    fn write(&self, state: &mut State, unix_time: u64) -> Result<(), VisitFileError> {
        state.saved = Instant::now();
        let Some(locked) = &state.locked else {
            return Ok(());
        };
        let failed = |error| failed(&self.file, error);
        match std::fs::metadata(&self.target) {
            Ok(found) if !is_of(locked, &found).map_err(failed)? => {
                return Err(VisitFileError::Replaced(self.file.display().to_string()));
            }
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound && has_folder(&self.target) => {
                self.visits.retain(|_| false);
                // Without a file, each later write would forget the pages again.
                self.visits.note_unsaved();
            }
            Err(error) => return Err(failed(error)),
        }
        self.remove_excepted(state);
        self.visits.forget_old(unix_time);
        if !self.visits.take_change() {
            return Ok(());
        }
        let content = self.visits.to_text();
        match files::replace_locked(&self.target, content.as_bytes()) {
            Ok(file) => {
                state.locked = Some(file);
                Ok(())
            }
            Err(error) => {
                self.visits.note_unsaved();
                Err(failed(error))
            }
        }
    }

    fn remove_excepted(&self, state: &State) {
        if !state.except.is_empty() {
            self.visits.retain(|url| is_permitted(&state.except, url));
        }
    }
}

/// Returns whether none of the patterns covers the host of a URL.
fn is_permitted(except: &[HostPattern], url: &str) -> bool {
    let authority = url.split_once("://").and_then(|it| it.1.split('/').next());
    let host = split_authority(authority.unwrap_or_default(), Some(80));
    host.is_ok_and(|(host, _)| !except.iter().any(|pattern| pattern.covers(&host)))
}

fn parse(content: &[u8]) -> Result<Visits, VisitsError> {
    if content.is_empty() {
        return Ok(Visits::default());
    }
    // The URLs of the format are ASCII.
    Visits::read(&String::from_utf8_lossy(content))
}

/// Returns the content of a file. If it is too long, one byte more than the longest is returned.
fn read(file: &File) -> std::io::Result<Vec<u8>> {
    let mut content = Vec::new();
    file.take(MAX_VISITS as u64 + 1).read_to_end(&mut content)?;
    Ok(content)
}

/// Returns whether the directory of a file exists.
fn has_folder(file: &Path) -> bool {
    let folder = file.parent().filter(|it| !it.as_os_str().is_empty());
    folder.is_none_or(Path::is_dir)
}

/// Makes a file readable by its owner only.
fn make_private(file: &File) -> std::io::Result<()> {
    if file.metadata()?.permissions().mode() & 0o077 == 0 {
        return Ok(());
    }
    file.set_permissions(Permissions::from_mode(0o600))
}

/// Returns whether a file is the one that was found.
fn is_of(file: &File, found: &std::fs::Metadata) -> std::io::Result<bool> {
    let own = file.metadata()?;
    Ok((own.dev(), own.ino()) == (found.dev(), found.ino()))
}

/// A panic while the lock is held leaves a state that is at worst saved late.
fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn failed(file: &Path, error: std::io::Error) -> VisitFileError {
    VisitFileError::File {
        file: file.display().to_string(),
        error,
    }
}

/// Returns the seconds since 1970. With a clock before 1970, no page is too old.
fn unix_time() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests;

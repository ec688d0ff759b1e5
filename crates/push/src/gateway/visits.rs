//! The visits of one user, which all sessions of this user share.
//!
//! Without a gateway, the visits of requests without an isolation key outlive their session if the
//! user keeps them in a file. The owner of the file and each later session then share the same
//! visits, so that nothing has to be copied or merged.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::revisits::Revisits;
use super::saved_visits::VisitsError;

/// The visited pages of one user with their used needs. Clones share them.
#[derive(Clone, Default)]
pub struct Visits(Arc<Mutex<Revisits>>);

/// Shows nothing: the URLs are private.
impl fmt::Debug for Visits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Visits").finish_non_exhaustive()
    }
}

impl Visits {
    /// Reads a text of [`Self::to_text`]. Use [`Self::forget_old`] afterwards.
    ///
    /// # Errors
    /// Returns the reason for which the text cannot be read.
    pub fn read(text: &str) -> Result<Self, VisitsError> {
        Ok(Self(Arc::new(Mutex::new(Revisits::read(text)?))))
    }

    /// Returns the pages with their used needs as a text. The latest pages precede others if the
    /// text would become too long.
    pub fn to_text(&self) -> String {
        self.lock().to_text()
    }

    /// Returns whether the text has changed since the last call.
    pub fn take_change(&self) -> bool {
        self.lock().take_change()
    }

    /// Makes the next [`Self::take_change`] return true, since the text was not saved.
    pub fn note_unsaved(&self) {
        self.lock().note_unsaved();
    }

    /// Forgets the pages that were visited last more than 30 days before `unix_time`, in seconds
    /// since 1970, UTC.
    pub fn forget_old(&self, unix_time: u64) {
        self.lock().forget_old(unix_time);
    }

    /// Keeps the pages and needs whose URLs and documents are all permitted.
    pub fn retain(&self, permits: impl Fn(&str) -> bool) {
        self.lock().retain(permits);
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Revisits> {
        // A panic while the lock is held leaves a page that misses a need at worst.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

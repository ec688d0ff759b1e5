//! The file of visited pages that a process uses, also during a reload.

use std::path::Path;
use std::sync::Arc;

use super::{VisitFile, VisitFileError};
use crate::hosts::HostPattern;
use crate::in_use::InUse;

/// The file of visited pages in use, or none.
#[derive(Debug, Default)]
pub struct VisitsInUse {
    file: InUse<VisitFile>,
    /// The hosts whose URLs the file before must not have, if it stays in use.
    except: Option<Vec<HostPattern>>,
}

impl VisitsInUse {
    /// Returns the file.
    pub fn current(&self) -> Option<Arc<VisitFile>> {
        self.file.current().cloned()
    }

    /// Opens a file for a configuration, or none without a path. A file that is open stays as it
    /// is, without the URLs of the hosts in `except`. The file before stays open until
    /// [`Self::end_opening`].
    ///
    /// # Errors
    /// Returns the reason why the file cannot be used.
    pub fn open(
        &mut self,
        file: Option<&Path>,
        except: &[HostPattern],
    ) -> Result<(), VisitFileError> {
        let open = self.file.current().cloned();
        match (open, file) {
            (Some(open), Some(path)) if open.path() == Some(path) => {
                let before = open.except(except.to_vec());
                self.except.get_or_insert(before);
                self.file.replace(Some(open));
            }
            (_, Some(path)) => {
                let new = VisitFile::open(path.to_owned())?;
                new.except(except.to_vec());
                self.file.replace(Some(Arc::new(new)));
            }
            (_, None) => self.file.replace(None),
        }
        Ok(())
    }

    /// Closes the file that is not used any more: the one before, or the new one if the new
    /// configuration is not used. A new file that nobody used is not written.
    pub fn end_opening(&mut self, is_used: bool) {
        if let Some(old) = self.file.settle(is_used)
            && let Err(error) = old.close()
        {
            tracing::error!(%error, "the visited pages were not saved");
        }
        if let Some(except) = self.except.take()
            && !is_used
            && let Some(file) = self.file.current()
        {
            file.except(except);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_reload_keeps_the_file_in_use() {
        let name = format!("tandem-reloaded-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).expect("a directory");
        let [first, second] = ["first", "second"].map(|name| directory.join(name));
        let mut in_use = VisitsInUse::default();
        let mut open = |file: Option<&Path>, except: &[HostPattern], is_used| {
            in_use.open(file, except).expect("a file");
            in_use.end_opening(is_used);
            in_use.current()
        };
        let is_saved = |file: &VisitFile, path: &Path| {
            file.visits().note_unsaved();
            file.save().expect("a file");
            let content = std::fs::read_to_string(path).expect("a file");
            file.path() == Some(path) && content.ends_with("end\n")
        };
        let visits = open(Some(&first), &[], true).expect("open");
        let hosts = ["a.test".parse().expect("a pattern")];
        for (file, except) in [
            (Some(&*second), &[][..]),
            (None, &[][..]),
            (Some(&*first), &hosts[..]),
        ] {
            let open = open(file, except, false).expect("open");
            assert!(Arc::ptr_eq(&visits, &open) && is_saved(&visits, &first));
        }
        let except = visits.except(Vec::new());
        assert!(except.is_empty(), "the old configuration has none");
        assert_eq!(std::fs::read_to_string(&second).expect("a file"), "");

        let other = open(Some(&second), &[], true).expect("open");
        assert!(is_saved(&other, &second));
        assert_eq!(visits.path(), None, "it is closed");
        assert!(open(None, &[], true).is_none() && other.path().is_none());
        assert!(open(Some(&second), &[], false).is_none());
        std::fs::remove_dir_all(&directory).expect("removed");
    }
}

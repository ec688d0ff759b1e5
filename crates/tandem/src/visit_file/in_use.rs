//! The file of visited pages that a process uses, also during a reload.

use std::path::Path;
use std::sync::Arc;

use super::{VisitFile, VisitFileError};
use crate::hosts::HostPattern;

/// The file of visited pages in use, or none.
#[derive(Debug, Default)]
pub struct VisitsInUse {
    open: Option<Arc<VisitFile>>,
    before: Option<Before>,
}

/// The file of the configuration before, until it is known whether the new one is used.
#[derive(Debug)]
struct Before {
    file: Option<Arc<VisitFile>>,
    /// The hosts whose URLs this file must not have.
    except: Vec<HostPattern>,
}

impl VisitsInUse {
    /// Returns the file.
    pub fn current(&self) -> Option<Arc<VisitFile>> {
        self.open.clone()
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
        let is_same = match (&self.open, file) {
            (Some(open), Some(file)) => open.path() == Some(file),
            (open, file) => open.is_none() && file.is_none(),
        };
        let before = self.open.clone();
        if !is_same {
            let new = file.map(|file| VisitFile::open(file.to_owned()).map(Arc::new));
            self.open = new.transpose()?;
        }
        let hosts = self.open.as_ref().map(|open| open.except(except.to_vec()));
        self.before = Some(Before {
            file: before,
            except: hosts.filter(|_| is_same).unwrap_or_default(),
        });
        Ok(())
    }

    /// Closes the file that is not used any more: the one before, or the new one if the new
    /// configuration is not used. A new file that nobody used is not written.
    pub fn end_opening(&mut self, is_used: bool) {
        let Some(Before { file, except }) = self.before.take() else {
            return;
        };
        let is_same = file.as_ref().map(Arc::as_ptr) == self.open.as_ref().map(Arc::as_ptr);
        match file {
            Some(file) if is_same && !is_used => {
                file.except(except);
            }
            Some(old) if !is_same && is_used => {
                if let Err(error) = old.close() {
                    tracing::error!(%error, "the visited pages were not saved");
                }
            }
            file if !is_used => self.open = file,
            _ => {}
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

//! A file of the process that a configuration names, and the file before it during a reload.
//!
//! A role opens its files before the rest of its configuration is tried. If that fails, the process
//! continues with the files of the configuration before.

use std::sync::Arc;

/// The file in use, or none.
#[derive(Debug)]
pub struct InUse<T> {
    current: Option<Arc<T>>,
    /// The file of the configuration before, until it is known whether the new one is used.
    before: Option<Option<Arc<T>>>,
}

impl<T> Default for InUse<T> {
    fn default() -> Self {
        Self {
            current: None,
            before: None,
        }
    }
}

impl<T> InUse<T> {
    /// Returns the file.
    pub const fn current(&self) -> Option<&Arc<T>> {
        self.current.as_ref()
    }

    /// Uses a file for a new configuration. The one before stays open until [`Self::settle`].
    pub fn replace(&mut self, new: Option<Arc<T>>) {
        let old = std::mem::replace(&mut self.current, new);
        self.before.get_or_insert(old);
    }

    /// Chooses the file before if the new configuration is not used. Returns the file whose use
    /// ends if it was in use before.
    pub fn settle(&mut self, is_used: bool) -> Option<Arc<T>> {
        let before = self.before.take()?;
        if !is_used {
            self.current = before;
            return None;
        }
        let is_same = |old: &Arc<T>| self.current.as_ref().is_some_and(|it| Arc::ptr_eq(it, old));
        before.filter(|old| !is_same(old))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_use_returns_to_the_file_before() {
        let [first, second] = ["first", "second"].map(Arc::new);
        let mut file = InUse::default();
        file.replace(Some(Arc::clone(&first)));
        assert_eq!(file.settle(true), None, "no file was in use");

        for new in [Some(&second), None] {
            file.replace(new.cloned());
            assert_eq!(file.current(), new);
            assert_eq!(file.settle(false), None, "nobody used the new file");
            assert_eq!(file.current(), Some(&first));
        }
        file.replace(Some(Arc::clone(&first)));
        assert_eq!(file.settle(true), None, "it is still in use");

        file.replace(None);
        file.replace(Some(Arc::clone(&second)));
        assert_eq!(file.settle(true), Some(first));
        assert_eq!(file.settle(false), None, "there was no reload");
        assert_eq!(file.current(), Some(&second));
    }
}

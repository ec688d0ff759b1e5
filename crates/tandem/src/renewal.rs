//! Values that are read from files, such as certificates and tokens, and are read again when the
//! files change. Their users call [`Renewable::get`] for each use, so a change closes no
//! connection. The services of the process own [`Renewals`], which lists the values, and a role
//! adds the values that it reads.
//!
//! Files are followed by their paths: a renewal may write into the file, replace it, or turn a
//! symbolic link. A renewal that cannot be read leaves the value as it was.

use std::collections::BTreeSet;
use std::fmt;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

/// The state of one file; `None` where it cannot be seen.
type FileStamp = Option<(u64, u64, i64, i64, u64)>;

type Loader<T> = Box<dyn Fn() -> Result<T, String> + Send + Sync>;

/// A value read from files.
pub struct Renewable<T> {
    /// A name for the log, such as `the certificate in FILE`.
    name: String,
    files: Vec<PathBuf>,
    load: Loader<T>,
    current: RwLock<Arc<T>>,
    stamps: Mutex<Stamps>,
}

/// The files' states at the last load and at the last look.
struct Stamps {
    loaded: Vec<FileStamp>,
    seen: Vec<FileStamp>,
    /// The reason why the present files are not used.
    problem: Option<String>,
}

/// A value that can look whether its files have changed.
trait Renew: Send + Sync {
    /// Takes over changed files once they have stayed the same for two looks: a renewal may write
    /// several. Returns the sentence for the log, if there is one; an error keeps the old value.
    fn look(&self) -> Option<Result<String, String>>;

    /// Returns the reason why the present files are not used.
    fn problem(&self) -> Option<String>;
}

impl<T> Renewable<T> {
    /// Reads the value for the first time.
    pub fn new<E: fmt::Display>(
        name: String,
        files: Vec<PathBuf>,
        load: impl Fn() -> Result<T, E> + Send + Sync + 'static,
    ) -> Result<Self, E> {
        let stamps = stamps(&files);
        let current = load()?;
        Ok(Self {
            name,
            files,
            load: Box::new(move || load().map_err(|error| error.to_string())),
            current: RwLock::new(Arc::new(current)),
            stamps: Mutex::new(Stamps {
                loaded: stamps.clone(),
                seen: stamps,
                problem: None,
            }),
        })
    }

    /// Returns the value of now.
    pub fn get(&self) -> Arc<T> {
        // The value is swapped in one step, so that a panic elsewhere leaves it whole.
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The list of the values whose files are watched. Clones share it.
#[derive(Clone, Default)]
pub struct Renewals {
    watched: Arc<Mutex<Vec<Weak<dyn Renew>>>>,
}

impl Renewals {
    /// Watches the files of a value for as long as the value is used.
    pub fn watch<T: Send + Sync + 'static>(&self, value: Renewable<T>) -> Arc<Renewable<T>> {
        let value = Arc::new(value);
        self.watch_shared(&value);
        value
    }

    /// Watches the files of a value that is in use already. It must be called once for each value:
    /// a value takes over its files after two looks.
    pub fn watch_shared<T: Send + Sync + 'static>(&self, value: &Arc<Renewable<T>>) {
        if !value.files.is_empty() {
            let weak = Arc::downgrade(value) as Weak<dyn Renew>;
            self.list().push(weak);
        }
    }

    /// Looks at the files of all values. Each thread has separate values, so equal sentences are
    /// returned once.
    pub fn look(&self) -> BTreeSet<Result<String, String>> {
        let mut watched = self.list();
        watched.retain(|value| value.strong_count() > 0);
        let values: Vec<_> = watched.iter().filter_map(Weak::upgrade).collect();
        drop(watched);
        values.iter().filter_map(|value| value.look()).collect()
    }

    /// Returns the reasons why changed files are not used.
    pub fn problems(&self) -> BTreeSet<String> {
        let values: Vec<_> = self.list().iter().filter_map(Weak::upgrade).collect();
        values.iter().filter_map(|value| value.problem()).collect()
    }

    fn list(&self) -> MutexGuard<'_, Vec<Weak<dyn Renew>>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Renewals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Renewals")
            .field("watched", &self.list().len())
            .finish()
    }
}

fn stamps(files: &[PathBuf]) -> Vec<FileStamp> {
    let stamp = |file: &PathBuf| {
        let data = std::fs::metadata(file).ok()?;
        Some((
            data.dev(),
            data.ino(),
            data.mtime(),
            data.mtime_nsec(),
            data.len(),
        ))
    };
    files.iter().map(stamp).collect()
}

impl<T: Send + Sync> Renew for Renewable<T> {
    fn look(&self) -> Option<Result<String, String>> {
        let now = stamps(&self.files);
        let mut known = self.stamps.lock().unwrap_or_else(PoisonError::into_inner);
        let settled = known.seen == now;
        if !settled {
            known.seen = now;
            return None;
        }
        if known.loaded == now {
            return None;
        }
        known.loaded = now;
        drop(known);
        let result = match (self.load)() {
            Ok(value) => {
                let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
                *current = Arc::new(value);
                Ok(format!("renewed: {}", self.name))
            }
            Err(problem) => Err(format!(
                "{}: the new file cannot be used, so the old one stays: {problem}",
                self.name
            )),
        };
        let mut known = self.stamps.lock().unwrap_or_else(PoisonError::into_inner);
        known.problem = result.clone().err();
        Some(result)
    }

    fn problem(&self) -> Option<String> {
        let known = self.stamps.lock().unwrap_or_else(PoisonError::into_inner);
        known.problem.clone()
    }
}

/// Shows no secret.
impl<T> fmt::Debug for Renewable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Renewable")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_files_are_taken_over_once_settled() {
        let file = std::env::temp_dir().join(format!("tandem-renewal-{}", std::process::id()));
        let write = |text: &str| std::fs::write(&file, text).expect("a writable directory");
        write("1");
        let path = file.clone();
        let load = move || {
            let text = std::fs::read_to_string(&path).map_err(|error| error.to_string())?;
            text.parse::<u32>().map_err(|error| error.to_string())
        };
        let value = Renewable::new("the number".into(), vec![file.clone()], load);
        let value = value.expect("a number");
        assert_eq!((*value.get(), value.look()), (1, None));
        write("22");
        assert_eq!((value.look(), *value.get()), (None, 1));
        assert_eq!(value.look(), Some(Ok("renewed: the number".into())));
        assert_eq!((*value.get(), value.look()), (22, None));
        write("none");
        assert_eq!(value.look(), None);
        assert!(matches!(value.look(), Some(Err(words)) if words.contains("the old one stays")));
        assert_eq!((*value.get(), value.look()), (22, None));
        assert!(
            value
                .problem()
                .is_some_and(|words| words.contains("the old one stays"))
        );
        write("333");
        assert_eq!(value.look(), None);
        assert_eq!(value.look(), Some(Ok("renewed: the number".into())));
        assert_eq!(value.problem(), None);
        std::fs::remove_file(&file).expect("the file that was written");
    }

    #[test]
    fn renewals_look_at_values_in_use() {
        let file = std::env::temp_dir().join(format!("tandem-renewals-{}", std::process::id()));
        let write = |text: &str| std::fs::write(&file, text).expect("a writable directory");
        let read = |name: &str| {
            let path = file.clone();
            let load = move || std::fs::read_to_string(&path).map_err(|error| error.to_string());
            Renewable::new(name.into(), vec![file.clone()], load).expect("a readable file")
        };
        let renewed = |name: &str| BTreeSet::from([Ok(format!("renewed: {name}"))]);
        write("1");
        let (renewals, others) = (Renewals::default(), Renewals::default());
        let (kept, left) = (renewals.watch(read("kept")), renewals.watch(read("left")));
        let shared = Arc::new(read("shared"));
        others.clone().watch_shared(&shared);
        drop(left);
        write("22");
        assert_eq!((renewals.look(), others.look()), Default::default());
        assert_eq!(renewals.look(), renewed("kept"));
        assert_eq!((&**kept.get(), &**shared.get()), ("22", "1"));
        assert_eq!(others.look(), renewed("shared"));
        assert_eq!(&**shared.get(), "22");
        std::fs::remove_file(&file).expect("the file that was written");
    }
}

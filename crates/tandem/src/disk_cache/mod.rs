//! The second store of the gateway's cache: files on a disk (`--cache-dir`).
//!
//! ```text
//!  cache ─ take_write ─▶ seal ─▶ Directory      miss ─ link ─▶ Directory ─▶ open ─▶ adopt
//!  cache ─ take_doomed ────────▶ Directory
//! ```
//!
//! [`tandem_cache`] decides, and its index in memory is exact. A thread of the process does all
//! work on the disk, one file after the other, so that a slow disk delays only this thread.
//! Requests ask it through [`link`], and wait for a moment only (`middle::cache::asking`). After an
//! error of the disk the gateway serves on without it.

mod directory;
mod keeping;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use ring::rand::{SecureRandom as _, SystemRandom};
use tandem_cache::{Index, Name, Namer};
use tandem_fleet::{FleetKey, GatewayId, Keeper};
use tokio::sync::oneshot;

use self::directory::CacheDirectory;
pub use self::directory::{DirectoryError, check};
use self::keeping::{DiskEnd, FAULT, Keeping};
use crate::journal::Problems;
use crate::metrics::METRICS;
use crate::response_cache::ResponseCache;
use crate::response_cache::link::{Link, LookupQuestions, link};

/// The longest wait for the thread at the end of the process.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// The configuration of the store.
#[derive(Clone, Debug, PartialEq)]
pub struct DiskConfig {
    /// The directory.
    pub directory: PathBuf,
    /// The most bytes of all files.
    pub bytes: u64,
    /// The key with which a later process can read the files. Without it, the key is a random one
    /// of this process.
    pub key: Option<FleetKey>,
}

/// The reason for which the store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The operating system refused a thread or random numbers.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

/// The cache that the thread serves, which a reload may replace.
type ServedCache = Arc<Mutex<Arc<ResponseCache>>>;

/// The store of a process. Its thread ends when this value is dropped.
#[derive(Debug)]
pub struct DiskCache {
    config: DiskConfig,
    key: FleetKey,
    link: Arc<Link>,
    place: ServedCache,
    /// The rules for origins under which the responses were fetched.
    scope: Mutex<Vec<u8>>,
    thread: Mutex<Option<DiskThread>>,
    faults: Arc<Problems>,
}

#[derive(Debug)]
struct DiskThread {
    stop: oneshot::Sender<DiskEnd>,
    /// It closes when the thread has ended.
    ended: mpsc::Receiver<()>,
}

impl DiskCache {
    /// Opens the directory for a cache and starts the thread. Files count only if a process with
    /// the same key and `scope` has closed the directory. A disk that fails is one of the `faults`.
    ///
    /// # Errors
    /// Returns the reason for which the directory cannot be used.
    pub fn open(
        config: &DiskConfig,
        cache: &Arc<ResponseCache>,
        scope: &[u8],
        faults: &Arc<Problems>,
    ) -> Result<Self, DiskError> {
        let directory = CacheDirectory::open(&config.directory)?;
        let key = match &config.key {
            Some(key) => key.clone(),
            None => FleetKey::of_random(&random()?),
        };
        let mark = mark(&key, scope);
        let found = directory.take_mark().map_err(|it| directory.failed(it))?;
        let is_closed = found.as_deref() == Some(&mark[..]);
        let index = index(&directory, config.bytes, is_closed);
        let index = index.map_err(|it| directory.failed(it))?;
        METRICS.cache_disk_bytes.set(index.bytes());
        cache.open_disk(index, namer(&key, scope));
        let (asking, questions) = link();
        let asking = Arc::new(asking);
        cache.ask_disk(&asking);
        let place = Arc::new(Mutex::new(Arc::clone(cache)));
        let keeping = Keeping::new(
            directory,
            &key,
            GatewayId(random()?),
            Arc::clone(&place),
            Arc::clone(faults),
        );
        let thread = start(keeping, questions)?;
        METRICS.cache_disk_up.set(1);
        Ok(Self {
            config: config.clone(),
            key,
            link: asking,
            place,
            scope: Mutex::new(scope.to_vec()),
            thread: Mutex::new(Some(thread)),
            faults: Arc::clone(faults),
        })
    }

    /// Follows a reload, which has emptied the cache or replaced it. Changes of the configuration
    /// need a restart.
    pub fn reload(&self, config: &DiskConfig, cache: &Arc<ResponseCache>, scope: &[u8]) {
        if *config != self.config {
            tracing::warn!("changes of cache-dir, cache-disk-size and cache-key need a restart");
        }
        *self.scope.lock().unwrap_or_else(PoisonError::into_inner) = scope.to_vec();
        cache.rename_disk(namer(&self.key, scope));
        self.follow(cache);
    }

    /// Serves a cache that has taken the place of another one, and has its index.
    pub fn follow(&self, cache: &Arc<ResponseCache>) {
        cache.ask_disk(&self.link);
        *self.place.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(cache);
    }

    /// Returns true if the responses were fetched under these rules for origins.
    pub fn has_scope(&self, scope: &[u8]) -> bool {
        *self.scope.lock().unwrap_or_else(PoisonError::into_inner) == scope
    }

    /// Ends the use of the directory once no session is left, so that a later process can use the
    /// files.
    pub fn close(&self) {
        let scope = self.scope.lock().unwrap_or_else(PoisonError::into_inner);
        self.end(DiskEnd::Keep(mark(&self.key, &scope)));
    }

    /// Ends the use of the directory, and deletes the files.
    pub fn delete(&self) {
        self.end(DiskEnd::Delete);
        self.faults.set(FAULT, None);
    }

    fn end(&self, end: DiskEnd) {
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread {
            // The thread has ended already after an error.
            let _ = thread.stop.send(end);
            if thread.ended.recv_timeout(END_TIMEOUT) == Err(mpsc::RecvTimeoutError::Timeout) {
                tracing::warn!("the disk of cache-dir does not respond");
            }
        }
    }
}

/// Ends the thread. Without the mark, the next process deletes the files.
impl Drop for DiskCache {
    fn drop(&mut self) {
        self.end(DiskEnd::Leave);
    }
}

fn start(keeping: Keeping, questions: LookupQuestions) -> std::io::Result<DiskThread> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()?;
    questions.accept();
    let (stop, stopped) = oneshot::channel();
    let (ending, ended) = mpsc::channel();
    std::thread::Builder::new()
        .name("cache-disk".into())
        .spawn(move || {
            runtime.block_on(keeping.run(questions, stopped));
            drop::<mpsc::Sender<()>>(ending);
        })?;
    Ok(DiskThread { stop, ended })
}

/// Returns the index of the files in a directory. Unless it `is_closed`, all files are to be
/// deleted.
fn index(directory: &CacheDirectory, bytes: u64, is_closed: bool) -> std::io::Result<Index> {
    let mut index = Index::new(bytes);
    let longest = Keeper::Disk.max_sealed() as u64;
    for found in directory.list()? {
        if is_closed && found.bytes <= longest {
            index.insert(found.name, found.bytes);
        } else {
            index.doom(found.name);
        }
    }
    Ok(index)
}

/// Returns the names of targets on the disk. Under another `scope` they differ.
fn namer(key: &FleetKey, scope: &[u8]) -> Namer {
    let (key, scope) = (key.of_files(), scope.to_vec());
    Namer::new(move |target| key.name(&scope, target))
}

/// Returns the mark of a directory that was closed: it tells the key and the scope.
fn mark(key: &FleetKey, scope: &[u8]) -> Name {
    // No target begins with this text: it would have an owner.
    key.of_files().name(scope, b"closed")
}

fn random<const LENGTH: usize>() -> std::io::Result<[u8; LENGTH]> {
    let mut bytes = [0; LENGTH];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| std::io::Error::other("the system has no random numbers"))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;

//! Tests of the files of a cache: restarts, damage, and disks that fail.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Instant;

use bytes::Bytes;
use tandem_cache::{Config, Fetch, Group, Key, Lookup, Received, Sharing};
use tandem_http::{Method, RequestHead, ResponseHead, Scheme};

use super::*;

/// A directory that the test removes.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let name = format!("tandem-disk-{name}-{}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    /// Starts a process.
    fn start(&self, key: Option<u8>) -> Gateway {
        self.try_start(key, b"rules").expect("a directory")
    }

    fn try_start(&self, key: Option<u8>, scope: &[u8]) -> Result<Gateway, DiskError> {
        let cache = Arc::new(ResponseCache::new(Config {
            sharing: Sharing::Origin,
            memory: 1 << 20,
            min_users: 1,
        }));
        let config = DiskConfig {
            directory: self.0.clone(),
            bytes: 16 << 20,
            key: key.map(|byte| FleetKey::new(&[byte; 32]).expect("32 bytes")),
        };
        let faults = Arc::default();
        let disk = DiskCache::open(&config, &cache, scope, &faults)?;
        Ok(Gateway {
            cache,
            disk,
            faults,
        })
    }

    /// Returns the files with responses.
    fn files(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.0).expect("a directory");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        let is_named = |path: &PathBuf| path.file_name().is_some_and(|name| name.len() == 32);
        paths.filter(is_named).collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Gateway {
    cache: Arc<ResponseCache>,
    disk: DiskCache,
    faults: Arc<Problems>,
}

fn request(path: &str) -> (RequestHead, Key) {
    let request = RequestHead::get(Scheme::Http, "own.example", path);
    let key = Key::new(0, b"", &request, false).expect("a plain request");
    (request, key)
}

fn wait_until(event: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(20), "{event}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Gateway {
    fn lookup(&self, path: &str) -> Result<String, Box<Fetch>> {
        let (request, key) = request(path);
        let (now, group) = (self.cache.now(), Group::Origin("own.example".into()));
        let mut cache = self.cache.lock();
        match cache.lookup(now, &key, group, 1, &request, None) {
            Lookup::Hit(stored) => {
                let pieces = stored.body.slice(0, stored.body.len());
                Ok(String::from_utf8_lossy(&pieces.flatten().collect::<Vec<_>>()).into_owned())
            }
            Lookup::Fetch(fetch, _) => Err(fetch),
            other => panic!("{other:?}"),
        }
    }

    /// Stores a response whose body is its path.
    fn store(&self, path: &str) {
        let fetch = self.lookup(path).expect_err("a new path");
        let mut head = ResponseHead::new(200);
        head.fields.push("cache-control", "max-age=600");
        let received = self.cache.lock().receive(self.cache.now(), &fetch, &head);
        let Received::Store(pending) = received else {
            panic!("{received:?}");
        };
        let body = vec![Bytes::copy_from_slice(path.as_bytes())];
        self.cache.finish(&fetch, *pending, body, None);
    }

    fn count(&self) -> usize {
        self.cache.lock().disk().map_or(0, Index::len)
    }

    /// Stores responses and waits until they are on the disk.
    fn keep(&self, paths: &[&str]) {
        paths.iter().for_each(|path| self.store(path));
        wait_until("the responses are written", || self.count() == paths.len());
    }

    /// Returns the body that the disk has for a path.
    fn find(&self, path: &str) -> Option<String> {
        let fetch = self.lookup(path).expect_err("memory has nothing");
        let now = self.cache.now();
        let found = self.cache.lock().on_disk(now, &fetch)?;
        let answer = self.cache.disk().expect("a way").ask(found.name)?;
        let incoming = answer.blocking_recv().ok()?;
        let is_adopted = self
            .cache
            .lock()
            .adopt_from_disk(now, &fetch, found, incoming);
        is_adopted.then(|| self.lookup(path).expect("adopted"))
    }
}

#[test]
fn files_serve_after_a_restart_with_the_key() {
    let scratch = Scratch::new("restart");
    let gateway = scratch.start(Some(1));
    gateway.keep(&["/secret-one", "/secret-two"]);
    gateway.disk.close();
    for file in scratch.files() {
        let content = std::fs::read(&file).expect("a file");
        assert!(!content.windows(6).any(|part| part == b"secret"));
        assert_eq!(mode(&file), 0o600);
    }
    assert_eq!(mode(&scratch.0), 0o700);
    let gateway = scratch.start(Some(1));
    assert_eq!(gateway.find("/secret-one").as_deref(), Some("/secret-one"));
    gateway.disk.close();
    // The response of the first process is still there.
    let gateway = scratch.start(Some(1));
    assert_eq!(gateway.find("/secret-one").as_deref(), Some("/secret-one"));
    assert_eq!(gateway.find("/secret-two").as_deref(), Some("/secret-two"));
}

fn mode(path: &Path) -> u32 {
    let metadata = std::fs::metadata(path).expect("it exists");
    metadata.permissions().mode() & 0o777
}

#[test]
fn files_of_others_and_of_a_crash_are_deleted() {
    let scratch = Scratch::new("others");
    type Change = fn(&Gateway);
    let close: Change = |gateway| gateway.disk.close();
    let crash: Change = |_| {};
    for (before, after, end) in [
        ((Some(1), "rules"), (Some(2), "rules"), close),
        ((Some(1), "rules"), (Some(1), "other rules"), close),
        ((Some(1), "rules"), (None, "rules"), close),
        ((None, "rules"), (None, "rules"), close),
        ((Some(1), "rules"), (Some(1), "rules"), crash),
    ] {
        let start = |(key, scope): (Option<u8>, &str)| {
            scratch
                .try_start(key, scope.as_bytes())
                .expect("a directory")
        };
        let gateway = start(before);
        gateway.keep(&["/a"]);
        end(&gateway);
        drop(gateway);
        assert_eq!(scratch.files().len(), 1);
        let gateway = start(after);
        assert_eq!(gateway.find("/a"), None, "{before:?} {after:?}");
        wait_until("the file is deleted", || scratch.files().is_empty());
    }
}

#[test]
fn damaged_files_are_never_served() {
    let scratch = Scratch::new("damaged");
    let paths = ["/a", "/b", "/c", "/d"];
    let gateway = scratch.start(Some(1));
    gateway.keep(&paths);
    gateway.disk.close();
    let files = scratch.files();
    let content = std::fs::read(&files[0]).expect("a file");
    std::fs::write(&files[0], &content[..content.len() - 1]).expect("a file");
    let mut changed = std::fs::read(&files[1]).expect("a file");
    let middle = changed.len() / 2;
    changed[middle] ^= 1;
    std::fs::write(&files[1], changed).expect("a file");
    // A whole file under the name of another one.
    std::fs::copy(&files[3], &files[2]).expect("a file");
    let gateway = scratch.start(Some(1));
    let found: Vec<_> = paths.iter().filter_map(|path| gateway.find(path)).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(paths.contains(&found[0].as_str()));
    wait_until("three files are deleted", || scratch.files().len() == 1);
    assert_eq!(gateway.count(), 1);
}

#[test]
fn one_process_uses_a_directory() {
    let scratch = Scratch::new("taken");
    let gateway = scratch.start(Some(1));
    let error = scratch
        .try_start(Some(1), b"rules")
        .map(|_| ())
        .expect_err("locked");
    assert!(error.to_string().contains("another process"), "{error}");
    gateway.disk.close();
    drop(gateway);
    scratch.start(Some(1));
}

#[test]
fn cache_serves_on_without_a_failed_disk() {
    let scratch = Scratch::new("removed");
    let gateway = scratch.start(Some(1));
    gateway.keep(&["/a"]);
    assert!(gateway.faults.list().is_empty());
    std::fs::remove_dir_all(&scratch.0).expect("a directory");
    gateway.store("/b");
    let is_closed = || gateway.cache.lock().disk().is_none();
    wait_until("the cache knows of the failure", is_closed);
    assert_eq!(gateway.lookup("/b").expect("in memory"), "/b");
    gateway.store("/c");
    assert_eq!(gateway.find("/d"), None);
    wait_until("the dashboard shows it", || {
        !gateway.faults.list().is_empty()
    });
    let fault = gateway.faults.list().concat();
    assert!(
        fault.starts_with("the cache has lost its disk in"),
        "{fault}"
    );
    gateway.disk.close();
    assert!(
        !gateway.faults.list().is_empty(),
        "it is lost for this process"
    );
    // A reload without --cache-dir does not expect a disk.
    gateway.disk.delete();
    assert!(gateway.faults.list().is_empty());
}

#[test]
fn invalidated_response_stays_away_after_a_restart() {
    let scratch = Scratch::new("invalidated");
    let gateway = scratch.start(Some(1));
    gateway.keep(&["/a", "/b"]);
    let (_, key) = request("/a");
    let (now, response) = (gateway.cache.now(), ResponseHead::new(200));
    let keys = std::slice::from_ref(&key);
    gateway
        .cache
        .lock()
        .invalidate(now, &Method::Post, &response, keys);
    gateway.disk.close();
    let gateway = scratch.start(Some(1));
    assert_eq!(gateway.find("/a"), None);
    assert!(gateway.find("/b").is_some());
}

#[test]
fn reload_deletes_the_files() {
    let scratch = Scratch::new("reload");
    let gateway = scratch.start(Some(1));
    gateway.keep(&["/a"]);
    gateway.cache.clear();
    gateway
        .disk
        .reload(&gateway.disk.config, &gateway.cache, b"other rules");
    assert!(!gateway.disk.has_scope(b"rules"));
    wait_until("the file is deleted", || scratch.files().is_empty());
    gateway.keep(&["/a"]);
    // A cache with another configuration takes the place of this one.
    let next = Arc::new(gateway.cache.successor(gateway.cache.config().clone()));
    gateway
        .disk
        .reload(&gateway.disk.config, &next, b"other rules");
    assert!(gateway.cache.lock().disk().is_none());
    wait_until("the file is deleted", || scratch.files().is_empty());
    let gateway = Gateway {
        cache: next,
        ..gateway
    };
    gateway.keep(&["/b"]);
    gateway.disk.delete();
    assert!(scratch.files().is_empty());
}

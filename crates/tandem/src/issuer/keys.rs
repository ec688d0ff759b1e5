//! The keys of an issuer: one for each epoch, in files of a directory.
//!
//! | file | content | until |
//! |---|---|---|
//! | `EPOCH.pem` | the private key | the end of its epoch |
//! | `EPOCH.public` | the public key | the end of the next epoch |
//!
//! The key of the next epoch exists early, so that gateways learn it in time. A private key is
//! removed with its epoch, so that its theft after that issues no tokens. One process at a time has
//! the directory, by a lock on its file `lock`: two would create different keys for one epoch.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use tandem_tokens::directory::{DatedKey, Directory};
use tandem_tokens::epoch::{Epochs, GRACE};
use tandem_tokens::issuance::IssuerKey;
use tandem_tokens::key::PublicKey;

use crate::files;

/// The reason why the keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// A file cannot be read or written.
    #[error("{file}: {error}")]
    File {
        /// The path.
        file: String,
        /// The error of the operating system.
        error: std::io::Error,
    },
    /// Another process has the directory.
    #[error(
        "{0}: another tandem issuer uses this directory: stop it, wait until it has drained, or \
         give each issuer its own directory and name"
    )]
    InUse(String),
    /// A file holds no key.
    #[error("{0} holds no key of this program: restore it, or remove it and its tokens")]
    NoKey(String),
    /// A published key has no private key.
    #[error("{0} has no private key beside it: restore the file with the end .pem, or remove this")]
    NoPrivateKey(String),
    /// A key cannot be created.
    #[error("cannot create a key: {0}")]
    Creation(#[from] tandem_tokens::issuance::IssuanceError),
}

/// The keys of the present, the previous and the next epoch.
#[derive(Debug)]
pub struct EpochKeys {
    directory: PathBuf,
    /// The epochs.
    pub epochs: Epochs,
    keys: RwLock<IssuerKeys>,
    /// Held until the issuer ends.
    _lock: File,
}

#[derive(Debug, Default)]
struct IssuerKeys {
    private: BTreeMap<u64, Arc<IssuerKey>>,
    public: BTreeMap<u64, PublicKey>,
}

impl EpochKeys {
    /// Reads the keys, and creates those that are missing at the time `now`, in seconds.
    ///
    /// # Errors
    /// Returns the reason why the keys cannot be used.
    pub fn open(directory: &Path, epochs: Epochs, now: u64) -> Result<Self, KeyError> {
        let keys = Self {
            directory: directory.to_owned(),
            epochs,
            keys: RwLock::default(),
            _lock: lock(directory)?,
        };
        let present = epochs.at(now);
        for epoch in present.saturating_sub(GRACE)..=present + 1 {
            keys.load(epoch)?;
        }
        for epoch in [present, present + 1] {
            keys.check_pair(epoch)?;
        }
        keys.renew(now)?;
        Ok(keys)
    }

    fn file(&self, epoch: u64, end: &str) -> PathBuf {
        self.directory.join(format!("{epoch}{end}"))
    }

    fn load(&self, epoch: u64) -> Result<(), KeyError> {
        let (private, public) = (self.file(epoch, ".pem"), self.file(epoch, ".public"));
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(spki) = read(&public)? {
            let key = PublicKey::from_spki(&spki);
            let key = key.map_err(|_| KeyError::NoKey(public.display().to_string()))?;
            keys.public.insert(epoch, key);
        }
        if let Some(pem) = read(&private)? {
            let key = IssuerKey::from_pem(&String::from_utf8_lossy(&pem));
            let key = key.map_err(|_| KeyError::NoKey(private.display().to_string()))?;
            // A crash may have prevented that the second file was written.
            if keys.public.get(&epoch) != Some(key.public()) {
                write(&public, &key.public().spki())?;
            }
            keys.public.insert(epoch, key.public().clone());
            keys.private.insert(epoch, Arc::new(key));
        }
        Ok(())
    }

    /// Checks that a public key has its private key, without which no tokens can be issued.
    fn check_pair(&self, epoch: u64) -> Result<(), KeyError> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let is_lone = keys.public.contains_key(&epoch) && !keys.private.contains_key(&epoch);
        match is_lone {
            true => Err(KeyError::NoPrivateKey(
                self.file(epoch, ".public").display().to_string(),
            )),
            false => Ok(()),
        }
    }

    /// Creates the keys of the present and the next epoch, and removes old ones. This takes up to
    /// some seconds.
    ///
    /// # Errors
    /// Returns the reason why a key cannot be created.
    pub fn renew(&self, now: u64) -> Result<(), KeyError> {
        let present = self.epochs.at(now);
        for epoch in [present, present + 1] {
            let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
            let is_known = keys.public.contains_key(&epoch);
            drop(keys);
            if !is_known {
                self.create(epoch)?;
            }
        }
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        let is_old = |epoch: u64, grace: u64| epoch.saturating_add(grace) < present;
        let private: Vec<u64> = keys.private.keys().copied().collect();
        for epoch in private.into_iter().filter(|epoch| is_old(*epoch, 0)) {
            keys.private.remove(&epoch);
            remove(&self.file(epoch, ".pem"))?;
        }
        let public: Vec<u64> = keys.public.keys().copied().collect();
        for epoch in public.into_iter().filter(|epoch| is_old(*epoch, GRACE)) {
            keys.public.remove(&epoch);
            remove(&self.file(epoch, ".public"))?;
        }
        Ok(())
    }

    fn create(&self, epoch: u64) -> Result<(), KeyError> {
        let key = loop {
            let key = IssuerKey::generate()?;
            let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
            let mut others = keys.public.values();
            // Requests select a key by the last byte of its identifier.
            let id = key.public().truncated_id();
            if others.all(|other| other.truncated_id() != id) {
                break key;
            }
        };
        // The private key comes first: the public key can be derived from it after a crash.
        write(&self.file(epoch, ".pem"), key.to_pem()?.as_bytes())?;
        write(&self.file(epoch, ".public"), &key.public().spki())?;
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        keys.public.insert(epoch, key.public().clone());
        keys.private.insert(epoch, Arc::new(key));
        Ok(())
    }

    /// Returns the private key of the epoch at the time `now`, and the number of the epoch.
    pub fn present(&self, now: u64) -> Option<(u64, Arc<IssuerKey>)> {
        let epoch = self.epochs.at(now);
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        keys.private.get(&epoch).map(|key| (epoch, Arc::clone(key)))
    }

    /// Returns the public keys with their times.
    pub fn directory(&self, request_uri: &str) -> Directory {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let dated = |(epoch, key): (&u64, &PublicKey)| DatedKey {
            key: key.clone(),
            not_before: self.epochs.start(*epoch),
        };
        Directory {
            request_uri: request_uri.to_owned(),
            keys: keys.public.iter().map(dated).collect(),
        }
    }
}

/// Locks the directory for this process.
fn lock(directory: &Path) -> Result<File, KeyError> {
    let file = directory.join("lock");
    files::open_locked(&file).map_err(|error| match error {
        TryLockError::WouldBlock => KeyError::InUse(directory.display().to_string()),
        TryLockError::Error(error) => failed(&file, error),
    })
}

fn failed(file: &Path, error: std::io::Error) -> KeyError {
    KeyError::File {
        file: file.display().to_string(),
        error,
    }
}

fn read(file: &Path) -> Result<Option<Vec<u8>>, KeyError> {
    match std::fs::read(file) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(file, error)),
    }
}

fn write(file: &Path, content: &[u8]) -> Result<(), KeyError> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let new = files::beside(file, ".new");
    files::replace(file, &new, &options, content).map_err(|error| failed(file, error))
}

fn remove(file: &Path) -> Result<(), KeyError> {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed(file, error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn epoch_keys_rotate_and_survive_a_restart() {
        let name = format!("tandem-test-epoch-keys-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).expect("a directory");
        let epochs = Epochs::new(100);
        let keys = EpochKeys::open(&directory, epochs, 1000).expect("keys");
        let (epoch, first) = keys.present(1000).expect("a key");
        assert_eq!(epoch, 10);
        let published = keys.directory("/token-request");
        let times: Vec<_> = published.keys.iter().map(|key| key.not_before).collect();
        assert_eq!(times, [1000, 1100]);
        let mode = |file: &str| {
            let data = std::fs::metadata(directory.join(file)).expect("a file");
            data.permissions().mode() & 0o777
        };
        assert_eq!(mode("10.pem"), 0o600);
        let error = EpochKeys::open(&directory, epochs, 1050).expect_err("it is in use");
        assert!(matches!(error, KeyError::InUse(_)), "{error}");
        drop(keys);
        let again = EpochKeys::open(&directory, epochs, 1050).expect("the same keys");
        assert_eq!(again.directory("/token-request"), published);
        // The private key ends with its epoch, and the public key one epoch later.
        again.renew(1100).expect("a key");
        assert!(!directory.join("10.pem").exists() && directory.join("10.public").exists());
        let published = again.directory("/token-request");
        assert_eq!(published.keys.len(), 3);
        assert_eq!(&published.keys[0].key, first.public());
        again.renew(1200).expect("a key");
        assert!(!directory.join("10.public").exists());
        std::fs::write(directory.join("12.pem"), "text").expect("written");
        drop(again);
        let error = EpochKeys::open(&directory, epochs, 1200).expect_err("no key");
        assert!(error.to_string().contains("12.pem holds no key"));
        std::fs::remove_dir_all(&directory).expect("removed");
    }

    #[test]
    fn epoch_keys_survive_a_crash_between_two_files() {
        let name = format!("tandem-test-epoch-crash-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).expect("a directory");
        let epochs = Epochs::new(100);
        // A directory in its place makes the writing of the public key fail.
        std::fs::create_dir_all(directory.join("10.public/x")).expect("a directory");
        let keys = EpochKeys {
            directory: directory.clone(),
            epochs,
            keys: RwLock::default(),
            _lock: lock(&directory).expect("a lock"),
        };
        keys.renew(1000).expect_err("no second file");
        drop(keys);
        assert!(directory.join("10.pem").exists());
        std::fs::remove_dir_all(directory.join("10.public")).expect("removed");
        let keys = EpochKeys::open(&directory, epochs, 1000).expect("keys");
        assert!(keys.present(1000).is_some() && directory.join("10.public").exists());
        drop(keys);
        // A public key alone is an error, since it would be published.
        std::fs::remove_file(directory.join("10.pem")).expect("removed");
        let error = EpochKeys::open(&directory, epochs, 1000).expect_err("no private key");
        assert!(error.to_string().contains("10.public has no private key"));
        std::fs::remove_dir_all(&directory).expect("removed");
    }
}

//! The services that all threads of the process share.
//!
//! The process owns them from the first configuration to its end. A role opens the services that it
//! needs before it is built; a reload finds them as they are.

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use ring::rand::{SecureRandom as _, SystemRandom};
use tandem_submit::store::Store;

use crate::connections::SessionNumbers;
use crate::digest_file::{DigestFile, DigestFileError};
use crate::disk_cache::{DiskCache, DiskConfig, DiskError};
use crate::fleet::{Fleet, FleetConfig};
use crate::hosts::HostPattern;
use crate::in_use::InUse;
#[cfg(feature = "submit")]
use crate::issuer::{Issuer, IssuerError, IssuerSettings};
use crate::journal::Journal;
use crate::learned::{Learned, LearnedError, PredictorConfig};
use crate::renewal::Renewals;
use crate::response_cache::ResponseCache;
use crate::resume::SpeedTokens;
use crate::users::Users;
use crate::visit_file::{VisitFile, VisitFileError, VisitsInUse};

/// The services of a process.
#[derive(Debug)]
pub struct Services {
    learned: OnceLock<Arc<Learned>>,
    fleet: OnceLock<Fleet>,
    cache: Mutex<Option<Arc<ResponseCache>>>,
    disk: Mutex<Option<DiskCache>>,
    digests: Mutex<InUse<DigestFile>>,
    visits: Mutex<VisitsInUse>,
    users: Arc<Users>,
    journal: Arc<Journal>,
    store: OnceLock<Arc<dyn Store>>,
    speed_tokens: Arc<SpeedTokens>,
    renewals: Renewals,
    session_numbers: SessionNumbers,
    pseudonym: Arc<str>,
    #[cfg(feature = "submit")]
    issuer: OnceLock<Arc<Issuer>>,
}

impl Default for Services {
    fn default() -> Self {
        Self {
            learned: OnceLock::new(),
            fleet: OnceLock::new(),
            cache: Mutex::default(),
            disk: Mutex::default(),
            digests: Mutex::default(),
            visits: Mutex::default(),
            users: Arc::default(),
            journal: Arc::default(),
            store: OnceLock::new(),
            speed_tokens: Arc::default(),
            renewals: Renewals::default(),
            session_numbers: SessionNumbers::default(),
            pseudonym: random_pseudonym(),
            #[cfg(feature = "submit")]
            issuer: OnceLock::new(),
        }
    }
}

impl Services {
    /// Opens the predictor. An open predictor stays as it is: a reload keeps the learned
    /// counts and the first configuration.
    ///
    /// # Errors
    /// Returns the reason why the state file cannot be used.
    pub fn open_predictor(&self, config: &PredictorConfig) -> Result<(), LearnedError> {
        if self.learned.get().is_some() {
            return Ok(());
        }
        let learned = Learned::new(config.auto.clone(), config.file.clone())?;
        if learned.begins_anew() {
            tracing::error!(
                "the state file cannot be read, so learning starts with nothing; the file is kept \
                 with .old added to its name"
            );
        }
        // Roles are opened by one thread, one after the other.
        self.learned.get_or_init(|| Arc::new(learned));
        Ok(())
    }

    /// The predictor, where a role has opened it.
    pub fn predictor(&self) -> Option<&Arc<Learned>> {
        self.learned.get()
    }

    /// Begins to share the knowledge of the predictor, which must be open, and the responses of the
    /// cache. Gateways with another `scope` share no responses. A reload without a configuration
    /// ends the sharing, and keeps the first configuration otherwise.
    ///
    /// # Errors
    /// Returns the reason why the thread cannot start.
    pub fn open_fleet(&self, config: Option<&FleetConfig>, scope: &[u8]) -> std::io::Result<()> {
        if let Some(fleet) = self.fleet.get() {
            fleet.reload(config);
        } else if let (Some(config), Some(learned)) = (config, self.learned.get()) {
            let fleet = Fleet::start(
                config,
                Arc::clone(learned),
                &self.users,
                self.journal.faults(),
            )?;
            self.fleet.get_or_init(|| fleet);
        }
        if let Some(fleet) = self.fleet.get() {
            // Sessions of an earlier configuration keep their cache, and lend nothing from now on.
            if !fleet.has_scope(scope) {
                let disk = self.disk.lock().unwrap_or_else(PoisonError::into_inner);
                let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
                let next = |old: Arc<ResponseCache>| old.successor(old.config().clone());
                *cache = cache.take().map(next).map(Arc::new);
                if let (Some(disk), Some(cache)) = (&*disk, &*cache) {
                    disk.follow(cache);
                }
            }
            fleet.attach(self.cache(), scope);
        }
        Ok(())
    }

    /// Returns the fleet, if a role has opened it.
    pub fn fleet(&self) -> Option<&Fleet> {
        self.fleet.get()
    }

    /// Opens the cache, or closes it without a configuration. An open cache loses its content: the
    /// new configuration may forbid origins whose responses it holds.
    pub fn open_cache(&self, config: Option<&tandem_cache::Config>) {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let old = cache.take();
        if let Some(old) = &old {
            old.clear();
        }
        *cache = config.map(|config| match old {
            Some(old) if old.config() == config => old,
            Some(old) => Arc::new(old.successor(config.clone())),
            None => Arc::new(ResponseCache::new(config.clone())),
        });
    }

    /// Opens the files of the cache, which must be open, or deletes them without a configuration.
    /// Responses that were fetched under another `scope` serve nobody.
    ///
    /// # Errors
    /// Returns the reason why the directory cannot be used.
    pub fn open_disk(&self, config: Option<&DiskConfig>, scope: &[u8]) -> Result<(), DiskError> {
        let mut disk = self.disk.lock().unwrap_or_else(PoisonError::into_inner);
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        match (config, &*disk) {
            (Some(config), Some(open)) => {
                // Sessions of an earlier configuration keep their cache without its files.
                if let Some(old) = cache.as_mut().filter(|_| !open.has_scope(scope)) {
                    *old = Arc::new(old.successor(old.config().clone()));
                }
                if let Some(cache) = &*cache {
                    open.reload(config, cache, scope);
                }
            }
            (Some(config), None) => {
                if let Some(old) = &mut *cache {
                    // Sessions of an earlier configuration, whose rules may differ, write no files.
                    *old = Arc::new(old.successor(old.config().clone()));
                    let faults = self.journal.faults();
                    *disk = Some(DiskCache::open(config, old, scope, faults)?);
                }
            }
            (None, Some(_)) => {
                if let Some(disk) = disk.take() {
                    disk.delete();
                    // A cache keeps the way to its first disk, so a later disk needs another cache.
                    if let Some(old) = &mut *cache {
                        old.close_disk();
                        *old = Arc::new(old.successor(old.config().clone()));
                    }
                }
            }
            (None, None) => {}
        }
        Ok(())
    }

    /// Ends the use of the cache's files, which then serve a later process. No session may be left.
    pub fn close_disk(&self) {
        let disk = self
            .disk
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(disk) = disk {
            disk.close();
        }
    }

    /// The cache, where a role has opened it.
    pub fn cache(&self) -> Option<Arc<ResponseCache>> {
        let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.clone()
    }

    /// Opens the file of digests, or ends its use without a path. An open file stays as it is. The
    /// file before stays open until [`Self::end_opening`].
    ///
    /// # Errors
    /// Returns the reason why the file cannot be used.
    pub fn open_digests(&self, file: Option<&Path>) -> Result<(), DigestFileError> {
        let mut digests = self.digests.lock().unwrap_or_else(PoisonError::into_inner);
        let open = digests.current().cloned();
        let new = match (open, file) {
            (Some(open), Some(file)) if open.path() == file => Some(open),
            (_, Some(file)) => Some(Arc::new(DigestFile::open(file.to_owned())?)),
            (_, None) => None,
        };
        digests.replace(new);
        Ok(())
    }

    /// Returns the file of digests, if a role has opened it.
    pub fn digests(&self) -> Option<Arc<DigestFile>> {
        let digests = self.digests.lock().unwrap_or_else(PoisonError::into_inner);
        digests.current().cloned()
    }

    /// Opens the file of visited pages, or ends its use without a path. An open file stays as it
    /// is, without the URLs of the hosts in `except`. The file before stays open until
    /// [`Self::end_opening`].
    ///
    /// # Errors
    /// Returns the reason why the file cannot be used.
    pub fn open_visits(
        &self,
        file: Option<&Path>,
        except: &[HostPattern],
    ) -> Result<(), VisitFileError> {
        let mut visits = self.visits.lock().unwrap_or_else(PoisonError::into_inner);
        visits.open(file, except)
    }

    /// Ends the opening of services for a configuration. The files of digests and of visited pages
    /// are those before if it is not used.
    pub fn end_opening(&self, is_used: bool) {
        let mut digests = self.digests.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(old) = digests.settle(is_used)
            && let Err(error) = old.save()
        {
            tracing::error!(%error, "the digests were not saved");
        }
        let mut visits = self.visits.lock().unwrap_or_else(PoisonError::into_inner);
        visits.end_opening(is_used);
    }

    /// Returns the file of visited pages, if a role has opened it.
    pub fn visits(&self) -> Option<Arc<VisitFile>> {
        let visits = self.visits.lock().unwrap_or_else(PoisonError::into_inner);
        visits.current()
    }

    /// The numbers of users.
    pub const fn users(&self) -> &Arc<Users> {
        &self.users
    }

    /// Opens the store of submissions at `address`. An open store stays as it is.
    ///
    /// # Errors
    /// Returns the reason why the store cannot be used.
    pub fn open_store(&self, address: &str) -> Result<(), String> {
        if self.store.get().is_some() {
            return Ok(());
        }
        let store = open(address)?;
        self.store.get_or_init(|| store);
        Ok(())
    }

    /// Returns the store of submissions, if a role has opened it.
    pub fn store(&self) -> Option<&Arc<dyn Store>> {
        self.store.get()
    }

    /// Opens the issuer of tokens. An open issuer stays as it is, with its first settings.
    ///
    /// # Errors
    /// Returns the reason why its files cannot be used.
    #[cfg(feature = "submit")]
    pub fn open_issuer(&self, settings: &IssuerSettings) -> Result<(), IssuerError> {
        if self.issuer.get().is_none() {
            let issuer = Issuer::open(settings, &self.renewals)?;
            // Roles are opened by one thread, one after the other.
            self.issuer.get_or_init(|| issuer);
        }
        Ok(())
    }

    /// Returns the issuer of tokens, if a role has opened it.
    #[cfg(feature = "submit")]
    pub fn issuer(&self) -> Option<&Arc<Issuer>> {
        self.issuer.get()
    }

    /// Returns the tokens that hold the speeds of paths.
    pub const fn speed_tokens(&self) -> &Arc<SpeedTokens> {
        &self.speed_tokens
    }

    /// Returns the list of the values that follow their files.
    pub const fn renewals(&self) -> &Renewals {
        &self.renewals
    }

    /// Returns the numbers of connections and sessions.
    pub const fn session_numbers(&self) -> &SessionNumbers {
        &self.session_numbers
    }

    /// Returns the random name of this process in the field `Via`.
    pub const fn pseudonym(&self) -> &Arc<str> {
        &self.pseudonym
    }

    /// Returns the recent events for the dashboard.
    pub const fn journal(&self) -> &Arc<Journal> {
        &self.journal
    }

    /// Writes the files of the services.
    ///
    /// # Errors
    /// Returns the reason why a file cannot be written.
    pub fn save(&self) -> Result<(), SaveError> {
        let digests = self.digests().map_or(Ok(()), |digests| digests.save());
        let visits = self.visits().map_or(Ok(()), |visits| visits.save());
        self.learned
            .get()
            .map_or(Ok(()), |learned| learned.save())?;
        digests?;
        Ok(visits?)
    }

    /// Writes the files that no request writes, if it is time.
    pub fn save_if_due(&self, now: Instant) {
        if let Some(learned) = self.learned.get() {
            learned.save_if_due(now);
        }
        if let Some(visits) = self.visits() {
            visits.save_if_due(now);
        }
    }
}

/// Returns a new name, with 64 bits of the system's random numbers.
fn random_pseudonym() -> Arc<str> {
    let mut number = [0; 8];
    SystemRandom::new()
        .fill(&mut number)
        .expect("the system has random numbers");
    format!("tandem-{:016x}", u64::from_be_bytes(number)).into()
}

/// The reason for which a file of a service was not written.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// It is the file of the predictor.
    #[error(transparent)]
    Learned(#[from] LearnedError),
    /// It is the file of digests.
    #[error(transparent)]
    Digests(#[from] DigestFileError),
    /// It is the file of visited pages.
    #[error(transparent)]
    Visits(#[from] VisitFileError),
}

/// Returns an error if the program was built without stores.
///
/// # Errors
/// Returns the remedy.
pub fn has_stores() -> Result<(), String> {
    if cfg!(feature = "submit") {
        return Ok(());
    }
    Err(NO_STORES.to_owned())
}

/// Checks the address of a store without opening it.
///
/// # Errors
/// Returns the problem and its remedy.
#[cfg(feature = "submit")]
pub fn check_store(address: &str) -> Result<(), String> {
    tandem_store::check(address).map_err(|error| error.to_string())
}

/// Returns the error of a program without stores.
///
/// # Errors
/// Returns the remedy.
#[cfg(not(feature = "submit"))]
pub fn check_store(_: &str) -> Result<(), String> {
    Err(NO_STORES.to_owned())
}

/// Returns the file with the password that the address of a store names.
#[cfg(feature = "submit")]
pub fn store_secret(address: &str) -> Option<String> {
    let file = tandem_store::password_file(address)?;
    Some(file.display().to_string())
}

/// Returns nothing in a program without stores.
#[cfg(not(feature = "submit"))]
pub const fn store_secret(_: &str) -> Option<String> {
    None
}

#[cfg(feature = "submit")]
fn open(address: &str) -> Result<Arc<dyn Store>, String> {
    tandem_store::open(address).map_err(|error| error.to_string())
}

#[cfg(not(feature = "submit"))]
fn open(_: &str) -> Result<Arc<dyn Store>, String> {
    Err(NO_STORES.to_owned())
}

const NO_STORES: &str = "this program takes no submissions: build it with \
     `cargo build --release -p tandem-cli --features submit`";

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "submit")]
    #[test]
    fn services_keep_the_first_issuer() {
        let directory = std::env::temp_dir().join(format!("tandem-kept-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let accounts = directory.join("accounts.toml");
        let digest = "00".repeat(32);
        let entry = format!("[[client]]\nname = \"one\"\ntoken-sha256 = \"{digest}\"\n");
        std::fs::write(&accounts, entry).expect("a file");
        let settings = IssuerSettings {
            accounts: accounts.display().to_string(),
            keys: directory.join("keys"),
            epoch: 86_400,
            tokens: 10,
        };
        let services = Services::default();
        assert!(services.issuer().is_none());
        services.open_issuer(&settings).expect("open");
        let first = Arc::clone(services.issuer().expect("open"));
        let nowhere = IssuerSettings {
            accounts: "/nowhere/accounts".into(),
            keys: directory.join("others"),
            ..settings.clone()
        };
        services.open_issuer(&nowhere).expect("it is open");
        assert!(Arc::ptr_eq(&first, services.issuer().expect("open")));
        // Another process would have other keys for the same epoch.
        let error = Services::default().open_issuer(&settings);
        let problem = error.expect_err("the keys are in use").to_string();
        assert!(problem.contains("another tandem issuer"), "{problem}");
        let error = Services::default().open_issuer(&nowhere);
        assert!(matches!(error, Err(IssuerError::Accounts(_))));
        std::fs::remove_dir_all(&directory).expect("removed");
    }

    #[test]
    fn services_keep_the_first_predictor() {
        let services = Services::default();
        assert!(services.predictor().is_none() && services.save().is_ok());
        let config = PredictorConfig::default();
        services.open_predictor(&config).expect("no file");
        let first = Arc::clone(services.predictor().expect("open"));
        let nowhere = PredictorConfig {
            file: Some("/nowhere/state".into()),
            ..config
        };
        services.open_predictor(&nowhere).expect("it is open");
        let second = services.predictor().expect("open");
        assert!(Arc::ptr_eq(&first, second));
        let error = Services::default().open_predictor(&nowhere);
        assert!(error.is_err_and(|error| error.to_string().contains("/nowhere/state")));
    }

    const SHARED: tandem_cache::Config = tandem_cache::Config {
        sharing: tandem_cache::Sharing::Shared,
        memory: 1 << 20,
        min_users: 2,
    };

    fn fleet() -> FleetConfig {
        FleetConfig {
            engine: crate::fleet::EngineAddress::parse("redis+unix:///nowhere/socket")
                .expect("an address"),
            key: tandem_fleet::FleetKey::new(&[7; 32]).expect("a key"),
            memory: 1 << 20,
            secret_files: vec![],
        }
    }

    /// Services with a predictor, which a fleet needs.
    fn predicting() -> Services {
        let services = Services::default();
        let predictor = PredictorConfig::default();
        services.open_predictor(&predictor).expect("no file");
        services
    }

    #[test]
    fn cache_is_another_one_once_its_scope_changes() {
        let (services, fleet) = (predicting(), fleet());
        let config = SHARED;
        let open = |scope: &[u8]| {
            services.open_cache(Some(&config));
            services.open_fleet(Some(&fleet), scope).expect("a thread");
            services.cache().expect("open")
        };
        let first = open(b"rules");
        assert!(Arc::ptr_eq(&first, &open(b"rules")));
        let second = open(b"other rules");
        assert!(!Arc::ptr_eq(&first, &second));
        assert!(Arc::ptr_eq(&second, &open(b"other rules")));
    }

    /// The fleet replaces the cache, and the new cache has the disk.
    #[test]
    fn disk_serves_the_cache_that_takes_part_in_a_fleet() {
        let (services, fleet) = (predicting(), fleet());
        let name = format!("tandem-services-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let disk = DiskConfig {
            directory: directory.clone(),
            bytes: 16 << 20,
            key: None,
        };
        for (number, scope) in [(1, b"rules"), (2, b"rules"), (3, b"other")] {
            services.open_cache(Some(&SHARED));
            services.open_disk(Some(&disk), scope).expect("a directory");
            services.open_fleet(Some(&fleet), scope).expect("a thread");
            let cache = services.cache().expect("open");
            assert!(cache.disk().is_some(), "requests ask the disk: {number}");
            let file = directory.join(format!("{number:032x}"));
            std::fs::write(&file, "removed").expect("a file");
            cache.with_disk(|index| index.doom(u128::to_be_bytes(number)));
            let began = std::time::Instant::now();
            while file.exists() {
                assert!(began.elapsed().as_secs() < 20, "the thread: {number}");
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        }
        services.open_disk(None, b"other").expect("no directory");
        std::fs::remove_dir_all(directory).expect("a directory");
    }
}

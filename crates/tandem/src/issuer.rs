//! The issuer of tokens that a process shares: its keys, its accounts and its counts
//! (`tandem issuer`; RFC 9578).
//!
//! [`Services`](crate::services::Services) opens it once and keeps it over a reload.
//! [`middle::issuer`](crate::middle::issuer) is the stage that answers requests with it.

pub mod keys;

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use tandem_store::issued::IssuedTokens;
use tandem_submit::problem::Problem;
use tandem_submit::rights::Rights;
use tandem_tokens::epoch::Epochs;
use tandem_tokens::token::TokenRequest;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use self::keys::EpochKeys;
use crate::log_limit::LogLimit;
use crate::metrics::METRICS;
use crate::renewal::{Renewable, Renewals};

/// The time between two ticks at which the issuer answers.
pub const TICK: Duration = Duration::from_millis(100);

/// The number of token requests that wait for a signature at the same time.
pub(crate) const SIGNING: usize = 1024;

/// The number of token requests of one account at the same time, with those that have no body yet.
pub(crate) const WAITING: usize = 32;

/// The time between two looks for a new epoch.
const RENEWAL: Duration = Duration::from_secs(5);

static FAILURES: LogLimit = LogLimit::new();

/// The files and numbers of an issuer.
#[derive(Clone, Debug)]
pub struct IssuerSettings {
    /// The file of accounts.
    pub accounts: String,
    /// The directory of keys.
    pub keys: PathBuf,
    /// The length of an epoch in seconds.
    pub epoch: u64,
    /// The tokens of an account in an epoch, unless `per-day` says otherwise.
    pub tokens: u64,
}

/// The reason why an issuer cannot open.
#[derive(Debug, thiserror::Error)]
pub enum IssuerError {
    /// The file of accounts cannot be used.
    #[error("{0}")]
    Accounts(String),
    /// The directory of keys cannot be used.
    #[error("{0}")]
    Keys(String),
    /// The thread that renews the keys cannot start.
    #[error("no thread: {0}")]
    Thread(std::io::Error),
}

/// The issuer of a process. All threads share it.
pub struct Issuer {
    pub(crate) keys: EpochKeys,
    pub(crate) accounts: Arc<Renewable<Rights>>,
    issued: IssuedTokens,
    /// The tokens of an account in an epoch, unless `per-day` says otherwise.
    pub(crate) tokens: u64,
    pub(crate) signing: Arc<Semaphore>,
    /// The requests of each account that are not answered yet.
    waiting: Mutex<HashMap<[u8; 32], usize>>,
    /// The first tick.
    started: Instant,
}

impl fmt::Debug for Issuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issuer").finish_non_exhaustive()
    }
}

impl Issuer {
    /// Opens the files of an issuer. The first start takes some seconds. A thread then renews the
    /// keys for as long as the issuer exists, and the accounts follow their file.
    ///
    /// # Errors
    /// Returns the reason why a file cannot be used.
    pub fn open(settings: &IssuerSettings, renewals: &Renewals) -> Result<Arc<Self>, IssuerError> {
        let issuer = Arc::new(Self::read(settings, renewals)?);
        let weak = Arc::downgrade(&issuer);
        let thread = std::thread::Builder::new().name("tandem-issuer".into());
        let thread = thread.spawn(move || renew(&weak));
        thread.map_err(IssuerError::Thread)?;
        Ok(issuer)
    }

    fn read(settings: &IssuerSettings, renewals: &Renewals) -> Result<Self, IssuerError> {
        let directory = &settings.keys;
        let wrong = |problem: String| IssuerError::Keys(problem);
        make_directory(directory)
            .map_err(|problem| wrong(format!("{}: {problem}", directory.display())))?;
        let keys = EpochKeys::open(directory, Epochs::new(settings.epoch), now());
        let keys = keys.map_err(|error| wrong(error.to_string()))?;
        let issued = IssuedTokens::open(&directory.join("issued"));
        let issued = issued.map_err(|error| wrong(error.to_string()))?;
        let file = settings.accounts.clone();
        let name = format!("the accounts in {file}");
        let files = vec![PathBuf::from(&file)];
        let accounts = Renewable::new(name, files, move || read_accounts(&file))?;
        let accounts = renewals.watch(accounts);
        Ok(Self::new(keys, accounts, issued, settings.tokens))
    }

    /// Returns an issuer that gives `tokens` tokens of an epoch to each account without `per-day`.
    pub(crate) fn new(
        keys: EpochKeys,
        accounts: Arc<Renewable<Rights>>,
        issued: IssuedTokens,
        tokens: u64,
    ) -> Self {
        let issuer = Self {
            keys,
            accounts,
            issued,
            tokens,
            signing: Arc::new(Semaphore::new(SIGNING)),
            waiting: Mutex::default(),
            started: Instant::now(),
        };
        issuer.count(issuer.keys.epochs.at(now()));
        issuer
    }

    /// Creates the keys of a new epoch, and forgets old ones. It blocks for some seconds.
    fn renew(&self) {
        let now = now();
        let first = self.keys.epochs.at(now);
        let renewed = self.keys.renew(now).map_err(|error| error.to_string());
        let ended = self.issued.end_epochs(first);
        let ended = ended.map_err(|error| error.to_string());
        if let Err(error) = renewed.and(ended) {
            note(&error);
        }
        self.count(first);
    }

    /// Counts the accounts, and their tokens of an epoch.
    fn count(&self, epoch: u64) {
        let accounts = self.accounts.get().count();
        METRICS.issuer_accounts.set(accounts as u64);
        match self.issued.total(epoch) {
            Ok(total) => METRICS.tokens_issued_epoch.set(total),
            Err(error) => note(&error.to_string()),
        }
    }

    /// Charges an account, which may have `most` tokens of an epoch, and then signs its request.
    pub(crate) fn charge_and_sign(
        &self,
        request: &TokenRequest,
        account: &[u8; 32],
        most: u64,
    ) -> Result<Vec<u8>, Problem> {
        let (epoch, key) = self.keys.present(now()).ok_or_else(|| {
            note("the present epoch has no private key");
            Problem::StoreFailed
        })?;
        if request.truncated_key_id != key.public().truncated_id() {
            return Err(Problem::BadTokenRequest);
        }
        let charged = self.issued.charge(epoch, account, most).map_err(|error| {
            note(&error.to_string());
            Problem::StoreFailed
        })?;
        match charged {
            true => key.sign(request).map_err(|_| Problem::BadTokenRequest),
            false => Err(Problem::NoTokensLeft),
        }
    }

    /// Waits for the next tick.
    pub(crate) async fn wait_for_tick(&self) {
        let tick = TICK.as_millis();
        let past = self.started.elapsed().as_millis();
        let next = (past / tick + 1) * tick;
        let next = Duration::from_millis(u64::try_from(next).unwrap_or(u64::MAX));
        tokio::time::sleep_until(self.started + next).await;
    }

    /// Returns true if no request waits.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.lock_waiting().is_empty()
    }

    fn lock_waiting(&self) -> MutexGuard<'_, HashMap<[u8; 32], usize>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of a request among those of its account, returned when it is dropped.
pub(crate) struct WaitingIssue {
    issuer: Arc<Issuer>,
    account: [u8; 32],
}

impl WaitingIssue {
    /// Returns a place, unless the account has too many requests.
    pub(crate) fn of(issuer: &Arc<Issuer>, account: [u8; 32]) -> Option<Self> {
        let mut waiting = issuer.lock_waiting();
        let number = waiting.entry(account).or_default();
        (*number < WAITING).then(|| {
            *number += 1;
            Self {
                issuer: Arc::clone(issuer),
                account,
            }
        })
    }
}

impl Drop for WaitingIssue {
    fn drop(&mut self) {
        let mut waiting = self.issuer.lock_waiting();
        if let Some(number) = waiting.get_mut(&self.account) {
            *number -= 1;
            if *number == 0 {
                waiting.remove(&self.account);
            }
        }
    }
}

/// Creates the directory of keys for this user only. An existing one keeps its permissions, and is
/// refused if others can use it: it may serve another purpose.
fn make_directory(keys: &Path) -> Result<(), String> {
    use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
    let failed = |error: std::io::Error| error.to_string();
    if let Some(parent) = keys.parent() {
        std::fs::create_dir_all(parent).map_err(failed)?;
    }
    match std::fs::DirBuilder::new().mode(0o700).create(keys) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        made => return made.map_err(failed),
    }
    let found = std::fs::metadata(keys).map_err(failed)?;
    if !found.is_dir() {
        return Err("it is no directory: name another path".into());
    }
    let mode = found.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(format!(
            "other users can use this directory (mode {mode:04o}): if it is for the keys only, \
             chmod 700 it, and otherwise name another one, which the issuer creates"
        ));
    }
    Ok(())
}

/// Renews the keys of an issuer as long as it exists.
fn renew(issuer: &Weak<Issuer>) {
    loop {
        std::thread::sleep(RENEWAL);
        match issuer.upgrade() {
            Some(issuer) => issuer.renew(),
            None => return,
        }
    }
}

/// Reads a file of accounts.
///
/// # Errors
/// Returns the first problem of the file.
pub fn read_accounts(file: &str) -> Result<Rights, IssuerError> {
    let wrong = |problem: String| IssuerError::Accounts(format!("{file}: {problem}"));
    let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    Rights::parse(&text).map_err(|error| wrong(error.to_string()))
}

/// Logs a failure of the issuer, which concerns the operator and no account.
fn note(error: &str) {
    if let Some(held_back) = FAILURES.admit() {
        tracing::error!(
            "tokens cannot be issued: {error} ({held_back} more since the last line): check the \
             directory of keys and its free space"
        );
    }
}

/// Returns the present time in seconds since 1970.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn mode(directory: &Path) -> u32 {
        let found = std::fs::metadata(directory).expect("it exists");
        found.permissions().mode() & 0o777
    }

    #[test]
    fn directory_of_keys_keeps_its_permissions() {
        let name = format!("tandem-test-issuer-mode-{}", std::process::id());
        let parent = std::env::temp_dir().join(name);
        let keys = parent.join("below/keys");
        make_directory(&keys).expect("it is created");
        assert_eq!(mode(&keys), 0o700);
        make_directory(&keys).expect("it is private");
        for open in [0o755, 0o710, 0o701, 0o702] {
            let permissions = std::fs::Permissions::from_mode(open);
            std::fs::set_permissions(&keys, permissions).expect("changed");
            let problem = make_directory(&keys).expect_err("others can use it");
            assert!(problem.contains("chmod 700"), "{problem}");
            assert_eq!(mode(&keys), open, "it is not changed");
        }
        let file = parent.join("file");
        std::fs::write(&file, "").expect("written");
        let problem = make_directory(&file).expect_err("no directory");
        assert!(problem.contains("no directory"), "{problem}");
        std::fs::remove_dir_all(&parent).expect("removed");
    }
}

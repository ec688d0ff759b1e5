//! The gateway's knowledge of the resources that pages need: one predictor for all threads, kept
//! across a reload.
//!
//! It lives in memory. With `--predict-state` it is read at the start and written every ten minutes
//! and at the end, by a thread without sessions. Each write goes to a new file, which then replaces
//! the old one.

use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant, SystemTime};

use tandem_fleet::{FleetKey, GatewayId, Sighting};
use tandem_http::RequestHead;
use tandem_predict::ids::IdMap;
use tandem_predict::{Auto, AutoConfig, Candidate, Exchange, Gains, Gathering, StateError, Worth};
use tandem_preload::split;
use tandem_push::asked_hosts::AskedHosts;
use tandem_push::cookie_urls::CookieUrls;
use tandem_push::gateway::CopyLifetime;
use tandem_push::gone_urls::GoneTable;
use tandem_push::image_accept::ImageAccept;
use tandem_push::known_redirects::KnownRedirects;
use tandem_push::likely_budget::LikelyBudget;
use tandem_push::next_pages::{NextPage, NextTable};
use tandem_push::referrers::ReferrerTable;
use tandem_push::refusing_hosts::RefusingHosts;
use tandem_push::scripts::{DataFields, ScriptTable};
use tandem_push::transfers::TransferTable;
use tandem_push::useless_pushes::UselessTable;

use crate::files::{beside, replace_private, without_links};
use crate::moment;
use crate::users::Users;

mod page_tables;
mod requests;

/// The interval between two writes of the state file.
const SAVE_EVERY: Duration = Duration::from_secs(600);

/// The configuration of the predictor.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PredictorConfig {
    /// The parameters of prediction.
    pub auto: AutoConfig,
    /// The file that keeps the predictor's state.
    pub file: Option<PathBuf>,
}

/// The reason for which a state file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LearnedError {
    /// The file cannot be read or written.
    #[error("{file}: {error}")]
    File {
        /// The file name.
        file: String,
        /// The error of the system.
        error: std::io::Error,
    },
    /// The file does not hold a state that this program wrote.
    #[error("{file}: {error}")]
    State {
        /// The file name.
        file: String,
        /// The error of the parser.
        error: StateError,
    },
}

/// The maximum number of URLs in `own_askers`.
const OWN_ASKERS: usize = 1 << 16;

/// The maximum number of URLs in `lifetimes`.
const LIFETIMES: usize = 1 << 16;

/// The maximum number of user agents in `image_accept`.
const AGENTS: usize = 64;

/// The size of a document that decides whether its push pays: that of a median site.
const DOCUMENT_SIZE: f64 = 30_000.0;

/// The users of other gateways that are counted while requests wait.
const USERS_AT_ONCE: usize = 64;

/// The counted users whose names are written while requests wait, about 0.2 µs each.
const NAMES_AT_ONCE: usize = 256;

/// The assets of other gateways' pages that are merged while requests wait.
const ASSETS_AT_ONCE: usize = 64;

/// The pages whose gains are gathered while requests wait.
const PAGES_AT_ONCE: usize = 32;

/// The URLs, contexts and assets that are written to the state file while requests wait.
const SAVED_AT_ONCE: usize = 1024;

/// The predictor.
pub struct Learned {
    config: AutoConfig,
    auto: Mutex<Auto>,
    /// The time of the last write of the state file. The lock is taken during a write.
    saved: Mutex<Instant>,
    /// The hashes of URLs that were last requested with a Referer of their own origin.
    own_askers: Mutex<HashSet<u64>>,
    /// The hashes of URLs that were last requested by CORS.
    by_cors: Mutex<HashSet<u64>>,
    /// The referrers of requests, by the secret hashes of their URLs.
    referrers: Mutex<ReferrerTable>,
    /// The lifetimes of copies in a browser's cache, by the secret hashes of their URLs. `None`: no
    /// cache could keep the last response.
    lifetimes: Mutex<IdMap<u64, Option<CopyLifetime>>>,
    /// The fields of requests for data, by the secret hashes of their URLs.
    scripts: Mutex<ScriptTable>,
    /// The `Accept` of browsers for images.
    image_accept: Mutex<ImageAccept<AGENTS>>,
    /// The URLs that have gone, by their secret hashes.
    gone: Mutex<GoneTable>,
    /// The URLs whose requests carry cookies of other origins, by their secret hashes.
    cookie_urls: Mutex<CookieUrls>,
    /// The hosts that answer different users with failures.
    refusing_hosts: Mutex<RefusingHosts>,
    /// The documents that follow pages, by the secret hashes of the pages' URLs.
    next_pages: Mutex<NextTable>,
    /// The pushes of no use, by the secret hashes of the pages' URLs.
    useless_pushes: Mutex<UselessTable>,
    /// The pushes that browsers had no use for, in the same way.
    wasted_pushes: Mutex<UselessTable>,
    /// The other hosts that pages request, by the secret hashes of browsers and origins. It stays
    /// empty if there are several users.
    asked_hosts: Mutex<AskedHosts>,
    /// The targets of redirects, by the secret hashes of browsers and URLs. It stays empty in the
    /// same case.
    known_redirects: Mutex<KnownRedirects>,
    /// The transfers of visits, by the secret hashes of browsers and pages. It stays empty in the
    /// same case.
    transfers: Mutex<TransferTable>,
    /// The budget of pushes that wait for no claim. It stays untouched in the same case.
    likely_budget: Mutex<LikelyBudget>,
    began: Instant,
    file: Option<PathBuf>,
    /// The time at which the state that was read had been written.
    saved_at: Option<SystemTime>,
    /// True if the present file cannot be parsed. It is then kept under another name.
    unreadable: AtomicBool,
    /// The secret that turns URLs into numbers without meaning outside this process.
    secret: RandomState,
    users: Users,
}

/// Shows only the operator's settings: the predictor's state is long and private.
impl std::fmt::Debug for Learned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Learned")
            .field("config", &self.config)
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}

impl Learned {
    /// Creates a predictor with the state in `file`, if the file exists. Through a link, the file
    /// behind it is read and replaced.
    pub fn new(config: AutoConfig, file: Option<PathBuf>) -> Result<Self, LearnedError> {
        let target = |file: PathBuf| {
            without_links(&file).map_err(|error| LearnedError::File {
                file: file.display().to_string(),
                error,
            })
        };
        let file = file.map(target).transpose()?;
        let found = file
            .as_deref()
            .map(|file| read(file, &config))
            .transpose()?;
        let unreadable = matches!(found, Some(Found::Unreadable));
        let (auto, saved_at) = match found {
            Some(Found::Learned(auto, saved_at)) => (*auto, saved_at),
            _ => (Auto::new(config.clone()), None),
        };
        let began = Instant::now();
        Ok(Self {
            config,
            auto: Mutex::new(auto),
            saved: Mutex::new(began),
            own_askers: Mutex::default(),
            by_cors: Mutex::default(),
            referrers: Mutex::default(),
            lifetimes: Mutex::default(),
            scripts: Mutex::default(),
            image_accept: Mutex::default(),
            gone: Mutex::default(),
            cookie_urls: Mutex::default(),
            refusing_hosts: Mutex::default(),
            next_pages: Mutex::default(),
            useless_pushes: Mutex::default(),
            wasted_pushes: Mutex::new(UselessTable::of_waste()),
            asked_hosts: Mutex::default(),
            known_redirects: Mutex::default(),
            transfers: Mutex::default(),
            likely_budget: Mutex::default(),
            began,
            file,
            saved_at,
            unreadable: AtomicBool::new(unreadable),
            secret: RandomState::new(),
            users: Users::default(),
        })
    }

    /// Returns the file that the state is written to.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Returns true if the present file cannot be parsed. The next write renames and keeps it.
    pub fn begins_anew(&self) -> bool {
        self.unreadable.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Auto> {
        // A panic while the lock is held leaves counts that are at worst slightly off.
        self.auto.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of the user behind a session, as [`Users::number`] does.
    pub fn user(&self, session: u64, address: Option<IpAddr>) -> u64 {
        self.users.number(session, address)
    }

    /// Calls [`Auto::sending`] with the present time. `worth` tells when a push pays on this path,
    /// if that is known.
    pub fn sending(&self, exchange: &Exchange<'_>, worth: Option<Worth>) -> Vec<Candidate> {
        let now = moment::now().into_std() - self.began;
        let now = i64::try_from(now.as_millis()).unwrap_or(i64::MAX);
        let mut auto = self.lock();
        auto.set_worth(worth.unwrap_or(self.config.worth));
        auto.sending(&Exchange { now, ..*exchange })
    }

    /// Notes a request for a URL with this Referer. A style sheet of another origin requests its
    /// resources with itself as the Referer, not the page.
    pub fn note_asker(&self, url: &str, referer: &str) {
        let number = self.secret.hash_one(url);
        let mut own = self
            .own_askers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if !is_of_same_origin(url, referer) {
            own.remove(&number);
            return;
        }
        if own.len() >= OWN_ASKERS {
            own.clear();
        }
        own.insert(number);
    }

    /// Returns the origin that is the usual Referer of a URL, if it is the URL's own origin.
    pub fn own_asker(&self, url: &str) -> Option<String> {
        let own = self
            .own_askers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let (scheme, authority, _) =
            split(url).filter(|_| own.contains(&self.secret.hash_one(url)))?;
        Some(format!("{scheme}://{authority}/"))
    }

    /// Notes the lifetime of copies of a URL in a browser's cache.
    pub fn note_lifetime(&self, url: &str, lifetime: CopyLifetime) {
        self.note_copies(url, Some(lifetime));
    }

    /// Notes whether a browser's cache can keep the response of a URL, if the lifetime of copies is
    /// unknown.
    pub fn note_kept(&self, url: &str, is_kept: bool) {
        if is_kept {
            self.lifetimes().remove(&self.secret.hash_one(url));
        } else {
            self.note_copies(url, None);
        }
    }

    /// Notes the copies of a URL. A table that is full starts again.
    fn note_copies(&self, url: &str, lifetime: Option<CopyLifetime>) {
        let number = self.secret.hash_one(url);
        let mut lifetimes = self.lifetimes();
        if lifetimes.len() >= LIFETIMES {
            lifetimes.clear();
        }
        lifetimes.insert(number, lifetime);
    }

    fn lifetimes(&self) -> MutexGuard<'_, IdMap<u64, Option<CopyLifetime>>> {
        self.lifetimes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the noted lifetime of copies of a URL.
    pub fn lifetime(&self, url: &str) -> Option<CopyLifetime> {
        let lifetimes = self.lifetimes();
        lifetimes.get(&self.secret.hash_one(url)).copied().flatten()
    }

    /// Returns whether no cache could keep the last response of a URL.
    pub fn is_unkept(&self, url: &str) -> bool {
        self.lifetimes().get(&self.secret.hash_one(url)) == Some(&None)
    }

    /// Notes the fields of a user's request for a URL with data.
    pub fn note_data_fields(&self, url: &str, user: u64, request: &RequestHead) {
        let number = self.secret.hash_one(url);
        self.scripts().note(number, user, request);
    }

    /// Notes whether a request that the document at a URL has caused came from an opaque origin.
    pub fn note_sandbox(&self, frame: &str, user: u64, is_sandboxed: bool) {
        let number = self.secret.hash_one(frame);
        self.scripts().note_sandbox(number, user, is_sandboxed);
    }

    /// Returns the way in which pages request a URL with data. Fields that scripts choose count
    /// once enough users have sent them.
    pub fn data_fields(&self, url: &str) -> DataFields {
        let number = self.secret.hash_one(url);
        self.scripts().data_fields(number, self.config.min_users)
    }

    /// Returns whether pages request a URL with data from its origin, whatever a cache holds.
    pub fn is_validated(&self, url: &str) -> bool {
        self.scripts().is_validated(self.secret.hash_one(url))
    }

    fn scripts(&self) -> MutexGuard<'_, ScriptTable> {
        self.scripts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a user's visit to a document without credentials, and the page whose link led to it.
    pub fn note_visit(&self, document: &str, from: Option<&str>, user: u64) {
        let mut next_pages = self.next_table();
        if let Some(from) = from {
            next_pages.note_next(self.secret.hash_one(from), document, user);
        }
        next_pages.note_visit(self.secret.hash_one(document));
    }

    /// Returns the documents that follow a page often enough for a push. Enough users must have
    /// followed them. `worth` is that of [`Self::sending`].
    pub fn next_pages(&self, page: &str, worth: Option<Worth>) -> Vec<NextPage> {
        let number = self.secret.hash_one(page);
        let mut next = self.next_table().of(number, self.config.min_users);
        let least = worth.unwrap_or(self.config.worth).threshold(DOCUMENT_SIZE);
        next.retain(|document| document.probability > least);
        next
    }

    fn next_table(&self) -> MutexGuard<'_, NextTable> {
        let next_pages = self.next_pages.lock();
        next_pages.unwrap_or_else(PoisonError::into_inner)
    }

    /// See [`Auto::resources`].
    pub fn resources(&self, page: &str) -> Vec<Candidate> {
        self.lock().resources(page)
    }

    /// See [`Auto::possible`].
    pub fn possible(&self, page: &str) -> Vec<Candidate> {
        self.lock().possible(page)
    }

    /// See [`Auto::body_sent`].
    pub fn body_sent(&self, url: &str, size: u64) {
        self.lock().body_sent(url, size);
    }

    /// See [`Auto::push_used`].
    pub fn used(&self, session: u64, page: &str, url: &str) {
        self.lock().push_used(session, page, url);
    }

    /// See [`Auto::push_answered`].
    pub fn push_answered(&self, url: &str, content_type: &str) {
        self.lock().push_answered(url, content_type);
    }

    /// See [`Auto::push_confirmed`].
    pub fn confirmed(&self, session: u64, page: &str, url: &str) {
        self.lock().push_confirmed(session, page, url);
    }

    /// See [`Auto::push_cancelled`].
    pub fn cancelled(&self, session: u64, url: &str) {
        self.lock().push_cancelled(session, url);
    }

    /// See [`Auto::session_closed`].
    pub fn session_closed(&self, session: u64) {
        self.lock().session_closed(session);
    }

    /// Returns the time at which the state that was read had been written.
    pub const fn saved_at(&self) -> Option<SystemTime> {
        self.saved_at
    }

    /// Begins to count gains and users for other gateways with this key.
    pub fn share(&self, key: &FleetKey, own: GatewayId) {
        self.users.share(key.of_users(), own);
        let auto = &mut self.lock();
        auto.count_gains();
        auto.report_users();
    }

    /// Takes at most `limit` counted users that other gateways have not heard of.
    pub fn take_users(&self, limit: usize) -> Vec<Sighting> {
        let mut users = Vec::new();
        while users.len() < limit {
            let most = NAMES_AT_ONCE.min(limit - users.len());
            let taken = self.lock().take_users(most);
            if taken.is_empty() {
                break;
            }
            let sighting = |(name, tag)| Sighting { name, tag };
            users.extend(taken.into_iter().map(sighting));
            std::thread::yield_now();
        }
        users
    }

    /// Counts users of other gateways.
    pub fn note_users(&self, users: &[Sighting]) {
        for users in users.chunks(USERS_AT_ONCE) {
            let auto = &mut self.lock();
            for Sighting { name, tag } in users {
                auto.note_user(name, *tag);
            }
            // A request that waits for the lock gets it.
            std::thread::yield_now();
        }
    }

    /// See [`Auto::due_gains`].
    pub fn due_gains(&self) -> Gathering {
        self.lock().due_gains()
    }

    /// Takes gains of about `limit` bytes of the contexts that are due.
    pub fn take_gains(&self, gathering: &mut Gathering, limit: usize) -> Option<Gains> {
        let gather = |gathering: &mut Gathering| {
            let auto = &mut self.lock();
            auto.gather_gains(gathering, limit, PAGES_AT_ONCE)
        };
        while !gather(gathering) {
            // A request that waits for the lock gets it.
            std::thread::yield_now();
        }
        gathering.take()
    }

    /// See [`Auto::merge_gains`].
    pub fn merge_gains(&self, gains: Gains) {
        for gains in gains.split(ASSETS_AT_ONCE) {
            self.lock().merge_gains(gains);
            // A request that waits for the lock gets it.
            std::thread::yield_now();
        }
    }

    /// See [`Auto::lost_gains`].
    pub fn lost_gains(&self) -> u64 {
        self.lock().lost_gains()
    }

    /// Writes the state file, if one is configured.
    pub fn save(&self) -> Result<(), LearnedError> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let mut saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        *saved = Instant::now();
        self.set_aside();
        let mut saving = self.lock().begin_save();
        while !self.lock().save_part(&mut saving, SAVED_AT_ONCE) {
            // A request that waits for the lock gets it.
            std::thread::yield_now();
        }
        let state = saving.finish();
        replace_private(file, &state).map_err(|error| LearnedError::File {
            file: file.display().to_string(),
            error,
        })
    }

    /// Writes the state file on another thread, if one is configured and the last write was long
    /// ago: a disk is slow.
    pub fn save_if_due(self: &Arc<Self>, now: Instant) {
        if !self.is_due(now) {
            return;
        }
        let this = Arc::clone(self);
        let saving = std::thread::Builder::new().spawn(move || {
            if let Err(error) = this.save() {
                tracing::error!(%error, "the predictor's state was not saved");
            }
        });
        if let Err(error) = saving {
            tracing::error!(%error, "the predictor's state was not saved");
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        let saved = match self.saved.try_lock() {
            Ok(saved) => saved,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        self.file.is_some() && now.saturating_duration_since(*saved) >= SAVE_EVERY
    }

    /// Renames a file that could not be parsed, so that a program that can parse it still may.
    fn set_aside(&self) {
        if let Some(file) = self
            .file
            .as_deref()
            .filter(|_| self.unreadable.swap(false, Ordering::Relaxed))
            && let Err(error) = std::fs::rename(file, beside(file, ".old"))
        {
            tracing::error!(%error, "the old state file was not kept");
        }
    }
}

fn is_of_same_origin(one: &str, other: &str) -> bool {
    let (Some(one), Some(other)) = (split(one), split(other)) else {
        return false;
    };
    (one.0, one.1) == (other.0, other.1)
}

/// The content of a state file.
enum Found {
    Nothing,
    /// A state, and the time at which the file was written.
    Learned(Box<Auto>, Option<SystemTime>),
    /// A state of another program version, or one that was written in part. It does not prevent the
    /// start.
    Unreadable,
}

fn read(file: &Path, config: &AutoConfig) -> Result<Found, LearnedError> {
    let name = || file.display().to_string();
    let folder = file
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let opened = std::fs::File::open(file);
    match opened.and_then(|file| tandem_predict::read_state(file, config)) {
        Ok(bytes) => match Auto::load(&bytes, config.clone()) {
            Ok(auto) => {
                let metadata = std::fs::metadata(file);
                let saved_at = metadata.and_then(|metadata| metadata.modified());
                Ok(Found::Learned(Box::new(auto), saved_at.ok()))
            }
            Err(error @ StateError::Foreign) => Err(LearnedError::State {
                file: name(),
                error,
            }),
            Err(StateError::Version(_) | StateError::Damaged) => Ok(Found::Unreadable),
        },
        Err(error)
            if error.kind() == std::io::ErrorKind::NotFound && folder.is_none_or(Path::is_dir) =>
        {
            Ok(Found::Nothing)
        }
        Err(error) => Err(LearnedError::File {
            file: name(),
            error,
        }),
    }
}

#[cfg(test)]
mod tests;

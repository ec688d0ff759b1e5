//! The knowledge that the gateways of one operator share through Valkey or Redis.
//!
//! A thread of the process talks to the engine. Requests never wait for it: they only change
//! counts in memory, and the thread takes these counts, encrypts them and appends them to a log in
//! the engine. It reads the log and merges the records of other gateways. Without the engine, the
//! counts stay in bounded tables until it is back.
//!
//! Gateways share the gains of their predictors, and the users that they have counted for names
//! that few users know. With a shared cache they also lend each other small responses (`shelf`).
//! A request may ask for one, and waits for the answer at most two milliseconds (`lookups`).

mod address;
mod cursor;
mod engine;
mod log;
mod lookups;
mod shelf;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ring::rand::{SecureRandom as _, SystemRandom};
use tandem_fleet::{FleetKey, GatewayId};
use tokio::sync::oneshot;

pub use self::address::EngineAddress;
pub use self::log::{LOG_KEY, MAX_RECORDS};
pub use self::shelf::MAX_LENT;
use crate::journal::Problems;
use crate::learned::Learned;
use crate::metrics::{METRICS, Metric};
use crate::response_cache::ResponseCache;
use crate::response_cache::link::{Link, link};
use crate::users::Users;
use shelf::CachePlace;

/// The name of the fault of an engine that cannot be used.
const FAULT: &str = "fleet";

/// The configuration of a gateway that shares its knowledge.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetConfig {
    /// The address of the engine.
    pub engine: EngineAddress,
    /// The key of all gateways of the fleet.
    pub key: FleetKey,
    /// The bytes of responses that the engine may hold for this gateway; with 0, it shares none.
    pub memory: u64,
    /// The files that hold secrets.
    pub secret_files: Vec<PathBuf>,
}

/// The numbers of one gateway's exchange with the engine.
#[derive(Debug, Default)]
pub struct FleetCounts {
    /// Records appended to the log.
    pub sent: Metric,
    /// Records of other gateways that were accepted.
    pub received: Metric,
    /// Records that were ignored because they were forged, malformed, or outside their time.
    pub refused: Metric,
    /// Responses that this gateway has lent.
    pub lent: Metric,
    /// Records of other gateways with invalidated targets.
    pub invalidated: Metric,
    /// Connections to the engine that failed, or could not be opened.
    pub failures: Metric,
    /// The engine responds.
    is_up: AtomicBool,
}

impl FleetCounts {
    /// Returns true while the engine responds.
    pub fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Relaxed)
    }

    fn set_up(&self, is_up: bool) {
        self.is_up.store(is_up, Ordering::Relaxed);
        METRICS.fleet_engine_up.set(u64::from(is_up));
    }

    fn sent(&self) {
        self.sent.add(1);
        METRICS.fleet_records_sent.add(1);
    }

    fn received(&self) {
        self.received.add(1);
        METRICS.fleet_records_received.add(1);
    }

    fn refused(&self) {
        self.refused.add(1);
        METRICS.fleet_records_refused.add(1);
    }

    fn lent(&self, responses: u64) {
        self.lent.add(responses);
        METRICS.fleet_responses_lent.add(responses);
    }

    fn failed(&self) {
        self.failures.add(1);
        METRICS.fleet_engine_failures.add(1);
    }
}

/// The thread that shares the knowledge of a process. It ends when this value is dropped.
#[derive(Debug)]
pub struct Fleet {
    counts: Arc<FleetCounts>,
    config: FleetConfig,
    cache: CachePlace,
    link: Arc<Link>,
    /// The scope of the cache that takes part.
    scope: Mutex<Option<Vec<u8>>>,
    /// Ends the thread when it is dropped.
    stop: Mutex<Option<oneshot::Sender<()>>>,
}

impl Fleet {
    /// Starts the thread. The engine need not be in reach: while it is not, `faults` tells it.
    ///
    /// # Errors
    /// Returns the error of the system if it has no thread or no random numbers.
    pub fn start(
        config: &FleetConfig,
        learned: Arc<Learned>,
        users: &Users,
        faults: &Arc<Problems>,
    ) -> std::io::Result<Self> {
        let (id, shelf_id) = (random()?, random()?);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        learned.share(&config.key, id);
        users.share(config.key.of_users(), id);
        let counts = Arc::new(FleetCounts::default());
        let (stop, stopped) = oneshot::channel::<()>();
        let (cache, (link, questions)) = (CachePlace::default(), link());
        let ids = (id, shelf_id);
        let watch = (Arc::clone(&counts), Arc::clone(faults));
        let log = log::Log::new(config, ids, learned, cache.clone(), watch);
        let faults = Arc::clone(faults);
        let (engine, key) = (config.engine.clone(), config.key.clone());
        let lookups = lookups::run(engine, key, cache.clone(), questions, Arc::clone(&counts));
        std::thread::Builder::new()
            .name("fleet".into())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::spawn(lookups);
                    tokio::select! {
                        _ = stopped => {}
                        () = log.run() => {}
                    }
                });
                faults.set(FAULT, None);
            })?;
        Ok(Self {
            counts,
            config: config.clone(),
            cache,
            link: Arc::new(link),
            scope: Mutex::default(),
            stop: Mutex::new(Some(stop)),
        })
    }

    /// Follows a reload: without a configuration, the thread ends. Other changes need a restart.
    pub fn reload(&self, config: Option<&FleetConfig>) {
        let mut stop = self.stop.lock().unwrap_or_else(PoisonError::into_inner);
        match config {
            None => {
                if stop.take().is_some() {
                    self.counts.set_up(false);
                    tracing::info!("the gateway no longer shares its knowledge");
                }
            }
            Some(config) if *config == self.config && stop.is_some() => {}
            Some(_) => tracing::warn!("changes of share and share-key need a restart"),
        }
    }

    /// Returns true if the cache of the process takes part with this scope.
    pub fn has_scope(&self, scope: &[u8]) -> bool {
        let current = self.scope.lock().unwrap_or_else(PoisonError::into_inner);
        current.as_deref() == Some(scope)
    }

    /// Makes the cache of the process take part, empty, if it is one that users share. Gateways
    /// with another `scope` share no responses with this one.
    pub fn attach(&self, cache: Option<Arc<ResponseCache>>, scope: &[u8]) {
        *self.scope.lock().unwrap_or_else(PoisonError::into_inner) = Some(scope.to_vec());
        let may_lend = |cache: &Arc<ResponseCache>| {
            self.config.memory > 0 && !self.is_stopped() && shelf::is_shared(cache)
        };
        let namer = cache.as_ref().filter(|cache| may_lend(cache));
        let namer = namer.map(|_| shelf::namer(&self.config.key, scope));
        if let Some(cache) = &cache {
            cache.join_fleet(namer.clone(), &self.link);
        }
        self.cache.set(cache.filter(|_| namer.is_some()));
    }

    /// Returns whether the thread was told to end.
    pub fn is_stopped(&self) -> bool {
        self.stop
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_none()
    }

    /// Returns the numbers of the exchange with the engine.
    pub const fn counts(&self) -> &Arc<FleetCounts> {
        &self.counts
    }
}

/// Returns the identifier of a run.
fn random() -> std::io::Result<GatewayId> {
    let mut id = [0; 16];
    SystemRandom::new()
        .fill(&mut id)
        .map_err(|_| std::io::Error::other("the system has no random numbers"))?;
    Ok(GatewayId(id))
}

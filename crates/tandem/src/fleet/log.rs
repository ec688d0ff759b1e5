//! The work of the fleet's thread: it reads the log of records, and appends those of this gateway.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tandem_fleet::inbox::LIFETIME;
use tandem_fleet::{
    Content, FleetKey, GatewayId, Heard, Inbox, NameHash, Refusal, Sealer, Sightings,
};
use tandem_predict::{Gains, Gathering};

use super::address::EngineAddress;
use super::cursor::Cursor;
use super::engine::{Engine, EngineError, LogEntry, RecordStream};
use super::shelf::{CachePlace, Shelf};
use super::{FAULT, FleetConfig, FleetCounts};
use crate::journal::Problems;
use crate::learned::Learned;
use crate::log_limit::LogLimit;
use crate::metrics::METRICS;
use crate::response_cache::ResponseCache;

/// The key of the engine's stream that holds the log.
pub const LOG_KEY: &str = "tandem:fleet:1";

/// The records that the log keeps at most, apart from up to a hundred more that the engine drops
/// later.
pub const MAX_RECORDS: usize = 4096;

/// The stream that holds the log.
static LOG: RecordStream = RecordStream {
    key: LOG_KEY,
    records: MAX_RECORDS,
    lifetime: LIFETIME,
};

/// The counted users that are taken from the predictor at once.
const COUNTED: usize = 2048;

/// The bytes of the content of a record, about.
const RECORD_BYTES: usize = 48 * 1024;

/// The time between two looks at the log.
const TICK: Duration = Duration::from_secs(1);

/// The records that are appended, and the batches that are read, at one look.
const APPENDS: usize = 8;
const READS: usize = 64;

/// The pauses before a new connection: the first, and the longest.
pub(super) const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

static REFUSED_LINES: LogLimit = LogLimit::new();
static EXPIRY_LINES: LogLimit = LogLimit::new();

/// The state of a gateway's exchange with the log, which outlives connections.
pub(super) struct Log {
    address: EngineAddress,
    learned: Arc<Learned>,
    counts: Arc<FleetCounts>,
    faults: Arc<Problems>,
    inbox: Inbox,
    sealer: Sealer,
    sightings: Sightings,
    /// The pages whose gains are due, found by one look at all pages.
    gathering: Gathering,
    cursor: Cursor,
    cache: CachePlace,
    shelf: Shelf,
    /// A record that the engine has not confirmed. It may be in the log already; the others accept
    /// it once.
    unconfirmed: Option<Vec<u8>>,
}

impl Log {
    pub(super) fn new(
        config: &FleetConfig,
        (id, shelf_id): (GatewayId, GatewayId),
        learned: Arc<Learned>,
        cache: CachePlace,
        (counts, faults): (Arc<FleetCounts>, Arc<Problems>),
    ) -> Self {
        let key: FleetKey = config.key.clone();
        let sealer = Sealer::new(&key, id);
        // The time of the file may be wrong, and must not exclude new records.
        let since = learned.saved_at().map_or(0, seconds).min(now());
        let shelf = Shelf::new(
            &key,
            shelf_id,
            config.memory,
            cache.clone(),
            Arc::clone(&counts),
        );
        Self {
            address: config.engine.clone(),
            sightings: Sightings::new(key.of_names()),
            gathering: Gathering::default(),
            inbox: Inbox::new(key, id, since),
            sealer,
            learned,
            counts,
            faults,
            cursor: Cursor::new(&LOG),
            cache,
            shelf,
            unconfirmed: None,
        }
    }

    /// Shares knowledge for ever. After a failure of the engine it connects again.
    pub(super) async fn run(mut self) {
        let mut pause = PAUSES.0;
        loop {
            let Err(error) = self.connected().await;
            if self.counts.is_up() {
                pause = PAUSES.0;
            }
            self.counts.set_up(false);
            self.counts.failed();
            let fault = format!(
                "the engine of --share cannot be used ({error}): the gateway shares nothing with \
                 the others of its fleet until the engine is back"
            );
            self.faults.set(FAULT, Some(&fault));
            let seconds = pause.as_secs();
            tracing::warn!(%error, seconds, "the engine of --share cannot be used; trying again");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Uses one connection until it fails.
    async fn connected(&mut self) -> Result<std::convert::Infallible, EngineError> {
        let mut engine = Engine::connect(&self.address).await?;
        let sealer = &mut self.sealer;
        let mark = || sealer.seal(now(), &Content::Users(vec![])).ok();
        self.cursor.resume(&mut engine, mark).await?;
        self.shelf.resume(&mut engine).await?;
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.append(&mut engine).await?;
            self.read(&mut engine).await?;
            self.shelf.exchange(&mut engine).await?;
            if !self.counts.is_up() {
                self.counts.set_up(true);
                self.faults.set(FAULT, None);
                tracing::info!("the engine of --share is in use");
            }
            METRICS
                .fleet_gateways
                .set(self.inbox.gateways(now()) as u64);
            METRICS.fleet_gains_lost.set(self.learned.lost_gains());
        }
    }

    /// Reads the new entries of the log.
    async fn read(&mut self, engine: &mut Engine) -> Result<(), EngineError> {
        for _ in 0..READS {
            let (entries, is_last) = self.cursor.read(engine).await?;
            for entry in entries {
                self.take(entry);
            }
            if is_last {
                break;
            }
        }
        Ok(())
    }

    /// Uses one entry, if its record is of another gateway and new.
    fn take(&mut self, (_, record): LogEntry) {
        let content = match self
            .inbox
            .accept(now(), record.as_deref().unwrap_or_default())
        {
            Ok(content) => content,
            Err(refusal) => return self.refuse(refusal),
        };
        match content {
            Content::Gains(bytes) => match Gains::read(&bytes) {
                Ok(gains) => self.learned.merge_gains(gains),
                Err(_) => return self.refuse(Refusal::Malformed),
            },
            Content::Users(reports) => match self.sightings.heard(now(), &reports) {
                Some(heard) => self.note_users(&heard),
                None => return self.refuse(Refusal::Malformed),
            },
            Content::Invalidated(_) | Content::Unknown(_) => return self.refuse(Refusal::Unknown),
        }
        self.counts.received();
    }

    /// Counts the users of another gateway, for the predictor and for the cache.
    fn note_users(&self, heard: &Heard) {
        self.learned.note_users(&heard.known);
        if let Some(cache) = self.cache.get() {
            note_in(&cache, &heard.others);
        }
    }

    /// Ignores a record, and reports it unless the log may well hold it.
    fn refuse(&self, refusal: Refusal) {
        let problem = match refusal {
            Refusal::Own | Refusal::Repeated | Refusal::Expired => return,
            Refusal::Clock => "it is from the future: set the clocks of all gateways",
            Refusal::Foreign => "it is no record of this version",
            Refusal::Forged => "it was changed, or its gateway has another --share-key",
            Refusal::Malformed => "its content is malformed",
            Refusal::Unknown => "only a later version of this program can read it",
        };
        self.counts.refused();
        if let Some(held_back) = REFUSED_LINES.admit() {
            tracing::warn!(held_back, "a record of the fleet was ignored: {problem}");
        }
    }

    /// Appends the counted users and the gains of this gateway.
    async fn append(&mut self, engine: &mut Engine) -> Result<(), EngineError> {
        if self.gathering.is_done() {
            self.gathering = self.learned.due_gains();
        }
        for _ in 0..APPENDS {
            if self.unconfirmed.is_none() {
                self.unconfirmed = self.next_record();
            }
            let Some(record) = &self.unconfirmed else {
                return Ok(());
            };
            let (time, _) = engine.append(&LOG, record).await?;
            self.unconfirmed = None;
            self.counts.sent();
            match engine.expire(&LOG, time).await {
                Err(EngineError::Command(error)) => {
                    if let Some(held_back) = EXPIRY_LINES.admit() {
                        tracing::warn!(%error, held_back, "the fleet's log keeps old records");
                    }
                }
                result => result?,
            }
        }
        Ok(())
    }

    fn next_record(&mut self) -> Option<Vec<u8>> {
        let content = match self.next_reports() {
            Some(reports) => Content::Users(reports),
            None => {
                let gains = self.learned.take_gains(&mut self.gathering, RECORD_BYTES)?;
                Content::Gains(gains.write())
            }
        };
        let sealed = self.sealer.seal(now(), &content);
        if let Err(error) = &sealed {
            tracing::error!(%error, "learned statistics were not shared");
        }
        sealed.ok()
    }

    /// Returns reports of the users that this gateway has counted, and counts those of other
    /// gateways for the same names.
    fn next_reports(&mut self) -> Option<Vec<u8>> {
        if self.sightings.waiting() < RECORD_BYTES {
            let counted = self.learned.take_users(COUNTED);
            let now = now();
            let saw = |sighting| self.sightings.saw(now, sighting);
            let others: Vec<_> = counted.into_iter().flat_map(saw).collect();
            self.learned.note_users(&others);
            if let Some(cache) = self.cache.get() {
                let counted = cache.lock().take_users(COUNTED);
                let saw = |(name, tag)| {
                    let tags = self.sightings.saw_hash(name, tag).into_iter();
                    tags.map(move |tag| (name, tag))
                };
                let others: Vec<_> = counted.into_iter().flat_map(saw).collect();
                note_in(&cache, &others);
            }
        }
        self.sightings.take_reports(RECORD_BYTES)
    }
}

/// Counts users in a cache. Requests wait for its lock.
fn note_in(cache: &ResponseCache, users: &[(NameHash, u16)]) {
    for users in users.chunks(64) {
        cache.lock().note_users(users);
    }
}

/// Returns the present time in seconds since 1970.
pub(super) fn now() -> u64 {
    seconds(SystemTime::now())
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs())
}

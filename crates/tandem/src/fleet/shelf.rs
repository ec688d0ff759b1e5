//! The responses that the gateways lend to each other, and the invalidations of responses.
//!
//! A gateway puts a small response into the engine once enough users know it. Another gateway that
//! misses it looks there (`lookups`). An unsafe request removes the response from the engine, and a
//! record in a second stream tells the other gateways.

use std::sync::{Arc, Mutex, PoisonError};

use tandem_cache::Namer;
use tandem_fleet::{
    Content, FleetKey, GatewayId, Inbox, Keeper, LentResponses, NameHash, Refusal, ResponseSealer,
    Sealer,
};

use tokio::sync::Notify;

use super::cursor::Cursor;
use super::engine::{Engine, EngineError, Lent, RecordStream};
use super::{FleetCounts, log};
use crate::log_limit::LogLimit;
use crate::metrics::METRICS;
use crate::response_cache::ResponseCache;

/// The stream of invalidations. A gateway that is away for longer keeps its responses until the end
/// of their lifetimes.
static INVALIDATIONS: RecordStream = RecordStream {
    key: "tandem:fleet:1:i",
    records: 1 << 14,
    lifetime: 600,
};

/// The longest time for which the engine keeps a response, in seconds.
pub const MAX_LENT: u64 = 3600;

/// The bytes of responses that are lent at one look, about.
const LENT_BYTES: u64 = 1 << 20;

/// The invalidated targets in one record.
const TARGETS: usize = 4096;

/// The batches of invalidations that are read at one look.
const READS: usize = 64;

/// The difference between the clocks of a gateway and of the engine up to which it shares
/// responses, in seconds.
const CLOCK_SKEW: u64 = 2;

static LENDING_LINES: LogLimit = LogLimit::new();

/// The cache of the process while it takes part, which a reload may replace.
#[derive(Clone, Debug, Default)]
pub(super) struct CachePlace {
    cache: Arc<Mutex<Option<Arc<ResponseCache>>>>,
    changed: Arc<Notify>,
}

impl CachePlace {
    pub(super) fn get(&self) -> Option<Arc<ResponseCache>> {
        self.cache
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Waits for a cache. Only one task may wait.
    pub(super) async fn filled(&self) {
        while self.get().is_none() {
            self.changed.notified().await;
        }
    }

    pub(super) fn set(&self, cache: Option<Arc<ResponseCache>>) {
        *self.cache.lock().unwrap_or_else(PoisonError::into_inner) = cache;
        self.changed.notify_one();
    }
}

/// Returns the names of a fleet for the targets of a cache. Gateways with another `scope` have
/// others.
pub(super) fn namer(key: &FleetKey, scope: &[u8]) -> Namer {
    let (key, scope) = (key.of_targets(), scope.to_vec());
    Namer::new(move |target| key.name(&scope, target))
}

/// Returns true if the responses of a cache may be lent.
pub(super) fn is_shared(cache: &ResponseCache) -> bool {
    !cache.config().sharing.is_private()
}

/// The responses and invalidations of a gateway.
pub(super) struct Shelf {
    cache: CachePlace,
    counts: Arc<FleetCounts>,
    responses: ResponseSealer,
    lent_responses: LentResponses,
    invalidations: Sealer,
    inbox: Inbox,
    cursor: Cursor,
    /// Invalidated targets that the engine has not confirmed.
    unconfirmed: Vec<NameHash>,
    /// The clocks of the gateway and of the engine agree, so the ages of responses are right.
    has_clock: bool,
}

impl Shelf {
    /// Creates the shelf of a run, which has the identifier `own` in the stream of invalidations.
    pub(super) fn new(
        key: &FleetKey,
        own: GatewayId,
        memory: u64,
        cache: CachePlace,
        counts: Arc<FleetCounts>,
    ) -> Self {
        Self {
            cache,
            counts,
            responses: ResponseSealer::new(Keeper::Engine, key, own),
            lent_responses: LentResponses::new(memory),
            invalidations: Sealer::new(key, own),
            inbox: Inbox::new(key.clone(), own, 0),
            cursor: Cursor::new(&INVALIDATIONS),
            unconfirmed: Vec::new(),
            has_clock: false,
        }
    }

    /// Prepares for a new connection.
    pub(super) async fn resume(&mut self, engine: &mut Engine) -> Result<(), EngineError> {
        let before = log::now();
        let engine_time = engine.time().await? / 1000;
        self.has_clock =
            engine_time + CLOCK_SKEW >= before && engine_time <= log::now() + CLOCK_SKEW;
        if !self.has_clock {
            tracing::warn!(
                "the clocks of this gateway and of the engine differ by over {CLOCK_SKEW} s, so \
                 the fleet shares no responses: set the clocks and restart the gateway"
            );
        }
        if self.cache.get().is_none() {
            return Ok(());
        }
        let sealer = &mut self.invalidations;
        let mark = || sealer.seal(log::now(), &Content::Invalidated(vec![])).ok();
        self.cursor.resume(engine, mark).await
    }

    /// Exchanges invalidations with the engine, and lends responses. A command that the engine
    /// refuses, such as one that its rights lack, does not end the connection.
    pub(super) async fn exchange(&mut self, engine: &mut Engine) -> Result<(), EngineError> {
        let Some(cache) = self.cache.get() else {
            return Ok(());
        };
        match self.use_engine(engine, &cache).await {
            Err(EngineError::Command(error)) if !error.is_unrecoverable_error() => {
                if let Some(held_back) = LENDING_LINES.admit() {
                    tracing::warn!(%error, held_back, "the fleet cannot share responses");
                }
                Ok(())
            }
            result => result,
        }
    }

    async fn use_engine(
        &mut self,
        engine: &mut Engine,
        cache: &ResponseCache,
    ) -> Result<(), EngineError> {
        self.tell(engine, cache).await?;
        let now = cache.now();
        self.hear(engine, cache).await?;
        if !self.has_clock {
            return Ok(());
        }
        cache.lock().note_heard(now);
        self.lend(engine, cache).await
    }

    /// Tells the other gateways which targets this one has invalidated.
    async fn tell(
        &mut self,
        engine: &mut Engine,
        cache: &ResponseCache,
    ) -> Result<(), EngineError> {
        if self.unconfirmed.is_empty() {
            self.unconfirmed = cache.lock().take_invalidated(TARGETS);
        }
        if self.unconfirmed.is_empty() {
            return Ok(());
        }
        for name in &self.unconfirmed {
            self.lent_responses.remove(name);
        }
        engine.remove(&self.unconfirmed).await?;
        let content = Content::Invalidated(self.unconfirmed.clone());
        if let Ok(record) = self.invalidations.seal(log::now(), &content) {
            let (time, _) = engine.append(&INVALIDATIONS, &record).await?;
            self.unconfirmed.clear();
            engine.expire(&INVALIDATIONS, time).await?;
        }
        let lost = cache.lock().lost_invalidations();
        METRICS.fleet_invalidations_lost.set(lost);
        Ok(())
    }

    /// Removes the responses that other gateways have invalidated.
    async fn hear(
        &mut self,
        engine: &mut Engine,
        cache: &ResponseCache,
    ) -> Result<(), EngineError> {
        for _ in 0..READS {
            let (entries, is_last) = self.cursor.read(engine).await?;
            for (_, record) in entries {
                let record = record.unwrap_or_default();
                match self.inbox.accept(log::now(), &record) {
                    Ok(Content::Invalidated(names)) => {
                        for names in names.chunks(64) {
                            cache.lock().hear_invalidated(cache.now(), names);
                        }
                        // This gateway may have lent a response after the other one removed it.
                        let mut lent = names;
                        lent.retain(|name| self.lent_responses.remove(name));
                        if !lent.is_empty() {
                            engine.remove(&lent).await?;
                        }
                        self.counts.invalidated.add(1);
                    }
                    Err(Refusal::Own | Refusal::Repeated | Refusal::Expired) => {}
                    Ok(_) | Err(_) => self.counts.refused(),
                }
            }
            if is_last {
                break;
            }
        }
        Ok(())
    }

    /// Lends responses that enough users know and that the engine does not hold.
    async fn lend(
        &mut self,
        engine: &mut Engine,
        cache: &ResponseCache,
    ) -> Result<(), EngineError> {
        let due = cache.lock().take_due(cache.now(), LENT_BYTES);
        if due.is_empty() {
            return Ok(());
        }
        let names: Vec<_> = due.iter().map(|due| due.name).collect();
        let held = engine.has(&names).await?;
        let (mut lent, mut removed) = (Vec::<Lent>::new(), Vec::new());
        for due in due
            .iter()
            .zip(held)
            .filter_map(|(due, held)| (!held).then_some(due))
        {
            let content = due.write(cache.now());
            let Some(sealed) = content.and_then(|it| self.responses.seal(&due.name, &it)) else {
                continue;
            };
            let millis = due.remaining.as_millis().min(u128::from(MAX_LENT * 1000)) as u64;
            let end = log::now() + millis.div_ceil(1000);
            if let Some(old) = self
                .lent_responses
                .add(log::now(), due.name, sealed.len(), end)
            {
                // Some may be among those that are to be lent now.
                lent.retain(|lent| !old.contains(&lent.name));
                removed.extend(old);
                lent.push(Lent {
                    name: due.name,
                    sealed,
                    millis,
                });
            }
        }
        if !removed.is_empty() {
            engine.remove(&removed).await?;
        }
        if !lent.is_empty() {
            engine.lend(&lent).await?;
            self.counts.lent(lent.len() as u64);
        }
        METRICS.fleet_lent_bytes.set(self.lent_responses.bytes());
        Ok(())
    }
}

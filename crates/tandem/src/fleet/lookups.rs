//! The looks for responses that other gateways lend, on a connection of their own.
//!
//! A look waits behind no record. Requests wait for an answer for a moment only (`middle::cache`);
//! an answer that comes later is dropped.

use std::sync::Arc;

use bytes::Bytes;
use tandem_cache::Incoming;
use tandem_fleet::{FleetKey, Keeper, response};
use tokio::sync::Notify;

use super::FleetCounts;
use super::address::EngineAddress;
use super::engine::{Engine, EngineError, LookupHandle};
use super::log::PAUSES;
use super::shelf::CachePlace;
use crate::log_limit::LogLimit;
use crate::response_cache::link::{LookupQuestion, LookupQuestions};

static REFUSED_LINES: LogLimit = LogLimit::new();

/// Answers questions for ever, once there is a cache that asks.
pub(super) async fn run(
    address: EngineAddress,
    key: FleetKey,
    cache: CachePlace,
    mut questions: LookupQuestions,
    counts: Arc<FleetCounts>,
) {
    cache.filled().await;
    let mut pause = PAUSES.0;
    loop {
        if let Ok(engine) = Engine::connect(&address).await {
            pause = PAUSES.0;
            answer_all(&engine, &key, &mut questions, &counts).await;
        }
        questions.refuse();
        // The log's connection reports the failure.
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

/// Answers questions until the connection fails.
async fn answer_all(
    engine: &Engine,
    key: &FleetKey,
    questions: &mut LookupQuestions,
    counts: &Arc<FleetCounts>,
) {
    let (looks, failed) = (engine.looks(), Arc::new(Notify::new()));
    questions.accept();
    loop {
        let question = tokio::select! {
            question = questions.next() => question,
            () = failed.notified() => return,
        };
        let Some(question) = question else {
            return std::future::pending().await;
        };
        let (looks, key, failed) = (looks.clone(), key.clone(), Arc::clone(&failed));
        let counts = Arc::clone(counts);
        tokio::spawn(async move {
            if answer(looks, &key, question, &counts).await.is_err() {
                failed.notify_one();
            }
        });
    }
}

async fn answer(
    mut looks: LookupHandle,
    key: &FleetKey,
    question: LookupQuestion,
    counts: &FleetCounts,
) -> Result<(), EngineError> {
    match looks.look(&question.name).await {
        Ok(sealed) if sealed.is_empty() => {}
        Ok(sealed) => {
            let content = response::open(Keeper::Engine, key, &question.name, sealed);
            if let Some(incoming) = content.and_then(|it| Incoming::read(&Bytes::from(it))) {
                question.answer(incoming);
            }
        }
        // A missing right, or a key with a value of another kind, fails this look only.
        Err(EngineError::Command(error)) if !error.is_unrecoverable_error() => {
            if let Some(held_back) = REFUSED_LINES.admit() {
                counts.failed();
                tracing::warn!(%error, held_back, "the engine refused a look for a response");
            }
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

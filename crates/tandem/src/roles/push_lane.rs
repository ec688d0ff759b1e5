//! The stages of a lane before its sessions, which may push.
//!
//! ```text
//!  loads ─▶ preflights ─▶ pushed ─▶ continued ─▶ decompress ─▶ the sessions
//! ```

use std::rc::Rc;
use std::sync::Arc;

use tandem_push::client::StoreLimits;

use super::lanes::MAX_KEYS;
use crate::back::opened_origins::OpenedOrigins;
use crate::config::ClientConfig;
use crate::digest_file::SharedDigest;
use crate::journal::saving::LoadTimes;
use crate::middle::continued::Continue;
use crate::middle::continued::after_reload::AfterReload;
use crate::middle::decoding_memory::DecodingMemory;
use crate::middle::decompress::Decompress;
use crate::middle::loads::Loads;
use crate::middle::preflights::AnswerPreflights;
use crate::middle::pushed::{PushOptions, Pushed};
use crate::stage::{SessionPool, Stage};

/// The parts of a lane with pushes.
pub(super) struct PushLane<'a> {
    /// The sessions of the lane.
    pub(super) sessions: Rc<dyn SessionPool>,
    /// The way to the sessions, which restores coded bodies.
    pub(super) next: Rc<dyn Stage>,
    /// The end of the sessions.
    pub(super) end: SessionsEnd,
    /// The bytes of pushed responses that a session stores.
    pub(super) memory: usize,
    /// Gets the times of page loads.
    pub(super) times: Arc<LoadTimes>,
    /// The digest that a file keeps.
    pub(super) digest: Option<SharedDigest>,
    /// Tells which parts of isolation keys have ended.
    pub(super) on_end: Option<&'a OpenedOrigins>,
    /// The end of the configuration, for downloads that break off.
    pub(super) after_reload: AfterReload,
}

/// The place where the sessions of a lane end.
#[derive(Clone, Copy)]
pub(super) enum SessionsEnd {
    /// This process, which makes the promises itself.
    Here,
    /// A gateway.
    Gateway,
}

impl ClientConfig {
    /// Creates the stages before the sessions of a lane.
    pub(super) fn with_pushes(&self, lane: PushLane<'_>) -> Rc<dyn Stage> {
        let next = Rc::new(Continue {
            next: lane.next,
            after_reload: lane.after_reload,
        });
        let mut pushed = Pushed::new(
            self.push_options(lane.end, lane.memory),
            lane.sessions,
            next,
        );
        if let Some(digest) = lane.digest {
            pushed = pushed.with_digest(digest);
        }
        let pushed = Rc::new(pushed);
        if let Some(origins) = lane.on_end {
            let ending = Rc::downgrade(&pushed);
            origins.on_end(move |connection| {
                if let Some(pushed) = ending.upgrade() {
                    pushed.end_parts_of(connection);
                }
            });
        }
        let mut stage: Rc<dyn Stage> = pushed;
        if self.push {
            let keys = self.max_sessions.min(MAX_KEYS);
            let preflights = Rc::new(AnswerPreflights::new(keys, stage));
            if let Some(origins) = lane.on_end {
                let ending = Rc::downgrade(&preflights);
                origins.on_end(move |connection| {
                    if let Some(preflights) = ending.upgrade() {
                        preflights.end_parts_of(connection);
                    }
                });
            }
            stage = preflights;
        }
        Rc::new(Loads::new(lane.times, stage))
    }

    /// Decodes the bodies of sessions with a gateway.
    pub(super) fn decompressing(
        &self,
        coding: &DecodingMemory,
        next: Rc<dyn Stage>,
    ) -> Rc<dyn Stage> {
        if !self.compress.is_on() {
            return next;
        }
        let recoding = self.compress.permits_recoding();
        Rc::new(Decompress::new(coding.clone(), recoding, next))
    }

    fn push_options(&self, end: SessionsEnd, memory: usize) -> PushOptions {
        let is_local = matches!(end, SessionsEnd::Here);
        PushOptions {
            store: StoreLimits {
                memory: if self.push { memory } else { 0 },
                // A cancelled push tells a gateway elsewhere which resources the browser has.
                cancel_useless: is_local || self.cancel_pushes,
            },
            early_hints: self.early_hints,
            cache_status: self.cache_status,
            digest: self.push_digest,
            next: self.push_next,
            is_gateway_local: is_local,
            max_keys: self.max_sessions.min(MAX_KEYS),
        }
    }
}

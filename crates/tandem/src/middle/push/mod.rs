//! The stage that pushes: it moves data between exchanges and the state machine of
//! [`tandem_push::gateway`], which decides.
//!
//! ```text
//!  Exchange ─▶ Push::call ─▶ reply ──────────▶ next ─▶ origin
//!                 │            │ events ▼  ▲ decisions
//!                 │          session: tandem_push::gateway::Gateway
//!                 │            ▲ reports      ▲ events
//!                 └─▶ companion               fetch ─▶ next ─▶ origin
//! ```
//!
//! `session` owns the machine, its timer and the wakers of all replies. `promising_reply`, `fetch`
//! and `companion` are the three kinds of replies: to a request, of a push, and to the client's
//! companion. `fetched_response` is the response that a fetch reads. `changing` is the reply to a
//! request that may change resources, and `learning_reply` the one to a client that takes no
//! pushes. `predictor` is the predictor as one session uses it. Fetches take the same pipeline as
//! requests, so the same limits and policy hold.

mod changing;
mod companion;
mod fetch;
mod fetched_response;
mod learning_reply;
mod predictor;
mod promising_reply;
mod session;

use std::rc::Rc;
use std::sync::Arc;

use tandem_http::Method;
use tandem_http::cache::is_safe;
use tandem_push::gateway::{Audience, Visits};
use tandem_push::wire::is_companion;

use crate::exchange::{Exchange, Isolation, Peer, Reply};
use crate::learned::Learned;
use crate::path::Facts;
use crate::stage::{Stage, refuse_reserved};
use changing::Changing;
use companion::Companion;
use learning_reply::LearningReply;
use promising_reply::PromisingReply;
use session::PushSession;

/// The settings of push at a gateway.
#[derive(Clone, Debug, Default)]
pub struct Pushing {
    /// The predictor. Without it, only resources that a page names are pushed.
    pub learned: Option<Arc<Learned>>,
    /// Makes the session's path, if it can be measured, decide which pushes pay.
    pub by_path: bool,
    /// The share of pages for which nothing is pushed, so that the benefit can be measured: 0 to 1.
    pub hold_out: f64,
    /// The largest number of resources for a page that are pushed because strings of its scripts
    /// name them.
    pub named_by_scripts: usize,
    /// Limits pushes to the page's own origin, because the gateway serves no other origin.
    pub own_origin_only: bool,
    /// The limits of early requests, if this stage makes them in the user's process. Nothing of
    /// another site is then requested before the browser's own request to its host.
    pub early: Option<EarlyLimits>,
    /// The visits that the sessions of one user share, because they outlive each session.
    pub visits: Option<Visits>,
}

impl Pushing {
    /// Returns the users of each session.
    fn audience(&self) -> Audience {
        match self.early {
            None => Audience::Shared,
            Some(limits) if limits.own_requests_only => Audience::OwnRequestsOnly,
            Some(_) => Audience::OneUser,
        }
    }
}

/// The limits of early requests in the user's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EarlyLimits {
    /// The largest number of hosts that a page may name.
    pub hosts: usize,
    /// The largest number of requests under way.
    pub requests: usize,
    /// The largest number of requests under way before the first responses. Each response adds two.
    pub first_requests: usize,
    /// True if only the requests are made that the browser itself has made for the page before.
    pub own_requests_only: bool,
    /// True if the browser's cache was empty when the session began.
    pub caches_are_new: bool,
}

impl EarlyLimits {
    /// The limits without a gateway. Pages with more hosts gain nothing over HTTP/1.1. The stage
    /// before the origins allows fewer requests.
    pub const SOLO: Self = Self {
        hosts: 2,
        requests: 128,
        // As many as six connections with two requests each.
        first_requests: 12,
        own_requests_only: false,
        caches_are_new: false,
    };

    /// The limits for HTTPS that the client opens. One connection of HTTP/2 leads to each host.
    pub const OPENED: Self = Self {
        hosts: usize::MAX,
        requests: 64,
        first_requests: 64,
        own_requests_only: false,
        caches_are_new: false,
    };
}

/// The stage of one session.
pub struct Push {
    session: Rc<PushSession>,
    /// True if responses teach the predictor, even if the client takes no pushes.
    learns: bool,
}

impl Push {
    /// Creates the stage for the session of `peer` on `path`, if it has one.
    pub fn new(
        pushing: &Rc<Pushing>,
        path: Option<&Rc<dyn Facts>>,
        peer: Peer,
        next: Rc<dyn Stage>,
    ) -> Self {
        Self {
            learns: pushing.learned.is_some(),
            session: PushSession::new(pushing, path, peer, next),
        }
    }
}

impl Drop for Push {
    fn drop(&mut self) {
        self.session.close();
    }
}

impl Stage for Push {
    fn call(&self, exchange: Exchange) -> Reply {
        if is_companion(&exchange.request) {
            return Companion::answer(&self.session, exchange);
        }
        if let Some(refusal) = refuse_reserved(&exchange.request) {
            return refusal;
        }
        if !is_safe(&exchange.request.method) && !exchange.request.is_connect() {
            return Changing::reply(&self.session, exchange);
        }
        let watches = exchange.peer.push || self.learns;
        if !watches || exchange.request.method != Method::Get {
            return self.session.next().call(exchange);
        }
        if !exchange.peer.push && self.session.only_learns_from(&exchange.request) {
            return LearningReply::start(&self.session, exchange);
        }
        PromisingReply::start(&self.session, exchange)
    }
}

/// The stage of a session without pushes. The session has no companion, and this stage answers a
/// request for one.
pub struct NoPush {
    /// The stage that exchanges go on to.
    pub next: Rc<dyn Stage>,
}

impl Stage for NoPush {
    fn call(&self, exchange: Exchange) -> Reply {
        if let Some(refusal) = refuse_reserved(&exchange.request) {
            return refusal;
        }
        self.next.call(exchange)
    }
}

/// The properties of an exchange that its pushes share.
#[derive(Clone)]
struct ExchangeContext {
    isolation: Isolation,
    peer: Peer,
}

impl ExchangeContext {
    fn of(exchange: &Exchange) -> Self {
        Self {
            isolation: exchange.isolation.clone(),
            peer: exchange.peer,
        }
    }
}

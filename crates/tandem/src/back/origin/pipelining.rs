//! The connections of a client without a gateway, whose requests may be pipelined (RFC 9112 section
//! 9.3.2).
//!
//! ```text
//!   exchange ─▶ idle connection? ─▶ connection with few requests? ─▶ room for a dial? ─▶ wait
//!                    leads                   follows                     leads
//! ```
//!
//! On a long path a request waits for the round trip of the one before it. A second request on the
//! same connection saves that wait, and the origin sees no more connections than a browser opens.
//! Another stage limits the exchanges (`back::polite`), and tells the limit of connections.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use tandem_http::Scheme;
use tokio::sync::Notify;

use super::binding::Bound;
use super::permit::{Permit, all_in_use};
use super::{IDLE_FOR, Idle, Origin, PoolKey};
use crate::back::growth::FLOOR;
use crate::error::Error;
use crate::exchange::{Exchange, Sink};
use crate::metrics::METRICS;
use crate::path::Path;
use crate::session::SessionState as _;
use crate::session::http1::{ConnectionFate, DEPTH, Http1Client, Traits, is_pipelinable};
use crate::transport::Target;

/// The number of connections with pipelined requests that may end together, among more than six.
/// A server may count them as connections in use for a round trip after their ends.
const SCOUTS: usize = 2;

/// The largest number of origins whose state is kept.
const MAX_ORIGINS: usize = 1024;

/// The present limits of a session's connections to one origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// The limit of connections.
    pub most: usize,
    /// True if a new connection carries its first request at once, so that a dial costs no round
    /// trip.
    pub dials_are_free: bool,
    /// The number of connections that a page may open for its resources, its own included.
    pub ahead: usize,
}

/// Returns the present limits of a session's connections to one origin.
pub type LimitsOfOrigin = Box<dyn Fn(u64, &(Scheme, Target)) -> ConnectionLimits>;

/// The connections with requests under way.
#[derive(Default)]
pub(super) struct Pipelines(RefCell<HashMap<PoolKey, Rc<Pipeline>>>);

#[derive(Default)]
pub(super) struct Pipeline {
    traits: Traits,
    connections: RefCell<Connections>,
    /// The largest number of connections in use at once, since a page began with a dial.
    most_used: Cell<usize>,
    has_had_page: Cell<bool>,
    /// Wakes an exchange that waits for a connection.
    changed: Notify,
}

#[derive(Default)]
struct Connections {
    in_use: Vec<Rc<Http1Client>>,
    dials: usize,
}

impl Pipelines {
    /// Returns the state of an origin.
    fn of(&self, key: &PoolKey) -> Rc<Pipeline> {
        let mut known = self.0.borrow_mut();
        if let Some(pipeline) = known.get(key) {
            return Rc::clone(pipeline);
        }
        if known.len() >= MAX_ORIGINS {
            known.retain(|_, pipeline| Rc::strong_count(pipeline) > 1);
        }
        Rc::clone(known.entry(key.clone()).or_default())
    }

    /// Forgets the origins of a session.
    pub(super) fn end_session(&self, session: u64) {
        self.0.borrow_mut().retain(|key, _| key.session != session);
    }

    /// Wakes an exchange that waits for a connection to an origin.
    pub(super) fn wake(&self, key: &PoolKey) {
        if let Some(pipeline) = self.0.borrow().get(key) {
            pipeline.changed.notify_one();
        }
    }
}

/// A dial under way.
struct Dial(Rc<Pipeline>);

impl Dial {
    fn new(pipeline: &Rc<Pipeline>) -> Self {
        pipeline.connections.borrow_mut().dials += 1;
        pipeline.note_use();
        Self(Rc::clone(pipeline))
    }
}

impl Drop for Dial {
    fn drop(&mut self) {
        self.0.connections.borrow_mut().dials -= 1;
        self.0.changed.notify_one();
    }
}

/// The use of a connection by an exchange.
struct Use<'a> {
    origin: &'a Origin,
    key: &'a PoolKey,
    pipeline: &'a Pipeline,
    connection: Rc<Http1Client>,
}

impl<'a> Use<'a> {
    fn new(
        origin: &'a Origin,
        key: &'a PoolKey,
        pipeline: &'a Pipeline,
        connection: Rc<Http1Client>,
    ) -> Self {
        let mut connections = pipeline.connections.borrow_mut();
        let is_listed = |listed: &Rc<Http1Client>| Rc::ptr_eq(listed, &connection);
        if !connections.in_use.iter().any(is_listed) {
            connections.in_use.push(Rc::clone(&connection));
        }
        drop(connections);
        pipeline.note_use();
        Self {
            origin,
            key,
            pipeline,
            connection,
        }
    }
}

impl Drop for Use<'_> {
    fn drop(&mut self) {
        if self.connection.active() == 0 {
            let is_other = |listed: &Rc<Http1Client>| !Rc::ptr_eq(listed, &self.connection);
            self.pipeline
                .connections
                .borrow_mut()
                .in_use
                .retain(is_other);
            if self.connection.is_ready() {
                self.origin
                    .leave_idle(self.key, self.pipeline, Rc::clone(&self.connection));
            }
        }
        self.pipeline.changed.notify_one();
    }
}

impl Pipeline {
    /// Returns whether another connection with pipelined requests may end.
    fn may_scout(&self, limits: ConnectionLimits) -> bool {
        let scouts = || {
            let connections = self.connections.borrow();
            let in_use = connections.in_use.iter();
            in_use.filter(|it| it.is_scouting(&self.traits)).count()
        };
        limits.most <= FLOOR || scouts() < SCOUTS
    }

    /// Returns the connection that a request may follow on.
    fn followable(&self, may_scout: bool) -> Option<Rc<Http1Client>> {
        let connections = self.connections.borrow();
        let mut in_use = connections.in_use.iter();
        let followable = in_use.find(|it| it.may_be_followed(&self.traits, may_scout));
        followable.cloned()
    }

    /// Returns the number of connections that exchanges use or dial.
    pub(super) fn connections(&self) -> usize {
        let connections = self.connections.borrow();
        connections.in_use.len() + connections.dials
    }

    fn note_use(&self) {
        self.most_used
            .set(self.most_used.get().max(self.connections()));
    }

    /// Returns the largest number of connections since the page before, for a page that has the
    /// only connection. Returns `None` for the first page.
    pub(super) fn begin_page(&self) -> Option<usize> {
        let most_used = self.most_used.replace(1);
        self.has_had_page.replace(true).then_some(most_used)
    }
}

impl Origin {
    /// Turns pipelining on, within the limits of connections to each origin.
    pub fn pipeline(&self, limits: LimitsOfOrigin) {
        // A second call would be a mistake of the composition, and changes nothing.
        let _ = self.connection_limits.set(limits);
    }

    /// Returns the number of requests that each connection to the origin of an exchange may carry.
    pub fn depth(&self, exchange: &Exchange) -> usize {
        let known = self.pipelines.0.borrow();
        let key = self.key(exchange).ok();
        let pipeline = key.and_then(|key| known.get(&key));
        match pipeline.is_some_and(|pipeline| pipeline.traits.permits()) {
            true => DEPTH,
            false => 1,
        }
    }

    /// Returns whether exchanges of `key` may be pipelined.
    pub(super) fn pipelines(&self, exchange: &Exchange, key: &PoolKey) -> bool {
        self.connection_limits.get().is_some()
            && self.binds_late(key)
            && exchange.request.protocol.is_none()
    }

    /// Runs an exchange on a connection that others may use as well. `fresh` asks for a new one.
    pub(super) async fn run_pipelined(
        self: &Rc<Self>,
        exchange: &mut Exchange,
        key: &PoolKey,
        fresh: bool,
        permit: Option<Permit>,
        sink: &mut Sink,
    ) -> Result<(), Error> {
        let pipeline = self.pipelines.of(key);
        let connection = match self.entry(exchange, key, fresh, &pipeline).await? {
            Entry::Follow(connection) => {
                METRICS.origin_pipelined.add(1);
                let used = Use::new(self, key, &pipeline, connection);
                let follow = used.connection.follow(&pipeline.traits, exchange, sink);
                let result = follow.await;
                drop((used, permit));
                return result;
            }
            Entry::Lead(connection) => {
                METRICS.origin_reused.add(1);
                connection
            }
            Entry::Dial(_dial) => {
                self.make_room(key.session);
                if !fresh && let Some(limits) = self.connection_limits.get() {
                    let ahead = limits(key.session, &key.origin).ahead;
                    self.preconnect(exchange, key, &pipeline, ahead);
                }
                match fresh {
                    true => self.over_path(self.dial(exchange, key).await?),
                    false => match self.bind(exchange, key).await? {
                        Bound::New(path) => self.over_path(path),
                        Bound::Kept(connection) => connection,
                    },
                }
            }
        };
        let used = Use::new(self, key, &pipeline, connection);
        let result = match exchange.body.is_empty() {
            true => {
                let begun = || pipeline.changed.notify_one();
                let lead = used
                    .connection
                    .lead(&pipeline.traits, exchange, sink, begun);
                lead.await
            }
            false => used.connection.exchange(exchange, sink).await,
        };
        drop((used, permit));
        result
    }

    /// Waits until an exchange may begin.
    async fn entry(
        &self,
        exchange: &Exchange,
        key: &PoolKey,
        fresh: bool,
        pipeline: &Rc<Pipeline>,
    ) -> Result<Entry, Error> {
        let may_follow = !fresh && is_pipelinable(exchange);
        let entry = async {
            loop {
                if let Some(entry) = self.try_enter(key, fresh, may_follow, pipeline) {
                    // Another exchange may find a connection as well.
                    pipeline.changed.notify_one();
                    return entry;
                }
                pipeline.changed.notified().await;
            }
        };
        tokio::time::timeout(self.protocols.http1.response_timeout, entry)
            .await
            .map_err(|_| all_in_use())
    }

    fn try_enter(
        &self,
        key: &PoolKey,
        fresh: bool,
        may_follow: bool,
        pipeline: &Rc<Pipeline>,
    ) -> Option<Entry> {
        let limits = self.connection_limits.get()?(key.session, &key.origin);
        let may_scout = pipeline.may_scout(limits);
        if !fresh && let Some(idle) = self.take_lasting(key, pipeline, may_scout) {
            return Some(Entry::Lead(idle));
        }
        if may_follow && let Some(connection) = pipeline.followable(may_scout) {
            return Some(Entry::Follow(connection));
        }
        let mut pool = self.pool.borrow_mut();
        // A fresh connection replaces an idle one.
        let idle = pool.idle.get(key).filter(|_| !fresh).map_or(0, Vec::len);
        let open = pipeline.connections() + pool.binding.spares(key) + idle;
        let most = limits.most.max(1);
        // The idle connections may end with their next responses.
        let may_replace = limits.dials_are_free && idle > 0 && open - idle < most;
        let replaces = open >= most && may_replace;
        if open >= most && !replaces {
            return None;
        }
        if fresh || replaces {
            pool.drop_oldest(key);
        }
        Some(Entry::Dial(Dial::new(pipeline)))
    }

    /// Takes an idle connection whose next response is not its last, as far as that matters.
    fn take_lasting(
        &self,
        key: &PoolKey,
        pipeline: &Pipeline,
        may_scout: bool,
    ) -> Option<Rc<Http1Client>> {
        let mut pool = self.pool.borrow_mut();
        let idle = pool.idle.get_mut(key)?;
        let fate = |kept: &Idle| kept.connection.fate(&pipeline.traits);
        idle.retain(|kept| fate(kept) != ConnectionFate::Ends && kept.since.elapsed() < IDLE_FOR);
        let newest = idle
            .iter()
            .rposition(|kept| may_scout || fate(kept) == ConnectionFate::StaysOpen)?;
        Some(idle.remove(newest).connection)
    }

    /// Leaves a connection idle, or closes it before the last response that it could carry.
    fn leave_idle(&self, key: &PoolKey, pipeline: &Pipeline, connection: Rc<Http1Client>) {
        let limits = self.connection_limits.get();
        let may_scout =
            || limits.is_none_or(|limits| pipeline.may_scout(limits(key.session, &key.origin)));
        match connection.fate(&pipeline.traits) {
            ConnectionFate::Ends => drop(connection),
            ConnectionFate::Unknown if !may_scout() => self.keep_idle(key, connection),
            ConnectionFate::Unknown | ConnectionFate::StaysOpen => self.keep(key, connection),
        }
    }

    fn over_path(&self, path: Path) -> Rc<Http1Client> {
        Rc::new(Http1Client::over(self.protocols.http1.clone(), path))
    }
}

/// The way on which an exchange begins.
enum Entry {
    /// On an idle connection.
    Lead(Rc<Http1Client>),
    /// Behind other requests.
    Follow(Rc<Http1Client>),
    /// On a new connection.
    Dial(Dial),
}

#[cfg(test)]
mod tests;

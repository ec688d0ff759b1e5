//! The client's sessions to gateways: one session per gateway and isolation key, opened when it is
//! first needed and replaced when it is old.
//!
//! The client connects to no other destination. A request that the gateway surely did not process
//! is sent again, on another session or to another gateway. Any other request is sent again only if
//! it is idempotent and no part of its response has been passed on.

mod age;
mod beside;
mod choice;
mod comparing;
#[cfg(test)]
mod doubles;
mod lookup;
mod moves;
mod of_key;
mod ready;
mod refuge;
mod resume;
mod usage;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::time::Duration;

use tandem_coding::wire;
use tandem_http::cache::is_safe;
use tandem_push::wire::is_companion;
use tokio::time::Instant;

use crate::back::announce::Announcer;
use crate::back::failures::Failures;
use crate::back::own::source_towards;
use crate::back::ways::Network;
use crate::carrier::Carrier;
use crate::error::{Error, Kind, Retry, Side};
use crate::exchange::{Exchange, Isolation, Part, Reply, Sink};
use crate::metrics::METRICS;
use crate::session::{Connect, Connected, SessionState, Task, may_be_early};
use crate::stage::{Stage, refuse_reserved};
use crate::status::{Opened, SessionStatus};
use crate::transport::names::Addresses;
use crate::transport::{Dial, Target};
use crate::{versions, warm_up};
use beside::Dials;
use choice::{WayGroup, observe};
use moves::Source;
use of_key::OfKeys;
use refuge::{Checks, Left};
use resume::Tokens;
use usage::{InUse, SessionUsage};

/// The usual number of attempts at an exchange.
pub const TRIES: usize = 3;

/// The first bytes of a TLS handshake (RFC 8446 section 5.1).
const TLS_HANDSHAKE: [u8; 2] = [0x16, 3];

/// A gateway and the transport that reaches it.
pub struct Gateway {
    /// The gateway's address.
    pub target: Target,
    /// The transport to the gateway.
    pub transport: Rc<dyn Dial>,
    /// The session protocol.
    pub session: Rc<dyn Connect>,
    /// The last time at which the pool reported a failure to the transport.
    pub blamed: Cell<Option<Instant>>,
    /// The log lines about the gateway.
    pub announcer: Announcer,
    /// True if sessions show an access token.
    pub has_token: bool,
    /// The place among the ways to one gateway.
    pub way: WayEntry,
}

/// The place of a gateway's entry among the ways to the same gateway.
#[derive(Clone, Debug, Default)]
pub struct WayEntry {
    /// True if the entry is another way to the gateway of the entry before.
    pub is_alternative: bool,
    /// True if its transport sends datagrams, which some networks drop.
    pub is_datagrams: bool,
    /// The gateway's addresses, for a direct connection.
    pub addresses: Option<Addresses>,
}

impl Gateway {
    /// Logs whether the gateway admits the session that has answered.
    fn answered(&self, session: &dyn SessionState) {
        self.note_address(session);
        match session.admission() {
            Some(false) => self.announcer.down(&unauthorized(self.has_token)),
            _ => self.announcer.up(session.answered_in()),
        }
    }

    /// Notes the address at which a gateway has answered early data. A dial with them ends before
    /// the answer.
    fn note_address(&self, session: &dyn SessionState) {
        let addresses = self.way.addresses.as_ref();
        let addresses = addresses.filter(|_| self.way.is_datagrams && session.is_established());
        if let Some(addresses) = addresses
            && let Some(at) = session.facts().and_then(|facts| facts.peer_address())
        {
            addresses.answered(at);
        }
    }
}

/// Returns the error for a gateway that demands an access token. `has_token` is true if the client
/// sent one.
pub fn unauthorized(has_token: bool) -> Error {
    let detail = if has_token {
        "it does not accept the access token: compare the first line of --token-file with \
         that of the gateway's --auth token-file=FILE"
    } else {
        "it wants an access token: ask its operator, and give it by --token-file FILE"
    };
    Error::new(Kind::Unauthorized, Side::Peer, detail)
}

/// The limits and the behaviour of a pool of sessions.
#[derive(Clone, Copy, Debug)]
pub struct PoolLimits {
    /// The age at which a session stops taking new requests. Without such an age a session over Tor
    /// would never change its circuit.
    pub max_age: Option<Duration>,
    /// The largest number of sessions. A new one closes the session that was idle for longest.
    /// Sessions with exchanges under way are never closed for it, so they can exceed the limit.
    pub max_sessions: usize,
    /// Makes the pool try again without a request when a gateway does not answer.
    pub reconnect: bool,
    /// Makes the pool compare a slow way over datagrams with TCP, by filler bytes.
    pub compares_ways: bool,
    /// The largest number of attempts at an exchange, if there are fewer gateways.
    pub tries: usize,
}

/// The client's pool of sessions, which is the last stage of its pipeline.
pub struct Gateways {
    /// The ways to all gateways. Those to the same gateway are neighbours.
    gateways: Vec<Rc<Gateway>>,
    /// The gateways as ranges of their ways.
    groups: Vec<WayGroup>,
    limits: PoolLimits,
    fallback: Option<Rc<dyn Stage>>,
    /// The sessions by key and gateway. An attempt at one gateway leaves the session of another
    /// open.
    slots: RefCell<HashMap<(Isolation, usize), PoolSlot>>,
    /// The speeds of earlier sessions.
    tokens: Tokens,
    /// The index of the gateway that answered last, if keys share it.
    preferred: Cell<usize>,
    /// The knowledge of each key, if they share none.
    of_keys: OfKeys,
    /// The recent tunnels that failed after the browser had received a successful response.
    failures: Failures,
    /// The checks of the sessions to which exchanges may move.
    checks: Checks,
    /// True once the pool drains: open sessions finish, and only a request opens a new one.
    draining: Cell<bool>,
    /// Finds this machine's address towards a gateway, which tells its network.
    source: Cell<fn(SocketAddr) -> Network>,
    this: Weak<Self>,
}

struct PoolSlot {
    current: Rc<dyn Connected>,
    opened: Instant,
    /// The network on which the session was opened.
    network: Network,
    usage: Rc<SessionUsage>,
    /// True while the session is silent and another way works.
    doubted: Rc<Cell<bool>>,
    /// The times of the last two doubts.
    doubts: Cell<[Option<Instant>; 2]>,
    /// True if the session was opened for exchanges that may move to it.
    is_spare: Cell<bool>,
    /// The sessions that are opened beside this one while it has stalled.
    dials: Dials,
    /// This machine's address towards the other end of a direct session over TCP.
    source: Rc<Source>,
    /// The task that looks for a move of this machine.
    _moves: Option<Task>,
    /// The task that replaces the session when it is old.
    _rotation: Option<Task>,
    /// The task that learns the speed of the session's path.
    _speed: Option<Task>,
}

impl Gateways {
    /// Creates a pool over `gateways`, best first. `fallback` takes the exchanges that every
    /// gateway failed to take.
    pub fn new(
        gateways: Vec<Gateway>,
        limits: PoolLimits,
        fallback: Option<Rc<dyn Stage>>,
    ) -> Rc<Self> {
        let groups = WayGroup::all(&gateways);
        Rc::new_cyclic(|this| Self {
            groups,
            gateways: gateways.into_iter().map(Rc::new).collect(),
            limits,
            fallback,
            slots: RefCell::default(),
            tokens: Tokens::default(),
            preferred: Cell::new(0),
            of_keys: OfKeys::default(),
            failures: Failures::default(),
            checks: Checks::default(),
            draining: Cell::new(false),
            source: Cell::new(source_towards),
            this: this.clone(),
        })
    }

    /// Returns the sessions to gateways, in no order. Those that have ended are forgotten: a pool
    /// that drains gets no requests, so that nothing else would remove them.
    pub fn status(&self) -> Vec<SessionStatus> {
        self.forget_ended();
        let slots = self.slots.borrow();
        let status = |((_, index), slot): (&(Isolation, usize), &PoolSlot)| {
            let facts = slot.current.facts();
            let gateway = &self.gateways[*index];
            SessionStatus {
                gateway: Some(gateway.announcer.gateway().to_owned()),
                protocol: Some(gateway.announcer.protocol().to_owned()),
                exchanges: Some(slot.current.active()),
                ..SessionStatus::new(Opened::Here, slot.opened.into_std(), facts.as_deref())
            }
        };
        slots.iter().map(status).collect()
    }

    /// Drains all sessions: each finishes its exchanges and then closes.
    pub fn drain(&self) {
        self.draining.set(true);
        for slot in self.slots.borrow().values() {
            slot.current.drain();
        }
    }

    /// Drains the sessions of a key that is no longer used.
    pub fn end(&self, isolation: &Isolation) {
        self.tokens.forget(isolation);
        self.checks.forget(isolation);
        self.of_keys.forget(isolation);
        for gateway in &self.gateways {
            gateway.transport.forget(isolation);
        }
        let mut slots = self.slots.borrow_mut();
        for (_, slot) in slots.extract_if(|(key, _), _| key == isolation) {
            slot.current.drain();
        }
    }

    /// Removes the sessions that take no requests and have none under way.
    fn forget_ended(&self) {
        let has_ended =
            |slot: &mut PoolSlot| slot.current.is_closed() && slot.current.active() == 0;
        let mut slots = self.slots.borrow_mut();
        let ended: Vec<_> = slots.extract_if(|_, slot| has_ended(slot)).collect();
        drop(slots);
        drop(ended);
    }

    /// Returns the session of a key. It opens one if the key has no session that takes requests.
    fn session(&self, isolation: &Isolation, gateway: usize) -> Rc<dyn Connected> {
        let mut slots = self.slots.borrow_mut();
        let key = (isolation.clone(), gateway);
        if let Some(slot) = slots.get(&key)
            && !slot.current.is_closed()
        {
            slot.usage.last.set(Instant::now());
            return Rc::clone(&slot.current);
        }
        slots.retain(|_, slot| !slot.current.is_closed() || slot.current.active() > 0);
        while slots.len() >= self.limits.max_sessions {
            let idle = slots
                .iter()
                .filter(|(_, slot)| slot.usage.exchanges.get() == 0)
                .min_by_key(|(_, slot)| slot.usage.last.get())
                .map(|(key, _)| key.clone());
            // The connections from browsers limit the sessions that are in use.
            let Some(slot) = idle.and_then(|key| slots.remove(&key)) else {
                break;
            };
            METRICS.sessions_evicted.add(1);
            slot.current.drain();
        }
        let current = self.open(isolation, gateway);
        let slot = self.slot(Rc::clone(&current), key.clone());
        slots.insert(key, slot);
        current
    }

    /// Returns the session of a key as [`Self::session`] does, and counts an exchange on it until
    /// the guard is dropped.
    fn begin(&self, isolation: &Isolation, gateway: usize) -> (Rc<dyn Connected>, Option<InUse>) {
        let key = (isolation.clone(), gateway);
        self.look_before_request(&key);
        let session = self.session(isolation, gateway);
        let slots = self.slots.borrow();
        let in_use = slots.get(&key).map(|slot| {
            self.watch_flow(isolation, gateway, &session, &slot.usage);
            slot.source.is_used();
            InUse::begin(&slot.usage)
        });
        (session, in_use)
    }

    fn slot(&self, current: Rc<dyn Connected>, key: (Isolation, usize)) -> PoolSlot {
        let now = Instant::now();
        let usage = Rc::new(SessionUsage::new(now));
        let speed = self.follow_speed(&key, &current, &usage);
        let source = Rc::default();
        let moves = self.follow_moves(&key, &current, &usage, &source);
        let network = self.network(key.1);
        let rotation = self.rotation(key);
        PoolSlot {
            current,
            opened: now,
            network,
            usage,
            doubted: Rc::default(),
            doubts: Cell::default(),
            is_spare: Cell::new(false),
            dials: Dials::default(),
            source,
            _moves: moves,
            _rotation: rotation,
            _speed: speed,
        }
    }

    /// Opens a session whose result does not count for its way.
    fn open_unobserved(&self, isolation: &Isolation, index: usize) -> Rc<dyn Connected> {
        METRICS.sessions_opened.add(1);
        let gateway = Rc::clone(&self.gateways[index]);
        let session = Rc::clone(&gateway.session);
        session.connect(Box::pin(dial(gateway, isolation.clone())))
    }

    fn open(&self, isolation: &Isolation, index: usize) -> Rc<dyn Connected> {
        let session = self.open_unobserved(isolation, index);
        if self.has_other_way(index) {
            let network = self.network(index);
            let observed = observe(
                self.this.clone(),
                isolation.clone(),
                index,
                network,
                &session,
            );
            tokio::task::spawn_local(observed);
        }
        session
    }

    /// Sends the companion of a key's session. It is sent on that session only.
    fn accompany(self: &Rc<Self>, mut exchange: Exchange) -> Reply {
        let entry = self.entry(&exchange.isolation);
        let session = self.session(&exchange.isolation, entry);
        Reply::generate(|mut sink| async move { session.run(&mut exchange, &mut sink).await })
    }

    async fn try_gateways(&self, exchange: &mut Exchange, sink: &mut Sink) -> Result<(), Error> {
        let count = self.groups.len();
        let first = self.preferred_group(&exchange.isolation);
        let mut last = Error::new(Kind::Unreachable, Side::Peer, "no gateway is configured");
        // The number of gateways that failed and were skipped.
        let mut passed_over = 0;
        let mut left = None;
        let version_key = Some(&exchange.request)
            .filter(|request| wire::asks_dictionary(&request.fields))
            .and_then(|request| versions::key(request));
        let takes_early = may_be_early(exchange);
        let attempts = self.limits.tries.max(count);
        for attempt in 0..attempts {
            METRICS.exchanges_retried.add(u64::from(attempt > 0));
            METRICS
                .exchanges_moved
                .add(u64::from(left == Some(Left::Silent)));
            let group = (first + passed_over) % count;
            let chosen = self.choose(&exchange.isolation, group, takes_early).await;
            let (session, index, in_use) = chosen;
            in_use.iter().for_each(InUse::carries);
            if let Some(key) = &version_key {
                let fields = &mut exchange.request_mut().fields;
                sink.set_carrying(versions::name(fields, key, session.mark()));
            }
            let is_last = attempt + 1 == attempts;
            let error = match self.run(&session, index, exchange, sink, is_last).await {
                Outcome::Done => {
                    self.prefer(&exchange.isolation, index);
                    self.gateways[index].answered(&*session);
                    return Ok(());
                }
                Outcome::Failed(error) => {
                    left = None;
                    error
                }
                Outcome::Left(reason) => {
                    left = Some(reason);
                    let detail = "the session delivers nothing, or too little";
                    Error::new(Kind::Timeout, Side::Peer, detail).with_retry(Retry::Safe)
                }
            };
            // A lost session does not mean a broken gateway: the next session to it may be open in
            // a moment.
            let is_full = left.is_none() && error.kind == Kind::Full;
            passed_over += usize::from(left.is_none() && !is_full);
            if is_full {
                // Tunnels may keep the session full for hours. They stay on it, and other exchanges
                // get the next session.
                self.forget(&(exchange.isolation.clone(), index), &session);
                session.drain();
            }
            // A gateway that rejects early data has answered. One whose session was left may answer
            // later.
            let is_opening = !session.is_established() && left.is_none();
            let unanswered = error.side.is_before_origin() && is_opening && !is_full;
            if unanswered {
                METRICS.sessions_failed.add(1);
                self.gateways[index].announcer.down(&error);
                if let Some(opened) = self.forget(&(exchange.isolation.clone(), index), &session) {
                    self.blame(&exchange.isolation, index, opened);
                }
            }
            if sink.is_used()
                || !error.retry.permits(&exchange.request.method)
                || !exchange.body.rewind()
            {
                return Err(error);
            }
            // Another attempt does not help if a gateway cannot be reached at all. Another gateway
            // may help.
            let tried_all = unanswered && passed_over >= count;
            last = error;
            if tried_all {
                break;
            }
        }
        Err(last)
    }

    /// Runs an exchange on a session. A safe exchange that is not bound to it may move to another
    /// session, unless this is the last attempt at a response that has not begun.
    async fn run(
        &self,
        session: &Rc<dyn Connected>,
        gateway: usize,
        exchange: &mut Exchange,
        sink: &mut Sink,
        is_last: bool,
    ) -> Outcome {
        let isolation = exchange.isolation.clone();
        let (is_bound, has_part) = (sink.binding(), sink.fullness());
        let has_begun = sink.usage();
        let body = exchange.body.share();
        // The present session may still deliver. A pool that drains opens no session for a move.
        let has_next = || !is_last && !self.draining.get() && body.may_rewind();
        if !is_safe(&exchange.request.method) {
            // The session holds such a request back until its handshake is over.
            let is_held = || !session.is_established() && has_next();
            let mut watched = None;
            let watched = self.leave(&isolation, gateway, session, is_held, &mut watched);
            return tokio::select! {
                biased;
                done = session.run(exchange, sink) => done.into(),
                left = watched => Outcome::Left(left),
            };
        }
        let is_tunnel = exchange.request.is_connect();
        // The effect of a repeated first flight is unknown, unless it is a TLS handshake.
        let may_repeat = || !is_tunnel || body.is_untouched() || body.begins_with(&TLS_HANDSHAKE);
        let lost = async {
            session.lost().await;
            if !may_repeat() {
                std::future::pending::<()>().await;
            }
        };
        // A reader that has a part of a response gets the rest from the same session, unless it can
        // request the rest.
        let may_move = || !is_bound() && may_repeat() && (has_begun() || has_next());
        let propose = sink.proposal();
        let left = async {
            let watched = &mut None;
            loop {
                let (may_move, has_part) = (&may_move, &has_part);
                let left =
                    self.leave_when_read(&isolation, gateway, session, may_move, has_part, watched);
                let left = left.await;
                if !has_begun() {
                    return left;
                }
                // Another request may not get the rest, while this session may still bring it.
                propose();
            }
        };
        tokio::select! {
            biased;
            done = session.run(exchange, sink) => done.into(),
            left = left => Outcome::Left(left),
            () = lost => {
                METRICS.sessions_lost.add(1);
                self.forget(&(isolation.clone(), gateway), session);
                session.drain();
                Outcome::Left(Left::Lost)
            }
        }
    }

    /// Removes a session from its key, if the key still has it, and returns the time when it was
    /// opened.
    fn forget(&self, key: &(Isolation, usize), session: &Rc<dyn Connected>) -> Option<Instant> {
        let mut slots = self.slots.borrow_mut();
        slots
            .get(key)
            .filter(|slot| Rc::ptr_eq(&slot.current, session))?;
        slots.remove(key).map(|slot| slot.opened)
    }
}

/// The end of an attempt at an exchange.
enum Outcome {
    /// The exchange is over.
    Done,
    /// The session or the origin failed.
    Failed(Error),
    /// The exchange left the session, which stays open for the exchanges that run on it.
    Left(Left),
}

impl From<Result<(), Error>> for Outcome {
    fn from(result: Result<(), Error>) -> Self {
        result.map_or_else(Self::Failed, |()| Self::Done)
    }
}

async fn dial(gateway: Rc<Gateway>, isolation: Isolation) -> Result<Carrier, Error> {
    gateway.transport.carrier(&gateway.target, &isolation).await
}

/// The pool as a stage of the pipeline.
pub struct ToGateway(pub Rc<Gateways>);

impl Stage for ToGateway {
    fn call(&self, mut exchange: Exchange) -> Reply {
        let pool = Rc::clone(&self.0);
        if is_companion(&exchange.request) {
            return pool.accompany(exchange);
        }
        // A relay passes the warm-up of a client on, so that it opens the windows of all hops.
        let is_warm_up = warm_up::asked(&exchange.request).is_some();
        if !is_warm_up && let Some(refusal) = refuse_reserved(&exchange.request) {
            return refusal;
        }
        Reply::generate(|mut sink| async move {
            let error = match pool.try_gateways(&mut exchange, &mut sink).await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            let unreachable = error.side.is_before_origin() && !sink.is_used();
            match &pool.fallback {
                Some(fallback)
                    if unreachable
                        && error.retry.permits(&exchange.request.method)
                        && exchange.body.rewind() =>
                {
                    METRICS.fallbacks.add(1);
                    tracing::debug!(%error, "no gateway: going on without one, through the same way");
                    pass(fallback.call(exchange), &mut sink).await
                }
                _ => Err(error),
            }
        })
    }
}

async fn pass(mut reply: Reply, sink: &mut Sink) -> Result<(), Error> {
    while let Some(part) = reply.part().await {
        let part: Part = part?;
        sink.send(part).await;
    }
    Ok(())
}

//! Exchanges with origins: HTTP/1.1 over kept connections, HTTP/2 if TLS negotiates it, one fixed
//! protocol, and plain tunnels.
//!
//! Each session of a client has its own kept connections. An origin may tie a login to its
//! connection, as NTLM does, so two clients must never share one. A gateway in front of one fixed
//! origin shares its connections among all sessions.

#![expect(
    clippy::manual_async_fn,
    reason = "the future of an `async fn` holds its arguments twice"
)]

mod binding;
mod http1_required;
mod of_session;
mod permit;
mod pipelining;
mod preconnect;
pub mod prepare;
mod reach;
#[cfg(test)]
mod tests_late_bytes;
#[cfg(test)]
mod tests_scripted;
mod to_origin;
mod tries;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use tandem_http::Scheme;
use tandem_http::message::logs_in_on_connection;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

pub use of_session::OriginsOfSession;
pub(super) use permit::with_precedence;
pub use pipelining::{ConnectionLimits, LimitsOfOrigin};
pub use reach::{OriginProtocols, OriginTransports};
pub use to_origin::ToOrigin;

use binding::{Binding, Bound};
use http1_required::Http1Origins;
use pipelining::Pipelines;
use tries::{Patience, no_answer};

use crate::back::multiplexed::MultiplexedSessions;
use crate::back::places::Places;
use crate::back::starts::Starts;
use crate::descriptors;
use crate::endpoint::split_authority;
use crate::error::{Error, Kind, Side};
use crate::exchange::{Exchange, Isolation, Part, Sink};
use crate::hosts::HostPattern;
use crate::metrics::METRICS;
use crate::moment;
use crate::path::Path;
use crate::probe::points::ORIGIN_DIAL;
use crate::session::http1::{self, Http1Client, Http1Session};
use crate::session::mux::MuxSession;
use crate::session::{Connected, SessionState as _, Task};
use crate::transport::{Dial, Target};

/// The largest number of idle connections to one target.
const IDLE_PER_TARGET: usize = 512;

/// The time for which an idle connection is kept: less than the 60 s or more of most servers.
const IDLE_FOR: Duration = Duration::from_secs(45);

pub use crate::back::places::Limits;

/// The largest number of HTTP/2 sessions with the origin of a reverse gateway. A visitor that fills
/// one with responses that it does not read must not keep the others from the origin.
const SHARED_H2: usize = 64;

/// The text of the response to a visitor with a wrong name. The operator may be the visitor.
const NOT_SERVED: &str =
    "this proxy stands for one origin, and not for that host (--allow-host names others)";

/// The rule by which a request gets its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The origin that the request's authority names.
    Forward,
    /// Always the same origin. The request's authority stays unchanged, so that the origin sees the
    /// requested name.
    Reverse {
        /// The scheme of requests to the origin.
        scheme: Scheme,
        /// The address of the origin.
        target: Target,
        /// The hosts that requests may name.
        hosts: Vec<HostPattern>,
    },
    /// Always the same proxy, which serves the origin that the request's authority names. It also
    /// gets the requests for tunnels.
    Proxy {
        /// The scheme that selects the transport to the proxy.
        scheme: Scheme,
        /// The address of the proxy.
        target: Target,
    },
}

/// The last stage of the gateway's pipeline.
pub struct Origin {
    /// The rule by which requests get their origin.
    mode: Mode,
    transports: OriginTransports,
    protocols: OriginProtocols,
    limits: Limits,
    places: Rc<Places<Wanted>>,
    /// The exchanges that all sessions of a reverse gateway start at once.
    starts: Option<Rc<Starts>>,
    /// The origin of a reverse gateway, or the proxy.
    fixed: Option<Wanted>,
    /// The authority that last passed the check of a reverse gateway. Most requests repeat it.
    served: Cell<String>,
    pool: RefCell<Pool>,
    http1_origins: Http1Origins,
    /// The limits of connections to each origin, if requests may be pipelined.
    connection_limits: OnceCell<LimitsOfOrigin>,
    pipelines: Pipelines,
}

/// The identity of an origin in the count of places.
type Wanted = Rc<(Scheme, Target)>;

#[derive(Default)]
struct Pool {
    idle: HashMap<PoolKey, Vec<Idle>>,
    /// The idle connections that all sessions of a reverse gateway share.
    shared: Vec<Idle>,
    multiplexed: MultiplexedSessions<PoolKey>,
    binding: Binding,
    sweeper: Option<Task>,
    /// The task of [`Starts::run`].
    starter: Option<Task>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct PoolKey {
    /// The number of the client's session, or 0 if all sessions share connections.
    session: u64,
    isolation: Isolation,
    origin: Wanted,
}

struct Idle {
    connection: Rc<Http1Client>,
    since: Instant,
}

impl Origin {
    /// Creates a stage without connections, for HTTP/2 and HTTP/1.1 as TLS negotiates them.
    pub fn new(
        mode: Mode,
        transport: Rc<dyn Dial>,
        tls: TlsConnector,
        http1: Http1Session,
        h2: Rc<MuxSession>,
        connect_timeout: Duration,
        limits: Limits,
    ) -> Rc<Self> {
        let transports = OriginTransports::with_tls(transport, &tls, None, connect_timeout);
        let protocols = OriginProtocols {
            http1,
            multiplexed: h2,
            always: None,
        };
        Self::with(mode, transports, protocols, limits)
    }

    /// Creates a stage without connections, over these transports and protocols.
    pub fn with(
        mode: Mode,
        transports: OriginTransports,
        protocols: OriginProtocols,
        limits: Limits,
    ) -> Rc<Self> {
        let (places, pool) = (Places::new(limits), RefCell::default());
        // The sessions of a reverse gateway share connections, and thus the limit on them.
        let is_shared = matches!(mode, Mode::Reverse { .. });
        let starts = is_shared.then(|| Starts::new(limits.per_session, limits.lasting));
        let fixed = match &mode {
            Mode::Reverse { scheme, target, .. } | Mode::Proxy { scheme, target } => {
                Some(Rc::new((*scheme, target.clone())))
            }
            Mode::Forward => None,
        };
        let this = Rc::new(Self {
            mode,
            transports,
            protocols,
            limits,
            places,
            starts,
            fixed,
            served: Cell::default(),
            pool,
            http1_origins: Http1Origins::default(),
            connection_limits: OnceCell::new(),
            pipelines: Pipelines::default(),
        });
        let starter = this.starts.clone().map(|starts| Task::spawn(starts.run()));
        this.pool.borrow_mut().starter = starter;
        let weak = Rc::downgrade(&this);
        this.pool.borrow_mut().sweeper = Some(Task::spawn(async move {
            loop {
                let is_lacking = tokio::select! {
                    () = tokio::time::sleep(IDLE_FOR / 4) => false,
                    () = descriptors::lacking() => true,
                };
                let Some(origin) = weak.upgrade() else { return };
                match is_lacking {
                    true => origin.shed(),
                    false => origin.sweep(),
                }
            }
        }));
        this
    }

    /// Closes the idle connections of a client's session that has ended. No other session may use
    /// them.
    pub fn end_session(&self, session: u64) {
        let mut pool = self.pool.borrow_mut();
        pool.idle.retain(|key, _| key.session != session);
        pool.binding.end_session(session);
        self.pipelines.end_session(session);
        pool.multiplexed.close(|key| key.session == session);
        self.http1_origins.retain(|key| key.session != session);
    }

    /// Closes the idle connections of a session to one target above the number to `keep`.
    pub fn trim(&self, session: u64, origin: &(Scheme, Target), keep: usize) {
        let mut pool = self.pool.borrow_mut();
        for (key, idle) in &mut pool.idle {
            if key.session == session && *key.origin == *origin {
                let surplus = idle.len().saturating_sub(keep);
                idle.drain(..surplus);
            }
        }
    }

    fn sweep(&self) {
        let now = Instant::now();
        let mut pool = self.pool.borrow_mut();
        pool.idle.retain(|_, idle| {
            idle.retain(|kept| now - kept.since < IDLE_FOR);
            !idle.is_empty()
        });
        pool.shared.retain(|kept| now - kept.since < IDLE_FOR);
        pool.multiplexed.sweep();
    }

    /// Closes the older half of the idle connections to each target, since the process has no
    /// descriptor left.
    fn shed(&self) {
        let mut pool = self.pool.borrow_mut();
        let older = |idle: &mut Vec<Idle>| drop(idle.drain(..idle.len().div_ceil(2)));
        pool.idle.retain(|_, idle| {
            older(idle);
            !idle.is_empty()
        });
        older(&mut pool.shared);
        pool.multiplexed.close_idle();
    }

    fn key(&self, exchange: &Exchange) -> Result<PoolKey, Error> {
        let request = &exchange.request;
        match (&self.mode, &self.fixed) {
            (Mode::Reverse { hosts, .. }, Some(origin)) => {
                self.check_served(&request.authority, origin.0, hosts)?;
                // The origin may bind the whole connection to the user that logged in on it.
                let is_bound =
                    exchange.isolation.connection() != 0 || logs_in_on_connection(&request.fields);
                let (session, isolation) = match is_bound {
                    true => (exchange.peer.session, exchange.isolation.clone()),
                    false => (0, Isolation::none()),
                };
                Ok(PoolKey {
                    session,
                    isolation,
                    origin: Rc::clone(origin),
                })
            }
            (Mode::Proxy { .. }, Some(proxy)) => Ok(PoolKey {
                session: exchange.peer.session,
                isolation: exchange.isolation.clone(),
                origin: Rc::clone(proxy),
            }),
            _ => {
                let scheme = request.scheme;
                let (host, port) = split_authority(&request.authority, Some(scheme.default_port()))
                    .map_err(|problem| Error::new(Kind::BadRequest, Side::Client, problem))?;
                let isolation = exchange.isolation.clone();
                Ok(PoolKey {
                    session: exchange.peer.session,
                    isolation,
                    origin: Rc::new((scheme, Target::new(host, port))),
                })
            }
        }
    }

    /// Checks that a reverse gateway serves the host of a request.
    fn check_served(
        &self,
        authority: &str,
        scheme: Scheme,
        hosts: &[HostPattern],
    ) -> Result<(), Error> {
        let served = self.served.take();
        let is_known = !authority.is_empty() && served == authority;
        self.served.set(served);
        if is_known {
            return Ok(());
        }
        let (host, _) = split_authority(authority, Some(scheme.default_port()))
            .map_err(|problem| Error::new(Kind::BadRequest, Side::Client, problem))?;
        if !hosts.iter().any(|pattern| pattern.covers(&host)) {
            METRICS.destinations_refused.add(1);
            return Err(Error::new(Kind::Misdirected, Side::Local, NOT_SERVED));
        }
        self.served.set(authority.to_owned());
        Ok(())
    }

    fn answer(
        self: &Rc<Self>,
        exchange: &mut Exchange,
        sink: &mut Sink,
    ) -> impl Future<Output = Result<(), Error>> {
        async move {
            let is_tunnel = exchange.request.is_connect() && exchange.request.protocol.is_none();
            if is_tunnel && !matches!(self.mode, Mode::Proxy { .. }) {
                return Box::pin(self.tunnel(exchange, sink)).await;
            }
            let key = self.key(exchange)?;
            self.try_often(exchange, &key, sink).await
        }
    }

    fn attempt(
        self: &Rc<Self>,
        exchange: &mut Exchange,
        key: &PoolKey,
        fresh: bool,
        patience: &Patience,
        sink: &mut Sink,
    ) -> impl Future<Output = Result<(), Error>> {
        async move {
            if self.protocols.always.is_some() {
                return Box::pin(self.over_fixed(exchange, key, patience, sink)).await;
            }
            let needs_http1 = self.needs_http1(exchange, key);
            // The streams of a shared session are limited for each session of a client.
            let is_shared = self.starts.is_some();
            if !is_shared && let Some(session) = self.multiplexed(key).filter(|_| !needs_http1) {
                METRICS.origin_reused.add(1);
                patience.begin();
                return Box::pin(self.over(&*session, exchange, sink)).await;
            }
            let permit = self.permit(exchange, key, sink).await?;
            patience.begin();
            // While this exchange waited, another exchange may have found that the origin supports
            // HTTP/2.
            if let Some(session) = self.multiplexed(key).filter(|_| !needs_http1) {
                let _permit = permit.filter(|_| is_shared);
                METRICS.origin_reused.add(1);
                return Box::pin(self.over(&*session, exchange, sink)).await;
            }
            if self.pipelines(exchange, key) {
                return Box::pin(self.run_pipelined(exchange, key, fresh, permit, sink)).await;
            }
            let kept = if fresh { None } else { self.take_idle(key) };
            let connection = match kept {
                Some(connection) => {
                    METRICS.origin_reused.add(1);
                    connection
                }
                None => {
                    self.make_room(key.session);
                    let dialling = ORIGIN_DIAL.start();
                    let path = if self.binds_late(key) && !fresh && !needs_http1 {
                        match self.bind(exchange, key).await? {
                            Bound::New(path) => path,
                            Bound::Kept(connection) => {
                                METRICS.origin_reused.add(1);
                                return self.run(connection, exchange, key, sink).await;
                            }
                        }
                    } else {
                        self.dial(exchange, key).await?
                    };
                    ORIGIN_DIAL.stop(dialling, 0);
                    if path.facts().alpn() == Some(b"h2") {
                        let _permit = permit.filter(|_| is_shared);
                        return Box::pin(self.over_h2(exchange, key, path, sink)).await;
                    }
                    Rc::new(Http1Client::over(self.protocols.http1.clone(), path))
                }
            };
            self.run(connection, exchange, key, sink).await
        }
    }

    /// Runs an exchange on a connection of HTTP/1.1. The caller keeps its permit until then.
    fn run(
        &self,
        connection: Rc<Http1Client>,
        exchange: &mut Exchange,
        key: &PoolKey,
        sink: &mut Sink,
    ) -> impl Future<Output = Result<(), Error>> {
        async move {
            let result = connection.exchange(exchange, sink).await;
            if connection.is_ready() {
                self.keep(key, connection);
            }
            result
        }
    }

    fn multiplexed(&self, key: &PoolKey) -> Option<Rc<dyn Connected>> {
        let most = if self.starts.is_some() { SHARED_H2 } else { 1 };
        self.pool.borrow().multiplexed.get(key, most)
    }

    /// Closes an idle connection of a session that has too many, before the session gets another
    /// one.
    fn make_room(&self, session: u64) {
        let mut pool = self.pool.borrow_mut();
        let multiplexed = pool.multiplexed.count(|key| key.session == session);
        let idle = pool.idle.iter().filter(|(key, _)| key.session == session);
        let (count, oldest) = idle.fold(
            (0, None),
            |(count, oldest): (usize, Option<(Instant, &PoolKey)>), (key, idle)| {
                let first = idle.first().map(|kept| (kept.since, key));
                let older =
                    |one: &(Instant, &PoolKey)| oldest.is_none_or(|(since, _)| one.0 < since);
                (count + idle.len(), first.filter(older).or(oldest))
            },
        );
        // Shared connections belong to no session. Each target keeps a bounded number of them.
        if session == 0
            || multiplexed + count + self.places.taken(session) <= self.limits.per_session
        {
            return;
        }
        if let Some(key) = oldest.map(|(_, key)| key.clone()) {
            pool.drop_oldest(&key);
        } else {
            pool.multiplexed.drain_one(|key| key.session == session);
        }
    }

    async fn over_h2(
        &self,
        exchange: &mut Exchange,
        key: &PoolKey,
        path: Path,
        sink: &mut Sink,
    ) -> Result<(), Error> {
        // If several exchanges found HTTP/2 at the same time, one session serves all of them.
        if let Some(session) = self.multiplexed(key) {
            METRICS.origin_reused.add(1);
            return self.over(&*session, exchange, sink).await;
        }
        let session = self
            .protocols
            .multiplexed
            .connect(Box::pin(std::future::ready(Ok(path.into()))));
        self.pool
            .borrow_mut()
            .multiplexed
            .insert(key, Rc::clone(&session));
        self.over(&*session, exchange, sink).await
    }

    /// Runs an exchange on an origin's session. The response must begin in time, except the
    /// response to an upload.
    async fn over(
        &self,
        session: &dyn Connected,
        exchange: &mut Exchange,
        sink: &mut Sink,
    ) -> Result<(), Error> {
        let has_body = !exchange.body.is_empty();
        let (is_used, limit) = (sink.usage(), self.protocols.http1.response_timeout);
        let mut run = session.run(exchange, sink);
        let done = match tokio::time::timeout(limit, &mut run).await {
            Ok(done) => done,
            Err(_) if has_body || is_used() => run.await,
            Err(_) => return Err(no_answer()),
        };
        // A session names its other end a peer.
        done.map_err(|error| match error.side {
            Side::Peer => error.at(Side::Origin),
            _ => error,
        })
    }

    /// Returns true if the idle connections of `key` belong to all sessions.
    fn shares(&self, key: &PoolKey) -> bool {
        self.starts.is_some() && key.session == 0
    }

    /// Returns true if exchanges of `key` may take a connection that becomes idle while they dial.
    /// With TLS, the session protocol is unknown before the handshake.
    fn binds_late(&self, key: &PoolKey) -> bool {
        key.origin.0 == Scheme::Http && !self.shares(key)
    }

    fn take_idle(&self, key: &PoolKey) -> Option<Rc<Http1Client>> {
        let mut pool = self.pool.borrow_mut();
        let idle = match self.shares(key) {
            true => &mut pool.shared,
            false => pool.idle.get_mut(key)?,
        };
        let newest = idle.pop()?;
        (moment::now() - newest.since < IDLE_FOR).then_some(newest.connection)
    }

    fn keep(&self, key: &PoolKey, connection: Rc<Http1Client>) {
        let offered = self.pool.borrow_mut().binding.offer(key, connection);
        if let Some(connection) = offered {
            self.keep_idle(key, connection);
        }
    }

    /// Keeps a connection for a later exchange.
    fn keep_idle(&self, key: &PoolKey, connection: Rc<Http1Client>) {
        let mut pool = self.pool.borrow_mut();
        let kept = Idle {
            connection,
            since: moment::now(),
        };
        let idle = match self.shares(key) {
            true => Some(&mut pool.shared),
            false => pool.idle.get_mut(key),
        };
        match idle {
            Some(idle) if idle.len() < IDLE_PER_TARGET => idle.push(kept),
            Some(_) => {}
            None => {
                pool.idle.insert(key.clone(), vec![kept]);
            }
        }
    }

    async fn tunnel(&self, exchange: &Exchange, sink: &mut Sink) -> Result<(), Error> {
        if matches!(self.mode, Mode::Reverse { .. }) {
            return Err(Error::new(
                Kind::Forbidden,
                Side::Local,
                "a proxy for one origin opens no tunnels",
            ));
        }
        if !exchange.request.authority.contains(':') {
            return Err(Error::new(
                Kind::BadRequest,
                Side::Client,
                "a tunnel needs a port",
            ));
        }
        let key = self.key(exchange)?;
        let (target, part) = (&key.origin.1, key.part_of(&exchange.isolation));
        let path = self.transports.tunnels.dial(target, &part).await?;
        sink.send(Part::Head(tandem_http::ResponseHead::new(200)))
            .await;
        let facts = Rc::clone(path.facts());
        let (read, write) = tokio::io::split(path);
        let up = (exchange.body.share(), Bytes::new());
        let patience = http1::Patience::Limited;
        http1::tunnel(read, write, facts, up, sink, patience).await
    }
}

impl Pool {
    fn drop_oldest(&mut self, key: &PoolKey) {
        let Some(idle) = self.idle.get_mut(key) else {
            return;
        };
        if !idle.is_empty() {
            idle.remove(0);
        }
        if idle.is_empty() {
            self.idle.remove(key);
        }
    }
}

//! The client's way out: one session per gateway and isolation key, opened when first needed, replaced when it is old.
//!
//! Nothing else is ever connected to. A request that surely was not processed is sent again, on another session or
//! gateway; another only if it is idempotent and nothing of its answer has been passed on.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::time::Duration;

use tandem_http::Method;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use crate::back::pushed::PushStore;
use crate::back::reports::{Arrival, Digest};
use crate::companion::is_reserved;
use crate::error::{Error, Kind, Retry, Side};
use crate::exchange::{Exchange, Isolation, Part, Reply, Sink};
use crate::front::early::Liveness;
use crate::metrics::METRICS;
use crate::path::Path;
use crate::session::{Connected, Session, Task};
use crate::stage::Stage;
use crate::transport::{LocalBoxFuture, Target, Transport, tls};

/// How often an exchange is tried in all.
const TRIES: usize = 3;

/// A gateway and how to get there.
pub struct Gateway {
    /// Its address.
    pub target: Target,
    /// The way.
    pub transport: Rc<dyn Transport>,
    /// TLS on that way, and the name that the certificate must have.
    pub tls: Option<(TlsConnector, String)>,
    /// What is spoken.
    pub session: Rc<dyn Session>,
    /// Time for the TLS handshake.
    pub timeout: Duration,
}

/// How the pool treats its sessions.
#[derive(Clone, Copy, Debug)]
pub struct PoolLimits {
    /// After so long a session takes no new requests: over Tor its circuit would never change otherwise.
    pub max_age: Option<Duration>,
    /// Isolation keys with a session at once; the least recently used goes first.
    pub max_sessions: usize,
    /// Bytes of pushed bodies that a session may hold for later requests.
    pub push_memory: usize,
    /// Cancel pushes of no use instead of reading them to their end.
    pub cancel_pushes: bool,
    /// Tell the browser of what is pushed with a page (`Link: rel=preload`).
    pub early_hints: bool,
    /// Say in answers which of them were pushed (`Cache-Status`).
    pub cache_status: bool,
    /// Tell a gateway's next session what the browser got on the last.
    pub push_digest: bool,
}

/// The stage at the client's end.
pub struct Gateways {
    gateways: Vec<Rc<Gateway>>,
    limits: PoolLimits,
    fallback: Option<Rc<dyn Stage>>,
    /// By key and gateway: while one gateway is tried, another's session stays.
    slots: RefCell<HashMap<(Isolation, usize), Slot>>,
    digests: RefCell<HashMap<Isolation, Rc<Digest>>>,
    /// Index of the gateway that answered last.
    preferred: Cell<usize>,
    this: Weak<Self>,
}

struct Slot {
    current: Rc<dyn Connected>,
    pushed: Rc<PushStore>,
    used: Instant,
    /// Replaces the session when it is old.
    _rotation: Option<Task>,
}

impl Gateways {
    /// A pool over `gateways`, best first; `fallback` takes exchanges that none of them would.
    pub fn new(gateways: Vec<Gateway>, limits: PoolLimits, fallback: Option<Rc<dyn Stage>>) -> Rc<Self> {
        Rc::new_cyclic(|this| Self {
            gateways: gateways.into_iter().map(Rc::new).collect(),
            limits,
            fallback,
            slots: RefCell::default(),
            digests: RefCell::default(),
            preferred: Cell::new(0),
            this: this.clone(),
        })
    }

    /// Lets all sessions end gently.
    pub fn drain(&self) {
        for slot in self.slots.borrow().values() {
            slot.current.drain();
        }
    }

    /// The session of a key, opened where there is none that takes requests.
    fn session(&self, isolation: &Isolation, gateway: usize) -> (Rc<dyn Connected>, Rc<PushStore>) {
        let mut slots = self.slots.borrow_mut();
        let key = (isolation.clone(), gateway);
        if let Some(slot) = slots.get_mut(&key)
            && !slot.current.is_closed()
        {
            slot.used = Instant::now();
            return (Rc::clone(&slot.current), Rc::clone(&slot.pushed));
        }
        slots.retain(|_, slot| !slot.current.is_closed() || slot.current.active() > 0);
        if slots.len() >= self.limits.max_sessions {
            let oldest = slots.iter().min_by_key(|(_, slot)| slot.used).map(|(key, _)| key.clone());
            if let Some(slot) = oldest.and_then(|key| slots.remove(&key)) {
                slot.current.drain();
            }
        }
        let current = self.open(isolation, gateway);
        let slot = self.slot(Rc::clone(&current), key.clone());
        let pushed = Rc::clone(&slot.pushed);
        slots.insert(key, slot);
        (current, pushed)
    }

    fn slot(&self, current: Rc<dyn Connected>, key: (Isolation, usize)) -> Slot {
        let digest = self.digest(&key.0);
        let rotation = self.limits.max_age.map(|age| {
            let this = self.this.clone();
            Task::spawn(async move {
                tokio::time::sleep(age).await;
                // In a task of its own: the swap ends this one.
                tokio::task::spawn_local(rotate(this, key));
            })
        });
        let pushed = {
            let PoolLimits { push_memory, cancel_pushes, cache_status, .. } = self.limits;
            PushStore::new(push_memory, cancel_pushes, cache_status, digest)
        };
        Slot { current, pushed, used: Instant::now(), _rotation: rotation }
    }

    /// What a key's browser holds, if that is told at all: as long as there are not too many keys.
    fn digest(&self, isolation: &Isolation) -> Option<Rc<Digest>> {
        if !self.limits.push_digest {
            return None;
        }
        let mut digests = self.digests.borrow_mut();
        if digests.len() >= self.limits.max_sessions && !digests.contains_key(isolation) {
            digests.clear();
        }
        Some(Rc::clone(digests.entry(isolation.clone()).or_default()))
    }

    fn open(&self, isolation: &Isolation, index: usize) -> Rc<dyn Connected> {
        METRICS.sessions_opened.add(1);
        let gateway = Rc::clone(&self.gateways[index]);
        let session = Rc::clone(&gateway.session);
        session.connect(Box::pin(dial(gateway, isolation.clone())))
    }

    async fn try_gateways(&self, exchange: &mut Exchange, sink: &mut Sink) -> Result<(), Error> {
        let count = self.gateways.len();
        let first = self.preferred.get();
        let mut last = Error::new(Kind::Unreachable, Side::Peer, "no gateway is configured");
        for attempt in 0..TRIES.max(count) {
            let index = (first + attempt) % count;
            let (session, pushed) = self.session(&exchange.isolation, index);
            let arrival = Rc::new(Arrival {
                store: Rc::downgrade(&pushed),
                session: Rc::clone(&session),
                isolation: exchange.isolation.clone(),
                request: exchange.request.clone(),
                hints: self.limits.early_hints,
                promised: RefCell::default(),
            });
            arrival.begin(&exchange.request);
            sink.tap(arrival);
            let error = match session.run(exchange, sink).await {
                Ok(()) => {
                    self.preferred.set(index);
                    return Ok(());
                }
                Err(error) => error,
            };
            let unanswered = error.side == Side::Peer && !session.is_established();
            if unanswered {
                METRICS.sessions_failed.add(1);
                self.gateways[index].transport.failed();
                self.forget(&(exchange.isolation.clone(), index), &session);
            }
            if sink.is_used() || !may_repeat(&error, exchange) || !exchange.body.rewind() {
                return Err(error);
            }
            // A gateway that cannot be reached at all will not be by asking again; another one may.
            let tried_all = unanswered && attempt + 1 >= count;
            last = error;
            if tried_all {
                break;
            }
            METRICS.exchanges_retried.add(1);
        }
        Err(last)
    }

    fn forget(&self, key: &(Isolation, usize), session: &Rc<dyn Connected>) {
        let mut slots = self.slots.borrow_mut();
        if slots.get(key).is_some_and(|slot| Rc::ptr_eq(&slot.current, session)) {
            slots.remove(key);
        }
    }
}

/// Opens the next session before the old one, still in use, stops taking requests.
async fn rotate(pool: Weak<Gateways>, key: (Isolation, usize)) {
    let Some(pool) = pool.upgrade() else { return };
    let Some(old) = pool.slots.borrow().get(&key).map(|slot| Rc::clone(&slot.current)) else { return };
    METRICS.sessions_rotated.add(1);
    if old.active() > 0 {
        let next = pool.open(&key.0, key.1);
        if next.established().await.is_ok() {
            let slot = pool.slot(next, key.clone());
            let mut slots = pool.slots.borrow_mut();
            if slots.get(&key).is_some_and(|slot| Rc::ptr_eq(&slot.current, &old)) {
                slots.insert(key, slot);
            }
        } else {
            pool.forget(&key, &old);
        }
    } else {
        pool.forget(&key, &old);
    }
    old.drain();
}

async fn dial(gateway: Rc<Gateway>, isolation: Isolation) -> Result<Path, Error> {
    let path = gateway.transport.dial(&gateway.target, &isolation).await?;
    match &gateway.tls {
        None => Ok(path),
        Some((connector, name)) => tls::connect(connector, path, name, gateway.timeout, Side::Peer).await,
    }
}

/// The stage that the pool is to those before it.
pub struct ToGateway(pub Rc<Gateways>);

impl Stage for ToGateway {
    fn call(&self, mut exchange: Exchange) -> Reply {
        let pool = Rc::clone(&self.0);
        let key = (exchange.isolation.clone(), pool.preferred.get());
        let pushed = pool.slots.borrow().get(&key).map(|slot| Rc::clone(&slot.pushed));
        if is_reserved(&exchange.request.authority) {
            let error = Error::new(Kind::Dns, Side::Origin, "no origin has this name");
            return Reply::fail(error);
        }
        if let (Some(pushed), false) = (&pushed, is_safe(&exchange.request.method)) {
            pushed.forget_origin(&exchange.request);
        }
        let pushed = pushed.and_then(|pushed| pushed.answer(&exchange));
        Reply::generate(|mut sink| async move {
            if let Some(pushed) = pushed {
                let passed = pass(pushed, &mut sink).await;
                // A push that broke off before anything was passed on is as if it had never been.
                if passed.is_ok() || sink.is_used() {
                    return passed;
                }
            }
            let error = match pool.try_gateways(&mut exchange, &mut sink).await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            let unreachable = error.side == Side::Peer && !sink.is_used();
            match &pool.fallback {
                Some(fallback) if unreachable && may_repeat(&error, &exchange) && exchange.body.rewind() => {
                    METRICS.fallbacks.add(1);
                    tracing::info!(%error, "no gateway: going on without one, through the same way");
                    pass(fallback.call(exchange), &mut sink).await
                }
                _ => Err(error),
            }
        })
    }
}

/// Whether a request changes nothing (RFC 9110 section 9.2.1). A tunnel is nobody's resource.
const fn is_safe(method: &Method) -> bool {
    matches!(method, Method::Get | Method::Head | Method::Options | Method::Trace | Method::Connect)
}

/// Whether the failed exchange may be sent again: surely unprocessed, or harmless when processed twice.
fn may_repeat(error: &Error, exchange: &Exchange) -> bool {
    match error.retry {
        Retry::Safe => true,
        Retry::IfIdempotent => exchange.request.method.is_idempotent(),
        Retry::Never => false,
    }
}

async fn pass(mut reply: Reply, sink: &mut Sink) -> Result<(), Error> {
    while let Some(part) = reply.part().await {
        let part: Part = part?;
        sink.send(part).await;
    }
    Ok(())
}

impl Liveness for ToGateway {
    fn is_live(&self, isolation: &Isolation) -> bool {
        let slots = self.0.slots.borrow();
        let key = (isolation.clone(), self.0.preferred.get());
        slots.get(&key).is_some_and(|slot| slot.current.is_established() && !slot.current.is_closed())
    }
}

impl crate::front::socks::Gateways for ToGateway {
    fn establish<'a>(&'a self, isolation: &'a Isolation) -> LocalBoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let pool = &self.0;
            let mut last = Error::new(Kind::Unreachable, Side::Peer, "no gateway is configured");
            for attempt in 0..pool.gateways.len() {
                let index = (pool.preferred.get() + attempt) % pool.gateways.len();
                let (session, _) = pool.session(isolation, index);
                match session.established().await {
                    Ok(()) => return Ok(()),
                    Err(error) => {
                        pool.gateways[index].transport.failed();
                        pool.forget(&(isolation.clone(), index), &session);
                        last = error;
                    }
                }
            }
            // With a way around the gateways, whoever asks finds out there.
            if pool.fallback.is_some() { Ok(()) } else { Err(last) }
        })
    }
}

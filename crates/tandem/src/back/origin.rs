//! To the origins: HTTP/1.1 over kept connections, HTTP/2 where TLS agrees on it, and plain tunnels.
//!
//! Connections are kept per asking session: an origin may tie a login to its connection (NTLM does), and then one
//! client's must never be another's. A gateway in front of one fixed origin shares them among all.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use tandem_http::Scheme;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use crate::endpoint::split_authority;
use crate::error::{Error, Kind, Retry, Side};
use crate::exchange::{Exchange, Isolation, Part, Parts, Reply, Sink};
use crate::metrics::METRICS;
use crate::path::Path;
use crate::probe::Stamp;
use crate::probe::points::{ORIGIN_DIAL, ORIGIN_HEAD};
use crate::session::http1::{Http1Client, Http1Session};
use crate::session::mux::MuxSession;
use crate::session::{Connected, Session, Task};
use crate::stage::Stage;
use crate::transport::{Target, Transport, tls};

/// Idle connections kept to one target.
const IDLE_PER_TARGET: usize = 512;

/// How long a connection is kept idle: below the 60 s and more after which servers close theirs.
const IDLE_FOR: Duration = Duration::from_secs(45);

/// How often an exchange is tried in all: a kept connection may have been closed just now.
const TRIES: usize = 3;

/// Which origin a request is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The one that the request's authority names.
    Forward,
    /// Always this one. The request's authority is kept as it is, so that the origin sees the name that was asked for.
    Reverse {
        /// How it is spoken to.
        scheme: Scheme,
        /// Where it is.
        target: Target,
    },
}

/// The stage at the gateway's end.
pub struct Origin {
    /// Which origin.
    pub mode: Mode,
    /// The way there.
    pub transport: Rc<dyn Transport>,
    /// TLS towards origins.
    pub tls: TlsConnector,
    /// HTTP/1.1 towards origins.
    pub http1: Http1Session,
    /// HTTP/2 towards origins.
    pub h2: Rc<MuxSession>,
    /// Time for a TLS handshake.
    pub connect_timeout: Duration,
    pool: RefCell<Pool>,
}

#[derive(Default)]
struct Pool {
    idle: HashMap<Key, Vec<Idle>>,
    multiplexed: HashMap<Key, Rc<dyn Connected>>,
    sweeper: Option<Task>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    /// The session that asked; 0 where connections are shared.
    session: u64,
    isolation: Isolation,
    scheme: Scheme,
    target: Target,
}

struct Idle {
    connection: Http1Client,
    since: Instant,
}

impl Origin {
    /// A stage without connections.
    pub fn new(
        mode: Mode,
        transport: Rc<dyn Transport>,
        tls: TlsConnector,
        http1: Http1Session,
        h2: Rc<MuxSession>,
        connect_timeout: Duration,
    ) -> Rc<Self> {
        let this = Rc::new(Self { mode, transport, tls, http1, h2, connect_timeout, pool: RefCell::default() });
        let weak = Rc::downgrade(&this);
        this.pool.borrow_mut().sweeper = Some(Task::spawn(async move {
            loop {
                tokio::time::sleep(IDLE_FOR / 4).await;
                let Some(origin) = weak.upgrade() else { return };
                origin.sweep();
            }
        }));
        this
    }

    fn sweep(&self) {
        let now = Instant::now();
        let mut pool = self.pool.borrow_mut();
        pool.idle.retain(|_, idle| {
            idle.retain(|kept| now - kept.since < IDLE_FOR);
            !idle.is_empty()
        });
        pool.multiplexed.retain(|_, session| !session.is_closed());
    }

    fn key(&self, exchange: &Exchange) -> Result<Key, Error> {
        match &self.mode {
            Mode::Reverse { scheme, target } => {
                Ok(Key { session: 0, isolation: Isolation::none(), scheme: *scheme, target: target.clone() })
            }
            Mode::Forward => {
                let request = &exchange.request;
                let scheme = request.scheme;
                let (host, port) = split_authority(&request.authority, Some(scheme.default_port()))
                    .map_err(|problem| Error::new(Kind::BadRequest, Side::Client, problem))?;
                let isolation = exchange.isolation.clone();
                Ok(Key { session: exchange.peer.session, isolation, scheme, target: Target { host, port } })
            }
        }
    }

    async fn answer(&self, exchange: &mut Exchange, sink: &mut Sink) -> Result<(), Error> {
        let key = self.key(exchange)?;
        if exchange.request.is_connect() && exchange.request.protocol.is_none() {
            return self.tunnel(exchange, &key, sink).await;
        }
        for attempt in 1.. {
            // Once a kept connection has failed, only a new one tells anything.
            let error = match self.attempt(exchange, &key, attempt > 1, sink).await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            let again = match error.retry {
                Retry::Safe => error.kind == Kind::Reset || error.kind == Kind::Busy,
                Retry::IfIdempotent => exchange.request.method.is_idempotent(),
                Retry::Never => false,
            };
            if attempt >= TRIES || sink.is_used() || !again || !exchange.body.rewind() {
                return Err(error);
            }
            METRICS.exchanges_retried.add(1);
        }
        Ok(())
    }

    async fn attempt(&self, exchange: &mut Exchange, key: &Key, fresh: bool, sink: &mut Sink) -> Result<(), Error> {
        let multiplexed = self.pool.borrow().multiplexed.get(key).filter(|session| session.is_ready()).cloned();
        if let Some(session) = multiplexed {
            METRICS.origin_reused.add(1);
            return session.run(exchange, sink).await.map_err(|error| error.at(Side::Origin));
        }
        let kept = if fresh { None } else { self.take_idle(key) };
        let connection = match kept {
            Some(connection) => {
                METRICS.origin_reused.add(1);
                connection
            }
            None => {
                let path = self.dial(exchange, key).await?;
                if path.alpn() == Some(b"h2") {
                    return self.over_h2(exchange, key, path, sink).await;
                }
                Http1Client::over(self.http1.clone(), path)
            }
        };
        let result = connection.run(exchange, sink).await;
        if connection.is_ready() {
            self.keep(key, connection);
        }
        result
    }

    async fn dial(&self, exchange: &Exchange, key: &Key) -> Result<Path, Error> {
        let dialling = ORIGIN_DIAL.start();
        let path = self.transport.dial(&key.target, &exchange.isolation).await?;
        let path = match key.scheme {
            Scheme::Http => path,
            Scheme::Https => {
                tls::connect(&self.tls, path, &key.target.host, self.connect_timeout, Side::Origin).await?
            }
        };
        ORIGIN_DIAL.stop(dialling, 0);
        Ok(path)
    }

    async fn over_h2(&self, exchange: &mut Exchange, key: &Key, path: Path, sink: &mut Sink) -> Result<(), Error> {
        let session = self.h2.connect(Box::pin(std::future::ready(Ok(path))));
        self.pool.borrow_mut().multiplexed.insert(key.clone(), Rc::clone(&session));
        session.run(exchange, sink).await.map_err(|error| error.at(Side::Origin))
    }

    fn take_idle(&self, key: &Key) -> Option<Http1Client> {
        let mut pool = self.pool.borrow_mut();
        let idle = pool.idle.get_mut(key)?;
        let newest = idle.pop()?;
        (newest.since.elapsed() < IDLE_FOR).then_some(newest.connection)
    }

    fn keep(&self, key: &Key, connection: Http1Client) {
        let mut pool = self.pool.borrow_mut();
        let kept = Idle { connection, since: Instant::now() };
        match pool.idle.get_mut(key) {
            Some(idle) if idle.len() < IDLE_PER_TARGET => idle.push(kept),
            Some(_) => {}
            None => {
                pool.idle.insert(key.clone(), vec![kept]);
            }
        }
    }

    async fn tunnel(&self, exchange: &Exchange, key: &Key, sink: &mut Sink) -> Result<(), Error> {
        if matches!(self.mode, Mode::Reverse { .. }) {
            return Err(Error::new(Kind::Forbidden, Side::Local, "this gateway opens no tunnels"));
        }
        if !exchange.request.authority.contains(':') {
            return Err(Error::new(Kind::BadRequest, Side::Client, "a tunnel needs a port"));
        }
        let path = self.transport.dial(&key.target, &exchange.isolation).await?;
        sink.send(Part::Head(tandem_http::ResponseHead::new(200))).await;
        let (read, write) = tokio::io::split(path);
        crate::session::http1::tunnel(read, write, exchange.body.share(), BytesMut::new(), sink).await
    }
}

/// The stage that an [`Origin`] is to those before it.
pub struct ToOrigin(pub Rc<Origin>);

impl Stage for ToOrigin {
    fn call(&self, mut exchange: Exchange) -> Reply {
        let (origin, asked) = (Rc::clone(&self.0), ORIGIN_HEAD.start());
        let reply = Reply::generate(|mut sink| async move { origin.answer(&mut exchange, &mut sink).await });
        if asked.is_none() { reply } else { Reply::new(Watched { reply, asked }) }
    }
}

/// A reply whose head somebody waits to see.
struct Watched {
    reply: Reply,
    asked: Stamp,
}

impl Parts for Watched {
    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        let part = self.reply.poll_part(cx);
        if matches!(part, Poll::Ready(Some(Ok(Part::Head(_))))) {
            ORIGIN_HEAD.stop(self.asked.take(), 0);
        }
        part
    }
}

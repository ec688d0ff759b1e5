//! Accepts connections, limits their number and completes their handshakes. The session protocol of
//! the listener then turns the input into exchanges.

pub mod early;
pub mod socks;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::net::IpAddr;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::exchange::Peer;
use crate::metrics::METRICS;
use crate::path::Facts;
use crate::session::{Drain, Session};
use crate::stage::Stage;
use crate::status::{Opened, SessionStatus};
use crate::transport::{Incoming, Listener, Transport};

/// Creates the stage of one connection. The state of the stage, such as an access token that was
/// sent once, ends with the connection.
pub type NewStage = Rc<dyn Fn(&Rc<dyn Facts>, Peer) -> Rc<dyn Stage>>;

/// The protocol of a listener's connections.
pub enum Protocol {
    /// A session protocol.
    Session(Rc<dyn Session>),
    /// SOCKS5 connections, which carry HTTP or any other protocol.
    Socks(Rc<socks::SocksFront>),
}

/// The numbers of connections that may be open.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// The number of all connections.
    pub total: usize,
    /// The number of connections from one address.
    pub per_client: usize,
}

/// A listener and the parts that its connections need.
pub struct Front {
    /// The protocol of the connections.
    pub protocol: Protocol,
    /// The transport that accepts.
    pub transport: Rc<dyn Transport>,
    /// Creates the stage behind each connection.
    pub new_stage: NewStage,
    /// The open connections, counted over all listeners of the thread.
    pub connections: Rc<Connections>,
    /// Ends the connections gracefully.
    pub drain: Drain,
}

/// Counts connections against their limits.
#[derive(Debug)]
pub struct Connections {
    limits: ConnectionLimits,
    open: Cell<usize>,
    by_client: RefCell<HashMap<IpAddr, usize>>,
    sessions: RefCell<HashMap<u64, OpenSession>>,
}

/// A session that is being served.
#[derive(Debug)]
struct OpenSession {
    since: Instant,
    facts: Weak<dyn Facts>,
}

impl Connections {
    /// Returns a counter without open connections.
    pub fn new(limits: ConnectionLimits) -> Rc<Self> {
        Rc::new(Self {
            limits,
            open: Cell::new(0),
            by_client: RefCell::default(),
            sessions: RefCell::default(),
        })
    }

    /// Returns the open sessions, in no order.
    pub fn status(&self) -> Vec<SessionStatus> {
        let sessions = self.sessions.borrow();
        let status = |session: &OpenSession| {
            let facts = session.facts.upgrade();
            SessionStatus::new(Opened::There, session.since, facts.as_deref())
        };
        sessions.values().map(status).collect()
    }

    /// Returns the number of open connections.
    pub fn open(&self) -> usize {
        self.open.get()
    }

    fn admit(self: &Rc<Self>, client: IpAddr) -> Option<Admission> {
        let mut by_client = self.by_client.borrow_mut();
        let count = by_client.entry(client).or_insert(0);
        if self.open.get() >= self.limits.total || *count >= self.limits.per_client {
            if *count == 0 {
                by_client.remove(&client);
            }
            return None;
        }
        *count += 1;
        self.open.set(self.open.get() + 1);
        METRICS.connections_open.add(1);
        Some(Admission {
            connections: Rc::clone(self),
            client,
        })
    }
}

struct Admission {
    connections: Rc<Connections>,
    client: IpAddr,
}

impl Drop for Admission {
    fn drop(&mut self) {
        METRICS.connections_open.sub(1);
        self.connections.open.set(self.connections.open.get() - 1);
        let mut by_client = self.connections.by_client.borrow_mut();
        if let Some(count) = by_client.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                by_client.remove(&self.client);
            }
        }
    }
}

/// An entry in the list of open sessions, removed when it is dropped.
struct Listed {
    connections: Rc<Connections>,
    session: u64,
}

impl Listed {
    fn new(connections: &Rc<Connections>, session: u64, facts: &Rc<dyn Facts>) -> Self {
        let open = OpenSession {
            since: Instant::now(),
            facts: Rc::downgrade(facts),
        };
        connections.sessions.borrow_mut().insert(session, open);
        Self {
            connections: Rc::clone(connections),
            session,
        }
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.connections.sessions.borrow_mut().remove(&self.session);
    }
}

static NEXT_SESSION: AtomicU64 = AtomicU64::new(1);

impl Front {
    /// Accepts until `stop` resolves. Open connections continue after that.
    pub async fn accept(
        self: Rc<Self>,
        mut listener: Box<dyn Listener>,
        stop: impl Future<Output = ()>,
    ) {
        let mut stop = std::pin::pin!(stop);
        loop {
            let accepted = tokio::select! {
                biased;
                () = &mut stop => return,
                accepted = poll_fn(|cx| listener.poll_accept(cx)) => accepted,
            };
            match accepted {
                Ok(incoming) => self.admit(incoming),
                Err(error) => {
                    // Descriptors may have run out: a pause lets other connections end.
                    tracing::warn!(%error, "cannot accept");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    fn admit(self: &Rc<Self>, incoming: Incoming) {
        METRICS.connections.add(1);
        let Some(admission) = self.connections.admit(incoming.address.ip()) else {
            METRICS.connections_refused.add(1);
            tracing::debug!("connection refused: too many are open");
            return;
        };
        let front = Rc::clone(self);
        tokio::task::spawn_local(async move {
            if let Err(error) = front.serve(incoming).await {
                tracing::debug!(%error, "connection ended");
            }
            drop(admission);
        });
    }

    async fn serve(&self, incoming: Incoming) -> Result<(), Error> {
        let Incoming { address, carrier } = incoming;
        let carrier = carrier.await?;
        let session = NEXT_SESSION.fetch_add(1, Ordering::Relaxed);
        let peer = Peer {
            session,
            address: Some(address.ip()),
            push: false,
        };
        let stage = (self.new_stage)(carrier.facts(), peer);
        let _listed = Listed::new(&self.connections, session, carrier.facts());
        match &self.protocol {
            Protocol::Session(session) => {
                let drain = self.drain.clone();
                session.serve(carrier, peer, stage, drain).await
            }
            Protocol::Socks(socks) => {
                let path = carrier.into_bytes()?;
                socks.serve(path, peer, stage, self.drain.clone()).await
            }
        }
    }
}

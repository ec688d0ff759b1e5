//! Where connections come in: accept, limit, shake hands, then let the session protocol turn what
//! arrives into exchanges.

pub mod early;
pub mod local;
pub mod pages;
pub mod socks;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::error::{Error, Kind, Side};
use crate::exchange::Peer;
use crate::metrics::METRICS;
use crate::path::Path;
use crate::probe::points::FRONT_HANDSHAKE;
use crate::session::{Drain, Session, Timeouts};
use crate::stage::Stage;
use crate::transport::tcp::{self, SocketOptions};

/// Makes the stage of one connection: what it remembers (an access token shown once) ends with the
/// connection.
pub type NewStage = Rc<dyn Fn(&Path, Peer) -> Rc<dyn Stage>>;

/// Serves connections of one kind.
pub enum Protocol {
    /// A session protocol.
    Session(Rc<dyn Session>),
    /// SOCKS5, whose connections carry HTTP or anything.
    Socks(Rc<socks::SocksFront>),
}

/// How many connections may be open.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// In all.
    pub total: usize,
    /// From one address.
    pub per_client: usize,
}

/// One listener with all that its connections need.
pub struct Front {
    /// What is spoken.
    pub protocol: Protocol,
    /// TLS, where the endpoint has it.
    pub tls: Option<TlsAcceptor>,
    /// Socket set-up, for listeners that face the slow path.
    pub socket: Option<SocketOptions>,
    /// Makes the stage behind each connection.
    pub new_stage: NewStage,
    /// Time limits.
    pub timeouts: Timeouts,
    /// Connections under way, counted over all listeners of the thread.
    pub connections: Rc<Connections>,
    /// Ends the connections gently.
    pub drain: Drain,
}

/// Counts connections against their limits.
#[derive(Debug)]
pub struct Connections {
    limits: ConnectionLimits,
    open: Cell<usize>,
    by_client: RefCell<HashMap<IpAddr, usize>>,
}

impl Connections {
    /// None open.
    pub fn new(limits: ConnectionLimits) -> Rc<Self> {
        Rc::new(Self {
            limits,
            open: Cell::new(0),
            by_client: RefCell::default(),
        })
    }

    /// How many are open.
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

static NEXT_SESSION: AtomicU64 = AtomicU64::new(1);

impl Front {
    /// Accepts until `stop` resolves; connections already open go on.
    pub async fn accept(self: Rc<Self>, listener: TcpListener, stop: impl Future<Output = ()>) {
        let mut stop = std::pin::pin!(stop);
        loop {
            let accepted = tokio::select! {
                biased;
                () = &mut stop => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, address)) => self.admit(stream, address),
                Err(error) => {
                    // Out of descriptors or the like: a pause lets others end.
                    tracing::warn!(%error, "cannot accept");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    fn admit(self: &Rc<Self>, stream: TcpStream, address: SocketAddr) {
        METRICS.connections.add(1);
        let Some(admission) = self.connections.admit(address.ip()) else {
            METRICS.connections_refused.add(1);
            tracing::debug!("connection refused: too many are open");
            return;
        };
        let front = Rc::clone(self);
        tokio::task::spawn_local(async move {
            if let Err(error) = front.serve(stream, address).await {
                tracing::debug!(%error, "connection ended");
            }
            drop(admission);
        });
    }

    async fn serve(&self, stream: TcpStream, address: SocketAddr) -> Result<(), Error> {
        match &self.socket {
            Some(options) => options.apply(&stream),
            // A browser beside us: small answers must not wait for acknowledgements.
            None => drop(stream.set_nodelay(true)),
        }
        let path = match &self.tls {
            None => tcp::path(stream),
            Some(acceptor) => {
                let begun = FRONT_HANDSHAKE.start();
                match tokio::time::timeout(self.timeouts.head, acceptor.accept(tcp::path(stream)))
                    .await
                {
                    Ok(Ok(stream)) => {
                        FRONT_HANDSHAKE.stop(begun, 0);
                        crate::transport::tls::wrap(stream.into())
                    }
                    Ok(Err(error)) => {
                        return Err(Error::new(Kind::Tls, Side::Client, error.to_string()));
                    }
                    Err(_) => {
                        return Err(Error::new(
                            Kind::Timeout,
                            Side::Client,
                            "the TLS handshake did not end in time",
                        ));
                    }
                }
            }
        };
        let session = NEXT_SESSION.fetch_add(1, Ordering::Relaxed);
        let peer = Peer {
            session,
            address: Some(address.ip()),
            push: false,
        };
        let stage = (self.new_stage)(&path, peer);
        match &self.protocol {
            Protocol::Session(session) => {
                session.serve(path, peer, stage, self.drain.clone()).await
            }
            Protocol::Socks(socks) => socks.serve(path, peer, stage, self.drain.clone()).await,
        }
    }
}

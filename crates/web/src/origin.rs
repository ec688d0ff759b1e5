//! An origin, over HTTP/1.1 or HTTP/2, with TLS or without. It serves a page model and responses
//! for tests of a proxy.
//!
//! | request | response |
//! |---|---|
//! | GET, HEAD of a resource | its body; ranges and `If-None-Match` work |
//! | GET `/bytes/N` | N bytes |
//! | POST `/echo` | the request's body, as it arrives |
//! | POST `/sink` | the number of bytes received, as JSON |
//! | any, with `delay=MS` | the same, delayed |
//! | any, with `status=CODE` | the same with another status |
//! | any, with `framing=chunked` or `framing=close` | the same without `Content-Length` |
//! | any, with `cut=N` | the same, but the connection ends after N bytes of body |
//!
//! The parameters are part of the query and may be combined. In HTTP/2 `framing` leaves the length
//! out, `cut` resets the stream, and `/echo` takes neither these nor a delay. Without TLS, the
//! origin speaks HTTP/2 to clients that begin with its preface (RFC 9113 section 3.3).

mod answer;
mod connection;
mod session;
mod target;
mod tls;

pub use tls::{Protocols, TlsError};

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::page::Site;

/// The time limit for silence between requests.
const IDLE: Duration = Duration::from_secs(60);
/// Wait after a failed accept: there is none for lack of descriptors, and trying at once would only
/// burn time.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// First read of a connection.
const READ: usize = 16 << 10;

/// An origin. Cheap to clone; clones share page and counters.
#[derive(Clone, Debug)]
pub struct Origin {
    shared: Arc<Shared>,
}

struct Shared {
    site: Site,
    answers: answer::Rendered,
    idle: Duration,
    tls: Option<TlsAcceptor>,
    connections: AtomicU64,
    requests: AtomicU64,
    body_bytes: AtomicU64,
    refused: AtomicU64,
    /// The number of cookies set so far, which makes each of them unique.
    cookies: AtomicU64,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("site", &self.site)
            .finish_non_exhaustive()
    }
}

/// The counts of an origin so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Connections accepted.
    pub connections: u64,
    /// Requests with a valid head.
    pub requests: u64,
    /// Body bytes given to the kernel.
    pub body_bytes: u64,
    /// Requests with an invalid head or body.
    pub refused: u64,
}

/// An origin that runs as a task; stops when dropped.
#[derive(Debug)]
pub struct Running {
    /// The origin.
    pub origin: Origin,
    /// The address on which the origin listens.
    pub address: SocketAddr,
    task: JoinHandle<()>,
}

impl Origin {
    /// An origin of this page, without TLS.
    pub fn new(site: Site) -> Self {
        Self::with_tls(site, None)
    }

    /// Creates an origin of this page that accepts only TLS, with its own certificate for the
    /// site's hosts.
    pub fn secure(site: Site, protocols: Protocols) -> Result<Self, TlsError> {
        let acceptor = tls::acceptor(site.authorities(), protocols)?;
        Ok(Self::with_tls(site, Some(acceptor)))
    }

    fn with_tls(site: Site, tls: Option<TlsAcceptor>) -> Self {
        Self {
            shared: Arc::new(Shared {
                answers: answer::Rendered::new(&site),
                site,
                idle: IDLE,
                tls,
                connections: AtomicU64::new(0),
                requests: AtomicU64::new(0),
                body_bytes: AtomicU64::new(0),
                refused: AtomicU64::new(0),
                cookies: AtomicU64::new(0),
            }),
        }
    }

    /// The page.
    pub fn site(&self) -> &Site {
        &self.shared.site
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> Counts {
        let Shared {
            connections,
            requests,
            body_bytes,
            refused,
            ..
        } = &*self.shared;
        Counts {
            connections: connections.load(Ordering::Relaxed),
            requests: requests.load(Ordering::Relaxed),
            body_bytes: body_bytes.load(Ordering::Relaxed),
            refused: refused.load(Ordering::Relaxed),
        }
    }

    /// Serves connections from `listener` until dropped, and closes them then.
    pub fn serve(&self, listener: TcpListener) -> impl Future<Output = ()> + Send + use<> {
        let shared = Arc::clone(&self.shared);
        async move {
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => match accepted {
                        Ok((stream, _)) => {
                            shared.connections.fetch_add(1, Ordering::Relaxed);
                            connections.spawn(accept(stream, Arc::clone(&shared)));
                        }
                        Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
                    },
                    Some(_) = connections.join_next() => {}
                }
            }
        }
    }

    /// Serves as a task.
    pub fn spawn(&self, listener: TcpListener) -> std::io::Result<Running> {
        let address = listener.local_addr()?;
        let task = tokio::spawn(self.serve(listener));
        Ok(Running {
            origin: self.clone(),
            address,
            task,
        })
    }
}

/// Detects the protocol of a connection, and serves it. Failures are visible to the client only.
async fn accept(mut stream: TcpStream, shared: Arc<Shared>) {
    let _ = stream.set_nodelay(true);
    let Some(acceptor) = shared.tls.clone() else {
        return match beginning(&mut stream, shared.idle).await {
            (input, true) => session::serve(stream, input, shared).await,
            (input, false) => connection::serve(stream, input, shared).await,
        };
    };
    let Ok(Ok(stream)) = timeout(shared.idle, acceptor.accept(stream)).await else {
        return;
    };
    if stream.get_ref().1.alpn_protocol() == Some(tls::H2) {
        session::serve(stream, BytesMut::new(), shared).await;
    } else {
        connection::serve(stream, BytesMut::new(), shared).await;
    }
}

/// Returns the first bytes of a connection, and true if they are the preface of HTTP/2. HTTP/1.1
/// handles a connection that ends or breaks too early to tell.
async fn beginning(stream: &mut TcpStream, limit: Duration) -> (BytesMut, bool) {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let mut input = BytesMut::with_capacity(READ);
    loop {
        let known = input.len().min(PREFACE.len());
        if input[..known] != PREFACE[..known] {
            return (input, false);
        }
        if known == PREFACE.len() {
            return (input, true);
        }
        match timeout(limit, stream.read_buf(&mut input)).await {
            Ok(Ok(1..)) => {}
            _ => return (input, false),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

//! An HTTP/1.1 origin that serves a page model, and answers what tests of a proxy need to ask.
//!
//! | request | answer |
//! |---|---|
//! | GET, HEAD of a resource | its body; ranges and `If-None-Match` work |
//! | GET `/bytes/N` | N bytes |
//! | POST `/echo` | the request's body, as it arrives |
//! | POST `/sink` | how many bytes came, as JSON |
//! | any, with `delay=MS` | the same, so much later |
//! | any, with `status=CODE` | the same with another status |
//! | any, with `framing=chunked` or `framing=close` | the same without `Content-Length` |
//! | any, with `cut=N` | the same, but the connection ends after N bytes of body |
//!
//! The parameters stand in the query and may be combined.

mod answer;
mod connection;
mod target;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};

use crate::page::Site;

/// How long a connection may be silent between requests.
const IDLE: Duration = Duration::from_secs(60);
/// Wait after a failed accept: there is none for lack of descriptors, and trying at once would only burn time.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// An origin. Cheap to clone; clones share page and counters.
#[derive(Clone, Debug)]
pub struct Origin {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    site: Site,
    answers: answer::Rendered,
    idle: Duration,
    connections: AtomicU64,
    requests: AtomicU64,
    body_bytes: AtomicU64,
    refused: AtomicU64,
}

/// What an origin has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Connections accepted.
    pub connections: u64,
    /// Requests whose head was understood.
    pub requests: u64,
    /// Body bytes given to the kernel.
    pub body_bytes: u64,
    /// Requests whose head or body was not understood.
    pub refused: u64,
}

/// An origin that runs as a task; stops when dropped.
#[derive(Debug)]
pub struct Running {
    /// The origin.
    pub origin: Origin,
    /// Where it listens.
    pub address: SocketAddr,
    task: JoinHandle<()>,
}

impl Origin {
    /// An origin of this page.
    pub fn new(site: Site) -> Self {
        Self {
            shared: Arc::new(Shared {
                answers: answer::Rendered::new(&site),
                site,
                idle: IDLE,
                connections: AtomicU64::new(0),
                requests: AtomicU64::new(0),
                body_bytes: AtomicU64::new(0),
                refused: AtomicU64::new(0),
            }),
        }
    }

    /// The page.
    pub fn site(&self) -> &Site {
        &self.shared.site
    }

    /// What it has done so far.
    pub fn counts(&self) -> Counts {
        let Shared { connections, requests, body_bytes, refused, .. } = &*self.shared;
        Counts {
            connections: connections.load(Ordering::Relaxed),
            requests: requests.load(Ordering::Relaxed),
            body_bytes: body_bytes.load(Ordering::Relaxed),
            refused: refused.load(Ordering::Relaxed),
        }
    }

    /// Serves what `listener` accepts until dropped; its connections end with it.
    pub fn serve(&self, listener: TcpListener) -> impl Future<Output = ()> + Send + use<> {
        let shared = Arc::clone(&self.shared);
        async move {
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => match accepted {
                        Ok((stream, _)) => {
                            shared.connections.fetch_add(1, Ordering::Relaxed);
                            connections.spawn(connection::serve(stream, Arc::clone(&shared)));
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
        Ok(Running { origin: self.clone(), address, task })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

//! A loader that behaves like a browser and checks every byte. It loads a page model over
//! connections of HTTP/1.1 or one session of HTTP/2 for each authority, with TLS or without,
//! directly, through an HTTP proxy or through SOCKS5.
//!
//! ```text
//!  Plan: known resources, free connections ────▶ fetch: one request on one connection ──▶ Timing
//!    ▲                                                  │                   or session
//!    └───────────── references, as they arrive ─────────┘
//! ```
//!
//! It sends only to the configured proxy; without one, to the authorities of the site.

mod connection;
mod cookies;
mod fetch;
mod metered;
mod plan;
mod request;
mod resolve;
mod session;
mod tls;
mod via;

use std::time::{Duration, Instant};

use tandem_http::h1::{BadBody, BadResponse};
use tandem_http::socks::SocksError;

pub use cookies::BrowserCookies;
pub use via::{BadVia, Via};

use crate::page::Site;

/// The settings of the loader.
#[derive(Clone, Debug)]
pub struct Loader {
    /// The way to the origins.
    pub via: Via,
    /// The protocol to the origins. Default [`Protocol::Http1`].
    pub protocol: Protocol,
    /// Requests in flight to one authority: connections of HTTP/1.1, streams of HTTP/2. Default 6,
    /// as browsers have connections.
    pub per_host: usize,
    /// Connections in all. Default 256, as Chromium without a proxy.
    pub total: usize,
    /// The connections of HTTP/1.1 that need no request. Default [`Ahead::None`].
    pub ahead: Ahead,
    /// When resources become known. Default [`Discovery::Triggers`].
    pub discovery: Discovery,
    /// Time for the whole page. Default 300 s.
    pub deadline: Duration,
    /// SOCKS: send the first request with the handshake instead of waiting for its end as browsers
    /// do. Default false.
    pub optimistic: bool,
    /// Names (`*` stands for any text) and the address, perhaps with a port, that they mean without
    /// a proxy.
    pub resolve: Vec<(String, String)>,
    /// The time since an earlier visit of the browser, whose cache holds the page as its caching
    /// fields permit: fresh resources need no request, and stale ones with a validator a
    /// conditional one. `None` for a browser with an empty cache. Default `None`.
    pub revisit: Option<Duration>,
    /// The cookies of earlier loads by the same browser, to which this load adds its own. Default
    /// `None`: the load begins without cookies, or after `revisit` with those of the page.
    pub jar: Option<BrowserCookies>,
    /// Fields sent with every request besides a browser's, such as `Proxy-Authorization`.
    pub headers: Vec<(String, String)>,
}

/// The protocol to the origins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1, one request after the other on each connection.
    Http1,
    /// HTTP/2, one session for each authority: after TLS, or at once (RFC 9113 section 3.3).
    H2,
}

impl Protocol {
    /// Returns the protocol's ALPN name.
    pub(crate) const fn alpn(self) -> &'static [u8] {
        match self {
            Self::Http1 => b"http/1.1",
            Self::H2 => b"h2",
        }
    }
}

/// The connections that exist before requests need them. Their number is [`Loader::per_host`].
/// Browsers have none, and these show the least time of any loader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ahead {
    /// No connections.
    #[default]
    None,
    /// Connections to the host of the page, dialled when the load begins.
    Page,
    /// Connections to each host, open when the load begins.
    All,
}

/// The time at which resources become known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discovery {
    /// When the parent's reference has arrived: in documents the reference itself, otherwise the
    /// whole parent.
    Triggers,
    /// All at the start.
    List,
}

/// A page load.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Load {
    /// Name of the page.
    pub page: String,
    /// The time of its start.
    #[serde(skip)]
    pub started: std::time::SystemTime,
    /// From the first byte sent to the last byte received.
    pub time: Duration,
    /// Bytes written to sockets, SOCKS included.
    pub bytes_up: u64,
    /// Bytes read from sockets, SOCKS included.
    pub bytes_down: u64,
    /// Connections opened.
    pub connections: usize,
    /// Requests sent again because a kept connection turned out to be closed.
    pub retries: usize,
    /// Every request, in the order they ended.
    pub requests: Vec<Timing>,
}

/// The phases of a request. Times from the start of the load; durations follow one another without
/// gaps from `start`: connect, send, wait, receive.
///
/// In a session the bytes of a request are those at the socket since another one ended: their sum
/// is right.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Timing {
    /// Index of the resource.
    pub resource: usize,
    /// Status of the answer.
    pub status: u16,
    /// The time at which it became known.
    pub known: Duration,
    /// When its turn came; until then it waited for a connection.
    pub start: Duration,
    /// Opening the connection, SOCKS and TLS included; `None` on a kept one.
    pub connect: Option<Duration>,
    /// TLS, a part of that.
    pub tls: Option<Duration>,
    /// Giving the request to the kernel.
    pub send: Duration,
    /// The time from there to the first byte of the response.
    pub wait: Duration,
    /// The time from there to the last byte of the response.
    pub receive: Duration,
    /// Bytes sent for it.
    pub bytes_up: u64,
    /// Bytes received for it, heads and framing included.
    pub bytes_down: u64,
    /// Bytes of its body.
    pub body: u64,
    /// The `Cache-Status` of a proxy on the way (RFC 9211).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Timing {
    /// When the last byte came, from the start of the load.
    pub fn end(&self) -> Duration {
        self.start + self.connect.unwrap_or_default() + self.send + self.wait + self.receive
    }
}

/// An error of a page load.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A resource failed.
    #[error("{url}: {fault}")]
    Resource {
        /// The URL of the resource.
        url: String,
        /// The fault.
        fault: Fault,
    },
    /// The deadline passed.
    #[error("{done} of {known} known resources loaded after {after:?}")]
    Deadline {
        /// Resources loaded.
        done: usize,
        /// Resources known.
        known: usize,
        /// The deadline.
        after: Duration,
    },
    /// The limit of connections is 0.
    #[error("no connections allowed")]
    NoConnections,
    /// A field of [`Loader::headers`] that would break the request.
    #[error("not a header field: {0:?}")]
    Header(String),
}

/// The failure of a resource.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// A connection to the proxy or origin failed.
    #[error("cannot connect to {to}: {source}")]
    Connect {
        /// The address of the proxy or origin.
        to: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(#[from] std::io::Error),
    /// TLS failed.
    #[error("TLS: {0}")]
    Tls(std::io::Error),
    /// The TLS client could not be created.
    #[error("TLS cannot be used: {0}")]
    TlsConfig(#[from] rustls::Error),
    /// The authority is none that TLS can ask for.
    #[error("the host has no name for TLS")]
    Name,
    /// The server speaks another protocol.
    #[error("the server does not speak the requested protocol")]
    Protocol,
    /// The proxy opens no tunnel.
    #[error("the proxy opens no tunnel: status {status}")]
    Tunnel {
        /// The status of the proxy's response.
        status: u16,
    },
    /// The server ended a stream.
    #[error("the server reset the stream: {0:?}")]
    Reset(tandem_http::Reason),
    /// The connection ended before an answer.
    #[error("the connection ended before an answer")]
    Closed,
    /// SOCKS refuses or is not understood.
    #[error(transparent)]
    Socks(#[from] SocksError),
    /// The answer's head is not understood.
    #[error("the answer is not valid: {0}")]
    Head(#[from] BadResponse),
    /// The answer's body is not understood, or ended early.
    #[error("the body is not valid: {0}")]
    Body(#[from] BadBody),
    /// Another status than the page's.
    #[error("status {got} instead of {wanted}{detail}")]
    Status {
        /// The page's.
        wanted: u16,
        /// The answer's.
        got: u16,
        /// The proxy's explanation.
        detail: String,
    },
    /// The body is not the resource's.
    #[error("the body differs from the page's at byte {at} of {len}")]
    Content {
        /// First wrong or missing byte.
        at: usize,
        /// Length of the right body.
        len: usize,
    },
}

impl Loader {
    /// A loader with the defaults.
    pub const fn new(via: Via) -> Self {
        Self {
            via,
            protocol: Protocol::Http1,
            per_host: 6,
            total: 256,
            ahead: Ahead::None,
            discovery: Discovery::Triggers,
            deadline: Duration::from_secs(300),
            optimistic: false,
            resolve: Vec::new(),
            revisit: None,
            jar: None,
            headers: Vec::new(),
        }
    }

    /// Loads the page and checks every status and body.
    pub async fn load(&self, site: &Site) -> Result<Load, LoadError> {
        if self.per_host == 0 || self.total == 0 {
            return Err(LoadError::NoConnections);
        }
        if let Some((name, _)) = self
            .headers
            .iter()
            .find(|(name, value)| !request::is_field(name, value))
        {
            return Err(LoadError::Header(name.clone()));
        }
        let connector = tls::connector(self.protocol);
        let connector = connector.map_err(|error| LoadError::Resource {
            url: site.url(0),
            fault: error.into(),
        })?;
        let mut plan = plan::Plan::new(self.clone(), site.clone(), connector, Instant::now());
        plan.open_ahead().await?;
        match tokio::time::timeout(self.deadline, plan.run()).await {
            Ok(result) => result?,
            Err(_) => return Err(plan.deadline_error()),
        }
        Ok(plan.into_load())
    }
}

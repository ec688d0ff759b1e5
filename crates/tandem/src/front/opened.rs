//! HTTPS that the client opens because the user has listed the host.
//!
//! ```text
//!  CONNECT ─▶ agreement ─▶ ClientHello ─┬─▶ TLS to the origin ─▶ TLS to the browser
//!                                       │     exchanges ─▶ inside ─▶ origin
//!                                       └─▶ splice: the tunnel, untouched
//! ```
//!
//! The connection to the origin comes first. If its certificate is not valid, if it asks for a
//! client certificate, or if both ends share no protocol, the browser's bytes go to the origin as
//! they are. The browser then sees the origin's own certificate and gives its own verdict. The same
//! happens to hosts that a program has refused to trust (`remembered`), without a valid authority,
//! and above the limit of connections.
//!
//! Each listed host has a way ([`OpenedStages`]): this program fetches its resources through the
//! tunnel, or the gateway does. In the second case, the gateway verifies the certificate.
//!
//! Each connection of the browser has separate connections to the origin, so that the browser's
//! partitions stay apart. A failure inside becomes an error page of this program with the reason,
//! as in plain HTTP. No page of a gateway or of another proxy appears under the name of a site.
//! If the certificate of the origin has become invalid, or the gateway has ceased to consent, the
//! exchange is reset instead. The browser then connects again and meets the origin itself.

mod hello;
mod inside;
mod proxies;
mod remembered;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use rustls::{AlertDescription, ServerConfig};
use tandem_http::ResponseHead;
use tokio::io::AsyncWriteExt as _;
use tokio_rustls::StartHandshake;

use super::early::{follow, tell};
use super::over_h2::BrowserOverH2;
use crate::carrier::LocalBoxFuture;
use crate::connections::SessionNumbers;
use crate::endpoint::split_authority;
use crate::error::{Error, Kind, Side};
use crate::exchange::{Exchange, Isolation, Part, Peer, Reply, Sink};
use crate::log_limit::LogLimit;
use crate::metrics::METRICS;
use crate::path::Path;
use crate::session::{Drain, Serve, Task, http1};
use crate::stage::{SessionPool, SessionPools, Stage};
use crate::transport::tls::leaves::{Leaves, NoLeaf};
use crate::transport::tls::wrap;
use hello::Hello;
use inside::Inside;
pub use proxies::ProxyConnections;
use remembered::{OTHER_FAILURE, TLS_FAILURE};
pub use remembered::{RememberedHosts, VERIFIED};

/// The largest number of connections that are open at once. Further ones are spliced.
const MAX_OPEN: usize = 256;

/// The time for a ClientHello. A program that is silent for longer waits for the far end.
const HELLO_TIME: Duration = Duration::from_secs(3);

/// The bytes of TLS records that wait in each direction between the tunnel and its near end.
const BUFFER: usize = 64 << 10;

/// Returns the way of a host, in lower case, and a port, if the user has listed them.
pub type Listed = Box<dyn Fn(&str, u16) -> Option<Rc<OpenedStages>>>;

/// The way of the exchanges of opened hosts.
pub struct OpenedStages {
    /// The connections to origins.
    pub origins: Rc<dyn VerifiedOrigins>,
    /// The stage that receives the exchanges.
    pub inside: Rc<dyn Stage>,
}

/// Connects to the origins of opened connections.
pub trait VerifiedOrigins {
    /// Connects over TLS and verifies the origin's certificate. Returns true if the origin speaks
    /// HTTP/2, which is offered if `is_h2_offered`.
    fn connect<'a>(
        &'a self,
        connection: &'a OpenedConnection,
        is_h2_offered: bool,
    ) -> LocalBoxFuture<'a, Result<bool, Error>>;

    /// Forgets that an origin was verified, because an exchange failed. Does nothing if origins are
    /// verified for each connection.
    fn forget(&self, connection: &OpenedConnection);

    /// Closes the idle connections of an opened connection that has ended.
    fn end(&self, session: u64);
}

/// A connection of a browser to a listed host.
#[derive(Clone, Debug)]
pub struct OpenedConnection {
    /// The number of the connection, as in the peer of its exchanges.
    pub session: u64,
    /// The isolation key of the tunnel, and thus of its exchanges.
    pub isolation: Isolation,
    /// The host in lower case.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The number of the HTTP/2 connection of the browser that carries the tunnel, if there is one.
    /// The same context of the browser makes all its tunnels.
    pub proxy: Option<u64>,
}

/// The parts that opened connections need.
pub struct Opening {
    /// The list of the user.
    pub way_of: Listed,
    /// The certificates for browsers.
    pub leaves: Leaves,
    /// HTTP/2 towards the browser.
    pub h2: Rc<dyn Serve>,
    /// HTTP/1.1 towards the browser.
    pub http1: Rc<dyn Serve>,
    /// The pools that know the sessions to gateways.
    pub pools: Rc<dyn SessionPools>,
    /// The time for the browser's handshake.
    pub handshake: Duration,
    /// The numbers of connections.
    pub numbers: SessionNumbers,
    /// The HTTP/2 connections of browsers to the client.
    pub proxies: Rc<ProxyConnections>,
    /// Ends the connections gracefully.
    pub drain: Drain,
    /// The stage that receives all other exchanges, and the tunnels that are spliced.
    pub next: Rc<dyn Stage>,
}

/// The stage that opens HTTPS of listed hosts.
pub struct OpenedHosts(Rc<OpenedState>);

struct OpenedState {
    parts: Opening,
    spliced: RememberedHosts,
    open: Cell<usize>,
}

impl OpenedHosts {
    /// Creates the stage.
    pub fn new(parts: Opening) -> Self {
        Self(Rc::new(OpenedState {
            parts,
            spliced: RememberedHosts::default(),
            open: Cell::new(0),
        }))
    }
}

impl Stage for OpenedHosts {
    fn call(&self, exchange: Exchange) -> Reply {
        let state = Rc::clone(&self.0);
        match state.begin(&exchange) {
            None => state.parts.next.call(exchange),
            Some(place) => Reply::generate(|sink| state.run(place, exchange, sink)),
        }
    }
}

/// A place among the connections that may be open at once, for a connection that may be opened.
struct OpenedPlace {
    state: Rc<OpenedState>,
    way: Rc<OpenedStages>,
    connection: OpenedConnection,
}

impl Drop for OpenedPlace {
    fn drop(&mut self) {
        self.state.open.set(self.state.open.get() - 1);
        self.way.origins.end(self.connection.session);
    }
}

impl OpenedState {
    /// Takes a place for a tunnel to a listed host. Returns `None` if the exchange goes on as it
    /// is.
    fn begin(self: &Rc<Self>, exchange: &Exchange) -> Option<OpenedPlace> {
        let request = &exchange.request;
        if !request.is_connect() || request.protocol.is_some() {
            return None;
        }
        let (host, port) = split_authority(&request.authority, None).ok()?;
        let way = (self.parts.way_of)(&host, port)?;
        let sessions = self.parts.pools.of(&request.authority);
        let isolation = exchange.isolation.clone();
        let is_known = self.spliced.contains(&isolation, &host, port)
            // The far end's response then carries the reason for which the last tunnel failed.
            || sessions.has_failed(&isolation, &request.authority);
        if is_known || self.open.get() >= MAX_OPEN {
            METRICS.https_spliced.add(1);
            return None;
        }
        if let Err(problem) = self.parts.leaves.check(&host, SystemTime::now()) {
            warn(&problem);
            METRICS.https_spliced.add(1);
            return None;
        }
        self.open.set(self.open.get() + 1);
        let proxy = exchange.peer.session;
        Some(OpenedPlace {
            state: Rc::clone(self),
            way,
            connection: OpenedConnection {
                session: self.parts.numbers.next(),
                isolation,
                host,
                port,
                proxy: self.parts.proxies.contains(proxy).then_some(proxy),
            },
        })
    }

    /// Agrees to the tunnel, and opens or splices it.
    async fn run(
        self: Rc<Self>,
        place: OpenedPlace,
        exchange: Exchange,
        mut sink: Sink,
    ) -> Result<(), Error> {
        let sessions = self.parts.pools.of(&exchange.request.authority);
        if !sessions.is_live(&exchange.isolation) {
            sessions.establish(&exchange.isolation).await?;
        }
        sink.send(Part::Head(ResponseHead::new(200))).await;
        let read = Hello::read(exchange.body.share());
        let hello = tokio::time::timeout(HELLO_TIME, read).await.ok().flatten();
        let connection = &place.connection;
        let hello = hello.filter(|hello| hello.names(&connection.host));
        let opened = match hello {
            None => None,
            Some(hello) => {
                let server = self.verify(&place, &hello).await;
                server.map(|server| (hello, server))
            }
        };
        match opened {
            None => {
                drop(place);
                self.splice(exchange, &*sessions, sink).await
            }
            Some((hello, server)) => serve(place, exchange, hello, server, sink).await,
        }
    }

    /// Connects to the origin, and returns the server that stands for it. Returns `None` if the
    /// connection is to be spliced.
    async fn verify(&self, place: &OpenedPlace, hello: &Hello) -> Option<OriginServer> {
        let connection = &place.connection;
        let connected = place.way.origins.connect(connection, hello.offers_h2);
        let is_h2 = match connected.await {
            Ok(is_h2) => is_h2,
            Err(error) => {
                // The site may just not speak the only protocol of a simple program or a WebSocket.
                // That decides nothing for other connections.
                if hello.offers_h2 && hello.offers_http1 {
                    self.splice_later(connection, &error);
                }
                return None;
            }
        };
        if !is_h2 && !hello.offers_http1 {
            return None;
        }
        let alpn: &[u8] = if is_h2 { b"h2" } else { b"http/1.1" };
        let now = SystemTime::now();
        match self.parts.leaves.server(&connection.host, alpn, now) {
            Ok(config) => Some(OriginServer { config, is_h2 }),
            Err(problem) => {
                warn(&problem);
                None
            }
        }
    }

    /// Notes that an exchange failed before its head. Returns true if the browser is to connect
    /// again, and meets the origin's certificate then.
    fn exchange_failed(
        &self,
        origins: &dyn VerifiedOrigins,
        connection: &OpenedConnection,
        error: &Error,
    ) -> bool {
        origins.forget(connection);
        let is_tls = error.kind == Kind::Tls && !error.side.is_before_origin();
        // A gateway that has ceased to consent.
        let is_refused = error.kind == Kind::Forbidden;
        if is_tls || is_refused {
            self.splice_later(connection, error);
        }
        is_tls || is_refused
    }

    /// Splices the later connections to a host, unless the gateway could not be reached.
    fn splice_later(&self, connection: &OpenedConnection, error: &Error) {
        static SPLICED: LogLimit = LogLimit::new();
        // A gateway that does not consent will not do so in a moment.
        let is_refused = error.kind == Kind::Forbidden;
        if error.side.is_before_origin() && !is_refused {
            return;
        }
        let OpenedConnection {
            isolation,
            host,
            port,
            ..
        } = connection;
        let time = match error.kind {
            Kind::Tls => TLS_FAILURE,
            _ => OTHER_FAILURE,
        };
        self.spliced.note(isolation, host, *port, time);
        if SPLICED.admit().is_some() {
            let what = "HTTPS of a listed host is passed on unopened for now";
            match is_refused {
                true => tracing::warn!("{what}: {error}"),
                false => tracing::info!("{what}: {error}"),
            }
        }
    }

    /// Passes the browser's bytes on as they are.
    async fn splice(
        &self,
        exchange: Exchange,
        sessions: &dyn SessionPool,
        mut sink: Sink,
    ) -> Result<(), Error> {
        METRICS.https_spliced.add(1);
        if !exchange.body.rewind() {
            let detail = "the first bytes are too long to be sent again";
            return Err(Error::new(Kind::TooLarge, Side::Client, detail));
        }
        let isolation = exchange.isolation.clone();
        let authority = exchange.request.authority.clone();
        let failed = |error: &Error| {
            tell(error);
            sessions.failed(&isolation, &authority);
        };
        follow(self.parts.next.call(exchange), failed, &mut sink).await
    }
}

/// Logs the reason for which a listed host got no certificate.
fn warn(problem: &NoLeaf) {
    static UNCERTIFIED: LogLimit = LogLimit::new();
    if UNCERTIFIED.admit().is_some() {
        tracing::warn!("HTTPS of a listed host is not opened: {problem}");
    }
}

/// The TLS server that stands for an origin.
struct OriginServer {
    config: Arc<ServerConfig>,
    is_h2: bool,
}

/// Serves an opened connection at the near end of its tunnel.
async fn serve(
    place: OpenedPlace,
    exchange: Exchange,
    hello: Hello,
    server: OriginServer,
    mut sink: Sink,
) -> Result<(), Error> {
    let (near, far) = Path::pair(BUFFER);
    let facts = Rc::clone(near.facts());
    let (read, mut write) = tokio::io::split(near);
    let Hello { accepted, rest, .. } = hello;
    let start = StartHandshake::from_parts(accepted, far);
    let _serving = Task::spawn(serve_browser(place, start, server));
    // The near end fails only if the task has ended, and the tunnel then ends too.
    let _ = write.write_all(&rest).await;
    let up = (exchange.body.share(), Bytes::new());
    // The session behind it has its own limits.
    let patience = http1::Patience::Unlimited;
    http1::tunnel(read, write, facts, up, &mut sink, patience).await
}

/// Completes the browser's handshake and serves its requests.
async fn serve_browser(place: OpenedPlace, start: StartHandshake<Path>, server: OriginServer) {
    let state = &place.state;
    let handshake = start.into_stream(server.config);
    let stream = match tokio::time::timeout(state.parts.handshake, handshake).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            if let Some(refusal) = refusal(&error) {
                state.splice_later(&place.connection, &refusal);
            }
            return;
        }
        Err(_) => return,
    };
    METRICS.https_opened.add(1);
    let ending = state.parts.drain.child();
    let session = match server.is_h2 {
        true => &state.parts.h2,
        false => &state.parts.http1,
    };
    let peer = Peer {
        session: place.connection.session,
        address: None,
        push: false,
    };
    let failing = (
        Rc::clone(state),
        Rc::clone(&place.way.origins),
        ending.clone(),
    );
    let inside = Inside {
        connection: place.connection.clone(),
        next: Rc::clone(&place.way.inside),
        failed: Rc::new(move |connection: &OpenedConnection, error: &Error| {
            let (state, origins, ending) = &failing;
            let connects_again = state.exchange_failed(&**origins, connection, error);
            if connects_again {
                ending.begin();
            }
            connects_again
        }),
    };
    let stage: Rc<dyn Stage> = match server.is_h2 {
        true => Rc::new(BrowserOverH2 {
            next: Rc::new(inside),
        }),
        false => Rc::new(inside),
    };
    let path = wrap(stream.into());
    if let Err(error) = session.serve(path.into(), peer, stage, ending).await {
        tracing::debug!(%error, "an opened connection ended");
    }
}

/// Returns the browser's refusal of the certificate, if its alert ended the handshake.
fn refusal(error: &std::io::Error) -> Option<Error> {
    let tls = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    let rustls::Error::AlertReceived(alert) = tls else {
        return None;
    };
    let is_refusal = !matches!(
        alert,
        AlertDescription::CloseNotify | AlertDescription::UserCanceled
    );
    is_refusal.then(|| {
        let detail = format!(
            "a program does not trust the local authority there (TLS alert {alert:?}); if it is \
             the browser, run `tandem trust` and restart it"
        );
        Error::new(Kind::Tls, Side::Client, detail)
    })
}

//! The stages for HTTPS that the client opens, between the browser's TLS and the origin's.
//!
//! ```text
//!  opened ─┬─▶ websocket ─▶ pair_fields ─▶ record ─▶ exchange_metrics ─▶ access_log ─▶ part ──┐
//!          │                    TLS ◀── origin ◀── opened_origins ◀── early ◀── discovery ◀──┘
//!          ├─▶ splice ─▶ next ◀── tunnels ◀─┘
//!          └─▶ websocket ─▶ next, at the level `gateway`
//! ```

pub(super) mod early;
mod probes;

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use tandem_http::Scheme;
use tandem_http::h1::Limits;

use super::discovery::SiteLanes;
use super::lanes::RESPONSE;
use super::{http1_session, logged, mux_session};
use crate::back::opened_origins::{BrowserContext, OpenedOrigins};
use crate::back::origin::prepare::Prepared;
use crate::back::origin::{
    Limits as OriginLimits, Mode, Origin, OriginProtocols, OriginTransports, ToOrigin,
};
use crate::carrier::LocalBoxFuture;
use crate::config::open::{EarlyRequests, OpenLevel, OpenedHttps};
use crate::config::{ClientConfig, ConfigError};
use crate::connections::SessionNumbers;
use crate::endpoint::join_authority;
use crate::error::{Error, Kind, Side};
use crate::exchange::{Exchange, Isolation, Part};
use crate::front::opened::{
    OpenedConnection, OpenedHosts, OpenedStages, Opening, ProxyConnections, RememberedHosts,
    VERIFIED, VerifiedOrigins,
};
use crate::journal::Journal;
use crate::middle::entrusted::{Entrusted, is_consenting, probe};
use crate::middle::exchange_metrics::ExchangeMetrics;
use crate::middle::pair_fields::{Edge, PairFields};
use crate::middle::record::Record;
use crate::middle::routes::Routes;
use crate::middle::websocket::WebSocketKey;
use crate::role_name::RoleName;
use crate::services::Services;
use crate::session::http1::Http1Session;
use crate::session::mux::Multiplexed;
use crate::session::{Drain, Serve};
use crate::stage::{SessionPools, Stage};
use crate::transport::connect::ConnectTunnels;
use crate::transport::tls::leaves::Leaves;
use crate::transport::tls::verified::VerifiedTls;
use crate::transport::{Dial, Target};
use probes::SharedProbes;

/// The streams that a browser may open at once on an opened connection.
const STREAMS: u32 = 256;

/// The window of an upload from the browser, which is on this machine.
const STREAM_WINDOW: u32 = 256 << 10;

/// The bytes of uploads that may be under way on one connection.
const SESSION_WINDOW: u32 = 1 << 20;

/// The largest number of origins that the gateway verifies when the client starts.
const MAX_AHEAD: usize = 16;

/// The parts of a client that opened connections use.
pub(super) struct OpenedParts<'a> {
    /// The stage that receives tunnels.
    pub(super) next: &'a Rc<dyn Stage>,
    pub(super) routes: &'a Rc<Routes>,
    pub(super) services: &'a Services,
    pub(super) drain: &'a Drain,
    /// The HTTP/2 connections of browsers.
    pub(super) proxies: &'a Rc<ProxyConnections>,
    /// The hosts whose certificates the gateways have verified.
    pub(super) verified: &'a Rc<RememberedHosts>,
    /// The lanes of gateways that sites announce.
    pub(super) site_lanes: SiteLanes,
}

impl ClientConfig {
    /// Creates the stage that opens HTTPS of listed hosts, with the local authority in `directory`.
    pub(super) fn opened_hosts(
        &self,
        open: &OpenedHttps,
        directory: &Path,
        parts: OpenedParts<'_>,
    ) -> Result<Rc<dyn Stage>, ConfigError> {
        let tunnels = Rc::new(ConnectTunnels {
            next: Rc::clone(parts.next),
        });
        let origins = self.opened_origins(open, &tunnels, parts.services)?;
        let journal = parts.services.journal();
        let after_reload = &parts.site_lanes.shared.after_reload;
        let lane = self.early_lane(open, &origins, journal, after_reload);
        let ending = Rc::downgrade(&origins);
        parts.proxies.on_end(move |connection| {
            if let Some(origins) = ending.upgrade() {
                origins.end_part(connection);
            }
        });
        let tunnels: Rc<dyn Dial> = tunnels;
        let discovering =
            self.discovering_opened(open, lane, &origins, &tunnels, parts.site_lanes)?;
        let local = Rc::new(OpenedStages {
            inside: self.inside(discovering, parts.services.journal()),
            origins: Rc::new(Origins {
                is_shared: open.early == EarlyRequests::Shared,
                origins,
            }),
        });
        let at_gateway = Rc::new(OpenedStages {
            inside: Rc::new(WebSocketKey {
                next: Rc::clone(parts.next),
            }),
            origins: Rc::new(OriginsOfGateway {
                routes: Rc::clone(parts.routes),
                verified: Rc::clone(parts.verified),
                probes: SharedProbes::default(),
            }),
        });
        if self.preconnect && self.via.is_none() {
            self.verify_ahead(open, &at_gateway, parts.services.session_numbers());
        }
        let listed = open.clone();
        let head = Limits::default().head;
        let mut h2 = mux_session(Multiplexed::H2, &self.path, STREAMS, head, RoleName::Client);
        h2.config.stream_window = STREAM_WINDOW;
        h2.config.session_window = SESSION_WINDOW;
        // Firefox 153 leaves `Cookie` and `Origin` out of an extended CONNECT behind a proxy.
        // Without the setting, browsers open WebSockets over HTTP/1.1, as for most sites.
        h2.config.extended_connect = false;
        let http1 = Http1Session {
            scheme: Scheme::Https,
            ends_unasked: true,
            ..http1_session(RoleName::Client, &self.path)
        };
        tracing::info!(
            "HTTPS of the listed hosts is opened on this machine ({} hosts), and fetched by the \
             gateway ({} hosts)",
            open.hosts.len(),
            open.at_gateway.len()
        );
        Ok(Rc::new(OpenedHosts::new(Opening {
            way_of: Box::new(move |host, port| match listed.level(host, port)? {
                OpenLevel::Local => Some(Rc::clone(&local)),
                OpenLevel::Gateway => Some(Rc::clone(&at_gateway)),
            }),
            leaves: Leaves::watch(directory, parts.services.renewals())?,
            h2: Rc::new(h2) as Rc<dyn Serve>,
            http1: Rc::new(http1),
            pools: Rc::clone(parts.routes) as Rc<dyn SessionPools>,
            handshake: self.path.timeouts.head,
            numbers: parts.services.session_numbers().clone(),
            proxies: Rc::clone(parts.proxies),
            drain: parts.drain.clone(),
            next: Rc::clone(parts.next),
        })))
    }

    /// Makes the gateway verify the hosts that the list names, so that the first connection of a
    /// browser waits for no question. Hosts with a route of their own are left out, since only a
    /// request for them contacts its gateways.
    fn verify_ahead(
        &self,
        open: &OpenedHttps,
        at_gateway: &Rc<OpenedStages>,
        numbers: &SessionNumbers,
    ) {
        let named = open.named_at_gateway().into_iter();
        let named = named.filter(|(host, _)| self.route_map.find(host).is_none());
        for (host, port) in named.take(MAX_AHEAD) {
            let connection = OpenedConnection {
                session: numbers.next(),
                isolation: Isolation::none(),
                host: host.to_owned(),
                port,
                proxy: None,
            };
            let way = Rc::clone(at_gateway);
            tokio::task::spawn_local(async move {
                // A connection of the browser asks again, and tells of the failure.
                if let Err(error) = way.origins.connect(&connection, true).await {
                    tracing::debug!(%error, "a listed host is not verified yet");
                }
            });
        }
    }

    /// Creates the connections to origins, which are reached through tunnels.
    fn opened_origins(
        &self,
        open: &OpenedHttps,
        tunnels: &Rc<ConnectTunnels>,
        services: &Services,
    ) -> Result<Rc<OpenedOrigins>, ConfigError> {
        let timeout = self.path.socket.connect_timeout;
        let secure = |alpn: &[&[u8]]| {
            let below = Rc::clone(tunnels) as _;
            VerifiedTls::new(below, open.ca.as_deref(), alpn, timeout).map(Rc::new)
        };
        let transports = OriginTransports {
            secure: secure(&[b"h2", b"http/1.1"])?,
            secure_http1: secure(&[b"http/1.1"])?,
            plain: Rc::clone(tunnels) as _,
            tunnels: Rc::clone(tunnels) as _,
        };
        let head = Limits::default().head;
        let h2 = mux_session(Multiplexed::H2, &self.path, STREAMS, head, RoleName::Client);
        let protocols = OriginProtocols {
            http1: Http1Session {
                response_timeout: RESPONSE,
                ..http1_session(RoleName::Client, &self.path)
            },
            multiplexed: Rc::new(h2),
            always: None,
        };
        let limits = OriginLimits::default();
        let origin = Origin::with(Mode::Forward, transports, protocols, limits);
        let (listed, next) = (open.clone(), Rc::new(ToOrigin(Rc::clone(&origin))));
        let is_local = move |host: &str, port| listed.level(host, port) == Some(OpenLevel::Local);
        let numbers = services.session_numbers().clone();
        let new_number = Box::new(move || numbers.next());
        let is_local = Box::new(is_local);
        Ok(OpenedOrigins::new(origin, next, is_local, new_number))
    }

    /// Creates the stages of exchanges inside opened connections.
    fn inside(&self, to_origin: Rc<dyn Stage>, journal: &Arc<Journal>) -> Rc<dyn Stage> {
        let mut stage: Rc<dyn Stage> = Rc::new(ExchangeMetrics {
            next: logged(self.log_requests, self.log_urls, to_origin),
        });
        if journal.is_recording() {
            stage = Rc::new(Record::new(Arc::clone(journal), stage));
        }
        let edge = Edge::Front;
        let next = Rc::new(PairFields { edge, next: stage });
        Rc::new(WebSocketKey { next })
    }
}

/// The connections as the front sees them.
struct Origins {
    origins: Rc<OpenedOrigins>,
    /// True if all connections with an isolation key share what is learned and requested early.
    is_shared: bool,
}

impl VerifiedOrigins for Origins {
    fn connect<'a>(
        &'a self,
        connection: &'a OpenedConnection,
        is_h2_offered: bool,
    ) -> LocalBoxFuture<'a, Result<bool, Error>> {
        let prepared = Prepared {
            session: connection.session,
            isolation: connection.isolation.clone(),
            target: Target::new(connection.host.clone(), connection.port),
        };
        let part = connection.proxy.unwrap_or(connection.session);
        let context = BrowserContext {
            part: match self.is_shared {
                true => connection.isolation.clone(),
                false => connection.isolation.within(part),
            },
            spans_hosts: self.is_shared || connection.proxy.is_some(),
        };
        Box::pin(self.origins.connect(prepared, context, is_h2_offered))
    }

    /// Each connection verifies its origin.
    fn forget(&self, _: &OpenedConnection) {}

    fn end(&self, session: u64) {
        self.origins.end(session);
    }
}

/// The origins of hosts that the gateway fetches. The gateway verifies their certificates.
struct OriginsOfGateway {
    routes: Rc<Routes>,
    verified: Rc<RememberedHosts>,
    probes: SharedProbes,
}

impl VerifiedOrigins for OriginsOfGateway {
    /// Makes the gateway verify the origin's certificate, unless it has done so a while ago and the
    /// present session has brought a marked response. The gateway speaks any protocol to the
    /// origin, so the browser gets the one that it prefers.
    fn connect<'a>(
        &'a self,
        connection: &'a OpenedConnection,
        is_h2_offered: bool,
    ) -> LocalBoxFuture<'a, Result<bool, Error>> {
        let OpenedConnection {
            isolation,
            host,
            port,
            ..
        } = connection;
        Box::pin(async move {
            let authority = join_authority(host, *port);
            let sessions = self.routes.of(&authority);
            if self.verified.contains(isolation, host, *port)
                && is_consenting(&*sessions, isolation)
            {
                return Ok(is_h2_offered);
            }
            let origin = (isolation.clone(), host.clone(), *port);
            let probe = || self.probe(isolation, &authority);
            self.probes.join(origin, probe).await?;
            self.verified.note(isolation, host, *port, VERIFIED);
            Ok(is_h2_offered)
        })
    }

    fn forget(&self, connection: &OpenedConnection) {
        let OpenedConnection {
            isolation,
            host,
            port,
            ..
        } = connection;
        self.verified.forget(isolation, host, *port);
    }

    fn end(&self, _: u64) {}
}

impl OriginsOfGateway {
    /// Makes the gateway verify the certificate of an origin.
    async fn probe(&self, isolation: &Isolation, authority: &str) -> Result<(), Error> {
        let exchange = Exchange {
            isolation: isolation.clone(),
            ..Exchange::internal(probe(authority))
        };
        let mut reply = self.routes.call(exchange);
        while let Some(part) = reply.part().await {
            if let Part::Head(_) = part? {
                return Ok(());
            }
        }
        let detail = "the gateway has not answered whether the certificate is valid";
        Err(Error::new(Kind::Truncated, Side::Peer, detail))
    }
}

/// Returns the hosts that the user entrusts to gateways. `verified` remembers the origins whose
/// certificates the gateways have verified.
pub(super) fn entrusted(open: &OpenedHttps, verified: &Rc<RememberedHosts>) -> Option<Entrusted> {
    if open.at_gateway.is_empty() {
        return None;
    }
    let (listed, verified) = (open.clone(), Rc::clone(verified));
    Some(Entrusted {
        list: open.list().into(),
        covers: Rc::new(move |host, port| listed.level(host, port) == Some(OpenLevel::Gateway)),
        verified: Rc::new(move |isolation: &Isolation, host: &str, port: u16| {
            if !verified.contains(isolation, host, port) {
                verified.note(isolation, host, port, VERIFIED);
            }
        }),
    })
}

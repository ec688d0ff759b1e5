//! The client: fronts for the browser, and the stages before the choice of a route. `lanes` holds
//! the rest.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tandem_http::h1::Form;

use super::lanes::MAX_KEYS;
use super::{Built, Listening, Role, http1_session, mux_session, opened};
use crate::admin::{own_authorities, pac};
use crate::back::udp::NoUdp;
use crate::config::{ClientConfig, ConfigError};
use crate::connections::{ConnectionLimits, Connections};
use crate::endpoint::{Endpoint, SessionKind};
use crate::exchange::Exchange;
use crate::front::opened::{ProxyConnections, RememberedHosts};
use crate::front::over_h2::BrowserOverH2;
use crate::front::socks::SocksFront;
use crate::front::udp::UdpLimits;
use crate::front::{Front, ListenerProtocol};
use crate::middle::cache::KeyedCache;
use crate::middle::connection_logins::ConnectionLogins;
use crate::middle::continued::after_reload::Continuing;
use crate::middle::isolate::Isolate;
use crate::middle::max_forwards::MaxForwards;
use crate::middle::pair_fields::{Edge, PairFields};
use crate::middle::record::Record;
use crate::middle::routes::Routes;
use crate::middle::solo::SoloSessions;
use crate::middle::track::Track;
use crate::middle::udp_target::UdpTarget;
use crate::middle::websocket::WebSocketKey;
use crate::renewal::Renewals;
use crate::role_name::RoleName;
use crate::services::Services;
use crate::session::Drain;
use crate::session::http1::{Http1Session, OriginForm};
use crate::session::mux::Multiplexed;
use crate::stage::Stage;
use crate::status::{Opened, SessionStatus};
use crate::transport::registry::ListenContext;

impl Role for ClientConfig {
    fn listening(&self) -> Listening<'_> {
        Listening {
            listen: &self.listen,
            transports: &self.transports,
            // All connections of an isolation key share a session.
            workers: 1,
        }
    }

    fn open(&self, services: &Services) -> Result<(), ConfigError> {
        if self.admin.is_some() {
            services.journal().record();
        }
        services.open_cache(self.cache.as_ref());
        services
            .open_digests(self.push_digest_file.as_deref())
            .map_err(|error| ConfigError::value("push-digest-file", error.to_string()))?;
        let solo = self.solo.as_ref();
        let file = solo.and_then(|solo| solo.state.as_deref());
        services
            .open_visits(file, solo.map_or(&[], |solo| &solo.except))
            .map_err(|error| ConfigError::value("solo-state", error.to_string()))
    }

    fn build(
        &self,
        services: &Services,
        listening: &[std::net::SocketAddr],
        drain: &Drain,
    ) -> Result<Built, ConfigError> {
        let verified = Rc::new(RememberedHosts::default());
        let entrusted = self.open.as_ref();
        let entrusted = entrusted.and_then(|open| opened::entrusted(open, &verified));
        let lanes = self.lanes(services, entrusted.map(Rc::new).as_ref())?;
        let routes = Rc::new(lanes.routes);
        let out = self.before_routes(services, &routes);
        let browsers = Rc::new(ProxyConnections::default());
        // Tor Browser comes by SOCKS, and nothing of it is opened.
        let http = match (&self.open, &self.authority) {
            (Some(open), Some(directory)) => {
                let parts = opened::OpenedParts {
                    next: &out,
                    routes: &routes,
                    services,
                    drain,
                    proxies: &browsers,
                    verified: &verified,
                    site_lanes: self.site_lanes(&lanes.discovered, &lanes.shared, services),
                };
                self.opened_hosts(open, directory, parts)?
            }
            _ => Rc::clone(&out),
        };
        let limits = ConnectionLimits {
            total: self.max_connections,
            per_client: self.max_connections,
            listeners: self.listen.len(),
            // The server of HTTP/1.1 answers a half head first, with status 408.
            head: self.path.timeouts.head + HEAD_GRACE,
        };
        let connections = Connections::new(limits, services.session_numbers());
        let parts = FrontParts {
            socks: &out,
            http: &http,
            routes: &routes,
            connections: &connections,
            browsers: &browsers,
            udp_limits: &Rc::default(),
            renewals: services.renewals(),
            drain,
        };
        let fronts = self.fronts(listening, &parts)?;
        let after_reload = lanes.shared.after_reload;
        let continuing = Continuing {
            routes,
            after_reload: after_reload.clone(),
        };
        let (pools, solo) = (lanes.pools.clone(), lanes.solo);
        let (discovered, draining) = (Rc::clone(&lanes.discovered), lanes.discovered);
        Ok(Built {
            fronts,
            connections,
            continuing: Some(Rc::new(continuing)),
            after_reload,
            dialled: Box::new(move || {
                let mut sessions: Vec<_> = pools.iter().flat_map(|pool| pool.status()).collect();
                sessions.extend(solo.iter().flat_map(|solo| solo_status(solo)));
                sessions.extend(discovered.status());
                sessions
            }),
            on_drain: Box::new(move || {
                lanes.pools.iter().for_each(|pool| pool.drain());
                draining.drain();
            }),
        })
    }
}

/// Returns the state of the sessions without a gateway.
fn solo_status(solo: &SoloSessions) -> Vec<SessionStatus> {
    let status = |(opened, exchanges): (tokio::time::Instant, usize)| SessionStatus {
        exchanges: Some(exchanges),
        protocol: Some("solo".into()),
        ..SessionStatus::new(Opened::Here, opened.into_std(), None)
    };
    solo.status().into_iter().map(status).collect()
}

/// Creates the stage behind a listener for HTTP. It answers requests to the listener itself, whose
/// authorities are `own`.
fn from_browser(
    own: Rc<[String]>,
    proxies: Rc<pac::Proxies>,
    is_h2: bool,
    out: Rc<dyn Stage>,
) -> Rc<dyn Stage> {
    let isolate = Isolate {
        next: if is_h2 {
            Rc::new(WebSocketKey { next: out })
        } else {
            out
        },
    };
    Rc::new(move |exchange: Exchange| {
        let request = &exchange.request;
        let is_own = |authority: &String| authority.eq_ignore_ascii_case(&request.authority);
        if !request.is_connect() && own.iter().any(is_own) {
            pac::answer(&exchange, &proxies)
        } else {
            isolate.call(exchange)
        }
    })
}

/// The parts of a client that all its fronts share.
struct FrontParts<'a> {
    /// The stage behind a listener for SOCKS.
    socks: &'a Rc<dyn Stage>,
    /// The stage behind a listener for HTTP.
    http: &'a Rc<dyn Stage>,
    routes: &'a Rc<Routes>,
    connections: &'a Rc<Connections>,
    /// The HTTP/2 connections of browsers.
    browsers: &'a Rc<ProxyConnections>,
    udp_limits: &'a Rc<UdpLimits>,
    renewals: &'a Renewals,
    drain: &'a Drain,
}

/// The time after `head-timeout` at which the table of connections ends one without a request.
const HEAD_GRACE: Duration = Duration::from_secs(1);

/// The protocols of a TLS listener for browsers, best first.
const BROWSER_ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The streams that a browser may open at once on a listener. Chromium asks for 100 at most.
const BROWSER_STREAMS: u32 = 256;

/// The window of an upload from a browser, which is on this machine or near it. All streams of a
/// session have room at once in the memory of a session.
const BROWSER_WINDOW: u32 = 128 << 10;

impl ClientConfig {
    /// Returns the address of the first listener with a session protocol.
    fn listener_of(
        &self,
        session: SessionKind,
        listening: &[std::net::SocketAddr],
    ) -> Option<std::net::SocketAddr> {
        let mut listeners = self.listen.iter().zip(listening);
        listeners
            .find(|(endpoint, _)| endpoint.session == session)
            .map(|(_, address)| *address)
    }

    /// Returns whether a gateway may carry UDP. A proxy such as Tor carries TCP only.
    fn carries_udp(&self) -> bool {
        let has_gateway = !self.gateways.is_empty() || !self.routes.is_empty();
        self.via.is_none() && has_gateway
    }

    /// Returns the stages that all listeners share, up to the choice of a route.
    fn before_routes(&self, services: &Services, routes: &Rc<Routes>) -> Rc<dyn Stage> {
        let journal = services.journal();
        let mut out: Rc<dyn Stage> = Rc::clone(routes) as _;
        if let Some(cache) = services.cache() {
            let keys = self.max_sessions.min(MAX_KEYS);
            out = Rc::new(KeyedCache::new(&cache, keys, self.cache_status, out));
        }
        if self.via.is_some() {
            out = Rc::new(NoUdp {
                reason: "no UDP: the client goes through a proxy (--via), which carries TCP only",
                next: out,
            });
        }
        if journal.is_recording() {
            out = Rc::new(Record::new(Arc::clone(journal), out));
        }
        let out = Rc::new(UdpTarget { next: out });
        let out = Rc::new(MaxForwards { next: out });
        let out = Rc::new(ConnectionLogins::new(out));
        Rc::new(PairFields {
            edge: Edge::Front,
            next: out,
        })
    }

    fn fronts(
        &self,
        listening: &[std::net::SocketAddr],
        parts: &FrontParts<'_>,
    ) -> Result<Vec<Rc<Front>>, ConfigError> {
        let proxies = Rc::new(pac::Proxies {
            https: self.listener_of(SessionKind::H2, listening),
            http: self.listener_of(SessionKind::Http, listening),
            authority: self.authority.clone(),
        });
        let listeners = self.listen.iter().zip(listening).enumerate();
        let fronts = listeners.map(|(listener, (endpoint, address))| {
            let front = self.front(endpoint, *address, &proxies, parts)?;
            Ok(Rc::new(Front { listener, ..front }))
        });
        fronts.collect()
    }

    fn front(
        &self,
        endpoint: &Endpoint,
        address: std::net::SocketAddr,
        proxies: &Rc<pac::Proxies>,
        parts: &FrontParts<'_>,
    ) -> Result<Front, ConfigError> {
        let provider = self.transports.to_listen(endpoint)?;
        let timeout = self.path.timeouts.head;
        let (protocol, stage): (ListenerProtocol, Rc<dyn Stage>) =
            if endpoint.session == SessionKind::Socks5 {
                let socks = SocksFront {
                    http1: Http1Session {
                        ends_unasked: true,
                        ..http1_session(RoleName::Client, &self.path)
                    },
                    pools: Rc::clone(parts.routes) as _,
                    handshake: timeout,
                    early_connect: self.early_connect,
                    udp: self.carries_udp().then_some(address.ip()),
                    udp_limits: Rc::clone(parts.udp_limits),
                };
                (
                    ListenerProtocol::Socks(Rc::new(socks)),
                    Rc::clone(parts.socks),
                )
            } else {
                let own: Rc<[String]> = own_authorities(address, provider.scheme()).into();
                let http1 = Http1Session {
                    form: Form::Absolute,
                    scheme: provider.scheme(),
                    origin_form: OriginForm::Only(Rc::clone(&own)),
                    ends_unasked: true,
                    ..http1_session(RoleName::Client, &self.path)
                };
                let is_h2 = endpoint.session == SessionKind::H2;
                let protocol = if is_h2 {
                    self.negotiated(http1)
                } else {
                    ListenerProtocol::Session(Rc::new(http1))
                };
                let stage = from_browser(own, Rc::clone(proxies), is_h2, Rc::clone(parts.http));
                (protocol, stage)
            };
        let context = ListenContext {
            socket: None,
            client_ca: None,
            optional_certificate: false,
            alpn: Some(&BROWSER_ALPN),
            max_streams: 256,
            authority: self.authority.as_deref(),
            early_data: false,
            timeout,
            renewals: parts.renewals,
        };
        let transport = provider.listening(endpoint, context)?;
        let is_negotiated = matches!(protocol, ListenerProtocol::Negotiated { .. });
        let browsers = Rc::clone(parts.browsers);
        Ok(Front {
            protocol,
            transport,
            new_stage: Rc::new(move |facts, peer, connection| {
                let mut next = Rc::clone(&stage);
                if is_negotiated && facts.alpn() == Some(b"h2") {
                    let over_h2 = Rc::new(BrowserOverH2 { next });
                    next = browsers.begin(peer.session, over_h2);
                }
                Rc::new(Track {
                    connection: Rc::clone(connection),
                    next,
                })
            }),
            connections: Rc::clone(parts.connections),
            listener: 0,
            drain: parts.drain.clone(),
        })
    }

    /// Creates the protocol of a TLS listener, on which a browser chooses HTTP/2 or HTTP/1.1.
    fn negotiated(&self, http1: Http1Session) -> ListenerProtocol {
        let head = http1.limits.head;
        let mut h2 = mux_session(
            Multiplexed::H2,
            &self.path,
            BROWSER_STREAMS,
            head,
            http1.who,
        );
        h2.config.widens_streams = true;
        h2.config.stream_window = h2.config.stream_window.min(BROWSER_WINDOW);
        ListenerProtocol::Negotiated {
            h2: Rc::new(h2),
            http1: Rc::new(http1),
        }
    }
}

//! The client: fronts for the browser, the stages between, and the pool of gateways.

use std::cell::Cell;
use std::rc::Rc;

use tandem_http::h1::{Form, Limits};
use tandem_push::client::{MAX_PUSHES, StoreLimits};

use super::{Built, Role, client_token, http1_session, logged, mux_session};
use crate::admin::{own_authorities, pac};
use crate::back::announce::Announcer;
use crate::back::gateways::{Gateway, Gateways, PoolLimits, ToGateway};
use crate::back::origin::{Limits as OriginLimits, Mode, Origin, ToOrigin};
use crate::config::client::{Fallback, GatewayEndpoint};
use crate::config::{ClientConfig, ConfigError};
use crate::connections::{ConnectionLimits, Connections};
use crate::endpoint::{Endpoint, SessionKind, Via};
use crate::exchange::Exchange;
use crate::front::early::EarlyConnect;
use crate::front::socks::SocksFront;
use crate::front::{Front, Protocol};
use crate::middle::count::Count;
use crate::middle::isolate::Isolate;
use crate::middle::loads::Loads;
use crate::middle::max_forwards::MaxForwards;
use crate::middle::pair_fields::PairFields;
use crate::middle::pushed::{PushOptions, Pushed};
use crate::middle::track::Track;
use crate::middle::websocket::WebSocketKey;
use crate::services::Services;
use crate::session::Drain;
use crate::session::http1::{Http1Session, OriginForm};
use crate::session::mux::{Multiplexed, MuxSession};
use crate::stage::Stage;
use crate::transport::registry::{DialContext, ListenContext, Transports};
use crate::transport::socks::Socks;
use crate::transport::tcp::Tcp;
use crate::transport::tls::ClientTls;
use crate::transport::tor::Tor;
use crate::transport::{Target, Transport};

/// The largest number of isolation keys with a digest for `--push-digest`.
const MAX_DIGESTS: usize = 256;

impl Role for ClientConfig {
    fn listen(&self) -> &[Endpoint] {
        &self.listen
    }

    fn transports(&self) -> &Transports {
        &self.transports
    }

    /// Returns 1, because all connections of an isolation key share a session.
    fn workers(&self) -> usize {
        1
    }

    fn build(
        &self,
        _: &Services,
        listening: &[std::net::SocketAddr],
        drain: &Drain,
    ) -> Result<Built, ConfigError> {
        let gateways = self
            .gateways
            .iter()
            .map(|gateway| self.gateway(gateway))
            .collect::<Result<Vec<_>, _>>()?;
        let limits = PoolLimits {
            max_age: self.max_age,
            max_sessions: self.max_sessions,
            // Over Tor, a new circuit every minute would be a recognisable pattern.
            reconnect: self.via.is_none(),
        };
        let pool = Gateways::new(gateways, limits, self.fallback_stage()?);
        pool.get_ready();
        if self.preconnect {
            pool.preconnect(self.warm_up);
        }
        let to_gateway = Rc::new(ToGateway(Rc::clone(&pool)));
        let loads = Rc::new(Loads::new(Rc::new(self.pushed(&to_gateway))));
        let counted: Rc<dyn Stage> = Rc::new(Count {
            next: logged(self.log_requests, self.log_urls, loads),
        });
        let out: Rc<dyn Stage> = if self.early_connect {
            Rc::new(EarlyConnect {
                sessions: Rc::clone(&to_gateway) as _,
                next: counted,
            })
        } else {
            counted
        };
        let out = Rc::new(MaxForwards { next: out });
        let out: Rc<dyn Stage> = Rc::new(PairFields { next: out });
        let connections = Connections::new(ConnectionLimits {
            total: self.max_connections,
            per_client: self.max_connections,
            listeners: self.listen.len(),
            head: self.path.timeouts.head,
        });
        let mut fronts = Vec::new();
        let proxies = pac::Proxies {
            https: self.listener_of(SessionKind::H2, listening),
            http: self.listener_of(SessionKind::Http, listening),
        };
        for (listener, (endpoint, address)) in self.listen.iter().zip(listening).enumerate() {
            let parts = FrontParts {
                out: &out,
                to_gateway: &to_gateway,
                connections: &connections,
                drain,
            };
            let front = self.front(endpoint, *address, proxies, &parts)?;
            fronts.push(Rc::new(Front { listener, ..front }));
        }
        Ok(Built {
            fronts,
            connections,
            dialled: Box::new({
                let pool = Rc::clone(&pool);
                move || pool.status()
            }),
            on_drain: Box::new(move || pool.drain()),
        })
    }
}

/// Creates the stage behind a listener for HTTP. It answers requests to the listener itself, whose
/// authorities are `own`.
fn from_browser(
    own: Rc<[String]>,
    proxies: pac::Proxies,
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
            pac::answer(&exchange, proxies)
        } else {
            isolate.call(exchange)
        }
    })
}

/// The parts of a client that all its fronts share.
struct FrontParts<'a> {
    out: &'a Rc<dyn Stage>,
    to_gateway: &'a Rc<ToGateway>,
    connections: &'a Rc<Connections>,
    drain: &'a Drain,
}

/// The protocols of a TLS listener for browsers, best first.
const BROWSER_ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The streams that a browser may open at once on a listener. Chromium asks for 100 at most.
const BROWSER_STREAMS: u32 = 256;

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

    /// Creates a stage that sends requests to one gateway only, and logs nothing else.
    ///
    /// # Errors
    /// Fails if the certificates or the token of the gateway cannot be read.
    pub fn path_to(&self, gateway: &GatewayEndpoint) -> Result<Rc<dyn Stage>, ConfigError> {
        let limits = PoolLimits {
            max_age: None,
            max_sessions: 1,
            reconnect: false,
        };
        let pool = Gateways::new(vec![self.gateway(gateway)?], limits, None);
        Ok(Rc::new(ToGateway(pool)))
    }

    /// Creates the stage that accepts pushes.
    fn pushed(&self, to_gateway: &Rc<ToGateway>) -> Pushed {
        let options = PushOptions {
            store: StoreLimits {
                memory: if self.push { self.push_memory } else { 0 },
                cancel_useless: self.cancel_pushes,
            },
            early_hints: self.early_hints,
            cache_status: self.cache_status,
            digest: self.push_digest,
            max_keys: self.max_sessions.min(MAX_DIGESTS),
        };
        Pushed::new(
            options,
            Rc::clone(to_gateway) as _,
            Rc::clone(to_gateway) as _,
        )
    }

    fn front(
        &self,
        endpoint: &Endpoint,
        address: std::net::SocketAddr,
        proxies: pac::Proxies,
        parts: &FrontParts<'_>,
    ) -> Result<Front, ConfigError> {
        let provider = self.transports.of(endpoint)?;
        let timeout = self.path.timeouts.head;
        let (protocol, stage): (Protocol, Rc<dyn Stage>) =
            if endpoint.session == SessionKind::Socks5 {
                let socks = SocksFront {
                    http1: http1_session("client", &self.path),
                    sessions: Rc::clone(parts.to_gateway) as _,
                    handshake: timeout,
                    early_connect: self.early_connect,
                };
                (Protocol::Socks(Rc::new(socks)), Rc::clone(parts.out))
            } else {
                let own: Rc<[String]> = own_authorities(address, provider.scheme()).into();
                let http1 = Http1Session {
                    form: Form::Absolute,
                    scheme: provider.scheme(),
                    origin_form: OriginForm::Only(Rc::clone(&own)),
                    ..http1_session("client", &self.path)
                };
                let is_h2 = endpoint.session == SessionKind::H2;
                let protocol = if is_h2 {
                    self.negotiated(http1)
                } else {
                    Protocol::Session(Rc::new(http1))
                };
                let stage = from_browser(own, proxies, is_h2, Rc::clone(parts.out));
                (protocol, stage)
            };
        let context = ListenContext {
            socket: None,
            client_ca: None,
            optional_certificate: false,
            alpn: Some(&BROWSER_ALPN),
            authority: self.authority.as_deref(),
            timeout,
        };
        let transport = provider.listening(endpoint, context)?;
        Ok(Front {
            protocol,
            transport,
            new_stage: Rc::new(move |_, _, connection| {
                Rc::new(Track {
                    connection: Rc::clone(connection),
                    next: Rc::clone(&stage),
                })
            }),
            connections: Rc::clone(parts.connections),
            listener: 0,
            drain: parts.drain.clone(),
        })
    }

    /// Creates the protocol of a TLS listener, on which a browser chooses HTTP/2 or HTTP/1.1.
    fn negotiated(&self, http1: Http1Session) -> Protocol {
        let head = http1.limits.head;
        let h2 = mux_session(Multiplexed::H2, &self.path, BROWSER_STREAMS, head);
        Protocol::Negotiated {
            h2: Rc::new(MuxSession {
                who: http1.who,
                ..h2
            }),
            http1: Rc::new(http1),
        }
    }

    fn gateway(&self, gateway: &GatewayEndpoint) -> Result<Gateway, ConfigError> {
        let endpoint = &gateway.endpoint;
        let target = Target {
            host: endpoint.host.clone(),
            port: endpoint.port,
        };
        let protocol = Multiplexed::of(endpoint.session).ok_or_else(|| {
            ConfigError::value(
                "gateway",
                "a session over the slow path is h2, spdy3 or spdy3.1",
            )
        })?;
        let mut session = mux_session(
            protocol,
            &self.path,
            MAX_PUSHES as u32,
            Limits::default().head,
        );
        session.config.push = self.push;
        session.token = self.token_file.as_deref().map(client_token).transpose()?;
        let context = DialContext {
            streams: self.byte_streams(gateway),
            address: gateway.address,
            timeout: self.path.socket.connect_timeout,
        };
        let transport = self.transports.of(endpoint)?.dialling(endpoint, context)?;
        let way = self
            .via
            .as_ref()
            .map_or_else(String::new, |via| format!(" through {via}"));
        let carrier = endpoint.transport.to_uppercase();
        let how = format!("{} over {carrier}{way}", endpoint.session.as_str());
        Ok(Gateway {
            blamed: Cell::default(),
            announcer: Announcer::new(endpoint.authority(), how),
            has_token: self.token.is_some(),
            target,
            transport,
            session: Rc::new(session),
        })
    }

    /// Opens byte streams to a gateway, through the proxy if there is one.
    fn byte_streams(&self, gateway: &GatewayEndpoint) -> Rc<dyn Transport> {
        let options = self.path.socket.clone();
        match &self.via {
            None => Rc::new(Tcp {
                options: Some(options),
                pinned: gateway.address,
            }),
            Some(Via::Socks(proxy)) => Rc::new(Socks::new(*proxy, options)),
            Some(control) => Rc::new(Tor::new(
                control.clone(),
                self.tor_password.clone(),
                gateway.exit.clone(),
                options,
            )),
        }
    }

    /// Creates the stage that serves requests without a gateway, over the same proxy, as the
    /// browser would.
    fn fallback_stage(&self) -> Result<Option<Rc<dyn Stage>>, ConfigError> {
        let options = self.path.socket.clone();
        let transport: Rc<dyn Transport> = match (self.fallback, &self.via) {
            (Fallback::None, _) | (Fallback::Via, None) => return Ok(None),
            (Fallback::Via, Some(Via::Socks(proxy))) => Rc::new(Socks::new(*proxy, options)),
            (Fallback::Via, Some(control)) => Rc::new(Tor::new(
                control.clone(),
                self.tor_password.clone(),
                None,
                options,
            )),
        };
        let http1 = http1_session("gateway", &self.path);
        let h2 = Rc::new(mux_session(
            Multiplexed::H2,
            &self.path,
            256,
            Limits::default().head,
        ));
        let connector = ClientTls {
            alpn: vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            ..ClientTls::default()
        }
        .connector()?;
        let (timeout, limits) = (self.path.socket.connect_timeout, OriginLimits::default());
        let origin = Origin::new(
            Mode::Forward,
            transport,
            connector,
            http1,
            h2,
            timeout,
            limits,
        );
        Ok(Some(Rc::new(ToOrigin(origin))))
    }
}

//! Client and gateway as compositions of the same parts: front, middle, back.
//!
//! ```text
//!  client    http1 │ socks5 ─▶ isolate ─▶ local pages │ early ─▶ count ─▶ loads ─▶ pushed ─▶ gateways (pool by isolation)
//!  gateway   h2 (per session: auth)    ─▶ warm-up ─▶ count ─▶ push ─▶ origin (pool, policy)
//! ```

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use tandem_http::h1::{Form, Limits};
use tandem_http::{MuxConfig, Role as End};
use tandem_push::client::{MAX_PUSHES, StoreLimits};

use crate::admin::{own_authorities, pac};
use crate::back::announce::Announcer;
use crate::back::gateways::{Gateway, Gateways, PoolLimits, ToGateway};
use crate::back::origin::{Limits as OriginLimits, Mode, Origin, ToOrigin};
use crate::back::policy::Direct;
use crate::config::client::{Fallback, GatewayEndpoint};
use crate::config::{ClientConfig, ConfigError, GatewayConfig, PathConfig, read_secret};
use crate::connections::{Connection, ConnectionLimits, Connections};
use crate::endpoint::{Endpoint, SessionKind, Via};
use crate::exchange::{Exchange, Peer};
use crate::front::early::EarlyConnect;
use crate::front::socks::SocksFront;
use crate::front::{Front, NewStage, Protocol};
use crate::middle::access_log::AccessLog;
use crate::middle::auth::Auth;
use crate::middle::count::Count;
use crate::middle::isolate::Isolate;
use crate::middle::loads::Loads;
use crate::middle::max_forwards::MaxForwards;
use crate::middle::pair_fields::PairFields;
use crate::middle::push::{NoPush, Push, Pushing};
use crate::middle::pushed::{PushOptions, Pushed};
use crate::middle::track::Track;
use crate::middle::warm_up::WarmUp;
use crate::path::Facts;
use crate::renewal::{self, Renewable};
use crate::services::Services;
use crate::session::http1::{Http1Session, OriginForm};
use crate::session::mux::{Multiplexed, MuxSession};
use crate::session::{Drain, Session};
use crate::stage::Stage;
use crate::status::SessionStatus;
use crate::transport::registry::{DialContext, ListenContext, Transports};
use crate::transport::socks::Socks;
use crate::transport::tcp::Tcp;
use crate::transport::tls::ClientTls;
use crate::transport::tor::Tor;
use crate::transport::{Target, Transport};

/// A role of a process. It names its listeners and can be built on any number of threads.
pub trait Role: Send + Sync {
    /// Returns the endpoints to listen on.
    fn listen(&self) -> &[Endpoint];

    /// Returns the transports that its endpoints name.
    fn transports(&self) -> &Transports;

    /// Returns the number of threads.
    fn workers(&self) -> usize;

    /// Opens the services that the role needs and that are not open yet.
    fn open(&self, _services: &Services) -> Result<(), ConfigError> {
        Ok(())
    }

    /// Builds the parts of one thread: a front for each listener, in order. Runs within the local
    /// task set of that thread.
    fn build(
        &self,
        services: &Services,
        listening: &[std::net::SocketAddr],
        drain: &Drain,
    ) -> Result<Built, ConfigError>;
}

/// The parts of a role on one thread.
pub struct Built {
    /// A front for each listener.
    pub fronts: Vec<Rc<Front>>,
    /// The open connections.
    pub connections: Rc<Connections>,
    /// Returns the state of the sessions that the role has dialled.
    pub dialled: Box<dyn Fn() -> Vec<SessionStatus>>,
    /// Called at the beginning of a drain.
    pub on_drain: Box<dyn Fn()>,
}

/// The number of bytes taken from a session's core at a time. A late, urgent response waits for at
/// most this many bytes.
const WRITE_LIMIT: usize = 16 << 10;

/// The unsent bytes that one stream may hold. A few streams together fill the largest write, and
/// the data of many streams still fits the processor's cache.
const SEND_BUFFER: usize = 64 << 10;

/// Watches the file of a client's token.
fn client_token(file: &str) -> Result<Arc<Renewable<String>>, ConfigError> {
    let path = file.to_owned();
    let load = move || read_secret("token-file", &path);
    let name = format!("the access token in {file}");
    Ok(renewal::watch(Renewable::new(
        name,
        vec![file.into()],
        load,
    )?))
}

/// Watches the files of a gateway's tokens.
fn gateway_tokens(files: &[String]) -> Result<Arc<Renewable<Vec<String>>>, ConfigError> {
    let paths = files.to_vec();
    let load = move || paths.iter().map(|path| read_secret("auth", path)).collect();
    let name = format!("the access tokens in {}", files.join(", "));
    let paths = files.iter().map(Into::into).collect();
    Ok(renewal::watch(Renewable::new(name, paths, load)?))
}

/// Puts the access log before a stage, if it is wanted.
fn logged(requests: bool, urls: bool, next: Rc<dyn Stage>) -> Rc<dyn Stage> {
    if requests || urls {
        Rc::new(AccessLog { urls, next })
    } else {
        next
    }
}

fn mux_session(
    protocol: Multiplexed,
    path: &PathConfig,
    max_streams: u32,
    max_head: usize,
) -> MuxSession {
    let mut config = MuxConfig::new(End::Client);
    config.stream_window = path.stream_window;
    config.session_window = path.session_window;
    config.receive_budget = path.receive_budget;
    config.send_buffer = SEND_BUFFER;
    config.max_streams = max_streams;
    config.max_header_list = max_head;
    MuxSession {
        protocol,
        config,
        timeouts: path.timeouts.clone(),
        write_limit: WRITE_LIMIT,
        header_compression: path.header_compression,
        token: None,
    }
}

fn http1_session(
    form: Form,
    path: &PathConfig,
    response_timeout: std::time::Duration,
    max_head: usize,
    origin_form: OriginForm,
) -> Http1Session {
    Http1Session {
        form,
        limits: Limits {
            head: max_head,
            ..Limits::default()
        },
        timeouts: path.timeouts.clone(),
        response_timeout,
        who: if form == Form::Absolute {
            "client"
        } else {
            "gateway"
        },
        origin_form,
    }
}

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
        for (listener, (endpoint, address)) in self.listen.iter().zip(listening).enumerate() {
            let front = self.front(endpoint, *address, &out, &to_gateway, &connections, drain)?;
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

impl ClientConfig {
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
            max_keys: self.max_sessions,
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
        out: &Rc<dyn Stage>,
        to_gateway: &Rc<ToGateway>,
        connections: &Rc<Connections>,
        drain: &Drain,
    ) -> Result<Front, ConfigError> {
        let limits = self.path.timeouts.clone();
        let head = Limits::default().head;
        let (protocol, stage): (Protocol, Rc<dyn Stage>) = if endpoint.session
            == SessionKind::Socks5
        {
            let http1 = http1_session(Form::Origin, &self.path, limits.idle, head, OriginForm::Any);
            let http1 = Http1Session {
                who: "client",
                ..http1
            };
            let socks = SocksFront {
                http1,
                sessions: Rc::clone(to_gateway) as _,
                handshake: limits.head,
            };
            (Protocol::Socks(Rc::new(socks)), Rc::clone(out))
        } else {
            let own: Rc<[String]> = own_authorities(address).into();
            let http1 = http1_session(
                Form::Absolute,
                &self.path,
                limits.idle,
                head,
                OriginForm::Only(Rc::clone(&own)),
            );
            let isolate = Isolate {
                next: Rc::clone(out),
            };
            let listener = address.to_string();
            let stage = move |exchange: Exchange| {
                let to_itself = !exchange.request.is_connect()
                    && own.iter().any(|authority| {
                        authority.eq_ignore_ascii_case(&exchange.request.authority)
                    });
                if to_itself {
                    pac::answer(&exchange, &listener)
                } else {
                    isolate.call(exchange)
                }
            };
            (Protocol::Session(Rc::new(http1)), Rc::new(stage))
        };
        let context = ListenContext {
            socket: None,
            client_ca: None,
            optional_certificate: false,
            timeout: limits.head,
        };
        let transport = self.transports.of(endpoint)?.listening(endpoint, context)?;
        Ok(Front {
            protocol,
            transport,
            new_stage: Rc::new(move |_, _, connection| {
                Rc::new(Track {
                    connection: Rc::clone(connection),
                    next: Rc::clone(&stage),
                })
            }),
            connections: Rc::clone(connections),
            listener: 0,
            drain: drain.clone(),
        })
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
        let http1 = http1_session(
            Form::Origin,
            &self.path,
            self.path.timeouts.idle,
            Limits::default().head,
            OriginForm::Any,
        );
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

impl Role for GatewayConfig {
    fn listen(&self) -> &[Endpoint] {
        &self.listen
    }

    fn transports(&self) -> &Transports {
        &self.transports
    }

    fn workers(&self) -> usize {
        self.workers
    }

    fn open(&self, services: &Services) -> Result<(), ConfigError> {
        match self.push.as_ref().and_then(|push| push.predictor.as_ref()) {
            Some(predictor) => services
                .open_predictor(predictor)
                .map_err(|error| ConfigError::value("predict-state", error.to_string())),
            None => Ok(()),
        }
    }

    fn build(
        &self,
        services: &Services,
        _: &[std::net::SocketAddr],
        drain: &Drain,
    ) -> Result<Built, ConfigError> {
        let named = match &self.mode {
            Mode::Reverse { target, .. } => Some(target.clone()),
            Mode::Forward => None,
        };
        let transport = Rc::new(Direct {
            policy: self.policy.clone(),
            named,
            options: self.path.socket.clone(),
        });
        let http1 = http1_session(
            Form::Origin,
            &self.path,
            self.response_timeout,
            self.max_head,
            OriginForm::Any,
        );
        let h2 = Rc::new(mux_session(
            Multiplexed::H2,
            &self.path,
            self.max_streams,
            self.max_head,
        ));
        let connector = ClientTls {
            ca: self.origin_ca.clone(),
            alpn: vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            ..ClientTls::default()
        }
        .connector()?;
        let (timeout, limits) = (self.path.socket.connect_timeout, self.origin_limits);
        let origin = Origin::new(
            self.mode.clone(),
            transport,
            connector,
            http1.clone(),
            h2,
            timeout,
            limits,
        );
        let out: Rc<dyn Stage> = Rc::new(PairFields {
            next: Rc::new(ToOrigin(origin)),
        });
        let connections = Connections::new(ConnectionLimits {
            total: self.max_connections.div_ceil(self.workers),
            per_client: self.max_connections_per_client.div_ceil(self.workers),
            listeners: self.listen.len(),
            head: self.path.timeouts.head,
        });
        let new_stage = self.admission(&out, self.pushing(services))?;
        let mut fronts = Vec::new();
        for (listener, endpoint) in self.listen.iter().enumerate() {
            let front = self.front(endpoint, &http1, &new_stage, &connections, drain)?;
            fronts.push(Rc::new(Front { listener, ..front }));
        }
        Ok(Built {
            fronts,
            connections,
            dialled: Box::new(Vec::new),
            on_drain: Box::new(|| {}),
        })
    }
}

impl GatewayConfig {
    fn front(
        &self,
        endpoint: &Endpoint,
        http1: &Http1Session,
        new_stage: &NewStage,
        connections: &Rc<Connections>,
        drain: &Drain,
    ) -> Result<Front, ConfigError> {
        let context = ListenContext {
            socket: Some(self.path.socket.clone()),
            client_ca: self.client_ca.as_deref(),
            optional_certificate: !self.tokens.is_empty(),
            timeout: self.path.timeouts.head,
        };
        let transport = self.transports.of(endpoint)?.listening(endpoint, context)?;
        let session: Rc<dyn Session> = match Multiplexed::of(endpoint.session) {
            None => Rc::new(http1.clone()),
            Some(protocol) => Rc::new(mux_session(
                protocol,
                &self.path,
                self.max_streams,
                self.max_head,
            )),
        };
        Ok(Front {
            protocol: Protocol::Session(session),
            transport,
            new_stage: Rc::clone(new_stage),
            connections: Rc::clone(connections),
            listener: 0,
            drain: drain.clone(),
        })
    }

    /// Returns the settings of push, with the predictor if one is configured.
    fn pushing(&self, services: &Services) -> Option<Rc<Pushing>> {
        let push = self.push.as_ref()?;
        let predictor = push.predictor.as_ref();
        let learned = predictor.and_then(|_| services.predictor()).cloned();
        Some(Rc::new(Pushing {
            learned,
            by_path: push.by_path,
            hold_out: push.hold_out,
            own_origin_only: push.own_origin_only,
        }))
    }

    /// Creates the stages of each session. They keep its admission and the list of pushed resources
    /// until it ends.
    fn admission(
        &self,
        out: &Rc<dyn Stage>,
        pushing: Option<Rc<Pushing>>,
    ) -> Result<NewStage, ConfigError> {
        let tokens = gateway_tokens(&self.token_files)?;
        let (open, by_certificate, out) = (self.open, self.client_ca.is_some(), Rc::clone(out));
        let (log_requests, log_urls) = (self.log_requests, self.log_urls);
        Ok(Rc::new(
            move |path: &Rc<dyn Facts>, peer: Peer, connection: &Rc<Connection>| {
                let pushed = |pushing| {
                    Rc::new(Push::new(pushing, path, peer, Rc::clone(&out))) as Rc<dyn Stage>
                };
                let next = pushing.as_ref().map_or_else(
                    || {
                        Rc::new(NoPush {
                            next: Rc::clone(&out),
                        }) as _
                    },
                    pushed,
                );
                let admitted = open || (by_certificate && path.has_peer_certificate());
                let next = Rc::new(MaxForwards { next });
                let next = Rc::new(Count {
                    next: logged(log_requests, log_urls, next),
                });
                let next = Rc::new(WarmUp::new(path.is_over_bbr(), next));
                let next = Rc::new(Track {
                    connection: Rc::clone(connection),
                    next,
                });
                Rc::new(Auth {
                    tokens: Arc::clone(&tokens),
                    admitted: Cell::new(admitted),
                    next,
                })
            },
        ))
    }
}

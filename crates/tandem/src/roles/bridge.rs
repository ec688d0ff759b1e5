//! The bridge: any session protocol towards clients, and any towards origins. It carries exchanges
//! and adds nothing: it has no push, no cache and no session of the pair.
//!
//! ```text
//!  auth ─▶ track ─▶ count ─▶ access_log ─▶ max_forwards ─▶ pair_fields ─▶ websocket ─▶ origin
//! ```

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use tandem_http::Scheme;
use tandem_http::h1::{Form, Limits};

use super::listeners::Listeners;
use super::{Built, Role, gateway_tokens, http1_session, logged, mux_session};
use crate::back::origin::{
    Limits as OriginLimits, Mode, Origin, OriginProtocols, OriginTransports, OriginsOfSession,
};
use crate::back::policy::Direct;
use crate::back::provided::{EncryptedOnly, Provided};
use crate::config::bridge::{BackOption, BridgeMode, quic_origins};
use crate::config::{BridgeConfig, ConfigError};
use crate::connections::{Connection, ConnectionLimits, Connections};
use crate::endpoint::{Endpoint, SessionKind};
use crate::exchange::{Exchange, Peer};
use crate::front::NewStage;
use crate::middle::auth::Auth;
use crate::middle::count::Count;
use crate::middle::max_forwards::MaxForwards;
use crate::middle::pair_fields::PairFields;
use crate::middle::track::Track;
use crate::middle::websocket::{WebSocketKey, WebSocketProof};
use crate::path::Facts;
use crate::services::Services;
use crate::session::http1::Http1Session;
use crate::session::mux::{Multiplexed, MuxSession};
use crate::session::streams::StreamsSession;
use crate::session::{Drain, Session};
use crate::stage::Stage;
use crate::transport::Target;
use crate::transport::registry::Transports;
use crate::transport::tls::ClientTls;

/// The name of the role.
const WHO: &str = "bridge";

impl Role for BridgeConfig {
    fn listen(&self) -> &[Endpoint] {
        &self.listen
    }

    fn transports(&self) -> &Transports {
        &self.transports
    }

    fn workers(&self) -> usize {
        self.workers
    }

    fn build(&self, _: &Services, _: &[SocketAddr], drain: &Drain) -> Result<Built, ConfigError> {
        let origin = match self.server() {
            Some(server) => self.to_server(server)?,
            None => self.to_origins()?,
        };
        let connections = Connections::new(ConnectionLimits {
            total: self.max_connections.div_ceil(self.workers),
            per_client: self.max_connections_per_client.div_ceil(self.workers),
            listeners: self.listen.len(),
            head: self.path.timeouts.head,
        });
        let listeners = Listeners {
            transports: &self.transports,
            path: &self.path,
            http1: self.http1(Form::Origin),
            client_ca: self.client_ca.as_deref(),
            optional_certificate: !self.tokens.is_empty(),
            max_streams: self.max_streams,
            negotiates: true,
            new_stage: self.new_stage(origin)?,
            connections: Rc::clone(&connections),
            drain: drain.clone(),
        };
        Ok(Built {
            fronts: listeners.fronts(&self.listen)?,
            connections,
            dialled: Box::new(Vec::new),
            on_drain: Box::new(|| {}),
        })
    }
}

/// The way to origins, and the changes that it needs.
struct Back {
    origin: Rc<Origin>,
    /// The scheme of all requests to the one origin.
    scheme: Option<Scheme>,
    /// True if WebSockets leave as extended CONNECT of HTTP/2 or HTTP/3.
    extended_connect: bool,
}

impl BridgeConfig {
    fn http1(&self, form: Form) -> Http1Session {
        Http1Session {
            form,
            limits: Limits {
                head: self.max_head,
                ..Limits::default()
            },
            response_timeout: self.response_timeout,
            ..http1_session(WHO, &self.path)
        }
    }

    /// Creates the client's end of a multiplexed protocol, or of HTTP/1.1 over many streams.
    fn session(&self, kind: SessionKind, http1: &Http1Session) -> Rc<dyn Session> {
        match Multiplexed::of(kind) {
            Some(protocol) => Rc::new(MuxSession {
                who: WHO,
                ..mux_session(protocol, &self.path, self.max_streams, self.max_head)
            }),
            None => Rc::new(StreamsSession::new(http1.clone(), None)),
        }
    }

    /// Opens byte streams to origins. A server that the operator named needs no permission.
    fn direct(&self, named: Option<Target>) -> Rc<Direct> {
        Rc::new(Direct {
            policy: self.policy.clone(),
            named,
            options: self.path.socket.clone(),
        })
    }

    fn provided(&self, direct: &Rc<Direct>, endpoint: Endpoint) -> Rc<Provided> {
        Rc::new(Provided {
            direct: Rc::clone(direct),
            transports: self.transports.clone(),
            endpoint,
            congestion: self.path.socket.congestion.clone(),
            timeout: self.path.socket.connect_timeout,
        })
    }

    fn origin_limits(&self) -> OriginLimits {
        OriginLimits {
            lasting: self.origin_limits.lasting.div_ceil(self.workers),
            ..self.origin_limits
        }
    }

    /// Creates the way to one server: an origin, or another proxy.
    fn to_server(&self, server: &Endpoint) -> Result<Back, ConfigError> {
        let provider = self.transports.of(server)?;
        let scheme = provider.scheme();
        let target = Target {
            host: server.host.clone(),
            port: server.port,
        };
        let (mode, form, stands_for) = match &self.mode {
            BridgeMode::Proxy(_) => (
                Mode::Proxy {
                    scheme,
                    target: target.clone(),
                },
                Form::Absolute,
                None,
            ),
            BridgeMode::Forward | BridgeMode::Reverse(_) => (
                Mode::Reverse {
                    scheme,
                    target: target.clone(),
                    hosts: self.hosts.clone(),
                },
                Form::Origin,
                Some(scheme),
            ),
        };
        let direct = self.direct(Some(target));
        let identity = server.identity_files()?;
        let tls = ClientTls {
            ca: server.option("ca").map(str::to_owned),
            identity: identity.map(|(cert, key)| (cert.to_owned(), key.to_owned())),
            alpn: vec![server.session.alpn().to_vec()],
            unlinkable: false,
        };
        // Wrong files are an error at the start, also for transports that read them later.
        let connector = tls.connector()?;
        let has_streams = provider.has_streams();
        let transports = if has_streams {
            let provided = self.provided(&direct, server.clone());
            OriginTransports {
                plain: Rc::clone(&provided) as _,
                secure: Rc::clone(&provided) as _,
                secure_http1: provided,
                tunnels: direct,
            }
        } else {
            let timeout = self.path.socket.connect_timeout;
            OriginTransports::with_tls(direct, &connector, server.option("sni"), timeout)
        };
        let negotiates = server.session == SessionKind::Http && !has_streams;
        let always = (!negotiates).then_some(server.session);
        Ok(self.back(mode, transports, always, form, stands_for))
    }

    /// Creates the way to the origins that requests name.
    fn to_origins(&self) -> Result<Back, ConfigError> {
        let kind = self.back.session();
        let direct = self.direct(None);
        let alpn = match kind {
            None => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            Some(kind) => vec![kind.alpn().to_vec()],
        };
        let tls = ClientTls {
            ca: self.origin_ca.clone(),
            alpn,
            ..ClientTls::default()
        };
        let timeout = self.path.socket.connect_timeout;
        let below = Rc::clone(&direct) as _;
        let mut transports = OriginTransports::with_tls(below, &tls.connector()?, None, timeout);
        if self.back == BackOption::H3 {
            let mut endpoint = quic_origins();
            if let Some(ca) = &self.origin_ca {
                endpoint = endpoint.with_option("ca", ca);
            }
            transports.secure = self.provided(&direct, endpoint);
            transports.plain = Rc::new(EncryptedOnly);
        }
        let always = kind.filter(|kind| *kind != SessionKind::Http);
        Ok(self.back(Mode::Forward, transports, always, Form::Origin, None))
    }

    fn back(
        &self,
        mode: Mode,
        transports: OriginTransports,
        always: Option<SessionKind>,
        form: Form,
        scheme: Option<Scheme>,
    ) -> Back {
        let http1 = self.http1(form);
        let protocols = OriginProtocols {
            multiplexed: self.session(always.unwrap_or(SessionKind::H2), &http1),
            http1,
            always,
        };
        Back {
            origin: Origin::with(mode, transports, protocols, self.origin_limits()),
            scheme,
            extended_connect: matches!(always, Some(SessionKind::H2 | SessionKind::H3)),
        }
    }

    /// Creates the stages of each session.
    fn new_stage(&self, back: Back) -> Result<NewStage, ConfigError> {
        let tokens = gateway_tokens(&self.token_files)?;
        let (open, by_certificate) = (self.open, self.client_ca.is_some());
        let (log_requests, log_urls) = (self.log_requests, self.log_urls);
        Ok(Rc::new(
            move |path: &Rc<dyn Facts>, peer: Peer, connection: &Rc<Connection>| {
                let next = back.stage(peer.session);
                let next = Rc::new(PairFields { next });
                let next = Rc::new(MaxForwards { next });
                let next = Rc::new(Count {
                    next: logged(log_requests, log_urls, next),
                });
                let next = Rc::new(Track {
                    connection: Rc::clone(connection),
                    next,
                });
                let admitted = open || (by_certificate && path.has_peer_certificate());
                Rc::new(Auth {
                    tokens: Arc::clone(&tokens),
                    admitted: Cell::new(admitted),
                    next,
                })
            },
        ))
    }
}

impl Back {
    /// Creates the last stages of one session.
    fn stage(&self, session: u64) -> Rc<dyn Stage> {
        let next: Rc<dyn Stage> = Rc::new(OriginsOfSession::new(session, &self.origin));
        let next: Rc<dyn Stage> = if self.extended_connect {
            Rc::new(WebSocketProof { next })
        } else {
            Rc::new(WebSocketKey { next })
        };
        let Some(scheme) = self.scheme else {
            return next;
        };
        // The scheme is part of the target that the origin sees (RFC 9110 section 7.4). It is the
        // one of the connection to the origin.
        Rc::new(move |mut exchange: Exchange| {
            if exchange.request.scheme != scheme {
                exchange.request_mut().scheme = scheme;
            }
            next.call(exchange)
        })
    }
}

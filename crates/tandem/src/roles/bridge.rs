//! The bridge: any session protocol towards clients, and any towards origins. It carries exchanges
//! and adds nothing: it has no push, no cache and no session of the pair.
//!
//! ```text
//!  auth ─▶ track ─▶ exchange_metrics ─▶ access_log ─▶ opened (refuses) ─▶ max_forwards ─▶
//!  via ─▶ pair_fields ─▶ websocket ─▶ origin
//! ```

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use tandem_http::Scheme;
use tandem_http::h1::Form;

use super::{Built, Listening, Role};
use crate::back::origin::{Mode, Origin, OriginProtocols, OriginTransports, OriginsOfSession};
use crate::back::policy::Direct;
use crate::back::provided::{EncryptedOnly, Provided};
use crate::config::bridge::{BackOption, BridgeMode, quic_origins};
use crate::config::{BridgeConfig, ConfigError};
use crate::connections::Connection;
use crate::endpoint::{Endpoint, SessionKind};
use crate::exchange::{Exchange, Peer};
use crate::middle::entrusted::Permission;
use crate::middle::pair_fields::{Edge, PairFields};
use crate::middle::via::AddVia;
use crate::middle::websocket::{WebSocketKey, WebSocketProof};
use crate::path::Facts;
use crate::renewal::Renewals;
use crate::role_name::RoleName;
use crate::services::Services;
use crate::session::http1::Http1Session;
use crate::session::mux::Multiplexed;
use crate::session::streams::StreamsSession;
use crate::session::{Connect, Drain};
use crate::stage::Stage;
use crate::transport::Target;
use crate::transport::tls::ClientTls;
use crate::transport::tls::identity::Identity;

/// The refusal of HTTPS that a client opens for its gateway.
const OPENED_REFUSED: Permission = Err("a bridge takes no HTTPS of opened hosts");

/// The name of the role.
const WHO: RoleName = RoleName::Bridge;

impl Role for BridgeConfig {
    fn listening(&self) -> Listening<'_> {
        self.near.listening()
    }

    /// The role needs no services of its own.
    fn open(&self, _: &Services) -> Result<(), ConfigError> {
        Ok(())
    }

    fn build(
        &self,
        services: &Services,
        listening: &[SocketAddr],
        drain: &Drain,
    ) -> Result<Built, ConfigError> {
        let origin = match self.server() {
            Some(server) => self.to_server(server, listening, services.renewals())?,
            None => self.to_origins(listening, services.renewals())?,
        };
        let counted = self.near.counted(OPENED_REFUSED);
        let pseudonym = Arc::clone(services.pseudonym());
        let listen = self.near.listen.clone();
        let stages = move |path: &Rc<dyn Facts>, peer: Peer, connection: &Connection| {
            let next = origin.stage(peer.session);
            let edge = Edge::Bridge;
            let next = Rc::new(AddVia {
                received: received(path, &listen[connection.listener()]),
                pseudonym: Arc::clone(&pseudonym),
                next: Rc::new(PairFields { edge, next }),
            });
            counted.before(next)
        };
        let new_stage = self.near.admitted(services, Box::new(stages))?;
        let http1 = self.near.http1(WHO);
        self.near.built(http1, true, new_stage, services, drain)
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
    /// Creates the client's end of a multiplexed protocol, or of HTTP/1.1 over many streams.
    fn session(&self, kind: SessionKind, http1: &Http1Session) -> Rc<dyn Connect> {
        match Multiplexed::of(kind) {
            Some(protocol) => Rc::new(self.near.mux_session(protocol, WHO)),
            None => Rc::new(StreamsSession::new(http1.clone(), None)),
        }
    }

    fn provided(
        &self,
        direct: &Rc<Direct>,
        endpoint: Endpoint,
        renewals: &Renewals,
    ) -> Rc<Provided> {
        Rc::new(Provided::new(
            Rc::clone(direct),
            self.near.transports.clone(),
            endpoint,
            &self.near.path.socket,
            renewals.clone(),
        ))
    }

    /// Creates the way to one server: an origin, or another proxy.
    fn to_server(
        &self,
        server: &Endpoint,
        listening: &[SocketAddr],
        renewals: &Renewals,
    ) -> Result<Back, ConfigError> {
        let provider = self.near.transports.to_dial(server)?;
        let scheme = provider.scheme();
        let target = Target::new(server.host.clone(), server.port);
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
        let direct = self.origins.direct(&self.near, Some(target), listening)?;
        let identity = server.identity_files()?;
        let watched = |(cert, key)| Identity::watch(cert, key, renewals).map(Arc::new);
        let tls = ClientTls {
            ca: server.option("ca").map(str::to_owned),
            identity: identity.map(watched).transpose()?,
            alpn: vec![server.session.alpn().to_vec()],
            unlinkable: true,
        };
        // Wrong files are an error at the start, also for transports that read them later.
        let connector = tls.connector()?;
        let has_streams = provider.has_streams();
        let transports = if has_streams {
            let provided = self.provided(&direct, server.clone(), renewals);
            OriginTransports {
                plain: Rc::clone(&provided) as _,
                secure: Rc::clone(&provided) as _,
                secure_http1: provided,
                tunnels: direct,
            }
        } else {
            let timeout = self.near.path.socket.connect_timeout;
            OriginTransports::with_tls(direct, &connector, server.option("sni"), timeout)
        };
        let negotiates = server.session == SessionKind::Http && !has_streams;
        let always = (!negotiates).then_some(server.session);
        Ok(self.back(mode, transports, always, form, stands_for))
    }

    /// Creates the way to the origins that requests name.
    fn to_origins(
        &self,
        listening: &[SocketAddr],
        renewals: &Renewals,
    ) -> Result<Back, ConfigError> {
        let kind = self.back.session();
        let direct = self.origins.direct(&self.near, None, listening)?;
        let alpn = match kind {
            None => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            Some(kind) => vec![kind.alpn().to_vec()],
        };
        let tls = ClientTls {
            ca: self.origins.ca.clone(),
            alpn,
            unlinkable: true,
            identity: None,
        };
        let timeout = self.near.path.socket.connect_timeout;
        let below = Rc::clone(&direct) as _;
        let mut transports = OriginTransports::with_tls(below, &tls.connector()?, None, timeout);
        if self.back == BackOption::H3 {
            let mut endpoint = quic_origins();
            if let Some(ca) = &self.origins.ca {
                endpoint = endpoint.with_option("ca", ca);
            }
            transports.secure = self.provided(&direct, endpoint, renewals);
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
        let http1 = Http1Session {
            form,
            ..self.origins.http1(self.near.http1(WHO))
        };
        let protocols = OriginProtocols {
            multiplexed: self.session(always.unwrap_or(SessionKind::H2), &http1),
            http1,
            always,
        };
        let limits = self.origins.limits_of_thread(&self.near);
        Back {
            origin: Origin::with(mode, transports, protocols, limits),
            scheme,
            extended_connect: matches!(always, Some(SessionKind::H2 | SessionKind::H3)),
        }
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

/// Returns the protocol of a connection to a listener. One for HTTP/2 may serve HTTP/1.1 too.
fn received(path: &Rc<dyn Facts>, listener: &Endpoint) -> SessionKind {
    match path.alpn() {
        Some(b"http/1.1") => SessionKind::Http,
        _ => listener.session,
    }
}

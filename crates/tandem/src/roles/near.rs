//! The end towards clients: the fronts of the listeners, and the stages that the sessions of each
//! role with such listeners have in common.
//!
//! ```text
//!  auth ─▶ track ─▶ the role's own stages ─▶ exchange_metrics ─▶ access_log ─▶ opened ─▶
//!  max_forwards ─▶ the role's own stages
//! ```

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use tandem_http::h1::Limits;

use super::listeners::Listeners;
use super::{Built, Listening, gateway_tokens, http1_session, logged, mux_session};
use crate::config::{ConfigError, NearConfig};
use crate::connections::{Connection, ConnectionLimits, Connections};
use crate::exchange::Peer;
use crate::front::NewStage;
use crate::middle::auth::Auth;
use crate::middle::continued::after_reload::AfterReload;
use crate::middle::entrusted::{Consent, Permission};
use crate::middle::exchange_metrics::ExchangeMetrics;
use crate::middle::max_forwards::MaxForwards;
use crate::middle::track::Track;
use crate::path::Facts;
use crate::role_name::RoleName;
use crate::services::Services;
use crate::session::http1::Http1Session;
use crate::session::mux::{Multiplexed, MuxSession};
use crate::session::{Drain, header_list};
use crate::stage::Stage;

/// Creates the stages of one session behind [`Counted`].
pub(super) type InnerStages = Box<dyn Fn(&Rc<dyn Facts>, Peer) -> Rc<dyn Stage>>;

/// Creates the stages of one session behind its admission.
pub(super) type AdmittedStages = Box<dyn Fn(&Rc<dyn Facts>, Peer, &Connection) -> Rc<dyn Stage>>;

/// The stages that count and log the exchanges of all sessions, and check their permissions.
pub(super) struct Counted {
    permission: Permission,
    log_requests: bool,
    log_urls: bool,
}

impl Counted {
    /// Puts the stages before `next`, in one session.
    pub(super) fn before(&self, next: Rc<dyn Stage>) -> Rc<dyn Stage> {
        let next = Rc::new(Consent {
            permission: self.permission.clone(),
            next: Rc::new(MaxForwards { next }),
        });
        Rc::new(ExchangeMetrics {
            next: logged(self.log_requests, self.log_urls, next),
        })
    }
}

impl NearConfig {
    /// Returns the listeners, and the threads that serve them.
    pub(super) fn listening(&self) -> Listening<'_> {
        Listening {
            listen: &self.listen,
            transports: &self.transports,
            workers: self.workers,
        }
    }

    /// Returns HTTP/1.1 of the listeners. `who` is the role.
    pub(super) fn http1(&self, who: RoleName) -> Http1Session {
        Http1Session {
            limits: Limits {
                head: self.max_head,
                ..Limits::default()
            },
            response_limits: Limits {
                head: self.max_response_head,
                ..Limits::RESPONSE
            },
            ..http1_session(who, &self.path)
        }
    }

    /// Returns a multiplexed protocol with the limits of the listeners. `who` is the role.
    pub(super) fn mux_session(&self, protocol: Multiplexed, who: RoleName) -> MuxSession {
        MuxSession {
            response_list: header_list(self.max_response_head),
            ..mux_session(protocol, &self.path, self.max_streams, self.max_head, who)
        }
    }

    /// Creates the fronts of all listeners, and the table of their connections, for a role that
    /// keeps no sessions to next hops. The listeners for HTTP/2 over TLS serve clients without
    /// HTTP/2 too if `negotiates` is true.
    pub(super) fn built(
        &self,
        http1: Http1Session,
        negotiates: bool,
        new_stage: NewStage,
        services: &Services,
        drain: &Drain,
    ) -> Result<Built, ConfigError> {
        let limits = ConnectionLimits {
            total: self.max_connections.div_ceil(self.workers),
            per_client: self.max_connections_per_client.div_ceil(self.workers),
            listeners: self.listen.len(),
            head: self.path.timeouts.head,
        };
        let connections = Connections::new(limits, services.session_numbers());
        let listeners = Listeners {
            transports: &self.transports,
            renewals: services.renewals(),
            path: &self.path,
            http1,
            client_ca: self.client_ca.as_deref(),
            optional_certificate: self.takes_tokens,
            max_streams: self.max_streams,
            negotiates,
            new_stage,
            connections: Rc::clone(&connections),
            drain: drain.clone(),
        };
        Ok(Built {
            fronts: listeners.fronts(&self.listen)?,
            connections,
            dialled: Box::new(Vec::new),
            on_drain: Box::new(|| {}),
            continuing: None,
            after_reload: AfterReload::default(),
        })
    }

    /// Returns the stages that count the exchanges. `permission` is that to open HTTPS.
    pub(super) const fn counted(&self, permission: Permission) -> Counted {
        Counted {
            permission,
            log_requests: self.log_requests,
            log_urls: self.log_urls,
        }
    }

    /// Puts the admission before the stages of each session, which keep it until the session ends.
    pub(super) fn admitted(
        &self,
        services: &Services,
        stages: AdmittedStages,
    ) -> Result<NewStage, ConfigError> {
        let tokens = gateway_tokens(&self.token_files, services.renewals())?;
        let (open, by_certificate) = (self.open, self.client_ca.is_some());
        Ok(Rc::new(
            move |path: &Rc<dyn Facts>, peer: Peer, connection: &Rc<Connection>| {
                let admitted = open || (by_certificate && path.has_peer_certificate());
                let next = Rc::new(Track {
                    connection: Rc::clone(connection),
                    next: stages(path, peer, connection),
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

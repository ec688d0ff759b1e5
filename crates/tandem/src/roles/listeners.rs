//! The listeners of the end towards clients. Each accepts sessions of one protocol over one
//! transport.

use std::rc::Rc;

use super::mux_session;
use crate::config::{ConfigError, PathConfig};
use crate::connections::Connections;
use crate::endpoint::{Endpoint, SessionKind};
use crate::front::{Front, ListenerProtocol, NewStage};
use crate::renewal::Renewals;
use crate::session::http1::Http1Session;
use crate::session::mux::Multiplexed;
use crate::session::streams::StreamsSession;
use crate::session::{Drain, Serve};
use crate::transport::registry::{ListenContext, Listens, Transports};

/// The parts that all listeners of a role share.
pub(super) struct Listeners<'a> {
    /// The transports that the endpoints name.
    pub(super) transports: &'a Transports,
    /// The list of the certificates that follow their files.
    pub(super) renewals: &'a Renewals,
    /// The limits of sessions.
    pub(super) path: &'a PathConfig,
    /// HTTP/1.1, as listeners without TLS speak it.
    pub(super) http1: Http1Session,
    /// The PEM file of the authorities whose clients are accepted.
    pub(super) client_ca: Option<&'a str>,
    /// True if clients without a certificate may connect and send a token instead.
    pub(super) optional_certificate: bool,
    /// The maximum number of concurrent requests on a session.
    pub(super) max_streams: u32,
    /// True if a listener for HTTP/2 over TLS serves clients without HTTP/2 too.
    pub(super) negotiates: bool,
    /// Creates the stage behind each connection.
    pub(super) new_stage: NewStage,
    /// The connections of all listeners.
    pub(super) connections: Rc<Connections>,
    /// Ends the connections gracefully.
    pub(super) drain: Drain,
}

/// The protocols of a TLS listener for all clients, best first.
const BOTH: [&[u8]; 2] = [b"h2", b"http/1.1"];

impl Listeners<'_> {
    /// Creates the fronts of the endpoints, in order.
    pub(super) fn fronts(&self, endpoints: &[Endpoint]) -> Result<Vec<Rc<Front>>, ConfigError> {
        let numbered = endpoints.iter().enumerate();
        numbered
            .map(|(listener, endpoint)| Ok(Rc::new(self.front(listener, endpoint)?)))
            .collect()
    }

    fn front(&self, listener: usize, endpoint: &Endpoint) -> Result<Front, ConfigError> {
        let provider = self.transports.to_listen(endpoint)?;
        let protocol = self.protocol(endpoint, provider);
        let negotiated = matches!(protocol, ListenerProtocol::Negotiated { .. });
        let context = ListenContext {
            socket: Some(self.path.socket.clone()),
            client_ca: self.client_ca,
            optional_certificate: self.optional_certificate,
            alpn: negotiated.then_some(&BOTH),
            max_streams: self.max_streams,
            authority: None,
            early_data: self.path.early_data,
            timeout: self.path.timeouts.head,
            renewals: self.renewals,
        };
        let transport = provider.listening(endpoint, context)?;
        Ok(Front {
            protocol,
            transport,
            new_stage: Rc::clone(&self.new_stage),
            connections: Rc::clone(&self.connections),
            listener,
            drain: self.drain.clone(),
        })
    }

    fn protocol(&self, endpoint: &Endpoint, provider: &dyn Listens) -> ListenerProtocol {
        let http1 = Http1Session {
            scheme: provider.scheme(),
            ..self.http1.clone()
        };
        let Some(protocol) = Multiplexed::of(endpoint.session) else {
            return ListenerProtocol::Session(match provider.has_streams() {
                true => Rc::new(StreamsSession::new(http1, None)),
                false => Rc::new(http1) as Rc<dyn Serve>,
            });
        };
        let head = http1.limits.head;
        let session = mux_session(protocol, self.path, self.max_streams, head, http1.who);
        let session = Rc::new(session);
        let over_tls = endpoint.transport == "tls";
        if self.negotiates && over_tls && endpoint.session == SessionKind::H2 {
            let (h2, http1) = (session as _, Rc::new(http1) as _);
            return ListenerProtocol::Negotiated { h2, http1 };
        }
        ListenerProtocol::Session(session)
    }
}

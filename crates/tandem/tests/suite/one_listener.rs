//! A role with one listener. A test composes its session and stages.

use std::net::SocketAddr;
use std::rc::Rc;

use tandem::config::ConfigError;
use tandem::connections::{ConnectionLimits, Connections};
use tandem::endpoint::Endpoint;
use tandem::front::{Front, ListenerProtocol, NewStage};
use tandem::middle::continued::after_reload::AfterReload;
use tandem::roles::{Built, Listening, Role};
use tandem::runtime::Running;
use tandem::services::Services;
use tandem::session::{Drain, Serve};
use tandem::transport::registry::{ListenContext, Transports};

use crate::harness::{PATIENCE, running};

/// The number of streams that a peer may open.
pub(crate) const STREAMS: u32 = 256;

/// The parts of a role on one thread.
pub(crate) struct Parts {
    pub(crate) session: Rc<dyn Serve>,
    pub(crate) new_stage: NewStage,
}

/// A role with one thread and one listener.
pub(crate) struct OneListener<F> {
    listen: Endpoint,
    transports: Transports,
    compose: F,
}

impl<F: Fn(&Endpoint) -> Parts + Send + Sync + 'static> OneListener<F> {
    /// Starts the role with the parts that `compose` returns. Returns the address of its listener
    /// too.
    pub(crate) fn start(
        listen: Endpoint,
        transports: Transports,
        compose: F,
    ) -> (Running, SocketAddr) {
        let endpoint = listen.clone();
        let role = Self {
            listen,
            transports,
            compose,
        };
        running(role, &endpoint)
    }
}

impl<F: Fn(&Endpoint) -> Parts + Send + Sync> Role for OneListener<F> {
    fn listening(&self) -> Listening<'_> {
        Listening {
            listen: std::slice::from_ref(&self.listen),
            transports: &self.transports,
            workers: 1,
        }
    }

    fn open(&self, _: &Services) -> Result<(), ConfigError> {
        Ok(())
    }

    fn build(
        &self,
        services: &Services,
        _: &[SocketAddr],
        drain: &Drain,
    ) -> Result<Built, ConfigError> {
        let Parts { session, new_stage } = (self.compose)(&self.listen);
        let limits = ConnectionLimits {
            total: 1000,
            per_client: 1000,
            listeners: 1,
            head: PATIENCE,
        };
        let connections = Connections::new(limits, services.session_numbers());
        let context = ListenContext::new(STREAMS, PATIENCE, services.renewals());
        let provider = self.transports.to_listen(&self.listen)?;
        let front = Front {
            protocol: ListenerProtocol::Session(session),
            transport: provider.listening(&self.listen, context)?,
            new_stage,
            listener: 0,
            connections: Rc::clone(&connections),
            drain: drain.clone(),
        };
        Ok(Built {
            fronts: vec![Rc::new(front)],
            connections,
            dialled: Box::new(Vec::new),
            on_drain: Box::new(|| {}),
            continuing: None,
            after_reload: AfterReload::default(),
        })
    }
}

//! The end towards origins of a gateway and of a bridge.

use std::net::SocketAddr;
use std::rc::Rc;

use crate::back::origin::Limits;
use crate::back::own::OwnListeners;
use crate::back::policy::Direct;
use crate::config::{ConfigError, NearConfig, OriginsConfig};
use crate::session::http1::Http1Session;
use crate::transport::Target;

impl OriginsConfig {
    /// Opens byte streams to origins, except to the listeners of `near`, which are bound to
    /// `listening`. A server that the operator named needs no permission.
    pub(super) fn direct(
        &self,
        near: &NearConfig,
        named: Option<Target>,
        listening: &[SocketAddr],
    ) -> Result<Rc<Direct>, ConfigError> {
        Direct::read_networks();
        Ok(Rc::new(Direct {
            policy: self.policy.clone(),
            named,
            own: OwnListeners::new(&near.listen, &near.transports, listening)?,
            options: near.path.socket.clone(),
        }))
    }

    /// Returns the limits of connections to origins for one of the threads.
    pub(super) fn limits_of_thread(&self, near: &NearConfig) -> Limits {
        Limits {
            lasting: self.limits.lasting.div_ceil(near.workers),
            ..self.limits
        }
    }

    /// Returns HTTP/1.1 towards origins. `near` is that of the listeners.
    pub(super) fn http1(&self, near: Http1Session) -> Http1Session {
        Http1Session {
            response_timeout: self.response_timeout,
            ..near
        }
    }
}

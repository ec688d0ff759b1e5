//! The relay: the fronts and the admission of a gateway, and a client's sessions to the next hop.
//!
//! ```text
//!  auth ─▶ track ─▶ count ─▶ access_log ─▶ max_forwards ─▶ hops ─▶ gateways: a session to the next
//!                                                                  hop for each session
//! ```
//!
//! Each session has its own session to the next hop, so that the gateway keeps the state of each
//! client apart. The companion of a client therefore passes as an ordinary exchange: its reports
//! reach the gateway that pushed, and its pushes reach the client. The stage `pushed` is left out.

use std::rc::Rc;
use std::sync::Arc;

use super::gateway::NearRole;
use super::{Built, Listening, Role};
use crate::back::gateways::{Gateways, ToGateway};
use crate::config::{ClientConfig, ConfigError, RelayConfig};
use crate::exchange::{Exchange, Isolation, Peer, Reply};
use crate::journal::{Problems, RouteEntry};
use crate::path::Facts;
use crate::services::Services;
use crate::session::Drain;
use crate::stage::Stage;

impl Role for RelayConfig {
    fn listening(&self) -> Listening<'_> {
        self.near.listening()
    }

    fn build(
        &self,
        services: &Services,
        _: &[std::net::SocketAddr],
        drain: &Drain,
    ) -> Result<Built, ConfigError> {
        let pools = Rc::new(self.pools(services)?);
        let (inner, share_tunnels) = (Rc::clone(&pools), self.share_tunnels);
        let inner = Box::new(move |_: &Rc<dyn Facts>, peer: Peer| {
            Rc::new(NextHop {
                pools: Rc::clone(&inner),
                isolation: Isolation::new(b"session", &peer.session.to_be_bytes()),
                share_tunnels,
            }) as Rc<dyn Stage>
        });
        let new_stage = self.near.admitted(NearRole::Relay, inner)?;
        let http1 = self.near.http1("relay");
        let shown = Rc::clone(&pools);
        Ok(Built {
            dialled: Box::new(move || shown.all().flat_map(|pool| pool.status()).collect()),
            on_drain: Box::new(move || pools.all().for_each(|pool| pool.drain())),
            ..self.near.built(http1, false, new_stage, drain)?
        })
    }
}

impl RelayConfig {
    fn pools(&self, services: &Services) -> Result<Pools, ConfigError> {
        let problems = Arc::<Problems>::default();
        let far = &self.far;
        let pushing = far.pool(&far.gateways, None, &problems)?;
        let without_push = ClientConfig {
            push: false,
            ..far.clone()
        };
        let plain = without_push.pool(&far.gateways, None, &problems)?;
        let entry = RouteEntry {
            hosts: "all hosts".into(),
            way: far.way(&far.gateways),
        };
        services.journal().configure(problems, vec![entry]);
        Ok(Pools {
            pushing: ToGateway(pushing),
            plain: ToGateway(plain),
        })
    }
}

/// The sessions to the next hop on one thread.
struct Pools {
    /// The sessions of clients that accept pushes.
    pushing: ToGateway,
    /// The sessions of other clients, so that no hop carries pushes that the next one drops.
    plain: ToGateway,
}

impl Pools {
    fn all(&self) -> impl Iterator<Item = &Rc<Gateways>> {
        [&self.pushing.0, &self.plain.0].into_iter()
    }
}

/// The way to the next hop of one session. Dropping it ends the session to the next hop.
struct NextHop {
    pools: Rc<Pools>,
    isolation: Isolation,
    share_tunnels: bool,
}

impl Stage for NextHop {
    fn call(&self, mut exchange: Exchange) -> Reply {
        let request = &exchange.request;
        // The gateway keeps no state for the tunnels of a session, unlike for its requests.
        let is_shared = self.share_tunnels && request.is_connect() && request.protocol.is_none();
        let pool = if exchange.peer.push && !is_shared {
            &self.pools.pushing
        } else {
            &self.pools.plain
        };
        exchange.isolation = if is_shared {
            Isolation::none()
        } else {
            self.isolation.clone()
        };
        pool.call(exchange)
    }
}

impl Drop for NextHop {
    fn drop(&mut self) {
        for pool in self.pools.all() {
            pool.end(&self.isolation);
        }
    }
}

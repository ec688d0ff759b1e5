//! The relay: the fronts and the admission of a gateway, and a client's sessions to the next hop.
//!
//! ```text
//!  auth ─▶ track ─▶ resume ─▶ exchange_metrics ─▶ access_log ─▶ opened (refuses) ─▶ max_forwards
//!                     gateways: a session to the next hop for each session ◀─ hops ◀──┘
//! ```
//!
//! Each session has its own session to the next hop, so that the gateway keeps the state of each
//! client apart. The companion of a client therefore passes as an ordinary exchange: its reports
//! reach the gateway that pushed, and its pushes reach the client. The stage `pushed` is left out.

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::far::Far;
use super::{Built, Listening, Role};
use crate::back::gateways::{Gateways, ToGateway};
use crate::config::destinations::names;
use crate::config::{ConfigError, PathConfig, RelayConfig};
use crate::connections::Connection;
use crate::error::Error;
use crate::exchange::{Exchange, Isolation, Part, Parts, Peer, Reply};
use crate::journal::{Problems, RouteEntry};
use crate::middle::entrusted::Permission;
use crate::middle::hops::CountHop;
use crate::middle::resume::Resume;
use crate::path::Facts;
use crate::role_name::RoleName;
use crate::services::Services;
use crate::session::Drain;
use crate::stage::Stage;

/// The refusal of HTTPS that a client opens for its gateway.
const OPENED_REFUSED: Permission =
    Err("a relay takes no HTTPS of opened hosts, since it would read it: name the gateway itself");

/// The tunnels of one session that may share a session to the next hop. Further tunnels use the
/// session's own session.
const MAX_SHARED_TUNNELS: usize = 8;

/// The part of the receive budget that the unread bytes of one session's shared tunnels may fill.
const SHARED_PART: usize = 8;

/// The smallest flow-control window of a shared tunnel, in bytes.
const MIN_SHARED_WINDOW: usize = 16 << 10;

impl Role for RelayConfig {
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
        _: &[std::net::SocketAddr],
        drain: &Drain,
    ) -> Result<Built, ConfigError> {
        let pools = Rc::new(self.pools(services)?);
        let used = Rc::clone(&pools);
        let counted = self.near.counted(OPENED_REFUSED);
        let speed_tokens = Arc::clone(services.speed_tokens());
        let stages = Box::new(move |path: &Rc<dyn Facts>, peer: Peer, _: &Connection| {
            let next = Rc::new(NextHop {
                pools: Rc::clone(&used),
                isolation: Isolation::new(b"session", &peer.session.to_be_bytes()),
                shared: Rc::default(),
            });
            let next = counted.before(Rc::new(CountHop { next }));
            Rc::new(Resume::new(path, &speed_tokens, next)) as Rc<dyn Stage>
        });
        let new_stage = self.near.admitted(services, stages)?;
        let http1 = self.near.http1(RoleName::Relay);
        let shown = Rc::clone(&pools);
        Ok(Built {
            dialled: Box::new(move || shown.all().flat_map(|pool| pool.status()).collect()),
            on_drain: Box::new(move || pools.all().for_each(|pool| pool.drain())),
            ..self.near.built(http1, false, new_stage, services, drain)?
        })
    }
}

impl RelayConfig {
    fn pools(&self, services: &Services) -> Result<Pools, ConfigError> {
        let (problems, renewals) = (Arc::<Problems>::default(), services.renewals());
        let far = self.far();
        let pool = |far: Far<'_>| {
            let pool = far.pool(&self.gateways, None, &problems, renewals);
            pool.map(ToGateway)
        };
        let pushing = pool(far)?;
        let far = Far { push: false, ..far };
        let plain = pool(far)?;
        let path = path_of_tunnels(far.path);
        let tunnels = self.share_tunnels.then(|| pool(Far { path: &path, ..far }));
        let tunnels = tunnels.transpose()?;
        let entry = RouteEntry {
            hosts: "all hosts".into(),
            way: names(&self.gateways),
        };
        services.journal().configure(problems, vec![entry]);
        Ok(Pools {
            pushing,
            plain,
            tunnels,
        })
    }
}

/// The sessions to the next hop on one thread.
struct Pools {
    /// The sessions of clients that accept pushes.
    pushing: ToGateway,
    /// The sessions of other clients, so that no hop carries pushes that the next one drops.
    plain: ToGateway,
    /// The sessions that carry the tunnels of several clients, with `--share-tunnels`.
    tunnels: Option<ToGateway>,
}

impl Pools {
    fn all(&self) -> impl Iterator<Item = &Rc<Gateways>> {
        let own = [&self.pushing, &self.plain].into_iter();
        own.chain(&self.tunnels).map(|pool| &pool.0)
    }
}

/// The way to the next hop of one session. Dropping it ends the session to the next hop.
struct NextHop {
    pools: Rc<Pools>,
    isolation: Isolation,
    /// The owners of clones are the tunnels of the session that share a session with other clients.
    shared: Rc<()>,
}

impl Stage for NextHop {
    fn call(&self, mut exchange: Exchange) -> Reply {
        let request = &exchange.request;
        // The gateway keeps no state for the tunnels of a session, unlike for its requests.
        let may_share = request.is_connect()
            && request.protocol.is_none()
            && Rc::strong_count(&self.shared) <= MAX_SHARED_TUNNELS;
        if let Some(tunnels) = self.pools.tunnels.as_ref().filter(|_| may_share) {
            exchange.isolation = Isolation::none();
            return Reply::new(SharedTunnel {
                reply: tunnels.call(exchange),
                _counted: Rc::clone(&self.shared),
            });
        }
        exchange.isolation = self.isolation.clone();
        match exchange.peer.push {
            true => self.pools.pushing.call(exchange),
            false => self.pools.plain.call(exchange),
        }
    }
}

impl Drop for NextHop {
    fn drop(&mut self) {
        for pool in self.pools.all() {
            pool.end(&self.isolation);
        }
    }
}

/// Returns the limits of a session that carries the tunnels of several clients. A client that does
/// not read its tunnels fills only a part of the receive budget, so that the session never stops
/// for the others.
fn path_of_tunnels(path: &PathConfig) -> PathConfig {
    let window = path.receive_budget / SHARED_PART / MAX_SHARED_TUNNELS;
    let window = u32::try_from(window.max(MIN_SHARED_WINDOW)).unwrap_or(u32::MAX);
    PathConfig {
        stream_window: path.stream_window.min(window),
        ..path.clone()
    }
}

/// The reply of a tunnel that shares a session with other clients.
struct SharedTunnel {
    reply: Reply,
    /// Counts the tunnel for its session.
    _counted: Rc<()>,
}

impl Parts for SharedTunnel {
    fn below(&self) -> Option<&Reply> {
        Some(&self.reply)
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Part, Error>>> {
        self.reply.poll_part(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RelayOptions;
    use crate::config::units::Size;
    use crate::transport::registry::Transports;

    fn windows(budget: Option<u64>) -> (u32, u32) {
        let options = RelayOptions {
            listen: vec!["h2+tcp://127.0.0.1:9980".parse().expect("an endpoint")],
            gateway: vec!["h2+tcp://127.0.0.1:9981".parse().expect("an endpoint")],
            open: Some(true),
            receive_budget: budget.map(Size),
            ..RelayOptions::default()
        };
        let relay = options.typed_with(&Transports::default()).expect("valid");
        let path = path_of_tunnels(&relay.near.path);
        (path.stream_window, relay.near.path.stream_window)
    }

    #[test]
    fn shared_tunnels_fill_a_part_of_the_budget() {
        let (shared, usual) = windows(None);
        let most = MAX_SHARED_TUNNELS as u32 * shared;
        assert_eq!((shared, most), (1 << 20, 8 << 20));
        assert!(usual > shared);
        assert_eq!(windows(Some(1 << 20)).0, 16 << 10);
        let (shared, usual) = windows(Some(4 << 30));
        assert_eq!(shared, usual, "the path needs no larger window");
    }
}

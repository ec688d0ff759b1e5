//! The lanes of gateways that sites announce.
//!
//! ```text
//!  routes ─▶ exchange_metrics ─▶ access_log ─▶ discovery ─┬─▶ the default lane
//!  opened ─▶ exchange_metrics ─▶ access_log ─▶ discovery ─┤   or the origin of opened HTTPS
//!                             gateways ◀─ decompress ◀─ pushed ◀─ loads ◀─┘
//! ```
//!
//! Each lane has a separate pool with one session, no access token and no certificate of the
//! client. It connects with the isolation key of its requests: through `--via` only, or, for opened
//! HTTPS, through the same tunnels as the connections to the origin. The keys of opened HTTPS are
//! the parts of isolation keys that share what is requested early (`roles::opened::early`).

use std::cell::Cell;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use super::far::Dials;
use super::lanes::SharedByLanes;
use super::opened::early::OfPart;
use super::opened::early::{MAX_PARTS, PARTS_IN_MEMORY};
use super::push_lane::{PushLane, SessionsEnd};
use crate::announcement::Site;
use crate::back::announce::Announcer;
use crate::back::gateways::{Gateways, PoolLimits, ToGateway};
use crate::back::opened_origins::OpenedOrigins;
use crate::config::discover::OWN_GATEWAYS;
use crate::config::gateways::GatewayEndpoint;
use crate::config::open::{EarlyRequests, OpenedHttps};
use crate::config::{ClientConfig, ConfigError};
use crate::endpoint::Endpoint;
use crate::exchange::Exchange;
use crate::journal::saving::LoadTimes;
use crate::middle::discovery::{Discovery, SiteLane};
use crate::middle::routes::Lane;
use crate::renewal::Renewals;
use crate::services::Services;
use crate::stage::Stage;
use crate::status::SessionStatus;
use crate::transport::Dial;
use crate::transport::tls::verified::VerifiedTls;

/// The pools of announced gateways.
#[derive(Default)]
pub(super) struct SitePools(Cell<Vec<Weak<Gateways>>>);

impl SitePools {
    fn add(&self, pool: &Rc<Gateways>) {
        let mut pools = self.0.take();
        pools.retain(|pool| pool.strong_count() > 0);
        pools.push(Rc::downgrade(pool));
        self.0.set(pools);
    }

    fn pools(&self) -> Vec<Rc<Gateways>> {
        let pools = self.0.take();
        let present = pools.iter().filter_map(Weak::upgrade).collect();
        self.0.set(pools);
        present
    }

    /// Returns the sessions of all pools.
    pub(super) fn status(&self) -> Vec<SessionStatus> {
        let pools = self.pools();
        pools.iter().flat_map(|pool| pool.status()).collect()
    }

    /// Drains all pools.
    pub(super) fn drain(&self) {
        self.pools().iter().for_each(|pool| pool.drain());
    }
}

/// A pool of sessions that drain when the site is forgotten.
struct Owned(Rc<Gateways>);

impl Drop for Owned {
    fn drop(&mut self) {
        self.0.drain();
    }
}

/// The parts that all lanes of announced gateways share.
pub(super) struct SiteLanes {
    config: Rc<ClientConfig>,
    pools: Rc<SitePools>,
    pub(super) shared: SharedByLanes,
    /// The bytes of pushed responses that each lane stores.
    push_memory: usize,
    times: Arc<LoadTimes>,
    renewals: Renewals,
}

impl ClientConfig {
    /// Puts discovery before the default lane, if it is on.
    pub(super) fn discovering(
        &self,
        default: Lane,
        pools: &Rc<SitePools>,
        shared: &SharedByLanes,
        services: &Services,
    ) -> Lane {
        if !self.discover {
            return default;
        }
        let lanes = self.site_lanes(pools, shared, services);
        let new_lane = move |way: &Endpoint| {
            let can_use = lanes.config.can_discover(way);
            can_use.then(|| lanes.lane(way, None))?.ok()
        };
        Lane {
            stage: Discovery::new(
                Rc::clone(&default.stage),
                Box::new(new_lane),
                self.max_sessions,
            ),
            ..default
        }
    }

    /// Puts discovery before `lane`, the way to the origins of opened HTTPS, if it is on. The
    /// gateway of a site proves by a certificate that it belongs to the site, and is reached
    /// through `tunnels`. Nothing passes between the parts of an isolation key, and they end with
    /// their connections in `origins`. Hosts with a route are left out, since the user has chosen
    /// their gateways.
    pub(super) fn discovering_opened(
        &self,
        open: &OpenedHttps,
        lane: Rc<dyn Stage>,
        origins: &Rc<OpenedOrigins>,
        tunnels: &Rc<dyn Dial>,
        lanes: SiteLanes,
    ) -> Result<Rc<dyn Stage>, ConfigError> {
        if !self.discover_opened {
            return Ok(lane);
        }
        let timeout = self.path.socket.connect_timeout;
        let tls = VerifiedTls::new(Rc::clone(tunnels), open.ca.as_deref(), &[b"h2"], timeout)?;
        let tls: Rc<dyn Dial> = Rc::new(tls);
        let is_shared = open.early == EarlyRequests::Shared;
        let (lanes, max_lanes) = match is_shared {
            true => (lanes, self.max_sessions),
            false => (lanes.of_parts(), self.max_sessions.min(MAX_PARTS)),
        };
        let new_lane = move |way: &Endpoint| {
            let can_use = lanes.config.can_discover_opened(way);
            can_use.then(|| lanes.lane(way, Some(&tls)))?.ok()
        };
        let discovery = Discovery::new(Rc::clone(&lane), Box::new(new_lane), max_lanes);
        let ending = Rc::downgrade(&discovery);
        origins.on_end(move |connection| {
            if let Some(discovery) = ending.upgrade() {
                discovery.end_parts_of(connection);
            }
        });
        let discovering = OfPart {
            origins: Rc::clone(origins),
            next: discovery,
        };
        let routes = self.route_map.clone();
        Ok(Rc::new(move |exchange: Exchange| {
            let host = Site::of(&exchange.request).map(|site| site.host);
            match host.and_then(|host| routes.find(&host)) {
                Some(_) => lane.call(exchange),
                None => discovering.call(exchange),
            }
        }))
    }

    /// Returns the parts of the lanes of announced gateways.
    pub(super) fn site_lanes(
        &self,
        pools: &Rc<SitePools>,
        shared: &SharedByLanes,
        services: &Services,
    ) -> SiteLanes {
        SiteLanes {
            config: Rc::new(self.clone()),
            pools: Rc::clone(pools),
            shared: shared.clone(),
            push_memory: self.push_memory,
            times: services.journal().load_times(OWN_GATEWAYS),
            renewals: services.renewals().clone(),
        }
    }
}

impl SiteLanes {
    /// Gives each lane the share of `push-memory` that a part of an isolation key has: a page can
    /// open many connections.
    fn of_parts(self) -> Self {
        Self {
            push_memory: self.push_memory.div_ceil(PARTS_IN_MEMORY),
            ..self
        }
    }

    /// Creates the lane of an announced gateway, without connecting. `transport` replaces the way
    /// through `--via`.
    fn lane(
        &self,
        way: &Endpoint,
        transport: Option<&Rc<dyn Dial>>,
    ) -> Result<SiteLane, ConfigError> {
        let config = &self.config;
        let endpoint = GatewayEndpoint {
            endpoint: way.clone(),
            addresses: None,
            exit: None,
            token_file: None,
            is_alternative: false,
            is_datagrams: false,
            is_own: false,
        };
        let mut gateway =
            config
                .far()
                .gateway(&endpoint, Dials::Many, &Arc::default(), &self.renewals)?;
        gateway.announcer = Announcer::silent(gateway.announcer.protocol().to_owned());
        if let Some(transport) = transport {
            gateway.transport = Rc::clone(transport);
        }
        let limits = PoolLimits {
            max_age: config.max_age,
            max_sessions: 1,
            reconnect: false,
            compares_ways: false,
            // The next attempt is the one without the gateway.
            tries: 1,
        };
        let pool = Gateways::new(vec![gateway], limits, None);
        self.pools.add(&pool);
        let to_gateway = Rc::new(ToGateway(Rc::clone(&pool)));
        let lane = Lane {
            stage: config.with_pushes(PushLane {
                sessions: Rc::clone(&to_gateway) as _,
                next: config.decompressing(&self.shared.coding, Rc::clone(&to_gateway) as _),
                end: SessionsEnd::Gateway,
                memory: self.push_memory,
                times: Arc::clone(&self.times),
                digest: None,
                on_end: None,
                after_reload: self.shared.after_reload.clone(),
            }),
            sessions: to_gateway,
            continuing: None,
        };
        let owned = Owned(pool);
        Ok(SiteLane {
            lane,
            prepare: Box::new(move |isolation| {
                let pool = Rc::clone(&owned.0);
                Box::pin(async move { pool.prepare(&isolation).await })
            }),
        })
    }
}

//! The lanes of gateways that sites announce.
//!
//! ```text
//!  routes ─▶ discovery ─┬─▶ the default lane
//!                       └─▶ count ─▶ access_log ─▶ loads ─▶ pushed ─▶ decompress ─▶ gateways
//! ```
//!
//! Each lane has a separate pool with one session, no access token and no certificate of the client.
//! It connects through `--via` only, with the isolation key of its requests.

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use crate::back::announce::Announcer;
use crate::back::gateways::{Gateways, PoolLimits, ToGateway};
use crate::config::discover::OWN_GATEWAYS;
use crate::config::gateways::GatewayEndpoint;
use crate::config::{ClientConfig, ConfigError};
use crate::endpoint::Endpoint;
use crate::journal::Journal;
use crate::journal::saving::LoadTimes;
use crate::middle::decompress::Decoders;
use crate::middle::discovery::{Discovery, SiteLane};
use crate::middle::routes::Lane;
use crate::status::SessionStatus;

/// The pools of announced gateways.
#[derive(Default)]
pub(super) struct SitePools(RefCell<Vec<Weak<Gateways>>>);

impl SitePools {
    fn add(&self, pool: &Rc<Gateways>) {
        let mut pools = self.0.borrow_mut();
        pools.retain(|pool| pool.strong_count() > 0);
        pools.push(Rc::downgrade(pool));
    }

    fn pools(&self) -> Vec<Rc<Gateways>> {
        self.0.borrow().iter().filter_map(Weak::upgrade).collect()
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

impl ClientConfig {
    /// Puts discovery before the default lane, if it is on.
    pub(super) fn discovering(
        &self,
        default: Lane,
        pools: &Rc<SitePools>,
        decoders: &Decoders,
        journal: &Arc<Journal>,
    ) -> Lane {
        if !self.discover {
            return default;
        }
        let config = Rc::new(self.clone());
        let times = journal.load_times(OWN_GATEWAYS);
        let (pools, decoders) = (Rc::clone(pools), decoders.clone());
        let max_lanes = config.max_sessions;
        let new_lane = move |way: &Endpoint| {
            let can_use = config.can_discover(way);
            let lane = || config.site_lane(way, &pools, &decoders, Arc::clone(&times));
            can_use.then(lane)?.ok()
        };
        Lane {
            stage: Discovery::new(default.stage, Box::new(new_lane), max_lanes),
            sessions: default.sessions,
        }
    }

    /// Creates the lane of an announced gateway, without connecting.
    fn site_lane(
        &self,
        way: &Endpoint,
        pools: &SitePools,
        decoders: &Decoders,
        times: Arc<LoadTimes>,
    ) -> Result<SiteLane, ConfigError> {
        let endpoint = GatewayEndpoint {
            endpoint: way.clone(),
            address: None,
            exit: None,
            token_file: None,
            is_alternative: false,
            is_datagrams: false,
            is_own: false,
        };
        let mut gateway = self.gateway(&endpoint, &Arc::default())?;
        gateway.announcer = Announcer::silent(gateway.announcer.protocol().to_owned());
        let limits = PoolLimits {
            max_age: self.max_age,
            max_sessions: 1,
            reconnect: false,
            // The next attempt is the one without the gateway.
            tries: 1,
        };
        let pool = Gateways::new(vec![gateway], limits, None);
        pools.add(&pool);
        let to_gateway = Rc::new(ToGateway(Rc::clone(&pool)));
        let lane = Lane {
            stage: self.with_pushes(
                Rc::clone(&to_gateway) as _,
                Rc::clone(&to_gateway) as _,
                Some(decoders),
                times,
            ),
            sessions: to_gateway,
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

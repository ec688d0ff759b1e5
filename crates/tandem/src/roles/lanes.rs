//! The lanes of a client: the stages and the sessions behind each route.
//!
//! ```text
//!  routes ─▶ early ─▶ metrics ─▶ access_log ─▶ loads ─▶ pushed ─▶ decompress ─▶ gateways
//!       │     `metrics` is short for `exchange_metrics`
//!       │     `preflights` comes before `pushed`, and `continued` after it
//!       │     `opened` comes before `gateways`, if the user entrusts them with HTTPS
//!       ├──▶ metrics ─▶ access_log ─▶ the fallback, or an error       other onion services
//!       └──▶ metrics ─▶ access_log ─▶ discovery ─┬─▶ loads ─▶ pushed ─▶ solo       `--solo`
//!            without a gateway                   ├─▶ the fallback, or an error
//!                                                └─▶ the gateways of sites
//! ```

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tandem_http::h1::Limits;
use tokio_rustls::TlsConnector;

use super::discovery::SitePools;
use super::push_lane::{PushLane, SessionsEnd};
use super::{http1_session, logged, mux_session};
use crate::back::gateways::{Gateways, ToGateway};
use crate::back::origin::{Limits as OriginLimits, Mode, Origin, ToOrigin};
use crate::config::client::Fallback;
use crate::config::gateways::GatewayEndpoint;
use crate::config::{ClientConfig, ConfigError, read_secret};
use crate::digest_file::SharedDigest;
use crate::endpoint::Via;
use crate::error::Error;
use crate::exchange::{Exchange, Reply};
use crate::front::early::EarlyConnect;
use crate::journal::saving::LoadTimes;
use crate::journal::{Problems, RouteEntry};
use crate::middle::continued::after_reload::AfterReload;
use crate::middle::decoding_memory::DecodingMemory;
use crate::middle::entrusted::{Entrust, Entrusted};
use crate::middle::exchange_metrics::ExchangeMetrics;
use crate::middle::pair_fields::{Edge, PairFields};
use crate::middle::push::NoPush;
use crate::middle::routes::{Lane, NoSessions, Routes, no_route, onion_without_route};
use crate::middle::solo::{SoloSessions, ToSolo};
use crate::role_name::RoleName;
use crate::services::Services;
use crate::session::mux::Multiplexed;
use crate::stage::Stage;
use crate::transport::Dial;
use crate::transport::socks::Socks;
use crate::transport::tls::ClientTls;
use crate::transport::tor::Tor;

/// The largest number of isolation keys with a digest for `--push-digest`, and of those with
/// answers to preflights.
pub(super) const MAX_KEYS: usize = 256;

/// The time limit for a response where the browser decides how long to wait.
pub(super) const RESPONSE: Duration = Duration::from_secs(86_400);

/// The lanes of a client.
pub(super) struct Lanes {
    /// The choice among the lanes.
    pub(super) routes: Routes,
    /// The pools of all lanes.
    pub(super) pools: Vec<Rc<Gateways>>,
    /// The sessions without a gateway.
    pub(super) solo: Option<Rc<SoloSessions>>,
    /// The pools of gateways that sites have announced.
    pub(super) discovered: Rc<SitePools>,
    /// The state that the lanes share.
    pub(super) shared: SharedByLanes,
}

/// The state that all lanes of a client share.
#[derive(Clone, Default)]
pub(super) struct SharedByLanes {
    /// The memory for coded bodies.
    pub(super) coding: DecodingMemory,
    /// The end of the configuration.
    pub(super) after_reload: AfterReload,
}

impl ClientConfig {
    /// Creates the lanes of all routes, and opens the first session of the default gateway.
    pub(super) fn lanes(
        &self,
        services: &Services,
        entrusted: Option<&Rc<Entrusted>>,
    ) -> Result<Lanes, ConfigError> {
        let (journal, renewals) = (services.journal(), services.renewals());
        let (far, problems) = (self.far(), Arc::<Problems>::default());
        let fallback = self.fallback_stage()?;
        let shared = SharedByLanes::default();
        let (mut lanes, mut pools) = (Vec::new(), Vec::new());
        for route in &self.routes {
            let pool = far.pool(&route.gateways, fallback.clone(), &problems, renewals)?;
            let times = journal.load_times(&self.destination(&route.gateways));
            let number = Some(lanes.len());
            let entrust =
                entrusted.map(|hosts| self.entrust(hosts, number, &route.gateways, &pool));
            let digest = kept_digest(services, &route.gateways)?;
            lanes.push(self.lane(&pool, times, &shared, entrust, digest));
            pools.push(pool);
        }
        let (mut solo, mut onions) = (None, None);
        let discovered = Rc::<SitePools>::default();
        let default = if self.gateways.is_empty() {
            let lane = if let Some(options) = &self.solo {
                let visits = services.visits().map(|file| file.visits().clone());
                let sessions = self.solo_sessions(options, visits)?;
                solo = Some(Rc::clone(&sessions));
                let times = journal.load_times(&self.destination(&[]));
                self.solo_lane(sessions, times, &shared)
            } else {
                lane_without_gateway(fallback, no_route)
            };
            // A request that a discovered gateway did not serve is repeated behind these stages,
            // and counts once.
            self.counted_lane(self.discovering(lane, &discovered, &shared, services))
        } else {
            onions = self.keeps_onions_apart().then(|| {
                let lane = lane_without_gateway(fallback.clone(), onion_without_route);
                self.counted_lane(lane)
            });
            let pool = far.pool(&self.gateways, fallback, &problems, renewals)?;
            // Only a request for one of its hosts contacts the gateway of a route. Otherwise the
            // operator would learn of people who may visit them.
            pool.get_ready();
            if self.preconnect {
                pool.preconnect(self.warm_up);
            }
            let times = journal.load_times(&self.destination(&self.gateways));
            let entrust = entrusted.map(|hosts| self.entrust(hosts, None, &self.gateways, &pool));
            let digest = kept_digest(services, &self.gateways)?;
            let lane = self.lane(&pool, times, &shared, entrust, digest);
            pools.push(pool);
            lane
        };
        let mut routes = Routes::new(self.route_map.clone(), lanes, default);
        if let Some(lane) = onions {
            let served = self.default_hosts();
            routes = routes.with_apart(Box::new(move |host| !served.contains(host)), lane);
        }
        let shown = self
            .destinations()
            .into_iter()
            .chain(self.opened_destinations());
        let shown = shown.map(|(hosts, way)| RouteEntry { hosts, way });
        journal.configure(problems, shown.collect());
        Ok(Lanes {
            routes,
            pools,
            solo,
            discovered,
            shared,
        })
    }

    fn lane(
        &self,
        pool: &Rc<Gateways>,
        times: Arc<LoadTimes>,
        shared: &SharedByLanes,
        entrust: Option<Entrust>,
        digest: Option<SharedDigest>,
    ) -> Lane {
        let to_gateway = Rc::new(ToGateway(Rc::clone(pool)));
        let next: Rc<dyn Stage> = match entrust {
            None => Rc::clone(&to_gateway) as _,
            Some(entrust) => Rc::new(entrust),
        };
        let next = self.decompressing(&shared.coding, next);
        let continuing = Rc::clone(&next);
        let counted = self.counted(self.with_pushes(PushLane {
            sessions: Rc::clone(&to_gateway) as _,
            next,
            end: SessionsEnd::Gateway,
            memory: self.push_memory,
            times,
            digest,
            on_end: None,
            after_reload: shared.after_reload.going_on(),
        }));
        let stage: Rc<dyn Stage> = if self.early_connect {
            Rc::new(EarlyConnect {
                sessions: Rc::clone(&to_gateway) as _,
                next: counted,
            })
        } else {
            counted
        };
        Lane {
            stage,
            sessions: to_gateway,
            continuing: Some(continuing),
        }
    }

    /// Creates the stage before the gateways of one route. `number` is that in the map of routes;
    /// `None` is the default one.
    fn entrust(
        &self,
        hosts: &Rc<Entrusted>,
        number: Option<usize>,
        gateways: &[GatewayEndpoint],
        pool: &Rc<Gateways>,
    ) -> Entrust {
        let to_gateway = Rc::new(ToGateway(Rc::clone(pool)));
        let (routes, served) = (self.route_map.clone(), self.default_hosts());
        let is_routed = move |host: &str| match routes.find(host) {
            Some((_, found)) => number == Some(found),
            None => number.is_none() && served.contains(host),
        };
        Entrust {
            hosts: Rc::clone(hosts),
            is_permitted: gateways.iter().all(GatewayEndpoint::is_entrusted),
            is_routed: Rc::new(is_routed),
            sessions: Rc::clone(&to_gateway) as _,
            next: to_gateway,
        }
    }

    fn solo_lane(
        &self,
        sessions: Rc<SoloSessions>,
        times: Arc<LoadTimes>,
        shared: &SharedByLanes,
    ) -> Lane {
        let to_solo = Rc::new(ToSolo(sessions));
        Lane {
            stage: self.with_pushes(PushLane {
                sessions: Rc::clone(&to_solo) as _,
                next: Rc::clone(&to_solo) as _,
                end: SessionsEnd::Here,
                memory: self.push_memory,
                times,
                // Without a gateway, the file alone would open the section.
                digest: None,
                on_end: None,
                after_reload: shared.after_reload.clone(),
            }),
            sessions: to_solo,
            continuing: None,
        }
    }

    fn counted_lane(&self, lane: Lane) -> Lane {
        Lane {
            stage: self.counted(lane.stage),
            ..lane
        }
    }

    fn counted(&self, next: Rc<dyn Stage>) -> Rc<dyn Stage> {
        Rc::new(ExchangeMetrics {
            next: logged(self.log_requests, self.log_urls, next),
        })
    }

    /// Creates the stage that serves requests without a gateway, over the same proxy, as the
    /// browser would.
    fn fallback_stage(&self) -> Result<Option<Rc<dyn Stage>>, ConfigError> {
        let transport = match self.fallback {
            Fallback::None => return Ok(None),
            Fallback::Via => self.via_to_origins(),
        };
        let Some(transport) = transport else {
            return Ok(None);
        };
        let http1 = http1_session(RoleName::Client, &self.path);
        let h2 = Rc::new(mux_session(
            Multiplexed::H2,
            &self.path,
            256,
            Limits::default().head,
            RoleName::Client,
        ));
        let connector = tls_to_origins()?;
        let (timeout, limits) = (self.path.socket.connect_timeout, OriginLimits::default());
        let origin = Origin::new(
            Mode::Forward,
            transport,
            connector,
            http1,
            h2,
            timeout,
            limits,
        );
        let next = Rc::new(ToOrigin(origin));
        let edge = Edge::Origins;
        Ok(Some(Rc::new(PairFields { edge, next })))
    }

    /// Returns the way to origins through the proxy, if there is one.
    pub(super) fn via_to_origins(&self) -> Option<Rc<dyn Dial>> {
        let options = self.path.socket.clone();
        match self.via.as_ref()? {
            Via::Socks(proxy) => Some(Rc::new(Socks::new(*proxy, options))),
            control => Some(Rc::new(Tor::new(
                control.clone(),
                self.tor_password.clone(),
                None,
                options,
            ))),
        }
    }
}

/// Creates the lane of requests without a gateway. Without a fallback, they get the error.
fn lane_without_gateway(fallback: Option<Rc<dyn Stage>>, error: fn() -> Error) -> Lane {
    let refusal = fallback.is_none().then_some(error);
    let refuse = move |_: Exchange| Reply::fail(error());
    let next = fallback.unwrap_or_else(|| Rc::new(refuse));
    Lane {
        stage: Rc::new(NoPush { next }),
        sessions: Rc::new(NoSessions { refusal }),
        continuing: None,
    }
}

/// Returns TLS towards origins, with the authorities of the public web. All isolation keys use it.
pub(super) fn tls_to_origins() -> Result<TlsConnector, ConfigError> {
    let tls = ClientTls {
        alpn: vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        unlinkable: true,
        ..ClientTls::default()
    };
    Ok(tls.connector()?)
}

/// Returns the digest in the file of digests for the gateways of a lane, if there is such a file.
/// Another gateway must not learn of these responses, and the token shows which one it is.
fn kept_digest(
    services: &Services,
    gateways: &[GatewayEndpoint],
) -> Result<Option<SharedDigest>, ConfigError> {
    let Some(file) = services.digests() else {
        return Ok(None);
    };
    let authorities = gateways.iter().map(|gateway| gateway.endpoint.authority());
    let mut owner: Vec<_> = authorities.collect();
    owner.sort();
    owner.dedup();
    let token_file = gateways
        .iter()
        .find_map(|gateway| gateway.token_file.as_deref());
    let token = token_file.map(|file| read_secret("token-file", file));
    owner.push(token.transpose()?.unwrap_or_default());
    Ok(Some(file.digest_of(owner.join("\n").as_bytes())))
}

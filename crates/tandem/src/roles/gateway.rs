//! The gateway: a session for each client, the stages of each session, and the way to origins.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use super::near::InnerStages;
use super::scope::Scope;
use super::{Built, Listening, Role};
use crate::back::origin::prepare::Prepared;
use crate::back::origin::{
    Mode, Origin, OriginProtocols, OriginTransports, OriginsOfSession, ToOrigin,
};
use crate::back::udp::{NoUdp, Udp, UdpTunnels};
use crate::config::{ConfigError, GatewayConfig, NearConfig};
use crate::connections::Connection;
use crate::endpoint::Endpoint;
use crate::exchange::Peer;
use crate::middle::announce::{Announce, OwnGateway};
use crate::middle::cache::CacheStage;
use crate::middle::compress::{CodingMemory, Compress, NoCompress};
use crate::middle::entrusted::Permission;
use crate::middle::hops::EndHops;
use crate::middle::pair_fields::{Edge, PairFields};
use crate::middle::push::{NoPush, Push, Pushing};
use crate::middle::resume::Resume;
use crate::middle::submit::{StorePlace, Submissions, Submit};
use crate::middle::warm_up::WarmUp;
use crate::middle::websocket::WebSocketKey;
use crate::path::Facts;
use crate::role_name::RoleName;
use crate::services::Services;
use crate::session::Drain;
use crate::session::http1::Http1Session;
use crate::session::mux::Multiplexed;
use crate::stage::Stage;
use crate::transport::tls::ClientTls;
use crate::transport::tls::verified::VerifiedTls;
use crate::transport::{Dial, Target};

impl Role for GatewayConfig {
    fn listening(&self) -> Listening<'_> {
        self.near.listening()
    }

    fn open(&self, services: &Services) -> Result<(), ConfigError> {
        services.open_cache(self.cache.as_ref());
        if let Some(submission) = &self.submission {
            #[cfg(feature = "submit")]
            if let Some(unlinkable) = &submission.unlinkable {
                services.renewals().watch_shared(&unlinkable.issuers);
            }
            services
                .open_store(&submission.store)
                .map_err(|problem| ConfigError::value("submit-store", problem))?;
        }
        if let Some(predictor) = self.push.as_ref().and_then(|push| push.predictor.as_ref()) {
            services
                .open_predictor(predictor)
                .map_err(|error| ConfigError::value("predict-state", error.to_string()))?;
        }
        services
            .open_disk(self.disk.as_ref(), &self.scope())
            .map_err(|error| ConfigError::value("cache-dir", error.to_string()))?;
        services
            .open_fleet(self.fleet.as_ref(), &self.scope())
            .map_err(|error| ConfigError::value("share", error.to_string()))
    }

    fn build(
        &self,
        services: &Services,
        listening: &[SocketAddr],
        drain: &Drain,
    ) -> Result<Built, ConfigError> {
        let named = match &self.mode {
            Mode::Reverse { target, .. } => Some(target.clone()),
            Mode::Forward | Mode::Proxy { .. } => None,
        };
        let transport = self.origins.direct(&self.near, named, listening)?;
        let http1 = self.near.http1(RoleName::Gateway);
        let h2 = self.near.mux_session(Multiplexed::H2, RoleName::Gateway);
        let protocols = OriginProtocols {
            http1: self.origins.http1(http1.clone()),
            multiplexed: Rc::new(h2),
            always: None,
        };
        let limits = self.origins.limits_of_thread(&self.near);
        let tunnels = self
            .udp
            .then(|| UdpTunnels::new(&transport, limits.lasting));
        let transports = self.to_origins(transport)?;
        let origin = Origin::with(self.mode.clone(), transports, protocols, limits);
        let submissions = self.submissions(services, &origin)?;
        let inner = self.inner_stages(&origin, tunnels, services, submissions);
        let inner = self.announcing(listening, inner);
        let permission = self.permission(&origin);
        self.near
            .ending_path(http1, permission, services, drain, inner)
    }
}

impl GatewayConfig {
    /// Returns the transports to origins. A gateway that fetches HTTPS of opened hosts notices
    /// origins that ask for a client certificate, which only the browser can choose.
    fn to_origins(&self, below: Rc<dyn Dial>) -> Result<OriginTransports, ConfigError> {
        let ca = self.origins.ca.as_deref();
        let timeout = self.near.path.socket.connect_timeout;
        let alpn: [&[u8]; 2] = [b"h2", b"http/1.1"];
        if self.fetches_opened {
            let secure = |alpn| VerifiedTls::new(Rc::clone(&below), ca, alpn, timeout).map(Rc::new);
            return Ok(OriginTransports {
                secure: secure(&alpn)?,
                secure_http1: secure(&alpn[1..])?,
                plain: Rc::clone(&below),
                tunnels: below,
            });
        }
        let tls = ClientTls {
            ca: ca.map(str::to_owned),
            alpn: alpn.iter().map(|name| name.to_vec()).collect(),
            // The origin of a reverse gateway is its operator's.
            unlinkable: self.mode == Mode::Forward,
            ..ClientTls::default()
        };
        let connector = tls.connector()?;
        Ok(OriginTransports::with_tls(below, &connector, None, timeout))
    }

    /// Returns the rules that decide which origin responds to a request, as bytes.
    fn scope(&self) -> Vec<u8> {
        let scope = Scope {
            mode: &self.mode,
            policy: &self.origins.policy,
            origin_ca: self.origins.ca.as_deref(),
        };
        scope.encode()
    }

    /// Returns the permission to fetch HTTPS of opened hosts.
    fn permission(&self, origin: &Rc<Origin>) -> Permission {
        if !self.fetches_opened {
            let reason =
                "it does not fetch HTTPS of opened hosts: start the gateway with --open-https";
            return Err(reason);
        }
        let origin = Rc::clone(origin);
        Ok(Rc::new(move |session, isolation, (host, port)| {
            let prepared = Prepared {
                session,
                isolation,
                target: Target::new(host, port),
            };
            let origin = Rc::clone(&origin);
            Box::pin(async move { origin.verify(prepared).await })
        }))
    }

    /// Returns the settings of push, with the predictor if one is configured.
    fn pushing(&self, services: &Services) -> Option<Rc<Pushing>> {
        let push = self.push.as_ref()?;
        let predictor = push.predictor.as_ref();
        let learned = predictor.and_then(|_| services.predictor()).cloned();
        Some(Rc::new(Pushing {
            learned,
            by_path: push.by_path,
            hold_out: push.hold_out,
            named_by_scripts: push.named_by_scripts,
            own_origin_only: push.own_origin_only,
            ..Pushing::default()
        }))
    }

    /// Returns the submissions of the thread, in that mode.
    ///
    /// # Errors
    /// Returns an error if the store of that mode is not open. A gateway without it would serve the
    /// server's other resources, like a reverse gateway.
    fn submissions(
        &self,
        services: &Services,
        origin: &Rc<Origin>,
    ) -> Result<Option<Rc<Submissions>>, ConfigError> {
        let Some(config) = &self.submission else {
            return Ok(None);
        };
        let store = services
            .store()
            .ok_or_else(|| ConfigError::value("submit-store", "the store is not open"))?;
        Ok(Some(Submissions::new(
            config.server.clone(),
            config.times,
            config.watch_rights(services.renewals())?,
            Arc::clone(&config.signer),
            StorePlace {
                store: Arc::clone(store),
                max_stored: config.max_stored,
                faults: Arc::clone(services.journal().faults()),
            },
            Rc::new(ToOrigin(Rc::clone(origin))),
            #[cfg(feature = "submit")]
            config.unlinkable.clone(),
        )))
    }

    /// Creates the stages of each session between those of all gateways and the origins. They
    /// keep the list of pushed resources until the session ends.
    fn inner_stages(
        &self,
        origin: &Rc<Origin>,
        tunnels: Option<Rc<UdpTunnels>>,
        services: &Services,
        submissions: Option<Rc<Submissions>>,
    ) -> InnerStages {
        let pushing = self.pushing(services);
        let (cache, users) = (services.cache(), Arc::clone(services.users()));
        let origin = Rc::clone(origin);
        let tells_status = self.cache_status;
        let coding = self.compress.is_on().then(CodingMemory::of_gateway);
        let permits_recoding = self.compress.permits_recoding();
        let no_udp = match self.mode {
            Mode::Forward => "no UDP here: the gateway needs the option --udp",
            Mode::Reverse { .. } | Mode::Proxy { .. } => "no UDP here: the gateway serves one site",
        };
        Box::new(move |path: &Rc<dyn Facts>, peer: Peer| {
            let last: Rc<dyn Stage> = match &submissions {
                Some(submissions) => Rc::new(Submit {
                    submissions: Rc::clone(submissions),
                    certificate: path.peer_certificate(),
                }),
                // Sessions of clients carry WebSockets without the key that HTTP/1.1 requires.
                None => Rc::new(WebSocketKey {
                    next: Rc::new(OriginsOfSession::new(peer.session, &origin)),
                }),
            };
            let last: Rc<dyn Stage> = match &tunnels {
                Some(tunnels) => Rc::new(Udp::new(tunnels, last)),
                None => Rc::new(NoUdp {
                    reason: no_udp,
                    next: last,
                }),
            };
            let out: Rc<dyn Stage> = Rc::new(PairFields {
                edge: Edge::Origins,
                next: last,
            });
            let out: Rc<dyn Stage> = match &cache {
                None => out,
                Some(cache) => {
                    let user = users.number(peer.session, peer.address);
                    Rc::new(CacheStage::new(cache, peer, user, tells_status, out))
                }
            };
            let out: Rc<dyn Stage> = match &pushing {
                Some(pushing) => Rc::new(Push::new(pushing, Some(path), peer, out)),
                None => Rc::new(NoPush { next: out }),
            };
            match &coding {
                Some(coding) => Rc::new(Compress::new(coding, path, permits_recoding, out)),
                None => Rc::new(NoCompress { next: out }),
            }
        })
    }

    /// Puts the announcement of the gateway before the stages of each session, if it is on.
    fn announcing(&self, listening: &[SocketAddr], inner: InnerStages) -> InnerStages {
        let Mode::Reverse { hosts, .. } = &self.mode else {
            return inner;
        };
        if !self.announce {
            return inner;
        }
        let bound = |(endpoint, address): (&Endpoint, &SocketAddr)| {
            let mut endpoint = endpoint.clone();
            endpoint.port = address.port();
            endpoint
        };
        let gateway = Rc::new(OwnGateway {
            listeners: self.near.listen.iter().zip(listening).map(bound).collect(),
            hosts: hosts.clone(),
        });
        Box::new(move |path, peer| {
            let (gateway, next) = (Rc::clone(&gateway), inner(path, peer));
            Rc::new(Announce { gateway, next })
        })
    }
}

impl NearConfig {
    /// Creates the fronts of a role that ends the path of its sessions. Its stages answer the
    /// warm-up and end the count of hops.
    pub(super) fn ending_path(
        &self,
        http1: Http1Session,
        permission: Permission,
        services: &Services,
        drain: &Drain,
        inner: InnerStages,
    ) -> Result<Built, ConfigError> {
        let counted = self.counted(permission);
        let speed_tokens = Arc::clone(services.speed_tokens());
        let outer = Box::new(move |path: &Rc<dyn Facts>, peer: Peer, _: &Connection| {
            let next = Rc::new(EndHops {
                next: inner(path, peer),
            });
            let next = Rc::new(WarmUp::new(path.is_over_bbr(), counted.before(next)));
            Rc::new(Resume::new(path, &speed_tokens, next)) as Rc<dyn Stage>
        });
        self.built(
            http1,
            false,
            self.admitted(services, outer)?,
            services,
            drain,
        )
    }
}

//! The end towards gateways: the sessions of a client, and those of a relay to its next hop.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use tandem_http::h1::{Form, Limits};
use tandem_push::client::MAX_PUSHES;

use super::lanes::RESPONSE;
use super::{client_token, http1_session, mux_session};
use crate::back::announce::Announcer;
use crate::back::gateways::{Gateway, Gateways, PoolLimits, TRIES, ToGateway, WayEntry};
use crate::config::gateways::GatewayEndpoint;
use crate::config::{ClientConfig, ConfigError, PathConfig, RelayConfig};
use crate::endpoint::Via;
use crate::journal::Problems;
use crate::renewal::{Renewable, Renewals};
use crate::role_name::RoleName;
use crate::secret::Secret;
use crate::session::Connect;
use crate::session::http1::Http1Session;
use crate::session::mux::Multiplexed;
use crate::session::streams::StreamsSession;
use crate::stage::Stage;
use crate::transport::addresses::AnyAddress;
use crate::transport::registry::{DialContext, Protocol, Transports};
use crate::transport::socks::Socks;
use crate::transport::tcp::Tcp;
use crate::transport::tor::Tor;
use crate::transport::{Dial, Target};

/// The settings of the sessions to gateways.
#[derive(Clone, Copy, Debug)]
pub(super) struct Far<'a> {
    /// The slow path.
    pub(super) path: &'a PathConfig,
    /// True if the sessions accept pushes.
    pub(super) push: bool,
    /// The proxy on the way.
    pub(super) via: Option<&'a Via>,
    /// The password of Tor's control port.
    pub(super) tor_password: Option<&'a Secret>,
    /// The transports that the endpoints may name.
    pub(super) transports: &'a Transports,
    /// The limits of each pool.
    pub(super) limits: PoolLimits,
}

/// The number of connections that a program opens to a gateway.
#[derive(Clone, Copy, Debug)]
pub(super) enum Dials {
    /// A single command opens one, and ends.
    One,
    /// A client opens one for each isolation key.
    Many,
}

impl ClientConfig {
    /// Returns the settings of the sessions to all gateways.
    pub(super) fn far(&self) -> Far<'_> {
        Far {
            path: &self.path,
            push: self.push,
            via: self.via.as_ref(),
            tor_password: self.tor_password.as_ref(),
            transports: &self.transports,
            limits: PoolLimits {
                max_age: self.max_age,
                max_sessions: self.max_sessions.div_ceil(self.routes.len() + 1),
                // Over Tor, a new circuit every minute would be a recognisable pattern.
                reconnect: self.via.is_none(),
                compares_ways: !self.warm_up.is_none(),
                tries: TRIES,
            },
        }
    }

    /// Creates a stage that sends requests to one gateway only, and logs nothing else.
    ///
    /// # Errors
    /// Fails if the certificates or the token of the gateway cannot be read.
    pub fn path_to(&self, gateway: &GatewayEndpoint) -> Result<Rc<dyn Stage>, ConfigError> {
        let limits = PoolLimits {
            max_age: None,
            max_sessions: 1,
            reconnect: false,
            compares_ways: false,
            tries: TRIES,
        };
        // The files are read once: the stage serves a single command.
        let far = self.far();
        let gateway = far.gateway(gateway, Dials::One, &Arc::default(), &Renewals::default())?;
        let pool = Gateways::new(vec![gateway], limits, None);
        Ok(Rc::new(ToGateway(pool)))
    }
}

impl RelayConfig {
    /// Returns the settings of the sessions to the next hop.
    pub(super) fn far(&self) -> Far<'_> {
        Far {
            path: &self.near.path,
            push: self.push,
            via: None,
            tor_password: None,
            transports: &self.near.transports,
            limits: PoolLimits {
                max_age: None,
                max_sessions: self.near.max_connections.div_ceil(self.near.workers),
                reconnect: true,
                compares_ways: true,
                tries: TRIES,
            },
        }
    }
}

impl Far<'_> {
    /// Creates the sessions to the gateways of one route.
    pub(super) fn pool(
        &self,
        gateways: &[GatewayEndpoint],
        fallback: Option<Rc<dyn Stage>>,
        problems: &Arc<Problems>,
        renewals: &Renewals,
    ) -> Result<Rc<Gateways>, ConfigError> {
        let gateways = gateways
            .iter()
            .map(|gateway| self.gateway(gateway, Dials::Many, problems, renewals))
            .collect::<Result<Vec<_>, _>>()?;
        let pool = Gateways::new(gateways, self.limits, fallback);
        if self.via.is_some() {
            pool.keep_keys_apart();
        }
        Ok(pool)
    }

    /// Creates the way to one gateway.
    pub(super) fn gateway(
        &self,
        gateway: &GatewayEndpoint,
        dials: Dials,
        problems: &Arc<Problems>,
        renewals: &Renewals,
    ) -> Result<Gateway, ConfigError> {
        let endpoint = &gateway.endpoint;
        let target = Target::new(endpoint.host.clone(), endpoint.port);
        let provider = self.transports.to_dial(endpoint)?;
        let token_file = gateway.token_file.as_deref();
        let token = token_file.map(|file| client_token(file, renewals));
        let token = token.transpose()?;
        let session: Rc<dyn Connect> = match Multiplexed::of(endpoint.session) {
            Some(protocol) => {
                let head = Limits::default().head;
                let mut session = mux_session(
                    protocol,
                    self.path,
                    MAX_PUSHES as u32,
                    head,
                    RoleName::Client,
                );
                session.config.push = self.push;
                session.token = token;
                Rc::new(session)
            }
            None if provider.has_streams() => Rc::new(self.streams_session(token)),
            None => {
                let problem = "a session over the slow path is h2, h3, spdy3 or spdy3.1";
                return Err(ConfigError::value("gateway", problem));
            }
        };
        let transport = self.transport_to(gateway, dials, renewals)?;
        let way = self
            .via
            .map_or_else(String::new, |via| format!(" through {via}"));
        let carrier = endpoint.transport.to_uppercase();
        let how = format!("{} over {carrier}{way}", endpoint.session.as_str());
        Ok(Gateway {
            blamed: Cell::default(),
            announcer: Announcer::new(endpoint.authority(), how, Arc::clone(problems)),
            has_token: gateway.token_file.is_some(),
            target,
            transport,
            session,
            way: WayEntry {
                is_alternative: gateway.is_alternative,
                is_datagrams: gateway.is_datagrams,
                addresses: gateway.addresses.clone(),
            },
        })
    }

    /// Creates the transport to a gateway. Without a proxy it dials the addresses of the gateway.
    /// The checks of the configuration permit no datagrams behind a proxy, which would leave beside
    /// it. This check also holds for endpoints from elsewhere.
    fn transport_to(
        &self,
        gateway: &GatewayEndpoint,
        dials: Dials,
        renewals: &Renewals,
    ) -> Result<Rc<dyn Dial>, ConfigError> {
        let provider = self.transports.to_dial(&gateway.endpoint)?;
        if self.via.is_some() && provider.protocol() == Protocol::Udp {
            let problem = format!("{}: --via carries no datagrams", gateway.endpoint);
            return Err(ConfigError::value("gateway", problem));
        }
        let context = DialContext {
            streams: self.byte_streams(gateway, dials),
            congestion: self.path.socket.congestion.clone(),
            stream_window: self.path.stream_window,
            early_data: self.path.early_data,
            may_move: true,
            timeout: self.path.socket.connect_timeout,
            renewals: renewals.clone(),
        };
        let transport = provider.dialling(&gateway.endpoint, context)?;
        Ok(match &gateway.addresses {
            Some(addresses) => Rc::new(AnyAddress::new(addresses.clone(), transport)),
            None => transport,
        })
    }

    /// Creates the session over a transport with many streams. A lost peer ends the carrier, so
    /// that a response needs no time limit here.
    fn streams_session(&self, token: Option<Arc<Renewable<String>>>) -> StreamsSession {
        let http1 = Http1Session {
            form: Form::Absolute,
            response_timeout: RESPONSE,
            ..http1_session(RoleName::Client, self.path)
        };
        StreamsSession::new(http1, token)
    }

    /// Opens byte streams to a gateway: to its address, or through the proxy if there is one.
    fn byte_streams(&self, gateway: &GatewayEndpoint, dials: Dials) -> Rc<dyn Dial> {
        let options = self.path.socket.clone();
        match self.via {
            None => Rc::new(Tcp {
                options: Some(options),
                pinned: None,
            }),
            Some(Via::Socks(proxy)) => Rc::new(Socks::new(*proxy, options)),
            Some(control) => {
                let password = self.tor_password.cloned();
                let tor = Tor::new(control.clone(), password, gateway.exit.clone(), options);
                Rc::new(match dials {
                    Dials::Many => tor.keep_circuit(),
                    Dials::One => tor,
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ClientOptions;
    use crate::endpoint::Endpoint;
    use crate::transport::doubles::AddressDial;
    use crate::transport::registry::{Dials as DialsOf, Provider, TransportError};

    /// A transport with datagrams, or without.
    struct Fake(&'static str, Protocol);

    impl Provider for Fake {
        fn name(&self) -> &'static str {
            self.0
        }

        fn protocol(&self) -> Protocol {
            self.1
        }

        fn has_streams(&self) -> bool {
            true
        }
    }

    impl DialsOf for Fake {
        fn dialling(&self, _: &Endpoint, _: DialContext) -> Result<Rc<dyn Dial>, TransportError> {
            Ok(Rc::new(AddressDial(|_| std::future::pending())))
        }
    }

    #[test]
    fn transport_with_datagrams_is_refused_behind_a_proxy() {
        let mut transports = Transports::default();
        transports.add_dialling(Fake("datagrams", Protocol::Udp));
        transports.add_dialling(Fake("stream", Protocol::Tcp));
        let config = |via: Option<&str>| {
            let options = ClientOptions {
                gateway: vec!["h2+tls://192.168.0.1:443".parse().expect("a gateway")],
                via: via.map(|via| via.parse().expect("a proxy")),
                ..ClientOptions::default()
            };
            let mut config = options.typed().expect("a configuration");
            config.transports = transports.clone();
            config
        };
        for (via, way, is_refused) in [
            (Some("socks5://127.0.0.1:9050"), "datagrams", true),
            (Some("socks5://127.0.0.1:9050"), "stream", false),
            (None, "datagrams", false),
        ] {
            let config = config(via);
            let mut gateway = config.gateways[0].clone();
            gateway.endpoint = format!("http+{way}://192.168.0.1:443")
                .parse()
                .expect("an endpoint");
            let path = config.path_to(&gateway);
            assert_eq!(path.is_err(), is_refused, "{via:?} {way}");
        }
    }
}

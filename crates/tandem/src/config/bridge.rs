//! The options of the bridge, and the configuration that they make.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::gateway::{default_hosts, listeners};
use super::near::{NearConfig, near_options};
use super::origins::{OriginsConfig, OriginsOptions};
use super::units::Span;
use super::{ConfigError, limit, with_path};
use crate::back::policy::AllowDest;
use crate::endpoint::{Endpoint, SessionKind, Usage};
use crate::hosts::HostPattern;
use crate::role_name::RoleName;
use crate::textual::textual;
use crate::transport::registry::Transports;

with_path! {
    near_options [
        "Time limit for a connection to an origin, and for handshakes [default: 30s]"
        "Idle time after which sessions are closed [default: 10m]"
        "Time after which a client that reads no bytes is disconnected [default: 1m]"
        "Silence after which a busy session must answer a ping [default: 20s]"
    ]
    /// Options of `tandem bridge`; each is a flag and a key of `[bridge]`.
    BridgeOptions {
        /// Listener for clients: http://ADDRESS:PORT, h2+tls://ADDRESS:PORT?cert=FILE&key=FILE, the
        /// same with http+tls, spdy3.1+tls or h3+quic (UDP), h2+tcp://ADDRESS:PORT, … (repeatable)
        listen: Vec<Endpoint> [help_heading = "Listening", value_name = "URL", value_parser = |text: &str| Usage::GatewayListener.parse(text)] with "listeners",
        /// Servers behind the bridge: forward serves the origins that requests name, reverse=URL
        /// one origin, proxy=URL sends all requests and tunnels to another proxy; the URL has the
        /// form of a listener, with ?ca=FILE for its authority [default: forward]
        mode: Option<BridgeMode> [help_heading = "Destinations", value_name = "MODE"],
        /// Protocol towards origins with mode=forward; auto is HTTP/2 or HTTP/1.1, as TLS
        /// negotiates [default: auto]
        back: Option<BackOption> [help_heading = "Destinations", value_name = "PROTOCOL"],
        /// Destinations allowed besides the public Internet with mode=forward, and for tunnels: a
        /// network, or a network and one port (repeatable)
        allow_dest: Vec<AllowDest> [help_heading = "Destinations", value_name = "NET[:PORT]"],
        /// Hosts that mode=reverse serves besides its origin's name: NAME, *.SUFFIX, or * for all
        /// (repeatable) [default: *.onion if the origin is an address]
        allow_host: Vec<HostPattern> [help_heading = "Destinations", value_name = "HOST"],
        /// Ports allowed on the public Internet with mode=forward (repeatable) [default: 80, 443]
        allow_port: Vec<u16> [help_heading = "Destinations", value_name = "PORT"],
        /// PEM file with the authorities that sign origins' certificates with mode=forward
        /// [default: those of the public web]
        origin_ca: Option<String> [help_heading = "Destinations", value_name = "FILE"],
        /// Maximum number of exchanges of one session that use connections to one origin at once
        /// [default: 128]
        max_connections_per_origin: Option<usize> [help_heading = "Destinations", value_name = "N"],
        /// Maximum number of connections to all origins for one session, and of exchanges that all
        /// sessions start at once with the origin of mode=reverse [default: 256]
        max_origin_connections: Option<usize> [help_heading = "Destinations", value_name = "N"],
        /// Maximum number of exchanges with the origin of mode=reverse that last, for all sessions;
        /// at least max-connections [default: twice max-connections]
        max_lasting_exchanges: Option<usize> [help_heading = "Destinations", value_name = "N"],
        /// Time limit for an origin's response, and for each pause within it [default: 1m]
        response_timeout: Option<Span> [help_heading = "Time limits", value_name = "TIME"],
    }
}

/// The option `mode` of the bridge: it selects the servers behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BridgeMode {
    /// The origin that a request names.
    Forward,
    /// The same origin for all requests.
    Reverse(Endpoint),
    /// The same proxy for all requests and tunnels.
    Proxy(Endpoint),
}

impl FromStr for BridgeMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let server = |url| Usage::Server.parse(url).map_err(|error| error.to_string());
        match text.split_once('=') {
            None if text == "forward" => Ok(Self::Forward),
            Some(("reverse", url)) => server(url).map(Self::Reverse),
            Some(("proxy", url)) => server(url).map(Self::Proxy),
            _ => Err(format!(
                "{text:?} is none of forward, reverse=URL, proxy=URL"
            )),
        }
    }
}

impl std::fmt::Display for BridgeMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Forward => f.write_str("forward"),
            Self::Reverse(server) => write!(f, "reverse={server}"),
            Self::Proxy(server) => write!(f, "proxy={server}"),
        }
    }
}

textual!(BridgeMode);

/// The option `back` of the bridge: the protocol towards the origins that requests name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub enum BackOption {
    /// HTTP/1.1 without TLS, and HTTP/2 or HTTP/1.1 over TLS
    #[default]
    #[serde(rename = "auto")]
    Auto,
    /// HTTP/1.1
    #[serde(rename = "http")]
    Http,
    /// HTTP/2, by prior knowledge without TLS
    #[serde(rename = "h2")]
    H2,
    /// HTTP/3 over QUIC, for https only
    #[serde(rename = "h3")]
    H3,
    /// SPDY/3
    #[serde(rename = "spdy3")]
    Spdy3,
    /// SPDY/3.1
    #[serde(rename = "spdy3.1")]
    #[value(name = "spdy3.1")]
    Spdy31,
}

impl BackOption {
    /// Returns the session protocol, or `None` if TLS negotiates it.
    pub const fn session(self) -> Option<SessionKind> {
        match self {
            Self::Auto => None,
            Self::Http => Some(SessionKind::Http),
            Self::H2 => Some(SessionKind::H2),
            Self::H3 => Some(SessionKind::H3),
            Self::Spdy3 => Some(SessionKind::Spdy3),
            Self::Spdy31 => Some(SessionKind::Spdy31),
        }
    }
}

/// The checked configuration of a bridge.
#[derive(Clone, Debug)]
pub struct BridgeConfig {
    /// The end towards clients.
    pub near: NearConfig,
    /// The end towards origins.
    pub origins: OriginsConfig,
    /// The servers behind the bridge.
    pub mode: BridgeMode,
    /// The hosts that requests may name, with one origin.
    pub hosts: Vec<HostPattern>,
    /// The protocol towards origins in the mode `forward`.
    pub back: BackOption,
}

impl BridgeConfig {
    /// Returns the one server behind the bridge, if there is one.
    pub const fn server(&self) -> Option<&Endpoint> {
        match &self.mode {
            BridgeMode::Forward => None,
            BridgeMode::Reverse(server) | BridgeMode::Proxy(server) => Some(server),
        }
    }
}

impl BridgeOptions {
    /// Checks the options without network access; the endpoints may name the standard transports.
    pub fn typed(self) -> Result<BridgeConfig, ConfigError> {
        self.typed_with(&Transports::default())
    }

    /// Checks the options as [`Self::typed`] does; the endpoints may name the given transports.
    pub fn typed_with(mut self, transports: &Transports) -> Result<BridgeConfig, ConfigError> {
        let path = self.take_path().typed()?;
        let (mode, hosts) = self.servers(transports)?;
        let near = self.take_near();
        let mut near = near.typed(RoleName::Bridge, path, false, transports)?;
        let origins = OriginsOptions {
            allow_dest: self.allow_dest,
            allow_port: self.allow_port,
            origin_ca: self.origin_ca,
            // Without push, one connection is enough.
            per_origin: limit(
                "max-connections-per-origin",
                self.max_connections_per_origin,
                128,
            )?,
            per_session: limit("max-origin-connections", self.max_origin_connections, 256)?,
            lasting: self.max_lasting_exchanges,
            response_timeout: self.response_timeout,
        };
        let key = server_of(&mode).and_then(|server| server.option("key"));
        near.secret_files.extend(key.map(str::to_owned));
        Ok(BridgeConfig {
            origins: origins.typed(near.max_connections)?,
            near,
            mode,
            hosts,
            back: self.back.unwrap_or_default(),
        })
    }

    /// Checks the servers behind the bridge. Returns the hosts that requests may name.
    fn servers(
        &self,
        transports: &Transports,
    ) -> Result<(BridgeMode, Vec<HostPattern>), ConfigError> {
        let mode = self.mode.clone().unwrap_or(BridgeMode::Forward);
        let Some(server) = server_of(&mode) else {
            if self.back == Some(BackOption::H3) {
                transports.to_dial(&quic_origins())?;
            }
            self.refuse_hosts()?;
            return Ok((mode, Vec::new()));
        };
        let provider = transports.to_dial(server)?;
        server.options(provider.dial_options())?;
        provider.check_dial(server)?;
        provider.check_session(server)?;
        for (key, is_given) in [
            ("back", self.back.is_some()),
            ("origin-ca", self.origin_ca.is_some()),
        ] {
            if is_given {
                let problem = "needs --mode forward: the URL of one server names its protocol, and \
                               its authority by ?ca=FILE";
                return Err(ConfigError::value(key, problem));
            }
        }
        if matches!(mode, BridgeMode::Proxy(_)) {
            self.refuse_hosts()?;
            return Ok((mode, Vec::new()));
        }
        let mut hosts = vec![HostPattern::Name(server.host.clone())];
        match self.allow_host.is_empty() {
            true => hosts.extend(default_hosts(&hosts)),
            false => hosts.extend_from_slice(&self.allow_host),
        }
        Ok((mode, hosts))
    }

    fn refuse_hosts(&self) -> Result<(), ConfigError> {
        match self.allow_host.is_empty() {
            true => Ok(()),
            false => Err(ConfigError::value("allow-host", "needs --mode reverse=URL")),
        }
    }
}

const fn server_of(mode: &BridgeMode) -> Option<&Endpoint> {
    match mode {
        BridgeMode::Forward => None,
        BridgeMode::Reverse(server) | BridgeMode::Proxy(server) => Some(server),
    }
}

/// Returns the form of the endpoints of origins over HTTP/3. Host and port are those of a request.
pub fn quic_origins() -> Endpoint {
    Endpoint::new(SessionKind::H3, "quic", "origin.invalid", 443)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(change: impl FnOnce(&mut BridgeOptions)) -> Result<BridgeConfig, ConfigError> {
        let mut options = BridgeOptions {
            listen: vec!["http://127.0.0.1:9980".parse().expect("an endpoint")],
            open: Some(true),
            ..BridgeOptions::default()
        };
        change(&mut options);
        options.typed()
    }

    fn mode(text: &str) -> Option<BridgeMode> {
        Some(text.parse().expect("a mode"))
    }

    #[test]
    fn bridge_requires_auth_or_open() {
        let error = options(|o| o.open = None).expect_err("no admission");
        assert!(error.to_string().contains("would let no one in"), "{error}");
        assert!(options(|_| {}).is_ok());
    }

    #[test]
    fn bridge_mode_has_the_form_of_endpoints() {
        for text in [
            "forward",
            "reverse=http://origin.example:80",
            "reverse=h2+tls://origin.example:443?ca=ca.pem",
            "proxy=spdy3.1+tls://proxy.example:443?sni=other.example",
        ] {
            assert_eq!(mode(text).expect("a mode").to_string(), text);
        }
        for bad in [
            "reverse",
            "reverse=https://origin.example",
            "reverse=socks5://127.0.0.1:9050",
            "sideways",
        ] {
            assert!(bad.parse::<BridgeMode>().is_err(), "{bad}");
        }
    }

    #[test]
    fn bridge_refuses_contradictory_options() {
        for change in [
            |o: &mut BridgeOptions| o.listen.clear(),
            |o: &mut BridgeOptions| o.auth = vec!["client-ca=ca.pem".into()],
            |o: &mut BridgeOptions| o.allow_host = vec![HostPattern::Any],
            |o: &mut BridgeOptions| o.back = Some(BackOption::H3),
            |o: &mut BridgeOptions| o.mode = mode("reverse=h2+tcp://192.0.2.1:80?ca=x"),
            |o: &mut BridgeOptions| o.mode = mode("reverse=h3+tcp://192.0.2.1:80"),
            |o: &mut BridgeOptions| {
                o.mode = mode("reverse=http://192.0.2.1:80");
                o.back = Some(BackOption::H2);
            },
        ] {
            assert!(options(change).is_err());
        }
    }
}

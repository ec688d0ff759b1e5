//! The options of a relay, and the configuration that they make: the end towards clients, and the
//! next hop.

use std::time::Duration;

use serde::Deserializer;

use super::gateway::listeners;
use super::gateways::{Dialled, GatewayEndpoint, look_up, secret_files};
use super::near::{NearConfig, near_options};
use super::{ConfigError, with_path};
use crate::endpoint::{Endpoint, SessionKind, Usage};
use crate::role_name::RoleName;
use crate::transport::names::Names;
use crate::transport::registry::Transports;

with_path! {
    near_options [
        "Time limit for a connection and its handshakes towards the next hop [default: 30s]"
        "Idle time after which sessions are closed [default: 10m]"
        "Time after which a peer that reads no bytes is disconnected [default: 1m]"
        "Silence after which a busy peer must answer a ping [default: 20s]"
    ]
    /// Options of `tandem relay`; each is a flag and a key of `[relay]`.
    RelayOptions {
        /// Listener for clients and other relays: h2+tls://ADDRESS:PORT?cert=FILE&key=FILE, the
        /// same with h3+quic or http+dtls (UDP), h2+tcp://127.0.0.1:9980, … (repeatable)
        listen: Vec<Endpoint> [help_heading = "Listening", value_name = "URL", value_parser = |text: &str| Usage::GatewayListener.parse(text)] with "listeners",
        /// URL of the next hop, a relay or the gateway: h2+tls://HOST:PORT, the same with h3+quic
        /// or http+dtls (UDP), … (repeatable, best first)
        gateway: Vec<Endpoint> [help_heading = "Next hop", value_name = "URL", value_parser = |text: &str| Usage::Gateway.parse(text)] with "next_hops",
        /// File with the access token that the next hop requires
        token_file: Option<String> [help_heading = "Next hop", value_name = "FILE"],
        /// Pass on pushes, for clients that accept them [default: true]
        push: Option<bool> [help_heading = "Next hop", num_args = 0..=1,
            default_missing_value = "true", require_equals = true, value_name = "BOOL"],
        /// Carry the tunnels of all sessions in one session to the next hop for each thread. All
        /// other requests keep a session for each client [default: false]
        share_tunnels: Option<bool> [help_heading = "Next hop", num_args = 0..=1,
            default_missing_value = "true", require_equals = true, value_name = "BOOL"],
    }
}

fn next_hops<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Endpoint>, D::Error> {
    Usage::Gateway.read_list(deserializer)
}

/// The checked configuration of a relay.
#[derive(Clone, Debug)]
pub struct RelayConfig {
    /// The end towards clients. Its path has the limits of the sessions to the next hop too.
    pub near: NearConfig,
    /// The next hops, best first.
    pub gateways: Vec<GatewayEndpoint>,
    /// True if the relay passes on pushes.
    pub push: bool,
    /// True if the tunnels of all sessions share a session to the next hop.
    pub share_tunnels: bool,
}

impl RelayConfig {
    /// Looks up the names of next hops with `resolve=system` within a time, as a check. A relay
    /// that runs looks them up when it dials. Returns an error for each name without an address.
    pub fn look_up_names(&self, limit: Duration) -> Vec<ConfigError> {
        look_up(self.gateways.iter(), limit)
    }
}

impl RelayOptions {
    /// Checks the options; the endpoints may name the given transports.
    ///
    /// # Errors
    /// Fails if an option is not valid, or if a token or certificate cannot be read.
    pub fn typed_with(mut self, transports: &Transports) -> Result<RelayConfig, ConfigError> {
        let path = self.take_path().typed()?;
        let bad = |problem: String| Err(ConfigError::value("gateway", problem));
        if self.gateway.is_empty() {
            return bad("give the next hop, such as h2+tls://gw.example:443".into());
        }
        let is_spdy =
            |it: &&Endpoint| matches!(it.session, SessionKind::Spdy3 | SessionKind::Spdy31);
        if let Some(endpoint) = self.gateway.iter().find(is_spdy) {
            return bad(format!(
                "{endpoint}: the promises of SPDY lack the fields of their requests, so a relay \
                 cannot pass them on: use h2, h3, or http over dtls"
            ));
        }
        let near = self.take_near();
        let mut near = near.typed(RoleName::Relay, path, false, transports)?;
        let dialled = Dialled {
            via: None,
            transports,
            names: Names::of_process(),
        };
        let gateways = self.gateway.into_iter().map(Into::into).collect();
        let gateways = dialled.gateways(gateways, self.token_file.as_deref())?;
        near.secret_files
            .extend(secret_files(gateways.iter(), None));
        Ok(RelayConfig {
            near,
            gateways,
            push: self.push.unwrap_or(true),
            share_tunnels: self.share_tunnels.unwrap_or(false),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relay(change: impl FnOnce(&mut RelayOptions)) -> Result<RelayConfig, String> {
        let mut options = RelayOptions {
            listen: vec!["h2+tcp://127.0.0.1:9980".parse().expect("an endpoint")],
            gateway: vec!["h2+tcp://127.0.0.1:9981".parse().expect("an endpoint")],
            open: Some(true),
            ..RelayOptions::default()
        };
        change(&mut options);
        let checked = options.typed_with(&Transports::default());
        checked.map_err(|error| error.to_string())
    }

    #[test]
    fn relay_errors_name_the_remedy() {
        type Change = fn(&mut RelayOptions);
        let cases: [(Change, &str); 6] = [
            (|it| it.gateway.clear(), "gateway: give the next hop"),
            (|it| it.listen.clear(), "listen: give at least one"),
            (|it| it.open = None, "would let no one in"),
            (
                |it| it.token_file = Some("/nonexistent".into()),
                "/nonexistent",
            ),
            (
                |it| it.gateway = vec!["spdy3.1+tcp://127.0.0.1:1".parse().expect("an endpoint")],
                "use h2, h3",
            ),
            (
                |it| it.gateway = vec!["h2+tls://gw.example:443".parse().expect("an endpoint")],
                "add ?ip=ADDRESS",
            ),
        ];
        for (change, part) in cases {
            let error = relay(change).expect_err(part);
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn relay_has_the_path_of_its_options() {
        let wide = relay(|it| it.path_rate = Some(super::super::units::Rate(200_000_000)));
        let (wide, usual) = (wide.expect("a relay"), relay(|_| {}).expect("a relay"));
        assert!(wide.near.path.stream_window > usual.near.path.stream_window);
        assert!(usual.push && !usual.share_tunnels);
    }

    #[test]
    fn small_budget_narrows_the_windows_with_a_warning() {
        use super::super::units::{Rate, Size};
        let of = |budget: Option<u64>, rate: u64| {
            let relay = relay(|it| {
                it.receive_budget = budget.map(Size);
                it.path_rate = Some(Rate(rate));
            });
            let relay = relay.expect("a relay");
            let warned = relay
                .warnings()
                .iter()
                .any(|it| it.contains("receive-budget"));
            (
                relay.near.path.stream_window,
                relay.near.path.receive_budget,
                warned,
            )
        };
        assert_eq!(
            of(Some(64 << 20), 100_000_000),
            (123 << 16, 64 << 20, false)
        );
        assert_eq!(of(None, 400_000_000), (489 << 16, 8 * (489 << 16), false));
        assert_eq!(of(Some(64 << 20), 400_000_000), (8 << 20, 64 << 20, true));
    }
}

//! Pairs of all session protocols.

use tandem::config::{ClientOptions, GatewayOptions};
use tandem::transport::registry::Transports;

use crate::harness::Pair;
use crate::many_streams::memory::Network;

/// The session protocols of [`Pair::with`].
pub(crate) const SESSIONS: [&str; 4] = ["h2", "h3", "spdy3", "spdy3.1"];

/// The session protocols whose promises differ.
pub(crate) const PUSHING: [&str; 3] = ["h2", "h3", "spdy3.1"];

/// The session protocols that carry messages, with HTTP/1.1 over many streams.
pub(crate) const CARRYING: [&str; 6] = ["h2", "h3", "spdy3", "spdy3.1", "streams", "relayed"];

/// Starts a pair with one of the protocols of [`CARRYING`].
pub(crate) fn carrying_pair(session: &str) -> Pair {
    match session {
        "streams" => crate::many_streams::pair(),
        session => Pair::with(session, |_| {}, |_| {}),
    }
}

impl Pair {
    pub(crate) fn start() -> Self {
        Self::with("h2", |_| {}, |_| {})
    }

    /// Starts a pair with a session: h3 over a carrier in memory, and others over TCP.
    pub(crate) fn with(
        session: &str,
        gateway: impl FnOnce(&mut GatewayOptions),
        client: impl FnOnce(&mut ClientOptions),
    ) -> Self {
        let mut transports = Transports::default();
        transports.add(Network::new());
        if session == "relayed" {
            return Self::relayed("h3+memory", &transports, gateway, client);
        }
        let transport = if session == "h3" { "memory" } else { "tcp" };
        let scheme = format!("{session}+{transport}");
        Self::over(&scheme, &transports, gateway, client)
    }
}

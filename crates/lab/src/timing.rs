//! A timing client and server. They measure throughput once it is steady, and the delay of single
//! stamps beside it.
//!
//! ```text
//!            bulk streams of stamped blocks ─────────▶
//!   client ══ any way: TCP, SOCKS5, HTTP CONNECT ══ server
//!            stamps on one kept connection, and on new ones, at fixed times ─▶ echo
//! ```
//!
//! A run has three phases: stamps alone, bulk until its rate is steady, and the measured time.
//! Stamps leave at their times even if earlier ones have no reply yet (open loop), and their delay
//! begins at the scheduled time.
//!
//! - [`wire`]: the protocol. [`connect`]: the connection to the server. [`server`] and [`client`]:
//!   the two ends. [`report`]: results.

pub mod client;
pub mod connect;
pub mod report;
pub mod server;
pub mod wire;

use std::io;

/// An error of a measurement.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TimingError {
    /// The server could not listen.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The listening address.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// The way to the server, or its first step, does not stand.
    #[error("cannot connect to {to}: {source}")]
    Connect {
        /// The address of the proxy or, without one, of the server.
        to: String,
        /// The cause.
        source: io::Error,
    },
    /// The connection took too long.
    #[error("no connection to {0} within {limit} s", limit = connect::LIMIT.as_secs())]
    TimedOut(String),
    /// The proxy does not open the tunnel.
    #[error("the proxy opens no tunnel: {0}")]
    Proxy(String),
    /// A target that is none.
    #[error("not a server's HOST:PORT: {0:?}")]
    Target(String),
    /// The other end is no timing server, or reports an error.
    #[error("the server: {0}")]
    Server(String),
    /// A connection ended while it was used.
    #[error("{what}: {source}")]
    Broken {
        /// The use of the connection.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// No stamp came back.
    #[error("no stamp came back")]
    Nothing,
}

impl TimingError {
    /// Returns a conversion for `map_err`.
    pub fn broken(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Broken { what, source }
    }
}

//! Configuration: the same names as flags and in a TOML file; raw options become typed configuration in one step.
//!
//! A flag given on the command line wins over the file, the file over the default. Errors name the key.

pub mod client;
pub mod gateway;
pub mod units;

use std::path::Path;

use serde::Deserialize;

pub use client::{ClientConfig, ClientOptions};
pub use gateway::{GatewayConfig, GatewayOptions};

use crate::endpoint::{BadEndpoint, Endpoint};
use crate::session::Timeouts;
use crate::session::mux::HeaderCompression;
use crate::transport::tcp::SocketOptions;
use crate::transport::tls::TlsError;
use units::{Rate, Size, Span};

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration file {file}: {error}")]
    Read {
        /// Which.
        file: String,
        /// Why.
        error: std::io::Error,
    },
    /// The file is not as it should be.
    #[error("{file}: {problem}")]
    Parse {
        /// Which.
        file: String,
        /// Why, with the place.
        problem: String,
    },
    /// A value does not fit.
    #[error("{key}: {problem}")]
    Value {
        /// Name of the flag or key.
        key: &'static str,
        /// What is wrong and what to do.
        problem: String,
    },
    /// An endpoint does not fit.
    #[error(transparent)]
    Endpoint(#[from] BadEndpoint),
    /// Certificates do not fit.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl ConfigError {
    /// A value that does not fit.
    pub fn value(key: &'static str, problem: impl Into<String>) -> Self {
        Self::Value { key, problem: problem.into() }
    }
}

/// A configuration file: one table for each role.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct File {
    /// `[client]`.
    pub client: Option<ClientOptions>,
    /// `[gateway]`.
    pub gateway: Option<GatewayOptions>,
}

impl File {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| ConfigError::Read { file: file.clone(), error })?;
        toml::from_str(&text).map_err(|error| ConfigError::Parse { file, problem: error.to_string().trim_end().into() })
    }
}

/// Declares options once: as flags, as keys of a file, and how one set wins over another. What stands in brackets goes to
/// clap.
macro_rules! options {
    ($(#[$meta:meta])* $name:ident { $($(#[doc = $doc:literal])+ $field:ident: $kind:ident<$type:ty> $([$($arg:tt)*])?,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, clap::Args, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
        pub struct $name {
            $($(#[doc = $doc])+ #[arg(long, $($($arg)*)?)] pub $field: $kind<$type>,)*
        }

        impl $name {
            /// These options where they are given, else `under`.
            #[must_use]
            pub fn or(self, under: Self) -> Self {
                Self { $($field: $crate::config::Or::or(self.$field, under.$field),)* }
            }
        }
    };
}
pub(crate) use options;

/// How a value that was given wins over one below it.
pub(crate) trait Or {
    fn or(self, under: Self) -> Self;
}

impl<T> Or for Option<T> {
    fn or(self, under: Self) -> Self {
        Self::or(self, under)
    }
}

impl<T> Or for Vec<T> {
    fn or(self, under: Self) -> Self {
        if self.is_empty() { under } else { self }
    }
}

/// What of SPDY's header blocks is compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Compression {
    /// Everything, secrets beside what an attacker controls: sizes can give them away (CRIME).
    Full,
    /// Everything, but no secret is ever matched.
    #[default]
    Safe,
    /// Nothing.
    Off,
}

impl From<Compression> for HeaderCompression {
    fn from(compression: Compression) -> Self {
        match compression {
            Compression::Full => Self::Full,
            Compression::Safe => Self::Safe,
            Compression::Off => Self::Off,
        }
    }
}

/// What both roles' sessions over the slow path are made from.
#[derive(Clone, Debug)]
pub struct PathConfig {
    /// Bytes that may be under way on one stream.
    pub stream_window: u32,
    /// Bytes that may be under way on one session.
    pub session_window: u32,
    /// Bytes held for slow readers in one session.
    pub receive_budget: usize,
    /// SPDY: what of header blocks is compressed.
    pub header_compression: HeaderCompression,
    /// Sockets.
    pub socket: SocketOptions,
    /// Time limits.
    pub timeouts: Timeouts,
}

/// The raw values that a [`PathConfig`] is made from.
#[derive(Debug, Default)]
pub(crate) struct PathValues {
    pub(crate) path_rate: Option<Rate>,
    pub(crate) path_rtt: Option<Span>,
    pub(crate) receive_budget: Option<Size>,
    pub(crate) header_compression: Option<Compression>,
    pub(crate) notsent_lowat: Option<Size>,
    pub(crate) congestion: Option<String>,
    pub(crate) connect_timeout: Option<Span>,
    pub(crate) idle_timeout: Option<Span>,
    pub(crate) head_timeout: Option<Span>,
    pub(crate) write_timeout: Option<Span>,
    pub(crate) probe_after: Option<Span>,
    pub(crate) probe_timeout: Option<Span>,
}

impl PathValues {
    /// Windows are 1.6 times the product of rate and round trip, so that they never limit; a session's is twice a
    /// stream's, so that one full stream leaves room for others.
    pub(crate) fn typed(self) -> Result<PathConfig, ConfigError> {
        let rate = self.path_rate.unwrap_or(Rate(100_000_000));
        let rtt = self.path_rtt.unwrap_or(Span(std::time::Duration::from_millis(400)));
        let product = rate.0 as f64 / 8.0 * rtt.0.as_secs_f64();
        let window = (product * 1.6).max(65_536.0);
        if window > f64::from(1 << 29) {
            return Err(ConfigError::value("path-rate", "rate times round trip needs a window over 512 MiB"));
        }
        let window = (window as u32).next_multiple_of(64 << 10);
        let span = |value: Option<Span>, default: std::time::Duration| value.map_or(default, |span| span.0);
        let (timeouts, socket) = (Timeouts::default(), SocketOptions::default());
        let budget = self.receive_budget.map_or(64 << 20, |size| size.0);
        if budget < 1 << 20 {
            return Err(ConfigError::value("receive-budget", "must be at least 1MiB"));
        }
        let lowat = self.notsent_lowat.map_or_else(|| u64::from(socket.notsent_lowat), |size| size.0);
        Ok(PathConfig {
            stream_window: window,
            session_window: window * 2,
            receive_budget: usize::try_from(budget).unwrap_or(usize::MAX),
            header_compression: self.header_compression.unwrap_or_default().into(),
            socket: SocketOptions {
                notsent_lowat: u32::try_from(lowat)
                    .map_err(|_| ConfigError::value("notsent-lowat", "must be below 4GiB"))?,
                congestion: self.congestion.unwrap_or(socket.congestion),
                connect_timeout: span(self.connect_timeout, socket.connect_timeout),
            },
            timeouts: Timeouts {
                idle: span(self.idle_timeout, timeouts.idle),
                head: span(self.head_timeout, timeouts.head),
                probe_after: span(self.probe_after, timeouts.probe_after),
                probe_timeout: span(self.probe_timeout, timeouts.probe_timeout),
                write: span(self.write_timeout, timeouts.write),
            },
        })
    }
}

/// Reads a secret of one line from a file.
pub(crate) fn read_secret(key: &'static str, file: &str) -> Result<String, ConfigError> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| ConfigError::value(key, format!("cannot read {file}: {error}")))?;
    let secret = text.lines().next().unwrap_or_default().trim();
    if secret.len() < 16 || !secret.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(ConfigError::value(
            key,
            format!("{file}: the first line must hold at least 16 visible characters"),
        ));
    }
    Ok(secret.to_owned())
}

/// The endpoints must differ, or the second could not listen.
pub(crate) fn distinct(listen: &[Endpoint]) -> Result<(), ConfigError> {
    for (i, endpoint) in listen.iter().enumerate() {
        if endpoint.socket_addr().is_none() {
            return Err(ConfigError::value("listen", format!("{endpoint}: give an address to listen on, not a name")));
        }
        if endpoint.port != 0 && listen[..i].iter().any(|other| other.socket_addr() == endpoint.socket_addr()) {
            return Err(ConfigError::value("listen", format!("{endpoint} is given twice")));
        }
    }
    Ok(())
}

//! The configuration: options have the same names as flags and in a TOML file, and one step makes a
//! typed configuration of them.
//!
//! A flag takes precedence over the file, and the file over the default. Errors name the key.

mod admission;
pub mod bridge;
mod cache;
pub mod client;
pub mod client_cache;
pub mod compress;
pub(crate) mod destinations;
mod digest;
pub mod discover;
mod families;
pub mod file;
mod fleet;
pub mod gateway;
pub mod gateway_ways;
pub mod gateways;
#[cfg(feature = "submit")]
pub mod issuer;
pub mod mode;
pub mod near;
pub mod next_push;
pub mod onion_ports;
pub mod open;
mod open_gateways;
pub mod origins;
pub mod relay;
pub mod share_url;
mod solo;
pub mod submission;
pub mod units;
#[cfg(feature = "submit")]
mod unlinkable;
mod warnings;

use std::io::Read as _;
use std::time::Duration;

use serde::Deserialize;

pub use bridge::{BridgeConfig, BridgeOptions};
pub use client::{ClientConfig, ClientOptions};
pub use file::File;
pub use gateway::{GatewayConfig, GatewayOptions};
#[cfg(feature = "submit")]
pub use issuer::{IssuerConfig, IssuerOptions};
pub use near::NearConfig;
pub use origins::OriginsConfig;
pub use relay::{RelayConfig, RelayOptions};
pub use warnings::few_descriptors;

use crate::endpoint::{BadEndpoint, Endpoint};
use crate::secret::unreadable;
use crate::session::Timeouts;
use crate::session::mux::HeaderCompression;
use crate::transport::registry::{TransportError, Transports};
use crate::transport::tcp::SocketOptions;
use crate::transport::tls::TlsError;
use units::{Rate, Span};

/// The reason why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration file {file}: {error}")]
    Read {
        /// The path of the file.
        file: String,
        /// The error of the operating system.
        error: std::io::Error,
    },
    /// The file is not valid TOML, or has an unknown key or a wrong value.
    #[error("{file}: {problem}")]
    Parse {
        /// The path of the file.
        file: String,
        /// The problem and its place in the file.
        problem: String,
    },
    /// A value is not valid.
    #[error("{key}: {problem}")]
    Value {
        /// The name of the flag or key.
        key: &'static str,
        /// The problem and the remedy.
        problem: String,
    },
    /// The resolver of this machine does not find the name of a gateway with `resolve=system`.
    #[error("{endpoint}: {problem}: check the name and the network, or add ip=ADDRESS")]
    Lookup {
        /// The endpoint of the gateway.
        endpoint: String,
        /// The error of the resolver.
        problem: String,
    },
    /// An endpoint is not valid.
    #[error(transparent)]
    Endpoint(#[from] BadEndpoint),
    /// Certificates are not valid.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

impl From<TransportError> for ConfigError {
    fn from(error: TransportError) -> Self {
        match error {
            TransportError::Endpoint(error) => error.into(),
            TransportError::Tls(error) => error.into(),
        }
    }
}

impl ConfigError {
    /// Returns the error for a value that is not valid.
    pub fn value(key: &'static str, problem: impl Into<String>) -> Self {
        Self::Value {
            key,
            problem: problem.into(),
        }
    }
}

/// Declares options once: as flags, as keys of a file, and with their precedence. The text in
/// brackets is passed to clap. The slow path's options are listed between the other two groups.
macro_rules! options {
    ($(#[$meta:meta])* $name:ident { $($before:tt)* } { $($after:tt)* } path { $($path:tt)* }) => {
        $crate::config::options! { @all $(#[$meta])* $name { $($before)* $($path)* $($after)* } }
        $crate::config::options! { @path $name { $($path)* } }
    };
    (@all $(#[$meta:meta])* $name:ident { $($(#[doc = $doc:literal])+ $field:ident: $kind:ident<$type:ty> $([$($arg:tt)*])? $(with $with:literal)?,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, clap::Args, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
        pub struct $name {
            $($(#[doc = $doc])+ #[arg(long, $($($arg)*)?)] $(#[serde(deserialize_with = $with)])? pub $field: $kind<$type>,)*
        }

        impl $name {
            /// Returns these options, with `under` for those that are not set.
            #[must_use]
            pub fn or(self, under: Self) -> Self {
                Self { $($field: $crate::config::Or::or(self.$field, under.$field),)* }
            }
        }
    };
    (@path $name:ident { $($(#[doc = $doc:literal])+ $field:ident: Option<$type:ty> [$($arg:tt)*],)* }) => {
        impl $name {
            /// Takes the slow path's options out.
            fn take_path(&mut self) -> $crate::config::PathValues {
                $crate::config::PathValues { $($field: self.$field.take(),)* }
            }
        }
    };
}
pub(crate) use options;

/// Declares the slow path's options, the same for all roles: it appends them to the arguments of
/// another macro. The literals in brackets are the help texts that differ between the roles.
macro_rules! with_path {
    ($then:ident [$connect:literal $idle:literal $write:literal $probe:literal] $($given:tt)*) => {
        $then! { $($given)* path {
            /// Rate of the fastest path that must be fully usable [default: 100mbit]
            path_rate: Option<$crate::config::units::Rate> [help_heading = "Slow path",
                value_name = "RATE"],
            /// Round-trip time of the longest path that must be fully usable [default: 400ms]
            path_rtt: Option<$crate::config::units::Span> [help_heading = "Slow path",
                value_name = "TIME"],
            /// Bytes of memory for slow readers of one session, at least 1MiB; a stream's window is
            /// at most an eighth of them [default: 64MiB, and eight windows]
            receive_budget: Option<$crate::config::units::Size> [help_heading = "Slow path",
                value_name = "BYTES"],
            /// Compression of SPDY's header blocks [default: safe]
            header_compression: Option<$crate::config::Compression> [help_heading = "Slow path",
                value_name = "MODE"],
            /// Limit of the unsent bytes in the kernel, which grows with the rate over BBR; 0 keeps
            /// the kernel's limit [default: 16KiB]
            notsent_lowat: Option<$crate::config::units::Size> [help_heading = "Slow path",
                value_name = "BYTES"],
            /// Congestion control of sessions, if the kernel has it; an empty value keeps the
            /// kernel's default [default: bbr]
            congestion: Option<String> [help_heading = "Slow path", value_name = "NAME"],
            /// A client that was connected before saves a round trip: over QUIC, safe requests
            /// without content do not wait for the handshake, and over DTLS that is shorter
            /// [default: true]
            early_data: Option<bool> [help_heading = "Slow path", num_args = 0..=1,
                default_missing_value = "true", require_equals = true, value_name = "BOOL"],
            #[doc = $connect]
            connect_timeout: Option<$crate::config::units::Span> [help_heading = "Time limits",
                value_name = "TIME"],
            #[doc = $idle]
            idle_timeout: Option<$crate::config::units::Span> [help_heading = "Time limits",
                value_name = "TIME"],
            /// Time limit for the whole head of a request [default: 30s]
            head_timeout: Option<$crate::config::units::Span> [help_heading = "Time limits",
                value_name = "TIME"],
            #[doc = $write]
            write_timeout: Option<$crate::config::units::Span> [help_heading = "Time limits",
                value_name = "TIME"],
            #[doc = $probe]
            probe_after: Option<$crate::config::units::Span> [help_heading = "Time limits",
                value_name = "TIME"],
            /// Time limit for the answer to such a ping [default: 30s]
            probe_timeout: Option<$crate::config::units::Span> [help_heading = "Time limits",
                value_name = "TIME"],
        } }
    };
}
pub(crate) use with_path;

/// The precedence of a given value over another one.
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

/// The compression of SPDY's header blocks.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Compression {
    /// Compress all fields, and match secrets against data of an attacker: sizes can reveal them
    /// (CRIME)
    Full,
    /// Compress all fields, but match no secret
    #[default]
    Safe,
    /// Compress no fields
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

/// The configuration of the sessions of all roles over the slow path.
#[derive(Clone, Debug)]
pub struct PathConfig {
    /// The flow-control window of a stream, in bytes.
    pub stream_window: u32,
    /// The window that the path needs, in bytes. `receive_budget` may permit less.
    pub needed_window: u32,
    /// The flow-control window of a session, in bytes.
    pub session_window: u32,
    /// The bytes of memory for slow readers in one session, at least eight stream windows.
    pub receive_budget: usize,
    /// The compression of SPDY's header blocks.
    pub header_compression: HeaderCompression,
    /// True if safe requests may be sent before the end of a handshake.
    pub early_data: bool,
    /// The socket options.
    pub socket: SocketOptions,
    /// The time limits.
    pub timeouts: Timeouts,
}

impl PathConfig {
    /// Returns a warning if the memory of a session does not permit the window that the path needs.
    fn warning(&self) -> Option<String> {
        (self.stream_window < self.needed_window).then(|| {
            let least = (u64::from(self.needed_window) * WINDOWS).div_ceil(1 << 20);
            format!(
                "receive-budget makes the windows of streams smaller than path-rate and path-rtt \
                 need: set receive-budget = \"{least}MiB\", or lower them"
            )
        })
    }
}

/// The stream windows that fit into the memory of a session.
const WINDOWS: u64 = 8;

/// Declares the raw values that a [`PathConfig`] is made from.
macro_rules! path_values {
    (path { $($(#[doc = $doc:literal])+ $field:ident: Option<$type:ty> [$($arg:tt)*],)* }) => {
        #[derive(Debug, Default)]
        pub(crate) struct PathValues {
            $($field: Option<$type>,)*
        }
    };
}
with_path! { path_values ["" "" "" ""] }

impl PathValues {
    /// Windows are 1.6 times the product of rate and round-trip time, so that they never limit the
    /// rate. A session's window is twice a stream's, so that one full stream leaves room for
    /// others.
    pub(crate) fn typed(self) -> Result<PathConfig, ConfigError> {
        let rate = self.path_rate.unwrap_or(Rate(100_000_000));
        let rtt = self.path_rtt.unwrap_or(Span(Duration::from_millis(400)));
        let product = rate.0 as f64 / 8.0 * rtt.0.as_secs_f64();
        let window = (product * 1.6).max(65_536.0);
        if window > f64::from(1 << 29) {
            return Err(ConfigError::value(
                "path-rate",
                "needs with path-rtt a window over 512 MiB: lower one of both to that of the path",
            ));
        }
        let window = (window as u32).next_multiple_of(64 << 10);
        let (timeouts, socket) = (Timeouts::default(), SocketOptions::default());
        // With less, streams that are not read could fill the budget (`tandem_http::threshold`).
        let budget = match self.receive_budget {
            Some(size) => size.0,
            None => u64::from(window).saturating_mul(WINDOWS).max(64 << 20),
        };
        let needed_window = window;
        let window = u32::try_from(budget / WINDOWS).map_or(window, |most| window.min(most));
        if budget < 1 << 20 {
            return Err(ConfigError::value(
                "receive-budget",
                "must be at least 1MiB",
            ));
        }
        let lowat = self
            .notsent_lowat
            .map_or_else(|| u64::from(socket.notsent_lowat), |size| size.0);
        Ok(PathConfig {
            stream_window: window,
            needed_window,
            session_window: window * 2,
            receive_budget: usize::try_from(budget).unwrap_or(usize::MAX),
            header_compression: self.header_compression.unwrap_or_default().into(),
            early_data: self.early_data.unwrap_or(true),
            socket: SocketOptions {
                notsent_lowat: u32::try_from(lowat)
                    .map_err(|_| ConfigError::value("notsent-lowat", "must be below 4GiB"))?,
                congestion: self.congestion.unwrap_or(socket.congestion),
                connect_timeout: positive(
                    "connect-timeout",
                    self.connect_timeout,
                    socket.connect_timeout,
                )?,
            },
            timeouts: Timeouts {
                idle: positive("idle-timeout", self.idle_timeout, timeouts.idle)?,
                head: positive("head-timeout", self.head_timeout, timeouts.head)?,
                probe_after: positive("probe-after", self.probe_after, timeouts.probe_after)?,
                probe_timeout: positive(
                    "probe-timeout",
                    self.probe_timeout,
                    timeouts.probe_timeout,
                )?,
                write: positive("write-timeout", self.write_timeout, timeouts.write)?,
            },
        })
    }
}

/// Checks a time limit, which must not be zero: no operation could meet it.
pub(crate) fn positive(
    key: &'static str,
    value: Option<Span>,
    default: Duration,
) -> Result<Duration, ConfigError> {
    match value {
        Some(span) if span.0.is_zero() => Err(ConfigError::value(
            key,
            "must be longer than 0s, or everything would fail at once",
        )),
        Some(span) => Ok(span.0),
        None => Ok(default),
    }
}

/// Reads a secret of one line from a file.
pub(crate) fn read_secret(key: &'static str, file: &str) -> Result<String, ConfigError> {
    let mut text = String::new();
    let read = std::fs::File::open(file)
        .and_then(|open| open.take(MAX_SECRET_FILE + 1).read_to_string(&mut text));
    let length = read.map_err(|error| {
        let problem = unreadable(file, &error);
        ConfigError::value(key, format!("cannot read {file}: {problem}"))
    })?;
    if length as u64 > MAX_SECRET_FILE {
        let problem = format!("{file} is larger than 64 KiB, so that it is no file of a secret");
        return Err(ConfigError::value(key, problem));
    }
    let secret = text.lines().next().unwrap_or_default().trim();
    check_secret(secret)
        .map_err(|problem| ConfigError::value(key, format!("{file}: the first line {problem}")))?;
    Ok(secret.to_owned())
}

/// The largest file with a secret, in bytes.
const MAX_SECRET_FILE: u64 = 64 << 10;

/// The longest secret. A gateway takes heads of 64 KiB, and other programs less.
const MAX_SECRET: usize = 8192;

/// Checks that a secret can stand in a field of HTTP and is not too short to be guessed.
pub(crate) fn check_secret(secret: &str) -> Result<(), &'static str> {
    if secret.len() < 16 || !secret.bytes().all(|b| b.is_ascii_graphic()) {
        return Err("must hold at least 16 visible characters");
    }
    if secret.len() > MAX_SECRET {
        return Err("must hold at most 8192 characters, since it is sent in a head");
    }
    Ok(())
}

/// Returns a limit, or its default. Zero is an error, since nothing would be served.
pub(crate) fn limit<N>(key: &'static str, given: Option<N>, default: N) -> Result<N, ConfigError>
where
    N: PartialEq + From<u8> + std::fmt::Display,
{
    match given {
        Some(given) if given == N::from(0) => Err(ConfigError::value(
            key,
            format!("must be at least 1; without the option, it is {default}"),
        )),
        given => Ok(given.unwrap_or(default)),
    }
}

/// Checks that no two listeners have the same protocol and address.
pub(crate) fn distinct(listen: &[Endpoint], transports: &Transports) -> Result<(), ConfigError> {
    let mut known = Vec::new();
    for endpoint in listen {
        let protocol = transports.to_listen(endpoint)?.protocol();
        if endpoint.socket_addr().is_none() {
            return Err(ConfigError::value(
                "listen",
                format!("{endpoint}: give an address to listen on, not a name"),
            ));
        }
        let listener = (protocol, endpoint.socket_addr());
        if endpoint.port != 0 && known.contains(&listener) {
            return Err(ConfigError::value(
                "listen",
                format!(
                    "{endpoint}: another listener has this port: give one of them another port"
                ),
            ));
        }
        known.push(listener);
    }
    Ok(())
}

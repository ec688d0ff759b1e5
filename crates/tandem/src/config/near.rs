//! The end towards clients of a gateway, and of each other role with such listeners: the listeners,
//! the admission and the limits of clients, and the ways to watch the process.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tandem_http::h1::Limits;

use super::admission::Credentials;
use super::client::loopback;
use super::units::{Size, Span};
use super::{ConfigError, PathConfig, distinct, families, limit};
use crate::endpoint::{Endpoint, SessionKind};
use crate::role_name::RoleName;
use crate::transport::registry::Transports;

/// Declares the options of a role with the end towards clients of a gateway: it adds admission,
/// limits of clients and watching to the arguments of `options`.
macro_rules! near_options {
    ($(#[$meta:meta])* $name:ident { $($own:tt)* } $($path:tt)*) => {
        $crate::config::options! { $(#[$meta])* $name {
            $($own)*
            /// Admit all clients [default: false]
            open: Option<bool> [help_heading = "Admission", num_args = 0..=1,
                default_missing_value = "true", require_equals = true, value_name = "BOOL"],
            /// Admit clients with a token of this file (token-file=FILE) or a certificate from this
            /// authority (client-ca=FILE) (repeatable)
            auth: Vec<String> [help_heading = "Admission", value_name = "CREDENTIAL"],
            /// Number of threads, at most 256 [default: one for each core]
            workers: Option<usize> [help_heading = "Listening", value_name = "N"],
            /// Maximum number of concurrent requests on one session [default: 256]
            max_streams: Option<u32> [help_heading = "Listening", value_name = "N"],
            /// Maximum size of the head of a request, 4KiB to 16MiB; that of a response may have
            /// 256KiB, or this size if it is larger [default: 64KiB]
            max_head: Option<$crate::config::units::Size> [help_heading = "Listening",
                value_name = "BYTES"],
            /// Maximum number of connections from clients [default: 4096]
            max_connections: Option<usize> [help_heading = "Listening", value_name = "N"],
            /// Maximum number of connections from one IPv4 address or IPv6 network of 64 bits; none
            /// for loopback addresses, which the visitors of an onion service share. Users of one
            /// exit share its address [default: 1024]
            max_connections_per_client: Option<usize> [help_heading = "Listening",
                value_name = "N"],
        } {
            /// Time limit for open sessions after SIGTERM [default: 30s]
            drain_timeout: Option<$crate::config::units::Span> [help_heading = "Time limits",
                value_name = "TIME"],
            /// Address of the listener for Prometheus metrics, loopback only [default: none]
            metrics: Option<std::net::SocketAddr> [help_heading = "Watching",
                value_name = "ADDRESS"],
            /// Address of the listener for the dashboard, loopback only; `tandem open` opens it
            /// [default: none]
            admin: Option<std::net::SocketAddr> [help_heading = "Watching", value_name = "ADDRESS"],
            /// Path of the Unix socket for `tandem open`, `top` and `probe`, accessible to this
            /// user only [default: none]
            control: Option<std::path::PathBuf> [help_heading = "Watching", value_name = "PATH"],
            /// Log level or filter, such as info or tandem=debug [default: info]
            log: Option<String> [help_heading = "Watching", value_name = "FILTER"],
            /// Log a line for each request: method, status, bytes, time, pushed or not [default:
            /// false]
            log_requests: Option<bool> [help_heading = "Watching", num_args = 0..=1,
                default_missing_value = "true", require_equals = true, value_name = "BOOL"],
            /// Log each request with its URL, which is private [default: false]
            log_urls: Option<bool> [help_heading = "Watching", num_args = 0..=1,
                default_missing_value = "true", require_equals = true, value_name = "BOOL"],
        } $($path)* }

        impl $name {
            /// Takes the options of the end towards clients out.
            fn take_near(&mut self) -> $crate::config::near::NearOptions {
                $crate::config::near::NearOptions {
                    listen: std::mem::take(&mut self.listen),
                    auth: std::mem::take(&mut self.auth),
                    open: self.open.take(),
                    workers: self.workers.take(),
                    max_streams: self.max_streams.take(),
                    max_head: self.max_head.take(),
                    max_connections: self.max_connections.take(),
                    max_connections_per_client: self.max_connections_per_client.take(),
                    drain_timeout: self.drain_timeout.take(),
                    metrics: self.metrics.take(),
                    admin: self.admin.take(),
                    control: self.control.take(),
                    log_requests: self.log_requests.take(),
                    log_urls: self.log_urls.take(),
                }
            }
        }
    };
}
pub(crate) use near_options;

/// The options of the end towards clients.
#[derive(Default)]
pub(super) struct NearOptions {
    pub(super) listen: Vec<Endpoint>,
    pub(super) auth: Vec<String>,
    pub(super) open: Option<bool>,
    pub(super) workers: Option<usize>,
    pub(super) max_streams: Option<u32>,
    pub(super) max_head: Option<Size>,
    pub(super) max_connections: Option<usize>,
    pub(super) max_connections_per_client: Option<usize>,
    pub(super) drain_timeout: Option<Span>,
    pub(super) metrics: Option<SocketAddr>,
    pub(super) admin: Option<SocketAddr>,
    pub(super) control: Option<PathBuf>,
    pub(super) log_requests: Option<bool>,
    pub(super) log_urls: Option<bool>,
}

/// The checked configuration of the end towards clients.
#[derive(Clone, Debug)]
pub struct NearConfig {
    /// The endpoints of the listeners.
    pub listen: Vec<Endpoint>,
    /// True if all clients are admitted.
    pub open: bool,
    /// The files that hold the tokens that admit a client.
    pub token_files: Vec<String>,
    /// True if clients may send tokens: those that admit them, or those of submissions.
    pub takes_tokens: bool,
    /// The PEM file of the authorities that sign the certificates of admitted clients.
    pub client_ca: Option<String>,
    /// The number of threads.
    pub workers: usize,
    /// The maximum number of concurrent requests on a session.
    pub max_streams: u32,
    /// The maximum size of the head of a request in bytes.
    pub max_head: usize,
    /// The maximum size of the head of a response in bytes.
    pub max_response_head: usize,
    /// The maximum number of connections from clients.
    pub max_connections: usize,
    /// The maximum number of connections from one IPv4 address or IPv6 network of 64 bits.
    pub max_connections_per_client: usize,
    /// The time limit for open sessions after SIGTERM.
    pub drain_timeout: Duration,
    /// The configuration of the slow path.
    pub path: PathConfig,
    /// The address of the metrics listener.
    pub metrics: Option<SocketAddr>,
    /// The address of the dashboard's listener.
    pub admin: Option<SocketAddr>,
    /// The path of the control socket.
    pub control: Option<PathBuf>,
    /// True if the log has a line for each request.
    pub log_requests: bool,
    /// True if the log may contain URLs.
    pub log_urls: bool,
    /// The transports that the endpoints may name.
    pub transports: Transports,
    /// The files of the role that hold secrets.
    pub secret_files: Vec<String>,
}

impl NearOptions {
    /// Checks the options of `role`. The endpoints may name the given transports.
    /// `is_for_submissions` is true if the rights of clients decide about each submission.
    pub(super) fn typed(
        self,
        role: RoleName,
        path: PathConfig,
        is_for_submissions: bool,
        transports: &Transports,
    ) -> Result<NearConfig, ConfigError> {
        self.check_listeners(role, transports)?;
        let credentials = Credentials::read(&self.auth)?;
        let open = self.admits_all(role, &credentials, is_for_submissions, transports)?;
        let keys = self.listen.iter().filter_map(|it| it.option("key"));
        let keys = keys.map(str::to_owned);
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Ok(NearConfig {
            secret_files: keys.chain(credentials.token_files.clone()).collect(),
            open,
            takes_tokens: is_for_submissions || !credentials.token_files.is_empty(),
            token_files: credentials.token_files,
            client_ca: credentials.client_ca,
            workers: limit("workers", self.workers, cores)?.min(256),
            max_streams: limit("max-streams", self.max_streams, 256)?,
            max_head: self.largest_head()?,
            max_response_head: self.largest_head()?.max(Limits::RESPONSE.head),
            max_connections: limit("max-connections", self.max_connections, 4096)?,
            max_connections_per_client: limit(
                "max-connections-per-client",
                self.max_connections_per_client,
                1024,
            )?,
            drain_timeout: self
                .drain_timeout
                .map_or(Duration::from_secs(30), |span| span.0),
            path,
            metrics: loopback("metrics", self.metrics)?,
            admin: loopback("admin", self.admin)?,
            control: self.control,
            log_requests: self.log_requests.unwrap_or(false),
            log_urls: self.log_urls.unwrap_or(false),
            transports: transports.clone(),
            listen: families::present(self.listen),
        })
    }

    fn largest_head(&self) -> Result<usize, ConfigError> {
        let size = self.max_head.map_or(64 << 10, |size| size.0);
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        match (4 << 10..=16 << 20).contains(&size) {
            true => Ok(size),
            false => Err(ConfigError::value("max-head", "must be from 4KiB to 16MiB")),
        }
    }

    fn check_listeners(&self, role: RoleName, transports: &Transports) -> Result<(), ConfigError> {
        if self.listen.is_empty() {
            let example = match role {
                RoleName::Bridge => "http://127.0.0.1:8080",
                RoleName::Issuer => "h2+tls://0.0.0.0:443?cert=issuer.pem&key=issuer.key",
                RoleName::Client | RoleName::Gateway | RoleName::Relay => {
                    "h2+tcp://192.0.2.80:9980"
                }
            };
            let problem = format!("give at least one, such as {example}");
            return Err(ConfigError::value("listen", problem));
        }
        distinct(&self.listen, transports)?;
        self.listen
            .iter()
            .try_for_each(|endpoint| listener(endpoint, transports))
    }
}

fn listener(endpoint: &Endpoint, transports: &Transports) -> Result<(), ConfigError> {
    let bad = |problem: &str| {
        Err(ConfigError::value(
            "listen",
            format!("{endpoint}: {problem}"),
        ))
    };
    if endpoint.session == SessionKind::Socks5 {
        return bad("a gateway listens on sessions, not on SOCKS");
    }
    let provider = transports.to_listen(endpoint)?;
    provider.check_session(endpoint)?;
    Ok(provider.check_listener(endpoint)?)
}

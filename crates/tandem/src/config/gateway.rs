//! The options of the gateway, and the configuration that they make.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};
use tandem_predict::{Aim, AutoConfig, Worth};

use super::admission::Credentials;
use super::client::loopback;
use super::compress::BodyCompression;
pub use super::mode::ModeOption;
use super::submission::SubmissionConfig;
use super::units::{Size, Span};
use super::{
    ConfigError, PathConfig, discover, distinct, families, near_options, onion_ports, positive,
    with_path,
};
use crate::back::origin::{Limits, Mode};
use crate::back::policy::{AddressFamily, AllowDest, Policy, PolicyOf};
use crate::disk_cache::DiskConfig;
use crate::endpoint::{Endpoint, SessionKind, Usage, literal_ip};
use crate::fleet::FleetConfig;
use crate::hosts::HostPattern;
use crate::learned::PredictorConfig;
use crate::role_name::RoleName;
use crate::services::store_secret;
use crate::transport::registry::Transports;

with_path! {
    near_options [
        "Time limit for a connection to an origin, and for handshakes [default: 30s]"
        "Idle time after which sessions are closed [default: 10m]"
        "Time after which a client that reads no bytes is disconnected [default: 1m]"
        "Silence after which a busy client must answer a ping [default: 20s]"
    ]
    /// Options of `tandem gateway`; each is a flag and a key of `[gateway]`.
    GatewayOptions {
        /// Listener for clients: h2+tls://ADDRESS:PORT?cert=FILE&key=FILE, the same with h3+quic
        /// or h3+dtls (UDP), h2+tcp://192.0.2.80:9980, … (repeatable)
        listen: Vec<Endpoint> [help_heading = "Listening", value_name = "URL", value_parser = |text: &str| Usage::GatewayListener.parse(text)] with "listeners",
        /// Origins to serve: forward (or transparent) serves those that requests name, reverse=URL
        /// serves one, submit=URL takes submissions for one [default: forward]
        mode: Option<ModeOption> [help_heading = "Destinations", value_name = "MODE"],
        /// Fetch HTTPS of hosts that authenticated clients open, and read it [default: false]
        open_https: Option<bool> [help_heading = "Admission", num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "BOOL"],
        /// Destinations allowed besides the public Internet: a network, or a network and one port
        /// (repeatable)
        allow_dest: Vec<AllowDest> [help_heading = "Destinations", value_name = "NET[:PORT]"],
        /// Hosts that mode=reverse serves besides its origin's name: NAME, *.SUFFIX, or * for all
        /// (repeatable) [default: *.onion if the origin is an address]
        allow_host: Vec<HostPattern> [help_heading = "Destinations", value_name = "HOST"],
        /// Ports allowed on the public Internet (repeatable) [default: 80, 443]
        allow_port: Vec<u16> [help_heading = "Destinations", value_name = "PORT"],
        /// Carry UDP datagrams of clients (SOCKS or CONNECT-UDP) to the same destinations and ports
        /// [default: false]
        udp: Option<bool> [help_heading = "Destinations", num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "BOOL"],
        /// Announce this gateway in responses to visitors without Tandem, and at
        /// /.well-known/session-gateway [default: true with mode=reverse and --open]
        announce: Option<bool> [help_heading = "Destinations", num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "BOOL"],
        /// Configuration of tor, such as /etc/tor/torrc: warnings name the announced ports that it
        /// does not lead to this gateway [default: not checked]
        torrc: Option<PathBuf> [help_heading = "Destinations", value_name = "FILE"],
        /// PEM file with the authorities that sign origins' certificates [default: those of the
        /// public web]
        origin_ca: Option<String> [help_heading = "Destinations", value_name = "FILE"],
        /// Maximum number of connections to one origin for one session; more requests wait, pushes
        /// last [default: 64]
        max_connections_per_origin: Option<usize> [help_heading = "Destinations", value_name = "N"],
        /// Maximum number of connections to all origins for one session, and of exchanges that all
        /// sessions start at once with the origin of mode=reverse [default: 256]
        max_origin_connections: Option<usize> [help_heading = "Destinations", value_name = "N"],
        /// Maximum number of exchanges with the origin of mode=reverse that last, such as event
        /// streams and WebSockets, for all sessions, and of UDP tunnels; at least max-connections
        /// [default: twice max-connections]
        max_lasting_exchanges: Option<usize> [help_heading = "Destinations", value_name = "N"],
        /// Time limit for an origin's response, and for each pause within it [default: 1m]
        response_timeout: Option<Span> [help_heading = "Time limits", value_name = "TIME"],
        /// Push resources that pages need: those in their markup, those their origins name, and
        /// those other users needed [default: true]
        push: Option<bool> [help_heading = "Push", num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "BOOL"],
        /// Learn the resources of pages from the requests of all users [default: true]
        predict: Option<bool> [help_heading = "Push", num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "BOOL"],
        /// Bytes of memory for the learned data [default: 64MiB]
        predict_memory: Option<Size> [help_heading = "Push", value_name = "BYTES"],
        /// File that keeps the learned data; without it they are in memory only [default: none]
        predict_state: Option<PathBuf> [help_heading = "Push", value_name = "FILE"],
        /// Number of users that must request a resource before it is pushed to others, 1 to 4
        /// [default: 3]
        predict_users: Option<u8> [help_heading = "Push", value_name = "N"],
        /// Value of a request that a push saves, relative to the cost of a wasted response, 0 to 1
        /// [default: 0.5]
        predict_omega: Option<f64> [help_heading = "Push", value_name = "W"],
        /// Criterion for a push: "omega", or "path", which compares the seconds that a push saves
        /// with those that its bytes take on the measured connection [default: omega]
        predict_worth: Option<WorthOption> [help_heading = "Push", value_name = "CRITERION"],
        /// Also push URLs that strings of scripts name, if users requested them on a third of the
        /// visits, or more rarely for scripts within the page; needs predict [default: false]
        predict_scripts: Option<bool> [help_heading = "Push", num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "BOOL"],
        /// Percentage of page loads without push, as a control group for measurements [default: 2]
        hold_out: Option<f64> [help_heading = "Push", value_name = "PERCENT"],
        /// Valkey or Redis through which several gateways share their learned data, encrypted:
        /// redis://USER@HOST:PORT/DB?password-file=FILE, rediss://… with TLS, or
        /// redis+unix:///PATH [default: none]
        share: Option<String> [help_heading = "Fleet", value_name = "URL"],
        /// File with the key of the fleet, the same for all gateways: at least 32 random bytes
        share_key: Option<PathBuf> [help_heading = "Fleet", value_name = "FILE"],
        /// Bytes of small responses that this gateway keeps in the engine for the others, with
        /// --cache shared; 0 for none [default: 64MiB]
        share_memory: Option<Size> [help_heading = "Fleet", value_name = "BYTES"],
        /// Cache of responses: off; private, separate for each session; or shared by all users
        /// [default: private]
        cache: Option<CacheOption> [help_heading = "Cache", value_name = "MODE"],
        /// Bytes of memory for the cache [default: 64MiB]
        cache_memory: Option<Size> [help_heading = "Cache", value_name = "BYTES"],
        /// Number of users that must fetch a response before the shared cache serves it to others,
        /// 1 to 4; each URL needs up to twice as many [default: 3, and 1 with mode=reverse]
        cache_users: Option<u8> [help_heading = "Cache", value_name = "N"],
        /// Directory of the gateway's own for more responses of a shared cache, encrypted; without
        /// it they are in memory only [default: none]
        cache_dir: Option<PathBuf> [help_heading = "Cache", value_name = "DIR"],
        /// Bytes of the files in cache-dir [default: 1GiB]
        cache_disk_size: Option<Size> [help_heading = "Cache", value_name = "BYTES"],
        /// File with the key of the files in cache-dir, at least 32 random bytes: they then serve
        /// after a restart too [default: a random key that ends with the process]
        cache_key: Option<PathBuf> [help_heading = "Cache", value_name = "FILE"],
        /// Add Cache-Status to responses, which says how the cache handled the request (RFC 9211)
        cache_status: Option<bool> [help_heading = "Cache", num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "BOOL"],
        /// Compression of text for clients that can decode it: auto, exact or off [default: auto]
        compress: Option<BodyCompression> [help_heading = "Compression", value_name = "MODE"],
        /// File with the rights of clients, for mode=submit
        submit_rights: Option<String> [help_heading = "Submissions", value_name = "FILE"],
        /// PEM file with the Ed25519 key that signs submissions
        submit_key: Option<String> [help_heading = "Submissions", value_name = "FILE"],
        /// Store of submissions: sqlite:FILE for one gateway,
        /// postgres://USER@HOST/DATABASE?password-file=FILE for several
        submit_store: Option<String> [help_heading = "Submissions", value_name = "STORE"],
        /// Bytes that the store may hold: bodies, answers and 4 KiB each [default: 1GiB]
        submit_max_stored: Option<Size> [help_heading = "Submissions", value_name = "BYTES"],
        /// File with the issuers whose tokens pay for submissions of clients without accounts
        submit_issuers: Option<String> [help_heading = "Submissions", value_name = "FILE"],
        /// PEM file with the X25519 key of encapsulated requests, for --submit-issuers
        submit_oblivious_key: Option<String> [help_heading = "Submissions", value_name = "FILE"],
        /// Number of submissions with tokens that are delivered together [default: 20]
        submit_batch: Option<usize> [help_heading = "Submissions", value_name = "N"],
        /// Number of submissions that an incomplete batch must have [default: 5]
        submit_batch_min: Option<usize> [help_heading = "Submissions", value_name = "N"],
        /// Time after which an incomplete batch is delivered [default: 10m]
        submit_batch_wait: Option<Span> [help_heading = "Submissions", value_name = "TIME"],
        /// Time after which a batch below submit-batch-min is delivered [default: 6h]
        submit_batch_max_wait: Option<Span> [help_heading = "Submissions", value_name = "TIME"],
        /// Time for which a client waits for the server's answer before it gets status 202
        /// [default: 10s]
        submit_wait: Option<Span> [help_heading = "Submissions", value_name = "TIME"],
        /// Time for which the delivery of a submission is tried [default: 24h]
        submit_retry: Option<Span> [help_heading = "Submissions", value_name = "TIME"],
        /// Time for which answers are kept [default: 168h]
        submit_keep: Option<Span> [help_heading = "Submissions", value_name = "TIME"],
    }
}

pub(super) fn listeners<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<Endpoint>, D::Error> {
    Usage::GatewayListener.read_list(deserializer)
}

/// The criterion for the push of a learned resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum WorthOption {
    /// Use the ratio that `--predict-omega` gives
    #[default]
    Omega,
    /// Compare the saved and the wasted seconds on the session's path
    Path,
}

/// The option `cache` as it is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum CacheOption {
    /// Store nothing
    Off,
    /// Store responses for the session that fetched them, until it ends
    #[default]
    Private,
    /// Store responses for all users, who must trust each other or use one site
    Shared,
}

/// The number of requests that learned pushes may waste before the first useful one. It is granted
/// once in a gateway's life, and allows a large page to be pushed completely as soon as enough
/// users have requested it.
const CREDIT: f64 = 1000.0;

/// The resources for a page that are pushed at most because strings of its scripts name them.
const NAMED_BY_SCRIPTS: usize = 32;

/// The configuration of push.
#[derive(Clone, Debug)]
pub struct PushConfig {
    /// The configuration of the predictor, if the gateway learns.
    pub predictor: Option<PredictorConfig>,
    /// True if the session's path decides on the worth of a push.
    pub by_path: bool,
    /// The share of page loads without push, from 0 to 1.
    pub hold_out: f64,
    /// The largest number of resources for a page that are pushed because strings of its scripts
    /// name them; 0 if scripts are not read.
    pub named_by_scripts: usize,
    /// True if only resources of the page's own origin are pushed.
    pub own_origin_only: bool,
}

/// The checked configuration of a gateway.
#[derive(Clone, Debug)]
pub struct GatewayConfig {
    /// The endpoints of the listeners.
    pub listen: Vec<Endpoint>,
    /// The origins that the gateway serves.
    pub mode: Mode,
    /// True if all clients are admitted.
    pub open: bool,
    /// True if the gateway fetches HTTPS of hosts that its clients open.
    pub fetches_opened: bool,
    /// The files that hold the tokens that admit a client.
    pub token_files: Vec<String>,
    /// The PEM file of the authorities that sign the certificates of admitted clients.
    pub client_ca: Option<String>,
    /// The destinations that the gateway may connect to.
    pub policy: Policy,
    /// True if the gateway carries UDP datagrams of its clients.
    pub udp: bool,
    /// True if the gateway announces itself to visitors without Tandem.
    pub announce: bool,
    /// The configuration of tor that the announced ports are compared with.
    pub torrc: Option<PathBuf>,
    /// The PEM file of the authorities for origins.
    pub origin_ca: Option<String>,
    /// The number of threads.
    pub workers: usize,
    /// The maximum number of concurrent requests on a session.
    pub max_streams: u32,
    /// The maximum size of a head in bytes.
    pub max_head: usize,
    /// The maximum number of connections from clients.
    pub max_connections: usize,
    /// The maximum number of connections from one IPv4 address or IPv6 network of 64 bits.
    pub max_connections_per_client: usize,
    /// The limits of a session's connections to origins.
    pub origin_limits: Limits,
    /// The configuration of push; `None` without push.
    pub push: Option<PushConfig>,
    /// The configuration of a gateway that shares its knowledge with others.
    pub fleet: Option<FleetConfig>,
    /// The configuration of the cache; `None` without a cache.
    pub cache: Option<tandem_cache::Config>,
    /// The configuration of the cache's files; `None` without files.
    pub disk: Option<DiskConfig>,
    /// Adds `Cache-Status` to the responses of a gateway with a cache.
    pub cache_status: bool,
    /// The compression of bodies on the way to clients.
    pub compress: BodyCompression,
    /// The configuration of submissions, with `mode=submit`.
    pub submission: Option<SubmissionConfig>,
    /// The time limit for an origin's response.
    pub response_timeout: Duration,
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
    /// The files that hold secrets.
    pub secret_files: Vec<String>,
}

impl GatewayOptions {
    /// Checks the options without network access; the endpoints may name the standard transports.
    pub fn typed(self) -> Result<GatewayConfig, ConfigError> {
        self.typed_with(&Transports::default())
    }

    /// Checks the options as [`Self::typed`] does; the endpoints may name the given transports.
    pub fn typed_with(self, transports: &Transports) -> Result<GatewayConfig, ConfigError> {
        self.typed_as(RoleName::Gateway, transports)
    }

    /// Checks the options of a role that has the listeners of a gateway. `role` is that role.
    pub(super) fn typed_as(
        mut self,
        role: RoleName,
        transports: &Transports,
    ) -> Result<GatewayConfig, ConfigError> {
        let path = self.take_path();
        self.check_listeners(transports)?;
        let mode = self.mode()?;
        let credentials = Credentials::read(&self.auth)?;
        let path = path.typed()?;
        let submission = self.submission(&path)?;
        let is_for_submissions = submission.is_some();
        let open = self.admits_all(role, &credentials, is_for_submissions, transports)?;
        let fetches_opened = self.fetches_opened(&mode, open)?;
        let udp = self.carries_udp(&mode)?;
        let push = match self.push.unwrap_or(!is_for_submissions) {
            true => Some(self.pushing(&mode)?),
            false => None,
        };
        let cache = match is_for_submissions {
            true => None,
            false => self.caching(&mode)?,
        };
        let fleet = self.fleet(push.as_ref())?;
        let disk = self.disk(cache.as_ref(), fleet.as_ref())?;
        let max_connections = self.max_connections.unwrap_or(4096).max(1);
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let announce = discover::announces(self.announce, &mode, open)?;
        Ok(GatewayConfig {
            announce,
            mode,
            secret_files: self.secret_files(&credentials.token_files, fleet.as_ref()),
            fleet,
            origin_limits: self.origin_limits(max_connections),
            torrc: onion_ports::checked_file(self.torrc, announce)?,
            token_files: credentials.token_files,
            open,
            fetches_opened,
            udp,
            client_ca: credentials.client_ca,
            policy: policy(self.allow_dest, self.allow_port),
            origin_ca: self.origin_ca,
            workers: self.workers.unwrap_or(cores).clamp(1, 256),
            max_streams: self.max_streams.unwrap_or(256).max(1),
            max_head: usize::try_from(self.max_head.map_or(64 << 10, |size| size.0))
                .unwrap_or(usize::MAX)
                .clamp(4096, 16 << 20),
            max_connections,
            max_connections_per_client: self.max_connections_per_client.unwrap_or(1024).max(1),
            push,
            cache,
            disk,
            cache_status: self.cache_status.unwrap_or(false),
            compress: self.compress.unwrap_or_default(),
            response_timeout: positive(
                "response-timeout",
                self.response_timeout,
                Duration::from_secs(60),
            )?,
            drain_timeout: self
                .drain_timeout
                .map_or(Duration::from_secs(30), |span| span.0),
            path,
            submission,
            metrics: loopback("metrics", self.metrics)?,
            admin: loopback("admin", self.admin)?,
            control: self.control,
            log_requests: self.log_requests.unwrap_or(false),
            log_urls: self.log_urls.unwrap_or(false),
            transports: transports.clone(),
            listen: families::present(self.listen),
        })
    }
}

impl GatewayOptions {
    fn check_listeners(&self, transports: &Transports) -> Result<(), ConfigError> {
        if self.listen.is_empty() {
            return Err(ConfigError::value(
                "listen",
                "give at least one, such as h2+tcp://192.0.2.80:9980",
            ));
        }
        distinct(&self.listen, transports)?;
        self.listen
            .iter()
            .try_for_each(|endpoint| listener(endpoint, transports))
    }

    /// Returns whether the gateway carries UDP datagrams.
    fn carries_udp(&self, mode: &Mode) -> Result<bool, ConfigError> {
        let udp = self.udp.unwrap_or(false);
        if udp && *mode != Mode::Forward {
            let problem = "needs --mode forward: the destinations are those that clients name";
            return Err(ConfigError::value("udp", problem));
        }
        Ok(udp)
    }

    /// Returns whether the gateway fetches HTTPS of opened hosts. `open`: it admits all clients.
    fn fetches_opened(&self, mode: &Mode, open: bool) -> Result<bool, ConfigError> {
        let fetches_opened = self.open_https.unwrap_or(false);
        if fetches_opened && (open || *mode != Mode::Forward) {
            let problem = "needs --auth and --mode forward: the gateway reads what authenticated \
                           users open";
            return Err(ConfigError::value("open-https", problem));
        }
        Ok(fetches_opened)
    }

    fn secret_files(&self, token_files: &[String], fleet: Option<&FleetConfig>) -> Vec<String> {
        let of_fleet = fleet.iter().flat_map(|fleet| &fleet.secret_files);
        let keys = self.listen.iter().filter_map(|it| it.option("key"));
        keys.map(str::to_owned)
            .chain(token_files.iter().cloned())
            .chain(self.submit_key.clone())
            .chain(self.submit_oblivious_key.clone())
            .chain(self.submit_rights.clone())
            .chain(self.submit_store.as_deref().and_then(store_secret))
            .chain(
                of_fleet
                    .chain(&self.cache_key)
                    .map(|file| file.display().to_string()),
            )
            .collect()
    }

    fn origin_limits(&self, max_connections: usize) -> Limits {
        let lasting = self.max_lasting_exchanges;
        Limits {
            // The minimum is two: pushes get half of the connections.
            per_origin: self.max_connections_per_origin.unwrap_or(64).max(2),
            per_session: self.max_origin_connections.unwrap_or(256).max(2),
            lasting: lasting
                .unwrap_or_else(|| max_connections.saturating_mul(2))
                .max(max_connections),
        }
    }

    fn mode(&self) -> Result<Mode, ConfigError> {
        let mode = self
            .mode
            .as_ref()
            .map_or(Ok(Mode::Forward), ModeOption::typed);
        let mut mode = mode.map_err(|problem| ConfigError::value("mode", problem))?;
        match &mut mode {
            Mode::Reverse { hosts, .. } if self.allow_host.is_empty() => {
                hosts.extend(default_hosts(hosts))
            }
            Mode::Reverse { hosts, .. } => hosts.extend_from_slice(&self.allow_host),
            _ if self.allow_host.is_empty() => {}
            Mode::Forward | Mode::Proxy { .. } => {
                return Err(ConfigError::value("allow-host", "needs --mode reverse=URL"));
            }
        }
        Ok(mode)
    }

    fn pushing(&self, mode: &Mode) -> Result<PushConfig, ConfigError> {
        let percent = self.hold_out.unwrap_or(2.0);
        if !(0.0..=100.0).contains(&percent) {
            return Err(ConfigError::value("hold-out", "must be from 0 to 100"));
        }
        let omega = self.predict_omega.unwrap_or(0.5);
        if !(0.0..=1.0).contains(&omega) {
            return Err(ConfigError::value("predict-omega", "must be from 0 to 1"));
        }
        let min_users = self.predict_users.unwrap_or(3);
        if !(1..=4).contains(&min_users) {
            return Err(ConfigError::value("predict-users", "must be from 1 to 4"));
        }
        let memory = self.predict_memory.map_or(64 << 20, |size| size.0);
        if memory < 1 << 20 {
            return Err(ConfigError::value(
                "predict-memory",
                "must be at least 1MiB",
            ));
        }
        let config = AutoConfig {
            worth: Worth::Omega(omega),
            aim: Aim::Transfers,
            max_memory: usize::try_from(memory).unwrap_or(usize::MAX),
            min_users,
            credit: CREDIT,
        };
        let predictor = if self.predict.unwrap_or(true) {
            Some(PredictorConfig {
                auto: config,
                file: self.predict_state.clone(),
            })
        } else if self.predict_state.is_some() {
            return Err(ConfigError::value(
                "predict-state",
                "needs predict, which is off",
            ));
        } else {
            None
        };
        let reads_scripts = self.predict_scripts.unwrap_or(false);
        if reads_scripts && predictor.is_none() {
            return Err(ConfigError::value(
                "predict-scripts",
                "needs predict, which is off",
            ));
        }
        let own_origin_only = matches!(mode, Mode::Reverse { .. });
        let by_path = self.predict_worth == Some(WorthOption::Path);
        Ok(PushConfig {
            predictor,
            by_path,
            hold_out: percent / 100.0,
            named_by_scripts: if reads_scripts { NAMED_BY_SCRIPTS } else { 0 },
            own_origin_only,
        })
    }
}

/// Returns the default of `allow-host`. An origin that is an address has no host name. As a rule it
/// is behind an onion service, and the gateway cannot know the service's name.
pub(super) fn default_hosts(own: &[HostPattern]) -> Option<HostPattern> {
    let is_address = own
        .iter()
        .any(|host| matches!(host, HostPattern::Name(name) if literal_ip(name).is_some()));
    is_address.then(|| HostPattern::Below("onion".into()))
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
    let provider = transports.of(endpoint)?;
    provider.check_session(endpoint)?;
    Ok(provider.check_listener(endpoint)?)
}

/// Returns the policy for destinations besides the public ones.
fn policy(allow: Vec<AllowDest>, ports: Vec<u16>) -> Policy {
    Policy {
        of: PolicyOf::Gateway,
        family: AddressFamily::Any,
        allow,
        ports: match ports.is_empty() {
            true => vec![80, 443],
            false => ports,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(change: impl FnOnce(&mut GatewayOptions)) -> Result<GatewayConfig, ConfigError> {
        let mut options = GatewayOptions {
            listen: vec!["h2+tcp://127.0.0.1:9980".parse().unwrap()],
            open: Some(true),
            ..GatewayOptions::default()
        };
        change(&mut options);
        options.typed()
    }

    #[test]
    fn gateway_requires_auth_or_open() {
        let error = options(|o| o.open = None).unwrap_err().to_string();
        assert!(error.contains("would let no one in"), "{error}");
        assert!(options(|_| {}).is_ok());
    }

    #[test]
    fn gateway_refuses_contradictory_options() {
        for change in [
            |o: &mut GatewayOptions| o.listen = vec!["h2+tls://127.0.0.1:1".parse().unwrap()],
            |o: &mut GatewayOptions| o.listen = vec!["socks5://127.0.0.1:1".parse().unwrap()],
            |o: &mut GatewayOptions| o.auth = vec!["password=x".into()],
            |o: &mut GatewayOptions| o.metrics = Some("192.0.2.1:9".parse().unwrap()),
            |o: &mut GatewayOptions| {
                o.udp = Some(true);
                o.mode = Some("reverse=http://127.0.0.1:80".parse().unwrap());
            },
        ] {
            assert!(options(change).is_err());
        }
    }
}

//! The options of the gateway, and the configuration that they make.

use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize};
use tandem_predict::{Aim, AutoConfig, Worth};

use super::compress::BodyCompression;
pub use super::mode::ModeOption;
use super::near::{NearConfig, near_options};
use super::origins::{OriginsConfig, OriginsOptions};
use super::submission::SubmissionConfig;
use super::units::{Size, Span};
use super::{ConfigError, discover, limit, onion_ports, with_path};
use crate::back::origin::Mode;
use crate::back::policy::AllowDest;
use crate::disk_cache::DiskConfig;
use crate::endpoint::{Endpoint, Usage, literal_ip};
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
        open_https: Option<bool> [help_heading = "Admission", num_args = 0..=1,
            default_missing_value = "true", require_equals = true, value_name = "BOOL"],
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
        udp: Option<bool> [help_heading = "Destinations", num_args = 0..=1,
            default_missing_value = "true", require_equals = true, value_name = "BOOL"],
        /// Announce this gateway in responses to visitors without Tandem, and at
        /// /.well-known/session-gateway [default: true with mode=reverse and --open]
        announce: Option<bool> [help_heading = "Destinations", num_args = 0..=1,
            default_missing_value = "true", require_equals = true, value_name = "BOOL"],
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
        push: Option<bool> [help_heading = "Push", num_args = 0..=1, default_missing_value = "true",
            require_equals = true, value_name = "BOOL"],
        /// Learn the resources of pages from the requests of all users [default: true]
        predict: Option<bool> [help_heading = "Push", num_args = 0..=1,
            default_missing_value = "true", require_equals = true, value_name = "BOOL"],
        /// Bytes of memory for the learned data, at least 1MiB [default: 64MiB]
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
        predict_scripts: Option<bool> [help_heading = "Push", num_args = 0..=1,
            default_missing_value = "true", require_equals = true, value_name = "BOOL"],
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
        /// Bytes of memory for the cache, at least 1MiB [default: 64MiB]
        cache_memory: Option<Size> [help_heading = "Cache", value_name = "BYTES"],
        /// Number of users that must fetch a response before the shared cache serves it to others,
        /// 1 to 4; each URL needs up to twice as many [default: 3, and 1 with mode=reverse]
        cache_users: Option<u8> [help_heading = "Cache", value_name = "N"],
        /// Directory of the gateway's own for more responses of a shared cache, encrypted; without
        /// it they are in memory only [default: none]
        cache_dir: Option<PathBuf> [help_heading = "Cache", value_name = "DIR"],
        /// Bytes of the files in cache-dir, at least 16MiB [default: 1GiB]
        cache_disk_size: Option<Size> [help_heading = "Cache", value_name = "BYTES"],
        /// File with the key of the files in cache-dir, at least 32 random bytes: they then serve
        /// after a restart too [default: a random key that ends with the process]
        cache_key: Option<PathBuf> [help_heading = "Cache", value_name = "FILE"],
        /// Add Cache-Status to responses, which says how the cache handled the request (RFC 9211)
        cache_status: Option<bool> [help_heading = "Cache", num_args = 0..=1,
            default_missing_value = "true", require_equals = true, value_name = "BOOL"],
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
    /// The end towards clients.
    pub near: NearConfig,
    /// The end towards origins.
    pub origins: OriginsConfig,
    /// The origins that the gateway serves.
    pub mode: Mode,
    /// True if the gateway fetches HTTPS of hosts that its clients open.
    pub fetches_opened: bool,
    /// True if the gateway carries UDP datagrams of its clients.
    pub udp: bool,
    /// True if the gateway announces itself to visitors without Tandem.
    pub announce: bool,
    /// The configuration of tor that the announced ports are compared with.
    pub torrc: Option<PathBuf>,
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
}

impl GatewayOptions {
    /// Checks the options without network access; the endpoints may name the standard transports.
    pub fn typed(self) -> Result<GatewayConfig, ConfigError> {
        self.typed_with(&Transports::default())
    }

    /// Checks the options as [`Self::typed`] does; the endpoints may name the given transports.
    pub fn typed_with(mut self, transports: &Transports) -> Result<GatewayConfig, ConfigError> {
        let path = self.take_path().typed()?;
        let mode = self.mode()?;
        let submission = self.submission(&path)?;
        let is_for_submissions = submission.is_some();
        let near = self.take_near();
        let mut near = near.typed(RoleName::Gateway, path, is_for_submissions, transports)?;
        let fetches_opened = self.fetches_opened(&mode, near.open)?;
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
        let announce = discover::announces(self.announce, &mode, near.open)?;
        near.secret_files.extend(self.secret_files(fleet.as_ref()));
        let origins = OriginsOptions {
            allow_dest: self.allow_dest,
            allow_port: self.allow_port,
            origin_ca: self.origin_ca,
            // The minimum is two: pushes get half of the connections.
            per_origin: limit(
                "max-connections-per-origin",
                self.max_connections_per_origin,
                64,
            )?
            .max(2),
            per_session: limit("max-origin-connections", self.max_origin_connections, 256)?.max(2),
            lasting: self.max_lasting_exchanges,
            response_timeout: self.response_timeout,
        };
        Ok(GatewayConfig {
            origins: origins.typed(near.max_connections)?,
            near,
            mode,
            fetches_opened,
            udp,
            announce,
            torrc: onion_ports::checked_file(self.torrc, announce)?,
            push,
            fleet,
            cache,
            disk,
            cache_status: self.cache_status.unwrap_or(false),
            compress: self.compress.unwrap_or_default(),
            submission,
        })
    }
}

impl GatewayOptions {
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

    /// Returns the files with secrets beside those of the end towards clients.
    fn secret_files(&self, fleet: Option<&FleetConfig>) -> Vec<String> {
        let of_fleet = fleet.iter().flat_map(|fleet| &fleet.secret_files);
        self.submit_key
            .iter()
            .cloned()
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
    fn limits_that_would_serve_nothing_are_refused() {
        type Change = fn(&mut GatewayOptions);
        let cases: [(&str, Change); 7] = [
            ("workers", |it| it.workers = Some(0)),
            ("max-streams", |it| it.max_streams = Some(0)),
            ("max-connections", |it| it.max_connections = Some(0)),
            ("max-connections-per-client", |it| {
                it.max_connections_per_client = Some(0);
            }),
            ("max-connections-per-origin", |it| {
                it.max_connections_per_origin = Some(0);
            }),
            ("max-origin-connections", |it| {
                it.max_origin_connections = Some(0);
            }),
            ("max-head", |it| it.max_head = "1B".parse().ok()),
        ];
        for (key, change) in cases {
            let error = options(change).expect_err(key).to_string();
            assert!(error.starts_with(&format!("{key}: must be ")), "{error}");
        }
    }

    #[test]
    fn token_file_is_bounded() {
        let file = std::env::temp_dir().join(format!("tandem-secret-{}", std::process::id()));
        let name = file.display().to_string();
        for (length, rest, problem) in [
            (8192, 0, None),
            (8193, 0, Some("at most 8192 characters")),
            (100, 70_000, Some("larger than 64 KiB")),
        ] {
            let text = format!("{}\n{}", "a".repeat(length), "b".repeat(rest));
            std::fs::write(&file, text).unwrap();
            let error = super::super::read_secret("token-file", &name).err();
            let error = error.map(|error| error.to_string());
            assert_eq!(error.is_some(), problem.is_some(), "{error:?}");
            assert!(
                error
                    .unwrap_or_default()
                    .contains(problem.unwrap_or_default())
            );
        }
        std::fs::remove_file(file).unwrap();
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

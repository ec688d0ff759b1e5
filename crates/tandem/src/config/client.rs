//! The options of the client, and the configuration that they make.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};
use tandem_push::wire::NextPush;

pub use super::solo::{Solo, SoloMode};

use super::client_cache::ClientCache;
use super::compress::BodyCompression;
use super::digest::{digest, digest_file};
use super::gateway_ways::GatewayWays;
use super::gateways::{Dialled, GatewayEndpoint, Route, RouteOption, look_up, secret_files};
use super::next_push::NextPages;
use super::open::{EarlyRequests, OpenedHttps};
use super::units::{Size, Span};
use super::{ConfigError, PathConfig, distinct, limit, options, read_secret, with_path};
use crate::back::policy::AllowDest;
use crate::endpoint::{Endpoint, SessionKind, Usage, Via};
use crate::hosts::{HostMap, HostPattern};
use crate::transport::names::Names;
use crate::transport::registry::Transports;
use crate::transport::tls::authority::{certificate_file, default_directory};
use crate::warm_up::{self, Amount};

/// The behaviour of the client if no gateway answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Fallback {
    /// Report the error
    #[default]
    None,
    /// Continue without a gateway, through the same proxy as --via
    Via,
}

with_path! {
    options [
        "Time limit for a connection and its handshakes towards the gateway [default: 30s]"
        "Idle time after which sessions and connections are closed [default: 10m]"
        "Time after which a peer that reads no bytes is disconnected [default: 1m]"
        "Silence after which a gateway must answer a ping [default: 20s]"
    ]
    /// Options of `tandem client`; each is a flag and a key of `[client]`.
    ClientOptions {
        /// Listener for the browser: http://ADDRESS:PORT, h2+tls://127.0.0.1:PORT or
        /// socks5://ADDRESS:PORT (repeatable) [default: http://127.0.0.1:8118,
        /// socks5://127.0.0.1:9150]
        listen: Vec<Endpoint> [help_heading = "Listening", value_name = "URL", value_parser = |text: &str| Usage::ClientListener.parse(text)] with "listeners",
        /// Directory of the local authority for h2+tls:// listeners, which `tandem trust` creates
        /// [default: ~/.local/share/tandem]
        authority: Option<PathBuf> [help_heading = "Listening", value_name = "DIR"],
        /// URL of the gateway: h2+tls://HOST:PORT, the same with h3+quic or h3+dtls (UDP),
        /// h2+tcp://HOST:PORT?exit=auto, … (repeatable, best first). Commas join several ways to one
        /// gateway: the client uses UDP where it works, and TCP elsewhere
        gateway: Vec<GatewayWays> [help_heading = "Gateway", value_name = "URL[,URL]", value_parser = |text: &str| text.parse::<GatewayWays>()],
        /// Proxy on the way to the gateway: socks5://ADDRESS:PORT, or Tor's control port as
        /// tor://ADDRESS:PORT or tor:///PATH
        via: Option<Via> [help_heading = "Gateway", value_name = "URL"],
        /// Route of some hosts to another gateway: NAME,*.SUFFIX=URL (repeatable). The most
        /// specific name decides. The access token is not sent there; a file can name one for each
        /// route
        route: Vec<RouteOption> [help_heading = "Gateway", value_name = "HOSTS=URL"],
        /// File with the password of Tor's control port, if the port requires one
        tor_password_file: Option<String> [help_heading = "Gateway", value_name = "FILE"],
        /// File with the access token that the gateway requires
        token_file: Option<String> [help_heading = "Gateway", value_name = "FILE"],
        /// Behaviour if no gateway answers, and for onion services that it does not serve: "none"
        /// reports the error, "via" continues without a gateway [default: none]
        fallback: Option<Fallback> [help_heading = "Gateway", value_name = "MODE"],
        /// Use the gateway that a site announces for itself [default: true where sites are reached
        /// through --via without a gateway, and for HTTPS opened on this machine]
        discover: Option<bool> [help_heading = "Gateway", num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "BOOL"],
        /// Request the resources of pages early from this machine, for sites without a gateway:
        /// through --via, or with --solo=direct without a proxy
        solo: Option<SoloMode> [help_heading = "Solo", num_args = 0..=1, default_missing_value = "via", require_equals = true, value_name = "MODE"],
        /// Maximum number of connections to one origin, 6 to 64; more than 6 are used while they
        /// raise the throughput [default: 32]
        solo_connections: Option<usize> [help_heading = "Solo", value_name = "N"],
        /// Send a second request on a connection before the response to the first (HTTP/1.1
        /// pipelining) [default: true]
        solo_pipelining: Option<bool> [help_heading = "Solo", num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "BOOL"],
        /// Request nothing early from this host: NAME or *.SUFFIX (repeatable)
        solo_except: Vec<HostPattern> [help_heading = "Solo", value_name = "HOST"],
        /// Network that --solo=direct may connect to although it is not public: NET or NET:PORT
        /// (repeatable)
        solo_allow_dest: Vec<AllowDest> [help_heading = "Solo", value_name = "NET"],
        /// Percentage of page loads without early requests, as a control group [default: 2]
        solo_hold_out: Option<f64> [help_heading = "Solo", value_name = "PERCENT"],
        /// File that keeps the pages of plain HTTP that were visited without an isolation key, so
        /// that their resources leave together with the page after a restart too. It holds URLs,
        /// also those of private windows without a key. Needs --solo=direct, refused with --via
        /// [default: none]
        solo_state: Option<PathBuf> [help_heading = "Solo", value_name = "FILE"],
        /// Open HTTPS of this host on this machine: NAME or *.SUFFIX (repeatable). It needs the
        /// authority of `tandem trust`, and behind --via a gateway of your own
        open_https: Vec<HostPattern> [help_heading = "Opened HTTPS", value_name = "HOST"],
        /// Open HTTPS of this host, and let the gateway fetch and read it: NAME or *.SUFFIX
        /// (repeatable). The gateway must be your own (own=yes in its URL), and permit it
        open_https_at_gateway: Vec<HostPattern> [help_heading = "Opened HTTPS", value_name = "HOST"],
        /// Open HTTPS of these hosts at this port too, besides 443 (repeatable)
        open_https_port: Vec<u16> [help_heading = "Opened HTTPS", value_name = "PORT"],
        /// PEM file of the authorities to trust for these hosts instead of the public ones
        open_https_ca: Option<String> [help_heading = "Opened HTTPS", value_name = "FILE"],
        /// Early requests to hosts of open-https that speak HTTP/2 [default: off]
        open_https_early: Option<EarlyRequests> [help_heading = "Opened HTTPS", value_name = "MODE"],
        /// Age at which a session is replaced, within 20 %; 0s means never [default: 770s with
        /// --via, at least Tor's ten minutes, otherwise 0s]
        max_age: Option<Span> [help_heading = "Sessions", value_name = "TIME"],
        /// Maximum number of sessions, one for each isolation key and gateway. A new one closes the
        /// session that was idle for longest, and none in use [default: 4096]
        max_sessions: Option<usize> [help_heading = "Sessions", value_name = "N"],
        /// Agree to tunnels before the gateway answers, which saves a round trip; SOCKS connections
        /// to port 80 are always agreed to [default: true]
        early_connect: Option<bool> [help_heading = "Sessions", num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "BOOL"],
        /// Connect to the gateway at the start instead of at the first request, and log the result
        /// [default: true]
        preconnect: Option<bool> [help_heading = "Sessions", num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "BOOL"],
        /// Filler bytes that the gateway sends on the session of --preconnect to open the
        /// congestion window, at most 4MiB; 0B also turns comparisons of UDP with TCP off [default:
        /// without --via 256KiB for each 100 ms of round trip, at most 1MiB, otherwise 0B]
        warm_up: Option<Size> [help_heading = "Sessions", value_name = "BYTES"],
        /// Accept pushes from the gateway [default: true]
        push: Option<bool> [help_heading = "Push", num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "BOOL"],
        /// Bytes of pushed responses, including their fields, that a session may store [default:
        /// 32MiB]
        push_memory: Option<Size> [help_heading = "Push", value_name = "BYTES"],
        /// Cancel useless pushes; over Tor, a cancelled push reveals which resources the browser
        /// has [default: false]
        cancel_pushes: Option<bool> [help_heading = "Push", num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "BOOL"],
        /// Announce pushed resources to the browser in Link fields with rel=preload; pages can see
        /// them, and request old needs of a page [default: false]
        early_hints: Option<bool> [help_heading = "Push", num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "BOOL"],
        /// Send a digest of the browser's earlier responses at the start of a session; refused with
        /// --via [default: true without --via]
        push_digest: Option<bool> [help_heading = "Push", num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "BOOL"],
        /// File that keeps this digest for the next process, except those of isolation keys.
        /// Private windows without a key leave hashes of URLs in it. The gateway recognises a client
        /// that restarts or changes its address, also behind a VPN or transparent Tor. Refused with
        /// --via, and unused with --solo [default: none]
        push_digest_file: Option<PathBuf> [help_heading = "Push", value_name = "FILE"],
        /// Documents that may follow a page, which the gateway pushes once the page is loaded
        /// [default: off]
        push_next: Option<NextPages> [help_heading = "Push", value_name = "MODE"],
        /// Mark pushed and stored responses in the Cache-Status field; pages can read it [default:
        /// false]
        cache_status: Option<bool> [help_heading = "Push", num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "BOOL"],
        /// Cache of responses in this client: off; or private, separate for each isolation key
        /// [default: off]
        cache: Option<ClientCache> [help_heading = "Cache", value_name = "MODE"],
        /// Bytes of memory for the cache, at least 1MiB [default: 64MiB]
        cache_memory: Option<Size> [help_heading = "Cache", value_name = "BYTES"],
        /// Compression of text between gateway and client: auto, exact or off [default: auto; exact
        /// with --via, where the fields of requests show no proxy]
        compress: Option<BodyCompression> [help_heading = "Compression", value_name = "MODE"],
    } {
        /// Maximum number of connections from browsers [default: 1024]
        max_connections: Option<usize> [help_heading = "Listening", value_name = "N"],
        /// Address of the listener for Prometheus metrics, loopback only [default: none]
        metrics: Option<SocketAddr> [help_heading = "Watching", value_name = "ADDRESS"],
        /// Address of the listener for the dashboard, loopback only; `tandem open` opens it
        /// [default: none]
        admin: Option<SocketAddr> [help_heading = "Watching", value_name = "ADDRESS"],
        /// Path of the Unix socket for `tandem open`, `top` and `probe`, accessible to this user
        /// only [default: none]
        control: Option<PathBuf> [help_heading = "Watching", value_name = "PATH"],
        /// Log level or filter, such as info or tandem=debug [default: info]
        log: Option<String> [help_heading = "Watching", value_name = "FILTER"],
        /// Log a line for each request: method, status, bytes, time, pushed or not [default: false]
        log_requests: Option<bool> [help_heading = "Watching", num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "BOOL"],
        /// Log each request with its URL, which is private [default: false]
        log_urls: Option<bool> [help_heading = "Watching", num_args = 0..=1, default_missing_value = "true", require_equals = true, value_name = "BOOL"],
    }
}

fn listeners<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Endpoint>, D::Error> {
    Usage::ClientListener.read_list(deserializer)
}

/// The checked configuration of a client.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    /// The endpoints of the listeners.
    pub listen: Vec<Endpoint>,
    /// The directory of the local authority, which certifies TLS listeners.
    pub authority: Option<PathBuf>,
    /// The default gateways, best first. They serve the hosts without a route.
    pub gateways: Vec<GatewayEndpoint>,
    /// The warnings about ways to gateways, and options, that are not used.
    pub left_out: Vec<String>,
    /// The routes of other hosts.
    pub routes: Vec<Route>,
    /// The choice among the routes.
    pub route_map: HostMap,
    /// The settings for all other hosts without a default gateway.
    pub solo: Option<Solo>,
    /// True if the client uses gateways that sites announce.
    pub discover: bool,
    /// True if the client uses gateways that sites announce in HTTPS that it opens itself.
    pub discover_opened: bool,
    /// The hosts whose HTTPS is opened.
    pub open: Option<OpenedHttps>,
    /// The proxy on the way to the gateway.
    pub via: Option<Via>,
    /// The password of Tor's control port.
    pub tor_password: Option<crate::secret::Secret>,
    /// The behaviour if no gateway answers.
    pub fallback: Fallback,
    /// The age at which sessions are replaced; `None` means never.
    pub max_age: Option<Duration>,
    /// The number of sessions above which idle ones are closed.
    pub max_sessions: usize,
    /// True if the client agrees to tunnels before the gateway answers.
    pub early_connect: bool,
    /// True if the session of requests without a key is opened at the start.
    pub preconnect: bool,
    /// The warm-up bytes that the gateway sends on that session.
    pub warm_up: Amount,
    /// True if the client accepts pushes.
    pub push: bool,
    /// The maximum number of pushed bytes that a session stores.
    pub push_memory: usize,
    /// True if useless pushes are cancelled.
    pub cancel_pushes: bool,
    /// True if pushed resources are announced to the browser.
    pub early_hints: bool,
    /// True if a session begins with a digest of the browser's earlier responses.
    pub push_digest: bool,
    /// The file that keeps the digest of requests without an isolation key.
    pub push_digest_file: Option<PathBuf>,
    /// The pushes of documents for the next page that the client takes.
    pub push_next: NextPush,
    /// True if responses have a Cache-Status field.
    pub cache_status: bool,
    /// The configuration of the cache; `None` without a cache.
    pub cache: Option<tandem_cache::Config>,
    /// The compression of bodies on the way from gateways.
    pub compress: BodyCompression,
    /// The configuration of the slow path.
    pub path: PathConfig,
    /// The maximum number of connections from browsers.
    pub max_connections: usize,
    /// The address of the metrics listener.
    pub metrics: Option<SocketAddr>,
    /// The address of the dashboard's listener.
    pub admin: Option<SocketAddr>,
    /// The path of the control socket.
    pub control: Option<PathBuf>,
    /// A line in the log for each request.
    pub log_requests: bool,
    /// True if the log may contain URLs.
    pub log_urls: bool,
    /// The transports that the endpoints may name.
    pub transports: Transports,
    /// The files that hold secrets.
    pub secret_files: Vec<String>,
}

impl ClientConfig {
    /// Returns the gateways of all routes, the default ones first.
    pub fn all_gateways(&self) -> impl Iterator<Item = &GatewayEndpoint> {
        let routed = self.routes.iter().flat_map(|route| &route.gateways);
        self.gateways.iter().chain(routed)
    }

    /// Looks up the names of gateways with `resolve=system` within a time, as a check. A client
    /// that runs looks them up when it dials. Returns an error for each name without an address.
    pub fn look_up_names(&self, limit: Duration) -> Vec<ConfigError> {
        look_up(self.all_gateways(), limit)
    }
}

impl ClientOptions {
    /// Checks the options without network access; the endpoints may name the standard transports.
    pub fn typed(self) -> Result<ClientConfig, ConfigError> {
        self.typed_with(&Transports::default())
    }

    /// Checks the options as [`Self::typed`] does; the endpoints may name the given transports.
    pub fn typed_with(mut self, transports: &Transports) -> Result<ClientConfig, ConfigError> {
        let path = self.take_path();
        let solo = self.solo()?;
        let open = self.opened()?;
        let unused_open_option = self.unused_open_option();
        let (discover, discover_opened) = (self.discovery()?, self.discovers_opened());
        let listen = match std::mem::take(&mut self.listen) {
            listen if listen.is_empty() => default_listen(),
            listen => listen,
        };
        distinct(&listen, transports)?;
        for endpoint in &listen {
            check_listener(endpoint, transports)?;
        }
        self.check_gateways(solo.is_some())?;
        let max_age = self.max_age();
        let fallback = self.fallback()?;
        let via = self.via;
        let dialled = Dialled {
            via: via.as_ref(),
            transports,
            names: Names::of_process(),
        };
        let routed = self.route.iter().flat_map(|route| &route.gateway);
        let mut left_out = dialled.left_out(self.gateway.iter().chain(routed))?;
        left_out.extend(unused_open_option);
        let gateways = dialled.gateways(self.gateway, self.token_file.as_deref())?;
        let (routes, route_map) = dialled.routes(self.route)?;
        let all = gateways
            .iter()
            .chain(routes.iter().flat_map(|route| &route.gateways));
        let secret_files = secret_files(all.clone(), self.tor_password_file.as_ref());
        if let Some(open) = &open {
            open.check_ways(via.as_ref(), all, solo.as_ref(), fallback)?;
            open.check_gateways(via.as_ref(), &gateways, &routes, &route_map)?;
        }
        let authority = authority(&listen, open.as_ref(), self.authority)?;
        let push_digest = digest(self.push_digest, via.as_ref())?;
        Ok(ClientConfig {
            authority,
            listen,
            secret_files,
            left_out,
            gateways,
            tor_password: self
                .tor_password_file
                .map(|file| read_secret("tor-password-file", &file).map(Into::into))
                .transpose()?,
            routes,
            route_map,
            push_next: NextPages::typed(self.push_next, solo.is_some())?,
            solo,
            discover,
            discover_opened,
            open,
            fallback,
            max_age,
            max_sessions: limit("max-sessions", self.max_sessions, 4096)?,
            early_connect: self.early_connect.unwrap_or(true),
            preconnect: self.preconnect.unwrap_or(true),
            warm_up: warm_up(self.warm_up, via.as_ref())?,
            push: self.push.unwrap_or(true),
            push_memory: usize::try_from(self.push_memory.map_or(32 << 20, |size| size.0))
                .unwrap_or(usize::MAX),
            cancel_pushes: self.cancel_pushes.unwrap_or(false),
            early_hints: self.early_hints.unwrap_or(false),
            push_digest,
            push_digest_file: digest_file(self.push_digest_file, push_digest, via.as_ref())?,
            cache_status: self.cache_status.unwrap_or(false),
            cache: ClientCache::typed(self.cache, self.cache_memory)?,
            compress: BodyCompression::of_client(self.compress, via.is_some()),
            path: path.typed()?,
            max_connections: limit("max-connections", self.max_connections, 1024)?,
            metrics: loopback("metrics", self.metrics)?,
            admin: loopback("admin", self.admin)?,
            control: self.control,
            log_requests: self.log_requests.unwrap_or(false),
            log_urls: self.log_urls.unwrap_or(false),
            transports: transports.clone(),
            via,
        })
    }
}

impl ClientOptions {
    /// Checks that there is a gateway, or a default one if an option needs it.
    fn check_gateways(&self, is_solo: bool) -> Result<(), ConfigError> {
        if self.gateway.is_empty() && self.route.is_empty() && !is_solo {
            return Err(ConfigError::value(
                "gateway",
                "give at least one, such as h2+tls://gw.example:443, or --solo",
            ));
        }
        match &self.token_file {
            Some(file) if self.gateway.is_empty() => Err(ConfigError::value(
                "token-file",
                format!(
                    "{file} is for the default gateway, and there is none: name the file in the \
                     [[route]] that needs it"
                ),
            )),
            _ => Ok(()),
        }
    }

    fn fallback(&self) -> Result<Fallback, ConfigError> {
        let fallback = self.fallback.unwrap_or_default();
        if fallback == Fallback::Via && self.via.is_none() {
            return Err(ConfigError::value(
                "fallback",
                "\"via\" needs --via: nothing else is ever connected to",
            ));
        }
        Ok(fallback)
    }

    /// Returns the time after which a session is replaced.
    fn max_age(&self) -> Option<Duration> {
        match self.max_age {
            Some(span) => Some(span.0).filter(|time| !time.is_zero()),
            // The shortest age near the default is a little over Tor's ten minutes; otherwise the
            // next session would find the same circuit still in use.
            None => self.via.as_ref().map(|_| Duration::from_secs(770)),
        }
    }
}

/// Checks the form of a listener's endpoint.
fn check_listener(endpoint: &Endpoint, transports: &Transports) -> Result<(), ConfigError> {
    let bad = |problem| ConfigError::value("listen", format!("{endpoint}: {problem}"));
    match (endpoint.session, endpoint.transport.as_str()) {
        (SessionKind::Http | SessionKind::Socks5, "tcp") => {
            endpoint.options(&[])?;
        }
        (SessionKind::H2, "tls") if !is_certified_locally(endpoint) => {
            transports.to_listen(endpoint)?.check_listener(endpoint)?;
        }
        (SessionKind::H2, "tls") => {
            let certified = [
                IpAddr::V4(Ipv4Addr::LOCALHOST),
                IpAddr::V6(Ipv6Addr::LOCALHOST),
            ];
            if !endpoint.ip().is_some_and(|ip| certified.contains(&ip)) {
                return Err(bad(
                    "the local authority certifies 127.0.0.1, ::1 and localhost only: listen \
                     there, or add ?cert=FILE&key=FILE",
                ));
            }
        }
        _ => return Err(bad("a client listens on http://, h2+tls:// or socks5://")),
    }
    Ok(())
}

/// Returns true if a listener's certificate comes from the local authority.
pub(super) fn is_certified_locally(endpoint: &Endpoint) -> bool {
    let given = ["cert", "key"].map(|key| endpoint.option(key).is_some());
    endpoint.session == SessionKind::H2 && given == [false, false]
}

/// Returns the directory of the local authority, if a listener or an opened host needs it.
fn authority(
    listen: &[Endpoint],
    open: Option<&OpenedHttps>,
    given: Option<PathBuf>,
) -> Result<Option<PathBuf>, ConfigError> {
    let listener = listen.iter().find(|it| is_certified_locally(it));
    if listener.is_none() && open.is_none() {
        return Ok(given);
    }
    let directory = given.or_else(default_directory).ok_or_else(|| {
        let problem = "neither HOME nor XDG_DATA_HOME is set: give the directory";
        ConfigError::value("authority", problem)
    })?;
    if let Some(open) = open {
        open.check_authority(&directory)?;
    }
    match listener {
        Some(endpoint) if !certificate_file(&directory).exists() => Err(ConfigError::value(
            "listen",
            format!(
                "{endpoint} needs the local authority, and {} has none: run `tandem trust` first, \
                 or add ?cert=FILE&key=FILE",
                directory.display()
            ),
        )),
        _ => Ok(Some(directory)),
    }
}

/// Returns the default listeners: Privoxy's port and Tor Browser's port.
fn default_listen() -> Vec<Endpoint> {
    ["http://127.0.0.1:8118", "socks5://127.0.0.1:9150"]
        .iter()
        .filter_map(|text| Endpoint::from_str(text).ok())
        .collect()
}

/// Checks the address of a listener for the user of this machine.
pub(crate) fn loopback(
    key: &'static str,
    address: Option<SocketAddr>,
) -> Result<Option<SocketAddr>, ConfigError> {
    match address {
        Some(address) if !address.ip().is_loopback() => Err(ConfigError::value(
            key,
            format!("{address}: {key} is for this machine only, give a loopback address"),
        )),
        other => Ok(other),
    }
}

/// Returns the number of warm-up bytes, by default 0 with `--via`: the slow path may then be
/// another connection than the gateway's, with an open window.
fn warm_up(asked: Option<Size>, via: Option<&Via>) -> Result<Amount, ConfigError> {
    match asked {
        Some(Size(bytes)) if bytes > warm_up::MOST => Err(ConfigError::value(
            "warm-up",
            format!("a gateway sends {} at most", Size(warm_up::MOST)),
        )),
        Some(Size(bytes)) => Ok(Amount::Bytes(bytes)),
        None if via.is_none() => Ok(Amount::OfPath),
        None => Ok(Amount::Bytes(0)),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::config::units::Rate;

    pub(in crate::config) fn options(gateway: &str, via: Option<&str>) -> ClientOptions {
        ClientOptions {
            gateway: vec![gateway.parse().unwrap()],
            via: via.map(|v| v.parse().unwrap()),
            ..ClientOptions::default()
        }
    }

    #[test]
    fn tls_listener_needs_the_local_authority() {
        let with = |listen: &str| {
            let options = ClientOptions {
                listen: vec![Usage::ClientListener.parse(listen).expect("an endpoint")],
                authority: Some("/nonexistent".into()),
                ..options("h2://127.0.0.1:1", None)
            };
            options.typed().map(drop).map_err(|error| error.to_string())
        };
        for (listen, part) in [
            ("h2+tls://127.0.0.1:8119", "run `tandem trust` first"),
            ("h2+tls://192.0.2.1:8119", "certifies 127.0.0.1, ::1"),
            ("h2+tls://127.0.0.1:8119?cert=a", "?cert=FILE&key=FILE"),
            ("h2+tcp://127.0.0.1:8119", "http://, h2+tls:// or socks5://"),
            (
                "http+tls://127.0.0.1:8119",
                "http://, h2+tls:// or socks5://",
            ),
            ("http://127.0.0.1:8119?cert=a", "unknown option"),
        ] {
            let error = with(listen).expect_err(listen);
            assert!(error.contains(part), "{listen}: {error}");
        }
        // The files of a given certificate are read later.
        assert_eq!(with("h2+tls://192.0.2.1:8119?cert=a&key=b"), Ok(()));
    }

    #[test]
    fn windows_cover_the_path() {
        let config = options("h2://127.0.0.1:1", None).typed().unwrap();
        assert!(
            config.path.stream_window >= 5_000_000
                && config.path.session_window >= 2 * config.path.stream_window
        );
        let mut wide = options("h2://127.0.0.1:1", None);
        wide.path_rate = Some(Rate(1_000_000_000_000));
        assert!(wide.typed().is_err());
    }

    #[test]
    fn flags_take_precedence_over_the_file() {
        let file = ClientOptions {
            max_sessions: Some(7),
            congestion: Some("cubic".into()),
            ..ClientOptions::default()
        };
        let flags = ClientOptions {
            max_sessions: Some(9),
            ..ClientOptions::default()
        };
        let both = flags.or(file);
        assert_eq!(
            (both.max_sessions, both.congestion.as_deref()),
            (Some(9), Some("cubic"))
        );
    }
}

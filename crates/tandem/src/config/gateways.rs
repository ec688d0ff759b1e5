//! The gateways that a client may use, and the routes that choose among them by the host of a
//! request.
//!
//! The most specific pattern decides, so the order of the routes has no meaning. The access token
//! of one gateway is never sent to another one.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Deserializer, Serialize};

use super::gateway_ways::GatewayWays;
use super::{ConfigError, read_secret};
use crate::endpoint::{Endpoint, SessionKind, Via, is_onion};
use crate::hosts::{HostMap, HostPattern};
use crate::transport::names::{Addresses, Names};
use crate::transport::registry::{Protocol, Transports};
use crate::transport::tor::Exit;

/// A route as users write it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RouteOption {
    /// The hosts that the route serves.
    pub hosts: Vec<HostPattern>,
    /// The gateways, best first.
    #[serde(deserialize_with = "one_or_more")]
    pub gateway: Vec<GatewayWays>,
    /// The file with the access token for these gateways.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_file: Option<String>,
}

/// Reads one gateway or a list of them.
fn one_or_more<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<GatewayWays>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "give the URL of a gateway, or a list of them")]
    enum Given {
        One(String),
        More(Vec<String>),
    }
    let given = match Given::deserialize(deserializer)? {
        Given::One(text) => vec![text],
        Given::More(texts) => texts,
    };
    let parse = |text: &String| text.parse().map_err(serde::de::Error::custom);
    given.iter().map(parse).collect()
}

impl FromStr for RouteOption {
    type Err = String;

    /// Parses `HOST,HOST=GATEWAY`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (hosts, gateway) = text
            .split_once('=')
            .ok_or("write HOSTS=URL, such as '*.example.onion=h2+tcp://gw.onion:9980'")?;
        let gateway: Result<GatewayWays, _> = gateway.parse();
        Ok(Self {
            hosts: hosts.split(',').map(str::parse).collect::<Result<_, _>>()?,
            gateway: vec![gateway.map_err(|error| error.to_string())?],
            token_file: None,
        })
    }
}

impl fmt::Display for RouteOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<_> = self.hosts.iter().map(ToString::to_string).collect();
        let gateways: Vec<_> = self.gateway.iter().map(ToString::to_string).collect();
        write!(f, "{}={}", hosts.join(","), gateways.join(" "))
    }
}

/// A checked route.
#[derive(Clone, Debug)]
pub struct Route {
    /// The gateways, best first.
    pub gateways: Vec<GatewayEndpoint>,
}

/// A gateway to dial.
#[derive(Clone, Debug)]
pub struct GatewayEndpoint {
    /// The endpoint as given.
    pub endpoint: Endpoint,
    /// The addresses to dial, if the client connects directly. Those of a name change.
    pub addresses: Option<Addresses>,
    /// The exit of the gateway, for `via tor://`.
    pub exit: Option<Exit>,
    /// The file with the access token that the gateway requires.
    pub token_file: Option<String>,
    /// True if this is another way to the gateway of the entry before.
    pub is_alternative: bool,
    /// True if its transport sends datagrams, which some networks drop.
    pub is_datagrams: bool,
    /// True if the user states that it is their own (`own=yes`).
    pub is_own: bool,
}

impl GatewayEndpoint {
    /// Returns true if the address of the gateway is given and passes a test. The addresses of a
    /// name pass none, because they may change while the client runs.
    pub(super) fn is_at(&self, test: impl Fn(IpAddr) -> bool) -> bool {
        match &self.addresses {
            Some(addresses) => addresses.as_given().is_some_and(|it| test(it.ip())),
            None => self.endpoint.ip().is_some_and(test),
        }
    }

    /// Returns the addresses of the gateway's name if `resolve=system` permits its look-up.
    fn named(&self) -> Option<Addresses> {
        let addresses = self.addresses.clone();
        addresses.filter(|it| it.as_given().is_none())
    }
}

/// Begins to look up a name. The thread stays until the resolver answers.
fn begin_look_up(addresses: Addresses) -> mpsc::Receiver<Result<(), String>> {
    let (tell, found) = mpsc::channel();
    // The check may have ended.
    std::thread::spawn(move || drop(tell.send(addresses.look_up_now())));
    found
}

/// Returns the files that no other user may read: those of gateways, and that of a password.
pub(super) fn secret_files<'a>(
    gateways: impl Iterator<Item = &'a GatewayEndpoint>,
    password: Option<&String>,
) -> Vec<String> {
    let secrets = |gateway: &'a GatewayEndpoint| {
        let key = gateway.endpoint.option("key").map(str::to_owned);
        [key, gateway.token_file.clone()]
    };
    let mut files: Vec<_> = gateways.flat_map(secrets).flatten().collect();
    files.extend(password.cloned());
    files.sort();
    files.dedup();
    files
}

/// Looks up the names of gateways within a time, for a command that checks a configuration. Returns
/// an error for each name without an address.
pub(super) fn look_up<'a>(
    gateways: impl Iterator<Item = &'a GatewayEndpoint>,
    limit: Duration,
) -> Vec<ConfigError> {
    let (until, mut hosts) = (Instant::now() + limit, BTreeSet::new());
    // Another way to the same host may have an address (`ip=`).
    let begun = gateways.filter_map(|gateway| {
        let addresses = gateway.named()?;
        let is_first = hosts.insert(&gateway.endpoint.host);
        is_first.then(|| (gateway, begin_look_up(addresses)))
    });
    let begun: Vec<_> = begun.collect();
    let failed = begun.into_iter().filter_map(|(gateway, found)| {
        let rest = until.saturating_duration_since(Instant::now());
        let silent = |_| Err("this machine's resolver does not answer".to_owned());
        let problem = found.recv_timeout(rest).unwrap_or_else(silent).err()?;
        Some(ConfigError::Lookup {
            endpoint: gateway.endpoint.to_string(),
            problem,
        })
    });
    failed.collect()
}

/// The properties that all gateways of a client share.
pub(super) struct Dialled<'a> {
    pub(super) via: Option<&'a Via>,
    pub(super) transports: &'a Transports,
    /// The names that may be looked up.
    pub(super) names: &'a Names,
}

impl Dialled<'_> {
    /// Checks the gateways of one route, and the file with their token.
    pub(super) fn gateways(
        &self,
        gateways: Vec<GatewayWays>,
        token_file: Option<&str>,
    ) -> Result<Vec<GatewayEndpoint>, ConfigError> {
        if let Some(file) = token_file {
            read_secret("token-file", file)?;
        }
        let mut all = Vec::new();
        for ways in gateways {
            let used = self.usable(&ways)?;
            for (index, endpoint) in used.into_iter().enumerate() {
                let gateway = self.gateway(endpoint, token_file)?;
                all.push(GatewayEndpoint {
                    is_alternative: index > 0,
                    ..gateway
                });
            }
        }
        Ok(all)
    }

    /// Returns the ways that the client can use. Behind a proxy only those over TCP can be used. If
    /// there is none, all are returned, and the check of each tells the remedy.
    fn usable(&self, ways: &GatewayWays) -> Result<Vec<Endpoint>, ConfigError> {
        let mut used = ways.endpoints().to_vec();
        if self.via.is_some() {
            let mut over_tcp = Vec::new();
            for way in &used {
                if self.transports.to_dial(way)?.protocol() == Protocol::Tcp {
                    over_tcp.push(way.clone());
                }
            }
            if !over_tcp.is_empty() {
                used = over_tcp;
            }
        }
        Ok(used)
    }

    /// Returns a warning for each way that the client leaves out.
    pub(super) fn left_out<'a>(
        &self,
        gateways: impl Iterator<Item = &'a GatewayWays>,
    ) -> Result<Vec<String>, ConfigError> {
        let mut warnings = Vec::new();
        for ways in gateways {
            let used = self.usable(ways)?;
            let unused = ways.endpoints().iter().filter(|way| !used.contains(way));
            warnings.extend(
                unused.map(|way| {
                    format!("{way}: this way is not used, because --via carries only TCP")
                }),
            );
        }
        Ok(warnings)
    }

    /// Checks the routes, and joins their patterns into one map.
    pub(super) fn routes(
        &self,
        options: Vec<RouteOption>,
    ) -> Result<(Vec<Route>, HostMap), ConfigError> {
        let bad = |problem: String| ConfigError::value("route", problem);
        let (mut routes, mut patterns) = (Vec::new(), Vec::new());
        for option in options {
            if option.hosts.is_empty() || option.gateway.is_empty() {
                return Err(bad("a route needs at least one host and one gateway".into()));
            }
            if option.hosts.contains(&HostPattern::Any) {
                return Err(bad(
                    "* is every host: give the gateway of all other hosts by gateway".into(),
                ));
            }
            let index = routes.len();
            patterns.extend(option.hosts.into_iter().map(|pattern| (pattern, index)));
            let gateways = self.gateways(option.gateway, option.token_file.as_deref())?;
            routes.push(Route { gateways });
        }
        let map = HostMap::new(patterns)
            .map_err(|twice| bad(format!("{twice} is given twice: keep one of the two")))?;
        Ok((routes, map))
    }

    fn gateway(
        &self,
        endpoint: Endpoint,
        token_file: Option<&str>,
    ) -> Result<GatewayEndpoint, ConfigError> {
        let bad = |problem: &str| ConfigError::value("gateway", format!("{endpoint}: {problem}"));
        let provider = self.transports.to_dial(&endpoint)?;
        let options = [&["exit", "ip", "own", "resolve"], provider.dial_options()].concat();
        endpoint.options(&options)?;
        provider.check_dial(&endpoint)?;
        if endpoint.session == SessionKind::Socks5
            || endpoint.session == SessionKind::Http && !provider.has_streams()
        {
            return Err(bad(
                "a session over the slow path is h2, spdy3, spdy3.1 or h3, or http over dtls",
            ));
        }
        provider.check_session(&endpoint)?;
        if provider.protocol() == Protocol::Udp && self.via.is_some() {
            return Err(bad(
                "its transport sends datagrams, and --via carries only TCP: use h2+tls, or leave \
                 out --via",
            ));
        }
        let exit = endpoint
            .option("exit")
            .map(Exit::from_str)
            .transpose()
            .map_err(|problem| bad(&problem))?;
        let over_tor = matches!(self.via, Some(Via::TorPort(_) | Via::TorSocket(_)));
        if exit.is_some() && !over_tor {
            return Err(bad("exit= needs --via tor://…, Tor's control port"));
        }
        let at_an_exit = endpoint.ip().is_some_and(|ip| match ip {
            std::net::IpAddr::V4(ip) => ip.octets()[..3] == [192, 0, 2],
            std::net::IpAddr::V6(_) => false,
        });
        if at_an_exit && exit.is_none() && self.via.is_some() {
            return Err(bad(
                "Tor would pick a wrong exit for that address: add ?exit=auto or \
                 ?exit=FINGERPRINT and --via tor://…",
            ));
        }
        let is_own = match endpoint.option("own") {
            None => false,
            Some("yes") => true,
            Some(_) => return Err(bad("own= can only be yes")),
        };
        let addresses = match self.via {
            Some(_) => None,
            None => Some(own_addresses(&endpoint, self.names)?),
        };
        Ok(GatewayEndpoint {
            endpoint,
            addresses,
            exit,
            token_file: token_file.map(str::to_owned),
            is_alternative: false,
            is_datagrams: provider.protocol() == Protocol::Udp,
            is_own,
        })
    }
}

/// Returns the addresses of a gateway for a direct connection. A resolver is asked only if the
/// endpoint says so, and not yet.
fn own_addresses(endpoint: &Endpoint, names: &Names) -> Result<Addresses, ConfigError> {
    let bad = |problem: String| ConfigError::value("gateway", format!("{endpoint}: {problem}"));
    if let Some(ip) = endpoint.option("ip") {
        let ip = ip
            .parse()
            .map_err(|_| bad("ip= is no address, such as 2001:db8::5".into()))?;
        return Ok(Addresses::given(SocketAddr::new(ip, endpoint.port)));
    }
    if let Some(address) = endpoint.socket_addr() {
        return Ok(Addresses::given(address));
    }
    if is_onion(&endpoint.host) {
        // A resolver must not learn the name (RFC 7686 section 2).
        return Err(bad(
            "an onion service is reached through Tor only: add --via".into(),
        ));
    }
    match endpoint.option("resolve") {
        Some("system") => Ok(names.addresses(&endpoint.host, endpoint.port)),
        Some(_) => Err(bad("resolve= can only be system".into())),
        None => Err(bad(
            "the client resolves no names: add ?ip=ADDRESS, or ?resolve=system to \
                         ask this machine's resolver for this one name, or --via"
                .into(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ClientOptions;
    use crate::config::client::tests::options;

    fn problem(options: ClientOptions) -> String {
        options.typed().expect_err("an error").to_string()
    }

    fn routed(routes: &[&str]) -> ClientOptions {
        let routes = routes.iter().map(|text| text.parse().expect("a route"));
        ClientOptions {
            route: routes.collect(),
            ..ClientOptions::default()
        }
    }

    #[test]
    fn client_does_not_resolve_names_by_default() {
        let error = options("h2+tls://gw.example:443", None)
            .typed()
            .unwrap_err()
            .to_string();
        assert!(error.contains("resolves no names"), "{error}");
        let config = options("h2+tls://gw.example:443?ip=203.0.113.5", None)
            .typed()
            .unwrap();
        let addresses = config.gateways[0].addresses.as_ref().unwrap();
        assert_eq!(
            addresses.as_given(),
            Some("203.0.113.5:443".parse().unwrap())
        );
        for endpoint in [
            "h2+tls://gw.example:443",
            "h2+tls://gw.example:443?resolve=system",
        ] {
            let proxied = options(endpoint, Some("socks5://127.0.0.1:9050"));
            assert!(proxied.typed().unwrap().gateways[0].addresses.is_none());
        }
    }

    #[test]
    fn client_refuses_exit_address_without_tor() {
        let error = options("h2+tcp://192.0.2.80:9980", Some("socks5://127.0.0.1:9050"))
            .typed()
            .unwrap_err()
            .to_string();
        assert!(error.contains("exit=auto"), "{error}");
        assert!(
            options(
                "h2+tcp://192.0.2.80:9980?exit=auto",
                Some("socks5://127.0.0.1:9050")
            )
            .typed()
            .is_err()
        );
        assert!(
            options(
                "h2+tcp://192.0.2.80:9980?exit=auto",
                Some("tor://127.0.0.1:9051")
            )
            .typed()
            .is_ok()
        );
    }

    #[test]
    fn route_flag_reads_hosts_and_gateway() {
        let text = "a.onion,*.b.onion=h2+tls://gw.example:443?ip=203.0.113.5";
        let route: RouteOption = text.parse().expect("a route");
        assert_eq!(route.hosts.len(), 2);
        assert_eq!(route.to_string(), text);
        for (text, part) in [
            ("a.onion", "HOSTS=URL"),
            ("=h2+tcp://127.0.0.1:1", "no host name"),
            ("a.onion:80=h2+tcp://127.0.0.1:1", "no host name"),
            (
                "a.onion=http://127.0.0.1:1",
                "no session that can be used here",
            ),
        ] {
            let error = text.parse::<RouteOption>().expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn routes_need_no_default_gateway() {
        let config = routed(&[
            "a.onion=h2+tcp://127.0.0.1:1",
            "*.onion=h2+tcp://127.0.0.1:2",
        ])
        .typed()
        .expect("a configuration");
        assert_eq!((config.gateways.len(), config.routes.len()), (0, 2));
        let found = |host| config.route_map.find(host).map(|(_, index)| index);
        assert_eq!(found("a.onion"), Some(0));
        assert_eq!(found("b.onion"), Some(1));
        assert_eq!(found("onion"), None);
    }

    #[test]
    fn route_errors_name_the_remedy() {
        let twice = [
            "a.onion=h2+tcp://127.0.0.1:1",
            "A.onion=h2+tcp://127.0.0.1:2",
        ];
        assert!(problem(routed(&twice)).contains("a.onion is given twice"));
        assert!(problem(routed(&["*=h2+tcp://127.0.0.1:1"])).contains("by gateway"));
        let named = problem(routed(&["a.onion=h2+tls://gw.example:443"]));
        assert!(named.contains("resolves no names"), "{named}");
        let mut with_token = routed(&["a.onion=h2+tcp://127.0.0.1:1"]);
        with_token.token_file = Some("token".into());
        assert!(problem(with_token).contains("name the file in the [[route]]"));
    }

    #[test]
    fn client_looks_up_no_onion_name() {
        let error = problem(options("h2+tcp://a.onion:9980?resolve=system", None));
        assert!(error.contains("through Tor only"), "{error}");
    }

    #[test]
    fn only_a_check_looks_up_a_name() {
        let options = options("h2+tls://gw.invalid:443?resolve=system", None);
        let config = options.typed().expect("a configuration");
        let addresses = config.gateways[0].addresses.as_ref().expect("a name");
        assert!(addresses.known().is_empty() && addresses.as_given().is_none());
        let errors = config.look_up_names(Duration::from_secs(60));
        assert!(
            matches!(errors[..], [ConfigError::Lookup { .. }]),
            "{errors:?}"
        );
    }

    #[test]
    fn check_names_each_host_without_an_address_in_time() {
        let config = routed(&[
            "a.onion=h2+tls://good.example:443?resolve=system",
            "b.onion=h2+tls://silent.example:443?resolve=system",
            "c.onion=h2+tls://none.example:442?ip=192.0.2.1",
            "d.onion=h2+tls://none.example:443?resolve=system",
            "e.onion=h2+tls://none.example:444?resolve=system",
        ]);
        let config = config.typed().expect("a configuration");
        let (end, ended) = mpsc::channel::<()>();
        let ended = std::sync::Mutex::new(ended);
        let names = Names::new(move |host| match host {
            "good.example" => Ok(vec![([192, 0, 2, 1], 0).into()]),
            // It ends with the test.
            "silent.example" => {
                let _ = ended.lock().expect("no panic").recv();
                Ok(Vec::new())
            }
            _ => Err(std::io::Error::other("no such name")),
        });
        let mut gateways: Vec<_> = config.all_gateways().cloned().collect();
        for gateway in &mut gateways {
            let endpoint = &gateway.endpoint;
            if endpoint.option("resolve").is_some() {
                gateway.addresses = Some(names.addresses(&endpoint.host, endpoint.port));
            }
        }
        let errors = look_up(gateways.iter(), Duration::from_millis(300));
        let shown: Vec<_> = errors.iter().map(ToString::to_string).collect();
        let expected = [
            "h2+tls://silent.example:443?resolve=system: this machine's resolver does not answer",
            "h2+tls://none.example:443?resolve=system: no such name",
        ];
        assert_eq!(shown.len(), 2, "{shown:?}");
        for (shown, expected) in shown.iter().zip(expected) {
            assert!(shown.starts_with(expected), "{shown}");
        }
        drop(end);
    }

    #[test]
    fn ways_to_a_name_share_its_look_ups() {
        let ways = "h2+tls://gw.example:443?resolve=system";
        let config = routed(&[
            &format!("a.onion={ways}"),
            "b.onion=h2+tls://gw.example:444?resolve=system",
        ]);
        let config = config.typed().expect("a configuration");
        let shown = |gateway: &GatewayEndpoint| format!("{:?}", gateway.addresses);
        let all: Vec<_> = config.all_gateways().map(shown).collect();
        assert!(all[0].contains("gw.example, 443"), "{all:?}");
        assert!(all[1].contains("gw.example, 444"), "{all:?}");
    }

    #[test]
    fn address_of_a_name_is_never_taken_for_a_near_one() {
        let options = options("h2+tcp://gw.example:9980?ip=127.0.0.1", None);
        let mut gateway = options.typed().expect("a configuration").gateways.remove(0);
        assert!(gateway.is_at(|ip| ip.is_loopback()));
        let names = Names::new(|_| Ok(vec![([127, 0, 0, 1], 0).into()]));
        let named = names.addresses("gw.example", 9980);
        named.look_up_now().expect("an address");
        assert_eq!(named.known(), [([127, 0, 0, 1], 9980).into()]);
        gateway.addresses = Some(named);
        assert!(!gateway.is_at(|ip| ip.is_loopback()));
    }
}

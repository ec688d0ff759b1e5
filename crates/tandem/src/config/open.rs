//! The hosts whose HTTPS the client opens, by the user's consent.
//!
//! Two levels are named apart. At the level `local`, this program fetches the resources through the
//! tunnel. At the level `gateway`, a gateway of the user's own does, and reads them.
//!
//! A list is refused if it covers the hosts of strangers, or if sites could notice the opening at a
//! Tor exit: there the TLS of this program would distinguish its user from users of Tor Browser.

use std::net::IpAddr;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::client::{Fallback, Solo, SoloMode};
use super::gateways::GatewayEndpoint;
use super::{ClientOptions, ConfigError};
use crate::endpoint::Via;
use crate::hosts::HostPattern;
use crate::transport::tls::authority::{Authority, certificate_file};
use tandem_push::wire::MAX_OPENED_LIST;

/// The command that issues an authority for the list.
const REMEDY: &str = "run `tandem trust -c FILE` with the client's file, or `tandem trust \
                      --open-https HOST` for each host";

/// The port of HTTPS.
const HTTPS: u16 = 443;

/// The party that fetches the resources of an opened host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenLevel {
    /// This program. The gateway sees encrypted bytes.
    Local,
    /// The gateway, which reads them.
    Gateway,
}

/// The requests that this program makes before the browser does, at the level `local`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum EarlyRequests {
    /// No early requests
    #[default]
    Off,
    /// Requests that the browser made for the last visit to the page, over the same connection to
    /// this program
    Connection,
    /// Requests for resources that pages name, and for those of the last visit. Browsers without
    /// isolation keys share all knowledge and responses: use it with one profile, and without
    /// private windows
    Shared,
}

/// The hosts whose HTTPS is opened.
#[derive(Clone, Debug)]
pub struct OpenedHttps {
    /// The patterns of the hosts at the level `local`.
    pub hosts: Vec<HostPattern>,
    /// The patterns of the hosts at the level `gateway`.
    pub at_gateway: Vec<HostPattern>,
    /// The ports, with 443.
    pub ports: Vec<u16>,
    /// The PEM file of the authorities to trust instead of the public ones.
    pub ca: Option<String>,
    /// The early requests for resources of hosts at the level `local`.
    pub early: EarlyRequests,
}

impl OpenedHttps {
    /// Returns the level at which HTTPS of a host, which is in lower case, is opened at a port. The
    /// most specific pattern decides, and `local` between equal ones.
    pub fn level(&self, host: &str, port: u16) -> Option<OpenLevel> {
        // A host with the dot of the root is another name in a certificate.
        if host.ends_with('.') || !self.ports.contains(&port) {
            return None;
        }
        let best = |patterns: &[HostPattern]| {
            let covering = patterns.iter().filter(|pattern| pattern.covers(host));
            covering.map(specificity).max()
        };
        match (best(&self.hosts), best(&self.at_gateway)) {
            (None, None) => None,
            (local, gateway) if local >= gateway => Some(OpenLevel::Local),
            _ => Some(OpenLevel::Gateway),
        }
    }

    /// Returns the patterns of all levels.
    pub fn all_hosts(&self) -> Vec<HostPattern> {
        [&self.hosts[..], &self.at_gateway[..]].concat()
    }

    /// Returns the hosts of the level `gateway` that the list names, with each port.
    pub fn named_at_gateway(&self) -> Vec<(&str, u16)> {
        let names = self.at_gateway.iter().filter_map(|pattern| match pattern {
            HostPattern::Name(name) => Some(name.as_str()),
            HostPattern::Any | HostPattern::Below(_) => None,
        });
        let origins = names.flat_map(|name| self.ports.iter().map(move |&port| (name, port)));
        let is_fetched =
            |&(name, port): &(&str, u16)| self.level(name, port) == Some(OpenLevel::Gateway);
        origins.filter(is_fetched).collect()
    }

    /// Returns the list of the level `gateway` in the form that requests carry: the patterns, the
    /// exceptions of the other level after `!`, and the ports after `:`.
    pub fn list(&self) -> String {
        self.list_of(&self.at_gateway, &self.hosts)
    }

    /// Returns the list of the level `local` in the same form.
    pub fn local_list(&self) -> String {
        self.list_of(&self.hosts, &self.at_gateway)
    }

    /// Returns the list of the patterns of one level. `others` are those of the other level.
    fn list_of(&self, patterns: &[HostPattern], others: &[HostPattern]) -> String {
        let is_exception = |other: &&HostPattern| {
            let within = |pattern: &HostPattern| match other {
                HostPattern::Name(name) | HostPattern::Below(name) => pattern.covers(name),
                HostPattern::Any => false,
            };
            patterns.iter().any(within)
        };
        let listed = patterns.iter().map(ToString::to_string);
        let exceptions = others.iter().filter(is_exception);
        let exceptions = exceptions.map(|pattern| format!("!{pattern}"));
        let ports = self.ports.iter().map(|port| format!(":{port}"));
        let tokens: Vec<_> = listed.chain(exceptions).chain(ports).collect();
        tokens.join(" ")
    }

    /// Refuses ways on which a site at a Tor exit, or its operator, could notice the opening.
    pub(super) fn check_ways<'a>(
        &self,
        via: Option<&Via>,
        mut gateways: impl Iterator<Item = &'a GatewayEndpoint>,
        solo: Option<&Solo>,
        fallback: Fallback,
    ) -> Result<(), ConfigError> {
        let problem = if gateways.any(|gateway| gateway.exit.is_some()) {
            "is refused with a gateway at a Tor exit (exit=): sites there could distinguish you \
             from other users of Tor"
        } else if matches!(via, Some(Via::Socks(_)) | None) {
            match (via, solo, fallback) {
                (Some(_), Some(solo), _) if solo.mode == SoloMode::Via => {
                    "is refused with --solo through --via: give the hosts a gateway of your own, \
                     and leave out --solo"
                }
                (Some(_), _, Fallback::Via) => {
                    "is refused with --fallback via: without the gateway, sites could distinguish \
                     you from other users of the proxy"
                }
                _ => return Ok(()),
            }
        } else {
            "is refused with Tor's control port as --via: use Tor Browser without opening, or \
             reach a gateway of your own through --via socks5://"
        };
        Err(ConfigError::value("open-https", problem))
    }

    /// Checks that the authority in `directory` covers the hosts. One that has expired is no error:
    /// the client then opens nothing, and warns.
    pub(super) fn check_authority(&self, directory: &Path) -> Result<(), ConfigError> {
        let bad = |problem: String| Err(ConfigError::value("open-https", problem));
        let at = directory.display();
        if !certificate_file(directory).exists() {
            return bad(format!(
                "needs the local authority, and {at} has none: {REMEDY}"
            ));
        }
        let authority = Authority::load(directory)?;
        let names = constraints(&self.all_hosts());
        match names.iter().find(|name| !authority.covers(name)) {
            Some(name) => bad(format!(
                "the local authority in {at} does not cover {name}: {REMEDY}"
            )),
            None => Ok(()),
        }
    }
}

impl ClientOptions {
    /// Returns whether a list names a host to open.
    fn lists_opened(&self) -> bool {
        !(self.open_https.is_empty() && self.open_https_at_gateway.is_empty())
    }

    /// Returns a warning about an option of opened HTTPS that has no effect, since no host is
    /// listed. This is no error: a user empties the lists to stop.
    pub(super) fn unused_open_option(&self) -> Option<String> {
        let key = if self.lists_opened() {
            return None;
        } else if self.open_https_ca.is_some() {
            "open-https-ca"
        } else if !self.open_https_port.is_empty() {
            "open-https-port"
        } else if self.open_https_early.is_some() {
            "open-https-early"
        } else {
            return None;
        };
        Some(format!(
            "{key} has no effect: no host is listed, so that no HTTPS is opened"
        ))
    }

    /// Checks the list of opened hosts. Returns `None` if it is empty.
    pub(super) fn opened(&self) -> Result<Option<OpenedHttps>, ConfigError> {
        if !self.lists_opened() {
            return Ok(None);
        }
        check_hosts(&self.open_https)?;
        check_hosts(&self.open_https_at_gateway)?;
        self.check_levels()?;
        let mut ports = vec![HTTPS];
        ports.extend(&self.open_https_port);
        if ports.contains(&0) || ports.contains(&80) {
            let problem = "HTTPS has another port than 0 and 80";
            return Err(ConfigError::value("open-https-port", problem));
        }
        let open = OpenedHttps {
            hosts: self.open_https.clone(),
            at_gateway: self.open_https_at_gateway.clone(),
            ports,
            ca: self.open_https_ca.clone(),
            early: self.open_https_early.unwrap_or_default(),
        };
        if !open.at_gateway.is_empty() && open.list().len() > MAX_OPENED_LIST {
            let problem = format!(
                "the list with its exceptions and ports is longer than {MAX_OPENED_LIST} bytes: \
                 use *.SUFFIX for hosts of one site"
            );
            return Err(ConfigError::value("open-https-at-gateway", problem));
        }
        Ok(Some(open))
    }

    /// Refuses lists that contradict each other.
    fn check_levels(&self) -> Result<(), ConfigError> {
        let bad = |problem: String| Err(ConfigError::value("open-https-at-gateway", problem));
        let at_gateway = &self.open_https_at_gateway;
        if let Some(twice) = at_gateway.iter().find(|it| self.open_https.contains(it)) {
            return bad(format!(
                "{twice} is listed at both levels: keep it in open-https if the gateway must not \
                 read it"
            ));
        }
        if self.open_https.is_empty() && self.open_https_ca.is_some() {
            let problem = "concerns hosts of open-https only: the gateway verifies the others, by \
                           its --origin-ca";
            return Err(ConfigError::value("open-https-ca", problem));
        }
        Ok(())
    }
}

/// Returns the place of a pattern in the order from general to specific.
const fn specificity(pattern: &HostPattern) -> (u8, usize) {
    match pattern {
        HostPattern::Any => (0, 0),
        HostPattern::Below(suffix) => (1, suffix.len()),
        HostPattern::Name(_) => (2, 0),
    }
}

/// Refuses patterns that no certificate can name, or that cover the hosts of strangers.
///
/// # Errors
/// Names the pattern and the remedy.
pub fn check_hosts(hosts: &[HostPattern]) -> Result<(), ConfigError> {
    for pattern in hosts {
        let problem = match pattern {
            HostPattern::Any => "is every host: name each host to open",
            HostPattern::Name(name) | HostPattern::Below(name) => {
                if name.parse::<IpAddr>().is_ok() {
                    "is an address, which no TLS client names: give the name of the host"
                } else if is_public_suffix(name) {
                    "covers the sites of strangers: name each host to open"
                } else if !is_dns_name(name) {
                    "cannot stand in a certificate: name each host to open"
                } else {
                    continue;
                }
            }
        };
        let problem = format!("{pattern} {problem}");
        return Err(ConfigError::value("open-https", problem));
    }
    Ok(())
}

/// Returns whether anyone can register a name below `name`, by the Public Suffix List.
fn is_public_suffix(name: &str) -> bool {
    name != "localhost" && psl::suffix_str(name) == Some(name)
}

/// Returns whether `name` consists of labels as host names have them (RFC 1123 section 2.1).
fn is_dns_name(name: &str) -> bool {
    name.len() <= 253
        && name.split('.').all(|label| {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            (1..=63).contains(&label.len()) && label.bytes().all(is_plain)
        })
}

/// Returns the names to which an authority for these hosts is constrained, sorted. A name includes
/// the names below it.
pub fn constraints(hosts: &[HostPattern]) -> Vec<String> {
    let mut names: Vec<_> = hosts
        .iter()
        .filter_map(|pattern| match pattern {
            HostPattern::Any => None,
            HostPattern::Name(name) | HostPattern::Below(name) => Some(name.clone()),
        })
        .filter(|name| name != "localhost")
        .collect();
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use tandem_push::wire::OpenedList;

    use super::*;
    use crate::transport::tls::authority::create;

    fn patterns(hosts: &[&str]) -> Vec<HostPattern> {
        let parse = |text: &&str| text.parse().expect("a pattern");
        hosts.iter().map(parse).collect()
    }

    fn options(hosts: &[&str], gateway: &str) -> ClientOptions {
        ClientOptions {
            open_https: patterns(hosts),
            gateway: vec![gateway.parse().expect("an endpoint")],
            authority: Some("/nonexistent".into()),
            ..ClientOptions::default()
        }
    }

    fn problem(options: ClientOptions) -> String {
        options.typed().expect_err("a refusal").to_string()
    }

    const OWN: &str = "h2+tls://gw.example:443?ip=203.0.113.5";

    #[test]
    fn list_refuses_hosts_of_strangers() {
        for (host, part) in [
            ("*", "name each host"),
            ("*.test", "strangers"),
            ("com", "strangers"),
            ("*.co.uk", "strangers"),
            ("192.0.2.1", "an address"),
            ("[2001:db8::1]", "an address"),
            ("a%b.example.com", "cannot stand"),
        ] {
            let problem = problem(options(&[host], OWN));
            assert!(problem.starts_with("open-https: "), "{problem}");
            assert!(problem.contains(part), "{host}: {problem}");
        }
        for host in ["localhost", "a.test", "*.example.co.uk", "abc.onion"] {
            assert!(check_hosts(&patterns(&[host])).is_ok(), "{host}");
        }
    }

    #[test]
    fn list_is_refused_at_tor_exits() {
        let own = || options(&["www.example.com"], OWN);
        let tor = Some("socks5://127.0.0.1:9050".parse().expect("a proxy"));
        let control: Option<Via> = Some("tor://127.0.0.1:9051".parse().expect("a port"));
        let at_exit = ClientOptions {
            via: control.clone(),
            ..options(&["www.example.com"], "h2+tcp://192.0.2.80:9980?exit=auto")
        };
        assert!(problem(at_exit).contains("a gateway at a Tor exit"));
        let over_control = ClientOptions {
            via: control,
            ..own()
        };
        assert!(problem(over_control).contains("Tor's control port"));
        let falling_back = ClientOptions {
            via: tor.clone(),
            fallback: Some(Fallback::Via),
            ..own()
        };
        assert!(problem(falling_back).contains("--fallback via"));
        let solo = ClientOptions {
            via: tor.clone(),
            solo: Some(SoloMode::Via),
            gateway: Vec::new(),
            ..own()
        };
        assert!(problem(solo).contains("--solo"));
        // A gateway of the user's own may be reached through Tor. The authority comes next.
        let permitted = ClientOptions { via: tor, ..own() };
        assert!(problem(permitted).contains("tandem trust -c FILE"));
    }

    #[test]
    fn list_needs_an_authority_that_covers_it() {
        let name = format!("tandem-open-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let now = SystemTime::now();
        create(&directory, &["a.test".to_owned()], now).expect("an authority");
        let with = |hosts: &[&str]| ClientOptions {
            authority: Some(directory.clone()),
            ..options(hosts, OWN)
        };
        let config = with(&["*.a.test", "a.test"])
            .typed()
            .expect("it is covered");
        let open = config.open.expect("a list");
        let local = Some(OpenLevel::Local);
        assert_eq!(open.level("a.test", 443), local);
        assert_eq!(open.level("www.a.test", 443), local);
        for (host, port) in [("a.test", 8443), ("b.test", 443), ("a.test.", 443)] {
            assert_eq!(open.level(host, port), None, "{host}:{port}");
        }
        let problem = problem(with(&["a.test", "b.test"]));
        assert!(problem.contains("does not cover b.test"), "{problem}");
        std::fs::remove_dir_all(&directory).expect("removed");
    }

    #[test]
    fn expired_authority_is_a_warning() {
        let name = format!("tandem-open-expired-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let begun = SystemTime::now() - Duration::from_secs(91 * 86_400);
        create(&directory, &["a.test".to_owned()], begun).expect("an authority");
        let expired = ClientOptions {
            authority: Some(directory.clone()),
            ..options(&["a.test"], OWN)
        };
        let warnings = expired.typed().expect("a client that starts").warnings();
        let tells = |it: &&String| it.contains("expired on") && it.contains("opens no HTTPS");
        assert_eq!(warnings.iter().filter(tells).count(), 1, "{warnings:?}");
        std::fs::remove_dir_all(&directory).expect("removed");
    }

    #[test]
    fn options_without_a_host_are_a_warning() {
        let port = ClientOptions {
            open_https_port: vec![8443],
            open_https_early: Some(EarlyRequests::Shared),
            ..options(&[], OWN)
        };
        let config = port.typed().expect("a client that opens nothing");
        assert!(config.open.is_none());
        let warnings = config.warnings();
        let is_told = |it: &String| it.starts_with("open-https-port has no effect");
        assert!(warnings.iter().any(is_told), "{warnings:?}");
        let plain = ClientOptions {
            open_https_port: vec![80],
            ..options(&["a.test"], OWN)
        };
        assert!(problem(plain).contains("another port"));
    }

    #[test]
    fn most_specific_pattern_has_the_level() {
        let open = OpenedHttps {
            hosts: patterns(&["*.a.test", "x.b.test"]),
            at_gateway: patterns(&["www.a.test", "*.b.test", "*.c.a.test"]),
            ports: vec![443, 8443],
            ca: None,
            early: EarlyRequests::Off,
        };
        for (host, level) in [
            ("www.a.test", OpenLevel::Gateway),
            ("mail.a.test", OpenLevel::Local),
            ("x.c.a.test", OpenLevel::Gateway),
            ("x.b.test", OpenLevel::Local),
            ("y.b.test", OpenLevel::Gateway),
        ] {
            assert_eq!(open.level(host, 443), Some(level), "{host}");
        }
        let named = [("www.a.test", 443), ("www.a.test", 8443)];
        assert_eq!(open.named_at_gateway(), named);
        assert_eq!(
            open.list(),
            "www.a.test *.b.test *.c.a.test !x.b.test :443 :8443"
        );
        let list = OpenedList::parse(open.list().as_bytes());
        for host in [
            "www.a.test",
            "mail.a.test",
            "x.c.a.test",
            "x.b.test",
            "y.b.test",
            "z.test",
        ] {
            for port in [443, 8443, 9443] {
                let is_covered = open.level(host, port) == Some(OpenLevel::Gateway);
                assert_eq!(list.covers(&format!("{host}:{port}")), is_covered, "{host}");
            }
        }
    }

    #[test]
    fn host_has_one_level() {
        let both = ClientOptions {
            open_https_at_gateway: patterns(&["a.test"]),
            ..options(&["a.test"], OWN)
        };
        assert!(problem(both).contains("both levels"));
        let unused = ClientOptions {
            open_https_at_gateway: patterns(&["a.test"]),
            open_https_ca: Some("root.pem".into()),
            ..options(&[], OWN)
        };
        assert!(problem(unused).contains("--origin-ca"));
    }

    #[test]
    fn constraints_are_sorted_and_distinct() {
        let hosts = patterns(&["*.b.test", "b.test", "a.test", "localhost"]);
        assert_eq!(constraints(&hosts), ["a.test", "b.test"]);
    }
}

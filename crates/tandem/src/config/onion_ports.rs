//! The ports that a gateway announces to visitors of an onion service, beside those that `torrc`
//! leads to it (`HiddenServicePort` of tor's manual).
//!
//! An announcement names the port of a listener. Visitors reach it only if the onion service has
//! the same port, which only the configuration of tor tells.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use tandem_http::Scheme;

use super::{ConfigError, GatewayConfig};
use crate::announcement::{Announcement, Site};
use crate::back::origin::Mode;
use crate::endpoint::{Endpoint, is_onion};
use crate::hosts::HostPattern;

/// A port of an onion service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnionPort {
    /// The port that visitors use.
    pub port: u16,
    /// The address that tor connects to.
    pub target: OnionTarget,
}

/// The target of an onion service's port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnionTarget {
    /// An address.
    Address(SocketAddr),
    /// A Unix socket, a host name, or a text that is no target.
    Other(String),
}

impl OnionTarget {
    /// Returns whether tor reaches a listener by this target.
    fn reaches(&self, listener: &Endpoint) -> bool {
        let Self::Address(target) = self else {
            return false;
        };
        let is_own = |ip: IpAddr| ip == target.ip() || ip.is_unspecified();
        target.port() == listener.port && listener.ip().is_some_and(is_own)
    }
}

/// Returns the ports of all onion services in the text of a `torrc`. Lines with other options and
/// lines without a valid port are left out. Files that the text includes are not read.
pub fn onion_ports(torrc: &str) -> Vec<OnionPort> {
    let whole = torrc.replace("\\\r\n", " ").replace("\\\n", " ");
    whole.lines().filter_map(onion_port).collect()
}

/// Returns true if the text of a `torrc` includes other files.
fn includes(torrc: &str) -> bool {
    let option = |line: &str| line.split_whitespace().next().map(str::to_ascii_lowercase);
    let mut options = torrc.lines().filter_map(option);
    options.any(|option| option == "%include")
}

fn onion_port(line: &str) -> Option<OnionPort> {
    let line = line.split('#').next().unwrap_or_default().trim();
    let (option, value) = line.split_once(char::is_whitespace)?;
    let option = option.strip_prefix('+').unwrap_or(option);
    if !option.eq_ignore_ascii_case("HiddenServicePort") {
        return None;
    }
    let value = value.replace('"', " ");
    let mut words = value.split_whitespace();
    let port = words.next()?.parse().ok().filter(|port| *port != 0)?;
    let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let target = words.next().map(|target| {
        let target = target.replace("localhost", "127.0.0.1");
        let of_port = target.parse().ok().map(local);
        let address = of_port.or_else(|| target.parse().ok());
        let of_ip = || target.parse().ok().map(|ip| SocketAddr::new(ip, port));
        match address.or_else(of_ip) {
            Some(address) => OnionTarget::Address(address),
            None => OnionTarget::Other(target),
        }
    });
    let target = target.unwrap_or_else(|| OnionTarget::Address(local(port)));
    Some(OnionPort { port, target })
}

/// Returns the line of `torrc` that an announced listener needs.
pub fn torrc_line(listener: &Endpoint) -> String {
    let mut local = listener.clone();
    // Tor needs an address to connect to.
    match local.host.parse() {
        Ok(IpAddr::V4(Ipv4Addr::UNSPECIFIED)) => local.host = "127.0.0.1".into(),
        Ok(IpAddr::V6(Ipv6Addr::UNSPECIFIED)) => local.host = "::1".into(),
        _ => {}
    }
    format!("HiddenServicePort {} {}", local.port, local.authority())
}

/// Returns the problem of an announced listener, if no port of an onion service leads to it.
fn problem(listener: &Endpoint, ports: &[OnionPort]) -> Option<String> {
    let same = |port: &&OnionPort| port.port == listener.port;
    let leads = |port: &&OnionPort| port.target.reaches(listener);
    if ports.iter().any(|port| same(&port) && leads(&port)) {
        return None;
    }
    let announced = listener.port;
    Some(match (ports.iter().find(leads), ports.iter().find(same)) {
        (Some(other), _) => format!(
            "it leads port {} to this listener, and the announcement names port {announced}",
            other.port
        ),
        (None, Some(_)) => format!("it leads port {announced} to another address"),
        (None, None) => format!("it has no port {announced}"),
    })
}

impl GatewayConfig {
    /// Returns the listeners that the gateway announces to visitors of an onion service.
    pub fn announced_listeners(&self) -> Vec<&Endpoint> {
        let site = Site {
            scheme: Scheme::Http,
            host: "site.onion".into(),
            port: Scheme::Http.default_port(),
        };
        let is_announced = |listener: &&Endpoint| {
            Announcement::of_listeners(&site, std::slice::from_ref(*listener)).is_some()
        };
        let of_onions = |pattern: &HostPattern| match pattern {
            HostPattern::Any => true,
            HostPattern::Name(host) | HostPattern::Below(host) => is_onion(host),
        };
        if !self.announce || !self.served().iter().any(of_onions) {
            return Vec::new();
        }
        self.near.listen.iter().filter(is_announced).collect()
    }

    fn served(&self) -> &[HostPattern] {
        match &self.mode {
            Mode::Reverse { hosts, .. } => hosts,
            _ => &[],
        }
    }

    /// Returns a warning for each announced port that visitors of the onion service cannot use.
    pub(super) fn unreachable_announcements(&self) -> Vec<String> {
        let announced = self.announced_listeners();
        let mut warnings = Vec::new();
        let is_named = |pattern: &&HostPattern| match pattern {
            HostPattern::Name(host) => is_onion(host),
            _ => false,
        };
        if let Some(HostPattern::Name(host)) = self.served().iter().find(is_named)
            && self.announce
            && announced.is_empty()
        {
            warnings.push(format!(
                "visitors of {host} learn of no gateway, since no listener is a session over tcp: \
                 add --listen h2+tcp://127.0.0.1:9980, or --announce=false"
            ));
        }
        let Some(file) = &self.torrc else {
            return warnings;
        };
        let text = match std::fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) => {
                let file = file.display();
                warnings.push(format!(
                    "{file}: cannot be read, so that the announced ports are not checked: {error}"
                ));
                return warnings;
            }
        };
        let ports = onion_ports(&text);
        let unread = match includes(&text) {
            true => ", and the files that it includes are not read",
            false => "",
        };
        // The system chooses a port 0 later.
        let known = announced.iter().filter(|listener| listener.port != 0);
        warnings.extend(known.filter_map(|listener| {
            let problem = problem(listener, &ports)?;
            let (file, line) = (file.display(), torrc_line(listener));
            Some(format!(
                "{listener}: visitors of the onion service cannot reach the announced gateway: \
                 {file}: {problem}{unread}: write {line}"
            ))
        }));
        warnings
    }
}

/// Returns the file to check, if the gateway announces itself.
pub(super) fn checked_file(
    file: Option<std::path::PathBuf>,
    announces: bool,
) -> Result<Option<std::path::PathBuf>, ConfigError> {
    let named = |file: &Path| format!("{}: is read for --announce only", file.display());
    match file {
        Some(file) if !announces => Err(ConfigError::value("torrc", named(&file))),
        file => Ok(file),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::GatewayOptions;

    fn address(text: &str) -> OnionTarget {
        OnionTarget::Address(text.parse().expect("an address"))
    }

    #[test]
    fn onion_ports_have_all_forms_of_targets() {
        let text = "# HiddenServicePort 1\n\
                    HiddenServiceDir /var/lib/tor/site\n\
                    HiddenServicePort 80 127.0.0.1:8080 # web\n\
                    hiddenserviceport 81\n\
                    +HiddenServicePort 82 8082\n\
                    HiddenServicePort \"83 127.0.0.2\"\n\
                    HiddenServicePort 84 \\\n\
                    \x20 [::1]:84\n\
                    HiddenServicePort 85 unix:/run/site\n\
                    HiddenServicePort 86 localhost:86\n\
                    HiddenServicePort 0 80\n\
                    HiddenServicePort x\n\
                    HiddenServicePortx 80\n\
                    HiddenServicePort";
        let expected = [
            (80, address("127.0.0.1:8080")),
            (81, address("127.0.0.1:81")),
            (82, address("127.0.0.1:8082")),
            (83, address("127.0.0.2:83")),
            (84, address("[::1]:84")),
            (85, OnionTarget::Other("unix:/run/site".into())),
            (86, address("127.0.0.1:86")),
        ];
        let expected = expected.map(|(port, target)| OnionPort { port, target });
        assert_eq!(onion_ports(text), expected);
    }

    /// Returns the warnings of a gateway of `a.onion` with these listeners and lines.
    fn warnings(listen: &[&str], torrc: &str) -> Vec<String> {
        static FILES: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let number = FILES.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("tandem-torrc-{}-{number}", std::process::id());
        let file = std::env::temp_dir().join(name);
        std::fs::write(&file, torrc).expect("scratch space");
        let listeners = listen.iter().map(|it| it.parse().expect("an endpoint"));
        let options = GatewayOptions {
            listen: listeners.collect(),
            mode: Some("reverse=http://127.0.0.1:80".parse().expect("a mode")),
            open: Some(true),
            allow_host: vec!["a.onion".parse().expect("a pattern")],
            torrc: Some(file.clone()),
            ..GatewayOptions::default()
        };
        let warnings = options
            .typed()
            .expect("a gateway")
            .unreachable_announcements();
        std::fs::remove_file(&file).expect("ours");
        warnings
    }

    #[test]
    fn announced_port_needs_a_port_of_the_service() {
        let all = "h2+tcp://0.0.0.0:9980";
        for (listener, line, expected) in [
            ("h2+tcp://127.0.0.1:9980", "9980 127.0.0.1:9980", None),
            ("h2+tcp://127.0.0.1:9980", "9980", None),
            (all, "9980 10.0.0.1:9980", None),
            (
                "h2+tcp://127.0.0.1:9980",
                "80",
                Some("it has no port 9980: write"),
            ),
            (all, "80 127.0.0.1:9980", Some("port 80 to this listener")),
            (all, "9980 8080", Some("to another address: write")),
            (
                "h2+tcp://127.0.0.2:9980",
                "9980",
                Some("to another address"),
            ),
            (
                "h2+tls://127.0.0.1:9980?cert=a&key=b",
                "80",
                Some("learn of no gateway"),
            ),
        ] {
            let found = warnings(&[listener], &format!("HiddenServicePort {line}\n"));
            match expected {
                None => assert_eq!(found, [""; 0], "{listener} {line}"),
                Some(text) => {
                    assert_eq!(found.len(), 1, "{found:?}");
                    assert!(found[0].contains(text), "{found:?}");
                }
            }
        }
        let line = ": it has no port 9980: write HiddenServicePort 9980 127.0.0.1:9980";
        assert!(warnings(&[all], "# %include\n")[0].ends_with(line));
        let included = warnings(&[all], "%include /etc/torrc.d/*.conf\n");
        assert!(included[0].contains("no port 9980, and the files that it includes are not read"));
    }

    #[test]
    fn missing_torrc_is_told() {
        let options = GatewayOptions {
            listen: vec!["h2+tcp://127.0.0.1:9980".parse().expect("an endpoint")],
            mode: Some("reverse=http://127.0.0.1:80".parse().expect("a mode")),
            open: Some(true),
            torrc: Some("/nonexistent/torrc".into()),
            ..GatewayOptions::default()
        };
        let found = options.clone().typed().expect("a gateway").warnings();
        assert!(
            found[0].contains("/nonexistent/torrc: cannot be read"),
            "{found:?}"
        );
        let silent = GatewayOptions {
            announce: Some(false),
            ..options
        };
        let error = silent.typed().expect_err("it reads nothing").to_string();
        assert!(error.contains("--announce only"), "{error}");
    }

    proptest! {
        #[test]
        fn onion_ports_reads_any_text(
            text in prop_oneof![
                "\\PC{0,200}",
                "([+]?HiddenServicePort[ \"#\\\\\n0-9.:\\[\\]]{0,20}){0,9}",
            ],
        ) {
            for port in onion_ports(&text) {
                prop_assert_ne!(port.port, 0);
            }
        }
    }
}

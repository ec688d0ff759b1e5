//! The gateways that may fetch HTTPS of opened hosts: those that belong to the user, authenticate
//! the client, and are reached in secret.

use super::ConfigError;
use super::destinations::are_at_onion;
use super::gateways::{GatewayEndpoint, Route};
use super::open::OpenedHttps;
use crate::endpoint::{Via, is_onion};
use crate::hosts::{HostMap, HostPattern};

impl GatewayEndpoint {
    /// Returns whether the gateway may read HTTPS of hosts that the user lists for it.
    pub fn is_entrusted(&self) -> bool {
        self.is_own && self.exit.is_none() && self.has_credential()
    }

    /// Returns whether the client shows a token or a certificate.
    fn has_credential(&self) -> bool {
        self.token_file.is_some() || self.endpoint.option("cert").is_some()
    }
}

impl OpenedHttps {
    /// Checks the gateways to which the hosts of the level `gateway` are routed.
    pub(super) fn check_gateways(
        &self,
        via: Option<&Via>,
        default: &[GatewayEndpoint],
        routes: &[Route],
        map: &HostMap,
    ) -> Result<(), ConfigError> {
        for pattern in &self.at_gateway {
            for number in routes_of(pattern, map) {
                let route = number.and_then(|number| routes.get(number));
                if route.is_none() && via.is_some() {
                    check_onion(pattern, default)?;
                }
                let gateways = route.map_or(default, |route| &route.gateways);
                check(pattern, gateways, via)?;
            }
        }
        Ok(())
    }
}

/// Returns the routes that hosts of a pattern can take; `None` is the default one.
fn routes_of(pattern: &HostPattern, map: &HostMap) -> Vec<Option<usize>> {
    let suffix = match pattern {
        HostPattern::Name(name) => return vec![map.find(name).map(|(_, number)| number)],
        HostPattern::Below(suffix) => suffix,
        HostPattern::Any => return Vec::new(),
    };
    let inner = map.entries().iter().filter(|(route, _)| match route {
        HostPattern::Name(name) => pattern.covers(name),
        HostPattern::Below(below) => pattern.covers(below),
        HostPattern::Any => false,
    });
    let mut numbers: Vec<_> = inner.map(|(_, number)| Some(*number)).collect();
    // The route of all hosts that no inner route names.
    let outer = map.entries().iter().find(|(route, _)| match route {
        HostPattern::Below(below) => below == suffix || route.covers(suffix),
        HostPattern::Name(_) | HostPattern::Any => false,
    });
    numbers.push(outer.map(|(_, number)| *number));
    numbers
}

/// Returns true if others can read the traffic to a gateway: it is in clear text, and leaves this
/// machine other than to an onion service. Private networks have readers too.
fn is_readable(gateway: &GatewayEndpoint, via: Option<&Via>) -> bool {
    let endpoint = &gateway.endpoint;
    let is_secret = match via {
        // A loopback address is that of the proxy's far end.
        Some(_) => is_onion(&endpoint.host),
        None => gateway.is_at(|ip| ip.to_canonical().is_loopback()),
    };
    endpoint.transport == "tcp" && !is_secret
}

/// Checks that default gateways behind a proxy serve an onion service.
fn check_onion(pattern: &HostPattern, default: &[GatewayEndpoint]) -> Result<(), ConfigError> {
    let (HostPattern::Name(host) | HostPattern::Below(host)) = pattern else {
        return Ok(());
    };
    if !is_onion(host) || are_at_onion(default, host) {
        return Ok(());
    }
    Err(ConfigError::value(
        "open-https-at-gateway",
        format!(
            "{pattern} is an onion service, for which the default gateway gets no requests behind \
             --via: name a gateway of your own for it in --route"
        ),
    ))
}

/// Checks the gateways of one route.
fn check(
    pattern: &HostPattern,
    gateways: &[GatewayEndpoint],
    via: Option<&Via>,
) -> Result<(), ConfigError> {
    let bad = |problem: String| Err(ConfigError::value("open-https-at-gateway", problem));
    let local = "or list the host in open-https";
    if gateways.is_empty() {
        return bad(format!(
            "{pattern} has no gateway: add a route to a gateway of your own, {local}"
        ));
    }
    for gateway in gateways {
        let at = &gateway.endpoint;
        if !gateway.is_own {
            return bad(format!(
                "{at} would read HTTPS of {pattern}: if this gateway is your own, add own=yes to \
                 its URL, {local}"
            ));
        }
        if !gateway.has_credential() {
            return bad(format!(
                "{at} does not authenticate this client: give token-file, or cert= and key= in its \
                 URL, {local}"
            ));
        }
        if is_readable(gateway, via) {
            return bad(format!(
                "HTTPS of {pattern} would go to {at} in clear text: use h2+tls, {local}"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use crate::config::ClientOptions;

    const OWN: &str = "h2+tls://gw.example:443?ip=203.0.113.5&own=yes";

    /// Returns the problem of a client. Its gateway has a token if `token` is true.
    fn problem(hosts: &[&str], gateway: &str, token: bool, route: Option<&str>) -> String {
        problem_via(None, hosts, gateway, token, route)
    }

    fn problem_via(
        via: Option<&str>,
        hosts: &[&str],
        gateway: &str,
        token: bool,
        route: Option<&str>,
    ) -> String {
        static CALLS: AtomicUsize = AtomicUsize::new(0);
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        let name = format!("tandem-open-gateway-{}-{call}", std::process::id());
        let file = std::env::temp_dir().join(name);
        std::fs::write(&file, "a-token-of-some-length\n").expect("a file");
        let hosts = hosts.iter().map(|host| host.parse().expect("a pattern"));
        let options = ClientOptions {
            open_https_at_gateway: hosts.collect(),
            gateway: vec![gateway.parse().expect("an endpoint")],
            via: via.map(|via| via.parse().expect("a proxy")),
            route: route
                .map(|text| text.parse().expect("a route"))
                .into_iter()
                .collect(),
            token_file: token.then(|| file.display().to_string()),
            authority: Some("/nonexistent".into()),
            ..ClientOptions::default()
        };
        let problem = options.typed().expect_err("a refusal").to_string();
        std::fs::remove_file(&file).expect("removed");
        problem
    }

    #[test]
    fn gateway_must_be_own_and_authenticated() {
        let host = &["www.example.com"][..];
        let of = |gateway: &str, token| problem(host, gateway, token, None);
        assert!(of("h2+tls://gw.example:443?ip=203.0.113.5", true).contains("own=yes"));
        assert!(of(&OWN.replace("yes", "maybe"), true).contains("own= can only be yes"));
        assert!(of(OWN, false).contains("does not authenticate"));
        let plain = "h2+tcp://203.0.113.5:80?own=yes";
        assert!(of(plain, true).contains("clear text"));
        // The authority comes last.
        for gateway in [OWN, "h2+tcp://127.0.0.1:1?own=yes"] {
            assert!(of(gateway, true).contains("tandem trust -c FILE"));
        }
        let certified = format!("{OWN}&cert=a.pem&key=a.key");
        assert!(of(&certified, false).contains("tandem trust -c FILE"));
    }

    #[test]
    fn clear_text_stays_on_this_machine() {
        let onion = format!("h2+tcp://{}.onion:80?own=yes", "a".repeat(56));
        let (local, private) = ("127.0.0.1", "192.168.1.1");
        let [local, private] = [local, private].map(|ip| format!("h2+tcp://{ip}:80?own=yes"));
        let proxy = Some("socks5://127.0.0.1:9050");
        for (via, gateway, is_refused) in [
            (None, &local, false),
            (None, &private, true),
            (proxy, &local, true),
            (proxy, &private, true),
            (proxy, &onion, false),
        ] {
            let problem = problem_via(via, &["www.example.com"], gateway, true, None);
            let is_clear = problem.contains("clear text");
            assert_eq!(is_clear, is_refused, "{gateway}: {problem}");
        }
    }

    #[test]
    fn gateways_of_all_routes_are_checked() {
        let other = "h2+tls://other.example:443?ip=203.0.113.6";
        for (host, route, is_refused) in [
            ("www.example.com", "www.example.com", true),
            ("www.example.com", "*.example.com", true),
            ("*.example.com", "www.example.com", true),
            ("*.example.com", "*.a.example.com", true),
            ("*.a.example.com", "*.example.com", true),
            ("www.example.com", "example.com", false),
            ("*.example.com", "example.com", false),
            ("www.example.com", "*.other.example", false),
        ] {
            let problem = problem(&[host], OWN, true, Some(&format!("{route}={other}")));
            assert_eq!(
                problem.contains("own=yes"),
                is_refused,
                "{host} {route}: {problem}"
            );
        }
    }

    #[test]
    fn list_is_bounded() {
        let hosts: Vec<_> = (0..200).map(|n| format!("host{n}.example.com")).collect();
        let hosts: Vec<_> = hosts.iter().map(String::as_str).collect();
        assert!(problem(&hosts, OWN, true, None).contains("*.SUFFIX"));
    }
}

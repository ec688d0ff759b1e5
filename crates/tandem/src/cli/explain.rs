//! `tandem explain`: names the route of a URL and the reason, from the configuration alone. It
//! opens no connection and looks up no name.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::SystemTime;

use tandem_http::Scheme;

use super::ask::plain;
use super::{ClientArgs, Failure, serve};
use crate::back::policy::Policy;
use crate::config::ClientConfig;
use crate::config::client::{Fallback, Solo, SoloMode};
use crate::config::gateways::GatewayEndpoint;
use crate::config::open::{EarlyRequests, OpenLevel};
use crate::endpoint::{is_onion, split_authority};
use crate::middle::push::EarlyLimits;
use crate::transport::registry::Transports;
use crate::transport::tls::authority::validity;

const EXAMPLES: &str = "Examples:
  tandem explain -c client.toml http://www.example.onion/
      Tell which gateway of the file serves the site
  tandem explain --gateway 'h2+tls://gw.example:443?ip=203.0.113.5' https://www.example/
      Tell the same for options";

/// Arguments of `tandem explain`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct ExplainArgs {
    /// The URL or the host
    #[arg(value_name = "URL")]
    url: String,
    #[command(flatten)]
    client: ClientArgs,
}

pub(super) fn run(args: &ExplainArgs, transports: &Transports) -> Result<(), Failure> {
    let file = serve::read(args.client.config.as_deref())?;
    let options = args.client.options.clone();
    let options = options.or(file.client.unwrap_or_default());
    let config = options.typed_with(transports)?;
    Ok(super::print(explain(&config, &args.url)?.trim_end())?)
}

/// The parts of a URL that decide about its route.
struct AskedUrl {
    host: String,
    port: u16,
    /// `None` for another scheme, which a browser sends through a tunnel.
    scheme: Option<Scheme>,
}

impl AskedUrl {
    fn parse(url: &str) -> Result<Self, Failure> {
        let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
        let (scheme, default) = match scheme.to_ascii_lowercase().as_str() {
            "http" => (Some(Scheme::Http), Some(80)),
            "https" => (Some(Scheme::Https), Some(443)),
            "ws" => (None, Some(80)),
            "wss" => (None, Some(443)),
            _ => (None, None),
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        // User information is not a part of the authority (RFC 9110 section 4.2.4).
        let authority = rest[..end].rsplit_once('@').map_or(&rest[..end], |it| it.1);
        let (host, port) = split_authority(authority, default).map_err(|problem| {
            // The URL may come from elsewhere, and must not control the terminal.
            let words = format!("{url}: {problem}: give a URL such as http://HOST/");
            plain(&words)
        })?;
        Ok(Self { host, port, scheme })
    }
}

/// Returns the text of the command.
fn explain(config: &ClientConfig, url: &str) -> Result<String, Failure> {
    let asked = AskedUrl::parse(url)?;
    let found = config.route_map.find(&asked.host);
    let is_apart = found.is_none() && !config.default_hosts().contains(&asked.host);
    let gateways = match found.and_then(|(_, index)| config.routes.get(index)) {
        Some(route) => &*route.gateways,
        None if is_apart => &[],
        None => &*config.gateways,
    };
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<8} {value}");
    };
    line("host", &format!("{}, port {}", asked.host, asked.port));
    let solo = config.solo.as_ref().filter(|_| gateways.is_empty());
    let refusal = solo.and_then(|solo| refusal(&asked, solo));
    match refusal {
        Some(refusal) => line("route", refusal),
        None if is_apart => line("route", &config.destination_of_onions()),
        None => line("route", &config.destination(gateways)),
    }
    line(
        "reason",
        &match found {
            Some((pattern, _)) => format!("the route for {pattern} is the most specific one"),
            None if is_apart => {
                "it is an onion service, whose requests the default gateway would read".into()
            }
            None if config.routes.is_empty() => "the configuration has no other route".into(),
            None => "no route covers the host".into(),
        },
    );
    let opened = config
        .open
        .as_ref()
        .filter(|_| asked.scheme != Some(Scheme::Http) && has_authority(config))
        .and_then(|open| open.level(&asked.host, asked.port));
    let is_local = opened == Some(OpenLevel::Local);
    if let Some(discovery) = discovery(config, found.is_some(), is_local, &asked) {
        line("discover", discovery);
    }
    if let Some(failure) = failure(config, gateways) {
        line("failure", failure);
    }
    match solo {
        _ if refusal.is_some() => {}
        _ if opened == Some(OpenLevel::Local) => line("content", opened_here(config)),
        _ if opened == Some(OpenLevel::Gateway) => line("content", OPENED_AT_GATEWAY),
        Some(solo) => line("content", &without_gateway(&asked, solo, config)),
        None => line("content", content(&asked, gateways)),
    }
    Ok(text)
}

/// Returns whether the local authority is valid now. Otherwise no HTTPS is opened, and a warning
/// tells so.
fn has_authority(config: &ClientConfig) -> bool {
    let validity = config.authority.as_deref().map(validity);
    validity.is_some_and(|validity| validity.is_ok_and(|it| it.contains(SystemTime::now())))
}

/// Describes the effect of an announcement by the site. `is_opened` is true for HTTPS that this
/// client opens on this machine.
fn discovery(
    config: &ClientConfig,
    has_route: bool,
    is_opened: bool,
    asked: &AskedUrl,
) -> Option<&'static str> {
    const ROUTED: &str = "off for this host, since its route names the gateway";
    if is_opened && config.discover_opened {
        if has_route {
            return Some(ROUTED);
        }
        let early = config.open.as_ref().map(|open| open.early);
        return Some(match early {
            Some(EarlyRequests::Shared) => {
                "if the site announces a gateway with a certificate for its host, later requests \
                 of the same isolation key go to it on the way of the site's tunnels (discovered)"
            }
            _ => {
                "if the site announces a gateway with a certificate for its host, later requests \
                 of the same connection of the browser go to it on the way of the site's tunnels \
                 (discovered)"
            }
        });
    }
    if !config.discover {
        return None;
    }
    Some(match asked.scheme {
        _ if has_route => ROUTED,
        Some(Scheme::Http) if is_onion(&asked.host) => {
            "if the site announces its gateway, later requests of the same isolation key go to it \
             through the same proxy (discovered), for as long as it works"
        }
        Some(Scheme::Http) => {
            "never, since no address or certificate vouches for plain HTTP outside onion services"
        }
        _ => "never, since the client does not read the responses of a tunnel",
    })
}

/// Describes the treatment of HTTPS of a listed host.
const fn opened_here(config: &ClientConfig) -> &'static str {
    let early = match &config.open {
        Some(open) if config.push && config.push_memory > 0 => open.early,
        _ => EarlyRequests::Off,
    };
    match early {
        EarlyRequests::Shared => {
            "HTTPS, opened on this machine for browsers of the HTTP listeners: this program reads \
             it, and requests resources early from sites of HTTP/2, with one memory for all \
             windows; the gateway sees the host and the port only"
        }
        EarlyRequests::Connection => {
            "HTTPS, opened on this machine for browsers of the HTTP listeners: this program reads \
             it, and repeats requests early at the next visit over the same connection of the \
             browser, to sites of HTTP/2; the gateway sees the host and the port only"
        }
        EarlyRequests::Off => {
            "HTTPS, opened on this machine for browsers of the HTTP listeners: this program reads \
             it, and the gateway sees the host and the port only"
        }
    }
}

/// Describes the treatment of HTTPS that the gateway fetches.
const OPENED_AT_GATEWAY: &str = "HTTPS, opened on this machine for browsers of the HTTP listeners, \
                                 and fetched by the gateway: both read it, passwords and cookies \
                                 included";

/// Returns the reason for which a client without a gateway and without a proxy refuses a
/// destination, as far as it shows without a look-up.
fn refusal(asked: &AskedUrl, solo: &Solo) -> Option<&'static str> {
    if solo.mode == SoloMode::Via {
        return None;
    }
    if is_onion(&asked.host) {
        return Some("none: refused, since onion services are reached through Tor only: use --via");
    }
    let policy = Policy {
        allow: solo.allow_dest.clone(),
        ..Policy::default()
    };
    let Ok(ip) = asked.host.parse() else {
        let is_refused = policy.allow.is_empty() && !policy.ports.contains(&asked.port);
        return is_refused.then_some(
            "none: refused, since the port is neither 80 nor 443: use --solo-allow-dest",
        );
    };
    let is_refused = !policy.permits(SocketAddr::new(ip, asked.port));
    is_refused.then_some(
        "none: refused, since the address is not public or is near this machine, or the port is \
         neither 80 nor 443: use --solo-allow-dest",
    )
}

/// Describes the behaviour if no gateway answers.
fn failure(config: &ClientConfig, gateways: &[GatewayEndpoint]) -> Option<&'static str> {
    (!gateways.is_empty()).then_some(match config.fallback {
        Fallback::None => "if no gateway answers, requests fail",
        Fallback::Via => "if no gateway answers, requests go through the same proxy without one",
    })
}

/// Describes the treatment of content without a gateway.
fn without_gateway(asked: &AskedUrl, solo: &Solo, config: &ClientConfig) -> String {
    let is_excepted = solo.except.iter().any(|it| it.covers(&asked.host));
    let text = match asked.scheme {
        Some(Scheme::Http) if !config.push || config.push_memory == 0 => {
            "plain HTTP: nothing is requested early, since push or push-memory turns it off"
        }
        Some(Scheme::Http) if is_excepted => {
            "plain HTTP: nothing is requested early, since solo-except names the host"
        }
        Some(Scheme::Http) => return early(solo),
        _ => "a tunnel, as without this program",
    };
    text.to_owned()
}

/// Describes the pages whose resources a client without a gateway requests early.
fn early(solo: &Solo) -> String {
    let mut text = format!(
        "plain HTTP: the client requests the resources of a page early; it leaves pages with more \
         than {} hosts alone",
        EarlyLimits::SOLO.hosts
    );
    if solo.hold_out > 0.0 {
        let percent = solo.hold_out * 100.0;
        let _ = write!(
            text,
            ", and {percent} % of all pages to compare (solo-hold-out)"
        );
    }
    text
}

/// Describes the party that can read the content.
fn content(asked: &AskedUrl, gateways: &[GatewayEndpoint]) -> &'static str {
    match (asked.scheme, gateways.is_empty()) {
        (Some(Scheme::Http), false) => {
            "plain HTTP: the gateway reads it, compresses its fields and pushes resources, except \
             of the pages that it holds out to compare"
        }
        (Some(Scheme::Http), true) => "plain HTTP: no gateway reads it",
        (_, false) => "a tunnel: the gateway sees the host and the port, and no content",
        (_, true) => "a tunnel",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ClientOptions;
    use crate::transport::tls::authority::create;

    fn told(options: ClientOptions, url: &str) -> String {
        let config = options.typed_with(&Transports::default());
        explain(&config.expect("a configuration"), url).expect("a text")
    }

    fn options() -> ClientOptions {
        let route = "*.example.onion=h2+tcp://gw.onion:9980";
        ClientOptions {
            gateway: vec!["h2+tls://gw.example:443".parse().expect("an endpoint")],
            route: vec![route.parse().expect("a route")],
            via: Some("socks5://127.0.0.1:9050".parse().expect("a proxy")),
            ..ClientOptions::default()
        }
    }

    #[test]
    fn explain_names_route_and_reason() {
        let text = told(options(), "http://user@WWW.example.onion:8080/x?y");
        let expected = "\
host     www.example.onion, port 8080
route    gateway h2+tcp://gw.onion:9980, through socks5://127.0.0.1:9050
reason   the route for *.example.onion is the most specific one
failure  if no gateway answers, requests fail
content  plain HTTP: the gateway reads it, compresses its fields and pushes resources, except of \
the pages that it holds out to compare
";
        assert_eq!(text, expected);
        let text = told(options(), "https://www.example/");
        assert!(text.contains("h2+tls://gw.example:443"), "{text}");
        assert!(text.contains("no route covers the host"), "{text}");
        assert!(
            text.contains("port 443") && text.contains("a tunnel"),
            "{text}"
        );
    }

    #[test]
    fn explain_tells_that_a_host_has_no_route() {
        let mut only_route = options();
        only_route.gateway.clear();
        let text = told(only_route.clone(), "www.example");
        assert!(text.contains("none: requests fail; add --route"), "{text}");
        only_route.fallback = Some(Fallback::Via);
        let text = told(only_route, "www.example");
        assert!(text.contains("no gateway, through socks5://"), "{text}");
    }

    #[test]
    fn explain_keeps_onions_from_the_default_gateway() {
        let refused = "none: requests fail; add --fallback via";
        let text = told(options(), "http://other.onion/");
        assert!(text.contains(refused), "{text}");
        assert!(text.contains("the default gateway would read"), "{text}");
        let fallback = ClientOptions {
            fallback: Some(Fallback::Via),
            ..options()
        };
        let text = told(fallback, "http://other.onion/");
        assert!(text.contains("no gateway, through socks5://"), "{text}");
        let own = ClientOptions {
            gateway: vec!["h2+tcp://a.onion:9980".parse().expect("an endpoint")],
            ..options()
        };
        let text = told(own.clone(), "http://www.a.onion/");
        assert!(text.contains("gateway h2+tcp://a.onion:9980"), "{text}");
        assert!(told(own.clone(), "http://b.onion/").contains(refused));
        let mut two = own;
        two.gateway
            .push("h2+tcp://b.onion:9980".parse().expect("an endpoint"));
        for url in ["http://a.onion/", "http://b.onion../"] {
            assert!(
                told(two.clone(), url).contains(refused),
                "any of them gets it"
            );
        }
        let gateway = "h2+tls://gw.example:443?ip=203.0.113.5";
        let direct = ClientOptions {
            gateway: vec![gateway.parse().expect("an endpoint")],
            via: None,
            route: Vec::new(),
            ..options()
        };
        let text = told(direct, "http://other.onion/");
        assert!(text.contains("gateway h2+tls://gw.example:443"), "{text}");
    }

    #[test]
    fn explain_names_early_requests() {
        let mut solo = options();
        solo.gateway.clear();
        solo.solo = Some(SoloMode::Via);
        solo.solo_except = vec!["*.off.test".parse().expect("a pattern")];
        let text = told(solo.clone(), "http://www.example/");
        assert!(
            text.contains("solo: to the site, through socks5://"),
            "{text}"
        );
        assert!(text.contains("requests the resources"), "{text}");
        assert!(text.contains("more than 2 hosts alone"), "{text}");
        assert!(text.contains("2 % of all pages"), "{text}");
        let compares_nothing = ClientOptions {
            solo_hold_out: Some(0.0),
            ..solo.clone()
        };
        let text = told(compares_nothing, "http://www.example/");
        assert!(text.ends_with("hosts alone\n"), "{text}");
        let text = told(solo.clone(), "http://a.off.test/");
        assert!(text.contains("nothing is requested early"), "{text}");
        let text = told(solo, "http://a.example.onion/");
        assert!(text.contains("gateway h2+tcp://gw.onion:9980"), "{text}");
    }

    #[test]
    fn explain_names_discovery() {
        let mut solo = options();
        solo.gateway.clear();
        solo.solo = Some(SoloMode::Via);
        for (url, part) in [
            (
                "http://a.test.onion/",
                "to it through the same proxy (discovered)",
            ),
            ("http://a.example.onion/", "off for this host"),
            ("http://www.example/", "discover never, since no address"),
            ("https://a.test.onion/", "discover never, since the client"),
        ] {
            let text = told(solo.clone(), url);
            assert!(text.contains(part), "{text}");
        }
        solo.discover = Some(false);
        assert!(!told(solo, "http://a.test.onion/").contains("discover"));
    }

    #[test]
    fn explain_tells_that_early_requests_are_off() {
        let mut solo = options();
        solo.gateway.clear();
        solo.solo = Some(SoloMode::Via);
        let no_push = ClientOptions {
            push: Some(false),
            ..solo.clone()
        };
        let no_memory = ClientOptions {
            push_memory: Some("0".parse().expect("a size")),
            ..solo
        };
        for options in [no_push, no_memory] {
            let text = told(options, "http://www.example/");
            assert!(text.contains("nothing is requested early"), "{text}");
        }
    }

    #[test]
    fn explain_names_refused_destinations() {
        let direct = ClientOptions {
            solo: Some(SoloMode::Direct),
            ..ClientOptions::default()
        };
        let allowed = ClientOptions {
            solo_allow_dest: vec!["192.168.0.0/16".parse().expect("a network")],
            ..direct.clone()
        };
        for (options, url, is_refused) in [
            (&direct, "http://192.168.1.1/", true),
            (&allowed, "http://192.168.1.1/", false),
            (&direct, "http://[::1]/", true),
            (&direct, "http://93.184.216.34/", false),
            (&direct, "http://93.184.216.34:8080/", true),
            (&direct, "http://www.example:8080/", true),
            (&allowed, "http://www.example:8080/", false),
            (&direct, "https://www.example/", false),
            (&allowed, "http://a.onion./", true),
        ] {
            let text = told(options.clone(), url);
            assert_eq!(text.contains("none: refused"), is_refused, "{url}: {text}");
            assert_eq!(text.contains("content"), !is_refused, "{url}: {text}");
        }
    }

    #[test]
    fn explain_tells_that_a_host_is_opened() {
        let name = format!("tandem-explain-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let (opened, now) = (["a.test".to_owned()], std::time::SystemTime::now());
        create(&directory, &opened, now).expect("an authority");
        let options = ClientOptions {
            open_https: vec!["*.a.test".parse().expect("a pattern")],
            open_https_early: Some(EarlyRequests::Connection),
            authority: Some(directory.clone()),
            ..options()
        };
        for (url, is_opened) in [
            ("https://www.a.test/", true),
            ("wss://www.a.test/", true),
            ("https://www.a.test:8443/", false),
            ("https://a.test/", false),
            ("http://www.a.test/", false),
        ] {
            let text = told(options.clone(), url);
            assert_eq!(text.contains("opened on this machine"), is_opened, "{text}");
            let is_early = text.contains("repeats requests early at the next visit");
            assert_eq!(is_early, is_opened, "{text}");
            let is_discovered = text.contains("with a certificate for its host");
            assert_eq!(is_discovered, is_opened, "{text}");
        }
        for (early, expected) in [
            (EarlyRequests::Shared, "one memory for all windows"),
            (EarlyRequests::Off, "reads it, and the gateway"),
        ] {
            let options = ClientOptions {
                open_https_early: Some(early),
                ..options.clone()
            };
            let text = told(options, "https://www.a.test/");
            assert!(text.contains(expected), "{text}");
        }
        std::fs::remove_dir_all(&directory).expect("removed");
        let begun = now - std::time::Duration::from_secs(91 * 86_400);
        create(&directory, &opened, begun).expect("an authority");
        let text = told(options, "https://www.a.test/");
        assert!(!text.contains("opened on this machine"), "{text}");
        std::fs::remove_dir_all(&directory).expect("removed");
    }

    #[test]
    fn explain_of_a_hostile_url_controls_no_terminal() {
        let config = options().typed().expect("valid");
        for url in [
            "http://a\x1b[31mb/",
            "http://a\u{202e}b/",
            "http://a:\x1b[2J/",
        ] {
            let error = explain(&config, url).expect_err("no host").to_string();
            assert_eq!(error, plain(&error), "{url:?}");
        }
    }

    #[test]
    fn explain_refuses_text_without_a_host() {
        for url in ["http://", "ftp://host/", "http://a b/"] {
            assert!(AskedUrl::parse(url).is_err(), "{url}");
        }
    }
}

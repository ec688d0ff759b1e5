//! The checks of the proxy of `--via`: Tor's control port, its SOCKS port, and the way to a site.
//! With `--solo=direct`, the way to the site leads through no proxy.
//!
//! The path to a gateway leads through the SOCKS port, so a client with gateways needs no greeting
//! besides. A client without a gateway has no other check of this port.

use std::net::SocketAddr;

use tandem_http::Scheme;

use super::{Finding, RESPONSE_TIMEOUT, fault};
use crate::back::policy::Direct;
use crate::config::ClientConfig;
use crate::config::client::Fallback;
use crate::endpoint::{Via, split_authority};
use crate::error::{Error, Kind, Side};
use crate::exchange::Isolation;
use crate::middle::routes::ONION_REMEDY;
use crate::transport::socks::{SocksTrial, try_proxy};
use crate::transport::tor::Control;
use crate::transport::{Dial as _, Target};

/// Parses the value of `--site`.
pub(super) fn site(text: &str) -> Result<Target, String> {
    let (authority, default_port) = match text.split_once("://") {
        Some((scheme, rest)) => {
            let scheme = Scheme::parse(scheme.as_bytes()).ok_or("write http:// or https://")?;
            let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
            (authority, scheme.default_port())
        }
        None => (text, 80),
    };
    let (host, port) = split_authority(authority, Some(default_port))?;
    Ok(Target::new(host, port))
}

/// Warns if requests for onion services fail because the default gateway does not get them.
pub(super) fn onions(config: &ClientConfig) -> Option<Finding> {
    let are_refused = config.keeps_onions_apart() && config.fallback == Fallback::None;
    let text = format!("onion services without a gateway of their own fail: {ONION_REMEDY}");
    are_refused.then(|| Finding::warning("onions", text))
}

/// Checks the proxy at `via`, and the way through it to `site`.
pub(super) async fn check(config: &ClientConfig, via: &Via, site: Option<&Target>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_needed = site.is_some() || config.all_gateways().next().is_none();
    let socks = match via {
        Via::Socks(address) => Ok(*address),
        Via::TorPort(_) | Via::TorSocket(_) => control(config, via, &mut findings).await,
    };
    match socks {
        Ok(address) if is_needed => findings.push(through(config, via, address, site).await),
        Ok(_) => {}
        Err(error) => findings.push(proxy_fault(via, &error)),
    }
    findings
}

/// Checks Tor's control port, and asks it for the SOCKS port.
async fn control(
    config: &ClientConfig,
    via: &Via,
    findings: &mut Vec<Finding>,
) -> Result<SocketAddr, Error> {
    let mut control = Control::connect(via, config.tor_password.as_deref()).await?;
    let text = format!("{via} answers, and lets this program in");
    findings.push(Finding::good("Tor", text));
    control.socks_port().await
}

/// Checks the SOCKS port, and the way through it to `site`.
async fn through(
    config: &ClientConfig,
    via: &Via,
    address: SocketAddr,
    site: Option<&Target>,
) -> Finding {
    let options = config.path.socket.clone();
    let limit = options.connect_timeout + RESPONSE_TIMEOUT;
    // Tor gives each key a circuit of its own, so this stream shares none with a page.
    let key = Isolation::new(b"tandem doctor", &std::process::id().to_be_bytes());
    let trial = tokio::time::timeout(limit, try_proxy(address, site, &key, options)).await;
    let late = || Err(Error::new(Kind::Timeout, Side::Via, "no answer in time"));
    match (trial.unwrap_or_else(|_| late()), site) {
        (Ok(SocksTrial::Works), None) => {
            let text = format!("the SOCKS port {address} answers, and takes isolation keys");
            Finding::good("Tor", text)
        }
        (Ok(SocksTrial::Works), Some(Target { host, port, .. })) => {
            Finding::good("site", format!("{address} reaches {host}:{port}"))
        }
        (Ok(SocksTrial::TakesNoKeys), _) => Finding::warning(
            "Tor",
            format!(
                "the SOCKS proxy {address} takes no user and password, which carry isolation keys: \
                 requests with a key fail"
            ),
        ),
        (Err(error), Some(Target { host, port, .. })) if error.side != Side::Via => {
            let detail = &error.detail;
            let text = format!("{address} does not reach {host}:{port}: {detail}");
            Finding::fault("site", text)
        }
        (Err(error), _) => proxy_fault(via, &error),
    }
}

/// Checks the way to `site` of a client that connects to sites from this machine.
pub(super) async fn directly(direct: &Direct, site: &Target) -> Finding {
    let Target { host, port, .. } = site;
    match direct.dial(site, &Isolation::none()).await {
        Ok(_) => Finding::good("site", format!("this machine reaches {host}:{port}")),
        Err(error) => {
            let detail = &error.detail;
            let text = format!("this machine does not reach {host}:{port}: {detail}");
            Finding::fault("site", text)
        }
    }
}

/// Returns the fault of a proxy that does not work.
fn proxy_fault(via: &Via, error: &Error) -> Finding {
    if error.side != Side::Via {
        return fault(via, error);
    }
    let address = error.address.as_ref();
    let address = address.map_or_else(String::new, |address| format!(" ({address})"));
    let text = format!(
        "the proxy {via} does not answer: {}{address}: is Tor running, and is --via right?",
        error.detail
    );
    Finding::fault("Tor", text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn site_is_a_host_or_a_url() {
        for (text, host, port) in [
            ("a.test", "a.test", 80),
            ("a.test:8080", "a.test", 8080),
            ("http://a.test/b:1", "a.test", 80),
            ("https://a.test", "a.test", 443),
            ("https://a.test:444/?b", "a.test", 444),
            ("HTTPS://[::1]:5/", "::1", 5),
        ] {
            let found = site(text).unwrap();
            assert_eq!((found.host.as_str(), found.port), (host, port), "{text}");
        }
        for text in ["", "http://", "ftp://a.test/", "a.test/b", "a.test:80/b"] {
            site(text).unwrap_err();
        }
    }
}

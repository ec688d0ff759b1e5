//! The check of the resolver of a gateway.

use std::net::{IpAddr, ToSocketAddrs as _};

use super::{Failure, Finding};
use crate::back::origin::Mode;
use crate::endpoint::is_onion;

/// Returns the name for the check of the resolver. A gateway that resolves no name needs none, and
/// the look-up would tell the resolver of the operator.
pub(super) fn name_to_resolve<'a>(asked: Option<&'a str>, mode: &'a Mode) -> Option<&'a str> {
    let needed = match mode {
        Mode::Forward => Some("example.com"),
        Mode::Reverse { target, .. } | Mode::Proxy { target, .. } => {
            let is_address = target.host.parse::<IpAddr>().is_ok();
            (!is_address).then_some(target.host.as_str())
        }
    };
    asked.or(needed)
}

/// Checks the resolver with a name.
pub(super) async fn resolver(name: &str) -> Result<Finding, Failure> {
    if is_onion(name) {
        let problem = format!(
            "{name} is an onion service, which no resolver may be asked for: a gateway reaches \
             addresses and names of DNS only"
        );
        return Ok(Finding::fault("DNS", problem));
    }
    let asked = name.to_owned();
    let looked_up = tokio::task::spawn_blocking(move || (asked.as_str(), 443).to_socket_addrs());
    Ok(match looked_up.await? {
        Ok(found) => Finding::good("DNS", format!("{name} has {} address(es)", found.count())),
        Err(error) => Finding::fault(
            "DNS",
            format!("{name} cannot be resolved ({error}): check /etc/resolv.conf and the network"),
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateway_before_an_address_needs_no_resolver() {
        let mode = |text: &str| {
            let options = crate::config::GatewayOptions {
                listen: vec!["h2+tcp://127.0.0.1:0".parse().expect("an endpoint")],
                mode: Some(text.parse().expect("a mode")),
                open: Some(true),
                ..Default::default()
            };
            options.typed().expect("a gateway").mode
        };
        for (text, asked, name) in [
            ("forward", None, Some("example.com")),
            ("reverse=http://127.0.0.1:8080", None, None),
            ("reverse=http://[::1]", None, None),
            ("reverse=http://127.0.0.1", Some("a.test"), Some("a.test")),
            ("reverse=http://origin.test", None, Some("origin.test")),
        ] {
            assert_eq!(name_to_resolve(asked, &mode(text)), name, "{text}");
        }
    }

    #[tokio::test]
    async fn resolver_is_not_asked_for_onion_services() {
        let finding = resolver("www.EXAMPLE.onion.").await.expect("a finding");
        assert!(finding.text.contains("onion service"), "{}", finding.text);
    }
}

//! The path to a gateway, over each address of its name.

use std::net::SocketAddr;

use super::{Finding, Verdict, configuration, reach};
use crate::config::ClientConfig;
use crate::config::gateways::GatewayEndpoint;
use crate::transport::names::Addresses;

/// Checks the path to a gateway. A client needs only one of its addresses.
pub(super) async fn reach_each(config: &ClientConfig, gateway: &GatewayEndpoint) -> Vec<Finding> {
    let addresses = gateway.addresses.as_ref().map(Addresses::known);
    let addresses = addresses.unwrap_or_default();
    if addresses.len() < 2 {
        return reach_one(config, gateway).await;
    }
    let mut all = Vec::new();
    for address in addresses {
        let one = GatewayEndpoint {
            addresses: Some(Addresses::given(address)),
            ..gateway.clone()
        };
        all.push((address, reach_one(config, &one).await));
    }
    judged(all)
}

async fn reach_one(config: &ClientConfig, gateway: &GatewayEndpoint) -> Vec<Finding> {
    match config.path_to(gateway) {
        Ok(path) => reach(config, gateway, &*path).await,
        Err(error) => vec![configuration(&error)],
    }
}

/// Joins the findings about the addresses of one gateway. A silent address is only a warning if the
/// gateway answers at another one.
fn judged(all: Vec<(SocketAddr, Vec<Finding>)>) -> Vec<Finding> {
    let is_good = |finding: &Finding| finding.verdict == Verdict::Good;
    let answers = all.iter().any(|(_, found)| found.iter().any(is_good));
    let mut joined = Vec::new();
    for (address, findings) in all {
        for mut finding in findings {
            if finding.check == "gateway" && is_good(&finding) {
                finding.text.push_str(&format!(" at {address}"));
            }
            if finding.check == "port" && answers {
                let end = if finding.text.ends_with('?') { "" } else { "." };
                let text = format!("{}{end} {}", finding.text, remedy(address));
                finding = Finding::warning("port", text);
            }
            if !joined.contains(&finding) {
                joined.push(finding);
            }
        }
    }
    joined
}

/// Returns the remedy for an address at which the gateway does not answer.
fn remedy(address: SocketAddr) -> String {
    let (any, family) = match address {
        SocketAddr::V4(_) => ("0.0.0.0", "IPv4"),
        SocketAddr::V6(_) => ("[::]", "IPv6"),
    };
    format!(
        "The gateway answers at another address of its name, which serves this client. For \
         {address}, this machine needs a route to {family} addresses, and the gateway a listener \
         at {any}, which is {family} only. If the address is not the gateway's, remove it from the \
         name"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn silent_address_beside_another_is_a_warning() {
        let silent = || {
            (
                address("[2001:db8::5]:443"),
                vec![Finding::fault("port", "refused")],
            )
        };
        let good = vec![
            Finding::good("gateway", "it answers"),
            Finding::good("clock", "agrees"),
        ];
        let found = judged(vec![silent(), (address("203.0.113.5:443"), good.clone())]);
        assert_eq!(found[0].verdict, Verdict::Warning);
        let text = &found[0].text;
        assert!(text.contains("at [::], which is IPv6 only"), "{text}");
        assert_eq!(found[1].text, "it answers at 203.0.113.5:443");
        let none = judged(vec![silent(), silent()]);
        assert_eq!(none, [Finding::fault("port", "refused")]);
        let both = judged(vec![
            (address("192.0.2.1:1"), good.clone()),
            (address("[::1]:1"), good),
        ]);
        assert_eq!(both.len(), 3, "the clock is named once");
    }

    #[test]
    fn other_faults_of_an_address_stay() {
        let wrong = vec![Finding::fault("certificate", "another name")];
        let good = vec![Finding::good("gateway", "it answers")];
        let found = judged(vec![
            (address("[::1]:1"), wrong),
            (address("127.0.0.1:1"), good),
        ]);
        assert_eq!(found[0].verdict, Verdict::Fault);
    }
}

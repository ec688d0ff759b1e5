//! Parsers for Tor's directory: relays and weights of a consensus, and exit policies of full
//! descriptors (dir-spec).

use std::collections::HashMap;
use std::net::Ipv4Addr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use data_encoding::HEXUPPER;

/// An exit that announces a gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GatewayExit {
    /// The fingerprint: 40 upper-case hexadecimal digits.
    pub fingerprint: String,
    /// The nickname that the relay chose.
    pub nickname: String,
    /// The address of the relay.
    pub address: String,
    /// The weight in the consensus, in kB/s.
    pub bandwidth: u64,
}

/// Parses the weights of running relays, by fingerprint, from a consensus (dir-spec section 3.4.1).
pub(crate) fn parse_weights(consensus: &str) -> HashMap<String, u64> {
    let mut weights = HashMap::new();
    let mut current: Option<String> = None;
    let mut running = false;
    for line in consensus.lines() {
        if let Some(rest) = line.strip_prefix("r ") {
            current = rest.split(' ').nth(1).and_then(decode_identity);
        } else if let Some(flags) = line.strip_prefix("s ") {
            running = flags.split(' ').any(|flag| flag == "Running");
            if let (true, Some(fingerprint)) = (running, &current) {
                weights.insert(fingerprint.clone(), 0);
            }
        } else if let (Some(rest), Some(fingerprint), true) =
            (line.strip_prefix("w Bandwidth="), &current, running)
        {
            let bandwidth = rest
                .split(' ')
                .next()
                .and_then(|n| n.parse().ok())
                .unwrap_or(0);
            weights.insert(fingerprint.clone(), bandwidth);
        }
    }
    weights
}

/// Converts the unpadded base64 of 20 bytes to hexadecimal digits.
fn decode_identity(text: &str) -> Option<String> {
    let identity = STANDARD_NO_PAD.decode(text).ok()?;
    (identity.len() == 20).then(|| HEXUPPER.encode(&identity))
}

/// Parses the gateways among router descriptors (dir-spec section 2.1.1).
pub(crate) fn parse_gateways(
    descriptors: &str,
    weights: &HashMap<String, u64>,
    address: Ipv4Addr,
    port: u16,
) -> Vec<GatewayExit> {
    let mut found = Vec::new();
    for descriptor in descriptors
        .split("\nrouter ")
        .map(|d| d.strip_prefix("router ").unwrap_or(d))
    {
        let mut names = descriptor.split(' ');
        let (Some(nickname), Some(relay_address)) = (names.next(), names.next()) else {
            continue;
        };
        let fingerprint = descriptor
            .lines()
            .find_map(|line| line.trim_start_matches("opt ").strip_prefix("fingerprint "));
        let Some(fingerprint) = fingerprint.map(|text| text.replace(' ', "")) else {
            continue;
        };
        let Some(&bandwidth) = weights.get(&fingerprint) else {
            continue;
        };
        if announces(descriptor, address, port) {
            found.push(GatewayExit {
                fingerprint,
                nickname: nickname.into(),
                address: relay_address.into(),
                bandwidth,
            });
        }
    }
    found
}

/// Returns true if the first policy line that covers the address is exactly the line of a gateway.
pub(crate) fn announces(descriptor: &str, address: Ipv4Addr, port: u16) -> bool {
    let exact = format!("accept {address}:{port}");
    for line in descriptor.lines() {
        let Some(pattern) = line
            .strip_prefix("accept ")
            .or_else(|| line.strip_prefix("reject "))
        else {
            continue;
        };
        if line == exact {
            return true;
        }
        if covers(pattern, address, port) {
            return false;
        }
    }
    false
}

fn covers(pattern: &str, address: Ipv4Addr, port: u16) -> bool {
    let Some((net, ports)) = pattern.rsplit_once(':') else {
        return false;
    };
    let ports_match = match ports.split_once('-') {
        _ if ports == "*" => true,
        Some((low, high)) => {
            low.parse().is_ok_and(|low: u16| low <= port)
                && high.parse().is_ok_and(|high: u16| port <= high)
        }
        None => ports.parse() == Ok(port),
    };
    let (base, bits) = net.split_once('/').unwrap_or((net, "32"));
    let net_matches = net == "*"
        || match (base.parse::<Ipv4Addr>(), bits.parse::<u32>()) {
            (Ok(base), Ok(bits)) if bits <= 32 => {
                let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
                (base.to_bits() & mask) == (address.to_bits() & mask)
            }
            _ => false,
        };
    ports_match && net_matches
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONSENSUS: &str = "r one AAECAwQFBgcICQoLDA0ODxAREhM x 2026-01-01 00:00:00 198.18.1.1 5001 0\ns Exit Running Valid\nw Bandwidth=700\n\
        r two //////////////////////////8 x 2026-01-01 00:00:00 198.18.2.1 5001 0\ns Valid\nw Bandwidth=9\n";

    fn descriptor(policy: &str) -> String {
        format!(
            "router one 198.18.1.1 5001 0 0\nfingerprint 0001 0203 0405 0607 0809 0A0B 0C0D 0E0F 1011 1213\n{policy}\n"
        )
    }

    #[test]
    fn directory_finds_the_exact_line_only() {
        let weights = parse_weights(CONSENSUS);
        assert_eq!(weights.len(), 1);
        let address = Ipv4Addr::new(192, 0, 2, 80);
        let find = |policy: &str| parse_gateways(&descriptor(policy), &weights, address, 9980);
        let found = find("accept 192.0.2.80:9980\nreject *:*");
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].bandwidth, found[0].nickname.as_str()),
            (700, "one")
        );
        assert!(find("reject 192.0.2.0/24:*\naccept 192.0.2.80:9980").is_empty());
        assert!(find("accept *:9980\nreject *:*").is_empty());
        assert_eq!(
            find("reject 10.0.0.0/8:*\nreject *:25\naccept 192.0.2.80:9980").len(),
            1
        );
    }

    proptest::proptest! {
        #[test]
        fn directory_parsers_accept_any_text(
            consensus in "((r|s|w|x) [A-Za-z0-9+/=: ]{0,60}\n){0,12}",
            descriptors in "((router|fingerprint|accept|reject|opt) [A-Fa-z0-9.:*/ -]{0,50}\n){0,12}",
            port: u16,
        ) {
            let weights = parse_weights(&consensus);
            parse_gateways(&descriptors, &weights, Ipv4Addr::new(192, 0, 2, 80), port);
        }
    }
}

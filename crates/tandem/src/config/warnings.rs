//! Warnings about a configuration that is valid but probably not intended: secrets that others can
//! read, certificates that are not valid. The roles log them at the start, and `check-config`
//! prints them.

use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::time::SystemTime;

use super::bridge::BridgeConfig;
use super::client::is_certified_locally;
use super::gateways::GatewayEndpoint;
use super::open::{OpenedHttps, constraints};
use super::{ClientConfig, GatewayConfig, NearConfig, RelayConfig};
use crate::back::origin::Mode;
use crate::endpoint::{Endpoint, Via, is_onion};
use crate::transport::tls::authority::{Authority, validity};
use crate::transport::tls::files::Validity;

impl ClientConfig {
    /// Returns the warnings, one sentence each.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for endpoint in &self.listen {
            if endpoint.ip().is_some_and(|ip| !ip.is_loopback()) {
                let how = if endpoint.transport == "tls" {
                    ""
                } else {
                    "unencrypted and "
                };
                warnings.push(format!(
                    "{endpoint}: anyone who reaches this listener uses the gateway through it, \
                     {how}with this client's token"
                ));
            }
            warnings.extend(certificate(endpoint));
        }
        warnings.extend(self.old_authority(SystemTime::now()));
        warnings.extend(self.unlisted_names());
        for gateway in self.all_gateways() {
            warnings.extend(exposed_token(gateway, self.via.as_ref()));
            warnings.extend(certificate(&gateway.endpoint));
        }
        warnings.extend(self.via.as_ref().and_then(distant_proxy));
        warnings.extend(self.path.warning());
        warnings.extend(self.left_out.iter().cloned());
        warnings.extend(self.secret_files.iter().filter_map(|file| secret(file)));
        warnings
    }
}

impl ClientConfig {
    /// Returns a warning if the client needs the local authority, which is not valid at `now` or
    /// expires soon.
    fn old_authority(&self, now: SystemTime) -> Option<String> {
        let directory = self.authority.as_deref()?;
        if self.open.is_none() && !self.listen.iter().any(is_certified_locally) {
            return None;
        }
        let validity = validity(directory).ok()?;
        let problem = validity.warning(now)?;
        let effect = match self.open.is_some() && !validity.contains(now) {
            true => "; until then, this client opens no HTTPS",
            false => "",
        };
        let directory = directory.display();
        Some(format!(
            "the local authority in {directory} {problem}: tandem trust{effect}"
        ))
    }

    /// Returns a warning if the local authority can certify more hosts than those whose HTTPS is
    /// opened.
    fn unlisted_names(&self) -> Option<String> {
        let directory = self.authority.as_deref()?;
        let hosts = self.open.as_ref().map(OpenedHttps::all_hosts);
        let listed = constraints(&hosts.unwrap_or_default());
        let authority = Authority::load(directory).ok()?;
        let is_unlisted = |name: &&String| !listed.contains(name);
        let unlisted: Vec<_> = authority
            .opened()
            .iter()
            .filter(is_unlisted)
            .cloned()
            .collect();
        (!unlisted.is_empty()).then(|| {
            format!(
                "the local authority in {} can certify {} too, which open-https does not list: \
                 tandem trust -c FILE",
                directory.display(),
                unlisted.join(", ")
            )
        })
    }
}

impl GatewayConfig {
    /// Returns the warnings, one sentence each.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = self.near.warnings();
        warnings.extend(self.unreachable_announcements());
        if self
            .fleet
            .as_ref()
            .is_some_and(|fleet| fleet.engine.is_exposed())
        {
            warnings.push(
                "share: the password of the engine crosses the network in clear text: write \
                 rediss://, or use a tunnel"
                    .to_owned(),
            );
        }
        if self.submission.is_none() && self.mode == Mode::Forward {
            warnings.extend(self.near.open_to_strangers());
        }
        warnings
    }
}

impl NearConfig {
    /// Returns the warnings that hold for each role, one sentence each.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for endpoint in &self.listen {
            let is_clear = endpoint.transport == "tcp";
            if is_clear
                && self.takes_tokens
                && endpoint
                    .ip()
                    .is_some_and(|ip| !is_near(ip) && !is_marker(ip))
            {
                warnings.push(format!(
                    "{endpoint}: access tokens come in clear text there, and others on the way \
                     can read them: use a session over tls, such as h2+tls"
                ));
            }
            warnings.extend(certificate(endpoint));
        }
        warnings.extend(self.path.warning());
        warnings.extend(self.secret_files.iter().filter_map(|file| secret(file)));
        warnings
    }

    /// Returns a warning for each listener at which strangers reach any site through a role that
    /// serves all sites.
    fn open_to_strangers(&self) -> Vec<String> {
        let is_exposed = |endpoint: &&Endpoint| {
            let ip = endpoint.ip();
            self.open && ip.is_some_and(|ip| !ip.is_loopback() && !is_marker(ip))
        };
        let exposed = self.listen.iter().filter(is_exposed);
        let warning = |endpoint: &Endpoint| {
            format!(
                "{endpoint}: anyone who reaches this listener loads any site through this machine, \
                 and under its address: give --auth in place of --open"
            )
        };
        exposed.map(warning).collect()
    }
}

impl RelayConfig {
    /// Returns the warnings, one sentence each.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = self.near.warnings();
        for hop in &self.gateways {
            warnings.extend(exposed_token(hop, None));
            warnings.extend(certificate(&hop.endpoint));
        }
        warnings
    }
}

impl BridgeConfig {
    /// Returns the warnings, one sentence each.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = self.near.warnings();
        match self.server() {
            None => warnings.extend(self.near.open_to_strangers()),
            Some(server) if server.transport == "tcp" && !server.ip().is_some_and(is_near) => {
                warnings.push(format!(
                    "{server}: requests go there in clear text, and others on the way can read \
                     and change them: use a session over tls"
                ));
            }
            Some(_) => {}
        }
        warnings
    }
}

/// The least number of descriptors beside those of clients' connections: listeners, files, and
/// connections to other servers.
const OTHER_DESCRIPTORS: u64 = 64;

/// Returns a warning if the process may not open as many descriptors as it may have connections.
/// The program raises its soft limit to the hard one.
pub fn few_descriptors(max_connections: usize) -> Option<String> {
    let (_, hard) = rlimit::Resource::NOFILE.get().ok()?;
    few_of(hard, max_connections)
}

fn few_of(limit: u64, max_connections: usize) -> Option<String> {
    let needed = (max_connections as u64).saturating_add(OTHER_DESCRIPTORS);
    (needed > limit).then(|| {
        format!(
            "max-connections is {max_connections}, and the process may open {limit} descriptors: \
             connections beyond that wait and fail, so raise the limit (LimitNOFILE= in a systemd \
             unit, or ulimit -n), or lower max-connections"
        )
    })
}

/// Returns a warning if the proxy of `via` is another machine.
fn distant_proxy(via: &Via) -> Option<String> {
    let (Via::Socks(address) | Via::TorPort(address)) = via else {
        return None;
    };
    (!address.ip().to_canonical().is_loopback()).then(|| {
        format!(
            "via: {address} is another machine: isolation keys, the names of sites and plain HTTP \
             go there in clear text, so run the proxy on this machine"
        )
    })
}

/// Returns a warning if a gateway's token goes there in clear text.
fn exposed_token(gateway: &GatewayEndpoint, via: Option<&Via>) -> Option<String> {
    (gateway.token_file.is_some() && is_exposed(gateway, via)).then(|| {
        format!(
            "{}: the access token goes there in clear text, and others on the way can read it: \
             use h2+tls",
            gateway.endpoint
        )
    })
}

/// Returns true if others can read the traffic to a gateway on its way.
fn is_exposed(gateway: &GatewayEndpoint, via: Option<&Via>) -> bool {
    let endpoint = &gateway.endpoint;
    let is_onion = via.is_some() && is_onion(&endpoint.host);
    endpoint.transport == "tcp" && gateway.exit.is_none() && !is_onion && !gateway.is_at(is_near)
}

/// Returns true if an address belongs to this machine or to a private network (RFC 1918, RFC 4193).
fn is_near(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_private() || ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
    }
}

/// Returns true if only an exit relay itself can reach an address (RFC 5737).
fn is_marker(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V4(ip) if ip.octets()[..3] == [192, 0, 2])
}

fn certificate(endpoint: &Endpoint) -> Option<String> {
    let file = endpoint.option("cert")?;
    // An unreadable file causes an error elsewhere.
    let problem = Validity::of_file(file).ok()?.warning(SystemTime::now())?;
    Some(format!("the certificate in {file} {problem}"))
}

fn secret(file: &str) -> Option<String> {
    let mode = std::fs::metadata(file).ok()?.permissions().mode();
    (mode & 0o004 != 0).then(|| {
        format!(
            "{file} holds a secret, and every user of this machine can read it: chmod 600 it; a \
             systemd service gets it by LoadCredential="
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_of_descriptors_covers_all_connections() {
        assert_eq!(few_of(65_536, 4096), None);
        assert_eq!(few_of(4096 + OTHER_DESCRIPTORS, 4096), None);
        for (limit, connections) in [(4096, 4096), (1024, 4096), (u64::MAX - 1, usize::MAX)] {
            let warning = few_of(limit, connections).expect("a warning");
            let start =
                format!("max-connections is {connections}, and the process may open {limit}");
            assert!(warning.starts_with(&start), "{warning}");
        }
    }

    #[test]
    fn proxy_on_another_machine_is_warned_of() {
        for (via, is_distant) in [
            ("socks5://127.0.0.1:9050", false),
            ("socks5://[::1]:9050", false),
            ("socks5://192.168.1.1:9050", true),
            ("tor://10.0.0.1:9051", true),
            ("tor:///run/tor/control", false),
        ] {
            let parsed = via.parse().expect(via);
            assert_eq!(distant_proxy(&parsed).is_some(), is_distant, "{via}");
        }
    }

    #[test]
    fn is_near_recognises_private_addresses() {
        for (address, near) in [
            ("127.0.0.1", true),
            ("192.168.1.1", true),
            ("fd00::1", true),
            ("::ffff:10.0.0.1", true),
            ("203.0.113.5", false),
            ("0.0.0.0", false),
            ("2001:db8::1", false),
        ] {
            assert_eq!(is_near(address.parse().unwrap()), near, "{address}");
        }
        assert!(is_marker("192.0.2.80".parse().unwrap()));
    }
}

//! The files of both ends for each role of `tandem init`, made from the answers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::SystemTime;

use base64::Engine as _;
use rustls::pki_types::CertificateDer;
use toml::Value;

use super::files::NewFile;
use crate::cli::Failure;
use crate::config::share_url::{CA_FILE, ShareUrl};
use crate::endpoint::{Endpoint, Via, is_onion, onion_service};
use crate::secret::token;
use crate::transport::tls::self_signed::self_signed;

/// The directories of both ends inside the directory of the set-up.
pub(super) const CLIENT: &str = "client";
pub(super) const GATEWAY: &str = "gateway";

/// The address of the client's dashboard.
const DASHBOARD: &str = "127.0.0.1:8117";

/// The port of the client's default SOCKS listener, on which Tor Browser relies.
pub(super) const SOCKS_PORT: u16 = 9150;

/// The result of the questions.
pub(super) struct Plan {
    pub(super) files: Vec<NewFile>,
    /// Steps that the user takes beside the commands.
    pub(super) steps: Vec<String>,
    /// True if the files include those of a gateway.
    pub(super) has_gateway: bool,
    /// True if the client has no gateway of its own, so that only a site can test its path.
    pub(super) is_for_sites: bool,
    /// True if the client has a dashboard.
    pub(super) has_dashboard: bool,
    /// The port of the client's SOCKS listener, if the client connects through a proxy: browsers
    /// send their isolation keys there.
    pub(super) socks: Option<u16>,
    /// The address at which clients reach a gateway without a proxy on the way.
    pub(super) address: Option<IpAddr>,
    /// The host and port of a shared gateway, if the client connects to it without Tor.
    pub(super) direct: Option<String>,
}

/// A gateway with a certificate and a token.
pub(super) struct OwnGatewayPlan {
    /// The DNS name or address that clients use.
    pub(super) host: String,
    /// The address of the DNS name; `None` lets each client ask its resolver.
    pub(super) ip: Option<IpAddr>,
    pub(super) port: u16,
    /// The files of a certificate by a public authority and of its key.
    pub(super) identity: Option<[String; 2]>,
    /// The proxy of the client.
    pub(super) via: Option<Via>,
}

impl OwnGatewayPlan {
    pub(super) fn plan(&self, now: SystemTime) -> Result<Plan, Failure> {
        let token = token().map_err(|error| error.to_string())?;
        let address = self.host.parse().ok().or(self.ip);
        let host = match self.host.parse() {
            Ok(IpAddr::V6(ip)) => format!("[{ip}]"),
            _ => self.host.clone(),
        };
        let mut files = vec![
            NewFile::secret("gateway/token", format!("{token}\n")),
            NewFile::secret("client/token", format!("{token}\n")),
        ];
        let mut options = match (self.host.parse::<IpAddr>(), self.ip) {
            (Ok(_), _) => Vec::new(),
            (Err(_), Some(ip)) => vec![format!("ip={ip}")],
            // The proxy looks the name up.
            (Err(_), None) if self.via.is_some() => Vec::new(),
            (Err(_), None) => vec!["resolve=system".to_owned()],
        };
        let [cert, key] = match &self.identity {
            Some(files) => files.clone(),
            None => {
                let made = self_signed(&self.host, now)?;
                files.push(NewFile::public("gateway/cert.pem", &*made.certificate));
                files.push(NewFile::secret("gateway/key.pem", made.key));
                files.push(NewFile::public("client/gateway.pem", made.certificate));
                options.push(format!("ca={CA_FILE}"));
                ["cert.pem".into(), "key.pem".into()]
            }
        };
        let listen = listening_addresses(address).into_iter().map(|ip| {
            let any = SocketAddr::new(ip, self.port);
            text(&format!("h2+tls://{any}?cert={cert}&key={key}"))
        });
        let auth = list("token-file=token");
        // The gateway has one user, so that pushes reveal no other user's visits.
        let gateway = [
            ("listen", Value::Array(listen.collect())),
            ("auth", auth),
            ("predict-users", Value::Integer(1)),
        ];
        files.push(NewFile::public(
            "gateway/gateway.toml",
            table(GATEWAY, &gateway),
        ));
        let separator = if options.is_empty() { "" } else { "?" };
        let port = self.port;
        let url = format!("h2+tls://{host}:{port}{separator}{}", options.join("&"));
        let via = self.via.as_ref();
        files.push(client(&url, via, Some(&token)));
        Ok(Plan {
            files,
            steps: Vec::new(),
            has_gateway: true,
            is_for_sites: false,
            has_dashboard: via.is_none(),
            socks: via.map(socks_port),
            address: if via.is_none() { address } else { None },
            direct: None,
        })
    }
}

/// Returns the addresses on which a gateway listens that clients reach at `address`.
fn listening_addresses(address: Option<IpAddr>) -> Vec<IpAddr> {
    let any_v4 = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let any_v6 = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    match address {
        // A gateway on loopback, for a trial, is not for the network.
        Some(ip) if ip.is_loopback() => vec![ip],
        Some(IpAddr::V4(_)) => vec![any_v4],
        Some(IpAddr::V6(_)) => vec![any_v6],
        // The name may have addresses of both families, now or later.
        None => vec![any_v4, any_v6],
    }
}

/// Returns the plan for a reverse gateway beside an onion service.
/// Its client connects through Tor's default port, or through `via`.
pub(super) fn onion(host: &str, origin: &str, port: u16, via: Option<Via>) -> Plan {
    let listen = format!("h2+tcp://127.0.0.1:{port}");
    let gateway = [
        ("listen", list(&listen)),
        ("mode", text(&format!("reverse={origin}"))),
        // Browsers send the names below the address there too.
        ("allow-host", Value::Array(with_subdomains(host))),
        ("open", Value::Boolean(true)),
    ];
    let url = format!("h2+tcp://{host}:{port}");
    let via = via.unwrap_or_else(|| Via::Socks(([127, 0, 0, 1], 9050).into()));
    Plan {
        files: vec![
            NewFile::public("gateway/gateway.toml", table(GATEWAY, &gateway)),
            client_of_site(host, &url, &via),
        ],
        steps: vec![
            format!(
                "Add this line to the onion service in torrc, and reload Tor:\n  \
                 HiddenServicePort {port} 127.0.0.1:{port}"
            ),
            format!(
                "Announce the gateway, so that clients find it: let the web server send this \
                 field with each page:\n  Session-Gateway: \"{url}\";ma=86400"
            ),
        ],
        has_gateway: true,
        is_for_sites: false,
        has_dashboard: false,
        socks: Some(socks_port(&via)),
        address: None,
        direct: None,
    }
}

/// Returns the plan for a gateway at a Tor exit. Its client uses Tor's default control port, or
/// `via`.
pub(super) fn exit(address: Ipv4Addr, port: u16, via: Option<Via>) -> Plan {
    let listen = format!("h2+tcp://{address}:{port}");
    let gateway = [("listen", list(&listen)), ("open", Value::Boolean(true))];
    let via = via.unwrap_or_else(|| Via::TorPort(([127, 0, 0, 1], 9051).into()));
    Plan {
        files: vec![
            NewFile::public("gateway/gateway.toml", table(GATEWAY, &gateway)),
            client_of_exit(&format!("{listen}?exit=auto"), &via),
        ],
        steps: vec![
            format!(
                "Give the address to the loopback interface:\n  ip addr add {address}/32 dev lo"
            ),
            format!(
                "Add this line before the other lines of the exit's policy in torrc, and reload \
                 Tor:\n  ExitPolicy accept {address}:{port}"
            ),
        ],
        has_gateway: true,
        is_for_sites: false,
        has_dashboard: false,
        socks: Some(socks_port(&via)),
        address: None,
        direct: None,
    }
}

/// Returns the plan for a client through Tor that sends all requests to an existing gateway.
pub(super) fn forward(gateway: &Endpoint, via: &Via) -> Plan {
    let url = gateway.to_string();
    let is_at_exit = gateway.option("exit").is_some();
    let client = if is_at_exit {
        client_of_exit(&url, via)
    } else {
        client(&url, Some(via), None)
    };
    visitor(client, via)
}

/// Returns the plan for a client that uses the gateway of an onion service for this service only.
pub(super) fn site(gateway: &Endpoint, via: &Via) -> Plan {
    let file = client_of_site(&gateway.host, &gateway.to_string(), via);
    visitor(file, via)
}

fn visitor(client: NewFile, via: &Via) -> Plan {
    Plan {
        files: vec![client],
        steps: Vec::new(),
        has_gateway: false,
        is_for_sites: false,
        has_dashboard: false,
        socks: Some(socks_port(via)),
        address: None,
        direct: None,
    }
}

/// Returns the plan for a client that uses the gateways that sites announce.
pub(super) fn sites(via: &Via) -> Plan {
    through(vec![("solo", text("via"))], via)
}

/// Returns the plan for a client that connects to sites through a proxy, and uses no gateway.
pub(super) fn proxied(via: &Via) -> Plan {
    let ways = vec![("solo", text("via")), ("discover", Value::Boolean(false))];
    through(ways, via)
}

fn through(ways: Vec<(&str, Value)>, via: &Via) -> Plan {
    Plan {
        files: vec![client_file(ways, Some(via), None)],
        steps: Vec::new(),
        has_gateway: false,
        is_for_sites: true,
        has_dashboard: false,
        socks: Some(socks_port(via)),
        address: None,
        direct: None,
    }
}

/// Returns the plan for a client that connects to sites from this machine.
pub(super) fn direct() -> Plan {
    Plan {
        files: vec![client_file(vec![("solo", text("direct"))], None, None)],
        steps: Vec::new(),
        has_gateway: false,
        is_for_sites: true,
        has_dashboard: true,
        socks: None,
        address: None,
        direct: None,
    }
}

/// Returns the plan for a client that a URL describes.
pub(super) fn shared(url: &ShareUrl, via: Option<&Via>) -> Result<Plan, Failure> {
    let endpoint = url.endpoint()?;
    let gateway = endpoint.to_string();
    // Without a token, the gateway at an onion service is that of the site's operator.
    let is_of_site = is_onion(&endpoint.host) && url.token().is_none();
    let is_at_exit = endpoint.option("exit").is_some();
    let mut files = vec![match via {
        Some(via) if is_of_site => client_of_site(&endpoint.host, &gateway, via),
        Some(via) if is_at_exit && url.token().is_none() => client_of_exit(&gateway, via),
        _ => client(&gateway, via, url.token()),
    }];
    if let Some(token) = url.token() {
        files.push(NewFile::secret("client/token", format!("{token}\n")));
    }
    if let Some(der) = url.ca() {
        files.push(NewFile::public(
            "client/gateway.pem",
            pem(&CertificateDer::from(der)),
        ));
    }
    Ok(Plan {
        files,
        steps: Vec::new(),
        has_gateway: false,
        is_for_sites: false,
        has_dashboard: via.is_none(),
        socks: via.map(socks_port),
        address: None,
        direct: via.is_none().then(|| endpoint.authority()),
    })
}

/// Returns the file of a client of one gateway.
fn client(gateway: &str, via: Option<&Via>, token: Option<&str>) -> NewFile {
    client_file(vec![("gateway", list(gateway))], via, token)
}

/// Returns the file of a client of a gateway at Tor exits. Onion services, which no exit reaches,
/// and all sites without such an exit are loaded through Tor alone.
fn client_of_exit(gateway: &str, via: &Via) -> NewFile {
    let ways = vec![("gateway", list(gateway)), ("fallback", text("via"))];
    client_file(ways, Some(via), None)
}

/// Returns the file of a client through Tor that uses the gateway of one onion service. Requests
/// for other sites go to them without a gateway: its operator must not read these.
fn client_of_site(host: &str, gateway: &str, via: &Via) -> NewFile {
    let service = onion_service(host).unwrap_or_default();
    let route = [
        ("hosts".to_owned(), Value::Array(with_subdomains(&service))),
        ("gateway".to_owned(), text(gateway)),
    ];
    let route = Value::Array(vec![Value::Table(route.into_iter().collect())]);
    client_file(
        vec![("solo", text("via")), ("route", route)],
        Some(via),
        None,
    )
}

/// Returns the patterns of an onion service's hosts: its address, and the names below it.
fn with_subdomains(service: &str) -> Vec<Value> {
    vec![text(service), text(&format!("*.{service}"))]
}

/// Returns the file of a client. `ways` are the options that decide about the way to sites.
fn client_file(ways: Vec<(&str, Value)>, via: Option<&Via>, token: Option<&str>) -> NewFile {
    let mut entries = ways;
    if let Some(via) = via {
        entries.push(("via", text(&via.to_string())));
        let port = socks_port(via);
        if port != SOCKS_PORT {
            let listen = [
                "http://127.0.0.1:8118",
                &format!("socks5://127.0.0.1:{port}"),
            ];
            entries.push(("listen", Value::Array(listen.map(text).into())));
        }
    }
    if token.is_some() {
        entries.push(("token-file", text("token")));
    }
    // The dashboard keeps URLs in memory, which a user of Tor may not want.
    if via.is_none() {
        entries.push(("admin", text(DASHBOARD)));
        entries.push(("control", text("control")));
    }
    NewFile::public("client/client.toml", table(CLIENT, &entries))
}

/// Returns the port of the client's SOCKS listener. Tor Browser's own Tor has the default port, and
/// the control port 9151.
fn socks_port(via: &Via) -> u16 {
    let is_of_browser = match via {
        Via::Socks(address) => address.port() == SOCKS_PORT,
        Via::TorPort(address) => address.port() == SOCKS_PORT + 1,
        Via::TorSocket(_) => false,
    };
    if is_of_browser { 9250 } else { SOCKS_PORT }
}

fn pem(certificate: &CertificateDer<'_>) -> String {
    let body = base64::engine::general_purpose::STANDARD.encode(certificate);
    let mut text = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in body.as_bytes().chunks(64) {
        text.push_str(&String::from_utf8_lossy(line));
        text.push('\n');
    }
    text.push_str("-----END CERTIFICATE-----\n");
    text
}

fn text(value: &str) -> Value {
    Value::String(value.to_owned())
}

fn list(value: &str) -> Value {
    Value::Array(vec![text(value)])
}

/// Returns the text of a configuration file with one table.
fn table(role: &str, entries: &[(&str, Value)]) -> String {
    let mut file = format!(
        "# Written by `tandem init`. `tandem {role} --help` lists all options. Relative paths start\n\
         # at the working directory of the program.\n[{role}]\n"
    );
    for (key, value) in entries {
        file.push_str(&format!("{key} = {value}\n"));
    }
    file
}

#[cfg(test)]
mod tests;

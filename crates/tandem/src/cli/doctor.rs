//! `tandem doctor`: checks the configuration of one end, its machine and its path. It names each
//! fault and the remedy in one line.
//!
//! The client's checks include a request to each gateway, which the gateway answers by itself
//! (`Max-Forwards: 0`, RFC 9110 section 7.6.2). The client connects to nothing but the gateways
//! through `--via`, and the site that the user names (`--site`). It looks up no name but that of
//! this site, with `--solo=direct`. `addresses` checks each address of a gateway, and `proxy`
//! the proxy of a client without a gateway, and the way to the site. The gateway's checks include a
//! look-up of one name, unless the gateway stands for an origin at an address.

mod addresses;
mod proxy;
mod resolver;

use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant, SystemTime};

use tandem_http::{Fields, Method, RequestHead, Scheme};

use self::resolver::{name_to_resolve, resolver};
use super::sections::Configured;
use super::{ClientArgs, Failure, GatewayArgs, serve};
use crate::back::announce::explain;
use crate::back::gateways::unauthorized;
use crate::config::gateways::GatewayEndpoint;
use crate::config::onion_ports::torrc_line;
use crate::config::{ClientConfig, ConfigError, GatewayConfig, PathConfig, few_descriptors};
use crate::endpoint::Endpoint;
use crate::error::{Error, Kind, Side};
use crate::exchange::{Exchange, Part};
use crate::middle::max_forwards::VERSION_FIELD;
use crate::runtime::listen_remedy;
use crate::stage::Stage;
use crate::transport::Target;
use crate::transport::registry::{Socket, Transports};

pub(super) const EXAMPLES: &str = "Examples:
  tandem doctor client -c client.toml
      Check a client, and the path to its gateways
  tandem doctor client -c client.toml --site EXAMPLE.onion
      Check also whether the proxy of --via reaches this site
  tandem doctor client --gateway 'h2+tls://gw.example:443?ip=203.0.113.5' --token-file token
      Check the same without a file
  tandem doctor gateway -c /etc/tandem/gateway.toml
      Check a gateway";

/// Selects the role of the checked options.
#[derive(Debug, clap::Subcommand)]
pub enum DoctorCommand {
    /// Check a client and the path to its gateways; the arguments are those of `tandem client`
    Client(Box<ClientDoctorArgs>),
    /// Check a gateway; the arguments are those of `tandem gateway`
    Gateway(Box<GatewayDoctorArgs>),
}

/// Arguments of `tandem doctor client`.
#[derive(Debug, clap::Args)]
pub struct ClientDoctorArgs {
    /// Connect to this site through the proxy of --via, or from this machine with --solo=direct:
    /// NAME or NAME:PORT [default: none; port 80]
    #[arg(long, value_name = "SITE", value_parser = proxy::site)]
    pub(super) site: Option<Target>,
    #[command(flatten)]
    pub(super) client: ClientArgs,
}

/// Arguments of `tandem doctor gateway`.
#[derive(Debug, clap::Args)]
pub struct GatewayDoctorArgs {
    /// Host name for the check of the resolver [default: example.com, and none if the gateway
    /// stands for an origin at an address]
    #[arg(long, value_name = "NAME")]
    resolve: Option<String>,
    #[command(flatten)]
    gateway: GatewayArgs,
}

/// The time for a gateway's answer, beyond the time limit of its connection.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(15);

/// The difference between both clocks above which certificates and lifetimes go wrong.
const MAX_SKEW: Duration = Duration::from_secs(300);

/// The time for the look-up of the gateways' names, as long as that of a dial.
const LOOK_UP_LIMIT: Duration = Duration::from_secs(10);

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    Good,
    /// The program works, but more slowly or less safely.
    Warning,
    Fault,
}

/// A line of the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    verdict: Verdict,
    check: &'static str,
    text: String,
}

impl Finding {
    fn good(check: &'static str, text: impl Into<String>) -> Self {
        Self::new(Verdict::Good, check, text)
    }

    fn warning(check: &'static str, text: impl Into<String>) -> Self {
        Self::new(Verdict::Warning, check, text)
    }

    fn fault(check: &'static str, text: impl Into<String>) -> Self {
        Self::new(Verdict::Fault, check, text)
    }

    fn new(verdict: Verdict, check: &'static str, text: impl Into<String>) -> Self {
        Self {
            verdict,
            check,
            text: text.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.verdict {
            Verdict::Good => "ok",
            Verdict::Warning => "warning",
            Verdict::Fault => "FAULT",
        };
        // An operating system may put line ends into its errors.
        let text = self.text.replace('\n', " ");
        write!(f, "{verdict:<8} {:<13} {text}", self.check)
    }
}

pub(super) fn run(command: &DoctorCommand, transports: &Transports) -> Result<(), Failure> {
    let local = tokio::task::LocalSet::new();
    let findings = local.block_on(&super::runtime()?, async {
        match command {
            DoctorCommand::Client(args) => client(args, transports).await,
            DoctorCommand::Gateway(args) => gateway(args, transports).await,
        }
    })?;
    match print(&findings) {
        0 => Ok(()),
        count => Err(format!("{count} fault(s)").into()),
    }
}

/// Prints the findings and returns the number of faults.
pub(super) fn print(findings: &[Finding]) -> usize {
    for finding in findings {
        super::tell(finding);
    }
    let is_fault = |finding: &&Finding| finding.verdict == Verdict::Fault;
    findings.iter().filter(is_fault).count()
}

/// Checks a client and the path to its gateways.
pub(super) async fn client(
    args: &ClientDoctorArgs,
    transports: &Transports,
) -> Result<Vec<Finding>, Failure> {
    let file = serve::read(args.client.config.as_deref())?;
    let options = args
        .client
        .options
        .clone()
        .or(file.client.unwrap_or_default());
    let config = match options.typed_with(transports) {
        Ok(config) => config,
        Err(error) => return Ok(vec![configuration(&error)]),
    };
    let unknown = config.look_up_names(LOOK_UP_LIMIT);
    if !unknown.is_empty() {
        return Ok(unknown.iter().map(configuration).collect());
    }
    let mut findings = vec![Finding::good("configuration", "can be used")];
    findings.extend(config.warnings().into_iter().map(warning));
    findings.extend(ports(&config.listen, transports));
    findings.extend(system(&config.path, config.max_connections, "tcp_rmem"));
    match (&config.via, &args.site) {
        (Some(via), site) => findings.extend(proxy::check(&config, via, site.as_ref()).await),
        (None, Some(site)) => match config.solo_direct() {
            Some(direct) => findings.push(proxy::directly(&direct, site).await),
            None => return Err("--site needs --via or --solo=direct, to reach the site".into()),
        },
        (None, None) => {}
    }
    findings.extend(proxy::onions(&config));
    if config.discover {
        let text = "gateways that onion services announce are used through the proxy";
        findings.push(Finding::good("discovery", text));
    }
    for gateway in config.all_gateways() {
        findings.extend(addresses::reach_each(&config, gateway).await);
    }
    // The role is the last check. It connects to nothing.
    let role = ClientConfig {
        preconnect: false,
        ..config
    };
    let built = certificates(&role);
    if !findings.contains(&built) {
        findings.push(built);
    }
    Ok(findings)
}

async fn gateway(
    args: &GatewayDoctorArgs,
    transports: &Transports,
) -> Result<Vec<Finding>, Failure> {
    let file = serve::read(args.gateway.config.as_deref())?;
    let options = args.gateway.options.clone();
    let options = options.or(file.gateway.unwrap_or_default());
    let config = match options.typed_with(transports) {
        Ok(config) => config,
        Err(error) => return Ok(vec![configuration(&error)]),
    };
    let mut findings = vec![Finding::good("configuration", "can be used")];
    findings.extend(config.warnings().into_iter().map(warning));
    findings.push(certificates(&config));
    let near = &config.near;
    findings.extend(ports(&near.listen, transports));
    findings.extend(system(&near.path, near.max_connections, "tcp_wmem"));
    findings.extend(announced(&config));
    findings.push(
        match name_to_resolve(args.resolve.as_deref(), &config.mode) {
            Some(name) => resolver(name).await?,
            None => Finding::good(
                "DNS",
                "not needed: the gateway stands for an origin at an address",
            ),
        },
    );
    Ok(findings)
}

/// Tells the ports under which a gateway announces itself to visitors of an onion service, if it
/// serves one.
fn announced(config: &GatewayConfig) -> Option<Finding> {
    let listeners = config.announced_listeners();
    let lines: Vec<_> = listeners.into_iter().map(torrc_line).collect();
    (!lines.is_empty()).then(|| {
        let text = format!(
            "visitors of an onion service learn of this gateway; torrc needs {}",
            lines.join(", ")
        );
        Finding::good("discovery", text)
    })
}

/// Classifies an error of the configuration by the part that it concerns.
fn configuration(error: &ConfigError) -> Finding {
    let check = match error {
        ConfigError::Value { key, .. } if key.contains("token") || *key == "auth" => "token",
        ConfigError::Tls(_) => "certificate",
        ConfigError::Lookup { .. } => "DNS",
        _ => "configuration",
    };
    Finding::fault(check, error.to_string())
}

fn warning(text: String) -> Finding {
    let is_certificate = text.starts_with("the certificate") || text.starts_with("the local auth");
    let check = if is_certificate {
        "certificate"
    } else {
        "configuration"
    };
    Finding::warning(check, text)
}

/// Builds the whole role, which reads the certificates and keys, and opens no listener.
fn certificates(role: &impl Configured) -> Finding {
    match role.check() {
        Ok(()) => Finding::good("certificate", "every certificate and its key can be used"),
        Err(error) => configuration(&error),
    }
}

/// Checks whether the addresses of the listeners are free.
fn ports(listen: &[Endpoint], transports: &Transports) -> Vec<Finding> {
    let mut findings = Vec::new();
    for endpoint in listen {
        let (Some(address), Ok(provider)) =
            (endpoint.socket_addr(), transports.to_listen(endpoint))
        else {
            continue;
        };
        findings.push(match Socket::bind(provider.protocol(), address) {
            Ok(_) => Finding::good("port", format!("{endpoint} is free")),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => Finding::warning(
                "port",
                format!("{endpoint} is taken: stop the other program, unless it is this one"),
            ),
            Err(error) => Finding::fault("port", port_fault(endpoint, address, &error)),
        });
    }
    findings
}

fn port_fault(endpoint: &Endpoint, address: SocketAddr, error: &std::io::Error) -> String {
    let remedy = listen_remedy(error);
    format!("cannot listen on {endpoint} at {address} ({error}): {remedy}")
}

/// Checks the kernel: congestion control, the limit in the file `buffers`, and descriptors.
fn system(path: &PathConfig, connections: usize, buffers: &str) -> Vec<Finding> {
    let name = &path.socket.congestion;
    let congestion = match path.socket.congestion_refused() {
        None if name.is_empty() => Finding::good("congestion", "the kernel's default is used"),
        None => Finding::good("congestion", format!("the kernel has {name}")),
        Some(error) => Finding::fault(
            "congestion",
            format!(
                "the kernel lacks {name} ({error}), so that losses slow sessions down: \
                 modprobe tcp_bbr, or set congestion = \"\""
            ),
        ),
    };
    let file = format!("/proc/sys/net/ipv4/{buffers}");
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    let buffer = buffer(&text, path.stream_window, &file);
    let descriptors = few_descriptors(connections).map(warning);
    let findings = [Some(congestion), buffer, descriptors];
    findings.into_iter().flatten().collect()
}

/// Compares the largest TCP buffer with the product of rate and round trip. `text` is the content
/// of the kernel's file.
fn buffer(text: &str, window: u32, file: &str) -> Option<Finding> {
    let largest: u64 = text.split_whitespace().nth(2)?.parse().ok()?;
    // A window is 1.6 times the product of the path's rate and round trip.
    let product = u64::from(window) * 10 / 16;
    let name = file.trim_start_matches("/proc/sys/").replace('/', ".");
    Some(if largest >= product {
        Finding::good("buffers", format!("{name} allows {largest} bytes"))
    } else {
        Finding::warning(
            "buffers",
            format!(
                "{name} allows {largest} bytes of the {product} that path-rate and path-rtt need: \
                 sysctl -w {name}=\"4096 131072 {product}\", or set a lower path-rate"
            ),
        )
    })
}

/// Sends a request to a gateway, which answers by itself.
async fn reach(
    config: &ClientConfig,
    gateway: &GatewayEndpoint,
    stage: &dyn Stage,
) -> Vec<Finding> {
    let has_token = gateway.token_file.is_some();
    let gateway = &gateway.endpoint;
    let mut request = RequestHead::get(Scheme::Http, gateway.authority(), "/");
    request.method = Method::Options;
    request.fields.push("max-forwards", "0");
    let mut reply = stage.call(Exchange::internal(request));
    let begun = Instant::now();
    let head = async {
        loop {
            match reply.part().await {
                Some(Ok(Part::Head(head))) => return Ok(head),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error),
                None => {
                    let detail = "it answered with nothing";
                    return Err(Error::new(Kind::Protocol, Side::Peer, detail));
                }
            }
        }
    };
    let limit = config.path.socket.connect_timeout + RESPONSE_TIMEOUT;
    let timeout = || Error::new(Kind::Timeout, Side::Peer, "no answer in time");
    match tokio::time::timeout(limit, head)
        .await
        .unwrap_or_else(|_| Err(timeout()))
    {
        Ok(head) if head.status == 407 => {
            vec![fault(gateway, &unauthorized(has_token))]
        }
        Ok(head) => {
            let time = begun.elapsed().as_millis();
            let text = format!("{gateway} answers with status {} in {time} ms", head.status);
            let mut findings = vec![Finding::good("gateway", text)];
            findings.extend(clock(&head.fields, SystemTime::now()));
            findings.push(version(&head.fields));
            findings
        }
        Err(error) => vec![fault(gateway, &error)],
    }
}

/// Names the fault of a path by the part that it concerns.
fn fault(other_end: &impl fmt::Display, error: &Error) -> Finding {
    let text = explain(&other_end.to_string(), error);
    let is_about = |part: &str| error.detail.contains(part);
    let check = match (error.side, error.kind) {
        (Side::Via, _) => "Tor",
        (_, Kind::Unauthorized) => "token",
        (_, Kind::Tls) if is_about("clock of this machine") => "clock",
        (_, Kind::Tls) => "certificate",
        (_, Kind::ConnectionRefused | Kind::Timeout | Kind::Unreachable) => "port",
        _ => "gateway",
    };
    Finding::fault(check, text)
}

/// Compares both clocks, if the gateway tells its own.
fn clock(fields: &Fields, now: SystemTime) -> Option<Finding> {
    let date = std::str::from_utf8(fields.get("date")?).ok()?;
    let theirs = httpdate::parse_http_date(date).ok()?;
    let skew = now
        .duration_since(theirs)
        .unwrap_or_else(|ahead| ahead.duration());
    Some(if skew <= MAX_SKEW {
        Finding::good("clock", "agrees with the gateway's")
    } else {
        Finding::fault(
            "clock",
            format!(
                "this machine says {}, and the gateway says {date}: set the clock that is wrong",
                httpdate::fmt_http_date(now)
            ),
        )
    })
}

/// Compares the versions of both ends.
fn version(fields: &Fields) -> Finding {
    let ours = env!("CARGO_PKG_VERSION");
    let theirs = fields.get(VERSION_FIELD).map(String::from_utf8_lossy);
    match theirs.as_deref() {
        Some(theirs) if theirs == ours => {
            Finding::good("versions", format!("both ends are Tandem {ours}"))
        }
        Some(theirs) => Finding::warning(
            "versions",
            format!("this end is Tandem {ours}, and the gateway is {theirs}: update the older one"),
        ),
        None => Finding::warning(
            "versions",
            "the gateway tells no version: it is another program, or older than this one",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(name: &str, value: &str) -> Fields {
        [(name, value)].into_iter().collect()
    }

    #[test]
    fn clock_of_the_gateway_is_compared() {
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        let now = httpdate::parse_http_date(date).expect("a date");
        let verdict = |now| clock(&fields("date", date), now).map(|finding| finding.verdict);
        let hour = Duration::from_secs(3600);
        assert_eq!(verdict(now), Some(Verdict::Good));
        assert_eq!(verdict(now + hour), Some(Verdict::Fault));
        assert_eq!(verdict(now - hour), Some(Verdict::Fault));
        assert_eq!(clock(&fields("x", "y"), now), None);
    }

    #[test]
    fn versions_of_both_ends_are_compared() {
        let ours = env!("CARGO_PKG_VERSION");
        let verdict = |value: &str| version(&fields(VERSION_FIELD, value)).verdict;
        assert_eq!(verdict(ours), Verdict::Good);
        assert_eq!(verdict("0.0.1"), Verdict::Warning);
        assert_eq!(version(&Fields::new()).verdict, Verdict::Warning);
    }

    #[test]
    fn buffers_are_compared_with_the_path() {
        let file = "/proc/sys/net/ipv4/tcp_rmem";
        let of = |text: &str| buffer(text, 8_000_000, file);
        let small = of("4096\t131072\t4999999\n").expect("a number");
        assert_eq!(small.verdict, Verdict::Warning);
        assert!(
            small
                .text
                .contains("net.ipv4.tcp_rmem=\"4096 131072 5000000\"")
        );
        let large = of("4096\t131072\t5000000\n").expect("a number");
        assert_eq!(large.verdict, Verdict::Good);
        assert_eq!(of(""), None);
    }

    #[test]
    fn announced_ports_are_named() {
        let options = crate::config::GatewayOptions {
            listen: [
                "h2+tcp://127.0.0.1:9980",
                "h2+tcp://0.0.0.0:9981",
                "spdy3+tcp://127.0.0.1:1",
            ]
            .map(|listener| listener.parse().expect("an endpoint"))
            .to_vec(),
            mode: Some("reverse=http://127.0.0.1:80".parse().expect("a mode")),
            open: Some(true),
            allow_host: vec!["a.onion".parse().expect("a pattern")],
            ..Default::default()
        };
        let silent = crate::config::GatewayOptions {
            announce: Some(false),
            ..options.clone()
        };
        let plain = crate::config::GatewayOptions {
            allow_host: vec!["site.example".parse().expect("a pattern")],
            ..options.clone()
        };
        let found = announced(&options.typed().expect("a gateway")).expect("a finding");
        let lines = "needs HiddenServicePort 9980 127.0.0.1:9980, \
                     HiddenServicePort 9981 127.0.0.1:9981";
        assert!(found.text.ends_with(lines), "{}", found.text);
        assert_eq!(announced(&plain.typed().expect("a gateway")), None);
        assert_eq!(announced(&silent.typed().expect("a gateway")), None);
    }

    /// Tests run as root too, to which no port is refused.
    #[test]
    fn refused_port_has_a_remedy_in_each_message() {
        let endpoint: Endpoint = "h2+tls://0.0.0.0:443".parse().expect("an endpoint");
        let address = endpoint.socket_addr().expect("an address");
        let refused = || std::io::Error::from(std::io::ErrorKind::PermissionDenied);
        let start = crate::runtime::StartError::Listen {
            endpoint: endpoint.to_string(),
            error: refused(),
        };
        for text in [
            port_fault(&endpoint, address, &refused()),
            start.to_string(),
        ] {
            assert!(text.contains("use a port above 1023, or give"), "{text}");
        }
    }

    #[test]
    fn finding_is_one_line() {
        let finding = Finding::fault("port", "one\ntwo");
        assert_eq!(finding.to_string(), "FAULT    port          one two");
    }
}

//! The commands of the proxies: their names and arguments, and one readable line for each failure.
//!
//! The package `tandem-cli` builds the program for users, and adds the commands that need more than
//! the proxies.

#![warn(clippy::print_stderr)]

pub mod ask;
mod check_config;
mod compat;
mod doctor;
mod explain;
mod gateways;
mod init;
mod open;
mod probe;
mod sections;
mod serve;
mod share;
mod shell;
#[cfg(feature = "submit")]
mod submit;
mod trust;

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;

use crate::config::{BridgeOptions, ClientOptions, GatewayOptions, RelayOptions};
use crate::transport::registry::Transports;

/// The examples at the end of the help of the program.
pub const EXAMPLES: &str = "Examples:
  tandem demo
      Load a real page's structure over an emulated slow path, without and with the pair
  tandem gateway --listen 'h2+tls://0.0.0.0:443?cert=gw.pem&key=gw.key' --auth token-file=token
      Run your own gateway on a machine with a good connection
  tandem client --gateway 'h2+tls://gw.example:443?ip=203.0.113.5' --token-file token
      Run the client for it; set the browser's proxy to http://127.0.0.1:8118
  tandem client --gateway 'h2+tcp://192.0.2.80:9980?exit=auto' --via tor://127.0.0.1:9051 \\
    --fallback via
      Connect through Tor to a gateway at an exit, and without one to onion services
  tandem client --via socks5://127.0.0.1:9050 --solo \\
    --route EXAMPLE.onion=h2+tcp://EXAMPLE.onion:9980
      Connect through Tor to the gateway of an onion service, and to other sites without one";

const CLIENT_EXAMPLES: &str = "Examples:
  tandem client --gateway 'h2+tls://gw.example:443?ip=203.0.113.5' --token-file token
      Use your own gateway; set the browser's proxy to http://127.0.0.1:8118
  tandem client --gateway 'h2+tls://gw.example:443?ip=203.0.113.5&ca=gw.pem' --token-file token
      Use your own gateway with a self-signed certificate
  tandem client --gateway 'h2+tcp://192.0.2.80:9980?exit=auto' --via tor://127.0.0.1:9051 \\
    --fallback via
      Connect through Tor to a gateway at an exit, and without one to onion services
  tandem client --via socks5://127.0.0.1:9050 --solo \\
    --route EXAMPLE.onion=h2+tcp://EXAMPLE.onion:9980
      Connect through Tor to the gateway of an onion service, and to other sites without one
  tandem client -c /etc/tandem/client.toml --log-requests
      Read options from a file, and log a line for each request";

const GATEWAY_EXAMPLES: &str = "Examples:
  tandem gateway --listen 'h2+tls://0.0.0.0:443?cert=gw.pem&key=gw.key' --auth token-file=token
      Run your own gateway on a machine with a good connection
  tandem gateway --listen h2+tcp://127.0.0.1:9980 --open --mode reverse=http://127.0.0.1:80
      Serve one web server behind an onion service
  tandem gateway --listen h2+tcp://192.0.2.80:9980 --open
      Run a gateway at a Tor exit
  tandem gateway -c /etc/tandem/gateway.toml --drain-timeout 5m
      Read options from a file, and give sessions more time to end";

const RELAY_EXAMPLES: &str = "Examples:
  tandem relay --listen 'h2+tls://0.0.0.0:443?cert=relay.pem&key=relay.key' --open \\
      --gateway 'h2+tls://gw.example:443?ip=203.0.113.5' --token-file gateway-token
      Carry the sessions of clients on to a gateway, over TCP
  tandem relay --listen h2+tcp://127.0.0.1:9980 --open \\
      --gateway 'http+dtls://relay.example:443?ip=203.0.113.6' --share-tunnels
      Carry the tunnels of all local clients in one flow of datagrams to the next relay
  tandem relay -c /etc/tandem/relay.toml
      Read options from a file";

const BRIDGE_EXAMPLES: &str = "Examples:
  tandem bridge --listen http://127.0.0.1:8080 --open --mode 'reverse=h2+tls://origin.example:443' \\
      --allow-host localhost
      Serve an HTTP/2 origin to clients that speak HTTP/1.1 only
  tandem bridge --listen 'h2+tls://0.0.0.0:443?cert=site.pem&key=site.key' --open \\
      --mode reverse=http://127.0.0.1:80 --allow-host www.example
      Serve an HTTP/1.1 server over HTTP/2
  tandem bridge --listen http://127.0.0.1:8118 --open --mode 'proxy=h2+tls://proxy.example:443'
      Reach a proxy that speaks HTTP/2 from programs that speak HTTP/1.1";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the proxy beside the browser: it carries the browser's requests over one session to the
    /// gateway
    Client(Box<ClientArgs>),
    /// Run the proxy at the far end: it accepts the client's session and fetches from the origins
    Gateway(Box<GatewayArgs>),
    /// Run a node between client and gateway: it carries each client's session on to the next hop
    Relay(Box<RelayArgs>),
    /// Run a proxy between two protocols: HTTP/1.1, HTTP/2, HTTP/3 or SPDY at each side, without
    /// push and without a gateway
    Bridge(Box<BridgeArgs>),
    /// Run an issuer of tokens for anonymous submissions: it knows accounts, and sees no submission
    #[cfg(feature = "submit")]
    Issuer(Box<IssuerArgs>),
    /// Send files as anonymous submissions, and ask for the answers
    #[cfg(feature = "submit")]
    #[command(subcommand, after_help = submit::EXAMPLES)]
    Submit(submit::SubmitCommand),
    /// Set up one of five roles: write the configuration files, the token and the certificate of
    /// both ends, and print the commands to run
    Init(init::InitArgs),
    /// Print a URL and a QR code that configure another client for the same gateway
    Share(share::ShareArgs),
    /// Check a configuration and the path to the gateway, and name each fault with its remedy
    #[command(subcommand, after_help = doctor::EXAMPLES)]
    Doctor(doctor::DoctorCommand),
    /// Tell which gateway a URL goes to, and why, without any connection or look-up
    Explain(Box<explain::ExplainArgs>),
    /// Open the dashboard of a running client, gateway or relay in a browser
    Open(open::OpenArgs),
    /// Let browsers on this machine trust the client's h2+tls listener, by a local authority that
    /// can certify only this machine and the hosts of opened HTTPS
    Trust(trust::TrustArgs),
    /// Observe the queues and delays in the data path of a running client, gateway or relay
    #[command(subcommand, after_help = probe::EXAMPLES)]
    Probe(probe::ProbeCommand),
    /// List the gateways that Tor exits announce
    Gateways(gateways::GatewaysArgs),
    /// Run as mhd2spdy with the flags of mhd2spdy: an HTTP proxy in front of a SPDY/3 proxy
    #[command(name = "mhd2spdy")]
    Mhd2Spdy(compat::Mhd2SpdyArgs),
    /// Run as microspdy2http with its flags: a SPDY/3 proxy for HTTP origins
    #[command(name = "microspdy2http")]
    Microspdy2Http(compat::Microspdy2HttpArgs),
    /// Check a configuration file, and print the listeners and warnings of each role
    CheckConfig(check_config::CheckArgs),
    /// Write shell completions to standard output
    Completions(shell::CompletionsArgs),
    /// Write a manual page to standard output, or all of them to a directory
    Man(shell::ManArgs),
}

/// Arguments of `tandem client`.
#[derive(Debug, clap::Args)]
#[command(after_help = CLIENT_EXAMPLES)]
pub struct ClientArgs {
    /// Read options from the "client" table of this TOML file; flags take precedence over the file
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The options of the role.
    #[command(flatten)]
    pub options: ClientOptions,
}

/// Arguments of `tandem gateway`.
#[derive(Debug, clap::Args)]
#[command(after_help = GATEWAY_EXAMPLES)]
pub struct GatewayArgs {
    /// Read options from the "gateway" table of this TOML file; flags take precedence over the file
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The options of the role.
    #[command(flatten)]
    pub options: GatewayOptions,
}

/// Arguments of `tandem relay`.
#[derive(Debug, clap::Args)]
#[command(after_help = RELAY_EXAMPLES)]
pub struct RelayArgs {
    /// Read options from the "relay" table of this TOML file; flags take precedence over the file
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The options of the role.
    #[command(flatten)]
    pub options: RelayOptions,
}

/// Arguments of `tandem bridge`.
#[derive(Debug, clap::Args)]
#[command(after_help = BRIDGE_EXAMPLES)]
pub struct BridgeArgs {
    /// Read options from the "bridge" table of this TOML file; flags take precedence over the file
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The options of the role.
    #[command(flatten)]
    pub options: BridgeOptions,
}

#[cfg(feature = "submit")]
const ISSUER_EXAMPLES: &str = "Examples:
  tandem issuer --listen 'h2+tls://0.0.0.0:443?cert=issuer.pem&key=issuer.key' \\
      --accounts accounts.toml --keys /var/lib/tandem/issuer
      Issue up to 100 tokens on a day to each account of a file
  curl https://issuer.example/.well-known/private-token-issuer-directory -o issuer.json
      Get the keys of the issuer for the gateway of submissions, at least once in each epoch";

/// Arguments of `tandem issuer`.
#[cfg(feature = "submit")]
#[derive(Debug, clap::Args)]
#[command(after_help = ISSUER_EXAMPLES)]
pub struct IssuerArgs {
    /// Read options from the "issuer" table of this TOML file; flags take precedence over the file
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The options of the role.
    #[command(flatten)]
    pub options: crate::config::IssuerOptions,
}

/// The failure of a command, printed in one line.
pub type Failure = Box<dyn std::error::Error>;

/// Runs `command`. The completions and the manual page describe `program`, the command line of the
/// whole program. Endpoints may name `transports`, which may include those of another crate.
///
/// # Errors
/// Returns the reason why the command ended early.
pub fn run(
    command: Command,
    program: clap::Command,
    transports: &Transports,
) -> Result<(), Failure> {
    match command {
        Command::Client(args) => sections::start(args.config.as_deref(), &args.options, transports),
        Command::Gateway(args) => {
            sections::start(args.config.as_deref(), &args.options, transports)
        }
        Command::Relay(args) => sections::start(args.config.as_deref(), &args.options, transports),
        Command::Bridge(args) => sections::start(args.config.as_deref(), &args.options, transports),
        #[cfg(feature = "submit")]
        Command::Issuer(args) => sections::start(args.config.as_deref(), &args.options, transports),
        #[cfg(feature = "submit")]
        Command::Submit(command) => submit::run(&command, transports),
        Command::Init(args) => init::run(&args, transports),
        Command::Share(args) => share::run(&args),
        Command::Doctor(command) => doctor::run(&command, transports),
        Command::Explain(args) => explain::run(&args, transports),
        Command::Open(args) => open::run(&args),
        Command::Trust(args) => trust::run(&args),
        Command::Probe(command) => probe::run(&command),
        Command::Gateways(args) => gateways::run(&args),
        Command::Mhd2Spdy(args) => compat::mhd2spdy(&args),
        Command::Microspdy2Http(args) => compat::microspdy2http(&args),
        Command::CheckConfig(args) => check_config::check(&args, transports),
        Command::Completions(args) => shell::completions(&args, program),
        Command::Man(args) => shell::man(&args, program),
    }
}

/// Prints the failure of a command and returns the exit status of the program.
pub fn exit(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of the output has seen enough, such as head.
        Err(error) if is_broken_pipe(&*error) => ExitCode::FAILURE,
        Err(error) => {
            note(format_args!("tandem: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Returns true if a command ended because nothing reads its output any more.
fn is_broken_pipe(error: &(dyn std::error::Error + 'static)) -> bool {
    let error = error.downcast_ref::<std::io::Error>();
    error.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

/// Writes a line to standard output, which `println!` would do with a panic if it fails.
///
/// # Errors
/// Returns the error of standard output, such as that of a pipe whose reader has ended.
pub fn print(line: impl std::fmt::Display) -> std::io::Result<()> {
    let line = format!("{line}\n");
    std::io::stdout().write_all(line.as_bytes())
}

/// Writes a line to standard output, or loses it. The command goes on if nothing reads its output
/// any more: it changes something, or its exit status is an answer too.
pub(crate) fn tell(line: impl std::fmt::Display) {
    let _ = print(line);
}

/// Writes a line to standard error. A line that cannot be written is lost: the disk of the log may
/// be full, and the terminal may be gone. `eprintln!` would end the process.
pub fn note(line: impl std::fmt::Display) {
    let line = format!("{line}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Sends log lines to standard error. The argument `filter` is a level, or directives such as
/// `tandem=debug`.
pub(crate) fn start_log(filter: Option<&str>) -> Result<(), Failure> {
    let filter = log_filter(filter)?;
    let layer = tracing_subscriber::fmt()
        // Otherwise a line that cannot be written causes a panic.
        .log_internal_errors(false)
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(wants_colour())
        .with_target(false);
    // A second start, as in tests, keeps the first.
    let _ = layer.try_init();
    Ok(())
}

/// Returns the filter of log lines. The library takes a word that is no level for the name of a
/// module, and then writes no line of any other module: such a word is an error here.
///
/// The warnings of quinn-udp show system calls and their memory, and the transports report the
/// errors themselves. A directive for `quinn_udp` shows them.
fn log_filter(filter: Option<&str>) -> Result<tracing_subscriber::EnvFilter, String> {
    let text = filter.unwrap_or("info");
    let is_bad = |word: &&str| {
        // The library reads an empty word as the level of errors.
        word.is_empty()
            || !word.contains(['=', '[', ']'])
                && word
                    .parse::<tracing_subscriber::filter::LevelFilter>()
                    .is_err()
    };
    if let Some(word) = text.split(',').find(is_bad) {
        return Err(format!(
            "log: {word:?} is no level: write error, warn, info, debug, trace or off, or a level \
             for one module, such as tandem=debug"
        ));
    }
    let text = match text {
        "off" => text.to_owned(),
        _ => format!("quinn_udp=error,{text}"),
    };
    tracing_subscriber::EnvFilter::try_new(text).map_err(|error| format!("log: {error}"))
}

/// Returns true if log lines may have colours: standard error is a terminal, and NO_COLOR is unset
/// or empty (no-color.org).
fn wants_colour() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && std::io::stderr().is_terminal()
}

pub(crate) fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_the_reader_is_told_from_other_failures() {
        use std::io::ErrorKind;

        let failure = |kind: ErrorKind| Failure::from(std::io::Error::from(kind));
        assert!(is_broken_pipe(&*failure(ErrorKind::BrokenPipe)));
        assert!(!is_broken_pipe(&*failure(ErrorKind::StorageFull)));
        assert!(!is_broken_pipe(&*Failure::from("Broken pipe")));
    }

    #[test]
    fn log_filter_refuses_a_word_that_is_no_level() {
        for bad in [
            "verbose",
            "warning",
            "tandem",
            "info,verbose",
            "tandem=loud",
            "",
        ] {
            let error = log_filter(Some(bad)).expect_err(bad);
            assert!(error.starts_with("log: "), "{error}");
        }
        let error = log_filter(Some("warning")).expect_err("no level");
        assert!(error.contains("error, warn, info, debug"), "{error}");
        for good in ["info", "WARN", "off", "tandem=debug", "warn,tandem=trace"] {
            log_filter(Some(good)).expect(good);
        }
    }

    #[test]
    fn log_hides_raw_system_calls_unless_they_are_named() {
        let shown = |filter| log_filter(filter).ok().map(|filter| filter.to_string());
        for filter in [None, Some("debug"), Some("tandem=debug,warn")] {
            let shown = shown(filter).unwrap_or_default();
            assert!(shown.contains("quinn_udp=error"), "{shown}");
        }
        let named = shown(Some("info,quinn_udp=warn")).unwrap_or_default();
        assert!(
            named.contains("quinn_udp=warn") && !named.contains("error"),
            "{named}"
        );
    }
}

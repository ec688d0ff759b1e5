//! `tandem mhd2spdy` and `tandem microspdy2http`: the flags of two older programs, with their
//! function provided by the pair.
//!
//! The commands are safer than those programs. They connect to the given proxy only (mhd2spdy tried
//! the requested host first), and they check certificates. They refuse addresses that are not
//! public, except the given back-end.

use std::io::Write as _;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::Failure;
use super::serve::{Fixed, Loaded, serve};
use crate::back::policy::AddressFamily;
use crate::config::units::{Size, Span};
use crate::config::{ClientOptions, ConfigError, GatewayOptions};
use crate::hosts::HostPattern;
use crate::metrics::METRICS;
use crate::role_name::RoleName;

/// Flags of mhd2spdy.
#[derive(Clone, Debug, clap::Args)]
pub struct Mhd2SpdyArgs {
    /// Port to listen on, on this machine only
    #[arg(short, long, value_name = "N")]
    port: u16,
    /// URL of the SPDY/3 proxy: http://HOST:PORT without TLS, https://HOST:PORT with TLS
    #[arg(short, long, value_name = "URL")]
    backend_proxy: String,
    /// Never connect to another host; this is always the case
    #[arg(short, long)]
    only_proxy: bool,
    /// Write more messages to the log
    #[arg(short, long)]
    verbose: bool,
    /// Print statistics when the program ends
    #[arg(short, long)]
    statistics: bool,
}

pub(super) fn mhd2spdy(args: &Mhd2SpdyArgs) -> Result<(), Failure> {
    super::start_log(args.verbose.then_some("debug"))?;
    if !args.only_proxy {
        tracing::info!(
            "requested hosts are never connected to directly: everything goes to the backend proxy"
        );
    }
    serve("mhd2spdy", RoleName::Client, || {
        let bad = || {
            ConfigError::value(
                "backend-proxy",
                format!(
                    "{:?}: write http://HOST:PORT or https://HOST:PORT",
                    args.backend_proxy
                ),
            )
        };
        let url = args.backend_proxy.trim_end_matches('/');
        let (transport, authority) = match url.split_once("://") {
            Some(("http", authority)) => ("tcp", authority),
            Some(("https", authority)) => ("tls", authority),
            _ => return Err(bad()),
        };
        let options = ClientOptions {
            listen: vec![format!("http://127.0.0.1:{}", args.port).parse()?],
            gateway: vec![format!("spdy3+{transport}://{authority}?resolve=system").parse()?],
            // A proxy of another kind would take the warm-up for a request.
            warm_up: Some(Size(0)),
            ..ClientOptions::default()
        };
        Ok(Loaded {
            role: Arc::new(options.typed()?),
            drain_limit: Duration::from_secs(5),
            fixed: Fixed::default(),
            warnings: Box::new(Vec::new),
        })
    })?;
    if args.statistics {
        writeln!(std::io::stdout(), "{}", METRICS.render())?;
    }
    Ok(())
}

/// Flags of microspdy2http.
#[derive(Clone, Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Microspdy2HttpArgs {
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// Port to listen on
    #[arg(short, long, value_name = "N")]
    port: u16,
    /// Address to listen on [default: ::]
    #[arg(short = 'l', long = "host", value_name = "ADDRESS")]
    host: Option<IpAddr>,
    /// File with the certificate, required without --no-tls
    #[arg(short, long, value_name = "FILE")]
    certificate: Option<String>,
    /// File with the private key of the certificate
    #[arg(short = 'k', long, value_name = "FILE")]
    certificate_key: Option<String>,
    /// Accept SPDY without TLS
    #[arg(short = 'r', long)]
    no_tls: bool,
    /// Send every request to this origin, independently of the requested host
    #[arg(short, long, value_name = "HOST[:PORT]")]
    backend_server: Option<String>,
    /// Expect the host and the path of a request in separate fields, not a whole URL as the path;
    /// both forms are always accepted
    #[arg(short, long)]
    transparent: bool,
    /// Write more messages to the log
    #[arg(short, long)]
    verbose: bool,
    /// Write more messages about origins to the log
    #[arg(short = 'h', long)]
    curl_verbose: bool,
    /// Use HTTP/1.0 towards origins; HTTP/1.1, which they understand as well, is used in any case
    #[arg(short = '0', long)]
    http10: bool,
    /// Do not delay small writes; this is always the case
    #[arg(short = 'D', long)]
    no_delay: bool,
    /// Connect to origins over IPv4 only
    #[arg(short = '4', long, conflicts_with = "curl_ipv6")]
    curl_ipv4: bool,
    /// Connect to origins over IPv6 only
    #[arg(short = '6', long)]
    curl_ipv6: bool,
    /// Time limit for a response from an origin, in seconds; 0 means no limit [default: 0]
    #[arg(short = 'T', long, value_name = "S")]
    timeout: Option<u64>,
}

/// The time limit of microspdy2http for a session without traffic.
const SESSION_TIMEOUT: Duration = Duration::from_secs(1800);

/// A time limit that is never reached in practice.
const FOR_EVER: Duration = Duration::from_secs(365 * 86_400);

/// Returns the endpoint of the listener.
fn listener(args: &Microspdy2HttpArgs) -> Result<String, ConfigError> {
    let host = match args.host {
        None => "[::]".to_owned(),
        Some(ip) if ip.is_ipv6() => format!("[{ip}]"),
        Some(ip) => ip.to_string(),
    };
    let port = args.port;
    match (args.no_tls, &args.certificate, &args.certificate_key) {
        (true, _, _) => Ok(format!("spdy3+tcp://{host}:{port}")),
        (false, Some(cert), Some(key)) => {
            Ok(format!("spdy3+tls://{host}:{port}?cert={cert}&key={key}"))
        }
        (false, _, _) => Err(ConfigError::value(
            "certificate",
            "give --certificate and --certificate-key, or --no-tls",
        )),
    }
}

pub(super) fn microspdy2http(args: &Microspdy2HttpArgs) -> Result<(), Failure> {
    super::start_log(if args.curl_verbose {
        Some("trace")
    } else {
        args.verbose.then_some("debug")
    })?;
    serve("microspdy2http", RoleName::Gateway, || {
        let mode = args
            .backend_server
            .as_ref()
            .map(|backend| format!("reverse=http://{backend}").parse());
        let mode = mode
            .transpose()
            .map_err(|problem: String| ConfigError::value("backend-server", problem))?;
        let timeout = args
            .timeout
            .filter(|seconds| *seconds > 0)
            .map_or(FOR_EVER, Duration::from_secs);
        // With a back-end server, every host is served from it.
        let allow_host = if mode.is_some() {
            vec![HostPattern::Any]
        } else {
            Vec::new()
        };
        let options = GatewayOptions {
            listen: vec![listener(args)?.parse()?],
            mode,
            allow_host,
            open: Some(true),
            idle_timeout: Some(Span(SESSION_TIMEOUT)),
            response_timeout: Some(Span(timeout)),
            ..GatewayOptions::default()
        };
        let mut config = options.typed()?;
        config.origins.policy.family = match (args.curl_ipv4, args.curl_ipv6) {
            (true, _) => AddressFamily::V4,
            (_, true) => AddressFamily::V6,
            _ => AddressFamily::Any,
        };
        Ok(Loaded {
            role: Arc::new(config),
            drain_limit: Duration::from_secs(5),
            fixed: Fixed::default(),
            warnings: Box::new(Vec::new),
        })
    })
}

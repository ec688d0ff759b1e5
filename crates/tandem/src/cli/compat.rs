//! `tandem mhd2spdy` and `tandem microspdy2http`: the flags of two older programs, and their job
//! done by the pair.
//!
//! Where they were unsafe, these are not: nothing is connected to but the given proxy (mhd2spdy
//! tried the requested host first), certificates are checked, addresses that are not public are
//! refused except the given back-end.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::Failure;
use super::serve::{Fixed, Loaded, serve};
use crate::back::origin::HostPattern;
use crate::back::policy::Family;
use crate::config::units::{Size, Span};
use crate::config::{ClientOptions, ConfigError, GatewayOptions};
use crate::metrics::METRICS;

/// Flags of mhd2spdy.
#[derive(Clone, Debug, clap::Args)]
pub struct Mhd2SpdyArgs {
    /// Port to listen on, on this machine only
    #[arg(short, long, value_name = "N")]
    port: u16,
    /// The SPDY/3 proxy: http://HOST:PORT without TLS, https://HOST:PORT with it
    #[arg(short, long, value_name = "URL")]
    backend_proxy: String,
    /// Never connect to anything else; this is always so
    #[arg(short, long)]
    only_proxy: bool,
    /// Say more
    #[arg(short, long)]
    verbose: bool,
    /// Print statistics at the end
    #[arg(short, long)]
    statistics: bool,
}

#[expect(clippy::print_stdout, reason = "the statistics that were asked for")]
pub(super) fn mhd2spdy(args: &Mhd2SpdyArgs) -> Result<(), Failure> {
    super::start_log(args.verbose.then_some("debug"))?;
    if !args.only_proxy {
        tracing::info!(
            "requested hosts are never connected to directly: everything goes to the backend proxy"
        );
    }
    serve("mhd2spdy", || {
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
            // Other programs' proxies would take it for a request.
            warm_up: Some(Size(0)),
            ..ClientOptions::default()
        };
        Ok(Loaded {
            role: Arc::new(options.typed()?),
            drain_limit: Duration::from_secs(5),
            fixed: Fixed::default(),
        })
    })?;
    if args.statistics {
        println!("{}", METRICS.render());
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
    /// Certificate, unless --no-tls
    #[arg(short, long, value_name = "FILE")]
    certificate: Option<String>,
    /// Its key
    #[arg(short = 'k', long, value_name = "FILE")]
    certificate_key: Option<String>,
    /// Raw SPDY without TLS
    #[arg(short = 'r', long)]
    no_tls: bool,
    /// Always connect to this origin, whatever is asked for
    #[arg(short, long, value_name = "HOST[:PORT]")]
    backend_server: Option<String>,
    /// Requests carry host and path; without it a whole URL in the path. Both are always understood
    #[arg(short, long)]
    transparent: bool,
    /// Say more
    #[arg(short, long)]
    verbose: bool,
    /// Say more of origins too
    #[arg(short = 'h', long)]
    curl_verbose: bool,
    /// HTTP/1.0 towards origins; HTTP/1.1, which they understand as well, is spoken all the same
    #[arg(short = '0', long)]
    http10: bool,
    /// No delay of small writes; this is always so
    #[arg(short = 'D', long)]
    no_delay: bool,
    /// IPv4 only towards origins
    #[arg(short = '4', long, conflicts_with = "curl_ipv6")]
    curl_ipv4: bool,
    /// IPv6 only towards origins
    #[arg(short = '6', long)]
    curl_ipv6: bool,
    /// Seconds for an origin's answer; 0 waits for ever [default: 0]
    #[arg(short = 'T', long, value_name = "S")]
    timeout: Option<u64>,
}

/// What microspdy2http gave a session without traffic.
const SESSION_TIMEOUT: Duration = Duration::from_secs(1800);

/// As good as for ever.
const FOR_EVER: Duration = Duration::from_secs(365 * 86_400);

pub(super) fn microspdy2http(args: &Microspdy2HttpArgs) -> Result<(), Failure> {
    super::start_log(if args.curl_verbose {
        Some("trace")
    } else {
        args.verbose.then_some("debug")
    })?;
    serve("microspdy2http", || {
        let host = args.host.map_or_else(
            || "[::]".into(),
            |ip| {
                if ip.is_ipv6() {
                    format!("[{ip}]")
                } else {
                    ip.to_string()
                }
            },
        );
        let listen = match (args.no_tls, &args.certificate, &args.certificate_key) {
            (true, _, _) => format!("spdy3+tcp://{host}:{}", args.port),
            (false, Some(cert), Some(key)) => {
                format!("spdy3+tls://{host}:{}?cert={cert}&key={key}", args.port)
            }
            (false, _, _) => {
                return Err(ConfigError::value(
                    "certificate",
                    "give --certificate and --certificate-key, or --no-tls",
                ));
            }
        };
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
        // A back-end server was asked for everything.
        let allow_host = if mode.is_some() {
            vec![HostPattern::Any]
        } else {
            Vec::new()
        };
        let options = GatewayOptions {
            listen: vec![listen.parse()?],
            mode,
            allow_host,
            open: Some(true),
            idle_timeout: Some(Span(SESSION_TIMEOUT)),
            response_timeout: Some(Span(timeout)),
            ..GatewayOptions::default()
        };
        let mut config = options.typed()?;
        config.policy.family = match (args.curl_ipv4, args.curl_ipv6) {
            (true, _) => Family::V4,
            (_, true) => Family::V6,
            _ => Family::Any,
        };
        Ok(Loaded {
            role: Arc::new(config),
            drain_limit: Duration::from_secs(5),
            fixed: Fixed::default(),
        })
    })
}

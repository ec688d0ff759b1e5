//! `tandem-lab bench`: the cost of the pair, beside its peers.

use std::error::Error;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Serialize;
use tandem_lab::bench::client::Protocol;
use tandem_lab::bench::programs::{self, Proxy};
use tandem_lab::bench::quiet::Pair;
use tandem_lab::bench::sessions::SessionsLoad;
use tandem_lab::bench::{Size, bridge, bulk, proxy, quiet, session, sessions};
use tandem_link::text;
use tandem_net::emulator::topology::LinkText;
use tandem_net::output;

/// The kinds of measurement.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// The gateway's CPU time and memory beside other proxies'
    Proxy(ProxyArguments),
    /// Session protocols beside each other: CPU time and bytes
    Session(SessionArguments),
    /// A reverse gateway's CPU time and memory with few and with many sessions, beside a proxy's
    Sessions(SessionsArguments),
    /// The bridge's times to the first byte and in all, with HTTP/1.1 and HTTP/2 on each side
    Bridge(BridgeArguments),
    /// Delay of small answers beside bulk, over an emulated link
    Quiet(Box<QuietArguments>),
    /// CPU time of a byte of bulk over each way of the pair, and the rate on this machine
    Bulk(BulkArguments),
}

/// The options that all kinds share.
#[derive(Debug, Args)]
pub(crate) struct Common {
    /// The program under test; by default `tandem` beside this program
    #[arg(long, value_name = "FILE")]
    tandem: Option<PathBuf>,
    /// Turns that each gets, in alternation
    #[arg(long, default_value_t = 5, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=1000))]
    passes: u16,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ProxyArguments {
    #[command(flatten)]
    common: Common,
    /// Sizes of the answers
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1k,10k,1M",
        value_name = "SIZE"
    )]
    sizes: Vec<Size>,
    /// Proxies to compare with
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "nghttpx",
        value_name = "PROXY"
    )]
    peer: Vec<Proxy>,
    /// Requests of one turn; by size unless given
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(256..))]
    requests: Option<u32>,
    /// Idle sessions for the memory measurement; 0 for none
    #[arg(long, default_value_t = 1000, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(0..=8000))]
    idle: u16,
}

#[derive(Debug, Args)]
pub(crate) struct SessionArguments {
    #[command(flatten)]
    common: Common,
    /// Session protocols; the first is the baseline
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "h2,spdy3,spdy3.1",
        value_name = "SESSION"
    )]
    sessions: Vec<Protocol>,
    /// Size of the answers
    #[arg(long, default_value = "1k", value_name = "SIZE")]
    size: Size,
    /// Requests of one turn
    #[arg(long, default_value_t = 30_000, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(8..))]
    requests: u32,
    /// Requests in flight on each of 8 sessions
    #[arg(long, default_value_t = 32, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=100))]
    streams: u16,
}

#[derive(Debug, Args)]
pub(crate) struct SessionsArguments {
    #[command(flatten)]
    common: Common,
    /// Sessions and requests in flight on each; the first is the baseline
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "10x10,1000x10",
        value_name = "SESSIONSxSTREAMS"
    )]
    loads: Vec<SessionsLoad>,
    /// Proxy to compare with
    #[arg(long, default_value = "nghttpx", value_name = "PROXY")]
    peer: Proxy,
    /// Size of the responses
    #[arg(long, default_value = "1k", value_name = "SIZE")]
    size: Size,
    /// Requests of one turn
    #[arg(long, default_value_t = 20_000, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    requests: u32,
    /// Numbers of idle sessions for the memory measurement; 0 for none
    #[arg(long, value_delimiter = ',', default_value = "10,1000,10000", value_name = "NUMBERS", value_parser = clap::value_parser!(u16).range(0..=15_000))]
    idle: Vec<u16>,
}

#[derive(Debug, Args)]
pub(crate) struct BridgeArguments {
    #[command(flatten)]
    common: Common,
    /// Requests, and clients that send them one by one
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "100x10,50x5,1x1",
        value_name = "REQUESTSxCLIENTS"
    )]
    loads: Vec<bridge::BridgeLoad>,
    /// Proxies to compare with
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "nghttpx,nginx",
        value_name = "PROXY"
    )]
    peer: Vec<bridge::Peer>,
    /// Round-trip time between the proxy and the origin; all is on loopback unless given
    #[arg(long, value_name = "TIME", value_parser = text::duration)]
    rtt: Option<Duration>,
}

#[derive(Debug, Args)]
pub(crate) struct QuietArguments {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    link: LinkText,
    /// Congestion control of our sessions, one run for each
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "bbr,cubic",
        value_name = "NAME"
    )]
    congestion: Vec<String>,
    /// Congestion control of our sessions over DTLS, one run for each; empty for none
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "bbr",
        value_name = "NAME"
    )]
    dtls: Vec<String>,
    /// Congestion control of our sessions over QUIC, one run for each; empty for none
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "cubic",
        value_name = "NAME"
    )]
    quic: Vec<String>,
    /// Congestion control of a pair of nghttpx, one run for each; empty for none
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "cubic",
        value_name = "NAME"
    )]
    naive: Vec<String>,
    /// Unsent bytes in the kernel, for our pair
    #[arg(long, value_name = "BYTES")]
    notsent_lowat: Option<String>,
    /// Time that counts, with bulk
    #[arg(long, default_value = "10s", value_name = "TIME", value_parser = text::duration)]
    time: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct BulkArguments {
    #[command(flatten)]
    common: Common,
    /// Ways between the pair; the first is the baseline
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "h3+quic,h3+dtls,h2+tls",
        value_name = "WAY"
    )]
    ways: Vec<bulk::BulkWay>,
    /// Rates of all downloads together in Mbit/s; 0 is as fast as possible
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "100,0",
        value_name = "MBIT"
    )]
    rates: Vec<u64>,
    /// Congestion control of both ends
    #[arg(long, default_value = "bbr", value_name = "NAME")]
    congestion: String,
    /// Time that counts in each turn
    #[arg(long, default_value = "5s", value_name = "TIME", value_parser = text::duration)]
    time: Duration,
}

/// Does it.
pub(crate) fn run(command: BenchCommand) -> Result<ExitCode, Box<dyn Error>> {
    match command {
        BenchCommand::Proxy(arguments) => {
            let json = arguments.common.json;
            let report = proxy::run(&proxy_plan(arguments)?, &mut say)?;
            answer(json, &report, || report.table())
        }
        BenchCommand::Session(arguments) => {
            let plan = session_plan(&arguments)?;
            let report = session::run(&plan, &mut say)?;
            answer(arguments.common.json, &report, || report.table())
        }
        BenchCommand::Sessions(arguments) => {
            let json = arguments.common.json;
            let report = sessions::run(&sessions_plan(arguments)?, &mut say)?;
            answer(json, &report, || report.table())
        }
        BenchCommand::Bridge(arguments) => {
            let json = arguments.common.json;
            let report = bridge::run(&bridge_plan(arguments)?, &mut say)?;
            answer(json, &report, || report.table())
        }
        BenchCommand::Quiet(arguments) => {
            let json = arguments.common.json;
            let report = quiet::run(&quiet_plan(*arguments)?, &mut say)?;
            answer(json, &report, || report.table())
        }
        BenchCommand::Bulk(arguments) => {
            let json = arguments.common.json;
            let report = bulk::run(&bulk_plan(arguments)?, &mut say)?;
            answer(json, &report, || report.table())
        }
    }
}

fn proxy_plan(arguments: ProxyArguments) -> Result<proxy::ProxyPlan, Box<dyn Error>> {
    let mut peers = arguments.peer;
    peers.retain(|peer| *peer != Proxy::Tandem);
    Ok(proxy::ProxyPlan {
        tandem: programs::tandem(arguments.common.tandem.as_deref())?,
        sizes: arguments.sizes,
        passes: arguments.common.passes.into(),
        peers,
        requests: arguments.requests.map(|requests| requests as usize),
        sessions: arguments.idle.into(),
    })
}

fn session_plan(arguments: &SessionArguments) -> Result<session::SessionPlan, Box<dyn Error>> {
    Ok(session::SessionPlan {
        tandem: programs::tandem(arguments.common.tandem.as_deref())?,
        protocols: arguments.sessions.clone(),
        size: arguments.size,
        requests: arguments.requests as usize,
        streams: arguments.streams.into(),
        passes: arguments.common.passes.into(),
    })
}

fn sessions_plan(arguments: SessionsArguments) -> Result<sessions::SessionsPlan, Box<dyn Error>> {
    let mut idle: Vec<usize> = arguments.idle.into_iter().map(usize::from).collect();
    idle.retain(|sessions| *sessions > 0);
    idle.sort_unstable();
    Ok(sessions::SessionsPlan {
        tandem: programs::tandem(arguments.common.tandem.as_deref())?,
        loads: arguments.loads,
        peer: arguments.peer,
        size: arguments.size,
        requests: arguments.requests as usize,
        passes: arguments.common.passes.into(),
        idle,
    })
}

fn bridge_plan(arguments: BridgeArguments) -> Result<bridge::BridgePlan, Box<dyn Error>> {
    let mut peers = arguments.peer;
    peers.retain(|peer| *peer != bridge::Peer::Tandem);
    Ok(bridge::BridgePlan {
        tandem: programs::tandem(arguments.common.tandem.as_deref())?,
        loads: arguments.loads,
        passes: arguments.common.passes.into(),
        peers,
        rtt: arguments.rtt,
    })
}

fn bulk_plan(arguments: BulkArguments) -> Result<bulk::BulkPlan, Box<dyn Error>> {
    let rates = arguments.rates.into_iter();
    Ok(bulk::BulkPlan {
        tandem: programs::tandem(arguments.common.tandem.as_deref())?,
        ways: arguments.ways,
        rates: rates
            .map(|mbit| (mbit > 0).then_some(mbit * 125_000))
            .collect(),
        congestion: arguments.congestion,
        time: arguments.time,
        passes: arguments.common.passes.into(),
    })
}

fn quiet_plan(arguments: QuietArguments) -> Result<quiet::QuietPlan, Box<dyn Error>> {
    let QuietArguments {
        common,
        mut link,
        congestion,
        dtls,
        quic,
        naive,
        notsent_lowat,
        time,
    } = arguments;
    if link.profile.is_none() && link.rtt.is_none() && link.delay.is_none() {
        link.rtt = Some("100ms".into());
    }
    if link.profile.is_none() && link.rate.is_none() {
        link.rate = Some("100mbit".into());
    }
    let ours = congestion.into_iter().map(|congestion| Pair::Tandem {
        congestion,
        notsent_lowat: notsent_lowat.clone(),
    });
    let dtls = dtls
        .into_iter()
        .filter(|name| !name.is_empty())
        .map(|congestion| Pair::TandemDtls { congestion });
    let quic = quic
        .into_iter()
        .filter(|name| !name.is_empty())
        .map(|congestion| Pair::TandemQuic { congestion });
    let naive = naive
        .into_iter()
        .filter(|name| !name.is_empty())
        .map(|congestion| Pair::Nghttpx { congestion });
    Ok(quiet::QuietPlan {
        tandem: programs::tandem(common.tandem.as_deref())?,
        link,
        pairs: ours.chain(dtls).chain(quic).chain(naive).collect(),
        time,
        passes: common.passes.into(),
    })
}

/// Prints progress. The line is lost if standard error is closed.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "tandem-lab bench: {line}");
}

fn answer(
    json: bool,
    report: &impl Serialize,
    table: impl FnOnce() -> String,
) -> Result<ExitCode, Box<dyn Error>> {
    if json {
        output::print(serde_json::to_string_pretty(report)?)?;
    } else {
        output::print(table())?;
    }
    Ok(ExitCode::SUCCESS)
}

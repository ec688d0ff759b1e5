//! `tandem demo`: the product's main job on a machine that has nothing but this program.
//!
//! ```text
//!  loader ─────────────── slow path ──────────────▶ origin         (plain HTTP/1.1, 6 connections)
//!  loader ─▶ client ═════ slow path ═════▶ gateway ─▶ origin        (the pair)
//! ```
//!
//! Origin, pair, loader and a modelled slow path ([`tandem_net::slowpath`]) run in this process;
//! the page is a real page's structure with synthetic bodies, each of which is checked byte by
//! byte. `kept` serves a browser.

mod kept;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use kept::Kept;
use serde::Serialize;
use tandem::cli::Failure;
use tandem::config::units::{Rate, Span};
use tandem::config::{ClientOptions, GatewayOptions};
use tandem::endpoint::Endpoint;
use tandem::runtime::Running;
use tandem_net::slowpath::{Carried, Running as Slow, SlowPath};
use tandem_web::loader::{Discovery, Loader, Via};
use tandem_web::origin::Origin;
use tandem_web::page::{Page, Site};

/// Arguments of `tandem demo`.
#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// Round trip of the slow path; 600ms is about an onion service, 250ms a circuit, 700ms a
    /// satellite
    #[arg(long, value_name = "TIME", default_value = "300ms")]
    rtt: Span,
    /// Rate of the slow path
    #[arg(long, value_name = "RATE", default_value = "20mbit")]
    rate: Rate,
    /// The page: demo, thesis (1315 resources), twitter, youtube, imgur, or a HAR or page file
    #[arg(long, value_name = "PAGE", default_value = "demo")]
    page: String,
    /// Session between the pair: h2, spdy3, spdy3.1
    #[arg(long, value_name = "SESSION", default_value = "h2")]
    session: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Serve the page to a browser over the slow path until interrupted
    #[arg(long)]
    keep: bool,
}

/// A line of the table.
#[derive(Debug, Serialize)]
struct Row {
    setup: String,
    time_s: f64,
    bytes_up: u64,
    bytes_down: u64,
    requests: usize,
}

/// The output of `--json`.
#[derive(Debug, Serialize)]
struct Outcome {
    page: String,
    resources: usize,
    rtt_ms: f64,
    rate_bit_s: u64,
    rows: Vec<Row>,
    /// Time of the pair over time of plain HTTP/1.1.
    ratio_time: f64,
    /// The same of bytes, both ways.
    ratio_bytes: f64,
}

/// All running processes.
struct Stage {
    site: Site,
    direct: Slow,
    between: Slow,
    client: Running,
    /// A client that takes no pushes.
    without_push: Running,
    gateway: Running,
    proxy: SocketAddr,
    proxy_without_push: SocketAddr,
}

/// Runs the demo.
pub(crate) fn run(args: &DemoArgs) -> Result<(), Failure> {
    // Several threads: origin, loader and slow path must not wait for each other.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let progress = ProgressBar::new_spinner()
            .with_style(ProgressStyle::with_template("{spinner} {msg} ({elapsed})")?);
        progress.enable_steady_tick(Duration::from_millis(100));
        progress.set_message("starting origin, gateway, client and slow path");
        let stage = start(args).await?;
        let outcome = measure(args, &stage, &progress).await?;
        progress.finish_and_clear();
        print(args, &outcome, &stage)?;
        if args.keep {
            let page = stage.site.page().clone();
            let other = stage.between.address;
            let kept = Kept::start(page, &args.session, slow_path(args), other).await?;
            kept.wait().await?;
        }
        stage.client.drain(Duration::from_secs(1)).await;
        stage.without_push.drain(Duration::from_secs(1)).await;
        stage.gateway.drain(Duration::from_secs(1)).await;
        Ok(())
    })
}

async fn start(args: &DemoArgs) -> Result<Stage, Failure> {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
    let origin_at = listener.local_addr()?;
    let page = if args.page == "demo" {
        Page::demo()?
    } else {
        Page::open(&args.page)?
    };
    let site = Site::new(page, &[origin_at.to_string()])?;
    let origin = Origin::new(site.clone());
    tokio::spawn(origin.serve(listener));
    let way = slow_path(args);
    let direct = way.spawn(origin_at).await?;

    let any: Endpoint = format!("{}+tcp://127.0.0.1:0", args.session).parse()?;
    let gateway_options = GatewayOptions {
        listen: vec![any.clone()],
        allow_dest: vec!["127.0.0.1".parse()?],
        ..gateway_options()
    };
    let gateway = Running::start(Arc::new(gateway_options.typed()?)).await?;
    let gateway_at = gateway.address(&any).ok_or("the gateway does not listen")?;
    let between = way.spawn(gateway_at).await?;

    let listen: Endpoint = "http://127.0.0.1:0".parse()?;
    let client_options = ClientOptions {
        listen: vec![listen.clone()],
        gateway: vec![format!("{}+tcp://{}", args.session, between.address).parse()?],
        ..ClientOptions::default()
    };
    let without = ClientOptions {
        push: Some(false),
        ..client_options.clone()
    };
    let client = Running::start(Arc::new(client_options.typed()?)).await?;
    let proxy = client
        .address(&listen)
        .ok_or("the client does not listen")?;
    let without_push = Running::start(Arc::new(without.typed()?)).await?;
    let proxy_without_push = without_push
        .address(&listen)
        .ok_or("the client does not listen")?;
    Ok(Stage {
        site,
        direct,
        between,
        client,
        without_push,
        gateway,
        proxy,
        proxy_without_push,
    })
}

/// Returns the slow path that the user asks for.
fn slow_path(args: &DemoArgs) -> SlowPath {
    SlowPath {
        rtt: args.rtt.0,
        rate_up: args.rate.0,
        rate_down: args.rate.0,
    }
}

/// Returns the options that the gateways of the demo have in common.
fn gateway_options() -> GatewayOptions {
    GatewayOptions {
        open: Some(true),
        workers: Some(1),
        // Loads are few here, and each is to show the same.
        hold_out: Some(0.0),
        predict: Some(false),
        ..GatewayOptions::default()
    }
}

/// A way to load the page.
struct Setup {
    name: &'static str,
    proxy: Option<fn(&Stage) -> SocketAddr>,
    /// The largest number of requests in flight.
    in_flight: usize,
}

/// The ways that the demonstration compares. The first one is without a proxy.
const SETUPS: [Setup; 5] = [
    Setup {
        name: "HTTP/1.1, 6 connections",
        proxy: None,
        in_flight: 6,
    },
    Setup {
        name: "pair without push, 6 in flight",
        proxy: Some(|stage| stage.proxy_without_push),
        in_flight: 6,
    },
    Setup {
        name: "pair without push, 100 in flight",
        proxy: Some(|stage| stage.proxy_without_push),
        in_flight: 100,
    },
    Setup {
        name: "pair, 6 requests in flight",
        proxy: Some(|stage| stage.proxy),
        in_flight: 6,
    },
    Setup {
        name: "pair, 100 requests in flight",
        proxy: Some(|stage| stage.proxy),
        in_flight: 100,
    },
];

/// Loads the page once.
async fn load(setup: Setup, stage: &Stage) -> Result<Row, Failure> {
    let direct_site;
    let (via, site, slow) = match setup.proxy {
        Some(proxy) => {
            let proxy = proxy(stage).to_string();
            (Via::Http { proxy }, &stage.site, &stage.between)
        }
        None => {
            let address = stage.direct.address.to_string();
            direct_site = Site::new(stage.site.page().clone(), &[address])?;
            (Via::Direct, &direct_site, &stage.direct)
        }
    };
    let mut loader = Loader::new(via);
    loader.per_host = setup.in_flight;
    loader.discovery = Discovery::Triggers;
    let before = slow.carried();
    let load = loader.load(site).await?;
    let carried = slow.carried();
    Ok(Row {
        setup: setup.name.into(),
        time_s: load.time.as_secs_f64(),
        bytes_up: carried.up - before.up,
        bytes_down: carried.down - before.down,
        requests: load.requests.len(),
    })
}

async fn measure(
    args: &DemoArgs,
    stage: &Stage,
    progress: &ProgressBar,
) -> Result<Outcome, Failure> {
    let resources = stage.site.page().resources.len();
    let mut rows = Vec::new();
    for setup in SETUPS {
        let name = setup.name;
        progress.set_message(format!("loading {resources} resources: {name}"));
        rows.push(load(setup, stage).await?);
    }
    let bytes = |row: &Row| (row.bytes_up + row.bytes_down) as f64;
    let (plain, pair) = (&rows[0], &rows[rows.len() - 1]);
    Ok(Outcome {
        page: stage.site.page().name.clone(),
        resources,
        rtt_ms: args.rtt.0.as_secs_f64() * 1e3,
        rate_bit_s: args.rate.0,
        ratio_time: pair.time_s / plain.time_s,
        ratio_bytes: bytes(pair) / bytes(plain),
        rows,
    })
}

#[expect(clippy::print_stdout, reason = "the command's output")]
fn print(args: &DemoArgs, outcome: &Outcome, stage: &Stage) -> Result<(), Failure> {
    if args.json {
        println!("{}", serde_json::to_string_pretty(outcome)?);
        return Ok(());
    }
    println!(
        "Page {:?}, {} resources, over an emulated path of {} round trip and {}:\n",
        outcome.page, outcome.resources, args.rtt, args.rate
    );
    println!(
        "{:<34} {:>8} {:>12} {:>12} {:>9}",
        "setup", "seconds", "bytes up", "bytes down", "requests"
    );
    for row in &outcome.rows {
        println!(
            "{:<34} {:>8.2} {:>12} {:>12} {:>9}",
            row.setup, row.time_s, row.bytes_up, row.bytes_down, row.requests
        );
    }
    println!(
        "\nThe pair with 100 requests in flight takes {:.0} % of the time and {:.0} % of the bytes of plain HTTP/1.1.",
        outcome.ratio_time * 100.0,
        outcome.ratio_bytes * 100.0
    );
    println!(
        "Carried between the pair in all: {}.",
        total(stage.between.carried())
    );
    if !args.keep {
        println!("\nTo see it in a browser, run `tandem demo --keep`.");
    }
    Ok(())
}

fn total(carried: Carried) -> String {
    format!("{} bytes up, {} bytes down", carried.up, carried.down)
}

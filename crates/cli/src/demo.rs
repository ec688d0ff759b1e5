//! `tandem demo`: the product's main job on a machine that has nothing but this program.
//!
//! ```text
//!  loader ─────────────── slow path ──────────────▶ origin         (plain HTTP/1.1, 6 connections)
//!  loader ─▶ client ═════ slow path ═════▶ gateway ─▶ origin        (the pair)
//! ```
//!
//! Origin, pairs, loader and modelled slow paths ([`tandem_net::slowpath`]) run in this process.
//! The page is a real page's structure with synthetic bodies, each of which is checked byte by
//! byte. Each row of the table has a pair and a path of its own, so that no load uses caches,
//! dictionaries or connections of an earlier one. `kept` serves a browser.

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
use tandem_net::slowpath::{Running as Slow, SlowPath};
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

/// The time limit for open sessions when a pair ends.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest time that the session of a pair may take until it is ready.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// The page and its origin, which all rows share.
struct Scene {
    site: Site,
    origin: SocketAddr,
    way: SlowPath,
    session: String,
}

/// A gateway, and the slow path to it.
struct FarEnd {
    gateway: Running,
    between: Slow,
}

/// The pair of one row.
struct Pair {
    client: Running,
    proxy: SocketAddr,
    far: FarEnd,
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
        let scene = Scene::start(args).await?;
        let outcome = measure(args, &scene, &progress).await?;
        progress.finish_and_clear();
        print(args, &outcome)?;
        if args.keep {
            let page = scene.site.page().clone();
            let far = FarEnd::start(&scene).await?;
            let other = far.between.address;
            let kept = Kept::start(page, &args.session, scene.way, other).await?;
            kept.wait().await?;
            far.gateway.drain(DRAIN_TIMEOUT).await;
        }
        Ok(())
    })
}

impl Scene {
    /// Starts the origin.
    async fn start(args: &DemoArgs) -> Result<Self, Failure> {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
        let origin = listener.local_addr()?;
        let page = if args.page == "demo" {
            Page::demo()?
        } else {
            Page::open(&args.page)?
        };
        let site = Site::new(page, &[origin.to_string()])?;
        tokio::spawn(Origin::new(site.clone()).serve(listener));
        Ok(Self {
            site,
            origin,
            way: SlowPath {
                rtt: args.rtt.0,
                rate_up: args.rate.0,
                rate_down: args.rate.0,
            },
            session: args.session.clone(),
        })
    }
}

impl FarEnd {
    /// Starts a gateway that may connect to the origin.
    async fn start(scene: &Scene) -> Result<Self, Failure> {
        let any: Endpoint = format!("{}+tcp://127.0.0.1:0", scene.session).parse()?;
        let options = GatewayOptions {
            listen: vec![any.clone()],
            allow_dest: vec!["127.0.0.1".parse()?],
            ..gateway_options()
        };
        let gateway = Running::start(Arc::new(options.typed()?)).await?;
        let address = gateway.address(&any).ok_or("the gateway does not listen")?;
        let between = scene.way.spawn(address).await?;
        Ok(Self { gateway, between })
    }
}

impl Pair {
    /// Starts a pair, and waits until its session is ready. The client takes pushes if `push` says
    /// so.
    async fn start(scene: &Scene, push: bool) -> Result<Self, Failure> {
        let far = FarEnd::start(scene).await?;
        let listen: Endpoint = "http://127.0.0.1:0".parse()?;
        let options = ClientOptions {
            listen: vec![listen.clone()],
            gateway: vec![format!("{}+tcp://{}", scene.session, far.between.address).parse()?],
            push: Some(push),
            ..ClientOptions::default()
        };
        let client = Running::start(Arc::new(options.typed()?)).await?;
        let proxy = client
            .address(&listen)
            .ok_or("the client does not listen")?;
        let pair = Self { client, proxy, far };
        tokio::time::timeout(READY_TIMEOUT, pair.ready(scene.way.rtt))
            .await
            .map_err(|_| "the session of the pair did not become ready")?;
        Ok(pair)
    }

    /// Waits until the session is open and the path is idle. A client opens its session at its
    /// start, usually long before the user's first page.
    async fn ready(&self, rtt: Duration) {
        let pause = 2 * rtt + Duration::from_millis(100);
        let mut before = self.far.between.carried();
        loop {
            tokio::time::sleep(pause).await;
            let carried = self.far.between.carried();
            if carried.down > 0 && carried == before {
                return;
            }
            before = carried;
        }
    }

    async fn end(self) {
        self.client.drain(DRAIN_TIMEOUT).await;
        self.far.gateway.drain(DRAIN_TIMEOUT).await;
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
    /// The use of push between the pair, or `None` without a pair.
    push: Option<bool>,
    /// The largest number of requests in flight.
    in_flight: usize,
}

/// The ways that the demonstration compares. The first one is without a proxy.
const SETUPS: [Setup; 5] = [
    Setup {
        name: "HTTP/1.1, 6 connections",
        push: None,
        in_flight: 6,
    },
    Setup {
        name: "pair without push, 6 requests in flight",
        push: Some(false),
        in_flight: 6,
    },
    Setup {
        name: "pair without push, 100 requests in flight",
        push: Some(false),
        in_flight: 100,
    },
    Setup {
        name: "pair, 6 requests in flight",
        push: Some(true),
        in_flight: 6,
    },
    Setup {
        name: "pair, 100 requests in flight",
        push: Some(true),
        in_flight: 100,
    },
];

/// Loads the page once, by new connections.
async fn load(setup: &Setup, scene: &Scene) -> Result<Row, Failure> {
    let Some(push) = setup.push else {
        let slow = scene.way.spawn(scene.origin).await?;
        let site = Site::new(scene.site.page().clone(), &[slow.address.to_string()])?;
        return load_over(setup, Via::Direct, &site, &slow).await;
    };
    let pair = Pair::start(scene, push).await?;
    let proxy = pair.proxy.to_string();
    let row = load_over(setup, Via::Http { proxy }, &scene.site, &pair.far.between).await;
    pair.end().await;
    row
}

/// Loads `site` once, and counts the bytes on the path `slow`.
async fn load_over(setup: &Setup, via: Via, site: &Site, slow: &Slow) -> Result<Row, Failure> {
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
    scene: &Scene,
    progress: &ProgressBar,
) -> Result<Outcome, Failure> {
    let resources = scene.site.page().resources.len();
    let mut rows = Vec::new();
    for setup in &SETUPS {
        let name = setup.name;
        progress.set_message(format!("loading {resources} resources: {name}"));
        rows.push(load(setup, scene).await?);
    }
    let bytes = |row: &Row| (row.bytes_up + row.bytes_down) as f64;
    let (plain, pair) = (&rows[0], &rows[rows.len() - 1]);
    Ok(Outcome {
        page: scene.site.page().name.clone(),
        resources,
        rtt_ms: args.rtt.0.as_secs_f64() * 1e3,
        rate_bit_s: args.rate.0,
        ratio_time: pair.time_s / plain.time_s,
        ratio_bytes: bytes(pair) / bytes(plain),
        rows,
    })
}

fn print(args: &DemoArgs, outcome: &Outcome) -> Result<(), Failure> {
    if args.json {
        tandem::cli::print(serde_json::to_string_pretty(outcome)?)?;
        return Ok(());
    }
    tandem::cli::print(format_args!(
        "Page {:?}, {} resources, over an emulated path of {} round trip and {}:\n",
        outcome.page, outcome.resources, args.rtt, args.rate
    ))?;
    tandem::cli::print(format_args!(
        "{:<41} {:>8} {:>12} {:>12} {:>9}",
        "set-up", "seconds", "bytes up", "bytes down", "requests"
    ))?;
    for row in &outcome.rows {
        tandem::cli::print(format_args!(
            "{:<41} {:>8.2} {:>12} {:>12} {:>9}",
            row.setup, row.time_s, row.bytes_up, row.bytes_down, row.requests
        ))?;
    }
    tandem::cli::print(format_args!(
        "\nThe pair with 100 requests in flight takes {:.0} % of the time and {:.0} % of the bytes \
         of plain HTTP/1.1.",
        outcome.ratio_time * 100.0,
        outcome.ratio_bytes * 100.0
    ))?;
    if !args.keep {
        tandem::cli::print("\nTo see it in a browser, run `tandem demo --keep`.")?;
    }
    Ok(())
}

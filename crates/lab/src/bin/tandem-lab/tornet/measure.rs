//! `tandem-lab tornet measure`: pages over the private Tor network, plain, through the pair with
//! and without push, and through a client without a gateway.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command as Program, ExitCode, Stdio};

use clap::{Args, ValueEnum};
use tandem_lab::tornet::measure::{
    BoundKnowledge, GatewayProtocol, MeasurePlan, PagePlace, PushMode, SoloVisit, run as measure,
};
use tandem_lab::tornet::state::Phase;
use tandem_lab::tornet::{RunDirectory, take_down};
use tandem_net::emulator::sys::{self, ChildSetup};
use tandem_net::output;
use tandem_web::loader;

use super::{Failure, Instance, say};

const SIGNALS: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

#[derive(Debug, Args)]
pub(crate) struct MeasureArguments {
    #[command(flatten)]
    instance: Instance,
    /// The program under test; by default `tandem` beside this program
    #[arg(long, value_name = "FILE")]
    tandem: Option<PathBuf>,
    /// Pages by name, or files (recorded pages, HAR, page models), or directories of such; a
    /// network that is up must serve them, otherwise one is brought up for the measurement
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "thesis,gallery:100x2000",
        value_name = "PAGE"
    )]
    pages: Vec<String>,
    /// Session protocols between client and gateway
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "h2,spdy3.1",
        value_name = "SESSION"
    )]
    sessions: Vec<GatewayProtocol>,
    /// Requests that the loader has in flight at the client; a browser has 6
    #[arg(long, value_delimiter = ',', default_value = "6", value_name = "NUMBER", value_parser = in_flight)]
    in_flight: Vec<usize>,
    /// Pushes of the gateway, a setup for each
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "off,first,visited",
        value_name = "WHAT"
    )]
    push: Vec<PushMode>,
    /// Visits through a client without a gateway (--solo), a setup for each
    #[arg(long, value_delimiter = ',', value_name = "VISIT")]
    solo: Vec<SoloVisit>,
    /// Loads over many connections with early data and this knowledge, a setup for each: no client
    /// can do much better
    #[arg(long, value_delimiter = ',', value_name = "KNOWN")]
    bound: Vec<BoundKnowledge>,
    /// The connections of these loads
    #[arg(long, default_value = "64", value_name = "NUMBER", value_parser = in_flight)]
    bound_connections: usize,
    /// Do not load through the pair; all pages then have an onion service
    #[arg(long, requires = "solo", conflicts_with_all = ["sessions", "in_flight", "push"])]
    no_pair: bool,
    /// Visits of other users before the first load of a visited site
    #[arg(long, default_value_t = 4, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=100))]
    visits: u16,
    /// Turns that each setup gets, in alternation
    #[arg(long, default_value_t = 3, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=1000))]
    passes: u16,
    /// Load the first page from the onion service, too; with --no-pair all pages. Before each of
    /// these loads tor forgets the descriptors of services, so that none begins with one
    #[arg(long)]
    onion: bool,
    /// Do not load through the exit
    #[arg(long, requires = "onion")]
    no_exit: bool,
    /// Resources that the loader knows from the start
    #[arg(long, default_value = "document", value_name = "WHAT")]
    known: Known,
    /// Load the page once before, unmeasured, over the same circuit and session. Tor then has the
    /// descriptor of an onion service
    #[arg(long)]
    warm: bool,
    /// Plain HTTP/1.1 sends its first requests with the SOCKS handshake, as no browser does
    #[arg(long)]
    optimistic: bool,
    /// A network that is brought up for this: Conflux off at its client
    #[arg(long)]
    no_conflux: bool,
    /// Write a HAR file of every load into this directory, and the counters of the client
    #[arg(long, value_name = "DIRECTORY")]
    har: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Further arguments for `tandem client`
    #[arg(last = true, value_name = "ARGUMENT")]
    client_arguments: Vec<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Known {
    /// All addresses, as the thesis' loader did
    Everything,
    /// The page's document, as a browser does
    Document,
}

fn in_flight(text: &str) -> Result<usize, String> {
    text.parse()
        .ok()
        .filter(|count| (1..=1000).contains(count))
        .ok_or_else(|| "not a number from 1 to 1000".to_owned())
}

/// Measures.
pub(super) fn run(arguments: MeasureArguments) -> Result<ExitCode, Failure> {
    let json = arguments.json;
    let no_conflux = arguments.no_conflux;
    let plan = plan(arguments)?;
    if let Some(directory) = &plan.har {
        std::fs::create_dir_all(directory)
            .map_err(|error| format!("{}: {error}", directory.display()))?;
    }
    sys::block_signals(&SIGNALS)?;
    let network = NetworkArguments::of(&plan, no_conflux)?;
    network.end_on_signals()?;
    let report = measure(&plan, &mut say)?;
    if json {
        output::print(serde_json::to_string_pretty(&report)?)?;
    } else {
        output::print(report.table())?;
    }
    let complete = report.rows.iter().all(|row| row.failures.is_empty());
    Ok(if complete {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(4)
    })
}

fn plan(arguments: MeasureArguments) -> Result<MeasurePlan, Box<dyn Error>> {
    let tandem = tandem_lab::bench::programs::tandem(arguments.tandem.as_deref())?;
    let mut ways = if arguments.no_exit {
        Vec::new()
    } else {
        vec![PagePlace::Exit]
    };
    ways.extend(arguments.onion.then_some(PagePlace::Onion));
    if arguments.warm && arguments.solo.contains(&SoloVisit::First) {
        return Err("--warm loads each page before, so --solo first is not a first visit".into());
    }
    Ok(MeasurePlan {
        instance: arguments.instance.instance,
        tandem,
        pages: pages(&arguments.pages)?,
        ways,
        sessions: match arguments.no_pair {
            true => Vec::new(),
            false => arguments.sessions,
        },
        in_flight: arguments.in_flight,
        pushes: arguments.push,
        solo: arguments.solo,
        bounds: arguments.bound,
        bound_connections: arguments.bound_connections,
        visits: arguments.visits.into(),
        passes: arguments.passes.into(),
        discovery: match arguments.known {
            Known::Everything => loader::Discovery::List,
            Known::Document => loader::Discovery::Triggers,
        },
        warm: arguments.warm,
        optimistic: arguments.optimistic,
        har: arguments.har,
        client_arguments: arguments.client_arguments,
    })
}

/// Directories as the files in them; files as `tornet up` notes them.
fn pages(given: &[String]) -> Result<Vec<String>, Failure> {
    let mut pages = Vec::new();
    for page in given {
        let path = Path::new(page);
        let mut files = match std::fs::read_dir(path) {
            Ok(entries) => entries
                .map(|entry| Ok(entry?.path()))
                .collect::<std::io::Result<Vec<_>>>()?,
            Err(_) if path.is_file() => vec![path.to_owned()],
            Err(_) => {
                pages.push(page.clone());
                continue;
            }
        };
        let is_page = |file: &PathBuf| {
            file.extension()
                .is_some_and(|end| end == "json" || end == "har")
        };
        files.retain(|file| !path.is_dir() || is_page(file));
        if files.is_empty() {
            return Err(format!("no page in {page}").into());
        }
        files.sort();
        for file in files {
            pages.push(std::path::absolute(file)?.display().to_string());
        }
    }
    Ok(pages)
}

/// Returns the arguments for a network in which each page has an onion service. The first page
/// always has one.
fn onion_arguments(plan: &MeasurePlan) -> Vec<String> {
    let others = plan.pages.get(1..).unwrap_or_default();
    if !plan.ways.contains(&PagePlace::Onion) || !plan.sessions.is_empty() || others.is_empty() {
        return Vec::new();
    }
    let mut arguments = vec!["--onions".to_owned(), others.len().to_string()];
    arguments.extend(others.iter().map(|page| format!("--onion-page={page}")));
    arguments
}

/// The network that is measured; taken down at the end if it was brought up for this.
struct NetworkArguments {
    instance: String,
    own: bool,
}

impl NetworkArguments {
    fn of(plan: &MeasurePlan, no_conflux: bool) -> Result<Self, Failure> {
        let instance = plan.instance.clone();
        let state = RunDirectory::of(&instance)?.load()?;
        if state.is_some_and(|state| state.phase == Phase::Ready && state.supervisor.is_alive()) {
            return Ok(Self {
                instance,
                own: false,
            });
        }
        let network = Self {
            instance,
            own: true,
        };
        let mut up = Program::new(std::env::current_exe()?);
        up.args(["tornet", "up", "--instance", &network.instance, "--gateway"])
            .arg(&plan.tandem);
        up.args(plan.pages.iter().flat_map(|page| ["--page", page]));
        up.args(no_conflux.then_some("--no-conflux"));
        up.args(onion_arguments(plan));
        sys::prepare(&mut up, ChildSetup::default());
        sys::unblock_in_child(&mut up);
        let status = up.stdin(Stdio::null()).status()?;
        if status.success() {
            Ok(network)
        } else {
            Err("no network to measure".into())
        }
    }

    /// A signal ends the measurement, and the network if it is ours; the client dies with this
    /// process.
    fn end_on_signals(&self) -> std::io::Result<()> {
        let own = self.own.then(|| self.instance.clone());
        let watch = move || {
            while sys::wait_signal(&SIGNALS, None).is_none() {}
            if let Some(instance) = own {
                let _ = take_down(&instance, &mut say);
            }
            std::process::exit(130);
        };
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(watch)
            .map(drop)
    }
}

impl Drop for NetworkArguments {
    fn drop(&mut self) {
        if self.own
            && let Err(error) = take_down(&self.instance, &mut say)
        {
            say(&format!("tandem-lab: {error}"));
        }
    }
}

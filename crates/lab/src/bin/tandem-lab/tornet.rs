//! `tandem-lab tornet`: a private Tor network, up, looked at, used, measured, and down.

mod discover;
mod measure;

use std::error::Error;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command as Program, ExitCode, Stdio};
use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Serialize;
use tandem_lab::tornet::layout::MOST_SITES;
use tandem_lab::tornet::onions::{MOST_ONIONS, OnionSites};
use tandem_lab::tornet::state::Phase;
use tandem_lab::tornet::torrc::Variant;
use tandem_lab::tornet::{
    Request, RunDirectory, State, TornetError, TornetOrigin, namespaces, take_down, up,
};
use tandem_link::text;
use tandem_net::emulator::Snapshot;
use tandem_net::emulator::sys::{self, ChildSetup};
use tandem_net::output;
use tandem_web::page::Page;

type Failure = Box<dyn Error>;

/// The commands on the network.
#[derive(Debug, Subcommand)]
pub(crate) enum TornetCommand {
    /// Brings the network up and returns when it carries traffic
    Up(UpArguments),
    /// Shows the running network and its addresses
    Status(StatusArguments),
    /// Removes everything, also the remains of a killed `up`
    Down(Instance),
    /// Runs a command on a node
    Exec(ExecArguments),
    /// Loads pages with plain HTTP/1.1, through the pair, and through a client without a gateway,
    /// in alternation
    Measure(measure::MeasureArguments),
    /// Loads the onion services with the discovery of gateways, without, and by tor alone
    Discover(discover::DiscoverArguments),
}

/// The selected network.
#[derive(Debug, Args)]
pub(crate) struct Instance {
    /// Name of the network, to have several on one machine
    #[arg(long, default_value = "tor", value_name = "NAME")]
    instance: String,
}

#[derive(Debug, Args)]
pub(crate) struct UpArguments {
    #[command(flatten)]
    instance: Instance,
    /// Delay in one direction between two Tor nodes
    #[arg(long, default_value = "40ms", value_name = "TIME", value_parser = text::duration)]
    delay: Duration,
    /// Delay in one direction between exit and web host
    #[arg(long, default_value = "10ms", value_name = "TIME", value_parser = text::duration)]
    web_delay: Duration,
    /// Exits without a gateway, to see that clients find the right one
    #[arg(long, default_value_t = 0, value_name = "NUMBER", value_parser = clap::value_parser!(u8).range(0..=9))]
    plain_exits: u8,
    /// Congestion control of every host's TCP, whatever this machine's own is
    #[arg(long, default_value = "cubic", value_name = "NAME")]
    congestion: String,
    /// Switch Conflux off at the client, which lets optimistic data leave early
    #[arg(long)]
    no_conflux: bool,
    /// The program that has the `gateway` command; by default `tandem` beside this program
    #[arg(long, value_name = "FILE", conflicts_with = "no_gateway")]
    gateway: Option<PathBuf>,
    /// Run no gateways
    #[arg(long)]
    no_gateway: bool,
    /// Page of site1.test and the onion service, then of site2.test, …; names as for `tandem-lab
    /// origin`
    #[arg(long = "page", value_name = "PAGE", default_values = ["thesis", "gallery:100x2000"])]
    pages: Vec<String>,
    /// Shell command of another origin, listening on port 80; run on the web host and the onion
    /// host
    #[arg(long, value_name = "COMMAND", conflicts_with = "pages")]
    origin: Option<String>,
    /// Onion services with a page each, besides the first one
    #[arg(long, default_value_t = 0, value_name = "NUMBER", value_parser = clap::value_parser!(u8).range(0..=i64::from(MOST_ONIONS)))]
    onions: u8,
    /// Number of the onion services with a gateway, which announces itself
    #[arg(long, default_value_t = 0, value_name = "NUMBER", requires = "onions")]
    onion_gateways: u8,
    /// Page of the onion services; several take turns
    #[arg(
        long = "onion-page",
        default_value = "gallery:100x2000",
        value_name = "PAGE"
    )]
    onion_pages: Vec<String>,
    /// Stay in the foreground until interrupted
    #[arg(long)]
    foreground: bool,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArguments {
    #[command(flatten)]
    instance: Instance,
    /// Print JSON, with counters of all links
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ExecArguments {
    #[command(flatten)]
    instance: Instance,
    /// The node, e.g. client, exit, web
    node: String,
    /// The command to run; a shell unless given
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Does it.
pub(crate) fn run(command: TornetCommand) -> Result<ExitCode, Failure> {
    match command {
        TornetCommand::Up(arguments) if arguments.foreground => {
            up(&request(&arguments)?, &mut say)?
        }
        TornetCommand::Up(arguments) => return up_in_background(&arguments),
        TornetCommand::Status(arguments) => return status(&arguments),
        TornetCommand::Down(Instance { instance }) => take_down(&instance, &mut say)?,
        TornetCommand::Exec(arguments) => return exec(&arguments),
        TornetCommand::Measure(arguments) => return measure::run(arguments),
        TornetCommand::Discover(arguments) => return discover::run(arguments),
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints progress. The line is lost if standard error is closed.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn request(arguments: &UpArguments) -> Result<Request, Failure> {
    Ok(Request {
        instance: arguments.instance.instance.clone(),
        delay: arguments.delay,
        web_delay: arguments.web_delay,
        plain_exits: arguments.plain_exits,
        congestion: arguments.congestion.clone(),
        variant: Variant {
            no_conflux: arguments.no_conflux,
            onions: OnionSites {
                count: arguments.onions,
                gateways: arguments.onion_gateways.min(arguments.onions),
                pages: arguments.onion_pages.clone(),
            },
        },
        gateway: gateway(arguments)?,
        origin: origin(arguments)?,
    })
}

fn origin(arguments: &UpArguments) -> Result<TornetOrigin, Failure> {
    if let Some(line) = &arguments.origin {
        return Ok(TornetOrigin::Shell(line.clone()));
    }
    if arguments.pages.len() > usize::from(MOST_SITES) {
        return Err(format!("at most {MOST_SITES} pages").into());
    }
    let absolute = |page: &String| {
        // A file is opened by a process that may stand elsewhere.
        let file = std::path::absolute(page).ok().filter(|file| file.is_file());
        Page::open(page)
            .map(|_| file.map_or_else(|| page.clone(), |file| file.display().to_string()))
    };
    let pages = arguments
        .pages
        .iter()
        .map(absolute)
        .collect::<Result<_, _>>()?;
    Ok(TornetOrigin::Pages(std::env::current_exe()?, pages))
}

fn gateway(arguments: &UpArguments) -> Result<Option<PathBuf>, Failure> {
    if arguments.no_gateway {
        return Ok(None);
    }
    let file = match &arguments.gateway {
        Some(file) => file.clone(),
        None => std::env::current_exe()?.with_file_name("tandem"),
    };
    if file.is_file() {
        Ok(Some(std::path::absolute(file)?))
    } else {
        let hint = "build it with `cargo build --release --locked -p tandem-cli`, name another \
                    with --gateway, or use --no-gateway";
        Err(format!("no gateway program {}: {hint}", file.display()).into())
    }
}

/// Starts this program again in the background, and shows its log until the network is up.
fn up_in_background(arguments: &UpArguments) -> Result<ExitCode, Failure> {
    // A directory that another user has made would keep root from it.
    if std::fs::metadata("/proc/self")?.uid() != 0 {
        return Err("a Tor network needs root, for network namespaces with names".into());
    }
    let directory = RunDirectory::of(&request(arguments)?.instance)?;
    if let Some(state) = directory
        .load()?
        .filter(|state| state.supervisor.is_alive())
    {
        return Err(format!(
            "{} is up already (process {})",
            state.instance, state.supervisor.pid
        )
        .into());
    }
    take_down(&arguments.instance.instance, &mut say)?;
    directory.create()?;
    let log = File::create(directory.log_file())?;
    let mut command = Program::new(std::env::current_exe()?);
    command
        .args(std::env::args_os().skip(1))
        .arg("--foreground");
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    sys::prepare(
        &mut command,
        ChildSetup {
            network: None,
            die_with_parent: false,
            own_session: true,
        },
    );
    let child = command.spawn()?;
    follow(child, &directory)
}

fn follow(mut child: Child, directory: &RunDirectory) -> Result<ExitCode, Failure> {
    let mut log = File::open(directory.log_file())?;
    let mut shown = 0;
    loop {
        let ended = child.try_wait()?;
        let mut text = String::new();
        log.seek(SeekFrom::Start(shown))?;
        shown += log.read_to_string(&mut text)? as u64;
        output::note(text);
        if let Some(status) = ended {
            if directory.load()?.is_none() {
                directory.remove()?;
                return Err(format!("the network did not come up ({status})").into());
            }
            return Err(format!(
                "the network did not come up ({status}); see {}",
                directory.path().display()
            )
            .into());
        }
        let state = directory.load()?;
        if let Some(state) = state.filter(|state| state.phase == Phase::Ready) {
            output::note(describe(&state));
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Everything about a network, for programs.
#[derive(Serialize)]
struct TornetReport {
    up: bool,
    #[serde(flatten)]
    state: Option<State>,
    dead: Vec<String>,
    counters: Option<Snapshot>,
}

fn status(arguments: &StatusArguments) -> Result<ExitCode, Failure> {
    let directory = RunDirectory::of(&arguments.instance.instance)?;
    let state = directory.load()?;
    let alive = state
        .as_ref()
        .is_some_and(|state| state.supervisor.is_alive());
    let dead: Vec<String> = state
        .iter()
        .flat_map(|state| &state.processes)
        .filter(|process| !process.is_alive())
        .map(|p| format!("{} on {}", p.program, p.node))
        .collect();
    let counters = if alive {
        directory.counters().ok()
    } else {
        None
    };
    let up = alive
        && state
            .as_ref()
            .is_some_and(|state| state.phase == Phase::Ready);
    if arguments.json {
        output::print(serde_json::to_string_pretty(&TornetReport {
            up,
            state,
            dead,
            counters,
        })?)?;
    } else {
        output::print(in_words(state.as_ref(), alive, &dead, counters.as_ref()))?;
    }
    Ok(if up {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(3)
    })
}

fn in_words(
    state: Option<&State>,
    alive: bool,
    dead: &[String],
    counters: Option<&Snapshot>,
) -> String {
    let Some(state) = state else {
        return "down\n".into();
    };
    let mut out = match &state.phase {
        Phase::Failed(reason) => format!("failed: {reason}\n"),
        _ if !alive => "killed: run `tandem-lab tornet down` to remove the remains\n".into(),
        Phase::Starting => "starting\n".into(),
        Phase::Ready => describe(state),
    };
    if alive && !dead.is_empty() {
        out += &format!("ended: {}\n", dead.join(", "));
    }
    if let Some(port) = counters.and_then(|counters| counters.port("client")) {
        let (sent, received) = (port.sent, port.received);
        out += &format!(
            "client's link: {} packets, {} bytes sent; {} packets, {} bytes received\n",
            sent.packets, sent.bytes, received.packets, received.bytes
        );
    }
    out
}

fn describe(state: &State) -> String {
    let ends = &state.endpoints;
    let none = || "none".to_owned();
    let sites: String = ends
        .sites
        .iter()
        .map(|site| format!("http://{}/ ({}): {}\n", site.host, site.address, site.page))
        .collect();
    let onions: String = ends
        .onions
        .iter()
        .map(|site| {
            let gateway = if site.has_gateway {
                " (announces a gateway)"
            } else {
                ""
            };
            format!(
                "onion service: http://{}/{gateway}: {}\n",
                site.host, site.page
            )
        })
        .collect();
    format!(
        "up: {nodes} nodes, {delay} ms between relays, {web} ms from exit to web\n\
         run programs beside the client: ip netns exec {client} COMMAND\n\
         there: SOCKS {socks}, control port {control}, HTTP CONNECT {tunnel}\n\
         from everywhere: SOCKS {socks_socket}, control {control_socket}\n\
         {sites}onion service: http://{onion}/ (gateway on port 9980)\n{onions}\
         gateway at the exit: {gateway}, exit {fingerprint}\n",
        nodes = state.nodes.len(),
        delay = state.delay_ms,
        web = state.web_delay_ms,
        client = ends.client_namespace,
        socks = ends.socks,
        control = ends.control,
        tunnel = ends.http_tunnel,
        socks_socket = ends.socks_socket.display(),
        control_socket = ends.control_socket.display(),
        sites = sites,
        onion = ends.onion.clone().unwrap_or_else(none),
        gateway = ends.exit_gateway.clone().unwrap_or_else(none),
        fingerprint = ends.exit_fingerprint,
    )
}

fn exec(arguments: &ExecArguments) -> Result<ExitCode, Failure> {
    let instance = &arguments.instance.instance;
    let state = RunDirectory::of(instance)?.load()?;
    let state = state.ok_or_else(|| TornetError::State(format!("{instance} is not up")))?;
    let node = state.nodes.iter().find(|node| node.name == arguments.node);
    let Some(node) = node else {
        let names: Vec<&str> = state.nodes.iter().map(|node| node.name.as_str()).collect();
        return Err(format!(
            "no node {:?}; there are: {}",
            arguments.node,
            names.join(", ")
        )
        .into());
    };
    let shell = || vec![std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into())];
    let command = if arguments.command.is_empty() {
        shell()
    } else {
        arguments.command.clone()
    };
    let error = Program::new(namespaces::ip()?)
        .args(["netns", "exec", &node.namespace])
        .args(command)
        .exec();
    Err(error.into())
}

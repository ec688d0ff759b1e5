//! Sets the network up, runs the command in it, reports, and leaves nothing behind.

use std::error::Error;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::net::Ipv4Addr;
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitCode};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use tandem_link::LinkConfig;
use tandem_link::rate::Rate;
use tandem_net::emulator::counters;
use tandem_net::emulator::network::{self, Setup};
use tandem_net::emulator::report::LOG_HEADER;
use tandem_net::emulator::sys::{self, ChildSetup};
use tandem_net::emulator::topology::{HostPlan, LinkPlan, OUTSIDE, Topology};
use tandem_net::emulator::{Emulator, EmulatorError, Snapshot};
use tandem_net::netns::Netns;
use tandem_net::output;

use crate::addresses::{self, Addresses};
use crate::init;
use crate::options::{RunArguments, ShellArguments, TopologyArguments};
use crate::record::Record;
use crate::rootless;

type Failure = Box<dyn Error>;

const SIGNALS: [i32; 5] = [
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGCHLD,
];

/// Name of the command's host.
const INSIDE: &str = "command";

fn read_trace(path: &str) -> io::Result<String> {
    std::fs::read_to_string(path)
}

/// Runs a link between the outer namespace and the command.
pub(crate) fn run_link(arguments: &ShellArguments) -> Result<ExitCode, Failure> {
    let directions = arguments.link.directions("link", &read_trace)?;
    let Addresses { network, peer, own } = Addresses::choose()?;
    let host = |name: &str, address: Ipv4Addr, networks| HostPlan {
        name: name.into(),
        addresses: vec![address.into()],
        networks,
        run: None,
    };
    let topology = Topology {
        seed: arguments.seed,
        hosts: vec![
            host(OUTSIDE, peer, Vec::new()),
            host(INSIDE, own, vec![network]),
        ],
        routers: Vec::new(),
        links: vec![LinkPlan {
            between: [OUTSIDE.into(), INSIDE.into()],
            directions,
        }],
    };
    let variables = [
        ("TANDEM_LINK_PEER", peer.to_string()),
        ("TANDEM_LINK_ADDRESS", own.to_string()),
        (
            addresses::NETWORK,
            format!("{}/{}", network.base, network.bits),
        ),
    ];
    let variables = variables
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec();
    run(&topology, INSIDE, variables, &arguments.run)
}

/// A network from a file.
pub(crate) fn run_topology(arguments: &TopologyArguments) -> Result<ExitCode, Failure> {
    let file = &arguments.file;
    let text = std::fs::read_to_string(file)
        .map_err(EmulatorError::of(format!("read {}", file.display())))?;
    let topology = Topology::parse(&text, &read_trace)?;
    let first = topology.hosts.iter().find(|host| host.name != OUTSIDE);
    let first = first.ok_or("a topology needs a host to run the command on")?;
    let on = arguments.on.as_deref().unwrap_or(&first.name);
    let variable = |host: &HostPlan| {
        let name = host.name.to_uppercase().replace('-', "_");
        host.addresses
            .first()
            .map(|address| (format!("TANDEM_LINK_{name}"), address.to_string()))
    };
    let variables = topology.hosts.iter().filter_map(variable).collect();
    run(&topology, on, variables, &arguments.run)
}

fn run(
    topology: &Topology,
    on: &str,
    variables: Vec<(String, String)>,
    arguments: &RunArguments,
) -> Result<ExitCode, Failure> {
    let Some(place) = topology
        .hosts
        .iter()
        .position(|host| host.name == on && on != OUTSIDE)
    else {
        return Err(network::NetworkError::NoHost(on.into()).into());
    };
    // A file that cannot be written fails before the command, and loses no counters.
    let record = arguments.json.as_deref().map(RecordFile::create);
    let record = record.transpose()?;
    let user = rootless::become_administrator()?;
    sys::block_signals(&SIGNALS)?;
    let make = |host: &HostPlan| namespace(host, user.is_some());
    let namespaces = topology
        .hosts
        .iter()
        .map(make)
        .collect::<Result<Vec<_>, _>>()?;
    let setup = Setup {
        no_realtime: arguments.no_realtime,
        mtu: arguments.mtu,
        tcp: arguments.tcp(),
        captures: arguments
            .pcap
            .iter()
            .map(|path| (on.to_owned(), path.clone()))
            .collect(),
        outside_device: format!("tl{}", std::process::id()),
        relay_outside: user.is_some(),
    };
    let emulator = network::set_up(topology, &namespaces, &setup)?;
    if let Some(warning) = emulator.warning().filter(|_| !arguments.quiet) {
        output::note(format_args!("tandem-link: {warning}\n"));
    }
    if !arguments.quiet && topology.links.iter().any(has_idle_queue) {
        output::note(format_args!(
            "tandem-link: a queue never fills without a rate; add --rate\n"
        ));
    }
    if user.is_some() && !arguments.quiet && topology.hosts.iter().any(|host| host.name == OUTSIDE)
    {
        output::note(format_args!(
            "tandem-link: not root: TCP and UDP go on to the host around through a relay\n"
        ));
    }
    let mut log = arguments
        .log
        .as_ref()
        .map(|path| Log::create(path))
        .transpose()?;
    let mut variables = variables;
    variables.extend(user.map(|user| (rootless::VARIABLE.to_owned(), user.to_string())));
    let background = start_background(topology, &namespaces, &variables)?;
    counters::serve(&namespaces[place], on, emulator.watch())
        .map_err(EmulatorError::of("offer counters"))?;
    variables.push((counters::VARIABLE.to_owned(), counters::NAME.to_owned()));
    let mut program = spawn(&command_line(arguments), &namespaces[place], &variables)?;
    let code = supervise(&mut program.child, &emulator, arguments, &mut log);
    drop((program, background));
    let (snapshot, result) = emulator.stop();
    finish(snapshot, topology, arguments, log, record)?;
    result?;
    Ok(ExitCode::from(code?))
}

/// Without root, the namespace around cannot be part of the network: one of ours stands for it.
fn namespace(host: &HostPlan, rootless: bool) -> Result<Netns, EmulatorError> {
    let made = if host.name == OUTSIDE && !rootless {
        Netns::current()
    } else {
        Netns::unnamed()
    };
    made.map_err(EmulatorError::of(format!(
        "make a network namespace for {}",
        host.name
    )))
}

fn command_line(arguments: &RunArguments) -> Vec<OsString> {
    if arguments.command.is_empty() {
        vec![std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into())]
    } else {
        arguments.command.clone()
    }
}

/// A program under [`init`], which dies with this value at the latest.
struct Program {
    child: Child,
    /// Keeps the thread alive that is the child's parent: the child is killed when that ends.
    _parent: Sender<()>,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start_background(
    topology: &Topology,
    namespaces: &[Netns],
    variables: &[(String, String)],
) -> Result<Vec<Program>, Failure> {
    let mut started = Vec::new();
    for (host, namespace) in topology.hosts.iter().zip(namespaces) {
        if let Some(run) = &host.run {
            let line = vec!["/bin/sh".into(), "-c".into(), run.into()];
            started.push(spawn(&line, namespace, variables)?);
        }
    }
    Ok(started)
}

/// Starts a command under [`init`] in a new process namespace.
fn spawn(
    line: &[OsString],
    namespace: &Netns,
    variables: &[(String, String)],
) -> Result<Program, EmulatorError> {
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0(init::NAME)
        .args(line)
        .envs(variables.iter().cloned());
    sys::prepare(
        &mut command,
        ChildSetup {
            network: Some(namespace.as_fd()),
            die_with_parent: true,
            own_session: false,
        },
    );
    spawn_in_new_process_namespace(command).map_err(EmulatorError::of("start the command"))
}

/// Starts a command from a new thread. A thread that has chosen a process namespace for its
/// children can start no threads, and without root cannot undo the choice.
fn spawn_in_new_process_namespace(mut command: Command) -> io::Result<Program> {
    let (spawned, child) = channel();
    let (parent, ended) = channel::<()>();
    thread::Builder::new()
        .name("parent".into())
        .spawn(move || {
            let _ = spawned
                .send(sys::unshare(sys::UnshareFlags::NEWPID).and_then(|()| command.spawn()));
            let _ = ended.recv();
        })?;
    let child = child.recv().map_err(io::Error::other)??;
    Ok(Program {
        child,
        _parent: parent,
    })
}

/// Waits for the command, passing signals on and writing counters at intervals.
fn supervise(
    child: &mut Child,
    emulator: &Emulator,
    arguments: &RunArguments,
    log: &mut Option<Log>,
) -> Result<u8, Failure> {
    let ticking = arguments.live || log.is_some();
    let interval = arguments.interval.max(Duration::from_millis(1));
    let mut next = Instant::now() + interval;
    let mut asked_to_end = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(init::exit_code(status));
        }
        let timeout = ticking.then(|| next.saturating_duration_since(Instant::now()));
        match sys::wait_signal(&SIGNALS, timeout) {
            // The terminal sends these to the command as well, which decides.
            Some(libc::SIGINT | libc::SIGQUIT | libc::SIGCHLD) => {}
            Some(signal) if !asked_to_end => {
                asked_to_end = true;
                sys::kill(child.id(), signal)?;
            }
            Some(_) => child.kill()?,
            None if ticking && Instant::now() >= next => {
                next += interval;
                tick(&emulator.snapshot(), arguments.live, log)?;
            }
            None => {}
        }
    }
}

fn tick(snapshot: &Snapshot, live: bool, log: &mut Option<Log>) -> io::Result<()> {
    if live {
        let link = |link: &tandem_net::emulator::report::LinkReport| {
            let (from, to, delivered) = (&link.from, &link.to, link.delivered);
            let loss = link.effective_loss * 100.0;
            format!(
                "{from}>{to} {} packets, {} bytes, {loss:.2} % dropped, {} waiting",
                delivered.packets, delivered.bytes, link.queued_packets
            )
        };
        let links: Vec<String> = snapshot.links.iter().map(link).collect();
        output::note(format_args!(
            "{:8.1} s  {}\n",
            snapshot.time_s,
            links.join("; ")
        ));
    }
    log.as_mut().map_or(Ok(()), |log| log.write(snapshot))
}

/// The CSV file of `--log`.
struct Log {
    file: BufWriter<File>,
    path: String,
}

impl Log {
    fn create(path: &std::path::Path) -> Result<Self, EmulatorError> {
        let action = format!("write log {}", path.display());
        let file = File::create(path).map_err(EmulatorError::of(action))?;
        let mut log = Self {
            file: BufWriter::new(file),
            path: path.display().to_string(),
        };
        let line: Vec<String> = std::env::args().collect();
        let header = writeln!(log.file, "# {}\n{LOG_HEADER}", line.join(" "));
        header.map_err(EmulatorError::of(format!("write log {}", log.path)))?;
        Ok(log)
    }

    fn write(&mut self, snapshot: &Snapshot) -> io::Result<()> {
        let mut lines = snapshot
            .links
            .iter()
            .map(|link| link.log_line(snapshot.time_s));
        lines
            .try_for_each(|line| writeln!(self.file, "{line}"))
            .map_err(|e| self.name(e))
    }

    fn finish(mut self, snapshot: &Snapshot) -> io::Result<()> {
        self.write(snapshot)?;
        self.file.flush().map_err(|e| self.name(e))
    }

    fn name(&self, error: io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("log {}: {error}", self.path))
    }
}

fn finish(
    snapshot: Snapshot,
    topology: &Topology,
    arguments: &RunArguments,
    log: Option<Log>,
    record: Option<RecordFile>,
) -> Result<(), Failure> {
    if !arguments.quiet {
        output::note(snapshot.summary());
    }
    log.map_or(Ok(()), |log| log.finish(&snapshot))?;
    if let Some(record) = record {
        let text = serde_json::to_string_pretty(&Record::new(topology, arguments, snapshot))?;
        record.write(&(text + "\n"))?;
    }
    Ok(())
}

/// Returns true if a direction of a link has a queue and no rate, so that no packet waits.
fn has_idle_queue(link: &LinkPlan) -> bool {
    link.directions.iter().any(|direction| {
        direction.rate == Rate::Unlimited && direction.queue != LinkConfig::default().queue
    })
}

/// The file of `--json`.
struct RecordFile {
    file: File,
    action: String,
}

impl RecordFile {
    fn create(path: &std::path::Path) -> Result<Self, EmulatorError> {
        let action = format!("write {}", path.display());
        let file = File::create(path).map_err(EmulatorError::of(action.clone()))?;
        Ok(Self { file, action })
    }

    fn write(mut self, text: &str) -> Result<(), EmulatorError> {
        let written = self.file.write_all(text.as_bytes());
        written.map_err(EmulatorError::of(self.action))
    }
}

//! Starts the network, supervises it, and removes it.
//!
//! The supervisor owns the emulator and is the parent of every program, and each program dies with
//! it (parent-death signal). A killed supervisor leaves only named namespaces and files, and
//! [`take_down`] finds those by name.

mod down;
mod onions;
mod pages;
mod parts;

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::control::Control;
use super::keys::{self, Identities, Programs};
use super::layout::{Layout, MARKER, Node, Role, prefix, site_name};
use super::state::{Phase, Process, RunDirectory, State};
use super::torrc::{self, Variant};
use super::{TornetError, dns, find_program, namespaces};
use down::remove_namespaces;
pub use down::take_down;
use parts::{
    add_marker, bootstrap, gateway_arguments, make_private, new_state, origin_arguments,
    relays_known, write,
};
use tandem_net::emulator::network::{self, Setup};
use tandem_net::emulator::rtnl::TcpMetrics;
use tandem_net::emulator::sys;
use tandem_net::emulator::{Emulator, report::Snapshot};
use tandem_net::netns::Netns;

/// The time limit for the network to carry traffic.
const START_TIMEOUT: Duration = Duration::from_secs(240);

/// The time limit for programs to end.
const GRACE: Duration = Duration::from_secs(3);

const SIGNALS: [i32; 4] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGCHLD];

/// The settings of the network to start.
#[derive(Clone, Debug)]
pub struct Request {
    /// The network's name, unique on this machine.
    pub instance: String,
    /// The one-way delay between Tor nodes.
    pub delay: Duration,
    /// The one-way delay between exit and web host.
    pub web_delay: Duration,
    /// Exits without a gateway.
    pub plain_exits: u8,
    /// Congestion control of every host's TCP.
    pub congestion: String,
    /// The variable parts of configuration files.
    pub variant: Variant,
    /// The program with the `gateway` command that runs at the exit and behind the onion service;
    /// `None` without gateways.
    pub gateway: Option<PathBuf>,
    /// The server of pages.
    pub origin: TornetOrigin,
}

/// The server of pages on the web host and the onion host.
#[derive(Clone, Debug)]
pub enum TornetOrigin {
    /// No server.
    None,
    /// A shell command that listens on port 80 of all addresses.
    Shell(String),
    /// The program with the `origin` command of `tandem-lab`, for each of these pages a site.
    Pages(PathBuf, Vec<String>),
}

/// Brings the network up, keeps it until a signal to end comes, and removes it. `progress` gets a
/// line at a time.
pub fn up(request: &Request, progress: &mut dyn FnMut(&str)) -> Result<(), TornetError> {
    sys::block_signals(&SIGNALS).map_err(TornetError::of("block signals"))?;
    let mut tornet = Tornet::start(request, progress)?;
    tornet.watch(progress);
    Ok(())
}

/// A network that is up. Everything ends with this value, and with the thread that made it.
#[derive(Debug)]
pub struct Tornet {
    directory: RunDirectory,
    layout: Layout,
    state: State,
    ip: PathBuf,
    programs: Programs,
    children: Vec<Child>,
    emulator: Option<Emulator>,
    identities: Identities,
    keep_directory: bool,
}

impl Tornet {
    /// Brings a network up. After a failure, its logs stay where they are until [`take_down`].
    pub fn start(request: &Request, progress: &mut dyn FnMut(&str)) -> Result<Self, TornetError> {
        let mut tornet = Self::prepare(request)?;
        tornet.bring_up(request, progress).inspect_err(|error| {
            tornet.keep_directory = !matches!(error, TornetError::Interrupted);
            tornet.state.phase = Phase::Failed(error.to_string());
            let _ = tornet.directory.save(&tornet.state);
        })?;
        Ok(tornet)
    }

    /// Returns the state of the running network.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Counters of the emulated links.
    pub fn counters(&self) -> Snapshot {
        self.emulator
            .as_ref()
            .map(Emulator::snapshot)
            .unwrap_or_default()
    }

    /// Checks the requirements.
    fn prepare(request: &Request) -> Result<Self, TornetError> {
        const INSTALL: &str =
            "install it with: apt-get install tor (the packaged service is not needed)";
        let programs = Programs {
            tor: find_program("tor", INSTALL)?,
            gencert: find_program("tor-gencert", INSTALL)?,
        };
        let ip = namespaces::ip()?;
        let directory = RunDirectory::of(&request.instance)?;
        if let Some(state) = directory
            .load()?
            .filter(|state| state.supervisor.is_alive())
        {
            let pid = state.supervisor.pid;
            return Err(TornetError::State(format!(
                "{} is up already (process {pid})",
                request.instance
            )));
        }
        let layout = Layout::new(
            &request.instance,
            request.plain_exits,
            request.delay,
            request.web_delay,
        );
        let state = new_state(request, &layout, &directory);
        Ok(Self {
            directory,
            layout,
            state,
            ip,
            programs,
            children: Vec::new(),
            emulator: None,
            identities: Identities::default(),
            keep_directory: false,
        })
    }

    fn bring_up(
        &mut self,
        request: &Request,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(), TornetError> {
        let start = Instant::now();
        self.claim(request, progress)?;
        self.connect_nodes(&request.congestion)?;
        progress("making keys");
        self.make_keys()?;
        self.configure(request)?;
        progress("starting tor on every node");
        self.launch_all(request)?;
        self.serve_counters()?;
        self.wait_for_consensus(start, progress)?;
        self.start_onions(request)?;
        if !matches!(request.origin, TornetOrigin::None) {
            self.wait_for_pages(start, progress)?;
        }
        self.state.phase = Phase::Ready;
        self.directory.save(&self.state)?;
        progress(&format!("up after {:.0} s", start.elapsed().as_secs_f64()));
        Ok(())
    }

    /// Removes leftovers of a killed run, makes the directory and the namespaces.
    fn claim(&self, request: &Request, progress: &mut dyn FnMut(&str)) -> Result<(), TornetError> {
        if self.directory.load().ok().flatten().is_some()
            || !namespaces::existing(&prefix(&request.instance)).is_empty()
        {
            progress("removing the remains of an earlier run");
            take_down(&request.instance, progress)?;
        }
        if !self.directory.exists()? {
            self.directory.create()?;
        }
        self.directory.save(&self.state)?;
        progress(&format!("making {} namespaces", self.layout.nodes.len()));
        self.layout
            .nodes
            .iter()
            .try_for_each(|node| namespaces::create(&self.ip, node))
    }

    fn connect_nodes(&mut self, congestion: &str) -> Result<(), TornetError> {
        let open = |node: &Node| {
            Netns::named(&node.namespace).map_err(TornetError::of(format!(
                "open namespace {}",
                node.namespace
            )))
        };
        let networks = self
            .layout
            .nodes
            .iter()
            .map(open)
            .collect::<Result<Vec<_>, _>>()?;
        let setup = Setup {
            no_realtime: false,
            mtu: 1500,
            tcp: TcpMetrics {
                congestion: Some(congestion.to_owned()),
                ..TcpMetrics::default()
            },
            captures: Vec::new(),
            outside_device: String::new(),
            relay_outside: false,
        };
        self.emulator = Some(network::set_up(
            &self.layout.topology(1),
            &networks,
            &setup,
        )?);
        for (node, netns) in self.layout.nodes.iter().zip(&networks) {
            if matches!(node.role, Role::Exit | Role::PlainExit | Role::Web) {
                let web = self.layout.node(Role::Web).address;
                dns::serve(netns, web)
                    .map_err(TornetError::of(format!("serve names on {}", node.name)))?;
            }
            if node.role == Role::Exit {
                netns
                    .run(add_marker)
                    .map_err(TornetError::of(format!("give {MARKER} to {}", node.name)))?;
            }
        }
        Ok(())
    }

    fn make_keys(&mut self) -> Result<(), TornetError> {
        for node in self.layout.nodes.iter().filter(|node| node.runs_tor()) {
            let keys = torrc::data_directory(self.directory.path(), node).join("keys");
            make_private(&keys)?;
            if node.is_relay() {
                keys::make(
                    &self.programs,
                    self.directory.path(),
                    node,
                    &mut self.identities,
                )?;
            }
            self.interrupted()?;
        }
        let exit = &self.layout.node(Role::Exit).name;
        self.state.endpoints.exit_fingerprint = self
            .identities
            .fingerprints
            .get(exit)
            .cloned()
            .unwrap_or_default();
        Ok(())
    }

    fn configure(&self, request: &Request) -> Result<(), TornetError> {
        let root = self.directory.path();
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        write(
            &torrc::bandwidths_file(root),
            &torrc::bandwidths(&self.identities, now),
        )?;
        write(&torrc::resolver_file(root), "nameserver 127.0.0.1\n")?;
        for node in self.layout.nodes.iter().filter(|node| node.runs_tor()) {
            let text = torrc::torrc(&self.layout, &self.identities, root, node, &request.variant);
            write(&torrc::node_directory(root, node).join("torrc"), &text)?;
        }
        Ok(())
    }

    fn launch_all(&mut self, request: &Request) -> Result<(), TornetError> {
        for node in self.layout.nodes.clone() {
            if node.runs_tor() {
                let file = torrc::node_directory(self.directory.path(), &node).join("torrc");
                let mut arguments: Vec<&std::ffi::OsStr> = ["--defaults-torrc", "/dev/null", "-f"]
                    .map(AsRef::as_ref)
                    .to_vec();
                arguments.push(file.as_os_str());
                let tor = self.programs.tor.clone();
                self.launch(&node, "tor", &tor, &arguments)?;
            }
            match &request.origin {
                TornetOrigin::Shell(line) if matches!(node.role, Role::Web | Role::Onion) => {
                    self.launch(
                        &node,
                        "origin",
                        Path::new("/bin/sh"),
                        &["-c", line].map(AsRef::as_ref),
                    )?;
                }
                TornetOrigin::Pages(program, _) if node.role == Role::Web => {
                    for (n, site) in self.state.endpoints.sites.clone().iter().enumerate() {
                        let listen = format!("{}:80", site.address);
                        let name = format!("origin{}", n + 1);
                        self.launch(
                            &node,
                            &name,
                            program,
                            &origin_arguments(&listen, &site.page, &site.host),
                        )?;
                    }
                }
                _ => {}
            }
            if let (Some(gateway), Some(arguments)) =
                (&request.gateway, gateway_arguments(&self.layout, &node))
            {
                let arguments: Vec<&std::ffi::OsStr> =
                    arguments.iter().map(AsRef::as_ref).collect();
                self.launch(&node, "gateway", gateway, &arguments)?;
            }
        }
        Ok(())
    }

    /// Starts a program in a node's namespace and remembers it.
    fn launch(
        &mut self,
        node: &Node,
        name: &str,
        program: &Path,
        arguments: &[&std::ffi::OsStr],
    ) -> Result<(), TornetError> {
        let directory = torrc::node_directory(self.directory.path(), node);
        make_private(&directory)?;
        let action = format!("start {name} on {}", node.name);
        let spawn = || -> io::Result<Child> {
            let output = File::create(directory.join(format!("{name}.out")))?;
            let mut command = Command::new(&self.ip);
            command
                .args(["netns", "exec", &node.namespace])
                .arg(program)
                .args(arguments);
            command
                .stdin(Stdio::null())
                .stdout(output.try_clone()?)
                .stderr(output);
            sys::prepare_supervised(&mut command, None);
            command.spawn()
        };
        let child = spawn().map_err(TornetError::of(action))?;
        self.state
            .processes
            .push(Process::new(name, &node.name, child.id()));
        self.children.push(child);
        self.directory.save(&self.state)
    }

    /// Gives the emulator's counters to whoever connects.
    fn serve_counters(&self) -> Result<(), TornetError> {
        let Some(emulator) = &self.emulator else {
            return Ok(());
        };
        let counters = emulator.watch();
        let path = self.directory.status_socket();
        let listener = UnixListener::bind(&path)
            .map_err(TornetError::of(format!("listen on {}", path.display())))?;
        let serve = move || {
            for mut stream in listener.incoming().filter_map(Result::ok) {
                let snapshot: Snapshot = counters.snapshot();
                let _ = serde_json::to_vec(&snapshot)
                    .map_err(io::Error::from)
                    .and_then(|text| stream.write_all(&text));
            }
        };
        thread::Builder::new()
            .name("counters".into())
            .spawn(serve)
            .map(drop)
            .map_err(TornetError::of("start a thread"))
    }

    fn wait_for_consensus(
        &self,
        start: Instant,
        progress: &mut dyn FnMut(&str),
    ) -> Result<(), TornetError> {
        let wanted = self
            .layout
            .nodes
            .iter()
            .filter(|node| node.is_relay())
            .count();
        let client = torrc::control_socket(self.directory.path(), self.layout.node(Role::Client));
        let onion_socket =
            torrc::control_socket(self.directory.path(), self.layout.node(Role::Onion));
        let (mut last, mut complete) = (String::new(), false);
        loop {
            let (known, client, onion) = (
                relays_known(&client),
                bootstrap(&client),
                bootstrap(&onion_socket),
            );
            if known == wanted && !complete {
                complete = Control::connect(&onion_socket)?
                    .ask("SETCONF DisableNetwork=0")
                    .is_ok();
            }
            if known == wanted && client == 100 && onion == 100 {
                return Ok(());
            }
            let line = format!(
                "{known} of {wanted} relays in the consensus, client {client} %, onion host {onion} %"
            );
            if line != last {
                progress(&format!("{:3.0} s: {line}", start.elapsed().as_secs_f64()));
                last = line;
            }
            self.pause(start, &last)?;
        }
    }

    /// Half a second, unless it is time to end or to give up.
    fn pause(&self, start: Instant, waiting_for: &str) -> Result<(), TornetError> {
        if start.elapsed() > START_TIMEOUT {
            let logs = self.directory.path().display();
            return Err(TornetError::State(format!(
                "not up after {START_TIMEOUT:?} ({waiting_for}); logs are in {logs}"
            )));
        }
        thread::sleep(Duration::from_millis(500));
        self.interrupted()?;
        match self
            .state
            .processes
            .iter()
            .find(|process| !process.is_alive())
        {
            None => Ok(()),
            Some(dead) => Err(self.died(dead)),
        }
    }

    fn died(&self, process: &Process) -> TornetError {
        let file = self
            .directory
            .path()
            .join(&process.node)
            .join(format!("{}.out", process.program));
        let output = fs::read_to_string(&file).unwrap_or_default();
        let tail: Vec<&str> = output.lines().rev().take(5).collect();
        let output = tail.into_iter().rev().collect::<Vec<_>>().join("; ");
        TornetError::Program {
            program: format!("{} on {}", process.program, process.node),
            output,
        }
    }

    fn interrupted(&self) -> Result<(), TornetError> {
        match sys::wait_signal(&[libc::SIGTERM, libc::SIGINT], Some(Duration::ZERO)) {
            Some(_) => Err(TornetError::Interrupted),
            None => Ok(()),
        }
    }

    /// Until a signal to end comes. A program that dies is reported; the others go on.
    fn watch(&mut self, progress: &mut dyn FnMut(&str)) {
        loop {
            match sys::wait_signal(&SIGNALS, None) {
                Some(libc::SIGTERM | libc::SIGINT) => return,
                Some(libc::SIGCHLD) => {
                    let processes = &self.state.processes;
                    self.children.retain_mut(|child| match child.try_wait() {
                        Ok(Some(status)) => {
                            let who = processes.iter().find(|process| process.pid == child.id());
                            let who = who.map_or_else(String::new, |p| {
                                format!("{} on {}", p.program, p.node)
                            });
                            progress(&format!("{who} ended: {status}"));
                            false
                        }
                        _ => true,
                    });
                }
                _ => {}
            }
        }
    }
}

impl Drop for Tornet {
    /// Ends all programs, the emulator, the namespaces, and the directory.
    fn drop(&mut self) {
        for child in &self.children {
            let _ = sys::kill(child.id(), libc::SIGTERM);
        }
        let end = Instant::now() + GRACE;
        for child in &mut self.children {
            while matches!(child.try_wait(), Ok(None)) {
                if Instant::now() > end {
                    let _ = child.kill();
                }
                thread::sleep(Duration::from_millis(10));
            }
        }
        drop(self.emulator.take());
        let _ = remove_namespaces(&self.state.instance, &mut |_| {});
        if !self.keep_directory {
            let _ = self.directory.remove();
        }
    }
}

//! One load: a client started for it, the loader beside it, and the counters of the link around it.

use std::fs::File;
use std::io::{self, Read as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::Sub;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::{BROWSER_CONNECTIONS, MeasureError, Plan, Protocol, Setup, Subject, Way};
use crate::emulator::report::Traffic;
use crate::emulator::sys::{self, ChildSetup};
use crate::loader::{Load, Loader, Via};
use crate::netns::Netns;
use crate::page::{Page, Site};
use crate::tornet::layout::MARKER;
use crate::tornet::state::Phase;
use crate::tornet::{RunDirectory, State, TornetError};

/// Time that a page may take.
const DEADLINE: Duration = Duration::from_secs(300);

/// Time that the client has to begin to listen.
const START_LIMIT: Duration = Duration::from_secs(10);

/// Time until the directory has full descriptors.
const DIRECTORY_LIMIT: Duration = Duration::from_secs(90);

/// What a load took and moved.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Loaded {
    /// From the loader's first byte to its last.
    pub time_s: f64,
    /// IP bytes from the client's host into the network.
    pub bytes_up: u64,
    /// And back.
    pub bytes_down: u64,
    /// IP packets from the client's host into the network.
    pub packets_up: u64,
    /// And back.
    pub packets_down: u64,
    /// Bytes that the loader wrote.
    pub loader_up: u64,
    /// Bytes that it read.
    pub loader_down: u64,
    /// Connections that it opened.
    pub connections: usize,
    /// Requests that it made.
    pub requests: usize,
}

/// What passed the client's interface.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    up: Traffic,
    down: Traffic,
}

impl Counted {
    pub(super) fn bytes(self) -> u64 {
        self.up.bytes + self.down.bytes
    }
}

impl Sub for Counted {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        let less = |now: Traffic, before: Traffic| Traffic {
            packets: now.packets.saturating_sub(before.packets),
            bytes: now.bytes.saturating_sub(before.bytes),
        };
        Self { up: less(self.up, before.up), down: less(self.down, before.down) }
    }
}

/// The network and the client's place in it.
pub(super) struct Bench<'a> {
    plan: &'a Plan,
    directory: RunDirectory,
    state: State,
    network: Netns,
    /// Makes every load's isolation key unlike all others.
    keys: AtomicUsize,
}

impl<'a> Bench<'a> {
    pub(super) fn open(plan: &'a Plan) -> Result<Self, MeasureError> {
        let directory = RunDirectory::of(&plan.instance)?;
        let up = |state: &State| state.phase == Phase::Ready && state.supervisor.is_alive();
        let state = directory.load()?.filter(up);
        let state = state.ok_or_else(|| TornetError::State(format!("{} is not up", plan.instance)))?;
        let name = &state.endpoints.client_namespace;
        let network = Netns::named(name).map_err(TornetError::of(format!("open namespace {name}")))?;
        Ok(Self { plan, directory, state, network, keys: AtomicUsize::new(0) })
    }

    pub(super) fn state(&self) -> &State {
        &self.state
    }

    pub(super) fn counters(&self) -> Result<Counted, MeasureError> {
        let snapshot = self.directory.counters()?;
        let port = snapshot.port("client").ok_or_else(|| TornetError::State("the client's link is gone".into()))?;
        Ok(Counted { up: port.sent, down: port.received })
    }

    /// Why the numbers should not be believed, if there is a reason.
    pub(super) fn trouble(&self) -> Option<String> {
        self.directory.counters().ok()?.trouble()
    }

    /// Loads the page once. The inner error is a load that failed; the outer ends the measurement.
    pub(super) fn load(
        &self,
        subject: &Subject,
        setup: Setup,
        pass: usize,
    ) -> Result<Result<Loaded, String>, MeasureError> {
        let site = self.site(subject)?;
        let key = format!("measure-{}-{pass}-{}", std::process::id(), self.keys.fetch_add(1, Ordering::Relaxed));
        let client = match setup {
            Setup::Plain => None,
            Setup::Pair { session, .. } => match self.start_client(subject.way, session) {
                Ok(client) => Some(client),
                Err(error) => return Ok(Err(format!("the client did not start: {error}"))),
            },
        };
        let loader = self.loader(subject, setup, client.as_ref().map(|client| client.listen), &key);
        let once = || self.network.run(|| load_page(&loader, &site)).map_err(|error| error.to_string())?;
        if self.plan.warm
            && let Err(error) = once()
        {
            return Ok(Err(format!("warming up: {error}")));
        }
        let before = self.counters()?;
        let loaded = once();
        let moved = self.counters()? - before;
        let told = |error| format!("{error}{}", client.as_ref().map_or_else(String::new, Client::last_words));
        Ok(loaded.map(|load| summary(&load, moved)).map_err(told))
    }

    /// Has tor fetch the descriptors by which it knows what an exit lets out to a single address: with microdescriptors
    /// alone it would not use the gateway's exit, though it is named. They are in the directory a consensus or two after
    /// the network is up.
    pub(super) fn find_gateways(&self) -> Result<(), MeasureError> {
        let until = Instant::now() + DIRECTORY_LIMIT;
        loop {
            let mut command = Command::new(&self.plan.tandem);
            command.args(["gateways", "--via", &format!("tor://{}", self.state.endpoints.control)]);
            let setup = ChildSetup { network: Some(self.network.as_fd()), die_with_parent: true, own_session: true };
            sys::prepare(&mut command, setup);
            sys::unblock_in_child(&mut command);
            let ended = command.stdin(Stdio::null()).output().map_err(TornetError::of("run tandem gateways"))?;
            if ended.status.success() {
                return Ok(());
            }
            if Instant::now() > until {
                return Err(MeasureError::NotFound(String::from_utf8_lossy(&ended.stderr).trim().to_owned()));
            }
            thread::sleep(Duration::from_secs(1));
        }
    }

    fn site(&self, subject: &Subject) -> Result<Site, MeasureError> {
        let ends = &self.state.endpoints;
        let host = match subject.way {
            Way::Exit => ends.sites.iter().find(|site| site.page == subject.page).map(|site| site.host.clone()),
            Way::Onion => ends.onion.clone(),
        };
        let host = host.ok_or_else(|| TornetError::State(format!("nobody serves {}", subject.page)))?;
        Ok(Site::new(Page::open(&subject.page)?, &[host])?)
    }

    fn loader(&self, subject: &Subject, setup: Setup, proxy: Option<SocketAddr>, key: &str) -> Loader {
        let (via, per_host, headers) = match (setup, proxy) {
            (Setup::Pair { in_flight, .. }, Some(proxy)) => {
                let isolation = ("Tor-Stream-Isolation".to_owned(), key.to_owned());
                (Via::Http { proxy: proxy.to_string() }, in_flight, vec![isolation])
            }
            _ => {
                let credentials = Some((key.to_owned(), "x".to_owned()));
                (Via::Socks5 { proxy: self.state.endpoints.socks.clone(), credentials }, BROWSER_CONNECTIONS, vec![])
            }
        };
        Loader {
            per_host,
            total: per_host.max(256),
            discovery: subject.discovery,
            deadline: DEADLINE,
            optimistic: self.plan.optimistic && setup == Setup::Plain,
            headers,
            ..Loader::new(via)
        }
    }

    /// Starts a client that has no session yet. Its exit is named, so that looking for one is not in the numbers.
    fn start_client(&self, way: Way, session: Protocol) -> io::Result<Client> {
        let ends = &self.state.endpoints;
        let Protocol { name, port } = session;
        let (gateway, via) = match way {
            Way::Exit => {
                let exit = &ends.exit_fingerprint;
                (format!("{name}+tcp://{MARKER}:{port}?exit={exit}"), format!("tor://{}", ends.control))
            }
            Way::Onion => {
                let onion = ends.onion.as_deref().unwrap_or_default();
                (format!("{name}+tcp://{onion}:{port}"), format!("socks5://{}", ends.socks))
            }
        };
        let free = self.network.run(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
        let listen = free.local_addr()?;
        drop(free);
        let log = self.directory.path().join("measure-client.log");
        let output = File::create(&log)?;
        let mut command = Command::new(&self.plan.tandem);
        command.args(["client", "--listen", &format!("http://{listen}"), "--gateway", &gateway, "--via", &via]);
        command.args(&self.plan.client_arguments);
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let network = Some(self.network.as_fd());
        sys::prepare(&mut command, ChildSetup { network, die_with_parent: true, own_session: true });
        sys::unblock_in_child(&mut command);
        let mut client = Client { process: command.spawn()?, listen, log };
        self.await_client(&mut client)?;
        Ok(client)
    }

    fn await_client(&self, client: &mut Client) -> io::Result<()> {
        let until = Instant::now() + START_LIMIT;
        let address = client.listen;
        while self.network.run(|| TcpStream::connect(address)).is_err() {
            if let Some(status) = client.process.try_wait()? {
                return Err(io::Error::other(format!("it ended with {status}{}", client.last_words())));
            }
            if Instant::now() > until {
                return Err(io::ErrorKind::TimedOut.into());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

/// Within the calling thread's network. The inner error is the load's.
fn load_page(loader: &Loader, site: &Site) -> io::Result<Result<Load, String>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(loader.load(site)).map_err(|error| error.to_string()))
}

fn summary(load: &Load, moved: Counted) -> Loaded {
    Loaded {
        time_s: load.time.as_secs_f64(),
        bytes_up: moved.up.bytes,
        bytes_down: moved.down.bytes,
        packets_up: moved.up.packets,
        packets_down: moved.down.packets,
        loader_up: load.bytes_up,
        loader_down: load.bytes_down,
        connections: load.connections,
        requests: load.requests.len(),
    }
}

/// A running `tandem client`, ended with this value.
struct Client {
    process: Child,
    listen: SocketAddr,
    log: PathBuf,
}

impl Client {
    /// The end of its log.
    fn last_words(&self) -> String {
        let mut text = String::new();
        let read = File::open(&self.log).and_then(|mut file| file.read_to_string(&mut text));
        let last: Vec<&str> = text.lines().rev().take(3).collect();
        if read.is_err() || last.is_empty() {
            return String::new();
        }
        format!(" (client: {})", last.into_iter().rev().collect::<Vec<_>>().join("; "))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // One that has ended by itself needs no signal.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

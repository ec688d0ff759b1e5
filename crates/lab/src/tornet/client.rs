//! Starts a `tandem client` in a network that is up, for one load or for one visit of all sites,
//! and loads pages beside it.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::state::Phase;
use super::{RunDirectory, State, TornetError};
use tandem_net::emulator::sys;
use tandem_net::netns::Netns;
use tandem_web::loader::{Load, Loader};
use tandem_web::page::Site;

/// Time that the client has to begin to listen.
const START_LIMIT: Duration = Duration::from_secs(10);

/// Time that it has to say its counters.
const METRICS_LIMIT: Duration = Duration::from_secs(10);

/// Bytes that its counters may have.
const MOST_METRICS: u64 = 1 << 20;

/// The client's host in a network that is up.
pub(super) struct Ground {
    pub(super) directory: RunDirectory,
    pub(super) state: State,
    pub(super) network: Netns,
}

impl Ground {
    /// Opens the client's namespace of an instance.
    pub(super) fn open(instance: &str) -> Result<Self, TornetError> {
        let directory = RunDirectory::of(instance)?;
        let up = |state: &State| state.phase == Phase::Ready && state.supervisor.is_alive();
        let state = directory.load()?.filter(up);
        let state = state.ok_or_else(|| TornetError::State(format!("{instance} is not up")))?;
        let name = &state.endpoints.client_namespace;
        let network =
            Netns::named(name).map_err(TornetError::of(format!("open namespace {name}")))?;
        Ok(Self {
            directory,
            state,
            network,
        })
    }
}

/// A running `tandem client`, ended with this value.
pub(super) struct Client {
    process: Child,
    /// The address of the client's HTTP proxy.
    pub(super) listen: SocketAddr,
    /// The address of the client's SOCKS proxy.
    pub(super) socks: SocketAddr,
    metrics: SocketAddr,
    log: PathBuf,
}

impl Client {
    /// Starts one that has no session yet, in this network. Its output goes to `log`. With a group,
    /// the kernel can tell its packets from those of others.
    pub(super) fn start(
        network: &Netns,
        program: &Path,
        arguments: &[String],
        group: Option<u32>,
        log: PathBuf,
    ) -> io::Result<Self> {
        let [listen, socks, metrics] = network.run(free_ports)?;
        let output = File::create(&log)?;
        let mut command = Command::new(program);
        command.args([
            "client",
            "--listen",
            &format!("http://{listen}"),
            "--listen",
            &format!("socks5://{socks}"),
            "--metrics",
            &metrics.to_string(),
        ]);
        command.args(arguments);
        if let Some(group) = group {
            command.gid(group);
        }
        command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        sys::prepare_supervised(&mut command, Some(network.as_fd()));
        let mut client = Self {
            process: command.spawn()?,
            listen,
            socks,
            metrics,
            log,
        };
        client.wait(network)?;
        Ok(client)
    }

    fn wait(&mut self, network: &Netns) -> io::Result<()> {
        let until = Instant::now() + START_LIMIT;
        for address in [self.listen, self.socks, self.metrics] {
            while network.run(|| TcpStream::connect(address)).is_err() {
                if let Some(status) = self.process.try_wait()? {
                    return Err(io::Error::other(format!(
                        "it ended with {status}{}",
                        self.last_words()
                    )));
                }
                if Instant::now() > until {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }

    /// Returns the client's metrics, unparsed.
    pub(super) fn metrics(&self, network: &Netns) -> io::Result<String> {
        network.run(|| {
            let mut stream = TcpStream::connect(self.metrics)?;
            stream.set_read_timeout(Some(METRICS_LIMIT))?;
            let request = format!(
                "GET /metrics HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
                self.metrics
            );
            stream.write_all(request.as_bytes())?;
            let mut text = String::new();
            stream.take(MOST_METRICS).read_to_string(&mut text)?;
            let told = text.starts_with("HTTP/1.1 200 ");
            told.then_some(text)
                .ok_or_else(|| io::Error::other("the client tells no counters"))
        })
    }

    /// The end of its log.
    pub(super) fn last_words(&self) -> String {
        let mut text = String::new();
        let read = File::open(&self.log).and_then(|mut file| file.read_to_string(&mut text));
        let last: Vec<&str> = text.lines().rev().take(3).collect();
        if read.is_err() || last.is_empty() {
            return String::new();
        }
        format!(
            " (client: {})",
            last.into_iter().rev().collect::<Vec<_>>().join("; ")
        )
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // A process that has ended needs no signal.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns addresses without a listener.
fn free_ports() -> io::Result<[SocketAddr; 3]> {
    let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let (http, socks, metrics) = (bind()?, bind()?, bind()?);
    Ok([
        http.local_addr()?,
        socks.local_addr()?,
        metrics.local_addr()?,
    ])
}

/// Loads a page within a network.
pub(super) fn load_page(network: &Netns, loader: &Loader, site: &Site) -> Result<Load, String> {
    let load = || -> io::Result<_> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        Ok(runtime.block_on(loader.load(site)))
    };
    let loaded = network.run(load).map_err(|error| error.to_string())?;
    loaded.map_err(|error| error.to_string())
}

/// A counter in Prometheus' text; 0 where it is not there.
pub(super) fn counter(text: &str, name: &str) -> u64 {
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value
        .and_then(|value| value.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_by_their_whole_name() {
        let text = "HTTP/1.1 200 OK\r\n\r\n# HELP tandem_pushes_used_total x\ntandem_pushes_used_total 17\ntandem_pushes 3\n";
        assert_eq!(counter(text, "tandem_pushes_used_total"), 17);
        assert_eq!(counter(text, "tandem_pushes"), 3);
        assert_eq!(counter(text, "tandem_pushes_used"), 0);
    }
}

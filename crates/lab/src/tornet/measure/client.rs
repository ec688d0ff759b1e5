//! A `tandem client` for one load: started for it, asked for its counters, ended with it.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tandem_net::emulator::sys::{self, ChildSetup};
use tandem_net::netns::Netns;

/// Time that the client has to begin to listen.
const START_LIMIT: Duration = Duration::from_secs(10);

/// Time that it has to say its counters.
const METRICS_LIMIT: Duration = Duration::from_secs(10);

/// Bytes that its counters may have.
const MOST_METRICS: u64 = 1 << 20;

/// A running `tandem client`, ended with this value.
pub(super) struct Client {
    process: Child,
    /// The address of the client's HTTP proxy.
    pub(super) listen: SocketAddr,
    metrics: SocketAddr,
    log: PathBuf,
}

impl Client {
    /// Starts one that has no session yet, in this network; its output goes to `log`.
    pub(super) fn start(
        network: &Netns,
        program: &Path,
        arguments: &[String],
        log: PathBuf,
    ) -> io::Result<Self> {
        let [listen, metrics] = network.run(free_ports)?;
        let output = File::create(&log)?;
        let mut command = Command::new(program);
        command.args([
            "client",
            "--listen",
            &format!("http://{listen}"),
            "--metrics",
            &metrics.to_string(),
        ]);
        command.args(arguments);
        command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        sys::prepare(
            &mut command,
            ChildSetup {
                network: Some(network.as_fd()),
                die_with_parent: true,
                own_session: true,
            },
        );
        sys::unblock_in_child(&mut command);
        let mut client = Self {
            process: command.spawn()?,
            listen,
            metrics,
            log,
        };
        client.wait(network)?;
        Ok(client)
    }

    fn wait(&mut self, network: &Netns) -> io::Result<()> {
        let until = Instant::now() + START_LIMIT;
        for address in [self.listen, self.metrics] {
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

/// Returns two addresses without a listener.
fn free_ports() -> io::Result<[SocketAddr; 2]> {
    let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let (one, other) = (bind()?, bind()?);
    Ok([one.local_addr()?, other.local_addr()?])
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

//! The rig of a comparison between proxies: one origin, and each proxy alone on its processor.
//!
//! [`super::proxy`] and [`super::sessions`] use it.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use super::client::{BenchSession, Protocol, Work};
use super::programs::{H2load, Proxy};
use super::testbed::{Program, Testbed};
use super::usage::{self, MemoryUsage};
use super::{BenchError, Size, browser};

/// The size of the responses that precede a measurement of idle sessions, in bytes.
pub(super) const IDLE_SIZE: Size = Size(1024);

/// The pause before memory is read. A proxy frees some memory a moment after a response.
const SETTLING: Duration = Duration::from_millis(500);

/// The programs that a comparison shares.
pub(super) struct Rig<'a> {
    /// The program under test.
    pub(super) tandem: &'a Path,
    /// The place of all programs.
    pub(super) testbed: &'a Testbed,
    /// The address of the origin.
    pub(super) origin: SocketAddr,
    /// The processor of the proxies.
    pub(super) own_core: Option<usize>,
    /// The processor of everything else.
    pub(super) rest: Option<usize>,
}

/// A proxy that is running.
pub(super) struct RigProxy {
    pub(super) proxy: Proxy,
    pub(super) pid: u32,
    pub(super) address: SocketAddr,
}

/// The cost of one run of the load program.
pub(super) struct Cost {
    /// CPU microseconds for each successful request.
    pub(super) cpu_us: f64,
    /// Successful requests per second.
    pub(super) rate: f64,
    /// The number of requests without a whole response.
    pub(super) failed: usize,
}

impl Rig<'_> {
    /// Starts a proxy, and waits until it listens.
    pub(super) fn start(&self, proxy: Proxy) -> Result<RigProxy, BenchError> {
        self.start_with(proxy, &[])
    }

    /// Starts a proxy with more arguments.
    fn start_with(&self, proxy: Proxy, arguments: &[&str]) -> Result<RigProxy, BenchError> {
        let address = super::testbed::free_address()?;
        let mut command = proxy.command(self.testbed, self.tandem, address, self.origin)?;
        command.args(arguments);
        let name = proxy.name();
        let pid = self.testbed.start(Program {
            name,
            command,
            core: self.own_core,
            network: None,
        })?;
        self.testbed.wait_for(pid, name, address, None)?;
        Ok(RigProxy {
            proxy,
            pid,
            address,
        })
    }

    /// Runs the load program against a proxy, and measures the proxy while it runs.
    pub(super) fn load(
        &self,
        running: &RigProxy,
        size: Size,
        load: &H2load,
    ) -> Result<Cost, BenchError> {
        let before = usage::cpu_time(running.pid)?;
        let url = format!("http://{}/{}", running.address, size.0);
        let counted = load.run(self.testbed, self.rest, &url)?;
        let used = usage::cpu_time(running.pid)?.saturating_sub(before);
        Ok(Cost {
            cpu_us: used.as_secs_f64() * 1e6 / counted.succeeded.max(1) as f64,
            rate: counted.rate,
            failed: load.requests.saturating_sub(counted.succeeded),
        })
    }

    /// Measures the memory of a fresh proxy, with a heap that no other work has shaped: after the
    /// end of one session, which loads the pages of the program, and with each of the given numbers
    /// of idle sessions. Each session carries one exchange first. The numbers must rise.
    pub(super) fn idle(
        &self,
        proxy: Proxy,
        arguments: &[&str],
        counts: &[usize],
    ) -> Result<Vec<MemoryUsage>, BenchError> {
        let running = self.start_with(proxy, arguments)?;
        let mut memory = Vec::new();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(BenchError::system("start a runtime"))?;
        runtime.block_on(async {
            let mut request = browser::requests(&running.address.to_string()).swap_remove(0);
            request.path = format!("/{}", IDLE_SIZE.0);
            let begin = async || {
                let mut session = BenchSession::connect(Protocol::H2, running.address).await?;
                let work = Work {
                    requests: std::slice::from_ref(&request),
                    count: 1,
                    streams: 1,
                    size: IDLE_SIZE.0,
                };
                session.run(work).await?;
                Ok::<_, BenchError>(session)
            };
            drop(begin().await?);
            tokio::time::sleep(SETTLING).await;
            memory.push(usage::memory(running.pid)?);
            let mut sessions = Vec::new();
            for &count in counts {
                while sessions.len() < count {
                    sessions.push(begin().await?);
                }
                tokio::time::sleep(SETTLING).await;
                memory.push(usage::memory(running.pid)?);
            }
            Ok::<_, BenchError>(())
        })?;
        self.testbed.end(running.pid);
        Ok(memory)
    }
}

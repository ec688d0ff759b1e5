//! The programs of a soak, and the faults that are played on them: kills, reloads, suspensions and
//! jumps of the wall clock.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tandem_net::emulator::sys;

use super::SoakOptions;
use crate::bench::BenchError;
use crate::bench::testbed::{Program, Testbed, free_address, free_addresses};

/// The number of ways through the programs.
pub const WAYS: usize = 3;

/// Time between two faults.
const PERIOD: Duration = Duration::from_secs(3);

/// The time for which a program is suspended: less than a session's keep-alive timeout.
const SUSPENDED: Duration = Duration::from_secs(2);

/// Time for which a killed program stays away.
const AWAY: Duration = Duration::from_secs(1);

/// The jumps of the wall clock, in turn.
const JUMPS: [&str; 4] = ["+3600", "-86400", "+2592000", "+0"];

/// The listeners that visitors use.
#[derive(Clone, Copy, Debug)]
pub struct VisitorListeners {
    /// The client's HTTP listener.
    pub http: SocketAddr,
    /// The client's SOCKS5 listener.
    pub socks: SocketAddr,
    /// No program on it is killed.
    pub steady: bool,
}

/// A program that is sampled.
#[derive(Clone, Debug)]
pub struct SampledProgram {
    /// The name of the program.
    pub name: &'static str,
    /// The process ID.
    pub pid: u32,
    /// The address of the program's metrics.
    pub metrics: SocketAddr,
}

/// A running program.
struct Actor {
    name: &'static str,
    role: &'static str,
    config: PathBuf,
    /// The listener that shows that it is up.
    listen: SocketAddr,
    metrics: SocketAddr,
    pid: u32,
}

/// A fault under way.
enum Fault {
    Killed(usize, Instant),
    Suspended(usize, Instant),
}

/// The indices of the programs.
const STEADY_GATEWAY: usize = 0;
const MORTAL_GATEWAY: usize = 1;
const STEADY_CLIENT: usize = 2;
const BEREAVED_CLIENT: usize = 3;
const MORTAL_CLIENT: usize = 4;

/// All programs of a soak.
pub struct Cast<'a> {
    testbed: &'a Testbed,
    tandem: PathBuf,
    clock: Option<(PathBuf, PathBuf)>,
    actors: Vec<Actor>,
    ways: [VisitorListeners; WAYS],
    fault: Option<Fault>,
    played: u64,
}

impl<'a> Cast<'a> {
    /// Starts the programs, and waits until they listen.
    pub fn start(testbed: &'a Testbed, options: &SoakOptions) -> Result<Self, BenchError> {
        let clock = match &options.faketime {
            None => None,
            Some(library) => Some((library.clone(), testbed.write("clock", "+0\n")?)),
        };
        let any = free_address()?;
        let mut this = Self {
            testbed,
            tandem: options.tandem.clone(),
            clock,
            actors: Vec::new(),
            ways: [VisitorListeners {
                http: any,
                socks: any,
                steady: true,
            }; WAYS],
            fault: None,
            played: 0,
        };
        let steady = this.gateway("gateway-steady")?;
        let mortal = this.gateway("gateway-mortal")?;
        let clients = [
            ("client-steady", steady, "h2", true),
            ("client-bereaved", mortal, "h2", false),
            ("client-mortal", steady, "spdy3.1", false),
        ];
        for (at, (name, gateway, session, is_steady)) in clients.into_iter().enumerate() {
            this.ways[at] = this.client(name, gateway, session, is_steady)?;
        }
        Ok(this)
    }

    /// Starts a gateway for HTTP/2 and SPDY. Returns the addresses for both.
    fn gateway(&mut self, name: &'static str) -> Result<[SocketAddr; 2], BenchError> {
        let [h2, spdy, metrics] = free_addresses()?;
        let config = format!(
            "[gateway]\nlisten = [\"h2+tcp://{h2}\", \"spdy3.1+tcp://{spdy}\"]\nopen = true\n\
             allow-dest = [\"127.0.0.0/8\"]\nworkers = 1\nhold-out = 0.0\nmetrics = \"{metrics}\"\n\
             idle-timeout = \"10s\"\npredict-memory = \"4MiB\"\n"
        );
        self.add(name, "gateway", &config, h2, metrics)?;
        Ok([h2, spdy])
    }

    fn client(
        &mut self,
        name: &'static str,
        [h2, spdy]: [SocketAddr; 2],
        session: &str,
        steady: bool,
    ) -> Result<VisitorListeners, BenchError> {
        let [http, socks, metrics] = free_addresses()?;
        let gateway = if session == "h2" { h2 } else { spdy };
        let config = format!(
            "[client]\nlisten = [\"http://{http}\", \"socks5://{socks}\"]\n\
             gateway = [\"{session}+tcp://{gateway}\"]\nmax-sessions = 64\npreconnect = false\n\
             metrics = \"{metrics}\"\nidle-timeout = \"5s\"\npush-memory = \"1MiB\"\n"
        );
        self.add(name, "client", &config, http, metrics)?;
        Ok(VisitorListeners {
            http,
            socks,
            steady,
        })
    }

    fn add(
        &mut self,
        name: &'static str,
        role: &'static str,
        config: &str,
        listen: SocketAddr,
        metrics: SocketAddr,
    ) -> Result<(), BenchError> {
        let config = self.testbed.write(&format!("{name}.toml"), config)?;
        self.actors.push(Actor {
            name,
            role,
            config,
            listen,
            metrics,
            pid: 0,
        });
        self.begin(self.actors.len() - 1)
    }

    /// Starts a program, or starts it again.
    fn begin(&mut self, at: usize) -> Result<(), BenchError> {
        let actor = &self.actors[at];
        let mut command = Command::new(&self.tandem);
        command.arg(actor.role).arg("-c").arg(&actor.config);
        if let Some((library, clock)) = &self.clock {
            // Only the wall clock jumps; the monotonic one is the kernel's own.
            command
                .env("LD_PRELOAD", library)
                .env("FAKETIME_TIMESTAMP_FILE", clock)
                .env("FAKETIME_CACHE_DURATION", "1")
                .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
                .env("DONT_FAKE_MONOTONIC", "1");
        }
        let pid = self.testbed.start(Program {
            name: actor.name,
            command,
            core: None,
            network: None,
        })?;
        self.testbed.wait_for(pid, actor.name, actor.listen, None)?;
        self.actors[at].pid = pid;
        Ok(())
    }

    /// The programs that are never killed.
    pub fn measured(&self) -> Vec<SampledProgram> {
        [STEADY_GATEWAY, STEADY_CLIENT, BEREAVED_CLIENT]
            .into_iter()
            .map(|at| SampledProgram {
                name: self.actors[at].name,
                pid: self.actors[at].pid,
                metrics: self.actors[at].metrics,
            })
            .collect()
    }

    /// The listeners of one of the ways.
    pub const fn way(&self, at: usize) -> VisitorListeners {
        self.ways[at]
    }

    /// Plays the fault that is due, if one is. Returns whether a new one began.
    pub fn play(&mut self, elapsed: Duration) -> Result<bool, BenchError> {
        match self.fault {
            Some(Fault::Killed(at, since)) if since.elapsed() >= AWAY => {
                self.fault = None;
                self.begin(at)?;
            }
            Some(Fault::Suspended(at, since)) if since.elapsed() >= SUSPENDED => {
                self.fault = None;
                self.signal(at, libc::SIGCONT)?;
            }
            Some(_) => return Ok(false),
            None => {}
        }
        if elapsed < PERIOD * (self.played as u32 + 1) {
            return Ok(false);
        }
        let turn = self.played;
        self.played += 1;
        match turn % 7 {
            0 => self.kill(MORTAL_GATEWAY),
            1 => self.reload()?,
            2 => self.kill(MORTAL_CLIENT),
            3 => self.suspend(STEADY_GATEWAY)?,
            4 => self.jump(turn / 7)?,
            5 => self.suspend(STEADY_CLIENT)?,
            _ => self.suspend(BEREAVED_CLIENT)?,
        }
        Ok(true)
    }

    /// Ends the fault under way.
    pub fn rest(&mut self) -> Result<(), BenchError> {
        match self.fault.take() {
            Some(Fault::Killed(at, _)) => self.begin(at),
            Some(Fault::Suspended(at, _)) => self.signal(at, libc::SIGCONT),
            None => Ok(()),
        }
    }

    fn kill(&mut self, at: usize) {
        self.testbed.end(self.actors[at].pid);
        self.fault = Some(Fault::Killed(at, Instant::now()));
    }

    fn suspend(&mut self, at: usize) -> Result<(), BenchError> {
        self.signal(at, libc::SIGSTOP)?;
        self.fault = Some(Fault::Suspended(at, Instant::now()));
        Ok(())
    }

    fn reload(&self) -> Result<(), BenchError> {
        (0..self.actors.len()).try_for_each(|at| self.signal(at, libc::SIGHUP))
    }

    /// Moves the wall clock of all programs.
    fn jump(&self, turn: u64) -> Result<(), BenchError> {
        if self.clock.is_some() {
            let to = JUMPS[turn as usize % JUMPS.len()];
            self.testbed.write("clock", format!("{to}\n"))?;
        }
        Ok(())
    }

    fn signal(&self, at: usize, signal: i32) -> Result<(), BenchError> {
        let actor = &self.actors[at];
        sys::kill(actor.pid, signal).map_err(BenchError::system(format!("signal {}", actor.name)))
    }
}

/// Finds the library of libfaketime.
pub fn find_faketime() -> Result<PathBuf, BenchError> {
    let triple = format!("{}-linux-gnu", std::env::consts::ARCH);
    let library = Path::new("/usr/lib")
        .join(triple)
        .join("faketime/libfaketimeMT.so.1");
    if library.is_file() {
        Ok(library)
    } else {
        Err(BenchError::Missing {
            program: "libfaketime",
            package: "libfaketime",
        })
    }
}

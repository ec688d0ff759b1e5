//! `tandem-lab bench sessions`: the cost of a reverse gateway beside another proxy, with few and
//! with many sessions.
//!
//! Both proxies stand in front of the same origin, and take turns within each pass. The first load
//! is the baseline of the others. The origin's counter tells how many connections a request takes.
//! Memory is that of idle sessions, each after one exchange.

use std::fmt::{self, Write as _};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::str::FromStr;

use serde::Serialize;

use super::programs::{self, H2load, Origin, Proxy};
use super::rig::{IDLE_SIZE, Rig, RigProxy};
use super::testbed::{self, Testbed};
use super::usage::MemoryUsage;
use super::{BenchError, Size, ratios, turns};
use tandem_net::stats::Summary;

/// The path of nginx's counters.
const STATUS: &str = "/origin-status";

/// A number of sessions, with a number of requests in flight on each. The text is `1000x10`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SessionsLoad {
    /// The number of sessions.
    pub sessions: usize,
    /// The number of requests in flight on each session.
    pub streams: usize,
}

impl FromStr for SessionsLoad {
    type Err = BenchError;

    fn from_str(text: &str) -> Result<Self, BenchError> {
        let bad = || {
            BenchError::Value(format!(
                "not a number of sessions and one of streams: {text:?} (write 1000x10)"
            ))
        };
        let (sessions, streams) = text.split_once('x').ok_or_else(bad)?;
        let number = |text: &str, most: usize| {
            let number = text.parse().map_err(|_| bad())?;
            (1..=most)
                .contains(&number)
                .then_some(number)
                .ok_or_else(bad)
        };
        Ok(Self {
            sessions: number(sessions, 10_000)?,
            streams: number(streams, 256)?,
        })
    }
}

impl fmt::Display for SessionsLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.sessions, self.streams)
    }
}

/// The settings of a measurement.
#[derive(Clone, Debug)]
pub struct SessionsPlan {
    /// The program under test.
    pub tandem: PathBuf,
    /// The loads; the first is the baseline.
    pub loads: Vec<SessionsLoad>,
    /// The proxy to compare with.
    pub peer: Proxy,
    /// The size of the responses.
    pub size: Size,
    /// The number of requests in one turn.
    pub requests: usize,
    /// The number of turns of each proxy with each load.
    pub passes: usize,
    /// The numbers of idle sessions for the measurement of memory, rising; may be empty.
    pub idle: Vec<usize>,
}

/// The results of a measurement.
#[derive(Clone, Debug, Serialize)]
pub struct SessionsReport {
    /// The size of the responses in bytes.
    pub size: usize,
    /// The number of requests in one turn.
    pub requests: usize,
    /// The results of each load.
    pub loads: Vec<LoadReport>,
    /// The memory of idle sessions.
    pub memory: Vec<IdleReport>,
}

/// The results of one load.
#[derive(Clone, Debug, Serialize)]
pub struct LoadReport {
    /// The load.
    pub load: SessionsLoad,
    /// Both proxies, ours first.
    pub proxies: Vec<ProxyReport>,
    /// Our CPU time divided by the peer's, over the passes.
    pub cpu_to_peer: Summary,
}

/// The results of one proxy with one load.
#[derive(Clone, Debug, Serialize)]
pub struct ProxyReport {
    /// The proxy's name.
    pub proxy: &'static str,
    /// CPU microseconds for one request.
    pub cpu_us: Summary,
    /// The CPU time divided by that of the first load, over the passes.
    pub cpu_to_first: Summary,
    /// Connections to the origin that were opened for one request.
    pub origin_connections: Summary,
    /// Requests per second in the best pass.
    pub best_rate: f64,
    /// The number of requests without a whole response, in all passes.
    pub failed: usize,
}

/// The memory of a proxy with some number of idle sessions.
#[derive(Clone, Debug, Serialize)]
pub struct IdleReport {
    /// The proxy's name.
    pub proxy: &'static str,
    /// The number of idle sessions.
    pub sessions: usize,
    /// The memory of the whole proxy.
    pub memory: MemoryUsage,
    /// Bytes of RSS for each session, above the memory without sessions.
    pub rss_per_session: f64,
}

/// Runs the measurement; `say` receives progress messages.
pub fn run(plan: &SessionsPlan, say: &mut dyn FnMut(&str)) -> Result<SessionsReport, BenchError> {
    let testbed = Testbed::open()?;
    testbed::raise_open_files()?;
    let (own_core, rest) = testbed::cores();
    if let Some(core) = rest {
        testbed::pin_this_process(core)?;
    }
    let origin = Origin {
        address: testbed::free_address()?,
        lines: format!("location = {STATUS} {{ stub_status; }}"),
        root: programs::write_files(&testbed, &[plan.size, IDLE_SIZE])?,
    };
    origin.start(&testbed, rest, None)?;
    let bench = SessionsBench {
        plan,
        rig: Rig {
            tandem: &plan.tandem,
            testbed: &testbed,
            origin: origin.address,
            own_core,
            rest,
        },
    };
    let proxies = [Proxy::Tandem, plan.peer];
    let mut memory = Vec::new();
    for proxy in proxies.into_iter().filter(|_| !plan.idle.is_empty()) {
        say(&format!("{}: memory of idle sessions", proxy.name()));
        memory.extend(bench.memory(proxy)?);
    }
    let mut running = Vec::new();
    for proxy in proxies {
        running.push(bench.rig.start(proxy)?);
    }
    Ok(SessionsReport {
        size: plan.size.0,
        requests: plan.requests,
        loads: bench.loads(&running, say)?,
        memory,
    })
}

struct SessionsBench<'a> {
    plan: &'a SessionsPlan,
    rig: Rig<'a>,
}

/// The figures of one proxy with one load, pass by pass.
#[derive(Clone, Default)]
struct SessionsTurns {
    cpu_us: Vec<f64>,
    connections: Vec<f64>,
    best_rate: f64,
    failed: usize,
}

impl SessionsBench<'_> {
    fn loads(
        &self,
        running: &[RigProxy],
        say: &mut dyn FnMut(&str),
    ) -> Result<Vec<LoadReport>, BenchError> {
        let loads = &self.plan.loads;
        let mut figures = vec![vec![SessionsTurns::default(); running.len()]; loads.len()];
        for one in running {
            self.turn(one, loads[0], &mut SessionsTurns::default())?;
        }
        for pass in 0..self.plan.passes {
            say(&format!("pass {} of {}", pass + 1, self.plan.passes));
            for (load, figures) in loads.iter().zip(&mut figures) {
                for at in turns(pass, running.len()) {
                    self.turn(&running[at], *load, &mut figures[at])?;
                }
            }
        }
        let report = |(load, turns): (&SessionsLoad, &Vec<SessionsTurns>)| {
            let proxies = running.iter().zip(turns).zip(&figures[0]);
            Ok(LoadReport {
                load: *load,
                proxies: proxies
                    .map(|((one, turns), first)| turns.report(one.proxy, first))
                    .collect::<Result<_, BenchError>>()?,
                cpu_to_peer: ratio(&turns[0], &turns[1])?,
            })
        };
        loads.iter().zip(&figures).map(report).collect()
    }

    fn turn(
        &self,
        one: &RigProxy,
        load: SessionsLoad,
        turns: &mut SessionsTurns,
    ) -> Result<(), BenchError> {
        let program = H2load {
            requests: self.plan.requests.max(load.sessions * load.streams),
            connections: load.sessions,
            streams: load.streams,
        };
        let before = accepted(self.rig.origin)?;
        let cost = self.rig.load(one, self.plan.size, &program)?;
        // The counter includes the connection that reads it.
        let opened = accepted(self.rig.origin)?.saturating_sub(before + 1);
        turns.cpu_us.push(cost.cpu_us);
        turns
            .connections
            .push(opened as f64 / program.requests as f64);
        turns.best_rate = turns.best_rate.max(cost.rate);
        turns.failed += cost.failed;
        Ok(())
    }

    fn memory(&self, proxy: Proxy) -> Result<Vec<IdleReport>, BenchError> {
        let memory = self.rig.idle(proxy, &[], &self.plan.idle)?;
        let before = memory[0];
        let report = |(sessions, memory): (&usize, &MemoryUsage)| IdleReport {
            proxy: proxy.name(),
            sessions: *sessions,
            memory: *memory,
            rss_per_session: (memory.rss as f64 - before.rss as f64) / *sessions as f64,
        };
        Ok(self
            .plan
            .idle
            .iter()
            .zip(&memory[1..])
            .map(report)
            .collect())
    }
}

impl SessionsTurns {
    fn report(&self, proxy: Proxy, first: &Self) -> Result<ProxyReport, BenchError> {
        Ok(ProxyReport {
            proxy: proxy.name(),
            cpu_us: summary(&self.cpu_us)?,
            cpu_to_first: ratio(self, first)?,
            origin_connections: summary(&self.connections)?,
            best_rate: self.best_rate,
            failed: self.failed,
        })
    }
}

fn summary(values: &[f64]) -> Result<Summary, BenchError> {
    Summary::of(values).ok_or_else(no_figures)
}

fn ratio(of: &SessionsTurns, to: &SessionsTurns) -> Result<Summary, BenchError> {
    ratios(&of.cpu_us, &to.cpu_us).ok_or_else(no_figures)
}

fn no_figures() -> BenchError {
    BenchError::Value("a pass gave no figures: no request succeeded".into())
}

/// Reads the number of connections that the origin has accepted so far.
fn accepted(origin: SocketAddr) -> Result<u64, BenchError> {
    let read = || {
        let mut stream = TcpStream::connect(origin)?;
        write!(stream, "GET {STATUS} HTTP/1.0\r\nhost: {origin}\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text).map(|_| text)
    };
    let text = read().map_err(BenchError::system("read the origin's counters"))?;
    counter(&text).ok_or_else(|| BenchError::Program {
        program: "nginx".into(),
        problem: "shows no counters".into(),
        log: text,
    })
}

/// Returns the first number of the line below nginx's `server accepts handled requests`.
fn counter(text: &str) -> Option<u64> {
    let mut lines = text.lines();
    lines.find(|line| line.starts_with("server accepts"))?;
    lines.next()?.split_whitespace().next()?.parse().ok()
}

impl SessionsReport {
    /// Formats the results as text.
    pub fn table(&self) -> String {
        let (size, requests) = (self.size, self.requests);
        let mut out = format!("{size} bytes, at least {requests} requests a turn\n");
        for one in &self.loads {
            let _ = writeln!(out, "{} sessions x streams", one.load);
            for row in &one.proxies {
                let _ = writeln!(
                    out,
                    "  {:<8} {} us CPU a request, {} of the first load, {:.3} origin connections a request, best {:.0} requests/s, {} failed",
                    row.proxy,
                    ranged(&row.cpu_us),
                    ranged(&row.cpu_to_first),
                    row.origin_connections.median,
                    row.best_rate,
                    row.failed
                );
            }
            let peer = one.proxies.last().map_or("", |row| row.proxy);
            let _ = writeln!(out, "  CPU tandem / {peer}: {}", ranged(&one.cpu_to_peer));
        }
        for row in &self.memory {
            let _ = writeln!(
                out,
                "{:<8} {:6.1} kB RSS per idle session ({} sessions, {:.1} MB)",
                row.proxy,
                row.rss_per_session / 1e3,
                row.sessions,
                row.memory.rss as f64 / 1e6
            );
        }
        out
    }
}

fn ranged(summary: &Summary) -> String {
    let Summary {
        median, min, max, ..
    } = summary;
    format!("{median:.2} [{min:.2}..{max:.2}]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_reads_sessions_and_streams() {
        let load = "1000x10".parse::<SessionsLoad>().expect("valid");
        assert_eq!((load.sessions, load.streams), (1000, 10));
        assert_eq!(load.to_string(), "1000x10");
        for text in ["", "10", "x", "0x1", "1x0", "10001x1", "1x257", "1x1x1"] {
            let error = text.parse::<SessionsLoad>().expect_err(text).to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }

    #[test]
    fn counter_reads_accepted_connections() {
        let text = "HTTP/1.1 200 OK\r\n\r\nActive connections: 2 \n\
                    server accepts handled requests\n 17 16 90 \nReading: 0 Writing: 1 Waiting: 1 \n";
        assert_eq!(counter(text), Some(17));
        assert_eq!(counter("HTTP/1.1 404 Not Found\r\n\r\n"), None);
    }

    #[test]
    fn table_shows_ratios_with_their_range() {
        let turns = |cpu_us: &[f64]| SessionsTurns {
            cpu_us: cpu_us.to_vec(),
            connections: vec![0.5; cpu_us.len()],
            best_rate: 7.0,
            failed: 0,
        };
        let (few, many, peer) = (
            turns(&[10.0, 20.0]),
            turns(&[20.0, 30.0]),
            turns(&[8.0, 10.0]),
        );
        let load = LoadReport {
            load: SessionsLoad {
                sessions: 5,
                streams: 2,
            },
            proxies: vec![
                many.report(Proxy::Tandem, &few).expect("figures"),
                peer.report(Proxy::Nghttpx, &peer).expect("figures"),
            ],
            cpu_to_peer: ratio(&many, &peer).expect("figures"),
        };
        let report = SessionsReport {
            size: 1024,
            requests: 20,
            loads: vec![load],
            memory: Vec::new(),
        };
        let table = report.table();
        assert!(table.contains("5x2 sessions"), "{table}");
        assert!(
            table.contains("1.75 [1.50..2.00] of the first load"),
            "{table}"
        );
        assert!(
            table.contains("CPU tandem / nghttpx: 2.75 [2.50..3.00]"),
            "{table}"
        );
    }
}

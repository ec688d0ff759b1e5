//! `tandem-lab bench proxy`: our gateway beside other proxies that translate HTTP/2 without TLS to
//! HTTP/1.1.
//!
//! The proxy runs on one processor, origin and load on another. Proxies take turns within each
//! pass, and the reliable figure is the ratio of CPU times within a pass. Memory is that of idle
//! sessions, each after one exchange. A second figure of ours is without the cache, which keeps the
//! response of that exchange.

use std::fmt::Write as _;
use std::path::PathBuf;

use serde::Serialize;

use super::programs::{self, H2load, Origin, Proxy};
use super::rig::{IDLE_SIZE, Rig, RigProxy};
use super::testbed::{self, Testbed};
use super::usage::MemoryUsage;
use super::{BenchError, Size, ratios, turns};
use tandem_net::stats::Summary;

/// The name of our gateway without a cache.
const WITHOUT_CACHE: &str = "tandem, no cache";

/// The settings of a measurement.
#[derive(Clone, Debug)]
pub struct ProxyPlan {
    /// The program under test.
    pub tandem: PathBuf,
    /// Sizes of the answers.
    pub sizes: Vec<Size>,
    /// Turns that each proxy gets.
    pub passes: usize,
    /// Proxies to compare with.
    pub peers: Vec<Proxy>,
    /// Requests of one turn; by size unless given.
    pub requests: Option<usize>,
    /// The number of idle sessions for the memory measurement; 0 for none.
    pub sessions: usize,
}

/// The results of a measurement.
#[derive(Clone, Debug, Serialize)]
pub struct ProxyReport {
    /// CPU time, for each size.
    pub sizes: Vec<SizeReport>,
    /// Memory, for each proxy.
    pub memory: Vec<MemoryReport>,
}

/// Answers of one size.
#[derive(Clone, Debug, Serialize)]
pub struct SizeReport {
    /// Bytes of an answer.
    pub size: usize,
    /// Requests of one turn.
    pub requests: usize,
    /// Every proxy, ours first.
    pub proxies: Vec<CpuReport>,
    /// Our CPU time by each peer's.
    pub ratios: Vec<RatioReport>,
}

/// The results of a proxy with responses of one size.
#[derive(Clone, Debug, Serialize)]
pub struct CpuReport {
    /// The proxy's name.
    pub proxy: &'static str,
    /// CPU milliseconds for 1000 requests.
    pub cpu_ms_per_1000: Summary,
    /// Requests per second in the best pass.
    pub best_rate: f64,
    /// Requests without a whole answer, of all passes.
    pub failed: usize,
}

/// Our CPU time by a peer's.
#[derive(Clone, Debug, Serialize)]
pub struct RatioReport {
    /// Name of the peer.
    pub peer: &'static str,
    /// The statistics of the ratios of the passes.
    pub cpu: Summary,
}

/// Memory of one proxy.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryReport {
    /// The proxy's name.
    pub proxy: &'static str,
    /// Idle sessions.
    pub sessions: usize,
    /// The memory after one session has ended.
    pub before: MemoryUsage,
    /// The memory with all of them idle.
    pub idle: MemoryUsage,
    /// Bytes of PSS for each session.
    pub pss_per_session: f64,
    /// Bytes of RSS for each session.
    pub rss_per_session: f64,
}

/// Runs the measurement; `say` receives progress messages.
pub fn run(plan: &ProxyPlan, say: &mut dyn FnMut(&str)) -> Result<ProxyReport, BenchError> {
    let testbed = Testbed::open()?;
    let (own_core, rest) = testbed::cores();
    if let Some(core) = rest {
        testbed::pin_this_process(core)?;
    }
    let mut sizes = plan.sizes.clone();
    sizes.push(IDLE_SIZE);
    let origin = Origin {
        address: testbed::free_address()?,
        lines: String::new(),
        root: programs::write_files(&testbed, &sizes)?,
    };
    origin.start(&testbed, rest, None)?;
    let mut all = vec![Proxy::Tandem];
    all.extend(&plan.peers);
    let rig = Rig {
        tandem: &plan.tandem,
        testbed: &testbed,
        origin: origin.address,
        own_core,
        rest,
    };
    let bench = ProxyBench { plan, rig };
    // The responses in our cache are no part of the sessions.
    let without_cache: (_, _, &[&str]) = (Proxy::Tandem, WITHOUT_CACHE, &["--cache", "off"]);
    let idle = all.iter().map(|proxy| (*proxy, proxy.name(), &[][..]));
    let memory = std::iter::once(without_cache)
        .chain(idle)
        .filter(|_| plan.sessions > 0)
        .map(|(proxy, name, arguments)| bench.memory(proxy, name, arguments, say))
        .collect::<Result<_, _>>()?;
    let running = all
        .iter()
        .map(|proxy| bench.rig.start(*proxy))
        .collect::<Result<Vec<_>, _>>()?;
    let sizes = plan
        .sizes
        .iter()
        .map(|size| bench.size(*size, &running, say))
        .collect::<Result<_, _>>()?;
    Ok(ProxyReport { sizes, memory })
}

struct ProxyBench<'a> {
    plan: &'a ProxyPlan,
    rig: Rig<'a>,
}

/// The totals of a proxy over all its turns.
#[derive(Default)]
struct ProxyTurns {
    cpu_ms_per_1000: Vec<f64>,
    best_rate: f64,
    failed: usize,
}

impl ProxyBench<'_> {
    fn size(
        &self,
        size: Size,
        running: &[RigProxy],
        say: &mut dyn FnMut(&str),
    ) -> Result<SizeReport, BenchError> {
        let load = load(size, self.plan.requests);
        let mut turns_of: Vec<ProxyTurns> = running.iter().map(|_| ProxyTurns::default()).collect();
        for one in running {
            let warm_up = H2load {
                requests: (load.requests / 8).max(load.connections * load.streams),
                ..load.clone()
            };
            self.turn(one, size, &warm_up, &mut ProxyTurns::default())?;
        }
        for pass in 0..self.plan.passes {
            say(&format!(
                "{} bytes: pass {} of {}",
                size.0,
                pass + 1,
                self.plan.passes
            ));
            for at in turns(pass, running.len()) {
                self.turn(&running[at], size, &load, &mut turns_of[at])?;
            }
        }
        let summary = |values: &[f64]| {
            Summary::of(values).ok_or_else(|| BenchError::Value("no passes".into()))
        };
        let proxies = running.iter().zip(&turns_of).map(|(one, turns)| {
            let (best_rate, failed) = (turns.best_rate, turns.failed);
            Ok(CpuReport {
                proxy: one.proxy.name(),
                cpu_ms_per_1000: summary(&turns.cpu_ms_per_1000)?,
                best_rate,
                failed,
            })
        });
        let proxies = proxies.collect::<Result<_, BenchError>>()?;
        let ratio = |(one, turns): (&RigProxy, &ProxyTurns)| {
            let cpu = ratios(&turns_of[0].cpu_ms_per_1000, &turns.cpu_ms_per_1000)?;
            Some(RatioReport {
                peer: one.proxy.name(),
                cpu,
            })
        };
        let ratios = running
            .iter()
            .zip(&turns_of)
            .skip(1)
            .filter_map(ratio)
            .collect();
        Ok(SizeReport {
            size: size.0,
            requests: load.requests,
            proxies,
            ratios,
        })
    }

    fn turn(
        &self,
        one: &RigProxy,
        size: Size,
        load: &H2load,
        turns: &mut ProxyTurns,
    ) -> Result<(), BenchError> {
        let cost = self.rig.load(one, size, load)?;
        turns.failed += cost.failed;
        turns.best_rate = turns.best_rate.max(cost.rate);
        turns.cpu_ms_per_1000.push(cost.cpu_us);
        Ok(())
    }

    /// Measures the memory of idle sessions.
    fn memory(
        &self,
        proxy: Proxy,
        name: &'static str,
        arguments: &[&str],
        say: &mut dyn FnMut(&str),
    ) -> Result<MemoryReport, BenchError> {
        let count = self.plan.sessions;
        say(&format!("{name}: memory of {count} idle sessions"));
        let memory = self.rig.idle(proxy, arguments, &[count])?;
        let (before, idle) = (memory[0], memory[1]);
        let each = |before: u64, idle: u64| (idle as f64 - before as f64) / count as f64;
        Ok(MemoryReport {
            proxy: name,
            sessions: count,
            before,
            idle,
            pss_per_session: each(before.pss, idle.pss),
            rss_per_session: each(before.rss, idle.rss),
        })
    }
}

/// The load for answers of one size: about a second of work, and fewer streams where each carries
/// much.
fn load(size: Size, requests: Option<usize>) -> H2load {
    let streams = match size.0 {
        ..100_000 => 32,
        100_000..1_000_000 => 16,
        _ => 4,
    };
    let requests = requests.unwrap_or_else(|| ((1 << 30) / size.0).clamp(800, 50_000));
    H2load {
        requests,
        connections: 8,
        streams,
    }
}

impl ProxyReport {
    /// Formats the results as text.
    pub fn table(&self) -> String {
        let mut out = String::new();
        for size in &self.sizes {
            let _ = writeln!(
                out,
                "{} bytes, {} requests a turn",
                size.size, size.requests
            );
            for row in &size.proxies {
                let cpu = &row.cpu_ms_per_1000;
                let _ = writeln!(
                    out,
                    "  {:<8} {:8.2} ms CPU per 1000 requests [{:.2}..{:.2}], best {:.0} requests/s, {} failed",
                    row.proxy, cpu.median, cpu.min, cpu.max, row.best_rate, row.failed
                );
            }
            for ratio in &size.ratios {
                let Summary {
                    median,
                    min,
                    max,
                    count,
                    ..
                } = ratio.cpu;
                let _ = writeln!(
                    out,
                    "  CPU tandem / {}: {median:.2} [{min:.2}..{max:.2} of {count} passes]",
                    ratio.peer
                );
            }
        }
        for row in &self.memory {
            let _ = writeln!(
                out,
                "{:<20} {:6.1} kB PSS, {:6.1} kB RSS per idle session ({} sessions)",
                row.proxy,
                row.pss_per_session / 1000.0,
                row.rss_per_session / 1000.0,
                row.sessions
            );
        }
        out
    }
}

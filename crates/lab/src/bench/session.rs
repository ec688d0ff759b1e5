//! `tandem-lab bench session`: the session protocols beside each other, over the same gateway
//! program.
//!
//! Our client makes the load, because no other client speaks all protocols; requests and responses
//! look like a browser's and a web server's. CPU time is the gateway's, in alternation. Bytes are
//! TCP payload, beside those of HTTP/1.1 for the same exchange.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::Serialize;

use super::client::{self, BenchSession, CarriedPayload, Protocol, Work};
use super::programs::{self, Origin};
use super::testbed::{self, Program, Testbed};
use super::{BenchError, Size, browser, ratios, turns, usage};
use tandem_net::stats::Summary;

/// Sessions that carry the load of one turn together.
const SESSIONS: usize = 8;

/// The settings of a measurement.
#[derive(Clone, Debug)]
pub struct SessionPlan {
    /// The program under test.
    pub tandem: PathBuf,
    /// The session protocols; the first is the baseline.
    pub protocols: Vec<Protocol>,
    /// Size of the answers.
    pub size: Size,
    /// Requests of one turn.
    pub requests: usize,
    /// Requests in flight on each session.
    pub streams: usize,
    /// Turns that each protocol gets.
    pub passes: usize,
}

/// The results of a measurement.
#[derive(Clone, Debug, Serialize)]
pub struct SessionBenchReport {
    /// Bytes of an answer's body.
    pub size: usize,
    /// Requests of one turn.
    pub requests: usize,
    /// For each protocol.
    pub sessions: Vec<SessionReport>,
    /// HTTP/1.1's bytes for the same exchanges.
    pub http1: BytesReport,
}

/// The results of a session protocol.
#[derive(Clone, Debug, Serialize)]
pub struct SessionReport {
    /// The protocol's name.
    pub session: &'static str,
    /// The gateway's CPU milliseconds for 1000 requests.
    pub cpu_ms_per_1000: Summary,
    /// By the first protocol's in the same pass.
    pub cpu_ratio: Option<Summary>,
    /// The bytes on the wire.
    pub bytes: BytesReport,
}

/// TCP payload for one request.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BytesReport {
    /// To the gateway.
    pub up: f64,
    /// Back, without the answer's body.
    pub down_overhead: f64,
}

struct RunningSession {
    protocol: Protocol,
    pid: u32,
    address: SocketAddr,
    cpu_ms_per_1000: Vec<f64>,
    carried: CarriedPayload,
}

/// Runs the measurement; `say` receives progress messages.
pub fn run(
    plan: &SessionPlan,
    say: &mut dyn FnMut(&str),
) -> Result<SessionBenchReport, BenchError> {
    let testbed = Testbed::open()?;
    let (own_core, rest) = testbed::cores();
    if let Some(core) = rest {
        testbed::pin_this_process(core)?;
    }
    let origin = Origin {
        address: testbed::free_address()?,
        lines: browser::response_headers(),
        root: programs::write_site(&testbed, plan.size)?,
    };
    origin.start(&testbed, rest, None)?;
    let start = |name: &str, core| {
        let address = testbed::free_address()?;
        let command = programs::gateway(
            &plan.tandem,
            &format!("{name}+tcp://{address}"),
            origin.address,
        );
        let pid = testbed.start(Program {
            name,
            command,
            core,
            network: None,
        })?;
        testbed
            .wait_for(pid, name, address, None)
            .map(|()| (pid, address))
    };
    let (_, http1) = start("http", own_core)?;
    let mut running = Vec::new();
    for &protocol in &plan.protocols {
        let (pid, address) = start(protocol.name(), own_core)?;
        running.push(RunningSession {
            protocol,
            pid,
            address,
            cpu_ms_per_1000: Vec::new(),
            carried: CarriedPayload::default(),
        });
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime
        .map_err(BenchError::system("start a runtime"))?
        .block_on(measure(plan, http1, running, say))
}

async fn measure(
    plan: &SessionPlan,
    http1: SocketAddr,
    mut running: Vec<RunningSession>,
    say: &mut dyn FnMut(&str),
) -> Result<SessionBenchReport, BenchError> {
    let requests = browser::requests("www.example.test");
    let work = Work {
        requests: &requests,
        count: plan.requests.div_ceil(SESSIONS),
        streams: plan.streams,
        size: plan.size.0,
    };
    let plain = client::over_http1(
        http1,
        Work {
            count: 4 * requests.len(),
            ..work
        },
    )
    .await?;
    let http1 = BytesReport::of(plain, 4 * requests.len(), plan.size);
    for one in &mut running {
        one.turn(Work {
            count: work.count.div_ceil(8),
            ..work
        })
        .await?;
        one.cpu_ms_per_1000.clear();
    }
    for pass in 0..plan.passes {
        say(&format!("pass {} of {}", pass + 1, plan.passes));
        for at in turns(pass, running.len()) {
            running[at].turn(work).await?;
        }
    }
    let first = running
        .first()
        .map(|one| one.cpu_ms_per_1000.clone())
        .unwrap_or_default();
    let sessions = running.iter().map(|one| {
        Ok(SessionReport {
            session: one.protocol.name(),
            cpu_ms_per_1000: Summary::of(&one.cpu_ms_per_1000)
                .ok_or_else(|| BenchError::Value("no passes".into()))?,
            cpu_ratio: ratios(&one.cpu_ms_per_1000, &first),
            bytes: BytesReport::of(one.carried, work.count * SESSIONS, plan.size),
        })
    });
    let sessions = sessions.collect::<Result<_, BenchError>>()?;
    Ok(SessionBenchReport {
        size: plan.size.0,
        requests: work.count * SESSIONS,
        sessions,
        http1,
    })
}

impl RunningSession {
    /// The load on fresh sessions, so that compression contexts begin empty in every turn.
    async fn turn(&mut self, work: Work<'_>) -> Result<(), BenchError> {
        let mut sessions = Vec::new();
        for _ in 0..SESSIONS {
            sessions.push(BenchSession::connect(self.protocol, self.address).await?);
        }
        let before = usage::cpu_time(self.pid)?;
        self.carried = client::run_all(&mut sessions, work).await?;
        let used = usage::cpu_time(self.pid)?.saturating_sub(before);
        self.cpu_ms_per_1000
            .push(used.as_secs_f64() * 1e6 / (work.count * SESSIONS) as f64);
        Ok(())
    }
}

impl BytesReport {
    fn of(carried: CarriedPayload, requests: usize, size: Size) -> Self {
        let each = |bytes: u64| bytes as f64 / requests.max(1) as f64;
        Self {
            up: each(carried.up),
            down_overhead: each(carried.down) - size.0 as f64,
        }
    }
}

impl SessionBenchReport {
    /// Formats the results as text.
    pub fn table(&self) -> String {
        let mut out = format!(
            "{} bytes, {} requests a turn, {SESSIONS} sessions\n",
            self.size, self.requests
        );
        for row in &self.sessions {
            let cpu = &row.cpu_ms_per_1000;
            let _ = write!(
                out,
                "  {:<8} {:7.2} ms CPU per 1000 requests [{:.2}..{:.2}]",
                row.session, cpu.median, cpu.min, cpu.max
            );
            if let (Some(ratio), Some(first)) = (&row.cpu_ratio, self.sessions.first()) {
                let _ = write!(
                    out,
                    ", / {} {:.2} [{:.2}..{:.2}]",
                    first.session, ratio.median, ratio.min, ratio.max
                );
            }
            let _ = writeln!(out, "; bytes per request: {}", row.bytes.text());
        }
        let _ = writeln!(out, "  http/1.1 bytes per request: {}", self.http1.text());
        out
    }
}

impl BytesReport {
    fn text(&self) -> String {
        format!(
            "{:.0} up, {:.0} down beside the body",
            self.up, self.down_overhead
        )
    }
}

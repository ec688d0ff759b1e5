//! Samples the programs of a soak, and judges at the end: memory, descriptors and open exchanges
//! must be back within their bounds.

use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde::Serialize;
use tandem_http::Method;

use super::SoakOptions;
use super::cast::SampledProgram;
use super::report::{ProcessReport, ResidentMemory, Soak};
use super::visitor::Counts;
use super::wire::Connection;
use crate::bench::BenchError;

/// The time at which memory is taken for comparison, in a soak that lasts twice as long.
const REFERENCE: Duration = Duration::from_secs(600);

/// The growth of memory after it that is allowed.
const GROWTH: f64 = 1.05;

/// The additional growth, in bytes, that is allowed in a shorter soak, because its stores still
/// fill.
const WARM_UP: u64 = 16 << 20;

/// Descriptors more than at the beginning that are allowed: a metrics connection on its way out.
const SPARE_DESCRIPTORS: usize = 2;

/// The longest time for reading a program's metrics; a suspended one answers later.
const METRICS_TIMEOUT: Duration = Duration::from_millis(300);

/// The state of a program at one time.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct ProgramSample {
    /// Seconds since the first visitor.
    pub at: f64,
    /// Resident memory in bytes.
    pub memory: u64,
    /// Open descriptors.
    pub descriptors: usize,
    /// Threads.
    pub threads: usize,
    /// Open connections, sessions' own among them; `None` where the program did not answer.
    pub connections: Option<u64>,
    /// Exchanges under way.
    pub exchanges: Option<u64>,
}

/// A program with its samples.
struct WatchedProgram {
    program: SampledProgram,
    base: ProgramSample,
    samples: Vec<ProgramSample>,
    last: ProgramSample,
    sessions: u64,
}

/// The watch over all programs.
pub struct Watch {
    subjects: Vec<WatchedProgram>,
}

impl Watch {
    /// Creates the watch over some programs.
    pub fn new(programs: Vec<SampledProgram>) -> Self {
        let subject = |program| WatchedProgram {
            program,
            base: ProgramSample::default(),
            samples: Vec::new(),
            last: ProgramSample::default(),
            sessions: 0,
        };
        Self {
            subjects: programs.into_iter().map(subject).collect(),
        }
    }

    /// Notes the state to which the programs are to return.
    pub async fn note_base(&mut self) -> Result<(), BenchError> {
        for subject in &mut self.subjects {
            subject.base = subject
                .program
                .sample(Duration::ZERO)
                .await
                .ok_or_else(|| {
                    BenchError::Value(format!("{} cannot be sampled", subject.program.name))
                })?;
        }
        Ok(())
    }

    /// Takes a sample of each program.
    pub async fn sample(&mut self, elapsed: Duration) {
        for subject in &mut self.subjects {
            if let Some(sample) = subject.program.sample(elapsed).await {
                subject.samples.push(sample);
                subject.last = sample;
            }
        }
    }

    /// Waits until nothing is open any more. Returns the problems that are left after `limit`.
    pub async fn settle(&mut self, limit: Duration) -> Vec<String> {
        let begun = Instant::now();
        loop {
            let mut problems = Vec::new();
            for subject in &mut self.subjects {
                match subject.program.sample(begun.elapsed()).await {
                    Some(sample) => subject.last = sample,
                    None => problems.push(format!("{} has ended", subject.program.name)),
                }
                problems.extend(subject.unsettled());
            }
            if problems.is_empty() || begun.elapsed() > limit {
                for subject in &mut self.subjects {
                    let text = metrics(subject.program.metrics).await.unwrap_or_default();
                    subject.sessions = value(&text, "tandem_sessions_opened_total").unwrap_or(0);
                }
                return problems;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// Judges the whole soak.
    pub fn judge(
        &self,
        options: &SoakOptions,
        took: Duration,
        counts: &Counts,
        faults: u64,
        settled: Vec<String>,
    ) -> Soak {
        let mut problems = settled;
        if counts.wrong() > 0 {
            problems.push(format!("{} actions got wrong bytes", counts.wrong()));
        }
        let failed = counts.failed_on_steady_way();
        if failed > 0 {
            problems.push(format!("{failed} actions failed where nothing was killed"));
        }
        let reference = REFERENCE.min(options.time / 2);
        let processes = self
            .subjects
            .iter()
            .map(|subject| subject.judge(options.time, reference, &mut problems))
            .collect();
        Soak {
            seconds: took.as_secs_f64(),
            seed: options.seed,
            actions: counts.right().collect(),
            checked_bytes: counts.bytes(),
            failed_where_killed: counts.failed_where_killed(),
            failed_on_steady_way: failed,
            wrong: counts.wrong(),
            complaints: counts.complaints(),
            faults,
            wall_clock_jumped: options.faketime.is_some(),
            processes,
            problems,
        }
    }
}

impl WatchedProgram {
    /// The bounds that the last sample exceeds.
    fn unsettled(&self) -> Vec<String> {
        let (name, last) = (self.program.name, &self.last);
        let mut problems = Vec::new();
        if last.exchanges != Some(0) {
            problems.push(format!("{name} has exchanges open: {:?}", last.exchanges));
        }
        // The connection that reads the metrics is open itself.
        if last.connections.is_none_or(|open| open > 1) {
            problems.push(format!(
                "{name} has connections open: {:?}",
                last.connections
            ));
        }
        if last.descriptors > self.base.descriptors + SPARE_DESCRIPTORS {
            problems.push(format!(
                "{name} has {} descriptors open, {} at first",
                last.descriptors, self.base.descriptors
            ));
        }
        if last.threads > self.base.threads {
            problems.push(format!(
                "{name} has {} threads, {} at first",
                last.threads, self.base.threads
            ));
        }
        problems
    }

    fn judge(
        &self,
        time: Duration,
        reference: Duration,
        problems: &mut Vec<String>,
    ) -> ProcessReport {
        let median = |from: f64, to: f64| {
            let within =
                |sample: &&ProgramSample| (from..=to).contains(&(sample.at / time.as_secs_f64()));
            let mut memory: Vec<u64> = self
                .samples
                .iter()
                .filter(within)
                .map(|sample| sample.memory)
                .collect();
            memory.sort_unstable();
            memory.get(memory.len() / 2).copied().unwrap_or(0)
        };
        let share = reference.as_secs_f64() / time.as_secs_f64();
        let then = median(share - 0.05, share + 0.05);
        let last = median(0.9, 1.0);
        let spare = if reference < REFERENCE { WARM_UP } else { 0 };
        let allowed = (then as f64 * GROWTH) as u64 + spare;
        if last > allowed || then == 0 {
            problems.push(format!(
                "{} grew from {then} to {last} bytes, {allowed} are allowed",
                self.program.name
            ));
        }
        ProcessReport {
            name: self.program.name,
            memory: ResidentMemory {
                reference_at: reference.as_secs_f64(),
                reference: then,
                last,
                allowed,
            },
            base: self.base,
            settled: self.last,
            sessions_opened: self.sessions,
            samples: self.samples.clone(),
        }
    }
}

impl SampledProgram {
    /// Takes a sample; `None` where the process is gone.
    async fn sample(&self, elapsed: Duration) -> Option<ProgramSample> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        };
        let descriptors = fs::read_dir(format!("/proc/{}/fd", self.pid)).ok()?.count();
        let text = tokio::time::timeout(METRICS_TIMEOUT, metrics(self.metrics)).await;
        let text = text.ok().and_then(Result::ok).unwrap_or_default();
        Some(ProgramSample {
            at: elapsed.as_secs_f64(),
            memory: field("VmRSS:")? * 1024,
            descriptors,
            threads: field("Threads:")? as usize,
            connections: value(&text, "tandem_connections_open"),
            exchanges: value(&text, "tandem_exchanges_open"),
        })
    }
}

/// Reads a program's metrics.
async fn metrics(address: SocketAddr) -> std::io::Result<String> {
    let mut connection = Connection::open(address).await?;
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    connection.send(request.as_bytes()).await?;
    let mut text = Vec::new();
    connection
        .answer(&Method::Get, |_, data| text.extend_from_slice(data))
        .await?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The value of a metric in Prometheus' text format.
fn value(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        line.strip_prefix(name)?
            .strip_prefix(' ')?
            .trim()
            .parse()
            .ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(memory: impl Fn(usize) -> u64) -> WatchedProgram {
        let sample = |at: usize| ProgramSample {
            at: at as f64,
            memory: memory(at),
            descriptors: 10,
            threads: 2,
            connections: Some(0),
            exchanges: Some(0),
        };
        WatchedProgram {
            program: SampledProgram {
                name: "client",
                pid: 1,
                metrics: ([127, 0, 0, 1], 1).into(),
            },
            base: sample(0),
            samples: (0..3600).map(sample).collect(),
            last: sample(3599),
            sessions: 0,
        }
    }

    fn problems(subject: &WatchedProgram) -> Vec<String> {
        let mut problems = subject.unsettled();
        subject.judge(Duration::from_secs(3600), REFERENCE, &mut problems);
        problems
    }

    #[test]
    fn judge_allows_five_percent_of_growth() {
        assert!(problems(&subject(|at| 100 << 20 | at as u64)).is_empty());
        let grown = |at| if at > 1000 { 106 << 20 } else { 100 << 20 };
        assert_eq!(problems(&subject(grown)).len(), 1);
    }

    #[test]
    fn judge_names_what_stays_open() {
        let mut subject = subject(|_| 100 << 20);
        subject.last.connections = Some(2);
        subject.last.exchanges = None;
        subject.last.descriptors = 13;
        subject.last.threads = 3;
        assert_eq!(problems(&subject).len(), 4);
    }

    #[test]
    fn value_reads_prometheus_text() {
        let text = "# HELP tandem_x y\ntandem_x_total 7\ntandem_x 3\n";
        assert_eq!(value(text, "tandem_x"), Some(3));
        assert_eq!(value(text, "tandem_y"), None);
    }
}

//! The description of a run: everything that is needed to repeat it.

use std::time::SystemTime;

use serde::Serialize;

use crate::har::date_time;

/// The beginning of every result file.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// The command line.
    pub command: Vec<String>,
    /// Version of the lab.
    pub version: String,
    /// Names and versions of other programs that take part.
    pub programs: Vec<String>,
    /// The seed of all random choices.
    pub seed: u64,
    /// The time of its start, UTC.
    pub started: String,
    /// The machine on which it ran.
    pub machine: Machine,
    /// The link around, if there is one: the addresses of its two ends.
    pub link: Option<[String; 2]>,
}

/// The machine.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Version of its kernel.
    pub kernel: String,
    /// Model of its processor.
    pub processor: String,
    /// Processors that may be used.
    pub processors: usize,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Congestion control of TCP unless something else is set for a route.
    pub congestion: String,
    /// How busy it was at the start: mean number of running processes in the last minute.
    pub load: f64,
}

impl Run {
    /// Describes this process.
    pub fn here(seed: u64) -> Self {
        let link = std::env::var("TANDEM_LINK_ADDRESS")
            .ok()
            .zip(std::env::var("TANDEM_LINK_PEER").ok());
        Self {
            command: std::env::args_os()
                .map(|part| part.to_string_lossy().into_owned())
                .collect(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            programs: Vec::new(),
            seed,
            started: date_time(SystemTime::now()),
            machine: Machine::here(),
            link: link.map(|(own, peer)| [own, peer]),
        }
    }

    /// The same as lines of comment.
    pub fn comment(&self) -> String {
        let Self {
            command,
            version,
            programs,
            seed,
            started,
            machine,
            link,
        } = self;
        let mut text = format!("# {}\n# tandem-lab {version}", command.join(" "));
        programs
            .iter()
            .for_each(|program| text.push_str(&format!(", {program}")));
        let link = link
            .as_ref()
            .map_or_else(String::new, |[own, peer]| format!(", link {own} > {peer}"));
        let Machine {
            kernel,
            processor,
            processors,
            memory_mib,
            congestion,
            load,
        } = machine;
        text.push_str(&format!(
            "\n# seed {seed}, {started}{link}\n# Linux {kernel}, {processors} x {processor}, {memory_mib} MiB, {congestion}, load {load}\n"
        ));
        text
    }
}

impl Machine {
    /// Describes this machine. Values that its kernel does not report are empty.
    pub fn here() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let value = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_once(':'))
                .map_or_else(String::new, |(_, value)| value.trim().to_owned())
        };
        let memory = value(&read("/proc/meminfo"), "MemTotal");
        let memory = memory
            .split(' ')
            .next()
            .and_then(|kib| kib.parse::<u64>().ok())
            .unwrap_or(0);
        Self {
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            processor: value(&read("/proc/cpuinfo"), "model name"),
            processors: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            memory_mib: memory / 1024,
            congestion: read("/proc/sys/net/ipv4/tcp_congestion_control")
                .trim()
                .to_owned(),
            load: read("/proc/loadavg")
                .split(' ')
                .next()
                .and_then(|load| load.parse().ok())
                .unwrap_or(0.0),
        }
    }
}

//! The result of a soak: JSON for programs, and a plot of memory and descriptors over time.

use std::fmt::Write as _;

use serde::Serialize;

use super::visitor::Action;
use super::watch::ProgramSample;

/// The result.
#[derive(Clone, Debug, Serialize)]
pub struct Soak {
    /// Duration in seconds, the settling at the end included.
    pub seconds: f64,
    /// Seed of all choices.
    pub seed: u64,
    /// Actions that went well, by kind.
    pub actions: Vec<(Action, u64)>,
    /// Bytes of bodies that were checked.
    pub checked_bytes: u64,
    /// Actions that failed where an end had been killed.
    pub failed_where_killed: u64,
    /// Actions that failed where nothing was killed.
    pub failed_on_steady_way: u64,
    /// Actions in which a byte was wrong.
    pub wrong: u64,
    /// The first of those that should not have been, in words.
    pub complaints: Vec<String>,
    /// Kills, reloads, suspensions and jumps that were played.
    pub faults: u64,
    /// True if the wall clock jumped.
    pub wall_clock_jumped: bool,
    /// The programs that were never killed.
    pub processes: Vec<ProcessReport>,
    /// The bounds that did not hold.
    pub problems: Vec<String>,
}

/// The measurements of one program.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessReport {
    /// The name of the program.
    pub name: &'static str,
    /// The program's memory.
    pub memory: ResidentMemory,
    /// The program's state before the first visitor.
    pub base: ProgramSample,
    /// The program's state after the last visitor.
    pub settled: ProgramSample,
    /// Sessions that it opened.
    pub sessions_opened: u64,
    /// All samples.
    pub samples: Vec<ProgramSample>,
}

/// Resident memory, in bytes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ResidentMemory {
    /// The time of the reference in seconds.
    pub reference_at: f64,
    /// The median around that time.
    pub reference: u64,
    /// The median of the last tenth.
    pub last: u64,
    /// The most that is allowed.
    pub allowed: u64,
}

const WIDTH: f64 = 720.0;
const PANEL: f64 = 200.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 30.0;

/// Colours that colour-blind people can tell apart.
const COLOURS: [&str; 3] = ["#0072b2", "#d55e00", "#009e73"];

impl Soak {
    /// Draws memory and descriptors over time as SVG.
    pub fn svg(&self) -> String {
        let height = 2.0 * (PANEL + TOP) + 20.0 * (self.processes.len() + 1) as f64;
        let mut out = format!(
            "<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{height}' \
             font-family='sans-serif' font-size='12'><rect width='100%' height='100%' fill='white'/>"
        );
        self.panel(&mut out, TOP, "resident memory, MiB", |sample| {
            sample.memory as f64 / f64::from(1 << 20)
        });
        self.panel(&mut out, 2.0 * TOP + PANEL, "open descriptors", |sample| {
            sample.descriptors as f64
        });
        for (at, process) in self.processes.iter().enumerate() {
            let y = 2.0 * (PANEL + TOP) + 20.0 * (at + 1) as f64;
            let colour = COLOURS[at % COLOURS.len()];
            // Writing to a string cannot fail.
            let _ = write!(
                out,
                "<text x='{LEFT}' y='{y}' fill='{colour}'>{}</text>",
                process.name
            );
        }
        out + "</svg>\n"
    }

    fn panel(&self, out: &mut String, top: f64, title: &str, of: impl Fn(&ProgramSample) -> f64) {
        let samples = || self.processes.iter().flat_map(|process| &process.samples);
        let time = samples().map(|sample| sample.at).fold(1.0, f64::max);
        let most = samples().map(&of).fold(1.0, f64::max) * 1.05;
        let place = |sample: &ProgramSample| {
            let x = LEFT + (WIDTH - LEFT - 20.0) * sample.at / time;
            let y = top + PANEL * (1.0 - of(sample) / most);
            format!("{x:.1},{y:.1} ")
        };
        // Writing to a string cannot fail.
        let _ = write!(
            out,
            "<text x='{LEFT}' y='{}'>{title}, over {time:.0} s</text>\
             <rect x='{LEFT}' y='{top}' width='{}' height='{PANEL}' fill='none' stroke='#999'/>\
             <text x='{}' y='{}' text-anchor='end'>{most:.0}</text>\
             <text x='{}' y='{}' text-anchor='end'>0</text>",
            top - 8.0,
            WIDTH - LEFT - 20.0,
            LEFT - 6.0,
            top + 10.0,
            LEFT - 6.0,
            top + PANEL
        );
        for (at, process) in self.processes.iter().enumerate() {
            let points: String = process.samples.iter().map(place).collect();
            let colour = COLOURS[at % COLOURS.len()];
            let _ = write!(
                out,
                "<polyline points='{points}' fill='none' stroke='{colour}'/>"
            );
        }
    }
}

//! `tandem-lab run`: an experiment's file, measured.

use std::error::Error;
use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use tandem_lab::bench::programs;
use tandem_lab::chain::{self, ChainStudy};
use tandem_lab::experiment::plan::Selection;
use tandem_lab::experiment::report;
use tandem_lab::experiment::results::{self, Outcome, Record};
use tandem_lab::experiment::run::{self, Event, RunOptions, RunTally};
use tandem_lab::experiment::summary::Cells;
use tandem_lab::experiment::{Experiment, ExperimentError};
use tandem_lab::forward;

/// Measures an experiment; trials that have a result are not repeated.
#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    /// The experiment, such as experiments/thesis.toml
    file: PathBuf,
    /// The large grid: hours instead of minutes
    #[arg(long)]
    full: bool,
    /// Turns of every set-up at every point, instead of the experiment's
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=1000))]
    passes: Option<u16>,
    /// Directory of results; by default results/NAME
    #[arg(long, value_name = "DIRECTORY")]
    out: Option<PathBuf>,
    /// Only this sweep, cell, set-up or axis=value; one of each given kind must match (repeatable)
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    only: Vec<String>,
    /// Pages of this directory (recorded pages, HAR files, page models) instead of the experiment's
    #[arg(long, value_name = "DIRECTORY")]
    pages: Option<PathBuf>,
    /// The program under test; by default `tandem` beside this program
    #[arg(long, value_name = "FILE")]
    tandem: Option<PathBuf>,
    /// Write the requests (HAR) and the packets (pcap) of each page load to this directory
    #[arg(long, value_name = "DIRECTORY")]
    traces: Option<PathBuf>,
    /// Say nothing while it runs
    #[arg(long, short)]
    quiet: bool,
}

/// Does it.
pub(crate) fn run(arguments: RunArguments) -> Result<ExitCode, Box<dyn Error>> {
    let named = |error: ExperimentError| format!("{}: {error}", arguments.file.display());
    let file = &arguments.file;
    let text = std::fs::read_to_string(file).map_err(ExperimentError::file("read", file))?;
    if chain::file::is_chain(&text) {
        let study = ChainStudy::parse(&text).map_err(named)?;
        return run_chain(arguments, &study, &text);
    }
    if forward::file::is_forwarding(&text) {
        let study = forward::ForwardStudy::parse(&text).map_err(named)?;
        return run_forwarding(&arguments, &study);
    }
    let (mut experiment, mut text) = Experiment::open(&arguments.file).map_err(named)?;
    if let Some(directory) = &arguments.pages {
        let pages = run::pages_of(directory)?;
        // The copy beside the results must name the pages that they are of.
        text = format!("pages = {}\n{text}", serde_json::to_string(&pages)?);
        experiment = Experiment::parse(&text).map_err(named)?.at(&arguments.file);
    }
    let out = arguments
        .out
        .unwrap_or_else(|| PathBuf::from("results").join(&experiment.name));
    let options = RunOptions {
        tandem: programs::tandem(arguments.tandem.as_deref())?,
        out: out.clone(),
        traces: arguments.traces,
        selection: Selection {
            full: arguments.full,
            passes: arguments.passes.map(usize::from),
            only: arguments.only,
        },
    };
    let mut show = Show::new(arguments.quiet);
    let tally = run::run(&experiment, &text, &options, &mut |event| {
        show.event(&event)
    });
    show.finish();
    let RunTally {
        before,
        measured,
        failed,
        left_out,
    } = tally?;
    let lines = results::read(&out)?;
    if let Some(spread) = report::spread_in_total(&Cells::of(&experiment, &lines).spreads()) {
        say(&spread);
    }
    say(&format!(
        "{measured} page loads measured, {failed} failed, {before} were there, \
         {left_out} left out; `tandem-lab report {}` shows them",
        out.display()
    ));
    Ok(if failed + left_out == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(2)
    })
}

/// Runs an experiment with circuits over a chain of relays.
fn run_chain(
    arguments: RunArguments,
    study: &ChainStudy,
    text: &str,
) -> Result<ExitCode, Box<dyn Error>> {
    if arguments.pages.is_some() {
        return Err("--pages: this experiment loads no pages".into());
    }
    let out = arguments
        .out
        .unwrap_or_else(|| PathBuf::from("results").join(&study.name));
    let options = chain::run::ChainOptions {
        tandem: programs::tandem(arguments.tandem.as_deref())?,
        out: out.clone(),
        full: arguments.full,
        passes: arguments.passes.map(usize::from),
        only: arguments.only,
    };
    let quiet = arguments.quiet;
    let failed = chain::run::run(study, text, &options, &mut |line| {
        if !quiet {
            say(line);
        }
    })?;
    let out = out.display();
    say(&format!(
        "{failed} failed; `tandem-lab report {out}` shows the results"
    ));
    Ok(if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(2)
    })
}

/// Runs a study in virtual time, and prints its table.
fn run_forwarding(
    arguments: &RunArguments,
    study: &forward::ForwardStudy,
) -> Result<ExitCode, Box<dyn Error>> {
    if arguments.pages.is_some() || !arguments.only.is_empty() || arguments.full {
        return Err("--pages, --only and --full are for experiments with programs".into());
    }
    let mut study = study.clone();
    study.passes = arguments.passes.map_or(study.passes, u64::from);
    let table = forward::table::run(&study, &mut |row| {
        if !arguments.quiet {
            say(row);
        }
    })?;
    std::io::stdout().write_all(table.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// A bar on a terminal, lines elsewhere.
struct Show {
    quiet: bool,
    bar: Option<ProgressBar>,
    now: String,
}

impl Show {
    fn new(quiet: bool) -> Self {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new(0);
            let style = ProgressStyle::with_template(
                "{bar:30} {pos}/{len} {elapsed} of {prefix}  {wide_msg}",
            );
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        Self {
            quiet,
            bar,
            now: String::new(),
        }
    }

    fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Note(note) => self.line(note),
            Event::Begin {
                done,
                total,
                left,
                setup,
                point,
            } => self.begin(*done, *total, *left, setup, point),
            Event::End(record) => self.end(record),
            Event::LeftOut { setup, missing } => say(&format!("{setup} is left out: {missing}")),
        }
    }

    fn begin(
        &mut self,
        done: usize,
        total: usize,
        left: Option<Duration>,
        setup: &str,
        point: &str,
    ) {
        let left = left.map_or_else(|| "?".to_owned(), in_words);
        self.now = format!("{}/{total}, {left} left: {setup}, {point}", done + 1);
        if let Some(bar) = &self.bar {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
            bar.set_prefix(format!("{left} left"));
            bar.set_message(format!("{setup}, {point}"));
            bar.tick();
        }
    }

    fn end(&self, record: &Record) {
        match &record.outcome {
            Outcome::Failed(why) => self.line(&format!("{}: failed: {why}", self.now)),
            Outcome::Measured(measured) => {
                if let Some(trouble) = &measured.trouble {
                    self.line(&format!("{}: caution: {trouble}", self.now));
                }
                if self.bar.is_none() {
                    self.line(&format!(
                        "{}: {:.2} s",
                        self.now,
                        measured.page_load_ms / 1e3
                    ));
                }
            }
        }
    }

    fn line(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(line),
            None if self.quiet => {}
            None => say(line),
        }
    }

    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn in_words(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{}:{:02} min", seconds / 60, seconds % 60),
        _ => format!("{}:{:02} h", seconds / 3600, seconds % 3600 / 60),
    }
}

/// Prints progress. The line is lost if standard error is closed.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "tandem-lab run: {line}");
}

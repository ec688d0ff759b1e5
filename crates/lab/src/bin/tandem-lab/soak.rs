//! `tandem-lab soak`: hours of visitors, kills, reloads and suspensions, with bounds on
//! memory and descriptors.

use std::error::Error;
use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use tandem_lab::bench::programs;
use tandem_lab::bench::testbed::Testbed;
use tandem_lab::soak::{self, SoakOptions, SoakProgress, cast};

/// Runs visitors, kills, reloads and suspensions against the proxies, and checks that nothing
/// grows.
///
/// Resident memory of the programs that are never killed must stay within 5 % of its value after
/// ten minutes (in a soak below twenty minutes: of its value at half time, and 16 MiB more).
#[derive(Debug, Args)]
pub(crate) struct SoakArguments {
    /// Duration in minutes
    #[arg(long, default_value_t = 60, value_name = "NUMBER", conflicts_with = "seconds",
        value_parser = clap::value_parser!(u32).range(1..=100_000))]
    minutes: u32,
    /// Duration in seconds
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(5..))]
    seconds: Option<u32>,
    /// Visitors at once on each of the three ways
    #[arg(long, default_value_t = 8, value_name = "NUMBER",
        value_parser = clap::value_parser!(u16).range(1..=1000))]
    visitors: u16,
    /// Seed of all choices
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    seed: u64,
    /// Let the wall clocks of the programs jump by hours and days; needs the package libfaketime
    #[arg(long)]
    faketime: bool,
    /// The program under test; by default `tandem` beside this program
    #[arg(long, value_name = "FILE")]
    tandem: Option<PathBuf>,
    /// Directory for soak.json and soak.svg
    #[arg(long, value_name = "DIRECTORY")]
    output: Option<PathBuf>,
    /// Write the result as JSON to standard output
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &SoakArguments) -> Result<ExitCode, Box<dyn Error>> {
    let minutes = Duration::from_secs(60 * u64::from(arguments.minutes));
    let options = SoakOptions {
        tandem: programs::tandem(arguments.tandem.as_deref())?,
        time: arguments
            .seconds
            .map_or(minutes, |seconds| Duration::from_secs(seconds.into())),
        visitors: arguments.visitors.into(),
        seed: arguments.seed,
        faketime: arguments.faketime.then(cast::find_faketime).transpose()?,
    };
    let testbed = Testbed::open()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let bar = std::io::stderr().is_terminal().then(|| bar(options.time));
    let result = runtime.block_on(soak::run(&testbed, &options, |progress| {
        if let Some(bar) = &bar {
            bar.set_position(progress.elapsed.as_secs());
            bar.set_message(words(progress));
        }
    }));
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    let soak = result?;
    if let Some(directory) = &arguments.output {
        std::fs::create_dir_all(directory)?;
        std::fs::write(
            directory.join("soak.json"),
            serde_json::to_string_pretty(&soak)?,
        )?;
        std::fs::write(directory.join("soak.svg"), soak.svg())?;
    }
    let mut out = std::io::stdout().lock();
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string(&soak)?)?;
    } else {
        summary(&mut out, &soak)?;
    }
    Ok(if soak.problems.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn summary(out: &mut impl std::io::Write, soak: &soak::report::Soak) -> std::io::Result<()> {
    let right: u64 = soak.actions.iter().map(|(_, count)| count).sum();
    writeln!(
        out,
        "{right} actions right ({:.1} MiB checked), {} failed where an end was killed, {} elsewhere, {} wrong; {} faults",
        soak.checked_bytes as f64 / f64::from(1 << 20),
        soak.failed_where_killed,
        soak.failed_on_steady_way,
        soak.wrong,
        soak.faults
    )?;
    for process in &soak.processes {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        writeln!(
            out,
            "{}: {:.1} MiB after {:.0} s, {:.1} MiB at the end, {} descriptors after {} at first, {} sessions opened",
            process.name,
            mib(process.memory.reference),
            process.memory.reference_at,
            mib(process.memory.last),
            process.settled.descriptors,
            process.base.descriptors,
            process.sessions_opened
        )?;
    }
    for problem in soak.complaints.iter().chain(&soak.problems) {
        writeln!(out, "problem: {problem}")?;
    }
    Ok(())
}

fn bar(time: Duration) -> ProgressBar {
    let bar = ProgressBar::new(time.as_secs());
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} s  {wide_msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

fn words(progress: SoakProgress<'_>) -> String {
    let right: u64 = progress.counts.right().map(|(_, count)| count).sum();
    format!(
        "{right} actions, {} MiB, {} faults, {} wrong",
        progress.counts.bytes() >> 20,
        progress.faults,
        progress.counts.wrong()
    )
}

//! `tandem-lab attack`: attacks on the running programs, with bounds that are checked.

use std::error::Error;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tandem_lab::attack::{self, Attack, AttackOutcome};
use tandem_lab::bench::programs;
use tandem_lab::bench::testbed::Testbed;

/// The shortest time of one attack.
const SHORTEST: Duration = Duration::from_millis(500);

#[derive(Debug, Args)]
pub(crate) struct AttackArguments {
    /// Attacks with one of these words in their name; all by default
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// The program under attack; by default `tandem` beside this program
    #[arg(long, value_name = "FILE")]
    tandem: Option<PathBuf>,
    /// Seconds of all attacks together
    #[arg(long, default_value_t = 100, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: u32,
    /// Print the names of the attacks and run none
    #[arg(long)]
    list: bool,
}

pub(crate) fn run(arguments: &AttackArguments) -> Result<ExitCode, Box<dyn Error>> {
    let mut attacks = attack::all();
    attacks.retain(|attack| {
        let wanted = |name: &String| attack.name.contains(name.as_str());
        arguments.names.is_empty() || arguments.names.iter().any(wanted)
    });
    if attacks.is_empty() {
        return Err("no attack has such a name: see --list".into());
    }
    if arguments.list {
        for attack in &attacks {
            writeln!(io::stdout(), "{}", attack.name)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let tandem = programs::tandem(arguments.tandem.as_deref())?;
    let testbed = Testbed::open()?;
    let total = Duration::from_secs(arguments.seconds.into());
    let time = (total / attacks.len() as u32).max(SHORTEST);
    let mut failed = 0;
    for attack in &attacks {
        let outcome = attack.run(&testbed, &tandem, time)?;
        failed += usize::from(!outcome.broken.is_empty());
        print(attack, &outcome)?;
    }
    writeln!(
        io::stdout(),
        "{} of {} attacks stay within their bounds",
        attacks.len() - failed,
        attacks.len()
    )?;
    Ok(ExitCode::from(u8::from(failed > 0)))
}

fn print(attack: &Attack, outcome: &AttackOutcome) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let verdict = if outcome.broken.is_empty() {
        "ok"
    } else {
        "FAIL"
    };
    writeln!(
        out,
        "{verdict:<5} {:<28} {:>8} sent, {:>5} at most in a session; {:>4} MiB, {:>7.1?} CPU; \
         user: {}",
        attack.name,
        outcome.sent,
        outcome.longest,
        outcome.memory >> 20,
        outcome.cpu,
        service(outcome),
    )?;
    for problem in &outcome.broken {
        writeln!(out, "      {problem}")?;
    }
    Ok(())
}

fn service(outcome: &AttackOutcome) -> String {
    let service = &outcome.service;
    match outcome.goodput {
        Some(goodput) => format!("download at {goodput:.2} of its rate"),
        None => format!(
            "{:>4} answered, {} failed, slowest {:.1?}",
            service.answered, service.failed, service.slowest
        ),
    }
}

//! `tandem top`: shows the overview of a running client or gateway in a terminal.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use super::Failure;
use super::ask::{ProcessArgs, ask};
use crate::admin::control::Answer;
use crate::admin::overview::{Overview, Saving};
use crate::exchange::Supply;
use crate::journal::PageLoad;
use crate::status::SessionStatus;

const EXAMPLES: &str = "Examples:
  tandem top -c client.toml
      Show the client with this file, until Ctrl-C
  tandem top --control /run/tandem-gateway/control --once
      Print the state of a gateway once";

/// The time between two looks.
const PERIOD: Duration = Duration::from_secs(1);

/// The numbers of sessions and page loads that are shown.
const MAX_SESSIONS: usize = 12;
const MAX_LOADS: usize = 8;

/// Arguments of `tandem top`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct TopArgs {
    #[command(flatten)]
    process: ProcessArgs,
    /// Print the state once, as is done without a terminal
    #[arg(long)]
    once: bool,
}

pub(super) fn run(args: &TopArgs) -> Result<(), Failure> {
    let control = args.process.control()?;
    let mut out = std::io::stdout();
    let is_live = !args.once && out.is_terminal();
    loop {
        let overview = match ask(&control, "overview")? {
            Answer::Overview(overview) => overview,
            Answer::Error(problem) => return Err(problem.into()),
            _ => return Err("the process answered another question".into()),
        };
        let text = screen(&overview);
        if !is_live {
            return Ok(out.write_all(text.as_bytes())?);
        }
        // The cursor goes home, and each line clears its rest, so that nothing flickers.
        let text = text.replace('\n', "\x1b[K\n");
        write!(out, "\x1b[H{text}\x1b[J")?;
        out.flush()?;
        std::thread::sleep(PERIOD);
    }
}

/// Returns the text of the whole overview.
fn screen(overview: &Overview) -> String {
    let mut text = format!(
        "Tandem {} {}, running for {}\n\n",
        overview.role,
        overview.version,
        age(overview.status.uptime)
    );
    match overview.problems.as_slice() {
        [] => text.push_str("There are no problems.\n"),
        problems => {
            for problem in problems {
                let _ = writeln!(text, "! {}", plain(problem));
            }
        }
    }
    if overview.role == "client" {
        let _ = writeln!(text, "\n{}", saving(&overview.saving));
    }
    sessions(&mut text, &overview.status.sessions, &overview.role);
    let counter = |name: &str| overview.status.counters.get(name).copied().unwrap_or(0);
    let _ = writeln!(
        text,
        "\nrequests {}   under way {}   failed {}   pushes used {}   joined {}   wasted {}",
        counter("exchanges"),
        counter("exchanges_open"),
        counter("exchanges_failed"),
        counter("pushes_used"),
        counter("pushes_late"),
        counter("pushes_wasted"),
    );
    if let loads @ [_, ..] = overview.loads.as_slice() {
        let _ = writeln!(
            text,
            "\n{:>8} {:>9} {:>10} {:>7} {:>7} {:>8}  page",
            "seconds", "kB", "requested", "joined", "pushed", "tunnels"
        );
        for load in loads.iter().take(MAX_LOADS) {
            let _ = writeln!(text, "{}", line(load));
        }
    }
    text
}

fn saving(saving: &Saving) -> String {
    match &saving.seconds {
        Some(seconds) => format!(
            "Push saves a page load {:.2} s (95 % confidence: {:.2} to {:.2} s).",
            seconds.estimate, seconds.low, seconds.high
        ),
        None => format!(
            "There are too few page loads to estimate savings: {} with push, {} without.",
            saving.loads_pushed, saving.loads_held_out
        ),
    }
}

fn sessions(text: &mut String, sessions: &[SessionStatus], role: &str) {
    let _ = writeln!(
        text,
        "\n{:<32} {:>9} {:>10} {:>8} {:>11}  path",
        "session", "ms", "Mbit/s", "requests", "age"
    );
    let other = if role == "gateway" {
        "a client"
    } else {
        "a browser"
    };
    let mut sorted: Vec<_> = sessions.iter().collect();
    sorted.sort_by_key(|session| session.gateway.is_none());
    for session in sorted.iter().take(MAX_SESSIONS) {
        let number = |value: Option<f64>, factor: f64| {
            value.map_or_else(|| "-".into(), |value| format!("{:.1}", value * factor))
        };
        let _ = writeln!(
            text,
            "{:<32} {:>9} {:>10} {:>8} {:>11}  {}",
            plain(session.gateway.as_deref().unwrap_or(other)),
            number(session.round_trip, 1e3),
            number(session.rate, 8e-6),
            session
                .exchanges
                .map_or_else(|| "-".into(), |count| count.to_string()),
            age(session.age),
            plain(session.protocol.as_deref().unwrap_or("-")),
        );
    }
    if sessions.len() > MAX_SESSIONS {
        let _ = writeln!(text, "and {} more", sessions.len() - MAX_SESSIONS);
    }
}

fn line(load: &PageLoad) -> String {
    let count = |supply| {
        let of_kind = load.resources.iter().filter(|it| it.supply == supply);
        of_kind.count()
    };
    let bytes: u64 = load.resources.iter().map(|it| it.bytes).sum();
    let ends = load.resources.iter().filter_map(|it| it.end);
    format!(
        "{:>8.2} {:>9.1} {:>10} {:>7} {:>7} {:>8}  {}",
        ends.fold(0.0, f64::max),
        bytes as f64 / 1e3,
        count(Supply::Requested),
        count(Supply::Joined),
        count(Supply::Pushed),
        count(Supply::Tunnel),
        plain(&load.title)
    )
}

/// Returns a text without control characters, which a terminal would obey. URLs are data of
/// others.
fn plain(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

fn age(seconds: f64) -> String {
    let seconds = seconds as u64;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Instant;

    use super::*;
    use crate::admin::overview::OverviewSource;
    use crate::journal::Journal;
    use crate::status::StatusSource;

    #[tokio::test]
    async fn screen_shows_problems_and_loads_as_plain_text() {
        let journal = Arc::<Journal>::default();
        let now = Instant::now();
        let load = journal.open_load("http://site.example/\x1b[2J", now);
        for supply in [Supply::Requested, Supply::Pushed, Supply::Pushed] {
            journal.begin(load, "GET", "http://site.example/", supply, now);
        }
        journal.set_warnings(vec!["gateway g does not answer".into()]);
        let status = StatusSource::new(Vec::new);
        let source = OverviewSource::new("client", status, journal);
        let text = screen(&source.take(0).await);
        assert!(text.contains("! gateway g does not answer"), "{text}");
        let page = text.lines().find(|line| line.contains("site.example"));
        let columns: Vec<_> = page.expect("a load").split_whitespace().collect();
        assert_eq!(columns[2..6], ["1", "0", "2", "0"], "{text}");
        assert!(!text.contains('\x1b'));
        assert!(text.contains("too few page loads"), "{text}");
    }

    #[test]
    fn age_has_two_units_at_most() {
        assert_eq!(age(59.9), "59 s");
        assert_eq!(age(3599.0), "59 min");
        assert_eq!(age(7320.0), "2 h 2 min");
    }
}

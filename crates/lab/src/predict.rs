//! `tandem predict`: replays the push predictors on logs of real traffic.
//!
//! `replay` runs one predictor over each log and prints its pushes, their use and their cost;
//! `tune` searches the documented algorithms' parameters; `learn` writes the state that `auto`
//! learned to a file. This module reads and prints, and `tandem_replay` computes.

use std::io;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use tandem_predict::{Aim, AutoConfig, StateError, Worth};
use tandem_replay::log::Filter;
use tandem_replay::{Algorithm, Options};

mod input;
mod learn;
mod live;
mod plot;
mod replay;
mod report;
mod tune;

pub(crate) use input::{for_each_line, open};

/// The commands on logs.
#[derive(Debug, Subcommand)]
pub enum PredictCommand {
    /// Replay access logs and count the pushes that a predictor would have made
    Replay(ReplayArgs),
    /// Find the documented algorithms' best parameters for access logs
    Tune(TuneArgs),
    /// Learn from access logs into a state file, with which a gateway or a replay starts warm
    Learn(LearnArgs),
    /// Show the results of push in a running client or gateway, with their uncertainty
    Live(live::LiveArgs),
}

/// The selection of a log's lines, and its division into samples.
#[derive(Debug, Clone, Args)]
pub struct LogArgs {
    /// Access logs: Common or Combined Log Format (Apache, nginx, Privoxy) or CSV; plain, gzip or
    /// zstd; - for stdin.
    ///
    /// CSV needs a header line that names time (seconds) or time_ms, user and url, and may name
    /// agent, method, status, size and referer.
    #[arg(value_name = "LOG", required = true)]
    logs: Vec<PathBuf>,
    /// Treat each calendar day of a log as a separate sample
    #[arg(long)]
    daily: bool,
    /// Rules by which robots are recognised
    #[arg(long, value_enum, default_value_t = Robots::Words)]
    robots: Robots,
    /// Leave out certificate checks, safe browsing, suggestions and truncated lines of proxy logs
    #[arg(long)]
    drop_noise: bool,
}

/// The rules by which robots are recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Robots {
    /// Short word lists, which make results comparable
    Words,
    /// These and a maintained list of robots' User-Agents
    Listed,
}

impl LogArgs {
    fn filter(&self) -> Filter {
        Filter {
            noise: self.drop_noise,
        }
    }
}

/// The end of a user's session.
#[derive(Debug, Args)]
struct SessionArgs {
    /// A longer pause between two requests of a user starts a new session
    #[arg(
        long,
        value_name = "S",
        default_value_t = 3600.0,
        allow_negative_numbers = true,
        value_parser = seconds
    )]
    session_timeout: f64,
}

/// Arguments of `predict replay`.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    #[command(flatten)]
    input: LogArgs,
    /// Predictor
    #[arg(long, value_enum, default_value_t = Predictor::Auto)]
    algorithm: Predictor,
    /// Least probability to push (not for auto, which follows from omega)
    #[arg(long, value_name = "P", default_value_t = 0.5, allow_negative_numbers = true, value_parser = threshold)]
    threshold: f64,
    #[command(flatten)]
    sessions: SessionArgs,
    /// Do not push resources that the user requested in earlier sessions
    #[arg(long)]
    keep_history: bool,
    /// Largest mean size of a pushed asset in bytes, -1 for any
    #[arg(
        long,
        value_name = "B",
        default_value_t = -1,
        allow_negative_numbers = true,
        value_parser = bound
    )]
    max_asset_size: i64,
    /// Most pushes for one page, -1 for any number
    #[arg(
        long,
        value_name = "N",
        default_value_t = -1,
        allow_negative_numbers = true,
        value_parser = bound
    )]
    max_assets: i64,
    /// Push nothing for a page seen less often than this
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true, value_parser = min_history)]
    min_history: u32,
    /// A request after a longer pause starts a page load unless its URL is known as an asset
    #[arg(
        long,
        value_name = "S",
        default_value_t = 1.0,
        allow_negative_numbers = true,
        value_parser = seconds
    )]
    page_load_timeout: f64,
    /// A request after a longer pause starts a page load in any case
    #[arg(
        long,
        value_name = "S",
        default_value_t = 20.0,
        allow_negative_numbers = true,
        value_parser = seconds
    )]
    max_page_load_timeout: f64,
    /// Leave out mobile browsers
    #[arg(long)]
    ignore_mobile: bool,
    /// Keep separate statistics for each browser name
    #[arg(long)]
    consider_browser: bool,
    /// Value of a saved request against a wasted response, between 0 and 1
    #[arg(long, value_name = "W", default_value_t = 0.5, value_parser = omega)]
    omega: f64,
    #[command(flatten)]
    auto: AutoArgs,
    /// Start auto with the state in this file
    #[arg(long, value_name = "FILE")]
    predict_state: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The pushes that auto makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AimArg {
    /// Pushes that save a transfer, as the column strict counts them
    Transfers,
    /// Pushes of resources that are requested, as PushCost counts them
    Requests,
}

/// The settings of `auto`.
#[derive(Debug, Clone, Args)]
pub struct AutoArgs {
    /// Bytes of memory for the state of auto, such as 64MiB
    #[arg(long, value_name = "BYTES", default_value = "64MiB", value_parser = memory)]
    predict_memory: usize,
    /// The pushes that auto makes [default: transfers in learn, as a gateway; requests in replay,
    /// as the algorithms that it is compared with]
    #[arg(long, value_enum)]
    aim: Option<AimArg>,
    /// Users that must have requested a URL before auto pushes it; the documented algorithms
    /// require one, a gateway three
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=4))]
    min_users: u8,
}

impl AutoArgs {
    fn config(&self, omega: f64, default: AimArg) -> AutoConfig {
        AutoConfig {
            worth: Worth::Omega(omega),
            aim: match self.aim.unwrap_or(default) {
                AimArg::Transfers => Aim::Transfers,
                AimArg::Requests => Aim::Requests,
            },
            max_memory: self.predict_memory,
            min_users: self.min_users,
            ..AutoConfig::default()
        }
    }
}

/// Arguments of `predict learn`.
#[derive(Debug, Args)]
pub struct LearnArgs {
    #[command(flatten)]
    input: LogArgs,
    #[command(flatten)]
    auto: AutoArgs,
    /// File to write; if it exists, its state is kept and extended
    #[arg(long, value_name = "FILE")]
    predict_state: PathBuf,
    /// Further state files to take in
    #[arg(long, value_name = "FILE")]
    merge: Vec<PathBuf>,
    #[command(flatten)]
    sessions: SessionArgs,
}

/// Arguments of `predict tune`.
#[derive(Debug, Args)]
pub struct TuneArgs {
    #[command(flatten)]
    input: LogArgs,
    /// Combinations to try
    #[arg(long, value_enum, default_value_t = Combinations::Standard)]
    grid: Combinations,
    /// Value of a saved request against a wasted response, between 0 and 1
    #[arg(long, value_name = "W", default_value_t = 0.5, value_parser = omega)]
    omega: f64,
    /// Write table.csv, table.json and the plots (SVG) into this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Worker threads [default: all cores]
    #[arg(long, value_name = "N")]
    threads: Option<std::num::NonZeroUsize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The combinations of P1 to P6 to try.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Combinations {
    /// 180: all clients together, five thresholds
    Standard,
    /// All 1,188 combinations
    Full,
}

/// A predictor by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Predictor {
    /// Share of the page's loads in which the asset appeared
    Basic,
    /// The same, trusting rarely seen pages less
    BasicLess,
    /// The same, counting assets seen earlier in the session
    BasicMore,
    /// Learned and calibrated, nothing to set
    Auto,
}

impl Predictor {
    fn documented(self) -> Option<Algorithm> {
        match self {
            Self::Basic => Some(Algorithm::Basic),
            Self::BasicLess => Some(Algorithm::BasicLess),
            Self::BasicMore => Some(Algorithm::BasicMore),
            Self::Auto => None,
        }
    }

    fn name(self) -> &'static str {
        self.documented().map_or("auto", Algorithm::name)
    }
}

impl ReplayArgs {
    /// Checks the options that depend on each other.
    fn check(&self) -> Result<(), PredictError> {
        match self.page_load_timeout <= self.max_page_load_timeout {
            true => Ok(()),
            false => Err(PredictError::Pauses),
        }
    }

    fn options(&self) -> Options {
        Options {
            algorithm: self.algorithm.documented().unwrap_or(Algorithm::Basic),
            max_page_load_timeout: milliseconds(self.max_page_load_timeout),
            page_load_timeout: milliseconds(self.page_load_timeout),
            threshold: self.threshold,
            min_history: self.min_history,
            max_assets: usize::try_from(self.max_assets).ok(),
            ignore_mobile: self.ignore_mobile,
            consider_browser: self.consider_browser,
            max_size: u64::try_from(self.max_asset_size).ok(),
            keep_history: self.keep_history,
            assume_hits: false,
        }
    }
}

/// Seconds as whole milliseconds; out of range becomes the nearest end of it.
fn milliseconds(seconds: f64) -> i64 {
    (seconds * 1000.0).round() as i64
}

fn seconds(text: &str) -> Result<f64, String> {
    let value = text.parse().ok();
    let value = value.filter(|value: &f64| value.is_finite() && *value >= 0.0);
    value.ok_or_else(|| "must be a number of seconds, 0 or more".into())
}

fn bound(text: &str) -> Result<i64, String> {
    let value = text.parse().ok().filter(|&value| value >= -1);
    value.ok_or_else(|| "must be a whole number, 0 or more, or -1 for none".into())
}

fn threshold(text: &str) -> Result<f64, String> {
    let value = text
        .parse()
        .ok()
        .filter(|value| (0.0..=1.0).contains(value));
    value.ok_or_else(|| "must lie between 0 and 1, both included".into())
}

fn min_history(text: &str) -> Result<u32, String> {
    let value = text.parse().ok().filter(|&value| value >= 1);
    value.ok_or_else(|| "must be a whole number, 1 or more".into())
}

/// Reads a number of bytes, also in the notation of a gateway's `--predict-memory`.
fn memory(text: &str) -> Result<usize, String> {
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30)];
    let unit = units
        .iter()
        .find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)));
    let (number, shift) = unit.unwrap_or((text, 0));
    let bytes = number.trim().parse().ok();
    bytes
        .and_then(|number: usize| number.checked_mul(1 << shift))
        .ok_or_else(|| "must be a number of bytes, as 1048576, 512KiB or 64MiB".into())
}

fn omega(text: &str) -> Result<f64, String> {
    let value = match text.split_once('/') {
        Some((part, whole)) => part
            .parse::<f64>()
            .ok()
            .zip(whole.parse::<f64>().ok())
            .map(|(part, whole)| part / whole),
        None => text.parse().ok(),
    };
    value
        .filter(|value| *value > 0.0 && *value < 1.0)
        .ok_or_else(|| "must lie between 0 and 1, as 0.5 or 1/63".into())
}

/// An error in the evaluation of a log.
#[derive(Debug, thiserror::Error)]
pub enum PredictError {
    /// A log cannot be opened, read or decompressed.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The log.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A log has no line that any known format explains.
    #[error(
        "{path} holds no line of a known log format: it needs the Common or Combined Log Format, \
         or CSV under a header line (see --help)"
    )]
    Empty {
        /// The log.
        path: PathBuf,
    },
    /// A state file holds no state.
    #[error("cannot use {path}: {source}")]
    State {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: StateError,
    },
    /// The pauses contradict each other.
    #[error("--page-load-timeout must not exceed --max-page-load-timeout")]
    Pauses,
    /// A result cannot be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The file or stream.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A running process does not tell.
    #[error("cannot read the metrics on {address}: {source}")]
    Live {
        /// The address of the metrics.
        address: std::net::SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// Standard output is gone.
    #[error("cannot print: {0}")]
    Print(#[from] io::Error),
}

/// Runs `tandem predict`.
///
/// # Errors
/// When a log cannot be read or a result not be written.
pub fn run(command: PredictCommand) -> Result<(), PredictError> {
    match command {
        PredictCommand::Replay(args) => replay::run(&args),
        PredictCommand::Tune(args) => tune::run(&args),
        PredictCommand::Learn(args) => learn::run(&args),
        PredictCommand::Live(args) => live::run(&args),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: ReplayArgs,
    }

    #[test]
    fn options_refuse_values_out_of_range() {
        let parse = |flag: &str, value: &str| Cli::try_parse_from(["replay", "log", flag, value]);
        for (flag, good, bad, range) in [
            (
                "--threshold",
                &["0", "0.5", "1"][..],
                &["nan", "1.1", "-0.1", "inf", "x"][..],
                "between 0 and 1",
            ),
            (
                "--min-history",
                &["1", "9"],
                &["0", "-1", "1.5", "x"],
                "1 or more",
            ),
            (
                "--session-timeout",
                &["0", "1.5"],
                &["nan", "-1", "inf", "x"],
                "0 or more",
            ),
            ("--page-load-timeout", &["0"], &["nan", "-1"], "0 or more"),
            (
                "--max-page-load-timeout",
                &["20"],
                &["nan", "-1"],
                "0 or more",
            ),
            ("--max-assets", &["-1", "0"], &["-2", "x"], "-1 for none"),
            ("--max-asset-size", &["-1", "9"], &["-2"], "-1 for none"),
        ] {
            assert!(
                good.iter().all(|value| parse(flag, value).is_ok()),
                "{flag}"
            );
            for value in bad {
                let error = parse(flag, value)
                    .err()
                    .map(|error| error.to_string())
                    .unwrap_or_default();
                assert!(
                    error.contains(flag) && error.contains(range),
                    "{flag} {value}: {error}"
                );
            }
        }
        let pauses = |flag, value| {
            let args = parse(flag, value).map(|cli| cli.args);
            args.is_ok_and(|args| args.check().is_ok())
        };
        assert!(pauses("--page-load-timeout", "20") && !pauses("--page-load-timeout", "21"));
        assert!(!pauses("--max-page-load-timeout", "0.5"));
        let memory = |value| {
            let args = parse("--predict-memory", value).map(|cli| cli.args);
            args.ok().map(|args| args.auto.predict_memory)
        };
        assert_eq!(memory("64MiB"), Some(64 << 20));
        assert_eq!(memory("1048576"), Some(1 << 20));
        for bad in ["64MB", "-1", "KiB", "99999999999GiB"] {
            assert_eq!(memory(bad), None, "{bad}");
        }
        let args = parse("--threshold", "0.25").map(|cli| cli.args.options().threshold);
        assert_eq!(args.ok(), Some(0.25));
    }
}

//! `tandem probe`: lists, enables, disables and dumps the observation points of a running client or
//! gateway.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Failure;
use super::ask::ask;
use crate::admin::control::{ControlResponse, Verb};
use crate::probe::Unit;
use crate::probe::recorded::quantile;
use crate::probe::snapshot::{Distribution, PointState};

/// The examples at the end of the help.
pub(super) const EXAMPLES: &str = "Examples:
  tandem probe list --control /run/tandem-client/control
      List the points and their states
  tandem probe on queue --control /run/tandem-client/control
      Enable the points of a family
  tandem probe dump --control /run/tandem-client/control --csv
      Print the distributions for a spreadsheet";

/// The quantiles in the table of a dump, with their headings.
const SHARES: [(f64, &str); 8] = [
    (0.01, "1 %"),
    (0.1, "10 %"),
    (0.25, "25 %"),
    (0.5, "50 %"),
    (0.75, "75 %"),
    (0.9, "90 %"),
    (0.99, "99 %"),
    (0.999, "99.9 %"),
];

/// The subcommands of `tandem probe`.
#[derive(Debug, Subcommand)]
pub enum ProbeCommand {
    /// List the points and their states
    List(ProbeArgs),
    /// Enable points: the process begins to record their values
    On(ProbeArgs),
    /// Disable points; the recorded values remain
    Off(ProbeArgs),
    /// Print the recorded values as cumulative distributions
    Dump(DumpArgs),
}

/// The selected points, and the process that has them.
#[derive(Debug, Args)]
pub struct ProbeArgs {
    /// The name of a point (queue.core), a family (queue), or all
    #[arg(value_name = "NAME|FAMILY", default_value = "all")]
    of: String,
    /// Path of the control socket of the running client or gateway
    #[arg(long, value_name = "PATH")]
    control: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// The arguments of a dump: the selected points and the output format.
#[derive(Debug, Args)]
pub struct DumpArgs {
    /// The selected points.
    #[command(flatten)]
    which: ProbeArgs,
    /// Print CSV with the columns point, unit, value, and share of the values up to it
    #[arg(long, conflicts_with = "json")]
    csv: bool,
}

pub(super) fn run(command: &ProbeCommand) -> Result<(), Failure> {
    let (verb, args, csv) = match command {
        ProbeCommand::List(args) => (Verb::List, args, false),
        ProbeCommand::On(args) => (Verb::On, args, false),
        ProbeCommand::Off(args) => (Verb::Off, args, false),
        ProbeCommand::Dump(args) => (Verb::Dump, &args.which, args.csv),
    };
    let text = match ask(&args.control, &format!("{} {}", verb.as_str(), args.of))? {
        ControlResponse::Error(problem) => return Err(problem.into()),
        ControlResponse::Status(_) | ControlResponse::Overview(_) | ControlResponse::Url(_) => {
            return Err("the process answered another question".into());
        }
        ControlResponse::Points(points) if args.json => serde_json::to_string_pretty(&points)?,
        ControlResponse::Distributions(dumped) if args.json => {
            serde_json::to_string_pretty(&dumped)?
        }
        ControlResponse::Points(points) => states(&points),
        ControlResponse::Distributions(dumped) if csv => steps(&dumped),
        ControlResponse::Distributions(dumped) if dumped.is_empty() => {
            return Err("nothing was kept: switch points on first, and let something pass".into());
        }
        ControlResponse::Distributions(dumped) => table(&dumped),
    };
    match writeln!(std::io::stdout(), "{}", text.trim_end()) {
        // A broken pipe means that the reader needs no more output.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// The invariant behind `expect` on writes to a string.
const TAKES_ALL: &str = "writing to a string cannot fail";

fn states(points: &[PointState]) -> String {
    let mut text = format!(
        "{:<17} {:<5} {:>7} {:>10}  what\n",
        "point", "unit", "tracers", "kept of"
    );
    for point in points {
        let unit = unit(point.unit);
        let count = if point.on || point.count > 0 {
            point.count.to_string()
        } else {
            String::new()
        };
        let on = if point.on { "on" } else { "off" };
        writeln!(
            text,
            "{:<17} {unit:<5} {:>7} {count:>10}  [{on}] {}",
            point.point, point.tracers, point.help
        )
        .expect(TAKES_ALL);
    }
    text
}

const fn unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Ns => "time",
        Unit::Bytes => "bytes",
    }
}

fn table(dumped: &[Distribution]) -> String {
    let mut text = format!("{:<17} {:>9} {:>9} {:>9}", "point", "count", "mean", "min");
    SHARES
        .iter()
        .for_each(|(_, name)| write!(text, " {name:>9}").expect(TAKES_ALL));
    writeln!(text, " {:>9}", "max").expect(TAKES_ALL);
    for point in dumped {
        let show = |value| shown(point.unit, value);
        let mean = show(point.mean.round() as u64);
        write!(
            text,
            "{:<17} {:>9} {mean:>9} {:>9}",
            point.point,
            point.count,
            show(point.min)
        )
        .expect(TAKES_ALL);
        for (share, _) in SHARES {
            let value = quantile(&point.distribution, share)
                .map(show)
                .unwrap_or_default();
            write!(text, " {value:>9}").expect(TAKES_ALL);
        }
        writeln!(text, " {:>9}", show(point.max)).expect(TAKES_ALL);
    }
    text
}

fn steps(dumped: &[Distribution]) -> String {
    let mut text = String::from("point,unit,value,share\n");
    for point in dumped {
        let unit = if point.unit == Unit::Ns {
            "ns"
        } else {
            "bytes"
        };
        for (value, share) in &point.distribution {
            writeln!(text, "{},{unit},{value},{share:.6}", point.point).expect(TAKES_ALL);
        }
    }
    text
}

/// Formats a value with three significant digits.
fn shown(unit: Unit, value: u64) -> String {
    if unit == Unit::Bytes {
        return value.to_string();
    }
    let (scaled, name) = match value {
        0..1_000 => return format!("{value}ns"),
        1_000..1_000_000 => (value as f64 / 1e3, "us"),
        1_000_000..1_000_000_000 => (value as f64 / 1e6, "ms"),
        _ => (value as f64 / 1e9, "s"),
    };
    match scaled {
        0.0..9.995 => format!("{scaled:.2}{name}"),
        9.995..99.95 => format!("{scaled:.1}{name}"),
        _ => format!("{scaled:.0}{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_values_have_three_digits() {
        let show = |value| shown(Unit::Ns, value);
        let all = [
            0,
            999,
            1_000,
            12_345,
            999_400,
            1_234_567,
            45_678_901,
            2_000_000_000,
        ]
        .map(show);
        assert_eq!(
            all,
            [
                "0ns", "999ns", "1.00us", "12.3us", "999us", "1.23ms", "45.7ms", "2.00s"
            ]
        );
        assert_eq!(shown(Unit::Bytes, 16_384), "16384");
    }

    #[test]
    fn dump_prints_table_and_csv_steps() {
        let dumped = Distribution {
            point: "queue.core".into(),
            unit: Unit::Ns,
            count: 5,
            min: 100,
            max: 3_000_000,
            mean: 2_000.4,
            distribution: vec![(100, 0.5), (3_000_000, 1.0)],
        };
        let table = table(&[dumped]);
        let mut lines = table
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>());
        assert_eq!(
            lines.next().map(|head| head[..4].join(",")),
            Some("point,count,mean,min".into())
        );
        let row = [
            "queue.core",
            "5",
            "2.00us",
            "100ns",
            "100ns",
            "100ns",
            "100ns",
            "100ns",
            "3.00ms",
        ];
        assert_eq!(
            lines.next().map(|cells| cells[..9].to_vec()),
            Some(row.to_vec())
        );
        assert_eq!(lines.next(), None);
    }
}

//! `tandem-lab tornet discover`: the onion services of a private network, with the discovery of
//! their gateways, without, and by tor alone.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use tandem_lab::tornet::discovery::{DiscoveryPlan, run as measure};
use tandem_net::output;

use super::{Failure, Instance, say};

#[derive(Debug, Args)]
pub(crate) struct DiscoverArguments {
    #[command(flatten)]
    instance: Instance,
    /// The program under test; by default `tandem` beside this program
    #[arg(long, value_name = "FILE")]
    tandem: Option<PathBuf>,
    /// Visits of all sites with discovery, as many without, and as many by tor alone, in
    /// alternation, with two pages of each site
    #[arg(long, default_value_t = 3, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=1000))]
    passes: u16,
    /// Check streams, circuits and requests of one visit of all sites at once, and compare no times
    #[arg(long, conflicts_with = "passes")]
    check: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Further arguments for `tandem client`
    #[arg(last = true, value_name = "ARGUMENT")]
    client_arguments: Vec<String>,
}

/// Measures. The exit code is 4 if a visit has a fault.
pub(super) fn run(arguments: DiscoverArguments) -> Result<ExitCode, Failure> {
    let plan = DiscoveryPlan {
        instance: arguments.instance.instance,
        tandem: tandem_lab::bench::programs::tandem(arguments.tandem.as_deref())?,
        passes: if arguments.check {
            0
        } else {
            arguments.passes.into()
        },
        client_arguments: arguments.client_arguments,
    };
    let report = measure(&plan, &mut say)?;
    if arguments.json {
        output::print(serde_json::to_string_pretty(&report)?)?;
    } else {
        output::print(report.table())?;
    }
    Ok(match report.faults().next() {
        None => ExitCode::SUCCESS,
        Some(_) => ExitCode::from(4),
    })
}

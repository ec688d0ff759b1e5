//! `tandem-lab`: experiments on emulated networks and on a private Tor network. One module per
//! command.

#![warn(clippy::print_stderr)]

mod attack;
mod bench;
mod coding;
mod headers;
mod origin;
mod report;
mod run;
mod soak;
mod timing;
mod tornet;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use tandem_net::completions::CompletionsArgs;
use tandem_net::output;

/// Experiments on emulated networks and on a private Tor network.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Debug, Subcommand)]
enum LabCommand {
    /// Attacks on the running programs, with limits on their cost
    Attack(attack::AttackArguments),
    /// The cost of the pair, beside its peers
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// The bytes of a site's texts on the path, beside those of gzip
    Coding(coding::CodingArguments),
    /// The sizes of heads and bodies, and the compression of heads in each protocol
    Headers(headers::HeadersArguments),
    /// An experiment from a file, on emulated links
    Run(run::RunArguments),
    /// The results of an experiment as one HTML file
    Report(report::ReportArguments),
    /// Visitors, kills, reloads and suspensions for an hour, with bounds on what may grow
    Soak(soak::SoakArguments),
    /// Throughput, and the delay of single stamps beside it, between two ends of anything
    #[command(subcommand)]
    Timing(timing::TimingCommand),
    /// A private Tor network of the real tor, in network namespaces
    #[command(subcommand)]
    Tornet(tornet::TornetCommand),
    /// Serves a page model over HTTP/1.1
    Origin(origin::OriginArguments),
    /// Writes shell completions to standard output
    Completions(CompletionsArgs),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        LabCommand::Attack(arguments) => attack::run(&arguments),
        LabCommand::Bench(command) => bench::run(command),
        LabCommand::Coding(arguments) => coding::run(&arguments),
        LabCommand::Headers(arguments) => headers::run(&arguments),
        LabCommand::Run(arguments) => run::run(arguments),
        LabCommand::Report(arguments) => report::run(&arguments),
        LabCommand::Soak(arguments) => soak::run(&arguments),
        LabCommand::Timing(command) => timing::run(command),
        LabCommand::Tornet(command) => tornet::run(command),
        LabCommand::Origin(arguments) => origin::run(&arguments),
        LabCommand::Completions(arguments) => completions(&arguments),
    };
    result.unwrap_or_else(|error| {
        output::report("tandem-lab", &*error);
        ExitCode::FAILURE
    })
}

fn completions(arguments: &CompletionsArgs) -> Result<ExitCode, Box<dyn std::error::Error>> {
    arguments.run(Arguments::command())?;
    Ok(ExitCode::SUCCESS)
}

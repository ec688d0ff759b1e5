//! `tandem-lab`: experiments on emulated networks and on a private Tor network. One module per
//! command.

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

use clap::{Parser, Subcommand};

/// Experiments on emulated networks and on a private Tor network.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Attacks on the running programs, with limits on their cost
    Attack(attack::Arguments),
    /// The cost of the pair, beside its peers
    #[command(subcommand)]
    Bench(bench::Command),
    /// The bytes of a site's texts on the path, beside those of gzip
    Coding(coding::Arguments),
    /// The sizes of heads and bodies, and the compression of heads in each protocol
    Headers(headers::Arguments),
    /// An experiment from a file, on emulated links
    Run(run::Arguments),
    /// The results of an experiment as one HTML file
    Report(report::Arguments),
    /// Visitors, kills, reloads and suspensions for an hour, with bounds on what may grow
    Soak(soak::Arguments),
    /// Throughput, and the delay of single stamps beside it, between two ends of anything
    #[command(subcommand)]
    Timing(timing::Command),
    /// A private Tor network of the real tor, in network namespaces
    #[command(subcommand)]
    Tornet(tornet::Command),
    /// Serves a page model over HTTP/1.1
    Origin(origin::Arguments),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Attack(arguments) => attack::run(&arguments),
        Command::Bench(command) => bench::run(command),
        Command::Coding(arguments) => coding::run(&arguments),
        Command::Headers(arguments) => headers::run(&arguments),
        Command::Run(arguments) => run::run(arguments),
        Command::Report(arguments) => report::run(&arguments),
        Command::Soak(arguments) => soak::run(&arguments),
        Command::Timing(command) => timing::run(command),
        Command::Tornet(command) => tornet::run(command),
        Command::Origin(arguments) => origin::run(&arguments),
    };
    result.unwrap_or_else(|error| {
        eprintln!("tandem-lab: {error}");
        ExitCode::FAILURE
    })
}

//! `tandem-lab`: experiments on emulated networks and on a private Tor network. One module per command.

mod bench;
mod origin;
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
    /// What the pair costs, beside its peers
    #[command(subcommand)]
    Bench(bench::Command),
    /// A private Tor network of the real tor, in network namespaces
    #[command(subcommand)]
    Tornet(tornet::Command),
    /// Serves a page model over HTTP/1.1
    Origin(origin::Arguments),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Bench(command) => bench::run(command),
        Command::Tornet(command) => tornet::run(command),
        Command::Origin(arguments) => origin::run(&arguments),
    };
    result.unwrap_or_else(|error| {
        eprintln!("tandem-lab: {error}");
        ExitCode::FAILURE
    })
}

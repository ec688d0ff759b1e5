//! `tandem-link`: runs a command behind an emulated link, which is its only route to the network.
//!
//! - [`options`]: the command line. [`shell`]: one link, or a topology, around a command.
//! - [`self_test`]: the accuracy of links on this machine.
//! - [`record`]: the description of a run, for its JSON.
//! - [`addresses`]: networks that let links nest.
//! - [`rootless`]: the preparation that a user without privileges needs.
//! - [`init`]: process 1 of the command's process namespace, so that no process outlives the link.

#![warn(clippy::print_stderr)]

mod addresses;
mod init;
mod options;
mod record;
mod rootless;
mod self_test;
mod shell;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};
use options::{Arguments, Mode};
use tandem_link::profile;
use tandem_net::completions::CompletionsArgs;
use tandem_net::output;

/// Exit code for failures of ours, as `env` and `timeout` use it.
const OWN_FAILURE: u8 = 125;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    if arguments.next().is_some_and(|name| name == init::NAME) {
        return init::run(arguments);
    }
    let Arguments { mode, shell } = Arguments::parse();
    let result = match mode {
        None => shell::run_link(&shell),
        Some(Mode::Topology(topology)) => shell::run_topology(&topology),
        Some(Mode::Profiles) => list_profiles(),
        Some(Mode::SelfTest(arguments)) => self_test::run(&arguments),
        Some(Mode::Completions(arguments)) => completions(&arguments),
        Some(Mode::ShellEnd(arguments)) => self_test::beside::run_end(&arguments),
    };
    result.unwrap_or_else(|error| {
        output::report("tandem-link", &*error);
        ExitCode::from(OWN_FAILURE)
    })
}

fn completions(arguments: &CompletionsArgs) -> Result<ExitCode, Box<dyn std::error::Error>> {
    arguments.run(Arguments::command())?;
    Ok(ExitCode::SUCCESS)
}

fn list_profiles() -> Result<ExitCode, Box<dyn std::error::Error>> {
    for profile in profile::all() {
        let rate = |config: &tandem_link::LinkConfig| match config.rate {
            tandem_link::rate::Rate::Constant(bits) => format!("{}", bits as f64 / 1e6),
            _ => "unlimited".into(),
        };
        let rtt = profile.down.delay + profile.up.delay;
        output::print(format_args!(
            "{:<14} {:>4} ms, {:>6} / {:<6} Mbit/s, loss {:.1} %: {}",
            profile.name,
            rtt.as_millis(),
            rate(&profile.down),
            rate(&profile.up),
            profile.down.loss.expected() * 100.0,
            profile.about
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

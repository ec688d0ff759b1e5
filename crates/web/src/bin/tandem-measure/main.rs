//! `tandem-measure`: loads pages, by the lab's loader or by Chromium, and reports the results.
//!
//! - [`options`]: the command line. [`run`]: the commands, which only use [`tandem_web::measure`].

#![warn(clippy::print_stderr)]

mod options;
mod run;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    run::run(options::Arguments::parse().command).unwrap_or_else(|error| {
        tandem_net::output::report("tandem-measure", &*error);
        ExitCode::FAILURE
    })
}

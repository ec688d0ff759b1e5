//! `tandem-measure`: loads pages, by the lab's loader or by Chromium, and reports the results.
//!
//! - [`options`]: the command line. [`run`]: the commands, which only use [`tandem_web::measure`].

mod options;
mod run;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    run::run(options::Arguments::parse().command).unwrap_or_else(|error| {
        eprintln!("tandem-measure: {error}");
        ExitCode::FAILURE
    })
}

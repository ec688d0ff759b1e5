//! `tandem open`: opens the dashboard of a running client or gateway in a browser.

use std::process::{Command, Stdio};

use super::Failure;
use super::ask::{ProcessArgs, ask};
use crate::admin::control::Answer;

const EXAMPLES: &str = "Examples:
  tandem open -c client.toml
      Open the dashboard of the client with this file
  tandem open --control /run/tandem-gateway/control --print
      Print its address, which is valid once within a minute";

/// Arguments of `tandem open`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct OpenArgs {
    #[command(flatten)]
    process: ProcessArgs,
    /// Print the address and open no browser
    #[arg(long)]
    print: bool,
}

#[expect(clippy::print_stdout, reason = "the command's output")]
pub(super) fn run(args: &OpenArgs) -> Result<(), Failure> {
    let url = match ask(&args.process.control()?, "open")? {
        Answer::Url(url) => url,
        Answer::Error(problem) => return Err(problem.into()),
        _ => return Err("the process answered another question".into()),
    };
    println!("{url}");
    if args.print {
        return Ok(());
    }
    let opened = Command::new("xdg-open")
        .arg(&url)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match opened {
        Ok(status) if status.success() => Ok(()),
        _ => Err("xdg-open did not open a browser: open the address above by hand".into()),
    }
}

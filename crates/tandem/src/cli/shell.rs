//! `tandem completions` and `tandem man`.

use std::io::Write as _;

use clap::CommandFactory;
use clap_complete::Shell;

use super::{Cli, Failure};

/// Arguments of `tandem completions`.
#[derive(Debug, clap::Args)]
pub struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

pub(super) fn completions(args: &CompletionsArgs) -> Result<(), Failure> {
    clap_complete::generate(
        args.shell,
        &mut Cli::command(),
        "tandem",
        &mut std::io::stdout(),
    );
    Ok(())
}

pub(super) fn man() -> Result<(), Failure> {
    let mut out = Vec::new();
    let command = Cli::command();
    clap_mangen::Man::new(command.clone()).render(&mut out)?;
    for sub in command.get_subcommands() {
        writeln!(out, ".SH {}", sub.get_name().to_uppercase())?;
        writeln!(
            out,
            "{}",
            sub.get_about().map(ToString::to_string).unwrap_or_default()
        )?;
        clap_mangen::Man::new(sub.clone()).render_options_section(&mut out)?;
    }
    std::io::stdout().write_all(&out)?;
    Ok(())
}

//! `tandem completions` and `tandem man`.

use std::io::Write as _;
use std::path::PathBuf;

use clap_complete::Shell;

use super::Failure;

const COMPLETIONS_EXAMPLES: &str = "Examples:
  tandem completions bash > ~/.local/share/bash-completion/completions/tandem
  tandem completions fish > ~/.config/fish/completions/tandem.fish";

/// Arguments of `tandem completions`.
#[derive(Debug, clap::Args)]
#[command(after_help = COMPLETIONS_EXAMPLES)]
pub struct CompletionsArgs {
    /// The shell that the completions are for
    shell: Shell,
}

const MAN_EXAMPLES: &str = "Examples:
  tandem man client | man -l -
      Read the page of one command
  tandem man --to ~/.local/share/man/man1
      Install the pages of the program and of all its commands";

/// Arguments of `tandem man`.
#[derive(Debug, clap::Args)]
#[command(after_help = MAN_EXAMPLES)]
pub struct ManArgs {
    /// The command of the page, such as client or probe list [default: the page of the program]
    #[arg(value_name = "COMMAND", conflicts_with = "to")]
    command: Vec<String>,
    /// Write the pages of the program and of all its commands to this directory
    #[arg(long, value_name = "DIRECTORY")]
    to: Option<PathBuf>,
}

pub(super) fn completions(
    args: &CompletionsArgs,
    mut program: clap::Command,
) -> Result<(), Failure> {
    // The generator panics if its writer fails, for example because the reader of a pipe has ended.
    let mut out = Vec::new();
    clap_complete::generate(args.shell, &mut program, "tandem", &mut out);
    std::io::stdout().write_all(&out)?;
    Ok(())
}

pub(super) fn man(args: &ManArgs, program: clap::Command) -> Result<(), Failure> {
    // Pages of `help` would be empty, but other pages would refer to them.
    let mut program = program
        .disable_help_subcommand(true)
        .mut_subcommands(|command| command.disable_help_subcommand(true));
    if let Some(directory) = &args.to {
        std::fs::create_dir_all(directory)
            .and_then(|()| clap_mangen::generate_to(program, directory))
            .map_err(|error| format!("{}: {error}", directory.display()))?;
        return Ok(());
    }
    program.build();
    let mut command = &program;
    for name in &args.command {
        command = command
            .find_subcommand(name)
            .ok_or_else(|| format!("there is no command {name:?}; see tandem --help"))?;
    }
    let mut out = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut out)?;
    std::io::stdout().write_all(&out)?;
    Ok(())
}

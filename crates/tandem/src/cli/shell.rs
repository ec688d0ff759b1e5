//! `tandem completions` and `tandem man`.

use std::io::Write as _;

use clap_complete::Shell;

use super::Failure;

/// Arguments of `tandem completions`.
#[derive(Debug, clap::Args)]
pub struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

pub(super) fn completions(
    args: &CompletionsArgs,
    mut program: clap::Command,
) -> Result<(), Failure> {
    clap_complete::generate(args.shell, &mut program, "tandem", &mut std::io::stdout());
    Ok(())
}

pub(super) fn man(program: &clap::Command) -> Result<(), Failure> {
    let mut out = Vec::new();
    clap_mangen::Man::new(program.clone()).render(&mut out)?;
    for sub in program.get_subcommands() {
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

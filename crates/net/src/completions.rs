//! The command `completions` of the laboratory's programs.

use std::io::Write as _;

use clap_complete::Shell;

/// Arguments of the command `completions`.
#[derive(Debug, clap::Args)]
pub struct CompletionsArgs {
    /// The shell that the completions are for
    shell: Shell,
}

impl CompletionsArgs {
    /// Writes the completions of `program` to standard output.
    ///
    /// # Errors
    /// Returns the error of standard output.
    pub fn run(&self, mut program: clap::Command) -> std::io::Result<()> {
        let name = program.get_name().to_owned();
        // The generator panics if its writer fails, for example because the reader of a pipe has
        // ended.
        let mut out = Vec::new();
        clap_complete::generate(self.shell, &mut program, name, &mut out);
        std::io::stdout().write_all(&out)
    }
}

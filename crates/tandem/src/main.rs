//! The `tandem` binary: see [`tandem::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    tandem::cli::main()
}

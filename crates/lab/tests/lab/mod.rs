//! The program `tandem-lab`, as the tests of experiments run it.

use std::path::Path;
use std::process::Command;

use crate::programs::tandem;

pub(crate) const LAB: &str = env!("CARGO_BIN_EXE_tandem-lab");

/// Returns the command that runs the experiment of a file into the directory `out`.
pub(crate) fn run(file: &Path, out: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(LAB);
    command
        .arg("run")
        .arg(file)
        .arg("--out")
        .arg(out)
        .arg("--tandem")
        .arg(tandem())
        .args(more);
    command
}

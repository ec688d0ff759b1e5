//! `tandem-lab coding`: the bytes of texts on the path, beside those of gzip.

use std::error::Error;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

/// Measures the compression between the two proxies on the files of a site.
#[derive(Debug, Args)]
pub(crate) struct CodingArguments {
    /// Directory with the HTML, CSS, scripts and other texts of a site
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
    /// Directory with an older state of the same files, for revisits of changed ones
    #[arg(long, value_name = "DIRECTORY")]
    before: Option<PathBuf>,
    /// File for the figures as JSON
    #[arg(
        long,
        short,
        value_name = "FILE",
        default_value = "results/coding.json"
    )]
    output: PathBuf,
}

/// Measures, writes the figures and prints them.
pub(crate) fn run(arguments: &CodingArguments) -> Result<ExitCode, Box<dyn Error>> {
    let before = arguments.before.as_deref();
    let study = tandem_lab::coding::measure(&arguments.directory, before)?;
    study.write(&arguments.output)?;
    std::io::stdout().write_all(study.table().as_bytes())?;
    let path = arguments.output.display();
    writeln!(std::io::stderr(), "tandem-lab coding: {path}")?;
    Ok(ExitCode::SUCCESS)
}

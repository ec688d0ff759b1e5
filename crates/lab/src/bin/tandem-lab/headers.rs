//! `tandem-lab headers`: sizes of heads and bodies, and the compression of heads.

use std::error::Error;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

/// Measures heads and bodies.
#[derive(Debug, Args)]
pub(crate) struct HeadersArguments {
    /// HAR files, recorded pages, page models, or access logs (plain, gzip or zstd)
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Directory of the report: headers.json, headers.html and plots
    #[arg(
        long,
        short,
        value_name = "DIRECTORY",
        default_value = "results/headers"
    )]
    output: PathBuf,
}

/// Does it.
pub(crate) fn run(arguments: &HeadersArguments) -> Result<ExitCode, Box<dyn Error>> {
    let text = tandem_lab::headers::run(&arguments.files, &arguments.output)?;
    std::io::stdout().write_all(text.as_bytes())?;
    let page = arguments.output.join("headers.html");
    writeln!(std::io::stderr(), "tandem-lab headers: {}", page.display())?;
    Ok(ExitCode::SUCCESS)
}

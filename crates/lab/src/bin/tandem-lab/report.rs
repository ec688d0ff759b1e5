//! `tandem-lab report`: results of an experiment as one HTML file.

use std::error::Error;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use tandem_lab::chain;
use tandem_lab::experiment::{ExperimentError, report, results};

/// Makes a report of an experiment's results.
#[derive(Debug, Args)]
pub(crate) struct ReportArguments {
    /// Directory of results
    directory: PathBuf,
    /// The report; by default report.html in that directory, - is standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Does it.
pub(crate) fn run(arguments: &ReportArguments) -> Result<ExitCode, Box<dyn Error>> {
    let file = arguments.directory.join(results::EXPERIMENT);
    if !file.is_file() {
        let directory = arguments.directory.display();
        return Err(format!("no results in {directory}: `tandem-lab run` writes them").into());
    }
    let text = std::fs::read_to_string(&file).map_err(ExperimentError::file("read", &file))?;
    let html = if chain::file::is_chain(&text) {
        chain::report::of_directory(&arguments.directory)?
    } else {
        report::of_directory(&arguments.directory)?
    };
    let file = arguments
        .output
        .clone()
        .unwrap_or_else(|| arguments.directory.join("report.html"));
    if file.as_os_str() == "-" {
        std::io::stdout().write_all(html.as_bytes())?;
    } else {
        std::fs::write(&file, html).map_err(ExperimentError::file("write", &file))?;
        writeln!(std::io::stderr(), "tandem-lab report: {}", file.display())?;
    }
    Ok(ExitCode::SUCCESS)
}

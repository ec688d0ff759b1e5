//! Questions to a running process over its control socket.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use super::{Failure, serve};
use crate::admin::control::{Answer, PATIENCE};

/// The limit of an answer in bytes: every point with a full sample fits several times.
const MAX_ANSWER: u64 = 64 << 20;

/// Sends one line to the control socket at `control`, and returns the answer.
///
/// # Errors
/// Fails if no process listens there, or if its answer cannot be read.
pub fn ask(control: &Path, line: &str) -> Result<Answer, Failure> {
    let failed = |error: std::io::Error| format!("{}: {error}", control.display());
    let mut stream = UnixStream::connect(control).map_err(|error| {
        let problem = failed(error);
        format!("{problem}: start a client or gateway with this control socket (--control)")
    })?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
    stream
        .write_all(format!("{line}\n").as_bytes())
        .map_err(failed)?;
    stream.shutdown(Shutdown::Write).map_err(failed)?;
    let mut text = Vec::new();
    stream
        .take(MAX_ANSWER)
        .read_to_end(&mut text)
        .map_err(failed)?;
    serde_json::from_slice(&text).map_err(|_| {
        format!(
            "{}: that is not the control socket of a tandem",
            control.display()
        )
        .into()
    })
}

/// The process to ask: by its control socket, or by the file that names the socket.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub struct ProcessArgs {
    /// The configuration file of the running client or gateway
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Path of the control socket of the running client or gateway
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
}

impl ProcessArgs {
    /// Returns the path of the control socket.
    ///
    /// # Errors
    /// Fails if the file cannot be read or names no control socket.
    pub fn control(&self) -> Result<PathBuf, Failure> {
        if let Some(control) = &self.control {
            return Ok(control.clone());
        }
        let file = serve::read(self.config.as_deref())?;
        let of_client = file.client.and_then(|options| options.control);
        let of_gateway = file.gateway.and_then(|options| options.control);
        of_client
            .or(of_gateway)
            .ok_or_else(|| "the file names no control socket: add control = \"PATH\"".into())
    }
}

//! A private Tor network of the real `tor`: authorities, relays, an exit, a client, an onion
//! service and a web host, each in a network namespace of its own, joined by the emulator.
//!
//! - [`layout`]: which nodes there are, their addresses, and the links between them.
//! - [`keys`] and [`torrc`]: what `tor` needs before it can start.
//! - [`namespaces`]: named namespaces and what programs in them resolve. [`dns`]: the names of the
//!   web host.
//! - [`control`]: asking a running `tor`. [`check`]: fetching a page through it.
//! - [`state`]: the run directory, from which everything can be found and removed again.
//! - [`run`]: brings the network up, watches it, takes it down.
//! - [`measure`]: pages over it, plain and through the pair.

pub mod check;
pub mod control;
pub mod dns;
pub mod keys;
pub mod layout;
pub mod measure;
pub mod namespaces;
pub mod run;
pub mod state;
pub mod torrc;

use std::io;
use std::path::{Path, PathBuf};

pub use layout::{Layout, Node, Role};
pub use run::{Origin, Request, Tornet, take_down, up};
pub use state::{RunDirectory, State};

use tandem_net::emulator::network::NetworkError;

/// Why the network could not be brought up, looked at or taken down.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TornetError {
    /// The system refused something.
    #[error("cannot {action}: {source}")]
    System {
        /// What was being done.
        action: String,
        /// Why not.
        source: io::Error,
    },
    /// A program that is not installed.
    #[error("{program} is not installed; {install}")]
    Missing {
        /// Its name.
        program: String,
        /// How to get it.
        install: &'static str,
    },
    /// A program that ended with an error.
    #[error("{program} failed: {output}")]
    Program {
        /// Its name.
        program: String,
        /// The end of what it printed.
        output: String,
    },
    /// The emulated links.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// An answer of `tor` that makes no sense.
    #[error("tor's control socket: {0}")]
    Control(String),
    /// A signal to end came while the network was coming up.
    #[error("interrupted")]
    Interrupted,
    /// The state of the network does not allow what is asked.
    #[error("{0}")]
    State(String),
}

impl TornetError {
    /// For `map_err`.
    pub(crate) fn of(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        |source| Self::System { action, source }
    }
}

/// Finds a program as a shell would.
pub(crate) fn find_program(name: &str, install: &'static str) -> Result<PathBuf, TornetError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Administrators' programs are not on everybody's path.
    let extra = ["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from);
    let found = std::env::split_paths(&path)
        .chain(extra)
        .map(|dir| dir.join(name))
        .find(|file| is_program(file));
    found.ok_or_else(|| TornetError::Missing {
        program: name.into(),
        install,
    })
}

fn is_program(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    file.metadata()
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

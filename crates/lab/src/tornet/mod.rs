//! A private Tor network of the real `tor`: authorities, relays, an exit, a client, an onion
//! service and a web host. Each runs in a separate network namespace, and the emulator joins them.
//!
//! - [`layout`]: the nodes, their addresses, and the links between them.
//! - [`keys`] and [`torrc`]: the files that `tor` needs before it can start.
//! - [`namespaces`]: named namespaces and name resolution in them. [`dns`]: the names of the web
//!   host.
//! - [`control`]: queries to a running `tor`. [`check`]: a page fetched through it.
//! - [`state`]: the run directory, from which everything can be found and removed again.
//! - [`run`]: starts the network, supervises it, and removes it.
//! - [`measure`]: pages over it, plain and through the pair. [`onions`] and [`discovery`]: onion
//!   services with announced gateways, and a client that discovers them.

pub mod check;
mod client;
pub mod control;
pub mod discovery;
pub mod dns;
pub mod keys;
pub mod layout;
pub mod measure;
pub mod namespaces;
pub mod onions;
pub mod run;
pub mod state;
pub mod torrc;

use std::io;
use std::path::{Path, PathBuf};

pub use layout::{Layout, Node, Role};
pub use run::{Request, Tornet, TornetOrigin, take_down, up};
pub use state::{RunDirectory, State};

use tandem_net::emulator::network::NetworkError;

/// An error in starting, inspecting or removing the network.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TornetError {
    /// The system refused something.
    #[error("cannot {action}: {source}")]
    System {
        /// The action that failed.
        action: String,
        /// The cause.
        source: io::Error,
    },
    /// A program that is not installed.
    #[error("{program} is not installed; {install}")]
    Missing {
        /// The program's name.
        program: String,
        /// The install command.
        install: &'static str,
    },
    /// A program that ended with an error.
    #[error("{program} failed: {output}")]
    Program {
        /// The program's name.
        program: String,
        /// The end of the program's output.
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
    /// The state of the network does not allow the command.
    #[error("{0}")]
    State(String),
}

impl TornetError {
    /// Returns a conversion for `map_err`.
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

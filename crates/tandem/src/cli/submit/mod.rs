//! `tandem submit`: the client of anonymous submissions. It enrols at a gateway, sends files, and
//! asks for states and answers.
//!
//! ```text
//!  enrol ─▶ challenge, keys ─▶ issuer: tokens          (unlinkable mode)
//!  post  ─▶ journal ─▶ relay or gateway ─▶ location
//!  state, answers ◀─ secret of the journal
//! ```
//!
//! - `keys` gets the gateway's key for encapsulated requests on a way that no relay can change.
//! - `consistency` checks that the gateway and the issuer give this client no values of its own.
//! - `network` sends requests over the paths of the client: through `--via` if it is given.
//! - `state` keeps the settings, the tokens and the journal in a directory of the user.
//! - `enrol`, `post` and `ask` are the commands.
//!
//! Each submission is written to the journal before it is sent. A repeated `post` after a crash has
//! the same secret, so that the gateway takes the submission once.

mod ask;
mod consistency;
mod enrol;
mod keys;
mod network;
mod post;
mod state;

use std::path::PathBuf;

use super::{Failure, runtime};
use crate::transport::registry::Transports;

pub(super) const EXAMPLES: &str = "Examples:
  tandem submit enrol --gateway 'h2+tls://submissions.example:443?ip=203.0.113.5' \\
      --relay 'h2+tls://relay.example:443?ip=198.51.100.7' --relay-token-file relay.token \\
      --issuer 'h2+tls://issuer.example:443?ip=192.0.2.9' --token-file account.token
      Get tokens of the account, and spend them without a link to it
  tandem submit enrol --gateway 'h2+tls://submissions.example:443?ip=203.0.113.5' \\
      --token-file token
      Enrol in the simple mode, in which the gateway knows the client
  tandem submit post report.json photos/ --to /today
      Send a file and all files of a directory
  tandem submit state
      Show the states of all submissions
  tandem submit answers --output answers/
      Write the answers of the server to a directory";

/// The commands of `tandem submit`.
#[derive(Debug, clap::Subcommand)]
pub enum SubmitCommand {
    /// Keep the settings of a gateway, and get tokens if an issuer is given
    Enrol(Box<enrol::EnrolArgs>),
    /// Get further tokens from the issuer
    Tokens(enrol::TokensArgs),
    /// Send a file, or all files of a directory
    Post(post::PostArgs),
    /// Show the states of all submissions
    State(StateDirectory),
    /// Write the answers of the server to files
    Answers(ask::AnswersArgs),
}

/// The directory of the client.
#[derive(Clone, Debug, clap::Args)]
pub struct StateDirectory {
    /// Directory for the settings, tokens and journal [default: ~/.local/state/tandem-submit]
    #[arg(long, value_name = "DIRECTORY")]
    state: Option<PathBuf>,
}

impl StateDirectory {
    /// Opens the directory, and creates it if it is new.
    fn open(&self) -> Result<state::ClientFiles, Failure> {
        state::ClientFiles::open(self.path()?)
    }

    /// Opens the directory of an enrolled client, and creates nothing.
    fn open_enrolled(&self) -> Result<state::ClientFiles, Failure> {
        let directory = self.path()?;
        match state::is_enrolled(&directory) {
            true => state::ClientFiles::open(directory),
            false => Err(state::no_settings(&directory)),
        }
    }

    fn path(&self) -> Result<PathBuf, Failure> {
        let default = || {
            let home = std::env::var_os("HOME").map(PathBuf::from);
            home.map(|home| home.join(".local/state/tandem-submit"))
        };
        let directory = self.state.clone().or_else(default);
        Ok(directory.ok_or("state: give a directory, since HOME is not set")?)
    }
}

pub(super) fn run(command: &SubmitCommand, transports: &Transports) -> Result<(), Failure> {
    // Each command tells of its failures, with the options that it has.
    super::start_log(Some("warn,tandem::back::announce=off"))?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime()?, async {
        match command {
            SubmitCommand::Enrol(args) => enrol::enrol(args, transports).await,
            SubmitCommand::Tokens(args) => enrol::tokens(args, transports).await,
            SubmitCommand::Post(args) => post::post(args, transports).await,
            SubmitCommand::State(directory) => ask::states(directory, transports).await,
            SubmitCommand::Answers(args) => ask::answers(args, transports).await,
        }
    })
}

/// Returns random bytes of the system.
fn random<const N: usize>() -> Result<[u8; N], Failure> {
    let mut bytes = [0; N];
    let random = ring::rand::SystemRandom::new();
    ring::rand::SecureRandom::fill(&random, &mut bytes)
        .map_err(|_| "the system provides no random numbers")?;
    Ok(bytes)
}

//! The proxy of the client that `tandem init` sets up.

use std::io::{BufRead, Write};

use super::InitArgs;
use super::questions::{CONTROL, Questions, SOCKS};
use crate::cli::Failure;
use crate::config::share_url::ShareUrl;
use crate::endpoint::{Endpoint, Via};

/// Asks for the way to the gateway of `--from`, if it needs Tor.
pub(super) fn via<I: BufRead, O: Write>(
    args: &InitArgs,
    questions: &mut Questions<I, O>,
    url: &ShareUrl,
) -> Result<Option<Via>, Failure> {
    if url.needs_tor() || args.via.is_some() {
        return ask_via(args, questions, Some(&url.endpoint()?)).map(Some);
    }
    Ok(None)
}

/// Asks for the way to a gateway through Tor; `None` stands for those of sites.
pub(super) fn ask_via<I: BufRead, O: Write>(
    args: &InitArgs,
    questions: &mut Questions<I, O>,
    gateway: Option<&Endpoint>,
) -> Result<Via, Failure> {
    let at_exit = gateway.is_some_and(|gateway| gateway.option("exit").is_some());
    ask_port(args, questions, at_exit)
}

/// Returns the proxy of `--via`, for set-ups that do not ask for it.
pub(super) fn given_via<I: BufRead, O: Write>(
    args: &InitArgs,
    questions: &mut Questions<I, O>,
    at_exit: bool,
) -> Result<Option<Via>, Failure> {
    let given = args.via.as_ref();
    given
        .map(|_| ask_port(args, questions, at_exit))
        .transpose()
}

/// Asks for a port of Tor. Only the control port reaches gateways at exits.
fn ask_port<I: BufRead, O: Write>(
    args: &InitArgs,
    questions: &mut Questions<I, O>,
    at_exit: bool,
) -> Result<Via, Failure> {
    let question = if at_exit { &CONTROL } else { &SOCKS };
    questions.ask(question, args.via.as_deref(), |text| {
        match text.parse().map_err(|error| format!("{error}"))? {
            Via::Socks(_) if at_exit => Err(format!(
                "{text} reaches no gateway at an exit: give Tor's control port, such as \
                 tor://127.0.0.1:9051"
            )),
            via => Ok(via),
        }
    })
}

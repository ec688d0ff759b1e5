//! The `tandem` program: the commands of the proxies, `top`, the demo and the predictor's tools.
//!
//! The proxies are the library `tandem`, which knows nothing of pages, emulated networks and logs.
//! The research crates know nothing of the proxies. This crate joins both for the user.

#![warn(clippy::print_stderr)]

#[cfg(all(feature = "mimalloc", target_os = "linux"))]
mod allocator;
mod demo;
mod top;

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory as _, Parser, Subcommand};
use tandem::cli::{EXAMPLES, Failure};
use tandem_lab::predict::PredictCommand;

/// Two proxies, one at each end of a slow path, that make the web load as fast as that path allows.
#[derive(Debug, Parser)]
#[command(name = "tandem", version, max_term_width = 110, after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Proxy(Box<tandem::cli::Command>),
    /// Show sessions, page loads and problems of a running client or gateway in a terminal
    #[command(display_order = 2)]
    Top(top::TopArgs),
    /// Load a real page's structure over an emulated slow path, without and with the pair
    #[command(display_order = 2)]
    Demo(demo::DemoArgs),
    /// Replay access logs through the push predictor, or search its best parameters
    #[command(subcommand, display_order = 2)]
    Predict(PredictCommand),
}

fn main() -> ExitCode {
    let arguments = Arguments::try_parse().unwrap_or_else(|error| end(&error));
    #[cfg(all(feature = "mimalloc", target_os = "linux"))]
    match &arguments.command {
        // A replay fills much memory at once, has no bound to keep and ends soon.
        Command::Predict(_) => allocator::keep_memory_in_large_pages(),
        Command::Proxy(proxy) if matches!(**proxy, tandem::cli::Command::Gateway(_)) => {
            allocator::return_free_memory_soon();
        }
        _ => allocator::return_free_memory_at_once(),
    }
    tandem::cli::exit(run(arguments.command))
}

/// Prints the problem of the arguments, or the help that they ask for, and ends the program.
fn end(error: &clap::Error) -> ! {
    // A failed write leaves no way to report it.
    let _ = error.print();
    if is_of_submissions(error) {
        tandem::cli::note(
            "\nThis program was built without submissions: build it with cargo build --release \
             -p tandem-cli --features submit",
        );
    }
    let given = std::env::args_os();
    let given: Vec<_> = given.map(|it| it.to_string_lossy().into_owned()).collect();
    if let Some(option) = option_of_value(error, &given, &Arguments::command()) {
        tandem::cli::note(format_args!(
            "\ntip: the value of an option such as {option} stands after '=': {option}=VALUE"
        ));
    }
    std::process::exit(error.exit_code())
}

/// Returns true if an unknown command is one of the feature `submit`.
fn is_of_submissions(error: &clap::Error) -> bool {
    match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(name)) => matches!(name.as_str(), "issuer" | "submit"),
        _ => false,
    }
}

/// Returns the option before an unexpected value, if it takes its value after `=` only.
fn option_of_value<'a>(
    error: &clap::Error,
    given: &'a [String],
    program: &clap::Command,
) -> Option<&'a str> {
    let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let at = given.iter().position(|it| it == value)?;
    let option = given.get(at.checked_sub(1)?)?;
    let name = option.strip_prefix("--")?;
    let command = program.find_subcommand(given.get(1)?)?;
    let is_option = |it: &clap::Arg| it.get_long() == Some(name) && it.is_require_equals_set();
    command.get_arguments().any(is_option).then_some(option)
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Proxy(command) => {
            let mut transports = tandem::transport::registry::Transports::default();
            transports.add(tandem_dtls::DtlsProvider::default());
            transports.add(tandem_quic::QuicProvider::default());
            tandem::cli::run(*command, Arguments::command(), &transports)
        }
        Command::Top(args) => top::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Predict(command) => Ok(tandem_lab::predict::run(command)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_after_a_space_is_recognised() {
        let option = |given: &[&str]| {
            let given: Vec<_> = given.iter().map(|&it| it.to_owned()).collect();
            let program = Arguments::command();
            let error = program.clone().try_get_matches_from(&given).err();
            option_of_value(&error.expect("no arguments"), &given, &program).map(str::to_owned)
        };
        let solo = option(&["tandem", "client", "--solo", "direct"]);
        assert_eq!(solo.as_deref(), Some("--solo"));
        let push = option(&["tandem", "client", "--push", "false"]);
        assert_eq!(push.as_deref(), Some("--push"));
        assert_eq!(option(&["tandem", "client", "direct"]), None);
        assert_eq!(option(&["tandem", "client", "--log", "info", "x"]), None);
    }

    #[test]
    fn unknown_command_of_submissions_is_recognised() {
        let hints = |name: &str| {
            let known = clap::Command::new("client");
            let program = clap::Command::new("tandem").subcommand(known);
            let unknown = program.try_get_matches_from(["tandem", name]);
            is_of_submissions(&unknown.expect_err("no command"))
        };
        assert!(hints("issuer") && hints("submit"));
        assert!(!hints("isuer") && !hints("gateway"));
    }
}

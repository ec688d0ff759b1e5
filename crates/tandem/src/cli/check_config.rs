//! `tandem check-config`: checks each role of a configuration file without opening a listener.

use std::path::PathBuf;

use super::Failure;
use super::sections::{Configured as _, Section};
use crate::config::{
    BridgeOptions, ClientOptions, ConfigError, File, GatewayOptions, RelayOptions,
};
use crate::roles::Role as _;
use crate::transport::registry::Transports;

const EXAMPLES: &str = "Examples:
  tandem check-config /etc/tandem/gateway.toml
      Check the file, its certificates and its tokens, and print warnings";

/// Arguments of `tandem check-config`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct CheckArgs {
    /// Path of the TOML file
    #[arg(
        short,
        long = "config",
        value_name = "FILE",
        required_unless_present = "file"
    )]
    config: Option<PathBuf>,
    /// Path of the TOML file
    #[arg(value_name = "FILE", conflicts_with = "config")]
    file: Option<PathBuf>,
}

#[expect(clippy::print_stdout, reason = "the command's output")]
pub(super) fn check(args: &CheckArgs, transports: &Transports) -> Result<(), Failure> {
    let path = args
        .config
        .as_ref()
        .or(args.file.as_ref())
        .ok_or("give a file")?;
    let mut file = File::read(path)?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&super::runtime()?, async {
        let Some(warnings) = check_sections(&mut file, transports)? else {
            let problem = format!("{}: it has no table of a role: {}", path.display(), TABLES);
            return Err(problem.into());
        };
        for warning in &warnings {
            println!("warning: {warning}");
        }
        match warnings.len() {
            0 => println!("{}: good", path.display()),
            count => println!("{}: can be used, with {count} warning(s)", path.display()),
        }
        Ok(())
    })
}

/// The tables of roles that a file may have.
const TABLES: &str = "[client], [gateway], [relay], [bridge] or [issuer]";

/// Checks all roles of a file. Returns the warnings, or `None` if the file has no role.
fn check_sections(
    file: &mut File,
    transports: &Transports,
) -> Result<Option<Vec<String>>, ConfigError> {
    let checked = [
        check_section::<ClientOptions>(file, transports)?,
        check_section::<GatewayOptions>(file, transports)?,
        check_section::<RelayOptions>(file, transports)?,
        check_section::<BridgeOptions>(file, transports)?,
        #[cfg(feature = "submit")]
        check_section::<crate::config::IssuerOptions>(file, transports)?,
    ];
    let warnings = checked.into_iter().flatten();
    Ok(warnings.reduce(|all, more| [all, more].concat()))
}

/// Checks the role of one table. Returns the warnings, or `None` if the file lacks the table.
#[expect(clippy::print_stdout, reason = "the command's output")]
fn check_section<S: Section>(
    file: &mut File,
    transports: &Transports,
) -> Result<Option<Vec<String>>, ConfigError> {
    let Some(options) = S::take(file) else {
        return Ok(None);
    };
    let role = options.typed_with(transports)?;
    role.check()?;
    let listen: Vec<_> = role.listen().iter().map(ToString::to_string).collect();
    println!(
        "{}: listens on {}, {} thread(s)",
        S::NAME,
        listen.join(", "),
        role.listening().workers
    );
    Ok(Some(role.warnings()))
}

//! `tandem check-config`: checks each role of a configuration file without opening a listener.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::sections::{Configured as _, Section};
use super::{Failure, tell};
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

pub(super) fn check(args: &CheckArgs, transports: &Transports) -> Result<(), Failure> {
    let path = args
        .config
        .as_ref()
        .or(args.file.as_ref())
        .ok_or("give a file")?;
    let mut file = File::read(path)?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&super::runtime()?, async {
        let checked = check_sections(&mut file, transports);
        let Some(mut warnings) = checked.map_err(|error| with_place(&error, path))? else {
            let problem = format!("{}: it has no table of a role: {}", path.display(), TABLES);
            return Err(problem.into());
        };
        warnings.extend(missing_places(path));
        for warning in &warnings {
            tell(format_args!("warning: {warning}"));
        }
        let path = path.display();
        match warnings.len() {
            0 => tell(format_args!("{path}: good")),
            count => tell(format_args!("{path}: can be used, with {count} warning(s)")),
        }
        Ok(())
    })
}

/// The time for the look-up of all names of a role. The start of a service waits for this command.
const LOOK_UP_LIMIT: Duration = Duration::from_secs(3);

/// The tables of roles that a file may have.
const TABLES: &str = "[client], [gateway], [relay], [bridge] or [issuer]";

/// The keys of files that a role creates, whose directories it does not create.
const CREATED: [&str; 5] = [
    "control",
    "predict-state",
    "push-digest-file",
    "solo-state",
    "submit-store",
];

/// Returns a warning for each directory of such a file that does not exist. A service or another
/// machine may have it.
fn missing_places(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let file: toml::Table = text.parse().unwrap_or_default();
    let tables = file.values().filter_map(toml::Value::as_table).flatten();
    let created = tables.filter(|(key, _)| CREATED.contains(&key.as_str()));
    let missing = created.filter_map(|(key, value)| {
        let value = value.as_str()?;
        let created = match key.as_str() {
            // A store of PostgreSQL has no file here.
            "submit-store" => value.strip_prefix("sqlite:")?,
            _ => value,
        };
        let directory = Path::new(created).parent()?;
        let is_there = directory.as_os_str().is_empty() || directory.is_dir();
        let directory = directory.display();
        (!is_there).then(|| format!("{key}: there is no directory {directory} on this machine"))
    });
    missing.collect()
}

/// Returns the text of an error with the name of the file, and the line of the key if one has it.
fn with_place(error: &ConfigError, path: &Path) -> String {
    let file = path.display();
    let ConfigError::Value { key, .. } = error else {
        return match error {
            ConfigError::Read { .. } | ConfigError::Parse { .. } => error.to_string(),
            _ => format!("{file}: {error}"),
        };
    };
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let is_of_key = |line: &str| {
        let named = line.split_once('=').map(|(named, _)| named.trim());
        named == Some(*key)
    };
    match text.lines().position(is_of_key) {
        Some(before) => format!("{file}: line {}: {error}", before + 1),
        None => format!("{file}: {error}"),
    }
}

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
fn check_section<S: Section>(
    file: &mut File,
    transports: &Transports,
) -> Result<Option<Vec<String>>, ConfigError> {
    let Some(options) = S::take(file) else {
        return Ok(None);
    };
    if let Err(problem) = super::log_filter(options.log()) {
        let problem = problem.strip_prefix("log: ").unwrap_or(&problem);
        return Err(ConfigError::value("log", problem));
    }
    let role = options.typed_with(transports)?;
    role.check()?;
    let listen: Vec<_> = role.listen().iter().map(ToString::to_string).collect();
    tell(format_args!(
        "{}: listens on {}, {} thread(s)",
        S::NAME,
        listen.join(", "),
        role.listening().workers
    ));
    let mut warnings = role.warnings();
    // A service begins with this check, and the network may not be there yet.
    let unknown = role.look_up_names(LOOK_UP_LIMIT);
    warnings.extend(unknown.iter().map(ToString::to_string));
    Ok(Some(warnings))
}

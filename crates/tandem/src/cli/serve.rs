//! `tandem client`, `gateway`, `relay`, `bridge` and `check-config`: starts a role from its options,
//! and handles signals.

use std::cell::OnceCell;
use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use super::{BridgeArgs, ClientArgs, Failure, GatewayArgs, RelayArgs, start_log};
use crate::admin;
use crate::admin::control::Control;
use crate::admin::door::Door;
use crate::admin::overview::OverviewSource;
use crate::config::{ConfigError, File};
use crate::endpoint::Endpoint;
use crate::journal::Journal;
use crate::roles::Role;
use crate::runtime::Running;
use crate::services::Services;
use crate::session::Drain;
use crate::transport::registry::Transports;
use crate::transport::tcp::SocketOptions;

/// A role with the values that the process needs beside it.
pub(super) struct Loaded {
    pub(super) role: Arc<dyn Role>,
    pub(super) drain_limit: Duration,
    pub(super) fixed: Fixed,
    /// The warnings about the configuration.
    pub(super) warnings: Vec<String>,
}

/// The values that a reload does not change: they need a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fixed {
    pub(super) log: Option<String>,
    pub(super) metrics: Option<SocketAddr>,
    pub(super) admin: Option<SocketAddr>,
    pub(super) control: Option<PathBuf>,
    pub(super) workers: usize,
    /// The settings of the gateway's predictor as text; `None` without a predictor.
    pub(super) predict: Option<String>,
    /// The address of the gateway's store of submissions.
    pub(super) store: Option<String>,
}

impl Fixed {
    /// Returns the names of the keys with another value in `new`.
    fn changed(&self, new: &Self) -> Vec<&'static str> {
        let differs = [
            ("log", self.log != new.log),
            ("metrics", self.metrics != new.metrics),
            ("admin", self.admin != new.admin),
            ("control", self.control != new.control),
            ("workers", self.workers != new.workers),
            (
                "submit-store",
                self.store.is_some() && new.store.is_some() && self.store != new.store,
            ),
            (
                "predict-*",
                self.predict.is_some() && new.predict.is_some() && self.predict != new.predict,
            ),
        ];
        differs
            .into_iter()
            .filter(|(_, differs)| *differs)
            .map(|(key, _)| key)
            .collect()
    }
}

pub(super) fn client(args: ClientArgs, transports: &Transports) -> Result<(), Failure> {
    let file_log = read(args.config.as_deref())?
        .client
        .and_then(|options| options.log);
    start_log(args.options.log.as_deref().or(file_log.as_deref()))?;
    serve("client", || {
        let file = read(args.config.as_deref())?.client.unwrap_or_default();
        let options = args.options.clone().or(file);
        let log = options.log.clone();
        let config = options.typed_with(transports)?;
        let warnings = config.warnings();
        let control = config.control.clone();
        let fixed = Fixed {
            log,
            metrics: config.metrics,
            admin: config.admin,
            control,
            workers: config.workers(),
            predict: None,
            store: None,
        };
        Ok(Loaded {
            drain_limit: Duration::from_secs(10),
            fixed,
            warnings,
            role: Arc::new(config),
        })
    })
}

pub(super) fn gateway(args: GatewayArgs, transports: &Transports) -> Result<(), Failure> {
    let file_log = read(args.config.as_deref())?
        .gateway
        .and_then(|options| options.log);
    start_log(args.options.log.as_deref().or(file_log.as_deref()))?;
    let workers = OnceCell::new();
    serve("gateway", || {
        let file = read(args.config.as_deref())?.gateway.unwrap_or_default();
        let options = args.options.clone().or(file);
        let log = options.log.clone();
        let mut config = options.typed_with(transports)?;
        let mut warnings = config.warnings();
        warnings.extend(warning_of_congestion(&config.path.socket));
        let predictor = config
            .push
            .as_ref()
            .and_then(|push| push.predictor.as_ref());
        let predict = predictor.map(|predictor| format!("{predictor:?}"));
        let control = config.control.clone();
        let fixed = Fixed {
            log,
            metrics: config.metrics,
            admin: config.admin,
            control,
            workers: config.workers,
            predict,
            store: config.submission.as_ref().map(|it| it.store.clone()),
        };
        // The limits are divided among the threads. A reload keeps the number of threads.
        config.workers = *workers.get_or_init(|| config.workers);
        Ok(Loaded {
            drain_limit: config.drain_timeout,
            fixed,
            warnings,
            role: Arc::new(config),
        })
    })
}

pub(super) fn relay(args: RelayArgs, transports: &Transports) -> Result<(), Failure> {
    let file_log = read(args.config.as_deref())?
        .relay
        .and_then(|options| options.log);
    start_log(args.options.log.as_deref().or(file_log.as_deref()))?;
    let workers = OnceCell::new();
    serve("relay", || {
        let file = read(args.config.as_deref())?.relay.unwrap_or_default();
        let options = args.options.clone().or(file);
        let log = options.log.clone();
        let mut config = options.typed_with(transports)?;
        let mut warnings = config.warnings();
        let near = &mut config.near;
        warnings.extend(warning_of_congestion(&near.path.socket));
        let fixed = Fixed {
            log,
            metrics: near.metrics,
            admin: near.admin,
            control: near.control.clone(),
            workers: near.workers,
            predict: None,
            store: None,
        };
        // The limits are divided among the threads. A reload keeps the number of threads.
        near.workers = *workers.get_or_init(|| near.workers);
        Ok(Loaded {
            drain_limit: near.drain_timeout,
            fixed,
            warnings,
            role: Arc::new(config),
        })
    })
}

pub(super) fn bridge(args: BridgeArgs, transports: &Transports) -> Result<(), Failure> {
    let file_log = read(args.config.as_deref())?
        .bridge
        .and_then(|options| options.log);
    start_log(args.options.log.as_deref().or(file_log.as_deref()))?;
    let workers = OnceCell::new();
    serve("bridge", || {
        let file = read(args.config.as_deref())?.bridge.unwrap_or_default();
        let options = args.options.clone().or(file);
        let log = options.log.clone();
        let mut config = options.typed_with(transports)?;
        let mut warnings = config.warnings();
        let near = &mut config.near;
        warnings.extend(warning_of_congestion(&near.path.socket));
        let fixed = Fixed {
            log,
            metrics: near.metrics,
            control: near.control.clone(),
            workers: near.workers,
            ..Fixed::default()
        };
        // The limits are divided among the threads. A reload keeps the number of threads.
        near.workers = *workers.get_or_init(|| near.workers);
        Ok(Loaded {
            drain_limit: near.drain_timeout,
            fixed,
            warnings,
            role: Arc::new(config),
        })
    })
}

#[cfg(feature = "submit")]
pub(super) fn issuer(args: super::IssuerArgs, transports: &Transports) -> Result<(), Failure> {
    start_log(args.options.log.as_deref())?;
    let (workers, opened) = (OnceCell::new(), OnceCell::new());
    serve("issuer", || {
        let log = args.options.log.clone();
        let mut config = args.options.clone().typed_with(transports)?;
        let warnings = config.near.warnings();
        let fixed = Fixed {
            log,
            metrics: config.near.metrics,
            workers: config.near.workers,
            ..Fixed::default()
        };
        // The limits are divided among the threads. A reload keeps the threads and the keys.
        config.near.workers = *workers.get_or_init(|| config.near.workers);
        config.opened = Arc::clone(opened.get_or_init(|| Arc::clone(&config.opened)));
        Ok(Loaded {
            drain_limit: config.near.drain_timeout,
            fixed,
            warnings,
            role: Arc::new(config),
        })
    })
}

/// Logs the warnings about a configuration, and shows them on the dashboard.
fn warn(warnings: Vec<String>, journal: &Journal) {
    for warning in &warnings {
        tracing::warn!("{warning}");
    }
    journal.set_warnings(warnings);
}

/// Returns a warning if the kernel lacks the congestion control: a lossy path is slow without it.
fn warning_of_congestion(options: &SocketOptions) -> Option<String> {
    let error = options.congestion_refused()?;
    Some(format!(
        "the kernel lacks the congestion control {} ({error}) and uses its default, which takes \
         every loss for congestion and forgets an idle path: load it (modprobe tcp_bbr), or set \
         congestion = \"\" to accept the default",
        options.congestion
    ))
}

pub(super) fn read(file: Option<&Path>) -> Result<File, ConfigError> {
    file.map_or_else(|| Ok(File::default()), File::read)
}

pub(super) fn serve(
    name: &'static str,
    load: impl Fn() -> Result<Loaded, ConfigError>,
) -> Result<(), Failure> {
    let mut loaded = load()?;
    raise_descriptor_limit();
    let runtime = super::runtime()?;
    let served = runtime.block_on(tokio::task::LocalSet::new().run_until(async {
        let (mut terminate, mut interrupt, mut hangup) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?, signal(SignalKind::hangup())?);
        let mut running = Running::start(Arc::clone(&loaded.role)).await?;
        let journal = Arc::clone(running.services().journal());
        warn(std::mem::take(&mut loaded.warnings), &journal);
        if let Some(address) = loaded.fixed.metrics {
            let local = admin::serve(address, running.status())
                .map_err(|error| format!("metrics: cannot listen on {address}: {error}"))?;
            eprintln!("tandem: metrics on http://{local}/metrics");
        }
        let source = OverviewSource::new(name, running.status(), Arc::clone(&journal));
        let control = loaded.fixed.control.as_deref();
        let door = loaded.fixed.admin.map(|address| dashboard(address, control, &source)).transpose()?;
        let _control = control.map(|path| Control::listen(path, source.clone(), door)).transpose()?;
        for endpoint in loaded.role.listen() {
            let address = running.address(endpoint).map_or_else(|| endpoint.authority(), |address| address.to_string());
            eprintln!("tandem {name}: listening on {}://{address}", endpoint.scheme());
        }
        let mut drain_limit = loaded.drain_limit;
        let mut looks = tokio::time::interval(LOOK_PAUSE);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = looks.tick() => {
                    look_for_renewals();
                    source.look();
                }
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                _ = hangup.recv() => match load() {
                    Err(error) => tracing::error!(%error, "the configuration was not reloaded"),
                    Ok(new) => match running.reload(new.role).await {
                        Ok(()) => {
                            warn(new.warnings, &journal);
                            let changed = loaded.fixed.changed(&new.fixed);
                            if !changed.is_empty() {
                                tracing::warn!("{} changed: that takes a restart", changed.join(", "));
                            }
                            drain_limit = new.drain_limit;
                            tracing::info!("the configuration was reloaded");
                        }
                        Err(error) => tracing::error!(%error, "the configuration was not reloaded"),
                    },
                },
            }
        }
        tracing::info!("draining: open exchanges may finish");
        let services = Arc::clone(running.services());
        tokio::select! {
            () = running.drain(drain_limit) => {}
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        Ok(services)
    }));
    // A second signal ends the wait for open exchanges.
    runtime.shutdown_background();
    let services: Result<Arc<Services>, Failure> = served;
    Ok(services?.save()?)
}

/// Serves the dashboard and prints its address.
fn dashboard(
    address: SocketAddr,
    control: Option<&Path>,
    source: &OverviewSource,
) -> Result<Arc<Door>, Failure> {
    let door = admin::serve_dashboard(address, source.clone())
        .map_err(|error| format!("admin: cannot listen on {address}: {error}"))?;
    let is_terminal = std::io::stderr().is_terminal();
    eprintln!("{}", announcement(&door, control, is_terminal));
    if control.is_none() && !is_terminal {
        tracing::warn!("nothing can open the dashboard without the control socket: set control");
    }
    Ok(door)
}

/// Returns the line about the dashboard. It has the key only if there is no other way to open the
/// page, and a person reads the line: logs are files, and terminals may be recorded.
fn announcement(door: &Door, control: Option<&Path>, is_terminal: bool) -> String {
    let address = door.address();
    match control {
        Some(control) if is_terminal => format!(
            "tandem: dashboard on http://{address}/: open it with `tandem open --control {}`",
            control.display()
        ),
        None if is_terminal => format!("tandem: dashboard on {}", door.lasting_url()),
        _ => format!("tandem: dashboard on http://{address}/"),
    }
}

/// Raises the soft limit of descriptors to the hard one. The usual soft limit of 1,024 is lower
/// than the limits of connections and sessions.
fn raise_descriptor_limit() {
    if let Err(error) = rlimit::increase_nofile_limit(u64::MAX) {
        tracing::warn!(%error, "the limit of open descriptors cannot be raised");
    }
}

/// The interval between two checks of the files of certificates, keys and tokens.
const LOOK_PAUSE: Duration = Duration::from_secs(2);

/// Reloads certificates, keys and tokens from changed files.
fn look_for_renewals() {
    for renewal in crate::renewal::look() {
        match renewal {
            Ok(sentence) => tracing::info!("{sentence}"),
            Err(sentence) => tracing::warn!("{sentence}"),
        }
    }
}

const CHECK_EXAMPLES: &str = "Examples:
  tandem check-config /etc/tandem/gateway.toml
      Check the file, its certificates and its tokens, and print warnings";

/// Arguments of `tandem check-config`.
#[derive(Debug, clap::Args)]
#[command(after_help = CHECK_EXAMPLES)]
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
    let file = File::read(path)?;
    let has_role = file.client.is_some()
        || file.gateway.is_some()
        || file.relay.is_some()
        || file.bridge.is_some();
    if !has_role {
        return Err(format!(
            "{}: neither [client] nor [gateway] nor [relay] nor [bridge] is in it",
            path.display()
        )
        .into());
    }
    let local = tokio::task::LocalSet::new();
    local.block_on(&super::runtime()?, async {
        let mut warnings = Vec::new();
        if let Some(options) = file.client {
            let config = options.typed_with(transports)?;
            warnings.extend(config.warnings());
            check_role("client", &config)?;
        }
        if let Some(options) = file.gateway {
            let config = options.typed_with(transports)?;
            warnings.extend(config.warnings());
            check_role("gateway", &config)?;
        }
        if let Some(options) = file.relay {
            let config = options.typed_with(transports)?;
            warnings.extend(config.warnings());
            check_role("relay", &config)?;
        }
        if let Some(options) = file.bridge {
            let config = options.typed_with(transports)?;
            warnings.extend(config.warnings());
            check_role("bridge", &config)?;
        }
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

/// Builds the role completely, including certificates, but opens no listener.
#[expect(clippy::print_stdout, reason = "the command's output")]
fn check_role(name: &str, role: &dyn Role) -> Result<(), ConfigError> {
    let addresses: Vec<_> = role
        .listen()
        .iter()
        .filter_map(Endpoint::socket_addr)
        .collect();
    role.build(&Services::default(), &addresses, &Drain::new())?;
    let listen: Vec<_> = role.listen().iter().map(ToString::to_string).collect();
    println!(
        "{name}: listens on {}, {} thread(s)",
        listen.join(", "),
        role.workers()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announcement_has_the_key_without_other_ways_only() {
        let door = Door::new(([127, 0, 0, 1], 8117).into()).expect("a door");
        let control = Path::new("control");
        for (control, is_terminal, has_key) in [
            (None, true, true),
            (None, false, false),
            (Some(control), true, false),
            (Some(control), false, false),
        ] {
            let line = announcement(&door, control, is_terminal);
            assert!(line.starts_with("tandem: dashboard on http://127.0.0.1:8117/"));
            assert_eq!(
                line.contains(door.key()),
                has_key,
                "{control:?} {is_terminal}"
            );
        }
    }
}

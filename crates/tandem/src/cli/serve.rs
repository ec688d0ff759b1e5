//! Runs a role until a signal ends it, and reloads it.

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{Failure, note};
use crate::admin;
use crate::admin::control::ControlSocket;
use crate::admin::door::Door;
use crate::admin::overview::OverviewSource;
use crate::config::{ConfigError, File};
use crate::journal::Journal;
use crate::learned::PredictorConfig;
use crate::role_name::RoleName;
use crate::roles::Role;
use crate::runtime::Running;
use crate::services::Services;
use crate::session::Drain;
use crate::status::StatusSource;

/// A role with the values that the process needs beside it.
pub(super) struct Loaded {
    pub(super) role: Arc<dyn Role>,
    pub(super) drain_limit: Duration,
    pub(super) fixed: Fixed,
    /// Finds the warnings about the configuration.
    pub(super) warnings: FindWarnings,
}

/// Finds the warnings about a configuration as of now, one sentence each.
pub(super) type FindWarnings = Box<dyn Fn() -> Vec<String>>;

/// The values that a reload does not change: they need a restart.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Fixed {
    pub(super) log: Option<String>,
    pub(super) metrics: Option<SocketAddr>,
    pub(super) admin: Option<SocketAddr>,
    pub(super) control: Option<PathBuf>,
    pub(super) workers: usize,
    /// The settings of the gateway's predictor.
    pub(super) predict: Option<PredictorConfig>,
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

/// The interval between two searches for warnings. Certificates expire while a program runs.
const WARN_PAUSE: Duration = Duration::from_secs(3600);

/// The warnings about the configuration in use.
struct Warnings {
    find: FindWarnings,
    found: Vec<String>,
    /// The time of the next search.
    due: Instant,
}

impl Warnings {
    fn new(find: FindWarnings, now: Instant) -> Self {
        Self {
            find,
            found: Vec::new(),
            due: now,
        }
    }

    /// Searches again if that is due, or if a file was renewed. Returns the warnings that were not
    /// found before.
    fn look(&mut self, now: Instant, is_renewed: bool) -> Option<Vec<String>> {
        if now < self.due && !is_renewed {
            return None;
        }
        self.due = now + WARN_PAUSE;
        let before = std::mem::replace(&mut self.found, (self.find)());
        let new = self.found.iter().filter(|found| !before.contains(found));
        Some(new.cloned().collect())
    }

    /// Logs new warnings, and shows all of them on the dashboard.
    fn tell(&mut self, is_renewed: bool, journal: &Journal) {
        let Some(new) = self.look(Instant::now(), is_renewed) else {
            return;
        };
        for warning in new {
            tracing::warn!("{warning}");
        }
        journal.set_warnings(self.found.clone());
    }
}

pub(super) fn read(file: Option<&Path>) -> Result<File, ConfigError> {
    file.map_or_else(|| Ok(File::default()), File::read)
}

/// Runs a role until a signal ends it. `name` is that of the subcommand.
pub(super) fn serve(
    name: &str,
    role: RoleName,
    load: impl Fn() -> Result<Loaded, ConfigError>,
) -> Result<(), Failure> {
    let loaded = load()?;
    raise_descriptor_limit()?;
    let runtime = super::runtime()?;
    let running = run(name, role, loaded, &load);
    let served = runtime.block_on(tokio::task::LocalSet::new().run_until(running));
    // A second signal ends the wait for open exchanges.
    runtime.shutdown_background();
    Ok(served?.save()?)
}

/// Runs a role until a signal ends it. Returns the services, whose files are written last.
async fn run(
    name: &str,
    role: RoleName,
    mut loaded: Loaded,
    load: &dyn Fn() -> Result<Loaded, ConfigError>,
) -> Result<Arc<Services>, Failure> {
    let mut signals = Signals::listen()?;
    let mut running = Running::start(Arc::clone(&loaded.role)).await?;
    let services = Arc::clone(running.services());
    let find = std::mem::replace(&mut loaded.warnings, Box::new(Vec::new));
    let mut warnings = Warnings::new(find, Instant::now());
    warnings.tell(false, services.journal());
    let source = OverviewSource::new(role, running.status(), Arc::clone(services.journal()));
    let pages = Drain::new();
    let control = serve_pages(&loaded.fixed, running.status(), &source, &pages)?;
    print_listeners(name, &*loaded.role, &running);
    let mut looks = tokio::time::interval(LOOK_PAUSE);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = looks.tick() => {
                let is_renewed = look_for_renewals(&services);
                warnings.tell(is_renewed, services.journal());
                services.save_if_due(Instant::now());
                source.look();
            }
            command = signals.next() => match command {
                ProcessCommand::End => break,
                ProcessCommand::Reload => {
                    match reload(&mut loaded, &mut running, load).await {
                        Ok(find) => {
                            warnings = Warnings::new(find, Instant::now());
                            warnings.tell(false, services.journal());
                        }
                        Err(error) => {
                            tracing::error!(%error, "the configuration was not reloaded");
                        }
                    }
                }
            },
        }
    }
    tracing::info!("draining: open exchanges may finish");
    // The next process may begin now, and needs the same addresses.
    pages.begin();
    drop(control);
    tokio::select! {
        () = running.drain(loaded.drain_limit) => services.close_disk(),
        () = signals.end() => {}
    }
    Ok(services)
}

/// The signals that end or reload the program.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    /// By default this signal ends the process. With a handler, a write past the limit of file
    /// sizes (RLIMIT_FSIZE) is an error.
    _file_size: Signal,
}

/// A command by a signal.
enum ProcessCommand {
    End,
    Reload,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            _file_size: signal(SignalKind::from_raw(libc::SIGXFSZ))?,
        })
    }

    /// Waits for the next command.
    async fn next(&mut self) -> ProcessCommand {
        tokio::select! {
            _ = self.terminate.recv() => ProcessCommand::End,
            _ = self.interrupt.recv() => ProcessCommand::End,
            _ = self.hangup.recv() => ProcessCommand::Reload,
        }
    }

    /// Waits until a signal asks for the end.
    async fn end(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Replaces the configuration, and returns the search for warnings about the new one. An error
/// leaves the old one in use.
async fn reload(
    loaded: &mut Loaded,
    running: &mut Running,
    load: &dyn Fn() -> Result<Loaded, ConfigError>,
) -> Result<FindWarnings, Failure> {
    let new = load()?;
    running.reload(new.role).await?;
    let changed = loaded.fixed.changed(&new.fixed);
    if !changed.is_empty() {
        tracing::warn!("{} changed: that takes a restart", changed.join(", "));
    }
    loaded.drain_limit = new.drain_limit;
    tracing::info!("the configuration was reloaded");
    Ok(new.warnings)
}

/// Serves the pages about the process until `drain` begins. The control socket lasts as long as the
/// returned value.
fn serve_pages(
    fixed: &Fixed,
    status: StatusSource,
    source: &OverviewSource,
    drain: &Drain,
) -> Result<Option<ControlSocket>, Failure> {
    if let Some(address) = fixed.metrics {
        let local = admin::serve(address, source.role(), status, drain)
            .map_err(|error| format!("metrics: cannot listen on {address}: {error}"))?;
        note(format_args!("tandem: metrics on http://{local}/metrics"));
    }
    let control = fixed.control.as_deref();
    let door = fixed
        .admin
        .map(|address| dashboard(address, control, source, drain));
    let door = door.transpose()?;
    let listen = |path| ControlSocket::listen(path, source.clone(), door);
    Ok(control.map(listen).transpose()?)
}

/// Prints the addresses of the listeners.
fn print_listeners(name: &str, role: &dyn Role, running: &Running) {
    for endpoint in role.listen() {
        let address = running
            .address(endpoint)
            .map_or_else(|| endpoint.authority(), |address| address.to_string());
        let scheme = endpoint.scheme();
        note(format_args!(
            "tandem {name}: listening on {scheme}://{address}"
        ));
    }
}

/// Serves the dashboard and prints its address.
fn dashboard(
    address: SocketAddr,
    control: Option<&Path>,
    source: &OverviewSource,
    drain: &Drain,
) -> Result<Arc<Door>, Failure> {
    let door = admin::serve_dashboard(address, source.clone(), drain)
        .map_err(|error| format!("admin: cannot listen on {address}: {error}"))?;
    let is_terminal = std::io::stderr().is_terminal();
    note(announcement(&door, control, is_terminal));
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

/// The fewest descriptors with which a role of two threads starts and carries anything.
const LEAST_DESCRIPTORS: u64 = 32;

/// Raises the soft limit of descriptors to the hard one. The usual soft limit of 1,024 is lower
/// than the limits of connections and sessions.
///
/// # Errors
/// Fails if the process may open so few that it could not run.
fn raise_descriptor_limit() -> Result<(), Failure> {
    match rlimit::increase_nofile_limit(u64::MAX) {
        Ok(limit) if limit < LEAST_DESCRIPTORS => Err(format!(
            "the process may open {limit} descriptors, and needs at least {LEAST_DESCRIPTORS}: \
             raise the limit (LimitNOFILE= in a systemd unit, or ulimit -n)"
        )
        .into()),
        Ok(_) => Ok(()),
        Err(error) => {
            tracing::warn!(%error, "the limit of open descriptors cannot be raised");
            Ok(())
        }
    }
}

/// The interval between two checks of the files of certificates, keys and tokens.
const LOOK_PAUSE: Duration = Duration::from_secs(2);

/// Reloads certificates, keys and tokens from changed files. Returns true if a file has changed.
fn look_for_renewals(services: &Services) -> bool {
    let renewals = services.renewals().look();
    for renewal in &renewals {
        match renewal {
            Ok(sentence) => tracing::info!("{sentence}"),
            Err(sentence) => tracing::warn!("{sentence}"),
        }
    }
    // A reload replaces the values, and so may end a problem without a renewal.
    let problems: Vec<_> = services.renewals().problems().into_iter().collect();
    let problem = (!problems.is_empty()).then(|| problems.join("; "));
    services.journal().faults().set("files", problem.as_deref());
    !renewals.is_empty()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    /// A service that runs for longer than the local authority lives must warn too.
    #[test]
    fn warnings_are_found_while_the_program_runs() {
        let present: Rc<RefCell<Vec<String>>> = Rc::default();
        let find = Rc::clone(&present);
        let begun = Instant::now();
        let mut warnings = Warnings::new(Box::new(move || find.borrow().clone()), begun);
        assert_eq!(warnings.look(begun, false), Some(Vec::new()));
        present.borrow_mut().push("expires in 13 days".to_owned());
        let soon = begun + WARN_PAUSE / 2;
        assert_eq!(warnings.look(soon, false), None);
        let later = begun + WARN_PAUSE;
        let expected = vec!["expires in 13 days".to_owned()];
        assert_eq!(warnings.look(later, false), Some(expected.clone()));
        assert_eq!(warnings.found, expected);
        // The log repeats nothing, and the dashboard still shows it.
        assert_eq!(warnings.look(later + WARN_PAUSE, false), Some(Vec::new()));
        assert_eq!(warnings.found, expected);
        // A renewal counts at once.
        present.borrow_mut().clear();
        assert_eq!(warnings.look(later + WARN_PAUSE, true), Some(Vec::new()));
        assert!(warnings.found.is_empty());
    }

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

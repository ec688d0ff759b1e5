//! `tandem trust`: creates the local authority, and adds it to the stores of certificates that
//! browsers and other programs trust. `--remove` undoes both.
//!
//! The authority is a part of the transport ([`crate::transport::tls::authority`]). This module
//! asks the user, and `stores` knows the places.

mod stores;

use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::init::quoted;
use super::{Failure, note, serve, tell};
use crate::config::open::{check_hosts, constraints};
use crate::hosts::HostPattern;
use crate::transport::tls::authority::{
    self, Authority, HOSTS, NAME, certificate_file, default_directory, key_file,
};
use stores::{ChosenStores, Progress, Store, StoreDirectories, StoreError, StoreKind};

const EXAMPLES: &str = "Examples:
  tandem trust
      Create the authority and add it to the browsers of this user, after a question
  sudo tandem trust --authority /home/USER/.local/share/tandem --store system
      Add it to the system's store too, for curl and other programs
  tandem trust -c client.toml
      Issue it again for the hosts that the file lists in [open], and add it to the browsers
  tandem trust --remove
      Remove it from every store, and delete it";

/// The remaining validity below which a new authority replaces the old one.
const RENEWED_BEFORE: Duration = Duration::from_secs(30 * 86_400);

/// Arguments of `tandem trust`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct TrustArgs {
    /// Remove the authority from the stores and delete it
    #[arg(long)]
    remove: bool,
    /// Do not ask before the changes
    #[arg(short, long)]
    yes: bool,
    /// Change only this store, and those with an authority to replace (repeatable) [default: all]
    #[arg(long, value_name = "STORE")]
    store: Vec<StoreKind>,
    /// Let the authority certify the hosts that this client's file lists in [open], and no others
    #[arg(short, long, value_name = "FILE", conflicts_with = "remove")]
    config: Option<PathBuf>,
    /// Let the authority certify this host, and no other that is not given: NAME or *.SUFFIX
    /// (repeatable) [default: the hosts that it can certify now]
    #[arg(long, value_name = "HOST", conflicts_with_all = ["remove", "config"])]
    open_https: Vec<HostPattern>,
    /// Directory of the authority [default: that of the file, or ~/.local/share/tandem]
    #[arg(long, value_name = "DIR")]
    authority: Option<PathBuf>,
}

pub(super) fn run(args: &TrustArgs) -> Result<(), Failure> {
    let file = match &args.config {
        None => None,
        Some(file) => Some(serve::read(Some(file))?.client.unwrap_or_default()),
    };
    let directory = args
        .authority
        .clone()
        .or_else(|| file.as_ref()?.authority.clone())
        .or_else(default_directory)
        .ok_or("neither HOME nor XDG_DATA_HOME is set: give the directory with --authority")?;
    let directory = std::path::absolute(directory)?;
    let places = StoreDirectories::of_environment()?;
    if args.remove {
        return remove(args, &directory, &places);
    }
    let listed = match &file {
        Some(options) => Some([&options.open_https[..], &options.open_https_at_gateway].concat()),
        None => Some(args.open_https.clone()).filter(|hosts| !hosts.is_empty()),
    };
    if let Some(hosts) = &listed {
        check_hosts(hosts)?;
    }
    let listed = listed.map(|hosts| constraints(&hosts));
    install(args, &directory, &places, listed)
}

fn install(
    args: &TrustArgs,
    directory: &Path,
    places: &StoreDirectories,
    listed: Option<Vec<String>>,
) -> Result<(), Failure> {
    let now = SystemTime::now();
    let state = AuthorityState::of(directory, listed.as_deref(), now)?;
    let opened = match listed {
        Some(hosts) => hosts,
        None if state == AuthorityState::Missing => Vec::new(),
        None => Authority::load(directory)?.opened().to_vec(),
    };
    let mut chosen = stores::to_install(&args.store, places);
    if state != AuthorityState::Good {
        chosen.add_holders(stores::recorded(directory)?, places, directory);
    }
    print_plan(directory, state, &opened, &chosen);
    if chosen.stores.is_empty() {
        return Err("there is no store to add the authority to".into());
    }
    stores::check_tools(&chosen.stores)?;
    confirm(args)?;
    if matches!(state, AuthorityState::Old | AuthorityState::Other) {
        delete(directory)?;
    }
    if state != AuthorityState::Good {
        authority::create(directory, &opened, now)?;
        tell(format_args!("created {}", key_file(directory).display()));
    }
    add_to(&chosen.stores, directory)?;
    if !opened.is_empty() {
        tell("\nRestart the browsers and the client that lists these hosts.");
        return Ok(());
    }
    tell(
        "\nRestart the browsers, and let the client listen for them:\n  \
         tandem client --listen h2+tls://127.0.0.1:8119 --listen http://127.0.0.1:8118 …\n\
         The address for the browsers is http://127.0.0.1:8118/proxy.pac as before.",
    );
    Ok(())
}

/// Tells the user the consequences, and the changes that will be made.
fn print_plan(directory: &Path, state: AuthorityState, opened: &[String], chosen: &ChosenStores) {
    tell(format_args!(
        "The local authority of Tandem can certify {}{} only: critical name\n\
         constraints make programs refuse its certificates for any other host.\n",
        HOSTS.join(", "),
        opened
            .iter()
            .map(|name| format!(", {name}"))
            .collect::<String>()
    ));
    if !opened.is_empty() {
        tell(consequences(opened));
    }
    tell("These changes will be made:");
    let key = key_file(directory);
    let key = key.display();
    match state {
        AuthorityState::Good => {}
        AuthorityState::Missing => tell(format_args!("  create {key} (mode 0600)")),
        AuthorityState::Old => tell(format_args!("  replace {key}, which expires")),
        AuthorityState::Other => tell(format_args!("  replace {key}, which is for other hosts")),
    }
    for store in &chosen.stores {
        tell(format_args!("  add \"{NAME}\" to {store}"));
    }
    for left_out in &chosen.left_out {
        tell(format_args!("Left out: {left_out}"));
    }
}

/// Adds the authority to stores, and records those that trust it.
fn add_to(stores: &[Store], directory: &Path) -> Result<(), Failure> {
    let mut failed = 0;
    for store in stores {
        // The record comes first, so that no change is forgotten. The store is not one that trusts
        // the authority before the change is complete.
        stores::record(directory, store, Progress::Begun)?;
        match store.add(&certificate_file(directory)) {
            Ok(()) => {
                stores::record(directory, store, Progress::Trusts)?;
                tell(format_args!("added to {store}"));
            }
            Err(error) => {
                failed += 1;
                note(format_args!("tandem: {store}: {error}{}", error.remedy()));
                // What is left of the change stays recorded, for --remove.
                if store.clear() {
                    stores::forget(directory, store)?;
                }
            }
        }
    }
    if failed > 0 {
        return Err(format!("{failed} of {} stores were not changed", stores.len()).into());
    }
    Ok(())
}

fn remove(args: &TrustArgs, directory: &Path, places: &StoreDirectories) -> Result<(), Failure> {
    let chosen = stores::to_remove(&args.store, places, &stores::recorded(directory)?)?;
    let files: Vec<_> = [key_file(directory), certificate_file(directory)]
        .into_iter()
        .filter(|file| args.store.is_empty() && file.exists())
        .collect();
    if chosen.is_empty() && files.is_empty() {
        tell("There is nothing to remove.");
        return Ok(());
    }
    tell("These changes will be made:");
    for store in &chosen {
        tell(format_args!("  remove \"{NAME}\" from {store}"));
    }
    for file in &files {
        tell(format_args!("  delete {}", file.display()));
    }
    confirm(args)?;
    let mut failed = 0;
    for store in &chosen {
        match store.remove() {
            Ok(()) => {
                stores::forget(directory, store)?;
                tell(format_args!("removed from {store}"));
            }
            Err(error) => {
                failed += 1;
                let remedy = remedy(store, &error, directory);
                note(format_args!("tandem: {store}: {error}{remedy}"));
            }
        }
    }
    if failed > 0 {
        let count = chosen.len();
        return Err(format!("{failed} of {count} stores still trust the authority").into());
    }
    if !files.is_empty() {
        delete(directory)?;
        for file in &files {
            tell(format_args!("deleted {}", file.display()));
        }
        tell("A client that lists hosts in [open] does not start: empty its lists.");
    }
    Ok(())
}

/// Returns the remedy for a store that could not be changed, if there is one.
fn remedy(store: &Store, error: &StoreError, directory: &Path) -> String {
    if !store.needs_root() || !error.is_denied() {
        return String::new();
    }
    let directory = quoted(directory);
    format!(": run `sudo tandem trust --remove --authority {directory} --store system` first")
}

/// Tells the user about the effect of an authority for other hosts than this machine.
fn consequences(opened: &[String]) -> String {
    format!(
        "It is for HTTPS of {}, and of the names below them. A client that lists them\n\
         reads this traffic on this machine. Whoever gets the key can stand for these hosts\n\
         towards the programs that trust the authority, for 90 days at most. For these hosts,\n\
         programs no longer check revocation and Certificate Transparency (SECURITY.md).\n",
        opened.join(", ")
    )
}

fn delete(directory: &Path) -> Result<(), Failure> {
    for file in [key_file(directory), certificate_file(directory)] {
        match std::fs::remove_file(&file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(format!("{}: {error}", file.display()).into());
            }
            _ => {}
        }
    }
    Ok(())
}

/// The state of the authority in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AuthorityState {
    Missing,
    Good,
    /// It expires soon, or its validity has not begun.
    Old,
    /// It can certify other hosts than those that are wanted.
    Other,
}

impl AuthorityState {
    /// Returns the state of an authority for the hosts of `listed`, or for any hosts.
    fn of(directory: &Path, listed: Option<&[String]>, now: SystemTime) -> Result<Self, Failure> {
        let exists = [key_file(directory), certificate_file(directory)].map(|file| file.exists());
        if exists == [false, false] {
            return Ok(Self::Missing);
        }
        let authority = Authority::load(directory).map_err(|error| {
            let error = error.to_string();
            match error.contains("--remove") {
                true => error,
                false => format!("{error}; tandem trust --remove deletes it"),
            }
        })?;
        if listed.is_some_and(|hosts| hosts != authority.opened()) {
            return Ok(Self::Other);
        }
        let validity = authority.validity();
        let seconds = |time: SystemTime| {
            let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
            i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
        };
        let is_good =
            validity.from <= seconds(now) && validity.until > seconds(now + RENEWED_BEFORE);
        Ok(if is_good { Self::Good } else { Self::Old })
    }
}

/// Asks the user, unless `--yes` is given.
fn confirm(args: &TrustArgs) -> Result<(), Failure> {
    if args.yes {
        return Ok(());
    }
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Err("no terminal for the question: add --yes to make these changes".into());
    }
    let mut out = std::io::stdout();
    out.write_all(b"Continue? [y/N] ")?;
    out.flush()?;
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer)?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err("nothing was changed".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_system_store_names_the_command_for_root() {
        let refused = || StoreError::File {
            path: "/etc/anchors/x.crt".into(),
            error: std::io::ErrorKind::PermissionDenied.into(),
        };
        let text = |kind: StoreKind, error| {
            let store = Store::nss(kind, "/etc/anchors".into());
            remedy(&store, &error, Path::new("/home/a b/tandem"))
        };
        let command = "sudo tandem trust --remove --authority '/home/a b/tandem' --store system";
        assert!(text(StoreKind::System, refused()).contains(command));
        assert_eq!(text(StoreKind::Chromium, refused()), "");
        let other = StoreError::Unavailable("x".to_owned());
        assert_eq!(text(StoreKind::System, other), "");
    }

    #[test]
    fn store_that_could_not_be_changed_is_not_recorded() {
        let name = format!("tandem-trust-failed-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let anchors = directory.join("anchors");
        std::fs::create_dir_all(&anchors).expect("a directory");
        std::fs::write(certificate_file(&directory), "").expect("written");
        // The program that reads this directory is not known, after the file was copied there.
        let store = Store::nss(StoreKind::System, anchors.clone());
        let added = add_to(std::slice::from_ref(&store), &directory);
        assert!(added.is_err());
        assert_eq!(std::fs::read_dir(&anchors).expect("read").count(), 0);
        assert!(stores::recorded(&directory).expect("read").is_empty());
        std::fs::remove_dir_all(&directory).expect("removed");
    }

    #[test]
    fn authority_is_replaced_before_it_expires() {
        let name = format!("tandem-trust-state-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let now = SystemTime::now();
        let state =
            |time| AuthorityState::of(&directory, None, time).map_err(|error| error.to_string());
        assert_eq!(state(now), Ok(AuthorityState::Missing));
        authority::create(&directory, &[], now).expect("an authority");
        let day = Duration::from_secs(86_400);
        for (time, expected) in [
            (now, AuthorityState::Good),
            (now + 690 * day, AuthorityState::Good),
            (now + 710 * day, AuthorityState::Old),
            (now - 2 * day, AuthorityState::Old),
        ] {
            assert_eq!(state(time), Ok(expected), "{time:?}");
        }
        let hosts = ["a.test".to_owned()];
        let state_for = |hosts: &[String]| AuthorityState::of(&directory, Some(hosts), now).ok();
        assert_eq!(state_for(&[]), Some(AuthorityState::Good));
        assert_eq!(state_for(&hosts), Some(AuthorityState::Other));
        delete(&directory).expect("deleted");
        authority::create(&directory, &hosts, now).expect("an authority");
        assert_eq!(state_for(&hosts), Some(AuthorityState::Good));
        assert_eq!(state_for(&[]), Some(AuthorityState::Other));
        for (days, expected) in [(50, AuthorityState::Good), (70, AuthorityState::Old)] {
            assert_eq!(state(now + days * day), Ok(expected), "{days}");
        }
        std::fs::remove_file(key_file(&directory)).expect("removed");
        let words = state(now).expect_err("half of an authority");
        assert!(
            words.contains("authority.key") && words.contains("--remove"),
            "{words}"
        );
        std::fs::remove_dir_all(&directory).expect("removed");
    }
}

//! `tandem trust`: creates the local authority, and adds it to the stores of certificates that
//! browsers and other programs trust. `--remove` undoes both.
//!
//! The authority is a part of the transport ([`crate::transport::tls::authority`]). This module
//! asks the user, and `stores` knows the places.

mod stores;

use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::Failure;
use crate::transport::tls::authority::{
    self, Authority, HOSTS, NAME, certificate_file, default_directory, key_file,
};
use stores::{Kind, Places};

const EXAMPLES: &str = "Examples:
  tandem trust
      Create the authority and add it to the browsers of this user, after a question
  sudo tandem trust --authority /home/USER/.local/share/tandem --store system
      Add it to the system's store too, for curl and other programs
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
    /// Change only this store (repeatable) [default: each store on this machine]
    #[arg(long, value_name = "STORE")]
    store: Vec<Kind>,
    /// Directory of the authority [default: ~/.local/share/tandem]
    #[arg(long, value_name = "DIR")]
    authority: Option<PathBuf>,
}

pub(super) fn run(args: &TrustArgs) -> Result<(), Failure> {
    let directory = args
        .authority
        .clone()
        .or_else(default_directory)
        .ok_or("neither HOME nor XDG_DATA_HOME is set: give the directory with --authority")?;
    let directory = std::path::absolute(directory)?;
    let places = Places::of_environment()?;
    if args.remove {
        remove(args, &directory, &places)
    } else {
        install(args, &directory, &places)
    }
}

#[expect(clippy::print_stdout, reason = "the command's output")]
fn install(args: &TrustArgs, directory: &Path, places: &Places) -> Result<(), Failure> {
    let now = SystemTime::now();
    let state = State::of(directory, now)?;
    let chosen = stores::to_install(&args.store, places);
    println!(
        "The local authority of Tandem can certify {} only: critical name constraints\n\
         make programs refuse its certificates for any other host.\n",
        HOSTS.join(", ")
    );
    println!("These changes will be made:");
    match state {
        State::Good => {}
        State::Missing => println!("  create {} (mode 0600)", key_file(directory).display()),
        State::Old => println!("  replace {}, which expires", key_file(directory).display()),
    }
    for store in &chosen.stores {
        println!("  add \"{NAME}\" to {store}");
    }
    for left_out in &chosen.left_out {
        println!("Left out: {left_out}");
    }
    if chosen.stores.is_empty() {
        return Err("there is no store to add the authority to".into());
    }
    stores::check_tools(&chosen.stores)?;
    confirm(args)?;
    if state == State::Old {
        delete(directory)?;
    }
    if state != State::Good {
        authority::create(directory, now)?;
        println!("created {}", key_file(directory).display());
    }
    let mut failed = 0;
    for store in &chosen.stores {
        // The record comes first, so that no change is forgotten.
        stores::record(directory, store)?;
        match store.add(&certificate_file(directory)) {
            Ok(()) => println!("added to {store}"),
            Err(error) => {
                failed += 1;
                eprintln!("tandem: {store}: {error}");
            }
        }
    }
    if failed > 0 {
        return Err(format!(
            "{failed} of {} stores were not changed",
            chosen.stores.len()
        )
        .into());
    }
    println!(
        "\nRestart the browsers, and let the client listen for them:\n  \
         tandem client --listen h2+tls://127.0.0.1:8119 --listen http://127.0.0.1:8118 …\n\
         The address for the browsers is http://127.0.0.1:8118/proxy.pac as before."
    );
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the command's output")]
fn remove(args: &TrustArgs, directory: &Path, places: &Places) -> Result<(), Failure> {
    let chosen = stores::to_remove(&args.store, places, &stores::recorded(directory)?)?;
    let files: Vec<_> = [key_file(directory), certificate_file(directory)]
        .into_iter()
        .filter(|file| args.store.is_empty() && file.exists())
        .collect();
    if chosen.is_empty() && files.is_empty() {
        println!("There is nothing to remove.");
        return Ok(());
    }
    println!("These changes will be made:");
    for store in &chosen {
        println!("  remove \"{NAME}\" from {store}");
    }
    for file in &files {
        println!("  delete {}", file.display());
    }
    confirm(args)?;
    let mut failed = 0;
    for store in &chosen {
        match store.remove() {
            Ok(()) => {
                stores::forget(directory, store)?;
                println!("removed from {store}");
            }
            Err(error) => {
                failed += 1;
                eprintln!("tandem: {store}: {error}");
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
            println!("deleted {}", file.display());
        }
    }
    Ok(())
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
enum State {
    Missing,
    Good,
    /// It expires soon, or its validity has not begun.
    Old,
}

impl State {
    fn of(directory: &Path, now: SystemTime) -> Result<Self, Failure> {
        let exists = [key_file(directory), certificate_file(directory)].map(|file| file.exists());
        if exists == [false, false] {
            return Ok(Self::Missing);
        }
        Authority::load(directory)
            .map_err(|error| format!("{error}; tandem trust --remove deletes it"))?;
        let validity = authority::validity(directory)?;
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
#[expect(clippy::print_stdout, reason = "the command's question")]
fn confirm(args: &TrustArgs) -> Result<(), Failure> {
    if args.yes {
        return Ok(());
    }
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Err("no terminal for the question: add --yes to make these changes".into());
    }
    print!("Continue? [y/N] ");
    std::io::stdout().flush()?;
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
    fn authority_is_replaced_before_it_expires() {
        let name = format!("tandem-trust-state-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let now = SystemTime::now();
        let state = |time| State::of(&directory, time).map_err(|error| error.to_string());
        assert_eq!(state(now), Ok(State::Missing));
        authority::create(&directory, now).expect("an authority");
        let day = Duration::from_secs(86_400);
        for (time, expected) in [
            (now, State::Good),
            (now + 690 * day, State::Good),
            (now + 710 * day, State::Old),
            (now - 2 * day, State::Old),
        ] {
            assert_eq!(state(time), Ok(expected), "{time:?}");
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

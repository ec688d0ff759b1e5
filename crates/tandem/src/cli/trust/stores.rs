//! The stores of trusted certificates: the NSS databases of Chromium and Firefox, which `certutil`
//! changes, and the store of the system.
//!
//! `record` keeps a list of the changed stores. Tor Browser's profile is none of the places.

mod record;

use std::fmt;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::transport::tls::authority::NAME;
pub(super) use record::{Progress, forget, record, recorded};

/// A kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum StoreKind {
    /// The databases of Chromium and its relatives
    Chromium,
    /// The profiles of Firefox
    Firefox,
    /// The store of the system, for curl and other programs; only root can change it
    System,
}

/// The failure of a change.
#[derive(Debug, thiserror::Error)]
pub(super) enum StoreError {
    /// A program is missing.
    #[error("{program} is missing: {remedy}")]
    Missing {
        program: &'static str,
        remedy: &'static str,
    },
    /// A program failed.
    #[error("{program} failed: {output}")]
    Program { program: String, output: String },
    /// A file could not be read or written.
    #[error("{path}: {error}")]
    File {
        path: PathBuf,
        error: std::io::Error,
    },
    /// A line of the record names no store.
    #[error("{path}: line {line:?} names no store: delete the line, and run the command again")]
    Record { path: PathBuf, line: String },
    /// The store shows the certificate, but does not trust it.
    #[error("it holds the authority, but does not trust it")]
    Untrusted,
    /// The wanted store cannot be changed.
    #[error("{0}")]
    Unavailable(String),
}

impl StoreError {
    /// Returns true if this user may not change a file.
    pub(super) fn is_denied(&self) -> bool {
        let denied = std::io::ErrorKind::PermissionDenied;
        matches!(self, Self::File { error, .. } if error.kind() == denied)
    }

    /// Returns what the user can do about the failure, if that is known.
    pub(super) fn remedy(&self) -> &'static str {
        match self {
            // Firefox calls it the primary password. certutil asks for it at the terminal.
            Self::Program { output, .. } if output.contains("SEC_ERROR_BAD_PASSWORD") => {
                ": this store has a password (in Firefox the primary password): run the command \
                 on a terminal, without --yes, and give the password when certutil asks for it"
            }
            _ => "",
        }
    }
}

fn file_error(path: &Path, error: std::io::Error) -> StoreError {
    StoreError::File {
        path: path.to_owned(),
        error,
    }
}

/// A place that holds trusted certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Store {
    kind: StoreKind,
    /// The directory of an NSS database, or of the system's own certificates.
    directory: PathBuf,
}

impl Store {
    /// Returns true if only root can change it.
    pub(super) fn needs_root(&self) -> bool {
        self.kind == StoreKind::System
    }
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = match self.kind {
            StoreKind::Chromium => "Chromium's store",
            StoreKind::Firefox => "Firefox's profile",
            StoreKind::System => "the system's store",
        };
        write!(f, "{owner} {}", self.directory.display())
    }
}

/// The directories in which stores are looked for.
#[derive(Clone, Debug)]
pub(super) struct StoreDirectories {
    home: PathBuf,
    data: PathBuf,
    config: PathBuf,
    is_root: bool,
    /// The directories of the system's certificates, each with the program that reads it.
    system: Vec<(PathBuf, &'static [&'static str])>,
}

/// The directories of common systems, and the program that takes over their content.
const SYSTEM: [(&str, &[&str]); 3] = [
    (
        "/usr/local/share/ca-certificates",
        &["update-ca-certificates"],
    ),
    ("/etc/pki/ca-trust/source/anchors", &["update-ca-trust"]),
    (
        "/etc/ca-certificates/trust-source/anchors",
        &["trust", "extract-compat"],
    ),
];

/// The reason to leave out the system's store.
const SYSTEM_NEEDS_ROOT: &str = "the system's store: only root can change it (--store system)";

/// The name of the certificate in the system's store.
const SYSTEM_FILE: &str = "tandem-local-authority.crt";

impl StoreDirectories {
    pub(super) fn of_environment() -> Result<Self, StoreError> {
        let path = |name| std::env::var_os(name).map(PathBuf::from);
        let absolute = |name| path(name).filter(|path| path.is_absolute());
        let home = absolute("HOME")
            .ok_or_else(|| StoreError::Unavailable("HOME is not set, or not absolute".into()))?;
        let this = Path::new("/proc/self");
        let owner = std::fs::metadata(this).map_err(|error| file_error(this, error))?;
        Ok(Self {
            data: absolute("XDG_DATA_HOME").unwrap_or_else(|| home.join(".local/share")),
            config: absolute("XDG_CONFIG_HOME").unwrap_or_else(|| home.join(".config")),
            home,
            is_root: owner.uid() == 0,
            system: SYSTEM.map(|(at, update)| (at.into(), update)).into(),
        })
    }

    /// Returns the databases of Chromium that exist.
    fn chromium(&self) -> Vec<Store> {
        let home = |path: &str| self.home.join(path);
        let databases = [
            home(".pki/nssdb"),
            self.data.join("pki/nssdb"),
            home("snap/chromium/current/.pki/nssdb"),
            home(".var/app/org.chromium.Chromium/.pki/nssdb"),
            home(".var/app/com.google.Chrome/.pki/nssdb"),
        ];
        let found = databases.into_iter().filter(|at| has_database(at));
        found
            .map(|at| Store::nss(StoreKind::Chromium, at))
            .collect()
    }

    /// Returns the profiles of Firefox.
    fn firefox(&self) -> Vec<Store> {
        let parents = [
            self.home.join(".mozilla/firefox"),
            self.config.join("mozilla/firefox"),
            self.home.join("snap/firefox/common/.mozilla/firefox"),
            self.home
                .join("snap/firefox/common/.config/mozilla/firefox"),
            self.home
                .join(".var/app/org.mozilla.firefox/.mozilla/firefox"),
            self.home
                .join(".var/app/org.mozilla.firefox/config/mozilla/firefox"),
        ];
        let profiles = |parent: PathBuf| {
            let entries = std::fs::read_dir(&parent).into_iter().flatten().flatten();
            let mut found: Vec<_> = entries.map(|entry| entry.path()).collect();
            found.extend(listed_profiles(&parent));
            found.retain(|profile| has_database(profile));
            found.sort();
            found.dedup();
            found
        };
        let all = parents.into_iter().flat_map(profiles);
        all.map(|at| Store::nss(StoreKind::Firefox, at)).collect()
    }

    fn system(&self) -> Option<Store> {
        let found = self.system.iter().find(|(at, _)| at.is_dir());
        found.map(|(at, _)| Store::nss(StoreKind::System, at.clone()))
    }
}

/// Returns the profiles of Firefox that `profiles.ini` lists. They may be anywhere.
fn listed_profiles(parent: &Path) -> Vec<PathBuf> {
    let list = std::fs::read_to_string(parent.join("profiles.ini")).unwrap_or_default();
    let paths = list.lines().filter_map(|line| line.strip_prefix("Path="));
    paths.map(|path| parent.join(path.trim_end())).collect()
}

fn has_database(directory: &Path) -> bool {
    directory.join("cert9.db").is_file()
}

/// The stores to change, and reasons for those that are left out.
pub(super) struct ChosenStores {
    pub(super) stores: Vec<Store>,
    pub(super) left_out: Vec<String>,
}

/// Chooses the stores that get the authority. Chromium's database is created if it has none.
pub(super) fn to_install(kinds: &[StoreKind], places: &StoreDirectories) -> ChosenStores {
    let wants = |kind| kinds.is_empty() || kinds.contains(&kind);
    let (mut stores, mut left_out) = (Vec::new(), Vec::new());
    if wants(StoreKind::Chromium) {
        let mut found = places.chromium();
        if found.is_empty() {
            found.push(Store::nss(
                StoreKind::Chromium,
                places.home.join(".pki/nssdb"),
            ));
        }
        stores.extend(found);
    }
    if wants(StoreKind::Firefox) {
        let found = places.firefox();
        if found.is_empty() {
            left_out.push("Firefox: no profile was found; start it once".into());
        }
        stores.extend(found);
    }
    if wants(StoreKind::System) {
        match places.system() {
            None => left_out.push("the system's store: its directory is not known".into()),
            Some(_) if !places.is_root => {
                left_out.push(SYSTEM_NEEDS_ROOT.into());
            }
            Some(store) => stores.push(store),
        }
    }
    ChosenStores { stores, left_out }
}

impl ChosenStores {
    /// Adds the recorded stores that hold an authority. They need the one that replaces it, since
    /// its key is deleted. `directory` is that of the authority.
    pub(super) fn add_holders(
        &mut self,
        recorded: Vec<Store>,
        places: &StoreDirectories,
        directory: &Path,
    ) {
        for store in recorded {
            let is_new = !self.stores.contains(&store);
            match store.has_authority() {
                Ok(true) if is_new && store.kind == StoreKind::System && !places.is_root => {
                    self.left_out.retain(|reason| reason != SYSTEM_NEEDS_ROOT);
                    self.left_out.push(format!(
                        "the system's store: it keeps the authority that is replaced until you \
                         run: sudo tandem trust --authority {} --store system",
                        directory.display()
                    ));
                }
                Ok(true) if is_new => self.stores.push(store),
                Ok(_) => {}
                Err(error) => self.left_out.push(format!("{store}: {error}")),
            }
        }
    }
}

/// Returns the stores that hold the authority: those found now, and those of the record.
pub(super) fn to_remove(
    kinds: &[StoreKind],
    places: &StoreDirectories,
    recorded: &[Store],
) -> Result<Vec<Store>, StoreError> {
    let mut all = recorded.to_vec();
    all.extend(places.chromium());
    all.extend(places.firefox());
    all.extend(places.system());
    let mut chosen: Vec<Store> = Vec::new();
    for store in all {
        let is_wanted = kinds.is_empty() || kinds.contains(&store.kind);
        if is_wanted && !chosen.contains(&store) && store.has_authority()? {
            chosen.push(store);
        }
    }
    Ok(chosen)
}

/// Checks that the programs that change the stores exist.
pub(super) fn check_tools(stores: &[Store]) -> Result<(), StoreError> {
    if stores.iter().any(|store| store.kind != StoreKind::System) {
        run(certutil().arg("-H"))
            .map(drop)
            .or_else(|error| match error {
                // The help ends with an error status.
                StoreError::Program { .. } => Ok(()),
                other => Err(other),
            })?;
    }
    Ok(())
}

impl Store {
    pub(super) const fn nss(kind: StoreKind, directory: PathBuf) -> Self {
        Self { kind, directory }
    }

    /// Adds the authority, in place of an earlier one.
    pub(super) fn add(&self, certificate: &Path) -> Result<(), StoreError> {
        if self.kind == StoreKind::System {
            let file = self.directory.join(SYSTEM_FILE);
            std::fs::copy(certificate, &file).map_err(|error| file_error(&file, error))?;
            return self.update_system();
        }
        if !has_database(&self.directory) {
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&self.directory)
                .map_err(|error| file_error(&self.directory, error))?;
            run(self.certutil().args(["-N", "--empty-password"]))?;
        }
        self.remove()?;
        // "C,," trusts the authority for TLS servers only.
        let mut add = self.certutil();
        add.args(["-A", "-t", "C,,", "-n", NAME, "-i"]);
        run(add.arg(certificate))?;
        let list = run(self.certutil().arg("-L"))?;
        match trusts(&list) {
            true => Ok(()),
            false => Err(StoreError::Untrusted),
        }
    }

    /// Removes what is left of a failed change. Returns false if something remains.
    pub(super) fn clear(&self) -> bool {
        let _ = match self.has_authority() {
            Ok(false) => Ok(()),
            _ => self.remove(),
        };
        matches!(self.has_authority(), Ok(false))
    }

    /// Removes every authority of this name.
    pub(super) fn remove(&self) -> Result<(), StoreError> {
        if self.kind == StoreKind::System {
            let file = self.directory.join(SYSTEM_FILE);
            std::fs::remove_file(&file).map_err(|error| file_error(&file, error))?;
            return self.update_system();
        }
        while self.has_authority()? {
            run(self.certutil().args(["-D", "-n", NAME]))?;
        }
        Ok(())
    }

    fn has_authority(&self) -> Result<bool, StoreError> {
        if self.kind == StoreKind::System {
            return Ok(self.directory.join(SYSTEM_FILE).exists());
        }
        if !has_database(&self.directory) {
            return Ok(false);
        }
        let list = run(self.certutil().arg("-L"))?;
        Ok(list.lines().any(|line| line.starts_with(NAME)))
    }

    fn certutil(&self) -> Command {
        let mut command = certutil();
        let database = format!("sql:{}", self.directory.display());
        command.args(["-d", &database]);
        command
    }

    fn update_system(&self) -> Result<(), StoreError> {
        let known = SYSTEM
            .iter()
            .find(|(at, _)| Path::new(at) == self.directory);
        let Some((program, arguments)) = known.and_then(|(_, update)| update.split_first()) else {
            let problem = format!("{}: its program is not known", self.directory.display());
            return Err(StoreError::Unavailable(problem));
        };
        run(Command::new(program).args(arguments)).map(drop)
    }
}

/// Returns whether a list of `certutil -L` contains the authority with trust for TLS servers, such
/// as in `NAME    C,,`. A failed change can leave it with `,,`.
fn trusts(list: &str) -> bool {
    let lines = list.lines().filter_map(|line| line.strip_prefix(NAME));
    lines
        .into_iter()
        .any(|flags| flags.trim_start().starts_with('C'))
}

fn certutil() -> Command {
    Command::new("certutil")
}

/// Runs a program and returns its output.
fn run(command: &mut Command) -> Result<String, StoreError> {
    let program = command.get_program().to_string_lossy().into_owned();
    // A database with a password makes certutil ask for it. Without input it fails instead.
    let output = command.stdin(Stdio::null()).output().map_err(|error| {
        if error.kind() != std::io::ErrorKind::NotFound {
            return file_error(Path::new(&program), error);
        }
        match program.as_str() {
            "certutil" => StoreError::Missing {
                program: "certutil",
                remedy: "apt-get install libnss3-tools (Fedora: nss-tools, Arch: nss)",
            },
            _ => StoreError::Missing {
                program: "the program of the system's store",
                remedy: "install the package ca-certificates",
            },
        }
    })?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(StoreError::Program {
            program,
            output: format!("{} {}", text(&output.stdout), text(&output.stderr)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Home(PathBuf);

    impl Home {
        fn new(name: &str) -> Self {
            let name = format!("tandem-stores-{name}-{}", std::process::id());
            let home = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&home).expect("a directory");
            Self(home)
        }

        fn places(&self, is_root: bool) -> StoreDirectories {
            let system = self.0.join("anchors");
            std::fs::create_dir_all(&system).expect("a directory");
            StoreDirectories {
                home: self.0.clone(),
                data: self.0.join(".local/share"),
                config: self.0.join(".config"),
                is_root,
                system: vec![(system, &[])],
            }
        }

        fn database(&self, path: &str) {
            let directory = self.0.join(path);
            std::fs::create_dir_all(&directory).expect("a directory");
            std::fs::write(directory.join("cert9.db"), "").expect("a file");
        }

        fn store(&self, kind: StoreKind, path: &str) -> Store {
            Store::nss(kind, self.0.join(path))
        }
    }

    impl Drop for Home {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn stores_are_found_by_kind() {
        let home = Home::new("found");
        let new = to_install(&[], &home.places(false));
        assert_eq!(new.stores, [home.store(StoreKind::Chromium, ".pki/nssdb")]);
        assert_eq!(new.left_out.len(), 2, "{:?}", new.left_out);
        home.database(".local/share/pki/nssdb");
        home.database(".mozilla/firefox/abc.default");
        std::fs::create_dir_all(home.0.join(".mozilla/firefox/Crash Reports")).expect("made");
        let all = to_install(&[], &home.places(true));
        assert_eq!(
            all.stores,
            [
                home.store(StoreKind::Chromium, ".local/share/pki/nssdb"),
                home.store(StoreKind::Firefox, ".mozilla/firefox/abc.default"),
                home.store(StoreKind::System, "anchors"),
            ]
        );
        let one = to_install(&[StoreKind::Firefox], &home.places(true));
        assert_eq!(one.stores, all.stores[1..2]);
    }

    #[test]
    fn holders_of_a_replaced_authority_get_the_new_one() {
        let home = Home::new("holders");
        let system = home.store(StoreKind::System, "anchors");
        for has_authority in [false, true] {
            if has_authority {
                std::fs::create_dir_all(&system.directory).expect("a directory");
                std::fs::write(system.directory.join(SYSTEM_FILE), "").expect("written");
            }
            for (is_root, kind) in [
                (true, StoreKind::Chromium),
                (false, StoreKind::Chromium),
                (false, StoreKind::System),
            ] {
                let places = home.places(is_root);
                let mut chosen = to_install(&[kind], &places);
                chosen.add_holders(vec![system.clone()], &places, &home.0);
                assert_eq!(chosen.stores.contains(&system), has_authority && is_root);
                let is_left_out = (has_authority && !is_root) || kind == StoreKind::System;
                assert_eq!(chosen.left_out.len(), usize::from(is_left_out));
            }
        }
    }

    #[test]
    fn profiles_of_firefox_are_found_where_its_list_says() {
        let home = Home::new("profiles");
        let config = ".config/mozilla/firefox";
        home.database(&format!("{config}/abc.default-esr"));
        home.database("elsewhere/work profile");
        let list = format!(
            "[Profile0]\nIsRelative=1\nPath=abc.default-esr\n[Profile1]\nIsRelative=0\nPath={}\n[Profile2]\nPath=gone\n",
            home.0.join("elsewhere/work profile").display()
        );
        std::fs::write(home.0.join(config).join("profiles.ini"), list).expect("written");
        let found = to_install(&[StoreKind::Firefox], &home.places(false));
        assert_eq!(
            found.stores,
            [
                home.store(
                    StoreKind::Firefox,
                    ".config/mozilla/firefox/abc.default-esr"
                ),
                home.store(StoreKind::Firefox, "elsewhere/work profile"),
            ]
        );
    }

    #[test]
    fn authority_without_trust_is_told_from_one_with_it() {
        let head = "\nCertificate Nickname      Trust Attributes\n\n";
        for (flags, expected) in [
            ("C,,", true),
            (",,", false),
            ("CT,C,C", true),
            ("p,,", false),
        ] {
            let list = format!("{head}other CA     C,,\n{NAME}        {flags}  ");
            assert_eq!(trusts(&list), expected, "{flags}");
        }
        assert!(!trusts(&format!("{head}other CA     C,,\n")));
    }

    #[test]
    fn store_with_a_password_has_a_remedy() {
        for (output, expected) in [
            (
                "certutil: could not authenticate: SEC_ERROR_BAD_PASSWORD: x",
                true,
            ),
            ("certutil: function failed: SEC_ERROR_READ_ONLY: x", false),
        ] {
            let error = StoreError::Program {
                program: "certutil".to_owned(),
                output: output.to_owned(),
            };
            let remedy = error.remedy();
            let is_told = remedy.contains("on a terminal") && remedy.contains("without --yes");
            assert_eq!(is_told, expected, "{output}");
        }
    }
}

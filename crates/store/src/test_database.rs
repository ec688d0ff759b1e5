//! A server of PostgreSQL for tests: Debian's programs as an unprivileged user, in a temporary
//! directory, on a Unix socket. The tests of `tandem-cli` use this file as well.
//!
//! A shell stops the server and removes the directory when its input ends: when the server is
//! dropped, and when the process of the test ends in any way.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Creates and starts the server, and stops it when the input ends. The arguments are the directory
/// of the server, and that of the programs.
const RUN: &str = "cd \"$1\"
    \"$2/initdb\" -D data -U tandem -A trust -E UTF8 --no-locale --no-sync >log 2>&1 || exit
    {
        echo 'local all guarded scram-sha-256'
        echo 'local all all trust'
        echo 'local replication all trust'
        echo 'hostssl all all 127.0.0.1/32 trust'
    } >data/pg_hba.conf
    echo \"unix_socket_directories = '$1'
        listen_addresses = ''
        shared_buffers = 16MB
        max_connections = 200
        max_wal_size = 64MB\" >>data/postgresql.conf
    \"$2/pg_ctl\" -D \"$1/data\" -l log -w start >control 2>&1 && echo started
    read line
    \"$2/pg_ctl\" -D \"$1/data\" -m immediate stop >>control 2>&1
    rm -rf \"$1\"";

/// Copies a running server, and starts the copy as its standby. The third argument is the directory
/// of the primary.
const RUN_STANDBY: &str = "cd \"$1\"
    \"$2/pg_basebackup\" -h \"$3\" -U tandem -D data -R -X stream -c fast >log 2>&1 || exit
    echo \"unix_socket_directories = '$1'\" >>data/postgresql.conf
    \"$2/pg_ctl\" -D \"$1/data\" -l log -w start >control 2>&1 && echo started
    read line
    \"$2/pg_ctl\" -D \"$1/data\" -m immediate stop >>control 2>&1
    rm -rf \"$1\"";

/// A running server.
pub(crate) struct Database {
    directory: PathBuf,
    programs: PathBuf,
    user: Option<(u32, u32)>,
    /// The shell, which stops the server.
    shell: Child,
}

impl Database {
    /// Starts a server with an empty database `postgres`, whose owner is the user `tandem`.
    pub(crate) fn start() -> Self {
        Self::run(RUN, Path::new(""))
    }

    /// Starts a standby. Each commit then needs its confirmation.
    pub(crate) fn start_standby(&self) -> Self {
        let standby = Self::run(RUN_STANDBY, &self.directory);
        self.sql("ALTER SYSTEM SET synchronous_standby_names = '*'");
        self.sql("SELECT pg_reload_conf()");
        let ready = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
        while self.sql(ready).trim() != "1" {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        standby
    }

    fn run(script: &str, primary: &Path) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tandem-postgres-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir(&directory).expect("a temporary directory");
        let (programs, user) = (programs(), unprivileged());
        if let Some((user, group)) = user {
            chown(&directory, Some(user), Some(group)).expect("the owner of the directory");
        }
        let mut shell = as_user("sh", user);
        shell.args(["-c", script, "sh"]);
        shell.arg(&directory).arg(&programs).arg(primary);
        shell.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = shell.spawn().expect("a shell");
        let mut line = String::new();
        let output = shell.stdout.take().expect("the output");
        BufReader::new(output).read_line(&mut line).expect("output");
        let log = || std::fs::read_to_string(directory.join("log"));
        assert_eq!(line, "started\n", "{:?}", log());
        Self {
            directory,
            programs,
            user,
            shell,
        }
    }

    /// Returns the address of a store in a schema, as the user `tandem`.
    pub(crate) fn url(&self, schema: &str) -> String {
        let host = self.directory.display();
        format!("postgres://tandem@/postgres?host={host}&schema={schema}")
    }

    /// Returns the directory, which the server can read.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Makes a file private to the user of the server.
    pub(crate) fn own_private(&self, file: &Path) {
        let private = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(file, private).expect("the mode of the file");
        if let Some((user, group)) = self.user {
            chown(file, Some(user), Some(group)).expect("the owner of the file");
        }
    }

    /// Runs `pg_ctl`, and waits until it is done.
    pub(crate) fn control(&self, arguments: &[&str]) {
        let mut command = as_user(self.programs.join("pg_ctl"), self.user);
        let log = self.directory.join("log");
        command.arg("-D").arg(self.directory.join("data"));
        command.arg("-l").arg(log).arg("-w").args(arguments);
        // The server must not keep the output of the test open.
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let status = command.current_dir("/").status().expect("pg_ctl");
        assert!(status.success(), "pg_ctl {arguments:?}");
    }

    /// Runs statements as the user `tandem`, and returns the rows as text.
    pub(crate) fn sql(&self, statements: &str) -> String {
        let mut command = Command::new(self.programs.join("psql"));
        command.args(["-XAtq", "-v", "ON_ERROR_STOP=1", "-U", "tandem", "-h"]);
        command.arg(&self.directory);
        let output = command.args(["-c", statements, "postgres"]).output();
        let output = output.expect("psql");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{statements}: {error}");
        String::from_utf8(output.stdout).expect("text")
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // This ends its input.
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

/// Returns the directory of Debian's programs, or that of `initdb` on other systems.
fn programs() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten();
    let debian = versions.filter_map(|entry| Some(entry.ok()?.path().join("bin")));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let others = std::env::split_paths(&path).collect::<Vec<_>>();
    let mut all = debian.chain(others);
    all.find(|directory| directory.join("initdb").exists())
        .expect("PostgreSQL is needed: apt-get install postgresql")
}

/// Returns the user and the group of the server, if this process is privileged: the server refuses
/// to run as root.
fn unprivileged() -> Option<(u32, u32)> {
    let process = std::fs::metadata("/proc/self").expect("the process");
    if process.uid() != 0 {
        return None;
    }
    let id = |option: &str| -> u32 {
        let output = Command::new("id").args([option, "postgres"]).output();
        let output = String::from_utf8(output.expect("id").stdout).expect("text");
        let id = output.trim().parse();
        id.expect("the user postgres is needed: apt-get install postgresql")
    };
    Some((id("-u"), id("-g")))
}

fn as_user(program: impl AsRef<std::ffi::OsStr>, user: Option<(u32, u32)>) -> Command {
    let mut command = Command::new(program);
    if let Some((user, group)) = user {
        command.uid(user).gid(group);
    }
    command
}

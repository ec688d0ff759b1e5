//! A server of Redis for tests: Debian's program on a Unix socket or over TLS, in a temporary
//! directory, without files of its data.
//!
//! A shell stops the server when its input ends: when the server is dropped, and when the process
//! of the test ends in any way.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::certificates::Certificates;
use crate::harness::PATIENCE;

const RUN: &str = "redis-server \"$@\" >log 2>&1 & echo $!
    read line
    kill -KILL $!
    wait";

/// Returns the rights of a gateway at the server that the documentation of fleets names.
pub(crate) fn documented_rights() -> String {
    let text = include_str!("../../../../docs/src/fleet.md");
    let start = "user tandem on >PASSWORD ";
    let line = text.lines().find_map(|line| line.strip_prefix(start));
    line.expect("the rights").to_owned()
}

/// A server that can be stopped and started again.
pub(crate) struct RedisServer {
    directory: PathBuf,
    arguments: Vec<String>,
    running: Option<(Child, u32)>,
}

impl RedisServer {
    /// Starts a server on a Unix socket.
    pub(crate) fn start() -> Self {
        Self::with(&["--port", "0"])
    }

    /// Starts a server on a Unix socket, with a user `tandem` that has this password and rights.
    pub(crate) fn start_for(password: &str, rights: &str) -> Self {
        let arguments = format!("--port 0 --user tandem on >{password} {rights}");
        Self::with(&arguments.split(' ').collect::<Vec<_>>())
    }

    /// Starts a server with TLS, whose only user `tandem` has this password and the rights that the
    /// documentation of fleets names. Returns the URL of the listener.
    pub(crate) fn start_with_tls(certificates: &Certificates, password: &str) -> (Self, String) {
        let [certificate, key, ca] =
            ["gateway.pem", "gateway.key", "ca.pem"].map(|name| certificates.path(name));
        // Another process may take the port between the two steps, and then the server ends.
        for _ in 0..10 {
            let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let port = free.local_addr().unwrap().port();
            drop(free);
            let arguments = format!(
                "--bind 127.0.0.1 --port 0 --tls-port {port} --tls-auth-clients no \
                 --tls-cert-file {certificate} --tls-key-file {key} --tls-ca-cert-file {ca} \
                 --user default off --user tandem on >{password} {}",
                documented_rights()
            );
            let arguments: Vec<_> = arguments.split(' ').collect();
            let mut server = Self::unstarted(&arguments);
            if server.try_resume() {
                return (
                    server,
                    format!("rediss://tandem@127.0.0.1:{port}/0?ca={ca}"),
                );
            }
        }
        panic!("the server found no port");
    }

    fn with(arguments: &[&str]) -> Self {
        let mut server = Self::unstarted(arguments);
        server.resume();
        server
    }

    fn unstarted(arguments: &[&str]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tandem-redis-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        Self {
            directory,
            arguments: arguments
                .iter()
                .map(|argument| (*argument).to_owned())
                .collect(),
            running: None,
        }
    }

    /// Starts the server again, without its data.
    pub(crate) fn resume(&mut self) {
        let log = self.directory.join("log");
        assert!(self.try_resume(), "{:?}", std::fs::read_to_string(log));
    }

    fn try_resume(&mut self) -> bool {
        let found = Command::new("redis-server")
            .arg("--version")
            .stdout(Stdio::null())
            .status();
        assert!(
            found.is_ok_and(|status| status.success()),
            "redis-server is missing: apt-get install redis-server"
        );
        for name in ["socket", "log"] {
            let _ = std::fs::remove_file(self.directory.join(name));
        }
        let mut shell = Command::new("sh")
            .args(["-c", RUN, "sh", "--save", "", "--unixsocket", "socket"])
            .args(&self.arguments)
            .current_dir(&self.directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let output = shell.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        self.running = Some((shell, line.trim().parse().unwrap()));
        let ready = || {
            let log = std::fs::read_to_string(self.directory.join("log")).unwrap_or_default();
            match log.contains("The server is now ready") || log.contains("Ready to accept") {
                true => Some(true),
                false => log.contains("Failed listening").then_some(false),
            }
        };
        wait_for("the server", ready)
    }

    /// Kills the server.
    pub(crate) fn kill(&mut self) {
        if let Some((mut shell, _)) = self.running.take() {
            drop(shell.stdin.take());
            shell.wait().unwrap();
        }
    }

    /// Stops the server with its connections open, or lets it continue.
    pub(crate) fn signal(&self, signal: &str) {
        let (_, pid) = self.running.as_ref().unwrap();
        let sent = Command::new("kill")
            .args([signal, &pid.to_string()])
            .status();
        assert!(sent.unwrap().success());
    }

    pub(crate) fn url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    /// The path of the socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.join("socket")
    }

    /// Returns a connection for commands of the test.
    pub(crate) fn connection(&self) -> redis::Connection {
        redis::Client::open(self.url())
            .unwrap()
            .get_connection()
            .unwrap()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Waits for an event, and returns what `look` finds then.
pub(crate) fn wait_for<T>(event: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = std::time::Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(std::time::Instant::now() < end, "{event}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

//! The program as a process of the tests: its arguments, its lines of output, and its end.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

pub(crate) fn tandem<S: AsRef<OsStr>>(arguments: &[S]) -> Command {
    // Another build of the program, for figures of speed.
    let program = std::env::var_os("TANDEM_TEST_PROGRAM");
    let mut command = Command::new(program.unwrap_or_else(|| env!("CARGO_BIN_EXE_tandem").into()));
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

pub(crate) fn run<S: AsRef<OsStr>>(arguments: &[S]) -> (bool, String, String) {
    let output = tandem(arguments).output().unwrap();
    (
        output.status.success(),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

pub(crate) fn file(name: &str, text: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("tandem-test-{}-{name}", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path
}

pub(crate) struct Process {
    pub(crate) child: Child,
    /// The address that the process reports for its listener.
    pub(crate) address: std::net::SocketAddr,
    pub(crate) stderr: BufReader<std::process::ChildStderr>,
    /// The log lines before the line with the address.
    pub(crate) before: String,
    /// The log line with the address.
    pub(crate) banner: String,
}

impl Process {
    pub(crate) fn start<S: AsRef<OsStr>>(arguments: &[S]) -> Self {
        Self::run(tandem(arguments))
    }

    pub(crate) fn run(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let mut process = Self {
            child,
            address: ([0, 0, 0, 0], 0).into(),
            stderr,
            before: String::new(),
            banner: String::new(),
        };
        let mut line = String::new();
        loop {
            line.clear();
            assert!(
                process.stderr.read_line(&mut line).unwrap() > 0,
                "it ended early"
            );
            if let Some((_, address)) = line
                .trim()
                .split_once("listening on ")
                .and_then(|(_, at)| at.split_once("://"))
            {
                process.address = address.parse().unwrap();
                process.banner = line;
                return process;
            }
            process.before.push_str(&line);
        }
    }

    /// Waits for a line with `text` and returns it.
    pub(crate) fn wait_for(&mut self, text: &str) -> String {
        let before = std::mem::take(&mut self.before);
        let mut lines = before.split_inclusive('\n');
        if let Some(line) = lines.find(|line| line.contains(text)) {
            self.before = lines.collect();
            return line.to_owned();
        }
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            assert!(
                self.stderr.read_line(&mut line).unwrap() > 0,
                "it ended before saying {text:?}"
            );
        }
        line
    }

    /// Reads the log in a thread, which returns all of it at the end of the process. A process with
    /// a full pipe would wait.
    pub(crate) fn collect_log(&self) -> std::thread::JoinHandle<String> {
        let mut log = self.before.clone().into_bytes();
        log.extend(self.banner.as_bytes());
        log.extend(self.stderr.buffer());
        let rest = self.stderr.get_ref().as_fd().try_clone_to_owned().unwrap();
        std::thread::spawn(move || {
            std::fs::File::from(rest).read_to_end(&mut log).unwrap();
            String::from_utf8(log).unwrap()
        })
    }

    /// Returns the log lines to come.
    pub(crate) fn rest(&mut self) -> &mut impl Read {
        &mut self.stderr
    }

    /// Ends the process with SIGKILL, so that it gets no chance to write anything.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends the process as its service manager does.
    pub(crate) fn stop(mut self) {
        self.signal("TERM");
        assert!(self.child.wait().unwrap().success());
    }

    pub(crate) fn signal(&self, name: &str) {
        assert!(
            Command::new("kill")
                .args([&format!("-{name}"), &self.child.id().to_string()])
                .status()
                .unwrap()
                .success()
        );
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

//! Helpers for tests with whole programs: finding them, reporting missing ones, scratch space.

#![allow(dead_code, reason = "every test binary uses its part of this")]

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Fails with the install command of missing programs, and without root.
pub(crate) fn require(programs: &[(&str, &str)]) {
    let missing: Vec<&str> = programs
        .iter()
        .filter(|(program, _)| find(program).is_none())
        .map(|(_, package)| *package)
        .collect();
    assert!(
        missing.is_empty(),
        "needed for this test: apt-get install {}",
        missing.join(" ")
    );
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let root = status
        .lines()
        .any(|line| line.starts_with("Uid:") && line.split_whitespace().nth(2) == Some("0"));
    assert!(root, "this test makes network namespaces: run it as root");
}

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let extra = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(extra)
        .map(|directory| directory.join(program))
        .find(|file| file.is_file())
}

/// The program under test: `TANDEM_BIN`, or built into the same directory as the test.
pub(crate) fn tandem() -> PathBuf {
    let Some(file) = std::env::var_os("TANDEM_BIN") else {
        return built("tandem", "tandem-cli");
    };
    let file = PathBuf::from(file);
    assert!(file.is_file(), "TANDEM_BIN: no {}", file.display());
    std::path::absolute(file).expect("a current directory")
}

/// A program of another package of the workspace, built into the same directory as the test.
pub(crate) fn built(program: &str, package: &str) -> PathBuf {
    let test = std::env::current_exe().expect("procfs");
    let directory = test.ancestors().nth(2).expect("target/PROFILE/deps/TEST");
    let file = directory.join(program);
    assert!(
        file.is_file(),
        "no {}: run `cargo build -p {package}` first",
        file.display()
    );
    file
}

/// A private directory, removed with this value.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tandem-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("temporary directory");
        Self(path)
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A program that is killed with this value.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a program to its end; standard output. Anything but success fails the test.
pub(crate) fn output(command: &mut Command) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = command
        .stdin(Stdio::null())
        .output()
        .expect("the program starts");
    let text = String::from_utf8_lossy(&stdout).into_owned();
    assert!(
        status.success(),
        "{command:?}: {status}\n{text}\n{}",
        String::from_utf8_lossy(&stderr)
    );
    text
}

/// Waits until `done` returns a value; fails after the limit and names the awaited event.
pub(crate) fn wait<T>(what: &str, limit: Duration, mut done: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(start.elapsed() < limit, "{what}: not after {limit:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

//! Compiles C programs against the library that cargo has built, and runs them.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};

use crate::client::IO_TIMEOUT;

/// Warnings are errors in all C code.
const STRICT: [&str; 4] = ["-Wall", "-Wextra", "-pedantic", "-Werror"];

/// Flags for the sanitizers of addresses and of undefined behaviour.
pub(crate) const SANITIZED: [&str; 2] =
    ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

/// The root of the crate.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The directory with the shared library of this build: that of the test program.
pub(crate) fn library_directory() -> PathBuf {
    let program = std::env::current_exe().expect("a test program has a path");
    let directory = program.parent().expect("a file is in a directory");
    assert!(
        directory.join("libmicrospdy.so").exists(),
        "cargo builds libmicrospdy.so beside the test program"
    );
    directory.to_path_buf()
}

/// A directory for the programs of a test.
pub(crate) fn scratch(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&path).expect("the target directory is writable");
    path
}

/// Runs a command that must succeed.
pub(crate) fn must(command: &mut Command, package: &str) -> String {
    let output = command.output().unwrap_or_else(|error| {
        panic!("{command:?} does not start ({error}); install it: apt-get install {package}")
    });
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The language of a compilation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    C99,
    Cpp,
}

/// Compiles a source file of the crate into a program that links the shared library.
pub(crate) fn compile(source: &str, language: Language, flags: &[&str], name: &str) -> PathBuf {
    let program = scratch("programs").join(name);
    let libraries = library_directory();
    // The loader looks for the soname. Tests that run at the same time replace the link by itself.
    let link = program.with_extension("so");
    let _ = std::fs::remove_file(&link);
    symlink(libraries.join("libmicrospdy.so"), &link).expect("a writable directory");
    std::fs::rename(&link, scratch("programs").join("libmicrospdy.so.0"))
        .expect("a writable directory");
    let mut command = match language {
        Language::C99 => Command::new("cc"),
        Language::Cpp => Command::new("c++"),
    };
    match language {
        Language::C99 => command.arg("-std=c99"),
        Language::Cpp => command.args(["-std=c++11", "-x", "c++"]),
    };
    command
        .args(STRICT)
        .args(flags)
        .arg("-g")
        .arg("-I")
        .arg(root().join("include"))
        .arg(root().join(source))
        .args(["-x", "none", "-o"])
        .arg(&program)
        .arg(libraries.join("libmicrospdy.so"))
        .arg(rpath(&scratch("programs")));
    must(&mut command, "g++");
    program
}

fn rpath(directory: &Path) -> String {
    format!("-Wl,-rpath,{}", directory.display())
}

/// A C program that runs until it is dropped.
pub(crate) struct Server {
    child: Child,
    lines: Receiver<String>,
    /// The port that it has printed.
    pub(crate) port: u16,
}

impl Server {
    /// Starts a program that prints `port N` first.
    pub(crate) fn start<A: AsRef<OsStr>>(program: &Path, arguments: &[A]) -> Self {
        let mut child = Command::new(program)
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program was compiled");
        let output = child.stdout.take().expect("it is piped");
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            BufReader::new(output)
                .lines()
                .map_while(Result::ok)
                .try_for_each(|line| sender.send(line))
        });
        let mut this = Self {
            child,
            lines,
            port: 0,
        };
        this.port = this.next_port();
        this
    }

    /// Reads the port of the next daemon.
    pub(crate) fn next_port(&mut self) -> u16 {
        let line = self.line();
        let port = line
            .strip_prefix("port ")
            .and_then(|port| port.parse().ok());
        port.unwrap_or_else(|| panic!("{line:?} is no port"))
    }

    /// Reads the next line that the program prints; empty at the end.
    pub(crate) fn line(&mut self) -> String {
        match self.lines.recv_timeout(IO_TIMEOUT) {
            Ok(line) => line.trim_end().to_owned(),
            Err(mpsc::RecvTimeoutError::Disconnected) => String::new(),
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("the program printed no line"),
        }
    }

    /// Returns the resident memory of the program in bytes, without files such as libraries: their
    /// pages are shared with the programs of other tests.
    pub(crate) fn memory(&self) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let text = std::fs::read_to_string(path).expect("the program runs");
        let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let size = line.and_then(|line| line.trim().strip_suffix(" kB"));
        size.and_then(|size| size.trim().parse::<u64>().ok())
            .expect("a size in kB")
            * 1024
    }

    /// Sends SIGTERM to the program.
    pub(crate) fn terminate(&self) {
        let id = self.child.id().to_string();
        must(
            Command::new("sh").args(["-c", &format!("kill {id}")]),
            "dash",
        );
    }

    /// Stops the program with SIGTERM, and checks that it ends well.
    pub(crate) fn stop(self) {
        self.terminate();
        self.wait();
    }

    /// Waits for the program, and checks that it ends well.
    pub(crate) fn wait(mut self) {
        let status = self.child.wait().expect("it is our child");
        assert!(status.success(), "the program ended with {status}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

//! How the programs of a measurement are called: nginx as origin, nghttpx, haproxy and our own
//! gateway as proxies, h2load as load.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use super::testbed::{Program, Testbed};
use super::{BenchError, Size, browser};
use tandem_net::netns::Netns;

/// Finds a program on the search path and where distributions keep servers.
pub fn find(program: &'static str, package: &'static str) -> Result<PathBuf, BenchError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    let mut files = places.map(|place| place.join(program));
    files
        .find(|file| file.is_file())
        .ok_or(BenchError::Missing { program, package })
}

/// Checks that the shell finds the program of a command. `install` is the remedy, if there is one.
pub fn find_command(command: &str, install: &str) -> Result<(), BenchError> {
    let program = command.split_whitespace().next().unwrap_or_default();
    let found = Command::new("/bin/sh")
        .args(["-c", &format!("command -v {program}")])
        .stdout(Stdio::null())
        .status()
        .map_err(BenchError::system("start a shell"))?;
    if found.success() {
        return Ok(());
    }
    let remedy = match install {
        "" => "the experiment does not tell how to get it",
        install => install,
    };
    Err(BenchError::NotFound {
        program: program.to_owned(),
        remedy: remedy.to_owned(),
    })
}

/// The program under test: as given, or beside this one.
pub fn tandem(given: Option<&Path>) -> Result<PathBuf, BenchError> {
    let beside = || std::env::current_exe().map(|own| own.with_file_name("tandem"));
    let file = given
        .map_or_else(beside, std::path::absolute)
        .map_err(BenchError::system("find the tandem program"))?;
    if file.is_file() {
        Ok(file)
    } else {
        Err(BenchError::NoTandem(file.display().to_string()))
    }
}

/// An HTTP/1.1 origin: nginx in one process.
#[derive(Debug)]
pub struct Origin {
    /// The address on which it listens.
    pub address: SocketAddr,
    /// Lines of its `server` block.
    pub lines: String,
    /// Directory of its files.
    pub root: PathBuf,
}

impl Origin {
    /// Starts it.
    pub fn start(
        &self,
        testbed: &Testbed,
        core: Option<usize>,
        network: Option<&Netns>,
    ) -> Result<u32, BenchError> {
        let program = find("nginx", "nginx-light")?;
        let configuration = testbed.write("nginx.conf", self.configuration(testbed.directory()))?;
        let mut command = Command::new(program);
        command
            .arg("-e")
            .arg(testbed.directory().join("nginx-error.log"));
        command
            .arg("-p")
            .arg(testbed.directory())
            .arg("-c")
            .arg(configuration);
        let pid = testbed.start(Program {
            name: "nginx",
            command,
            core,
            network,
        })?;
        testbed.wait_for(pid, "nginx", self.address, network)?;
        Ok(pid)
    }

    fn configuration(&self, directory: &Path) -> String {
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|name| format!("  {name}_temp_path {}/nginx-{name};\n", directory.display()))
            .collect();
        format!(
            "daemon off;\nmaster_process off;\npid {directory}/nginx.pid;\nworker_rlimit_nofile 16384;\n\
             events {{ worker_connections 16000; }}\nhttp {{\n{temporary}  access_log off;\n  sendfile on;\n  tcp_nopush on;\n  \
             types {{ image/jpeg jpg; }}\n  default_type application/octet-stream;\n  open_file_cache max=1000;\n  \
             keepalive_requests 100000000;\n  keepalive_timeout 600s;\n  server {{\n    listen {address};\n    root {root};\n    {lines}\n  }}\n}}\n",
            directory = directory.display(),
            address = self.address,
            root = self.root.display(),
            lines = self.lines,
        )
    }
}

/// Returns the flag with which a client takes no compressed bodies, unless `options` decide on
/// that. The bodies of recorded pages are as long as the compressed ones were, and must cross the
/// path so.
pub fn without_compression(options: &[String]) -> Option<&'static str> {
    let decides = |option: &String| option.starts_with("--compress");
    (!options.iter().any(decides)).then_some("--compress=off")
}

/// Files of random bytes, named by their sizes; says their directory.
pub fn write_files(testbed: &Testbed, sizes: &[Size]) -> Result<PathBuf, BenchError> {
    for size in sizes {
        testbed.write(&format!("files/{}", size.0), noise(size.0))?;
    }
    Ok(testbed.directory().join("files"))
}

/// The files that [`browser::requests`] ask for, each changed at another time; says their
/// directory.
pub fn write_site(testbed: &Testbed, size: Size) -> Result<PathBuf, BenchError> {
    let body = noise(size.0);
    for resource in 0..browser::RESOURCES {
        let file = testbed.write(&format!("site{}", browser::path(resource)), &body)?;
        let changed =
            SystemTime::UNIX_EPOCH + Duration::from_secs(1_750_000_000 + 86_413 * resource as u64);
        let set = std::fs::File::options()
            .write(true)
            .open(&file)
            .and_then(|file| file.set_modified(changed));
        set.map_err(BenchError::system(format!(
            "set the time of {}",
            file.display()
        )))?;
    }
    Ok(testbed.directory().join("site"))
}

/// Bytes that do not compress, the same every time.
fn noise(size: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(&mut next).take(size).collect()
}

/// A proxy that takes HTTP/2 without TLS and asks an HTTP/1.1 origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Proxy {
    /// Our gateway.
    Tandem,
    /// nghttp2's proxy.
    Nghttpx,
    /// HAProxy.
    Haproxy,
}

impl Proxy {
    /// Returns the proxy's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tandem => "tandem",
            Self::Nghttpx => "nghttpx",
            Self::Haproxy => "haproxy",
        }
    }

    /// How it is called to listen on one address and ask another, with one thread of work.
    pub fn command(
        self,
        testbed: &Testbed,
        tandem: &Path,
        listen: SocketAddr,
        origin: SocketAddr,
    ) -> Result<Command, BenchError> {
        match self {
            Self::Tandem => Ok(gateway(tandem, &format!("h2+tcp://{listen}"), origin)),
            Self::Nghttpx => nghttpx(
                &format!("{},{};no-tls", listen.ip(), listen.port()),
                &backend(origin),
                testbed,
            ),
            Self::Haproxy => haproxy(testbed, listen, origin),
        }
    }
}

/// Our gateway in front of one origin, for everyone, on one thread.
pub fn gateway(tandem: &Path, listen: &str, origin: SocketAddr) -> Command {
    let mut command = Command::new(tandem);
    command.args([
        "gateway",
        "--workers",
        "1",
        "--open",
        "--max-connections",
        "16384",
    ]);
    command.args(["--max-connections-per-client", "16384", "--listen", listen]);
    command
        .args(["--allow-host", "*", "--mode"])
        .arg(format!("reverse=http://{origin}"));
    command
}

/// An nghttpx backend that speaks HTTP/1.1.
pub fn backend(origin: SocketAddr) -> String {
    format!("{},{}", origin.ip(), origin.port())
}

/// nghttpx with one worker and in one process, so that ending that ends all; its CPU time is the
/// same as of two.
pub fn nghttpx(frontend: &str, backend: &str, testbed: &Testbed) -> Result<Command, BenchError> {
    let mut command = Command::new(find("nghttpx", "nghttp2-proxy")?);
    command.args([
        "--conf=/dev/null",
        "--single-process",
        "--workers=1",
        "--rlimit-nofile=16384",
    ]);
    command.arg(format!(
        "--pid-file={}",
        testbed.directory().join("nghttpx.pid").display()
    ));
    command
        .arg(format!("-f{frontend}"))
        .arg(format!("-b{backend}"));
    Ok(command)
}

fn haproxy(
    testbed: &Testbed,
    listen: SocketAddr,
    origin: SocketAddr,
) -> Result<Command, BenchError> {
    let text = format!(
        "global\n nbthread 1\n maxconn 8000\ndefaults\n mode http\n http-reuse always\n timeout connect 30s\n timeout client 600s\n \
         timeout server 600s\nfrontend in\n bind {listen} proto h2\n default_backend out\nbackend out\n server origin {origin}\n"
    );
    let configuration = testbed.write("haproxy.cfg", text)?;
    let mut command = Command::new(find("haproxy", "haproxy")?);
    command.arg("-db").arg("-f").arg(configuration);
    Ok(command)
}

/// A run of h2load over HTTP/2 without TLS, on one thread.
#[derive(Clone, Debug)]
pub struct H2load {
    /// Requests in all.
    pub requests: usize,
    /// Connections.
    pub connections: usize,
    /// Requests in flight on each.
    pub streams: usize,
}

/// The counts of h2load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct H2loadCounts {
    /// Answered with 2xx, to the end of the body.
    pub succeeded: usize,
    /// Requests per second.
    pub rate: f64,
}

impl H2load {
    /// Runs it to its end.
    pub fn run(
        &self,
        testbed: &Testbed,
        core: Option<usize>,
        url: &str,
    ) -> Result<H2loadCounts, BenchError> {
        let mut command = Command::new(find("h2load", "nghttp2-client")?);
        command
            .arg("-t1")
            .arg(format!("-c{}", self.connections))
            .arg(format!("-m{}", self.streams));
        command.arg(format!("-n{}", self.requests)).arg(url);
        let text = testbed.run(Program {
            name: "h2load",
            command,
            core,
            network: None,
        })?;
        counted(&text).ok_or_else(|| BenchError::Program {
            program: "h2load".into(),
            problem: "wrote something unknown".into(),
            log: text,
        })
    }
}

/// Reads h2load's report. Answers without a reason phrase (HAProxy's) count as failed there, but as
/// done with 2xx.
fn counted(text: &str) -> Option<H2loadCounts> {
    let finished = text
        .lines()
        .find_map(|line| line.strip_prefix("finished in "))?;
    let rate = finished
        .split(", ")
        .nth(1)?
        .strip_suffix(" req/s")?
        .parse()
        .ok()?;
    let requests = text
        .lines()
        .find_map(|line| line.strip_prefix("requests: "))?;
    let codes = text
        .lines()
        .find_map(|line| line.strip_prefix("status codes: "))?;
    let number = |line: &str, name: &str| -> Option<usize> {
        line.split(", ")
            .find_map(|part| part.strip_suffix(name))?
            .trim()
            .parse()
            .ok()
    };
    Some(H2loadCounts {
        succeeded: number(requests, " done")?.min(number(codes, " 2xx")?),
        rate,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_h2loads_report() {
        let text = "starting benchmark...\n\nfinished in 1.05s, 1905.11 req/s, 2.11MB/s\n\
                    requests: 2000 total, 2000 started, 1998 done, 1990 succeeded, 10 failed, 2 errored, 0 timeout\n\
                    status codes: 1995 2xx, 0 3xx, 0 4xx, 3 5xx\n";
        assert_eq!(
            counted(text),
            Some(H2loadCounts {
                succeeded: 1995,
                rate: 1905.11
            })
        );
        assert_eq!(counted("finished in 0us, 0.00 req/s\n"), None);
    }

    #[test]
    fn noise_does_not_repeat() {
        let noise = noise(4096);
        assert_eq!(noise.len(), 4096);
        assert!(
            noise
                .chunks(64)
                .collect::<std::collections::BTreeSet<_>>()
                .len()
                == 64
        );
    }

    #[test]
    fn missing_programs_say_where_they_come_from() {
        let error = find("no-such-program", "no-such-package")
            .expect_err("not there")
            .to_string();
        assert_eq!(
            error,
            "no-such-program is not installed: apt-get install no-such-package"
        );
        let error = tandem(Some(Path::new("/nonexistent/tandem")))
            .expect_err("not there")
            .to_string();
        assert!(error.contains("cargo build"), "{error}");
    }
}

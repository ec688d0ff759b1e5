//! The run directory: everything that is needed to look at a network and to remove it, also after
//! its supervisor was killed.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::TornetError;
use super::layout::Node;
use tandem_net::emulator::report::Snapshot;

/// How far a network is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Coming up.
    Starting,
    /// Carrying traffic.
    Ready,
    /// Given up, for this reason.
    Failed(String),
}

/// A process that can be recognised although ids are used again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// The kind of program: `tor`, `gateway`, `origin`, `supervisor`.
    pub program: String,
    /// The node on which it runs.
    pub node: String,
    /// The process id.
    pub pid: u32,
    /// When the kernel started it, in ticks since boot.
    pub started: u64,
}

impl Process {
    /// A running process.
    pub fn new(program: &str, node: &str, pid: u32) -> Self {
        Self {
            program: program.into(),
            node: node.into(),
            pid,
            started: start_time(pid).unwrap_or(0),
        }
    }

    /// Returns true if this process still runs, and its id was not reused.
    pub fn is_alive(&self) -> bool {
        start_time(self.pid).is_some_and(|started| started == self.started)
    }
}

/// Field 22 of /proc/PID/stat; none for zombies.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses and may contain anything.
    let mut fields = stat.get(stat.rfind(')')? + 2..)?.split(' ');
    if matches!(fields.next()?, "Z" | "X") {
        None
    } else {
        fields.nth(18)?.parse().ok()
    }
}

/// The recorded state of a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The network's name, unique on this machine.
    pub instance: String,
    /// The progress of the network.
    pub phase: Phase,
    /// The process that holds the emulator; all programs end with it.
    pub supervisor: Process,
    /// Hosts and their namespaces.
    pub nodes: Vec<Node>,
    /// Everything started.
    pub processes: Vec<Process>,
    /// The addresses of the network's services.
    pub endpoints: Endpoints,
    /// The one-way delay between Tor nodes, in milliseconds.
    pub delay_ms: u64,
    /// The one-way delay between exit and web host, in milliseconds.
    pub web_delay_ms: u64,
    /// True if the client uses Conflux.
    pub conflux: bool,
}

/// The addresses of the network's services. They are addresses inside the client's namespace;
/// sockets are files, which any namespace can use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoints {
    /// Namespace of the client.
    pub client_namespace: String,
    /// SOCKS5 address in it.
    pub socks: String,
    /// The same as a unix socket.
    pub socks_socket: PathBuf,
    /// Control port in the client's namespace.
    pub control: String,
    /// The same as a unix socket.
    pub control_socket: PathBuf,
    /// HTTP CONNECT proxy in the client's namespace.
    pub http_tunnel: String,
    /// The gateway beside the exit.
    pub exit_gateway: Option<String>,
    /// Fingerprint of that exit.
    pub exit_fingerprint: String,
    /// The onion service's name: port 80 is the origin, port 9980 the gateway.
    pub onion: Option<String>,
    /// Sites on the web host.
    pub sites: Vec<SiteEndpoint>,
    /// The onion services besides the first one.
    #[serde(default)]
    pub onions: Vec<OnionEndpoint>,
}

impl Endpoints {
    /// Returns the name of an onion service that serves a page and has no gateway at port 80.
    pub fn onion_of(&self, page: &str) -> Option<&str> {
        let first = self.sites.first().filter(|site| site.page == page);
        if let (Some(_), Some(onion)) = (first, &self.onion) {
            return Some(onion);
        }
        let mut others = self.onions.iter();
        let other = others.find(|site| site.page == page && !site.has_gateway);
        other.map(|site| site.host.as_str())
    }
}

/// An onion service with a page, port 80.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnionEndpoint {
    /// The name of the service.
    pub host: String,
    /// The page that it serves.
    pub page: String,
    /// True if the service has a gateway at port 9980, which announces itself.
    pub has_gateway: bool,
}

/// A site on the web host, port 80.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SiteEndpoint {
    /// The site's name.
    pub host: String,
    /// The site's address.
    pub address: std::net::Ipv4Addr,
    /// The page that it serves. The onion service serves the page of the first site.
    pub page: String,
}

/// A directory that only its owner can read.
#[derive(Clone, Debug)]
pub struct RunDirectory(PathBuf);

impl RunDirectory {
    /// The directory of an instance, which need not exist.
    pub fn of(instance: &str) -> Result<Self, TornetError> {
        let plain = !instance.is_empty()
            && instance.len() <= 16
            && instance
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        if !plain {
            return Err(TornetError::State(format!(
                "instance {instance:?}: 1 to 16 lower-case letters and digits"
            )));
        }
        let runtime = std::env::var_os("XDG_RUNTIME_DIR")
            .map(PathBuf::from)
            .filter(|dir| dir.is_absolute());
        let name = format!("tandem-tornet-{instance}");
        Ok(Self(runtime.unwrap_or_else(|| "/tmp".into()).join(name)))
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Makes it; it must not exist yet.
    pub fn create(&self) -> Result<(), TornetError> {
        let action = || TornetError::of(format!("make {}", self.0.display()));
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&self.0)
            .map_err(action())
    }

    /// Returns true if it exists. A directory that belongs to another user, or that others can
    /// open, is an error.
    pub fn exists(&self) -> Result<bool, TornetError> {
        let meta = match fs::symlink_metadata(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            result => result.map_err(TornetError::of(format!("look at {}", self.0.display())))?,
        };
        let own = fs::metadata("/proc/self").map(|me| me.uid()).unwrap_or(0);
        if meta.is_dir() && meta.uid() == own && meta.permissions().mode() & 0o077 == 0 {
            Ok(true)
        } else {
            Err(TornetError::State(format!(
                "{} is not a private directory of ours; remove it",
                self.0.display()
            )))
        }
    }

    /// Removes it and everything in it.
    pub fn remove(&self) -> Result<(), TornetError> {
        match fs::remove_dir_all(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(TornetError::of(format!(
                "remove {}",
                self.0.display()
            ))(error)),
            _ => Ok(()),
        }
    }

    /// Returns the path of the supervisor's log, which it writes in the background.
    pub fn log_file(&self) -> PathBuf {
        self.0.join("up.log")
    }

    /// The socket on which the supervisor gives its counters.
    pub fn status_socket(&self) -> PathBuf {
        self.0.join("status")
    }

    fn state_file(&self) -> PathBuf {
        self.0.join("state.json")
    }

    /// Writes the state, so that a reader finds the old or the new one whole.
    pub fn save(&self, state: &State) -> Result<(), TornetError> {
        let file = self.state_file();
        let fresh = file.with_extension("new");
        let text = serde_json::to_vec_pretty(state).map_err(io::Error::from);
        let written = text
            .and_then(|text| fs::write(&fresh, text))
            .and_then(|()| fs::rename(&fresh, &file));
        written.map_err(TornetError::of(format!("write {}", file.display())))
    }

    /// Reads the state; none when there is no network or it never got that far.
    pub fn load(&self) -> Result<Option<State>, TornetError> {
        if !self.exists()? {
            return Ok(None);
        }
        let file = self.state_file();
        let text = match fs::read(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            result => result.map_err(TornetError::of(format!("read {}", file.display())))?,
        };
        let state = serde_json::from_slice(&text).map_err(io::Error::from);
        state
            .map(Some)
            .map_err(TornetError::of(format!("understand {}", file.display())))
    }

    /// The supervisor and everything it started, also from the state of another version of this
    /// program.
    pub fn processes(&self) -> Vec<Process> {
        #[derive(Deserialize)]
        struct Processes {
            supervisor: Process,
            processes: Vec<Process>,
        }
        let text = fs::read(self.state_file()).unwrap_or_default();
        let known = serde_json::from_slice(&text).ok();
        known.map_or_else(
            Vec::new,
            |Processes {
                 supervisor,
                 processes,
             }| [vec![supervisor], processes].concat(),
        )
    }

    /// Counters of the emulated links, from the supervisor.
    pub fn counters(&self) -> Result<Snapshot, TornetError> {
        let ask = || -> io::Result<Snapshot> {
            let mut stream = UnixStream::connect(self.status_socket())?;
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            let mut text = Vec::new();
            stream.read_to_end(&mut text)?;
            Ok(serde_json::from_slice(&text)?)
        };
        ask().map_err(TornetError::of("ask the supervisor for its counters"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_start_too() {
        let own = Process::new("test", "here", std::process::id());
        assert!(own.is_alive());
        assert!(
            !Process {
                started: own.started + 1,
                ..own
            }
            .is_alive()
        );
    }

    #[test]
    fn onion_of_a_page_has_no_gateway_at_its_port() {
        let site = |host: &str, page: &str| SiteEndpoint {
            host: host.into(),
            address: std::net::Ipv4Addr::LOCALHOST,
            page: page.into(),
        };
        let onion = |host: &str, page: &str, has_gateway| OnionEndpoint {
            host: host.into(),
            page: page.into(),
            has_gateway,
        };
        let endpoints = Endpoints {
            onion: Some("first.onion".into()),
            sites: vec![site("site1.test", "a"), site("site2.test", "b")],
            onions: vec![onion("x.onion", "b", true), onion("y.onion", "b", false)],
            ..Endpoints::default()
        };
        assert_eq!(endpoints.onion_of("a"), Some("first.onion"));
        assert_eq!(endpoints.onion_of("b"), Some("y.onion"));
        assert_eq!(endpoints.onion_of("c"), None);
    }

    #[test]
    fn instances_have_plain_names() {
        for name in ["", "a-b", "../x", "UP", "averyveryverylongname"] {
            RunDirectory::of(name).expect_err(name);
        }
        RunDirectory::of("tor2").expect("plain");
    }

    #[test]
    fn processes_are_found_in_states_of_other_versions() {
        let path = std::env::temp_dir().join(format!("tandem-oldstate-{}", std::process::id()));
        let directory = RunDirectory(path.clone());
        directory.create().expect("fresh");
        let process = Process::new("tor", "exit", std::process::id());
        let old =
            serde_json::json!({ "supervisor": process, "processes": [process], "unknown": 1 });
        fs::write(directory.state_file(), old.to_string()).expect("ours");
        directory.load().expect_err("not today's state");
        assert_eq!(directory.processes(), [process.clone(), process]);
        fs::write(directory.state_file(), "{").expect("ours");
        assert_eq!(directory.processes(), []);
        directory.remove().expect("ours");
    }

    #[test]
    fn a_directory_open_to_others_is_refused() {
        let path = std::env::temp_dir().join(format!("tandem-rundir-{}", std::process::id()));
        let directory = RunDirectory(path.clone());
        assert!(!directory.exists().expect("absent"));
        directory.create().expect("fresh");
        assert!(directory.exists().expect("private"));
        directory.create().expect_err("exists already");
        assert_eq!(directory.load().expect("nothing saved"), None);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("ours");
        directory.exists().expect_err("open");
        directory.remove().expect("ours");
        directory.remove().expect("already gone");
    }
}

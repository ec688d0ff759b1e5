//! Named network namespaces, made and removed with `ip netns`, and the files that programs in them
//! resolve by.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::keys::run;
use super::layout::{Node, Role};
use super::{TornetError, find_program};
use tandem_net::netns::NAMED;

/// The directory in which `ip netns exec` finds replacements for files in /etc.
const ETC: &str = "/etc/netns";

/// The program `ip`.
pub fn ip() -> Result<PathBuf, TornetError> {
    find_program("ip", "install it with: apt-get install iproute2")
}

/// Makes a node's namespace.
pub fn create(ip: &Path, node: &Node) -> Result<(), TornetError> {
    run(
        Command::new(ip).args(["netns", "add", &node.namespace]),
        b"",
    )?;
    let etc = Path::new(ETC).join(&node.namespace);
    let write = || -> io::Result<()> {
        fs::create_dir_all(&etc)?;
        fs::write(etc.join("resolv.conf"), resolver(node))?;
        fs::write(etc.join("hosts"), "127.0.0.1 localhost\n")
    };
    write().map_err(TornetError::of(format!("write {}", etc.display())))
}

/// Returns the resolver of a node. A client must not resolve names, so its resolver is an address
/// without a server.
fn resolver(node: &Node) -> &'static str {
    match node.role {
        Role::Client => {
            "# Names go through Tor; nothing listens here.\nnameserver 127.0.0.1\noptions timeout:1 attempts:1\n"
        }
        _ => "nameserver 127.0.0.1\noptions timeout:1\n",
    }
}

/// Names of existing namespaces that begin with `prefix`, and of leftover files for such.
pub fn existing(prefix: &str) -> Vec<String> {
    let mut names: Vec<String> = [NAMED, ETC]
        .iter()
        .filter_map(|dir| fs::read_dir(dir).ok())
        .flat_map(|entries| entries.filter_map(Result::ok))
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with(prefix))
        .collect();
    names.sort();
    names.dedup();
    names
}

/// Returns the processes in a namespace, from the kernel's process list.
pub fn inhabitants(name: &str) -> Vec<u32> {
    let Ok(netns) = fs::metadata(Path::new(NAMED).join(name)) else {
        return Vec::new();
    };
    let inside = |pid: &u32| {
        fs::metadata(format!("/proc/{pid}/ns/net")).is_ok_and(|own| own.ino() == netns.ino())
    };
    let entries = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(Result::ok);
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(inside).collect()
}

/// Removes a namespace and its files, as far as they exist.
pub fn remove(ip: &Path, name: &str) -> Result<(), TornetError> {
    if Path::new(NAMED).join(name).exists() {
        run(Command::new(ip).args(["netns", "delete", name]), b"")?;
    }
    let etc = Path::new(ETC).join(name);
    match fs::remove_dir_all(&etc) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(TornetError::of(format!("remove {}", etc.display()))(error))
        }
        _ => {
            // Only succeeds when it was the last.
            let _ = fs::remove_dir(ETC);
            Ok(())
        }
    }
}

//! The link emulator: network namespaces joined by links that delay, lose and queue real packets.
//!
//! - [`router`]: hosts, routers and links in virtual time, without I/O.
//! - [`engine`]: the thread that moves packets between TUN devices and the router by the clock.
//! - [`port`]: a host's TUN device, its addresses and routes.
//! - [`capture`]: pcap files. [`report`]: counters for people and programs. [`counters`]: the same for the command itself.
//! - [`relay`]: the network around, where no device may be added to it.
//! - [`topology`]: networks described by a TOML file. [`network`]: a topology made real.
//! - [`rtnl`]: addresses and routes. [`sys`]: system calls, the only unsafe code.

pub mod capture;
pub mod counters;
pub mod engine;
pub mod network;
pub mod port;
pub mod relay;
pub mod report;
pub mod router;
pub mod rtnl;
#[expect(unsafe_code, reason = "system calls that the standard library does not offer; each use says why it is sound")]
pub mod sys;
pub mod topology;

use std::io;

pub use engine::{Emulator, Options};
pub use port::Port;
pub use report::Snapshot;
pub use router::{NodeId, Plan, Router};

/// Why an emulated network could not be set up.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action}: {source}{}", hint(.source))]
pub struct EmulatorError {
    action: String,
    source: io::Error,
}

impl EmulatorError {
    /// An I/O error and what was being done.
    pub fn new(action: impl Into<String>, source: io::Error) -> Self {
        Self { action: action.into(), source }
    }

    /// For `map_err`.
    pub fn of(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        |source| Self { action, source }
    }

    /// What kind of failure the system reported.
    pub fn kind(&self) -> io::ErrorKind {
        self.source.kind()
    }
}

fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            " (needs root or CAP_NET_ADMIN, or user namespaces: see sysctl user.max_user_namespaces and \
             kernel.apparmor_restrict_unprivileged_userns)"
        }
        Some(libc::ENOSPC) => " (namespaces: the limit user.max_net_namespaces is reached; files: the disk is full)",
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => " (is the TUN driver there? modprobe tun; /dev/net/tun)",
        _ => "",
    }
}

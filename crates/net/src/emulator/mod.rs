//! The link emulator: network namespaces joined by links that delay, lose and queue real packets.
//!
//! - [`router`]: hosts, routers and links in virtual time, without I/O.
//! - [`engine`]: the thread that moves packets between TUN devices and the router by the clock.
//! - [`port`]: a host's TUN device, its addresses and routes.
//! - [`capture`]: pcap files. [`report`]: counters for people and programs. [`counters`]: the same
//!   for the command itself.
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
#[expect(
    unsafe_code,
    reason = "system calls that the standard library does not offer; each use says why it is sound"
)]
pub mod sys;
pub mod topology;

use std::io;

pub use engine::{Emulator, Options};
pub use port::Port;
pub use report::Snapshot;
pub use router::{NodeId, Plan, Router};

/// An error in the setup of an emulated network.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action}: {source}{}", hint(.action, .source))]
pub struct EmulatorError {
    action: String,
    source: io::Error,
}

impl EmulatorError {
    /// Creates an error from an I/O error and the action that failed.
    pub fn new(action: impl Into<String>, source: io::Error) -> Self {
        Self {
            action: action.into(),
            source,
        }
    }

    /// Returns a conversion for `map_err`.
    pub fn of(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        |source| Self { action, source }
    }

    /// Returns the kind of failure that the system reported.
    pub fn kind(&self) -> io::ErrorKind {
        self.source.kind()
    }
}

/// Returns advice on the cause. Errors of plain files need no advice beyond the system's text.
fn hint(action: &str, error: &io::Error) -> &'static str {
    if action.starts_with("read ") || action.starts_with("write ") {
        return "";
    }
    match error.raw_os_error() {
        Some(libc::EACCES) if action.contains("TUN") => {
            " (users need /dev/net/tun open to them, as udev leaves it: chmod 666 /dev/net/tun)"
        }
        Some(libc::EPERM | libc::EACCES) => {
            " (needs root or CAP_NET_ADMIN, or user namespaces: see sysctl user.max_user_namespaces and \
             kernel.apparmor_restrict_unprivileged_userns)"
        }
        Some(libc::ENOSPC) => {
            " (no more namespaces: see sysctl user.max_net_namespaces and user.max_user_namespaces)"
        }
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
            " (is the TUN driver there? modprobe tun; /dev/net/tun)"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_fit_what_was_being_done() {
        let said = |action: &str, code| {
            EmulatorError::new(action, io::Error::from_raw_os_error(code)).to_string()
        };
        assert!(said("set up TUN device tandem0", libc::ENOENT).contains("modprobe tun"));
        assert!(said("set up TUN device tandem0", libc::EACCES).contains("chmod 666 /dev/net/tun"));
        assert!(said("set up TUN device tandem0", libc::EPERM).contains("CAP_NET_ADMIN"));
        assert!(said("make a network namespace", libc::EPERM).contains("CAP_NET_ADMIN"));
        assert!(said("make a user namespace", libc::ENOSPC).contains("user.max_user_namespaces"));
        for code in [libc::ENOENT, libc::EACCES, libc::ENOSPC] {
            let plain = io::Error::from_raw_os_error(code);
            assert_eq!(
                said("read net.toml", code),
                format!("cannot read net.toml: {plain}")
            );
        }
    }
}

//! Network namespaces: unnamed ones that vanish with their last user, and those that `ip netns`
//! names.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::thread;

use crate::emulator::sys;

/// The directory in which iproute2 keeps named namespaces.
pub const NAMED: &str = "/run/netns";

/// A network namespace, held open.
#[derive(Debug)]
pub struct Netns(File);

impl Netns {
    /// A new one without a name: it ends when the last file, socket or process in it does.
    pub fn unnamed() -> io::Result<Self> {
        on_own_thread(|| {
            sys::unshare(sys::UnshareFlags::NEWNET)?;
            Self::current()
        })
    }

    /// The calling thread's.
    pub fn current() -> io::Result<Self> {
        File::open("/proc/thread-self/ns/net").map(Self)
    }

    /// Opens a namespace that `ip netns add` made.
    pub fn named(name: &str) -> io::Result<Self> {
        File::open(Path::new(NAMED).join(name)).map(Self)
    }

    /// The same namespace, held open once more.
    pub fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Runs `work` on a new thread inside the namespace. Sockets and files that it opens stay in
    /// the namespace; children that it spawns must not depend on the lifetime of that thread.
    pub fn run<R: Send>(&self, work: impl FnOnce() -> io::Result<R> + Send) -> io::Result<R> {
        on_own_thread(|| {
            sys::enter_network(self.0.as_fd())?;
            work()
        })
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn on_own_thread<R: Send>(work: impl FnOnce() -> io::Result<R> + Send) -> io::Result<R> {
    let joined = thread::scope(|scope| scope.spawn(work).join());
    joined.unwrap_or_else(|_| {
        Err(io::Error::other(
            "a helper thread in a network namespace panicked",
        ))
    })
}

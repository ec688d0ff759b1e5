//! The system calls that have no safe form in the standard library: TUN devices, namespaces,
//! `ppoll`, scheduling, and the steps of a child between `fork` and `exec`. It is the only unsafe
//! code of this crate.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

/// Longest name of an interface, without the closing zero.
const NAME_MAX: usize = libc::IFNAMSIZ - 1;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Makes a TUN device in the calling thread's network namespace: one IP packet per read and write,
/// no header before it, never blocking. The device lives as long as the file.
pub fn open_tun(name: &str) -> io::Result<File> {
    if name.is_empty() || name.len() > NAME_MAX || name.contains(['%', '\0']) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "bad interface name",
        ));
    }
    let tun = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")?;
    // SAFETY: ifreq is plain data for which all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the descriptor is open, and TUNSETIFF reads and writes one ifreq, which outlives the
    // call.
    check(unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) })?;
    Ok(tun)
}

/// Moves the calling thread (or process, for [`libc::CLONE_NEWUSER`]) into new namespaces.
pub fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: takes no pointers; affects only kernel state of the calling thread.
    check(unsafe { libc::unshare(flags) }).map(drop)
}

/// Moves the calling thread into the namespace behind a file, which must be of the kind `flag`
/// says.
pub fn setns(namespace: BorrowedFd<'_>, flag: libc::c_int) -> io::Result<()> {
    // SAFETY: takes no pointers; the descriptor is borrowed and so open.
    check(unsafe { libc::setns(namespace.as_raw_fd(), flag) }).map(drop)
}

/// Waits until one of `files` is readable or a time has passed; says which are readable (or closed
/// at the other end).
pub fn wait_readable(
    files: &[BorrowedFd<'_>],
    timeout: Option<Duration>,
    ready: &mut Vec<bool>,
) -> io::Result<()> {
    let entry = |fd: &BorrowedFd<'_>| libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let mut entries: Vec<libc::pollfd> = files.iter().map(entry).collect();
    let time = timeout.map(|t| libc::timespec {
        tv_sec: t.as_secs().min(1 << 30) as libc::time_t,
        tv_nsec: libc::c_long::from(t.subsec_nanos() as i32),
    });
    let pointer = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `entries` holds as many pollfds as its length says, `pointer` is null or a timespec
    // that outlives the call, and a null signal mask is allowed.
    let result = check(unsafe {
        libc::ppoll(
            entries.as_mut_ptr(),
            entries.len() as libc::nfds_t,
            pointer,
            std::ptr::null(),
        )
    });
    ready.clear();
    ready.extend(entries.iter().map(|entry| entry.revents != 0));
    match result {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => {
            ready.fill(false);
            Ok(())
        }
        result => result.map(drop),
    }
}

/// Gives the calling thread real-time priority: first in, first out, above everything ordinary.
pub fn use_realtime(priority: i32) -> io::Result<()> {
    let parameter = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: the parameter outlives the call; 0 means the calling thread.
    check(unsafe {
        libc::sched_setscheduler(
            0,
            libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK,
            &raw const parameter,
        )
    })?;
    Ok(())
}

/// Gives the calling thread the lowest class, `SCHED_IDLE`: it runs only on processors that no
/// other thread wants, and gives way to a thread that wakes. Threads that it starts inherit this.
pub fn use_idle() -> io::Result<()> {
    let parameter = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameter outlives the call; 0 means the calling thread.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameter) })?;
    Ok(())
}

/// Lets timers of the calling thread fire as exactly as the kernel can.
pub fn use_exact_timers() -> io::Result<()> {
    // SAFETY: this option takes a number and no pointer.
    check(unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong) }).map(drop)
}

/// Returns true if this process may administer the network of its namespace: it has the effective
/// capability CAP_NET_ADMIN.
pub fn may_administer_network() -> bool {
    const CAP_NET_ADMIN: u64 = 12;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .is_some_and(|set| set >> CAP_NET_ADMIN & 1 == 1)
}

/// The steps of a child before it runs its program.
#[derive(Clone, Copy, Default)]
pub struct ChildSetup<'a> {
    /// Network namespace to enter.
    pub network: Option<BorrowedFd<'a>>,
    /// Gets SIGKILL when the thread that spawned it ends, however that happens.
    pub die_with_parent: bool,
    /// Starts a new session, so that signals from the terminal do not reach the child.
    pub own_session: bool,
}

/// Adds the setup to a command. The namespace must stay open until the command is spawned.
pub fn prepare(command: &mut Command, setup: ChildSetup<'_>) {
    let network: Option<RawFd> = setup.network.map(|fd| fd.as_raw_fd());
    let ChildSetup {
        die_with_parent,
        own_session,
        ..
    } = setup;
    let enter = move || {
        if own_session {
            // SAFETY: async-signal-safe, no pointers.
            check(unsafe { libc::setsid() })?;
        }
        if let Some(fd) = network {
            // SAFETY: async-signal-safe, no pointers.
            check(unsafe { libc::setns(fd, libc::CLONE_NEWNET) })?;
        }
        if die_with_parent {
            // SAFETY: async-signal-safe, no pointers.
            check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong) })?;
        }
        Ok(())
    };
    // SAFETY: the closure only makes system calls that are async-signal-safe; it allocates nothing
    // and takes no locks.
    unsafe { command.pre_exec(enter) };
}

/// Prepares a command that this process supervises: it ends with the thread that spawned it, gets no
/// signals from the terminal, and has no blocked signals. The namespace must stay open until the
/// command is spawned.
pub fn prepare_supervised(command: &mut Command, network: Option<BorrowedFd<'_>>) {
    let setup = ChildSetup {
        network,
        die_with_parent: true,
        own_session: true,
    };
    prepare(command, setup);
    unblock_in_child(command);
}

/// Blocks signals for the calling thread and those it starts later, so that [`wait_signal`] gets
/// them.
pub fn block_signals(signals: &[libc::c_int]) -> io::Result<()> {
    let set = signal_set(signals);
    // SAFETY: the set is initialised and outlives the call; a null old set is allowed.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) } {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// Takes the next blocked signal; `None` when none came in time.
pub fn wait_signal(signals: &[libc::c_int], timeout: Option<Duration>) -> Option<libc::c_int> {
    let set = signal_set(signals);
    let result = match timeout {
        // SAFETY: the set is initialised and outlives the call; no information is asked for.
        None => unsafe { libc::sigwaitinfo(&raw const set, std::ptr::null_mut()) },
        Some(time) => {
            let time = libc::timespec {
                tv_sec: time.as_secs().min(1 << 30) as libc::time_t,
                tv_nsec: libc::c_long::from(time.subsec_nanos() as i32),
            };
            // SAFETY: as above; the time outlives the call.
            unsafe { libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const time) }
        }
    };
    (result > 0).then_some(result)
}

fn signal_set(signals: &[libc::c_int]) -> libc::sigset_t {
    // SAFETY: sigset_t is plain data, and sigemptyset initialises it before use.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is a valid sigset_t; a bad signal number is refused, not followed.
    unsafe {
        libc::sigemptyset(&raw mut set);
        for &signal in signals {
            libc::sigaddset(&raw mut set, signal);
        }
    }
    set
}

/// Unblocks every signal in the child of a command, which would otherwise inherit the mask of
/// [`block_signals`].
pub fn unblock_in_child(command: &mut Command) {
    let unblock = || {
        let none = signal_set(&[]);
        // SAFETY: async-signal-safe; the set is initialised and outlives the call.
        check(unsafe {
            libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut())
        })
        .map(drop)
    };
    // SAFETY: the closure only makes an async-signal-safe system call on its own stack.
    unsafe { command.pre_exec(unblock) };
}

/// Sends a signal to a process.
pub fn kill(pid: u32, signal: libc::c_int) -> io::Result<()> {
    let pid = i32::try_from(pid).ok().filter(|pid| *pid > 0);
    let pid = pid.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not a process id"))?;
    // SAFETY: takes no pointers; a positive id addresses exactly one process.
    check(unsafe { libc::kill(pid, signal) }).map(drop)
}

/// Sends a signal to every process of a group, named by its leader.
pub fn kill_group(leader: u32, signal: libc::c_int) -> io::Result<()> {
    // 0 would mean the caller's own group, and 1 with its sign turned every process there is.
    let leader = i32::try_from(leader).ok().filter(|id| *id > 1);
    let leader =
        leader.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not a process group"))?;
    // SAFETY: takes no pointers; a negative id below -1 addresses exactly one group.
    check(unsafe { libc::kill(-leader, signal) }).map(drop)
}

/// The end of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Process id.
    pub pid: u32,
    /// Exit code, or 128 and the signal's number, as shells say it.
    pub code: i32,
}

/// Collects one child that has ended, of all the children of this process.
pub fn reap() -> Option<Ended> {
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
    let code = if libc::WIFEXITED(status) {
        libc::WEXITSTATUS(status)
    } else {
        128 + libc::WTERMSIG(status)
    };
    u32::try_from(pid)
        .ok()
        .filter(|pid| *pid > 0)
        .map(|pid| Ended { pid, code })
}

/// Keeps later mounts of this (new) mount namespace to itself, then shows it the processes of its
/// process namespace.
pub fn mount_own_proc() -> io::Result<()> {
    let text = |s: &str| CString::new(s).map_err(io::Error::other);
    let (none, root, proc) = (text("none")?, text("/")?, text("/proc")?);
    let kind = text("proc")?;
    let private = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: all strings are closed by zero and outlive the calls; null type and data are allowed
    // for these flags.
    unsafe {
        check(libc::mount(
            none.as_ptr(),
            root.as_ptr(),
            std::ptr::null(),
            private,
            std::ptr::null(),
        ))?;
        let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
        check(libc::mount(
            kind.as_ptr(),
            proc.as_ptr(),
            kind.as_ptr(),
            flags,
            std::ptr::null(),
        ))?;
    }
    Ok(())
}

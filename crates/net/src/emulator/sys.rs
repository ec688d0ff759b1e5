//! The system calls that have no form in the standard library: TUN devices, namespaces, waiting,
//! scheduling, and the steps of a child between `fork` and `exec`. It is the only unsafe code of
//! this crate.
//!
//! `rustix` makes the calls that it has. It lacks the scheduling class and the mask of signals, and
//! it leaves `ioctl` to its users, so these go to `libc`.

use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::process::{Pid, Signal, WaitOptions, set_parent_process_death_signal, setsid};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space, set_current_timer_slack};

pub use rustix::thread::UnshareFlags;

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

/// Moves the calling thread (or process, for [`UnshareFlags::NEWUSER`]) into new namespaces.
pub fn unshare(namespaces: UnshareFlags) -> io::Result<()> {
    debug_assert!(!namespaces.contains(UnshareFlags::FILES));
    // SAFETY: the thread keeps its table of files, which no caller unshares.
    unsafe { rustix::thread::unshare_unsafe(namespaces - UnshareFlags::FILES) }?;
    Ok(())
}

/// Moves the calling thread into the network namespace behind a file.
pub fn enter_network(namespace: BorrowedFd<'_>) -> io::Result<()> {
    move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?;
    Ok(())
}

/// Waits until one of `files` is readable or a time has passed; says which are readable (or closed
/// at the other end).
pub fn wait_readable(
    files: &[BorrowedFd<'_>],
    timeout: Option<Duration>,
    ready: &mut Vec<bool>,
) -> io::Result<()> {
    let entries = files.iter().copied();
    let mut entries: Vec<_> = entries
        .map(|file| PollFd::from_borrowed_fd(file, PollFlags::IN))
        .collect();
    let time = timeout.map(|time| Timespec {
        tv_sec: i64::try_from(time.as_secs().min(1 << 30)).unwrap_or(1 << 30),
        tv_nsec: i64::from(time.subsec_nanos()),
    });
    let result = poll(&mut entries, time.as_ref());
    ready.clear();
    ready.extend(entries.iter().map(|entry| !entry.revents().is_empty()));
    match result {
        Err(Errno::INTR) => ready.fill(false),
        result => drop(result?),
    }
    Ok(())
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
    set_current_timer_slack(Some(NonZeroU64::MIN))?;
    Ok(())
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
            setsid()?;
        }
        if let Some(fd) = network {
            // SAFETY: the namespace stays open until the command is spawned.
            enter_network(unsafe { BorrowedFd::borrow_raw(fd) })?;
        }
        if die_with_parent {
            set_parent_process_death_signal(Some(Signal::KILL))?;
        }
        Ok(())
    };
    // SAFETY: the closure only makes system calls that are async-signal-safe; it allocates nothing
    // and takes no locks.
    unsafe { command.pre_exec(enter) };
}

/// Prepares a command that this process supervises: it ends with the thread that spawned it, gets
/// no signals from the terminal, and has no blocked signals. The namespace must stay open until the
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
    rustix::process::kill_process(process(pid)?, named(signal)?)?;
    Ok(())
}

/// Sends a signal to every process of a group, named by its leader.
pub fn kill_group(leader: u32, signal: libc::c_int) -> io::Result<()> {
    // 1 with its sign turned means every process there is.
    if leader == 1 {
        return Err(invalid("not a process group"));
    }
    rustix::process::kill_process_group(process(leader)?, named(signal)?)?;
    Ok(())
}

/// Returns the id of a process. 0 would mean the caller's own group.
fn process(pid: u32) -> io::Result<Pid> {
    let pid = i32::try_from(pid).ok().filter(|pid| *pid > 0);
    pid.and_then(Pid::from_raw)
        .ok_or_else(|| invalid("not a process id"))
}

fn named(signal: libc::c_int) -> io::Result<Signal> {
    Signal::from_named_raw(signal).ok_or_else(|| invalid("not a signal"))
}

fn invalid(problem: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, problem)
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
    let (pid, status) = rustix::process::wait(WaitOptions::NOHANG).ok()??;
    let signal = status.terminating_signal().unwrap_or_default();
    Some(Ended {
        pid: pid.as_raw_nonzero().get().cast_unsigned(),
        code: status.exit_status().unwrap_or(128 + signal),
    })
}

/// Keeps later mounts of this (new) mount namespace to itself, then shows it the processes of its
/// process namespace.
pub fn mount_own_proc() -> io::Result<()> {
    mount_change(
        "/",
        MountPropagationFlags::REC | MountPropagationFlags::PRIVATE,
    )?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", "/proc", "proc", flags, None::<&CStr>)?;
    Ok(())
}

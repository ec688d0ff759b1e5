//! Process 1 of the command's process namespace: shows it its own /proc, runs it, collects orphans,
//! passes signals on.
//!
//! When this process ends, however it ends, the kernel ends everything else in the namespace.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitCode};

use tandem_net::emulator::sys;
use tandem_net::output;

use crate::{OWN_FAILURE, rootless};

/// Name under which the program runs itself for this.
pub(crate) const NAME: &str = "tandem-link-init";

const SIGNALS: [i32; 5] = [
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGCHLD,
];

/// Runs the command given as arguments; ends with its exit code.
pub(crate) fn run(mut arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let Some(program) = arguments.next() else {
        return ExitCode::from(OWN_FAILURE);
    };
    let prepared =
        sys::block_signals(&SIGNALS).and_then(|()| sys::unshare(sys::UnshareFlags::NEWNS));
    if let Err(error) = prepared.and_then(|()| sys::mount_own_proc()) {
        // Inside some containers /proc may not be mounted again; everything else works with the old
        // one.
        output::note(format_args!(
            "tandem-link: the command sees the processes outside: {error}\n"
        ));
    }
    let user = std::env::var(rootless::VARIABLE)
        .ok()
        .and_then(|text| rootless::User::parse(&text));
    if let Some(Err(error)) = user.map(rootless::become_user_again) {
        output::note(format_args!(
            "tandem-link: the command runs as root of its own user namespace: {error}\n"
        ));
    }
    let mut command = Command::new(&program);
    command.args(arguments).env_remove(rootless::VARIABLE);
    sys::unblock_in_child(&mut command);
    match command.spawn() {
        Ok(child) => ExitCode::from(wait_for(child.id()) as u8),
        Err(error) => {
            output::note(format_args!(
                "tandem-link: {}: {error}\n",
                program.display()
            ));
            ExitCode::from(if error.kind() == io::ErrorKind::NotFound {
                127
            } else {
                126
            })
        }
    }
}

fn wait_for(child: u32) -> i32 {
    loop {
        match sys::wait_signal(&SIGNALS, None) {
            // The terminal sends these to the command as well.
            Some(libc::SIGINT | libc::SIGQUIT) | None => {}
            Some(libc::SIGCHLD) => {
                while let Some(ended) = sys::reap() {
                    if ended.pid == child {
                        return ended.code;
                    }
                }
            }
            Some(signal) => drop(sys::kill(child, signal)),
        }
    }
}

/// Exit code of a finished process, in the shells' way.
pub(crate) fn exit_code(status: std::process::ExitStatus) -> u8 {
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0)) as u8
}

//! The end of a private network: its processes, and then its namespaces.

use super::super::layout::prefix;
use super::super::state::{Process, RunDirectory};
use super::super::{TornetError, namespaces};
use super::*;
use std::thread;
use std::time::{Duration, Instant};
use tandem_net::emulator::sys::{self};

/// Removes everything of an instance, and reports its steps. It also removes the remains of a
/// killed supervisor.
pub fn take_down(instance: &str, progress: &mut dyn FnMut(&str)) -> Result<(), TornetError> {
    let directory = RunDirectory::of(instance)?;
    if directory.exists()? {
        end_processes(&directory.processes(), progress);
    }
    remove_namespaces(instance, progress)?;
    directory.remove()
}

/// The first is the supervisor, which ends the others if it still can.
pub(super) fn end_processes(processes: &[Process], progress: &mut dyn FnMut(&str)) {
    if let Some(supervisor) = processes.first().filter(|process| process.is_alive()) {
        progress(&format!(
            "stopping the supervisor, process {}",
            supervisor.pid
        ));
        let _ = sys::kill(supervisor.pid, libc::SIGTERM);
        wait_until(GRACE * 2, || !supervisor.is_alive());
    }
    for process in processes.iter().filter(|process| process.is_alive()) {
        progress(&format!(
            "killing {} of {}, process {}",
            process.program, process.node, process.pid
        ));
        let _ = sys::kill(process.pid, libc::SIGKILL);
        wait_until(GRACE, || !process.is_alive());
    }
}

/// Ends the remaining processes in the namespaces: children of our programs, and programs that
/// users started there. Without the namespace, none of them would have a network.
pub(super) fn end_inhabitants(names: &[String], progress: &mut dyn FnMut(&str)) {
    let inhabitants = || {
        names
            .iter()
            .flat_map(|name| namespaces::inhabitants(name))
            .collect::<Vec<u32>>()
    };
    for signal in [libc::SIGTERM, libc::SIGKILL] {
        for pid in inhabitants() {
            progress(&format!(
                "stopping process {pid}, which runs in a namespace of this network"
            ));
            let _ = sys::kill(pid, signal);
        }
        if wait_until(GRACE, || inhabitants().is_empty()) {
            return;
        }
    }
}

pub(super) fn wait_until(limit: Duration, done: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !done() {
        if start.elapsed() > limit {
            return false;
        }
        thread::sleep(Duration::from_millis(20));
    }
    true
}

pub(super) fn remove_namespaces(
    instance: &str,
    progress: &mut dyn FnMut(&str),
) -> Result<(), TornetError> {
    let ip = namespaces::ip()?;
    let names = namespaces::existing(&prefix(instance));
    if !names.is_empty() {
        end_inhabitants(&names, progress);
        progress(&format!("removing {} namespaces", names.len()));
    }
    names
        .iter()
        .try_for_each(|name| namespaces::remove(&ip, name))
}

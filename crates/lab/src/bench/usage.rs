//! The resources that programs use: processor time of all their threads, and memory, as the kernel
//! accounts them.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use super::BenchError;

/// Processor time that a process, its threads and its children have used so far. Threads that have
/// ended are not in it.
pub fn cpu_time(pid: u32) -> Result<Duration, BenchError> {
    let read = || -> io::Result<u64> { tree(pid)?.into_iter().map(|one| run_time(one, pid)).sum() };
    read()
        .map(Duration::from_nanos)
        .map_err(BenchError::system(format!(
            "read the processor time of process {pid}"
        )))
}

/// A process and all below it.
fn tree(pid: u32) -> io::Result<Vec<u32>> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        // A process that has just ended has no parent.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        parents.extend(parent(&stat).map(|parent| (pid, parent)));
    }
    let mut all = vec![pid];
    let mut at = 0;
    while let Some(&above) = all.get(at) {
        all.extend(
            parents
                .iter()
                .filter(|(_, parent)| *parent == above)
                .map(|(pid, _)| pid),
        );
        at += 1;
    }
    Ok(all)
}

/// The parent in the text of `/proc/PID/stat`; the name before it may hold spaces and brackets.
fn parent(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(1)?
        .parse()
        .ok()
}

/// Returns the run time of one process of the tree below `root`. Children and threads may end
/// during the call; the root may not.
fn run_time(pid: u32, root: u32) -> io::Result<u64> {
    let mut sum = 0;
    let tasks = match fs::read_dir(format!("/proc/{pid}/task")) {
        Err(_) if pid != root => return Ok(0),
        tasks => tasks?,
    };
    for task in tasks {
        match on_processor(&task?.path()) {
            Err(error)
                if error.kind() == io::ErrorKind::NotFound
                    || error.raw_os_error() == Some(libc::ESRCH) => {}
            time => sum += time?,
        }
    }
    Ok(sum)
}

fn on_processor(task: &Path) -> io::Result<u64> {
    schedule_statistic(task, 0)
}

/// Reads a field of `/proc/PID/task/TID/schedstat`: the nanoseconds on a processor, and those in
/// which the thread was ready and waited for one.
fn schedule_statistic(task: &Path, field: usize) -> io::Result<u64> {
    let text = fs::read_to_string(task.join("schedstat"))?;
    let value = text
        .split_whitespace()
        .nth(field)
        .and_then(|text| text.parse().ok());
    value.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "schedstat"))
}

/// Returns the time for which the threads of a process were ready to run and had no processor.
/// Threads of the class `SCHED_IDLE`, which give way to all others, and threads that have ended are
/// not in it.
pub fn waiting_time(pid: u32) -> io::Result<Duration> {
    let mut sum = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?.path();
        let read = || -> io::Result<u64> {
            match is_idle(&fs::read_to_string(task.join("stat"))?) {
                true => Ok(0),
                false => schedule_statistic(&task, 1),
            }
        };
        // A thread may end during the call.
        sum += read().unwrap_or(0);
    }
    Ok(Duration::from_nanos(sum))
}

/// Returns true if the text of `/proc/PID/task/TID/stat` is that of a thread of `SCHED_IDLE`.
fn is_idle(stat: &str) -> bool {
    // The fields after the name begin with the third, and the policy is the 41st.
    let policy = stat
        .rsplit_once(')')
        .and_then(|(_, fields)| fields.split_whitespace().nth(41 - 3)?.parse().ok());
    policy == Some(libc::SCHED_IDLE)
}

/// Memory of a process and its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct MemoryUsage {
    /// Bytes, with each shared page counted by its share.
    pub pss: u64,
    /// Bytes resident.
    pub rss: u64,
}

/// Memory in use now.
pub fn memory(pid: u32) -> Result<MemoryUsage, BenchError> {
    let read = || -> io::Result<MemoryUsage> {
        let mut sum = MemoryUsage { pss: 0, rss: 0 };
        for one in tree(pid)? {
            let text = match fs::read_to_string(format!("/proc/{one}/smaps_rollup")) {
                Ok(text) => text,
                // A child that has just ended, or that was not waited for yet, uses no memory.
                Err(_) if one != pid => continue,
                Err(error) => return Err(error),
            };
            sum.pss += kilobytes(&text, "Pss:")?;
            sum.rss += kilobytes(&text, "Rss:")?;
        }
        Ok(sum)
    };
    read().map_err(BenchError::system(format!(
        "read the memory of process {pid}"
    )))
}

fn kilobytes(text: &str, name: &str) -> io::Result<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line
        .and_then(|rest| rest.trim().strip_suffix("kB"))
        .and_then(|number| number.trim().parse::<u64>().ok());
    number
        .map(|number| number << 10)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "smaps_rollup"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_something() {
        let pid = std::process::id();
        let before = cpu_time(pid).expect("own times");
        let mut sum = 0u64;
        while cpu_time(pid).expect("own times") <= before {
            sum = std::hint::black_box((0..100_000u64).fold(sum, u64::wrapping_add));
        }
        let memory = memory(pid).expect("own memory");
        assert!(memory.pss > 0 && memory.rss >= memory.pss);
    }

    #[test]
    fn waiting_time_grows_on_a_busy_machine() {
        let pid = std::process::id();
        let mut least = waiting_time(pid).expect("own threads");
        let processors = std::thread::available_parallelism()
            .expect("a number")
            .get();
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..=processors {
                scope.spawn(|| {
                    while !done.load(std::sync::atomic::Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            // Threads of other tests may end, and take their time with them.
            loop {
                let now = waiting_time(pid).expect("own threads");
                if now > least {
                    break;
                }
                least = now;
            }
            done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }

    #[test]
    fn idle_threads_are_told_by_their_policy() {
        let stat = |policy| format!("7 (a ) b) S 1{} {policy} 0", " 0".repeat(36));
        assert!(is_idle(&stat(libc::SCHED_IDLE)) && !is_idle(&stat(libc::SCHED_OTHER)));
        let own = fs::read_to_string("/proc/thread-self/stat").expect("own thread");
        assert!(!is_idle(&own), "{own}");
    }

    #[test]
    fn nobody_uses_nothing() {
        let error = cpu_time(u32::MAX).expect_err("no such process").to_string();
        assert!(error.contains("4294967295"), "{error}");
    }

    #[test]
    fn reads_the_kernels_text() {
        assert_eq!(parent("7 (a) b) S 3 7 7 0"), Some(3));
        assert_eq!(parent("7 (a b"), None);
        let text = "Rss:    2048 kB\nPss:  12 kB\nPss_Dirty: 7 kB\n";
        assert_eq!(kilobytes(text, "Pss:").expect("there"), 12 << 10);
        kilobytes(text, "Swap:").expect_err("not there");
        kilobytes("Pss: many kB", "Pss:").expect_err("no number");
    }
}

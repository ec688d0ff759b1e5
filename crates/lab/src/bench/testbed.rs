//! The directory and the programs of one measurement. Both are gone when it ends: by dropping or by
//! a signal. When this process is killed, the kernel ends the programs, and the next measurement
//! removes the directory.

use std::fs::{DirBuilder, File};
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::BenchError;
use tandem_net::emulator::sys;
use tandem_net::netns::Netns;

const SIGNALS: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Time that a program has for beginning to listen.
const START_LIMIT: Duration = Duration::from_secs(10);

/// Time that a program has for its end.
const STOP_LIMIT: Duration = Duration::from_secs(3);

/// The prefix of directory names.
const PREFIX: &str = "tandem-bench-";

/// A file in each that is locked as long as its measurement lives.
const LOCK: &str = "lock";

/// Bytes of a program's log that an error quotes.
const LOG_TAIL: usize = 600;

/// A private directory and the programs that run in it.
#[derive(Debug)]
pub struct Testbed {
    directory: PathBuf,
    running: Arc<Mutex<Vec<Child>>>,
    _lock: File,
}

/// A program to start.
#[derive(Debug)]
pub struct Program<'a> {
    /// The program's name in this measurement and in its log's file name.
    pub name: &'a str,
    /// The command line.
    pub command: Command,
    /// The processor that it may use; any unless given.
    pub core: Option<usize>,
    /// The network that it lives in; this process's unless given.
    pub network: Option<&'a Netns>,
}

impl Testbed {
    /// Makes the directory. From here on a signal ends the measurement, and everything that belongs
    /// to it. To be called before any thread is started, from the thread that will start the
    /// programs.
    pub fn open() -> Result<Self, BenchError> {
        remove_leftovers(&std::env::temp_dir());
        let random = RandomState::new().hash_one(std::process::id());
        let directory = std::env::temp_dir().join(format!("{PREFIX}{random:016x}"));
        let made = DirBuilder::new().mode(0o700).create(&directory);
        made.map_err(BenchError::system(format!(
            "make directory {}",
            directory.display()
        )))?;
        let locked = File::create(directory.join(LOCK)).and_then(|file| file.lock().map(|()| file));
        let locked = locked.inspect_err(|_| drop(std::fs::remove_dir_all(&directory)));
        let held = locked.map_err(BenchError::system(format!(
            "write into {}",
            directory.display()
        )))?;
        let this = Self {
            directory,
            running: Arc::default(),
            _lock: held,
        };
        sys::block_signals(&SIGNALS).map_err(BenchError::system("block signals"))?;
        let (directory, running) = (this.directory.clone(), Arc::clone(&this.running));
        let watch = move || {
            while sys::wait_signal(&SIGNALS, None).is_none() {}
            end_all(&mut lock(&running));
            let _ = std::fs::remove_dir_all(directory);
            std::process::exit(130);
        };
        thread::Builder::new()
            .name("signals".into())
            .spawn(watch)
            .map_err(BenchError::system("start a thread"))?;
        Ok(this)
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Writes a file into the directory.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> Result<PathBuf, BenchError> {
        let path = self.directory.join(name);
        let written = path
            .parent()
            .map_or(Ok(()), std::fs::create_dir_all)
            .and_then(|()| std::fs::write(&path, content));
        written.map_err(BenchError::system(format!("write {}", path.display())))?;
        Ok(path)
    }

    /// Starts a program; says its process id.
    pub fn start(&self, program: Program<'_>) -> Result<u32, BenchError> {
        let Program {
            name,
            command,
            core,
            network,
        } = program;
        let program = command.get_program().to_string_lossy().into_owned();
        let failed = |source| BenchError::System {
            action: format!("start {name} ({program})"),
            source,
        };
        let mut command = pinned(command, core);
        let log = File::create(self.log_file(name)).map_err(failed)?;
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(failed)?)
            .stderr(log);
        self.adopt(command, network).map_err(failed)
    }

    /// Runs a program to its end, and returns its standard output.
    pub fn run(&self, program: Program<'_>) -> Result<String, BenchError> {
        let name = program.name;
        let pid = self.start(program)?;
        let failed = |source| BenchError::System {
            action: format!("wait for {name}"),
            source,
        };
        let status = loop {
            let mut running = lock(&self.running);
            let Some(at) = running.iter().position(|child| child.id() == pid) else {
                return Err(failed(io::ErrorKind::NotFound.into()));
            };
            if let Some(status) = running[at].try_wait().map_err(failed)? {
                running.retain(|child| child.id() != pid);
                break status;
            }
            drop(running);
            thread::sleep(Duration::from_millis(10));
        };
        if status.success() {
            std::fs::read_to_string(self.log_file(name)).map_err(failed)
        } else {
            Err(self.program_error(name, format!("failed ({status})")))
        }
    }

    fn adopt(&self, mut command: Command, network: Option<&Netns>) -> io::Result<u32> {
        sys::prepare_supervised(&mut command, network.map(Netns::as_fd));
        let mut running = lock(&self.running);
        let child = command.spawn()?;
        let pid = child.id();
        running.push(child);
        Ok(pid)
    }

    /// Starts a program in the network of this process, and waits until it listens. Returns its
    /// process id.
    ///
    /// # Errors
    /// Fails if it does not start, or ends before it listens.
    pub fn start_listening(
        &self,
        name: &str,
        command: Command,
        listens: SocketAddr,
    ) -> Result<u32, BenchError> {
        let pid = self.start(Program {
            name,
            command,
            core: None,
            network: None,
        })?;
        self.wait_for(pid, name, listens, None)?;
        Ok(pid)
    }

    /// Waits until a program listens, so that nothing measured waits for it.
    pub fn wait_for(
        &self,
        pid: u32,
        name: &str,
        address: SocketAddr,
        network: Option<&Netns>,
    ) -> Result<(), BenchError> {
        let until = Instant::now() + START_LIMIT;
        let connect = || TcpStream::connect_timeout(&address, Duration::from_secs(1)).map(drop);
        loop {
            if network
                .map_or_else(connect, |network| network.run(connect))
                .is_ok()
            {
                return Ok(());
            }
            if self.has_ended(pid) {
                return Err(self.program_error(name, "ended at once".into()));
            }
            if Instant::now() > until {
                return Err(self.program_error(name, format!("does not listen on {address}")));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn has_ended(&self, pid: u32) -> bool {
        let mut running = lock(&self.running);
        running
            .iter_mut()
            .find(|child| child.id() == pid)
            .is_none_or(|child| !matches!(child.try_wait(), Ok(None)))
    }

    fn program_error(&self, name: &str, problem: String) -> BenchError {
        let log = std::fs::read(self.log_file(name)).unwrap_or_default();
        let log = String::from_utf8_lossy(&log[log.len().saturating_sub(LOG_TAIL)..])
            .trim()
            .to_owned();
        BenchError::Program {
            program: name.into(),
            problem,
            log,
        }
    }

    fn log_file(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.log"))
    }

    /// Ends all programs; the directory stays.
    pub fn clear(&self) {
        end_all(&mut lock(&self.running));
    }

    /// Ends one program without its leave, as a crash does.
    pub fn end(&self, pid: u32) {
        end_all(&mut self.take(pid).into_iter().collect());
    }

    /// Ends one program by SIGTERM, so that it closes its sessions. A program that is not over
    /// after `STOP_LIMIT` is killed.
    pub fn stop(&self, pid: u32) {
        let Some(mut child) = self.take(pid) else {
            return;
        };
        let begun = Instant::now();
        if sys::kill(pid, libc::SIGTERM).is_ok() {
            while matches!(child.try_wait(), Ok(None)) && begun.elapsed() < STOP_LIMIT {
                thread::sleep(Duration::from_millis(10));
            }
        }
        end_all(&mut vec![child]);
    }

    fn take(&self, pid: u32) -> Option<Child> {
        let mut running = lock(&self.running);
        let at = running.iter().position(|child| child.id() == pid)?;
        Some(running.swap_remove(at))
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        self.clear();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Removes directories of this user that killed measurements left. Directories that cannot be
/// removed stay, and do no harm.
fn remove_leftovers(parent: &Path) {
    let own = std::fs::metadata("/proc/self").map(|own| own.uid()).ok();
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let named = entry
            .file_name()
            .to_str()
            .is_some_and(|name| name.starts_with(PREFIX));
        let ours = entry
            .metadata()
            .is_ok_and(|found| found.is_dir() && Some(found.uid()) == own);
        if named
            && ours
            && File::open(entry.path().join(LOCK)).is_ok_and(|lock| lock.try_lock().is_ok())
        {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

fn lock(running: &Mutex<Vec<Child>>) -> MutexGuard<'_, Vec<Child>> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

fn end_all(running: &mut Vec<Child>) {
    for child in running.iter_mut() {
        // A program that has ended needs no signal.
        let _ = child.kill();
    }
    for mut child in running.drain(..) {
        let _ = child.wait();
    }
}

/// The command on one processor. `taskset` becomes the program, so the process id stays the same.
fn pinned(command: Command, core: Option<usize>) -> Command {
    let Some(core) = core else { return command };
    let mut outer = Command::new("taskset");
    outer
        .arg("-c")
        .arg(core.to_string())
        .arg(command.get_program())
        .args(command.get_args());
    outer
}

/// Keeps this process to one processor; its later threads and programs too, unless they are pinned
/// elsewhere.
pub fn pin_this_process(core: usize) -> Result<(), BenchError> {
    let mut command = Command::new("taskset");
    command
        .args([
            "-a",
            "-p",
            "-c",
            &core.to_string(),
            &std::process::id().to_string(),
        ])
        .stdout(Stdio::null());
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(BenchError::Value(format!("taskset: {status}"))),
        Err(_) => Err(BenchError::Missing {
            program: "taskset",
            package: "util-linux",
        }),
    }
}

/// Raises the number of files that this process, and programs that it starts from now on, may open
/// to the hard limit of the system.
pub fn raise_open_files() -> Result<(), BenchError> {
    let limits = std::fs::read_to_string("/proc/self/limits")
        .map_err(BenchError::system("read this process's limits"))?;
    let most = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))
        .and_then(|line| line.split_whitespace().nth(1))
        .ok_or_else(|| BenchError::Value("no limit of open files in /proc/self/limits".into()))?;
    let mut command = Command::new("prlimit");
    command.args(["--pid", &std::process::id().to_string()]);
    command.arg(format!("--nofile={most}:{most}"));
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(BenchError::Value(format!("prlimit: {status}"))),
        Err(_) => Err(BenchError::Missing {
            program: "prlimit",
            package: "util-linux",
        }),
    }
}

/// Raises the priority of this process, and of the programs that it starts from now on. Returns
/// true if the system allows it.
pub fn raise_priority() -> bool {
    let mut command = Command::new("renice");
    command
        .args(["-n", "-19", "-p", &std::process::id().to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// The processors for the proxy and for everything else; one machine, one processor: all share it.
pub fn cores() -> (Option<usize>, Option<usize>) {
    let several = thread::available_parallelism().is_ok_and(|count| count.get() > 1);
    if several {
        (Some(1), Some(0))
    } else {
        (None, None)
    }
}

/// Returns an address of this machine without a listener.
pub fn free_address() -> Result<SocketAddr, BenchError> {
    free_addresses().map(|[address]| address)
}

/// Returns different addresses of this machine without listeners.
pub fn free_addresses<const COUNT: usize>() -> Result<[SocketAddr; COUNT], BenchError> {
    let find = || -> io::Result<_> {
        let mut addresses = [SocketAddr::from((Ipv4Addr::LOCALHOST, 0)); COUNT];
        // A listener stays until all addresses are found.
        let mut listeners = Vec::new();
        for address in &mut addresses {
            let listener = TcpListener::bind(*address)?;
            *address = listener.local_addr()?;
            listeners.push(listener);
        }
        Ok(addresses)
    };
    find().map_err(BenchError::system("find a free port"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program<'a>(name: &'a str, line: &str) -> Program<'a> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", line]);
        Program {
            name,
            command,
            core: None,
            network: None,
        }
    }

    #[test]
    fn leaves_nothing_behind() {
        let testbed = Testbed::open().expect("a directory");
        let directory = testbed.directory().to_owned();
        let pid = testbed
            .start(program("sleeper", "exec sleep 600"))
            .expect("a shell");
        assert!(Path::new(&format!("/proc/{pid}")).exists());
        drop(testbed);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
        assert!(!directory.exists());
    }

    #[test]
    fn testbed_removes_leftovers_of_killed_runs() {
        let parent = std::env::temp_dir().join(format!("tandem-leftovers-{}", std::process::id()));
        let make = |name: &str| {
            let directory = parent.join(name);
            std::fs::create_dir_all(&directory).expect("room");
            File::create(directory.join(LOCK)).expect("room")
        };
        let living = make("tandem-bench-living");
        living.lock().expect("nobody else has it");
        drop(make("tandem-bench-killed"));
        drop(make("somebody-elses"));
        remove_leftovers(&parent);
        let left = std::fs::read_dir(&parent)
            .expect("there")
            .flatten()
            .map(|entry| entry.file_name());
        let mut left: Vec<_> = left.collect();
        left.sort();
        assert_eq!(left, ["somebody-elses", "tandem-bench-living"]);
        std::fs::remove_dir_all(&parent).expect("ours");
    }

    #[test]
    fn errors_quote_the_program() {
        let testbed = Testbed::open().expect("a directory");
        assert_eq!(
            testbed.run(program("good", "echo fine")).expect("runs"),
            "fine\n"
        );
        let error = testbed
            .run(program("bad", "echo no such luck; exit 3"))
            .expect_err("fails")
            .to_string();
        assert!(
            error.contains("bad failed") && error.contains("no such luck"),
            "{error}"
        );
        let pid = testbed
            .start(program("gone", "echo port taken"))
            .expect("a shell");
        let address = free_address().expect("a port");
        let error = testbed
            .wait_for(pid, "gone", address, None)
            .expect_err("never listens")
            .to_string();
        assert!(
            error.contains("ended at once") && error.contains("port taken"),
            "{error}"
        );
    }
}

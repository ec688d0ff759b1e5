//! The process of a browser: it is started with a fresh profile, and removed without trace when
//! dropped.
//!
//! A shell runs the browser, waits for its end and removes the profile. The browser ends when the
//! pipe to the shell closes, so both happen even if this process is killed. If the shell is killed
//! too, the profile stays behind unlocked, and the next start removes it.

use std::ffi::OsString;
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::BrowserError;
use tandem_net::emulator::sys::{self, ChildSetup};

/// Starts of profile folders' names.
const PREFIX: &str = "tandem-browser-";
/// File in a profile that is locked while it is in use.
const LOCK: &str = "in-use";
/// The end of each shell's script. The browser's children may still be writing for a moment after
/// it has ended.
const REMOVAL: &str = r#"
for pause in 0.1 0.2 0.5 1 2 4; do
    rm -rf -- "$0" 2>/dev/null
    [ -e "$0" ] || exit
    sleep "$pause"
done
"#;
/// The time limit for the browser's end.
const GRACE: Duration = Duration::from_secs(5);
/// The length that is kept of the browser's standard error, in bytes.
const COMPLAINTS: usize = 2000;

/// A running browser.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    complaints: Option<JoinHandle<String>>,
    profile: Profile,
}

/// Both ends of the pipe.
#[derive(Debug)]
pub(super) struct Pipe {
    pub(super) commands: ChildStdin,
    pub(super) answers: ChildStdout,
}

impl Process {
    /// Starts a program by the script of a shell. In it, `$0` is the profile, and the rest is the
    /// browser's command line: the program and what `arguments` returns, which may also write into
    /// the profile.
    pub(super) fn start(
        program: &Path,
        script: &str,
        arguments: impl FnOnce(&Path) -> io::Result<Vec<OsString>>,
    ) -> Result<(Self, Pipe), BrowserError> {
        let profile = Profile::create().map_err(BrowserError::Profile)?;
        let arguments = arguments(&profile.folder).map_err(BrowserError::Profile)?;
        let mut command = std::process::Command::new("/bin/sh");
        command
            .arg("-c")
            .arg(format!("{script}{REMOVAL}"))
            .arg(&profile.folder)
            .arg(program)
            .args(arguments);
        // Whatever it keeps for its user belongs to the profile.
        for name in [
            "HOME",
            "XDG_CONFIG_HOME",
            "XDG_CACHE_HOME",
            "XDG_DATA_HOME",
            "TMPDIR",
        ] {
            command.env(name, &profile.folder);
        }
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        sys::prepare(
            &mut command,
            ChildSetup {
                own_session: true,
                ..ChildSetup::default()
            },
        );
        sys::unblock_in_child(&mut command);
        let spawned = Command::from(command).spawn();
        let mut child = spawned.map_err(|source| BrowserError::Start {
            program: program.to_owned(),
            source,
        })?;
        let (commands, answers) = (child.stdin.take(), child.stdout.take());
        let complaints = child
            .stderr
            .take()
            .map(|stream| tokio::spawn(last_words(stream)));
        let process = Self {
            child,
            complaints,
            profile,
        };
        let (Some(commands), Some(answers)) = (commands, answers) else {
            return Err(BrowserError::Ended {
                complaint: "it has no pipe".into(),
            });
        };
        Ok((process, Pipe { commands, answers }))
    }

    pub(super) fn profile(&self) -> &Path {
        &self.profile.folder
    }

    /// Waits for the browser to end, which it does when the pipe is closed; kills it if it takes
    /// too long.
    pub(super) async fn end(mut self, pipe: Pipe) {
        drop(pipe);
        // Dropping does the rest, however the wait ended.
        let _ = timeout(GRACE, self.child.wait()).await;
    }

    /// Returns true if no process of the browser writes errors any more: it has ended.
    pub(super) fn has_closed_errors(&self) -> bool {
        let task = self.complaints.as_ref();
        task.is_none_or(JoinHandle::is_finished)
    }

    /// Adds the browser's last words to the news of its end.
    pub(super) async fn explain(&mut self, error: BrowserError) -> BrowserError {
        match error {
            BrowserError::Ended { .. } | BrowserError::Pipe(_) => BrowserError::Ended {
                complaint: self.complaint().await,
            },
            error => error,
        }
    }

    /// Returns the last lines of the browser's standard error, once it has ended.
    async fn complaint(&mut self) -> String {
        let Some(task) = self.complaints.take() else {
            return String::new();
        };
        match timeout(GRACE, task).await {
            Ok(Ok(text)) => text.trim().to_owned(),
            _ => String::new(),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The shell leads the process group of the browser and its children. An id that was
        // collected already is not used again.
        if let Some(id) = self.child.id() {
            let _ = sys::kill_group(id, libc::SIGKILL);
        }
        self.profile.remove();
    }
}

/// Returns the end of the browser's standard error, without its complaints that there is no
/// desktop.
async fn last_words(mut stream: ChildStderr) -> String {
    let mut all = Vec::new();
    let mut piece = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut piece).await {
        all.extend_from_slice(&piece[..count]);
        if all.len() > 2 * COMPLAINTS {
            all.drain(..all.len() - COMPLAINTS);
        }
    }
    let text = String::from_utf8_lossy(&all[all.len().saturating_sub(COMPLAINTS)..]).into_owned();
    text.lines()
        .filter(|line| !line.contains("dbus"))
        .collect::<Vec<_>>()
        .join("; ")
}

/// A folder for one browser.
#[derive(Debug)]
struct Profile {
    folder: PathBuf,
    /// Locked as long as this is open.
    _lock: File,
}

impl Profile {
    fn create() -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let around = std::env::temp_dir();
        sweep(&around);
        loop {
            let number = COUNT.fetch_add(1, Ordering::Relaxed);
            let folder = around.join(format!("{PREFIX}{}-{number}", std::process::id()));
            match std::fs::create_dir(&folder) {
                // Another process namespace has the same ids.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                other => other?,
            }
            let lock = File::create(folder.join(LOCK))?;
            lock.lock()?;
            // A sweeper may have come between.
            if !folder.join(LOCK).exists() {
                continue;
            }
            return Ok(Self {
                folder,
                _lock: lock,
            });
        }
    }

    /// Processes that were just killed may still be writing for a moment.
    fn remove(&self) {
        for _ in 0..100 {
            match std::fs::remove_dir_all(&self.folder) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    std::thread::sleep(Duration::from_millis(10))
                }
                _ => return,
            }
        }
    }
}

/// Removes unused profiles. A profile that cannot be removed belongs to another user, or will be
/// removed next time.
fn sweep(around: &Path) {
    let Ok(entries) = std::fs::read_dir(around) else {
        return;
    };
    for entry in entries
        .flatten()
        .filter(|e| e.file_name().to_string_lossy().starts_with(PREFIX))
    {
        // Without a lock file yet, it is being made.
        let Ok(lock) = File::open(entry.path().join(LOCK)) else {
            continue;
        };
        if !matches!(lock.try_lock(), Err(TryLockError::WouldBlock)) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

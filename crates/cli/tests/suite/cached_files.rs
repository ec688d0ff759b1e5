//! Tests of `tandem gateway --cache-dir`: the files of the cache serve after a restart, and never
//! an invalidated response, another user's or that of a process that crashed.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::harness::{Answer, Client, PATIENCE, Scene, request};
use crate::process::{Process, run, tandem};

/// An origin that counts its requests, and the directory of its gateway.
struct Setting {
    origin: Scene,
    requests: Arc<AtomicUsize>,
    directory: PathBuf,
}

impl Setting {
    /// `size` is the length of a body. It begins with the number of the request.
    fn new(name: &str, size: usize) -> Self {
        let requests = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&requests);
        let origin = Scene::new(move |_, mut client| {
            while client.request().is_some() {
                let number = count.fetch_add(1, Ordering::SeqCst) + 1;
                client.send(format!(
                    "HTTP/1.1 200 OK\r\nCache-Control: max-age=600\r\nContent-Length: {size}\r\n\
                     \r\n{number:<size$}"
                ));
            }
        });
        let name = format!("tandem-files-{name}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(directory.join("key"), [b'k'; 32]).unwrap();
        Self {
            origin,
            requests,
            directory,
        }
    }

    fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    fn arguments(&self, more: &[&str]) -> Vec<String> {
        let origin = self.origin.address;
        let fixed = format!(
            "gateway --listen http+tcp://127.0.0.1:0 --mode reverse=http://{origin} --open \
             --allow-dest 127.0.0.1/32 --cache shared --cache-status --workers 2 --cache-dir {} \
             --cache-key {}",
            self.path("files"),
            self.path("key")
        );
        let all = fixed.split(' ').chain(more.iter().copied());
        all.map(str::to_owned).collect()
    }

    fn start(&self, more: &[&str]) -> Process {
        Process::start(&self.arguments(more))
    }

    fn send(&self, process: &Process, method: &str, path: &str) -> Answer {
        let mut client = Client::to(process.address);
        client.send(request(method, &self.origin.url(path), ""));
        client.answer(method)
    }

    /// Requests a path on a new connection, which counts as another user. Returns the number of the
    /// request at the origin whose response served.
    fn get(&self, process: &Process, path: &str) -> String {
        let answer = self.send(process, "GET", path);
        assert_eq!(answer.status, 200);
        String::from_utf8(answer.body).unwrap().trim().to_owned()
    }

    /// The number of files with responses.
    fn files(&self) -> usize {
        let entries = std::fs::read_dir(self.directory.join("files")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.len() == 32).count()
    }

    fn wait_for_files(&self, count: usize) {
        let end = Instant::now() + PATIENCE;
        while self.files() != count {
            assert!(Instant::now() < end, "{} files", self.files());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

#[test]
fn gateway_serves_from_its_files_after_a_restart() {
    let setting = Setting::new("restart", 2000);
    let gateway = setting.start(&[]);
    assert_eq!(setting.get(&gateway, "/a"), "1");
    assert_eq!(setting.get(&gateway, "/b"), "2");
    setting.wait_for_files(2);
    // A second gateway with this directory ends with an error.
    let arguments = setting.arguments(&[]);
    let (is_running, _, error) = run(&arguments);
    assert!(!is_running && error.contains("cache-dir") && error.contains("another process"));
    gateway.stop();

    let gateway = setting.start(&[]);
    let answer = setting.send(&gateway, "GET", "/a");
    let status = answer.field("cache-status").unwrap();
    assert!(
        status.contains("hit; ttl=") && status.ends_with("detail=disk"),
        "{status}"
    );
    assert_eq!(setting.get(&gateway, "/a"), "1");
    assert_eq!(setting.requests.load(Ordering::SeqCst), 2);
    // The response for /b is invalidated before any request has brought it into memory.
    setting.send(&gateway, "POST", "/b");
    gateway.stop();

    let mut gateway = setting.start(&[]);
    assert_eq!(setting.get(&gateway, "/b"), "4");
    assert_eq!(setting.get(&gateway, "/a"), "1");
    setting.wait_for_files(2);
    gateway.kill();

    let gateway = setting.start(&[]);
    assert_eq!(
        setting.get(&gateway, "/a"),
        "5",
        "no file of a crash serves"
    );
    assert_eq!(setting.get(&gateway, "/b"), "6");
    gateway.stop();
}

#[test]
fn gateway_that_cannot_listen_leaves_its_files() {
    let setting = Setting::new("listen", 2000);
    let gateway = setting.start(&[]);
    assert_eq!(setting.get(&gateway, "/a"), "1");
    setting.wait_for_files(1);
    gateway.stop();
    let taken = format!("http+tcp://{}", setting.origin.address);
    let arguments = setting.arguments(&["--listen", &taken]);
    let (is_running, _, error) = run(&arguments);
    assert!(!is_running && error.contains("cannot listen"), "{error}");
    assert!(error.contains("stop the other program"), "{error}");
    let gateway = setting.start(&[]);
    assert_eq!(setting.get(&gateway, "/a"), "1");
    assert_eq!(setting.requests.load(Ordering::SeqCst), 1);
    gateway.stop();
}

#[test]
fn gateway_of_another_origin_serves_no_old_file() {
    let (setting, other) = (Setting::new("first", 2000), Setting::new("second", 2000));
    let gateway = setting.start(&[]);
    assert_eq!(setting.get(&gateway, "/a"), "1");
    assert_eq!(setting.get(&gateway, "/b"), "2");
    setting.wait_for_files(2);
    gateway.stop();
    let [first, second] = [&setting, &other].map(|it| it.origin.address.to_string());
    let arguments = setting.arguments(&[]);
    let arguments: Vec<_> = arguments
        .iter()
        .map(|it| it.replace(&first, &second))
        .collect();
    let gateway = Process::start(&arguments);
    // The request names the same host and path.
    assert_eq!(setting.get(&gateway, "/b"), "1");
    gateway.stop();
}

#[test]
fn restart_shows_a_response_to_no_further_user() {
    let setting = Setting::new("users", 2000);
    let users = ["--cache-users", "2"];
    let gateway = setting.start(&users);
    assert_eq!(setting.get(&gateway, "/a"), "1");
    gateway.stop();
    assert_eq!(setting.files(), 0);
    let gateway = setting.start(&users);
    assert_eq!(setting.get(&gateway, "/a"), "2");
    // Four users are enough for any URL.
    (0..4).for_each(|_| drop(setting.get(&gateway, "/a")));
    let known = setting.requests.load(Ordering::SeqCst);
    assert!((3..=5).contains(&known), "{known}");
    gateway.stop();
    assert_eq!(setting.files(), 1);
    let gateway = setting.start(&users);
    assert_eq!(setting.get(&gateway, "/a"), known.to_string());
    gateway.stop();
}

/// Starts a gateway in a shell that runs `before` first, and runs `arguments` before the shell.
fn start_after(setting: &Setting, arguments: &[&str], before: &str) -> Process {
    let mut shell = arguments.to_vec();
    let script = format!("{before} && exec \"$@\"");
    shell.extend(["sh", "-c", &script, "sh"]);
    let program = tandem::<&str>(&[]).get_program().to_owned();
    let mut command = Command::new(shell[0]);
    command
        .args(&shell[1..])
        .arg(program)
        .args(setting.arguments(&[]))
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped());
    Process::run(command)
}

/// Requests four responses that the disk does not take, and expects a line of the log about it.
fn check_that_it_serves_on(setting: &Setting, mut gateway: Process, complaint: &str) {
    for number in 1..=3 {
        assert_eq!(
            setting.get(&gateway, &format!("/{number}")),
            number.to_string()
        );
    }
    let line = gateway.wait_for("serves on without its disk");
    assert!(line.contains(complaint), "{line}");
    assert_eq!(setting.get(&gateway, "/1"), "1", "memory still serves");
    assert_eq!(setting.get(&gateway, "/4"), "4");
    gateway.signal("TERM");
    assert!(gateway.child.wait().unwrap().success());
}

#[test]
fn gateway_serves_on_when_its_disk_is_full() {
    let setting = Setting::new("full", 40_000);
    let files = setting.path("files");
    std::fs::create_dir(&files).unwrap();
    let mount = format!("mount -t tmpfs -o size=64k,mode=0700 none {files}");
    let namespace = ["unshare", "--user", "--map-root-user", "--mount"];
    let gateway = start_after(&setting, &namespace, &mount);
    check_that_it_serves_on(&setting, gateway, "No space left");
}

#[test]
fn gateway_serves_on_when_its_files_may_not_grow() {
    let setting = Setting::new("limit", 40_000);
    // The unit is 512 bytes.
    let gateway = start_after(&setting, &[], "ulimit -f 32");
    check_that_it_serves_on(&setting, gateway, "File too large");
}

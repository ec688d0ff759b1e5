//! Tests of `tandem client --solo-state`: a later process requests the resources of a visited page
//! together with the page, and the file survives reloads, kills and damage.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex};

use crate::harness::{Answer, Client, PATIENCE, Scene, request, wait_for};
use crate::process::{Process, run};

const IMAGES: [&str; 3] = ["/0.png", "/1.png", "/2.png"];
const COOKIE: &str = "Cookie: sid=secret\r\n";

/// The requests for images for which the response to a page waits.
#[derive(Default)]
struct Hold {
    left: Mutex<usize>,
    changed: Condvar,
}

impl Hold {
    fn set(&self, requests: usize) {
        *self.left.lock().unwrap() = requests;
    }

    fn note_request(&self) {
        let mut left = self.left.lock().unwrap();
        *left = left.saturating_sub(1);
        self.changed.notify_all();
    }

    fn wait(&self) {
        let left = self.left.lock().unwrap();
        let waited = self
            .changed
            .wait_timeout_while(left, PATIENCE, |left| *left > 0);
        let (left, _) = waited.unwrap();
        assert_eq!(*left, 0, "the images were not requested with the page");
    }
}

/// An origin with pages of three images, and the file of its clients.
struct Site {
    origin: Scene,
    /// The methods and paths of the requests.
    told: Receiver<String>,
    hold: Arc<Hold>,
    directory: PathBuf,
}

impl Site {
    fn new(name: &str) -> Self {
        let (tell, told) = channel();
        let hold = Arc::<Hold>::default();
        let held = Arc::clone(&hold);
        let origin = Scene::new(move |_, mut client| {
            while let Some(asked) = client.request() {
                let (method, path) = asked.line.split_once(' ').unwrap();
                let path = path.split(' ').next().unwrap();
                let _ = tell.send(format!("{method} {path}"));
                // Of the first image there is a copy that needs a validation at the next visit, of
                // the second a fresh one, and of the third none.
                let fields = match path {
                    "/0.png" => "Cache-Control: no-cache\r\nETag: \"1\"\r\n",
                    "/1.png" => "Cache-Control: max-age=600\r\n",
                    _ => "",
                };
                let (kind, body) = match IMAGES.contains(&path) {
                    true => ("image/png", format!("body of {path}")),
                    false => {
                        held.wait();
                        (
                            "text/html",
                            IMAGES.map(|it| format!("<img src={it}>")).concat(),
                        )
                    }
                };
                if IMAGES.contains(&path) {
                    held.note_request();
                }
                let length = body.len();
                let body = if method == "HEAD" { "" } else { &body };
                client.send(format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{fields}Content-Length: {length}\
                     \r\n\r\n{body}"
                ));
            }
        });
        let name = format!("tandem-solo-{name}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir(&directory).unwrap();
        Self {
            origin,
            told,
            hold,
            directory,
        }
    }

    fn file(&self) -> PathBuf {
        self.directory.join("visits")
    }

    fn content(&self) -> String {
        std::fs::read_to_string(self.file()).unwrap()
    }

    /// Returns the arguments of a client with the file.
    fn arguments(&self) -> Vec<String> {
        let fixed = "client --listen http://127.0.0.1:0 --solo=direct --solo-hold-out 0 \
                     --solo-allow-dest 127.0.0.0/8 --solo-state";
        let fixed = fixed.split(' ').map(str::to_owned);
        fixed.chain([self.file().display().to_string()]).collect()
    }

    fn start(&self) -> Process {
        Process::start(&self.arguments())
    }

    /// Starts a client with a configuration file, which has these lines in its table `[solo]`.
    fn start_with(&self, more: &str) -> Process {
        self.configure(more);
        let path = self.directory.join("client.toml");
        Process::start(&["client", "-c", path.to_str().unwrap()])
    }

    fn configure(&self, more: &str) {
        let text = format!(
            "[client]\nlisten = [\"http://127.0.0.1:0\"]\n[solo]\nmode = \"direct\"\n\
             hold-out = 0\nallow-dest = [\"127.0.0.0/8\"]\nstate = {:?}\n{more}\n",
            self.file()
        );
        std::fs::write(self.directory.join("client.toml"), text).unwrap();
    }

    /// Opens a page in a browser.
    fn open(&self, proxy: SocketAddr, path: &str, fields: &str) {
        let fields = format!(
            "Accept: text/html\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n{fields}"
        );
        let answer = self.get(proxy, path, &fields);
        assert_eq!(answer.status, 200);
    }

    fn get(&self, proxy: SocketAddr, path: &str, fields: &str) -> Answer {
        let mut client = Client::to(proxy);
        client.send(request("GET", &self.origin.url(path), fields));
        client.answer("GET")
    }

    /// Loads a page with its images in a browser without copies. The client does not know it.
    fn load(&self, proxy: SocketAddr, path: &str, fields: &str) {
        self.open(proxy, path, fields);
        for image in IMAGES {
            let referer = self.origin.url(path);
            let fields = format!("Accept: image/*\r\nReferer: {referer}\r\n{fields}");
            let answer = self.get(proxy, image, &fields);
            assert_eq!(answer.body, format!("body of {image}").as_bytes());
        }
        let mut expected = IMAGES.map(|image| format!("GET {image}")).to_vec();
        expected.push(format!("GET {path}"));
        assert_eq!(wait_for(&self.told, 4), expected);
    }

    /// Loads a page in a browser with copies. The response of the page waits until the client has
    /// requested the images.
    fn visit_again(&self, proxy: SocketAddr, path: &str) {
        self.hold.set(2);
        self.open(proxy, path, COOKIE);
        let expected = ["GET /2.png", &format!("GET {path}"), "HEAD /0.png"];
        assert_eq!(wait_for(&self.told, 3), expected);
        let condition = format!("{COOKIE}If-None-Match: \"1\"\r\n");
        assert_eq!(self.get(proxy, "/0.png", &condition).status, 304);
        assert_eq!(self.get(proxy, "/2.png", COOKIE).body, b"body of /2.png");
        assert!(self.told.try_recv().is_err(), "each is requested once");
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // The system cleans the temporary directory as well.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

#[test]
fn later_process_requests_resources_with_the_page() {
    let site = Site::new("restart");
    let first = site.start();
    site.load(first.address, "/page", COOKIE);
    first.stop();
    let mode = std::fs::metadata(site.file()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let content = site.content();
    for private in ["secret", "sid", "cookie", "body of", "<img"] {
        assert!(!content.contains(private), "{private}: {content}");
    }

    // Each process ends at once, and loses nothing that it has just learned.
    for _ in 0..2 {
        let later = site.start();
        site.visit_again(later.address, "/page");
        later.stop();
    }
    let later = site.start();
    site.load(later.address, "/other", "");
    later.stop();
    let last = site.start();
    site.visit_again(last.address, "/other");
    site.visit_again(last.address, "/page");
    last.stop();
    assert_eq!(site.content().matches("\npage ").count(), 2);
}

#[test]
fn file_is_of_requests_without_an_isolation_key() {
    let site = Site::new("keys");
    let key = "Proxy-Authorization: Basic b25lOng=\r\n";
    let first = site.start();
    site.load(first.address, "/keyed", key);
    first.stop();
    assert_eq!(site.content(), "", "nothing has changed");
    let second = site.start();
    site.load(second.address, "/page", "");
    second.stop();
    let kept = site.content();
    assert!(
        !kept.contains("keyed") && kept.contains("/page\n"),
        "{kept}"
    );
    let third = site.start();
    // Neither knows a copy, for which it would send HEAD.
    site.load(third.address, "/page", key);
    site.load(third.address, "/keyed", "");
    third.stop();
}

#[test]
fn killed_process_leaves_the_file_before() {
    let site = Site::new("killed");
    let first = site.start();
    site.load(first.address, "/page", "");
    first.stop();
    let before = site.content();
    let mut second = site.start();
    site.load(second.address, "/other", "");
    second.kill();
    assert_eq!(site.content(), before);
    let third = site.start();
    site.visit_again(third.address, "/page");
    third.stop();
}

#[test]
fn reload_keeps_each_page_once() {
    let site = Site::new("reload");
    let mut process = site.start_with("");
    site.load(process.address, "/page", "");
    for _ in 0..2 {
        process.signal("HUP");
        process.wait_for("was reloaded");
        site.visit_again(process.address, "/page");
    }
    process.stop();
    let content = site.content();
    assert_eq!(content.matches("\npage ").count(), 1, "{content}");
    assert_eq!(content.matches("\nneed ").count(), 3, "{content}");

    // A reload without the option ends the use of the file, and one with it begins it again.
    let mut process = site.start_with("");
    let text = std::fs::read_to_string(site.directory.join("client.toml")).unwrap();
    let without: Vec<_> = text
        .lines()
        .filter(|line| !line.starts_with("state"))
        .collect();
    std::fs::write(site.directory.join("client.toml"), without.join("\n")).unwrap();
    process.signal("HUP");
    process.wait_for("was reloaded");
    site.load(process.address, "/other", "");
    site.configure("");
    process.signal("HUP");
    process.wait_for("was reloaded");
    site.visit_again(process.address, "/page");
    process.stop();
    assert!(!site.content().contains("/other"));
}

#[test]
fn failed_reload_keeps_the_file_in_use() {
    let site = Site::new("failed-reload");
    let mut process = site.start_with("");
    let path = site.directory.join("client.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let taken = format!("listen = [\"http://{}\", ", site.origin.address);
    let lines = text.lines().filter(|line| !line.starts_with("state"));
    let lines: Vec<_> = lines
        .map(|line| line.replace("listen = [", &taken))
        .collect();
    std::fs::write(&path, lines.join("\n")).unwrap();
    process.signal("HUP");
    process.wait_for("was not reloaded");
    site.load(process.address, "/page", "");
    process.stop();
    assert!(site.content().contains("/page\n"), "{}", site.content());
}

#[test]
fn excepted_host_gets_no_early_request_from_the_file() {
    let site = Site::new("except");
    let first = site.start();
    site.load(first.address, "/page", "");
    first.stop();
    let kept = site.content();
    for is_reloaded in [false, true] {
        std::fs::write(site.file(), &kept).unwrap();
        let except = "except = [\"127.0.0.1\"]";
        let process = if is_reloaded {
            let mut process = site.start_with("");
            site.visit_again(process.address, "/page");
            site.configure(except);
            process.signal("HUP");
            process.wait_for("was reloaded");
            process
        } else {
            site.start_with(except)
        };
        site.open(process.address, "/page", "");
        // An early request would have left before this one.
        assert_eq!(site.get(process.address, "/1.png", "").status, 200);
        assert_eq!(wait_for(&site.told, 2), ["GET /1.png", "GET /page"]);
        process.stop();
        assert!(site.told.try_recv().is_err());
        assert_eq!(site.content(), "tandem visits 1\nend\n");
    }
}

#[test]
fn each_process_needs_a_file_of_its_own() {
    let site = Site::new("locked");
    let first = site.start();
    let arguments = site.arguments();
    let (is_running, _, error) = run(&arguments);
    assert!(!is_running && error.contains("solo-state: "), "{error}");
    assert!(
        error.contains("each client needs a file of its own"),
        "{error}"
    );
    first.stop();
    site.start().stop();
}

#[test]
fn damaged_file_begins_anew_and_a_foreign_one_stays() {
    let site = Site::new("damaged");
    let first = site.start();
    site.load(first.address, "/page", "");
    first.stop();
    let whole = site.content();
    std::fs::write(site.file(), &whole[..whole.len() - 8]).unwrap();
    let mut process = site.start();
    let line = process.wait_for("the file of visited pages begins anew");
    assert!(line.contains("damaged at line"), "{line}");
    site.load(process.address, "/page", "");
    process.stop();
    assert!(site.content().ends_with("\nend\n"), "{}", site.content());

    for (content, problem) in [
        ("[client]\n", "this is no file of visited pages"),
        ("tandem visits 2\nnew\n", "a newer version of this program"),
    ] {
        std::fs::write(site.file(), content).unwrap();
        let mut process = site.start();
        let line = process.wait_for("the file of visited pages is not written: remove it");
        assert!(line.contains(problem), "{line}");
        site.load(process.address, "/page", "");
        site.visit_again(process.address, "/page");
        process.stop();
        assert_eq!(site.content(), content);
    }
}

#[test]
fn file_is_refused_behind_a_proxy() {
    let site = Site::new("refused");
    let file = site.file().display().to_string();
    let proxy = "socks5://127.0.0.1:1";
    for (more, problem) in [
        (
            &["--solo", "--via", proxy][..],
            "is refused with a proxy such as Tor",
        ),
        (
            &["--solo=direct", "--via", proxy],
            "is refused with a proxy such as Tor",
        ),
        (
            &["--solo=direct", "--fallback", "via"],
            "use --solo=direct alone",
        ),
        (
            &["--gateway", "h2+tcp://127.0.0.1:1"],
            "needs --solo=direct",
        ),
        (&["--solo=direct", "--push=false"], "needs early requests"),
    ] {
        let arguments = [&["client", "--solo-state", &file], more].concat();
        let (is_running, _, error) = run(&arguments);
        assert!(
            !is_running && error.contains("solo-state: "),
            "{more:?}: {error}"
        );
        assert!(error.contains(problem), "{more:?}: {error}");
        assert!(!site.file().exists());
    }
}

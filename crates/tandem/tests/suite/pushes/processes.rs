//! Client processes that follow each other, with the file of `--push-digest-file`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use tandem::config::ClientOptions;
use tandem::config::client::SoloMode;
use tandem::runtime::Running;
use tandem::status::Opened;

use super::site;
use crate::harness::{
    Client, PATIENCE, Scene, block_on, client_options, gateway_options, request, start_client,
    start_gateway, wait_for,
};

const FRESH: &str = "Cache-Control: max-age=600\r\n";
const ANSWERS: &[(&str, &str, &str, &str)] = &[
    (
        "/page",
        "text/html",
        "",
        "<link rel=stylesheet href=a.css><img src=b.png><img src=c.png><script src=d.js></script>",
    ),
    ("/a.css", "text/css", FRESH, "a{}"),
    ("/b.png", "image/png", FRESH, "picture"),
    ("/c.png", "image/png", FRESH, "another"),
    ("/d.js", "text/javascript", FRESH, "d()"),
];

/// A file that is gone at the start and at the end of its test.
struct TestFile(PathBuf);

impl TestFile {
    fn new(name: &str) -> Self {
        let name = format!("tandem-digests-{name}-{}", std::process::id());
        let file = Self(std::env::temp_dir().join(name));
        // It may be missing.
        let _ = std::fs::remove_file(&file.0);
        file
    }
}

impl Drop for TestFile {
    fn drop(&mut self) {
        // The system cleans the temporary directory as well.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Starts a client process, and waits for the session that it opens ahead. A request that precedes
/// the session would precede the digest, too.
fn start(gateway: SocketAddr, file: Option<&Path>) -> (Running, SocketAddr) {
    let mut options = client_options(&format!("h2+tcp://{gateway}"));
    options.push_digest_file = file.map(Path::to_owned);
    let (running, http, _) = start_client(options);
    let begun = Instant::now();
    let is_open = || {
        let status = block_on(running.status().snapshot());
        status.sessions.iter().any(|it| it.opened == Opened::Here)
    };
    while !is_open() {
        assert!(begun.elapsed() < PATIENCE, "no session is opened ahead");
        std::thread::sleep(Duration::from_millis(5));
    }
    (running, http)
}

/// Ends a client process as the program does.
fn end(running: Running) {
    let services = running.services().clone();
    block_on(running.drain(PATIENCE));
    services.save().unwrap();
}

fn get(http: SocketAddr, origin: &Scene, path: &str, fields: &str) {
    let mut client = Client::to(http);
    client.send(request("GET", &origin.url(path), fields));
    assert_eq!(client.answer("GET").status / 100 % 2, 0, "{path}");
}

/// Loads the page in a browser with an empty cache.
fn load(http: SocketAddr, origin: &Scene, key: &str) {
    get(
        http,
        origin,
        "/page",
        &format!("Accept: text/html\r\n{key}"),
    );
    for (path, ..) in &ANSWERS[1..] {
        get(http, origin, path, &format!("Accept: */*\r\n{key}"));
    }
}

/// Returns the requests that reach the origin until it is silent.
fn rest(told: &Receiver<String>) -> Vec<String> {
    std::iter::from_fn(|| told.recv_timeout(Duration::from_millis(300)).ok()).collect()
}

/// Loads the page with a full cache in a new process. Returns the bytes that the gateway fetched
/// for nothing, as a share of the page's.
fn waste(http: SocketAddr, origin: &Scene, told: &Receiver<String>, key: &str) -> f64 {
    let fields = format!("Accept: text/html\r\n{key}");
    // The digest leaves beside the first page. On this machine, the origin may answer before the
    // gateway has read the digest, so that the page of the test is the second one.
    get(http, origin, "/other", &fields);
    rest(told);
    get(http, origin, "/page", &fields);
    let mut fetched = rest(told);
    fetched.retain(|path| path != "/page");
    let size = |path: &str| {
        ANSWERS
            .iter()
            .find(|(of, ..)| *of == path)
            .map(|it| it.3.len())
    };
    let wasted: usize = fetched.iter().filter_map(|path| size(path)).sum();
    let page: usize = ANSWERS.iter().map(|(.., body)| body.len()).sum();
    wasted as f64 / page as f64
}

#[test]
fn later_process_spares_pushes_with_a_file_of_digests() {
    let (origin, told) = site(ANSWERS);
    let file = TestFile::new("later");
    for (is_kept, key) in [
        (false, ""),
        (true, ""),
        (true, "Proxy-Authorization: Key one\r\n"),
    ] {
        let mut options = gateway_options();
        options.hold_out = Some(0.0);
        let (_gateway, gateway) = start_gateway(options);
        let kept = is_kept.then_some(file.0.as_path());
        let (first, http) = start(gateway, kept);
        load(http, &origin, key);
        wait_for(&told, ANSWERS.len());
        rest(&told);
        end(first);
        assert_eq!(file.0.exists(), is_kept, "only the option writes a file");
        let (second, http) = start(gateway, kept);
        let wasted = waste(http, &origin, &told, key);
        if is_kept && key.is_empty() {
            assert!(wasted <= 0.05, "{wasted} of the bytes");
        } else {
            assert!(wasted > 0.05, "{wasted}: nothing tells of the cache");
        }
        end(second);
    }
}

#[test]
fn file_of_digests_serves_one_gateway_only() {
    let (origin, told) = site(ANSWERS);
    let file = TestFile::new("gateways");
    let gateways = [(); 2].map(|()| {
        let mut options = gateway_options();
        options.hold_out = Some(0.0);
        start_gateway(options)
    });
    let (first, http) = start(gateways[0].1, Some(&file.0));
    load(http, &origin, "");
    wait_for(&told, ANSWERS.len());
    rest(&told);
    end(first);
    for (of, expected) in [(1, false), (0, true)] {
        let (later, http) = start(gateways[of].1, Some(&file.0));
        let wasted = waste(http, &origin, &told, "");
        assert_eq!(wasted <= 0.05, expected, "gateway {of}: {wasted}");
        end(later);
    }
}

/// A client without a gateway has no secret that could protect a section.
#[test]
fn solo_client_leaves_the_file_of_digests_empty() {
    let (origin, told) = site(ANSWERS);
    let file = TestFile::new("solo");
    let (client, http, _) = start_client(ClientOptions {
        gateway: Vec::new(),
        solo: Some(SoloMode::Direct),
        solo_allow_dest: vec!["127.0.0.0/8".parse().unwrap()],
        push_digest_file: Some(file.0.clone()),
        ..client_options("h2+tcp://127.0.0.1:1")
    });
    load(http, &origin, "");
    wait_for(&told, ANSWERS.len());
    rest(&told);
    end(client);
    let length = std::fs::metadata(&file.0).unwrap().len();
    assert_eq!(length, 16 + 32, "the name of the format, and the salt");
}

#[test]
fn foreign_file_of_digests_is_an_error() {
    let file = TestFile::new("foreign");
    std::fs::write(&file.0, "[client]\n").unwrap();
    let mut options = client_options("h2+tcp://127.0.0.1:1");
    options.push_digest_file = Some(file.0.clone());
    let role = std::sync::Arc::new(options.typed().unwrap());
    let error = block_on(Running::start(role)).unwrap_err().to_string();
    assert!(
        error.contains("push-digest-file: ") && error.contains("name another"),
        "{error}"
    );
    assert_eq!(std::fs::read_to_string(&file.0).unwrap(), "[client]\n");
}

//! Tests of the dashboard as the program serves it, and of `tandem open` and `tandem top`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::harness::{Answer, Client, PATIENCE, Scene, gateway_options, request, start_gateway};
use crate::process::{Process, file, run};

/// A client with a dashboard and a control socket.
struct Watched {
    process: Process,
    control: PathBuf,
    dashboard: SocketAddr,
}

impl Watched {
    fn client(name: &str, gateway: &str) -> Self {
        Self::client_by(name, &["--gateway", gateway])
    }

    /// Starts a client with these options for the way to sites.
    fn client_by(name: &str, way: &[&str]) -> Self {
        let control = file(name, "");
        std::fs::remove_file(&control).unwrap();
        let listen = ["client", "--listen", "http://127.0.0.1:0"];
        let watching = ["--admin", "127.0.0.1:0", "--control"];
        let path = [control.to_str().unwrap()];
        let mut process = Process::start(&[&listen[..], way, &watching, &path].concat());
        let line = process.wait_for("dashboard on ");
        let url = line.trim().split_once("dashboard on http://").unwrap().1;
        let dashboard = url.strip_suffix('/').expect("no key in a log");
        Self {
            dashboard: dashboard.parse().unwrap(),
            process,
            control,
        }
    }

    /// Runs a command for the process, and returns its output.
    fn command(&self, arguments: &[&str]) -> String {
        let control = ["--control", self.control.to_str().unwrap()];
        let (ok, out, error) = run(&[arguments, &control].concat());
        assert!(ok, "{error}");
        out
    }

    /// Returns the overview as soon as the first resource of the newest load is complete.
    fn overview_of_a_complete_load(&self, key: &str) -> serde_json::Value {
        let end = Instant::now() + PATIENCE;
        loop {
            let answer = self.get("/overview", key);
            let overview: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
            if overview["loads"][0]["resources"][0]["end"].is_number() {
                return overview;
            }
            assert!(Instant::now() < end, "{overview}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn get(&self, path: &str, secret: &str) -> Answer {
        let host = self.dashboard;
        let mut client = Client::to(host);
        client.send(format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {secret}\r\n\r\n"
        ));
        client.answer("GET")
    }
}

#[test]
fn dashboard_shows_a_page_load_to_its_user() {
    let origin = Scene::new(|_, mut client| {
        while client.request().is_some() {
            client.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    });
    let (_gateway, gateway) = start_gateway(gateway_options());
    let watched = Watched::client("dashboard-page", &format!("h2+tcp://{gateway}"));
    let mut browser = Client::to(watched.process.address);
    browser.send(request(
        "GET",
        &origin.url("/page"),
        "Accept: text/html\r\n",
    ));
    assert_eq!(browser.answer("GET").status, 200);

    let url = watched.command(&["open", "--print"]);
    let start = format!("http://{}/#", watched.dashboard);
    let code = url.trim().strip_prefix(&start).unwrap();
    let session = watched.get("/session", code);
    assert_eq!(session.status, 200);
    assert_eq!(
        watched.get("/session", code).status,
        401,
        "a code works once"
    );
    let session: serde_json::Value = serde_json::from_slice(&session.body).unwrap();
    let key = session["key"].as_str().unwrap();
    assert_eq!(watched.get("/overview", code).status, 401);
    let overview = watched.overview_of_a_complete_load(key);
    let load = &overview["loads"][0];
    assert_eq!(load["title"], origin.url("/page"));
    let page = &load["resources"][0];
    assert_eq!((&page["status"], &page["bytes"]), (&200.into(), &2.into()));
    assert_eq!(page["supply"], "requested");
    assert_eq!(overview["problems"], serde_json::json!([]));
    let route = &overview["routes"][0];
    assert_eq!(route["hosts"], "all hosts");
    assert_eq!(route["way"], format!("gateway h2+tcp://{gateway}"));
    let session = &overview["status"]["sessions"];
    let gateways: Vec<_> = session.as_array().unwrap().iter().collect();
    assert!(
        gateways
            .iter()
            .any(|it| it["gateway"] == gateway.to_string())
    );

    let top = watched.command(&["top"]);
    assert!(
        top.contains("/page") && top.contains("no problems"),
        "{top}"
    );
    let metrics = Client::to(watched.dashboard).get("/metrics");
    assert_ne!(metrics.status, 200);
}

#[test]
fn dashboard_compares_the_held_out_pages_of_solo() {
    let origin = Scene::new(|_, mut client| {
        while let Some(asked) = client.request() {
            let (kind, body) = match asked.line.contains("/page") {
                true => ("text/html", "<img src=/image.png>"),
                false => ("image/png", "image"),
            };
            let length = body.len();
            client.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n{body}"
            ));
        }
    });
    let allowed = ["--solo-allow-dest", "127.0.0.0/8", "--solo-hold-out", "50"];
    let watched = Watched::client_by(
        "dashboard-solo",
        &[&["--solo=direct"], &allowed[..]].concat(),
    );
    let counted = |top: &str, kind: &str| -> u64 {
        let (before, _) = top.split_once(kind).unwrap();
        before.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let end = Instant::now() + PATIENCE;
    for user in 0.. {
        // Each isolation key has a load of its own, which ends a second after its last response.
        for (path, accept) in [("/page", "text/html"), ("/image.png", "image/*")] {
            let fields = format!("Accept: {accept}\r\nProxy-Authorization: user{user}\r\n");
            let mut browser = Client::to(watched.process.address);
            browser.send(request("GET", &origin.url(path), &fields));
            assert_eq!(browser.answer("GET").status, 200);
        }
        let top = watched.command(&["top", "--once"]);
        let loads = [" with push", " without"].map(|kind| counted(&top, kind));
        if loads.iter().all(|count| *count >= 2) && !top.contains("too few") {
            break;
        }
        assert!(Instant::now() < end, "{top}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn dashboard_names_the_problem_and_its_remedy() {
    // No test listens on a privileged port, so nothing accepts at this address meanwhile.
    let down = "127.0.0.1:1";
    let watched = Watched::client("dashboard-down", &format!("h2+tcp://{down}"));
    let words = format!("! gateway {down} does not answer: connection refused");
    let end = Instant::now() + PATIENCE;
    loop {
        let top = watched.command(&["top", "--once"]);
        if top.contains(&words) && top.contains("is it running") {
            break;
        }
        assert!(Instant::now() < end, "{top}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn open_says_that_the_dashboard_is_off() {
    let control = file("dashboard-off", "");
    std::fs::remove_file(&control).unwrap();
    let path = control.to_str().unwrap();
    let listen = ["--listen", "h2+tcp://127.0.0.1:0", "--open"];
    let arguments = [&["gateway"][..], &listen, &["--control", path]].concat();
    let _gateway = Process::start(&arguments);
    let (ok, _, error) = run(&["open", "--print", "--control", path]);
    assert!(!ok && error.contains("--admin"), "{error}");
    let (ok, out, error) = run(&["top", "--control", path]);
    assert!(ok && out.starts_with("Tandem gateway "), "{out}{error}");
    let (ok, _, error) = run(&["top", "--control", "/nonexistent/control"]);
    assert!(
        !ok && error.contains("start a client or gateway"),
        "{error}"
    );
    let (ok, _, error) = run(&["open"]);
    assert!(!ok && error.contains("--control"), "{error}");
}

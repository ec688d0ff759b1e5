//! Page loads, measured: by Chromium and by the loader, on pages with everything that pages have.
//!
//! Needs chromium and firefox-esr; behind a link, root or user namespaces and /dev/net/tun.

mod programs;

use std::collections::HashSet;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use programs::{Scratch, output, wait};
use serde_json::Value;
use tandem_web::browser::{Browser, BrowserError, Settings};
use tandem_web::har::{Entry, valid};
use tandem_web::loader::{Loader, Protocol, Via};
use tandem_web::measure::{Client, Listen, MeasureError, Outcome, Report, Run, Served};
use tandem_web::origin::Protocols;
use tandem_web::page::{Kind, Page, Site};

const MEASURE: &str = env!("CARGO_BIN_EXE_tandem-measure");

/// Redirects, frames, imports, fonts, srcset, scripts that load scripts, errors, nothing at all; on
/// three hosts.
const EVERYTHING: &str = r#"{"name": "everything", "hosts": ["a", "b", "c"], "resources": [
    ["/", 0, "text/html", "html", 10, null, 302],
    ["/home?a=1&b=2", 0, "text/html", "html", 30000, 0],
    ["/a.css", 0, "text/css", "css", 3000, 1],
    ["/b.css", 1, "text/css", "css", 700, 2],
    ["/f.woff2", 1, "font/woff2", "font", 5000, 3],
    ["/g.woff2", 2, "font/woff2", "font", 900, 3],
    ["/bg.png", 0, "image/png", "image", 800, 2],
    ["/bg2.png", 2, "image/png", "image", 801, 2],
    ["/a.js", 2, "text/javascript", "script", 4000, 1],
    ["/b.js", 0, "text/javascript", "script", 900, 8],
    ["/late.css", 0, "text/css", "css", 300, 9],
    ["/late.png", 1, "image/png", "image", 300, 10],
    ["/data", 1, "application/json", "fetch", 2000, 9],
    ["/beacon", 2, "text/plain", "fetch", 0, 9, 204],
    ["/pixel", 1, "image/gif", "image", 0, 9, 204],
    ["/frame", 1, "text/html", "html", 1500, 1],
    ["/i.svg", 1, "image/svg+xml", "image", 300, 15],
    ["/c.js", 1, "text/javascript", "script", 200, 15],
    ["/gone.png", 0, "image/png", "image", 70, 1, 404],
    ["/gone.css", 0, "text/css", "css", 90, 1, 404],
    ["/none.png", 0, "image/png", "image", 0, 1, 204],
    ["/moved.png", 2, "image/png", "image", 0, 1, 301],
    ["/there.png", 1, "image/webp", "image", 12000, 21],
    ["/new.webp", 1, "image/webp", "image", 900, 1],
    ["/x.jpg", 2, "image/jpeg", "image", 40, 1],
    ["/script.html", 0, "text/html", "html", 400, 9]
]}"#;

fn everything() -> Page {
    Page::from_json("", EVERYTHING.as_bytes()).expect("valid")
}

fn listen(shards: usize, tls: Option<Protocols>) -> Listen {
    Listen {
        address: ([127, 0, 0, 1], 0).into(),
        shards,
        authorities: Vec::new(),
        tls,
    }
}

async fn load(client: &Client, served: &Served) -> Outcome {
    let outcome = client.load(served.site()).await.expect("loads");
    assert!(outcome.is_complete(), "{:?}", outcome.faults);
    assert_eq!(outcome.requests, served.site().page().resources.len());
    check_times(&outcome);
    outcome
}

/// Phases without gaps or negative spans, inside the times of the whole.
fn check_times(outcome: &Outcome) {
    let Outcome {
        time_on_wire_ms,
        page_load_ms,
        first_byte_ms,
        har,
        ..
    } = outcome;
    let last = har.entries.iter().map(Entry::end).fold(0.0, f64::max);
    assert!(*first_byte_ms > 0.0 && first_byte_ms <= page_load_ms);
    assert!(*time_on_wire_ms > 0.0 && *time_on_wire_ms <= last + 0.001);
    for entry in &har.entries {
        let t = &entry.timings;
        let phases = [
            t.blocked,
            t.dns,
            t.connect,
            t.ssl,
            Some(t.send),
            Some(t.wait),
            Some(t.receive),
        ];
        assert!(
            phases.iter().flatten().all(|&phase| phase >= 0.0),
            "{}: {t:?}",
            entry.url
        );
        assert!(t.ssl.unwrap_or(0.0) <= t.connect.unwrap_or(0.0) + 0.001);
    }
}

fn entry<'a>(outcome: &'a Outcome, site: &Site, index: usize) -> &'a Entry {
    let url = site.url(index);
    outcome
        .har
        .entries
        .iter()
        .find(|entry| entry.url == url)
        .expect("asked for")
}

/// Checks that no resource is requested before its parent has begun to arrive. A parent that must
/// be complete to run has arrived.
fn check_order(outcome: &Outcome, site: &Site) {
    for (index, resource) in site.page().resources.iter().enumerate() {
        let Some(parent) = resource.parent else {
            continue;
        };
        let (child, cause) = (entry(outcome, site, index), entry(outcome, site, parent));
        let whole = matches!(site.page().resources[parent].kind, Kind::Css | Kind::Script);
        let known = if whole {
            cause.end()
        } else {
            cause.first_received()
        };
        // Chromium's clocks of different processes agree to a millisecond or so.
        assert!(
            child.start >= known - 5.0,
            "{} at {} before {} at {known}",
            child.url,
            child.start,
            cause.url
        );
    }
}

#[tokio::test]
async fn chromium_loads_what_the_model_says() {
    let client = Client::Browser(Settings::default());
    for (shards, tls, protocol) in [
        (1, None, "http/1.1"),
        (3, None, "http/1.1"),
        (3, Some(Protocols::Both), "h2"),
        (1, Some(Protocols::Http1), "http/1.1"),
    ] {
        let served = Served::start(everything(), &listen(shards, tls))
            .await
            .expect("serves");
        let outcome = load(&client, &served).await;
        check_order(&outcome, served.site());
        assert!(
            outcome
                .har
                .entries
                .iter()
                .all(|entry| entry.protocol == protocol),
            "{shards} {tls:?}"
        );
        assert_eq!(outcome.phases.ssl.is_some(), tls.is_some());
        assert_eq!(outcome.body_bytes, bodies_read(served.site()));
        // Of the document's own: an error with an image, nothing, a redirect, srcset, and another;
        // frames of another origin do not tell.
        let (images, decoded) = outcome.images.expect("a browser tells");
        let of_frame = usize::from(shards == 1);
        assert_eq!(
            (images, decoded),
            (5 + of_frame, 4 + of_frame),
            "{shards} {tls:?}"
        );
        assert!(served.counts().requests >= 26);
        let document = entry(&outcome, served.site(), 1);
        assert!(
            document
                .request_fields
                .iter()
                .any(|(name, _)| name.eq_ignore_ascii_case("user-agent"))
        );
        assert_eq!((document.status, document.kind.as_str()), (200, "Document"));
    }
}

/// Bodies of redirects, and of errors instead of style sheets, are not read.
fn bodies_read(site: &Site) -> u64 {
    let read = site
        .page()
        .resources
        .iter()
        .enumerate()
        .filter(|(_, resource)| {
            let useless = resource.kind == Kind::Css && resource.status >= 400;
            !resource.is_redirect() && !useless
        });
    read.map(|(index, _)| site.asset(index).body.len() as u64)
        .sum()
}

#[tokio::test]
async fn every_built_in_page_in_chromium() {
    for name in ["demo", "twitter", "youtube", "gallery:3x60", "thesis"] {
        let served = Served::start(Page::open(name).expect("built in"), &listen(0, None))
            .await
            .expect("serves");
        let outcome = load(&Client::Browser(Settings::default()), &served).await;
        check_order(&outcome, served.site());
        let (images, decoded) = outcome.images.expect("a browser tells");
        assert!(
            images > 0 && images == decoded,
            "{name}: {decoded} of {images} images"
        );
        if name == "thesis" {
            assert_eq!((outcome.body_bytes, images), (3_560_921, 1311));
            assert!(outcome.connections >= 6);
        }
    }
}

/// Uses names that only the browser's rules know, and a proxy that is no proxy: its requests show
/// their form.
#[tokio::test]
async fn names_by_rules_and_proxies() {
    let authorities = vec!["a.example".to_owned(), "b.example:81".to_owned()];
    let served = Served::start(
        everything(),
        &Listen {
            authorities,
            ..listen(2, None)
        },
    )
    .await
    .expect("serves");
    let addresses = served.addresses();
    let resolve = vec![
        ("a.example".to_owned(), addresses[0].to_string()),
        ("b.example".to_owned(), addresses[1].to_string()),
    ];
    let outcome = load(
        &Client::Browser(Settings {
            resolve: resolve.clone(),
            ..Settings::default()
        }),
        &served,
    )
    .await;
    let ports = outcome
        .har
        .entries
        .iter()
        .filter_map(|entry| entry.server.clone())
        .collect::<HashSet<_>>();
    assert_eq!(ports, addresses.iter().map(ToString::to_string).collect());
    load(
        &Client::Loader(Loader {
            resolve,
            ..Loader::new(Via::Direct)
        }),
        &served,
    )
    .await;
    // An origin takes requests in absolute form as well, and so can stand for a proxy.
    let proxy = Some(format!("http://{}", addresses[0]));
    let outcome = load(
        &Client::Browser(Settings {
            proxy,
            ..Settings::default()
        }),
        &served,
    )
    .await;
    assert!(
        outcome
            .har
            .entries
            .iter()
            .all(|entry| entry.server == Some(addresses[0].to_string()))
    );
}

#[tokio::test]
async fn faults_of_a_load_are_reported() {
    // The served page is not the model's: different resources are faults, and absent ones are
    // missing.
    let served = Served::start(Page::gallery(4, 700), &listen(1, None))
        .await
        .expect("serves");
    let mut other = Page::gallery(5, 700);
    other.resources[2].size = 900;
    other.resources[3].status = 500;
    let model = Site::new(other, served.site().authorities()).expect("valid");
    let chromium = Client::Browser(Settings::default());
    let outcome = chromium.load(&model).await.expect("loads");
    assert_eq!(
        (outcome.failed, outcome.missing, outcome.is_complete()),
        (2, 1, false)
    );
    let faults = outcome.faults.join("\n");
    for fault in [
        "0001.png: 700 of 900 bytes",
        "0002.png: status 200 instead of 500",
        "0004.png: not asked for",
    ] {
        assert!(faults.contains(fault), "{faults}");
    }
    // No origin, no proxy, no document.
    let nowhere = served.site().clone();
    drop(served);
    let error = chromium.load(&nowhere).await.expect_err("nobody listens");
    assert!(
        matches!(&error, MeasureError::Browser(BrowserError::Navigation { why, .. }) if why.contains("REFUSED")),
        "{error}"
    );
    let proxy = Some("http://127.0.0.1:1".to_owned());
    let error = Client::Browser(Settings {
        proxy,
        ..Settings::default()
    })
    .load(&nowhere)
    .await
    .expect_err("no proxy");
    assert!(
        error.to_string().contains("ERR_PROXY_CONNECTION_FAILED"),
        "{error}"
    );
    let list = Site::new(Page::uniform(2, 100), &["127.0.0.1:9"]).expect("valid");
    assert!(matches!(
        chromium.load(&list).await,
        Err(MeasureError::Page(_))
    ));
    // The program is absent, and then it is no Chromium.
    let with = |program: &str| Settings {
        program: Some(program.into()),
        ..Settings::default()
    };
    let error = Browser::start(&with("/nonexistent"))
        .await
        .expect_err("there is none");
    assert!(
        error.to_string().contains("apt-get install chromium"),
        "{error}"
    );
    let error = Browser::start(&with("/bin/false"))
        .await
        .expect_err("it is none");
    assert!(matches!(error, BrowserError::Ended { .. }), "{error}");
}

/// A response that never comes is awaited until the deadline. Nothing is left of the browser then.
#[tokio::test]
async fn deadlines() {
    let served = Served::start(Page::gallery(1, 700), &listen(1, None))
        .await
        .expect("serves");
    let url = format!("http://{}/?delay=600000", served.addresses()[0]);
    let mut browser = Browser::start(&Settings::default()).await.expect("starts");
    // A paused clock passes over all waiting, however slow the start of Chromium was.
    let pause = async {
        while served.counts().requests == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        // Chromium reports the request on another channel.
        tokio::time::sleep(Duration::from_secs(2)).await;
        tokio::time::pause();
        std::future::pending::<()>().await;
    };
    let wanted = HashSet::new();
    let error = tokio::select! {
        loaded = browser.load(&url, &wanted) => loaded.expect_err("too late"),
        () = pause => unreachable!("it is pending"),
    };
    assert!(
        matches!(
            error,
            BrowserError::Deadline {
                done: 0,
                open: 1,
                loaded: false,
                ..
            }
        ),
        "{error}"
    );
    let profile = browser.profile().to_owned();
    assert!(profile.exists());
    drop(browser);
    assert!(!profile.exists());
}

/// Profiles of a process's browsers.
fn profiles(process: u32) -> Vec<PathBuf> {
    let start = format!("tandem-browser-{process}-");
    let entries = std::fs::read_dir(std::env::temp_dir()).expect("a temporary directory");
    let entries = entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&start));
    entries.map(|entry| entry.path()).collect()
}

/// Returns the number of processes that have this text in their command line.
fn processes(text: &str) -> usize {
    let lines = std::fs::read_dir("/proc").expect("procfs").flatten();
    let lines = lines.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines
        .filter(|line| String::from_utf8_lossy(line).contains(text))
        .count()
}

/// However it ends, nothing stays: neither the browser nor its profile.
#[test]
fn nothing_is_left() {
    let signals = [libc::SIGTERM, libc::SIGKILL];
    for (browser, file) in [("chromium", "Default"), ("firefox", "cert9.db")] {
        for signal in signals {
            nothing_is_left_of(browser, file, signal);
        }
    }
}

/// Kills the program once the browser has made this file in its profile.
fn nothing_is_left_of(browser: &str, file: &str, signal: i32) {
    let mut command = Command::new(MEASURE);
    command
        .args(["page", "thesis", "--browser", browser, "--loads", "100"])
        .stdout(Stdio::null());
    let mut program = programs::Running(command.spawn().expect("the program starts"));
    let id = program.0.id();
    let profile = wait("a running browser", Duration::from_secs(60), || {
        profiles(id)
            .pop()
            .filter(|profile| profile.join(file).exists())
    });
    let name = profile
        .file_name()
        .expect("a name")
        .to_string_lossy()
        .into_owned();
    assert!(processes(&name) > 0);
    tandem_net::emulator::sys::kill(id, signal).expect("it runs");
    program.0.wait().expect("a child");
    wait("the end of the browser", Duration::from_secs(60), || {
        (processes(&name) == 0).then_some(())
    });
    wait("the end of its profile", Duration::from_secs(60), || {
        (!profile.exists()).then_some(())
    });
}

/// A load, written as a HAR file and read as a page, is the page that was loaded.
#[tokio::test]
async fn har_files_come_back_as_pages() {
    let served = Served::start(everything(), &listen(3, None))
        .await
        .expect("serves");
    let loader = |protocol| {
        Client::Loader(Loader {
            protocol,
            ..Loader::new(Via::Direct)
        })
    };
    for client in [
        loader(Protocol::Http1),
        loader(Protocol::H2),
        Client::Browser(Settings::default()),
    ] {
        let outcome = load(&client, &served).await;
        let har = outcome.har.to_json(&Value::Null);
        assert_eq!(valid::problems(&har), Vec::<String>::new());
        for entry in har["log"]["entries"].as_array().expect("a list") {
            let timings = &entry["timings"];
            let phases = ["blocked", "dns", "connect", "send", "wait", "receive"];
            let sum: f64 = phases
                .iter()
                .filter_map(|name| timings[name].as_f64())
                .filter(|&time| time >= 0.0)
                .sum();
            assert!(
                (sum - entry["time"].as_f64().expect("a number")).abs() < 0.01,
                "{entry}"
            );
            assert_eq!(
                entry["startedDateTime"].as_str().map(str::len),
                Some("2026-01-01T00:00:00.000Z".len())
            );
        }
        let again = Page::from_json("again", har.to_string().as_bytes()).expect("a page");
        let (site, page) = (served.site(), served.site().page());
        assert_eq!(again.resources.len(), page.resources.len());
        for (index, resource) in page.resources.iter().enumerate() {
            let found = again
                .resources
                .iter()
                .find(|r| r.path == resource.path)
                .expect("there");
            let read = !resource.is_redirect() && found.size > 0;
            let size = if read {
                site.asset(index).body.len()
            } else {
                found.size
            };
            assert_eq!(
                (found.kind, found.status, found.size),
                (resource.kind, resource.status, size),
                "{}",
                found.path
            );
        }
    }
}

#[tokio::test]
async fn reports() {
    let served = Served::start(Page::twitter(), &listen(1, None))
        .await
        .expect("serves");
    let mut report = Report::new(Run::here(7), "a \"page\", twice".into());
    for _ in 0..2 {
        report.add(load(&Client::Loader(Loader::new(Via::Direct)), &served).await);
    }
    let json = report.json();
    assert_eq!(json["run"]["seed"], 7);
    assert!(
        json["run"]["machine"]["kernel"]
            .as_str()
            .is_some_and(|kernel| !kernel.is_empty())
    );
    assert_eq!(json["run"]["programs"].as_array().map(Vec::len), Some(1));
    assert_eq!(json["loads"].as_array().map(Vec::len), Some(2));
    assert_eq!(json["summary"]["requests"]["median"], 7.0);
    assert_eq!(json["loads"][0]["body_bytes"], 7 * 46_400);
    let csv = report.csv();
    let lines: Vec<&str> = csv.lines().filter(|line| !line.starts_with('#')).collect();
    assert!(csv.starts_with("# ") && lines.len() == 3);
    assert!(lines[1].starts_with("\"a \"\"page\"\", twice\",loader "));
    let columns = lines[0].split(',').count();
    assert!(
        lines[1..]
            .iter()
            .all(|line| line.replacen(", twice", " twice", 1).split(',').count() == columns)
    );
    assert!(report.text().contains("time_on_wire_ms"));
}

/// The program, with all its files; and the same page from two programs, one of which is behind a
/// link that counts.
#[test]
fn the_program_behind_a_link() {
    programs::require(&[("chromium", "chromium")]);
    let scratch = Scratch::new("measure");
    let file = |name: &str| scratch.file(name).display().to_string();
    let mut origin = Command::new(MEASURE);
    origin
        .args(["serve", "gallery:20x3000", "--listen", "0.0.0.0:0", "--tls"])
        .stderr(Stdio::piped());
    let mut origin = programs::Running(origin.spawn().expect("the program starts"));
    let mut said = std::io::BufReader::new(origin.0.stderr.take().expect("piped"));
    let mut line = String::new();
    std::io::BufRead::read_line(&mut said, &mut line).expect("a line");
    let port = line
        .split_whitespace()
        .find_map(|word| word.strip_prefix("0.0.0.0:"))
        .expect("an address");
    let load = format!("{MEASURE} load gallery:20x3000 --tls --authority $TANDEM_LINK_PEER:{port}");
    let (json, csv, har) = (file("a.json"), file("a.csv"), file("a.har"));
    let script = format!(
        "{load} --protocol h2 --quiet --json {json} && {load} --browser chromium --loads 2 --csv {csv} --har {har} --json -"
    );
    let told = output(
        Command::new(programs::built("tandem-link", "tandem-net"))
            .args(["--rtt", "60ms", "--quiet", "--", "sh", "-c", &script]),
    );
    let read = |path: &str| std::fs::read_to_string(path).expect("written");
    let by_loader: Value = serde_json::from_str(&read(&json)).expect("JSON");
    let by_chromium: Value = serde_json::from_str(&told).expect("JSON");
    for (run, at_least) in [(&by_loader, 180.0), (&by_chromium, 240.0)] {
        for load in run["loads"].as_array().expect("a list") {
            let wire = &load["wire"];
            // A packet has at most 1460 bytes of payload, and TLS and heads come on top of the
            // bodies.
            assert!(
                wire["down"]["bytes"].as_u64().expect("counted") > 63_000,
                "{load}"
            );
            assert!(
                wire["down"]["packets"].as_u64().expect("counted") > 63_000 / 1460,
                "{load}"
            );
            assert!(
                wire["up"]["packets"].as_u64().expect("counted") >= 10 && wire["lost"] == 0,
                "{load}"
            );
            // TCP, TLS, the document and its images each cost a round trip, at least.
            assert!(
                load["page_load_ms"].as_f64().expect("a time") >= at_least,
                "{load}"
            );
        }
        assert!(run["run"]["link"].is_array());
    }
    assert_eq!(by_chromium["loads"].as_array().map(Vec::len), Some(2));
    assert_eq!(
        read(&csv)
            .lines()
            .filter(|line| !line.starts_with('#'))
            .count(),
        3
    );
    for name in ["a.har", "a.2.har"] {
        let page = Page::read(&scratch.file(name)).expect("a page");
        assert_eq!(page.resources.len(), 21);
    }
}

#[test]
fn failures_of_the_program() {
    let mut none = Command::new(MEASURE);
    none.args(["page", "twitter", "--browser", "chromium"])
        .env("TANDEM_CHROMIUM", "/bin/false")
        .stderr(Stdio::piped());
    let child = none.spawn().expect("the program starts");
    let id = child.id();
    let out = child.wait_with_output().expect("a child");
    assert!(
        !out.status.success() && String::from_utf8_lossy(&out.stderr).contains("the browser ended")
    );
    assert!(profiles(id).is_empty());
    let full = ["page", "twitter", "--quiet", "--json", "/dev/full"];
    let out = Command::new(MEASURE).args(full).output().expect("starts");
    assert!(
        !out.status.success()
            && String::from_utf8_lossy(&out.stderr).contains("cannot write /dev/full")
    );
    let out = Command::new(MEASURE)
        .args(["load", "twitter", "--authority", "127.0.0.1:1"])
        .output()
        .expect("starts");
    assert!(
        !out.status.success()
            && String::from_utf8_lossy(&out.stderr).contains("cannot connect to 127.0.0.1:1")
    );
}

//! HAR files, reports, and the program behind a link.

use std::process::{Command, Stdio};

use serde_json::Value;
use tandem_web::browser::Settings;
use tandem_web::har::valid;
use tandem_web::loader::{Loader, Protocol, Via};
use tandem_web::measure::{Client, Report, Run, Served};
use tandem_web::page::Page;

use crate::programs::{Scratch, output};
use crate::{MEASURE, everything, listen, load};

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
pub(super) async fn reports() {
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
    crate::programs::require(&[("chromium", "chromium")]);
    let scratch = Scratch::new("measure");
    let file = |name: &str| scratch.file(name).display().to_string();
    let mut origin = Command::new(MEASURE);
    origin
        .args(["serve", "gallery:20x3000", "--listen", "0.0.0.0:0", "--tls"])
        .stderr(Stdio::piped());
    let mut origin = crate::programs::Running(origin.spawn().expect("the program starts"));
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
        Command::new(crate::programs::built("tandem-link", "tandem-net"))
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

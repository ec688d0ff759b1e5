//! The output of commands that end by themselves: old flags, completions, manual pages, the demo.

use std::io::Read;

use crate::harness::{Client, Scene};
use crate::process::{Process, run, tandem};

#[test]
fn compatibility_commands_accept_old_flags() {
    let origin = Scene::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let gateway = Process::start(&[
        "microspdy2http",
        "-p",
        "0",
        "-l",
        "127.0.0.1",
        "-r",
        "-t",
        "-b",
        &origin.address.to_string(),
        "-T",
        "10",
        "-4",
    ]);
    let client = Process::start(&[
        "mhd2spdy",
        "-p",
        "0",
        "-b",
        &format!("http://{}", gateway.address),
        "-o",
        "-s",
    ]);
    assert_eq!(
        Client::to(client.address).get("http://site.example/").body,
        b"ok"
    );
    client.signal("INT");
    let mut client = client;
    assert!(client.child.wait().unwrap().success());
    let mut statistics = String::new();
    client
        .child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut statistics)
        .unwrap();
    assert!(
        statistics.contains("tandem_exchanges_total 1"),
        "{statistics}"
    );
    drop(gateway);
    let (ok, _, error) = run(&["microspdy2http", "-p", "0"]);
    assert!(!ok && error.contains("--no-tls"), "{error}");
}

#[test]
fn program_prints_completions_man_page_and_help() {
    for shell in ["bash", "zsh", "fish"] {
        let (ok, out, _) = run(&["completions", shell]);
        assert!(ok && out.contains("tandem"), "{shell}");
    }
    let (ok, out, _) = run(&["man"]);
    assert!(ok && out.contains(".TH tandem 1"), "{out}");
    let (ok, out, _) = run(&["man", "client"]);
    let out = out.replace("\\-", "-");
    assert!(ok && out.contains("tandem-client 1"), "{out}");
    assert!(out.contains("early-connect"), "{out}");
    let (ok, out, _) = run(&["client", "--help"]);
    assert!(ok && out.contains("Slow path:\n") && out.contains("--via socks5://"));
    assert!(!out.contains("tandem gateway --listen"), "{out}");
    let (ok, out, _) = run(&["gateway", "--help"]);
    assert!(ok && out.contains("Destinations:\n") && !out.contains("tandem client"));
    let (ok, _, error) = run(&["client"]);
    assert!(!ok && error.contains("gateway"), "{error}");
}

#[test]
fn completions_report_a_failed_write() {
    let full = std::fs::File::options().write(true).open("/dev/full");
    let mut command = tandem(&["completions", "bash"]);
    let output = command.stdout(full.unwrap()).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("No space left"), "{error}");
}

/// Each page that a page refers to is among those that are written.
#[test]
fn manual_pages_refer_to_pages_that_exist() {
    let directory = std::env::temp_dir().join(format!("tandem-man-{}", std::process::id()));
    let (ok, _, error) = run(&["man", "--to", directory.to_str().unwrap()]);
    assert!(ok, "{error}");
    let pages: Vec<_> = std::fs::read_dir(&directory)
        .unwrap()
        .map(|page| page.unwrap().path())
        .collect();
    assert!(pages.len() > 9, "{pages:?}");
    for page in &pages {
        let text = std::fs::read_to_string(page).unwrap().replace("\\-", "-");
        let referred = text.lines().filter_map(|line| line.strip_suffix("(1)"));
        for name in referred {
            let other = directory.join(format!("{name}.1"));
            assert!(other.exists(), "{}: {name}(1)", page.display());
        }
    }
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn demo_prints_json() {
    let (ok, out, error) = run(&["demo", "--json", "--rtt", "40ms", "--rate", "100mbit"]);
    assert!(ok, "{error}");
    let outcome: serde_json::Value = serde_json::from_str(&out).unwrap();
    let rows = outcome["rows"].as_array().unwrap();
    assert!(rows.len() >= 2);
    for row in rows {
        assert!(row["time_s"].as_f64().unwrap() > 0.0 && row["bytes_up"].as_u64().unwrap() > 0);
        assert_eq!(row["requests"], outcome["resources"]);
    }
    assert!(
        outcome["ratio_time"].as_f64().unwrap() > 0.0
            && outcome["ratio_bytes"].as_f64().unwrap() > 0.0
    );
}

/// The second load of a client would use dictionaries of the first one, and need fewer bytes.
#[test]
fn demo_measures_each_row_with_a_new_pair() {
    let (ok, out, error) = run(&["demo", "--json", "--rtt", "4ms", "--rate", "1gbit"]);
    assert!(ok, "{error}");
    let outcome: serde_json::Value = serde_json::from_str(&out).unwrap();
    let bytes = |row: usize| outcome["rows"][row]["bytes_down"].as_f64().unwrap();
    let (six, hundred) = (bytes(1), bytes(2));
    assert!((hundred / six - 1.0).abs() < 0.05, "{out}");
}

/// Browsers send no request for a loopback address to a proxy. The page therefore has a name that
/// no resolver knows, and only the pair answers for it.
#[test]
fn demo_serves_its_page_to_a_browser_through_the_pair() {
    let arguments = ["demo", "--keep", "--rtt", "4ms", "--rate", "1gbit"];
    let mut demo = Process::start(&arguments);
    let url = demo.wait_for("demo.example").trim().to_owned();
    let page = Client::to(demo.address).get(&url);
    assert_eq!(page.status, 200, "{url}");
    let other = Scene::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let other = Client::to(demo.address).get(&format!("http://{}/", other.address));
    assert_eq!(other.body, b"ok", "other sites take the other gateway");
    demo.signal("INT");
    assert!(demo.child.wait().unwrap().success());
}

#[test]
fn demo_names_no_address_that_has_ended() {
    let (ok, out, error) = run(&["demo", "--rtt", "4ms", "--rate", "1gbit"]);
    assert!(ok, "{error}");
    assert!(out.contains("demo --keep"), "{out}");
    assert!(!out.contains("127.0.0.1"), "{out}");
}

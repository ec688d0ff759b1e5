//! Tests of the observation points of running programs: the control socket, and the USDT probes in
//! the binary.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tandem::probe::POINTS;

use crate::certificates::Certificates;
use crate::harness::{Client, PATIENCE, Scene, request};
use crate::process::{Process, run, tandem};

/// Returns the path of a control socket for one test.
fn socket(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("tandem-probe-{}-{name}", std::process::id()))
}

fn probe(control: &Path, arguments: &[&str]) -> (bool, String, String) {
    run(&[
        &["probe"],
        arguments,
        &["--control", control.to_str().unwrap()],
    ]
    .concat())
}

fn json(control: &Path, arguments: &[&str]) -> Value {
    let (ok, out, error) = probe(control, &[arguments, &["--json"]].concat());
    assert!(ok, "{error}");
    serde_json::from_str(&out).unwrap()
}

/// Returns the count of a point in a dump, or 0 if the dump lacks the point.
fn count(dump: &Value, point: &str) -> u64 {
    let found = dump
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["point"] == point);
    found.map_or(0, |row| row["count"].as_u64().unwrap())
}

struct Pair {
    gateway: Process,
    client: Process,
    at_gateway: PathBuf,
    at_client: PathBuf,
}

impl Drop for Pair {
    fn drop(&mut self) {
        // Killed programs leave their socket files behind.
        for socket in [&self.at_gateway, &self.at_client] {
            let _ = std::fs::remove_file(socket);
        }
    }
}

fn pair(name: &str, options: &[&str]) -> Pair {
    pair_over(name, "h2+tcp", "", "", options)
}

/// Starts a pair over another transport; `gateway_has` and `client_has` follow the address in the
/// endpoint of each end.
fn pair_over(
    name: &str,
    transport: &str,
    gateway_has: &str,
    client_has: &str,
    options: &[&str],
) -> Pair {
    let (at_gateway, at_client) = (
        socket(&format!("{name}-gateway")),
        socket(&format!("{name}-client")),
    );
    let shared = |role: &'static str, control: &Path| -> Vec<String> {
        let own = [role, "--control", control.to_str().unwrap()];
        own.iter().chain(options).map(ToString::to_string).collect()
    };
    let start = |mut arguments: Vec<String>, more: &[&str]| {
        arguments.extend(more.iter().map(ToString::to_string));
        Process::start(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let listen = format!("{transport}://127.0.0.1:0{gateway_has}");
    let listen = [
        "--listen",
        &listen,
        "--open",
        "--allow-dest",
        "127.0.0.0/8",
        "--workers",
        "2",
    ];
    let gateway = start(shared("gateway", &at_gateway), &listen);
    let to = format!("{transport}://{}{client_has}", gateway.address);
    let own = [
        "--listen",
        "http://127.0.0.1:0",
        "--gateway",
        &to,
        "--preconnect=false",
    ];
    let client = start(shared("client", &at_client), &own);
    Pair {
        gateway,
        client,
        at_gateway,
        at_client,
    }
}

#[test]
fn points_count_events_only_while_enabled() {
    let origin = Scene::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let mut pair = pair("counting", &[]);
    let load = |times| {
        (0..times).for_each(|_| {
            assert_eq!(
                Client::to(pair.client.address).get(&origin.url("/")).body,
                b"ok"
            )
        })
    };
    load(2);
    let (ok, _, error) = probe(&pair.at_client, &["dump"]);
    assert!(
        !ok && error.contains("nothing was kept"),
        "off unless switched on: {error}"
    );

    json(&pair.at_gateway, &["on", "all"]);
    json(&pair.at_client, &["on", "session"]);
    json(&pair.at_client, &["on", "exchange.head"]);
    load(5);
    let gateway = json(&pair.at_gateway, &["dump"]);
    for point in [
        "exchange.head",
        "exchange.whole",
        "origin.head",
        "headers.encode",
    ] {
        assert_eq!(count(&gateway, point), 5, "{point}");
    }
    for point in [
        "queue.core",
        "socket.read",
        "socket.write",
        "socket.wait",
        "headers.decode",
    ] {
        assert!(count(&gateway, point) > 0, "{point}");
    }
    assert_eq!(count(&gateway, "front.handshake"), 0, "no TLS here");
    let client = json(&pair.at_client, &["dump", "all"]);
    assert_eq!(client.as_array().unwrap().len(), 3, "{client}");
    for point in ["exchange.head", "session.stream", "session.wait"] {
        assert_eq!(count(&client, point), 5, "{point}");
    }
    let waits = &json(&pair.at_client, &["dump", "session.wait"])[0];
    assert_eq!(
        (&waits["max"], &waits["distribution"]),
        (&0.into(), &serde_json::json!([[0, 1.0]])),
        "it stood before"
    );

    json(&pair.at_gateway, &["off", "exchange"]);
    load(1);
    let gateway = json(&pair.at_gateway, &["dump"]);
    assert_eq!(
        (
            count(&gateway, "exchange.head"),
            count(&gateway, "origin.head")
        ),
        (5, 6),
        "what was kept stays"
    );

    pair.client.signal("TERM");
    assert!(pair.client.child.wait().unwrap().success());
    assert!(!pair.at_client.exists(), "its name goes with it");
    pair.gateway.signal("INT");
    assert!(pair.gateway.child.wait().unwrap().success());
    assert!(!pair.at_gateway.exists());
}

#[test]
fn first_exchange_records_wait_for_session() {
    let origin = Scene::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let pair = pair("session", &[]);
    json(&pair.at_client, &["on", "session"]);
    assert_eq!(
        Client::to(pair.client.address).get(&origin.url("/")).body,
        b"ok"
    );
    let dump = json(&pair.at_client, &["dump"]);
    for point in [
        "session.dial",
        "session.answer",
        "session.wait",
        "session.stream",
    ] {
        assert_eq!(count(&dump, point), 1, "{point}: {dump}");
    }
    let of = |point| {
        dump.as_array()
            .unwrap()
            .iter()
            .find(|row| row["point"] == point)
            .unwrap()["min"]
            .as_u64()
            .unwrap()
    };
    assert!(
        of("session.wait") > 0 && of("session.answer") >= of("session.wait"),
        "{dump}"
    );
    assert!(of("session.answer") > of("session.dial"), "{dump}");
}

#[test]
fn gateway_measures_client_handshakes() {
    let origin = Scene::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let certificates = Certificates::new("probes");
    let own = format!("?{}", certificates.identity());
    let pair = pair_over(
        "tls",
        "h2+tls",
        &own,
        &format!("?ca={}", certificates.path("ca.pem")),
        &[],
    );
    json(&pair.at_gateway, &["on", "front"]);
    json(&pair.at_gateway, &["on", "origin"]);
    assert_eq!(
        Client::to(pair.client.address).get(&origin.url("/")).body,
        b"ok"
    );
    let dump = json(&pair.at_gateway, &["dump"]);
    let counts = ["front.handshake", "origin.dial", "origin.head"].map(|point| count(&dump, point));
    assert_eq!(counts, [1, 1, 1], "{dump}");
}

/// The windows are 64 KiB, the response needs hundreds of them, and the browser pauses its reading.
/// The gateway's streams then wait for credit, and its send queue is full.
#[test]
fn gateway_points_record_closed_windows() {
    let body = vec![b'x'; 32 << 20];
    let origin = Scene::new(move |_, mut client| {
        while client.request().is_some() {
            client.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n",
                body.len()
            ));
            client.send(&body);
        }
    });
    let pair = pair("window", &["--path-rate", "1mbit", "--path-rtt", "1ms"]);
    json(&pair.at_gateway, &["on", "flow"]);
    json(&pair.at_gateway, &["on", "queue"]);
    json(&pair.at_client, &["on", "queue"]);
    let mut browser = Client::to(pair.client.address);
    browser.send(request("GET", &origin.url("/"), ""));
    let begun = Instant::now();
    loop {
        let dump = json(&pair.at_gateway, &["dump"]);
        if count(&dump, "flow.stream") > 0 && count(&dump, "queue.full") > 0 {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{dump}");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(browser.answer("GET").body.len(), 32 << 20);
    let dump = json(&pair.at_gateway, &["dump"]);
    assert!(count(&dump, "flow.stream") > 0, "{dump}");
    assert!(
        count(&dump, "queue.core") > 10 && count(&dump, "queue.full") > 0,
        "{dump}"
    );
    let client = json(&pair.at_client, &["dump"]);
    assert!(
        count(&client, "queue.reader") > 10 && count(&client, "queue.core") == 0,
        "it sends no body: {client}"
    );
    for row in dump.as_array().unwrap() {
        let steps: Vec<(u64, f64)> = serde_json::from_value(row["distribution"].clone()).unwrap();
        assert!(
            steps
                .windows(2)
                .all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1),
            "{row}"
        );
        assert_eq!(steps.last().map(|(_, share)| *share), Some(1.0));
        let (min, max) = (row["min"].as_u64().unwrap(), row["max"].as_u64().unwrap());
        // A step stands for values that agree in three digits.
        assert!((min..=min + min / 500).contains(&steps[0].0), "{row}");
        assert_eq!(steps[steps.len() - 1].0, max);
    }
    let (_, csv, _) = probe(&pair.at_gateway, &["dump", "queue.core", "--csv"]);
    let mut lines = csv.lines();
    assert_eq!(lines.next(), Some("point,unit,value,share"));
    assert!(
        lines
            .next()
            .is_some_and(|line| line.starts_with("queue.core,ns,")),
        "{csv}"
    );
    let (_, table, _) = probe(&pair.at_gateway, &["dump"]);
    assert!(
        table.lines().any(|line| line.starts_with("flow.stream ")),
        "{table}"
    );
}

#[test]
fn control_socket_is_private_with_clear_errors() {
    let pair = pair("errors", &[]);
    let named = std::fs::symlink_metadata(&pair.at_client).unwrap();
    assert!(named.file_type().is_socket() && named.mode() & 0o777 == 0o600);
    let (ok, list, _) = probe(&pair.at_client, &["list"]);
    assert!(
        ok && list.contains("queue.core") && list.contains("[off]"),
        "{list}"
    );
    assert_eq!(
        json(&pair.at_client, &["list"]).as_array().unwrap().len(),
        POINTS.len()
    );
    let (ok, _, error) = probe(&pair.at_client, &["on", "queue.cor"]);
    assert!(
        !ok && error.contains("no point or family is called \"queue.cor\""),
        "{error}"
    );
    let (ok, _, error) = probe(&pair.at_client, &["on", &"x".repeat(500)]);
    assert!(!ok && error.contains("at most 128 bytes"), "{error}");
    let (ok, _, error) = probe(Path::new("/nonexistent/control"), &["list"]);
    assert!(!ok && error.contains("/nonexistent/control"), "{error}");
    let mut unread = tandem(&[
        "probe",
        "list",
        "--control",
        pair.at_client.to_str().unwrap(),
    ])
    .spawn()
    .unwrap();
    drop(unread.stdout.take());
    assert!(unread.wait().unwrap().success(), "whoever reads may stop");
    let to = format!("h2+tcp://{}", pair.gateway.address);
    for (control, problem) in [
        (pair.at_client.to_str().unwrap(), "another process listens"),
        ("/etc/passwd", "no socket"),
    ] {
        let options = [
            "client",
            "--listen",
            "http://127.0.0.1:0",
            "--gateway",
            &to,
            "--control",
            control,
        ];
        let (ok, _, error) = run(&options);
        assert!(!ok && error.contains(problem), "{error}");
    }
}

/// The test compares the notes that `readelf` prints: there is one probe for each point, each with
/// its name, two arguments, and a semaphore in the section for semaphores.
#[test]
fn binary_has_a_usdt_probe_for_every_point() {
    let readelf = |what: &str| {
        let output = Command::new("readelf")
            .args([what, env!("CARGO_BIN_EXE_tandem")])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let (notes, sections) = (readelf("-n"), readelf("-SW"));
    let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap();
    let section = sections
        .lines()
        .find_map(|line| line.split_once("] .probes "))
        .expect("the semaphores' section")
        .1;
    let [kind, start, _, size, _, flags] =
        section.split_whitespace().take(6).collect::<Vec<_>>()[..]
    else {
        panic!("{section}")
    };
    assert_eq!(
        (kind, flags),
        ("PROGBITS", "WA"),
        "in the file, and writable"
    );
    let within = hex(start)..hex(start) + hex(size);
    let of = |name: &str| -> Vec<&str> {
        notes
            .lines()
            .filter_map(|line| line.trim().strip_prefix(name))
            .map(str::trim)
            .collect()
    };
    let mut names = of("Name:");
    names.sort_unstable();
    let mut points: Vec<String> = POINTS
        .iter()
        .map(|point| point.full_name().replace('.', "_"))
        .collect();
    points.sort();
    assert_eq!(names, points);
    assert_eq!(of("Provider:"), vec!["tandem"; points.len()]);
    let mut semaphores: Vec<u64> = of("Location:")
        .iter()
        .map(|line| hex(line.rsplit(' ').next().unwrap()))
        .collect();
    assert!(
        semaphores.iter().all(|address| within.contains(address)),
        "{semaphores:x?} {within:x?}"
    );
    semaphores.sort_unstable();
    semaphores.dedup();
    assert_eq!(semaphores.len(), points.len());
    let register = if cfg!(target_arch = "x86_64") {
        "8@%"
    } else {
        "8@x"
    };
    let two = |line: &str| {
        line.split(' ')
            .filter(|argument| argument.starts_with(register))
            .count()
            == 2
    };
    assert!(of("Arguments:").into_iter().all(two), "{notes}");
}

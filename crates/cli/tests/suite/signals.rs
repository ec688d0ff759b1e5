//! A running process: listeners, signals, warnings, metrics and limits.

use std::io::{BufRead, Read};
use std::process::{Command, Stdio};

use crate::certificates::Certificates;
use crate::harness::{Client, PATIENCE, Scene, gateway_options, start_gateway};
use crate::messages::nowhere;
use crate::process::{Process, file, run};

#[test]
fn bind_error_names_the_address() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let (ok, _, error) = run(&[
        "client",
        "--listen",
        &format!("http://{address}"),
        "--gateway",
        "h2+tcp://127.0.0.1:1",
    ]);
    assert!(
        !ok && error.contains(&address.to_string()) && error.starts_with("tandem: "),
        "{error}"
    );
}

#[test]
fn sighup_reloads_and_sigterm_drains() {
    let (origin, draining, told) = crate::drains::origin();
    let (_gateway, gateway) = start_gateway(gateway_options());
    let nowhere = nowhere();
    let text = |gateway: std::net::SocketAddr| {
        format!(
            "[client]\nlisten = [\"http://127.0.0.1:0\"]\ngateway = [\"h2+tcp://{gateway}\"]\nlog = \"info\"\n"
        )
    };
    let path = file("reload.toml", &text(nowhere));
    let mut process = Process::start(&["client", "-c", path.to_str().unwrap()]);
    assert_eq!(
        Client::to(process.address).get(&origin.url("/")).status,
        502
    );
    std::fs::write(&path, "[client]\nnonsense = 1\n").unwrap();
    process.signal("HUP");
    process.wait_for("was not reloaded");
    assert_eq!(
        Client::to(process.address).get(&origin.url("/")).status,
        502,
        "the old configuration stays"
    );
    std::fs::write(&path, text(gateway)).unwrap();
    process.signal("HUP");
    process.wait_for("was reloaded");
    assert_eq!(
        Client::to(process.address).get(&origin.url("/")).status,
        200
    );

    let mut slow = Client::to(process.address);
    slow.send(crate::harness::request("GET", &origin.url("/slow"), ""));
    told.recv_timeout(PATIENCE).unwrap();
    process.signal("TERM");
    process.wait_for("draining");
    draining.open();
    assert_eq!(
        slow.answer("GET").body,
        b"ok",
        "what was under way ends well"
    );
    assert!(process.child.wait().unwrap().success());
    std::fs::remove_file(path).unwrap();
}

/// Each transport over UDP has a socket of its own, which it hands over at its end.
#[test]
fn reload_keeps_the_transport_of_a_udp_address() {
    let (origin, _gate, _told) = crate::drains::origin();
    let certificates = Certificates::new("reload-transport");
    let (identity, ca) = (certificates.identity(), certificates.path("ca.pem"));
    let free = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let text = |transport: &str| {
        let udp = match transport {
            "" => String::new(),
            _ => format!(", \"h3+{transport}://{address}?{identity}\""),
        };
        format!(
            "[gateway]\nlisten = [\"h2+tcp://127.0.0.1:0\"{udp}]\nopen = true\nlog = \"info\"\n\
             allow-dest = [\"127.0.0.0/8\"]\n"
        )
    };
    let path = file("reload-transport.toml", &text("quic"));
    let mut gateway = Process::start(&["gateway", "-c", path.to_str().unwrap()]);
    let works = |transport: &str| {
        let way = format!("h3+{transport}://{address}?ca={ca}");
        let listen = ["client", "--listen", "http://127.0.0.1:0"];
        let client = Process::start(&[&listen[..], &["--gateway", &way]].concat());
        let answer = Client::to(client.address).get(&origin.url("/"));
        client.stop();
        answer.body == b"ok"
    };
    let mut reload = |transport: &str, says: &str| {
        std::fs::write(&path, text(transport)).unwrap();
        gateway.signal("HUP");
        gateway.wait_for(says);
    };
    reload("dtls", "a listener of another transport");
    assert!(works("quic"));
    reload("", "was reloaded");
    reload("dtls", "was reloaded");
    assert!(works("dtls"));
    gateway.stop();
    std::fs::remove_file(path).unwrap();
}

#[test]
fn reload_lists_keys_that_need_a_restart() {
    let text = |more: &str| {
        format!(
            "[gateway]\nlisten = [\"h2+tcp://127.0.0.1:0\"]\nopen = true\nlog = \"info\"\n{more}\n"
        )
    };
    let path = file("restart.toml", &text("workers = 1"));
    let mut process = Process::start(&["gateway", "-c", path.to_str().unwrap()]);
    let changed = "workers = 2\nmetrics = \"127.0.0.1:0\"\ncontrol = \"/tmp/other\"";
    std::fs::write(&path, text(changed).replace("info", "debug")).unwrap();
    process.signal("HUP");
    process.wait_for("log, metrics, control, workers changed: that takes a restart");
    process.wait_for("was reloaded");
    std::fs::write(&path, text("workers = 1")).unwrap();
    process.signal("HUP");
    let mut line = String::new();
    while !line.contains("was reloaded") {
        line.clear();
        assert!(process.stderr.read_line(&mut line).unwrap() > 0, "it ended");
        assert!(
            !line.contains("restart"),
            "nothing differs from what it runs with: {line}"
        );
    }
    std::fs::remove_file(path).unwrap();
}

#[test]
fn reload_does_not_remove_the_proxy() {
    let (text, nowhere) = (
        |more: &str| {
            format!(
                "[client]\nlisten = [\"http://127.0.0.1:0\"]\nlog = \"info\"\n\
                 gateway = [\"h2+tls://127.0.0.1:1\"]\n{more}\n"
            )
        },
        nowhere(),
    );
    let via = format!("via = \"socks5://{nowhere}\"");
    let path = file("without-via.toml", &text(&via));
    let mut process = Process::start(&["client", "-c", path.to_str().unwrap()]);
    for more in ["", "solo = \"direct\""] {
        std::fs::write(&path, text(more)).unwrap();
        process.signal("HUP");
        process.wait_for("via: a reload does not remove it");
    }
    std::fs::write(&path, text(&via)).unwrap();
    process.signal("HUP");
    process.wait_for("was reloaded");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn client_warns_of_listeners_beyond_loopback() {
    for (listen, warned) in [("http://0.0.0.0:0", true), ("socks5://127.0.0.2:0", false)] {
        let mut process = Process::start(&[
            "client",
            "--listen",
            listen,
            "--gateway",
            "h2+tcp://127.0.0.1:1",
        ]);
        process.signal("TERM");
        assert!(process.child.wait().unwrap().success());
        let mut log = std::mem::take(&mut process.before);
        process.stderr.read_to_string(&mut log).unwrap();
        assert_eq!(
            log.contains("anyone who reaches"),
            warned,
            "{listen}: {log}"
        );
    }
}

#[test]
fn metrics_count_exchanges_without_urls() {
    let origin = Scene::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let (_gateway, gateway) = start_gateway(gateway_options());
    let metrics = nowhere();
    let process = Process::start(&[
        "client",
        "--listen",
        "http://127.0.0.1:0",
        "--gateway",
        &format!("h2+tcp://{gateway}"),
        "--metrics",
        &metrics.to_string(),
        "--log",
        "trace",
        "--log-requests",
    ]);
    assert_eq!(
        Client::to(process.address)
            .get(&origin.url("/private-path"))
            .status,
        200
    );
    let mut scrape = Client::to(metrics);
    scrape.send(format!("GET /metrics HTTP/1.1\r\nHost: {metrics}\r\n\r\n"));
    let text = String::from_utf8(scrape.answer("GET").body).unwrap();
    for line in [
        "tandem_exchanges_total 1",
        "tandem_responses_total{class=\"2xx\"} 1",
        "tandem_exchange_seconds_count 1",
        concat!(
            "tandem_build_info{version=\"",
            env!("CARGO_PKG_VERSION"),
            "\"} 1"
        ),
    ] {
        assert!(text.contains(&format!("\n{line}\n")), "{line}: {text}");
    }
    let mut other = Client::to(metrics);
    other.send("GET /metrics HTTP/1.1\r\nHost: attacker.example\r\n\r\n");
    assert_eq!(other.answer("GET").status, 421);
    process.signal("TERM");
    let mut log = String::new();
    let mut process = process;
    process.stderr.read_to_string(&mut log).unwrap();
    assert!(
        !log.contains("private-path") && !log.contains(&origin.address.port().to_string()),
        "URLs in the log: {log}"
    );
    let line = log.lines().find(|line| line.contains("request method=GET"));
    let line = line.expect("a line of the access log");
    assert!(line.contains("status=200 bytes=2 ms="), "{line}");
    assert!(line.contains("pushed=false outcome=\"complete\""), "{line}");
    assert!(!log.contains('\u{1b}'), "escape codes in a pipe: {log}");
}

#[test]
fn program_raises_its_limit_of_descriptors() {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -Sn 200 && exec \"$@\"", "sh"]);
    command.args([env!("CARGO_BIN_EXE_tandem"), "gateway", "--open"]);
    command.args(["--listen", "h2+tcp://127.0.0.1:0"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let process = Process::run(command);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", process.child.id())).unwrap();
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))
        .expect("a limit of descriptors");
    let mut numbers = line.split_whitespace();
    let (soft, hard) = (numbers.next(), numbers.next());
    assert_eq!(soft, hard, "{line}");
    assert_ne!(soft, Some("200"), "the test needs a higher hard limit");
}

#[test]
fn program_warns_of_a_low_limit_of_descriptors() {
    let limited = |arguments: &[&str]| {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n 200 && exec \"$@\"", "sh"]);
        command.arg(env!("CARGO_BIN_EXE_tandem")).args(arguments);
        command.args(["--open", "--listen", "h2+tcp://127.0.0.1:0"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let warning = "max-connections is 4096, and the process may open 200 descriptors";
    Process::run(limited(&["gateway"])).wait_for(warning);
    let doctor = ["doctor", "gateway", "--resolve", "localhost"];
    let output = limited(&doctor).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(warning), "{text}");
}

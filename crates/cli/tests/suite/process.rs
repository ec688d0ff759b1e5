//! Tests of the binary: configuration files, signals, completions, and the output of the demo.

use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::harness::{Client, PATIENCE, Scene, gateway_options, start_gateway};
use crate::messages::nowhere;

pub(crate) fn tandem(arguments: &[&str]) -> Command {
    // Another build of the program, for figures of speed.
    let program = std::env::var_os("TANDEM_TEST_PROGRAM");
    let mut command = Command::new(program.unwrap_or_else(|| env!("CARGO_BIN_EXE_tandem").into()));
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

pub(crate) fn run(arguments: &[&str]) -> (bool, String, String) {
    let output = tandem(arguments).output().unwrap();
    (
        output.status.success(),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

pub(crate) fn file(name: &str, text: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("tandem-test-{}-{name}", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path
}

pub(crate) struct Process {
    pub(crate) child: Child,
    /// The address that the process reports for its listener.
    pub(crate) address: std::net::SocketAddr,
    stderr: BufReader<std::process::ChildStderr>,
    /// The log lines before the line with the address.
    pub(crate) before: String,
    /// The log line with the address.
    pub(crate) banner: String,
}

impl Process {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::run(tandem(arguments))
    }

    pub(crate) fn run(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let mut process = Self {
            child,
            address: ([0, 0, 0, 0], 0).into(),
            stderr,
            before: String::new(),
            banner: String::new(),
        };
        let mut line = String::new();
        loop {
            line.clear();
            assert!(
                process.stderr.read_line(&mut line).unwrap() > 0,
                "it ended early"
            );
            if let Some((_, address)) = line
                .trim()
                .split_once("listening on ")
                .and_then(|(_, at)| at.split_once("://"))
            {
                process.address = address.parse().unwrap();
                process.banner = line;
                return process;
            }
            process.before.push_str(&line);
        }
    }

    /// Waits for a line with `text` and returns it.
    pub(crate) fn wait_for(&mut self, text: &str) -> String {
        let before = std::mem::take(&mut self.before);
        let mut lines = before.split_inclusive('\n');
        if let Some(line) = lines.find(|line| line.contains(text)) {
            self.before = lines.collect();
            return line.to_owned();
        }
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            assert!(
                self.stderr.read_line(&mut line).unwrap() > 0,
                "it ended before saying {text:?}"
            );
        }
        line
    }

    /// Reads the log in a thread, which returns all of it at the end of the process. A process with
    /// a full pipe would wait.
    pub(crate) fn collect_log(&self) -> std::thread::JoinHandle<String> {
        let mut log = self.before.clone().into_bytes();
        log.extend(self.banner.as_bytes());
        log.extend(self.stderr.buffer());
        let rest = self.stderr.get_ref().as_fd().try_clone_to_owned().unwrap();
        std::thread::spawn(move || {
            std::fs::File::from(rest).read_to_end(&mut log).unwrap();
            String::from_utf8(log).unwrap()
        })
    }

    /// Returns the log lines to come.
    pub(crate) fn rest(&mut self) -> &mut impl Read {
        &mut self.stderr
    }

    /// Ends the process with SIGKILL, so that it gets no chance to write anything.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn signal(&self, name: &str) {
        assert!(
            Command::new("kill")
                .args([&format!("-{name}"), &self.child.id().to_string()])
                .status()
                .unwrap()
                .success()
        );
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn example_files_contain_the_defaults() {
    let text = &example("client");
    let parsed: tandem::config::File = toml::from_str(text).unwrap();
    let client = parsed.client.expect("[client]");
    let needed = tandem::config::ClientOptions {
        gateway: client.gateway.clone(),
        via: client.via.clone(),
        ..Default::default()
    };
    for via in ["", "socks5://127.0.0.1:9050", "tor://127.0.0.1:9051"] {
        // These are the values that a user fills in, following the file's comments.
        let via = (!via.is_empty()).then(|| via.parse().unwrap());
        let (client, needed) = (client.clone(), needed.clone());
        let filled = tandem::config::ClientOptions {
            via: via.clone(),
            ..client
        };
        let needed = tandem::config::ClientOptions { via, ..needed };
        assert_eq!(
            format!("{:?}", filled.typed().unwrap()),
            format!("{:?}", needed.typed().unwrap())
        );
    }
    assert_covers(
        text,
        "client",
        &serde_json::to_value(tandem::config::ClientOptions::default()).unwrap(),
    );

    let text = &example("gateway");
    let parsed: tandem::config::File = toml::from_str(text).unwrap();
    let gateway = parsed.gateway.expect("[gateway]");
    let needed = tandem::config::GatewayOptions {
        listen: gateway.listen.clone(),
        open: gateway.open,
        ..Default::default()
    };
    assert_eq!(
        format!("{:?}", gateway.clone().typed().unwrap()),
        format!("{:?}", needed.typed().unwrap())
    );
    assert_covers(
        text,
        "gateway",
        &serde_json::to_value(tandem::config::GatewayOptions::default()).unwrap(),
    );

    let text = &example("relay");
    let parsed: tandem::config::File = toml::from_str(text).unwrap();
    let relay = parsed.relay.expect("[relay]");
    let needed = tandem::config::RelayOptions {
        listen: relay.listen.clone(),
        gateway: relay.gateway.clone(),
        open: relay.open,
        ..Default::default()
    };
    let typed = |options: tandem::config::RelayOptions| {
        let transports = tandem::transport::registry::Transports::default();
        format!("{:?}", options.typed_with(&transports).unwrap())
    };
    assert_eq!(typed(relay), typed(needed));
    assert_covers(
        text,
        "relay",
        &serde_json::to_value(tandem::config::RelayOptions::default()).unwrap(),
    );

    let text = &example("issuer");
    let parsed: tandem::config::File = toml::from_str(text).unwrap();
    let accounts = format!(
        "[[client]]\nname = \"a\"\ntoken-sha256 = \"{}\"\n",
        "0".repeat(64)
    );
    let accounts = file("accounts.toml", &accounts);
    let issuer = tandem::config::IssuerOptions {
        accounts: Some(accounts.display().to_string()),
        ..parsed.issuer.expect("[issuer]")
    };
    let needed = tandem::config::IssuerOptions {
        listen: issuer.listen.clone(),
        accounts: issuer.accounts.clone(),
        keys: issuer.keys.clone(),
        ..Default::default()
    };
    let typed = |options: tandem::config::IssuerOptions| {
        let transports = tandem::transport::registry::Transports::default();
        format!("{:?}", options.typed_with(&transports).unwrap())
    };
    assert_eq!(typed(issuer), typed(needed));
    assert_covers(
        text,
        "issuer",
        &serde_json::to_value(tandem::config::IssuerOptions::default()).unwrap(),
    );

    let text = &example("bridge");
    let parsed: tandem::config::File = toml::from_str(text).unwrap();
    let bridge = parsed.bridge.expect("[bridge]");
    let needed = tandem::config::BridgeOptions {
        listen: bridge.listen.clone(),
        open: bridge.open,
        ..Default::default()
    };
    assert_eq!(
        format!("{:?}", bridge.clone().typed().unwrap()),
        format!("{:?}", needed.typed().unwrap())
    );
    assert_covers(
        text,
        "bridge",
        &serde_json::to_value(tandem::config::BridgeOptions::default()).unwrap(),
    );
}

fn example(role: &str) -> String {
    std::fs::read_to_string(format!(
        "{}/../../packaging/{role}.toml",
        env!("CARGO_MANIFEST_DIR")
    ))
    .unwrap()
}

/// Checks that every key is in the example, at least in a comment.
fn assert_covers(text: &str, role: &str, keys: &serde_json::Value) {
    for key in keys.as_object().unwrap().keys() {
        let written = text.lines().any(|line| {
            line.trim_start_matches(['#', ' '])
                .starts_with(&format!("{key} ="))
        });
        assert!(written, "{role}: the example does not show {key}");
    }
}

#[test]
fn check_config_names_the_error() {
    let good = file(
        "good.toml",
        "[client]\ngateway = [\"h2+tcp://127.0.0.1:1\"]\n",
    );
    let (ok, out, _) = run(&["check-config", good.to_str().unwrap()]);
    assert!(ok && out.contains("good"), "{out}");
    for (name, text, part) in [
        ("unknown.toml", "[client]\ngatway = []\n", "gatway"),
        ("type.toml", "[client]\ngateway = 5\n", "gateway"),
        (
            "unit.toml",
            "[client]\ngateway = [\"h2+tcp://127.0.0.1:1\"]\nmax-age = \"10 parsecs\"\n",
            "10 parsecs",
        ),
        ("nothing.toml", "", "it has no table of a role"),
        (
            "bridge.toml",
            "[bridge]\nlisten = [\"http://127.0.0.1:1\"]\n",
            "the bridge would let no one in",
        ),
        (
            "back.toml",
            "[bridge]\nopen = true\nlisten = [\"http://127.0.0.1:1\"]\nback = \"h2\"\nmode = \"reverse=http://127.0.0.1:2\"\n",
            "back: needs --mode forward",
        ),
        (
            "noone.toml",
            "[gateway]\nlisten = [\"h2+tcp://127.0.0.1:1\"]\n",
            "let no one in",
        ),
        (
            "never.toml",
            "[client]\ngateway = [\"h2+tcp://127.0.0.1:1\"]\nhead-timeout = \"0s\"\n",
            "head-timeout: must be",
        ),
        (
            "answer.toml",
            "[gateway]\nopen = true\nlisten = [\"h2+tcp://127.0.0.1:1\"]\nresponse-timeout = \"0s\"\n",
            "response-timeout: must be",
        ),
        (
            "host.toml",
            "[gateway]\nopen = true\nlisten = [\"h2+tcp://127.0.0.1:1\"]\nallow-host = [\"a.example\"]\n",
            "allow-host: needs --mode reverse=URL",
        ),
        (
            "port.toml",
            "[gateway]\nopen = true\nlisten = [\"h2+tcp://127.0.0.1:1\"]\nallow-host = [\"a.example:80\"]\n",
            "a.example:80",
        ),
        (
            "cert.toml",
            "[gateway]\nopen = true\nlisten = [\"h2+tls://127.0.0.1:1?cert=/nonexistent&key=/nonexistent\"]\n",
            "/nonexistent",
        ),
    ] {
        let path = file(name, text);
        let (ok, _, error) = run(&["check-config", path.to_str().unwrap()]);
        assert!(!ok && error.contains(part), "{name}: {error}");
        assert!(!error.contains("panicked"));
        std::fs::remove_file(path).unwrap();
    }
    std::fs::remove_file(good).unwrap();
    let (ok, _, error) = run(&["check-config", "/nonexistent.toml"]);
    assert!(!ok && error.contains("/nonexistent.toml"), "{error}");
}

#[test]
fn explain_reads_routes_of_a_file() {
    let routes = file(
        "routes.toml",
        "[[route]]\nhosts = [\"*.a.test\"]\ngateway = \"h2+tls://gw.test:443?resolve=system\"\n\
         [client]\ngateway = [\"h2+tcp://127.0.0.1:1\"]\n",
    );
    let path = routes.to_str().unwrap();
    // The name of the gateway cannot be resolved, and no step needs its address.
    let (ok, out, error) = run(&["explain", "-c", path, "http://www.a.test/x"]);
    assert!(
        ok && out.contains("gateway h2+tls://gw.test:443"),
        "{out}{error}"
    );
    assert!(out.contains("the route for *.a.test"), "{out}");
    let (ok, out, _) = run(&["explain", "-c", path, "https://a.test/"]);
    assert!(ok && out.contains("gateway h2+tcp://127.0.0.1:1"), "{out}");
    std::fs::remove_file(routes).unwrap();
    let wrong = file(
        "wrong-route.toml",
        "[[route]]\nhost = [\"a.test\"]\ngateway = \"h2+tcp://127.0.0.1:1\"\n",
    );
    let (ok, _, error) = run(&["explain", "-c", wrong.to_str().unwrap(), "a.test"]);
    assert!(!ok && error.contains("did you mean `hosts`?"), "{error}");
    std::fs::remove_file(wrong).unwrap();
}

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
    let (tell, told) = std::sync::mpsc::channel();
    let origin = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            if asked.line.contains("/slow") {
                tell.send(()).unwrap();
                std::thread::sleep(std::time::Duration::from_millis(700));
            }
            client.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    });
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
    assert_eq!(
        slow.answer("GET").body,
        b"ok",
        "what was under way ends well"
    );
    assert!(process.child.wait().unwrap().success());
    std::fs::remove_file(path).unwrap();
}

#[test]
fn check_config_creates_no_keys_of_an_issuer() {
    let account = format!(
        "[[client]]\nname = \"carol\"\ntoken-sha256 = \"{}\"\n",
        "0".repeat(64)
    );
    let accounts = file("checked-accounts.toml", &account);
    let keys = accounts.with_file_name("keys-of-issuer");
    let text = format!(
        "[issuer]\nlisten = [\"h2+tcp://127.0.0.1:0\"]\naccounts = {accounts:?}\nkeys = {keys:?}\n"
    );
    let path = file("checked-issuer.toml", &text);
    let (ok, out, error) = run(&["check-config", path.to_str().unwrap()]);
    assert!(ok && out.contains("issuer: listens on"), "{out}{error}");
    assert!(!keys.exists());
    let path = file("checked-issuer.toml", &text.replace("keys = ", "keyz = "));
    let (ok, _, error) = run(&["check-config", path.to_str().unwrap()]);
    assert!(!ok && error.contains("did you mean `keys`?"), "{error}");
}

#[test]
fn check_config_opens_no_predictor() {
    let text = "[gateway]\nopen = true\nlisten = [\"h2+tcp://127.0.0.1:1\"]\npredict-state = \"/nonexistent/state\"\n";
    let path = file("predictor.toml", text);
    let (ok, _, error) = run(&["check-config", path.to_str().unwrap()]);
    assert!(ok, "{error}");
    let (ok, _, error) = run(&["gateway", "-c", path.to_str().unwrap()]);
    assert!(
        !ok && error.contains("predict-state: /nonexistent/state"),
        "{error}"
    );
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
fn compatibility_commands_accept_old_flags() {
    let origin = Scene::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let free = || nowhere().port().to_string();
    let (front, back) = (free(), free());
    let gateway = Process::start(&[
        "microspdy2http",
        "-p",
        &back,
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
        &front,
        "-b",
        &format!("http://127.0.0.1:{back}"),
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
    let (ok, _, error) = run(&["microspdy2http", "-p", &back]);
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

//! Tests of `tandem init` and `tandem share`: a new user follows the printed commands only.

use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::harness::{Client, Scene, client_options, start_client};
use crate::messages::nowhere;
use crate::process::{Process, run, tandem};

/// A directory that is removed with the value.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let name = format!("tandem test {name} {}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns a loopback address that no other process uses. Its fixed port is therefore free.
fn own_address() -> String {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    format!("127.{}.{b}.{c}", 64 + a % 64)
}

/// Returns the printed shell command that contains `part`.
fn printed(output: &str, part: &str) -> String {
    let line = output.lines().find(|line| line.contains(part));
    line.unwrap_or_else(|| panic!("{part}: {output}"))
        .trim()
        .to_owned()
}

/// Returns a shell that runs a printed command, with more arguments. The program takes the place
/// of the shell, so that its end is the end of the process.
fn shell(command: &str, more: &str) -> Command {
    let program = Path::new(env!("CARGO_BIN_EXE_tandem"));
    let (directory, command) = command.split_once("&& ").unwrap();
    let script = format!("{directory} && exec {command} {more}");
    let path = std::env::var("PATH").unwrap();
    let programs = program.parent().unwrap().display();
    let mut shell = Command::new("sh");
    shell
        .args(["-c", &script])
        .env("PATH", format!("{programs}:{path}"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    shell
}

fn mode(path: &str) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn new_user_reaches_a_page_by_printed_commands() {
    let origin = Scene::new(|_, mut client| {
        while client.request().is_some() {
            client.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
        }
    });
    let directory = Directory::new("own");
    let to = directory.path("server");
    let address = own_address();
    let arguments = ["init", "own-gateway", "--to", &to, "--port", "9443"];
    let (ok, out, error) = run(&[&arguments[..], &["--address", &address]].concat());
    assert!(ok, "{error}");
    // A kernel without BBR is the only fault that this machine may have.
    let faults = out.lines().filter(|line| line.starts_with("FAULT"));
    for fault in faults {
        assert!(fault.contains("congestion"), "{out}");
    }
    assert!(
        out.contains("answers with status 200") && out.contains("/proxy.pac"),
        "{out}"
    );
    for (file, expected) in [
        ("server/gateway/token", 0o600),
        ("server/gateway/key.pem", 0o600),
        ("server/client/token", 0o600),
        ("server/gateway/cert.pem", 0o644),
    ] {
        assert_eq!(mode(&directory.path(file)), expected, "{file}");
    }

    // The gateway must be allowed to reach the test's origin, which is on this machine.
    let allowed = format!("--allow-dest {}", origin.address);
    let gateway = printed(&out, "tandem gateway");
    let _gateway = Process::run(shell(&gateway, &allowed));
    let listen = "--listen http://127.0.0.1:0 --admin 127.0.0.1:0";
    let client = Process::run(shell(&printed(&out, "tandem client"), listen));
    let answer = Client::to(client.address).get(&origin.url("/"));
    assert_eq!((answer.status, answer.body), (200, b"hello".to_vec()));

    // Another machine gets the URL.
    let share = shell(&printed(&out, "tandem share"), "").output().unwrap();
    assert!(share.status.success(), "{share:?}");
    let text = String::from_utf8(share.stdout).unwrap();
    assert!(text.lines().count() > 20, "a QR code follows: {text}");
    let url = text.lines().next().unwrap();
    let other = directory.path("laptop");
    let mut init = tandem(&["init", "--from", "-", "--to", &other])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = init.stdin.take().unwrap();
    writeln!(input, "{url}").unwrap();
    let init = init.wait_with_output().unwrap();
    let out = String::from_utf8(init.stdout).unwrap();
    assert!(
        init.status.success() && out.contains("answers with status 200"),
        "{out}"
    );
    assert_eq!(mode(&directory.path("laptop/client/token")), 0o600);
    let client = Process::run(shell(&printed(&out, "tandem client"), listen));
    let answer = Client::to(client.address).get(&origin.url("/"));
    assert_eq!((answer.status, answer.body), (200, b"hello".to_vec()));
}

#[test]
fn init_writes_valid_files_for_tor() {
    let directory = Directory::new("tor");
    let onion = format!("{}.onion", "a".repeat(56));
    let hostname = directory.path("hostname");
    std::fs::write(&hostname, format!("{onion}\n")).unwrap();
    for (role, more, files, words) in [
        (
            "onion-operator",
            vec!["--onion", &*hostname],
            vec!["gateway/gateway.toml", "client/client.toml"],
            "HiddenServicePort 9980 127.0.0.1:9980",
        ),
        (
            "tor-user",
            vec!["--gateway", &*onion, "--no-test"],
            vec!["client/client.toml"],
            "tandem doctor client",
        ),
        (
            "exit",
            vec![],
            vec!["gateway/gateway.toml", "client/client.toml"],
            "ExitPolicy accept 192.0.2.80:9980",
        ),
    ] {
        let to = directory.path(role);
        let (ok, out, error) = run(&[&["init", role, "--to", &to][..], &more].concat());
        assert!(ok && out.contains(words), "{role}: {out}{error}");
        // The HTTP listener gets no isolation keys.
        let is_socks = out.contains("socks5://127.0.0.1:9150") && out.contains("Proxy DNS");
        assert!(is_socks && !out.contains("/proxy.pac"), "{role}: {out}");
        for file in files {
            let (ok, out, error) = run(&["check-config", &format!("{to}/{file}")]);
            assert!(ok && out.contains(": good"), "{role} {file}: {out}{error}");
        }
    }
    let to = directory.path("browser");
    let beside = ["--via", "socks5://127.0.0.1:9150", "--no-test"];
    let (ok, out, _) = run(&[&["init", "tor-user", "--to", &to][..], &beside].concat());
    assert!(
        ok && out.contains("network.proxy.socks_port to 9250"),
        "{out}"
    );
    let shared = directory.path("onion-operator/client/client.toml");
    let (ok, out, _) = run(&["share", "-c", &shared, "--no-qr"]);
    assert!(ok);
    assert_eq!(
        out,
        format!("tandem://{onion}:9980?transport=tcp&via=tor\n")
    );
}

#[test]
fn init_reports_a_missing_tor_to_a_user_of_all_sites() {
    let directory = Directory::new("sites");
    let set_up = |name: &str, proxy: SocketAddr| {
        let (to, via) = (directory.path(name), format!("socks5://{proxy}"));
        let (ok, out, error) = run(&["init", "tor-user", "--to", &to, "--via", &via]);
        assert!(ok, "{error}");
        out
    };
    let is_tor = |line: &&str| line.starts_with("FAULT    Tor");
    let out = set_up("down", nowhere());
    assert_eq!(out.lines().filter(is_tor).count(), 1, "{out}");
    assert!(
        !out.contains("works.") && !out.contains("Tor answers"),
        "{out}"
    );

    // Any SOCKS5 proxy answers as Tor does: here the listener of another client.
    let gateway = format!("h2+tcp://{}", nowhere());
    let (_client, _, socks) = start_client(client_options(&gateway));
    let out = set_up("up", socks);
    assert_eq!(out.lines().filter(is_tor).count(), 0, "{out}");
    assert!(
        !out.contains("works.") && out.contains("--site NAME.onion"),
        "{out}"
    );
}

#[test]
fn init_sets_up_a_client_without_gateway_and_tor() {
    let origin = Scene::new(|_, mut client| {
        while client.request().is_some() {
            client.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
        }
    });
    let directory = Directory::new("alone");
    let to = directory.path("tandem");
    let (ok, out, error) = run(&["init", "no-gateway", "--to", &to]);
    assert!(ok, "{error}");
    assert!(
        out.contains("/proxy.pac") && out.contains("--site NAME"),
        "{out}"
    );
    assert!(!out.contains("Tor answers"), "{out}");
    let more = "--listen http://127.0.0.1:0 --admin 127.0.0.1:0 --solo-allow-dest 127.0.0.0/8";
    let client = Process::run(shell(&printed(&out, "tandem client"), more));
    let answer = Client::to(client.address).get(&origin.url("/"));
    assert_eq!((answer.status, answer.body), (200, b"hello".to_vec()));
}

#[test]
fn init_replaces_no_file_without_consent() {
    let directory = Directory::new("consent");
    let to = directory.path("tandem");
    let arguments = ["init", "exit", "--to", &to];
    assert!(run(&arguments).0);
    let file = format!("{to}/client/client.toml");
    std::fs::write(&file, "mine").unwrap();
    let (ok, _, error) = run(&arguments);
    assert!(!ok && error.contains("add --yes to replace"), "{error}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
    assert!(run(&[&arguments[..], &["--yes"]].concat()).0);
    assert!(std::fs::read_to_string(&file).unwrap().contains("[client]"));

    let (ok, _, error) = run(&["init", "own-gateway", "--to", &to, "--no-test"]);
    assert!(!ok && error.contains("give --address"), "{error}");
    let (ok, _, error) = run(&["init", "--from", "tandem://gw.example:443?token=short"]);
    assert!(!ok && error.contains("16 visible"), "{error}");
}

#[test]
fn init_reads_the_onion_address_in_a_file() {
    let directory = Directory::new("hostname");
    let onion = format!("{}.onion", "a".repeat(56));
    std::fs::write(directory.path("hostname"), format!("{onion}\n")).unwrap();
    let arguments = ["init", "onion-operator", "--onion", "hostname", "--no-test"];
    let output = tandem(&arguments).current_dir(&directory.0).output();
    let output = output.unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let written = std::fs::read_to_string(directory.path("tandem/gateway/gateway.toml"));
    assert!(written.unwrap().contains(&onion));
}

#[test]
fn init_refuses_addresses_that_no_client_reaches() {
    let directory = Directory::new("unreachable");
    for (arguments, remedy) in [
        (
            ["--address", "gw.example", "--ip", "0.0.0.0"],
            "is no machine's address",
        ),
        (
            ["--address", "abc.onion", "--port", "443"],
            "onion-operator",
        ),
    ] {
        let arguments = [&["init", "own-gateway"][..], &arguments].concat();
        let output = tandem(&arguments).current_dir(&directory.0).output();
        let output = output.unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && errors.contains(remedy),
            "{errors}"
        );
    }
    assert_eq!(std::fs::read_dir(&directory.0).unwrap().count(), 0);
}

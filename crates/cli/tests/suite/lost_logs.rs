//! Processes whose log cannot be written: they serve on, and end as they do with a log.

use std::fs::File;
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use crate::harness::{Client, PATIENCE, Scene, client_options, start_client};
use crate::messages::nowhere;
use crate::process::{file, tandem};

/// A process without a log. It is killed if the test fails.
struct Silent(Child);

impl Silent {
    /// Starts a gateway, and waits until it listens.
    fn start(arguments: &[&str], log: Stdio, listen: SocketAddr) -> Self {
        let mut command = tandem(arguments);
        let child = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let (mut silent, begun) = (Self(child), Instant::now());
        while TcpStream::connect(listen).is_err() {
            silent.check();
            assert!(begun.elapsed() < PATIENCE, "it does not listen");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        silent
    }

    /// Checks that the process has not ended.
    fn check(&mut self) {
        let ended = self.0.try_wait().unwrap();
        assert!(ended.is_none(), "the process has ended: {ended:?}");
    }

    fn signal(&mut self, name: &str) {
        self.check();
        let id = self.0.id().to_string();
        let mut kill = Command::new("kill");
        kill.args([&format!("-{name}"), &id]);
        assert!(kill.status().unwrap().success());
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns a full disk, and a pipe without a reader.
fn lost_logs() -> [(&'static str, Stdio); 2] {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    [("full", full.into()), ("unread", writer.into())]
}

#[test]
fn gateway_without_a_log_serves_and_ends_regularly() {
    let origin = Scene::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    for (name, log) in lost_logs() {
        let [listen, metrics, admin] = [(); 3].map(|()| nowhere());
        let state = std::env::temp_dir().join(format!("tandem-{name}-{}", std::process::id()));
        let text = format!(
            "[gateway]\nlisten = [\"h2+tcp://{listen}\"]\nopen = true\n\
             allow-dest = [\"127.0.0.0/8\"]\nlog-requests = true\npredict-state = \"{}\"\n\
             metrics = \"{metrics}\"\nadmin = \"{admin}\"\n",
            state.display()
        );
        let path = file(&format!("{name}-log.toml"), &text);
        let mut gateway = Silent::start(&["gateway", "-c", path.to_str().unwrap()], log, listen);
        let (_client, http, _) = start_client(client_options(&format!("h2+tcp://{listen}")));
        for _ in 0..3 {
            assert_eq!(Client::to(http).get(&origin.url("/")).body, b"ok", "{name}");
        }
        // Both an invalid file and a valid one are logged.
        for text in ["[gateway]\nnonsense = 1\n", &text] {
            std::fs::write(&path, text).unwrap();
            gateway.signal("HUP");
            assert_eq!(Client::to(http).get(&origin.url("/")).body, b"ok", "{name}");
        }
        gateway.signal("TERM");
        let status = gateway.0.wait().unwrap();
        assert!(status.success(), "{name}: {status}");
        assert!(state.exists(), "{name}: the state is written at the end");
        std::fs::remove_file(state).unwrap();
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn error_without_a_log_has_its_exit_status() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = format!("h2+tcp://{}", taken.local_addr().unwrap());
    for (name, log) in lost_logs() {
        let mut command = tandem(&["gateway", "--open", "--listen", &listen]);
        let status = command.stdout(Stdio::null()).stderr(log).status().unwrap();
        assert_eq!(status.code(), Some(1), "{name}");
    }
}

/// The reader of a pipe may end before the program, as `head` does.
#[test]
fn command_without_a_reader_goes_on() {
    let home = std::env::temp_dir().join(format!("tandem-without-reader-{}", std::process::id()));
    std::fs::create_dir_all(&home).unwrap();
    let home_text = home.to_str().unwrap();
    let text =
        "[client]\nlisten = [\"http://127.0.0.1:0\"]\ngateway = [\"h2+tcp://127.0.0.1:9\"]\n";
    let config = file("unread-client.toml", text);
    let config = config.to_str().unwrap();
    let run = |arguments: &[&str]| {
        for (name, output) in lost_logs() {
            let mut command = tandem(arguments);
            command.env("HOME", home_text).env_remove("XDG_DATA_HOME");
            let output = command.stdout(output).stdin(Stdio::null()).output();
            let output = output.unwrap();
            let error = String::from_utf8_lossy(&output.stderr);
            let code = output.status.code();
            let is_panic = error.contains("panicked") || !matches!(code, Some(0 | 1));
            assert!(!is_panic, "{arguments:?}, {name}: {code:?} {error}");
        }
    };
    // Without certutil, the first command fails, and there is nothing to remove.
    let authority = home.join("authority");
    let authority = [
        "--yes",
        "--store",
        "chromium",
        "--authority",
        authority.to_str().unwrap(),
    ];
    run(&[&["trust"][..], &authority].concat());
    run(&[&["trust", "--remove"][..], &authority].concat());
    let mut again = tandem(&[&["trust", "--remove"][..], &authority].concat());
    let again = again
        .env("HOME", home_text)
        .env_remove("XDG_DATA_HOME")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&again.stdout);
    assert_eq!(text, "There is nothing to remove.\n");
    run(&["explain", "-c", config, "http://site.example/"]);
    run(&["doctor", "client", "-c", config]);
    run(&["check-config", config]);
    run(&["share", "-c", config]);
    run(&["gateways", "--via", "tor://127.0.0.1:9", "--json"]);
    std::fs::remove_dir_all(home).unwrap();
}

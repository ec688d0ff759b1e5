//! A gateway that may open few descriptors.

use std::net::TcpStream;
use std::process::{Command, Stdio};

use crate::harness::{Client, PATIENCE, Scene, client_options, start_client};
use crate::process::{Process, run, tandem};

/// Returns the command of a gateway that may open `most` descriptors.
fn limited(most: &str, more: &[&str]) -> Command {
    let listen = ["gateway", "--listen", "h2+tcp://127.0.0.1:0", "--open"];
    let usual = ["--allow-dest", "127.0.0.0/8", "--workers", "1"];
    let plain = tandem(&[&listen[..], &usual, more].concat());
    let mut command = Command::new("sh");
    command
        .args(["-c", "ulimit -n \"$0\"; exec \"$@\"", most])
        .arg(plain.get_program())
        .args(plain.get_args())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Returns an origin that keeps its connections open.
fn origin() -> Scene {
    Scene::new(|_, mut client| {
        while client.request().is_some() {
            client.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    })
}

#[test]
fn process_with_too_few_descriptors_names_the_remedy() {
    let output = limited("6", &[]).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(
        error.contains("needs at least 32") && error.contains("ulimit -n"),
        "{error}"
    );
}

#[test]
fn idle_connections_to_origins_make_room() {
    let gateway = Process::run(limited("40", &[]));
    let (_client, http, _) = start_client(client_options(&format!("h2+tcp://{}", gateway.address)));
    let origins: Vec<_> = (0..60).map(|_| origin()).collect();
    let mut browser = Client::to(http);
    for (number, origin) in origins.iter().enumerate() {
        let answer = browser.get(&origin.url("/"));
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        assert_eq!((answer.status, &text[..]), (200, "ok"), "origin {number}");
    }
    gateway.stop();
}

#[test]
fn full_process_shows_its_state_and_admits_newcomers() {
    let control = std::env::temp_dir().join(format!("tandem-scarce-{}", std::process::id()));
    let control = control.to_str().unwrap();
    let gateway = Process::run(limited("40", &["--control", control]));
    let connect = || TcpStream::connect_timeout(&gateway.address, PATIENCE).unwrap();
    let silent: Vec<_> = (0..60).map(|_| connect()).collect();
    for _ in 0..3 {
        let (ok, out, error) = run(&["top", "--once", "--control", control]);
        assert!(ok && out.contains("gateway"), "{out}{error}");
    }
    // The silent connections make way, the oldest first.
    let (_client, http, _) = start_client(client_options(&format!("h2+tcp://{}", gateway.address)));
    assert_eq!(Client::to(http).get(&origin().url("/")).body, b"ok");
    drop(silent);
    gateway.stop();
}

//! Tests of the store of submissions with the program: its files, and the directories of the
//! system.

use std::io::Write as _;
use std::process::{Command, Stdio};

use tandem_submit::submission::IdempotencyKey;

use crate::harness::{Answer, Client};
use crate::process::{Process, tandem};
use crate::submission_server::{Files, SubmissionServer, TOKEN, sha256};
use crate::submissions::{arguments, secret};

/// The content of the large submissions.
const MARK: &str = "private-content; ";

/// Mounts all directories for temporary files without the right to write, and runs the arguments.
/// The first argument is the only directory that stays writable.
const READ_ONLY: &str = "set -e
mount --bind \"$1\" \"$1\"
for directory in /tmp /var/tmp /usr/tmp \"${TMPDIR:-/tmp}\"; do
    if [ -d \"$directory\" ]; then
        mount --rbind \"$directory\" \"$directory\"
        mount -o remount,bind,ro \"$directory\"
    fi
done
cd /proc
shift
exec \"$@\"";

fn post(gateway: &Process, number: usize, body: &str) -> Answer {
    let mut client = Client::to(gateway.address);
    let head = format!(
        "POST /submissions HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer {TOKEN}\r\n\
         Idempotency-Key: {}\r\nContent-Length: {}\r\n\r\n",
        IdempotencyKey(sha256(&secret(number))).value(),
        body.len()
    );
    client.stream.get_mut().write_all(head.as_bytes()).unwrap();
    client.stream.get_mut().write_all(body.as_bytes()).unwrap();
    client.answer("POST")
}

#[test]
fn store_needs_no_other_writable_directory() {
    let files = Files::new("submit-read-only", "");
    let server = SubmissionServer::new();
    let mut command = Command::new("unshare");
    let directory = files.directory().to_str().unwrap();
    command
        .args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            READ_ONLY,
            "sh",
            directory,
        ])
        .arg(env!("CARGO_BIN_EXE_tandem"))
        .args(arguments(&files, &server))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let gateway = Process::run(command);
    let body = MARK.repeat((1 << 20) / MARK.len());
    // The answer is stored, and the content of the submission is removed.
    assert_eq!(post(&gateway, 1, &body).status, 201);
    assert_eq!(post(&gateway, 2, "a small one").status, 201);
    assert_eq!(server.requests(), 2);
}

#[test]
fn store_with_a_special_name_is_a_file() {
    for name in [":memory:", "file:store?mode=memory"] {
        let files = Files::new("submit-names", "");
        let server = SubmissionServer::new();
        let mut arguments = arguments(&files, &server);
        *arguments.last_mut().unwrap() = format!("sqlite:{name}");
        let start = || {
            let mut command = tandem(&arguments);
            command.current_dir(files.directory());
            Process::run(command)
        };
        let mut gateway = start();
        assert_eq!(post(&gateway, 1, "a report").status, 201);
        gateway.kill();
        let file = files.directory().join(name);
        assert!(file.metadata().unwrap().len() > 0, "{name}");
        // The next process knows the submission.
        let gateway = start();
        assert_eq!(post(&gateway, 1, "a report").status, 201);
        assert_eq!(server.requests(), 1);
    }
}

#[test]
fn stopped_gateway_leaves_no_content() {
    let files = Files::new("submit-stopped", "");
    let server = SubmissionServer::new();
    let arguments = arguments(&files, &server);
    let mut gateway = Process::start(&arguments);
    let body = MARK.repeat((1 << 20) / MARK.len());
    assert_eq!(post(&gateway, 1, &body).status, 201);
    gateway.signal("TERM");
    assert!(gateway.child.wait().unwrap().success());
    for entry in std::fs::read_dir(files.directory()).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        let mut windows = bytes.windows(MARK.len());
        assert!(
            !windows.any(|window| window == MARK.as_bytes()),
            "{}",
            path.display()
        );
    }
}

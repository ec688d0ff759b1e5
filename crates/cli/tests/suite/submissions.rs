//! Tests of submissions with the program: crashes of the gateway, and the privacy of its output.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tandem_submit::submission::{IdempotencyKey, State, StateDocument, write_secret};

use crate::harness::{Answer, Client};
use crate::process::Process;
use crate::submission_server::{Files, SubmissionServer, TOKEN, sha256};

/// The number of submissions of the test of crashes.
const SUBMISSIONS: usize = 60;

/// The numbers of accepted submissions after which the gateway is killed.
const KILLS: [usize; 3] = [10, 25, 40];

fn start(files: &Files, server: &SubmissionServer, more: &[&str]) -> Process {
    let arguments = arguments(files, server);
    let arguments: Vec<_> = arguments
        .iter()
        .map(String::as_str)
        .chain(more.iter().copied())
        .collect();
    Process::start(&arguments)
}

/// Returns the arguments of a gateway that takes submissions for a server.
pub(crate) fn arguments(files: &Files, server: &SubmissionServer) -> Vec<String> {
    let listen = "http+tcp://127.0.0.1:0";
    let values = [
        ("--listen", listen.to_owned()),
        ("--workers", "2".to_owned()),
        ("--mode", format!("submit={}", server.url("/in"))),
        ("--submit-rights", files.path("rights.toml")),
        ("--submit-key", files.path("key.pem")),
        ("--submit-store", files.store()),
    ];
    let values = values.into_iter();
    let values = values.flat_map(|(option, value)| [option.to_owned(), value]);
    std::iter::once("gateway".to_owned())
        .chain(values)
        .collect()
}

pub(crate) fn secret(number: usize) -> [u8; 32] {
    sha256(&number.to_be_bytes())
}

pub(crate) fn post(number: usize) -> String {
    let body = format!("report {number}");
    format!(
        "POST /submissions HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer {TOKEN}\r\n\
         Idempotency-Key: {}\r\nContent-Length: {}\r\nPrefer: {}\r\n\r\n{body}",
        IdempotencyKey(sha256(&secret(number))).value(),
        body.len(),
        if number.is_multiple_of(2) {
            "respond-async"
        } else {
            "wait=10"
        },
    )
}

pub(crate) fn state(location: &str, number: usize) -> String {
    let secret = write_secret(&secret(number));
    format!("GET {location} HTTP/1.1\r\nHost: gateway\r\nSubmission-Secret: {secret}\r\n\r\n")
}

/// Sends a request. Returns `None` if the gateway is down or ends before the response is complete.
pub(crate) fn ask(gateway: &Mutex<Process>, request: &str) -> Option<Answer> {
    let address = gateway.lock().unwrap().address;
    TcpStream::connect(address).ok()?;
    let mut client = Client::to(address);
    let sent = client.stream.get_mut().write_all(request.as_bytes());
    sent.and_then(|()| client.try_answer("POST")).ok()
}

/// Sends a request until it gets a complete response.
fn insist(gateway: &Mutex<Process>, request: &str) -> Answer {
    loop {
        if let Some(answer) = ask(gateway, request) {
            return answer;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until a submission has its answer. The function `insist` sends a request.
pub(crate) fn await_answer(location: &str, number: usize, insist: impl Fn(&str) -> Answer) {
    loop {
        let answer = insist(&state(location, number));
        assert_eq!(answer.status, 200);
        let state = StateDocument::read(&answer.body).unwrap();
        assert_ne!(state.state, State::NotDelivered);
        if state.state == State::Answered {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Checks that the server has processed each of the first `count` submissions once.
pub(crate) fn assert_processed_once(server: &SubmissionServer, count: usize) {
    let mut bodies: Vec<_> = server.processed().into_iter().map(|it| it.body).collect();
    bodies.sort();
    let mut expected: Vec<_> = (0..count)
        .map(|number| format!("report {number}").into_bytes())
        .collect();
    expected.sort();
    assert!(bodies == expected, "{} of {count}", bodies.len());
}

#[test]
fn killed_gateway_delivers_each_submission_once() {
    let (files, server) = (Files::new("submit-kill", ""), SubmissionServer::new());
    let gateway = Mutex::new(start(&files, &server, &[]));
    let accepted = AtomicUsize::new(0);
    let numbers = AtomicUsize::new(0);
    let answers = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let number = numbers.fetch_add(1, Ordering::SeqCst);
                    if number >= SUBMISSIONS {
                        return;
                    }
                    let answer = insist(&gateway, &post(number));
                    let location = answer.field("location").unwrap_or_default().to_owned();
                    let record = (number, answer.status, location);
                    answers.lock().unwrap().push(record);
                    accepted.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        for kill in KILLS {
            while accepted.load(Ordering::SeqCst) < kill {
                std::thread::yield_now();
            }
            let mut gateway = gateway.lock().unwrap();
            gateway.kill();
            *gateway = start(&files, &server, &[]);
        }
    });
    // Each accepted submission gets its answer, under the location that its client was told.
    for (number, status, location) in answers.into_inner().unwrap() {
        assert!(matches!(status, 201 | 202), "{status}");
        await_answer(&location, number, |request| insist(&gateway, request));
    }
    assert_processed_once(&server, SUBMISSIONS);
}

#[test]
fn gateway_reveals_nothing_about_submissions() {
    let rights = "types = [\"text/plain\"]\nper-day = 3\n";
    let files = Files::new("submit-quiet", rights);
    let server = SubmissionServer::failing_first(vec![503]);
    let metrics = [
        "--metrics",
        "127.0.0.1:0",
        "--log",
        "trace",
        "--log-requests",
    ];
    let mut gateway = start(&files, &server, &metrics);
    let line = gateway
        .before
        .lines()
        .find(|line| line.contains("metrics on"));
    let metrics = line.unwrap().rsplit(' ').next().unwrap().to_owned();
    let url = format!("http://{}/submissions/private-path", gateway.address);
    let key = IdempotencyKey(sha256(&secret(1))).value();
    let mut texts = Vec::new();
    // The first is stored and delivered later. The others are refused.
    for (token, kind, key, status) in [
        (TOKEN, "text/plain", key.as_str(), "202"),
        ("wrong-token-of-somebody", "text/plain", &key, "401"),
        (TOKEN, "text/private-type", &key, "415"),
        (TOKEN, "text/plain", "\"short-key\"", "400"),
        (TOKEN, "text/plain; a=b", &key, "422"),
    ] {
        // The client's address differs from that of the listener.
        let output = Command::new("curl")
            .args([
                "-s",
                "-w",
                " %{http_code}",
                "--interface",
                "127.0.0.77",
                &url,
            ])
            .args(["-H", &format!("Authorization: Bearer {token}")])
            .args(["-H", &format!("Idempotency-Key: {key}")])
            .args(["-H", &format!("Content-Type: {kind}")])
            .args(["-H", "Prefer: respond-async", "-d", "private-content"])
            .output()
            .expect("curl is needed: apt-get install curl");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.ends_with(status), "{text}");
        // The response to the client with rights tells the identifier.
        if status != "202" {
            texts.push(text);
        }
    }
    while server.processed().is_empty() {
        std::thread::sleep(Duration::from_millis(20));
    }
    let id = server.processed()[0]
        .field("submission-id")
        .unwrap()
        .to_owned();
    let output = Command::new("curl")
        .args(["-s", &metrics])
        .output()
        .unwrap();
    let counters = String::from_utf8(output.stdout).unwrap();
    assert!(
        counters.contains("tandem_submissions_accepted_total 1\n"),
        "{counters}"
    );
    assert!(
        counters.contains("tandem_submissions_refused_total 4\n"),
        "{counters}"
    );
    texts.push(counters);
    // A token at a wrong place of the file of rights does not reach the log.
    let rights = files.directory().join("rights.toml");
    let broken = std::fs::read_to_string(&rights).unwrap() + "token-sha256 = pasted-token\n";
    std::fs::write(&rights, broken).unwrap();
    let mut log = std::mem::take(&mut gateway.before).into_bytes();
    while !String::from_utf8_lossy(&log).contains("cannot be used, so the old one stays") {
        let mut byte = [0];
        gateway.rest().read_exact(&mut byte).unwrap();
        log.extend(byte);
    }
    gateway.signal("TERM");
    gateway.rest().read_to_end(&mut log).unwrap();
    let log = String::from_utf8(log).unwrap();
    assert!(
        log.contains("the server does not take a submission"),
        "{log}"
    );
    texts.push(log);
    let bare_key = key.trim_matches('"');
    for text in texts {
        for private in [
            TOKEN,
            "surveyors",
            "wrong-token",
            "127.0.0.77",
            "private-path",
            "private-type",
            "private-content",
            "short-key",
            "pasted-token",
            bare_key,
            &id,
        ] {
            assert!(!text.contains(private), "{private} is in:\n{text}");
        }
    }
}

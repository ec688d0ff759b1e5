//! Tests of submissions: a gateway with `mode=submit` between a client and a server.

use std::net::SocketAddr;
use std::time::Duration;

use data_encoding::HEXLOWER;
use tandem::config::GatewayOptions;
use tandem::roles::Role as _;
use tandem::runtime::Running;
use tandem::services::Services;
use tandem::session::Drain;
use tandem_submit::directory;
use tandem_submit::problem::Document;
use tandem_submit::submission::{IdempotencyKey, State, StateDocument, write_secret};

use crate::certificates::Certificates;
use crate::harness::{Answer, Client, Pair, block_on, endpoint, start_gateway};
use crate::submission_server::{Files, SubmissionServer, TOKEN, sha256};

/// A running gateway; it stops when it is dropped.
pub(crate) struct Gateway {
    pub(crate) address: SocketAddr,
    running: Option<Running>,
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            block_on(running.drain(Duration::ZERO));
        }
    }
}

pub(crate) fn options(files: &Files, server: &str) -> GatewayOptions {
    GatewayOptions {
        listen: vec![endpoint("http+tcp://127.0.0.1:0")],
        mode: Some(format!("submit={server}").parse().unwrap()),
        submit_rights: Some(files.path("rights.toml")),
        submit_key: Some(files.path("key.pem")),
        submit_store: Some(files.store()),
        workers: Some(2),
        ..GatewayOptions::default()
    }
}

pub(crate) fn start(options: GatewayOptions) -> Gateway {
    let (running, address) = start_gateway(options);
    Gateway {
        address,
        running: Some(running),
    }
}

fn secret(number: u8) -> [u8; 32] {
    [number; 32]
}

pub(crate) fn key(number: u8) -> String {
    IdempotencyKey(sha256(&secret(number))).value()
}

/// Returns a POST with the token and the key of a number.
pub(crate) fn post(path: &str, number: u8, fields: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer {TOKEN}\r\n\
         Idempotency-Key: {}\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n{fields}\r\n{body}",
        key(number),
        body.len()
    )
}

pub(crate) fn exchange(gateway: &Gateway, method: &str, bytes: &str) -> Answer {
    let mut client = Client::to(gateway.address);
    client.send(bytes);
    client.answer(method)
}

pub(crate) fn get(gateway: &Gateway, path: &str, number: u8) -> Answer {
    let secret = write_secret(&secret(number));
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: gateway\r\nSubmission-Secret: {secret}\r\n\r\n");
    exchange(gateway, "GET", &request)
}

fn keys(gateway: &Gateway) -> Vec<directory::PublicKey> {
    let answer = get(gateway, directory::PATH, 0);
    assert_eq!(answer.field("content-type"), Some(directory::MEDIA_TYPE));
    directory::read(&answer.body, sha256).unwrap()
}

/// Waits until the submission has an answer, and returns its state.
pub(crate) fn wait_for_answer(gateway: &Gateway, location: &str, number: u8) -> StateDocument {
    loop {
        let answer = get(gateway, location, number);
        assert_eq!(answer.status, 200);
        let state = StateDocument::read(&answer.body).unwrap();
        if state.state != State::Accepted {
            return state;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn deliveries_share_a_connection_to_the_server() {
    let (files, server) = (Files::new("submit-kept", ""), SubmissionServer::new());
    let mut options = options(&files, &server.url("/in"));
    options.workers = Some(1);
    let gateway = start(options);
    for number in 1..=3 {
        let request = post("/submissions/reports", number, "", "a report");
        assert_eq!(exchange(&gateway, "POST", &request).status, 201);
    }
    assert_eq!((server.requests(), server.connections()), (3, 1));
}

#[test]
fn submission_is_signed_and_answered() {
    let (files, server) = (Files::new("submit-simple", ""), SubmissionServer::new());
    let gateway = start(options(&files, &server.url("/in")));
    let fields = "Cookie: a=b\r\nUser-Agent: Mine\r\nContent-Language: de\r\nX-Name: me\r\n";
    let request = post("/submissions/reports?part=1", 1, fields, "a report");
    let answer = exchange(&gateway, "POST", &request);
    assert_eq!(
        (answer.status, &answer.body[..]),
        (201, &b"took 8 bytes"[..])
    );
    assert_eq!(answer.field("set-cookie"), None);
    let received = server.processed().pop().unwrap();
    assert_eq!(received.line, "POST /in/reports?part=1 HTTP/1.1");
    assert_eq!(received.body, b"a report");
    received.verify(&keys(&gateway));
    let mut names: Vec<_> = received
        .fields
        .iter()
        .map(|(name, _)| name.to_lowercase())
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "content-digest",
            "content-language",
            "content-length",
            "content-type",
            "host",
            "idempotency-key",
            "signature",
            "signature-input",
            "submission-id",
            "user-agent"
        ]
    );
    assert_eq!(received.field("user-agent"), Some("tandem"));
    assert_ne!(received.field("idempotency-key"), Some(&*key(1)));
    // The same request gets the same answer, and the server gets it once.
    let again = exchange(&gateway, "POST", &request);
    assert_eq!((again.status, &again.body), (201, &answer.body));
    assert_eq!(again.field("location"), answer.field("location"));
    assert_eq!(server.requests(), 1);
    // The state and the answer need the secret.
    let location = answer.field("location").unwrap();
    assert_eq!(
        location,
        format!("/submissions/{}", received.field("submission-id").unwrap())
    );
    let state = StateDocument::read(&get(&gateway, location, 1).body).unwrap();
    assert_eq!((state.state, state.status), (State::Answered, Some(201)));
    let stored = get(&gateway, &format!("{location}/answer"), 1);
    assert_eq!((stored.status, stored.body), (201, answer.body.clone()));
    for path in [location, &format!("{location}/answer")] {
        assert_eq!(get(&gateway, path, 2).status, 404);
    }
}

#[test]
fn submission_outlives_a_server_that_fails() {
    let files = Files::new("submit-retry", "");
    let server = SubmissionServer::failing_first(vec![503, 401]);
    let gateway = start(options(&files, &server.url("")));
    let request = post("/submissions", 1, "Prefer: respond-async\r\n", "patient");
    let answer = exchange(&gateway, "POST", &request);
    assert_eq!(answer.status, 202);
    let location = answer.field("location").unwrap();
    let state = wait_for_answer(&gateway, location, 1);
    assert_eq!((state.state, state.status), (State::Answered, Some(201)));
    assert_eq!((server.requests(), server.processed().len()), (3, 1));
    assert_eq!(server.processed()[0].line, "POST / HTTP/1.1");
}

#[test]
fn refusals_name_the_problem_and_store_nothing() {
    let rights = "paths = [\"/reports\"]\ntypes = [\"text/plain\"]\nmax-bytes = 100\nper-day = 1\n";
    let (files, server) = (
        Files::new("submit-refusals", rights),
        SubmissionServer::new(),
    );
    let gateway = start(options(&files, &server.url("")));
    let good = post("/submissions/reports", 1, "", "a report");
    let without = |field: &str| {
        let lines = good.split("\r\n").filter(|line| !line.starts_with(field));
        lines.collect::<Vec<_>>().join("\r\n")
    };
    let chunked = without("Content-Length")
        .replace("\r\n\r\na report", "\r\nTransfer-Encoding: chunked\r\n\r\n")
        + "65\r\n"
        + &"x".repeat(101)
        + "\r\n0\r\n\r\n";
    let long = format!("Content-Language: {}\r\n", "x".repeat(1100));
    for (request, status, slug) in [
        (without("Authorization"), 401, "missing-credential"),
        (good.replace(TOKEN, "wrong"), 401, "unknown-credential"),
        (good.replace("Bearer", "Basic"), 401, "unknown-credential"),
        (good.replace("/reports", ""), 403, "path-not-allowed"),
        (
            good.replace("/reports", "/reports/../x"),
            403,
            "path-not-allowed",
        ),
        (
            good.replace("/reports", "/reports/..;/admin"),
            403,
            "path-not-allowed",
        ),
        (
            good.replace("text/plain", "text/html"),
            415,
            "type-not-allowed",
        ),
        (
            post("/submissions/reports", 1, "", &"x".repeat(101)),
            413,
            "too-large",
        ),
        (chunked, 413, "too-large"),
        (without("Idempotency-Key"), 400, "missing-key"),
        (good.replace(&key(1), "\"abc\""), 400, "malformed-key"),
        (
            post(
                "/submissions/reports",
                1,
                "Content-Digest: sha-256=:AAAA:\r\n",
                "a report",
            ),
            400,
            "digest-mismatch",
        ),
        (
            post("/submissions/reports", 1, &long, "a report"),
            400,
            "bad-fields",
        ),
        (
            good.replace("POST /submissions/reports", "PUT /submissions"),
            405,
            "method-not-allowed",
        ),
        (
            good.replace("/submissions/reports", "/submissionsx"),
            404,
            "not-found",
        ),
    ] {
        let answer = exchange(&gateway, "POST", &request);
        assert_eq!(answer.status, status, "{slug}");
        assert_eq!(
            answer.field("content-type"),
            Some("application/problem+json")
        );
        let document = Document::read(&answer.body).unwrap();
        assert_eq!(document.problem().unwrap().slug(), slug);
        assert_eq!(document.status, status);
        let explanation = get(&gateway, &document.kind, 0);
        assert!(String::from_utf8_lossy(&explanation.body).contains(&document.detail));
    }
    assert_eq!(server.requests(), 0);
    // None of them was charged: the one submission of the day is still possible.
    assert_eq!(exchange(&gateway, "POST", &good).status, 201);
    for (request, status, slug) in [
        (good.replace("a report", "a rep0rt"), 422, "key-reused"),
        (
            post("/submissions/reports", 2, "", "a report"),
            429,
            "over-quota",
        ),
    ] {
        let answer = exchange(&gateway, "POST", &request);
        let document = Document::read(&answer.body).unwrap();
        assert_eq!(
            (answer.status, document.problem().unwrap().slug()),
            (status, slug)
        );
        assert_eq!(answer.field("retry-after").is_some(), slug == "over-quota");
    }
    assert_eq!(server.requests(), 1);
}

#[test]
fn submission_of_an_incomplete_body_is_not_stored() {
    let (files, server) = (Files::new("submit-cut", ""), SubmissionServer::new());
    let gateway = start(options(&files, &server.url("")));
    let request = post("/submissions", 1, "", "a report");
    let mut client = Client::to(gateway.address);
    client.send(&request[..request.len() - 1]);
    client
        .stream
        .get_ref()
        .shutdown(std::net::Shutdown::Write)
        .unwrap();
    assert!(
        client
            .try_answer("POST")
            .map_or(true, |answer| answer.status == 400)
    );
    // The complete request is new to the store, and not a repetition.
    assert_eq!(exchange(&gateway, "POST", &request).status, 201);
    assert_eq!(server.processed()[0].body, b"a report");
}

#[test]
fn client_certificate_is_a_credential() {
    let certificates = Certificates::new("submit-certificate");
    let pem = std::fs::read(certificates.path("client.pem")).unwrap();
    let (_, pem) = x509_parser::pem::parse_x509_pem(&pem).unwrap();
    let rights = format!(
        "[[client]]\nname = \"drone\"\ncertificate-sha256 = \"{}\"\n",
        HEXLOWER.encode(&sha256(&pem.contents))
    );
    let server = SubmissionServer::new();
    for session in ["h2", "spdy3.1"] {
        let files = Files::new(&format!("submit-{session}"), &rights);
        let pair = Pair::with(
            session,
            |gateway| {
                let listen = format!("{session}+tls://127.0.0.1:0?{}", certificates.identity());
                *gateway = GatewayOptions {
                    listen: vec![endpoint(&listen)],
                    auth: vec![format!("client-ca={}", certificates.path("ca.pem"))],
                    ..options(&files, &server.url(""))
                };
            },
            |client| {
                let gateway = format!("{session}+tls://{}", client.gateway[0].last().authority());
                client.gateway = vec![
                    endpoint(&format!(
                        "{gateway}?ca={}&cert={}&key={}",
                        certificates.path("ca.pem"),
                        certificates.path("client.pem"),
                        certificates.path("client.key")
                    ))
                    .into(),
                ];
            },
        );
        let number = if session == "h2" { 1 } else { 2 };
        let request = post("http://gateway/submissions", number, "", "a picture");
        let without_token = request.replace(&format!("Authorization: Bearer {TOKEN}\r\n"), "");
        let mut client = pair.connect();
        client.send(without_token);
        assert_eq!(client.answer("POST").status, 201, "{session}");
    }
    assert_eq!(server.processed().len(), 2);
}

#[test]
fn concurrent_repetitions_are_delivered_once() {
    let (files, server) = (Files::new("submit-race", ""), SubmissionServer::new());
    let gateway = start(options(&files, &server.url("")));
    let mut clients: Vec<_> = (0..8).map(|_| Client::to(gateway.address)).collect();
    for client in &mut clients {
        client.send(post("/submissions", 1, "", "a report"));
    }
    for mut client in clients {
        assert!(matches!(client.answer("POST").status, 201 | 202));
    }
    assert_eq!(server.requests(), 1);
}

#[test]
fn gateway_whose_store_is_not_open_is_not_built() {
    let files = Files::new("submit-closed", "");
    let config = options(&files, "http://127.0.0.1:1").typed().unwrap();
    let local = ["127.0.0.1:1".parse().unwrap()];
    let build = async { config.build(&Services::default(), &local, &Drain::new()) };
    let built = block_on(tokio::task::LocalSet::new().run_until(build));
    let error = built.err().expect("no gateway").to_string();
    assert!(
        error.contains("submit-store: the store is not open"),
        "{error}"
    );
}

#[test]
fn submissions_need_rights_key_and_store() {
    let files = Files::new("submit-config", "");
    let complete = || options(&files, "http://127.0.0.1:1");
    type Change = fn(&mut GatewayOptions);
    let wrong: [(Change, &str); 11] = [
        (
            |it| it.submit_rights = None,
            "submit-rights: mode=submit needs it",
        ),
        (
            |it| it.submit_key = None,
            "submit-key: mode=submit needs it",
        ),
        (
            |it| it.submit_store = None,
            "submit-store: mode=submit needs it",
        ),
        (|it| it.submit_store = Some("x".into()), "write sqlite:FILE"),
        (
            |it| it.submit_key = it.submit_rights.clone(),
            "holds no Ed25519 key",
        ),
        (
            |it| it.submit_rights = it.submit_key.clone(),
            "submit-rights: ",
        ),
        (|it| it.open = Some(true), "open: mode=submit admits"),
        (|it| it.log_urls = Some(true), "log-urls: "),
        (|it| it.push = Some(true), "push: "),
        (
            |it| it.submit_keep = Some("59m".parse().unwrap()),
            "submit-keep: must be at least",
        ),
        (
            |it| it.submit_retry = Some("169h".parse().unwrap()),
            "submit-keep: must be at least",
        ),
    ];
    for (change, part) in wrong {
        let mut options = complete();
        change(&mut options);
        let error = options.typed().unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    assert!(complete().typed().is_ok());
    assert!(files.directory().join("submissions").metadata().is_err());
}

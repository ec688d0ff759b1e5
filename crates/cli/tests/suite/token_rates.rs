//! Tokens are issued and redeemed by the program under load: clients get tokens from an issuer, and
//! spend each of them once at a gateway, which delivers the submissions.
//!
//! ```sh
//! cargo build --release -p tandem-cli --features submit
//! TANDEM_TEST_PROGRAM=target/release/tandem TANDEM_TEST_TOKENS=2000 \\
//!     cargo test -p tandem-cli --test suite -- --nocapture tokens_are_issued_and_redeemed
//! ```
//!
//! prints the rates for each second of processor time of the issuer and the gateway.

use std::process::Command;
use std::sync::Mutex;
use std::time::{Instant, SystemTime};

use bytes::Bytes;
use data_encoding::HEXLOWER;
use tandem_http::Fields;
use tandem_submit::submission::IdempotencyKey;
use tandem_tokens::challenge::TokenChallenge;
use tandem_tokens::directory::{self, Directory};
use tandem_tokens::issuance::Unsigned;
use tandem_tokens::message::{Request, Response};
use tandem_tokens::oblivious::{self, KeyConfig};
use tandem_tokens::token::{REQUEST_TYPE, Token};

use crate::harness::{Answer, Client};
use crate::process::Process;
use crate::submission_server::{Files, SubmissionServer, sha256};

/// The number of tokens, unless the environment has another one.
const TOKENS: usize = 40;

/// The number of connections that send at the same time. Each one of the issuer has an account.
const CONNECTIONS: usize = 16;

fn account(number: usize) -> String {
    format!("token-of-the-account-{number}")
}

/// Returns the seconds of processor time of a process so far.
fn processor_time(process: &Process) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.child.id())).unwrap();
    let fields = stat.rsplit(") ").next().unwrap().split(' ');
    let ticks: u64 = fields
        .skip(11)
        .take(2)
        .map(|it| it.parse::<u64>().unwrap())
        .sum();
    ticks as f64 / 100.0
}

/// Sends requests over several connections, and returns the results in any order. The function gets
/// the number of the connection and a request.
fn send_all<T: Send, R: Send>(
    process: &Process,
    requests: Vec<T>,
    exchange: impl Fn(&mut Client, usize, T) -> R + Sync,
) -> Vec<R> {
    let (requests, results) = (Mutex::new(requests.into_iter()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for connection in 0..CONNECTIONS {
            let (requests, results, exchange) = (&requests, &results, &exchange);
            scope.spawn(move || {
                let mut client = Client::to(process.address);
                loop {
                    let Some(request) = requests.lock().unwrap().next() else {
                        return;
                    };
                    let result = exchange(&mut client, connection, request);
                    results.lock().unwrap().push(result);
                }
            });
        }
    });
    results.into_inner().unwrap()
}

fn get(process: &Process, path: &str) -> Answer {
    let mut client = Client::to(process.address);
    client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
    client.answer("GET")
}

fn post(client: &mut Client, path: &str, fields: &str, body: &[u8]) -> Answer {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: a\r\n{fields}Content-Length: {}\r\n\r\n",
        body.len()
    );
    client.send([head.as_bytes(), body].concat());
    client.answer("POST")
}

/// Gets tokens from an issuer, and returns them with its processor time.
fn issue(issuer: &Process, published: &Directory, count: usize) -> (Vec<Token>, f64) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let key = &published.present(now.unwrap().as_secs()).unwrap().key;
    let challenge = TokenChallenge {
        issuer_name: "issuer.example".into(),
        redemption_context: None,
        origin_info: "gw.example".into(),
    };
    let made = (0..count).map(|_| Unsigned::new(key, challenge.digest()).unwrap());
    let requests = made.collect();
    let before = processor_time(issuer);
    let answers = send_all(
        issuer,
        requests,
        |client, connection, (request, unsigned)| {
            let fields = format!(
                "Authorization: Bearer {}\r\nContent-Type: {REQUEST_TYPE}\r\n",
                account(connection)
            );
            let answer = post(client, "/token-request", &fields, &request.write());
            assert_eq!(answer.status, 200);
            (unsigned, answer.body)
        },
    );
    let time = processor_time(issuer) - before;
    let sign = |(unsigned, body): (Unsigned, Vec<u8>)| unsigned.sign(&body).unwrap();
    (answers.into_iter().map(sign).collect(), time)
}

/// Returns an encapsulated submission that a token pays for.
fn seal(config: &KeyConfig, number: usize, token: &Token) -> (Vec<u8>, oblivious::Encapsulated) {
    let mut fields = Fields::new();
    fields.push("authorization", token.authorization());
    let key = sha256(&number.to_be_bytes());
    fields.push("idempotency-key", IdempotencyKey(key).value());
    fields.push("content-type", "text/plain");
    let request = Request {
        method: "POST".into(),
        authority: "gw.example".into(),
        path: "/submissions/in".into(),
        fields,
        body: Bytes::from(format!("report {number}")),
    };
    config.encapsulate(&request.write().unwrap()).unwrap()
}

#[test]
fn tokens_are_issued_and_redeemed() {
    let count = std::env::var("TANDEM_TEST_TOKENS").map_or(TOKENS, |it| it.parse().unwrap());
    let (files, server) = (Files::new("token-rates", ""), SubmissionServer::new());
    let accounts: String = (0..CONNECTIONS)
        .map(|number| {
            let hash = HEXLOWER.encode(&sha256(account(number).as_bytes()));
            format!("[[client]]\nname = \"{number}\"\ntoken-sha256 = \"{hash}\"\n")
        })
        .collect();
    let write = |name: &str, text: &str| std::fs::write(files.directory().join(name), text);
    write("accounts.toml", &accounts).unwrap();
    let made = Command::new("openssl")
        .args(["genpkey", "-algorithm", "x25519", "-out"])
        .arg(files.path("oblivious.pem"))
        .status();
    assert!(made.expect("openssl: apt-get install openssl").success());
    let issuer = Process::start(&[
        "issuer",
        "--listen",
        "http+tcp://127.0.0.1:0",
        "--accounts",
        &files.path("accounts.toml"),
        "--keys",
        &files.path("issuer"),
        "--tokens",
        &count.to_string(),
    ]);
    let published = get(&issuer, directory::PATH).body;
    write("issuer.json", &String::from_utf8_lossy(&published)).unwrap();
    write(
        "issuers.toml",
        "[[issuer]]\nname = \"issuer.example\"\norigin = \"gw.example\"\n\
         directory = \"issuer.json\"\n",
    )
    .unwrap();
    let gateway = Process::start(&[
        "gateway",
        "--listen",
        "http+tcp://127.0.0.1:0",
        "--mode",
        &format!("submit={}", server.url("")),
        "--submit-issuers",
        &files.path("issuers.toml"),
        "--submit-oblivious-key",
        &files.path("oblivious.pem"),
        "--submit-key",
        &files.path("key.pem"),
        "--submit-store",
        &files.store(),
        "--submit-batch-wait",
        "1s",
        "--submit-batch-min",
        "1",
    ]);
    let (tokens, issuing) = issue(&issuer, &Directory::read(&published).unwrap(), count);
    assert_eq!(tokens.len(), count);
    let config = KeyConfig::read_list(&get(&gateway, oblivious::PATH).body).unwrap();
    let sealed = tokens.iter().enumerate();
    let sealed: Vec<_> = sealed
        .map(|(number, token)| seal(&config, number, token))
        .collect();
    let kind = format!("Content-Type: {}\r\n", oblivious::REQUEST_TYPE);
    let (before, begun) = (processor_time(&gateway), Instant::now());
    send_all(&gateway, sealed, |client, _, (sealed, awaiting)| {
        let answer = post(client, oblivious::PATH, &kind, &sealed);
        let response = Response::read(&awaiting.decapsulate(&answer.body).unwrap()).unwrap();
        assert_eq!(response.status, 202);
    });
    let (redeeming, taken) = (processor_time(&gateway) - before, begun.elapsed());
    while server.processed().len() < count {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let delivering = processor_time(&gateway) - before;
    // Each token has paid for one submission.
    let mut bodies: Vec<_> = server.processed().into_iter().map(|it| it.body).collect();
    bodies.sort();
    bodies.dedup();
    assert_eq!((bodies.len(), server.requests()), (count, count));
    eprintln!(
        "{count} tokens: {:.0} issued, {:.0} redeemed, and {:.0} redeemed and delivered for each \
         second of processor time; all were redeemed in {taken:?}",
        count as f64 / issuing,
        count as f64 / redeeming,
        count as f64 / delivering,
    );
}

//! Tests of unlinkable submissions: a gateway with `submit-issuers`, and clients that spend tokens
//! within encapsulated requests.

use std::sync::LazyLock;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tandem::config::GatewayOptions;
use tandem_http::Fields;
use tandem_submit::problem::Document;
use tandem_submit::submission::{IdempotencyKey, State, StateDocument, write_secret};
use tandem_tokens::challenge::TokenChallenge;
use tandem_tokens::directory::{DatedKey, Directory};
use tandem_tokens::issuance::{IssuerKey, Unsigned};
use tandem_tokens::message::{Request, Response};
use tandem_tokens::oblivious::{self, KeyConfig};
use tandem_tokens::token::Token;

use crate::harness::{Answer, Client};
use crate::submission_server::{Files, SubmissionServer, sha256};
use crate::submissions::{self, Gateway, options, start};
use crate::test_database::Database;

const DAY: u64 = 86_400;

/// An X25519 key in PKCS #8, whose private part is that of RFC 9458 appendix A.
const OBLIVIOUS_KEY: &str = "-----BEGIN PRIVATE KEY-----\n\
    MC4CAQAwBQYDK2VuBCIEIDwWiXVnSy+o5GWXC3nI3PCfHHQWJkgL1MYWL8W2qY4a\n\
    -----END PRIVATE KEY-----\n";

/// The keys of the present epoch, and of one that is over.
static KEY: LazyLock<IssuerKey> = LazyLock::new(|| IssuerKey::generate().unwrap());
static OLD_KEY: LazyLock<IssuerKey> = LazyLock::new(|| IssuerKey::generate().unwrap());

fn today() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap().as_secs() / DAY
}

fn challenge(origin: &str) -> TokenChallenge {
    TokenChallenge {
        issuer_name: "issuer.example".into(),
        redemption_context: None,
        origin_info: origin.into(),
    }
}

/// The rights of a token.
const RIGHTS: &str = "epoch-hours = 48\npaths = [\"/reports\"]\ntypes = [\"text/plain\"]\n\
                      max-bytes = 3000\n";

/// Starts a gateway whose issuer has both keys.
fn gateway(files: &Files, server: &SubmissionServer, size: usize) -> Gateway {
    start(unlinkable(files, server, size, RIGHTS))
}

/// Returns the options of a gateway with an issuer that has both keys, and tokens with these
/// rights.
fn unlinkable(
    files: &Files,
    server: &SubmissionServer,
    size: usize,
    rights: &str,
) -> GatewayOptions {
    // The present key begins yesterday: the test may run over midnight.
    let keys = [(&OLD_KEY, today() - 5), (&KEY, today() - 1)];
    let dated = keys.map(|(key, day)| DatedKey {
        key: key.public().clone(),
        not_before: day * DAY,
    });
    let directory = Directory {
        request_uri: "/token-request".into(),
        keys: dated.to_vec(),
    };
    let issuers = format!(
        "[[issuer]]\nname = \"issuer.example\"\norigin = \"gw.example\"\n\
         directory = \"directory.json\"\n{rights}"
    );
    for (name, text) in [
        ("directory.json", directory.write().as_str()),
        ("issuers.toml", issuers.as_str()),
        ("oblivious.pem", OBLIVIOUS_KEY),
    ] {
        std::fs::write(files.directory().join(name), text).unwrap();
    }
    GatewayOptions {
        submit_rights: None,
        submit_issuers: Some(files.path("issuers.toml")),
        submit_oblivious_key: Some(files.path("oblivious.pem")),
        submit_batch: Some(size),
        submit_batch_wait: Some("1h".parse().unwrap()),
        ..options(files, &server.url("/in"))
    }
}

fn issue(key: &IssuerKey, challenge: &TokenChallenge) -> Token {
    let (request, unsigned) = Unsigned::new(key.public(), challenge.digest()).unwrap();
    unsigned.sign(&key.sign(&request).unwrap()).unwrap()
}

fn keys(gateway: &Gateway) -> KeyConfig {
    let mut client = Client::to(gateway.address);
    client.send(format!(
        "GET {} HTTP/1.1\r\nHost: g\r\n\r\n",
        oblivious::PATH
    ));
    let answer = client.answer("GET");
    assert_eq!(answer.field("content-type"), Some(oblivious::KEYS_TYPE));
    KeyConfig::read_list(&answer.body).unwrap()
}

/// Returns a POST with the secret of a number.
fn post(number: u8, token: &str, body: &'static [u8]) -> Request {
    let mut fields = Fields::new();
    fields.push("authorization", token);
    fields.push(
        "idempotency-key",
        IdempotencyKey(sha256(&[number; 32])).value(),
    );
    fields.push("content-type", "text/plain");
    fields.push("x-client", "somebody");
    Request {
        method: "POST".into(),
        authority: "gw.example".into(),
        path: "/submissions/reports".into(),
        fields,
        body: Bytes::from_static(body),
    }
}

fn get(number: u8, path: &str) -> Request {
    let mut fields = Fields::new();
    fields.push("submission-secret", write_secret(&[number; 32]));
    Request {
        method: "GET".into(),
        authority: "gw.example".into(),
        path: path.into(),
        fields,
        body: Bytes::new(),
    }
}

fn send_outer(gateway: &Gateway, kind: &str, body: &[u8]) -> Answer {
    let mut client = Client::to(gateway.address);
    let (path, length) = (oblivious::PATH, body.len());
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: g\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n"
    );
    client.send([head.as_bytes(), body].concat());
    client.answer("POST")
}

fn send(gateway: &Gateway, request: &Request) -> Response {
    let (sealed, state) = keys(gateway)
        .encapsulate(&request.write().unwrap())
        .unwrap();
    let answer = send_outer(gateway, oblivious::REQUEST_TYPE, &sealed);
    assert_eq!(
        answer.status,
        200,
        "{:?}",
        String::from_utf8_lossy(&answer.body)
    );
    assert_eq!(answer.field("content-type"), Some(oblivious::RESPONSE_TYPE));
    Response::read(&state.decapsulate(&answer.body).unwrap()).unwrap()
}

fn location(response: &Response) -> String {
    assert_eq!(response.status, 202);
    let location = response.fields.get("location").unwrap();
    String::from_utf8(location.to_vec()).unwrap()
}

/// Waits until the submission has an answer.
fn wait_for_answer(gateway: &Gateway, number: u8, location: &str) -> Response {
    loop {
        let response = send(gateway, &get(number, location));
        assert_eq!(response.status, 200);
        if StateDocument::read(&response.body).unwrap().state == State::Answered {
            return send(gateway, &get(number, &format!("{location}/answer")));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn token_pays_for_one_submission() {
    let (files, server) = (Files::new("unlinkable", ""), SubmissionServer::new());
    let gateway = gateway(&files, &server, 2);
    let challenge = challenge("gw.example");
    let first = issue(&KEY, &challenge).authorization();
    let request = post(1, &first, b"first report");
    let place = location(&send(&gateway, &request));
    // A repetition gets the same answer, and the batch has one member.
    assert_eq!(location(&send(&gateway, &request)), place);
    let other = send(&gateway, &post(2, &first, b"another report"));
    assert_refused(&other, "token-spent");
    assert_eq!(server.requests(), 0);
    // The second member completes the batch.
    let second = issue(&KEY, &challenge).authorization();
    let second = location(&send(&gateway, &post(3, &second, b"second report")));
    for (number, place, length) in [(1, &place, 12), (3, &second, 13)] {
        let answer = wait_for_answer(&gateway, number, place);
        assert_eq!(answer.status, 201);
        assert_eq!(answer.body, format!("took {length} bytes"));
    }
    let unknown = send(&gateway, &get(2, &place));
    assert_eq!(unknown.status, 404);
    let received = server.processed();
    assert_eq!(received.len(), 2);
    for received in received {
        assert_eq!(received.line, "POST /in/reports HTTP/1.1");
        for name in ["authorization", "x-client", "submission-secret"] {
            assert_eq!(received.field(name), None, "{name}");
        }
    }
}

#[test]
fn spent_token_stays_spent_in_other_epochs() {
    let (files, server) = (Files::new("unlinkable-epochs", ""), SubmissionServer::new());
    let token = issue(&KEY, &challenge("gw.example")).authorization();
    let first = gateway(&files, &server, 2);
    location(&send(&first, &post(1, &token, b"first report")));
    drop(first);
    let rights = RIGHTS.replace("48", "96");
    let second = start(unlinkable(&files, &server, 2, &rights));
    let other = send(&second, &post(2, &token, b"another report"));
    assert_refused(&other, "token-spent");
}

/// Checks that a response is a refusal with this problem.
fn assert_refused(response: &Response, problem: &str) {
    let document = Document::read(&response.body).unwrap();
    assert_eq!(document.kind, format!("/problems/{problem}"));
}

#[test]
fn gateways_of_a_store_share_tokens_and_batches() {
    let (files, server) = (Files::new("unlinkable-shared", ""), SubmissionServer::new());
    let database = Database::start();
    let new = || {
        start(GatewayOptions {
            submit_store: Some(database.url("tandem")),
            ..unlinkable(&files, &server, 4, RIGHTS)
        })
    };
    let (first, second, third) = (new(), new(), new());
    let token = || issue(&KEY, &challenge("gw.example")).authorization();
    let request = post(1, &token(), b"report 1");
    let mut places = vec![location(&send(&first, &request))];
    // Another gateway knows the request, and its token.
    assert_eq!(location(&send(&second, &request)), places[0]);
    let spent = request.fields.get("authorization").unwrap();
    let spent = String::from_utf8(spent.to_vec()).unwrap();
    let other = send(&second, &post(2, &spent, b"report 2"));
    assert_refused(&other, "token-spent");
    // The batch outlives a gateway.
    drop(first);
    places.push(location(&send(&second, &post(2, &token(), b"report 2"))));
    places.push(location(&send(&third, &post(3, &token(), b"report 3"))));
    assert_eq!(server.requests(), 0);
    let fourth = new();
    places.push(location(&send(&fourth, &post(4, &token(), b"report 4"))));
    for (number, place) in (1..).zip(&places) {
        let answer = wait_for_answer(&third, number, place);
        assert_eq!(answer.status, 201);
    }
    assert_eq!((server.requests(), server.processed().len()), (4, 4));
}

#[test]
fn encapsulated_requests_leave_memory_to_accounts() {
    const LARGE: usize = 40 << 20;
    let rights = format!("max-bytes = {LARGE}\n");
    let (files, server) = (
        Files::new("unlinkable-memory", &rights),
        SubmissionServer::new(),
    );
    let gateway = start(GatewayOptions {
        submit_rights: Some(files.path("rights.toml")),
        submit_wait: Some("120s".parse().unwrap()),
        workers: Some(1),
        ..unlinkable(&files, &server, 2, &rights)
    });
    let head = |length: usize| {
        let (path, kind) = (oblivious::PATH, oblivious::REQUEST_TYPE);
        format!(
            "POST {path} HTTP/1.1\r\nHost: g\r\nContent-Type: {kind}\r\n\
             Content-Length: {length}\r\n\r\n"
        )
    };
    // A client without a token fills its share, and takes the place beside it.
    let mut flood = Client::to(gateway.address);
    flood.send(head(LARGE));
    flood.send(vec![0; LARGE - 1]);
    let mut second = Client::to(gateway.address);
    second.send(head(LARGE));
    let second = second.answer("POST");
    assert_eq!(second.status, 503);
    assert_eq!(Document::read(&second.body).unwrap().kind, "/problems/busy");
    // Small ones of others fit, and clients with accounts have all of their memory.
    let token = issue(&KEY, &challenge("gw.example")).authorization();
    location(&send(&gateway, &post(1, &token, b"a report")));
    let body = "x".repeat(17 << 20);
    let large = submissions::post("/submissions", 2, "", &body);
    let answer = submissions::exchange(&gateway, "POST", &large);
    assert_eq!(answer.status, 201);
    drop(flood);
}

#[test]
fn gateway_challenges_clients_without_tokens() {
    let (files, server) = (
        Files::new("unlinkable-challenge", ""),
        SubmissionServer::new(),
    );
    let gateway = gateway(&files, &server, 2);
    let mut client = Client::to(gateway.address);
    client.send("POST /submissions HTTP/1.1\r\nHost: g\r\nContent-Length: 0\r\n\r\n");
    let answer = client.answer("POST");
    assert_eq!(answer.status, 401);
    let values = answer.all("www-authenticate");
    let read = values
        .iter()
        .filter_map(|value| TokenChallenge::from_www_authenticate(value).ok())
        .next();
    assert_eq!(read, Some((challenge("gw.example"), KEY.public().spki())));
}

/// A request that is refused: the problem, and the change of a valid request.
type Refused = (&'static str, fn(&mut Request));

#[test]
fn bad_submissions_get_a_problem_and_change_nothing() {
    let (files, server) = (Files::new("unlinkable-bad", ""), SubmissionServer::new());
    let gateway = gateway(&files, &server, 2);
    let token = issue(&KEY, &challenge("gw.example")).authorization();
    fn with(request: &mut Request, name: &str, value: impl AsRef<str>) {
        request.fields.set(name, value.as_ref());
    }
    let cases: &[Refused] = &[
        ("missing-token", |request| {
            request.fields.remove("authorization");
        }),
        ("missing-token", |request| {
            with(request, "authorization", "Bearer abc")
        }),
        ("malformed-token", |request| {
            with(request, "authorization", "PrivateToken token=\"AAAA\"");
        }),
        ("unknown-issuer", |request| {
            let other = IssuerKey::generate().unwrap();
            let token = issue(&other, &challenge("gw.example"));
            with(request, "authorization", token.authorization());
        }),
        ("epoch-over", |request| {
            let token = issue(&OLD_KEY, &challenge("gw.example"));
            with(request, "authorization", token.authorization());
        }),
        ("wrong-challenge", |request| {
            let token = issue(&KEY, &challenge("other.example"));
            with(request, "authorization", token.authorization());
        }),
        ("forged-token", |request| {
            let mut token = issue(&KEY, &challenge("gw.example"));
            token.nonce[0] ^= 1;
            with(request, "authorization", token.authorization());
        }),
        ("too-large", |request| {
            request.body = Bytes::from(vec![b'x'; 3001])
        }),
        ("type-not-allowed", |request| {
            with(request, "content-type", "image/png")
        }),
        ("path-not-allowed", |request| {
            request.path = "/submissions/other".into()
        }),
        ("missing-key", |request| {
            request.fields.remove("idempotency-key");
        }),
        ("malformed-key", |request| {
            with(request, "idempotency-key", "\"short\"")
        }),
        ("digest-mismatch", |request| {
            let empty = "sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:";
            with(request, "content-digest", empty);
        }),
        ("not-found", |request| request.path = "/elsewhere".into()),
        ("method-not-allowed", |request| {
            request.method = "PUT".into()
        }),
    ];
    for (expected, change) in cases {
        let mut request = post(1, &token, b"a report");
        change(&mut request);
        let response = send(&gateway, &request);
        let document = Document::read(&response.body).unwrap();
        assert_eq!(document.kind, format!("/problems/{expected}"));
        assert_eq!(document.status, response.status);
        let text = String::from_utf8_lossy(&response.body);
        for secret in ["a report", &token[30..60], "issuer.example"] {
            assert!(!text.contains(secret), "{text}");
        }
    }
    // The token is still worth a submission, which is alone in its batch.
    location(&send(&gateway, &post(1, &token, b"a report")));
    assert_eq!(server.requests(), 0);
}

#[test]
fn bad_encapsulations_get_their_problem() {
    let (files, server) = (Files::new("unlinkable-outer", ""), SubmissionServer::new());
    let gateway = gateway(&files, &server, 2);
    let config = keys(&gateway);
    let token = issue(&KEY, &challenge("gw.example")).authorization();
    let message = post(1, &token, b"a report").write().unwrap();
    let seal = |message: &[u8]| config.encapsulate(message).unwrap().0;
    let expect = |kind: &str, body: &[u8], status: u16, problem: &str| {
        let answer = send_outer(&gateway, kind, body);
        let document = Document::read(&answer.body).unwrap();
        assert_eq!((answer.status, document.kind.as_str()), (status, problem));
    };
    let kind = oblivious::REQUEST_TYPE;
    expect(
        "text/plain",
        &seal(&message),
        415,
        "/problems/wrong-media-type",
    );
    expect(kind, b"", 400, "/problems/bad-encapsulation");
    let mut changed = seal(&message);
    changed[60] ^= 1;
    expect(kind, &changed, 400, "/problems/bad-encapsulation");
    let mut other_key = seal(&message);
    other_key[0] ^= 1;
    let registered = "https://iana.org/assignments/http-problem-types#ohttp-key";
    expect(kind, &other_key, 422, registered);
    // The relay learns nothing of problems behind the encapsulation.
    for (message, problem) in [
        (&message[..4000], "/problems/bad-padding"),
        (&[9; 4096], "/problems/bad-message"),
    ] {
        let (sealed, state) = config.encapsulate(message).unwrap();
        let answer = send_outer(&gateway, kind, &sealed);
        let outer = (answer.status, answer.field("content-type"));
        assert_eq!(outer, (200, Some(oblivious::RESPONSE_TYPE)));
        let response = Response::read(&state.decapsulate(&answer.body).unwrap()).unwrap();
        let document = Document::read(&response.body).unwrap();
        assert_eq!((response.status, document.kind.as_str()), (400, problem));
    }
    // The announced length is enough.
    let mut client = Client::to(gateway.address);
    let path = oblivious::PATH;
    client.send(format!(
        "POST {path} HTTP/1.1\r\nHost: g\r\nContent-Type: {kind}\r\nContent-Length: 70000\r\n\r\n"
    ));
    let document = Document::read(&client.answer("POST").body).unwrap();
    assert_eq!(document.kind, "/problems/too-large");
    let sealed = seal(&message);
    assert_eq!(send_outer(&gateway, kind, &sealed).status, 200);
    expect(kind, &sealed, 409, "/problems/replayed");
    assert_eq!(server.requests(), 0);
}

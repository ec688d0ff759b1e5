//! A server that takes submissions of a gateway: it verifies the signature (RFC 9421) and the
//! digest (RFC 9530), writes each body to a file, and answers a repeated request as it answered the
//! first.
//!
//! ```text
//! curl https://gateway.example/.well-known/http-message-signatures-directory > keys.json
//! cargo run -p tandem-submit --example server -- 127.0.0.1:8000 keys.json reports/
//! ```

use std::collections::HashMap;
use std::error::Error;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, SystemTime};

use ring::digest::{SHA256, digest};
use ring::signature::{ED25519, UnparsedPublicKey};
use tandem_http::h1::{Framing, Limits, Request, parse_request};
use tandem_http::{Method, RequestHead, Scheme};
use tandem_submit::directory::{self, PublicKey};
use tandem_submit::signature::{Requirements, verify};
use tandem_submit::submission::{IDEMPOTENCY_KEY, SUBMISSION_ID, SubmissionId};
use tandem_submit::{digest as content_digest, fields};

/// The components that each signature of a gateway covers.
const COMPONENTS: [&str; 8] = [
    "@method",
    "@authority",
    "@path",
    "@query",
    "content-type",
    "content-digest",
    SUBMISSION_ID,
    IDEMPOTENCY_KEY,
];

/// The largest body in bytes.
const MAX_BODY: u64 = 64 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, keys, reports] = &arguments[..] else {
        return Err("usage: server ADDRESS:PORT KEYS.json DIRECTORY".into());
    };
    let keys = directory::read(&std::fs::read(keys)?, sha256)?;
    std::fs::create_dir_all(reports)?;
    // A real server keeps the answers beside the data, so that they survive a restart.
    let mut answers = HashMap::new();
    for stream in TcpListener::bind(address)?.incoming() {
        let served = stream.map_err(Into::into);
        let served = served.and_then(|it| serve(it, &keys, Path::new(reports), &mut answers));
        if let Err(error) = served {
            eprintln!("a connection failed: {error}");
        }
    }
    Ok(())
}

/// Serves one request.
fn serve(
    mut stream: TcpStream,
    keys: &[PublicKey],
    reports: &Path,
    answers: &mut HashMap<Vec<u8>, u16>,
) -> Result<(), Box<dyn Error>> {
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let (request, mut body) = read_head(&mut stream)?;
    let Framing::Length(length @ ..=MAX_BODY) = request.framing else {
        return answer(&mut stream, 411);
    };
    let length = usize::try_from(length)?;
    let begun = body.len().min(length);
    body.resize(length, 0);
    stream.read_exact(&mut body[begun..])?;
    let status = match check(&request.head, &body, keys) {
        Err(error) => {
            eprintln!("a request is refused: {error}");
            401
        }
        Ok(key) => match answers.get(&key) {
            Some(status) => *status,
            None => {
                let id = request.head.fields.get(SUBMISSION_ID).unwrap_or_default();
                // The identifier is part of a path, so only its exact form is permitted.
                let id = SubmissionId::parse(std::str::from_utf8(id)?).ok_or("no identifier")?;
                std::fs::write(reports.join(id.to_string()), &body)?;
                answers.insert(key, 201);
                201
            }
        },
    };
    answer(&mut stream, status)
}

/// Checks the signature and the digest. Returns the idempotency key.
pub(crate) fn check(
    request: &RequestHead,
    body: &[u8],
    keys: &[PublicKey],
) -> Result<Vec<u8>, Box<dyn Error>> {
    if request.method != Method::Post {
        return Err("it is no POST".into());
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let requirements = Requirements {
        tag: Some("tandem-submission"),
        components: &COMPONENTS,
        if_present: &fields::PASSED,
        now: now.as_secs().try_into()?,
        max_age: 300,
    };
    verify(request, &requirements, |id, base, signature| {
        let key = keys.iter().find(|key| key.id == id);
        let key = key.map(|key| UnparsedPublicKey::new(&ED25519, key.key));
        key.is_some_and(|key| key.verify(base, signature).is_ok())
    })?;
    content_digest::check(&request.fields, &sha256(body))?;
    let key = request.fields.get(IDEMPOTENCY_KEY);
    Ok(key.ok_or("it has no idempotency key")?.to_vec())
}

/// Reads the head of a request, and the part of the body that came with it.
fn read_head(stream: &mut TcpStream) -> Result<(Request, Vec<u8>), Box<dyn Error>> {
    let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        let count = stream.read(&mut piece)?;
        if count == 0 {
            return Err("the request is incomplete".into());
        }
        bytes.extend_from_slice(&piece[..count]);
        let parsed = parse_request(&bytes, Scheme::Http, &Limits::default())?;
        if let Some((request, length)) = parsed {
            return Ok((request, bytes.split_off(length)));
        }
    }
}

fn answer(stream: &mut TcpStream, status: u16) -> Result<(), Box<dyn Error>> {
    let head = format!("HTTP/1.1 {status} -\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    Ok(stream.write_all(head.as_bytes())?)
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, bytes).as_ref());
    hash
}

//! A server that takes submissions: it verifies the gateway's signature, answers a repeated request
//! as it answered the first, and keeps a record of all requests.

#[expect(dead_code, reason = "the tests use its check of requests only")]
#[path = "../../../submit/examples/server.rs"]
mod example;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use data_encoding::HEXLOWER;
use ring::digest::{SHA256, digest};
use tandem_http::{Method, RequestHead, Scheme};
use tandem_submit::directory::PublicKey;

use crate::harness::{Asked, Client, Gate, Scene};

/// The private key of RFC 9421 appendix B.1.4.
const KEY: &str = "-----BEGIN PRIVATE KEY-----\n\
    MC4CAQAwBQYDK2VwBCIEIJ+DYvh6SEqVTm50DFtMDoQikTmiCqirVv9mWG9qfSnF\n\
    -----END PRIVATE KEY-----\n";

/// The token of the clients.
pub(crate) const TOKEN: &str = "token-of-the-surveyors";

pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    digest(&SHA256, bytes).as_ref().try_into().unwrap()
}

/// A directory with the key, the rights and the store of a gateway; it is removed at the end.
pub(crate) struct Files(pub(crate) PathBuf);

impl Files {
    /// Writes the files. The rights of the client with [`TOKEN`] are the lines `rights`.
    pub(crate) fn new(name: &str, rights: &str) -> Self {
        let name = format!("tandem-test-{name}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        let token = HEXLOWER.encode(&sha256(TOKEN.as_bytes()));
        let text =
            format!("[[client]]\nname = \"surveyors\"\ntoken-sha256 = \"{token}\"\n{rights}");
        std::fs::write(directory.join("rights.toml"), text).unwrap();
        std::fs::write(directory.join("key.pem"), KEY).unwrap();
        Self(directory)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    pub(crate) fn store(&self) -> String {
        format!("sqlite:{}", self.path("submissions"))
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.0
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A submission as the server received it.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) line: String,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Received {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.fields.iter();
        let field = fields.find(|(known, _)| known.eq_ignore_ascii_case(name));
        field.map(|(_, value)| value.as_str())
    }

    /// Verifies the signature and the digest with a key of the gateway's directory, as the example
    /// of a server does.
    pub(crate) fn verify(&self, keys: &[PublicKey]) {
        let target = self.line.split(' ').nth(1).unwrap();
        let host = self.field("host").unwrap();
        let mut request = RequestHead {
            method: Method::Post,
            ..RequestHead::get(Scheme::Http, host, target)
        };
        for (name, value) in &self.fields {
            request.fields.push(name.to_ascii_lowercase(), value);
        }
        example::check(&request, &self.body, keys).unwrap();
    }
}

#[derive(Default)]
struct Log {
    /// The distinct submissions, by idempotency key.
    processed: HashMap<String, Received>,
    requests: usize,
    connections: usize,
}

/// The server. The first requests get the statuses of a list, and are not processed.
pub(crate) struct SubmissionServer {
    scene: Scene,
    log: Arc<Mutex<Log>>,
}

impl SubmissionServer {
    pub(crate) fn new() -> Self {
        Self::failing_first(Vec::new())
    }

    pub(crate) fn failing_first(statuses: Vec<u16>) -> Self {
        let gate = Gate::default();
        gate.open();
        Self::with(statuses, Arc::new(gate))
    }

    /// Starts a server that reads bodies after the gate has opened.
    pub(crate) fn waiting(gate: &Arc<Gate>) -> Self {
        Self::with(Vec::new(), Arc::clone(gate))
    }

    fn with(statuses: Vec<u16>, gate: Arc<Gate>) -> Self {
        let log = Arc::<Mutex<Log>>::default();
        let shared = Arc::clone(&log);
        let scene = Scene::new(move |_, mut client| {
            shared.lock().unwrap().connections += 1;
            while let Some(asked) = client.request() {
                serve(&mut client, asked, &shared, (&statuses, &gate));
            }
        });
        Self { scene, log }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        self.scene.url(path)
    }

    /// Returns the submissions that were processed, each once.
    pub(crate) fn processed(&self) -> Vec<Received> {
        self.log
            .lock()
            .unwrap()
            .processed
            .values()
            .cloned()
            .collect()
    }

    /// Returns the number of connections.
    pub(crate) fn connections(&self) -> usize {
        self.log.lock().unwrap().connections
    }

    /// Returns the number of requests, including repeated ones.
    pub(crate) fn requests(&self) -> usize {
        self.log.lock().unwrap().requests
    }
}

fn serve(client: &mut Client, asked: Asked, log: &Mutex<Log>, (statuses, gate): (&[u16], &Gate)) {
    let number = {
        let mut log = log.lock().unwrap();
        log.requests += 1;
        log.requests - 1
    };
    gate.wait();
    let length = asked
        .field("content-length")
        .map_or(0, |it| it.parse().unwrap());
    let body = client.read_exact(length);
    let received = Received {
        line: asked.line,
        fields: asked.fields,
        body,
    };
    let key = received.field("idempotency-key").unwrap().to_owned();
    let (status, body) = match statuses.get(number) {
        Some(status) => (*status, "later".to_owned()),
        None => {
            let body = format!("took {} bytes", received.body.len());
            log.lock().unwrap().processed.insert(key, received);
            (201, body)
        }
    };
    client.send(format!(
        "HTTP/1.1 {status} X\r\nLocation: /else\r\nContent-Type: text/plain\r\nSet-Cookie: a=b\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    ));
}

//! Takes a submission: checks the credential and the rights, reads the body, stores it, and waits
//! for the server's answer.

use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tandem_http::{Fields, RequestHead};
use tandem_submit::digest::{self, CONTENT_DIGEST, DigestError};
use tandem_submit::fields;
use tandem_submit::problem::Problem;
use tandem_submit::rights::Client;
use tandem_submit::store::{Admission, Content, Delivery, NewSubmission, Record};
use tandem_submit::submission::{IdempotencyKey, State, SubmissionId};
use tokio::time::Instant;

use super::respond::Response;
use super::signer::sha256;
use super::{Submissions, is_async, millis, now};
use crate::exchange::{Body, Chunk, Exchange};
use crate::metrics::METRICS;

/// The bytes of bodies that a thread holds, unless it holds only one.
const MAX_HELD: u64 = 64 << 20;

/// The lowest rate of a body, in bytes per second, after [`SLOW_START`].
const LOWEST_RATE: u64 = 1024;

/// The time after which the lowest rate applies.
const SLOW_START: Duration = Duration::from_secs(60);

/// The longest path with its query, in bytes.
const MAX_PATH: usize = 2048;

/// The memory for a body, returned when it is dropped.
struct Held {
    submissions: Rc<Submissions>,
    bytes: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        let held = &self.submissions.held;
        held.set(held.get().saturating_sub(self.bytes));
    }
}

impl Submissions {
    /// Takes a submission for `path` below the server's base. The order of the checks is that of
    /// their cost: nothing is read from a client without rights.
    pub(super) async fn accept(
        self: Rc<Self>,
        exchange: Exchange,
        path: String,
        certificate: Option<[u8; 32]>,
    ) -> Result<Response, Problem> {
        let rights = self.rights.get();
        let request = &exchange.request;
        let client = match token(request)? {
            Some(token) => rights.by_token(&sha256(&[token])),
            None => {
                let certificate = certificate.ok_or(Problem::MissingCredential)?;
                rights.by_certificate(&certificate)
            }
        };
        let client = client.ok_or(Problem::UnknownCredential)?;
        let length = exchange.body.length();
        let bare = path.split('?').next().unwrap_or_default();
        client.check(bare, request.fields.get("content-type"), length)?;
        if path.len() > MAX_PATH {
            return Err(Problem::PathNotAllowed);
        }
        let key = IdempotencyKey::of(&request.fields)?;
        let passed = fields::passed(&request.fields).ok_or(Problem::BadFields)?;
        let held = self.hold(length.unwrap_or(client.max_bytes))?;
        let body = self.read(exchange.body.share(), client).await?;
        let content = Content {
            digest: sha256(&[&body]),
            path,
            fields: passed,
            body,
        };
        check_digest(&request.fields, &content)?;
        let id = random_id()?;
        let lease = self.lease();
        let new = NewSubmission {
            id,
            key,
            client: client.name.clone(),
            fingerprint: fingerprint(client, &content),
            content: content.clone(),
            now: now(),
            leased_until: now().saturating_add(lease),
            quota: client.quota,
        };
        let accepted = new.now;
        let admission = self.store.admit(new).await.map_err(|error| {
            self.note(&error);
            Problem::StoreFailed
        })?;
        match admission {
            Admission::OverQuota => Err(Problem::OverQuota),
            Admission::KeyReused => Err(Problem::KeyReused),
            Admission::Known(record) => Ok(Response::answer(record)),
            Admission::Stored => {
                METRICS.submissions_accepted.add(1);
                let delivery = Delivery {
                    id,
                    content,
                    accepted,
                    attempts: 0,
                };
                let record = Record {
                    id,
                    key,
                    state: State::Accepted,
                    answer: None,
                };
                let record = Rc::clone(&self).wait(record, delivery, held, is_async(&exchange));
                Ok(Response::answer(record.await))
            }
        }
    }

    /// Starts the delivery, and waits for its end within the time limit. The delivery continues
    /// after that, and after the client has gone.
    async fn wait(
        self: Rc<Self>,
        mut record: Record,
        delivery: Delivery,
        held: Held,
        is_async: bool,
    ) -> Record {
        let this = Rc::clone(&self);
        let delivered = tokio::task::spawn_local(async move {
            let answer = this.deliver(delivery).await;
            drop(held);
            answer
        });
        if is_async {
            return record;
        }
        if let Ok(Ok(Some(answer))) = tokio::time::timeout(self.times.wait, delivered).await {
            record.state = State::Answered;
            record.answer = Some(answer);
        }
        record
    }

    /// Reserves memory for a body of up to `bytes`.
    fn hold(self: &Rc<Self>, bytes: u64) -> Result<Held, Problem> {
        let held = self.held.get();
        if held > 0 && held.saturating_add(bytes) > MAX_HELD {
            return Err(Problem::Busy);
        }
        self.held.set(held.saturating_add(bytes));
        Ok(Held {
            submissions: Rc::clone(self),
            bytes,
        })
    }

    async fn read(&self, mut body: Body, client: &Client) -> Result<Bytes, Problem> {
        let begun = Instant::now();
        let mut bytes = BytesMut::new();
        loop {
            let received = Duration::from_secs(bytes.len() as u64 / LOWEST_RATE);
            let limit = (begun + SLOW_START + received).min(Instant::now() + self.times.pause);
            let chunk = tokio::time::timeout_at(limit, poll_fn(|cx| body.poll_chunk(cx)));
            match chunk.await {
                Err(_) => return Err(Problem::SlowBody),
                Ok(Some(Err(_))) => return Err(Problem::IncompleteBody),
                Ok(None) => return Ok(bytes.freeze()),
                Ok(Some(Ok(Chunk::Trailers(_)))) => {}
                Ok(Some(Ok(Chunk::Data(data)))) => {
                    if (bytes.len() + data.len()) as u64 > client.max_bytes {
                        return Err(Problem::TooLarge);
                    }
                    bytes.extend_from_slice(&data);
                }
            }
        }
    }

    /// Returns the time for which a submission that is being delivered belongs to its deliverer.
    pub(super) fn lease(&self) -> i64 {
        millis(self.times.attempt).saturating_add(30_000)
    }
}

/// Returns the bearer token of a request (RFC 6750 section 2.1).
fn token(request: &RequestHead) -> Result<Option<&[u8]>, Problem> {
    let Some(value) = request.fields.get("authorization") else {
        return Ok(None);
    };
    match value.split_at_checked(7) {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case(b"bearer ") => {
            Ok(Some(token.trim_ascii()))
        }
        _ => Err(Problem::UnknownCredential),
    }
}

/// Compares the body with the digest that the client may have sent.
fn check_digest(fields: &Fields, content: &Content) -> Result<(), Problem> {
    if !fields.contains(CONTENT_DIGEST) {
        return Ok(());
    }
    match digest::check(fields, &content.digest) {
        // The client sent a digest with another algorithm only.
        Ok(()) | Err(DigestError::Missing) => Ok(()),
        Err(DigestError::Malformed | DigestError::Mismatch) => Err(Problem::DigestMismatch),
    }
}

/// Returns a hash of the client and its request. Each part has its length before it, so that
/// different requests have different inputs.
fn fingerprint(client: &Client, content: &Content) -> [u8; 32] {
    let fields = fields::write(&content.fields);
    let length = |part: &[u8]| (part.len() as u64).to_be_bytes();
    let (name, path) = (client.name.as_bytes(), content.path.as_bytes());
    sha256(&[
        &length(name),
        name,
        &length(path),
        path,
        &length(&fields),
        &fields,
        &content.digest,
    ])
}

fn random_id() -> Result<SubmissionId, Problem> {
    let random = ring::rand::generate(&ring::rand::SystemRandom::new());
    let random: ring::rand::Random<[u8; 16]> = random.map_err(|_| Problem::Busy)?;
    Ok(SubmissionId(random.expose()))
}

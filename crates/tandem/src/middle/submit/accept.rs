//! Takes a submission: checks the credential and the rights, reads the body, stores it, and waits
//! for the server's answer.

use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ring::digest::{Context, SHA256};
use tandem_http::{Fields, RequestHead};
use tandem_submit::digest::{self, CONTENT_DIGEST, DigestError};
use tandem_submit::fields;
use tandem_submit::problem::Problem;
use tandem_submit::rights::{Client, Quota, Rights};
use tandem_submit::store::{
    Admission, Content, Delivery, Inquiry, NewSubmission, Prospect, Record,
};
use tandem_submit::submission::{Answer, IdempotencyKey, State, SubmissionId};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::budget::Held;
use super::respond::Response;
use super::signer::sha256;
use super::{Submissions, is_async, now};
use crate::exchange::{Body, Chunk, Exchange};
use crate::log_limit::LogLimit;
use crate::metrics::METRICS;

/// The time limits of a body.
#[derive(Clone, Copy)]
pub(super) struct UploadLimits {
    /// The time after which the lowest rate applies.
    start: Duration,
    /// The lowest rate, in bytes per second.
    lowest_rate: u64,
    /// The longest time after `start`, whatever the length.
    longest: Duration,
    /// The longest pause, if it is shorter than that of the gateway.
    pause: Duration,
}

/// The limits of a client with rights.
const OF_CLIENTS: UploadLimits = UploadLimits {
    start: Duration::from_secs(60),
    lowest_rate: 1024,
    longest: Duration::from_secs(1800),
    pause: Duration::MAX,
};

/// The limits of an encapsulated request, whose token is unknown before its end.
#[cfg(any(test, feature = "submit"))]
pub(super) const OF_ENCAPSULATED: UploadLimits = UploadLimits {
    start: Duration::from_secs(30),
    lowest_rate: 8 << 10,
    longest: Duration::from_secs(300),
    pause: Duration::from_secs(15),
};

/// The smallest growth of the buffer for a body, in bytes.
const GROWTH: usize = 64 << 10;

/// The longest path with its query, in bytes.
const MAX_PATH: usize = 2048;

static FULL: LogLimit = LogLimit::new();

/// The credential of a client: a SHA-256 hash.
pub(in crate::middle) enum Credential {
    Token([u8; 32]),
    Certificate([u8; 32]),
}

impl Credential {
    pub(in crate::middle) fn of(
        request: &RequestHead,
        certificate: Option<[u8; 32]>,
    ) -> Result<Self, Problem> {
        match token(request)? {
            Some(token) => Ok(Self::Token(sha256(&[token]))),
            None => certificate
                .map(Self::Certificate)
                .ok_or(Problem::MissingCredential),
        }
    }

    pub(in crate::middle) fn client<'a>(&self, rights: &'a Rights) -> Result<&'a Client, Problem> {
        let client = match self {
            Self::Token(hash) => rights.by_token(hash),
            Self::Certificate(hash) => rights.by_certificate(hash),
        };
        client.ok_or(Problem::UnknownCredential)
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
        let request = &exchange.request;
        let credential = Credential::of(request, certificate)?;
        let rights = self.rights.get();
        let client = credential.client(&rights)?;
        let length = exchange.body.length();
        check_rights(client, request, &path, length)?;
        let key = IdempotencyKey::of(&request.fields)?;
        let passed = fields::passed(&request.fields).ok_or(Problem::BadFields)?;
        self.check_room(client, key, length).await?;
        let held = self.budget.open(&client.name, length);
        let mut held = held.ok_or(Problem::Busy)?;
        let body = exchange.body.share();
        let read = self.read(body, client.max_bytes, &mut held, OF_CLIENTS);
        let (body, digest) = read.await?;
        // The operator may have changed the rights while the body arrived.
        let rights = self.rights.get();
        let client = credential.client(&rights)?;
        check_rights(client, request, &path, Some(body.len() as u64))?;
        let content = Content {
            digest,
            path,
            fields: passed,
            body,
        };
        check_digest(&request.fields, &content)?;
        let new = NewSubmission {
            id: random_id()?,
            key,
            client: client.name.clone(),
            fingerprint: fingerprint(client, &content),
            content,
            now: now(),
            leased_until: now(),
            quota: client.quota,
            server: self.server.url(),
            spent: None,
            is_collected: false,
            max_stored: self.max_stored,
        };
        self.wait(new, held, is_async(&exchange)).await
    }

    /// Checks the quota and the room of the store before the body of an announced length arrives.
    async fn check_room(
        &self,
        client: &Client,
        key: IdempotencyKey,
        length: Option<u64>,
    ) -> Result<(), Problem> {
        let bytes = length.unwrap_or_default();
        let stored = self.stored.get().saturating_add(bytes);
        if client.quota == Quota::default() && stored <= self.max_stored {
            return Ok(());
        }
        let inquiry = Inquiry {
            key,
            client: client.name.clone(),
            bytes,
            now: now(),
            quota: client.quota,
            max_stored: self.max_stored,
        };
        match self.store.inquire(inquiry).await {
            Ok(Prospect::Admissible) => Ok(()),
            Ok(Prospect::OverQuota) => Err(Problem::OverQuota),
            Ok(Prospect::Full) => Err(self.full()),
            Err(error) => {
                self.note(&error);
                Err(Problem::StoreFailed)
            }
        }
    }

    /// Returns the problem of a full store, and warns the operator.
    fn full(&self) -> Problem {
        if let Some(held_back) = FULL.admit() {
            tracing::warn!(
                "submissions are refused, because the store holds submit-max-stored bytes \
                 ({held_back} more since the last line): check the server, and compare \
                 submit-keep with the free space of the disk"
            );
        }
        Problem::StoreFull
    }

    /// Starts a task that stores and delivers the submission, and waits for the server's answer
    /// within the time limit. The task continues after that, and after the client has gone.
    async fn wait(
        self: Rc<Self>,
        new: NewSubmission,
        held: Held,
        is_async: bool,
    ) -> Result<Response, Problem> {
        let (id, key) = (new.id, new.key);
        let (admitted, admission) = oneshot::channel();
        let task = Rc::clone(&self).admit(new, held, admitted);
        let delivered = tokio::task::spawn_local(task);
        let admission = admission.await.map_err(|_| Problem::StoreFailed)??;
        self.check_admission(&admission)?;
        if let Admission::Known(record) = admission {
            return Ok(Response::answer(record));
        }
        let mut record = Record {
            id,
            key,
            state: State::Accepted,
            status: None,
            answer: None,
        };
        if !is_async
            && let Ok(Ok(Some(answer))) = tokio::time::timeout(self.times.wait, delivered).await
        {
            record.state = State::Answered;
            record.status = Some(answer.status);
            record.answer = Some(answer);
        }
        Ok(Response::answer(record))
    }

    /// Returns the problem of a submission that the store refuses.
    pub(super) fn check_admission(&self, admission: &Admission) -> Result<(), Problem> {
        match admission {
            Admission::OverQuota => Err(Problem::OverQuota),
            Admission::Full => Err(self.full()),
            Admission::TokenSpent => Err(Problem::TokenSpent),
            Admission::EpochOver => Err(Problem::EpochOver),
            Admission::KeyReused => Err(Problem::KeyReused),
            Admission::Known(_) | Admission::Stored => Ok(()),
        }
    }

    /// Stores a submission, reports the decision of the store, and makes the first attempt at
    /// delivery. If too many deliveries run, the submission waits in the store for a claim.
    async fn admit(
        self: Rc<Self>,
        mut new: NewSubmission,
        held: Held,
        admitted: oneshot::Sender<Result<Admission, Problem>>,
    ) -> Option<Answer> {
        let direct = self.budget.deliver();
        let bytes = new.content.body.len() as u64;
        let (id, accepted) = (new.id, now());
        (new.now, new.leased_until) = (accepted, accepted);
        if direct.is_some() {
            new.leased_until = accepted.saturating_add(self.lease(bytes));
        }
        let leased_until = new.leased_until;
        let content = direct.as_ref().map(|_| new.content.clone());
        let admission = self.commit(new).await;
        let is_stored = matches!(admission, Ok(Admission::Stored));
        // The client may have gone.
        let _ = admitted.send(admission);
        if !is_stored {
            return None;
        }
        METRICS.submissions_accepted.add(1);
        // A slow disk may have used up the lease: another attempt could then begin meanwhile.
        let is_leased = now().saturating_add(self.attempt_time(bytes)) <= leased_until;
        let delivery = Delivery {
            id,
            content: content.filter(|_| is_leased)?,
            accepted,
            attempts: 0,
            lease_end: leased_until.saturating_sub(accepted),
        };
        let answer = self.deliver(delivery).await;
        drop((held, direct));
        answer
    }

    /// Reads a body of up to `most` bytes, and computes its SHA-256 hash.
    pub(super) async fn read(
        &self,
        mut body: Body,
        most: u64,
        held: &mut Held,
        limits: UploadLimits,
    ) -> Result<(Bytes, [u8; 32]), Problem> {
        let pause = self.times.pause.min(limits.pause);
        let (begun, announced) = (Instant::now(), body.length());
        let (mut bytes, mut hash) = (Vec::new(), Context::new(&SHA256));
        loop {
            let received = limits.time_for(bytes.len() as u64, announced);
            let limit = (begun + limits.start + received).min(Instant::now() + pause);
            let chunk = tokio::time::timeout_at(limit, poll_fn(|cx| body.poll_chunk(cx)));
            let data = match chunk.await {
                Err(_) => return Err(Problem::SlowBody),
                Ok(Some(Err(_))) => return Err(Problem::IncompleteBody),
                Ok(None) => break,
                Ok(Some(Ok(Chunk::Trailers(_)))) => continue,
                Ok(Some(Ok(Chunk::Data(data)))) => data,
            };
            let total = (bytes.len() + data.len()) as u64;
            if total > most {
                return Err(Problem::TooLarge);
            }
            if !held.add(data.len() as u64) {
                return Err(Problem::Busy);
            }
            if bytes.capacity() - bytes.len() < data.len() {
                let end = usize::try_from(announced.unwrap_or(most)).unwrap_or(usize::MAX);
                let left = end.saturating_sub(bytes.len());
                bytes.reserve_exact(bytes.len().max(GROWTH).min(left).max(data.len()));
            }
            hash.update(&data);
            bytes.extend_from_slice(&data);
        }
        let mut digest = [0; 32];
        digest.copy_from_slice(hash.finish().as_ref());
        Ok((bytes.into(), digest))
    }
}

impl UploadLimits {
    /// Returns the time after `start` in which the first `received` bytes must have arrived.
    fn time_for(self, received: u64, announced: Option<u64>) -> Duration {
        let rate = announced
            .unwrap_or_default()
            .div_ceil(self.longest.as_secs());
        Duration::from_secs(received / rate.max(self.lowest_rate)).min(self.longest)
    }
}

/// Checks the rights to a request, except the quota.
pub(super) fn check_rights(
    client: &Client,
    request: &RequestHead,
    path: &str,
    length: Option<u64>,
) -> Result<(), Problem> {
    let bare = path.split('?').next().unwrap_or_default();
    // Several lines are a list, and only the first one passes the gateway.
    let types: Vec<_> = request.fields.get_all("content-type").collect();
    client.check(bare, Some(&types.join(&b", "[..])), length)?;
    // Other characters are encoded in several ways, and the signature covers one of them.
    let is_plain = path
        .bytes()
        .all(|byte| byte.is_ascii_graphic() && byte != b'#');
    match path.len() <= MAX_PATH && is_plain {
        true => Ok(()),
        false => Err(Problem::PathNotAllowed),
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
pub(super) fn check_digest(fields: &Fields, content: &Content) -> Result<(), Problem> {
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
pub(super) fn fingerprint(client: &Client, content: &Content) -> [u8; 32] {
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

pub(super) fn random_id() -> Result<SubmissionId, Problem> {
    let random = ring::rand::generate(&ring::rand::SystemRandom::new());
    let random: ring::rand::Random<[u8; 16]> = random.map_err(|_| Problem::Busy)?;
    Ok(SubmissionId(random.expose()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_types_of_several_lines_are_refused() {
        let text = format!(
            "[[client]]\nname = \"a\"\ntoken-sha256 = \"{}\"\ntypes = [\"image/*\"]\n",
            "00".repeat(32)
        );
        let rights = Rights::parse(&text).expect("a client");
        let client = rights.by_token(&[0; 32]).expect("its token");
        let mut request = RequestHead::get(tandem_http::Scheme::Http, "gateway", "/submissions");
        request.fields.push("content-type", "image/png");
        assert_eq!(check_rights(client, &request, "", None), Ok(()));
        request.fields.push("content-type", "text/html");
        let refused = check_rights(client, &request, "", None);
        assert_eq!(refused, Err(Problem::TypeNotAllowed));
    }

    #[test]
    fn uploads_have_a_lowest_rate_and_a_longest_time() {
        let limit = |received, announced| OF_CLIENTS.time_for(received, announced).as_secs();
        assert_eq!(limit(0, None), 0);
        assert_eq!(limit(10 << 10, Some(1 << 20)), 10);
        // A large body has to arrive within the longest time, at a steady rate.
        assert!((890..=900).contains(&limit(32 << 20, Some(64 << 20))));
        assert!((1790..=1800).contains(&limit(64 << 20, Some(64 << 20))));
        assert_eq!(limit(64 << 20, None), 1800);
        let limit = |received, announced| OF_ENCAPSULATED.time_for(received, announced).as_secs();
        assert_eq!(limit(2 << 20, Some(2 << 20)), 256);
        assert!((290..=300).contains(&limit(64 << 20, Some(64 << 20))));
    }
}

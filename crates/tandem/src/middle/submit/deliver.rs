//! Delivers stored submissions to the server, until it answers or the time for retries is over.
//!
//! The server gets the identifier as `Idempotency-Key`. If an attempt fails after the server has
//! processed the request, the next attempt has the same key, and the server repeats its answer.

use std::cell::Cell;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tandem_http::{Method, RequestHead, ResponseHead};
use tandem_submit::fields;
use tandem_submit::problem::{self, Problem};
use tandem_submit::rights::LARGEST_MAX_BYTES;
use tandem_submit::store::{
    BATCH_RESERVE, Claim, Delivery, LONGEST_BATCH_WAIT, Millis, upload_time,
};
use tandem_submit::submission::{Answer, IDEMPOTENCY_KEY, SUBMISSION_ID, is_final};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::{Submissions, millis, now};
use crate::error::{Error, Kind, Side};
use crate::exchange::{Body, Chunk, Chunks, Exchange, Part};
use crate::log_limit::LogLimit;
use crate::metrics::METRICS;

/// The interval between two looks for submissions that are due.
const LOOK: Duration = Duration::from_secs(1);

/// The interval between two removals of old submissions.
const CLEANING: Duration = Duration::from_secs(3600);

/// The interval between two counts of spent tokens, which read many rows.
#[cfg(feature = "submit")]
const COUNTING: Duration = Duration::from_secs(60);

/// The number of submissions that a thread takes from the store and delivers at the same time.
const AT_ONCE: usize = 16;

/// The largest number of bytes in the bodies of these submissions, unless the thread delivers only
/// one.
const BYTES_AT_ONCE: u64 = 32 << 20;

/// The largest answer that is stored, in bytes.
const MAX_ANSWER: usize = 1 << 20;

/// The largest piece of a body, in bytes.
const PIECE: usize = 64 << 10;

/// The pause after the first failed attempt. It doubles with each further failure.
const FIRST_PAUSE: Millis = 1000;

/// The longest pause between two attempts.
const LONGEST_PAUSE: Millis = 300_000;

/// The number of attempts before the delivery is given up, if `submit-retry` has room for them. A
/// clock that jumps thus ends no delivery.
const MANY_ATTEMPTS: u32 = 10;

/// The longest time of a lease beyond the time of the attempt, in milliseconds. Between the two
/// bounds, it is half of `response-timeout`.
const LEASE_RESERVE: Millis = 30_000;

/// The shortest time of a lease beyond the time of the attempt, in milliseconds.
const SHORTEST_RESERVE: Millis = 1000;

static FAILURES: LogLimit = LogLimit::new();

static OTHER_SERVERS: LogLimit = LogLimit::new();

/// The result of an attempt in which the server answered.
enum DeliveryOutcome {
    /// The answer ends the delivery.
    Answered(Answer),
    /// The server did not process the submission. The status code says why.
    Refused(u16),
}

/// The submissions that a thread has taken from the store.
#[derive(Default)]
struct Claimed {
    count: Cell<usize>,
    bytes: Cell<u64>,
    /// The end of a delivery.
    ended: Notify,
}

/// The place of a submission among the claimed ones, returned when it is dropped.
struct ClaimedPlace {
    claimed: Rc<Claimed>,
    bytes: u64,
}

impl ClaimedPlace {
    fn new(claimed: &Rc<Claimed>, bytes: u64) -> Self {
        claimed.count.set(claimed.count.get() + 1);
        claimed.bytes.set(claimed.bytes.get().saturating_add(bytes));
        Self {
            claimed: Rc::clone(claimed),
            bytes,
        }
    }
}

impl Drop for ClaimedPlace {
    fn drop(&mut self) {
        let Claimed {
            count,
            bytes,
            ended,
        } = &*self.claimed;
        count.set(count.get().saturating_sub(1));
        bytes.set(bytes.get().saturating_sub(self.bytes));
        ended.notify_one();
    }
}

/// Delivers the submissions that are due: those of a process that has crashed, and those whose last
/// attempt failed. Ends with the submissions.
pub(super) async fn recover(submissions: Weak<Submissions>) {
    let claimed = Rc::<Claimed>::default();
    let mut cleaned: Option<Instant> = None;
    #[cfg(feature = "submit")]
    let mut counted: Option<Instant> = None;
    while let Some(this) = submissions.upgrade() {
        if cleaned.is_none_or(|at| at.elapsed() >= CLEANING) {
            cleaned = Some(Instant::now());
            if let Err(error) = this.store.forget(now(), millis(this.times.keep)).await {
                this.note(&error);
            }
            #[cfg(feature = "submit")]
            this.end_epochs().await;
        }
        #[cfg(feature = "submit")]
        if counted.is_none_or(|at| at.elapsed() >= COUNTING) {
            counted = Some(Instant::now());
            this.count_spent().await;
        }
        #[cfg(feature = "submit")]
        this.end_batch().await;
        this.count_waiting().await;
        this.deliver_due(&claimed).await;
        drop(this);
        let mut next_look = std::pin::pin!(tokio::time::sleep(LOOK));
        // More submissions may be due: each delivery that ends makes room for another one.
        while claimed.count.get() > 0 {
            tokio::select! {
                () = &mut next_look => break,
                () = claimed.ended.notified() => {}
            }
            match submissions.upgrade() {
                Some(this) => this.deliver_due(&claimed).await,
                None => return,
            }
        }
        next_look.await;
    }
}

/// Reports submissions that the store has set apart. A row that cannot be read is rare, and its
/// operator needs each identifier.
fn report_damage(damaged: &[String]) {
    METRICS.submissions_given_up.add(damaged.len() as u64);
    for id in damaged {
        tracing::error!(
            "the stored submission {id} cannot be read and is not delivered: the store keeps it, \
             see \"Damaged submissions\" in submissions.md"
        );
    }
}

impl Submissions {
    async fn count_waiting(&self) {
        let waiting = self.store.waiting(self.server.url(), now()).await;
        self.show_fault(waiting.as_ref().err());
        let waiting = match waiting {
            Ok(waiting) => waiting,
            Err(error) => return self.note(&error),
        };
        self.stored.set(waiting.stored);
        METRICS.submissions_stored_bytes.set(waiting.stored);
        METRICS.submissions_collected.set(waiting.collected);
        METRICS
            .submissions_oldest_seconds
            .set(waiting.oldest.unsigned_abs() / 1000);
        METRICS
            .submissions_waiting
            .set(waiting.here.saturating_add(waiting.elsewhere));
        if waiting.elsewhere > 0
            && !self.has_warned.replace(true)
            && OTHER_SERVERS.admit().is_some()
        {
            tracing::warn!(
                "{} stored submissions wait for another server than that of --mode submit=, and \
                 are not delivered: start a gateway with their server and this store",
                waiting.elsewhere
            );
        }
    }

    async fn deliver_due(self: &Rc<Self>, claimed: &Rc<Claimed>) {
        let (count, bytes) = (claimed.count.get(), claimed.bytes.get());
        let now = now();
        let claim = Claim {
            server: self.server.url(),
            now,
            leased_until: now.saturating_add(self.lease(0)),
            latest: now.saturating_add(self.longest_wait()),
            limit: AT_ONCE.saturating_sub(count),
            bytes: match count {
                0 => LARGEST_MAX_BYTES,
                _ => BYTES_AT_ONCE.saturating_sub(bytes),
            },
        };
        if claim.limit == 0 {
            return;
        }
        // The lease begins with the claim, and the store can answer late.
        let claimed_at = Instant::now();
        match self.store.claim(claim).await {
            Ok(due) => {
                report_damage(&due.damaged);
                self.start_deliveries(due.deliveries, claimed_at, claimed);
            }
            Err(error) => self.note(&error),
        }
    }

    /// Delivers submissions that were claimed at a time. It starts no attempt that the lease could
    /// end: a later claim returns the submission.
    fn start_deliveries(
        self: &Rc<Self>,
        due: Vec<Delivery>,
        claimed_at: Instant,
        claimed: &Rc<Claimed>,
    ) {
        for delivery in due {
            let bytes = delivery.content.body.len() as u64;
            let reserve = self.lease(bytes).saturating_sub(self.attempt_time(bytes));
            if millis(claimed_at.elapsed()) > reserve {
                continue;
            }
            let place = ClaimedPlace::new(claimed, bytes);
            let this = Rc::clone(self);
            tokio::task::spawn_local(async move {
                this.deliver(delivery).await;
                drop(place);
            });
        }
    }

    /// Returns the longest time for which a submission waits or is leased. The batches of other
    /// gateways with this store count too, and their wait may be longer.
    fn longest_wait(&self) -> Millis {
        let batch = LONGEST_BATCH_WAIT.saturating_add(BATCH_RESERVE);
        self.lease(LARGEST_MAX_BYTES).max(LONGEST_PAUSE).max(batch)
    }

    /// Returns the time limit of an attempt with a body of `bytes`, in milliseconds.
    pub(super) fn attempt_time(&self, bytes: u64) -> Millis {
        millis(self.times.attempt).saturating_add(upload_time(bytes))
    }

    /// Returns the time for which a submission that is being delivered belongs to its deliverer.
    pub(super) fn lease(&self, bytes: u64) -> Millis {
        let reserve = millis(self.times.attempt) / 2;
        let reserve = reserve.clamp(SHORTEST_RESERVE, LEASE_RESERVE);
        self.attempt_time(bytes).saturating_add(reserve)
    }

    /// Makes one attempt at delivery, and stores its outcome. Returns the answer if there is one.
    pub(super) async fn deliver(&self, delivery: Delivery) -> Option<Answer> {
        let limit = self.attempt_time(delivery.content.body.len() as u64);
        let limit = Duration::from_millis(limit.unsigned_abs());
        let attempt = tokio::time::timeout(limit, self.attempt(&delivery));
        let (status, failure) = match attempt.await {
            Ok(Ok(DeliveryOutcome::Answered(answer))) => {
                return self.store_answer(&delivery, answer).await;
            }
            Ok(Ok(DeliveryOutcome::Refused(status))) => (Some(status), refusal(status)),
            Ok(Err(error)) => (None, error.to_string()),
            Err(_) => (None, "it does not answer in time".to_owned()),
        };
        METRICS.submissions_failed_attempts.add(1);
        if let Some(held_back) = FAILURES.admit() {
            tracing::warn!(
                "the server does not take a submission, which will be sent again: {failure} \
                 ({held_back} more since the last line)"
            );
        }
        let retry = millis(self.times.retry);
        let is_over = now().saturating_sub(delivery.accepted) > retry
            && delivery.attempts.saturating_add(1) >= fewest_attempts(retry);
        let stored = if is_over {
            METRICS.submissions_given_up.add(1);
            self.store.give_up(delivery.lease(), status, now())
        } else {
            let now = now();
            let due = now.saturating_add(pause(delivery.attempts, random()));
            self.store.postpone(delivery.lease(), due, now)
        };
        if let Err(error) = stored.await {
            self.note(&error);
        }
        None
    }

    async fn store_answer(&self, delivery: &Delivery, answer: Answer) -> Option<Answer> {
        let stored = self.store.answer(delivery.id, answer.clone(), now());
        match stored.await {
            Ok(()) => {
                METRICS.submissions_answered.add(1);
                Some(answer)
            }
            Err(error) => {
                self.note(&error);
                None
            }
        }
    }

    async fn attempt(&self, delivery: &Delivery) -> Result<DeliveryOutcome, Error> {
        let content = &delivery.content;
        let mut request = RequestHead {
            method: Method::Post,
            ..RequestHead::get(
                self.server.scheme,
                self.server.authority.clone(),
                target(&self.server.base, &content.path),
            )
        };
        let id = delivery.id.to_string();
        request.fields = content.fields.clone();
        request
            .fields
            .set("content-length", content.body.len().to_string());
        request.fields.set("user-agent", "tandem");
        request.fields.set(SUBMISSION_ID, &id);
        request.fields.set(IDEMPOTENCY_KEY, format!("\"{id}\""));
        let seconds = now().div_euclid(1000);
        let signed = self.signer.sign(&mut request, &content.digest, seconds);
        signed.map_err(|error| Error::new(Kind::Internal, Side::Local, error.to_string()))?;
        let length = content.body.len() as u64;
        let body = Body::new(Whole(content.body.clone()), Some(length));
        let exchange = Exchange {
            body,
            ..Exchange::internal(request)
        };
        let mut reply = self.next.call(exchange);
        let (mut head, mut body) = (None, BytesMut::new());
        let mut is_too_large = false;
        while let Some(part) = reply.part().await {
            match part? {
                Part::Head(answer) => head = Some(answer),
                Part::Data(data) if body.len() + data.len() <= MAX_ANSWER => {
                    body.extend_from_slice(&data);
                }
                Part::Data(_) => {
                    is_too_large = true;
                    break;
                }
                _ => {}
            }
        }
        let incomplete = || Error::new(Kind::Truncated, Side::Origin, "the answer has no head");
        let head = head.ok_or_else(incomplete)?;
        Ok(match (is_final(head.status), is_too_large) {
            (false, _) => DeliveryOutcome::Refused(head.status),
            (true, true) => DeliveryOutcome::Answered(too_large()),
            (true, false) => DeliveryOutcome::Answered(answer(&head, body.freeze())),
        })
    }
}

/// Describes an answer after which the delivery is repeated.
fn refusal(status: u16) -> String {
    match status {
        300..=399 => format!(
            "it redirects with status {status}: write the URL of its resource in --mode submit="
        ),
        _ => format!("it answers with status {status}"),
    }
}

fn answer(head: &ResponseHead, body: Bytes) -> Answer {
    Answer {
        status: head.status,
        fields: fields::passed(&head.fields).unwrap_or_default(),
        body,
    }
}

/// Returns the answer in place of one that is too large to be stored. The server has processed the
/// submission, so it must not be sent again.
fn too_large() -> Answer {
    let problem = Problem::AnswerTooLarge;
    let mut fields = tandem_http::Fields::new();
    fields.push("content-type", problem::MEDIA_TYPE);
    Answer {
        status: problem.status(),
        fields,
        body: problem.json().into(),
    }
}

/// Joins the path of the server's resource with the path of a submission.
fn target(base: &str, path: &str) -> String {
    let target = format!("{base}{path}");
    match target.starts_with('/') {
        true => target,
        false => format!("/{target}"),
    }
}

/// Returns the pause after a number of failed attempts. `random` is from 0 to 1 and spreads the
/// attempts of many submissions.
fn pause(attempts: u32, random: f64) -> Millis {
    let pause = FIRST_PAUSE.saturating_mul(1 << attempts.min(20));
    let pause = pause.min(LONGEST_PAUSE);
    (pause as f64 * (0.5 + random / 2.0)) as Millis
}

/// Returns the number of attempts that `retry` milliseconds have room for, up to
/// [`MANY_ATTEMPTS`].
fn fewest_attempts(retry: Millis) -> u32 {
    let mut pauses: Millis = 0;
    let fits = |attempts: &u32| {
        pauses = pauses.saturating_add(pause(*attempts, 1.0));
        pauses <= retry
    };
    (0..MANY_ATTEMPTS - 1).take_while(fits).count() as u32 + 1
}

fn random() -> f64 {
    let random = ring::rand::generate(&ring::rand::SystemRandom::new());
    random.map_or(1.0, |random: ring::rand::Random<[u8; 4]>| {
        f64::from(u32::from_be_bytes(random.expose())) / f64::from(u32::MAX)
    })
}

/// A body that is held in memory. It comes in pieces, since the time limit for the answer begins
/// again with each piece that was sent.
struct Whole(Bytes);

impl Chunks for Whole {
    fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>> {
        let piece = self.0.split_to(self.0.len().min(PIECE));
        let piece = (!piece.is_empty()).then_some(piece);
        Poll::Ready(piece.map(|piece| Ok(Chunk::Data(piece))))
    }
}

#[cfg(test)]
mod tests;

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
use tandem_submit::store::{Delivery, Millis};
use tandem_submit::submission::{Answer, IDEMPOTENCY_KEY, SUBMISSION_ID, is_final};
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

/// The number of submissions that a thread takes from the store and delivers at the same time.
const AT_ONCE: usize = 16;

/// The largest answer that is stored, in bytes.
const MAX_ANSWER: usize = 1 << 20;

/// The pause after the first failed attempt. It doubles with each further failure.
const FIRST_PAUSE: Millis = 1000;

/// The longest pause between two attempts.
const LONGEST_PAUSE: Millis = 300_000;

static FAILURES: LogLimit = LogLimit::new();

/// Delivers the submissions that are due: those of a process that has crashed, and those whose last
/// attempt failed. Ends with the submissions.
pub(super) async fn recover(submissions: Weak<Submissions>) {
    let active = Rc::new(Cell::new(0));
    let mut cleaned: Option<Instant> = None;
    while let Some(this) = submissions.upgrade() {
        if cleaned.is_none_or(|at| at.elapsed() >= CLEANING) {
            cleaned = Some(Instant::now());
            let before = now().saturating_sub(millis(this.times.keep));
            if let Err(error) = this.store.forget(before).await {
                this.note(&error);
            }
        }
        this.deliver_due(&active).await;
        drop(this);
        tokio::time::sleep(LOOK).await;
    }
}

impl Submissions {
    async fn deliver_due(self: &Rc<Self>, active: &Rc<Cell<usize>>) {
        match self.store.waiting().await {
            Ok(waiting) => METRICS.submissions_waiting.set(waiting),
            Err(error) => return self.note(&error),
        }
        let free = AT_ONCE.saturating_sub(active.get());
        let leased_until = now().saturating_add(self.lease());
        let due = match self.store.claim(now(), leased_until, free).await {
            Ok(due) => due,
            Err(error) => return self.note(&error),
        };
        for delivery in due {
            active.set(active.get() + 1);
            let (this, active) = (Rc::clone(self), Rc::clone(active));
            tokio::task::spawn_local(async move {
                this.deliver(delivery).await;
                active.set(active.get() - 1);
            });
        }
    }

    /// Makes one attempt at delivery, and stores its outcome. Returns the answer if there is one.
    pub(super) async fn deliver(&self, delivery: Delivery) -> Option<Answer> {
        let attempt = tokio::time::timeout(self.times.attempt, self.attempt(&delivery));
        let failure = match attempt.await {
            Ok(Ok(answer)) if is_final(answer.status) => {
                let stored = self.store.answer(delivery.id, answer.clone(), now());
                return match stored.await {
                    Ok(()) => {
                        METRICS.submissions_answered.add(1);
                        Some(answer)
                    }
                    Err(error) => {
                        self.note(&error);
                        None
                    }
                };
            }
            Ok(Ok(answer)) => format!("it answers with status {}", answer.status),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it does not answer in time".to_owned(),
        };
        METRICS.submissions_failed_attempts.add(1);
        if let Some(held_back) = FAILURES.admit() {
            tracing::warn!(
                "the server does not take a submission, which will be sent again: {failure} \
                 ({held_back} more since the last line)"
            );
        }
        let is_over = now().saturating_sub(delivery.accepted) > millis(self.times.retry);
        let stored = if is_over {
            METRICS.submissions_given_up.add(1);
            self.store.give_up(delivery.id, now())
        } else {
            let due = now().saturating_add(pause(delivery.attempts, random()));
            self.store.postpone(delivery.id, due)
        };
        if let Err(error) = stored.await {
            self.note(&error);
        }
        None
    }

    async fn attempt(&self, delivery: &Delivery) -> Result<Answer, Error> {
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
        let body = Body::new(Whole(Some(content.body.clone())), Some(length));
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
        Ok(match is_too_large {
            true => too_large(),
            false => answer(&head, body.freeze()),
        })
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

fn random() -> f64 {
    let random = ring::rand::generate(&ring::rand::SystemRandom::new());
    random.map_or(1.0, |random: ring::rand::Random<[u8; 4]>| {
        f64::from(u32::from_be_bytes(random.expose())) / f64::from(u32::MAX)
    })
}

/// A body that is held in memory.
struct Whole(Option<Bytes>);

impl Chunks for Whole {
    fn poll_chunk(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Chunk, Error>>> {
        let bytes = self.0.take().filter(|bytes| !bytes.is_empty());
        Poll::Ready(bytes.map(|bytes| Ok(Chunk::Data(bytes))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_five_minutes() {
        assert_eq!(
            [0, 1, 2].map(|attempts| pause(attempts, 1.0)),
            [1000, 2000, 4000]
        );
        assert_eq!(pause(0, 0.0), 500);
        assert_eq!(pause(u32::MAX, 1.0), LONGEST_PAUSE);
    }

    #[test]
    fn targets_begin_with_a_slash() {
        assert_eq!(target("", ""), "/");
        assert_eq!(target("", "?a"), "/?a");
        assert_eq!(target("", "/x"), "/x");
        assert_eq!(target("/in", "/x?a=b"), "/in/x?a=b");
        assert_eq!(target("/in", ""), "/in");
    }
}

//! The unlinkable mode: clients without accounts spend tokens of an issuer, within encapsulated
//! requests (RFC 9458).
//!
//! ```text
//!  relay ─▶ decapsulate ─▶ token ─▶ rights ─▶ store: spend and admit ─▶ batch ─▶ deliver
//! ```
//!
//! The gateway learns neither the client nor its address. The submission waits in the store until
//! its batch ends, and the client asks for the answer later.

use std::fmt;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use tandem_http::{RequestHead, Scheme};
use tandem_submit::batch::Rule;
use tandem_submit::fields;
use tandem_submit::issuers::LONGEST_EPOCH;
use tandem_submit::problem::Problem;
use tandem_submit::rights::Client;
use tandem_submit::store::{Admission, Content, Epoch, NewSubmission, Record, SpentToken};
use tandem_submit::submission::{IdempotencyKey, State};
use tandem_tokens::epoch::GRACE;
use tandem_tokens::message::{self, MAX_HEAD, MessageError};
use tandem_tokens::oblivious::{self, GatewayKey, ObliviousError, Pending};
use tandem_tokens::redemption::{AcceptedIssuer, TokenError, ValidToken};
use tandem_tokens::replays::Replays;
use tandem_tokens::token::Token;

use super::accept::{OF_ENCAPSULATED, check_digest, check_rights, fingerprint, random_id};
use super::budget::Held;
use super::respond::Response;
use super::signer::sha256;
use super::{SUBMISSIONS, Submissions, count_refusal, now};
use crate::exchange::Exchange;
use crate::metrics::METRICS;
use crate::renewal::Renewable;

/// The number of encapsulated requests that are surely known as replays.
const REPLAYS: usize = 32_768;

/// The seconds of a day, by which spent tokens are removed.
const DAY: u64 = 86_400;

/// The days for which spent tokens are kept after the start of their key: two epochs of the longest
/// length, and a day for clocks.
const SPENT_DAYS: u64 = LONGEST_EPOCH * (GRACE + 1) / DAY + 1;

/// An issuer, with the rights of its tokens.
#[derive(Clone, Debug)]
pub struct TrustedIssuer {
    /// The checks of its tokens.
    pub accepted: AcceptedIssuer,
    /// The rights of a token.
    pub rights: Client,
}

/// The unlinkable mode of a process. All threads share it.
pub struct Unlinkable {
    /// The issuers.
    pub issuers: Arc<Renewable<Vec<TrustedIssuer>>>,
    /// The key of encapsulated requests.
    pub key: GatewayKey,
    /// The rule by which batches end.
    batches: Rule,
    replays: Mutex<Replays>,
}

impl fmt::Debug for Unlinkable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unlinkable")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl Unlinkable {
    /// Returns the mode with batches that end by a rule.
    pub fn new(
        issuers: Arc<Renewable<Vec<TrustedIssuer>>>,
        key: GatewayKey,
        batches: Rule,
    ) -> Self {
        Self {
            issuers,
            key,
            batches,
            replays: Mutex::new(Replays::new(REPLAYS)),
        }
    }

    /// Returns the challenges of all issuers, for the field `WWW-Authenticate`.
    pub(super) fn challenges(&self) -> Vec<String> {
        let issuers = self.issuers.get();
        let challenge = |issuer: &TrustedIssuer| issuer.accepted.www_authenticate(seconds());
        issuers.iter().filter_map(challenge).collect()
    }

    /// Returns the list of keys for encapsulated requests.
    pub(super) fn keys(&self) -> Response {
        Response::document(oblivious::KEYS_TYPE, self.key.config().write_list())
    }

    /// Checks the token of a request, and returns it with the rights of its issuer.
    fn redeem(&self, head: &RequestHead) -> Result<(ValidToken, Client), Problem> {
        let value = head.fields.get("authorization");
        let value = value.ok_or(Problem::MissingToken)?;
        let token = Token::from_authorization(value).map_err(|_| Problem::MalformedToken)?;
        let token = token.ok_or(Problem::MissingToken)?;
        let issuers = self.issuers.get();
        let mut issuers = issuers.iter();
        let issuer = issuers.find(|issuer| issuer.accepted.has_key(&token.key_id));
        let issuer = issuer.ok_or(Problem::UnknownIssuer)?;
        let checked = issuer.accepted.check(&token, seconds());
        let valid = checked.map_err(|error| match error {
            TokenError::UnknownIssuer => Problem::UnknownIssuer,
            TokenError::StaleEpoch => Problem::EpochOver,
            TokenError::WrongChallenge => Problem::WrongChallenge,
            TokenError::Forged => Problem::ForgedToken,
        })?;
        Ok((valid, issuer.rights.clone()))
    }

    /// Returns the longest encapsulated request, in bytes.
    fn longest(&self) -> u64 {
        let issuers = self.issuers.get();
        let sizes = issuers.iter().map(|issuer| issuer.rights.max_bytes);
        let largest = usize::try_from(sizes.max().unwrap_or_default()).unwrap_or(usize::MAX);
        let padded = message::longest(largest).saturating_add(oblivious::REQUEST_OVERHEAD);
        padded as u64
    }
}

/// A message that has been decapsulated.
struct DecapsulatedMessage {
    /// The request, or the problem with its form.
    request: Result<message::Request, Problem>,
    pending: Pending,
}

impl Submissions {
    /// Answers an encapsulated request. Problems with the encapsulation and replays are answered in
    /// clear, all others within it (RFC 9458 section 5.2).
    pub(super) async fn respond_obliviously(
        self: Rc<Self>,
        exchange: Exchange,
        unlinkable: Arc<Unlinkable>,
    ) -> Response {
        let opened = self.open(exchange, &unlinkable).await;
        let (opened, held) = match opened {
            Ok(opened) => opened,
            Err(problem) => {
                count_refusal(problem);
                return Response::problem(problem);
            }
        };
        let (request, pending) = (opened.request, opened.pending);
        let response = match request {
            Ok(request) => self.respond_to(request, held, &unlinkable).await,
            Err(problem) => {
                count_refusal(problem);
                Response::problem(problem)
            }
        };
        let written = response.into_message().write();
        let sealed = written.map(|written| pending.encapsulate(&written));
        match sealed {
            Ok(Ok(sealed)) => Response::private(oblivious::RESPONSE_TYPE, sealed),
            // The fields of an answer are bounded, and so this needs a lack of random numbers.
            _ => Response::problem(Problem::Busy),
        }
    }

    /// Reads and opens an encapsulated request.
    async fn open(
        &self,
        exchange: Exchange,
        unlinkable: &Unlinkable,
    ) -> Result<(DecapsulatedMessage, Held), Problem> {
        let kind = exchange.request.fields.get("content-type");
        let essence = kind.and_then(|kind| kind.split(|byte| *byte == b';').next());
        let is_request = essence.is_some_and(|essence| {
            let essence = essence.trim_ascii();
            essence.eq_ignore_ascii_case(oblivious::REQUEST_TYPE.as_bytes())
        });
        if !is_request {
            return Err(Problem::WrongMediaType);
        }
        let (length, most) = (exchange.body.length(), unlinkable.longest());
        if length.is_some_and(|length| length > most) {
            return Err(Problem::TooLarge);
        }
        // A session may carry the requests of many clients, or of one that floods.
        let share = format!("session {}", exchange.peer.session);
        let held = self.encapsulated.open(&share, length);
        let mut held = held.ok_or(Problem::Busy)?;
        let body = exchange.body.share();
        let read = self.read(body, most, &mut held, OF_ENCAPSULATED);
        let (body, _) = read.await?;
        let (message, pending) =
            unlinkable
                .key
                .decapsulate(&body)
                .map_err(|error| match error {
                    ObliviousError::UnknownKey => Problem::OhttpKey,
                    _ => Problem::BadEncapsulation,
                })?;
        drop(body);
        let mut replays = unlinkable
            .replays
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if !replays.insert(*pending.encapsulated_key()) {
            return Err(Problem::Replayed);
        }
        drop(replays);
        let request = message::Request::read(&message).map_err(|error| match error {
            MessageError::Padding => Problem::BadPadding,
            MessageError::Malformed | MessageError::TooLong => Problem::BadMessage,
        });
        Ok((DecapsulatedMessage { request, pending }, held))
    }

    /// Answers a request that was encapsulated.
    async fn respond_to(
        self: Rc<Self>,
        request: message::Request,
        held: Held,
        unlinkable: &Unlinkable,
    ) -> Response {
        let head = RequestHead {
            fields: request.fields,
            ..RequestHead::get(Scheme::Https, request.authority, request.path)
        };
        let path = head.path.split('?').next().unwrap_or_default();
        let below = path
            .strip_prefix(SUBMISSIONS)
            .filter(|rest| rest.is_empty() || rest.starts_with('/'));
        match (request.method.as_str(), below) {
            ("POST", Some(_)) => {
                let content_path = head.path[SUBMISSIONS.len()..].to_owned();
                let accepted = self.spend(&head, (content_path, request.body), held, unlinkable);
                let response = accepted.await;
                response.unwrap_or_else(|problem| {
                    count_refusal(problem);
                    Response::problem(problem)
                })
            }
            ("GET", Some(rest)) if !rest.is_empty() => {
                self.state_of(&head.fields, rest.trim_start_matches('/'))
                    .await
            }
            (_, Some(_)) => Response::method_not_allowed("GET, POST"),
            _ => Response::problem(Problem::NotFound),
        }
    }

    /// Takes a submission that a token pays for. The token is spent in the transaction that stores
    /// the submission.
    async fn spend(
        self: Rc<Self>,
        head: &RequestHead,
        (path, body): (String, bytes::Bytes),
        held: Held,
        unlinkable: &Unlinkable,
    ) -> Result<Response, Problem> {
        let (token, rights) = unlinkable.redeem(head)?;
        check_rights(&rights, head, &path, Some(body.len() as u64))?;
        let key = IdempotencyKey::of(&head.fields)?;
        let content = Content {
            digest: sha256(&[&body]),
            path,
            fields: fields::passed(&head.fields).ok_or(Problem::BadFields)?,
            body,
        };
        check_digest(&head.fields, &content)?;
        let (id, arrived) = (random_id()?, now());
        let new = NewSubmission {
            id,
            key,
            fingerprint: fingerprint(&rights, &content),
            client: rights.name,
            content,
            now: arrived,
            leased_until: unlinkable.batches.due(arrived),
            quota: rights.quota,
            server: self.server.url(),
            spent: Some(SpentToken {
                epoch: epoch_of(token.not_before),
                nonce: token.spent_id,
            }),
            is_collected: true,
            max_stored: self.max_stored,
        };
        // The store admits it even if the client goes meanwhile.
        let admission = self.commit(new).await?;
        drop(held);
        self.check_admission(&admission)?;
        if let Admission::Known(record) = admission {
            return Ok(Response::answer(record));
        }
        METRICS.submissions_accepted.add(1);
        Ok(Response::answer(Record {
            id,
            key,
            state: State::Accepted,
            status: None,
            answer: None,
        }))
    }

    /// Releases the batch of all gateways, if it ends. If the store fails, the next look tries
    /// again.
    pub(super) async fn end_batch(&self) {
        let Some(unlinkable) = &self.unlinkable else {
            return;
        };
        let rule = unlinkable.batches;
        match self.store.release(self.server.url(), rule, now()).await {
            Ok(0) => {}
            Ok(members) => {
                count_batch(members, &rule);
                self.count_spent().await;
            }
            Err(error) => self.note(&error),
        }
    }

    /// Counts the spent tokens of the last two epochs that have any.
    pub(super) async fn count_spent(&self) {
        if self.unlinkable.is_none() {
            return;
        }
        let first = epoch_of(seconds().saturating_sub(SPENT_DAYS * DAY));
        match self.store.spent(first).await {
            Ok(spent) => {
                let tokens = |back| {
                    spent
                        .iter()
                        .rev()
                        .nth(back)
                        .map_or(0, |(_, tokens)| *tokens)
                };
                METRICS.tokens_spent_latest.set(tokens(0));
                METRICS.tokens_spent_before.set(tokens(1));
            }
            Err(error) => self.note(&error),
        }
    }

    /// Removes the spent tokens that no issuer's epoch permits any more.
    pub(super) async fn end_epochs(&self) {
        if self.unlinkable.is_none() {
            return;
        }
        let first = epoch_of(seconds().saturating_sub(SPENT_DAYS * DAY));
        if let Err(error) = self.store.end_epochs(first).await {
            self.note(&error);
        }
    }
}

/// Counts a batch, whose size is that of the set in which each submission hides.
fn count_batch(members: u64, rule: &Rule) {
    METRICS.submission_batches.add(1);
    METRICS.submission_batch_members.add(members);
    METRICS.submission_batch_size.set(members);
    if members < rule.least {
        METRICS.submission_batches_small.add(1);
    }
}

/// Returns the number by which the store groups spent tokens: the day on which their key starts.
/// A change of `epoch-hours` must not move a token to another group, or it could be spent again.
fn epoch_of(not_before: u64) -> Epoch {
    Epoch::try_from(not_before / DAY).unwrap_or(Epoch::MAX)
}

/// Returns the present time in seconds since 1970.
fn seconds() -> u64 {
    u64::try_from(now().div_euclid(1000)).unwrap_or_default()
}

/// The longest head of a message, which bounds the fields of an answer.
const _: () = assert!(fields::MAX_LENGTH < MAX_HEAD);

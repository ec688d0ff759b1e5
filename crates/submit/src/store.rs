//! The interface of the stores. A store keeps submissions, answers, and the use of rights. All
//! methods are atomic and durable: after success, a crash loses nothing.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use tandem_http::Fields;

use crate::batch::Rule;
use crate::rights::Quota;
use crate::submission::{Answer, IdempotencyKey, State, SubmissionId};

/// A time in milliseconds since 1970, in UTC.
pub type Millis = i64;

/// The milliseconds of a day. Quotas count by days.
pub const DAY: Millis = 86_400_000;

/// The longest plausible time between two removals of old submissions. They run once an hour.
pub const CLEANING_GAP: Millis = 2 * 3_600_000;

/// The slowest connection to the server over which a submission is delivered, in bytes a second.
const LOWEST_RATE: u64 = 16 << 10;

/// The bytes that count for each stored submission beside its body or its answer: the row, the
/// fields and the path.
pub const OVERHEAD: u64 = 4096;

/// The longest time for which a batch collects submissions.
pub const LONGEST_BATCH_WAIT: Millis = DAY;

/// The time from the longest wait of a batch until a submission without a release is due. Gateways
/// that have crashed release no batch.
pub const BATCH_RESERVE: Millis = 60_000;

/// The number of an epoch of tokens. Later epochs have larger numbers.
pub type Epoch = u32;

/// Returns the time that the delivery of a body may take beyond that of an empty one.
pub fn upload_time(bytes: u64) -> Millis {
    let time = bytes.saturating_mul(1000).div_ceil(LOWEST_RATE);
    Millis::try_from(time).unwrap_or(Millis::MAX)
}

/// The result of a method, when it is done.
pub type Pending<T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>;

/// The reason why the store failed. The text contains no data of a submission.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store failed: {0}")]
pub struct StoreError(pub String);

/// A token that a submission spends.
#[derive(Clone, Copy)]
pub struct SpentToken {
    /// The epoch of the token. It must be the same whenever the token is spent.
    pub epoch: Epoch,
    /// The nonce of the token, or a hash of it. It is unique within the epoch.
    pub nonce: [u8; 32],
}

/// A submission that the gateway has received.
#[derive(Clone)]
pub struct NewSubmission {
    /// The identifier.
    pub id: SubmissionId,
    /// The key, which is unique.
    pub key: IdempotencyKey,
    /// The client, as the rights name it.
    pub client: String,
    /// A hash of the client and the whole request. A repeated request has the same.
    pub fingerprint: [u8; 32],
    /// The data to deliver.
    pub content: Content,
    /// The present time.
    pub now: Millis,
    /// The time until which the caller delivers the submission. No claim gets it before.
    pub leased_until: Millis,
    /// The rights of the client to further submissions.
    pub quota: Quota,
    /// The URL of the server that gets the submission. No other server gets it.
    pub server: String,
    /// The token that pays for the submission, if clients have no accounts.
    pub spent: Option<SpentToken>,
    /// True if the submission waits for a batch. [`Store::release`] makes it due earlier than
    /// `leased_until`.
    pub is_collected: bool,
    /// The bytes that the store may hold after the admission, as [`Waiting::stored`] counts them.
    pub max_stored: u64,
}

impl NewSubmission {
    /// Returns the lease with which the submission is stored.
    pub fn lease(&self) -> Lease {
        Lease {
            id: self.id,
            end: self.leased_until.saturating_sub(self.now),
        }
    }
}

/// The lease of a submission, which belongs to one deliverer. Each new lease has a later end, so
/// the store can tell a deliverer that is late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lease {
    /// The identifier of the submission.
    pub id: SubmissionId,
    /// The end of the lease, in milliseconds after the submission was stored.
    pub end: Millis,
}

/// A question about a submission whose body has not arrived.
#[derive(Clone)]
pub struct Inquiry {
    /// The key.
    pub key: IdempotencyKey,
    /// The client, as the rights name it.
    pub client: String,
    /// The announced length of the body.
    pub bytes: u64,
    /// The present time.
    pub now: Millis,
    /// The rights of the client to further submissions.
    pub quota: Quota,
    /// The bytes that the store may hold after the admission.
    pub max_stored: u64,
}

/// The answer to an [`Inquiry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prospect {
    /// The submission would be stored, or is stored already.
    Admissible,
    /// The client has used its rights.
    OverQuota,
    /// The store holds too many bytes.
    Full,
}

/// The submissions that a deliverer can take.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The URL of the server. Submissions for other servers are not returned.
    pub server: String,
    /// The present time.
    pub now: Millis,
    /// The time until which submissions with an empty body are leased. Each byte of a body adds to
    /// it (see [`upload_time`]).
    pub leased_until: Millis,
    /// The latest time until which a submission can wait or be leased at present. A later time was
    /// written while the clock was ahead, and the submission is due.
    pub latest: Millis,
    /// The largest number of submissions.
    pub limit: usize,
    /// The largest sum of the lengths of their bodies, in bytes.
    pub bytes: u64,
}

/// The result of a [`Claim`].
#[derive(Debug, Default)]
pub struct Claimed {
    /// The submissions to deliver.
    pub deliveries: Vec<Delivery>,
    /// The identifiers of due submissions that cannot be read, in hexadecimal digits. The store has
    /// set them apart: they are not delivered, and the store keeps them until someone mends them.
    pub damaged: Vec<String>,
}

/// The numbers of submissions that wait for an answer, and the size of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// The number of those for a server.
    pub here: u64,
    /// The number of those for other servers.
    pub elsewhere: u64,
    /// The number of those for the server that a batch collects.
    pub collected: u64,
    /// The age of the oldest one for the server in milliseconds, or 0.
    pub oldest: Millis,
    /// The bytes of all bodies that wait and of all answers that are kept, and [`OVERHEAD`] for
    /// each submission.
    pub stored: u64,
}

/// The data of a submission.
#[derive(Clone)]
pub struct Content {
    /// The path and the query at the server, below the server's base.
    pub path: String,
    /// The fields that pass the gateway.
    pub fields: Fields,
    /// The body.
    pub body: Bytes,
    /// The SHA-256 hash of the body.
    pub digest: [u8; 32],
}

/// The decision of the store about a new submission.
#[derive(Debug)]
pub enum Admission {
    /// The submission is stored.
    Stored,
    /// The same request is stored already.
    Known(Record),
    /// Another request has the same key.
    KeyReused,
    /// Another submission has spent the token.
    TokenSpent,
    /// The epoch of the token is over, and its tokens have been removed.
    EpochOver,
    /// The store holds too many bytes.
    Full,
    /// The client has used its rights.
    OverQuota,
}

/// A stored submission, without its content.
#[derive(Clone, Debug)]
pub struct Record {
    /// The identifier.
    pub id: SubmissionId,
    /// The hash of the client's secret.
    pub key: IdempotencyKey,
    /// The state.
    pub state: State,
    /// The status code of the last answer.
    pub status: Option<u16>,
    /// The answer, in the state [`State::Answered`]. [`Store::state`] leaves it out.
    pub answer: Option<Answer>,
}

/// A submission to deliver.
#[derive(Clone)]
pub struct Delivery {
    /// The identifier.
    pub id: SubmissionId,
    /// The data.
    pub content: Content,
    /// The time when the gateway stored it.
    pub accepted: Millis,
    /// The number of earlier attempts that failed.
    pub attempts: u32,
    /// The end of the lease, as in [`Lease::end`].
    pub lease_end: Millis,
}

impl Delivery {
    /// Returns the lease of the deliverer.
    pub fn lease(&self) -> Lease {
        Lease {
            id: self.id,
            end: self.lease_end,
        }
    }
}

/// Hides the content and the client.
impl fmt::Debug for NewSubmission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewSubmission").finish_non_exhaustive()
    }
}

/// Hides the client.
impl fmt::Debug for Inquiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inquiry").finish_non_exhaustive()
    }
}

/// Hides the content.
impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Content").finish_non_exhaustive()
    }
}

/// Hides the content.
impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery").finish_non_exhaustive()
    }
}

/// Hides the nonce.
impl fmt::Debug for SpentToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpentToken").finish_non_exhaustive()
    }
}

/// A store of submissions. Several threads use it, and several processes may.
///
/// The caller passes its present time to most methods. A store that several machines share uses its
/// own clock, and takes only the differences between the times of one call.
pub trait Store: Send + Sync + fmt::Debug {
    /// Stores a submission, spends its token, and charges it to the quota of its client if there is
    /// one. A known submission is not stored, charged or paid again. A refusal changes nothing.
    fn admit(&self, new: NewSubmission) -> Pending<Admission>;

    /// Returns the likely decision of [`Store::admit`]. A known key is always admissible.
    fn inquire(&self, inquiry: Inquiry) -> Pending<Prospect>;

    /// Returns a stored submission with its answer.
    fn find(&self, id: SubmissionId) -> Pending<Option<Record>>;

    /// Returns a stored submission, and reads no answer.
    fn state(&self, id: SubmissionId) -> Pending<Option<Record>>;

    /// Returns submissions that are due, the earliest first, and leases them. Those of one time
    /// come in the order of their identifiers. Other claims do not return them before the lease
    /// ends. The first submission that exceeds a limit ends the claim. One that cannot be read does
    /// not hold the others back.
    fn claim(&self, claim: Claim) -> Pending<Claimed>;

    /// Stores the answer and removes the content. The first answer stays.
    fn answer(&self, id: SubmissionId, answer: Answer, now: Millis) -> Pending<()>;

    /// Counts a failed attempt. The next one is due at `due`. The call changes nothing after a
    /// later lease.
    fn postpone(&self, lease: Lease, due: Millis, now: Millis) -> Pending<()>;

    /// Makes all submissions that are collected for a server due at the present time, if the rule
    /// ends their batch. Returns their number, and 0 if the batch goes on.
    ///
    /// If several calls come at once, only the first one releases the batch.
    fn release(&self, server: String, rule: Rule, now: Millis) -> Pending<u64>;

    /// Gives the delivery up and removes the content. `status` is that of the last answer. The
    /// call changes nothing after a later lease.
    fn give_up(&self, lease: Lease, status: Option<u16>, now: Millis) -> Pending<()>;

    /// Removes the submissions that ended more than `keep` ago, and the use of rights on earlier
    /// days. Returns the number of submissions removed.
    ///
    /// It removes nothing if the last call was more than [`CLEANING_GAP`] ago: the clock may have
    /// been set wrongly, and a removed submission could be delivered again.
    fn forget(&self, now: Millis, keep: Millis) -> Pending<u64>;

    /// Removes the spent tokens of all epochs before `first`. From then on, a token of such an
    /// epoch is refused, so that no token is spent twice.
    fn end_epochs(&self, first: Epoch) -> Pending<()>;

    /// Returns the number of spent tokens of each epoch from `first` on, the earliest first.
    /// Epochs without any are left out.
    fn spent(&self, first: Epoch) -> Pending<Vec<(Epoch, u64)>>;

    /// Returns the numbers of submissions that wait for an answer, and the size of all.
    fn waiting(&self, server: String, now: Millis) -> Pending<Waiting>;
}

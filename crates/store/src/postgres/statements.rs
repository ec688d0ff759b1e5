//! The statements behind each method of the store. Each of them is one transaction and one round
//! trip; `functions.sql` has the functions that they call.

use tandem_submit::batch::Rule;
use tandem_submit::fields;
use tandem_submit::store::{
    Admission, CLEANING_GAP, Claim, Claimed, Content, Delivery, Epoch, Inquiry, Lease, Millis,
    NewSubmission, OVERHEAD, Prospect, Record, SpentToken, Waiting, upload_time,
};
use tandem_submit::submission::{Answer, IdempotencyKey, State, SubmissionId};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{FromSql, ToSql, Type};
use tokio_postgres::{Client, Row};

use super::failure::Failure;
use crate::{ACCEPTED, ANSWERED, NOT_DELIVERED, hexadecimal};

/// The number of submissions that one statement removes.
const REMOVED_AT_ONCE: i32 = 1000;

/// The longest difference of times that is added to a time, in milliseconds: some 140 years.
const LONGEST: Millis = 1 << 42;

type Result<T> = std::result::Result<T, Failure>;
type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// The time of a call. Tests pass it on; otherwise the server's clock counts, and it is `None`.
pub(super) type At = Option<Millis>;

fn difference(later: Millis, earlier: Millis) -> Millis {
    later.saturating_sub(earlier).clamp(-LONGEST, LONGEST)
}

fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn number(integer: i64) -> u64 {
    u64::try_from(integer).unwrap_or_default()
}

/// Reads a column. A value of another type is an error, like a missing one.
fn column<'a, T: FromSql<'a>>(row: &'a Row, index: usize) -> Result<T> {
    row.try_get(index).map_err(|_| Failure::invalid())
}

fn array<const N: usize>(row: &Row, index: usize) -> Result<[u8; N]> {
    let bytes: &[u8] = column(row, index)?;
    bytes.try_into().map_err(|_| Failure::invalid())
}

async fn rows(client: &Client, statement: &str, parameters: &[Parameter<'_>]) -> Result<Vec<Row>> {
    let rows = client.query_typed(statement, parameters).await;
    rows.map_err(|error| Failure::of(&error))
}

/// Returns the only row of a statement that always has one.
async fn row(client: &Client, statement: &str, parameters: &[Parameter<'_>]) -> Result<Row> {
    let mut rows = rows(client, statement, parameters).await?;
    rows.pop().ok_or_else(Failure::invalid)
}

/// Stores a submission. A repetition of a call whose connection was lost can find its own
/// submission, which then counts as stored.
pub(super) async fn admit(
    client: &Client,
    new: &NewSubmission,
    at: At,
    is_repetition: bool,
) -> Result<Admission> {
    loop {
        match insert(client, new, at).await {
            Ok(true) => return Ok(Admission::Stored),
            // A submission can be forgotten between the two statements.
            Ok(false) => match known(client, new).await? {
                Some(Admission::Known(record)) if is_repetition && record.id == new.id => {
                    return Ok(Admission::Stored);
                }
                Some(admission) => return Ok(admission),
                None => continue,
            },
            Err(failure) => match failure.code() {
                Some("TD001") => return Ok(Admission::TokenSpent),
                Some("TD002") => return Ok(Admission::Full),
                Some("TD003") => return Ok(Admission::OverQuota),
                Some(code) if code == SqlState::CHECK_VIOLATION.code() => {
                    let token = new.spent.as_ref().ok_or(failure)?;
                    if !begin_epoch(client, token).await? {
                        return Ok(Admission::EpochOver);
                    }
                }
                _ => return Err(failure),
            },
        }
    }
}

async fn insert(client: &Client, new: &NewSubmission, at: At) -> Result<bool> {
    let content = &new.content;
    let bytes = content.body.len() as u64;
    let limit = |limit: Option<u64>| limit.map(integer);
    let epoch = new.spent.map(|token| i64::from(token.epoch));
    let nonce = new.spent.as_ref().map(|token| &token.nonce[..]);
    let row = row(
        client,
        "SELECT admit($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17,
            $18, $19)",
        &[
            (&at, Type::INT8),
            (&difference(new.leased_until, new.now), Type::INT8),
            (&&new.id.0[..], Type::BYTEA),
            (&&new.key.0[..], Type::BYTEA),
            (&new.client, Type::TEXT),
            (&&new.fingerprint[..], Type::BYTEA),
            (&new.server, Type::TEXT),
            (&upload_time(bytes), Type::INT8),
            (&content.path, Type::TEXT),
            (&fields::write(&content.fields), Type::BYTEA),
            (&&content.digest[..], Type::BYTEA),
            (&&content.body[..], Type::BYTEA),
            (&integer(OVERHEAD), Type::INT8),
            (&integer(new.max_stored), Type::INT8),
            (&limit(new.quota.submissions), Type::INT8),
            (&limit(new.quota.bytes), Type::INT8),
            (&epoch, Type::INT8),
            (&nonce, Type::BYTEA),
            (&new.is_collected, Type::BOOL),
        ],
    )
    .await;
    column(&row?, 0)
}

/// Returns the decision about a submission with a known key, or `None` if it has been removed
/// since.
async fn known(client: &Client, new: &NewSubmission) -> Result<Option<Admission>> {
    let found = rows(
        client,
        "SELECT id, key, state, status, answers.fields, answers.body, fingerprint
         FROM submissions LEFT JOIN answers USING (id) WHERE key = $1",
        &[(&&new.key.0[..], Type::BYTEA)],
    )
    .await;
    let Some(row) = found?.pop() else {
        return Ok(None);
    };
    let record = record(&row)?;
    let is_same = array(&row, 6)? == new.fingerprint;
    Ok(Some(match is_same {
        true => Admission::Known(record),
        false => Admission::KeyReused,
    }))
}

async fn begin_epoch(client: &Client, token: &SpentToken) -> Result<bool> {
    let epoch = i64::from(token.epoch);
    let row = row(client, "SELECT begin_epoch($1)", &[(&epoch, Type::INT8)]).await;
    column(&row?, 0)
}

pub(super) async fn end_epochs(client: &Client, first: Epoch) -> Result<()> {
    let first = i64::from(first);
    let done = rows(client, "SELECT end_epochs($1)", &[(&first, Type::INT8)]).await;
    done.map(drop)
}

pub(super) async fn inquire(client: &Client, inquiry: &Inquiry, at: At) -> Result<Prospect> {
    let row = row(
        client,
        "SELECT EXISTS (SELECT FROM submissions WHERE key = $2),
             (SELECT sum(size)::bigint FROM totals), used.submissions, used.bytes
         FROM (SELECT present($1) / 86400000 AS day) AS today
             LEFT JOIN usage AS used ON used.day = today.day AND used.client = $3",
        &[
            (&at, Type::INT8),
            (&&inquiry.key.0[..], Type::BYTEA),
            (&inquiry.client, Type::TEXT),
        ],
    )
    .await?;
    let stored = number(column(&row, 1)?);
    let used = |index| Ok::<_, Failure>(number(column::<Option<_>>(&row, index)?.unwrap_or(0)));
    let count = used(2)?.saturating_add(1);
    let bytes = used(3)?.saturating_add(inquiry.bytes);
    let size = OVERHEAD.saturating_add(inquiry.bytes);
    Ok(if column(&row, 0)? {
        Prospect::Admissible
    } else if stored.saturating_add(size) > inquiry.max_stored {
        Prospect::Full
    } else if inquiry.quota.allows(count, bytes) {
        Prospect::Admissible
    } else {
        Prospect::OverQuota
    })
}

pub(super) async fn find(client: &Client, id: SubmissionId) -> Result<Option<Record>> {
    let found = rows(
        client,
        "SELECT id, key, state, status, answers.fields, answers.body
         FROM submissions LEFT JOIN answers USING (id) WHERE id = $1",
        &[(&&id.0[..], Type::BYTEA)],
    )
    .await;
    found?.pop().as_ref().map(record).transpose()
}

pub(super) async fn state(client: &Client, id: SubmissionId) -> Result<Option<Record>> {
    let found = rows(
        client,
        "SELECT id, key, state, status, NULL::bytea, NULL::bytea FROM submissions WHERE id = $1",
        &[(&&id.0[..], Type::BYTEA)],
    )
    .await;
    found?.pop().as_ref().map(record).transpose()
}

fn record(row: &Row) -> Result<Record> {
    let state = match i64::from(column::<i16>(row, 2)?) {
        ACCEPTED => State::Accepted,
        ANSWERED => State::Answered,
        NOT_DELIVERED => State::NotDelivered,
        _ => return Err(Failure::invalid()),
    };
    let status = column::<Option<i32>>(row, 3)?.map(u16::try_from);
    let status = status.transpose().map_err(|_| Failure::invalid())?;
    let answer = column::<Option<&[u8]>>(row, 4)?.zip(column::<Option<&[u8]>>(row, 5)?);
    let answer = answer.map(|(fields, body)| Answer {
        status: status.unwrap_or_default(),
        fields: fields::read(fields),
        body: body.to_vec().into(),
    });
    Ok(Record {
        id: SubmissionId(array(row, 0)?),
        key: IdempotencyKey(array(row, 1)?),
        state,
        status,
        answer,
    })
}

/// The claim of submissions. Rows that another instance is claiming are skipped. Those with a time
/// too far in the future come last. The lease of those beyond the sum of bytes does not change.
const CLAIM: &str = "
    WITH start AS MATERIALIZED (SELECT present($1) AS at),
    now_due AS MATERIALIZED (
        SELECT id, due, size FROM submissions
        WHERE state = 0 AND server = $4 AND due <= (SELECT at FROM start)
        ORDER BY due, id LIMIT $5 FOR UPDATE SKIP LOCKED),
    wrongly_late AS MATERIALIZED (
        SELECT id, due, size FROM submissions
        WHERE state = 0 AND server = $4 AND due > (SELECT at FROM start) + $3
        ORDER BY due, id LIMIT $5 FOR UPDATE SKIP LOCKED),
    summed AS (
        SELECT id, row_number() OVER places AS place, sum(size - $7) OVER places AS total
        FROM (SELECT * FROM now_due UNION ALL SELECT * FROM wrongly_late) AS both_kinds
        WINDOW places AS (ORDER BY due, id)),
    leased AS (
        UPDATE submissions SET due = (SELECT at FROM start) + $2 + upload, collected = false
        FROM summed WHERE submissions.id = summed.id AND total <= $6 AND place <= $5
        RETURNING submissions.id, place, (SELECT at FROM start) - accepted AS age, attempts,
            due - accepted AS lease_end)
    SELECT id, path, fields, digest, body, age, attempts, lease_end
    FROM leased LEFT JOIN contents USING (id) ORDER BY place";

pub(super) async fn claim(client: &Client, claim: &Claim, at: At) -> Result<Claimed> {
    let limit = i64::try_from(claim.limit).unwrap_or(i64::MAX);
    let rows = rows(
        client,
        CLAIM,
        &[
            (&at, Type::INT8),
            (&difference(claim.leased_until, claim.now), Type::INT8),
            (&difference(claim.latest, claim.now), Type::INT8),
            (&claim.server, Type::TEXT),
            (&limit, Type::INT8),
            (&integer(claim.bytes), Type::INT8),
            (&integer(OVERHEAD), Type::INT8),
        ],
    )
    .await;
    let mut claimed = Claimed::default();
    let mut damaged = Vec::new();
    for row in rows? {
        match delivery(&row, claim.now) {
            Ok(delivery) => claimed.deliveries.push(delivery),
            Err(_) => damaged.push(column::<Vec<u8>>(&row, 0)?),
        }
    }
    if !damaged.is_empty() {
        // After a failure, the next claim finds the rows again, and they are reported then.
        if set_apart(client, &damaged).await.is_ok() {
            claimed.damaged = damaged.iter().map(|id| hexadecimal(id)).collect();
        }
    }
    Ok(claimed)
}

fn delivery(row: &Row, now: Millis) -> Result<Delivery> {
    let attempts: i32 = column(row, 6)?;
    Ok(Delivery {
        id: SubmissionId(array(row, 0)?),
        content: Content {
            path: column(row, 1)?,
            fields: fields::read(column(row, 2)?),
            digest: array(row, 3)?,
            body: column::<&[u8]>(row, 4)?.to_vec().into(),
        },
        // The clock of the caller may differ from that of the server.
        accepted: now.saturating_sub(column(row, 5)?),
        attempts: attempts.try_into().map_err(|_| Failure::invalid())?,
        lease_end: column(row, 7)?,
    })
}

/// Ends deliveries that cannot begin. Without a time of their end, the rows and the contents stay.
async fn set_apart(client: &Client, ids: &[Vec<u8>]) -> Result<()> {
    let state = i16::try_from(NOT_DELIVERED).map_err(|_| Failure::invalid())?;
    let done = rows(
        client,
        "UPDATE submissions SET state = $2 WHERE state = 0 AND id = ANY ($1)",
        &[(&ids, Type::BYTEA_ARRAY), (&state, Type::INT2)],
    )
    .await;
    done.map(drop)
}

/// Ends a delivery with an answer.
pub(super) async fn answer(
    client: &Client,
    id: SubmissionId,
    answer: &Answer,
    at: At,
) -> Result<()> {
    let bytes = answer.body.len() as u64;
    let state = i16::try_from(ANSWERED).map_err(|_| Failure::invalid())?;
    let done = rows(
        client,
        "SELECT finish($1, $2, $3, $4, $5, $6, $7)",
        &[
            (&at, Type::INT8),
            (&&id.0[..], Type::BYTEA),
            (&state, Type::INT2),
            (&i32::from(answer.status), Type::INT4),
            (&integer(OVERHEAD.saturating_add(bytes)), Type::INT8),
            (&fields::write(&answer.fields), Type::BYTEA),
            (&&answer.body[..], Type::BYTEA),
        ],
    )
    .await;
    done.map(drop)
}

pub(super) async fn postpone(client: &Client, lease: Lease, pause: Millis, at: At) -> Result<()> {
    let done = rows(
        client,
        "UPDATE submissions SET due = present($1) + $2, attempts = attempts + 1
         WHERE id = $3 AND state = 0 AND due - accepted = $4",
        &[
            (&at, Type::INT8),
            (&pause.clamp(0, LONGEST), Type::INT8),
            (&&lease.id.0[..], Type::BYTEA),
            (&lease.end, Type::INT8),
        ],
    )
    .await;
    done.map(drop)
}

/// Releases a batch, if the rule ends it.
pub(super) async fn release(client: &Client, server: &str, rule: &Rule, at: At) -> Result<u64> {
    let released = row(
        client,
        "SELECT release($1, $2, $3, $4, $5, $6)",
        &[
            (&at, Type::INT8),
            (&server, Type::TEXT),
            (&integer(rule.size), Type::INT8),
            (&integer(rule.least), Type::INT8),
            (&rule.wait, Type::INT8),
            (&rule.longest, Type::INT8),
        ],
    )
    .await;
    Ok(number(column(&released?, 0)?))
}

/// Gives a delivery up. The lock comes before the check of the lease, so no claim comes between.
pub(super) async fn give_up(
    client: &Client,
    lease: Lease,
    status: Option<u16>,
    at: At,
) -> Result<()> {
    let state = i16::try_from(NOT_DELIVERED).map_err(|_| Failure::invalid())?;
    let done = rows(
        client,
        "WITH held AS MATERIALIZED (
            SELECT id FROM submissions WHERE id = $2 AND due - accepted = $6 FOR UPDATE)
         SELECT finish($1, id, $3, $4, $5, NULL, NULL) FROM held",
        &[
            (&at, Type::INT8),
            (&&lease.id.0[..], Type::BYTEA),
            (&state, Type::INT2),
            (&status.map(i32::from), Type::INT4),
            (&integer(OVERHEAD), Type::INT8),
            (&lease.end, Type::INT8),
        ],
    )
    .await;
    done.map(drop)
}

pub(super) async fn forget(client: &Client, keep: Millis, at: At) -> Result<u64> {
    let begun = row(
        client,
        "SELECT begin_removal($1, $2, $3)",
        &[
            (&at, Type::INT8),
            (&keep.clamp(0, LONGEST), Type::INT8),
            (&CLEANING_GAP, Type::INT8),
        ],
    )
    .await;
    let Some(before) = column::<Option<Millis>>(&begun?, 0)? else {
        return Ok(0);
    };
    let mut removed = 0;
    loop {
        let batch = row(
            client,
            "SELECT remove_ended($1, $2)",
            &[(&before, Type::INT8), (&REMOVED_AT_ONCE, Type::INT4)],
        )
        .await;
        let count = number(column(&batch?, 0)?);
        removed += count;
        if count < u64::from(REMOVED_AT_ONCE.unsigned_abs()) {
            return Ok(removed);
        }
    }
}

pub(super) async fn spent(client: &Client, first: Epoch) -> Result<Vec<(Epoch, u64)>> {
    let rows = rows(
        client,
        "SELECT epoch, count(*) FROM spent WHERE epoch >= $1 GROUP BY epoch ORDER BY epoch",
        &[(&i64::from(first), Type::INT8)],
    )
    .await;
    let counted = |row| {
        let epoch = u32::try_from(column::<i64>(row, 0)?).map_err(|_| Failure::invalid())?;
        Ok((epoch, number(column(row, 1)?)))
    };
    rows?.iter().map(counted).collect()
}

pub(super) async fn waiting(client: &Client, server: &str, at: At) -> Result<Waiting> {
    let row = row(
        client,
        "SELECT count(*) FILTER (WHERE server = $1), count(*) FILTER (WHERE server <> $1),
             count(*) FILTER (WHERE server = $1 AND collected),
             coalesce(present($2) - min(accepted) FILTER (WHERE server = $1), 0),
             (SELECT sum(size)::bigint FROM totals)
         FROM submissions WHERE state = 0",
        &[(&server, Type::TEXT), (&at, Type::INT8)],
    )
    .await?;
    Ok(Waiting {
        here: number(column(&row, 0)?),
        elsewhere: number(column(&row, 1)?),
        collected: number(column(&row, 2)?),
        oldest: column::<Millis>(&row, 3)?.max(0),
        stored: number(column(&row, 4)?),
    })
}

//! The statements behind each method of the store. Each function runs within a transaction.

use rusqlite::types::{Type, Value};
use rusqlite::{Connection, OptionalExtension as _, Result, Row, params};
use tandem_submit::batch::Rule;
use tandem_submit::fields;
use tandem_submit::rights::Quota;
use tandem_submit::store::{
    Admission, CLEANING_GAP, Claim, Claimed, Content, DAY, Delivery, Epoch, Inquiry, Lease, Millis,
    NewSubmission, OVERHEAD, Prospect, Record, SpentToken, Waiting, upload_time,
};
use tandem_submit::submission::{Answer, IdempotencyKey, State, SubmissionId};

use crate::{ACCEPTED, ANSWERED, NOT_DELIVERED, hexadecimal};

/// The submissions that a claim may take. Those of a batch have one time, and the order of their
/// random identifiers.
pub(super) const DUE: &str = "SELECT id FROM submissions
    WHERE state = 0 AND (due <= ?1 OR due > ?2) AND (server = ?3 OR server IS NULL)
    ORDER BY due, server, id LIMIT ?4";

/// The numbers of waiting submissions: all, those for other servers, and those for the server that
/// a batch collects. The time of the oldest for the server follows.
pub(super) const WAITING: &str = "SELECT count(*), count(*) FILTER (WHERE server <> ?1),
        count(*) FILTER (WHERE server = ?1 AND collected), min(accepted) FILTER (WHERE server = ?1)
    FROM submissions WHERE state = 0";

/// The number of the submissions that a batch collects, and the time of the oldest.
pub(super) const COLLECTED: &str = "SELECT count(*), min(accepted)
    FROM submissions WHERE state = 0 AND collected AND server = ?1";

pub(super) fn admit(connection: &Connection, new: &NewSubmission) -> Result<Admission> {
    let known: Option<([u8; 16], [u8; 32])> = connection
        .prepare_cached("SELECT id, fingerprint FROM submissions WHERE key = ?1")?
        .query_row([new.key.0], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    if let Some((id, fingerprint)) = known {
        let is_same = new.fingerprint == fingerprint;
        let record = find(connection, SubmissionId(id))?.filter(|_| is_same);
        return Ok(record.map_or(Admission::KeyReused, Admission::Known));
    }
    if let Some(token) = &new.spent
        && let Some(refusal) = refuse_token(connection, token)?
    {
        return Ok(refusal);
    }
    let bytes = new.content.body.len() as u64;
    let size = OVERHEAD.saturating_add(bytes);
    if stored(connection)?.saturating_add(size) > new.max_stored {
        return Ok(Admission::Full);
    }
    let day = new.now.div_euclid(DAY);
    let total = charged(connection, &new.client, day, bytes)?;
    if !allows(&new.quota, total) {
        return Ok(Admission::OverQuota);
    }
    if let Some(token) = &new.spent {
        connection
            .prepare_cached("INSERT INTO spent VALUES (?1, ?2)")?
            .execute(params![token.epoch, token.nonce])?;
    }
    if new.quota != Quota::default() {
        connection
            .prepare_cached("INSERT OR REPLACE INTO usage VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![new.client, day, total.0, total.1])?;
    }
    insert(connection, new, integer(size))?;
    Ok(Admission::Stored)
}

fn insert(connection: &Connection, new: &NewSubmission, size: i64) -> Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO submissions (id, key, client, fingerprint, server, accepted, state, due,
                attempts, size, collected)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, 0, ?7, 0, ?8, ?9)",
        )?
        .execute(params![
            new.id.0,
            new.key.0,
            new.client,
            new.fingerprint,
            new.server,
            new.now,
            new.leased_until,
            size,
            new.is_collected,
        ])?;
    let content = &new.content;
    connection
        .prepare_cached(
            "INSERT INTO contents (id, path, fields, digest, body) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?
        .execute(params![
            new.id.0,
            content.path,
            fields::write(&content.fields),
            content.digest,
            &content.body[..],
        ])?;
    add_stored(connection, size)
}

/// Returns the reason why a token cannot be spent.
fn refuse_token(connection: &Connection, token: &SpentToken) -> Result<Option<Admission>> {
    let first: Epoch = connection
        .prepare_cached("SELECT first_epoch FROM totals")?
        .query_row((), |row| row.get(0))?;
    if token.epoch < first {
        return Ok(Some(Admission::EpochOver));
    }
    let is_spent = connection
        .prepare_cached("SELECT 1 FROM spent WHERE epoch = ?1 AND nonce = ?2")?
        .exists(params![token.epoch, token.nonce])?;
    Ok(is_spent.then_some(Admission::TokenSpent))
}

pub(super) fn end_epochs(connection: &Connection, first: Epoch) -> Result<()> {
    connection
        .prepare_cached("UPDATE totals SET first_epoch = max(first_epoch, ?1)")?
        .execute([first])?;
    connection
        .prepare_cached("DELETE FROM spent WHERE epoch < ?1")?
        .execute([first])?;
    Ok(())
}

fn integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Returns the size of all submissions.
fn stored(connection: &Connection) -> Result<u64> {
    let size: i64 = connection
        .prepare_cached("SELECT size FROM totals")?
        .query_row((), |row| row.get(0))?;
    Ok(u64::try_from(size).unwrap_or_default())
}

fn add_stored(connection: &Connection, size: i64) -> Result<()> {
    connection
        .prepare_cached("UPDATE totals SET size = size + ?1")?
        .execute([size])?;
    Ok(())
}

/// Returns the number and the bytes of a client's submissions of a day, with one more of `bytes`.
fn charged(connection: &Connection, client: &str, day: i64, bytes: u64) -> Result<(i64, i64)> {
    let used: Option<(i64, i64)> = connection
        .prepare_cached("SELECT submissions, bytes FROM usage WHERE client = ?1 AND day = ?2")?
        .query_row(params![client, day], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let (count, total) = used.unwrap_or_default();
    Ok((
        count.saturating_add(1),
        total.saturating_add(integer(bytes)),
    ))
}

/// Returns true if the quota allows these totals of a day.
fn allows(quota: &Quota, (count, total): (i64, i64)) -> bool {
    quota.allows(count.unsigned_abs(), total.unsigned_abs())
}

pub(super) fn inquire(connection: &Connection, inquiry: &Inquiry) -> Result<Prospect> {
    let is_known = connection
        .prepare_cached("SELECT 1 FROM submissions WHERE key = ?1")?
        .exists([inquiry.key.0])?;
    if is_known {
        return Ok(Prospect::Admissible);
    }
    let size = OVERHEAD.saturating_add(inquiry.bytes);
    if stored(connection)?.saturating_add(size) > inquiry.max_stored {
        return Ok(Prospect::Full);
    }
    let day = inquiry.now.div_euclid(DAY);
    let total = charged(connection, &inquiry.client, day, inquiry.bytes)?;
    Ok(match allows(&inquiry.quota, total) {
        true => Prospect::Admissible,
        false => Prospect::OverQuota,
    })
}

pub(super) fn state(connection: &Connection, id: SubmissionId) -> Result<Option<Record>> {
    connection
        .prepare_cached("SELECT id, key, state, status FROM submissions WHERE id = ?1")?
        .query_row([id.0], record)
        .optional()
}

pub(super) fn find(connection: &Connection, id: SubmissionId) -> Result<Option<Record>> {
    let Some(record) = state(connection, id)? else {
        return Ok(None);
    };
    let answer = connection
        .prepare_cached("SELECT fields, body FROM answers WHERE id = ?1")?
        .query_row([id.0], |row| {
            Ok(Answer {
                status: record.status.unwrap_or_default(),
                fields: fields::read(&row.get::<_, Vec<u8>>(0)?),
                body: row.get::<_, Vec<u8>>(1)?.into(),
            })
        })
        .optional()?;
    Ok(Some(Record { answer, ..record }))
}

fn record(row: &Row<'_>) -> Result<Record> {
    let state = match row.get(2)? {
        ACCEPTED => State::Accepted,
        ANSWERED => State::Answered,
        NOT_DELIVERED => State::NotDelivered,
        other => return Err(rusqlite::Error::IntegralValueOutOfRange(2, other)),
    };
    Ok(Record {
        id: SubmissionId(row.get(0)?),
        key: IdempotencyKey(row.get(1)?),
        state,
        status: row.get(3)?,
        answer: None,
    })
}

pub(super) fn claim(connection: &Connection, claim: &Claim) -> Result<Claimed> {
    let mut query = connection.prepare_cached(DUE)?;
    let mut length =
        connection.prepare_cached("SELECT length(body) FROM contents WHERE id = ?1")?;
    let limit = i64::try_from(claim.limit).unwrap_or(i64::MAX);
    let due = params![claim.now, claim.latest, claim.server, limit];
    let mut lease = connection
        .prepare_cached("UPDATE submissions SET due = ?2, collected = 0 WHERE id = ?1")?;
    let mut read = connection.prepare_cached(
        "SELECT id, path, fields, body, digest, accepted, attempts, due - accepted
         FROM submissions JOIN contents USING (id) WHERE id = ?1",
    )?;
    let due = query.query_map(due, |row| row.get(0))?;
    // The updates below must not change the rows of the query while it runs.
    let due = due.collect::<Result<Vec<Value>>>()?;
    let mut left = claim.bytes;
    let mut claimed = Claimed::default();
    for id in due {
        let bytes: Option<i64> = readable(length.query_row([&id], |row| row.get(0)))?;
        let bytes = bytes.unwrap_or_default().unsigned_abs();
        let Some(rest) = left.checked_sub(bytes) else {
            break;
        };
        left = rest;
        let leased_until = claim.leased_until.saturating_add(upload_time(bytes));
        lease.execute(params![id, leased_until])?;
        match readable(read.query_row([&id], delivery))? {
            Some(delivery) => claimed.deliveries.push(delivery),
            None => {
                set_apart(connection, &id)?;
                let id = match &id {
                    Value::Blob(id) => hexadecimal(id),
                    other => format!("{other:?}"),
                };
                claimed.damaged.push(id);
            }
        }
    }
    Ok(claimed)
}

/// Returns `None` for a row that is missing or has a value that this program does not write.
fn readable<T>(read: Result<T>) -> Result<Option<T>> {
    use rusqlite::Error::{
        FromSqlConversionFailure, IntegralValueOutOfRange, InvalidColumnType, QueryReturnedNoRows,
        Utf8Error,
    };
    match read {
        Ok(read) => Ok(Some(read)),
        Err(
            FromSqlConversionFailure(..)
            | IntegralValueOutOfRange(..)
            | InvalidColumnType(..)
            | QueryReturnedNoRows
            | Utf8Error(..),
        ) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Ends a delivery that cannot begin. Without a time of its end, [`forget`] keeps the row and the
/// content.
fn set_apart(connection: &Connection, id: &Value) -> Result<()> {
    connection
        .prepare_cached("UPDATE submissions SET state = ?2 WHERE id = ?1")?
        .execute(params![id, NOT_DELIVERED])?;
    Ok(())
}

fn delivery(row: &Row<'_>) -> Result<Delivery> {
    let attempts: i64 = row.get(6)?;
    let attempts = u32::try_from(attempts).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(6, Type::Integer, Box::new(error))
    })?;
    Ok(Delivery {
        id: SubmissionId(row.get(0)?),
        content: Content {
            path: row.get(1)?,
            fields: fields::read(&row.get::<_, Vec<u8>>(2)?),
            body: row.get::<_, Vec<u8>>(3)?.into(),
            digest: row.get(4)?,
        },
        accepted: row.get(5)?,
        attempts,
        lease_end: row.get(7)?,
    })
}

pub(super) fn answer(
    connection: &Connection,
    id: SubmissionId,
    answer: &Answer,
    now: Millis,
) -> Result<()> {
    let size = integer(OVERHEAD.saturating_add(answer.body.len() as u64));
    let end = (ANSWERED, Some(answer.status), size);
    // An answer replaces a failure, and no earlier answer.
    if !end_delivery(connection, id, end, now, |state| state != ANSWERED)? {
        return Ok(());
    }
    connection
        .prepare_cached("INSERT INTO answers (id, fields, body) VALUES (?1, ?2, ?3)")?
        .execute(params![
            id.0,
            fields::write(&answer.fields),
            &answer.body[..]
        ])?;
    Ok(())
}

pub(super) fn postpone(connection: &Connection, lease: Lease, due: Millis) -> Result<()> {
    connection
        .prepare_cached(
            "UPDATE submissions SET due = ?3, attempts = attempts + 1
             WHERE id = ?1 AND state = 0 AND due - accepted = ?2",
        )?
        .execute(params![lease.id.0, lease.end, due])?;
    Ok(())
}

pub(super) fn release(
    connection: &Connection,
    server: &str,
    rule: &Rule,
    now: Millis,
) -> Result<u64> {
    let mut collected = connection.prepare_cached(COLLECTED)?;
    let (members, oldest): (i64, Option<Millis>) =
        collected.query_row([server], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let age = oldest.map_or(0, |oldest| now.saturating_sub(oldest));
    if !rule.ends(members.unsigned_abs(), age) {
        return Ok(0);
    }
    let released = connection
        .prepare_cached(
            "UPDATE submissions SET due = ?2, collected = 0
             WHERE state = 0 AND collected AND server = ?1",
        )?
        .execute(params![server, now])?;
    Ok(released as u64)
}

pub(super) fn give_up(
    connection: &Connection,
    lease: Lease,
    status: Option<u16>,
    now: Millis,
) -> Result<()> {
    let is_held = connection
        .prepare_cached("SELECT 1 FROM submissions WHERE id = ?1 AND due - accepted = ?2")?
        .exists(params![lease.id.0, lease.end])?;
    if !is_held {
        return Ok(());
    }
    let end = (NOT_DELIVERED, status, integer(OVERHEAD));
    end_delivery(connection, lease.id, end, now, |state| state == ACCEPTED).map(drop)
}

/// Ends a delivery with a state, a status code and a size, and removes the content. Returns false
/// without a change if `replaces` does not hold for the present state.
fn end_delivery(
    connection: &Connection,
    id: SubmissionId,
    (state, status, size): (i64, Option<u16>, i64),
    now: Millis,
    replaces: impl Fn(i64) -> bool,
) -> Result<bool> {
    let previous: Option<(i64, i64)> = connection
        .prepare_cached("SELECT state, size FROM submissions WHERE id = ?1")?
        .query_row([id.0], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((_, old_size)) = previous.filter(|(old, _)| replaces(*old)) else {
        return Ok(false);
    };
    connection
        .prepare_cached(
            "UPDATE submissions SET state = ?2, status = ?3, size = ?4, ended = ?5 WHERE id = ?1",
        )?
        .execute(params![id.0, state, status, size, now])?;
    connection
        .prepare_cached("DELETE FROM contents WHERE id = ?1")?
        .execute([id.0])?;
    add_stored(connection, size.saturating_sub(old_size))?;
    Ok(true)
}

pub(super) fn forget(connection: &Connection, now: Millis, keep: Millis) -> Result<u64> {
    let last: Option<Millis> = connection
        .prepare_cached("SELECT cleaned FROM totals")?
        .query_row((), |row| row.get(0))?;
    connection
        .prepare_cached("UPDATE totals SET cleaned = ?1")?
        .execute([now])?;
    if last.is_none_or(|last| now.saturating_sub(last) > CLEANING_GAP) {
        return Ok(0);
    }
    // The clock was ahead when these ended.
    connection
        .prepare_cached("UPDATE submissions SET ended = ?1 WHERE ended > ?1 + ?2")?
        .execute([now, DAY])?;
    let before = now.saturating_sub(keep);
    connection
        .prepare_cached("DELETE FROM usage WHERE day < ?1")?
        .execute([before.div_euclid(DAY)])?;
    connection
        .prepare_cached(
            "DELETE FROM answers WHERE id IN (SELECT id FROM submissions WHERE ended < ?1)",
        )?
        .execute([before])?;
    let size: i64 = connection
        .prepare_cached("SELECT ifnull(sum(size), 0) FROM submissions WHERE ended < ?1")?
        .query_row([before], |row| row.get(0))?;
    add_stored(connection, -size)?;
    let removed = connection
        .prepare_cached("DELETE FROM submissions WHERE ended < ?1")?
        .execute([before])?;
    Ok(removed as u64)
}

pub(super) fn spent(connection: &Connection, first: Epoch) -> Result<Vec<(Epoch, u64)>> {
    connection
        .prepare_cached(
            "SELECT epoch, count(*) FROM spent WHERE epoch >= ?1 GROUP BY epoch ORDER BY epoch",
        )?
        .query_map([first], |row| {
            let tokens: i64 = row.get(1)?;
            Ok((row.get(0)?, tokens.unsigned_abs()))
        })?
        .collect()
}

pub(super) fn waiting(connection: &Connection, server: &str, now: Millis) -> Result<Waiting> {
    let stored = stored(connection)?;
    connection
        .prepare_cached(WAITING)?
        .query_row([server], |row| {
            let number = |index| row.get(index).map(i64::unsigned_abs);
            let oldest: Option<Millis> = row.get(3)?;
            Ok(Waiting {
                here: number(0)?.saturating_sub(number(1)?),
                elsewhere: number(1)?,
                collected: number(2)?,
                oldest: oldest.map_or(0, |oldest| now.saturating_sub(oldest).max(0)),
                stored,
            })
        })
}

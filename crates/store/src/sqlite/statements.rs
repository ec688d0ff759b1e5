//! The statements behind each method of the store. Each function runs within a transaction.

use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension as _, Result, Row, params};
use tandem_submit::fields;
use tandem_submit::rights::Quota;
use tandem_submit::store::{
    Admission, CLEANING_GAP, Claim, Content, DAY, Delivery, Inquiry, Millis, NewSubmission, Record,
    Waiting, upload_time,
};
use tandem_submit::submission::{Answer, IdempotencyKey, State, SubmissionId};

const ACCEPTED: i64 = 0;
const ANSWERED: i64 = 1;
const NOT_DELIVERED: i64 = 2;

/// The columns that [`record`] reads. SQLite would read a body to reach the columns after it.
const RECORD: &str = "id, key, state, iif(state = 0, NULL, status),
    iif(state = 0, NULL, answer_fields), iif(state = 0, NULL, answer_body), fingerprint";

/// The submissions that a claim may take. A submission of version 1 of the tables names no server.
pub(super) const DUE: &str = "SELECT id FROM submissions
    WHERE state = 0 AND (due <= ?1 OR due > ?2) AND (server = ?3 OR server IS NULL)
    ORDER BY due LIMIT ?4";

/// The numbers of all submissions that wait, and of those for other servers.
pub(super) const WAITING: &str = "SELECT count(*), count(*) FILTER (WHERE server <> ?1)
    FROM submissions WHERE state = 0";

/// Removes the content, and ends the delivery.
const END: &str = "path = NULL, fields = NULL, body = NULL, digest = NULL";

pub(super) fn admit(connection: &Connection, new: &NewSubmission) -> Result<Admission> {
    let query = format!("SELECT {RECORD} FROM submissions WHERE key = ?1");
    let known = connection
        .prepare_cached(&query)?
        .query_row([new.key.0], |row| {
            Ok((record(row)?, row.get::<_, [u8; 32]>(6)?))
        })
        .optional()?;
    if let Some((record, fingerprint)) = known {
        return Ok(match fingerprint == new.fingerprint {
            true => Admission::Known(record),
            false => Admission::KeyReused,
        });
    }
    let day = new.now.div_euclid(DAY);
    let total = charged(connection, &new.client, day, new.content.body.len() as u64)?;
    if !allows(&new.quota, total) {
        return Ok(Admission::OverQuota);
    }
    connection
        .prepare_cached("INSERT OR REPLACE INTO usage VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![new.client, day, total.0, total.1])?;
    let content = &new.content;
    connection
        .prepare_cached(
            "INSERT INTO submissions
                (id, key, client, fingerprint, accepted, state, due, attempts,
                 path, fields, body, digest, server)
             VALUES (?1, ?2, ?3, ?4, ?5, 0, ?6, 0, ?7, ?8, ?9, ?10, ?11)",
        )?
        .execute(params![
            new.id.0,
            new.key.0,
            new.client,
            new.fingerprint,
            new.now,
            new.leased_until,
            content.path,
            fields::write(&content.fields),
            &content.body[..],
            content.digest,
            new.server,
        ])?;
    Ok(Admission::Stored)
}

/// Returns the number and the bytes of a client's submissions of a day, with one more of `bytes`.
fn charged(connection: &Connection, client: &str, day: i64, bytes: u64) -> Result<(i64, i64)> {
    let used: Option<(i64, i64)> = connection
        .prepare_cached("SELECT submissions, bytes FROM usage WHERE client = ?1 AND day = ?2")?
        .query_row(params![client, day], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let (count, total) = used.unwrap_or_default();
    let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
    Ok((count.saturating_add(1), total.saturating_add(bytes)))
}

/// Returns true if the quota allows these totals of a day.
fn allows(quota: &Quota, (count, total): (i64, i64)) -> bool {
    quota.allows(count.unsigned_abs(), total.unsigned_abs())
}

pub(super) fn has_quota(connection: &Connection, inquiry: &Inquiry) -> Result<bool> {
    let is_known = connection
        .prepare_cached("SELECT 1 FROM submissions WHERE key = ?1")?
        .exists([inquiry.key.0])?;
    let day = inquiry.now.div_euclid(DAY);
    let total = charged(connection, &inquiry.client, day, inquiry.bytes)?;
    Ok(is_known || allows(&inquiry.quota, total))
}

pub(super) fn find(connection: &Connection, id: SubmissionId) -> Result<Option<Record>> {
    let query = format!("SELECT {RECORD} FROM submissions WHERE id = ?1");
    connection
        .prepare_cached(&query)?
        .query_row([id.0], record)
        .optional()
}

fn record(row: &Row<'_>) -> Result<Record> {
    let state = match row.get(2)? {
        ACCEPTED => State::Accepted,
        ANSWERED => State::Answered,
        NOT_DELIVERED => State::NotDelivered,
        other => return Err(rusqlite::Error::IntegralValueOutOfRange(2, other)),
    };
    let status: Option<u16> = row.get(3)?;
    let answer = status.filter(|_| state == State::Answered).map(|status| {
        Ok::<_, rusqlite::Error>(Answer {
            status,
            fields: fields::read(&row.get::<_, Vec<u8>>(4)?),
            body: row.get::<_, Vec<u8>>(5)?.into(),
        })
    });
    Ok(Record {
        id: SubmissionId(row.get(0)?),
        key: IdempotencyKey(row.get(1)?),
        state,
        status,
        answer: answer.transpose()?,
    })
}

pub(super) fn claim(connection: &Connection, claim: &Claim) -> Result<Vec<Delivery>> {
    let mut query = connection.prepare_cached(DUE)?;
    let mut length =
        connection.prepare_cached("SELECT length(body) FROM submissions WHERE id = ?1")?;
    let limit = i64::try_from(claim.limit).unwrap_or(i64::MAX);
    let due = params![claim.now, claim.latest, claim.server, limit];
    let mut lease = connection.prepare_cached("UPDATE submissions SET due = ?2 WHERE id = ?1")?;
    let mut read = connection.prepare_cached(
        "SELECT id, path, fields, body, digest, accepted, attempts FROM submissions
         WHERE id = ?1",
    )?;
    let due = query.query_map(due, |row| row.get(0))?;
    // The updates below must not change the rows of the query while it runs.
    let due = due.collect::<Result<Vec<[u8; 16]>>>()?;
    let mut left = claim.bytes;
    let mut deliveries = Vec::new();
    for id in due {
        let bytes: i64 = length.query_row([id], |row| row.get(0))?;
        let bytes = bytes.unsigned_abs();
        let Some(rest) = left.checked_sub(bytes) else {
            break;
        };
        left = rest;
        let leased_until = claim.leased_until.saturating_add(upload_time(bytes));
        lease.execute(params![id, leased_until])?;
        deliveries.push(read.query_row([id], delivery)?);
    }
    Ok(deliveries)
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
    })
}

pub(super) fn answer(
    connection: &Connection,
    id: SubmissionId,
    answer: &Answer,
    now: Millis,
) -> Result<()> {
    let statement = format!(
        "UPDATE submissions SET state = {ANSWERED}, ended = ?2, status = ?3, answer_fields = ?4,
             answer_body = ?5, {END} WHERE id = ?1 AND state <> {ANSWERED}"
    );
    let fields = fields::write(&answer.fields);
    connection.prepare_cached(&statement)?.execute(params![
        id.0,
        now,
        answer.status,
        fields,
        &answer.body[..]
    ])?;
    Ok(())
}

pub(super) fn postpone(connection: &Connection, id: SubmissionId, due: Millis) -> Result<()> {
    connection
        .prepare_cached(
            "UPDATE submissions SET due = ?2, attempts = attempts + 1 WHERE id = ?1 AND state = 0",
        )?
        .execute(params![id.0, due])?;
    Ok(())
}

pub(super) fn give_up(
    connection: &Connection,
    id: SubmissionId,
    status: Option<u16>,
    now: Millis,
) -> Result<()> {
    let statement = format!(
        "UPDATE submissions SET state = {NOT_DELIVERED}, ended = ?2, status = ?3, {END}
         WHERE id = ?1 AND state = 0"
    );
    connection
        .prepare_cached(&statement)?
        .execute(params![id.0, now, status])?;
    Ok(())
}

pub(super) fn forget(connection: &Connection, now: Millis, keep: Millis) -> Result<u64> {
    let last: Option<Millis> = connection
        .prepare_cached("SELECT at FROM cleaning")?
        .query_row((), |row| row.get(0))
        .optional()?;
    connection
        .prepare_cached("INSERT OR REPLACE INTO cleaning (one, at) VALUES (1, ?1)")?
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
    let removed = connection
        .prepare_cached("DELETE FROM submissions WHERE ended < ?1")?
        .execute([before])?;
    Ok(removed as u64)
}

pub(super) fn waiting(connection: &Connection, server: &str) -> Result<Waiting> {
    let mut query = connection.prepare_cached(WAITING)?;
    query.query_row([server], |row| {
        let (all, elsewhere): (i64, i64) = (row.get(0)?, row.get(1)?);
        Ok(Waiting {
            here: all.saturating_sub(elsewhere).unsigned_abs(),
            elsewhere: elsewhere.unsigned_abs(),
        })
    })
}

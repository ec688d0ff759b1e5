//! The statements behind each method of the store. Each function runs within a transaction.

use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension as _, Result, Row, params};
use tandem_submit::fields;
use tandem_submit::store::{Admission, Content, DAY, Delivery, Millis, NewSubmission, Record};
use tandem_submit::submission::{Answer, IdempotencyKey, State, SubmissionId};

const ACCEPTED: i64 = 0;
const ANSWERED: i64 = 1;
const NOT_DELIVERED: i64 = 2;

/// The columns that [`record`] reads.
const RECORD: &str = "id, key, state, status, answer_fields, answer_body, fingerprint";

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
    if !charge(connection, new)? {
        return Ok(Admission::OverQuota);
    }
    let content = &new.content;
    connection
        .prepare_cached(
            "INSERT INTO submissions
                (id, key, client, fingerprint, accepted, state, due, attempts,
                 path, fields, body, digest)
             VALUES (?1, ?2, ?3, ?4, ?5, 0, ?6, 0, ?7, ?8, ?9, ?10)",
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
        ])?;
    Ok(Admission::Stored)
}

/// Charges a submission to the quota of its client. Returns false if the quota is used up.
fn charge(connection: &Connection, new: &NewSubmission) -> Result<bool> {
    let day = new.now.div_euclid(DAY);
    let bytes = i64::try_from(new.content.body.len()).unwrap_or(i64::MAX);
    let used: Option<(i64, i64)> = connection
        .prepare_cached("SELECT submissions, bytes FROM usage WHERE client = ?1 AND day = ?2")?
        .query_row(params![new.client, day], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .optional()?;
    let (count, total) = used.unwrap_or_default();
    let (count, total) = (count.saturating_add(1), total.saturating_add(bytes));
    if !new.quota.allows(count.unsigned_abs(), total.unsigned_abs()) {
        return Ok(false);
    }
    connection
        .prepare_cached("INSERT OR REPLACE INTO usage VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![new.client, day, count, total])?;
    Ok(true)
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
    let answer = status.map(|status| {
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
        answer: answer.transpose()?,
    })
}

pub(super) fn claim(
    connection: &Connection,
    now: Millis,
    leased_until: Millis,
    limit: usize,
) -> Result<Vec<Delivery>> {
    let mut query = connection.prepare_cached(
        "SELECT id, path, fields, body, digest, accepted, attempts FROM submissions
         WHERE state = 0 AND due <= ?1 ORDER BY due LIMIT ?2",
    )?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = query.query_map(params![now, limit], delivery)?;
    let deliveries = rows.collect::<Result<Vec<_>>>()?;
    let mut lease = connection.prepare_cached("UPDATE submissions SET due = ?2 WHERE id = ?1")?;
    for delivery in &deliveries {
        lease.execute(params![delivery.id.0, leased_until])?;
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

pub(super) fn give_up(connection: &Connection, id: SubmissionId, now: Millis) -> Result<()> {
    let statement = format!(
        "UPDATE submissions SET state = {NOT_DELIVERED}, ended = ?2, {END}
         WHERE id = ?1 AND state = 0"
    );
    connection
        .prepare_cached(&statement)?
        .execute(params![id.0, now])?;
    Ok(())
}

pub(super) fn forget(connection: &Connection, before: Millis) -> Result<u64> {
    connection
        .prepare_cached("DELETE FROM usage WHERE day < ?1")?
        .execute([before.div_euclid(DAY)])?;
    let removed = connection
        .prepare_cached("DELETE FROM submissions WHERE ended < ?1")?
        .execute([before])?;
    Ok(removed as u64)
}

pub(super) fn waiting(connection: &Connection) -> Result<u64> {
    let count: i64 = connection
        .prepare_cached("SELECT count(*) FROM submissions WHERE state = 0")?
        .query_row((), |row| row.get(0))?;
    Ok(count.unsigned_abs())
}

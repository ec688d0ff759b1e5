//! The session settings, and the tables of the store.

use std::time::Duration;

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::failure::Failure;

/// The version of the tables.
const VERSION: i32 = 2;

/// The tables.
const TABLES: &str = include_str!("tables.sql");

/// The functions, which use the tables.
const FUNCTIONS: &str = include_str!("functions.sql");

/// The changes from version 1 to version 2, before [`FUNCTIONS`]: submissions that a batch
/// collects.
const TO_VERSION_2: &str = "
    ALTER TABLE submissions ADD COLUMN collected boolean NOT NULL DEFAULT false;
    CREATE INDEX submissions_collected ON submissions (server, accepted) WHERE collected;
    DROP FUNCTION present, add_stored, admit, finish, begin_removal, remove_ended, begin_epoch,
        end_epochs;
    UPDATE version SET number = 2;";

/// The number of the lock that lets one instance create the tables.
const LOCK: i64 = 0x7461_6e64_656d;

/// Sets up a new connection. `schema` is a valid identifier.
///
/// - A commit returns when it is on the disk, and at the standby that the server waits for.
/// - The server ends a statement after `limit`, when its call has been given up.
pub(super) async fn set_up(client: &Client, schema: &str, limit: Duration) -> Result<(), Failure> {
    let limit = limit.as_millis();
    let settings = format!(
        "SET search_path = {schema}, pg_temp;
         SET synchronous_commit = on;
         SET default_transaction_isolation = 'read committed';
         SET client_min_messages = warning;
         SET statement_timeout = {limit};
         SET lock_timeout = {limit};
         SET idle_in_transaction_session_timeout = {limit};"
    );
    execute(client, &settings).await?;
    let fsync = client.query_typed_one("SHOW fsync", &[]).await;
    let fsync = fsync.map_err(|error| Failure::of(&error))?;
    match fsync.try_get(0) {
        Ok("on") => Ok(()),
        _ => Err(Failure::permanent(
            "PostgreSQL runs with fsync = off, so that submissions could be lost",
        )),
    }
}

/// Checks that the tables have the version of this program.
pub(super) async fn check(client: &Client) -> Result<(), Failure> {
    match version(client).await? {
        VERSION => Ok(()),
        version => Err(other_version(version)),
    }
}

async fn version(client: &Client) -> Result<i32, Failure> {
    let row = client.query_typed_one("SELECT number FROM version", &[]);
    let row = row.await.map_err(|error| Failure::of(&error))?;
    row.try_get(0).map_err(|_| Failure::invalid())
}

fn other_version(version: i32) -> Failure {
    Failure::permanent(format!(
        "its tables have version {version}, and this program uses version {VERSION}"
    ))
}

/// Creates the schema and its tables, unless they exist. Several instances may do so at once.
pub(super) async fn create(client: &Client, schema: &str) -> Result<(), Failure> {
    let exists =
        "SELECT to_regclass($1 || '.version') IS NOT NULL, to_regnamespace($1) IS NOT NULL";
    execute(
        client,
        &format!("BEGIN; SELECT pg_advisory_xact_lock({LOCK})"),
    )
    .await?;
    let row = client
        .query_typed_one(exists, &[(&schema, Type::TEXT)])
        .await;
    let row = row.map_err(|error| Failure::of(&error))?;
    let read = |index| row.try_get(index).map_err(|_| Failure::invalid());
    let (has_tables, has_schema): (bool, bool) = (read(0)?, read(1)?);
    if !has_schema {
        execute(client, &format!("CREATE SCHEMA {schema}")).await?;
    }
    let former = match has_tables {
        true => Some(version(client).await?),
        false => None,
    };
    match former {
        None => execute(client, TABLES).await?,
        Some(1) => execute(client, TO_VERSION_2).await?,
        Some(_) => {}
    }
    if matches!(former, None | Some(1)) {
        execute(client, FUNCTIONS).await?;
    }
    check(client).await?;
    execute(client, "COMMIT").await
}

async fn execute(client: &Client, statements: &str) -> Result<(), Failure> {
    let done = client.batch_execute(statements).await;
    done.map_err(|error| Failure::of(&error))
}

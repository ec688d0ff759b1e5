//! Tests of the store in a file of a temporary directory.

mod linking;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tandem_submit::store::{DAY, OVERHEAD};
use tandem_submit::submission::State;

use super::*;
use crate::conformance::{Place, SERVER, conformance, due, new, reply, wait, waiting};

conformance!(Directory::new());

impl Place for Directory {
    fn open(&self) -> Arc<dyn Store> {
        Arc::new(Self::open(self))
    }

    fn sql(&self, statement: &str) {
        let connection = Connection::open(self.file()).expect("the file");
        connection.execute_batch(statement).expect(statement);
    }
}

/// A directory that is removed at the end of a test.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tandem-store-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).expect("a temporary directory");
        Self(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("submissions")
    }

    fn open(&self) -> Sqlite {
        Sqlite::open(&self.file()).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Returns the bytes of all files.
    fn bytes(&self) -> Vec<u8> {
        let entries = std::fs::read_dir(&self.0).expect("the directory");
        let read = |entry: std::io::Result<std::fs::DirEntry>| {
            std::fs::read(entry.expect("an entry").path()).expect("a file")
        };
        entries.flat_map(read).collect()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn sqlite_finds_waiting_submissions_without_bodies() {
    let directory = Directory::new();
    let store = directory.open();
    for query in [statements::DUE, statements::WAITING, statements::COLLECTED] {
        let plan = store.call(move |connection| {
            let mut plan = connection.prepare(&format!("EXPLAIN QUERY PLAN {query}"))?;
            let values = [SERVER; 4];
            let values = &values[..plan.parameter_count()];
            let lines = plan.query_map(rusqlite::params_from_iter(values), |row| row.get(3))?;
            lines.collect::<rusqlite::Result<Vec<String>>>()
        });
        let plan = wait(plan).join("\n");
        assert!(
            plan.contains("COVERING INDEX submissions_waiting"),
            "{plan}"
        );
    }
}

/// The tables of version 1, with a submission in each state.
const VERSION_1: &str = "
    CREATE TABLE submissions (
        id BLOB PRIMARY KEY NOT NULL, key BLOB NOT NULL UNIQUE, client TEXT NOT NULL,
        fingerprint BLOB NOT NULL, accepted INTEGER NOT NULL, state INTEGER NOT NULL,
        due INTEGER NOT NULL, attempts INTEGER NOT NULL, path TEXT, fields BLOB, body BLOB,
        digest BLOB, ended INTEGER, status INTEGER, answer_fields BLOB, answer_body BLOB
    ) STRICT;
    CREATE INDEX submissions_due ON submissions (due) WHERE state = 0;
    CREATE INDEX submissions_ended ON submissions (ended) WHERE ended IS NOT NULL;
    CREATE TABLE usage (
        client TEXT NOT NULL, day INTEGER NOT NULL, submissions INTEGER NOT NULL,
        bytes INTEGER NOT NULL, PRIMARY KEY (client, day)
    ) STRICT, WITHOUT ROWID;
    INSERT INTO usage VALUES ('client', 1, 3, 30);
    INSERT INTO submissions VALUES
        (unhex(replace(hex(zeroblob(16)), '00', '01')),
         unhex(replace(hex(zeroblob(32)), '00', '01')),
         'client', unhex(replace(hex(zeroblob(32)), '00', '01')), 86400000, 0, 86401000, 2,
         '/reports?a=b', x'', x'30313233343536373839', zeroblob(32), NULL, NULL, NULL, NULL),
        (unhex(replace(hex(zeroblob(16)), '00', '02')),
         unhex(replace(hex(zeroblob(32)), '00', '02')),
         'client', unhex(replace(hex(zeroblob(32)), '00', '02')), 86400000, 1, 86401000, 0,
         NULL, NULL, NULL, NULL, 86400005, 201, x'', x'7468616e6b73'),
        (unhex(replace(hex(zeroblob(16)), '00', '03')),
         unhex(replace(hex(zeroblob(32)), '00', '03')),
         'client', unhex(replace(hex(zeroblob(32)), '00', '03')), 86400000, 2, 86401000, 9,
         NULL, NULL, NULL, NULL, 86400006, 503, NULL, NULL);
    PRAGMA user_version = 1;
";

/// The changes to version 2.
const VERSION_2: &str = "
    ALTER TABLE submissions ADD COLUMN server TEXT;
    DROP INDEX submissions_due;
    CREATE INDEX submissions_waiting ON submissions (state, due, server, id) WHERE state = 0;
    CREATE TABLE cleaning (one INTEGER PRIMARY KEY NOT NULL, at INTEGER NOT NULL) STRICT;
    INSERT INTO cleaning VALUES (1, 86400007);
    UPDATE submissions SET server = 'http://server/in';
    PRAGMA user_version = 2;
";

/// The changes that lead from version 2 to version 3, without the tables of the other statements.
const VERSION_3: &str = "
    DROP INDEX submissions_waiting;
    DROP INDEX submissions_ended;
    ALTER TABLE submissions RENAME TO old;
    CREATE TABLE submissions (
        id BLOB PRIMARY KEY NOT NULL, key BLOB NOT NULL UNIQUE, client TEXT NOT NULL,
        fingerprint BLOB NOT NULL, server TEXT, accepted INTEGER NOT NULL, state INTEGER NOT NULL,
        due INTEGER NOT NULL, attempts INTEGER NOT NULL, size INTEGER NOT NULL, ended INTEGER,
        status INTEGER
    ) STRICT;
    CREATE INDEX submissions_waiting ON submissions (state, due, server, id) WHERE state = 0;
    CREATE INDEX submissions_ended ON submissions (ended) WHERE ended IS NOT NULL;
    CREATE TABLE contents (
        id BLOB PRIMARY KEY NOT NULL, path TEXT NOT NULL, fields BLOB NOT NULL,
        digest BLOB NOT NULL, body BLOB NOT NULL
    ) STRICT;
    CREATE TABLE answers (
        id BLOB PRIMARY KEY NOT NULL, fields BLOB NOT NULL, body BLOB NOT NULL
    ) STRICT;
    CREATE TABLE spent (
        epoch INTEGER NOT NULL, nonce BLOB NOT NULL, PRIMARY KEY (epoch, nonce)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE totals (
        one INTEGER PRIMARY KEY NOT NULL CHECK (one = 1), size INTEGER NOT NULL,
        first_epoch INTEGER NOT NULL, cleaned INTEGER
    ) STRICT;
    INSERT INTO submissions
        SELECT id, key, client, fingerprint, server, accepted, state, due, attempts,
            4096 + ifnull(length(body), 0) + ifnull(length(answer_body), 0), ended, status
        FROM old;
    INSERT INTO contents SELECT id, path, fields, digest, body FROM old WHERE state = 0;
    INSERT INTO answers SELECT id, answer_fields, answer_body FROM old WHERE state = 1;
    INSERT INTO totals
        SELECT 1, (SELECT sum(size) FROM submissions), 0, (SELECT at FROM cleaning);
    DROP TABLE old;
    DROP TABLE cleaning;
    PRAGMA user_version = 3;
";

#[test]
fn sqlite_takes_over_earlier_versions() {
    for statements in [
        &[VERSION_1][..],
        &[VERSION_1, VERSION_2],
        &[VERSION_1, VERSION_2, VERSION_3],
    ] {
        let directory = Directory::new();
        let connection = Connection::open(directory.file()).expect("the file");
        for batch in statements {
            connection.execute_batch(batch).expect("an earlier version");
        }
        drop(connection);
        let store = directory.open();
        let counted = wait(store.waiting(SERVER.to_owned(), DAY));
        assert_eq!((counted.here, counted.stored), (1, 3 * OVERHEAD + 16));
        let claimed = wait(store.claim(due(DAY, 2 * DAY))).deliveries;
        assert_eq!((claimed.len(), claimed[0].attempts), (1, 2));
        assert_eq!(claimed[0].content.path, "/reports?a=b");
        assert_eq!(&claimed[0].content.body[..], b"0123456789");
        assert!(matches!(wait(store.admit(new(1))), Admission::Known(_)));
        let answered = wait(store.find(new(2).id)).expect("stored");
        assert_eq!(answered.answer, Some(reply(201)));
        let given_up = wait(store.find(new(3).id)).expect("stored");
        assert_eq!(
            (given_up.state, given_up.status),
            (State::NotDelivered, Some(503))
        );
        wait(store.admit(new(4)));
        // The next opening finds the present version.
        drop(store);
        assert_eq!(waiting(&directory.open()), 2);
    }
}

#[test]
fn sqlite_ends_leases_when_it_opens() {
    let directory = Directory::new();
    let store = directory.open();
    wait(store.admit(new(1)));
    drop(store);
    let store = directory.open();
    assert_eq!(wait(store.claim(due(0, DAY))).deliveries.len(), 1);
}

#[test]
fn sqlite_removes_content_from_its_files() {
    let directory = Directory::new();
    let store = directory.open();
    let mark = b"content that must not stay; ";
    let marks = |bytes: &[u8]| bytes.windows(mark.len()).filter(|it| it == mark).count();
    for number in [1, 2] {
        let mut large = new(number);
        large.content.body = mark.repeat(40_000).into();
        wait(store.admit(large));
    }
    assert!(marks(&directory.bytes()) > 0);
    wait(store.answer(new(1).id, reply(200), DAY));
    wait(store.give_up(new(2).lease(), None, DAY));
    // The store keeps running. Its calls do not delay the removal.
    while marks(&directory.bytes()) > 0 {
        waiting(&store);
        std::thread::yield_now();
    }
}

#[test]
fn sqlite_empties_its_log_when_it_is_dropped() {
    let directory = Directory::new();
    let store = directory.open();
    let log = directory.0.join("submissions-wal");
    wait(store.admit(new(1)));
    assert!(log.metadata().expect("the log").len() > 0);
    drop(store);
    assert!(log.metadata().map_or(0, |log| log.len()) == 0);
}

#[test]
fn sqlite_keeps_old_pages_in_memory() {
    let directory = Directory::new();
    let store = directory.open();
    let pragma = store.call(|connection| {
        connection.pragma_query_value(None, "temp_store", |row| row.get::<_, i64>(0))
    });
    assert_eq!(wait(pragma), 2);
}

#[test]
fn sqlite_fails_the_whole_batch_of_a_lost_transaction() {
    let directory = Directory::new();
    let store = directory.open();
    let failed = store.call(|connection| {
        connection.execute_batch("ROLLBACK")?;
        Err::<(), _>(rusqlite::Error::QueryReturnedNoRows)
    });
    let runtime = tokio::runtime::Builder::new_current_thread();
    let error = { runtime }.build().expect("a runtime").block_on(failed);
    let error = error.expect_err("the transaction has ended").to_string();
    // The cause is named, and not the rollback and the commit that failed after it.
    assert!(error.contains("a row is missing"), "{error}");
    wait(store.admit(new(1)));
}

#[test]
fn sqlite_refuses_what_is_no_file() {
    let error = Sqlite::open(Path::new("/dev/null")).map(drop);
    let error = error.expect_err("a device").to_string();
    assert!(error.contains("no regular file"), "{error}");
}

#[test]
fn sqlite_refuses_files_that_it_cannot_use() {
    let directory = Directory::new();
    let open = |file: &Path| {
        Sqlite::open(file)
            .map(drop)
            .expect_err("refused")
            .to_string()
    };
    assert!(open(&directory.0.join("no/file")).contains("cannot open"));
    let text = directory.0.join("text");
    std::fs::write(&text, "x".repeat(4096)).expect("written");
    assert!(open(&text).contains("no database"));
    let store = directory.open();
    assert!(open(&directory.file()).contains("another process"));
    drop(store);
    let newer = directory.0.join("newer");
    let connection = Connection::open(&newer).expect("a file");
    connection
        .pragma_update(None, "user_version", 7)
        .expect("set");
    drop(connection);
    assert!(open(&newer).contains("version 7"));
}

#[test]
fn sqlite_files_are_private() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = Directory::new();
    let files = ["submissions", "submissions-wal"].map(|name| directory.0.join(name));
    for file in &files {
        std::fs::write(file, "").expect("written");
        let readable = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(file, readable).expect("set");
    }
    let store = directory.open();
    wait(store.admit(new(1)));
    for file in &files {
        let mode = file.metadata().expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", file.display());
    }
}

/// The statement is that of "Backup" in `docs/src/submissions.md`.
#[test]
fn sqlite_refuses_earlier_tokens_after_a_restore() {
    let directory = Directory::new();
    drop(directory.open());
    directory.sql("UPDATE totals SET first_epoch = 1 + unixepoch() / 86400");
    let store = directory.open();
    crate::conformance::refuses_tokens_of_begun_keys(&store);
}

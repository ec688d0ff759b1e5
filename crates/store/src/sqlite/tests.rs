//! Tests of the store in a file of a temporary directory.

use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use tandem_http::Fields;
use tandem_submit::rights::Quota;
use tandem_submit::store::{CLEANING_GAP, Content, DAY, upload_time};
use tandem_submit::submission::{IdempotencyKey, State};

use super::*;

const SERVER: &str = "http://server/in";

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

fn wait<T>(future: impl Future<Output = Result<T, StoreError>>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.build().expect("a runtime");
    runtime.block_on(future).expect("the store works")
}

fn new(number: u8) -> NewSubmission {
    let mut fields = Fields::new();
    fields.push("content-type", "text/plain");
    NewSubmission {
        id: SubmissionId([number; 16]),
        key: IdempotencyKey([number; 32]),
        client: "client".to_owned(),
        fingerprint: [number; 32],
        content: Content {
            path: "/reports?a=b".to_owned(),
            fields,
            body: b"0123456789".as_slice().into(),
            digest: [1; 32],
        },
        now: DAY,
        leased_until: DAY + 1000,
        quota: Quota::default(),
        server: SERVER.to_owned(),
    }
}

/// Returns a claim of any number of submissions that are due at a time.
fn due(now: Millis, leased_until: Millis) -> Claim {
    Claim {
        server: SERVER.to_owned(),
        now,
        leased_until,
        latest: i64::MAX,
        limit: 9,
        bytes: u64::MAX,
    }
}

fn waiting(store: &Sqlite) -> u64 {
    wait(store.waiting(SERVER.to_owned())).here
}

fn reply(status: u16) -> Answer {
    Answer {
        status,
        fields: Fields::new(),
        body: b"thanks".as_slice().into(),
    }
}

#[test]
fn sqlite_admits_a_key_once() {
    let directory = Directory::new();
    let store = directory.open();
    assert!(matches!(wait(store.admit(new(1))), Admission::Stored));
    let again = NewSubmission {
        id: SubmissionId([9; 16]),
        ..new(1)
    };
    match wait(store.admit(again)) {
        Admission::Known(record) => {
            assert_eq!((record.id, record.state), (new(1).id, State::Accepted));
        }
        other => panic!("{other:?}"),
    }
    let other = NewSubmission {
        fingerprint: [9; 32],
        ..new(1)
    };
    assert!(matches!(wait(store.admit(other)), Admission::KeyReused));
    assert_eq!(waiting(&store), 1);
}

#[test]
fn sqlite_charges_quotas_by_day() {
    let directory = Directory::new();
    let store = directory.open();
    let with_quota = |number, now| NewSubmission {
        now,
        quota: Quota {
            submissions: Some(2),
            bytes: Some(25),
        },
        ..new(number)
    };
    for number in [1, 2, 1] {
        assert!(!matches!(
            wait(store.admit(with_quota(number, DAY))),
            Admission::OverQuota
        ));
    }
    let third = wait(store.admit(with_quota(3, 2 * DAY - 1)));
    assert!(matches!(third, Admission::OverQuota));
    let tomorrow = wait(store.admit(with_quota(3, 2 * DAY)));
    assert!(matches!(tomorrow, Admission::Stored));
    let mut large = with_quota(4, 2 * DAY);
    large.content.body = vec![0; 16].into();
    assert!(matches!(wait(store.admit(large)), Admission::OverQuota));
    assert_eq!(waiting(&store), 3);
}

#[test]
fn sqlite_leases_due_submissions_once() {
    let directory = Directory::new();
    let store = directory.open();
    for number in 1..=3 {
        wait(store.admit(new(number)));
    }
    assert!(wait(store.claim(due(DAY + 999, DAY + 5000))).is_empty());
    let first = wait(store.claim(Claim {
        limit: 2,
        ..due(DAY + 1000, DAY + 5000)
    }));
    let second = wait(store.claim(Claim {
        limit: 2,
        ..due(DAY + 1000, DAY + 5000)
    }));
    assert_eq!((first.len(), second.len()), (2, 1));
    let delivery = &second[0];
    assert_eq!(delivery.content.path, "/reports?a=b");
    assert_eq!(&delivery.content.body[..], b"0123456789");
    assert_eq!(delivery.content.fields, new(1).content.fields);
    assert_eq!((delivery.accepted, delivery.attempts), (DAY, 0));
    wait(store.postpone(delivery.id, DAY + 2000));
    let third = wait(store.claim(due(DAY + 2000, DAY + 5000)));
    assert_eq!(third.len(), 1);
    assert_eq!((third[0].id, third[0].attempts), (delivery.id, 1));
}

#[test]
fn sqlite_keeps_the_first_answer() {
    let directory = Directory::new();
    let store = directory.open();
    wait(store.admit(new(1)));
    wait(store.answer(new(1).id, reply(201), DAY));
    wait(store.answer(new(1).id, reply(500), DAY));
    wait(store.give_up(new(1).id, Some(503), DAY));
    let record = wait(store.find(new(1).id)).expect("it is stored");
    assert_eq!(record.state, State::Answered);
    assert_eq!(record.answer, Some(reply(201)));
    assert!(wait(store.claim(due(i64::MAX, i64::MAX))).is_empty());
    assert_eq!(
        wait(store.find(SubmissionId([7; 16]))).map(|it| it.state),
        None
    );
}

#[test]
fn sqlite_answers_after_giving_up() {
    let directory = Directory::new();
    let store = directory.open();
    wait(store.admit(new(1)));
    wait(store.give_up(new(1).id, Some(503), DAY));
    let record = |store: &Sqlite| wait(store.find(new(1).id)).expect("stored");
    let given_up = record(&store);
    assert_eq!(
        (given_up.state, given_up.status),
        (State::NotDelivered, Some(503))
    );
    assert!(given_up.answer.is_none());
    wait(store.answer(new(1).id, reply(200), DAY));
    let answered = record(&store);
    assert_eq!(
        (answered.state, answered.status),
        (State::Answered, Some(200))
    );
}

#[test]
fn sqlite_forgets_ended_submissions() {
    let directory = Directory::new();
    let store = directory.open();
    for number in 1..=3 {
        wait(store.admit(new(number)));
    }
    wait(store.answer(new(1).id, reply(200), DAY));
    wait(store.give_up(new(2).id, None, DAY + 1));
    let keep = 1000;
    wait(store.forget(DAY, keep));
    assert_eq!(wait(store.forget(DAY + keep + 1, keep)), 1);
    assert!(wait(store.find(new(1).id)).is_none());
    assert_eq!(wait(store.forget(DAY + keep + 2, keep)), 1);
    assert_eq!(waiting(&store), 1);
}

#[test]
fn sqlite_forgets_nothing_after_a_jump_of_the_clock() {
    let directory = Directory::new();
    let store = directory.open();
    wait(store.admit(new(1)));
    wait(store.answer(new(1).id, reply(200), DAY));
    let (keep, hour) = (7 * DAY, CLEANING_GAP / 2);
    assert_eq!(wait(store.forget(DAY + hour, keep)), 0);
    // The clock jumps ahead, and back again before the next removal. A restart forgets no time.
    assert_eq!(wait(store.forget(100 * DAY, keep)), 0);
    drop(store);
    let store = directory.open();
    assert_eq!(wait(store.forget(DAY + 2 * hour, keep)), 0);
    assert!(wait(store.find(new(1).id)).is_some());
    // It ended while the clock was ahead.
    wait(store.admit(new(2)));
    wait(store.answer(new(2).id, reply(200), 100 * DAY));
    let mut now = DAY + 2 * hour;
    let mut removed = 0;
    while now < 9 * DAY {
        now += hour;
        removed += wait(store.forget(now, keep));
    }
    assert_eq!(removed, 2);
}

#[test]
fn sqlite_claims_bodies_up_to_a_sum() {
    let directory = Directory::new();
    let store = directory.open();
    for number in 1..=4 {
        let mut one = new(number);
        one.content.body = vec![0; usize::from(number) * 1000].into();
        wait(store.admit(one));
    }
    let claim = |bytes| Claim {
        bytes,
        ..due(2 * DAY, 3 * DAY)
    };
    let lengths = |bytes| -> Vec<usize> {
        let claimed = wait(store.claim(claim(bytes)));
        claimed.iter().map(|it| it.content.body.len()).collect()
    };
    assert_eq!(lengths(999), [0; 0]);
    assert_eq!(lengths(5999), [1000, 2000]);
    // The third does not fit, and the fourth does not overtake it.
    assert_eq!(lengths(2999), [0; 0]);
    assert_eq!(lengths(7000), [3000, 4000]);
    // A lease of a longer body ends later.
    let ended = due(3 * DAY + upload_time(3000), 4 * DAY);
    assert_eq!(wait(store.claim(ended)).len(), 3);
}

#[test]
fn sqlite_claims_times_that_cannot_be() {
    let directory = Directory::new();
    let store = directory.open();
    let ahead = NewSubmission {
        now: 100 * DAY,
        leased_until: 100 * DAY,
        ..new(1)
    };
    wait(store.admit(ahead));
    let claim = Claim {
        latest: 2 * DAY,
        ..due(DAY, DAY + 1000)
    };
    assert_eq!(wait(store.claim(claim.clone())).len(), 1);
    assert!(wait(store.claim(claim)).is_empty());
}

#[test]
fn sqlite_claims_for_one_server() {
    let directory = Directory::new();
    let store = directory.open();
    wait(store.admit(new(1)));
    let other = || Claim {
        server: "http://other/in".to_owned(),
        ..due(2 * DAY, 3 * DAY)
    };
    assert!(wait(store.claim(other())).is_empty());
    let counted = wait(store.waiting(other().server));
    assert_eq!((counted.here, counted.elsewhere), (0, 1));
    assert_eq!(wait(store.claim(due(2 * DAY, 3 * DAY))).len(), 1);
}

#[test]
fn sqlite_finds_waiting_submissions_without_bodies() {
    let directory = Directory::new();
    let store = directory.open();
    for query in [statements::DUE, statements::WAITING] {
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

#[test]
fn sqlite_asks_quotas_without_a_charge() {
    let directory = Directory::new();
    let store = directory.open();
    let quota = Quota {
        submissions: Some(1),
        bytes: Some(10),
    };
    let inquiry = |number, bytes| Inquiry {
        key: IdempotencyKey([number; 32]),
        client: "client".to_owned(),
        bytes,
        now: DAY,
        quota,
    };
    assert!(!wait(store.has_quota(inquiry(1, 11))));
    for _ in 0..2 {
        assert!(wait(store.has_quota(inquiry(1, 10))));
    }
    wait(store.admit(NewSubmission { quota, ..new(1) }));
    assert!(!wait(store.has_quota(inquiry(2, 0))));
    assert!(wait(store.has_quota(inquiry(1, 10))));
}

#[test]
fn sqlite_takes_over_version_1() {
    let directory = Directory::new();
    let store = directory.open();
    wait(store.admit(new(1)));
    drop(store);
    let connection = Connection::open(directory.file()).expect("the file");
    let back = "DROP INDEX submissions_waiting; ALTER TABLE submissions DROP COLUMN server;
                CREATE INDEX submissions_due ON submissions (due) WHERE state = 0;
                DROP TABLE cleaning; PRAGMA user_version = 1;";
    connection.execute_batch(back).expect("version 1");
    drop(connection);
    let store = directory.open();
    assert_eq!(wait(store.claim(due(DAY, 2 * DAY))).len(), 1);
    wait(store.admit(new(2)));
    assert_eq!(waiting(&store), 2);
}

#[test]
fn sqlite_ends_leases_when_it_opens() {
    let directory = Directory::new();
    let store = directory.open();
    wait(store.admit(new(1)));
    drop(store);
    let store = directory.open();
    assert_eq!(wait(store.claim(due(0, DAY))).len(), 1);
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
    wait(store.give_up(new(2).id, None, DAY));
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

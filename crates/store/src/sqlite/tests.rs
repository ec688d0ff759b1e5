//! Tests of the store in a file of a temporary directory.

use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use tandem_http::Fields;
use tandem_submit::rights::Quota;
use tandem_submit::store::{Content, DAY};
use tandem_submit::submission::{IdempotencyKey, State};

use super::*;

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
    }
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
    assert_eq!(wait(store.waiting()), 1);
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
    assert_eq!(wait(store.waiting()), 3);
}

#[test]
fn sqlite_leases_due_submissions_once() {
    let directory = Directory::new();
    let store = directory.open();
    for number in 1..=3 {
        wait(store.admit(new(number)));
    }
    assert!(wait(store.claim(DAY + 999, DAY + 5000, 9)).is_empty());
    let first = wait(store.claim(DAY + 1000, DAY + 5000, 2));
    let second = wait(store.claim(DAY + 1000, DAY + 5000, 2));
    assert_eq!((first.len(), second.len()), (2, 1));
    let delivery = &second[0];
    assert_eq!(delivery.content.path, "/reports?a=b");
    assert_eq!(&delivery.content.body[..], b"0123456789");
    assert_eq!(delivery.content.fields, new(1).content.fields);
    assert_eq!((delivery.accepted, delivery.attempts), (DAY, 0));
    wait(store.postpone(delivery.id, DAY + 2000));
    let third = wait(store.claim(DAY + 2000, DAY + 5000, 9));
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
    wait(store.give_up(new(1).id, DAY));
    let record = wait(store.find(new(1).id)).expect("it is stored");
    assert_eq!(record.state, State::Answered);
    assert_eq!(record.answer, Some(reply(201)));
    assert!(wait(store.claim(i64::MAX, i64::MAX, 9)).is_empty());
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
    wait(store.give_up(new(1).id, DAY));
    let state = |store: &Sqlite| wait(store.find(new(1).id)).expect("stored").state;
    assert_eq!(state(&store), State::NotDelivered);
    wait(store.answer(new(1).id, reply(200), DAY));
    assert_eq!(state(&store), State::Answered);
}

#[test]
fn sqlite_forgets_ended_submissions() {
    let directory = Directory::new();
    let store = directory.open();
    for number in 1..=3 {
        wait(store.admit(new(number)));
    }
    wait(store.answer(new(1).id, reply(200), DAY));
    wait(store.give_up(new(2).id, DAY + 1));
    assert_eq!(wait(store.forget(DAY + 1)), 1);
    assert!(wait(store.find(new(1).id)).is_none());
    assert_eq!(wait(store.forget(DAY + 2)), 1);
    assert_eq!(wait(store.waiting()), 1);
}

#[test]
fn sqlite_ends_leases_when_it_opens() {
    let directory = Directory::new();
    let store = directory.open();
    wait(store.admit(new(1)));
    drop(store);
    let store = directory.open();
    assert_eq!(wait(store.claim(0, DAY, 9)).len(), 1);
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
    wait(store.give_up(new(2).id, DAY));
    // The store keeps running. Its calls do not delay the removal.
    while marks(&directory.bytes()) > 0 {
        wait(store.waiting());
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

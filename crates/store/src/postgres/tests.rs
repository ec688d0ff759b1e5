//! Tests of the store with a server of PostgreSQL, which they start.

use std::net::TcpListener;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;

use tandem_submit::store::{DAY, SpentToken};
use tandem_submit::submission::State;

use super::*;
use crate::conformance::{Place, SERVER, conformance, due, new, reply, wait, waiting};
use crate::test_database::Database;

/// The time limit of calls. A slow machine may need long, and no test waits for it.
const CALL_TIMEOUT: Duration = Duration::from_secs(300);

/// A schema for one test, in the database that the tests share.
struct Schema(String);

impl Schema {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self(format!("test_{}", NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    fn url(&self) -> String {
        database().url(&self.0)
    }

    /// Opens the store, which uses the clock of the server.
    fn store(&self) -> Postgres {
        patient(&self.url()).unwrap_or_else(|error| panic!("{error}"))
    }
}

fn database() -> &'static Database {
    static DATABASE: OnceLock<Database> = OnceLock::new();
    DATABASE.get_or_init(Database::start)
}

impl Place for Schema {
    fn open(&self) -> Arc<dyn Store> {
        let mut store = self.store();
        store.has_callers_clock = true;
        Arc::new(store)
    }

    fn sql(&self, statement: &str) {
        database().sql(&format!("SET search_path = {}; {statement}", self.0));
    }
}

conformance!(Schema::new());

/// Opens a store that waits for a slow machine.
fn patient(url: &str) -> Result<Postgres, OpenError> {
    Postgres::with_limits(url, (CALL_TIMEOUT, CALL_TIMEOUT))
}

fn problem(url: &str) -> String {
    let opened = patient(url);
    opened.map(drop).expect_err(url).to_string()
}

#[test]
fn postgres_leases_by_the_clock_of_the_server() {
    let schema = Schema::new();
    let (one, other) = (schema.store(), schema.store());
    for number in [1, 2] {
        wait(one.admit(NewSubmission {
            leased_until: DAY + if number == 1 { 600_000 } else { 0 },
            ..new(number)
        }));
    }
    // The clock of the other instance is ahead by many days.
    let claimed = wait(other.claim(due(99 * DAY, 99 * DAY + 600_000))).deliveries;
    assert_eq!(claimed.len(), 1);
    assert_eq!(claimed[0].id, new(2).id);
    // The age counts, in the time of the caller.
    assert!((98 * DAY..=99 * DAY).contains(&claimed[0].accepted));
    assert!(wait(one.claim(due(DAY, 2 * DAY))).deliveries.is_empty());
    // A clock that is behind does not keep a submission from being due.
    wait(other.postpone(claimed[0].lease(), 7 * DAY, 7 * DAY));
    assert_eq!(wait(one.claim(due(0, DAY))).deliveries.len(), 1);
}

#[test]
fn postgres_instances_share_submissions_and_answers() {
    let schema = Schema::new();
    let (one, other) = (schema.store(), schema.store());
    wait(one.admit(new(1)));
    assert!(matches!(wait(other.admit(new(1))), Admission::Known(_)));
    wait(one.answer(new(1).id, reply(201), DAY));
    match wait(other.admit(new(1))) {
        Admission::Known(record) => assert_eq!(record.answer, Some(reply(201))),
        admission => panic!("{admission:?}"),
    }
    assert_eq!(waiting(&other), 0);
}

#[test]
fn postgres_instances_create_the_tables_once() {
    let schema = Schema::new();
    let opened = std::thread::scope(|scope| {
        let threads = [(); 6].map(|()| scope.spawn(|| drop(schema.store())));
        threads.map(|thread| thread.join().is_ok())
    });
    assert_eq!(opened, [true; 6]);
}

#[test]
fn postgres_finds_its_own_submission_again() {
    let store = Schema::new().store();
    assert!(matches!(wait(store.admit(new(1))), Admission::Stored));
    // The call is repeated if its connection was lost, perhaps after the commit.
    let repeat = |new: NewSubmission| {
        let new = Arc::new(new);
        wait(store.call(move |client| {
            let new = Arc::clone(&new);
            Box::pin(async move { statements::admit(client, &new, None, true).await })
        }))
    };
    assert!(matches!(repeat(new(1)), Admission::Stored));
    let other = NewSubmission {
        id: new(2).id,
        ..new(1)
    };
    assert!(matches!(repeat(other), Admission::Known(_)));
    assert_eq!(waiting(&store), 1);
}

#[test]
fn postgres_drops_epochs_as_partitions() {
    let schema = Schema::new();
    let store = schema.store();
    let partitions = || {
        let query =
            "SELECT relname FROM pg_class JOIN pg_namespace ON relnamespace = pg_namespace.oid
             WHERE relkind = 'r' AND relispartition AND nspname = ";
        database().sql(&format!("{query} '{}' ORDER BY relname", schema.0))
    };
    for (number, epoch) in [(1, 7), (2, 8)] {
        let spent = Some(SpentToken {
            epoch,
            nonce: [1; 32],
        });
        let admission = wait(store.admit(NewSubmission {
            spent,
            ..new(number)
        }));
        assert!(matches!(admission, Admission::Stored));
    }
    assert_eq!(partitions(), "spent_7\nspent_8\n");
    wait(store.end_epochs(8));
    assert_eq!(partitions(), "spent_8\n");
}

#[test]
fn postgres_removes_many_submissions_in_parts() {
    let schema = Schema::new();
    let store = schema.store();
    assert_eq!(wait(store.forget(DAY, 0)), 0);
    let fill = format!(
        "INSERT INTO {0}.submissions (id, key, client, fingerprint, server, accepted, state, due,
             upload, size, ended)
         SELECT decode(lpad(to_hex(n), 32, '0'), 'hex'), decode(lpad(to_hex(n), 64, '0'), 'hex'),
             'client', '', '', 0, 2, 0, 0, 4096, 0 FROM generate_series(1, 2500) AS n;
         UPDATE {0}.totals SET size = 2500 * 4096 WHERE shard = 3",
        schema.0
    );
    database().sql(&fill);
    assert_eq!(wait(store.forget(DAY, 0)), 2500);
    assert_eq!(wait(store.waiting(SERVER.to_owned(), DAY)).stored, 0);
}

#[test]
fn postgres_calls_survive_a_restart() {
    let database = Database::start();
    let url = database.url("tandem");
    let store = patient(&url).expect("a store");
    wait(store.admit(new(1)));
    for mode in ["fast", "immediate"] {
        database.control(&["-m", mode, "restart"]);
        let record = wait(store.find(new(1).id)).expect("stored");
        assert_eq!(record.state, State::Accepted);
    }
    let impatient = Postgres::with_limits(&url, (CALL_TIMEOUT, Duration::from_millis(50)));
    let impatient = impatient.expect("a store");
    database.control(&["-m", "immediate", "stop"]);
    let answered = store.answer(new(1).id, reply(200), DAY);
    let problem = self::problem(&url);
    assert!(problem.contains("cannot be reached"), "{problem}");
    // The outage becomes too long for another store.
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let failed = runtime
        .expect("a runtime")
        .block_on(impatient.find(new(1).id));
    let problem = failed.map(drop).expect_err("no server").to_string();
    assert!(problem.contains("cannot be reached"), "{problem}");
    database.control(&["start"]);
    // The call began while there was no server.
    wait(answered);
    let record = wait(impatient.find(new(1).id)).expect("stored");
    assert_eq!(record.state, State::Answered);
    // A server that could lose submissions is refused.
    database.control(&["-m", "fast", "-o", "-c fsync=off", "restart"]);
    let problem = self::problem(&url);
    assert!(problem.contains("fsync = off"), "{problem}");
}

#[test]
fn postgres_reports_invalid_values_at_once() {
    let schema = Schema::new();
    let store = schema.store();
    wait(store.admit(new(1)));
    let table = format!("{}.submissions", schema.0);
    database().sql(&format!("ALTER TABLE {table} ALTER status TYPE text"));
    wait(store.answer(new(1).id, reply(200), DAY));
    // A repetition would last for minutes.
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let failed = runtime.expect("a runtime").block_on(store.find(new(1).id));
    let problem = failed.map(drop).expect_err("a text").to_string();
    assert!(problem.contains("not valid"), "{problem}");
}

#[test]
fn postgres_calls_end_without_an_answer() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("an address").port();
    let url = format!("postgres://a@127.0.0.1:{port}/b");
    let short = Duration::from_millis(50);
    let opened = Postgres::with_limits(&url, (short, short));
    let problem = opened.map(drop).expect_err("no answer").to_string();
    assert!(problem.contains("does not answer in time"), "{problem}");
}

#[test]
fn postgres_problems_name_the_remedy() {
    let database = database();
    let url = |user: &str, name: &str, schema: &str| {
        let host = database.directory().display();
        format!("postgres://{user}@/{name}?host={host}&schema={schema}")
    };
    database.sql(
        "CREATE ROLE poor LOGIN; CREATE ROLE guarded LOGIN PASSWORD 'hunter2';
         CREATE SCHEMA guarded AUTHORIZATION guarded;
         CREATE SCHEMA foreign_tables; CREATE TABLE foreign_tables.version (name text);
         CREATE SCHEMA newer; CREATE TABLE newer.version AS SELECT 9 AS number",
    );
    for (url, remedy) in [
        (url("nobody", "postgres", "x"), "refuses the user"),
        (url("tandem", "missing", "x"), "does not exist"),
        (url("poor", "postgres", "x"), "GRANT CREATE ON DATABASE"),
        (url("poor", "postgres", "guarded"), "lacks a right"),
        (url("tandem", "postgres", "foreign_tables"), "schema=NAME"),
        (url("tandem", "postgres", "newer"), "version 9"),
        (url("guarded", "postgres", "guarded"), "password"),
        (
            "postgres://a@/b?host=/nonexistent".to_owned(),
            "cannot be reached",
        ),
    ] {
        let problem = problem(&url);
        assert!(problem.contains(remedy), "{url}: {problem}");
    }
    let file = std::env::temp_dir().join(format!("tandem-password-{}", std::process::id()));
    let url = format!(
        "{}&password-file={}",
        url("guarded", "postgres", "guarded"),
        file.display()
    );
    assert!(problem(&url).contains("No such file"));
    for (password, is_right) in [("other", false), ("hunter2\n", true)] {
        std::fs::write(&file, password).expect("written");
        let opened = patient(&url).map(drop);
        let opened = opened.map_err(|error| error.to_string());
        match is_right {
            true => assert_eq!(opened, Ok(())),
            false => assert!(opened.is_err_and(|it| it.contains("password-file="))),
        }
    }
    std::fs::remove_file(&file).expect("removed");
}

/// Returns a port that was free a moment ago.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

#[test]
fn postgres_verifies_the_server() {
    let database = Database::start();
    let directory = database.directory().to_owned();
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]);
    let certified = certified.expect("a certificate");
    let (certificate, key) = (directory.join("cert.pem"), directory.join("key.pem"));
    std::fs::write(&certificate, certified.cert.pem()).expect("written");
    std::fs::write(&key, certified.signing_key.serialize_pem()).expect("written");
    database.own_private(&key);
    let port = free_port();
    let options = format!(
        "-c listen_addresses=127.0.0.1 -c port={port} -c ssl=on -c ssl_cert_file={} \
         -c ssl_key_file={}",
        certificate.display(),
        key.display()
    );
    database.control(&["-m", "fast", "-o", &options, "restart"]);
    let url = |host: &str, more: &str| format!("postgres://tandem@{host}:{port}/postgres?{more}");
    let trusted = format!("sslrootcert={}", certificate.display());
    let store = patient(&url("localhost", &trusted));
    let store = store.unwrap_or_else(|error| panic!("{error}"));
    assert!(matches!(wait(store.admit(new(1))), Admission::Stored));
    // The server accepts connections over TLS only.
    assert!(problem(&url("localhost", "sslmode=disable")).contains("refuses the user"));
    for untrusted in [
        url("localhost", "sslmode=verify-full"),
        url("127.0.0.1", &trusted),
    ] {
        let problem = problem(&untrusted);
        assert!(problem.contains("invalid peer certificate"), "{problem}");
    }
}

#[test]
fn postgres_takes_over_version_1() {
    let schema = Schema::new();
    let store = schema.open();
    wait(store.admit(new(1)));
    drop(store);
    // Version 1 has no batches in the tables.
    database().sql(&format!(
        "SET search_path = {}; SET client_min_messages = error;
         DROP FUNCTION release, admit;
         CREATE FUNCTION admit(moment bigint) RETURNS boolean LANGUAGE sql AS 'SELECT false';
         ALTER TABLE submissions DROP COLUMN collected;
         UPDATE version SET number = 1",
        schema.0
    ));
    let store = schema.open();
    assert_eq!(waiting(&*store), 1);
    let collected = NewSubmission {
        is_collected: true,
        ..new(2)
    };
    wait(store.admit(collected));
    let counted = wait(store.waiting(SERVER.to_owned(), DAY));
    assert_eq!((counted.here, counted.collected), (2, 1));
}

#[test]
fn postgres_releases_a_batch_by_one_gateway() {
    let schema = Schema::new();
    let stores = [(); 3].map(|()| schema.open());
    let rule = tandem_submit::batch::Rule {
        size: 20,
        least: 20,
        wait: DAY,
        longest: DAY,
    };
    let barrier = std::sync::Barrier::new(stores.len());
    // Each gateway gets a part of the submissions, and looks for a full batch all the time.
    let batches = std::thread::scope(|scope| {
        let parts = stores.iter().zip(0_u8..).map(|(store, gateway)| {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                let mut batches = Vec::new();
                for number in 0..80 {
                    wait(store.admit(NewSubmission {
                        leased_until: rule.due(DAY),
                        is_collected: true,
                        ..new(gateway * 80 + number)
                    }));
                    batches.push(wait(store.release(SERVER.to_owned(), rule, DAY)));
                }
                batches
            })
        });
        let parts: Vec<_> = parts.collect();
        let joined = parts
            .into_iter()
            .map(|part| part.join().expect("a gateway"));
        joined.flatten().filter(|it| *it > 0).collect::<Vec<u64>>()
    });
    assert!(batches.iter().all(|members| *members >= 20), "{batches:?}");
    let counted = wait(stores[0].waiting(SERVER.to_owned(), DAY));
    assert_eq!(batches.iter().sum::<u64>() + counted.collected, 240);
}

#[test]
fn postgres_failover_loses_no_submission() {
    let primary = Database::start();
    let standby = primary.start_standby();
    let (one, other) = (primary.directory().display(), standby.directory().display());
    let url = format!(
        "postgres://tandem@/postgres?host={one}&host={other}&target_session_attrs=read-write"
    );
    let store = patient(&url).unwrap_or_else(|error| panic!("{error}"));
    let (admitted, admissions) = std::sync::mpsc::channel();
    let (primary, standby) = (&primary, &standby);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // The primary crashes between two submissions or during one.
            for () in admissions.iter().take(20) {}
            primary.control(&["-m", "immediate", "stop"]);
            standby.control(&["promote"]);
        });
        for number in 0..60 {
            assert!(matches!(wait(store.admit(new(number))), Admission::Stored));
            // The other thread has stopped to listen.
            let _ = admitted.send(());
        }
    });
    for number in 0..60 {
        let record = wait(store.state(new(number).id)).expect("it was confirmed");
        assert_eq!(record.state, State::Accepted);
    }
    assert_eq!(waiting(&store), 60);
    let count = standby.sql("SELECT count(*) FROM tandem.submissions");
    assert_eq!(count.trim(), "60");
}

/// The statement is that of "Backup" in `docs/src/submissions.md`.
#[test]
fn postgres_refuses_earlier_tokens_after_a_restore() {
    let schema = Schema::new();
    let store = schema.store();
    // The partition of an epoch exists in the restored tables.
    crate::conformance::spends_a_token_of_today(&store);
    schema.sql("SELECT end_epochs(1 + floor(extract(epoch FROM now()) / 86400)::bigint)");
    crate::conformance::refuses_tokens_of_begun_keys(&store);
}

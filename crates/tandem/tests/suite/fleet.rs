//! Several gateways that share their knowledge through a server of Redis.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

use tandem::fleet::{FleetCounts, LOG_KEY};

use crate::certificates::Certificates;
use crate::harness::Scene;
use crate::learning::{COMMON, Gateway, asked, exchange, origin};
use crate::redis_server::{RedisServer, wait_for};

pub(crate) const KEY: &str = "the key of the test, which has 32 bytes or more";

/// A file that is removed at the end of the test.
pub(crate) struct KeyFile(pub(crate) PathBuf);

impl KeyFile {
    pub(crate) fn new(name: &str, key: &str) -> Self {
        let name = format!("tandem-key-{name}-{}", std::process::id());
        let file = std::env::temp_dir().join(name);
        std::fs::write(&file, key).unwrap();
        Self(file)
    }

    /// Starts a gateway with this key.
    fn gateway(&self, share: &str) -> Gateway {
        Gateway::start_with("h2", |options| {
            options.hold_out = Some(0.0);
            options.share = Some(share.to_owned());
            options.share_key = Some(self.0.clone());
        })
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

pub(crate) fn counts(gateway: &Gateway) -> &FleetCounts {
    gateway.services().fleet().expect("it shares").counts()
}

pub(crate) fn wait_until(event: &str, gateway: &Gateway, is_so: impl Fn(&FleetCounts) -> bool) {
    wait_for(event, || is_so(counts(gateway)).then_some(()));
}

/// Shows the predictor of a gateway the visits of this many users.
pub(crate) fn learn(teacher: &Gateway, origin: &Scene, users: usize) {
    let learned = teacher.services().predictor().expect("it predicts");
    let urls = COMMON
        .iter()
        .map(|path| origin.url(path))
        .collect::<Vec<_>>();
    static NEXT: AtomicU64 = AtomicU64::new(1 << 40);
    for _ in 0..users {
        let session = NEXT.fetch_add(1, Ordering::Relaxed);
        for url in &urls {
            learned.sending(&exchange(session, url, &urls[0]), None);
        }
        learned.session_closed(session);
    }
}

/// Teaches a gateway, and waits until the others know the lesson.
pub(crate) fn teach(teacher: &Gateway, others: &[&Gateway], origin: &Scene) {
    let before = counts(teacher).sent.value();
    learn(teacher, origin, 8);
    wait_until("sent", teacher, |counts| counts.sent.value() > before);
    others
        .iter()
        .for_each(|other| await_lesson(other, origin, 0.8));
}

/// Waits until a gateway knows that the page needs both scripts, with at least this probability.
pub(crate) fn await_lesson(gateway: &Gateway, origin: &Scene, least: f64) {
    let learned = gateway.services().predictor().expect("it predicts");
    wait_for("the lesson", || {
        let known = learned.resources(&origin.url("/page"));
        let is_sure = known.iter().all(|resource| resource.probability > least);
        (known.len() == 2 && is_sure).then_some(())
    });
}

fn assert_pushes(gateway: &Gateway, origin: &Scene, told: &mpsc::Receiver<String>) {
    let pushed = gateway.visit(origin, &["/page"], |it| asked(it, origin, told, 3));
    assert_eq!(pushed, ["/a.js", "/b.js", "/page"]);
}

/// Returns whether a gateway knows resources of the page. A visit would teach it that a browser
/// needs none.
pub(crate) fn knows(gateway: &Gateway, origin: &Scene) -> bool {
    let learned = gateway.services().predictor().expect("it predicts");
    !learned.resources(&origin.url("/page")).is_empty()
}

fn assert_pushes_nothing(gateway: &Gateway, origin: &Scene, told: &mpsc::Receiver<String>) {
    let asked_for = gateway.visit(origin, &["/page"], |it| asked(it, origin, told, 1));
    assert_eq!(asked_for, ["/page"]);
}

/// Returns the records in the log.
fn records(server: &RedisServer) -> Vec<Vec<u8>> {
    let reply: redis::streams::StreamRangeReply = redis::cmd("XRANGE")
        .arg(LOG_KEY)
        .arg(&["-", "+"])
        .query(&mut server.connection())
        .unwrap();
    let entries = reply.ids.iter().map(|entry| entry.get("r").unwrap());
    entries.collect()
}

pub(crate) fn append(server: &RedisServer, record: &[u8]) {
    let command = redis::cmd("XADD")
        .arg(LOG_KEY)
        .arg(&["*", "r"])
        .arg(record)
        .to_owned();
    let _: String = command.query(&mut server.connection()).unwrap();
}

#[test]
fn three_gateways_push_the_lessons_of_one() {
    let (server, key) = (RedisServer::start(), KeyFile::new("three", KEY));
    let gateways = [(); 3].map(|()| key.gateway(&server.url()));
    let (origin, told) = origin();
    assert!(!knows(&gateways[1], &origin));
    gateways[0].learn(&origin, &told, &[COMMON; 6]);
    gateways
        .iter()
        .for_each(|gateway| await_lesson(gateway, &origin, 0.8));
    for gateway in &gateways {
        assert_pushes(gateway, &origin, &told);
    }
    let host = origin.url("").replace("http://", "");
    for record in records(&server) {
        for name in [host.trim_end_matches('/'), "a.js", "page"] {
            let is_in_clear = record
                .windows(name.len())
                .any(|part| part == name.as_bytes());
            assert!(!is_in_clear, "{name}");
        }
    }
    let lifetime: i64 = redis::cmd("TTL")
        .arg(LOG_KEY)
        .query(&mut server.connection())
        .unwrap();
    assert!(
        (1..=24 * 60 * 60).contains(&lifetime),
        "the log expires: {lifetime}"
    );
}

#[test]
fn three_gateways_count_users_together() {
    let (server, key) = (RedisServer::start(), KeyFile::new("users", KEY));
    let gateways = [(); 3].map(|()| key.gateway(&server.url()));
    let (origin, told) = origin();
    for gateway in &gateways {
        learn(gateway, &origin, 1);
        assert!(!knows(gateway, &origin));
    }
    // Each gateway counts three users, and then gets the loads of the others.
    gateways
        .iter()
        .for_each(|gateway| await_lesson(gateway, &origin, 0.95));
    assert_pushes(&gateways[2], &origin, &told);
}

#[test]
fn later_gateway_learns_from_the_log() {
    let (server, key) = (RedisServer::start(), KeyFile::new("later", KEY));
    let (origin, told) = origin();
    let first = key.gateway(&server.url());
    teach(&first, &[], &origin);
    drop(first);
    let later = key.gateway(&server.url());
    await_lesson(&later, &origin, 0.8);
    assert_pushes(&later, &origin, &told);
}

#[test]
fn gateways_serve_without_the_engine() {
    let (mut server, key) = (RedisServer::start(), KeyFile::new("killed", KEY));
    let (one, other) = (key.gateway(&server.url()), key.gateway(&server.url()));
    for gateway in [&one, &other] {
        wait_until("the engine", gateway, FleetCounts::is_up);
    }
    server.kill();
    let (origin, told) = origin();
    learn(&one, &origin, 8);
    for gateway in [&one, &other] {
        wait_until("its end", gateway, |counts| !counts.is_up());
    }
    assert_pushes(&one, &origin, &told);
    assert!(!knows(&other, &origin));
    let problems = || other.services().journal().problems().concat();
    wait_for("the dashboard's problem", || {
        problems()
            .starts_with("the engine of --share cannot be used")
            .then_some(())
    });
    server.resume();
    await_lesson(&other, &origin, 0.8);
    assert_pushes(&other, &origin, &told);
    wait_until("the engine", &other, FleetCounts::is_up);
    wait_for("its end", || problems().is_empty().then_some(()));
}

#[test]
fn slow_engine_delays_no_request() {
    let (server, key) = (RedisServer::start(), KeyFile::new("slow", KEY));
    let (one, other) = (key.gateway(&server.url()), key.gateway(&server.url()));
    for gateway in [&one, &other] {
        wait_until("the engine", gateway, FleetCounts::is_up);
    }
    // The connections stay open, and the engine answers nothing.
    server.signal("-STOP");
    let (origin, told) = origin();
    learn(&one, &origin, 8);
    assert_pushes(&one, &origin, &told);
    assert_eq!(
        counts(&one).sent.value(),
        0,
        "no request has waited for the engine"
    );
    wait_until("a failure", &one, |counts| counts.failures.value() > 0);
    server.signal("-CONT");
    await_lesson(&other, &origin, 0.8);
    assert_pushes(&other, &origin, &told);
}

#[test]
fn silent_engine_delays_no_request() {
    let key = KeyFile::new("silent", KEY);
    let socket = std::env::temp_dir().join(format!("tandem-silent-{}", std::process::id()));
    let listener = UnixListener::bind(&socket).unwrap();
    let gateway = key.gateway(&format!("redis+unix://{}", socket.display()));
    let (connection, _) = listener.accept().unwrap();
    let (origin, told) = origin();
    learn(&gateway, &origin, 8);
    assert_pushes(&gateway, &origin, &told);
    assert!(!counts(&gateway).is_up() && counts(&gateway).sent.value() == 0);
    drop((connection, listener));
    std::fs::remove_file(socket).unwrap();
}

#[test]
fn forged_records_are_ignored_and_counted() {
    let (server, key) = (RedisServer::start(), KeyFile::new("forged", KEY));
    let (one, other) = (key.gateway(&server.url()), key.gateway(&server.url()));
    let (origin, _) = origin();
    teach(&one, &[&other], &origin);
    let genuine = records(&server).remove(0);
    let mut changed = genuine.clone();
    *changed.last_mut().unwrap() ^= 1;
    append(&server, &changed);
    append(&server, b"not a record");
    // A copy is ignored and not counted: a gateway repeats a record that was not confirmed.
    append(&server, &genuine);
    let _: String = redis::cmd("XADD")
        .arg(LOG_KEY)
        .arg(&["*", "another-field", "x"])
        .query(&mut server.connection())
        .unwrap();
    for gateway in [&one, &other] {
        wait_until("refused", gateway, |counts| counts.refused.value() == 3);
    }
    let received = counts(&one).received.value();
    teach(&other, &[], &origin);
    wait_until("received", &one, |counts| {
        counts.received.value() > received
    });
    assert_eq!(counts(&one).refused.value(), 3);
}

#[test]
fn reload_without_share_ends_the_sharing() {
    let (server, key) = (RedisServer::start(), KeyFile::new("reload", KEY));
    let gateway = key.gateway(&server.url());
    wait_until("the engine", &gateway, FleetCounts::is_up);
    let services = gateway.services();
    assert!(!services.fleet().expect("it shares").is_stopped());
    services.open_fleet(None, b"").unwrap();
    assert!(services.fleet().expect("it shared").is_stopped());
    wait_for("the end of its connection", || {
        let clients: String = redis::cmd("CLIENT")
            .arg("LIST")
            .query(&mut server.connection())
            .unwrap();
        (clients.lines().count() == 1).then_some(())
    });
}

#[test]
fn gateway_with_another_key_learns_nothing() {
    let server = RedisServer::start();
    let (key, wrong) = (
        KeyFile::new("right", KEY),
        KeyFile::new("wrong", "another key, which is long enough as well"),
    );
    let (one, stranger) = (key.gateway(&server.url()), wrong.gateway(&server.url()));
    let (origin, told) = origin();
    teach(&one, &[], &origin);
    wait_until("refused", &stranger, |counts| counts.refused.value() > 0);
    assert_eq!(counts(&stranger).received.value(), 0);
    assert_pushes_nothing(&stranger, &origin, &told);
}

#[test]
fn engine_is_verified_and_gets_the_password() {
    let (certificates, key) = (Certificates::new("engine"), KeyFile::new("tls", KEY));
    let (server, url) = RedisServer::start_with_tls(&certificates, "secret");
    let password = KeyFile::new("password", "secret\n");
    let url = format!("{url}&password-file={}", password.0.display());
    let (one, other) = (key.gateway(&url), key.gateway(&url));
    let (origin, _) = origin();
    teach(&one, &[&other], &origin);
    // An engine with a certificate of another authority is refused.
    let strangers = Certificates::new("stranger");
    let wrong = url.replace(&certificates.path("ca.pem"), &strangers.path("ca.pem"));
    let refusing = key.gateway(&wrong);
    wait_until("refused", &refusing, |counts| counts.failures.value() > 0);
    assert!(!counts(&refusing).is_up());
    drop(server);
}

//! Gateways with a shared cache that lend each other small responses through a server of Redis.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tandem::config::GatewayOptions;
use tandem::config::gateway::CacheOption;
use tandem::fleet::{FleetCounts, LOG_KEY, MAX_LENT};
use tandem::runtime::Running;

use crate::fleet::{KEY, KeyFile};
use crate::harness::{
    Asked, Client, Scene, block_on, endpoint, gateway_options, request, start_gateway,
};
use crate::redis_server::{RedisServer, wait_for};

/// The beginning of the keys of responses in the engine.
const RESPONSES: &str = "tandem:fleet:1:r:*";

/// A member of a fleet.
struct Member {
    address: SocketAddr,
    running: Option<Running>,
}

impl Member {
    fn counts(&self) -> &FleetCounts {
        let services = self.running.as_ref().unwrap().services();
        services.fleet().expect("it shares").counts()
    }

    fn wait_until(&self, event: &str, is_so: impl Fn(&FleetCounts) -> bool) {
        wait_for(event, || is_so(self.counts()).then_some(()));
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            block_on(running.drain(Duration::ZERO));
        }
    }
}

/// Gateways in front of an origin that counts its requests.
pub(crate) struct Fleet {
    server: RedisServer,
    /// The address of the server for the gateways.
    url: String,
    key: KeyFile,
    origin: Scene,
    requests: Arc<AtomicUsize>,
    members: Vec<Member>,
    is_reverse: bool,
}

impl Fleet {
    /// Starts three reverse gateways. `answer` makes the response to each request, which has a
    /// number from 1.
    fn start(name: &str, answer: impl Fn(usize, &Asked) -> String + Send + Sync + 'static) -> Self {
        let mut fleet = Self::empty(name, answer);
        (0..3).for_each(|_| fleet.add(|_| {}));
        fleet
    }

    pub(crate) fn empty(
        name: &str,
        answer: impl Fn(usize, &Asked) -> String + Send + Sync + 'static,
    ) -> Self {
        let requests = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&requests);
        let origin = Scene::new(move |_, mut client| {
            while let Some(asked) = client.request() {
                if let Some(length) = asked.field("content-length") {
                    client.read_exact(length.parse().unwrap());
                }
                let number = count.fetch_add(1, Ordering::SeqCst) + 1;
                client.send(answer(number, &asked));
            }
        });
        let server = RedisServer::start();
        Self {
            url: server.url(),
            server,
            key: KeyFile::new(name, KEY),
            origin,
            requests,
            members: Vec::new(),
            is_reverse: true,
        }
    }

    /// Uses another server, which the gateways reach at `url`.
    pub(crate) fn replace_server(&mut self, server: RedisServer, url: String) {
        (self.server, self.url) = (server, url);
    }

    /// The socket of the server.
    pub(crate) fn socket(&self) -> std::path::PathBuf {
        self.server.socket()
    }

    /// Waits for an event at a gateway.
    pub(crate) fn wait_until(
        &self,
        member: usize,
        event: &str,
        is_so: impl Fn(&FleetCounts) -> bool,
    ) {
        self.members[member].wait_until(event, is_so);
    }

    /// Returns the options of a gateway, with a change.
    fn options(&self, change: impl FnOnce(&mut GatewayOptions)) -> GatewayOptions {
        let mut options = gateway_options();
        options.listen = vec![endpoint("http+tcp://127.0.0.1:0")];
        options.cache = Some(CacheOption::Shared);
        options.share = Some(self.url.clone());
        options.share_key = Some(self.key.0.clone());
        if self.is_reverse {
            let mode = format!("reverse=http://{}", self.origin.address);
            options.mode = Some(mode.parse().unwrap());
        }
        change(&mut options);
        options
    }

    /// Adds a gateway with changed options.
    pub(crate) fn add(&mut self, change: impl FnOnce(&mut GatewayOptions)) {
        let (running, address) = start_gateway(self.options(change));
        let member = Member {
            address,
            running: Some(running),
        };
        member.wait_until("the engine", FleetCounts::is_up);
        self.members.push(member);
    }

    pub(crate) fn send(&self, member: usize, method: &str, path: &str, fields: &str) -> String {
        let mut client = Client::to(self.members[member].address);
        client.send(request(method, &self.origin.url(path), fields));
        String::from_utf8(client.answer(method).body).unwrap()
    }

    pub(crate) fn get(&self, member: usize, path: &str) -> String {
        self.send(member, "GET", path, "Sec-Fetch-Site: none\r\n")
    }

    pub(crate) fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    /// Requests a URL, and waits until the response is in the engine.
    fn lend(&self, member: usize, path: &str) -> String {
        let before = self.members[member].counts().lent.value();
        let body = self.get(member, path);
        self.members[member].wait_until("lent", |counts| counts.lent.value() > before);
        body
    }

    /// Requests URLs, and returns how many of them the gateway served without a request to the
    /// origin. A busy machine may delay an answer of the engine beyond the patience of a request.
    pub(crate) fn borrow(&self, member: usize, paths: &[String]) -> usize {
        let is_borrowed = |path: &&String| {
            let before = self.requests();
            assert_eq!(self.get(member, path), **path);
            self.requests() == before
        };
        paths.iter().filter(is_borrowed).count()
    }

    pub(crate) fn keys(&self) -> Vec<String> {
        let mut command = redis::cmd("KEYS");
        let keys = command.arg(RESPONSES);
        keys.query(&mut self.server.connection()).unwrap()
    }

    fn value(&self, key: &str) -> Vec<u8> {
        let mut command = redis::cmd("GET");
        let value = command.arg(key);
        value.query(&mut self.server.connection()).unwrap()
    }

    fn set(&self, key: &str, value: &[u8]) {
        let mut command = redis::cmd("SET");
        let command = command.arg(key).arg(value).arg("KEEPTTL");
        let _: String = command.query(&mut self.server.connection()).unwrap();
    }

    /// Waits until each gateway has looked at the engine twice more.
    pub(crate) fn wait_for_looks(&self) {
        let looks = || {
            let stats: String = redis::cmd("INFO")
                .arg("commandstats")
                .query(&mut self.server.connection())
                .unwrap();
            let line = stats
                .lines()
                .find(|line| line.starts_with("cmdstat_xread:"));
            let calls = line.and_then(|line| line.split(['=', ',']).nth(1));
            calls.map_or(0, |calls| calls.parse::<usize>().unwrap())
        };
        // A look is one command for the log and one for the invalidations.
        let enough = looks() + 3 * 2 * self.members.len();
        wait_for("looks", || (looks() >= enough).then_some(()));
    }
}

/// A response that may be stored for a day.
fn fresh(body: &str) -> String {
    with_fields("Cache-Control: max-age=86400\r\n", body)
}

fn with_fields(fields: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: {length}\r\n\r\n{body}")
}

/// Paths that an origin answers with the path itself.
pub(crate) fn paths(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("/{number}")).collect()
}

fn path_of(asked: &Asked) -> &str {
    let target = asked.line.split(' ').nth(1).unwrap();
    let target = target.strip_prefix("http://").unwrap_or(target);
    &target[target.find('/').unwrap()..]
}

pub(crate) fn echo(_: usize, asked: &Asked) -> String {
    fresh(path_of(asked))
}

#[test]
fn three_gateways_serve_the_responses_of_one() {
    let fleet = Fleet::start("lend", echo);
    let paths = paths(40);
    paths.iter().for_each(|path| drop(fleet.get(0, path)));
    fleet.members[0].wait_until("lent", |counts| counts.lent.value() == 40);
    assert!(fleet.borrow(1, &paths) > 0 && fleet.borrow(2, &paths) > 0);
    let keys = fleet.keys();
    assert_eq!(keys.len(), 40);
    let host = fleet.origin.address.to_string();
    for key in &keys {
        let value = fleet.value(key);
        assert!(
            !value
                .windows(host.len())
                .any(|part| part == host.as_bytes())
        );
        assert!(!value.windows(7).any(|part| part == b"max-age"));
        let mut lifetime = redis::cmd("TTL");
        let lifetime: u64 = lifetime
            .arg(key)
            .query(&mut fleet.server.connection())
            .unwrap();
        assert!((1..=MAX_LENT).contains(&lifetime), "{lifetime}");
    }
}

#[test]
fn responses_leave_once_enough_users_know_them() {
    let mut fleet = Fleet::empty("crowd", echo);
    fleet.is_reverse = false;
    for _ in 0..3 {
        fleet.add(|options| options.cache_users = Some(2));
    }
    // Behind a loopback address, each session is a user.
    let paths = paths(20);
    paths.iter().for_each(|path| drop(fleet.get(0, path)));
    fleet.members[1].wait_until("reports", |counts| counts.received.value() > 0);
    fleet.wait_for_looks();
    assert!(fleet.keys().is_empty(), "one user knows them");
    assert_eq!(fleet.borrow(2, &paths[..1]), 0);
    // With the users of the other gateways, each response is known to four.
    for member in [1, 1, 2] {
        paths[1..]
            .iter()
            .for_each(|path| drop(fleet.get(member, path)));
    }
    wait_for("responses in the engine", || {
        (fleet.keys().len() >= 19).then_some(())
    });
    fleet.add(|options| options.cache_users = Some(2));
    assert!(fleet.borrow(3, &paths[1..]) > 0);
}

#[test]
fn private_cache_lends_nothing() {
    let mut fleet = Fleet::empty("private", echo);
    fleet.is_reverse = false;
    for _ in 0..2 {
        fleet.add(|options| {
            options.cache = Some(CacheOption::Private);
            options.cache_users = Some(1);
        });
    }
    let mut shared = Fleet::empty("shared", echo);
    shared.add(|_| {});
    let paths = paths(4);
    paths.iter().for_each(|path| drop(fleet.get(0, path)));
    // A gateway that lends does so within this time.
    shared.lend(0, "/a");
    assert!(fleet.keys().is_empty());
    assert_eq!(fleet.borrow(1, &paths), 0);
}

#[test]
fn response_for_one_user_never_reaches_the_engine() {
    let fleet = Fleet::start("personal", |_, asked| {
        let fields = match path_of(asked) {
            "/cookie" => "Cache-Control: public, max-age=600\r\nSet-Cookie: a=b\r\n",
            "/private" => "Cache-Control: private, max-age=600\r\n",
            _ => "Cache-Control: public, max-age=600\r\n",
        };
        with_fields(
            fields,
            &"x".repeat(if asked.line.contains("long") {
                70_000
            } else {
                9
            }),
        )
    });
    for path in ["/cookie", "/private", "/long"] {
        fleet.get(0, path);
    }
    let login = "Sec-Fetch-Site: none\r\nAuthorization: Basic eA==\r\n";
    fleet.send(0, "GET", "/login", login);
    fleet.lend(0, "/common");
    assert_eq!(fleet.keys().len(), 1);
}

#[test]
fn forged_responses_serve_nobody() {
    let fleet = Fleet::start("forged-response", echo);
    let paths = paths(4);
    paths.iter().for_each(|path| drop(fleet.get(0, path)));
    fleet.members[0].wait_until("lent", |counts| counts.lent.value() == 4);
    let keys = fleet.keys();
    let values: Vec<_> = keys.iter().map(|key| fleet.value(key)).collect();
    // The responses of two URLs change places, one is changed, and one is no response.
    fleet.set(&keys[0], &values[1]);
    fleet.set(&keys[1], &values[0]);
    let mut changed = values[2].clone();
    *changed.last_mut().unwrap() ^= 1;
    fleet.set(&keys[2], &changed);
    fleet.set(&keys[3], &vec![b'x'; 9 << 20]);
    assert_eq!(fleet.borrow(1, &paths), 0);
    // A look is cut off, so a long value does not end the connection.
    assert_eq!(fleet.members[1].counts().failures.value(), 0);
}

#[test]
fn gateways_with_other_keys_share_no_response() {
    let mut fleet = Fleet::empty("strangers", echo);
    let wrong = KeyFile::new(
        "other-responses",
        "another key, which is long enough as well",
    );
    fleet.add(|_| {});
    fleet.add(|options| options.share_key = Some(wrong.0.clone()));
    fleet.add(|options| options.allow_dest.push("10.0.0.0/8".parse().unwrap()));
    fleet.add(|options| options.share_memory = Some("0".parse().unwrap()));
    let paths = paths(8);
    paths.iter().for_each(|path| drop(fleet.get(0, path)));
    fleet.members[0].wait_until("lent", |counts| counts.lent.value() == 8);
    for member in 1..4 {
        assert_eq!(fleet.borrow(member, &paths), 0, "{member}");
    }
}

#[test]
fn gateways_serve_without_an_engine_for_responses() {
    let mut fleet = Fleet::start("stopped", echo);
    let paths = paths(80);
    paths.iter().for_each(|path| drop(fleet.get(0, path)));
    // All are lent, so that none is lost while the engine is away.
    fleet.members[0].wait_until("lent", |counts| counts.lent.value() >= 80);
    // The connections stay open, and the engine answers nothing.
    fleet.server.signal("-STOP");
    assert_eq!(fleet.borrow(1, &paths), 0);
    fleet.server.signal("-CONT");
    fleet.server.kill();
    assert_eq!(fleet.borrow(2, &paths), 0);
    fleet.server.resume();
    let more: Vec<_> = paths.iter().map(|path| format!("/again{path}")).collect();
    for member in &fleet.members {
        member.wait_until("the engine", |counts| {
            counts.failures.value() > 0 && counts.is_up()
        });
    }
    more.iter().for_each(|path| drop(fleet.get(0, path)));
    fleet.members[0].wait_until("lent", |counts| counts.lent.value() >= 160);
    fleet.add(|_| {});
    assert!(fleet.borrow(3, &more) > 0);
}

#[test]
fn unsafe_request_invalidates_at_all_gateways() {
    let fleet = Fleet::start("unsafe", |number, _| fresh(&number.to_string()));
    assert_eq!(fleet.lend(0, "/page"), "1");
    fleet.get(1, "/page");
    fleet.send(2, "POST", "/page", "Content-Length: 0\r\n");
    let last = fleet.requests();
    for member in &fleet.members[..2] {
        member.wait_until("an invalidation", |counts| counts.invalidated.value() > 0);
    }
    assert!(fleet.keys().is_empty());
    assert_eq!(fleet.get(1, "/page"), (last + 1).to_string());
    assert!(fleet.get(0, "/page").parse::<usize>().unwrap() > last);
}

#[test]
fn reload_without_share_ends_the_lending() {
    let mut fleet = Fleet::start("reload-lending", echo);
    let paths = paths(20);
    paths.iter().for_each(|path| drop(fleet.get(0, path)));
    fleet.members[0].wait_until("lent", |counts| counts.lent.value() == 20);
    let changed = fleet.options(|options| options.share_memory = Some("1MiB".parse().unwrap()));
    let alone = fleet.options(|options| {
        options.share = None;
        options.share_key = None;
    });
    let mut reload = |member: usize, options: GatewayOptions| {
        let running = fleet.members[member].running.as_mut().unwrap();
        block_on(running.reload(Arc::new(options.typed().unwrap()))).unwrap();
        running.services().fleet().expect("it shared").is_stopped()
    };
    assert!(reload(1, alone));
    assert!(!reload(2, changed), "other changes need a restart");
    assert_eq!(fleet.borrow(1, &paths), 0);
    assert!(fleet.borrow(2, &paths) > 0);
}

#[test]
fn engine_holds_a_bounded_number_of_bytes() {
    let mut fleet = Fleet::empty("bound", |_, asked| {
        with_fields(
            "Cache-Control: max-age=600\r\n",
            &format!("{:8000}", path_of(asked)),
        )
    });
    fleet.add(|options| options.share_memory = Some("40KiB".parse().unwrap()));
    for path in paths(3) {
        for number in 0..4 {
            fleet.get(0, &format!("/{number}{path}"));
        }
        fleet.wait_for_looks();
        let bytes: usize = fleet.keys().iter().map(|key| fleet.value(key).len()).sum();
        assert!((8000..40_960).contains(&bytes), "{bytes}");
    }
    assert_eq!(fleet.keys().len(), 4, "each has a bit more than 8 KiB");
}

#[test]
fn full_engine_keeps_the_log() {
    let mut fleet = Fleet::empty("full", |_, asked| {
        with_fields(
            "Cache-Control: max-age=600\r\n",
            &format!("{:60000}", path_of(asked)),
        )
    });
    fleet.add(|_| {});
    fleet.lend(0, "/first");
    let used: String = redis::cmd("INFO")
        .arg("memory")
        .query(&mut fleet.server.connection())
        .unwrap();
    let used = used
        .lines()
        .find_map(|line| line.strip_prefix("used_memory:"));
    let bound = used.unwrap().parse::<usize>().unwrap() + (1 << 20);
    for (name, value) in [
        ("maxmemory", bound.to_string()),
        ("maxmemory-policy", "volatile-ttl".to_owned()),
    ] {
        let mut command = redis::cmd("CONFIG");
        let command = command.arg("SET").arg(name).arg(value);
        let _: String = command.query(&mut fleet.server.connection()).unwrap();
    }
    let _: String = redis::cmd("XADD")
        .arg(LOG_KEY)
        .arg(&["*", "r", "x"])
        .query(&mut fleet.server.connection())
        .unwrap();
    let _: bool = redis::cmd("EXPIRE")
        .arg(LOG_KEY)
        .arg(86_400)
        .query(&mut fleet.server.connection())
        .unwrap();
    paths(60).iter().for_each(|path| drop(fleet.get(0, path)));
    fleet.members[0].wait_until("lent", |counts| counts.lent.value() == 61);
    assert!(fleet.keys().len() < 40, "the engine has dropped responses");
    let length: usize = redis::cmd("XLEN")
        .arg(LOG_KEY)
        .query(&mut fleet.server.connection())
        .unwrap();
    assert!(length > 0 && fleet.members[0].counts().failures.value() == 0);
}

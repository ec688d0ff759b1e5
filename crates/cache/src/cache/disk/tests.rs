//! Tests of a cache with a disk that is a map, in virtual time.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher as _};

use bytes::Bytes;
use tandem_http::{Method, RequestHead, ResponseHead, Scheme};

use super::super::{Config, Lookup, Received};
use super::*;
use crate::Key;
use crate::Sharing;
use crate::store::Group;

const UNIX: u64 = 784_111_777;
const FRESH: (&str, &str) = ("cache-control", "max-age=600");

/// A gateway with its files.
struct Gateway {
    cache: Cache<()>,
    config: Config,
    files: HashMap<Name, Bytes>,
    seconds: u64,
    /// The time of the start.
    began: u64,
}

fn namer() -> Namer {
    Namer::new(|target| {
        let mut hasher = DefaultHasher::new();
        hasher.write(target);
        let hash = hasher.finish();
        (u128::from(hash) << 64 | u128::from(hash)).to_be_bytes()
    })
}

fn get(path: &str, fields: &[(&str, &str)]) -> RequestHead {
    RequestHead {
        fields: fields.iter().copied().collect(),
        ..RequestHead::get(Scheme::Http, "h", path)
    }
}

fn key(owner: u64, request: &RequestHead) -> Key {
    Key::new(owner, b"", request, false).expect("a plain request")
}

impl Gateway {
    fn new(sharing: Sharing, min_users: u8) -> Self {
        let config = Config {
            sharing,
            memory: 1 << 20,
            min_users,
        };
        let mut gateway = Self {
            cache: Cache::new(config.clone()),
            config,
            files: HashMap::new(),
            seconds: 1,
            began: 0,
        };
        gateway.open();
        gateway
    }

    fn origin() -> Self {
        Self::new(Sharing::Origin, 1)
    }

    fn open(&mut self) {
        let mut index = Index::new(1 << 20);
        for (name, file) in &self.files {
            index.insert(*name, file.len() as u64);
        }
        let now = self.now();
        self.cache.open_disk(now, index, namer());
        self.seconds += 1;
    }

    /// Ends the process and starts another one.
    fn restart(&mut self, min_users: u8) {
        self.seconds += 5;
        self.began = self.seconds;
        self.config.min_users = min_users;
        self.cache = Cache::new(self.config.clone());
        self.open();
    }

    /// Evicts everything from memory.
    fn evict(&mut self) {
        self.cache.store.clear();
    }

    fn now(&self) -> Now {
        Now {
            elapsed: Duration::from_secs(self.seconds - self.began),
            unix: Some(UNIX + self.seconds),
        }
    }

    fn lookup(&mut self, owner: u64, user: u64, request: &RequestHead) -> Lookup<()> {
        let (now, key) = (self.now(), key(owner, request));
        let group = Group::Origin("h".into());
        self.cache.lookup(now, &key, group, user, request, None)
    }

    fn fetch(&mut self, user: u64, request: &RequestHead) -> Box<Fetch> {
        match self.lookup(0, user, request) {
            Lookup::Fetch(fetch, _) => fetch,
            other => panic!("{other:?}"),
        }
    }

    fn receive(&mut self, fetch: &Fetch, fields: &[(&str, &str)], body: &'static str) {
        let head = ResponseHead {
            fields: fields.iter().copied().collect(),
            ..ResponseHead::new(200)
        };
        let received = self.cache.receive(self.now(), fetch, &head);
        self.cache.end_flight(fetch);
        if let Received::Store(pending) = received {
            let body = vec![Bytes::from_static(body.as_bytes())];
            self.cache.finish(*pending, body, None);
        }
    }

    /// Fetches a response from the origin.
    fn store(&mut self, user: u64, request: &RequestHead, fields: &[(&str, &str)]) {
        let fetch = self.fetch(user, request);
        self.receive(&fetch, fields, "body");
    }

    /// Deletes and writes files, as the program does. Returns the number of files written.
    fn work(&mut self) -> usize {
        let mut count = 0;
        for name in self.doomed() {
            self.files.remove(&name);
        }
        while let Some(outgoing) = self.cache.take_write(self.now()) {
            self.write(&outgoing);
            count += 1;
        }
        count
    }

    fn doomed(&mut self) -> Vec<Name> {
        self.cache.disk_mut().expect("a disk").take_doomed(99)
    }

    fn write(&mut self, outgoing: &Outgoing) {
        let bytes = Bytes::from(outgoing.write(self.now()).expect("a clock"));
        let length = bytes.len() as u64;
        self.files.insert(outgoing.name, bytes);
        let index = self.cache.disk_mut().expect("a disk");
        if !index.finish(outgoing.name, length) {
            self.files.remove(&outgoing.name);
        }
    }

    /// Returns the body that the gateway serves without its origin.
    fn served(&mut self, user: u64, request: &RequestHead) -> Option<String> {
        let fetch = match self.lookup(0, user, request) {
            Lookup::Hit(stored) => return Some(text(&stored)),
            Lookup::Fetch(fetch, _) => fetch,
            other => panic!("{other:?}"),
        };
        let found = self.cache.on_disk(self.now(), &fetch)?;
        let file = self.files.get(&found.name)?.clone();
        let incoming = Incoming::read_from_disk(&file)?;
        let is_adopted = self
            .cache
            .adopt_from_disk(self.now(), &fetch, found, incoming);
        self.cache.end_flight(&fetch);
        match self.lookup(0, user, request) {
            Lookup::Hit(stored) if is_adopted => Some(text(&stored)),
            other => {
                assert!(!is_adopted, "{other:?}");
                None
            }
        }
    }

    fn post(&mut self, request: &RequestHead) {
        let (now, key) = (self.now(), key(0, request));
        let response = ResponseHead::new(200);
        let keys = std::slice::from_ref(&key);
        self.cache.invalidate(now, &Method::Post, &response, keys);
    }
}

fn text(stored: &crate::Stored) -> String {
    let bytes: Vec<u8> = stored.body.slice(0, stored.body.len()).flatten().collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn disk_serves_after_eviction_and_after_a_restart() {
    let mut gateway = Gateway::origin();
    let request = get("/", &[]);
    gateway.store(1, &request, &[FRESH]);
    assert_eq!(gateway.work(), 1);
    gateway.evict();
    assert_eq!(gateway.served(2, &request).as_deref(), Some("body"));
    assert_eq!(gateway.work(), 0, "the file is the same");
    gateway.restart(1);
    gateway.seconds += 100;
    assert_eq!(gateway.served(3, &request).as_deref(), Some("body"));
    let Lookup::Hit(stored) = gateway.lookup(0, 3, &request) else {
        panic!("a hit in memory");
    };
    let age = stored.age(gateway.now()).as_secs();
    assert!((105..=108).contains(&age), "{age}");
    gateway.restart(1);
    gateway.seconds += 600;
    assert_eq!(gateway.served(1, &request), None, "it is stale");
    gateway.work();
    assert!(gateway.files.is_empty(), "its file is of no use");
}

#[test]
fn disk_holds_no_response_of_one_user() {
    let mut gateway = Gateway::new(Sharing::Shared, 1);
    for (asked, fields) in [
        (&[][..], &[FRESH, ("set-cookie", "a=b")][..]),
        (
            &[],
            &[
                ("cache-control", "public, max-age=600"),
                ("set-cookie", "a=b"),
            ],
        ),
        (&[], &[("cache-control", "private, max-age=600")]),
        (&[], &[("cache-control", "no-cache, max-age=600")]),
        (&[], &[FRESH, ("vary", "Api-Key")]),
        (&[("cookie", "a=b")], &[FRESH]),
        (&[("authorization", "a")], &[FRESH]),
        (
            &[("authorization", "a")],
            &[("cache-control", "public, max-age=600")],
        ),
        (&[("x-forwarded-host", "evil")], &[FRESH]),
        (&[], &[("cache-control", "max-age=50")]),
    ] {
        gateway.store(1, &get("/", asked), fields);
        assert_eq!(gateway.work(), 0, "{asked:?} {fields:?}");
        gateway.cache.clear(gateway.now());
        gateway.seconds += 1;
    }
    gateway.store(1, &get("/", &[]), &[FRESH]);
    assert_eq!(gateway.work(), 1);
    // Responses over TLS have an owner in a shared cache.
    let request = get("/own", &[]);
    let Lookup::Fetch(fetch, _) = gateway.lookup(7, 1, &request) else {
        panic!("nothing is stored");
    };
    gateway.receive(&fetch, &[FRESH], "own");
    assert_eq!(gateway.work(), 0);
}

#[test]
fn private_cache_has_no_disk() {
    let gateway = Gateway::new(Sharing::Private, 1);
    assert!(gateway.cache.disk().is_none());
}

#[test]
fn restart_shows_a_response_to_nobody_else() {
    let request = get("/", &[]);
    let mut gateway = Gateway::new(Sharing::Shared, 2);
    let needed = gateway
        .cache
        .needed(&key(0, &request), gateway.cache.name(&key(0, &request)));
    for user in 1..u64::from(needed) {
        gateway.store(user, &request, &[FRESH]);
        assert_eq!(gateway.work(), 0, "{user} of {needed} users know it");
    }
    gateway.restart(2);
    assert_eq!(gateway.served(1, &request), None);
    for user in 1..=u64::from(needed) {
        gateway.store(user, &request, &[FRESH]);
    }
    assert_eq!(gateway.work(), 1);
    assert!(gateway.served(99, &request).is_some(), "all users may know");
    let files = gateway.files.clone();
    gateway.restart(2);
    assert!(gateway.served(98, &request).is_some());
    // A stricter rule holds for old files too.
    gateway.files = files;
    gateway.restart(4);
    let stricter = gateway
        .cache
        .needed(&key(0, &request), gateway.cache.name(&key(0, &request)));
    assert!(stricter > needed);
    assert_eq!(gateway.served(99, &request), None);
}

#[test]
fn invalidated_response_never_returns_from_the_disk() {
    let request = get("/", &[]);
    for is_evicted in [false, true] {
        let mut gateway = Gateway::origin();
        gateway.store(1, &request, &[FRESH]);
        gateway.work();
        if is_evicted {
            gateway.evict();
        }
        gateway.seconds += 9;
        gateway.post(&request);
        assert_eq!(gateway.served(1, &request), None);
        gateway.work();
        assert!(gateway.files.is_empty());
    }
    // The change comes while the file is read.
    let mut gateway = Gateway::origin();
    gateway.store(1, &request, &[FRESH]);
    gateway.work();
    gateway.evict();
    let fetch = gateway.fetch(1, &request);
    let found = gateway.cache.on_disk(gateway.now(), &fetch).expect("held");
    let incoming = Incoming::read_from_disk(&gateway.files[&found.name]).expect("a response");
    gateway.post(&request);
    let now = gateway.now();
    assert!(!gateway.cache.adopt_from_disk(now, &fetch, found, incoming));
    // The change comes while the file is written.
    let mut gateway = Gateway::origin();
    gateway.store(1, &request, &[FRESH]);
    let outgoing = gateway.cache.take_write(gateway.now()).expect("due");
    gateway.post(&request);
    gateway.write(&outgoing);
    assert!(gateway.files.is_empty() && gateway.served(1, &request).is_none());
}

#[test]
fn newer_response_replaces_the_file() {
    let mut gateway = Gateway::origin();
    let (request, again) = (get("/", &[]), get("/", &[("cache-control", "no-cache")]));
    gateway.store(1, &request, &[FRESH]);
    gateway.work();
    let fetch = gateway.fetch(1, &again);
    gateway.receive(&fetch, &[FRESH], "newer");
    gateway.evict();
    assert_eq!(gateway.served(1, &request), None, "the file is older");
    let fetch = gateway.fetch(1, &again);
    gateway.receive(&fetch, &[FRESH], "newest");
    assert_eq!(gateway.work(), 1);
    gateway.restart(1);
    assert_eq!(gateway.served(1, &request).as_deref(), Some("newest"));
    gateway.cache.clear(gateway.now());
    gateway.work();
    assert!(gateway.files.is_empty(), "a reload empties the disk");
}

#[test]
fn file_serves_the_variant_that_it_holds() {
    let mut gateway = Gateway::origin();
    let (html, json) = (
        get("/", &[("accept", "text/html")]),
        get("/", &[("accept", "json")]),
    );
    gateway.store(1, &html, &[FRESH, ("vary", "Accept")]);
    gateway.work();
    gateway.restart(1);
    assert_eq!(gateway.served(1, &json), None);
    gateway.restart(1);
    assert!(gateway.served(1, &html).is_some());
}

#[test]
fn index_moves_to_the_next_cache_without_content() {
    let mut gateway = Gateway::origin();
    let request = get("/", &[]);
    gateway.store(1, &request, &[FRESH]);
    gateway.work();
    let mut next = Cache::new(gateway.config.clone());
    next.inherit(gateway.now(), &mut gateway.cache);
    assert!(gateway.cache.disk().is_none());
    gateway.cache = next;
    assert_eq!(gateway.served(1, &request), None);
    gateway.work();
    assert!(gateway.files.is_empty());
}

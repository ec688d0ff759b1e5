//! Tests of caches that share, in virtual time.

use std::hash::DefaultHasher;
use std::hash::Hasher as _;
use std::time::Duration;

use bytes::Bytes;
use tandem_http::{ResponseHead, Scheme};

use super::super::{Config, Lookup, Received};
use super::*;
use crate::Sharing;
use crate::store::Group;

const UNIX: u64 = 784_111_777;

/// The hash of gateways with the same key.
fn namer() -> Namer {
    Namer::new(|target| {
        let mut hasher = DefaultHasher::new();
        hasher.write(target);
        let hash = hasher.finish();
        (u128::from(hash) << 64 | u128::from(hash)).to_be_bytes()
    })
}

/// A cache of one gateway.
struct Gateway {
    cache: Cache<()>,
    seconds: u64,
}

impl Gateway {
    fn new(sharing: Sharing, min_users: u8) -> Self {
        let config = Config {
            sharing,
            memory: 1 << 20,
            min_users,
        };
        let mut cache = Cache::new(config);
        let now = Now {
            elapsed: Duration::ZERO,
            unix: Some(UNIX),
        };
        cache.join_fleet(now, Some(namer()));
        Self { cache, seconds: 1 }
    }

    fn now(&self) -> Now {
        Now {
            elapsed: Duration::from_secs(self.seconds),
            unix: Some(UNIX + self.seconds),
        }
    }

    fn lookup(&mut self, owner: u64, user: u64, request: &RequestHead) -> Lookup<()> {
        let key = Key::new(owner, b"", request, false).expect("a plain request");
        let group = Group::Origin("h".into());
        self.cache
            .lookup(self.now(), &key, group, user, request, None)
    }

    /// Requests a URL. The origin, if the request reaches it, sends this response.
    fn get(&mut self, owner: u64, user: u64, request: &RequestHead, head: &ResponseHead) -> bool {
        let Lookup::Fetch(fetch, _) = self.lookup(owner, user, request) else {
            return true;
        };
        if let Received::Store(pending) = self.cache.receive(self.now(), &fetch, head) {
            let body = vec![Bytes::from_static(b"body")];
            self.cache.finish(*pending, body, None);
        }
        false
    }

    fn due(&mut self) -> Vec<Outgoing> {
        self.cache.take_due(self.now(), 1 << 20)
    }

    /// Lends the one response that is due.
    fn lend(&mut self) -> Incoming {
        let due = self.due();
        assert_eq!(due.len(), 1);
        incoming(&due[0], self.now())
    }

    /// Adopts a response for a new request, and returns whether it serves this request.
    fn adopt(&mut self, user: u64, request: &RequestHead, incoming: Incoming) -> bool {
        let Lookup::Fetch(fetch, _) = self.lookup(0, user, request) else {
            panic!("the response is stored already");
        };
        self.cache.note_heard(self.now());
        assert!(self.cache.wanted(self.now(), &fetch).is_some());
        self.cache.adopt(self.now(), &fetch, incoming)
    }
}

fn incoming(outgoing: &Outgoing, now: Now) -> Incoming {
    let bytes = Bytes::from(outgoing.write(now).expect("a clock"));
    Incoming::read(&bytes).expect("what was written")
}

fn request(fields: &[(&str, &str)]) -> RequestHead {
    RequestHead {
        fields: fields.iter().copied().collect(),
        ..RequestHead::get(Scheme::Http, "h", "/")
    }
}

fn head(fields: &[(&str, &str)]) -> ResponseHead {
    ResponseHead {
        fields: fields.iter().copied().collect(),
        ..ResponseHead::new(200)
    }
}

fn fresh() -> ResponseHead {
    head(&[("cache-control", "max-age=60")])
}

#[test]
fn response_leaves_once_enough_users_have_fetched_it() {
    let mut one = Gateway::new(Sharing::Shared, 2);
    let (get, fresh) = (request(&[]), fresh());
    let mut users = 0;
    while one.due().is_empty() {
        assert!(users < 4, "twice min-users are enough");
        users += 1;
        assert!(
            !one.get(0, users, &get, &fresh),
            "only its own users know it"
        );
        let reports = one.cache.take_users(10);
        assert_eq!(reports.len(), 1, "each user is reported once");
    }
    assert!(users >= 2);
    assert!(one.get(0, 77, &get, &fresh), "a hit for a new user");
}

#[test]
fn users_of_several_gateways_count_together() {
    let mut gateways = [(); 4].map(|()| Gateway::new(Sharing::Shared, 2));
    let (get, fresh) = (request(&[]), fresh());
    let mut reports = Vec::new();
    for (user, gateway) in gateways.iter_mut().enumerate() {
        assert!(!gateway.get(0, user as u64 + 1, &get, &fresh));
        assert!(gateway.due().is_empty());
        reports.extend(gateway.cache.take_users(10));
    }
    for gateway in &mut gateways {
        gateway.cache.note_users(&reports);
        assert_eq!(gateway.due().len(), 1);
        assert!(gateway.get(0, 77, &get, &fresh));
    }
    // A gateway without the response ignores the reports.
    let mut other = Gateway::new(Sharing::Shared, 2);
    other.cache.note_users(&reports);
    assert!(other.due().is_empty());
}

#[test]
fn lent_response_serves_the_users_of_another_gateway() {
    let mut one = Gateway::new(Sharing::Origin, 1);
    let get = request(&[("accept-encoding", "gzip")]);
    let fields = [
        ("cache-control", "max-age=60"),
        ("vary", "accept-encoding"),
        ("age", "20"),
    ];
    one.get(0, 1, &get, &head(&fields));
    one.seconds += 5;
    let lent = one.lend();
    let mut other = Gateway::new(Sharing::Origin, 1);
    other.seconds += 10;
    assert!(other.adopt(9, &get, lent.clone()));
    let Lookup::Hit(stored) = other.lookup(0, 10, &get) else {
        panic!("no hit");
    };
    assert_eq!(stored.body.slice(0, 4).next().unwrap(), "body");
    // 20 s at the origin, 5 s at the first gateway, 5 s on the way, and a second for the rounding.
    assert_eq!(stored.age(other.now()), Duration::from_secs(31));
    assert!(other.due().is_empty(), "it is lent already");
    // Another coding is another response.
    let mut strict = Gateway::new(Sharing::Origin, 1);
    assert!(!strict.adopt(9, &request(&[("accept-encoding", "br")]), lent.clone()));
    let mut late = Gateway::new(Sharing::Origin, 1);
    late.seconds += 60;
    assert!(!late.adopt(9, &get, lent.clone()), "it is stale");
    let mut behind = Gateway::new(Sharing::Origin, 1);
    let Lookup::Fetch(fetch, _) = behind.lookup(0, 1, &get) else {
        panic!("nothing is stored");
    };
    let now = Now {
        unix: Some(UNIX - 600),
        ..behind.now()
    };
    assert!(!behind.cache.adopt(now, &fetch, lent), "a wrong clock");
}

#[test]
fn receiver_requires_its_own_number_of_users() {
    let mut one = Gateway::new(Sharing::Shared, 2);
    let (get, fresh) = (request(&[]), fresh());
    let key = Key::new(0, b"", &get, false).unwrap();
    let needed = one.cache.needed(&key, one.cache.name(&key));
    for user in 1..=u64::from(needed) {
        one.get(0, user, &get, &fresh);
    }
    let lent = one.lend();
    assert!(Gateway::new(Sharing::Shared, 2).adopt(9, &get, lent.clone()));
    let mut few = lent;
    few.tags.truncate(usize::from(needed) - 1);
    assert!(!Gateway::new(Sharing::Shared, 2).adopt(9, &get, few.clone()));
    let twice = few.tags[0];
    few.tags.push(twice);
    assert!(!Gateway::new(Sharing::Shared, 2).adopt(9, &get, few));
}

#[test]
fn response_for_one_user_never_leaves() {
    let plain = request(&[]);
    let cookie = request(&[("cookie", "a=b")]);
    let login = request(&[("authorization", "Basic eA==")]);
    let key = request(&[("api-key", "secret")]);
    let fresh = "max-age=60";
    for (request, fields, leaves) in [
        (&plain, vec![("cache-control", fresh)], true),
        (
            &plain,
            vec![("cache-control", "private, max-age=60")],
            false,
        ),
        (&plain, vec![("cache-control", "no-store")], false),
        (
            &plain,
            vec![("cache-control", "no-cache"), ("etag", "\"a\"")],
            false,
        ),
        (
            &plain,
            vec![
                ("cache-control", "public, max-age=60"),
                ("set-cookie", "a=b"),
            ],
            false,
        ),
        (
            &plain,
            vec![("cache-control", fresh), ("vary", "Cookie")],
            false,
        ),
        (
            &key,
            vec![("cache-control", fresh), ("vary", "Api-Key")],
            false,
        ),
        (
            &plain,
            vec![("cache-control", fresh), ("vary", "User-Agent")],
            false,
        ),
        (&plain, vec![("cache-control", fresh), ("vary", "*")], false),
        (
            &plain,
            vec![("cache-control", fresh), ("vary", "Origin, Referer")],
            false,
        ),
        (
            &plain,
            vec![
                ("cache-control", fresh),
                ("vary", "Accept-Encoding, Accept"),
            ],
            true,
        ),
        (
            &plain,
            vec![("cache-control", fresh), ("vary", "Origin, Sec-Fetch-Mode")],
            true,
        ),
        (&plain, vec![("cache-control", "max-age=1")], false),
        (&cookie, vec![("cache-control", fresh)], false),
        (&cookie, vec![("cache-control", "public, max-age=60")], true),
        (&login, vec![("cache-control", "public, max-age=60")], false),
        (&login, vec![("cache-control", "s-maxage=60")], false),
    ] {
        let mut gateway = Gateway::new(Sharing::Origin, 1);
        gateway.get(0, 1, request, &head(&fields));
        assert_eq!(!gateway.due().is_empty(), leaves, "{fields:?}");
    }
    // Neither does a response over TLS in a forward gateway, nor one that a user's field changed.
    let mut gateway = Gateway::new(Sharing::Origin, 1);
    gateway.get(5, 1, &plain, &self::fresh());
    gateway.get(0, 1, &request_with_override(), &self::fresh());
    assert!(gateway.due().is_empty() && gateway.cache.take_users(9).is_empty());
    let mut private = Gateway::new(Sharing::Private, 1);
    private.get(0, 1, &plain, &self::fresh());
    assert!(private.due().is_empty() && private.cache.take_users(9).is_empty());
}

fn request_with_override() -> RequestHead {
    request(&[("x-forwarded-host", "evil.example")])
}

#[test]
fn long_response_stays() {
    let mut gateway = Gateway::new(Sharing::Origin, 1);
    let get = request(&[]);
    let Lookup::Fetch(fetch, _) = gateway.lookup(0, 1, &get) else {
        panic!("nothing is stored");
    };
    let Received::Store(pending) = gateway.cache.receive(gateway.now(), &fetch, &fresh()) else {
        panic!("it may be stored");
    };
    let body = Bytes::from(vec![0; crate::travel::MAX_BODY as usize + 1]);
    gateway.cache.finish(*pending, vec![body], None);
    assert!(gateway.due().is_empty());
}

#[test]
fn invalidation_reaches_the_other_gateways() {
    let [mut one, mut other] = [(); 2].map(|()| Gateway::new(Sharing::Origin, 1));
    let (get, fresh) = (request(&[]), fresh());
    one.get(0, 1, &get, &fresh);
    let lent = one.lend();
    assert!(other.adopt(1, &get, lent.clone()));
    other.get(0, 1, &request_with_override(), &fresh);
    one.seconds += 5;
    other.seconds += 5;
    let key = Key::new(0, b"", &get, false).unwrap();
    let now = one.now();
    one.cache.invalidate(now, &Method::Post, &head(&[]), &[key]);
    let names = one.cache.take_invalidated(10);
    assert_eq!(names.len(), 1);
    assert!(one.cache.take_invalidated(10).is_empty());
    other.cache.hear_invalidated(other.now(), &names);
    assert!(other.cache.store().is_empty());
    // A copy from before the invalidation serves nobody, wherever it comes from.
    for gateway in [&mut one, &mut other] {
        assert!(!gateway.adopt(1, &get, lent.clone()));
        gateway.seconds += 5;
    }
    one.get(0, 1, &get, &fresh);
    one.seconds += 1;
    let newer = one.lend();
    assert!(other.adopt(1, &get, newer));
}

#[test]
fn reload_keeps_the_invalidations_that_wait() {
    let mut gateway = Gateway::new(Sharing::Origin, 1);
    let key = Key::new(0, b"", &request(&[]), false).unwrap();
    let now = gateway.now();
    gateway
        .cache
        .invalidate(now, &Method::Post, &head(&[]), &[key]);
    gateway.cache.outbox.lost = 3;
    gateway.cache.join_fleet(now, Some(namer()));
    let mut next = Gateway::new(Sharing::Origin, 1);
    next.cache.inherit(next.now(), &mut gateway.cache);
    next.cache.join_fleet(now, Some(namer()));
    assert_eq!(next.cache.lost_invalidations(), 3);
    assert_eq!(next.cache.take_invalidated(10).len(), 1);
    assert!(gateway.cache.take_invalidated(10).is_empty());
}

#[test]
fn cache_adopts_no_answer_asked_before_a_reload() {
    let mut one = Gateway::new(Sharing::Origin, 1);
    one.get(0, 1, &request(&[]), &fresh());
    let lent = one.lend();
    let mut other = Gateway::new(Sharing::Origin, 1);
    let Lookup::Fetch(fetch, _) = other.lookup(0, 1, &request(&[])) else {
        panic!("nothing is stored");
    };
    other.cache.join_fleet(other.now(), Some(namer()));
    assert!(!other.cache.adopt(other.now(), &fetch, lent.clone()));
    other.seconds += 1;
    assert!(other.adopt(1, &request(&[]), lent));
}

#[test]
fn invalidation_stops_the_storing_of_a_fetch() {
    let mut gateway = Gateway::new(Sharing::Origin, 1);
    let get = request(&[]);
    let Lookup::Fetch(fetch, _) = gateway.lookup(0, 1, &get) else {
        panic!("nothing is stored");
    };
    let name = gateway.cache.name(&fetch.key).expect("it has a name");
    gateway.seconds += 1;
    gateway.cache.hear_invalidated(gateway.now(), &[name]);
    if let Received::Store(pending) = gateway.cache.receive(gateway.now(), &fetch, &fresh()) {
        gateway.cache.finish(*pending, vec![], None);
    }
    assert!(gateway.cache.store().is_empty());
}

#[test]
fn cache_wants_only_responses_that_can_serve() {
    let mut gateway = Gateway::new(Sharing::Origin, 1);
    let ask = |gateway: &mut Gateway, request: &RequestHead| {
        let key = Key::new(0, b"", request, false).unwrap();
        let (group, now) = (Group::Origin("h".into()), gateway.now());
        let token: Option<&dyn Fn()> = Some(&|| ());
        match gateway.cache.lookup(now, &key, group, 1, request, token) {
            Lookup::Fetch(fetch, _) => {
                gateway.cache.end_flight(&fetch);
                fetch
            }
            other => panic!("{other:?}"),
        }
    };
    let plain = ask(&mut gateway, &request(&[]));
    let login = ask(&mut gateway, &request(&[("authorization", "Basic eA==")]));
    assert!(gateway.cache.wanted(gateway.now(), &plain).is_none());
    gateway.cache.note_heard(gateway.now());
    assert!(gateway.cache.wanted(gateway.now(), &plain).is_some());
    assert!(gateway.cache.wanted(gateway.now(), &login).is_none());
    // Without news of invalidations, another cache's response may be an old one.
    gateway.seconds += 4;
    assert!(gateway.cache.wanted(gateway.now(), &plain).is_none());
    gateway.cache.note_heard(gateway.now());
    let pass = head(&[("cache-control", "no-store")]);
    gateway.cache.receive(gateway.now(), &plain, &pass);
    assert!(gateway.cache.wanted(gateway.now(), &plain).is_none());
}

#[test]
fn lent_response_is_as_old_as_its_date() {
    let mut one = Gateway::new(Sharing::Origin, 1);
    // 784111777 is the time of this date.
    let date = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");
    one.get(
        0,
        1,
        &request(&[]),
        &head(&[("cache-control", "max-age=60"), date]),
    );
    // The clock of the sender is ahead.
    let mut lent = one.lend();
    lent.send_later(15);
    let mut other = Gateway::new(Sharing::Origin, 1);
    other.seconds = 20;
    assert!(other.adopt(1, &request(&[]), lent));
    let Lookup::Hit(stored) = other.lookup(0, 1, &request(&[])) else {
        panic!("no hit");
    };
    assert_eq!(stored.age(other.now()), Duration::from_secs(20));
}

/// A sender whose clock is ahead makes its response look newer than an invalidation.
#[test]
fn lent_response_was_requested_before_its_date() {
    let mut one = Gateway::new(Sharing::Origin, 1);
    let date = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");
    let fresh = head(&[("cache-control", "max-age=60"), date]);
    one.get(0, 1, &request(&[]), &fresh);
    let mut lent = one.lend();
    lent.send_later(19);
    let mut other = Gateway::new(Sharing::Origin, 1);
    other.seconds = 10;
    let key = Key::new(0, b"", &request(&[]), false).expect("a plain request");
    let name = other.cache.name(&key).expect("a target of all users");
    let now = other.now();
    other.cache.hear_invalidated(now, &[name]);
    other.seconds = 20;
    assert!(!other.adopt(1, &request(&[]), lent));
}

#[test]
fn waiting_changes_are_bounded() {
    let mut gateway = Gateway::new(Sharing::Shared, 4);
    let keys: Vec<_> = (0..MAX_WAITING + 8)
        .map(|path| {
            let get = RequestHead::get(Scheme::Http, "h", format!("/{path}"));
            Key::new(0, b"", &get, false).unwrap()
        })
        .collect();
    let now = gateway.now();
    gateway
        .cache
        .invalidate(now, &Method::Post, &head(&[]), &keys);
    assert_eq!(
        gateway.cache.take_invalidated(usize::MAX).len(),
        MAX_WAITING
    );
    assert_eq!(gateway.cache.lost_invalidations(), 8);
}

proptest::proptest! {
    #[test]
    fn response_of_any_bytes_is_harmless(bytes: Vec<u8>, cut: proptest::sample::Index) {
        Incoming::read(&Bytes::from(bytes));
        let mut one = Gateway::new(Sharing::Origin, 1);
        one.get(0, 1, &request(&[]), &fresh());
        let whole = one.due()[0].write(one.now()).unwrap();
        // The fixed fields: a shorter body is a response too, since the cipher guards the length.
        let bytes = Bytes::from(whole[..cut.index(whole.len() - 4)].to_vec());
        proptest::prop_assert!(Incoming::read(&bytes).is_none());
    }

    #[test]
    fn names_follow_the_store(
        steps in proptest::collection::vec((0u8..4, 0u64..12, proptest::bool::ANY), 0..60),
    ) {
        let mut gateway = Gateway::new(Sharing::Origin, 1);
        for (step, path, overrides) in steps {
            let mut get = RequestHead::get(Scheme::Http, "h", format!("/{path}"));
            if overrides {
                get.fields.push("x-a", "b");
            }
            let key = Key::new(0, b"", &get, false).unwrap();
            match step {
                0 | 1 => { gateway.get(0, 1, &get, &fresh()); }
                2 => { gateway.cache.store.remove(&key); }
                _ => gateway.cache.store.remove_target(&key),
            }
            let names = gateway.cache.store.names().unwrap();
            let name = gateway.cache.name(&key).unwrap();
            let get = |key: &Key| gateway.cache.store.peek(key).is_some();
            let mut with = RequestHead::get(Scheme::Http, "h", format!("/{path}"));
            with.fields.push("x-a", "b");
            let with = Key::new(0, b"", &with, false).unwrap();
            let is_stored = get(&key.plain()) || get(&with);
            proptest::prop_assert_eq!(names.key(&name).is_some(), is_stored);
        }
    }
}

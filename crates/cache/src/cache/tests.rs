//! Tests of the decisions in virtual time.

mod posts;

use bytes::Bytes;
use tandem_http::Scheme;

use super::*;

const UNIX: u64 = 784_111_777;
const DAY: &str = "Sun, 06 Nov 1994 08:00:00 GMT";

/// A cache with a clock and an origin.
struct World {
    cache: Cache<u32>,
    seconds: u64,
}

fn head(status: u16, fields: &[(&str, &str)]) -> ResponseHead {
    ResponseHead {
        fields: fields.iter().copied().collect(),
        ..ResponseHead::new(status)
    }
}

fn get(fields: &[(&str, &str)]) -> RequestHead {
    RequestHead {
        fields: fields.iter().copied().collect(),
        ..RequestHead::get(Scheme::Http, "h", "/")
    }
}

fn key_of(request: &RequestHead) -> Key {
    Key::new(0, b"", request, false).expect("a plain request")
}

impl World {
    fn new(sharing: Sharing, min_users: u8) -> Self {
        let config = Config {
            sharing,
            memory: 1 << 20,
            min_users,
        };
        Self {
            cache: Cache::new(config),
            seconds: 0,
        }
    }

    fn origin() -> Self {
        Self::new(Sharing::Origin, 1)
    }

    fn now(&self) -> Now {
        Now {
            elapsed: Duration::from_secs(self.seconds),
            unix: Some(UNIX + self.seconds),
        }
    }

    fn lookup(&mut self, user: u64, request: &RequestHead) -> Lookup<u32> {
        let group = Group::Origin("h".into());
        let key = key_of(request);
        self.cache
            .lookup(self.now(), &key, group, user, request, Some(&|| 7))
    }

    /// Looks a request up; returns its fetch, or panics.
    fn fetch(&mut self, request: &RequestHead) -> Box<Fetch> {
        match self.lookup(1, request) {
            Lookup::Fetch(fetch, _) => fetch,
            other => panic!("{other:?}"),
        }
    }

    fn receive(&mut self, fetch: &Fetch, response: &ResponseHead, body: &'static str) -> Received {
        let received = self.cache.receive(self.now(), fetch, response);
        self.cache.end_flight(fetch);
        if let Received::Store(pending) = received {
            let body = vec![Bytes::from_static(body.as_bytes())];
            let stored = self.cache.finish(*pending, body, None);
            return Received::Stored(stored.expect("a complete body"));
        }
        received
    }

    /// Fetches and stores a response.
    fn store(&mut self, asked: &[(&str, &str)], response: &[(&str, &str)], body: &'static str) {
        let fetch = self.fetch(&get(asked));
        let received = self.receive(&fetch, &head(200, response), body);
        assert!(matches!(received, Received::Stored(_)), "{received:?}");
    }

    /// Returns the body that serves a request, if the store has one.
    fn served(&mut self, asked: &[(&str, &str)]) -> Option<String> {
        match self.lookup(1, &get(asked)) {
            Lookup::Hit(stored) | Lookup::Stale(stored, _) => Some(text(&stored)),
            Lookup::Fetch(fetch, _) => {
                self.cache.end_flight(&fetch);
                None
            }
            Lookup::Join(_) | Lookup::NotCached => None,
        }
    }
}

fn text(stored: &Stored) -> String {
    let bytes: Vec<u8> = stored.body.slice(0, stored.body.len()).flatten().collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

const FRESH: (&str, &str) = ("cache-control", "max-age=60");

#[test]
fn fresh_response_serves_until_it_is_stale() {
    let mut world = World::origin();
    assert_eq!(world.served(&[]), None);
    world.store(&[], &[FRESH], "one");
    assert_eq!(world.served(&[]).as_deref(), Some("one"));
    world.seconds = 59;
    assert_eq!(world.served(&[]).as_deref(), Some("one"));
    assert_eq!(world.served(&[("cache-control", "no-cache")]), None);
    world.seconds = 60;
    assert_eq!(world.served(&[]), None);
    assert_eq!(
        world.served(&[("cache-control", "max-stale")]).as_deref(),
        Some("one")
    );
    let only = get(&[("cache-control", "only-if-cached")]);
    assert!(matches!(world.lookup(1, &only), Lookup::NotCached));
}

#[test]
fn personal_responses_are_not_shared() {
    for (asked, response, is_stored) in [
        (&[][..], &[FRESH, ("set-cookie", "a=b")][..], false),
        (
            &[],
            &[
                ("cache-control", "public, max-age=60"),
                ("set-cookie", "a=b"),
            ],
            true,
        ),
        (&[("cookie", "a=b")], &[FRESH], false),
        (
            &[("cookie", "a=b")],
            &[("cache-control", "public, max-age=60")],
            true,
        ),
        (
            &[("authorization", "x")],
            &[("cache-control", "s-maxage=60")],
            false,
        ),
        (
            &[("authorization", "x")],
            &[("cache-control", "public, max-age=60")],
            true,
        ),
        (&[], &[("cache-control", "private, max-age=60")], false),
        (&[], &[("cache-control", "no-store, max-age=60")], false),
    ] {
        for sharing in [Sharing::Origin, Sharing::Shared] {
            let mut world = World::new(sharing, 1);
            let fetch = world.fetch(&get(asked));
            let received = world.receive(&fetch, &head(200, response), "x");
            let stored = matches!(received, Received::Stored(_));
            assert_eq!(stored, is_stored, "{asked:?} {response:?}");
        }
    }
    let mut world = World::origin();
    world.store(&[], &[FRESH], "plain");
    assert_eq!(world.served(&[("authorization", "x")]), None);
    let mut world = World::new(Sharing::Private, 1);
    world.store(
        &[("cookie", "a=b")],
        &[("cache-control", "private, max-age=9")],
        "own",
    );
    assert!(world.served(&[("cookie", "a=b")]).is_some());
    let reload = world.fetch(&get(&[("cache-control", "no-cache")]));
    let cookie = head(200, &[FRESH, ("set-cookie", "a=b")]);
    assert!(matches!(
        world.receive(&reload, &cookie, ""),
        Received::Pass
    ));
}

#[test]
fn validation_freshens_the_stored_response() {
    let mut world = World::origin();
    world.store(&[], &[FRESH, ("etag", "\"1\""), ("x", "old")], "body");
    world.seconds = 100;
    let fetch = world.fetch(&get(&[("if-none-match", "\"client\"")]));
    assert_eq!(
        fetch.request().fields.get("if-none-match"),
        Some(&b"\"1\""[..])
    );
    let update = head(304, &[FRESH, ("etag", "\"1\""), ("x", "new")]);
    let Received::Stored(stored) = world.receive(&fetch, &update, "") else {
        panic!("a validated response");
    };
    assert_eq!(stored.head.fields.get("x"), Some(&b"new"[..]));
    assert_eq!(text(&stored), "body");
    assert_eq!(world.served(&[]).as_deref(), Some("body"));
    world.seconds = 200;
    let fetch = world.fetch(&get(&[]));
    let other = head(304, &[("etag", "\"2\"")]);
    assert!(matches!(world.receive(&fetch, &other, ""), Received::Again));
    assert_eq!(world.served(&[]), None);
}

#[test]
fn errors_are_hidden_where_the_response_permits() {
    for (control, error, disconnected) in [
        ("max-age=1", false, true),
        ("max-age=1, stale-if-error=99", true, true),
        ("max-age=1, stale-if-error=9", false, true),
        (
            "max-age=1, must-revalidate, stale-if-error=99",
            false,
            false,
        ),
        ("s-maxage=1", false, false),
    ] {
        let mut world = World::origin();
        world.store(&[], &[("cache-control", control)], "old");
        world.seconds = 30;
        let fetch = world.fetch(&get(&[]));
        let received = world.receive(&fetch, &head(503, &[]), "");
        assert_eq!(matches!(received, Received::Stored(_)), error, "{control}");
        let failed = world.cache.fail(world.now(), &fetch);
        assert_eq!(failed.is_some(), disconnected, "{control}");
    }
    let mut world = World::origin();
    world.store(&[], &[FRESH], "old");
    world.seconds = 3 * 24 * 3600;
    let fetch = world.fetch(&get(&[]));
    assert!(world.cache.fail(world.now(), &fetch).is_none(), "too old");
}

#[test]
fn stale_response_serves_during_its_validation() {
    let mut world = World::origin();
    let control = ("cache-control", "max-age=1, stale-while-revalidate=60");
    world.store(&[], &[control, ("etag", "\"1\"")], "old");
    world.seconds = 10;
    let Lookup::Stale(_, Some((fetch, Some(7)))) = world.lookup(1, &get(&[])) else {
        panic!("a stale response and a validation");
    };
    assert!(matches!(world.lookup(1, &get(&[])), Lookup::Stale(_, None)));
    assert!(fetch.request().fields.contains("if-none-match"));
    world.receive(&fetch, &head(200, &[FRESH]), "new");
    assert_eq!(world.served(&[]).as_deref(), Some("new"));
    let mut world = World::origin();
    world.store(&[], &[control], "old");
    world.seconds = 62;
    assert_eq!(world.served(&[]), None);
}

#[test]
fn requests_for_one_url_join_one_flight() {
    let mut world = World::origin();
    let fetch = world.fetch(&get(&[]));
    assert!(matches!(world.lookup(2, &get(&[])), Lookup::Join(7)));
    for alone in [
        ("range", "bytes=0-1"),
        ("cookie", "a=b"),
        ("if-none-match", "\"1\""),
    ] {
        let found = world.lookup(2, &get(&[alone]));
        assert!(matches!(found, Lookup::Fetch(_, None)), "{alone:?}");
    }
    world.receive(&fetch, &head(200, &[("cache-control", "no-store")]), "");
    for _ in 0..3 {
        assert!(matches!(world.lookup(2, &get(&[])), Lookup::Fetch(_, None)));
    }
    world.seconds = 121;
    assert!(matches!(
        world.lookup(2, &get(&[])),
        Lookup::Fetch(_, Some(7))
    ));
}

#[test]
fn resource_serves_others_after_enough_users() {
    let mut world = World::new(Sharing::Shared, 2);
    let needed = u64::from(world.cache.needed(&key_of(&get(&[])), None));
    assert!((2..=4).contains(&needed), "{needed}");
    for user in 1..=needed {
        let Lookup::Fetch(fetch, _) = world.lookup(user, &get(&[])) else {
            panic!("user {user} must not see the fetches of others");
        };
        world.receive(&fetch, &head(200, &[FRESH]), "body");
        assert!(
            matches!(world.lookup(user, &get(&[])), Lookup::Hit(_)),
            "its own"
        );
    }
    assert!(matches!(world.lookup(99, &get(&[])), Lookup::Hit(_)));
}

#[test]
fn others_do_not_join_before_enough_users() {
    let mut world = World::new(Sharing::Shared, 2);
    let Lookup::Fetch(_, Some(_)) = world.lookup(1, &get(&[])) else {
        panic!("a fetch that leads");
    };
    assert!(matches!(world.lookup(1, &get(&[])), Lookup::Join(_)));
    assert!(matches!(world.lookup(2, &get(&[])), Lookup::Fetch(_, None)));
}

#[test]
fn unsafe_method_invalidates_also_requests_under_way() {
    let mut world = World::origin();
    world.store(&[], &[FRESH], "old");
    world.seconds = 10;
    let reload = get(&[("cache-control", "no-cache")]);
    let under_way = world.fetch(&reload);
    let key = key_of(&reload);
    let now = world.now();
    let mut invalidate = |method, status| {
        world
            .cache
            .invalidate(now, &method, &head(status, &[]), std::slice::from_ref(&key));
    };
    invalidate(Method::Post, 500);
    invalidate(Method::Get, 200);
    assert_eq!(world.served(&[]).as_deref(), Some("old"));
    world.cache.invalidate(
        now,
        &Method::Put,
        &head(204, &[]),
        std::slice::from_ref(&key),
    );
    assert_eq!(world.served(&[]), None);
    world.receive(&under_way, &head(200, &[FRESH]), "older than the change");
    assert_eq!(world.served(&[]), None);
    world.seconds = 11;
    world.store(&[], &[FRESH], "new");
    assert_eq!(world.served(&[]).as_deref(), Some("new"));
}

#[test]
fn response_about_its_request_is_not_stored() {
    for (asked, status, is_stored) in [
        (&[][..], 404, true),
        (&[], 412, false),
        (&[], 429, false),
        (&[("accept", "no/thing")], 406, false),
        (&[("if-match", "\"x\"")], 404, false),
        (&[("range", "bytes=x")], 400, false),
        (&[("range", "bytes=0-1")], 200, true),
        (&[("if-none-match", "\"x\"")], 200, true),
    ] {
        let mut world = World::origin();
        let fetch = world.fetch(&get(asked));
        let received = world.receive(&fetch, &head(status, &[FRESH]), "x");
        let stored = matches!(received, Received::Stored(_));
        assert_eq!(stored, is_stored, "{asked:?} {status}");
    }
}

#[test]
fn error_response_is_stored_for_a_moment_only() {
    let mut world = World::origin();
    let fetch = world.fetch(&get(&[]));
    let error = head(400, &[("cache-control", "max-age=99999")]);
    assert!(matches!(
        world.receive(&fetch, &error, "bad"),
        Received::Stored(_)
    ));
    world.seconds = 29;
    assert_eq!(world.served(&[]).as_deref(), Some("bad"));
    world.seconds = 30;
    assert_eq!(world.served(&[]), None);
}

#[test]
fn incomplete_or_long_body_is_not_stored() {
    let mut world = World::origin();
    for (length, body) in [("5", "four"), ("x", ""), ("99999999", "")] {
        let fetch = world.fetch(&get(&[]));
        let response = head(200, &[FRESH, ("content-length", length)]);
        if let Received::Store(pending) = world.cache.receive(world.now(), &fetch, &response) {
            let body = vec![Bytes::from_static(body.as_bytes())];
            assert!(world.cache.finish(*pending, body, None).is_none());
        }
        world.cache.end_flight(&fetch);
        assert_eq!(world.served(&[]), None, "{length}");
    }
}

#[test]
fn head_updates_or_removes_the_stored_response() {
    for (response, expected) in [
        (&[("cache-control", "max-age=600")][..], Some("body")),
        (
            &[("cache-control", "max-age=600"), ("content-length", "9")],
            None,
        ),
        (&[("cache-control", "max-age=600"), ("etag", "\"2\"")], None),
    ] {
        let mut world = World::origin();
        world.store(&[], &[FRESH, ("etag", "\"1\"")], "body");
        world.seconds = 90;
        let request = RequestHead {
            method: Method::Head,
            ..get(&[])
        };
        let fetch = world.fetch(&request);
        assert!(!fetch.request().fields.contains("if-none-match"));
        let received = world
            .cache
            .receive(world.now(), &fetch, &head(200, response));
        assert!(matches!(received, Received::Pass));
        assert_eq!(world.served(&[]).as_deref(), expected, "{response:?}");
    }
}

#[test]
fn targeted_field_counts_at_a_reverse_gateway_only() {
    let response = [
        ("cache-control", "no-store"),
        ("cdn-cache-control", "max-age=60"),
    ];
    for (sharing, is_stored) in [(Sharing::Origin, true), (Sharing::Shared, false)] {
        let mut world = World::new(sharing, 1);
        let fetch = world.fetch(&get(&[]));
        let received = world.receive(&fetch, &head(200, &response), "x");
        assert_eq!(matches!(received, Received::Stored(_)), is_stored);
    }
}

#[test]
fn stored_response_answers_ranges_and_conditions() {
    let mut world = World::origin();
    let response = [FRESH, ("etag", "\"1\""), ("last-modified", DAY)];
    world.store(&[], &response, "0123456789");
    world.seconds = 5;
    let mut answer = |asked: &[(&str, &str)], method| {
        let request = RequestHead {
            method,
            ..get(asked)
        };
        let Lookup::Hit(stored) = world.lookup(1, &request) else {
            panic!("a hit for {asked:?}");
        };
        let response = crate::respond(&stored, &request, world.now())?;
        assert_eq!(response.head.fields.get("age"), Some(&b"5"[..]));
        let body: Vec<u8> = response.body(&stored).flatten().collect();
        Some((
            response.head.status,
            String::from_utf8_lossy(&body).into_owned(),
        ))
    };
    let found = |status, body: &str| Some((status, body.to_owned()));
    assert_eq!(answer(&[], Method::Get), found(200, "0123456789"));
    assert_eq!(answer(&[], Method::Head), found(200, ""));
    assert_eq!(
        answer(&[("range", "bytes=2-4")], Method::Get),
        found(206, "234")
    );
    assert_eq!(
        answer(&[("range", "bytes=90-")], Method::Get),
        found(416, "")
    );
    assert_eq!(
        answer(&[("if-none-match", "W/\"1\"")], Method::Get),
        found(304, "")
    );
    assert_eq!(
        answer(&[("if-modified-since", DAY)], Method::Get),
        found(304, "")
    );
    assert_eq!(answer(&[("range", "bytes=0-1,3-4")], Method::Get), None);
    assert_eq!(answer(&[("if-match", "\"2\"")], Method::Get), None);
}

#[test]
fn personal_validation_reaches_its_user_only() {
    let cookie = ("set-cookie", "id=alice");
    for (asked, update, is_kept) in [
        (&[][..], &[FRESH, cookie][..], true),
        (&[("cookie", "a=b")], &[FRESH, ("x-user", "alice")], true),
        (&[("authorization", "a")], &[("x-user", "alice")], true),
        (
            &[("cache-control", "no-store")],
            &[("x-user", "alice")],
            true,
        ),
        (&[], &[("cache-control", "private, max-age=60")], false),
        (&[], &[("cache-control", "no-store")], false),
    ] {
        let mut world = World::origin();
        let open = ("cache-control", "public, max-age=60");
        world.store(&[], &[open, ("etag", "\"1\"")], "body");
        world.seconds = 100;
        let fetch = world.fetch(&get(asked));
        assert!(fetch.request().fields.contains("if-none-match"));
        let Received::Own(own) = world.receive(&fetch, &head(304, update), "") else {
            panic!("a response for one user: {asked:?} {update:?}");
        };
        for (name, value) in update {
            assert_eq!(own.head.fields.get(name), Some(value.as_bytes()));
        }
        let stale = get(&[("cache-control", "max-stale")]);
        match world.lookup(2, &stale) {
            Lookup::Hit(stored) => {
                assert!(is_kept, "{update:?}");
                let fields = &stored.head.fields;
                assert!(!fields.contains("set-cookie") && !fields.contains("x-user"));
            }
            _ => assert!(!is_kept, "{update:?}"),
        }
    }
}

#[test]
fn personal_head_response_changes_no_entry() {
    for (asked, response) in [
        (&[][..], &[FRESH, ("set-cookie", "id=alice")][..]),
        (&[("cookie", "a=b")], &[("x-user", "alice")]),
        (&[("cookie", "a=b")], &[("content-length", "999")]),
    ] {
        let mut world = World::origin();
        world.store(&[], &[FRESH, ("etag", "\"1\"")], "body");
        world.seconds = 90;
        let request = RequestHead {
            method: Method::Head,
            ..get(asked)
        };
        let fetch = world.fetch(&request);
        world.receive(&fetch, &head(200, response), "");
        let stale = get(&[("cache-control", "max-stale")]);
        let Lookup::Hit(stored) = world.lookup(2, &stale) else {
            panic!("the stored response: {response:?}");
        };
        let fields = &stored.head.fields;
        assert!(!fields.contains("set-cookie") && !fields.contains("x-user"));
    }
    let mut world = World::origin();
    world.store(&[], &[FRESH], "body");
    world.seconds = 90;
    let request = RequestHead {
        method: Method::Head,
        ..get(&[])
    };
    let fetch = world.fetch(&request);
    let private = [("cache-control", "private, max-age=600")];
    world.receive(&fetch, &head(200, &private), "");
    assert_eq!(world.served(&[]), None);
}

#[test]
fn private_response_serves_the_same_browser() {
    let own = [
        ("accept", "image/*"),
        ("accept-language", "de"),
        ("user-agent", "x"),
    ];
    let mut world = World::new(Sharing::Private, 1);
    let open = [("cache-control", "public, max-age=60")];
    world.store(&own, &open, "own");
    let mut same: Vec<_> = own.into_iter().rev().collect();
    same.extend([("cookie", "a=b"), ("priority", "u=1"), ("referer", "/b")]);
    assert_eq!(
        world.served(&same).as_deref(),
        Some("own"),
        "in another order"
    );
    for (at, value) in [(0, "text/html"), (1, "fr"), (2, "y"), (2, "")] {
        let mut other = own;
        other[at].1 = value;
        assert_eq!(world.served(&other), None, "{other:?}");
    }
    for unknown in [("save-data", "on"), ("x-unknown", "1"), ("dnt", "1")] {
        let other: Vec<_> = own.into_iter().chain([unknown]).collect();
        assert_eq!(world.served(&other), None, "{unknown:?}");
    }
    assert_eq!(world.served(&own[..2]), None);
    // A shared cache keeps to Vary.
    let mut world = World::origin();
    world.store(&own, &open, "own");
    assert!(world.served(&own[..1]).is_some());
}

#[test]
fn private_response_serves_the_same_credentials() {
    let (alice, bob) = ([("cookie", "id=alice")], [("cookie", "id=bob")]);
    for (control, is_shared) in [
        ("max-age=60", false),
        ("private, max-age=60", false),
        ("s-maxage=60, max-age=60", true),
        ("public, max-age=60", true),
    ] {
        let mut world = World::new(Sharing::Private, 1);
        world.store(&alice, &[("cache-control", control)], "alice");
        assert_eq!(world.served(&alice).as_deref(), Some("alice"));
        for other in [&bob[..], &[], &[("authorization", "x")]] {
            assert_eq!(world.served(other).is_some(), is_shared, "{control}");
        }
    }
    let mut world = World::new(Sharing::Private, 1);
    world.store(&alice, &[FRESH], "alice");
    world.store(&bob, &[FRESH], "bob");
    assert_eq!(world.served(&alice).as_deref(), Some("alice"));
    assert_eq!(world.served(&bob).as_deref(), Some("bob"));
}

#[test]
fn guessed_lifetime_serves_no_request_with_cookies() {
    let old = ("last-modified", "Sat, 05 Nov 1994 08:49:37 GMT");
    for (fields, expected) in [(&[old][..], None), (&[old, FRESH], Some("body"))] {
        let mut world = World::origin();
        world.store(&[], fields, "body");
        assert_eq!(world.served(&[]).as_deref(), Some("body"));
        assert_eq!(world.served(&[("cookie", "a=b")]).as_deref(), expected);
    }
}

#[test]
fn coding_serves_requests_that_accept_it() {
    let gzip = [("accept-encoding", "gzip")];
    let mut world = World::origin();
    let coded = [FRESH, ("content-encoding", "gzip")];
    world.store(&gzip, &coded, "coded");
    assert_eq!(world.served(&gzip).as_deref(), Some("coded"));
    assert_eq!(world.served(&[]), None);
    assert_eq!(world.served(&[("accept-encoding", "br, gzip;q=0")]), None);
    // Here the origin sends a coding without regard to the request.
    let mut world = World::origin();
    world.store(&[], &coded, "coded");
    assert_eq!(world.served(&[]).as_deref(), Some("coded"));
}

#[test]
fn error_serves_requests_of_the_same_browser() {
    let mut world = World::origin();
    let strange = get(&[("user-agent", "() { :; }")]);
    let fetch = world.fetch(&strange);
    let error = head(403, &[FRESH]);
    let received = world.receive(&fetch, &error, "blocked");
    assert!(matches!(received, Received::Stored(_)));
    assert_eq!(world.served(&[("user-agent", "browser")]), None);
}

#[test]
fn unsafe_method_invalidates_all_overrides() {
    let mut world = World::origin();
    for asked in [&[][..], &[("x-requested-with", "a")], &[("x-other", "b")]] {
        let request = get(asked);
        let group = Group::Origin("h".into());
        let (now, key) = (world.now(), key_of(&request));
        let Lookup::Fetch(fetch, _) = world.cache.lookup(now, &key, group, 1, &request, None)
        else {
            panic!("nothing is stored for {asked:?}");
        };
        world.receive(&fetch, &head(200, &[FRESH]), "old");
    }
    assert_eq!(world.cache.store().len(), 3);
    let key = key_of(&get(&[("x-other", "c")]));
    let now = world.now();
    world.cache.invalidate(
        now,
        &Method::Post,
        &head(200, &[]),
        std::slice::from_ref(&key),
    );
    assert!(world.cache.store().is_empty());
}

#[test]
fn marks_of_long_urls_need_no_memory_for_them() {
    // A mark has a hash of its key.
    let mut world = World::origin();
    let fetch = world.fetch(&get(&[]));
    world.receive(&fetch, &head(200, &[("cache-control", "no-store")]), "");
    let marks: &HashMap<u64, Duration> = &world.cache.passes;
    assert_eq!(marks.len(), 1);
    let personal = world.fetch(&get(&[("cookie", "a=b")]));
    world.cache.passes.clear();
    world.receive(&personal, &head(200, &[("cache-control", "no-store")]), "");
    assert!(world.cache.passes.is_empty(), "no other request could join");
    let refused = world.fetch(&get(&[]));
    world.receive(&refused, &head(429, &[]), "");
    assert!(matches!(world.lookup(2, &get(&[])), Lookup::Fetch(_, None)));
}

#[test]
fn evicted_bodies_count_while_they_are_read() {
    let mut world = World::origin();
    let piece = vec![0; 60_000];
    let mut readers = Vec::new();
    for number in 0..100 {
        let request = RequestHead {
            path: format!("/{number}"),
            ..get(&[])
        };
        let key = key_of(&request);
        let (now, group) = (world.now(), Group::Origin("h".into()));
        let Lookup::Fetch(fetch, _) = world.cache.lookup(now, &key, group, 1, &request, None)
        else {
            panic!("a new URL");
        };
        if let Received::Store(pending) = world.cache.receive(now, &fetch, &head(200, &[FRESH])) {
            let body = vec![Bytes::from(piece.clone())];
            readers.extend(world.cache.finish(*pending, body, None));
        }
    }
    let bound = (1 << 20) + (1 << 18) + piece.len();
    assert!(readers.len() * piece.len() <= bound, "{}", readers.len());
    readers.clear();
    world.store(&[], &[FRESH], "room again");
}

#[test]
fn request_does_not_join_a_flight_before_a_change() {
    let mut world = World::origin();
    let old = world.fetch(&get(&[("x-any", "1")]));
    let key = key_of(&get(&[]));
    let now = world.now();
    world.cache.invalidate(
        now,
        &Method::Post,
        &head(200, &[]),
        std::slice::from_ref(&key),
    );
    world.seconds = 1;
    assert!(matches!(
        world.lookup(1, &get(&[("x-any", "1")])),
        Lookup::Fetch(_, Some(_))
    ));
    world.receive(&old, &head(200, &[FRESH]), "old");
    assert_eq!(world.served(&[("x-any", "1")]), None);
}

/// The state of the reference: the users that fetched each body.
type Fetched = HashMap<String, Vec<u64>>;

proptest::proptest! {
    /// A response serves only requests that a cache without sharing would let it serve, and only
    /// users that may know it.
    #[test]
    fn random_requests_get_only_responses_that_they_may(
        operations in proptest::collection::vec((0u8..6, 1u64..6, 0u8..3, 0u64..40, 0usize..6), 1..80),
        users in 1u8..4,
    ) {
        const CONTROLS: [&str; 6] = [
            "max-age=30", "max-age=5, stale-while-revalidate=9", "no-store", "public, max-age=50",
            "no-cache", "private, max-age=9",
        ];
        let mut world = World::new(Sharing::Shared, users);
        let mut fetched = Fetched::new();
        let mut sent: HashMap<String, (u64, usize)> = HashMap::new();
        for (number, (operation, user, variant, pause, control)) in operations.into_iter().enumerate() {
            world.seconds += pause;
            let variant = variant.to_string();
            let request = get(&[("foo", &variant)]);
            let now = world.now();
            if operation == 5 {
                let key = key_of(&request);
                world.cache.invalidate(now, &Method::Post, &head(200, &[]), std::slice::from_ref(&key));
                sent.clear();
                continue;
            }
            let group = Group::Origin("h".into());
            match world.cache.lookup(now, &key_of(&request), group, user, &request, Some(&|| 7)) {
                Lookup::Hit(stored) => {
                    let body = text(&stored);
                    let (at, control) = sent[&body];
                    let age = world.seconds - at;
                    proptest::prop_assert_eq!(body.split(':').next(), Some(&*variant));
                    proptest::prop_assert!(age < [30, 5, 0, 50, 0, 0][control]);
                    let known: std::collections::HashSet<_> = fetched.values().flatten().collect();
                    proptest::prop_assert!(
                        users == 1 || known.len() >= usize::from(users) || known.contains(&user)
                    );
                }
                Lookup::Stale(stored, fetch) => {
                    let (at, control) = sent[&text(&stored)];
                    proptest::prop_assert!(control == 1 && world.seconds - at <= 14);
                    if let Some((fetch, _)) = fetch {
                        world.cache.end_flight(&fetch);
                    }
                }
                Lookup::Fetch(fetch, _) => {
                    let body = format!("{variant}:{number}");
                    let response = head(200, &[
                        ("cache-control", CONTROLS[control]), ("vary", "Foo"), ("etag", "\"1\""),
                    ]);
                    let received = world.cache.receive(now, &fetch, &response);
                    if let Received::Store(pending) = received {
                        proptest::prop_assert!(control != 2 && control != 5);
                        sent.insert(body.clone(), (world.seconds, control));
                        world.cache.finish(*pending, vec![Bytes::from(body.clone())], None);
                    }
                    fetched.entry(body).or_default().push(user);
                    world.cache.end_flight(&fetch);
                }
                Lookup::Join(_) | Lookup::NotCached => proptest::prop_assert!(false, "none waits"),
            }
            proptest::prop_assert!(world.cache.store().weight() <= 1 << 20);
        }
    }
}

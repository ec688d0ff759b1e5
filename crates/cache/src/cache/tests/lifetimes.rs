//! Fresh and stale responses, validation, errors and invalidation (RFC 9111 section 4).

use super::*;

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

/// nginx gives a body that it compresses a weak tag, and names the strong one in a 304.
#[test]
fn strong_tag_of_a_304_freshens_a_weak_one() {
    let mut world = World::origin();
    world.store(&[], &[FRESH, ("etag", "W/\"1\"")], "body");
    for (seconds, etag) in [(100, "\"1\""), (200, "W/\"1\""), (300, "\"1\"")] {
        world.seconds = seconds;
        let fetch = world.fetch(&get(&[]));
        let update = head(304, &[FRESH, ("etag", etag)]);
        let Received::Stored(stored) = world.receive(&fetch, &update, "") else {
            panic!("a validated response");
        };
        assert_eq!(stored.head.fields.get("etag"), Some(&b"W/\"1\""[..]));
        assert_eq!(world.served(&[]).as_deref(), Some("body"));
    }
    world.seconds = 400;
    let fetch = world.fetch(&get(&[]));
    let other = head(304, &[FRESH, ("etag", "\"2\"")]);
    assert!(matches!(world.receive(&fetch, &other, ""), Received::Again));
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

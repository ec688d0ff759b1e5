//! Personal and private responses: each serves its own user or browser.

use super::*;

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
        (&[("private-token", "x")], &[FRESH], false),
        (
            &[("private-token", "x")],
            &[("cache-control", "public, max-age=60")],
            true,
        ),
        (&[], &[("cache-control", "private, max-age=60")], false),
        (&[], &[("cache-control", "max-age=60, private;")], false),
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
        (&[("private-token", "x")], &[("x-user", "alice")], true),
        (&[], &[("cache-control", "private, max-age=60")], false),
        (&[], &[("cache-control", "max-age=60, private;")], false),
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
fn reload_removes_the_older_response_of_a_push() {
    let response = |tag| [FRESH, ("etag", tag)];
    let push = [("user-agent", "one"), ("accept", "*/*")];
    let browser = [&push[..], &[("sec-fetch-mode", "cors")]].concat();
    let with = |field: (&'static str, &'static str)| {
        let kept = browser.iter().filter(|(name, _)| *name != field.0);
        kept.copied().chain([field]).collect::<Vec<_>>()
    };
    for (field, later, kept) in [
        (("cache-control", "no-cache"), response("\"2\""), None),
        // The content has not changed, or another user has asked.
        (("cache-control", "no-cache"), response("\"1\""), Some("1")),
        (("cookie", "a=b"), response("\"2\""), Some("1")),
        // Another browser, another login or another format.
        (("user-agent", "two"), response("\"2\""), Some("1")),
        (
            ("tandem-auth-connection", "1"),
            response("\"2\""),
            Some("1"),
        ),
        (("accept", "text/html"), response("\"2\""), Some("1")),
    ] {
        let mut world = World::new(Sharing::Private, 1);
        world.store(&push, &response("\"1\""), "1");
        world.store(&with(field), &later, "2");
        assert_eq!(world.served(&push).as_deref(), kept, "{field:?} {later:?}");
    }
}

#[test]
fn fields_of_the_pair_do_not_split_responses() {
    let mut world = World::new(Sharing::Private, 1);
    world.store(&[("dnt", "1")], &[FRESH], "of a push");
    let browser = [("dnt", "1"), ("tandem-opened", "example.org")];
    assert_eq!(world.served(&browser).as_deref(), Some("of a push"));
    assert_eq!(
        world.served(&[("dnt", "1"), ("tandem-auth-connection", "1")]),
        None
    );
}

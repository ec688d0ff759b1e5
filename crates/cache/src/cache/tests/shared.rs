//! Flights that several requests join, and resources that have had enough users.

use super::*;

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
fn user_sees_no_fetch_of_others_before_enough_users() {
    let mut world = World::new(Sharing::Shared, 4);
    let fetch = |world: &mut World, user, body| {
        let Lookup::Fetch(fetch, _) = world.lookup(user, &get(&[])) else {
            panic!("user {user} must not see the fetches of others");
        };
        assert_eq!(fetch.reason(), Reason::UriMiss, "user {user}");
        world.receive(&fetch, &head(200, &[FRESH]), body);
    };
    fetch(&mut world, 1, "first");
    world.seconds = 5;
    fetch(&mut world, 2, "second");
    for (user, body, age) in [(1, "first", 5), (2, "second", 0)] {
        let Lookup::Hit(stored) = world.lookup(user, &get(&[])) else {
            panic!("user {user}");
        };
        let pieces = stored.body.slice(0, stored.body.len());
        assert_eq!(pieces.flatten().collect::<Vec<_>>(), body.as_bytes());
        assert_eq!(stored.age(world.now()).as_secs(), age, "user {user}");
    }
    assert_eq!(
        world.cache.store().len(),
        1,
        "one resource holds both responses"
    );
}

#[test]
fn resource_of_enough_users_keeps_the_newest_response() {
    let mut world = World::new(Sharing::Shared, 2);
    let needed = u64::from(world.cache.needed(&key_of(&get(&[])), None));
    let mut weight = 0;
    for user in 1..=needed {
        let Lookup::Fetch(fetch, _) = world.lookup(user, &get(&[])) else {
            panic!("user {user} must not see the fetches of others");
        };
        world.receive(&fetch, &head(200, &[FRESH]), "body");
        if user == 1 {
            weight = world.cache.store().weight();
        }
    }
    assert_eq!(world.cache.store().weight(), weight);
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

#[test]
fn flight_without_an_end_is_given_up_once() {
    let mut world = World::origin();
    let Lookup::Fetch(fetch, Some(7)) = world.lookup(1, &get(&[])) else {
        panic!("a fetch that leads");
    };
    let (key, now) = (key_of(&get(&[])), world.now());
    world.cache.give_up_flight(now, &key, |token| *token != 7);
    assert!(matches!(world.lookup(2, &get(&[])), Lookup::Join(7)));
    world.cache.give_up_flight(now, &key, |token| *token == 7);
    // The next request does not lead others into another wait.
    assert!(matches!(world.lookup(2, &get(&[])), Lookup::Fetch(_, None)));
    // The response of the first one still serves later requests.
    world.receive(&fetch, &head(200, &[FRESH]), "late");
    assert_eq!(world.served(&[]).as_deref(), Some("late"));
}

/// A 412 serves no other request, and would keep requests for the URL apart for some time.
#[test]
fn condition_for_the_origin_leads_no_flight() {
    let mut world = World::origin();
    world.store(
        &[],
        &[("cache-control", "max-age=1"), ("etag", "\"1\"")],
        "old",
    );
    world.seconds = 10;
    for condition in ["if-match", "if-unmodified-since"] {
        let fetch = match world.lookup(1, &get(&[(condition, "\"2\"")])) {
            Lookup::Fetch(fetch, None) => fetch,
            other => panic!("{other:?}"),
        };
        world.receive(&fetch, &head(412, &[]), "");
    }
    assert!(matches!(
        world.lookup(1, &get(&[])),
        Lookup::Fetch(_, Some(7))
    ));
}

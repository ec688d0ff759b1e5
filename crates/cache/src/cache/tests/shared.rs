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

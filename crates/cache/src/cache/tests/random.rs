//! Random sequences of requests.

use super::*;

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

//! Responses that are stored or not, and the requests that they answer.

use super::*;

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
    let kept = |readers: &[Arc<Stored>]| readers.iter().filter(|it| it.body.is_kept()).count();
    assert!((1..readers.len()).contains(&kept(&readers)));
    world.cache.clear(world.now());
    assert_eq!(kept(&readers), 0, "the store has removed all bodies");
    readers.clear();
    world.store(&[], &[FRESH], "room again");
}

//! Tests of responses to POST that serve later requests with GET (RFC 9110 section 9.3.3).

use super::*;

fn post(fields: &[(&str, &str)]) -> RequestHead {
    RequestHead {
        method: Method::Post,
        ..get(fields)
    }
}

impl World {
    fn post(&mut self, request: &RequestHead) -> Option<Box<Fetch>> {
        let (now, key) = (self.now(), key_of(request));
        self.cache
            .post(now, &key, Group::Origin("h".into()), 1, request)
    }

    /// Passes the head of a response to POST, and then its whole body.
    fn receive_post(&mut self, fetch: &Fetch, response: &ResponseHead, body: &'static str) {
        let (now, asked) = (self.now(), post(&[]));
        let pending = self.cache.receive_post(now, fetch, response);
        self.cache
            .invalidate(now, &Method::Post, response, &[key_of(&asked)]);
        if let Some(pending) = pending {
            let body = vec![Bytes::from_static(body.as_bytes())];
            assert!(self.cache.finish(*pending, body, None).is_some());
        }
    }
}

#[test]
fn post_response_with_a_lifetime_serves_get() {
    let expires = [("expires", "Sun, 06 Nov 1994 09:49:37 GMT")];
    for (asked, status, response, is_stored) in [
        (&[][..], 200, &[FRESH][..], true),
        (&[], 200, &expires, true),
        (&[], 200, &[("cache-control", "s-maxage=9")], true),
        (&[], 200, &[("last-modified", DAY)], false),
        (&[], 200, &[("cache-control", "public")], false),
        (&[], 200, &[("cache-control", "private, max-age=9")], false),
        (&[], 200, &[FRESH, ("set-cookie", "a=b")], false),
        (&[], 200, &[FRESH, ("vary", "*")], false),
        (&[], 201, &[FRESH], false),
        (&[], 404, &[FRESH], false),
        (&[("cookie", "a=b")], 200, &[FRESH], false),
        (&[("authorization", "x")], 200, &[FRESH], false),
        (&[("cache-control", "no-store")], 200, &[FRESH], false),
    ] {
        let mut world = World::origin();
        let fetch = world.post(&post(asked)).expect("a POST request");
        world.seconds += 1;
        world.receive_post(&fetch, &head(status, response), "posted");
        let served = world.served(&[]);
        let expected = is_stored.then_some("posted");
        assert_eq!(
            served.as_deref(),
            expected,
            "{asked:?} {status} {response:?}"
        );
    }
}

#[test]
fn cache_of_several_origins_stores_no_post_response() {
    for sharing in [Sharing::Shared, Sharing::Private] {
        assert!(World::new(sharing, 1).post(&post(&[])).is_none());
    }
    let put = RequestHead {
        method: Method::Put,
        ..get(&[])
    };
    assert!(World::origin().post(&put).is_none());
}

#[test]
fn later_change_outweighs_a_post_response() {
    let mut world = World::origin();
    let fetch = |world: &mut World| world.post(&post(&[])).expect("a POST request");
    let (one, other) = (fetch(&mut world), fetch(&mut world));
    world.seconds += 1;
    world.receive_post(&one, &head(200, &[FRESH]), "one");
    assert_eq!(world.served(&[]).as_deref(), Some("one"));
    world.seconds += 1;
    // The origin may have processed it before the first one.
    world.receive_post(&other, &head(200, &[FRESH]), "other");
    assert_eq!(world.served(&[]), None);
    world.seconds += 1;
    let (late, now) = (fetch(&mut world), world.now());
    let pending = world.cache.receive_post(now, &late, &head(200, &[FRESH]));
    world.seconds += 1;
    let (now, key) = (world.now(), key_of(&get(&[])));
    world
        .cache
        .invalidate(now, &Method::Delete, &head(204, &[]), &[key]);
    let pending = pending.expect("nothing has changed yet");
    world.cache.finish(*pending, Vec::new(), None);
    assert_eq!(world.served(&[]), None, "changed while the body arrived");
}

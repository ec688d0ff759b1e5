//! Unsafe requests, and the flights and responses that they overtake.

use super::super::changes::Marks;
use super::*;

const OWNER: u64 = 1;

/// A request for a path of the origin `h`.
fn get_path(path: &str) -> RequestHead {
    RequestHead::get(Scheme::Http, "h", path)
}

fn post(authority: &str) -> RequestHead {
    RequestHead {
        method: Method::Post,
        ..RequestHead::get(Scheme::Http, authority, "/post")
    }
}

/// A cache of users, each with one key for each URL.
struct Users {
    world: World,
    owner: u64,
}

impl Users {
    fn new(sharing: Sharing) -> Self {
        let world = World::new(sharing, 1);
        let owner = if sharing.is_private() { OWNER } else { 0 };
        Self { world, owner }
    }

    fn lookup(&mut self, request: &RequestHead) -> Lookup<u32> {
        let key = Key::new(self.owner, b"site", request, false).expect("a plain request");
        let (now, group) = (self.world.now(), Group::Owner(self.owner));
        let token = self.world.seconds as u32;
        let token: &dyn Fn() -> u32 = &|| token;
        let cache = &mut self.world.cache;
        cache.lookup(now, &key, group, 1, request, Some(token))
    }

    fn fetch(&mut self, request: &RequestHead) -> Box<Fetch> {
        match self.lookup(request) {
            Lookup::Fetch(fetch, _) => fetch,
            other => panic!("{other:?}"),
        }
    }

    /// Fetches and stores a response in one second.
    fn store(&mut self, response: &[(&str, &str)], body: &'static str) {
        let fetch = self.fetch(&get_path("/"));
        self.world.receive(&fetch, &head(200, response), body);
        self.world.seconds += 1;
    }

    /// Notes an unsafe request and its response, in one second each.
    fn change(&mut self, owner: u64, authority: &str) {
        for _ in 0..2 {
            let now = self.world.now();
            self.world.cache.note_change(now, owner, &post(authority));
            self.world.seconds += 1;
        }
    }
}

const VALIDATED: [(&str, &str); 2] = [("cache-control", "no-cache"), ("etag", "\"1\"")];

#[test]
fn no_request_joins_a_flight_from_before_a_change() {
    for sharing in [
        Sharing::Private,
        Sharing::Client,
        Sharing::Shared,
        Sharing::Origin,
    ] {
        let mut users = Users::new(sharing);
        users.store(&VALIDATED, "old");
        let older = users.fetch(&get_path("/"));
        users.world.seconds += 1;
        assert!(matches!(users.lookup(&get_path("/")), Lookup::Join(_)));
        users.change(users.owner, "H");
        let began = users.world.seconds as u32;
        let newer = users.lookup(&get_path("/"));
        let Lookup::Fetch(newer, Some(token)) = newer else {
            panic!("{sharing:?}: {newer:?}");
        };
        assert_eq!(token, began, "{sharing:?}");
        // The newer flight is open to others, also after the end of the older one.
        users.world.seconds += 1;
        users.world.cache.end_flight(&older);
        let next = users.lookup(&get_path("/"));
        assert!(
            matches!(next, Lookup::Join(token) if token == began),
            "{sharing:?}: {next:?}"
        );
        drop(newer);
    }
}

#[test]
fn flight_during_a_change_serves_nobody_after_it() {
    let mut users = Users::new(Sharing::Private);
    users.store(&VALIDATED, "old");
    let now = users.world.now();
    users.world.cache.note_change(now, OWNER, &post("h"));
    users.world.seconds += 1;
    users.fetch(&get_path("/"));
    users.world.seconds += 1;
    assert!(matches!(users.lookup(&get_path("/")), Lookup::Join(_)));
    let now = users.world.now();
    users.world.cache.note_change(now, OWNER, &post("h"));
    users.world.seconds += 1;
    assert!(matches!(
        users.lookup(&get_path("/")),
        Lookup::Fetch(_, Some(_))
    ));
}

#[test]
fn changes_of_other_origins_and_users_do_not_count() {
    let mut users = Users::new(Sharing::Private);
    users.store(&VALIDATED, "old");
    users.fetch(&get_path("/"));
    users.world.seconds += 1;
    users.change(OWNER, "other");
    users.change(OWNER + 1, "h");
    assert!(matches!(users.lookup(&get_path("/")), Lookup::Join(_)));
}

#[test]
fn overtaken_response_is_validated_before_its_use() {
    for (sharing, is_fresh) in [(Sharing::Private, false), (Sharing::Origin, true)] {
        let mut users = Users::new(sharing);
        let fetch = users.fetch(&get_path("/"));
        users.world.seconds += 1;
        users.change(users.owner, "h");
        let response = head(200, &[FRESH, ("etag", "\"1\"")]);
        users.world.receive(&fetch, &response, "old");
        match users.lookup(&get_path("/")) {
            Lookup::Hit(_) => assert!(is_fresh, "{sharing:?}"),
            Lookup::Fetch(fetch, _) => {
                assert!(!is_fresh, "{sharing:?}");
                assert!(fetch.request().fields.contains("if-none-match"));
                // The validation makes the response fresh.
                users
                    .world
                    .receive(&fetch, &head(304, &[("etag", "\"1\"")]), "");
                users.world.seconds += 1;
                assert!(matches!(users.lookup(&get_path("/")), Lookup::Hit(_)));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn overtaken_response_without_validator_is_not_stored() {
    let mut users = Users::new(Sharing::Private);
    let fetch = users.fetch(&get_path("/"));
    users.change(OWNER, "h");
    users.world.receive(&fetch, &head(200, &[FRESH]), "old");
    assert!(users.world.cache.store().is_empty());
}

#[test]
fn overtaken_confirmation_makes_nothing_fresh() {
    let mut users = Users::new(Sharing::Private);
    users.store(&[("cache-control", "max-age=1"), ("etag", "\"1\"")], "old");
    users.world.seconds += 10;
    let fetch = users.fetch(&get_path("/"));
    users.world.seconds += 1;
    users.change(OWNER, "h");
    let confirmed = head(304, &[FRESH, ("etag", "\"1\"")]);
    let received = users.world.receive(&fetch, &confirmed, "");
    assert!(
        matches!(received, Received::Stored(_)),
        "its own request gets it"
    );
    assert!(matches!(
        users.lookup(&get_path("/")),
        Lookup::Fetch(_, Some(_))
    ));
}

#[test]
fn older_flight_replaces_no_newer_response() {
    for sharing in [Sharing::Private, Sharing::Origin] {
        let mut users = Users::new(sharing);
        users.store(&VALIDATED, "first");
        let older = users.fetch(&get_path("/"));
        users.world.seconds += 1;
        users.change(users.owner, "h");
        let newer = users.fetch(&get_path("/"));
        let response = |tag| head(200, &[FRESH, ("etag", tag)]);
        users.world.receive(&newer, &response("\"3\""), "new");
        users.world.seconds += 1;
        users.world.receive(&older, &response("\"2\""), "old");
        match users.lookup(&get_path("/")) {
            Lookup::Hit(stored) => assert_eq!(text(&stored), "new", "{sharing:?}"),
            other => panic!("{sharing:?}: {other:?}"),
        }
    }
}

#[test]
fn validation_in_the_background_follows_a_change() {
    let control = ("cache-control", "max-age=1, stale-while-revalidate=600");
    let mut users = Users::new(Sharing::Private);
    users.store(&[control, ("etag", "\"1\"")], "old");
    users.world.seconds += 10;
    assert!(matches!(
        users.lookup(&get_path("/")),
        Lookup::Stale(_, Some(_))
    ));
    users.world.seconds += 1;
    assert!(matches!(
        users.lookup(&get_path("/")),
        Lookup::Stale(_, None)
    ));
    users.change(OWNER, "h");
    assert!(matches!(
        users.lookup(&get_path("/")),
        Lookup::Stale(_, Some((_, Some(_))))
    ));
}

#[test]
fn forgotten_marks_count_for_everything() {
    let mut marks = Marks::new(MAX_MARKS);
    let at = |mark: u64| Duration::from_secs(1 + mark / 1024);
    for mark in 0..=MAX_MARKS as u64 {
        marks.note(mark, at(mark));
    }
    assert!((MAX_MARKS / 2..=MAX_MARKS).contains(&marks.len()));
    let (last, unknown) = (at(MAX_MARKS as u64), u64::MAX);
    assert!(marks.may_follow(unknown, at(0)), "a mark was forgotten");
    assert!(!marks.may_follow(unknown, last - Duration::from_secs(5)));
    assert!(marks.may_follow(MAX_MARKS as u64, last));
    // A repeated event needs no more memory.
    let before = marks.len();
    for _ in 0..MAX_MARKS {
        marks.note(MAX_MARKS as u64, last);
    }
    assert_eq!(marks.len(), before);
}

/// Only the marks of the user that changes many origins are forgotten.
#[test]
fn changes_of_one_owner_tell_another_one_nothing() {
    let mut users = Users::new(Sharing::Private);
    let fetch = users.fetch(&get_path("/"));
    users.world.seconds += 1;
    for origin in 0..2 * MAX_MARKS {
        let now = users.world.now();
        let request = post(&format!("{origin}.example"));
        users.world.cache.note_change(now, OWNER + 1, &request);
    }
    users.world.receive(&fetch, &head(200, &[FRESH]), "body");
    assert!(matches!(users.lookup(&get_path("/")), Lookup::Hit(_)));
    // The changes of its own user count.
    users.world.seconds = 1000;
    let fetch = users.fetch(&get_path("/"));
    users.world.seconds += 1;
    users.change(OWNER, "h");
    users.world.receive(&fetch, &head(200, &[FRESH]), "body");
    assert!(!matches!(users.lookup(&get_path("/")), Lookup::Hit(_)));
}

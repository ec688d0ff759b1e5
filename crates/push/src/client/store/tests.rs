//! Scenes of one session's pushes in virtual time, and random ones against the store's invariants.

mod changes;
mod checks;
mod cookies;
mod intake;
mod joins;
mod limits;
mod memory;
mod sharing;

use tandem_http::Scheme;

use super::*;

const LIMITS: StoreLimits = StoreLimits {
    memory: 64 << 10,
    cancel_useless: false,
};

const fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn get(path: &str) -> RequestHead {
    RequestHead {
        fields: [("user-agent", "a")].into_iter().collect(),
        ..RequestHead::get(Scheme::Http, "h.test", path)
    }
}

fn ok(fields: &[(&str, &str)]) -> ResponseHead {
    ResponseHead {
        fields: fields.iter().copied().collect(),
        ..ResponseHead::new(200)
    }
}

const fn ended(push: PushId, wasted: u64) -> Output {
    Output::Ended { push, wasted }
}

/// A store and its clock.
struct Scene {
    store: PushStore,
    now: Instant,
}

impl Scene {
    fn new(limits: StoreLimits) -> Self {
        let now = Instant::now();
        Self {
            store: PushStore::new(limits, now),
            now,
        }
    }

    /// Lets time pass, with the timeouts that fall due.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.store.next_timeout().filter(|at| *at <= end) {
            self.store.handle_timeout(at);
        }
        self.now = end;
    }

    fn promise(&mut self, path: &str) -> PushId {
        match self.store.on_promise(self.now, get(path), true) {
            Intake::Read(id) => id,
            Intake::Cancel => panic!("the push of {path} was cancelled"),
        }
    }

    /// Pushes a complete response.
    fn push(&mut self, path: &str, fields: &[(&str, &str)], body: &'static str) -> PushId {
        let id = self.promise(path);
        self.store.on_head(self.now, id, ok(fields));
        self.store.on_data(self.now, id, Bytes::from(body));
        self.store.on_end(id, true);
        id
    }

    fn ask(&mut self, path: &str) -> Option<Serve> {
        self.store.on_request(self.now, &get(path), false)
    }

    fn ask_with(&mut self, path: &str, field: (&str, &str)) -> Option<Serve> {
        let mut request = get(path);
        request.fields.push(field.0, field.1);
        self.store.on_request(self.now, &request, false)
    }

    fn piece(&mut self, id: PushId) -> Piece {
        self.store.take_piece(self.now, id)
    }

    fn outputs(&mut self) -> Vec<Output> {
        std::iter::from_fn(|| self.store.poll_output()).collect()
    }

    /// The fates that were decided since the last call, and whether the gateway is told.
    fn fates(&mut self) -> Vec<(Fate, bool)> {
        let fates = self
            .outputs()
            .into_iter()
            .filter_map(|output| match output {
                Output::Became {
                    fate, tell_gateway, ..
                } => Some((fate, tell_gateway)),
                _ => None,
            });
        fates.collect()
    }
}

#[test]
fn local_gateway_permits_long_waits_for_heads() {
    for is_local in [false, true] {
        let mut scene = Scene::new(LIMITS);
        if is_local {
            scene.store = PushStore::new(LIMITS, scene.now).with_local_gateway();
        }
        scene.promise("/a");
        scene.pass(secs(30));
        assert_eq!(scene.ask("/a").is_some(), is_local);
    }
}

#[test]
fn local_gateway_needs_no_report_of_its_reset() {
    for is_local in [false, true] {
        let mut scene = Scene::new(LIMITS);
        if is_local {
            scene.store = PushStore::new(LIMITS, scene.now).with_local_gateway();
        }
        let id = scene.promise("/a");
        scene.store.on_end(id, false);
        assert_eq!(scene.fates(), [(Fate::Cancelled, !is_local)]);
        let id = scene.promise("/a");
        scene.store.on_head(scene.now, id, ok(&[]));
        scene.store.on_end(id, false);
        assert_eq!(scene.fates(), [(Fate::Cancelled, true)], "it had a head");
    }
}

#[test]
fn complete_push_answers_once() {
    let mut scene = Scene::new(LIMITS);
    let id = scene.push("/a", &[("tandem-asked", "x"), ("etag", "\"1\"")], "body");
    let serve = scene.ask("/a").expect("the push fits");
    let expected = Serve {
        push: id,
        is_complete: true,
    };
    assert_eq!(serve, expected);
    assert_eq!(scene.ask("/a"), None, "it was given");
    assert_eq!(scene.fates(), [(Fate::Used, true)]);
    assert_eq!(scene.piece(id), Piece::Head(ok(&[("etag", "\"1\"")])));
    assert_eq!(scene.piece(id), Piece::Data(Bytes::from("body")));
    assert_eq!(scene.piece(id), Piece::End);
    scene.store.on_reader_gone(id);
    assert_eq!(
        scene.outputs(),
        [
            Output::WakeArrival(id),
            Output::WakeReader(id),
            ended(id, 0)
        ]
    );
    assert!(scene.store.is_empty() && scene.store.held() == 0);
}

#[test]
fn response_that_must_not_wait_is_read_to_its_end() {
    for head in [
        ok(&[("cache-control", "no-store")]),
        ok(&[("vary", "*")]),
        ResponseHead::new(206),
        ResponseHead::new(500),
    ] {
        let mut scene = Scene::new(LIMITS);
        let id = scene.promise("/a");
        scene.store.on_head(scene.now, id, head);
        assert_eq!(scene.store.held(), 0);
        assert_eq!(scene.ask("/a"), None);
        assert!(scene.store.has_room(id), "it is read on");
        scene.store.on_data(scene.now, id, Bytes::from("xyz"));
        assert_eq!((scene.store.held(), scene.fates()), (0, vec![]));
        scene.store.on_end(id, true);
        let url = url_hash(&get("/a"));
        let expected = Output::Became {
            fate: Fate::Cancelled,
            url,
            tell_gateway: true,
            cookies: None,
        };
        assert_eq!(scene.outputs(), [expected, ended(id, 3)]);
        assert!(scene.store.is_empty());
    }
}

#[test]
fn useless_push_is_cancelled_where_allowed() {
    let mut scene = Scene::new(StoreLimits {
        cancel_useless: true,
        ..LIMITS
    });
    let id = scene.promise("/a");
    scene.store.on_head(scene.now, id, ResponseHead::new(500));
    assert_eq!(scene.outputs(), [Output::Cancel(id)]);
    let post = RequestHead {
        method: Method::Post,
        ..get("/b")
    };
    assert_eq!(
        scene.store.on_promise(scene.now, post, true),
        Intake::Cancel
    );
    assert_eq!(scene.fates(), [(Fate::Cancelled, true)]);
}

#[test]
fn push_of_another_method_is_never_kept() {
    let mut scene = Scene::new(LIMITS);
    let head = RequestHead {
        method: Method::Head,
        ..get("/a")
    };
    assert!(matches!(
        scene.store.on_promise(scene.now, head, true),
        Intake::Read(_)
    ));
    assert_eq!((scene.ask("/a"), scene.store.held()), (None, 0));
}

#[test]
fn second_push_of_a_url_replaces_the_first() {
    let mut scene = Scene::new(LIMITS);
    scene.push("/a", &[], "first");
    let second = scene.push("/a", &[], "second");
    assert_eq!(scene.fates(), [(Fate::Wasted, false)], "the gateway knows");
    assert_eq!(scene.ask("/a").map(|serve| serve.push), Some(second));
    // One that is being read stays.
    let third = scene.push("/a", &[], "third");
    assert_eq!(scene.piece(second), Piece::Head(ok(&[])));
    assert_eq!(scene.ask("/a").map(|serve| serve.push), Some(third));
}

#[test]
fn refused_promise_leaves_the_waiting_push() {
    let head = RequestHead {
        method: Method::Head,
        ..get("/a")
    };
    let large = RequestHead {
        fields: [("x", "y".repeat(64 << 10))].into_iter().collect(),
        ..get("/a")
    };
    for refused in [head, large] {
        for cancel_useless in [false, true] {
            let mut scene = Scene::new(StoreLimits {
                cancel_useless,
                ..LIMITS
            });
            let first = scene.push("/a", &[], "first");
            let intake = scene.store.on_promise(scene.now, refused.clone(), true);
            assert_eq!(intake == Intake::Cancel, cancel_useless);
            assert_consistent(&scene.store);
            assert_eq!(scene.ask("/a").map(|serve| serve.push), Some(first));
            assert_eq!(scene.piece(first), Piece::Head(ok(&[])));
            assert_eq!(scene.piece(first), Piece::Data(Bytes::from("first")));
        }
    }
}

#[test]
fn full_store_replaces_a_push_of_the_same_url() {
    let mut scene = Scene::new(LIMITS);
    let field = "y".repeat(40 << 10);
    for _ in 0..3 {
        let request = RequestHead {
            fields: [("x", field.as_str())].into_iter().collect(),
            ..get("/a")
        };
        assert!(matches!(
            scene.store.on_promise(scene.now, request, true),
            Intake::Read(_)
        ));
        assert_consistent(&scene.store);
        assert!(scene.store.held() > field.len(), "the newest is kept");
    }
    assert_eq!(scene.store.waiting.len(), 1);
}

#[test]
fn push_waits_no_longer_than_its_lifetime() {
    let control = |value: &'static str| [("cache-control", value)];
    let style = ("content-type", "text/css");
    let old = ("last-modified", "Thu, 01 Jan 2015 00:00:00 GMT");
    let date = ("date", "Fri, 01 Jan 2016 00:00:00 GMT");
    // Each row has fields, the last second at which a push serves, and the first at which it does
    // not.
    for (fields, serves, refuses) in [
        (&control("max-age=4")[..], 3, 4),
        (&control("max-age=9000"), 299, 300),
        (&[style, old, date], 29, 30),
        (&[style], 3, 4),
        (&[("content-type", "application/json")], 3, 4),
        (&[], 3, 4),
        (&control("no-cache"), 3, 4),
        (&[("expires", "0")], 3, 4),
    ] {
        for (wait, expected) in [(serves, true), (refuses, false)] {
            let mut scene = Scene::new(LIMITS);
            scene.push("/a", fields, "x");
            scene.now += secs(wait);
            assert_eq!(
                scene.ask("/a").is_some(),
                expected,
                "{fields:?} after {wait} s"
            );
        }
    }
}

#[test]
fn sweep_reports_responses_that_waited_too_long() {
    let mut scene = Scene::new(LIMITS);
    scene.push("/a", &[("cache-control", "max-age=12")], "x");
    scene.push("/b", &[("cache-control", "max-age=60")], "x");
    scene.pass(secs(10));
    assert_eq!(scene.fates(), []);
    scene.pass(secs(10));
    assert_eq!(scene.fates(), [(Fate::Wasted, true)]);
    assert_eq!(scene.store.len(), 1);
    scene.pass(secs(60));
    assert_eq!(scene.fates(), [(Fate::Wasted, true)]);
    assert_eq!((scene.store.next_timeout(), scene.store.held()), (None, 0));
}

#[test]
fn reload_takes_pushes_of_its_own_load_only() {
    let reload = ("cache-control", "max-age=0");
    let mut scene = Scene::new(LIMITS);
    scene.push("/a", &[("cache-control", "max-age=60")], "x");
    scene.now += secs(4);
    assert_eq!(scene.ask_with("/a", reload), None);
    assert!(scene.ask("/a").is_some(), "another request takes it");
    scene.push("/b", &[("cache-control", "max-age=60")], "x");
    assert_eq!(scene.ask_with("/b", ("pragma", "no-cache")), None);
    assert!(scene.ask_with("/b", reload).is_some());
}

#[test]
fn idle_session_serves_complete_responses_only() {
    let mut scene = Scene::new(LIMITS);
    let id = scene.promise("/a");
    scene.store.on_head(scene.now, id, ok(&[]));
    let asked = get("/a");
    assert_eq!(scene.store.on_request(scene.now, &asked, true), None);
    scene.store.on_end(id, true);
    assert!(scene.store.on_request(scene.now, &asked, true).is_some());
}

#[test]
fn stored_response_tells_its_age() {
    let fields = [("cache-control", "max-age=600"), ("age", "20")];
    for (wait, age) in [(30, &b"20"[..]), (31, b"51")] {
        let mut scene = Scene::new(LIMITS);
        let id = scene.push("/a", &fields, "x");
        scene.now += secs(wait);
        scene.ask("/a").expect("it is fresh");
        let Piece::Head(head) = scene.piece(id) else {
            panic!("no head");
        };
        assert_eq!(head.fields.get("age"), Some(age), "after {wait} s");
    }
}

#[test]
fn session_end_counts_waiting_pushes_as_wasted() {
    let mut scene = Scene::new(LIMITS);
    scene.push("/a", &[], "x");
    let read = scene.push("/b", &[], "x");
    scene.ask("/b").expect("it is there");
    scene.fates();
    scene.store.close();
    assert_eq!(scene.fates(), [(Fate::Wasted, true)]);
    assert_eq!(
        scene.piece(read),
        Piece::Head(ok(&[])),
        "its reader goes on"
    );
}

/// A malicious gateway promises, and answers, as much as its streams allow.
#[test]
fn memory_counts_promises_heads_and_trailers() {
    let large = "x".repeat(60 << 10);
    let limits = StoreLimits {
        memory: 32 << 20,
        ..LIMITS
    };
    let wide = |path: &str, field: &str| RequestHead {
        fields: [("x", field)].into_iter().collect(),
        ..get(path)
    };
    for (promise, head, body, trailer) in [
        (&*large, "", 0, ""),
        ("", &*large, 0, ""),
        ("", "", 60 << 10, ""),
        ("", "", 0, &*large),
        ("", "", 0, ""),
        (&large, &large, 60 << 10, &large),
    ] {
        let mut scene = Scene::new(limits);
        let (mut read, mut cancelled) = (Vec::new(), 0);
        for i in 0..10_000 {
            let request = wide(&format!("/{i}"), promise);
            match scene.store.on_promise(scene.now, request, true) {
                Intake::Read(id) => read.push(id),
                Intake::Cancel => cancelled += 1,
            }
            assert!(scene.store.held() <= limits.memory);
        }
        assert!(scene.store.len() <= MAX_PUSHES && cancelled >= 10_000 - MAX_PUSHES);
        for id in read {
            scene.store.on_head(scene.now, id, ok(&[("x", head)]));
            scene
                .store
                .on_data(scene.now, id, Bytes::from(vec![0; body]));
            scene
                .store
                .on_trailers(id, [("x", trailer)].into_iter().collect());
            assert!(scene.store.held() <= limits.memory);
        }
        assert!(kept_text(&scene.store) <= limits.memory);
    }
}

/// The bytes of text and body that a store refers to.
fn kept_text(store: &PushStore) -> usize {
    let kept = store
        .pushes
        .values()
        .filter_map(|pushed| match &pushed.phase {
            Phase::Kept(kept) | Phase::Claimed(kept, _) => Some(kept),
            Phase::Confirmed(_) | Phase::Useless(_) => None,
        });
    kept.map(|kept| {
        let head = kept
            .response
            .as_ref()
            .map_or(0, |response| response.head.fields.text_len());
        let body: usize = kept.body.iter().map(Bytes::len).sum();
        kept.request.fields.text_len()
            + head
            + body
            + kept.trailers.as_ref().map_or(0, Fields::text_len)
    })
    .sum()
}

fn assert_consistent(store: &PushStore) {
    let mut held = 0;
    let mut waiting = 0;
    for (id, pushed) in &store.pushes {
        match &pushed.phase {
            Phase::Kept(kept) => {
                held += kept.held;
                waiting += 1;
                assert_eq!(store.waiting.get(&Target::of(&kept.request)), Some(id));
                assert!(pushed.reported.is_none());
            }
            Phase::Claimed(kept, _) => {
                held += kept.held;
                assert!(pushed.reported.is_some());
            }
            Phase::Confirmed(_) => assert_eq!(pushed.reported, Some(Fate::Validated)),
            Phase::Useless(_) => assert!(pushed.is_arriving, "nothing holds it"),
        }
    }
    assert_eq!((store.held, store.waiting.len()), (held, waiting));
    assert!(store.waiting.is_empty() || store.next_sweep.is_some());
}

proptest::proptest! {
    /// Any events keep the books right, and each push is reported to the gateway at most once.
    #[test]
    fn store_counts_hold_for_events_in_any_order(
        events in proptest::collection::vec((0u8..10, 0usize..12, 0u16..3000), 0..200),
        cancel_useless: bool,
    ) {
        let limits = StoreLimits { memory: 8 << 10, cancel_useless };
        let mut scene = Scene::new(limits);
        let (mut ids, mut promised, mut told, mut asked) = (Vec::new(), 0, 0, Vec::new());
        for (event, which, size) in events {
            let id = ids.get(which % ids.len().max(1)).copied().unwrap_or(PushId(99));
            let path = format!("/{}", which % 5);
            match event {
                0 | 1 => {
                    promised += 1;
                    let has_own_fields = size % 2 == 0;
                    let intake = scene.store.on_promise(scene.now, get(&path), has_own_fields);
                    if let Intake::Read(id) = intake {
                        ids.push(id);
                    }
                }
                2 => {
                    let field = "y".repeat(usize::from(size));
                    scene.store.on_head(scene.now, id, ok(&[("x", &field)]));
                }
                3 => scene.store.on_data(scene.now, id, Bytes::from(vec![0; usize::from(size)])),
                4 => scene.store.on_trailers(id, [("t", "1")].into_iter().collect()),
                5 => scene.store.on_end(id, size % 3 > 0),
                6 => asked.extend(scene.ask(&path).map(|serve| serve.push)),
                7 => drop(scene.piece(id)),
                8 => scene.pass(secs(u64::from(size % 40))),
                _ => if asked.contains(&id) { scene.store.on_reader_gone(id) },
            }
            told += scene.fates().iter().filter(|(_, tell)| *tell).count();
            assert_consistent(&scene.store);
        }
        for id in ids {
            scene.store.on_end(id, true);
            if asked.contains(&id) {
                scene.store.on_reader_gone(id);
            }
        }
        scene.store.close();
        told += scene.fates().iter().filter(|(_, tell)| *tell).count();
        proptest::prop_assert!(scene.store.is_empty() && scene.store.held() == 0);
        proptest::prop_assert!(told <= promised);
    }
}

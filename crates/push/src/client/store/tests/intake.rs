//! The decisions about promises and parts of pushes at the bounds of a store.

use super::*;

#[test]
fn store_without_memory_takes_no_pushes() {
    for (memory, takes) in [(0, false), (1, true)] {
        let scene = Scene::new(StoreLimits { memory, ..LIMITS });
        assert_eq!(scene.store.takes_pushes(), takes);
    }
}

#[test]
fn promise_may_fill_the_memory_to_the_last_byte() {
    let size = size_of_promise(&get("/a"));
    for (memory, is_kept) in [(size, true), (size - 1, false)] {
        let mut scene = Scene::new(StoreLimits { memory, ..LIMITS });
        scene.promise("/a");
        assert_eq!(scene.ask("/a").is_some(), is_kept);
    }
}

#[test]
fn claimed_push_names_its_request() {
    let mut scene = Scene::new(LIMITS);
    let id = scene.promise("/a");
    assert_eq!(scene.store.claimed_request(id), None);
    scene.ask("/a").expect("it arrives");
    assert_eq!(scene.store.claimed_request(id), Some(&get("/a")));
    assert_eq!(scene.store.claimed_request(PushId(99)), None);
}

#[test]
fn promise_without_fields_tells_nothing() {
    for (request, has_own_fields, joins) in [
        (get("/a"), true, false),
        (get("/a"), false, true),
        (RequestHead::get(Scheme::Http, "h.test", "/a"), true, true),
    ] {
        let mut scene = Scene::new(LIMITS);
        scene.store.on_promise(scene.now, request, has_own_fields);
        let asked = scene.ask_with("/a", ("accept-language", "de"));
        assert_eq!(asked.is_some(), joins);
    }
}

#[test]
fn second_head_makes_a_push_useless() {
    let mut scene = Scene::new(LIMITS);
    let id = scene.promise("/a");
    for is_kept in [true, false] {
        scene.store.on_head(scene.now, id, ok(&[]));
        assert_eq!(scene.store.held() > 0, is_kept);
    }
    assert_eq!(scene.ask("/a"), None);
}

#[test]
fn sweep_runs_when_it_is_due() {
    let mut scene = Scene::new(LIMITS);
    assert_eq!(scene.store.next_timeout(), None);
    let id = scene.push("/a", &[("cache-control", "max-age=1")], "x");
    let due = scene.now + SWEEP_INTERVAL;
    assert_eq!(scene.store.next_timeout(), Some(due));
    scene.store.handle_timeout(due - Duration::from_millis(1));
    assert_eq!(scene.store.len(), 1);
    scene.store.handle_timeout(due);
    assert_eq!((scene.store.len(), scene.store.next_timeout()), (0, None));
    assert!(scene.outputs().contains(&ended(id, 1)));
}

#[test]
fn refused_promises_are_read_while_entries_are_left() {
    let mut scene = Scene::new(StoreLimits {
        memory: 0,
        ..LIMITS
    });
    for number in 0..MAX_PUSHES {
        scene.promise(&format!("/{number}"));
    }
    let intake = scene.store.on_promise(scene.now, get("/more"), true);
    assert_eq!(intake, Intake::Cancel);
    assert_eq!(scene.fates(), [(Fate::Cancelled, true)]);
}

#[test]
fn wasted_bytes_are_those_that_no_reader_took() {
    let mut scene = Scene::new(LIMITS);
    let id = scene.push("/a", &[], "four");
    scene.store.on_data(scene.now, id, Bytes::from("late"));
    scene.ask("/a").expect("it is complete");
    scene.store.on_reader_gone(id);
    assert!(scene.outputs().contains(&ended(id, 4)));
    let id = scene.promise("/b");
    scene.ask("/b").expect("it arrives");
    scene.store.on_head(scene.now, id, ok(&[]));
    for data in ["abc", "defgh"] {
        scene.store.on_data(scene.now, id, Bytes::from(data));
    }
    assert_eq!(scene.piece(id), Piece::Head(ok(&[])));
    assert_eq!(scene.piece(id), Piece::Data(Bytes::from("abc")));
    scene.store.on_end(id, true);
    scene.store.on_reader_gone(id);
    assert!(scene.outputs().contains(&ended(id, 5)));
}

#[test]
fn pace_of_an_empty_body_is_not_limited() {
    let mut scene = Scene::new(StoreLimits {
        memory: 4 << 10,
        ..LIMITS
    });
    let id = scene.promise("/a");
    assert!(scene.store.has_room(id), "no reader sets its pace");
    scene.ask("/a").expect("it arrives");
    let head = ok(&[("x", &"y".repeat(8 << 10))]);
    scene.store.on_head(scene.now, id, head);
    assert!(scene.store.held() > 4 << 10);
    assert!(scene.store.has_room(id), "the body has not begun");
    scene.store.on_data(scene.now, id, Bytes::from("x"));
    assert!(!scene.store.has_room(id));
}

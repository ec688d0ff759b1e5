//! Requests that join a push while it arrives, and readers of joined pushes.

use super::*;
use crate::wire::{ASKED_FIELD, NEXT_PAGE_FIELD, RequestHashes};

#[test]
fn request_joins_an_arriving_push() {
    let mut scene = Scene::new(LIMITS);
    let id = scene.promise("/a");
    let serve = scene.ask("/a").expect("it arrives");
    assert!(!serve.is_complete);
    let late = Output::Became {
        fate: Fate::Late,
        url: url_hash(&get("/a")),
        tell_gateway: true,
        cookies: None,
    };
    assert_eq!(scene.outputs(), [late, Output::Raise(id)]);
    assert_eq!(scene.piece(id), Piece::Pending);
    scene.store.on_head(scene.now, id, ok(&[]));
    assert_eq!(scene.outputs(), [Output::WakeReader(id)]);
    assert_eq!(scene.piece(id), Piece::Head(ok(&[])));
    assert_eq!(scene.piece(id), Piece::Pending);
    scene.store.on_data(scene.now, id, Bytes::from("x"));
    assert_eq!(scene.piece(id), Piece::Data(Bytes::from("x")));
    let trailers: Fields = [("t", "1")].into_iter().collect();
    scene.store.on_trailers(id, trailers.clone());
    assert_eq!(scene.piece(id), Piece::Pending, "the end has not come");
    scene.store.on_end(id, true);
    assert_eq!(scene.piece(id), Piece::Trailers(trailers));
    assert_eq!(scene.piece(id), Piece::End);
    assert_eq!(scene.fates(), [], "reported once");
}

/// The gateway promises the resources of a page once it hears of the request.
#[test]
fn document_for_the_next_page_hurries_its_report() {
    for is_next in [false, true] {
        let mut scene = Scene::new(LIMITS);
        let fields = is_next.then_some((NEXT_PAGE_FIELD, "1"));
        scene.push("/a", fields.as_slice(), "x");
        scene.outputs();
        assert!(scene.ask("/a").expect("it is here").is_complete);
        let used = Output::Became {
            fate: Fate::Used,
            url: url_hash(&get("/a")),
            tell_gateway: true,
            cookies: None,
        };
        let hurries = is_next.then_some(Output::HurryReports);
        let expected: Vec<_> = [used].into_iter().chain(hurries).collect();
        assert_eq!(scene.outputs(), expected);
    }
}

#[test]
fn broken_push_never_looks_whole() {
    let mut scene = Scene::new(LIMITS);
    let id = scene.promise("/a");
    scene.ask("/a").expect("it arrives");
    scene.store.on_head(scene.now, id, ok(&[]));
    scene.store.on_data(scene.now, id, Bytes::from("x"));
    scene.store.on_end(id, false);
    assert_eq!(scene.piece(id), Piece::Broken);
    assert!(scene.store.is_empty());
    // A push that no request waits for is reported as useless.
    let id = scene.promise("/b");
    scene.store.on_head(scene.now, id, ok(&[]));
    scene.store.on_end(id, false);
    assert_eq!(scene.ask("/b"), None);
    assert_eq!(scene.fates(), [(Fate::Late, true), (Fate::Cancelled, true)]);
    // Without a head there is no response, whatever the end says.
    let id = scene.promise("/c");
    scene.store.on_end(id, true);
    assert_eq!(scene.ask("/c"), None);
}

#[test]
fn head_without_its_body_is_not_read() {
    for is_reset in [false, true] {
        let mut scene = Scene::new(LIMITS);
        let id = scene.promise("/a");
        scene.store.on_head(scene.now, id, ok(&[("etag", "\"1\"")]));
        assert!(!scene.ask("/a").expect("it arrives").is_complete);
        assert_eq!(scene.piece(id), Piece::Pending);
        if is_reset {
            scene.store.on_end(id, false);
            assert_eq!(scene.piece(id), Piece::Broken);
        } else {
            scene.store.on_data(scene.now, id, Bytes::from("body"));
            assert_eq!(scene.piece(id), Piece::Head(ok(&[("etag", "\"1\"")])));
            assert_eq!(scene.piece(id), Piece::Data(Bytes::from("body")));
        }
    }
}

#[test]
fn head_that_does_not_fit_breaks_a_join() {
    let mut scene = Scene::new(LIMITS);
    let intake = scene.store.on_promise(scene.now, get("/a"), false);
    let Intake::Read(id) = intake else {
        panic!("it was cancelled");
    };
    scene
        .ask_with("/a", ("cookie", "who=anna"))
        .expect("nothing is known yet");
    let asked = RequestHashes::of(&get("/a").fields).encode();
    scene
        .store
        .on_head(scene.now, id, ok(&[(ASKED_FIELD, &asked)]));
    assert_eq!(
        scene.piece(id),
        Piece::Broken,
        "it was asked without the cookie"
    );
}

#[test]
fn no_store_response_serves_only_a_waiting_request() {
    let no_store = || ok(&[("cache-control", "no-store")]);
    let mut scene = Scene::new(LIMITS);
    let id = scene.promise("/a");
    scene.ask("/a").expect("the push is under way");
    scene.store.on_head(scene.now, id, no_store());
    scene.store.on_data(scene.now, id, Bytes::from("xyz"));
    scene.store.on_end(id, true);
    assert!(matches!(scene.piece(id), Piece::Head(head) if head == no_store()));
    assert_eq!(scene.piece(id), Piece::Data(Bytes::from("xyz")));
    assert_eq!(scene.piece(id), Piece::End);
    assert_eq!(scene.ask("/a"), None, "it serves one request");

    let id = scene.promise("/b");
    scene.ask("/b").expect("the push is under way");
    let head = ok(&[("cache-control", "no-store"), ("vary", "*")]);
    scene.store.on_head(scene.now, id, head);
    assert_eq!(scene.piece(id), Piece::Broken);
}

#[test]
fn request_does_not_wait_for_a_late_head() {
    for (wait, joins) in [(5, true), (6, false)] {
        let mut scene = Scene::new(LIMITS);
        scene.promise("/a");
        scene.now += secs(wait);
        assert_eq!(scene.ask("/a").is_some(), joins, "{wait} s");
    }
}

#[test]
fn reader_sets_the_pace_of_a_full_store() {
    let mut scene = Scene::new(StoreLimits {
        memory: 8 << 10,
        ..LIMITS
    });
    let id = scene.promise("/a");
    scene.ask("/a").expect("it arrives");
    scene.store.on_head(scene.now, id, ok(&[]));
    let chunk = Bytes::from(vec![0; 6 << 10]);
    scene.store.on_data(scene.now, id, chunk.clone());
    assert!(scene.store.has_room(id));
    scene.store.on_data(scene.now, id, chunk.clone());
    assert!(!scene.store.has_room(id), "12 KiB are held");
    scene.piece(id);
    assert_eq!(scene.piece(id), Piece::Data(chunk));
    assert!(scene.store.has_room(id));
}

#[test]
fn leaving_reader_frees_the_unread_body() {
    let mut scene = Scene::new(LIMITS);
    let id = scene.promise("/a");
    scene.ask("/a").expect("it arrives");
    scene.store.on_head(scene.now, id, ok(&[]));
    scene.store.on_data(scene.now, id, Bytes::from("abc"));
    scene.store.on_reader_gone(id);
    assert_eq!(scene.store.held(), 0);
    scene.store.on_data(scene.now, id, Bytes::from("def"));
    assert_eq!(scene.store.held(), 0, "the rest is read and thrown away");
    scene.outputs();
    scene.store.on_end(id, true);
    assert_eq!(scene.outputs(), [ended(id, 6)]);
}

//! Two requests for one push.

use super::*;

const FRESH: &[(&str, &str)] = &[("cache-control", "max-age=60")];

/// Returns the push of a promise that a request has claimed, and its copy that another one has.
fn shared(scene: &mut Scene) -> [PushId; 2] {
    let id = scene.promise("/a");
    let first = scene.ask("/a").expect("it arrives").push;
    scene.store.share(first);
    let copy = scene.ask("/a").expect("there is a copy").push;
    assert_ne!(copy, id);
    assert!(
        scene
            .outputs()
            .contains(&Output::Copied { push: copy, of: id })
    );
    [id, copy]
}

fn body(scene: &mut Scene, id: PushId) -> Vec<Piece> {
    std::iter::from_fn(|| Some(scene.piece(id)))
        .take_while(|piece| !matches!(piece, Piece::Pending | Piece::End | Piece::Broken))
        .collect()
}

#[test]
fn copy_gets_all_parts_of_a_push() {
    let mut scene = Scene::new(LIMITS);
    let ids = shared(&mut scene);
    let [id, copy] = ids;
    scene.store.on_head(scene.now, id, ok(FRESH));
    scene.store.on_data(scene.now, id, Bytes::from("x"));
    assert_eq!(body(&mut scene, id).len(), 2);
    scene.store.on_data(scene.now, id, Bytes::from("y"));
    scene.store.on_trailers(id, Fields::default());
    scene.store.on_end(id, true);
    let pieces = body(&mut scene, copy);
    assert_eq!(
        pieces[1..3],
        [Piece::Data("x".into()), Piece::Data("y".into())]
    );
    assert_eq!(body(&mut scene, id)[0], Piece::Data("y".into()));
    for id in ids {
        assert_eq!(scene.piece(id), Piece::End);
        scene.store.on_reader_gone(id);
    }
    assert!(scene.store.is_empty() && scene.store.held() == 0);
    assert_eq!(scene.fates(), [], "the first claim was reported before");
}

#[test]
fn token_or_cookie_serves_one_request() {
    for fields in [
        &[][..],
        &[("etag", "\"1\"")],
        &[("cache-control", "no-cache")],
        &[("cache-control", "no-store")],
        &[FRESH[0], ("set-cookie", "session=1")],
    ] {
        let mut scene = Scene::new(LIMITS);
        let [id, copy] = shared(&mut scene);
        scene.store.on_head(scene.now, id, ok(fields));
        assert_eq!(scene.piece(copy), Piece::Broken, "{fields:?}");
        scene.store.on_data(scene.now, id, Bytes::from("x"));
        scene.store.on_end(id, true);
        assert_eq!(body(&mut scene, id).len(), 2, "{fields:?}");
        scene.store.on_reader_gone(id);
        scene.store.on_reader_gone(copy);
        assert!(scene.store.is_empty() && scene.store.held() == 0);
    }
}

/// The head is there before the first request, so no copy is made at all.
#[test]
fn known_token_or_cookie_is_not_copied() {
    for fields in [&[][..], &[FRESH[0], ("set-cookie", "session=1")]] {
        let mut scene = Scene::new(LIMITS);
        let id = scene.push("/a", fields, "body");
        scene.ask("/a").expect("it is there");
        scene.store.share(id);
        assert_eq!(scene.store.len(), 1, "{fields:?}");
    }
}

#[test]
fn copy_ends_with_the_requests_for_which_it_was_kept() {
    let mut scene = Scene::new(LIMITS);
    let id = scene.push("/a", FRESH, "body");
    scene.store.drop_copy(&get("/a"));
    scene.ask("/a").expect("the push itself waits on");
    scene.store.share(id);
    scene.store.drop_copy(&get("/b"));
    assert_eq!(scene.store.len(), 2, "another resource");
    scene.store.drop_copy(&get("/a"));
    assert_eq!(scene.store.len(), 1);
    assert_eq!(scene.ask("/a"), None);
    assert_eq!(body(&mut scene, id).len(), 2, "its request is served");
}

#[test]
fn unclaimed_copy_is_no_waste() {
    let mut scene = Scene::new(LIMITS);
    let id = scene.push("/a", FRESH, "body");
    scene.ask("/a").expect("it is there");
    scene.store.share(id);
    body(&mut scene, id);
    scene.store.on_reader_gone(id);
    assert_eq!(scene.fates(), [(Fate::Used, true)]);
    scene.pass(secs(301));
    assert!(scene.store.is_empty() && scene.store.held() == 0);
    let wasted = |output: &Output| matches!(output, Output::Ended { wasted, .. } if *wasted > 0);
    assert!(!scene.outputs().iter().any(wasted));
}

#[test]
fn push_is_shared_once_and_only_before_it_is_read() {
    let mut scene = Scene::new(LIMITS);
    let id = scene.push("/a", FRESH, "body");
    scene.store.share(id);
    assert_eq!(scene.store.len(), 1, "no request has claimed it");
    scene.ask("/a").expect("it is there");
    scene.piece(id);
    scene.store.share(id);
    assert_eq!(scene.store.len(), 1, "its head was read");
}

#[test]
fn push_is_cancelled_once_all_its_requests_are_gone() {
    for first in [0, 1] {
        let mut scene = Scene::new(StoreLimits {
            cancel_useless: true,
            ..LIMITS
        });
        let ids = shared(&mut scene);
        let cancelled = Output::Cancel(ids[0]);
        scene.store.on_head(scene.now, ids[0], ok(FRESH));
        scene.store.on_reader_gone(ids[first]);
        assert!(!scene.outputs().contains(&cancelled), "the other one reads");
        scene.store.on_data(scene.now, ids[0], Bytes::from("x"));
        assert_eq!(body(&mut scene, ids[1 - first]).len(), 2);
        scene.store.on_reader_gone(ids[1 - first]);
        assert!(scene.outputs().contains(&cancelled));
    }
}

#[test]
fn push_serves_a_bounded_number_of_requests() {
    let mut scene = Scene::new(LIMITS);
    let mut id = scene.promise("/a");
    let mut served = 0;
    while let Some(serve) = scene.ask("/a") {
        id = serve.push;
        served += 1;
        scene.store.share(id);
    }
    assert_eq!(served, 16, "the last copy is {id:?}");
}

//! Promises of HEAD: the store answers conditional requests with their heads.

use super::*;

/// A 304 with this entity tag, as the gateway sends the head of a check.
fn tagged(tag: &str) -> ResponseHead {
    ResponseHead {
        fields: [("etag", tag)].into_iter().collect(),
        ..ResponseHead::new(304)
    }
}

impl Scene {
    fn check(&mut self, path: &str) -> PushId {
        let request = RequestHead {
            method: Method::Head,
            ..get(path)
        };
        match self.store.on_promise(self.now, request, true) {
            Intake::Read(id) => id,
            Intake::Cancel => panic!("the check of {path} was cancelled"),
        }
    }

    fn end_check(&mut self, id: PushId, head: ResponseHead) {
        self.store.on_head(self.now, id, head);
        self.store.on_end(id, true);
    }
}

const COPY: (&str, &str) = ("if-none-match", "\"1\"");

#[test]
fn check_confirms_the_same_version_only() {
    for (field, is_confirmed) in [
        (COPY, true),
        // The gateway has decoded the body of this copy.
        (("if-none-match", "W/\"1\""), true),
        (("if-none-match", "\"2\""), false),
        (
            ("if-modified-since", "Sun, 06 Nov 1994 08:49:37 GMT"),
            false,
        ),
        (("accept", "*/*"), false),
    ] {
        let mut scene = Scene::new(LIMITS);
        let id = scene.check("/a");
        scene.end_check(id, tagged("\"1\""));
        let served = scene.ask_with("/a", field);
        assert_eq!(served.is_some(), is_confirmed, "{field:?}");
        assert_consistent(&scene.store);
        let fate = match is_confirmed {
            true => Fate::Validated,
            false => Fate::Cancelled,
        };
        assert_eq!(scene.fates(), [(fate, true)]);
        if is_confirmed {
            assert_eq!(scene.piece(id), Piece::Head(tagged(field.1)));
            assert_eq!(scene.piece(id), Piece::End);
            scene.store.on_reader_gone(id);
        }
        assert!(scene.store.is_empty() && scene.store.held() == 0);
    }
}

#[test]
fn conditional_request_joins_a_check_without_a_head() {
    for (head, is_confirmed) in [
        (tagged("\"1\""), true),
        (tagged("\"2\""), false),
        (ok(&[("etag", "\"1\"")]), false),
        (ResponseHead::new(304), false),
    ] {
        let mut scene = Scene::new(LIMITS);
        let id = scene.check("/a");
        let served = scene.ask_with("/a", COPY).expect("the head comes soon");
        assert_eq!((served.push, served.is_complete), (id, false));
        assert!(scene.fates().is_empty(), "the head decides");
        assert_eq!(scene.piece(id), Piece::Pending);
        scene.end_check(id, head.clone());
        assert_consistent(&scene.store);
        assert!(scene.outputs().contains(&Output::WakeReader(id)));
        let expected = match is_confirmed {
            true => Piece::Head(head),
            false => Piece::Broken,
        };
        assert_eq!(scene.piece(id), expected);
        scene.store.on_reader_gone(id);
        assert!(scene.store.is_empty() && scene.store.held() == 0);
    }
}

/// The request for a document, as a browser and the gateway make it.
fn document() -> RequestHead {
    let mut request = get("/a");
    request.fields.push("accept", "text/html");
    request
}

impl Scene {
    /// Promises the document to which a redirect leads.
    fn promise_document(&mut self) -> PushId {
        match self.store.on_promise(self.now, document(), true) {
            Intake::Read(id) => id,
            Intake::Cancel => panic!("the document was cancelled"),
        }
    }
}

#[test]
fn conditional_request_joins_a_document() {
    for (tag, is_confirmed) in [("\"1\"", true), ("\"2\"", false)] {
        let mut scene = Scene::new(LIMITS);
        let id = scene.promise_document();
        let mut request = document();
        request.fields.push(COPY.0, COPY.1);
        let served = scene.store.on_request(scene.now, &request, false);
        assert!(!served.expect("its fetch has begun").is_complete);
        assert_eq!(scene.fates(), [(Fate::Late, true)]);
        scene.store.on_head(scene.now, id, ok(&[("etag", tag)]));
        assert_consistent(&scene.store);
        let outputs = scene.outputs();
        assert!(outputs.contains(&Output::WakeReader(id)));
        let validated = Output::Became {
            fate: Fate::Validated,
            url: url_hash(&request),
            tell_gateway: true,
            cookies: None,
        };
        assert_eq!(outputs.contains(&validated), is_confirmed);
        scene.store.on_data(scene.now, id, Bytes::from("body"));
        scene.store.on_end(id, true);
        if is_confirmed {
            assert_eq!(scene.piece(id), Piece::Head(tagged(tag)));
        } else {
            assert_eq!(scene.piece(id), Piece::Head(ok(&[("etag", tag)])));
            assert_eq!(scene.piece(id), Piece::Data(Bytes::from("body")));
        }
        assert_eq!(scene.piece(id), Piece::End);
        scene.store.on_reader_gone(id);
        assert_eq!(scene.fates(), [], "reported before");
        assert!(scene.store.is_empty() && scene.store.held() == 0);
    }
}

#[test]
fn unstorable_document_waits_briefly_for_its_request() {
    for (wait, is_served) in [(1, true), (3, false)] {
        let mut scene = Scene::new(LIMITS);
        let id = scene.promise_document();
        let head = ok(&[("cache-control", "no-store")]);
        scene.store.on_head(scene.now, id, head);
        scene.store.on_end(id, true);
        scene.pass(secs(wait));
        let served = scene.store.on_request(scene.now, &document(), false);
        assert_eq!(served.is_some(), is_served, "after {wait} s");
        scene.store.close();
        scene.store.on_reader_gone(id);
        assert!(scene.store.is_empty() && scene.store.held() == 0);
    }
}

#[test]
fn withdrawn_check_breaks_its_waiting_request() {
    let mut scene = Scene::new(LIMITS);
    let id = scene.check("/a");
    assert!(scene.ask_with("/a", COPY).is_some());
    scene.store.on_end(id, false);
    assert_eq!(scene.piece(id), Piece::Broken);
    scene.store.on_reader_gone(id);
    assert_eq!(scene.fates(), [(Fate::Cancelled, true)]);
    assert!(scene.store.is_empty() && scene.store.held() == 0);
}

#[test]
fn check_is_no_push_of_a_body() {
    let mut scene = Scene::new(LIMITS);
    let id = scene.check("/a");
    assert_eq!(scene.ask("/a"), None, "the browser has no copy");
    scene.end_check(id, tagged("\"1\""));
    assert!(scene.store.is_empty());
    // A full response to HEAD serves nothing either.
    let id = scene.check("/a");
    scene.end_check(id, ok(&[("etag", "\"1\"")]));
    assert_eq!(scene.ask_with("/a", COPY), None);
    assert!(scene.store.is_empty());
    // The 304 of a push with a body is refused.
    let id = scene.promise("/a");
    scene.end_check(id, tagged("\"1\""));
    assert_eq!(scene.ask_with("/a", COPY), None);
    assert!(scene.store.is_empty());
}

#[test]
fn refused_request_leaves_the_check() {
    let mut scene = Scene::new(LIMITS);
    let id = scene.check("/a");
    assert_eq!(scene.ask_with("/a", ("range", "bytes=0-1")), None);
    scene.end_check(id, tagged("\"1\""));
    assert_eq!(scene.ask_with("/a", COPY).map(|it| it.push), Some(id));
}

#[test]
fn check_replaces_a_promise_without_a_head() {
    let mut scene = Scene::new(LIMITS);
    let first = scene.promise("/a");
    let check = scene.check("/a");
    assert_consistent(&scene.store);
    assert_eq!(scene.fates(), [(Fate::Wasted, false)]);
    scene.end_check(check, tagged("\"1\""));
    assert_eq!(scene.ask_with("/a", COPY).map(|it| it.push), Some(check));
    scene.store.on_end(first, false);
    scene.store.on_reader_gone(check);
    assert!(scene.store.is_empty());
}

//! Scenes of resources and documents that a browser requests for a page that its user may never
//! open.

use tandem_push::gateway::{Audience, Config, Output, PromiseStream};

use crate::scene::{HTML, NAVIGATION, SITE, Scene, head};

fn one_user() -> Scene {
    Scene::new(Config {
        audience: Audience::OneUser,
        ..Config::default()
    })
}

#[test]
fn resources_for_later_pages_count_as_lazy_ones() {
    let links = (0..20).map(|at| {
        let destination = ["", "as=script", "as=style", "as=font", "as=image"][at % 5];
        format!("<link rel=prefetch href=/{at} {destination}>")
    });
    let links: String = links.collect();
    let mut scene = Scene::new(Config::default());
    let page = scene.page(&links);
    assert_eq!(scene.paths(PromiseStream::Response(page)).len(), 16);
    let mut scene = one_user();
    let page = scene.page(&links);
    assert!(scene.paths(PromiseStream::Response(page)).is_empty());
}

/// The browser requests the script for a later page, and an image because it is near.
#[test]
fn prefetched_resource_is_not_part_of_the_next_visit() {
    const BODY: &str = "<link rel=prefetch as=script href=/b.js><img loading=lazy src=/a.png>";
    let html = [("content-type", "text/html"), ("etag", "\"1\"")];
    let page = format!("{SITE}/page");
    let referrer = ("referer", &*page);
    let mut scene = one_user();
    let first = scene.ask("/page", NAVIGATION);
    scene.head(first, &mut head(200, &html));
    scene.gateway.handle_data(first, BODY.as_bytes());
    assert_eq!(
        scene.paths(PromiseStream::Response(first)),
        ["/learned.png"]
    );
    for (path, fields) in [
        ("/b.js", &[("purpose", "prefetch"), referrer][..]),
        ("/a.png", &[referrer]),
    ] {
        let own = scene.ask(path, fields);
        scene.head(own, &mut head(404, &[]));
        scene.end(own);
    }
    scene.end(first);
    let second = scene.ask("/page", NAVIGATION);
    assert_eq!(scene.paths(PromiseStream::Response(second)), ["/a.png"]);
}

#[test]
fn prefetched_document_gets_no_promise() {
    for fields in [
        &[("purpose", "prefetch"), NAVIGATION[0]][..],
        &[("sec-purpose", "prefetch"), ("sec-fetch-dest", "empty")],
        &[("x-moz", "prefetch"), NAVIGATION[0]],
    ] {
        for audience in [Audience::Shared, Audience::OneUser] {
            let mut scene = Scene::new(Config {
                audience,
                ..Config::default()
            });
            let next = scene.ask("/next.html", fields);
            let link = ("link", "</a.css>; rel=preload; as=style");
            let mut answer = head(200, &[HTML[0], HTML[1], link]);
            let interest = scene.head(next, &mut answer);
            assert!(!interest.promises, "{fields:?}");
            assert!(!answer.fields.contains("tandem-push"), "{fields:?}");
            scene.gateway.handle_data(next, b"<img src=/a.png>");
            assert!(scene.paths(PromiseStream::Response(next)).is_empty());
            let moved = scene.ask("/old", fields);
            scene.head(moved, &mut head(302, &[("location", "/new")]));
            assert!(scene.paths(PromiseStream::Response(moved)).is_empty());
            let counts = scene.gateway.take_counts();
            assert_eq!((counts.pages_pushed, counts.promised), (0, 0));
        }
    }
}

/// The images of a complete page wait for their turn. The user leaves the page by a link, but not
/// by a prefetch.
#[test]
fn prefetch_does_not_leave_the_page() {
    for (field, is_left) in [(NAVIGATION[0], true), (("purpose", "prefetch"), false)] {
        let mut scene = Scene::new(Config {
            audience: Audience::OneUser,
            fetches: 1,
            ..Config::default()
        });
        assert!(scene.gateway.open_companion(true));
        let page = scene.page("<img src=/0.png><img src=/1.png>");
        let fetches = scene.promises(PromiseStream::Response(page));
        assert_eq!(scene.begun(), fetches[..1]);
        scene.end(page);
        let next = scene.ask("/next.html", &[NAVIGATION[0], field]);
        scene.head(next, &mut head(200, HTML));
        let cancelled = Output::Cancel { fetch: fetches[1] };
        assert_eq!(scene.outputs().contains(&cancelled), is_left, "{field:?}");
    }
}

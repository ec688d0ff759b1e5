//! Tests of connections in advance, in virtual time, with an origin that a script controls.

use std::time::Duration;

use super::super::tests_scripted::{Behaviour, REGULAR, Scene, THINKS, run};
use super::UNKNOWN;

const PAGE: [(&str, &str); 2] = [("accept", "text/html,*/*"), ("sec-fetch-dest", "document")];

/// Requests a page, and then `resources` resources at once.
async fn visit(scene: &Scene, resources: usize) {
    let page = scene.fetch_with("/page", &PAGE);
    scene.expect("/page", page).await;
    let paths: Vec<_> = (0..resources).map(|number| format!("/{number}")).collect();
    let fetched: Vec<_> = paths.iter().map(|path| scene.fetch(path)).collect();
    for (path, fetched) in paths.iter().zip(fetched) {
        scene.expect(path, fetched).await;
    }
}

#[test]
fn first_page_opens_connections_while_it_is_requested() {
    run(async {
        let scene = Scene::ahead(REGULAR, 6, 6);
        let page = scene.fetch_with("/page", &PAGE);
        tokio::time::sleep(THINKS / 2).await;
        assert_eq!((scene.seen.dials.get(), scene.requests()), (UNKNOWN, 1));
        scene.expect("/page", page).await;
        let resources = ["/a", "/b", "/c", "/d"].map(|path| (path, scene.fetch(path)));
        for (path, fetched) in resources {
            scene.expect(path, fetched).await;
        }
        assert_eq!(scene.seen.dials.get(), UNKNOWN, "they carry the requests");
    });
}

#[test]
fn only_pages_of_browsers_open_connections() {
    run(async {
        for (ahead, fields) in [
            (6, &[("accept", "image/png,*/*")][..]),
            (6, &[("accept", "text/html"), ("sec-fetch-dest", "iframe")]),
            (0, &PAGE),
        ] {
            let scene = Scene::ahead(REGULAR, 6, ahead);
            let fetched = scene.fetch_with("/only", fields);
            scene.expect("/only", fetched).await;
            assert_eq!(scene.seen.dials.get(), 1, "{fields:?}");
        }
    });
}

#[test]
fn later_page_opens_the_connections_of_the_last_one() {
    run(async {
        const LONG: Duration = Duration::from_secs(100);
        let scene = Scene::ahead(REGULAR, 8, 6);
        let mut before = 0;
        for (resources, expected) in [(0, UNKNOWN), (3, 2), (30, 8), (0, 6), (0, 1)] {
            visit(&scene, resources).await;
            let dials = scene.seen.dials.get() - before;
            assert_eq!(dials, expected, "with {resources} resources");
            before = scene.seen.dials.get();
            tokio::time::sleep(LONG).await;
            assert_eq!(scene.seen.open.get(), 0);
        }
    });
}

#[test]
fn connections_in_advance_stay_below_the_limit() {
    run(async {
        let slow = Behaviour {
            thinks: THINKS * 10,
            ..REGULAR
        };
        let scene = Scene::ahead(slow, 6, 6);
        let page = scene.fetch_with("/page", &PAGE);
        let paths: Vec<_> = (0..20).map(|number| format!("/{number}")).collect();
        let fetched: Vec<_> = paths.iter().map(|path| scene.fetch(path)).collect();
        scene.expect("/page", page).await;
        for (path, fetched) in paths.iter().zip(fetched) {
            scene.expect(path, fetched).await;
        }
        assert_eq!((scene.seen.greatest.get(), scene.requests()), (6, 21));
    });
}

#[test]
fn page_on_an_open_connection_opens_none() {
    run(async {
        let scene = Scene::ahead(REGULAR, 6, 6);
        scene.begin().await;
        visit(&scene, 0).await;
        assert_eq!(scene.seen.dials.get(), 1);
    });
}

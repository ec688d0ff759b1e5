//! Scenes of pushes that cost their origin a request for nothing, and of those that are not made
//! for that reason.

use tandem_push::gateway::{Carrier, Config, Output};

use crate::scene::{self, Scene};

/// The promise may wait behind other data, and the request overtakes it.
#[test]
fn request_of_the_browser_ends_a_push_that_has_not_begun() {
    for is_taken in [false, true] {
        let mut scene = Scene::new(Config::default());
        let page = scene.page("<img src=/1.png>");
        let carrier = Carrier::Response(page);
        let promise = is_taken
            .then(|| scene.gateway.take_promise(carrier))
            .flatten();
        let own = scene.ask("/1.png", &[("referer", "http://a.test/page")]);
        scene.head(own, &mut scene::head(200, &[("content-type", "image/png")]));
        scene.end(own);
        if let Some(promise) = promise {
            let (now, fetch) = (scene.now, promise.fetch);
            assert!(scene.outputs().contains(&Output::Cancel { fetch }));
            scene.gateway.queue_fetch(now, fetch);
        }
        assert_eq!(scene.promises(carrier), []);
        assert_eq!(scene.begun(), []);
    }
}

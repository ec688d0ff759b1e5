//! Scenes of one user whose browser gets new cookies from the parts of a page. The early requests
//! that have not begun carry them, as the browser's own later requests do.

use tandem_http::RequestHead;
use tandem_push::gateway::{Audience, Config, FetchId, Output, PromiseStream, ResponseId};
use tandem_push::wire::Fate;

use crate::scene::{NAVIGATION, SITE, Scene, head};

const IMAGE: (&str, &str) = ("content-type", "image/png");
const REFERRER: (&str, &str) = ("referer", "http://a.test/page");

/// A page whose first image is on its way, with the fetches of its four images.
struct Loading {
    scene: Scene,
    page: ResponseId,
    fetches: Vec<FetchId>,
}

impl Loading {
    fn new() -> Self {
        let mut scene = Scene::new(Config {
            audience: Audience::OneUser,
            // The first response arrives before the other requests begin.
            fetches: 1,
            ..Config::default()
        });
        let page = scene.page("<img src=/0.png><img src=/1.png><img src=/2.png><img src=/3.png>");
        let fetches = scene.promises(PromiseStream::Response(page));
        assert_eq!(scene.begun(), fetches[..1]);
        Self {
            scene,
            page,
            fetches,
        }
    }

    /// Passes the response of a fetch. The next one begins then.
    fn respond(&mut self, at: usize, fields: &[(&str, &str)]) {
        let fetch = self.fetches[at];
        self.scene.fetch_head(fetch, fields).expect("it is pushed");
        self.scene.gateway.handle_fetch_end(self.scene.now, fetch);
    }

    /// Returns the path and the cookie of the requests that have begun since the last call.
    fn begun(&mut self) -> Vec<(String, Option<String>)> {
        let outputs = self.scene.outputs().into_iter();
        let begun = outputs.filter_map(|output| match output {
            Output::Fetch { request, .. } => Some((request.path.clone(), cookie(&request))),
            _ => None,
        });
        begun.collect()
    }

    /// Returns the cookie of the promise of an image that the page names now; `None` without a
    /// promise.
    fn named_now(&mut self) -> Option<Option<String>> {
        let page = self.page;
        self.scene.gateway.handle_data(page, b"<img src=/late.png>");
        let promise = self
            .scene
            .gateway
            .take_promise(PromiseStream::Response(page))?;
        Some(cookie(&promise.request))
    }
}

fn cookie(request: &RequestHead) -> Option<String> {
    let cookie = request.fields.get("cookie")?;
    Some(String::from_utf8_lossy(cookie).into_owned())
}

fn image(at: usize, cookie: Option<&str>) -> (String, Option<String>) {
    (format!("/{at}.png"), cookie.map(str::to_owned))
}

#[test]
fn new_cookie_of_a_received_part_is_carried() {
    for (is_requested, field, expected) in [
        (true, "new=1", Some("new=1")),
        (true, "new=1; Path=/other", None),
        (true, "new=1; Path=/1.png", Some("new=1")),
        // The browser does not have the response yet.
        (false, "new=1", None),
    ] {
        let mut loading = Loading::new();
        if is_requested {
            loading.scene.report(Fate::Late, "/0.png");
        }
        loading.respond(0, &[IMAGE, ("set-cookie", field)]);
        assert_eq!(loading.begun(), [image(1, expected)], "{field}");
    }
}

#[test]
fn new_cookie_is_carried_once_the_browser_gets_it() {
    for (fate, expected) in [(Fate::Used, Some("new=1")), (Fate::Wasted, None)] {
        let mut loading = Loading::new();
        loading.respond(0, &[IMAGE, ("set-cookie", "new=1")]);
        assert_eq!(loading.begun(), [image(1, None)]);
        loading.scene.report(fate, "/0.png");
        loading.respond(1, &[IMAGE]);
        assert_eq!(loading.begun(), [image(2, expected)], "{fate:?}");
        let late = loading.named_now().expect("a promise");
        assert_eq!(late.as_deref(), expected, "{fate:?}");
    }
}

/// The early request was made before the first cookie, and the browser's after it. So the browser
/// gets another response than that of the early request.
#[test]
fn cookie_of_a_response_for_nobody_is_left_out() {
    let mut loading = Loading::new();
    let own = loading.scene.ask("/own.gif", &[REFERRER]);
    let fields = [("content-type", "image/gif"), ("set-cookie", "id=1")];
    loading.scene.head(own, &mut head(200, &fields));
    loading.scene.report(Fate::Late, "/0.png");
    loading.respond(0, &[IMAGE, ("set-cookie", "id=2")]);
    assert_eq!(loading.begun(), [image(1, Some("id=1"))]);
}

/// A browser makes several requests over its connections before the first of them sets a cookie.
#[test]
fn several_new_cookies_follow_each_other() {
    let mut loading = Loading::new();
    let own = ["/1.gif", "/2.gif", "/3.gif"].map(|path| loading.scene.ask(path, &[REFERRER]));
    for (at, own) in own.into_iter().enumerate() {
        let set = format!("id={at}");
        let fields = [("content-type", "image/gif"), ("set-cookie", set.as_str())];
        loading.scene.head(own, &mut head(200, &fields));
        loading.respond(at, &[IMAGE]);
        assert_eq!(loading.begun(), [image(at + 1, Some(&set))]);
    }
    // This one has a cookie that the page has never had.
    let other = loading.scene.ask("/4.gif", &[REFERRER, ("cookie", "id=9")]);
    let fields = [("content-type", "image/gif"), ("set-cookie", "new=1")];
    loading.scene.head(other, &mut head(200, &fields));
    assert_eq!(loading.named_now(), None);
}

#[test]
fn doubtful_cookies_end_the_requests() {
    let image = ("content-type", "image/gif");
    let html = ("content-type", "text/html");
    let set = ("set-cookie", "new=1");
    let other = ("cookie", "id=1");
    for (asked, answered, goes_on) in [
        (&[REFERRER][..], &[image, set][..], true),
        (&[REFERRER], &[html, set], false),
        (
            &[REFERRER],
            &[image, ("set-cookie", "new=1; expires=soon")],
            false,
        ),
        (&[REFERRER, other], &[image, set], false),
        (&[], &[image, set], false),
        (&[("referer", "http://a.test/other")], &[image, set], false),
    ] {
        let mut loading = Loading::new();
        let own = loading.scene.ask("/own.gif", asked);
        loading.scene.head(own, &mut head(200, answered));
        loading.respond(0, &[IMAGE]);
        assert_eq!(
            loading.begun().len(),
            usize::from(goes_on),
            "{asked:?} {answered:?}"
        );
    }
}

/// The second page of the same URL may be that of another window.
#[test]
fn cookie_of_two_equal_pages_ends_the_requests() {
    let mut loading = Loading::new();
    let again = loading.scene.ask("/page", NAVIGATION);
    let html = [("content-type", "text/html"), ("etag", "\"1\"")];
    loading.scene.head(again, &mut head(200, &html));
    loading
        .scene
        .gateway
        .handle_data(again, b"<img src=/9.png>");
    let fetches = loading.scene.promises(PromiseStream::Response(again));
    loading.scene.outputs();
    let own = loading.scene.ask("/own.gif", &[REFERRER]);
    let fields = [("content-type", "image/gif"), ("set-cookie", "new=1")];
    loading.scene.head(own, &mut head(200, &fields));
    let outputs = loading.scene.outputs();
    let is_cancelled = |id: &FetchId| {
        let of_fetch = |output: &Output| matches!(output, Output::Cancel { fetch } if fetch == id);
        outputs.iter().any(of_fetch)
    };
    assert!(fetches.iter().all(is_cancelled), "{SITE}: {outputs:?}");
}

/// Each change costs time for each early request that waits.
#[test]
fn page_follows_a_few_changes_of_cookies() {
    let mut loading = Loading::new();
    let own: Vec<_> = (0..9)
        .map(|at| loading.scene.ask(&format!("/{at}.gif"), &[REFERRER]))
        .collect();
    for (at, own) in own.into_iter().enumerate() {
        let set = format!("c{at}=1");
        let fields = [("content-type", "image/gif"), ("set-cookie", set.as_str())];
        loading.scene.head(own, &mut head(200, &fields));
        let is_followed = at < 8;
        let outputs = loading.scene.outputs();
        for fetch in &loading.fetches[1..] {
            let cancelled = Output::Cancel { fetch: *fetch };
            assert_eq!(outputs.contains(&cancelled), !is_followed, "{at}");
        }
    }
    assert_eq!(loading.named_now(), None);
}

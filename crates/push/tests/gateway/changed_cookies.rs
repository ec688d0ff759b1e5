//! Scenes of one user whose cookies change while a page loads. The early requests of the page end
//! then, since the browser's own requests carry other cookies.

use tandem_http::{Method, RequestHead};
use tandem_push::gateway::{Audience, Config, FetchId, Output, PromiseStream};

use crate::origin::{Page, page};
use crate::pair::{Pair, request};
use crate::scene::{SITE, Scene, head};
use crate::{NAVIGATION, known};

const PAGE: &str = "http://a.test/page";
const FIRST: &str = "http://a.test/first.css";
const IMAGES: usize = 30;

fn one_user() -> Config {
    Config {
        audience: Audience::OneUser,
        // The first response arrives before the other requests begin.
        fetches: 1,
        ..Config::default()
    }
}

/// A page with a style sheet before its images.
fn body() -> String {
    let images = (0..IMAGES).map(|number| format!("<img src={number}.png>"));
    let style = "<link rel=stylesheet href=first.css>".to_owned();
    std::iter::once(style).chain(images).collect()
}

fn style(cookies: &[&str]) -> Page {
    let style = page("text/css", "");
    let set = |style: Page, cookie: &&str| style.with("set-cookie", cookie);
    cookies.iter().fold(style, set)
}

/// Returns the number of images that are requested early.
fn images(pair: &mut Pair) -> usize {
    let asked = pair.take_asked();
    let is_image = |url: &str| url.ends_with(".png");
    asked.iter().filter(|asked| is_image(&asked.url)).count()
}

/// Loads the page with the cookie `id=1`, and returns the number of its images that are requested
/// early.
fn images_after(style: Page) -> usize {
    let pages = [(PAGE, known(&body())), (FIRST, style)];
    let mut pair = Pair::with(one_user(), &pages);
    pair.begin_visit("a.test");
    pair.take_asked();
    pair.send(PAGE, &[NAVIGATION[0], ("cookie", "id=1")]);
    pair.run();
    images(&mut pair)
}

#[test]
fn changed_cookie_of_a_style_sheet_ends_requests() {
    for (cookies, expected) in [
        (&[][..], IMAGES),
        (&["id=1"], IMAGES),
        (&["gone=; Max-Age=0"], IMAGES),
        (&["id=1; Path=/elsewhere", "x=1; Domain=b.test"], IMAGES),
        (&["id=2; Path=/elsewhere"], IMAGES),
        (&["id=2"], 0),
        // The browser gets this cookie only with the style sheet.
        (&["id=1", "new=1"], IMAGES),
        (&["id=2", "new=1"], 0),
        (&["id=; Max-Age=0"], 0),
        // Browsers differ in their treatment of the date.
        (&["id=1; expires=soon"], 0),
    ] {
        assert_eq!(images_after(style(cookies)), expected, "{cookies:?}");
    }
}

#[test]
fn cookies_of_several_users_end_nothing() {
    let pages = [(PAGE, known(&body())), (FIRST, style(&["id=2"]))];
    let config = Config {
        audience: Audience::Shared,
        ..one_user()
    };
    let mut pair = Pair::with(config, &pages);
    pair.send(PAGE, NAVIGATION);
    pair.run();
    assert_eq!(images(&mut pair), IMAGES);
}

#[test]
fn frame_ends_early_requests_by_a_changed_cookie_only() {
    for (cookie, expected) in [("id=1", 1 + IMAGES), ("id=2", 0)] {
        let frame = page("text/html", "<img src=framed.png>").with("set-cookie", cookie);
        let body = "<iframe src=first.css></iframe>".to_owned() + &body();
        let pages = [(PAGE, known(&body)), (FIRST, frame)];
        let mut pair = Pair::with(one_user(), &pages);
        pair.begin_visit("a.test");
        pair.take_asked();
        pair.send(PAGE, &[NAVIGATION[0], ("cookie", "id=1")]);
        pair.run();
        assert_eq!(images(&mut pair), expected, "{cookie}");
    }
}

/// A scene with a page whose first image is on its way. Returns the fetches of the others.
fn begun() -> (Scene, Vec<FetchId>) {
    let mut scene = Scene::new(one_user());
    let mut fetches = scene.images(4);
    assert_eq!(scene.begun(), fetches[..1]);
    fetches.remove(0);
    (scene, fetches)
}

/// Returns the fetches that were given up.
fn cancelled(scene: &mut Scene) -> Vec<FetchId> {
    let outputs = scene.outputs().into_iter();
    let cancelled = outputs.filter_map(|output| match output {
        Output::Cancel { fetch } => Some(fetch),
        _ => None,
    });
    cancelled.collect()
}

#[test]
fn own_answer_ends_early_requests_that_nothing_awaits() {
    let set = ("set-cookie", "id=2");
    for (status, path, fields) in [
        (200, "/own.gif", &[][..]),
        (404, "/own.gif", &[]),
        (
            302,
            "/login",
            &[NAVIGATION[0], ("sec-fetch-dest", "document")],
        ),
    ] {
        let (mut scene, fetches) = begun();
        scene.gateway.raise_fetch(scene.now, fetches[1]);
        let own = scene.ask(path, fields);
        let mut answer = head(status, &[set, ("location", "/home")]);
        scene.head(own, &mut answer);
        assert_eq!(cancelled(&mut scene), [fetches[0], fetches[2]], "{status}");
    }
}

#[test]
fn answer_to_an_upload_ends_early_requests() {
    let (mut scene, fetches) = begun();
    let upload = RequestHead {
        method: Method::Post,
        ..request(&format!("{SITE}/login"), &[("cookie", "id=1")])
    };
    for (cookie, expected) in [("id=1", &[][..]), ("id=2", &fetches)] {
        let answer = head(303, &[("set-cookie", cookie)]);
        let now = scene.now;
        scene.gateway.handle_unsafe_head(now, &upload, &answer);
        assert_eq!(cancelled(&mut scene), expected, "{cookie}");
    }
}

#[test]
fn many_cookies_of_another_site_end_nothing() {
    let (mut scene, _) = begun();
    let upload = RequestHead {
        method: Method::Post,
        ..request("http://b.test/login", &[])
    };
    let mut answer = head(303, &[]);
    for number in 0..100 {
        let cookie = format!("{number}=1; Path=/{number}");
        answer.fields.push("set-cookie", cookie);
    }
    let now = scene.now;
    scene.gateway.handle_unsafe_head(now, &upload, &answer);
    assert_eq!(cancelled(&mut scene), []);
}

/// The request of the second page was made with the new cookie.
#[test]
fn later_page_makes_early_requests_again() {
    let (mut scene, _) = begun();
    let late = scene.ask("/late", NAVIGATION);
    let own = scene.ask("/own.gif", &[]);
    let mut answer = head(200, &[("set-cookie", "id=2")]);
    scene.head(own, &mut answer);
    scene.outputs();
    let next = scene.ask("/next", &[NAVIGATION[0], ("cookie", "id=2")]);
    for (page, expected) in [(late, &[][..]), (next, &["/9.png".to_owned()])] {
        let known = [("content-type", "text/html"), ("etag", "\"1\"")];
        let now = scene.now;
        scene
            .gateway
            .handle_head(now, page, &mut head(200, &known), None);
        scene.gateway.handle_data(page, b"<img src=/9.png>");
        assert_eq!(scene.paths(PromiseStream::Response(page)), expected);
    }
}

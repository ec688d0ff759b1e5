//! Scenes of one user's second visit: the checks of copies, lazy resources, and visits of another
//! session.

use std::time::Duration;

use tandem_push::gateway::{Audience, Config, PromiseStream, Visits};
use tandem_push::wire::Fate;

use crate::copies::{asked, get, head};
use crate::origin::{Page, page};
use crate::pair::Pair;
use crate::scene::Scene;
use crate::{FRESH, NAVIGATION, image, known};

const PAGE: &str = "http://a.test/page";
const IMAGE: &str = "http://a.test/i.png";
const PLAIN: &[(&str, &str)] = &[("referer", PAGE)];
const COPY: &[(&str, &str)] = &[("referer", PAGE), ("if-none-match", "\"1\"")];
const CONDITIONAL: &[(&str, &str)] = &[("accept", "text/html"), ("if-none-match", "\"1\"")];

/// The time in which all messages of a load arrive.
const LOADED: Duration = Duration::from_secs(1);

/// An image that each visit validates.
fn validated() -> Page {
    image()
        .with("etag", "\"1\"")
        .with("cache-control", "no-cache")
}

fn pair(pages: &[(&str, Page)]) -> Pair {
    let config = Config {
        audience: Audience::OneUser,
        ..Config::default()
    };
    let mut pair = Pair::with(config, pages).with_client(true);
    pair.begin_visit("a.test");
    pair.take_asked();
    pair
}

/// Loads a page and its image as a browser without copies does. Returns the requests of the
/// origins.
fn visit(pair: &mut Pair) -> Vec<(bool, String)> {
    pair.browse_for(LOADED, PAGE, NAVIGATION);
    pair.get(IMAGE, PLAIN);
    pair.run();
    asked(pair)
}

/// Each visit shows three new images, and the style sheet stays.
#[test]
fn renewed_page_has_no_early_requests_for_old_needs() {
    let mut pair = pair(&[("http://a.test/s.css", page("text/css", ""))]);
    for visit in 0..4 {
        let names = [0, 1, 2].map(|number| format!("{visit}-{number}.png"));
        let images: String = names.iter().map(|it| format!("<img src={it}>")).collect();
        let body = format!("<link rel=stylesheet href=s.css>{images}");
        pair.serve(PAGE, page("text/html", &body));
        for name in &names {
            pair.serve(&format!("http://a.test/{name}"), validated());
        }
        pair.browse_for(LOADED, PAGE, NAVIGATION);
        let early = asked(&mut pair);
        pair.get("http://a.test/s.css", PLAIN);
        for name in &names {
            pair.get(&format!("http://a.test/{name}"), PLAIN);
        }
        pair.run();
        let old = early
            .into_iter()
            .filter(|(_, url)| url.ends_with(".png") && !url.contains(&format!("/{visit}-")));
        // The second visit cannot know that the images are gone.
        assert_eq!(old.count(), if visit == 1 { 3 } else { 0 }, "{visit}");
    }
}

#[test]
fn copies_are_checked_at_the_second_visit() {
    let mut unmodified = known("");
    unmodified.status = 304;
    // The next request for a page without a validator shows nothing about the cache.
    let plain = page("text/html", "<img src=i.png>");
    for (first, again, fields) in [
        (plain.clone(), plain, NAVIGATION),
        (known("<img src=i.png>"), unmodified, CONDITIONAL),
    ] {
        let mut pair = pair(&[(PAGE, first), (IMAGE, validated())]);
        visit(&mut pair);
        pair.serve(PAGE, again);
        pair.browse_for(LOADED, PAGE, fields);
        let mut requests = asked(&mut pair);
        requests.sort();
        assert_eq!(requests, [get(PAGE), head(IMAGE)]);
        let (reply, requests) = pair.get(IMAGE, COPY);
        assert!(reply.is_pushed && requests.is_empty(), "{requests:?}");
        assert_eq!((reply.head.status, reply.body.as_str()), (304, ""));
        // The third visit checks again.
        pair.browse_for(LOADED, PAGE, fields);
        assert!(asked(&mut pair).contains(&head(IMAGE)));
    }
}

#[test]
fn changed_resource_is_checked_for_nothing_once() {
    let document = page("text/html", "<img src=i.png>");
    let mut pair = pair(&[(PAGE, document), (IMAGE, validated())]);
    visit(&mut pair);
    pair.serve(
        IMAGE,
        image()
            .with("etag", "\"2\"")
            .with("cache-control", "no-cache"),
    );
    pair.browse_for(LOADED, PAGE, NAVIGATION);
    let (reply, _) = pair.get(IMAGE, COPY);
    assert_eq!((reply.head.status, reply.body.as_str()), (200, "x"));
    pair.take_asked();
    pair.browse_for(LOADED, PAGE, NAVIGATION);
    assert_eq!(asked(&mut pair), [get(PAGE)]);
}

#[test]
fn cookie_of_a_path_stays_out_of_requests_for_others() {
    let url = "http://a.test/wiki/page";
    let images = ["http://a.test/i.png", "http://a.test/wiki/i.png"];
    let document = page("text/html", "<img src=/i.png><img src=i.png>");
    let setting = document.clone().with("set-cookie", "part=1");
    let mut pair = pair(&[(url, setting), (images[0], image()), (images[1], image())]);
    let (whole, both) = (("cookie", "first=1"), ("cookie", "part=1; first=1"));
    pair.browse_for(LOADED, url, &[NAVIGATION[0], whole]);
    for (image, cookie) in [(images[0], whole), (images[1], both)] {
        let (reply, _) = pair.get(image, &[("referer", url), cookie]);
        assert!(reply.is_pushed, "{image}");
    }
    pair.take_asked();
    pair.serve(url, document);
    pair.browse_for(LOADED, url, &[NAVIGATION[0], both]);
    let mut cookies: Vec<_> = pair
        .take_asked()
        .into_iter()
        .filter_map(|asked| Some((asked.field("cookie")?, asked.url)))
        .collect();
    cookies.sort();
    let expected = [(whole.1, images[0]), (both.1, images[1]), (both.1, url)];
    assert_eq!(
        cookies,
        expected.map(|(cookie, url)| (cookie.to_owned(), url.to_owned()))
    );
}

#[test]
fn reload_requests_nothing_early() {
    let mut pair = pair(&[(PAGE, known("<img src=i.png>")), (IMAGE, validated())]);
    visit(&mut pair);
    let reload = [CONDITIONAL, &[("cache-control", "max-age=0")]].concat();
    pair.browse_for(LOADED, PAGE, &reload);
    assert_eq!(asked(&mut pair), [get(PAGE)]);
}

#[test]
fn lazy_resource_is_requested_early_once_it_was_used() {
    let document = page(
        "text/html",
        "<img loading=lazy src=i.png><img loading=lazy src=far.png>",
    );
    let mut pair = pair(&[(PAGE, document), (IMAGE, image())]);
    pair.browse_for(LOADED, PAGE, NAVIGATION);
    assert_eq!(asked(&mut pair), [get(PAGE)]);
    assert!(!pair.get(IMAGE, PLAIN).0.is_pushed);
    pair.browse_for(LOADED, PAGE, NAVIGATION);
    let mut requests = asked(&mut pair);
    requests.sort();
    assert_eq!(requests, [get(IMAGE), get(PAGE)]);
}

/// A later visit may end before its user comes near the frame.
#[test]
fn foreign_lazy_frame_is_never_requested_early() {
    for (frame, is_early) in [("http://a.test/f", true), ("http://app.a.test/f", false)] {
        let body = format!("<iframe loading=lazy src={frame}></iframe>");
        let mut pair = pair(&[
            (PAGE, page("text/html", &body)),
            (frame, page("text/html", "")),
        ]);
        for visit in 0..2 {
            pair.browse_for(LOADED, PAGE, NAVIGATION);
            let requests = asked(&mut pair);
            let is_asked = requests.contains(&get(frame));
            assert_eq!(is_asked, is_early && visit > 0, "{frame}");
            let fields = [("accept", "text/html"), ("sec-fetch-dest", "iframe")];
            pair.get(frame, &[fields[0], fields[1], ("referer", PAGE)]);
            asked(&mut pair);
        }
    }
}

#[test]
fn saved_visits_serve_another_session() {
    let document = page("text/html", "<img src=i.png>");
    for (served, expected) in [
        (image(), vec![get(IMAGE), get(PAGE)]),
        (validated(), vec![get(PAGE), head(IMAGE)]),
        (image().with("cache-control", FRESH), vec![get(PAGE)]),
    ] {
        let pages = [(PAGE, document.clone()), (IMAGE, served)];
        let (mut first, visits) = (pair(&pages), Visits::default());
        first.gateway.share_visits(visits.clone());
        visit(&mut first);
        assert!(visits.take_change() && !visits.take_change());
        let saved = visits.to_text();
        visits.note_unsaved();
        assert!(visits.take_change(), "the text was not saved");
        let read = Visits::read(&saved).expect("it was written");
        // The session shares the visits of one that is still there, or those of a text.
        for visits in [visits, read] {
            let mut second = pair(&pages);
            second.gateway.share_visits(visits);
            second.browse_for(LOADED, PAGE, NAVIGATION);
            let mut requests = asked(&mut second);
            requests.sort();
            assert_eq!(requests, expected);
        }
    }
}

/// A script that each visit validates.
fn script() -> Page {
    page("text/javascript", "run()")
        .with("etag", "1")
        .with("cache-control", "no-cache")
}

/// A script that a cache may use again without a request.
fn fresh_script() -> Page {
    page("text/javascript", "run()").with("cache-control", FRESH)
}

#[test]
fn requests_of_scripts_for_files_are_repeated() {
    let by_page = [("accept", "*/*"), ("referer", PAGE)];
    let image_by_page = [("accept", "image/avif,*/*;q=0.8"), ("referer", PAGE)];
    let by_other = [("accept", "*/*"), ("referer", "http://a.test/other")];
    let passing = page("text/javascript", "run()");
    let setting = script().with("set-cookie", "id=1; Path=/elsewhere");
    let data = page("application/json", "{}").with("etag", "1");
    for (path, served, fields, is_repeated) in [
        ("s.js?v=1", script(), &by_page, true),
        ("s.js?v=1&t=1700000000", script(), &by_page, false),
        ("s.js?csrf=9f3ab2", script(), &by_page, false),
        ("s.js?cb=k3j9x", script(), &by_page, false),
        ("s.js?token=abc", script(), &by_page, false),
        ("t/1700000000/s.js", script(), &by_page, false),
        ("app.9f3ab2c1.js", script(), &by_page, false),
        ("vote?post=5&dir=up", validated(), &image_by_page, false),
        ("up.png", validated(), &image_by_page, false),
        ("s.js", script(), &by_other, false),
        ("s.js", passing, &by_page, false),
        ("s.js", setting, &by_page, false),
        ("s.js", data, &by_page, false),
    ] {
        let url = format!("http://a.test/{path}");
        let document = page("text/html", "<img src=i.png>");
        let mut pair = pair(&[(PAGE, document), (IMAGE, image()), (&url, served)]);
        visit(&mut pair);
        pair.get(&url, fields);
        pair.browse_for(LOADED, PAGE, NAVIGATION);
        let is_asked = asked(&mut pair).contains(&head(&url));
        assert_eq!(is_asked, is_repeated, "{path} {fields:?}");
    }
}

/// Each visit requests a script with another name.
#[test]
fn page_with_useless_needs_learns_no_more() {
    let document = page("text/html", "");
    let mut pair = pair(&[(PAGE, document)]);
    let url = |number: i32| format!("http://a.test/s.js?v={number}");
    for number in 0..6 {
        pair.browse_for(LOADED, PAGE, NAVIGATION);
        pair.report(Fate::Wasted, &url(number - 1));
        pair.serve(&url(number), script());
        pair.get(&url(number), &[("accept", "*/*"), ("referer", PAGE)]);
    }
    assert_eq!(pair.gateway.take_counts().promised, 2);
}

/// The page names images of which the browser uses none.
#[test]
fn useless_needs_that_a_page_names_end_no_learning() {
    let body: String = (0..9).map(|it| format!("<img src={it}.png>")).collect();
    let url = "http://a.test/s.js";
    let mut pair = pair(&[(PAGE, page("text/html", &body)), (url, script())]);
    pair.browse_for(LOADED, PAGE, NAVIGATION);
    for number in 0..9 {
        pair.report(Fate::Wasted, &format!("http://a.test/{number}.png"));
    }
    pair.run();
    pair.browse_for(LOADED, PAGE, NAVIGATION);
    pair.get(url, &[("accept", "*/*"), ("referer", PAGE)]);
    pair.browse_for(LOADED, PAGE, NAVIGATION);
    assert!(asked(&mut pair).contains(&head(url)));
}

/// The next process would send the needs with the page, and thus with old cookies.
#[test]
fn page_that_changed_cookies_is_not_saved() {
    let own = ("cookie", "first=1");
    for (document, cookie, is_saved) in [
        (page("text/html", "<img src=i.png>"), "first=1", true),
        (
            page("text/html", "<img src=i.png>").with("set-cookie", "id=1"),
            "first=1; id=1",
            false,
        ),
    ] {
        let mut pair = pair(&[(PAGE, document), (IMAGE, image())]);
        let visits = Visits::default();
        pair.gateway.share_visits(visits.clone());
        pair.browse_for(LOADED, PAGE, &[NAVIGATION[0], own]);
        let (reply, _) = pair.get(IMAGE, &[PLAIN[0], ("cookie", cookie)]);
        assert!(reply.is_pushed, "{cookie}");
        pair.run();
        assert_eq!(visits.to_text().contains(IMAGE), is_saved, "{cookie}");
    }
}

/// The first page of a session may come before its companion.
#[test]
fn copies_are_checked_before_the_companion_opens() {
    let text = "tandem visits 1\n\
                page none 1700000000 http://a.test/page\n\
                need image 4 v 0 - - - http://a.test/i.png\n\
                end\n";
    for (takes_checks, expected) in [
        (None, &["/i.png"][..]),
        (Some(true), &["/i.png"]),
        (Some(false), &[]),
    ] {
        let mut scene = Scene::new(Config {
            audience: Audience::OneUser,
            ..Config::default()
        });
        let visits = Visits::read(text).expect("a text");
        scene.gateway.share_visits(visits);
        if let Some(takes_checks) = takes_checks {
            assert!(scene.gateway.open_companion(takes_checks));
        }
        let page = scene.ask("/page", NAVIGATION);
        let promised = scene.paths(PromiseStream::Response(page));
        assert_eq!(promised, expected, "{takes_checks:?}");
    }
}

#[test]
fn session_of_several_users_shares_no_visits() {
    let document = page("text/html", "<img src=i.png>");
    let pages = [(PAGE, document), (IMAGE, image())];
    let (mut first, visits) = (pair(&pages), Visits::default());
    first.gateway.share_visits(visits.clone());
    visit(&mut first);
    let mut second = Pair::with(Config::default(), &pages).with_client(true);
    second.gateway.share_visits(visits.clone());
    assert!(visits.take_change());
    visit(&mut second);
    assert!(!visits.take_change());
}

/// The name of a file with a hash is taken for one that lasts if the response lasts, too.
#[test]
fn fresh_file_with_a_hash_is_repeated() {
    for (path, expected) in [("app.9f3ab2c1.js", 1), ("9f3ab2c1/app.js", 0)] {
        let url = format!("http://a.test/{path}");
        let (mut first, visits) = (pair(&[(PAGE, page("text/html", ""))]), Visits::default());
        first.gateway.share_visits(visits.clone());
        first.browse_for(LOADED, PAGE, NAVIGATION);
        first.serve(&url, fresh_script());
        first.get(&url, &[("accept", "*/*"), ("referer", PAGE)]);
        let text = visits.to_text();
        assert_eq!(text.matches(&url).count(), expected, "{path}");
    }
}

/// The user acts after the load has ended.
#[test]
fn request_after_a_quiet_period_is_not_repeated() {
    let url = "http://a.test/s.js";
    for (seconds, is_repeated) in [(2, true), (7, false)] {
        let document = page("text/html", "<img src=i.png>");
        let mut pair = pair(&[(PAGE, document), (IMAGE, image()), (url, script())]);
        visit(&mut pair);
        pair.pass(Duration::from_secs(seconds));
        pair.get(url, &[("accept", "*/*"), ("referer", PAGE)]);
        pair.browse_for(LOADED, PAGE, NAVIGATION);
        let is_asked = asked(&mut pair).contains(&head(url));
        assert_eq!(is_asked, is_repeated, "{seconds} s");
    }
}

//! Scenes of browsers that may have been at a site before. They show the bodies that the gateway
//! fetches, and those that it holds back until the browser claims their resources.

use std::time::Duration;

use tandem_push::gateway::{Config, Output};
use tandem_push::wire::Fate;

use crate::needs::Needs;
use crate::origin::{Page, page, redirect};
use crate::pair::Pair;
use crate::{NAVIGATION, expiring_image, fresh_image, html, image};

const WITH_COOKIE: &[(&str, &str)] = &[("accept", "text/html"), ("cookie", "seen=1")];

/// The time after which all messages of a load have arrived, and no held fetch is given up.
const LOADED: Duration = Duration::from_secs(1);

fn url(name: &str) -> String {
    format!("http://a.test/{name}")
}

fn image_name(number: usize) -> String {
    format!("{number:02}.png")
}

/// A page with images that caches keep, and an image that none keeps.
fn site(images: usize, page: impl Fn(&str) -> Page) -> Vec<(String, Page)> {
    let names = (0..images).map(image_name);
    let body: String = names.map(|name| format!("<img src={name}>")).collect();
    let page = page(&format!("{body}<img src=pixel.png>"));
    let images = (0..images).map(|number| (url(&image_name(number)), fresh_image()));
    let others = [(url("page"), page), (url("pixel.png"), image())];
    others.into_iter().chain(images).collect()
}

/// A page without a sign: it has no validator and sets no cookie.
fn signless(body: &str) -> Page {
    page("text/html", body)
}

fn pair(pages: &[(String, Page)]) -> Pair {
    let pages: Vec<_> = pages
        .iter()
        .map(|(url, page)| (url.as_str(), page.clone()))
        .collect();
    Pair::new(&pages)
}

fn with_caches(caches_are_new: bool, pages: &[(String, Page)]) -> Pair {
    let config = Config {
        caches_are_new,
        ..Config::default()
    };
    let pages: Vec<_> = pages
        .iter()
        .map(|(url, page)| (url.as_str(), page.clone()))
        .collect();
    Pair::with(config, &pages)
}

/// Requests a page, and returns the number of resources that the gateway fetches with it.
fn fetches_with(pair: &mut Pair, name: &str, fields: &[(&str, &str)]) -> usize {
    pair.send(&url(name), fields);
    pair.run_for(LOADED);
    pair.take_asked().len() - 1
}

/// Claims a push, and returns the number of resources that the gateway fetches then.
fn fetches_after_claim(pair: &mut Pair, name: &str) -> usize {
    pair.report(Fate::Late, &url(name));
    pair.run_for(LOADED);
    pair.take_asked().len()
}

#[test]
fn first_visit_gets_all_bodies_at_once() {
    let tagged = |body: &str| signless(body).with("etag", "\"1\"");
    for page in [html, tagged] {
        let mut pair = pair(&site(30, page));
        assert_eq!(fetches_with(&mut pair, "page", NAVIGATION), 31);
        assert_eq!(pair.gateway.take_counts().withheld, 0);
    }
}

#[test]
fn returning_browser_gets_promises_alone() {
    let referrer = [("accept", "text/html"), ("referer", "http://www.a.test/")];
    for (fields, page) in [
        (WITH_COOKIE, html as fn(&str) -> Page),
        (&referrer, html),
        (NAVIGATION, signless),
    ] {
        let mut pair = pair(&site(30, page));
        assert_eq!(fetches_with(&mut pair, "page", fields), 0, "{fields:?}");
        let is_promise = |message: &&String| message.starts_with("promise ");
        assert_eq!(pair.received.iter().filter(is_promise).count(), 31);
        pair.run();
        let counts = pair.gateway.take_counts();
        assert_eq!((counts.withheld, counts.wasted), (31, 0));
        assert_eq!(pair.gateway.unreported(), 0);
        assert_eq!(pair.gateway.records(), [0, 0, 0], "{fields:?}");
        pair.received.clear();
        assert_eq!(fetches_with(&mut pair, "page", WITH_COOKIE), 0);
        assert!(!pair.received.iter().any(|message| is_promise(&message)));
    }
}

#[test]
fn new_cache_makes_a_visit_without_signs_a_first_one() {
    let referrer = [("accept", "text/html"), ("referer", "http://www.a.test/")];
    let condition = [("accept", "text/html"), ("if-none-match", "\"1\"")];
    for (caches_are_new, fields, expected) in [
        (false, NAVIGATION, 0),
        (true, NAVIGATION, 31),
        (true, WITH_COOKIE, 0),
        (true, &referrer, 0),
        (true, &condition, 0),
    ] {
        let mut pair = with_caches(caches_are_new, &site(30, signless));
        let fetched = fetches_with(&mut pair, "page", fields);
        assert_eq!(fetched, expected, "{caches_are_new} {fields:?}");
    }
    // The page behind a redirect is the first one of its site.
    let mut pages = site(30, signless);
    pages.push((url("old"), redirect("/page")));
    let mut pair = with_caches(true, &pages);
    pair.send(&url("old"), NAVIGATION);
    pair.run_for(LOADED);
    assert_eq!(pair.take_asked().len(), 2 + 31);
}

#[test]
fn claims_release_the_bodies_of_a_page() {
    let mut pair = pair(&site(90, html));
    assert_eq!(fetches_with(&mut pair, "page", WITH_COOKIE), 0);
    assert_eq!(fetches_after_claim(&mut pair, "00.png"), 1 + 8);
    assert_eq!(
        fetches_after_claim(&mut pair, "05.png"),
        0,
        "it was released, so it is no sign"
    );
    assert_eq!(fetches_after_claim(&mut pair, "80.png"), 1 + 16);
    assert_eq!(fetches_after_claim(&mut pair, "60.png"), 1 + 24);
    let rest = 91 - 9 - 17 - 25;
    assert_eq!(fetches_after_claim(&mut pair, "81.png"), rest);
    pair.run();
    assert_eq!(pair.gateway.take_counts().withheld, 0);
}

const DAY: Duration = Duration::from_hours(24);

/// The first resources of a page, which have come with a new version of the site.
const NEW_PARTS: [&str; 4] = [
    "http://a.test/1.css",
    "http://a.test/2.js",
    "http://a.test/3.js",
    "http://a.test/4.png",
];

/// The other resources of the page, which the site has had for a month.
const OLD_PARTS: [&str; 10] = [
    "http://a.test/a.png",
    "http://a.test/b.png",
    "http://a.test/c.png",
    "http://a.test/d.png",
    "http://a.test/e.png",
    "http://a.test/f.png",
    "http://a.test/g.png",
    "http://a.test/h.png",
    "http://a.test/i.png",
    "http://a.test/j.png",
];

/// Returns the number of old resources that a returning browser gets early if it claims these.
/// Users of the site have requested the new resources for this time, if any has.
fn old_fetches_after(claimed: &[&str], new_for: Option<Duration>) -> usize {
    old_fetches_with(WITH_COOKIE, claimed, new_for)
}

/// Returns that number for a browser that requests the page with these fields.
fn old_fetches_with(fields: &[(&str, &str)], claimed: &[&str], new_for: Option<Duration>) -> usize {
    let images = [NEW_PARTS.as_slice(), &OLD_PARTS].concat();
    let body: String = images
        .iter()
        .map(|url| format!("<img src={url}>"))
        .collect();
    let mut pages = vec![(url("page"), signless(&body))];
    pages.extend(images.iter().map(|url| ((*url).to_owned(), fresh_image())));
    let mut pair = pair(&pages);
    let old = OLD_PARTS.iter().map(|url| (*url, 30 * DAY));
    let new = NEW_PARTS.iter().filter_map(|url| Some((*url, new_for?)));
    let known: Vec<_> = old.chain(new).collect();
    pair.predictor = Some(Needs::of_known("http://a.test/page", &known));
    assert_eq!(fetches_with(&mut pair, "page", fields), 0);
    for url in claimed {
        pair.report(Fate::Late, url);
    }
    pair.run_for(LOADED);
    let asked = pair.take_asked().into_iter();
    let is_early = |url: &&str| OLD_PARTS.contains(url) && !claimed.contains(url);
    asked.filter(|asked| is_early(&asked.url.as_str())).count()
}

/// A visitor of the old version has the old resources, and claims the new ones alone.
#[test]
fn claims_of_new_resources_release_no_old_ones() {
    for new_for in [None, Some(DAY)] {
        assert_eq!(old_fetches_after(&NEW_PARTS, new_for), 0, "{new_for:?}");
    }
    let month = Some(30 * DAY);
    assert_eq!(
        old_fetches_after(&NEW_PARTS, month),
        OLD_PARTS.len(),
        "all are old"
    );
}

/// A browser that has lost its cache claims the resources in the order of the page, six at once.
#[test]
fn claims_of_old_resources_release_the_others() {
    let six = [NEW_PARTS.as_slice(), &OLD_PARTS[..2]].concat();
    for new_for in [None, Some(DAY)] {
        let released = old_fetches_after(&six, new_for);
        assert_eq!(released, OLD_PARTS.len() - 2, "{new_for:?}");
    }
    let old = old_fetches_after(&OLD_PARTS[..1], Some(DAY));
    assert_eq!(old, 4, "one claim, which speaks for the new ones as well");
}

/// Such a browser may be a new one, and claims the resources at the front of the page first.
#[test]
fn claims_of_a_browser_without_signs_release_all() {
    for new_for in [None, Some(DAY)] {
        let released = old_fetches_with(NAVIGATION, &NEW_PARTS, new_for);
        assert_eq!(released, OLD_PARTS.len(), "{new_for:?}");
    }
}

#[test]
fn claim_of_an_uncacheable_resource_releases_no_other() {
    let mut pair = pair(&site(30, html));
    assert_eq!(fetches_with(&mut pair, "page", WITH_COOKIE), 0);
    assert_eq!(fetches_after_claim(&mut pair, "pixel.png"), 1);
    pair.run();
    assert_eq!(pair.gateway.take_counts().withheld, 30);
}

#[test]
fn claims_of_uncacheable_siblings_release_others() {
    let name = |number: usize| format!("live/{}", image_name(number));
    let images: String = (0..40).map(|n| format!("<img src={}>", name(n))).collect();
    let page = html(&format!("{images}<img src=live/a.css><img src=other.png>"));
    let mut pages = vec![(url("page"), page), (url("other.png"), fresh_image())];
    let live = image().with("cache-control", "no-store");
    pages.extend((0..40).map(|number| (url(&name(number)), live.clone())));
    let mut pair = pair(&pages);
    assert_eq!(fetches_with(&mut pair, "page", WITH_COOKIE), 0);
    assert_eq!(fetches_after_claim(&mut pair, &name(0)), 1, "no sign yet");
    assert_eq!(fetches_after_claim(&mut pair, &name(1)), 1 + 8);
    assert_eq!(
        fetches_after_claim(&mut pair, &name(2)),
        0,
        "it is released"
    );
    assert_eq!(fetches_after_claim(&mut pair, &name(30)), 1 + 16);
}

/// A page without validators. Its images expire between two visits, and its style sheet does not.
fn expiring() -> Pair {
    let name = |number: usize| format!("i/{number}.png");
    let images: String = (0..6).map(|n| format!("<img src={}>", name(n))).collect();
    let page = signless(&format!("<link rel=stylesheet href=s.css>{images}"));
    let sheet = self::page("text/css", "").with("cache-control", "max-age=31536000");
    let mut pages = vec![(url("page"), page), (url("s.css"), sheet)];
    pages.extend((0..6).map(|number| (url(&name(number)), expiring_image())));
    pair(&pages)
}

#[test]
fn claims_of_expired_copies_release_siblings_only() {
    for fields in [NAVIGATION, WITH_COOKIE] {
        let mut pair = expiring();
        assert_eq!(fetches_with(&mut pair, "page", fields), 0);
        assert_eq!(fetches_after_claim(&mut pair, "i/0.png"), 1);
        assert_eq!(fetches_after_claim(&mut pair, "i/1.png"), 1 + 4);
        pair.run();
        assert_eq!(pair.gateway.take_counts().withheld, 1, "the style sheet");
    }
}

#[test]
fn claim_of_a_lasting_copy_releases_expired_ones() {
    for fields in [NAVIGATION, WITH_COOKIE] {
        let mut pair = expiring();
        assert_eq!(fetches_with(&mut pair, "page", fields), 0);
        assert_eq!(fetches_after_claim(&mut pair, "s.css"), 1 + 6);
    }
}

#[test]
fn cacheable_sibling_ends_the_release() {
    let mut pages = site(30, html);
    for (_, page) in pages.iter_mut().filter(|(url, _)| url.contains("/0")) {
        *page = image();
    }
    let mut pair = pair(&pages);
    assert_eq!(fetches_with(&mut pair, "page", WITH_COOKIE), 0);
    assert_eq!(fetches_after_claim(&mut pair, "00.png"), 1);
    assert_eq!(fetches_after_claim(&mut pair, "15.png"), 1 + 8, "a sign");
    let released = fetches_after_claim(&mut pair, "09.png");
    assert_eq!(released, 1, "the images have different rules");
}

#[test]
fn one_cacheable_sibling_only_delays_the_release() {
    let mut pages = site(60, html);
    for (_, page) in pages
        .iter_mut()
        .filter(|(url, _)| !url.ends_with("/00.png"))
    {
        if page.body == "x" {
            *page = image().with("cache-control", "no-store");
        }
    }
    let mut pair = pair(&pages);
    assert_eq!(fetches_with(&mut pair, "page", WITH_COOKIE), 0);
    assert_eq!(fetches_after_claim(&mut pair, "00.png"), 1 + 8, "a sign");
    for number in 10..18 {
        pair.report(Fate::Late, &url(&image_name(number)));
    }
    pair.run_for(LOADED);
    assert_eq!(pair.take_asked().len(), 8, "the claimed ones");
    let released = fetches_after_claim(&mut pair, "18.png");
    assert!(released > 30, "most are kept by no cache: {released}");
}

#[test]
fn visit_is_remembered_for_the_next_page() {
    let style = |name: &str| signless(&format!("<link rel=stylesheet href={name}.css>"));
    let sheet = page("text/css", "").with("cache-control", "max-age=600");
    let sheet = sheet.with("etag", "\"1\"");
    let mut pages = site(2, signless);
    for name in ["second", "third"] {
        pages.push((url(name), style(name)));
        pages.push((url(&format!("{name}.css")), sheet.clone()));
    }
    let mut pair = pair(&pages);
    assert_eq!(fetches_with(&mut pair, "page", WITH_COOKIE), 0);
    assert_eq!(fetches_with(&mut pair, "second", WITH_COOKIE), 0);
    assert_eq!(fetches_after_claim(&mut pair, "second.css"), 1);
    assert_eq!(fetches_with(&mut pair, "third", WITH_COOKIE), 1);
}

#[test]
fn cookie_of_a_redirect_shows_a_first_visit() {
    let mut pages = site(3, signless);
    let redirect = Page {
        status: 302,
        ..Page::default()
    };
    // Such a redirect is left to the browser.
    let strict = "a=b; SameSite=Strict";
    let redirect = redirect
        .with("location", "/page")
        .with("set-cookie", strict);
    pages.push((url(""), redirect));
    let mut pair = pair(&pages);
    assert_eq!(fetches_with(&mut pair, "", NAVIGATION), 0);
    assert_eq!(fetches_with(&mut pair, "page", WITH_COOKIE), 4);
}

/// A redirect to a page, and two images that earlier visits through it needed. Caches keep one.
const OLD: &str = "http://a.test/";
const KEPT: &str = "http://a.test/kept.png";
const LIVE: &str = "http://a.test/live.png";

/// Returns a pair whose gateway has the knowledge of visits through the redirect.
fn redirected(page: Page, predictor: Needs) -> Pair {
    let redirect = Page {
        status: 302,
        ..Page::default()
    };
    let pages = [
        (OLD, redirect.with("location", "/page")),
        ("http://a.test/page", page),
        (KEPT, self::page("image/png", "kept").with("etag", "\"1\"")),
        (LIVE, self::page("image/png", "live")),
    ];
    let mut pair = Pair::new(&pages);
    pair.predictor = Some(predictor);
    pair
}

/// Returns the URLs that the origins are asked for when a returning browser requests the redirect.
fn asked_by_returning(predictor: Needs) -> Vec<String> {
    let mut pair = redirected(signless("no names"), predictor);
    pair.send(OLD, WITH_COOKIE);
    pair.run_for(LOADED);
    let asked = pair.take_asked().into_iter();
    asked.map(|asked| asked.url).collect()
}

#[test]
fn redirect_brings_a_document_without_storage() {
    let unkept = |url| Needs::of_redirect(OLD, vec![KEPT, LIVE], url);
    let document = "http://a.test/page";
    let none = asked_by_returning(unkept(""));
    assert_eq!(none, [OLD, document], "the browser may have both");
    assert_eq!(asked_by_returning(unkept(LIVE)), [OLD, document, LIVE]);
}

#[test]
fn push_teaches_that_no_cache_keeps_a_resource() {
    let page = signless("<img src=live.png>").with("set-cookie", "first=1");
    let mut pair = redirected(page, Needs::of_redirect(OLD, vec![KEPT, LIVE], ""));
    assert_eq!(fetches_with(&mut pair, "page", NAVIGATION), 1);
    let predictor = pair.predictor.take().expect("it was set");
    let expected = [OLD, "http://a.test/page", LIVE];
    assert_eq!(asked_by_returning(predictor), expected);
}

#[test]
fn conditional_request_holds_later_bodies() {
    let mut pages = site(3, html);
    let body = "<link rel=stylesheet href=s.css>";
    pages.push((url("other"), html(body)));
    let mut pair = pair(&pages);
    let condition = [("if-none-match", "\"0\""), ("referer", "http://a.test/x")];
    assert_eq!(fetches_with(&mut pair, "old.css", &condition), 0);
    assert_eq!(fetches_with(&mut pair, "page", NAVIGATION), 0);
    let own = [("if-none-match", "\"0\""), ("accept", "text/html")];
    let mut pair = self::pair(&pages);
    assert_eq!(fetches_with(&mut pair, "page", &own), 0);
    assert_eq!(fetches_with(&mut pair, "other", NAVIGATION), 0);
}

/// A proxy or a browser requests the rest of a download that broke off.
#[test]
fn request_for_the_rest_of_a_download_shows_no_visit() {
    let mut pair = pair(&site(3, html));
    let referer = ("referer", "http://a.test/x");
    let rest = [("range", "bytes=4-"), ("if-range", "\"1\""), referer];
    assert_eq!(fetches_with(&mut pair, "old.css", &rest), 0);
    assert_eq!(fetches_with(&mut pair, "page", NAVIGATION), 4);
}

#[test]
fn held_push_answers_a_request_of_the_browser() {
    for promises in [true, false] {
        let mut pair = pair(&site(2, html)).with_client(promises);
        pair.browse_for(LOADED, &url("page"), WITH_COOKIE);
        assert_eq!(pair.take_asked().len(), 1);
        let (reply, asked) = pair.get(&url("00.png"), &[("cookie", "seen=1")]);
        assert!(reply.is_pushed && reply.body == "x");
        assert_eq!(asked, ["00.png", "01.png", "pixel.png"].map(url));
    }
}

#[test]
fn conditional_request_passes_a_held_push() {
    let mut pair = pair(&site(2, html)).with_client(true);
    pair.browse_for(LOADED, &url("page"), WITH_COOKIE);
    pair.take_asked();
    let condition = [("cookie", "seen=1"), ("if-none-match", "\"1\"")];
    let (reply, asked) = pair.get(&url("00.png"), &condition);
    assert!(!reply.is_pushed);
    assert_eq!(asked, [url("00.png")]);
}

#[test]
fn end_of_session_gives_held_fetches_up() {
    let mut pair = pair(&site(3, html));
    assert_eq!(fetches_with(&mut pair, "page", WITH_COOKIE), 0);
    pair.gateway.close();
    let outputs = std::iter::from_fn(|| pair.gateway.poll_output());
    let cancelled = outputs.filter(|output| matches!(output, Output::Cancel { .. }));
    assert_eq!(cancelled.count(), 4);
    assert_eq!(pair.gateway.take_counts().withheld, 4);
}

#[test]
fn end_of_session_counts_unused_pushes() {
    let mut first = pair(&site(3, html));
    assert_eq!(fetches_with(&mut first, "page", NAVIGATION), 4);
    first.report(Fate::Used, &url("00.png"));
    first.run();
    first.gateway.close();
    let counts = first.gateway.take_counts();
    assert_eq!((counts.used, counts.wasted, counts.withheld), (1, 3, 0));
    assert_eq!((counts.wasted_bytes, counts.extra_requests), (3, 3));
    assert_eq!(counts.pages_returning, 0);
    assert_eq!(first.gateway.unreported(), 0);

    let mut later = pair(&site(3, html));
    assert_eq!(fetches_with(&mut later, "page", WITH_COOKIE), 0);
    later.gateway.close();
    let counts = later.gateway.take_counts();
    assert_eq!((counts.wasted, counts.withheld), (0, 4));
    assert_eq!((counts.wasted_bytes, counts.extra_requests), (0, 0));
    assert_eq!(counts.pages_returning, 1);
}

#[test]
fn push_without_use_is_an_extra_request() {
    let mut pages = site(2, html);
    let personal = image().with("vary", "Cookie");
    for (of, page) in &mut pages {
        if *of == url("pixel.png") {
            *page = personal.clone();
        }
    }
    let mut pair = pair(&pages);
    assert_eq!(fetches_with(&mut pair, "page", NAVIGATION), 3);
    let counts = pair.gateway.take_counts();
    assert_eq!((counts.extra_requests, counts.wasted_bytes), (1, 0));
    pair.report(Fate::Wasted, &url("00.png"));
    pair.report(Fate::Cancelled, &url("01.png"));
    pair.run();
    let counts = pair.gateway.take_counts();
    assert_eq!((counts.extra_requests, counts.wasted_bytes), (2, 2));
    assert_eq!((counts.wasted, counts.cancelled), (1, 1));
}

/// A page with a style sheet that the browser must validate, after a first load of both.
fn with_validated_sheet(promises: bool) -> Pair {
    let sheet = page("text/css", "sheet");
    let sheet = sheet
        .with("cache-control", "no-cache")
        .with("etag", "\"1\"");
    let mut pages = Vec::new();
    for name in ["first", "second"] {
        pages.push((url(name), html("<link rel=stylesheet href=s.css>")));
    }
    pages.push((url("s.css"), sheet));
    let mut pair = pair(&pages).with_client(promises);
    assert_eq!(pair.get(&url("first"), NAVIGATION).1.len(), 2);
    let (reply, asked) = pair.get(&url("s.css"), &[]);
    assert!(reply.is_pushed && reply.body == "sheet" && asked.is_empty());
    pair.browse_for(LOADED, &url("second"), NAVIGATION);
    assert_eq!(pair.take_asked().len(), 2);
    pair.gateway.take_counts();
    pair
}

#[test]
fn pushed_head_answers_a_conditional_request() {
    for promises in [true, false] {
        let mut pair = with_validated_sheet(promises);
        pair.received.clear();
        let condition = [("if-none-match", "\"1\"")];
        let (reply, asked) = pair.get(&url("s.css"), &condition);
        assert_eq!((reply.head.status, reply.body.as_str()), (304, ""));
        assert!(reply.is_pushed && asked.is_empty());
        assert_eq!(reply.head.fields.get("etag"), Some(&b"\"1\""[..]));
        assert_eq!(pair.received, ["reset http://a.test/s.css"]);
        let counts = pair.gateway.take_counts();
        assert_eq!((counts.validated, counts.wasted_bytes), (1, 0));
        assert_eq!(pair.gateway.records()[2], 0);
    }
}

#[test]
fn body_follows_its_head_if_the_copy_is_gone() {
    for condition in [None, Some(("if-none-match", "\"0\""))] {
        let mut pair = with_validated_sheet(true);
        let fields: Vec<_> = condition.into_iter().collect();
        let (reply, asked) = pair.get(&url("s.css"), &fields);
        assert_eq!((reply.head.status, reply.body.as_str()), (200, "sheet"));
        assert!(reply.is_pushed && asked.is_empty(), "{condition:?}");
        assert_eq!(pair.gateway.take_counts().late, 1);
    }
}

#[test]
fn held_body_is_given_up_without_a_request() {
    let mut pair = with_validated_sheet(true);
    pair.run();
    let counts = pair.gateway.take_counts();
    assert_eq!((counts.withheld, counts.extra_requests), (1, 1));
    assert_eq!(counts.wasted_bytes, 0);
    assert_eq!(pair.gateway.unreported(), 0);
    assert_eq!(pair.gateway.records()[2], 0);
}

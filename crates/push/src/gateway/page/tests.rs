//! Tests of the state of a page.

use tandem_http::Scheme;

use super::super::budget::{MAX_BODY_BYTES, MAX_FOREIGN, MAX_LAZY, MAX_POLICY_CHECKS};
use super::*;
use crate::cookies::{CookieChanges, Cookies};
use crate::fetch_standard::{MAX_HOSTS, comparisons};
use crate::referrers::NamedPart;

fn need(url: &str, kind: Kind, urgency: u8) -> Need {
    Need {
        url: url.to_owned(),
        kind,
        urgency,
        anonymous: false,
        by_cors: false,
        referrer: None,
        via: None,
        frame: None,
        has_nonce: false,
    }
}

fn page_at(scheme: Scheme, fields: &[(&str, &str)]) -> Page {
    let request = RequestHead {
        fields: fields.iter().copied().collect(),
        ..RequestHead::get(scheme, "a.test", "/page")
    };
    let location = format!("{}://a.test/page", scheme.as_str());
    Page::new(ResponseId::from(0), request.into(), location.into())
}

fn page_with(fields: &[(&str, &str)]) -> Page {
    page_at(Scheme::Http, fields)
}

fn page() -> Page {
    page_with(&[("accept", "text/html")])
}

fn secure_page() -> Page {
    page_at(Scheme::Https, &[("accept", "text/html")])
}

fn seen(part: NamedPart) -> SeenReferrers {
    SeenReferrers {
        least: part,
        last: part,
    }
}

fn urls(needs: Vec<Need>) -> Vec<String> {
    needs.into_iter().map(|need| need.url).collect()
}

#[test]
fn document_is_where_redirects_lead() {
    let mut page = page();
    let target = need("http://b.test/x", Kind::Document, 0);
    page.redirect("http://a.test/other", &target);
    assert_eq!(page.document_url(), "http://a.test/page");
    page.redirect("http://a.test/page", &target);
    assert_eq!(page.document_url(), "http://b.test/x");
    let secure = need("https://b.test/y", Kind::Document, 0);
    page.redirect("http://b.test/x", &secure);
    assert_eq!(page.document_url(), "http://b.test/x", "not seen over TLS");
    assert_eq!(page.url().as_ref(), "http://a.test/page");
}

#[test]
fn initiator_is_the_referrer_of_a_part() {
    let of = |fields: &[(&str, &str)]| page_with(fields).document_url().to_owned();
    let referer = ("referer", "http://b.test/page");
    assert_eq!(of(&[("accept", "text/css"), referer]), "http://b.test/page");
    assert_eq!(
        of(&[referer, ("accept", "text/html")]),
        "http://a.test/page"
    );
    assert_eq!(of(&[("origin", "http://c.test")]), "http://c.test/");
    assert_eq!(of(&[("origin", "null")]), "http://a.test/page");
    for destination in ["iframe", "object"] {
        let fields = [("sec-fetch-dest", destination), referer];
        assert_eq!(of(&fields), "http://a.test/page", "{destination}");
        assert!(page_with(&fields).is_document());
    }
    assert_eq!(
        of(&[("origin", "http://c.test"), referer]),
        "http://b.test/page"
    );
}

/// A page that is not sent again may have any policy. Other origins learn no more of it than by
/// earlier requests. The style sheets of another origin are known there.
#[test]
fn unknown_policy_leaves_resources_without_requests() {
    let (none, origin, whole) = (NamedPart::Nothing, NamedPart::Origin, NamedPart::Whole);
    let referrer = |policy: &str, url: &str, via: Option<&str>, seen: Option<SeenReferrers>| {
        let mut page = page();
        let mut confirmed = ResponseHead::new(304);
        confirmed.fields.push("referrer-policy", policy);
        page.settle("http://a.test/page", &confirmed);
        page.expect(Learned {
            referrers: seen
                .map(|seen| (url.to_owned(), seen))
                .into_iter()
                .collect(),
            ..Learned::default()
        });
        let mut need = need(url, Kind::Image, 4);
        need.via = via.map(Arc::from);
        let request = page.request_for(&need, false);
        let of = |request: &RequestHead| {
            let value = request.fields.get("referer").unwrap_or_default();
            String::from_utf8_lossy(value).into_owned()
        };
        if !url.starts_with("http://a.test/") && via != Some("http://b.test/s.css") {
            let is_pushed = page.limit_referrer(&mut need, seen);
            assert_eq!(is_pushed, request.is_some(), "{url} {seen:?}");
            let limited = page.request_for(&need, false).filter(|_| is_pushed);
            assert_eq!(limited, request, "{url} {seen:?}");
        }
        request.as_ref().map(of)
    };
    let sheet = "http://b.test/s.css";
    let (own, other, third) = ("http://a.test/x", "http://b.test/x", "http://c.test/x");
    let unequal = SeenReferrers {
        least: none,
        last: origin,
    };
    for (policy, url, via, seen, expected) in [
        ("", own, None, None, Some("http://a.test/page")),
        ("", other, None, None, None),
        ("", other, None, Some(unequal), None),
        ("", other, None, Some(seen(none)), Some("")),
        ("", other, None, Some(seen(origin)), Some("http://a.test/")),
        ("", other, None, Some(seen(whole)), Some("http://a.test/")),
        ("no-referrer", other, None, Some(seen(origin)), Some("")),
        (
            "unsafe-url",
            other,
            None,
            Some(seen(origin)),
            Some("http://a.test/"),
        ),
        (
            "unsafe-url",
            other,
            None,
            Some(seen(whole)),
            Some("http://a.test/page"),
        ),
        ("", other, Some(sheet), None, Some(sheet)),
        ("", third, Some(sheet), None, None),
        (
            "",
            third,
            Some(sheet),
            Some(seen(origin)),
            Some("http://b.test/"),
        ),
    ] {
        let found = referrer(policy, url, via, seen);
        assert_eq!(
            found.as_deref(),
            expected,
            "{policy} {url} {via:?} {seen:?}"
        );
    }
}

/// The promise of a redirect's target may be refused, and an element may name the URL later.
#[test]
fn fields_of_a_redirect_are_those_of_its_target() {
    let metadata = |destination, mode| {
        let site = ("sec-fetch-site", "same-origin");
        [
            ("sec-fetch-dest", destination),
            ("sec-fetch-mode", mode),
            site,
        ]
    };
    let mut page = page_with(&metadata("document", "navigate"));
    let demand = ("cache-control", "max-age=0");
    let redirected = RequestHead {
        fields: metadata("script", "cors")
            .into_iter()
            .chain([demand])
            .collect(),
        ..RequestHead::get(Scheme::Http, "a.test", "/old")
    };
    let target = need("http://a.test/new", Kind::Script, 0);
    assert!(page.repeat_fields(&redirected, &target));
    let mut sent = |need: &Need| {
        let request = page.request_for(need, false).unwrap();
        let value = |name| {
            let value = request.fields.get(name).unwrap_or_default();
            String::from_utf8_lossy(value).into_owned()
        };
        ["sec-fetch-dest", "sec-fetch-mode", "cache-control"].map(value)
    };
    assert_eq!(sent(&target), ["script", "cors", "max-age=0"]);
    let image = need("http://a.test/new", Kind::Image, 4);
    assert_eq!(sent(&image), ["image", "no-cors", ""]);
}

#[test]
fn page_keeps_the_policy_of_its_first_response() {
    let mut page = page();
    let mut head = ResponseHead::new(200);
    head.fields.push("referrer-policy", "no-referrer");
    assert!(!page.settle("http://a.test/other", &head));
    assert!(page.settle("http://a.test/page", &head));
    assert!(!page.settle("http://a.test/page", &ResponseHead::new(200)));
    let image = need("http://a.test/i", Kind::Image, 4);
    let request = page.request_for(&image, false).unwrap();
    assert!(!request.fields.contains("referer"));
    page.set_policy(Referrer::Whole);
    let request = page.request_for(&image, false).unwrap();
    assert!(request.fields.contains("referer"));
}

#[test]
fn expected_needs_wait_for_the_head_and_their_host() {
    let mut page = page();
    let mut own = need("http://a.test/1", Kind::Image, 4);
    own.via = Some("http://a.test/".into());
    let mut foreign = need("http://b.test/2", Kind::Image, 4);
    foreign.via = Some("http://b.test/".into());
    page.expect(Learned {
        needs: vec![own, foreign],
        referrers: [("http://b.test/2".to_owned(), seen(NamedPart::Origin))].into(),
        ..Learned::default()
    });
    assert!(page.take_expected().is_empty(), "it may be a redirect");
    page.settle("http://a.test/page", &ResponseHead::new(200));
    let now = page.take_expected();
    assert_eq!(now[0].via, None, "the document asks on its own origin");
    assert_eq!(urls(now), ["http://a.test/1"]);
    assert!(page.name_host("b.test", 9) && !page.name_host("b.test", 9));
    let now = page.take_expected();
    assert!(now[0].via.is_some());
    assert_eq!(urls(now), ["http://b.test/2"]);
    assert!(page.take_expected().is_empty());
}

#[test]
fn learned_needs_name_no_more_than_earlier_requests() {
    let (own, other) = ("http://a.test/i", "http://b.test/i");
    let (none, origin, whole) = (NamedPart::Nothing, NamedPart::Origin, NamedPart::Whole);
    let (to_origin, to_page) = (Some("http://a.test/"), Some("http://a.test/page"));
    for (policy, url, seen, expected) in [
        ("unsafe-url", own, seen(whole), Some(to_page)),
        ("unsafe-url", other, seen(whole), Some(to_page)),
        ("unsafe-url", own, seen(origin), Some(to_origin)),
        ("unsafe-url", other, seen(origin), Some(to_origin)),
        ("unsafe-url", own, seen(none), Some(None)),
        ("unsafe-url", other, seen(none), Some(None)),
        ("no-referrer", own, seen(whole), Some(None)),
        ("no-referrer", other, seen(origin), Some(None)),
        ("same-origin", other, seen(origin), Some(None)),
        ("same-origin", own, seen(origin), Some(to_origin)),
        ("origin", own, seen(whole), Some(to_origin)),
    ] {
        let mut page = page();
        page.set_policy(Referrer::parse(policy).unwrap());
        let mut need = need(url, Kind::Image, 4);
        let is_pushed = page.limit_referrer(&mut need, Some(seen));
        let request = page.request_for(&need, false).filter(|_| is_pushed);
        let found = request.as_ref().map(|it| it.fields.get("referer"));
        let expected = expected.map(|it| it.map(str::as_bytes));
        assert_eq!(found, expected, "{policy} {url} {seen:?}");
    }
}

#[test]
fn learned_needs_of_other_sites_wait_for_knowledge() {
    for (url, is_pushed) in [
        ("http://a.test/i", true),
        ("http://i.a.test/i", true),
        ("http://b.test/i", false),
    ] {
        let mut need = need(url, Kind::Image, 4);
        assert_eq!(page().limit_referrer(&mut need, None), is_pushed, "{url}");
    }
}

/// A push without `Referer` could serve a request of another site's page with one, although the
/// origin may answer that in another way.
#[test]
fn foreign_learned_needs_of_unequal_requests_are_left() {
    let seen = SeenReferrers {
        least: NamedPart::Nothing,
        last: NamedPart::Whole,
    };
    for (url, is_pushed) in [("http://a.test/i", true), ("http://b.test/i", false)] {
        let mut need = need(url, Kind::Image, 4);
        let mut page = page();
        assert_eq!(
            page.limit_referrer(&mut need, Some(seen)),
            is_pushed,
            "{url}"
        );
        let request = page.request_for(&need, false).filter(|_| is_pushed);
        let names_page = request.map(|request| request.fields.contains("referer"));
        assert_eq!(names_page, is_pushed.then_some(true), "{url}");
    }
}

/// `Origin` would name the page to an origin that gets no `Referer`.
#[test]
fn learned_mode_names_no_page_without_referrer() {
    for (url, kind, is_pushed) in [
        ("http://a.test/i", Kind::Image, true),
        ("http://b.test/i", Kind::Image, false),
        ("http://b.test/f", Kind::Font, true),
    ] {
        let part = NamedPart::Nothing;
        let seen = SeenReferrers {
            least: part,
            last: part,
        };
        let mut need = need(url, kind, 4);
        need.by_cors = true;
        assert_eq!(
            page().limit_referrer(&mut need, Some(seen)),
            is_pushed,
            "{url}"
        );
    }
}

#[test]
fn hosts_of_a_page_include_its_own() {
    for (named, is_closed) in [(["b.test", "c.test"], true), (["a.test", "b.test"], false)] {
        let mut page = page();
        assert!(named.iter().all(|host| page.name_host(host, 2)));
        assert_eq!(page.is_closed(), is_closed, "{named:?}");
    }
}

#[test]
fn cookies_of_a_page_reach_its_resources() {
    let mut head = ResponseHead::new(200);
    head.fields.push("set-cookie", "c=d; Path=/shop");
    let request = RequestHead::get(Scheme::Http, "a.test", "/page");
    let mut page = page_with(&[("cookie", "a=b")]);
    assert!(!page.sets_cookies());
    page.set_cookies(CookieChanges::of(&request, &head, 0));
    assert!(page.sets_cookies());
    for (url, cookie) in [
        ("http://a.test/shop/x.png", Some(&b"c=d; a=b"[..])),
        ("http://a.test/x.png", Some(&b"a=b"[..])),
        ("http://b.test/shop/x.png", None),
    ] {
        let made = page.request_for(&need(url, Kind::Image, 4), false).unwrap();
        assert_eq!(made.fields.get("cookie"), cookie, "{url}");
    }
}

#[test]
fn lazy_needs_are_admitted_up_to_a_number() {
    let mut page = page();
    let lazy = need("http://a.test/l", Kind::Image, 7);
    let near = (0..40).filter(|_| page.admits_lazy(&lazy)).count();
    assert_eq!(near, MAX_LAZY);
    assert!(page.admits_lazy(&need("http://a.test/l", Kind::Image, 6)));
    assert!(!page.admits_lazy(&need("http://a.test/l", Kind::Script, 7)));
    assert!(!page.admits_lazy(&need("http://a.test/l", Kind::Document, 7)));
}

#[test]
fn page_refuses_repeated_and_streamed_needs() {
    let mut page = page();
    assert!(page.refuses(&need("http://a.test/page", Kind::Image, 4)));
    assert!(page.refuses(&need("http://a.test/v", Kind::Media, 4)));
    let image = need("http://a.test/i", Kind::Image, 4);
    assert!(!page.refuses(&image));
    page.know(&image.url);
    assert!(page.refuses(&image));
    let other = need("http://a.test/j", Kind::Image, 4);
    for number in 0..MAX_RESOURCES {
        assert!(!page.refuses(&other), "{number}");
        page.know(&format!("http://a.test/{number}"));
        if page.known.len() > MAX_RESOURCES {
            break;
        }
    }
    assert!(page.refuses(&other), "full");
    let mut left = self::page();
    left.abandoned = true;
    assert!(left.refuses(&other));
}

#[test]
fn request_is_refused_for_login_and_tls() {
    let own = need("http://a.test/x", Kind::Image, 4);
    let foreign = need("http://b.test/x", Kind::Image, 4);
    let secure = need("https://a.test/x", Kind::Image, 4);
    let mut page = page();
    assert!(page.request_for(&own, true).is_some());
    assert!(page.request_for(&foreign, true).is_none());
    assert!(page.request_for(&foreign, false).is_some());
    assert!(page.request_for(&secure, false).is_none());
    let mut over_tls = Page::new(
        ResponseId::from(0),
        RequestHead::get(Scheme::Https, "a.test", "/page").into(),
        "https://a.test/page".into(),
    );
    assert!(over_tls.request_for(&secure, false).is_some());
    assert!(over_tls.request_for(&own, false).is_none(), "mixed content");
    let mut login = page_with(&[("authorization", "Basic eDp5")]);
    assert!(login.request_for(&own, false).is_none());
    assert!(login.request_for(&foreign, false).is_some());
}

#[test]
fn foreign_resources_are_bounded() {
    let mut page = page();
    let foreign = need("http://b.test/x", Kind::Image, 4);
    let made = (0..MAX_FOREIGN + 5)
        .filter(|_| page.request_for(&foreign, false).is_some())
        .count();
    assert_eq!(made, MAX_FOREIGN);
    let own = need("http://a.test/x", Kind::Image, 4);
    assert!(page.request_for(&own, false).is_some());
}

#[test]
fn promise_budget_charges_long_cookies() {
    let image = need(&format!("http://a.test/{}", "x".repeat(86)), Kind::Image, 4);
    for (cookie, expected) in [(0, 2621), (2048, 2621), (2049, 121)] {
        let cookie = "c".repeat(cookie);
        let mut page = page_with(&[("cookie", &cookie)]);
        let request = page.request_for(&image, false).unwrap();
        let made = (0..3000)
            .take_while(|_| page.spend_promise(&image, &request))
            .count();
        assert_eq!(made, expected, "{}", cookie.len());
    }
}

#[test]
fn body_budget_is_used_up() {
    let mut page = page();
    assert!(page.spend_body(MAX_BODY_BYTES - 1) && page.spend_body(1));
    assert!(!page.spend_body(1) && page.spend_body(0));
}

#[test]
fn body_that_does_not_fit_spends_nothing() {
    let mut page = page();
    assert!(!page.spend_announced(MAX_BODY_BYTES + 1));
    assert!(page.spend_announced(MAX_BODY_BYTES));
    assert!(!page.spend_body(1));
}

#[test]
fn readers_share_the_budget_for_reading() {
    let mut page = page();
    let mut head = ResponseHead::new(200);
    head.fields.push("content-type", "text/html");
    let url = "http://a.test/page";
    for _ in 0..4 {
        let mut reader = page.reader(url, &head, Purpose::Page).unwrap();
        assert_eq!(reader.limit(), 8 << 20);
    }
    let mut reader = page.reader(url, &head, Purpose::Page).unwrap();
    assert_eq!(reader.limit(), 0);
    page.return_bytes(100);
    let mut reader = page.reader(url, &head, Purpose::Page).unwrap();
    assert_eq!(reader.limit(), 100);
}

#[test]
fn reader_at_the_location_is_the_page() {
    let mut page = page();
    let mut head = ResponseHead::new(200);
    head.fields.push("content-type", "text/html");
    let part = Purpose::Part {
        kind: Kind::Style,
        frame: None,
    };
    assert!(
        page.reader("http://a.test/s", &head, part.clone())
            .is_none()
    );
    assert!(page.reader("http://a.test/page", &head, part).is_some());
}

#[test]
fn same_site_is_that_of_the_document() {
    let page = page();
    assert!(page.is_same_site("http://a.test:81/x") && page.is_same_site("http://i.a.test/"));
    assert!(!page.is_same_site("http://b.test/"));
}

fn policies(text: &str) -> Arc<ContentSecurity> {
    let mut policies = ContentSecurity::default();
    policies.add_meta("http://a.test/page", text);
    policies.into()
}

/// A page without a need that its policies admit, as a hostile one has them.
#[test]
fn page_with_too_many_refusals_is_closed() {
    let hosts = " b.test".repeat(MAX_HOSTS);
    let mut page = page();
    page.set_content_policies(policies(&format!("img-src{hosts}")));
    comparisons::take();
    let refused = need("http://a.test/i.png", Kind::Image, 4);
    for number in 0..scan::Scanner::MAX_NEEDS {
        assert!(!page.is_closed(), "{number}");
        assert!(page.refuses(&refused));
    }
    assert!(page.is_closed() && page.refuses(&need("http://a.test/s.css", Kind::Style, 1)));
    for _ in 0..100_000 {
        assert!(page.refuses(&refused));
    }
    assert_eq!(comparisons::take(), MAX_HOSTS * scan::Scanner::MAX_NEEDS);
}

#[test]
fn policy_checks_of_a_page_are_bounded() {
    let mut page = page();
    let admitted = need("http://a.test/i.png", Kind::Image, 4);
    for _ in 0..10 * MAX_POLICY_CHECKS {
        assert!(
            !page.refuses(&admitted),
            "without policies nothing is asked"
        );
    }
    page.set_content_policies(policies("img-src 'self'"));
    let asked = (0..2 * MAX_POLICY_CHECKS).filter(|_| !page.refuses(&admitted));
    assert_eq!(asked.count(), MAX_POLICY_CHECKS);
    assert!(page.is_closed());
}

/// A 304 need not repeat the policy of the stored page.
#[test]
fn stored_policy_keeps_cookies_from_other_origins() {
    let mut head = ResponseHead::new(200);
    head.fields
        .push("cross-origin-embedder-policy", "credentialless");
    let policies = Arc::new(ContentSecurity::of("https://a.test/page", &head));
    let is_without = |page: &Page, frame: Option<&str>| {
        let mut need = need("https://i.a.test/x", Kind::Image, 4);
        need.frame = frame.map(Arc::from);
        page.is_credentialless_for(&need)
    };
    let frame = Some("https://a.test/frame");
    let mut framing = page();
    framing.set_frame_policies("https://a.test/frame", Arc::clone(&policies));
    assert!(is_without(&framing, frame) && !is_without(&framing, None));
    for (is_known, status) in [(true, 304), (false, 304), (false, 200)] {
        let mut page = secure_page();
        if is_known {
            page.set_content_policies(Arc::clone(&policies));
        }
        let mut answer = ResponseHead::new(status);
        if status == 200 {
            answer = head.clone();
        }
        page.settle("https://a.test/page", &answer);
        assert_eq!(
            is_without(&page, None),
            is_known || status == 200,
            "{status}"
        );
        assert!(!is_without(&page, frame), "another document");
    }
}

#[test]
fn learned_need_belongs_to_a_frame_with_a_head() {
    let of_head = |frame: &str| {
        let mut page = page();
        page.settle("http://a.test/page", &ResponseHead::new(200));
        page.begin_frame(frame, Cookies::Unchanged, None);
        let mut need = need("http://a.test/1", Kind::Image, 4);
        need.via = Some("http://a.test/frame".into());
        page.expect(Learned {
            needs: vec![need],
            ..Learned::default()
        });
        page.take_expected().remove(0)
    };
    let frame = "http://a.test/frame";
    assert_eq!(of_head(frame).frame.as_deref(), Some(frame));
    let other = of_head("http://a.test/other");
    assert!(other.frame.is_none() && other.via.is_none());
}

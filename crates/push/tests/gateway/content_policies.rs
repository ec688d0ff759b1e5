//! Scenes of pages whose policies forbid requests.

use std::time::Duration;

use tandem_push::gateway::{Audience, Config};

use crate::copies::{asked as requests, get, head};
use crate::origin::{Page, page};
use crate::pair::Pair;
use crate::{NAVIGATION, html, image};

const PAGE: &str = "http://a.test/page";
const POLICY: &str = "content-security-policy";

/// Loads a page, and returns the paths and foreign URLs that were requested with it.
fn load(page: Page, others: &[(&str, Page)]) -> Vec<String> {
    let pages: Vec<_> = [(PAGE, page)]
        .into_iter()
        .chain(others.iter().cloned())
        .collect();
    let mut pair = Pair::new(&pages);
    asked(&mut pair, NAVIGATION)
}

fn asked(pair: &mut Pair, fields: &[(&str, &str)]) -> Vec<String> {
    let asked = pair.load(PAGE, fields).into_iter();
    let asked = asked.filter(|url| url != PAGE);
    asked.map(|url| url.replace("http://a.test", "")).collect()
}

#[test]
fn forbidden_resources_are_not_requested() {
    let body = "<link rel=stylesheet href=http://b.test/u1.css><link rel=stylesheet href=s.css>\
                <script src=x.js></script><img src=/logout><iframe src=f></iframe>";
    for (policy, expected) in [
        (
            None,
            &["/f", "/logout", "/s.css", "/x.js", "http://b.test/u1.css"][..],
        ),
        (
            Some("style-src 'self'"),
            &["/f", "/logout", "/s.css", "/x.js"],
        ),
        (
            Some("img-src 'none'; frame-src http://c.test"),
            &["/s.css", "/x.js", "http://b.test/u1.css"],
        ),
        (
            Some("default-src 'self'; script-src 'nonce-1'"),
            &["/f", "/logout", "/s.css"],
        ),
        (Some("upgrade-insecure-requests"), &[]),
        (Some("sandbox allow-scripts"), &[]),
        (
            Some("sandbox allow-same-origin"),
            &["/logout", "/s.css", "http://b.test/u1.css"],
        ),
        (
            Some("script-src 'none' 'strict-dynamic'; default-src 'self' 'strict-dynamic'"),
            &["/f", "/logout", "/s.css"],
        ),
    ] {
        let mut page = html(body);
        if let Some(policy) = policy {
            page = page.with(POLICY, policy);
        }
        assert_eq!(load(page, &[]), expected, "{policy:?}");
        let report = html(body).with("content-security-policy-report-only", policy.unwrap_or("*"));
        assert_eq!(load(report, &[]).len(), 5);
    }
}

#[test]
fn embedded_objects_have_their_own_directive() {
    let body = "<object data=/a type=image/svg+xml></object><embed src=/b type=text/html>";
    assert_eq!(load(html(body), &[]), ["/a", "/b"]);
    let policy = "img-src 'self'; frame-src 'self'; object-src 'none'";
    assert_eq!(load(html(body).with(POLICY, policy), &[]), [""; 0]);
}

#[test]
fn policies_of_meta_elements_hold() {
    for (policy, expected) in [
        ("img-src 'none'", &["/s.css"][..]),
        ("sandbox", &["/c.png", "/s.css"]),
        ("upgrade-insecure-requests", &[]),
    ] {
        let body = format!(
            "<meta http-equiv=Content-Security-Policy content=\"{policy}\">\
             <link rel=stylesheet href=s.css><img src=c.png>"
        );
        assert_eq!(load(html(&body), &[]), expected, "{policy}");
    }
}

#[test]
fn resources_of_pushed_parts_and_frames_obey() {
    let sheet = || page("text/css", "a{background:url(/logout)}");
    let frame = || html("<img src=/logout>").with(POLICY, "img-src 'none'");
    let others = [
        ("http://a.test/s.css", sheet()),
        ("http://a.test/f", frame()),
    ];
    let style = html("<link rel=stylesheet href=s.css>");
    assert_eq!(load(style.clone(), &others), ["/logout", "/s.css"]);
    assert_eq!(
        load(style.with(POLICY, "img-src 'none'"), &others),
        ["/s.css"]
    );
    assert_eq!(load(html("<iframe src=f></iframe>"), &others), ["/f"]);
    let named = html("").with("link", "</logout>; rel=preload; as=image");
    assert_eq!(load(named.clone(), &[]), ["/logout"]);
    assert_eq!(load(named.with(POLICY, "img-src b.test"), &[]), [""; 0]);
}

#[test]
fn sheet_that_the_browser_requests_obeys_its_document() {
    for (policy, referrer, expected) in [
        ("img-src *", Some(PAGE), 2),
        ("img-src 'none'", Some(PAGE), 1),
        ("img-src 'none'", Some("http://a.test/"), 1),
        ("img-src 'none'", None, 1),
    ] {
        let sheet = "http://b.test/s.css";
        let mut pair = Pair::new(&[
            (
                PAGE,
                html("").with("content-encoding", "br").with(POLICY, policy),
            ),
            (sheet, page("text/css", "a{background:url(i.png)}")),
        ]);
        asked(&mut pair, NAVIGATION);
        let referrer = referrer.map(|it| ("referer", it));
        let fields: Vec<_> = referrer
            .into_iter()
            .chain([("accept", "text/css")])
            .collect();
        assert_eq!(
            pair.load(sheet, &fields).len(),
            expected,
            "{policy} {referrer:?}"
        );
    }
}

/// The needs of the last visit leave with the page. The policy is that of this last visit.
#[test]
fn needs_of_the_last_visit_obey_its_policy() {
    let config = Config {
        audience: Audience::OneUser,
        ..Config::default()
    };
    let url = "http://a.test/i.png";
    let part = image()
        .with("etag", "\"1\"")
        .with("cache-control", "no-cache");
    let gallery = |policy| page("text/html", "<img src=i.png>").with(POLICY, policy);
    let mut pair = Pair::with(config, &[(PAGE, gallery("img-src 'self'")), (url, part)]);
    pair = pair.with_client(true);
    pair.begin_visit("a.test");
    pair.take_asked();
    for (policy, expected) in [
        ("img-src 'self'", vec![get(url), get(PAGE)]),
        // The needs of the first visit precede the head, which forbids them.
        ("img-src 'none'", vec![get(PAGE), head(url)]),
        ("img-src 'none'", vec![get(PAGE)]),
    ] {
        pair.serve(PAGE, gallery(policy));
        pair.browse_for(Duration::from_secs(1), PAGE, NAVIGATION);
        let mut requests = requests(&mut pair);
        requests.sort();
        assert_eq!(requests, expected, "{policy}");
        pair.get(url, &[("referer", PAGE)]);
        pair.run();
        pair.take_asked();
    }
}

/// The nonce is that of the response, and differs with each response.
#[test]
fn element_with_the_nonce_is_requested() {
    let body = "<script nonce=n1 src=x.js></script><script nonce=n2 src=y.js></script>\
                <link rel=stylesheet nonce=n1 href=s.css><img nonce=n1 src=i.png>";
    let page = |policy| html(body).with(POLICY, policy);
    let policy = "default-src 'nonce-n1' 'strict-dynamic'";
    assert_eq!(load(page(policy), &[]), ["/s.css", "/x.js"]);
    let two = "default-src 'nonce-n1', script-src 'nonce-n2'";
    assert_eq!(load(page(two), &[]), [""; 0]);
    let frame = ("http://a.test/f", page(policy));
    let found = load(html("<iframe src=f></iframe>"), &[frame]);
    assert_eq!(found, ["/f", "/s.css", "/x.js"]);
}

/// The last visit is remembered without its nonce. The second response no longer has the script.
#[test]
fn nonce_does_not_hold_for_the_next_visit() {
    let url = "http://a.test/x.js";
    for (policy, expected) in [
        ("script-src 'self'", vec![get(PAGE), get(url)]),
        ("script-src 'nonce-n1'", vec![get(PAGE)]),
    ] {
        let config = Config {
            audience: Audience::OneUser,
            ..Config::default()
        };
        let script = page("text/javascript", "1").with("cache-control", "max-age=0");
        let mut pair = Pair::with(config, &[(url, script)]).with_client(true);
        pair.begin_visit("a.test");
        pair.take_asked();
        let body = "<script nonce=n1 src=x.js></script>";
        pair.serve(PAGE, page("text/html", body).with(POLICY, policy));
        pair.browse_for(Duration::from_secs(1), PAGE, NAVIGATION);
        assert_eq!(requests(&mut pair).len(), 2, "{policy}");
        pair.get(url, &[("referer", PAGE)]);
        pair.run();
        pair.take_asked();
        pair.serve(PAGE, page("text/html", "").with(POLICY, policy));
        pair.browse_for(Duration::from_secs(1), PAGE, NAVIGATION);
        let mut requests = requests(&mut pair);
        requests.sort();
        assert_eq!(requests, expected, "{policy}");
    }
}

#[test]
fn named_resources_have_the_kind_of_their_ending() {
    let named = |policy| {
        let field = "\"/a.css\", \"/b.png\", \"/c\"";
        let page = html("").with("x-associated-content", field);
        load(page.with(POLICY, policy), &[])
    };
    for (policy, expected) in [
        (
            "object-src 'none'; frame-src 'none'",
            &["/a.css", "/b.png", "/c"][..],
        ),
        ("img-src 'none'", &["/a.css"]),
        ("default-src 'none'; img-src 'self'", &["/b.png"]),
    ] {
        assert_eq!(named(policy), expected, "{policy}");
    }
}

/// A page over plain HTTP on the computer itself is not upgraded.
#[test]
fn upgrade_of_requests_spares_loopback() {
    for (host, expected) in [
        ("a.test", 1),
        ("localhost:81", 2),
        ("127.0.0.1:81", 2),
        ("abcdefghijklmnop.onion", 1),
    ] {
        let url = format!("http://{host}/page");
        let page = html("<img src=/i.png>").with(POLICY, "upgrade-insecure-requests");
        let mut pair = Pair::new(&[(&url, page)]);
        assert_eq!(pair.load(&url, NAVIGATION).len(), expected, "{host}");
    }
}

/// Browsers show the documents of errors. Their policies hold for the style sheets that the browser
/// requests.
#[test]
fn policies_of_error_pages_hold() {
    const SHEET: &str = "http://b.test/s.css";
    for status in [200, 403, 404, 503] {
        let mut error = html("");
        error.status = status;
        let sheet = page("text/css", "a{background:url(i.png)}");
        for (policy, expected) in [("img-src *", 1), ("img-src 'none'", 0)] {
            let error = error.clone().with(POLICY, policy);
            let mut pair = Pair::new(&[(PAGE, error), (SHEET, sheet.clone())]);
            asked(&mut pair, NAVIGATION);
            let fields = [("accept", "text/css"), ("referer", PAGE)];
            let found = pair.load(SHEET, &fields);
            assert_eq!(found.len(), 1 + expected, "{status} {policy}");
        }
    }
}

/// A page has more frames with policies than any table has places.
#[test]
fn frames_do_not_displace_the_policy_of_their_page() {
    const SHEET: &str = "http://b.test/s.css";
    let sheet = page("text/css", "a{background:url(i.png)}");
    let mut pair = Pair::new(&[
        (PAGE, html("").with(POLICY, "img-src b.test")),
        (SHEET, sheet),
    ]);
    asked(&mut pair, NAVIGATION);
    for at in 0..300 {
        let url = format!("http://b.test/frame{at}");
        pair.serve(&url, html("").with(POLICY, "img-src *"));
        let fields = [("accept", "text/html"), ("sec-fetch-dest", "iframe")];
        pair.load(&url, &[fields[0], fields[1], ("referer", PAGE)]);
    }
    let referrer = |url| [("accept", "text/css"), ("referer", url)];
    assert_eq!(pair.load(SHEET, &referrer(PAGE)).len(), 2);
    // The policies of the first frames are lost, and admit nothing.
    assert_eq!(pair.load(SHEET, &referrer("http://b.test/frame0")), [SHEET]);
}

/// A site without policies is not concerned by those of another one that are forgotten.
#[test]
fn lost_policies_of_one_site_leave_others_alone() {
    let sheet = page("text/css", "a{background:url(i.png)}");
    let mut pair = Pair::new(&[
        (PAGE, html("").with(POLICY, "img-src 'self'")),
        ("http://c.test/page", html("")),
        ("http://c.test/s.css", sheet),
    ]);
    asked(&mut pair, NAVIGATION);
    for at in 0..130 {
        let url = format!("http://a.test/{at}.css");
        pair.serve(&url, page("text/css", ""));
        pair.load(&url, &[("accept", "text/css"), ("referer", PAGE)]);
    }
    pair.load("http://c.test/page", NAVIGATION);
    let accept = ("accept", "text/css");
    let found = pair.load(
        "http://c.test/s.css",
        &[accept, ("referer", "http://c.test/")],
    );
    assert_eq!(found, ["http://c.test/i.png", "http://c.test/s.css"]);
}

/// A form's response is a document. A script may give a document another URL, and a style sheet may
/// come from a push or from the browser's cache.
#[test]
fn referrer_without_a_known_document_is_governed() {
    const SHEET: &str = "http://b.test/s.css";
    for (policy, expected) in [("img-src *", 2), ("img-src 'none'", 1)] {
        let framed = [("accept", "text/html"), ("sec-fetch-dest", "iframe")];
        for (form, is_left, referrer) in [
            (Some(NAVIGATION), false, PAGE),
            (Some(&framed), true, PAGE),
            (None, false, "http://a.test/app/x"),
            (None, false, "http://cdn.test/cached.css"),
            (None, true, "http://cdn.test/pushed.css"),
        ] {
            let link = "<link rel=stylesheet href=http://cdn.test/pushed.css>";
            let mut pair = Pair::new(&[
                (PAGE, html(link).with(POLICY, policy)),
                ("http://cdn.test/pushed.css", page("text/css", "")),
                ("http://c.test/", html("")),
                (SHEET, page("text/css", "a{background:url(i.png)}")),
            ]);
            if let Some(fields) = form {
                pair.post(PAGE, fields);
                pair.run();
                pair.take_asked();
            } else {
                assert_eq!(asked(&mut pair, NAVIGATION).len(), 1);
            }
            if is_left {
                pair.load("http://c.test/", NAVIGATION);
            }
            let found = pair.load(SHEET, &[("accept", "text/css"), ("referer", referrer)]);
            assert_eq!(found.len(), expected, "{policy} {referrer}");
        }
    }
}

/// The end of a form's response does not end the request for a resource with the same URL.
#[test]
fn form_leaves_requests_under_way_alone() {
    const SHEET: &str = "http://a.test/s.css";
    let sheet = page("text/css", "");
    let mut pair = Pair::new(&[(PAGE, html("<link rel=stylesheet href=s.css>"))]);
    pair.serve(
        SHEET,
        crate::origin::Page {
            is_unfinished: true,
            ..sheet.clone()
        },
    );
    pair.load(SHEET, &[("accept", "text/css")]);
    pair.serve(SHEET, sheet);
    pair.post(SHEET, NAVIGATION);
    pair.run();
    pair.take_asked();
    assert_eq!(asked(&mut pair, NAVIGATION), [""; 0]);
}

/// Markup with another base URL would move the sheets of the page to a foreign host.
#[test]
fn base_that_a_policy_forbids_is_ignored() {
    let body = "<base href=http://evil.test/><link rel=stylesheet nonce=n href=s.css>";
    let nonce = "style-src 'nonce-n'";
    let moved = "http://evil.test/s.css";
    for (policy, expected) in [("base-uri evil.test", moved), ("base-uri 'none'", "/s.css")] {
        let field = format!("{nonce}; {policy}");
        assert_eq!(load(html(body).with(POLICY, &field), &[]), [expected]);
        let meta = format!("<meta http-equiv=Content-Security-Policy content=\"{policy}\">{body}");
        assert_eq!(load(html(&meta).with(POLICY, nonce), &[]), [expected]);
    }
}

/// Browsers do not show such a frame, so they request none of its resources.
#[test]
fn frame_that_forbids_frames_has_no_resources() {
    let frame = |image, name, value| {
        let meta = "<meta http-equiv=Content-Security-Policy content=\"font-src 'self'\">";
        html(&format!("{meta}<img src={image}>")).with(name, value)
    };
    for (name, value, count) in [
        ("x-frame-options", "SAMEORIGIN", 2),
        ("x-frame-options", "DENY", 1),
        (POLICY, "frame-ancestors 'self'", 2),
        (POLICY, "frame-ancestors 'none'", 1),
    ] {
        let url = "http://a.test/f";
        let found = load(
            html("<iframe src=f></iframe>"),
            &[(url, frame("/i.png", name, value))],
        );
        assert_eq!(found.len(), count, "pushed: {name} {value}");
        let foreign = frame("http://b.test/i.png", name, value);
        let mut pair = Pair::new(&[(PAGE, html("")), (url, foreign)]);
        pair.begin_visit("b.test");
        asked(&mut pair, NAVIGATION);
        let fields = [
            ("accept", "text/html"),
            ("referer", PAGE),
            ("sec-fetch-dest", "iframe"),
        ];
        assert_eq!(pair.load(url, &fields).len(), count, "{name} {value}");
    }
}

/// Needs of a frame leave with the page too. The policy of the frame is that of the last visit.
#[test]
fn needs_of_a_frame_obey_its_last_policy() {
    let (frame, image_url) = ("http://a.test/f", "http://a.test/i.png");
    let kept = |page: Page, tag| page.with("cache-control", "max-age=0").with("etag", tag);
    let with = |policy, tag| kept(page("text/html", "<img src=i.png>"), tag).with(POLICY, policy);
    for (policy, expected) in [
        ("img-src 'self'", vec![get(PAGE), head(image_url)]),
        ("img-src 'none'", vec![get(PAGE)]),
    ] {
        let config = Config {
            audience: Audience::OneUser,
            ..Config::default()
        };
        let mut pair = Pair::with(
            config,
            &[
                (PAGE, page("text/html", "<iframe src=f></iframe>")),
                (frame, with("img-src 'self'", "\"1\"")),
                (image_url, kept(image(), "\"1\"")),
            ],
        );
        pair = pair.with_client(true);
        pair.begin_visit("a.test");
        let kind = [("accept", "text/html"), ("sec-fetch-dest", "iframe")];
        for is_again in [false, true] {
            let condition = is_again.then_some(("if-none-match", "\"1\""));
            pair.browse_for(Duration::from_secs(1), PAGE, NAVIGATION);
            let fields: Vec<_> = kind.into_iter().chain(condition).collect();
            pair.get(frame, &[&fields[..], &[("referer", PAGE)]].concat());
            let fields: Vec<_> = condition.into_iter().collect();
            pair.get(image_url, &[&fields[..], &[("referer", frame)]].concat());
            pair.run();
            pair.serve(frame, with(policy, "\"2\""));
        }
        pair.take_asked();
        pair.browse_for(Duration::from_secs(1), PAGE, NAVIGATION);
        let mut requests = requests(&mut pair);
        requests.sort();
        assert_eq!(requests, expected, "{policy}");
    }
}

/// After such a response, the browser still shows the last document.
#[test]
fn response_without_a_document_keeps_the_policies() {
    const SHEET: &str = "http://b.test/s.css";
    let saved = ("content-disposition", "Attachment; filename=a");
    for (status, field, expected) in [
        (200, ("x-other", ""), 2),
        (200, saved, 1),
        (204, ("x-other", ""), 1),
        (205, ("x-other", ""), 1),
    ] {
        let sheet = page("text/css", "a{background:url(i.png)}");
        let mut pair = Pair::new(&[
            (PAGE, html("").with(POLICY, "img-src 'none'")),
            (SHEET, sheet),
        ]);
        asked(&mut pair, NAVIGATION);
        let other = Page { status, ..html("") };
        pair.serve(PAGE, other.with(field.0, field.1));
        asked(&mut pair, NAVIGATION);
        let found = pair.load(SHEET, &[("accept", "text/css"), ("referer", PAGE)]);
        assert_eq!(found.len(), expected, "{status} {field:?}");
    }
}

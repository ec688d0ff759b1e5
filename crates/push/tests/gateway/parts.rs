//! Scenes of the parts of documents: the fields by which the requests for them differ.

use crate::both::{PROMISES, ask, field, pair, script, take_pushes};
use crate::origin::{page, redirect};
use crate::{NAVIGATION, html, image};

#[test]
fn firefox_font_request_takes_its_push() {
    let agent = (
        "user-agent",
        "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
    );
    let accept = (
        "accept",
        "application/font-woff2;q=1.0,application/font-woff;q=0.9,*/*;q=0.8",
    );
    for promises in PROMISES {
        let preload = "<link rel=preload as=font crossorigin href=f.woff2>";
        let pages = [
            ("http://a.test/page", html(preload)),
            ("http://a.test/f.woff2", page("font/woff2", "f")),
        ];
        let mut pair = pair(promises, &pages);
        assert_eq!(pair.get("http://a.test/page", &[agent]).1.len(), 2);
        let referrer = ("referer", "http://a.test/page");
        let fields = [agent, accept, referrer];
        take_pushes(&mut pair, &[("http://a.test/f.woff2", &fields)]);
    }
}

#[test]
fn document_behind_a_redirect_names_its_parts() {
    let pages = [
        ("http://a.test/", redirect("/page")),
        (
            "http://a.test/page",
            html("<link rel=stylesheet href=a.css><img src=c.png>"),
        ),
        (
            "http://a.test/a.css",
            page("text/css", "p { background: url(b.png) }"),
        ),
        ("http://a.test/b.png", image()),
        ("http://a.test/c.png", image()),
    ];
    for promises in PROMISES {
        let mut pair = pair(promises, &pages);
        pair.begin_visit("a.test");
        let fields = [("accept", "text/html"), ("cookie", "of=here")];
        let mut asked = ask(&mut pair, "http://a.test/", &fields);
        asked.extend(ask(&mut pair, "http://a.test/page", &fields));
        let cookie_of_page = ("cookie", "of=here");
        let (by_page, by_sheet) = (
            &[("referer", "http://a.test/page"), cookie_of_page][..],
            &[("referer", "http://a.test/a.css"), cookie_of_page][..],
        );
        let parts = [
            ("http://a.test/a.css", by_page),
            ("http://a.test/b.png", by_sheet),
            ("http://a.test/c.png", by_page),
        ];
        take_pushes(&mut pair, &parts);
        assert_eq!(asked.len(), 5, "each once: {asked:?}");
        let cookie = |url| field(&asked, url, "cookie");
        let referrer = |url| field(&asked, url, "referer");
        assert_eq!(referrer("http://a.test/page"), None);
        assert_eq!(cookie("http://a.test/page").as_deref(), Some("of=here"));
        for (url, fields) in parts {
            assert_eq!(referrer(url).as_deref(), Some(fields[0].1));
            assert_eq!(cookie(url).as_deref(), Some("of=here"));
        }
    }
}

#[test]
fn foreign_sheets_and_modules_name_their_parts() {
    const CDN: &str = "http://b.a.test";
    let at = |name: &str| format!("{CDN}/{name}");
    let body = format!(
        "<link rel=stylesheet href={CDN}/a.css><script type=module src={CDN}/m.js></script>"
    );
    let sheet = "p { background: url(b.png) } @font-face { src: url(c.woff2) }";
    let pages = [
        ("http://a.test/page", html(&body)),
        ("http://b.a.test/a.css", page("text/css", sheet)),
        ("http://b.a.test/m.js", script("import './n.js'; run()")),
        ("http://b.a.test/b.png", image()),
        ("http://b.a.test/c.woff2", image()),
        ("http://b.a.test/n.js", script("n")),
    ];
    for promises in PROMISES {
        let mut pair = pair(promises, &pages);
        let asked = ask(&mut pair, "http://a.test/page", NAVIGATION);
        assert_eq!(asked.len(), 6, "each once: {asked:?}");
        for (name, referrer, is_cors) in [
            ("a.css", "http://a.test/", false),
            ("m.js", "http://a.test/", true),
            ("b.png", "http://b.a.test/a.css", false),
            ("c.woff2", "http://b.a.test/a.css", true),
            ("n.js", "http://b.a.test/m.js", true),
        ] {
            let url = at(name);
            let origin = is_cors.then_some("http://a.test");
            assert_eq!(field(&asked, &url, "referer").as_deref(), Some(referrer));
            assert_eq!(field(&asked, &url, "origin").as_deref(), origin);
            let mut fields = vec![("referer", referrer)];
            fields.extend(origin.map(|origin| ("origin", origin)));
            take_pushes(&mut pair, &[(&url, &fields)]);
        }
    }
}

#[test]
fn requested_style_sheet_is_a_part_of_its_page() {
    let sheet = "p { background: url(b.png) } @font-face { src: url(c.woff2) } \
                 @font-face { src: url(http://f.b.test/d.woff2) }";
    let pages = [
        ("http://b.test/a.css", page("text/css", sheet)),
        ("http://b.test/b.png", image()),
        ("http://b.test/c.woff2", image()),
        ("http://f.b.test/d.woff2", image()),
    ];
    let cookie = ("cookie", "of=there");
    let origin = ("origin", "http://site.test");
    let by_sheet = ("referer", "http://b.test/a.css");
    for promises in PROMISES {
        let mut pair = pair(promises, &pages);
        let fields = [("referer", "http://site.test/"), cookie];
        let mut asked = ask(&mut pair, "http://b.test/a.css", &fields);
        let parts = [
            ("http://b.test/b.png", [by_sheet, cookie]),
            ("http://b.test/c.woff2", [by_sheet, origin]),
            (
                "http://f.b.test/d.woff2",
                [("referer", "http://b.test/"), origin],
            ),
        ];
        for (url, fields) in parts {
            asked.extend(ask(&mut pair, url, &fields));
        }
        assert_eq!(asked.len(), 4, "each once: {asked:?}");
        for (url, fields) in parts {
            for name in ["referer", "cookie", "origin"] {
                let expected = fields.iter().find(|(of, _)| *of == name);
                let expected = expected.map(|(_, value)| *value);
                assert_eq!(field(&asked, url, name).as_deref(), expected, "{url}");
            }
        }
    }
}

#[test]
fn font_of_a_second_site_serves_its_page() {
    let font = "<link rel=preload as=font crossorigin href=http://f.test/f.woff2>";
    let pages = [
        ("http://a.test/page", html(font)),
        ("http://b.test/page", html(font)),
        ("http://f.test/f.woff2", page("font/woff2", "f")),
    ];
    for promises in PROMISES {
        let mut pair = pair(promises, &pages);
        for page in ["http://a.test/page", "http://b.test/page"] {
            assert_eq!(
                pair.get(page, NAVIGATION).1,
                [page, "http://f.test/f.woff2"]
            );
        }
        let fields = [("referer", "http://b.test/"), ("origin", "http://b.test")];
        take_pushes(&mut pair, &[("http://f.test/f.woff2", &fields)]);
    }
}

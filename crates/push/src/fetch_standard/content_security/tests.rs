//! Tests of policies and their sources.

use super::*;

const PAGE: &str = "http://a.test:81/dir/page";

const KINDS: [Kind; 8] = [
    Kind::Style,
    Kind::Script,
    Kind::Image,
    Kind::Font,
    Kind::Fetch,
    Kind::Document,
    Kind::Media,
    Kind::Object,
];

fn of(fields: &[&str]) -> ContentSecurity {
    let mut head = ResponseHead::new(200);
    for field in fields {
        head.fields.push(CONTENT_SECURITY_POLICY, *field);
    }
    ContentSecurity::of(PAGE, &head)
}

fn need(kind: Kind, url: &str) -> Need {
    Need {
        url: url.to_owned(),
        kind,
        urgency: 3,
        anonymous: false,
        by_cors: false,
        referrer: None,
        via: None,
        frame: None,
        has_nonce: false,
    }
}

fn admits(policy: &str, kind: Kind, url: &str) -> bool {
    of(&[policy]).admits(&need(kind, url))
}

#[test]
fn csp_source_matches_the_urls_that_it_names() {
    for (source, url, expected) in [
        ("*", "http://b.test/", true),
        ("'self'", "http://a.test:81/x", true),
        ("'SELF'", "http://a.test:81/x", true),
        ("'self'", "http://a.test/x", false),
        ("'self'", "https://a.test:81/x", false),
        ("http:", "http://b.test/", true),
        ("HTTP:", "https://b.test/", true),
        ("https:", "http://b.test/", false),
        ("https: http:", "http://b.test/", true),
        ("http: https:", "http://b.test/", true),
        ("http: data:", "http://b.test/", true),
        ("data:", "http://b.test/", false),
        ("b.test", "http://b.test/x", true),
        ("B.test", "http://b.test/x", true),
        ("b.test", "https://b.test/x", true),
        ("b.test", "http://b.test:81/x", false),
        ("b.test:81", "http://b.test:81/x", true),
        ("b.test:80", "http://b.test/x", true),
        ("b.test:*", "http://b.test:81/x", true),
        ("b.test:x", "http://b.test/x", false),
        ("b.test", "http://c.b.test/x", false),
        ("*.b.test", "http://c.b.test/x", true),
        ("*.B.test", "http://c.b.test/x", true),
        ("*.b.test", "http://b.test/x", false),
        ("*.b.test", "http://cb.test/x", false),
        ("*b.test", "http://cb.test/x", false),
        ("https://b.test", "http://b.test/x", false),
        ("http://b.test", "http://b.test/x", true),
        ("ftp://b.test", "http://b.test/x", false),
        ("http://*", "http://b.test/x", true),
        ("*:81", "http://b.test:81/x", true),
        ("*:81", "http://b.test/x", false),
        ("b.test/x/", "http://b.test/x/y?z", true),
        ("b.test/x/", "http://b.test/xy", false),
        ("b.test/x", "http://b.test/x?y", true),
        ("b.test/x", "http://b.test/x/y", false),
        ("b.test/", "http://b.test/x", true),
        ("127.0.0.1:8080", "http://127.0.0.1:8080/x", true),
        ("[::1]:8080", "http://[::1]:8080/x", true),
        ("[::1]", "http://[::1]/x", true),
        ("'nonce-abc'", "http://a.test:81/x", false),
        ("'sha256-abc'", "http://a.test:81/x", false),
        ("'none'", "http://a.test:81/x", false),
        ("'unsafe-inline'", "http://a.test:81/x", false),
        ("://", "http://a.test:81/x", false),
        ("", "http://a.test:81/x", false),
    ] {
        let policy = format!("img-src {source}");
        assert_eq!(
            admits(&policy, Kind::Image, url),
            expected,
            "{source} {url}"
        );
    }
}

#[test]
fn kind_has_its_directive() {
    for (directive, kinds) in [
        ("style-src-elem", &[Kind::Style][..]),
        ("style-src", &[Kind::Style]),
        ("script-src-elem", &[Kind::Script]),
        ("script-src", &[Kind::Script]),
        ("img-src", &[Kind::Image]),
        ("font-src", &[Kind::Font]),
        ("connect-src", &[Kind::Fetch]),
        ("Frame-Src", &[Kind::Document]),
        ("child-src", &[Kind::Document]),
        ("media-src", &[Kind::Media]),
        ("object-src", &[Kind::Object]),
        ("manifest-src", &[]),
        ("worker-src", &[]),
        ("default-src", &KINDS),
    ] {
        for kind in KINDS {
            let is_governed = kinds.contains(&kind);
            let policy = format!("{directive} 'none'");
            assert_eq!(
                !admits(&policy, kind, PAGE),
                is_governed,
                "{policy} {kind:?}"
            );
            let policy = format!("default-src 'none'; {directive} 'self'");
            assert_eq!(
                admits(&policy, kind, PAGE),
                is_governed && directive != "default-src",
                "{policy} {kind:?}"
            );
        }
    }
    let nearer = "style-src 'none'; style-src-elem 'self'";
    assert!(admits(nearer, Kind::Style, PAGE));
}

#[test]
fn ending_shows_the_use_of_a_named_resource() {
    for (path, kind) in [
        ("a.css", Kind::Style),
        ("a.js?v=1", Kind::Script),
        ("a.webp", Kind::Image),
        ("a.woff2", Kind::Font),
        ("a.json", Kind::Fetch),
        ("a.html", Kind::Document),
    ] {
        let url = format!("http://a.test:81/{path}");
        for directive in [
            "style-src",
            "script-src",
            "img-src",
            "font-src",
            "connect-src",
            "frame-src",
            "object-src",
        ] {
            let policy = format!("{directive} 'none'");
            assert_eq!(
                admits(&policy, Kind::Other, &url),
                admits(&policy, kind, &url),
                "{policy} {path}"
            );
        }
    }
}

#[test]
fn unknown_use_needs_all_usual_directives() {
    for (policy, expected) in [
        ("default-src 'self'", true),
        ("default-src 'none'", false),
        ("default-src 'none'; script-src 'self'", false),
        ("script-src 'none'", false),
        ("style-src 'none'", false),
        ("img-src 'none'", false),
        ("font-src 'none'", false),
        ("connect-src 'none'", false),
        ("default-src 'self' 'strict-dynamic'", false),
        (
            "object-src 'none'; frame-src 'none'; child-src 'none'; media-src 'none'",
            true,
        ),
        ("manifest-src 'none'; worker-src 'none'", true),
    ] {
        assert_eq!(
            admits(policy, Kind::Other, "http://a.test:81/x"),
            expected,
            "{policy}"
        );
    }
}

#[test]
fn need_is_admitted_by_all_policies_or_not_at_all() {
    assert!(of(&[]).is_empty() && of(&[""]).admits(&need(Kind::Image, PAGE)));
    for fields in [
        &["img-src *", "img-src 'none'"][..],
        &["img-src *, default-src 'none'"],
        &["img-src 'none'; img-src *"],
    ] {
        assert!(!of(fields).admits(&need(Kind::Image, PAGE)), "{fields:?}");
    }
    let others = of(&["report-uri /x, base-uri 'none'"]);
    assert!(others.is_empty() && others.admits(&need(Kind::Image, PAGE)));
}

#[test]
fn strict_dynamic_concerns_scripts_only() {
    const LIST: &str = "'nonce-a' 'strict-dynamic' 'self' http:";
    for directive in ["script-src", "script-src-elem", "default-src"] {
        let policy = format!("{directive} {LIST}");
        for kind in KINDS {
            let expected = kind != Kind::Script;
            assert_eq!(admits(&policy, kind, PAGE), expected, "{policy} {kind:?}");
        }
    }
    assert!(admits(&format!("style-src {LIST}"), Kind::Style, PAGE));
    let own = "default-src 'strict-dynamic'; script-src 'self'";
    assert!(admits(own, Kind::Script, PAGE));
}

#[test]
fn nonce_admits_scripts_and_styles_of_its_element() {
    let url = "http://b.test/x";
    let with = |kind| Need {
        has_nonce: true,
        ..need(kind, url)
    };
    for (policy, script, style) in [
        ("default-src 'nonce-a'", true, true),
        (
            "script-src 'NONCE-a' 'strict-dynamic'; style-src 'self'",
            true,
            false,
        ),
        ("style-src 'nonce-a'; script-src 'none'", false, true),
        ("script-src 'nonce-'; style-src 'sha256-a'", false, false),
    ] {
        let policies = of(&[policy]);
        assert_eq!(policies.admits(&with(Kind::Script)), script, "{policy}");
        assert_eq!(policies.admits(&with(Kind::Style)), style, "{policy}");
        assert!(!policies.admits(&need(Kind::Script, url)), "{policy}");
        let other = of(&[policy, "default-src 'self'"]);
        assert!(!other.admits(&with(Kind::Script)), "each policy must admit");
    }
    assert!(!of(&["img-src 'nonce-a'"]).admits(&with(Kind::Image)));
    let mut meta = of(&["script-src 'nonce-a'"]);
    meta.add_meta(PAGE, "script-src 'nonce-b'");
    assert!(!meta.admits(&with(Kind::Script)), "another nonce");
}

#[test]
fn nonce_of_a_response_is_the_only_one() {
    let nonce = |fields: &[&str]| {
        let mut head = ResponseHead::new(200);
        for field in fields {
            head.fields.push(CONTENT_SECURITY_POLICY, *field);
        }
        policy_nonce(&head)
    };
    let found = Some("Ab+/=".to_owned());
    assert_eq!(
        nonce(&["script-src 'self' 'nonce-Ab+/='; style-src 'nonce-Ab+/='"]),
        found
    );
    assert_eq!(nonce(&["script-src 'nonce-Ab+/=',img-src 'self'"]), found);
    assert_eq!(
        nonce(&["script-src 'nonce-a'", "script-src 'nonce-b'"]),
        None
    );
    assert_eq!(nonce(&["script-src 'nonce-'", "script-src nonce-a"]), None);
    assert_eq!(nonce(&[]), None);
}

#[test]
fn policies_with_other_nonces_are_the_same() {
    let mut all = ContentSecurity::default();
    for response in 0..10 * MAX_POLICIES {
        all.merge(&of(&[&format!(
            "script-src 'nonce-{response}' 'strict-dynamic' 'sha256-{response}'; img-src 'self'"
        )]));
    }
    assert_eq!(all.policies.len(), 1);
    assert!(all.admits(&need(Kind::Image, PAGE)));
    let hashes: String = (0..1000).map(|at| format!(" 'sha256-{at}'")).collect();
    assert!(admits(
        &format!("script-src 'self'{hashes}"),
        Kind::Script,
        PAGE
    ));
}

#[test]
fn sandbox_makes_the_origin_opaque() {
    for (policy, image, script) in [
        ("sandbox", false, false),
        ("SANDBOX allow-scripts", false, false),
        ("sandbox allow-same-origin", true, false),
        (
            "sandbox Allow-Same-Origin allow-forms allow-scripts",
            true,
            true,
        ),
        ("sandbox allow-same-origin; img-src 'none'", false, false),
    ] {
        assert_eq!(admits(policy, Kind::Image, PAGE), image, "{policy}");
        let url = "http://a.test:81/x";
        for kind in [Kind::Script, Kind::Document, Kind::Other] {
            assert_eq!(admits(policy, kind, url), script, "{policy} {kind:?}");
        }
    }
    let mut all = ContentSecurity::default();
    all.merge(&of(&["sandbox allow-same-origin"]));
    assert!(!all.is_empty() && !all.admits(&need(Kind::Script, PAGE)));
    let mut meta = ContentSecurity::default();
    meta.add_meta(PAGE, "sandbox; img-src 'self'");
    assert!(meta.admits(&need(Kind::Image, PAGE)));
    assert!(!meta.admits(&need(Kind::Image, "http://b.test/")));
}

#[test]
fn upgrade_of_requests_spares_loopback() {
    let upgrade = of(&["Upgrade-Insecure-Requests"]);
    for (url, is_upgraded) in [
        ("http://a.test/", true),
        ("https://a.test/", false),
        ("http://localhost:8080/", false),
        ("http://a.localhost/", false),
        ("http://notlocalhost/", true),
        ("http://127.1.2.3/", false),
        ("http://128.0.0.1/", true),
        ("http://[::1]:81/", false),
        ("http://[::2]/", true),
        // Tor Browser upgrades these too.
        ("http://abcdefghijklmnop.onion/", true),
    ] {
        assert_eq!(upgrade.upgrades(url), is_upgraded, "{url}");
        let is_admitted = upgrade.admits(&need(Kind::Image, url));
        assert_eq!(is_admitted, !is_upgraded, "{url}");
        assert!(!ContentSecurity::default().upgrades(url));
    }
}

#[test]
fn policies_beyond_the_bounds_admit_nothing() {
    let image = need(Kind::Image, PAGE);
    let many: Vec<String> = (0..=MAX_POLICIES)
        .map(|at| format!("img-src * a.test/{at}"))
        .collect();
    for (count, expected) in [(MAX_POLICIES, true), (MAX_POLICIES + 1, false)] {
        let policies = of(&[&many[..count].join(",")]);
        assert_eq!(policies.admits(&image), expected);
        assert!(policies.policies.len() <= MAX_POLICIES);
    }
    for (count, expected) in [(MAX_HOSTS, true), (MAX_HOSTS + 1, false)] {
        let list = |count| format!("img-src *{}", " a.test".repeat(count));
        assert_eq!(admits(&list(count), Kind::Image, PAGE), expected);
        // The bound is one of all policies together.
        let mut both = of(&[&list(count - 1)]);
        both.add_meta("http://b.test/", "img-src * a.test");
        assert_eq!(both.admits(&image), expected);
    }
    for length in [MAX_TEXT, MAX_TEXT / 2 + 1] {
        let long = |end| format!("img-src * a.test/{}{end}", "x".repeat(length));
        let mut policies = of(&[&long("a")]);
        policies.add_meta(PAGE, &long("b"));
        assert!(!policies.admits(&image), "{length}");
        assert!(policies.bytes() <= MAX_TEXT);
    }
}

/// A document with the largest policies whose hosts match no URL.
#[test]
fn check_compares_each_host_once() {
    let hosts = |name: &str| format!(" {name}.test").repeat(MAX_HOSTS / MAX_POLICIES);
    let each: Vec<String> = (0..MAX_POLICIES)
        .map(|at| format!("default-src 'self'{}", hosts(&at.to_string())))
        .collect();
    let one = format!("default-src{}", " a.test".repeat(MAX_HOSTS));
    for policies in [of(&[&each.join(",")]), of(&[&one])] {
        assert!(!policies.is_closed);
        for kind in KINDS.into_iter().chain([Kind::Other]) {
            comparisons::take();
            policies.admits(&need(kind, "http://b.test/x"));
            let count = comparisons::take();
            assert!(count <= MAX_HOSTS, "{count} for {kind:?}");
        }
    }
    // Sixteen policies of 512 hosts, as a head of 80 kB can have them.
    let large: Vec<String> = (0..MAX_POLICIES)
        .map(|at| format!("img-src{}", format!(" {at}.test").repeat(MAX_HOSTS)))
        .collect();
    let policies = of(&[&large.join(",")]);
    assert!(policies.is_closed && policies.policies.is_empty());
    assert!(!policies.admits(&need(Kind::Other, "http://b.test/x")));
    assert_eq!(comparisons::take(), 0);
}

#[test]
fn merged_policies_keep_their_origins() {
    let mut policies = of(&["img-src 'self'"]);
    policies.merge(&of(&["img-src 'self'"]));
    assert_eq!(policies.policies.len(), 1);
    policies.add_meta("http://b.test/", "img-src 'self'");
    assert!(!policies.admits(&need(Kind::Image, PAGE)));
    policies.merge(&of(&["sandbox"]));
    assert_eq!(
        policies,
        ContentSecurity {
            forbids_scripts: true,
            ..ContentSecurity::closed()
        }
    );
    let mut closed = ContentSecurity::closed();
    closed.merge(&of(&["img-src *"]));
    assert!(!closed.admits(&need(Kind::Image, PAGE)));
}

proptest::proptest! {
    #[test]
    fn policies_of_any_bytes_are_read(
        text in "[a-z' ;,:/.*-]{0,60}",
        url in "http://[a-z.:0-9\\[\\]]{1,9}/[a-z]{0,3}",
    ) {
        let policies = of(&[&text, &format!("img-src {text}")]);
        let _ = policies.admits(&need(Kind::Other, &url));
    }
}

#[test]
fn base_must_be_plainly_permitted() {
    let evil = "http://evil.test/";
    for (list, base, expected) in [
        ("default-src 'none'", evil, true),
        ("", evil, true),
        ("base-uri 'none'", evil, false),
        ("img-src *; Base-URI 'self'", evil, false),
        ("base-uri 'self'", "http://a.test:81/x/", true),
        ("base-uri 'self'", "https://a.test:81/x/", false),
        ("base-uri", "http://a.test:81/x/", false),
        ("base-uri evil.test; base-uri 'none'", evil, true),
        ("base-uri 'none'; base-uri evil.test", evil, false),
        ("base-uri evil.test, base-uri 'self'", evil, false),
        ("base-uri 'nonce-a' *", evil, true),
        ("base-uri 'nonce-a'", evil, false),
    ] {
        assert_eq!(permits_base(list, PAGE, base), expected, "{list} {base}");
    }
    let long = format!("img-src {}", "x".repeat(MAX_TEXT));
    assert!(!permits_base(&long, PAGE, PAGE));
}

#[test]
fn documents_may_forbid_frames() {
    let forbids = |fields: &[(&str, &str)]| {
        let mut head = ResponseHead::new(200);
        head.fields = fields.iter().copied().collect();
        forbids_framing(&head)
    };
    let options = |value| ("x-frame-options", value);
    let policy = |value| (CONTENT_SECURITY_POLICY, value);
    for (fields, expected) in [
        (&[][..], false),
        (&[options("DENY")], true),
        (&[options("sameorigin, deny")], true),
        (&[options("SAMEORIGIN")], false),
        (&[options("SAMEORIGIN"), options("Deny")], true),
        (&[policy("img-src 'none'")], false),
        (&[policy("img-src *; Frame-Ancestors 'NONE'")], true),
        (&[policy("frame-ancestors")], true),
        (
            &[policy("frame-ancestors 'self', frame-ancestors 'none'")],
            true,
        ),
        (&[policy("frame-ancestors 'self'"), options("DENY")], false),
        (
            &[policy("frame-ancestors *; frame-ancestors 'none'")],
            false,
        ),
    ] {
        assert_eq!(forbids(fields), expected, "{fields:?}");
    }
}

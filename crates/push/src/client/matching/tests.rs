//! Every field that a browser or the product knows, against pushes that had it, lacked it or had
//! another value.

use tandem_http::Scheme;

use super::*;
use crate::browser_fields::{BROWSER_FIELDS, INHERITED_FIELDS, repeatable_fields};

/// The fields of requests, each with its rule and two values. Without a rule, a request with the
/// field is refused.
const KNOWN: [(&str, Option<FieldRule>, [&str; 2]); 59] = [
    (
        "accept",
        Some(FieldRule::Accept),
        ["image/webp", "image/png"],
    ),
    (
        "accept-charset",
        Some(FieldRule::ByVary),
        ["utf-8", "latin1"],
    ),
    (
        "accept-encoding",
        Some(FieldRule::Inherited),
        ["gzip", "br"],
    ),
    ("accept-language", Some(FieldRule::Inherited), ["de", "fr"]),
    (
        "cache-control",
        Some(FieldRule::CacheControl),
        ["max-age=0", "max-age=9"],
    ),
    ("cookie", Some(FieldRule::Cookie), ["who=anna", "who=bert"]),
    ("dnt", Some(FieldRule::Inherited), ["1", "0"]),
    (
        "if-modified-since",
        Some(FieldRule::Condition),
        ["Sun, 06 Nov 1994 08:49:37 GMT", "x"],
    ),
    (
        "if-none-match",
        Some(FieldRule::Condition),
        ["\"1\"", "\"2\""],
    ),
    ("intervention", Some(FieldRule::ByVary), ["1", "2"]),
    (
        "origin",
        Some(FieldRule::Origin),
        ["http://one.test", "http://other.test"],
    ),
    ("pragma", Some(FieldRule::CacheControl), ["x", "no-cache"]),
    ("priority", Some(FieldRule::ByVary), ["u=1", "u=2"]),
    ("purpose", Some(FieldRule::ByVary), ["prefetch", "preview"]),
    (
        "referer",
        Some(FieldRule::Referrer),
        ["http://one.test/", "http://other.test/"],
    ),
    ("save-data", Some(FieldRule::Inherited), ["on", "off"]),
    ("sec-ch-ua", Some(FieldRule::Inherited), ["\"A\"", "\"B\""]),
    ("sec-ch-ua-mobile", Some(FieldRule::Inherited), ["?0", "?1"]),
    (
        "sec-ch-ua-platform",
        Some(FieldRule::Inherited),
        ["\"Linux\"", "\"Android\""],
    ),
    (
        "sec-fetch-dest",
        Some(FieldRule::FetchDestination),
        ["image", "empty"],
    ),
    (
        "sec-fetch-mode",
        Some(FieldRule::FetchMode),
        ["no-cors", "cors"],
    ),
    (
        "sec-fetch-site",
        Some(FieldRule::FetchSite),
        ["same-origin", "cross-site"],
    ),
    (
        "sec-fetch-storage-access",
        Some(FieldRule::ByVary),
        ["none", "active"],
    ),
    ("sec-fetch-user", Some(FieldRule::ByVary), ["?1", "?0"]),
    ("sec-gpc", Some(FieldRule::Inherited), ["1", "0"]),
    ("sec-purpose", Some(FieldRule::ByVary), ["prefetch", "x"]),
    (OPENED_FIELD, Some(FieldRule::ByVary), ["a.test", "b.test"]),
    ("te", Some(FieldRule::ByVary), ["trailers", "x"]),
    (
        "upgrade-insecure-requests",
        Some(FieldRule::ByVary),
        ["1", "0"],
    ),
    (
        "user-agent",
        Some(FieldRule::Inherited),
        ["Mozilla/5.0", "curl/8"],
    ),
    ("via", Some(FieldRule::ByVary), ["1.1 a", "1.1 b"]),
    ("x-moz", Some(FieldRule::ByVary), ["prefetch", "x"]),
    ("x-purpose", Some(FieldRule::ByVary), ["preview", "x"]),
    ("a-im", None, ["x", "y"]),
    ("authorization", None, ["Basic eA==", "Basic eQ=="]),
    ("content-length", None, ["0", "1"]),
    ("content-type", None, ["text/plain", "text/html"]),
    ("device-memory", Some(FieldRule::Hint), ["1", "2"]),
    ("expect", None, ["100-continue", "x"]),
    ("forwarded", None, ["for=a", "for=b"]),
    ("from", None, ["a@x.test", "b@x.test"]),
    ("if-match", None, ["\"1\"", "*"]),
    ("if-range", None, ["\"1\"", "\"2\""]),
    (
        "if-unmodified-since",
        None,
        ["Sun, 06 Nov 1994 08:49:37 GMT", "x"],
    ),
    ("last-event-id", None, ["1", "2"]),
    ("proxy-authorization", None, ["Basic eA==", "Basic eQ=="]),
    ("range", None, ["bytes=0-1", "bytes=2-"]),
    ("sec-ch-ua-form-factors", Some(FieldRule::Hint), ["a", "b"]),
    ("sec-ch-ua-model", Some(FieldRule::Hint), ["a", "b"]),
    ("sec-unknown", None, ["1", "2"]),
    ("sec-websocket-key", None, ["a", "b"]),
    ("service-worker", None, ["script", "x"]),
    ("tandem-asked", None, ["1", "2"]),
    ("tandem-push", None, ["pushed", "held-out"]),
    ("tor-stream-isolation", None, ["a", "b"]),
    ("viewport-width", Some(FieldRule::Hint), ["1", "2"]),
    ("x-forwarded-for", None, ["a", "b"]),
    ("x-http-method-override", None, ["PUT", "DELETE"]),
    (
        "x-requested-with",
        Some(FieldRule::Inherited),
        ["XMLHttpRequest", "x"],
    ),
];

fn request(fields: &[(&str, &str)]) -> RequestHead {
    RequestHead {
        fields: fields.iter().copied().collect(),
        ..RequestHead::get(Scheme::Http, "h.test", "/a")
    }
}

fn head(fields: &[(&str, &str)]) -> ResponseHead {
    ResponseHead {
        fields: fields.iter().copied().collect(),
        ..ResponseHead::new(200)
    }
}

/// Decides about a push that was fetched with `pushed`, in HTTP/2. The decision in SPDY must not be
/// more lenient.
fn check(
    pushed: &[(&str, &str)],
    asked: &[(&str, &str)],
    response: &[(&str, &str)],
) -> Result<(), Mismatch> {
    let (promised, bare, head) = (request(pushed), request(&[]), head(response));
    let facts = PushFacts {
        request: &promised,
        has_own_fields: true,
        hashes: Some(RequestHashes::of(&promised.fields)),
        metadata: None,
        head: Some(&head),
        ignores_cookies: false,
    };
    let by_hashes = PushFacts {
        request: &bare,
        has_own_fields: false,
        metadata: Metadata::of(&promised.fields),
        ..facts
    };
    let decision = facts.check(&request(asked));
    let told = by_hashes.check(&request(asked));
    // Hashes tell less, so the decision may be stricter, never more lenient. Our gateway sends no
    // field that they do not cover.
    let is_covered = |(name, _): &(&str, &str)| rule_of(name.as_bytes()) != Some(FieldRule::ByVary);
    let is_ours = pushed.iter().all(is_covered);
    assert!(
        !is_ours || decision.is_ok() || told.is_err(),
        "{pushed:?} {asked:?}"
    );
    decision
}

#[test]
fn each_known_field_has_its_rule() {
    for (name, rule, _) in KNOWN {
        assert_eq!(rule_of(name.as_bytes()), rule, "{name}");
    }
    let is_known = |name: &str| KNOWN.iter().any(|(known, ..)| *known == name);
    for (name, _) in FIELD_RULES {
        assert!(is_known(name), "{name} has a rule and no test");
    }
    for name in BROWSER_FIELDS.iter().chain(&INHERITED_FIELDS) {
        assert!(rule_of(name.as_bytes()).is_some(), "{name} has no rule");
    }
    for name in INHERITED_FIELDS {
        assert_eq!(rule_of(name.as_bytes()), Some(FieldRule::Inherited));
    }
}

#[test]
fn each_known_field_decides_by_its_rule() {
    use FieldRule::Hint;
    use Mismatch::{Cookie, Inherited, Origin, Page, UnknownField, Vary};
    for (name, rule, [one, other]) in KNOWN {
        let (one, other, without) = (&[(name, one)][..], &[(name, other)][..], &[][..]);
        let vary = [("vary", name)];
        // Only the push has the field, only the request has it, and both have different values.
        let all = |response| {
            [(one, without), (without, one), (one, other)]
                .map(|(pushed, asked)| check(pushed, asked, response))
        };
        match rule {
            None => {
                assert_eq!(all(&[])[1..], [Err(UnknownField); 2], "{name}");
                assert_eq!(check(one, one, &[]), Err(UnknownField), "{name}");
                continue;
            }
            Some(FieldRule::Inherited | Hint) => assert_eq!(all(&[]), [Err(Inherited); 3]),
            Some(FieldRule::Cookie) => assert_eq!(all(&[]), [Err(Cookie); 3]),
            Some(FieldRule::Origin) => assert_eq!(all(&[]), [Err(Origin); 3]),
            Some(FieldRule::Referrer) => assert_eq!(all(&[]), [Ok(()), Err(Page), Err(Page)]),
            Some(FieldRule::ByVary) => {
                assert_eq!(all(&[]), [Ok(()); 3], "{name}");
                assert_eq!(all(&vary), [Err(Vary); 3], "{name}");
            }
            // These have tests of their own for each value.
            Some(
                FieldRule::Accept
                | FieldRule::FetchDestination
                | FieldRule::FetchSite
                | FieldRule::FetchMode
                | FieldRule::CacheControl
                | FieldRule::Condition,
            ) => assert!(check(without, one, &[]).is_ok(), "{name}"),
        }
        assert_eq!(check(one, one, &[]), Ok(()), "{name} alike");
    }
}

#[test]
fn method_and_target_must_be_the_same() {
    let promised = request(&[]);
    let facts = PushFacts {
        request: &promised,
        has_own_fields: true,
        hashes: None,
        metadata: None,
        head: None,
        ignores_cookies: false,
    };
    for method in ["HEAD", "POST", "OPTIONS", "PURGE"] {
        let asked = RequestHead {
            method: Method::parse(method.as_bytes()).expect("a token"),
            ..request(&[])
        };
        assert_eq!(facts.check(&asked), Err(Mismatch::Method), "{method}");
        let other = PushFacts {
            request: &asked,
            ..facts
        };
        // A promise of HEAD can confirm the browser's copy.
        let expected = match method {
            "HEAD" => Ok(()),
            _ => Err(Mismatch::Method),
        };
        assert_eq!(other.check(&promised), expected, "{method}");
    }
    let websocket = RequestHead {
        protocol: Some("websocket".to_owned()),
        ..request(&[])
    };
    assert_eq!(facts.check(&websocket), Err(Mismatch::Method));
    let asked = |scheme, authority: &str, path: &str| {
        facts.check(&RequestHead::get(scheme, authority, path))
    };
    assert_eq!(asked(Scheme::Http, "H.Test", "/a"), Ok(()));
    for other in [
        asked(Scheme::Https, "h.test", "/a"),
        asked(Scheme::Http, "h.test:81", "/a"),
        asked(Scheme::Http, "h.test", "/A"),
        asked(Scheme::Http, "h.test", "/a?"),
    ] {
        assert_eq!(other, Err(Mismatch::Target));
    }
}

#[test]
fn request_without_accept_encoding_gets_no_gzip() {
    let (gzip, coded) = (("accept-encoding", "gzip"), ("content-encoding", "gzip"));
    assert_eq!(check(&[gzip], &[gzip], &[coded]), Ok(()));
    assert_eq!(check(&[gzip], &[], &[coded]), Err(Mismatch::Inherited));
    // An origin or a gateway may code a body without being asked to.
    assert_eq!(check(&[], &[], &[coded]), Err(Mismatch::ContentEncoding));
    let none = ("accept-encoding", "gzip;q=0");
    assert_eq!(
        check(&[none], &[none], &[coded]),
        Err(Mismatch::ContentEncoding)
    );
}

#[test]
fn other_cookies_get_only_responses_for_everyone() {
    let (anna, bert) = (("cookie", "who=anna"), ("cookie", "who=bert"));
    let control = |value| ("cache-control", value);
    for (response, expected) in [
        (&[][..], Err(Mismatch::Cookie)),
        (&[control("max-age=600")], Err(Mismatch::Cookie)),
        (&[control("public, max-age=600")], Ok(())),
        (&[control("s-maxage=600")], Ok(())),
        (&[control("public, private")], Err(Mismatch::Cookie)),
        (&[control("public, no-store")], Err(Mismatch::Cookie)),
        (
            &[control("public"), ("set-cookie", "a=b")],
            Err(Mismatch::Cookie),
        ),
        (
            &[control("public"), ("vary", "Cookie")],
            Err(Mismatch::Cookie),
        ),
        (
            &[("access-control-allow-origin", "*")],
            Err(Mismatch::Cookie),
        ),
    ] {
        for asked in [&[bert][..], &[]] {
            assert_eq!(check(&[anna], asked, response), expected, "{response:?}");
        }
        assert_eq!(check(&[], &[anna], response), expected, "{response:?}");
        assert_eq!(check(&[anna], &[anna], response), Ok(()), "{response:?}");
    }
}

#[test]
fn data_and_documents_need_an_equal_accept() {
    let accept = |value| [("accept", value)];
    for (pushed, asked, expected) in [
        ("*/*", "image/png", Ok(())),
        ("*/*", "text/css,*/*;q=0.1", Ok(())),
        ("*/*", "application/font-woff2;q=1.0,*/*", Ok(())),
        ("*/*", "application/json", Err(Mismatch::Accept)),
        ("application/json", "application/json", Ok(())),
        ("image/png", "text/html,*/*", Err(Mismatch::Accept)),
        ("text/html,*/*", "text/html,*/*", Ok(())),
    ] {
        let found = check(&accept(pushed), &accept(asked), &[]);
        assert_eq!(found, expected, "{pushed} {asked}");
    }
    let vary = [("vary", "accept")];
    let found = check(&accept("*/*"), &accept("image/png"), &vary);
    assert_eq!(found, Err(Mismatch::Vary));
    let navigates = [("accept", "*/*"), ("sec-fetch-mode", "navigate")];
    let found = check(&accept("image/png"), &navigates, &[]);
    assert_eq!(found, Err(Mismatch::Accept));
}

#[test]
fn fetch_metadata_must_fit_the_cause() {
    let mode = |value| check(&[], &[("sec-fetch-mode", value)], &[]);
    for allowed in ["no-cors", "cors", "same-origin", "navigate"] {
        assert_eq!(mode(allowed), Ok(()), "{allowed}");
    }
    for refused in ["websocket", "webtransport", "", "NO-CORS"] {
        assert_eq!(mode(refused), Err(Mismatch::FetchMetadata), "{refused}");
    }
    let (own, foreign) = (
        ("referer", "http://h.test/page"),
        ("referer", "http://g.test/"),
    );
    let site = |pushed, site| check(&[pushed], &[("sec-fetch-site", site)], &[]);
    for (pushed, value, expected) in [
        (own, "same-origin", Ok(())),
        (own, "none", Ok(())),
        (own, "cross-site", Err(Mismatch::FetchMetadata)),
        (own, "same-site", Err(Mismatch::FetchMetadata)),
        (foreign, "cross-site", Ok(())),
    ] {
        assert_eq!(site(pushed, value), expected, "{pushed:?} {value}");
    }
}

#[test]
fn metadata_of_the_gateways_request_decide() {
    let metadata = |dest, mode, site| {
        [
            ("sec-fetch-dest", dest),
            ("sec-fetch-mode", mode),
            ("sec-fetch-site", site),
        ]
    };
    let script = metadata("script", "no-cors", "cross-site");
    // A style sheet of the target's origin has caused the request in a page of another site.
    let by_part = [&script[..], &[("referer", "http://h.test/s.css")]].concat();
    assert_eq!(check(&by_part, &by_part, &[]), Ok(()));
    for (asked, expected) in [
        (metadata("script", "cors", "cross-site"), Ok(())),
        (metadata("empty", "cors", "cross-site"), Ok(())),
        (
            metadata("style", "no-cors", "cross-site"),
            Err(Mismatch::FetchMetadata),
        ),
        (
            metadata("script", "no-cors", "same-origin"),
            Err(Mismatch::FetchMetadata),
        ),
        (
            metadata("iframe", "navigate", "cross-site"),
            Err(Mismatch::FetchMetadata),
        ),
    ] {
        assert_eq!(check(&script, &asked, &[]), expected, "{asked:?}");
    }
    let vary = [("vary", "Sec-Fetch-Dest, Sec-Fetch-Mode, Sec-Fetch-User")];
    assert_eq!(check(&script, &script, &vary), Ok(()));
    let by_cors = metadata("script", "cors", "cross-site");
    assert_eq!(check(&script, &by_cors, &vary), Err(Mismatch::Vary));
    let by_user = [&script[..], &[("sec-fetch-user", "?1")]].concat();
    assert_eq!(check(&script, &by_user, &vary), Err(Mismatch::Vary));
    assert_eq!(check(&script, &by_user, &[]), Ok(()));
    assert_eq!(check(&script, &[], &[]), Ok(()));
}

/// The promises of SPDY have the fields of the page's request.
#[test]
fn metadata_of_a_head_replace_those_of_the_exchange() {
    let page = request(&[
        ("sec-fetch-dest", "document"),
        ("sec-fetch-mode", "navigate"),
        ("sec-fetch-site", "none"),
    ]);
    let head = head(&[("vary", "sec-fetch-dest")]);
    let image = Metadata::parse(b"image no-cors same-origin");
    for (metadata, dest, expected) in [
        (image, "image", Ok(())),
        (image, "document", Err(Mismatch::FetchMetadata)),
        (image, "empty", Err(Mismatch::Vary)),
        (None, "image", Err(Mismatch::Vary)),
    ] {
        let facts = PushFacts {
            request: &page,
            has_own_fields: false,
            hashes: Some(RequestHashes::of(&request(&[]).fields)),
            metadata,
            head: Some(&head),
            ignores_cookies: false,
        };
        let asked = request(&[("sec-fetch-dest", dest)]);
        assert_eq!(facts.check(&asked), expected, "{metadata:?} {dest}");
    }
}

#[test]
fn cors_response_fits_its_origin_or_all() {
    let origin = |value| [("origin", value)];
    let open = [("access-control-allow-origin", "*")];
    let other = origin("http://other.test");
    assert_eq!(check(&[], &other, &[]), Err(Mismatch::Origin));
    assert_eq!(check(&[], &other, &open), Ok(()));
    assert_eq!(check(&other, &other, &[]), Ok(()));
    let own = origin("http://h.test");
    assert_eq!(check(&[], &own, &[]), Ok(()), "its own");
    let named = [("access-control-allow-origin", "http://h.test")];
    for head in [named, [("vary", "origin")]] {
        assert_eq!(check(&[], &own, &head), Err(Mismatch::Origin));
    }
    let with_cookie = [("origin", "http://other.test"), ("cookie", "a")];
    assert_eq!(check(&[], &with_cookie, &open), Err(Mismatch::Origin));
}

/// A gateway of another implementation tells by its promise alone, and need not repeat all fields.
#[test]
fn page_of_the_origin_needs_a_push_for_such_a_page() {
    let own = request(&[("referer", "http://h.test/page")]);
    let (bare, head) = (request(&[]), head(&[]));
    for (hashes, expected) in [
        (Some(RequestHashes::of(&bare.fields)), Err(Mismatch::Page)),
        (None, Ok(())),
    ] {
        let facts = PushFacts {
            request: &bare,
            has_own_fields: true,
            hashes,
            metadata: None,
            head: Some(&head),
            ignores_cookies: false,
        };
        assert_eq!(facts.check(&own), expected);
        assert_eq!(facts.check(&bare), Ok(()));
    }
    assert_eq!(check(&[("referer", "http://h.test/")], &[], &[]), Ok(()));
}

#[test]
fn page_of_another_site_needs_its_own_response() {
    let page = |value| [("referer", value)];
    let (here, there) = (page("http://one.test/"), page("http://other.test/"));
    assert_eq!(check(&here, &there, &[]), Err(Mismatch::Page));
    assert_eq!(
        check(&here, &page("http://h.test/"), &[]),
        Err(Mismatch::Page)
    );
    assert_eq!(check(&page("http://h.test/"), &there, &[]), Ok(()));
}

#[test]
fn cache_directives_of_the_request_decide() {
    for (name, value, expected) in [
        ("cache-control", "max-age=0", Ok(())),
        ("cache-control", "only-if-cached", Ok(())),
        ("cache-control", "No-Cache", Err(Mismatch::CacheControl)),
        ("cache-control", "x, no-store", Err(Mismatch::CacheControl)),
        ("cache-control", "no-transform", Err(Mismatch::CacheControl)),
        ("pragma", "no-cache", Err(Mismatch::CacheControl)),
    ] {
        assert_eq!(
            check(&[], &[(name, value)], &[]),
            expected,
            "{name} {value}"
        );
    }
}

#[test]
fn conditional_request_gets_the_whole_response() {
    for name in ["if-none-match", "if-modified-since"] {
        let response = [("etag", "\"1\"")];
        assert_eq!(check(&[], &[(name, "\"1\"")], &response), Ok(()), "{name}");
    }
}

#[test]
fn vary_compares_fields_without_a_hash() {
    let asked = [("te", "trailers")];
    let vary = |value| [("vary", value)];
    assert_eq!(check(&asked, &asked, &vary("TE")), Ok(()));
    assert_eq!(check(&asked, &asked, &vary("*")), Err(Mismatch::Vary));
    assert_eq!(check(&asked, &asked, &vary("x, *")), Err(Mismatch::Vary));
    assert_eq!(check(&[], &[], &vary("x-kind")), Ok(()));
}

#[test]
fn foreign_gateway_tells_by_its_promise() {
    let gzip = request(&[("accept-encoding", "gzip"), ("user-agent", "a")]);
    let head = head(&[]);
    let facts = PushFacts {
        request: &gzip,
        has_own_fields: true,
        hashes: None,
        metadata: None,
        head: Some(&head),
        ignores_cookies: false,
    };
    assert_eq!(facts.check(&gzip), Ok(()));
    assert_eq!(facts.check(&request(&[])), Err(Mismatch::Inherited));
}

#[test]
fn push_without_head_is_judged_by_known_fields() {
    let promised = request(&[("accept-language", "de")]);
    let known = PushFacts {
        request: &promised,
        has_own_fields: true,
        hashes: None,
        metadata: None,
        head: None,
        ignores_cookies: false,
    };
    let unknown = PushFacts {
        has_own_fields: false,
        ..known
    };
    let asked = request(&[("accept-language", "fr")]);
    assert_eq!(known.check(&asked), Err(Mismatch::Inherited));
    assert_eq!(unknown.check(&asked), Ok(()), "the head will tell");
    let range = request(&[("range", "bytes=0-1")]);
    assert_eq!(unknown.check(&range), Err(Mismatch::UnknownField));
}

proptest::proptest! {
    /// A field without a rule refuses, whatever else the request has.
    #[test]
    fn unknown_field_always_refuses(name in "[a-z][a-z-]{0,20}", value in "[ -~]{0,20}") {
        proptest::prop_assume!(rule_of(name.as_bytes()).is_none());
        let asked = [("accept", "*/*"), (name.as_str(), value.as_str())];
        proptest::prop_assert_eq!(check(&asked, &asked, &[]), Err(Mismatch::UnknownField));
    }
}

#[test]
fn fields_of_repeatable_requests_have_rules() {
    for name in repeatable_fields() {
        assert!(rule_of(name.as_bytes()).is_some(), "{name}");
    }
}

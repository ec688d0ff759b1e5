//! The cookies of requests after a response: single rules, and random jars beside a plain model.

use proptest::prelude::*;
use tandem_http::Scheme;

use super::*;

const NOW: u64 = 1_700_000_000;

const CHROME: &str = "Mozilla/5.0 Chrome/140.0.0.0 Safari/537.36";

fn page(url: &str, cookie: Option<&str>) -> RequestHead {
    let (scheme, authority, path) = tandem_preload::split(url).unwrap();
    let scheme = Scheme::parse(scheme.as_bytes()).unwrap();
    let mut request = RequestHead::get(scheme, authority, path);
    if let Some(cookie) = cookie {
        request.fields.push("cookie", cookie);
    }
    request
}

fn changes(request: &RequestHead, set: &[&str]) -> Option<CookieChanges> {
    let mut head = ResponseHead::new(200);
    for set in set {
        head.fields.push("set-cookie", *set);
    }
    CookieChanges::of(request, &head, NOW)
}

/// Returns the cookies of a request for `target` after a page has set cookies; `None` if they are
/// unknown.
fn after(url: &str, cookie: Option<&str>, set: &[&str], target: &str) -> Option<String> {
    let changes = changes(&page(url, cookie), set)?;
    let (scheme, authority, path) = tandem_preload::split(target).unwrap();
    let before = cookie.unwrap_or_default().as_bytes();
    let field = changes.after(before, scheme, authority, path);
    Some(String::from_utf8(field).unwrap())
}

fn own(cookie: Option<&str>, set: &[&str]) -> Option<String> {
    let url = "http://a.test/page?x=/";
    after(url, cookie, set, "http://a.test/x.png")
}

#[test]
fn cookie_of_a_page_follows_those_of_its_request() {
    for (cookie, set, expected) in [
        (None, &["sid=1; path=/; HttpOnly"][..], "sid=1"),
        (None, &["a=1", "b=2=3; SameSite=Lax; Path=/"], "a=1; b=2=3"),
        (Some("x=y"), &["sid = 1 ; Max-Age=60"], "x=y; sid=1"),
        (Some("sid=0; x=y"), &["sid=1"], "sid=1; x=y"),
        (Some("sid=0;x=y"), &["sid=; Max-Age=0"], "x=y"),
        (Some("sid=0"), &["sid=; Max-Age=-1"], ""),
        (Some("x=y"), &["sid=; Max-Age=0"], "x=y"),
        (None, &["a=1", "a=2"], "a=2"),
        (None, &["a=1", "b=1", "a=; max-age=0"], "b=1"),
        (None, &["a=1; Path=x"], "a=1"),
        (None, &["a=1; Path=/x; Path="], "a=1"),
        (None, &["a=1; Domain=a.test; Domain="], "a=1"),
        (None, &[], ""),
    ] {
        assert_eq!(own(cookie, set).as_deref(), Some(expected), "{set:?}");
    }
}

#[test]
fn cookie_lives_until_its_date() {
    for (time, is_kept) in [
        ("expires=Thu, 01-Jan-1970 00:00:01 GMT", false),
        ("expires=Tue, 14 Nov 2023 22:13:20 GMT", false),
        ("expires=Tue, 14 Nov 2023 22:13:21 GMT", true),
        ("expires=Sun, 06-Nov-2094 08:49:37 GMT", true),
        ("expires=Thu, 01 Jan 1970 00:00:01 GMT; max-age=5", true),
        ("max-age=x; expires=Thu, 01 Jan 1970 00:00:01 GMT", false),
        ("max-age=0; max-age=5", true),
        ("max-age=-", true),
        ("max-age=00", false),
    ] {
        let expected = if is_kept { "sid=1" } else { "" };
        let set = format!("sid=1; {time}");
        assert_eq!(own(Some("sid=0"), &[&set]).as_deref(), Some(expected));
    }
}

#[test]
fn cookie_covers_its_path() {
    let on =
        |url: &str, set: &str, target: &str| after(url, None, &[set], target).unwrap() == "a=1";
    let shop = "http://a.test/shop/page";
    for (url, set, path, covers) in [
        (shop, "a=1", "/shop", true),
        (shop, "a=1", "/shop/", true),
        (shop, "a=1", "/shop/x?y", true),
        (shop, "a=1", "/shopping", false),
        (shop, "a=1", "/", false),
        (shop, "a=1; Path=/", "/x", true),
        (shop, "a=1; Path=/shop/", "/shop", false),
        (shop, "a=1; Path=/shop/", "/shop/x", true),
        (shop, "a=1; Path=/shop/x", "/shop/x?/", true),
        ("http://a.test/page", "a=1", "/x", true),
        ("http://a.test/?a=/b/", "a=1", "/x", true),
    ] {
        let target = format!("http://a.test{path}");
        assert_eq!(on(url, set, &target), covers, "{url} {set} {path}");
    }
}

#[test]
fn cookie_covers_its_domain() {
    let www = "http://www.a.example/";
    for (url, set, target, covers) in [
        (www, "a=1", "http://www.a.example:81/", true),
        (www, "a=1", "http://WWW.a.example/", true),
        (www, "a=1", "http://a.example/", false),
        (www, "a=1", "http://x.www.a.example/", false),
        (www, "a=1; Domain=.A.example", "http://i.a.example/", true),
        (www, "a=1; Domain=a.example", "http://a.example/", true),
        (www, "a=1; Domain=a.example", "http://ba.example/", false),
        (www, "a=1; Domain=www.a.example", "http://a.example/", false),
        (www, "a=1; Domain=example", www, false),
        (www, "a=1; Domain=i.a.example", "http://i.a.example/", false),
        (www, "a=1; Domain=w.a.example", www, false),
        (
            "http://b.co.uk/",
            "a=1; Domain=co.uk",
            "http://b.co.uk/",
            false,
        ),
        (
            "http://x.github.io/",
            "a=1; Domain=github.io",
            "http://y.github.io/",
            false,
        ),
        (
            "http://github.io/",
            "a=1; Domain=github.io",
            "http://github.io/",
            true,
        ),
        (
            "http://github.io/",
            "a=1; Domain=github.io",
            "http://y.github.io/",
            false,
        ),
        (
            "http://10.0.0.1/",
            "a=1; Domain=10.0.0.1",
            "http://10.0.0.1/",
            true,
        ),
        (
            "http://10.0.0.1/",
            "a=1; Domain=0.0.1",
            "http://10.0.0.1/",
            false,
        ),
        (
            "http://localhost/",
            "a=1; Domain=localhost",
            "http://localhost:8/",
            true,
        ),
    ] {
        let field = after(url, None, &[set], target).unwrap();
        assert_eq!(field == "a=1", covers, "{url} {set} {target}");
    }
}

#[test]
fn secure_cookie_needs_tls() {
    let (plain, tls) = ("http://a.example/", "https://a.example/");
    for (url, set, target, covers) in [
        (tls, "a=1; Secure", tls, true),
        (tls, "a=1; Secure", plain, false),
        (tls, "a=1", plain, true),
        (plain, "a=1; Secure", tls, false),
        (tls, "a=1; Secure; SameSite=None; Partitioned", tls, true),
        (tls, "__Secure-a=1; Secure", tls, true),
        (tls, "__Secure-a=1", tls, false),
        (plain, "__Secure-a=1; Secure", tls, false),
        (tls, "__Host-a=1; Secure; Path=/", tls, true),
        (tls, "__host-a=1; Secure", tls, false),
        (
            tls,
            "__Host-a=1; Secure; Path=/x",
            "https://a.example/x",
            false,
        ),
        (
            tls,
            "__Host-a=1; Secure; Path=/; Domain=a.example",
            tls,
            false,
        ),
    ] {
        let field = after(url, None, &[set], target).unwrap();
        assert_eq!(!field.is_empty(), covers, "{url} {set} {target}");
    }
}

#[test]
fn order_of_cookies_is_by_path_and_age() {
    let set = [
        "a=1",
        "b=2; Path=/x",
        "c=3; Path=/x/y",
        "d=4; Path=/x",
        "e=5",
    ];
    let found = after("http://a.test/", Some("z=0"), &set, "http://a.test/x/y");
    assert_eq!(found.as_deref(), Some("c=3; b=2; d=4; z=0; a=1; e=5"));
}

/// Chromium orders a cookie with a changed value as a new one.
#[test]
fn changed_cookie_keeps_its_place_in_other_browsers() {
    for (agent, set, expected) in [
        ("Firefox/140.0", "a=2", "a=2; b=1"),
        (CHROME, "a=2", "b=1; a=2"),
        (CHROME, "a=1", "a=1; b=1"),
    ] {
        let mut request = page("http://a.test/", Some("a=1; b=1"));
        request.fields.push("user-agent", agent);
        let field = changes(&request, &[set]).unwrap();
        let field = field.after(b"a=1; b=1", "http", "a.test", "/x");
        assert_eq!(field, expected.as_bytes(), "{agent}");
        request.fields.remove("cookie");
        let twice = changes(&request, &["a=1", "b=1", set]).unwrap();
        let field = twice.after(b"", "http", "a.test", "/x");
        assert_eq!(field, expected.as_bytes(), "{agent}");
    }
}

#[test]
fn same_cookies_alter_nothing() {
    let alters = |cookie: Option<&str>, set: &[&str]| {
        let changes = changes(&page("http://a.test/", cookie), set).unwrap();
        changes.alter(cookie.unwrap_or_default().as_bytes())
    };
    assert!(!alters(Some("a=1;b=2"), &["a=1"]));
    assert!(!alters(Some("b=2"), &["a=; max-age=0"]));
    assert!(!alters(None, &["a=1; Domain=b.test"]));
    assert!(alters(Some("a=1"), &["a=2"]));
    assert!(alters(Some("a=1"), &["a=; max-age=0"]));
    assert!(alters(None, &["a=1; Path=/x"]));
}

#[test]
fn cookies_that_browsers_read_differently_are_unknown() {
    for (url, set) in [
        ("https://a.test/", "a=1; SameSite=None"),
        ("https://a.test/", "a=1; Partitioned"),
        ("https://a.test/", "a=1; expires=soon"),
        ("https://a.test/", "a"),
        ("https://a.test/", "=1"),
        ("https://a.test/", "a=\u{7f}"),
        ("https://a.test/", "a=\u{e9}"),
        ("https://a.test/", "a=1; Path=/%41"),
        ("https://a.test/", "a=1; Path=/x/../y"),
        ("https://a.test/", "a=1; Domain=a.test."),
        ("https://a.test/", "a=1; Domain=..a.test"),
        ("https://a.test/", "__Http-a=1; Secure"),
        ("https://a.test/", "__Host-Http-a=1; Secure; Path=/"),
        ("http://localhost/", "a=1; Secure"),
        ("http://127.0.0.2/", "a=1; Secure"),
        ("http://a.onion/", "a=1; Secure"),
    ] {
        assert_eq!(after(url, None, &["b=1", set], url), None, "{set}");
    }
    assert_eq!(own(Some("a=1; a=2"), &["a=3"]), None, "two of one name");
    assert_eq!(own(Some("a=1"), &["a=2", "a=3; Path=/x"]), None);
    assert!(own(Some("a=1; a=2"), &["b=3"]).is_some());
}

#[test]
fn cookies_are_bounded_in_length_and_number() {
    let name = "n".repeat(100);
    for (length, is_known) in [(4096, true), (4097, false)] {
        let cookie = format!("{name}={}", "v".repeat(length - name.len()));
        assert_eq!(own(None, &[&cookie]).is_some(), is_known);
    }
    let long = format!("a=1; Path=/{}", "x".repeat(1024));
    assert_eq!(own(None, &[&long]).as_deref(), Some("a=1"));
    for (count, is_known) in [(MAX_COOKIES, true), (MAX_COOKIES + 1, false)] {
        let set: Vec<_> = (0..count).map(|number| format!("{number}=x")).collect();
        let set: Vec<_> = set.iter().map(String::as_str).collect();
        assert_eq!(own(None, &set).is_some(), is_known, "{count}");
        assert_eq!(own(Some(&set.join("; ")), &["a=1"]).is_some(), is_known);
    }
}

/// A cookie jar as the RFC describes it, without the guesses of the proxy.
#[derive(Default)]
struct Jar(Vec<(Change, usize)>);

impl Jar {
    fn set(&mut self, change: Change, time: usize) {
        let is_same = |(old, _): &(Change, usize)| {
            let (old_scope, scope) = (&old.scope, &change.scope);
            (&old.name, &old_scope.domain, &old_scope.path)
                == (&change.name, &scope.domain, &scope.path)
        };
        let old = self.0.iter().position(is_same).map(|at| self.0.remove(at));
        if change.value.is_some() {
            self.0
                .push((change, old.map_or(time, |(_, created)| created)));
        }
    }

    fn field(&self, host: &str, path: &str) -> String {
        let mut sent: Vec<_> = self
            .0
            .iter()
            .filter(|(it, _)| it.scope.covers(false, host, path))
            .collect();
        sent.sort_by_key(|(it, created)| (std::cmp::Reverse(it.scope.path.len()), *created));
        let pairs = sent
            .iter()
            .map(|(it, _)| String::from_utf8(it.pair().unwrap()).unwrap());
        pairs.collect::<Vec<_>>().join("; ")
    }
}

fn set_cookie() -> impl Strategy<Value = String> {
    let path = prop_oneof![
        Just(""),
        Just("; Path=/"),
        Just("; Path=/s"),
        Just("; Path=/s/t")
    ];
    let domain = prop_oneof![
        Just(""),
        Just("; Domain=a.example"),
        Just("; Domain=www.a.example")
    ];
    let age = prop_oneof![3 => Just(""), 1 => Just("; Max-Age=0")];
    ("[ab]", "[01]", path, domain, age)
        .prop_map(|(name, value, path, domain, age)| format!("{name}={value}{path}{domain}{age}"))
}

proptest! {
    #[test]
    fn cookies_after_a_response_are_those_of_a_jar(
        set in proptest::collection::vec(set_cookie(), 0..8),
        host in "(www|img)\\.a\\.example",
        path in "(/|/s|/s/t|/s/u)",
    ) {
        let request = page("http://www.a.example/s/page", None);
        let setter = Setter { scheme: Scheme::Http, host: "www.a.example", path: "/s/page" };
        let mut jar = Jar::default();
        for (time, set) in set.iter().enumerate() {
            let SetCookie::Change(change) = set_cookie::read(set.as_bytes(), &setter, NOW) else {
                panic!("{set} is plain");
            };
            jar.set(change, time);
        }
        let set: Vec<_> = set.iter().map(String::as_str).collect();
        let found = changes(&request, &set).unwrap().after(b"", "http", &host, &path);
        prop_assert_eq!(String::from_utf8(found).unwrap(), jar.field(&host, &path));
    }

    #[test]
    fn cookies_take_any_text(
        cookie in "[ -~]{0,40}",
        set in "([ab]=1)?[ -~]{0,20}(; *(path|domain|max-age|expires|secure) *=?[ -~]{0,20}){0,3}",
        path in "/[a-z/.%]{0,8}",
    ) {
        // A cookie without a path covers all paths.
        let request = page("https://a.test/y", Some(&cookie));
        if let Some(changes) = changes(&request, &[&set]) {
            let field = changes.after(cookie.as_bytes(), "https", "a.test", &path);
            prop_assert!(field.len() <= cookie.len() * 2 + set.len() + 2);
            let other = changes.after(b"", "https", "b.test", &path);
            prop_assert!(other.is_empty(), "no other site gets a cookie");
        }
    }
}

//! Attacks on the gateway's shared cache: a request makes the origin send a response that other
//! users must not get. `caching` has those by fields in place of the URL, long heads and bodies.

use std::io::Read as _;

use crate::caching::{Caching, fresh, with_fields};
use crate::harness::{Asked, Scene, request};

/// An origin that repeats the host and the field `probe` of a request.
fn echo(asked: &Asked) -> String {
    let field = |name| asked.field(name).unwrap_or("none");
    fresh(&format!("{} {}", field("host"), field("probe")))
}

/// Starts a reverse gateway that serves all hosts.
fn any_host(answer: impl Fn(usize, &Asked) -> String + Send + Sync + 'static) -> Caching {
    Caching::with(answer, true, |options| {
        options.allow_host = vec!["*".parse().unwrap()];
    })
}

/// Sends a request as it is, and returns the body of the response.
fn raw(caching: &Caching, request: &str) -> String {
    let mut client = caching.connect();
    client.send(request);
    let answer = client.answer("GET");
    String::from_utf8(answer.body).unwrap()
}

fn of_host(caching: &Caching, host: &str) -> String {
    raw(caching, &format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"))
}

#[test]
fn spelling_of_the_host_poisons_no_response() {
    let caching = any_host(|_, asked| echo(asked));
    for host in [
        "own.example:1337",
        "own.example:80",
        "own.example.",
        "OWN.example",
        "evil.example",
    ] {
        of_host(&caching, host);
        assert_eq!(
            of_host(&caching, "own.example"),
            "own.example none",
            "{host}"
        );
    }
}

/// RFC 9112 section 3.2.2: the host of an absolute target counts.
#[test]
fn host_beside_an_absolute_target_poisons_no_response() {
    let caching = any_host(|_, asked| echo(asked));
    let both = "GET http://own.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n";
    raw(&caching, both);
    assert_eq!(caching.requests(), 1);
    assert_eq!(of_host(&caching, "own.example"), "own.example none");
    assert_eq!(caching.requests(), 1, "the cache has the response");
    assert_eq!(of_host(&caching, "evil.example"), "evil.example none");
}

#[test]
fn second_host_reaches_no_origin() {
    let caching = any_host(|_, asked| echo(asked));
    let mut client = caching.connect();
    client.send("GET / HTTP/1.1\r\nHost: own.example\r\nHost: evil.example\r\n\r\n");
    assert_eq!(client.head().unwrap().status, 400);
    assert_eq!(caching.requests(), 0);
}

/// A careless origin ignores what follows the name of a page, and permits caches to store it.
#[test]
fn page_of_a_user_is_not_stored_as_a_file() {
    let caching = Caching::start(|_, asked| fresh(asked.field("cookie").unwrap_or("nobody")));
    for path in [
        "/account/x.css",
        "/account;x.css",
        "/account%2fx.css",
        "/account%00x.css",
        "/account/..%2fstatic/x.css",
        "/static/..%2faccount",
        "/account?x.css",
        "/account%3fx.css",
        "/account%23x.css",
    ] {
        assert_eq!(caching.get(path, "Cookie: user=1\r\n").1, "user=1");
        assert_eq!(caching.get(path, "").1, "nobody", "{path}");
    }
}

#[test]
fn range_poisons_no_whole_response() {
    let caching = Caching::start(|number, asked| match asked.field("range") {
        Some(_) if number == 1 => "HTTP/1.1 206 Partial Content\r\nCache-Control: max-age=9\r\n\
             ETag: \"1\"\r\nContent-Range: bytes 0-0/5\r\nContent-Length: 1\r\n\r\nc"
            .to_owned(),
        Some(_) => "HTTP/1.1 416 Range Not Satisfiable\r\nCache-Control: max-age=9\r\n\
             Content-Range: bytes */5\r\nContent-Length: 0\r\n\r\n"
            .to_owned(),
        None => with_fields("ETag: \"1\"\r\nCache-Control: max-age=9\r\n", "clean"),
    });
    assert_eq!(caching.get("/", "Range: bytes=0-0\r\n").0, 206);
    assert_eq!(caching.get("/", "Range: bytes=9-\r\n").0, 416);
    assert_eq!(caching.get("/", ""), (200, "clean".into()));
}

/// A site that opens a resource to the origin of the request, without `Vary`, denies it to others.
#[test]
fn permission_for_one_site_is_not_used_by_another() {
    let caching = Caching::start(|_, asked| {
        let origin = asked.field("origin").unwrap_or("none");
        let fields =
            format!("Access-Control-Allow-Origin: {origin}\r\nCache-Control: max-age=60\r\n");
        with_fields(&fields, origin)
    });
    let get = |origin: &str| caching.get("/", &format!("Origin: {origin}\r\n")).1;
    assert_eq!(get("http://evil.example"), "http://evil.example");
    assert_eq!(get("http://own.example"), "http://own.example");
    assert_eq!(get("http://own.example"), "http://own.example");
    assert_eq!(caching.get("/", "").1, "none");
    assert_eq!(caching.requests(), 3);
}

/// An attacker requests many variants of a response. Each user still gets the right one.
#[test]
fn many_variants_of_a_response_deny_none() {
    let caching = Caching::start(|_, asked| {
        let fields = "Vary: Accept-Language\r\nCache-Control: max-age=60\r\n";
        with_fields(fields, asked.field("accept-language").unwrap_or("none"))
    });
    let get = |language: &str| {
        caching
            .get("/", &format!("Accept-Language: {language}\r\n"))
            .1
    };
    assert_eq!(get("de"), "de");
    for number in 0..100 {
        get(&format!("x-{number}"));
    }
    for _ in 0..2 {
        assert_eq!(get("de"), "de");
    }
    assert_eq!(caching.requests(), 102);
}

/// Characters that some origins refuse end at the gateway, or cause an error for their sender only.
#[test]
fn control_characters_deny_no_service() {
    let caching = Caching::start(|_, asked| match asked.field("probe") {
        Some(_) => "HTTP/1.1 400 Bad Request\r\nCache-Control: max-age=60\r\n\
                    Content-Length: 6\r\n\r\npoison"
            .to_owned(),
        None => fresh("clean"),
    });
    for value in ["a\x07b", "a\rb", "a\0b", "a\nb: c", "\x7f"] {
        let mut client = caching.connect();
        let url = caching.origin.url("/");
        client.send(format!(
            "GET {url} HTTP/1.1\r\nHost: x\r\nX-Probe: {value}\r\n\r\n"
        ));
        let _ = client.stream.read(&mut [0; 64]);
        assert_eq!(caching.get("/", "").1, "clean", "{value:?}");
    }
}

/// An origin that does not read the content of a request takes it for the next request. A user must
/// not get the response to it, and the cache must not keep that.
#[test]
fn unread_content_is_no_request_of_another_user() {
    let origin = Scene::new(|_, mut client| {
        while let Some(asked) = client.request() {
            let path = asked.line.split(' ').nth(1).unwrap();
            client.send(fresh(path));
        }
    });
    let caching = Caching::with(
        |_, _| fresh("unused"),
        true,
        |options| {
            let mode = format!("reverse=http://{}", origin.address);
            options.mode = Some(mode.parse().unwrap());
        },
    );
    let evil = "GET /evil HTTP/1.1\r\nX: ";
    for method in ["GET", "DELETE", "OPTIONS", "PROPFIND", "QUERY"] {
        let mut attacker = caching.connect();
        let length = format!("Content-Length: {}\r\n", evil.len());
        attacker.send(request(method, &origin.url("/content"), &length) + evil);
        assert_eq!(attacker.answer(method).body, b"/content", "{method}");
        let path = format!("/after-{method}.js");
        for user in 0..3 {
            let mut client = caching.connect();
            let cookie = format!("Cookie: user={user}\r\n");
            client.send(request("GET", &origin.url(&path), &cookie));
            let body = client.answer("GET").body;
            assert_eq!(String::from_utf8(body).unwrap(), path, "{method} {user}");
        }
    }
}

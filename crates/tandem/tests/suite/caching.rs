//! Tests of the gateway's cache over sockets: hits, requests that wait for another one, and the
//! separation of users. The attacks store a response that another user must not get.

use std::io::Read as _;
use std::sync::Arc;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tandem::config::GatewayOptions;
use tandem::config::gateway::CacheOption;
use tandem::runtime::Running;

use crate::harness::{
    Asked, Client, Gate, Scene, block_on, endpoint, gateway_options, request, start_gateway,
};

/// A gateway with a cache in front of an origin that counts its requests.
pub(crate) struct Caching {
    pub(crate) origin: Scene,
    requests: Arc<AtomicUsize>,
    pub(crate) gateway: std::net::SocketAddr,
    running: Option<Running>,
}

impl Caching {
    /// Starts a reverse gateway with a shared cache. `answer` makes the response to each request,
    /// which has a number from 1.
    pub(crate) fn start(answer: impl Fn(usize, &Asked) -> String + Send + Sync + 'static) -> Self {
        Self::with(answer, true, |_| {})
    }

    pub(crate) fn with(
        answer: impl Fn(usize, &Asked) -> String + Send + Sync + 'static,
        is_reverse: bool,
        change: impl FnOnce(&mut GatewayOptions),
    ) -> Self {
        let requests = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&requests);
        let origin = Scene::new(move |_, mut client| {
            while let Some(asked) = client.request() {
                if let Some(length) = asked.field("content-length") {
                    client.read_exact(length.parse().unwrap());
                }
                let number = count.fetch_add(1, Ordering::SeqCst) + 1;
                let answer = answer(number, &asked);
                client.send(&answer);
                if answer.starts_with("HTTP/1.0") {
                    // The end of the connection ends the body.
                    if asked.line.contains("/cut") {
                        let socket = socket2::SockRef::from(client.stream.get_ref());
                        socket.set_linger(Some(Duration::ZERO)).unwrap();
                    }
                    return;
                }
            }
        });
        let mut options = gateway_options();
        options.listen = vec![endpoint("http+tcp://127.0.0.1:0")];
        options.cache = Some(CacheOption::Shared);
        if is_reverse {
            options.mode = Some(
                format!("reverse=http://{}", origin.address)
                    .parse()
                    .unwrap(),
            );
        }
        change(&mut options);
        let (running, gateway) = start_gateway(options);
        Self {
            origin,
            requests,
            gateway,
            running: Some(running),
        }
    }

    pub(crate) fn connect(&self) -> Client {
        Client::to(self.gateway)
    }

    pub(crate) fn get(&self, path: &str, fields: &str) -> (u16, String) {
        self.send(&mut self.connect(), "GET", path, fields)
    }

    fn send(&self, client: &mut Client, method: &str, path: &str, fields: &str) -> (u16, String) {
        client.send(request(method, &self.origin.url(path), fields));
        let answer = client.answer(method);
        (answer.status, String::from_utf8(answer.body).unwrap())
    }

    pub(crate) fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

impl Drop for Caching {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            block_on(running.drain(Duration::ZERO));
        }
    }
}

/// A response that may be stored for an hour.
pub(crate) fn fresh(body: &str) -> String {
    with_fields("Cache-Control: max-age=3600\r\n", body)
}

pub(crate) fn with_fields(fields: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: {length}\r\n\r\n{body}")
}

/// RFC 9112 section 8: a body that the end of the connection delimits is complete, unless the
/// connection reports an error.
#[test]
fn body_that_ends_with_its_connection_is_stored() {
    let caching = Caching::start(|number, _| {
        format!("HTTP/1.0 200 OK\r\nCache-Control: max-age=3600\r\n\r\nnumber {number}")
    });
    for _ in 0..3 {
        assert_eq!(caching.get("/whole", ""), (200, "number 1".into()));
    }
    assert_eq!(caching.requests(), 1);
    for _ in 0..2 {
        let (before, mut client) = (caching.requests(), caching.connect());
        let url = caching.origin.url("/cut");
        client.send(request("GET", &url, "Connection: close\r\n"));
        // The reset may overtake the head.
        let _ = client.stream.read_to_end(&mut Vec::new());
        assert!(caching.requests() > before, "a broken body is not stored");
    }
}

#[test]
fn fresh_response_needs_one_origin_request() {
    let caching = Caching::start(|number, _| {
        with_fields(
            "Cache-Control: max-age=3600\r\nETag: \"1\"\r\n",
            &format!("number {number}"),
        )
    });
    assert_eq!(caching.get("/a", "").1, "number 1");
    let mut client = caching.connect();
    client.send(request("GET", &caching.origin.url("/a"), ""));
    let answer = client.answer("GET");
    assert_eq!(answer.body, b"number 1");
    assert!(answer.field("age").is_some());
    assert_eq!(
        caching.send(&mut client, "GET", "/a", "Range: bytes=7-\r\n"),
        (206, "1".into())
    );
    assert_eq!(
        caching
            .send(&mut client, "GET", "/a", "If-None-Match: \"1\"\r\n")
            .0,
        304
    );
    assert_eq!(caching.send(&mut client, "HEAD", "/a", "").0, 200);
    assert_eq!(caching.requests(), 1);
    assert_eq!(caching.get("/b", "").1, "number 2");
}

#[test]
fn post_invalidates_its_target() {
    let caching = Caching::start(|number, _| fresh(&number.to_string()));
    let mut client = caching.connect();
    assert_eq!(caching.send(&mut client, "GET", "/", "").1, "1");
    client.send(request(
        "POST",
        &caching.origin.url("/"),
        "Content-Length: 3\r\n",
    ));
    client.send("abc");
    assert_eq!(client.answer("POST").body, b"2");
    assert_eq!(caching.send(&mut client, "GET", "/", "").1, "3");
    assert_eq!(caching.get("/", "").1, "3");
}

/// RFC 9110 section 9.3.3: with a lifetime, and its own URL in `Content-Location`.
#[test]
fn post_response_serves_get_if_the_origin_says_so() {
    for (path, location, is_reverse, is_stored) in [
        ("/own?x=1", "/own?x=1", true, true),
        ("/own", "http://{host}/own", true, true),
        ("/forward", "/forward", false, false),
        ("/other", "/others", true, false),
        ("/two", "/two\r\nContent-Location: /two", true, false),
        ("/site", "http://elsewhere.example/site", true, false),
    ] {
        let answer = move |number: usize, asked: &Asked| {
            let location = location.replace("{host}", asked.field("host").unwrap());
            let fields = format!("Cache-Control: max-age=99\r\nContent-Location: {location}\r\n");
            with_fields(&fields, &number.to_string())
        };
        let one_user = |options: &mut GatewayOptions| options.cache_users = Some(1);
        let caching = Caching::with(answer, is_reverse, one_user);
        let mut client = caching.connect();
        let post = format!("{PAGE}Content-Length: 3\r\n");
        client.send(request("POST", &caching.origin.url(path), &post));
        client.send("abc");
        assert_eq!(client.answer("POST").body, b"1");
        let expected = if is_stored { "1" } else { "2" };
        assert_eq!(caching.get(path, PAGE).1, expected, "{path} {location}");
    }
}

#[test]
fn many_waiters_cause_one_origin_request() {
    let caching = Caching::start(|number, _| fresh(&format!("{number}{}", "x".repeat(100_000))));
    let mut clients: Vec<Client> = (0..100).map(|_| caching.connect()).collect();
    for client in &mut clients {
        client.send(request("GET", &caching.origin.url("/cold"), ""));
    }
    for client in &mut clients {
        let answer = client.answer("GET");
        assert_eq!((answer.status, answer.body.len()), (200, 100_001));
        assert_eq!(answer.body[0], b'1');
    }
    assert_eq!(caching.requests(), 1);
}

#[test]
fn uncacheable_url_is_not_serialised() {
    // The first response shows that the URL cannot be shared. All others are under way at once.
    let together = Barrier::new(19);
    let caching = Caching::start(move |number, _| {
        if number > 1 {
            together.wait();
        }
        with_fields("Cache-Control: no-store\r\n", &number.to_string())
    });
    let mut clients: Vec<Client> = (0..20).map(|_| caching.connect()).collect();
    for client in &mut clients {
        client.send(request("GET", &caching.origin.url("/"), ""));
    }
    let mut bodies: Vec<Vec<u8>> = clients.iter_mut().map(|it| it.answer("GET").body).collect();
    bodies.sort_unstable();
    bodies.dedup();
    assert_eq!((bodies.len(), caching.requests()), (20, 20));
}

#[test]
fn waiter_is_served_after_the_leader_leaves() {
    let (asked, gate) = (Arc::new(Gate::default()), Arc::new(Gate::default()));
    let shared = (Arc::clone(&asked), Arc::clone(&gate));
    let caching = Caching::start(move |number, _| {
        shared.0.open();
        shared.1.wait();
        fresh(&number.to_string())
    });
    let mut leader = caching.connect();
    leader.send(request("GET", &caching.origin.url("/"), ""));
    asked.wait();
    let mut waiter = caching.connect();
    waiter.send(request("GET", &caching.origin.url("/"), ""));
    drop(leader);
    gate.open();
    let answer = waiter.answer("GET");
    assert_eq!(answer.status, 200);
    assert!(caching.requests() <= 2);
}

#[test]
fn slow_leader_does_not_delay_those_that_wait() {
    // The body is larger than the buffers of a connection that is not read.
    let body = "y".repeat(3 << 20);
    let caching = Caching::start(move |_, _| fresh(&body));
    let mut leader = caching.connect();
    leader.send(request("GET", &caching.origin.url("/"), ""));
    assert_eq!(leader.head().unwrap().status, 200);
    let (status, body) = caching.get("/", "");
    assert_eq!((status, body.len()), (200, 3 << 20));
    assert_eq!(caching.requests(), 1);
}

#[test]
fn long_body_passes_without_being_stored() {
    let body = "z".repeat(1 << 20);
    let caching = Caching::with(
        move |number, _| match number {
            1 => format!(
                "HTTP/1.1 200 OK\r\nCache-Control: max-age=9\r\nTransfer-Encoding: chunked\r\n\r\n\
                 {:x}\r\n{body}\r\n0\r\n\r\n",
                body.len()
            ),
            _ => fresh("short"),
        },
        true,
        |options| options.cache_memory = Some("1MiB".parse().unwrap()),
    );
    assert_eq!(caching.get("/", "").1.len(), 1 << 20);
    assert_eq!(caching.get("/", "").1, "short");
}

#[test]
fn truncated_response_is_never_stored() {
    let caching = Caching::start(|number, _| match number {
        1 => "HTTP/1.1 200 OK\r\nCache-Control: max-age=9\r\nTransfer-Encoding: chunked\r\n\r\n\
              5\r\nhello\r\nbroken\r\n"
            .to_owned(),
        _ => fresh("whole"),
    });
    let mut client = caching.connect();
    client.send(request("GET", &caching.origin.url("/"), ""));
    // The number of attempts is that of the pool; none of them may look complete and wrong.
    if let Ok(answer) = client.try_answer("GET") {
        assert_ne!(answer.body, b"hello");
    }
    assert_eq!(caching.get("/", "").1, "whole");
}

const PAGE: &str = "Referer: http://page.example/\r\n";

#[test]
fn private_cache_serves_its_session_only() {
    let caching = Caching::with(
        |number, _| fresh(&number.to_string()),
        false,
        |options| options.cache = Some(CacheOption::Private),
    );
    let (mut one, mut other) = (caching.connect(), caching.connect());
    assert_eq!(caching.send(&mut one, "GET", "/", PAGE).1, "1");
    assert_eq!(caching.send(&mut one, "GET", "/", PAGE).1, "1");
    assert_eq!(caching.send(&mut other, "GET", "/", PAGE).1, "2");
    assert_eq!(caching.send(&mut other, "GET", "/", PAGE).1, "2");
    let elsewhere = "Referer: http://evil.example/\r\n";
    assert_eq!(
        caching.send(&mut one, "GET", "/", elsewhere).1,
        "3",
        "another site's page"
    );
    for number in ["4", "5"] {
        let found = caching.send(&mut one, "GET", "/", "").1;
        assert_eq!(found, number, "a request without a known page");
    }
}

#[test]
fn shared_cache_needs_several_users() {
    let caching = Caching::with(
        |number, _| fresh(&number.to_string()),
        false,
        |options| options.cache_users = Some(2),
    );
    // Each connection from a loopback address counts as a user, since Tor's users share it.
    let bodies: Vec<String> = (0..8).map(|_| caching.get("/", PAGE).1).collect();
    assert_eq!(bodies[..2], ["1", "2"]);
    assert!((2..=4).contains(&caching.requests()), "{bodies:?}");
    assert!(
        bodies[4..].iter().all(|body| *body == bodies[4]),
        "{bodies:?}"
    );
}

#[test]
fn cookies_and_logins_are_not_shared() {
    for (first, response) in [
        ("", "Set-Cookie: id=1\r\nCache-Control: max-age=9\r\n"),
        ("Cookie: id=1\r\n", "Cache-Control: max-age=9\r\n"),
        (
            "Authorization: Basic eDp5\r\n",
            "Cache-Control: s-maxage=9\r\n",
        ),
    ] {
        let caching = Caching::start(move |number, _| with_fields(response, &number.to_string()));
        assert_eq!(caching.get("/", first).1, "1");
        assert_eq!(caching.get("/", "").1, "2", "{first}{response}");
    }
}

/// An origin that reads the field, as some frameworks do, and whose response depends on it.
fn misled(asked: &Asked) -> String {
    let names = [
        "x-forwarded-host",
        "x-forwarded-scheme",
        "x-forwarded-proto",
        "x-original-url",
        "x-rewrite-url",
        "x-http-method-override",
        "x-method-override",
        "forwarded",
        "x_forwarded_host",
    ];
    let read = names.into_iter().find_map(|name| asked.field(name));
    fresh(read.unwrap_or("clean"))
}

#[test]
fn unkeyed_fields_poison_no_response() {
    let caching = Caching::start(|_, asked| misled(asked));
    for (number, name) in [
        "X-Forwarded-Host",
        "X-Forwarded-Scheme",
        "X-Forwarded-Proto",
        "X-Original-URL",
        "X-Rewrite-URL",
        "X-HTTP-Method-Override",
        "X-Method-Override",
        "Forwarded",
        "X_Forwarded_Host",
    ]
    .into_iter()
    .enumerate()
    {
        let path = format!("/{number}");
        caching.get(&path, &format!("{name}: poison\r\n"));
        assert_eq!(caching.get(&path, "").1, "clean", "{name}");
    }
}

#[test]
fn get_with_a_body_poisons_no_response() {
    let caching = Caching::start(|_, asked| match asked.field("content-length") {
        Some(_) => fresh("poison"),
        None => fresh("clean"),
    });
    let mut attacker = caching.connect();
    attacker.send(request(
        "GET",
        &caching.origin.url("/"),
        "Content-Length: 4\r\n",
    ));
    attacker.send("evil");
    assert_eq!(attacker.answer("GET").body, b"poison");
    assert_eq!(caching.get("/", "").1, "clean");
}

#[test]
fn oversized_head_denies_no_service() {
    let caching = Caching::start(|_, asked| match asked.field("x-long") {
        Some(_) => "HTTP/1.1 400 Bad Request\r\nCache-Control: max-age=3600\r\n\
                    Content-Length: 6\r\n\r\npoison"
            .to_owned(),
        None => fresh("clean"),
    });
    let long = format!("X-Long: {}\r\n", "x".repeat(9 << 10));
    assert_eq!(caching.get("/", &long).0, 400);
    assert_eq!(caching.get("/", "").1, "clean");
}

#[test]
fn paths_are_never_normalised() {
    let caching = Caching::start(|_, asked| fresh(asked.line.split(' ').nth(1).unwrap()));
    for path in [
        "/a/../b", "/a//b", "/%62", "/b?", "/b%2f", "/b;x=1", "/B", "/b/",
    ] {
        assert_eq!(caching.get(path, "").1, path);
    }
    assert_eq!(caching.get("/b", "").1, "/b");
    assert_eq!(caching.requests(), 9);
}

#[test]
fn cookie_of_a_validation_reaches_one_user() {
    let caching = Caching::start(|_, asked| match asked.field("if-none-match") {
        Some(_) => "HTTP/1.1 304 Not Modified\r\nETag: \"1\"\r\nCache-Control: max-age=99\r\n\
                    Set-Cookie: id=alice\r\n\r\n"
            .to_owned(),
        None => with_fields("Cache-Control: max-age=99\r\nETag: \"1\"\r\n", "page"),
    });
    caching.get("/", "");
    let ask = |fields| {
        let mut client = caching.connect();
        client.send(request("GET", &caching.origin.url("/"), fields));
        let answer = client.answer("GET");
        assert_eq!(answer.body, b"page");
        answer.field("set-cookie").map(str::to_owned)
    };
    assert_eq!(
        ask("Cache-Control: no-cache\r\n").as_deref(),
        Some("id=alice")
    );
    assert_eq!(ask(""), None, "another user's cookie");
}

#[test]
fn private_cache_separates_cookies() {
    let caching = Caching::with(
        |_, asked| fresh(asked.field("cookie").unwrap_or("nobody")),
        false,
        |options| options.cache = Some(CacheOption::Private),
    );
    // Several users of one client share its session.
    let mut client = caching.connect();
    for cookie in ["id=alice", "id=bob", "id=alice"] {
        let fields = format!("{PAGE}Cookie: {cookie}\r\n");
        assert_eq!(caching.send(&mut client, "GET", "/", &fields).1, cookie);
    }
    assert_eq!(caching.send(&mut client, "GET", "/", PAGE).1, "nobody");
    assert_eq!(caching.requests(), 3);
}

#[test]
fn unknown_extension_field_poisons_no_response() {
    let caching = Caching::start(|_, asked| fresh(asked.field("x-invented").unwrap_or("clean")));
    caching.get("/", "X-Invented: poison\r\n");
    assert_eq!(caching.get("/", "").1, "clean");
}

#[test]
fn post_without_a_page_invalidates_its_site() {
    let caching = Caching::with(
        |number, _| fresh(&number.to_string()),
        false,
        |options| options.cache = Some(CacheOption::Private),
    );
    let mut client = caching.connect();
    let page = format!("Referer: {}\r\n", caching.origin.url("/page"));
    assert_eq!(caching.send(&mut client, "GET", "/", &page).1, "1");
    assert_eq!(caching.send(&mut client, "GET", "/", &page).1, "1");
    client.send(request(
        "POST",
        &caching.origin.url("/"),
        "Content-Length: 0\r\n",
    ));
    assert_eq!(client.answer("POST").body, b"2");
    assert_eq!(caching.send(&mut client, "GET", "/", &page).1, "3");
}

#[test]
fn cache_status_says_how_a_request_was_handled() {
    let caching = Caching::with(
        |_, asked| match asked.field("if-none-match") {
            Some(_) => "HTTP/1.1 304 Not Modified\r\nETag: \"1\"\r\n\r\n".to_owned(),
            None => with_fields(
                "Cache-Control: max-age=3600\r\nVary: Foo\r\nETag: \"1\"\r\n\
                 Cache-Status: upstream; hit\r\n",
                "body",
            ),
        },
        true,
        |options| options.cache_status = Some(true),
    );
    let ask = |method: &str, fields: &str| {
        let mut client = caching.connect();
        client.send(request(method, &caching.origin.url("/"), fields));
        let answer = client.answer(method);
        let is_status = |name: &str| name.eq_ignore_ascii_case("cache-status");
        let of_status = answer.fields.iter().filter(|it| is_status(&it.0));
        let values: Vec<_> = of_status.map(|it| it.1.clone()).collect();
        assert_eq!(values[0], "upstream; hit");
        values[1].clone()
    };
    let begins = |value: String, with: &str| assert!(value.starts_with(with), "{value} {with}");
    assert_eq!(
        ask("GET", ""),
        "tandem-gateway; fwd=uri-miss; fwd-status=200; stored"
    );
    begins(ask("GET", ""), "tandem-gateway; hit; ttl=3");
    begins(ask("GET", "Range: bytes=0-1\r\n"), "tandem-gateway; hit");
    // Only the origin can make several parts.
    let parts = "Range: bytes=0-0,2-3\r\n";
    assert_eq!(ask("GET", parts), "tandem-gateway; fwd=request");
    assert_eq!(
        ask("GET", "Foo: 1\r\n"),
        "tandem-gateway; fwd=vary-miss; fwd-status=200; stored"
    );
    assert_eq!(
        ask("GET", "Cache-Control: no-cache\r\n"),
        "tandem-gateway; fwd=request; fwd-status=304"
    );
    assert_eq!(
        ask("POST", "Content-Length: 0\r\n"),
        "tandem-gateway; fwd=method"
    );
}

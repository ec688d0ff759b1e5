//! Tests of the loader against the origin: directly, through an HTTP proxy, through SOCKS5, and
//! with faults.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use tandem_http::Scheme;
use tandem_http::socks::{Reply, Server};
use tandem_web::loader::{Discovery, Fault, Load, LoadError, Loader, Protocol, Via};
use tandem_web::origin::{Origin, Protocols, Running};
use tandem_web::page::{Kind, Page, Site};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

async fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let address = listener.local_addr().expect("bound").to_string();
    (listener, address)
}

async fn serve(page: Page) -> (Running, Site) {
    let (listener, address) = listen().await;
    let site = Site::new(page, &[address]).expect("valid");
    (
        Origin::new(site.clone()).spawn(listener).expect("bound"),
        site,
    )
}

/// A page with everything: redirect, frame, imports, fonts, scripts that load scripts.
fn mixed() -> Page {
    Page::from_json("", MIXED.as_bytes()).expect("valid")
}

const MIXED: &str = r#"{"name": "mixed", "hosts": ["a"], "resources": [
        ["/", 0, "text/html", "html", 10, null, 302],
        ["/home", 0, "text/html", "html", 90000, 0],
        ["/a.css", 0, "text/css", "css", 3000, 1],
        ["/b.css", 0, "text/css", "css", 700, 2],
        ["/f.woff2", 0, "font/woff2", "font", 5000, 3],
        ["/bg.png", 0, "image/png", "image", 800, 2],
        ["/a.js", 0, "text/javascript", "script", 4000, 1],
        ["/b.js", 0, "text/javascript", "script", 300, 6],
        ["/data", 0, "application/json", "fetch", 2000, 7],
        ["/frame", 0, "text/html", "html", 500, 1],
        ["/i.svg", 0, "image/svg+xml", "image", 300, 9],
        ["/gone", 0, "image/png", "image", 70, 1, 404],
        ["/none", 0, "image/png", "image", 0, 1, 204]
    ]}"#;
fn check(load: &Load, site: &Site) {
    let mut seen: Vec<usize> = load.requests.iter().map(|t| t.resource).collect();
    seen.sort_unstable();
    assert!(
        seen.iter().copied().eq(0..site.page().resources.len()),
        "each resource once"
    );
    assert_eq!(
        load.requests.iter().map(|t| t.body).sum::<u64>(),
        site.bytes()
    );
    assert_eq!(
        load.requests.iter().map(|t| t.bytes_up).sum::<u64>(),
        load.bytes_up
    );
    assert_eq!(
        load.requests.iter().map(|t| t.bytes_down).sum::<u64>(),
        load.bytes_down
    );
    assert!(load.bytes_down > site.bytes() && load.time > Duration::ZERO);
    for timing in &load.requests {
        assert!(timing.known <= timing.start && timing.start <= timing.end());
    }
}

fn timing(load: &Load, resource: usize) -> &tandem_web::loader::Timing {
    load.requests
        .iter()
        .find(|t| t.resource == resource)
        .expect("loaded")
}

#[tokio::test]
async fn straight() {
    let (origin, site) = serve(mixed()).await;
    let load = Loader::new(Via::Direct).load(&site).await.expect("loads");
    check(&load, &site);
    let counts = origin.origin.counts();
    assert_eq!(
        (counts.requests, counts.connections as usize),
        (13, load.connections)
    );
    assert!(load.connections <= 6);
    for (index, resource) in site.page().resources.iter().enumerate() {
        let Some(parent) = resource.parent else {
            continue;
        };
        let (child, cause) = (timing(&load, index), timing(&load, parent));
        let ready = if site.page().resources[parent].kind == Kind::Html {
            cause.start
        } else {
            cause.end()
        };
        assert!(child.known >= ready, "{} before its cause", resource.path);
    }
    assert_eq!(timing(&load, 11).status, 404);
}

#[tokio::test]
async fn connections_are_kept_and_bounded() {
    for (per_host, expected) in [(1, 1), (5, 5), (40, 40)] {
        let (origin, site) = serve(Page::uniform(40, 3000)).await;
        let loader = Loader {
            per_host,
            discovery: Discovery::List,
            ..Loader::new(Via::Direct)
        };
        let load = loader.load(&site).await.expect("loads");
        check(&load, &site);
        assert_eq!(
            (origin.origin.counts().connections, load.connections),
            (expected, expected as usize)
        );
        assert_eq!(
            load.requests.iter().filter(|t| t.connect.is_some()).count(),
            load.connections
        );
    }
    let (origin, site) = serve(Page::uniform(40, 3000)).await;
    let loader = Loader {
        per_host: 40,
        total: 3,
        ..Loader::new(Via::Direct)
    };
    check(&loader.load(&site).await.expect("loads"), &site);
    assert_eq!(origin.origin.counts().connections, 3);
}

/// Idle connections of one authority give way to another's.
#[tokio::test]
async fn shards_within_a_total() {
    let (first, one) = listen().await;
    let (second, two) = listen().await;
    let site = Site::new(Page::demo().expect("committed"), &[one, two]).expect("valid");
    let origin = Origin::new(site.clone());
    let _running = [
        origin.spawn(first).expect("bound"),
        origin.spawn(second).expect("bound"),
    ];
    let loader = Loader {
        total: 2,
        ..Loader::new(Via::Direct)
    };
    check(&loader.load(&site).await.expect("loads"), &site);
    check(
        &Loader::new(Via::Direct).load(&site).await.expect("loads"),
        &site,
    );
}

/// A document's images are asked for while the document is still arriving: here its second half
/// comes only after the first image has been asked for.
#[tokio::test]
async fn references_count_as_they_arrive() {
    let (listener, address) = listen().await;
    let site = Site::new(Page::gallery(2, 5000), &[address]).expect("valid");
    assert!(site.asset(0).references[0].end < HALF);
    let asked = Arc::new(Notify::new());
    let served = site.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(document_in_halves(
                client,
                served.clone(),
                Arc::clone(&asked),
            ));
        }
    });
    let loader = Loader {
        deadline: Duration::from_secs(30),
        ..Loader::new(Via::Direct)
    };
    check(&loader.load(&site).await.expect("no deadlock"), &site);
}

const HALF: usize = 2500;

async fn document_in_halves(mut client: TcpStream, site: Site, asked: Arc<Notify>) {
    while let Some(head) = next_head(&mut client).await {
        let path = head.split(' ').nth(1).expect("a target");
        let index = site.find(path).expect("of the page");
        let body = &site.asset(index).body;
        if index != 0 {
            asked.notify_one();
            answer(&mut client, body).await;
            continue;
        }
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        client.write_all(head.as_bytes()).await.expect("open");
        client.write_all(&body[..HALF]).await.expect("open");
        asked.notified().await;
        client.write_all(&body[HALF..]).await.expect("open");
    }
}

/// The next request's head; `None` when the client has gone.
async fn next_head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    Some(String::from_utf8(head).expect("text"))
}

async fn read_head(stream: &mut TcpStream) -> String {
    next_head(stream).await.expect("a request")
}

async fn answer(stream: &mut TcpStream, body: &[u8]) {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).await.expect("open");
    stream.write_all(body).await.expect("open");
}

/// A proxy that answers in place of the origin and records its requests.
#[tokio::test]
async fn through_an_http_proxy() {
    let (listener, proxy) = listen().await;
    let site = Site::new(mixed(), &["nowhere.invalid"]).expect("valid");
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (origin, notes) = (Origin::new(site.clone()), Arc::clone(&asked));
    let (inner, inner_address) = listen().await;
    let _running = origin.spawn(inner).expect("bound");
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(relay_requests(
                client,
                inner_address.clone(),
                Arc::clone(&notes),
            ));
        }
    });
    let loader = Loader {
        headers: vec![("Proxy-Authorization".into(), "Basic eDp5".into())],
        ..Loader::new(Via::Http { proxy })
    };
    check(&loader.load(&site).await.expect("loads"), &site);
    let asked = asked.lock().expect("no panic");
    assert_eq!(asked.len(), 13);
    for head in asked.iter() {
        assert!(head.starts_with("GET http://nowhere.invalid/"), "{head}");
        assert!(head.contains("\r\nHost: nowhere.invalid\r\nProxy-Connection: keep-alive\r\n"));
        assert!(head.contains("\r\nProxy-Authorization: Basic eDp5\r\n"));
        assert!(
            (280..620).contains(&head.len()),
            "as long as a browser's: {}",
            head.len()
        );
    }
    let css = asked
        .iter()
        .find(|head| head.contains("/a.css "))
        .expect("asked");
    assert!(
        css.contains("\r\nReferer: http://nowhere.invalid/home\r\n")
            && css.contains("\r\nAccept: text/css,")
    );
}

/// Forwards one request after the other, rewritten to origin form.
async fn relay_requests(mut client: TcpStream, origin: String, notes: Arc<Mutex<Vec<String>>>) {
    let mut upstream = TcpStream::connect(origin).await.expect("listening");
    let (mut from, mut to) = client.split();
    let (mut answers, mut requests) = upstream.split();
    let forward = async {
        let mut head = Vec::new();
        while let Ok(byte) = from.read_u8().await {
            head.push(byte);
            if head.ends_with(b"\r\n\r\n") {
                let text = String::from_utf8(std::mem::take(&mut head)).expect("text");
                let rewritten = text.replacen("http://nowhere.invalid", "", 1);
                notes.lock().expect("no panic").push(text);
                requests
                    .write_all(rewritten.as_bytes())
                    .await
                    .expect("open");
            }
        }
    };
    tokio::select! {
        () = forward => {}
        _ = tokio::io::copy(&mut answers, &mut to) => {}
    }
}

/// Target, user, and bytes of the stream that came with the handshake.
type Asked = (String, Option<Vec<u8>>, usize);

/// Starts a SOCKS5 server that connects every request to the origin; returns the recorded requests.
async fn socks(origin: String, reply: Reply) -> (String, Arc<Mutex<Vec<Asked>>>) {
    let (listener, address) = listen().await;
    let asked = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(relay_stream(
                client,
                origin.clone(),
                reply,
                Arc::clone(&notes),
            ));
        }
    });
    (address, asked)
}

async fn relay_stream(
    mut client: TcpStream,
    origin: String,
    reply: Reply,
    notes: Arc<Mutex<Vec<Asked>>>,
) {
    let mut server = Server::new();
    let mut buffer = [0; 4096];
    let request = loop {
        let read = client.read(&mut buffer).await.expect("open");
        if let Some(request) = server.handle_input(&buffer[..read]).expect("SOCKS") {
            break request;
        }
        flush(&mut server, &mut client).await;
    };
    let rest = server.take_rest();
    notes
        .lock()
        .expect("no panic")
        .push((request.target, request.user, rest.len()));
    server.reply(reply);
    flush(&mut server, &mut client).await;
    if reply != Reply::Succeeded {
        return;
    }
    let mut upstream = TcpStream::connect(origin).await.expect("listening");
    upstream.write_all(&rest).await.expect("open");
    // Ends when the client does.
    let _ = tokio::io::copy_bidirectional(&mut client, &mut upstream).await;
}

async fn flush(server: &mut Server, client: &mut TcpStream) {
    let mut out = Vec::new();
    server.poll_output(&mut out);
    client.write_all(&out).await.expect("open");
}

#[tokio::test]
async fn through_socks() {
    for optimistic in [false, true] {
        let (listener, origin) = listen().await;
        let site = Site::new(mixed(), &["service.onion"]).expect("valid");
        let _running = Origin::new(site.clone()).spawn(listener).expect("bound");
        let (proxy, asked) = socks(origin, Reply::Succeeded).await;
        let via = Via::Socks5 {
            proxy,
            credentials: Some(("site".into(), String::new())),
        };
        let load = Loader {
            optimistic,
            ..Loader::new(via)
        }
        .load(&site)
        .await
        .expect("loads");
        check(&load, &site);
        let asked = asked.lock().expect("no panic");
        assert_eq!(asked.len(), load.connections);
        for (target, user, early) in asked.iter() {
            assert_eq!(
                (target.as_str(), user.as_deref()),
                ("service.onion:80", Some(&b"site"[..]))
            );
            assert_eq!(
                *early > 0,
                optimistic,
                "the request comes with the handshake or after it"
            );
        }
    }
}

async fn fault(loader: &Loader, site: &Site) -> Fault {
    match loader.load(site).await {
        Err(LoadError::Resource { fault, .. }) => fault,
        other => panic!("{other:?} instead of a fault"),
    }
}

#[tokio::test]
async fn refusals_of_the_proxy() {
    let site = Site::new(Page::uniform(1, 100), &["a.onion"]).expect("valid");
    let (proxy, _) = socks(String::new(), Reply::OnionDescriptorNotFound).await;
    let refused = fault(
        &Loader::new(Via::Socks5 {
            proxy,
            credentials: None,
        }),
        &site,
    )
    .await;
    assert_eq!(
        refused.to_string(),
        "SOCKS: the onion service's descriptor was not found"
    );

    let (listener, closed) = listen().await;
    drop(listener);
    let refused = fault(
        &Loader::new(Via::Http {
            proxy: closed.clone(),
        }),
        &site,
    )
    .await;
    assert!(matches!(refused, Fault::Connect { to, .. } if to == closed));

    let (listener, proxy) = listen().await;
    tokio::spawn(async move {
        let mut client = listener.accept().await.expect("a client").0;
        read_head(&mut client).await;
        client
            .write_all(b"HTTP/1.1 502 Bad Gateway\r\nProxy-Status: tandem; error=\"x\"\r\nContent-Length: 0\r\n\r\n")
            .await
    });
    let refused = fault(&Loader::new(Via::Http { proxy }), &site).await;
    assert_eq!(
        refused.to_string(),
        "status 502 instead of 200 (tandem; error=\"x\")"
    );
}

#[tokio::test]
async fn wrong_answers() {
    let site = |address| Site::new(Page::uniform(1, 100), &[address]).expect("valid");
    let (_, address) = listen().await;
    let right = site(address).asset(0).body.to_vec();
    let with = |head: &str, body: &[u8]| [head.as_bytes(), b"\r\n\r\n", body].concat();
    let mut flipped = right.clone();
    flipped[40] ^= 1;
    let cases = [
        (
            with("HTTP/1.1 200 OK\r\nContent-Length: 100", &flipped),
            "the body differs from the page's at byte 40 of 100",
        ),
        (
            with("HTTP/1.1 200 OK\r\nContent-Length: 60", &right[..60]),
            "the body differs from the page's at byte 60 of 100",
        ),
        (
            with(
                "HTTP/1.1 200 OK\r\nContent-Length: 101",
                &[&right[..], b"x"].concat(),
            ),
            "the body differs from the page's at byte 100 of 100",
        ),
        (
            with("HTTP/1.1 200 OK\r\nContent-Length: 100", &right[..99]),
            "the body is not valid: the connection ended within the body",
        ),
        (
            with("HTTP/1.1 200 OK", &right[..99]),
            "the body differs from the page's at byte 99 of 100",
        ),
        (
            with("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked", b"x"),
            "the body is not valid: a chunk has no valid size",
        ),
        (
            b"HTTP/1.1 200 OK\r\nConte".to_vec(),
            "the connection ended before an answer",
        ),
        (b"".to_vec(), "the connection ended before an answer"),
        (
            b"SSH-2.0-x\r\n".to_vec(),
            "the answer is not valid: the response does not begin with a status line",
        ),
    ];
    for (bytes, says) in cases {
        let (listener, address) = listen().await;
        tokio::spawn(async move {
            let mut client = listener.accept().await.expect("a client").0;
            read_head(&mut client).await;
            client.write_all(&bytes).await
        });
        assert_eq!(
            fault(&Loader::new(Via::Direct), &site(address))
                .await
                .to_string(),
            says
        );
    }
}

#[tokio::test]
async fn load_keeps_the_proxy_s_cache_status() {
    let (listener, address) = listen().await;
    let site = Site::new(Page::uniform(1, 100), &[address]).expect("valid");
    let head = b"HTTP/1.1 200 OK\r\nCache-Status: tandem; hit\r\nContent-Length: 100\r\n\r\n";
    let bytes = [head, &*site.asset(0).body].concat();
    tokio::spawn(async move {
        let mut client = listener.accept().await.expect("a client").0;
        read_head(&mut client).await;
        client.write_all(&bytes).await
    });
    let load = Loader::new(Via::Direct).load(&site).await.expect("loads");
    assert_eq!(load.requests[0].note.as_deref(), Some("tandem; hit"));
}

/// A kept connection that was closed costs a new connection, but does not fail the page.
#[tokio::test]
async fn a_closed_connection_is_replaced() {
    let (listener, address) = listen().await;
    let site = Site::new(Page::uniform(2, 100), &[address]).expect("valid");
    let bodies = site.clone();
    tokio::spawn(async move {
        for index in 0..2 {
            let mut client = listener.accept().await.expect("a client").0;
            read_head(&mut client).await;
            client
                .write_all(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")
                .await
                .expect("open");
            answer(&mut client, &bodies.asset(index).body).await;
            // Closes without having said so, after the next request has come.
            if index == 0 {
                read_head(&mut client).await;
            }
        }
    });
    let loader = Loader {
        per_host: 1,
        ..Loader::new(Via::Direct)
    };
    let load = loader.load(&site).await.expect("loads");
    check(&load, &site);
    assert_eq!((load.connections, load.retries), (2, 1));
}

#[tokio::test]
async fn limits() {
    let (listener, address) = listen().await;
    let site = Site::new(Page::uniform(3, 100), &[address]).expect("valid");
    let silent = Loader {
        deadline: Duration::from_millis(50),
        ..Loader::new(Via::Direct)
    };
    let error = silent.load(&site).await.expect_err("nobody answers");
    assert_eq!(
        error.to_string(),
        "0 of 3 known resources loaded after 50ms"
    );
    drop(listener);
    let none = Loader {
        per_host: 0,
        ..Loader::new(Via::Direct)
    };
    assert!(matches!(
        none.load(&site).await,
        Err(LoadError::NoConnections)
    ));
    let bad = Loader {
        headers: vec![("X".into(), "a\r\nb".into())],
        ..Loader::new(Via::Direct)
    };
    assert!(matches!(bad.load(&site).await, Err(LoadError::Header(name)) if name == "X"));
}

/// Checks the needs of one session: no more connections than authorities, and every byte counted.
#[tokio::test]
async fn one_session() {
    let (first, one) = listen().await;
    let (second, two) = listen().await;
    let site = Site::new(Page::demo().expect("committed"), &[one, two]).expect("valid");
    let origin = Origin::new(site.clone());
    let _running = [
        origin.spawn(first).expect("bound"),
        origin.spawn(second).expect("bound"),
    ];
    for per_host in [1, 3, 500] {
        let before = origin.counts();
        let loader = Loader {
            protocol: Protocol::H2,
            per_host,
            ..Loader::new(Via::Direct)
        };
        let load = loader.load(&site).await.expect("loads");
        check(&load, &site);
        assert_eq!(
            (
                load.connections,
                origin.counts().connections - before.connections
            ),
            (2, 2)
        );
        assert_eq!(
            load.requests.iter().filter(|t| t.connect.is_some()).count(),
            2
        );
        assert!(load.requests.iter().all(|t| t.tls.is_none()));
        assert_eq!(origin.counts().requests - before.requests, 111);
        // The limit of concurrent requests holds: enough requests have ended before each start.
        let mut starts: Vec<Duration> = load.requests.iter().map(|t| t.start).collect();
        starts.sort_unstable();
        for (index, start) in starts.iter().enumerate().skip(2 * per_host) {
            let ended = load.requests.iter().filter(|t| t.end() <= *start).count();
            assert!(
                ended + 2 * per_host > index,
                "{index} begun and {ended} ended with {per_host} a host"
            );
        }
    }
}

/// TLS straight, through a tunnel of an HTTP proxy, and through SOCKS5; with both protocols.
#[tokio::test]
async fn over_tls() {
    for protocol in [Protocol::Http1, Protocol::H2] {
        let (listener, origin) = listen().await;
        let site = Site::with_scheme(mixed(), Scheme::Https, &["secure.example"]).expect("valid");
        let running = Origin::secure(site.clone(), Protocols::Both).expect("a certificate");
        let _running = running.spawn(listener).expect("bound");
        let (socks_proxy, asked) = socks(origin.clone(), Reply::Succeeded).await;
        let (proxy, notes) = tunnels(origin.clone()).await;
        let ways = [
            Via::Direct,
            Via::Http { proxy },
            Via::Socks5 {
                proxy: socks_proxy,
                credentials: None,
            },
        ];
        for via in ways {
            let resolve = vec![("*.example".to_owned(), origin.clone())];
            let loader = Loader {
                protocol,
                resolve,
                optimistic: true,
                ..Loader::new(via)
            };
            let load = loader.load(&site).await.expect("loads");
            check(&load, &site);
            for timing in load.requests.iter().filter(|t| t.connect.is_some()) {
                assert!(
                    timing.tls.is_some_and(|tls| tls > Duration::ZERO)
                        && timing.tls <= timing.connect
                );
            }
        }
        assert!(
            asked
                .lock()
                .expect("no panic")
                .iter()
                .all(|(target, ..)| target == "secure.example:443")
        );
        let notes = notes.lock().expect("no panic");
        assert!(
            notes
                .iter()
                .all(|head| head.starts_with("CONNECT secure.example:443 HTTP/1.1\r\n"))
        );
        assert!(!notes.is_empty());
    }
}

/// A proxy that opens tunnels, all to one place.
async fn tunnels(origin: String) -> (String, Arc<Mutex<Vec<String>>>) {
    let (listener, address) = listen().await;
    let asked = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let (origin, notes) = (origin.clone(), Arc::clone(&notes));
            tokio::spawn(async move {
                let head = read_head(&mut client).await;
                notes.lock().expect("no panic").push(head);
                client
                    .write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")
                    .await
                    .expect("open");
                let mut upstream = TcpStream::connect(origin).await.expect("listening");
                // Ends when the client does.
                let _ = tokio::io::copy_bidirectional(&mut client, &mut upstream).await;
            });
        }
    });
    (address, asked)
}

#[tokio::test]
async fn tls_and_sessions_that_fail() {
    let secure = |authority: &str| {
        Site::with_scheme(
            Page::uniform(1, 100),
            Scheme::Https,
            &[authority.to_owned()],
        )
        .expect("valid")
    };
    // No TLS at the other end.
    let (listener, plain) = listen().await;
    let _plain = Origin::new(secure(&plain)).spawn(listener).expect("bound");
    assert!(matches!(
        fault(&Loader::new(Via::Direct), &secure(&plain)).await,
        Fault::Tls(_)
    ));
    // TLS, but another protocol.
    for (offered, protocol) in [
        (Protocols::Http1, Protocol::H2),
        (Protocols::H2, Protocol::Http1),
    ] {
        let (listener, address) = listen().await;
        let origin = Origin::secure(secure(&address), offered).expect("a certificate");
        let _running = origin.spawn(listener).expect("bound");
        let loader = Loader {
            protocol,
            ..Loader::new(Via::Direct)
        };
        assert!(matches!(
            fault(&loader, &secure(&address)).await,
            Fault::Tls(_) | Fault::Protocol
        ));
    }
    // No tunnel.
    let (listener, proxy) = listen().await;
    tokio::spawn(async move {
        let mut client = listener.accept().await.expect("a client").0;
        read_head(&mut client).await;
        client
            .write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
            .await
    });
    let refused = fault(&Loader::new(Via::Http { proxy }), &secure("a.example")).await;
    assert!(
        matches!(refused, Fault::Tunnel { status: 403 }),
        "{refused}"
    );
    // No HTTP/2, and an end without a word.
    for answer in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b""] {
        let (listener, address) = listen().await;
        tokio::spawn(async move {
            let mut client = listener.accept().await.expect("a client").0;
            let _ = client.read(&mut [0; 1000]).await;
            client.write_all(answer).await
        });
        let site = Site::new(Page::uniform(3, 100), &[address]).expect("valid");
        let loader = Loader {
            protocol: Protocol::H2,
            ..Loader::new(Via::Direct)
        };
        assert!(matches!(
            fault(&loader, &site).await,
            Fault::Closed | Fault::Broken(_)
        ));
    }
}

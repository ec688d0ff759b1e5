//! Tests of a client without a gateway: it requests the resources of a page early over its own
//! connections, through the proxy only, and never provokes a refusal that a browser would see.

use std::io::{ErrorKind, Read as _, Write as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use tandem::config::ClientOptions;
use tandem::config::client::SoloMode;

use crate::harness::{
    Client, PATIENCE, Scene, client_options, gateway_options, request, start_client, start_gateway,
    wait_for,
};
use crate::isolation::socks_proxy;

const NAVIGATION: &str =
    "Accept: text/html\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n";

pub(crate) fn options(mode: SoloMode) -> ClientOptions {
    let direct = mode == SoloMode::Direct;
    ClientOptions {
        gateway: Vec::new(),
        solo: Some(mode),
        solo_allow_dest: if direct {
            vec!["127.0.0.0/8".parse().unwrap()]
        } else {
            Vec::new()
        },
        solo_hold_out: Some(0.0),
        ..client_options("h2+tcp://127.0.0.1:1")
    }
}

fn answer(kind: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nCache-Control: max-age=600\r\n\
         Content-Length: {length}\r\nETag: \"1\"\r\n\r\n{body}"
    )
}

fn page(images: usize) -> String {
    let images = (0..images).map(|image| format!("<img src=/{image}.png>"));
    format!("<!doctype html><body>{}", images.collect::<String>())
}

/// Starts an origin with a page of images, and records the paths of its requests.
fn origin(images: usize) -> (Scene, mpsc::Receiver<String>) {
    let (tell, told) = mpsc::channel();
    let scene = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            let path = asked.line.split(' ').nth(1).unwrap().to_owned();
            let answer = match path.as_str() {
                "/page" => answer("text/html", &page(images)),
                path => answer("image/png", path),
            };
            let _ = tell.send(path);
            client.send(answer);
        }
    });
    (scene, told)
}

#[test]
fn solo_requests_resources_with_the_page() {
    let (origin, told) = origin(4);
    let (_client, http, _) = start_client(options(SoloMode::Direct));
    let mut client = Client::to(http);
    client.send(request("GET", &origin.url("/page"), NAVIGATION));
    assert_eq!(client.answer("GET").status, 200);
    let expected = ["/0.png", "/1.png", "/2.png", "/3.png", "/page"];
    assert_eq!(
        wait_for(&told, 5),
        expected,
        "the browser asked for the page only"
    );
    for path in &expected[..4] {
        let image = client.get(&origin.url(path));
        assert_eq!(image.body, path.as_bytes());
        let own = image
            .fields
            .iter()
            .find(|(name, _)| name.starts_with("tandem-"));
        assert_eq!(own, None);
    }
    assert!(told.try_recv().is_err(), "each is requested once");
}

#[test]
fn solo_repeats_no_request_after_a_cookie() {
    let (tell, told) = mpsc::channel();
    let origin = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            let path = asked.line.split(' ').nth(1).unwrap().to_owned();
            let cookie = asked.field("cookie").unwrap_or("none");
            let _ = tell.send(format!("{path} {cookie}"));
            let sets = "ETag: \"1\"\r\nSet-Cookie: sid=1; HttpOnly";
            client.send(match path.as_str() {
                "/page" => answer("text/html", &page(3)).replace("ETag: \"1\"", sets),
                path => answer("image/png", path),
            });
        }
    });
    let (_client, http, _) = start_client(options(SoloMode::Direct));
    let mut client = Client::to(http);
    client.send(request("GET", &origin.url("/page"), NAVIGATION));
    assert_eq!(client.answer("GET").status, 200);
    let expected = ["/0.png sid=1", "/1.png sid=1", "/2.png sid=1", "/page none"];
    assert_eq!(wait_for(&told, 4), expected);
    for image in 0..3 {
        let url = origin.url(&format!("/{image}.png"));
        client.send(request("GET", &url, "Cookie: sid=1\r\n"));
        assert_eq!(
            client.answer("GET").body,
            format!("/{image}.png").as_bytes()
        );
    }
    assert!(told.try_recv().is_err(), "each is requested once");
}

#[test]
fn solo_requests_nothing_early_if_it_is_off() {
    let (origin, told) = origin(4);
    let refused = ClientOptions {
        solo_except: vec!["127.0.0.1".parse().unwrap()],
        ..options(SoloMode::Direct)
    };
    let no_push = ClientOptions {
        push: Some(false),
        ..options(SoloMode::Direct)
    };
    for options in [refused, no_push] {
        let (_client, http, _) = start_client(options);
        let mut client = Client::to(http);
        client.send(request("GET", &origin.url("/page"), NAVIGATION));
        assert_eq!(client.answer("GET").status, 200);
        assert_eq!(client.get(&origin.url("/3.png")).body, b"/3.png");
        assert_eq!(wait_for(&told, 2), ["/3.png", "/page"]);
        assert!(told.try_recv().is_err());
    }
}

#[test]
fn solo_refuses_private_addresses_without_permission() {
    let (origin, told) = origin(1);
    let (_client, http, _) = start_client(ClientOptions {
        solo_allow_dest: Vec::new(),
        ..options(SoloMode::Direct)
    });
    assert_eq!(Client::to(http).get(&origin.url("/page")).status, 403);
    assert!(told.try_recv().is_err());
}

#[test]
fn solo_keys_share_no_circuit_and_no_answer() {
    let (origin, told) = origin(2);
    let (proxy, asked) = socks_proxy(origin.address);
    let (_client, http, _) = start_client(ClientOptions {
        via: Some(format!("socks5://{proxy}").parse().unwrap()),
        ..options(SoloMode::Via)
    });
    let load = |path: &str, key: &str| {
        let kind = if path == "/page" { NAVIGATION } else { "" };
        let key = format!("Proxy-Authorization: Basic {key}\r\n{kind}");
        let mut client = Client::to(http);
        client.send(request("GET", &format!("http://site.test{path}"), &key));
        assert_eq!(client.answer("GET").status, 200);
    };
    // The keys are one:x and two:x.
    let (one, two) = ("b25lOng=", "dHdvOng=");
    load("/page", one);
    assert_eq!(wait_for(&told, 3), ["/0.png", "/1.png", "/page"]);
    load("/0.png", two);
    assert_eq!(wait_for(&told, 1), ["/0.png"], "another key gets no answer");
    load("/0.png", one);
    assert!(told.try_recv().is_err(), "this key has it");
    let asked: Vec<_> = asked.try_iter().collect();
    assert!(
        asked.iter().all(|asked| asked.target == "site.test:80"),
        "{asked:?}"
    );
    let users = asked
        .iter()
        .map(|asked| asked.credentials.clone().unwrap().0);
    let users: Vec<_> = users.collect();
    assert_eq!(users.last().unwrap(), "two", "a connection of its own");
    assert!(
        users[..users.len() - 1].iter().all(|user| user == "one"),
        "{users:?}"
    );
    assert!(
        asked.iter().all(|asked| asked.early.starts_with(b"GET /")),
        "{asked:?}"
    );
}

/// A path through a SOCKS proxy is returned before the proxy replies.
#[test]
fn solo_waits_once_for_a_silent_proxy() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = silent.local_addr().unwrap();
    let (_client, http, _) = start_client(ClientOptions {
        via: Some(format!("socks5://{proxy}").parse().unwrap()),
        connect_timeout: Some("1s".parse().unwrap()),
        ..options(SoloMode::Via)
    });
    let answer = Client::to(http).get("http://site.test/");
    assert_eq!(answer.status, 504);
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(text.contains("does not reply"), "{text}");
    // Each attempt would have connected.
    silent.set_nonblocking(true).unwrap();
    assert_eq!(std::iter::from_fn(|| silent.accept().ok()).count(), 1);
}

#[test]
fn solo_serves_tunnels_and_routes() {
    let (origin, _told) = origin(2);
    let (proxy, asked) = socks_proxy(origin.address);
    let mut gateway = gateway_options();
    gateway.mode = Some(
        format!("reverse=http://{}", origin.address)
            .parse()
            .unwrap(),
    );
    gateway.allow_host = vec!["*".parse().unwrap()];
    let (_gateway, gateway) = start_gateway(gateway);
    let (second, asked_second) = socks_proxy(gateway);
    for (way, route) in [(proxy, false), (second, true)] {
        let (_client, http, socks) = start_client(ClientOptions {
            via: Some(format!("socks5://{way}").parse().unwrap()),
            route: vec!["routed.test=h2+tcp://gw.test:9980".parse().unwrap()],
            ..options(SoloMode::Via)
        });
        if route {
            assert_eq!(Client::to(http).get("http://routed.test/x").body, b"/x");
            assert_eq!(asked_second.recv().unwrap().target, "gw.test:9980");
        } else {
            let mut tunnel = Client::to(socks);
            assert_eq!(tunnel.socks("other.test:443", None), 0);
            tunnel.send("GET /t HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!(tunnel.answer("GET").body, b"/t");
            assert_eq!(asked.recv().unwrap().target, "other.test:443");
        }
    }
}

/// The behaviour of an origin towards requests above its limit.
#[derive(Clone, Copy)]
enum Refusal {
    Status(u16),
    Close,
}

/// Starts an origin that refuses requests above a number at once. Each other answer takes a
/// moment. Returns the greatest number at once, and the number of refusals.
fn limited_origin(
    images: usize,
    most: usize,
    refusal: Refusal,
) -> (Scene, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let now = AtomicUsize::new(0);
    let (greatest, refusals) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let (seen, refused) = (Arc::clone(&greatest), Arc::clone(&refusals));
    let scene = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            let path = asked.line.split(' ').nth(1).unwrap().to_owned();
            let count = now.fetch_add(1, Ordering::SeqCst) + 1;
            seen.fetch_max(count, Ordering::SeqCst);
            if count > most {
                refused.fetch_add(1, Ordering::SeqCst);
                now.fetch_sub(1, Ordering::SeqCst);
                match refusal {
                    Refusal::Status(status) => client.send(format!(
                        "HTTP/1.1 {status} Busy\r\nContent-Length: 0\r\n\r\n"
                    )),
                    Refusal::Close => return,
                }
                continue;
            }
            std::thread::sleep(Duration::from_millis(20));
            let body = if path == "/page" {
                answer("text/html", &page(images))
            } else {
                answer("image/png", &path)
            };
            now.fetch_sub(1, Ordering::SeqCst);
            client.send(body);
        }
    });
    (scene, greatest, refusals)
}

/// Loads a page as a browser does: the document, then the images over six connections. Returns the
/// statuses other than 200.
fn browse(proxy: std::net::SocketAddr, origin: &Scene, images: usize) -> Vec<u16> {
    let mut client = Client::to(proxy);
    client.send(request("GET", &origin.url("/page"), NAVIGATION));
    assert_eq!(client.answer("GET").status, 200);
    let failed = Mutex::new(Vec::new());
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let mut client = Client::to(proxy);
                loop {
                    let image = next.fetch_add(1, Ordering::SeqCst);
                    if image >= images {
                        return;
                    }
                    let path = format!("/{image}.png");
                    let answer = client.get(&origin.url(&path));
                    if answer.status == 200 {
                        assert_eq!(answer.body, path.as_bytes());
                    } else {
                        failed.lock().unwrap().push(answer.status);
                    }
                }
            });
        }
    });
    failed.into_inner().unwrap()
}

#[test]
fn solo_hides_refusals_above_six_connections() {
    let images = 120;
    for (most, refusal) in [
        (7, Refusal::Status(503)),
        (10, Refusal::Status(429)),
        (10, Refusal::Close),
    ] {
        // The limit falls at the first refusal. A closed connection is tried three times.
        let bound = match refusal {
            Refusal::Status(_) => 32,
            Refusal::Close => 3 * 32,
        };
        // On a busy machine requests may be too slow to meet each other at the origin.
        let was_refused = (0..20).any(|_| {
            let (origin, _, refused) = limited_origin(images, most, refusal);
            let (_client, http, _) = start_client(options(SoloMode::Direct));
            let failed = browse(http, &origin, images);
            assert!(failed.is_empty(), "limit {most}: {failed:?}");
            let refused = refused.load(Ordering::SeqCst);
            assert!(refused < bound, "limit {most}: {refused}");
            refused > 0
        });
        assert!(was_refused, "limit {most}");
    }
}

#[test]
fn solo_requests_no_failed_image_twice() {
    let images = 3;
    let (tell, told) = mpsc::channel();
    let origin = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            let path = asked.line.split(' ').nth(1).unwrap().to_owned();
            let answer = match path.as_str() {
                "/page" => answer("text/html", &page(images)),
                _ => "HTTP/1.1 503 Busy\r\nContent-Length: 5\r\n\r\nsorry".to_owned(),
            };
            client.send(answer);
            let _ = tell.send(path);
        }
    });
    let (_client, http, _) = start_client(options(SoloMode::Direct));
    let mut client = Client::to(http);
    client.send(request("GET", &origin.url("/page"), NAVIGATION));
    assert_eq!(client.answer("GET").status, 200);
    // The first refusal stops further early requests, so only one image is surely requested early.
    let mut asked = wait_for(&told, 2);
    let paths: Vec<_> = (0..images).map(|image| format!("/{image}.png")).collect();
    for path in &paths {
        let answer = client.get(&origin.url(path));
        assert_eq!((answer.status, &answer.body[..]), (503, &b"sorry"[..]));
    }
    asked.extend(told.try_iter());
    asked.sort();
    assert_eq!(asked[..images], paths, "each is requested once");
    assert_eq!(asked[images..], ["/page"]);
}

#[test]
fn solo_uses_at_most_the_permitted_connections() {
    let images = 200;
    let (origin, greatest, refused) = limited_origin(images, usize::MAX, Refusal::Close);
    let (_client, http, _) = start_client(ClientOptions {
        solo_connections: Some(9),
        ..options(SoloMode::Direct)
    });
    let failed = browse(http, &origin, images);
    assert!(failed.is_empty(), "{failed:?}");
    assert!(greatest.load(Ordering::SeqCst) <= 9);
    assert_eq!(refused.load(Ordering::SeqCst), 0);
}

#[test]
fn solo_ends_a_useless_early_request() {
    let (tell, told) = mpsc::channel();
    let length = 1 << 20;
    let origin = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            if asked.line.contains("/page") {
                client.send(answer("text/html", &page(1)));
                continue;
            }
            // The end of this body never comes.
            client.send(format!(
                "HTTP/1.1 200 OK\r\nCache-Control: max-age=600\r\nContent-Length: {length}\r\n\r\n"
            ));
            let half = vec![b'x'; length / 2];
            let written = client.stream.get_mut().write_all(&half);
            let ended = written.and_then(|()| client.stream.read_to_end(&mut Vec::new()));
            let is_over = |error: std::io::Error| error.kind() != ErrorKind::WouldBlock;
            let _ = tell.send(ended.map_or_else(is_over, |_| true));
            return;
        }
    });
    let (_client, http, _) = start_client(ClientOptions {
        push_memory: Some("100KiB".parse().unwrap()),
        ..options(SoloMode::Direct)
    });
    let mut client = Client::to(http);
    client.send(request("GET", &origin.url("/page"), NAVIGATION));
    assert_eq!(client.answer("GET").status, 200);
    let ended = told.recv_timeout(PATIENCE).unwrap();
    assert!(ended, "the client closed the connection");
}

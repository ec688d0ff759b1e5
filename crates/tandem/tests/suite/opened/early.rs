//! Tests of early requests over HTTPS that the client opens on this machine: they reach listed
//! origins of HTTP/2 only, through tunnels of the same key, on connections that the browser uses.
//! An isolation key shares them here (`--open-https-early shared`); `contexts` has those of one
//! connection of the browser.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, OnceLock};

use tandem::config::client::SoloMode;
use tandem::config::open::EarlyRequests;
use tandem_http::RequestHead;

use super::*;
use crate::harness::{Gate, Way, request, wait_for};

/// Starts an origin with a page of this text, and records the paths of its requests.
pub(super) fn origin(
    page: impl Fn() -> String + Send + Sync + 'static,
) -> (Scene, Receiver<String>) {
    let (tell, told) = channel();
    let scene = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            let path = asked.line.split(' ').nth(1).unwrap().to_owned();
            let (kind, body) = match path.as_str() {
                // Only a page with a validator is known to be visited for the first time.
                "/page" => ("text/html\r\nETag: \"1\"", page()),
                _ => ("image/png", path.clone()),
            };
            let _ = tell.send(path);
            client.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            ));
        }
    });
    (scene, told)
}

/// Starts an origin with a page of two images. The page waits for a gate at its first visit, and
/// for the other one at later visits. The first gate is open.
pub(super) fn gated_origin() -> (Scene, Receiver<String>, Arc<[Gate; 2]>) {
    let gates: Arc<[Gate; 2]> = Arc::default();
    gates[0].open();
    let waiting = Arc::clone(&gates);
    let visits = AtomicUsize::new(0);
    let (scene, told) = origin(move || {
        let visit = visits.fetch_add(1, Ordering::SeqCst);
        waiting[visit.min(1)].wait();
        images(2)
    });
    (scene, told, gates)
}

pub(super) fn images(count: usize) -> String {
    let images = (0..count).map(|image| format!("<img src=/{image}.png>"));
    format!("<!doctype html><body>{}", images.collect::<String>())
}

/// Returns the request of a browser that opens a page.
pub(super) fn navigation(url: &str) -> RequestHead {
    let mut page = get(url);
    page.fields.push("accept", "text/html");
    page.fields.push("sec-fetch-mode", "navigate");
    page.fields.push("sec-fetch-dest", "document");
    page
}

/// Returns a request of a page for one of its images.
pub(super) fn image(url: &str, page: &str) -> RequestHead {
    let mut image = get(url);
    image.fields.push("accept", "image/*");
    image.fields.push("sec-fetch-dest", "image");
    image.fields.push("sec-fetch-mode", "no-cors");
    image.fields.push("referer", page);
    image
}

/// A client that opens these ports, and its TLS inside tunnels.
struct Opening<'a> {
    public: &'a Public,
    pair: Pair,
}

impl<'a> Opening<'a> {
    fn new(public: &'a Public, ports: &[u16], change: impl FnOnce(&mut ClientOptions)) -> Self {
        let change = |client: &mut ClientOptions| {
            list(public, &[], client);
            client.open_https_port = ports.to_vec();
            client.open_https_early = Some(EarlyRequests::Shared);
            // The origins of these tests are gateways, which announce themselves.
            client.discover = Some(false);
            client.cache_status = Some(true);
            change(client);
        };
        let pair = Pair::with("h2", |_| {}, change);
        Self { public, pair }
    }

    /// Opens a connection of a browser with an isolation key to a port.
    fn browser(&self, port: u16, key: &str) -> Browser {
        let fields = match key {
            "" => String::new(),
            key => format!("Proxy-Authorization: Basic {key}\r\n"),
        };
        let tunnel = tunnel(self.pair.http, &format!("localhost:{port}"), &fields);
        let tls = TlsClient::trusting(Trust::Local);
        Browser::over(tls.handshake(self.public, tunnel).unwrap())
    }
}

/// Waits until the client's reports have reached its own half of push. A busy machine may delay the
/// client's thread, so the thread answers something after the reports are due.
pub(super) fn wait_for_reports(http: std::net::SocketAddr) {
    // The client gathers reports for a quarter of a second.
    std::thread::sleep(std::time::Duration::from_millis(500));
    for _ in 0..2 {
        let page = Client::to(http).get(&format!("http://{http}/proxy.pac"));
        assert_eq!(page.status, 200);
    }
}

/// Loads a page, and returns the status.
pub(super) fn load(browser: &mut Browser, url: &str) -> u16 {
    let id = browser.open(&navigation(url), true);
    browser.response(id).status()
}

#[test]
fn opened_page_brings_its_resources() {
    let (scene, told) = origin(|| images(4));
    let public = Public::new("early");
    let site = Site::new("h2", &public.identity("good"), &scene);
    let opening = Opening::new(&public, &[site.address.port()], |_| {});
    let mut browser = opening.browser(site.address.port(), "");
    assert_eq!(load(&mut browser, &site.url("/page")), 200);
    let expected = ["/0.png", "/1.png", "/2.png", "/3.png", "/page"];
    assert_eq!(
        wait_for(&told, 5),
        expected,
        "the browser asked for the page"
    );
    for path in &expected[..4] {
        let id = browser.open(&image(&site.url(path), &site.url("/page")), true);
        let received = browser.response(id);
        assert_eq!(received.body, path.as_bytes());
        let status = received.field("cache-status").unwrap_or_default();
        assert!(status.contains("detail=pushed"), "{path}: {status}");
        assert_eq!(received.field("tandem-opened"), None);
    }
    assert!(told.try_recv().is_err(), "each is requested once");

    // Another key gets nothing of it.
    let mut other = opening.browser(site.address.port(), "b3RoZXI6");
    let id = other.open(&image(&site.url("/0.png"), &site.url("/page")), true);
    assert_eq!(other.response(id).body, b"/0.png");
    assert_eq!(wait_for(&told, 1), ["/0.png"]);
}

/// The resources of the last visit leave with the page, whose response is still missing.
#[test]
fn opened_page_is_remembered_for_its_next_visit() {
    let (scene, told, gates) = gated_origin();
    let public = Public::new("early-revisit");
    let site = Site::new("h2", &public.identity("good"), &scene);
    let opening = Opening::new(&public, &[site.address.port()], |_| {});
    let mut browser = opening.browser(site.address.port(), "");
    let page = site.url("/page");
    assert_eq!(load(&mut browser, &page), 200);
    wait_for(&told, 3);
    for path in ["/0.png", "/1.png"] {
        let id = browser.open(&image(&site.url(path), &page), true);
        assert_eq!(browser.response(id).body, path.as_bytes());
    }
    wait_for_reports(opening.pair.http);
    let id = browser.open(&navigation(&page), true);
    // The scene tells of a page after its text is there.
    assert_eq!(wait_for(&told, 2), ["/0.png", "/1.png"]);
    gates[1].open();
    assert_eq!(browser.response(id).status(), 200);
    assert_eq!(wait_for(&told, 1), ["/page"]);
}

/// A listed host gets one connection for a page, which the browser's connection takes over.
#[test]
fn early_connection_serves_the_browsers_next_one() {
    let ports: Arc<OnceLock<[u16; 2]>> = Arc::default();
    let named = Arc::clone(&ports);
    let (scene, told) = origin(move || {
        let [listed, unlisted] = named.get().unwrap();
        format!(
            "<!doctype html><body><img src=https://localhost:{listed}/a.png>\
             <img src=https://localhost:{unlisted}/b.png><img src=http://localhost:{unlisted}/c.png>"
        )
    });
    let public = Public::new("early-hosts");
    let identity = public.identity("good");
    let sites = [(); 3].map(|()| Site::new("h2", &identity, &scene));
    let ways = sites.each_ref().map(|site| Way::to(site.address));
    let port = |site: usize| ways[site].address.port();
    ports.set([port(1), port(2)]).unwrap();
    let opening = Opening::new(&public, &[port(0), port(1)], |_| {});
    let url = |site: usize, path: &str| format!("https://localhost:{}{path}", port(site));
    let mut first = opening.browser(port(0), "");
    assert_eq!(load(&mut first, &url(0, "/page")), 200);
    assert_eq!(wait_for(&told, 2), ["/a.png", "/page"]);
    let mut second = opening.browser(port(1), "");
    let id = second.open(&image(&url(1, "/a.png"), &url(0, "/")), true);
    let received = second.response(id);
    assert_eq!(received.body, b"/a.png");
    let status = received.field("cache-status").unwrap_or_default();
    assert!(status.contains("detail=pushed"), "{status}");
    let id = second.open(&image(&url(1, "/d.png"), &url(0, "/")), true);
    assert_eq!(second.response(id).body, b"/d.png");
    assert_eq!(wait_for(&told, 1), ["/d.png"]);
    let counts = ways.each_ref().map(Way::connections);
    assert_eq!(counts, [1, 1, 0], "the last port is not listed");

    // A third connection of the browser has its own connection to the origin.
    let mut third = opening.browser(port(1), "");
    let id = third.open(&image(&url(1, "/e.png"), &url(0, "/")), true);
    assert_eq!(third.response(id).body, b"/e.png");
    assert_eq!(ways[1].connections(), 2);
}

#[test]
fn opened_page_needs_http2_push_and_consent() {
    let (scene, told) = origin(|| images(2));
    let public = Public::new("early-off");
    let identity = public.identity("good");
    let http1 = Site::new("http", &identity, &scene);
    let h2 = Site::new("h2", &identity, &scene);
    let request = |authority: &str| {
        format!(
            "GET /page HTTP/1.1\r\nHost: {authority}\r\nAccept: text/html\r\nSec-Fetch-Mode: \
             navigate\r\nSec-Fetch-Dest: document\r\nConnection: close\r\n\r\n"
        )
    };
    let opening = Opening::new(&public, &[http1.address.port()], |_| {});
    let authority = http1.authority();
    let tls = TlsClient::trusting(Trust::Local);
    let mut stream = tls.connect(&public, &opening.pair, &authority).unwrap();
    stream.write_all(request(&authority).as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.starts_with(b"HTTP/1.1 200"));
    let no_push = |client: &mut ClientOptions| client.push = Some(false);
    let off = |client: &mut ClientOptions| client.open_https_early = Some(EarlyRequests::Off);
    for change in [no_push as fn(&mut ClientOptions), off] {
        let opening = Opening::new(&public, &[h2.address.port()], change);
        let mut browser = opening.browser(h2.address.port(), "");
        assert_eq!(load(&mut browser, &h2.url("/page")), 200);
    }
    assert_eq!(wait_for(&told, 3), ["/page", "/page", "/page"]);
    let late = told.recv_timeout(std::time::Duration::from_millis(300));
    assert!(late.is_err(), "{late:?}");
}

/// A browser does not see the refusal of an early request, and the origin gets no other ones.
#[test]
fn refusing_origin_gets_no_early_requests() {
    let (tell, told) = channel();
    let scene = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            let path = asked.line.split(' ').nth(1).unwrap().to_owned();
            client.send(match path.as_str() {
                "/page" | "/next" => format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nETag: \"1\"\r\n\
                     Content-Length: 42\r\n\r\n{:<42}",
                    format!("<!doctype html><body><img src={path}.png>")
                ),
                _ => "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n".to_owned(),
            });
            let _ = tell.send(path);
        }
    });
    let public = Public::new("early-busy");
    let site = Site::new("h2", &public.identity("good"), &scene);
    let opening = Opening::new(&public, &[site.address.port()], |_| {});
    let mut browser = opening.browser(site.address.port(), "");
    assert_eq!(load(&mut browser, &site.url("/page")), 200);
    assert_eq!(wait_for(&told, 2), ["/page", "/page.png"]);
    let own = image(&site.url("/page.png"), &site.url("/page"));
    let id = browser.open(&own, true);
    assert_eq!(browser.response(id).status(), 503);
    assert_eq!(wait_for(&told, 1), ["/page.png"], "a request of its own");
    assert_eq!(load(&mut browser, &site.url("/next")), 200);
    assert_eq!(wait_for(&told, 1), ["/next"]);
    let late = told.recv_timeout(std::time::Duration::from_millis(300));
    assert!(late.is_err(), "{late:?}");
}

/// Without a gateway, the file of visited pages is for plain HTTP.
#[test]
fn opened_page_is_not_in_the_file_of_visits() {
    let (scene, told) = origin(|| images(2));
    let public = Public::new("early-file");
    let site = Site::new("h2", &public.identity("good"), &scene);
    let name = format!("tandem-opened-visits-{}", std::process::id());
    let file = std::env::temp_dir().join(name);
    let mut options = ClientOptions {
        gateway: Vec::new(),
        solo: Some(SoloMode::Direct),
        solo_allow_dest: vec!["127.0.0.0/8".parse().unwrap()],
        solo_hold_out: Some(0.0),
        solo_state: Some(file.clone()),
        open_https_early: Some(EarlyRequests::Shared),
        discover: Some(false),
        ..client_options("h2+tcp://127.0.0.1:1")
    };
    list(&public, &[&site], &mut options);
    let (running, http, _) = start_client(options);
    let tls = TlsClient::trusting(Trust::Local);
    let tunnel = tunnel(http, &site.authority(), "");
    let mut browser = Browser::over(tls.handshake(&public, tunnel).unwrap());
    let (page, expected) = (site.url("/page"), ["/0.png", "/1.png", "/page"]);
    // The second visit shows that the first one was noted.
    for _ in 0..2 {
        assert_eq!(load(&mut browser, &page), 200);
        assert_eq!(wait_for(&told, 3), expected);
        for path in &expected[..2] {
            let id = browser.open(&image(&site.url(path), &page), true);
            assert_eq!(browser.response(id).status(), 200);
        }
    }
    let mut plain = Client::to(http);
    let page = scene.url("/page");
    plain.send(request("GET", &page, "Accept: text/html\r\n"));
    assert_eq!(plain.answer("GET").status, 200);
    assert_eq!(wait_for(&told, 3), expected);
    for path in &expected[..2] {
        plain.send(request(
            "GET",
            &scene.url(path),
            &format!("Referer: {page}\r\n"),
        ));
        assert_eq!(plain.answer("GET").status, 200);
    }
    let services = running.services().clone();
    let kept = services.visits().unwrap();
    let end = std::time::Instant::now() + PATIENCE;
    while !kept.visits().to_text().contains("/1.png") {
        assert!(std::time::Instant::now() < end, "the plain page is missing");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    services.save().unwrap();
    let content = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(content.matches("\npage ").count(), 1, "{content}");
    assert!(
        !content.contains("https") && !content.contains("localhost"),
        "{content}"
    );
}

//! Tests of early requests by default: they repeat those that the browser made before over the same
//! connection to the client, and nothing passes from one connection to another.
//!
//! A second client stands for a context of a browser that multiplexes its tunnels over one HTTP/2
//! connection.

use std::sync::mpsc::Receiver;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tandem::config::open::EarlyRequests;
use tandem::endpoint::Usage;
use tandem::runtime::Running;
use tandem_http::RequestHead;

use super::early::{gated_origin, image, images, load, navigation, origin, wait_for_reports};
use super::*;
use crate::harness::{Way, block_on, wait_for};

/// The time in which requests that must not be made would arrive.
const SILENCE: Duration = Duration::from_millis(300);

/// A client that opens these ports, with a listener for HTTP/2 and one for HTTP/1.1.
pub(super) struct Opening<'a> {
    public: &'a Public,
    http2: SocketAddr,
    http1: SocketAddr,
    /// The way to the client's gateway.
    pub(super) to_gateway: Way,
    _running: [Running; 2],
}

impl<'a> Opening<'a> {
    fn new(public: &'a Public, ports: &[u16]) -> Self {
        Self::with(public, ports, |options| {
            options.open_https_early = Some(EarlyRequests::Connection);
            options.discover = Some(false);
            options.cache_status = Some(true);
        })
    }

    pub(super) fn with(
        public: &'a Public,
        ports: &[u16],
        change: impl FnOnce(&mut ClientOptions),
    ) -> Self {
        let (gateway_running, gateway) = start_gateway(gateway_options());
        let to_gateway = Way::to(gateway);
        let mut options = client_options(&format!("h2+tcp://{}", to_gateway.address));
        list(public, &[], &mut options);
        options.open_https_port = ports.to_vec();
        change(&mut options);
        let http2 = Usage::ClientListener.parse("h2+tls://127.0.0.1:0").unwrap();
        let http1 = endpoint("http://127.0.0.2:0");
        options.listen = vec![http2.clone(), http1.clone()];
        let running = block_on(Running::start(Arc::new(options.typed().unwrap()))).unwrap();
        Self {
            public,
            http2: running.address(&http2).unwrap(),
            http1: running.address(&http1).unwrap(),
            to_gateway,
            _running: [running, gateway_running],
        }
    }

    /// Opens a tunnel over a connection of its own.
    pub(super) fn browser(&self, port: u16) -> Browser {
        self.browser_at(self.http1, port)
    }

    pub(super) fn browser_at(&self, proxy: SocketAddr, port: u16) -> Browser {
        let tunnel = tunnel(proxy, &format!("localhost:{port}"), "");
        let tls = TlsClient::trusting(Trust::Local);
        Browser::over(tls.handshake(self.public, tunnel).unwrap())
    }

    /// Starts a context of a browser, whose tunnels share an HTTP/2 connection.
    pub(super) fn context(&self) -> Context {
        let authority = certificate_file(&self.public.authority());
        let url = format!("h2+tls://{}?ca={}", self.http2, authority.display());
        let mut options = client_options(&url);
        options.push = Some(false);
        let (running, address, _) = start_client(options);
        Context {
            address,
            _running: running,
        }
    }
}

pub(super) struct Context {
    pub(super) address: SocketAddr,
    _running: Running,
}

/// Loads a resource, and returns whether it was requested early.
fn is_pushed(browser: &mut Browser, request: &RequestHead) -> bool {
    let id = browser.open(request, true);
    let received = browser.response(id);
    assert_eq!(received.status(), 200);
    assert_eq!(received.body, request.path.as_bytes());
    let status = received.field("cache-status").unwrap_or_default();
    status.contains("detail=pushed")
}

fn assert_silent(told: &Receiver<String>) {
    let late = told.recv_timeout(SILENCE);
    assert!(late.is_err(), "{late:?}");
}

/// Visits a page of two images, whose first one the browser requests.
fn visit(browser: &mut Browser, site: &Site, told: &Receiver<String>) {
    assert_eq!(load(browser, &site.url("/page")), 200);
    let first = image(&site.url("/0.png"), &site.url("/page"));
    assert!(!is_pushed(browser, &first), "a first visit");
    assert_eq!(wait_for(told, 2), ["/0.png", "/page"]);
    assert_silent(told);
}

/// The browser's requests for a page are repeated together with the page, whose response is still
/// missing. Those that only the page names are not.
#[test]
fn second_visit_repeats_the_requests_of_the_browser() {
    let (scene, told, gates) = gated_origin();
    let public = Public::new("contexts-revisit");
    let site = Site::new("h2", &public.identity("good"), &scene);
    let opening = Opening::new(&public, &[site.address.port()]);
    let mut browser = opening.browser(site.address.port());
    visit(&mut browser, &site, &told);
    let page = site.url("/page");
    let id = browser.open(&navigation(&page), true);
    assert_eq!(wait_for(&told, 1), ["/0.png"]);
    gates[1].open();
    assert_eq!(browser.response(id).status(), 200);
    assert_eq!(wait_for(&told, 1), ["/page"]);
    assert!(is_pushed(&mut browser, &image(&site.url("/0.png"), &page)));
    assert!(!is_pushed(&mut browser, &image(&site.url("/1.png"), &page)));
    assert_eq!(wait_for(&told, 1), ["/1.png"]);
    assert_silent(&told);
}

#[test]
fn nothing_passes_between_connections_of_browsers() {
    let (scene, told) = origin(|| images(2));
    let public = Public::new("contexts-apart");
    let site = Site::new("h2", &public.identity("good"), &scene);
    let port = site.address.port();
    let opening = Opening::new(&public, &[port]);
    let contexts = [opening.context(), opening.context()];
    let page = site.url("/page");
    let first = image(&site.url("/0.png"), &page);
    let open: [&dyn Fn(usize) -> Browser; 2] = [&|_| opening.browser(port), &|context| {
        opening.browser_at(contexts[context].address, port)
    }];
    for open in open {
        let mut browser = open(0);
        visit(&mut browser, &site, &told);
        assert_eq!(load(&mut browser, &page), 200);
        assert_eq!(wait_for(&told, 2), ["/0.png", "/page"]);

        // Another connection gets neither the knowledge nor the response that waits.
        let mut other = open(1);
        assert!(!is_pushed(&mut other, &first));
        assert_eq!(wait_for(&told, 1), ["/0.png"]);
        assert_eq!(load(&mut other, &page), 200);
        assert_eq!(wait_for(&told, 1), ["/page"]);
        assert_silent(&told);
        assert!(is_pushed(&mut browser, &first), "it still waits");
        assert_silent(&told);
    }
}

/// A connection over HTTP/1.1 carries one tunnel, and its knowledge ends with it.
#[test]
fn knowledge_ends_with_the_connection() {
    let (scene, told) = origin(|| images(2));
    let public = Public::new("contexts-end");
    let site = Site::new("h2", &public.identity("good"), &scene);
    let port = site.address.port();
    let opening = Opening::new(&public, &[port]);
    let context = opening.context();
    let mut browser = opening.browser(port);
    visit(&mut browser, &site, &told);
    drop(browser);
    let mut browser = opening.browser(port);
    visit(&mut browser, &site, &told);

    // The tunnels of an HTTP/2 connection have its knowledge, one after the other.
    let mut browser = opening.browser_at(context.address, port);
    visit(&mut browser, &site, &told);
    drop(browser);
    let mut browser = opening.browser_at(context.address, port);
    assert_eq!(load(&mut browser, &site.url("/page")), 200);
    assert_eq!(wait_for(&told, 2), ["/0.png", "/page"]);
    drop((browser, context));
    let context = opening.context();
    let mut browser = opening.browser_at(context.address, port);
    visit(&mut browser, &site, &told);
}

/// Two hosts, the first of which has a page with a resource of the second.
struct TwoHosts {
    told: Receiver<String>,
    ways: [Way; 2],
    _sites: [Site; 2],
    _scene: Scene,
}

impl TwoHosts {
    fn new(public: &Public) -> Self {
        let port: Arc<OnceLock<u16>> = Arc::default();
        let named = Arc::clone(&port);
        let (scene, told) = origin(move || {
            let port = named.get().unwrap();
            format!("<!doctype html><body><img src=https://localhost:{port}/a.png>")
        });
        let identity = public.identity("good");
        let sites = [(); 2].map(|()| Site::new("h2", &identity, &scene));
        let ways = sites.each_ref().map(|site| Way::to(site.address));
        port.set(ways[1].address.port()).unwrap();
        Self {
            told,
            ways,
            _sites: sites,
            _scene: scene,
        }
    }

    fn ports(&self) -> [u16; 2] {
        self.ways.each_ref().map(|way| way.address.port())
    }

    fn url(&self, host: usize, path: &str) -> String {
        format!("https://localhost:{}{path}", self.ports()[host])
    }

    /// Returns the browser's request for the resource of the second host.
    fn part(&self) -> RequestHead {
        image(&self.url(1, "/a.png"), &self.url(0, "/"))
    }

    fn connections(&self) -> [usize; 2] {
        self.ways.each_ref().map(Way::connections)
    }

    /// Visits the page for the first time, over connections to both hosts.
    fn visit(&self, open: impl Fn(u16) -> Browser) -> [Browser; 2] {
        let mut browsers = self.ports().map(open);
        assert_eq!(load(&mut browsers[0], &self.url(0, "/page")), 200);
        assert!(!is_pushed(&mut browsers[1], &self.part()));
        assert_eq!(wait_for(&self.told, 2), ["/a.png", "/page"]);
        browsers
    }
}

#[test]
fn tunnels_of_one_connection_belong_together() {
    let public = Public::new("contexts-hosts");
    let hosts = TwoHosts::new(&public);
    let opening = Opening::new(&public, &hosts.ports());
    let [own, other] = [opening.context(), opening.context()];
    let open = |context: &Context, port| opening.browser_at(context.address, port);
    let [mut first, mut second] = hosts.visit(|port| open(&own, port));
    assert_eq!(hosts.connections(), [1, 1]);

    // The early request leaves on the browser's own connection.
    assert_eq!(load(&mut first, &hosts.url(0, "/page")), 200);
    assert_eq!(wait_for(&hosts.told, 2), ["/a.png", "/page"]);
    assert!(is_pushed(&mut second, &hosts.part()));
    assert_eq!(hosts.connections(), [1, 1]);

    // Without one it gets another, which the next tunnel of the same connection takes over.
    drop(second);
    while !hosts.ways[1].has_ended() {
        std::thread::sleep(Duration::from_millis(5));
    }
    wait_for_reports(opening.http1);
    assert_eq!(load(&mut first, &hosts.url(0, "/page")), 200);
    assert_eq!(wait_for(&hosts.told, 2), ["/a.png", "/page"]);
    assert_eq!(hosts.connections(), [1, 2]);
    for context in [None, Some(&other)] {
        let mut stranger = match context {
            None => opening.browser(hosts.ports()[1]),
            Some(other) => open(other, hosts.ports()[1]),
        };
        assert!(!is_pushed(&mut stranger, &hosts.part()));
        assert_eq!(wait_for(&hosts.told, 1), ["/a.png"]);
    }
    assert_eq!(hosts.connections(), [1, 4], "strangers have their own");
    let mut second = open(&own, hosts.ports()[1]);
    assert!(is_pushed(&mut second, &hosts.part()));
    assert_eq!(hosts.connections(), [1, 4]);
    assert_silent(&hosts.told);
}

/// A tunnel over HTTP/1.1 shares no state with those to other hosts.
#[test]
fn tunnels_of_several_connections_are_apart() {
    let public = Public::new("contexts-tunnels");
    let hosts = TwoHosts::new(&public);
    let opening = Opening::new(&public, &hosts.ports());
    let [mut first, mut second] = hosts.visit(|port| opening.browser(port));
    assert_eq!(load(&mut first, &hosts.url(0, "/page")), 200);
    assert_eq!(wait_for(&hosts.told, 1), ["/page"]);
    assert_silent(&hosts.told);
    assert!(!is_pushed(&mut second, &hosts.part()));
    assert_eq!(wait_for(&hosts.told, 1), ["/a.png"]);
    assert_eq!(hosts.connections(), [1, 1]);
}

/// A frame may have other cookies and copies than the same document in a tab.
#[test]
fn frame_is_no_visit() {
    let (scene, told) = origin(|| images(2));
    let public = Public::new("contexts-frame");
    let site = Site::new("h2", &public.identity("good"), &scene);
    let opening = Opening::new(&public, &[site.address.port()]);
    let mut browser = opening.browser(site.address.port());
    visit(&mut browser, &site, &told);
    let mut frame = get(&site.url("/page"));
    for (name, value) in [
        ("accept", "text/html"),
        ("sec-fetch-mode", "navigate"),
        ("sec-fetch-dest", "iframe"),
    ] {
        frame.fields.push(name, value);
    }
    let id = browser.open(&frame, true);
    assert_eq!(browser.response(id).status(), 200);
    assert_eq!(wait_for(&told, 1), ["/page"]);
    assert_silent(&told);
}

//! Tests of discovery in opened HTTPS: a gateway with a certificate for the site serves its
//! requests, and no other gateway does.

use tandem::config::open::EarlyRequests;

use super::contexts::Opening;
use super::{Public, Site, TlsClient, Trust, list};
use crate::browser::Browser;
use crate::harness::{Pair, Scene, Way};
use crate::patience::until;

/// A site whose origin announces a gateway behind `way`.
struct Announcing {
    origin: Site,
    way: Way,
    _gateway: Site,
    _scenes: [Scene; 2],
}

impl Announcing {
    /// `identity` names the certificate of the gateway.
    fn new(public: &Public, identity: &str) -> Self {
        let behind = Scene::answering("HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\ngateway");
        let gateway = Site::new("h2", &public.identity(identity), &behind);
        let way = Way::to(gateway.address);
        let port = way.address.port();
        let scene = Scene::answering(format!(
            "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\
             Session-Gateway: \"h2+tls://localhost:{port}\"\r\n\r\ndirect"
        ));
        Self {
            origin: Site::new("h2", &public.identity("good"), &scene),
            way,
            _gateway: gateway,
            _scenes: [scene, behind],
        }
    }

    /// Returns a browser with an opened connection to the origin.
    fn browser(&self, public: &Public, discover: Option<bool>) -> (Pair, Browser) {
        let change = |client: &mut tandem::config::ClientOptions| {
            list(public, &[&self.origin], client);
            client.discover = discover;
        };
        let pair = Pair::with("h2", |_| {}, change);
        let client = TlsClient::trusting(Trust::Local);
        let stream = client.connect(public, &pair, &self.origin.authority());
        (pair, Browser::over(stream.unwrap()))
    }

    fn get(&self, browser: &mut Browser) -> Vec<u8> {
        let received = browser.get(&self.origin.url("/"));
        assert_eq!(received.status(), 200);
        received.body.clone()
    }
}

#[test]
fn certified_gateway_of_an_opened_site_is_used() {
    let public = Public::new("discovered");
    let site = Announcing::new(&public, "good");
    let (_pair, mut browser) = site.browser(&public, None);
    assert_eq!(site.get(&mut browser), b"direct", "the first request");
    until("the gateway was not discovered", || {
        site.get(&mut browser) == b"gateway"
    });
    assert_eq!(site.way.connections(), 1);
}

impl Announcing {
    /// Sends requests until the gateway serves one. The first of them goes directly.
    fn discover(&self, browser: &mut Browser) {
        assert_eq!(self.get(browser), b"direct", "nothing is known");
        until("the gateway was not discovered", || {
            self.get(browser) == b"gateway"
        });
    }
}

/// A site could otherwise recognise a private window by the session of a normal one.
#[test]
fn discovered_gateway_belongs_to_one_connection() {
    for early in [EarlyRequests::Off, EarlyRequests::Connection] {
        let public = Public::new("discovered-apart");
        let site = Announcing::new(&public, "good");
        let port = site.origin.address.port();
        let opening = Opening::with(&public, &[port], |options| {
            options.open_https_early = Some(early);
        });
        let mut first = opening.browser(port);
        site.discover(&mut first);
        assert_eq!(site.way.connections(), 1);

        // A tunnel over HTTP/1.1 is a context of its own.
        site.discover(&mut opening.browser(port));
        assert_eq!(site.way.connections(), 2);

        // The tunnels of an HTTP/2 connection belong together, and to no other connection.
        let contexts = [opening.context(), opening.context()];
        for (number, context) in contexts.iter().enumerate() {
            let mut browser = opening.browser_at(context.address, port);
            site.discover(&mut browser);
            assert_eq!(site.way.connections(), 3 + number);
            let mut other = opening.browser_at(context.address, port);
            assert_eq!(site.get(&mut other), b"gateway", "the same context");
            assert_eq!(site.way.connections(), 3 + number);
        }
        assert_eq!(site.get(&mut first), b"gateway", "its session is its own");
        assert_eq!(site.way.connections(), 4);
        let sessions = opening.to_gateway.connections();
        assert_eq!(sessions, 1, "the tunnels share the client's session");
    }
}

#[test]
fn discovered_gateway_ends_with_the_connection() {
    let public = Public::new("discovered-end");
    let site = Announcing::new(&public, "good");
    let port = site.origin.address.port();
    let opening = Opening::with(&public, &[port], |_| {});
    let context = opening.context();
    let open: [&dyn Fn() -> Browser; 2] = [&|| opening.browser(port), &|| {
        opening.browser_at(context.address, port)
    }];
    let mut browser = open[0]();
    site.discover(&mut browser);
    assert!(!site.way.has_ended());
    drop(browser);
    until("the session outlived its connection", || {
        site.way.has_ended()
    });
    site.discover(&mut open[0]());
    // Here the connection outlives a tunnel.
    site.discover(&mut open[1]());
    assert_eq!(site.get(&mut open[1]()), b"gateway");
    drop(context);
    let context = opening.context();
    site.discover(&mut opening.browser_at(context.address, port));
}

/// The user has chosen one memory for all windows.
#[test]
fn discovered_gateway_is_shared_as_early_requests_are() {
    let public = Public::new("discovered-shared");
    let site = Announcing::new(&public, "good");
    let port = site.origin.address.port();
    let opening = Opening::with(&public, &[port], |options| {
        options.open_https_early = Some(EarlyRequests::Shared);
    });
    site.discover(&mut opening.browser(port));
    assert_eq!(site.get(&mut opening.browser(port)), b"gateway");
    assert_eq!(site.way.connections(), 1);
}

#[test]
fn route_overrules_the_announcement_of_an_opened_site() {
    let public = Public::new("discovered-route");
    let site = Announcing::new(&public, "good");
    let port = site.origin.address.port();
    let opening = Opening::with(&public, &[port], |options| {
        let route = format!("localhost={}", options.gateway[0]);
        options.route = vec![route.parse().unwrap()];
    });
    let mut browser = opening.browser(port);
    for _ in 0..20 {
        assert_eq!(site.get(&mut browser), b"direct");
    }
    assert_eq!(site.way.connections(), 0);
}

/// An announcement can lead to the ports of the same host only, and the program at a port may
/// belong to another user.
#[test]
fn gateway_without_a_valid_certificate_is_left() {
    let public = Public::new("undiscovered");
    for fault in ["wrong host", "unknown root", "expired"] {
        let site = Announcing::new(&public, fault);
        let (_pair, mut browser) = site.browser(&public, None);
        until("the gateway was not left", || {
            assert_eq!(site.get(&mut browser), b"direct", "{fault}");
            site.way.has_ended()
        });
        for _ in 0..20 {
            assert_eq!(site.get(&mut browser), b"direct", "{fault}");
        }
        assert_eq!(site.way.connections(), 1, "{fault}");
    }
}

#[test]
fn opened_site_is_not_discovered_against_the_option() {
    let public = Public::new("discover-off");
    let site = Announcing::new(&public, "good");
    let (_pair, mut browser) = site.browser(&public, Some(false));
    for _ in 0..10 {
        assert_eq!(site.get(&mut browser), b"direct");
    }
    assert_eq!(site.way.connections(), 0);
}

//! Tests of discovery in opened HTTPS: a gateway with a certificate for the site serves its
//! requests, and no other gateway does.

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

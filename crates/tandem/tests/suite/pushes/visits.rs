//! Browsers that return, with the digest of an earlier session.

use super::{gateway_that_always_pushes, received, site};
use crate::harness::{
    Client, Scene, Way, client_options, gateway_options, request, start_client, start_gateway,
    wait_for,
};
use crate::pairs::SESSIONS;

#[test]
fn digest_of_an_earlier_session_spares_pushes() {
    let answers: &[_] = &[
        ("/page", "text/html", "", "<img src=c.png><img src=d.png>"),
        ("/c.png", "image/png", "Cache-Control: max-age=600\r\n", "c"),
        ("/d.png", "image/png", "", "d"),
    ];
    for (digest, expected) in [
        (Some(false), ["/c.png", "/d.png", "/page"].as_slice()),
        (None, &["/d.png", "/page"]),
    ] {
        let (origin, told) = site(answers);
        let mut options = gateway_options();
        options.hold_out = Some(0.0);
        let (_gateway, gateway) = start_gateway(options);
        let way = Way::to(gateway);
        let mut options = client_options(&format!("h2+tcp://{}", way.address));
        options.push_digest = digest;
        let (_client, http, _) = start_client(options);
        let mut client = Client::to(http);
        for path in ["/page", "/c.png", "/d.png"] {
            client.send(request("GET", &origin.url(path), "Accept: */*\r\n"));
            client.answer("GET");
        }
        wait_for(&told, 3);
        way.close();
        // The digest is sent with the first of these requests.
        for _ in 0..4 {
            let fields = "Accept: text/html\r\n";
            client.send(request("GET", &origin.url("/other"), fields));
            client.answer("GET");
        }
        assert_eq!(received(&told), ["/other"; 4]);
        client.send(request("GET", &origin.url("/page"), ""));
        client.answer("GET");
        assert_eq!(wait_for(&told, expected.len()), expected, "{digest:?}");
        assert!(way.connections() > 1, "a later session");
    }
}

/// A browser with a cookie has visited the site, so its bodies wait. Its cache answers most
/// requests, and the gateway fetches a resource once the browser lacks it.
#[test]
fn returning_browser_is_sent_bodies_on_demand() {
    let answers: &[_] = &[
        ("/page", "text/html", "", "<img src=c.png><img src=p.png>"),
        ("/c.png", "image/png", "Cache-Control: max-age=600\r\n", "c"),
        ("/p.png", "image/png", "", "p"),
    ];
    let elsewhere = Scene::at("127.0.0.2", |_, mut client| {
        while client.request().is_some() {
            client.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    });
    for session in SESSIONS {
        let (origin, told) = site(answers);
        let pair = gateway_that_always_pushes(session);
        let cookie = "Cookie: first=1\r\n";
        let navigation = format!("Accept: text/html\r\n{cookie}");
        let mut client = pair.connect();
        // The companion comes with the first page, and over HTTP/3 perhaps after its response.
        client.send(request("GET", &elsewhere.url("/"), &navigation));
        assert_eq!(client.answer("GET").body, b"ok");
        client.send(request("GET", &origin.url("/page"), &navigation));
        assert_eq!(client.answer("GET").status, 200);
        let get = |client: &mut Client, path: &str, fields: &str| {
            client.send(request("GET", &origin.url(path), fields));
            client.answer("GET").body
        };
        // A request for another resource goes to the origin behind all fetches that have begun.
        assert_eq!(get(&mut client, "/else", ""), b"nothing");
        assert_eq!(
            received(&told),
            ["/pagefirst=1", "/else"],
            "{session}: nothing is fetched for the cache of the browser"
        );
        assert_eq!(get(&mut client, "/p.png", cookie), b"p");
        assert_eq!(wait_for(&told, 1), ["/p.pngfirst=1"], "{session}");
        assert_eq!(get(&mut client, "/c.png", cookie), b"c");
        assert_eq!(wait_for(&told, 1), ["/c.pngfirst=1"], "{session}");
    }
}

#[test]
fn digest_stays_within_its_isolation_key() {
    let answers: &[_] = &[
        ("/page", "text/html", "", "<img src=c.png>"),
        ("/c.png", "image/png", "Cache-Control: max-age=600\r\n", "c"),
    ];
    let (origin, told) = site(answers);
    let pair = gateway_that_always_pushes("h2");
    let get = |path: &str, key: &str, accept: &str| {
        let mut client = Client::to(pair.http);
        let fields = format!("Proxy-Authorization: Key {key}\r\nAccept: {accept}\r\n");
        client.send(request("GET", &origin.url(path), &fields));
        assert_eq!(client.answer("GET").status, 200);
    };
    get("/c.png", "one", "*/*");
    assert_eq!(wait_for(&told, 1), ["/c.png"]);
    get("/page", "two", "text/html");
    assert_eq!(wait_for(&told, 2), ["/c.png", "/page"]);
}

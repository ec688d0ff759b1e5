//! Tests of HTTPS that the client opens and the gateway fetches. The gateway verifies origins, and
//! every connection that it must not open reaches the origin untouched.

use std::net::TcpListener;
use std::sync::Mutex;

use super::*;
use crate::harness::{start_relay, wait_for};
use crate::roundtrips::lumps;

const TOKEN: &str = "a-token-of-some-length";

/// Makes a gateway admit by token, trust the web of the test, and fetch HTTPS of opened hosts.
fn consent(public: &Public, gateway: &mut GatewayOptions) {
    std::fs::write(public.path("token"), TOKEN).unwrap();
    gateway.open = None;
    gateway.auth = vec![format!("token-file={}", public.path("token"))];
    gateway.origin_ca = Some(public.path("root.pem"));
    gateway.open_https = Some(true);
    gateway.hold_out = Some(0.0);
}

/// Entrusts the sites' ports to the client's gateway.
fn entrust(public: &Public, sites: &[&Site], client: &mut ClientOptions) {
    list(public, sites, client);
    client.open_https_at_gateway = std::mem::take(&mut client.open_https);
    client.open_https_ca = None;
    client.token_file = Some(public.path("token"));
    let url = client.gateway[0].to_string();
    let separator = if url.contains('?') { '&' } else { '?' };
    let gateway = format!("{url}{separator}own=yes");
    client.gateway = vec![gateway.parse().unwrap()];
}

/// A pair with a gateway that fetches HTTPS of these sites.
fn entrusting(public: &Public, sites: &[&Site]) -> Pair {
    Pair::with(
        "h2",
        |gateway| consent(public, gateway),
        |client| entrust(public, sites, client),
    )
}

/// The browser's protocol does not depend on that of the origin.
#[test]
fn gateway_fetches_listed_host() {
    let (public, scene) = (Public::new("gateway"), telling());
    let identity = public.identity("good");
    let sites = ["h2", "http"].map(|session| Site::new(session, &identity, &scene));
    let pair = entrusting(&public, &sites.each_ref());
    let client = TlsClient::trusting(Trust::Local);
    for site in &sites {
        let stream = client.connect(&public, &pair, &site.authority()).unwrap();
        assert_eq!(stream.conn.alpn_protocol(), Some(&b"h2"[..]));
        assert_eq!(shown(&stream), BY_LOCAL);
        let mut browser = Browser::over(stream);
        let received = browser.get(&site.url("/a"));
        assert_eq!(received.status(), 200);
        assert_eq!(received.body, b"GET /a HTTP/1.1 0");
        assert_eq!(received.field("tandem-opened"), None);
        let other = browser.get("https://site.test/");
        assert_eq!(other.status(), 421, "another host needs another connection");
        let http1 = TlsClient {
            alpn: HTTP1,
            ..TlsClient::trusting(Trust::Local)
        };
        let mut stream = http1.connect(&public, &pair, &site.authority()).unwrap();
        let answer = get1(&mut stream, "/b", &site.authority());
        assert!(answer.ends_with("GET /b HTTP/1.1 0"), "{answer}");
    }
}

/// The gateway reads only the hosts that the user has listed for it.
#[test]
fn gateway_sees_no_unlisted_host() {
    let (public, scene) = (Public::new("gateway-others"), telling());
    let identity = public.identity("good");
    let listed = Site::new("http", &identity, &scene);
    let unlisted = Site::new("http", &identity, &scene);
    let pair = entrusting(&public, &[&listed]);
    let client = TlsClient::trusting(Trust::Both);
    let verdict = |authority: &str| client.verdict(&public, &pair, authority);
    assert_eq!(verdict(&listed.authority()).as_deref(), Ok(BY_LOCAL));
    assert_eq!(verdict(&unlisted.authority()).as_deref(), Ok(BY_PUBLIC));
    let mut socks = Client::to(pair.socks);
    assert_eq!(socks.socks(&listed.authority(), None), 0);
    let stream = client
        .handshake(&public, socks.stream.into_inner())
        .unwrap();
    assert_eq!(shown(&stream), BY_PUBLIC, "by SOCKS");
}

#[test]
fn gateway_leaves_broken_certificates_to_the_browser() {
    assert_verdicts_are_kept("gateway-broken", entrusting);
}

#[test]
fn gateway_leaves_client_certificates_to_the_browser() {
    assert_choice_is_left("gateway-client-certificate", entrusting);
}

/// Neither a gateway without `open-https` nor a relay on the way gets requests.
#[test]
fn refusing_gateway_gets_a_tunnel() {
    let (public, scene) = (Public::new("gateway-refuses"), telling());
    let site = Site::new("http", &public.identity("good"), &scene);
    let refusing = Pair::with(
        "h2",
        |gateway| {
            consent(&public, gateway);
            gateway.open_https = None;
        },
        |client| entrust(&public, &[&site], client),
    );
    let mut options = gateway_options();
    consent(&public, &mut options);
    let (_gateway, gateway) = start_gateway(options);
    let (_relay, relay) = start_relay(
        "h2+tcp://127.0.0.1:0",
        &format!("h2+tcp://{gateway}"),
        &tandem::transport::registry::Transports::default(),
        |relay| relay.token_file = Some(public.path("token")),
    );
    let mut options = client_options(&format!("h2+tcp://{relay}"));
    entrust(&public, &[&site], &mut options);
    let (_client, relayed, _) = start_client(options);
    let client = TlsClient::trusting(Trust::Both);
    let authority = site.authority();
    for http in [refusing.http, relayed] {
        for _ in 0..2 {
            let stream = client.handshake(&public, tunnel(http, &authority, ""));
            let mut stream = stream.unwrap();
            assert_eq!(shown(&stream), BY_PUBLIC);
            let answer = get1(&mut stream, "/", &authority);
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
    }
}

/// A page of the gateway never appears under the name of an HTTPS site. The client's own page tells
/// the reason, at both levels.
#[test]
fn failure_of_an_opened_site_has_a_page() {
    for (name, start) in [
        ("page-gateway", entrusting as fn(&Public, &[&Site]) -> Pair),
        ("page-local", opening),
    ] {
        let (public, scene) = (Public::new(name), telling());
        let site = Site::new("h2", &public.identity("good"), &scene);
        let pair = start(&public, &[&site]);
        let client = TlsClient::trusting(Trust::Local);
        let stream = client.connect(&public, &pair, &site.authority()).unwrap();
        let mut browser = Browser::over(stream);
        let url = site.url("/");
        assert_eq!(browser.get(&url).status(), 200, "{name}");
        drop(site);
        let received = browser.get(&url);
        let seen = (received.status(), received.reset);
        assert_eq!(seen, (502, None), "{name}");
        let status = received.field("proxy-status").unwrap();
        assert!(status.starts_with("client; error="), "{name}: {status}");
        let page = String::from_utf8_lossy(&received.body).into_owned();
        assert!(page.contains("cannot be reached</h1>"), "{page}");
    }
}

#[test]
fn gateway_carries_websockets_of_opened_hosts() {
    let (public, scene) = (Public::new("gateway-websocket"), websocket_scene());
    let site = Site::new("http", &public.identity("good"), &scene);
    let pair = entrusting(&public, &[&site]);
    exchange_over_websocket(&public, &pair, &site);
}

/// A path whose far end can be replaced, for connections to come.
fn switch(to: SocketAddr) -> (SocketAddr, Arc<Mutex<SocketAddr>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let target = Arc::new(Mutex::new(to));
    let present = Arc::clone(&target);
    std::thread::spawn(move || {
        for near in listener.incoming() {
            let near = near.unwrap();
            let to = *present.lock().unwrap();
            let Ok(far) = TcpStream::connect(to) else {
                continue;
            };
            let ends = [near.try_clone(), far.try_clone()].map(Result::unwrap);
            let [near_too, far_too] = ends;
            for (mut from, mut to) in [(near, far_too), (far, near_too)] {
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
            }
        }
    });
    (address, target)
}

/// The open connection gets no other page, and the next one is the origin's own.
#[test]
fn gateway_that_ceases_to_consent_gets_a_tunnel() {
    let (public, scene) = (Public::new("gateway-ceases"), telling());
    let site = Site::new("h2", &public.identity("good"), &scene);
    let start = |consents| {
        let mut options = gateway_options();
        consent(&public, &mut options);
        options.open_https = Some(consents);
        start_gateway(options)
    };
    let (first, gateway) = start(true);
    let (path, target) = switch(gateway);
    let mut options = client_options(&format!("h2+tcp://{path}"));
    entrust(&public, &[&site], &mut options);
    let (_client, http, _) = start_client(options);
    let client = TlsClient::trusting(Trust::Both);
    let authority = site.authority();
    let connect = || {
        client
            .handshake(&public, tunnel(http, &authority, ""))
            .unwrap()
    };
    let stream = connect();
    assert_eq!(shown(&stream), BY_LOCAL);
    let mut browser = Browser::over(stream);
    let url = site.url("/");
    assert_eq!(browser.get(&url).status(), 200);
    let (_second, gateway) = start(false);
    *target.lock().unwrap() = gateway;
    drop(first);
    assert_eq!(browser.get(&url).status(), 0, "no page of the gateway");
    for _ in 0..2 {
        let stream = connect();
        assert_eq!(shown(&stream), BY_PUBLIC);
        stream.sock.shutdown(std::net::Shutdown::Both).unwrap();
    }
}

/// The first connection of a browser to a host that the list names waits for no question.
#[test]
fn gateway_verifies_named_hosts_ahead() {
    let public = Public::new("gateway-ahead");
    let origin = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = origin.local_addr().unwrap().port();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut first = [0];
        let (mut stream, _) = origin.accept().unwrap();
        stream.read_exact(&mut first).unwrap();
        tell.send(first).unwrap();
    });
    let _pair = Pair::with(
        "h2",
        |gateway| consent(&public, gateway),
        |client| {
            entrust(&public, &[], client);
            client.open_https_port = vec![port];
        },
    );
    const HANDSHAKE: u8 = 22;
    assert_eq!(told.recv_timeout(PATIENCE), Ok([HANDSHAKE]));
}

/// The session of each isolation key carries the exchanges of its tunnels.
#[test]
fn gateway_keeps_isolation_keys_apart() {
    let (public, scene) = (Public::new("gateway-isolation"), telling());
    let site = Site::new("http", &public.identity("good"), &scene);
    let mut options = gateway_options();
    consent(&public, &mut options);
    options.listen = vec![endpoint(&format!(
        "h2+tls://127.0.0.1:0?{}",
        public.identity("good")
    ))];
    let (_gateway, gateway) = start_gateway(options);
    let url = format!("h2+tls://localhost:443?ca={}", public.path("root.pem"));
    assert_keys_apart(&public, &site, gateway, &url, |client| {
        entrust(&public, &[&site], client);
    });
}

/// The requests of a page's resources reach two origins without another flight of the client. They
/// carry the cookie that the page sets, and so do those of the browser.
#[test]
fn gateway_pushes_resources_of_opened_pages() {
    let up: Arc<std::sync::OnceLock<Arc<std::sync::atomic::AtomicUsize>>> = Arc::default();
    let (tell, told) = std::sync::mpsc::channel();
    let counter = Arc::clone(&up);
    let other_port: Arc<std::sync::OnceLock<u16>> = Arc::default();
    let named_port = Arc::clone(&other_port);
    let scene = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            let flights = counter
                .get()
                .unwrap()
                .load(std::sync::atomic::Ordering::SeqCst);
            let path = asked.line.split(' ').nth(1).unwrap().to_owned();
            let cookie = asked.field("cookie").map(str::to_owned);
            let (content_type, body) = match path.as_str() {
                "/page" => (
                    // The first cookie shows a first visit.
                    "text/html\r\nSet-Cookie: first=1; Secure",
                    format!(
                        "<link rel=stylesheet href=/a.css><img src=https://localhost:{}/b.png>\
                         <img src=https://unlisted.test/c.png><img src=http://localhost/d.png>",
                        named_port.get().unwrap()
                    ),
                ),
                _ => ("image/png", path.clone()),
            };
            // The response of the page causes the next request, at another thread.
            tell.send((path, flights, cookie)).unwrap();
            client.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\
                 Cache-Control: max-age=600\r\n\r\n{body}",
                body.len()
            ));
        }
    });
    let public = Public::new("gateway-push");
    let identity = public.identity("good");
    let sites = ["h2", "http"].map(|session| Site::new(session, &identity, &scene));
    other_port.set(sites[1].address.port()).unwrap();
    let mut options = gateway_options();
    consent(&public, &mut options);
    let (_gateway, gateway) = start_gateway(options);
    let path = lumps(gateway);
    up.set(Arc::clone(&path.up)).unwrap();
    let mut options = client_options(&format!("h2+tcp://{}", path.address));
    options.cache_status = Some(true);
    // The client asks nothing ahead, so that all flights belong to the page.
    options.preconnect = Some(false);
    entrust(&public, &sites.each_ref(), &mut options);
    let (_client, http, _) = start_client(options);
    let tls = TlsClient::trusting(Trust::Local);
    let open = |site: &Site| {
        let stream = tls.handshake(&public, tunnel(http, &site.authority(), ""));
        Browser::over(stream.unwrap())
    };
    let mut first = open(&sites[0]);
    let mut page = get(&sites[0].url("/page"));
    page.fields.push("accept", "text/html");
    page.fields.push("sec-fetch-mode", "navigate");
    page.fields.push("sec-fetch-dest", "document");
    let id = first.open(&page, true);
    assert_eq!(first.response(id).status(), 200);
    let seen: Vec<_> = (0..3)
        .map(|_| told.recv_timeout(PATIENCE).unwrap())
        .collect();
    assert_eq!(seen[0].0, "/page");
    assert!(
        seen.iter().all(|(_, flights, _)| *flights == seen[0].1),
        "{seen:?}"
    );
    let cookie = Some("first=1");
    let mut asked: Vec<_> = seen
        .iter()
        .map(|(path, _, cookie)| (path.as_str(), cookie.as_deref()))
        .collect();
    asked.sort_unstable();
    assert_eq!(
        asked,
        [("/a.css", cookie), ("/b.png", cookie), ("/page", None)]
    );
    let mut second = open(&sites[1]);
    for (browser, site, path) in [
        (&mut first, &sites[0], "/a.css"),
        (&mut second, &sites[1], "/b.png"),
    ] {
        let mut request = get(&site.url(path));
        request.fields.push("cookie", "first=1");
        let id = browser.open(&request, true);
        let received = browser.response(id);
        assert_eq!(received.body, path.as_bytes());
        let status = received.field("cache-status").unwrap_or_default();
        assert!(status.contains("detail=pushed"), "{path}: {status}");
    }
    assert!(told.try_recv().is_err(), "each resource was requested once");
}

/// A response can make the client forget the responses of its site, such as at a logout.
#[test]
fn cleared_site_gets_no_earlier_push() {
    let (tell, told) = std::sync::mpsc::channel();
    let scene = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            let path = asked.line.split(' ').nth(1).unwrap().to_owned();
            let fields = match path.as_str() {
                // The cookie shows a first visit.
                "/page" => {
                    "Content-Type: text/html\r\nSet-Cookie: first=1; Secure\r\n\
                     Link: </a.css>; rel=preload; as=style"
                }
                "/logout" => "Clear-Site-Data: \"cache\", \"storage\"",
                _ => "Content-Type: text/css\r\nCache-Control: max-age=600",
            };
            let length = path.len();
            client.send(format!(
                "HTTP/1.1 200 OK\r\n{fields}\r\nContent-Length: {length}\r\n\r\n{path}"
            ));
            tell.send(path).unwrap();
        }
    });
    let public = Public::new("gateway-clear");
    let site = Site::new("h2", &public.identity("good"), &scene);
    for (path, is_cleared) in [("/other", false), ("/logout", true)] {
        let pair = entrusting(&public, &[&site]);
        let client = TlsClient::trusting(Trust::Local);
        let stream = client.connect(&public, &pair, &site.authority()).unwrap();
        let mut browser = Browser::over(stream);
        let id = browser.open(&early::navigation(&site.url("/page")), true);
        assert_eq!(browser.response(id).status(), 200);
        let asked = wait_for(&told, 2);
        assert_eq!(asked, ["/a.css", "/page"], "the style sheet is pushed");
        assert_eq!(browser.get(&site.url(path)).status(), 200);
        assert_eq!(told.recv_timeout(PATIENCE).unwrap(), path);
        let mut style = get(&site.url("/a.css"));
        style.fields.push("cookie", "first=1");
        let id = browser.open(&style, true);
        assert_eq!(browser.response(id).body, b"/a.css");
        assert_eq!(told.try_recv().is_ok(), is_cleared, "{path}");
    }
}

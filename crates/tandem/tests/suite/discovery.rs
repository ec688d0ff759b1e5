//! Tests of discovery: a client behind a SOCKS proxy uses the gateways that onion services announce
//! for themselves, and connects to nothing else.

mod fake_gateway;

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};

use tandem::config::client::SoloMode;
use tandem::config::{ClientOptions, GatewayOptions};
use tandem::runtime::Running;

use crate::harness::{
    Answer, Client, PATIENCE, Scene, Way, block_on, client_options, endpoint, gateway_options,
    request, start_client, start_gateway,
};
use crate::isolation::{Asked, socks_proxy_to};
use crate::patience::until;

/// A network of onion services behind one SOCKS proxy.
struct Onions {
    proxy: SocketAddr,
    asked: Receiver<Asked>,
    services: Arc<Mutex<HashMap<String, SocketAddr>>>,
    /// The connections that the proxy was asked for: target and user name.
    seen: BTreeSet<(String, String)>,
}

impl Onions {
    fn new() -> Self {
        let services = Arc::<Mutex<HashMap<String, SocketAddr>>>::default();
        let shared = Arc::clone(&services);
        let leads_to = move |target: &str| shared.lock().unwrap().get(target).copied();
        let (proxy, asked) = socks_proxy_to(leads_to);
        Self {
            proxy,
            asked,
            services,
            seen: BTreeSet::new(),
        }
    }

    /// Makes a service reachable at `HOST:PORT`.
    fn serve(&self, target: &str, address: SocketAddr) {
        let mut services = self.services.lock().unwrap();
        services.insert(target.to_owned(), address);
    }

    /// Starts a client with discovery.
    fn client(&self, change: impl FnOnce(&mut ClientOptions)) -> (Running, SocketAddr) {
        let mut options = ClientOptions {
            gateway: Vec::new(),
            solo: Some(SoloMode::Via),
            via: Some(format!("socks5://{}", self.proxy).parse().unwrap()),
            ..client_options("h2+tcp://127.0.0.1:1")
        };
        change(&mut options);
        let (running, http, _) = start_client(options);
        (running, http)
    }

    /// Returns all connections so far.
    fn seen(&mut self) -> &BTreeSet<(String, String)> {
        while let Ok(asked) = self.asked.try_recv() {
            self.note(asked);
        }
        &self.seen
    }

    fn note(&mut self, asked: Asked) {
        let user = asked.credentials.map_or_else(String::new, |it| it.0);
        self.seen.insert((asked.target, user));
    }

    /// Waits until the proxy has been asked for `target`.
    fn wait_for(&mut self, target: &str) {
        while !self.seen.iter().any(|(seen, _)| seen == target) {
            let asked = self.asked.recv_timeout(PATIENCE).unwrap();
            self.note(asked);
        }
    }

    /// Returns the targets of all connections so far.
    fn targets(&mut self) -> BTreeSet<String> {
        let seen = self.seen().iter();
        seen.map(|(target, _)| target.clone()).collect()
    }
}

/// A site with its gateway at a port of the same onion. The site and the gateway's origin answer
/// with different bodies.
struct Site {
    host: String,
    port: u16,
    gateway: Option<Running>,
    _origins: [Scene; 2],
}

impl Site {
    fn new(onions: &Onions, host: &str, change: impl FnOnce(&mut GatewayOptions)) -> Self {
        Self::before(page("gateway", ""), onions, host, change)
    }

    /// Starts a site with a gateway in front of this origin.
    fn before(
        behind: Scene,
        onions: &Onions,
        host: &str,
        change: impl FnOnce(&mut GatewayOptions),
    ) -> Self {
        let mut options = gateway_of(&behind);
        change(&mut options);
        let (gateway, address) = start_gateway(options);
        let port = address.port();
        let direct = page("direct", &announce(host, port));
        onions.serve(&format!("{host}:80"), direct.address);
        onions.serve(&format!("{host}:{port}"), address);
        Self {
            host: host.to_owned(),
            port,
            gateway: Some(gateway),
            _origins: [direct, behind],
        }
    }

    fn gateway(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    fn stop_gateway(&mut self) {
        if let Some(gateway) = self.gateway.take() {
            block_on(gateway.drain(std::time::Duration::ZERO));
        }
    }
}

/// Returns the options of a reverse gateway that admits everyone.
fn gateway_of(origin: &Scene) -> GatewayOptions {
    let mode = format!("reverse=http://{}", origin.address);
    GatewayOptions {
        mode: Some(mode.parse().unwrap()),
        ..gateway_options()
    }
}

/// Returns the field that announces a gateway.
fn announce(host: &str, port: u16) -> String {
    format!("Session-Gateway: \"h2+tcp://{host}:{port}\";ma=600\r\n")
}

/// Starts an origin that answers with a body and these fields.
fn page(body: &str, fields: &str) -> Scene {
    status_page("200 OK", body, fields)
}

fn status_page(status: &str, body: &str, fields: &str) -> Scene {
    let length = body.len();
    Scene::answering(format!(
        "HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{fields}\r\n{body}"
    ))
}

/// Requests a page with an isolation key that has the user name `user`.
fn get(http: SocketAddr, url: &str, user: &str) -> Answer {
    let key = base64(&format!("{user}:x"));
    let mut client = Client::to(http);
    let field = format!("Proxy-Authorization: Basic {key}\r\n");
    client.send(request("GET", url, &field));
    client.answer("GET")
}

fn base64(text: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(text)
}

/// Requests the page until the site's gateway serves it. Every request is answered meanwhile.
fn discovered(http: SocketAddr, host: &str, user: &str) {
    until(&format!("{host} was not discovered"), || {
        let answer = get(http, &format!("http://{host}/"), user);
        assert_eq!(answer.status, 200);
        match &answer.body[..] {
            b"gateway" => true,
            b"direct" => false,
            other => panic!("{other:?}"),
        }
    });
}

fn direct(http: SocketAddr, host: &str, user: &str) {
    let answer = get(http, &format!("http://{host}/"), user);
    assert_eq!(
        (answer.status, &answer.body[..]),
        (200, &b"direct"[..]),
        "{host}"
    );
}

#[test]
fn client_discovers_some_gateways_of_many_sites() {
    let mut onions = Onions::new();
    let sites = ["a.onion", "b.onion", "c.onion"].map(|host| Site::new(&onions, host, |_| {}));
    let plain = ["d.onion", "e.onion", "f.onion", "www.test"];
    let _plain = plain.map(|host| {
        let scene = page("direct", "");
        onions.serve(&format!("{host}:80"), scene.address);
        scene
    });
    let (_client, http) = onions.client(|_| {});
    for site in &sites {
        discovered(http, &site.host, &site.host);
    }
    for host in plain {
        for _ in 0..3 {
            direct(http, host, host);
        }
    }
    for site in &sites {
        let answer = get(http, &format!("http://{}/x", site.host), &site.host);
        assert_eq!(answer.body, b"gateway");
    }
    // Each site has its own circuits, and nothing else was contacted.
    let mut expected = BTreeSet::new();
    for site in &sites {
        expected.insert((format!("{}:80", site.host), site.host.clone()));
        expected.insert((site.gateway(), site.host.clone()));
    }
    expected.extend(plain.map(|host| (format!("{host}:80"), host.to_owned())));
    assert_eq!(*onions.seen(), expected);
}

#[test]
fn announcement_changes_only_its_isolation_key() {
    let mut onions = Onions::new();
    let site = Site::new(&onions, "a.onion", |_| {});
    let (_client, http) = onions.client(|_| {});
    discovered(http, "a.onion", "one");
    // The first request of another key goes directly, whatever the first key has learned.
    direct(http, "a.onion", "two");
    let by_two = |(target, user): &(String, String)| (user == "two").then(|| target.clone());
    let targets: Vec<_> = onions.seen().iter().filter_map(by_two).collect();
    assert_eq!(targets, ["a.onion:80"]);
    discovered(http, "a.onion", "two");
    let users: Vec<_> = onions
        .seen()
        .iter()
        .filter(|it| it.0 == site.gateway())
        .collect();
    assert_eq!(users.len(), 2, "{users:?}");
}

#[test]
fn announcement_of_anything_else_is_refused() {
    let mut onions = Onions::new();
    let good = Site::new(&onions, "good.onion", |_| {});
    let field = |value: &str| format!("Session-Gateway: {value}\r\n");
    let own = |host: &str| announce(host, good.port);
    let expired = |host: &str| own(host).replace("ma=600", "ma=0");
    let sites = [
        ("other-host.onion", "200 OK", own("evil.test")),
        ("other-onion.onion", "200 OK", own("good.onion")),
        ("below.onion", "200 OK", own("www.below.onion")),
        ("www.test", "200 OK", own("www.test")),
        ("expired.onion", "200 OK", expired("expired.onion")),
        ("old.onion", "200 OK", own("old.onion") + "Age: 600\r\n"),
        ("error.onion", "404 Not Found", own("error.onion")),
        ("failing.onion", "502 Bad Gateway", own("failing.onion")),
        (
            "redirect.onion",
            "302 Found",
            own("redirect.onion") + "Location: http://good.onion/\r\n",
        ),
        (
            "options.onion",
            "200 OK",
            field("\"h2+tcp://options.onion:1?exit=auto\""),
        ),
        ("text.onion", "200 OK", field("h2+tcp://text.onion:1")),
    ];
    let _scenes = sites.clone().map(|(host, status, fields)| {
        let scene = status_page(status, "direct", &fields);
        onions.serve(&format!("{host}:80"), scene.address);
        scene
    });
    let (_client, http) = onions.client(|_| {});
    let mut expected = BTreeSet::from(["good.onion:80".to_owned(), good.gateway()]);
    for (host, _, _) in &sites {
        for _ in 0..3 {
            assert_eq!(get(http, &format!("http://{host}/"), host).body, b"direct");
        }
        expected.insert(format!("{host}:80"));
    }
    discovered(http, "good.onion", "good.onion");
    assert_eq!(onions.targets(), expected);
}

#[test]
fn silent_gateway_delays_no_request() {
    let mut onions = Onions::new();
    let silent = Scene::new(|_, mut client| {
        client.is_closed();
    });
    let port = silent.address.port();
    let site = page("direct", &announce("a.onion", port));
    onions.serve("a.onion:80", site.address);
    onions.serve(&format!("a.onion:{port}"), silent.address);
    let (_client, http) = onions.client(|_| {});
    direct(http, "a.onion", "u");
    direct(http, "a.onion", "u");
    onions.wait_for(&format!("a.onion:{port}"));
    for _ in 0..5 {
        direct(http, "a.onion", "u");
    }
}

#[test]
fn unreachable_gateway_is_tried_once() {
    let mut onions = Onions::new();
    let site = page("direct", &announce("a.onion", 9980));
    onions.serve("a.onion:80", site.address);
    let (_client, http) = onions.client(|_| {});
    direct(http, "a.onion", "u");
    direct(http, "a.onion", "u");
    onions.wait_for("a.onion:9980");
    for _ in 0..20 {
        direct(http, "a.onion", "u");
    }
    // The gateway is left alone for 30 s.
    let again = onions
        .asked
        .try_iter()
        .find(|asked| asked.target == "a.onion:9980");
    assert!(again.is_none(), "{again:?}");
}

#[test]
fn lost_gateway_is_left_for_the_direct_way() {
    let mut onions = Onions::new();
    let mut site = Site::new(&onions, "a.onion", |_| {});
    let (_client, http) = onions.client(|_| {});
    discovered(http, "a.onion", "u");
    site.stop_gateway();
    onions.services.lock().unwrap().remove(&site.gateway());
    for _ in 0..5 {
        direct(http, "a.onion", "u");
    }
    assert_eq!(onions.targets().len(), 2);
}

#[test]
fn error_of_an_origin_keeps_its_gateway() {
    let onions = Onions::new();
    let behind = status_page("502 Bad Gateway", "gateway", "");
    let _site = Site::before(behind, &onions, "a.onion", |_| {});
    let (_client, http) = onions.client(|_| {});
    until("the gateway was not discovered", || {
        get(http, "http://a.onion/", "u").status != 200
    });
    for _ in 0..10 {
        let answer = get(http, "http://a.onion/", "u");
        assert_eq!((answer.status, &answer.body[..]), (502, &b"gateway"[..]));
    }
}

#[test]
fn cleared_gateway_is_left_for_the_direct_way() {
    let onions = Onions::new();
    let behind = page("gateway", "Session-Gateway: clear\r\n");
    let _site = Site::before(behind, &onions, "a.onion", |_| {});
    let (_client, http) = onions.client(|_| {});
    discovered(http, "a.onion", "u");
    // The site announces the gateway again, which is left alone for 30 s.
    for _ in 0..5 {
        direct(http, "a.onion", "u");
    }
}

#[test]
fn refusing_gateways_are_left_for_the_direct_way() {
    let mut onions = Onions::new();
    let token = std::env::temp_dir().join(format!("tandem-discovery-{}", std::process::id()));
    std::fs::write(&token, "0123456789abcdef").unwrap();
    let auth = format!("token-file={}", token.display());
    // The first gateway serves other hosts. The second one wants the token of a route.
    let wrong = Site::new(&onions, "wrong.onion", |options| {
        options.allow_host = vec!["other.onion".parse().unwrap()];
    });
    let closed = Site::new(&onions, "closed.onion", |options| {
        options.open = None;
        options.auth = vec![auth];
    });
    let routed = format!("routed.onion=h2+tcp://{}", closed.gateway());
    let (_client, http) = onions.client(|options| {
        let mut route: tandem::config::gateways::RouteOption = routed.parse().unwrap();
        route.token_file = Some(token.display().to_string());
        options.route = vec![route];
    });
    assert_eq!(get(http, "http://routed.onion/", "u").body, b"gateway");
    for site in [&wrong, &closed] {
        // The client closes the connection after it has noted the end of the trial.
        let way = Way::to(site.address());
        onions.serve(&site.gateway(), way.address);
        // A gateway that serves other hosts admits the session, and refuses the third request.
        until("the gateway was not left", || {
            direct(http, &site.host, &site.host);
            way.has_ended()
        });
        for _ in 0..50 {
            direct(http, &site.host, &site.host);
        }
        assert_eq!(way.connections(), 1, "{}", site.host);
        assert!(onions.seen().contains(&(site.gateway(), site.host.clone())));
    }
    std::fs::remove_file(&token).unwrap();
}

#[test]
fn route_and_switch_overrule_announcements() {
    let mut onions = Onions::new();
    let site = Site::new(&onions, "a.onion", |_| {});
    let other = Site::new(&onions, "b.onion", |options| {
        options.allow_host = vec!["*.onion".parse().unwrap()];
    });
    let (_client, http) = onions.client(|options| {
        options.route = vec![
            format!("a.onion=h2+tcp://{}", other.gateway())
                .parse()
                .unwrap(),
        ];
    });
    for _ in 0..5 {
        assert_eq!(get(http, "http://a.onion/", "u").body, b"gateway");
    }
    assert_eq!(onions.targets(), BTreeSet::from([other.gateway()]));
    let (_off, http) = onions.client(|options| options.discover = Some(false));
    for _ in 0..5 {
        direct(http, "a.onion", "v");
    }
    assert!(!onions.targets().contains(&site.gateway()));
}

#[test]
fn open_reverse_gateway_announces_itself() {
    let mut onions = Onions::new();
    let behind = page("gateway", "");
    let mut options = gateway_of(&behind);
    options.listen.push(endpoint("http://127.0.0.2:0"));
    let listeners = options.listen.clone();
    let (gateway, sessions) = start_gateway(options);
    let plain = gateway.address(&listeners[1]).unwrap();
    let port = sessions.port();
    onions.serve("a.onion:80", plain);
    onions.serve(&format!("a.onion:{port}"), sessions);
    let expected = format!("\"h2+tcp://a.onion:{port}\";ma=86400");
    let mut visitor = Client::to(plain);
    visitor.send("GET / HTTP/1.1\r\nHost: a.onion\r\n\r\n");
    assert_eq!(
        visitor.answer("GET").field("session-gateway"),
        Some(&expected[..])
    );
    let well_known = "/.well-known/session-gateway HTTP/1.1\r\nHost: a.onion\r\n\r\n";
    visitor.send(format!("GET {well_known}"));
    let document = visitor.answer("GET");
    assert_eq!(document.body, format!("{expected}\n").into_bytes());
    visitor.send(format!("HEAD {well_known}"));
    let length = visitor
        .answer("HEAD")
        .field("content-length")
        .map(str::to_owned);
    assert_eq!(length, Some(document.body.len().to_string()));
    // Outside onion services, plain HTTP proves nothing.
    visitor.send(format!(
        "GET / HTTP/1.1\r\nHost: {}\r\n\r\n",
        behind.address
    ));
    assert_eq!(visitor.answer("GET").field("session-gateway"), None);
    // A client finds the gateway. Responses to it have no field.
    let (_client, http) = onions.client(|_| {});
    until("the gateway was not discovered", || {
        let answer = get(http, "http://a.onion/", "u");
        answer.field("session-gateway").is_none()
    });
    let targets = ["a.onion:80".to_owned(), format!("a.onion:{port}")];
    assert_eq!(onions.targets(), BTreeSet::from(targets));
}

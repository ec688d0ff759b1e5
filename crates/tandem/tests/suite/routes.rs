//! Tests of a client with several gateways: the host of a request chooses among them, and the
//! routes share nothing.

use tandem::config::client::Fallback;
use tandem::config::gateways::RouteOption;
use tandem::config::{ClientOptions, GatewayOptions};
use tandem::runtime::Running;

use crate::harness::{
    Client, Scene, client_options, gateway_options, request, start_client, start_gateway,
};
use crate::isolation::socks_proxy;

/// Starts a reverse gateway whose origin answers with `body`.
fn gateway_of(body: &str, change: impl FnOnce(&mut GatewayOptions)) -> (Running, Scene, String) {
    let length = body.len();
    let origin = Scene::answering(format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}"
    ));
    let mut options = gateway_options();
    let mode = format!("reverse=http://{}", origin.address);
    options.mode = Some(mode.parse().unwrap());
    options.allow_host = vec!["*".parse().unwrap()];
    change(&mut options);
    let (running, address) = start_gateway(options);
    (running, origin, format!("h2+tcp://{address}"))
}

pub(crate) fn route(hosts: &str, gateway: &str) -> RouteOption {
    format!("{hosts}={gateway}").parse().unwrap()
}

/// Returns the options of a client with routes and no default gateway.
fn routes_only(routes: Vec<RouteOption>) -> ClientOptions {
    ClientOptions {
        gateway: Vec::new(),
        route: routes,
        ..client_options("h2+tcp://127.0.0.1:1")
    }
}

#[test]
fn host_of_a_request_chooses_its_gateway() {
    let (_a, _origin_a, first) = gateway_of("first", |_| {});
    let (_b, _origin_b, second) = gateway_of("second", |_| {});
    let (_c, _origin_c, third) = gateway_of("third", |_| {});
    let mut options = client_options(&first);
    options.route = vec![
        route("*.site.test,other.test", &second),
        route("www.site.test", &third),
    ];
    let (_client, http, socks) = start_client(options);
    let mut client = Client::to(http);
    for (host, body) in [
        ("unknown.test", "first"),
        ("a.site.test", "second"),
        ("other.test:80", "second"),
        ("WWW.site.test", "third"),
        ("site.test", "first"),
    ] {
        let answer = client.get(&format!("http://{host}/"));
        assert_eq!(answer.body, body.as_bytes(), "{host}");
    }
    let mut client = Client::to(socks);
    assert_eq!(client.socks("a.site.test:80", Some(("u", "p"))), 0);
    client.send("GET / HTTP/1.1\r\nHost: a.site.test\r\n\r\n");
    assert_eq!(client.answer("GET").body, b"second");
}

#[test]
fn access_token_goes_to_its_own_gateway_only() {
    let folder = std::env::temp_dir().join(format!("tandem-routes-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let token = |name: &str| {
        let file = folder.join(name);
        std::fs::write(&file, format!("{name}-0123456789abcdef")).unwrap();
        file.display().to_string()
    };
    let (one, two) = (token("one"), token("two"));
    let protect = |file: &str| {
        let auth = format!("token-file={file}").parse().unwrap();
        move |options: &mut GatewayOptions| {
            options.open = None;
            options.auth = vec![auth];
        }
    };
    let (_a, _origin_a, first) = gateway_of("first", protect(&one));
    let (_b, _origin_b, second) = gateway_of("second", protect(&two));
    let (_c, _origin_c, third) = gateway_of("third", protect(&one));
    let mut options = client_options(&first);
    options.token_file = Some(one);
    let mut with_token = route("two.test", &second);
    with_token.token_file = Some(two);
    options.route = vec![with_token, route("three.test", &third)];
    let (_client, http, _) = start_client(options);
    let mut client = Client::to(http);
    assert_eq!(client.get("http://one.test/").body, b"first");
    assert_eq!(client.get("http://two.test/").body, b"second");
    assert_eq!(client.get("http://three.test/").status, 407);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn routed_gateway_is_contacted_only_for_its_hosts() {
    let (_a, _origin, gateway) = gateway_of("ok", |_| {});
    let address = gateway.trim_start_matches("h2+tcp://").parse().unwrap();
    let (proxy, asked) = socks_proxy(address);
    let mut options = client_options("h2+tcp://default.test:9980");
    options.via = Some(format!("socks5://{proxy}").parse().unwrap());
    options.route = vec![route("routed.test", "h2+tcp://second.test:9980")];
    let (_client, http, _) = start_client(options);
    // The client opens the session of the default gateway at its start.
    assert_eq!(asked.recv().unwrap().target, "default.test:9980");
    let mut client = Client::to(http);
    let keyed = |url: &str| request("GET", url, "Proxy-Authorization: Basic dXNlcjpwYXNz\r\n");
    for (url, target) in [
        ("http://routed.test/", "second.test:9980"),
        ("http://other.test/", "default.test:9980"),
    ] {
        client.send(keyed(url));
        assert_eq!(client.answer("GET").body, b"ok");
        let asked = asked.recv().unwrap();
        assert_eq!(asked.target, target);
        let credentials = asked.credentials.expect("a key");
        assert_eq!(
            (credentials.0.as_str(), credentials.1.as_str()),
            ("user", "pass")
        );
    }
    // Both sessions stay open, so further requests open no other.
    for url in ["http://routed.test/", "http://other.test/"] {
        client.send(keyed(url));
        assert_eq!(client.answer("GET").body, b"ok");
    }
    assert!(asked.try_recv().is_err());
}

#[test]
fn host_without_a_route_fails_with_the_remedy() {
    let (_a, _origin, gateway) = gateway_of("ok", |_| {});
    let (_client, http, socks) = start_client(routes_only(vec![route("routed.test", &gateway)]));
    assert_eq!(Client::to(http).get("http://routed.test/").body, b"ok");
    let answer = Client::to(http).get("http://other.test/");
    assert_eq!(answer.status, 502);
    let page = String::from_utf8(answer.body).unwrap();
    assert!(
        page.contains("add --route HOSTS=URL, or --gateway"),
        "{page}"
    );
    assert!(!page.contains("other.test"), "{page}");
    let mut tunnel = Client::to(http);
    tunnel.send("CONNECT other.test:443 HTTP/1.1\r\nHost: other.test:443\r\n\r\n");
    assert_eq!(tunnel.answer("GET").status, 502);
    for port in [443, 8443] {
        let reply = Client::to(socks).socks(&format!("other.test:{port}"), None);
        assert_eq!(reply, 4, "host unreachable, port {port}");
    }
}

#[test]
fn other_hosts_go_through_the_proxy_if_permitted() {
    let origin = Scene::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let (proxy, asked) = socks_proxy(origin.address);
    let mut options = routes_only(vec![route("routed.test", "h2+tcp://gw.test:9980")]);
    options.via = Some(format!("socks5://{proxy}").parse().unwrap());
    options.fallback = Some(Fallback::Via);
    let (_client, http, socks) = start_client(options);
    assert_eq!(Client::to(http).get("http://other.test/").body, b"ok");
    assert_eq!(asked.recv().unwrap().target, "other.test:80");
    let mut client = Client::to(socks);
    assert_eq!(client.socks("tls.test:443", Some(("u", "p"))), 0);
    let asked = asked.recv().unwrap();
    assert_eq!(asked.target, "tls.test:443");
    assert_eq!(asked.credentials.expect("a key").0, "u");
}

#[test]
fn default_gateway_gets_no_other_onion_requests() {
    let (_a, _origin, gateway) = gateway_of("ok", |_| {});
    let address = gateway.trim_start_matches("h2+tcp://").parse().unwrap();
    let (proxy, asked) = socks_proxy(address);
    let mut options = client_options("h2+tcp://own.onion:9980");
    options.via = Some(format!("socks5://{proxy}").parse().unwrap());
    options.route = vec![route("routed.onion", "h2+tcp://routed.onion:9980")];
    let (_client, http, socks) = start_client(options);
    assert_eq!(asked.recv().unwrap().target, "own.onion:9980");
    for host in ["own.onion", "www.OWN.onion.", "site.test", "routed.onion"] {
        let answer = Client::to(http).get(&format!("http://{host}/"));
        assert_eq!(answer.body, b"ok", "{host}");
    }
    assert_eq!(asked.recv().unwrap().target, "routed.onion:9980");
    let answer = Client::to(http).get("http://other.onion/private?q=1");
    assert_eq!(answer.status, 502);
    let page = String::from_utf8(answer.body).unwrap();
    assert!(page.contains("add --fallback via"), "{page}");
    let mut tunnel = Client::to(http);
    tunnel.send("CONNECT other.onion:443 HTTP/1.1\r\nHost: other.onion:443\r\n\r\n");
    assert_eq!(tunnel.answer("GET").status, 502);
    for port in [443, 8443] {
        let reply = Client::to(socks).socks(&format!("other.onion:{port}"), None);
        assert_eq!(reply, 4, "host unreachable, port {port}");
    }
    assert!(asked.try_recv().is_err(), "nothing was connected to");
}

#[test]
fn other_onions_go_through_the_proxy_if_permitted() {
    let origin = Scene::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let (proxy, asked) = socks_proxy(origin.address);
    let mut options = client_options("h2+tcp://own.onion:9980");
    options.via = Some(format!("socks5://{proxy}").parse().unwrap());
    options.fallback = Some(Fallback::Via);
    options.preconnect = Some(false);
    let (_client, http, socks) = start_client(options);
    assert_eq!(Client::to(http).get("http://other.onion/").body, b"ok");
    assert_eq!(asked.recv().unwrap().target, "other.onion:80");
    let mut client = Client::to(socks);
    assert_eq!(client.socks("other.onion:443", Some(("u", "p"))), 0);
    let asked = asked.recv().unwrap();
    assert_eq!(asked.target, "other.onion:443");
    assert_eq!(asked.credentials.expect("a key").0, "u");
}

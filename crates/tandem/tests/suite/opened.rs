//! Tests of HTTPS that the client opens: listed hosts are served by certificates of the local
//! authority, and every other connection reaches the origin untouched.
//!
//! The only host is `localhost`, which needs no resolver. Ports distinguish listed origins.

mod at_gateway;
mod contexts;
mod discovered;
mod early;
mod public;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tandem::config::{ClientOptions, GatewayOptions};
use tandem::runtime::Running;
use tandem::transport::tls::authority::certificate_file;

use crate::browser::{Browser, TlsStream, get, ok, websocket_scene};
use crate::harness::{
    Client, PATIENCE, Pair, Scene, client_options, endpoint, gateway_options, start_client,
    start_gateway,
};
use crate::isolation::socks_proxy;
use public::{FAULTS, Public};

const BOTH: &[&[u8]] = &[b"h2", b"http/1.1"];
const HTTP1: &[&[u8]] = &[b"http/1.1"];

/// An origin for HTTPS: a gateway in reverse mode before a scene.
struct Site {
    address: SocketAddr,
    _running: Running,
}

impl Site {
    fn new(session: &str, identity: &str, scene: &Scene) -> Self {
        Self::with(session, identity, scene, |_| {})
    }

    fn with(
        session: &str,
        identity: &str,
        scene: &Scene,
        change: impl FnOnce(&mut GatewayOptions),
    ) -> Self {
        let mut options = gateway_options();
        options.listen = vec![endpoint(&format!("{session}+tls://127.0.0.1:0?{identity}"))];
        options.mode = Some(format!("reverse=http://{}", scene.address).parse().unwrap());
        options.allow_host = vec!["*".parse().unwrap()];
        change(&mut options);
        let (running, address) = start_gateway(options);
        Self {
            address,
            _running: running,
        }
    }

    fn authority(&self) -> String {
        format!("localhost:{}", self.address.port())
    }

    fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.authority())
    }
}

/// Lists the sites' ports in the options of a client.
fn list(public: &Public, sites: &[&Site], client: &mut ClientOptions) {
    client.open_https = ["localhost", "site.test"]
        .map(|host| host.parse().unwrap())
        .into();
    client.open_https_port = sites.iter().map(|site| site.address.port()).collect();
    client.open_https_ca = Some(public.path("root.pem"));
    client.authority = Some(public.authority());
}

/// A pair whose client opens HTTPS of these sites.
fn opening(public: &Public, sites: &[&Site]) -> Pair {
    Pair::with("h2", |_| {}, |client| list(public, sites, client))
}

/// The authorities that a TLS client trusts.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trust {
    Local,
    Public,
    Both,
}

/// A TLS client inside a tunnel.
struct TlsClient {
    trust: Trust,
    name: &'static str,
    alpn: &'static [&'static [u8]],
    sni: bool,
}

impl TlsClient {
    const fn trusting(trust: Trust) -> Self {
        Self {
            trust,
            name: "localhost",
            alpn: BOTH,
            sni: true,
        }
    }

    fn config(&self, public: &Public) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        if self.trust != Trust::Public {
            let file = certificate_file(&public.authority());
            roots
                .add(CertificateDer::from_pem_file(file).unwrap())
                .unwrap();
        }
        if self.trust != Trust::Local {
            let file = public.path("root.pem");
            roots
                .add(CertificateDer::from_pem_file(file).unwrap())
                .unwrap();
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = self.alpn.iter().map(|name| name.to_vec()).collect();
        config.enable_sni = self.sni;
        Arc::new(config)
    }

    /// Runs the handshake in a tunnel, and returns the stream or the error.
    fn handshake(&self, public: &Public, tunnel: TcpStream) -> Result<TlsStream, String> {
        let name = ServerName::try_from(self.name).unwrap();
        let client = ClientConnection::new(self.config(public), name).unwrap();
        let mut stream = StreamOwned::new(client, tunnel);
        while stream.conn.is_handshaking() {
            if let Err(error) = stream.conn.complete_io(&mut stream.sock) {
                // The alert leaves with the next write.
                let _ = stream.conn.write_tls(&mut stream.sock);
                // The rest of the text is the time of the handshake.
                let text = error.to_string();
                let verdict = text.split(": verification time").next().unwrap_or_default();
                return Err(verdict.to_owned());
            }
        }
        Ok(stream)
    }

    fn connect(&self, public: &Public, pair: &Pair, authority: &str) -> Result<TlsStream, String> {
        self.handshake(public, tunnel(pair.http, authority, ""))
    }

    /// Returns the issuer's name in the certificate that the server shows, or the error.
    fn verdict(&self, public: &Public, pair: &Pair, authority: &str) -> Result<String, String> {
        self.connect(public, pair, authority)
            .map(|stream| shown(&stream))
    }
}

/// Opens a tunnel through an HTTP listener.
fn tunnel(proxy: SocketAddr, authority: &str, fields: &str) -> TcpStream {
    let mut client = Client::to(proxy);
    client.send(format!(
        "CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n{fields}\r\n"
    ));
    assert_eq!(client.head().unwrap().status, 200);
    client.stream.into_inner()
}

const BY_LOCAL: &str = "Tandem local authority";
const BY_PUBLIC: &str = "public root";

/// Returns the authority that issued the server's certificate.
fn shown(stream: &TlsStream) -> String {
    let chain = stream.conn.peer_certificates().unwrap();
    let text = String::from_utf8_lossy(&chain[0]).into_owned();
    let names = [BY_LOCAL, BY_PUBLIC];
    let found = names.iter().find(|name| text.contains(**name));
    (*found.unwrap()).to_owned()
}

/// A scene that answers with the request's line and the body's length.
fn telling() -> Scene {
    Scene::new(|_, mut client| {
        while let Some(asked) = client.request() {
            let length = asked
                .field("content-length")
                .map_or(0, |n| n.parse().unwrap());
            let body = client.read_exact(length);
            client.send(ok(&format!("{} {}", asked.line, body.len())));
        }
    })
}

fn get1(stream: &mut TlsStream, path: &str, authority: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn listed_host_is_opened_over_h2() {
    let (public, scene) = (Public::new("h2"), telling());
    let site = Site::new("h2", &public.identity("good"), &scene);
    let pair = opening(&public, &[&site]);
    let client = TlsClient::trusting(Trust::Local);
    let stream = client.connect(&public, &pair, &site.authority()).unwrap();
    assert_eq!(stream.conn.alpn_protocol(), Some(&b"h2"[..]));
    assert_eq!(shown(&stream), BY_LOCAL);
    let mut browser = Browser::over(stream);
    for path in ["/a", "/b"] {
        let received = browser.get(&site.url(path));
        assert_eq!(received.status(), 200);
        assert_eq!(received.body, format!("GET {path} HTTP/1.1 0").as_bytes());
    }
    let other = browser.get("https://site.test/");
    assert_eq!(other.status(), 421, "another host needs another connection");
    let plain = browser.get(&site.url("/").replace("https", "http"));
    assert_eq!(plain.status(), 421, "plain HTTP is another origin");
}

#[test]
fn listed_host_is_opened_over_http1() {
    let (public, scene) = (Public::new("http1"), telling());
    let site = Site::new("http", &public.identity("good"), &scene);
    let pair = opening(&public, &[&site]);
    let client = TlsClient::trusting(Trust::Local);
    let authority = site.authority();
    let mut stream = client.connect(&public, &pair, &authority).unwrap();
    assert_eq!(stream.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
    let answer = get1(&mut stream, "/a", &authority);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.ends_with("GET /a HTTP/1.1 0"), "{answer}");
    let mut stream = client.connect(&public, &pair, &authority).unwrap();
    let answer = get1(&mut stream, "/", "site.test");
    assert!(answer.starts_with("HTTP/1.1 421"), "{answer}");
}

/// The client opens only hosts that the user has listed, for browsers of the HTTP listeners.
#[test]
fn other_connections_show_the_origins_certificate() {
    let (public, scene) = (Public::new("others"), telling());
    let identity = public.identity("good");
    let listed = Site::new("http", &identity, &scene);
    let unlisted = Site::new("http", &identity, &scene);
    let pair = opening(&public, &[&listed]);
    let plain = TlsClient::trusting(Trust::Both);
    let verdict = |client: &TlsClient, authority: &str| client.verdict(&public, &pair, authority);
    assert_eq!(
        verdict(&plain, &listed.authority()).as_deref(),
        Ok(BY_LOCAL)
    );
    let by_public = Ok(BY_PUBLIC.to_owned());
    assert_eq!(verdict(&plain, &unlisted.authority()), by_public);
    let by_address = listed.address.to_string();
    assert_eq!(verdict(&plain, &by_address), by_public, "by its address");
    let without_name = TlsClient {
        sni: false,
        ..plain
    };
    assert_eq!(verdict(&without_name, &listed.authority()), by_public);
    let plain = TlsClient::trusting(Trust::Both);
    let without_protocol = TlsClient { alpn: &[], ..plain };
    assert_eq!(verdict(&without_protocol, &listed.authority()), by_public);
    let mut socks = Client::to(pair.socks);
    assert_eq!(socks.socks(&listed.authority(), None), 0);
    let plain = TlsClient::trusting(Trust::Both);
    let stream = plain.handshake(&public, socks.stream.into_inner()).unwrap();
    assert_eq!(shown(&stream), BY_PUBLIC, "by SOCKS");
}

#[test]
fn expired_authority_opens_nothing() {
    let (public, scene) = (Public::new("authority"), telling());
    public.expire_authority();
    let site = Site::new("http", &public.identity("good"), &scene);
    let pair = opening(&public, &[&site]);
    let client = TlsClient::trusting(Trust::Both);
    let verdict = client.verdict(&public, &pair, &site.authority());
    assert_eq!(verdict.as_deref(), Ok(BY_PUBLIC));
}

/// A ClientHello for another host than that of the tunnel goes to the origin as it is.
#[test]
fn another_name_in_the_handshake_is_not_opened() {
    let (public, scene) = (Public::new("names"), telling());
    let site = Site::new("http", &public.identity("wrong host"), &scene);
    let pair = opening(&public, &[&site]);
    let client = TlsClient {
        name: "other.test",
        ..TlsClient::trusting(Trust::Both)
    };
    let verdict = client.verdict(&public, &pair, &site.authority());
    assert_eq!(verdict.as_deref(), Ok(BY_PUBLIC));
}

#[test]
fn bytes_without_tls_are_not_opened() {
    let public = Public::new("bytes");
    let scene = Scene::new(|_, mut client| {
        assert_eq!(client.read_exact(9), b"SSH-2.0-x");
        client.send("SSH-2.0-y");
    });
    let site = Site::new("http", &public.identity("good"), &scene);
    let port = scene.address.port();
    let pair = Pair::with(
        "h2",
        |_| {},
        |client| {
            list(&public, &[&site], client);
            client.open_https_port.push(port);
        },
    );
    let mut stream = tunnel(pair.http, &format!("localhost:{port}"), "");
    stream.write_all(b"SSH-2.0-x").unwrap();
    let mut answer = [0; 9];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"SSH-2.0-y");
}

/// Checks that the browser gets the origin's certificate through the pair, if it is broken: the
/// client behind the pair gets the same verdict with and without opening, twice.
fn assert_verdicts_are_kept(name: &str, open: impl FnOnce(&Public, &[&Site]) -> Pair) {
    let (public, scene) = (Public::new(name), telling());
    let sites = FAULTS.map(|fault| Site::new("h2", &public.identity(fault), &scene));
    let opened = open(&public, &sites.each_ref());
    let unopened = Pair::start();
    let client = TlsClient::trusting(Trust::Both);
    for (fault, site) in FAULTS.iter().zip(&sites) {
        let authority = site.authority();
        let expected = client.verdict(&public, &unopened, &authority);
        assert!(expected.is_err(), "{fault}: {expected:?}");
        for _ in 0..2 {
            let verdict = client.verdict(&public, &opened, &authority);
            assert_eq!(verdict, expected, "{fault}");
        }
    }
}

#[test]
fn broken_certificates_keep_their_verdict() {
    assert_verdicts_are_kept("broken", opening);
}

/// Checks that two sites get the browser's own connection through the pair: each asks for a
/// certificate that only the browser can choose.
fn assert_choice_is_left(name: &str, open: impl FnOnce(&Public, &[&Site]) -> Pair) {
    let (public, scene) = (Public::new(name), telling());
    let identity = public.identity("good");
    let authority = format!("client-ca={}", public.path("root.pem"));
    let required = Site::with("http", &identity, &scene, |gateway| {
        gateway.auth = vec![authority.clone()];
        gateway.open = None;
    });
    let token = format!("token-file={}", public.path("token"));
    std::fs::write(public.path("token"), "a-token-of-some-length\n").unwrap();
    let optional = Site::with("http", &identity, &scene, |gateway| {
        gateway.auth = vec![authority.clone(), token.clone()];
        gateway.open = None;
    });
    let pair = open(&public, &[&required, &optional]);
    let client = TlsClient::trusting(Trust::Both);
    for site in [&required, &optional] {
        for _ in 0..2 {
            let verdict = client.verdict(&public, &pair, &site.authority());
            assert_eq!(verdict.as_deref(), Ok(BY_PUBLIC));
        }
    }
}

#[test]
fn client_certificates_are_left_to_the_browser() {
    assert_choice_is_left("client-certificate", opening);
}

/// A program that does not trust the local authority fails once. Later it sees the origin's own
/// certificate.
#[test]
fn refused_authority_is_not_shown_again() {
    let (public, scene) = (Public::new("pinned"), telling());
    let site = Site::new("h2", &public.identity("good"), &scene);
    let pair = opening(&public, &[&site]);
    let client = TlsClient::trusting(Trust::Public);
    let authority = site.authority();
    let first = client.verdict(&public, &pair, &authority);
    assert!(first.is_err_and(|error| error.contains("UnknownIssuer")));
    // The alert arrives before the next connection's first bytes, or that connection fails too.
    let second = (0..20).find_map(|_| client.verdict(&public, &pair, &authority).ok());
    assert_eq!(second.as_deref(), Some(BY_PUBLIC));
    let trusting = TlsClient::trusting(Trust::Both);
    let verdict = trusting.verdict(&public, &pair, &authority);
    assert_eq!(verdict.as_deref(), Ok(BY_PUBLIC));
}

/// The browser offers no protocol that the site speaks.
#[test]
fn missing_protocol_is_left_to_the_browser() {
    let (public, scene) = (Public::new("alpn"), telling());
    let site = Site::new("http", &public.identity("good"), &scene);
    let (opened, unopened) = (opening(&public, &[&site]), Pair::start());
    let client = TlsClient {
        alpn: &[b"h2"],
        ..TlsClient::trusting(Trust::Both)
    };
    let authority = site.authority();
    let expected = client.verdict(&public, &unopened, &authority);
    assert_eq!(client.verdict(&public, &opened, &authority), expected);
}

#[test]
fn opened_host_carries_large_bodies() {
    const SIZE: usize = 5 << 20;
    let public = Public::new("large");
    let scene = Scene::new(|_, mut client| {
        let asked = client.request().unwrap();
        assert!(asked.line.starts_with("POST /echo"));
        let body = client.read_exact(SIZE);
        client.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n"));
        client.send(body);
    });
    let site = Site::new("h2", &public.identity("good"), &scene);
    let pair = opening(&public, &[&site]);
    let client = TlsClient {
        alpn: HTTP1,
        ..TlsClient::trusting(Trust::Local)
    };
    // HTTP/1.1 would reach an origin of HTTP/2 only as an unopened connection.
    let authority = site.authority();
    let refused = client.verdict(&public, &pair, &authority);
    assert!(refused.is_err(), "{refused:?}");
    let site = Site::new("http", &public.identity("good"), &scene);
    let pair = opening(&public, &[&site]);
    let mut stream = client.connect(&public, &pair, &site.authority()).unwrap();
    let authority = site.authority();
    let head = format!(
        "POST /echo HTTP/1.1\r\nHost: {authority}\r\nContent-Length: {SIZE}\r\nConnection: \
         close\r\n\r\n"
    );
    let body: Vec<u8> = (0..SIZE).map(|n| (n % 251) as u8).collect();
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&body).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.starts_with(b"HTTP/1.1 200"));
    assert!(answer.ends_with(&body), "{} bytes", answer.len());
}

/// Firefox sends a WebSocket's cookies only over HTTP/1.1, if it is behind a proxy.
#[test]
fn opened_host_takes_no_websockets_over_h2() {
    let (public, scene) = (Public::new("no-websocket"), telling());
    let site = Site::new("h2", &public.identity("good"), &scene);
    let pair = opening(&public, &[&site]);
    let client = TlsClient::trusting(Trust::Local);
    let stream = client.connect(&public, &pair, &site.authority()).unwrap();
    assert!(!Browser::over(stream).takes_extended_connect());
}

/// Browsers open a WebSocket on a connection for HTTP/1.1.
#[test]
fn opened_host_carries_websockets() {
    let (public, scene) = (Public::new("websocket"), websocket_scene());
    let site = Site::new("http", &public.identity("good"), &scene);
    let pair = opening(&public, &[&site]);
    exchange_over_websocket(&public, &pair, &site);
}

/// Opens a WebSocket with the scene of [`websocket_scene`], and sends bytes in both directions.
fn exchange_over_websocket(public: &Public, pair: &Pair, site: &Site) {
    let client = TlsClient {
        alpn: HTTP1,
        ..TlsClient::trusting(Trust::Local)
    };
    let mut stream = client.connect(public, pair, &site.authority()).unwrap();
    let request = format!(
        "GET /chat HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
        site.authority()
    );
    stream.write_all(request.as_bytes()).unwrap();
    read_until(&mut stream, b"first");
    stream.write_all(b"abc").unwrap();
    read_until(&mut stream, b"xyz");
}

fn read_until(stream: &mut TlsStream, end: &[u8]) {
    let mut received = Vec::new();
    let mut byte = [0];
    while !received.ends_with(end) {
        stream.read_exact(&mut byte).unwrap();
        received.push(byte[0]);
    }
}

/// The tunnels of opened connections have the isolation key of the browser's tunnels.
#[test]
fn opened_host_keeps_isolation_keys_apart() {
    let (public, scene) = (Public::new("isolation"), telling());
    let site = Site::new("http", &public.identity("good"), &scene);
    let (_gateway, gateway) = start_gateway(gateway_options());
    assert_keys_apart(
        &public,
        &site,
        gateway,
        "h2+tcp://gw.example:80",
        |client| {
            list(&public, &[&site], client);
        },
    );
}

/// Opens a site with two isolation keys through a proxy, and checks that each has one session.
fn assert_keys_apart(
    public: &Public,
    site: &Site,
    gateway: SocketAddr,
    url: &str,
    change: impl FnOnce(&mut ClientOptions),
) {
    let (socks, told) = socks_proxy(gateway);
    let mut options = client_options(url);
    options.via = Some(format!("socks5://{socks}").parse().unwrap());
    options.preconnect = Some(false);
    change(&mut options);
    let (_client, http, _) = start_client(options);
    let client = TlsClient {
        alpn: HTTP1,
        ..TlsClient::trusting(Trust::Local)
    };
    let authority = site.authority();
    for (key, user) in [("YTox", "a"), ("Yjoy", "b")] {
        let fields = format!("Proxy-Authorization: Basic {key}\r\n");
        let tunnel = tunnel(http, &authority, &fields);
        let mut stream = client.handshake(public, tunnel).unwrap();
        let answer = get1(&mut stream, "/", &authority);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let asked = told.recv_timeout(PATIENCE).unwrap();
        assert_eq!(asked.target, endpoint(url).authority());
        assert_eq!(asked.credentials.unwrap().0, user);
    }
    assert!(told.try_recv().is_err(), "each key has one session");
}

/// A response that has begun gets no other page.
#[test]
fn broken_response_resets_instead_of_a_page() {
    let public = Public::new("reset");
    let scene = Scene::new(|_, mut client| {
        client.request();
        client.send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort");
    });
    let identity = public.identity("good");
    let h2 = Site::new("h2", &identity, &scene);
    let http1 = Site::new("http", &identity, &scene);
    let pair = opening(&public, &[&h2, &http1]);
    let client = TlsClient::trusting(Trust::Local);
    let stream = client.connect(&public, &pair, &h2.authority()).unwrap();
    let received = Browser::over(stream).get(&h2.url("/")).reset;
    assert!(received.is_some());
    let authority = http1.authority();
    let stream = client.connect(&public, &pair, &authority).unwrap();
    let mut stream = stream;
    let answer = get1(&mut stream, "/", &authority);
    assert!(!answer.contains("<h1>"), "{answer}");
    drop((h2, http1));
}

/// The reason is the answer to the CONNECT, and not a reset.
#[test]
fn unreachable_gateway_is_told_to_the_browser() {
    let (public, scene) = (Public::new("no-gateway"), telling());
    let site = Site::new("http", &public.identity("good"), &scene);
    let nowhere = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = nowhere.local_addr().unwrap();
    drop(nowhere);
    let mut options = client_options(&format!("h2+tcp://{address}"));
    list(&public, &[&site], &mut options);
    let (_running, http, _) = start_client(options);
    let mut client = Client::to(http);
    let authority = site.authority();
    client.send(format!(
        "CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n"
    ));
    let answer = client.head().unwrap();
    assert_eq!(answer.status, 502);
    assert!(answer.field("proxy-status").unwrap().contains("refused"));
}

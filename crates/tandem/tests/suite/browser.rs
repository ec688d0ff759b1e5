//! Tests of the client's TLS listener: HTTP/2 between a browser and the client, with a certificate
//! of the local authority.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Barrier};
use std::time::{Instant, SystemTime};

use bytes::{Buf, Bytes};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConnection, RootCertStore, StreamOwned};
use tandem::config::{ClientOptions, GatewayOptions};
use tandem::endpoint::Usage;
use tandem::runtime::Running;
use tandem::transport::tls::authority;
use tandem_http::h2::Connection;
use tandem_http::{
    ByteMux, Event, Mux, MuxConfig, Priority, Reason, RequestHead, ResponseHead, Role, Scheme,
    SendBuf, StreamId,
};

use crate::harness::{
    Client, PATIENCE, Pair, Scene, block_on, client_options, endpoint, gateway_options, request,
    start_gateway,
};
use crate::isolation::socks_proxy;

/// A pair whose client has a TLS listener, and the directory of its authority.
struct TlsPair {
    tls: SocketAddr,
    directory: PathBuf,
    /// Stops both proxies when it is dropped; its HTTP listener is the client's.
    pair: Pair,
}

impl TlsPair {
    fn start(name: &str) -> Self {
        Self::with(name, |_| {}, |_| {})
    }

    fn with(
        name: &str,
        gateway: impl FnOnce(&mut GatewayOptions),
        client: impl FnOnce(&mut ClientOptions),
    ) -> Self {
        let mut options = gateway_options();
        gateway(&mut options);
        let (gateway_running, gateway) = start_gateway(options);
        let mut options = client_options(&format!("h2+tcp://{gateway}"));
        client(&mut options);
        let (client_running, tls, http, directory) = start_client(name, options);
        Self {
            tls,
            directory,
            pair: Pair::of(client_running, gateway_running, http),
        }
    }

    fn browser(&self) -> Browser {
        Browser::connect(self.tls, &self.tls_stream(&[b"h2"]))
    }

    /// Creates the configuration of a TLS client that trusts the authority.
    fn tls_stream(&self, alpn: &[&[u8]]) -> Arc<rustls::ClientConfig> {
        let mut roots = RootCertStore::empty();
        let file = authority::certificate_file(&self.directory);
        roots
            .add(CertificateDer::from_pem_file(file).unwrap())
            .unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        Arc::new(config)
    }
}

impl Drop for TlsPair {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Starts a client with a TLS and an HTTP listener, and returns their addresses in this order.
fn start_client(
    name: &str,
    mut options: ClientOptions,
) -> (Running, SocketAddr, SocketAddr, PathBuf) {
    let directory = std::env::temp_dir().join(format!("tandem-test-{name}-{}", std::process::id()));
    authority::create(&directory, &[], SystemTime::now()).unwrap();
    // Two listeners on port 0 need different addresses.
    let tls = Usage::ClientListener.parse("h2+tls://127.0.0.1:0").unwrap();
    let http = endpoint("http://127.0.0.2:0");
    options.listen = vec![tls.clone(), http.clone()];
    options.authority = Some(directory.clone());
    let running = block_on(Running::start(Arc::new(options.typed().unwrap()))).unwrap();
    let address = |of| running.address(of).unwrap();
    let (tls, http) = (address(&tls), address(&http));
    (running, tls, http, directory)
}

pub(crate) type TlsStream = StreamOwned<ClientConnection, TcpStream>;

fn connect_tls(address: SocketAddr, config: &Arc<rustls::ClientConfig>) -> TlsStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    let name = ServerName::try_from(address.ip().to_string()).unwrap();
    StreamOwned::new(
        ClientConnection::new(Arc::clone(config), name).unwrap(),
        stream,
    )
}

/// An HTTP/2 client that uses the listener as its proxy.
pub(crate) struct Browser {
    stream: TlsStream,
    core: Connection,
    streams: HashMap<StreamId, Received>,
    has_settings: bool,
}

/// The part of a response that has arrived.
#[derive(Default)]
pub(crate) struct Received {
    head: Option<ResponseHead>,
    pub(crate) body: Vec<u8>,
    has_ended: bool,
    pub(crate) reset: Option<Reason>,
}

impl Received {
    pub(crate) fn status(&self) -> u16 {
        self.head.as_ref().map_or(0, |head| head.status)
    }

    pub(crate) fn field(&self, name: &str) -> Option<String> {
        let value = self.head.as_ref()?.fields.get(name)?;
        Some(String::from_utf8_lossy(value).into_owned())
    }
}

impl Browser {
    fn connect(address: SocketAddr, config: &Arc<rustls::ClientConfig>) -> Self {
        Self::over(connect_tls(address, config))
    }

    /// Begins HTTP/2 over a TLS stream.
    pub(crate) fn over(stream: TlsStream) -> Self {
        let mut browser = Self {
            stream,
            core: Connection::new(MuxConfig::new(Role::Client)),
            streams: HashMap::new(),
            has_settings: false,
        };
        // The listener is silent before the SETTINGS of a browser.
        let mut hello = SendBuf::new();
        browser.core.poll_output(&mut hello, usize::MAX);
        browser.write(hello);
        browser.read_until(|browser| browser.has_settings);
        browser
    }

    fn flush(&mut self) {
        let mut out = SendBuf::new();
        while self.core.wants_output() {
            self.core.poll_output(&mut out, usize::MAX);
        }
        self.write(out);
    }

    fn write(&mut self, mut out: SendBuf) {
        let bytes = out.copy_to_bytes(out.remaining());
        self.stream.write_all(&bytes).unwrap();
        self.stream.flush().unwrap();
    }

    /// Returns whether the listener takes extended CONNECT (RFC 8441 section 3).
    pub(crate) fn takes_extended_connect(&self) -> bool {
        self.core.peer_extended_connect() == Some(true)
    }

    pub(crate) fn open(&mut self, request: &RequestHead, end: bool) -> StreamId {
        let id = self.core.open(request, end, Priority::default()).unwrap();
        self.streams.insert(id, Received::default());
        self.flush();
        id
    }

    pub(crate) fn send(&mut self, id: StreamId, data: &'static str, end: bool) {
        self.core
            .send_data(id, Bytes::from_static(data.as_bytes()), end);
        self.flush();
    }

    fn read_until(&mut self, is_done: impl Fn(&Self) -> bool) {
        let mut buffer = [0; 16 << 10];
        while !is_done(self) {
            let count = match self.stream.read(&mut buffer) {
                Ok(0) => panic!("the listener closed"),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => panic!("{error}"),
            };
            self.core
                .handle_input(Instant::now(), &buffer[..count])
                .unwrap();
            while let Some(event) = self.core.poll_event() {
                self.take(event);
            }
            self.flush();
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Settings => self.has_settings = true,
            Event::Response { id, head, end } => {
                let stream = self.streams.get_mut(&id).unwrap();
                (stream.head, stream.has_ended) = (Some(head), end);
            }
            Event::Data { id, data, end } => {
                self.core.release(id, data.len());
                let stream = self.streams.get_mut(&id).unwrap();
                stream.body.extend_from_slice(&data);
                stream.has_ended |= end;
            }
            Event::Reset { id, reason } => {
                self.streams.get_mut(&id).unwrap().reset = Some(reason);
            }
            _ => {}
        }
    }

    /// Waits for the end of a response.
    pub(crate) fn response(&mut self, id: StreamId) -> &Received {
        self.read_until(|it| it.streams[&id].has_ended || it.streams[&id].reset.is_some());
        &self.streams[&id]
    }

    /// Waits for the head of a response and this many bytes after it.
    pub(crate) fn beginning(&mut self, id: StreamId, count: usize) -> &Received {
        self.read_until(|it| {
            let stream = &it.streams[&id];
            let is_over = stream.has_ended || stream.reset.is_some();
            is_over || (stream.head.is_some() && stream.body.len() >= count)
        });
        &self.streams[&id]
    }

    pub(crate) fn get(&mut self, url: &str) -> &Received {
        let id = self.open(&get(url), true);
        self.response(id)
    }
}

pub(crate) fn get(url: &str) -> RequestHead {
    let (scheme, rest) = url.split_once("://").unwrap();
    let (host, path) = rest.split_once('/').unwrap();
    let scheme = match scheme {
        "https" => Scheme::Https,
        _ => Scheme::Http,
    };
    RequestHead::get(scheme, host, format!("/{path}"))
}

pub(crate) fn connect(authority: &str, protocol: Option<&str>) -> RequestHead {
    let mut request = RequestHead::connect(authority);
    if let Some(protocol) = protocol {
        request.protocol = Some(protocol.to_owned());
        request.path = "/chat".into();
    }
    request
}

pub(crate) fn ok(body: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// The origin answers only once all requests have arrived.
#[test]
fn tls_listener_carries_100_requests_at_once() {
    const COUNT: usize = 100;
    let all = Arc::new(Barrier::new(COUNT));
    let origin = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            all.wait();
            client.send(ok(&asked.line));
        }
    });
    let pair = TlsPair::with(
        "at-once",
        |gateway| gateway.max_connections_per_origin = Some(COUNT),
        |_| {},
    );
    let mut browser = pair.browser();
    let ids: Vec<_> = (0..COUNT)
        .map(|n| browser.open(&get(&origin.url(&format!("/{n}"))), true))
        .collect();
    for (n, id) in ids.into_iter().enumerate() {
        let received = browser.response(id);
        assert_eq!(received.status(), 200);
        assert_eq!(received.body, format!("GET /{n} HTTP/1.1").as_bytes());
    }
}

#[test]
fn tls_listener_carries_tunnels() {
    let origin = Scene::new(|_, mut client| {
        client.send("220 hello\r\n");
        assert_eq!(client.read_exact(4), b"QUIT");
        client.send("221 bye\r\n");
    });
    let pair = TlsPair::start("tunnels");
    let mut browser = pair.browser();
    let authority = origin.address.to_string();
    let ids = [0; 3].map(|_| browser.open(&connect(&authority, None), false));
    for id in ids {
        let received = browser.beginning(id, 11);
        assert_eq!(
            (received.status(), &received.body[..]),
            (200, &b"220 hello\r\n"[..])
        );
        browser.send(id, "QUIT", true);
        assert_eq!(browser.response(id).body, b"220 hello\r\n221 bye\r\n");
    }
}

/// An origin that accepts a WebSocket, sends `first`, and answers `abc` with `xyz`.
pub(crate) fn websocket_scene() -> Scene {
    Scene::new(|_, mut client| {
        let asked = client.request().unwrap();
        assert_eq!(asked.line, "GET /chat HTTP/1.1");
        assert_eq!(asked.field("upgrade"), Some("websocket"));
        let key = asked.field("sec-websocket-key").unwrap();
        assert_eq!(key.len(), 24);
        let text = format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
        let algorithm = &ring::digest::SHA1_FOR_LEGACY_USE_ONLY;
        let sum = ring::digest::digest(algorithm, text.as_bytes());
        client.send(format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {}\r\n\r\nfirst",
            base64(sum.as_ref())
        ));
        assert_eq!(client.read_exact(3), b"abc");
        client.send("xyz");
    })
}

/// The origin gets a key, and the browser gets no proof of it (RFC 8441 section 5.1).
#[test]
fn tls_listener_carries_websockets() {
    let origin = websocket_scene();
    let pair = TlsPair::start("websockets");
    let mut browser = pair.browser();
    let request = connect(&origin.address.to_string(), Some("websocket"));
    let id = browser.open(&request, false);
    let received = browser.beginning(id, 5);
    assert_eq!(
        (received.status(), &received.body[..]),
        (200, &b"first"[..])
    );
    assert_eq!(received.field("sec-websocket-accept"), None);
    browser.send(id, "abc", false);
    assert_eq!(browser.beginning(id, 8).body, b"firstxyz");
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits: String = bytes.iter().map(|byte| format!("{byte:08b}")).collect();
    let digit = |group: &[u8]| {
        let group = format!("{:0<6}", String::from_utf8_lossy(group));
        char::from(DIGITS[usize::from_str_radix(&group, 2).unwrap()])
    };
    let mut text: String = bits.as_bytes().chunks(6).map(digit).collect();
    while !text.len().is_multiple_of(4) {
        text.push('=');
    }
    text
}

#[test]
fn tls_listener_refuses_unproven_websockets() {
    let wrong = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                 Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
    let pair = TlsPair::start("unproven");
    let mut browser = pair.browser();
    for (answer, status) in [
        (wrong.to_owned(), 502),
        (ok("plain"), 502),
        (
            "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n".into(),
            403,
        ),
    ] {
        let origin = Scene::answering(answer.clone());
        let request = connect(&origin.address.to_string(), Some("websocket"));
        let id = browser.open(&request, false);
        assert_eq!(browser.response(id).status(), status, "{answer}");
    }
}

/// Each request chooses its key, although all share one connection.
#[test]
fn tls_listener_isolates_by_credentials() {
    let origin = Scene::new(|number, mut client| {
        while client.request().is_some() {
            client.send(ok(&number.to_string()));
        }
    });
    let (gateway_running, gateway) = start_gateway(gateway_options());
    let (socks, told) = socks_proxy(gateway);
    let mut options = client_options("h2+tcp://gw.example:80");
    options.via = Some(format!("socks5://{socks}").parse().unwrap());
    options.preconnect = Some(false);
    let (client_running, tls, http, directory) = start_client("isolation", options);
    let pair = TlsPair {
        tls,
        directory,
        pair: Pair::of(client_running, gateway_running, http),
    };
    let mut browser = pair.browser();
    // "a:1" and "b:2".
    for (key, user) in [("YTox", "a"), ("Yjoy", "b")] {
        let mut request = get(&origin.url("/"));
        request
            .fields
            .push("proxy-authorization", format!("Basic {key}"));
        let id = browser.open(&request, true);
        assert_eq!(browser.response(id).status(), 200);
        let asked = told.recv_timeout(PATIENCE).unwrap();
        assert_eq!(asked.target, "gw.example:80");
        assert_eq!(asked.credentials.unwrap().0, user);
    }
}

#[test]
fn tls_listener_serves_pushes_from_the_store() {
    let origin = Scene::new(|_, mut client| {
        while let Some(asked) = client.request() {
            client.send(if asked.line == "GET /page HTTP/1.1" {
                "HTTP/1.1 200 OK\r\nLink: </a.css>; rel=preload; as=style\r\n\
                 Content-Length: 4\r\n\r\npage"
                    .to_owned()
            } else {
                ok("style")
            });
        }
    });
    let pair = TlsPair::with("pushes", |_| {}, |client| client.cache_status = Some(true));
    let mut browser = pair.browser();
    assert_eq!(browser.get(&origin.url("/page")).body, b"page");
    let style = browser.get(&origin.url("/a.css"));
    assert_eq!(style.body, b"style");
    assert!(style.field("cache-status").is_some(), "it was pushed");
}

#[test]
fn tls_listener_serves_the_proxy_configuration() {
    let pair = TlsPair::start("pac");
    let list = format!("\"HTTPS {}; PROXY {}\"", pair.tls, pair.pair.http);
    let mut client = pair.pair.connect();
    let script = client.get(&format!("http://{}/proxy.pac", pair.pair.http));
    let text = String::from_utf8(script.body).unwrap();
    assert!(script.status == 200 && text.contains(&list), "{text}");
    // Firefox does not fall back from a listener that it does not trust.
    let firefox = "User-Agent: Mozilla/5.0 (X11; rv:153.0) Gecko/20100101 Firefox/153.0\r\n";
    let url = format!("http://{}/proxy.pac", pair.pair.http);
    client.send(request("GET", &url, firefox));
    let text = String::from_utf8(client.answer("GET").body).unwrap();
    let list = format!("\"PROXY {}\"", pair.pair.http);
    assert!(text.contains(&list), "{text}");
    let list = format!("\"HTTPS {}; PROXY {}\"", pair.tls, pair.pair.http);
    let mut browser = pair.browser();
    let script = browser.get(&format!("https://{}/proxy.pac", pair.tls));
    let text = String::from_utf8(script.body.clone()).unwrap();
    assert!(script.status() == 200 && text.contains(&list), "{text}");
    let other = browser.get(&format!("https://{}/other", pair.tls));
    assert_eq!(other.status(), 404);
}

#[test]
fn tls_listener_speaks_http1_to_others() {
    let origin = Scene::answering(ok("plain"));
    let pair = TlsPair::start("http1");
    for alpn in [&[][..], &[&b"http/1.1"[..]][..]] {
        let mut stream = connect_tls(pair.tls, &pair.tls_stream(alpn));
        let url = origin.url("/");
        let host = origin.address;
        write!(
            stream,
            "GET {url} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.ends_with("\r\n\r\nplain"), "{answer}");
    }
}

/// A browser would repeat a refused stream at once, so every failure is a page.
#[test]
fn tls_listener_answers_failures_with_a_page() {
    let mut pair = TlsPair::start("failures");
    pair.pair.stop_gateway();
    let mut browser = pair.browser();
    let received = browser.get("http://site.test/");
    assert_eq!((received.status(), received.reset), (502, None));
    let status = received.field("proxy-status").unwrap();
    assert!(status.starts_with("client; "), "{status}");
}

/// Plain bytes in place of a handshake end the connection and nothing else.
#[test]
fn tls_listener_survives_plain_http() {
    let origin = Scene::answering(ok("fine"));
    let pair = TlsPair::start("plain");
    let mut client = Client::to(pair.tls);
    client.send("GET http://site.test/ HTTP/1.1\r\nHost: site.test\r\n\r\n");
    let mut rest = Vec::new();
    let _ = client.stream.read_to_end(&mut rest);
    assert!(!rest.starts_with(b"HTTP/"), "no answer without TLS");
    assert_eq!(pair.browser().get(&origin.url("/")).body, b"fine");
}

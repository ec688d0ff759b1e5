//! Tests of isolation: keys keep sessions apart, and reach Tor's SOCKS port unchanged.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;

use tandem::status::{Opened, SessionStatus};

use crate::harness::{
    Client, PATIENCE, Pair, Scene, Way, block_on, client_options, gateway_options, request,
    start_client, start_gateway,
};

/// Starts a SOCKS proxy that connects every request to one address and reports the requests.
pub(crate) fn socks_proxy(
    leads_to: std::net::SocketAddr,
) -> (std::net::SocketAddr, mpsc::Receiver<Asked>) {
    socks_proxy_to(move |_| Some(leads_to))
}

/// Starts a SOCKS proxy that connects each request to the address of its target, reports the
/// requests, and refuses those without an address.
pub(crate) fn socks_proxy_to(
    leads_to: impl Fn(&str) -> Option<std::net::SocketAddr> + Send + Sync + 'static,
) -> (std::net::SocketAddr, mpsc::Receiver<Asked>) {
    let leads_to = std::sync::Arc::new(leads_to);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (tell, leads_to) = (tell.clone(), std::sync::Arc::clone(&leads_to));
            std::thread::spawn(move || serve_socks(stream.unwrap(), &*leads_to, &tell));
        }
    });
    (address, told)
}

/// A request to the SOCKS proxy, with the further bytes of its first packet.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) credentials: Option<(String, String)>,
    pub(crate) target: String,
    /// The bytes after the SOCKS request that were in the first read, before any reply.
    pub(crate) early: Vec<u8>,
}

/// Reads bytes that the client sends without a reply.
fn take<const LENGTH: usize>(stream: &mut TcpStream) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

/// Reads a text after its length.
fn text(stream: &mut TcpStream) -> String {
    let mut bytes = vec![0; take::<1>(stream)[0].into()];
    stream.read_exact(&mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

/// Reads what the client sends without a reply, until a pause. The bytes of a write that began
/// before are all there.
fn early(stream: &mut TcpStream) -> Vec<u8> {
    let pause = Some(std::time::Duration::from_millis(150));
    stream.set_read_timeout(pause).unwrap();
    let (mut early, mut buf) = (Vec::new(), vec![0; 65_536]);
    while let Ok(count @ 1..) = stream.read(&mut buf) {
        early.extend_from_slice(&buf[..count]);
    }
    stream.set_read_timeout(None).unwrap();
    early
}

fn serve_socks(
    mut stream: TcpStream,
    leads_to: &dyn Fn(&str) -> Option<std::net::SocketAddr>,
    tell: &mpsc::Sender<Asked>,
) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let greeting: [u8; 3] = take(&mut stream);
    assert_eq!(greeting[..2], [5, 1]);
    let credentials = (greeting[2] == 2).then(|| {
        assert_eq!(take(&mut stream), [1]);
        let user = text(&mut stream);
        (user, text(&mut stream))
    });
    assert_eq!(take(&mut stream), [5, 1, 0]);
    let host = match take(&mut stream) {
        [3] => text(&mut stream),
        [1] => std::net::Ipv4Addr::from(take::<4>(&mut stream)).to_string(),
        other => panic!("address type {other:?}"),
    };
    let port = u16::from_be_bytes(take(&mut stream));
    let early = early(&mut stream);
    let target = format!("{host}:{port}");
    let leads_to = leads_to(&target);
    // "Connection refused" is 5 (RFC 1928 section 6).
    let code = if leads_to.is_some() { 0 } else { 5 };
    let method: &[u8] = if credentials.is_some() {
        &[5, 2, 1, 0]
    } else {
        &[5, 0]
    };
    let replies = [method, &[5, code, 0, 1, 0, 0, 0, 0, 0, 0]].concat();
    stream.write_all(&replies).unwrap();
    let far = leads_to.map(|address| TcpStream::connect(address).unwrap());
    if let Some(mut far) = far.as_ref() {
        far.write_all(&early).unwrap();
    }
    let _ = tell.send(Asked {
        credentials,
        target,
        early,
    });
    let Some(mut far) = far else { return };
    let (mut near_read, mut far_write) = (stream.try_clone().unwrap(), far.try_clone().unwrap());
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut near_read, &mut far_write);
        let _ = far_write.shutdown(std::net::Shutdown::Write);
    });
    let _ = std::io::copy(&mut far, &mut stream);
    // Otherwise the client would wait for the end of a silent connection.
    let _ = stream.shutdown(std::net::Shutdown::Both);
}

#[test]
fn each_key_has_its_session_and_socks_credentials() {
    let origin = Scene::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let (_gateway, gateway) = start_gateway(gateway_options());
    let (proxy, asked) = socks_proxy(gateway);
    let mut options = client_options("h2+tcp://gateway.example:9980");
    options.via = Some(format!("socks5://{proxy}").parse().unwrap());
    options.preconnect = Some(false);
    let (_client, http, socks) = start_client(options);

    let over_socks = |user: Option<(&str, &str)>| {
        let mut client = Client::to(socks);
        assert_eq!(client.socks(&origin.address.to_string(), user), 0);
        client.send(format!(
            "GET / HTTP/1.1\r\nHost: {}\r\n\r\n",
            origin.address
        ));
        assert_eq!(client.answer("GET").body, b"ok");
    };
    let over_http = |fields: &str| {
        let mut client = Client::to(http);
        client.send(request("GET", &origin.url("/"), fields));
        assert_eq!(client.answer("GET").body, b"ok");
    };
    let next = || asked.recv_timeout(PATIENCE).unwrap();
    let key = |user: &str, password: &str| Some((user.to_owned(), password.to_owned()));

    over_socks(Some(("a.example", "1")));
    let first = next();
    assert_eq!(
        (first.credentials, first.target.as_str()),
        (key("a.example", "1"), "gateway.example:9980")
    );
    over_socks(Some(("a.example", "1")));
    over_socks(Some(("a.example", "2")));
    assert_eq!(
        next().credentials,
        key("a.example", "2"),
        "the second of the same key used the first's session"
    );
    over_http("Proxy-Authorization: Basic YS5leGFtcGxlOjE=\r\n");
    let mut client = Client::to(http);
    client.send(format!(
        "CONNECT {0} HTTP/1.1\r\nHost: {0}\r\nTor-Stream-Isolation: tab-7\r\n\r\n",
        origin.address
    ));
    assert_eq!(client.head().unwrap().status, 200);
    assert_eq!(
        next().credentials,
        key("tab-7", ""),
        "a.example:1 had its session already"
    );
    over_http("Tor-Stream-Isolation: of-a-script\r\n");
    assert_eq!(
        next().credentials,
        None,
        "what a page's script can write is no key"
    );
    over_http("");
    over_socks(None);
    assert!(asked.try_recv().is_err(), "no key is a key as well");
}

#[test]
fn client_replaces_aged_sessions_during_exchanges() {
    let (go, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let origin = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            if asked.line.contains("/long") {
                client.send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nfirst");
                wait.lock().unwrap().recv_timeout(PATIENCE).unwrap();
                client.send("last");
            } else {
                client.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            }
        }
    });
    let (_gateway, gateway) = start_gateway(gateway_options());
    let (proxy, asked) = socks_proxy(gateway);
    let mut options = client_options("h2+tcp://gateway.example:9980");
    options.via = Some(format!("socks5://{proxy}").parse().unwrap());
    options.max_age = Some("700ms".parse().unwrap());
    let (_client, http, _) = start_client(options);
    let mut long = Client::to(http);
    long.send(request("GET", &origin.url("/long"), ""));
    assert_eq!(long.head().unwrap().status, 200);
    asked.recv_timeout(PATIENCE).unwrap();
    asked
        .recv_timeout(PATIENCE)
        .expect("a second session is opened when the first is old");
    assert_eq!(Client::to(http).get(&origin.url("/")).body, b"ok");
    go.send(()).unwrap();
    assert_eq!(
        long.read_exact(9),
        b"firstlast",
        "the old session ended its exchange"
    );
}

#[test]
fn fallback_uses_the_same_proxy_only() {
    let origin = Scene::answering("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\ndirect");
    // The proxy connects to the origin, which is no gateway: the session fails, the plain request
    // succeeds.
    let (proxy, asked) = socks_proxy(origin.address);
    for (fallback, status) in [
        (tandem::config::client::Fallback::None, 502),
        (tandem::config::client::Fallback::Via, 200),
    ] {
        let mut options = client_options("h2+tcp://gateway.example:9980");
        options.via = Some(format!("socks5://{proxy}").parse().unwrap());
        options.fallback = Some(fallback);
        let (_client, http, _) = start_client(options);
        let answer = Client::to(http).get("http://site.example/");
        assert_eq!(answer.status, status);
    }
    // A request that the gateway may have processed is not repeated without it.
    let mut options = client_options("h2+tcp://gateway.example:9980");
    options.via = Some(format!("socks5://{proxy}").parse().unwrap());
    options.fallback = Some(tandem::config::client::Fallback::Via);
    let (_client, http, _) = start_client(options);
    let mut client = Client::to(http);
    client.send(request(
        "POST",
        "http://site.example/",
        "Content-Length: 0\r\n",
    ));
    assert_eq!(client.answer("POST").status, 502);
    let targets: Vec<_> = asked.try_iter().map(|asked| asked.target).collect();
    assert!(
        targets.contains(&"site.example:80".to_owned()),
        "{targets:?}"
    );
    assert!(
        targets
            .iter()
            .all(|t| t == "site.example:80" || t == "gateway.example:9980")
    );
}

#[test]
fn client_repeats_refused_request() {
    // This gateway refuses the first stream of each session, unprocessed, and answers the second.
    use tandem_http::h2::Connection;
    use tandem_http::{ByteMux, Event, Mux, MuxConfig, Reason, ResponseHead, Role, SendBuf};
    let refusing = Scene::new(|_, mut client| {
        let mut core = Connection::new(MuxConfig::new(Role::Server));
        let mut refused = false;
        let mut buf = [0; 4096];
        loop {
            let Ok(count) = client.stream.read(&mut buf) else {
                return;
            };
            if count == 0 {
                return;
            }
            core.handle_input(std::time::Instant::now(), &buf[..count])
                .unwrap();
            while let Some(event) = core.poll_event() {
                let Event::Request { id, .. } = event else {
                    continue;
                };
                if refused {
                    core.respond(id, &ResponseHead::new(204), true);
                } else {
                    refused = true;
                    core.reset(id, Reason::Refused);
                }
            }
            let mut out = SendBuf::new();
            core.poll_output(&mut out, 65_536);
            while !out.is_empty() {
                let chunk = bytes::Buf::chunk(&out).to_vec();
                bytes::Buf::advance(&mut out, chunk.len());
                client.send(chunk);
            }
        }
    });
    let (_client, http, _) =
        start_client(client_options(&format!("h2+tcp://{}", refusing.address)));
    let mut client = Client::to(http);
    client.send(request(
        "POST",
        "http://site.example/",
        "Content-Length: 4\r\n",
    ));
    client.send("body");
    assert_eq!(client.answer("POST").status, 204);
}

/// Returns the sessions that the client keeps.
fn sessions(client: &tandem::runtime::Running) -> usize {
    let status = block_on(client.status().snapshot());
    let opened = |session: &&SessionStatus| matches!(session.opened, Opened::Here);
    status.sessions.iter().filter(opened).count()
}

fn with_key(key: usize) -> String {
    format!("Proxy-Authorization: Key {key}\r\n")
}

#[test]
fn many_keys_keep_their_sessions() {
    const KEYS: usize = 270;
    let origin =
        Scene::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
    let (_gateway, gateway) = start_gateway(gateway_options());
    let mut options = client_options(&format!("h2+tcp://{gateway}"));
    options.preconnect = Some(false);
    let (client, http, _) = start_client(options);
    for _ in 0..2 {
        for key in 0..KEYS {
            let mut client = Client::to(http);
            client.send(request("GET", &origin.url("/"), &with_key(key)));
            assert_eq!(client.answer("GET").body, b"ok");
        }
        assert_eq!(sessions(&client), KEYS);
    }
}

#[test]
fn session_in_use_is_not_closed_for_another_key() {
    let echo = Scene::new(|_, mut client| {
        let mut byte = [0; 1];
        while client.stream.read(&mut byte).unwrap_or(0) == 1 {
            client.send(byte);
        }
    });
    let origin = Scene::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let (_gateway, gateway) = start_gateway(gateway_options());
    let way = Way::to(gateway);
    let mut options = client_options(&format!("h2+tcp://{}", way.address));
    options.max_sessions = Some(3);
    options.preconnect = Some(false);
    let (running, http, _) = start_client(options);
    let get = |key| {
        let mut client = Client::to(http);
        client.send(request("GET", &origin.url("/"), &with_key(key)));
        assert_eq!(client.answer("GET").body, b"ok");
    };
    let tunnel = |key| {
        let mut client = Client::to(http);
        let key = with_key(key);
        client.send(format!(
            "CONNECT {0} HTTP/1.1\r\nHost: {0}\r\n{key}\r\n",
            echo.address
        ));
        assert_eq!(client.head().unwrap().status, 200);
        client.send("a");
        assert_eq!(client.read_exact(1), b"a");
        client
    };
    let mut first = tunnel(0);
    for key in 1..4 {
        get(key);
    }
    assert_eq!((sessions(&running), way.connections()), (3, 4));
    get(0);
    get(2);
    assert_eq!(way.connections(), 4, "key 1 was idle for longest");
    // All sessions in use: the limit is exceeded until one of them is idle.
    let mut tunnels: Vec<_> = (4..8).map(tunnel).collect();
    assert_eq!(sessions(&running), 5);
    for (number, tunnel) in tunnels.iter_mut().chain([&mut first]).enumerate() {
        tunnel.send([number as u8]);
        assert_eq!(tunnel.read_exact(1), [number as u8]);
    }
    get(0);
    assert_eq!(way.connections(), 8, "the first key has its session");
}

#[test]
fn client_serves_many_keys_at_once() {
    let origin = Scene::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let pair = Pair::with("h2", |_| {}, |client| client.max_sessions = Some(4));
    for key in 0..20 {
        let mut client = pair.connect();
        client.send(request(
            "GET",
            &origin.url("/"),
            &format!("Proxy-Authorization: Key {key}\r\n"),
        ));
        assert_eq!(client.answer("GET").body, b"ok");
    }
}

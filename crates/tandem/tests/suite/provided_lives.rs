//! The lives of connections: restarts, reloads, drains and shared ports.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use tandem::runtime::Running;

use crate::certificates::Certificates;
use crate::harness::{Client, PATIENCE, Scene, block_on, endpoint, gateway_options, request};
use crate::paths::Forwarder;
use crate::provided::{
    OK, listener, start_client, start_client_of, start_gateway, start_gateway_everywhere, stop,
};
use crate::{NAME, SCHEME, transports};

#[test]
fn client_fails_when_the_gateway_ends_and_recovers() {
    let certificates = Certificates::new(&format!("{NAME}-restart"));
    let (gateway, address) = start_gateway(&certificates, 0, |_| {});
    let (client, http) = start_client(&certificates, address, |_| {});
    let origin = Scene::new(|_, mut client| {
        let asked = client.request();
        if asked.is_some_and(|asked| asked.line.contains("/long")) {
            client.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nfirst");
            client.request_ends();
        } else {
            client.send(OK);
        }
    });
    let mut browser = Client::to(http);
    browser.send(request("GET", &origin.url("/long"), ""));
    assert_eq!(browser.head().unwrap().status, 200);
    stop([gateway]);
    let mut rest = Vec::new();
    let ended = std::io::Read::read_to_end(&mut browser.stream, &mut rest);
    assert!(
        ended.is_err() || rest.len() < 100,
        "it never looks complete"
    );
    let (again, _) = start_gateway(&certificates, address.port(), |_| {});
    assert_eq!(Client::to(http).get(&origin.url("/")).body, b"ok");
    stop([client, again]);
}

/// The time within which a client notices that its gateway was killed. A keep-alive of the
/// connection would find it after 20 s.
pub(crate) const NOTICE: Duration = Duration::from_secs(10);

/// A gateway that can be killed, its client, and the path between them.
pub(crate) struct Mortal {
    certificates: Certificates,
    path: Forwarder,
    gateway: Running,
    address: SocketAddr,
    client: Running,
    pub(crate) http: SocketAddr,
}

impl Mortal {
    pub(crate) fn start(name: &str) -> Self {
        let certificates = Certificates::new(&format!("{NAME}-{name}"));
        let (gateway, address) = start_gateway(&certificates, 0, |_| {});
        let path = Forwarder::to(address);
        let (client, http) = start_client(&certificates, path.address, |_| {});
        Self {
            certificates,
            path,
            gateway,
            address,
            client,
            http,
        }
    }

    /// Ends the gateway without a farewell, and starts another one at its address. The system has
    /// refused no datagram.
    pub(crate) fn replace_gateway(self) -> Self {
        self.path.mute();
        stop([self.gateway]);
        let (gateway, _) = start_gateway(&self.certificates, self.address.port(), |_| {});
        self.path.unmute();
        Self { gateway, ..self }
    }

    pub(crate) fn stop(self) {
        stop([self.client, self.gateway]);
    }
}

/// The gateway has acknowledged the request, so that no datagram of the client waits for an answer.
#[test]
fn waiting_request_moves_to_the_gateway_after_a_kill() {
    let pair = Mortal::start("killed");
    let (tell, told) = mpsc::channel();
    let (tell, requests) = (Mutex::new(tell), AtomicUsize::new(0));
    let origin = Scene::new(move |_, mut client| {
        if client.request().is_some() {
            tell.lock().unwrap().send(()).unwrap();
            if requests.fetch_add(1, Ordering::SeqCst) == 0 {
                client.request_ends();
            } else {
                client.send(OK);
            }
        }
    });
    let mut browser = Client::to(pair.http);
    browser.send(request("GET", &origin.url("/"), ""));
    told.recv_timeout(PATIENCE).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let pair = pair.replace_gateway();
    let begun = Instant::now();
    assert_eq!(browser.answer("GET").body, b"ok");
    println!("{NAME}: the answer came after {:?}", begun.elapsed());
    assert!(begun.elapsed() < NOTICE, "{:?}", begun.elapsed());
    pair.stop();
}

#[test]
fn workers_share_the_socket_and_reload_keeps_it() {
    let certificates = Certificates::new(&format!("{NAME}-workers"));
    let transports = transports();
    let mut options = gateway_options();
    let listen = endpoint(&listener(&certificates, 0));
    options.listen = vec![listen.clone()];
    options.workers = Some(3);
    let config = || Arc::new(options.clone().typed_with(&transports).unwrap());
    let mut gateway = block_on(tandem::runtime::Running::start(config())).unwrap();
    let address = gateway.address(&listen).unwrap();
    let origin = Scene::answering(OK);
    let clients: Vec<_> = (0..5)
        .map(|_| start_client(&certificates, address, |_| {}))
        .collect();
    for (_, http) in &clients {
        assert_eq!(Client::to(*http).get(&origin.url("/")).body, b"ok");
    }
    block_on(gateway.reload(config())).unwrap();
    for (_, http) in &clients {
        assert_eq!(Client::to(*http).get(&origin.url("/")).body, b"ok");
    }
    stop(clients.into_iter().map(|(client, _)| client));
    stop([gateway]);
}

/// Returns an origin that answers `/long` with a head, and with `length` bytes after each message.
fn origin_that_waits(length: usize) -> (Scene, mpsc::Sender<()>) {
    let (go, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let origin = Scene::new(move |_, mut origin| {
        while let Some(asked) = origin.request() {
            if !asked.line.contains("/long ") {
                origin.send(OK);
                continue;
            }
            origin.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n"
            ));
            wait.lock().unwrap().recv().unwrap();
            origin.send(vec![b'x'; length]);
        }
    });
    (origin, go)
}

#[test]
fn draining_gateway_delivers_its_last_response() {
    let certificates = Certificates::new(&format!("{NAME}-drain"));
    let (gateway, address) = start_gateway(&certificates, 0, |_| {});
    let (client, http) = start_client(&certificates, address, |_| {});
    let (origin, go) = origin_that_waits(300_000);
    let mut browser = Client::to(http);
    browser.send(request("GET", &origin.url("/long"), ""));
    assert_eq!(browser.head().unwrap().status, 200);
    let draining = std::thread::spawn(move || block_on(gateway.drain(PATIENCE)));
    go.send(()).unwrap();
    assert_eq!(browser.read_exact(300_000), vec![b'x'; 300_000]);
    draining.join().unwrap();
    stop([client]);
}

/// The datagrams of the client's old session still reach the first gateway, on each address.
#[test]
fn next_gateway_listens_while_the_first_drains() {
    let certificates = Certificates::new(&format!("{NAME}-next"));
    for (own, dialled) in [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.2")] {
        let start = |port| {
            let identity = certificates.identity();
            let listen = endpoint(&format!("{SCHEME}://{own}:{port}?{identity}"));
            let mut options = gateway_options();
            (options.listen, options.workers) = (vec![listen.clone()], Some(2));
            let config = Arc::new(options.typed_with(&transports()).unwrap());
            let started = block_on(Running::start(config))?;
            let address = started.address(&listen).unwrap();
            Ok::<_, tandem::runtime::StartError>((started, address.port()))
        };
        let (first, port) = start(0).unwrap();
        assert!(start(port).is_err(), "two gateways never share an address");
        let ca = certificates.path("ca.pem");
        let way = format!("{SCHEME}://{dialled}:{port}?ca={ca}&sni=gw.example");
        let (client, http) = start_client_of(&way, |_| {});
        let (origin, go) = origin_that_waits(12_000_000);
        let mut browser = Client::to(http);
        browser.send(request("GET", &origin.url("/long"), ""));
        assert_eq!(browser.head().unwrap().status, 200);
        let draining = std::thread::spawn(move || block_on(first.drain(10 * PATIENCE)));
        let begun = Instant::now();
        let next = loop {
            match start(port) {
                Ok((next, _)) => break next,
                Err(error) => assert!(begun.elapsed() < PATIENCE, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        assert_eq!(Client::to(http).get(&origin.url("/")).body, b"ok");
        let (other, other_http) = start_client_of(&way, |_| {});
        assert_eq!(Client::to(other_http).get(&origin.url("/")).body, b"ok");
        assert!(!draining.is_finished(), "the first one still drains");
        go.send(()).unwrap();
        // The first gateway closes the session while the client still reads.
        for _ in 0..300 {
            assert_eq!(browser.read_exact(40_000), vec![b'x'; 40_000]);
            std::thread::sleep(Duration::from_millis(6));
        }
        draining.join().unwrap();
        stop([client, other, next]);
    }
}

#[test]
fn reload_listens_again_while_an_old_connection_lives() {
    let certificates = Certificates::new(&format!("{NAME}-again"));
    let transports = transports();
    let mut options = gateway_options();
    let over_udp = endpoint(&listener(&certificates, 0));
    let tcp = endpoint("h2+tcp://127.0.0.1:0");
    options.listen = vec![over_udp, tcp.clone()];
    let config = |options: &tandem::config::GatewayOptions| {
        Arc::new(options.clone().typed_with(&transports).unwrap())
    };
    let mut gateway = block_on(tandem::runtime::Running::start(config(&options))).unwrap();
    let address = gateway.address(&options.listen[0]).unwrap();
    let (client, http) = start_client(&certificates, address, |_| {});
    let (go, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let origin = Scene::new(move |_, mut origin| {
        while let Some(asked) = origin.request() {
            if asked.line.contains("/long ") {
                origin.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n");
                wait.lock().unwrap().recv().unwrap();
                origin.send("ok");
            } else {
                origin.send(OK);
            }
        }
    });
    let mut browser = Client::to(http);
    browser.send(request("GET", &origin.url("/long"), ""));
    assert_eq!(browser.head().unwrap().status, 200);
    options.listen = vec![tcp];
    block_on(gateway.reload(config(&options))).unwrap();
    options.listen = vec![endpoint(&listener(&certificates, address.port()))];
    block_on(gateway.reload(config(&options))).unwrap();
    assert_eq!(Client::to(http).get(&origin.url("/")).body, b"ok");
    go.send(()).unwrap();
    assert_eq!(browser.read_exact(2), b"ok");
    stop([client, gateway]);
}

/// The gateway listens on several addresses. A client's socket takes datagrams of the dialled one
/// only.
#[test]
fn gateway_answers_from_the_dialled_address() {
    let certificates = Certificates::new(&format!("{NAME}-addresses"));
    let (gateway, port) = start_gateway_everywhere(&certificates);
    let ca = certificates.path("ca.pem");
    for ip in ["127.0.0.2", "127.0.0.1", "127.0.0.3"] {
        let gateway = format!("{SCHEME}://{ip}:{port}?ca={ca}&sni=gw.example");
        let (client, http) = start_client_of(&gateway, |_| {});
        let origin = Scene::answering(OK);
        let answer = Client::to(http).get(&origin.url("/"));
        assert_eq!((answer.status, &answer.body[..]), (200, &b"ok"[..]), "{ip}");
        stop([client]);
    }
    stop([gateway]);
}

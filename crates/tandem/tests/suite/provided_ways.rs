//! Several ways to one gateway: the transport of this suite, and TCP with TLS.

use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use tandem::config::ClientOptions;
use tandem::metrics::METRICS;
use tandem::runtime::Running;

use crate::certificates::Certificates;
use crate::harness::{
    Client, PATIENCE, Scene, block_on, endpoint, gateway_options, request, running,
};
use crate::name_record::{Record, start_client_by_name};
use crate::paths::Forwarder;
use crate::provided::{OK, start_client_of, start_gateway, stop};
use crate::{NAME, SCHEME, transports};

/// A gateway with two ways, a client that knows both, and the network between them.
pub(crate) struct Ways {
    _certificates: Certificates,
    pub(crate) network: Forwarder,
    gateway: Running,
    client: Running,
    pub(crate) http: SocketAddr,
}

impl Ways {
    pub(crate) fn start(name: &str, is_blocked: bool) -> Self {
        Self::start_with_tcp(name, is_blocked, |tls| tls)
    }

    /// Starts a pair whose client never compares the rates of its ways.
    pub(crate) fn start_without_comparisons(name: &str) -> Self {
        let without = |options: &mut ClientOptions| options.warm_up = Some("0B".parse().unwrap());
        Self::start_with(name, false, |tls| tls, without)
    }

    /// Starts the pair. `over_tcp` returns the client's address for the way over TCP.
    fn start_with_tcp(
        name: &str,
        is_blocked: bool,
        over_tcp: impl FnOnce(SocketAddr) -> SocketAddr,
    ) -> Self {
        Self::start_with(name, is_blocked, over_tcp, |_| {})
    }

    fn start_with(
        name: &str,
        is_blocked: bool,
        over_tcp: impl FnOnce(SocketAddr) -> SocketAddr,
        change: impl FnOnce(&mut ClientOptions),
    ) -> Self {
        let certificates = Certificates::new(&format!("{NAME}-{name}"));
        let tls = endpoint(&format!("h2+tls://127.0.0.1:0?{}", certificates.identity()));
        let (gateway, udp) = start_gateway(&certificates, 0, |options| {
            options.listen.push(tls.clone());
        });
        let tls = over_tcp(gateway.address(&tls).unwrap());
        let network = Forwarder::to(udp);
        network.blocked.store(is_blocked, Ordering::SeqCst);
        let (ca, udp) = (certificates.path("ca.pem"), network.address);
        let ways = format!("{SCHEME}://{udp}?ca={ca},h2+tls://{tls}?ca={ca}");
        let (client, http) = start_client_of(&ways, change);
        Self {
            _certificates: certificates,
            network,
            gateway,
            client,
            http,
        }
    }

    pub(crate) fn is_over_udp(&self) -> bool {
        let (session, _) = SCHEME.split_once('+').unwrap();
        has_session(&self.client, &format!("{session} over"))
    }

    pub(crate) fn is_over_tcp(&self) -> bool {
        has_session(&self.client, "h2 over TLS")
    }

    pub(crate) fn stop(self) {
        stop([self.client, self.gateway]);
    }
}

/// Returns true if a client has a session with this protocol.
fn has_session(client: &Running, protocol: &str) -> bool {
    let status = block_on(client.status().snapshot());
    let mut protocols = status.sessions.iter().filter_map(|it| it.protocol.as_ref());
    protocols.any(|it| it.starts_with(protocol))
}

/// Waits until a condition holds.
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn client_uses_udp_where_it_works() {
    let ways = Ways::start("way-open", false);
    let origin = Scene::answering(OK);
    for _ in 0..5 {
        assert_eq!(Client::to(ways.http).get(&origin.url("/")).body, b"ok");
    }
    assert!(ways.is_over_udp());
    until("the other session is closed", || !ways.is_over_tcp());
    ways.stop();
}

#[test]
fn client_uses_tcp_where_udp_is_blocked() {
    let ways = Ways::start("way-blocked", true);
    let origin = Scene::answering(OK);
    assert_eq!(Client::to(ways.http).get(&origin.url("/")).body, b"ok");
    assert!(ways.is_over_tcp());
    ways.stop();
}

#[test]
fn client_returns_to_udp_once_it_works() {
    let ways = Ways::start("way-late", true);
    let origin = Scene::answering(OK);
    assert_eq!(Client::to(ways.http).get(&origin.url("/")).body, b"ok");
    ways.network.blocked.store(false, Ordering::SeqCst);
    until("the session over TCP is closed", || !ways.is_over_tcp());
    assert_eq!(Client::to(ways.http).get(&origin.url("/")).body, b"ok");
    assert!(ways.is_over_udp());
    ways.stop();
}

#[test]
fn ways_to_a_name_begin_once_it_is_known() {
    let certificates = Certificates::new(&format!("{NAME}-way-name"));
    let identity = certificates.identity();
    let start = |address: &str, udp: u16, tcp: u16| {
        let udp = endpoint(&format!("{SCHEME}://{address}:{udp}?{identity}"));
        let tls = endpoint(&format!("h2+tls://{address}:{tcp}?{identity}"));
        let mut options = gateway_options();
        options.listen = vec![udp.clone(), tls.clone()];
        let (gateway, udp) = running(options.typed_with(&transports()).unwrap(), &udp);
        let tcp = gateway.address(&tls).unwrap();
        (gateway, udp.port(), tcp.port())
    };
    let (gateway, udp, tcp) = start("127.0.0.1", 0, 0);
    let options = format!("ca={}&resolve=system", certificates.path("ca.pem"));
    let ways = format!("{SCHEME}://gw.example:{udp}?{options},h2+tls://gw.example:{tcp}?{options}");
    let record = Record::default();
    let (client, http) = start_client_by_name(&ways, &record, &transports());
    let origin = Scene::answering(OK);
    assert_eq!(Client::to(http).get(&origin.url("/")).status, 502);
    record.set(&["127.0.0.1"]);
    let loads = || Client::to(http).get(&origin.url("/")).status == 200;
    until("the gateway is found", loads);
    let (session, _) = SCHEME.split_once('+').unwrap();
    let is_over_udp = || has_session(&client, &format!("{session} over"));
    until("datagrams win", is_over_udp);
    // The gateway moves to another address.
    stop([gateway]);
    let (gateway, ..) = start("127.0.0.2", udp, tcp);
    record.set(&["127.0.0.2"]);
    until("the new address is found", loads);
    until("datagrams win again", is_over_udp);
    stop([client, gateway]);
}

/// The bytes of a body at a position: no two pieces of a page are alike.
fn body(len: usize) -> Vec<u8> {
    (0..len as u32)
        .map(|at| (at.wrapping_mul(0x9e37_79b9) >> 24) as u8)
        .collect()
}

#[test]
fn requests_go_over_tcp_where_udp_is_throttled() {
    const SIZE: usize = 2 << 20;
    let ways = Ways::start("way-throttled", false);
    let (asked, requests) = mpsc::channel();
    let asked = Mutex::new(asked);
    let waiting = Arc::<AtomicUsize>::default();
    let origin = Scene::new(move |_, mut origin| {
        while let Some(request) = origin.request() {
            if request.line.contains("/download ") {
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n");
                origin.send(head);
                origin.send(body(SIZE));
                continue;
            }
            // The first of these requests never gets a response.
            let is_waiting = request.line.contains("/waiting ");
            if is_waiting && waiting.fetch_add(1, Ordering::SeqCst) == 0 {
                asked.lock().unwrap().send(()).unwrap();
                origin.request_ends();
                return;
            }
            origin.send(OK);
        }
    });
    assert_eq!(Client::to(ways.http).get(&origin.url("/")).body, b"ok");
    assert!(ways.is_over_udp());
    let mut waiting = Client::to(ways.http);
    waiting.send(request("GET", &origin.url("/waiting"), ""));
    requests.recv_timeout(PATIENCE).unwrap();
    ways.network.policed.store(32_000, Ordering::SeqCst);
    let begun = Instant::now();
    let mut download = Client::to(ways.http);
    download.send(request("GET", &origin.url("/download"), ""));
    assert_eq!(download.head().unwrap().status, 200);
    // It is repeated over TCP.
    assert_eq!(waiting.answer("GET").status, 200);
    println!("the request moved after {:?}", begun.elapsed());
    assert!(ways.is_over_tcp());
    let asked = Instant::now();
    let answer = Client::to(ways.http).get(&origin.url("/download"));
    assert_eq!(answer.body, body(SIZE));
    assert!(asked.elapsed() < Duration::from_secs(20), "64 s over UDP");
    // The exchange under way loses nothing.
    ways.network.policed.store(0, Ordering::SeqCst);
    assert_eq!(download.read_exact(SIZE), body(SIZE));
    ways.stop();
}

#[test]
fn slow_origin_keeps_requests_on_udp() {
    let ways = Ways::start("way-slow-origin", false);
    let origin = Scene::new(|_, mut origin| {
        while let Some(request) = origin.request() {
            if !request.line.contains("/slow ") {
                origin.send(OK);
                continue;
            }
            origin.send("HTTP/1.1 200 OK\r\nContent-Length: 120000\r\n\r\n");
            for _ in 0..60 {
                std::thread::sleep(Duration::from_millis(100));
                origin.send([b'x'; 2000]);
            }
        }
    });
    assert_eq!(Client::to(ways.http).get(&origin.url("/")).body, b"ok");
    let compared = &METRICS.ways_compared;
    let before = compared.value();
    assert_eq!(
        Client::to(ways.http).get(&origin.url("/slow")).body.len(),
        120_000
    );
    assert!(compared.value() > before, "it was slow enough");
    assert!(ways.is_over_udp());
    assert_eq!(Client::to(ways.http).get(&origin.url("/")).body, b"ok");
    assert!(ways.is_over_udp());
    ways.stop();
}

#[test]
fn requests_move_to_tcp_when_udp_breaks() {
    let ways = Ways::start("way-broken", false);
    let (go, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let (asked, requests) = mpsc::channel();
    let asked = Mutex::new(asked);
    let [slow, posts] = [(); 2].map(|()| Arc::<AtomicUsize>::default());
    let posted = Arc::clone(&posts);
    let origin = Scene::new(move |_, mut origin| {
        while let Some(request) = origin.request() {
            if request.line.contains("/download ") {
                // The download never ends.
                origin.send("HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n");
                origin.send(vec![b'x'; 1000]);
                let _ = wait.lock().unwrap().recv();
                return;
            }
            let is_post = request.line.starts_with("POST");
            let is_slow = request.line.contains("/slow ");
            if is_post && posts.fetch_add(1, Ordering::SeqCst) == 0
                || is_slow && slow.fetch_add(1, Ordering::SeqCst) == 0
            {
                asked.lock().unwrap().send(()).unwrap();
                origin.request_ends();
                return;
            }
            origin.send(OK);
        }
    });
    let mut download = Client::to(ways.http);
    download.send(request("GET", &origin.url("/download"), ""));
    assert_eq!(download.head().unwrap().status, 200);
    download.read_exact(1000);
    assert!(ways.is_over_udp());
    let mut waiting = Client::to(ways.http);
    waiting.send(request("GET", &origin.url("/slow"), ""));
    let mut posting = Client::to(ways.http);
    posting.send(request("POST", &origin.url("/"), "Content-Length: 0\r\n"));
    for _ in 0..2 {
        requests.recv_timeout(PATIENCE).unwrap();
    }
    ways.network.blocked.store(true, Ordering::SeqCst);
    ways.network.mute();
    // A new request, and one whose response has not begun.
    assert_eq!(Client::to(ways.http).get(&origin.url("/")).body, b"ok");
    assert_eq!(waiting.answer("GET").status, 200);
    assert_eq!(posted.load(Ordering::SeqCst), 1, "it may not be repeated");
    assert!(ways.is_over_tcp());
    drop(go);
    ways.stop();
}

#[test]
fn requests_stay_on_udp_while_tcp_fails_too() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let tcp = listener.local_addr().unwrap();
    let (dialled, dials) = mpsc::channel();
    std::thread::spawn(move || {
        // Each connection ends at once. The thread ends after the test.
        while listener.accept().is_ok() && dialled.send(()).is_ok() {}
    });
    let ways = Ways::start_with_tcp("way-alone", false, |_| tcp);
    let (go, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let (asked, requests) = mpsc::channel();
    let asked = Mutex::new(asked);
    let origin = Scene::new(move |_, mut origin| {
        while let Some(request) = origin.request() {
            if request.line.contains("/slow ") {
                asked.lock().unwrap().send(()).unwrap();
                let _ = wait.lock().unwrap().recv();
            }
            origin.send(OK);
        }
    });
    assert_eq!(Client::to(ways.http).get(&origin.url("/")).body, b"ok");
    let mut waiting = Client::to(ways.http);
    waiting.send(request("GET", &origin.url("/slow"), ""));
    requests.recv_timeout(PATIENCE).unwrap();
    dials.try_iter().for_each(drop);
    ways.network.blocked.store(true, Ordering::SeqCst);
    // The path is silent, and another check of TCP follows.
    for _ in 0..2 {
        dials.recv_timeout(PATIENCE).unwrap();
    }
    ways.network.blocked.store(false, Ordering::SeqCst);
    go.send(()).unwrap();
    assert_eq!(waiting.answer("GET").status, 200);
    assert_eq!(requests.try_iter().count(), 0, "it was not repeated");
    assert!(ways.is_over_udp());
    ways.stop();
}

/// Passes the bytes of connections to an address on. Each waits for `delay` before it is passed on,
/// and `dialled` gets a message for it.
fn slow_tcp(to: SocketAddr, delay: Duration, dialled: mpsc::Sender<()>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        while let Ok((near, _)) = listener.accept()
            && dialled.send(()).is_ok()
        {
            std::thread::spawn(move || {
                std::thread::sleep(delay);
                let far = TcpStream::connect(to).unwrap();
                let (mut from, mut into) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                std::thread::spawn(move || {
                    // Either end may have ended.
                    let _ = std::io::copy(&mut from, &mut into);
                    let _ = into.shutdown(Shutdown::Write);
                });
                let (mut from, mut into) = (far, near);
                let _ = std::io::copy(&mut from, &mut into);
                let _ = into.shutdown(Shutdown::Write);
            });
        }
    });
    address
}

#[test]
fn requests_move_though_tcp_takes_long() {
    let (dialled, dials) = mpsc::channel();
    let ways = Ways::start_with_tcp("way-slow-tcp", false, |tls| {
        slow_tcp(tls, Duration::from_secs(1), dialled)
    });
    let (asked, requests) = mpsc::channel();
    let asked = Mutex::new(asked);
    let slow = Arc::<AtomicUsize>::default();
    let origin = Scene::new(move |_, mut origin| {
        while let Some(request) = origin.request() {
            let is_slow = request.line.contains("/slow ");
            if is_slow && slow.fetch_add(1, Ordering::SeqCst) == 0 {
                asked.lock().unwrap().send(()).unwrap();
                origin.request_ends();
                return;
            }
            origin.send(OK);
        }
    });
    assert_eq!(Client::to(ways.http).get(&origin.url("/")).body, b"ok");
    until("the session over UDP", || ways.is_over_udp());
    until("the other session is closed", || !ways.is_over_tcp());
    let mut waiting = Client::to(ways.http);
    waiting.send(request("GET", &origin.url("/slow"), ""));
    requests.recv_timeout(PATIENCE).unwrap();
    dials.try_iter().for_each(drop);
    ways.network.blocked.store(true, Ordering::SeqCst);
    ways.network.mute();
    assert_eq!(waiting.answer("GET").status, 200);
    // On a busy machine, a dial may have begun before.
    assert!(dials.try_iter().count() <= 1, "one dial suffices");
    ways.stop();
}

//! Early data (0-RTT): requests of clients that return.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use tandem::config::{ClientOptions, GatewayOptions};
use tandem::metrics::METRICS;
use tandem::runtime::Running;

use crate::certificates::Certificates;
use crate::harness::{Client, PATIENCE, Scene, block_on, endpoint, request};
use crate::paths::Forwarder;
use crate::provided::{OK, listener, start_client_of, start_gateway, stop};
use crate::slow_path::SlowPath;

/// A request as the origin has seen it.
#[derive(Debug)]
struct Seen {
    line: String,
    at: Instant,
    /// True if the request has the field `Early-Data: 1`.
    early: bool,
}

/// Starts an origin that refuses early requests for `/strict` and tells of each request.
fn origin() -> (Scene, Receiver<Seen>) {
    let (tell, seen) = mpsc::channel();
    let scene = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            let early = asked.field("early-data") == Some("1");
            let is_strict = asked.line.contains("/strict");
            let length = asked.field("content-length");
            client.read_exact(length.map_or(0, |text| text.parse().unwrap()));
            let is_large = asked.line.contains("/large");
            let is_page = asked.line.contains("/page");
            let is_image = asked.line.contains("/image");
            let at = Instant::now();
            // The test may have ended.
            let _ = tell.send(Seen {
                line: asked.line,
                at,
                early,
            });
            if early && is_strict {
                client.send("HTTP/1.1 425 Too Early\r\nContent-Length: 0\r\n\r\n");
            } else if is_page {
                client.send(
                    "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 18\r\n\r\n",
                );
                client.send("<img src=\"/image\">");
            } else if is_image {
                client.send(
                    "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 200000\r\n\r\n",
                );
                client.send([b'x'; 200_000]);
            } else if is_large {
                client.send("HTTP/1.1 200 OK\r\nContent-Length: 7000\r\n\r\n");
                client.send([b'x'; 7000]);
            } else {
                client.send(OK);
            }
        }
    });
    (scene, seen)
}

/// A gateway, a client of it whose sessions end soon, and an origin.
struct Pair {
    certificates: Certificates,
    gateway: Running,
    port: u16,
    client: Running,
    http: SocketAddr,
    origin: Scene,
    seen: Receiver<Seen>,
    path: SlowPath,
}

/// Makes a client connect for requests only, and end idle sessions after half a second.
pub(crate) fn short_lived(options: &mut ClientOptions) {
    options.preconnect = Some(false);
    options.idle_timeout = Some("500ms".parse().unwrap());
}

/// Waits until no client has a session with the gateway.
pub(crate) fn wait_for_end(gateway: &Running) {
    let begun = Instant::now();
    while !block_on(gateway.status().snapshot()).sessions.is_empty() {
        assert!(begun.elapsed() < PATIENCE, "the session does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    // The client has closed the session before.
}

impl Pair {
    fn start(round_trip: Duration) -> Self {
        Self::start_with(round_trip, |_| {}, |_| {})
    }

    fn start_with(
        round_trip: Duration,
        gateway: impl FnOnce(&mut GatewayOptions),
        client: impl FnOnce(&mut ClientOptions),
    ) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let certificates = Certificates::new(&format!("quic-early-{number}"));
        let (gateway, address) = start_gateway(&certificates, 0, gateway);
        let path = SlowPath::to(address, round_trip / 2);
        let ca = certificates.path("ca.pem");
        let (client, http) =
            start_client_of(&format!("h3+quic://{}?ca={ca}", path.address), |options| {
                short_lived(options);
                client(options);
            });
        let (origin, seen) = origin();
        Self {
            certificates,
            gateway,
            port: address.port(),
            client,
            http,
            origin,
            seen,
            path,
        }
    }

    /// Sends a request, and returns the origin's view of it and the time of the response.
    fn ask(&self, method: &str, path: &str, fields: &str) -> (Seen, Times) {
        let begun = Instant::now();
        let mut browser = Client::to(self.http);
        browser.send(request(method, &self.origin.url(path), fields));
        let answer = browser.answer(method);
        let response = begun.elapsed();
        assert_eq!(answer.status, 200);
        let seen = self.seen.recv_timeout(PATIENCE).unwrap();
        let request = seen.at - begun;
        (seen, Times { request, response })
    }

    fn get(&self, path: &str) -> (Seen, Times) {
        self.ask("GET", path, "")
    }

    /// Waits until the session of the client has ended.
    fn idle(&self) {
        wait_for_end(&self.gateway);
    }

    /// Opens and ends a session, which leaves tickets.
    fn visit(&self) -> Times {
        let (seen, times) = self.get("/first");
        assert!(!seen.early, "a new client has no ticket");
        self.idle();
        times
    }

    /// Starts the gateway again. It does not know its tickets any more.
    fn restart_gateway(self, change: impl FnOnce(&mut GatewayOptions)) -> Self {
        stop([self.gateway]);
        let (gateway, _) = start_gateway(&self.certificates, self.port, change);
        Self { gateway, ..self }
    }

    /// Returns the requests that the origin has seen and the test has not asked for.
    fn unexpected(&self) -> Vec<Seen> {
        std::thread::sleep(Duration::from_millis(300));
        self.seen.try_iter().collect()
    }

    fn stop(self) {
        stop([self.client, self.gateway]);
    }
}

/// The times from the start of a request to its arrival at the origin and to its response.
#[derive(Debug)]
struct Times {
    request: Duration,
    response: Duration,
}

#[test]
fn returning_client_saves_a_round_trip() {
    for round_trip in [300, 600].map(Duration::from_millis) {
        let pair = Pair::start(round_trip);
        let cold = pair.visit();
        let (seen, warm) = pair.get("/second");
        assert!(seen.early, "{seen:?}");
        let ratio = warm.response.as_secs_f64() / cold.response.as_secs_f64();
        println!("round trip {round_trip:?}: {warm:?} instead of {cold:?}, ratio {ratio:.2}");
        assert!(cold.request >= round_trip * 3 / 2, "{cold:?}");
        assert!(warm.request < round_trip, "before the handshake: {warm:?}");
        assert!(ratio < 0.75, "{ratio}");
        assert!(pair.unexpected().is_empty());
        pair.stop();
    }
}

/// For an unknown round trip, the time is a second.
#[test]
fn lost_flight_is_repeated_by_the_earlier_round_trip() {
    let pair = Pair::start(Duration::from_millis(100));
    pair.visit();
    // A machine that is busy for a moment may take longer.
    let mut requests = (0..5).map(|_| {
        pair.path.lose_first_flight();
        let (seen, times) = pair.get("/second");
        pair.idle();
        println!("{seen:?} {times:?}");
        assert!(times.request >= Duration::from_millis(200), "{times:?}");
        times.request
    });
    assert!(requests.any(|request| request < Duration::from_millis(900)));
    pair.stop();
}

/// A server sends a push before the handshake is over. Its bytes are not those of a client, which
/// keeps a limited number of them for a second transmission.
#[test]
fn returning_client_gets_a_long_push() {
    const BROWSER: &str = "User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 \
                           Firefox/128.0\r\nAccept-Encoding: gzip, deflate\r\nAccept: ";
    let pair = Pair::start(Duration::from_millis(300));
    pair.visit();
    let (page, _) = pair.ask("GET", "/page", &format!("{BROWSER}text/html\r\n"));
    assert!(page.early, "{page:?}");
    let fields = format!("{BROWSER}image/avif,image/webp,*/*\r\n");
    let (image, _) = pair.ask("GET", "/image", &fields);
    assert!(image.line.contains("/image"), "{image:?}");
    assert!(pair.unexpected().is_empty(), "the push answers the browser");
    pair.stop();
}

#[test]
fn early_response_is_not_limited_by_the_request() {
    let round_trip = Duration::from_millis(600);
    let pair = Pair::start(round_trip);
    pair.visit();
    // A gateway sends at most three times the received bytes to an address without a token.
    let (seen, times) = pair.get("/large");
    assert!(
        seen.early && times.response < round_trip * 7 / 4,
        "{times:?}"
    );
    pair.stop();
}

#[test]
fn unsafe_request_waits_for_the_handshake() {
    let round_trip = Duration::from_millis(300);
    let pair = Pair::start(round_trip);
    pair.visit();
    let (seen, times) = pair.ask("POST", "/post", "Content-Length: 0\r\n");
    assert!(!seen.early && seen.line.starts_with("POST"), "{seen:?}");
    assert!(times.request >= round_trip * 3 / 2, "{times:?}");
    assert!(pair.unexpected().is_empty());
    pair.stop();
}

#[test]
fn early_data_of_an_unknown_ticket_is_sent_again() {
    let pair = Pair::start(Duration::from_millis(100));
    pair.visit();
    let pair = pair.restart_gateway(|_| {});
    let rejected = METRICS.early_data_rejected.value();
    let connections = pair.path.connections();
    std::thread::scope(|scope| {
        let posted = scope.spawn(|| {
            let mut browser = Client::to(pair.http);
            let fields = "Content-Length: 3\r\n";
            browser.send(request("POST", &pair.origin.url("/post"), fields) + "abc");
            browser.answer("POST").status
        });
        for path in ["/a", "/b"] {
            let status = Client::to(pair.http).get(&pair.origin.url(path)).status;
            assert_eq!(status, 200, "{path}");
        }
        assert_eq!(posted.join().unwrap(), 200);
    });
    assert!(METRICS.early_data_rejected.value() > rejected);
    // No other connection has carried the requests.
    assert_eq!(pair.path.connections(), connections + 1);
    let mut seen = pair.unexpected();
    assert!(seen.iter().all(|seen| !seen.early), "{seen:?}");
    seen.sort_by(|one, other| one.line.cmp(&other.line));
    let lines: Vec<_> = seen.iter().map(|seen| &seen.line[..6]).collect();
    assert_eq!(lines, ["GET /a", "GET /b", "POST /"]);
    // The new gateway has issued tickets.
    pair.idle();
    assert!(pair.get("/early").0.early);
    pair.stop();
}

#[test]
fn much_early_data_is_sent_again_after_a_rejection() {
    const REQUESTS: usize = 30;
    let pair = Pair::start(Duration::from_millis(300));
    pair.visit();
    let pair = pair.restart_gateway(|_| {});
    let connections = pair.path.connections();
    let mut cancelled = Client::to(pair.http);
    cancelled.send(request("GET", &pair.origin.url("/cancelled"), ""));
    // More than a client keeps.
    let fields = format!("X-Long: {}\r\n", "x".repeat(6000));
    std::thread::scope(|scope| {
        for number in 0..REQUESTS {
            let (http, url) = (pair.http, pair.origin.url(&format!("/{number}")));
            let fields = &fields;
            scope.spawn(move || {
                let mut browser = Client::to(http);
                browser.send(request("GET", &url, fields));
                assert_eq!(browser.answer("GET").status, 200);
            });
        }
        std::thread::sleep(Duration::from_millis(50));
        drop(cancelled);
    });
    // No other connection has carried the requests.
    assert_eq!(pair.path.connections(), connections + 1);
    let seen = pair.unexpected();
    let lines = seen.iter().map(|seen| &seen.line);
    let mut lines: Vec<_> = lines.filter(|line| !line.contains("/cancelled")).collect();
    lines.sort();
    lines.dedup();
    assert_eq!(lines.len(), REQUESTS, "{lines:?}");
    assert!(seen.len() <= REQUESTS + 1 && seen.iter().all(|seen| !seen.early));
    pair.stop();
}

/// The client opened more streams than the gateway permits now.
#[test]
fn rejected_early_data_without_room_moves() {
    const REQUESTS: usize = 12;
    let pair = Pair::start(Duration::from_millis(100));
    // Each session leaves more tickets than it shows.
    pair.visit();
    for _ in 0..3 {
        assert!(pair.get("/again").0.early);
        pair.idle();
    }
    let pair = pair.restart_gateway(|options| options.max_streams = Some(8));
    let connections = pair.path.connections();
    std::thread::scope(|scope| {
        for number in 0..REQUESTS {
            let (http, url) = (pair.http, pair.origin.url(&format!("/{number}")));
            scope.spawn(move || assert_eq!(Client::to(http).get(&url).status, 200));
        }
        let mut browser = Client::to(pair.http);
        let fields = "Content-Length: 3\r\n";
        browser.send(request("POST", &pair.origin.url("/post"), fields) + "abc");
        assert_eq!(browser.answer("POST").status, 200);
    });
    assert_eq!(pair.path.connections(), connections + 2);
    let seen = pair.unexpected();
    assert_eq!(seen.len(), REQUESTS + 1, "{seen:?}");
    pair.stop();
}

#[test]
fn repeated_first_flight_has_no_effect() {
    let pair = Pair::start(Duration::from_millis(100));
    pair.visit();
    pair.path.record();
    let (seen, _) = pair.get("/once");
    assert!(seen.early, "{seen:?}");
    // The client has sent these before the gateway's first datagram arrived.
    let flight = pair.path.first_flight();
    assert!(!flight.is_empty());
    pair.idle();
    // The gateway knows the numbers of the connection for a while after its end.
    std::thread::sleep(Duration::from_secs(3));
    for _ in 0..3 {
        pair.path.send_as_another(&flight);
        let again = pair.unexpected();
        assert!(again.is_empty(), "{again:?}");
    }
    pair.stop();
}

#[test]
fn isolation_keys_share_no_ticket() {
    let pair = Pair::start(Duration::from_millis(50));
    let as_user = |user: &str| {
        // The base64 form of "a:" and "b:".
        let (seen, _) = pair.ask(
            "GET",
            "/",
            &format!("Proxy-Authorization: Basic {user}\r\n"),
        );
        pair.idle();
        seen.early
    };
    assert!(!as_user("YTo="), "the first session");
    assert!(!as_user("Yjo="), "another key");
    assert!(as_user("YTo=") && as_user("Yjo="));
    assert!(!pair.get("/").0.early, "no key");
    pair.stop();
}

#[test]
fn gateway_repeats_a_request_that_was_too_early() {
    let round_trip = Duration::from_millis(200);
    let pair = Pair::start(round_trip);
    pair.visit();
    let (first, _) = pair.get("/strict");
    assert!(first.early);
    let again = pair.unexpected();
    assert_eq!(again.len(), 1, "{again:?}");
    assert!(!again[0].early && again[0].line == first.line, "{again:?}");
    // The end of the handshake arrives a round trip after the request.
    assert!(again[0].at - first.at >= round_trip * 3 / 4, "{again:?}");
    pair.stop();
}

#[test]
fn each_end_can_turn_early_data_off() {
    let off = |gateway: Option<bool>, client: Option<bool>| {
        Pair::start_with(
            Duration::from_millis(20),
            |options| options.early_data = gateway,
            |options| options.early_data = client,
        )
    };
    for pair in [off(Some(false), None), off(None, Some(false))] {
        pair.visit();
        assert!(!pair.get("/").0.early);
        pair.stop();
    }
}

#[test]
fn certified_client_sends_no_early_data() {
    let certificates = Certificates::new("quic-early-certified");
    let ca = certificates.path("ca.pem");
    let (gateway, address) = start_gateway(&certificates, 0, |options| {
        options.open = None;
        options.auth = vec![format!("client-ca={ca}")];
    });
    let (cert, key) = (
        certificates.path("client.pem"),
        certificates.path("client.key"),
    );
    let way = format!("h3+quic://{address}?ca={ca}&cert={cert}&key={key}");
    let (client, http) = start_client_of(&way, short_lived);
    let (origin, seen) = origin();
    for _ in 0..2 {
        assert_eq!(Client::to(http).get(&origin.url("/")).status, 200);
        assert!(!seen.recv_timeout(PATIENCE).unwrap().early);
        // The next request needs another connection.
        wait_for_end(&gateway);
    }
    stop([client, gateway]);
}

/// Starts a gateway with two ways and a client of both. `between` makes the path of the datagrams
/// from the gateway's address, and returns the address for the client.
fn start_two_ways<P>(
    name: &str,
    between: impl FnOnce(SocketAddr) -> (P, SocketAddr),
) -> (Running, Running, SocketAddr, P) {
    let certificates = Certificates::new(name);
    let tls = endpoint(&format!("h2+tls://127.0.0.1:0?{}", certificates.identity()));
    let (gateway, udp) = start_gateway(&certificates, 0, |options| {
        options.listen = vec![endpoint(&listener(&certificates, 0)), tls.clone()];
    });
    let tls = gateway.address(&tls).unwrap();
    let (path, udp) = between(udp);
    let ca = certificates.path("ca.pem");
    let ways = format!("h3+quic://{udp}?ca={ca},h2+tls://{tls}?ca={ca}");
    let (client, http) = start_client_of(&ways, short_lived);
    (gateway, client, http, path)
}

/// The client gives an early request two round trips, and 300 ms at least. On a path without delay,
/// a busy machine exceeds these, and ways over datagrams are then suspended.
#[test]
fn early_request_by_one_of_several_ways_arrives_once() {
    const ROUND_TRIP: Duration = Duration::from_secs(1);
    let (gateway, client, http, _path) = start_two_ways("quic-early-ways", |gateway| {
        let path = SlowPath::to(gateway, ROUND_TRIP / 2);
        let address = path.address;
        (path, address)
    });
    let (origin, seen) = origin();
    let get = || {
        assert_eq!(Client::to(http).get(&origin.url("/")).status, 200);
        let first = seen.recv_timeout(PATIENCE).unwrap();
        // A repeated request would leave after two round trips. The session ends meanwhile.
        std::thread::sleep(2 * ROUND_TRIP + Duration::from_millis(500));
        (first.early, seen.try_iter().count())
    };
    // TCP answers sooner, and QUIC takes over.
    assert_eq!(get(), (false, 0));
    // TCP may win the race on a busy machine.
    let mut early = false;
    for _ in 0..5 {
        let (is_early, others) = get();
        assert_eq!(others, 0);
        early |= is_early;
    }
    assert!(early);
    stop([client, gateway]);
}

#[test]
fn request_by_a_silent_way_moves_to_another() {
    for (method, fields) in [("GET", ""), ("POST", "Content-Length: 0\r\n")] {
        let name = format!("quic-silent-{method}");
        let (gateway, client, http, network) = start_two_ways(&name, |gateway| {
            let network = Forwarder::to(gateway);
            let address = network.address;
            (network, address)
        });
        let (origin, seen) = origin();
        assert_eq!(Client::to(http).get(&origin.url("/")).status, 200);
        seen.recv_timeout(PATIENCE).unwrap();
        std::thread::sleep(Duration::from_millis(1500));
        // The client cannot know that datagrams are lost now.
        network.blocked.store(true, Ordering::SeqCst);
        network.mute();
        let mut browser = Client::to(http);
        browser.send(request(method, &origin.url("/"), fields));
        assert_eq!(browser.answer(method).status, 200, "TCP takes over");
        assert!(!seen.recv_timeout(PATIENCE).unwrap().early);
        assert_eq!(seen.try_iter().count(), 0);
        stop([client, gateway]);
    }
}

#[test]
fn returning_clients_lose_and_repeat_no_request() {
    let pair = Pair::start(Duration::from_millis(30));
    let users = ["YTo=", "Yjo=", "Yzo=", "ZDo=", "ZTo=", "Zjo="];
    let mut early = 0;
    for _ in 0..3 {
        std::thread::scope(|scope| {
            for user in users {
                let (http, url) = (pair.http, pair.origin.url("/"));
                scope.spawn(move || {
                    let fields = format!("Proxy-Authorization: Basic {user}\r\n");
                    let mut browser = Client::to(http);
                    browser.send(request("GET", &url, &fields));
                    assert_eq!(browser.answer("GET").status, 200);
                });
            }
        });
        let seen = pair.unexpected();
        assert_eq!(seen.len(), users.len(), "{seen:?}");
        early += seen.iter().filter(|seen| seen.early).count();
        pair.idle();
    }
    assert_eq!(early, 2 * users.len());
    pair.stop();
}

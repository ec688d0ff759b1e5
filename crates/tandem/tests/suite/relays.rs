//! Tests of relays: admission at each hop, a session for each client, shared tunnels, and chains
//! that lead back to themselves. The tests of messages and tunnels also run over a chain.

use std::time::{Duration, Instant};

use tandem::config::RelayOptions;
use tandem::config::units::Size;
use tandem::runtime::Running;
use tandem::status::{Opened, SessionStatus};
use tandem::transport::registry::Transports;

use crate::admission::secret;
use crate::harness::{
    Client, PATIENCE, Pair, Scene, Way, block_on, client_options, gateway_options, start_client,
    start_client_with, start_gateway, start_relay, wait_for,
};
use crate::many_streams::memory::Network;
use crate::patience::until;
use crate::tunnel_scenes::{echo, endless, open_tunnel, tunnel};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const LISTEN: &str = "h2+tcp://127.0.0.1:0";

/// Two clients, and a relay whose connections to the gateway are counted.
struct Chain {
    /// The HTTP listeners of the clients.
    http: [std::net::SocketAddr; 2],
    way: Way,
    relay: Running,
    clients: Vec<Running>,
    _gateway: Running,
}

impl Chain {
    fn start(change: impl FnOnce(&mut RelayOptions)) -> Self {
        let (gateway, address) = start_gateway(gateway_options());
        let way = Way::to(address);
        let next = format!("h2+tcp://{}", way.address);
        let (relay, relayed) = start_relay(LISTEN, &next, &Transports::default(), change);
        let client = || {
            let mut options = client_options(&format!("h2+tcp://{relayed}"));
            options.preconnect = Some(false);
            let (running, http, _) = start_client(options);
            (running, http)
        };
        let ((first, http), (second, other)) = (client(), client());
        Self {
            http: [http, other],
            way,
            relay,
            clients: vec![first, second],
            _gateway: gateway,
        }
    }

    /// Returns the number of sessions that the relay has opened and that are still open.
    fn sessions(&self) -> usize {
        let status = block_on(self.relay.status().snapshot());
        let is_own = |session: &&SessionStatus| matches!(session.opened, Opened::Here);
        status.sessions.iter().filter(is_own).count()
    }
}

#[test]
fn each_client_has_its_session_to_the_next_hop() {
    let origin = Scene::answering(OK);
    let mut chain = Chain::start(|_| {});
    for http in chain.http {
        for _ in 0..3 {
            assert_eq!(Client::to(http).get(&origin.url("/")).body, b"ok");
        }
    }
    assert_eq!((chain.way.connections(), chain.sessions()), (2, 2));
    let first = chain.clients.remove(0);
    block_on(first.drain(Duration::ZERO));
    until("the session outlived its client", || chain.sessions() == 1);
    assert_eq!(Client::to(chain.http[1]).get(&origin.url("/")).body, b"ok");
    assert_eq!(chain.way.connections(), 2);
}

#[test]
fn tunnels_share_a_session_only_where_enabled() {
    let (origin, echo) = (Scene::answering(OK), echo());
    for (shared, sessions) in [(false, 2), (true, 1)] {
        let chain = Chain::start(|relay| relay.share_tunnels = Some(shared));
        let mut tunnels = chain.http.map(|http| tunnel(http, &echo));
        assert_eq!(chain.way.connections(), sessions, "{shared}");
        for http in chain.http {
            assert_eq!(Client::to(http).get(&origin.url("/")).body, b"ok");
        }
        // Requests have a session for each client in both cases.
        assert_eq!(chain.way.connections(), if shared { 3 } else { 2 });
        for client in &mut tunnels {
            client.send("pong");
            assert_eq!(client.read_exact(4), b"pong");
        }
    }
}

#[test]
fn unread_tunnels_stall_no_tunnel_of_others() {
    let ((full, told), echo) = (endless(0), echo());
    let chain = Chain::start(|relay| {
        relay.share_tunnels = Some(true);
        relay.receive_budget = Some(Size(1 << 20));
    });
    let unread: Vec<_> = (0..10).map(|_| open_tunnel(chain.http[0], &full)).collect();
    wait_for(&told, unread.len());
    let mut other = tunnel(chain.http[1], &echo);
    other.send("pong");
    assert_eq!(other.read_exact(4), b"pong");
    // Eight tunnels share a session with those of others, and two have one for their client.
    assert_eq!(chain.way.connections(), 2);
}

#[test]
fn each_hop_has_its_own_token() {
    let origin = Scene::new(|_, mut client| {
        while let Some(asked) = client.request() {
            assert!(asked.field("proxy-authorization").is_none());
            assert!(
                asked
                    .fields
                    .iter()
                    .all(|(name, _)| !name.starts_with("tandem-"))
            );
            client.send(OK);
        }
    });
    let near = secret("near", "correct-horse-battery-staple\n");
    let far = secret("far", "another-horse-battery-staple\n");
    let (near, far) = (near.display().to_string(), far.display().to_string());
    let mut options = gateway_options();
    (options.open, options.auth) = (None, vec![format!("token-file={far}")]);
    let (_gateway, gateway) = start_gateway(options);
    let next = format!("h2+tcp://{gateway}");
    for (shown, passed, status) in [
        (Some(&near), Some(&far), 200),
        (None, Some(&far), 407),
        (Some(&far), Some(&far), 407),
        // The client's token is right, so the failure is no verdict on it.
        (Some(&near), None, 502),
        (Some(&near), Some(&near), 502),
    ] {
        let (_relay, relay) = start_relay(LISTEN, &next, &Transports::default(), |relay| {
            (relay.open, relay.auth) = (None, vec![format!("token-file={near}")]);
            relay.token_file = passed.cloned();
        });
        let mut options = client_options(&format!("h2+tcp://{relay}"));
        options.token_file = shown.cloned();
        let (_client, http, _) = start_client(options);
        for _ in 0..2 {
            let answer = Client::to(http).get(&origin.url("/"));
            assert_eq!(answer.status, status, "{shown:?} {passed:?}");
            let body = String::from_utf8(answer.body).unwrap();
            let names_relay = body.contains("does not admit the relay");
            assert_eq!(names_relay, status == 502, "{body}");
        }
    }
    std::fs::remove_file(near).unwrap();
    std::fs::remove_file(far).unwrap();
}

#[test]
fn chain_that_leads_back_to_itself_ends() {
    let origin = Scene::answering(OK);
    let mut transports = Transports::default();
    // This network has one listener, so the relay dials itself.
    transports.add(Network::new());
    let hop = "h3+memory://127.0.0.1:1";
    let (relay, _) = start_relay("h3+memory://127.0.0.1:0", hop, &transports, |_| {});
    let mut options = client_options(hop);
    options.preconnect = Some(false);
    let (_client, http, _) = start_client_with(options, &transports);
    let answer = Client::to(http).get(&origin.url("/"));
    let body = String::from_utf8(answer.body).unwrap();
    assert_eq!(answer.status, 502, "{body}");
    assert!(body.contains("leads back to one of them"), "{body}");
    let status = block_on(relay.status().snapshot());
    let is_own = |session: &&SessionStatus| matches!(session.opened, Opened::Here);
    assert_eq!(status.sessions.iter().filter(is_own).count(), 16);
}

#[test]
fn unreachable_next_hop_fails_closed() {
    let (tell, told) = std::sync::mpsc::channel();
    let origin = Scene::new(move |_, _| tell.send(String::new()).unwrap());
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    // The listener never accepts for HTTP/2: its other end closes each connection.
    let next = format!("h2+tcp://{}", gone.local_addr().unwrap());
    std::thread::spawn(move || gone.incoming().for_each(drop));
    let (_relay, relay) = start_relay(LISTEN, &next, &Transports::default(), |_| {});
    let (_client, http, _) = start_client(client_options(&format!("h2+tcp://{relay}")));
    assert_eq!(Client::to(http).get(&origin.url("/")).status, 502);
    let mut client = Client::to(http);
    client.send("CONNECT site.test:443 HTTP/1.1\r\nHost: site.test:443\r\n\r\n");
    let head = client.head();
    assert!(head.is_ok_and(|head| head.status == 502) || client.is_closed());
    assert!(told.try_recv().is_err(), "the relay connected elsewhere");
}

#[test]
fn cancelled_request_ends_at_the_origin() {
    let (tell, told) = std::sync::mpsc::channel();
    let origin = Scene::new(move |_, mut client| {
        let asked = client.request().unwrap();
        client.send("HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\nbegun");
        assert!(client.request_ends());
        tell.send(asked.line).unwrap();
    });
    let pair = Pair::with("relayed", |_| {}, |_| {});
    let mut client = pair.connect();
    client.send(crate::harness::request("GET", &origin.url("/long"), ""));
    // Unread bytes make the close a reset. A mere end of the browser's bytes would be no reason.
    assert_eq!(client.stream.get_ref().peek(&mut [0]).unwrap(), 1);
    drop(client);
    assert_eq!(wait_for(&told, 1), ["GET /long HTTP/1.1"]);
}

/// A promise of SPDY has no fields, but those of h2 behind the relay have.
#[test]
fn pushes_pass_from_h2_to_spdy() {
    let (tell, told) = std::sync::mpsc::channel();
    let origin = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            let path = asked.line.split(' ').nth(1).unwrap().to_owned();
            let link = match path.as_str() {
                "/page" => "Link: </a.css>; rel=preload; as=style\r\n",
                _ => "",
            };
            client.send(format!(
                "HTTP/1.1 200 OK\r\n{link}Content-Length: {}\r\n\r\n{path}",
                path.len()
            ));
            tell.send(path).unwrap();
        }
    });
    let mut options = gateway_options();
    options.hold_out = Some(0.0);
    let (_gateway, gateway) = start_gateway(options);
    let next = format!("h2+tcp://{gateway}");
    let transports = Transports::default();
    let (_relay, relay) = start_relay("spdy3.1+tcp://127.0.0.1:0", &next, &transports, |_| {});
    let (_client, http, _) = start_client(client_options(&format!("spdy3.1+tcp://{relay}")));
    let mut client = Client::to(http);
    assert_eq!(client.get(&origin.url("/page")).body, b"/page");
    assert_eq!(wait_for(&told, 2), ["/a.css", "/page"]);
    assert_eq!(client.get(&origin.url("/a.css")).body, b"/a.css");
    assert!(told.try_recv().is_err(), "the origin was asked again");
}

#[test]
fn relay_without_push_asks_for_none() {
    let (tell, told) = std::sync::mpsc::channel();
    let origin = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            tell.send(asked.line).unwrap();
            client.send(
                "HTTP/1.1 200 OK\r\nLink: </a.css>; rel=preload; as=style\r\n\
                 Content-Length: 2\r\n\r\nok",
            );
        }
    });
    let chain = Chain::start(|relay| relay.push = Some(false));
    for _ in 0..3 {
        assert_eq!(Client::to(chain.http[0]).get(&origin.url("/")).body, b"ok");
    }
    assert_eq!(told.try_iter().collect::<Vec<_>>(), ["GET / HTTP/1.1"; 3]);
}

/// The gateway pushes a resource again only after a report that the browser has used it.
#[test]
fn reports_on_pushes_reach_the_gateway() {
    let (tell, told) = std::sync::mpsc::channel();
    let origin = Scene::new(move |_, mut client| {
        while let Some(asked) = client.request() {
            let path = asked.line.split(' ').nth(1).unwrap().to_owned();
            // A page makes the client open its companion.
            let fields = match path.as_str() {
                "/page" => "Content-Type: text/html\r\nLink: </a.css>; rel=preload; as=style\r\n",
                _ => "Content-Type: text/css\r\n",
            };
            tell.send(path).unwrap();
            client.send(format!(
                "HTTP/1.1 200 OK\r\n{fields}Content-Length: 2\r\n\r\nok"
            ));
        }
    });
    let pair = Pair::with("relayed", |gateway| gateway.hold_out = Some(0.0), |_| {});
    let mut client = pair.connect();
    let mut load = |path: &str| assert_eq!(client.get(&origin.url(path)).body, b"ok");
    load("/page");
    assert_eq!(wait_for(&told, 2), ["/a.css", "/page"]);
    load("/a.css");
    assert!(told.try_recv().is_err(), "the push answered the request");
    let begun = Instant::now();
    while !told.try_iter().any(|path| path == "/a.css") {
        assert!(begun.elapsed() < PATIENCE, "the gateway received no report");
        std::thread::sleep(Duration::from_millis(10));
        load("/page");
    }
}

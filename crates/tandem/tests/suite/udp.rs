//! Tests of UDP: SOCKS5 associations at the client, carried as CONNECT-UDP to the gateway.

use std::io::Read as _;
use std::net::{Shutdown, SocketAddr, UdpSocket};
use std::sync::Arc;

use tandem::config::client::{Fallback, SoloMode};
use tandem::config::{ClientOptions, GatewayOptions};
use tandem::metrics::METRICS;
use tandem::runtime::Running;

use crate::harness::{
    Client, Gate, PATIENCE, Pair, Scene, block_on, client_options, endpoint, gateway_options,
    request, start_client, start_gateway,
};

/// A program with an association, and its connection.
struct Program {
    socket: UdpSocket,
    connection: Client,
}

impl Program {
    fn start(pair: &Pair) -> Self {
        let mut connection = Client::to(pair.socks);
        let relay = associate(&mut connection, 0).expect("an association");
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        Self::at(socket, relay, connection)
    }

    fn at(socket: UdpSocket, relay: SocketAddr, connection: Client) -> Self {
        socket.connect(relay).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { socket, connection }
    }

    fn send(&self, to: SocketAddr, payload: &[u8]) {
        let mut wire = head(to);
        wire.extend_from_slice(payload);
        self.socket.send(&wire).unwrap();
    }

    /// Returns the payload of the next datagram, which must come from this address.
    fn receive(&self, from: SocketAddr) -> Vec<u8> {
        let mut buffer = vec![0; 65_535];
        let count = self.socket.recv(&mut buffer).expect("an answer");
        let head = head(from);
        assert_eq!(buffer[..head.len()], head);
        buffer[head.len()..count].to_vec()
    }

    /// Sends until an answer arrives, since a datagram may be lost.
    fn ask(&self, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
        self.send(to, payload);
        self.receive(to)
    }
}

/// The head of a datagram (RFC 1928 section 7).
fn head(at: SocketAddr) -> Vec<u8> {
    let SocketAddr::V4(at) = at else {
        panic!("the tests use IPv4")
    };
    let mut head = vec![0, 0, 0, 1];
    head.extend(at.ip().octets());
    head.extend(at.port().to_be_bytes());
    head
}

/// Asks for an association with a program at this port; 0 if the program does not know it. Returns
/// the address for datagrams, or the code of the refusal.
fn associate(client: &mut Client, port: u16) -> Result<SocketAddr, u8> {
    client.send([5, 1, 0]);
    assert_eq!(client.read_exact(2), [5, 0]);
    let [high, low] = port.to_be_bytes();
    client.send([5, 3, 0, 1, 0, 0, 0, 0, high, low]);
    let reply = client.read_exact(10);
    if reply[1] != 0 {
        return Err(reply[1]);
    }
    let ip: [u8; 4] = reply[4..8].try_into().unwrap();
    Ok((ip, u16::from_be_bytes([reply[8], reply[9]])).into())
}

/// The request of a program for datagrams to an address of this machine.
fn upgrade(to: SocketAddr) -> String {
    let port = to.port();
    format!(
        "GET http://proxy.test/.well-known/masque/udp/127.0.0.1/{port}/ HTTP/1.1\r\n\
         Host: proxy.test\r\nConnection: Upgrade\r\nUpgrade: connect-udp\r\n\
         Capsule-Protocol: ?1\r\n\r\n"
    )
}

/// A server that answers each datagram with itself and the address that it came from.
fn echo() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let server = socket.try_clone().unwrap();
    std::thread::spawn(move || {
        let mut buffer = vec![0; 65_535];
        while let Ok((count, from)) = server.recv_from(&mut buffer) {
            if buffer[..count] == *b"end" {
                return;
            }
            let _ = server.send_to(&buffer[..count], from);
        }
    });
    (socket, address)
}

fn with_udp(options: &mut GatewayOptions) {
    options.udp = Some(true);
}

#[test]
fn datagrams_pass_over_each_session() {
    for session in ["h2", "h3", "relayed"] {
        let (_, address) = echo();
        let pair = Pair::with(session, with_udp, |_| {});
        let program = Program::start(&pair);
        for len in [0, 1, 1200, 30_000, 65_000] {
            let payload: Vec<_> = (0..len).map(|at| at as u8).collect();
            assert_eq!(program.ask(address, &payload), payload, "{session}");
        }
        let (_, other) = echo();
        assert_eq!(program.ask(other, b"other"), b"other");
        assert_eq!(program.ask(address, b"again"), b"again");
    }
}

#[test]
fn http_listener_upgrades_to_udp() {
    let (_, address) = echo();
    let pair = Pair::with("h2", with_udp, |_| {});
    let mut client = pair.connect();
    client.send(upgrade(address));
    let head = client.head().unwrap();
    assert_eq!(
        (head.status, head.field("capsule-protocol")),
        (101, Some("?1"))
    );
    let capsule = b"\x00\x03\x00hi";
    client.send(capsule);
    assert_eq!(client.read_exact(capsule.len()), capsule);
}

/// Starts a gateway that carries UDP or not. Returns its URL.
fn gateway(udp: bool) -> (Running, String) {
    let (running, address) = start_gateway(GatewayOptions {
        udp: Some(udp),
        ..gateway_options()
    });
    (running, format!("h2+tcp://{address}"))
}

/// The authority of a program's request names its proxy, which may have a route of its own.
#[test]
fn target_of_a_program_chooses_its_gateway() {
    let (_, address) = echo();
    let (_carrying, with_udp) = gateway(true);
    let (_refusing, without) = gateway(false);
    for (of_target, of_proxy, status) in [(&with_udp, &without, 101), (&without, &with_udp, 403)] {
        for default in [of_proxy, of_target] {
            let route = |hosts: &str, url: &str| format!("{hosts}={url}").parse().unwrap();
            let options = ClientOptions {
                route: vec![route("127.0.0.1", of_target), route("proxy.test", of_proxy)],
                ..client_options(default)
            };
            let (_client, http, socks) = start_client(options);
            let mut client = Client::to(http);
            client.send(upgrade(address));
            assert_eq!(client.head().unwrap().status, status);
            let mut client = Client::to(socks);
            assert_eq!(client.socks("proxy.test:80", None), 0);
            client.send(upgrade(address));
            assert_eq!(client.head().unwrap().status, status);
        }
    }
}

#[test]
fn target_without_a_route_gets_no_gateway() {
    let target = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = target.local_addr().unwrap();
    let (_running, gateway) = gateway(true);
    let options = ClientOptions {
        gateway: Vec::new(),
        route: vec![format!("proxy.test={gateway}").parse().unwrap()],
        ..client_options(&gateway)
    };
    let (_client, http, _) = start_client(options);
    for (request, status) in [
        (upgrade(address), 502),
        (upgrade(address).replace("127.0.0.1", "a.onion"), 502),
        (upgrade(address).replace("127.0.0.1", "a/b"), 400),
    ] {
        let mut client = Client::to(http);
        client.send(request);
        assert_eq!(client.answer("GET").status, status);
    }
    target.set_nonblocking(true).unwrap();
    assert!(target.recv(&mut [0; 8]).is_err());
}

/// Neither end takes a body that ends inside a capsule for a whole one (RFC 9297 section 3.3).
#[test]
fn gateway_resets_a_tunnel_that_ends_inside_a_capsule() {
    let (_, address) = echo();
    let pair = Pair::with("h2", with_udp, |_| {});
    for (last, is_whole) in [(&b"\x00\x03\x00hi"[..], true), (b"\x00\x04\x00hi", false)] {
        let mut client = pair.connect();
        client.send(upgrade(address));
        assert_eq!(client.head().unwrap().status, 101);
        client.send(last);
        let stream = client.stream.get_mut();
        stream.shutdown(Shutdown::Write).unwrap();
        let ended = stream.read_to_end(&mut Vec::new());
        assert_eq!(ended.is_ok(), is_whole, "{ended:?}");
    }
}

/// Checks that both listeners of a client refuse UDP. The page of the refusal names the option.
fn assert_refused(socks: SocketAddr, http: SocketAddr, option: &str) {
    assert_eq!(associate(&mut Client::to(socks), 0), Err(7));
    let mut client = Client::to(http);
    client.send(upgrade(([127, 0, 0, 1], 9).into()));
    let answer = client.answer("GET");
    assert_eq!(answer.status, 403);
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(text.contains(option), "{text}");
}

/// No listener carries UDP, neither to the gateway nor to origins without it.
#[test]
fn client_refuses_udp_behind_a_proxy() {
    for fallback in [Fallback::None, Fallback::Via] {
        let tor = Scene::new(|_, _| {});
        let via = format!("socks5://{}", tor.address);
        let pair = Pair::with("h2", with_udp, |options: &mut ClientOptions| {
            options.via = Some(via.parse().unwrap());
            options.fallback = Some(fallback);
            options.preconnect = Some(false);
        });
        assert_refused(pair.socks, pair.http, "--via");
    }
}

#[test]
fn client_without_a_gateway_refuses_udp() {
    let options = ClientOptions {
        solo: Some(SoloMode::Direct),
        ..ClientOptions::default()
    };
    let (_running, http, socks) = start_client(options);
    assert_refused(socks, http, "--solo");
}

#[test]
fn gateway_sends_no_udp_without_the_option() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let pair = Pair::with("h2", |_| {}, |_| {});
    let program = Program::start(&pair);
    program.send(server.local_addr().unwrap(), b"hello");
    // The session carries other exchanges on.
    let origin = Scene::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    assert_eq!(pair.connect().get(&origin.url("/")).body, b"ok");
    server.set_nonblocking(true).unwrap();
    assert!(server.recv(&mut [0; 64]).is_err());
}

#[test]
fn policy_decides_on_udp_destinations() {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    let refused = server.local_addr().unwrap();
    let (_, permitted) = echo();
    let change = |options: &mut GatewayOptions| {
        with_udp(options);
        options.allow_dest = vec![format!("{permitted}").parse().unwrap()];
    };
    let pair = Pair::with("h2", change, |_| {});
    let program = Program::start(&pair);
    let before = METRICS.destinations_refused.value();
    program.send(refused, b"hello");
    assert_eq!(program.ask(permitted, b"hello"), b"hello");
    while METRICS.destinations_refused.value() == before {
        std::thread::yield_now();
    }
    server.set_nonblocking(true).unwrap();
    assert!(server.recv(&mut [0; 64]).is_err());
}

#[test]
fn association_serves_the_program_that_began_it() {
    let (_, address) = echo();
    let pair = Pair::with("h2", with_udp, |_| {});
    let program = Program::start(&pair);
    assert_eq!(program.ask(address, b"mine"), b"mine");
    for from in ["127.0.0.1:0", "127.0.0.3:0"] {
        let stranger = UdpSocket::bind(from).unwrap();
        let mut wire = head(address);
        wire.extend_from_slice(b"strange");
        stranger
            .send_to(&wire, program.socket.peer_addr().unwrap())
            .unwrap();
    }
    assert_eq!(program.ask(address, b"still mine"), b"still mine");
}

/// A stranger that sends first does not take over an association whose request names the port.
#[test]
fn association_serves_the_program_that_it_names() {
    let (_, address) = echo();
    let pair = Pair::with("h2", with_udp, |_| {});
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut connection = Client::to(pair.socks);
    let port = socket.local_addr().unwrap().port();
    let relay = associate(&mut connection, port).expect("an association");
    let mut wire = head(address);
    wire.extend_from_slice(b"strange");
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    stranger.send_to(&wire, relay).unwrap();
    let program = Program::at(socket, relay, connection);
    assert_eq!(program.ask(address, b"mine"), b"mine");
}

#[test]
fn association_keeps_a_bounded_number_of_flows() {
    let servers: Vec<_> = (0..70).map(|_| echo()).collect();
    let pair = Pair::with("h2", with_udp, |_| {});
    let program = Program::start(&pair);
    for (_, address) in &servers {
        assert_eq!(program.ask(*address, b"one"), b"one");
    }
    // The first flows have given way to others, and begin again.
    assert_eq!(program.ask(servers[0].1, b"two"), b"two");
}

/// A program with thousands of destinations, permitted or refused ones, does not end the session
/// with the download of another program.
#[test]
fn many_destinations_leave_the_session_whole() {
    let gate = Arc::new(Gate::default());
    let whole = Arc::clone(&gate);
    let origin = Scene::new(move |_, mut client| {
        client.request();
        client.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no");
        whole.wait();
        client.send("k");
    });
    let pair = Pair::with("h2", with_udp, |_| {});
    let mut download = pair.connect();
    download.send(request("GET", &origin.url("/"), ""));
    assert_eq!(download.head().unwrap().status, 200);
    assert_eq!(download.read_exact(1), b"o");
    let (_, address) = echo();
    let program = Program::start(&pair);
    for round in 0..50_u8 {
        for network in [127, 10] {
            for host in 1..=31 {
                program.send(([network, 9, round, host], 9).into(), b"hello");
            }
        }
        // The association has taken the datagrams before this one.
        assert_eq!(program.ask(address, b"hello"), b"hello");
    }
    gate.open();
    assert_eq!(download.read_exact(1), b"k");
}

#[test]
fn association_ends_with_its_connection() {
    let (_, address) = echo();
    let pair = Pair::with("h2", with_udp, |_| {});
    let program = Program::start(&pair);
    assert_eq!(program.ask(address, b"hello"), b"hello");
    let Program { socket, connection } = program;
    drop(connection);
    // The socket of the association is closed: the system refuses datagrams, or none answers.
    let mut wire = head(address);
    wire.extend_from_slice(b"late");
    while socket.send(&wire).is_ok() {
        std::thread::yield_now();
    }
}

/// A datagram to another destination belongs to the new configuration.
#[test]
fn association_from_before_a_reload_opens_no_flow() {
    let ((_, first), (_, second)) = (echo(), echo());
    let (_gateway, url) = gateway(true);
    let mut options = client_options(&url);
    options.listen = vec![
        endpoint("http://127.0.0.1:0"),
        endpoint("socks5://127.0.0.1:0"),
    ];
    let (mut running, _, socks) = start_client(options.clone());
    let begin = || {
        let mut connection = Client::to(socks);
        let relay = associate(&mut connection, 0).expect("an association");
        Program::at(UdpSocket::bind("127.0.0.1:0").unwrap(), relay, connection)
    };
    let (mut used, mut unused) = (begin(), begin());
    assert_eq!(used.ask(first, b"before"), b"before");
    block_on(running.reload(Arc::new(options.typed().unwrap()))).unwrap();
    assert!(unused.connection.is_closed());
    assert_eq!(
        used.ask(first, b"after"),
        b"after",
        "an open flow continues"
    );
    used.send(second, b"new");
    assert!(used.connection.is_closed());
    assert_eq!(begin().ask(second, b"new"), b"new");
}

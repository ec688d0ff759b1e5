//! What one session can make a gateway hold, and for how long.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bytes::Buf;
use tandem_http::{Event, Method, Mux, MuxConfig, Priority, Reason, RequestHead, Role, Scheme, SendBuf, h2};
use tandem_spdy::{Config, Connection, Version};

use crate::harness::{Client, PATIENCE, Pair, Scene, endpoint, gateway_options, start_gateway};

const SESSIONS: [&str; 3] = ["h2", "spdy3", "spdy3.1"];

/// A session with a gateway that does what no client of ours does.
struct Peer {
    core: Box<dyn Mux>,
    socket: TcpStream,
}

impl Peer {
    fn to(gateway: SocketAddr, session: &str) -> Self {
        let config = MuxConfig::new(Role::Client);
        let core: Box<dyn Mux> = match session {
            "h2" => Box::new(h2::Connection::new(config)),
            "spdy3" => Box::new(Connection::new(Config::new(config, Version::V3))),
            _ => Box::new(Connection::new(Config::new(config, Version::V31))),
        };
        let socket = TcpStream::connect(gateway).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { core, socket }
    }

    fn flush(&mut self) {
        let mut out = SendBuf::new();
        while self.core.wants_output() {
            self.core.poll_output(&mut out, usize::MAX);
        }
        self.socket.write_all(&out.copy_to_bytes(out.remaining())).unwrap();
    }

    /// The next thing that the gateway says.
    fn event(&mut self) -> Event {
        loop {
            if let Some(event) = self.core.poll_event() {
                return event;
            }
            self.flush();
            let mut buffer = [0; 16 << 10];
            let count = self.socket.read(&mut buffer).unwrap();
            assert!(count > 0, "the gateway closed");
            self.core.handle_input(Instant::now(), &buffer[..count]).unwrap();
        }
    }
}

/// Whether the gateway closes its connection to an origin: first its own half of it, then all.
fn is_let_go(origin: &mut Client) -> bool {
    origin.stream.get_ref().set_write_timeout(Some(PATIENCE)).unwrap();
    if !origin.request_ends() {
        return false;
    }
    let refusal = loop {
        if let Err(error) = origin.stream.get_mut().write_all(&[b'x'; 1 << 16]) {
            break error.kind();
        }
    };
    matches!(refusal, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
}

#[test]
fn a_tunnel_that_its_client_resets_lets_go_of_the_origin() {
    for session in SESSIONS {
        let (told, ends) = mpsc::channel();
        let origin = Scene::new(move |_, mut client| {
            client.read_exact(2);
            client.send("yes");
            told.send(is_let_go(&mut client)).unwrap();
        });
        let mut options = gateway_options();
        options.listen = vec![endpoint(&format!("{session}+tcp://127.0.0.1:0"))];
        let (_running, gateway) = start_gateway(options);
        let mut peer = Peer::to(gateway, session);
        let head =
            RequestHead { method: Method::Connect, ..RequestHead::get(Scheme::Http, origin.address.to_string(), "") };
        let id = peer.core.open(&head, false, Priority::default()).unwrap();
        peer.core.send_data(id, "hi".into(), false);
        while !matches!(peer.event(), Event::Data { .. }) {}
        peer.core.reset(id, Reason::Cancel);
        peer.flush();
        assert!(ends.recv().unwrap(), "{session}");
    }
}

#[test]
fn a_tunnel_that_its_browser_resets_lets_go_of_the_origin() {
    let (told, ends) = mpsc::channel();
    let origin = Scene::new(move |_, mut client| {
        client.read_exact(2);
        client.send("yes");
        told.send(is_let_go(&mut client)).unwrap();
    });
    let pair = Pair::start();
    let mut browser = pair.connect();
    let to = origin.address;
    browser.send(format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n"));
    assert_eq!(browser.head().unwrap().status, 200);
    browser.send("hi");
    browser.read_exact(3);
    // No end, but a reset.
    socket2::SockRef::from(browser.stream.get_ref()).set_linger(Some(Duration::ZERO)).unwrap();
    drop(browser);
    assert!(ends.recv().unwrap());
}

#[test]
fn interim_responses_without_end_are_an_origin_s_failure() {
    let origin = Scene::new(|_, mut client| {
        client.request();
        let hints = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n".repeat(1000);
        // Whoever asked may have had enough before the end.
        let _ = client.stream.get_mut().write_all(format!("{hints}HTTP/1.1 204 No Content\r\n\r\n").as_bytes());
    });
    for session in SESSIONS {
        let pair = Pair::with(session, |_| {}, |_| {});
        assert_eq!(pair.connect().get(&origin.url("/")).status, 502, "{session}");
    }
}

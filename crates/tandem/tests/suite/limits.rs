//! Tests of the limits on the resources that one session can occupy in a gateway, and on their
//! duration.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bytes::Buf;
use tandem::config::GatewayOptions;
use tandem::runtime::Running;
use tandem_http::{
    ByteMux, Event, Method, MuxConfig, Priority, Reason, RequestHead, Role, Scheme, SendBuf, h2,
};
use tandem_spdy::{Config, Connection, Version};

use crate::harness::{
    Client, PATIENCE, Pair, Scene, Way, client_options, endpoint, gateway_options, start_client,
    start_gateway,
};

const SESSIONS: [&str; 3] = ["h2", "spdy3", "spdy3.1"];

/// A scripted session with a gateway, for behaviour that the Tandem client does not have.
pub(crate) struct Peer {
    pub(crate) core: Box<dyn ByteMux>,
    pub(crate) socket: TcpStream,
}

impl Peer {
    pub(crate) fn to(gateway: SocketAddr, session: &str) -> Self {
        let config = MuxConfig::new(Role::Client);
        let core: Box<dyn ByteMux> = match session {
            "h2" => Box::new(h2::Connection::new(config)),
            "spdy3" => Box::new(Connection::new(Config::new(config, Version::V3))),
            _ => Box::new(Connection::new(Config::new(config, Version::V31))),
        };
        // Small buffers between the two: a gateway soon sees that its peer does not read.
        let socket =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.set_recv_buffer_size(64 << 10).unwrap();
        socket.connect(&gateway.into()).unwrap();
        let socket = TcpStream::from(socket);
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { core, socket }
    }

    pub(crate) fn flush(&mut self) {
        let mut out = SendBuf::new();
        while self.core.wants_output() {
            self.core.poll_output(&mut out, usize::MAX);
        }
        self.socket
            .write_all(&out.copy_to_bytes(out.remaining()))
            .unwrap();
    }

    pub(crate) fn wait_for_response(&mut self) {
        loop {
            match self.event() {
                Event::Response { .. } => return,
                Event::Reset { reason, .. } => panic!("reset: {reason:?}"),
                _ => {}
            }
        }
    }

    /// Reads the next event from the gateway.
    pub(crate) fn event(&mut self) -> Event {
        loop {
            if let Some(event) = self.core.poll_event() {
                return event;
            }
            self.flush();
            let mut buffer = [0; 16 << 10];
            let count = self.socket.read(&mut buffer).unwrap();
            assert!(count > 0, "the gateway closed");
            self.core
                .handle_input(Instant::now(), &buffer[..count])
                .unwrap();
        }
    }
}

fn serving(session: &str, set: impl FnOnce(&mut GatewayOptions)) -> (Running, SocketAddr) {
    let mut options = gateway_options();
    set(&mut options);
    options.listen = vec![endpoint(&format!("{session}+tcp://127.0.0.1:0"))];
    start_gateway(options)
}

/// Returns true if the gateway resets its connection to an origin.
fn is_reset(origin: &mut Client) -> bool {
    let read = origin.stream.read(&mut [0]);
    read.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset)
}

#[test]
fn tunnel_reset_by_client_resets_the_target() {
    for session in SESSIONS {
        let (told, ends) = mpsc::channel();
        let origin = Scene::new(move |_, mut client| {
            client.read_exact(2);
            client.send("yes");
            told.send(is_reset(&mut client)).unwrap();
        });
        let (_running, gateway) = serving(session, |_| {});
        let mut peer = Peer::to(gateway, session);
        let head = RequestHead::connect(origin.address.to_string());
        let id = peer.core.open(&head, false, Priority::default()).unwrap();
        peer.core.send_data(id, "hi".into(), false);
        while !matches!(peer.event(), Event::Data { .. }) {}
        peer.core.reset(id, Reason::Cancel);
        peer.flush();
        assert!(ends.recv().unwrap(), "{session}");
    }
}

#[test]
fn tunnel_reset_by_browser_resets_the_target() {
    let (told, ends) = mpsc::channel();
    let origin = Scene::new(move |_, mut client| {
        client.read_exact(2);
        client.send("yes");
        told.send(is_reset(&mut client)).unwrap();
    });
    let pair = Pair::start();
    let mut browser = pair.connect();
    let to = origin.address;
    browser.send(format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n"));
    assert_eq!(browser.head().unwrap().status, 200);
    browser.send("hi");
    browser.read_exact(3);
    // The option makes the close a reset.
    socket2::SockRef::from(browser.stream.get_ref())
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    drop(browser);
    assert!(ends.recv().unwrap());
}

#[test]
fn endless_interim_responses_give_502() {
    let origin = Scene::new(|_, mut client| {
        client.request();
        let hints = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n".repeat(1000);
        // The gateway may close before the whole stream of interim responses is written.
        let _ = client
            .stream
            .get_mut()
            .write_all(format!("{hints}HTTP/1.1 204 No Content\r\n\r\n").as_bytes());
    });
    for session in SESSIONS {
        let pair = Pair::with(session, |_| {}, |_| {});
        assert_eq!(
            pair.connect().get(&origin.url("/")).status,
            502,
            "{session}"
        );
    }
}

/// Returns letters that do not compress.
fn noise(count: usize) -> String {
    let mut state = 1_u32;
    let letter = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        char::from(b'0' + (state >> 26) as u8)
    };
    (0..count).map(letter).collect()
}

#[test]
fn gateway_reads_no_requests_while_responses_wait() {
    // The rounds together open as many streams as may be open at once.
    const ROUNDS: usize = 31;
    const EACH: usize = 8;
    for session in SESSIONS {
        let (told, asked) = mpsc::channel();
        let origin = Scene::new(move |_, mut client| {
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Large: {}\r\n\r\n",
                noise(40_000)
            );
            while client.request().is_some() {
                told.send(()).unwrap();
                client.send(&head);
            }
        });
        let (_running, gateway) = serving(session, |_| {});
        let mut peer = Peer::to(gateway, session);
        let to = origin.address.to_string();
        let head = RequestHead {
            method: Method::Head,
            ..RequestHead::get(Scheme::Http, to, "/")
        };
        let is_asked = |peer: &mut Peer, count| {
            for _ in 0..count {
                peer.core.open(&head, true, Priority::default()).unwrap();
            }
            peer.flush();
            (0..count).all(|_| asked.recv_timeout(Duration::from_secs(1)).is_ok())
        };
        // The first response follows the gateway's control frames about streams.
        is_asked(&mut peer, 1);
        peer.wait_for_response();
        let heard = (0..ROUNDS)
            .take_while(|_| is_asked(&mut peer, EACH))
            .count();
        assert!(heard < ROUNDS, "{session}: all answers are held");
        // The requests of the delayed round are answered as well.
        for _ in 0..(heard + 1) * EACH {
            peer.wait_for_response();
        }
    }
}

/// Calls a function repeatedly, with short pauses, until it returns a value.
fn again<T>(mut what: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(had) = what() {
            return had;
        }
        assert!(begun.elapsed() < PATIENCE, "nothing came of it");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns true if the other end has closed; the bytes before the end are ignored.
fn has_closed(socket: &mut TcpStream) -> bool {
    socket.set_nonblocking(true).unwrap();
    let closed = loop {
        match socket.read(&mut [0; 4096]) {
            Ok(1..) => {}
            Ok(0) => break true,
            Err(error) => break error.kind() != ErrorKind::WouldBlock,
        }
    };
    socket.set_nonblocking(false).unwrap();
    closed
}

#[test]
fn head_timeout_ends_slowly_sent_heads() {
    let (told, heard) = mpsc::channel();
    let origin = Scene::new(move |_, mut client| told.send(client.read_exact(5)).unwrap());
    let pair = Pair::with(
        "h2",
        |_| {},
        |client| client.head_timeout = Some("1s".parse().unwrap()),
    );
    let mut slow = pair.connect();
    slow.send("GET http://site.example/");
    again(|| {
        let socket = slow.stream.get_mut();
        let _ = socket.write_all(b"x");
        has_closed(socket).then_some(())
    });
    // Inside SOCKS the missing rest could be any protocol, so the connection becomes a tunnel.
    let mut slow = Client::to(pair.socks);
    assert_eq!(slow.socks(&origin.address.to_string(), None), 0);
    slow.send("GET /");
    let tunnelled = again(|| {
        // The origin closes once it has read enough.
        let _ = slow.stream.get_mut().write_all(b"x");
        heard.try_recv().ok()
    });
    assert_eq!(tunnelled, b"GET /");
}

#[test]
fn idle_session_is_closed() {
    for session in SESSIONS {
        let (_running, gateway) = serving(session, |options| {
            options.idle_timeout = Some("300ms".parse().unwrap())
        });
        let mut peer = Peer::to(gateway, session);
        peer.flush();
        again(|| {
            peer.core.ping(1);
            let mut out = SendBuf::new();
            peer.core.poll_output(&mut out, usize::MAX);
            let _ = peer.socket.write_all(&out.copy_to_bytes(out.remaining()));
            has_closed(&mut peer.socket).then_some(())
        });
    }
}

#[test]
fn silent_connection_is_closed() {
    for session in SESSIONS {
        let (_running, gateway) = serving(session, |options| {
            options.head_timeout = Some("300ms".parse().unwrap())
        });
        let mut silent = TcpStream::connect(gateway).unwrap();
        again(|| has_closed(&mut silent).then_some(()));
    }
}

#[test]
fn preconnected_session_stays_open() {
    let origin = Scene::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let (_gateway, gateway) = serving("h2", |options| {
        options.head_timeout = Some("2s".parse().unwrap())
    });
    let way = Way::to(gateway);
    let mut options = client_options(&format!("h2+tcp://{}", way.address));
    (options.preconnect, options.warm_up) = (Some(true), Some("0".parse().unwrap()));
    let (_client, http, _) = start_client(options);
    again(|| (way.connections() == 1).then_some(()));
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(Client::to(http).get(&origin.url("/")).body, b"ok");
    assert_eq!(way.connections(), 1);
}

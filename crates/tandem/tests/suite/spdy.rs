//! Tests of SPDY that need a scripted peer: details that are visible only at the other end of the
//! session.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use bytes::Buf;
use tandem::config::Compression;
use tandem_http::{ByteMux, Event, Mux, MuxConfig, Priority, RequestHead, Role, Scheme, SendBuf};
use tandem_spdy::{Config, Connection, Version};

use crate::harness::{PATIENCE, Scene, endpoint, gateway_options, start_gateway};

/// A scripted SPDY session with a gateway.
struct Peer {
    core: Connection,
    socket: TcpStream,
    /// The bytes that the gateway has sent.
    heard: Vec<u8>,
}

impl Peer {
    fn to(gateway: SocketAddr, version: Version, full_url_path: bool) -> Self {
        let config = Config {
            full_url_path,
            ..Config::new(MuxConfig::new(Role::Client), version)
        };
        let socket = TcpStream::connect(gateway).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self {
            core: Connection::new(config),
            socket,
            heard: Vec::new(),
        }
    }

    /// Sends a GET request and returns status and body of the response.
    fn get(&mut self, url_host: &str, path: &str) -> (u16, Vec<u8>) {
        let head = RequestHead::get(Scheme::Http, url_host, path);
        self.core.open(&head, true, Priority::default()).unwrap();
        let (mut status, mut body) = (0, Vec::new());
        loop {
            self.flush();
            let mut buffer = [0; 4096];
            let count = self.socket.read(&mut buffer).unwrap();
            assert!(count > 0, "the gateway closed");
            self.heard.extend_from_slice(&buffer[..count]);
            self.core
                .handle_input(Instant::now(), &buffer[..count])
                .unwrap();
            while let Some(event) = self.core.poll_event() {
                match event {
                    Event::Response { head, .. } => status = head.status,
                    Event::Data { data, end, .. } => {
                        body.extend_from_slice(&data);
                        if end {
                            return (status, body);
                        }
                    }
                    Event::Reset { reason, .. } => panic!("reset: {reason:?}"),
                    _ => {}
                }
            }
        }
    }

    fn flush(&mut self) {
        let mut out = SendBuf::new();
        while self.core.wants_output() {
            self.core.poll_output(&mut out, usize::MAX);
        }
        self.socket
            .write_all(&out.copy_to_bytes(out.remaining()))
            .unwrap();
    }
}

#[test]
fn forward_gateway_accepts_url_as_spdy_path() {
    let origin = Scene::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    for (session, version) in [("spdy3", Version::V3), ("spdy3.1", Version::V31)] {
        let mut options = gateway_options();
        options.listen = vec![endpoint(&format!("{session}+tcp://127.0.0.1:0"))];
        let (_running, gateway) = start_gateway(options);
        for full_url in [true, false] {
            let answer =
                Peer::to(gateway, version, full_url).get(&origin.address.to_string(), "/a?b=c");
            assert_eq!(answer, (200, b"ok".to_vec()), "{session} {full_url}");
        }
    }
}

#[test]
fn header_compression_follows_option() {
    const SECRET: &str = "8d2f61c07b9e4a35d1f0c6b8a7e29354";
    let origin = Scene::answering(
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Plain: words that anybody may see\r\n\
         Set-Cookie: id=8d2f61c07b9e4a35d1f0c6b8a7e29354\r\n\r\nok",
    );
    let heard = |setting: Option<Compression>| {
        let mut options = gateway_options();
        options.listen = vec![endpoint("spdy3.1+tcp://127.0.0.1:0")];
        options.header_compression = setting;
        let (_running, gateway) = start_gateway(options);
        let mut peer = Peer::to(gateway, Version::V31, false);
        for _ in 0..4 {
            assert_eq!(peer.get(&origin.address.to_string(), "/").0, 200);
        }
        peer.heard
    };
    let has = |heard: &[u8], text: &str| {
        heard
            .windows(text.len())
            .any(|part| part == text.as_bytes())
    };
    let (full, safe, off) = (
        heard(Some(Compression::Full)),
        heard(Some(Compression::Safe)),
        heard(Some(Compression::Off)),
    );
    assert!(has(&off, SECRET) && has(&off, "words that anybody may see"));
    assert!(!has(&safe, "words that anybody may see") && !has(&full, "words that anybody may see"));
    // The same cookie three times, without a match.
    let cookies = 3 * SECRET.len();
    assert!(
        full.len() + cookies <= safe.len() && safe.len() + cookies < off.len(),
        "{} {} {}",
        full.len(),
        safe.len(),
        off.len()
    );
    assert_eq!(heard(None).len(), safe.len(), "safe is the default");
}

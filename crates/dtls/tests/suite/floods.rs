//! Peers that flood a gateway: with streams that they reset, and with datagrams of no association.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tandem_dtls::association::{Association, AssociationError};
use tandem_dtls::envelope::Envelope;
use tandem_dtls::token::AddressToken;
use tandem_tunnel::Closed;

use crate::certificates::Certificates;
use crate::harness::{Client, PATIENCE, Scene};
use crate::network::{identity, settings};
use crate::provided::{start_client, start_gateway, stop};

/// A client without a proxy, which does as it likes.
struct Peer {
    socket: UdpSocket,
    gateway: SocketAddr,
    association: Association,
}

impl Peer {
    fn connect(gateway: SocketAddr) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(gateway).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_millis(1)))
            .unwrap();
        let any = Box::new(|_: &[u8]| Ok(true));
        let association =
            Association::connect(&settings(), identity(), gateway, any, Instant::now());
        let mut this = Self {
            socket,
            gateway,
            association,
        };
        this.until(Association::is_connected);
        this
    }

    /// Returns a token of the gateway for this machine.
    fn token(gateway: SocketAddr) -> AddressToken {
        let mut this = Self::connect(gateway);
        let begun = Instant::now();
        loop {
            if let Some(token) = this.association.take_token() {
                return token;
            }
            assert!(begun.elapsed() < PATIENCE, "the gateway sends no token");
            this.turn();
        }
    }

    fn turn(&mut self) {
        let mut out = Vec::new();
        while self
            .association
            .poll_output(Instant::now(), &mut out)
            .is_some()
        {
            let _ = self.socket.send(&out);
            out.clear();
        }
        let mut buf = [0; 2048];
        if let Ok(size) = self.socket.recv(&mut buf) {
            let now = Instant::now();
            self.association
                .handle_datagram(now, self.gateway.into(), &buf[..size], false);
        }
        self.association.handle_timeout(Instant::now());
    }

    fn until(&mut self, done: impl Fn(&Association) -> bool) {
        let begun = Instant::now();
        while !done(&self.association) {
            assert!(begun.elapsed() < PATIENCE, "the gateway does not answer");
            self.turn();
        }
    }
}

/// Opens streams with some bytes of a request each, and resets them until the gateway has enough.
fn reset_streams(name: &str, request: &'static [u8]) {
    let certificates = Certificates::new(name);
    let (gateway, address) = start_gateway(&certificates, 0, |_| {});
    let mut peer = Peer::connect(address);
    let mut opened = 0;
    while peer.association.ended().is_none() {
        assert!(opened < 20_000, "no bound");
        let now = peer.association.tunnel_time(Instant::now());
        let tunnel = peer.association.tunnel();
        let Ok(id) = tunnel.open(now) else { break };
        tunnel.write(id, &mut Bytes::from_static(request)).unwrap();
        if opened % 8 == 0 || !request.is_empty() {
            peer.turn();
        }
        // The gateway may have ended the association.
        let _ = peer.association.tunnel().reset(id, 0);
        opened += 1;
    }
    peer.until(|association| association.ended().is_some());
    let ended = peer.association.ended();
    assert!(
        matches!(ended, Some(AssociationError::Closed(Closed::Peer(0x107)))),
        "{ended:?}"
    );
    stop([gateway]);
}

/// Returns a client of the gateway that has sent nothing, and the time of its start.
fn client_of(address: SocketAddr) -> (UdpSocket, Association, Instant) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let any = Box::new(|_: &[u8]| Ok(true));
    let now = Instant::now();
    let half = Association::connect(&settings(), identity(), address, any, now);
    (socket, half, now)
}

#[test]
fn gateway_ends_a_client_that_resets_streams() {
    reset_streams("dtls-resets", b"GET http://127.0.0.1:1/");
}

/// The reset is the first segment of the stream that the gateway sees.
#[test]
fn gateway_ends_a_client_that_resets_unopened_streams() {
    reset_streams("dtls-early-resets", b"");
}

#[test]
fn gateway_serves_beside_forged_datagrams() {
    let certificates = Certificates::new("dtls-forged");
    let (gateway, address) = start_gateway(&certificates, 0, |_| {});
    let (client, http) = start_client(&certificates, address, |_| {});
    let origin = Scene::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let forger = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut datagram = Vec::new();
    for number in 0..2000_u32 {
        let nonce = u64::from(number).to_be_bytes();
        let envelope = match number % 3 {
            0 => Envelope::Hello { nonce },
            1 => Envelope::Initial {
                nonce,
                cookie: [0; 12],
                records: b"no records",
            },
            _ => Envelope::Data {
                id: tandem_dtls::envelope::AssociationId::new(number.to_be_bytes()),
                records: b"no records of an association",
            },
        };
        envelope.encode(&mut datagram);
        forger.send_to(&datagram, address).unwrap();
    }
    assert_eq!(Client::to(http).get(&origin.url("/")).body, b"ok");
    stop([client, gateway]);
}

#[test]
fn gateway_serves_beside_half_open_handshakes() {
    let certificates = Certificates::new("dtls-half-open");
    let (gateway, address) = start_gateway(&certificates, 0, |options| {
        options.max_connections = Some(64);
        options.max_connections_per_client = Some(64);
    });
    let (client, http) = start_client(&certificates, address, |_| {});
    let origin = Scene::answering("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    assert_eq!(Client::to(http).get(&origin.url("/")).body, b"ok");
    let mut out = Vec::new();
    for _ in 0..200 {
        let (socket, mut half, now) = client_of(address);
        // Hello, retry and the first records, and then silence.
        while half.poll_output(now, &mut out).is_some() {
            socket.send(&out).unwrap();
            out.clear();
        }
        let mut buf = [0; 2048];
        let size = socket.recv(&mut buf).unwrap();
        half.handle_datagram(now, address.into(), &buf[..size], false);
        while half.poll_output(now, &mut out).is_some() {
            socket.send(&out).unwrap();
            out.clear();
        }
    }
    assert_eq!(Client::to(http).get(&origin.url("/")).body, b"ok");
    stop([client, gateway]);
}

/// The tokens may be from an address that somebody else has now.
#[test]
fn gateway_has_few_half_open_handshakes_after_tokens() {
    let certificates = Certificates::new("dtls-half-returns");
    let (gateway, address) = start_gateway(&certificates, 0, |_| {});
    let mut out = Vec::new();
    let mut half_open = |token: &AddressToken| {
        let (socket, mut half, now) = client_of(address);
        half.show(token, now);
        while half.poll_output(now, &mut out).is_some() {
            socket.send(&out).unwrap();
            out.clear();
        }
        let mut buf = [0; 2048];
        let size = socket.recv(&mut buf).unwrap();
        match Envelope::decode(&buf[..size]) {
            Ok(Envelope::Data { .. }) => true,
            Ok(Envelope::Retry { .. }) => false,
            other => panic!("no answer: {other:?}"),
        }
    };
    let tokens: Vec<_> = (0..20).map(|_| Peer::token(address)).collect();
    let begun = tokens.iter().filter(|token| half_open(token)).count();
    assert_eq!(begun, 16);
    // A client without a token is not affected.
    Peer::connect(address);
    stop([gateway]);
}

//! Clients that attack the gateway: floods of streams, resets and handshakes.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ApplicationClose, ClientConfig, Connection, ConnectionError, Endpoint, VarInt};
use tandem::transport::tls::ClientTls;

use crate::certificates::Certificates;
use crate::harness::{Client, PATIENCE, Scene, block_on};
use crate::provided::{OK, start_client, start_gateway, stop};

/// H3_EXCESSIVE_LOAD (RFC 9114 section 8.1).
const EXCESSIVE_LOAD: VarInt = VarInt::from_u32(0x107);
/// The beginning of a control stream with empty SETTINGS.
const CONTROL: [u8; 3] = [0x00, 0x04, 0x00];

/// Connects a client that speaks plain QUIC. The endpoint must live as long as the connection.
pub(crate) async fn connect(
    certificates: &Certificates,
    address: SocketAddr,
) -> (Endpoint, Connection) {
    let tls = ClientTls {
        ca: Some(certificates.path("ca.pem")),
        alpn: vec![b"h3".to_vec()],
        ..ClientTls::default()
    };
    let tls = Arc::clone(tls.connector().unwrap().config());
    let config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
    let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    let connecting = endpoint.connect_with(config, address, "127.0.0.1");
    let connection = connecting.unwrap().await.unwrap();
    (endpoint, connection)
}

/// Returns the code with which the gateway closes the connection.
async fn closed(connection: &Connection) -> VarInt {
    let closed = tokio::time::timeout(PATIENCE, connection.closed()).await;
    match closed.expect("a bound") {
        ConnectionError::ApplicationClosed(ApplicationClose { error_code, .. }) => error_code,
        other => panic!("{other}"),
    }
}

/// Runs an attack beside an honest client, which is served after it. Returns the code with which
/// the gateway closes the attacker's connection.
fn attacked<F: Future<Output = ()>>(name: &str, attack: impl FnOnce(Connection) -> F) -> VarInt {
    let certificates = Certificates::new(name);
    let (gateway, address) = start_gateway(&certificates, 0, |_| {});
    let (client, http) = start_client(&certificates, address, |_| {});
    let origin = Scene::answering(OK);
    let code = block_on(async {
        let (_endpoint, connection) = connect(&certificates, address).await;
        let closed = closed(&connection);
        let flood = async {
            attack(connection.clone()).await;
            std::future::pending().await
        };
        tokio::select! {
            code = closed => code,
            () = flood => unreachable!("a flood has no end"),
        }
    });
    assert_eq!(Client::to(http).get(&origin.url("/")).body, b"ok");
    stop([client, gateway]);
    code
}

async fn open_control(connection: &Connection) -> quinn::SendStream {
    let mut control = connection.open_uni().await.unwrap();
    control.write_all(&CONTROL).await.unwrap();
    control
}

#[test]
fn gateway_ends_a_client_that_resets_streams() {
    let code = attacked("quic-resets", |connection| async move {
        let _control = open_control(&connection).await;
        while let Ok((mut send, mut receive)) = connection.open_bi().await {
            // A frame of HEADERS that does not end.
            if send.write_all(&[0x01, 0x10, 0x00]).await.is_err() {
                return;
            }
            // The gateway may have closed the connection.
            let _ = (
                send.reset(VarInt::from_u32(0x10c)),
                receive.stop(VarInt::from_u32(0x10c)),
            );
            tokio::task::yield_now().await;
        }
    });
    assert_eq!(code, EXCESSIVE_LOAD);
}

#[test]
fn gateway_ends_a_client_that_opens_unknown_streams() {
    let code = attacked("quic-unknown", |connection| async move {
        let _control = open_control(&connection).await;
        while let Ok(mut stream) = connection.open_uni().await {
            // A type that no standard has (RFC 9114 section 6.2.3).
            if stream.write_all(&[0x21]).await.is_err() {
                return;
            }
            let _ = stream.finish();
        }
    });
    assert_eq!(code, EXCESSIVE_LOAD);
}

#[test]
fn gateway_ends_a_client_that_sends_empty_frames() {
    let code = attacked("quic-frames", |connection| async move {
        let mut control = open_control(&connection).await;
        // Frames of a reserved type without content (RFC 9114 section 7.2.8).
        let frames = [0x21, 0x00].repeat(4096);
        while control.write_all(&frames).await.is_ok() {}
    });
    assert_eq!(code, EXCESSIVE_LOAD);
}

#[test]
fn gateway_ends_a_client_without_settings() {
    let certificates = Certificates::new("quic-settings");
    let (gateway, address) = start_gateway(&certificates, 0, |options| {
        options.head_timeout = Some("1s".parse().unwrap());
    });
    let code = block_on(async {
        let (_endpoint, connection) = connect(&certificates, address).await;
        let (mut send, _receive) = connection.open_bi().await.unwrap();
        // A frame of a reserved type, before a request that never comes.
        send.write_all(&[0x21, 0x00]).await.unwrap();
        closed(&connection).await
    });
    // The limit of the session or that of unadmitted connections is the first.
    assert!([0, 0x100].contains(&code.into_inner()), "{code}");
    stop([gateway]);
}

#[test]
fn gateway_refuses_a_second_control_stream() {
    let code = attacked("quic-control", |connection| async move {
        let _first = open_control(&connection).await;
        let _second = open_control(&connection).await;
        connection.closed().await;
    });
    assert_eq!(code, VarInt::from_u32(0x103), "H3_STREAM_CREATION_ERROR");
}

#[test]
fn gateway_serves_beside_half_open_handshakes() {
    let certificates = Certificates::new("quic-half-open");
    let (gateway, address) = start_gateway(&certificates, 0, |options| {
        options.max_connections = Some(64);
        options.max_connections_per_client = Some(64);
    });
    let (client, http) = start_client(&certificates, address, |_| {});
    let origin = Scene::answering(OK);
    assert_eq!(Client::to(http).get(&origin.url("/")).body, b"ok");
    block_on(async {
        // The first packets of clients that never go on, and of one that is there.
        let mut silent = Vec::new();
        for _ in 0..200 {
            let (first, relay) = relay(address);
            let endpoint = Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
            let tls = ClientTls {
                ca: Some(certificates.path("ca.pem")),
                alpn: vec![b"h3".to_vec()],
                ..ClientTls::default()
            };
            let tls = Arc::clone(tls.connector().unwrap().config());
            let config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
            let connecting = endpoint.connect_with(config, first, "127.0.0.1").unwrap();
            relay.pass_one().await;
            silent.push((endpoint, connecting, relay));
        }
        let (_endpoint, connection) = connect(&certificates, address).await;
        connection.close(VarInt::from_u32(0x100), b"");
    });
    assert_eq!(Client::to(http).get(&origin.url("/")).body, b"ok");
    stop([client, gateway]);
}

/// Begins a POST to `origin` whose body is larger than all windows.
async fn begin_upload(
    connection: &Connection,
    origin: SocketAddr,
) -> (quinn::SendStream, quinn::RecvStream) {
    let (mut send, receive) = connection.open_bi().await.unwrap();
    let target = origin.to_string();
    // :method POST, :scheme http, :path / and :authority (RFC 9204 appendix A).
    let mut section = vec![0, 0, 0xd4, 0xd6, 0xc1, 0x50, target.len() as u8];
    section.extend_from_slice(target.as_bytes());
    let mut head = vec![0x01, section.len() as u8];
    head.extend_from_slice(&section);
    head.extend_from_slice(&[0x00, 0xbf, 0xff, 0xff, 0xff]);
    send.write_all(&head).await.unwrap();
    (send, receive)
}

/// Returns the bytes that fit into the windows, up to `enough`. The windows are full if nothing
/// more fits for `patience`.
async fn fill(send: &mut quinn::SendStream, enough: usize, patience: Duration) -> usize {
    let (mut sent, piece) = (0, [0; 16 << 10]);
    while sent < enough {
        match tokio::time::timeout(patience, send.write(&piece)).await {
            Ok(written) => sent += written.unwrap(),
            Err(_) => break,
        }
    }
    sent
}

#[test]
fn upload_window_grows_once_the_client_is_admitted() {
    let certificates = Certificates::new("quic-upload");
    let (gateway, address) = start_gateway(&certificates, 0, |_| {});
    // The origin reads the head of the request only.
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let origin = Scene::new(move |_, mut origin| {
        origin.request();
        let _ = wait.lock().unwrap().recv();
    });
    let fill = async |has_settings: bool, patience| {
        let (_endpoint, connection) = connect(&certificates, address).await;
        let _control = match has_settings {
            true => Some(open_control(&connection).await),
            false => None,
        };
        let (mut send, _receive) = begin_upload(&connection, origin.address).await;
        fill(&mut send, 7 << 20, patience).await
    };
    // A gateway admits no request before the settings of its client.
    let sent = block_on(fill(false, Duration::from_secs(1)));
    assert!(sent < 5 << 18, "{sent} bytes");
    let sent = block_on(fill(true, PATIENCE));
    assert!(sent >= 7 << 20, "{sent} bytes");
    drop(go);
    stop([gateway]);
}

/// Passes the first datagram of a client on to the gateway, and nothing else.
struct Relay {
    near: UdpSocket,
    far: UdpSocket,
}

fn relay(gateway: SocketAddr) -> (SocketAddr, Relay) {
    let near = UdpSocket::bind("127.0.0.1:0").unwrap();
    let far = UdpSocket::bind("127.0.0.1:0").unwrap();
    far.connect(gateway).unwrap();
    near.set_nonblocking(true).unwrap();
    (near.local_addr().unwrap(), Relay { near, far })
}

impl Relay {
    async fn pass_one(&self) {
        let mut datagram = [0; 2048];
        let size = loop {
            match self.near.recv(&mut datagram) {
                Ok(size) => break size,
                Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        };
        self.far.send(&datagram[..size]).unwrap();
    }
}

//! Gateways that stop or restart without a farewell, and paths that are gone for a while.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use quinn::crypto::rustls::QuicServerConfig;
use quinn::{ConnectionError, Endpoint, ServerConfig};
use tandem::renewal::Renewals;
use tandem::transport::tls::acceptor;
use tandem::transport::tls::identity::Identity;

use crate::certificates::Certificates;
use crate::harness::{Client, PATIENCE, Scene, request};
use crate::hostile::connect;
use crate::provided::{start_client, start_gateway, stop};
use crate::translator::Translator;

/// The process after a crash has the same certificate, and so the same key of resets.
#[test]
fn restarted_gateway_resets_connections() {
    let certificates = Certificates::new("quic-restart");
    let (gateway, address) = start_gateway(&certificates, 0, |_| {});
    let translator = Translator::to(address);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let (_endpoint, connection) = runtime.block_on(connect(&certificates, translator.address));
    // The client learns nothing of the end.
    translator.lose.store(true, Ordering::SeqCst);
    stop([gateway]);
    let (next, same) = start_gateway(&certificates, address.port(), |_| {});
    assert_eq!(same, address);
    translator.lose.store(false, Ordering::SeqCst);
    let ended = runtime.block_on(async {
        let (mut send, _receive) = connection.open_bi().await.unwrap();
        send.write_all(&[0; 500]).await.unwrap();
        connection.closed().await
    });
    assert_eq!(ended, ConnectionError::Reset);
    runtime.shutdown_timeout(Duration::from_secs(1));
    stop([next]);
}

/// Starts a server with the gateway's certificate, which takes a stream of its client and answers
/// nothing.
fn start_mute(
    certificates: &Certificates,
) -> (tokio::runtime::Runtime, Endpoint, mpsc::Receiver<()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let files = ["gateway.pem", "gateway.key"].map(|name| certificates.path(name));
    let identity = Identity::watch(&files[0], &files[1], &Renewals::default()).unwrap();
    let tls = acceptor(identity, None, &[b"h3"]).unwrap();
    let crypto = QuicServerConfig::try_from(Arc::clone(tls.config())).unwrap();
    let config = ServerConfig::with_crypto(Arc::new(crypto));
    let context = runtime.enter();
    let endpoint = Endpoint::server(config, "127.0.0.1:0".parse().unwrap()).unwrap();
    drop(context);
    let (tell, told) = mpsc::channel();
    let accepting = endpoint.clone();
    runtime.spawn(async move {
        while let Some(incoming) = accepting.accept().await {
            let connection = incoming.await.unwrap();
            let _stream = connection.accept_bi().await.unwrap();
            tell.send(()).unwrap();
            connection.closed().await;
        }
    });
    (runtime, endpoint, told)
}

/// The gateway's system refuses the datagrams of a connection whose process is gone.
#[test]
fn connection_ends_when_its_gateway_is_gone() {
    let certificates = Certificates::new("quic-gone");
    let (runtime, endpoint, told) = start_mute(&certificates);
    let (client, http) = start_client(&certificates, endpoint.local_addr().unwrap(), |_| {});
    let mut browser = Client::to(http);
    // This request cannot be repeated, so its answer tells how the connection has ended.
    let head = request("POST", "http://192.0.2.1/", "Content-Length: 2\r\n");
    browser.send(head + "hi");
    told.recv_timeout(PATIENCE).unwrap();
    // The tasks and their socket vanish, and nothing is sent.
    drop(endpoint);
    runtime.shutdown_timeout(PATIENCE);
    let answer = browser.answer("POST");
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(text.contains("refused"), "{}: {text}", answer.status);
    stop([client]);
}

/// No error tells a client of an outage beyond its own link. It moves to a new socket, and the
/// gateway then sends there without waiting for its own timer.
#[test]
fn download_goes_on_after_an_outage() {
    const HALF: usize = 1 << 19;
    let certificates = Certificates::new("quic-outage");
    let (gateway, address) = start_gateway(&certificates, 0, |_| {});
    let translator = Translator::to(address);
    let (client, http) = start_client(&certificates, translator.address, |_| {});
    let (go, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let origin = Scene::new(move |_, mut client| {
        if client.request().is_some() {
            let length = 2 * HALF;
            client.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n"
            ));
            client.send(vec![b'x'; HALF]);
            wait.lock().unwrap().recv().unwrap();
            client.send(vec![b'y'; HALF]);
        }
    });
    let mut browser = Client::to(http);
    browser.send(request("GET", &origin.url("/"), ""));
    assert_eq!(browser.head().unwrap().status, 200);
    assert_eq!(browser.read_exact(HALF), vec![b'x'; HALF]);
    translator.lose.store(true, Ordering::SeqCst);
    go.send(()).unwrap();
    let begun = Instant::now();
    while !translator.lost_new_client.load(Ordering::SeqCst) {
        assert!(
            begun.elapsed() < PATIENCE,
            "the client stays with its socket"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    translator.lose.store(false, Ordering::SeqCst);
    assert_eq!(browser.read_exact(HALF), vec![b'y'; HALF]);
    stop([client, gateway]);
}

//! Gateways and clients with a transport that another crate provides. The suite that includes this
//! file names the transport in its root.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tandem::config::{ClientOptions, GatewayOptions};
use tandem::runtime::Running;
use tandem::transport::registry::{Dials, Listens, Transports};

use crate::certificates::Certificates;
use crate::harness::{
    Client, Pair, Scene, block_on, client_options, endpoint, gateway_options, request, running,
};
use crate::{NAME, SCHEME, transports};

pub(crate) const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Returns the endpoint of a gateway that listens on `port`, or on any if it is 0.
pub(crate) fn listener(certificates: &Certificates, port: u16) -> String {
    let identity = certificates.identity();
    format!("{SCHEME}://127.0.0.1:{port}?{identity}")
}

/// Starts a gateway that listens on `port`, or on any if it is 0.
pub(crate) fn start_gateway(
    certificates: &Certificates,
    port: u16,
    change: impl FnOnce(&mut GatewayOptions),
) -> (Running, SocketAddr) {
    let listen = endpoint(&listener(certificates, port));
    let mut options = gateway_options();
    options.listen = vec![listen.clone()];
    change(&mut options);
    running(options.typed_with(&transports()).unwrap(), &listen)
}

/// Starts a gateway that listens on all IPv4 addresses. Returns its port.
pub(crate) fn start_gateway_everywhere(certificates: &Certificates) -> (Running, u16) {
    let identity = certificates.identity();
    let listen = endpoint(&format!("{SCHEME}://0.0.0.0:0?{identity}"));
    let mut options = gateway_options();
    options.listen = vec![listen.clone()];
    let (gateway, address) = running(options.typed_with(&transports()).unwrap(), &listen);
    (gateway, address.port())
}

pub(crate) fn start_client(
    certificates: &Certificates,
    gateway: SocketAddr,
    change: impl FnOnce(&mut ClientOptions),
) -> (Running, SocketAddr) {
    let ca = certificates.path("ca.pem");
    start_client_of(&format!("{SCHEME}://{gateway}?ca={ca}"), change)
}

/// Starts a client of the gateway that an endpoint names.
pub(crate) fn start_client_of(
    gateway: &str,
    change: impl FnOnce(&mut ClientOptions),
) -> (Running, SocketAddr) {
    let listen = endpoint("http://127.0.0.1:0");
    let mut options = client_options(gateway);
    options.listen = vec![listen.clone()];
    change(&mut options);
    running(options.typed_with(&transports()).unwrap(), &listen)
}

/// Returns the transports of the library and that of `provider`.
pub(crate) fn with_provider(provider: impl Dials + Listens + 'static) -> Transports {
    let mut transports = Transports::default();
    transports.add(provider);
    transports
}

/// The number of the next pair, which names the directory of its certificates.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Starts a pair with new certificates.
pub(crate) fn start_new_pair(
    gateway: impl FnOnce(&mut GatewayOptions),
    client: impl FnOnce(&mut ClientOptions),
) -> Pair {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let certificates = Certificates::new(&format!("{NAME}-pair-{number}"));
    start_pair(&certificates, gateway, client)
}

/// Starts a pair with these certificates.
pub(crate) fn start_pair(
    certificates: &Certificates,
    gateway: impl FnOnce(&mut GatewayOptions),
    client: impl FnOnce(&mut ClientOptions),
) -> Pair {
    let (gateway, address) = start_gateway(certificates, 0, gateway);
    let (client, http) = start_client(certificates, address, client);
    Pair::of(client, gateway, http)
}

pub(crate) fn stop(all: impl IntoIterator<Item = Running>) {
    for running in all {
        block_on(running.drain(Duration::ZERO));
    }
}

/// Returns the status and the body of a request through the client at `http`.
pub(crate) fn get(http: SocketAddr) -> (u16, String) {
    let origin = Scene::answering(OK);
    let answer = Client::to(http).get(&origin.url("/"));
    let body = String::from_utf8_lossy(&answer.body).into_owned();
    (answer.status, body)
}

/// Posts all bodies at once, each over its own connection, and expects each back.
pub(crate) fn echo_bodies(pair: &Pair, bodies: impl Iterator<Item = Vec<u8>>) {
    let origin = Scene::new(|_, mut client| {
        while let Some(asked) = client.request() {
            let length = asked
                .field("content-length")
                .map_or(0, |text| text.parse().unwrap());
            let body = client.read_exact(length);
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
            client.send(head);
            client.send(body);
        }
    });
    let (url, http) = (&origin.url("/"), pair.http);
    std::thread::scope(|scope| {
        for (number, body) in bodies.enumerate() {
            scope.spawn(move || {
                let mut browser = Client::to(http);
                let length = format!("Content-Length: {}\r\n", body.len());
                browser.send(request("POST", url, &length));
                browser.send(&body);
                assert!(browser.answer("POST").body == body, "stream {number}");
            });
        }
    });
}

//! Gateways, clients and pairs with `h3+quic`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tandem::config::{ClientOptions, GatewayOptions};
use tandem::runtime::Running;
use tandem::transport::registry::Transports;
use tandem_quic::QuicProvider;

use crate::certificates::Certificates;
use crate::harness::{Pair, block_on, client_options, endpoint, gateway_options};

/// The sessions of the tests that the library shares.
pub(crate) const PUSHING: [&str; 1] = ["h3"];
pub(crate) const CARRYING: [&str; 1] = ["h3"];

/// The number of the next pair, which names the directory of its certificates.
static NEXT: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn carrying_pair(session: &str) -> Pair {
    Pair::with(session, |_| {}, |_| {})
}

impl Pair {
    pub(crate) fn start() -> Self {
        Self::with("h3", |_| {}, |_| {})
    }

    pub(crate) fn with(
        session: &str,
        gateway: impl FnOnce(&mut GatewayOptions),
        client: impl FnOnce(&mut ClientOptions),
    ) -> Self {
        assert_eq!(session, "h3");
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let certificates = Certificates::new(&format!("quic-pair-{number}"));
        let (gateway, address) = start_gateway(&certificates, 0, gateway);
        let (client, http) = start_client(&certificates, address, client);
        Self::of(client, gateway, http)
    }
}

pub(crate) fn transports() -> Transports {
    let mut transports = Transports::default();
    transports.add(QuicProvider::default());
    transports
}

/// Returns the endpoint of a gateway that listens on `port`, or on any if it is 0.
pub(crate) fn listener(certificates: &Certificates, port: u16) -> String {
    let (cert, key) = (
        certificates.path("gateway.pem"),
        certificates.path("gateway.key"),
    );
    format!("h3+quic://127.0.0.1:{port}?cert={cert}&key={key}")
}

pub(crate) fn start_gateway(
    certificates: &Certificates,
    port: u16,
    change: impl FnOnce(&mut GatewayOptions),
) -> (Running, SocketAddr) {
    let listen = endpoint(&listener(certificates, port));
    let mut options = gateway_options();
    options.listen = vec![listen.clone()];
    change(&mut options);
    let config = options.typed_with(&transports()).unwrap();
    let running = block_on(Running::start(Arc::new(config))).unwrap();
    let address = running.address(&listen).unwrap();
    (running, address)
}

pub(crate) fn start_client(
    certificates: &Certificates,
    gateway: SocketAddr,
    change: impl FnOnce(&mut ClientOptions),
) -> (Running, SocketAddr) {
    let ca = certificates.path("ca.pem");
    start_client_of(&format!("h3+quic://{gateway}?ca={ca}"), change)
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
    let config = options.typed_with(&transports()).unwrap();
    let running = block_on(Running::start(Arc::new(config))).unwrap();
    let address = running.address(&listen).unwrap();
    (running, address)
}

pub(crate) fn stop(all: impl IntoIterator<Item = Running>) {
    for running in all {
        block_on(running.drain(std::time::Duration::ZERO));
    }
}

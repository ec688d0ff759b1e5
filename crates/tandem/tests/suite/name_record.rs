//! Gateways whose name has the addresses of a record that a test changes, without a real resolver.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use tandem::config::gateways::GatewayEndpoint;
use tandem::runtime::Running;
use tandem::transport::names::Names;
use tandem::transport::registry::Transports;

use crate::harness::{client_options, endpoint, running};

/// The addresses of a name, which a test changes.
#[derive(Clone, Default)]
pub(crate) struct Record(Arc<Mutex<Vec<IpAddr>>>);

impl Record {
    pub(crate) fn set(&self, addresses: &[&str]) {
        let parse = |text: &&str| text.parse().unwrap();
        *self.0.lock().unwrap() = addresses.iter().map(parse).collect();
    }

    /// Lets gateways find their addresses in this record only.
    pub(crate) fn serve<'a>(&self, gateways: impl IntoIterator<Item = &'a mut GatewayEndpoint>) {
        let record = Arc::clone(&self.0);
        let names = Names::new(move |_| {
            let addresses = record.lock().unwrap().clone();
            match addresses.is_empty() {
                true => Err(std::io::Error::other("no such name")),
                false => Ok(addresses.into_iter().map(|ip| (ip, 0).into()).collect()),
            }
        });
        for gateway in gateways {
            let port = gateway.endpoint.port;
            gateway.addresses = Some(names.addresses(&gateway.endpoint.host, port));
        }
    }
}

/// Starts a client whose gateways have names with addresses in `record`. Returns the address of its
/// HTTP listener.
pub(crate) fn start_client_by_name(
    gateway: &str,
    record: &Record,
    transports: &Transports,
) -> (Running, SocketAddr) {
    let listen = endpoint("http://127.0.0.1:0");
    let mut options = client_options(gateway);
    options.listen = vec![listen.clone()];
    let mut config = options.typed_with(transports).unwrap();
    record.serve(&mut config.gateways);
    running(config, &listen)
}

//! What fuzz targets reach of parsers that are private otherwise. Built with `--cfg fuzzing` only;
//! no part of the library.

use std::net::Ipv4Addr;

use crate::error::Error;
use crate::transport::tor::GatewayExit;
use crate::transport::tor::circuits::{may_share, parse_circuits, parse_relay};
use crate::transport::tor::control::Control;
use crate::transport::tor::directory::{announces, parse_gateways, parse_weights};

/// The gateways at `address` and `port` that a consensus and descriptors tell of.
pub fn gateways(
    consensus: &str,
    descriptors: &str,
    address: Ipv4Addr,
    port: u16,
) -> Vec<GatewayExit> {
    parse_gateways(descriptors, &parse_weights(consensus), address, port)
}

/// Whether one descriptor announces a gateway.
pub fn is_gateway(descriptor: &str, address: Ipv4Addr, port: u16) -> bool {
    announces(descriptor, address, port)
}

/// The paths of the circuits that Tor tells of.
pub fn circuit_paths(status: &str) -> Vec<Vec<String>> {
    parse_circuits(status)
        .into_iter()
        .map(|circuit| circuit.path)
        .collect()
}

/// Whether relays with these entries in the consensus and descriptions may share a circuit, either
/// before the other; none if too little is known of one.
pub fn may_share_circuit(
    relays: [(&str, &str, &str); 2],
    distinct_subnets: bool,
) -> Option<[bool; 2]> {
    let [a, b] = relays
        .map(|(fingerprint, entry, description)| parse_relay(fingerprint, entry, description));
    let (a, b) = (a?, b?);
    Some([[a.clone(), b.clone()], [b, a]].map(|relays| may_share(&relays, distinct_subnets)))
}

/// What Tor's control port says of `key`, where `reply` is all that it says.
pub fn control_reply(reply: &'static [u8], key: &str) -> Result<Option<String>, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    let runtime = runtime.map_err(|error| Error::io(&error, crate::error::Side::Local))?;
    let stream = tokio::io::join(reply, tokio::io::sink());
    runtime.block_on(Control::over(Box::new(stream)).info_if_known(key))
}

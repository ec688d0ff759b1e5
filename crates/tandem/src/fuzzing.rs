//! Private parsers, as fuzz targets call them. This module exists under `--cfg fuzzing` only and is
//! no part of the library.

use std::net::Ipv4Addr;

use crate::error::Error;
use crate::resume::token;
use crate::transport::tor::GatewayExit;
use crate::transport::tor::circuits::{may_share, parse_circuits, parse_relay};
use crate::transport::tor::control::Control;
use crate::transport::tor::directory::{announces, parse_gateways, parse_weights};

/// Returns the gateways at `address` and `port` that a consensus and descriptors list.
pub fn gateways(
    consensus: &str,
    descriptors: &str,
    address: Ipv4Addr,
    port: u16,
) -> Vec<GatewayExit> {
    parse_gateways(descriptors, &parse_weights(consensus), address, port)
}

/// Returns whether a descriptor announces a gateway.
pub fn is_gateway(descriptor: &str, address: Ipv4Addr, port: u16) -> bool {
    announces(descriptor, address, port)
}

/// Returns the paths of the circuits in a reply of Tor.
pub fn circuit_paths(status: &str) -> Vec<Vec<String>> {
    parse_circuits(status)
        .into_iter()
        .map(|circuit| circuit.path)
        .collect()
}

/// Returns whether two relays with these entries in the consensus and descriptions may share a
/// circuit, in both orders. Returns `None` if one description is incomplete.
pub fn may_share_circuit(
    relays: [(&str, &str, &str); 2],
    distinct_subnets: bool,
) -> Option<[bool; 2]> {
    let [a, b] = relays
        .map(|(fingerprint, entry, description)| parse_relay(fingerprint, entry, description));
    let (a, b) = (a?, b?);
    Some([[a.clone(), b.clone()], [b, a]].map(|relays| may_share(&relays, distinct_subnets)))
}

/// Returns the value of `key` if `reply` is the whole output of Tor's control port.
pub fn control_reply(reply: &'static [u8], key: &str) -> Result<Option<String>, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    let runtime = runtime.map_err(|error| Error::io(&error, crate::error::Side::Local))?;
    let stream = tokio::io::join(reply, tokio::io::sink());
    runtime.block_on(Control::over(Box::new(stream)).info_if_known(key))
}

/// Returns the plain content of a token as it is written again, if it can be read.
pub fn token_content(content: &[u8]) -> Option<Vec<u8>> {
    token::read(content).map(|ticket| token::write(&ticket))
}

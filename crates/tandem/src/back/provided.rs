//! Origins over a transport of the registry that has many streams, such as QUIC.
//!
//! The gateway's policy decides about the addresses, as it does for TCP. The transport then dials
//! one address at a time.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use super::policy::Direct;
use crate::carrier::{Carrier, LocalBoxFuture};
use crate::endpoint::Endpoint;
use crate::error::{Error, Kind, Side};
use crate::exchange::Isolation;
use crate::metrics::METRICS;
use crate::path::Path;
use crate::transport::registry::{DialContext, TransportError, Transports};
use crate::transport::{Target, Transport};

/// Dials origins over a transport of the registry.
pub struct Provided {
    /// Resolves names, and permits or refuses their addresses.
    pub direct: Rc<Direct>,
    /// The registry.
    pub transports: Transports,
    /// The endpoint of an origin. Host and port are those of each target.
    pub endpoint: Endpoint,
    /// The congestion control.
    pub congestion: String,
    /// The time for a handshake.
    pub timeout: Duration,
}

impl Provided {
    async fn dial_address(
        &self,
        endpoint: &Endpoint,
        address: SocketAddr,
        target: &Target,
        isolation: &Isolation,
    ) -> Result<Carrier, Error> {
        let context = DialContext {
            streams: Rc::clone(&self.direct) as _,
            address: Some(address),
            congestion: self.congestion.clone(),
            timeout: self.timeout,
        };
        let transport = self
            .transports
            .of(endpoint)
            .map_err(|_| unusable())?
            .dialling(endpoint, context)
            .map_err(|error| match error {
                TransportError::Endpoint(_) => unusable(),
                TransportError::Tls(_) => {
                    let detail = "the files with certificates for origins cannot be read";
                    Error::new(Kind::Tls, Side::Local, detail)
                }
            })?;
        let dialled = transport.carrier(target, isolation).await;
        dialled.map_err(|error| match error.side {
            Side::Peer => error.at(Side::Origin),
            _ => error,
        })
    }
}

/// Returns the error for a host that the transport cannot dial. The text omits the destination,
/// because it is private to a user.
fn unusable() -> Error {
    let detail = "the transport cannot dial that host: its name cannot stand in a certificate";
    Error::new(Kind::Tls, Side::Origin, detail)
}

impl Transport for Provided {
    fn dial<'a>(
        &'a self,
        target: &'a Target,
        isolation: &'a Isolation,
    ) -> LocalBoxFuture<'a, Result<Path, Error>> {
        Box::pin(async move { self.carrier(target, isolation).await?.into_bytes() })
    }

    fn carrier<'a>(
        &'a self,
        target: &'a Target,
        isolation: &'a Isolation,
    ) -> LocalBoxFuture<'a, Result<Carrier, Error>> {
        Box::pin(async move {
            let mut endpoint = self.endpoint.clone();
            endpoint.host.clone_from(&target.host);
            endpoint.port = target.port;
            let mut last = None;
            for address in self.direct.addresses(target).await? {
                match self
                    .dial_address(&endpoint, address, target, isolation)
                    .await
                {
                    Ok(carrier) => {
                        METRICS.origin_connections.add(1);
                        return Ok(carrier);
                    }
                    Err(error) => last = Some(error),
                }
            }
            Err(last.unwrap_or_else(unusable))
        })
    }
}

/// The transport to origins of the scheme `http` for a protocol that always encrypts.
#[derive(Debug)]
pub struct EncryptedOnly;

impl Transport for EncryptedOnly {
    fn dial<'a>(
        &'a self,
        _: &'a Target,
        _: &'a Isolation,
    ) -> LocalBoxFuture<'a, Result<Path, Error>> {
        let detail = "the bridge speaks HTTP/3 to origins, which serves https only";
        let error = Error::new(Kind::BadRequest, Side::Client, detail);
        Box::pin(std::future::ready(Err(error)))
    }
}

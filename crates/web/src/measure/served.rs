//! A page served by origins of the lab: one listener for each shard.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tandem_http::Scheme;
use tokio::net::TcpListener;

use super::MeasureError;
use crate::origin::{Counts, Origin, Protocols, Running};
use crate::page::{Page, Site};

/// The addresses to serve at, and the protocols.
#[derive(Clone, Debug)]
pub struct Listen {
    /// Address of the first listener; the port 0 is any free one, others count up from it.
    pub address: SocketAddr,
    /// Listeners that share the page's hosts; 0: one for each host of the page.
    pub shards: usize,
    /// Hosts (and ports) by which they are reached; by default their addresses.
    pub authorities: Vec<String>,
    /// TLS and the protocols inside it. Without TLS, HTTP/1.1 and HTTP/2, by the client's first
    /// bytes.
    pub tls: Option<Protocols>,
}

/// A page that is being served; stops when dropped.
#[derive(Debug)]
pub struct Served {
    site: Site,
    running: Vec<Running>,
}

impl Served {
    /// Serves a page. Must be called within a runtime of tokio.
    pub async fn start(page: Page, listen: &Listen) -> Result<Self, MeasureError> {
        let hosts = page.hosts.len().max(1);
        let shards = if listen.shards == 0 {
            hosts
        } else {
            listen.shards.min(hosts)
        };
        let shards = shards.max(listen.authorities.len());
        let mut listeners = Vec::new();
        for shard in 0..shards {
            let port = match listen.address.port() {
                0 => 0,
                first => u16::try_from(usize::from(first) + shard).unwrap_or(0),
            };
            let address = SocketAddr::new(listen.address.ip(), port);
            let of = |source| MeasureError::Listen { address, source };
            listeners.push(TcpListener::bind(address).await.map_err(of)?);
        }
        let address = listen.address;
        let of = |source| MeasureError::Listen { address, source };
        let bound = listeners
            .iter()
            .map(TcpListener::local_addr)
            .collect::<Result<Vec<_>, _>>()
            .map_err(of)?;
        let authorities = match &listen.authorities[..] {
            [] => bound
                .iter()
                .map(|address| reachable(*address).to_string())
                .collect(),
            given => given.to_vec(),
        };
        let origin = match listen.tls {
            None => Origin::new(Site::new(page, &authorities)?),
            Some(protocols) => Origin::secure(
                Site::with_scheme(page, Scheme::Https, &authorities)?,
                protocols,
            )?,
        };
        let running = listeners
            .into_iter()
            .map(|listener| origin.spawn(listener))
            .collect::<Result<Vec<_>, _>>();
        Ok(Self {
            site: origin.site().clone(),
            running: running.map_err(of)?,
        })
    }

    /// Returns the site that is served, with its authorities.
    pub const fn site(&self) -> &Site {
        &self.site
    }

    /// Returns the listening addresses, one for each shard.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.running.iter().map(|running| running.address).collect()
    }

    /// Returns the sum of the origins' counts so far.
    pub fn counts(&self) -> Counts {
        self.running
            .first()
            .map_or_else(Counts::default, |running| running.origin.counts())
    }
}

/// An address for one that stands for all.
fn reachable(bound: SocketAddr) -> SocketAddr {
    match bound.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => {
            SocketAddr::new(Ipv4Addr::LOCALHOST.into(), bound.port())
        }
        IpAddr::V6(ip) if ip.is_unspecified() => {
            SocketAddr::new(Ipv6Addr::LOCALHOST.into(), bound.port())
        }
        _ => bound,
    }
}

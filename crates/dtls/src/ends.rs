//! The ends of a datagram's path: the address of the peer, and the address of this machine.

use std::net::{IpAddr, SocketAddr};

/// The ends of the path on which datagrams arrive and leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// The address of the peer.
    pub peer: SocketAddr,
    /// The IP address of this machine at which the peer's datagrams arrive, and from which those to
    /// the peer leave: its socket may accept no others. If it is `None`, the system chooses it.
    pub own: Option<IpAddr>,
}

impl From<SocketAddr> for Ends {
    /// Returns the ends of a path. The system chooses the own address.
    fn from(peer: SocketAddr) -> Self {
        Self { peer, own: None }
    }
}

//! The sockets on which this process listens. A proxy that dials one of them would serve its own
//! requests until no connection is left.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use crate::endpoint::{BadEndpoint, Endpoint};
use crate::transport::registry::{Protocol, Transports};

/// The sockets on which this process listens.
#[derive(Clone, Debug, Default)]
pub struct OwnListeners(Vec<(Protocol, SocketAddr)>);

impl OwnListeners {
    /// Returns the sockets of these endpoints, which are bound to `addresses`.
    pub fn new(
        endpoints: &[Endpoint],
        transports: &Transports,
        addresses: &[SocketAddr],
    ) -> Result<Self, BadEndpoint> {
        let bound = endpoints.iter().zip(addresses);
        bound
            .map(|(endpoint, address)| Ok((transports.to_listen(endpoint)?.protocol(), *address)))
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Returns true if a connection to `address` would reach one of the sockets. An address that a
    /// router translates to this machine is not recognised.
    pub(super) fn contains(&self, protocol: Protocol, address: SocketAddr) -> bool {
        let dialled = address.ip().to_canonical();
        self.0.iter().any(|(own, bound)| {
            if *own != protocol || bound.port() != address.port() {
                return false;
            }
            match bound.ip().to_canonical() {
                any if any.is_unspecified() => {
                    any.is_ipv4() == dialled.is_ipv4() && is_this_machine(dialled)
                }
                // The system takes an unspecified destination for its loopback address.
                one => one == dialled || (dialled.is_unspecified() && one.is_loopback()),
            }
        })
    }
}

/// Returns true if this machine has the address.
pub(super) fn is_this_machine(ip: IpAddr) -> bool {
    ip.is_loopback() || ip.is_unspecified() || source_towards((ip, 9).into()) == Some(ip)
}

/// Returns this machine's address towards another one, or the same address if this machine has it.
/// A UDP socket is connected for that, which sends nothing.
pub(super) fn source_towards(to: SocketAddr) -> Option<IpAddr> {
    let any: SocketAddr = if to.is_ipv4() {
        (Ipv4Addr::UNSPECIFIED, 0).into()
    } else {
        (Ipv6Addr::UNSPECIFIED, 0).into()
    };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(to).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listeners(protocol: Protocol, bound: &str) -> OwnListeners {
        OwnListeners(vec![(protocol, bound.parse().expect("an address"))])
    }

    #[test]
    fn listener_is_recognised_by_protocol_and_address() {
        for (bound, dialled, expected) in [
            ("127.0.0.1:80", "127.0.0.1:80", true),
            ("127.0.0.1:80", "[::ffff:127.0.0.1]:80", true),
            ("127.0.0.1:80", "0.0.0.0:80", true),
            ("127.0.0.1:80", "127.0.0.1:443", false),
            ("127.0.0.1:80", "127.0.0.2:80", false),
            ("0.0.0.0:80", "127.0.0.2:80", true),
            ("0.0.0.0:80", "0.0.0.0:80", true),
            ("0.0.0.0:80", "192.0.2.80:80", false),
            ("0.0.0.0:80", "[::1]:80", false),
            ("[::]:80", "[::1]:80", true),
            ("192.0.2.80:80", "0.0.0.0:80", false),
        ] {
            let own = listeners(Protocol::Tcp, bound);
            let dialled = dialled.parse().expect("an address");
            assert_eq!(
                own.contains(Protocol::Tcp, dialled),
                expected,
                "{bound} {dialled}"
            );
            assert!(!own.contains(Protocol::Udp, dialled), "{bound} {dialled}");
        }
    }
}

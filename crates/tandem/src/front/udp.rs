//! The UDP associations of the SOCKS5 listener (RFC 1928 section 7). Each destination is a
//! CONNECT-UDP tunnel through the gateway (RFC 9298).
//!
//! ```text
//!  program ══ UDP on loopback ══▶ association ─┬─ flow ─▶ exchange ─▶ middle ─▶ gateway
//!     └──── TCP, open as long as the association └─ flow ─▶ …
//! ```
//!
//! The association answers one program: the one at the port that the request names, or else the one
//! that sent the first datagram. A datagram that finds its queue full is dropped, as a router would
//! do.
//!
//! After a drain has begun, an association opens no flow. It ends with its last flow, or when the
//! program sends to a new destination. The program then asks the new configuration for another.

mod flow;
mod limits;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;

use tandem_http::connect_udp;
use tandem_http::socks::{Datagram, Reply as SocksReply, Server};
use tokio::io::AsyncReadExt as _;
use tokio::net::UdpSocket;
use tokio::time::Instant;

use self::flow::{Flow, IDLE};
use self::limits::KeyLimits;
pub use self::limits::UdpLimits;
use super::socks::{answer, write_reply};
use crate::endpoint::split_authority;
use crate::error::{Error, Side};
use crate::exchange::{Exchange, Isolation, Peer};
use crate::log_limit::LogLimit;
use crate::metrics::METRICS;
use crate::path::Path;
use crate::priority::SharedPriority;
use crate::session::Drain;
use crate::stage::Stage;

/// The number of destinations that an association keeps open. The least recently used one gives
/// way to a new one.
const MAX_FLOWS: usize = 64;

/// The size in bytes of the buffer for a datagram: the largest value of UDP's field for its length.
/// Over IPv4 a datagram has at most 65,507 bytes, of which the head of SOCKS takes 10 or more.
const MAX_DATAGRAM: usize = 65_535;

static EXCESS: LogLimit = LogLimit::new();

/// The parts of an association that its flows share.
pub(super) struct Association {
    /// The address for the socket that takes the program's datagrams.
    pub(super) bind: IpAddr,
    /// The connection that asked for the association.
    pub(super) peer: Peer,
    /// The stage that receives the exchanges.
    pub(super) stage: Rc<dyn Stage>,
    /// The port from which the program will send, if its request named it.
    pub(super) port: Option<u16>,
    /// The limits of the connection's isolation key.
    pub(super) limits: Rc<KeyLimits>,
}

impl Association {
    /// Relays datagrams until the program closes the connection, or the drain ends the association.
    pub(super) async fn run(
        self,
        mut path: Path,
        mut server: Server,
        drain: Drain,
    ) -> Result<(), Error> {
        let bound = UdpSocket::bind((self.bind, 0)).await;
        let (socket, address) = match bound.and_then(|it| it.local_addr().map(|at| (it, at))) {
            Ok(bound) => bound,
            Err(error) => {
                tracing::warn!(%error, "no socket for a UDP association");
                return answer(&mut path, &mut server, SocksReply::GeneralFailure).await;
            }
        };
        server.reply_bound(address);
        write_reply(&mut path, &mut server).await?;
        let mut flows = Flows {
            association: self,
            socket: Rc::new(socket),
            program: None,
            flows: HashMap::new(),
        };
        tokio::select! {
            biased;
            ended = until_closed(&mut path) => ended,
            ended = flows.run(&drain) => ended,
        }
    }
}

/// Returns the port from which a program will send, if the `target` of its request names it (RFC
/// 1928 section 4). A target with the address of another host than `peer` is not the program's: no
/// datagram of that host is accepted, and some programs name the destination there.
pub(super) fn named_port(target: &str, peer: Peer) -> Option<u16> {
    let target: SocketAddr = target.parse().ok()?;
    let named = target.ip().to_canonical();
    let is_own = peer.address.is_some_and(|it| it.to_canonical() == named);
    let is_program = named.is_unspecified() || is_own;
    (is_program && target.port() != 0).then_some(target.port())
}

/// Waits for the end of the connection, and drops the bytes before it.
async fn until_closed(path: &mut Path) -> Result<(), Error> {
    let mut buffer = [0; 512];
    loop {
        match path.read(&mut buffer).await {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(Error::io(&error, Side::Client)),
        }
    }
}

/// The flows of an association, by the address of the destination as the program wrote it.
struct Flows {
    association: Association,
    socket: Rc<UdpSocket>,
    /// The program's address, known from its first datagram.
    program: Option<SocketAddr>,
    flows: HashMap<Box<[u8]>, Flow>,
}

impl Flows {
    /// Forwards the program's datagrams until the socket fails or the drain ends the association.
    async fn run(&mut self, drain: &Drain) -> Result<(), Error> {
        let mut buffer = vec![0; MAX_DATAGRAM];
        let mut sweep = tokio::time::interval(IDLE / 2);
        let mut draining = std::pin::pin!(drain.begun());
        let mut drains = false;
        while !drains || !self.flows.is_empty() {
            let received = tokio::select! {
                received = self.socket.recv_from(&mut buffer) => received,
                now = sweep.tick() => {
                    self.flows.retain(|_, flow| flow.is_in_use(now));
                    continue;
                }
                () = &mut draining, if !drains => {
                    drains = true;
                    let now = Instant::now();
                    self.flows.retain(|_, flow| flow.is_in_use(now));
                    continue;
                }
            };
            match received {
                Ok((count, from)) if self.is_program(from).await => {
                    if self.forward(&buffer[..count], drains).is_break() {
                        break;
                    }
                }
                Ok(_) => {}
                // The program has closed its socket, and may open it again.
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {}
                Err(error) => return Err(Error::io(&error, Side::Client)),
            }
        }
        Ok(())
    }

    /// Returns whether a datagram comes from the program. If the request named no port, the first
    /// datagram decides on it.
    async fn is_program(&mut self, from: SocketAddr) -> bool {
        if let Some(program) = self.program {
            return program == from;
        }
        let address = self.association.peer.address;
        let is_same = address.is_some_and(|it| it.to_canonical() == from.ip().to_canonical());
        let is_named = self.association.port.is_none_or(|it| it == from.port());
        if !is_same || !is_named || self.socket.connect(from).await.is_err() {
            return false;
        }
        self.program = Some(from);
        true
    }

    /// Forwards a datagram. While the association drains, one to a new destination ends it.
    fn forward(&mut self, bytes: &[u8], drains: bool) -> ControlFlow<()> {
        let Some(datagram) = Datagram::parse(bytes) else {
            tracing::debug!("a datagram of a UDP association is malformed or a fragment");
            return ControlFlow::Continue(());
        };
        let now = Instant::now();
        let open = self.flows.get(datagram.address);
        if !open.is_some_and(|flow| flow.is_in_use(now)) {
            self.flows.remove(datagram.address);
            if drains {
                return ControlFlow::Break(());
            }
            let Some(flow) = self.open(&datagram, now) else {
                return ControlFlow::Continue(());
            };
            self.make_room();
            self.flows.insert(datagram.address.into(), flow);
        }
        if let Some(flow) = self.flows.get(datagram.address) {
            flow.send(datagram.payload, now);
        }
        ControlFlow::Continue(())
    }

    /// Closes the least recently used flow of a full association.
    fn make_room(&mut self) {
        if self.flows.len() < MAX_FLOWS {
            return;
        }
        let oldest = self.flows.iter().min_by_key(|(_, it)| it.last_used());
        if let Some(address) = oldest.map(|(address, _)| address.clone()) {
            self.flows.remove(&address);
        }
    }

    fn open(&self, datagram: &Datagram<'_>, now: Instant) -> Option<Flow> {
        let (host, port) = split_authority(&datagram.target, None).ok()?;
        if port == 0 {
            return None;
        }
        let Association {
            peer,
            stage,
            limits,
            ..
        } = &self.association;
        let place = match limits.place(now) {
            Ok(place) => place,
            Err(reason) => {
                if let Some(held_back) = EXCESS.admit() {
                    tracing::warn!("{reason} ({held_back} more since the last line)");
                }
                return None;
            }
        };
        METRICS.udp_flows.add(1);
        let call = |body| {
            stage.call(Exchange {
                request: Arc::new(connect_udp::request(&host, port)),
                body,
                isolation: Isolation::none(),
                peer: *peer,
                priority: SharedPriority::default(),
            })
        };
        Some(Flow::open(datagram.address, &self.socket, place, now, call))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_port_is_that_of_the_program() {
        let peer = Peer {
            address: Some([192, 0, 2, 7].into()),
            ..Peer::none()
        };
        for (target, port) in [
            ("0.0.0.0:0", None),
            ("0.0.0.0:4000", Some(4000)),
            ("[::]:4000", Some(4000)),
            ("192.0.2.7:4000", Some(4000)),
            ("[::ffff:192.0.2.7]:4000", Some(4000)),
            ("192.0.2.7:0", None),
            ("198.51.100.1:53", None),
            ("a.test:53", None),
        ] {
            assert_eq!(named_port(target, peer), port, "{target}");
        }
    }
}

//! Interfaces, addresses and routes of the calling thread's network namespace, by rtnetlink (RFC
//! 3549).
//!
//! The module has only the operations that the emulator needs, so that it depends on no installed
//! program.

use std::io::{self, Read};
use std::net::IpAddr;

use socket2::{Domain, Protocol, Socket, Type};

const HEADER: usize = 16;
const RTM_NEWLINK: u16 = libc::RTM_NEWLINK;
/// Route metrics of `linux/rtnetlink.h` that the libc crate lacks.
const RTAX_INITCWND: u16 = 11;
const RTAX_CC_ALGO: u16 = 16;
const NLM_F_CREATE_REPLACE: u16 = (libc::NLM_F_CREATE | libc::NLM_F_REPLACE) as u16;

/// Settings of TCP for a route, which the kernel keeps as route metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TcpMetrics {
    /// Congestion control by name; it must be available in the kernel.
    pub congestion: Option<String>,
    /// Initial congestion window in segments.
    pub initial_window: Option<u32>,
}

/// A connection to the kernel's routing tables.
#[derive(Debug)]
pub struct Rtnl {
    socket: Socket,
    sequence: u32,
}

impl Rtnl {
    /// Opens one in the calling thread's namespace.
    pub fn open() -> io::Result<Self> {
        let protocol = Some(Protocol::from(libc::NETLINK_ROUTE));
        let socket = Socket::new(Domain::from(libc::AF_NETLINK), Type::RAW, protocol)?;
        Ok(Self {
            socket,
            sequence: 0,
        })
    }

    /// Index of an interface.
    pub fn index(&mut self, name: &str) -> io::Result<u32> {
        let mut request = Message::new(libc::RTM_GETLINK, 0);
        request
            .bytes(&[0; 16])
            .attribute(libc::IFLA_IFNAME, &zero_closed(name));
        let mut index = None;
        self.exchange(request, |kind, body| {
            if kind == RTM_NEWLINK {
                index = body
                    .get(4..8)
                    .and_then(|b| b.try_into().ok())
                    .map(u32::from_ne_bytes);
            }
        })?;
        index.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no interface {name}")))
    }

    /// Switches an interface on, with room for `queue` packets and this MTU where given.
    pub fn bring_up(&mut self, index: u32, mtu: Option<u32>, queue: Option<u32>) -> io::Result<()> {
        let up = libc::IFF_UP as u32;
        let mut request = Message::new(RTM_NEWLINK, libc::NLM_F_ACK as u16);
        request
            .bytes(&[0; 4])
            .bytes(&index.to_ne_bytes())
            .bytes(&up.to_ne_bytes())
            .bytes(&up.to_ne_bytes());
        if let Some(mtu) = mtu {
            request.attribute(libc::IFLA_MTU, &mtu.to_ne_bytes());
        }
        if let Some(queue) = queue {
            request.attribute(libc::IFLA_TXQLEN, &queue.to_ne_bytes());
        }
        self.exchange(request, |_, _| {})
    }

    /// Gives an interface an address, and no network.
    pub fn add_address(&mut self, index: u32, address: IpAddr) -> io::Result<()> {
        let bits = address_bits(address);
        let mut request = Message::new(
            libc::RTM_NEWADDR,
            libc::NLM_F_ACK as u16 | NLM_F_CREATE_REPLACE,
        );
        let no_duplicate_detection = libc::IFA_F_NODAD as u8;
        request
            .bytes(&[family(address), bits, no_duplicate_detection, 0])
            .bytes(&index.to_ne_bytes());
        request.attribute(libc::IFA_LOCAL, &octets(address));
        request.attribute(libc::IFA_ADDRESS, &octets(address));
        self.exchange(request, |_, _| {})
    }

    /// Routes `destination`/`prefix` straight to an interface, in place of an equal route.
    pub fn replace_route(
        &mut self,
        destination: IpAddr,
        prefix: u8,
        index: u32,
        tcp: &TcpMetrics,
    ) -> io::Result<()> {
        let mut request = Message::new(
            libc::RTM_NEWROUTE,
            libc::NLM_F_ACK as u16 | NLM_F_CREATE_REPLACE,
        );
        let [table, protocol, kind] = [libc::RT_TABLE_MAIN, libc::RTPROT_STATIC, libc::RTN_UNICAST];
        let scope = if destination.is_ipv4() {
            libc::RT_SCOPE_LINK
        } else {
            libc::RT_SCOPE_UNIVERSE
        };
        request.bytes(&[
            family(destination),
            prefix,
            0,
            0,
            table,
            protocol,
            scope,
            kind,
            0,
            0,
            0,
            0,
        ]);
        if prefix > 0 {
            request.attribute(libc::RTA_DST, &octets(destination));
        }
        request.attribute(libc::RTA_OIF, &index.to_ne_bytes());
        let metrics = metrics(tcp);
        if !metrics.is_empty() {
            request.attribute(libc::RTA_METRICS, &metrics);
        }
        self.exchange(request, |_, _| {})
    }

    /// Lets this host take IPv4 packets to every address to which no longer route leads.
    pub fn add_local_default(&mut self, index: u32) -> io::Result<()> {
        let mut request = Message::new(
            libc::RTM_NEWROUTE,
            libc::NLM_F_ACK as u16 | NLM_F_CREATE_REPLACE,
        );
        let [table, protocol, kind] = [libc::RT_TABLE_MAIN, libc::RTPROT_STATIC, libc::RTN_LOCAL];
        request.bytes(&[
            libc::AF_INET as u8,
            0,
            0,
            0,
            table,
            protocol,
            libc::RT_SCOPE_HOST,
            kind,
            0,
            0,
            0,
            0,
        ]);
        request.attribute(libc::RTA_OIF, &index.to_ne_bytes());
        self.exchange(request, |_, _| {})
    }

    /// Every address of every interface, and those at the other ends of point-to-point ones.
    pub fn addresses(&mut self) -> io::Result<Vec<IpAddr>> {
        let mut request = Message::new(libc::RTM_GETADDR, libc::NLM_F_DUMP as u16);
        request.bytes(&[0; 8]);
        let mut found = Vec::new();
        self.exchange(request, |kind, body| {
            if kind == libc::RTM_NEWADDR {
                let addresses = attributes(body.get(8..).unwrap_or_default());
                found.extend(
                    addresses
                        .filter(|(k, _)| matches!(*k, libc::IFA_LOCAL | libc::IFA_ADDRESS))
                        .filter_map(|(_, v)| address(v)),
                );
            }
        })?;
        Ok(found)
    }

    /// Packets that an interface dropped before they were sent.
    pub fn dropped(&mut self, index: u32) -> io::Result<u64> {
        /// Place of `tx_dropped` in `rtnl_link_stats64`.
        const TX_DROPPED: usize = 7 * 8;
        let mut request = Message::new(libc::RTM_GETLINK, 0);
        request
            .bytes(&[0; 4])
            .bytes(&index.to_ne_bytes())
            .bytes(&[0; 8]);
        let mut dropped = 0;
        self.exchange(request, |_, body| {
            let stats = attributes(body.get(16..).unwrap_or_default())
                .find(|(k, _)| *k == libc::IFLA_STATS64);
            let field = stats.and_then(|(_, v)| v.get(TX_DROPPED..TX_DROPPED + 8)?.try_into().ok());
            dropped = field.map_or(0, u64::from_ne_bytes);
        })?;
        Ok(dropped)
    }

    /// Sends a request and gives each message of the answer to `see`, up to the end or the kernel's
    /// error.
    fn exchange(&mut self, request: Message, mut see: impl FnMut(u16, &[u8])) -> io::Result<()> {
        self.sequence += 1;
        let dump = request.flags & libc::NLM_F_DUMP as u16 != 0;
        let acknowledged = request.flags & libc::NLM_F_ACK as u16 != 0;
        self.socket.send(&request.finish(self.sequence))?;
        let mut buffer = vec![0; 1 << 16];
        loop {
            let len = (&self.socket).read(&mut buffer)?;
            let mut rest = &buffer[..len];
            while let Some((kind, body, next)) = message(rest) {
                rest = next;
                match i32::from(kind) {
                    libc::NLMSG_DONE => return Ok(()),
                    libc::NLMSG_ERROR => return kernel_verdict(body),
                    _ => see(kind, body),
                }
            }
            if !dump && !acknowledged {
                return Ok(());
            }
        }
    }
}

fn kernel_verdict(body: &[u8]) -> io::Result<()> {
    match body
        .get(..4)
        .and_then(|b| b.try_into().ok())
        .map(i32::from_ne_bytes)
    {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(-code)),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// A request under construction.
struct Message {
    kind: u16,
    flags: u16,
    body: Vec<u8>,
}

impl Message {
    fn new(kind: u16, flags: u16) -> Self {
        Self {
            kind,
            flags: flags | libc::NLM_F_REQUEST as u16,
            body: Vec::new(),
        }
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.body.extend_from_slice(bytes);
        self
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        put_attribute(&mut self.body, kind, value);
        self
    }

    fn finish(self, sequence: u32) -> Vec<u8> {
        let mut out = ((HEADER + self.body.len()) as u32).to_ne_bytes().to_vec();
        out.extend_from_slice(&self.kind.to_ne_bytes());
        out.extend_from_slice(&self.flags.to_ne_bytes());
        out.extend_from_slice(&sequence.to_ne_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.body);
        out
    }
}

fn put_attribute(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    out.extend_from_slice(&((4 + value.len()) as u16).to_ne_bytes());
    out.extend_from_slice(&kind.to_ne_bytes());
    out.extend_from_slice(value);
    out.resize(out.len().next_multiple_of(4), 0);
}

fn metrics(tcp: &TcpMetrics) -> Vec<u8> {
    let mut out = Vec::new();
    if let Some(name) = &tcp.congestion {
        put_attribute(&mut out, RTAX_CC_ALGO, &zero_closed(name));
    }
    if let Some(segments) = tcp.initial_window {
        put_attribute(&mut out, RTAX_INITCWND, &segments.to_ne_bytes());
    }
    out
}

/// Splits the first message off a datagram: kind, body, rest.
fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let len = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let body = bytes.get(HEADER..len)?;
    Some((
        kind,
        body,
        bytes.get(len.next_multiple_of(4)..).unwrap_or_default(),
    ))
}

fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?);
        let value = bytes.get(4..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

fn address(octets: &[u8]) -> Option<IpAddr> {
    <[u8; 4]>::try_from(octets)
        .map(IpAddr::from)
        .or_else(|_| <[u8; 16]>::try_from(octets).map(IpAddr::from))
        .ok()
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

fn family(address: IpAddr) -> u8 {
    if address.is_ipv4() {
        libc::AF_INET as u8
    } else {
        libc::AF_INET6 as u8
    }
}

fn address_bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn zero_closed(text: &str) -> Vec<u8> {
    let mut bytes: Vec<u8> = text.bytes().take_while(|b| *b != 0).collect();
    bytes.push(0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_and_read_back() {
        let mut bytes = Vec::new();
        put_attribute(&mut bytes, 3, b"abc\0");
        put_attribute(&mut bytes, 7, b"x");
        assert_eq!(bytes.len(), 16);
        assert_eq!(
            attributes(&bytes).collect::<Vec<_>>(),
            [(3, &b"abc\0"[..]), (7, &b"x"[..])]
        );
        assert_eq!(attributes(&bytes[..7]).count(), 0);
    }

    #[test]
    fn this_namespace_has_a_loopback_interface() {
        let mut rtnl = Rtnl::open().expect("netlink needs no privilege");
        assert_eq!(rtnl.index("lo").expect("lo is in every namespace"), 1);
        assert_eq!(
            rtnl.index("no-such-if").expect_err("absent").raw_os_error(),
            Some(libc::ENODEV)
        );
    }
}

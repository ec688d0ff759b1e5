//! The destinations that a gateway may connect to. The policy checks the resolved address, so that
//! a name cannot point the gateway at a refused destination.
//!
//! By default the policy refuses every address outside the public Internet (RFC 6890: private,
//! loopback, link-local with the cloud's metadata address, shared, documentation, multicast,
//! reserved). It refuses public addresses of the machine itself and of the networks of its
//! interfaces (`own_networks`), and the address of a cloud's service for its machines. It also
//! refuses such addresses inside IPv6 forms that embed IPv4, and every port but 80 and 443.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use super::lookups::Lookups;
use super::own::OwnListeners;
use super::own_networks;
use crate::carrier::LocalBoxFuture;
use crate::embedded::{of_6to4, of_nat64};
use crate::endpoint::is_onion;
use crate::error::{Error, Kind, Retry, Side};
use crate::exchange::Isolation;
use crate::log_limit::LogLimit;
use crate::metrics::METRICS;
use crate::path::Path;
use crate::textual::textual;
use crate::transport::registry::Protocol;
use crate::transport::tcp::{SocketOptions, connect, path};
use crate::transport::{Dial, Target};

/// A destination that is allowed despite the rules, written `NET[:PORT]`. Without a port, all ports
/// of the network are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllowDest {
    net: IpAddr,
    bits: u8,
    port: Option<u16>,
}

impl FromStr for AllowDest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || {
            format!("{text:?} is no NET[:PORT], such as 10.0.0.0/8, 127.0.0.1:8080, [fd00::/8]:443")
        };
        let (net, port) = if let Some(rest) = text.strip_prefix('[') {
            let (net, port) = rest.split_once(']').ok_or_else(bad)?;
            (
                net,
                if port.is_empty() {
                    None
                } else {
                    Some(port.strip_prefix(':').ok_or_else(bad)?)
                },
            )
        } else if text.matches(':').count() > 1 {
            (text, None)
        } else {
            text.split_once(':')
                .map_or((text, None), |(net, port)| (net, Some(port)))
        };
        let (base, bits) = net
            .split_once('/')
            .map_or((net, None), |(base, bits)| (base, Some(bits)));
        let net: IpAddr = base.parse().map_err(|_| bad())?;
        let most = if net.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(most), str::parse).map_err(|_| bad())?;
        if bits > most {
            return Err(bad());
        }
        let port = port.map(str::parse).transpose().map_err(|_| bad())?;
        Ok(Self { net, bits, port })
    }
}

impl fmt::Display for AllowDest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { net, bits, port } = self;
        match (net, port) {
            (IpAddr::V6(_), Some(port)) => write!(f, "[{net}/{bits}]:{port}"),
            (_, Some(port)) => write!(f, "{net}/{bits}:{port}"),
            (_, None) => write!(f, "{net}/{bits}"),
        }
    }
}

textual!(AllowDest);

impl AllowDest {
    fn covers(&self, address: SocketAddr) -> bool {
        if self.port.is_some_and(|port| port != address.port()) {
            return false;
        }
        own_networks::have_common_prefix(self.net, address.ip(), self.bits)
    }
}

/// The address family that is used for a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddressFamily {
    /// Both families.
    #[default]
    Any,
    /// IPv4 only.
    V4,
    /// IPv6 only.
    V6,
}

/// The program whose options make a policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyOf {
    /// A gateway, with `--allow-dest` and `--allow-port`.
    #[default]
    Gateway,
    /// A client without a gateway, with `--solo-allow-dest`.
    Solo,
}

/// The rules for destinations.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The program whose options permit more destinations.
    pub of: PolicyOf,
    /// The address family that is used for a name.
    pub family: AddressFamily,
    /// The exceptions to the refused destinations.
    pub allow: Vec<AllowDest>,
    /// The ports that are allowed on every public address.
    pub ports: Vec<u16>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            of: PolicyOf::Gateway,
            family: AddressFamily::Any,
            allow: Vec::new(),
            ports: vec![80, 443],
        }
    }
}

impl Policy {
    /// Returns whether the gateway may dial `address`.
    pub fn permits(&self, address: SocketAddr) -> bool {
        self.check(address, own_networks::contain).is_none()
    }

    /// Returns the reason why the gateway may not dial `address`. `is_own` returns whether an
    /// address belongs to this machine or its networks.
    fn check(&self, address: SocketAddr, is_own: impl Fn(IpAddr) -> bool) -> Option<Refused> {
        let address = SocketAddr::new(address.ip().to_canonical(), address.port());
        if self.allow.iter().any(|allow| allow.covers(address)) {
            return None;
        }
        let ip = address.ip();
        if !is_public(ip) {
            Some(Refused::NotPublic)
        } else if is_own(ip) || embedded(ip).is_some_and(|ip| is_own(ip.into())) {
            Some(Refused::OwnNetwork)
        } else {
            let is_allowed = self.ports.contains(&address.port());
            (!is_allowed).then_some(Refused::Port)
        }
    }
}

/// The reason why a destination is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    /// The address is not public.
    NotPublic,
    /// The address belongs to this machine or to a network of its interfaces.
    OwnNetwork,
    /// The port is not allowed.
    Port,
}

static REFUSALS: LogLimit = LogLimit::new();

impl Policy {
    /// Logs a refusal and the option that would permit it. The line omits the destination, because
    /// it is private to a user.
    fn tell_refusal(&self, refused: Refused) {
        let Some(held_back) = REFUSALS.admit() else {
            return;
        };
        let remedy = self.remedy(refused);
        tracing::warn!(
            "a destination was refused: {remedy} ({held_back} more since the last line)"
        );
    }

    /// Returns the text of a reason, and the option that would permit the destination.
    const fn remedy(&self, refused: Refused) -> &'static str {
        match (self.of, refused) {
            (PolicyOf::Gateway, Refused::Port) => {
                "its port is not among --allow-port (80 and 443 if there is none)"
            }
            (PolicyOf::Gateway, Refused::NotPublic) => {
                "its address is not of the public Internet; --allow-dest NET[:PORT] permits a net"
            }
            (PolicyOf::Gateway, Refused::OwnNetwork) => {
                "its address is this machine's or of a network of its interfaces; --allow-dest \
                 NET[:PORT] permits a net"
            }
            (PolicyOf::Solo, Refused::Port) => {
                "its port is neither 80 nor 443; --solo-allow-dest NET:PORT permits it"
            }
            (PolicyOf::Solo, Refused::NotPublic) => {
                "its address is not of the public Internet; --solo-allow-dest NET[:PORT] permits \
                 a net"
            }
            (PolicyOf::Solo, Refused::OwnNetwork) => {
                "its address is this machine's or of a network of its interfaces; \
                 --solo-allow-dest NET[:PORT] permits a net"
            }
        }
    }

    /// Returns the text of the response to a refused request.
    const fn refusal(&self) -> &'static str {
        match self.of {
            PolicyOf::Gateway => {
                "that address or port is not allowed; --allow-dest and --allow-port of the program \
                 that connects name those that are. --allow-port replaces 80 and 443: repeat them"
            }
            PolicyOf::Solo => {
                "that address or port is not allowed; --solo-allow-dest NET[:PORT] permits it"
            }
        }
    }
}

/// Returns whether an address belongs to the public Internet.
pub fn is_public(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    !(matches!(a, 0 | 10 | 127 | 224..=255)
        || (a == 100 && (64..128).contains(&b))
        || (a == 169 && b == 254)
        || (a == 172 && (16..32).contains(&b))
        || (a == 192 && b == 168)
        || (a == 192 && b == 0 && (c == 0 || c == 2))
        || (a == 192 && b == 88 && c == 99)
        || (a == 198 && (18..20).contains(&b))
        || (a == 198 && b == 51 && c == 100)
        || (a == 203 && b == 0 && c == 113)
        || ip == AZURE)
}

/// The address at which Azure gives its machines their configuration and a resolver. The services
/// of other clouds are at addresses that are not public.
const AZURE: Ipv4Addr = Ipv4Addr::new(168, 63, 129, 16);

fn is_public_v6(ip: Ipv6Addr) -> bool {
    if let Some(embedded) = embedded(ip.into()) {
        return is_public_v4(embedded);
    }
    let s = ip.segments();
    match s[0] {
        // Only 2000::/3 is allocated. It contains documentation, benchmarking, ORCHID and Teredo.
        0x2001 => !(s[1] == 0xdb8 || s[1] < 0x200),
        0x3fff => s[1] & 0xf000 != 0,
        first => (0x2000..0x4000).contains(&first),
    }
}

/// Returns the IPv4 address to which a translator or a relay passes packets for `ip`.
fn embedded(ip: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(ip) = ip else { return None };
    of_nat64(ip).or_else(|| of_6to4(ip))
}

/// The time that an address may stay silent before the next address of the same name is tried.
const NEXT_ADDRESS: Duration = Duration::from_secs(3);

/// Dials addresses in order until one answers, and returns its connection. `dial` gets an address
/// and the longest time for it. The last address has the whole `timeout`. An address that does not
/// answer must not use up the time of the next one, so the others have at most three seconds.
///
/// Returns the error of the last address if all fail.
pub(super) async fn first_to_answer<T>(
    addresses: &[SocketAddr],
    timeout: Duration,
    dial: impl AsyncFn(SocketAddr, Duration) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut failed = Error::new(Kind::Dns, Side::Origin, "the name has no address");
    for (number, address) in addresses.iter().enumerate() {
        let limit = if number + 1 < addresses.len() {
            NEXT_ADDRESS.min(timeout)
        } else {
            timeout
        };
        match dial(*address, limit).await {
            Ok(connection) => return Ok(connection),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

/// The gateway's transport to origins: it resolves names and dials the addresses that the policy
/// permits.
#[derive(Debug)]
pub struct Direct {
    /// The rules for destinations.
    pub policy: Policy,
    /// The target that the operator named, as in `--mode reverse=`. It needs no permission.
    pub named: Option<Target>,
    /// The sockets of this process, which it must not dial.
    pub own: OwnListeners,
    /// The socket options. Origins are near, so the defaults suffice.
    pub options: SocketOptions,
}

impl Direct {
    /// Reads the networks of this machine, so that they are known before the first connection.
    pub fn read_networks() {
        own_networks::prepare();
    }

    async fn resolve(&self, session: u64, target: &Target) -> Result<Vec<SocketAddr>, Error> {
        let dns =
            |detail: String| Error::new(Kind::Dns, Side::Origin, detail).with_retry(Retry::Safe);
        if let Ok(ip) = target.host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(ip, target.port)]);
        }
        if is_onion(&target.host) {
            // A resolver must not learn the name (RFC 7686 section 2).
            let detail = "onion services are reached through Tor only: use --via";
            return Err(Error::new(Kind::Dns, Side::Local, detail));
        }
        let (name, limit) = ((&*target.host, target.port), self.options.connect_timeout);
        let looked_up = Lookups::of_process().look_up(session, name, limit).await;
        looked_up.map_err(|error| dns(error.to_string()))
    }
}

impl Direct {
    /// Resolves a target for the client's session of this number. Returns one to four addresses,
    /// which the policy permits and at which this process does not listen.
    pub(super) async fn addresses(
        &self,
        protocol: Protocol,
        session: u64,
        target: &Target,
    ) -> Result<Vec<SocketAddr>, Error> {
        let named = self.named.as_ref() == Some(target);
        let wanted = |address: &SocketAddr| match self.policy.family {
            AddressFamily::Any => true,
            AddressFamily::V4 => address.is_ipv4(),
            AddressFamily::V6 => address.is_ipv6(),
        };
        let found = self
            .resolve(session, target)
            .await?
            .into_iter()
            .filter(wanted);
        let mut addresses: Vec<_> = found.take(4).collect();
        if addresses.is_empty() {
            let detail = "the name has no address";
            return Err(Error::new(Kind::Dns, Side::Origin, detail));
        }
        addresses.retain(|address| named || self.permits(*address));
        if addresses.is_empty() {
            let detail = self.policy.refusal();
            return Err(Error::new(Kind::Forbidden, Side::Local, detail));
        }
        addresses.retain(|address| !self.own.contains(protocol, *address));
        if addresses.is_empty() {
            let detail = "the destination is this proxy itself";
            return Err(Error::new(Kind::Loop, Side::Local, detail));
        }
        Ok(addresses)
    }

    /// Returns whether the policy permits an address, and reports a refusal.
    fn permits(&self, address: SocketAddr) -> bool {
        let refused = self.policy.check(address, own_networks::contain);
        if let Some(refused) = refused {
            METRICS.destinations_refused.add(1);
            self.policy.tell_refusal(refused);
        }
        refused.is_none()
    }
}

impl Dial for Direct {
    fn below(&self) -> Option<&dyn Dial> {
        None
    }

    fn dial<'a>(
        &'a self,
        target: &'a Target,
        isolation: &'a Isolation,
    ) -> LocalBoxFuture<'a, Result<Path, Error>> {
        Box::pin(async move {
            let session = isolation.connection();
            let addresses = self.addresses(Protocol::Tcp, session, target).await?;
            let dial = |address, limit| connect(address, limit, Side::Origin);
            let stream = first_to_answer(&addresses, self.options.connect_timeout, dial).await?;
            METRICS.origin_connections.add(1);
            let _ = stream.set_nodelay(true);
            Ok(path(stream))
        })
    }
}

#[cfg(test)]
mod tests;
